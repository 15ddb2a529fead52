/* Rounds of local search on several threads, with the constructors and bounds of a chain between
 * them. */
#include <assert.h>
#include <math.h>

#include <weft/support.h>

#include "plan/bounds/chain_bound.h"
#include "plan/construct/constructors.h"
#include "plan/improve/improve.h"
#include "plan/improve/worker.h"
#include "plan/improve/worker_threads.h"

/* ---- Rounds ---- */

struct round {
  bool windows;       /* come after it */
  bool rules;         /* else annealing */
  double share;       /* of the work */
  double temperature; /* at the start, as a share of the bound */
};

/* One stage per rank: priority rules find good orders, which annealing improves. */
static const struct round rounds_single[] = {
    {.rules = true, .share = 0.35, .windows = true},
    {.share = 0.25, .temperature = 1e-3},
    {.share = 0.2, .temperature = 6e-4},
    {.share = 0.2, .temperature = 3e-4},
};
/* Many ops, and little work for them: rules do more with it. */
enum { MANY_OPS = 1 << 13 };
static const struct round rounds_large_single[] = {
    {.rules = true, .share = 0.65, .windows = true},
    {.share = 0.15, .temperature = 1e-3},
    {.share = 0.1, .temperature = 6e-4},
    {.share = 0.1, .temperature = 3e-4},
};
/* Several stages per rank: the orders of the constructors are close to the best. */
static const struct round rounds_several[] = {
    {.share = 0.1, .temperature = 0, .windows = true},
    {.share = 0.3, .temperature = 1e-3},
    {.share = 0.25, .temperature = 6e-4},
    {.share = 0.25, .temperature = 3e-4},
    {.share = 0.1, .temperature = 0},
};
/* Of small problems, whose minima are deep, with what the bound has left over. */
static const struct round round_small = {.share = 1, .temperature = 1e-2};
/* Little work for many ops: a high temperature would do damage that there is no time to repair. Short
 * rounds, as the last one that fits into the effort is the end. */
static const struct round rounds_large[] = {
    {.share = 0.1, .temperature = 0, .windows = true},
    {.share = 0.15, .temperature = 0},
    {.share = 0.15, .temperature = 0},
    {.share = 0.15, .temperature = 0},
    {.share = 0.15, .temperature = 0},
    {.share = 0.2, .temperature = 1e-4},
    {.share = 0.1, .temperature = 0},
};
enum { LITTLE_WORK = 100000 }; /* for each op, in nanoseconds */

/* The same of graphs, which have no constructors: rules find their orders. */
static const struct round rounds_graph[] = {{.rules = true, .share = 0.3},
                                            {.share = 0.25, .temperature = 2e-3},
                                            {.share = 0.2, .temperature = 1e-3},
                                            {.share = 0.15, .temperature = 3e-4},
                                            {.share = 0.1}};
static const struct round rounds_large_graph[] = {
    {.rules = true, .share = 0.6}, {.share = 0.25}, {.share = 0.15, .temperature = 1e-4}};
enum { LITTLE_GRAPH_WORK = 30000 };

/* ---- Courses ---- */

/* Shares of the work: a beam search, periodic and scaled orders before the first round; a better
 * bound, orders from its time windows, and beam searches guided by them, between rounds; and once
 * more a better bound after the last. What they leave over is for the rounds. */
struct shares {
  double beam, periodic, scaled, windows, guided, sharpening;
};
static const struct shares shares_single = {0.02, 0.05, 0.1, 0.2, 0, 0.2}; /* one stage per rank */
static const struct shares shares_small = {0.1, 0.15, 0.05, 0.15, 0.25, 0.1};
static const struct shares shares_large = {0.1, 0.1, 0.25, 0.15, 0, 0.1};
enum { SMALL = 1024 }; /* ops */
/* With one stage per rank, priority rules are better than scaled orders until they come to an end. */
#define SINGLE_SCALED_MIN 9e8

