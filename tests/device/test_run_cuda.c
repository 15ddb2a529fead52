/* The runtime on GPUs, on the fake driver: steps of different kinds, and several GPUs, give the
 * host's losses and gradients, bit for bit, enqueued action by action and as a graph.
 * test_run_cuda_orders.c has every schedule, in many orders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/sim.h>
#include <weft/support.h>

#include "fake_cuda.h"
#include "run/pipeline.h"
#include "support_cuda_job.h"

/* ---- Jobs of different steps ---- */

static struct cuda_results expected, found;

static void run_and_compare(struct cuda_job *job, struct fake_cuda_options options) {
  struct weft_error error;
  if (cuda_job_run_on_host(job, &expected, &error) < 0) {
    fail_msg("%s, %u ranks, on the host: %s", job->schedule, job->ranks, error.message);
  }
  fake_cuda_reset(&options);
  if (cuda_job_run(job, &found, &error) < 0) {
    fail_msg("%s, %u ranks, seed %u: %s", job->schedule, job->ranks, (unsigned)options.seed,
             error.message);
  }
  cuda_job_check_findings(job);
  cuda_job_check_leaks(job, "at the end");
  for (uint32_t k = 0; k < job->step_count; k++) {
    if (!cuda_job_same(expected.losses[k], found.losses[k], sizeof expected.losses[k])) {
      fail_msg("%s, %u ranks, seed %u: other losses in step %u: %.17g, on the host %.17g",
               job->schedule, job->ranks, (unsigned)options.seed, k, found.losses[k][0],
               expected.losses[k][0]);
    }
  }
  assert_memory_equal(expected.outputs, found.outputs, sizeof expected.outputs);
  assert_memory_equal(expected.grads, found.grads, sizeof expected.grads);
}

static const char *const some_schedules[] = {"GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble",
                                             "DualPipeV"};

/* A graph is recorded anew when the number of microbatches changes, and after an evaluation. */
static void steps_of_different_kinds_alternate(void **state) {
  static const struct cuda_step steps[] = {{.microbatches = 4},
                                           {.microbatches = 4},
                                           {.microbatches = 4},
                                           {.microbatches = 4},
                                           {.microbatches = 8},
                                           {.microbatches = 8},
                                           {.microbatches = 8},
                                           {.microbatches = 4, .evaluates = true},
                                           {.microbatches = 4, .evaluates = true},
                                           {.microbatches = 4, .evaluates = true},
                                           {.microbatches = 4},
                                           {.microbatches = 4},
                                           {.microbatches = 12},
                                           {.microbatches = 8},
                                           {.microbatches = 8}};
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(some_schedules); k++) {
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
      if (ranks == 4 && strcmp(some_schedules[k], "DualPipeV") == 0) {
        continue; /* it needs at least 8 microbatches */
      }
      job = (struct cuda_job){.schedule = some_schedules[k],
                              .ranks = ranks,
                              .microbatches = 8,
                              .steps = steps,
                              .step_count = WEFT_ARRAY_LENGTH(steps)};
      run_and_compare(&job, (struct fake_cuda_options){.seed = k, .queues = 1 + 3 * (uint32_t)k});
      /* all but the first of a kind */
      assert_int_equal(fake_cuda_calls("cuGraphLaunch"), 3 + 2 + 2 + 1 + 1);
      assert_int_equal(fake_cuda_calls("cuGraphInstantiate"), 5);
    }
  }
}

/* And when the shapes of as many microbatches change. */
static void steps_of_other_shapes_are_recorded_anew(void **state) {
  static const struct cuda_step steps[] = {{.microbatches = 4},
                                           {.microbatches = 4},
                                           {.microbatches = 4},
                                           {.microbatches = 4, .even = true},
                                           {.microbatches = 4, .even = true},
                                           {.microbatches = 4, .even = true},
                                           {.microbatches = 4},
                                           {.microbatches = 4}};
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(some_schedules); k++) {
    job = (struct cuda_job){.schedule = some_schedules[k],
                            .ranks = 2,
                            .microbatches = 4,
                            .steps = steps,
                            .step_count = WEFT_ARRAY_LENGTH(steps)};
    run_and_compare(&job, (struct fake_cuda_options){.seed = k});
    assert_int_equal(fake_cuda_calls("cuGraphInstantiate"), 3);
    assert_int_equal(fake_cuda_calls("cuGraphLaunch"), 2 + 2 + 1);
  }
}

