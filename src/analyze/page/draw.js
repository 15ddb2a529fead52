// Drawing. Only rows and events in view are looked at, and what is narrower than
// a pixel is drawn as one: a frame costs pixels, not events.

const themeOf = (app) => app.palette[app.dark ? 'dark' : 'light'];

// ---- Colours ----

function inkOn(colour) {
  const value = parseInt(colour.slice(1), 16);
  const luma = (299 * (value >> 16) + 587 * ((value >> 8) & 255) + 114 * (value & 255)) / 1000;
  return luma >= 140 ? '#000000' : '#ffffff';
}

function stageColour(app, model, stage, op) {
  const colours = model.picture.stageColours[app.dark ? 'dark' : 'light'];
  const shown = colours.length / 24;
  const place = model.picture.stages <= shown ? stage : Math.floor((stage * shown) / model.picture.stages);
  return `#${colours.substr(24 * place + 6 * (op - OP.F), 6)}`;
}

// The colours of a schedule as text, as numbers and with what can be read on
// them: one for each op, or one for each of F, B, I and W of each stage and one
// for each other op.
function makePaints(app, model) {
  const texts = themeOf(app).ops.slice();
  for (let stage = 0; app.colourBy === 'stage' && stage < model.picture.stages; stage++) {
    for (let op = OP.F; op <= OP.W; op++) texts.push(stageColour(app, model, stage, op));
  }
  return { key: `${app.colourBy}${app.dark}`, byStage: app.colourBy === 'stage', texts,
    inks: texts.map(inkOn), values: Uint32Array.from(texts, (text) => parseInt(text.slice(1), 16)) };
}

function paintsOf(app, model) {
  if (!model.paints || model.paints.key !== `${app.colourBy}${app.dark}`) model.paints = makePaints(app, model);
  return model.paints;
}

function paintIndex(paints, events, id) {
  const op = events.op[id];
  return paints.byStage && isCompute(op) ? OP_NAMES.length + 4 * events.stage[id] + op - OP.F : op;
}

function causeColour(app, cause) {
  const { ops } = themeOf(app);
  switch (cause) {
    case CAUSE.FORWARD: return ops[OP.F];
    case CAUSE.GRADIENT: return ops[OP.B];
    case CAUSE.CHANNEL: return app.dark ? '#ff6b6b' : '#b3122a';
    case CAUSE.UNSHARD: return ops[OP.UNSHARD];
    case CAUSE.START: return app.dark ? '#8b949e' : '#8a949e';
    default: return app.dark ? '#57606a' : '#b4bdc7';
  }
}

// Stripes, so that waiting looks unlike work, also in grey.
function stripes(app, cause) {
  const key = `${cause}${app.dark}`;
  if (!app.patterns[key]) {
    const tile = document.createElement('canvas');
    tile.width = tile.height = 8;
    const context = tile.getContext('2d');
    context.fillStyle = themeOf(app).ops[0];
    context.fillRect(0, 0, 8, 8);
    context.strokeStyle = causeColour(app, cause);
    context.globalAlpha = 0.45;
    context.lineWidth = 1.4;
    context.beginPath();
    for (const x of [-8, 0, 8]) {
      context.moveTo(x - 1, 9);
      context.lineTo(x + 9, -1);
    }
    context.stroke();
    app.patterns[key] = app.context.createPattern(tile, 'repeat');
  }
  return app.patterns[key];
}

// ---- Lanes ----

const LABEL_LEAST = 7; // pixels; smaller is not read

