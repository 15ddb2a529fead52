// A frame: the rows in view, what is highlighted among them, and the layer above
// that follows the pointer.

// ---- What is highlighted ----

function centreOf(app, modelIndex, id) {
  const row = rowOf(app, modelIndex, app.models[modelIndex].picture.events.rank[id]);
  return row.compute.y + row.compute.height / 2;
}

// What is highlighted: the selection, else the critical paths, else nothing.
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
    if (events.op[id] === OP.OVERLAP_F_B) continue;
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
  const { y, height } = boxOfPart(model, id, box);
  const x = Math.max(app.gutter - 4, xOf(app, events.begin[id]));
  const right = Math.min(app.width + 4, xOf(app, events.end[id]));
  context.lineWidth = thickness;
  context.strokeStyle = themeOf(app).highlight;
  context.strokeRect(x - 1, y - 1, Math.max(2, right - x + 1), height + 2);
}

// ---- A frame ----

function drawGround(app, row) {
  const top = pixelY(app, row.compute.y) / app.ratio + app.scroll;
  const bottom = pixelY(app, row.compute.y + row.compute.height) / app.ratio + app.scroll;
  app.context.fillStyle = themeOf(app).ops[0];
  app.context.fillRect(app.gutter, top, plotWidth(app), bottom - top);
}

function drawRows(app, rows) {
  const shown = joined(rows.map(lanesShown));
  rows.forEach((row) => drawGround(app, row));
  drawStrips(app, shown);
  rows.forEach((row) => drawStripes(app, row));
  for (const { row, lane, box } of shown) {
    drawDetails(app, row.model, lane, box);
    if (lane.hasInstants) drawInstants(app, row.model, lane, box);
  }
  rows.filter((row) => row.memory).forEach((row) => drawMemory(app, row));
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
  drawRows(app, rows);
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
  context.fillRect(0, 0, app.width, app.height + 1);
  context.textBaseline = 'middle';
  context.textAlign = 'center';
  chooseLabels(app);
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
