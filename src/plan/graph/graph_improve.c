/* Rules for list scheduling, then simulated annealing, as for chains (improve/). */
#include "plan/graph/graph_improve.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "plan/graph/graph_evaluator.h"
#include "plan/improve/worker_threads.h"

#define NEVER WEFT_GRAPH_NEVER

/* ---- The incumbent ---- */

static enum weft_status order_init(const struct weft_graph_problem *problem,
                                   struct weft_arena *arena, struct weft_graph_order *order,
                                   struct weft_error *error) {
  order->ops = weft_arena_allocate(arena, weft_graph_op_count(problem), sizeof *order->ops);
  order->whole = weft_arena_allocate(
      arena, (size_t)problem->stage_count * problem->microbatch_count, sizeof *order->whole);
  return weft_arena_status(arena, error);
}

static void order_copy(const struct weft_graph_problem *problem, struct weft_graph_order *to,
                       const struct weft_graph_order *from) {
  memcpy(to->ops, from->ops, weft_graph_op_count(problem) * sizeof *to->ops);
  memcpy(to->whole, from->whole, (size_t)problem->stage_count * problem->microbatch_count);
}

enum weft_status weft_graph_incumbent_init(struct weft_graph_incumbent *incumbent,
                                           const struct weft_graph_problem *problem, int64_t bound,
                                           struct weft_error *error) {
  assert(problem != NULL && bound >= 0);
  *incumbent = (struct weft_graph_incumbent){.problem = problem,
                                             .arena = {.allocator = problem->allocator},
                                             .value = NEVER,
                                             .bound = bound};
  const enum weft_status status = order_init(problem, &incumbent->arena, &incumbent->best, error);
  if (status < 0) {
    weft_graph_incumbent_finish(incumbent);
  }
  return status;
}

void weft_graph_incumbent_finish(struct weft_graph_incumbent *incumbent) {
  weft_arena_finish(&incumbent->arena);
}

void weft_graph_incumbent_offer(struct weft_graph_incumbent *incumbent,
                                const struct weft_graph_order *order, int64_t value) {
  if (value < incumbent->value) {
    assert(value >= incumbent->bound);
    incumbent->value = value;
    order_copy(incumbent->problem, &incumbent->best, order);
  }
}

/* ---- Workers ---- */

struct round {
  bool rules; /* else annealing */
  double share;
  double temperature; /* at the start, as a share of the bound */
};

static const struct round rounds_usual[] = {{.rules = true, .share = 0.3},
                                            {.share = 0.25, .temperature = 2e-3},
                                            {.share = 0.2, .temperature = 1e-3},
                                            {.share = 0.15, .temperature = 3e-4},
                                            {.share = 0.1}};
/* Little work for many ops: a high temperature would do damage that there is no time to repair. */
static const struct round rounds_large[] = {
    {.rules = true, .share = 0.6}, {.share = 0.25}, {.share = 0.15, .temperature = 1e-4}};
enum { LITTLE_WORK = 30000 }; /* for each op, in nanoseconds */

/* Problems with more ops are not annealed: an evaluator takes a hundred bytes for each. */
enum { EVALUATOR_OPS_MAX = 1 << 22 };

enum { CRITICAL_MAX = 1 << 14 };

struct worker {
  struct worker_pool *pool;
  uint32_t number;
  struct weft_random random;
  struct weft_graph_incumbent incumbent;
  struct weft_graph_scheduler scheduler;
  struct weft_graph_order draft;
  struct weft_graph_rule *rules, *tried; /* [stage] */
  bool whole, tried_whole;
  struct weft_graph_evaluator evaluator;
  bool has_evaluator;
  uint32_t *critical; /* positions on the critical path */
  uint32_t critical_count;
  uint64_t work; /* done */
};

struct worker_pool {
  struct weft_graph_incumbent *incumbent;
  struct weft_search_control *control;
  const struct weft_worker_task *task;
  struct worker *workers;
  uint32_t size;
  const struct round *round;
  uint64_t amount; /* of work, in this round */
  double done;     /* share of the rounds that is complete */
};

