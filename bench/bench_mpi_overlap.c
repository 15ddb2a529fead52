/* A transfer beside a compute that takes as long. The compute is a fixed amount of
 * arithmetic, not a time to pass, so that whatever takes the core away from it shows; it
 * pokes the transport now and then, as stages do. Three things in turns, again and again:
 * the transfer alone, the compute alone, and both. */
#include <string.h>

#include <weft/support.h>

#include "bench/bench_clock.h"
#include "bench/bench_mpi.h"

enum {
  TRIALS_PER_REPEAT = 5,
  TRIALS_MAX = WEFT_CLI_BENCH_REPEATS_MAX * TRIALS_PER_REPEAT,
  CHUNK_NS = 20 * 1000, /* between two pokes */
  CALIBRATION_LOOPS = 200000,
  CALIBRATIONS = 9,
  SLOW_NS = 100 * 1000 * 1000
};

struct series {
  uint32_t count;
  uint64_t ns[TRIALS_MAX];
};

struct bench {
  struct weft_cli_job *job;
  uint32_t channel; /* from rank 0 */
  struct weft_message message;
  uint32_t chunk_loops; /* of 20 us */
  uint64_t chunks;
  volatile uint64_t sum; /* so that nothing is left out */
  struct series transfer, compute, both;
};

/* ---- Compute ---- */

static void work(struct bench *bench, uint32_t loops) {
  uint64_t x = bench->sum + 1;
  for (uint32_t k = 0; k < loops; k++) {
    x = x * UINT64_C(6364136223846793005) + k;
  }
  bench->sum = x;
}

/* The calmest counts: what a loop takes when nobody disturbs it. */
static void calibrate(struct bench *bench) {
  uint64_t best = UINT64_MAX;
  for (int k = 0; k < CALIBRATIONS; k++) {
    const uint64_t begin = weft_cli_clock_ns();
    work(bench, CALIBRATION_LOOPS);
    const uint64_t took = weft_cli_clock_ns() - begin;
    best = took < best ? took : best;
  }
  bench->chunk_loops = (uint32_t)((uint64_t)CALIBRATION_LOOPS * CHUNK_NS / (best > 0 ? best : 1));
}

static void compute(struct bench *bench) {
  struct weft_transport *transport = bench->job->transport;
  for (uint64_t k = 0; k < bench->chunks; k++) {
    work(bench, bench->chunk_loops);
    if (!transport->ops->async_progress) {
      transport->ops->progress_from_compute(transport);
    }
  }
}

/* ---- A trial ---- */

static enum weft_status start(struct bench *bench, struct weft_error *error) {
  struct weft_transport *transport = bench->job->transport;
  return transport->rank == 0
             ? transport->ops->send(transport, bench->channel, &bench->message, error)
             : transport->ops->receive(transport, bench->channel, &bench->message, error);
}

static enum weft_status meet(struct bench *bench, struct weft_error *error) {
  char mine = 0, all[WEFT_CLI_MPI_RANKS];
  return weft_allgather(bench->job->transport, &mine, all, 1, 0, error);
}

static enum weft_status run_trial(struct bench *bench, bool transfers, bool computes,
                                  struct series *series, struct weft_error *error) {
  enum weft_status status = meet(bench, error);
  const uint64_t begin = weft_cli_clock_ns();
  if (status == WEFT_OK && transfers) {
    status = start(bench, error);
  }
  if (status == WEFT_OK && computes) {
    compute(bench);
  }
  if (status == WEFT_OK && transfers) {
    status = weft_cli_job_await(bench->job->transport, &bench->message, error);
  }
  if (status == WEFT_OK && series->count < TRIALS_MAX) {
    series->ns[series->count++] = weft_cli_clock_ns() - begin;
  }
  return status;
}

/* All ranks compute for as long as the receiver's transfer takes alone. */
static enum weft_status fit_compute(struct bench *bench, struct weft_error *error) {
  uint64_t all[WEFT_CLI_MPI_RANKS];
  enum weft_status status = WEFT_OK;
  for (int k = 0; k <= TRIALS_PER_REPEAT && status == WEFT_OK; k++) {
    status = run_trial(bench, true, false, &bench->transfer, error);
  }
  const uint64_t mine = weft_cli_median(bench->transfer.ns, bench->transfer.count);
  if (status == WEFT_OK) {
    status = weft_allgather(bench->job->transport, &mine, all, sizeof mine, 0, error);
  }
  if (status == WEFT_OK) {
    bench->chunks = all[1] / CHUNK_NS > 0 ? all[1] / CHUNK_NS : 1;
  }
  return status;
}

/* ---- A case ---- */

static bool computes_in(enum weft_cli_mpi_case which, uint32_t rank) {
  return which == WEFT_CLI_MPI_BOTH || (which == WEFT_CLI_MPI_RECEIVER) == (rank == 1);
}

