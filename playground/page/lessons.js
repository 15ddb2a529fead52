// The lessons. A page has text, settings to start from, something to change, and a test of whether
// that has happened; numbers come from the panel beside it, computed while one reads.
//
// `done` gets {sim, plan, comparison, check, gap} as they are known, and `state`.

const sharing = (value, limit) => typeof value === 'number' && value < limit;
const named = (...names) => names.includes(state.schedule);
const whole = (text) => Number(text) || 0;

const LESSONS = [
  { id: 'bubble', title: 'Why there is a bubble', pages: [
    { panel: 'explore', set: { schedule: 'GPipe', p: '4', m: '1' },
      text: [
        'A model that does not fit on one device is cut into stages, and each rank gets one. A rank can only compute what has reached it: the activation of the stage before, and on the way back the gradient of the stage after.',
        'Here are four ranks and a single microbatch. Follow the row of rank 0: one forward, then a long wait while the others take their turns, then its backward. Only one rank works at a time, so three quarters of all device time is idle. That idle time is called the bubble.',
        'The remedy is to cut the batch into more microbatches. While rank 1 works on the first, rank 0 begins the second.'],
      task: 'Raise m, the number of microbatches, until the bubble is below 20 %.',
      done: ({ sim }) => named('GPipe') && sharing(sim && sim.bubble_ratio, 0.2),
      after: 'The bubble did not become shorter in time: it is still (p − 1)(F + B). There is only more work around it.' },
    { panel: 'explore', set: { schedule: 'GPipe', p: '4', m: '16' },
      text: [
        'Filling the pipeline takes p − 1 forwards, draining it p − 1 backwards. That is where the closed form (p − 1)(F + B) comes from, and why it does not depend on m.',
        'So the share of the bubble is (p − 1) / (m + p − 1) for any F and B. It grows with the number of ranks, which is the price of spreading a model further.',
        'Hover over the hatched parts of the timeline, or click one: each idle gap says why it is there and what would remove it.'],
      task: 'Double the ranks to p = 8, and bring the bubble below 20 % again.',
      done: ({ sim }) => named('GPipe') && whole(state.p) >= 8 && sharing(sim && sim.bubble_ratio, 0.2),
      after: 'Twice the ranks took more than twice the microbatches. In practice the batch is given, and that is why people look for better schedules.' },
  ] },
  { id: 'memory', title: 'From GPipe to 1F1B: memory', pages: [
    { panel: 'explore', set: { schedule: 'GPipe', p: '4', m: '16' },
      text: [
        'A backward needs the activations of its forward. From a microbatch’s forward until its backward, a rank holds them in memory. The curve under each row shows how many it holds, with its peak marked.',
        'GPipe runs all forwards first. Every rank therefore holds all 16 microbatches at its peak: memory grows with m, the very number that makes the bubble small.',
        'Nothing forces that order. As soon as the first gradient is back, a rank may run one backward for each forward, and free what that microbatch held.'],
      task: 'Switch the schedule to 1F1B, and compare the peak memory.',
      done: ({ sim }) => named('1F1B') && whole(state.m) >= 16 && sim && sim.peak_activation <= 4,
      after: 'The makespan is the same, to the last digit, and so is the bubble. The peak is p instead of m.' },
    { panel: 'explore', set: { schedule: '1F1B', p: '4', m: '16' },
      text: [
        'In 1F1B rank r runs p − r forwards to warm up, then alternates. So rank 0 holds p microbatches and the last rank one: less is needed the later the stage.',
        'Because the peak no longer depends on m, the bubble can be made as small as the batch allows, at no cost in memory.'],
      task: 'Bring the bubble below 5 % with 1F1B on four ranks.',
      done: ({ sim }) => named('1F1B') && whole(state.p) === 4 && sharing(sim && sim.bubble_ratio, 0.05),
      after: 'The peak is still 4. This is why 1F1B replaced GPipe.' },
  ] },
  { id: 'interleaving', title: 'Interleaving, and its transfers', pages: [
    { panel: 'explore', set: { schedule: 'Interleaved1F1B', p: '4', m: '8', v: '1' },
      text: [
        'The pipeline fills at the pace of its stages. With v smaller stages per rank, each of 1/v the work, the first microbatch reaches the last rank v times sooner: stage 0 on rank 0, stage 1 on rank 1, … and stage p on rank 0 again.',
        'Times here are those of a rank’s share of the model, so raising v cuts the same model more finely.'],
      task: 'Raise v until the bubble is below 10 %.',
      done: ({ sim }) => named('Interleaved1F1B') && sharing(sim && sim.bubble_ratio, 0.1),
      after: 'The bubble is (p − 1)(F + B) of stages that are v times smaller. The peak memory rose a little: more microbatches are on their way at once.' },
    { panel: 'explore', set: { schedule: 'Interleaved1F1B', p: '4', m: '8', v: '4', hop: '0' },
      text: [
        'Nothing is free: every microbatch now crosses ranks v times as often. As long as transfers take no time that costs nothing, and real links do take time.',
        'The comparison under the timeline ranks all schedules for your settings, so you can see v = 1, 2 and 4 side by side.'],
      task: 'Raise the time of a transfer until v = 2 beats v = 4.',
      done: ({ comparison }) => {
        const of = (v) => comparison && comparison.schedules.find((entry) => entry.name === 'Interleaved1F1B' && entry.v === v);
        return realOf(state.hop) > 0 && of(2) && of(4) && of(2).makespan < of(4).makespan;
      },
      after: 'How finely to cut is a question of the ratio of compute to transfer. Measure both, then compare.' },
  ] },
  { id: 'split', title: 'Splitting the backward', pages: [
    { panel: 'explore', set: { schedule: '1F1B', p: '4', m: '8' },
      text: [
        'A backward computes two things: the gradient of its input (I), which the stage before waits for, and the gradient of its weights (W), which nobody waits for until the step ends.',
        '1F1B runs them as one action B = I + W, and so makes the stage before wait for W as well. Split them, and I goes first; W runs later, whenever a rank would be idle.'],
      task: 'Switch to ZBH1, which splits the backward at the memory of 1F1B.',
      done: ({ sim }) => named('ZBH1') && sim && sim.bubble_ratio < 0.2,
      after: 'The gradients hurry through, and the W actions fill the end. The bubble fell from (p − 1)(F + I + W) to (p − 1)(F + I − W).' },
    { panel: 'explore', set: { schedule: 'ZBH1', p: '4', m: '8' },
      text: [
        'What is left has a reason, gap by gap. Choose one in the timeline: the panel beside it says why the rank is idle and what would remove it.',
        'With the keyboard: Tab to the timeline, Enter, then the arrow keys; Enter on the action after a gap shows the reason.'],
      task: 'Choose an idle gap of the timeline, and read why it is there.',
      done: ({ gap }) => Boolean(gap),
      after: 'Most gaps end with the same advice: another microbatch in flight, at the price of its memory. That trade is what the planner is for.' },
  ] },
  { id: 'v', title: 'V placement', pages: [
    { panel: 'explore', set: { schedule: 'InterleavedZeroBubble', p: '4', m: '8', v: '2' },
      text: [
        'Interleaving places stages in a loop: 0, 1, 2, 3 and then again from rank 0. The last stage is on the last rank, so the first gradient has to travel all the way back.',
        'A V turns around instead: rank 0 has the first stage and the last one, the last rank has the two in the middle. A microbatch that comes out at the bottom of the V goes straight on, without a transfer, and its first gradient is made on rank 0.'],
      task: 'Switch to ZBVZeroBubble.',
      done: ({ sim }) => named('ZBVZeroBubble') && Boolean(sim),
      after: 'Every rank starts within p − 1 forwards and then never waits: each is busy from its first action to its last. All ranks peak at the same memory, too, where 1F1B loads the first ranks most.' },
    { panel: 'explore', set: { schedule: 'ZBVZeroBubble', p: '4', m: '8' },
      text: [
        'This recipe assumes that F, I and W take the same time. Real layers do not: attention makes I longer, for instance. A fixed order then waits at every turn.',
        'The planner, under the comparison, searches an order for the times at hand.'],
      task: 'Set I to 2, and wait for the planner to find an order that beats ZBVZeroBubble.',
      done: ({ sim, plan }) => named('ZBVZeroBubble') && realOf(state.i) >= 1.5 && sim && plan && plan.makespan < sim.makespan,
      after: 'A recipe is good for the costs that its authors had in mind. A search is good for yours.' },
  ] },
  { id: 'hang', title: 'Why sends hang, and when they do not', pages: [
    { panel: 'check', set: { program: SAMPLES.crossed.text, comm: 'rendezvous', scope: 'edge', at: '0' },
      text: [
        'Two ranks, two microbatches. Rank 0 wants to hand over its second activation; rank 1 wants to hand back its first gradient. Each sends before it receives.',
        'If a send waits until its message is received, as large messages do in MPI and any message may in NCCL, neither ever gets there. Nothing crashes; both devices wait, and some minutes later a timeout fires.'],
      task: 'Step through the program until nothing can move.',
      done: ({ check }) => Boolean(check && check.stepper && check.stepper.stuck()),
      after: 'Both ranks stand in a SEND, and each waits for the RECV that the other would do next. That is the cycle in the picture, and verify finds it without running anything.' },
    { panel: 'check', set: { program: SAMPLES.crossed.text, comm: 'rendezvous', scope: 'edge', at: '0' },
      text: [
        'The same program may work on another transport. If a channel buffers one message, rank 0’s send is done as soon as the message is in the buffer, and the cycle is broken.',
        'That is how such bugs hide: small messages fit into buffers, the test passes, and the larger model hangs. Weft’s own lowering is proven under blocking sends, so it is safe everywhere.'],
      task: 'Choose a send model under which the program cannot hang.',
      done: ({ check }) => Boolean(check && check.result && check.result.verdict.ok && state.program === SAMPLES.crossed.text),
      after: 'The verdict names the smallest buffer that would do. A proof always says for which model it holds.' },
    { panel: 'check', set: { program: SAMPLES.fifo.text, comm: 'eager', scope: 'pair', at: '0' },
      text: [
        'Buffers do not cure everything. Here sends never block, and still it hangs: rank 0 sends the activation for stage 3 first and the one for stage 1 after it, and rank 1 receives them in the other order.',
        'With one queue for all that rank 0 sends to rank 1, the first message has to leave it before the second can. Most reports of hanging pipelines come from this: operations on one communicator behave like one queue.'],
      task: 'Change the scope of a channel so that the program cannot hang.',
      done: ({ check }) => Boolean(check && check.result && check.result.verdict.ok && state.program === SAMPLES.fifo.text),
      after: 'One channel for each stage boundary and direction needs no agreement between different boundaries. Weft’s runtime gives each its own.' },
    { panel: 'check', set: { program: SAMPLES.skip.text, comm: 'rendezvous', scope: 'edge', at: '0' },
      text: [
        'A model with skip connections is no chain. The row #graph says which stage feeds which: here stage 0 feeds stage 1, and over 0>2 also stage 2. A transfer that skips stages names its other end.',
        'Every edge has a channel of its own, and it still hangs. Rank 0 sends over the skip connection first. Rank 2 receives over it last, after the message of rank 1, which has nothing before rank 0 sends to it: a cycle of three.'],
      task: 'Exchange two neighbouring actions in the program, so that it cannot hang although every send waits.',
      done: ({ check }) => Boolean(check && check.result && check.result.verdict.ok && check.result.verdict.level === 'comms'
        && state.comm === 'rendezvous' && state.program.startsWith('#graph,0>1,0>2,1>2')),
      after: 'Either end will do: send to stage 1 first, or receive from stage 0 first. Lowering a table puts transfers into an order that is proven.' },
  ] },
  { id: 'planning', title: 'Planning under a memory limit', pages: [
    { panel: 'explore', set: { schedule: '1F1B', p: '4', m: '8', memory: '4' },
      text: [
        'Named schedules take the memory that they take: for four ranks most of them hold at least four microbatches. Set a limit below that, and the comparison marks them as over it.',
        'The planner searches an order within the limit. Its result is lowered, verified and simulated before you see it.'],
      task: 'Set the memory limit to 3, and let the planner find an order that fits.',
      done: ({ plan }) => realOf(state.memory) === 3 && plan && plan.peak_memory <= 3,
      after: 'No named schedule fits into 3, and the plan is faster than 1F1B is with 4.' },
    { panel: 'explore', set: { schedule: '1F1B', p: '4', m: '8', memory: '3' },
      text: [
        'Less memory means fewer microbatches in flight, and at some point ranks wait for each other again. How much that costs is the trade-off to know before buying hardware.'],
      task: 'Lower the limit to 2 and then to 1, and watch the makespan of the plan.',
      done: ({ plan }) => realOf(state.memory) === 1 && plan && plan.peak_memory <= 1,
      after: 'From 3 to 2 costs little; 1 is one microbatch at a time on the first rank. Below that nothing fits, and the planner says so.' },
  ] },
  { id: 'bound', title: 'Reading a bound', pages: [
    { panel: 'explore', set: { schedule: '1F1B', p: '4', m: '8', memory: '2' },
      text: [
        'A search that ends with 27.75 leaves a question: is there something better that it did not find? The bound answers it. It is a proof, from the costs, the limit and the placement, that no order takes less.',
        'The three bars of the planner are the bound, the plan, and the schedule in the timeline. The gap between the first two is the most that further search could gain; when they meet, the plan is optimal, and you can stop.',
        'Bounds get better with more work, like plans. The first, short round here leaves a gap, and the second closes it.'],
      task: 'Wait until the plan is optimal for its placement (the numbers above the timeline say so). Then press Show its timeline, in the planner under the comparison, and look for what is left of the bubble.',
      done: ({ sim, plan }) => realOf(state.memory) === 2 && plan && plan.optimal && planIsShown() && sim,
      after: 'A gap that stays open does not mean that the plan is bad: it may be the bound that is weak. It does mean that nobody has proven either yet.' },
    { panel: 'explore', set: { schedule: '1F1B', p: '4', m: '8' },
      text: [
        'A bound also tells you what not to work on. If the bound itself is above what you need, no schedule will do: the costs have to change, by faster links, more microbatches or another cut of the model.',
        'Without a memory limit the bound for these settings is 24.75, against 24 of pure work per rank.'],
      task: 'Change the settings so that the bound is at most 1 % above the pure work, m × (F + I + W).',
      done: ({ plan }) => plan && plan.bound <= 1.01 * whole(shapeWords()[3]) * (realOf(state.f) + realOf(state.i) + realOf(state.w)),
      after: 'That is all there is to know about a schedule: what the work is, what the bound adds to it, and how far above the bound you are. Now bring your own: Explore, or paste a CSV into Check.' },
  ] },
];

