/* Runs a round of work on threads, and keeps the calling thread reporting. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "plan/improve/worker_threads.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>

/* How often the calling thread reports progress. */
#define TICK_NANOSECONDS 20000000L

enum { WORKERS_MAX = 256 };

uint32_t weft_worker_count(uint32_t asked) {
  cpu_set_t cores;
  if (asked == 0 && sched_getaffinity(0, sizeof cores, &cores) == 0) {
    asked = (uint32_t)CPU_COUNT(&cores);
  }
  return asked < 1 ? 1 : asked > WORKERS_MAX ? WORKERS_MAX : asked;
}

struct thread_round {
  void (*work)(void *context, uint32_t n);
  void *context;
  pthread_mutex_t lock;
  pthread_cond_t ended;
  uint32_t working; /* under lock */
};

struct thread_task {
  struct thread_round *round;
  uint32_t number;
  pthread_t thread;
  bool started;
};

static void *work(void *argument) {
  const struct thread_task *task = argument;
  struct thread_round *round = task->round;
  round->work(round->context, task->number);
  (void)pthread_mutex_lock(&round->lock);
  round->working--;
  (void)pthread_cond_signal(&round->ended);
  (void)pthread_mutex_unlock(&round->lock);
  return NULL;
}

static void wait_for_all(struct thread_round *round, void (*tick)(void *context)) {
  (void)pthread_mutex_lock(&round->lock);
  while (round->working > 0) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_NANOSECONDS;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (pthread_cond_timedwait(&round->ended, &round->lock, &until) == ETIMEDOUT) {
      (void)pthread_mutex_unlock(&round->lock);
      tick(round->context);
      (void)pthread_mutex_lock(&round->lock);
    }
  }
  (void)pthread_mutex_unlock(&round->lock);
}

void weft_worker_threads_run(uint32_t count, void (*run)(void *context, uint32_t n),
                             void (*tick)(void *context), void *context) {
  assert(count <= WORKERS_MAX);
  struct thread_round round = {.work = run, .context = context, .working = count};
  struct thread_task tasks[WORKERS_MAX];
  pthread_condattr_t clock;
  (void)pthread_condattr_init(&clock);
  (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  (void)pthread_mutex_init(&round.lock, NULL);
  (void)pthread_cond_init(&round.ended, &clock);
  (void)pthread_condattr_destroy(&clock);
  for (uint32_t n = 0; n < count; n++) {
    tasks[n] = (struct thread_task){.round = &round, .number = n};
    tasks[n].started = pthread_create(&tasks[n].thread, NULL, work, &tasks[n]) == 0;
  }
  for (uint32_t n = 0; n < count; n++) {
    if (!tasks[n].started) {
      (void)work(&tasks[n]);
    }
  }
  wait_for_all(&round, tick);
  for (uint32_t n = 0; n < count; n++) {
    if (tasks[n].started) {
      (void)pthread_join(tasks[n].thread, NULL);
    }
  }
  (void)pthread_cond_destroy(&round.ended);
  (void)pthread_mutex_destroy(&round.lock);
}
