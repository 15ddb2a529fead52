// The command as WebAssembly against the native one: the same words and files must give the same
// status, output, messages and files, byte for byte.
//
//     node same_answers.js WEFT MODULE PAGE_FOLDER CASES SEED FOLDER
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');
const { spawnSync } = require('child_process');

const [native, modulePath, pageFolder, cases, seed, folder] = process.argv.slice(2)
  .map((word, k) => (k === 0 ? path.resolve(word) : word));
vm.runInThisContext(`${fs.readFileSync(path.join(pageFolder, 'wasi.js'), 'utf8')};globalThis.runWeft = runWeft;`);
const module_ = new WebAssembly.Module(fs.readFileSync(modulePath));

// ---- Random numbers: splitmix64 ----

let counter = BigInt(seed);
function random() {
  counter = (counter + 0x9e3779b97f4a7c15n) & 0xffffffffffffffffn;
  let z = counter;
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & 0xffffffffffffffffn;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & 0xffffffffffffffffn;
  return Number((z ^ (z >> 31n)) >> 11n) / 2 ** 53;
}
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];
const chance = (share) => random() < share;

// ---- What a command is given ----

const NAMES = ['GPipe', '1F1B', 'Eager1F1B', 'LoopedBFS', 'Interleaved1F1B', 'InterleavedZeroBubble', 'ZBH1',
  'ZBVZeroBubble', 'DualPipeV', 'ForwardOnly', 'VShaped', 'Unbalanced', 'WithW', 'ReorderedB', '1f1', 'zbv-zero_bubble', ''];
const NUMBERS = ['0', '1', '2', '0.25', '1/3', '0.123456789012', '1e3', '-1', 'x', '1000000000000', '7', '0.5', '1/0', ''];

const shape = () => ['-p', String(chance(0.9) ? 1 + below(9) : pick([0, 70000, 'x'])), '-m', String(chance(0.95) ? 1 + below(17) : 0)];
const stages = () => (chance(0.5) ? ['-v', String(1 + below(4))] : []);
const real = () => (chance(0.85) ? pick(NUMBERS.slice(0, 6)) : pick(NUMBERS));

function times() {
  const words = [];
  for (const flag of ['--f', '--i', '--w', '--b', '--hop']) if (chance(0.4)) words.push(flag, real());
  if (chance(0.2)) words.push('--slow', `${below(5)}=${pick(['2', '1.5', '0', 'x'])}`);
  return words;
}

const gen = () => ['gen', pick(NAMES), ...shape(), ...stages()];
const wasm = (words, files) => runWeft(module_, words, files);

// A graph file: a tree of stages and more edges; some are no graph, some no JSON.
function graph() {
  const edges = [];
  const last = 1 + below(5);
  for (let to = 1; to <= last; to++) edges.push({ from: chance(0.7) ? to - 1 : below(to), to });
  for (let k = below(3); k > 0; k--) edges.push({ from: below(last + 1), to: below(last + 1) });
  for (const edge of edges) {
    if (chance(0.1)) edge.gradient = false;
    if (chance(0.2)) edge[pick(['bytes', 'gradient_bytes'])] = pick([0, 4, 0.5, -1, 'x']);
    if (chance(0.1)) edge.from = `s${edge.from}`;
  }
  const names = chance(0.3) ? Array.from({ length: last + 1 }, (_, k) => `s${k}`) : last + 1;
  const text = JSON.stringify({ schema: 'weft-graph/1', stages: names, edges }, null, pick([0, 2]));
  return chance(0.9) ? text : text.slice(0, below(text.length));
}

// A table or a program, mostly a good one.
function program() {
  for (;;) {
    const table = chance(0.2) ? wasm(['gen', pick(['GPipe', '1F1B', 'ZBH1']), '--graph', 'g.json', '-m', '3'], { 'g.json': graph() }) : wasm(gen(), {});
    if (table.status !== 0) continue;
    if (chance(0.4)) return table.output;
    const lowered = wasm(['lower', 't.csv', ...(chance(0.5) ? ['--no-unshard'] : [])], { 't.csv': table.output });
    if (lowered.status === 0) return lowered.output;
  }
}