/* Nanoseconds of a typical core for each op that improving must have to be worth it. */
enum { CHAIN_OP_WORK = 30, GRAPH_OP_WORK = 200 };

/* What is done to improve an order: a graph without shares has neither constructors nor bounds
 * between its rounds. */
struct course {
  struct shares shares;
  const struct round *rounds;
  size_t count;
  const struct round *last; /* one more, with what the bounds did not need; NULL: none */
  double op_work;
  bool whole_grid; /* of rules, even if no work is left after it */
};

static struct course course_of(const struct weft_problem *problem, uint64_t work) {
#define ROUNDS(list) .rounds = (list), .count = WEFT_ARRAY_LENGTH(list)
  const uint64_t ops = weft_problem_op_count(problem);
  if (problem->stages_per_rank == 0) {
    return work / LITTLE_GRAPH_WORK < ops
               ? (struct course){ROUNDS(rounds_large_graph), .op_work = GRAPH_OP_WORK}
               : (struct course){ROUNDS(rounds_graph), .op_work = GRAPH_OP_WORK};
  }
  const bool is_single = problem->stages_per_rank == 1, is_large = work / LITTLE_WORK < ops;
  const bool is_small = weft_problem_timed_op_count(problem) <= SMALL;
  struct course course = is_single  ? is_large && ops > MANY_OPS
                                          ? (struct course){ROUNDS(rounds_large_single)}
                                          : (struct course){ROUNDS(rounds_single)}
                          : is_large ? (struct course){ROUNDS(rounds_large)}
                                    : (struct course){ROUNDS(rounds_several)};
#undef ROUNDS
  course.shares = is_small ? shares_small : is_single ? shares_single : shares_large;
  course.last = is_single               ? &course.rounds[course.count - 1]
                : is_small && !is_large ? &round_small
                                        : &course.rounds[1];
  course.op_work = CHAIN_OP_WORK;
  course.whole_grid = true;
  return course;
}

double weft_improve_least_work(const struct weft_problem *problem) {
  assert(problem->stage_count > 0);
  return course_of(problem, 0).op_work * (double)weft_problem_timed_op_count(problem);
}

/* ---- Threads ---- */

struct pool {
  struct weft_incumbent *incumbent;
  struct weft_search_control *control;
  const struct weft_worker_task *task;
  struct course course;
  struct weft_worker *workers;
  uint32_t size;
  const struct round *round;
  uint64_t amount;    /* of work, in this round */
  uint64_t step_work; /* done by steps between rounds */
  uint64_t reserved;  /* for those to come between rounds */
  double done;        /* share of the rounds that is complete */
};

/* Large problems need a lower temperature, as their critical paths are longer. The best one is
 * not known, so workers differ. */
static double temperature_of(const struct pool *pool, uint32_t number) {
  const struct weft_problem *problem = pool->incumbent->problem;
  const double ops = weft_problem_op_count(problem);
  const double temperature = pool->round->temperature * (number % 2 == 0 ? 1.25 : 0.5);
  return problem->stages_per_rank == 1 ? temperature * sqrt(900 / ops) : temperature;
}

static void work(void *context, uint32_t number) {
  struct pool *pool = context;
  if (!pool->round->rules) {
    weft_anneal(&pool->workers[number], pool->amount, temperature_of(pool, number));
    return;
  }
  weft_rule_search(&pool->workers[number], pool->amount,
                   pool->course.whole_grid ? pool->task->work : pool->amount / 2, number,
                   pool->size);
}

static void tick(void *context) {
  const struct pool *pool = context;
  const struct weft_incumbent *incumbent = pool->incumbent;
  const double ticks = incumbent->problem->ticks_per_unit;
  weft_search_control_report(pool->control, (double)incumbent->value / ticks,
                             (double)incumbent->bound / ticks, pool->done, incumbent->evaluated);
}

/* ---- Between rounds ---- */

