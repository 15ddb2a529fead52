/* Opening channels: each end's ring of messages, requests and headers. Whether the two ends
 * agree on the largest payload, and so on the number of pieces, is checked when a message
 * arrives: its header carries the sender's figure. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "comm/mpi/driver/mpi_world.h"

enum { PARTS_MAX = 1 << 16 };

static enum weft_status check_end(const struct weft_mpi_world *world,
                                  const struct weft_channel_end *end, struct weft_error *error) {
  const struct weft_transport *base = &world->transport;
  if (end->channel > (world->tag_max - 1) / 2) {
    return weft_fail(error, WEFT_ERR_USAGE, "use fewer stages: a channel is two tags of MPI's",
                     "rank %" PRIu32 " opens channel %" PRIu32 "; this MPI has tags up to %" PRIu64,
                     base->rank, end->channel, world->tag_max);
  }
  if (end->bytes_max / world->piece >= PARTS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "use smaller microbatches",
                     "rank %" PRIu32 " opens channel %" PRIu32 " for payloads of up to %" PRIu64
                     " bytes; at most %d pieces of %" PRIu64 " bytes are possible",
                     base->rank, end->channel, end->bytes_max, PARTS_MAX, world->piece);
  }
  return WEFT_OK;
}

/* Headers are whole cache lines, so that the next one is aligned. */
static void lay_out(const struct weft_mpi_world *world, struct weft_mpi_end *end) {
  const uint64_t bytes_max = end->state.bytes_max;
  const bool eager = bytes_max <= WEFT_MPI_EAGER && bytes_max <= world->piece;
  const size_t size = WEFT_MPI_HEADER_MAX + (eager ? (size_t)bytes_max : 0);
  end->near = weft_mpi_same_machine(world, world->transport.rank, end->peer);
  end->header_size = (size + 63) / 64 * 64;
  end->part_count = eager ? 1 : 1 + (uint32_t)((bytes_max + world->piece - 1) / world->piece);
}

static enum weft_status make_ring(struct weft_mpi_world *world, struct weft_mpi_end *end,
                                  struct weft_error *error) {
  struct weft_arena *arena = &world->end_arena;
  const size_t room = (size_t)end->mask + 1;
  end->messages = weft_arena_allocate(arena, room, sizeof(struct weft_message *));
  end->requests = weft_arena_allocate(arena, room * end->part_count, sizeof(MPI_Request));
  end->headers = weft_arena_allocate(arena, room, end->header_size);
  WEFT_TRY(weft_arena_status(arena, error));
  for (size_t k = 0; k < room * end->part_count; k++) {
    end->requests[k] = MPI_REQUEST_NULL;
  }
  return WEFT_OK;
}

static enum weft_status add_end(struct weft_mpi_world *world, uint32_t index,
                                const struct weft_channel_end *from, struct weft_error *error) {
  assert(index < world->end_count);
  struct weft_mpi_end *end = &world->ends[index];
  WEFT_TRY(weft_channel_ends_add(&world->by_channel, &world->transport, from, index, error));
  WEFT_TRY(check_end(world, from, error));
  end->channel = from->channel;
  end->peer = from->peer;
  end->state = (struct weft_channel_end_state){.sends = from->sends, .bytes_max = from->bytes_max};
  end->rendezvous = from->rendezvous;
  end->depth = from->depth;
  end->mask = weft_channel_round_up(from->depth) - 1;
  lay_out(world, end);
  return make_ring(world, end, error);
}

/* One request for each end, and one for an exchange. */
enum weft_status weft_mpi_active_create(struct weft_mpi_world *world, uint32_t room,
                                        struct weft_error *error) {
  assert(room > world->active_count);
  struct weft_arena arena = {.allocator = world->allocator};
  MPI_Request *active = weft_arena_allocate(&arena, room, sizeof(MPI_Request));
  uint32_t *owner = weft_arena_allocate(&arena, room, sizeof *owner);
  int *ready = weft_arena_allocate(&arena, room, sizeof *ready);
  MPI_Status *statuses = weft_arena_allocate(&arena, room, sizeof *statuses);
  const enum weft_status status = weft_arena_status(&arena, error);
  if (status < 0) {
    weft_arena_finish(&arena);
    return status;
  }
  const uint32_t kept = world->active_count;
  for (uint32_t k = 0; k < kept; k++) { /* of an exchange in flight */
    active[k] = world->active[k];
    owner[k] = world->active_owner[k];
  }
  weft_mpi_close(world);
  world->active_arena = arena;
  world->active = active;
  world->active_owner = owner;
  world->ready = ready;
  world->statuses = statuses;
  world->active_room = room;
  world->active_count = kept;
  return WEFT_OK;
}

static enum weft_status open_ends(struct weft_mpi_world *world, const struct weft_channel_end *ends,
                                  uint32_t count, struct weft_error *error) {
  WEFT_TRY(weft_mpi_active_create(world, count + 1, error));
  world->end_arena.allocator = world->allocator;
  world->ends = weft_arena_allocate(&world->end_arena, count, sizeof *world->ends);
  WEFT_TRY(weft_arena_status(&world->end_arena, error));
  world->end_count = count;
  WEFT_TRY(weft_channel_ends_init(&world->by_channel, world->allocator, &world->transport, count,
                                  error));
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(add_end(world, k, &ends[k], error));
  }
  return WEFT_OK;
}

static void close_ends(struct weft_mpi_world *world) {
  weft_channel_ends_finish(&world->by_channel, world->allocator);
  weft_arena_finish(&world->end_arena);
  world->ends = NULL;
  world->end_count = 0;
}

enum weft_status weft_mpi_open(struct weft_transport *transport,
                               const struct weft_channel_end *ends, uint32_t count,
                               struct weft_error *error) {
  assert(ends != NULL || count == 0);
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  WEFT_TRY(weft_channel_check_open(transport, world->opened, error));
  weft_mpi_lock(world);
  world->opened = true;
  const enum weft_status status = open_ends(world, ends, count, error);
  if (status != WEFT_OK) {
    close_ends(world); /* no channel is open then */
  }
  weft_mpi_unlock(world);
  return status;
}

void weft_mpi_close(struct weft_mpi_world *world) {
  close_ends(world);
  weft_arena_finish(&world->active_arena);
  world->active = NULL;
  world->active_owner = NULL;
  world->ready = NULL;
  world->statuses = NULL;
  world->active_room = world->active_count = 0;
}
