/* Program sources: every schedule for every number of microbatches, forward-only programs on any
 * placement, and fixed programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/source.h>
#include <weft/support.h>
#include <weft/weft.h>

#include "support_memory.h"

enum { P_MAX = 5, V_MAX = 3, M_MAX = 11 };

static void must(enum weft_status status, const struct weft_error *error) {
  if (status != WEFT_OK) {
    fail_msg("%s", error->message);
  }
}

static struct weft_program *parse(const char *csv) {
  struct weft_program *program = NULL;
  struct weft_error error;
  must(weft_program_parse(NULL, csv, strlen(csv), "test", &program, &error), &error);
  return program;
}

static struct weft_program *generate(const char *name, const struct weft_shape *shape) {
  struct weft_program *table = NULL;
  struct weft_error error;
  must(weft_generate(NULL, name, shape, &table, &error), &error);
  return table;
}

static struct weft_program *lower(const struct weft_program *table,
                                  const struct weft_lower_options *options) {
  struct weft_program *program = NULL;
  struct weft_error error;
  must(weft_lower(NULL, table, options, &program, &error), &error);
  return program;
}

static struct weft_program *forward(const struct weft_program *like, uint32_t microbatch_count) {
  struct weft_program *program = NULL;
  struct weft_error error;
  must(weft_source_forward_only(NULL, like, microbatch_count, NULL, &program, &error), &error);
  return program;
}

static void assert_equal_programs(const struct weft_program *a, const struct weft_program *b) {
  assert_true(weft_program_equal(a, b));
  assert_true(weft_program_hash(a) == weft_program_hash(b));
  assert_int_equal(a->level, b->level);
}

/* Under rendezvous, the default. */
static void assert_right(const char *name, const struct weft_program *program) {
  struct weft_report *report = NULL;
  struct weft_error error;
  must(weft_verify(NULL, program, NULL, &report, &error), &error);
  if (!report->ok) {
    fail_msg("%s, %u ranks, %u stages, %u microbatches: %s", name, program->rank_count,
             program->stage_count, program->microbatch_count, report->findings[0].message);
  }
  assert_true(report->liveness_checked);
  weft_report_destroy(report);
}

/* ---- A simple reference for forward-only programs ---- */

/* A rank takes the deepest of its stages that has had input since the slot
 * before. */
static uint32_t deepest_ready(const uint32_t *rank_of, const uint32_t *done, uint32_t stage_count,
                              uint32_t microbatch_count, uint32_t rank) {
  for (uint32_t s = stage_count; s-- > 0;) {
    if (rank_of[s] == rank && done[s] < (s > 0 ? done[s - 1] : microbatch_count)) {
      return s;
    }
  }
  return stage_count;
}

/* Rows of `stride` actions each, F only; returns how many slots it took. */
static uint32_t order_plainly(const uint32_t *rank_of, uint32_t stage_count, uint32_t rank_count,
                              uint32_t microbatch_count, struct weft_action *rows,
                              uint64_t *row_sizes, uint64_t stride) {
  uint32_t *done = calloc(2 * (size_t)stage_count, sizeof *done);
  uint32_t *before = done + stage_count;
  uint32_t slots = 0;
  for (; done[stage_count - 1] < microbatch_count; slots++) {
    memcpy(before, done, stage_count * sizeof *done);
    for (uint32_t r = 0; r < rank_count; r++) {
      const uint32_t s = deepest_ready(rank_of, before, stage_count, microbatch_count, r);
      if (s < stage_count) {
        rows[r * stride + row_sizes[r]++] =
            (struct weft_action){.op = WEFT_OP_F, .stage = (uint16_t)s, .microbatch = done[s]++};
      }
    }
  }
  free(done);
  return slots;
}

static void assert_order(const struct weft_program *program, const uint32_t *rank_of) {
  const uint64_t stride = (uint64_t)program->stage_count * program->microbatch_count;
  struct weft_action *rows = calloc(stride * program->rank_count + 1, sizeof *rows);
  uint64_t *row_sizes = calloc(program->rank_count + 1u, sizeof *row_sizes);
  order_plainly(rank_of, program->stage_count, program->rank_count, program->microbatch_count, rows,
                row_sizes, stride);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    uint64_t count = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      if (program->actions[i].op == WEFT_OP_F) {
        assert_true(count < row_sizes[r]);
        assert_memory_equal(&program->actions[i], &rows[r * stride + count], sizeof *rows);
        count++;
      }
    }
    assert_int_equal(count, row_sizes[r]);
  }
  free(row_sizes);
  free(rows);
}