/* All workers continue from the best order of all. */
static void share_best(struct pool *pool) {
  struct weft_incumbent *incumbent = pool->incumbent;
  for (uint32_t n = 0; n < pool->size; n++) {
    weft_incumbent_collect(incumbent, &pool->workers[n].incumbent);
  }
  for (uint32_t n = 0; n < pool->size; n++) {
    struct weft_incumbent *own = &pool->workers[n].incumbent;
    own->bound = incumbent->bound;
    weft_incumbent_offer(own, &incumbent->best, incumbent->value, incumbent->span_sum);
  }
}

static bool is_over(const struct pool *pool) {
  return weft_incumbent_is_optimal(pool->incumbent) ||
         weft_search_control_is_cancelled(pool->control);
}

static uint64_t work_of(const struct pool *pool, double share) {
  return (uint64_t)(share * (double)pool->task->work);
}

/* Whether a step takes place; then its work is taken from the budget. */
static bool begin_step(const struct pool *pool, double share) {
  return share > 0 && !is_over(pool) &&
         weft_search_control_spend(pool->control, (double)work_of(pool, share));
}

/* What a step has not needed is for the rounds that follow. */
static void end_step(struct pool *pool, double share, uint64_t done) {
  const uint64_t all = work_of(pool, share);
  pool->step_work += done;
  weft_search_control_return(pool->control, (double)(all > done ? all - done : 0));
}

/* Orders of constructors that take much work; scaled ones need it. */
static void construct(struct pool *pool) {
  struct weft_incumbent *incumbent = pool->incumbent;
  const struct weft_problem *problem = incumbent->problem;
  const struct shares *shares = &pool->course.shares;
  const uint64_t seed = pool->task->seed;
  if (begin_step(pool, shares->beam)) {
    end_step(pool, shares->beam, weft_construct_beam(incumbent, work_of(pool, shares->beam)));
  }
  if (begin_step(pool, shares->periodic)) {
    end_step(pool, shares->periodic,
             weft_construct_periodic(incumbent, work_of(pool, shares->periodic), seed));
  }
  if ((problem->stages_per_rank > 1 || (double)pool->task->work >= SINGLE_SCALED_MIN) &&
      begin_step(pool, shares->scaled)) {
    end_step(pool, shares->scaled,
             weft_construct_scaled(incumbent, work_of(pool, shares->scaled), seed));
  }
}

/* A better bound may prove that the incumbent is optimal; the time windows that it leaves open
 * lead to new orders. */
static void use_windows(struct pool *pool) {
  const struct shares *shares = &pool->course.shares;
  if (begin_step(pool, shares->windows)) {
    uint64_t states = work_of(pool, shares->windows) / WEFT_STATE_WORK;
    weft_construct_windows(pool->incumbent, &states);
    end_step(pool, shares->windows, states * WEFT_STATE_WORK);
  }
  if (begin_step(pool, shares->guided)) {
    end_step(pool, shares->guided,
             weft_construct_guided(pool->incumbent, work_of(pool, shares->guided)));
  }
  const uint64_t reserved = work_of(pool, shares->windows) + work_of(pool, shares->guided);
  assert(reserved <= pool->reserved);
  pool->reserved -= reserved;
  share_best(pool);
}

static void sharpen(struct pool *pool) {
  struct weft_incumbent *incumbent = pool->incumbent;
  const double share = pool->course.shares.sharpening;
  if (begin_step(pool, share)) {
    uint64_t states = work_of(pool, share) / WEFT_STATE_WORK;
    incumbent->bound =
        weft_chain_sharpen(incumbent->problem, incumbent->bound, incumbent->value, &states);
    end_step(pool, share, states * WEFT_STATE_WORK);
  }
  assert(work_of(pool, share) <= pool->reserved);
  pool->reserved -= work_of(pool, share);
}

/* Work left to the worker that has done most. */
static uint64_t work_left(const struct pool *pool) {
  uint64_t most = 0;
  for (uint32_t n = 0; n < pool->size; n++) {
    const uint64_t own = pool->workers[n].work;
    most = own > most ? own : most;
  }
  const uint64_t done = most + pool->step_work + pool->reserved;
  return pool->task->work > done ? pool->task->work - done : 0;
}

