/* The untimed dry run of PyTorch's _simulate_comms_compute: every action takes
 * one step, and a rank whose next action is not ready idles for a step. It
 * stands beside the timed simulation: from a program to the same program with
 * its bubbles.
 *
 * A step is two sweeps over the ranks, ascending. The first gives every rank
 * that has actions left a cell: its next action, or a bubble. The second fills
 * bubbles of this step that an action of this step has made ready. The run
 * records the step of each cell; rows are written when their length is known.
 * Time is linear in the cells that come out, since a poll that finds nothing
 * ready is a bubble in the result. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/inspect.h>
#include <weft/spec.h>

#include "analyze/pairs.h"
#include "base/fail.h"
#include "base/memory.h"
#include "ir/action.h"
#include "ir/program.h"

/* What has been done about one (stage, microbatch), on the stage's own rank. */
enum {
  DONE_F = 1u << 0,
  DONE_GRADIENT = 1u << 1, /* B or I */
  DONE_SEND_F = 1u << 2,
  DONE_SEND_B = 1u << 3,
  DONE_RECV_F = 1u << 4,
  DONE_RECV_B = 1u << 5
};

static const uint8_t done_bits[WEFT_OP_COUNT] = {
    [WEFT_OP_F] = DONE_F,           [WEFT_OP_B] = DONE_GRADIENT,    [WEFT_OP_I] = DONE_GRADIENT,
    [WEFT_OP_SEND_F] = DONE_SEND_F, [WEFT_OP_SEND_B] = DONE_SEND_B, [WEFT_OP_RECV_F] = DONE_RECV_F,
    [WEFT_OP_RECV_B] = DONE_RECV_B,
};

struct dry_run {
  const struct weft_program *in;
  struct weft_arena arena; /* everything below */
  uint8_t *done;           /* [stage][microbatch]: DONE_* */
  uint32_t *rank_of;       /* [stage_count] */
  uint64_t *next;          /* [rank_count]: record of the next cell that is not a bubble */
  uint32_t *live;          /* [live_count]: ranks with actions left, ascending */
  uint32_t *waiting;       /* [waiting_count]: of those, the ones that got a bubble in this step */
  uint32_t *started;       /* [action_count]: step of the cell that begins at this record */
  uint64_t *row_sizes;     /* [rank_count]: records of the row so far, bubbles included */
  uint64_t records;        /* sum of row_sizes */
  uint32_t live_count;
  uint32_t waiting_count;
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

/* Drops the ranks that have run out; keeps the order. */
static void keep_live(struct dry_run *run) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < run->live_count; i++) {
    if (has_actions_left(run, run->live[i])) {
      run->live[kept++] = run->live[i];
    }
  }
  run->live_count = kept;
}

static enum weft_status allocate(struct dry_run *run, struct weft_error *error) {
  const struct weft_program *in = run->in;
  size_t pairs;
  WEFT_TRY(weft_pairs_count(in, &pairs, error));
  run->done = weft_arena_allocate(&run->arena, pairs, sizeof *run->done);
  run->rank_of = weft_arena_allocate(&run->arena, in->stage_count, sizeof *run->rank_of);
  run->next = weft_arena_allocate(&run->arena, in->rank_count, sizeof *run->next);
  run->live = weft_arena_allocate(&run->arena, in->rank_count, sizeof *run->live);
  run->waiting = weft_arena_allocate(&run->arena, in->rank_count, sizeof *run->waiting);
  run->started = weft_arena_allocate(&run->arena, in->action_count, sizeof *run->started);
  run->row_sizes = weft_arena_allocate(&run->arena, in->rank_count, sizeof *run->row_sizes);
  if (run->done == NULL || run->rank_of == NULL || run->next == NULL || run->live == NULL ||
      run->waiting == NULL || run->started == NULL || run->row_sizes == NULL) {
    return weft_fail_memory(error, pairs + (size_t)in->action_count * sizeof *run->started);
  }
  return WEFT_OK;
}

static enum weft_status prepare(struct dry_run *run, struct weft_error *error) {
  const struct weft_program *in = run->in;
  WEFT_TRY(allocate(run, error));
  (void)weft_placement_infer(in, run->rank_of);
  for (uint32_t rank = 0; rank < in->rank_count; rank++) {
    run->next[rank] = skip_bubbles(in, in->row_begin[rank], in->row_begin[rank + 1]);
    run->live[rank] = rank;
  }
  run->live_count = in->rank_count;
  keep_live(run);
  return WEFT_OK;
}

