/* Graphs of stages on the threads transport: the same random graphs as on loopback, with the same
 * bits.
 * Also under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/run.h>
#include <weft/weft.h>

#include "support_graph_model.h"
#include "support_protected_device.h"

enum { MODELS = 60, STEPS = 3 };

struct job {
  struct graph_model *model;
  enum weft_send_model comm;
  const char *complaints[GRAPH_STAGES_MAX]; /* by rank */
};

static enum weft_status run_rank(void *context, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct job *job = context;
  const uint32_t rank = transport->rank;
  struct weft_fixed_source source;
  struct weft_pipeline_options options = graph_model_options(job->model, &source);
  const struct weft_batch batch = graph_model_batch(job->model, rank);
  struct weft_pipeline *pipeline;
  options.comm = job->comm;
  test_device_restrict(transport);
  enum weft_status status = weft_pipeline_create(NULL, transport, &options, &pipeline, error);
  if (status < 0) {
    return status;
  }
  for (uint32_t step = 0; step < STEPS && status == WEFT_OK; step++) {
    const bool training = step != 1;
    struct weft_step_result result;
    status = training ? weft_pipeline_step(pipeline, &batch, &result, error)
                      : weft_pipeline_eval(pipeline, &batch, &result, error);
    if (status == WEFT_OK && job->complaints[rank] == NULL) {
      job->complaints[rank] = graph_model_judge(job->model, rank, training, &result);
    }
  }
  weft_pipeline_destroy(pipeline);
  return status;
}

static void run_model(struct job *job) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *world;
  struct weft_error error;
  options.rank_count = job->model->rank_count;
  assert_int_equal(weft_comm_open(NULL, "threads", &options, &world, &error), WEFT_OK);
  if (weft_comm_run(world, run_rank, job, &error) != WEFT_OK) {
    fail_msg("seed %lu: %s", (unsigned long)job->model->seed, error.message);
  }
  weft_comm_close(world);
  for (uint32_t r = 0; r < job->model->rank_count; r++) {
    if (job->complaints[r] != NULL) {
      fail_msg("seed %lu, rank %u: %s", (unsigned long)job->model->seed, r, job->complaints[r]);
    }
  }
}

static void test_random_graphs(void **state) {
  (void)state;
  struct graph_model *model = malloc(sizeof *model);
  for (uint64_t seed = 1; seed <= MODELS; seed++) {
    struct job job = {.model = model, .comm = (enum weft_send_model)(seed % 3)};
    graph_model_init(model, seed, 1 + (uint32_t)(seed % 6));
    run_model(&job);
    graph_model_finish(model);
  }
  free(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
