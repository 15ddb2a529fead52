/* Pipelines as trainers use them: what is refused and how, programs for several
 * numbers of microbatches, custom functions, several tensors, frozen stages, progress. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_probes.h"

/* ---- Refused at create ---- */

static void test_a_stage_that_cannot_split(void **state) {
  (void)state;
  const struct weft_stage_ops whole = {.name = "whole",
                                       .forward = probe_ops.forward,
                                       .backward = probe_ops.backward,
                                       .scale_grads = probe_ops.scale_grads};
  struct bench bench;
  bench_use_schedule(&bench, "ZBH1", 2, 1, 4);
  bench.probes[1].stage.ops = &whole;
  assert_int_equal(bench_create(&bench, 2), WEFT_ERR_USAGE);
  bench_expect_message(&bench, "stage 1");
  bench_expect_message(&bench, "whole stage has backward only");
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
  bench_finish(&bench);
}

static void test_what_a_pipeline_needs(void **state) {
  (void)state;
  const struct weft_stage_ops unscaled = {
      .name = "unscaled", .forward = probe_ops.forward, .backward = probe_ops.backward};
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 2, 1, 4);
  bench.probes[0].stage.ops = &unscaled;
  assert_int_equal(bench_create(&bench, 2), WEFT_ERR_USAGE);
  bench_expect_message(&bench, "scale_grads");
  bench_finish(&bench);
  bench_use_schedule(&bench, "1F1B", 2, 1, 4);
  bench.bases[1] = NULL;
  assert_int_equal(bench_create(&bench, 2), WEFT_ERR_USAGE);
  bench_expect_message(&bench, "stage 1, and it is not given");
  bench_finish(&bench);
  bench_use_schedule(&bench, "1F1B", 2, 1, 4);
  assert_int_equal(bench_create(&bench, 3), WEFT_ERR_USAGE);
  bench_expect_message(&bench,
                       "the program has 2 ranks, from rank 0 on, and rank 2 has no row of it");
  bench_finish(&bench);
  bench_use_schedule(&bench, "1F1B", 2, 1, 4);
  assert_int_equal(bench_create(&bench, 1), WEFT_ERR_USAGE);
  bench_expect_message(&bench, "the program has 2 ranks, from rank 0 on, and the transport 1");
  bench_finish(&bench);
  bench_use_schedule(&bench, "1F1B", 2, 1, 0);
  assert_int_equal(bench_create(&bench, 2), WEFT_ERR_USAGE);
  bench_expect_message(&bench, "0 microbatches");
  bench_finish(&bench);
}

/* ---- Steps ---- */

static void test_arguments_of_stages(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "ZBVZeroBubble", 2, 2, 4);
  bench_expect_ok(&bench, bench_create(&bench, 2));
  for (uint32_t n = 1; n <= 3; n++) {
    bench_expect_ok(&bench, bench_step(&bench, 4));
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
  bench_finish(&bench);
}

struct counted_source {
  struct weft_named_source named;
  uint32_t asked;
};

static enum weft_status count_plan(void *context, uint32_t m, bool training,
                                   struct weft_program **out, struct weft_error *error) {
  struct counted_source *source = context;
  source->asked++;
  return weft_source_named(&source->named, m, training, out, error);
}

static void test_microbatches_change_from_step_to_step(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "Interleaved1F1B", 2, 2, 4);
  struct counted_source source = {.named = bench.named};
  bench.options.source = count_plan;
  bench.options.source_context = &source;
  bench_expect_ok(&bench, bench_create(&bench, 2));
  static const uint32_t sizes[] = {4, 7, 1, 4, 7, 12, 1, 4};
  uint32_t forwards = 0;
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    bench_expect_ok(&bench, bench_step(&bench, sizes[k]));
    const struct weft_batch batch = {.microbatch_count = sizes[k]};
    bench_expect_ok(&bench, pipelines_step(&bench.pipelines, false, &batch, 1, &bench.error));
    forwards += 2 * sizes[k];
  }
  assert_int_equal(bench.probes[3].calls[WEFT_OP_F], forwards);
  assert_int_equal(source.asked,
                   2 * 8); /* each of 4 numbers, for training and eval, once per rank */
  bench_finish(&bench);
}

