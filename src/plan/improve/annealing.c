/* Simulated annealing over orders: single ops move within the sequence of their rank, mostly ops
 * on the critical path. */
#include <assert.h>
#include <math.h>
#include <time.h>

#include "plan/improve/worker.h"

/* Weight of the objective relative to the ranks' mean span, which guides the search on plateaus. */
enum { VALUE_WEIGHT = 64 };

/* Accepted moves between two updates of the critical path, and of the tails, which cost more. */
enum { CRITICAL_INTERVAL = 4, REFRESH_INTERVAL = 64, CRITICAL_MAX = 1 << 14 };

/* Nanoseconds of a typical core: to compute one op, and to draw a move. */
enum { OP_WORK = 15, MOVE_WORK = 200 };

/* One of this many moves splits or joins a backward, where both are allowed. */
enum { FLIP_INTERVAL = 4 };

/* Problems with more ops are not annealed: an evaluator takes a hundred bytes for each. */
enum { EVALUATOR_OPS_MAX = 1 << 22 };

/* The state of one call. */
struct anneal {
  uint64_t from;   /* evaluator.computed at the start */
  uint64_t before; /* worker.work at the start */
  uint64_t moves;  /* drawn */
  uint32_t kept;   /* accepted */
  double cost;
  double start_temperature, temperature; /* shares of the bound; ticks */
  bool hill_climbing;                    /* at temperature 0 */
};

/* A cycle of ranks that wait for each other goes over messages, so through forwards and backwards. */
static bool has_ops_without_time(const struct weft_problem *problem) {
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    if (stage->f == 0 || (stage->trains && ((problem->may_split && stage->i == 0) ||
                                            (problem->may_join && stage->b == 0)))) {
      return true;
    }
  }
  return false;
}

enum weft_status weft_worker_prepare(struct weft_worker *worker, struct weft_error *error) {
  assert(worker->incumbent.problem != NULL);
  const struct weft_problem *problem = worker->incumbent.problem;
  if (worker->has_evaluator || weft_problem_op_count(problem) > EVALUATOR_OPS_MAX) {
    return WEFT_OK;
  }
  worker->critical =
      weft_arena_allocate(&worker->incumbent.arena, CRITICAL_MAX, sizeof *worker->critical);
  WEFT_TRY(weft_evaluator_init(&worker->evaluator, problem, &worker->incumbent.arena, error));
  worker->may_miss_deadlocks = has_ops_without_time(problem);
  worker->has_evaluator = true;
  return WEFT_OK;
}

/* False: there is no move from there. */
static bool draw_move(struct weft_worker *worker, bool hill_climbing, struct weft_move *move) {
  static const uint32_t reaches[] = {1, 1, 4, 4, 12, WEFT_MOVE_MAX - 1};
  const struct weft_problem *problem = worker->incumbent.problem;
  const struct weft_evaluator *evaluator = &worker->evaluator;
  struct weft_random *random = &worker->random;
  const bool critical = hill_climbing || weft_random_below(random, 4) > 0;
  const uint32_t at = critical ? worker->critical[weft_random_below(random, worker->critical_count)]
                               : weft_random_below(random, weft_problem_op_count(problem));
  if (evaluator->mixes && weft_random_below(random, FLIP_INTERVAL) == 0) {
    *move = (struct weft_move){at, at};
    return true;
  }
  const uint32_t rank = problem->stages[evaluator->order.ops[at] / WEFT_ORDER_KINDS].rank;
  const uint32_t far = 1 + weft_random_below(random, reaches[weft_random_below(random, 6)]);
  const uint32_t how =
      weft_random_below(random, 4) | (hill_climbing ? 2 : 0); /* the critical op itself moves */
  const uint32_t other = how & 1 ? at + far : at - far;
  if (other < problem->begin[rank] || other >= problem->begin[rank + 1]) {
    return false;
  }
  *move = how & 2 ? (struct weft_move){at, other} : (struct weft_move){other, at};
  return true;
}

