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
  if (weft_chain_init(&planning->problem, NULL, &planning->shape, planning->costs,
                      &planning->request, &error) != WEFT_OK) {
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
  weft_chain_finish(&planning->problem);
  make_problem(planning);
}

double planning_least(const struct planning *planning) {
  struct weft_memory_need need = {0};
  assert_int_equal(weft_search_least_memory(NULL, &planning->request, &need, NULL), WEFT_OK);
  assert_float_equal(need.least, need.enough, 0);
  return need.least;
}

void planning_finish(struct planning *planning) {
  weft_chain_finish(&planning->problem);
  weft_costs_destroy(planning->costs);
}

/* ---- Random orders ---- */

struct draft {
  const struct weft_chain *problem;
  uint32_t *done; /* [stage * WEFT_KINDS + kind] */
  int64_t *held;  /* [rank] */
  uint32_t *size; /* [rank] ops so far */
};

static int64_t change_of(const struct weft_chain_stage *stage, unsigned kind) {
  const int64_t changes[WEFT_KINDS] = {stage->held, stage->held_after - stage->held,
                                       -stage->held_after, -stage->held, 0};
  return changes[kind];
}

static bool may_go(const struct draft *draft, uint32_t s, unsigned kind, bool eager) {
  const struct weft_chain *problem = draft->problem;
  const bool whole = problem->backward == WEFT_BACKWARD_WHOLE;
  const unsigned back = whole ? WEFT_KIND_B : WEFT_KIND_I;
  const uint32_t *done = draft->done + (size_t)s * WEFT_KINDS;
  const uint32_t n = done[kind];
  const struct weft_chain_stage *stage = &problem->stages[s];
  if (n == problem->microbatch_count) {
    return false;
  }
  if (kind == WEFT_KIND_F) {
    /* Only one microbatch at a time is certain to fit until the end. */
    const uint32_t last = problem->stage_count - 1;
    const bool alone = draft->done[back] == n && (whole || draft->done[WEFT_KIND_W] == n);
    return (s == 0 ? alone || eager : draft->done[(size_t)(s - 1) * WEFT_KINDS] > n) &&
           draft->held[stage->rank] + stage->held <= problem->limit[stage->rank] && last >= s;
  }
  if (kind == WEFT_KIND_W) {
    return !whole && done[WEFT_KIND_I] > n;
  }
  return kind == back && done[WEFT_KIND_F] > n &&
         (s + 1 == problem->stage_count || draft->done[(size_t)(s + 1) * WEFT_KINDS + back] > n);
}

static bool go_on(struct draft *draft, struct weft_random *random, struct weft_chain_order *order,
                  bool eager) {
  const struct weft_chain *problem = draft->problem;
  const uint32_t count = problem->stage_count * WEFT_KINDS;
  const uint32_t from = weft_random_below(random, count);
  for (uint32_t k = 0; k < count; k++) {
    const uint32_t at = (from + k) % count;
    const uint32_t s = at / WEFT_KINDS, kind = at % WEFT_KINDS;
    if (may_go(draft, s, kind, eager)) {
      const struct weft_chain_stage *stage = &problem->stages[s];
      weft_chain_order_sequence(problem, order, stage->rank)[draft->size[stage->rank]++] =
          (uint8_t)(stage->local_stage * WEFT_KINDS + kind);
      draft->held[stage->rank] += change_of(stage, kind);
      draft->done[at]++;
      return true;
    }
  }
  return false;
}

void planning_random_order(const struct planning *planning, struct weft_random *random,
                           struct weft_chain_order *order) {
  const struct weft_chain *problem = &planning->problem;
  /* With a limit, several microbatches at once may block each other. */
  const bool eager = problem->limit[0] == problem->limit_max;
  struct draft draft = {.problem = problem};
  draft.done = calloc((size_t)problem->stage_count * WEFT_KINDS, sizeof *draft.done);
  draft.held = calloc(problem->rank_count, sizeof *draft.held);
  draft.size = calloc(problem->rank_count, sizeof *draft.size);
  size_t left = (size_t)problem->rank_count * problem->length;
  for (; left > 0 && go_on(&draft, random, order, eager); left--) {
  }
  assert_int_equal(left, 0);
  free(draft.done);
  free(draft.held);
  free(draft.size);
}
