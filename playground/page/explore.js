// Explore: settings in, everything that follows from them out, while one types.

const NUMBERS = ['p', 'v', 'm', 'f', 'i', 'w', 'b', 'hop', 'memory', 'slow', 'factor'];
const EFFORTS = [0.05, 0.4]; // seconds of a typical core, by themselves
const LONGER = [2, 8]; // on demand

let engines = null;
let schedules = [];
const explored = { result: null, shape: null, plan: null, comparison: null, gap: null, asked: 0, round: 0 };

// ---- Settings ----

// 0.25 and 1/3 are numbers; NaN is none.
function realOf(text) {
  const parts = /^\s*(\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)\s*(?:\/\s*(\d+\.?\d*))?\s*$/i.exec(text);
  return parts ? Number(parts[1]) / (parts[2] === undefined ? 1 : Number(parts[2])) : NaN;
}

function scheduleInfo() {
  const plain = (name) => name.toLowerCase().replace(/[-_]/g, '');
  return schedules.find((info) => plain(info.name) === plain(state.schedule));
}

// Stages per rank: as given, or the schedule's own.
function stagesPerRank() {
  const info = scheduleInfo();
  if (info && info.stages_per_rank_min === info.stages_per_rank_max) return info.stages_per_rank_min;
  return state.v === '' ? (info ? info.stages_per_rank_default : 1) : Number(state.v);
}

// What is wrong with the times, or null.
function wrongTimes() {
  const names = { f: 'F', i: 'I', w: 'W', b: 'B', hop: 'the transfer', memory: 'the memory limit', factor: 'the slow rank\'s factor' };
  for (const [field, name] of Object.entries(names)) {
    const optional = field === 'b' || field === 'memory' || (field === 'factor' && state.slow === '');
    if (!(optional && state[field] === '') && Number.isNaN(realOf(state[field]))) {
      return { message: `${name} is '${state[field]}': expected a number`, hint: 'write 1, 0.25 or 1/3' };
    }
  }
  return null;
}

// Times are of a rank's share of the model, as for `weft compare`: a stage takes 1/v of them.
function costsText() {
  const v = stagesPerRank();
  const stage = { f: realOf(state.f) / v, i: realOf(state.i) / v, w: realOf(state.w) / v };
  if (state.b !== '') stage.b = realOf(state.b) / v;
  stage.activation = 1 / v;
  return JSON.stringify({ schema: 'weft-costs/1', stages: [stage], hop: { latency: realOf(state.hop) } });
}

function genWords() {
  const info = scheduleInfo();
  if (info && info.fixed) return ['gen', info.name];
  const words = ['gen', state.schedule, '-p', state.p, '-m', state.m];
  const one = info && info.stages_per_rank_min === info.stages_per_rank_max;
  return state.v === '' || one ? words : [...words, '-v', state.v];
}

const slowWords = () => (state.slow === '' ? [] : ['--slow', `${state.slow}=${state.factor}`]);
const memoryWords = () => (state.memory === '' ? [] : ['--memory', state.memory]);

function timeWords() {
  const words = [];
  for (const name of ['f', 'i', 'w', 'b', 'hop']) {
    if (state[name] !== '' && state[name] !== DEFAULTS[name]) words.push(`--${name}`, state[name]);
  }
  return words;
}

const shapeWords = () => {
  const info = scheduleInfo();
  const made = explored.shape;
  return info && info.fixed && made ? ['-p', String(made.ranks), '-m', String(made.microbatches)] : ['-p', state.p, '-m', state.m];
};
const compareWords = () => ['compare', ...shapeWords(), ...timeWords(), ...slowWords(), ...memoryWords(),
  ...(state.channel === 'edge' ? [] : ['--channel', state.channel])];
const planWords = (effort) => ['plan', ...shapeWords(), ...timeWords(), ...slowWords(), ...memoryWords(),
  '--threads', '1', '--effort', String(effort)];

// ---- The form ----