static uint32_t prepared[STAGES_MAX]; /* by stage: slots */

static enum weft_status note_slots(struct weft_stage *stage, uint32_t slot_count,
                                   struct weft_error *error) {
  (void)error;
  prepared[probe_of(stage)->number] = slot_count;
  return WEFT_OK;
}

static enum weft_status set_plans(struct bench *bench, uint32_t first, uint32_t end,
                                  struct weft_named_source *named) {
  enum weft_status status = WEFT_OK;
  for (uint32_t r = first; r < end && status == WEFT_OK; r++) {
    status = weft_pipeline_set_source(bench->pipelines.items[r], weft_source_named, named,
                                      &bench->error);
  }
  return status;
}

static void test_plans_change_between_steps(void **state) {
  (void)state;
  struct weft_named_source sources[] = {{.schedule = "1F1B", .ranks = 2},
                                        {.schedule = "ZBH1", .ranks = 2},
                                        {.schedule = "GPipe", .ranks = 2}};
  static const uint32_t slots[][2] = {{2, 1}, {2, 2}, {6, 6}};
  struct weft_stage_ops ops = probe_ops;
  struct bench bench;
  bench_use_schedule(&bench, "GPipe", 2, 1, 6);
  ops.prepare = note_slots;
  for (uint32_t s = 0; s < 2; s++) {
    bench.probes[s].stage.ops = &ops;
    bench.probes[s].number = s;
  }
  bench_expect_ok(&bench, bench_create(&bench, 2));
  bench_expect_ok(&bench, bench_step(&bench, 6));
  for (uint32_t k = 0; k < 3; k++) {
    bench_expect_ok(&bench, set_plans(&bench, 0, 2, &sources[k]));
    assert_null(weft_pipeline_program(bench.pipelines.items[1]));
    assert_int_equal(prepared[0], slots[k][0]);
    assert_int_equal(prepared[1], slots[k][1]);
    bench_expect_ok(&bench, bench_step(&bench, 6));
    const struct weft_batch batch = {.microbatch_count = 6};
    bench_expect_ok(&bench, pipelines_step(&bench.pipelines, false, &batch, 1, &bench.error));
    for (uint32_t s = 0; s < 2; s++) {
      const uint32_t *calls = bench.probes[s].calls;
      assert_int_equal(calls[WEFT_OP_F], 6 + 12 * (k + 1));
      assert_int_equal(calls[WEFT_OP_I], calls[WEFT_OP_W]);
      assert_int_equal(calls[WEFT_OP_B] + calls[WEFT_OP_W], 6 * (k + 2));
      assert_true((calls[WEFT_OP_W] > 0) == (k > 0));
    }
  }
  bench_finish(&bench);
}

static void test_plans_that_cannot_be_changed_to(void **state) {
  (void)state;
  struct weft_named_source other = {.schedule = "ZBVZeroBubble", .ranks = 2, .stages_per_rank = 2};
  struct weft_named_source odd = {
      .schedule = "InterleavedZeroBubble", .ranks = 2, .stages_per_rank = 2};
  struct bench bench;
  bench_use_schedule(&bench, "Interleaved1F1B", 2, 2, 4);
  bench_expect_ok(&bench, bench_create(&bench, 2));
  bench_expect_ok(&bench, bench_step(&bench, 4));
  assert_int_equal(set_plans(&bench, 0, 2, &other), WEFT_ERR_USAGE);
  bench_expect_message(&bench, "puts stages on other ranks");
  assert_non_null(weft_pipeline_program(bench.pipelines.items[0]));
  bench_expect_ok(&bench, bench_step(&bench, 4)); /* as before */
  bench_expect_ok(&bench, set_plans(&bench, 0, 1, &odd));
  bench_expect_ok(&bench, set_plans(&bench, 1, 2, &bench.named));
  assert_int_equal(bench_step(&bench, 4), WEFT_ERR_PEER);
  bench_expect_message(&bench, "program");
  bench_expect_agreed(&bench);
  assert_int_equal(set_plans(&bench, 0, 1, &bench.named), WEFT_ERR_USAGE); /* it has failed */
  bench_finish(&bench);
}

