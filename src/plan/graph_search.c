/* The search for graphs. For every placement that the request leaves open: one order, then
 * improvement; the best order becomes the answer, which is checked before it is returned. The same
 * effort, seed and threads give the same answer. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/gen.h>

#include "plan/construct/longest_chain.h"
#include "plan/construct/rule_scheduler.h"
#include "plan/improve/improve.h"
#include "plan/improve/worker_threads.h"
#include "plan/layout/layout.h"
#include "plan/layout/partition.h"
#include "plan/layout/placements.h"
#include "plan/plan_check.h"
#include "plan/problem/problem.h"

/* One placement with its best order. Where backwards are all whole or all split, each placement is
 * tried with both. */
struct attempt {
  const struct weft_plan_placement *placement;
  bool whole_backward;
  struct weft_costs *costs; /* of the stages, as their ranks execute them; owned */
  double all_reduce;        /* part of the objective, in the unit of the costs */
  struct weft_problem problem;
  struct weft_incumbent incumbent;
  struct weft_longest_chain chain;
  bool sought_chain;
  bool dropped; /* others are more promising */
};

/* More than the tolerance of plan_check.c, and the rounding of a sum over all stages. */
#define MEMORY_SLACK 1e-8

enum { ATTEMPTS_MAX = 2 * WEFT_PLAN_PLACEMENTS_MAX };

struct graph_search {
  const struct weft_allocator *allocator;
  const struct weft_search_request *request;
  struct weft_search_control control;
  struct weft_arena arena;
  struct weft_plan_placement placements[WEFT_PLAN_PLACEMENTS_MAX];
  uint32_t placement_count;
  struct attempt attempts[ATTEMPTS_MAX];
  uint32_t attempt_count;
  struct attempt *best;
  struct trial *trial;
  uint32_t rung; /* the present one */
  double open;   /* no placement at all has a smaller objective */
};

static double in_units(const struct attempt *attempt, int64_t ticks) {
  return ticks == WEFT_NEVER
             ? INFINITY
             : (double)ticks / attempt->problem.ticks_per_unit + attempt->all_reduce;
}

static double value_of(const struct attempt *attempt) {
  return in_units(attempt, attempt->incumbent.value);
}

static double bound_of(const struct attempt *attempt) {
  return in_units(attempt, attempt->incumbent.bound);
}

/* Whether stages may be on any rank. */
static bool is_placement_open(const struct weft_search_request *request) {
  return request->rank_of == NULL && request->any_placement;
}

/* Whether all backwards may be split, or all whole. */
static bool tries_both_backwards(const struct weft_search_request *request) {
  return request->uniform_backward && !request->whole_backward &&
         weft_costs_gain_from_whole(request->costs);
}

/* ---- Placements ---- */

/* The times of its stages on their ranks. */
static enum weft_status make_costs(const struct graph_search *search, const uint32_t *rank_of,
                                   struct weft_costs **out, struct weft_error *error) {
  const struct weft_costs *from = search->request->costs;
  const double *factors = search->request->rank_factors;
  const uint32_t n = search->request->graph->stage_count;
  WEFT_TRY(weft_costs_create(search->allocator, n, out, error));
  for (uint32_t s = 0; s < n; s++) {
    (*out)->stages[s] = *weft_costs_of(from, s);
    if (factors != NULL) {
      weft_stage_costs_slow_down(&(*out)->stages[s], factors[rank_of[s]]);
    }
  }
  memcpy((*out)->unit, from->unit, sizeof from->unit);
  (*out)->hop = from->hop;
  return WEFT_OK;
}

static double all_reduce_of(const struct weft_search_request *request, const uint32_t *rank_of,
                            double *sums) {
  double most = 0;
  for (uint32_t s = 0; s < request->graph->stage_count && request->replicas > 1; s++) {
    sums[rank_of[s]] += weft_gradients_to_reduce(request->costs, s);
    most = fmax(most, sums[rank_of[s]]);
  }
  return weft_all_reduce_time(request, most);
}

