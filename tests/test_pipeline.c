/* Pipelines as trainers meet them: what is refused and how, plans for several
 * numbers of microbatches, custom functions, several tensors, frozen stages,
 * programs that are wrong, and errors that all ranks agree on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/run.h>
#include <weft/weft.h>

#include "support_pipelines.h"

enum { STAGES_MAX = 16 };

/* ---- A stage that watches ---- */

struct probe {
  struct weft_stage stage;
  uint32_t calls[WEFT_OP_COUNT];
  uint32_t last_backwards, losses, scaled, zeroed;
  uint32_t fail_at;   /* the n-th forward fails, from 1 */
  bool never_returns; /* its forward is in progress for ever */
  uint64_t input_bytes, grad_tensors;
  uint32_t touched, poked;     /* calls, and pokes that came to the transport */
  const struct probe *partner; /* of its TIE_GRAD, on another rank */
  bool reached;                /* its TIE_GRAD has been called */
  uint32_t number;             /* of the stage, where a test needs it */
};

static struct probe *probe_of(struct weft_stage *stage) { return (struct probe *)stage; }

/* Counted by a transport that is looked at (test_pokes). */
static uint32_t progress_calls;

/* Every function may poke. */
static void poke(struct probe *probe, const struct weft_stage_call *call) {
  const uint32_t before = progress_calls;
  call->poke(call->poke_context);
  probe->touched++;
  probe->poked += progress_calls - before;
}

static enum weft_status probe_forward(struct weft_stage *stage, struct weft_stage_call *call,
                                      struct weft_error *error) {
  struct probe *probe = probe_of(stage);
  probe->calls[WEFT_OP_F]++;
  poke(probe, call);
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
  poke(probe, call);
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
  poke(probe_of(stage), call);
  *call->loss += call->microbatch;
  return WEFT_OK;
}

static enum weft_status probe_scale(struct weft_stage *stage, struct weft_stage_call *call,
                                    struct weft_error *error) {
  (void)error;
  assert_true(call->grad_scale == 1.0 / call->microbatch_count);
  probe_of(stage)->scaled++;
  poke(probe_of(stage), call);
  return WEFT_OK;
}

static enum weft_status probe_zero(struct weft_stage *stage, struct weft_stage_call *call,
                                   struct weft_error *error) {
  (void)error;
  probe_of(stage)->zeroed++;
  poke(probe_of(stage), call);
  return WEFT_OK;
}

static enum weft_status probe_shard(struct weft_stage *stage, struct weft_stage_call *call,
                                    struct weft_error *error) {
  (void)error;
  probe_of(stage)->calls[WEFT_OP_UNSHARD]++;
  poke(probe_of(stage), call);
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

static const struct weft_stage_ops tied_ops = {.name = "tied",
                                               .forward = probe_forward,
                                               .backward = probe_backward,
                                               .backward_input = probe_input,
                                               .backward_weight = probe_weight,
                                               .reduce_grad = probe_reduce,
                                               .tie_grad = probe_tie,
                                               .scale_grads = probe_scale};

static const struct weft_stage_ops probe_ops = {.name = "probe",
                                                .forward = probe_forward,
                                                .backward = probe_backward,
                                                .backward_input = probe_input,
                                                .backward_weight = probe_weight,
                                                .loss = probe_loss,
                                                .unshard = probe_shard,
                                                .zero_grad = probe_zero,
                                                .scale_grads = probe_scale};

/* ---- A pipeline of probes on loopback ---- */

struct bench {
  struct probe probes[STAGES_MAX];
  struct weft_stage *bases[STAGES_MAX];
  struct weft_boundary boundary;
  struct weft_pipeline_options options;
  struct weft_named_plan named;
  struct weft_fixed_plan fixed;
  struct weft_program *program;
  struct pipelines pipelines;
  struct weft_error error;
};

static struct weft_boundary small_boundary(void) {
  return (struct weft_boundary){
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {4}}, .needs_grad = true}}};
}

