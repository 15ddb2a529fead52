/* The waits: an edge from each rank to the rank it waits for. A rank has at most
 * one edge, so the path from the reporter either ends or enters a cycle, and after as
 * many moves as there are ranks it has done so: that is all the cycle detection there
 * is, and it needs no memory. Edges are read from the ranks' status, which may change
 * meanwhile; so every loop is bounded by the number of ranks. */
#include "run/hang/hang.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include <weft/support.h>

#include "ir/action.h"

#define NOBODY UINT32_MAX

enum {
  CHAIN_NAMED = 3, /* ranks of a chain that are named, between its ends */
  CYCLE_NAMED = 4  /* ranks of a cycle that are named */
};

struct waits {
  const struct weft_hang *hang;
  const struct weft_program *program; /* NULL: not known */
  uint32_t first_rank;                /* runs row 0, in one of the replicas */
  enum weft_send_model comm;
  uint32_t rank_count;
  bool missing_known;
  uint32_t missing; /* a rank that has not reached the handshake */
  bool ties_known;
  uint32_t tie_rows[2]; /* with TIE_GRAD of the first stage, and of the last; NOBODY */
};

/* ---- Edges ---- */

/* The rank that the handshake of a step waits for: the first that is neither in it nor
 * past it; where all are, the first whose process is stopped or dead, or does not answer.
 * Searched once, so that the whole stays linear. */
static uint32_t find_missing(struct waits *waits, uint64_t step) {
  for (uint32_t r = 0; r < waits->rank_count && !waits->missing_known; r++) {
    struct weft_rank_state state;
    weft_hang_read(waits->hang, r, &state);
    const bool outside = state.phase == WEFT_PHASE_IDLE || state.phase == WEFT_PHASE_FAILED;
    if (outside || (state.phase != WEFT_PHASE_HANDSHAKE && state.step < step)) {
      waits->missing = r;
      waits->missing_known = true;
    } else if (state.flags != 0 && waits->missing == NOBODY) {
      waits->missing = r;
    }
  }
  waits->missing_known = true;
  return waits->missing;
}

/* The row of the program that a rank runs: replicas have consecutive ranks. */
static uint32_t row_of(const struct waits *waits, uint32_t rank) {
  assert(waits->program != NULL && waits->program->rank_count > 0);
  const uint32_t rows = waits->program->rank_count;
  return (uint32_t)(((uint64_t)rank + rows - waits->first_rank % rows) % rows);
}

/* The first cell of a row that has one of the ops on the action's stage and
 * microbatch (of a transfer: over the same edge), sub-actions included; UINT64_MAX: none. */
static uint64_t cell_of(const struct weft_program *program, uint32_t row, uint32_t ops,
                        struct weft_action action) {
  assert(row < program->rank_count);
  const uint32_t transfers = WEFT_OPS_SEND | WEFT_OPS_RECV;
  uint64_t at = program->row_begin[row];
  const uint64_t end = program->row_begin[row + 1];
  for (uint64_t cell = 0; at < end; cell++) {
    const uint64_t next = at + weft_cell_records(&program->actions[at]);
    for (; at < next; at++) {
      const struct weft_action found = program->actions[at];
      if (weft_op_in(found.op, ops) && found.stage == action.stage &&
          found.microbatch == action.microbatch &&
          (!weft_op_in(found.op, transfers) || found.skip == action.skip)) {
        return cell;
      }
    }
  }
  return UINT64_MAX;
}

/* The ops that show that a wanted action is done. Where receives are only posted, that is
 * the computation that needs the message. */
static uint32_t signs_of(const struct waits *waits, struct weft_action wanted) {
  if (weft_send_model_info(waits->comm)->row_waits || !weft_op_in(wanted.op, WEFT_OPS_RECV)) {
    return WEFT_OP_BIT(wanted.op);
  }
  return wanted.op == WEFT_OP_RECV_F ? WEFT_OP_BIT(WEFT_OP_F) : WEFT_OPS_GRADIENT;
}