/* Every F once, on its rank; nothing but SEND_F and RECV_F beside them, as many
 * as boundaries between ranks need, and UNSHARD and RESHARD in pairs; it cannot
 * hang; slots are there. */
static void assert_forward(const char *name, const struct weft_program *program,
                           const uint32_t *rank_of, uint32_t stage_count,
                           uint32_t microbatch_count) {
  uint64_t counts[WEFT_OP_COUNT] = {0};
  uint64_t crossings = 0;
  assert_int_equal(program->stage_count, stage_count);
  assert_int_equal(program->microbatch_count, microbatch_count);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      counts[program->actions[i].op]++;
      assert_int_equal(rank_of[program->actions[i].stage], r);
    }
  }
  for (uint32_t s = 1; s < stage_count; s++) {
    crossings += rank_of[s] != rank_of[s - 1] ? microbatch_count : 0;
  }
  assert_int_equal(counts[WEFT_OP_F], (uint64_t)stage_count * microbatch_count);
  assert_int_equal(counts[WEFT_OP_SEND_F], crossings);
  assert_int_equal(counts[WEFT_OP_RECV_F], crossings);
  assert_int_equal(program->action_count,
                   counts[WEFT_OP_F] + 2 * crossings + 2 * counts[WEFT_OP_UNSHARD]);
  assert_int_equal(counts[WEFT_OP_RESHARD], counts[WEFT_OP_UNSHARD]);
  assert_right(name, program); /* all pairs present, among other things */
  assert_order(program, rank_of);
}

static void place(const struct weft_shape *shape, uint32_t *rank_of) {
  for (uint32_t s = 0; s < shape->ranks * shape->stages_per_rank; s++) {
    rank_of[s] = weft_shape_rank_of(shape, s);
  }
}

/* ---- Named schedules ---- */

static struct weft_named_source named(const char *schedule, const struct weft_shape *shape) {
  return (struct weft_named_source){
      .schedule = schedule, .ranks = shape->ranks, .stages_per_rank = shape->stages_per_rank};
}

/* Either both succeed with the same program, or both fail with the same message. */
static bool check_named_training(const char *name, const struct weft_shape *shape,
                                 const struct weft_lower_options *options) {
  struct weft_named_source plan = named(name, shape);
  struct weft_program *table = NULL;
  struct weft_program *planned = NULL;
  struct weft_error refused = {0};
  struct weft_error error = {0};
  plan.lower = options;
  const enum weft_status status = weft_generate(NULL, name, shape, &table, &refused);
  assert_int_equal(weft_source_named(&plan, shape->microbatches, true, &planned, &error), status);
  if (status != WEFT_OK) {
    assert_null(planned);
    assert_string_equal(error.message, refused.message);
    return false;
  }
  if (table->level == WEFT_LEVEL_COMPUTE) {
    struct weft_program *by_hand = lower(table, options);
    weft_program_destroy(table);
    table = by_hand;
  }
  assert_equal_programs(planned, table);
  assert_right(name, planned);
  weft_program_destroy(planned);
  weft_program_destroy(table);
  return true;
}

static void named_plans_train(void **state) {
  (void)state;
  struct weft_lower_options bare = weft_lower_options_default();
  bare.unshard = bare.reduce_grad = false;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    unsigned served = 0;
    for (uint32_t p = 1; p <= P_MAX; p++) {
      for (uint32_t v = 0; v <= V_MAX; v++) { /* 0: the default */
        for (uint32_t m = 1; m <= M_MAX; m++) {
          const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
          served += check_named_training(info->name, &shape, m % 2 == 0 ? NULL : &bare);
        }
      }
    }
    assert_true(info->fixed ? served >= 1 : served >= P_MAX);
  }
}

