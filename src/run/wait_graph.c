/* Who is to blame: follows who waits for whom, over a picture or straight over
 * the boards. Every rank waits for at most one other, so the way from the
 * reporter on is a chain that ends, or runs into a circle. After as many moves
 * as there are ranks it must have done one or the other: that is all the cycle
 * detection there is, and it needs no memory. Boards may change while they are
 * read, so every loop is bounded by the number of ranks. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include <weft/support.h>

#include "ir/action.h"
#include "run/diagnosis_text.h"
#include "run/wait_graph.h"

#define NOBODY UINT32_MAX

enum {
  CHAIN_NAMED = 3, /* ranks of a chain that are named, between its ends */
  CIRCLE_NAMED = 4 /* of a circle */
};

/* What is followed: a picture, or a transport's boards. */
struct view {
  const struct weft_hang *hang;
  struct weft_transport *transport;
  const struct weft_program *program; /* NULL: not known */
  uint32_t first_rank;                /* of a replica of it */
  enum weft_run_comm comm;
  uint32_t rank_count;
  int64_t now;
  bool nanoseconds;
  bool absent_known;
  uint32_t absent; /* a rank that has not come to the handshake */
  bool ties_known;
  uint32_t tie_rows[2]; /* with TIE_GRAD of the first stage, and of the last; NOBODY */
};

static void look(const struct view *view, uint32_t rank, struct weft_rank_state *stand) {
  if (view->transport != NULL) {
    weft_rank_state_read(view->transport->ops->rank_status(view->transport, rank), stand);
    return;
  }
  const struct weft_hang_rank *seen = &view->hang->ranks[rank];
  *stand = (struct weft_rank_state){.phase = seen->phase,
                                    .peer = seen->peer,
                                    .step = seen->step,
                                    .cell = seen->cell,
                                    .action = seen->action,
                                    .wants = seen->wants,
                                    .since = seen->since,
                                    .flags = seen->flags,
                                    .has_acted = seen->recent_count > 0};
}

/* Whom the handshake of a step waits for: the first that is not in it and has
 * not been through it. Looked for once, so that the whole stays linear. */
static uint32_t find_absent(struct view *view, uint64_t step) {
  for (uint32_t r = 0; r < view->rank_count && !view->absent_known; r++) {
    struct weft_rank_state stand;
    look(view, r, &stand);
    const bool apart = stand.phase == WEFT_PHASE_IDLE || stand.phase == WEFT_PHASE_FAILED;
    if (apart || (stand.phase != WEFT_PHASE_HANDSHAKE && stand.step < step)) {
      view->absent = r;
      view->absent_known = true;
    }
  }
  view->absent_known = true;
  return view->absent;
}

/* The row of the program that a rank runs: replicas stand side by side. */
static uint32_t row_of(const struct view *view, uint32_t rank) {
  const uint32_t rows = view->program->rank_count;
  return (uint32_t)(((uint64_t)rank + rows - view->first_rank % rows) % rows);
}

/* The first cell of a row that has one of the ops on the action's stage and
 * microbatch, parts of overlaps included; UINT64_MAX: none has. */
static uint64_t cell_of(const struct weft_program *program, uint32_t row, uint32_t ops,
                        struct weft_action action) {
  uint64_t at = program->row_begin[row];
  const uint64_t end = program->row_begin[row + 1];
  for (uint64_t cell = 0; at < end; cell++) {
    const uint64_t next = at + weft_cell_records(&program->actions[at]);
    for (; at < next; at++) {
      const struct weft_action found = program->actions[at];
      if (weft_op_in(found.op, ops) && found.stage == action.stage &&
          found.microbatch == action.microbatch) {
        return cell;
      }
    }
  }
  return UINT64_MAX;
}

/* Whether that is done: before `cell` in the row. */
static bool is_done(const struct weft_program *program, uint32_t row, uint32_t ops,
                    struct weft_action action, uint64_t cell) {
  return cell_of(program, row, ops, action) < cell;
}

/* What shows that a wanted action is done. Where receives are only posted, that
 * is the computation that needs the message. */
static uint32_t signs_of(const struct view *view, struct weft_action wanted) {
  if (view->comm != WEFT_COMM_POSTED || !weft_op_in(wanted.op, WEFT_OPS_RECV)) {
    return WEFT_OP_BIT(wanted.op);
  }
  return wanted.op == WEFT_OP_RECV_F ? WEFT_OP_BIT(WEFT_OP_F) : WEFT_OPS_GRADIENT;
}