static uint8_t *done_of(const struct dry_run *run, uint32_t stage, uint32_t microbatch) {
  return &run->done[(size_t)stage * run->in->microbatch_count + microbatch];
}

static bool is_done(const struct dry_run *run, uint32_t stage, uint32_t microbatch, uint32_t bits) {
  return (*done_of(run, stage, microbatch) & bits) != 0;
}

/* Whether what one stage makes is at hand for the other without a transfer. */
static bool is_near(const struct dry_run *run, uint32_t stage, uint32_t other) {
  return run->rank_of[stage] == run->rank_of[other];
}

static bool input_is_ready(const struct dry_run *run, struct weft_action action) {
  uint32_t producer;
  if (!weft_action_input(action, run->in->stage_count, &producer)) {
    return true;
  }
  const bool forward = action.op == WEFT_OP_F;
  return is_done(run, action.stage, action.microbatch, forward ? DONE_RECV_F : DONE_RECV_B) ||
         (is_near(run, action.stage, producer) &&
          is_done(run, producer, action.microbatch, forward ? DONE_F : DONE_GRADIENT));
}

static bool action_is_ready(const struct dry_run *run, struct weft_action action) {
  struct weft_action send;
  switch (action.op) {
    case WEFT_OP_F:
    case WEFT_OP_B:
    case WEFT_OP_I: return input_is_ready(run, action);
    case WEFT_OP_SEND_F: return is_done(run, action.stage, action.microbatch, DONE_F);
    case WEFT_OP_SEND_B: return is_done(run, action.stage, action.microbatch, DONE_GRADIENT);
    case WEFT_OP_RECV_F:
    case WEFT_OP_RECV_B:
      return weft_action_partner(action, run->in->stage_count, &send) &&
             is_done(run, send.stage, send.microbatch, done_bits[send.op]);
    default: return true;
  }
}

/* The first record of a cell that is not ready, or NULL. */
static const struct weft_action *find_unready(const struct dry_run *run,
                                              const struct weft_action *cell) {
  const uint32_t records = weft_cell_records(cell);
  for (uint32_t i = 0; i < records; i++) {
    if (!action_is_ready(run, cell[i])) {
      return &cell[i];
    }
  }
  return NULL;
}

/* PyTorch looks an action up on the rank of its stage, so one that stands on
 * another rank makes nothing ready. */
static void mark_done(struct dry_run *run, uint32_t rank, struct weft_action action) {
  const uint8_t bits = done_bits[action.op];
  if (bits != 0 && run->rank_of[action.stage] == rank) {
    *done_of(run, action.stage, action.microbatch) |= bits;
  }
}

/* Runs the next cell of the rank in this step, if it is ready. */
static bool try_next(struct dry_run *run, uint32_t rank, uint32_t step) {
  const uint64_t record = run->next[rank];
  const struct weft_action *cell = &run->in->actions[record];
  if (find_unready(run, cell) != NULL) {
    return false;
  }
  const uint32_t records = weft_cell_records(cell);
  for (uint32_t i = 0; i < records; i++) {
    mark_done(run, rank, cell[i]);
  }
  run->started[record] = step;
  run->row_sizes[rank] += records - 1;
  run->records += records - 1;
  run->next[rank] = skip_bubbles(run->in, record + records, run->in->row_begin[rank + 1]);
  return true;
}

/* Both sweeps; false when no rank could do anything. */
static bool run_step(struct dry_run *run, uint32_t step) {
  run->waiting_count = 0;
  for (uint32_t i = 0; i < run->live_count; i++) {
    const uint32_t rank = run->live[i];
    run->row_sizes[rank]++;
    if (!try_next(run, rank, step)) {
      run->waiting[run->waiting_count++] = rank;
    }
  }
  run->records += run->live_count;
  if (run->waiting_count == run->live_count) {
    return false;
  }
  for (uint32_t i = 0; i < run->waiting_count; i++) {
    (void)try_next(run, run->waiting[i], step);
  }
  keep_live(run);
  return true;
}

/* The message of a run that is stuck. */

static uint64_t step_of(const struct weft_program *program, uint32_t rank, uint64_t record) {
  uint64_t step = 0;
  uint64_t cell = program->row_begin[rank];
  while ((cell += weft_cell_records(&program->actions[cell])) <= record) {
    step++;
  }
  return step;
}

