// Events in words: labels, times, and the lines of the tooltip and the panel.

const CAUSE_WORDS = ['before its first action', 'waiting for an activation', 'waiting for a gradient',
  'waiting for the channel', 'waiting for parameters', 'after its last action'];

// Four digits of `step`, of the value itself if left out, but never less than a whole
// number: 957, 52.35, 0.0123, 12,346. With the length of an event for the step, its
// begin and end differ in what is shown.
function formatNumber(value, step) {
  const size = Math.abs(step || value);
  if (!(size > 0)) return '0';
  if (size < 1e-6 || Math.abs(value) >= 1e15) return String(Number(value.toPrecision(4)));
  const decimals = Math.max(0, 3 - Math.floor(Math.log10(size)));
  const [whole, rest] = String(Number(value.toFixed(decimals))).split('.');
  const grouped = Math.abs(value) >= 10000 ? whole.replace(/\B(?=(\d{3})+$)/g, ',') : whole;
  const text = rest === undefined ? grouped : `${grouped}.${rest}`;
  return text === '-0' ? '0' : text;
}

// Costs without a unit are in units of time.
const unitOf = (picture) => picture.unit || 'units of time';

function formatTime(picture, value, step) {
  const number = formatNumber(value, step);
  return `${number} ${picture.unit || (number === '1' ? 'unit' : 'units')}`;
}

const counted = (count, noun, ending) => `${count} ${noun}${count === 1 ? '' : ending || 's'}`;

function formatShare(value) {
  return `${(100 * value).toFixed(1)} %`;
}

function labelOf(model, id) {
  const { events } = model.picture;
  const { op, stage, microbatch, skip } = events;
  const tail = isShard(op[id]) ? '' : microbatch[id];
  const arrow = skip[id] === 0 ? '' : `${isSend(op[id]) ? '>' : '<'}${otherStageOf(events, id)}`;
  return `${stage[id]}${OPS[op[id]].text}${tail}${arrow}`;
}

function cellLabel(model, id) {
  const members = cellOf(model, id);
  if (members.length === 1) return labelOf(model, id);
  return `(${members.map((member) => labelOf(model, member)).join(';')})${OPS[OP.OVERLAP_F_B].text}`;
}

function describe(model, id) {
  const { events, graph } = model.picture;
  const { op, stage, microbatch } = events;
  const of = isShard(op[id]) ? '' : `, microbatch ${microbatch[id]}`;
  const other = graph && isTransfer(op[id])
    ? ` ${isSend(op[id]) ? 'to' : 'from'} ${stageName(model, otherStageOf(events, id))}` : '';
  return `${OPS[op[id]].phrase}, ${stageName(model, stage[id])}${other}${of}`;
}

// With what a graph calls it.
function stageName(model, stage) {
  const name = model.picture.stageNames[stage];
  return `stage ${stage}${name ? ` (${name})` : ''}`;
}

// Of a graph: the edge that an action's input came over.
function edgeWords(model, arrival) {
  const { events, graph } = model.picture;
  if (!graph || arrival.producer === NONE || events.stage[arrival.producer] === events.stage[arrival.by]) return '';
  const ends = [events.stage[arrival.producer], events.stage[arrival.by]].sort((a, b) => a - b);
  return ` over the edge ${ends[0]}>${ends[1]}`;
}

function whereOf(model, id) {
  return `${labelOf(model, id)} on rank ${model.picture.events.rank[id]}`;
}

const rangeText = (picture, from, to) =>
  `${formatNumber(from, to - from)} – ${formatNumber(to, to - from)} ${picture.unit || 'units'}`;

function spanOf(model, id) {
  const { begin, end } = model.picture.events;
  return rangeText(model.picture, begin[id], end[id]);
}

function arrivalWords(model, id, arrival) {
  const { picture } = model;
  const made = arrival.producer === NONE ? labelOf(model, arrival.need) : whereOf(model, arrival.producer);
  const ended = `${made}, which ended at ${formatTime(picture, arrival.made)}`;
  if (arrival.there === arrival.made) return ended;
  const what = picture.events.op[arrival.by] === OP.F ? 'activation' : 'gradient';
  const wait = arrival.sent - arrival.made;
  const queued = wait > 0 ? `, after ${formatTime(picture, wait)} in the channel's queue` : '';
  return `${ended}; its ${what} arrived${edgeWords(model, arrival)} at ${formatTime(picture, arrival.there)}${queued}`;
}

function transferWords(model, id) {
  const { picture } = model;
  const producer = producerOf(model, id);
  if (producer === NONE) return 'nothing';
  const made = picture.events.end[producer];
  const wait = picture.events.begin[id] - made;
  const queued = wait > 0 ? `, then ${formatTime(picture, wait)} in the channel's queue` : '';
  return `${whereOf(model, producer)}, which ended at ${formatTime(picture, made)}${queued}`;
}

// What an event waited for, in words.
function waitWords(model, id) {
  const { events } = model.picture;
  if (isTransfer(events.op[id])) return transferWords(model, id);
  if (!isCompute(events.op[id])) {
    const needs = needsOf(model, id);
    return needs.length > 0 ? whereOf(model, needs[0]) : 'nothing';
  }
  const idle = idleBefore(model, id);
  const arrival = bindingOf(model, id);
  if (idle.length > 0 && idle[idle.length - 1].cause === CAUSE.UNSHARD) {
    return `${labelOf(model, unshardOf(model, id))}, the parameters of stage ${events.stage[id]}`;
  }
  if (idle.length > 0 && arrival !== null) return arrivalWords(model, id, arrival);
  const previous = previousOf(model, id);
  return previous === NONE ? 'nothing' : `${cellLabel(model, previous)}, just before it on the rank`;
}