static enum weft_status add_attempt(struct graph_search *search,
                                    const struct weft_plan_placement *placement,
                                    bool whole_backward, struct weft_error *error) {
  assert(search->attempt_count < ATTEMPTS_MAX);
  struct attempt *attempt = &search->attempts[search->attempt_count];
  struct weft_problem *problem = &attempt->problem;
  struct weft_search_request own = *search->request;
  int64_t bound;
  double *sums = weft_arena_allocate(&search->arena, own.ranks, sizeof *sums);
  WEFT_TRY(weft_arena_status(&search->arena, error));
  WEFT_TRY(weft_problem_check(search->request, placement->rank_of, error));
  WEFT_TRY(make_costs(search, placement->rank_of, &attempt->costs, error));
  search->attempt_count++;
  own.costs = attempt->costs;
  own.whole_backward = attempt->whole_backward = whole_backward;
  WEFT_TRY(weft_problem_init(problem, search->allocator, &own, placement->rank_of, error));
  problem->control = &search->control;
  attempt->placement = placement;
  attempt->all_reduce = all_reduce_of(search->request, placement->rank_of, sums);
  WEFT_TRY(weft_problem_bound(problem, &bound, error));
  return weft_incumbent_init(&attempt->incumbent, problem, bound, error);
}

/* What no placement at all can beat: all stages on one rank, which is as fast as the fastest, so that
 * no message takes time; and the work of all stages, divided among the ranks. */
static enum weft_status find_bound_of(struct graph_search *search, bool whole_backward,
                                      struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  struct weft_problem problem;
  struct weft_search_request own = *request;
  own.whole_backward = whole_backward;
  struct weft_costs *costs = NULL;
  const uint32_t n = request->graph->stage_count;
  uint32_t *rank_of = weft_arena_allocate(&search->arena, n, sizeof *rank_of);
  double fastest = INFINITY, speeds = 0, sum = 0, most = 0;
  WEFT_TRY(weft_arena_status(&search->arena, error));
  for (uint32_t r = 0; r < request->ranks; r++) {
    const double factor = request->rank_factors != NULL ? request->rank_factors[r] : 1;
    fastest = fmin(fastest, factor);
    speeds += 1 / factor;
  }
  own.rank_factors = &fastest;
  struct graph_search like = {.allocator = search->allocator, .request = &own};
  WEFT_TRY(make_costs(&like, rank_of, &costs, error));
  own.costs = costs;
  own.memory_limit = INFINITY;
  enum weft_status status = weft_problem_init(&problem, search->allocator, &own, rank_of, error);
  if (status == WEFT_OK) {
    int64_t bound;
    status = weft_problem_open_bound(&problem, request->ranks, speeds * fastest, &bound, error);
    search->open = status == WEFT_OK ? (double)bound / problem.ticks_per_unit : 0;
    weft_problem_finish(&problem);
  }
  weft_costs_destroy(costs);
  for (uint32_t s = 0; s < n && request->replicas > 1; s++) {
    const double gradients = weft_gradients_to_reduce(request->costs, s);
    sum += gradients;
    most = fmax(most, gradients);
  }
  search->open += weft_all_reduce_time(request, fmax(most, sum / request->ranks));
  return status;
}

/* What some rank needs on any placement. Before the first backward all stages of any way of
 * gradients hold an activation, and in the end all gradients are there: the ranks share that. And
 * some rank has the largest stage. */
static double least_memory(const struct weft_search_request *request, double *ways) {
  const struct weft_graph *graph = request->graph;
  double kept = 0, gradients = 0, way = 0, largest = 0;
  for (uint32_t s = graph->stage_count; s-- > 0;) {
    const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
    const bool trains = weft_graph_has_backward(graph, s);
    const double own = costs->parameters + costs->gradients_sharded;
    const double more = trains ? fmax(0, costs->gradients - costs->gradients_sharded) : 0;
    ways[s] = 0;
    for (uint32_t n = graph->gradient_in.begin[s]; n < graph->gradient_in.begin[s + 1]; n++) {
      ways[s] = fmax(ways[s], ways[graph->edges[graph->gradient_in.edges[n]].to]);
    }
    ways[s] += trains ? costs->activation : 0;
    way = fmax(way, ways[s]);
    kept += own;
    gradients += more;
    largest = fmax(largest, own + more + costs->activation);
  }
  return fmax(largest, (kept + fmax(way, gradients)) / request->ranks);
}

static enum weft_status find_open_bound(struct graph_search *search, struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  double *ways = weft_arena_allocate(&search->arena, request->graph->stage_count, sizeof *ways);
  WEFT_TRY(weft_arena_status(&search->arena, error));
  if (least_memory(request, ways) > request->memory_limit * (1 + MEMORY_SLACK)) {
    search->open = INFINITY;
    return WEFT_OK;
  }
  WEFT_TRY(find_bound_of(search, search->request->whole_backward, error));
  if (tries_both_backwards(search->request)) {
    const double split = search->open;
    WEFT_TRY(find_bound_of(search, true, error));
    search->open = fmin(search->open, split);
  }
  return WEFT_OK;
}