/* Other programs on the same pipeline, whose rows may well be where the old ones were. */
static void sources_change_between_steps(void **state) {
  static const struct cuda_step steps[] = {
      {.microbatches = 4},
      {.microbatches = 4},
      {.microbatches = 4},
      {.microbatches = 4, .schedule = "GPipe"},
      {.microbatches = 4},
      {.microbatches = 4},
      {.microbatches = 4, .schedule = "ZBH1", .twice = true},
      {.microbatches = 4},
      {.microbatches = 4},
      {.microbatches = 4, .schedule = "Eager1F1B", .twice = true},
      {.microbatches = 4},
      {.microbatches = 4},
      {.microbatches = 4}};
  static struct cuda_job job;
  (void)state;
  for (uint32_t ranks = 2; ranks <= 4; ranks++) {
    for (uint32_t seed = 0; seed < 4; seed++) {
      job = (struct cuda_job){.schedule = "1F1B",
                              .ranks = ranks,
                              .microbatches = 4,
                              .steps = steps,
                              .step_count = WEFT_ARRAY_LENGTH(steps)};
      run_and_compare(&job, (struct fake_cuda_options){.seed = seed});
      /* all but the first step of a source */
      assert_int_equal(fake_cuda_calls("cuGraphInstantiate"), 4);
      assert_int_equal(fake_cuda_calls("cuGraphLaunch"), 2 + 2 + 2 + 3);
    }
  }
}

/* Outputs, which the host merges, are wanted now and then; with more microbatches than before,
 * buffers are others, and the graph of before does not know. */
static void steps_with_outputs_are_enqueued(void **state) {
  static const struct cuda_step steps[] = {{.microbatches = 4},
                                           {.microbatches = 4},
                                           {.microbatches = 12, .outputs = true, .evaluates = true},
                                           {.microbatches = 4},
                                           {.microbatches = 4},
                                           {.microbatches = 4, .outputs = true},
                                           {.microbatches = 4},
                                           {.microbatches = 16, .outputs = true},
                                           {.microbatches = 4},
                                           {.microbatches = 4}};
  static struct cuda_job job;
  (void)state;
  for (uint32_t ranks = 2; ranks <= 4; ranks++) {
    for (uint32_t seed = 0; seed < 4; seed++) {
      job = (struct cuda_job){.schedule = seed % 2 == 0 ? "Interleaved1F1B" : "ZBH1",
                              .ranks = ranks,
                              .microbatches = 4,
                              .steps = steps,
                              .step_count = WEFT_ARRAY_LENGTH(steps)};
      run_and_compare(&job, (struct fake_cuda_options){.seed = seed});
      assert_int_equal(fake_cuda_calls("cuGraphLaunch"), 1 + 1 + 1 + 1);
      assert_non_null(strstr(job.log, "step 3 is enqueued action by action: outputs are wanted"));
    }
  }
}

/* ---- A stage that does what a graph cannot have ---- */

static const struct weft_stage_ops *linear_ops;
static struct weft_stage_ops waiting_ops;
static bool hides_failure;

/* It waits for the device, as a stage that says `replays` must not. */
static enum weft_status forward_and_wait(struct weft_stage *stage, struct weft_stage_call *call,
                                         struct weft_error *error) {
  uint64_t sum;
  WEFT_TRY(linear_ops->forward(stage, call, error));
  const enum weft_status status =
      call->microbatch_count == 4 && call->microbatch == 1
          ? weft_device_checksum(call->device, call->inputs->items[0].data, sizeof(float), &sum,
                                 error)
          : WEFT_OK;
  return hides_failure ? WEFT_OK : status;
}

static void let_a_stage_wait(struct cuda_job *job) {
  struct weft_stage *stage = &job->stages[job->stage_count / 2].stage;
  linear_ops = stage->ops;
  waiting_ops = *stage->ops;
  waiting_ops.forward = forward_and_wait;
  stage->ops = &waiting_ops;
}

/* Such a step is gone through without work, and then enqueued; others are graphs all the same. */
static void steps_that_cannot_be_recorded_are_enqueued(void **state) {
  static const struct cuda_step steps[] = {
      {.microbatches = 4}, {.microbatches = 4}, {.microbatches = 4}, {.microbatches = 8},
      {.microbatches = 8}, {.microbatches = 8}, {.microbatches = 4}, {.microbatches = 4}};
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(some_schedules); k++) {
    for (uint32_t seed = 0; seed < 4; seed++) {
      hides_failure = seed % 2 == 1;
      job = (struct cuda_job){.schedule = some_schedules[k],
                              .ranks = 2,
                              .microbatches = 8,
                              .steps = steps,
                              .step_count = WEFT_ARRAY_LENGTH(steps),
                              .with_stages = let_a_stage_wait};
      run_and_compare(&job, (struct fake_cuda_options){.seed = seed, .queues = 1 + 3 * seed});
      assert_int_equal(fake_cuda_calls("cuStreamBeginCapture"), 3);
      assert_int_equal(fake_cuda_calls("cuGraphLaunch"), 2);
      assert_non_null(strstr(job.log,
                             "step 2 is enqueued action by action: it cannot be recorded "
                             "as a CUDA graph: rank "));
      assert_null(strstr(job.log, "step 3 "));
      assert_non_null(strstr(job.log, "step 8 is enqueued action by action: it cannot be"));
    }
  }
}

