/* The smallest memory limit with a schedule.
 *
 * A stage either runs the forwards of all microbatches before its first backward, or it does not.
 * If one does not, nor does any later one: its first backward comes before that of this stage, and
 * the last forward there after the one here. So the stages of the first kind are the first ones of
 * the pipeline. Let H be those of them on a rank, from the first to the last, and R the rank's other
 * stages. Then, with m microbatches,
 *
 * - if R is not empty: when the last microbatch starts its last forward on the rank, it holds its
 *   activations of all stages of R, all m hold those of H, and every stage of R has had its first
 *   backward, so it has gradients;
 * - when a stage of H starts its first backward, all m microbatches hold it and the stages before
 *   it, and it and the stages after it have gradients.
 *
 * The serial order (serial_order.c) holds no more than the largest of these. So the least limit is
 * the least over all numbers of stages of the first kind. A whole backward holds nothing for W; a
 * split one is as good where it is the only choice (problem.c). */
#include <assert.h>
#include <math.h>

#include <weft/support.h>

#include "plan/construct/constructors.h"
#include "plan/layout/layout.h"

static const struct weft_problem_stage *stage_at(const struct weft_problem *problem, uint32_t rank,
                                                 uint32_t local_stage) {
  return &problem->stages[problem->stage_of[rank * problem->stages_per_rank + local_stage]];
}

/* With `held` of the rank's stages in H. */
static int64_t peak_of(const struct weft_problem *problem, uint32_t rank, uint32_t held) {
  const int64_t m = problem->microbatch_count;
  const uint32_t v = problem->stages_per_rank;
  int64_t all = 0, gradients = 0, peak = 0;
  for (uint32_t k = 0; k < v; k++) {
    all += stage_at(problem, rank, k)->held * (k < held ? m : 1);
    gradients += k < held ? 0 : stage_at(problem, rank, k)->gradients;
  }
  if (held < v) {
    peak = all + gradients;
    for (uint32_t k = held; k < v; k++) {
      all -= stage_at(problem, rank, k)->held;
    }
  }
  for (uint32_t k = held; k-- > 0;) {
    gradients += stage_at(problem, rank, k)->gradients;
    peak = weft_max(peak, all + gradients);
    all -= stage_at(problem, rank, k)->held * m;
  }
  return peak;
}

int64_t weft_chain_serial_peak(const struct weft_problem *problem, uint32_t rank, uint32_t stages) {
  assert(rank < problem->rank_count && stages <= problem->stage_count);
  uint32_t held = 0;
  while (held < problem->stages_per_rank &&
         problem->stage_of[rank * problem->stages_per_rank + held] < stages) {
    held++;
  }
  return peak_of(problem, rank, held);
}

/* How much a serial order exceeds the limits, at most; *rank: where. */
static int64_t excess_of(const struct weft_problem *problem, uint32_t stages, uint32_t *rank) {
  int64_t most = INT64_MIN;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t own = weft_chain_serial_peak(problem, r, stages) - problem->limit[r];
    if (own > most) {
      most = own;
      *rank = r;
    }
  }
  return most;
}

uint32_t weft_chain_serial_stages(const struct weft_problem *problem, uint32_t *rank) {
  assert(problem != NULL && rank != NULL);
  uint32_t best = 0;
  int64_t least = excess_of(problem, 0, rank);
  /* One microbatch at a time is best where no gradients come late. */
  for (uint32_t n = 1;
       n <= problem->stage_count && weft_problem_has_gradients(problem) && least > 0; n++) {
    uint32_t where = 0;
    const int64_t excess = excess_of(problem, n, &where);
    if (excess < least) {
      least = excess;
      best = n;
      *rank = where;
    }
  }
  return best;
}

int64_t weft_chain_least_of(const struct weft_problem *problem, uint32_t rank) {
  assert(rank < problem->rank_count);
  int64_t least = peak_of(problem, rank, 0);
  for (uint32_t held = 1; held <= problem->stages_per_rank; held++) {
    least = weft_min(least, peak_of(problem, rank, held));
  }
  return least;
}

/* ---- Of a request ---- */

