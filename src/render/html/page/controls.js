// The event in focus, the selection, the buttons; and the listeners.

function select(app, modelIndex, id, keepsGap) {
  if (!keepsGap) app.gap = null;
  if (id !== NONE && app.showPath) { // one of both is lit
    app.showPath = false;
    byId('path').setAttribute('aria-pressed', 'false');
  }
  app.selected = id === NONE ? null : { modelIndex, id, chain: chainOf(app.models[modelIndex], id) };
  showSelection(app);
  redraw(app);
}

function selectGap(app, modelIndex, rank, stretch) {
  app.gap = { modelIndex, rank, stretch };
  select(app, 0, NONE, true);
}

function focusOn(app, modelIndex, id) {
  app.focus = { modelIndex, id };
  reveal(app, modelIndex, id);
  showFocusTooltip(app);
}

// The tooltip of the event in focus, next to it, for those without a mouse. It
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
  const before = app.density;
  app.densityShift += by;
  resize(app);
  if (app.density.compute === before.compute && app.density.gap === before.gap) app.densityShift -= by; // no further
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