static void bench_init(struct bench *bench, uint32_t stage_count, uint32_t m) {
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

static void use_schedule(struct bench *bench, const char *schedule, uint32_t p, uint32_t v,
                         uint32_t m) {
  bench_init(bench, p * v, m);
  bench->named = (struct weft_named_plan){.schedule = schedule, .ranks = p, .stages_per_rank = v};
  bench->options.plan = weft_plan_named;
  bench->options.plan_context = &bench->named;
}

static void use_program(struct bench *bench, const char *csv) {
  struct weft_program *program;
  struct weft_error error;
  if (weft_program_parse(NULL, csv, strlen(csv), "test", &program, &error) < 0) {
    fail_msg("%s", error.message);
  }
  bench_init(bench, program->stage_count, program->microbatch_count);
  bench->program = program;
  bench->fixed = (struct weft_fixed_plan){.program = program};
  bench->options.plan = weft_plan_fixed;
  bench->options.plan_context = &bench->fixed;
}

/* Loopback endpoints that are looked at, and that need be poked and asked. */
static const struct weft_transport_ops *loopback_ops;
static uint32_t refreshes;

static enum weft_status count_progress(struct weft_transport *transport, struct weft_error *error) {
  progress_calls++;
  return loopback_ops->progress(transport, error);
}

static void count_refresh(struct weft_transport *transport, int64_t until) {
  assert_int_equal(until, loopback_ops->now(transport) + 500000000);
  refreshes++;
}

static enum weft_status create_watched(struct bench *bench, uint32_t p) {
  static struct weft_transport_ops ops;
  pipelines_open(&bench->pipelines, NULL, &(struct weft_loopback_options){.rank_count = p});
  loopback_ops = bench->pipelines.transports[0]->ops;
  ops = *loopback_ops;
  ops.moves_alone = false;
  ops.progress = count_progress;
  ops.refresh_boards = count_refresh;
  for (uint32_t r = 0; r < p; r++) {
    bench->pipelines.transports[r]->ops = &ops;
  }
  return pipelines_create(&bench->pipelines, NULL, &bench->options, &bench->error);
}

static enum weft_status create(struct bench *bench, uint32_t p) {
  pipelines_open(&bench->pipelines, NULL,
                 &(struct weft_loopback_options){.rank_count = p, .seed = 7, .latency_ticks = 2});
  return pipelines_create(&bench->pipelines, NULL, &bench->options, &bench->error);
}

static enum weft_status step(struct bench *bench, uint32_t m) {
  const struct weft_batch batch = {.microbatch_count = m};
  return pipelines_step(&bench->pipelines, true, &batch, 1, &bench->error);
}

static void expect_ok(const struct bench *bench, enum weft_status status) {
  if (status != WEFT_OK) {
    fail_msg("%s", bench->error.message);
  }
}

static void expect_message(const struct bench *bench, const char *part) {
  if (strstr(bench->error.message, part) == NULL) {
    fail_msg("expected \"%s\" in: %s", part, bench->error.message);
  }
}

/* Every rank has the same error; but one may have been done before. */
static void expect_agreed(const struct bench *bench) {
  for (uint32_t r = 0; r < bench->pipelines.rank_count; r++) {
    if (bench->pipelines.statuses[r] == WEFT_OK) {
      continue;
    }
    assert_int_equal(bench->pipelines.statuses[r], bench->error.status);
    assert_string_equal(bench->pipelines.errors[r].message, bench->error.message);
  }
}

static void finish(struct bench *bench) {
  pipelines_close(&bench->pipelines);
  weft_program_destroy(bench->program);
}

/* ---- Refused at create ---- */

static void test_a_stage_that_cannot_split(void **state) {
  (void)state;
  static const struct weft_stage_ops whole = {.name = "whole",
                                              .forward = probe_forward,
                                              .backward = probe_backward,
                                              .scale_grads = probe_scale};
  struct bench bench;
  use_schedule(&bench, "ZBH1", 2, 1, 4);
  bench.probes[1].stage.ops = &whole;
  assert_int_equal(create(&bench, 2), WEFT_ERR_USAGE);
  expect_message(&bench, "stage 1");
  expect_message(&bench, "whole stage cannot");
  /* The hint lists the schedules of the registry that would do, and no other. */
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (info->trains && !info->fixed) {
      char listed[64];
      snprintf(listed, sizeof listed, " %s", info->name);
      const char *found = strstr(bench.error.hint, listed);
      const bool named =
          found != NULL && (found[strlen(listed)] == ',' || found[strlen(listed)] == '\0');
      assert_int_equal(named, !info->splits_backward);
    }
  }
  finish(&bench);
}

