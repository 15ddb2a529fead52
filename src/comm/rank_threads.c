/* A thread per rank, and the caller as their watchdog; see rank_threads.h. */
#include "comm/rank_threads.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <weft/ir.h>
#include <weft/support.h>

#include "comm/rank_status.h"
#include "comm/step_barrier.h"

enum { WATCH_NS = 100 * 1000 * 1000, NS_PER_S = 1000000000 };

struct rank_thread {
  struct rank_threads *threads;
  struct weft_transport *transport;
  uint32_t rank;
  bool started;  /* `thread` must be joined, */
  bool left;     /* unless it is left behind */
  bool returned; /* under the lock */
  pthread_t thread;
  uint64_t calls;    /* of stages' functions, as the watchdog last saw it */
  int64_t inside_ns; /* in the present one, at least */
};

/* Ranks that are left behind keep it. */
struct rank_threads {
  struct weft_rank_threads run;
  pthread_mutex_t lock;
  pthread_cond_t ended;
  uint32_t running; /* under the lock: ranks that have not returned and are not left behind */
  bool all_started; /* under the lock, which the caller has until it is known */
  struct rank_thread ranks[];
};

/* ---- Conditions ---- */

bool weft_condition_init(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  if (pthread_condattr_init(&attributes) != 0) {
    return false;
  }
  const bool made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                    pthread_cond_init(condition, &attributes) == 0;
  pthread_condattr_destroy(&attributes);
  return made;
}

bool weft_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, int64_t until) {
  assert(condition != NULL && lock != NULL);
  const struct timespec deadline = {.tv_sec = (time_t)(until / NS_PER_S),
                                    .tv_nsec = (long)(until % NS_PER_S)};
  return until == WEFT_TIME_NEVER ? pthread_cond_wait(condition, lock) == 0
                                  : pthread_cond_timedwait(condition, lock, &deadline) == 0;
}

/* ---- A rank ---- */

static void fail_world(const struct weft_rank_threads *run, const struct weft_failure *failure) {
  struct weft_transport *first = weft_comm_endpoint(run->world->comm, 0);
  first->ops->fail(first, failure);
}

static void end_rank(struct rank_thread *self) {
  struct rank_threads *threads = self->threads;
  if (threads->run.end != NULL) {
    threads->run.end(threads->run.world->comm, self->rank);
  }
  pthread_mutex_lock(&threads->lock);
  self->returned = true;
  threads->running -= !self->left;
  pthread_cond_signal(&threads->ended);
  pthread_mutex_unlock(&threads->lock);
}

/* Cleanup handler: the thread ends inside rank_main. */
static void rank_vanished(void *argument) {
  struct rank_thread *self = argument;
  const struct weft_rank_threads *run = &self->threads->run;
  struct weft_failure failure = {.rank = self->rank};
  (void)weft_fail(&failure.error, WEFT_ERR_PEER,
                  "return from rank_main instead of ending its thread",
                  "the thread of rank %" PRIu32 " ended without returning", self->rank);
  fail_world(run, &failure);
  end_rank(self);
}

static void *run_rank(void *argument) {
  struct rank_thread *self = argument;
  const struct weft_rank_threads *run = &self->threads->run;
  struct weft_error error = {.status = WEFT_OK};
  pthread_mutex_lock(&self->threads->lock);
  const bool runs = self->threads->all_started;
  pthread_mutex_unlock(&self->threads->lock);
  if (run->begin != NULL) {
    run->begin(run->world->comm, self->rank);
  }
  pthread_cleanup_push(rank_vanished, self);
  const enum weft_status status =
      runs ? run->rank_main(run->context, self->transport, &error) : WEFT_OK;
  if (status < 0) {
    const struct weft_failure failure = weft_comm_rank_failure(self->rank, status, &error);
    fail_world(run, &failure);
  }
  pthread_cleanup_pop(0);
  end_rank(self);
  return NULL;
}

static void start_failed(const struct rank_thread *self, int code) {
  const struct weft_rank_threads *run = &self->threads->run;
  struct weft_failure failure = {.rank = self->rank};
  char reason[128];
  if (strerror_r(code, reason, sizeof reason) != 0) {
    (void)snprintf(reason, sizeof reason, "error %d", code);
  }
  (void)weft_fail(&failure.error, WEFT_ERR_SYSTEM,
                  "the system allows no more threads, or has no memory for their stacks",
                  "cannot start a thread for rank %" PRIu32 " of %" PRIu32 ": %s", self->rank,
                  run->world->rank_count, reason);
  fail_world(run, &failure);
}

