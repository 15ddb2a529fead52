/* The search. For every layout that the request leaves open: constructors, then improvement;
 * the best order becomes the answer, which is checked before it is returned. */
#include <assert.h>

#include <weft/gen.h>
#include <weft/search.h>
#include <weft/sim.h>
#include <weft/support.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/construct/constructors.h"
#include "plan/construct/longest_chain.h"
#include "plan/improve/improve.h"
#include "plan/improve/worker_threads.h"
#include "plan/layout/layout.h"
#include "plan/layout/partition.h"
#include "plan/plan_check.h"

const char *weft_objective_name(enum weft_objective objective) {
  return objective == WEFT_OBJECTIVE_SPAN ? "span" : "makespan";
}

struct weft_search_request weft_search_request_default(void) {
  return (struct weft_search_request){.any_placement = true,
                                      .memory_limit = INFINITY,
                                      .objective = WEFT_OBJECTIVE_MAKESPAN,
                                      .effort = 0.5};
}

/* ---- One layout ---- */

struct candidate {
  struct weft_plan_layout *layout;
  bool left_out;     /* others are more promising */
  double all_reduce; /* part of the objective, in the unit of the costs */
  struct weft_problem problem;
  struct weft_incumbent incumbent;
  struct weft_longest_chain chain; /* of a graph */
  bool sought_chain;
};

static enum weft_status candidate_init(struct candidate *candidate, struct weft_plan_layout *layout,
                                       const struct weft_allocator *allocator,
                                       const struct weft_search_request *request,
                                       struct weft_search_control *control,
                                       struct weft_error *error) {
  struct weft_problem *problem = &candidate->problem;
  int64_t bound;
  candidate->layout = layout;
  WEFT_TRY(weft_plan_layout_problem(problem, allocator, request, layout, error));
  problem->control = control;
  candidate->all_reduce = weft_all_reduce_of(request, problem, layout->costs);
  enum weft_status status = weft_problem_bound(problem, &bound, error);
  if (status == WEFT_OK) {
    status = weft_incumbent_init(&candidate->incumbent, problem, bound, error);
  }
  if (status != WEFT_OK) {
    weft_problem_finish(problem);
  }
  return status;
}

static void candidate_finish(struct candidate *candidate) {
  weft_longest_chain_finish(&candidate->chain);
  weft_incumbent_finish(&candidate->incumbent);
  weft_problem_finish(&candidate->problem);
}

/* ---- All layouts ---- */

struct search {
  const struct weft_allocator *allocator;
  const struct weft_search_request *request;
  struct weft_plan_layouts layouts;
  struct candidate *candidates; /* [layouts.count] */
  uint32_t candidate_count;
  struct candidate *best;
  uint32_t round;          /* the present one */
  double answer_seconds;   /* for each action, to make a table, to check it and to write it */
  bool is_answer_timed;    /* measured here */
  bool leaves_layouts_out; /* there is no time for them */
  struct weft_search_control control;
};

static double in_units(const struct candidate *candidate, int64_t ticks) {
  return (double)ticks / candidate->problem.ticks_per_unit + candidate->all_reduce;
}

static double value_of(const struct candidate *candidate) {
  assert(candidate != NULL);
  return candidate->incumbent.value == WEFT_NEVER ? INFINITY
                                                  : in_units(candidate, candidate->incumbent.value);
}

static double bound_of(const struct candidate *candidate) {
  return in_units(candidate, candidate->incumbent.bound);
}

/* No layout that the request leaves open has an order with a smaller objective. */
static double open_bound_of(const struct search *search) {
  const struct weft_plan_layouts *layouts = &search->layouts;
  assert(search->best != NULL && layouts->least <= layouts->rest);
  /* A search that is stopped at once has not bounded all layouts. */
  double bound = search->candidate_count < layouts->count ? layouts->least : layouts->rest;
  for (uint32_t n = 0; n < search->candidate_count; n++) {
    const struct candidate *candidate = &search->candidates[n];
    bound = candidate->incumbent.is_impossible ? bound : fmin(bound, bound_of(candidate));
  }
  return fmin(bound, bound_of(search->best));
}

/* Those of its table, and the messages that a graph has more than a chain, which may be many. */
static double action_count(const struct weft_problem *problem) {
  const double more = (double)problem->graph->edge_count + 1 - problem->stage_count;
  return (double)weft_problem_timed_op_count(problem) +
         4 * fmax(0, more) * problem->microbatch_count;
}

