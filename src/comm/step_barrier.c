/* See step_barrier.h. Ranks arrive without the lock, which is for sleeping: `state` says who leads.
 *
 *     0, 1, 2, ...   so many have arrived
 *     LEADS + rank   all have, and the thread of that rank is in drive()
 *     DRIVEN         it has returned; undriven ranks have not all arrived
 *     CLOSED         a rank has left because the world has failed: nobody begins any more */
#include "comm/step_barrier.h"

#include <assert.h>
#include <sched.h>

#include <weft/support.h>

#include "comm/rank_threads.h"

#define LEADS UINT32_C(0x80000000)
#define DRIVEN UINT32_C(0x7fffffff)
#define CLOSED UINT32_C(0x7ffffffe)

bool weft_step_barrier_init(struct weft_step_barrier *barrier, struct weft_world *world,
                            bool spins) {
  assert(world->rank_count > 0);
  *barrier = (struct weft_step_barrier){
      .world = world, .arena = {.allocator = world->allocator}, .spins = spins};
  struct weft_arena *arena = &barrier->arena;
  barrier->items = weft_arena_allocate(arena, world->rank_count, sizeof(void *));
  barrier->present = weft_arena_allocate(arena, world->rank_count, sizeof(void *));
  barrier->undriven = weft_arena_allocate(arena, world->rank_count, sizeof(bool));
  if (weft_arena_status(arena, NULL) < 0 || pthread_mutex_init(&barrier->lock, NULL) != 0) {
    weft_arena_finish(arena);
    return false;
  }
  if (!weft_condition_init(&barrier->changed)) {
    pthread_mutex_destroy(&barrier->lock);
    weft_arena_finish(arena);
    return false;
  }
  return true;
}

void weft_step_barrier_finish(struct weft_step_barrier *barrier) {
  pthread_cond_destroy(&barrier->changed);
  pthread_mutex_destroy(&barrier->lock);
  weft_arena_finish(&barrier->arena);
}

/* ---- A round ---- */

static uint32_t state_of(const struct weft_step_barrier *barrier) {
  return __atomic_load_n(&barrier->state, __ATOMIC_ACQUIRE);
}

static bool change_state(struct weft_step_barrier *barrier, uint32_t from, uint32_t to) {
  return __atomic_compare_exchange_n(&barrier->state, &from, to, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED);
}

static bool is_over(const struct weft_step_barrier *barrier, uint64_t round) {
  return __atomic_load_n(&barrier->rounds, __ATOMIC_ACQUIRE) != round;
}

static bool all_arrived(const struct weft_step_barrier *barrier, uint32_t state) {
  const uint32_t undriven = __atomic_load_n(&barrier->undriven_count, __ATOMIC_ACQUIRE);
  return state < CLOSED && state > 0 && state + undriven == barrier->world->rank_count;
}

/* With the lock held: the round is over if all have done their part. */
static void end_round(struct weft_step_barrier *barrier) {
  const uint32_t rank_count = barrier->world->rank_count;
  const int64_t now = weft_clock_ns();
  if (barrier->undriven_arrived < barrier->undriven_count ||
      (state_of(barrier) != DRIVEN && barrier->undriven_count < rank_count)) {
    return;
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    barrier->items[r] = NULL;
  }
  barrier->undriven_arrived = 0;
  __atomic_store_n(&barrier->state, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&barrier->period, now - barrier->ended_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&barrier->ended_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&barrier->rounds, barrier->rounds + 1, __ATOMIC_RELEASE);
}

/* Drives all ranks, if they have arrived and nobody else does it. */
static void begin_if_complete(struct weft_step_barrier *barrier, uint32_t rank,
                              void (*drive)(void *const *items, uint32_t count)) {
  const uint32_t state = state_of(barrier);
  uint32_t count = 0;
  if (drive == NULL || !all_arrived(barrier, state) ||
      !change_state(barrier, state, LEADS + rank)) {
    return;
  }
  for (uint32_t r = 0; r < barrier->world->rank_count; r++) {
    if (barrier->items[r] != NULL) {
      barrier->present[count++] = barrier->items[r];
    }
  }
  drive(barrier->present, count);
  pthread_mutex_lock(&barrier->lock);
  __atomic_store_n(&barrier->state, DRIVEN, __ATOMIC_RELEASE);
  end_round(barrier);
  if (barrier->sleepers > 0) {
    pthread_cond_broadcast(&barrier->changed);
  }
  pthread_mutex_unlock(&barrier->lock);
}

