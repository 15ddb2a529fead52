/* The search. For every layout that the request leaves open: constructors, then improvement;
 * the best order becomes the answer, which is checked before it is returned. */
#include <assert.h>

#include <weft/gen.h>
#include <weft/search.h>
#include <weft/sim.h>
#include <weft/support.h>

#include <inttypes.h>
#include <math.h>

#include "plan/bounds/chain_bound.h"
#include "plan/construct/constructors.h"
#include "plan/improve/improve.h"
#include "plan/improve/worker_threads.h"
#include "plan/layout/layout.h"
#include "plan/plan_check.h"
#include "plan/problem/problem.h"

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

struct attempt {
  struct weft_plan_layout *layout;
  bool dropped; /* others are more promising */
  struct weft_problem problem;
  struct weft_incumbent incumbent;
};

static enum weft_status attempt_init(struct attempt *attempt, struct weft_plan_layout *layout,
                                     const struct weft_allocator *allocator,
                                     const struct weft_search_request *request,
                                     struct weft_search_control *control,
                                     struct weft_error *error) {
  attempt->layout = layout;
  WEFT_TRY(weft_plan_layout_problem(&attempt->problem, allocator, request, layout, error));
  attempt->problem.control = control;
  const enum weft_status status =
      weft_incumbent_init(&attempt->incumbent, &attempt->problem,
                          weft_chain_bound(&attempt->problem), error);
  if (status != WEFT_OK) {
    weft_problem_finish(&attempt->problem);
  }
  return status;
}

static void attempt_finish(struct attempt *attempt) {
  weft_incumbent_finish(&attempt->incumbent);
  weft_problem_finish(&attempt->problem);
}

/* ---- All layouts ---- */

struct search {
  const struct weft_allocator *allocator;
  const struct weft_search_request *request;
  struct weft_plan_layouts layouts;
  struct attempt *attempts; /* [layouts.count] */
  uint32_t attempt_count;
  struct attempt *best;
  uint32_t rung;           /* the present one */
  double answer_seconds;   /* for each op, to make a table, to check it and to write it */
  bool is_answer_timed;    /* measured here */
  bool leaves_layouts_out; /* there is no time for them */
  struct weft_search_control control;
};

static double value_of(const struct attempt *attempt) {
  assert(attempt != NULL);
  return attempt->incumbent.value == WEFT_NEVER
             ? INFINITY
             : (double)attempt->incumbent.value / attempt->problem.ticks_per_unit +
                   attempt->layout->all_reduce;
}

static double bound_of(const struct attempt *attempt) {
  return (double)attempt->incumbent.bound / attempt->problem.ticks_per_unit +
         attempt->layout->all_reduce;
}

/* No layout that the request leaves open has an order with a smaller objective. */
static double open_bound_of(const struct search *search) {
  /* A search that is stopped at once has not bounded all layouts. */
  double bound = search->attempt_count < search->layouts.count ? 0 : search->layouts.rest;
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    const struct attempt *attempt = &search->attempts[n];
    bound = value_of(attempt) < INFINITY ? fmin(bound, bound_of(attempt)) : bound;
  }
  return fmin(bound, bound_of(search->best));
}

static double answer_seconds(const struct search *search, const struct attempt *attempt) {
  return attempt == NULL ? 0
                         : search->answer_seconds * (double)weft_problem_timed_op_count(&attempt->problem);
}

static void choose(struct search *search) {
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    struct attempt *attempt = &search->attempts[n];
    if (search->best == NULL || value_of(attempt) < value_of(search->best)) {
      search->best = attempt;
    }
  }
  weft_search_control_set_reserve(&search->control, answer_seconds(search, search->best));
}

/* While an order of a layout is sought, which may become the best. */
static void reserve_for(struct search *search, const struct attempt *attempt) {
  weft_search_control_set_reserve(&search->control, fmax(answer_seconds(search, attempt),
                                                         answer_seconds(search, search->best)));
}

static void time_answer(struct search *search, const struct attempt *attempt);

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
  for (uint32_t n = search->attempt_count; n < search->layouts.count; n++) {
    if (!has_time_for(search, &search->layouts.list[n])) {
      search->leaves_layouts_out = true;
      search->control.was_cut = true;
      break;
    }
    WEFT_TRY(attempt_init(&search->attempts[n], &search->layouts.list[n], search->allocator,
                          search->request, &search->control, error));
    search->attempt_count++;
    time_answer(search, &search->attempts[n]);
    reserve_for(search, &search->attempts[n]);
    if (search->best == NULL || bound_of(&search->attempts[n]) < value_of(search->best)) {
      WEFT_TRY(weft_construct_first(&search->attempts[n].incumbent, error));
    }
    choose(search);
  }
  return WEFT_OK;
}

