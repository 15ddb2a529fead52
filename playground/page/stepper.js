// A program, action by action, under a communication model: the rules of weft/verify.h.
//
//   A rank takes its actions in order. A RECV is done when its message is the oldest on its
//   channel. A SEND is done when its message has been received (rendezvous), when fewer than K
//   older messages wait on its channel (slots:K), or at once (eager).
//
// `rows` are those of `weft explain --json`; the order of moves is fixed, so that a number of moves
// names a state.

const ENOUGH = 50000; // instructions that are stepped through

function capacityOf(comm) {
  if (comm === 'rendezvous') return 0;
  return comm === 'eager' ? Infinity : Number(comm.split(':')[1]);
}

// The queue that a message goes through.
function channelKey(instruction, scope) {
  const { kind, from_stage: from, to_stage: to, from_rank: sender, to_rank: receiver } = instruction.channel;
  if (scope === 'rank') return `rank ${sender}`;
  return scope === 'pair' ? `rank ${sender} to ${receiver}` : `${kind} ${from} to ${to}`;
}

const isSendOp = (instruction) => instruction.op.startsWith('SEND');
const isReceiveOp = (instruction) => instruction.op.startsWith('RECV');

class Stepper {
  constructor(rows, comm, scope) {
    this.rows = rows.map((row) => row.instructions);
    this.capacity = capacityOf(comm);
    this.scope = scope;
    this.reset();
  }

  reset() {
    this.at = this.rows.map(() => 0);
    this.queues = new Map(); // channel: messages, the oldest first, as "rank:index" of their SEND
    this.moves = 0;
    this.turn = 0;
    this.last = null; // what the latest move did
  }

  current(rank) {
    return this.rows[rank][this.at[rank]];
  }

  done({ rank, index }) {
    return index < this.at[rank];
  }

  queueOf(instruction) {
    const key = channelKey(instruction, this.scope);
    if (!this.queues.has(key)) this.queues.set(key, []);
    return this.queues.get(key);
  }

  // Whether the rank can go on now; for a rendezvous, the receiver moves both.
  canMove(rank) {
    const instruction = this.current(rank);
    if (!instruction || !instruction.needs.every((need) => this.done(need))) return false;
    if (isSendOp(instruction)) return this.capacity > 0 && this.queueOf(instruction).length < this.capacity;
    if (!isReceiveOp(instruction)) return true;
    const { peer } = instruction;
    if (!peer) return false;
    if (this.capacity === 0) return this.at[peer.rank] === peer.index && this.sendIsReady(peer.rank);
    return this.queueOf(instruction)[0] === `${peer.rank}:${peer.index}`;
  }

  sendIsReady(rank) {
    return this.current(rank).needs.every((need) => this.done(need));
  }

  // One move; false when no rank can go on.
  step() {
    for (let k = 0; k < this.rows.length; k++) {
      const rank = (this.turn + k) % this.rows.length;
      if (!this.canMove(rank)) continue;
      this.move(rank);
      this.turn = (rank + 1) % this.rows.length;
      this.moves++;
      return true;
    }
    return false;
  }

  move(rank) {
    const instruction = this.current(rank);
    const moved = [{ rank, action: instruction.action }];
    if (isSendOp(instruction)) {
      this.queueOf(instruction).push(`${rank}:${this.at[rank]}`);
    } else if (isReceiveOp(instruction)) {
      if (this.capacity === 0) {
        moved.push({ rank: instruction.peer.rank, action: instruction.peer.action });
        this.at[instruction.peer.rank]++;
      } else {
        this.queueOf(instruction).shift();
      }
    }
    this.at[rank]++;
    this.last = moved;
  }

  // So many moves from the beginning, or as many as there are.
  goTo(moves) {
    if (moves < this.moves) this.reset();
    while (this.moves < moves && this.step());
  }

  finished() {
    return this.rows.every((row, rank) => this.at[rank] >= row.length);
  }

  stuck() {
    return !this.finished() && !this.rows.some((row, rank) => this.canMove(rank));
  }

  // What a rank that cannot go on waits for, in words.
  waitWords(rank) {
    const instruction = this.current(rank);
    if (!instruction) return 'done';
    const missing = instruction.needs.find((need) => !this.done(need));
    if (missing) return `waits for ${missing.action} on rank ${missing.rank}`;
    const { peer } = instruction;
    if (!peer) return isSendOp(instruction) || isReceiveOp(instruction) ? 'waits for a partner that does not exist' : 'can run';
    if (isSendOp(instruction)) {
      return this.capacity === 0 ? `waits until rank ${peer.rank} reaches ${peer.action}`
        : this.canMove(rank) ? 'can send' : `waits for room: ${plural(this.queueOf(instruction).length, 'message')} in front`;
    }
    if (this.canMove(rank)) return 'can receive';
    const oldest = this.capacity > 0 ? this.queueOf(instruction)[0] : undefined;
    if (oldest !== undefined) {
      const [sender, index] = oldest.split(':').map(Number);
      return `waits behind ${this.rows[sender][index].action}, the oldest message on its channel`;
    }
    return `waits for ${peer.action} on rank ${peer.rank}`;
  }
}
