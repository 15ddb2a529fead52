// Explore: settings in, everything that follows from them out, while one types.

const NUMBERS = ['p', 'v', 'm', 'f', 'i', 'w', 'b', 'hop', 'memory', 'slow', 'factor'];
const EFFORTS = [0.05, 0.4]; // seconds of a typical core, by themselves
const LONGER = [2, 8]; // on demand
const EFFORT_MOST = 60;
const DRAWN_MOST = 10000000; // actions of a timeline, as in src/render/html/page/codec.js

let engines = null;
let schedules = [];
// `settings` counts changes of them, `asked` the questions for a timeline, `round` those of the planner:
// an answer to an older question is never shown over a newer one, or over an error. `awaited` is the
// question whose answer is on its way, or 0.
const explored = { drawnMost: DRAWN_MOST, result: null, shape: null, plan: null, comparison: null, gap: null, before: null, searching: false,
  settings: 0, asked: 0, awaited: 0, round: 0 };

const planIsShown = () => state.schedule === PLAN;

// ---- Settings ----

// 0.25 and 1/3 are numbers; NaN is none.
function realOf(text) {
  const parts = /^\s*(\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)\s*(?:\/\s*(\d+\.?\d*))?\s*$/i.exec(text);
  return parts ? Number(parts[1]) / (parts[2] === undefined ? 1 : Number(parts[2])) : NaN;
}

const plainName = (name) => name.toLowerCase().replace(/[-_]/g, '');
const otherNames = new Map(); // what others call a schedule, as the command knows it: its info

function scheduleInfo() {
  const wanted = plainName(state.schedule);
  return schedules.find((info) => plainName(info.name) === wanted) || otherNames.get(wanted);
}

// Stages per rank: as given, or the schedule's own.
function stagesPerRank() {
  const info = scheduleInfo();
  if (info && info.stages_per_rank_min === info.stages_per_rank_max) return info.stages_per_rank_min;
  if (planIsShown()) return explored.plan ? explored.plan.report.v : '';
  return state.v === '' ? (info ? info.stages_per_rank_default : 1) : Number(state.v);
}

// What is wrong with the times, or null.
function wrongTimes() {
  const names = { f: 'F', i: 'I', w: 'W', b: 'B', hop: 'the transfer', memory: 'the memory limit', factor: 'the slow rank\'s factor', effort: 'the effort' };
  for (const [field, name] of Object.entries(names)) {
    const optional = field === 'b' || field === 'memory' || (field === 'factor' && state.slow === '');
    if (!(optional && state[field] === '') && Number.isNaN(realOf(state[field]))) {
      return { message: `${name} is '${state[field]}': expected a number`, hint: 'write 1, 0.25 or 1/3' };
    }
  }
  if (planIsShown() && !(realOf(state.effort) > 0 && realOf(state.effort) <= EFFORT_MOST)) {
    return { message: `the effort of the planner is '${state.effort}': expected above 0 and at most ${EFFORT_MOST} s in this page`, hint: 'weft plan searches as long as you like' };
  }
  return null;
}

// Times of a rank's share of the model.
function shareCosts() {
  const stage = { f: realOf(state.f), i: realOf(state.i), w: realOf(state.w) };
  if (state.b !== '') stage.b = realOf(state.b);
  stage.activation = 1;
  return { stage, hop: { latency: realOf(state.hop) } };
}