function showForm() {
  const info = scheduleInfo();
  const one = info && info.stages_per_rank_min === info.stages_per_rank_max;
  byId('schedule').value = info ? info.name : '';
  for (const name of NUMBERS) {
    const field = byId(`set-${name}`);
    const shown = field.type === 'number' && !/^\d*$/.test(state[name]) ? '' : state[name];
    if (document.activeElement !== field) field.value = shown;
  }
  byId('set-v').disabled = Boolean(one);
  if (one) byId('set-v').value = info.stages_per_rank_min;
  byId('set-v').placeholder = info ? info.stages_per_rank_default : '';
  for (const name of ['p', 'm']) byId(`set-${name}`).disabled = Boolean(info && info.fixed);
  byId('set-channel').value = state.channel;
  byId('set-factor').disabled = state.slow === '';
  if (document.activeElement !== byId('settings')) byId('settings').value = settingsText();
  const paper = info && info.paper ? ` arXiv:${info.paper}.` : '';
  byId('summary').textContent = info ? `${info.summary[0].toUpperCase()}${info.summary.slice(1)}.${paper}` : '';
}

function buildScheduleList() {
  const group = (label, wanted) => element('optgroup', { label }, schedules.filter(wanted)
    .map((info) => element('option', { value: info.name, text: info.name })));
  fill(byId('schedule'), [group('Training', (info) => info.trains && !info.fixed),
    group('Evaluation', (info) => !info.trains), group('Fixed tables', (info) => info.fixed && info.trains)]);
}

// ---- Answers ----

function card(name, value, title) {
  return element('div', { class: 'card', title: title || '' }, [element('dt', { text: name }), element('dd', { text: value })]);
}

// Where a rank needs more than the limit.
function memoryCard(sim) {
  const most = Math.max(...sim.ranks.map((rank) => rank.peak_memory));
  const limit = state.memory === '' ? null : realOf(state.memory);
  const over = limit !== null && most > limit;
  const made = card('peak memory', over ? `${number(most)}, over ${number(limit)}` : number(most),
    'activations, in microbatches through all stages of a rank');
  if (over) made.classList.add('over');
  return made;
}

function idleSentence(sim) {
  const names = { start: 'before the first action', forward: 'waiting for activations', gradient: 'waiting for gradients',
    channel: 'waiting for channels', unshard: 'waiting for parameters', end: 'after the last action' };
  const totals = {};
  for (const rank of sim.ranks) for (const [cause, time] of Object.entries(rank.idle_by_cause)) totals[cause] = (totals[cause] || 0) + time;
  const all = Object.values(totals).reduce((sum, value) => sum + value, 0);
  const parts = Object.entries(totals).filter(([, time]) => time > 0).sort((a, b) => b[1] - a[1])
    .map(([cause, time]) => `${percent(time / all)} ${names[cause]}`);
  return all > 0 ? `Idle time: ${parts.join(', ')}.` : 'No rank is ever idle.';
}

function showFacts({ sim, verdict }) {
  const info = scheduleInfo();
  const cards = [card('makespan', number(sim.makespan), 'from the first start on any rank to the last end on any'),
    card('bubble', percent(sim.bubble_ratio), 'idle share of all ranks'), memoryCard(sim),
    card('actions', number(verdict.actions)), card('verdict', 'cannot hang', 'proven for blocking sends, a channel for each stage boundary and direction')];
  if (info && info.bubble) cards.push(card('bubble, closed form', info.bubble, 'for equal stages and free transfers'));
  fill(byId('facts'), cards);
  fill(byId('explore-message'), [paragraph(idleSentence(sim))]);
  byId('explore').classList.remove('stale');
}

function showExploreFailure(failure) {
  fill(byId('explore-message'), failureParts(failure));
  byId('explore').classList.add('stale');
  announce(failure.message);
}

function showExplored(result) {
  explored.result = result;
  explored.shape = result.verdict;
  if (!result.verdict.ok) {
    const [finding] = result.verdict.findings;
    showExploreFailure({ message: `${finding.message} [${finding.rule}]`, hint: 'open it in Check to step through it' });
    return;
  }
  showFacts(result);
  timelineIn('explore-timeline').show(result.models, result.page);
}