static bool is_done(const struct worker *worker) {
  return weft_graph_incumbent_is_optimal(&worker->incumbent) ||
         weft_search_control_is_cancelled(worker->pool->control);
}

/* ---- Rules ---- */

/* Ways to choose how many microbatches a stage has in flight: as 1F1B at its height, from the round
 * trip of a gradient, as many as fit, or in proportion to its height from all that fit. */
enum { CAP_CLASSIC, CAP_TRIP, CAP_MEMORY, CAP_SLOPE, CAP_CLASSIC_MORE, CAP_TRIP_LESS, CAPS };

/* How long W and F may delay other ops, in halves of their own time; the best choices first. */
static const uint8_t delays[][2] = {{2, 2}, {0, 0}, {1, 1}, {1, 2}, {0, 1},
                                    {0, 2}, {1, 0}, {2, 1}, {2, 0}};
enum { GRID = CAPS * WEFT_ARRAY_LENGTH(delays) };

static uint32_t most_in_flight(const struct weft_graph_problem *problem, uint32_t s) {
  const struct weft_graph_stage *stage = &problem->stages[s];
  const int64_t m = problem->microbatch_count;
  const int64_t fit = stage->held > 0 ? problem->limit[stage->rank] / stage->held : m;
  return (uint32_t)(fit < 1 ? 1 : fit < m ? fit : m);
}

static uint32_t cap_of(const struct weft_graph_problem *problem, uint32_t s, unsigned how) {
  const struct weft_graph_stage *stage = &problem->stages[s];
  const uint32_t most = most_in_flight(problem, s), height = problem->height[s];
  const int64_t trips = stage->f > 0 ? (problem->round_trip[s] + stage->f - 1) / stage->f : most;
  const uint32_t near = trips < most ? (uint32_t)trips : most;
  switch (how) {
    case CAP_CLASSIC: return height + 1;
    case CAP_CLASSIC_MORE: return height + 2;
    case CAP_TRIP: return near;
    case CAP_TRIP_LESS: return near - near / 4;
    case CAP_SLOPE:
      return 1 + (uint32_t)((uint64_t)(most - 1) * height / (problem->height_max + 1));
    default: return most;
  }
}

static void clamp(const struct weft_graph_problem *problem, struct weft_graph_rule *rules) {
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const uint32_t m = problem->microbatch_count;
    rules[s].cap = rules[s].cap - 1 < m ? rules[s].cap : rules[s].cap == 0 ? 1 : m;
    rules[s].warmup = rules[s].warmup - 1 < m ? rules[s].warmup : rules[s].warmup == 0 ? 1 : m;
  }
}

static void set_grid(struct worker *worker, uint32_t n) {
  const struct weft_graph_problem *problem = worker->incumbent.problem;
  const uint8_t *delay = delays[n % GRID / CAPS];
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_graph_stage *stage = &problem->stages[s];
    const uint32_t cap = cap_of(problem, s, n % CAPS);
    worker->tried[s] = (struct weft_graph_rule){.warmup = cap,
                                                .cap = cap,
                                                .w_overrun = stage->w * delay[0] / 2,
                                                .f_delay = stage->f * delay[1] / 2};
  }
  worker->tried_whole = problem->may_split ? n >= GRID : true;
  clamp(problem, worker->tried);
}

/* Schedules by the tried rules; the value, NEVER above the cutoff. */
static int64_t schedule(struct worker *worker, int64_t cutoff) {
  struct weft_graph_incumbent *incumbent = &worker->incumbent;
  incumbent->evaluated++;
  const int64_t value =
      weft_graph_schedule(incumbent->problem, &worker->scheduler, worker->tried,
                          worker->tried_whole, cutoff, &worker->draft, &worker->work);
  if (value < incumbent->value &&
      !weft_graph_fits(incumbent->problem, &worker->draft, worker->scheduler.clock.done)) {
    return NEVER; /* the check of the answer must not be the first to notice */
  }
  weft_graph_incumbent_offer(incumbent, &worker->draft, value);
  return value;
}

