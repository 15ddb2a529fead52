/* Progress and waiting. One MPI_Testsome polls all ends at once: each has its oldest request in
 * one list. Control messages and the peers' processes are checked now and then.
 *
 * MPI has no blocking wait for "anything", so wait() polls: without a pause at first where every
 * rank has a core, then yielding the core in between, then, unless a payload is being copied,
 * sleeping for longer and longer, so that ranks that outnumber the cores do not starve each
 * other. */
#define _GNU_SOURCE /* prctl, sched_getaffinity, syscall */
#include <assert.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm/mpi/driver/mpi_world.h"

enum {
  POLLS_PER_CLOCK = 8, /* reading it costs as much as a poll */
  POLLS_FORGET = 64,   /* a cheap poll is remembered for about so many */
  POLL_SHARE = 32,     /* polling takes one part in so many of a computation */
  POLL_PAUSE_NS_MAX = 1000 * WEFT_MPI_NS_PER_US,
  SPIN_NS = 100 * WEFT_MPI_NS_PER_US,
  YIELD_NS = 1000 * WEFT_MPI_NS_PER_US, /* where every rank has a core */
  YIELDS = 16,                          /* where not */
  SLEEP_NS_MIN = 10 * WEFT_MPI_NS_PER_US,
  SLEEP_NS_MAX = 100 * WEFT_MPI_NS_PER_US,
  THREAD_NS_MIN = 20 * WEFT_MPI_NS_PER_US,
  THREAD_NS_MAX = 100 * WEFT_MPI_NS_PER_US,
  THREAD_NS_IDLE = 1000 * WEFT_MPI_NS_PER_US
};

/* ---- polling ---- */

static void poll_exchange(struct weft_mpi_world *world) {
  int flag = 0;
  const int result = MPI_Test(&world->exchange, &flag, MPI_STATUS_IGNORE);
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "an exchange");
  }
  world->events += flag != 0;
}

/* Those that are done leave the list; `ready` then holds their ends. */
static void remove_ready(struct weft_mpi_world *world, uint32_t count) {
  assert(count <= world->active_count);
  uint32_t kept = 0;
  for (uint32_t k = 0; k < count; k++) {
    const int at = world->ready[k];
    world->active[at] = MPI_REQUEST_NULL;
    world->ready[k] = (int)world->active_end[at];
  }
  for (uint32_t k = 0; k < world->active_count; k++) {
    if (world->active[k] != MPI_REQUEST_NULL) {
      world->active[kept] = world->active[k];
      world->active_end[kept++] = world->active_end[k];
    }
  }
  world->active_count = kept;
}

static void end_request(struct weft_mpi_world *world, uint32_t index, int result,
                        MPI_Status *status) {
  struct weft_mpi_end *end = (struct weft_mpi_end *)weft_ends_at(&world->ends, index);
  assert(index < world->ends.count && end->listed);
  end->listed = false;
  weft_mpi_end_part(world, end, result, status);
  weft_mpi_end_advance(world, end);
}

static void end_ready(struct weft_mpi_world *world, uint32_t count, int result) {
  remove_ready(world, count);
  for (uint32_t k = 0; k < count; k++) {
    const int one = result == MPI_SUCCESS ? MPI_SUCCESS : world->statuses[k].MPI_ERROR;
    end_request(world, (uint32_t)world->ready[k], one, &world->statuses[k]);
  }
}

/* Testing one request is quicker than testing some. */
static void poll_message(struct weft_mpi_world *world) {
  int flag = 0;
  MPI_Status status;
  const int result = MPI_Test(&world->active[0], &flag, &status);
  if (flag || result != MPI_SUCCESS) {
    world->active_count = 0;
    end_request(world, world->active_end[0], result, &status);
  }
}

static void poll_messages(struct weft_mpi_world *world) {
  int count = 0;
  const int result =
      MPI_Testsome((int)world->active_count, world->active, &count, world->ready, world->statuses);
  int class = MPI_SUCCESS;
  if (result != MPI_SUCCESS) {
    (void)MPI_Error_class(result, &class);
    if (class != MPI_ERR_IN_STATUS) {
      weft_mpi_failure_of_mpi(world, result, "testing requests");
      return;
    }
  }
  if (count > 0) { /* MPI_UNDEFINED is negative */
    end_ready(world, (uint32_t)count, result);
  }
}

/* What is checked now and then only. */
static void poll_rarely(struct weft_mpi_world *world) {
  const int64_t now = weft_mpi_time(world);
  if (now >= world->next_control) {
    world->next_control = now + WEFT_MPI_CONTROL_US * WEFT_MPI_NS_PER_US;
    weft_mpi_control_poll(world);
  }
  if (now >= world->next_peers) {
    world->next_peers = now + WEFT_MPI_PEERS_MS * WEFT_MPI_NS_PER_MS;
    weft_mpi_peers_check(world);
  }
}