static double answer_seconds(const struct search *search, const struct candidate *candidate) {
  return candidate == NULL ? 0 : search->answer_seconds * action_count(&candidate->problem);
}

static void choose_best(struct search *search) {
  for (uint32_t n = 0; n < search->candidate_count; n++) {
    struct candidate *candidate = &search->candidates[n];
    if (search->best == NULL || value_of(candidate) < value_of(search->best)) {
      search->best = candidate;
    }
  }
  weft_search_control_set_reserve(&search->control, answer_seconds(search, search->best));
}

/* While an order of a layout is sought, which may become the best. */
static void reserve_for(struct search *search, const struct candidate *candidate) {
  weft_search_control_set_reserve(&search->control, fmax(answer_seconds(search, candidate),
                                                         answer_seconds(search, search->best)));
}

static void time_answer(struct search *search, const struct candidate *candidate);

/* Without an order, some layout has to do. Else a layout needs the time for its first orders, which
 * is about that of an answer, and for its answer. */
static bool has_time_for(struct search *search, const struct weft_plan_layout *layout) {
  if (search->best == NULL || value_of(search->best) == INFINITY) {
    return true;
  }
  const struct weft_shape *shape = &layout->shape;
  const double ops = (double)shape->ranks * shape->stages_per_rank * shape->microbatches *
                     (layout->whole_backward ? 2 : 3);
  return !weft_search_control_poll(&search->control) &&
         weft_search_control_has_time(&search->control, 2 * search->answer_seconds * ops);
}

/* Starts every new layout with its bound, and with the orders of the constructors if one of them may
 * be the best. */
static enum weft_status construct_all(struct search *search, struct weft_error *error) {
  for (uint32_t n = search->candidate_count; n < search->layouts.count; n++) {
    struct candidate *candidate = &search->candidates[n];
    if (!has_time_for(search, &search->layouts.list[n])) {
      search->leaves_layouts_out = true;
      search->control.was_cut = true;
      break;
    }
    WEFT_TRY(candidate_init(candidate, &search->layouts.list[n], search->allocator, search->request,
                            &search->control, error));
    search->candidate_count++;
    time_answer(search, candidate);
    reserve_for(search, candidate);
    if (search->best == NULL || bound_of(candidate) < value_of(search->best)) {
      WEFT_TRY(weft_construct_first(&candidate->incumbent, error));
    }
    choose_best(search);
  }
  return WEFT_OK;
}

/* The placement that a local search finds from the best one. */
static enum weft_status place_locally(struct search *search, struct weft_error *error) {
  const struct candidate *best = search->best;
  WEFT_SCOPED_ARENA arena = {.allocator = search->allocator};
  uint32_t *rank_of = weft_arena_allocate(&arena, best->problem.stage_count, sizeof *rank_of);
  WEFT_TRY(weft_arena_status(&arena, error));
  WEFT_TRY(weft_plan_placement_search(best->layout, &best->problem, search->request, bound_of(best),
                                      search->layouts.rest, rank_of, error));
  WEFT_TRY(weft_plan_layouts_add_placement(&search->layouts, search->request, rank_of,
                                           "local search", WEFT_PLACEMENT_INFERRED, error));
  return construct_all(search, error);
}

/* ---- Improvement ---- */

/* Share of the work that goes into choosing the layout, if several are open. */
#define CHOOSING 0.4

/* More than a search has threads, each of which has a seed. */
enum { SEEDS = 1000 };

/* The default effort is always worth it. */
static uint32_t first_round(const struct search *search) {
  const double least = weft_improve_least_work(&search->candidates[0].problem);
  uint32_t round = 0;
  while (round < WEFT_ROUND_DEFAULT && 1e9 * weft_search_round(round) < least) {
    round++;
  }
  return round;
}

/* Whether improvement can go on. */
static bool may_improve(struct search *search, const struct candidate *candidate, uint64_t work) {
  return work > 0 && candidate->incumbent.value != WEFT_NEVER && search->control.budget >= 0 &&
         !weft_incumbent_is_optimal(&candidate->incumbent) &&
         !weft_search_control_is_cancelled(&search->control);
}

/* The longest chain of a graph. Not in the first rounds: where there is much memory, they find orders
 * that improving the chain's would not lead to. */
