// Colours: of ops, of stages, of the causes of idle time.

const themeOf = (app) => app.palette[app.dark ? 'dark' : 'light'];

const hexOf = (value) => `#${value.toString(16).padStart(6, '0')}`;
const valueOf = (colour) => parseInt(colour.slice(1), 16);

// `share` of 256 parts of `to`, the rest of `from`; as render/palette.c.
function mix(from, to, share) {
  const channel = (shift) => ((((from >> shift) & 255) * (256 - share) + ((to >> shift) & 255) * share) >> 8) << shift;
  return channel(16) | channel(8) | channel(0);
}

// Black or white, as render/palette.c.
function inkOn(colour) {
  const value = valueOf(colour);
  const [red, green, blue] = [value >> 16, (value >> 8) & 255, value & 255];
  return 2126 * red * red + 7152 * green * green + 722 * blue * blue > 2600 * 255 * 255 ? '#000000' : '#ffffff';
}

// Of an op on the k-th of `count` stages of its rank: paler for later ones, as
// render/palette.c.
function chunkColour(app, op, k, count) {
  const share = count > 1 ? Math.floor((80 * k) / (count - 1)) : 0;
  return hexOf(mix(valueOf(themeOf(app).ops[op]), 0xffffff, share));
}

function stageColour(app, model, stage, op) {
  const colours = model.picture.stageColours[app.dark ? 'dark' : 'light'];
  const size = 6 * COMPUTE_OPS.length;
  const shown = colours.length / size;
  const place = model.picture.stages <= shown ? stage : Math.floor((stage * shown) / model.picture.stages);
  return `#${colours.slice(size * place + 6 * COMPUTE_PLACE[op]).slice(0, 6)}`;
}

// The colours of a schedule as text, as numbers and with what can be read on
// them: one for each op; then the compute ops of each stage, or of the first stages of
// all ranks, of the second ones, and so on. `idle` is the mean of each cause's stripes.
function makePaints(app, model) {
  const byStage = app.colourBy === 'stage';
  const texts = themeOf(app).ops.slice();
  for (let group = 0; group < (byStage ? model.picture.stages : model.chunks); group++) {
    for (const op of COMPUTE_OPS) {
      texts.push(byStage ? stageColour(app, model, group, op) : chunkColour(app, op, group, model.chunks));
    }
  }
  const inks = texts.map(inkOn);
  return { key: `${app.colourBy}${app.dark}`, chunkOf: byStage ? null : model.chunkOf, texts, inks,
    lines: texts.map((text, k) => hexOf(mix(valueOf(text), valueOf(inks[k]), 160))), values: Uint32Array.from(texts, valueOf),
    idle: CAUSES.map((name, cause) => mix(valueOf(texts[0]), valueOf(causeColour(app, cause)), STRIPES_SHARE)) };
}

function paintsOf(app, model) {
  if (!model.paints || model.paints.key !== `${app.colourBy}${app.dark}`) model.paints = makePaints(app, model);
  return model.paints;
}

function paintIndex(paints, events, id) {
  const op = events.op[id];
  if (!isCompute(op)) return op;
  const group = paints.chunkOf ? paints.chunkOf[events.stage[id]] : events.stage[id];
  return OPS.length + COMPUTE_OPS.length * group + COMPUTE_PLACE[op];
}

// Lines at the foot of an action that say which of its rank's stages it is; as render/palette.h.
const STAGE_LINES_MAX = 3;

function lineCount(paints, events, id) {
  return paints.chunkOf && isCompute(events.op[id]) ? Math.min(STAGE_LINES_MAX, paints.chunkOf[events.stage[id]]) : 0;
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

const STRIPES_SHARE = 28; // of 256: lines of 1.4 pixels on the slant, every 8, at 0.45

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
