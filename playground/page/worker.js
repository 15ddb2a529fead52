// What runs beside the page: the command, and what makes a timeline's model of its answer.

const LOWER = ['--no-unshard', '--no-reduce-grad'];
let weft = null; // the compiled module

const run = (words, files) => runWeft(weft, words, files);

// What a call that failed says: {message, hint}, without the command's name.
function failureOf(result) {
  const lines = result.messages.trim().split('\n');
  const hint = lines.find((line) => line.startsWith('  hint: '));
  return { status: result.status, message: lines[0].replace(/^weft: /, ''), hint: hint ? hint.slice(8) : '' };
}

class Failed extends Error {
  constructor(result) {
    super(result.messages);
    this.failure = failureOf(result);
  }
}

// Runs a command; a status that is not among `good` ends the request.
function need(words, files, good) {
  const result = run(words, files);
  if (!(good || [0]).includes(result.status)) throw new Failed(result);
  return result;
}

const text = (bytes) => new TextDecoder().decode(bytes);

function modelOf(program, costs, options) {
  const files = { [options.name]: program };
  const words = ['show', options.name, '-o', 'timeline.html', ...options.more];
  if (costs) {
    files['costs.json'] = costs;
    words.push('--costs', 'costs.json');
  }
  const page = text(need(words, files).files['timeline.html']);
  const { pictures } = decodeData(dataInside(page));
  if (options.title) pictures[0].name = options.title; // instead of a file's
  return { page: options.page ? page : null, models: pictures.map(buildModel) };
}

// The arrays of a model, to be handed over instead of copied.
function buffersOf(value, found) {
  if (ArrayBuffer.isView(value)) found.add(value.buffer);
  else if (value && typeof value === 'object') Object.values(value).forEach((part) => buffersOf(part, found));
  return found;
}

// A program with SEND and RECV, which some tables are already. Large ones stay bytes: making texts
// of them takes longer than lowering.
function lowered(table) {
  if (text(table.subarray(0, 10000)).includes('SEND_')) return table;
  return need(['lower', 'table.csv', ...LOWER, '-o', 'program.csv'], { 'table.csv': table }).files['program.csv'];
}

// One entry is of a rank's share of the model: the command divides it among the stages.
const costsOfShare = ({ stage, hop }) => JSON.stringify({ schema: 'weft-costs/1', of: 'rank', stages: [stage], hop });

const requests = {
  list: () => JSON.parse(need(['gen', '--list', '--json']).output).schedules,
  models: () => JSON.parse(need(['verify', '--list', '--json']).output),

  // A schedule from its name, or from a table, to its timeline; `page`: with the HTML around it. A
  // `name` is one that others have for a schedule: the answer says which one it is. A timeline of more
  // than `most` actions is not drawn: no page could hold it, and its numbers need none.
  explore({ gen, costs: given, share, name, memory, slow, channel, table, title, most, page: wanted }) {
    const begin = performance.now();
    const info = name ? JSON.parse(need(['gen', '--list', '--json', name]).output).schedules[0] : null;
    const csv = table ? new TextEncoder().encode(table) : need([...gen, '-o', 'table.csv']).files['table.csv'];
    const program = lowered(csv);
    const verdict = JSON.parse(need(['verify', 'program.csv', '--json'], { 'program.csv': program }, [0, 1]).output);
    if (!verdict.ok) return { table: csv, program, verdict, info };
    const costs = given || costsOfShare(share);
    const files = { 'program.csv': program, 'costs.json': costs };
    const more = [...slow, '--channel', channel];
    const words = ['sim', 'program.csv', '--costs', 'costs.json', '--json', ...more];
    const sim = JSON.parse(need([...words, ...memory], files, [0, 1]).output);
    const simulated = performance.now();
    const { page, models } = verdict.actions > most ? { page: null, models: null }
      : modelOf(program, costs, { name: 'program.csv', title, more, page: wanted });
    return { table: csv, program, verdict, info, costs, sim, page, models, took: simulated - begin };
  },

  compare: ({ words, files }) => JSON.parse(need(words, files, [0, 1]).output),

  // One round of the planner; longer rounds find better plans.
  plan({ words, files }) {
    const result = run([...words, '--json', '-o', 'plan.csv'], files);
    if (result.status !== 0) throw new Failed(result);
    return { report: JSON.parse(result.output), table: text(result.files['plan.csv']) };
  },

  // A program that someone brought: the verdict, and what its instructions are linked to.
  check({ program, comm, channel, page: wanted }) {
    const files = { 'pasted.csv': program };
    const verdict = JSON.parse(need(['verify', 'pasted.csv', '--comm', comm, '--channel', channel, '--json', '--trace'], files, [0, 1]).output);
    const explained = run(['explain', 'pasted.csv', '--json'], files);
    let drawing = null;
    if (verdict.ok) drawing = modelOf(program, null, { name: 'pasted.csv', title: 'the pasted program, equal times', page: wanted, more: ['--channel', verdict.level === 'comms' ? channel : 'edge'] });
    return { verdict, explain: explained.status === 0 ? JSON.parse(explained.output) : null,
      report: run(['verify', 'pasted.csv', '--comm', comm, '--channel', channel], files).output,
      models: drawing && drawing.models, page: drawing && drawing.page };
  },

  // Any command, for what is shown as text.
  command: ({ words, files }) => {
    const result = run(words, files);
    return { status: result.status, output: result.output, messages: result.messages,
      files: Object.fromEntries(Object.entries(result.files).map(([name, bytes]) => [name, text(bytes)])) };
  },
};

function answer({ id, kind, request }) {
  try {
    const result = requests[kind](request);
    postMessage({ id, result }, Array.from(buffersOf([result.models, result.table, result.program], new Set())));
  } catch (error) {
    postMessage({ id, failure: error.failure || { status: -1, message: `this is a bug of the page: ${error.message}`, hint: '' } });
  }
}

onmessage = (event) => {
  if (event.data.module) weft = event.data.module;
  else answer(event.data);
};