static double cost_of(const struct weft_evaluator *evaluator, bool hill_climbing) {
  const double mean = (double)evaluator->span_sum / evaluator->problem->rank_count;
  return (double)evaluator->value + (hill_climbing ? 0 : mean / (double)VALUE_WEIGHT);
}

static void update_critical(struct weft_worker *worker) {
  worker->critical_count =
      weft_evaluator_critical(&worker->evaluator, worker->critical, CRITICAL_MAX);
}

static void set_order(struct weft_worker *worker) {
  const bool is_set = weft_evaluator_set(&worker->evaluator, &worker->incumbent.best);
  assert(is_set);
  (void)is_set;
  update_critical(worker);
}

/* False when the order turns out to deadlock. */
static bool keep_best(struct weft_worker *worker) {
  const struct weft_evaluator *evaluator = &worker->evaluator;
  if (!weft_incumbent_is_beaten(&worker->incumbent, evaluator->value, evaluator->span_sum)) {
    return true;
  }
  if (worker->may_miss_deadlocks) {
    worker->work += weft_problem_op_count(evaluator->problem) * (uint64_t)OP_WORK;
    if (weft_order_evaluate(evaluator->problem, &worker->incumbent.clock, &evaluator->order,
                            WEFT_NEVER) != evaluator->value) {
      return false;
    }
  }
  weft_incumbent_offer(&worker->incumbent, &evaluator->order, evaluator->value,
                       evaluator->span_sum);
  return true;
}

static uint64_t work_done(const struct weft_worker *worker, const struct anneal *anneal) {
  return (worker->evaluator.computed - anneal->from) * OP_WORK + anneal->moves * MOVE_WORK +
         worker->work - anneal->before;
}

static void try_move(struct weft_worker *worker, struct anneal *anneal) {
  struct weft_evaluator *evaluator = &worker->evaluator;
  struct weft_move move;
  anneal->moves++;
  if (!draw_move(worker, anneal->hill_climbing, &move)) {
    return;
  }
  const double allowance = -anneal->temperature * log(weft_random_share(&worker->random) + 1e-300);
  if (!weft_evaluator_try(evaluator, &move, evaluator->value + (int64_t)allowance)) {
    return;
  }
  worker->incumbent.evaluated++;
  const double cost = cost_of(evaluator, anneal->hill_climbing);
  if (cost > anneal->cost + allowance) {
    weft_evaluator_undo(evaluator, &move);
    return;
  }
  anneal->cost = cost;
  const bool refresh = ++anneal->kept % REFRESH_INTERVAL == 0;
  if (!keep_best(worker) || (refresh && !weft_evaluator_refresh(evaluator))) {
    set_order(worker); /* the last moves led to a deadlock */
    anneal->cost = cost_of(evaluator, anneal->hill_climbing);
  } else if (anneal->hill_climbing || anneal->kept % CRITICAL_INTERVAL == 0) {
    update_critical(worker);
  }
}

static uint64_t thread_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

void weft_anneal(struct weft_worker *worker, uint64_t work, double temperature) {
  assert(temperature >= 0 && worker->incumbent.value != WEFT_NEVER);
  if (!worker->has_evaluator || weft_worker_is_done(worker)) {
    return;
  }
  const uint64_t begin = thread_ns();
  set_order(worker);
  struct anneal anneal = {.from = worker->evaluator.computed,
                          .before = worker->work,
                          .cost = cost_of(&worker->evaluator, temperature == 0),
                          .start_temperature = temperature,
                          .hill_climbing = temperature == 0};
  while (work_done(worker, &anneal) < work && !weft_worker_is_done(worker)) {
    const double left = 1 - (double)work_done(worker, &anneal) / (double)work;
    anneal.temperature = anneal.start_temperature * (double)worker->incumbent.bound * left * left;
    for (unsigned n = 0; n < 64; n++) {
      try_move(worker, &anneal);
    }
  }
  worker->work = anneal.before + work_done(worker, &anneal);
  worker->incumbent.moves += anneal.moves;
  worker->incumbent.move_ns += thread_ns() - begin;
}