async function explore() {
  const wrong = wrongTimes();
  const asked = ++explored.asked;
  showForm();
  if (wrong) {
    showExploreFailure(wrong);
    return;
  }
  const answer = await engines.explore.ask('explore', { gen: genWords(), costs: costsText(), memory: memoryWords(),
    slow: slowWords(), channel: state.channel, title: state.schedule, page: timelineIn('explore-timeline').isEmpty() });
  if (answer === null) return; // a newer one is on its way
  if (asked !== explored.asked) { // a newer one is behind this one, which may be shown meanwhile
    if (answer.result && answer.result.sim) timelineIn('explore-timeline').show(answer.result.models, answer.result.page);
    return;
  }
  if (answer.failure) showExploreFailure(answer.failure);
  else showExplored(answer.result);
  byId('explore').dataset.ready = settingsText();
  lessonChanged();
}

// ---- The comparison ----

function compareRow(entry, best) {
  const same = (a, b) => a.toLowerCase() === b.toLowerCase();
  const chosen = same(entry.name, state.schedule) && entry.v === stagesPerRank();
  const use = element('button', { type: 'button', class: 'link', text: entry.name,
    onclick: () => change({ schedule: entry.name, v: String(entry.v) }) });
  return element('tr', { class: entry.fits ? '' : 'over', 'aria-current': chosen ? 'true' : null }, [
    element('th', { scope: 'row' }, [use]), element('td', { text: String(entry.v) }),
    element('td', {}, [element('span', { text: number(entry.makespan) }), element('i', { class: 'bar' })]),
    element('td', { text: percent(entry.bubble_ratio) }), element('td', { text: number(entry.peak_memory) }),
    element('td', { text: entry.fits ? (entry.makespan === best ? 'fastest' : `+${percent(entry.makespan / best - 1)}`) : 'over the limit' })]);
}

function showComparison(result) {
  const heads = ['schedule', 'v', 'makespan', 'bubble', 'peak memory', ''];
  const fitting = result.schedules.filter((entry) => entry.fits);
  const best = fitting.length > 0 ? fitting[0].makespan : NaN;
  const rows = result.schedules.map((entry) => compareRow(entry, best));
  rows.forEach((row, k) => {
    row.querySelector('.bar').style.width = `${(60 * result.schedules[k].makespan) / Math.max(...result.schedules.map((entry) => entry.makespan))}px`;
  });
  fill(byId('comparison'), [
    element('table', {}, [element('thead', {}, [element('tr', {}, heads.map((text) => element('th', { scope: 'col', text })))]),
      element('tbody', {}, rows)]),
    paragraph(result.why || (fitting.length === 0 ? 'No named schedule fits into this memory.' : ''), 'faint')]);
}

async function compare() {
  if (wrongTimes()) return;
  const { asked } = explored;
  const answer = await engines.compare.ask('compare', { words: [...compareWords(), '--json'], files: {} });
  if (answer === null || asked !== explored.asked) return;
  if (answer.failure) fill(byId('comparison'), failureParts(answer.failure));
  else showComparison(answer.result);
  explored.comparison = answer.result || null;
  lessonChanged();
}

// ---- The planner ----

function planSentence(report) {
  const name = report.schedule === 'searched' ? 'An order found by search' : report.schedule;
  const where = `${plural(report.v, 'stage')} per rank, ${report.placement === 'v' ? 'V' : 'loop'} placement`;
  const proof = report.optimal ? 'No schedule on this placement is faster: the bound is reached.'
    : `The bound is ${number(report.bound)}: no schedule on this placement takes less, so at most ${percent(report.gap)} can still be gained.`;
  return `${name} (${where}) takes ${number(report.makespan)}. ${proof}`;
}

// Where the plan and the schedule above stand over the bound.
function boundPicture(report) {
  const current = explored.result && explored.result.sim ? explored.result.sim.makespan : report.makespan;
  const most = 1.02 * Math.max(current, report.makespan);
  const row = (name, value, kind) => element('div', { class: `bound-row ${kind}` }, [
    element('span', { text: name }), element('i', { class: 'bound-bar', 'data-share': String(value / most) }), element('b', { text: number(value) })]);
  const rows = [row('bound', report.bound, 'bound'), row('plan', report.makespan, 'plan'), row('above', current, 'current')];
  rows.forEach((made) => {
    const bar = made.querySelector('i');
    bar.style.width = `${Math.round(1000 * Number(bar.dataset.share)) / 10}%`;
  });
  return element('div', { class: 'bounds', role: 'img', 'aria-label': `bound ${number(report.bound)}, plan ${number(report.makespan)}, the schedule above ${number(current)}` }, rows);
}