static void test_what_a_pipeline_needs(void **state) {
  (void)state;
  static const struct weft_stage_ops unscaled = {
      .name = "unscaled", .forward = probe_forward, .backward = probe_backward};
  struct bench bench;
  use_schedule(&bench, "1F1B", 2, 1, 4);
  bench.probes[0].stage.ops = &unscaled;
  assert_int_equal(create(&bench, 2), WEFT_ERR_USAGE);
  expect_message(&bench, "scale_grads");
  finish(&bench);
  use_schedule(&bench, "1F1B", 2, 1, 4);
  bench.bases[1] = NULL;
  assert_int_equal(create(&bench, 2), WEFT_ERR_USAGE);
  expect_message(&bench, "stage 1, and it is not given");
  finish(&bench);
  use_schedule(&bench, "1F1B", 2, 1, 4);
  assert_int_equal(create(&bench, 3), WEFT_ERR_USAGE);
  expect_message(&bench, "the program has 2 ranks, from rank 0 on, and rank 2 has no row of it");
  finish(&bench);
  use_schedule(&bench, "1F1B", 2, 1, 4);
  assert_int_equal(create(&bench, 1), WEFT_ERR_USAGE);
  expect_message(&bench, "the program has 2 ranks, from rank 0 on, and the transport 1");
  finish(&bench);
  use_schedule(&bench, "1F1B", 2, 1, 0);
  assert_int_equal(create(&bench, 2), WEFT_ERR_USAGE);
  expect_message(&bench, "0 microbatches");
  finish(&bench);
}

/* ---- Steps ---- */

static void test_what_stages_are_told(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "ZBVZeroBubble", 2, 2, 4);
  expect_ok(&bench, create(&bench, 2));
  for (uint32_t n = 1; n <= 3; n++) {
    expect_ok(&bench, step(&bench, 4));
    for (uint32_t s = 0; s < 4; s++) {
      const struct probe *probe = &bench.probes[s];
      assert_int_equal(probe->calls[WEFT_OP_F], 4 * n);
      assert_int_equal(probe->calls[WEFT_OP_B] + probe->calls[WEFT_OP_W], 4 * n);
      assert_int_equal(probe->calls[WEFT_OP_I], probe->calls[WEFT_OP_W]);
      assert_int_equal(probe->last_backwards, n);
      assert_int_equal(probe->scaled, n);
      assert_int_equal(probe->zeroed, n);
      assert_int_equal(probe->losses, s == 3 ? 4 * n : 0);
    }
  }
  finish(&bench);
}

struct counted_plan {
  struct weft_named_plan named;
  uint32_t asked;
};

static enum weft_status count_plan(void *context, uint32_t m, bool training,
                                   struct weft_program **out, struct weft_error *error) {
  struct counted_plan *plan = context;
  plan->asked++;
  return weft_plan_named(&plan->named, m, training, out, error);
}

static void test_microbatches_change_from_step_to_step(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "Interleaved1F1B", 2, 2, 4);
  struct counted_plan plan = {.named = bench.named};
  bench.options.plan = count_plan;
  bench.options.plan_context = &plan;
  expect_ok(&bench, create(&bench, 2));
  static const uint32_t sizes[] = {4, 7, 1, 4, 7, 12, 1, 4};
  uint32_t forwards = 0;
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    expect_ok(&bench, step(&bench, sizes[k]));
    const struct weft_batch batch = {.microbatch_count = sizes[k]};
    expect_ok(&bench, pipelines_step(&bench.pipelines, false, &batch, 1, &bench.error));
    forwards += 2 * sizes[k];
  }
  assert_int_equal(bench.probes[3].calls[WEFT_OP_F], forwards);
  assert_int_equal(plan.asked, 2 * 8); /* each of 4 numbers, for training and eval, once per rank */
  finish(&bench);
}

static uint32_t prepared[STAGES_MAX]; /* by stage: slots */

static enum weft_status note_slots(struct weft_stage *stage, uint32_t slot_count,
                                   struct weft_error *error) {
  (void)error;
  prepared[probe_of(stage)->number] = slot_count;
  return WEFT_OK;
}

static enum weft_status set_plans(struct bench *bench, uint32_t first, uint32_t end,
                                  struct weft_named_plan *named) {
  enum weft_status status = WEFT_OK;
  for (uint32_t r = first; r < end && status == WEFT_OK; r++) {
    status =
        weft_pipeline_set_plan(bench->pipelines.items[r], weft_plan_named, named, &bench->error);
  }
  return status;
}