static void test_wrong_number_of_microbatches(void **state) {
  (void)state;
  struct bench bench;
  bench_use_program(&bench, "0F0,0F1,0B0,0B1\n");
  bench_expect_ok(&bench, bench_create(&bench, 1));
  bench_expect_ok(&bench, bench_step(&bench, 2));
  struct weft_error error;
  const struct weft_batch batch = {.microbatch_count = 3};
  assert_int_equal(weft_pipeline_step(bench.pipelines.items[0], &batch, NULL, &error),
                   WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "for 2 microbatches, and the step has 3"));
  bench_expect_ok(&bench, bench_step(&bench, 2)); /* alone, nobody was harmed */
  bench_finish(&bench);
}

static void test_losses_from_the_wrong_rank(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 3, 1, 4);
  bench_expect_ok(&bench, bench_create(&bench, 3));
  struct weft_error error;
  const struct weft_batch batch = {.microbatch_count = 4, .want_losses = true};
  assert_int_equal(weft_pipeline_begin(bench.pipelines.items[1], true, &batch, &error),
                   WEFT_ERR_USAGE);
  assert_non_null(
      strstr(error.message,
             "rank 1 is asked for losses, and has no loss; the first one (stage 2) is on "
             "rank 2"));
  bench_finish(&bench);
}

static void test_losses_by_microbatch(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "DualPipeV", 2, 2, 6);
  bench_expect_ok(&bench, bench_create(&bench, 2));
  const struct weft_batch batches[2] = {{.microbatch_count = 6, .want_losses = true},
                                        {.microbatch_count = 6}};
  bench_expect_ok(&bench, pipelines_step(&bench.pipelines, true, batches, 2, &bench.error));
  struct weft_step_result result;
  weft_pipeline_result(bench.pipelines.items[0], &result); /* V: the last stage is on rank 0 */
  assert_int_equal(result.loss_count, 6);
  for (uint32_t k = 0; k < 6; k++) {
    assert_true(result.losses[k] == k);
  }
  bench_finish(&bench);
}

/* ---- Boundaries ---- */

static void test_several_tensors_and_sizes(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 3, 1, 4);
  bench.boundary = (struct weft_boundary){
      .tensor_count = 3,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 2, .dims = {3, 5}}, .needs_grad = true},
          {.largest = {.dtype = WEFT_I64, .dim_count = 1, .dims = {7}}},
          {.largest = {.dtype = WEFT_F64, .dim_count = 0}, .needs_grad = true}}};
  bench_expect_ok(&bench, bench_create(&bench, 3));
  bench_expect_ok(&bench, bench_step(&bench, 4));
  assert_int_equal(bench.probes[1].input_bytes, 4 * (3 * 5 * 4 + 7 * 8 + 8));
  assert_int_equal(bench.probes[1].grad_tensors, 4 * 2);
  bench_finish(&bench);
}