static enum weft_status run_case(struct bench *bench, enum weft_cli_mpi_case which, uint64_t trials,
                                 struct weft_cli_mpi_times *times, struct weft_error *error) {
  const bool computes = computes_in(which, bench->job->transport->rank);
  enum weft_status status = WEFT_OK;
  bench->transfer.count = bench->compute.count = bench->both.count = 0;
  for (uint64_t k = 0; k < trials && status == WEFT_OK; k++) {
    status = run_trial(bench, true, false, &bench->transfer, error);
    if (status == WEFT_OK) {
      status = run_trial(bench, false, computes, &bench->compute, error);
    }
    if (status == WEFT_OK) {
      status = run_trial(bench, true, computes, &bench->both, error);
    }
  }
  *times = (struct weft_cli_mpi_times){
      .transfer_ns = weft_cli_median(bench->transfer.ns, bench->transfer.count),
      .compute_ns = weft_cli_median(bench->compute.ns, bench->compute.count),
      .both_ns = weft_cli_median(bench->both.ns, bench->both.count)};
  return status;
}

static enum weft_status run_cases(struct bench *bench, uint64_t repeats,
                                  struct weft_cli_mpi_overlap *overlap, struct weft_error *error) {
  enum weft_status status = fit_compute(bench, error);
  overlap->bytes = bench->message.capacity;
  for (int k = 0; k < WEFT_CLI_MPI_CASES && status == WEFT_OK; k++) {
    struct weft_cli_mpi_times mine, all[WEFT_CLI_MPI_RANKS];
    status = run_case(bench, (enum weft_cli_mpi_case)k, repeats * TRIALS_PER_REPEAT, &mine, error);
    if (status == WEFT_OK) {
      status = weft_allgather(bench->job->transport, &mine, all, sizeof mine, 0, error);
    }
    if (status == WEFT_OK) {
      overlap->sender[k] = all[0];
      overlap->receiver[k] = all[1];
    }
  }
  return status;
}

double weft_cli_mpi_cost(const struct weft_cli_mpi_overlap *overlap,
                         const struct weft_cli_mpi_times *times) {
  const double transfer = (double)overlap->receiver[WEFT_CLI_MPI_BOTH].transfer_ns;
  return transfer > 0 ? ((double)times->both_ns - (double)times->compute_ns) / transfer : 0;
}

/* Of the sizes of the ping-pong the largest that does not take long. What rank 0 has
 * measured holds for both. */
static enum weft_status choose_size(struct bench *bench, const struct weft_cli_mpi_way *way,
                                    uint64_t *bytes, struct weft_error *error) {
  uint32_t mine = WEFT_CLI_MPI_SIZES - 1, all[WEFT_CLI_MPI_RANKS];
  while (mine > 0 && way->sizes[mine].weft_ns > SLOW_NS) {
    mine--;
  }
  const enum weft_status status =
      weft_allgather(bench->job->transport, &mine, all, sizeof mine, 0, error);
  if (status == WEFT_OK) {
    bench->channel = 2 * all[0];
    *bytes = way->sizes[all[0]].bytes;
  }
  return status;
}

static enum weft_status measure(struct bench *bench, uint64_t bytes, uint64_t repeats,
                                struct weft_cli_mpi_way *way, struct weft_error *error) {
  const struct weft_allocator *allocator = bench->job->cli.allocator;
  void *data = weft_array_allocate(allocator, (size_t)bytes, 1);
  if (data == NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
    return WEFT_ERR_MEMORY;
  }
  memset(data, 0, (size_t)bytes);
  bench->message = (struct weft_message){
      .header = {.magic = WEFT_MESSAGE_MAGIC, .protocol = WEFT_PROTOCOL, .bytes = bytes},
      .data = data,
      .capacity = bytes};
  calibrate(bench);
  const enum weft_status status = run_cases(bench, repeats, &way->overlap, error);
  way->has_overlap = status == WEFT_OK;
  weft_array_free(allocator, data, (size_t)bytes, 1);
  return status;
}

enum weft_status weft_cli_bench_mpi_overlap(struct weft_cli_job *job, uint64_t repeats,
                                            struct weft_cli_mpi_way *way,
                                            struct weft_error *error) {
  const struct weft_allocator *allocator = job->cli.allocator;
  struct bench *bench = weft_array_allocate(allocator, 1, sizeof *bench);
  uint64_t bytes;
  if (bench == NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
    return WEFT_ERR_MEMORY;
  }
  memset(bench, 0, sizeof *bench);
  bench->job = job;
  enum weft_status status = choose_size(bench, way, &bytes, error);
  if (status == WEFT_OK) {
    status = measure(bench, bytes, repeats, way, error);
  }
  weft_array_free(allocator, bench, 1, sizeof *bench);
  return status;
}
