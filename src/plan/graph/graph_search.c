/* The search for graphs: placements, orders by list scheduling under many rules, then simulated
 * annealing of the best one. The same effort and seed give the same order. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <weft/gen.h>

#include "plan/graph/graph_problem.h"
#include "plan/layout/layout.h"
#include "plan/layout/partition.h"
#include "plan/plan_check.h"

enum { PLACEMENTS_MAX = 3 };

/* One placement with its best order. */
struct attempt {
  struct weft_graph_problem problem;
  struct weft_graph_clock clock;
  struct weft_graph_order best, trial;
  uint32_t *done; /* scratch of weft_graph_peak() */
  enum weft_placement_kind placement;
  struct weft_costs *costs; /* of the stages, as their ranks execute them; owned */
  int64_t value;            /* WEFT_GRAPH_NEVER: no order yet */
  int64_t bound;
};

struct graph_search {
  const struct weft_allocator *allocator;
  const struct weft_search_request *request;
  struct weft_search_control control;
  struct weft_arena arena;
  struct attempt attempts[PLACEMENTS_MAX];
  uint32_t attempt_count;
  struct attempt *best;
  uint64_t evaluated;
  uint64_t moves;
};

static double in_units(const struct attempt *attempt, int64_t ticks) {
  return ticks == WEFT_GRAPH_NEVER ? INFINITY : (double)ticks / attempt->problem.ticks_per_unit;
}

static void report(struct graph_search *search, double done) {
  const struct attempt *best = search->best;
  weft_search_control_report(&search->control, in_units(best, best->value),
                             in_units(best, best->bound), done, search->evaluated);
}

/* ---- Placements ---- */

/* Contiguous stages, with about equal work. */
static void place_blocks(const struct weft_search_request *request, uint32_t *rank_of) {
  const uint32_t n = request->graph->stage_count, p = request->ranks;
  double all = 0, sum = 0;
  for (uint32_t s = 0; s < n; s++) {
    const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
    all += costs->f + costs->i + costs->w;
  }
  for (uint32_t s = 0; s < n; s++) {
    const struct weft_stage_costs *costs = weft_costs_of(request->costs, s);
    const double own = costs->f + costs->i + costs->w;
    const double middle = all > 0 ? (sum + own / 2) / all : (s + 0.5) / n;
    const uint32_t rank = (uint32_t)(middle * p);
    rank_of[s] = rank < p ? rank : p - 1;
    sum += own;
  }
}

static void place_shape(const struct weft_search_request *request,
                        enum weft_placement_kind placement, uint32_t *rank_of) {
  const struct weft_shape shape = {.ranks = request->ranks, .placement = placement};
  for (uint32_t s = 0; s < request->graph->stage_count; s++) {
    rank_of[s] = weft_shape_rank_of(&shape, s);
  }
}

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

static enum weft_status add_attempt(struct graph_search *search, const uint32_t *rank_of,
                                    enum weft_placement_kind placement, struct weft_error *error) {
  struct attempt *attempt = &search->attempts[search->attempt_count];
  struct weft_graph_problem *problem = &attempt->problem;
  struct weft_search_request own = *search->request;
  WEFT_TRY(weft_graph_check(search->request, rank_of, error));
  WEFT_TRY(make_costs(search, rank_of, &attempt->costs, error));
  search->attempt_count++;
  own.costs = attempt->costs;
  WEFT_TRY(weft_graph_problem_init(problem, search->allocator, &own, rank_of, error));
  problem->control = &search->control;
  attempt->placement = placement;
  attempt->value = WEFT_GRAPH_NEVER;
  WEFT_TRY(weft_graph_clock_init(&attempt->clock, problem, error));
  const size_t ops = weft_graph_op_count(problem);
  const size_t flags = (size_t)problem->stage_count * problem->microbatch_count;
  struct weft_arena *arena = &problem->arena;
  attempt->best.ops = weft_arena_allocate(arena, ops, sizeof(uint32_t));
  attempt->trial.ops = weft_arena_allocate(arena, ops, sizeof(uint32_t));
  attempt->best.whole = weft_arena_allocate(arena, flags, 1);
  attempt->trial.whole = weft_arena_allocate(arena, flags, 1);
  attempt->done =
      weft_arena_allocate(arena, (size_t)problem->stage_count * WEFT_GRAPH_KINDS, sizeof(uint32_t));
  WEFT_TRY(weft_arena_status(arena, error));
  return weft_graph_bound(problem, &attempt->bound, error);
}