/* Whether the peer has already done what a rank waits for: the message is under way, or
 * the rank does not poll. Then no other rank is the cause, unless the peer's process is stopped or
 * dead: threads of it may have to move the message (NCCL's do). */
static bool waits_for_done_work(const struct waits *waits, const struct weft_rank_state *state) {
  struct weft_rank_state peer;
  if (waits->program == NULL || state->peer >= waits->rank_count ||
      state->wants.op == WEFT_OP_IDLE) {
    return false;
  }
  weft_hang_read(waits->hang, state->peer, &peer);
  if (peer.flags != 0) {
    return false;
  }
  if (peer.phase == WEFT_PHASE_IDLE || peer.phase == WEFT_PHASE_HANDSHAKE ||
      peer.step != state->step) {
    return peer.step > state->step;
  }
  /* The message is sent, and the receiver does not see it. */
  const bool both_wait = state->phase == WEFT_PHASE_RECEIVE && peer.phase == WEFT_PHASE_SEND &&
                         peer.wants.op != WEFT_OP_IDLE &&
                         weft_action_equal(peer.action, state->wants);
  return both_wait || cell_of(waits->program, row_of(waits, state->peer),
                              signs_of(waits, state->wants), state->wants) < peer.cell;
}

/* Whether a rank has reached the handshake. */
static bool has_arrived(const struct waits *waits, uint32_t rank) {
  struct weft_rank_state state;
  weft_hang_read(waits->hang, rank, &state);
  return state.phase != WEFT_PHASE_IDLE && state.phase != WEFT_PHASE_FAILED;
}

/* Whether a rank waits for a collective of its own. */
static bool awaits_collective(const struct weft_rank_state *state) {
  return state->phase == WEFT_PHASE_COMPUTE && weft_op_in(state->wants.op, WEFT_OPS_SHARD);
}

/* What a rank in compute does. */
static struct weft_action doing_of(const struct weft_rank_state *state) {
  return awaits_collective(state) ? state->wants : state->action;
}

static bool is_behind(const struct weft_rank_state *one, const struct weft_rank_state *other) {
  return one->step != other->step ? one->step < other->step : one->cell < other->cell;
}

/* Collectives are between the ranks with the same row in all replicas; all wait for the
 * one that is furthest behind. NOBODY: none is. */
static uint32_t find_behind(const struct waits *waits, uint32_t rank,
                            const struct weft_rank_state *state) {
  struct weft_rank_state last = *state;
  uint32_t found = NOBODY;
  if (waits->program == NULL) {
    return NOBODY;
  }
  const uint32_t rows = waits->program->rank_count;
  for (uint64_t r = rank % rows; r < waits->rank_count; r += rows) {
    struct weft_rank_state other;
    weft_hang_read(waits->hang, (uint32_t)r, &other);
    if (is_behind(&other, &last)) {
      last = other;
      found = (uint32_t)r;
    }
  }
  return found;
}

/* The rows that have the TIE_GRADs. Searched once, so that the whole stays linear. */
static const uint32_t *find_ties(struct waits *waits) {
  const struct weft_program *program = waits->program;
  const uint32_t last = program->stage_count - 1;
  for (uint32_t row = 0; row < program->rank_count && !waits->ties_known; row++) {
    for (uint64_t i = program->row_begin[row]; i < program->row_begin[row + 1]; i++) {
      const struct weft_action action = program->actions[i];
      if (action.op == WEFT_OP_TIE_GRAD && (action.stage == 0 || action.stage == last)) {
        waits->tie_rows[action.stage == last] = row;
      }
    }
  }
  waits->ties_known = true;
  return waits->tie_rows;
}

/* Whether a rank has not reached its TIE_GRAD, while another rank waits in the matching
 * one. Collectives are done in order, so one before it that is not done counts too. */
