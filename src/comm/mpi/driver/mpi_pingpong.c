/* A ping-pong without a transport: what MPI itself takes, measured where the transport
 * is measured, by the same clock. On the communicator of exchanges, which carries nothing
 * but collectives otherwise. */
#include <inttypes.h>
#include <limits.h>
#include <sched.h>

#include "comm/mpi/driver/mpi_world.h"

enum { LOOKS_PER_YIELD = 1000 };

static int throw_ball(const struct weft_mpi_world *world, const struct weft_mpi_bare *game) {
  const int peer = 1 - (int)world->transport.rank;
  return MPI_Send(game->out, (int)game->bytes, MPI_BYTE, peer, 0, world->exchanges);
}

static int catch_ball(const struct weft_mpi_world *world, const struct weft_mpi_bare *game) {
  const int peer = 1 - (int)world->transport.rank;
  return MPI_Recv(game->in, (int)game->bytes, MPI_BYTE, peer, 0, world->exchanges,
                  MPI_STATUS_IGNORE);
}

/* ---- by calls that do not block ---- */

/* Gives the core away now and then: the other player may be waiting for it. */
static int await(MPI_Request *request) {
  int flag = 0;
  int result = MPI_SUCCESS;
  for (uint32_t looks = 1; result == MPI_SUCCESS && !flag; looks++) {
    result = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
    if (looks % LOOKS_PER_YIELD == 0) {
      (void)sched_yield();
    }
  }
  return result;
}

static int start_throw(const struct weft_mpi_world *world, const struct weft_mpi_bare *game,
                       MPI_Request *request) {
  const int peer = 1 - (int)world->transport.rank;
  return MPI_Isend(game->out, (int)game->bytes, MPI_BYTE, peer, 0, world->exchanges, request);
}

static int start_catch(const struct weft_mpi_world *world, const struct weft_mpi_bare *game,
                       MPI_Request *request) {
  const int peer = 1 - (int)world->transport.rank;
  return MPI_Irecv(game->in, (int)game->bytes, MPI_BYTE, peer, 0, world->exchanges, request);
}

static int start_round(const struct weft_mpi_world *world, const struct weft_mpi_bare *game) {
  MPI_Request ball = MPI_REQUEST_NULL;
  MPI_Request net = MPI_REQUEST_NULL;
  int result = MPI_SUCCESS;
  if (world->transport.rank == 1) {
    result = start_catch(world, game, &net);
    result = result == MPI_SUCCESS ? await(&net) : result;
  }
  if (result == MPI_SUCCESS) {
    result = start_throw(world, game, &ball);
  }
  if (world->transport.rank == 0 && result == MPI_SUCCESS) {
    result = start_catch(world, game, &net);
    result = result == MPI_SUCCESS ? await(&net) : result;
  }
  return result == MPI_SUCCESS ? await(&ball) : result;
}

/* ---- a game ---- */

static int play_round(const struct weft_mpi_world *world, const struct weft_mpi_bare *game) {
  if (game->starts) {
    return start_round(world, game);
  }
  const bool first = world->transport.rank == 0;
  const int result = first ? throw_ball(world, game) : catch_ball(world, game);
  if (result != MPI_SUCCESS) {
    return result;
  }
  return first ? catch_ball(world, game) : throw_ball(world, game);
}

static int play_rounds(const struct weft_mpi_world *world, const struct weft_mpi_bare *game) {
  int result = MPI_SUCCESS;
  for (uint32_t k = 0; k < game->rounds && result == MPI_SUCCESS; k++) {
    const int64_t begin = weft_clock_ns();
    result = play_round(world, game);
    game->round_ns[k] = (uint64_t)(weft_clock_ns() - begin);
  }
  return result;
}

static enum weft_status play(struct weft_mpi_world *world, const struct weft_mpi_bare *game,
                             struct weft_error *error) {
  if (world->transport.rank_count < 2 || world->transport.rank > 1 || game->bytes > INT_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "",
                     "rank %" PRIu32 " of %" PRIu32 " throws %" PRIu64
                     " bytes; ranks 0 and 1 play, with at most %d",
                     world->transport.rank, world->transport.rank_count, game->bytes, INT_MAX);
  }
  weft_mpi_lock(world);
  const int result = play_rounds(world, game);
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "a bare message");
  }
  const enum weft_status status = weft_mpi_failure_check(world, error);
  weft_mpi_unlock(world);
  return status;
}

enum weft_status weft_mpi_driver_bare(struct weft_mpi *world, const struct weft_mpi_bare *game,
                                      struct weft_error *error) {
  return play((struct weft_mpi_world *)world, game, error);
}
