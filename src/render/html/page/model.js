// What the drawing and the panels ask of a schedule: lanes to search by time,
// idle stretches with their causes, and the dependencies of an event.

// OPS is the op table (ops.js.in); OP.F is the number of F.
const OP = Object.fromEntries(OPS.map((op, number) => [op.name, number]));
const CAUSE = { START: 0, FORWARD: 1, GRADIENT: 2, CHANNEL: 3, UNSHARD: 4, END: 5 };
const NONE = -1;

const KIND = OPS.map((op) => op.kind);
const COMPUTE_OPS = OPS.map((op, number) => number).filter((number) => KIND[number] === 'COMPUTE');
const COMPUTE_PLACE = OPS.map((op, number) => COMPUTE_OPS.indexOf(number)); // among those
const isCompute = (op) => KIND[op] === 'COMPUTE';
const isSend = (op) => KIND[op] === 'SEND';
const isReceive = (op) => KIND[op] === 'RECV';
const isShard = (op) => KIND[op] === 'SHARD';
const isTransfer = (op) => isSend(op) || isReceive(op);

// Events of one kind on one rank, by begin. `endMax` is the running maximum of
// the ends, so that both ends of a window are found by binary search; `longest` is
// the most time of one, so that detail for which there is no room costs nothing.
// `slices`: equal parts of the height, one for each part of an overlap.
function makeLane(events, part, list) {
  const ids = Uint32Array.from(list);
  const inOrder = ids.every((id, i) => i === 0 || events.begin[ids[i - 1]] <= events.begin[id]);
  if (!inOrder) ids.sort((a, b) => events.begin[a] - events.begin[b] || a - b);
  const lane = { ids, begin: new Float64Array(ids.length), endMax: new Float64Array(ids.length),
    longest: 0, hasInstants: false, slices: 1 };
  let endMax = -Infinity;
  for (let i = 0; i < ids.length; i++) {
    lane.begin[i] = events.begin[ids[i]];
    endMax = Math.max(endMax, events.end[ids[i]]);
    lane.endMax[i] = endMax;
    const length = events.end[ids[i]] - lane.begin[i];
    lane.longest = Math.max(lane.longest, length);
    lane.hasInstants = lane.hasInstants || length === 0;
    lane.slices = Math.max(lane.slices, part[ids[i]] >> 4);
  }
  return lane;
}