static bool is_before_tie(const struct waits *waits, const struct weft_rank_state *peer,
                          uint32_t row, struct weft_action tie,
                          const struct weft_rank_state *waiter) {
  if (peer->phase == WEFT_PHASE_IDLE || peer->phase == WEFT_PHASE_FAILED ||
      peer->phase == WEFT_PHASE_HANDSHAKE || peer->step != waiter->step) {
    return peer->step <= waiter->step;
  }
  const uint64_t tie_cell = cell_of(waits->program, row, WEFT_OP_BIT(WEFT_OP_TIE_GRAD), tie);
  return peer->cell <= tie_cell ||
         (awaits_collective(peer) &&
          cell_of(waits->program, row, WEFT_OP_BIT(peer->wants.op), peer->wants) < tie_cell);
}

/* A TIE_GRAD is between the ranks with the first and the last stage of a replica. NOBODY:
 * the other rank has reached it, or is the same rank. */
static uint32_t find_untied(struct waits *waits, uint32_t rank,
                            const struct weft_rank_state *state) {
  if (waits->program == NULL || state->wants.op != WEFT_OP_TIE_GRAD) {
    return NOBODY;
  }
  const uint32_t *rows = find_ties(waits), row = row_of(waits, rank);
  const uint32_t last = waits->program->stage_count - 1;
  const bool is_first = state->wants.stage == 0;
  const uint32_t other = rows[is_first ? 1 : 0];
  const uint64_t peer_rank = (uint64_t)rank + other - row;
  if (other == NOBODY || other == row || rank < row || peer_rank >= waits->rank_count) {
    return NOBODY;
  }
  struct weft_rank_state peer;
  weft_hang_read(waits->hang, (uint32_t)peer_rank, &peer);
  const struct weft_action tie = weft_action_make(WEFT_OP_TIE_GRAD, is_first ? last : 0, 0);
  const bool is_late = peer.flags != 0 || is_before_tie(waits, &peer, other, tie, state);
  return is_late ? (uint32_t)peer_rank : NOBODY;
}

/* Of every `step`-th rank from `first` on, one whose process is stopped or dead, or does not answer.
 * NOBODY: there is none. */
static uint32_t find_halted(const struct waits *waits, uint32_t first, uint32_t step) {
  for (uint64_t r = first; r < waits->rank_count; r += step) {
    struct weft_rank_state other;
    weft_hang_read(waits->hang, (uint32_t)r, &other);
    if (other.flags != 0) {
      return (uint32_t)r;
    }
  }
  return NOBODY;
}

/* Of the ranks with the same row: it may have come to a collective, and does not do its part. */
static uint32_t find_halted_replica(const struct waits *waits, uint32_t rank) {
  const uint32_t rows = waits->program != NULL ? waits->program->rank_count : waits->rank_count;
  return find_halted(waits, rank % rows, rows);
}

/* The rank that a collective waits for. */
static uint32_t find_late(struct waits *waits, uint32_t rank, const struct weft_rank_state *state) {
  uint32_t late = find_untied(waits, rank, state);
  late = late != NOBODY ? late : find_behind(waits, rank, state);
  return late != NOBODY ? late : find_halted_replica(waits, rank);
}

/* By its phase. */
static uint32_t awaited_by(struct waits *waits, uint32_t rank,
                           const struct weft_rank_state *state) {
  const bool has_peer = state->peer < waits->rank_count;
  switch (state->phase) {
    case WEFT_PHASE_RECEIVE:
    case WEFT_PHASE_SEND:
      return has_peer && !waits_for_done_work(waits, state) ? state->peer : NOBODY;
    case WEFT_PHASE_HANDSHAKE:
      return has_peer && !has_arrived(waits, state->peer) ? state->peer
                                                          : find_missing(waits, state->step);
    case WEFT_PHASE_COMPUTE:
      return awaits_collective(state) ? find_late(waits, rank, state) : NOBODY;
    case WEFT_PHASE_DONE: /* what it does between steps may need all ranks */
      return find_halted(waits, 0, 1);
    default: return NOBODY;
  }
}

static uint32_t next_of(struct waits *waits, uint32_t rank) {
  struct weft_rank_state state;
  weft_hang_read(waits->hang, rank, &state);
  if (state.flags != 0) {
    return NOBODY; /* it cannot continue, whatever it waited for */
  }
  const uint32_t next = awaited_by(waits, rank, &state);
  /* A GPU that does not end an action may wait in it for a collective. */
  return next == NOBODY && state.on_device ? find_halted_replica(waits, rank) : next;
}

