/* Orders: their memory, and conversion to and from tables. */
#include "plan/problem/chain.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

static const enum weft_op op_of[] = {
    [WEFT_KIND_F] = WEFT_OP_F,
    [WEFT_KIND_I] = WEFT_OP_I,
    [WEFT_KIND_W] = WEFT_OP_W,
    [WEFT_KIND_B] = WEFT_OP_B,
};

/* A walk along the sequence of a rank. */
struct walk {
  const struct weft_chain *problem;
  const uint8_t *sequence;
  uint32_t counts[WEFT_LOCAL_STAGES_MAX * WEFT_KINDS]; /* occurrences of each op so far */
  /* [local stage] position of the oldest backward that has not been followed by its W or NO_W */
  uint32_t awaits_w[WEFT_LOCAL_STAGES_MAX];
};

/* The op whose occurrences number this one. */
static uint32_t counted_as(const struct weft_chain *problem, uint8_t op) {
  const enum weft_plan_op_kind kind = op % WEFT_KINDS;
  return op - (uint32_t)kind + weft_chain_counted_as(problem, kind);
}

static bool is_allowed(const struct weft_chain *problem, enum weft_plan_op_kind kind) {
  switch (problem->backward) {
    case WEFT_BACKWARD_SPLIT: return kind <= WEFT_KIND_W;
    case WEFT_BACKWARD_WHOLE: return kind == WEFT_KIND_F || kind == WEFT_KIND_B;
    default: return true;
  }
}

/* Whether the next op may be this one, apart from whether its backward is split. */
static bool may_follow(const struct walk *walk, uint8_t op) {
  const enum weft_plan_op_kind kind = op % WEFT_KINDS;
  const uint32_t first = op - (uint32_t)kind;
  if (op >= walk->problem->stages_per_rank * WEFT_KINDS || !is_allowed(walk->problem, kind)) {
    return false;
  }
  const uint32_t before = kind == WEFT_KIND_F ? walk->problem->microbatch_count
                                              : walk->counts[first + weft_chain_needed_by(kind)];
  return walk->counts[counted_as(walk->problem, op)] < before;
}

/* W follows I, and NO_W follows B. */
static bool matches_backward(struct walk *walk, uint8_t op) {
  const uint32_t local_stage = op / WEFT_KINDS, kind = op % WEFT_KINDS;
  if (walk->problem->backward != WEFT_BACKWARD_MIXED ||
      (kind != WEFT_KIND_W && kind != WEFT_KIND_NO_W)) {
    return true;
  }
  for (uint32_t *n = &walk->awaits_w[local_stage];;) {
    const unsigned before = walk->sequence[(*n)++] - local_stage * WEFT_KINDS;
    if (before == WEFT_KIND_I || before == WEFT_KIND_B) {
      return (before == WEFT_KIND_I) == (kind == WEFT_KIND_W);
    }
  }
}

/* ---- Memory ---- */

int64_t weft_chain_order_peak(const struct weft_chain *problem, uint32_t rank,
                              const uint8_t *sequence) {
  assert(rank < problem->rank_count && sequence != NULL);
  struct walk walk = {.problem = problem, .sequence = sequence};
  int64_t held = 0, peak = 0;
  for (uint32_t n = 0; n < problem->length; n++) {
    const uint8_t op = sequence[n];
    if (!may_follow(&walk, op) || !matches_backward(&walk, op)) {
      return -1;
    }
    const uint32_t microbatch = walk.counts[counted_as(problem, op)]++;
    const struct weft_chain_stage *stage =
        &problem->stages[problem->stage_of[rank * problem->stages_per_rank + op / WEFT_KINDS]];
    held += weft_chain_gradients(stage, op % WEFT_KINDS, microbatch);
    peak = held > peak ? held : peak;
    held += weft_chain_change(stage, op % WEFT_KINDS);
    peak = held > peak ? held : peak;
  }
  return peak;
}

/* ---- Tables ---- */

