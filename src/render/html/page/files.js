// Other schedules, from files.

const FILE_MAX = 400 * 1024 * 1024;

function addModels(app, data) {
  data.pictures.forEach((picture) => app.models.push(buildModel(picture)));
  app.opsShown = opsShown(app);
  const units = new Set(app.models.map((model) => model.picture.unit));
  modelsChanged(app);
  fit(app);
  return units.size > 1 ? `; units differ: ${Array.from(units).map((unit) => unit || 'none').join(', ')}` : '';
}

// Other schedules instead of these, from buildModel(). The view stays where it is when they take
// as long as the ones before.
function replaceModels(app, models) {
  const before = extentOf(app);
  app.models = models;
  app.selected = app.focus = app.hover = app.gap = null;
  app.opsShown = opsShown(app);
  modelsChanged(app);
  const after = extentOf(app);
  if (after.first !== before.first || after.last !== before.last) fit(app);
}

function removeModel(app, index) {
  app.models.splice(index, 1);
  app.selected = app.focus = app.hover = null;
  app.opsShown = opsShown(app);
  modelsChanged(app);
  fit(app);
}

function modelsChanged(app) {
  showCards(app);
  showLegend(app);
  showSummary(app);
  showSelection(app);
  resize(app);
}

function readFile(app, file) {
  if (file.size > FILE_MAX) {
    say(`${file.name} is too large for a Weft page`);
    return;
  }
  const reader = new FileReader();
  reader.onerror = () => say(`${file.name} could not be read`);
  reader.onload = () => {
    try {
      const note = addModels(app, decodeData(dataInside(reader.result)));
      say(`${file.name} is shown below${note}`);
    } catch (error) {
      say(`${file.name} is not a Weft timeline: ${error.message}`);
    }
  };
  reader.readAsText(file);
}

function listenForFiles(app) {
  const load = byId('load');
  load.addEventListener('change', () => {
    Array.from(load.files).forEach((file) => readFile(app, file));
    load.value = '';
  });
  window.addEventListener('dragover', (event) => {
    event.preventDefault();
    byId('drop').hidden = false;
  });
  window.addEventListener('dragleave', (event) => {
    if (event.relatedTarget === null) byId('drop').hidden = true;
  });
  window.addEventListener('drop', (event) => {
    event.preventDefault();
    byId('drop').hidden = true;
    Array.from(event.dataTransfer.files).forEach((file) => readFile(app, file));
  });
}
