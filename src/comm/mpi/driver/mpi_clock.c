/* One time for all hosts: CLOCK_MONOTONIC of rank 0's host. When the world is made, ranks on
 * other hosts estimate the offset of their clock from the shortest of some round trips, half of
 * it each way. The estimate is good to about half a round trip; later drift is not followed. */
#include <assert.h>
#include <time.h>

#include "comm/mpi/driver/mpi_world.h"

enum { ROUND_TRIPS = 32 };

int64_t weft_mpi_time(const struct weft_mpi_world *world) {
  return weft_clock_ns() + world->clock_offset;
}

int64_t weft_mpi_now(struct weft_transport *transport) {
  return weft_mpi_time(weft_mpi_world_of(transport));
}

void weft_mpi_sleep(int64_t ns) {
  assert(ns >= 0);
  const struct timespec time = {.tv_sec = (time_t)(ns / WEFT_MPI_NS_PER_S),
                                .tv_nsec = (long)(ns % WEFT_MPI_NS_PER_S)};
  (void)nanosleep(&time, NULL); /* may end early */
}

/* The lowest rank of the machine that `rank` is on. */
static uint32_t leader_of(const struct weft_mpi_world *world, uint32_t rank) {
  assert(rank < world->transport.rank_count);
  uint32_t leader = 0;
  while (!weft_mpi_same_machine(world, leader, rank)) {
    leader++;
  }
  return leader;
}

/* Round trips between rank 0, which answers with its time, and the leader of another machine, which
 * takes the offset from the shortest. */
static int exchange_times(const struct weft_mpi_world *world, uint32_t peer, int64_t *offset) {
  const bool asks = peer == 0;
  int64_t shortest = INT64_MAX;
  int result = MPI_SUCCESS;
  for (int k = 0; k < ROUND_TRIPS && result == MPI_SUCCESS; k++) {
    const int64_t before = weft_clock_ns();
    int64_t time = before;
    for (int half = 0; half < 2 && result == MPI_SUCCESS; half++) {
      const bool sends = asks == (half == 0);
      time = sends ? weft_clock_ns() : time;
      result =
          sends ? MPI_Send(&time, 1, MPI_INT64_T, (int)peer, 0, world->control)
                : MPI_Recv(&time, 1, MPI_INT64_T, (int)peer, 0, world->control, MPI_STATUS_IGNORE);
    }
    const int64_t took = weft_clock_ns() - before;
    if (asks && took < shortest) {
      shortest = took;
      *offset = time - (before + shortest / 2);
    }
  }
  return result;
}

static int measure_offset(struct weft_mpi_world *world, uint32_t leader, int64_t *offset) {
  const uint32_t rank = world->transport.rank;
  int result = MPI_SUCCESS;
  for (uint32_t r = 1; rank == 0 && r < world->transport.rank_count; r++) {
    if (result == MPI_SUCCESS && leader_of(world, r) == r) {
      result = exchange_times(world, r, offset);
    }
  }
  return rank != 0 && leader == rank ? exchange_times(world, 0, offset) : result;
}

enum weft_status weft_mpi_clock_agree(struct weft_mpi_world *world, struct weft_error *error) {
  const uint32_t leader = leader_of(world, world->transport.rank);
  int64_t offset = 0;
  if (world->ranks_on_host == world->transport.rank_count) {
    return WEFT_OK;
  }
  int result = measure_offset(world, leader, &offset);
  MPI_Comm machine = MPI_COMM_NULL;
  if (result == MPI_SUCCESS) { /* the leader is the first of its machine */
    result = MPI_Comm_split(world->control, (int)leader, (int)world->transport.rank, &machine);
  }
  if (result == MPI_SUCCESS) {
    result = MPI_Bcast(&offset, 1, MPI_INT64_T, 0, machine);
    (void)MPI_Comm_free(&machine);
  }
  if (result != MPI_SUCCESS) {
    return weft_fail(error, WEFT_ERR_PEER, "", "MPI failed while the ranks set their clocks");
  }
  world->clock_offset = offset;
  return WEFT_OK;
}
