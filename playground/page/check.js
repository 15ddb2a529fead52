// Check: a program that someone brings; its verdict, its cycle, and its way there, step by step.

const CELLS_BEFORE = 4;
const CELLS_AFTER = 7;
const checked = { stepper: null, result: null, asked: 0 };
let models = { comm: [], channel: [] }; // of communication: what `weft verify --list` says

const SAMPLES = {
  crossed: { name: 'two ranks that send first', comm: 'rendezvous', scope: 'edge',
    text: '0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n' },
  fifo: { name: 'safe with a queue per boundary, stuck with one per pair of ranks', comm: 'eager', scope: 'pair',
    text: '0F0,0SEND_F0,2RECV_F0,2F0,2SEND_F0,0F1,0SEND_F1,2RECV_F1,2F1,2SEND_F1\n1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1\n' },
  missing: { name: 'a receive that is missing', comm: 'rendezvous', scope: 'edge',
    text: '0F0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n' },
  skip: { name: 'a skip connection that is sent first and received last', comm: 'rendezvous', scope: 'edge',
    text: '#graph,0>1,0>2,1>2\n0F0,0SEND_F0>2,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2RECV_F0<0,2F0\n' },
  good: { name: '1F1B, lowered', comm: 'rendezvous', scope: 'edge', command: ['1F1B', '-p', '3', '-m', '4'] },
};

// ---- The verdict ----

function findingParts(finding) {
  const step = finding.step === null || finding.step === undefined ? '' : ` step ${finding.step}`;
  const place = finding.rank === null || finding.rank === undefined ? '' : `rank ${finding.rank}${step}${finding.action ? ` ${finding.action}` : ''}: `;
  return element('li', {}, [element('code', { class: 'rule', text: finding.rule }), ' ', element('b', { text: place }),
    document.createTextNode(finding.message)]);
}

// The entry of a name; of slots:2 it is that of slots:K.
const commOf = (name) => models.comm.find((entry) => entry.name.split(':')[0] === name.split(':')[0]) || models.comm[0];

const doneWords = (name) => commOf(name).done.replace('K older', `${name.split(':')[1]} older`);

function buildModelLists() {
  const names = models.comm.flatMap(({ name }) => (name.endsWith(':K') ? [1, 2, 4].map((k) => name.replace('K', k)) : [name]));
  fill(byId('comm'), names.map((name) => element('option', { value: name, text: name, title: doneWords(name) })));
  for (const id of ['scope', 'set-channel']) {
    fill(byId(id), models.channel.map((entry) => element('option', { value: entry.name, text: entry.name, title: `one for ${entry.one_for}` })));
  }
}

const modelSentence = (verdict) => (verdict.model ? `when a send is done ${doneWords(verdict.model.comm)}` : '');

function verdictParts(verdict) {
  const sizes = `${plural(verdict.ranks, 'rank')}, ${plural(verdict.stages, 'stage')}, ${plural(verdict.microbatches, 'microbatch')}, ${plural(verdict.actions, 'action')}`;
  const shape = [sizes, ...(verdict.notes || [])].join('; note: ');
  if (verdict.ok) {
    const what = verdict.level === 'comms' ? `It cannot hang ${modelSentence(verdict)}` : 'The order of its actions is right';
    return [element('p', { class: 'right', text: `${what}: proven.` }), paragraph(`${shape}.${verdict.level === 'comms' ? '' : ' It is a compute-only table: Lower adds SEND and RECV.'}`, 'faint')];
  }
  const parts = [element('p', { class: 'wrong', text: `${plural(verdict.findings.length + (verdict.findings_left_out || 0), 'finding')}.` }),
    element('ol', { class: 'findings' }, verdict.findings.slice(0, 20).map(findingParts)), paragraph(`${shape}.`, 'faint')];
  if (typeof verdict.smallest_slots === 'number') {
    parts.push(element('p', { class: 'hint', text: `Hint: ${verdict.smallest_slots === 1 ? 'a buffer for one message' : `buffers for ${verdict.smallest_slots} messages`} per channel would be enough.` }));
  }
  return parts;
}

// ---- The cycle ----