// The whole action, else the microbatch, else the microbatch in small print.
function drawLabel(app, model, id, x, y, width, height, ink) {
  const context = app.context;
  const { op, microbatch } = model.picture.events;
  const size = Math.min(app.density.font, height - 2);
  const whole = labelOf(model, id);
  const short = isShard(op[id]) ? whole : String(microbatch[id]);
  const fits = whole.length * size * 0.62 <= width - 4;
  const text = fits ? whole : short;
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

// ---- Memory ----

// The step curve as columns of pixels: the most in each.
function memoryColumns(app, curve, plot) {
  const columns = new Float64Array(plot);
  let i = firstAbove(curve.at, app.from) - 1;
  let size = i >= 0 ? curve.size[i] : 0;
  for (let column = 0; column < plot; column++) {
    const end = timeAt(app, app.gutter + column + 1);
    let most = size;
    while (i + 1 < curve.at.length && curve.at[i + 1] < end) {
      size = curve.size[++i];
      most = Math.max(most, size);
    }
    columns[column] = most;
  }
  return columns;
}

// The mark of the peak stands above the curve, where there is room for that.
const markSize = (height) => (height >= 12 ? 5 : 0);

function drawPeak(app, row, scale) {
  const context = app.context;
  const times = row.model.picture.rankTimes[row.rank];
  const x = xOf(app, times.peakAt);
  if (!(times.peakActivation > 0) || x < app.gutter || x > app.width - PAD_RIGHT) return;
  const y = row.memory.y + row.memory.height - times.peakActivation * scale;
  const size = markSize(row.memory.height) || 3;
  context.fillStyle = themeOf(app).ink;
  context.beginPath();
  context.moveTo(x, y + 1);
  context.lineTo(x - size, y + 1 - size);
  context.lineTo(x + size, y + 1 - size);
  context.fill();
  if (row.memory.height < 13) return;
  const text = formatNumber(times.peakActivation);
  const leftSide = x + 60 > app.width;
  context.font = '10px system-ui, "DejaVu Sans", sans-serif';
  context.textAlign = leftSide ? 'right' : 'left';
  context.lineWidth = 3;
  context.strokeStyle = themeOf(app).background;
  context.strokeText(text, x + (leftSide ? -8 : 8), y);
  context.fillText(text, x + (leftSide ? -8 : 8), y);
  context.textAlign = 'center';
}

function drawMemory(app, row) {
  const context = app.context;
  const { y, height } = row.memory;
  const plot = Math.floor(plotWidth(app));
  const most = Math.max(...app.models.map((model) => model.memoryPeak));
  const scale = (height - markSize(height)) / most;
  const columns = memoryColumns(app, row.model.picture.memory[row.rank], plot);
  const bottom = y + height;
  context.fillStyle = themeOf(app).memory;
  context.globalAlpha = app.alpha * 0.55;
  context.beginPath();
  context.moveTo(app.gutter, bottom);
  for (let column = 0; column < plot; column++) {
    if (column > 0 && columns[column] === columns[column - 1]) continue;
    const from = column === 0 ? 0 : columns[column - 1];
    context.lineTo(app.gutter + column, bottom - from * scale);
    context.lineTo(app.gutter + column, bottom - columns[column] * scale);
  }
  context.lineTo(app.gutter + plot, bottom - columns[plot - 1] * scale);
  context.lineTo(app.gutter + plot, bottom);
  context.fill();
  context.globalAlpha = app.alpha;
  context.fillStyle = themeOf(app).rule;
  context.fillRect(app.gutter, bottom, plot, 0.5);
  drawPeak(app, row, scale);
}

// ---- Axis, names ----

function axisStep(app) {
  const least = ((app.to - app.from) * 90) / plotWidth(app);
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) || least;
}

function eachTick(app, draw) {
  const step = axisStep(app);
  const right = app.width - PAD_RIGHT;
  for (let n = Math.ceil(app.from / step - 1e-9); xOf(app, n * step) <= right + 0.5; n++) draw(n * step, xOf(app, n * step));
}

function drawGrid(app) {
  const context = app.context;
  context.strokeStyle = themeOf(app).rule;
  context.lineWidth = 1;
  context.globalAlpha = 0.6;
  context.beginPath();
  eachTick(app, (time, x) => {
    context.moveTo(Math.round(x) + 0.5, AXIS_HEIGHT);
    context.lineTo(Math.round(x) + 0.5, app.height);
  });
  context.stroke();
  context.globalAlpha = 1;
}

function drawAxis(app) {
  const context = app.context;
  const theme = themeOf(app);
  context.fillStyle = theme.background;
  context.fillRect(0, 0, app.width, AXIS_HEIGHT);
  context.fillStyle = theme.rule;
  context.fillRect(0, AXIS_HEIGHT - 1, app.width, 1);
  context.fillStyle = theme.inkFaint;
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textAlign = 'center';
  eachTick(app, (time, x) => {
    context.fillText(formatNumber(time), Math.min(x, app.width - 24), AXIS_HEIGHT / 2 - 1);
    context.fillRect(Math.round(x), AXIS_HEIGHT - 5, 1, 5);
  });
  context.textAlign = 'left';
  const { unit } = app.models[0].picture;
  const wide = app.gutter >= 100 && unit !== '';
  context.fillText(wide ? `time, ${unit}` : unit || 'time', 12, AXIS_HEIGHT / 2 - 1);
  context.textAlign = 'center';
}

