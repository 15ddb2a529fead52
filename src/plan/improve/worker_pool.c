/* Rounds of local search on several threads. */
#include "plan/improve/worker_pool.h"

#include <assert.h>
#include <math.h>

#include <weft/support.h>

#include "plan/improve/annealing.h"
#include "plan/improve/worker_threads.h"

/* Shares of the work: a beam search, periodic and scaled orders before the first round; a better
 * bound, orders from its time windows, and beam searches guided by them, after it; and once more a
 * better bound after the last. */
struct shares {
  double beam, periodic, scaled, windows, guided, sharpening;
};
static const struct shares shares_single = {0.02, 0.05, 0.1, 0.2, 0, 0.2}; /* one stage per rank */
static const struct shares shares_small = {0.1, 0.15, 0.05, 0.15, 0.25, 0.1};
static const struct shares shares_large = {0.1, 0.1, 0.25, 0.15, 0, 0.1};
enum { SMALL = 1024 }; /* ops */
/* With one stage per rank, priority rules are better than scaled orders until they come to an end. */
#define SINGLE_SCALED_MIN 9e8

static const struct shares *shares_of(const struct weft_problem *problem) {
  return weft_problem_op_count(problem) <= SMALL ? &shares_small
         : problem->stages_per_rank == 1         ? &shares_single
                                                 : &shares_large;
}

/* ---- Rounds ---- */

struct round {
  bool priority_search; /* else annealing */
  double share;         /* of the work */
  double temperature;   /* at the start, as a share of the bound */
};

/* One stage per rank: priority rules find good orders, which annealing improves. */
static const struct round rounds_single[] = {
    {.priority_search = true, .share = 0.35},
    {.share = 0.25, .temperature = 1e-3},
    {.share = 0.2, .temperature = 6e-4},
    {.share = 0.2, .temperature = 3e-4},
};
/* Several stages per rank: the orders of the constructors are close to the best. */
static const struct round rounds_several[] = {
    {.share = 0.1, .temperature = 0},     {.share = 0.3, .temperature = 1e-3},
    {.share = 0.25, .temperature = 6e-4}, {.share = 0.25, .temperature = 3e-4},
    {.share = 0.1, .temperature = 0},
};
/* Little work for many ops: a high temperature would do damage that there is no time to repair. */
static const struct round rounds_large[] = {
    {.share = 0.7, .temperature = 0},
    {.share = 0.2, .temperature = 1e-4},
    {.share = 0.1, .temperature = 0},
};
enum { LITTLE_WORK = 100000 }; /* for each op, in nanoseconds */

struct round_list {
  const struct round *rounds;
  size_t count;
};

static struct round_list rounds_of(const struct weft_problem *problem, uint64_t work) {
#define ROUNDS(list) ((struct round_list){.rounds = (list), .count = WEFT_ARRAY_LENGTH(list)})
  if (problem->stages_per_rank == 1) {
    return ROUNDS(rounds_single);
  }
  return work / LITTLE_WORK < weft_problem_op_count(problem) ? ROUNDS(rounds_large)
                                                             : ROUNDS(rounds_several);
#undef ROUNDS
}

/* ---- Threads ---- */

struct worker {
  struct worker_pool *pool;
  struct weft_local_search search;
  uint32_t number;
};

struct worker_pool {
  struct weft_incumbent *incumbent;
  struct weft_search_control *control;
  const struct weft_worker_task *task;
  struct worker *workers;
  uint32_t size;
  const struct round *round;
  uint64_t amount;      /* of work, in this round */
  uint64_t work_before; /* the first round */
  double done;          /* share of the rounds that is complete */
};

/* Large problems need a lower temperature, as their critical paths are longer. The best one is
 * not known, so workers differ. */
static double temperature_of(const struct worker *worker) {
  const struct weft_problem *problem = worker->search.incumbent.problem;
  const double ops = (double)problem->rank_count * problem->length;
  const double temperature =
      worker->pool->round->temperature * (worker->number % 2 == 0 ? 1.25 : 0.5);
  return problem->stages_per_rank == 1 ? temperature * sqrt(900 / ops) : temperature;
}

