// The data of a page: JSON with a base64 stream per schedule, as written by
// src/render/html/render_html.c, which describes the stream. A file that someone
// loads is not trusted: every count is checked before it is used.

const SCHEMA = 'weft-timeline/1';
const EVENTS_MAX = 10000000;
const RANKS_MAX = 65536;
const CAUSES = ['start', 'forward', 'gradient', 'channel', 'unshard', 'end'];

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  byte() {
    if (this.at >= this.bytes.length) throw new Error('the data ends too early');
    return this.bytes[this.at++];
  }

  // Times of 64 bits become doubles: exact to 2^53.
  number() {
    let value = 0;
    let scale = 1;
    for (let bits = 0; bits < 70; bits += 7) {
      const byte = this.byte();
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
    throw new Error('a number is too long');
  }

  signed() {
    const value = this.number();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }

  real() {
    if (this.at + 8 > this.bytes.length) throw new Error('the data ends too early');
    const value = this.view.getFloat64(this.at, true);
    if (!Number.isFinite(value)) throw new Error('a number is not finite');
    this.at += 8;
    return value;
  }

  // How many things follow, each of at least so many bytes.
  count(limit, what, bytesEach) {
    const value = this.number();
    if (value > limit) throw new Error(`${value} ${what} are more than ${limit}`);
    if (value * bytesEach > this.bytes.length - this.at) throw new Error('the data ends too early');
    return value;
  }
}

function readRankTimes(reader) {
  const times = {};
  for (const field of ['busy', 'idle', 'firstStart', 'lastEnd', 'span']) times[field] = reader.real();
  times.idleByCause = CAUSES.map(() => reader.real());
  for (const field of ['peakActivation', 'peakMemory', 'peakAt']) times[field] = reader.real();
  times.receiveBuffersPeak = reader.number();
  return times;
}

function makeEvents(count) {
  return {
    count,
    op: new Uint8Array(count),
    stage: new Uint16Array(count),
    skip: new Uint8Array(count), // of a transfer: the stages between its ends
    microbatch: new Uint32Array(count),
    rank: new Uint16Array(count),
    begin: new Float64Array(count),
    end: new Float64Array(count),
    linkBegin: new Uint32Array(count + 1),
    links: [],
    travel: [], // [link] from the end of the other event to when what it made was there; NaN: unknown
  };
}

function readLinks(reader, events, id, count, graph, perUnit) {
  events.linkBegin[id] = events.links.length;
  for (let k = 0; k < count; k++) {
    const other = id + reader.signed();
    if (!(other >= 0 && other < events.count)) throw new Error('a link leads nowhere');
    events.links.push(other);
    events.travel.push(graph ? reader.number() / perUnit : NaN);
  }
}

function readRow(reader, events, rank, first, count, { ticksPerUnit: perUnit, graph }) {
  let begin = 0;
  for (let id = first; id < first + count; id++) {
    const head = reader.byte();
    events.op[id] = head & 15;
    if (!(events.op[id] > OP.IDLE && events.op[id] < OPS.length)) throw new Error('an op is unknown');
    const links = (head >> 4) + (head >> 4 === 15 ? reader.number() : 0);
    events.stage[id] = reader.count(RANKS_MAX, 'stages', 0);
    if (graph && isTransfer(events.op[id])) events.skip[id] = reader.count(255, 'stages skipped', 0);
    events.microbatch[id] = reader.number();
    events.rank[id] = rank;
    begin += reader.signed();
    events.begin[id] = begin / perUnit;
    events.end[id] = (begin + reader.number()) / perUnit;
    readLinks(reader, events, id, links, graph, perUnit);
  }
}

function readEvents(reader, picture) {
  const events = makeEvents(reader.count(EVENTS_MAX, 'events', 5));
  picture.rowBegin = new Uint32Array(picture.ranks + 1);
  for (let rank = 0; rank < picture.ranks; rank++) {
    const first = picture.rowBegin[rank];
    const count = reader.count(events.count - first, 'events of a rank', 5);
    readRow(reader, events, rank, first, count, picture);
    picture.rowBegin[rank + 1] = first + count;
  }
  if (picture.rowBegin[picture.ranks] !== events.count) throw new Error('events are missing');
  events.linkBegin[events.count] = events.links.length;
  events.links = Uint32Array.from(events.links);
  events.travel = Float64Array.from(events.travel);
  picture.events = events;
}

