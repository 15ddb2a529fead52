/* Rounds of improvement on several threads. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "plan/improve/worker_pool.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include <weft/support.h>

#include "base/memory.h"
#include "plan/construct/window_orders.h"
#include "plan/improve/annealing.h"

/* How often the calling thread looks after the others. */
#define TICK_NANOSECONDS 20000000L

enum { CREW_MAX = 256 };

uint32_t weft_crew_size(uint32_t asked) {
  cpu_set_t cores;
  if (asked == 0 && sched_getaffinity(0, sizeof cores, &cores) == 0) {
    asked = (uint32_t)CPU_COUNT(&cores);
  }
  return asked < 1 ? 1 : asked > CREW_MAX ? CREW_MAX : asked;
}

/* Of the work, what goes into a better bound, and orders from its windows, after the first round;
 * and into a better bound once more after the last. */
#define WINDOWS 0.25
#define SHARPENING 0.1

/* Nanoseconds for a state that a bound looks at. */
enum { STATE_WORK = 50 };

/* ---- Rounds ---- */

struct round {
  bool policies; /* over policies, else over orders */
  double share;  /* of the work */
  double heat;   /* temperature at the start, as a share of the bound */
};

/* One stage per rank: policies lead to good orders, which annealing makes better. */
static const struct round rounds_single[] = {
    {.policies = true, .share = 0.35},
    {.share = 0.25, .heat = 1e-3},
    {.share = 0.2, .heat = 6e-4},
    {.share = 0.2, .heat = 3e-4},
};
/* Several: what the constructors make is close to the best. */
static const struct round rounds_several[] = {
    {.share = 0.1, .heat = 0},     {.share = 0.3, .heat = 1e-3}, {.share = 0.25, .heat = 6e-4},
    {.share = 0.25, .heat = 3e-4}, {.share = 0.1, .heat = 0},
};
/* Little work for many letters: heat would destroy more than there is time to repair. */
static const struct round rounds_large[] = {
    {.share = 0.7, .heat = 0},
    {.share = 0.2, .heat = 1e-4},
    {.share = 0.1, .heat = 0},
};
enum { LITTLE_WORK = 100000 }; /* for each of them, in nanoseconds */

struct plan {
  const struct round *rounds;
  size_t count;
};

static struct plan plan_of(const struct weft_problem *problem, uint64_t work) {
#define PLAN(list) ((struct plan){.rounds = (list), .count = sizeof(list) / sizeof(list)[0]})
  if (problem->stages_per_rank == 1) {
    return PLAN(rounds_single);
  }
  const uint64_t letters = (uint64_t)problem->rank_count * problem->word_size;
  return work / LITTLE_WORK < letters ? PLAN(rounds_large) : PLAN(rounds_several);
#undef PLAN
}

/* ---- Threads ---- */

struct member {
  struct crew *crew;
  struct weft_improver improver;
  uint32_t number;
  pthread_t thread;
};

struct crew {
  struct weft_pool *pool;
  struct weft_watch *watch;
  const struct weft_crew_task *task;
  struct member *members;
  uint32_t size;
  const struct round *round;
  uint64_t amount; /* of work, in this round */
  pthread_mutex_t lock;
  pthread_cond_t ended;
  uint32_t working; /* under lock */
};

/* Large problems want less, as their critical paths are longer; and it is never known what is
 * best, so members differ. */
static double heat_of(const struct member *member) {
  const struct weft_problem *problem = member->improver.pool.problem;
  const double letters = (double)problem->rank_count * problem->word_size;
  const double heat = member->crew->round->heat * (member->number % 2 == 0 ? 1.25 : 0.5);
  return problem->stages_per_rank == 1 ? heat * sqrt(900 / letters) : heat;
}

static void *work(void *argument) {
  struct member *member = argument;
  struct crew *crew = member->crew;
  if (crew->round->policies) { /* the grid first, even if nothing is left after it */
    weft_improve_policies(&member->improver, crew->amount, crew->task->work, member->number,
                          crew->size);
  } else {
    weft_improve_order(&member->improver, crew->amount, heat_of(member));
  }
  (void)pthread_mutex_lock(&crew->lock);
  crew->working--;
  (void)pthread_cond_signal(&crew->ended);
  (void)pthread_mutex_unlock(&crew->lock);
  return NULL;
}

static void tick(struct crew *crew, double done) {
  const struct weft_problem *problem = crew->pool->problem;
  (void)weft_watch_tick(crew->watch, (double)crew->pool->value / problem->ticks_per_unit,
                        (double)crew->pool->bound / problem->ticks_per_unit, done,
                        crew->pool->evaluated);
}

/* Looks after the crew until all have ended. */
static void wait_for_all(struct crew *crew, double done) {
  (void)pthread_mutex_lock(&crew->lock);
  while (crew->working > 0) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_NANOSECONDS;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (pthread_cond_timedwait(&crew->ended, &crew->lock, &until) == ETIMEDOUT) {
      (void)pthread_mutex_unlock(&crew->lock);
      tick(crew, done);
      (void)pthread_mutex_lock(&crew->lock);
    }
  }
  (void)pthread_mutex_unlock(&crew->lock);
}

/* Whoever cannot have a thread works on the calling one, after the others were started: the
 * result is the same. */
static void run_round(struct crew *crew, double done) {
  bool started[CREW_MAX] = {false};
  crew->working = crew->size;
  for (uint32_t n = 0; n < crew->size; n++) {
    struct member *member = &crew->members[n];
    started[n] = pthread_create(&member->thread, NULL, work, member) == 0;
  }
  for (uint32_t n = 0; n < crew->size; n++) {
    if (!started[n]) {
      (void)work(&crew->members[n]);
    }
  }
  wait_for_all(crew, done);
  for (uint32_t n = 0; n < crew->size; n++) {
    if (started[n]) {
      (void)pthread_join(crew->members[n].thread, NULL);
    }
  }
}