// What makes the table.
function genWords() {
  const info = scheduleInfo();
  if (planIsShown()) return planWords(state.effort);
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
  byId('schedule').value = planIsShown() ? PLAN : info ? info.name : '';
  for (const name of NUMBERS) {
    const field = byId(`set-${name}`);
    const shown = field.type === 'number' && !/^\d*$/.test(state[name]) ? '' : state[name];
    if (document.activeElement !== field) field.value = shown;
  }
  byId('set-v').disabled = Boolean(one) || planIsShown();
  if (one || planIsShown()) byId('set-v').value = stagesPerRank();
  byId('set-v').placeholder = info ? info.stages_per_rank_default : '';
  const last = Math.max(0, Math.min(1024, Number(state.p) || 1) - 1);
  byId('set-slow').max = last;
  byId('slow-range').textContent = last > 0 ? `0–${last}` : '0';
  for (const name of ['p', 'm']) byId(`set-${name}`).disabled = Boolean(info && info.fixed);
  byId('set-channel').value = state.channel;
  byId('set-factor').disabled = state.slow === '';
  if (document.activeElement !== byId('settings')) byId('settings').value = settingsText();
  const paper = info && info.paper ? ` arXiv:${info.paper}.` : '';
  if (planIsShown()) {
    fill(byId('summary'), ['The order that the planner found for these settings. ',
      element('button', { type: 'button', class: 'link', text: `Back to ${before().schedule}`, onclick: leavePlan })]);
    return;
  }
  byId('summary').textContent = info ? `${info.summary[0].toUpperCase()}${info.summary.slice(1)}.${paper}` : '';
}

function buildScheduleList() {
  const group = (label, wanted) => element('optgroup', { label }, schedules.filter(wanted)
    .map((info) => element('option', { value: info.name, text: info.name })));
  const search = element('optgroup', { label: 'Search' }, [element('option', { value: PLAN, text: 'the planner’s plan' })]);
  fill(byId('schedule'), [group('Training', (info) => info.trains && !info.fixed),
    group('Evaluation', (info) => !info.trains), group('Fixed tables', (info) => info.fixed && info.trains), search]);
}

// ---- Answers ----

function card(name, value, title) {
  return element('div', { class: 'card', title: title || '' }, [element('dt', { text: name }), element('dd', { text: value })]);
}

// Where a rank needs more than the limit.
function memoryCard(sim) {
  const most = Math.max(...sim.ranks.map((rank) => rank.peak_memory));
  const limit = state.memory === '' ? null : realOf(state.memory);
  const over = limit !== null && sim.over_limit.length > 0;
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
    card('bubble', `${percent(sim.bubble_ratio)} = ${number(sim.bubble_ratio * sim.makespan)} of ${number(sim.makespan)}`, 'idle time of a rank, on average, of the makespan'), memoryCard(sim),
    card('actions', count(verdict.actions)), card('verdict', 'cannot hang', 'proven for blocking sends, a channel for each stage boundary and direction')];
  if (info && info.bubble) cards.push(card('bubble, closed form', info.bubble, 'for equal stages and free transfers'));
  fill(byId('facts'), [...cards, ...(explored.plan || explored.searching ? [planCard()] : [])]);
  const undrawn = verdict.actions > explored.drawnMost ? [paragraph(undrawnSentence(verdict.actions))] : [];
  fill(byId('explore-message'), [paragraph(idleSentence(sim)), ...undrawn]);
  byId('explore').classList.remove('stale');
}

// Actions with SEND and RECV, about; what is searched or given is small.
function likelyActions() {
  const info = scheduleInfo();
  if (!info || info.fixed || planIsShown()) return 0;
  return (info.trains ? 6 : 3) * Number(state.p) * Number(stagesPerRank()) * Number(state.m);
}

// Why there are numbers and no timeline, and what would have one.
function undrawnSentence(actions) {
  const most = explored.drawnMost;
  const fitting = Math.floor((Number(state.m) * most) / actions);
  const less = fitting >= 1 ? `-m ${fitting} with as many ranks has one` : 'fewer ranks have one';
  return `${count(actions)} actions are too many for a timeline: a page holds ${count(most)}; ${less}. The numbers are those of all actions.`;
}

// Settings that have no answer: what was computed for others is no longer theirs.
function refuseSettings(failure) {
  forgetAnswers();
  explored.searching = false;
  showExploreFailure(failure);
}

function showExploreFailure(failure) {
  fill(byId('explore-message'), failureParts(failure));
  byId('explore').classList.add('stale');
  announce(failure.message);
}