static void test_plans_change_between_steps(void **state) {
  (void)state;
  struct weft_named_plan plans[] = {{.schedule = "1F1B", .ranks = 2},
                                    {.schedule = "ZBH1", .ranks = 2},
                                    {.schedule = "GPipe", .ranks = 2}};
  static const uint32_t slots[][2] = {{2, 1}, {2, 2}, {6, 6}};
  struct weft_stage_ops ops = probe_ops;
  struct bench bench;
  use_schedule(&bench, "GPipe", 2, 1, 6);
  ops.prepare = note_slots;
  for (uint32_t s = 0; s < 2; s++) {
    bench.probes[s].stage.ops = &ops;
    bench.probes[s].number = s;
  }
  expect_ok(&bench, create(&bench, 2));
  expect_ok(&bench, step(&bench, 6));
  for (uint32_t k = 0; k < 3; k++) {
    expect_ok(&bench, set_plans(&bench, 0, 2, &plans[k]));
    assert_null(weft_pipeline_program(bench.pipelines.items[1]));
    assert_int_equal(prepared[0], slots[k][0]);
    assert_int_equal(prepared[1], slots[k][1]);
    expect_ok(&bench, step(&bench, 6));
    const struct weft_batch batch = {.microbatch_count = 6};
    expect_ok(&bench, pipelines_step(&bench.pipelines, false, &batch, 1, &bench.error));
    for (uint32_t s = 0; s < 2; s++) {
      const uint32_t *calls = bench.probes[s].calls;
      assert_int_equal(calls[WEFT_OP_F], 6 + 12 * (k + 1));
      assert_int_equal(calls[WEFT_OP_I], calls[WEFT_OP_W]);
      assert_int_equal(calls[WEFT_OP_B] + calls[WEFT_OP_W], 6 * (k + 2));
      assert_true((calls[WEFT_OP_W] > 0) == (k > 0));
    }
  }
  finish(&bench);
}

static void test_plans_that_cannot_be_changed_to(void **state) {
  (void)state;
  struct weft_named_plan other = {.schedule = "ZBVZeroBubble", .ranks = 2, .stages_per_rank = 2};
  struct weft_named_plan odd = {
      .schedule = "InterleavedZeroBubble", .ranks = 2, .stages_per_rank = 2};
  struct bench bench;
  use_schedule(&bench, "Interleaved1F1B", 2, 2, 4);
  expect_ok(&bench, create(&bench, 2));
  expect_ok(&bench, step(&bench, 4));
  assert_int_equal(set_plans(&bench, 0, 2, &other), WEFT_ERR_USAGE);
  expect_message(&bench, "puts stages on other ranks");
  assert_non_null(weft_pipeline_program(bench.pipelines.items[0]));
  expect_ok(&bench, step(&bench, 4)); /* as before */
  expect_ok(&bench, set_plans(&bench, 0, 1, &odd));
  expect_ok(&bench, set_plans(&bench, 1, 2, &bench.named));
  assert_int_equal(step(&bench, 4), WEFT_ERR_PEER);
  expect_message(&bench, "program");
  expect_agreed(&bench);
  assert_int_equal(set_plans(&bench, 0, 1, &bench.named), WEFT_ERR_USAGE); /* it has failed */
  finish(&bench);
}

static void test_wrong_number_of_microbatches(void **state) {
  (void)state;
  struct bench bench;
  use_program(&bench, "0F0,0F1,0B0,0B1\n");
  expect_ok(&bench, create(&bench, 1));
  expect_ok(&bench, step(&bench, 2));
  struct weft_error error;
  const struct weft_batch batch = {.microbatch_count = 3};
  assert_int_equal(weft_pipeline_step(bench.pipelines.items[0], &batch, NULL, &error),
                   WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "for 2 microbatches, and the step has 3"));
  expect_ok(&bench, step(&bench, 2)); /* alone, nobody was harmed */
  finish(&bench);
}

static void test_losses_from_the_wrong_rank(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "1F1B", 3, 1, 4);
  expect_ok(&bench, create(&bench, 3));
  struct weft_error error;
  const struct weft_batch batch = {.microbatch_count = 4, .want_losses = true};
  assert_int_equal(weft_pipeline_begin(bench.pipelines.items[1], true, &batch, &error),
                   WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message,
                         "rank 1 is asked for losses, and the last stage (2) is on "
                         "rank 2"));
  finish(&bench);
}

static void test_losses_by_microbatch(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "DualPipeV", 2, 2, 6);
  expect_ok(&bench, create(&bench, 2));
  const struct weft_batch batches[2] = {{.microbatch_count = 6, .want_losses = true},
                                        {.microbatch_count = 6}};
  expect_ok(&bench, pipelines_step(&bench.pipelines, true, batches, 2, &bench.error));
  struct weft_step_result result;
  weft_pipeline_result(bench.pipelines.items[0], &result); /* V: the last stage is on rank 0 */
  assert_int_equal(result.loss_count, 6);
  for (uint32_t k = 0; k < 6; k++) {
    assert_true(result.losses[k] == k);
  }
  finish(&bench);
}

/* ---- Boundaries ---- */