/* Any number of microbatches, even where the schedule does not support it. */
static void check_named_eval(const struct weft_schedule_info *info, uint32_t p, uint32_t v,
                             uint32_t m) {
  const struct weft_shape shape = {.ranks = p,
                                   .stages_per_rank = v > 0 ? v : info->stages_per_rank_default,
                                   .microbatches = m,
                                   .placement = info->placement};
  struct weft_named_source plan = named(info->name, &shape);
  uint32_t rank_of[P_MAX * V_MAX] = {0};
  struct weft_program *planned = NULL;
  struct weft_error error;
  plan.stages_per_rank = v;
  must(weft_source_named(&plan, m, false, &planned, &error), &error);
  place(&shape, rank_of);
  assert_forward(info->name, planned, rank_of, p * shape.stages_per_rank, m);

  struct weft_program *table = generate("ForwardOnly", &shape);
  struct weft_program *by_hand = lower(table, NULL);
  assert_equal_programs(planned, by_hand);
  weft_program_destroy(by_hand);
  weft_program_destroy(table);
  weft_program_destroy(planned);
}

/* The placement is that of training. */
static void check_placement(const struct weft_schedule_info *info, uint32_t p, uint32_t m) {
  const struct weft_shape shape = {.ranks = p, .microbatches = m};
  struct weft_named_source plan = named(info->name, &shape);
  struct weft_program *table = NULL;
  struct weft_program *planned = NULL;
  struct weft_error error;
  uint32_t rank_of[64] = {0};
  if (weft_generate(NULL, info->name, &shape, &table, &error) != WEFT_OK) {
    return;
  }
  (void)weft_placement_infer(table, rank_of);
  must(weft_source_named(&plan, m, false, &planned, &error), &error);
  assert_forward(info->name, planned, rank_of, table->stage_count, m);
  weft_program_destroy(planned);
  weft_program_destroy(table);
}

/* A graph: two encoders, a decoder and a head that branches off, on schedules with one and with
 * two stages per rank; the programs have its edges, and evaluation has the placement of training. */
static void named_plans_of_graphs(void **state) {
  (void)state;
  const struct weft_edge edges[] = {weft_edge_make(0, 2), weft_edge_make(1, 2),
                                    weft_edge_make(2, 3), weft_edge_make(0, 3)};
  struct weft_graph *graph = NULL;
  struct weft_error error;
  must(weft_graph_create(NULL, 4, edges, 4, NULL, &graph, &error), &error);
  static const char *const schedules[] = {"1F1B", "ZBVZeroBubble"};
  for (uint32_t k = 0; k < 2; k++) {
    struct weft_named_source source = {
        .schedule = schedules[k], .ranks = k == 0 ? 4 : 2, .graph = graph};
    struct weft_program *training = NULL, *evaluation = NULL;
    struct weft_report *report = NULL;
    uint32_t rank_of[4] = {0}, eval_rank_of[4] = {0};
    must(weft_source_named(&source, 6, true, &training, &error), &error);
    must(weft_source_named(&source, 3, false, &evaluation, &error), &error);
    assert_true(weft_graph_equal(training->graph, graph));
    assert_true(weft_graph_equal(evaluation->graph, graph));
    must(weft_verify(NULL, training, NULL, &report, &error), &error);
    assert_true(report->ok);
    assert_int_equal(evaluation->microbatch_count, 3);
    (void)weft_placement_infer(training, rank_of);
    (void)weft_placement_infer(evaluation, eval_rank_of);
    assert_memory_equal(rank_of, eval_rank_of, sizeof rank_of);
    weft_report_destroy(report);
    weft_program_destroy(evaluation);
    weft_program_destroy(training);
  }
  weft_graph_destroy(graph);
}

static void named_plans_evaluate(void **state) {
  (void)state;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    for (uint32_t p = 1; p <= P_MAX; p++) {
      for (uint32_t m = 1; m <= M_MAX; m++) {
        check_placement(info, p, m);
        for (uint32_t v = 0; v <= V_MAX && !info->fixed; v++) {
          if (v == 0 || (v >= info->stages_per_rank_min && v <= info->stages_per_rank_max)) {
            check_named_eval(info, p, v, m);
          }
        }
      }
    }
  }
}

