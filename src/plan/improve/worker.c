/* What a worker holds, and the best order that it has. */
#include "plan/improve/worker.h"

#include <assert.h>
#include <string.h>

static enum weft_status order_init(const struct weft_problem *problem, struct weft_arena *arena,
                                   struct weft_order *order, struct weft_error *error) {
  order->ops = weft_arena_allocate(arena, weft_problem_op_count(problem), sizeof *order->ops);
  order->whole = weft_arena_allocate(
      arena, (size_t)problem->stage_count * problem->microbatch_count, sizeof *order->whole);
  return weft_arena_status(arena, error);
}

enum weft_status weft_incumbent_init(struct weft_incumbent *incumbent,
                                     const struct weft_problem *problem, int64_t bound,
                                     struct weft_error *error) {
  assert(problem != NULL && bound >= 0);
  *incumbent = (struct weft_incumbent){.problem = problem,
                                       .arena = {.allocator = problem->allocator},
                                       .value = WEFT_NEVER,
                                       .span_sum = WEFT_NEVER,
                                       .bound = bound};
  const enum weft_status status = order_init(problem, &incumbent->arena, &incumbent->best, error);
  if (status < 0) {
    weft_incumbent_finish(incumbent);
  }
  return status;
}

void weft_incumbent_finish(struct weft_incumbent *incumbent) {
  weft_arena_finish(&incumbent->arena);
}

void weft_incumbent_offer(struct weft_incumbent *incumbent, const struct weft_order *order,
                          int64_t value, int64_t span_sum) {
  const struct weft_problem *problem = incumbent->problem;
  if (weft_incumbent_is_beaten(incumbent, value, span_sum)) {
    assert(value >= incumbent->bound);
    incumbent->value = value;
    incumbent->span_sum = span_sum;
    memcpy(incumbent->best.ops, order->ops, weft_problem_op_count(problem) * sizeof *order->ops);
    memcpy(incumbent->best.whole, order->whole,
           (size_t)problem->stage_count * problem->microbatch_count);
  }
}

static bool is_single(const struct weft_problem *problem) {
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (problem->first_of[r + 1] > problem->first_of[r] + 1) {
      return false;
    }
  }
  return weft_graph_is_chain(problem->graph);
}

enum weft_status weft_worker_init(struct weft_worker *worker, const struct weft_problem *problem,
                                  uint64_t seed, int64_t bound, struct weft_search_control *control,
                                  struct weft_error *error) {
  assert(worker != NULL && control != NULL);
  struct weft_arena *arena = &worker->incumbent.arena; /* all live as long */
  *worker = (struct weft_worker){
      .control = control, .random = {.state = seed}, .is_single = is_single(problem)};
  WEFT_TRY(weft_incumbent_init(&worker->incumbent, problem, bound, error));
  worker->rules = weft_arena_allocate(arena, problem->stage_count, sizeof *worker->rules);
  worker->tried = weft_arena_allocate(arena, problem->stage_count, sizeof *worker->tried);
  WEFT_TRY(order_init(problem, arena, &worker->draft, error));
  return weft_rule_scheduler_init(&worker->scheduler, problem, arena, error);
}

void weft_worker_finish(struct weft_worker *worker) {
  weft_evaluator_finish(&worker->evaluator);
  weft_incumbent_finish(&worker->incumbent);
}