// ---- Showing them ----

const PROGRESS = 'weft-playground-lessons'; // its name in the browser's storage

// What was done on another day; a browser may refuse to keep anything.
function keptProgress() {
  try {
    const kept = JSON.parse(localStorage.getItem(PROGRESS));
    return new Set(Array.isArray(kept) ? kept.filter((key) => typeof key === 'string') : []);
  } catch (error) {
    return new Set();
  }
}

function keepProgress() {
  try {
    localStorage.setItem(PROGRESS, JSON.stringify(Array.from(progress.done)));
  } catch (error) {
    // then the ticks last as long as the page
  }
}

const progress = { done: keptProgress() }; // "lesson/page"

const lessonAt = () => LESSONS.find((lesson) => lesson.id === state.lesson) || LESSONS[0];
const pageAt = () => {
  const { pages } = lessonAt();
  return pages[Math.min(pages.length - 1, whole(state.page))];
};
const pageKey = () => `${lessonAt().id}/${lessonAt().pages.indexOf(pageAt())}`;

function lessonIsDone(lesson) {
  return lesson.pages.every((page, k) => progress.done.has(`${lesson.id}/${k}`));
}

function goToPage(lesson, page) {
  const place = { view: 'learn', lesson, page: String(page) };
  leavePlace();
  Object.assign(state, baseOf(place), place);
  showView();
  enterPlace();
  byId('learn').scrollTop = 0;
  window.scrollTo(0, 0);
  byId('lesson-title').focus({ preventScroll: true });
}