static void work(void *context, uint32_t number) {
  struct worker_pool *pool = context;
  struct worker *worker = &pool->workers[number];
  if (pool->round->priority_search) { /* the whole grid, even if no work is left after it */
    weft_priority_search(&worker->search, pool->amount, pool->task->work, worker->number,
                         pool->size);
  } else {
    weft_anneal(&worker->search, pool->amount, temperature_of(worker));
  }
}

static void report(struct worker_pool *pool, double done) {
  const struct weft_problem *problem = pool->incumbent->problem;
  weft_search_control_report(
      pool->control, (double)pool->incumbent->value / problem->ticks_per_unit,
      (double)pool->incumbent->bound / problem->ticks_per_unit, done, pool->incumbent->evaluated);
}

static void tick(void *context) {
  struct worker_pool *pool = context;
  report(pool, pool->done);
}

/* ---- Between rounds ---- */

/* All workers continue from the best order of all. */
static void share_best(struct worker_pool *pool) {
  for (uint32_t n = 0; n < pool->size; n++) {
    struct weft_incumbent *own = &pool->workers[n].search.incumbent;
    pool->incumbent->evaluated += own->evaluated;
    pool->incumbent->moves += own->moves;
    pool->incumbent->move_ns += own->move_ns;
    own->evaluated = own->moves = own->move_ns = 0;
    weft_incumbent_take(pool->incumbent, own);
  }
  for (uint32_t n = 0; n < pool->size; n++) {
    weft_incumbent_take(&pool->workers[n].search.incumbent, pool->incumbent);
  }
}

static uint64_t states_for(const struct worker_pool *pool, double share) {
  return (uint64_t)(share * (double)pool->task->work) / WEFT_STATE_WORK;
}

/* A better bound may prove that the incumbent is optimal; the time windows that it leaves open
 * lead to new orders. */
static enum weft_status use_windows(struct worker_pool *pool, struct weft_error *error) {
  const struct shares *shares = shares_of(pool->incumbent->problem);
  if (!weft_incumbent_is_optimal(pool->incumbent) &&
      !weft_search_control_is_cancelled(pool->control) &&
      weft_search_control_spend(pool->control, shares->windows * (double)pool->task->work)) {
    WEFT_TRY(weft_construct_windows(pool->incumbent, states_for(pool, shares->windows), error));
  }
  const double guided = shares->guided * (double)pool->task->work;
  if (guided > 0 && !weft_incumbent_is_optimal(pool->incumbent) &&
      !weft_search_control_is_cancelled(pool->control) &&
      weft_search_control_spend(pool->control, guided)) {
    (void)weft_construct_guided(pool->incumbent, (uint64_t)guided);
  }
  for (uint32_t n = 0; n < pool->size; n++) {
    pool->workers[n].search.incumbent.bound = pool->incumbent->bound;
  }
  share_best(pool);
  return WEFT_OK;
}

static void sharpen(struct worker_pool *pool) {
  struct weft_incumbent *incumbent = pool->incumbent;
  const double share = shares_of(incumbent->problem)->sharpening;
  if (!weft_incumbent_is_optimal(incumbent) && !weft_search_control_is_cancelled(pool->control) &&
      weft_search_control_spend(pool->control, share * (double)pool->task->work)) {
    incumbent->bound =
        weft_problem_sharpen(incumbent->problem, incumbent->problem->objective, incumbent->bound,
                             incumbent->value, states_for(pool, share));
  }
}

/* Work left to the worker that has done most. */
static uint64_t work_left(const struct worker_pool *pool) {
  const struct shares *shares = shares_of(pool->incumbent->problem);
  uint64_t most = 0;
  for (uint32_t n = 0; n < pool->size; n++) {
    const uint64_t own = pool->workers[n].search.work;
    most = own > most ? own : most;
  }
  const uint64_t all = (uint64_t)((double)pool->task->work *
                                  (1 - shares->windows - shares->guided - shares->sharpening));
  return all > most + pool->work_before ? all - most - pool->work_before : 0;
}

