// Putting it together: frames on demand, sizes, and the start.

function frame(app) {
  app.wanted = false;
  app.scroll = app.scroller.scrollTop;
  if (app.stale) {
    const begin = performance.now();
    app.stale = false;
    drawFrame(app);
    app.frameTime = performance.now() - begin;
    showRange(app);
    if (app.tooltipForFocus) placeFocusTooltip(app);
  }
  drawOverlay(app);
}

function redrawOverlay(app) {
  if (!app.wanted) {
    app.wanted = true;
    requestAnimationFrame(() => frame(app));
  }
}

function redraw(app) {
  app.stale = true;
  redrawOverlay(app);
}

// Also when the window moves to a screen of other pixels.
function followRatio(app) {
  const same = window.matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
  same.addEventListener('change', () => {
    resize(app);
    followRatio(app);
  }, { once: true });
}

function makeStripCanvas() {
  const canvas = document.createElement('canvas');
  return { canvas, context: canvas.getContext('2d') };
}

function resize(app) {
  if (app.printing) return;
  app.ratio = window.devicePixelRatio || 1;
  app.width = app.scroller.clientWidth;
  app.height = app.scroller.clientHeight;
  layOut(app);
  if (app.mixes !== mixes(app)) { // the legend says so, and may take a line more
    app.mixes = mixes(app);
    showLegend(app);
    app.height = app.scroller.clientHeight;
    layOut(app);
  }
  byId('spacer').style.height = `${Math.max(app.height, app.contentHeight)}px`;
  app.width = app.scroller.clientWidth; // less, where that brought a scroll bar
  for (const canvas of [app.canvas, app.overlay.canvas]) {
    canvas.width = Math.floor(app.width * app.ratio);
    canvas.height = Math.ceil(app.height * app.ratio);
    canvas.style.width = `${canvas.width / app.ratio}px`; // a pixel of it is one of the screen
    canvas.style.height = `${canvas.height / app.ratio}px`;
  }
  app.width = app.canvas.width / app.ratio; // all pixels are whole
  app.patterns = {};
  redraw(app);
}

// What a test, or a page around this one, may ask for.
function handleOf(app) {
  return Object.freeze({
    boxOf(modelIndex, action) {
      const id = findAction(app.models[modelIndex], action);
      return id === NONE ? null : screenBox(app, modelIndex, id);
    },
    causesOf: (modelIndex) => app.models[modelIndex].idle.map((idle) => CAUSES.map((name, cause) =>
      idle.stretches.reduce((sum, s) => sum + (s.cause === cause ? s.end - s.begin : 0), 0))),
    timesOf: (modelIndex) => app.models[modelIndex].picture.rankTimes,
    eventCount: (modelIndex) => app.models[modelIndex].picture.events.count,
    frameTime: () => app.frameTime,
    startTime: () => app.startTime,
    window: () => [app.from, app.to],
    plot: () => ({ left: app.gutter, width: plotWidth(app), ratio: app.ratio }),
    // For a page around this one, which has a title, files and a theme of its own.
    embed: () => { document.documentElement.dataset.embedded = ''; resize(app); },
    setTheme: (dark) => setTheme(app, dark),
    replace: (models) => replaceModels(app, models),
    select: (modelIndex, action) => search(app, action),
    showGap: (modelIndex, rank, number) => selectGap(app, modelIndex, rank, app.models[modelIndex].idle[rank].stretches[number]),
    gapsOf: (modelIndex) => joined(app.models[modelIndex].idle.map((idle, rank) => idle.stretches.map((stretch, number) =>
      ({ rank, number, lines: gapLines(app.models[modelIndex], rank, stretch) })))),
  });
}

function start() {
  const app = {
    canvas: byId('canvas'), context: byId('canvas').getContext('2d', { alpha: false }),
    overlay: byId('overlay').getContext('2d'), print: byId('print').getContext('2d', { alpha: false }), scroller: byId('scroller'),
    models: [], rows: [], titles: [], patterns: {}, strips: makeStripCanvas(), pointers: new Map(),
    showMemory: true, showTransfers: true, showPath: false, densityShift: 0, alpha: 1,
    focus: null, selected: null, gap: null, hover: null, pointer: null, scroll: 0, from: 0, to: 1,
  };
  const begin = performance.now();
  const data = decodeData(byId('weft-data').textContent);
  app.palette = data.palette;
  app.colourBy = data.colourBy;
  app.models = data.pictures.map(buildModel);
  app.opsShown = opsShown(app);
  byId('colour').textContent = `Colour: ${app.colourBy}`;
  const prefersDark = window.matchMedia('(prefers-color-scheme: dark)');
  prefersDark.addEventListener('change', (event) => setTheme(app, event.matches));
  setTheme(app, prefersDark.matches);
  listen(app);
  listenForPrint(app);
  followRatio(app);
  modelsChanged(app);
  fit(app);
  app.startTime = performance.now() - begin;
  window.weftTimeline = handleOf(app);
}

try {
  start();
} catch (error) {
  say(`This page cannot be shown: ${error.message}`);
}
