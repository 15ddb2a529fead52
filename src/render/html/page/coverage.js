// A lane's colours as sums over time. A pixel shows the mean colour of its share of
// time: the difference of two sums. So a frame costs pixels, not events, however many
// of them share a pixel, and no gap shows that is not there.

// What is drawn over the whole height of a lane, or, where it has overlaps, over one
// of its slices: {begin, end, paint, weight} of each, by begin. A weight below 1 is
// the share of the slice's height.
function spansOf(model, lane, idle, slice, slices, paints) {
  const { events } = model.picture;
  const spans = [];
  for (const id of lane.ids) {
    const part = model.part[id];
    const parts = part === 0 ? 1 : part >> 4;
    const top = ((part & 15) * slices) / parts - slice;
    const weight = Math.min(1, top + slices / parts) - Math.max(0, top);
    if (weight > 0 && events.end[id] > events.begin[id]) {
      spans.push({ begin: events.begin[id], end: events.end[id], weight,
        value: paints.values[paintIndex(paints, events, id)] });
    }
  }
  if (!idle) return spans;
  for (const stretch of idle.stretches) {
    spans.push({ begin: stretch.begin, end: stretch.end, weight: 1, value: paints.idle[stretch.cause] });
  }
  return spans.sort((a, b) => a.begin - b.begin);
}

// at[k]: the times at which something begins or ends. sums[4k..]: red, green, blue and
// covered height, each summed over the time up to there. Where several events share a
// time each has the same part of it.
function sumOverTime(spans) {
  const byEnd = spans.slice().sort((a, b) => a.end - b.end);
  const at = new Float64Array(2 * spans.length);
  const sums = new Float64Array(8 * spans.length);
  const rate = [0, 0, 0, 0];
  let count = 0;
  let begun = 0;
  for (let ended = 0; ended < spans.length;) {
    const begins = begun < spans.length && spans[begun].begin <= byEnd[ended].end;
    const time = begins ? spans[begun].begin : byEnd[ended].end;
    if (count === 0 || time > at[count - 1]) {
      const last = count - 1;
      const passed = count === 0 ? 0 : (time - at[last]) / Math.max(1, rate[3]);
      for (let k = 0; k < 4; k++) sums[4 * count + k] = count === 0 ? 0 : sums[4 * last + k] + rate[k] * passed;
      at[count++] = time;
    }
    const span = begins ? spans[begun++] : byEnd[ended++];
    const weight = begins ? span.weight : -span.weight;
    rate[0] += weight * (span.value >> 16);
    rate[1] += weight * ((span.value >> 8) & 255);
    rate[2] += weight * (span.value & 255);
    rate[3] += weight;
    if (begun === ended) rate.fill(0); // no rounding error is carried on
  }
  return { at: at.subarray(0, count), sums: sums.subarray(0, 4 * count) };
}

function coverageOf(model, lane, idle, paints) {
  if (lane.coverageKey !== paints.key) {
    lane.coverageKey = paints.key;
    lane.coverage = Array.from({ length: lane.slices }, (unused, slice) =>
      sumOverTime(spansOf(model, lane, idle, slice, lane.slices, paints)));
  }
  return lane.coverage;
}

// The sums up to `time`, which is not before at[k] and not after at[k + 1].
function sumsUpTo(coverage, k, time, result) {
  const { at, sums } = coverage;
  const share = k >= 0 && k + 1 < at.length ? (time - at[k]) / (at[k + 1] - at[k]) : 0;
  for (let c = 0; c < 4; c++) {
    const here = k >= 0 ? sums[4 * k + c] : 0;
    result[c] = share > 0 ? here + share * (sums[4 * k + 4 + c] - here) : here;
  }
}

