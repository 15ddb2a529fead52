// The panels around the timeline. Text from files goes in as text only, never
// as markup.

const CHAIN_SHOWN_MAX = 400;
const EDGES_SHOWN = 12;
const byId = (id) => document.getElementById(id);

function element(tag, options, children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (name === 'text') made.textContent = value;
    else if (name === 'class') made.className = value;
    else if (name === 'click') made.addEventListener('click', value);
    else if (name === 'colour') made.style.backgroundColor = value;
    else if (name === 'width') made.style.width = value;
    else made.setAttribute(name, value);
  }
  (children || []).forEach((child) => made.appendChild(child));
  return made;
}

const joined = (lists) => [].concat(...lists);

function fill(parent, children) {
  parent.textContent = '';
  children.forEach((child) => parent.appendChild(child));
}

function shorten(text, most) {
  const characters = Array.from(text);
  return characters.length <= most ? text : `${characters.slice(0, most - 1).join('')}…`;
}

function say(text) {
  byId('message').textContent = text;
}

// ---- Cards: the numbers of each schedule, and how it compares with the first ----

function fact(name, value) {
  const entry = element('span', { text: `${name} ` });
  entry.appendChild(element('b', { text: value }));
  return entry;
}

// Times are of a rank's share of the model, or of a stage, as the note says (weft_costs_describe()).
// With other numbers of stages the models differ then, and one is not longer by its schedule.
const isOfShare = ({ note }) => note.includes("times are of a rank's share");

function comparison(app, picture) {
  const first = app.models[0].picture;
  const change = first.makespan > 0 ? picture.makespan / first.makespan - 1 : 0;
  if (picture.unit !== first.unit) return `not compared with the first: its times are in ${unitOf(picture)}`;
  if (picture.stages !== first.stages && !(isOfShare(picture) && isOfShare(first))) {
    const size = picture.stages > first.stages ? 'larger' : 'smaller';
    return `not compared with the first: ${picture.stages} stages instead of ${first.stages}, of the same costs each, are a ${size} model`;
  }
  if (Math.abs(change) < 5e-5) return 'as long as the first';
  return `${formatShare(Math.abs(change))} ${change < 0 ? 'shorter' : 'longer'} than the first`;
}

// The edges of a graph, as far as there is room.
function edgesText({ edges }) {
  const more = edges.length > EDGES_SHOWN ? ` and ${edges.length - EDGES_SHOWN} more` : '';
  return `edges ${edges.slice(0, EDGES_SHOWN).join(', ')}${more}`;
}

function cardOf(app, model, index) {
  const { picture } = model;
  const card = element('div', { class: 'card' }, [
    element('h2', { text: picture.name, title: picture.name }),
    fact('makespan', `${formatNumber(picture.makespan)} ${unitOf(picture)}`),
    fact('idle', formatShare(picture.bubbleRatio)),
    fact('peak activation', formatNumber(picture.peakActivation)),
    element('span', { text: [counted(picture.ranks, 'rank'), counted(picture.stages, 'stage'), counted(picture.microbatches, 'microbatch', 'es')].join(', ') }),
  ]);
  if (picture.graph) card.appendChild(element('span', { text: edgesText(picture), title: picture.edges.join(', ') }));
  if (index > 0) card.appendChild(element('span', { class: 'compare', text: comparison(app, picture) }));
  if (picture.note !== '') card.appendChild(element('span', { text: picture.note }));
  if (app.models.length > 1) {
    card.appendChild(element('button', { type: 'button', text: '×', title: 'Take it off the page',
      'aria-label': `Take ${picture.name} off the page`, click: () => removeModel(app, index) }));
  }
  return card;
}

function showCards(app) {
  fill(byId('cards'), app.models.map((model, index) => cardOf(app, model, index)));
  document.title = `${app.models.map((model) => model.picture.name).join(' and ')} · Weft timeline`;
}

// ---- Legend ----

function legendEntry(colours, text) {
  const swatches = colours.map((colour) => element('span', { class: 'swatch', colour }));
  return element('span', { class: 'entry' },
    [element('span', { class: 'swatches' }, swatches), element('span', { text })]);
}

function causeEntry(app, cause, k) {
  const entry = legendEntry([themeOf(app).ops[0]], `${k === 0 ? 'idle ' : ''}${CAUSE_WORDS[cause]}`);
  const colour = causeColour(app, cause);
  entry.firstChild.firstChild.style.backgroundImage =
    `repeating-linear-gradient(135deg, ${colour} 0 1.5px, transparent 1.5px 4px)`;
  if (k === 0) entry.classList.add('first-of-group');
  return entry;
}

