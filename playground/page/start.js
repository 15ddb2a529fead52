// Putting it together: the views, the theme, and the start.

const systemDark = window.matchMedia('(prefers-color-scheme: dark)');
let chosenTheme = null; // 'dark' or 'light', when someone chose

const isDark = () => (chosenTheme === null ? systemDark.matches : chosenTheme === 'dark');

function showTheme() {
  document.documentElement.dataset.theme = isDark() ? 'dark' : 'light';
  byId('theme').textContent = isDark() ? 'Light' : 'Dark';
  Object.values(timelines).forEach((timeline) => timeline.setTheme());
}

// Learn shows a lesson beside the panel that it is about.
function panelShown() {
  return state.view === 'learn' ? pageAt().panel : state.view;
}

function showView() {
  const panel = panelShown();
  document.body.dataset.view = state.view;
  byId('learn').hidden = state.view !== 'learn';
  byId('explore').hidden = panel !== 'explore';
  byId('check').hidden = panel !== 'check';
  for (const view of VIEWS) byId(`go-${view}`).setAttribute('aria-current', view === state.view ? 'page' : 'false');
  explored.gap = null;
  if (state.view === 'learn') showLesson();
  if (panel === 'explore') exploreAll(); else stopPlan();
  if (panel === 'check') check();
}

function goToView(view) {
  if (view === 'learn' && state.view !== 'learn') {
    goToPage(lessonAt().id, lessonAt().pages.indexOf(pageAt()));
    return;
  }
  if (view === state.view) return;
  leavePlace();
  state.view = view;
  showView();
  enterPlace();
  window.scrollTo(0, 0);
}

// Something to know about the page itself, above all else.
function showNotice(text) {
  byId('notice').hidden = text === '';
  byId('notice-text').textContent = text;
}

// The settings of the address; those from before stay where it is none of this page's.
async function followLink() {
  const wrong = location.hash.length > 1 ? await readLink(location.hash) : null;
  showNotice(wrong === null ? '' : `${wrong} Nothing of it was used.`);
  showView();
}

function listenToViews() {
  for (const view of VIEWS) byId(`go-${view}`).addEventListener('click', () => goToView(view));
  byId('theme').addEventListener('click', () => {
    chosenTheme = isDark() ? 'light' : 'dark';
    showTheme();
  });
  systemDark.addEventListener('change', showTheme);
  byId('notice-close').addEventListener('click', () => showNotice(''));
  byId('skip').addEventListener('click', (event) => { // its address would be a link of this page
    event.preventDefault();
    byId('main-content').focus();
  });
  window.addEventListener('popstate', (event) => { if (event.state) returnTo(event.state); });
  window.addEventListener('hashchange', () => { if (!history.state) followLink(); });
}

// The timeline says when something in it was chosen.
function listenToTimeline() {
  byId('explore-timeline').addEventListener('load', (event) => {
    event.target.contentWindow.addEventListener('weft-select', (selection) => {
      explored.gap = selection.detail.gap;
      lessonChanged();
    });
  });
}

// What a test asks for.
window.weftPlayground = Object.freeze({
  state: () => ({ ...state }),
  explored: () => ({ table: explored.result && textOf(explored.result.table), sim: explored.result && explored.result.sim,
    took: explored.result && explored.result.took, plan: explored.plan && explored.plan.report, planning: Boolean(engines && engines.plan.busy) }),
  checked: () => ({ verdict: checked.result && checked.result.verdict,
    stepper: checked.stepper && { moves: checked.stepper.moves, stuck: checked.stepper.stuck(), finished: checked.stepper.finished() } }),
  drawAtMost: (actions) => { explored.drawnMost = actions; },
  done: () => Array.from(progress.done),
  lessons: () => LESSONS.map((lesson) => ({ id: lesson.id, pages: lesson.pages.length })),
  run: async (words, files) => (await engines.tools.ask('command', { words, files })).result,
});

async function start() {
  listenToViews();
  listenToForm();
  listenToCheck();
  listenToLessons();
  listenToShare();
  listenToTimeline();
  showTheme();
  engines = await startEngines();
  schedules = (await engines.tools.ask('list', {})).result;
  buildScheduleList();
  models = (await engines.tools.ask('models', {})).result;
  buildModelLists();
  Object.assign(state, baseOf(state));
  byId('loading').remove();
  await followLink();
  document.body.dataset.started = '';
}

start().catch((error) => {
  if (byId('loading')) byId('loading').remove();
  fill(byId('explore-message'), failureParts({ message: `This page cannot start: ${error.message}`,
    hint: 'it needs a browser with WebAssembly, workers and DecompressionStream: Firefox 113, Chrome 103, Safari 16.4 or later' }));
  byId('explore').hidden = false;
});
