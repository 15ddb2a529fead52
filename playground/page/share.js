// Share: the link, files, and the command line that does the same.

// ---- The link ----

let writing = null;

// The address follows the settings, a moment behind.
function writeLink() {
  clearTimeout(writing);
  writing = setTimeout(async () => history.replaceState(null, '', await linkHash()), 250);
}

async function copyLink() {
  clearTimeout(writing);
  history.replaceState(null, '', await linkHash());
  copyText(location.href, 'The link is copied.');
}

async function copyText(text, done) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (error) { // from a file, some browsers do not allow it
    const field = element('textarea', { class: 'unseen' });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
  }
  announce(done);
  byId('share-state').textContent = done;
  setTimeout(() => { byId('share-state').textContent = ''; }, 4000);
}

// ---- The command line ----

// As a word of a shell.
const shellWord = (word) => (/^[\w\-+=.,:/@%]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`);
const shellLine = (words) => ['weft', ...words].map(shellWord).join(' ');

function commandLines() {
  const slow = slowWords();
  const costs = `echo ${shellWord(costsText())} >costs.json`;
  const more = [...slow, ...(state.channel === 'edge' ? [] : ['--channel', state.channel])];
  const lower = explored.result && textOf(explored.result.table) === textOf(explored.result.program) ? null
    : `${shellLine(['lower', 'table.csv', '--no-unshard', '--no-reduce-grad', '-o', 'program.csv'])}`;
  const program = lower ? 'program.csv' : 'table.csv';
  return [`${shellLine([...genWords(), '-o', 'table.csv'])}`, ...(lower ? [lower] : []), shellLine(['verify', program]), costs,
    shellLine(['sim', program, '--costs', 'costs.json', ...more, ...memoryWords()]),
    shellLine(['show', program, '--costs', 'costs.json', ...more, '-o', 'timeline.html']),
    shellLine(compareWords()), shellLine([...planWords(EFFORTS[EFFORTS.length - 1]), '-o', 'plan.csv'])];
}

// ---- Files ----

// What `weft show` writes into a file of that name.
async function drawn(name, more) {
  const channel = state.channel === 'edge' ? [] : ['--channel', state.channel];
  const answer = await engines.tools.ask('command', {
    words: ['show', 'program.csv', '--costs', 'costs.json', ...slowWords(), ...channel, '-o', name, ...more],
    files: { 'program.csv': explored.result.program, 'costs.json': costsText() } });
  return answer && answer.result && answer.result.files[name];
}

const picture = () => drawn('timeline.svg', isDark() ? ['--dark'] : []);

async function savePng() {
  const made = await picture();
  if (!made) return;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(made)}`;
  await image.decode();
  const canvas = element('canvas', { width: 2 * image.naturalWidth, height: 2 * image.naturalHeight });
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => saveFile('timeline.png', blob, 'image/png'), 'image/png');
}

async function saveSvg() {
  const made = await picture();
  if (made) saveFile('timeline.svg', made, 'image/svg+xml');
}

const EXPORTS = {
  'Table (CSV)': () => saveFile('table.csv', explored.result.table, 'text/csv'),
  'Program (CSV)': () => saveFile('program.csv', explored.result.program, 'text/csv'),
  'Picture (SVG)': saveSvg,
  'Picture (PNG)': savePng,
  'Timeline (HTML)': async () => saveFile('timeline.html', await drawn('timeline.html', []), 'text/html'),
  'Prediction (JSON)': () => saveFile('prediction.json', JSON.stringify(explored.result.sim, null, 1), 'application/json'),
  'Costs (JSON)': () => saveFile('costs.json', costsText(), 'application/json'),
};

// ---- The dialog ----

async function showRunWith() {
  const words = (target) => [...genWords(), '--for', target, '-o', 'table.csv'];
  for (const target of ['pytorch', 'torchtitan']) {
    const answer = await engines.tools.ask('command', { words: words(target), files: {} });
    const result = answer && answer.result;
    byId(`for-${target}`).textContent = result ? (result.status === 0 ? result.output : result.messages).trim() : '';
  }
}

function showShare() {
  const ready = explored.result && explored.result.sim;
  byId('share-files').hidden = !ready;
  byId('commands').textContent = ready ? commandLines().join('\n') : '';
  byId('share').showModal();
  if (ready) showRunWith();
}

function listenToShare() {
  byId('share-button').addEventListener('click', showShare);
  byId('copy-link').addEventListener('click', copyLink);
  byId('copy-commands').addEventListener('click', () => copyText(byId('commands').textContent, 'The commands are copied.'));
  fill(byId('exports'), Object.entries(EXPORTS).map(([name, save]) => element('button', { type: 'button', text: name, onclick: save })));
}
