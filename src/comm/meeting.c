/* See meeting.h. */
#include "comm/meeting.h"

#include <assert.h>
#include <sched.h>

#include <weft/support.h>

#include "comm/rank_threads.h"

bool weft_meeting_init(struct weft_meeting *meeting, struct weft_world *world, bool spins) {
  *meeting = (struct weft_meeting){.world = world, .spins = spins, .driver = UINT32_MAX};
  meeting->items = weft_array_allocate_zero(world->allocator, world->rank_count, sizeof(void *));
  if (meeting->items == NULL) {
    return false;
  }
  if (pthread_mutex_init(&meeting->lock, NULL) != 0) {
    weft_array_free(world->allocator, meeting->items, world->rank_count, sizeof(void *));
    return false;
  }
  if (!weft_condition_init(&meeting->changed)) {
    pthread_mutex_destroy(&meeting->lock);
    weft_array_free(world->allocator, meeting->items, world->rank_count, sizeof(void *));
    return false;
  }
  return true;
}

void weft_meeting_finish(struct weft_meeting *meeting) {
  pthread_cond_destroy(&meeting->changed);
  pthread_mutex_destroy(&meeting->lock);
  weft_array_free(meeting->world->allocator, meeting->items, meeting->world->rank_count,
                  sizeof(void *));
}

/* With the lock held, which is open while drive() runs. */
static void work(struct weft_meeting *meeting, uint32_t rank,
                 void (*drive)(void *const *items, uint32_t count)) {
  meeting->driver = rank;
  pthread_mutex_unlock(&meeting->lock);
  drive(meeting->items, meeting->world->rank_count);
  pthread_mutex_lock(&meeting->lock);
  for (uint32_t r = 0; r < meeting->world->rank_count; r++) {
    meeting->items[r] = NULL;
  }
  meeting->driver = UINT32_MAX;
  meeting->arrived = 0;
  const int64_t now = weft_clock_ns();
  __atomic_store_n(&meeting->period, now - meeting->ended_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&meeting->ended_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&meeting->rounds, meeting->rounds + 1, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&meeting->changed);
}

/* A step of a graph may take less than waking a thread: while there are cores for all, a rank first
 * looks for a while whether the round is over. A longer one it sleeps through, and is awake again
 * before the time at which it ends if it is like the one before. */
enum { SPIN_NS = 200 * 1000, SPINS_PER_CLOCK = 64, LATER_BY = 64 };

static bool spin(const struct weft_meeting *meeting, uint64_t round, int64_t time) {
  const int64_t end = weft_clock_ns() + time;
  while (weft_clock_ns() < end) {
    for (int k = 0; k < SPINS_PER_CLOCK; k++) {
      if (__atomic_load_n(&meeting->rounds, __ATOMIC_ACQUIRE) != round) {
        return true;
      }
    }
    (void)sched_yield(); /* a rank that has not come may be waiting for this core */
  }
  return false;
}

/* Until the round is over, or it is `wake_at`: WEFT_OK. WEFT_IN_PROGRESS: it is `until`, and not
 * all have come. */
static enum weft_status sleep_until(struct weft_meeting *meeting, uint64_t round, int64_t wake_at,
                                    int64_t until, struct weft_error *error) {
  enum weft_status status = WEFT_OK;
  pthread_mutex_lock(&meeting->lock);
  while (meeting->rounds == round && status == WEFT_OK) {
    const bool works = meeting->driver != UINT32_MAX;
    const int64_t limit = works ? WEFT_TIME_NEVER : until;
    if (!works || meeting->driver_left) {
      status = weft_world_check(meeting->world, error);
    }
    if (status < 0 ||
        weft_condition_wait(&meeting->changed, &meeting->lock, wake_at < limit ? wake_at : limit)) {
      continue;
    }
    if (wake_at < limit) {
      break;
    }
    status = meeting->rounds == round && meeting->driver == UINT32_MAX ? WEFT_IN_PROGRESS : WEFT_OK;
  }
  pthread_mutex_unlock(&meeting->lock);
  return status;
}

static enum weft_status wait_for_others(struct weft_meeting *meeting, uint64_t round, int64_t until,
                                        struct weft_error *error) {
  if (meeting->spins) {
    const int64_t period = __atomic_load_n(&meeting->period, __ATOMIC_RELAXED);
    const int64_t early = SPIN_NS + period / LATER_BY;
    const int64_t end = __atomic_load_n(&meeting->ended_ns, __ATOMIC_RELAXED) + period;
    if (spin(meeting, round, SPIN_NS)) {
      return WEFT_OK;
    }
    if (end - early > weft_clock_ns()) {
      const enum weft_status status = sleep_until(meeting, round, end - early, until, error);
      if (status != WEFT_OK || spin(meeting, round, 2 * early)) {
        return status;
      }
    }
  }
  return sleep_until(meeting, round, WEFT_TIME_NEVER, until, error);
}

enum weft_status weft_meeting_join(struct weft_meeting *meeting, uint32_t rank, void *item,
                                   void (*drive)(void *const *items, uint32_t count), int64_t until,
                                   struct weft_error *error) {
  assert(rank < meeting->world->rank_count && item != NULL);
  pthread_mutex_lock(&meeting->lock);
  enum weft_status status = weft_world_check(meeting->world, error);
  if (status == WEFT_OK) {
    meeting->arrived += meeting->items[rank] == NULL;
    meeting->items[rank] = item;
    if (meeting->arrived < meeting->world->rank_count) {
      const uint64_t round = meeting->rounds;
      pthread_mutex_unlock(&meeting->lock);
      return wait_for_others(meeting, round, until, error);
    }
    work(meeting, rank, drive);
  }
  pthread_mutex_unlock(&meeting->lock);
  return status;
}

void weft_meeting_wake(struct weft_meeting *meeting) {
  pthread_mutex_lock(&meeting->lock);
  pthread_cond_broadcast(&meeting->changed);
  pthread_mutex_unlock(&meeting->lock);
}

uint32_t weft_meeting_leave_driver(struct weft_meeting *meeting, uint32_t stuck) {
  pthread_mutex_lock(&meeting->lock);
  const uint32_t driver = meeting->driver != UINT32_MAX ? meeting->driver : stuck;
  meeting->driver_left = meeting->driver != UINT32_MAX;
  pthread_cond_broadcast(&meeting->changed);
  pthread_mutex_unlock(&meeting->lock);
  return driver;
}
