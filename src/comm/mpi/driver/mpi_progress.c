/* Looking at the network, and waiting. One MPI_Testsome asks for all ends at once: each
 * has its oldest request in one list. Control messages and the health of peers are
 * looked at now and then.
 *
 * Waiting asks again and again, because MPI has no other way: at once for a moment
 * where every rank has a core, then giving the core away in between, then, unless a payload
 * is on its way, sleeping for longer and longer, so that ranks that outnumber the cores do
 * not starve each other. */
#define _GNU_SOURCE /* prctl, sched_getaffinity, syscall */
#include <inttypes.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <weft/support.h>

#include "comm/mpi/driver/mpi_world.h"

enum {
  LOOKS_PER_CLOCK = 8, /* reading it costs as much as a look */
  LOOKS_FORGET = 64,   /* a cheap look is remembered for about so many */
  POKE_SHARE = 32,     /* looking takes one part in so many of a computation */
  POKE_NS_MAX = 1000 * WEFT_MPI_NS_PER_US,
  SPIN_NS = 100 * WEFT_MPI_NS_PER_US,
  YIELD_NS = 1000 * WEFT_MPI_NS_PER_US, /* where every rank has a core */
  YIELDS = 16,                          /* where not */
  SLEEP_NS_MIN = 10 * WEFT_MPI_NS_PER_US,
  SLEEP_NS_MAX = 100 * WEFT_MPI_NS_PER_US,
  THREAD_NS_MIN = 20 * WEFT_MPI_NS_PER_US,
  THREAD_NS_MAX = 100 * WEFT_MPI_NS_PER_US,
  THREAD_NS_IDLE = 1000 * WEFT_MPI_NS_PER_US
};

void weft_mpi_list(struct weft_mpi_world *world, MPI_Request request, uint32_t owner) {
  world->active[world->active_count] = request;
  world->active_owner[world->active_count] = owner;
  world->active_count++;
}

void weft_mpi_list_letter(struct weft_mpi_world *world, uint32_t owner) {
  world->awaiting[world->awaiting_count++] = owner;
}

/* ---- looking ---- */

static void end_exchange(struct weft_mpi_world *world, int result) {
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "an exchange");
    return;
  }
  world->exchanged = true;
  world->events++;
}

/* Those that are done leave the list; `ready` then holds their owners. */
static void remove_ready(struct weft_mpi_world *world, uint32_t count) {
  uint32_t kept = 0;
  for (uint32_t k = 0; k < count; k++) {
    const int at = world->ready[k];
    world->active[at] = MPI_REQUEST_NULL;
    world->ready[k] = (int)world->active_owner[at];
  }
  for (uint32_t k = 0; k < world->active_count; k++) {
    if (world->active[k] != MPI_REQUEST_NULL) {
      world->active[kept] = world->active[k];
      world->active_owner[kept++] = world->active_owner[k];
    }
  }
  world->active_count = kept;
}

static void take_one(struct weft_mpi_world *world, uint32_t owner, int result, MPI_Status *status) {
  if (owner == UINT32_MAX) {
    end_exchange(world, result);
    return;
  }
  struct weft_mpi_end *end = &world->ends[owner];
  end->listed = false;
  weft_mpi_end_take(world, end, result, status);
  weft_mpi_end_advance(world, end);
}

static void take_ready(struct weft_mpi_world *world, uint32_t count, int result) {
  remove_ready(world, count);
  for (uint32_t k = 0; k < count; k++) {
    const int one = result == MPI_SUCCESS ? MPI_SUCCESS : world->statuses[k].MPI_ERROR;
    take_one(world, (uint32_t)world->ready[k], one, &world->statuses[k]);
  }
}

/* Asking for one is quicker than asking for some. */
static void look_at_message(struct weft_mpi_world *world) {
  int flag = 0;
  MPI_Status status;
  const int result = MPI_Test(&world->active[0], &flag, &status);
  if (flag || result != MPI_SUCCESS) {
    world->active_count = 0;
    take_one(world, world->active_owner[0], result, &status);
  }
}

static void look_at_messages(struct weft_mpi_world *world) {
  int count = 0;
  const int result =
      MPI_Testsome((int)world->active_count, world->active, &count, world->ready, world->statuses);
  int class = MPI_SUCCESS;
  if (result != MPI_SUCCESS) {
    (void)MPI_Error_class(result, &class);
    if (class != MPI_ERR_IN_STATUS) {
      weft_mpi_failure_of_mpi(world, result, "looking at messages");
      return;
    }
  }
  if (count > 0) { /* MPI_UNDEFINED is negative */
    take_ready(world, (uint32_t)count, result);
  }
}