/* ---- The path ---- */

/* Measures the cycle that `rank` is on. False when it is on none. */
static bool measure_cycle(struct waits *waits, uint32_t rank, struct weft_waits_end *end) {
  assert(rank < waits->rank_count);
  uint32_t at = rank;
  end->culprit = rank;
  for (uint32_t length = 1; length <= waits->rank_count; length++) {
    at = next_of(waits, at);
    if (at == NOBODY) {
      return false;
    }
    if (at == rank) {
      end->cycle_length = length;
      return true;
    }
    end->culprit = at < end->culprit ? at : end->culprit;
  }
  return false;
}

/* Moves from the reporter to its first rank on the cycle: two walkers, one of them ahead
 * by the length of the cycle, meet there. */
static uint32_t moves_to_cycle(struct waits *waits, uint32_t reporter, uint32_t length) {
  assert(reporter < waits->rank_count && length > 0);
  uint32_t ahead = reporter, behind = reporter, moves = 0;
  for (uint32_t k = 0; k < length && ahead != NOBODY; k++) {
    ahead = next_of(waits, ahead);
  }
  while (ahead != behind && ahead != NOBODY && behind != NOBODY && moves < waits->rank_count) {
    ahead = next_of(waits, ahead);
    behind = next_of(waits, behind);
    moves++;
  }
  return moves;
}

static struct weft_waits_end follow_waits(struct waits *waits, uint32_t reporter) {
  struct weft_waits_end end = {.culprit = reporter};
  uint32_t at = reporter;
  for (uint32_t moves = 0; moves <= waits->rank_count; moves++) {
    const uint32_t next = next_of(waits, at);
    if (next == NOBODY) {
      end.culprit = at;
      end.moves = moves;
      return end;
    }
    at = next;
  }
  if (measure_cycle(waits, at, &end)) {
    end.moves = moves_to_cycle(waits, reporter, end.cycle_length);
    return end;
  }
  /* The ranks moved on meanwhile: name the peer. */
  at = next_of(waits, reporter);
  return (struct weft_waits_end){.culprit = at != NOBODY ? at : reporter, .moves = at != NOBODY};
}

/* ---- Messages ---- */

/* A message under construction; a piece that does not fit is left out. */
struct line {
  char data[sizeof((struct weft_error *)0)->message];
  size_t used;
};

static bool add_words(struct line *line, const char *format, ...) WEFT_PRINTF(2, 3);

static bool add_words(struct line *line, const char *format, ...) {
  const size_t room = sizeof line->data - line->used;
  va_list arguments;
  va_start(arguments, format);
  const int size = vsnprintf(line->data + line->used, room, format, arguments);
  va_end(arguments);
  if (size < 0 || (size_t)size >= room) {
    line->data[line->used] = '\0';
    return false;
  }
  line->used += (size_t)size;
  return true;
}

/* The culprit, with its location where a transport knows it. */
static void add_culprit(struct line *line, const struct waits *waits, uint32_t rank) {
  char name[WEFT_RANK_NAME_SIZE];
  add_words(line, "%s", weft_rank_name(waits->hang->transport, rank, name));
}

static void add_gpu(struct line *line, const struct weft_rank_state *state) {
  if (state->has_gpu) {
    add_words(line, " with GPU %" PRIu64, state->gpu);
  }
}

/* What other ranks have found out about it. */
static void add_flags(struct line *line, const struct waits *waits,
                      const struct weft_rank_state *state) {
  char action[WEFT_HANG_WORD], place[WEFT_HANG_WORD], time[WEFT_HANG_WORD];
  if ((state->flags & WEFT_RANK_DEAD) != 0) {
    add_words(line, "has died");
    return;
  }
  if ((state->flags & WEFT_RANK_STOPPED) == 0) {
    add_words(line, "does not answer");
    return;
  }
  add_words(line, "is stopped, by a signal or a debugger,");
  if (state->phase == WEFT_PHASE_COMPUTE) {
    (void)weft_hang_action(doing_of(state), action);
    add_words(line, "%s%s", action[0] != '\0' ? " in " : "", action);
  } else {
    add_words(line, "%s", weft_hang_location(state, place));
  }
  add_gpu(line, state);
  add_words(line, " since %s", weft_hang_time(waits->hang, state->since, time));
}