static enum weft_status add_placement(struct graph_search *search, uint32_t n,
                                      struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  WEFT_TRY(add_attempt(search, &search->placements[n], request->whole_backward, error));
  return tries_both_backwards(request) ? add_attempt(search, &search->placements[n], true, error)
                                       : WEFT_OK;
}

static enum weft_status add_attempts(struct graph_search *search, struct weft_error *error) {
  WEFT_TRY(weft_plan_placements(search->request, &search->arena, search->placements,
                                &search->placement_count, error));
  for (uint32_t n = 0; n < search->placement_count; n++) {
    WEFT_TRY(add_placement(search, n, error));
  }
  return WEFT_OK;
}

static void choose_best(struct graph_search *search) {
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    struct attempt *attempt = &search->attempts[n];
    if (search->best == NULL || value_of(attempt) < value_of(search->best)) {
      search->best = attempt;
    }
  }
}

static void search_finish(struct graph_search *search) {
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    weft_incumbent_finish(&search->attempts[n].incumbent);
    weft_longest_chain_finish(&search->attempts[n].chain);
    weft_problem_finish(&search->attempts[n].problem);
    weft_costs_destroy(search->attempts[n].costs);
  }
  weft_arena_finish(&search->arena);
}

/* ---- First orders ---- */

/* Scratch for an order of any placement: they have the same ops. */
struct trial {
  struct weft_rule_scheduler scheduler;
  struct weft_plan_clock clock;
  struct weft_order order;
  struct weft_list_rule *rules; /* [stage] */
};

static enum weft_status make_trial(const struct weft_problem *problem, struct weft_arena *arena,
                                   struct trial *trial, struct weft_error *error) {
  trial->rules = weft_arena_allocate(arena, problem->stage_count, sizeof *trial->rules);
  WEFT_TRY(weft_order_init(&trial->order, problem, arena, error));
  WEFT_TRY(weft_plan_clock_init(&trial->clock, problem, arena, error));
  return weft_rule_scheduler_init(&trial->scheduler, problem, &trial->clock, arena, error);
}

static void consider(struct attempt *attempt, struct trial *trial) {
  attempt->incumbent.evaluated++;
  if (weft_order_fits(&attempt->problem, &trial->order, trial->clock.done)) {
    const int64_t value = weft_order_evaluate(&attempt->problem, &trial->clock, &trial->order,
                                              WEFT_NEVER);
    weft_incumbent_offer(&attempt->incumbent, &trial->order, value, WEFT_NEVER);
  }
}

/* As 1F1B, with W where a rank would be idle. False: it does not fit, and there is no order. */
static bool schedule(const struct attempt *attempt, struct trial *trial) {
  const struct weft_problem *problem = &attempt->problem;
  uint64_t work = 0;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    trial->rules[s] = weft_list_rule_classic(problem, s);
  }
  return weft_rule_schedule(problem, &trial->scheduler, trial->rules, WEFT_NEVER, &trial->order,
                            &work) != WEFT_NEVER;
}

/* An order that fits, if one is found: of one microbatch after the other some always does, unless
 * gradients come late, or branches share a rank. */
static enum weft_status begin(struct attempt *attempt, struct trial *trial,
                              struct weft_error *error) {
  const struct weft_incumbent *incumbent = &attempt->incumbent;
  if (schedule(attempt, trial)) {
    consider(attempt, trial);
  }
  if (incumbent->value == WEFT_NEVER) {
    weft_order_serial(&attempt->problem, &trial->clock, &trial->order);
    consider(attempt, trial);
  }
  if (incumbent->value == WEFT_NEVER) {
    bool found;
    WEFT_TRY(weft_problem_fit(&attempt->problem, &trial->order, &found, error));
    if (found) {
      consider(attempt, trial);
      assert(incumbent->value != WEFT_NEVER);
    }
  }
  return WEFT_OK;
}

/* ---- Local search for a placement ---- */

/* Its work, in nanoseconds of a typical core, whatever the effort; and that of one placement: for
 * each op, and for each stage times stages and edges, which the bound looks at. */
#define PLACING_WORK 2.5e7
enum { PLACE_WORK = 4000, PLACE_OP_WORK = 2, PLACE_BOUND_WORK = 4 };

static enum weft_status bound_on(const struct graph_search *search,
                                 const struct weft_plan_placement *placement, double *bound,
                                 struct weft_error *error) {
  struct graph_search own = {.allocator = search->allocator,
                             .request = search->request,
                             .arena = {.allocator = search->allocator}};
  const enum weft_status status = add_attempt(&own, placement, search->best->whole_backward, error);
  *bound = status == WEFT_OK ? bound_of(&own.attempts[0]) : INFINITY;
  search_finish(&own);
  return status;
}