/* Whether a rank waits for what its peer has done: for a message that is under
 * way, or because it does not look. Nobody else is to blame then. */
static bool waits_for_nothing(const struct view *view, const struct weft_rank_state *stand) {
  struct weft_rank_state peer;
  if (view->program == NULL || stand->peer >= view->rank_count || stand->wants.op == WEFT_OP_IDLE) {
    return false;
  }
  look(view, stand->peer, &peer);
  if (peer.phase == WEFT_PHASE_IDLE || peer.phase == WEFT_PHASE_HANDSHAKE ||
      peer.step != stand->step) {
    return peer.step > stand->step;
  }
  /* Two that meet: the message is out, and the one that receives it does not see it. */
  const bool meets = stand->phase == WEFT_PHASE_RECEIVE && peer.phase == WEFT_PHASE_SEND &&
                     peer.wants.op != WEFT_OP_IDLE && weft_action_equal(peer.action, stand->wants);
  return meets || is_done(view->program, row_of(view, stand->peer), signs_of(view, stand->wants),
                          stand->wants, peer.cell);
}

/* Whether a rank has come to the handshake. */
static bool has_come(const struct view *view, uint32_t rank) {
  struct weft_rank_state stand;
  look(view, rank, &stand);
  return stand.phase != WEFT_PHASE_IDLE && stand.phase != WEFT_PHASE_FAILED;
}

/* Whether a rank stands where it is because a collective of its is not done. */
static bool awaits_collective(const struct weft_rank_state *stand) {
  return stand->phase == WEFT_PHASE_COMPUTE && weft_op_in(stand->wants.op, WEFT_OPS_SHARD);
}

static bool is_behind(const struct weft_rank_state *one, const struct weft_rank_state *other) {
  return one->step != other->step ? one->step < other->step : one->cell < other->cell;
}

/* Collectives are between ranks with the same row in all replicas: the one that is
 * furthest behind keeps them waiting. NOBODY: none is. */
static uint32_t find_behind(const struct view *view, uint32_t rank,
                            const struct weft_rank_state *stand) {
  struct weft_rank_state last = *stand;
  uint32_t found = NOBODY;
  if (view->program == NULL) {
    return NOBODY;
  }
  const uint32_t rows = view->program->rank_count;
  for (uint64_t r = rank % rows; r < view->rank_count; r += rows) {
    struct weft_rank_state other;
    look(view, (uint32_t)r, &other);
    if (is_behind(&other, &last)) {
      last = other;
      found = (uint32_t)r;
    }
  }
  return found;
}

/* Which rows have the TIE_GRADs. Looked for once, so that the whole stays linear. */
static const uint32_t *find_ties(struct view *view) {
  const struct weft_program *program = view->program;
  const uint32_t last = program->stage_count - 1;
  for (uint32_t row = 0; row < program->rank_count && !view->ties_known; row++) {
    for (uint64_t i = program->row_begin[row]; i < program->row_begin[row + 1]; i++) {
      const struct weft_action action = program->actions[i];
      if (action.op == WEFT_OP_TIE_GRAD && (action.stage == 0 || action.stage == last)) {
        view->tie_rows[action.stage == last] = row;
      }
    }
  }
  view->ties_known = true;
  return view->tie_rows;
}

/* Whether a rank has still to come to its TIE_GRAD, for one that waits in the other.
 * Collectives are done in order: one before it, for which it waits, is in the way. */
static bool is_before_tie(const struct view *view, const struct weft_rank_state *peer, uint32_t row,
                          struct weft_action tie, const struct weft_rank_state *waits) {
  if (peer->phase == WEFT_PHASE_IDLE || peer->phase == WEFT_PHASE_FAILED ||
      peer->phase == WEFT_PHASE_HANDSHAKE || peer->step != waits->step) {
    return peer->step <= waits->step;
  }
  const uint64_t place = cell_of(view->program, row, WEFT_OP_BIT(WEFT_OP_TIE_GRAD), tie);
  return peer->cell <= place ||
         (awaits_collective(peer) &&
          cell_of(view->program, row, WEFT_OP_BIT(peer->wants.op), peer->wants) < place);
}

/* A TIE_GRAD is between the ranks with the first and the last stage of a replica. NOBODY:
 * the other one is there, or is the same rank. */