/* The request's placement, or those that the shape allows. */
static enum weft_status add_attempts(struct graph_search *search, struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  const uint32_t n = request->graph->stage_count, p = request->ranks;
  uint32_t *rank_of = weft_arena_allocate(&search->arena, n, sizeof *rank_of);
  WEFT_TRY(weft_arena_status(&search->arena, error));
  if (request->rank_of != NULL) {
    return add_attempt(search, request->rank_of, WEFT_PLACEMENT_INFERRED, error);
  }
  const bool is_even = p > 0 && n % p == 0;
  if (is_even && (request->any_placement || request->placement == WEFT_PLACEMENT_LOOP)) {
    place_shape(request, WEFT_PLACEMENT_LOOP, rank_of);
    WEFT_TRY(add_attempt(search, rank_of, WEFT_PLACEMENT_LOOP, error));
  }
  if (is_even && n > p && (request->any_placement || request->placement == WEFT_PLACEMENT_V)) {
    place_shape(request, WEFT_PLACEMENT_V, rank_of);
    WEFT_TRY(add_attempt(search, rank_of, WEFT_PLACEMENT_V, error));
  }
  if (search->attempt_count == 0 || (request->any_placement && n != p)) {
    place_blocks(request, rank_of);
    WEFT_TRY(add_attempt(search, rank_of, WEFT_PLACEMENT_INFERRED, error));
  }
  return WEFT_OK;
}

/* ---- Orders ---- */

static bool fits(struct attempt *attempt, const struct weft_graph_order *order) {
  const struct weft_graph_problem *problem = &attempt->problem;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t peak = weft_graph_peak(problem, order, r, attempt->done);
    if (peak < 0 || peak > problem->limit[r]) {
      return false;
    }
  }
  return true;
}

static void copy_order(const struct attempt *attempt, const struct weft_graph_order *from,
                       struct weft_graph_order *to) {
  const struct weft_graph_problem *problem = &attempt->problem;
  memcpy(to->ops, from->ops, weft_graph_op_count(problem) * sizeof *to->ops);
  memcpy(to->whole, from->whole, (size_t)problem->stage_count * problem->microbatch_count);
}

/* Keeps the trial if it is better than the best. */
static void consider(struct graph_search *search, struct attempt *attempt) {
  search->evaluated++;
  if (!fits(attempt, &attempt->trial)) {
    return;
  }
  const int64_t value = weft_graph_evaluate(&attempt->problem, &attempt->clock, &attempt->trial);
  if (value < attempt->value) {
    attempt->value = value;
    copy_order(attempt, &attempt->trial, &attempt->best);
    weft_search_control_note_order(&search->control);
  }
}

static enum weft_status construct(struct graph_search *search, struct attempt *attempt,
                                  struct weft_error *error) {
  const struct weft_graph_problem *problem = &attempt->problem;
  weft_graph_serial(problem, &attempt->clock, &attempt->trial);
  consider(search, attempt);
  if (attempt->value == WEFT_GRAPH_NEVER) {
    bool found;
    WEFT_TRY(weft_graph_fit(problem, &attempt->trial, &found, error));
    if (found) {
      consider(search, attempt);
      assert(attempt->value != WEFT_GRAPH_NEVER);
    }
  }
  for (uint32_t k = 0; k < 32 && attempt->value > attempt->bound; k++) {
    const uint32_t extras[] = {0, 1, problem->height[0], problem->microbatch_count};
    const struct weft_graph_rule rule = {.extra = extras[k / 8],
                                         .whole = k % 2 == 1,
                                         .eager_weights = k / 2 % 2 == 1,
                                         .forward_first = k / 4 % 2 == 1};
    const bool is_allowed = rule.whole ? problem->may_join : problem->may_split;
    if (is_allowed && !weft_search_control_is_cancelled(&search->control) &&
        weft_graph_construct(problem, &attempt->clock, &rule, &attempt->trial)) {
      consider(search, attempt);
    }
    (void)weft_search_control_poll(&search->control);
  }
  return WEFT_OK;
}

/* ---- Annealing ---- */

struct annealer {
  struct graph_search *search;
  struct attempt *attempt;
  struct weft_random random;
  struct weft_graph_order now; /* the trial; undone where a move is not taken */
  int64_t value;
};