// The first index in [from, array.length) whose value is above, or at least, `value`.
function firstAbove(array, value, from) {
  let low = from || 0;
  let high = array.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (array[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

function firstAtLeast(array, value) {
  let low = 0;
  let high = array.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (array[middle] >= value) high = middle; else low = middle + 1;
  }
  return low;
}

// The parts of an overlap know their place in it: 16 × parts + place.
function markParts(events) {
  const part = new Uint16Array(events.count);
  for (let id = 0; id < events.count; id++) {
    if (events.op[id] !== OP.OVERLAP_F_B) continue;
    const parts = Math.min(events.stage[id], 15, events.count - id - 1);
    for (let k = 0; k < parts; k++) part[id + 1 + k] = 16 * parts + k;
  }
  return part;
}

function lanesOf(model, rank) {
  const lists = { compute: [], sends: [], receives: [], shards: [] };
  const { events, rowBegin } = model.picture;
  for (let id = rowBegin[rank]; id < rowBegin[rank + 1]; id++) {
    const op = events.op[id];
    if (isCompute(op)) lists.compute.push(id);
    else if (isSend(op)) lists.sends.push(id);
    else if (isReceive(op)) lists.receives.push(id);
    else if (isShard(op)) lists.shards.push(id);
  }
  const lanes = {};
  for (const name of Object.keys(lists)) lanes[name] = makeLane(events, model.part, lists[name]);
  return lanes;
}

// links reversed: what needs an event.
function successorsOf(events) {
  const begin = new Uint32Array(events.count + 2);
  for (const other of events.links) begin[other + 2]++;
  for (let i = 2; i < begin.length; i++) begin[i] += begin[i - 1];
  const ids = new Uint32Array(events.links.length);
  for (let id = 0; id < events.count; id++) {
    for (let k = events.linkBegin[id]; k < events.linkBegin[id + 1]; k++) {
      ids[begin[events.links[k] + 1]++] = id;
    }
  }
  return { begin, ids };
}

// The events of the overlap that this one is part of, itself included.
function cellOf(model, id) {
  const part = model.part[id];
  if (part === 0) return [id];
  const first = id - (part & 15);
  return Array.from({ length: part >> 4 }, (unused, k) => first + k);
}

function needsOf(model, id) {
  const { linkBegin, links } = model.picture.events;
  return Array.from(links.subarray(linkBegin[id], linkBegin[id + 1]));
}

// The stage at the other end of a transfer.
function otherStageOf(events, id) {
  const up = events.op[id] === OP.SEND_F || events.op[id] === OP.RECV_B;
  return up ? events.stage[id] + 1 + events.skip[id] : events.stage[id] - 1 - events.skip[id];
}

// Where the data of a transfer was made: through RECV and SEND to the action.
function producerOf(model, id) {
  const { op } = model.picture.events;
  let at = id;
  for (let hops = 0; isTransfer(op[at]); hops++) {
    const needs = needsOf(model, at);
    if (needs.length === 0 || hops > 2) return NONE;
    at = needs[0];
  }
  return at;
}

// One thing that an event needs: when it was made, when its transfer began, and
// when it was there. A table has no RECV: then the transfer takes a hop, and
// may have been queued longer than that says (see settle); a graph's says how long.
function arrivalOf(model, id, link) {
  const { events, hop } = model.picture;
  const need = events.links[link];
  if (isReceive(events.op[need])) {
    const producer = producerOf(model, need);
    const made = producer === NONE ? events.begin[need] : events.end[producer];
    return { by: id, need, producer, made, sent: events.begin[need], there: events.end[need] };
  }
  const made = events.end[need];
  const crosses = events.rank[need] !== events.rank[id];
  const travel = events.travel[link] >= 0 ? events.travel[link] : hop;
  return { by: id, need, producer: need, made, sent: made, there: crosses ? made + travel : made };
}

// In a table, the time between the hop's end and the begin of the event that
// waited for nothing else was spent in the queue of the channel.
function settle(model, arrival, begin) {
  const { events } = model.picture;
  const crosses = events.rank[arrival.need] !== events.rank[arrival.by];
  if (!crosses || arrival.there >= begin) return arrival;
  return Object.assign({}, arrival, { sent: arrival.sent + begin - arrival.there, there: begin });
}

// The need that arrived last: what the event waited for when it waited.
function bindingOf(model, id) {
  const { linkBegin } = model.picture.events;
  let last = null;
  for (const member of cellOf(model, id)) {
    for (let link = linkBegin[member]; link < linkBegin[member + 1]; link++) {
      const arrival = arrivalOf(model, member, link);
      if (last === null || arrival.there > last.there) last = arrival;
    }
  }
  if (last === null || unshardOf(model, id) !== NONE) return last;
  return settle(model, last, model.picture.events.begin[id]);
}

// An UNSHARD for the event, or for what overlaps it, that ends as it begins.
function unshardOf(model, id) {
  const { events } = model.picture;
  const lane = model.lanes[events.rank[id]].shards;
  const stages = cellOf(model, id).map((member) => events.stage[member]);
  for (let i = firstAbove(lane.begin, events.begin[id]) - 1; i >= 0; i--) {
    const other = lane.ids[i];
    if (lane.endMax[i] < events.begin[id]) return NONE;
    if (events.op[other] === OP.UNSHARD && stages.includes(events.stage[other]) &&
        events.end[other] === events.begin[id] && events.begin[other] < events.end[other]) return other;
  }
  return NONE;
}

function pushStretch(stretches, begin, end, cause, before) {
  const last = stretches[stretches.length - 1];
  if (!(end > begin)) return;
  if (last && last.cause === cause && last.before === before && last.end === begin) last.end = end;
  else stretches.push({ begin, end, cause, before });
}

// Why the rank was idle in [from, to), after which `id` began. The shares are the
// simulator's: the time in the queue goes to the channel, also where it began
// before the gap, since without it the gap would be shorter by that much.
// Before the first compute it is the start, unless parameters came last.
function explainGap(model, id, from, to, starts, stretches) {
  const arrival = bindingOf(model, id);
  if (arrival === null || (arrival.there < to && unshardOf(model, id) !== NONE)) {
    pushStretch(stretches, from, to, CAUSE.UNSHARD, id);
    return;
  }
  if (starts) {
    pushStretch(stretches, from, to, CAUSE.START, id);
    return;
  }
  const data = model.picture.events.op[arrival.by] === OP.F ? CAUSE.FORWARD : CAUSE.GRADIENT;
  const queueBegin = Math.min(to, Math.max(from, arrival.made));
  const queueEnd = Math.min(to, queueBegin + arrival.sent - arrival.made);
  pushStretch(stretches, from, queueBegin, data, id);
  pushStretch(stretches, queueBegin, queueEnd, CAUSE.CHANNEL, id);
  pushStretch(stretches, queueEnd, to, data, id);
}

// Where a rank begins by gathering parameters: when; else null.
function gatheringFrom(model, rank) {
  const { shards, compute } = model.lanes[rank];
  const { events } = model.picture;
  const timed = shards.ids.find((id) => events.end[id] > events.begin[id]);
  return timed !== undefined && (compute.ids.length === 0 || timed < compute.ids[0]) ? events.begin[timed] : null;
}

function idleOf(model, rank) {
  const { events } = model.picture;
  const stretches = [];
  const gathers = gatheringFrom(model, rank);
  const [first] = model.lanes[rank].compute.ids;
  let free = model.origin;
  let started = gathers !== null;
  if (started && first !== undefined) {
    pushStretch(stretches, free, gathers, CAUSE.START, first);
    free = Math.max(free, gathers);
  }
  for (const id of model.lanes[rank].compute.ids) {
    if (events.begin[id] > free) {
      if (started) explainGap(model, id, free, events.begin[id], id === first, stretches);
      else pushStretch(stretches, free, events.begin[id], CAUSE.START, id);
    }
    started = true;
    free = Math.max(free, events.end[id]);
  }
  pushStretch(stretches, free, model.origin + model.picture.makespan, started ? CAUSE.END : CAUSE.START, NONE);
  return { stretches, begin: Float64Array.from(stretches, (s) => s.begin),
    end: Float64Array.from(stretches, (s) => s.end),
    longest: stretches.reduce((most, s) => Math.max(most, s.end - s.begin), 0) };
}

// First begin and last end of everything, and the begin of the first work.
function measure(model) {
  const { events } = model.picture;
  model.first = Infinity;
  model.last = -Infinity;
  model.origin = Infinity;
  for (let id = 0; id < events.count; id++) {
    model.first = Math.min(model.first, events.begin[id]);
    model.last = Math.max(model.last, events.end[id]);
    const works = isCompute(events.op[id]) || (isShard(events.op[id]) && events.end[id] > events.begin[id]);
    if (works) model.origin = Math.min(model.origin, events.begin[id]);
  }
  if (model.origin === Infinity) model.origin = 0;
  if (!(model.last > model.first)) Object.assign(model, { first: 0, last: 1 });
}

// Which of its rank's stages a stage is, and the most stages of a rank: as in SVG.
function markChunks(model) {
  const { events, stages, ranks } = model.picture;
  const owner = new Uint16Array(stages);
  const next = new Uint32Array(ranks);
  for (let id = 0; id < events.count; id++) {
    if (isCompute(events.op[id])) owner[events.stage[id]] = events.rank[id];
  }
  model.chunkOf = Uint32Array.from(owner, (rank) => next[rank]++);
  model.chunks = next.reduce((most, count) => Math.max(most, count), 1);
}

// How long actions take: the shortest, and what nine in ten take at least. They decide about
// labels and about whether colours mix.
function measureCells(model) {
  const { events } = model.picture;
  const lengths = [];
  for (let id = 0; id < events.count; id++) {
    if (isCompute(events.op[id]) && events.end[id] > events.begin[id]) lengths.push(events.end[id] - events.begin[id]);
  }
  const sorted = Float64Array.from(lengths).sort();
  model.shortest = sorted.length > 0 ? sorted[0] : 0;
  model.usual = sorted.length > 0 ? sorted[Math.floor(sorted.length / 10)] : 0;
  model.slices = Math.max(1, ...model.lanes.map((lanes) => lanes.compute.slices));
}

function buildModel(picture) {
  const model = { picture, part: markParts(picture.events), lanes: [], idle: [] };
  markChunks(model);
  measure(model);
  for (let rank = 0; rank < picture.ranks; rank++) model.lanes.push(lanesOf(model, rank));
  for (let rank = 0; rank < picture.ranks; rank++) model.idle.push(idleOf(model, rank));
  model.successors = successorsOf(picture.events);
  model.hasTransfers = picture.events.op.some(isTransfer);
  model.hasShards = model.lanes.some((lanes) => lanes.shards.longest > 0);
  measureCells(model);
  model.memoryPeak = Math.max(0, ...picture.rankTimes.map((times) => times.peakActivation));
  return model;
}

// The idle stretches right before an event.
function idleBefore(model, id) {
  const idle = model.idle[model.picture.events.rank[id]];
  const { begin } = model.picture.events;
  const found = [];
  for (let i = firstAtLeast(idle.end, begin[id]); i >= 0; i--) {
    const stretch = idle.stretches[i];
    if (!stretch || stretch.begin >= begin[id]) continue;
    if (stretch.end !== (found.length > 0 ? found[0].begin : begin[id])) break;
    found.unshift(stretch);
  }
  return found;
}

// The cell that ran on the rank before this event; NONE for the first.
function previousOf(model, id) {
  const { events } = model.picture;
  const lane = model.lanes[events.rank[id]].compute;
  const first = cellOf(model, id)[0];
  const i = Array.prototype.indexOf.call(lane.ids, first, firstAtLeast(lane.begin, events.begin[id]));
  return i > 0 ? lane.ids[i - 1] : NONE;
}

function collect(start, next) {
  const seen = new Set(start);
  const queue = Array.from(start);
  for (let i = 0; i < queue.length; i++) {
    for (const other of next(queue[i])) {
      if (!seen.has(other)) {
        seen.add(other);
        queue.push(other);
      }
    }
  }
  return queue.slice(start.length);
}

// All that an event needs, and all that needs it, in order of time.
function chainOf(model, id) {
  const { events } = model.picture;
  const { begin, ids } = model.successors;
  const byTime = (a, b) => events.begin[a] - events.begin[b] || events.end[a] - events.end[b] || a - b;
  const before = collect([id], (other) => needsOf(model, other)).sort(byTime);
  const after = collect([id], (other) => ids.subarray(begin[other], begin[other + 1])).sort(byTime);
  const all = new Set([id, ...before, ...after]);
  return { before, after, all, links: chainLinks(model, id, all) };
}

// Pairs of actions of a chain, the first needed by the second. From F to B on a
// rank only for the chosen one: the others add nothing.
function chainLinks(model, id, all) {
  const { events } = model.picture;
  const links = [];
  for (const other of all) {
    if (!isCompute(events.op[other])) continue;
    for (const need of needsOf(model, other)) {
      const producer = producerOf(model, need);
      const near = other === id || producer === id;
      const samePlace = producer !== NONE && events.rank[producer] === events.rank[other] &&
        events.stage[producer] === events.stage[other];
      if (producer !== NONE && all.has(producer) && (near || !samePlace)) links.push([producer, other]);
    }
  }
  return links;
}

// The critical path as a chain: its actions one after the other.
function pathChain(model) {
  const { path, events } = model.picture;
  const actions = Array.from(path).filter((id) => !isTransfer(events.op[id]));
  const links = actions.slice(1).map((id, k) => [actions[k], id]);
  return { all: new Set(path), actions, links };
}

// The first event that is written so, compute before communication.
function findAction(model, text) {
  const match = /^\s*(\d+)\s*([A-Z_]+?)\s*(\d*)\s*(?:[<>]\s*(\d+))?\s*$/i.exec(text);
  if (!match) return NONE;
  const op = OPS.findIndex((info) => info.text === match[2].toUpperCase());
  const { events } = model.picture;
  for (let id = 0; op > 0 && id < events.count; id++) {
    if (events.op[id] === op && events.stage[id] === Number(match[1]) &&
        (match[4] === undefined ? events.skip[id] === 0 : isTransfer(op) && otherStageOf(events, id) === Number(match[4])) &&
        (isShard(op) || events.microbatch[id] === Number(match[3] || 0))) return id;
  }
  return NONE;
}