/* ---- Improvement ---- */

/* Share of the work that goes into choosing the layout, if several are open. */
#define CHOOSING 0.4

/* More than a search has threads, each of which has a seed. */
enum { SEEDS = 1000 };

/* Nanoseconds of a typical core for each op that a rung must have to be worth it; the default effort
 * always is. */
enum { OP_WORK = 30 };

static uint32_t first_rung(const struct search *search) {
  const double least = (double)OP_WORK * (double)weft_problem_timed_op_count(&search->attempts[0].problem);
  uint32_t rung = 0;
  while (rung < WEFT_RUNG_DEFAULT && 1e9 * weft_search_rung(rung) < least) {
    rung++;
  }
  return rung;
}

/* Improves the best order of a layout with a share of the rung. */
static enum weft_status improve(struct search *search, struct attempt *attempt, double share,
                                struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  const double effort = weft_search_rung(search->rung) * share;
  const struct weft_worker_task task = {
      .threads = weft_worker_count(request->threads),
      .seed = request->seed +
              (uint64_t)(search->rung > WEFT_RUNG_DEFAULT ? search->rung - WEFT_RUNG_DEFAULT : 0) *
                  SEEDS,
      .work = (uint64_t)(1e9 * effort)};
  if (task.work == 0 || attempt->incumbent.value == WEFT_NEVER || search->control.budget < 0 ||
      weft_incumbent_is_optimal(&attempt->incumbent) ||
      weft_search_control_is_cancelled(&search->control)) {
    return WEFT_OK;
  }
  reserve_for(search, attempt);
  search->control.share = fmin(1 - search->control.done, effort / request->effort);
  search->control.all_reduce = attempt->layout->all_reduce;
  WEFT_TRY(weft_improve(&attempt->incumbent, &task, &search->control, error));
  search->control.done += search->control.share;
  choose(search);
  return WEFT_OK;
}

/* Whether a layout may still have the best order. */
static bool is_open(const struct search *search, const struct attempt *attempt) {
  return value_of(attempt) < INFINITY && bound_of(attempt) < value_of(search->best);
}

/* The open attempts, the best first. */
static uint32_t list_open(const struct search *search, struct attempt **list) {
  uint32_t count = 0;
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    struct attempt *attempt = &search->attempts[n];
    if (attempt->dropped || !is_open(search, attempt)) {
      continue;
    }
    uint32_t k = count++;
    for (; k > 0 && value_of(attempt) < value_of(list[k - 1]); k--) {
      list[k] = list[k - 1];
    }
    list[k] = attempt;
  }
  return count;
}

/* Successive halving: all open layouts get a little work each, then the better half of them, and so
 * on; the last one gets the rest. */
static enum weft_status improve_all(struct search *search, struct weft_error *error) {
  struct attempt *list[WEFT_PLAN_LAYOUTS_MAX];
  uint32_t open = list_open(search, list);
  double rounds = open > 1 ? ceil(log2(open)) : 1, left = 1;
  while (open > 1) {
    const double share = CHOOSING / rounds / open;
    for (uint32_t n = 0; n < open; n++) {
      if (is_open(search, list[n])) {
        WEFT_TRY(improve(search, list[n], share, error));
      }
    }
    left -= CHOOSING / rounds;
    const uint32_t before = open;
    open = list_open(search, list);
    for (uint32_t n = (before + 1) / 2; n < open; n++) {
      list[n]->dropped = true;
    }
    open = open < (before + 1) / 2 ? open : (before + 1) / 2;
  }
  return open == 1 ? improve(search, list[0], left, error) : WEFT_OK;
}

static bool is_over(struct search *search) {
  struct attempt *list[WEFT_PLAN_LAYOUTS_MAX];
  return search->control.budget < 0 || weft_search_control_is_cancelled(&search->control) ||
         (list_open(search, list) == 0 &&
          (search->leaves_layouts_out || search->layouts.rest >= value_of(search->best) ||
           weft_plan_layouts_are_complete(&search->layouts, search->request)));
}

/* The layouts of the rung, and a share of its work for each. `left` is the effort that is left. */
static enum weft_status climb(struct search *search, double left, struct weft_error *error) {
  const double effort = weft_search_rung(search->rung);
  search->control.budget = left >= effort ? INFINITY : 1e9 * left;
  if (search->rung > 0) {
    const double share = weft_plan_layouts_share(&search->layouts, search->request);
    if (!weft_search_control_spend(&search->control, 1e9 * effort * share)) {
      return WEFT_OK;
    }
    WEFT_TRY(weft_plan_layouts_extend(&search->layouts, search->request, effort, error));
    WEFT_TRY(construct_all(search, error));
  }
  const enum weft_status status = improve_all(search, error);
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    search->attempts[n].dropped = false; /* the next rung decides anew */
  }
  return status;
}