/* ---- Waiting ---- */

/* A step of a graph may take less than waking a thread, which a virtual machine does in 50 to 300
 * us: while there are cores for all, a rank polls whether the round is over, for a while, or for
 * all of a short one. If one rank slept through that, it would be late, and so the others would
 * have to sleep as well, in every round. A longer one it sleeps through, and is awake again before
 * the time at which it ends if it is like the one before. */
enum {
  SPIN_NS = 200 * 1000,
  SHORT_NS = 2000 * 1000,
  EARLY_NS = 500 * 1000,
  SPINS_PER_CLOCK = 64,
  LATER_BY = 64
};

static bool spin_until_over(const struct weft_step_barrier *barrier, uint64_t round, int64_t time) {
  const int64_t end = weft_clock_ns() + time;
  while (weft_clock_ns() < end) {
    for (int k = 0; k < SPINS_PER_CLOCK; k++) {
      if (is_over(barrier, round)) {
        return true;
      }
    }
    (void)sched_yield(); /* a rank that has not arrived may be waiting for this core */
  }
  return false;
}

/* Who waits, for what. `drive` NULL: an undriven rank. */
struct waiter {
  uint32_t rank;
  void (*drive)(void *const *items, uint32_t count);
  uint64_t round;
  int64_t until;
};

/* The rank's call ends before the round: nobody drives it any more. False: somebody does. */
static bool leave_round(struct weft_step_barrier *barrier, const struct waiter *waiter,
                        bool failed) {
  for (;;) {
    const uint32_t state = state_of(barrier);
    if ((state & LEADS) != 0) {
      return false;
    }
    if (waiter->drive == NULL || state >= CLOSED) {
      return true;
    }
    if (change_state(barrier, state, failed ? CLOSED : state - 1)) {
      barrier->items[waiter->rank] = NULL;
      return true;
    }
  }
}

/* Until the round is over, or it is `wake_at`, or this rank can begin it: WEFT_OK.
 * WEFT_IN_PROGRESS: it is `until`, and not all have arrived. */
static enum weft_status sleep_until(struct weft_step_barrier *barrier, const struct waiter *waiter,
                                    int64_t wake_at, struct weft_error *error) {
  enum weft_status status = WEFT_OK;
  pthread_mutex_lock(&barrier->lock);
  barrier->sleepers++;
  while (!is_over(barrier, waiter->round)) {
    const uint32_t state = state_of(barrier);
    const bool has_leader = (state & LEADS) != 0;
    const int64_t limit = has_leader || state == DRIVEN ? WEFT_TIME_NEVER : waiter->until;
    if ((!has_leader || barrier->leader_abandoned) && weft_world_check(barrier->world, error) < 0 &&
        (barrier->leader_abandoned || leave_round(barrier, waiter, true))) {
      status = error->status;
      break;
    }
    if (waiter->drive != NULL && all_arrived(barrier, state)) {
      break;
    }
    if (weft_condition_wait(&barrier->changed, &barrier->lock, wake_at < limit ? wake_at : limit)) {
      continue;
    }
    if (wake_at < limit) {
      break;
    }
    if (!is_over(barrier, waiter->round) && state_of(barrier) < CLOSED &&
        leave_round(barrier, waiter, false)) {
      status = WEFT_IN_PROGRESS;
      break;
    }
  }
  barrier->sleepers--;
  pthread_mutex_unlock(&barrier->lock);
  return status;
}