/* Moves a stage to rank `way`, or lets it change places with the later stage `way` - ranks. False:
 * nothing changes. */
static bool change(uint32_t *rank_of, uint32_t stage, uint32_t way, uint32_t ranks) {
  const uint32_t before = rank_of[stage];
  if (way < ranks) {
    rank_of[stage] = way;
  } else if (way - ranks > stage) {
    rank_of[stage] = rank_of[way - ranks];
    rank_of[way - ranks] = before;
  }
  return rank_of[stage] != before;
}

/* From the best placement, by such changes, to ones with smaller bounds: bounds are close unless
 * memory is short, and take less time than orders. */
static enum weft_status place_locally(struct graph_search *search, uint32_t *rank_of,
                                      struct weft_error *error) {
  const struct weft_problem *problem = &search->best->problem;
  const uint32_t n = problem->stage_count, p = problem->rank_count;
  const double cost = (double)PLACE_WORK + (double)PLACE_OP_WORK * weft_problem_op_count(problem) +
                      (double)PLACE_BOUND_WORK * n * (n + problem->graph->edge_count);
  uint32_t *next = weft_arena_allocate(&search->arena, n, sizeof *next);
  double least = bound_of(search->best), left = PLACING_WORK;
  WEFT_TRY(weft_arena_status(&search->arena, error));
  memcpy(rank_of, search->best->placement->rank_of, n * sizeof *rank_of);
  memcpy(next, rank_of, n * sizeof *next);
  for (uint32_t same = 0, s = 0; same < n; same++, s = (s + 1) % n) {
    for (uint32_t way = 0; way < p + n; way++) {
      double bound;
      left--; /* looking for a change takes time, too */
      if (change(next, s, way, p)) {
        left -= cost;
      } else if (left >= 0) {
        continue;
      }
      if (left < 0 || least <= search->open || weft_search_control_poll(&search->control)) {
        return WEFT_OK;
      }
      WEFT_TRY(bound_on(search, &(struct weft_plan_placement){.rank_of = next}, &bound, error));
      if (bound < least) {
        least = bound;
        memcpy(rank_of, next, n * sizeof *rank_of);
        same = 0;
      }
      memcpy(next, rank_of, n * sizeof *next);
    }
  }
  return WEFT_OK;
}

/* One more attempt, unless that placement is there already. */
static enum weft_status add_local(struct graph_search *search, struct trial *trial,
                                  struct weft_error *error) {
  assert(search->placement_count < WEFT_PLAN_PLACEMENTS_MAX);
  struct weft_plan_placement *local = &search->placements[search->placement_count];
  const size_t size = search->request->graph->stage_count * sizeof *local->rank_of;
  WEFT_TRY(place_locally(search, local->rank_of, error));
  for (uint32_t n = 0; n < search->placement_count; n++) {
    if (memcmp(search->placements[n].rank_of, local->rank_of, size) == 0) {
      return WEFT_OK;
    }
  }
  local->name = "local search";
  local->kind = WEFT_PLACEMENT_INFERRED;
  const uint32_t first = search->attempt_count;
  WEFT_TRY(add_placement(search, search->placement_count++, error));
  for (uint32_t n = first; n < search->attempt_count; n++) {
    WEFT_TRY(begin(&search->attempts[n], trial, error));
  }
  choose_best(search);
  return WEFT_OK;
}

/* ---- Improvement ---- */

/* Share of the work that goes into choosing the placement, if several are open. */
#define CHOOSING 0.4

/* More than a search has threads, each of which has a seed. */
enum { SEEDS = 1000 };

/* Nanoseconds of a typical core for each op that a rung must have to be worth it; the default effort
 * always is. */
enum { OP_WORK = 200 };

/* Not in the first rungs: where there is much memory, they find orders that improving the chain's
 * would not lead to. Not for spans, for which the chain's bounds do not hold. */
static enum weft_status find_chain(const struct graph_search *search, struct attempt *attempt,
                                   struct weft_error *error) {
  if (search->rung < WEFT_RUNG_DEFAULT || attempt->sought_chain ||
      search->request->objective != WEFT_OBJECTIVE_MAKESPAN) {
    return WEFT_OK;
  }
  attempt->sought_chain = true;
  return weft_longest_chain_init(&attempt->chain, &attempt->problem, error);
}

/* Share of a task for the chain: for its bound, and for its orders if they are the graph's. */
static double chain_share(const struct weft_longest_chain *chain) {
  return !chain->exists ? 0 : chain->has_all ? 0.6 : 0.3;
}