static enum weft_status climb_all(struct search *search, struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  double left =
      request->use_time && request->effort > 0 ? INFINITY : WEFT_FIRST_RUNGS * request->effort;
  for (search->rung = first_rung(search); left > 0 && !is_over(search); search->rung++) {
    WEFT_TRY(climb(search, left, error));
    left -= weft_search_rung(search->rung);
  }
  return WEFT_OK;
}

/* ---- The answer ---- */

/* Names the least limit over all layouts, and what makes it necessary in the first of them. */
static enum weft_status explain_memory(const struct search *search, struct weft_error *error) {
  const struct attempt *attempt = &search->attempts[0];
  const struct weft_problem *problem = &attempt->problem;
  uint32_t rank = 0;
  struct weft_memory_need need;
  WEFT_TRY(weft_search_least_memory(search->allocator, search->request, &need, error));
  const uint32_t stages = weft_chain_serial_stages(problem, &rank);
  const double kept = weft_problem_kept(problem, attempt->layout->costs, rank);
  const double held =
      (double)weft_chain_serial_peak(problem, rank, stages) / problem->sizes_per_unit;
  if (kept > 0) {
    return weft_fail(error, WEFT_ERR_INVALID, "give more memory, or use more ranks",
                     "no schedule fits into a memory of %.9g per rank; the least is %.9g: rank "
                     "%" PRIu32
                     " has %.9g of parameters and gradients, and holds at least %.9g of "
                     "activations",
                     search->request->memory_limit, need.least, rank, kept, held);
  }
  return weft_fail(error, WEFT_ERR_INVALID, "give more memory, or use more ranks",
                   "no schedule fits into a memory of %.9g per rank; the least is %.9g: rank "
                   "%" PRIu32 " holds %.9g after the forward of a single microbatch",
                   search->request->memory_limit, need.least, rank, held);
}

static double peak_of(const struct attempt *attempt) {
  const struct weft_problem *problem = &attempt->problem;
  double peak = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double counted =
        (double)weft_order_peak(problem, &attempt->incumbent.best, r, attempt->incumbent.clock.done) /
        problem->sizes_per_unit;
    peak = fmax(peak, counted + weft_problem_kept(problem, attempt->layout->costs, r));
  }
  return peak;
}

static enum weft_status make_table(const struct attempt *attempt, struct weft_program **out,
                                   struct weft_error *error) {
  const struct weft_problem *problem = &attempt->problem;
  return attempt->incumbent.name != NULL
             ? weft_generate(problem->allocator, attempt->incumbent.name, &attempt->layout->shape,
                             out, error)
             : weft_order_table(problem, &attempt->incumbent.best, out, error);
}