function opsShown(app) {
  const seen = new Set();
  for (const model of app.models) for (const op of model.picture.events.op) seen.add(op);
  return Array.from(seen).sort((a, b) => a - b);
}

// The first and the palest colour of an op, where ranks have several stages.
function opColours(app, op) {
  if (isCompute(op) && app.colourBy === 'stage') return [stageColour(app, app.models[0], 0, op)]; // its lightness
  const chunks = isCompute(op) ? Math.max(...app.models.map((model) => model.chunks)) : 1;
  return chunks === 1 ? [themeOf(app).ops[op]] : [0, chunks - 1].map((k) => chunkColour(app, op, k, chunks));
}

// With a line at the foot of the second.
function linedEntry(colours, text) {
  const entry = legendEntry(colours, text);
  if (colours.length > 1) entry.firstChild.lastChild.classList.add('lined');
  return entry;
}

// What the pale, lined and mixed actions are, in the words of the SVG picture.
function shadeEntries(app) {
  const op = app.opsShown.find(isCompute);
  const others = app.opsShown.filter(isCompute);
  const chunks = Math.max(...app.models.map((model) => model.chunks));
  const entries = [];
  if (op !== undefined && chunks > 1 && app.colourBy === 'op') {
    entries.push(linedEntry(opColours(app, op), chunks === 2 ? 'pale, underlined: the rank’s second stage'
      : 'paler, more lines: later stages of the rank'));
  }
  if (app.mixes) {
    const [from, to] = [others[0], others[1] || 0].map((other) => valueOf(themeOf(app).ops[other]));
    entries.push(legendEntry([hexOf(mix(from, to, 128))], 'mixed: actions that share a pixel, each by its time'));
  }
  return entries;
}

// Whether actions share pixels when all is in view.
function mixes(app) {
  const scale = plotWidth(app) / extentOf(app).length;
  return app.models.some((model) => model.shortest > 0 && model.shortest * scale < 1);
}

function opEntries(app, wanted) {
  return app.opsShown.filter(wanted)
    .filter((op) => KIND[op] !== 'GROUP' && !isReceive(op))
    .filter((op) => !isSend(op) || app.showTransfers)
    .filter((op) => !isShard(op) || has(app, 'hasShards'))
    .map((op) => linedEntry(opColours(app, op), isSend(op) ? OPS[op].legend : `${OPS[op].text} ${OPS[op].phrase}`));
}

function stageEntries(app) {
  const model = app.models.reduce((most, other) => (other.picture.stages > most.picture.stages ? other : most));
  const { stages } = model.picture;
  const shown = stages <= 16 ? stages : 8;
  return Array.from({ length: shown }, (unused, k) => {
    const stage = shown === 1 ? 0 : Math.round((k * (stages - 1)) / (shown - 1));
    return legendEntry([stageColour(app, model, stage, OP.B)], stageName(model, stage));
  });
}

function causesShown(app) {
  return CAUSES.map((name, cause) => cause).filter((cause) => app.models.some((model) =>
    causeShares(model.picture).some((found) => found.cause === cause)));
}

function showLegend(app) {
  const causes = causesShown(app).map((cause, k) => causeEntry(app, cause, k));
  const stages = app.colourBy === 'stage' ? stageEntries(app) : [];
  fill(byId('legend'), [...stages, ...opEntries(app, isCompute), ...shadeEntries(app),
    ...opEntries(app, (op) => !isCompute(op)), ...causes]);
}

// ---- The selected event ----

function term(name, value) {
  return [element('dt', { text: name }), element('dd', { text: value })];
}

function chainButton(app, modelIndex, id) {
  const model = app.models[modelIndex];
  const { rank } = model.picture.events;
  return element('li', {}, [element('button', { type: 'button', text: labelOf(model, id),
    title: `rank ${rank[id]}, ${spanOf(model, id)}`, click: () => goTo(app, modelIndex, id) })]);
}