static void keep_rules(struct worker *worker) {
  memcpy(worker->rules, worker->tried,
         worker->incumbent.problem->stage_count * sizeof *worker->rules);
  worker->whole = worker->tried_whole;
}

static void try_again(struct worker *worker) {
  memcpy(worker->tried, worker->rules,
         worker->incumbent.problem->stage_count * sizeof *worker->rules);
  worker->tried_whole = worker->whole;
}

/* Each worker has its share of the grid; the first point comes whatever the work. */
static int64_t try_grid(struct worker *worker, uint64_t work) {
  const struct weft_graph_problem *problem = worker->incumbent.problem;
  const uint32_t size = problem->may_split && problem->may_join ? 2 * GRID : GRID;
  const uint64_t from = worker->work;
  int64_t best = NEVER;
  for (uint32_t n = worker->number % size; n < size && !is_done(worker); n += worker->pool->size) {
    if (n >= worker->pool->size && worker->work - from >= work) {
      break;
    }
    set_grid(worker, n);
    const int64_t value = schedule(worker, best);
    if (value < best || n == worker->number % size) {
      best = value;
      keep_rules(worker);
    }
  }
  return best;
}

static void change_one(struct worker *worker) {
  const struct weft_graph_problem *problem = worker->incumbent.problem;
  struct weft_random *random = &worker->random;
  const uint32_t s = weft_random_below(random, problem->stage_count);
  const struct weft_graph_stage *stage = &problem->stages[s];
  struct weft_graph_rule *rule = &worker->tried[s];
  const uint32_t step = weft_random_below(random, 2) == 0 ? 1U : UINT32_MAX;
  switch (weft_random_below(random, 5)) {
    case 0: rule->cap += step; break;
    case 1: rule->warmup += step; break;
    case 2: rule->w_overrun = (int64_t)((double)stage->w * weft_random_share(random)); break;
    case 3: rule->f_delay = (int64_t)((double)stage->f * weft_random_share(random)); break;
    default:
      rule->eager = weft_random_below(random, 2) == 0
                        ? 0
                        : 1 + weft_random_below(random, most_in_flight(problem, s));
  }
}

/* All stages, or those up to a height, in the same way. */
static void change_all(struct worker *worker) {
  const struct weft_graph_problem *problem = worker->incumbent.problem;
  struct weft_random *random = &worker->random;
  const uint32_t how = weft_random_below(random, 4);
  const uint32_t height = weft_random_below(random, problem->height_max + 1);
  const uint32_t step = weft_random_below(random, 2) == 0 ? 1U : UINT32_MAX;
  const double share = weft_random_share(random);
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_graph_stage *stage = &problem->stages[s];
    struct weft_graph_rule *rule = &worker->tried[s];
    switch (how) {
      case 0: rule->cap += problem->height[s] <= height ? step : 0; break;
      case 1: rule->warmup += problem->height[s] <= height ? step : 0; break;
      case 2: rule->w_overrun = (int64_t)((double)stage->w * share); break;
      default: rule->f_delay = (int64_t)((double)stage->f * share);
    }
  }
}

static void search_rules(struct worker *worker, uint64_t work) {
  const uint64_t from = worker->work;
  int64_t value = try_grid(worker, work / 2);
  while (worker->work - from < work && !is_done(worker)) {
    const double left = 1 - (double)(worker->work - from) / (double)work;
    const double u = weft_random_share(&worker->random);
    const int64_t worse = (int64_t)(0.004 * (double)worker->incumbent.bound * left * left * u * u);
    const int64_t cutoff = value < NEVER ? value + worse : NEVER;
    try_again(worker);
    for (uint32_t k = weft_random_below(&worker->random, 3) + 1; k > 0; k--) {
      if (weft_random_below(&worker->random, 8) < 5) {
        change_one(worker);
      } else {
        change_all(worker);
      }
      clamp(worker->incumbent.problem, worker->tried);
    }
    const int64_t tried = schedule(worker, cutoff);
    worker->work += worker->incumbent.problem->stage_count; /* however soon it was abandoned */
    if (tried < NEVER && tried <= cutoff) {
      value = tried;
      keep_rules(worker);
    }
  }
}