/* What the rank at the end of a chain does. */
static void add_state(struct line *line, const struct waits *waits,
                      const struct weft_rank_state *state) {
  char action[WEFT_HANG_WORD], place[WEFT_HANG_WORD], time[WEFT_HANG_WORD];
  (void)weft_hang_time(waits->hang, state->since, time);
  if (state->flags != 0) {
    add_flags(line, waits, state);
    return;
  }
  switch (state->phase) {
    case WEFT_PHASE_IDLE:
      if (state->has_acted || state->step > 0) {
        add_words(line, "has left, %s ago", time);
      } else {
        add_words(line, "never joined");
      }
      break;
    case WEFT_PHASE_COMPUTE:
      (void)weft_hang_action(doing_of(state), action);
      add_words(line, "%s %s since %s", awaits_collective(state) ? "waits for its" : "is in",
                action[0] != '\0' ? action : "zero_grad", time);
      break;
    case WEFT_PHASE_DONE: add_words(line, "has done its part of step %" PRIu64, state->step); break;
    case WEFT_PHASE_FAILED: add_words(line, "has failed"); break;
    default:
      add_words(line, "waits%s since %s", weft_hang_location(state, place), time);
      if (waits_for_done_work(waits, state)) {
        add_words(line, " for rank %" PRIu32 " (%s), which has done that", state->peer,
                  weft_hang_action(state->wants, action));
      } else {
        add_words(line, ", for no known rank");
      }
  }
}

/* "rank 0 has waited 30.0 s before 0B0 for rank 1, which waits for rank 2, which ", up to
 * the last rank, `moves` away. */
static void add_chain(struct line *line, struct waits *waits, uint32_t reporter, uint32_t moves,
                      uint32_t last) {
  struct weft_rank_state state;
  char place[WEFT_HANG_WORD], time[WEFT_HANG_WORD];
  weft_hang_read(waits->hang, reporter, &state);
  add_words(line, "rank %" PRIu32, reporter);
  add_gpu(line, &state);
  add_words(line, " has waited %s", weft_hang_time(waits->hang, state.since, time));
  if (awaits_collective(&state) && !state.on_device) {
    add_words(line, " in its %s for ", weft_hang_action(state.wants, place));
  } else {
    add_words(line, "%s for ", weft_hang_location(&state, place));
  }
  const uint32_t between = moves - 1;
  const uint32_t named = between <= CHAIN_NAMED ? between : CHAIN_NAMED - 1;
  uint32_t at = reporter;
  for (uint32_t k = 0; k < named; k++) {
    at = next_of(waits, at);
    if (at == NOBODY) {
      break; /* the rank moved on meanwhile */
    }
    const bool skips = k + 1 == named && named < between;
    add_words(line, "rank %" PRIu32 ", which waits ", at);
    if (skips) {
      add_words(line, "(through %" PRIu32 " more) ", between - named);
    }
    add_words(line, "for ");
  }
  add_culprit(line, waits, last);
  add_words(line, ", which ");
}

static bool add_member(struct line *line, const struct waits *waits, uint32_t rank, uint32_t next) {
  struct weft_rank_state state;
  struct line member = {.used = 0};
  char wait[WEFT_HANG_WAIT];
  weft_hang_read(waits->hang, rank, &state);
  add_words(&member, "rank %" PRIu32, rank);
  add_gpu(&member, &state);
  add_words(&member, " %s", weft_hang_wait(&state, rank, next, wait));
  /* Room for "; and 65536 more" must remain. */
  return line->used + member.used + 24 < sizeof line->data && add_words(line, "%s", member.data);
}

