/* Results of the runtime, bit for bit: losses, outputs and every gradient of every
 * schedule equal a plain evaluation; leaving out any microbatch would show. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/run.h>
#include <weft/weft.h>

#include "support_linear_model.h"
#include "support_linear_stage.h"
#include "support_pipelines.h"

enum { WIDTH = 3 };

struct job {
  const char *schedule;
  uint32_t p, v, m, rows;
  enum weft_send_model comm;
  uint64_t seed;
};

static void expect(const struct job *job, bool condition, const char *what) {
  if (!condition) {
    fail_msg("%s p=%u v=%u m=%u seed=%lu: %s", job->schedule, job->p, job->v, job->m,
             (unsigned long)job->seed, what);
  }
}

static struct weft_pipeline_options options_for(const struct linear_model *model,
                                                struct weft_named_source *source, uint32_t m) {
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = source;
  options.microbatch_count = m;
  options.stages = model->bases;
  options.stage_count = model->stage_count;
  options.boundaries = &model->boundary;
  options.boundary_count = 1;
  return options;
}

/* The batch as every rank gives it; only the last stage's asks for results. */
static void make_batches(const struct linear_model *model, const struct weft_program *program,
                         const struct weft_tensor *inputs, const struct weft_tensor *targets,
                         struct weft_batch *batches) {
  uint32_t *rank_of = calloc(program->stage_count, sizeof *rank_of);
  weft_placement_infer(program, rank_of);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const bool last = rank_of[model->stage_count - 1] == r;
    batches[r] = (struct weft_batch){.microbatch_count = program->microbatch_count,
                                     .inputs = inputs,
                                     .input_count = 1,
                                     .targets = targets,
                                     .target_count = 1,
                                     .want_losses = last,
                                     .want_outputs = last};
  }
  free(rank_of);
}

static uint32_t last_rank(const struct weft_batch *batches) {
  uint32_t r = 0;
  while (!batches[r].want_losses) {
    r++;
  }
  return r;
}

static void check_results(const struct job *job, const struct linear_model *model,
                          const struct pipelines *pipelines, const struct weft_batch *batches,
                          const struct linear_result *expected) {
  struct weft_step_result result;
  weft_pipeline_result(pipelines->items[last_rank(batches)], &result);
  expect(job, result.loss_count == job->m, "as many losses as microbatches");
  expect(job, memcmp(result.losses, expected->losses, job->m * sizeof(double)) == 0, "losses");
  expect(job, result.outputs.count == 1, "outputs");
  expect(job, result.outputs.items[0].shape.dims[0] == model->rows, "rows of the outputs");
  expect(job,
         memcmp(result.outputs.items[0].data, expected->outputs,
                (size_t)model->rows * model->width * sizeof(float)) == 0,
         "outputs");
}

static void check_left_out(const struct job *job, const struct linear_model *model,
                           const struct weft_program *program) {
  float **kept = calloc(model->stage_count, sizeof(float *));
  uint32_t count = 0;
  for (uint32_t s = 0; s < model->stage_count; s++) {
    float *gradients = test_linear_stage_gradients(model->stages[s], &count);
    kept[s] = malloc(count * sizeof(float));
    memcpy(kept[s], gradients, count * sizeof(float));
  }
  for (uint32_t k = 0; k < job->m; k++) {
    struct linear_result without = linear_model_evaluate(model, program, true, k);
    for (uint32_t s = 0; s < model->stage_count; s++) {
      expect(job, memcmp(kept[s], without.gradients[s], count * sizeof(float)) != 0,
             "a microbatch left out does not show");
    }
    linear_result_free(model, &without);
  }
  for (uint32_t s = 0; s < model->stage_count; s++) {
    free(kept[s]);
  }
  free(kept);
}

static void run_job(const struct job *job, bool leave_out) {
  struct weft_error error;
  struct weft_named_source source = {
      .schedule = job->schedule, .ranks = job->p, .stages_per_rank = job->v};
  struct weft_program *program;
  expect(job, weft_source_named(&source, job->m, true, &program, &error) == WEFT_OK, "source");
  struct linear_model model;
  linear_model_init(&model, program->stage_count, WIDTH, job->rows, job->seed + 1);
  struct linear_result expected = linear_model_evaluate(&model, program, true, UINT32_MAX);
  struct weft_pipeline_options options = options_for(&model, &source, job->m);
  options.comm = job->comm;
  struct pipelines pipelines;
  pipelines_open(&pipelines, NULL,
                 &(struct weft_comm_options){.rank_count = job->p,
                                             .seed = job->seed,
                                             .latency_ticks = (int64_t)(job->seed % 3),
                                             .delay_ticks_max = (int64_t)(job->seed % 7)});
  expect(job, pipelines_create(&pipelines, NULL, &options, &error) == WEFT_OK, error.message);
  const struct weft_tensor inputs = linear_model_inputs(&model);
  const struct weft_tensor targets = linear_model_targets(&model);
  struct weft_batch *batches = calloc(job->p, sizeof *batches);
  make_batches(&model, program, &inputs, &targets, batches);
  for (int step = 0; step < 2; step++) {
    const bool training = true;
    if (pipelines_step(&pipelines, training, batches, job->p, &error) < 0) {
      expect(job, false, error.message);
    }
    check_results(job, &model, &pipelines, batches, &expected);
    for (uint32_t s = 0; s < model.stage_count; s++) {
      expect(job, linear_gradients_equal(&model, s, &expected), "gradients");
    }
  }
  /* Forward only, on the same pipelines: same losses and outputs, and gradients untouched. */
  if (pipelines_step(&pipelines, false, batches, job->p, &error) < 0) {
    expect(job, false, error.message);
  }
  check_results(job, &model, &pipelines, batches, &expected);
  for (uint32_t s = 0; s < model.stage_count; s++) {
    expect(job, linear_gradients_equal(&model, s, &expected), "gradients after eval");
  }
  if (leave_out) {
    check_left_out(job, &model, program);
  }
  free(batches);
  pipelines_close(&pipelines);
  linear_result_free(&model, &expected);
  linear_model_finish(&model);
  weft_program_destroy(program);
}

static void test_every_schedule(void **state) {
  (void)state;
  uint32_t jobs = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (info->fixed || !info->trains) {
      continue;
    }
    for (uint32_t p = 1; p <= 4; p++) {
      for (uint32_t v = 1; v <= 3; v++) {
        for (uint32_t m = 1; m <= 9; m += 2) {
          const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
          struct weft_program *table;
          if (weft_generate(NULL, info->name, &shape, &table, NULL) < 0) {
            continue;
          }
          weft_program_destroy(table);
          const struct job job = {.schedule = info->name,
                                  .p = p,
                                  .v = v,
                                  .m = m,
                                  .rows = 2 * m + 1, /* uneven */
                                  .comm = (enum weft_send_model)(jobs % 3),
                                  .seed = jobs};
          run_job(&job, m <= 5 && p == 2);
          jobs++;
        }
      }
    }
  }
  print_message("%u jobs, bit for bit\n", jobs);
  assert_true(jobs > 150);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_schedule)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
