/* The untimed dry run of PyTorch's _simulate_comms_compute: every action takes
 * one step, and a rank whose next action is not ready idles for a step. It
 * complements the timed simulation: from a program to the same program with
 * its bubbles.
 *
 * A step is two sweeps over the ranks, ascending. The first gives every rank
 * that has actions left a cell: its next action, or a bubble. The second fills
 * bubbles of this step that an action of this step has made ready. PyTorch asks
 * every rank in both sweeps; here a rank that waits at a RECV sleeps until
 * something is sent to it, so that bubbles cost nothing until they are written.
 * The run records the step of each cell; rows are written when their length is
 * known. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/inspect.h>
#include <weft/spec.h>
#include <weft/support.h>

#include "base/bits.h"
#include "ir/action.h"
#include "ir/pairs.h"
#include "ir/program.h"

/* What has been done about a message, each on the rank of its stage. */
enum { SENT = 1, RECEIVED = 2 };

struct dry_run {
  const struct weft_program *in;
  struct weft_arena *arena; /* everything below */
  uint8_t *done;            /* [stage][microbatch]: WEFT_OP_BIT of F, B, I on the stage's rank */
  uint8_t *messages;        /* [channel][microbatch] */
  uint32_t *rank_of;        /* [stage_count] */
  uint64_t *next;           /* [rank_count]: record of the next cell that is not a bubble */
  bool *asleep;             /* [rank_count]: until something is sent to the rank */
  uint32_t *started;        /* [action_count]: step of the cell that begins at this record */
  uint64_t *row_steps;      /* [rank_count]: cells of the row so far, bubbles included */
  uint64_t *row_sizes;      /* [rank_count]: records, likewise */
  uint64_t records;         /* sum of row_sizes */
  uint32_t live_count;      /* ranks with actions left */
  struct weft_bits first;   /* ranks to ask in the first sweep of this step */
  struct weft_bits second;  /* in the second */
  struct weft_bits later;   /* in the first of the next step */
};

static uint64_t skip_bubbles(const struct weft_program *program, uint64_t record, uint64_t end) {
  while (record < end && program->actions[record].op == WEFT_OP_IDLE) {
    record++;
  }
  return record;
}

static bool has_actions_left(const struct dry_run *run, uint32_t rank) {
  return run->next[rank] < run->in->row_begin[rank + 1];
}

static enum weft_status prepare_run(struct dry_run *run, struct weft_error *error) {
  const struct weft_program *in = run->in;
  struct weft_arena *arena = run->arena;
  size_t pairs, messages;
  WEFT_TRY(weft_pairs_count(in, &pairs, &messages, error));
  run->messages = weft_arena_allocate(arena, messages, sizeof *run->messages);
  run->done = weft_arena_allocate(arena, pairs, sizeof *run->done);
  run->rank_of = weft_arena_allocate(arena, in->stage_count, sizeof *run->rank_of);
  run->next = weft_arena_allocate(arena, in->rank_count, sizeof *run->next);
  run->asleep = weft_arena_allocate(arena, in->rank_count, sizeof *run->asleep);
  run->started = weft_arena_allocate(arena, in->action_count, sizeof *run->started);
  run->row_steps = weft_arena_allocate(arena, in->rank_count, sizeof *run->row_steps);
  run->row_sizes = weft_arena_allocate(arena, in->rank_count, sizeof *run->row_sizes);
  struct weft_bits *const sets[] = {&run->first, &run->second, &run->later};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(sets); k++) {
    (void)weft_bits_init(sets[k], arena, in->rank_count);
  }
  WEFT_TRY(weft_arena_status(arena, error));
  (void)weft_placement_infer(in, run->rank_of);
  for (uint32_t rank = 0; rank < in->rank_count; rank++) {
    run->next[rank] = skip_bubbles(in, in->row_begin[rank], in->row_begin[rank + 1]);
    if (has_actions_left(run, rank)) {
      run->live_count++;
      weft_bits_insert(&run->first, rank);
    }
  }
  return WEFT_OK;
}

static uint8_t *done_of(const struct dry_run *run, uint32_t stage, uint32_t microbatch) {
  assert(stage < run->in->stage_count && microbatch < run->in->microbatch_count);
  return &run->done[(size_t)stage * run->in->microbatch_count + microbatch];
}

static bool is_done(const struct dry_run *run, uint32_t stage, uint32_t microbatch, uint32_t bits) {
  return (*done_of(run, stage, microbatch) & bits) != 0;
}

