/* A thread per rank. Between steps the ranks meet, so that a step begins on all
 * of them at the same time, as in a simulation. Ranks that wait for each other do
 * not look at flags: a watcher tells them when a signal has come. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "cli/bench_clock.h"
#include "cli/execution.h"
#include "cli/interrupt.h"

/* ---- The watcher ---- */

enum { LOOK_EVERY_NS = 20 * 1000 * 1000, SECOND_NS = 1000 * 1000 * 1000 };

struct watcher {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool over; /* under the lock */
  struct weft_transport *transport;
};

static struct timespec next_look(void) {
  struct timespec at;
  (void)clock_gettime(CLOCK_REALTIME, &at);
  at.tv_nsec += LOOK_EVERY_NS;
  if (at.tv_nsec >= SECOND_NS) {
    at.tv_sec++;
    at.tv_nsec -= SECOND_NS;
  }
  return at;
}

static void tell_all(struct weft_transport *transport) {
  struct weft_failure failure = {.rank = UINT32_MAX, .error = {.status = WEFT_ERR_CANCELLED}};
  (void)snprintf(failure.error.message, sizeof failure.error.message, "stopped by %s",
                 weft_cli_signal_name(weft_cli_interrupt_signal()));
  transport->ops->fail(transport, &failure);
}

static void *watch(void *argument) {
  struct watcher *watcher = argument;
  (void)pthread_mutex_lock(&watcher->lock);
  while (!watcher->over && weft_cli_interrupt_signal() == 0) {
    const struct timespec at = next_look();
    (void)pthread_cond_timedwait(&watcher->changed, &watcher->lock, &at);
  }
  (void)pthread_mutex_unlock(&watcher->lock);
  if (weft_cli_interrupt_signal() != 0) {
    tell_all(watcher->transport);
  }
  return NULL;
}

static bool start_watcher(struct watcher *watcher, struct weft_transport *transport) {
  *watcher = (struct watcher){.transport = transport};
  (void)pthread_mutex_init(&watcher->lock, NULL);
  (void)pthread_cond_init(&watcher->changed, NULL);
  return pthread_create(&watcher->thread, NULL, watch, watcher) == 0;
}

static void end_watcher(struct watcher *watcher, bool started) {
  if (started) {
    (void)pthread_mutex_lock(&watcher->lock);
    watcher->over = true;
    (void)pthread_cond_signal(&watcher->changed);
    (void)pthread_mutex_unlock(&watcher->lock);
    (void)pthread_join(watcher->thread, NULL);
  }
  (void)pthread_cond_destroy(&watcher->changed);
  (void)pthread_mutex_destroy(&watcher->lock);
}

/* ---- A rank ---- */

/* Waits until all ranks are here. */
static enum weft_status meet(const struct weft_cli_execution *execution,
                             struct weft_transport *transport, struct weft_error *error) {
  const struct weft_transport_ops *ops = transport->ops;
  const unsigned char here = 1;
  unsigned char *met = &execution->met[(uint64_t)transport->rank * transport->rank_count];
  enum weft_status status;
  do {
    status = ops->progress(transport, error);
    if (status == WEFT_OK) {
      status = ops->exchange(transport, &here, met, sizeof here, error);
    }
    if (status == WEFT_IN_PROGRESS) {
      const enum weft_status waited = ops->wait(transport, WEFT_TIME_NEVER, error);
      status = waited < 0 ? waited : WEFT_IN_PROGRESS;
    }
  } while (status == WEFT_IN_PROGRESS);
  return status;
}

/* What rank 0 does while all others are at rest. */
static enum weft_status between_steps(struct weft_cli_execution *execution,
                                      struct weft_transport *transport, uint32_t step,
                                      struct weft_error *error) {
  enum weft_status status = meet(execution, transport, error);
  if (status != WEFT_OK) {
    return status;
  }
  if (transport->rank == 0) {
    execution->steps_done = step;
    weft_cli_execution_say(execution, step);
    if (execution->between != NULL) {
      execution->between(execution->between_context, step);
    }
  }
  return execution->between != NULL ? meet(execution, transport, error) : WEFT_OK;
}

static enum weft_status run_rank(void *context, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct weft_cli_execution *execution = context;
  const struct weft_batch batch = {.microbatch_count = execution->program->microbatch_count};
  const uint32_t rank = transport->rank;
  enum weft_status status = weft_cli_execution_join(execution, transport, error);
  for (uint32_t step = 0; step < execution->step_count && status == WEFT_OK; step++) {
    status = between_steps(execution, transport, step, error);
    if (status == WEFT_OK) {
      const uint64_t entered_ns = weft_cli_clock_ns();
      status = weft_pipeline_step(execution->pipelines[rank], &batch, NULL, error);
      weft_cli_execution_note(execution, rank, step, entered_ns);
    }
  }
  if (status == WEFT_OK) {
    status = between_steps(execution, transport, execution->step_count, error);
  }
  return status;
}

enum weft_status weft_cli_execute_threads(struct weft_cli_execution *execution,
                                          struct weft_error *error) {
  const struct weft_allocator *allocator = execution->cli->allocator;
  const uint32_t p = execution->program->rank_count;
  execution->met = allocator->reallocate(allocator->context, NULL, 0, (size_t)p * p);
  if (execution->met == NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
    return WEFT_ERR_MEMORY;
  }
  const enum weft_status status =
      weft_threads_create(execution->allocator, p, &execution->threads, error);
  if (status < 0) {
    return status;
  }
  struct watcher watcher;
  execution->first = weft_threads_endpoint(execution->threads, 0);
  const bool watched = start_watcher(&watcher, execution->first);
  const enum weft_status ended =
      weft_threads_run(execution->threads, NULL, run_rank, execution, error);
  end_watcher(&watcher, watched);
  return ended;
}
