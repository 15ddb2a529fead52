// Mouse, touch, keyboard, buttons, files.

const DRAG_LEAST = 4;
const PAN_STEP = 80;
const FILE_MAX = 400 * 1024 * 1024;

// ---- Selecting and focusing ----

function select(app, modelIndex, id) {
  app.selected = id === NONE ? null : { modelIndex, id, chain: chainOf(app.models[modelIndex], id) };
  showSelection(app);
  redraw(app);
}

function focusOn(app, modelIndex, id) {
  app.focus = { modelIndex, id };
  reveal(app, modelIndex, id);
  showFocusTooltip(app);
}

// The tooltip of the event in focus, beside it, for those without a mouse. It
// waits for the frame in which the view has moved there.
function showFocusTooltip(app) {
  app.tooltipForFocus = true;
  redraw(app);
}

function placeFocusTooltip(app) {
  app.tooltipForFocus = false;
  if (!app.focus) return;
  const place = screenBox(app, app.focus.modelIndex, app.focus.id);
  const lines = eventLines(app.models[app.focus.modelIndex], app.focus.id);
  showTooltip(app, lines, place.left, place.bottom);
  byId('announcement').textContent = lines.join('. ');
}

function goTo(app, modelIndex, id) {
  focusOn(app, modelIndex, id);
  select(app, modelIndex, id);
}

// Where an event is on the screen.
function screenBox(app, modelIndex, id) {
  const model = app.models[modelIndex];
  const { events } = model.picture;
  const bounds = app.canvas.getBoundingClientRect();
  const box = boxOf(rowOf(app, modelIndex, events.rank[id]), model, id) || { y: 0, height: 0 };
  const left = Math.max(app.gutter, xOf(app, events.begin[id]));
  const right = Math.min(app.width, xOf(app, events.end[id]));
  return { left: bounds.left + left, right: bounds.left + right,
    top: bounds.top + box.y - app.scroll, bottom: bounds.top + box.y - app.scroll + box.height };
}

// ---- Pointer ----

function pointerPlace(app, event) {
  const bounds = app.canvas.getBoundingClientRect();
  return { x: event.clientX - bounds.left, y: event.clientY - bounds.top };
}

function hoverAt(app, event) {
  const { x, y } = pointerPlace(app, event);
  const place = under(app, x, y);
  app.pointer = { x, y };
  app.hover = place && place.kind === 'event' ? { modelIndex: place.row.modelIndex, id: place.id } : null;
  app.canvas.classList.toggle('on-event', app.hover !== null);
  if (place) showTooltip(app, tooltipLines(app, place), event.clientX, event.clientY);
  else hideTooltip();
  redrawOverlay(app);
}

function leave(app) {
  app.pointer = null;
  app.hover = null;
  hideTooltip();
  redrawOverlay(app);
}

function clickAt(app, event) {
  const { x, y } = pointerPlace(app, event);
  const place = under(app, x, y);
  hideTooltip(); // it would cover what is about to light up
  if (place && place.kind === 'event') {
    app.focus = { modelIndex: place.row.modelIndex, id: place.id };
    select(app, place.row.modelIndex, place.id);
  } else {
    app.focus = null;
    select(app, 0, NONE);
  }
}

function pinch(app) {
  const [a, b] = Array.from(app.pointers.values());
  const distance = Math.hypot(a.x - b.x, a.y - b.y);
  if (app.pinch) {
    zoom(app, distance / app.pinch.distance, (a.x + b.x) / 2);
    pan(app, app.pinch.middle - (a.x + b.x) / 2);
  }
  app.pinch = { distance: Math.max(1, distance), middle: (a.x + b.x) / 2 };
}

function drag(app, place) {
  const { start } = app;
  if (!start.moved && Math.hypot(place.x - start.x, place.y - start.y) < DRAG_LEAST) return;
  if (!start.moved) Object.assign(start, { moved: true, lastX: start.x, lastY: start.y });
  app.canvas.classList.add('dragging');
  hideTooltip();
  pan(app, start.lastX - place.x);
  scrollBy(app, start.lastY - place.y);
  start.lastX = place.x;
  start.lastY = place.y;
}

function onPointerDown(app, event) {
  const place = pointerPlace(app, event);
  app.pointers.set(event.pointerId, place);
  app.canvas.setPointerCapture(event.pointerId);
  app.start = Object.assign({ moved: false }, place);
  app.pinch = null;
  if (app.pointers.size === 2) pinch(app); // remembers where the fingers are
}

function onPointerMove(app, event) {
  const place = pointerPlace(app, event);
  if (!app.pointers.has(event.pointerId)) {
    hoverAt(app, event);
    return;
  }
  app.pointers.set(event.pointerId, place);
  if (app.pointers.size >= 2) {
    app.start.moved = true;
    pinch(app);
  } else {
    drag(app, place);
  }
}

function onPointerUp(app, event) {
  const known = app.pointers.delete(event.pointerId);
  app.pinch = null;
  app.canvas.classList.remove('dragging');
  if (known && app.start && !app.start.moved && event.type === 'pointerup') clickAt(app, event);
}