static uint32_t find_untied(struct view *view, uint32_t rank, const struct weft_rank_state *stand) {
  if (view->program == NULL || stand->wants.op != WEFT_OP_TIE_GRAD) {
    return NOBODY;
  }
  const uint32_t *rows = find_ties(view), row = row_of(view, rank);
  const uint32_t last = view->program->stage_count - 1;
  const bool is_first = stand->wants.stage == 0;
  const uint32_t other = rows[is_first ? 1 : 0];
  const uint64_t peer_rank = (uint64_t)rank + other - row;
  if (other == NOBODY || other == row || rank < row || peer_rank >= view->rank_count) {
    return NOBODY;
  }
  struct weft_rank_state peer;
  look(view, (uint32_t)peer_rank, &peer);
  const struct weft_action tie = weft_action_make(WEFT_OP_TIE_GRAD, is_first ? last : 0, 0);
  return is_before_tie(view, &peer, other, tie, stand) ? (uint32_t)peer_rank : NOBODY;
}

static uint32_t find_late(struct view *view, uint32_t rank, const struct weft_rank_state *stand) {
  const uint32_t untied = find_untied(view, rank, stand);
  return untied != NOBODY ? untied : find_behind(view, rank, stand);
}

static uint32_t next_of(struct view *view, uint32_t rank) {
  struct weft_rank_state stand;
  look(view, rank, &stand);
  if (stand.flags != 0) {
    return NOBODY; /* whatever it waited for, it cannot go on */
  }
  const bool has_peer = stand.peer < view->rank_count;
  switch (stand.phase) {
    case WEFT_PHASE_RECEIVE:
    case WEFT_PHASE_SEND: return has_peer && !waits_for_nothing(view, &stand) ? stand.peer : NOBODY;
    case WEFT_PHASE_HANDSHAKE:
      return has_peer && !has_come(view, stand.peer) ? stand.peer : find_absent(view, stand.step);
    case WEFT_PHASE_COMPUTE:
      return awaits_collective(&stand) ? find_late(view, rank, &stand) : NOBODY;
    default: return NOBODY;
  }
}

/* ---- The way ---- */

/* Measures the circle that `rank` is on. False when it turns out to be none. */
static bool measure_circle(struct view *view, uint32_t rank, struct weft_wait_graph_end *verdict) {
  uint32_t at = rank;
  verdict->culprit = rank;
  for (uint32_t length = 1; length <= view->rank_count; length++) {
    at = next_of(view, at);
    if (at == NOBODY) {
      return false;
    }
    if (at == rank) {
      verdict->cycle_length = length;
      return true;
    }
    verdict->culprit = at < verdict->culprit ? at : verdict->culprit;
  }
  return false;
}

/* Moves from the reporter to the circle's first rank: of two walkers, one a
 * whole circle ahead, the one behind meets the other there. */
static uint32_t moves_to_circle(struct view *view, uint32_t reporter, uint32_t length) {
  uint32_t ahead = reporter, behind = reporter, moves = 0;
  for (uint32_t k = 0; k < length && ahead != NOBODY; k++) {
    ahead = next_of(view, ahead);
  }
  while (ahead != behind && ahead != NOBODY && behind != NOBODY && moves < view->rank_count) {
    ahead = next_of(view, ahead);
    behind = next_of(view, behind);
    moves++;
  }
  return moves;
}

static struct weft_wait_graph_end follow(struct view *view, uint32_t reporter) {
  struct weft_wait_graph_end verdict = {.culprit = reporter};
  uint32_t at = reporter;
  for (uint32_t moves = 0; moves <= view->rank_count; moves++) {
    const uint32_t next = next_of(view, at);
    if (next == NOBODY) {
      verdict.culprit = at;
      verdict.moves = moves;
      return verdict;
    }
    at = next;
  }
  if (measure_circle(view, at, &verdict)) {
    verdict.moves = moves_to_circle(view, reporter, verdict.cycle_length);
    return verdict;
  }
  /* It went on while it was looked at: there is only the peer to name. */
  at = next_of(view, reporter);
  return (struct weft_wait_graph_end){.culprit = at != NOBODY ? at : reporter,
                                      .moves = at != NOBODY};
}

/* ---- Words ---- */

/* A message under construction; a piece that does not fit is left out. */
struct line {
  char data[sizeof((struct weft_error *)0)->message];
  size_t used;
};

static bool say(struct line *line, const char *format, ...) WEFT_PRINTF(2, 3);