static uint8_t *message_on(const struct dry_run *run, uint32_t channel, uint32_t microbatch) {
  assert(channel < weft_channel_count(run->in->graph, run->in->stage_count));
  return &run->messages[(size_t)channel * run->in->microbatch_count + microbatch];
}

/* That a SEND or RECV carries; NULL: its stages have no edge. */
static uint8_t *message_of(const struct dry_run *run, struct weft_action transfer) {
  const uint32_t channel = weft_channel_of(run->in, transfer);
  return channel != WEFT_EDGE_NONE ? message_on(run, channel, transfer.microbatch) : NULL;
}

/* Whether what one stage makes is at hand for the other without a transfer. */
static bool is_near(const struct dry_run *run, uint32_t stage, uint32_t other) {
  return other < run->in->stage_count && run->rank_of[stage] == run->rank_of[other];
}

/* Number k of its inputs. */
static bool input_is_ready(const struct dry_run *run, struct weft_action action, uint32_t k,
                           uint32_t producer) {
  const uint32_t channel = weft_action_input_channel(run->in->graph, action, k);
  const uint32_t makers = action.op == WEFT_OP_F ? WEFT_OP_BIT(WEFT_OP_F) : WEFT_OPS_GRADIENT;
  return (*message_on(run, channel, action.microbatch) & RECEIVED) != 0 ||
         (is_near(run, action.stage, producer) &&
          is_done(run, producer, action.microbatch, makers));
}

/* The first of its inputs that is not ready: the stage that makes it. False: all are. */
static bool find_unready_input(const struct dry_run *run, struct weft_action action,
                               uint32_t *producer) {
  const uint32_t count = weft_action_input_count(run->in->graph, action, run->in->stage_count);
  for (uint32_t k = 0; k < count; k++) {
    *producer = weft_action_input_at(run->in->graph, action, k);
    if (!input_is_ready(run, action, k, *producer)) {
      return true;
    }
  }
  return false;
}

static bool action_is_ready(const struct dry_run *run, struct weft_action action) {
  uint32_t producer;
  const uint8_t *message;
  switch (action.op) {
    case WEFT_OP_F:
    case WEFT_OP_B:
    case WEFT_OP_I: return !find_unready_input(run, action, &producer);
    case WEFT_OP_SEND_F:
      return is_done(run, action.stage, action.microbatch, WEFT_OP_BIT(WEFT_OP_F));
    case WEFT_OP_SEND_B: return is_done(run, action.stage, action.microbatch, WEFT_OPS_GRADIENT);
    case WEFT_OP_RECV_F:
    case WEFT_OP_RECV_B:
      message = message_of(run, action);
      return message != NULL && (*message & SENT) != 0;
    default: return true;
  }
}

/* The first record of a cell that is not ready, or NULL. */
static const struct weft_action *find_unready(const struct dry_run *run,
                                              const struct weft_action *cell, uint32_t records) {
  for (uint32_t i = 0; i < records; i++) {
    if (!action_is_ready(run, cell[i])) {
      return &cell[i];
    }
  }
  return NULL;
}

/* PyTorch looks an action up on the rank of its stage, so one that is on
 * another rank makes nothing ready. */
static void mark_done(const struct dry_run *run, uint32_t rank, struct weft_action action) {
  if (run->rank_of[action.stage] != rank) {
    return;
  }
  if (weft_op_in(action.op, WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT)) {
    *done_of(run, action.stage, action.microbatch) |= (uint8_t)WEFT_OP_BIT(action.op);
  } else if (weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    uint8_t *message = message_of(run, action);
    if (message != NULL) {
      *message |= weft_op_in(action.op, WEFT_OPS_SEND) ? SENT : RECEIVED;
    }
  }
}

/* A sweep: asks the ranks of a set, ascending, while the set grows. */
struct sweep {
  struct weft_bits *set;
  struct weft_bits *missed; /* for ranks that the sweep has passed already */
  uint32_t step;
  uint32_t progress; /* cells run */
};

/* A SEND wakes the rank of the receiving stage, which may find that it waits for
 * another message and sleep on. */
static inline void wake_receiver(const struct dry_run *run, const struct sweep *sweep,
                                 uint32_t rank, struct weft_action send) {
  const uint32_t to = weft_transfer_other(send);
  const uint32_t receiver = to < run->in->stage_count ? run->rank_of[to] : WEFT_RANK_NONE;
  if (receiver != WEFT_RANK_NONE && run->asleep[receiver]) {
    run->asleep[receiver] = false;
    weft_bits_insert(receiver > rank ? sweep->set : sweep->missed, receiver);
  }
}

