/* See meeting.h. Ranks come without the lock, which is for sleeping: `state` says who works.
 *
 *     0, 1, 2, ...   so many have come
 *     WORKS + rank   all have, and the thread of that rank is in drive()
 *     DRIVEN         it has returned; ranks that are apart have not all come
 *     CLOSED         a rank has left because the world has failed: nobody begins any more */
#include "comm/meeting.h"

#include <assert.h>
#include <sched.h>

#include <weft/support.h>

#include "comm/rank_threads.h"

#define WORKS UINT32_C(0x80000000)
#define DRIVEN UINT32_C(0x7fffffff)
#define CLOSED UINT32_C(0x7ffffffe)

static void free_arrays(struct weft_meeting *meeting) {
  const struct weft_world *world = meeting->world;
  weft_array_free(world->allocator, meeting->items, world->rank_count, sizeof(void *));
  weft_array_free(world->allocator, meeting->present, world->rank_count, sizeof(void *));
  weft_array_free(world->allocator, meeting->apart, world->rank_count, sizeof(bool));
}

bool weft_meeting_init(struct weft_meeting *meeting, struct weft_world *world, bool spins) {
  const struct weft_allocator *allocator = world->allocator;
  *meeting = (struct weft_meeting){.world = world, .spins = spins};
  meeting->items = weft_array_allocate_zero(allocator, world->rank_count, sizeof(void *));
  meeting->present = weft_array_allocate_zero(allocator, world->rank_count, sizeof(void *));
  meeting->apart = weft_array_allocate_zero(allocator, world->rank_count, sizeof(bool));
  if (meeting->items == NULL || meeting->present == NULL || meeting->apart == NULL ||
      pthread_mutex_init(&meeting->lock, NULL) != 0) {
    free_arrays(meeting);
    return false;
  }
  if (!weft_condition_init(&meeting->changed)) {
    pthread_mutex_destroy(&meeting->lock);
    free_arrays(meeting);
    return false;
  }
  return true;
}

void weft_meeting_finish(struct weft_meeting *meeting) {
  pthread_cond_destroy(&meeting->changed);
  pthread_mutex_destroy(&meeting->lock);
  free_arrays(meeting);
}

/* ---- A round ---- */

static uint32_t state_of(const struct weft_meeting *meeting) {
  return __atomic_load_n(&meeting->state, __ATOMIC_ACQUIRE);
}

static bool change_state(struct weft_meeting *meeting, uint32_t from, uint32_t to) {
  return __atomic_compare_exchange_n(&meeting->state, &from, to, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED);
}

static bool is_over(const struct weft_meeting *meeting, uint64_t round) {
  return __atomic_load_n(&meeting->rounds, __ATOMIC_ACQUIRE) != round;
}

static bool all_have_come(const struct weft_meeting *meeting, uint32_t state) {
  const uint32_t apart = __atomic_load_n(&meeting->apart_count, __ATOMIC_ACQUIRE);
  return state < CLOSED && state > 0 && state + apart == meeting->world->rank_count;
}

/* With the lock held: the round is over if all have done their part. */
static void end_round(struct weft_meeting *meeting) {
  const uint32_t rank_count = meeting->world->rank_count;
  const int64_t now = weft_clock_ns();
  if (meeting->apart_arrived < meeting->apart_count ||
      (state_of(meeting) != DRIVEN && meeting->apart_count < rank_count)) {
    return;
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    meeting->items[r] = NULL;
  }
  meeting->apart_arrived = 0;
  __atomic_store_n(&meeting->state, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&meeting->period, now - meeting->ended_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&meeting->ended_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&meeting->rounds, meeting->rounds + 1, __ATOMIC_RELEASE);
}