static void test_several_tensors_and_sizes(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "1F1B", 3, 1, 4);
  bench.boundary = (struct weft_boundary){
      .tensor_count = 3,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 2, .dims = {3, 5}}, .needs_grad = true},
          {.largest = {.dtype = WEFT_I64, .dim_count = 1, .dims = {7}}},
          {.largest = {.dtype = WEFT_F64, .dim_count = 0}, .needs_grad = true}}};
  expect_ok(&bench, create(&bench, 3));
  expect_ok(&bench, step(&bench, 4));
  assert_int_equal(bench.probes[1].input_bytes, 4 * (3 * 5 * 4 + 7 * 8 + 8));
  assert_int_equal(bench.probes[1].grad_tensors, 4 * 2);
  finish(&bench);
}

static void test_frozen_stages_send_no_gradients(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "1F1B", 4, 1, 4);
  struct weft_boundary boundaries[4];
  for (uint32_t s = 0; s < 4; s++) {
    boundaries[s] = small_boundary();
    boundaries[s].tensors[0].needs_grad = s >= 2; /* stages 0 and 1 are frozen */
  }
  bench.options.boundaries = boundaries;
  bench.options.boundary_count = 4;
  expect_ok(&bench, create(&bench, 4));
  expect_ok(&bench, step(&bench, 4));
  expect_ok(&bench, step(&bench, 4));
  for (uint32_t s = 0; s < 4; s++) {
    assert_int_equal(bench.probes[s].calls[WEFT_OP_F], 8);
    assert_int_equal(bench.probes[s].calls[WEFT_OP_B], s >= 2 ? 8 : 0);
    assert_int_equal(bench.probes[s].scaled, s >= 2 ? 2 : 0);
  }
  uint64_t count;
  struct weft_event *events = pipelines_events(&bench.pipelines, &count);
  const struct weft_program *program = weft_pipeline_program(bench.pipelines.items[0]);
  for (uint64_t k = 0; k < count; k++) {
    const struct weft_action *action = &program->actions[events[k].record];
    assert_false(action->op == WEFT_OP_SEND_B && action->stage <= 2);
  }
  free(events);
  finish(&bench);
}

/* ---- Custom functions ---- */

struct custom_log {
  uint32_t calls, parts;
  char line[128];
};

static enum weft_status custom(void *context, const struct weft_custom_call *call,
                               struct weft_error *error) {
  struct custom_log *log = context;
  log->calls++;
  log->parts += call->part_count;
  for (uint32_t k = 0; k < call->part_count; k++) {
    const struct weft_stage_ops *ops = call->stages[k]->ops;
    enum weft_status (*own)(struct weft_stage *, struct weft_stage_call *, struct weft_error *) =
        call->actions[k]->op == WEFT_OP_F   ? ops->forward
        : call->actions[k]->op == WEFT_OP_B ? ops->backward
        : call->actions[k]->op == WEFT_OP_I ? ops->backward_input
        : call->actions[k]->op == WEFT_OP_W ? ops->backward_weight
                                            : NULL;
    if (own != NULL) {
      const enum weft_status status = own(call->stages[k], call->calls[k], error);
      assert_int_equal(status, WEFT_OK);
    }
  }
  return WEFT_OK;
}

static void take_log(void *context, const char *line) {
  struct custom_log *log = context;
  snprintf(log->line, sizeof log->line, "%s", line);
}

/* ---- Weights that the first and the last stage share ---- */

/* Two steps, then one that only goes forward, which ties nothing. */
static void run_tied(struct bench *bench, uint32_t p, const struct weft_program *table) {
  uint32_t *rank_of = calloc(table->stage_count, sizeof *rank_of);
  const uint32_t last = table->stage_count - 1;
  (void)weft_placement_infer(table, rank_of);
  for (uint32_t s = 0; s <= last; s++) {
    bench->probes[s].stage.ops = &tied_ops;
  }
  if (rank_of[0] != rank_of[last]) {
    bench->probes[0].partner = &bench->probes[last];
    bench->probes[last].partner = &bench->probes[0];
  }
  free(rank_of);
  expect_ok(bench, create(bench, p));
  for (uint32_t round = 1; round <= 3; round++) {
    const struct weft_batch batch = {.microbatch_count = table->microbatch_count};
    expect_ok(bench, pipelines_step(&bench->pipelines, round < 3, &batch, 1, &bench->error));
    for (uint32_t s = 0; s <= last; s++) {
      struct probe *probe = &bench->probes[s];
      const uint32_t steps = round < 3 ? round : 2;
      assert_int_equal(probe->calls[WEFT_OP_TIE_GRAD], s == 0 || s == last ? steps : 0);
      assert_int_equal(probe->calls[WEFT_OP_REDUCE_GRAD], steps);
      probe->reached = false;
    }
  }
}