/* Plans the chain of a placement. */
static enum weft_status improve_chain(struct graph_search *search, struct attempt *attempt,
                                      const struct weft_worker_task *task,
                                      struct weft_error *error) {
  struct weft_longest_chain *chain = &attempt->chain;
  if (task->work == 0 || search->control.budget < 0 ||
      weft_incumbent_is_optimal(&attempt->incumbent) ||
      weft_search_control_is_cancelled(&search->control)) {
    return WEFT_OK;
  }
  WEFT_TRY(
      weft_longest_chain_improve(chain, attempt->incumbent.value, task, &search->control, error));
  attempt->incumbent.bound = weft_max(attempt->incumbent.bound, chain->incumbent.bound);
  if (weft_longest_chain_order(chain, &attempt->problem, &search->trial->order)) {
    consider(attempt, search->trial);
  }
  return WEFT_OK;
}

/* Improves the best order of a placement with a share of the rung. */
static enum weft_status improve(struct graph_search *search, struct attempt *attempt, double share,
                                struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  const double effort = weft_search_rung(search->rung) * share;
  const uint32_t above = search->rung > WEFT_RUNG_DEFAULT ? search->rung - WEFT_RUNG_DEFAULT : 0;
  struct weft_worker_task task = {.threads = weft_worker_count(request->threads),
                                  .seed = request->seed + (uint64_t)above * SEEDS,
                                  .work = (uint64_t)(1e9 * effort)};
  if (attempt->incumbent.value == WEFT_NEVER || search->control.budget < 0 ||
      weft_incumbent_is_optimal(&attempt->incumbent) ||
      weft_search_control_is_cancelled(&search->control)) {
    return WEFT_OK;
  }
  search->control.share = fmin(1 - search->control.done, effort / request->effort);
  search->control.all_reduce = attempt->all_reduce;
  WEFT_TRY(find_chain(search, attempt, error));
  const double both = search->control.share, of_chain = chain_share(&attempt->chain);
  struct weft_worker_task chain_task = task;
  chain_task.work = (uint64_t)(of_chain * (double)task.work);
  task.work -= chain_task.work;
  search->control.share = (1 - of_chain) * both;
  WEFT_TRY(weft_improve(&attempt->incumbent, &task, &search->control, error));
  search->control.done += search->control.share;
  search->control.share = of_chain * both;
  WEFT_TRY(improve_chain(search, attempt, &chain_task, error));
  search->control.done += search->control.share;
  choose_best(search);
  return WEFT_OK;
}

/* Whether a placement may still have the best order. */
static bool is_open(const struct graph_search *search, const struct attempt *attempt) {
  return value_of(attempt) < INFINITY && bound_of(attempt) < value_of(search->best);
}

/* The open attempts, the best first. */
static uint32_t list_open(struct graph_search *search, struct attempt **list) {
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

/* Successive halving, as for the layouts of chains. */
static enum weft_status improve_all(struct graph_search *search, struct weft_error *error) {
  struct attempt *list[ATTEMPTS_MAX];
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
    const uint32_t half = (open + 1) / 2;
    open = list_open(search, list);
    for (uint32_t n = half; n < open; n++) {
      list[n]->dropped = true;
    }
    open = open < half ? open : half;
  }
  WEFT_TRY(open == 1 ? improve(search, list[0], left, error) : WEFT_OK);
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    search->attempts[n].dropped = false; /* the next rung decides anew */
  }
  return WEFT_OK;
}

static enum weft_status climb(struct graph_search *search, struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  struct attempt *list[ATTEMPTS_MAX];
  double left =
      request->use_time && request->effort > 0 ? INFINITY : WEFT_FIRST_RUNGS * request->effort;
  const double least = (double)OP_WORK * weft_problem_op_count(&search->attempts[0].problem);
  while (search->rung < WEFT_RUNG_DEFAULT && 1e9 * weft_search_rung(search->rung) < least) {
    search->rung++;
  }
  for (; left > 0 && search->control.budget >= 0 && list_open(search, list) > 0 &&
         !weft_search_control_is_cancelled(&search->control);
       search->rung++) {
    const double effort = weft_search_rung(search->rung);
    search->control.budget = left >= effort ? INFINITY : 1e9 * left;
    WEFT_TRY(improve_all(search, error));
    left -= effort;
  }
  return WEFT_OK;
}

/* ---- Memory ---- */