void weft_mpi_advance(struct weft_mpi_world *world) {
  if (world->active_count == 1) {
    poll_message(world);
  } else if (world->active_count > 0) {
    poll_messages(world);
  }
  if (world->collective_count > 0) {
    weft_mpi_groups_advance(world);
  }
  if (world->exchange != MPI_REQUEST_NULL) {
    poll_exchange(world);
  }
  if (world->polls++ % POLLS_PER_CLOCK == 0) {
    poll_rarely(world);
  }
}

enum weft_status weft_mpi_progress(struct weft_transport *transport, struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  world->tests = 0;
  if (world->found != world->seen && !__atomic_load_n(&world->has_failed, __ATOMIC_RELAXED)) {
    world->seen = world->found; /* wait() has just polled, and its caller comes for the result */
    return WEFT_OK;
  }
  weft_mpi_lock(world);
  weft_mpi_advance(world);
  world->seen = world->found = world->events;
  const enum weft_status status = weft_mpi_failure_check(world, error);
  weft_mpi_unlock(world);
  return status;
}

static bool is_idle(const struct weft_mpi_world *world) {
  return world->active_count == 0 && world->collective_count == 0 &&
         world->exchange == MPI_REQUEST_NULL;
}

/* Where MPI uses sockets, a poll may be a few system calls. What it costs when nothing has come
 * is the cheapest poll of late; one that moved a message does not count. So polling takes a small
 * share of a computation, and the messages wait for a time that is short compared with
 * the latency of such networks. */
static void record_poll(struct weft_mpi_world *world, int64_t began) {
  const int64_t now = weft_mpi_time(world);
  const int64_t took = now - began;
  const int64_t forgotten =
      world->poll_ns > 0 ? world->poll_ns + world->poll_ns / POLLS_FORGET + 1 : INT64_MAX;
  world->poll_ns = took < forgotten ? took : forgotten;
  const int64_t pause = world->poll_ns * POLL_SHARE;
  world->next_progress = now + (pause < POLL_PAUSE_NS_MAX ? pause : POLL_PAUSE_NS_MAX);
}

void weft_mpi_progress_from_compute(struct weft_transport *transport) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_lock(world);
  const int64_t now = weft_mpi_time(world);
  const bool polls = !is_idle(world);
  if (now >= world->next_progress) {
    weft_mpi_advance(world);
    if (polls) { /* else MPI was not called, and it took no time */
      record_poll(world, now);
    }
  }
  weft_mpi_unlock(world);
}

/* ---- waiting ---- */

struct backoff {
  int64_t began;
  int64_t sleep; /* the next one */
  int yields;
};

/* A payload is being copied between ranks of this host: where MPI does that piece by piece,
 * both ranks must keep polling. */
static bool payload_flows(const struct weft_mpi_world *world) {
  bool flows = false;
  for (uint32_t k = 0; k < world->active_count && !flows; k++) {
    const struct weft_mpi_end *end =
        (const struct weft_mpi_end *)weft_ends_at(&world->ends, world->active_end[k]);
    flows = end->near && end->part > 0;
  }
  return flows;
}

static bool is_payload_flowing(struct weft_mpi_world *world) {
  weft_mpi_lock(world);
  const bool flows = payload_flows(world);
  weft_mpi_unlock(world);
  return flows;
}

/* Between two polls. */
static void pause_between_polls(struct weft_mpi_world *world, struct backoff *backoff, int64_t now,
                                int64_t until) {
  const int64_t waited = now - backoff->began;
  if (world->spins && waited < SPIN_NS) {
    return;
  }
  if (world->spins && (waited < YIELD_NS || is_payload_flowing(world))) {
    (void)sched_yield();
    return;
  }
  if (!world->spins && backoff->yields++ < YIELDS && weft_core_yield(&world->yield)) {
    return;
  }
  const int64_t left = until - now;
  weft_mpi_sleep(backoff->sleep < left ? backoff->sleep : left);
  backoff->sleep = backoff->sleep * 2 < SLEEP_NS_MAX ? backoff->sleep * 2 : SLEEP_NS_MAX;
}

/* True when something has happened. */
static bool poll_once(struct weft_mpi_world *world) {
  weft_mpi_lock(world);
  if (world->events == world->seen) {
    weft_mpi_advance(world);
  }
  const bool happened =
      world->events != world->seen || __atomic_load_n(&world->has_failed, __ATOMIC_RELAXED);
  world->found = world->events;
  weft_mpi_unlock(world);
  return happened;
}

/* Some polls for each reading of the clock, where this rank has a core for it. */
static bool poll_again(struct weft_mpi_world *world, int times) {
  bool happened = poll_once(world);
  for (int k = 1; k < times * POLLS_PER_CLOCK && world->spins && !happened; k++) {
    happened = poll_once(world);
  }
  return happened;
}

enum weft_status weft_mpi_wait(struct weft_transport *transport, int64_t until,
                               struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  (void)error; /* progress() returns a failure */
  if (poll_again(world, 2)) {
    return WEFT_OK;
  }
  const int64_t began = weft_mpi_time(world);
  struct backoff backoff = {.began = began, .sleep = SLEEP_NS_MIN};
  __atomic_store_n(&world->rank_waits, 1, __ATOMIC_RELAXED);
  for (int64_t now = began; !poll_again(world, 1) && now < until; now = weft_mpi_time(world)) {
    pause_between_polls(world, &backoff, now, until);
  }
  __atomic_store_n(&world->rank_waits, 0, __ATOMIC_RELAXED);
  return WEFT_OK;
}