/* ---- Annealing ---- */

/* Weight of the objective relative to the ranks' mean span, which guides the search on plateaus. */
enum { VALUE_WEIGHT = 64 };

/* Accepted moves between two updates of the critical path, and of the tails, which cost more. */
enum { CRITICAL_INTERVAL = 4, REFRESH_INTERVAL = 64 };

/* Nanoseconds of a typical core: to compute one op, and to draw a move. */
enum { OP_WORK = 20, MOVE_WORK = 200 };

/* One of this many moves splits or joins a backward, where both are allowed. */
enum { FLIP_INTERVAL = 4 };

struct anneal {
  uint64_t from;  /* evaluator.computed at the start */
  uint64_t moves; /* drawn */
  uint32_t kept;  /* accepted */
  double cost;
  double start_temperature, temperature; /* shares of the bound; ticks */
};

static bool draw_move(struct worker *worker, bool climbs, struct weft_graph_move *move) {
  static const uint32_t reaches[] = {1, 1, 4, 4, 12, WEFT_GRAPH_MOVE_MAX - 1};
  const struct weft_graph_problem *problem = worker->incumbent.problem;
  const struct weft_graph_evaluator *evaluator = &worker->evaluator;
  struct weft_random *random = &worker->random;
  const bool critical = climbs || weft_random_below(random, 4) > 0;
  const uint32_t at = critical ? worker->critical[weft_random_below(random, worker->critical_count)]
                               : weft_random_below(random, weft_graph_op_count(problem));
  if (problem->may_split && problem->may_join && weft_random_below(random, FLIP_INTERVAL) == 0) {
    *move = (struct weft_graph_move){at, at};
    return true;
  }
  const uint32_t rank = problem->stages[evaluator->order.ops[at] / WEFT_GRAPH_KINDS].rank;
  const uint32_t far = 1 + weft_random_below(random, reaches[weft_random_below(random, 6)]);
  const uint32_t how = weft_random_below(random, 4) | (climbs ? 2 : 0);
  const uint32_t other = how & 1 ? at + far : at - far;
  if (other < problem->begin[rank] || other >= problem->begin[rank + 1]) {
    return false;
  }
  *move = how & 2 ? (struct weft_graph_move){at, other} : (struct weft_graph_move){other, at};
  return true;
}

static double cost_of(const struct weft_graph_evaluator *evaluator, bool climbs) {
  const double mean = (double)evaluator->span_sum / evaluator->problem->rank_count;
  return (double)evaluator->value + (climbs ? 0 : mean / (double)VALUE_WEIGHT);
}

static void update_critical(struct worker *worker) {
  worker->critical_count =
      weft_graph_evaluator_critical(&worker->evaluator, worker->critical, CRITICAL_MAX);
}

static void set_order(struct worker *worker) {
  const bool is_set = weft_graph_evaluator_set(&worker->evaluator, &worker->incumbent.best);
  assert(is_set);
  (void)is_set;
  update_critical(worker);
}

/* False when the order turns out to deadlock. */
static bool keep_best(struct worker *worker) {
  const struct weft_graph_evaluator *evaluator = &worker->evaluator;
  if (evaluator->value >= worker->incumbent.value) {
    return true;
  }
  worker->work += weft_graph_op_count(evaluator->problem) * (uint64_t)OP_WORK;
  if (weft_graph_evaluate(evaluator->problem, &worker->scheduler.clock, &evaluator->order) !=
      evaluator->value) {
    return false;
  }
  weft_graph_incumbent_offer(&worker->incumbent, &evaluator->order, evaluator->value);
  return true;
}