static void refused(const char *schedule, uint32_t p, uint32_t v, uint32_t m, bool training,
                    enum weft_status status, const char *words) {
  struct weft_named_source plan = {.schedule = schedule, .ranks = p, .stages_per_rank = v};
  struct weft_program *planned = NULL;
  struct weft_error error = {0};
  assert_int_equal(weft_source_named(&plan, m, training, &planned, &error), status);
  assert_null(planned);
  if (strstr(error.message, words) == NULL && strstr(error.hint, words) == NULL) {
    fail_msg("'%s' is not in: %s (%s)", words, error.message, error.hint);
  }
}

static void named_plans_refuse(void **state) {
  (void)state;
  for (unsigned training = 0; training < 2; training++) {
    refused("1F1C", 4, 1, 8, training, WEFT_ERR_USAGE, "1F1B");
    refused("1F1B", 4, 2, 8, training, WEFT_ERR_USAGE, "2");
    refused("ZBVZeroBubble", 4, 1, 8, training, WEFT_ERR_USAGE, "2");
    refused("1F1B", 0, 1, 8, training, WEFT_ERR_USAGE, "rank");
    refused("1F1B", 4, 1, 0, training, WEFT_ERR_USAGE, "microbatch");
    refused("1F1B", 4, 1, UINT32_MAX, training, WEFT_ERR_LIMIT, "limit");
    refused("Interleaved1F1B", 1024, 64, 1 << 20, training, WEFT_ERR_LIMIT, "limit");
  }
}

/* ---- Forward on any placement ---- */

/* A table with every stage on a rank of its own choice; some ranks may have none. */
static struct weft_program *scatter(struct weft_random *random, uint32_t rank_count,
                                    uint32_t stage_count, uint32_t *rank_of) {
  struct weft_action actions[32];
  uint64_t row_sizes[8] = {0};
  struct weft_program *table = NULL;
  struct weft_error error;
  uint32_t count = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    rank_of[s] = weft_random_below(random, rank_count);
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    for (uint32_t s = 0; s < stage_count; s++) {
      if (rank_of[s] == r) { /* B alone also determines the rank of a stage */
        actions[count++] =
            (struct weft_action){.op = s % 3 == 1 ? WEFT_OP_B : WEFT_OP_F, .stage = (uint16_t)s};
        row_sizes[r]++;
      }
    }
  }
  must(weft_program_create(NULL, rank_count, row_sizes, actions, &table, &error), &error);
  return table;
}

static void forward_on_random_placements(void **state) {
  (void)state;
  struct weft_random random = {.state = 2026};
  for (unsigned round = 0; round < 2000; round++) {
    const uint32_t rank_count = 1 + weft_random_below(&random, 8);
    const uint32_t stage_count = 1 + weft_random_below(&random, 32);
    const uint32_t microbatch_count = 1 + weft_random_below(&random, 12);
    uint32_t rank_of[32] = {0};
    struct weft_program *like = scatter(&random, rank_count, stage_count, rank_of);
    struct weft_program *program = forward(like, microbatch_count);
    assert_int_equal(program->rank_count, rank_count);
    assert_forward("scattered", program, rank_of, stage_count, microbatch_count);
    weft_program_destroy(program);
    weft_program_destroy(like);
  }
}

/* Loops overlap: no rank waits for a microbatch to return. */
static void forward_keeps_ranks_busy(void **state) {
  (void)state;
  const struct weft_shape shape = {.ranks = 8, .stages_per_rank = 3, .microbatches = 32};
  struct weft_program *like = generate("Interleaved1F1B", &shape);
  struct weft_program *program = forward(like, 64);
  struct weft_costs *costs = NULL;
  struct weft_error error;
  double makespan = 0;
  must(weft_costs_create(NULL, 1, &costs, &error), &error);
  costs->of = WEFT_COSTS_OF_STAGE;
  costs->stages[0].f = 1;
  costs->hop.latency = 0;
  must(weft_makespan(NULL, program, costs, NULL, &makespan, &error), &error);
  assert_true(makespan == 3 * 64 + 7);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
  weft_program_destroy(like);
}

static void forward_of_many_ranks(void **state) {
  (void)state;
  const struct weft_shape shape = {
      .ranks = 1024, .stages_per_rank = 2, .microbatches = 1, .placement = WEFT_PLACEMENT_V};
  struct weft_program *like = generate("ForwardOnly", &shape);
  struct weft_program *program = forward(like, 300);
  assert_int_equal(program->action_count, 2048 * (300 + 2) + 2 * 2046 * 300);
  assert_right("1024 ranks", program);
  weft_program_destroy(program);
  weft_program_destroy(like);
}