static enum weft_status find_chain(const struct search *search, struct candidate *candidate,
                                   struct weft_error *error) {
  if (search->round < WEFT_ROUND_DEFAULT || candidate->sought_chain) {
    return WEFT_OK;
  }
  candidate->sought_chain = true;
  return weft_longest_chain_init(&candidate->chain, &candidate->problem, error);
}

/* Share of a task for the chain: for its bound, and for its orders if they are the graph's. */
static double chain_share(const struct weft_longest_chain *chain) {
  return !chain->exists ? 0 : chain->has_all ? 0.6 : 0.3;
}

static enum weft_status improve_chain(struct search *search, struct candidate *candidate,
                                      const struct weft_worker_task *task,
                                      struct weft_error *error) {
  struct weft_incumbent *incumbent = &candidate->incumbent;
  struct weft_longest_chain *chain = &candidate->chain;
  if (!may_improve(search, candidate, task->work)) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_longest_chain_improve(chain, incumbent->value, task, &search->control, error));
  incumbent->bound = weft_max(incumbent->bound, chain->incumbent.bound);
  if (weft_longest_chain_order(chain, &candidate->problem, &incumbent->draft)) {
    weft_incumbent_try(incumbent, &incumbent->draft, NULL);
  }
  return WEFT_OK;
}

/* Improves the best order of a layout with a share of the round. */
static enum weft_status improve(struct search *search, struct candidate *candidate, double share,
                                struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  struct weft_search_control *control = &search->control;
  const double effort = weft_search_round(search->round) * share;
  const uint32_t above =
      search->round > WEFT_ROUND_DEFAULT ? search->round - WEFT_ROUND_DEFAULT : 0;
  struct weft_worker_task task = {.threads = weft_worker_count(request->threads),
                                  .seed = request->seed + (uint64_t)above * SEEDS,
                                  .work = (uint64_t)(1e9 * effort)};
  if (!may_improve(search, candidate, task.work)) {
    return WEFT_OK;
  }
  reserve_for(search, candidate);
  WEFT_TRY(find_chain(search, candidate, error));
  struct weft_worker_task chain_task = task;
  const double both = fmin(1 - control->done, effort / request->effort);
  const double of_chain = chain_share(&candidate->chain);
  chain_task.work = (uint64_t)(of_chain * (double)task.work);
  task.work -= chain_task.work;
  control->all_reduce = candidate->all_reduce;
  control->share = (1 - of_chain) * both;
  WEFT_TRY(weft_improve(&candidate->incumbent, &task, control, error));
  control->done += control->share;
  control->share = of_chain * both;
  WEFT_TRY(improve_chain(search, candidate, &chain_task, error));
  control->done += control->share;
  choose_best(search);
  return WEFT_OK;
}

/* Whether a layout may still have the best order. */
static bool is_open(const struct search *search, const struct candidate *candidate) {
  return value_of(candidate) < INFINITY && bound_of(candidate) < value_of(search->best);
}

/* The open candidates, the best first. */
static uint32_t list_open(const struct search *search, struct candidate **list) {
  uint32_t count = 0;
  for (uint32_t n = 0; n < search->candidate_count; n++) {
    struct candidate *candidate = &search->candidates[n];
    if (candidate->left_out || !is_open(search, candidate)) {
      continue;
    }
    uint32_t k = count++;
    for (; k > 0 && value_of(candidate) < value_of(list[k - 1]); k--) {
      list[k] = list[k - 1];
    }
    list[k] = candidate;
  }
  return count;
}

/* Successive halving: all open layouts get a little work each, then the better half of them, and so
 * on; the last one gets the rest. */
static enum weft_status improve_all(struct search *search, struct weft_error *error) {
  struct candidate *list[WEFT_PLAN_LAYOUTS_MAX];
  uint32_t open = list_open(search, list);
  double times = open > 1 ? ceil(log2(open)) : 1, left = 1;
  while (open > 1) {
    const double share = CHOOSING / times / open;
    for (uint32_t n = 0; n < open; n++) {
      if (is_open(search, list[n])) {
        WEFT_TRY(improve(search, list[n], share, error));
      }
    }
    left -= CHOOSING / times;
    const uint32_t half = (open + 1) / 2;
    open = list_open(search, list);
    for (uint32_t n = half; n < open; n++) {
      list[n]->left_out = true;
    }
    open = open < half ? open : half;
  }
  return open == 1 ? improve(search, list[0], left, error) : WEFT_OK;
}

