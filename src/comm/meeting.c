/* See meeting.h. */
#include "comm/meeting.h"

#include <assert.h>

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
  __atomic_store_n(&meeting->rounds, meeting->rounds + 1, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&meeting->changed);
}

/* A step of a graph takes less than waking a thread: while there are cores for all, a rank first
 * looks for a while whether the round is over. */
enum { SPIN_NS = 200 * 1000, SPINS_PER_CLOCK = 64 };

static bool spin(const struct weft_meeting *meeting, uint64_t round) {
  const int64_t end = weft_clock_ns() + SPIN_NS;
  while (meeting->spins && weft_clock_ns() < end) {
    for (int k = 0; k < SPINS_PER_CLOCK; k++) {
      if (__atomic_load_n(&meeting->rounds, __ATOMIC_ACQUIRE) != round) {
        return true;
      }
    }
  }
  return false;
}

/* With the lock held. */
static enum weft_status wait_for_others(struct weft_meeting *meeting, uint64_t round, int64_t until,
                                        struct weft_error *error) {
  pthread_mutex_unlock(&meeting->lock);
  const bool over = spin(meeting, round);
  pthread_mutex_lock(&meeting->lock);
  while (!over && meeting->rounds == round) {
    const bool works = meeting->driver != UINT32_MAX;
    if (!works || meeting->driver_left) {
      WEFT_TRY(weft_world_check(meeting->world, error));
    }
    if (!weft_condition_wait(&meeting->changed, &meeting->lock, works ? WEFT_TIME_NEVER : until) &&
        meeting->rounds == round && meeting->driver == UINT32_MAX) {
      return WEFT_IN_PROGRESS;
    }
  }
  return WEFT_OK;
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
    if (meeting->arrived == meeting->world->rank_count) {
      work(meeting, rank, drive);
    } else {
      status = wait_for_others(meeting, meeting->rounds, until, error);
    }
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