/* The row has so many cells now, and more records by the parts of an overlap. */
static void grow_row(struct dry_run *run, uint32_t rank, uint64_t steps, uint32_t parts) {
  const uint64_t grown = steps - run->row_steps[rank] + parts;
  run->row_steps[rank] = steps;
  run->row_sizes[rank] += grown;
  run->records += grown;
}

static void run_cell(struct dry_run *run, const struct sweep *sweep, uint32_t rank,
                     uint32_t records) {
  const uint64_t record = run->next[rank];
  const struct weft_action *cell = &run->in->actions[record];
  for (uint32_t i = 0; i < records; i++) {
    mark_done(run, rank, cell[i]);
    if (weft_op_in(cell[i].op, WEFT_OPS_SEND)) {
      wake_receiver(run, sweep, rank, cell[i]);
    }
  }
  run->started[record] = sweep->step;
  grow_row(run, rank, sweep->step + (uint64_t)1, records - 1);
  run->next[rank] = skip_bubbles(run->in, record + records, run->in->row_begin[rank + 1]);
}

static void ask(struct dry_run *run, struct sweep *sweep, uint32_t rank) {
  const struct weft_action *cell = &run->in->actions[run->next[rank]];
  const uint32_t records = weft_cell_records(cell);
  const struct weft_action *unready = find_unready(run, cell, records);
  if (unready == NULL) {
    run_cell(run, sweep, rank, records);
    sweep->progress++;
    if (has_actions_left(run, rank)) {
      weft_bits_insert(&run->later, rank);
    } else {
      run->live_count--;
    }
  } else if (run->rank_of[unready->stage] == rank) {
    /* What it waits for concerns one of its own stages, so that nothing but a message can bring it
     * from elsewhere. Other waits, which only a wrong program has, are asked for in each sweep. */
    run->asleep[rank] = true;
  } else {
    /* Counting the bubble bounds the time that asking can take. */
    grow_row(run, rank, sweep->step + (uint64_t)1, 0);
    weft_bits_insert(sweep->missed, rank);
  }
}

static uint32_t run_sweep(struct dry_run *run, struct sweep sweep) {
  for (uint32_t rank = weft_bits_next(sweep.set, 0); rank != WEFT_BITS_NONE;
       rank = weft_bits_next(sweep.set, rank + 1)) {
    weft_bits_remove(sweep.set, rank);
    ask(run, &sweep, rank);
  }
  return sweep.progress;
}

/* Both sweeps; false when no rank could do anything. */
static bool run_step(struct dry_run *run, uint32_t step) {
  if (run_sweep(run, (struct sweep){&run->first, &run->second, step, 0}) == 0) {
    return false;
  }
  (void)run_sweep(run, (struct sweep){&run->second, &run->later, step, 0});
  const struct weft_bits emptied = run->first;
  run->first = run->later;
  run->later = emptied;
  return true;
}

/* The message of a run that is stuck. */

/* B and I are alternatives: either makes the gradient that is waited for. */
static bool same_result(struct weft_action a, struct weft_action b) {
  const bool same_op =
      a.op == b.op || (weft_op_in(a.op, WEFT_OPS_GRADIENT) && weft_op_in(b.op, WEFT_OPS_GRADIENT));
  return same_op && a.skip == b.skip && a.stage == b.stage && a.microbatch == b.microbatch;
}

/* "1SEND_B1 (rank 1, step 9)" */
static void add_wanted(const struct weft_program *program, struct weft_action wanted,
                       struct weft_text *text) {
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
      if (same_result(program->actions[i], wanted)) {
        weft_action_print(&program->actions[i], text);
        weft_text_addf(text, " (rank %" PRIu32 ", step %" PRIu64 ")", rank,
                       weft_program_step_at(program, rank, i));
        return;
      }
    }
  }
  weft_action_print(&wanted, text);
  weft_text_add(text, " (nowhere in the program)");
}

/* What an action that is not ready waits for; false when no such thing can be. */
static bool find_wanted(const struct dry_run *run, struct weft_action action,
                        struct weft_action *wanted) {
  uint32_t producer;
  *wanted = action;
  if (action.op == WEFT_OP_SEND_F || action.op == WEFT_OP_SEND_B) {
    wanted->op = action.op == WEFT_OP_SEND_F ? WEFT_OP_F : WEFT_OP_B;
    return true;
  }
  if (!weft_op_in(action.op, WEFT_OPS_COMPUTE) || !find_unready_input(run, action, &producer)) {
    return weft_action_partner(action, run->in->stage_count, wanted);
  }
  if (is_near(run, action.stage, producer)) {
    wanted->op = action.op == WEFT_OP_F ? WEFT_OP_F : WEFT_OP_B;
    wanted->stage = (uint16_t)producer;
  } else { /* the RECV of it */
    *wanted = weft_action_transfer(action.op == WEFT_OP_F ? WEFT_OP_RECV_F : WEFT_OP_RECV_B,
                                   action.stage, producer, action.microbatch);
  }
  return true;
}