// A few cells or bytes of it changed.
function damaged(text) {
  const rows = text.split('\n').map((row) => row.split(','));
  for (let k = below(4); k >= 0; k--) {
    const row = pick(rows);
    const at = below(row.length);
    const other = below(row.length);
    const change = below(5);
    if (change === 0) row.splice(at, 1);
    else if (change === 1) [row[at], row[other]] = [row[other], row[at]];
    else if (change === 2) row.splice(other, 0, row[at]);
    else if (change === 3) row[at] = pick(['0F', 'F0', '9999999999F0', '0X0', '0F0;1F0', '(0F0;1B0)OVERLAP_F_B', '0SEND_F0', '\u00e9', '"', '0 F 0', '65536F1']);
    else row[at] = String(row[at]).replace(/\d/, () => String(below(10)));
  }
  return rows.map((row) => row.join(',')).join('\n');
}

const anyProgram = () => (chance(0.5) ? program() : damaged(program()));

function stageCosts() {
  const entry = {};
  for (const field of ['f', 'i', 'w', 'b', 'activation', 'activation_after_i', 'unshard', 'reduce_grad', 'parameters']) {
    if (chance(0.4)) entry[field] = pick([0, 1, 0.5, 1 / 3, 12.75, 1e9]);
  }
  return entry;
}

// A costs file; some are not JSON, some are not costs.
function costs() {
  const document = { schema: 'weft-costs/1', unit: pick(['ms', 'us', '']), stages: Array.from({ length: chance(0.7) ? 1 : 1 + below(5) }, stageCosts),
    hop: { latency: pick([0, 0.1, 2]) } };
  if (chance(0.1)) document.rank_factors = [1, 2];
  if (chance(0.1)) document[pick(['schema', 'unit', 'stages', 'hop', 'other'])] = pick([1, 'x', null, [], {}, true, '\u0001', [{ f: -1 }], [{ g: 1 }], { latency: 'x' }]);
  let text = JSON.stringify(document, null, pick([0, 2]));
  if (chance(0.3)) {
    const at = below(text.length);
    text = pick([
      () => text.slice(0, at), () => text.slice(0, at) + pick(['"', '{', '}', ',', ':', '[', ']', '\\', '\n', '\u0007', 'nul', '1e999', '01', '-', '1.', '1e', '\\u12', '\\ud800', '\\u0000', '\u00e9', 'NaN', '//']) + text.slice(at),
      () => `${text}${pick(['x', ' ', '{}', '"'])}`, () => text.replace('"f"', '"i"'), () => '', () => '[]', () => '3', () => '"text"', () => `${'['.repeat(3000)}`,
      () => text.replace(/\d+/, '1e400'), () => text.replace('schema', '\\u0073chema')])();
  }
  return text;
}

// ---- The commands ----

