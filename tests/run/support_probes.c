#include "support_probes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- A stage that watches ---- */

struct probe *probe_of(struct weft_stage *stage) {
  return (struct probe *)stage;
}

/* Counted by a transport that is looked at. */
static uint32_t progress_calls;

void probe_progress(struct probe *probe, const struct weft_stage_call *call) {
  const uint32_t before = progress_calls;
  call->progress(call->progress_context);
  probe->touched++;
  probe->progressed += progress_calls - before;
}

static enum weft_status probe_forward(struct weft_stage *stage, struct weft_stage_call *call,
                                      struct weft_error *error) {
  struct probe *probe = probe_of(stage);
  probe->calls[WEFT_OP_F]++;
  probe_progress(probe, call);
  if (probe->fail_at > 0 && probe->calls[WEFT_OP_F] == probe->fail_at) {
    snprintf(error->message, sizeof error->message, "out of paper");
    error->hint[0] = '\0';
    return WEFT_ERR_IO;
  }
  for (uint32_t k = 0; k < call->inputs->count; k++) {
    uint64_t bytes;
    assert_true(weft_shape_bytes(&call->inputs->items[k].shape, &bytes));
    probe->input_bytes += bytes;
  }
  return probe->never_returns ? WEFT_IN_PROGRESS : WEFT_OK;
}

static enum weft_status probe_gradient(struct probe *probe, enum weft_op op,
                                       const struct weft_stage_call *call) {
  probe->calls[op]++;
  probe_progress(probe, call);
  probe->last_backwards += call->last_backward;
  probe->grad_tensors += call->output_grads->count;
  return WEFT_OK;
}

static enum weft_status probe_backward(struct weft_stage *stage, struct weft_stage_call *call,
                                       struct weft_error *error) {
  (void)error;
  return probe_gradient(probe_of(stage), WEFT_OP_B, call);
}

static enum weft_status probe_input(struct weft_stage *stage, struct weft_stage_call *call,
                                    struct weft_error *error) {
  (void)error;
  return probe_gradient(probe_of(stage), WEFT_OP_I, call);
}

static enum weft_status probe_weight(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error) {
  (void)error;
  return probe_gradient(probe_of(stage), WEFT_OP_W, call);
}

static enum weft_status probe_loss(struct weft_stage *stage, struct weft_stage_call *call,
                                   struct weft_error *error) {
  (void)error;
  probe_of(stage)->losses++;
  probe_progress(probe_of(stage), call);
  *call->loss += call->microbatch;
  return WEFT_OK;
}

static enum weft_status probe_scale(struct weft_stage *stage, struct weft_stage_call *call,
                                    struct weft_error *error) {
  (void)error;
  assert_true(call->grad_scale == 1.0 / call->microbatch_count);
  probe_of(stage)->scaled++;
  probe_progress(probe_of(stage), call);
  return WEFT_OK;
}

static enum weft_status probe_zero(struct weft_stage *stage, struct weft_stage_call *call,
                                   struct weft_error *error) {
  (void)error;
  probe_of(stage)->zeroed++;
  probe_progress(probe_of(stage), call);
  return WEFT_OK;
}

static enum weft_status probe_shard(struct weft_stage *stage, struct weft_stage_call *call,
                                    struct weft_error *error) {
  (void)error;
  probe_of(stage)->calls[WEFT_OP_UNSHARD]++;
  probe_progress(probe_of(stage), call);
  return WEFT_OK;
}

/* As a collective is: done when both are there, and not before. */
static enum weft_status probe_tie(struct weft_stage *stage, struct weft_stage_call *call,
                                  struct weft_error *error) {
  (void)error;
  struct probe *probe = probe_of(stage);
  assert_int_equal(call->again, probe->reached);
  probe->reached = true;
  if (probe->partner != NULL && !probe->partner->reached) {
    return WEFT_IN_PROGRESS;
  }
  probe->calls[WEFT_OP_TIE_GRAD]++;
  const uint32_t backwards = probe->calls[WEFT_OP_B] + probe->calls[WEFT_OP_W];
  assert_int_equal(backwards, probe->calls[WEFT_OP_TIE_GRAD] * call->microbatch_count);
  assert_int_equal(probe->scaled, probe->calls[WEFT_OP_TIE_GRAD]);
  assert_int_equal(probe->calls[WEFT_OP_REDUCE_GRAD] + 1, probe->calls[WEFT_OP_TIE_GRAD]);
  return WEFT_OK;
}

static enum weft_status probe_reduce(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error) {
  (void)call;
  (void)error;
  probe_of(stage)->calls[WEFT_OP_REDUCE_GRAD]++;
  return WEFT_OK;
}

const struct weft_stage_ops probe_tied_ops = {.name = "tied",
                                              .forward = probe_forward,
                                              .backward = probe_backward,
                                              .backward_input = probe_input,
                                              .backward_weight = probe_weight,
                                              .reduce_grad = probe_reduce,
                                              .tie_grad = probe_tie,
                                              .scale_grads = probe_scale};