function chainList(app, modelIndex, title, ids) {
  const { op } = app.models[modelIndex].picture.events;
  const actions = ids.filter((id) => !isTransfer(op[id]));
  const transfers = ids.filter((id) => isReceive(op[id])).length;
  const note = transfers > 0 ? `, over ${transfers} transfer${transfers === 1 ? '' : 's'}` : '';
  const items = actions.slice(0, CHAIN_SHOWN_MAX).map((id) => chainButton(app, modelIndex, id));
  const parts = [element('h3', { text: `${title}: ${actions.length}${note}` }),
    element('ul', { class: 'chain' }, items)];
  if (actions.length > CHAIN_SHOWN_MAX) {
    parts.push(element('p', { text: `and ${actions.length - CHAIN_SHOWN_MAX} more` }));
  }
  return parts;
}

function nothingSelected() {
  return [element('h2', { text: 'No action selected' }),
    element('p', { text: 'Click an action, or press Enter on one, to see what it needs and what needs it. Click idle time to see why it is there. ? shows all keys.' })];
}

function selectedParts(app, { modelIndex, id, chain }) {
  const model = app.models[modelIndex];
  const { picture } = model;
  const { events } = picture;
  const heading = element('h2', {}, [element('code', { text: cellLabel(model, id) })]);
  const schedule = app.models.length > 1 ? `, ${picture.name}` : '';
  const facts = [...term('rank', `${events.rank[id]}${schedule}`), ...term('from – to', spanOf(model, id)),
    ...term('takes', formatTime(picture, events.end[id] - events.begin[id])),
    ...term('waited for', waitWords(model, id))];
  const idle = isCompute(events.op[id]) ? idleBefore(model, id) : [];
  if (isCompute(events.op[id])) facts.push(...term('idle before', idleWords(model, id)));
  if (idle.length > 0) {
    const [why, remedy] = gapWords(model, events.rank[id], idle[idle.length - 1]);
    facts.push(...term('why', why), ...term('remedy', remedy || 'none in this schedule'));
  }
  return [heading, element('p', { text: describe(model, id) }), element('dl', {}, facts),
    ...chainList(app, modelIndex, 'Needs', chain.before), ...chainList(app, modelIndex, 'Needed by', chain.after)];
}

// The chosen idle gap.
function gapParts(app, { modelIndex, rank, stretch }) {
  const model = app.models[modelIndex];
  const [why, remedy] = gapWords(model, rank, stretch);
  return [element('h2', { text: `Idle, rank ${rank}` }),
    element('p', { text: `${rangeText(model.picture, stretch.begin, stretch.end)}: ${stretchWords(model, stretch)}` }),
    element('h3', { text: 'Why' }), element('p', { text: why }),
    element('h3', { text: 'What would remove it' }), element('p', { text: remedy || 'Nothing in this schedule.' })];
}

// How the time of a critical path is spent.
function pathWords(model) {
  const { picture } = model;
  const { events, path } = picture;
  const sum = (wanted) => Array.from(path).filter((id) => wanted(events.op[id]))
    .reduce((total, id) => total + events.end[id] - events.begin[id], 0);
  const ranks = new Set(Array.from(path, (id) => events.rank[id])).size;
  const shards = sum(isShard);
  const words = [`${formatTime(picture, sum(isCompute))} of compute on ${ranks} rank${ranks === 1 ? '' : 's'}`,
    `${formatTime(picture, sum(isTransfer))} of transfers`];
  if (shards > 0) words.push(`${formatTime(picture, shards)} of gathering and reducing`);
  // A transfer on the path may itself have waited, for the channel it shares.
  const queued = path.length > 0 ? events.end[path[path.length - 1]] - events.begin[path[0]] -
    sum(() => true) : 0;
  if (queued > 1e-9 * picture.makespan) words.push(`${formatTime(picture, queued)} of waiting for channels`);
  return words.join(', ');
}

function pathParts(app) {
  return joined(app.models.map((model, modelIndex) => {
    const { actions } = pathOf(model);
    const items = actions.slice(0, CHAIN_SHOWN_MAX).map((id) => chainButton(app, modelIndex, id));
    const more = actions.length > CHAIN_SHOWN_MAX ? [element('p', { text: `and ${actions.length - CHAIN_SHOWN_MAX} more` })] : [];
    return [element('h2', { text: `Critical path${app.models.length > 1 ? `, ${model.picture.name}` : ''}` }),
      element('p', { text: pathWords(model) }), element('ul', { class: 'chain' }, items), ...more];
  }));
}