static enum weft_status make_answer(struct search *search, struct weft_search_answer **out,
                                    struct weft_error *error) {
  struct attempt *best = search->best;
  const int64_t made = weft_clock_ns();
  struct weft_search_answer *answer =
      weft_array_allocate_zero(search->allocator, 1, sizeof *answer);
  if (answer == NULL) {
    return weft_fail_memory(error, sizeof *answer);
  }
  const double ticks = best->problem.ticks_per_unit;
  const int64_t value =
      weft_order_evaluate(&best->problem, &best->incumbent.clock, &best->incumbent.best, WEFT_NEVER);
  assert(value == best->incumbent.value && value >= best->incumbent.bound);
  (void)value;
  *answer = (struct weft_search_answer){
      .schedule = best->incumbent.name != NULL ? best->incumbent.name : "searched",
      .objective = search->request->objective,
      .placement = best->layout->shape.placement,
      .stages_per_rank = best->layout->shape.stages_per_rank,
      .makespan = (double)best->incumbent.clock.makespan / ticks,
      .span = (double)best->incumbent.clock.span / ticks,
      .peak_memory = peak_of(best),
      .all_reduce = best->layout->all_reduce,
      .bound = bound_of(best),
      .open_bound = open_bound_of(search),
      .optimal = weft_incumbent_is_optimal(&best->incumbent),
      .stopped = search->control.was_cut,
      .evaluated = best->incumbent.evaluated,
      .moves = best->incumbent.moves,
      .move_ns = best->incumbent.moves > 0
                     ? (double)best->incumbent.move_ns / (double)best->incumbent.moves
                     : 0,
      .allocator = search->allocator};
  enum weft_status status = make_table(best, &answer->table, error);
  if (status == WEFT_OK) {
    answer->costs = best->layout->costs;
    answer->stage_parts = best->layout->stage_parts;
    best->layout->costs = NULL;
    best->layout->stage_parts = NULL;
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

/* Seconds of a typical core for each op, where the time is too short to matter; and where it is
 * measured: problems with more ops, and the share of the microbatches that the measurement has. */
#define ANSWER_SECONDS 2.5e-7
#define ANSWER_MARGIN 1.3 /* large tables do not stay in the caches, and go into files */
enum { TIMED_OPS = 200000, TIMED_SHARE = 32, TIMES = 3 };

/* What follows the search, with the answer of a smaller problem; the first order will do. */
static enum weft_status answer_small(const struct search *search, struct attempt *small,
                                     double *seconds) {
  struct weft_plan_layout *layout = small->layout;
  struct search own = {.allocator = search->allocator, .request = search->request, .best = small};
  struct weft_search_answer *answer;
  double period;
  struct weft_text text = {.allocator = search->allocator};
  const int64_t begin = weft_clock_ns();
  WEFT_TRY(make_answer(&own, &answer, NULL));
  const enum weft_status status =
      weft_period(search->allocator, answer->table, answer->costs, NULL, &period, NULL);
  weft_program_print(answer->table, &text);
  *seconds = (double)(weft_clock_ns() - begin) * 1e-9;
  weft_text_finish(&text);
  layout->costs = answer->costs; /* back to the layout */
  layout->stage_parts = answer->stage_parts;
  answer->costs = NULL;
  weft_search_answer_destroy(answer);
  return status;
}

/* How long an answer takes is measured, because machines differ, and other programs run: the
 * shortest of some times, which says most about the next one. */
static void time_answer(struct search *search, const struct attempt *attempt) {
  const size_t ops = weft_problem_timed_op_count(&attempt->problem);
  if (search->request->time_limit <= 0 || search->is_answer_timed || ops < TIMED_OPS) {
    return;
  }
  struct weft_plan_layout layout = *attempt->layout;
  struct attempt small = {.layout = &layout};
  double shortest = INFINITY;
  layout.shape.microbatches = (layout.shape.microbatches + TIMED_SHARE - 1) / TIMED_SHARE;
  search->is_answer_timed = true;
  if (attempt_init(&small, &layout, search->allocator, search->request, NULL, NULL) != WEFT_OK) {
    return;
  }
  enum weft_status status = WEFT_OK;
  weft_construct_serial(&small.incumbent);
  for (unsigned n = 0; n < TIMES && status == WEFT_OK && value_of(&small) < INFINITY; n++) {
    double seconds = INFINITY;
    status = answer_small(search, &small, &seconds);
    shortest = fmin(shortest, seconds);
  }
  if (shortest < INFINITY) {
    search->answer_seconds = ANSWER_MARGIN * shortest / (double)weft_problem_timed_op_count(&small.problem);
  }
  attempt_finish(&small);
}

static enum weft_status run(struct search *search, struct weft_search_answer **out,
                            struct weft_error *error) {
  WEFT_TRY(construct_all(search, error));
  WEFT_TRY(climb_all(search, error));
  return value_of(search->best) == INFINITY ? explain_memory(search, error)
                                            : make_answer(search, out, error);
}

enum weft_status weft_search(const struct weft_allocator *allocator,
                             const struct weft_search_request *request,
                             struct weft_search_answer **out, struct weft_error *error) {
  WEFT_NEED(request, error);
  WEFT_NEED(out, error);
  WEFT_NEED(request->costs, error);
  if (request->graph != NULL) {
    return weft_graph_search(allocator, request, out, error);
  }
  struct search search = {
      .allocator = allocator, .request = request, .answer_seconds = ANSWER_SECONDS};
  weft_search_control_start(&search.control, request);
  WEFT_TRY(weft_plan_layouts_init(&search.layouts, allocator, request, weft_search_rung(0),
                                  &search.control, error));
  const uint32_t count = WEFT_PLAN_LAYOUTS_MAX;
  search.attempts = weft_array_allocate_zero(allocator, count, sizeof *search.attempts);
  const enum weft_status status = search.attempts == NULL
                                      ? weft_fail_memory(error, count * sizeof *search.attempts)
                                      : run(&search, out, error);
  for (uint32_t n = 0; n < search.attempt_count; n++) {
    attempt_finish(&search.attempts[n]);
  }
  weft_array_free(allocator, search.attempts, count, sizeof *search.attempts);
  weft_plan_layouts_finish(&search.layouts);
  return status;
}
