// All that a link carries: which part is open, and its settings. Also as a line of text, in the
// words of the command.

const DEFAULTS = {
  view: 'learn',
  // Explore
  schedule: '1F1B', p: '4', v: '', m: '8', f: '1', i: '1', w: '1', b: '', hop: '0',
  memory: '', slow: '', factor: '2', channel: 'edge',
  // Check
  program: '', other: '', comm: 'rendezvous', scope: 'edge', at: '0',
  // Learn
  lesson: 'bubble', page: '0',
};
const VIEWS = ['learn', 'explore', 'check'];

const state = { ...DEFAULTS };

// ---- The link ----

async function pipe(bytes, transform) {
  const stream = new Blob([bytes]).stream().pipeThrough(transform);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const toBase64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''))
  .replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
const fromBase64 = (text) => Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0));

// Programs are long, and compress well.
const packText = async (text) => toBase64(await pipe(new TextEncoder().encode(text), new CompressionStream('deflate-raw')));
const unpackText = async (text) => new TextDecoder().decode(await pipe(fromBase64(text), new DecompressionStream('deflate-raw')));

const LONG = ['program', 'other'];

// What a link need not say: a page of a lesson begins with settings of its own.
function baseOf({ view, lesson, page }) {
  const found = view === 'learn' && LESSONS.find((entry) => entry.id === lesson);
  return { ...DEFAULTS, ...(found && found.pages[Number(page)] ? found.pages[Number(page)].set : {}) };
}

async function linkHash() {
  const fields = new URLSearchParams();
  const base = baseOf(state);
  for (const [name, value] of Object.entries(state)) {
    const always = name === 'lesson' || name === 'page';
    if (name === 'view' || value === (always ? DEFAULTS[name] : base[name])) continue;
    fields.set(name, LONG.includes(name) ? await packText(value) : value);
  }
  const tail = fields.toString();
  return `#${state.view}${tail ? `?${tail}` : ''}`;
}

// False when the link is not one of ours, or damaged; then nothing changes.
async function readLink(hash) {
  const [view, tail] = hash.replace(/^#/, '').split('?');
  if (!VIEWS.includes(view)) return false;
  const given = new URLSearchParams(tail || '');
  const place = { view, lesson: given.get('lesson') || DEFAULTS.lesson, page: given.get('page') || DEFAULTS.page };
  const found = { ...baseOf(place), ...place };
  try {
    for (const [name, value] of given) {
      if (name in DEFAULTS) found[name] = LONG.includes(name) ? await unpackText(value) : value;
    }
  } catch (error) {
    return false;
  }
  Object.assign(state, found);
  return true;
}

// ---- Settings as text ----

const FLAGS = [['p', '-p'], ['v', '-v'], ['m', '-m'], ['f', '--f'], ['i', '--i'], ['w', '--w'],
  ['b', '--b'], ['hop', '--hop'], ['memory', '--memory'], ['channel', '--channel']];

function settingsText() {
  const words = [state.schedule];
  for (const [name, flag] of FLAGS) {
    const always = name === 'p' || name === 'm';
    if (always || (state[name] !== '' && state[name] !== DEFAULTS[name])) words.push(flag, state[name]);
  }
  if (state.slow !== '') words.push('--slow', `${state.slow}=${state.factor}`);
  return words.join(' ');
}

// Null, or what is wrong with the text.
function readSettings(line) {
  const words = line.trim().split(/\s+/);
  const found = { schedule: words[0] || '' };
  for (const [name] of FLAGS) found[name] = DEFAULTS[name];
  Object.assign(found, { slow: '', factor: DEFAULTS.factor });
  if (found.schedule === '' || found.schedule.startsWith('-')) return 'expected the name of a schedule first, such as 1F1B';
  for (let k = 1; k < words.length; k += 2) {
    const flag = FLAGS.find((entry) => entry[1] === words[k]);
    const value = words[k + 1];
    if (!flag && words[k] !== '--slow') return `unknown option '${words[k]}': expected one of ${FLAGS.map((entry) => entry[1]).join(', ')}, --slow`;
    if (value === undefined) return `'${words[k]}' needs a value`;
    if (flag) found[flag[0]] = value;
    else if (/^\d+=/.test(value)) [found.slow, found.factor] = value.split('=');
    else return `found '--slow ${value}', expected RANK=FACTOR, such as --slow 2=1.5`;
  }
  Object.assign(state, found);
  return null;
}
