/* Linear stages on GPUs, mostly those of the fake driver: steps of a whole world, whose losses and
 * gradients can be compared with the host's. */
#ifndef SUPPORT_CUDA_JOB_H
#define SUPPORT_CUDA_JOB_H

#include <pthread.h>

#include <weft/comm.h>
#include <weft/cuda.h>
#include <weft/run.h>
#include <weft/source.h>

#include "../device/fake_cuda/fake_cuda.h"
#include "bench/linear/linear_stage.h"

enum {
  CUDA_WIDTH = 6,
  CUDA_ROWS = 2, /* of a microbatch; the first has one more */
  CUDA_RANKS_MAX = 8,
  CUDA_STAGES_MAX = 32,
  CUDA_MICROBATCHES_MAX = 20,
  CUDA_STEPS_MAX = 16
};

struct cuda_step {
  uint32_t microbatches; /* 0: the job's */
  const char *schedule;  /* from here on; NULL: as before */
  bool twice;            /* sets the job's first schedule again, and then this one */
  bool evaluates;
  bool even;    /* the first microbatch has no row more */
  bool outputs; /* wants them: such a step is no graph */
};

struct cuda_results {
  double losses[CUDA_STEPS_MAX][CUDA_MICROBATCHES_MAX];             /* of the first steps */
  float outputs[CUDA_MICROBATCHES_MAX * CUDA_ROWS + 1][CUDA_WIDTH]; /* of the last that has them */
  float grads[CUDA_STAGES_MAX][CUDA_WIDTH * CUDA_WIDTH];
};

struct cuda_job {
  const char *schedule;
  const struct weft_program *program; /* instead of a schedule, maybe of a graph; NULL: none */
  bool own_outputs;                   /* stages of a graph have an output for each edge */
  uint32_t ranks, microbatches;
  const struct weft_allocator *allocator; /* of pipelines; NULL: the default */
  const struct cuda_step *steps;          /* [step_count]; NULL: all train with `microbatches` */
  uint32_t step_count;
  const uint32_t *gpus; /* NULL: all */
  uint32_t gpu_count, partitions;
  uint32_t host_ranks; /* bit r: rank r is on the host */
  void *
      communicator; /* an MPI_Comm: this process is `own_rank` of it, over NCCL, and has the results
                          of its stages alone; NULL: all ranks are threads */
  uint32_t own_rank;
  bool eager, no_events;
  int64_t stall_limit;                /* 0: the default */
  bool (*interrupted)(void *context); /* if given: weft_pipeline_options's */
  /* If given: called when the stages are made, before there are pipelines. */
  void (*with_stages)(struct cuda_job *job);
  /* If given: ends training steps on GPUs (weft_pipeline_options). */
  enum weft_status (*finish)(struct cuda_job *job, uint32_t rank, uint32_t pass,
                             struct weft_stream *stream, struct weft_error *error);
  /* If given: rank 0 calls them before and after each step, when no rank is in one. After a step
   * results->losses[0] is this step's, and cuda_job_read_grads() reads results->grads. */
  void (*before)(struct cuda_job *job, uint32_t step);
  void (*after)(struct cuda_job *job, uint32_t step);
  /* If given: each rank calls it after each step. */
  void (*look)(struct cuda_job *job, const struct weft_pipeline *pipeline, uint32_t rank,
               uint32_t step);
  void *context;

  /* What came of it. */
  struct cuda_results *results;
  uint32_t stage_count;
  struct weft_error errors[CUDA_RANKS_MAX]; /* status WEFT_OK: none */
  uint32_t failed_ranks;
  uint32_t stuck_ranks; /* weft_comm_stuck_ranks() */
  char log[4096];       /* lines of the first rank on a GPU */

  /* Its own. */
  struct fake_cuda_statistics objects; /* before the run: the driver's objects */
  struct weft_cuda *cuda;
  pthread_barrier_t barrier;
  uint32_t rank_of[CUDA_STAGES_MAX];
  struct weft_named_source sources[CUDA_STEPS_MAX + 1];
  struct weft_fixed_source fixed; /* of the program */
  struct weft_linear_stage stages[CUDA_STAGES_MAX];
};

/* Whether the schedule exists for so many ranks and microbatches; finds out its stages. */
bool cuda_job_fits(struct cuda_job *job);

/* On the host; and on GPUs, which are opened for it and closed. */
enum weft_status cuda_job_run_on_host(struct cuda_job *job, struct cuda_results *results,
                                      struct weft_error *error);
enum weft_status cuda_job_run(struct cuda_job *job, struct cuda_results *results,
                              struct weft_error *error);

void cuda_job_read_grads(struct cuda_job *job);
/* Leaves what the stages of a rank have, as such a process has it. */
void cuda_job_keep_rank(const struct cuda_job *job, uint32_t rank, struct cuda_results *results);

/* Whether both have the same bits. */
bool cuda_job_same(const void *a, const void *b, size_t bytes);

/* Whether the fake driver holds more than before the run. */
bool cuda_job_leaks(const struct cuda_job *job);

/* Fails the test if the fake driver found something; and if it holds more than before the run. */
void cuda_job_check_findings(const struct cuda_job *job);
void cuda_job_check_leaks(const struct cuda_job *job, const char *what);

#endif