static void test_gradients_are_tied(void **state) {
  (void)state;
  uint32_t schedules = 0;
  struct weft_lower_options lower = weft_lower_options_default();
  lower.tie_grad = true;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    for (uint32_t p = 1; p <= 4 && info->trains && !info->fixed; p += 3) {
      const struct weft_shape shape = {.ranks = p, .microbatches = 8};
      struct weft_program *table = NULL;
      struct bench bench;
      if (weft_generate(NULL, info->name, &shape, &table, NULL) != WEFT_OK) {
        continue;
      }
      use_schedule(&bench, info->name, p, table->stage_count / p, 8);
      bench.named.lower = &lower;
      run_tied(&bench, p, table);
      finish(&bench);
      weft_program_destroy(table);
      schedules++;
    }
  }
  assert_true(schedules >= 12);
}

static void test_custom_functions(void **state) {
  (void)state;
  static const enum weft_op ops[] = {WEFT_OP_F,           WEFT_OP_B,           WEFT_OP_I,
                                     WEFT_OP_W,           WEFT_OP_UNSHARD,     WEFT_OP_RESHARD,
                                     WEFT_OP_REDUCE_GRAD, WEFT_OP_OVERLAP_F_B, WEFT_OP_TIE_GRAD};
  for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
    struct bench bench;
    struct custom_log log = {0};
    struct weft_lower_options lower = weft_lower_options_default();
    lower.tie_grad = true;
    use_schedule(&bench, "DualPipeV", 2, 2, 8);
    bench.named.lower = &lower;
    bench.options.log = take_log;
    bench.options.log_context = &log;
    expect_ok(&bench, create(&bench, 2));
    for (uint32_t r = 0; r < 2; r++) {
      expect_ok(&bench, weft_pipeline_set_function(bench.pipelines.items[r], ops[k], custom, &log,
                                                   &bench.error));
    }
    assert_non_null(strstr(log.line, weft_op_info(ops[k])->text));
    assert_non_null(strstr(log.line, "replaced"));
    expect_ok(&bench, step(&bench, 8));
    assert_true(log.calls > 0);
    assert_int_equal(log.parts, ops[k] == WEFT_OP_OVERLAP_F_B ? 2 * log.calls : log.calls);
    for (uint32_t s = 0; s < 4; s++) { /* the stages' own work was done all the same */
      const struct probe *probe = &bench.probes[s];
      assert_int_equal(probe->calls[WEFT_OP_F], 8);
      assert_int_equal(probe->calls[WEFT_OP_B] + probe->calls[WEFT_OP_W], 8);
      assert_int_equal(probe->scaled, 1);
    }
    finish(&bench);
  }
}

static void test_ops_that_cannot_be_replaced(void **state) {
  (void)state;
  static const enum weft_op ops[] = {WEFT_OP_SEND_F, WEFT_OP_RECV_F, WEFT_OP_SEND_B,
                                     WEFT_OP_RECV_B};
  struct bench bench;
  use_schedule(&bench, "1F1B", 1, 1, 2);
  expect_ok(&bench, create(&bench, 1));
  struct weft_pipeline *pipeline = bench.pipelines.items[0];
  for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
    assert_int_equal(weft_pipeline_set_function(pipeline, ops[k], custom, NULL, &bench.error),
                     WEFT_ERR_USAGE);
    expect_message(&bench, weft_op_info(ops[k])->text);
  }
  assert_int_equal(weft_pipeline_set_function(pipeline, WEFT_OP_IDLE, custom, NULL, &bench.error),
                   WEFT_ERR_USAGE);
  finish(&bench);
}

/* ---- Programs that are wrong ---- */

static void refuse(const char *csv, uint32_t p, const char *message) {
  struct bench bench;
  use_program(&bench, csv);
  expect_ok(&bench, create(&bench, p));
  const enum weft_status status = step(&bench, bench.program->microbatch_count);
  if (status != WEFT_ERR_INVALID) {
    fail_msg("%s: %d, %s", csv, status, status < 0 ? bench.error.message : "it ran");
  }
  expect_message(&bench, message);
  expect_agreed(&bench);
  finish(&bench);
}