function readCurve(reader, perUnit) {
  const count = reader.count(EVENTS_MAX * 2, 'points of memory', 9);
  const curve = { at: new Float64Array(count), size: new Float64Array(count) };
  let at = 0;
  for (let i = 0; i < count; i++) {
    at += reader.number();
    curve.at[i] = at / perUnit;
    curve.size[i] = reader.real();
  }
  return curve;
}

function readPath(reader, events) {
  const path = new Uint32Array(reader.count(events.count, 'events of the critical path', 1));
  let id = 0;
  for (let i = 0; i < path.length; i++) {
    id += reader.signed();
    if (!(id >= 0 && id < events.count)) throw new Error('the critical path leads nowhere');
    path[i] = id + (events.op[id] === OP.OVERLAP_F_B && id + 1 < events.count ? 1 : 0); // its first part
  }
  return path;
}

function textField(source, field) {
  if (typeof source[field] !== 'string') throw new Error(`"${field}" is not a text`);
  return source[field];
}

// The edges of a graph, as in the row of a file, and what its stages are called.
function readGraph(source, picture) {
  picture.graph = source.edges !== undefined;
  const edges = Array.isArray(source.edges) ? source.edges.filter(Array.isArray) : [];
  picture.edges = edges.map(([from, to, gradient]) => `${Number(from)}>${Number(to)}${gradient ? '' : 'F'}`);
  picture.stageNames = Array.isArray(source.stageNames) ? source.stageNames.map(String) : [];
}

function decodePicture(source) {
  const picture = { name: textField(source, 'name'), unit: textField(source, 'unit'),
    note: source.note === undefined ? '' : textField(source, 'note') };
  readGraph(source, picture);
  const reader = new Reader(bytesOf(textField(source, 'data')));
  picture.ranks = reader.count(RANKS_MAX, 'ranks', 113);
  picture.stages = reader.count(RANKS_MAX, 'stages', 0);
  picture.microbatches = reader.number();
  for (const field of ['ticksPerUnit', 'makespan', 'span', 'bubbleRatio', 'spanBubbleRatio',
    'peakActivation', 'hop']) picture[field] = reader.real();
  if (!(picture.ticksPerUnit > 0)) throw new Error('ticks per unit are not positive');
  picture.rankTimes = [];
  for (let rank = 0; rank < picture.ranks; rank++) picture.rankTimes.push(readRankTimes(reader));
  readEvents(reader, picture);
  picture.memory = [];
  for (let rank = 0; rank < picture.ranks; rank++) {
    picture.memory.push(readCurve(reader, picture.ticksPerUnit));
  }
  picture.path = readPath(reader, picture.events);
  picture.stageColours = { light: textField(source, 'stageLight'), dark: textField(source, 'stageDark') };
  return picture;
}

// From the data's text to {pictures, palette, colourBy}.
function decodeData(text) {
  const source = JSON.parse(text);
  if (source === null || source.schema !== SCHEMA) throw new Error(`this is not "${SCHEMA}"`);
  if (!Array.isArray(source.pictures) || source.pictures.length === 0) throw new Error('it has no schedule');
  return {
    pictures: source.pictures.map(decodePicture),
    palette: source.palette,
    colourBy: source.colourBy === 'stage' ? 'stage' : 'op',
  };
}

// The data inside another page, or the text itself when it is data already.
function dataInside(text) {
  const opening = '<script type="application/json" id="weft-data">';
  const begin = text.indexOf(opening);
  if (begin < 0) return text;
  const end = text.indexOf('<' + '/script>', begin); // in one piece it would end this script
  return text.slice(begin + opening.length, end < 0 ? undefined : end);
}
