// On paper: the timeline on a canvas of its own, light, with all ranks, drawn before the page is
// laid out for printing. That layout may clear the canvases of the screen, and gives no frame in
// which to draw them again. It may also give the page another size; until the print is over, nothing
// follows that.

const PRINT_WIDTH = 1040; // pixels of the page, as wide as a sheet across
const PRINT_HEIGHT = 600; // what its title and its legend leave of one sheet
const PRINT_HEIGHT_EMBEDDED = 316; // what the page around it leaves
const PRINT_RATIO = 3; // pixels of the canvas to one of the page
const PRINT_SHEETS = 2; // a picture higher than so many sheets has fewer pixels

const SCREEN_STATE = ['context', 'width', 'height', 'ratio', 'scroll', 'dark', 'patterns'];

function drawForPrint(app) {
  const kept = Object.fromEntries(SCREEN_STATE.map((name) => [name, app[name]]));
  const { canvas } = app.print;
  const high = 'embedded' in document.documentElement.dataset ? PRINT_HEIGHT_EMBEDDED : PRINT_HEIGHT;
  app.printing = true;
  app.printKept = kept.dark;
  setTheme(app, false);
  Object.assign(app, { context: app.print, width: PRINT_WIDTH, height: high, ratio: PRINT_RATIO,
    scroll: 0, patterns: {} });
  layOut(app);
  app.height = app.contentHeight; // no more than there is to see; all ranks, however many
  app.ratio = PRINT_RATIO * Math.min(1, (high * PRINT_SHEETS) / app.height);
  app.mixes = mixes(app);
  showLegend(app);
  canvas.width = Math.ceil(PRINT_WIDTH * app.ratio);
  canvas.height = Math.ceil(app.height * app.ratio);
  drawFrame(app);
  Object.assign(app, kept, { dark: false }); // the theme is set back after printing
  layOut(app);
}

function listenForPrint(app) {
  window.addEventListener('beforeprint', () => drawForPrint(app));
  window.addEventListener('afterprint', () => {
    app.printing = false;
    setTheme(app, app.printKept);
    resize(app);
  });
}
