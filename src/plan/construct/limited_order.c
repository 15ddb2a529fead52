/* A quick order for problems of millions of ops, where list scheduling takes a second or more: what
 * a search without time has to offer. */
#include <assert.h>

#include "plan/construct/chain_incumbent.h"

/* Fewer ops are scheduled in no time. */
enum { OPS_MIN = 1000000 };

struct writer {
  const struct weft_chain *problem;
  uint8_t *sequence;
  uint32_t size;
};

static void add(struct writer *writer, uint32_t local_stage, enum weft_plan_op_kind kind) {
  writer->sequence[writer->size++] = (uint8_t)(local_stage * WEFT_KINDS + kind);
}

static void add_backward(struct writer *writer, uint32_t local_stage) {
  add(writer, local_stage, weft_chain_backward(writer->problem));
  if (writer->problem->backward == WEFT_BACKWARD_SPLIT) {
    add(writer, local_stage, WEFT_KIND_W);
  }
}

/* The microbatches that a rank can have in flight at all its stages. */
static uint32_t most_in_flight(const struct weft_chain *problem, uint32_t rank) {
  int64_t held = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const struct weft_chain_stage *stage =
        &problem->stages[problem->stage_of[rank * problem->stages_per_rank + k]];
    const int64_t after = problem->backward == WEFT_BACKWARD_SPLIT ? stage->held_after : 0;
    held += weft_max(stage->held, after);
  }
  const int64_t fit =
      held > 0 ? weft_chain_limit_at_end(problem, rank) / held : problem->microbatch_count;
  return (uint32_t)weft_max(0, weft_min(fit, problem->microbatch_count));
}

/* A warm-up of `count` forwards, and then a backward for each forward. */
static void write_1f1b(struct writer *writer, uint32_t count) {
  const uint32_t m = writer->problem->microbatch_count;
  for (uint32_t k = 0; k < count; k++) {
    add(writer, 0, WEFT_KIND_F);
  }
  for (uint32_t k = 0; k < m; k++) {
    add_backward(writer, 0);
    if (k + count < m) {
      add(writer, 0, WEFT_KIND_F);
    }
  }
}

/* Stage after stage, with so many microbatches at a time. */
static void write_groups(struct writer *writer, uint32_t size) {
  const uint32_t v = writer->problem->stages_per_rank, m = writer->problem->microbatch_count;
  for (uint32_t done = 0; done < m; done += size) {
    const uint32_t count = size < m - done ? size : m - done;
    for (uint32_t n = 0; n < v * count; n++) {
      add(writer, n / count, WEFT_KIND_F);
    }
    for (uint32_t n = v * count; n-- > 0;) {
      add_backward(writer, n / count);
    }
  }
}

/* One stage per rank. False: nothing fits. */
static bool write_all_1f1b(const struct weft_chain *problem, struct weft_chain_order *order,
                           const char **name) {
  uint32_t most = problem->microbatch_count;
  *name = problem->backward == WEFT_BACKWARD_WHOLE ? "1F1B" : NULL;
  for (uint32_t r = 0; r < problem->rank_count && most > 0; r++) {
    struct writer writer = {.problem = problem,
                            .sequence = weft_chain_order_sequence(problem, order, r)};
    const int64_t p = problem->rank_count, usual = weft_min(p - r, problem->microbatch_count);
    /* No more than the rank before, which would not send the forwards; and falling evenly to one on
     * the last rank: a microbatch has to go all the way through ranks that have equal numbers, and
     * back, before the next one moves. */
    most = (uint32_t)weft_min(most, most_in_flight(problem, r));
    const int64_t count = weft_min(usual, (most * (p - r) + p - 1) / p);
    *name = count == usual ? *name : NULL;
    write_1f1b(&writer, (uint32_t)count);
    assert(writer.size == problem->length);
  }
  return most > 0;
}

static bool write_all_groups(const struct weft_chain *problem, struct weft_chain_order *order) {
  uint32_t most = problem->microbatch_count;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    most = (uint32_t)weft_min(most, most_in_flight(problem, r));
  }
  for (uint32_t r = 0; r < problem->rank_count && most > 0; r++) {
    struct writer writer = {.problem = problem,
                            .sequence = weft_chain_order_sequence(problem, order, r)};
    write_groups(&writer, most);
    assert(writer.size == problem->length);
  }
  return most > 0;
}

void weft_construct_limited(struct weft_chain_incumbent *incumbent) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  const struct weft_chain *problem = incumbent->problem;
  const char *name = NULL;
  if (weft_chain_op_count(problem) >= OPS_MIN &&
      (problem->stages_per_rank == 1 ? write_all_1f1b(problem, &incumbent->draft, &name)
                                     : write_all_groups(problem, &incumbent->draft))) {
    (void)weft_chain_incumbent_offer(incumbent, &incumbent->draft, name);
  }
}
