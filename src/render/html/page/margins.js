// The memory strips, and what is drawn around the lanes: axis, names, idle shares.

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

// The mark of the peak goes above the curve, where there is room for that.
const markSize = (height) => (height >= 12 ? 5 : 0);

function drawPeak(app, row, heightOf) {
  const context = app.context;
  const times = row.model.picture.rankTimes[row.rank];
  const x = xOf(app, times.peakAt);
  if (!(times.peakActivation > 0) || x < app.gutter || x > app.width - PAD_RIGHT) return;
  const y = row.memory.y + row.memory.height - heightOf(times.peakActivation);
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
  const heightOf = (size) => (size / most) * (height - markSize(height)); // a size may have no reciprocal
  const columns = memoryColumns(app, row.model.picture.memory[row.rank], plot);
  const bottom = y + height;
  context.fillStyle = themeOf(app).memory;
  context.globalAlpha = app.alpha * 0.55;
  context.beginPath();
  context.moveTo(app.gutter, bottom);
  for (let column = 0; column < plot; column++) {
    if (column > 0 && columns[column] === columns[column - 1]) continue;
    const from = column === 0 ? 0 : columns[column - 1];
    context.lineTo(app.gutter + column, bottom - heightOf(from));
    context.lineTo(app.gutter + column, bottom - heightOf(columns[column]));
  }
  context.lineTo(app.gutter + plot, bottom - heightOf(columns[plot - 1]));
  context.lineTo(app.gutter + plot, bottom);
  context.fill();
  context.globalAlpha = app.alpha;
  context.fillStyle = themeOf(app).rule;
  context.fillRect(app.gutter, bottom, plot, 0.5);
  drawPeak(app, row, heightOf);
}

// ---- Axis, names ----

function axisStep(app) {
  const least = ((app.to - app.from) * 90) / plotWidth(app);
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) || least;
}

function eachTick(app, draw) {
  const step = axisStep(app);
  const right = app.width - PAD_RIGHT + 0.5;
  const first = Math.ceil(app.from / step - 1e-9);
  for (let k = 0; k < 100 && xOf(app, (first + k) * step) <= right; k++) {
    draw((first + k) * step, xOf(app, (first + k) * step));
  }
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
    context.fillText(formatNumber(time, axisStep(app)), Math.min(x, app.width - 24), AXIS_HEIGHT / 2 - 1);
    context.fillRect(Math.round(x), AXIS_HEIGHT - 5, 1, 5);
  });
  context.textAlign = 'left';
  const { unit } = app.models[0].picture;
  context.fillText(unit === '' ? 'units of time' : `time, ${shorten(unit, 10)}`, 12, AXIS_HEIGHT / 2 - 1);
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

const NAME_LEAST = 11; // pixels from one rank's name to the next

function drawGutter(app, row) {
  const context = app.context;
  const theme = themeOf(app);
  const tall = row.compute.height >= 24;
  const middle = row.compute.y + row.compute.height / 2;
  context.fillStyle = theme.background;
  context.fillRect(0, row.y - 1, app.gutter, row.bottom - row.y + 2);
  const pitch = row.bottom - row.y + app.density.gap;
  if (row.rank % Math.ceil(NAME_LEAST / pitch) !== 0) return; // no room for all names
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