function drawTitle(app, title) {
  const context = app.context;
  const theme = themeOf(app);
  const { picture } = title.model;
  const y = title.y + TITLE_HEIGHT / 2 + 1;
  context.fillStyle = theme.background;
  context.fillRect(0, title.y, app.width, TITLE_HEIGHT - 1);
  if (title.modelIndex > 0) {
    context.fillStyle = theme.rule;
    context.fillRect(0, title.y - 2, app.width, 1);
  }
  context.textAlign = 'left';
  context.font = '600 13px system-ui, "DejaVu Sans", sans-serif';
  context.fillStyle = theme.ink;
  const name = shorten(picture.name, 70);
  context.fillText(name, 12, y);
  const at = 12 + context.measureText(name).width + 14;
  context.font = '12px system-ui, "DejaVu Sans", sans-serif';
  context.fillStyle = theme.inkFaint;
  context.fillText(`${formatTime(picture, picture.makespan)}, ${formatShare(picture.bubbleRatio)} idle`, at, y);
  context.textAlign = 'center';
}

function drawCauses(app, row, x, y, width, height) {
  const context = app.context;
  const times = row.model.picture.rankTimes[row.rank];
  const longest = Math.max(...app.models.map((model) => model.picture.makespan));
  context.fillStyle = themeOf(app).ops[0];
  context.fillRect(x, y, width, height);
  times.idleByCause.forEach((idle, cause) => {
    const share = longest > 0 ? (idle / longest) * width : 0;
    context.fillStyle = causeColour(app, cause);
    context.fillRect(x, y, share, height);
    x += share;
  });
}

function drawGutter(app, row) {
  const context = app.context;
  const theme = themeOf(app);
  const tall = row.compute.height >= 24;
  const middle = row.compute.y + row.compute.height / 2;
  context.fillStyle = theme.background;
  context.fillRect(0, row.y - 1, app.gutter, row.bottom - row.y + 2);
  context.textAlign = 'left';
  context.fillStyle = theme.ink;
  context.font = `${Math.max(9, app.density.font)}px system-ui, "DejaVu Sans", sans-serif`;
  context.fillText(`rank ${row.rank}`, 12, tall ? middle - row.compute.height / 5 : middle);
  if (tall) {
    const times = row.model.picture.rankTimes[row.rank];
    const { makespan } = row.model.picture;
    context.fillStyle = theme.inkFaint;
    context.font = '10px system-ui, "DejaVu Sans", sans-serif';
    context.fillText(`${formatShare(makespan > 0 ? times.idle / makespan : 0)} idle`, 12, middle + row.compute.height / 4);
    drawCauses(app, row, 12, row.compute.y + row.compute.height + 2, app.gutter - 28, 4);
  }
  context.textAlign = 'center';
}

// ---- The selection ----

function centreOf(app, modelIndex, id) {
  const row = rowOf(app, modelIndex, app.models[modelIndex].picture.events.rank[id]);
  return row.compute.y + row.compute.height / 2;
}

// What stands out: the selection, else the critical paths, else nothing.
function litChains(app) {
  if (app.selected) return [app.selected];
  if (!app.showPath) return [];
  return app.models.map((model, modelIndex) => ({ modelIndex, id: NONE, chain: pathOf(model) }));
}

function pathOf(model) {
  if (!model.path) model.path = pathChain(model);
  return model.path;
}

function drawLinks(app, { modelIndex, chain }) {
  const { events } = app.models[modelIndex].picture;
  const context = app.context;
  context.strokeStyle = themeOf(app).highlight;
  context.globalAlpha = 0.75;
  context.lineWidth = 1.25;
  context.beginPath();
  for (const [producer, id] of chain.links) {
    const from = xOf(app, events.end[producer]);
    const to = xOf(app, events.begin[id]);
    if (to < app.gutter || from > app.width) continue;
    const bend = Math.max(8, (to - from) / 2);
    const fromY = centreOf(app, modelIndex, producer);
    const toY = centreOf(app, modelIndex, id);
    if (fromY === toY && to - from < 3) continue; // side by side: seen without a line
    context.moveTo(from - 1, fromY);
    context.bezierCurveTo(from + bend, fromY, to - bend, toY, to + 1, toY);
  }
  context.stroke();
  context.globalAlpha = 1;
}

function boxOf(row, model, id) {
  const { op } = model.picture.events;
  if (isCompute(op[id])) return row.compute;
  if (isShard(op[id])) return row.shards;
  if (!row.transfers) return undefined;
  const half = row.transfers.height / 2;
  return { y: row.transfers.y + (isSend(op[id]) ? 0 : half), height: half };
}