/* Moves the op at `from` to `to`, both of one rank. */
static void shift(uint32_t *ops, uint32_t from, uint32_t to) {
  const uint32_t op = ops[from];
  if (from < to) {
    memmove(&ops[from], &ops[from + 1], (to - from) * sizeof *ops);
  } else {
    memmove(&ops[to + 1], &ops[to], (from - to) * sizeof *ops);
  }
  ops[to] = op;
}

static bool is_taken(struct annealer *annealer, int64_t value, double temperature) {
  if (value <= annealer->value) {
    return true;
  }
  if (value == WEFT_GRAPH_NEVER || temperature <= 0) {
    return false;
  }
  const double worse = (double)(value - annealer->value);
  return weft_random_share(&annealer->random) < exp(-worse / temperature);
}

/* Judges the order as it is now; true: it stays. */
static bool judge(struct annealer *annealer, uint32_t rank, double temperature) {
  struct attempt *attempt = annealer->attempt;
  const struct weft_graph_problem *problem = &attempt->problem;
  const int64_t peak = weft_graph_peak(problem, &annealer->now, rank, attempt->done);
  if (peak < 0 || peak > problem->limit[rank]) {
    return false;
  }
  annealer->search->evaluated++;
  const int64_t value = weft_graph_evaluate(problem, &attempt->clock, &annealer->now);
  if (!is_taken(annealer, value, temperature)) {
    return false;
  }
  annealer->value = value;
  if (value < attempt->value) {
    attempt->value = value;
    copy_order(attempt, &annealer->now, &attempt->best);
  }
  return true;
}

static void move_op(struct annealer *annealer, double temperature) {
  const struct weft_graph_problem *problem = &annealer->attempt->problem;
  const uint32_t from = weft_random_below(&annealer->random, weft_graph_op_count(problem));
  const uint32_t rank = problem->stages[annealer->now.ops[from] / WEFT_GRAPH_KINDS].rank;
  const uint32_t begin = problem->begin[rank], end = problem->begin[rank + 1];
  const uint32_t reach = 1 + weft_random_below(&annealer->random, 12);
  const bool down = weft_random_below(&annealer->random, 2) == 0;
  const uint32_t to = down ? (from - begin < reach ? begin : from - reach)
                           : (end - 1 - from < reach ? end - 1 : from + reach);
  if (to == from || annealer->now.ops[to] == annealer->now.ops[from]) {
    return;
  }
  shift(annealer->now.ops, from, to);
  if (!judge(annealer, rank, temperature)) {
    shift(annealer->now.ops, to, from);
  }
}

static void flip_backward(struct annealer *annealer, double temperature) {
  const struct weft_graph_problem *problem = &annealer->attempt->problem;
  const uint32_t stage = weft_random_below(&annealer->random, problem->stage_count);
  const uint32_t k = weft_random_below(&annealer->random, problem->microbatch_count);
  uint8_t *flag = &annealer->now.whole[(size_t)stage * problem->microbatch_count + k];
  if (problem->stages[stage].trains) {
    *flag = !*flag;
    if (!judge(annealer, problem->stages[stage].rank, temperature)) {
      *flag = !*flag;
    }
  }
}

/* About `seconds` of a typical core's work. */
static void anneal(struct graph_search *search, struct attempt *attempt, double seconds,
                   double done, double share) {
  const struct weft_graph_problem *problem = &attempt->problem;
  enum { OP_NS = 30, ROUND = 64 };
  const bool mixes = problem->may_split && problem->may_join;
  const double moves = seconds * 1e9 / OP_NS / (weft_graph_op_count(problem) + 16.0);
  const double hot = 0.02 * (double)attempt->value;
  struct annealer annealer = {.search = search,
                              .attempt = attempt,
                              .random = {search->request->seed},
                              .now = attempt->trial,
                              .value = attempt->value};
  copy_order(attempt, &attempt->best, &annealer.now);
  for (double k = 0; k < moves && attempt->value > attempt->bound; k++) {
    const double temperature = hot * pow(1e-3, k / moves);
    if (mixes && weft_random_below(&annealer.random, 8) == 0) {
      flip_backward(&annealer, temperature);
    } else {
      move_op(&annealer, temperature);
    }
    search->moves++;
    if (fmod(k, ROUND) == 0) {
      report(search, done + share * k / moves);
      if (weft_search_control_is_cancelled(&search->control)) {
        return;
      }
    }
  }
}