/* ---- the progress thread ---- */

/* Until something is in flight, or for a while. */
static void sleep_idle(struct weft_mpi_world *world) {
  const struct timespec limit = {.tv_nsec = THREAD_NS_IDLE};
  (void)syscall(SYS_futex, &world->thread_idles, FUTEX_WAIT_PRIVATE, 1, &limit, NULL, 0);
}

void weft_mpi_wake_thread(struct weft_mpi_world *world) {
  __atomic_store_n(&world->thread_idles, 0, __ATOMIC_RELAXED);
  (void)syscall(SYS_futex, &world->thread_idles, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* The thread may have a core while the ranks have theirs. */
static bool has_spare_core(const struct weft_mpi_world *world) {
  cpu_set_t set;
  return (long)world->ranks_on_host * 2 <= sysconf(_SC_NPROCESSORS_ONLN) &&
         sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 1;
}

/* A poll, and for how long to pause after it. */
static int64_t poll_from_thread(struct weft_mpi_world *world, int64_t pause, bool spare) {
  weft_mpi_lock(world);
  const uint64_t before = world->events;
  weft_mpi_advance(world);
  const bool moved = world->events != before;
  const bool flows = spare && payload_flows(world);
  const bool idle = is_idle(world);
  __atomic_store_n(&world->thread_idles, idle, __ATOMIC_RELAXED);
  weft_mpi_unlock(world);
  if (flows || idle) {
    return 0;
  }
  const int64_t next = moved || pause == 0 ? THREAD_NS_MIN : pause * 2;
  return next < THREAD_NS_MAX ? next : THREAD_NS_MAX;
}

static void *thread_main(void *context) {
  struct weft_mpi_world *world = context;
  const bool spare = has_spare_core(world);
  int64_t pause = THREAD_NS_MIN;
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  while (!__atomic_load_n(&world->thread_ends, __ATOMIC_ACQUIRE)) {
    if (__atomic_load_n(&world->rank_waits, __ATOMIC_RELAXED)) {
      weft_mpi_sleep(THREAD_NS_MAX);
      continue;
    }
    pause = poll_from_thread(world, pause, spare);
    if (pause > 0) {
      weft_mpi_sleep(pause);
    } else if (__atomic_load_n(&world->thread_idles, __ATOMIC_RELAXED)) {
      sleep_idle(world);
    } else {
      (void)sched_yield();
    }
  }
  return NULL;
}

enum weft_status weft_mpi_start_thread(struct weft_mpi_world *world, struct weft_error *error) {
  assert(!world->has_thread);
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all); /* signals are for the program's own threads */
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  const int failed = pthread_create(&world->thread, NULL, thread_main, world);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed != 0) {
    return weft_fail(error, WEFT_ERR_SYSTEM, "use progress by calls",
                     "the progress thread cannot be started: %s", strerror(failed));
  }
  world->has_thread = true;
  return WEFT_OK;
}

void weft_mpi_stop_thread(struct weft_mpi_world *world) {
  if (world->has_thread) {
    __atomic_store_n(&world->thread_ends, 1, __ATOMIC_RELEASE);
    (void)pthread_join(world->thread, NULL);
    world->has_thread = false;
  }
}

/* ---- exchanges ---- */

static void start_exchange(struct weft_mpi_world *world, const void *mine, size_t size) {
  assert(!world->exchanging && size <= WEFT_EXCHANGE_MAX);
  const int bytes = size > 0 ? (int)size : 1; /* an exchange of nothing waits, too */
  memcpy(world->exchange_mine, mine, size);
  const int result = MPI_Iallgather(world->exchange_mine, bytes, MPI_BYTE, world->exchange_all,
                                    bytes, MPI_BYTE, world->exchanges, &world->exchange);
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "starting an exchange");
  }
  world->exchanging = result == MPI_SUCCESS;
}

enum weft_status weft_mpi_exchange(struct weft_transport *transport, const void *mine, void *all,
                                   size_t size, struct weft_error *error) {
  assert(mine != NULL && all != NULL);
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  if (size > WEFT_EXCHANGE_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "use weft_allgather()",
                     "an exchange of %zu bytes per rank; at most %d", size, WEFT_EXCHANGE_MAX);
  }
  weft_mpi_lock(world);
  enum weft_status status = weft_mpi_failure_check(world, error);
  if (status == WEFT_OK) {
    if (!world->exchanging) {
      start_exchange(world, mine, size);
    }
    weft_mpi_advance(world);
    status = world->exchanging && world->exchange == MPI_REQUEST_NULL && !world->has_failed
                 ? WEFT_OK
                 : WEFT_IN_PROGRESS;
  }
  if (status == WEFT_OK) {
    memcpy(all, world->exchange_all, size * transport->rank_count);
    world->exchanging = false;
  }
  weft_mpi_unlock(world);
  return status;
}