/* What a collective enqueues behind the last backward is in the graph as well. */
static enum weft_status double_grads(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error) {
  const double before = call->grad_scale;
  call->grad_scale = 2;
  const enum weft_status status = linear_ops->scale_grads(stage, call, error);
  call->grad_scale = before;
  return status;
}

static void let_stages_reduce(struct cuda_job *job) {
  linear_ops = job->stages[0].stage.ops;
  waiting_ops = *linear_ops;
  waiting_ops.reduce_grad = double_grads;
  for (uint32_t s = 0; s < job->stage_count; s++) {
    job->stages[s].stage.ops = &waiting_ops;
  }
}

static void collectives_are_recorded(void **state) {
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(some_schedules); k++) {
    for (uint32_t seed = 0; seed < 4; seed++) {
      job = (struct cuda_job){.schedule = some_schedules[k],
                              .ranks = 4,
                              .microbatches = 8,
                              .step_count = 4,
                              .with_stages = let_stages_reduce};
      run_and_compare(&job, (struct fake_cuda_options){.devices = 1 + seed % 2, .seed = seed});
      assert_int_equal(fake_cuda_calls("cuGraphLaunch"), 3);
    }
  }
}

/* ---- The end of a step ---- */

static enum weft_status scale_by(struct weft_stage *stage, double factor,
                                 struct weft_stream *stream, struct weft_error *error) {
  struct weft_stage_call call = {.grad_scale = factor, .stream = stream};
  return linear_ops->scale_grads(stage, &call, error);
}

/* On the host, what the two passes below do. */
static enum weft_status scale_by_six(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error) {
  WEFT_TRY(scale_by(stage, 2, call->stream, error));
  return scale_by(stage, 3, call->stream, error);
}

static void let_hosts_scale(struct cuda_job *job) {
  linear_ops = job->stages[0].stage.ops;
  waiting_ops = *linear_ops;
  waiting_ops.reduce_grad = job->cuda == NULL ? scale_by_six : NULL;
  for (uint32_t s = 0; s < job->stage_count; s++) {
    job->stages[s].stage.ops = &waiting_ops;
  }
}

/* In every pass a rank writes to gradients of another one: it comes after their last backward, and
 * after the pass before. */
static enum weft_status scale_others(struct cuda_job *job, uint32_t rank, uint32_t pass,
                                     struct weft_stream *stream, struct weft_error *error) {
  for (uint32_t s = 0; s < job->stage_count; s++) {
    if (job->rank_of[s] == (rank + 1 + pass) % job->ranks) {
      WEFT_TRY(scale_by(&job->stages[s].stage, pass == 0 ? 2 : 3, stream, error));
    }
  }
  return pass == 0 ? WEFT_IN_PROGRESS : WEFT_OK;
}

static void ranks_finish_a_step_together(void **state) {
  static const struct cuda_step steps[] = {
      {.microbatches = 8}, {.microbatches = 8},
      {.microbatches = 8}, {.microbatches = 8, .evaluates = true},
      {.microbatches = 8}, {.microbatches = 8}};
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(some_schedules); k++) {
    for (uint32_t seed = 0; seed < 4; seed++) {
      job = (struct cuda_job){.schedule = some_schedules[k],
                              .ranks = 4,
                              .microbatches = 8,
                              .steps = steps,
                              .step_count = WEFT_ARRAY_LENGTH(steps),
                              .eager = seed % 2 == 1,
                              .with_stages = let_hosts_scale,
                              .finish = scale_others};
      run_and_compare(&job, (struct fake_cuda_options){.seed = seed, .queues = 1 + 4 * seed});
      assert_int_equal(fake_cuda_calls("cuGraphLaunch"), job.eager ? 0 : 3);
    }
  }
}

static enum weft_status fail_to_finish(struct cuda_job *job, uint32_t rank, uint32_t pass,
                                       struct weft_stream *stream, struct weft_error *error) {
  (void)job;
  (void)stream;
  return rank == 2 && pass == 1 ? weft_fail(error, WEFT_ERR_INVALID, "", "there is no optimizer")
                                : (enum weft_status)(pass == 0 ? WEFT_IN_PROGRESS : WEFT_OK);
}

static void a_step_that_is_not_finished_fails(void **state) {
  static struct cuda_job job;
  struct weft_error error;
  (void)state;
  fake_cuda_reset(NULL);
  job = (struct cuda_job){
      .schedule = "1F1B", .ranks = 4, .microbatches = 8, .step_count = 3, .finish = fail_to_finish};
  assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_ERR_INVALID);
  assert_non_null(strstr(error.message, "there is no optimizer"));
  assert_int_equal(job.failed_ranks, 4);
  cuda_job_check_findings(&job);
  cuda_job_check_leaks(&job, "at the end");
}