static void test_programs_that_are_wrong(void **state) {
  (void)state;
  refuse("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", 2,
         "rank 1, action 0 (1F0): its input has not been received");
  refuse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1RECV_F0,1F0,1B0,1SEND_B0\n", 2,
         "(1RECV_F0): it has been received before");
  refuse("0UNSHARD,0UNSHARD,0F0,0B0\n", 1, "(0UNSHARD): the stage is unsharded already");
  refuse("0F0,0B0,0UNSHARD\n", 1, "(0F0): the stage is sharded");
  refuse("0UNSHARD,0F0,0RESHARD,0B0\n", 1, "(0B0): the stage is sharded");
  refuse("0F0,0F1,0B0\n", 1, "still has");
  refuse("0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 2,
         "(0SEND_F0): it has not been made, or was sent before");
  refuse("0F0,0SEND_F0,0RECV_B0,0B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 2,
         "(0B0): it has been done before");
  refuse("0UNSHARD,0F0,0F1,0B0,0REDUCE_GRAD,0B1\n", 1, "a backward of the stage stands behind it");
  refuse("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", 1, "are reduced already");
  refuse("0F0,0F1,0B0,0TIE_GRAD,0B1\n", 1, "(0TIE_GRAD): a backward of the stage stands behind it");
  refuse("0F0,0B0,0TIE_GRAD,0TIE_GRAD\n", 1, "are tied already");
  refuse("0F0,0B0,0REDUCE_GRAD,0TIE_GRAD\n", 1, "(0TIE_GRAD): the stage's gradients are reduced");
  refuse("0F0,0W0\n", 1, "(0W0): its input gradient (I) has not been done");
  refuse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1I0,1SEND_B0\n", 2, "still has");
  refuse("0B0,0F0\n", 1, "its forward has not been done");
}

/* ---- Programs run as given ---- */

static void test_fixed_tables_run_as_given(void **state) {
  (void)state;
  uint32_t tables = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (!info->fixed) {
      continue;
    }
    struct weft_program *table = NULL;
    struct weft_error error;
    for (uint32_t p = 1; p <= 16 && table == NULL; p++) {
      for (uint32_t m = 1; m <= 32 && table == NULL; m++) {
        const struct weft_shape shape = {.ranks = p, .microbatches = m};
        if (weft_generate(NULL, info->name, &shape, &table, &error) < 0) {
          table = NULL;
        }
      }
    }
    assert_non_null(table);
    struct bench bench;
    bench_init(&bench, table->stage_count, table->microbatch_count);
    bench.fixed = (struct weft_fixed_plan){.program = table};
    bench.options.plan = weft_plan_fixed;
    bench.options.plan_context = &bench.fixed;
    expect_ok(&bench, create(&bench, table->rank_count));
    expect_ok(&bench, step(&bench, table->microbatch_count));
    for (uint32_t s = 0; s < table->stage_count; s++) {
      assert_int_equal(bench.probes[s].calls[WEFT_OP_F], table->microbatch_count);
    }
    finish(&bench);
    weft_program_destroy(table);
    tables++;
  }
  assert_int_equal(tables, 4);
}

static void test_hand_written_programs(void **state) {
  (void)state;
  struct bench bench;
  /* Microbatches out of order, bubbles, a table that needs lowering. */
  use_program(&bench, "0F1,0F0,,0B1,0B0\n,1F1,1F0,1B1,1B0\n");
  expect_ok(&bench, create(&bench, 2));
  expect_ok(&bench, step(&bench, 2));
  assert_int_equal(bench.probes[1].last_backwards, 1);
  finish(&bench);
}

/* ---- One agreed error ---- */

static void test_a_failing_stage(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "1F1B", 4, 1, 8);
  bench.probes[2].fail_at = 5;
  expect_ok(&bench, create(&bench, 4));
  assert_int_equal(step(&bench, 8), WEFT_ERR_STAGE);
  expect_message(&bench, "rank 2, step 0, 2F4 failed: out of paper");
  expect_agreed(&bench);
  struct weft_failure failure;
  assert_true(bench.pipelines.transports[0]->ops->failed(bench.pipelines.transports[0], &failure));
  assert_int_equal(failure.rank, 2);
  assert_int_equal(step(&bench, 8), WEFT_ERR_STAGE); /* it stays that way */
  finish(&bench);
}

static enum weft_status poke_and_go_on(void *context, const struct weft_custom_call *call,
                                       struct weft_error *error) {
  poke(context, call->calls[0]);
  return call->stages[0]->ops->backward(call->stages[0], call->calls[0], error);
}

/* From every function, each poke is one progress(); none on a transport that moves alone. */
static void test_pokes(void **state) {
  (void)state;
  for (int watched = 0; watched < 2; watched++) {
    struct bench bench;
    struct probe custom = {.touched = 0};
    use_schedule(&bench, "1F1B", 2, 1, 4);
    expect_ok(&bench, watched == 1 ? create_watched(&bench, 2) : create(&bench, 2));
    expect_ok(&bench, weft_pipeline_set_function(bench.pipelines.items[0], WEFT_OP_B,
                                                 poke_and_go_on, &custom, &bench.error));
    expect_ok(&bench, step(&bench, 4));
    for (uint32_t s = 0; s < 2; s++) {
      const struct probe *probe = &bench.probes[s];
      assert_in_range(probe->touched, 8, 100);
      assert_int_equal(probe->poked, watched == 1 ? probe->touched : 0);
    }
    assert_int_equal(custom.touched, 4);
    assert_int_equal(custom.poked, watched == 1 ? 4 : 0);
    finish(&bench);
  }
}