// An arrow from a point on the ring to the next, short of both circles.
function ringArrow(from, to, radius) {
  const length = Math.hypot(to.x - from.x, to.y - from.y);
  const [dx, dy] = [(to.x - from.x) / length, (to.y - from.y) / length];
  const bend = 26;
  const start = { x: from.x + dx * radius - dy * 8, y: from.y + dy * radius + dx * 8 };
  const end = { x: to.x - dx * (radius + 7) - dy * 8, y: to.y - dy * (radius + 7) + dx * 8 };
  const middle = { x: (start.x + end.x) / 2 - dy * bend, y: (start.y + end.y) / 2 + dx * bend };
  return svg('path', { d: `M${start.x} ${start.y}Q${middle.x} ${middle.y} ${end.x} ${end.y}`, class: 'ring-arrow', 'marker-end': 'url(#arrow)' });
}

function cyclePicture(cycle) {
  const count = cycle.length;
  const radius = count < 5 ? 44 : count < 9 ? 36 : 26;
  const ring = count === 1 ? 0 : Math.max(120, (count * (2 * radius + 34)) / (2 * Math.PI));
  const size = 2 * (ring + radius + 24);
  const height = count === 2 ? 2 * (radius + 12) : size; // two stand side by side
  const turn = count === 2 ? -Math.PI / 2 : 0;
  const points = cycle.map((member, k) => ({ member,
    x: size / 2 + ring * Math.sin(turn + (2 * Math.PI * k) / count), y: height / 2 - ring * Math.cos(turn + (2 * Math.PI * k) / count) }));
  const marker = svg('marker', { id: 'arrow', viewBox: '0 0 10 10', refX: '8', refY: '5', markerWidth: '8', markerHeight: '8', orient: 'auto-start-reverse' },
    [svg('path', { d: 'M0 0L10 5L0 10z', class: 'ring-head' })]);
  const arrows = count > 1 ? points.map((from, k) => ringArrow(from, points[(k + 1) % count], radius)) : [];
  const nodes = points.map(({ member, x, y }) => svg('g', {}, [svg('circle', { cx: x, cy: y, r: radius, class: 'ring-node' }),
    svg('text', { x, y: y - 5, class: 'ring-rank', text: `rank ${member.rank}` }), svg('text', { x, y: y + 13, class: 'ring-action', text: member.action })]));
  const label = `A cycle of ${count}: ${cycle.map((member) => `rank ${member.rank} in ${member.action} waits for ${member.waits_for}`).join('; ')}`;
  return svg('svg', { viewBox: `0 0 ${size} ${height}`, class: 'ring', role: 'img', 'aria-label': label }, [svg('defs', {}, [marker]), ...arrows, ...nodes]);
}

function showCycle(verdict) {
  const cycle = verdict.cycle || [];
  byId('cycle').hidden = cycle.length === 0;
  if (cycle.length === 0) return;
  const shown = cycle.length <= 16;
  fill(byId('cycle'), [element('h3', { text: `The cycle: ${plural(cycle.length, 'action')} wait for each other` }),
    ...(shown ? [cyclePicture(cycle)] : []),
    element('ol', {}, cycle.map((member) => element('li', {}, [element('b', { text: `rank ${member.rank} step ${member.step} ` }), element('code', { text: member.action }), ` waits for ${member.waits_for}`])))]);
}

// ---- Stepping ----

function cellOf(stepper, rank, index) {
  const instruction = stepper.rows[rank][index];
  const at = stepper.at[rank];
  const done = stepper.done(rank, index);
  const inCycle = stepper.stuck() && (checked.result.verdict.cycle || []).some((member) => member.rank === rank && member.action === instruction.action);
  const kind = done ? 'past' : index > at ? 'ahead' : inCycle ? 'here cycle' : stepper.canMove(rank) ? 'here' : 'here waits';
  return element('td', { class: kind }, [element('code', { text: instruction.action })]);
}

function stepperRow(stepper, rank) {
  const row = stepper.rows[rank];
  const first = Math.max(0, Math.min(stepper.at[rank] - CELLS_BEFORE, row.length - CELLS_BEFORE - CELLS_AFTER - 1));
  const cells = [];
  for (let k = first; k < Math.min(row.length, first + CELLS_BEFORE + CELLS_AFTER + 1); k++) cells.push(cellOf(stepper, rank, k));
  return element('tr', {}, [element('th', { scope: 'row', text: `rank ${rank}` }), ...cells,
    element('td', { class: 'why', text: stepper.at[rank] >= row.length ? 'done' : stepper.canMove(rank) ? '' : stepper.waitWords(rank) })]);
}