/* What is to be looked at now and then only. */
static void look_around(struct weft_mpi_world *world) {
  const int64_t now = weft_mpi_stamp(world);
  if (now >= world->next_control) {
    world->next_control = now + WEFT_MPI_CONTROL_US * WEFT_MPI_NS_PER_US;
    weft_mpi_control_look(world);
  }
  if (now >= world->next_peers) {
    world->next_peers = now + WEFT_MPI_PEERS_MS * WEFT_MPI_NS_PER_MS;
    weft_mpi_peers_look(world);
  }
}

/* From the last to the first: an end that is listed again comes behind those that are left. */
static void look_at_letters(struct weft_mpi_world *world) {
  for (uint32_t k = world->awaiting_count; k-- > 0;) {
    struct weft_mpi_end *end = &world->ends[world->awaiting[k]];
    if (weft_mpi_end_has_letter(world, end)) {
      world->awaiting[k] = world->awaiting[--world->awaiting_count];
      end->listed = false;
      weft_mpi_end_advance(world, end);
    }
  }
}

void weft_mpi_advance(struct weft_mpi_world *world) {
  if (world->awaiting_count > 0) {
    look_at_letters(world);
  }
  if (world->active_count == 1) {
    look_at_message(world);
  } else if (world->active_count > 0) {
    look_at_messages(world);
  }
  if (world->groups != NULL) {
    weft_mpi_groups_advance(world);
  }
  if (world->looks++ % LOOKS_PER_CLOCK == 0) {
    look_around(world);
  }
}

enum weft_status weft_mpi_progress(struct weft_transport *transport, struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_gate_enter(&world->gate);
  weft_mpi_advance(world);
  world->seen = world->events;
  world->tests = 0;
  const enum weft_status status = weft_mpi_failure_check(world, error);
  weft_mpi_gate_leave(&world->gate);
  return status;
}

/* A look may be a few calls of the system, where MPI goes over sockets. What it costs when
 * nothing has come is the cheapest look of late: one that moved a message says nothing. So
 * looking takes a small part of a computation, and messages wait for a moment that is short
 * beside what such networks hold back by themselves. */
static void note_look(struct weft_mpi_world *world, int64_t began) {
  const int64_t now = weft_mpi_stamp(world);
  const int64_t took = now - began;
  const int64_t forgotten =
      world->look_ns > 0 ? world->look_ns + world->look_ns / LOOKS_FORGET + 1 : INT64_MAX;
  world->look_ns = took < forgotten ? took : forgotten;
  const int64_t pause = world->look_ns * POKE_SHARE;
  world->next_poke = now + (pause < POKE_NS_MAX ? pause : POKE_NS_MAX);
}

void weft_mpi_poke(struct weft_transport *transport) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_gate_enter(&world->gate);
  const int64_t now = weft_mpi_stamp(world);
  const bool asks = world->active_count > 0 || world->groups != NULL;
  if (now >= world->next_poke) {
    weft_mpi_advance(world);
    if (asks) { /* else MPI was not called, and it took no time */
      note_look(world, now);
    }
  }
  weft_mpi_gate_leave(&world->gate);
}

/* ---- waiting ---- */

struct patience {
  int64_t began;
  int64_t sleep; /* the next one */
  int yields;
};

/* A payload moves through memory: where MPI does that bit by bit, both sides must keep
 * looking. */
static bool payload_flows(const struct weft_mpi_world *world) {
  bool flows = false;
  for (uint32_t k = 0; k < world->active_count && !flows; k++) {
    const uint32_t owner = world->active_owner[k];
    flows = owner != UINT32_MAX && weft_mpi_end_flows(&world->ends[owner]);
  }
  return flows;
}

static bool must_keep_looking(struct weft_mpi_world *world) {
  weft_mpi_gate_enter(&world->gate);
  const bool flows = payload_flows(world);
  weft_mpi_gate_leave(&world->gate);
  return flows;
}

/* Between two looks. */
static void pause_a_bit(struct weft_mpi_world *world, struct patience *patience, int64_t now,
                        int64_t until) {
  const int64_t waited = now - patience->began;
  if (world->spins && waited < SPIN_NS) {
    return;
  }
  if (world->spins ? waited < YIELD_NS || must_keep_looking(world) : patience->yields++ < YIELDS) {
    (void)sched_yield();
    return;
  }
  const int64_t left = until - now;
  weft_mpi_sleep(patience->sleep < left ? patience->sleep : left);
  patience->sleep = patience->sleep * 2 < SLEEP_NS_MAX ? patience->sleep * 2 : SLEEP_NS_MAX;
}

