// Mouse and touch.

const DRAG_LEAST = 4;

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
    if (place && place.kind === 'idle') selectGap(app, place.row.modelIndex, place.row.rank, place.stretch);
    else select(app, 0, NONE);
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
