// A program, action by action: the moves that `weft verify --trace` lists, one after the other, so
// that a number of moves names a state. `rows` are those of `weft explain --json`.

const ENOUGH = 50000; // instructions that are stepped through

class Stepper {
  constructor(rows, verdict) {
    this.rows = rows.map((row) => row.instructions);
    this.events = verdict.moves;
    this.ok = verdict.ok;
    this.rank = []; // of each rank: what is listed of each step
    [...verdict.moves, ...verdict.waits].forEach((event, number) => {
      (this.rank[event.rank] = this.rank[event.rank] || []) [event.step] = { ...event, number };
    });
    this.numbers = new Map(this.events.map((event, number) => [`${event.rank} ${event.action}`, number]));
    this.goTo(0);
  }

  // What is listed of an instruction; that of what comes behind a stuck one is not.
  eventOf(rank, instruction) {
    return (this.rank[rank] || [])[instruction.step];
  }

  done(rank, index) {
    const event = this.eventOf(rank, this.rows[rank][index]);
    return event !== undefined && event.number < this.moves;
  }

  // So many moves from the beginning, or as many as there are.
  goTo(moves) {
    this.moves = Math.max(0, Math.min(moves, this.events.length));
    this.at = this.rows.map((row, rank) => {
      const first = row.findIndex((instruction, index) => !this.done(rank, index));
      return first < 0 ? row.length : first;
    });
    this.last = this.moves > 0 ? this.events[this.moves - 1] : null;
  }

  current(rank) {
    return this.rows[rank][this.at[rank]];
  }

  finished() {
    return this.moves === this.events.length && this.at.every((at, rank) => at === this.rows[rank].length);
  }

  stuck() {
    return this.moves === this.events.length && !this.finished();
  }

  // Whether the rank's action waits for nothing that is not done.
  canMove(rank) {
    const instruction = this.current(rank);
    const event = instruction && this.eventOf(rank, instruction);
    if (!event || event.number >= this.events.length) return false;
    return event.number === this.moves || !event.after || this.numbers.get(`${event.after.rank} ${event.after.action}`) < this.moves;
  }

  // What a rank that cannot go on waits for, in words.
  waitWords(rank) {
    const event = this.current(rank) && this.eventOf(rank, this.current(rank));
    return event && event.after ? `waits for ${event.after.action} on rank ${event.after.rank}` : 'waits';
  }

  // Messages whose SEND is done, and whose RECV is not: "rank 0 to 1" and the SENDs.
  messages() {
    const found = new Map();
    this.rows.forEach((row, rank) => row.forEach((instruction, index) => {
      const { peer } = instruction;
      if (!instruction.op.startsWith('SEND') || !peer || !this.done(rank, index) || this.done(peer.rank, peer.index)) return;
      const key = `rank ${rank} to ${peer.rank}`;
      found.set(key, [...(found.get(key) || []), instruction.action]);
    }));
    return Array.from(found);
  }
}