static void test_frozen_stages_send_no_gradients(void **state) {
  (void)state;
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 4, 1, 4);
  struct weft_boundary boundaries[4];
  for (uint32_t s = 0; s < 4; s++) {
    boundaries[s] = bench.boundary;
    boundaries[s].tensors[0].needs_grad = s >= 2; /* stages 0 and 1 are frozen */
  }
  bench.options.boundaries = boundaries;
  bench.options.boundary_count = 4;
  bench_expect_ok(&bench, bench_create(&bench, 4));
  bench_expect_ok(&bench, bench_step(&bench, 4));
  bench_expect_ok(&bench, bench_step(&bench, 4));
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
  bench_finish(&bench);
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
  log->parts += call->sub_action_count;
  for (uint32_t k = 0; k < call->sub_action_count; k++) {
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
    bench->probes[s].stage.ops = &probe_tied_ops;
  }
  if (rank_of[0] != rank_of[last]) {
    bench->probes[0].partner = &bench->probes[last];
    bench->probes[last].partner = &bench->probes[0];
  }
  free(rank_of);
  bench_expect_ok(bench, bench_create(bench, p));
  for (uint32_t round = 1; round <= 3; round++) {
    const struct weft_batch batch = {.microbatch_count = table->microbatch_count};
    bench_expect_ok(bench, pipelines_step(&bench->pipelines, round < 3, &batch, 1, &bench->error));
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
      bench_use_schedule(&bench, info->name, p, table->stage_count / p, 8);
      bench.named.lower = &lower;
      run_tied(&bench, p, table);
      bench_finish(&bench);
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
    bench_use_schedule(&bench, "DualPipeV", 2, 2, 8);
    bench.named.lower = &lower;
    bench.options.log = take_log;
    bench.options.log_context = &log;
    bench_expect_ok(&bench, bench_create(&bench, 2));
    for (uint32_t r = 0; r < 2; r++) {
      bench_expect_ok(&bench, weft_pipeline_set_function(bench.pipelines.items[r], ops[k], custom,
                                                         &log, &bench.error));
    }
    assert_non_null(strstr(log.line, weft_op_info(ops[k])->text));
    assert_non_null(strstr(log.line, "replaced"));
    bench_expect_ok(&bench, bench_step(&bench, 8));
    assert_true(log.calls > 0);
    assert_int_equal(log.parts, ops[k] == WEFT_OP_OVERLAP_F_B ? 2 * log.calls : log.calls);
    for (uint32_t s = 0; s < 4; s++) { /* the stages' own work was done all the same */
      const struct probe *probe = &bench.probes[s];
      assert_int_equal(probe->calls[WEFT_OP_F], 8);
      assert_int_equal(probe->calls[WEFT_OP_B] + probe->calls[WEFT_OP_W], 8);
      assert_int_equal(probe->scaled, 1);
    }
    bench_finish(&bench);
  }
}

static void test_ops_that_cannot_be_replaced(void **state) {
  (void)state;
  static const enum weft_op ops[] = {WEFT_OP_SEND_F, WEFT_OP_RECV_F, WEFT_OP_SEND_B,
                                     WEFT_OP_RECV_B};
  struct bench bench;
  bench_use_schedule(&bench, "1F1B", 1, 1, 2);
  bench_expect_ok(&bench, bench_create(&bench, 1));
  struct weft_pipeline *pipeline = bench.pipelines.items[0];
  for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
    assert_int_equal(weft_pipeline_set_function(pipeline, ops[k], custom, NULL, &bench.error),
                     WEFT_ERR_USAGE);
    bench_expect_message(&bench, weft_op_info(ops[k])->text);
  }
  assert_int_equal(weft_pipeline_set_function(pipeline, WEFT_OP_IDLE, custom, NULL, &bench.error),
                   WEFT_ERR_USAGE);
  bench_finish(&bench);
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
    bench.fixed = (struct weft_fixed_source){.program = table};
    bench.options.source = weft_source_fixed;
    bench.options.source_context = &bench.fixed;
    bench_expect_ok(&bench, bench_create(&bench, table->rank_count));
    bench_expect_ok(&bench, bench_step(&bench, table->microbatch_count));
    for (uint32_t s = 0; s < table->stage_count; s++) {
      assert_int_equal(bench.probes[s].calls[WEFT_OP_F], table->microbatch_count);
    }
    bench_finish(&bench);
    weft_program_destroy(table);
    tables++;
  }
  assert_int_equal(tables, 4);
}

static void test_hand_written_programs(void **state) {
  (void)state;
  struct bench bench;
  /* Microbatches out of order, bubbles, a table that needs lowering. */
  bench_use_program(&bench, "0F1,0F0,,0B1,0B0\n,1F1,1F0,1B1,1B0\n");
  bench_expect_ok(&bench, bench_create(&bench, 2));
  bench_expect_ok(&bench, bench_step(&bench, 2));
  assert_int_equal(bench.probes[1].last_backwards, 1);
  bench_finish(&bench);
}

/* ---- Pokes ---- */

static enum weft_status progress_and_continue(void *context, const struct weft_custom_call *call,
                                              struct weft_error *error) {
  probe_progress(context, call->calls[0]);
  return call->stages[0]->ops->backward(call->stages[0], call->calls[0], error);
}