/* "rank 0, step 3: 0RECV_B1 waits for 1SEND_B1 (rank 1, step 9)" */
static void add_wait(const struct dry_run *run, uint32_t rank, struct weft_text *text) {
  const struct weft_action *cell = &run->in->actions[run->next[rank]];
  const struct weft_action *unready = find_unready(run, cell, weft_cell_records(cell));
  struct weft_action wanted;
  char cell_text[40];
  weft_text_addf(text, "rank %" PRIu32 ", step %" PRIu64 ": %s waits for ", rank,
                 weft_program_step_at(run->in, rank, run->next[rank]),
                 weft_action_format(cell, cell_text, sizeof cell_text));
  if (find_wanted(run, *unready, &wanted)) {
    add_wanted(run->in, wanted, text);
  } else {
    weft_text_add(text, "a stage that does not exist");
  }
}

static enum weft_status fail_stuck(const struct dry_run *run, uint32_t step,
                                   struct weft_error *error) {
  enum { NAMED_MAX = 3 }; /* three of them fit into a message */
  WEFT_SCOPED_TEXT waits = {.allocator = run->arena->allocator};
  uint32_t named = 0;
  for (uint32_t rank = 0; rank < run->in->rank_count && named < NAMED_MAX; rank++) {
    if (has_actions_left(run, rank)) {
      weft_text_add(&waits, named++ > 0 ? "; " : "");
      add_wait(run, rank, &waits);
    }
  }
  if (run->live_count > named) {
    weft_text_addf(&waits, "; and %" PRIu32 " more ranks wait", run->live_count - named);
  }
  WEFT_TRY(weft_text_status(&waits, error));
  return weft_fail(error, WEFT_ERR_INVALID,
                   weft_program_has(run->in, WEFT_OPS_SEND | WEFT_OPS_RECV)
                       ? "verify the program to see the cycle, or what is missing"
                       : "it has no SEND and RECV: lower it first",
                   "the dry run is stuck after %" PRIu32 " steps: %s", step,
                   waits.data != NULL ? waits.data : "");
}

static enum weft_status run_all(struct dry_run *run, struct weft_error *error) {
  for (uint32_t step = 0; run->live_count > 0; step++) {
    if (!run_step(run, step)) {
      return fail_stuck(run, step, error);
    }
    if (run->records > WEFT_ACTIONS_MAX) {
      return weft_fail(error, WEFT_ERR_LIMIT, "use a smaller program",
                       "the dry run has more than %" PRIu64
                       " cells, bubbles included, by step %" PRIu32,
                       WEFT_ACTIONS_MAX, step);
    }
  }
  return WEFT_OK;
}

static struct weft_action *write_bubbles(struct weft_action *out, uint64_t count) {
  memset(out, 0, count * sizeof *out); /* WEFT_OP_IDLE is 0 */
  return out + count;
}

static void write_row(const struct dry_run *run, uint32_t rank, struct weft_program *out) {
  const struct weft_program *in = run->in;
  const uint64_t end = in->row_begin[rank + 1];
  struct weft_action *to = &out->actions[out->row_begin[rank]];
  uint64_t step = 0;
  uint64_t record = skip_bubbles(in, in->row_begin[rank], end);
  while (record < end) {
    const uint32_t records = weft_cell_records(&in->actions[record]);
    to = write_bubbles(to, run->started[record] - step);
    memcpy(to, &in->actions[record], records * sizeof *to);
    to += records;
    step = run->started[record] + (uint64_t)1;
    record = skip_bubbles(in, record + records, end);
  }
}

enum weft_status weft_dry_run(const struct weft_allocator *allocator, const struct weft_program *in,
                              struct weft_program **out, struct weft_error *error) {
  WEFT_NEED(in, error);
  WEFT_NEED(out, error);
  assert(weft_program_is_sound(in));
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  struct dry_run run = {.in = in, .arena = &arena};
  struct weft_program *program;
  WEFT_TRY(prepare_run(&run, error));
  WEFT_TRY(run_all(&run, error));
  WEFT_TRY(weft_program_allocate(allocator, in->rank_count, run.row_sizes, &program, error));
  for (uint32_t rank = 0; rank < in->rank_count; rank++) {
    write_row(&run, rank, program);
  }
  weft_program_seal_like(program, in, in->level);
  *out = program;
  return WEFT_OK;
}