static bool is_over(struct search *search) {
  struct candidate *list[WEFT_PLAN_LAYOUTS_MAX];
  return search->control.budget < 0 || weft_search_control_is_cancelled(&search->control) ||
         (list_open(search, list) == 0 &&
          (search->leaves_layouts_out || search->layouts.rest >= value_of(search->best) ||
           weft_plan_layouts_are_complete(&search->layouts, search->request)));
}

/* The layouts of the round, and a share of its work for each. `left` is the effort that is left. */
static enum weft_status run_round(struct search *search, double left, struct weft_error *error) {
  const double effort = weft_search_round(search->round);
  search->control.budget = left >= effort ? INFINITY : 1e9 * left;
  if (search->round > 0) {
    const double share = weft_plan_layouts_share(&search->layouts, search->request);
    if (!weft_search_control_spend(&search->control, 1e9 * effort * share)) {
      return WEFT_OK;
    }
    WEFT_TRY(weft_plan_layouts_extend(&search->layouts, search->request, effort, error));
    WEFT_TRY(construct_all(search, error));
  }
  const enum weft_status status = improve_all(search, error);
  for (uint32_t n = 0; n < search->candidate_count; n++) {
    search->candidates[n].left_out = false; /* the next round decides anew */
  }
  return status;
}

static enum weft_status run_rounds(struct search *search, struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  double left =
      request->use_time && request->effort > 0 ? INFINITY : WEFT_FIRST_ROUNDS * request->effort;
  for (search->round = first_round(search); left > 0 && !is_over(search); search->round++) {
    WEFT_TRY(run_round(search, left, error));
    left -= weft_search_round(search->round);
  }
  return WEFT_OK;
}

/* ---- The answer ---- */

static const char memory_hint[] = "give more memory, or use more ranks";

/* What makes so much memory necessary. */
static void explain_rank(const struct weft_plan_need *need, struct weft_text *text) {
  assert(need->is_of_rank && need->kept >= 0);
  if (need->kept > 0) {
    weft_text_addf(text,
                   ": rank %" PRIu32
                   " has %.9g of parameters and gradients, and holds at least "
                   "%.9g of activations",
                   need->rank, need->kept, need->held);
  } else {
    weft_text_addf(text, ": rank %" PRIu32 " holds %.9g after the forward of a single microbatch",
                   need->rank, need->held);
  }
}

static uint32_t placement_count(const struct search *search) {
  uint32_t count = 0;
  for (uint32_t n = 0; n < search->layouts.count; n++) {
    count += n == 0 || search->layouts.list[n].rank_of != search->layouts.list[n - 1].rank_of;
  }
  return count;
}

/* Names the least limit over all layouts, and of a chain what makes it necessary. */
static enum weft_status explain_memory(struct search *search, struct weft_error *error) {
  const double limit = search->request->memory_limit;
  const uint32_t count = placement_count(search);
  struct weft_plan_need need;
  WEFT_SCOPED_TEXT why = {.allocator = search->allocator};
  char tried[64] = "";
  WEFT_TRY(
      weft_plan_least_memory(search->allocator, search->request, &search->control, &need, error));
  if (search->layouts.has_others) {
    (void)snprintf(tried, sizeof tried, " on the %" PRIu32 " placement%s tried", count,
                   count == 1 ? "" : "s");
  }
  if (need.least == need.enough) {
    if (need.is_of_rank) {
      explain_rank(&need, &why);
    }
    return weft_fail(error, WEFT_ERR_INVALID, memory_hint,
                     "no schedule fits into a memory of %.9g per rank%s; the least is %.9g%s",
                     limit, tried, need.least, why.data != NULL ? why.data : "");
  }
  if (need.least > limit) {
    return weft_fail(error, WEFT_ERR_INVALID, memory_hint,
                     "no schedule fits into a memory of %.9g per rank%s; %.9g is enough, and every "
                     "schedule needs at least %.9g",
                     limit, tried, need.enough, need.least);
  }
  return weft_fail(error, WEFT_ERR_INVALID, memory_hint,
                   "no schedule was found that fits into a memory of %.9g per rank%s, and none was "
                   "proven impossible; %.9g is enough, and every schedule needs at least %.9g",
                   limit, tried, need.enough, need.least);
}

static double peak_of(const struct candidate *candidate) {
  const struct weft_problem *problem = &candidate->problem;
  const struct weft_incumbent *incumbent = &candidate->incumbent;
  double peak = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double counted =
        (double)weft_order_peak(problem, &incumbent->best, r, incumbent->clock.done);
    peak = fmax(peak, counted / problem->sizes_per_unit +
                          weft_problem_kept(problem, candidate->layout->costs, r));
  }
  return peak;
}