/* A limit that no clock can reach is none. */
static void a_step_has_any_stall_limit(void **state) {
  static struct cuda_job job;
  (void)state;
  for (uint32_t k = 0; k < 4; k++) {
    job = (struct cuda_job){.schedule = "1F1B",
                            .ranks = 2,
                            .microbatches = 4,
                            .step_count = 3,
                            .eager = k % 2 == 1,
                            .host_ranks = k / 2,
                            .stall_limit = INT64_MAX};
    run_and_compare(&job, (struct fake_cuda_options){.seed = k});
  }
}

/* ---- Several GPUs, and parts of them ---- */

/* A program may want streams of its own. */
static void a_rank_has_many_streams(void **state) {
  struct weft_stream *streams[200];
  struct weft_cuda *cuda;
  struct weft_error error;
  (void)state;
  fake_cuda_reset(NULL);
  const uint64_t before = fake_cuda_statistics().streams;
  assert_int_equal(weft_cuda_open(NULL, NULL, 1, &cuda, &error), WEFT_OK);
  struct weft_device *device = weft_cuda_device(cuda, 0);
  for (uint32_t k = 0; k < WEFT_ARRAY_LENGTH(streams); k++) {
    assert_int_equal(device->ops->stream_create(device, &streams[k], &error), WEFT_OK);
  }
  for (uint32_t k = 0; k < WEFT_ARRAY_LENGTH(streams); k += 2) {
    device->ops->stream_destroy(device, streams[k]);
  }
  assert_int_equal(weft_device_fill(device, NULL, 0, 0, NULL, &error), WEFT_OK);
  weft_cuda_close(cuda);
  assert_int_equal(fake_cuda_statistics().streams, before);
}

/* A GPU without a rank is left alone, and each rank has its own GPU's number of SMs. */
static void gpus_are_opened_for_ranks_only(void **state) {
  static const uint32_t listed[] = {2, 0, 1}, wrong[] = {2, 7};
  struct weft_cuda *cuda;
  struct weft_error error;
  (void)state;
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 3, .mixed = true});
  const uint64_t before = fake_cuda_statistics().contexts;
  struct weft_cuda_options options = {.gpus = listed, .gpu_count = 3};
  assert_int_equal(weft_cuda_open(NULL, &options, 2, &cuda, &error), WEFT_OK);
  assert_int_equal(fake_cuda_statistics().contexts, before + 2);
  assert_non_null(strstr(weft_cuda_location(cuda, 0), "GPU 2 ("));
  assert_non_null(strstr(weft_cuda_location(cuda, 0), ", 116 SMs"));
  assert_non_null(strstr(weft_cuda_location(cuda, 1), "GPU 0 ("));
  assert_non_null(strstr(weft_cuda_location(cuda, 1), ", 132 SMs"));
  weft_cuda_close(cuda);
  options = (struct weft_cuda_options){.partitions = 2};
  assert_int_equal(weft_cuda_open(NULL, &options, 3, &cuda, &error), WEFT_OK);
  assert_int_equal(fake_cuda_statistics().contexts, before + 2);
  assert_non_null(strstr(weft_cuda_location(cuda, 2), "GPU 1 ("));
  assert_non_null(strstr(weft_cuda_location(cuda, 2), ", partition 0 of 2, 56 SMs"));
  weft_cuda_close(cuda);
  options = (struct weft_cuda_options){.gpus = wrong, .gpu_count = 2};
  assert_int_equal(weft_cuda_open(NULL, &options, 1, &cuda, &error), WEFT_ERR_USAGE);
  assert_int_equal(fake_cuda_statistics().contexts, before);
}