/* Every member, or the first few and how many more. */
static void add_cycle(struct line *line, struct waits *waits, const struct weft_waits_end *end) {
  const uint32_t length = end->cycle_length;
  uint32_t at = end->culprit, named = 0;
  if (length <= CYCLE_NAMED) {
    add_words(line, "a cycle: ");
  } else {
    add_words(line, "a cycle of %" PRIu32 " ranks: ", length);
  }
  const uint32_t most = length <= CYCLE_NAMED ? length : CYCLE_NAMED - 1;
  for (; named < most; named++) {
    const uint32_t next = next_of(waits, at);
    if (next == NOBODY || !add_member(line, waits, at, next)) {
      break;
    }
    if (named + 1 < length) {
      add_words(line, "; ");
    }
    at = next;
  }
  if (named < length) {
    add_words(line, "and %" PRIu32 " more", length - named);
  }
}

/* ---- Hints ---- */

/* The function of a stage that an op calls. */
static const char *function_of(uint32_t op) {
  switch (op) {
    case WEFT_OP_F: return "forward";
    case WEFT_OP_B: return "backward";
    case WEFT_OP_I: return "input gradient";
    case WEFT_OP_W: return "weight gradient";
    default: return weft_op_info((enum weft_op)op)->text;
  }
}

static void hint_compute(struct line *hint, const struct waits *waits, uint32_t culprit,
                         const struct weft_rank_state *state, uint64_t waited) {
  char time[WEFT_HANG_WORD];
  const uint64_t computed = weft_hang_elapsed(waits->hang, state->since);
  const struct weft_action doing = doing_of(state);
  char action[WEFT_HANG_WORD];
  char what[WEFT_HANG_WORD] = "it has not returned from";
  if (state->on_device) {
    (void)snprintf(what, sizeof what, "GPU %" PRIu64 " has not ended", state->gpu);
  }
  if (computed < waited / 2) {
    add_words(hint,
              "rank %" PRIu32
              " is slow rather than stuck: it began this only %s ago; a larger "
              "stall_limit gives it time",
              culprit, weft_hang_time(waits->hang, state->since, time));
  } else if (awaits_collective(state) && !state->on_device) { /* which polls; another may not */
    add_words(hint,
              "look at all ranks of rank %" PRIu32 "'s %s: one has not come to it, or not returned",
              culprit, weft_hang_action(doing, action));
  } else if (doing.op == WEFT_OP_OVERLAP_F_B || doing.op == WEFT_OP_IDLE) {
    add_words(hint, "look at rank %" PRIu32 ": %s its %s", culprit, what,
              doing.op == WEFT_OP_IDLE ? "zero_grad" : function_of(doing.op));
  } else {
    add_words(hint, "look at rank %" PRIu32 "'s stage %u: %s its %s", culprit, doing.stage, what,
              function_of(doing.op));
  }
}

static void hint_done(struct line *hint, uint32_t culprit, const struct weft_rank_state *state,
                      uint64_t reporter_step) {
  if (state->step < reporter_step) {
    add_words(hint,
              "rank %" PRIu32 " has not begun step %" PRIu64
              ": see what it does between steps, and that all ranks take as many",
              culprit, reporter_step);
  } else {
    add_words(hint,
              "nothing is left that rank %" PRIu32
              " would send: see that all ranks run the same program, and verify it",
              culprit);
  }
}

static void hint_flags(struct line *hint, uint32_t culprit, const struct weft_rank_state *state) {
  if ((state->flags & WEFT_RANK_DEAD) != 0) {
    add_words(hint, "look for what ended rank %" PRIu32 ": memory, a signal", culprit);
  } else if ((state->flags & WEFT_RANK_STOPPED) != 0) {
    add_words(hint, "SIGCONT resumes rank %" PRIu32 "'s process", culprit);
  } else {
    add_words(hint,
              "see whether rank %" PRIu32
              "'s host is up, the network to it too, and whether its process is stopped or stuck",
              culprit);
  }
}