static enum weft_status make_table(const struct candidate *candidate,
                                   struct weft_search_answer *answer, struct weft_error *error) {
  const struct weft_problem *problem = &candidate->problem;
  const struct weft_plan_layout *layout = candidate->layout;
  if (layout->rank_of != NULL) {
    const uint32_t n = problem->stage_count;
    answer->stage_ranks = weft_array_allocate(problem->allocator, n, sizeof *answer->stage_ranks);
    if (answer->stage_ranks == NULL) {
      return weft_fail_memory(error, n * sizeof *answer->stage_ranks);
    }
    memcpy(answer->stage_ranks, layout->rank_of, n * sizeof *answer->stage_ranks);
  }
  const char *name = candidate->incumbent.name;
  return name != NULL
             ? weft_generate(problem->allocator, name, &layout->shape, &answer->table, error)
             : weft_order_table(problem, &candidate->incumbent.best, &answer->table, error);
}

static enum weft_status make_answer(struct search *search, struct weft_search_answer **out,
                                    struct weft_error *error) {
  struct candidate *best = search->best;
  struct weft_incumbent *incumbent = &best->incumbent;
  const int64_t made = weft_clock_ns();
  struct weft_search_answer *answer =
      weft_array_allocate_zero(search->allocator, 1, sizeof *answer);
  if (answer == NULL) {
    return weft_fail_memory(error, sizeof *answer);
  }
  const double ticks = best->problem.ticks_per_unit;
  const int64_t value =
      weft_order_evaluate(&best->problem, &incumbent->clock, &incumbent->best, WEFT_NEVER);
  assert(value == incumbent->value && value >= incumbent->bound);
  (void)value;
  *answer = (struct weft_search_answer){
      .schedule = incumbent->name != NULL ? incumbent->name : "searched",
      .objective = search->request->objective,
      .placement = best->layout->shape.placement,
      .placement_name = best->layout->name,
      .stages_per_rank = best->layout->shape.stages_per_rank,
      .makespan = (double)incumbent->clock.makespan / ticks,
      .span = (double)incumbent->clock.span / ticks,
      .peak_memory = peak_of(best),
      .all_reduce = best->all_reduce,
      .bound = bound_of(best),
      .open_bound = open_bound_of(search),
      .optimal = weft_incumbent_is_optimal(incumbent),
      .stopped = search->control.was_cut,
      .evaluated = incumbent->evaluated,
      .moves = incumbent->moves,
      .move_ns = incumbent->moves > 0 ? (double)incumbent->move_ns / (double)incumbent->moves : 0,
      .allocator = search->allocator};
  answer->costs = best->layout->costs;
  answer->stage_parts = best->layout->stage_parts;
  enum weft_status status = make_table(best, answer, error);
  best->layout->costs = NULL;
  best->layout->stage_parts = NULL;
  if (status == WEFT_OK) {
    const int64_t begin = weft_clock_ns();
    status = weft_plan_check(answer, search->request->memory_limit, error);
    answer->check_ns = (double)(weft_clock_ns() - begin);
    answer->least_seconds = search->control.first_order + (double)(weft_clock_ns() - made) * 1e-9;
  }
  if (status != WEFT_OK) {
    weft_search_answer_destroy(answer);
    return status;
  }
  *out = answer;
  return WEFT_OK;
}

void weft_search_answer_destroy(struct weft_search_answer *answer) {
  if (answer == NULL) {
    return;
  }
  const struct weft_allocator *allocator = answer->allocator;
  if (answer->costs != NULL) {
    weft_array_free(allocator, answer->stage_parts, answer->costs->stage_count, sizeof(uint32_t));
    weft_array_free(allocator, answer->stage_ranks, answer->costs->stage_count, sizeof(uint32_t));
  }
  weft_simulation_destroy(answer->simulation);
  weft_costs_destroy(answer->costs);
  weft_program_destroy(answer->table);
  weft_array_free(allocator, answer, 1, sizeof *answer);
}

/* ---- The time of an answer ---- */

/* Seconds of a typical core for each action, where the time is too short to matter; and where it is
 * measured: problems with more actions, and the share of the microbatches that the measurement has. */
