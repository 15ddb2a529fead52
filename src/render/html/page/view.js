// Where things are: the window in time, the rows of all schedules one below the
// other, and the way from pixels to both and back.

const AXIS_HEIGHT = 26;
const TITLE_HEIGHT = 26; // of a schedule's name, where there are several
const PAD_RIGHT = 14;
// Heights of a rank's lanes, each with the space above it, from few ranks to many.
const DENSITIES = [
  { compute: 120, shards: 16, transfers: 28, memory: 104, gap: 40, font: 15 },
  { compute: 48, shards: 8, transfers: 14, memory: 42, gap: 18, font: 13 },
  { compute: 24, shards: 5, transfers: 8, memory: 17, gap: 8, font: 11 },
  { compute: 11, shards: 3, transfers: 5, memory: 9, gap: 3, font: 9 },
  { compute: 6, shards: 2, transfers: 3, memory: 5, gap: 2, font: 8 },
  { compute: 5, shards: 0, transfers: 0, memory: 0, gap: 1, font: 8 },
  { compute: 4, shards: 0, transfers: 0, memory: 0, gap: 1, font: 8 },
];
const DENSITY_STEP = 1.35; // of the height of rows, for each press of a key

const titleHeight = (app) => (app.models.length > 1 ? TITLE_HEIGHT : 10);
const has = (app, what) => app.models.some((model) => model[what]);

function rowHeight(app, density) {
  let height = density.compute + density.gap;
  if (has(app, 'hasShards')) height += density.shards;
  if (app.showTransfers && has(app, 'hasTransfers')) height += density.transfers;
  if (app.showMemory && has(app, 'memoryPeak')) height += density.memory;
  return height;
}

const LANES_LEAST = { shards: 2, transfers: 3, memory: 4 }; // pixels; a lower one is left out

// Rows of this height, or of the nearest there is: whole pixels between two densities.
function densityOf(app, height) {
  const next = DENSITIES.findIndex((density) => rowHeight(app, density) <= height);
  if (next === 0) return DENSITIES[0];
  if (next < 0) return DENSITIES[DENSITIES.length - 1];
  const [higher, lower] = [DENSITIES[next - 1], DENSITIES[next]];
  const least = rowHeight(app, lower);
  const share = (height - least) / (rowHeight(app, higher) - least);
  const between = (name) => Math.floor(lower[name] + share * (higher[name] - lower[name]) + 1e-9);
  const density = Object.fromEntries(Object.keys(lower).map((name) =>
    [name, between(name) < (LANES_LEAST[name] || 0) ? 0 : between(name)]));
  density.compute += Math.floor(height - rowHeight(app, density) + 1e-9); // what is left
  return density;
}

// All ranks at once, as high as there is room for, unless other rows are asked for.
function chooseDensity(app) {
  const ranks = Math.max(1, app.models.reduce((sum, model) => sum + model.picture.ranks, 0));
  const room = app.height - AXIS_HEIGHT - app.models.length * titleHeight(app);
  const highest = rowHeight(app, DENSITIES[0]);
  const least = rowHeight(app, DENSITIES[DENSITIES.length - 1]);
  const fitting = Math.min(highest, Math.max(least, room / ranks));
  return densityOf(app, Math.min(highest, fitting * DENSITY_STEP ** -app.densityShift));
}

function layOutRow(app, density, modelIndex, rank, y) {
  const model = app.models[modelIndex];
  const row = { modelIndex, model, rank, y, compute: { y, height: density.compute } };
  let below = y + density.compute;
  if (has(app, 'hasShards') && density.shards > 0) {
    row.shards = { y: below + 1, height: density.shards - 1 };
    below += density.shards;
  }
  if (app.showTransfers && has(app, 'hasTransfers') && density.transfers > 0) {
    row.transfers = { y: below + 1, height: density.transfers - 1 };
    below += density.transfers;
  }
  if (app.showMemory && has(app, 'memoryPeak') && density.memory > 0) {
    row.memory = { y: below + 2, height: density.memory - 2 };
    below += density.memory;
  }
  row.bottom = below;
  return row;
}

function layOut(app) {
  const density = chooseDensity(app);
  app.density = density;
  app.rows = [];
  app.titles = [];
  let y = AXIS_HEIGHT;
  app.models.forEach((model, modelIndex) => {
    app.titles.push({ model, modelIndex, y });
    y += titleHeight(app);
    for (let rank = 0; rank < model.picture.ranks; rank++) {
      const row = layOutRow(app, density, modelIndex, rank, y);
      app.rows.push(row);
      y = row.bottom + density.gap;
    }
  });
  app.contentHeight = y;
  app.gutter = Math.round((density.compute >= 24 ? 112 : 92) * app.ratio) / app.ratio;
  app.rowTops = Float64Array.from(app.rows, (row) => row.y);
}

const plotWidth = (app) => Math.max(50, app.width - app.gutter - PAD_RIGHT);
const pixelsPerUnit = (app) => plotWidth(app) / (app.to - app.from);
const xOf = (app, time) => app.gutter + (time - app.from) * pixelsPerUnit(app);
const timeAt = (app, x) => app.from + (x - app.gutter) / pixelsPerUnit(app);