function stepSentence(stepper) {
  if (stepper.finished()) return `All ranks are done after ${plural(stepper.moves, 'move')}.`;
  const waiting = stepper.rows.filter((row, rank) => stepper.at[rank] < row.length).length;
  if (stepper.stuck()) return `Nothing can move any more: ${plural(waiting, 'rank')} wait${waiting === 1 ? 's' : ''} forever, after ${plural(stepper.moves, 'move')}.`;
  if (!stepper.last) return 'Nothing has run yet. Step runs one action.';
  return `Move ${stepper.moves}: rank ${stepper.last.rank} did ${stepper.last.action}.`;
}

function queueWords(stepper) {
  const waiting = stepper.messages().map(([key, actions]) => `${key}: ${actions.join(', ')}`);
  return waiting.length > 0 ? `Messages on channels: ${waiting.slice(0, 8).join(' · ')}` : '';
}

function showStepper() {
  const { stepper } = checked;
  byId('stepper').hidden = stepper === null;
  if (stepper === null) return;
  const ranks = stepper.rows.map((row, rank) => rank).slice(0, 16);
  fill(byId('step-grid'), ranks.map((rank) => stepperRow(stepper, rank)));
  const sentence = stepSentence(stepper);
  byId('step-words').textContent = sentence;
  byId('step-words').className = stepper.stuck() ? 'wrong' : stepper.finished() ? 'right' : '';
  byId('step-queues').textContent = [queueWords(stepper), stepper.rows.length > 16 ? `ranks 0 to 15 of ${stepper.rows.length}` : ''].filter((text) => text !== '').join(' · ');
  byId('step-back').disabled = byId('step-first').disabled = stepper.moves === 0;
  byId('step-next').disabled = byId('step-last').disabled = stepper.finished() || stepper.stuck();
  state.at = String(stepper.moves);
}

function stepTo(moves) {
  if (!checked.stepper) return; // another program is being read
  checked.stepper.goTo(moves);
  showStepper();
  announce(byId('step-words').textContent);
  writeLink();
  lessonChanged();
}

const movesNow = () => (checked.stepper ? checked.stepper.moves : 0);

function makeStepper({ explain, verdict }) {
  const count = explain ? explain.rows.reduce((sum, row) => sum + row.instructions.length, 0) : 0;
  checked.stepper = explain && verdict.moves && count > 0 && count <= ENOUGH ? new Stepper(explain.rows, verdict) : null;
  if (checked.stepper) checked.stepper.goTo(Number(state.at) || 0);
}

// ---- The whole ----

function showChecked(result) {
  checked.result = result;
  byId('check').classList.remove('old');
  fill(byId('verdict'), verdictParts(result.verdict));
  byId('report').textContent = result.report;
  showCycle(result.verdict);
  makeStepper(result);
  showStepper();
  timelineIn('check-timeline').show(result.models, result.page);
  announce(byId('verdict').firstChild.textContent);
}

// Everything but the verdict's words.
function hideChecked() {
  byId('report').textContent = '';
  byId('cycle').hidden = true;
  byId('check-timeline').hidden = true;
  showStepper();
}

function showCheckFailure(failure) {
  byId('check').classList.remove('old');
  fill(byId('verdict'), failureParts(failure));
  hideChecked();
}

function showNothingToCheck() {
  showCheckFailure({ message: 'Nothing to check yet.', hint: 'paste a schedule CSV, drop a file here, or take one of the examples' });
  byId('verdict').firstChild.className = 'faint';
}

let endCheckProgress = () => {};

async function check() {
  if (byId('program').value !== state.program) byId('program').value = state.program;
  byId('comm').value = state.comm;
  byId('scope').value = state.scope;
  const asked = ++checked.asked;
  checked.result = checked.stepper = null; // of another program
  endCheckProgress();
  if (state.program.trim() === '') {
    showNothingToCheck();
    return;
  }
  byId('check').classList.add('old');
  endCheckProgress = showProgress(byId('verdict'), 'Checking', hideChecked);
  const answer = await engines.check.ask('check', { program: state.program, comm: state.comm, channel: state.scope, page: timelineIn('check-timeline').isEmpty() });
  if (answer === null || asked !== checked.asked) return;
  endCheckProgress();
  if (answer.failure) showCheckFailure(answer.failure);
  else showChecked(answer.result);
  byId('check').dataset.ready = `${state.comm} ${state.scope} ${state.program.length}`;
  lessonChanged();
}