const CASES = [
  () => ({ words: [...gen(), ...(chance(0.1) ? ['--json'] : [])] }),
  () => ({ words: ['lower', 'a.csv', ...(chance(0.3) ? [pick(['--merge-bw', '--no-unshard', '--no-reduce-grad', '--tie-grad', '--no-comm', '--json'])] : []), ...(chance(0.2) ? ['--window', pick(['1', '2', '0'])] : [])], files: { 'a.csv': anyProgram() } }),
  () => ({ words: ['verify', 'a.csv', '--comm', pick(['rendezvous', 'eager', 'slots:1', 'slots:2', 'slots:x', 'posted']), '--channel', pick(['edge', 'pair', 'rank', 'nccl-pair', 'x']), ...(chance(0.7) ? ['--json', ...(chance(0.5) ? ['--trace'] : [])] : [])], files: { 'a.csv': anyProgram() } }),
  () => ({ words: ['sim', 'a.csv', ...times(), ...pick([[], ['--json'], ['--critical-path'], ['--steps'], ['--memory', real()], ['--jitter', '0.1', '--runs', '5', '--seed', String(below(99))]]), ...(chance(0.2) ? ['--channel', pick(['pair', 'rank'])] : [])], files: { 'a.csv': anyProgram() } }),
  () => ({ words: ['sim', 'a.csv', '--costs', 'c.json', ...(chance(0.5) ? ['--json'] : [])], files: { 'a.csv': program(), 'c.json': costs() } }),
  () => ({ words: ['compare', ...shape(), ...stages(), ...times(), ...(chance(0.3) ? ['--memory', real()] : []), ...(chance(0.7) ? ['--json'] : [])] }),
  () => ({ words: ['compare', 'a.csv', ...times(), '--json'], files: { 'a.csv': anyProgram() } }),
  () => ({ words: ['plan', '-p', String(1 + below(5)), '-m', String(1 + below(7)), ...times(), ...(chance(0.4) ? ['--memory', pick(['1', '2', '3', '0.5'])] : []), ...(chance(0.3) ? ['--no-split'] : []), '--threads', '1', '--effort', '0.003', '--seed', String(below(9)), '--json', '-o', 'plan.csv'] }),
  () => ({ words: ['show', 'a.csv', '-o', pick(['x.svg', 'x.html', 'x.json', 'x.txt', '-']), ...times(), ...(chance(0.2) ? ['--colour-by', 'stage'] : []), ...(chance(0.1) ? ['--dark'] : [])], files: { 'a.csv': anyProgram() } }),
  () => ({ words: ['show', 'a.csv', ...pick([['--grid'], ['--width', '60'], []])], files: { 'a.csv': anyProgram() } }),
  () => ({ words: ['explain', 'a.csv', ...(chance(0.5) ? ['--json'] : []), ...(chance(0.2) ? ['--rank', String(below(4))] : [])], files: { 'a.csv': anyProgram() } }),
  () => ({ words: [...pick([['gen', '1F1B', '-m', '2'], ['compare', '-m', '2', '--json'], ['plan', '-p', String(1 + below(3)), '-m', '3', '--threads', '1', '--effort', '0.003', '--json']]), '--graph', 'g.json'], files: { 'g.json': graph() } }),
  () => ({ words: [pick(['verify', 'lower', 'sim', 'explain']), 'a.csv', '--graph', 'g.json', ...(chance(0.5) ? ['--json'] : [])], files: { 'a.csv': anyProgram(), 'g.json': graph() } }),
  () => { const a = program(); return { words: ['diff', 'a.csv', 'b.csv', ...(chance(0.5) ? ['--json'] : [])], files: { 'a.csv': a, 'b.csv': chance(0.5) ? damaged(a) : program() } }; },
];

// ---- Comparing ----

function runNative(words, files) {
  fs.rmSync(folder, { recursive: true, force: true });
  fs.mkdirSync(folder, { recursive: true });
  for (const [name, text] of Object.entries(files)) fs.writeFileSync(path.join(folder, name), text);
  const done = spawnSync(native, words, { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'], maxBuffer: 1 << 28 });
  if (done.error) throw done.error;
  const left = {};
  for (const name of fs.readdirSync(folder)) left[name] = fs.readFileSync(path.join(folder, name));
  return { status: done.status, output: done.stdout.toString(), messages: done.stderr.toString(), files: left };
}

function difference(a, b) {
  for (const field of ['status', 'output', 'messages']) if (a[field] !== b[field]) return field;
  const names = new Set([...Object.keys(a.files), ...Object.keys(b.files)]);
  for (const name of names) {
    if (!a.files[name] || !b.files[name] || Buffer.compare(Buffer.from(a.files[name]), Buffer.from(b.files[name])) !== 0) return `file ${name}`;
  }
  return null;
}

let failed = 0;
const statuses = {};
for (let k = 0; k < Number(cases); k++) {
  const { words, files } = CASES[k % CASES.length]();
  const expected = runNative(words, files || {});
  const found = wasm(words, files || {});
  const differs = difference(expected, found);
  statuses[expected.status] = (statuses[expected.status] || 0) + 1;
  if (differs) {
    failed++;
    const show = (result) => (differs.startsWith('file') ? String(result.files[differs.slice(5)]) : String(result[differs])).slice(0, 600);
    console.error(`case ${k}: weft ${words.join(' ')}\n${JSON.stringify(files).slice(0, 1500)}\n${differs} differs\nnative: ${show(expected)}\nwasm:   ${show(found)}\n`);
  }
}
console.log(`${cases} cases, seed ${seed}: ${failed} differ; statuses ${JSON.stringify(statuses)}`);
process.exit(failed > 0 ? 1 : 0);