#define ANSWER_SECONDS 2.5e-7
#define ANSWER_MARGIN 1.3 /* large tables do not stay in the caches, and go into files */
enum { TIMED_ACTIONS = 200000, TIMED_SHARE = 32, TIMES = 3 };

/* What follows the search, with the answer of a smaller problem; the first order will do. */
static enum weft_status answer_small(const struct weft_search_request *request,
                                     struct candidate *small, double *seconds) {
  struct weft_plan_layout *layout = small->layout;
  const struct weft_allocator *allocator = small->problem.allocator;
  struct search own = {.allocator = allocator, .request = request, .best = small};
  struct weft_search_answer *answer;
  double period;
  WEFT_SCOPED_TEXT text = {.allocator = allocator};
  const int64_t begin = weft_clock_ns();
  WEFT_TRY(make_answer(&own, &answer, NULL));
  const enum weft_status status =
      weft_period(allocator, answer->table, answer->costs, NULL, &period, NULL);
  weft_program_print(answer->table, &text);
  *seconds = (double)(weft_clock_ns() - begin) * 1e-9;
  layout->costs = answer->costs; /* back to the layout */
  layout->stage_parts = answer->stage_parts;
  answer->costs = NULL;
  weft_search_answer_destroy(answer);
  return status;
}

/* How long an answer takes is measured, because machines differ, and other programs run: the
 * shortest of some times, which says most about the next one. */
static void time_answer(struct search *search, const struct candidate *candidate) {
  if (search->request->time_limit <= 0 || search->is_answer_timed ||
      action_count(&candidate->problem) < (double)TIMED_ACTIONS) {
    return;
  }
  struct weft_search_request request = *search->request;
  struct weft_plan_layout layout = *candidate->layout;
  struct candidate small = {.layout = &layout};
  double shortest = INFINITY;
  layout.shape.microbatches = (layout.shape.microbatches + TIMED_SHARE - 1) / TIMED_SHARE;
  request.memory_limit = INFINITY;
  search->is_answer_timed = true;
  if (candidate_init(&small, &layout, search->allocator, &request, NULL, NULL) != WEFT_OK) {
    return;
  }
  struct weft_incumbent *incumbent = &small.incumbent;
  weft_order_serial(&small.problem, &incumbent->clock, 0, &incumbent->draft);
  weft_incumbent_try(incumbent, &incumbent->draft, NULL);
  enum weft_status status = WEFT_OK;
  for (unsigned n = 0; n < TIMES && status == WEFT_OK && value_of(&small) < INFINITY; n++) {
    double seconds = INFINITY;
    status = answer_small(&request, &small, &seconds);
    shortest = fmin(shortest, seconds);
  }
  if (shortest < INFINITY) {
    search->answer_seconds = ANSWER_MARGIN * shortest / action_count(&small.problem);
  }
  candidate_finish(&small);
}

static enum weft_status search_all(struct search *search, struct weft_search_answer **out,
                                   struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  WEFT_TRY(construct_all(search, error));
  if (search->layouts.has_others && request->effort > 0 && value_of(search->best) < INFINITY) {
    WEFT_TRY(place_locally(search, error));
  }
  WEFT_TRY(run_rounds(search, error));
  return value_of(search->best) == INFINITY ? explain_memory(search, error)
                                            : make_answer(search, out, error);
}

enum weft_status weft_search(const struct weft_allocator *allocator,
                             const struct weft_search_request *request,
                             struct weft_search_answer **out, struct weft_error *error) {
  WEFT_NEED(request, error);
  WEFT_NEED(out, error);
  WEFT_NEED(request->costs, error);
  struct weft_costs_view view;
  const struct weft_search_request resolved = weft_plan_resolve(request, &view);
  struct search search = {
      .allocator = allocator, .request = &resolved, .answer_seconds = ANSWER_SECONDS};
  weft_search_control_start(&search.control, &resolved);
  WEFT_TRY(weft_plan_layouts_init(&search.layouts, allocator, &resolved, weft_search_round(0),
                                  &search.control, error));
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  search.candidates = weft_arena_allocate(&arena, WEFT_PLAN_LAYOUTS_MAX, sizeof *search.candidates);
  enum weft_status status = weft_arena_status(&arena, error);
  status = status == WEFT_OK ? search_all(&search, out, error) : status;
  for (uint32_t n = 0; n < search.candidate_count; n++) {
    candidate_finish(&search.candidates[n]);
  }
  weft_plan_layouts_finish(&search.layouts);
  return status;
}