/* What CUDA would refuse without a reason is refused with one. */
static void launches_beyond_the_limits_are_refused(void **state) {
  static const struct weft_cuda_launch bad[] = {
      {.blocks = {UINT32_C(1) << 31}}, {.blocks = {1, 65536}},
      {.blocks = {1, 1, 65536}},       {.threads = {1025}},
      {.threads = {65536, 65536}},     {.threads = {1, 1, 65}}};
  static const char *const names[] = {"weft_spin"};
  uint64_t ns = 1;
  void *parameters[] = {&ns};
  struct weft_cuda_kernels *kernels;
  struct weft_stream *stream;
  struct weft_cuda *cuda;
  struct weft_error error;
  (void)state;
  fake_cuda_reset(NULL);
  assert_int_equal(weft_cuda_open(NULL, NULL, 1, &cuda, &error), WEFT_OK);
  struct weft_device *device = weft_cuda_device(cuda, 0);
  assert_int_equal(device->ops->stream_create(device, &stream, &error), WEFT_OK);
  assert_int_equal(weft_cuda_kernels_load(cuda, 0, "source", names, 1, &kernels, &error), WEFT_OK);
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(bad); k++) {
    struct weft_cuda_launch launch = bad[k];
    launch.parameters = parameters;
    assert_int_equal(weft_cuda_launch(kernels, &launch, stream, &error), WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "CUDA's limit"));
  }
  const struct weft_cuda_launch most = {
      .blocks = {INT32_MAX}, .threads = {4, 4, 64}, .parameters = parameters};
  assert_int_equal(weft_cuda_launch(kernels, &most, stream, &error), WEFT_OK);
  assert_true(fake_cuda_run());
  weft_cuda_kernels_unload(kernels);
  weft_cuda_close(cuda);
}

static void ranks_are_on_parts_of_gpus(void **state) {
  static struct cuda_job job;
  static const uint32_t both[] = {1, 0};
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(some_schedules); k++) {
    for (uint32_t devices = 1; devices <= 2; devices++) {
      for (uint32_t partitions = 0; partitions <= 4; partitions += 2) {
        job = (struct cuda_job){.schedule = some_schedules[k],
                                .ranks = 4,
                                .microbatches = 8,
                                .step_count = 4,
                                .gpus = both + 2 - devices,
                                .gpu_count = devices,
                                .partitions = partitions};
        run_and_compare(&job, (struct fake_cuda_options){.devices = devices, .seed = k});
        assert_int_equal(fake_cuda_calls("cuGraphLaunch"), 3);
      }
    }
  }
}

/* A message to another GPU is one copy by the receiver; or two, through pinned memory. */
static void messages_between_gpus_are_copied(void **state) {
  static const struct cuda_step steps[] = {
      {.microbatches = 8}, {.microbatches = 8}, {.microbatches = 8}, {.microbatches = 12},
      {.microbatches = 8}, {.evaluates = true}, {.microbatches = 8}, {.microbatches = 8}};
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(some_schedules); k++) {
    for (uint32_t seed = 0; seed < 12; seed++) {
      const bool no_peers = seed % 2 == 1;
      job = (struct cuda_job){.schedule = some_schedules[k],
                              .ranks = 4,
                              .microbatches = 8,
                              .steps = steps,
                              .step_count = WEFT_ARRAY_LENGTH(steps),
                              .eager = seed % 3 == 2,
                              .no_events = seed % 4 == 3};
      run_and_compare(&job, (struct fake_cuda_options){.devices = 2 + seed % 3,
                                                       .no_peers = no_peers,
                                                       .seed = 100 * k + seed,
                                                       .queues = 1 + 5 * (seed % 4),
                                                       .policy = (enum fake_cuda_policy)(seed % 4),
                                                       .starved = seed});
      assert_int_equal(fake_cuda_calls("cuGraphLaunch"), job.eager ? 0 : 3);
    }
  }
}

/* Two GPUs with one boundary between them: of every microbatch an activation and a gradient cross
 * it. Batches are copied as well, input and target of each microbatch by itself. */
static void copies_between_gpus_are_counted(void **state) {
  static struct cuda_job job;
  (void)state;
  for (uint32_t no_peers = 0; no_peers <= 1; no_peers++) {
    job = (struct cuda_job){
        .schedule = "1F1B", .ranks = 4, .microbatches = 8, .step_count = 1, .eager = true};
    run_and_compare(&job, (struct fake_cuda_options){.devices = 2, .no_peers = no_peers == 1});
    const uint64_t other = 2 * 8 + 4 * 2; /* batches; weights to the GPU, gradients from it */
    assert_int_equal(fake_cuda_calls("cuMemcpyAsync"), other + 2 * 8 * (1 + no_peers));
  }
}

/* ---- Memory ---- */

/* What a stage saves is a multiple of the blocks in which a device takes memory from the driver, so
 * that what the driver gives is to the byte what is needed. */
#define SAVED_BYTES (UINT64_C(2) << 20)

/* Linear stages that save their input, take it from there for the gradient of the weights, and
 * spoil it. */
static const struct weft_stage_ops *plain_ops;

static uint64_t input_bytes(const struct weft_stage_call *call) {
  uint64_t bytes;
  assert_true(weft_shape_bytes(&call->inputs->items[0].shape, &bytes));
  return bytes;
}

static enum weft_status save_forward(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error) {
  const struct weft_copy copy = {.to = call->saved,
                                 .to_device = call->device,
                                 .from = call->inputs->items[0].data,
                                 .from_device = call->inputs->items[0].device,
                                 .row_bytes = input_bytes(call),
                                 .rows = 1};
  WEFT_TRY(weft_copy(&copy, call->stream, error));
  return plain_ops->forward(stage, call, error);
}

