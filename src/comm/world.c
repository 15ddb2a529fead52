/* What the ranks of one process share; see world.h. */
#include "comm/world.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

enum weft_status weft_world_init(struct weft_world *world, const struct weft_allocator *allocator,
                                 uint32_t rank_count, struct weft_error *error) {
  *world = (struct weft_world){.allocator = allocator, .rank_count = rank_count};
  if (rank_count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "a world has at least one rank", "0 ranks");
  }
  world->ranks = weft_array_allocate_zero(allocator, rank_count, sizeof *world->ranks);
  if (world->ranks == NULL) {
    return weft_fail_memory(error, rank_count * sizeof *world->ranks);
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    world->ranks[r].status.peer = UINT32_MAX;
  }
  if (pthread_mutex_init(&world->lock, NULL) != 0) {
    weft_array_free(allocator, world->ranks, rank_count, sizeof *world->ranks);
    return weft_fail_memory(error, sizeof world->lock);
  }
  return WEFT_OK;
}

void weft_world_finish(struct weft_world *world) {
  weft_array_free(world->allocator, world->ranks, world->rank_count, sizeof *world->ranks);
  pthread_mutex_destroy(&world->lock);
}

bool weft_world_fail(struct weft_world *world, const struct weft_failure *failure) {
  assert(failure->error.status < 0);
  pthread_mutex_lock(&world->lock);
  const bool first = !__atomic_load_n(&world->has_failed, __ATOMIC_RELAXED);
  if (first) {
    world->failure = *failure;
    __atomic_store_n(&world->has_failed, 1, __ATOMIC_SEQ_CST);
  }
  pthread_mutex_unlock(&world->lock);
  return first;
}

bool weft_world_failed(struct weft_world *world, struct weft_failure *failure) {
  if (!__atomic_load_n(&world->has_failed, __ATOMIC_ACQUIRE)) {
    return false;
  }
  *failure = world->failure; /* never written again */
  return true;
}

enum weft_status weft_world_check(struct weft_world *world, struct weft_error *error) {
  if (!__atomic_load_n(&world->has_failed, __ATOMIC_ACQUIRE)) {
    return WEFT_OK;
  }
  if (error != NULL) {
    *error = world->failure.error;
  }
  return world->failure.error.status;
}

/* Nobody contributes to a round before all have contributed to the one before. */
enum weft_status weft_world_exchange(struct weft_world *world, uint32_t rank, const void *mine,
                                     void *all, size_t size, bool *first_call) {
  assert(size <= WEFT_EXCHANGE_MAX);
  struct weft_world_rank *self = &world->ranks[rank];
  const uint64_t round = self->rounds_done + 1;
  struct weft_world_blob *blob = &self->blobs[round % 2];
  uint64_t arrived;
  *first_call = blob->round != round;
  if (*first_call) {
    blob->round = round;
    memcpy(blob->bytes, mine, size);
    arrived = __atomic_add_fetch(&world->arrived, 1, __ATOMIC_ACQ_REL);
  } else {
    arrived = __atomic_load_n(&world->arrived, __ATOMIC_ACQUIRE);
  }
  if (arrived < round * world->rank_count) {
    return WEFT_IN_PROGRESS;
  }
  for (uint32_t r = 0; r < world->rank_count && all != NULL; r++) {
    memcpy((unsigned char *)all + r * size, world->ranks[r].blobs[round % 2].bytes, size);
  }
  self->rounds_done = round;
  return WEFT_OK;
}

/* Rank `of` writes this blob again only after `rank` has contributed to the round in between. */
const void *weft_world_exchanged(struct weft_world *world, uint32_t rank, uint32_t of) {
  assert(of < world->rank_count && world->ranks[rank].rounds_done > 0);
  return world->ranks[of].blobs[world->ranks[rank].rounds_done % 2].bytes;
}
