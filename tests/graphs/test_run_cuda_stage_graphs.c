/* Stages that form a graph, on GPUs of the fake driver: random graphs, tables and placements of
 * linear stages have the host's losses, outputs and gradients, bit for bit, on one GPU and on
 * several, with ranks on the host, enqueued action by action and as one CUDA graph per step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "fake_cuda.h"
#include "support_cuda_job.h"
#include "support_graph_model.h"

enum { MODELS = 60 };

static struct cuda_results expected, found;

/* The same on the host, with an output for each edge: then the stages add gradients up, and not the
 * runtime. */
static void run_on_host(struct cuda_job *job, struct cuda_results *results) {
  struct weft_error error;
  if (cuda_job_run_on_host(job, results, &error) < 0) {
    fail_msg("%s on the host: %s", job->schedule, error.message);
  }
}

static void run_model(const struct graph_model *model, uint32_t seed) {
  static const struct cuda_step steps[] = {{.outputs = true}, {0}, {0}, {.evaluates = true}, {0}};
  static struct cuda_job job;
  static char name[64];
  struct weft_error error;
  (void)snprintf(name, sizeof name, "graph %u", seed);
  job = (struct cuda_job){.schedule = name,
                          .program = model->program,
                          .ranks = model->rank_count,
                          .microbatches = model->microbatch_count,
                          .steps = steps,
                          .step_count = WEFT_ARRAY_LENGTH(steps),
                          .eager = seed % 3 == 0,
                          .host_ranks = seed % 4 == 1 ? seed / 4 % 8 : 0};
  if (job.host_ranks + 1 == 1u << job.ranks) {
    job.host_ranks = 0; /* one must have a GPU */
  }
  job.own_outputs = true;
  run_on_host(&job, &found);
  job.own_outputs = seed % 5 == 0;
  run_on_host(&job, &expected);
  assert_memory_equal(&expected, &found, sizeof expected);
  fake_cuda_reset(&(struct fake_cuda_options){
      .seed = seed, .devices = 1 + seed % 3, .no_peers = seed % 7 == 0, .queues = 1 + seed % 4});
  if (cuda_job_run(&job, &found, &error) < 0) {
    fail_msg("%s, %u ranks: %s", name, job.ranks, error.message);
  }
  cuda_job_check_findings(&job);
  cuda_job_check_leaks(&job, "at the end");
  assert_memory_equal(&expected, &found, sizeof expected);
}

static void graphs_have_the_bits_of_the_host(void **state) {
  struct graph_model *model = malloc(sizeof *model);
  uint64_t replayed = 0;
  (void)state;
  for (uint32_t seed = 1; seed <= MODELS; seed++) {
    graph_model_init(model, seed, 1 + seed % 4);
    run_model(model, seed);
    replayed += fake_cuda_calls("cuGraphLaunch");
    graph_model_finish(model);
  }
  print_message("%u graphs of stages, %lu steps replayed\n", (unsigned)MODELS,
                (unsigned long)replayed);
  assert_true(replayed > 0);
  free(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(graphs_have_the_bits_of_the_host)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