function stretchWords(model, stretch) {
  return `${formatTime(model.picture, stretch.end - stretch.begin)} ${CAUSE_WORDS[stretch.cause]}`;
}

function idleWords(model, id) {
  const idle = idleBefore(model, id);
  return idle.length === 0 ? 'none' : idle.map((stretch) => stretchWords(model, stretch)).join(', ');
}

// The lines of the tooltip over an event.
function eventLines(model, id) {
  const { events } = model.picture;
  const lines = [
    `${cellLabel(model, id)} · rank ${events.rank[id]}`,
    describe(model, id),
    `${spanOf(model, id)}, takes ${formatTime(model.picture, events.end[id] - events.begin[id])}`,
    `waited for ${waitWords(model, id)}`,
  ];
  if (isCompute(events.op[id])) lines.push(`idle before it: ${idleWords(model, id)}`);
  return lines;
}

// ---- Why a gap is there, and what would remove it ----

// How long before the gap's end its data was made, as far as the gap reaches: its transfer.
function transferShare(model, stretch, arrival) {
  return Math.max(0, stretch.end - Math.max(stretch.begin, arrival.made));
}

const splitsBackward = (model) => model.picture.events.op.includes(OP.I);

function startWords(model, rank, stretch) {
  if (stretch.before === NONE) return ['This rank has nothing to do.', 'Give it a stage.'];
  const stage = model.picture.events.stage[stretch.before];
  if (model.picture.graph && stage > 0) {
    return [`The first microbatch has to pass the stages that feed stage ${stage} before ${labelOf(model, stretch.before)} can begin: the pipeline fills.`,
      'More microbatches make this a smaller share of the step; more, smaller stages per rank make it shorter.'];
  }
  if (stage === 0) return [`${labelOf(model, stretch.before)} begins later than the first action of another rank.`, ''];
  return [
    `The first microbatch has to pass ${stage === 1 ? 'stage 0' : `stages 0 to ${stage - 1}`} before ${labelOf(model, stretch.before)} can begin: the pipeline fills.`,
    'More microbatches make this a smaller share of the step; more, smaller stages per rank make it shorter.',
  ];
}

function endWords(model) {
  const [last, rank] = [model.origin + model.picture.makespan, model.picture.rankTimes.findIndex((times) =>
    times.lastEnd === Math.max(...model.picture.rankTimes.map((other) => other.lastEnd)))];
  return [
    `This rank is done; rank ${rank} works until ${formatTime(model.picture, last)}: the pipeline drains.`,
    splitsBackward(model) ? 'Only weight gradients saved for the end would fill it, or the next step, if steps follow without a barrier.'
      : 'Splitting the backward into I and W lets weight gradients run here; steps that follow without a barrier fill it too.',
  ];
}

function dataWords(model, rank, stretch) {
  const { picture } = model;
  const arrival = bindingOf(model, stretch.before);
  if (arrival === null) return [`${labelOf(model, stretch.before)} could not begin earlier.`, ''];
  const what = stretch.cause === CAUSE.FORWARD ? 'activation' : 'gradient';
  const transfer = transferShare(model, stretch, arrival);
  const made = `${arrival.producer === NONE ? labelOf(model, arrival.need) : whereOf(model, arrival.producer)}${edgeWords(model, arrival)}`;
  if (transfer >= 0.999 * (stretch.end - stretch.begin)) {
    return [`The ${what} for ${labelOf(model, arrival.by)} was made in time, by ${made}, and was still under way: a transfer takes ${formatTime(picture, arrival.there - arrival.sent)}.`,
      'A faster link, or one more microbatch in flight on this rank, hides the transfer.'];
  }
  const why = `${labelOf(model, arrival.by)} needs the ${what} that ${made} finished only at ${formatTime(picture, arrival.made)}.`;
  if (stretch.cause === CAUSE.FORWARD) {
    return [why, 'It goes away when that rank runs its forward earlier, or when this rank has a backward to do meanwhile.'];
  }
  return [why, splitsBackward(model)
    ? 'A weight gradient kept for this moment would fill it, or another microbatch in flight, at the price of its memory.'
    : 'Splitting the backward hands the gradient on earlier, and leaves weight gradients to fill the gap; another microbatch in flight fills it too, at the price of its memory.'];
}

// A sentence why the gap is there, and one about what would remove it.
function gapWords(model, rank, stretch) {
  switch (stretch.cause) {
    case CAUSE.START: return startWords(model, rank, stretch);
    case CAUSE.END: return endWords(model);
    case CAUSE.CHANNEL:
      return [`The message for ${labelOf(model, stretch.before)} waited behind others on the same channel.`,
        'A channel for each stage boundary and direction (edge) lets it pass.'];
    case CAUSE.UNSHARD:
      return [`The parameters for ${labelOf(model, stretch.before)} were being gathered.`,
        'A larger window (weft lower --window) gathers them earlier.'];
    default: return dataWords(model, rank, stretch);
  }
}

// The lines of the tooltip over an idle gap.
function gapLines(model, rank, stretch) {
  return [`idle · rank ${rank}`, `${rangeText(model.picture, stretch.begin, stretch.end)}: ${stretchWords(model, stretch)}`,
    ...gapWords(model, rank, stretch).filter((text) => text !== '')];
}

function memoryLines(model, rank, size, time) {
  const times = model.picture.rankTimes[rank];
  const lines = [
    `activations · rank ${rank}`,
    `${formatNumber(size)} at ${formatTime(model.picture, time)}`,
    `peak ${formatNumber(times.peakActivation)} at ${formatTime(model.picture, times.peakAt)}`,
  ];
  if (times.peakMemory !== times.peakActivation) {
    lines.push(`with parameters and gradients ${formatNumber(times.peakMemory)}`);
  }
  return lines;
}
