/* Linear stages on GPUs beside the host: losses and gradients must have the same bits on every
 * schedule, enqueued action by action and as a graph.
 *
 *     job_cuda [PARTITIONS [RANKS...]]
 *
 * Prints a line per case that differs or fails, and a summary. Exit status: 0 all the same, 1 not,
 * 77 without a GPU. On the fake driver (fake_cuda/) it runs without one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_cuda_job.h"

enum { STEPS = 4 };

static bool compare(struct cuda_job *job, bool eager, const struct cuda_results *expected) {
  static struct cuda_results found;
  struct weft_error error;
  const char *how = eager ? "eager" : "graph";
  job->eager = eager;
  if (cuda_job_run(job, &found, &error) < 0) {
    printf("%s, %" PRIu32 " ranks, %s: %s\n  hint: %s\n", job->schedule, job->ranks, how,
           error.message, error.hint);
    if (error.status == WEFT_ERR_UNAVAILABLE) {
      exit(77);
    }
    return false;
  }
  if (!cuda_job_same(expected, &found, sizeof found)) {
    printf("%s, %" PRIu32 " ranks, %s: other bits (loss %.17g, on the host %.17g)\n", job->schedule,
           job->ranks, how, found.losses[0][0], expected->losses[0][0]);
    return false;
  }
  return true;
}

static bool check_schedule(struct cuda_job *job, uint32_t *cases) {
  static struct cuda_results expected;
  struct weft_error error;
  if (!cuda_job_fits(job)) {
    return true; /* the schedule does not have this shape */
  }
  if (cuda_job_run_on_host(job, &expected, &error) < 0) {
    printf("%s on the host: %s\n", job->schedule, error.message);
    return false;
  }
  const bool eager = compare(job, true, &expected), graph = compare(job, false, &expected);
  *cases += 2;
  return eager && graph;
}

static bool check_ranks(uint32_t ranks, uint32_t partitions, uint32_t *cases) {
  static struct cuda_job job;
  bool same = true;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (info->trains && !info->fixed) {
      job = (struct cuda_job){.schedule = info->name,
                              .ranks = ranks,
                              .microbatches = 2 * ranks,
                              .step_count = STEPS,
                              .partitions = partitions};
      same = check_schedule(&job, cases) && same;
    }
  }
  return same;
}

int main(int argc, char **argv) {
  const uint32_t partitions = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
  uint32_t cases = 0;
  bool same = true;
  for (int k = 2; k < argc; k++) {
    const int ranks = atoi(argv[k]);
    if (ranks < 1 || ranks > CUDA_RANKS_MAX) {
      printf("%s ranks: from 1 to %d\n", argv[k], CUDA_RANKS_MAX);
      return 1;
    }
    same = check_ranks((uint32_t)ranks, partitions, &cases) && same;
  }
  if (argc <= 2) {
    same = check_ranks(2, partitions, &cases) && same;
    same = check_ranks(4, partitions, &cases) && same;
  }
  printf("%" PRIu32 " runs on GPUs: %s\n", cases,
         same ? "losses and gradients have the host's bits" : "not all as on the host");
  return same ? 0 : 1;
}
