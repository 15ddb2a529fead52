/* What the ranks of one process share; see world.h. */
#include "comm/world.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/channel_ends.h"

enum { CHANNEL_ROOM_MIN = 64 };

static struct weft_world *world_of(struct weft_transport *transport) {
  return ((struct weft_world_endpoint *)transport)->world;
}

enum weft_status weft_world_init(struct weft_world *world, const struct weft_allocator *allocator,
                                 uint32_t rank_count, struct weft_comm *comm,
                                 void (*wake)(struct weft_comm *comm, uint32_t rank),
                                 struct weft_error *error) {
  assert(comm != NULL && wake != NULL);
  *world = (struct weft_world){.allocator = allocator,
                               .rank_count = rank_count,
                               .comm = comm,
                               .wake = wake,
                               .arena.allocator = allocator};
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
  weft_arena_finish(&world->arena);
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

enum weft_status weft_world_check(struct weft_world *world, struct weft_error *error) {
  if (!__atomic_load_n(&world->has_failed, __ATOMIC_ACQUIRE)) {
    return WEFT_OK;
  }
  if (error != NULL) {
    *error = world->failure.error;
  }
  return world->failure.error.status;
}

void weft_world_wake_all(struct weft_world *world) {
  for (uint32_t r = 0; r < world->rank_count; r++) {
    world->wake(world->comm, r);
  }
}

/* ---- Channels ---- */

static struct weft_world_channel **find_slot(struct weft_world_channel **table, uint32_t room,
                                             uint32_t number) {
  assert(room > 0 && (room & (room - 1)) == 0);
  uint32_t k = weft_channel_hash(number, room - 1);
  while (table[k] != NULL && table[k]->number != number) {
    k = (k + 1) & (room - 1);
  }
  return &table[k];
}

/* Room for one more, and half of it empty. The table that it outgrows stays in the arena. */
static enum weft_status grow_table(struct weft_world *world, struct weft_error *error) {
  if (world->channel_count < world->channel_room / 2) {
    return WEFT_OK;
  }
  const uint32_t room = world->channel_room == 0 ? CHANNEL_ROOM_MIN : world->channel_room * 2;
  struct weft_world_channel **table =
      weft_arena_allocate(&world->arena, room, sizeof(struct weft_world_channel *));
  WEFT_TRY(weft_arena_status(&world->arena, error));
  for (uint32_t k = 0; k < world->channel_room; k++) {
    if (world->channels[k] != NULL) {
      *find_slot(table, room, world->channels[k]->number) = world->channels[k];
    }
  }
  world->channels = table;
  world->channel_room = room;
  return WEFT_OK;
}

/* The end of `rank` with the channel as the end that was opened before has it. */
static enum weft_status compare_ends(const struct weft_world_channel *channel,
                                     const struct weft_world_channel *own, uint32_t rank,
                                     uint32_t peer, struct weft_error *error) {
  const bool is_named = own->content[0] != '\0' && channel->content[0] != '\0' &&
                        strcmp(own->content, channel->content) != 0;
  if (own->sender != channel->sender || own->receiver != channel->receiver) {
    return weft_fail(
        error, WEFT_ERR_USAGE,
        "place stages alike on all ranks, and keep options.first_channel of replicas apart",
        "rank %" PRIu32 " opens channel %" PRIu32 " from rank %" PRIu32 " to rank %" PRIu32
        ", where the other end has it from rank %" PRIu32 " to rank %" PRIu32,
        rank, channel->number, own->sender, own->receiver, channel->sender, channel->receiver);
  }
  if (own->bytes_max == channel->bytes_max && !is_named) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_USAGE, "all ranks must describe the same boundaries",
                   "rank %" PRIu32 " has %s%sup to %" PRIu64 " bytes on channel %" PRIu32
                   ", where rank %" PRIu32 " has %s%sup to %" PRIu64,
                   rank, is_named ? own->content : "", is_named ? ", " : "", own->bytes_max,
                   own->number, peer, is_named ? channel->content : "", is_named ? ", " : "",
                   channel->bytes_max);
}

enum weft_status weft_world_channel(struct weft_world *world, const struct weft_channel_end *end,
                                    uint32_t rank, size_t size, struct weft_world_channel **out,
                                    struct weft_error *error) {
  assert(size >= sizeof **out && rank < world->rank_count);
  struct weft_world_channel own = {.number = end->channel,
                                   .sender = end->sends ? rank : end->peer,
                                   .receiver = end->sends ? end->peer : rank,
                                   .bytes_max = end->bytes_max};
  (void)snprintf(own.content, sizeof own.content, "%s", end->content != NULL ? end->content : "");
  WEFT_TRY(grow_table(world, error));
  struct weft_world_channel **slot = find_slot(world->channels, world->channel_room, end->channel);
  if (*slot == NULL) {
    struct weft_world_channel *channel = weft_arena_allocate(&world->arena, 1, size);
    WEFT_TRY(weft_arena_status(&world->arena, error));
    *channel = own;
    *slot = channel;
    world->channel_count++;
  }
  *out = *slot;
  return compare_ends(*slot, &own, rank, end->peer, error);
}

/* ---- As the ops ---- */

/* Nobody contributes to a round before all have contributed to the one before. */
enum weft_status weft_world_exchange(struct weft_transport *transport, const void *mine, void *all,
                                     size_t size, struct weft_error *error) {
  struct weft_world *world = world_of(transport);
  struct weft_world_rank *self = &world->ranks[transport->rank];
  const uint64_t round = self->rounds_done + 1;
  struct weft_world_blob *blob = &self->blobs[round % 2];
  if (size > WEFT_EXCHANGE_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "use weft_allgather()",
                     "an exchange of %zu bytes per rank; at most %d", size, WEFT_EXCHANGE_MAX);
  }
  WEFT_TRY(weft_world_check(world, error));
  const bool first_call = blob->round != round;
  if (first_call) {
    blob->round = round;
    memcpy(blob->bytes, mine, size);
    (void)__atomic_add_fetch(&world->arrived, 1, __ATOMIC_ACQ_REL);
  }
  if (__atomic_load_n(&world->arrived, __ATOMIC_ACQUIRE) < round * world->rank_count) {
    return WEFT_IN_PROGRESS;
  }
  for (uint32_t r = 0; r < world->rank_count && all != NULL; r++) {
    memcpy((unsigned char *)all + r * size, world->ranks[r].blobs[round % 2].bytes, size);
  }
  self->rounds_done = round;
  if (first_call) {
    weft_world_wake_all(world); /* the last rank: the others wait */
  }
  return WEFT_OK;
}

/* Rank `of` writes this blob again only after this one has contributed to the round in between. */
const void *weft_world_exchanged(struct weft_transport *transport, uint32_t of) {
  const struct weft_world *world = world_of(transport);
  const uint64_t round = world->ranks[transport->rank].rounds_done;
  assert(of < world->rank_count && round > 0);
  return world->ranks[of].blobs[round % 2].bytes;
}

bool weft_world_get_failure(struct weft_transport *transport, struct weft_failure *failure) {
  struct weft_world *world = world_of(transport);
  if (!__atomic_load_n(&world->has_failed, __ATOMIC_ACQUIRE)) {
    return false;
  }
  *failure = world->failure; /* never written again */
  return true;
}

struct weft_rank_status *weft_world_rank_status(struct weft_transport *transport, uint32_t rank) {
  assert(rank < transport->rank_count);
  return &world_of(transport)->ranks[rank].status;
}