function onWheel(app, event) {
  const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? app.height : 1;
  const { x } = pointerPlace(app, event);
  event.preventDefault();
  if (event.altKey) scrollBy(app, event.deltaY * unit);
  else if (event.shiftKey) pan(app, (event.deltaY || event.deltaX) * unit);
  else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(app, event.deltaX * unit);
  else zoom(app, Math.exp(-event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.002)), Math.max(app.gutter, x));
  hideTooltip();
}

// ---- Keyboard ----

function firstInView(app) {
  for (const row of app.rows) {
    const lane = row.model.lanes[row.rank].compute;
    const i = firstAtLeast(lane.begin, app.from);
    if (row.bottom > app.scroll + AXIS_HEIGHT && i < lane.ids.length && lane.begin[i] <= app.to) {
      return { modelIndex: row.modelIndex, id: lane.ids[i] };
    }
  }
  return null;
}

function laneOf(model, id) {
  const lanes = model.lanes[model.picture.events.rank[id]];
  const op = model.picture.events.op[id];
  if (isCompute(op)) return lanes.compute;
  return isSend(op) ? lanes.sends : isReceive(op) ? lanes.receives : lanes.shards;
}

function moveAlong(app, step) {
  const { modelIndex, id } = app.focus;
  const lane = laneOf(app.models[modelIndex], id);
  const i = lane.ids.indexOf(id) + step;
  if (i >= 0 && i < lane.ids.length) focusOn(app, modelIndex, lane.ids[i]);
}

// To the next rank up or down, where it is at the same time.
function moveAcross(app, step) {
  const { modelIndex, id } = app.focus;
  const { events } = app.models[modelIndex].picture;
  const from = app.rows.indexOf(rowOf(app, modelIndex, events.rank[id]));
  for (let r = from + step; r >= 0 && r < app.rows.length; r += step) {
    const row = app.rows[r];
    const lane = row.model.lanes[row.rank].compute;
    if (lane.ids.length > 0) {
      const i = Math.max(0, firstAbove(lane.begin, events.begin[id]) - 1);
      focusOn(app, row.modelIndex, lane.ids[i]);
      return;
    }
  }
}

function onArrow(app, event) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const [along, across] = steps[event.key];
  if (app.focus && !event.shiftKey) {
    if (along !== 0) moveAlong(app, along); else moveAcross(app, across);
  } else {
    pan(app, along * PAN_STEP);
    scrollBy(app, across * PAN_STEP);
  }
}

function onEnter(app) {
  if (app.focus) {
    select(app, app.focus.modelIndex, app.focus.id);
    return;
  }
  const place = firstInView(app);
  if (place) focusOn(app, place.modelIndex, place.id);
}

function onEscape(app) {
  hideTooltip();
  if (app.selected) {
    select(app, 0, NONE);
  } else if (app.showPath) {
    togglePath(app);
  } else {
    app.focus = null;
    redrawOverlay(app);
  }
}