/* Returns the number of actions. */
static uint32_t write_row(const struct weft_chain *problem, uint32_t rank, const uint8_t *sequence,
                          struct weft_action *row) {
  struct walk walk = {.problem = problem};
  uint32_t size = 0;
  for (uint32_t n = 0; n < problem->length; n++) {
    const enum weft_plan_op_kind kind = sequence[n] % WEFT_KINDS;
    const uint32_t stage =
        problem->stage_of[rank * problem->stages_per_rank + sequence[n] / WEFT_KINDS];
    const uint32_t microbatch = walk.counts[counted_as(problem, sequence[n])]++;
    if (kind != WEFT_KIND_NO_W) {
      row[size++] = (struct weft_action){
          .op = (uint8_t)op_of[kind], .stage = (uint16_t)stage, .microbatch = microbatch};
    }
  }
  return size;
}

enum weft_status weft_chain_order_table(const struct weft_chain *problem,
                                        const struct weft_chain_order *order,
                                        struct weft_program **out, struct weft_error *error) {
  assert(order->ops != NULL && out != NULL);
  const size_t count = weft_chain_op_count(problem);
  struct weft_action *actions = weft_array_allocate(problem->allocator, count, sizeof *actions);
  uint64_t *sizes = weft_array_allocate(problem->allocator, problem->rank_count, sizeof *sizes);
  enum weft_status status;
  if (actions == NULL || sizes == NULL) {
    status = weft_fail_memory(error, count * sizeof *actions);
  } else {
    struct weft_action *row = actions;
    for (uint32_t r = 0; r < problem->rank_count; r++) {
      sizes[r] = write_row(problem, r, weft_chain_order_sequence(problem, order, r), row);
      row += sizes[r];
    }
    status =
        weft_program_create(problem->allocator, problem->rank_count, sizes, actions, out, error);
  }
  weft_array_free(problem->allocator, sizes, problem->rank_count, sizeof *sizes);
  weft_array_free(problem->allocator, actions, count, sizeof *actions);
  return status;
}

/* ---- From tables, and from one problem to another ---- */

/* A sequence that is being written. */
struct writer {
  struct walk walk;
  uint8_t *sequence;
  uint32_t size;
};

/* Appends an op; false when it may not follow. */
static bool append(struct writer *writer, uint8_t op) {
  if (writer->size == writer->walk.problem->length || !may_follow(&writer->walk, op)) {
    return false;
  }
  writer->sequence[writer->size++] = op;
  writer->walk.counts[counted_as(writer->walk.problem, op)]++;
  return true;
}

/* Appends the NO_W of whole backwards, up to the next W of a stage. They change neither times nor
 * memory, so any place does; but they are numbered together with W. */
static void skip_w(struct writer *writer, uint32_t local_stage) {
  const uint32_t first = local_stage * WEFT_KINDS;
  const uint32_t *counts = writer->walk.counts + first;
  uint32_t *n = &writer->walk.awaits_w[local_stage];
  while (counts[WEFT_KIND_W] < counts[WEFT_KIND_I]) {
    while (writer->sequence[*n] != first + WEFT_KIND_I &&
           writer->sequence[*n] != first + WEFT_KIND_B) {
      ++*n;
    }
    if (writer->sequence[*n] == first + WEFT_KIND_I) {
      return;
    }
    ++*n;
    (void)append(writer, (uint8_t)(first + WEFT_KIND_NO_W));
  }
}

/* Appends what an op of a table, or of another kind of order, is in the writer's problem. */
static bool convert(struct writer *writer, uint32_t local_stage, enum weft_plan_op_kind kind) {
  const uint8_t first = (uint8_t)(local_stage * WEFT_KINDS);
  const enum weft_plan_backward backward = writer->walk.problem->backward;
  if (kind == WEFT_KIND_B && backward == WEFT_BACKWARD_SPLIT) {
    return append(writer, first + WEFT_KIND_I) && append(writer, first + WEFT_KIND_W);
  }
  if (backward != WEFT_BACKWARD_MIXED) {
    return append(writer, first + (uint8_t)kind);
  }
  if (!append(writer, first + (uint8_t)kind)) {
    return false;
  }
  writer->walk.awaits_w[local_stage] += kind == WEFT_KIND_W; /* skip_w() has stopped at its I */
  skip_w(writer, local_stage);
  return true;
}

static enum weft_plan_op_kind kind_of(enum weft_op op) {
  for (unsigned kind = 0; kind < WEFT_ARRAY_LENGTH(op_of); kind++) {
    if (op_of[kind] == op) {
      return (enum weft_plan_op_kind)kind;
    }
  }
  return WEFT_KINDS;
}