function showPlan({ report, table }, effort) {
  explored.plan = { report, table };
  const show = element('button', { type: 'button', text: 'Show its timeline', onclick: showPlannedTimeline });
  const check = element('button', { type: 'button', text: 'Open in Check', onclick: () => openInCheck(table) });
  const save = element('button', { type: 'button', text: 'Save CSV', onclick: () => saveFile('plan.csv', table, 'text/csv') });
  fill(byId('plan'), [paragraph(planSentence(report)), boundPicture(report),
    paragraph(`${number(report.evaluated)} orders evaluated, effort ${effort} s of a typical core, peak memory ${number(report.peak_memory)}.`, 'faint'),
    element('div', { class: 'buttons' }, [show, check, save])]);
}

async function showPlannedTimeline() {
  const { report, table } = explored.plan;
  const costs = JSON.stringify(report.costs);
  const answer = await engines.explore.ask('explore', { table, costs, memory: memoryWords(), slow: slowWords(), channel: state.channel, title: 'the plan', page: timelineIn('explore-timeline').isEmpty() });
  if (!answer || answer.failure) return;
  showFacts(answer.result);
  timelineIn('explore-timeline').show(answer.result.models, answer.result.page);
  byId('explore-timeline').scrollIntoView({ block: 'nearest' });
  announce('The timeline shows the plan.');
}

function showPlanning(effort) {
  byId('plan-state').textContent = effort === null ? '' : `searching, ${effort} s of work …`;
  byId('plan-stop').hidden = effort === null;
  byId('plan-longer').hidden = effort !== null;
}

// Rounds of growing effort, until the bound is reached; a change of settings ends them.
async function planRounds(efforts) {
  const round = ++explored.round;
  for (const effort of efforts) {
    showPlanning(effort);
    const answer = await engines.plan.ask('plan', { words: planWords(effort), files: {} });
    if (round !== explored.round) return;
    if (answer === null) break;
    if (answer.failure) {
      explored.plan = null;
      fill(byId('plan'), failureParts(answer.failure));
      break;
    }
    showPlan(answer.result, effort);
    lessonChanged();
    if (answer.result.report.optimal) break;
  }
  showPlanning(null);
}

function stopPlan() {
  explored.round++;
  if (engines.plan.busy) engines.plan.stop();
  showPlanning(null);
}

function plan() {
  stopPlan();
  if (wrongTimes()) return;
  planRounds(EFFORTS);
}

// ---- Changes ----

let comparing = null;
let planning = null;

// The numbers and the timeline at once, the rest when one pauses.
function exploreAll() {
  explored.result = explored.plan = explored.comparison = null; // of other settings
  stopPlan();
  explore();
  clearTimeout(comparing);
  clearTimeout(planning);
  comparing = setTimeout(compare, 120);
  planning = setTimeout(plan, 500);
}

function change(fields) {
  Object.assign(state, fields);
  exploreAll();
  writeLink();
  lessonChanged();
}

function listenToForm() {
  byId('schedule').addEventListener('change', (event) => change({ schedule: event.target.value, v: '' }));
  for (const name of NUMBERS) {
    byId(`set-${name}`).addEventListener('input', (event) => change({ [name]: event.target.value.trim() }));
  }
  byId('set-channel').addEventListener('change', (event) => change({ channel: event.target.value }));
  byId('settings').addEventListener('input', (event) => {
    const wrong = readSettings(event.target.value);
    if (wrong) showExploreFailure({ message: wrong, hint: 'for example: 1F1B -p 4 -m 8 --hop 0.1' });
    else change({});
  });
  byId('controls').addEventListener('submit', (event) => event.preventDefault());
  byId('plan-stop').addEventListener('click', stopPlan);
  byId('plan-longer').addEventListener('click', () => planRounds(LONGER));
}