static enum weft_status saved_backward_weight(struct weft_stage *stage,
                                              struct weft_stage_call *call,
                                              struct weft_error *error) {
  struct weft_stage_call own = *call;
  struct weft_tensors inputs = *call->inputs;
  inputs.items[0].data = call->saved;
  own.inputs = &inputs;
  WEFT_TRY(plain_ops->backward_weight(stage, &own, error));
  return weft_device_fill(call->device, call->saved, 0xff, input_bytes(call), call->stream, error);
}

static void let_stages_save(struct cuda_job *job) {
  static struct weft_stage_ops ops;
  plain_ops = job->stages[0].stage.ops;
  ops = *plain_ops;
  ops.forward = save_forward;
  ops.backward_weight = saved_backward_weight;
  for (uint32_t s = 0; s < job->stage_count; s++) {
    job->stages[s].stage = (struct weft_stage){&ops, SAVED_BYTES};
  }
}

/* Of the devices, and of the driver by all steps but the first. */
static uint64_t bytes_in_use, late_allocations;

static void mark_second_step(struct cuda_job *job, uint32_t step) {
  (void)job;
  if (step == 1) {
    fake_cuda_mark();
  }
}

static void note_memory(struct cuda_job *job, uint32_t step) {
  (void)job;
  bytes_in_use = fake_cuda_statistics().bytes;
  late_allocations = step > 0 ? fake_cuda_statistics().allocations : 0;
}

/* Of all ranks, by the simulator. */
static double simulated_bytes(const struct cuda_job *job) {
  struct weft_named_source source = {.schedule = job->schedule, .ranks = job->ranks};
  struct weft_program *program;
  struct weft_costs *costs;
  struct weft_simulation *simulation;
  struct weft_error error;
  double bytes = 0;
  assert_int_equal(weft_source_named(&source, job->microbatches, true, &program, &error), WEFT_OK);
  assert_int_equal(weft_costs_create(NULL, program->stage_count, &costs, &error), WEFT_OK);
  for (uint32_t s = 0; s < program->stage_count; s++) {
    costs->stages[s].activation = costs->stages[s].activation_after_i = SAVED_BYTES;
  }
  assert_int_equal(weft_simulate(NULL, program, costs, NULL, &simulation, &error), WEFT_OK);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    bytes += simulation->ranks[r].peak_activation;
  }
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
  return bytes;
}

static void run_and_note_memory(struct cuda_job *job, uint64_t seed, struct cuda_results *results) {
  struct weft_error error;
  fake_cuda_reset(&(struct fake_cuda_options){.seed = seed});
  if (cuda_job_run(job, results, &error) < 0) {
    fail_msg("%s: %s", job->schedule, error.message);
  }
  cuda_job_check_findings(job);
  cuda_job_check_leaks(job, "at the end");
  assert_int_equal(late_allocations, 0);
}

/* What stages save takes as much of the devices' memory as the simulator says, to the byte; and no
 * step but the first allocates. */
static void memory_is_what_the_simulator_says(void **state) {
  static const char *const schedules[] = {"GPipe",
                                          "1F1B",
                                          "Eager1F1B",
                                          "LoopedBFS",
                                          "Interleaved1F1B",
                                          "InterleavedZeroBubble",
                                          "ZBH1",
                                          "ZBVZeroBubble",
                                          "DualPipeV"};
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(schedules); k++) {
    job = (struct cuda_job){.schedule = schedules[k],
                            .ranks = 4,
                            .microbatches = 8,
                            .step_count = 4,
                            .before = mark_second_step,
                            .after = note_memory};
    run_and_note_memory(&job, k, &expected); /* of stages that save nothing */
    const uint64_t others = bytes_in_use;
    for (uint32_t eager = 0; eager <= 1; eager++) {
      job.with_stages = let_stages_save;
      job.eager = eager == 1;
      run_and_note_memory(&job, k, &found);
      assert_memory_equal(expected.losses, found.losses, sizeof expected.losses);
      assert_memory_equal(expected.grads, found.grads, sizeof expected.grads);
      if (bytes_in_use - others != (uint64_t)simulated_bytes(&job)) {
        fail_msg("%s: stages save %.0f bytes; the simulator has %.0f", job.schedule,
                 (double)(bytes_in_use - others), simulated_bytes(&job));
      }
    }
  }
}

static uint64_t allocator_calls, calls_before;

static void *count_calls(void *context, void *pointer, size_t old_size, size_t new_size) {
  const struct weft_allocator *inner = weft_allocator_default();
  (void)context;
  (void)__atomic_add_fetch(&allocator_calls, 1, __ATOMIC_RELAXED);
  return inner->reallocate(inner->context, pointer, old_size, new_size);
}

