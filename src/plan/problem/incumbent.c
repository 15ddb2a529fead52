/* Keeps the best order. */
#include "plan/problem/incumbent.h"

#include <assert.h>
#include <string.h>

static size_t flag_count(const struct weft_problem *problem) {
  return (size_t)problem->stage_count * problem->microbatch_count;
}

enum weft_status weft_order_init(struct weft_order *order, const struct weft_problem *problem,
                                 struct weft_arena *arena, struct weft_error *error) {
  assert(order != NULL && problem != NULL);
  order->ops = weft_arena_allocate(arena, weft_problem_op_count(problem), sizeof *order->ops);
  order->whole = weft_arena_allocate(arena, flag_count(problem), sizeof *order->whole);
  return weft_arena_status(arena, error);
}

static void copy_order(const struct weft_problem *problem, struct weft_order *to,
                       const struct weft_order *from) {
  assert(to->ops != NULL && from->ops != NULL);
  memcpy(to->ops, from->ops, weft_problem_op_count(problem) * sizeof *to->ops);
  memcpy(to->whole, from->whole, flag_count(problem));
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
  struct weft_arena *arena = &incumbent->arena;
  (void)weft_order_init(&incumbent->best, problem, arena, NULL);
  (void)weft_order_init(&incumbent->draft, problem, arena, NULL);
  const enum weft_status status = weft_plan_clock_init(&incumbent->clock, problem, arena, error);
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
  if (weft_incumbent_is_beaten(incumbent, value, span_sum)) {
    assert(value >= incumbent->bound);
    copy_order(incumbent->problem, &incumbent->best, order);
    incumbent->value = value;
    incumbent->span_sum = span_sum;
    incumbent->name = NULL;
    incumbent->replaced++;
  }
}

void weft_incumbent_try(struct weft_incumbent *incumbent, const struct weft_order *order,
                        const char *name) {
  assert(incumbent->clock.done != NULL && order != NULL);
  const struct weft_problem *problem = incumbent->problem;
  incumbent->evaluated++;
  const int64_t value = weft_order_evaluate(problem, &incumbent->clock, order, incumbent->value);
  const int64_t span_sum = incumbent->clock.span_sum;
  if (value != WEFT_NEVER && weft_incumbent_is_beaten(incumbent, value, span_sum) &&
      weft_order_fits(problem, order, incumbent->clock.done)) {
    weft_incumbent_offer(incumbent, order, value, span_sum);
    incumbent->name = name;
  }
}

void weft_incumbent_collect(struct weft_incumbent *incumbent, struct weft_incumbent *from) {
  assert(incumbent != from && incumbent->problem == from->problem);
  incumbent->evaluated += from->evaluated;
  incumbent->moves += from->moves;
  incumbent->move_ns += from->move_ns;
  from->evaluated = from->moves = from->move_ns = 0;
  weft_incumbent_offer(incumbent, &from->best, from->value, from->span_sum);
}
