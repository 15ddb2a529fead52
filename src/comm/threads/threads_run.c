/* A thread per rank, and what becomes of the world when one of them fails or
 * just ends. The join waits for every rank: one that never comes back from a
 * stage's function cannot be ended from outside, and is waited for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "base/memory.h"
#include "comm/threads/threads.h"

struct rank_thread {
  struct threads_run *run;
  struct weft_transport *transport;
  uint32_t rank;
  bool started; /* `thread` is to be joined */
  pthread_t thread;
};

struct threads_run {
  struct weft_threads *threads;
  enum weft_status (*rank_main)(void *context, struct weft_transport *transport,
                                struct weft_error *error);
  void *context;
  struct rank_thread *ranks; /* [rank_count] */
};

/* Cleanup handler of a rank: its thread ends inside rank_main. */
static void rank_vanished(void *argument) {
  const struct rank_thread *self = argument;
  struct weft_failure failure = {.rank = self->rank};
  (void)weft_fail(&failure.error, WEFT_ERR_PEER,
                  "return from rank_main instead of ending its thread",
                  "the thread of rank %" PRIu32 " ended without returning", self->rank);
  weft_threads_fail(self->run->threads, &failure);
}

static void rank_failed(const struct rank_thread *self, enum weft_status status,
                        const struct weft_error *error) {
  struct weft_failure failure = {.rank = self->rank, .error = *error};
  if (error->status != status) { /* it did not say why */
    (void)weft_fail(&failure.error, status, "have rank_main fill in its error",
                    "rank %" PRIu32 " failed: %s", self->rank, weft_status_name(status));
  }
  weft_threads_fail(self->run->threads, &failure);
}

static void *run_rank(void *argument) {
  struct rank_thread *self = argument;
  struct weft_error error = {.status = WEFT_OK};
  pthread_cleanup_push(rank_vanished, self);
  const enum weft_status status = self->run->rank_main(self->run->context, self->transport, &error);
  if (status < 0) {
    rank_failed(self, status, &error);
  }
  pthread_cleanup_pop(0);
  return NULL;
}

static void start_failed(const struct rank_thread *self, int code) {
  struct weft_failure failure = {.rank = self->rank};
  char reason[128];
  if (strerror_r(code, reason, sizeof reason) != 0) {
    (void)snprintf(reason, sizeof reason, "error %d", code);
  }
  (void)weft_fail(&failure.error, WEFT_ERR_LIMIT,
                  "the system allows no more threads, or has no memory for their stacks",
                  "cannot start a thread for rank %" PRIu32 " of %" PRIu32 ": %s", self->rank,
                  self->run->threads->world.rank_count, reason);
  weft_threads_fail(self->run->threads, &failure);
}

/* All but rank 0. False: one could not be started, and the world has failed. */
static bool start_ranks(struct threads_run *run) {
  for (uint32_t r = 1; r < run->threads->world.rank_count; r++) {
    struct rank_thread *rank = &run->ranks[r];
    const int code = pthread_create(&rank->thread, NULL, run_rank, rank);
    if (code != 0) {
      start_failed(rank, code);
      return false;
    }
    rank->started = true;
  }
  return true;
}

/* Cleanup handler of the caller, who is rank 0: also when its thread ends. */
static void join_ranks(void *argument) {
  struct threads_run *run = argument;
  const uint32_t count = run->threads->world.rank_count;
  for (uint32_t r = 1; r < count; r++) {
    if (run->ranks[r].started) {
      (void)pthread_join(run->ranks[r].thread, NULL);
    }
  }
  weft_array_free(run->threads->allocator, run->ranks, count, sizeof *run->ranks);
}

enum weft_status weft_threads_run(struct weft_threads *world,
                                  struct weft_transport *const *endpoints,
                                  enum weft_status (*rank_main)(void *context,
                                                                struct weft_transport *transport,
                                                                struct weft_error *error),
                                  void *context, struct weft_error *error) {
  const uint32_t count = world->world.rank_count;
  struct threads_run run = {.threads = world, .rank_main = rank_main, .context = context};
  run.ranks = weft_array_allocate_zero(world->allocator, count, sizeof *run.ranks);
  if (run.ranks == NULL) {
    return weft_fail_memory(error, count * sizeof *run.ranks);
  }
  for (uint32_t r = 0; r < count; r++) {
    run.ranks[r].run = &run;
    run.ranks[r].rank = r;
    run.ranks[r].transport = endpoints != NULL ? endpoints[r] : weft_threads_endpoint(world, r);
  }
  pthread_cleanup_push(join_ranks, &run);
  if (start_ranks(&run)) {
    (void)run_rank(&run.ranks[0]);
  }
  pthread_cleanup_pop(1);
  return weft_world_check(&world->world, error);
}