/* Drives all ranks, if they have come and nobody else does it. */
static void begin_if_complete(struct weft_meeting *meeting, uint32_t rank,
                              void (*drive)(void *const *items, uint32_t count)) {
  const uint32_t state = state_of(meeting);
  uint32_t count = 0;
  if (drive == NULL || !all_have_come(meeting, state) ||
      !change_state(meeting, state, WORKS + rank)) {
    return;
  }
  for (uint32_t r = 0; r < meeting->world->rank_count; r++) {
    if (meeting->items[r] != NULL) {
      meeting->present[count++] = meeting->items[r];
    }
  }
  drive(meeting->present, count);
  pthread_mutex_lock(&meeting->lock);
  __atomic_store_n(&meeting->state, DRIVEN, __ATOMIC_RELEASE);
  end_round(meeting);
  if (meeting->sleepers > 0) {
    pthread_cond_broadcast(&meeting->changed);
  }
  pthread_mutex_unlock(&meeting->lock);
}

/* ---- Waiting ---- */

/* A step of a graph may take less than waking a thread, which a virtual machine does in 50 to 300
 * us: while there are cores for all, a rank looks whether the round is over, for a while, or for
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

static bool spin(const struct weft_meeting *meeting, uint64_t round, int64_t time) {
  const int64_t end = weft_clock_ns() + time;
  while (weft_clock_ns() < end) {
    for (int k = 0; k < SPINS_PER_CLOCK; k++) {
      if (is_over(meeting, round)) {
        return true;
      }
    }
    (void)sched_yield(); /* a rank that has not come may be waiting for this core */
  }
  return false;
}

/* Who waits, for what. `drive` NULL: it is apart. */
struct waiter {
  uint32_t rank;
  void (*drive)(void *const *items, uint32_t count);
  uint64_t round;
  int64_t until;
};

/* The rank's call ends before the round: nobody drives it any more. False: somebody does. */
static bool leave(struct weft_meeting *meeting, const struct waiter *waiter, bool failed) {
  for (;;) {
    const uint32_t state = state_of(meeting);
    if ((state & WORKS) != 0) {
      return false;
    }
    if (waiter->drive == NULL || state >= CLOSED) {
      return true;
    }
    if (change_state(meeting, state, failed ? CLOSED : state - 1)) {
      meeting->items[waiter->rank] = NULL;
      return true;
    }
  }
}

/* Until the round is over, or it is `wake_at`, or this rank can begin it: WEFT_OK.
 * WEFT_IN_PROGRESS: it is `until`, and not all have come. */
static enum weft_status sleep_until(struct weft_meeting *meeting, const struct waiter *waiter,
                                    int64_t wake_at, struct weft_error *error) {
  enum weft_status status = WEFT_OK;
  pthread_mutex_lock(&meeting->lock);
  meeting->sleepers++;
  while (!is_over(meeting, waiter->round)) {
    const uint32_t state = state_of(meeting);
    const bool works = (state & WORKS) != 0;
    const int64_t limit = works || state == DRIVEN ? WEFT_TIME_NEVER : waiter->until;
    if ((!works || meeting->driver_left) && weft_world_check(meeting->world, error) < 0 &&
        (meeting->driver_left || leave(meeting, waiter, true))) {
      status = error->status;
      break;
    }
    if (waiter->drive != NULL && all_have_come(meeting, state)) {
      break;
    }
    if (weft_condition_wait(&meeting->changed, &meeting->lock, wake_at < limit ? wake_at : limit)) {
      continue;
    }
    if (wake_at < limit) {
      break;
    }
    if (!is_over(meeting, waiter->round) && state_of(meeting) < CLOSED &&
        leave(meeting, waiter, false)) {
      status = WEFT_IN_PROGRESS;
      break;
    }
  }
  meeting->sleepers--;
  pthread_mutex_unlock(&meeting->lock);
  return status;
}

