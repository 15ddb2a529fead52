// The lanes of a rank: its actions, its transfers, its idle time. What is narrower
// than a pixel is drawn as one: a lane costs pixels, not events.

const LABEL_LEAST = 7; // pixels; smaller is not read

// The full action, else the microbatch, else the microbatch in small print.
function drawLabel(app, model, id, x, y, width, height, ink) {
  const context = app.context;
  const { op, microbatch } = model.picture.events;
  const size = Math.min(app.density.font, height - 2);
  const full = labelOf(model, id);
  const short = isShard(op[id]) ? full : String(microbatch[id]);
  const fits = full.length * size * 0.62 <= width - 4;
  const text = fits ? full : short;
  const fitted = fits ? size : Math.min(size, (width - 1) / (short.length * 0.62));
  if (fitted < LABEL_LEAST) return;
  context.font = `${fitted}px ui-monospace, "DejaVu Sans Mono", monospace`;
  context.fillStyle = ink;
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

function drawCell(app, model, paints, id, box, x, width) {
  const context = app.context;
  const paint = paintIndex(paints, model.picture.events, id);
  const part = model.part[id];
  const height = part === 0 ? box.height : box.height / (part >> 4);
  const y = part === 0 ? box.y : box.y + height * (part & 15);
  const left = Math.max(x, app.gutter - 2);
  const right = Math.min(x + width, app.width + 2);
  const gap = width > 5 ? 1 : width > 2.5 ? 0.5 : 0;
  context.fillStyle = paints.texts[paint];
  context.fillRect(left, y, right - left - gap, height - (part === 0 ? 0 : 0.5));
  if (!app.bare && right - left >= 6) drawLabel(app, model, id, left, y, right - left - gap, height, paints.inks[paint]);
}

// The mean colour of some of the events from..to, with 4 bits to a channel, so
// that neighbours are often equal and drawn as one.
function mixedColour(paints, events, lane, from, to) {
  const step = Math.max(1, (to - from) >> 2);
  let red = 0;
  let green = 0;
  let blue = 0;
  let count = 0;
  for (let i = from; i < to; i += step) {
    const value = paints.values[paintIndex(paints, events, lane.ids[i])];
    red += value >> 16;
    green += (value >> 8) & 255;
    blue += value & 255;
    count += 16;
  }
  return (Math.round(red / count) << 8) + (Math.round(green / count) << 4) + Math.round(blue / count);
}

const MIXED_MAX = 4096;

function mixedText(app, mixed) {
  if (!app.mixedTexts[mixed]) {
    const channel = (shift) => Math.min(255, ((mixed >> shift) & 15) * 16);
    app.mixedTexts[mixed] = `rgb(${channel(8)},${channel(4)},${channel(0)})`;
  }
  return app.mixedTexts[mixed];
}

// Columns of pixels that look the same, not yet drawn.
function flushColumns(app, run, box) {
  if (run.width > 0) {
    app.context.globalAlpha = app.alpha * ((run.look >> 12) / 8);
    app.context.fillStyle = mixedText(app, run.look & (MIXED_MAX - 1));
    app.context.fillRect(run.x, box.y, run.width, box.height);
    app.context.globalAlpha = app.alpha;
  }
  run.width = 0;
}

// Events that begin in one pixel: their mean colour, as strong as they fill it.
function addColumn(app, run, box, x, grain, look) {
  if (run.width > 0 && run.look === look && run.x + run.width === x) {
    run.width += grain;
    return;
  }
  flushColumns(app, run, box);
  Object.assign(run, { x, width: grain, look });
}

function drawLane(app, model, lane, box) {
  const { events } = model.picture;
  const paints = paintsOf(app, model);
  const scale = pixelsPerUnit(app);
  const grain = box.height < 4 ? 3 : 1; // a thin lane shows no detail: coarser, and faster
  const run = { x: 0, width: 0, look: 0 };
  let i = firstAbove(lane.endMax, app.from - 1 / scale);
  while (i < lane.ids.length && lane.begin[i] <= app.to) {
    const id = lane.ids[i];
    const x = app.gutter + (lane.begin[i] - app.from) * scale;
    const width = (events.end[id] - lane.begin[i]) * scale;
    if (width >= 1.5 * grain) {
      flushColumns(app, run, box);
      drawCell(app, model, paints, id, box, x, width);
      i++;
    } else {
      const column = Math.floor(x / grain) * grain;
      const next = Math.max(i + 1, firstAbove(lane.begin, timeAt(app, column + grain), i));
      const filled = Math.min(1, ((lane.busy[next] - lane.busy[i]) * scale) / grain);
      const look = (Math.max(3, Math.round(filled * 8)) << 12) | mixedColour(paints, events, lane, i, next);
      if (column + grain > app.gutter) addColumn(app, run, box, column, grain, look);
      i = next;
    }
  }
  flushColumns(app, run, box);
}

function drawIdle(app, row) {
  const context = app.context;
  const idle = row.model.idle[row.rank];
  let drawn = -Infinity;
  for (let i = firstAbove(idle.end, app.from); i < idle.stretches.length && idle.begin[i] < app.to; i++) {
    const x = Math.max(app.gutter, xOf(app, idle.begin[i]));
    const right = Math.min(app.width - PAD_RIGHT, xOf(app, idle.end[i]));
    if (right <= drawn) continue;
    context.fillStyle = stripes(app, idle.stretches[i].cause);
    context.fillRect(x, row.compute.y, Math.max(0.5, right - x), row.compute.height);
    drawn = Math.floor(right);
  }
}