// Keys that belong to the timeline, when it has the keyboard.
function onCanvasKey(app, event) {
  const handlers = {
    ArrowLeft: onArrow, ArrowRight: onArrow, ArrowUp: onArrow, ArrowDown: onArrow,
    Enter: onEnter, ' ': onEnter, Escape: onEscape, Home: fit,
    PageUp: () => scrollBy(app, -app.height * 0.8), PageDown: () => scrollBy(app, app.height * 0.8),
  };
  const handler = handlers[event.key];
  if (!handler || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation();
  handler(app, event);
}

const PAGE_KEYS = {
  '+': (app) => zoom(app, 1.5), '=': (app) => zoom(app, 1.5), '-': (app) => zoom(app, 1 / 1.5),
  0: fit, '[': (app) => shiftDensity(app, 1), ']': (app) => shiftDensity(app, -1),
  c: (app) => toggleColour(app), m: (app) => toggle(app, 'showMemory', 'memory'),
  x: (app) => toggle(app, 'showTransfers', 'transfers'), p: (app) => togglePath(app), t: (app) => setTheme(app, !app.dark),
  o: () => byId('load').click(), '/': () => byId('search').focus(), '?': () => showHelp(),
  Home: fit, Escape: onEscape,
};

// Keys that work everywhere but where one writes.
function onPageKey(app, event) {
  const writing = event.target instanceof HTMLInputElement && event.target.type !== 'file';
  const handler = PAGE_KEYS[event.key];
  if (!handler || writing || byId('help').open || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  handler(app);
}

function showHelp() {
  byId('help').showModal();
}

// ---- Buttons ----

function toggle(app, field, button) {
  app[field] = !app[field];
  byId(button).setAttribute('aria-pressed', String(app[field]));
  showLegend(app);
  resize(app);
}

function togglePath(app) {
  app.selected = null;
  toggle(app, 'showPath', 'path');
  showSelection(app);
}

function toggleColour(app) {
  app.colourBy = app.colourBy === 'op' ? 'stage' : 'op';
  byId('colour').textContent = `Colour: ${app.colourBy}`;
  showLegend(app);
  redraw(app);
}

function shiftDensity(app, by) {
  app.densityShift = Math.min(DENSITIES.length, Math.max(-DENSITIES.length, app.densityShift + by));
  resize(app);
}

function setTheme(app, dark) {
  const theme = app.palette[dark ? 'dark' : 'light'];
  const style = document.documentElement.style;
  app.dark = dark;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  style.setProperty('--background', theme.background);
  style.setProperty('--ink', theme.ink);
  style.setProperty('--ink-faint', theme.inkFaint);
  style.setProperty('--rule', theme.rule);
  style.setProperty('--lane', theme.ops[0]);
  byId('theme').textContent = dark ? 'Light' : 'Dark';
  showLegend(app);
  showSummary(app);
  redraw(app);
}

// ---- Search ----

// The action in the first schedule that has it; asked again, in the next one.
function search(app, text) {
  const count = app.models.length;
  const current = app.focus && text.trim() === app.lastSearch ? app.focus.modelIndex : -1;
  for (let k = 1; k <= count; k++) {
    const modelIndex = (current + k + count) % count;
    const id = findAction(app.models[modelIndex], text);
    if (id !== NONE) {
      app.lastSearch = text.trim();
      goTo(app, modelIndex, id);
      return true;
    }
  }
  return false;
}

function onSearch(app, event) {
  const field = byId('search');
  event.preventDefault();
  const found = field.value.trim() === '' || search(app, field.value);
  field.classList.toggle('nothing-found', !found);
  say(found ? '' : `no ${shorten(field.value.trim(), 30)} here; actions are written 2F0, 3B1, 0SEND_F4`);
}

// ---- Files ----

function addModels(app, data) {
  data.pictures.forEach((picture) => app.models.push(buildModel(picture)));
  app.opsShown = opsShown(app);
  const units = new Set(app.models.map((model) => model.picture.unit));
  modelsChanged(app);
  fit(app);
  return units.size > 1 ? `; units differ: ${Array.from(units).map((unit) => unit || 'none').join(', ')}` : '';
}

function removeModel(app, index) {
  app.models.splice(index, 1);
  app.selected = app.focus = app.hover = null;
  app.opsShown = opsShown(app);
  modelsChanged(app);
  fit(app);
}

function modelsChanged(app) {
  showCards(app);
  showLegend(app);
  showSummary(app);
  showSelection(app);
  resize(app);
}

function readFile(app, file) {
  if (file.size > FILE_MAX) {
    say(`${file.name} is too large for a Weft page`);
    return;
  }
  const reader = new FileReader();
  reader.onerror = () => say(`${file.name} could not be read`);
  reader.onload = () => {
    try {
      const note = addModels(app, decodeData(dataInside(reader.result)));
      say(`${file.name} is shown below${note}`);
    } catch (error) {
      say(`${file.name} is not a Weft timeline: ${error.message}`);
    }
  };
  reader.readAsText(file);
}

function listenForFiles(app) {
  const load = byId('load');
  load.addEventListener('change', () => {
    Array.from(load.files).forEach((file) => readFile(app, file));
    load.value = '';
  });
  window.addEventListener('dragover', (event) => {
    event.preventDefault();
    byId('drop').hidden = false;
  });
  window.addEventListener('dragleave', (event) => {
    if (event.relatedTarget === null) byId('drop').hidden = true;
  });
  window.addEventListener('drop', (event) => {
    event.preventDefault();
    byId('drop').hidden = true;
    Array.from(event.dataTransfer.files).forEach((file) => readFile(app, file));
  });
}

function listen(app) {
  const { canvas } = app;
  canvas.addEventListener('pointerdown', (event) => onPointerDown(app, event));
  canvas.addEventListener('pointermove', (event) => onPointerMove(app, event));
  canvas.addEventListener('pointerup', (event) => onPointerUp(app, event));
  canvas.addEventListener('pointercancel', (event) => onPointerUp(app, event));
  canvas.addEventListener('pointerleave', () => leave(app));
  canvas.addEventListener('wheel', (event) => onWheel(app, event), { passive: false });
  canvas.addEventListener('keydown', (event) => onCanvasKey(app, event));
  canvas.addEventListener('blur', hideTooltip);
  document.addEventListener('keydown', (event) => onPageKey(app, event));
  app.scroller.addEventListener('scroll', () => redraw(app));
  window.addEventListener('resize', () => resize(app));
  byId('search-form').addEventListener('submit', (event) => onSearch(app, event));
  byId('search').addEventListener('keydown', (event) => { if (event.key === 'Escape') canvas.focus(); });
  const clicks = { 'zoom-in': () => zoom(app, 1.5), 'zoom-out': () => zoom(app, 1 / 1.5), fit: () => fit(app),
    'rows-more': () => shiftDensity(app, -1), 'rows-less': () => shiftDensity(app, 1),
    colour: () => toggleColour(app), path: () => togglePath(app), theme: () => setTheme(app, !app.dark), 'help-button': showHelp,
    memory: () => toggle(app, 'showMemory', 'memory'), transfers: () => toggle(app, 'showTransfers', 'transfers') };
  Object.keys(clicks).forEach((id) => byId(id).addEventListener('click', clicks[id]));
  listenForFiles(app);
}
