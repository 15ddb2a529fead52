// All that a link carries: which part is open, and its settings. Also as a line of text, in the
// words of the command.

const PLAN = 'plan'; // instead of the name of a schedule: the planner's, for these settings

const DEFAULTS = {
  view: 'learn',
  // Explore
  schedule: '1F1B', p: '4', v: '', m: '8', f: '1', i: '1', w: '1', b: '', hop: '0',
  memory: '', slow: '', factor: '2', channel: 'edge', effort: '0.4',
  // Check
  program: '', other: '', comm: 'rendezvous', scope: 'edge', at: '0',
  // Learn
  lesson: 'bubble', page: '0',
};
const VIEWS = ['learn', 'explore', 'check'];
const EXPLORED = ['schedule', 'p', 'v', 'm', 'f', 'i', 'w', 'b', 'hop', 'memory', 'slow', 'factor', 'channel', 'effort'];

const state = { ...DEFAULTS };

// ---- The link ----

const UNPACKED_MOST = 32 * 1024 * 1024; // bytes of a program; a small link can unpack to anything

async function readAtMost(stream, most) {
  const parts = [];
  const reader = stream.getReader();
  for (let size = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts).arrayBuffer();
    size += value.length;
    if (size > most) {
      reader.cancel().catch(() => {});
      throw new Error(`it unpacks to more than ${most / 1024 / 1024} MB`);
    }
    parts.push(value);
  }
}

const pipe = (bytes, transform) => new Blob([bytes]).stream().pipeThrough(transform);

const toBase64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''))
  .replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
const fromBase64 = (text) => Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0));

// Programs are long, and compress well.
async function packText(text) {
  const packed = pipe(new TextEncoder().encode(text), new CompressionStream('deflate-raw'));
  return toBase64(new Uint8Array(await new Response(packed).arrayBuffer()));
}

async function unpackText(text) {
  return textOf(await readAtMost(pipe(fromBase64(text), new DecompressionStream('deflate-raw')), UNPACKED_MOST));
}

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

// Null, or what is wrong with the link; then nothing changes.
async function readLink(hash) {
  const [view, tail] = hash.replace(/^#/, '').split('?');
  if (!VIEWS.includes(view)) return `The link names the part '${view.slice(0, 40)}': expected one of ${VIEWS.join(', ')}.`;
  const given = new URLSearchParams(tail || '');
  const place = { view, lesson: given.get('lesson') || DEFAULTS.lesson, page: given.get('page') || DEFAULTS.page };
  const lesson = LESSONS.find((entry) => entry.id === place.lesson);
  if (!lesson) return `The link names the lesson '${place.lesson.slice(0, 40)}', which is not there.`;
  if (!/^\d+$/.test(place.page) || Number(place.page) >= lesson.pages.length) {
    return `The link names the page '${place.page.slice(0, 40)}' of a lesson: expected one from 0 to ${lesson.pages.length - 1}.`;
  }
  const found = { ...baseOf(place), ...place };
  for (const [name, value] of given) {
    if (!Object.hasOwn(DEFAULTS, name)) continue;
    try {
      found[name] = LONG.includes(name) ? await unpackText(value) : value;
    } catch (error) {
      const why = error.message.startsWith('it unpacks') ? error.message : 'a part of it is missing, or was changed on its way';
      return `The link is damaged: its ${name === 'other' ? 'other program' : 'program'} cannot be read, because ${why}.`;
    }
  }
  Object.assign(state, found);
  return null;
}

// ---- Settings as text ----

const FLAGS = [['p', '-p', '--ranks'], ['v', '-v', '--stages-per-rank'], ['m', '-m', '--microbatches'], ['f', '--f'], ['i', '--i'],
  ['w', '--w'], ['b', '--b'], ['hop', '--hop'], ['memory', '--memory'], ['slow', '--slow'], ['channel', '--channel'], ['effort', '--effort']];
const ELSEWHERE = ['-o', '--output', '--threads']; // words of the command that change nothing here

function settingsText() {
  const words = [state.schedule];
  for (const [name, flag] of FLAGS) {
    const always = name === 'p' || name === 'm';
    const never = name === (state.schedule === PLAN ? 'v' : 'effort');
    if (!never && (always || (state[name] !== '' && state[name] !== DEFAULTS[name]))) {
      words.push(flag, name === 'slow' ? `${state.slow}=${state.factor}` : state[name]);
    }
  }
  return words.join(' ');
}

// The line as the command takes it: -p4 and --memory=4 are two words each.
function wordsOf(line) {
  const words = line.trim().split(/\s+/).filter((word) => word !== '');
  if (words[0] === 'weft') words.shift();
  if (words[0] === 'gen') words.shift();
  return words.flatMap((word) => {
    const parts = /^(-[a-z])(.+)$/.exec(word) || /^(--[a-z-]+)=(.*)$/.exec(word);
    return parts ? parts.slice(1) : [word];
  });
}

// Null, or what is wrong with the text; then nothing changes.
function readSettings(line) {
  const found = { schedule: '', factor: DEFAULTS.factor };
  for (const [name] of FLAGS) found[name] = DEFAULTS[name];
  const words = wordsOf(line);
  for (let k = 0; k < words.length; k++) {
    if (!words[k].startsWith('-')) {
      if (found.schedule !== '') return `unexpected '${words[k]}' after '${found.schedule}': expected an option`;
      found.schedule = words[k];
      continue;
    }
    const flag = FLAGS.find((entry) => entry.includes(words[k], 1));
    if (!flag && !ELSEWHERE.includes(words[k])) return `unknown option '${words[k]}': expected one of ${FLAGS.map((entry) => entry[1]).join(', ')}`;
    const value = words[++k];
    if (value === undefined) return `'${words[k - 1]}' needs a value`;
    if (!flag) continue;
    if (flag[0] !== 'slow') found[flag[0]] = value;
    else if (/^\d+=/.test(value)) [found.slow, found.factor] = value.split('=');
    else return `found '--slow ${value}', expected RANK=FACTOR, such as --slow 2=1.5`;
  }
  if (found.schedule === '') return 'expected the name of a schedule, such as 1F1B';
  if (found.schedule === PLAN && found.v !== '') return 'the planner chooses v here: leave out -v';
  if (!(realOf(found.effort) > 0 && realOf(found.effort) <= EFFORT_MOST)) return `--effort is '${found.effort}': expected seconds, above 0 and at most ${EFFORT_MOST} in this page`;
  if (found.schedule !== PLAN) found.effort = DEFAULTS.effort;
  Object.assign(state, found);
  return null;
}