/* Before somebody is blamed. */
static void test_boards_are_refreshed(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "1F1B", 2, 1, 4);
  bench.probes[1].never_returns = true;
  refreshes = 0;
  expect_ok(&bench, create_watched(&bench, 2));
  assert_int_equal(step(&bench, 4), WEFT_ERR_STALLED);
  assert_int_equal(refreshes, 1);
  finish(&bench);
}

static void test_a_stage_that_never_returns(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "1F1B", 4, 1, 8);
  bench.probes[1].never_returns = true;
  expect_ok(&bench, create(&bench, 4));
  assert_int_equal(step(&bench, 8), WEFT_ERR_STALLED);
  expect_message(&bench, "rank 1");
  expect_message(&bench, "1F0");
  expect_agreed(&bench);
  struct weft_failure failure;
  assert_true(bench.pipelines.transports[0]->ops->failed(bench.pipelines.transports[0], &failure));
  assert_int_equal(failure.rank, 1);
  finish(&bench);
}

static void test_the_odd_rank_is_named(void **state) {
  (void)state;
  for (uint32_t odd = 0; odd < 4; odd++) {
    struct bench bench;
    use_schedule(&bench, "1F1B", 4, 1, 4);
    expect_ok(&bench, create(&bench, 4));
    weft_pipeline_destroy(bench.pipelines.items[odd]);
    bench.pipelines.items[odd] = NULL;
    finish(&bench);

    use_schedule(&bench, "1F1B", 4, 1, 4);
    pipelines_open(&bench.pipelines, NULL, &(struct weft_loopback_options){.rank_count = 4});
    for (uint32_t r = 0; r < 4; r++) {
      bench.options.configuration = r == odd ? 99 : 1;
      expect_ok(&bench, weft_pipeline_create(NULL, bench.pipelines.transports[r], &bench.options,
                                             &bench.pipelines.items[r], &bench.error));
    }
    assert_int_equal(step(&bench, 4), WEFT_ERR_PEER);
    char expected[64];
    snprintf(expected, sizeof expected, "rank %u has another configuration", odd);
    expect_message(&bench, expected);
    expect_agreed(&bench);
    assert_int_equal(bench.probes[0].calls[WEFT_OP_F], 0); /* before anything has moved */
    finish(&bench);
  }
}

static bool stop_at_once(void *context) {
  (void)context;
  return true;
}

static void test_interruption(void **state) {
  (void)state;
  struct bench bench;
  use_schedule(&bench, "1F1B", 2, 1, 4);
  bench.options.interrupted = stop_at_once;
  expect_ok(&bench, create(&bench, 2));
  assert_int_equal(step(&bench, 4), WEFT_ERR_CANCELLED);
  expect_agreed(&bench);
  finish(&bench);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_stage_that_cannot_split),
      cmocka_unit_test(test_what_a_pipeline_needs),
      cmocka_unit_test(test_what_stages_are_told),
      cmocka_unit_test(test_microbatches_change_from_step_to_step),
      cmocka_unit_test(test_plans_change_between_steps),
      cmocka_unit_test(test_plans_that_cannot_be_changed_to),
      cmocka_unit_test(test_wrong_number_of_microbatches),
      cmocka_unit_test(test_losses_from_the_wrong_rank),
      cmocka_unit_test(test_losses_by_microbatch),
      cmocka_unit_test(test_several_tensors_and_sizes),
      cmocka_unit_test(test_frozen_stages_send_no_gradients),
      cmocka_unit_test(test_gradients_are_tied),
      cmocka_unit_test(test_custom_functions),
      cmocka_unit_test(test_ops_that_cannot_be_replaced),
      cmocka_unit_test(test_programs_that_are_wrong),
      cmocka_unit_test(test_fixed_tables_run_as_given),
      cmocka_unit_test(test_hand_written_programs),
      cmocka_unit_test(test_a_failing_stage),
      cmocka_unit_test(test_a_stage_that_never_returns),
      cmocka_unit_test(test_pokes),
      cmocka_unit_test(test_boards_are_refreshed),
      cmocka_unit_test(test_the_odd_rank_is_named),
      cmocka_unit_test(test_interruption),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
