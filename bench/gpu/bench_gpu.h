/* What `weft bench gpu` measures (bench_gpu.c) with worlds of ranks on a GPU (bench_gpu_world.c),
 * with stages of matrix products (bench_gpu_stages.c), and beside bare calls of the driver
 * (bench_gpu_calls.c). */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include <weft/costs.h>
#include <weft/cuda.h>
#include <weft/run.h>

#include "bench/bench.h"

enum { WEFT_BENCH_GPU_MICROBATCHES_MAX = 256, WEFT_BENCH_GPU_STAGES_MAX = 128 };

enum weft_bench_gpu_kind {
  WEFT_BENCH_GPU_NULL,
  WEFT_BENCH_GPU_TIMED,   /* one thread of the GPU spins */
  WEFT_BENCH_GPU_LINEAR,  /* of bench/linear */
  WEFT_BENCH_GPU_PRODUCTS /* bf16 products by cublasLt */
};

struct weft_bench_gpu_case {
  const char *schedule;
  uint32_t ranks, stages_per_rank, microbatches; /* stages_per_rank 0: the schedule's own */
  uint32_t partitions;                           /* of the GPU; 0: none */
  enum weft_bench_gpu_kind kind;
  double gap_us;              /* TIMED: more of each, in a second simulation */
  int64_t stage_ns;           /* TIMED: of F, I and W; B takes both */
  uint64_t rows, width, wide; /* PRODUCTS: see below */
  uint32_t layers;            /* of a stage */
  uint32_t sms;               /* of a partition; 0: whole */
  bool on_host, eager, no_events;
  void *
      communicator; /* an MPI_Comm: this process is `own_rank` of it, over NCCL, and has the results
                         of its own stages; each step ends with a barrier. NULL: all ranks are here */
  uint32_t own_rank;
  uint32_t steps; /* that are timed by the host, after three that are not */
  uint32_t noted; /* and then by the GPU's clock */
};

struct weft_bench_gpu_result {
  double wall_us;          /* of a step: the median */
  double fastest_us;       /* the fastest step */
  double gpu_us;           /* from its first compute to its last, by the GPU's clock: the median */
  double simulated_us;     /* TIMED: from stage_ns; else from the means of what its actions took */
  double gap_simulated_us; /* TIMED: with gap_us */
  uint64_t compute, receives; /* actions of the program */
  uint64_t transfers;         /* SEND and RECV */
  uint64_t cells;             /* of all ranks: compute, where an overlap is one */
  uint64_t allocations;       /* of the GPU's memory, by all steps but the first */
  uint64_t memory_bytes;      /* of the GPU, that all ranks hold */
  uint64_t stage_bytes;       /* of them weights, gradients and what stages keep for backwards */
  double simulated_bytes;     /* of the same; 0: not known */
  int64_t graph_bytes;        /* that the driver took for the second step, which is recorded */
  int64_t later_bytes;        /* and after it */
  uint64_t replayed_steps;
  uint64_t checksum; /* of losses and gradients; 0: not known */
  double losses[WEFT_BENCH_GPU_MICROBATCHES_MAX];
};

/* Runs all steps. WEFT_ERR_UNAVAILABLE: no GPU, or no cublasLt where it is needed. WEFT_ERR_USAGE:
 * the schedule does not have this shape. */
enum weft_status weft_bench_gpu_run(const struct weft_bench_gpu_case *at,
                                    struct weft_bench_gpu_result *result, struct weft_error *error);

/* ---- Stages of products ---- */

/* A stage is `layers` blocks of y = x + W2 gelu(W1 x), without biases; W1 is [wide][width], W2 is
 * [width][wide], x and y are [rows][width]; all bf16, with sums in fp32. Weights, inputs and targets
 * are functions of their index, so that another program can have the same
 * (bench/pytorch.py gpu). The loss is the sum of outputs times targets. */
struct weft_bench_gpu_plans; /* the products, which all stages share */
struct weft_bench_gpu_stage;

enum weft_status weft_bench_gpu_plans_open(struct weft_device *device,
                                           const struct weft_bench_gpu_case *at,
                                           struct weft_bench_gpu_plans **out,
                                           struct weft_error *error);
void weft_bench_gpu_plans_close(struct weft_bench_gpu_plans *plans);

enum weft_status weft_bench_gpu_stage_create(struct weft_bench_gpu_plans *plans,
                                             struct weft_device *device, uint32_t number,
                                             uint32_t stage_count, uint32_t microbatches,
                                             struct weft_bench_gpu_stage **out,
                                             struct weft_error *error);
void weft_bench_gpu_stage_destroy(struct weft_bench_gpu_stage *stage);
struct weft_stage *weft_bench_gpu_stage_base(struct weft_bench_gpu_stage *stage);

/* Sets the sizes of a stage for a simulation; *bytes is what weights and gradients have. */
void weft_bench_gpu_stage_sizes(const struct weft_bench_gpu_stage *stage,
                                struct weft_stage_costs *costs, uint64_t *bytes);
/* After a step: a checksum of the gradients, and to losses[microbatch], of the last stage, added its
 * losses. */
enum weft_status weft_bench_gpu_stage_read(const struct weft_bench_gpu_stage *stage,
                                           uint64_t *checksum, double *losses,
                                           struct weft_error *error);

/* ---- Bare calls ---- */

/* Nanoseconds of the host per call. */
struct weft_bench_gpu_calls {
  double record, timed_record, wait, launch, elapsed, query;
};
enum weft_status weft_bench_gpu_calls(struct weft_device *device,
                                      struct weft_bench_gpu_calls *calls, struct weft_error *error);

/* A graph with the nodes of a step of null stages: for each rank a chain of `cells` / ranks + 1
 * kernels. Microseconds: of the launch alone, and of launch and wait less the GPU's own time. */
enum weft_status weft_bench_gpu_graph(const struct weft_bench_gpu_case *at, uint64_t cells,
                                      double *launch_us, double *host_us, struct weft_error *error);

/* Microseconds between stages of 100 us in a bare graph, each of which waits for the one before: in
 * one stream, or in two by turns. */
enum weft_status weft_bench_gpu_gap(struct weft_cuda *cuda, bool across, double *gap_us,
                                    struct weft_error *error);

/* Free memory of rank 0's GPU; 0: not known. */
uint64_t weft_bench_gpu_free_bytes(struct weft_cuda *cuda);

#endif