/* ---- Sharing ---- */

/* The best of all becomes the pool's, and everybody's. */
static void share_best(struct crew *crew) {
  for (uint32_t n = 0; n < crew->size; n++) {
    struct weft_pool *own = &crew->members[n].improver.pool;
    crew->pool->evaluated += own->evaluated;
    crew->pool->moves += crew->members[n].improver.moves;
    crew->pool->move_ns += crew->members[n].improver.move_ns;
    own->evaluated = 0;
    crew->members[n].improver.moves = 0;
    crew->members[n].improver.move_ns = 0;
    weft_pool_take(crew->pool, own);
  }
  for (uint32_t n = 0; n < crew->size; n++) {
    weft_pool_take(&crew->members[n].improver.pool, crew->pool);
  }
}

static uint64_t states_for(const struct crew *crew, double share) {
  return (uint64_t)(share * (double)crew->task->work) / STATE_WORK;
}

/* A better bound may prove that the best so far is the best there is; and what it leaves
 * open leads to orders. */
static enum weft_status look_through_windows(struct crew *crew, struct weft_error *error) {
  if (!weft_pool_is_optimal(crew->pool) && !weft_watch_halted(crew->watch)) {
    WEFT_TRY(weft_construct_windows(crew->pool, states_for(crew, WINDOWS), error));
  }
  for (uint32_t n = 0; n < crew->size; n++) {
    crew->members[n].improver.pool.bound = crew->pool->bound;
  }
  share_best(crew);
  return WEFT_OK;
}

static void sharpen(struct crew *crew) {
  struct weft_pool *pool = crew->pool;
  if (!weft_pool_is_optimal(pool) && !weft_watch_halted(crew->watch)) {
    pool->bound = weft_problem_sharpen(pool->problem, pool->problem->objective, pool->bound,
                                       pool->value, states_for(crew, SHARPENING));
  }
}

/* What the member that has worked most has left. */
static uint64_t work_left(const struct crew *crew) {
  uint64_t most = 0;
  for (uint32_t n = 0; n < crew->size; n++) {
    const uint64_t own = crew->members[n].improver.work;
    most = own > most ? own : most;
  }
  const uint64_t all = (uint64_t)((double)crew->task->work * (1 - WINDOWS - SHARPENING));
  return all > most ? all - most : 0;
}

static enum weft_status prepare(struct crew *crew, struct weft_error *error) {
  for (uint32_t n = 0; n < crew->size && !crew->round->policies; n++) {
    WEFT_TRY(weft_improver_prepare(&crew->members[n].improver, error));
  }
  return WEFT_OK;
}

static enum weft_status run_rounds(struct crew *crew, struct weft_error *error) {
  const struct plan plan = plan_of(crew->pool->problem, crew->task->work);
  double done = 0;
  share_best(crew);
  for (size_t n = 0; n < plan.count; n++) {
    crew->round = &plan.rounds[n];
    crew->amount = (uint64_t)((double)work_left(crew) * crew->round->share / (1 - done));
    if (crew->amount == 0 || weft_pool_is_optimal(crew->pool) || weft_watch_halted(crew->watch)) {
      return WEFT_OK;
    }
    WEFT_TRY(prepare(crew, error));
    run_round(crew, done);
    share_best(crew);
    done += crew->round->share;
    if (n == 0) {
      WEFT_TRY(look_through_windows(crew, error));
    }
    tick(crew, done);
  }
  sharpen(crew);
  return WEFT_OK;
}

/* ---- The whole ---- */

static enum weft_status gather(struct crew *crew, struct weft_error *error) {
  const struct weft_problem *problem = crew->pool->problem;
  const uint32_t wanted = crew->task->threads;
  crew->members = weft_array_allocate_zero(problem->allocator, wanted, sizeof *crew->members);
  if (crew->members == NULL) {
    return weft_fail_memory(error, wanted * sizeof *crew->members);
  }
  for (; crew->size < wanted; crew->size++) {
    struct member *member = &crew->members[crew->size];
    member->crew = crew;
    member->number = crew->size;
    WEFT_TRY(weft_improver_init(&member->improver, problem, crew->task->seed + crew->size,
                                crew->watch, crew->pool->bound, error));
  }
  return WEFT_OK;
}

static void dismiss(struct crew *crew) {
  for (uint32_t n = 0; n < crew->size; n++) {
    weft_improver_finish(&crew->members[n].improver);
  }
  weft_array_free(crew->pool->problem->allocator, crew->members, crew->task->threads,
                  sizeof *crew->members);
}

enum weft_status weft_crew_improve(struct weft_pool *pool, const struct weft_crew_task *task,
                                   struct weft_watch *watch, struct weft_error *error) {
  struct crew crew = {.pool = pool, .watch = watch, .task = task};
  pthread_condattr_t clock;
  (void)pthread_condattr_init(&clock);
  (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  (void)pthread_mutex_init(&crew.lock, NULL);
  (void)pthread_cond_init(&crew.ended, &clock);
  (void)pthread_condattr_destroy(&clock);
  enum weft_status status = gather(&crew, error);
  if (status == WEFT_OK) {
    status = run_rounds(&crew, error);
  }
  dismiss(&crew);
  (void)pthread_cond_destroy(&crew.ended);
  (void)pthread_mutex_destroy(&crew.lock);
  return status;
}
