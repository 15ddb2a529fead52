// The document: elements, and text that goes in as text only, never as markup.

const byId = (id) => document.getElementById(id);

function element(tag, options, children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === 'text') made.textContent = value;
    else if (name === 'class') made.className = value;
    else if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  (children || []).forEach((child) => made.append(child));
  return made;
}

function fill(parent, children) {
  parent.replaceChildren(...children);
}

const paragraph = (text, kind) => element('p', { class: kind || '', text });

// A picture's elements are of another namespace.
function svg(tag, options, children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === 'text') made.textContent = value; else made.setAttribute(name, value);
  }
  (children || []).forEach((child) => made.append(child));
  return made;
}

// 24.75, 0.125, 1,234; four digits are enough to read.
function number(value) {
  if (!Number.isFinite(value)) return '–';
  const rounded = Number(value.toPrecision(value >= 1000 ? 6 : 4));
  return rounded.toLocaleString('en', { maximumFractionDigits: 6 });
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

const count = (value) => value.toLocaleString('en');

function plural(value, noun) {
  const ending = value === 1 ? '' : noun.endsWith('ch') ? 'es' : 's';
  return `${count(value)} ${noun}${ending}`;
}

// Says in `place` that something is going on, once it takes longer than a moment, and how long it
// has taken. The function that it returns ends that.
function showProgress(place, words, onShown) {
  const begin = performance.now();
  const seconds = element('span', { 'aria-hidden': 'true' });
  const shown = element('span', { class: 'faint', text: `${words} … ` }, [seconds]);
  const first = setTimeout(() => {
    fill(place, [shown]);
    if (onShown) onShown();
  }, 250);
  const more = setInterval(() => { seconds.textContent = `${Math.floor((performance.now() - begin) / 1000)} s`; }, 1000);
  return () => {
    clearTimeout(first);
    clearInterval(more);
    shown.remove();
  };
}

// What a failed command says, where it happened.
function failureParts({ message, hint }) {
  const parts = [element('p', { class: 'wrong', text: message })];
  if (hint) parts.push(element('p', { class: 'hint', text: `Hint: ${hint}` }));
  return parts;
}

function saveFile(name, data, type) {
  const address = URL.createObjectURL(new Blob([data], { type }));
  const link = element('a', { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

const textOf = (bytes) => new TextDecoder().decode(bytes);

function announce(text) {
  byId('announcement').textContent = text;
}