static void forward_refuses(void **state) {
  (void)state;
  static const struct {
    const char *csv;
    uint32_t microbatch_count;
    enum weft_status status;
    const char *words;
  } cases[] = {
      {"0F0,0B0\n2F0,2B0\n", 4, WEFT_ERR_INVALID, "no rank computes stage 1 of 3"},
      {"\"\"\n", 4, WEFT_ERR_INVALID, "no stage"},
      {"0F0,0B0\n1F0,1B0\n", 0, WEFT_ERR_USAGE, "0 microbatches"},
      {"0F0,0B0\n1F0,1B0\n", 1u << 25, WEFT_ERR_LIMIT, "33554432 microbatches; the limit is"},
  };
  for (unsigned k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    struct weft_program *like = parse(cases[k].csv);
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    assert_int_equal(
        weft_source_forward_only(NULL, like, cases[k].microbatch_count, NULL, &program, &error),
        cases[k].status);
    assert_null(program);
    assert_non_null(strstr(error.message, cases[k].words));
    weft_program_destroy(like);
  }
}

/* ---- Fixed programs ---- */

static struct weft_program *fixed(const struct weft_program *program,
                                  const struct weft_lower_options *options,
                                  uint32_t microbatch_count, bool training) {
  struct weft_fixed_source plan = {.program = program, .lower = options};
  struct weft_program *planned = NULL;
  struct weft_error error;
  must(weft_source_fixed(&plan, microbatch_count, training, &planned, &error), &error);
  assert_ptr_not_equal(planned, program); /* the caller destroys it */
  return planned;
}

static void assert_fixed(const struct weft_program *program,
                         const struct weft_lower_options *options, uint32_t microbatch_count,
                         bool training, const struct weft_program *expected) {
  struct weft_program *planned = fixed(program, options, microbatch_count, training);
  assert_equal_programs(planned, expected);
  assert_right("fixed", planned);
  weft_program_destroy(planned);
}

static void fixed_refuses(const struct weft_program *program, uint32_t microbatch_count) {
  struct weft_fixed_source plan = {.program = program};
  struct weft_program *planned = NULL;
  struct weft_error error = {0};
  char words[2][64];
  assert_int_equal(weft_source_fixed(&plan, microbatch_count, true, &planned, &error),
                   WEFT_ERR_USAGE);
  assert_null(planned);
  (void)snprintf(words[0], sizeof words[0], "for %u microbatches", program->microbatch_count);
  (void)snprintf(words[1], sizeof words[1], "has %u", microbatch_count);
  assert_non_null(strstr(error.message, words[0]));
  assert_non_null(strstr(error.message, words[1]));
}

/* A program without UNSHARD is evaluated without it. */
static void assert_unsharded(const struct weft_program *program, uint32_t microbatch_count) {
  struct weft_program *eval = fixed(program, NULL, microbatch_count, false);
  for (uint64_t i = 0; i < eval->action_count; i++) {
    assert_int_not_equal(eval->actions[i].op, WEFT_OP_UNSHARD);
  }
  weft_program_destroy(eval);
}

static void check_fixed(const char *name, uint32_t p, uint32_t m) {
  const struct weft_shape shape = {.ranks = p, .microbatches = m};
  struct weft_lower_options bare = weft_lower_options_default();
  bare.unshard = bare.reduce_grad = false;
  struct weft_program *table = generate(name, &shape);
  struct weft_program *full = lower(table, NULL);
  struct weft_program *plain = lower(table, &bare);
  struct weft_program *eval = forward(table, m);
  struct weft_program *other = forward(table, m + 3);
  assert_fixed(table, NULL, m, true, full);
  assert_fixed(table, &bare, m, true, plain);
  assert_fixed(full, &bare, m, true, full); /* a program is not lowered again */
  fixed_refuses(table, m + 1);
  fixed_refuses(full, m - 1);
  if (weft_schedule_find(name, NULL)->trains) {
    assert_fixed(table, NULL, m, false, eval);
    assert_fixed(full, &bare, m, false, eval); /* sharded as it is */
    if (p > 1) {                               /* else it is a table again */
      assert_unsharded(plain, m);
    }
  } else {
    assert_fixed(table, NULL, m, false, full); /* the program itself */
    assert_fixed(full, NULL, m, false, full);
  }
  assert_fixed(table, NULL, m + 3, false, other);
  assert_fixed(full, NULL, m + 3, false, other);
  weft_program_destroy(other);
  weft_program_destroy(eval);
  weft_program_destroy(plain);
  weft_program_destroy(full);
  weft_program_destroy(table);
}

