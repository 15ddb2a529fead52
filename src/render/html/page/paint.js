// Colours: of ops, of stages, of the causes of idle time.

const themeOf = (app) => app.palette[app.dark ? 'dark' : 'light'];

function inkOn(colour) {
  const value = parseInt(colour.slice(1), 16);
  const luma = (299 * (value >> 16) + 587 * ((value >> 8) & 255) + 114 * (value & 255)) / 1000;
  return luma >= 140 ? '#000000' : '#ffffff';
}

function stageColour(app, model, stage, op) {
  const colours = model.picture.stageColours[app.dark ? 'dark' : 'light'];
  const size = 6 * COMPUTE_OPS.length;
  const shown = colours.length / size;
  const place = model.picture.stages <= shown ? stage : Math.floor((stage * shown) / model.picture.stages);
  return `#${colours.slice(size * place + 6 * COMPUTE_PLACE[op]).slice(0, 6)}`;
}

// The colours of a schedule as text, as numbers and with what can be read on
// them: one for each op, or one for each compute op of each stage and one for each
// other op.
function makePaints(app, model) {
  const texts = themeOf(app).ops.slice();
  for (let stage = 0; app.colourBy === 'stage' && stage < model.picture.stages; stage++) {
    for (const op of COMPUTE_OPS) texts.push(stageColour(app, model, stage, op));
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
  return paints.byStage && isCompute(op)
    ? OPS.length + COMPUTE_OPS.length * events.stage[id] + COMPUTE_PLACE[op] : op;
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