/* The second step records the graph. */
static void note_calls(struct cuda_job *job, uint32_t step) {
  (void)job;
  if (step == 1) {
    calls_before = __atomic_load_n(&allocator_calls, __ATOMIC_RELAXED);
  } else if (step > 1 && __atomic_load_n(&allocator_calls, __ATOMIC_RELAXED) != calls_before) {
    fail_msg("%s: step %u allocates on the host", job->eager ? "eager" : "graph", step);
  }
}

static void steps_do_not_allocate_on_the_host(void **state) {
  static const struct weft_allocator allocator = {.reallocate = count_calls};
  static struct cuda_job job;
  (void)state;
  for (uint32_t k = 0; k < 2 * WEFT_ARRAY_LENGTH(some_schedules); k++) {
    struct weft_error error;
    job = (struct cuda_job){.schedule = some_schedules[k / 2],
                            .allocator = &allocator,
                            .ranks = 4,
                            .microbatches = 8,
                            .step_count = 5,
                            .eager = k % 2 == 0,
                            .after = note_calls};
    fake_cuda_reset(&(struct fake_cuda_options){.devices = 1 + k % 3, .seed = k});
    assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
    assert_true(calls_before > 0);
  }
}

/* ---- Times ---- */

enum { EVENTS_MAX = 512 };

/* Of the last step, by rank. */
static struct weft_event events[CUDA_RANKS_MAX][2][EVENTS_MAX];
static uint64_t event_counts[CUDA_RANKS_MAX][2];
static uint64_t reads_before, reads_after;

static int64_t base_ns; /* of rank 0 */

/* Nobody asks after the first step; after the second one, everybody twice. */
static void ask_for_times(struct cuda_job *of, const struct weft_pipeline *pipeline, uint32_t rank,
                          uint32_t step) {
  (void)of;
  if (rank == 0) {
    base_ns = pipeline->executor.device->base_ns;
  }
  for (uint32_t k = 0; step == 1 && k < 2; k++) {
    weft_pipeline_events(pipeline, events[rank][k], EVENTS_MAX, &event_counts[rank][k]);
  }
}

static void count_reads(struct cuda_job *of, uint32_t step) {
  (void)of;
  *(step == 0 ? &reads_before : &reads_after) = fake_cuda_calls("cuEventElapsedTime");
}

static void expect_times(const char *schedule, uint32_t rank, uint64_t *gaps) {
  const uint64_t count = event_counts[rank][0];
  assert_in_range(count, 1, EVENTS_MAX);
  assert_int_equal(count, event_counts[rank][1]);
  assert_memory_equal(events[rank][0], events[rank][1], count * sizeof events[rank][0][0]);
  for (uint64_t k = 0; k < count; k++) {
    const struct weft_event *event = &events[rank][0][k];
    const bool together = k > 0 && event->begin == event[-1].begin && event->end == event[-1].end;
    if (event->begin > event->end || (k > 0 && !together && event->begin < event[-1].end)) {
      fail_msg("%s, rank %u: event %u is from %lld to %lld", schedule, rank, (unsigned)k,
               (long long)event->begin, (long long)event->end);
    }
    *gaps += k > 0 && event->begin > event[-1].end;
  }
}

/* Without a graph, reading an event takes longer than all else, and is done for those who ask. */
static void times_are_read_when_asked_for(void **state) {
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < 2 * WEFT_ARRAY_LENGTH(some_schedules); k++) {
    const bool eager = k % 2 == 0;
    uint64_t gaps = 0;
    job = (struct cuda_job){.schedule = some_schedules[k / 2],
                            .ranks = 4,
                            .microbatches = 8,
                            .step_count = 2,
                            .eager = eager,
                            .look = ask_for_times,
                            .after = count_reads};
    struct weft_error error;
    fake_cuda_reset(&(struct fake_cuda_options){.devices = 1 + (uint32_t)k % 3, .seed = k});
    assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
    cuda_job_check_findings(&job);
    for (uint32_t r = 0; r < 4; r++) {
      expect_times(job.schedule, r, &gaps);
    }
    assert_true(gaps > 0); /* cells wait for other ranks */
    assert_int_equal(reads_before, 0);
    assert_true((reads_after > 0) == eager);
  }
}