function showExplored(result) {
  explored.result = result;
  if (result.info) {
    otherNames.set(plainName(state.schedule), schedules.find((info) => info.name === result.info.name));
    showForm();
  }
  explored.shape = result.verdict;
  if (!result.verdict.ok) {
    const [finding] = result.verdict.findings;
    showExploreFailure({ message: `${finding.message} [${finding.rule}]`, hint: 'open it in Check to step through it' });
    return;
  }
  showFacts(result);
  timelineIn('explore-timeline').show(result.models, result.page);
  redrawPlan();
}

let endProgress = () => {};

// The cards and the timeline of a table that `more` makes or holds; costs are those of a stage.
async function explore(more) {
  const asked = explored.awaited = ++explored.asked;
  endProgress();
  const undrawn = likelyActions() > explored.drawnMost ? `, about ${count(likelyActions())} actions: too many for a timeline, so only its numbers` : '';
  endProgress = showProgress(byId('explore-message'), `Computing ${settingsText()}${undrawn}`, () => byId('explore').classList.add('stale'));
  const answer = await engines.explore.ask('explore', { ...more, memory: memoryWords(), slow: slowWords(), channel: state.channel,
    most: explored.drawnMost, page: timelineIn('explore-timeline').isEmpty() });
  if (answer === null) return; // a newer one is on its way
  if (asked !== explored.asked) { // a newer one is behind this one, which may be shown meanwhile
    if (explored.awaited && answer.result && answer.result.sim) timelineIn('explore-timeline').show(answer.result.models, answer.result.page);
    return;
  }
  endProgress();
  explored.awaited = 0;
  if (answer.failure) showExploreFailure(answer.failure);
  else showExplored(answer.result);
  byId('explore').dataset.ready = settingsText();
  lessonChanged();
}

function exploreNamed() {
  showForm();
  const wrong = wrongTimes();
  const known = scheduleInfo();
  if (wrong) refuseSettings(wrong);
  else explore({ gen: genWords(), share: shareCosts(), name: known ? null : state.schedule, title: state.schedule });
}

// The plan becomes what is explored: fields, text, address, cards, timeline and files are its.
function explorePlan({ report, table, effort }) {
  state.effort = String(effort); // of a longer search, too
  showForm();
  writeLink();
  explore({ table, costs: JSON.stringify(report.costs), title: 'the plan' });
}

// ---- The comparison ----

function compareRow(entry, best) {
  const info = scheduleInfo();
  const chosen = info && info.name === entry.name && entry.v === stagesPerRank();
  const use = element('button', { type: 'button', class: 'link', text: entry.name,
    onclick: () => change({ schedule: entry.name, v: String(entry.v) }) });
  return element('tr', { class: entry.fits ? '' : 'over', 'aria-current': chosen ? 'true' : null }, [
    element('th', { scope: 'row' }, [use]), element('td', { text: String(entry.v) }),
    element('td', { text: number(entry.makespan) }),
    element('td', { text: percent(entry.bubble_ratio) }), element('td', { text: number(entry.peak_memory) }),
    element('td', { text: entry.fits ? (entry.makespan === best ? 'fastest' : `+${percent(entry.makespan / best - 1)}`) : 'over the limit' }),
    element('td', { class: 'over-best' }, [element('i', { class: 'bar' })])]);
}

function showComparison(result) {
  const heads = ['schedule', 'v', 'makespan', 'bubble', 'peak memory', 'over the fastest', ''];
  const fitting = result.schedules.filter((entry) => entry.fits);
  const best = fitting.length > 0 ? fitting[0].makespan : NaN;
  const rows = result.schedules.map((entry) => compareRow(entry, best));
  const makespans = result.schedules.map((entry) => entry.makespan);
  const least = fitting.length > 0 ? best : Math.min(...makespans);
  const most = Math.max(...makespans) - least;
  rows.forEach((row, k) => { // from the fastest on, where the differences are
    row.querySelector('.bar').style.width = `${most > 0 ? Math.round((100 * Math.max(0, makespans[k] - least)) / most) : 0}%`;
  });
  byId('comparison').classList.remove('old');
  fill(byId('comparison'), [
    element('table', {}, [element('thead', {}, [element('tr', {}, heads.map((text) => element('th', { scope: 'col', text })))]),
      element('tbody', {}, rows)]),
    paragraph(result.why || (fitting.length === 0 ? 'No named schedule fits into this memory.' : ''), 'faint')]);
}