/* ---- The answer ---- */

static void choose_best(struct graph_search *search) {
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    struct attempt *attempt = &search->attempts[n];
    if (search->best == NULL ||
        in_units(attempt, attempt->value) < in_units(search->best, search->best->value)) {
      search->best = attempt;
    }
  }
}

/* What is known of the memory of a placement, in the unit of the costs. */
struct memory_need {
  double least;  /* every order needs as much */
  double enough; /* some order needs no more */
};

static enum weft_status find_need(struct graph_search *search, struct attempt *attempt,
                                  struct memory_need *need, struct weft_error *error) {
  /* With a limit of 0 for all memory, what exceeds it is what is needed. */
  struct weft_search_request starved = *search->request;
  struct weft_graph_problem problem;
  struct weft_graph_least least;
  uint32_t *rank_of =
      weft_arena_allocate(&search->arena, attempt->problem.stage_count, sizeof *rank_of);
  WEFT_TRY(weft_arena_status(&search->arena, error));
  for (uint32_t s = 0; s < attempt->problem.stage_count; s++) {
    rank_of[s] = attempt->problem.stages[s].rank;
  }
  starved.costs = attempt->costs;
  starved.memory_limit = 0;
  WEFT_TRY(weft_graph_problem_init(&problem, search->allocator, &starved, rank_of, error));
  const enum weft_status status = weft_graph_least(&problem, &least, error);
  int64_t enough = least.excess;
  weft_graph_serial(&problem, &attempt->clock, &attempt->trial);
  for (uint32_t r = 0; r < problem.rank_count && !least.is_exact; r++) {
    const int64_t own =
        weft_graph_peak(&problem, &attempt->trial, r, attempt->done) - problem.limit[r];
    enough = own > enough ? own : enough;
  }
  *need = (struct memory_need){(double)least.excess / problem.sizes_per_unit,
                               (double)enough / problem.sizes_per_unit};
  weft_graph_problem_finish(&problem);
  return status;
}

/* On the best of the placements. */
static enum weft_status find_least_need(struct graph_search *search, struct memory_need *need,
                                        struct weft_error *error) {
  *need = (struct memory_need){INFINITY, INFINITY};
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    struct memory_need own;
    WEFT_TRY(find_need(search, &search->attempts[n], &own, error));
    *need = (struct memory_need){fmin(need->least, own.least), fmin(need->enough, own.enough)};
  }
  return WEFT_OK;
}

static enum weft_status explain_memory(struct graph_search *search, struct weft_error *error) {
  struct memory_need all;
  WEFT_TRY(find_least_need(search, &all, error));
  const double limit = search->request->memory_limit;
  if (all.least > limit) {
    return weft_fail(error, WEFT_ERR_INVALID, "give more memory, or use more ranks",
                     "no schedule fits into a memory of %.9g per rank; %s%.9g", limit,
                     all.least == all.enough ? "the least is " : "every one needs at least ",
                     all.least);
  }
  return weft_fail(error, WEFT_ERR_INVALID, "give more memory, or use more ranks",
                   "no schedule was found that fits into a memory of %.9g per rank, and none was "
                   "proven impossible; %.9g is enough, and every schedule needs at least %.9g",
                   limit, all.enough, all.least);
}

static double peak_of(struct attempt *attempt, const struct weft_costs *costs) {
  const struct weft_graph_problem *problem = &attempt->problem;
  double peak = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    double own = (double)weft_graph_peak(problem, &attempt->best, r, attempt->done) /
                 problem->sizes_per_unit;
    for (uint32_t k = problem->first_of[r]; k < problem->first_of[r + 1]; k++) {
      const struct weft_stage_costs *stage = weft_costs_of(costs, problem->stage_of[k]);
      own += stage->parameters + stage->gradients_sharded;
    }
    peak = fmax(peak, own);
  }
  return peak;
}