/* A step begins when it is enqueued, while its batch may still be on its way: 8 copies, 1 us each. */
static void times_count_from_before_the_batch(void **state) {
  static struct cuda_job job;
  struct weft_error error;
  uint64_t k = 0;
  (void)state;
  job = (struct cuda_job){.schedule = "1F1B",
                          .ranks = 4,
                          .microbatches = 8,
                          .step_count = 2,
                          .eager = true,
                          .look = ask_for_times};
  fake_cuda_reset(&(struct fake_cuda_options){.queues = 32, .policy = FAKE_CUDA_OLDEST});
  assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
  while (events[0][0][k].end == events[0][0][k].begin) {
    assert_in_range(++k, 1, event_counts[0][0] - 1);
  }
  assert_in_range(events[0][0][k].begin - base_ns, 8 * 1000, 12 * 1000);
  assert_in_range(events[0][0][k].end - events[0][0][k].begin, 900, 1100); /* its kernel alone */
}

/* ---- Ranks on the host ---- */

static void ranks_on_the_host_and_on_gpus(void **state) {
  static const struct cuda_step steps[] = {{.microbatches = 8},  {.microbatches = 8},
                                           {.microbatches = 12}, {.evaluates = true},
                                           {.microbatches = 8},  {.microbatches = 8}};
  static struct cuda_job job;
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(some_schedules); k++) {
    for (uint32_t mask = 1; mask <= 15; mask += mask < 8 ? 2 : 1) {
      job = (struct cuda_job){.schedule = some_schedules[k],
                              .ranks = 4,
                              .microbatches = 8,
                              .steps = steps,
                              .step_count = WEFT_ARRAY_LENGTH(steps),
                              .host_ranks = mask};
      run_and_compare(&job, (struct fake_cuda_options){.devices = 1 + mask % 3,
                                                       .no_peers = mask % 2 == 1,
                                                       .seed = 100 * k + mask,
                                                       .queues = 1 + mask});
      assert_int_equal(fake_cuda_calls("cuGraphLaunch"), 0);
      assert_true(mask == 15 || strstr(job.log,
                                       "step 1 is enqueued action by action: a rank is on the "
                                       "host") != NULL);
    }
  }
}

/* A rank of this transport cannot be advanced by itself, not even one on the host. */
static enum weft_status begin_alone(void *context, struct weft_transport *transport,
                                    struct weft_error *error) {
  struct weft_named_source source = {.schedule = "1F1B", .ranks = 1};
  struct weft_stage stage = {.ops = weft_null_stage_ops()};
  struct weft_stage *stages[] = {&stage};
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {{.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {1}}}}};
  const struct weft_batch batch = {.microbatch_count = 2};
  struct weft_pipeline_options options = weft_pipeline_options_default();
  struct weft_pipeline *pipeline;
  options.source = weft_source_named;
  options.source_context = &source;
  options.microbatch_count = 2;
  options.stages = stages;
  options.stage_count = options.boundary_count = 1;
  options.boundaries = &boundary;
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));
  *(enum weft_status *)context = weft_pipeline_begin(pipeline, true, &batch, error);
  const enum weft_status status = weft_pipeline_step(pipeline, &batch, NULL, error);
  weft_pipeline_destroy(pipeline);
  return status;
}

static void ranks_do_not_begin_alone(void **state) {
  struct weft_comm_options options = weft_comm_options_default();
  enum weft_status begun = WEFT_OK;
  struct weft_comm *comm;
  struct weft_error error;
  (void)state;
  options.rank_count = 1;
  assert_int_equal(weft_comm_open(NULL, "cuda", &options, &comm, &error), WEFT_OK);
  assert_int_equal(weft_comm_run(comm, begin_alone, &begun, &error), WEFT_OK);
  assert_int_equal(begun, WEFT_ERR_USAGE);
  weft_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_of_different_kinds_alternate),
      cmocka_unit_test(steps_of_other_shapes_are_recorded_anew),
      cmocka_unit_test(sources_change_between_steps),
      cmocka_unit_test(steps_with_outputs_are_enqueued),
      cmocka_unit_test(steps_that_cannot_be_recorded_are_enqueued),
      cmocka_unit_test(collectives_are_recorded),
      cmocka_unit_test(ranks_finish_a_step_together),
      cmocka_unit_test(a_step_that_is_not_finished_fails),
      cmocka_unit_test(a_step_has_any_stall_limit),
      cmocka_unit_test(a_rank_has_many_streams),
      cmocka_unit_test(messages_between_gpus_are_copied),
      cmocka_unit_test(copies_between_gpus_are_counted),
      cmocka_unit_test(memory_is_what_the_simulator_says),
      cmocka_unit_test(steps_do_not_allocate_on_the_host),
      cmocka_unit_test(times_are_read_when_asked_for),
      cmocka_unit_test(times_count_from_before_the_batch),
      cmocka_unit_test(ranks_on_the_host_and_on_gpus),
      cmocka_unit_test(ranks_do_not_begin_alone),
      cmocka_unit_test(gpus_are_opened_for_ranks_only),
      cmocka_unit_test(launches_beyond_the_limits_are_refused),
      cmocka_unit_test(ranks_are_on_parts_of_gpus),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