/* B and I stand for each other: either makes the gradient that is waited for. */
static bool same_result(struct weft_action a, struct weft_action b) {
  return done_bits[a.op] == done_bits[b.op] && a.stage == b.stage && a.microbatch == b.microbatch;
}

/* "1SEND_B1 (rank 1, step 9)" */
static void describe_wanted(const struct weft_program *program, struct weft_action wanted,
                            char *buffer, size_t size) {
  char text[24];
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
      if (same_result(program->actions[i], wanted)) {
        (void)weft_action_format(&program->actions[i], text, sizeof text);
        (void)snprintf(buffer, size, "%s (rank %" PRIu32 ", step %" PRIu64 ")", text, rank,
                       step_of(program, rank, i));
        return;
      }
    }
  }
  (void)weft_action_format(&wanted, text, sizeof text);
  (void)snprintf(buffer, size, "%s (nowhere in the program)", text);
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
  if (!weft_action_input(action, run->in->stage_count, &producer)) {
    return weft_action_partner(action, run->in->stage_count, wanted);
  }
  if (is_near(run, action.stage, producer)) {
    wanted->op = action.op == WEFT_OP_F ? WEFT_OP_F : WEFT_OP_B;
    wanted->stage = (uint16_t)producer;
  } else {
    wanted->op = action.op == WEFT_OP_F ? WEFT_OP_RECV_F : WEFT_OP_RECV_B;
  }
  return true;
}

/* "rank 0, step 3: 0RECV_B1 waits for 1SEND_B1 (rank 1, step 9)" */
static void describe_wait(const struct dry_run *run, uint32_t rank, char *buffer, size_t size) {
  const struct weft_action *cell = &run->in->actions[run->next[rank]];
  const struct weft_action *unready = find_unready(run, cell);
  struct weft_action wanted;
  char cell_text[40];
  char wanted_text[80] = "a stage that does not exist";
  if (find_wanted(run, *unready, &wanted)) {
    describe_wanted(run->in, wanted, wanted_text, sizeof wanted_text);
  }
  (void)snprintf(buffer, size, "rank %" PRIu32 ", step %" PRIu64 ": %s waits for %s", rank,
                 step_of(run->in, rank, run->next[rank]),
                 weft_action_format(cell, cell_text, sizeof cell_text), wanted_text);
}

static bool has_transfers(const struct weft_program *program) {
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (weft_op_in(program->actions[i].op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
      return true;
    }
  }
  return false;
}

static enum weft_status fail_stuck(const struct dry_run *run, uint32_t step,
                                   struct weft_error *error) {
  enum { NAMED_MAX = 3 }; /* three of them fit into a message */
  char waits[NAMED_MAX][140] = {""};
  char more[40] = "";
  for (uint32_t i = 0; i < run->waiting_count && i < NAMED_MAX; i++) {
    waits[i][0] = ';';
    waits[i][1] = ' ';
    describe_wait(run, run->waiting[i], waits[i] + 2, sizeof waits[i] - 2);
  }
  if (run->waiting_count > NAMED_MAX) {
    (void)snprintf(more, sizeof more, "; and %" PRIu32 " more ranks wait",
                   run->waiting_count - NAMED_MAX);
  }
  return weft_fail(error, WEFT_ERR_INVALID,
                   has_transfers(run->in) ? "weft verify shows the circle, or what is missing"
                                          : "it has no SEND and RECV: lower it first",
                   "the dry run is stuck after %" PRIu32 " steps: %s%s%s%s", step, waits[0] + 2,
                   waits[1], waits[2], more);
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

static enum weft_status run_and_write(struct dry_run *run, const struct weft_allocator *allocator,
                                      struct weft_program **out, struct weft_error *error) {
  WEFT_TRY(prepare(run, error));
  WEFT_TRY(run_all(run, error));
  struct weft_program *program;
  WEFT_TRY(weft_program_allocate(allocator, run->in->rank_count, run->row_sizes, &program, error));
  for (uint32_t rank = 0; rank < run->in->rank_count; rank++) {
    write_row(run, rank, program);
  }
  weft_program_seal(program);
  *out = program;
  return WEFT_OK;
}

enum weft_status weft_dry_run(const struct weft_allocator *allocator, const struct weft_program *in,
                              struct weft_program **out, struct weft_error *error) {
  struct dry_run run = {.in = in, .arena = {.allocator = allocator}};
  const enum weft_status status = run_and_write(&run, allocator, out, error);
  weft_arena_finish(&run.arena);
  return status;
}
