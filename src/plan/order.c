/* Orders: their memory, and conversion to and from tables. */
#include "plan/problem.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

static const enum weft_op op_of[WEFT_KINDS] = {
    [WEFT_KIND_F] = WEFT_OP_F,
    [WEFT_KIND_I] = WEFT_OP_I,
    [WEFT_KIND_W] = WEFT_OP_W,
    [WEFT_KIND_B] = WEFT_OP_B,
};

/* Occurrences of each op in a sequence so far. */
struct counts {
  uint32_t of[WEFT_LOCAL_STAGES_MAX * WEFT_KINDS];
};

/* ---- Memory ---- */

static bool may_follow(const struct weft_problem *problem, const struct counts *counts,
                       uint8_t op) {
  const enum weft_plan_op_kind kind = op % WEFT_KINDS;
  const uint32_t first = op - kind;
  if (op >= problem->stages_per_rank * WEFT_KINDS ||
      (kind == WEFT_KIND_B) != (problem->whole_backward && kind != WEFT_KIND_F)) {
    return false;
  }
  const uint32_t before = kind == WEFT_KIND_F ? problem->microbatch_count
                                              : counts->of[first + weft_problem_needed_by(kind)];
  return counts->of[op] < before;
}

int64_t weft_sequence_peak(const struct weft_problem *problem, uint32_t rank,
                           const uint8_t *sequence) {
  assert(rank < problem->rank_count && sequence != NULL);
  struct counts counts = {0};
  int64_t held = 0, peak = 0;
  for (uint32_t n = 0; n < problem->length; n++) {
    if (!may_follow(problem, &counts, sequence[n])) {
      return -1;
    }
    counts.of[sequence[n]]++;
    const uint32_t stage =
        problem->stage_of[rank * problem->stages_per_rank + sequence[n] / WEFT_KINDS];
    held += weft_problem_change(&problem->stages[stage], sequence[n] % WEFT_KINDS);
    peak = held > peak ? held : peak;
  }
  return peak;
}

/* ---- Tables ---- */

static void write_row(const struct weft_problem *problem, uint32_t rank, const uint8_t *sequence,
                      struct weft_action *row) {
  struct counts counts = {0};
  for (uint32_t n = 0; n < problem->length; n++) {
    const uint32_t stage =
        problem->stage_of[rank * problem->stages_per_rank + sequence[n] / WEFT_KINDS];
    row[n] = (struct weft_action){.op = (uint8_t)op_of[sequence[n] % WEFT_KINDS],
                                  .stage = (uint16_t)stage,
                                  .microbatch = counts.of[sequence[n]]++};
  }
}

enum weft_status weft_order_table(const struct weft_problem *problem,
                                  const struct weft_order *order, struct weft_program **out,
                                  struct weft_error *error) {
  assert(order->ops != NULL && out != NULL);
  const size_t count = weft_problem_op_count(problem);
  struct weft_action *actions = weft_array_allocate(problem->allocator, count, sizeof *actions);
  uint64_t *sizes = weft_array_allocate(problem->allocator, problem->rank_count, sizeof *sizes);
  enum weft_status status;
  if (actions == NULL || sizes == NULL) {
    status = weft_fail_memory(error, count * sizeof *actions);
  } else {
    for (uint32_t r = 0; r < problem->rank_count; r++) {
      sizes[r] = problem->length;
      write_row(problem, r, weft_order_sequence(problem, order, r),
                actions + (size_t)r * problem->length);
    }
    status =
        weft_program_create(problem->allocator, problem->rank_count, sizes, actions, out, error);
  }
  weft_array_free(problem->allocator, sizes, problem->rank_count, sizeof *sizes);
  weft_array_free(problem->allocator, actions, count, sizeof *actions);
  return status;
}

/* ---- From tables ---- */

static enum weft_plan_op_kind kind_of(enum weft_op op) {
  for (unsigned kind = 0; kind < WEFT_KINDS; kind++) {
    if (op_of[kind] == op) {
      return (enum weft_plan_op_kind)kind;
    }
  }
  return WEFT_KINDS;
}

/* Appends the ops of an action to a sequence; false when it has none. */
static bool read_action(const struct weft_problem *problem, uint32_t rank,
                        const struct weft_action *action, struct counts *counts, uint8_t *sequence,
                        uint32_t *size) {
  const enum weft_plan_op_kind kind = kind_of(action->op);
  if (kind == WEFT_KINDS || action->stage >= problem->stage_count ||
      problem->stages[action->stage].rank != rank) {
    return false;
  }
  const bool split = kind == WEFT_KIND_B && !problem->whole_backward;
  const uint32_t first = problem->stages[action->stage].local_stage * WEFT_KINDS;
  const uint32_t ops[2] = {first + (split ? WEFT_KIND_I : kind), first + WEFT_KIND_W};
  for (uint32_t k = 0; k < (split ? 2U : 1U); k++) {
    if (*size == problem->length || action->microbatch != counts->of[ops[k]] ||
        !may_follow(problem, counts, (uint8_t)ops[k])) {
      return false;
    }
    counts->of[ops[k]]++;
    sequence[(*size)++] = (uint8_t)ops[k];
  }
  return true;
}

static bool is_ignored(enum weft_op op) { return op == WEFT_OP_IDLE || op == WEFT_OP_REDUCE_GRAD; }

static enum weft_status read_row(const struct weft_problem *problem,
                                 const struct weft_program *table, uint32_t rank, uint8_t *sequence,
                                 struct weft_error *error) {
  struct counts counts = {0};
  uint32_t size = 0;
  for (uint64_t n = table->row_begin[rank]; n < table->row_begin[rank + 1]; n++) {
    const struct weft_action *action = &table->actions[n];
    char text[64];
    if (!is_ignored(action->op) && !read_action(problem, rank, action, &counts, sequence, &size)) {
      return weft_fail(error, WEFT_ERR_INVALID, "", "rank %" PRIu32 ": a plan cannot have %s here",
                       rank, weft_action_format(action, text, sizeof text));
    }
  }
  return size == problem->length
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_INVALID, "",
                         "rank %" PRIu32 " has %" PRIu32 " actions, a plan %" PRIu32, rank, size,
                         problem->length);
}

enum weft_status weft_order_read(const struct weft_problem *problem,
                                 const struct weft_program *table, struct weft_order *order,
                                 struct weft_error *error) {
  assert(problem != NULL && table != NULL && order != NULL && order->ops != NULL);
  if (table->rank_count != problem->rank_count || table->stage_count != problem->stage_count ||
      table->microbatch_count != problem->microbatch_count) {
    return weft_fail(error, WEFT_ERR_INVALID, "", "the table has another shape than the plan");
  }
  enum weft_status status = WEFT_OK;
  for (uint32_t r = 0; status == WEFT_OK && r < problem->rank_count; r++) {
    status = read_row(problem, table, r, weft_order_sequence(problem, order, r), error);
  }
  return status;
}