/* True when something has happened. */
static bool look(struct weft_mpi_world *world) {
  weft_mpi_gate_enter(&world->gate);
  if (world->events == world->seen) {
    weft_mpi_advance(world);
  }
  const bool happened =
      world->events != world->seen || __atomic_load_n(&world->has_failed, __ATOMIC_RELAXED);
  weft_mpi_gate_leave(&world->gate);
  return happened;
}

/* Some looks between two at the clock, where this rank has a core for it. */
static bool look_again(struct weft_mpi_world *world, int times) {
  bool happened = look(world);
  for (int k = 1; k < times * LOOKS_PER_CLOCK && world->spins && !happened; k++) {
    happened = look(world);
  }
  return happened;
}

enum weft_status weft_mpi_wait(struct weft_transport *transport, int64_t until,
                               struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  (void)error; /* a failure is told by progress() */
  if (look_again(world, 2)) {
    return WEFT_OK;
  }
  const int64_t began = weft_mpi_time(world);
  struct patience patience = {.began = began, .sleep = SLEEP_NS_MIN};
  __atomic_store_n(&world->rank_waits, 1, __ATOMIC_RELAXED);
  for (int64_t now = began; !look_again(world, 1) && now < until; now = weft_mpi_time(world)) {
    pause_a_bit(world, &patience, now, until);
  }
  __atomic_store_n(&world->rank_waits, 0, __ATOMIC_RELAXED);
  return WEFT_OK;
}

/* ---- the progress thread ---- */

/* Until there is something under way, or for a while. */
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

/* A look, and for how long to pause after it. */
static int64_t look_beside(struct weft_mpi_world *world, int64_t pause, bool spare) {
  weft_mpi_gate_enter(&world->gate);
  const uint64_t before = world->events;
  weft_mpi_advance(world);
  const bool moved = world->events != before;
  const bool flows = spare && payload_flows(world);
  const bool idle = world->active_count == 0 && world->awaiting_count == 0 && world->groups == NULL;
  __atomic_store_n(&world->thread_idles, idle, __ATOMIC_RELAXED);
  weft_mpi_gate_leave(&world->gate);
  if (flows || idle) {
    return 0;
  }
  const int64_t next = moved || pause == 0 ? THREAD_NS_MIN : pause * 2;
  return next < THREAD_NS_MAX ? next : THREAD_NS_MAX;
}

static void *see_to_messages(void *context) {
  struct weft_mpi_world *world = context;
  const bool spare = has_spare_core(world);
  int64_t pause = THREAD_NS_MIN;
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  while (!__atomic_load_n(&world->thread_ends, __ATOMIC_ACQUIRE)) {
    if (__atomic_load_n(&world->rank_waits, __ATOMIC_RELAXED)) {
      weft_mpi_sleep(THREAD_NS_MAX);
      continue;
    }
    pause = look_beside(world, pause, spare);
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
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all); /* signals are for the program's own threads */
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  const int failed = pthread_create(&world->thread, NULL, see_to_messages, world);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed != 0) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "use progress by calls",
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
  MPI_Request request;
  const int bytes = size > 0 ? (int)size : 1; /* an exchange of nothing waits, too */
  memcpy(world->exchange_mine, mine, size);
  const int result = MPI_Iallgather(world->exchange_mine, bytes, MPI_BYTE, world->exchange_all,
                                    bytes, MPI_BYTE, world->exchanges, &request);
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "starting an exchange");
    return;
  }
  world->exchanging = true;
  world->exchanged = false;
  weft_mpi_list(world, request, UINT32_MAX);
}

enum weft_status weft_mpi_exchange(struct weft_transport *transport, const void *mine, void *all,
                                   size_t size, struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  if (size > WEFT_EXCHANGE_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "exchange a hash of it instead",
                     "an exchange of %zu bytes per rank; at most %d", size, WEFT_EXCHANGE_MAX);
  }
  weft_mpi_gate_enter(&world->gate);
  enum weft_status status = weft_mpi_failure_check(world, error);
  if (status == WEFT_OK) {
    if (!world->exchanging) {
      start_exchange(world, mine, size);
    }
    weft_mpi_advance(world);
    status = world->exchanging && world->exchanged ? WEFT_OK : WEFT_IN_PROGRESS;
  }
  if (status == WEFT_OK) {
    memcpy(all, world->exchange_all, size * transport->rank_count);
    world->exchanging = false;
  }
  weft_mpi_gate_leave(&world->gate);
  return status;
}