static enum weft_status find_need(struct graph_search *search, const struct attempt *attempt,
                                  struct trial *trial, struct weft_memory_need *need,
                                  struct weft_error *error) {
  /* With a limit of 0 for all memory, what exceeds it is what is needed. */
  struct weft_search_request starved = *search->request;
  struct weft_problem problem;
  struct weft_problem_least least;
  starved.costs = attempt->costs;
  starved.whole_backward = attempt->whole_backward;
  starved.memory_limit = 0;
  WEFT_TRY(
      weft_problem_init(&problem, search->allocator, &starved, attempt->placement->rank_of, error));
  problem.control = &search->control; /* then the least is not known */
  const enum weft_status status = weft_problem_least(&problem, &least, error);
  if (status < 0) {
    weft_problem_finish(&problem);
    return status;
  }
  int64_t enough = least.excess;
  weft_order_serial(&problem, &trial->clock, &trial->order);
  for (uint32_t r = 0; r < problem.rank_count && !least.is_exact; r++) {
    const int64_t own =
        weft_order_peak(&problem, &trial->order, r, trial->clock.done) - problem.limit[r];
    enough = own > enough ? own : enough;
  }
  *need = (struct weft_memory_need){(double)least.excess / problem.sizes_per_unit,
                                    (double)enough / problem.sizes_per_unit};
  weft_problem_finish(&problem);
  return WEFT_OK;
}

/* On the best of the placements. */
static enum weft_status find_least_need(struct graph_search *search, struct trial *trial,
                                        struct weft_memory_need *need, struct weft_error *error) {
  *need = (struct weft_memory_need){INFINITY, INFINITY};
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    struct weft_memory_need own;
    WEFT_TRY(find_need(search, &search->attempts[n], trial, &own, error));
    *need = (struct weft_memory_need){fmin(need->least, own.least), fmin(need->enough, own.enough)};
  }
  return WEFT_OK;
}

static enum weft_status explain_memory(struct graph_search *search, struct trial *trial,
                                       struct weft_error *error) {
  struct weft_memory_need all;
  WEFT_TRY(find_least_need(search, trial, &all, error));
  const double limit = search->request->memory_limit;
  char tried[64] = "";
  if (is_placement_open(search->request)) {
    (void)snprintf(tried, sizeof tried, " on the %" PRIu32 " placement%s tried",
                   search->placement_count, search->placement_count == 1 ? "" : "s");
  }
  if (all.least == all.enough) {
    return weft_fail(error, WEFT_ERR_INVALID, "give more memory, or use more ranks",
                     "no schedule fits into a memory of %.9g per rank%s; the least is %.9g", limit,
                     tried, all.least);
  }
  if (all.least > limit) {
    return weft_fail(error, WEFT_ERR_INVALID, "give more memory, or use more ranks",
                     "no schedule fits into a memory of %.9g per rank%s; %.9g is enough, and every "
                     "schedule needs at least %.9g",
                     limit, tried, all.enough, all.least);
  }
  return weft_fail(error, WEFT_ERR_INVALID, "give more memory, or use more ranks",
                   "no schedule was found that fits into a memory of %.9g per rank%s, and none was "
                   "proven impossible; %.9g is enough, and every schedule needs at least %.9g",
                   limit, tried, all.enough, all.least);
}

/* ---- The answer ---- */

static double peak_of(const struct attempt *attempt, uint32_t *done) {
  const struct weft_problem *problem = &attempt->problem;
  double peak = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double counted = (double)weft_order_peak(problem, &attempt->incumbent.best, r, done) /
                           problem->sizes_per_unit;
    peak = fmax(peak, counted + weft_problem_kept(problem, attempt->costs, r));
  }
  return peak;
}

static enum weft_status fill_answer(struct graph_search *search, struct weft_search_answer *answer,
                                    struct weft_error *error) {
  struct attempt *best = search->best;
  const uint32_t n = best->problem.stage_count;
  answer->stage_ranks = weft_array_allocate(search->allocator, n, sizeof *answer->stage_ranks);
  if (answer->stage_ranks == NULL) {
    return weft_fail_memory(error, n * sizeof *answer->stage_ranks);
  }
  memcpy(answer->stage_ranks, best->placement->rank_of, n * sizeof *answer->stage_ranks);
  WEFT_TRY(weft_order_table(&best->problem, &best->incumbent.best, &answer->table, error));
  const int64_t begin = weft_clock_ns();
  const enum weft_status status = weft_plan_check(answer, search->request->memory_limit, error);
  answer->check_ns = (double)(weft_clock_ns() - begin);
  return status;
}