function showSelection(app) {
  const shown = app.selected ? selectedParts(app, app.selected) : app.gap ? gapParts(app, app.gap)
    : app.showPath ? pathParts(app) : nothingSelected();
  fill(byId('selection'), shown);
  // For a page around this one: whether an idle gap is explained now.
  const afterGap = app.selected && idleBefore(app.models[app.selected.modelIndex], app.selected.id).length > 0;
  window.dispatchEvent(new CustomEvent('weft-select', { detail: { gap: Boolean(app.gap || afterGap) } }));
}

// ---- Idle by cause ----

function stackOf(app, picture, times, longest) {
  const bars = times.idleByCause.map((idle, cause) => element('i', { colour: causeColour(app, cause),
    width: `${longest > 0 ? (100 * idle) / longest : 0}%`,
    title: `${formatTime(picture, idle, picture.makespan)} ${CAUSE_WORDS[cause]}` }));
  return element('div', { class: 'stack' }, bars);
}

function summaryRow(app, picture, rank, longest) {
  const times = picture.rankTimes[rank];
  const causes = times.idleByCause.map((idle, cause) => `${CAUSES[cause]} ${formatTime(picture, idle, picture.makespan)}`)
    .filter((text, cause) => times.idleByCause[cause] > 0).join(', ');
  return element('tr', { title: causes }, [
    element('td', { text: String(rank) }),
    element('td', { class: 'share', 'aria-label': causes || 'none' }, [stackOf(app, picture, times, longest)]),
    element('td', { text: formatNumber(times.idle, picture.makespan) }),
    element('td', { text: formatNumber(times.busy, picture.makespan) }),
    element('td', { text: formatNumber(times.peakActivation), title: `at ${formatTime(picture, times.peakAt)}` }),
  ]);
}

const SHARE_LEAST = 0.0005; // less would be written 0.0 %

// Of the idle time of all ranks, the causes that matter, the largest first.
function causeShares(picture) {
  const totals = CAUSES.map((name, cause) =>
    picture.rankTimes.reduce((sum, times) => sum + times.idleByCause[cause], 0));
  const all = totals.reduce((sum, value) => sum + value, 0);
  return totals.map((value, cause) => ({ cause, share: all > 0 ? value / all : 0 }))
    .filter((total) => total.share >= SHARE_LEAST).sort((a, b) => b.share - a.share);
}

function totalsOf(picture) {
  return causeShares(picture).map(({ cause, share }) => `${formatShare(share)} ${CAUSE_WORDS[cause]}`).join(', ');
}

function summaryOf(app, model) {
  const { picture } = model;
  const longest = Math.max(0, ...picture.rankTimes.map((times) => times.idle));
  const heads = ['rank', 'idle by cause', 'idle', 'busy', 'peak'];
  const head = element('tr', {}, heads.map((text) => element('th', { text, scope: 'col' })));
  const body = [];
  for (let rank = 0; rank < picture.ranks; rank++) body.push(summaryRow(app, picture, rank, longest));
  return [element('h3', { text: `Idle time in ${unitOf(picture)}, ${picture.name}` }),
    element('p', { text: totalsOf(picture) || 'none' }),
    element('table', {}, [element('thead', {}, [head]), element('tbody', {}, body)])];
}

function showSummary(app) {
  fill(byId('summary'), joined(app.models.map((model) => summaryOf(app, model))));
}

// ---- Tooltip ----

function tooltipLines(app, place) {
  const { model, rank } = place.row;
  if (place.kind === 'event') return eventLines(model, place.id);
  if (place.kind === 'idle') return gapLines(model, rank, place.stretch);
  const curve = model.picture.memory[rank];
  const i = firstAbove(curve.at, place.time) - 1;
  return memoryLines(model, rank, i >= 0 ? curve.size[i] : 0, place.time);
}

function showTooltip(app, lines, x, y) {
  const tooltip = byId('tooltip');
  fill(tooltip, lines.map((text) => element('div', { text })));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = x + 16 + box.width > window.innerWidth ? x - box.width - 12 : x + 16;
  const top = y + 18 + box.height > window.innerHeight ? y - box.height - 12 : y + 18;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() {
  byId('tooltip').hidden = true;
}

function showRange(app) {
  const { picture } = app.models[0];
  const { first, last } = extentOf(app);
  const shown = app.to - app.from;
  const from = formatNumber(Math.max(first, app.from), shown);
  const to = formatNumber(Math.min(last, app.to), shown);
  byId('range').textContent = `showing ${from} – ${to} of ${rangeText(picture, first, last)}`;
}
