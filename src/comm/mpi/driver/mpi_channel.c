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
static void lay_out_end(const struct weft_mpi_world *world, struct weft_mpi_end *end) {
  const uint64_t bytes_max = end->base.bytes_max;
  const bool eager = bytes_max <= WEFT_MPI_EAGER && bytes_max <= world->piece;
  const size_t size = WEFT_MPI_HEADER_MAX + (eager ? (size_t)bytes_max : 0);
  end->near = weft_mpi_same_machine(world, world->transport.rank, end->base.peer);
  end->header_size = (size + 63) / 64 * 64;
  end->part_count = eager ? 1 : 1 + (uint32_t)((bytes_max + world->piece - 1) / world->piece);
}

static enum weft_status set_up_end(struct weft_mpi_world *world,
                                   const struct weft_channel_end *from, struct weft_error *error) {
  struct weft_arena *arena = &world->ends.arena;
  struct weft_mpi_end *end = (struct weft_mpi_end *)weft_ends_find(&world->ends, from->channel);
  WEFT_TRY(check_end(world, from, error));
  end->rendezvous = from->rendezvous;
  lay_out_end(world, end);
  const size_t room = (size_t)end->base.mask + 1;
  end->requests = weft_arena_allocate(arena, room * end->part_count, sizeof(MPI_Request));
  end->headers = weft_arena_allocate(arena, room, end->header_size);
  WEFT_TRY(weft_arena_status(arena, error));
  for (size_t k = 0; k < room * end->part_count; k++) {
    end->requests[k] = MPI_REQUEST_NULL;
  }
  return WEFT_OK;
}

/* The lists have room for one request of each end. */
static enum weft_status set_up(struct weft_mpi_world *world, const struct weft_channel_end *ends,
                               uint32_t count, struct weft_error *error) {
  struct weft_arena *arena = &world->ends.arena;
  world->active = weft_arena_allocate(arena, count, sizeof(MPI_Request));
  world->active_end = weft_arena_allocate(arena, count, sizeof *world->active_end);
  world->ready = weft_arena_allocate(arena, count, sizeof *world->ready);
  world->statuses = weft_arena_allocate(arena, count, sizeof *world->statuses);
  WEFT_TRY(weft_arena_status(arena, error));
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(set_up_end(world, &ends[k], error));
  }
  return WEFT_OK;
}

enum weft_status weft_mpi_open(struct weft_transport *transport,
                               const struct weft_channel_end *ends, uint32_t count,
                               struct weft_error *error) {
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  weft_mpi_lock(world);
  enum weft_status status = weft_ends_open(&world->ends, world->allocator, transport, ends, count,
                                           sizeof(struct weft_mpi_end), error);
  if (status == WEFT_OK) {
    assert(world->active_count == 0);
    status = set_up(world, ends, count, error);
    if (status < 0) {
      weft_ends_close(&world->ends); /* no channel is open then */
    }
  }
  weft_mpi_unlock(world);
  return status;
}
