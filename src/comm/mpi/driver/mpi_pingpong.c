/* A ping-pong without the transport: what MPI itself takes, measured where the transport is
 * measured, by the same clock. It uses the communicator of exchanges, which otherwise carries
 * collectives only. */
#include <inttypes.h>
#include <limits.h>
#include <sched.h>

#include "comm/mpi/driver/mpi_world.h"

enum { TESTS_PER_YIELD = 1000 };

static int blocking_round(const struct weft_mpi_world *world,
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

/* Yields the core now and then: the other rank may be waiting for it. */
static int await(MPI_Request *request) {
  int flag = 0;
  int result = MPI_SUCCESS;
  for (uint32_t tests = 1; result == MPI_SUCCESS && !flag; tests++) {
    result = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
    if (tests % TESTS_PER_YIELD == 0) {
      (void)sched_yield();
    }
  }
  return result;
}

static int receive(const struct weft_mpi_world *world, const struct weft_comm_pingpong *pingpong) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int result = MPI_Irecv(pingpong->in, (int)pingpong->bytes, MPI_BYTE,
                               1 - (int)world->transport.rank, 0, world->exchanges, &request);
  return result == MPI_SUCCESS ? await(&request) : result;
}

static int nonblocking_round(const struct weft_mpi_world *world,
                             const struct weft_comm_pingpong *pingpong) {
  MPI_Request send = MPI_REQUEST_NULL;
  int result = world->transport.rank == 1 ? receive(world, pingpong) : MPI_SUCCESS;
  if (result == MPI_SUCCESS) {
    result = MPI_Isend(pingpong->out, (int)pingpong->bytes, MPI_BYTE,
                       1 - (int)world->transport.rank, 0, world->exchanges, &send);
  }
  if (world->transport.rank == 0 && result == MPI_SUCCESS) {
    result = receive(world, pingpong);
  }
  return result == MPI_SUCCESS ? await(&send) : result;
}

enum weft_status weft_mpi_driver_pingpong(struct weft_mpi *base,
                                          const struct weft_comm_pingpong *pingpong,
                                          struct weft_error *error) {
  struct weft_mpi_world *world = (struct weft_mpi_world *)base;
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
    result = pingpong->nonblocking ? nonblocking_round(world, pingpong)
                                   : blocking_round(world, pingpong);
    pingpong->round_ns[k] = (uint64_t)(weft_clock_ns() - begin);
  }
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(world, result, "a ping-pong");
  }
  const enum weft_status status = weft_mpi_failure_check(world, error);
  weft_mpi_unlock(world);
  return status;
}
