/* The blocks of `weft bench gpu-blocks` in a process per rank over NCCL, on a machine with a GPU:
 *
 *     mpirun -n 4 job_blocks_nccl_openmpi [WIDTH [STEPS]]
 *
 * Every schedule that PyTorch has too is run action by action and as a graph per rank; both must have
 * the same bits. Rank 0 prints JSON, with the medians of steps in milliseconds. Each step ends with a
 * barrier, as in bench/pytorch.py gpu, which can start this program. Exit status 77 without a
 * GPU or NCCL. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

#include <weft/gen.h>
#include <weft/support.h>

#include "bench/gpu/bench_gpu.h"

enum { BLOCKS = 8, MICROBATCHES = 8, SKIPPED = 77 };

static MPI_Comm everybody;
static int rank, ranks;

/* What all ranks found: the losses are on one of them. */
static double sum_losses(const struct weft_bench_gpu_result *result) {
  double mine = 0, all = 0;
  for (uint32_t m = 0; m < MICROBATCHES; m++) {
    mine += result->losses[m];
  }
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, everybody);
  return all;
}

static enum weft_status run_schedule(const struct weft_schedule_info *info, uint64_t width,
                                     uint32_t steps, bool first, struct weft_error *error) {
  struct weft_bench_gpu_result results[2];
  for (uint32_t graph = 0; graph < 2; graph++) {
    const struct weft_bench_gpu_case at = {
        .schedule = info->name,
        .ranks = (uint32_t)ranks,
        .microbatches = MICROBATCHES,
        .kind = WEFT_BENCH_GPU_PRODUCTS,
        .rows = width,
        .width = width,
        .wide = 4 * width,
        .layers = BLOCKS / (uint32_t)ranks / info->stages_per_rank_default,
        .steps = steps,
        .eager = graph == 0,
        .no_events = true,
        .communicator = &everybody,
        .own_rank = (uint32_t)rank};
    WEFT_TRY(weft_bench_gpu_run(&at, &results[graph], error));
  }
  const double loss = sum_losses(&results[1]);
  int same = results[0].checksum == results[1].checksum, all = 0;
  MPI_Allreduce(&same, &all, 1, MPI_INT, MPI_MIN, everybody);
  if (rank == 0) {
    printf("%s  {\"case\": \"%s\", \"eager_ms\": %.3f, \"step_ms\": %.3f, \"graph_steps\": %" PRIu64
           ", \"loss_sum\": %.6f}",
           first ? "" : ",\n", info->name, results[0].wall_us / 1e3, results[1].wall_us / 1e3,
           results[1].replayed_steps, loss);
    (void)fflush(stdout);
  }
  return all != 0 ? WEFT_OK
                  : weft_fail(error, WEFT_ERR_DEVICE, "", "%s: eager and graph steps differ",
                              info->name);
}

int main(int argc, char **argv) {
  const uint64_t width = argc > 1 ? strtoull(argv[1], NULL, 10) : 2048;
  const uint32_t steps = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 10;
  struct weft_error error;
  bool first = true;
  int level;
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  everybody = MPI_COMM_WORLD;
  MPI_Comm_rank(everybody, &rank);
  MPI_Comm_size(everybody, &ranks);
  if (argc > 3 || (ranks != 2 && ranks != 4) || width < 8 || steps < 1) {
    fprintf(stderr, "usage: mpirun -n 2|4 %s [WIDTH [STEPS]]\n", argv[0]);
    MPI_Abort(everybody, 2);
  }
  if (rank == 0) {
    printf("{\"schema\": \"weft-blocks-nccl/1\", \"ranks\": %d, \"width\": %" PRIu64
           ", \"blocks\": [\n",
           ranks, width);
  }
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (!info->in_pytorch || !info->trains || info->fixed) {
      continue;
    }
    if (run_schedule(info, width, steps, first, &error) < 0) {
      fprintf(stderr, "rank %d: %s: %s\n", rank, info->name, error.message);
      MPI_Abort(everybody, error.status == WEFT_ERR_UNAVAILABLE ? SKIPPED : 1);
    }
    first = false;
  }
  if (rank == 0) {
    printf("\n]}\n");
  }
  MPI_Finalize();
  return 0;
}
