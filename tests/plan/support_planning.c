#include "support_planning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct weft_shape planning_draw_shape(struct weft_random *random, struct weft_shape least,
                                      struct weft_shape choices) {
  struct weft_shape shape = {
      .ranks = least.ranks + weft_random_below(random, choices.ranks),
      .stages_per_rank = least.stages_per_rank + weft_random_below(random, choices.stages_per_rank),
      .microbatches = least.microbatches + weft_random_below(random, choices.microbatches)};
  if (shape.stages_per_rank == 2 && weft_random_below(random, 2) == 0) {
    shape.placement = WEFT_PLACEMENT_V;
  }
  return shape;
}

static double draw(struct weft_random *random, uint32_t to) {
  return 1 + (double)weft_random_below(random, to * 4) / 4;
}

static void draw_stage(struct weft_stage_costs *stage, struct weft_random *random) {
  stage->f = draw(random, 20);
  stage->i = draw(random, 20);
  stage->w = draw(random, 20);
  stage->b = stage->i + stage->w;
  stage->activation = (double)(1 + weft_random_below(random, 20)) / 10;
  stage->activation_after_i = stage->activation * (double)weft_random_below(random, 11) / 10;
}

static void draw_costs(struct weft_costs *costs, struct weft_random *random) {
  const bool equal = weft_random_below(random, 2) == 0;
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    draw_stage(&costs->stages[s], random);
    if (equal) {
      costs->stages[s] = costs->stages[0];
    }
  }
  costs->hop.latency = weft_random_below(random, 2) == 0 ? 0 : draw(random, 8);
  if (weft_random_below(random, 3) == 0) {
    costs->hop.bytes = draw(random, 16);
    costs->hop.bytes_per_unit = 2;
  }
}

static void make_problem(struct planning *planning) {
  struct weft_error error;
  if (weft_problem_init(&planning->problem, NULL, &planning->request, NULL, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
}

void planning_init(struct planning *planning, struct weft_random *random,
                   const struct weft_shape *shape, bool whole_backward) {
  *planning = (struct planning){.shape = *shape, .request = weft_search_request_default()};
  assert_int_equal(
      weft_costs_create(NULL, shape->ranks * shape->stages_per_rank, &planning->costs, NULL),
      WEFT_OK);
  draw_costs(planning->costs, random);
  planning->request.ranks = shape->ranks;
  planning->request.microbatches = shape->microbatches;
  planning->request.stages_per_rank = shape->stages_per_rank;
  planning->request.any_placement = false;
  planning->request.placement = shape->placement;
  planning->request.costs = planning->costs;
  planning->request.whole_backward = whole_backward;
  make_problem(planning);
}

void planning_limit(struct planning *planning, double limit) {
  planning->request.memory_limit = limit;
  weft_problem_finish(&planning->problem);
  make_problem(planning);
}

double planning_least(const struct planning *planning) {
  struct weft_memory_need need = {0};
  assert_int_equal(weft_search_least_memory(NULL, &planning->request, &need, NULL), WEFT_OK);
  assert_float_equal(need.least, need.enough, 0);
  return need.least;
}

void planning_finish(struct planning *planning) {
  weft_problem_finish(&planning->problem);
  weft_costs_destroy(planning->costs);
}

/* ---- Random orders ---- */

void planning_room_init(struct planning_room *room, const struct weft_problem *problem) {
  *room = (struct planning_room){0};
  assert_int_equal(weft_order_init(&room->order, problem, &room->arena, NULL), WEFT_OK);
  assert_int_equal(weft_plan_clock_init(&room->clock, problem, &room->arena, NULL), WEFT_OK);
}

void planning_room_finish(struct planning_room *room) { weft_arena_finish(&room->arena); }

struct draft {
  const struct weft_problem *problem;
  struct weft_order *order;
  uint32_t *done; /* [op] */
  int64_t *held;  /* [rank] */
  uint32_t *at;   /* [rank] into the ops */
};

static bool may_go(const struct draft *draft, uint32_t s, unsigned kind, bool eager) {
  const struct weft_problem *problem = draft->problem;
  const uint32_t *done = draft->done + (size_t)s * WEFT_ORDER_KINDS;
  const uint32_t n = done[kind];
  const struct weft_problem_stage *stage = &problem->stages[s];
  if (n == problem->microbatch_count) {
    return false;
  }
  if (kind == WEFT_KIND_F) {
    /* Only one microbatch at a time is certain to fit until the end. */
    const bool alone = draft->done[WEFT_KIND_W] == n;
    return (s == 0 ? alone || eager : draft->done[(size_t)(s - 1) * WEFT_ORDER_KINDS] > n) &&
           draft->held[stage->rank] + stage->held <= problem->limit[stage->rank];
  }
  if (kind == WEFT_KIND_W) {
    return done[WEFT_KIND_I] > n;
  }
  return done[WEFT_KIND_F] > n &&
         (s + 1 == problem->stage_count ||
          draft->done[(size_t)(s + 1) * WEFT_ORDER_KINDS + WEFT_KIND_I] > n);
}

static void put(struct draft *draft, uint32_t op) {
  const struct weft_problem_stage *stage = &draft->problem->stages[op / WEFT_ORDER_KINDS];
  draft->order->ops[draft->at[stage->rank]++] = op;
  (void)weft_problem_step_memory(stage, (enum weft_plan_op_kind)(op % WEFT_ORDER_KINDS), 1,
                                 !draft->problem->may_split, &draft->held[stage->rank]);
  draft->done[op]++;
}

static bool go_on(struct draft *draft, struct weft_random *random, bool eager) {
  const uint32_t count = draft->problem->stage_count * WEFT_ORDER_KINDS;
  const uint32_t from = weft_random_below(random, count);
  for (uint32_t k = 0; k < count; k++) {
    const uint32_t op = (from + k) % count;
    if (may_go(draft, op / WEFT_ORDER_KINDS, op % WEFT_ORDER_KINDS, eager)) {
      put(draft, op);
      if (op % WEFT_ORDER_KINDS == WEFT_KIND_I && !draft->problem->may_split) {
        put(draft, op + 1);
      }
      return true;
    }
  }
  return false;
}

void planning_random_order(const struct planning *planning, struct weft_random *random,
                           struct weft_order *order) {
  const struct weft_problem *problem = &planning->problem;
  /* With a limit, several microbatches at once may block each other. */
  const bool eager = problem->limit[0] == problem->limit_max;
  struct draft draft = {.problem = problem, .order = order};
  draft.done = calloc((size_t)problem->stage_count * WEFT_ORDER_KINDS, sizeof *draft.done);
  draft.held = calloc(problem->rank_count, sizeof *draft.held);
  draft.at = calloc(problem->rank_count, sizeof *draft.at);
  memcpy(draft.at, problem->begin, problem->rank_count * sizeof *draft.at);
  memset(order->whole, !problem->may_split,
         (size_t)problem->stage_count * problem->microbatch_count);
  while (go_on(&draft, random, eager)) {
  }
  assert_memory_equal(draft.at, problem->begin + 1, problem->rank_count * sizeof *draft.at);
  free(draft.done);
  free(draft.held);
  free(draft.at);
}