/* From every function, each call of progress reaches the transport; none does where progress
 * is asynchronous. */
static void test_progress(void **state) {
  (void)state;
  for (int watched = 0; watched < 2; watched++) {
    struct bench bench;
    struct probe custom = {.touched = 0};
    bench_use_schedule(&bench, "1F1B", 2, 1, 4);
    bench_expect_ok(&bench,
                    watched == 1 ? bench_create_watched(&bench, 2) : bench_create(&bench, 2));
    bench_expect_ok(&bench,
                    weft_pipeline_set_function(bench.pipelines.items[0], WEFT_OP_B,
                                               progress_and_continue, &custom, &bench.error));
    bench_expect_ok(&bench, bench_step(&bench, 4));
    for (uint32_t s = 0; s < 2; s++) {
      const struct probe *probe = &bench.probes[s];
      assert_in_range(probe->touched, 8, 100);
      assert_int_equal(probe->progressed, watched == 1 ? probe->touched : 0);
    }
    assert_int_equal(custom.touched, 4);
    assert_int_equal(custom.progressed, watched == 1 ? 4 : 0);
    bench_finish(&bench);
  }
}

/* ---- What stages save ---- */

/* Every stage fills its memory in forward, finds it unchanged in its backwards, and spoils it in
 * the last one. */
static unsigned char content_of(const struct weft_stage_call *call) {
  return (unsigned char)(1 + 37 * call->stage + call->microbatch);
}

static void expect_saved(const struct weft_stage *stage, const struct weft_stage_call *call) {
  const unsigned char *saved = call->saved;
  uint64_t same = 0;
  while (same < stage->saved_bytes && saved[same] == content_of(call)) {
    same++;
  }
  if (same < stage->saved_bytes) {
    fail_msg("stage %u, microbatch %u: byte %u of what it saved is %u", call->stage,
             call->microbatch, (unsigned)same, saved[same]);
  }
}

static enum weft_status save_forward(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error) {
  memset(call->saved, content_of(call), (size_t)stage->saved_bytes);
  return probe_ops.forward(stage, call, error);
}

static enum weft_status saved_loss(struct weft_stage *stage, struct weft_stage_call *call,
                                   struct weft_error *error) {
  expect_saved(stage, call);
  return probe_ops.loss(stage, call, error);
}

static enum weft_status saved_backward(struct weft_stage *stage, struct weft_stage_call *call,
                                       struct weft_error *error) {
  expect_saved(stage, call);
  memset(call->saved, 0, (size_t)stage->saved_bytes);
  return probe_ops.backward(stage, call, error);
}

static enum weft_status saved_backward_input(struct weft_stage *stage, struct weft_stage_call *call,
                                             struct weft_error *error) {
  expect_saved(stage, call);
  return probe_ops.backward_input(stage, call, error);
}

static enum weft_status saved_backward_weight(struct weft_stage *stage,
                                              struct weft_stage_call *call,
                                              struct weft_error *error) {
  expect_saved(stage, call);
  memset(call->saved, 0, (size_t)stage->saved_bytes);
  return probe_ops.backward_weight(stage, call, error);
}

static uint64_t rounded(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

/* The most activations of a rank at once, in bytes, by the simulator; of the stages that save so
 * many, or of all (0). */
static uint64_t simulated_bytes(const struct bench *bench, uint32_t rank, uint64_t size) {
  const struct weft_program *program = weft_pipeline_program(bench->pipelines.items[0]);
  struct weft_costs *costs;
  struct weft_simulation *simulation;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, program->stage_count, &costs, &error), WEFT_OK);
  for (uint32_t s = 0; s < program->stage_count; s++) {
    const uint64_t own = rounded(bench->probes[s].stage.saved_bytes);
    costs->stages[s].activation = size == 0 || own == size ? (double)own : 0;
    costs->stages[s].activation_after_i = costs->stages[s].activation;
  }
  assert_int_equal(weft_simulate(NULL, program, costs, NULL, &simulation, &error), WEFT_OK);
  const double peak = simulation->ranks[rank].peak_activation;
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  return (uint64_t)peak;
}