function changeCheck(fields) {
  if (Object.hasOwn(fields, 'program')) forgetTool();
  Object.assign(state, { at: '0' }, fields);
  check();
  writeLink();
}

function openInCheck(program) {
  leavePlace();
  Object.assign(state, { view: 'check', at: '0', program });
  showView();
  enterPlace();
}

async function takeSample(sample) {
  if (sample.text) {
    changeCheck({ program: sample.text, comm: sample.comm, scope: sample.scope });
    return;
  }
  const { asked } = checked;
  const answer = await engines.tools.ask('explore', { gen: ['gen', ...sample.command], costs: '{"schema":"weft-costs/1","stages":[{}]}', memory: [], slow: [], channel: 'edge' });
  if (asked === checked.asked && answer && answer.result) changeCheck({ program: textOf(answer.result.program), comm: sample.comm, scope: sample.scope });
}

// ---- lower, explain, diff ----

let toolAsked = 0; // counts, so that no answer about another program is shown

function forgetTool() {
  toolAsked++;
  byId('tool').hidden = true;
}

async function useTool(words, files) {
  const asked = ++toolAsked;
  const answer = await engines.tools.ask('command', { words, files });
  if (answer === null || asked !== toolAsked) return null;
  const { result, failure } = answer;
  const shown = failure ? failure.message : [result.output, result.messages].filter((text) => text !== '').join('\n');
  byId('tool-output').textContent = shown || 'no difference';
  byId('tool-command').textContent = `weft ${words.join(' ')}`;
  byId('tool').hidden = false;
  return result;
}

async function useLower() {
  const result = await useTool(['lower', 'pasted.csv'], { 'pasted.csv': state.program });
  byId('tool-use').hidden = !(result && result.status === 0);
}

function useExplain() {
  byId('tool-use').hidden = true;
  useTool(['explain', 'pasted.csv'], { 'pasted.csv': state.program });
}

function useDiff() {
  byId('other-box').hidden = false;
  byId('tool-use').hidden = true;
  if (state.other.trim() === '') byId('other').focus();
  else useTool(['diff', 'pasted.csv', 'other.csv'], { 'pasted.csv': state.program, 'other.csv': state.other });
}

// ---- Listening ----

async function readDropped(event) {
  const [file] = event.dataTransfer.files;
  if (!file) return;
  event.preventDefault();
  changeCheck({ program: await file.text() });
}

function onStepKey(event) {
  const moves = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!moves || !checked.stepper) return;
  event.preventDefault();
  stepTo(Math.max(0, checked.stepper.moves + moves));
}

function listenToCheck() {
  const section = byId('check');
  byId('program').addEventListener('input', (event) => changeCheck({ program: event.target.value }));
  byId('other').addEventListener('input', (event) => { state.other = event.target.value; useDiff(); writeLink(); });
  byId('comm').addEventListener('change', (event) => changeCheck({ comm: event.target.value }));
  byId('scope').addEventListener('change', (event) => changeCheck({ scope: event.target.value }));
  byId('file').addEventListener('change', async (event) => { if (event.target.files[0]) changeCheck({ program: await event.target.files[0].text() }); });
  section.addEventListener('dragover', (event) => event.preventDefault());
  section.addEventListener('drop', readDropped);
  byId('step-first').addEventListener('click', () => stepTo(0));
  byId('step-back').addEventListener('click', () => stepTo(movesNow() - 1));
  byId('step-next').addEventListener('click', () => stepTo(movesNow() + 1));
  byId('step-last').addEventListener('click', () => stepTo(Infinity));
  byId('stepper').addEventListener('keydown', onStepKey);
  byId('use-lower').addEventListener('click', useLower);
  byId('use-explain').addEventListener('click', useExplain);
  byId('use-diff').addEventListener('click', useDiff);
  byId('tool-use').addEventListener('click', () => changeCheck({ program: byId('tool-output').textContent }));
  fill(byId('samples'), Object.values(SAMPLES).map((sample) =>
    element('button', { type: 'button', class: 'link', text: sample.name, onclick: () => takeSample(sample) })));
}