static enum weft_status wait_for_others(struct weft_step_barrier *barrier,
                                        const struct waiter *waiter, struct weft_error *error) {
  const int64_t period = __atomic_load_n(&barrier->period, __ATOMIC_RELAXED);
  const int64_t early = EARLY_NS + period / LATER_BY;
  const int64_t end = __atomic_load_n(&barrier->ended_ns, __ATOMIC_RELAXED) + period;
  const int64_t first = SPIN_NS + (period < SHORT_NS ? 2 * period : 0);
  bool over = barrier->spins && spin_until_over(barrier, waiter->round, first);
  while (!over) {
    const bool naps = barrier->spins && end - early > weft_clock_ns();
    const enum weft_status status =
        sleep_until(barrier, waiter, naps ? end - early : WEFT_TIME_NEVER, error);
    if (status != WEFT_OK) {
      return status;
    }
    begin_if_complete(barrier, waiter->rank, waiter->drive); /* a rank has become undriven */
    over = is_over(barrier, waiter->round) ||
           (naps && spin_until_over(barrier, waiter->round, 2 * early));
  }
  return WEFT_OK;
}

/* ---- Undriven ranks ---- */

void weft_step_barrier_set_undriven(struct weft_step_barrier *barrier, uint32_t rank) {
  assert(rank < barrier->world->rank_count);
  pthread_mutex_lock(&barrier->lock);
  if (!barrier->undriven[rank]) {
    barrier->undriven[rank] = true;
    (void)__atomic_add_fetch(&barrier->undriven_count, 1, __ATOMIC_ACQ_REL);
    pthread_cond_broadcast(&barrier->changed);
  }
  pthread_mutex_unlock(&barrier->lock);
}

static enum weft_status arrive_undriven(struct weft_step_barrier *barrier, uint32_t rank,
                                        struct weft_error *error) {
  pthread_mutex_lock(&barrier->lock);
  assert(barrier->undriven[rank]);
  const struct waiter waiter = {rank, NULL, barrier->rounds, WEFT_TIME_NEVER};
  if (weft_world_check(barrier->world, error) == WEFT_OK) {
    barrier->undriven_arrived++;
    end_round(barrier);
  }
  if (barrier->sleepers > 0) {
    pthread_cond_broadcast(&barrier->changed);
  }
  pthread_mutex_unlock(&barrier->lock);
  if (!is_over(barrier, waiter.round)) {
    WEFT_TRY(wait_for_others(barrier, &waiter, error));
  }
  return weft_world_check(barrier->world,
                          error); /* drive() may have failed after this rank arrived */
}

/* ---- Arriving ---- */

enum weft_status weft_step_barrier_arrive(struct weft_step_barrier *barrier, uint32_t rank,
                                          void *item,
                                          void (*drive)(void *const *items, uint32_t count),
                                          int64_t until, struct weft_error *error) {
  assert(rank < barrier->world->rank_count && (item != NULL) == (drive != NULL));
  if (item == NULL) {
    return arrive_undriven(barrier, rank, error);
  }
  assert(!barrier->undriven[rank]);
  const struct waiter waiter = {rank, drive, __atomic_load_n(&barrier->rounds, __ATOMIC_ACQUIRE),
                                until};
  WEFT_TRY(weft_world_check(barrier->world, error));
  barrier->items[rank] = item;
  uint32_t state = state_of(barrier);
  while (state < CLOSED && !change_state(barrier, state, state + 1)) {
    state = state_of(barrier);
  }
  begin_if_complete(barrier, rank, drive);
  return is_over(barrier, waiter.round) ? WEFT_OK : wait_for_others(barrier, &waiter, error);
}

/* ---- The world's failures ---- */

void weft_step_barrier_wake(struct weft_step_barrier *barrier) {
  pthread_mutex_lock(&barrier->lock);
  pthread_cond_broadcast(&barrier->changed);
  pthread_mutex_unlock(&barrier->lock);
}

uint32_t weft_step_barrier_abandon_leader(struct weft_step_barrier *barrier, uint32_t stuck) {
  pthread_mutex_lock(&barrier->lock);
  const uint32_t state = state_of(barrier);
  const bool has_leader = (state & LEADS) != 0;
  barrier->leader_abandoned = has_leader;
  pthread_cond_broadcast(&barrier->changed);
  pthread_mutex_unlock(&barrier->lock);
  return has_leader ? state - LEADS : stuck;
}