static enum weft_status wait_for_others(struct weft_meeting *meeting, const struct waiter *waiter,
                                        struct weft_error *error) {
  const int64_t period = __atomic_load_n(&meeting->period, __ATOMIC_RELAXED);
  const int64_t early = EARLY_NS + period / LATER_BY;
  const int64_t end = __atomic_load_n(&meeting->ended_ns, __ATOMIC_RELAXED) + period;
  const int64_t first = SPIN_NS + (period < SHORT_NS ? 2 * period : 0);
  bool over = meeting->spins && spin(meeting, waiter->round, first);
  while (!over) {
    const bool naps = meeting->spins && end - early > weft_clock_ns();
    const enum weft_status status =
        sleep_until(meeting, waiter, naps ? end - early : WEFT_TIME_NEVER, error);
    if (status != WEFT_OK) {
      return status;
    }
    begin_if_complete(meeting, waiter->rank, waiter->drive); /* a rank has gone apart */
    over = is_over(meeting, waiter->round) || (naps && spin(meeting, waiter->round, 2 * early));
  }
  return WEFT_OK;
}

enum weft_status weft_meeting_join(struct weft_meeting *meeting, uint32_t rank, void *item,
                                   void (*drive)(void *const *items, uint32_t count), int64_t until,
                                   struct weft_error *error) {
  assert(rank < meeting->world->rank_count && item != NULL && !meeting->apart[rank]);
  const struct waiter waiter = {rank, drive, __atomic_load_n(&meeting->rounds, __ATOMIC_ACQUIRE),
                                until};
  WEFT_TRY(weft_world_check(meeting->world, error));
  meeting->items[rank] = item;
  uint32_t state = state_of(meeting);
  while (state < CLOSED && !change_state(meeting, state, state + 1)) {
    state = state_of(meeting);
  }
  begin_if_complete(meeting, rank, drive);
  return is_over(meeting, waiter.round) ? WEFT_OK : wait_for_others(meeting, &waiter, error);
}

/* ---- Ranks that are apart ---- */

void weft_meeting_set_apart(struct weft_meeting *meeting, uint32_t rank) {
  pthread_mutex_lock(&meeting->lock);
  if (!meeting->apart[rank]) {
    meeting->apart[rank] = true;
    (void)__atomic_add_fetch(&meeting->apart_count, 1, __ATOMIC_ACQ_REL);
    pthread_cond_broadcast(&meeting->changed);
  }
  pthread_mutex_unlock(&meeting->lock);
}

enum weft_status weft_meeting_join_apart(struct weft_meeting *meeting, uint32_t rank,
                                         struct weft_error *error) {
  pthread_mutex_lock(&meeting->lock);
  assert(meeting->apart[rank]);
  const struct waiter waiter = {rank, NULL, meeting->rounds, WEFT_TIME_NEVER};
  if (weft_world_check(meeting->world, error) == WEFT_OK) {
    meeting->apart_arrived++;
    end_round(meeting);
  }
  if (meeting->sleepers > 0) {
    pthread_cond_broadcast(&meeting->changed);
  }
  pthread_mutex_unlock(&meeting->lock);
  if (!is_over(meeting, waiter.round)) {
    WEFT_TRY(wait_for_others(meeting, &waiter, error));
  }
  return weft_world_check(meeting->world, error); /* drive() may have failed after this rank came */
}

/* ---- The world's failures ---- */

void weft_meeting_wake(struct weft_meeting *meeting) {
  pthread_mutex_lock(&meeting->lock);
  pthread_cond_broadcast(&meeting->changed);
  pthread_mutex_unlock(&meeting->lock);
}

uint32_t weft_meeting_leave_driver(struct weft_meeting *meeting, uint32_t stuck) {
  pthread_mutex_lock(&meeting->lock);
  const uint32_t state = state_of(meeting);
  const bool works = (state & WORKS) != 0;
  meeting->driver_left = works;
  pthread_cond_broadcast(&meeting->changed);
  pthread_mutex_unlock(&meeting->lock);
  return works ? state - WORKS : stuck;
}