// The colour of a pixel that has so much of each, as a word of ImageData.
function pixelOf(sums, before, length) {
  const cover = (sums[3] - before[3]) / length;
  if (!(cover > 1 / 512)) return 0;
  const channel = (c) => Math.min(255, Math.max(0, Math.round((sums[c] - before[c]) / (length * cover))));
  const alpha = Math.min(255, Math.round(255 * cover));
  return ((alpha << 24) | (channel(2) << 16) | (channel(1) << 8) | channel(0)) >>> 0; // low byte first
}

// Fills `pixels`, of which each shows `length` of time, the first from `from` on.
function fillPixels(pixels, coverage, from, length) {
  const { at } = coverage;
  let before = [0, 0, 0, 0];
  let sums = [0, 0, 0, 0];
  let k = firstAbove(at, from) - 1;
  sumsUpTo(coverage, k, from, before);
  for (let column = 0; column < pixels.length; column++) {
    const to = from + (column + 1) * length;
    const inOne = k + 1 >= at.length || at[k + 1] >= to;
    if (!inOne) k = firstAbove(at, to, k + 1) - 1;
    sumsUpTo(coverage, k, to, sums);
    const pixel = pixelOf(sums, before, length);
    pixels[column] = pixel;
    [before, sums] = [sums, before];
    if (!inOne) continue;
    // All that follows until the next change looks the same.
    const next = k + 1 < at.length ? Math.min(pixels.length, Math.floor((at[k + 1] - from) / length)) : pixels.length;
    if (next > column + 1) {
      pixels.fill(pixel, column + 1, next);
      column = next - 1;
      sumsUpTo(coverage, k, from + next * length, before);
    }
  }
}

// ---- The strips of a frame: one row of pixels for each slice of each lane in view ----

function lanesShown(row) {
  const lanes = row.model.lanes[row.rank];
  const shown = [{ row, lane: lanes.compute, box: row.compute, idle: row.model.idle[row.rank] }];
  if (row.shards) shown.push({ row, lane: lanes.shards, box: row.shards });
  if (row.transfers) {
    const half = row.transfers.height / 2;
    shown.push({ row, lane: lanes.sends, box: { y: row.transfers.y, height: half - 0.5 } });
    shown.push({ row, lane: lanes.receives, box: { y: row.transfers.y + half, height: half - 0.5 } });
  }
  return shown;
}

// Device pixels: where a height of the content is on the canvas.
const pixelY = (app, y) => Math.round((y - app.scroll) * app.ratio);

function makeStrips(app, shown) {
  const width = Math.ceil(plotWidth(app) * app.ratio);
  const height = shown.reduce((sum, { lane }) => sum + lane.slices, 0);
  const strips = app.strips;
  if (strips.canvas.width !== width || strips.canvas.height < height) {
    strips.canvas.width = width;
    strips.canvas.height = height;
  }
  const image = new ImageData(width, Math.max(1, height));
  const words = new Uint32Array(image.data.buffer);
  const length = 1 / (pixelsPerUnit(app) * app.ratio);
  let y = 0;
  for (const { row, lane, idle } of shown) {
    for (const coverage of coverageOf(row.model, lane, idle, paintsOf(app, row.model))) {
      fillPixels(words.subarray(y * width, (y + 1) * width), coverage, app.from, length);
      y++;
    }
  }
  strips.context.putImageData(image, 0, 0);
}

function drawStrips(app, shown) {
  const { context, strips } = app;
  const left = Math.round(app.gutter * app.ratio);
  let strip = 0;
  makeStrips(app, shown);
  const { width } = strips.canvas;
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.imageSmoothingEnabled = false;
  for (const { lane, box } of shown) {
    for (let slice = 0; slice < lane.slices; slice++) {
      const top = pixelY(app, box.y + (box.height * slice) / lane.slices);
      const bottom = pixelY(app, box.y + (box.height * (slice + 1)) / lane.slices);
      context.drawImage(strips.canvas, 0, strip++, width, 1, left, top, width, Math.max(1, bottom - top));
    }
  }
  context.restore();
}