/* Rank 0 comes last. When one cannot be started the world has failed before any rank has begun,
 * and it and those after it are ended here. */
static void start_ranks(struct rank_threads *threads) {
  const uint32_t count = threads->run.world->rank_count;
  int code = 0;
  pthread_mutex_lock(&threads->lock);
  for (uint32_t k = 1; k <= count && code == 0; k++) {
    struct rank_thread *rank = &threads->ranks[k % count];
    code = pthread_create(&rank->thread, NULL, run_rank, rank);
    rank->started = code == 0;
    if (code != 0) {
      start_failed(rank, code);
    }
  }
  threads->all_started = code == 0;
  pthread_mutex_unlock(&threads->lock);
  for (uint32_t r = count; r-- > 0;) {
    if (!threads->ranks[r].started) {
      end_rank(&threads->ranks[r]);
    }
  }
}

/* ---- The watchdog ---- */

/* Whether a rank is in the same call of a function as long as it may be. */
static bool is_stuck(struct rank_thread *rank, int64_t elapsed) {
  const struct weft_rank_status *status = &rank->threads->run.world->ranks[rank->rank].status;
  const uint64_t calls = WEFT_STATUS_LOAD(status->calls);
  const int64_t limit = rank->threads->run.takes_turns ? rank->threads->run.stage_limit_ns
                                                       : WEFT_STATUS_LOAD(status->stall_limit);
  const bool is_same = calls % 2 == 1 && calls == rank->calls;
  rank->calls = calls;
  rank->inside_ns = is_same ? rank->inside_ns + elapsed : 0;
  return limit > 0 && rank->inside_ns >= limit;
}

/* "1F3 (stage 1, microbatch 3)" */
static void name_call(const struct weft_rank_status *status, char *out, size_t size) {
  char text[64];
  const struct weft_action wants = weft_action_unpack(WEFT_STATUS_LOAD(status->wants));
  const bool collects =
      wants.op != WEFT_OP_IDLE && WEFT_STATUS_LOAD(status->phase) == WEFT_PHASE_COMPUTE;
  const struct weft_action action =
      collects ? wants : weft_action_unpack(WEFT_STATUS_LOAD(status->action));
  if (action.op == WEFT_OP_IDLE) {
    (void)snprintf(out, size, "zero_grad, prepare or the program source");
  } else if (action.op == WEFT_OP_OVERLAP_F_B) {
    (void)snprintf(out, size, "%s", weft_op_info((enum weft_op)action.op)->text);
  } else {
    const bool has_microbatch = weft_op_info((enum weft_op)action.op)->kind == WEFT_KIND_COMPUTE;
    const int used =
        snprintf(out, size, "%s (stage %u", weft_action_format(&action, text, sizeof text),
                 (unsigned)action.stage);
    (void)snprintf(out + used, size - (size_t)used, has_microbatch ? ", microbatch %u)" : ")",
                   (unsigned)action.microbatch);
  }
}

static void fail_stuck(const struct rank_thread *rank) {
  const struct weft_rank_threads *run = &rank->threads->run;
  struct weft_failure failure = {.rank = rank->rank};
  const struct weft_rank_status *status = &run->world->ranks[rank->rank].status;
  char call[128], gpu[40] = "";
  name_call(status, call, sizeof call);
  if ((WEFT_STATUS_LOAD(status->flags) & WEFT_RANK_HAS_GPU) != 0) {
    (void)snprintf(gpu, sizeof gpu, " with GPU %" PRIu64, WEFT_STATUS_LOAD(status->gpu));
  }
  (void)weft_fail(&failure.error, WEFT_ERR_STALLED,
                  "look at that function of the stage; if it only takes long, a larger stall limit "
                  "(on loopback stage_limit_ns) gives it time. Its thread still runs",
                  "rank %" PRIu32 "%s has been in %s for %.1f s and does not return", rank->rank,
                  gpu, call, (double)rank->inside_ns / 1e9);
  fail_world(run, &failure);
}