/* Appends the ops of an action to a sequence; false when it has none. */
static bool read_action(struct writer *writer, uint32_t rank, const struct weft_action *action) {
  const struct weft_chain *problem = writer->walk.problem;
  const enum weft_plan_op_kind kind = kind_of(action->op);
  if (kind == WEFT_KINDS || action->stage >= problem->stage_count ||
      problem->stages[action->stage].rank != rank) {
    return false;
  }
  const uint32_t local_stage = problem->stages[action->stage].local_stage;
  const uint32_t *counts = writer->walk.counts + local_stage * (size_t)WEFT_KINDS;
  const bool splits = kind == WEFT_KIND_B && problem->backward == WEFT_BACKWARD_SPLIT;
  const enum weft_plan_op_kind counted =
      splits ? WEFT_KIND_I : weft_chain_counted_as(problem, kind);
  return action->microbatch == counts[counted] && convert(writer, local_stage, kind) &&
         (!splits || counts[WEFT_KIND_W] == action->microbatch + 1);
}

static bool is_ignored(enum weft_op op) { return op == WEFT_OP_IDLE || op == WEFT_OP_REDUCE_GRAD; }

static enum weft_status read_row(const struct weft_chain *problem, const struct weft_program *table,
                                 uint32_t rank, uint8_t *sequence, struct weft_error *error) {
  struct writer writer = {.walk = {.problem = problem}};
  writer.sequence = sequence;
  for (uint64_t n = table->row_begin[rank]; n < table->row_begin[rank + 1]; n++) {
    const struct weft_action *action = &table->actions[n];
    char text[64];
    if (!is_ignored(action->op) && !read_action(&writer, rank, action)) {
      return weft_fail(error, WEFT_ERR_INVALID, "", "rank %" PRIu32 ": a plan cannot have %s here",
                       rank, weft_action_format(action, text, sizeof text));
    }
  }
  return writer.size == problem->length
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_INVALID, "",
                         "rank %" PRIu32 " has %" PRIu32 " actions, a plan %" PRIu32, rank,
                         writer.size, problem->length);
}

enum weft_status weft_chain_order_read(const struct weft_chain *problem,
                                       const struct weft_program *table,
                                       struct weft_chain_order *order, struct weft_error *error) {
  assert(problem != NULL && table != NULL && order != NULL && order->ops != NULL);
  if (table->rank_count != problem->rank_count || table->stage_count != problem->stage_count ||
      table->microbatch_count != problem->microbatch_count) {
    return weft_fail(error, WEFT_ERR_INVALID, "", "the table has another shape than the plan");
  }
  enum weft_status status = WEFT_OK;
  for (uint32_t r = 0; status == WEFT_OK && r < problem->rank_count; r++) {
    status = read_row(problem, table, r, weft_chain_order_sequence(problem, order, r), error);
  }
  return status;
}

void weft_chain_order_convert(const struct weft_chain *from, const struct weft_chain_order *order,
                              const struct weft_chain *to, struct weft_chain_order *out) {
  assert(to->backward == WEFT_BACKWARD_MIXED && from->stage_count == to->stage_count);
  for (uint32_t r = 0; r < from->rank_count; r++) {
    const uint8_t *sequence = weft_chain_order_sequence(from, order, r);
    struct writer writer = {.walk = {.problem = to},
                            .sequence = weft_chain_order_sequence(to, out, r)};
    for (uint32_t n = 0; n < from->length; n++) {
      (void)convert(&writer, sequence[n] / WEFT_KINDS, sequence[n] % WEFT_KINDS);
    }
    assert(writer.size == to->length);
  }
}

void weft_chain_order_renumber(const struct weft_chain *problem, struct weft_chain_order *order) {
  assert(problem->backward == WEFT_BACKWARD_MIXED && order->ops != NULL);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    /* What is written never exceeds what is read: NO_W are written late. */
    uint8_t *sequence = weft_chain_order_sequence(problem, order, r);
    struct writer writer = {.walk = {.problem = problem}, .sequence = sequence};
    for (uint32_t n = 0; n < problem->length; n++) {
      const uint8_t op = sequence[n];
      if (op % WEFT_KINDS != WEFT_KIND_NO_W) {
        (void)convert(&writer, op / WEFT_KINDS, op % WEFT_KINDS);
      }
    }
    assert(writer.size == problem->length);
  }
}