static void hint_for(struct line *hint, const struct waits *waits, uint32_t reporter,
                     uint32_t culprit) {
  struct weft_rank_state mine, state;
  weft_hang_read(waits->hang, reporter, &mine);
  weft_hang_read(waits->hang, culprit, &state);
  if (state.flags != 0) {
    hint_flags(hint, culprit, &state);
    return;
  }
  switch (state.phase) {
    case WEFT_PHASE_COMPUTE:
      hint_compute(hint, waits, culprit, &state, weft_hang_elapsed(waits->hang, mine.since));
      break;
    case WEFT_PHASE_IDLE:
      add_words(hint,
                "see whether rank %" PRIu32 " %s, and whether it ended with an error of its own",
                culprit, state.has_acted || state.step > 0 ? "still runs" : "was started");
      break;
    case WEFT_PHASE_DONE: hint_done(hint, culprit, &state, mine.step); break;
    case WEFT_PHASE_FAILED:
      add_words(hint, "rank %" PRIu32 "'s own error says why", culprit);
      break;
    case WEFT_PHASE_HANDSHAKE:
      add_words(hint, "every rank has come to the handshake: look at the network between them");
      break;
    default:
      if (waits_for_done_work(waits, &state)) {
        add_words(hint,
                  "rank %" PRIu32 " is slow or stuck, or the network between it and rank %" PRIu32
                  " is; if it is only slow, a larger stall_limit gives it time",
                  culprit, state.peer);
        break;
      }
      add_words(hint,
                "look at rank %" PRIu32
                "'s row of the program, and verify the program to see whether it can end",
                culprit);
  }
}

/* ---- The diagnosis ---- */

/* The first rank of the cycle on the path from the reporter. */
static uint32_t entry_of(struct waits *waits, uint32_t reporter, const struct weft_waits_end *end) {
  uint32_t at = reporter;
  for (uint32_t k = 0; k < end->moves && at != NOBODY; k++) {
    at = next_of(waits, at);
  }
  return at != NOBODY ? at : end->culprit;
}

static struct waits waits_of(const struct weft_hang *hang) {
  return (struct waits){.hang = hang,
                        .rank_count = hang->transport->rank_count,
                        .missing = NOBODY,
                        .tie_rows = {NOBODY, NOBODY}};
}

struct weft_waits_end weft_hang_diagnose(const struct weft_hang *hang,
                                         const struct weft_program *program, uint32_t first_rank,
                                         enum weft_send_model comm, uint32_t reporter,
                                         struct weft_failure *failure) {
  struct waits waits = waits_of(hang);
  assert(reporter < waits.rank_count);
  waits.program = program;
  waits.first_rank = first_rank;
  waits.comm = comm;
  const struct weft_waits_end end = follow_waits(&waits, reporter);
  struct line message = {.used = 0}, hint = {.used = 0};
  if (end.cycle_length > 0) {
    if (end.moves > 0) {
      add_chain(&message, &waits, reporter, end.moves, entry_of(&waits, reporter, &end));
      add_words(&message, "is in ");
    }
    add_cycle(&message, &waits, &end);
    add_words(&hint, "the program can deadlock: verify it to see the cycle");
  } else {
    struct weft_rank_state state;
    if (end.culprit == reporter) {
      add_culprit(&message, &waits, reporter);
      add_words(&message, " ");
    } else {
      add_chain(&message, &waits, reporter, end.moves, end.culprit);
    }
    weft_hang_read(hang, end.culprit, &state);
    add_state(&message, &waits, &state);
    hint_for(&hint, &waits, reporter, end.culprit);
  }
  failure->rank = end.culprit;
  (void)weft_fail(&failure->error, WEFT_ERR_STALLED, hint.data, "%s", message.data);
  return end;
}

void weft_waits_cycle(const struct weft_hang *hang, const struct weft_waits_end *end,
                      void (*each)(void *context, uint32_t rank), void *context) {
  struct waits waits = waits_of(hang);
  uint32_t at = end->culprit;
  for (uint32_t k = 0; k < end->cycle_length && at != NOBODY; k++) {
    each(context, at);
    at = next_of(&waits, at);
  }
}
