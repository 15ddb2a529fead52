// What is drawn on the strips of colour (coverage.js) where there is room: labels, the
// lines between events, the stripes of idle time.

const LABEL_LEAST = 7; // pixels; smaller is not read
const LABEL_RATIO = 0.62; // of a character's width to its height
const SEAM_LEAST = 5; // wide, for a line where an event begins
const STRIPES_LEAST = 4;

const stageDigits = (model) => String(model.picture.stages - 1).length;
const microbatchDigits = (model) => String(model.picture.microbatches - 1).length;

// One form and one size of labels for all actions of a frame: the whole action, 2F0, where that
// fits nine in ten, else the microbatch. There must be room for the widest of all.
function chooseLabels(app) {
  const scale = pixelsPerUnit(app);
  const most = (count, room) => Math.min(...app.models.map((model) => (model.usual * scale - room) / (count(model) * LABEL_RATIO)));
  const lines = app.colourBy === 'op' && app.models.some((model) => model.chunks > 1) ? 0.72 : 1;
  const height = Math.min(...app.models.map((model) => (app.density.compute / model.slices) * lines));
  const size = Math.min(app.density.font, height - 2);
  const count = (model) => stageDigits(model) + 1 + microbatchDigits(model);
  app.wholeLabels = most(count, 4) >= size;
  app.labelSize = app.wholeLabels ? size : Math.min(size, Math.max(LABEL_LEAST, most(microbatchDigits, 2)));
}

// Shards have another form, for which there is seldom room.
function drawLabel(app, model, id, x, y, width, height, ink) {
  const context = app.context;
  const { op, microbatch } = model.picture.events;
  const shard = isShard(op[id]);
  const text = shard || app.wholeLabels || !isCompute(op[id]) ? labelOf(model, id) : String(microbatch[id]);
  const widest = stageDigits(model) + OPS[op[id]].text.length + microbatchDigits(model);
  const room = isCompute(op[id]) ? (app.wholeLabels ? widest : microbatchDigits(model)) : text.length;
  const size = isCompute(op[id]) ? app.labelSize : Math.min(app.density.font, height - 2);
  if (size < LABEL_LEAST || size > height || room * size * LABEL_RATIO > width - 1) return;
  context.font = `${size}px ui-monospace, "DejaVu Sans Mono", monospace`;
  context.fillStyle = ink;
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

// As render/svg/svg_lane.c; returns the height that is left above the lines.
function drawLines(app, paints, paint, count, x, y, width, height) {
  const pitch = height < 24 ? height / 8 : Math.max(3, height / 14);
  app.context.fillStyle = paints.lines[paint];
  for (let k = 1; k <= count; k++) app.context.fillRect(x, y + height - k * pitch, width, Math.max(1 / app.ratio, pitch / 2));
  return height - count * pitch;
}

// The parts of an overlap share the height.
function boxOfPart(model, id, box) {
  const part = model.part[id];
  const height = part === 0 ? box.height : box.height / (part >> 4);
  return { y: part === 0 ? box.y : box.y + height * (part & 15), height };
}

// An event by itself: one of a chain, on top of the pale rest.
function drawCell(app, model, paints, id, box, x, width) {
  const context = app.context;
  const paint = paintIndex(paints, model.picture.events, id);
  const { y, height } = boxOfPart(model, id, box);
  const left = Math.max(x, app.gutter - 2);
  const right = Math.min(x + width, app.width + 2);
  const gap = width > 5 ? 1 : width > 2.5 ? 0.5 : 0;
  context.fillStyle = paints.texts[paint];
  context.fillRect(left, y, right - left - gap, height);
  if (right - left < SEAM_LEAST) return;
  const above = drawLines(app, paints, paint, lineCount(paints, model.picture.events, id), left, y, right - left - gap, height);
  if (!app.bare) drawLabel(app, model, id, left, y, right - left - gap, above, paints.inks[paint]);
}

// What can be read in the events of a lane that are wide enough, and where they
// begin. The line there is away from the background, so that it is no gap.
function drawDetails(app, model, lane, box) {
  const { context } = app;
  const { events } = model.picture;
  const paints = paintsOf(app, model);
  const scale = pixelsPerUnit(app);
  if (lane.longest * scale < SEAM_LEAST) return;
  for (let i = firstAbove(lane.endMax, app.from); i < lane.ids.length && lane.begin[i] <= app.to; i++) {
    const id = lane.ids[i];
    const width = (events.end[id] - lane.begin[i]) * scale;
    if (width < SEAM_LEAST) continue;
    const { y, height } = boxOfPart(model, id, box);
    const x = app.gutter + (lane.begin[i] - app.from) * scale;
    context.globalAlpha = app.alpha * 0.3 * Math.min(1, (width - SEAM_LEAST) / 10);
    context.fillStyle = themeOf(app).highlight;
    context.fillRect(Math.floor(x * app.ratio) / app.ratio, y, 1 / app.ratio, height);
    context.globalAlpha = app.alpha;
    const left = Math.max(x, app.gutter);
    const right = Math.min(x + width, app.width - PAD_RIGHT);
    const paint = paintIndex(paints, events, id);
    const above = drawLines(app, paints, paint, lineCount(paints, events, id), left, y, right - left, height);
    if (!app.bare) drawLabel(app, model, id, left, y, right - left, above, paints.inks[paint]);
  }
}

// Transfers that take no time have no share of any pixel: a mark each, where there
// is room for that.
function drawInstants(app, model, lane, box) {
  const { context } = app;
  const { events } = model.picture;
  const paints = paintsOf(app, model);
  const first = firstAtLeast(lane.begin, app.from);
  const end = firstAbove(lane.begin, app.to);
  if ((end - first) * 4 > plotWidth(app)) return;
  for (let i = first; i < end; i++) {
    if (events.end[lane.ids[i]] > lane.begin[i]) continue;
    context.fillStyle = paints.texts[paintIndex(paints, events, lane.ids[i])];
    context.fillRect(Math.floor(xOf(app, lane.begin[i]) * app.ratio) / app.ratio, box.y, 1 / app.ratio, box.height);
  }
}

// Stripes over the idle stretches that are wide enough for them: their whole pixels,
// the others are in the strip.
function drawStripes(app, row) {
  const { context } = app;
  const idle = row.model.idle[row.rank];
  if (idle.longest * pixelsPerUnit(app) < STRIPES_LEAST) return;
  for (let i = firstAbove(idle.end, app.from); i < idle.stretches.length && idle.begin[i] < app.to; i++) {
    const x = Math.max(app.gutter, xOf(app, idle.begin[i]));
    const right = Math.min(app.width - PAD_RIGHT, xOf(app, idle.end[i]));
    if (right - x < STRIPES_LEAST) continue;
    const left = Math.ceil(x * app.ratio - 1e-6) / app.ratio;
    context.fillStyle = stripes(app, idle.stretches[i].cause);
    context.fillRect(left, row.compute.y, Math.floor(right * app.ratio + 1e-6) / app.ratio - left, row.compute.height);
  }
}