static void expect_saved_bytes(const struct bench *bench, bool equal_sizes) {
  for (uint32_t r = 0; r < bench->pipelines.rank_count; r++) {
    const uint64_t bytes = weft_pipeline_saved_bytes(bench->pipelines.items[r]);
    uint64_t most = simulated_bytes(bench, r, 0);
    if (equal_sizes) {
      assert_int_equal(bytes, most);
      continue;
    }
    assert_true(bytes >= most);
    most = 0;
    for (uint64_t size = 256; size <= 768; size += 256) {
      most += simulated_bytes(bench, r, size);
    }
    assert_true(bytes <= most);
  }
}

/* A rank has as much memory for them as the simulator says that it needs, to the byte. */
static void test_stages_of_a_rank_share_memory(void **state) {
  static const struct {
    const char *name;
    uint32_t stages_per_rank;
  } schedules[] = {{"GPipe", 1},
                   {"1F1B", 1},
                   {"Eager1F1B", 1},
                   {"LoopedBFS", 2},
                   {"Interleaved1F1B", 2},
                   {"Interleaved1F1B", 4},
                   {"ZBH1", 1},
                   {"InterleavedZeroBubble", 2},
                   {"ZBVZeroBubble", 2},
                   {"DualPipeV", 2}};
  struct weft_stage_ops ops = probe_ops;
  (void)state;
  ops.forward = save_forward;
  ops.loss = saved_loss;
  ops.backward = saved_backward;
  ops.backward_input = saved_backward_input;
  ops.backward_weight = saved_backward_weight;
  for (size_t k = 0; k < sizeof schedules / sizeof schedules[0]; k++) {
    for (uint32_t sizes = 1; sizes <= 3; sizes++) { /* that differ */
      const uint32_t v = schedules[k].stages_per_rank;
      struct weft_named_source same = {
          .schedule = schedules[k].name, .ranks = 4, .stages_per_rank = v};
      struct bench bench;
      bench_use_schedule(&bench, schedules[k].name, 4, v, 8);
      for (uint32_t s = 0; s < 4 * v; s++) {
        bench.probes[s].stage = (struct weft_stage){&ops, 200 + 256 * (s / 4 % sizes)};
      }
      bench_expect_ok(&bench, bench_create(&bench, 4));
      bench_expect_ok(&bench, bench_step(&bench, 8));
      expect_saved_bytes(&bench, sizes == 1);
      bench_expect_ok(&bench, bench_step(&bench, 16));
      expect_saved_bytes(&bench, sizes == 1);
      const struct weft_batch batch = {.microbatch_count = 8};
      bench_expect_ok(&bench, pipelines_step(&bench.pipelines, false, &batch, 1, &bench.error));
      bench_expect_ok(&bench, bench_step(&bench, 16));
      expect_saved_bytes(&bench, sizes == 1);
      bench_expect_ok(&bench, set_plans(&bench, 0, 4, &same)); /* for 8 again: less memory */
      bench_expect_ok(&bench, bench_step(&bench, 8));
      expect_saved_bytes(&bench, sizes == 1);
      bench_finish(&bench);
    }
  }
}

static void test_more_than_there_is_to_save(void **state) {
  static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX / 8, UINT64_C(1) << 61};
  (void)state;
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    struct bench bench;
    bench_use_schedule(&bench, "GPipe", 2, 1, 8);
    bench.probes[1].stage.saved_bytes = sizes[k];
    assert_int_equal(bench_create(&bench, 2), WEFT_ERR_MEMORY);
    bench_finish(&bench);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_stage_that_cannot_split),
      cmocka_unit_test(test_what_a_pipeline_needs),
      cmocka_unit_test(test_arguments_of_stages),
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
      cmocka_unit_test(test_fixed_tables_run_as_given),
      cmocka_unit_test(test_hand_written_programs),
      cmocka_unit_test(test_progress),
      cmocka_unit_test(test_stages_of_a_rank_share_memory),
      cmocka_unit_test(test_more_than_there_is_to_save),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
