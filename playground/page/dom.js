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

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
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