static enum weft_status make_answer(struct graph_search *search, struct trial *trial,
                                    struct weft_search_answer **out, struct weft_error *error) {
  struct attempt *best = search->best;
  const int64_t made = weft_clock_ns();
  struct weft_search_answer *answer =
      weft_array_allocate_zero(search->allocator, 1, sizeof *answer);
  if (answer == NULL) {
    return weft_fail_memory(error, sizeof *answer);
  }
  const int64_t value = weft_order_evaluate(&best->problem, &trial->clock, &best->incumbent.best,
                                            WEFT_NEVER);
  assert(value == best->incumbent.value && value >= best->incumbent.bound);
  (void)value;
  const uint32_t n = best->problem.stage_count, p = best->problem.rank_count;
  const double ticks = best->problem.ticks_per_unit;
  double open = INFINITY, bound = INFINITY;
  uint64_t evaluated = 0, moves = 0;
  for (uint32_t k = 0; k < search->attempt_count; k++) {
    open = fmin(open, bound_of(&search->attempts[k]));
    if (search->attempts[k].placement == best->placement) {
      bound = fmin(bound, bound_of(&search->attempts[k]));
    }
    evaluated += search->attempts[k].incumbent.evaluated;
    moves += search->attempts[k].incumbent.moves;
  }
  *answer = (struct weft_search_answer){
      .schedule = "searched",
      .objective = search->request->objective,
      .placement = best->placement->kind,
      .placement_name = best->placement->name,
      .stages_per_rank = (n + p - 1) / p,
      .makespan = (double)trial->clock.makespan / ticks,
      .span = (double)trial->clock.span / ticks,
      .all_reduce = best->all_reduce,
      .peak_memory = peak_of(best, trial->clock.done),
      .bound = bound,
      .open_bound = is_placement_open(search->request) ? fmin(search->open, bound) : open,
      .optimal = value_of(best) <= bound,
      .stopped = search->control.was_cut,
      .evaluated = evaluated,
      .moves = moves,
      .costs = best->costs,
      .allocator = search->allocator};
  best->costs = NULL;
  const enum weft_status status = fill_answer(search, answer, error);
  if (status < 0) {
    weft_search_answer_destroy(answer);
    return status;
  }
  answer->least_seconds = search->control.first_order + (double)(weft_clock_ns() - made) * 1e-9;
  *out = answer;
  return WEFT_OK;
}

/* ---- The time of an answer ---- */

/* Seconds of a typical core for each action and message, to make the table, to check it and to write
 * it; and where it is measured: problems with more of them, and the share of the microbatches that the
 * measurement has. */
#define ANSWER_SECONDS 2.5e-7
#define ANSWER_MARGIN 1.3 /* large tables do not stay in the caches, and go into files */
enum { TIMED_ACTIONS = 200000, TIMED_SHARE = 32, TIMES = 3 };

static double action_count(const struct weft_search_request *request) {
  const struct weft_graph *graph = request->graph;
  return (3.0 * graph->stage_count + 4.0 * graph->edge_count) * request->microbatches;
}

/* What follows the search, with the answer of a smaller problem. */
static enum weft_status answer_small(const struct graph_search *search,
                                     const struct weft_search_request *request) {
  struct graph_search small = {.allocator = search->allocator,
                               .request = request,
                               .arena = {.allocator = search->allocator}};
  struct trial trial;
  struct weft_search_answer *answer = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = search->allocator};
  double period;
  weft_search_control_start(&small.control, request);
  enum weft_status status =
      add_attempt(&small, &search->placements[0], request->whole_backward, NULL);
  if (status == WEFT_OK) {
    status = make_trial(&small.attempts[0].problem, &small.arena, &trial, NULL);
  }
  if (status == WEFT_OK) {
    status = begin(&small.attempts[0], &trial, NULL);
  }
  choose_best(&small);
  if (status == WEFT_OK && value_of(small.best) < INFINITY) {
    status = make_answer(&small, &trial, &answer, NULL);
  }
  if (answer != NULL) {
    status = weft_period(search->allocator, answer->table, answer->costs, NULL, &period, NULL);
    weft_program_print(answer->table, &text);
    weft_search_answer_destroy(answer);
  }
  search_finish(&small);
  return status;
}

/* How long an answer takes is measured, because machines differ, and other programs run: the
 * shortest of some times, which says most about the next one. */
static double answer_seconds(const struct graph_search *search) {
  struct weft_search_request small = *search->request;
  const double actions = action_count(search->request);
  double shortest = INFINITY;
  if (small.time_limit <= 0 || actions < (double)TIMED_ACTIONS ||
      small.microbatches < TIMED_SHARE) {
    return ANSWER_SECONDS * actions;
  }
  small.microbatches = small.microbatches / TIMED_SHARE;
  small.memory_limit = INFINITY;
  for (unsigned n = 0; n < TIMES; n++) {
    const int64_t started = weft_clock_ns();
    if (answer_small(search, &small) != WEFT_OK) {
      return ANSWER_SECONDS * actions;
    }
    shortest = fmin(shortest, (double)(weft_clock_ns() - started) * 1e-9);
  }
  return ANSWER_MARGIN * shortest / action_count(&small) * actions;
}