function lessonButton(lesson, k) {
  const current = lesson === lessonAt();
  return element('li', {}, [element('button', { type: 'button', class: 'link', 'aria-current': current ? 'page' : null,
    text: `${k + 1}. ${lesson.title}${lessonIsDone(lesson) ? ' ✓' : ''}`, onclick: () => goToPage(lesson.id, 0) })]);
}

// Where the next button leads: the next page, the next lesson, or out of the lessons.
function afterPage() {
  const lesson = lessonAt();
  const k = lesson.pages.indexOf(pageAt());
  if (k + 1 < lesson.pages.length) return { lesson: lesson.id, page: k + 1, text: 'Next' };
  const next = LESSONS[LESSONS.indexOf(lesson) + 1];
  return next ? { lesson: next.id, page: 0, text: `Next lesson: ${next.title}` } : { lesson: null, text: 'Explore by yourself' };
}

function showTask() {
  const page = pageAt();
  const done = progress.done.has(pageKey());
  byId('task').classList.toggle('done', done);
  byId('task-text').textContent = page.task;
  byId('task-state').textContent = done ? '✓ Done. ' : 'Try it: ';
  byId('task-after').textContent = done ? page.after : '';
  byId('lesson-next').textContent = afterPage().text;
  const pages = LESSONS.reduce((sum, lesson) => sum + lesson.pages.length, 0);
  const tasks = LESSONS.reduce((sum, lesson) => sum + lesson.pages.filter((entry, k) => progress.done.has(`${lesson.id}/${k}`)).length, 0);
  byId('lesson-score').textContent = tasks === 0 ? '' : tasks === pages ? `All ${pages} tasks are done.` : `${tasks} of ${pages} tasks are done.`;
  byId('lesson-next').classList.toggle('primary', done);
  fill(byId('lesson-list'), LESSONS.map(lessonButton));
}

