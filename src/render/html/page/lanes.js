// What is drawn on the strips of colour (coverage.js) where there is room: labels, the
// lines between events, the stripes of idle time.

const LABEL_LEAST = 7; // pixels; smaller is not read
const SEAM_LEAST = 5; // wide, for a line where an event begins
const STRIPES_LEAST = 4;

// The full action, else the microbatch, else the microbatch in small print. There must
// be room for the widest of all, so that of equal events all have a label or none.
function drawLabel(app, model, id, x, y, width, height, ink) {
  const context = app.context;
  const { op, microbatch } = model.picture.events;
  const size = Math.min(app.density.font, height - 2);
  const shard = isShard(op[id]);
  const digits = String(model.picture.microbatches - 1).length;
  const widest = String(model.picture.stages - 1).length + OPS[op[id]].text.length + (shard ? 0 : digits);
  const fits = widest * size * 0.62 <= width - 4;
  const fitted = fits ? size : Math.min(size, (width - 1) / ((shard ? widest : digits) * 0.62));
  if (fitted < LABEL_LEAST) return;
  context.font = `${fitted}px ui-monospace, "DejaVu Sans Mono", monospace`;
  context.fillStyle = ink;
  context.fillText(fits || shard ? labelOf(model, id) : String(microbatch[id]), x + width / 2, y + height / 2 + 0.5);
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
  if (!app.bare && right - left >= 6) drawLabel(app, model, id, left, y, right - left - gap, height, paints.inks[paint]);
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
    if (!app.bare) drawLabel(app, model, id, left, y, right - left, height, paints.inks[paintIndex(paints, events, id)]);
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