static void fixed_plans(void **state) {
  (void)state;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    for (uint32_t p = 1; p <= P_MAX && !info->fixed; p++) {
      check_fixed(info->name, p, 2 * p + 2);
    }
  }
}

/* Bubbles are dropped; otherwise the table is unchanged. */
static void fixed_plan_of_a_file(void **state) {
  (void)state;
  struct weft_lower_options bare = weft_lower_options_default();
  bare.unshard = bare.reduce_grad = false;
  struct weft_program *table = parse("0F0,,,0B0\n,1F0,1B0,\n");
  struct weft_program *expected = parse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  assert_fixed(table, &bare, 1, true, expected);
  weft_program_destroy(expected);
  expected = parse("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n");
  assert_fixed(table, &bare, 2, false, expected);
  weft_program_destroy(expected);
  weft_program_destroy(table);
}

/* ---- Memory ---- */

enum case_kind { NAMED_TRAINING, NAMED_EVAL, FIXED_TABLE, FIXED_PROGRAM, FIXED_EVAL, CASES };

static enum weft_status run_case(enum case_kind kind, const struct weft_allocator *allocator,
                                 const struct weft_program *table,
                                 const struct weft_program *program, struct weft_program **out,
                                 struct weft_error *error) {
  struct weft_named_source by_name = {
      .allocator = allocator, .schedule = "ZBVZeroBubble", .ranks = 3, .stages_per_rank = 2};
  struct weft_fixed_source as_it_is = {.allocator = allocator,
                                       .program = kind == FIXED_TABLE ? table : program};
  switch (kind) {
    case NAMED_TRAINING: return weft_source_named(&by_name, 7, true, out, error);
    case NAMED_EVAL: return weft_source_named(&by_name, 7, false, out, error);
    case FIXED_EVAL: return weft_source_fixed(&as_it_is, 9, false, out, error);
    default: return weft_source_fixed(&as_it_is, 7, true, out, error);
  }
}

static void check_memory(enum case_kind kind, const struct weft_program *table,
                         const struct weft_program *program) {
  enum weft_status status = WEFT_ERR_MEMORY;
  uint64_t n = 0;
  while (status != WEFT_OK) {
    struct weft_program *planned = NULL;
    struct test_memory memory;
    struct weft_error error = {0};
    test_memory_init(&memory);
    memory.fail_at = ++n;
    status = run_case(kind, &memory.allocator, table, program, &planned, &error);
    assert_true(status == WEFT_OK || status == WEFT_ERR_MEMORY);
    assert_true((status == WEFT_OK) == (planned != NULL));
    assert_true(status == WEFT_OK || error.message[0] != '\0');
    weft_program_destroy(planned);
    assert_int_equal(memory.blocks, 0);
  }
  assert_true(n > 3);
}

static void failing_memory(void **state) {
  (void)state;
  const struct weft_shape shape = {.ranks = 3, .stages_per_rank = 2, .microbatches = 7};
  struct weft_program *table = generate("ZBVZeroBubble", &shape);
  struct weft_program *program = lower(table, NULL);
  for (unsigned kind = 0; kind < CASES; kind++) {
    check_memory((enum case_kind)kind, table, program);
  }
  weft_program_destroy(program);
  weft_program_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(named_plans_train),
      cmocka_unit_test(named_plans_of_graphs),
      cmocka_unit_test(named_plans_evaluate),
      cmocka_unit_test(named_plans_refuse),
      cmocka_unit_test(forward_on_random_placements),
      cmocka_unit_test(forward_keeps_ranks_busy),
      cmocka_unit_test(forward_of_many_ranks),
      cmocka_unit_test(forward_refuses),
      cmocka_unit_test(fixed_plans),
      cmocka_unit_test(fixed_plan_of_a_file),
      cmocka_unit_test(failing_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