function rowOf(app, modelIndex, rank) {
  const before = app.models.slice(0, modelIndex).reduce((sum, model) => sum + model.picture.ranks, 0);
  return app.rows[before + rank];
}

function rowAt(app, y) {
  const inContent = y + app.scroll;
  const row = app.rows[firstAbove(app.rowTops, inContent) - 1];
  return row && inContent < row.bottom + app.density.gap / 2 && y > AXIS_HEIGHT ? row : null;
}

// ---- The window in time ----

function extentOf(app) {
  const first = Math.min(...app.models.map((model) => model.first));
  const last = Math.max(...app.models.map((model) => model.last));
  return { first, last, length: last - first };
}

function setWindow(app, from, to) {
  const { first, last, length } = extentOf(app);
  const width = Math.min(length * 1.1, Math.max(length * 1e-7, to - from));
  const middle = Math.min(last, Math.max(first, (from + to) / 2));
  app.from = middle - width / 2;
  app.to = middle + width / 2;
  hideTooltip(); // it belongs to a place that has moved
  redraw(app);
}

function fit(app) {
  const { first, last } = extentOf(app);
  if (app.densityShift !== 0) {
    app.densityShift = 0;
    resize(app);
  }
  app.from = first;
  app.to = last;
  hideTooltip();
  redraw(app);
}

function zoom(app, factor, x) {
  const at = timeAt(app, x === undefined ? app.gutter + plotWidth(app) / 2 : x);
  setWindow(app, at - (at - app.from) / factor, at + (app.to - at) / factor);
}

function pan(app, pixels) {
  const time = pixels / pixelsPerUnit(app);
  setWindow(app, app.from + time, app.to + time);
}

function scrollBy(app, pixels) {
  app.scroller.scrollTop += pixels;
}

// Brings an event into view, wide enough to read.
function reveal(app, modelIndex, id) {
  const { events } = app.models[modelIndex].picture;
  const length = events.end[id] - events.begin[id];
  const middle = (events.begin[id] + events.end[id]) / 2;
  const width = app.to - app.from;
  const readable = length > 0 ? Math.min(width, (length * plotWidth(app)) / 40) : width;
  const inside = events.begin[id] >= app.from && events.end[id] <= app.to;
  if (!inside || readable < width) {
    const { first, last } = extentOf(app); // nothing is to be seen before and after
    const from = Math.max(first, Math.min(middle - readable / 2, last - readable));
    setWindow(app, from, from + readable);
  }
  const row = rowOf(app, modelIndex, events.rank[id]);
  if (row.y - AXIS_HEIGHT - TITLE_HEIGHT < app.scroll || row.bottom > app.scroll + app.height) {
    app.scroller.scrollTop = row.y - app.height / 2;
  }
  redraw(app);
}

// ---- What is under the pointer ----

function eventInLane(app, model, lane, x, slack) {
  const { events } = model.picture;
  const time = timeAt(app, x);
  const reach = slack / pixelsPerUnit(app);
  let best = NONE;
  let bestDistance = Infinity;
  for (let i = firstAtLeast(lane.endMax, time - reach); i < lane.ids.length && lane.begin[i] <= time + reach; i++) {
    const id = lane.ids[i];
    const distance = Math.max(events.begin[id] - time, time - events.end[id], 0);
    if (distance <= bestDistance && distance <= reach) { // of several the one drawn last
      best = id;
      bestDistance = distance;
    }
  }
  return best;
}

const isIn = (box, y) => box !== undefined && y >= box.y && y < box.y + box.height + 1;

function partUnder(app, row, id, y) {
  const members = cellOf(row.model, id);
  const share = (y - row.compute.y) / row.compute.height;
  return members[Math.min(members.length - 1, Math.max(0, Math.floor(share * members.length)))];
}

function computeUnder(app, row, x, y) {
  const id = eventInLane(app, row.model, row.model.lanes[row.rank].compute, x, 0);
  if (id !== NONE) return { kind: 'event', row, id: partUnder(app, row, id, y) };
  const idle = row.model.idle[row.rank];
  const stretch = idle.stretches[firstAbove(idle.end, timeAt(app, x))];
  return stretch && stretch.begin <= timeAt(app, x) ? { kind: 'idle', row, stretch } : null;
}

function laneUnder(app, row, lane, x) {
  const id = eventInLane(app, row.model, lane, x, 3);
  return id === NONE ? null : { kind: 'event', row, id };
}

function under(app, x, y) {
  const row = x >= app.gutter ? rowAt(app, y) : null;
  if (row === null) return null;
  const inContent = y + app.scroll;
  const lanes = row.model.lanes[row.rank];
  if (isIn(row.compute, inContent)) return computeUnder(app, row, x, inContent);
  if (isIn(row.shards, inContent)) return laneUnder(app, row, lanes.shards, x);
  if (isIn(row.transfers, inContent)) {
    const sends = inContent < row.transfers.y + row.transfers.height / 2;
    return laneUnder(app, row, sends ? lanes.sends : lanes.receives, x);
  }
  return isIn(row.memory, inContent) ? { kind: 'memory', row, time: timeAt(app, x) } : null;
}
