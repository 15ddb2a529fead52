/* Graphs of stages under mpirun, a process per rank: random graphs have the losses, outputs and
 * gradients of a plain evaluation, bit for bit. Every process draws the same graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <mpi.h>

#include <weft/comm.h>
#include <weft/run.h>
#include <weft/weft.h>

#include "support_graph_model.h"

enum { MODELS = 12, STEPS = 3, HANG_SECONDS = 240 };

struct job {
  struct graph_model *model;
  const char *complaint;
};

static enum weft_status run_rank(void *context, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct job *job = context;
  const uint32_t rank = transport->rank;
  struct weft_fixed_source source;
  struct weft_pipeline_options options = graph_model_options(job->model, &source);
  const struct weft_batch batch = graph_model_batch(job->model, rank);
  struct weft_pipeline *pipeline;
  options.comm = (enum weft_send_model)(job->model->seed % 3);
  options.check_payloads = job->model->seed % 2 == 0;
  enum weft_status status = weft_pipeline_create(NULL, transport, &options, &pipeline, error);
  if (status < 0) {
    return status;
  }
  for (uint32_t step = 0; step < STEPS && status == WEFT_OK; step++) {
    const bool training = step != 1;
    struct weft_step_result result;
    status = training ? weft_pipeline_step(pipeline, &batch, &result, error)
                      : weft_pipeline_eval(pipeline, &batch, &result, error);
    if (status == WEFT_OK && job->complaint == NULL) {
      job->complaint = graph_model_judge(job->model, rank, training, &result);
    }
  }
  weft_pipeline_destroy(pipeline);
  return status;
}

static void graphs_have_the_bits_of_one_process(void **state) {
  static MPI_Comm everybody;
  struct graph_model *model = malloc(sizeof *model);
  uint32_t models = 0;
  int size;
  (void)state;
  everybody = MPI_COMM_WORLD;
  MPI_Comm_size(everybody, &size);
  for (uint64_t seed = 1; models < MODELS; seed++) {
    struct job job = {.model = model};
    struct weft_comm_options options = weft_comm_options_default();
    struct weft_comm *world;
    struct weft_error error;
    graph_model_init(model, seed, (uint32_t)size);
    if (model->rank_count == (uint32_t)size) { /* else it has fewer stages */
      options.communicator = &everybody;
      assert_int_equal(weft_comm_open(NULL, "mpi", &options, &world, &error), WEFT_OK);
      if (weft_comm_run(world, run_rank, &job, &error) != WEFT_OK) {
        fail_msg("seed %lu: %s", (unsigned long)seed, error.message);
      }
      weft_comm_close(world);
      if (job.complaint != NULL) {
        fail_msg("seed %lu: %s", (unsigned long)seed, job.complaint);
      }
      models++;
    }
    graph_model_finish(model);
  }
  free(model);
}

int main(int argc, char **argv) {
  int level;
  (void)argc;
  (void)argv;
  (void)alarm(HANG_SECONDS); /* a test that failed in one process may leave others waiting */
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  const struct CMUnitTest tests[] = {cmocka_unit_test(graphs_have_the_bits_of_one_process)};
  if (cmocka_run_group_tests(tests, NULL, NULL) > 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