function drawChain(app, selected) {
  const model = app.models[selected.modelIndex];
  const paints = paintsOf(app, model);
  const { events } = model.picture;
  for (const id of selected.chain.all) {
    if (events.op[id] === OP.OVERLAP) continue;
    const row = rowOf(app, selected.modelIndex, events.rank[id]);
    const box = boxOf(row, model, id);
    const x = xOf(app, events.begin[id]);
    const width = Math.max(2, xOf(app, events.end[id]) - x);
    if (box === undefined || x > app.width || x + width < app.gutter) continue;
    drawCell(app, model, paints, id, box, x, width);
    if (id === selected.id) outline(app, app.context, model, id, box, 2);
  }
}

function outline(app, context, model, id, box, thickness) {
  const { events } = model.picture;
  const part = model.part[id];
  const height = part === 0 ? box.height : box.height / (part >> 4);
  const y = box.y + (part === 0 ? 0 : height * (part & 15));
  const x = Math.max(app.gutter - 4, xOf(app, events.begin[id]));
  const right = Math.min(app.width + 4, xOf(app, events.end[id]));
  context.lineWidth = thickness;
  context.strokeStyle = themeOf(app).highlight;
  context.strokeRect(x - 1, y - 1, Math.max(2, right - x + 1), height + 2);
}

// ---- A frame ----

function drawRow(app, row) {
  const context = app.context;
  const lanes = row.model.lanes[row.rank];
  context.fillStyle = themeOf(app).ops[0];
  context.fillRect(app.gutter, row.compute.y, plotWidth(app), row.compute.height);
  drawIdle(app, row);
  drawLane(app, row.model, lanes.compute, row.compute);
  if (row.shards) drawLane(app, row.model, lanes.shards, row.shards);
  if (row.transfers) {
    const half = row.transfers.height / 2;
    drawLane(app, row.model, lanes.sends, { y: row.transfers.y, height: half - 0.5 });
    drawLane(app, row.model, lanes.receives, { y: row.transfers.y + half, height: half - 0.5 });
  }
  if (row.memory) drawMemory(app, row);
}

function visibleRows(app) {
  return app.rows.filter((row) => row.bottom > app.scroll && row.y < app.scroll + app.height);
}

function drawPlot(app) {
  const context = app.context;
  const rows = visibleRows(app);
  context.save();
  context.beginPath();
  context.rect(app.gutter, AXIS_HEIGHT, plotWidth(app) + 1, app.height);
  context.clip();
  drawGrid(app);
  context.translate(0, -app.scroll);
  const lit = litChains(app);
  app.alpha = lit.length > 0 ? 0.28 : 1;
  app.bare = lit.length > 0;
  context.globalAlpha = app.alpha;
  rows.forEach((row) => drawRow(app, row));
  app.alpha = context.globalAlpha = 1;
  app.bare = false;
  for (const chain of lit) {
    drawChain(app, chain);
    drawLinks(app, chain);
  }
  context.restore();
}

function drawFrame(app) {
  const context = app.context;
  context.setTransform(app.ratio, 0, 0, app.ratio, 0, 0);
  context.fillStyle = themeOf(app).background;
  context.fillRect(0, 0, app.width, app.height);
  context.textBaseline = 'middle';
  context.textAlign = 'center';
  drawPlot(app);
  context.save();
  context.translate(0, -app.scroll);
  visibleRows(app).forEach((row) => drawGutter(app, row));
  if (app.models.length > 1) app.titles.forEach((title) => drawTitle(app, title));
  context.restore();
  drawAxis(app);
}

// What follows the pointer and the keyboard, on a layer of its own.
function drawOverlay(app) {
  const context = app.overlay;
  context.setTransform(app.ratio, 0, 0, app.ratio, 0, 0);
  context.clearRect(0, 0, app.width, app.height);
  if (app.pointer && app.pointer.x >= app.gutter && app.pointer.x <= app.width - PAD_RIGHT) {
    context.fillStyle = themeOf(app).inkFaint;
    context.globalAlpha = 0.5;
    context.fillRect(Math.round(app.pointer.x), AXIS_HEIGHT - 6, 1, app.height);
    context.globalAlpha = 1;
  }
  context.save();
  context.beginPath();
  context.rect(app.gutter - 3, AXIS_HEIGHT, app.width, app.height);
  context.clip();
  context.translate(0, -app.scroll);
  for (const [place, thickness] of [[app.hover, 1.5], [app.focus, 3]]) {
    if (!place) continue;
    const model = app.models[place.modelIndex];
    const row = rowOf(app, place.modelIndex, model.picture.events.rank[place.id]);
    const box = boxOf(row, model, place.id);
    if (box) outline(app, context, model, place.id, box, thickness);
  }
  context.restore();
}
