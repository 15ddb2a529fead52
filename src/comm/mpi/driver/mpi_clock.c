/* One time for all hosts: CLOCK_MONOTONIC of rank 0's machine. Ranks on other
 * machines estimate once, when the world is made, how far theirs is off: the one of
 * some round trips that took least, half of it each way. Good to about half a round
 * trip; the clocks' drift afterwards is not followed.
 *
 * A message is stamped at both ends, and the clock costs as much as all else that is done
 * about its header. So where the system itself keeps time by the processor's counter, stamps
 * are counted from a reading of the clock that is at most 0.1 ms old. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <weft/support.h>

#include "comm/mpi/driver/mpi_world.h"

enum {
  ROUND_TRIPS = 32,
  STAMP_NS = 100 * WEFT_MPI_NS_PER_US,    /* a reading is good for so long */
  RATE_NS = 10 * WEFT_MPI_NS_PER_MS,      /* the counter's rate is known after so long, */
  RATE_NS_MAX = 1000 * WEFT_MPI_NS_PER_MS /* and taken anew after so long */
};

int64_t weft_mpi_monotonic(void) {
  struct timespec time;
  (void)clock_gettime(CLOCK_MONOTONIC, &time); /* cannot fail: the clock exists */
  return (int64_t)time.tv_sec * WEFT_MPI_NS_PER_S + time.tv_nsec;
}

#ifdef __x86_64__

static uint64_t read_counter(void) { return __builtin_ia32_rdtsc(); }

/* The system has found the counters of all processors to be one and steady. */
static bool has_counter(void) {
  char line[16] = "";
  FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
  const bool is_tsc =
      file != NULL && fgets(line, sizeof line, file) != NULL && strcmp(line, "tsc\n") == 0;
  if (file != NULL) {
    (void)fclose(file);
  }
  return is_tsc;
}

#else

static uint64_t read_counter(void) { return 0; }

static bool has_counter(void) { return false; }

#endif

void weft_mpi_stamps_create(struct weft_mpi_stamps *stamps) {
  *stamps = (struct weft_mpi_stamps){.has_counter = has_counter()};
}

/* Reads the clock; and the counter's rate, over the time since the last. */
static int64_t read_clock(struct weft_mpi_stamps *stamps) {
  const int64_t now = weft_mpi_monotonic();
  const uint64_t count = read_counter();
  const int64_t passed = now - stamps->rate_from;
  if (stamps->rate_from == 0 || passed > RATE_NS) {
    const double counted = (double)(count - stamps->rate_count);
    stamps->ns_per_count =
        stamps->rate_from != 0 && counted > 0 ? (double)passed / counted : stamps->ns_per_count;
    if (stamps->rate_from == 0 || passed > RATE_NS_MAX) {
      stamps->rate_from = now;
      stamps->rate_count = count;
    }
  }
  if (stamps->ns_per_count > 0) {
    stamps->clock = now;
    stamps->count = count;
    stamps->counts = (uint64_t)(STAMP_NS / stamps->ns_per_count);
  }
  return now;
}

int64_t weft_mpi_stamp(struct weft_mpi_world *world) {
  struct weft_mpi_stamps *stamps = &world->stamps;
  if (!stamps->has_counter) {
    return weft_mpi_time(world);
  }
  const uint64_t counted = read_counter() - stamps->count;
  const int64_t now =
      counted < stamps->counts
          ? stamps->clock + (int64_t)((double)(int64_t)counted * stamps->ns_per_count)
          : read_clock(stamps);
  return now + world->clock_offset;
}

int64_t weft_mpi_now(struct weft_transport *transport) {
  return weft_mpi_time(weft_mpi_world_of(transport));
}

void weft_mpi_sleep(int64_t ns) {
  const struct timespec time = {.tv_sec = (time_t)(ns / WEFT_MPI_NS_PER_S),
                                .tv_nsec = (long)(ns % WEFT_MPI_NS_PER_S)};
  (void)nanosleep(&time, NULL); /* may end early */
}

/* The lowest rank of the machine that `rank` is on. */
static uint32_t leader_of(const struct weft_mpi_world *world, uint32_t rank) {
  uint32_t leader = 0;
  while (!weft_mpi_same_machine(world, leader, rank)) {
    leader++;
  }
  return leader;
}

/* Rank 0's side. */
static int answer(const struct weft_mpi_world *world, uint32_t rank) {
  int result = MPI_SUCCESS;
  for (int k = 0; k < ROUND_TRIPS && result == MPI_SUCCESS; k++) {
    int64_t time;
    result = MPI_Recv(&time, 1, MPI_INT64_T, (int)rank, 0, world->control, MPI_STATUS_IGNORE);
    time = weft_mpi_monotonic();
    if (result == MPI_SUCCESS) {
      result = MPI_Send(&time, 1, MPI_INT64_T, (int)rank, 0, world->control);
    }
  }
  return result;
}

static int ask(const struct weft_mpi_world *world, int64_t *offset) {
  int64_t shortest = INT64_MAX;
  int result = MPI_SUCCESS;
  for (int k = 0; k < ROUND_TRIPS && result == MPI_SUCCESS; k++) {
    const int64_t before = weft_mpi_monotonic();
    int64_t time = before;
    result = MPI_Send(&time, 1, MPI_INT64_T, 0, 0, world->control);
    if (result == MPI_SUCCESS) {
      result = MPI_Recv(&time, 1, MPI_INT64_T, 0, 0, world->control, MPI_STATUS_IGNORE);
    }
    const int64_t after = weft_mpi_monotonic();
    if (after - before < shortest) {
      shortest = after - before;
      *offset = time - (before + shortest / 2);
    }
  }
  return result;
}

static int measure(struct weft_mpi_world *world, uint32_t leader, int64_t *offset) {
  const uint32_t rank = world->transport.rank;
  int result = MPI_SUCCESS;
  for (uint32_t r = 1; rank == 0 && r < world->transport.rank_count; r++) {
    if (result == MPI_SUCCESS && leader_of(world, r) == r) {
      result = answer(world, r);
    }
  }
  return rank != 0 && leader == rank ? ask(world, offset) : result;
}

enum weft_status weft_mpi_clock_agree(struct weft_mpi_world *world, struct weft_error *error) {
  const uint32_t count = world->transport.rank_count;
  const uint32_t leader = leader_of(world, world->transport.rank);
  int64_t offset = 0;
  bool one_machine = true;
  for (uint32_t r = 1; r < count; r++) {
    one_machine &= weft_mpi_same_machine(world, 0, r);
  }
  if (one_machine) {
    return WEFT_OK;
  }
  int result = measure(world, leader, &offset);
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
