/* A thread per rank; see rank_threads.h. */
#include "comm/rank_threads.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

struct rank_thread {
  const struct weft_rank_threads *run;
  struct weft_transport *transport;
  uint32_t rank;
  bool started; /* `thread` must be joined */
  pthread_t thread;
};

struct rank_threads {
  const struct weft_rank_threads *run;
  struct rank_thread *ranks; /* [rank_count] */
};

static void end_rank(const struct rank_thread *self) {
  if (self->run->end != NULL) {
    self->run->end(self->run->comm, self->rank);
  }
}

/* Cleanup handler: the thread ends inside rank_main. */
static void rank_vanished(void *argument) {
  const struct rank_thread *self = argument;
  struct weft_failure failure = {.rank = self->rank};
  (void)weft_fail(&failure.error, WEFT_ERR_PEER,
                  "return from rank_main instead of ending its thread",
                  "the thread of rank %" PRIu32 " ended without returning", self->rank);
  self->run->fail(self->run->comm, &failure);
  end_rank(self);
}

static void rank_failed(const struct rank_thread *self, enum weft_status status,
                        const struct weft_error *error) {
  struct weft_failure failure = {.rank = self->rank, .error = *error};
  if (error->status != status) { /* rank_main gave no reason */
    (void)weft_fail(&failure.error, status, "have rank_main fill in its error",
                    "rank %" PRIu32 " failed: %s", self->rank, weft_status_name(status));
  }
  self->run->fail(self->run->comm, &failure);
}

static void *run_rank(void *argument) {
  struct rank_thread *self = argument;
  struct weft_error error = {.status = WEFT_OK};
  if (self->run->begin != NULL) {
    self->run->begin(self->run->comm, self->rank);
  }
  pthread_cleanup_push(rank_vanished, self);
  const enum weft_status status = self->run->rank_main(self->run->context, self->transport, &error);
  if (status < 0) {
    rank_failed(self, status, &error);
  }
  pthread_cleanup_pop(0);
  end_rank(self);
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
                  self->run->world->rank_count, reason);
  self->run->fail(self->run->comm, &failure);
}

/* All but rank 0. False: one could not be started, and the world has failed. */
static bool start_ranks(const struct rank_threads *threads) {
  for (uint32_t r = 1; r < threads->run->world->rank_count; r++) {
    struct rank_thread *rank = &threads->ranks[r];
    const int code = pthread_create(&rank->thread, NULL, run_rank, rank);
    if (code != 0) {
      start_failed(rank, code);
      return false;
    }
    rank->started = true;
  }
  return true;
}

/* Cleanup handler of the caller, which is rank 0's thread: also when it ends in rank_main. */
static void join_ranks(void *argument) {
  const struct rank_threads *threads = argument;
  const struct weft_world *world = threads->run->world;
  for (uint32_t r = 1; r < world->rank_count; r++) {
    if (threads->ranks[r].started) {
      (void)pthread_join(threads->ranks[r].thread, NULL);
    }
  }
  weft_array_free(world->allocator, threads->ranks, world->rank_count, sizeof *threads->ranks);
}

enum weft_status weft_rank_threads_run(const struct weft_rank_threads *run,
                                       struct weft_error *error) {
  assert(run->world != NULL && run->rank_main != NULL && run->fail != NULL);
  const uint32_t count = run->world->rank_count;
  struct rank_threads threads = {.run = run};
  threads.ranks = weft_array_allocate_zero(run->world->allocator, count, sizeof *threads.ranks);
  if (threads.ranks == NULL) {
    return weft_fail_memory(error, count * sizeof *threads.ranks);
  }
  for (uint32_t r = 0; r < count; r++) {
    threads.ranks[r].run = run;
    threads.ranks[r].rank = r;
    threads.ranks[r].transport =
        run->endpoints != NULL ? run->endpoints[r] : weft_comm_endpoint(run->comm, r);
  }
  pthread_cleanup_push(join_ranks, &threads);
  if (start_ranks(&threads)) {
    (void)run_rank(&threads.ranks[0]);
  } else {
    for (uint32_t r = count; r-- > 0;) {
      if (!threads.ranks[r].started) {
        end_rank(&threads.ranks[r]);
      }
    }
  }
  pthread_cleanup_pop(1);
  return weft_world_check(run->world, error);
}