function showLesson() {
  const lesson = lessonAt();
  const page = pageAt();
  byId('lesson-title').textContent = lesson.title;
  byId('lesson-page').textContent = `Lesson ${LESSONS.indexOf(lesson) + 1} of ${LESSONS.length}, page ${lesson.pages.indexOf(page) + 1} of ${lesson.pages.length}`;
  fill(byId('lesson-text'), page.text.map((text) => paragraph(text)));
  byId('lesson-back').disabled = lesson === LESSONS[0] && page === lesson.pages[0];
  showTask();
}

// Called whenever an answer or a setting has changed.
function lessonChanged() {
  if (state.view !== 'learn' || progress.done.has(pageKey())) return;
  const sim = explored.result && explored.result.sim;
  const facts = { sim, plan: explored.plan && explored.plan.report, comparison: explored.comparison, check: checked, gap: explored.gap };
  if (!pageAt().done(facts)) return;
  progress.done.add(pageKey());
  keepProgress();
  showTask();
  announce(`Done. ${pageAt().after}`);
}

function listenToLessons() {
  byId('lesson-next').addEventListener('click', () => {
    const next = afterPage();
    if (next.lesson === null) goToView('explore');
    else goToPage(next.lesson, next.page);
  });
  byId('lesson-back').addEventListener('click', () => {
    const lesson = lessonAt();
    const k = lesson.pages.indexOf(pageAt());
    const before = LESSONS[LESSONS.indexOf(lesson) - 1];
    if (k > 0) goToPage(lesson.id, k - 1);
    else if (before) goToPage(before.id, before.pages.length - 1);
  });
}