/* Does a round with a share of the work that is left. False: the search is over. */
static enum weft_status run_round(struct pool *pool, const struct round *round, double share,
                                  bool *goes_on, struct weft_error *error) {
  assert(round != NULL && share > 0);
  pool->round = round;
  pool->amount = (uint64_t)((double)work_left(pool) * share);
  *goes_on = pool->amount > 0 && !is_over(pool) &&
             weft_search_control_spend(pool->control, (double)pool->amount);
  if (!*goes_on) {
    return WEFT_OK;
  }
  for (uint32_t n = 0; n < pool->size && !round->rules; n++) {
    WEFT_TRY(weft_worker_prepare(&pool->workers[n], error));
  }
  weft_worker_threads_run(pool->size, work, tick, pool);
  share_best(pool);
  return WEFT_OK;
}

static enum weft_status run_rounds(struct pool *pool, struct weft_error *error) {
  const struct course *course = &pool->course;
  const struct shares *shares = &course->shares;
  bool goes_on = true;
  pool->reserved = work_of(pool, shares->windows) + work_of(pool, shares->guided) +
                   work_of(pool, shares->sharpening);
  construct(pool);
  share_best(pool);
  for (size_t n = 0; n < course->count; n++) {
    const struct round *round = &course->rounds[n];
    WEFT_TRY(run_round(pool, round, round->share / (1 - pool->done), &goes_on, error));
    if (!goes_on) {
      return WEFT_OK;
    }
    pool->done += round->share;
    assert(pool->done < 1 + 1e-9);
    if (round->windows) {
      use_windows(pool);
    }
    tick(pool);
  }
  sharpen(pool);
  return course->last != NULL ? run_round(pool, course->last, 1, &goes_on, error) : WEFT_OK;
}

/* ---- The pool ---- */

static enum weft_status run_pool(struct pool *pool, struct weft_error *error) {
  const struct weft_problem *problem = pool->incumbent->problem;
  const uint32_t wanted = pool->task->threads;
  enum weft_status status = WEFT_OK;
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  pool->workers = weft_arena_allocate(&arena, wanted, sizeof *pool->workers);
  WEFT_TRY(weft_arena_status(&arena, error));
  while (pool->size < wanted && status == WEFT_OK) {
    status = weft_worker_init(&pool->workers[pool->size], problem, pool->task->seed + pool->size,
                              pool->incumbent->bound, pool->control, error);
    pool->size++;
  }
  if (status == WEFT_OK) {
    status = run_rounds(pool, error);
  }
  for (uint32_t n = 0; n < pool->size; n++) {
    weft_worker_finish(&pool->workers[n]);
  }
  return status;
}

/* Where no backward is split, W take no time, and moves leave them anywhere: they start over right
 * after their backwards. From the end, what is written never exceeds what is read. */
static void gather_weights(struct weft_incumbent *incumbent) {
  const struct weft_problem *problem = incumbent->problem;
  uint32_t *ops = incumbent->best.ops;
  for (uint32_t r = 0; !problem->may_split && r < problem->rank_count; r++) {
    uint32_t to = problem->begin[r + 1];
    for (uint32_t n = to; n-- > problem->begin[r];) {
      const uint32_t op = ops[n], kind = op % WEFT_ORDER_KINDS;
      if (kind == WEFT_KIND_I) {
        ops[--to] = op + 1;
      }
      if (kind != WEFT_KIND_W) {
        ops[--to] = op;
      }
    }
  }
}

enum weft_status weft_improve(struct weft_incumbent *incumbent, const struct weft_worker_task *task,
                              struct weft_search_control *control, struct weft_error *error) {
  assert(incumbent->value != WEFT_NEVER && task->threads > 0);
  gather_weights(incumbent);
  struct pool pool = {.incumbent = incumbent,
                      .control = control,
                      .task = task,
                      .course = course_of(incumbent->problem, task->work)};
  return run_pool(&pool, error);
}
