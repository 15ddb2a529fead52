/* See support_cuda_seeds.h. */
#include "support_cuda_seeds.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "../device/fake_cuda/fake_cuda.h"

struct seeds {
  uint64_t first;
  uint32_t replays;
  struct cuda_results expected;
};

static struct fake_cuda_options draw_options(uint64_t seed) {
  struct weft_random random = {.state = seed};
  const uint32_t policy = (uint32_t)(weft_random_share(&random) * 8);
  return (struct fake_cuda_options){
      .seed = seed,
      .queues = 1 + (uint32_t)(weft_random_share(&random) * 32),
      .policy = policy < 4 ? (enum fake_cuda_policy)policy : FAKE_CUDA_RANDOM,
      .starved = (uint32_t)(weft_random_share(&random) * 24),
      .query_nodes = 1 + (uint32_t)(weft_random_share(&random) * 64)};
}

static void before(struct cuda_job *job, uint32_t step) {
  const struct seeds *seeds = job->context;
  const struct fake_cuda_options options = draw_options(seeds->first + step);
  memset(job->results->losses[0], 0xff, sizeof job->results->losses[0]);
  fake_cuda_reset(&options);
  fake_cuda_mark();
  if (step + 1 == job->step_count) {
    fake_cuda_recording_begin();
  }
}

/* The last step's calls once more, in as many orders. */
static void replay(const struct cuda_job *job, struct fake_cuda_recording *recording,
                   uint64_t first, uint32_t count) {
  assert_in_range(fake_cuda_recording_nodes(recording), job->ranks, 100000);
  for (uint32_t k = 0; k < count; k++) {
    const struct fake_cuda_options options = draw_options(first + k);
    const char *finding = fake_cuda_replay(recording, &options);
    if (finding != NULL) {
      fail_msg("%s, %u ranks, %s: %s", job->schedule, job->ranks, job->eager ? "eager" : "graph",
               finding);
    }
  }
  fake_cuda_recording_free(recording);
}

static void after(struct cuda_job *job, uint32_t step) {
  const struct seeds *seeds = job->context;
  const struct cuda_results *expected = &seeds->expected;
  const struct fake_cuda_statistics done = fake_cuda_statistics();
  const uint64_t launches = fake_cuda_calls("cuGraphLaunch");
  const bool is_last = step + 1 == job->step_count;
  struct fake_cuda_recording *recording = is_last ? fake_cuda_recording_end() : NULL;
  char what[128];
  cuda_job_read_grads(job);
  (void)snprintf(what, sizeof what, "%s, %u ranks, %s, seed %" PRIu64, job->schedule, job->ranks,
                 job->eager ? "eager" : "graph", seeds->first + step);
  cuda_job_check_findings(job);
  if (!cuda_job_same(job->results->losses[0], expected->losses[0],
                     job->microbatches * sizeof(double)) ||
      !cuda_job_same(job->results->grads, expected->grads, sizeof expected->grads)) {
    fail_msg("%s: other bits than the host's; loss %.17g, on the host %.17g", what,
             job->results->losses[0][0], expected->losses[0][0]);
  }
  if (launches != (!job->eager && step > 0)) {
    fail_msg("%s: %" PRIu64 " graphs in step %" PRIu32, what, launches, step);
  }
  if (step > 0 && done.allocations > 0) {
    fail_msg("%s: %" PRIu64 " allocations in step %" PRIu32, what, done.allocations, step);
  }
  if (is_last) {
    replay(job, recording, seeds->first + job->step_count, seeds->replays);
  }
}

/* As many as ranks, or what the schedule needs: one of a fixed shape has its own number. */
static bool find_microbatches(struct cuda_job *job) {
  if (cuda_job_fits(job)) {
    return true;
  }
  for (job->microbatches = CUDA_MICROBATCHES_MAX; job->microbatches > 0; job->microbatches--) {
    if (cuda_job_fits(job)) {
      return true;
    }
  }
  return false;
}

uint32_t cuda_seeds_run(const char *schedule, uint32_t ranks, bool eager, uint64_t first,
                        uint32_t count, uint32_t replays) {
  static struct seeds seeds;
  static struct cuda_job job;
  static struct cuda_results results;
  struct weft_error error;
  job = (struct cuda_job){.schedule = schedule,
                          .ranks = ranks,
                          .microbatches = 2 * ranks - first % 2,
                          .step_count = 1,
                          .eager = eager,
                          .no_events = first % 3 == 0,
                          .partitions = first % 4 == 0 ? ranks : 0,
                          .before = before,
                          .after = after,
                          .context = &seeds};
  if (!find_microbatches(&job)) {
    return 0;
  }
  seeds.first = first;
  seeds.replays = replays;
  if (cuda_job_run_on_host(&job, &seeds.expected, &error) < 0) {
    fail_msg("%s, %u ranks, on the host: %s", schedule, ranks, error.message);
  }
  job.step_count = count;
  fake_cuda_reset(&(struct fake_cuda_options){.seed = first});
  if (cuda_job_run(&job, &results, &error) < 0) {
    fail_msg("%s, %u ranks, %s, from seed %" PRIu64 " on: %s", schedule, ranks,
             eager ? "eager" : "graph", first, error.message);
  }
  cuda_job_check_findings(&job);
  cuda_job_check_leaks(&job, "at the end");
  return count + replays;
}