async function compare() {
  if (wrongTimes()) return;
  const { settings } = explored;
  const end = showProgress(byId('comparison-state'), 'comparing');
  const answer = await engines.compare.ask('compare', { words: [...compareWords(), '--json'], files: {} });
  end();
  if (answer === null || settings !== explored.settings) return;
  if (answer.failure) {
    fill(byId('comparison'), failureParts(answer.failure));
    byId('comparison').classList.remove('old');
  } else {
    showComparison(answer.result);
  }
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

// Where the plan and the schedule in the timeline stand over the bound.
function boundPicture(report) {
  const shown = explored.result && explored.result.sim && !planIsShown() ? explored.result.sim.makespan : null;
  const name = scheduleInfo() ? scheduleInfo().name : state.schedule;
  const values = [['bound', report.bound, 'bound'], ['plan', report.makespan, 'plan'], ...(shown === null ? [] : [[name, shown, 'current']])];
  const most = 1.02 * Math.max(...values.map(([, value]) => value));
  const rows = values.map(([text, value, kind]) => {
    const bar = element('i');
    bar.style.width = `${Math.round((1000 * value) / most) / 10}%`;
    return element('div', { class: `bound-row ${kind}` }, [element('span', { text }), bar, element('b', { text: number(value) })]);
  });
  return element('div', { class: 'bounds', role: 'img', 'aria-label': values.map(([text, value]) => `${text} ${number(value)}`).join(', ') }, rows);
}

// Among the numbers, because the planner itself is further down.
function planCard() {
  const { plan } = explored;
  const made = card('plan', plan === null ? 'searching …' : plan.report.optimal ? `${number(plan.report.makespan)}, optimal` : `${number(plan.report.makespan)}, bound ${number(plan.report.bound)}`,
    'makespan of the planner’s order; more about it below');
  made.id = 'plan-card';
  return made;
}

function noPlanCard() {
  explored.searching = false;
  if (byId('plan-card')) byId('plan-card').remove();
}

function planButtons() {
  const { table } = explored.plan;
  const show = planIsShown() ? element('button', { type: 'button', id: 'plan-hide', text: `Back to ${before().schedule}`, onclick: leavePlan })
    : element('button', { type: 'button', id: 'plan-show', text: 'Show its timeline', onclick: usePlan });
  const check = element('button', { type: 'button', text: 'Open in Check', onclick: () => openInCheck(table) });
  const save = element('button', { type: 'button', text: 'Save CSV', onclick: () => saveFile('plan.csv', table, 'text/csv') });
  return element('div', { class: 'buttons', id: 'plan-buttons' }, [show, check, save]);
}

// What depends on the schedule that is shown.
function redrawPlan() {
  if (explored.plan === null) return;
  byId('plan').querySelector('.bounds').replaceWith(boundPicture(explored.plan.report));
  byId('plan-buttons').replaceWith(planButtons());
}

function showPlan(made) {
  explored.plan = made;
  const { report, effort } = made;
  fill(byId('plan'), [paragraph(planSentence(report)), boundPicture(report),
    paragraph(`${plural(report.evaluated, 'order')} evaluated, effort ${effort} s of a typical core, peak memory ${number(report.peak_memory)}.`, 'faint'), planButtons()]);
  byId('plan').classList.remove('old');
  if (byId('plan-card')) byId('plan-card').replaceWith(planCard());
  if (planIsShown()) explorePlan(made);
}

const before = () => explored.before || { schedule: DEFAULTS.schedule, v: '' };

// From the schedule to the plan for the same settings, and back.
function usePlan() {
  leavePlace();
  explored.before = { schedule: state.schedule, v: state.v };
  const [, p, , m] = shapeWords();
  Object.assign(state, { schedule: PLAN, v: '', p, m });
  explorePlan(explored.plan);
  if (explored.comparison) showComparison(explored.comparison);
  enterPlace();
  byId('explore-timeline').scrollIntoView({ block: 'nearest' });
  announce('The timeline shows the plan.');
}

function leavePlan() {
  leavePlace();
  change(before());
  enterPlace();
  byId('explore-timeline').scrollIntoView({ block: 'nearest' });
}

// `more`: whether a longer search may find something better.
function showPlanning(effort, more = explored.plan !== null && !explored.plan.report.optimal) {
  byId('plan-state').textContent = effort === null ? '' : `searching, ${effort} s of work …`;
  byId('plan-state').hidden = effort === null;
  byId('plan-stop').hidden = effort === null;
  byId('plan-longer').hidden = effort !== null || !more;
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
      byId('plan').classList.remove('old');
      noPlanCard();
      if (planIsShown()) refusePlan(answer.failure);
      break;
    }
    showPlan({ ...answer.result, effort });
    lessonChanged();
    if (answer.result.report.optimal) break;
  }
  showPlanning(null);
}

