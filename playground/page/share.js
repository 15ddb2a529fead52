// Share: the link, files, and the command line that does the same.

// ---- The link ----

const ADDRESS_MOST = 1000000; // characters; browsers refuse addresses of some megabytes
const LINK_LONG = 8000; // what mail and chat programs carry

let writing = null;
let written = 0; // counts what was meant for the address: an older link never replaces a newer

// A place in the browser's history has the settings too, so that going back needs no unpacking.
function writePlace(hash) {
  try {
    history.replaceState({ ...state }, '', hash);
  } catch (error) { // too much to keep
    history.replaceState(null, '', `#${state.view}`);
  }
}

async function writeLinkNow() {
  const version = ++written;
  clearTimeout(writing);
  const hash = await linkHash();
  if (version === written) writePlace(hash.length <= ADDRESS_MOST ? hash : `#${state.view}`);
  return hash;
}

// The address follows the settings, a moment behind.
function writeLink() {
  clearTimeout(writing);
  written++;
  writing = setTimeout(writeLinkNow, 250);
}

// Around a change to another view, lesson or page: the browser's Back comes here again.
function leavePlace() {
  written++;
  clearTimeout(writing);
  writePlace(location.hash);
}

function enterPlace() {
  history.pushState(null, '', `#${state.view}`);
  writePlace(location.hash);
  writeLink();
}

function returnTo(place) {
  written++;
  clearTimeout(writing);
  Object.assign(state, DEFAULTS, place);
  showNotice('');
  showView();
  writeLink();
}

const isFile = () => location.protocol === 'file:';

async function copyLink() {
  const hash = await writeLinkNow();
  copyText(location.href.split('#')[0] + hash, isFile() ? 'The link is copied. It works on this machine only.' : 'The link is copied.');
}

// Why the link may not be what to send.
function linkWarnings(hash) {
  const warnings = [];
  if (isFile()) {
    warnings.push('This page is a file on this machine, and the link leads to it: it opens nowhere else. Send the page as well (weft playground -o FILE writes a copy), or put it on a web server.');
  }
  if (hash.length > LINK_LONG) {
    warnings.push(`The link has ${count(hash.length)} characters, and mail and chat programs cut such links${hash.length > ADDRESS_MOST ? '; it is too long for the address, too' : ''}. Send the file of the program instead.`);
  }
  return warnings;
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

function exploreLines() {
  const { table, program: lowered, costs } = explored.result;
  const more = [...slowWords(), ...channelWords()];
  const lower = textOf(table) === textOf(lowered) ? [] : [shellLine(['lower', 'table.csv', '--no-unshard', '--no-reduce-grad', '-o', 'program.csv'])];
  const program = lower.length > 0 ? 'program.csv' : 'table.csv';
  return [shellLine([...genWords(), '-o', 'table.csv']), ...lower, shellLine(['verify', program]), `echo ${shellWord(costs)} >costs.json`,
    shellLine(['sim', program, '--costs', 'costs.json', ...more, ...memoryWords()]),
    shellLine(['show', program, '--costs', 'costs.json', ...more, '-o', 'timeline.html']),
    shellLine(compareWords()), ...(planIsShown() ? [] : [shellLine([...planWords(EFFORTS[EFFORTS.length - 1]), '-o', 'plan.csv'])])];
}

const channelWords = () => (state.channel === 'edge' ? [] : ['--channel', state.channel]);
const scopeWords = () => (state.scope === 'edge' ? [] : ['--channel', state.scope]);
// A table has no channels yet.
const shownScope = () => (checked.result.verdict.level === 'comms' ? scopeWords() : []);

function checkLines() {
  const verify = shellLine(['verify', 'program.csv', '--comm', state.comm, ...scopeWords()]);
  return checked.result && checked.result.verdict.ok ? [verify, shellLine(['show', 'program.csv', ...shownScope(), '-o', 'timeline.html'])] : [verify];
}

// ---- Files ----

// What `weft show` writes into a file of that name, of what is on the screen.
async function drawn(name, more) {
  const inCheck = panelShown() === 'check';
  const words = inCheck ? shownScope() : ['--costs', 'costs.json', ...slowWords(), ...channelWords()];
  const files = inCheck ? { 'program.csv': state.program } : { 'program.csv': explored.result.program, 'costs.json': explored.result.costs };
  const answer = await engines.tools.ask('command', { words: ['show', 'program.csv', ...words, '-o', name, ...more], files });
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

const PICTURES = {
  'Picture (SVG)': saveSvg,
  'Picture (PNG)': savePng,
  'Timeline (HTML)': async () => saveFile('timeline.html', await drawn('timeline.html', []), 'text/html'),
};

const EXPLORE_FILES = {
  'Table (CSV)': () => saveFile('table.csv', explored.result.table, 'text/csv'),
  'Program (CSV)': () => saveFile('program.csv', explored.result.program, 'text/csv'),
  ...PICTURES,
  'Prediction (JSON)': () => saveFile('prediction.json', JSON.stringify(explored.result.sim, null, 1), 'application/json'),
  'Costs (JSON)': () => saveFile('costs.json', explored.result.costs, 'application/json'),
};

// A program that hangs has no timeline.
function checkFiles() {
  const verdict = checked.result && checked.result.verdict;
  return { 'Program (CSV)': () => saveFile('program.csv', state.program, 'text/csv'),
    ...(verdict ? { 'Verdict (JSON)': () => saveFile('verdict.json', JSON.stringify(verdict, null, 1), 'application/json') } : {}),
    ...(verdict && verdict.ok ? PICTURES : {}) };
}

// ---- The dialog ----

// Without the report that `weft plan` prints first.
const recipe = (output) => output.slice(output.search(/^For /m));

// The table is one of its own: PyTorch refuses the REDUCE_GRADs of some that are exported.
async function showRunWith() {
  const words = (target) => [...genWords(), '--for', target, '-o', 'pytorch.csv'];
  const save = byId('save-for-pytorch');
  save.hidden = true;
  for (const target of ['pytorch', 'torchtitan']) {
    const box = byId(`for-${target}`);
    box.textContent = '';
    const end = showProgress(box, 'computing');
    const answer = await engines.tools.ask('command', { words: words(target), files: {} });
    const result = answer && answer.result;
    end();
    box.textContent = result ? (result.status === 0 ? recipe(result.output) : result.messages).trim() : '';
    if (!result || result.status !== 0) continue;
    save.onclick = () => saveFile('pytorch.csv', result.files['pytorch.csv'], 'text/csv');
    save.hidden = false;
  }
}

async function showShare() {
  const inCheck = panelShown() === 'check';
  const ready = inCheck ? state.program.trim() !== '' : Boolean(explored.result && explored.result.sim);
  byId('share-files').hidden = !ready;
  byId('run-with').hidden = inCheck;
  byId('share-none').hidden = ready;
  if (ready) {
    byId('commands').textContent = (inCheck ? checkLines() : exploreLines()).join('\n');
    fill(byId('exports'), Object.entries(inCheck ? checkFiles() : EXPLORE_FILES).map(([name, save]) => element('button', { type: 'button', text: name, onclick: save })));
  }
  byId('share').showModal();
  fill(byId('share-warnings'), linkWarnings(await linkHash()).map((text) => paragraph(text, 'warning')));
  if (ready && !inCheck) showRunWith();
}

function listenToShare() {
  byId('share-button').addEventListener('click', showShare);
  byId('copy-link').addEventListener('click', copyLink);
  byId('copy-commands').addEventListener('click', () => copyText(byId('commands').textContent, 'The commands are copied.'));
}