void weft_rank_status_stop(const struct weft_rank_status *status) {
  while ((WEFT_STATUS_LOAD(status->flags) & WEFT_RANK_LEFT_BEHIND) != 0) {
    (void)pause();
  }
}

/* It is not waited for any more. Where ranks take turns, it has the turn, and the others wait for
 * it forever. */
static void leave_behind(struct rank_threads *threads, uint32_t stuck) {
  if (threads->run.barrier != NULL) { /* the leader is stuck in its call */
    (void)__atomic_fetch_or(&threads->run.world->ranks[stuck].status.flags, WEFT_RANK_LEFT_BEHIND,
                            __ATOMIC_SEQ_CST);
    stuck = weft_step_barrier_abandon_leader(threads->run.barrier, stuck);
  }
  for (uint32_t r = 0; r < threads->run.world->rank_count; r++) {
    struct rank_thread *rank = &threads->ranks[r];
    if ((r == stuck || threads->run.takes_turns) && !rank->returned && !rank->left) {
      (void)__atomic_fetch_or(&threads->run.world->ranks[r].status.flags, WEFT_RANK_LEFT_BEHIND,
                              __ATOMIC_SEQ_CST);
      rank->left = true;
      threads->running--;
      threads->run.world->comm->stuck_ranks++;
    }
  }
}

/* Waits for the ranks. A moment counts only as far as this thread ran in it: not while the
 * process was stopped, or in a debugger. */
static void watch_ranks(struct rank_threads *threads) {
  int64_t before = weft_clock_ns();
  pthread_mutex_lock(&threads->lock);
  while (threads->running > 0) {
    (void)weft_condition_wait(&threads->ended, &threads->lock, before + WATCH_NS);
    const int64_t now = weft_clock_ns();
    const int64_t elapsed = now - before < 2 * WATCH_NS ? now - before : 2 * WATCH_NS;
    if (elapsed < WATCH_NS) {
      continue; /* a rank has ended */
    }
    before = now;
    for (uint32_t r = 0; r < threads->run.world->rank_count; r++) {
      struct rank_thread *rank = &threads->ranks[r];
      if (!rank->returned && !rank->left && is_stuck(rank, elapsed)) {
        fail_stuck(rank); /* unless the world has failed already */
        leave_behind(threads, r);
      }
    }
  }
  pthread_mutex_unlock(&threads->lock);
}

/* ---- The run ---- */

static void finish_ranks(struct rank_threads *threads) {
  const uint32_t count = threads->run.world->rank_count;
  for (uint32_t r = 0; r < count; r++) {
    struct rank_thread *rank = &threads->ranks[r];
    if (rank->started && rank->left) {
      (void)pthread_detach(rank->thread);
    } else if (rank->started) {
      (void)pthread_join(rank->thread, NULL);
    }
  }
  if (threads->run.world->comm->stuck_ranks == 0) {
    pthread_cond_destroy(&threads->ended);
    pthread_mutex_destroy(&threads->lock);
    weft_array_free(threads->run.world->allocator, threads,
                    sizeof *threads + count * sizeof threads->ranks[0], 1);
  }
}

enum weft_status weft_rank_threads_run(const struct weft_rank_threads *run,
                                       struct weft_error *error) {
  assert(run->world != NULL && run->rank_main != NULL && run->world->comm != NULL);
  const uint32_t count = run->world->rank_count;
  const size_t size = sizeof(struct rank_threads) + count * sizeof(struct rank_thread);
  struct rank_threads *threads = weft_array_allocate_zero(run->world->allocator, size, 1);
  if (threads == NULL || !weft_condition_init(&threads->ended)) {
    weft_array_free(run->world->allocator, threads, size, 1);
    return weft_fail_memory(error, size);
  }
  (void)pthread_mutex_init(&threads->lock, NULL);
  threads->run = *run;
  threads->running = count;
  for (uint32_t r = 0; r < count; r++) {
    threads->ranks[r].threads = threads;
    threads->ranks[r].rank = r;
    threads->ranks[r].transport =
        run->endpoints != NULL ? run->endpoints[r] : weft_comm_endpoint(run->world->comm, r);
  }
  int before;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); /* the ranks use `run` */
  start_ranks(threads);
  watch_ranks(threads);
  finish_ranks(threads);
  (void)pthread_setcancelstate(before, NULL);
  return weft_world_check(run->world, error);
}