// Where the plan was to be shown, and there is none.
function refusePlan(failure) {
  endProgress();
  showExploreFailure(failure);
  byId('explore').dataset.ready = settingsText();
}

function stopPlan(more) {
  explored.round++;
  if (engines.plan.busy) engines.plan.stop();
  showPlanning(null, more);
}

function onStop() {
  stopPlan(true);
  if (explored.plan === null) noPlanCard();
  if (planIsShown() && explored.plan === null) refusePlan({ message: 'The search was stopped before it had a plan.', hint: 'Search longer begins it again' });
}

function plan() {
  stopPlan();
  if (wrongTimes()) return;
  planRounds(planIsShown() ? [Number(realOf(state.effort))] : EFFORTS);
}

// ---- Changes ----

let comparing = null;
let planning = null;

// What is known is of other settings, and so is what is on its way.
function forgetAnswers() {
  explored.settings++;
  explored.asked++;
  explored.awaited = 0;
  explored.searching = true;
  explored.result = explored.plan = explored.comparison = null;
  endProgress();
  stopPlan();
  clearTimeout(comparing);
  clearTimeout(planning);
  for (const id of ['comparison', 'plan']) byId(id).classList.add('old');
  byId('plan').querySelectorAll('button').forEach((button) => { button.disabled = true; });
}

// The numbers and the timeline at once, the rest when one pauses. A plan is not known before it is
// found.
function exploreAll() {
  forgetAnswers();
  comparing = setTimeout(compare, 120);
  planning = setTimeout(plan, planIsShown() ? 120 : 500);
  if (planIsShown() && !wrongTimes()) {
    showForm();
    endProgress = showProgress(byId('explore-message'), 'Searching for a plan', () => byId('explore').classList.add('stale'));
  } else {
    exploreNamed();
  }
}

// From anywhere but the line of text, which then shows them.
function change(fields) {
  byId('settings').blur();
  changeSettings(fields);
}

function changeSettings(fields) {
  if (fields.schedule === PLAN && !planIsShown()) explored.before = { schedule: state.schedule, v: state.v };
  Object.assign(state, { effort: DEFAULTS.effort }, fields);
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
    if (wrong) refuseSettings({ message: wrong, hint: 'for example: 1F1B -p 4 -m 8 --hop 0.1' });
    else changeSettings({ effort: state.effort });
  });
  byId('controls').addEventListener('submit', (event) => event.preventDefault());
  byId('reset').addEventListener('click', () => {
    const base = baseOf(state);
    change(Object.fromEntries(EXPLORED.map((name) => [name, base[name]])));
  });
  byId('plan-stop').addEventListener('click', onStop);
  byId('plan-longer').addEventListener('click', () => planRounds(LONGER));
}