static uint64_t work_done(const struct worker *worker, const struct anneal *anneal) {
  return (worker->evaluator.computed - anneal->from) * OP_WORK + anneal->moves * MOVE_WORK;
}

static void try_move(struct worker *worker, struct anneal *anneal) {
  struct weft_graph_evaluator *evaluator = &worker->evaluator;
  const bool climbs = anneal->start_temperature == 0;
  struct weft_graph_move move;
  anneal->moves++;
  if (!draw_move(worker, climbs, &move)) {
    return;
  }
  const double allowance = -anneal->temperature * log(weft_random_share(&worker->random) + 1e-300);
  if (!weft_graph_evaluator_try(evaluator, &move, evaluator->value + (int64_t)allowance)) {
    return;
  }
  worker->incumbent.evaluated++;
  const double cost = cost_of(evaluator, climbs);
  if (cost > anneal->cost + allowance) {
    weft_graph_evaluator_undo(evaluator, &move);
    return;
  }
  anneal->cost = cost;
  const bool refresh = ++anneal->kept % REFRESH_INTERVAL == 0;
  if (!keep_best(worker) || (refresh && !weft_graph_evaluator_refresh(evaluator))) {
    set_order(worker); /* the last moves led to a deadlock */
    anneal->cost = cost_of(evaluator, climbs);
  } else if (climbs || anneal->kept % CRITICAL_INTERVAL == 0) {
    update_critical(worker);
  }
}

static void anneal_order(struct worker *worker, uint64_t work, double temperature) {
  if (!worker->has_evaluator || is_done(worker)) {
    return;
  }
  set_order(worker);
  struct anneal anneal = {.from = worker->evaluator.computed,
                          .cost = cost_of(&worker->evaluator, temperature == 0),
                          .start_temperature = temperature};
  const uint64_t before = worker->work;
  while (work_done(worker, &anneal) + worker->work - before < work && !is_done(worker)) {
    const double left =
        1 - (double)(work_done(worker, &anneal) + worker->work - before) / (double)work;
    anneal.temperature = anneal.start_temperature * (double)worker->incumbent.bound * left * left;
    for (unsigned n = 0; n < 64; n++) {
      try_move(worker, &anneal);
    }
  }
  worker->work += work_done(worker, &anneal);
  worker->incumbent.moves += anneal.moves;
}

/* ---- Rounds ---- */

static void work(void *context, uint32_t number) {
  struct worker_pool *pool = context;
  struct worker *worker = &pool->workers[number];
  if (pool->round->rules) {
    search_rules(worker, pool->amount);
  } else { /* the best temperature is not known, so workers differ */
    anneal_order(worker, pool->amount, pool->round->temperature * (number % 2 == 0 ? 1.25 : 0.5));
  }
}

static void tick(void *context) {
  struct worker_pool *pool = context;
  const struct weft_graph_incumbent *incumbent = pool->incumbent;
  const double ticks = incumbent->problem->ticks_per_unit;
  weft_search_control_report(pool->control, (double)incumbent->value / ticks,
                             (double)incumbent->bound / ticks, pool->done, incumbent->evaluated);
}

static void share_best(struct worker_pool *pool) {
  for (uint32_t n = 0; n < pool->size; n++) {
    struct weft_graph_incumbent *own = &pool->workers[n].incumbent;
    pool->incumbent->evaluated += own->evaluated;
    pool->incumbent->moves += own->moves;
    own->evaluated = own->moves = 0;
    weft_graph_incumbent_offer(pool->incumbent, &own->best, own->value);
  }
  for (uint32_t n = 0; n < pool->size; n++) {
    weft_graph_incumbent_offer(&pool->workers[n].incumbent, &pool->incumbent->best,
                               pool->incumbent->value);
  }
}