const struct weft_stage_ops probe_ops = {.name = "probe",
                                         .forward = probe_forward,
                                         .backward = probe_backward,
                                         .backward_input = probe_input,
                                         .backward_weight = probe_weight,
                                         .loss = probe_loss,
                                         .unshard = probe_shard,
                                         .zero_grad = probe_zero,
                                         .scale_grads = probe_scale};

/* ---- A pipeline of probes on loopback ---- */

static struct weft_boundary small_boundary(void) {
  return (struct weft_boundary){
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {4}}, .needs_grad = true}}};
}

void bench_init(struct bench *bench, uint32_t stage_count, uint32_t m) {
  memset(bench, 0, sizeof *bench);
  for (uint32_t s = 0; s < STAGES_MAX; s++) {
    bench->probes[s].stage.ops = &probe_ops;
    bench->bases[s] = &bench->probes[s].stage;
  }
  bench->boundary = small_boundary();
  bench->options = weft_pipeline_options_default();
  bench->options.stages = bench->bases;
  bench->options.stage_count = stage_count;
  bench->options.boundaries = &bench->boundary;
  bench->options.boundary_count = 1;
  bench->options.microbatch_count = m;
  bench->options.stall_limit = 1000;
}

void bench_use_schedule(struct bench *bench, const char *schedule, uint32_t p, uint32_t v,
                        uint32_t m) {
  bench_init(bench, p * v, m);
  bench->named = (struct weft_named_source){.schedule = schedule, .ranks = p, .stages_per_rank = v};
  bench->options.source = weft_source_named;
  bench->options.source_context = &bench->named;
}

void bench_use_program(struct bench *bench, const char *csv) {
  struct weft_program *program;
  struct weft_error error;
  if (weft_program_parse(NULL, csv, strlen(csv), "test", &program, &error) < 0) {
    fail_msg("%s", error.message);
  }
  bench_init(bench, program->stage_count, program->microbatch_count);
  bench->program = program;
  bench->fixed = (struct weft_fixed_source){.program = program};
  bench->options.source = weft_source_fixed;
  bench->options.source_context = &bench->fixed;
}

/* Loopback endpoints that are observed, without asynchronous progress. */
static const struct weft_transport_ops *loopback_ops;
uint32_t bench_refreshes;

static enum weft_status count_progress(struct weft_transport *transport, struct weft_error *error) {
  progress_calls++;
  return loopback_ops->progress(transport, error);
}

static void count_refresh(struct weft_transport *transport, int64_t until) {
  assert_int_equal(until, loopback_ops->now(transport) + 500000000);
  bench_refreshes++;
}

enum weft_status bench_create_watched(struct bench *bench, uint32_t p) {
  static struct weft_transport_ops ops;
  pipelines_open(&bench->pipelines, NULL, &(struct weft_comm_options){.rank_count = p});
  loopback_ops = bench->pipelines.transports[0]->ops;
  ops = *loopback_ops;
  ops.async_progress = false;
  ops.progress = count_progress;
  ops.refresh_status = count_refresh;
  for (uint32_t r = 0; r < p; r++) {
    bench->pipelines.transports[r]->ops = &ops;
  }
  return pipelines_create(&bench->pipelines, NULL, &bench->options, &bench->error);
}

enum weft_status bench_create(struct bench *bench, uint32_t p) {
  pipelines_open(&bench->pipelines, NULL,
                 &(struct weft_comm_options){.rank_count = p, .seed = 7, .latency_ticks = 2});
  return pipelines_create(&bench->pipelines, NULL, &bench->options, &bench->error);
}

enum weft_status bench_step(struct bench *bench, uint32_t m) {
  const struct weft_batch batch = {.microbatch_count = m};
  return pipelines_step(&bench->pipelines, true, &batch, 1, &bench->error);
}

void bench_expect_ok(const struct bench *bench, enum weft_status status) {
  if (status != WEFT_OK) {
    fail_msg("%s", bench->error.message);
  }
}

void bench_expect_message(const struct bench *bench, const char *part) {
  if (strstr(bench->error.message, part) == NULL) {
    fail_msg("expected \"%s\" in: %s", part, bench->error.message);
  }
}

void bench_expect_agreed(const struct bench *bench) {
  for (uint32_t r = 0; r < bench->pipelines.rank_count; r++) {
    if (bench->pipelines.statuses[r] == WEFT_OK) {
      continue;
    }
    assert_int_equal(bench->pipelines.statuses[r], bench->error.status);
    assert_string_equal(bench->pipelines.errors[r].message, bench->error.message);
  }
}

void bench_finish(struct bench *bench) {
  pipelines_close(&bench->pipelines);
  weft_program_destroy(bench->program);
}
