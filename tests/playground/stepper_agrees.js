// The stepper of the page against `weft verify`: a program that is proven runs to its end, one with
// a deadlock gets stuck, with its cycle among the actions that wait. Random programs, also with
// cells exchanged, under every communication model.
//
//     node stepper_agrees.js MODULE PAGE_FOLDER PROGRAMS SEED
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [modulePath, pageFolder, programs, seed] = process.argv.slice(2);
const read = (name) => fs.readFileSync(path.join(pageFolder, name), 'utf8');
vm.runInThisContext(`const plural = (count, noun) => count + noun;${read('wasi.js')}${read('stepper.js')};Object.assign(globalThis, { runWeft, Stepper });`);
const module_ = new WebAssembly.Module(fs.readFileSync(modulePath));
const weft = (words, files) => runWeft(module_, words, files || {});

let counter = Number(seed) >>> 0;
function below(n) { // xorshift
  counter ^= counter << 13; counter >>>= 0;
  counter ^= counter >>> 17;
  counter ^= counter << 5; counter >>>= 0;
  return counter % n;
}
const pick = (list) => list[below(list.length)];

const GRAPHS = ['0>1,1>2,0>2', '0>2,1>2,2>3', '0>1,1>2,2>3,0>3,0>2', '0>1F,1>2,2>3', '0>1,0>2']
  .map((edges) => edges.split(',').map((edge) => { const [from, to] = edge.split('>'); return { from: Number(from), to: parseInt(to, 10), gradient: !to.endsWith('F') }; }))
  .map((edges) => JSON.stringify({ schema: 'weft-graph/1', stages: 1 + Math.max(...edges.map((edge) => edge.to)), edges }));

function program() {
  const graph = below(3) === 0;
  const name = pick(graph ? ['GPipe', '1F1B', 'ZBH1'] : ['GPipe', '1F1B', 'LoopedBFS', 'Interleaved1F1B', 'InterleavedZeroBubble', 'ZBH1', 'ZBVZeroBubble', 'DualPipeV']);
  const shape = graph ? ['--graph', 'g.json'] : ['-p', String(2 + below(4))];
  const table = weft(['gen', name, ...shape, '-m', String(2 + below(11))], { 'g.json': pick(GRAPHS) });
  if (table.status !== 0) return program();
  return weft(['lower', 't.csv', ...(below(2) ? ['--no-unshard'] : [])], { 't.csv': table.output }).output;
}

// Neighbours exchanged, which is how deadlocks are made.
function shuffled(text) {
  const rows = text.trim().split('\n').map((row) => row.split(','));
  for (let k = below(6); k > 0; k--) {
    const row = pick(rows.filter(([first]) => first !== '#graph'));
    const at = below(row.length - 1);
    [row[at], row[at + 1]] = [row[at + 1], row[at]];
  }
  return `${rows.map((row) => row.join(',')).join('\n')}\n`;
}

const found = { proven: 0, deadlock: 0, other: 0 };
for (let k = 0; k < Number(programs); k++) {
  const text = shuffled(program());
  const files = { 'p.csv': text };
  const explain = JSON.parse(weft(['explain', 'p.csv', '--json'], files).output || 'null');
  for (const comm of ['rendezvous', 'slots:1', 'slots:2', 'eager', 'posted']) {
    for (const scope of ['edge', 'pair', 'rank', 'nccl-directed', 'nccl-pair', 'nccl-world']) {
      const verdict = JSON.parse(weft(['verify', 'p.csv', '--json', '--trace', '--comm', comm, '--channel', scope], files).output);
      const deadlock = verdict.findings.find((finding) => finding.rule === 'deadlock');
      if (!verdict.ok && (verdict.findings.length !== 1 || !deadlock)) {
        found.other++; // it is wrong in a way that stepping is not about
        continue;
      }
      const stepper = new Stepper(explain.rows, verdict);
      stepper.goTo(Infinity);
      const stuckIn = verdict.cycle ? verdict.cycle.every((member) => stepper.eventOf(member.rank, member).number >= verdict.moves.length) : true;
      found[verdict.ok ? 'proven' : 'deadlock']++;
      if (stepper.finished() !== verdict.ok || stepper.stuck() === verdict.ok || !stuckIn) {
        console.error(`program ${k}, ${comm}, ${scope}: verify says ${verdict.ok ? 'proven' : 'deadlock'}, the stepper ${stepper.finished() ? 'finishes' : 'is stuck'} at ${stepper.at}\n${JSON.stringify(verdict.cycle)}\n${text}`);
        process.exit(1);
      }
    }
  }
}
console.log(`${programs} programs: ${JSON.stringify(found)}`);
process.exit(found.proven > 0 && found.deadlock > 0 ? 0 : 1);