static enum weft_status prepare(struct worker_pool *pool, struct weft_error *error) {
  const struct weft_graph_problem *problem = pool->incumbent->problem;
  for (uint32_t n = 0; n < pool->size; n++) {
    struct worker *worker = &pool->workers[n];
    if (!pool->round->rules && !worker->has_evaluator &&
        weft_graph_op_count(problem) <= EVALUATOR_OPS_MAX) {
      WEFT_TRY(weft_graph_evaluator_init(&worker->evaluator, problem, error));
      worker->has_evaluator = true;
    }
  }
  return WEFT_OK;
}

static enum weft_status run_rounds(struct worker_pool *pool, struct weft_error *error) {
  const uint64_t all = pool->task->work;
  const bool is_large = all / LITTLE_WORK < weft_graph_op_count(pool->incumbent->problem);
  const struct round *rounds = is_large ? rounds_large : rounds_usual;
  const size_t count = is_large ? WEFT_ARRAY_LENGTH(rounds_large) : WEFT_ARRAY_LENGTH(rounds_usual);
  share_best(pool);
  for (size_t n = 0; n < count; n++) {
    pool->round = &rounds[n];
    pool->amount = (uint64_t)((double)all * pool->round->share);
    if (pool->amount == 0 || weft_graph_incumbent_is_optimal(pool->incumbent) ||
        weft_search_control_is_cancelled(pool->control) ||
        !weft_search_control_spend(pool->control, (double)pool->amount)) {
      return WEFT_OK;
    }
    WEFT_TRY(prepare(pool, error));
    weft_worker_threads_run(pool->size, work, tick, pool);
    share_best(pool);
    pool->done += pool->round->share;
    tick(pool);
  }
  return WEFT_OK;
}

/* ---- The pool ---- */

static enum weft_status worker_init(struct worker *worker, struct worker_pool *pool,
                                    struct weft_error *error) {
  const struct weft_graph_problem *problem = pool->incumbent->problem;
  struct weft_arena *arena = &worker->incumbent.arena; /* all live as long */
  worker->pool = pool;
  worker->number = pool->size;
  worker->random = (struct weft_random){pool->task->seed + pool->size};
  WEFT_TRY(weft_graph_incumbent_init(&worker->incumbent, problem, pool->incumbent->bound, error));
  pool->size++;
  worker->rules = weft_arena_allocate(arena, problem->stage_count, sizeof *worker->rules);
  worker->tried = weft_arena_allocate(arena, problem->stage_count, sizeof *worker->tried);
  worker->critical = weft_arena_allocate(arena, CRITICAL_MAX, sizeof *worker->critical);
  WEFT_TRY(order_init(problem, arena, &worker->draft, error));
  return weft_graph_scheduler_init(&worker->scheduler, problem, arena, error);
}

enum weft_status weft_graph_improve(struct weft_graph_incumbent *incumbent,
                                    const struct weft_worker_task *task,
                                    struct weft_search_control *control, struct weft_error *error) {
  assert(incumbent->value != NEVER && task->threads > 0);
  const struct weft_allocator *allocator = incumbent->problem->allocator;
  struct worker_pool pool = {.incumbent = incumbent, .control = control, .task = task};
  enum weft_status status = WEFT_OK;
  pool.workers = weft_array_allocate_zero(allocator, task->threads, sizeof *pool.workers);
  if (pool.workers == NULL) {
    return weft_fail_memory(error, task->threads * sizeof *pool.workers);
  }
  while (pool.size < task->threads && status == WEFT_OK) {
    status = worker_init(&pool.workers[pool.size], &pool, error);
  }
  if (status == WEFT_OK) {
    status = run_rounds(&pool, error);
  }
  for (uint32_t n = 0; n < pool.size; n++) {
    weft_graph_evaluator_finish(&pool.workers[n].evaluator);
    weft_graph_incumbent_finish(&pool.workers[n].incumbent);
  }
  weft_array_free(allocator, pool.workers, task->threads, sizeof *pool.workers);
  return status;
}
