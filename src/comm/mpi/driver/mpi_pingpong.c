/* A ping-pong without the transport: what MPI itself takes, measured where the transport is
 * measured, by the same clock. It uses the communicator of exchanges, which otherwise carries
 * collectives only. */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>

#include "comm/mpi/driver/mpi_world.h"

static int go_and_return(const struct weft_mpi_world *world,
                         const struct weft_comm_pingpong *pingpong) {
  const int peer = 1 - (int)world->transport.rank, size = (int)pingpong->bytes;
  MPI_Comm comm = world->exchanges;
  int result = MPI_SUCCESS;
  if (world->transport.rank == 0) {
    result = MPI_Send(pingpong->out, size, MPI_BYTE, peer, 0, comm);
  }
  if (result == MPI_SUCCESS) {
    result = MPI_Recv(pingpong->in, size, MPI_BYTE, peer, 0, comm, MPI_STATUS_IGNORE);
  }
  if (world->transport.rank == 1 && result == MPI_SUCCESS) {
    result = MPI_Send(pingpong->out, size, MPI_BYTE, peer, 0, comm);
  }
  return result;
}

enum weft_status weft_mpi_pingpong(struct weft_comm *comm,
                                   const struct weft_comm_pingpong *pingpong,
                                   struct weft_error *error) {
  assert(pingpong->round_ns != NULL || pingpong->rounds == 0);
  struct weft_mpi_world *world = (struct weft_mpi_world *)comm;
  const uint32_t rank = world->transport.rank, rank_count = world->transport.rank_count;
  if (rank_count < 2 || rank > 1 || pingpong->bytes > INT_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "",
                     "rank %" PRIu32 " of %" PRIu32 " starts a ping-pong of %" PRIu64
                     " bytes; it is for ranks 0 and 1, with at most %d",
                     rank, rank_count, pingpong->bytes, INT_MAX);
  }
  weft_mpi_lock(world);
  int result = MPI_SUCCESS;
  for (uint32_t k = 0; k < pingpong->rounds && result == MPI_SUCCESS; k++) {
    const int64_t begin = weft_clock_ns();
    result = go_and_return(world, pingpong);
    pingpong->round_ns[k] = (uint64_t)(weft_clock_ns() - begin);
  }
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "a ping-pong");
  }
  const enum weft_status status = weft_mpi_failure_check(world, error);
  weft_mpi_unlock(world);
  return status;
}