static enum weft_status prepare(struct worker_pool *pool, struct weft_error *error) {
  for (uint32_t n = 0; n < pool->size && !pool->round->priority_search; n++) {
    WEFT_TRY(weft_local_search_prepare(&pool->workers[n].search, error));
  }
  return WEFT_OK;
}

static enum weft_status run_rounds(struct worker_pool *pool, struct weft_error *error) {
  const struct round_list list = rounds_of(pool->incumbent->problem, pool->task->work);
  const double all = (double)pool->task->work;
  const struct shares *shares = shares_of(pool->incumbent->problem);
  const double periodic = shares->periodic * all, scaled = shares->scaled * all;
  if (!weft_search_control_spend(pool->control, shares->beam * all)) {
    return WEFT_OK;
  }
  pool->work_before = weft_construct_beam(pool->incumbent, (uint64_t)(shares->beam * all));
  if (!weft_incumbent_is_optimal(pool->incumbent) &&
      weft_search_control_spend(pool->control, periodic)) {
    pool->work_before +=
        weft_construct_periodic(pool->incumbent, (uint64_t)periodic, pool->task->seed);
  }
  if ((pool->incumbent->problem->stages_per_rank > 1 || all >= SINGLE_SCALED_MIN) &&
      !weft_incumbent_is_optimal(pool->incumbent) &&
      weft_search_control_spend(pool->control, scaled)) {
    pool->work_before += weft_construct_scaled(pool->incumbent, (uint64_t)scaled, pool->task->seed);
  }
  share_best(pool);
  for (size_t n = 0; n < list.count; n++) {
    pool->round = &list.rounds[n];
    pool->amount = (uint64_t)((double)work_left(pool) * pool->round->share / (1 - pool->done));
    if (pool->amount == 0 || weft_incumbent_is_optimal(pool->incumbent) ||
        weft_search_control_is_cancelled(pool->control) ||
        !weft_search_control_spend(pool->control, (double)pool->amount)) {
      return WEFT_OK;
    }
    WEFT_TRY(prepare(pool, error));
    weft_worker_threads_run(pool->size, work, tick, pool);
    share_best(pool);
    pool->done += pool->round->share;
    if (n == 0) {
      WEFT_TRY(use_windows(pool, error));
    }
    report(pool, pool->done);
  }
  sharpen(pool);
  return WEFT_OK;
}

/* ---- The pool ---- */

static enum weft_status create_workers(struct worker_pool *pool, struct weft_error *error) {
  const struct weft_problem *problem = pool->incumbent->problem;
  const uint32_t wanted = pool->task->threads;
  pool->workers = weft_array_allocate_zero(problem->allocator, wanted, sizeof *pool->workers);
  if (pool->workers == NULL) {
    return weft_fail_memory(error, wanted * sizeof *pool->workers);
  }
  for (; pool->size < wanted; pool->size++) {
    struct worker *worker = &pool->workers[pool->size];
    worker->pool = pool;
    worker->number = pool->size;
    WEFT_TRY(weft_local_search_init(&worker->search, problem, pool->task->seed + pool->size,
                                    pool->control, pool->incumbent->bound, error));
  }
  return WEFT_OK;
}

static void stop_workers(struct worker_pool *pool) {
  for (uint32_t n = 0; n < pool->size; n++) {
    weft_local_search_finish(&pool->workers[n].search);
  }
  weft_array_free(pool->incumbent->problem->allocator, pool->workers, pool->task->threads,
                  sizeof *pool->workers);
}

enum weft_status weft_workers_improve(struct weft_incumbent *incumbent,
                                      const struct weft_worker_task *task,
                                      struct weft_search_control *control,
                                      struct weft_error *error) {
  assert(incumbent->value != WEFT_NEVER && task->threads > 0);
  struct worker_pool pool = {.incumbent = incumbent, .control = control, .task = task};
  enum weft_status status = create_workers(&pool, error);
  if (status == WEFT_OK) {
    status = run_rounds(&pool, error);
  }
  stop_workers(&pool);
  return status;
}
