// Keys, and the search.

const PAN_STEP = 80;

// ---- Keys ----

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
  if (app.selected || app.gap) {
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