static enum weft_status make_answer(struct graph_search *search, struct weft_search_answer **out,
                                    struct weft_error *error) {
  struct attempt *best = search->best;
  struct weft_search_answer *answer =
      weft_array_allocate_zero(search->allocator, 1, sizeof *answer);
  if (answer == NULL) {
    return weft_fail_memory(error, sizeof *answer);
  }
  const int64_t value = weft_graph_evaluate(&best->problem, &best->clock, &best->best);
  assert(value == best->value && value >= best->bound);
  (void)value;
  double open = INFINITY;
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    open = fmin(open, in_units(&search->attempts[n], search->attempts[n].bound));
  }
  *answer = (struct weft_search_answer){
      .schedule = "searched",
      .objective = search->request->objective,
      .placement = best->placement,
      .stages_per_rank =
          (best->problem.stage_count + best->problem.rank_count - 1) / best->problem.rank_count,
      .makespan = in_units(best, best->clock.makespan),
      .span = in_units(best, best->clock.span),
      .peak_memory = peak_of(best, best->costs),
      .bound = in_units(best, best->bound),
      .open_bound = open,
      .optimal = best->value == best->bound,
      .stopped = search->control.was_cut,
      .evaluated = search->evaluated,
      .moves = search->moves,
      .allocator = search->allocator};
  enum weft_status status =
      weft_graph_order_table(&best->problem, &best->best, &answer->table, error);
  if (status == WEFT_OK) {
    answer->costs = best->costs;
    best->costs = NULL;
    const int64_t begin = weft_clock_ns();
    status = weft_plan_check(answer, search->request->memory_limit, error);
    answer->check_ns = (double)(weft_clock_ns() - begin);
  }
  if (status < 0) {
    weft_search_answer_destroy(answer);
    return status;
  }
  *out = answer;
  return WEFT_OK;
}

/* Half of the work for all placements, the rest for the best one. */
static enum weft_status run(struct graph_search *search, struct weft_search_answer **out,
                            struct weft_error *error) {
  const struct weft_search_request *request = search->request;
  WEFT_TRY(add_attempts(search, error));
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    WEFT_TRY(construct(search, &search->attempts[n], error));
  }
  choose_best(search);
  if (search->best->value == WEFT_GRAPH_NEVER) {
    return explain_memory(search, error);
  }
  const double all =
      request->use_time && request->time_limit > 0 ? 4 * request->time_limit : request->effort;
  const double share = 0.5 / search->attempt_count;
  for (uint32_t n = 0; n < search->attempt_count && search->attempt_count > 1; n++) {
    if (search->attempts[n].value < WEFT_GRAPH_NEVER) {
      anneal(search, &search->attempts[n], all * share, n * share, share);
    }
  }
  choose_best(search);
  anneal(search, search->best, search->attempt_count > 1 ? all / 2 : all, 0.5, 0.5);
  return make_answer(search, out, error);
}

static enum weft_status check_request(const struct weft_search_request *request,
                                      struct weft_error *error) {
  if (request->costs->part_count > 0 && !request->keep_partition) {
    return weft_fail(error, WEFT_ERR_USAGE, "use --keep-partition, or costs without parts",
                     "stages that form a graph cannot be partitioned anew: the graph is of stages");
  }
  if (request->replicas > 1) {
    return weft_fail(error, WEFT_ERR_USAGE, "plan without them",
                     "the planner for graphs does not know replicas");
  }
  return weft_plan_check_factors(request, error);
}

static void search_finish(struct graph_search *search) {
  for (uint32_t n = 0; n < search->attempt_count; n++) {
    weft_graph_problem_finish(&search->attempts[n].problem);
    weft_costs_destroy(search->attempts[n].costs);
  }
  weft_arena_finish(&search->arena);
}

enum weft_status weft_graph_search_least_memory(const struct weft_allocator *allocator,
                                                const struct weft_search_request *request,
                                                double *least, struct weft_error *error) {
  assert(request->graph != NULL && least != NULL);
  struct graph_search search = {
      .allocator = allocator, .request = request, .arena = {.allocator = allocator}};
  struct memory_need need;
  WEFT_TRY(check_request(request, error));
  weft_search_control_start(&search.control, request);
  enum weft_status status = add_attempts(&search, error);
  if (status == WEFT_OK) {
    status = find_least_need(&search, &need, error);
  }
  search_finish(&search);
  if (status == WEFT_OK) {
    *least = need.enough;
  }
  return status;
}

enum weft_status weft_graph_search(const struct weft_allocator *allocator,
                                   const struct weft_search_request *request,
                                   struct weft_search_answer **out, struct weft_error *error) {
  assert(request->graph != NULL);
  struct graph_search search = {
      .allocator = allocator, .request = request, .arena = {.allocator = allocator}};
  WEFT_TRY(check_request(request, error));
  weft_search_control_start(&search.control, request);
  const enum weft_status status = run(&search, out, error);
  search_finish(&search);
  return status;
}