/* Of a chain: what the rank with the most needs in the best serial order. */
static struct weft_plan_need find_rank(const struct weft_problem *problem,
                                       const struct weft_costs *costs) {
  assert(problem->stages_per_rank > 0);
  uint32_t rank;
  struct weft_plan_need need = {.is_of_rank = true};
  const uint32_t stages = weft_chain_serial_stages(problem, &rank);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double kept = weft_problem_kept(problem, costs, r);
    const double held =
        (double)weft_chain_serial_peak(problem, r, stages) / problem->sizes_per_unit;
    if (kept + held > need.least) {
      need = (struct weft_plan_need){.least = kept + held,
                                     .enough = kept + held,
                                     .is_of_rank = true,
                                     .rank = r,
                                     .kept = kept,
                                     .held = held};
    }
  }
  return need;
}

/* By a complete search; where that gives up, one microbatch after the other is enough. With a limit of
 * 0, what exceeds it is what is needed. */
static enum weft_status search_need(const struct weft_problem *problem, struct weft_plan_need *need,
                                    struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct weft_problem_least least;
  struct weft_order order;
  struct weft_plan_clock clock;
  WEFT_TRY(weft_problem_least(problem, &least, error));
  WEFT_TRY(weft_order_init(&order, problem, &arena, error));
  WEFT_TRY(weft_plan_clock_init(&clock, problem, &arena, error));
  int64_t enough = least.excess;
  weft_order_serial(problem, &clock, 0, &order);
  for (uint32_t r = 0; r < problem->rank_count && !least.is_exact; r++) {
    enough = weft_max(enough, weft_order_peak(problem, &order, r, clock.done) - problem->limit[r]);
  }
  *need = (struct weft_plan_need){.least = (double)least.excess / problem->sizes_per_unit,
                                  .enough = (double)enough / problem->sizes_per_unit};
  return WEFT_OK;
}

/* On the best of the layouts. */
static enum weft_status find_need(const struct weft_plan_layouts *layouts,
                                  const struct weft_search_request *request,
                                  struct weft_search_control *control, struct weft_plan_need *need,
                                  struct weft_error *error) {
  *need = (struct weft_plan_need){.least = INFINITY, .enough = INFINITY};
  for (uint32_t n = 0; n < layouts->count; n++) {
    const struct weft_plan_layout *layout = &layouts->list[n];
    struct weft_problem problem;
    struct weft_plan_need own;
    enum weft_status status = WEFT_OK;
    WEFT_TRY(weft_plan_layout_problem(&problem, layouts->allocator, request, layout, error));
    problem.control = control; /* if it is cancelled, the least is not known */
    if (problem.stages_per_rank > 0) {
      own = find_rank(&problem, layout->costs);
    } else {
      status = search_need(&problem, &own, error);
    }
    weft_problem_finish(&problem);
    if (status < 0) {
      return status;
    }
    const double enough = fmin(need->enough, own.enough);
    *need = own.least < need->least ? own : *need;
    need->enough = enough;
  }
  return WEFT_OK;
}

enum weft_status weft_plan_least_memory(const struct weft_allocator *allocator,
                                        const struct weft_search_request *request,
                                        struct weft_search_control *control,
                                        struct weft_plan_need *need, struct weft_error *error) {
  assert(request->costs != NULL && need != NULL);
  /* With a limit of 0, partitions and placements are made for the least memory. */
  struct weft_costs_view view;
  struct weft_search_request starved = weft_plan_resolve(request, &view);
  struct weft_plan_layouts layouts;
  starved.memory_limit = 0;
  WEFT_TRY(weft_plan_layouts_init(&layouts, allocator, &starved, starved.effort, NULL, error));
  const enum weft_status status = find_need(&layouts, &starved, control, need, error);
  need->of_tried = layouts.has_others;
  weft_plan_layouts_finish(&layouts);
  return status;
}

enum weft_status weft_search_least_memory(const struct weft_allocator *allocator,
                                          const struct weft_search_request *request,
                                          struct weft_memory_need *need, struct weft_error *error) {
  WEFT_NEED(request, error);
  WEFT_NEED(need, error);
  WEFT_NEED(request->costs, error);
  struct weft_search_control control;
  struct weft_plan_need found;
  weft_search_control_start(&control, request);
  WEFT_TRY(weft_plan_least_memory(allocator, request, &control, &found, error));
  *need = (struct weft_memory_need){found.least, found.enough, found.of_tried};
  return WEFT_OK;
}
