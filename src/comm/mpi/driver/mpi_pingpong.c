/* A ping-pong without the transport: what MPI itself takes, measured where the transport is
 * measured, by the same clock. It uses the communicator of exchanges, which otherwise carries
 * collectives only. */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>

#include "comm/mpi/driver/mpi_world.h"

enum weft_status weft_mpi_pingpong(struct weft_comm *comm, const void *out, void *in,
                                   uint64_t bytes, uint64_t *round_ns, struct weft_error *error) {
  assert(round_ns != NULL);
  struct weft_mpi_world *world = (struct weft_mpi_world *)comm;
  const uint32_t rank = world->transport.rank, rank_count = world->transport.rank_count;
  const int peer = 1 - (int)rank, size = (int)bytes;
  if (rank_count < 2 || rank > 1 || bytes > INT_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "",
                     "rank %" PRIu32 " of %" PRIu32 " starts a ping-pong of %" PRIu64
                     " bytes; it is for ranks 0 and 1, with at most %d",
                     rank, rank_count, bytes, INT_MAX);
  }
  weft_mpi_lock(world);
  const int64_t begin = weft_clock_ns();
  int result = MPI_SUCCESS;
  for (uint32_t k = 0; k < 2 && result == MPI_SUCCESS; k++) { /* rank 0 sends first */
    result = k == rank ? MPI_Send(out, size, MPI_BYTE, peer, 0, world->exchanges)
                       : MPI_Recv(in, size, MPI_BYTE, peer, 0, world->exchanges, MPI_STATUS_IGNORE);
  }
  *round_ns = (uint64_t)(weft_clock_ns() - begin);
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "a ping-pong");
  }
  const enum weft_status status = weft_mpi_failure_check(world, error);
  weft_mpi_unlock(world);
  return status;
}