static bool say(struct line *line, const char *format, ...) {
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

/* The one to blame. A picture knows no places. */
static void say_culprit(struct line *line, const struct view *view, uint32_t rank) {
  char name[WEFT_RANK_NAME_SIZE];
  if (view->transport != NULL) {
    say(line, "%s", weft_rank_name(view->transport, rank, name));
  } else {
    say(line, "rank %" PRIu32, rank);
  }
}

static char *time_since(const struct view *view, int64_t since, char buffer[WEFT_DIAGNOSIS_WORD]) {
  return weft_hang_time(weft_hang_elapsed(view->now, since), view->nanoseconds, buffer);
}

/* " in 2RECV_F5", " before 2F5", " in the handshake", or nothing. */
static void say_where(struct line *line, const struct weft_rank_state *stand) {
  char action[WEFT_DIAGNOSIS_WORD];
  if (stand->phase == WEFT_PHASE_HANDSHAKE) {
    say(line, " in the handshake");
  } else if (stand->action.op != WEFT_OP_IDLE) {
    say(line, " %s %s", weft_hang_preposition(stand->action),
        weft_hang_action(stand->action, action));
  }
}

/* What others have found out about it. */
static void say_flags(struct line *line, const struct view *view,
                      const struct weft_rank_state *stand) {
  char action[WEFT_DIAGNOSIS_WORD], time[WEFT_DIAGNOSIS_WORD];
  if ((stand->flags & WEFT_RANK_STOPPED) == 0) {
    say(line, "does not answer");
    return;
  }
  say(line, "is stopped, by a signal or a debugger,");
  if (stand->phase == WEFT_PHASE_COMPUTE) {
    say(line, " in %s", weft_hang_action(stand->action, action));
  } else {
    say_where(line, stand);
  }
  say(line, " since %s", time_since(view, stand->since, time));
}

/* What the rank at the end of a chain does. */
static void say_state(struct line *line, const struct view *view,
                      const struct weft_rank_state *stand) {
  char action[WEFT_DIAGNOSIS_WORD], time[WEFT_DIAGNOSIS_WORD];
  (void)time_since(view, stand->since, time);
  if (stand->flags != 0) {
    say_flags(line, view, stand);
    return;
  }
  switch (stand->phase) {
    case WEFT_PHASE_IDLE:
      if (stand->has_acted || stand->step > 0) {
        say(line, "has left, %s ago", time);
      } else {
        say(line, "never came");
      }
      break;
    case WEFT_PHASE_COMPUTE:
      if (awaits_collective(stand)) {
        say(line, "waits for its %s since %s", weft_hang_action(stand->wants, action), time);
      } else {
        say(line, "is in %s since %s", weft_hang_action(stand->action, action), time);
      }
      break;
    case WEFT_PHASE_DONE: say(line, "has done its part of step %" PRIu64, stand->step); break;
    case WEFT_PHASE_FAILED: say(line, "has failed"); break;
    default:
      say(line, "waits");
      say_where(line, stand);
      say(line, " since %s", time);
      if (waits_for_nothing(view, stand)) {
        say(line, " for rank %" PRIu32 " (%s), which has done that", stand->peer,
            weft_hang_action(stand->wants, action));
      } else {
        say(line, ", for nobody that is known");
      }
  }
}

/* "rank 0 has waited 30.0 s before 0B0 for rank 1, which waits for rank 2, which ",
 * up to the last rank, which is so many moves away. */
static void say_chain(struct line *line, struct view *view, uint32_t reporter, uint32_t moves,
                      uint32_t last) {
  struct weft_rank_state stand;
  char time[WEFT_DIAGNOSIS_WORD];
  look(view, reporter, &stand);
  say(line, "rank %" PRIu32 " has waited %s", reporter, time_since(view, stand.since, time));
  say_where(line, &stand);
  say(line, " for ");
  const uint32_t between = moves - 1;
  const uint32_t named = between <= CHAIN_NAMED ? between : CHAIN_NAMED - 1;
  uint32_t at = reporter;
  for (uint32_t k = 0; k < named; k++) {
    at = next_of(view, at);
    if (at == NOBODY) {
      break; /* it went on while it was looked at */
    }
    const bool skips = k + 1 == named && named < between;
    say(line, "rank %" PRIu32 ", which waits ", at);
    if (skips) {
      say(line, "(through %" PRIu32 " more) ", between - named);
    }
    say(line, "for ");
  }
  say_culprit(line, view, last);
  say(line, ", which ");
}

static bool say_member(struct line *line, const struct view *view, uint32_t rank, uint32_t next) {
  struct weft_rank_state stand;
  struct line member = {.used = 0};
  char wanted[WEFT_DIAGNOSIS_WORD];
  look(view, rank, &stand);
  say(&member, "rank %" PRIu32 " waits", rank);
  say_where(&member, &stand);
  if (next == rank) {
    say(&member, " for itself");
  } else {
    say(&member, " for rank %" PRIu32, next);
  }
  if (stand.wants.op != WEFT_OP_IDLE) {
    say(&member, " (%s)", weft_hang_action(stand.wants, wanted));
  }
  /* Room for "; and 65536 more" must remain. */
  return line->used + member.used + 24 < sizeof line->data && say(line, "%s", member.data);
}

/* Every member, or the first few and how many more. */
static void say_circle(struct line *line, struct view *view,
                       const struct weft_wait_graph_end *verdict) {
  const uint32_t length = verdict->cycle_length;
  uint32_t at = verdict->culprit, named = 0;
  if (length <= CIRCLE_NAMED) {
    say(line, "a circle: ");
  } else {
    say(line, "a circle of %" PRIu32 " ranks: ", length);
  }
  const uint32_t most = length <= CIRCLE_NAMED ? length : CIRCLE_NAMED - 1;
  for (; named < most; named++) {
    const uint32_t next = next_of(view, at);
    if (next == NOBODY || !say_member(line, view, at, next)) {
      break;
    }
    if (named + 1 < length) {
      say(line, "; ");
    }
    at = next;
  }
  if (named < length) {
    say(line, "and %" PRIu32 " more", length - named);
  }
}

/* ---- Hints ---- */

/* What a stage has not returned from. */
static const char *function_of(uint32_t op) {
  switch (op) {
    case WEFT_OP_F: return "forward";
    case WEFT_OP_B: return "backward";
    case WEFT_OP_I: return "input gradient";
    case WEFT_OP_W: return "weight gradient";
    default: return weft_op_info((enum weft_op)op)->text;
  }
}

static void hint_compute(struct line *hint, const struct view *view, uint32_t culprit,
                         const struct weft_rank_state *stand, uint64_t waited) {
  char time[WEFT_DIAGNOSIS_WORD];
  const uint64_t computed = weft_hang_elapsed(view->now, stand->since);
  const struct weft_action doing = awaits_collective(stand) ? stand->wants : stand->action;
  if (computed < waited / 2) {
    say(hint,
        "rank %" PRIu32
        " is slow rather than stuck: it began this only %s ago; a larger "
        "stall_limit gives it time",
        culprit, weft_hang_time(computed, view->nanoseconds, time));
  } else if (doing.op == WEFT_OP_OVERLAP_F_B) {
    say(hint, "look at rank %" PRIu32 ": it has not returned from its %s", culprit,
        function_of(doing.op));
  } else {
    say(hint, "look at rank %" PRIu32 "'s stage %u: it has not returned from its %s", culprit,
        doing.stage, function_of(doing.op));
  }
}

static void hint_done(struct line *hint, uint32_t culprit, const struct weft_rank_state *stand,
                      uint64_t reporter_step) {
  if (stand->step < reporter_step) {
    say(hint,
        "rank %" PRIu32 " has not begun step %" PRIu64
        ": see what it does between steps, and that all ranks take as many",
        culprit, reporter_step);
  } else {
    say(hint,
        "nothing is left that rank %" PRIu32
        " would send: see that all ranks run the same program, and that 'weft verify' passes it",
        culprit);
  }
}

static void hint_flags(struct line *hint, uint32_t culprit, const struct weft_rank_state *stand) {
  if ((stand->flags & WEFT_RANK_STOPPED) != 0) {
    say(hint, "SIGCONT lets rank %" PRIu32 "'s process go on", culprit);
  } else {
    say(hint,
        "see whether rank %" PRIu32
        "'s host is up, the network to it too, and whether its process is stopped or stuck",
        culprit);
  }
}

static void hint_for(struct line *hint, const struct view *view, uint32_t reporter,
                     uint32_t culprit) {
  struct weft_rank_state mine, stand;
  look(view, reporter, &mine);
  look(view, culprit, &stand);
  if (stand.flags != 0) {
    hint_flags(hint, culprit, &stand);
    return;
  }
  switch (stand.phase) {
    case WEFT_PHASE_COMPUTE:
      hint_compute(hint, view, culprit, &stand, weft_hang_elapsed(view->now, mine.since));
      break;
    case WEFT_PHASE_IDLE:
      say(hint, "see whether rank %" PRIu32 " %s, and whether it ended with an error of its own",
          culprit, stand.has_acted || stand.step > 0 ? "still runs" : "was started");
      break;
    case WEFT_PHASE_DONE: hint_done(hint, culprit, &stand, mine.step); break;
    case WEFT_PHASE_FAILED: say(hint, "rank %" PRIu32 "'s own error says why", culprit); break;
    case WEFT_PHASE_HANDSHAKE:
      say(hint, "every rank has come to the handshake: look at the network between them");
      break;
    default:
      if (waits_for_nothing(view, &stand)) {
        say(hint,
            "rank %" PRIu32 " is slow or stuck, or the network between it and rank %" PRIu32
            " is; if it is only slow, a larger stall_limit gives it time",
            culprit, stand.peer);
        break;
      }
      say(hint,
          "look at rank %" PRIu32 "'s row of the program: 'weft verify' shows whether it can end",
          culprit);
  }
}

/* ---- The whole ---- */

/* The circle's first rank on the way from the reporter. */
static uint32_t entry_of(struct view *view, uint32_t reporter,
                         const struct weft_wait_graph_end *verdict) {
  uint32_t at = reporter;
  for (uint32_t k = 0; k < verdict->moves && at != NOBODY; k++) {
    at = next_of(view, at);
  }
  return at != NOBODY ? at : verdict->culprit;
}

static struct weft_wait_graph_end judge(struct view *view, uint32_t reporter,
                                        struct weft_failure *failure) {
  const struct weft_wait_graph_end verdict = follow(view, reporter);
  struct line message = {.used = 0}, hint = {.used = 0};
  if (verdict.cycle_length > 0) {
    if (verdict.moves > 0) {
      say_chain(&message, view, reporter, verdict.moves, entry_of(view, reporter, &verdict));
      say(&message, "is in ");
    }
    say_circle(&message, view, &verdict);
    say(&hint, "the program can deadlock: 'weft verify' shows the circle");
  } else {
    struct weft_rank_state stand;
    if (verdict.culprit == reporter) {
      say_culprit(&message, view, reporter);
      say(&message, " ");
    } else {
      say_chain(&message, view, reporter, verdict.moves, verdict.culprit);
    }
    look(view, verdict.culprit, &stand);
    say_state(&message, view, &stand);
    hint_for(&hint, view, reporter, verdict.culprit);
  }
  failure->rank = verdict.culprit;
  (void)weft_fail(&failure->error, WEFT_ERR_STALLED, hint.data, "%s", message.data);
  return verdict;
}

static struct view view_of(const struct weft_hang *hang) {
  return (struct view){.hang = hang,
                       .rank_count = hang->rank_count,
                       .now = hang->now,
                       .nanoseconds = hang->nanoseconds,
                       .absent = NOBODY,
                       .tie_rows = {NOBODY, NOBODY}};
}

struct weft_wait_graph_end weft_wait_graph_follow(const struct weft_hang *hang, uint32_t reporter,
                                                  struct weft_failure *failure) {
  struct view view = view_of(hang);
  return judge(&view, reporter, failure);
}

void weft_wait_graph_cycle(const struct weft_hang *hang, const struct weft_wait_graph_end *verdict,
                           void (*each)(void *context, uint32_t rank), void *context) {
  struct view view = view_of(hang);
  uint32_t at = verdict->culprit;
  for (uint32_t k = 0; k < verdict->cycle_length && at != NOBODY; k++) {
    each(context, at);
    at = next_of(&view, at);
  }
}

void weft_hang_diagnose(const struct weft_hang *hang, uint32_t reporter,
                        struct weft_failure *failure) {
  (void)weft_wait_graph_follow(hang, reporter, failure);
}

void weft_hang_diagnose_now(struct weft_transport *transport, const struct weft_program *program,
                            uint32_t first_rank, enum weft_run_comm comm, uint32_t reporter,
                            struct weft_failure *failure) {
  struct view view = {.transport = transport,
                      .program = program,
                      .first_rank = first_rank,
                      .comm = comm,
                      .rank_count = transport->rank_count,
                      .now = transport->ops->now(transport),
                      .nanoseconds = weft_hang_is_real_time(transport),
                      .absent = NOBODY,
                      .tie_rows = {NOBODY, NOBODY}};
  (void)judge(&view, reporter, failure);
}
