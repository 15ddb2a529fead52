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

function colourOf(app, model, id) {
  const { op, stage } = model.picture.events;
  if (app.colourBy === 'stage' && isCompute(op[id])) return stageColour(app, model, stage[id], op[id]);
  return themeOf(app).ops[op[id]];
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

function drawLabel(app, model, id, x, y, width, height, colour) {
  const context = app.context;
  const { op, microbatch } = model.picture.events;
  const size = Math.min(app.density.font, height - 2);
  if (size < 7 || width < size * 0.7) return;
  const room = width - 4;
  const texts = isShard(op[id]) ? [labelOf(model, id)] : [labelOf(model, id), String(microbatch[id])];
  const text = texts.find((candidate) => candidate.length * size * 0.62 <= room);
  if (text === undefined) return;
  context.font = `${size}px ui-monospace, "DejaVu Sans Mono", monospace`;
  context.fillStyle = inkOn(colour);
  context.fillText(text, x + width / 2, y + height / 2 + 0.5);
}

function drawCell(app, model, id, box, x, width) {
  const context = app.context;
  const colour = colourOf(app, model, id);
  const part = model.part[id];
  const height = part === 0 ? box.height : box.height / (part >> 4);
  const y = part === 0 ? box.y : box.y + height * (part & 15);
  const left = Math.max(x, app.gutter - 2);
  const right = Math.min(x + width, app.width + 2);
  const gap = width > 5 ? 1 : width > 2.5 ? 0.5 : 0;
  context.fillStyle = colour;
  context.fillRect(left, y, right - left - gap, height - (part === 0 ? 0 : 0.5));
  if (!app.bare && right - left >= 8) drawLabel(app, model, id, left, y, right - left - gap, height, colour);
}

function mixedColour(app, model, lane, from, to) {
  const step = Math.max(1, Math.floor((to - from) / 6));
  let red = 0;
  let green = 0;
  let blue = 0;
  let count = 0;
  for (let i = from; i < to; i += step) {
    const value = parseInt(colourOf(app, model, lane.ids[i]).slice(1), 16);
    red += value >> 16;
    green += (value >> 8) & 255;
    blue += value & 255;
    count++;
  }
  return `rgb(${Math.round(red / count)},${Math.round(green / count)},${Math.round(blue / count)})`;
}

// Events that begin in one pixel: their mean colour, as strong as they fill it.
function drawMerged(app, model, lane, box, from, to, x) {
  const context = app.context;
  const filled = (lane.busy[to] - lane.busy[from]) * pixelsPerUnit(app);
  context.globalAlpha = app.alpha * Math.max(0.35, Math.min(1, filled));
  context.fillStyle = mixedColour(app, model, lane, from, to);
  context.fillRect(x, box.y, 1, box.height);
  context.globalAlpha = app.alpha;
}

function drawLane(app, model, lane, box) {
  const { events } = model.picture;
  const last = app.to;
  let i = firstAbove(lane.endMax, app.from - 1 / pixelsPerUnit(app));
  while (i < lane.ids.length && lane.begin[i] <= last) {
    const id = lane.ids[i];
    const x = xOf(app, lane.begin[i]);
    const width = xOf(app, events.end[id]) - x;
    if (width >= 1.5) {
      drawCell(app, model, id, box, x, width);
      i++;
    } else {
      const column = Math.floor(x);
      const next = Math.max(i + 1, firstAbove(lane.begin, timeAt(app, column + 1), i));
      if (column >= app.gutter) drawMerged(app, model, lane, box, i, next, column);
      i = next;
    }
  }
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

function drawPeak(app, row, scale) {
  const context = app.context;
  const times = row.model.picture.rankTimes[row.rank];
  const x = xOf(app, times.peakAt);
  if (!(times.peakActivation > 0) || x < app.gutter || x > app.width - PAD_RIGHT) return;
  const y = row.memory.y + row.memory.height - times.peakActivation * scale;
  const size = Math.min(5, row.memory.height / 3 + 1.5);
  context.fillStyle = themeOf(app).ink;
  context.beginPath();
  context.moveTo(x, y + 1);
  context.lineTo(x - size, y - size);
  context.lineTo(x + size, y - size);
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
  const scale = (height - 5) / most;
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
  context.fillText(unit === '' ? 'time' : `time, ${unit}`, 12, AXIS_HEIGHT / 2 - 1);
  context.textAlign = 'center';
}

function drawTitle(app, title) {
  const context = app.context;
  const theme = themeOf(app);
  const { picture } = title.model;
  const y = title.y + TITLE_HEIGHT / 2 + 1;
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

function drawLinks(app, selected) {
  const { modelIndex, chain } = selected;
  const model = app.models[modelIndex];
  const { events } = model.picture;
  const context = app.context;
  context.strokeStyle = themeOf(app).highlight;
  context.globalAlpha = 0.75;
  context.lineWidth = 1.25;
  context.beginPath();
  for (const id of chain.all) {
    if (!isCompute(events.op[id])) continue;
    for (const need of needsOf(model, id)) {
      const producer = producerOf(model, need);
      if (producer === NONE || !chain.all.has(producer)) continue;
      const from = xOf(app, events.end[producer]);
      const to = xOf(app, events.begin[id]);
      const bend = Math.max(8, (to - from) / 2);
      const fromY = centreOf(app, modelIndex, producer);
      const toY = centreOf(app, modelIndex, id);
      context.moveTo(from - 1, fromY);
      context.bezierCurveTo(from + bend, fromY, to - bend, toY, to + 1, toY);
    }
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
  const { events } = model.picture;
  for (const id of selected.chain.all) {
    const row = rowOf(app, selected.modelIndex, events.rank[id]);
    const box = boxOf(row, model, id);
    const x = xOf(app, events.begin[id]);
    const width = Math.max(2, xOf(app, events.end[id]) - x);
    if (box === undefined || x > app.width || x + width < app.gutter) continue;
    drawCell(app, model, id, box, x, width);
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
  app.alpha = app.selected ? 0.28 : 1;
  app.bare = app.selected !== null;
  context.globalAlpha = app.alpha;
  rows.forEach((row) => drawRow(app, row));
  app.alpha = context.globalAlpha = 1;
  app.bare = false;
  if (app.selected) {
    drawChain(app, app.selected);
    drawLinks(app, app.selected);
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
  app.titles.forEach((title) => drawTitle(app, title));
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
