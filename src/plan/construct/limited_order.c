/* A quick order for problems of millions of ops, where list scheduling takes a second or more: what
 * a search without time has to offer. */
#include <assert.h>
#include <string.h>

#include "plan/construct/constructors.h"

/* Fewer ops are scheduled in no time. */
enum { OPS_MIN = 1000000 };

/* Where the next op of a rank goes. */
struct writer {
  uint32_t *next;
  const uint32_t *stages; /* of the rank */
};

static void add_forward(struct writer *writer, uint32_t local_stage) {
  *writer->next++ = writer->stages[local_stage] * WEFT_ORDER_KINDS + WEFT_KIND_F;
}

static void add_backward(struct writer *writer, uint32_t local_stage) {
  const uint32_t first = writer->stages[local_stage] * WEFT_ORDER_KINDS;
  *writer->next++ = first + WEFT_KIND_I;
  *writer->next++ = first + WEFT_KIND_W;
}

static struct writer writer_of(const struct weft_problem *problem, uint32_t rank,
                               struct weft_order *order) {
  return (struct writer){.next = order->ops + problem->begin[rank],
                         .stages = problem->stage_of + problem->first_of[rank]};
}

/* The microbatches that a rank can have in flight at all its stages. */
static uint32_t most_in_flight(const struct weft_problem *problem, uint32_t rank) {
  int64_t held = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const struct weft_problem_stage *stage =
        &problem->stages[problem->stage_of[rank * problem->stages_per_rank + k]];
    const int64_t after = !problem->may_join ? stage->held_after : 0;
    held += weft_max(stage->held, after);
  }
  const int64_t fit =
      held > 0 ? weft_problem_limit_at_end(problem, rank) / held : problem->microbatch_count;
  return (uint32_t)weft_max(0, weft_min(fit, problem->microbatch_count));
}

/* A warm-up of `count` forwards, and then a backward for each forward. */
static void write_1f1b(struct writer *writer, uint32_t m, uint32_t count) {
  for (uint32_t k = 0; k < count; k++) {
    add_forward(writer, 0);
  }
  for (uint32_t k = 0; k < m; k++) {
    add_backward(writer, 0);
    if (k + count < m) {
      add_forward(writer, 0);
    }
  }
}

/* Stage after stage, with so many microbatches at a time. */
static void write_groups(struct writer *writer, uint32_t v, uint32_t m, uint32_t size) {
  for (uint32_t done = 0; done < m; done += size) {
    const uint32_t count = size < m - done ? size : m - done;
    for (uint32_t n = 0; n < v * count; n++) {
      add_forward(writer, n / count);
    }
    for (uint32_t n = v * count; n-- > 0;) {
      add_backward(writer, n / count);
    }
  }
}

/* One stage per rank. False: nothing fits. */
static bool write_all_1f1b(const struct weft_problem *problem, struct weft_order *order,
                           const char **name) {
  uint32_t most = problem->microbatch_count;
  *name = !problem->may_split && problem->given_graph == NULL ? "1F1B" : NULL;
  for (uint32_t r = 0; r < problem->rank_count && most > 0; r++) {
    struct writer writer = writer_of(problem, r, order);
    const int64_t p = problem->rank_count, usual = weft_min(p - r, problem->microbatch_count);
    /* No more than the rank before, which would not send the forwards; and falling evenly to one on
     * the last rank: a microbatch has to go all the way through ranks that have equal numbers, and
     * back, before the next one moves. */
    most = (uint32_t)weft_min(most, most_in_flight(problem, r));
    const int64_t count = weft_min(usual, (most * (p - r) + p - 1) / p);
    *name = count == usual ? *name : NULL;
    write_1f1b(&writer, problem->microbatch_count, (uint32_t)count);
    assert(writer.next == order->ops + problem->begin[r + 1]);
  }
  return most > 0;
}

static bool write_all_groups(const struct weft_problem *problem, struct weft_order *order) {
  uint32_t most = problem->microbatch_count;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    most = (uint32_t)weft_min(most, most_in_flight(problem, r));
  }
  for (uint32_t r = 0; r < problem->rank_count && most > 0; r++) {
    struct writer writer = writer_of(problem, r, order);
    write_groups(&writer, problem->stages_per_rank, problem->microbatch_count, most);
    assert(writer.next == order->ops + problem->begin[r + 1]);
  }
  return most > 0;
}

void weft_construct_limited(struct weft_incumbent *incumbent) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  const struct weft_problem *problem = incumbent->problem;
  const char *name = NULL;
  memset(incumbent->draft.whole, problem->may_join,
         (size_t)problem->stage_count * problem->microbatch_count);
  if (weft_problem_timed_op_count(problem) >= OPS_MIN &&
      (problem->stages_per_rank == 1 ? write_all_1f1b(problem, &incumbent->draft, &name)
                                     : write_all_groups(problem, &incumbent->draft))) {
    weft_incumbent_try(incumbent, &incumbent->draft, name);
  }
}