static enum weft_status run(struct graph_search *search, struct weft_search_answer **out,
                            struct weft_error *error) {
  struct trial trial;
  WEFT_TRY(add_attempts(search, error));
  WEFT_TRY(make_trial(&search->attempts[0].problem, &search->arena, &trial, error));
  search->trial = &trial;
  if (is_placement_open(search->request)) {
    WEFT_TRY(find_open_bound(search, error));
  }
  weft_search_control_set_reserve(&search->control, answer_seconds(search));
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    if (search->best == NULL || value_of(search->best) == INFINITY ||
        !weft_search_control_poll(&search->control)) {
      WEFT_TRY(begin(&search->attempts[n], &trial, error));
    }
    choose_best(search);
    if (value_of(search->best) < INFINITY) {
      weft_search_control_note_order(&search->control);
    }
  }
  if (is_placement_open(search->request) && search->request->effort > 0 &&
      value_of(search->best) < INFINITY) {
    WEFT_TRY(add_local(search, &trial, error));
  }
  WEFT_TRY(climb(search, error));
  return value_of(search->best) == INFINITY ? explain_memory(search, &trial, error)
                                            : make_answer(search, &trial, out, error);
}

static enum weft_status check_request(const struct weft_search_request *request,
                                      struct weft_error *error) {
  if (request->ranks == 0 || request->microbatches == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give each of them at least 1",
                     "%" PRIu32 " ranks and %" PRIu32 " microbatches make no pipeline",
                     request->ranks, request->microbatches);
  }
  if (request->costs->part_count > 0 && !request->keep_partition) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "keep the partition of the costs, or give costs without parts",
                     "stages that form a graph cannot be partitioned anew: the graph is of stages");
  }
  return weft_plan_check_factors(request, error);
}

/* The request with the costs of its stages. */
static struct weft_search_request resolve(const struct weft_search_request *request,
                                          struct weft_costs_view *view) {
  struct weft_search_request resolved = *request;
  resolved.costs =
      weft_costs_of_stages(request->costs, request->ranks, request->graph->stage_count, view);
  return resolved;
}

enum weft_status weft_graph_search_least_memory(const struct weft_allocator *allocator,
                                                const struct weft_search_request *request,
                                                struct weft_memory_need *need,
                                                struct weft_error *error) {
  assert(request->graph != NULL && need != NULL);
  struct weft_costs_view view;
  const struct weft_search_request resolved = resolve(request, &view);
  struct graph_search search = {
      .allocator = allocator, .request = &resolved, .arena = {.allocator = allocator}};
  struct weft_memory_need found = {0};
  struct trial trial;
  WEFT_TRY(check_request(request, error));
  weft_search_control_start(&search.control, request);
  enum weft_status status = add_attempts(&search, error);
  if (status == WEFT_OK) {
    status = make_trial(&search.attempts[0].problem, &search.arena, &trial, error);
  }
  if (status == WEFT_OK) {
    status = find_least_need(&search, &trial, &found, error);
  }
  search_finish(&search);
  if (status == WEFT_OK) {
    *need = found;
  }
  return status;
}

enum weft_status weft_graph_search_bound(const struct weft_allocator *allocator,
                                         const struct weft_search_request *request, double *bound,
                                         struct weft_error *error) {
  assert(request->graph != NULL && bound != NULL);
  struct weft_costs_view view;
  const struct weft_search_request resolved = resolve(request, &view);
  struct graph_search search = {
      .allocator = allocator, .request = &resolved, .arena = {.allocator = allocator}};
  const enum weft_status status = find_open_bound(&search, error);
  search_finish(&search);
  if (status == WEFT_OK) {
    *bound = search.open;
  }
  return status;
}

enum weft_status weft_graph_search(const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   struct weft_search_answer **out, struct weft_error *error) {
  assert(request->graph != NULL);
  struct weft_costs_view view;
  const struct weft_search_request resolved = resolve(request, &view);
  struct graph_search search = {
      .allocator = allocator, .request = &resolved, .arena = {.allocator = allocator}};
  WEFT_TRY(check_request(request, error));
  weft_search_control_start(&search.control, request);
  const enum weft_status status = run(&search, out, error);
  search_finish(&search);
  return status;
}
