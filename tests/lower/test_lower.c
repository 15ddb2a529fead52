/* The passes against their definition, written down as plainly as the format
 * page states them, on random tables; slot assignment against the largest
 * number of buffers alive at once; and what lowering refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include <weft/support.h>

static struct weft_program *parse(const char *csv) {
  struct weft_program *program = NULL;
  struct weft_error error;
  if (weft_program_parse(NULL, csv, strlen(csv), "test", &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

static void assert_prints(const struct weft_program *program, const char *csv) {
  struct weft_text text = {0};
  weft_program_print(program, &text);
  assert_string_equal(text.data, csv);
  weft_text_finish(&text);
}

static const struct weft_pass *pass_named(const char *name) {
  for (size_t k = 0; k < weft_pass_count(); k++) {
    if (strcmp(weft_pass_at(k)->name, name) == 0) {
      return weft_pass_at(k);
    }
  }
  fail_msg("no pass %s", name);
  return NULL;
}

static void assert_pass(const char *name, uint32_t window, const char *in, const char *out) {
  struct weft_program *table = parse(in), *result = NULL;
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_error error;
  options.unshard_window = window;
  assert_int_equal(pass_named(name)->run(NULL, table, &options, &result, &error), WEFT_OK);
  assert_prints(result, out);
  weft_program_destroy(result);
  weft_program_destroy(table);
}

static void each_pass_alone(void **state) {
  (void)state;
  assert_pass("merge_bw", 3, "0F0,,0I0,,0W0,0F1,0I1,0F2,0W1\n", "0F0,0B0,0F1,0I1,0F2,0W1\n");
  assert_pass("merge_bw", 3, "0I0,0W1,(1F0;0I2)OVERLAP_F_B,0W2\n",
              "0I0,0W1,(1F0;0I2)OVERLAP_F_B,0W2\n");
  assert_pass("unshard", 1, "0F0,2F0,2F1,0B0\n",
              "0UNSHARD,0F0,0RESHARD,2UNSHARD,2F0,2F1,2RESHARD,0UNSHARD,0B0,0RESHARD\n");
  assert_pass("unshard", 3, "0F0,,2F0,0B0\n", "0UNSHARD,2UNSHARD,0F0,2F0,2RESHARD,0B0,0RESHARD\n");
  assert_pass("unshard", 1, "(0F1;3B0)OVERLAP_F_B,5F0\n",
              "0UNSHARD,3UNSHARD,(0F1;3B0)OVERLAP_F_B,0RESHARD,3RESHARD,5UNSHARD,5F0,5RESHARD\n");
  assert_pass("reduce_grad", 3, "0F0,0B0,1F0,1I0,1W0\n",
              "0F0,0B0,0REDUCE_GRAD,1F0,1I0,1W0,1REDUCE_GRAD\n");
  assert_pass("reduce_grad", 3, "0F0,(1F0;0B0)OVERLAP_F_B,1B0,0REDUCE_GRAD\n",
              "0F0,(1F0;0B0)OVERLAP_F_B,0REDUCE_GRAD,1B0,1REDUCE_GRAD\n");
  assert_pass("tie_grad", 3, "0F0,0B0,0REDUCE_GRAD,1F0,1I0,,1W0,,1REDUCE_GRAD,2F0,2B0,0RESHARD\n",
              "0F0,0B0,1F0,1I0,1W0,1REDUCE_GRAD,2F0,2B0,0TIE_GRAD,2TIE_GRAD,0REDUCE_GRAD,"
              "0RESHARD\n");
  assert_pass("tie_grad", 3, "0F0,(1F0;0B0)OVERLAP_F_B,(0F1;1B0)OVERLAP_F_B,1RESHARD\n",
              "0F0,(1F0;0B0)OVERLAP_F_B,(0F1;1B0)OVERLAP_F_B,0TIE_GRAD,1TIE_GRAD,1RESHARD\n");
  assert_pass("tie_grad", 3, "0F0,0TIE_GRAD,0B0,0TIE_GRAD\n", "0F0,0B0,0TIE_GRAD\n");
  assert_pass("tie_grad", 3, "0F0,,0F1\n1F0,1F1\n", "0F0,0F1\n1F0,1F1\n");
  assert_pass("tie_grad", 3, "\"\"\n", "\"\"\n");
  assert_pass("send_recv", 3, "0F0,,0B0\n,1F0,1B0\n",
              "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

/* ---- Random tables ---- */

enum { STAGES_MAX = 7, MICROBATCHES_MAX = 4, RECORDS_MAX = 64 };

/* A row of random compute cells over a few stages: passes that look at one row
 * do not care whether it is a schedule. */
static uint64_t random_row(struct weft_random *random, struct weft_action *row) {
  const uint32_t stages = 1 + weft_random_below(random, STAGES_MAX);
  const uint64_t cells = weft_random_below(random, 24);
  uint64_t size = 0;
  for (uint64_t k = 0; k < cells; k++) {
    const uint32_t kind = weft_random_below(random, 8);
    uint32_t records = 1;
    if (kind == 0) {
      row[size++] = (struct weft_action){.op = WEFT_OP_IDLE};
      continue;
    }
    if (kind == 1) {
      row[size++] = (struct weft_action){.op = WEFT_OP_OVERLAP_F_B, .parts = 2};
      records = 2;
    }
    for (uint32_t j = 0; j < records; j++) {
      row[size++] = (struct weft_action){.op = (uint8_t)(WEFT_OP_F + weft_random_below(random, 4)),
                                         .stage = (uint16_t)weft_random_below(random, stages),
                                         .microbatch = weft_random_below(random, MICROBATCHES_MAX)};
    }
  }
  return size;
}

static bool is_compute(struct weft_action action) {
  return action.op >= WEFT_OP_F && action.op <= WEFT_OP_W;
}

static bool contains(const uint32_t *list, uint32_t count, uint32_t stage) {
  for (uint32_t k = 0; k < count; k++) {
    if (list[k] == stage) {
      return true;
    }
  }
  return false;
}

/* "look at the stages that this and the following actions compute on, in order
 * of first use, until `window` different ones are found (an overlap
 * contributes all its parts before the limit is checked)" */
static uint32_t stages_ahead(const struct weft_action *row, uint64_t size, uint64_t at,
                             uint32_t window, uint32_t *found) {
  uint32_t count = 0;
  while (at < size && count < window) {
    const uint64_t end = at + 1 + row[at].parts;
    for (; at < end; at++) {
      if (is_compute(row[at]) && !contains(found, count, row[at].stage)) {
        found[count++] = row[at].stage;
      }
    }
  }
  return count;
}

/* "First RESHARD every active stage that is not among them, then UNSHARD those
 * among them that are not active." */
static void plain_unshard(const struct weft_action *row, uint64_t size, uint32_t window,
                          struct weft_text *text) {
  bool active[STAGES_MAX] = {false};
  struct weft_text cell = {0};
  for (uint64_t i = 0; i < size; i += 1u + row[i].parts) {
    uint32_t next[STAGES_MAX];
    if (row[i].op == WEFT_OP_IDLE) {
      continue;
    }
    const uint32_t count = stages_ahead(row, size, i, window, next);
    for (uint32_t s = 0; s < STAGES_MAX; s++) {
      if (active[s] && !contains(next, count, s)) {
        weft_text_addf(text, "%s%uRESHARD", text->size > 0 ? "," : "", s);
        active[s] = false;
      }
    }
    for (uint32_t k = 0; k < count; k++) {
      if (!active[next[k]]) {
        weft_text_addf(text, "%s%uUNSHARD", text->size > 0 ? "," : "", next[k]);
        active[next[k]] = true;
      }
    }
    cell.size = 0;
    weft_action_print(&row[i], &cell);
    weft_text_addf(text, "%s%s", text->size > 0 ? "," : "", cell.data);
  }
  for (uint32_t s = 0; s < STAGES_MAX; s++) {
    if (active[s]) {
      weft_text_addf(text, ",%uRESHARD", s);
    }
  }
  weft_text_add(text, text->size > 0 ? "\n" : "\"\"\n");
  weft_text_finish(&cell);
}

static void unshard_follows_its_definition(void **state) {
  (void)state;
  struct weft_random random = {.state = 1};
  for (unsigned round = 0; round < 50000; round++) {
    struct weft_action row[RECORDS_MAX];
    const uint64_t size = random_row(&random, row);
    const uint32_t window = 1 + weft_random_below(&random, 8);
    struct weft_program *table = NULL, *result = NULL;
    struct weft_lower_options options = {.unshard_window = window};
    struct weft_text expected = {0};
    struct weft_error error;
    assert_int_equal(weft_program_create(NULL, 1, &size, row, &table, &error), WEFT_OK);
    assert_int_equal(pass_named("unshard")->run(NULL, table, &options, &result, &error), WEFT_OK);
    plain_unshard(row, size, window, &expected);
    assert_prints(result, expected.data);
    weft_text_finish(&expected);
    weft_program_destroy(result);
    weft_program_destroy(table);
  }
}

/* ---- The whole lowering ---- */

static struct weft_program *generate(const char *name, uint32_t p, uint32_t v, uint32_t m) {
  const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
  struct weft_program *table = NULL;
  struct weft_error error;
  if (weft_generate(NULL, name, &shape, &table, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return table;
}

static struct weft_program *lower(const struct weft_program *table,
                                  const struct weft_lower_options *options) {
  struct weft_program *program = NULL;
  struct weft_error error;
  if (weft_lower(NULL, table, options, &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

/* weft_lower() shares walks between passes; one after the other gives the same. */
static void lowering_is_its_passes_in_order(void **state) {
  (void)state;
  static const char *const names[] = {"Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "LoopedBFS"};
  for (unsigned k = 0; k < 4; k++) {
    for (uint32_t window = 1; window < 4; window++) {
      struct weft_program *table = generate(names[k], 4, 2, 9);
      struct weft_lower_options options = weft_lower_options_default();
      struct weft_error error;
      options.merge_bw = options.tie_grad = true;
      options.unshard_window = window;
      struct weft_program *whole = lower(table, &options), *step = NULL;
      for (size_t pass = 0; pass < weft_pass_count(); pass++) {
        assert_int_equal(weft_pass_at(pass)->run(NULL, table, &options, &step, &error), WEFT_OK);
        weft_program_destroy(table);
        table = step;
      }
      assert_true(weft_program_equal(whole, table));
      assert_int_equal(whole->level, table->level);
      assert_int_equal(weft_program_hash(whole), weft_program_hash(table));
      weft_program_destroy(whole);
      weft_program_destroy(table);
    }
  }
}

static void assert_lowers(const char *name, uint32_t p, uint32_t v, uint32_t m,
                          const struct weft_lower_options *options, const char *out) {
  struct weft_program *table = generate(name, p, v, m);
  struct weft_program *program = lower(table, options);
  assert_prints(program, out);
  assert_int_equal(program->level, WEFT_LEVEL_COMMS);
  weft_program_destroy(program);
  weft_program_destroy(table);
}

/* Behind all compute of the row, and before the stage's REDUCE_GRAD. */
static void ties_gradients(void **state) {
  (void)state;
  struct weft_lower_options options = weft_lower_options_default();
  options.tie_grad = true;
  assert_lowers("1F1B", 2, 1, 2, &options,
                "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0TIE_GRAD,"
                "0REDUCE_GRAD,0RESHARD\n"
                "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1TIE_GRAD,"
                "1REDUCE_GRAD,1RESHARD\n");
  assert_lowers("GPipe", 3, 1, 1, &options,
                "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0TIE_GRAD,0REDUCE_GRAD,0RESHARD\n"
                "1UNSHARD,1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"
                "2UNSHARD,2RECV_F0,2F0,2B0,2SEND_B0,2TIE_GRAD,2REDUCE_GRAD,2RESHARD\n");
  assert_lowers("GPipe", 1, 1, 1, &options, "0UNSHARD,0F0,0B0,0TIE_GRAD,0REDUCE_GRAD,0RESHARD\n");
  options.unshard = false;
  assert_lowers("Interleaved1F1B", 2, 2, 2, &options,
                "0F0,0SEND_F0,2RECV_F0,0F1,0SEND_F1,2RECV_F1,2F0,2SEND_F0,2F1,2SEND_F1,2RECV_B0,"
                "2B0,2SEND_B0,2RECV_B1,2B1,2SEND_B1,0RECV_B0,2REDUCE_GRAD,0RECV_B1,0B0,0B1,"
                "0TIE_GRAD,0REDUCE_GRAD\n"
                "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3B0,3SEND_B0,"
                "1RECV_B0,3F1,3B1,3SEND_B1,1RECV_B1,1B0,1SEND_B0,1B1,1SEND_B1,1REDUCE_GRAD,"
                "3TIE_GRAD,3REDUCE_GRAD\n");
  options.communicate = false;
  assert_lowers("ZBVZeroBubble", 2, 2, 2, &options,
                "0F0,0F1,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,0I1,0W1,0TIE_GRAD,3TIE_GRAD,"
                "0REDUCE_GRAD,3REDUCE_GRAD\n"
                "1F0,2F0,1F1,2F1,2I0,2W0,1I0,1W0,2I1,2W1,2REDUCE_GRAD,1I1,1W1,1REDUCE_GRAD\n");
  options.reduce_grad = false;
  assert_lowers("1F1B", 2, 1, 1, &options, "0F0,0B0,0TIE_GRAD\n1F0,1B0,1TIE_GRAD\n");
}

/* Without the option no program has one, with it that is all that differs, and a
 * program without backward stays as it is. */
static void ties_nothing_else(void **state) {
  (void)state;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    const struct weft_shape shape = {.ranks = 4, .microbatches = 8};
    struct weft_lower_options options = weft_lower_options_default();
    struct weft_program *table = NULL;
    if (weft_generate(NULL, info->name, &shape, &table, NULL) != WEFT_OK ||
        table->level != WEFT_LEVEL_COMPUTE) {
      weft_program_destroy(table);
      continue;
    }
    struct weft_program *plain = lower(table, &options);
    options.tie_grad = true;
    struct weft_program *tied = lower(table, &options);
    uint32_t ties = 0, backwards = 0;
    for (uint64_t i = 0; i < tied->action_count; i++) {
      ties += tied->actions[i].op == WEFT_OP_TIE_GRAD;
      backwards += tied->actions[i].op >= WEFT_OP_B && tied->actions[i].op <= WEFT_OP_W;
    }
    assert_int_equal(ties, backwards > 0 ? 2 : 0);
    assert_int_equal(tied->action_count, plain->action_count + ties);
    weft_program_destroy(tied);
    weft_program_destroy(plain);
    weft_program_destroy(table);
  }
}

static void stops_after_any_pass(void **state) {
  (void)state;
  struct weft_program *table = generate("GPipe", 2, 1, 1);
  struct weft_lower_options options = {.unshard_window = 3};
  struct weft_program *program = lower(table, &options);
  assert_prints(program, "0F0,0B0\n1F0,1B0\n");
  assert_int_equal(program->level, WEFT_LEVEL_COMPUTE);
  weft_program_destroy(program);
  options.unshard = true;
  program = lower(table, &options);
  assert_prints(program, "0UNSHARD,0F0,0B0,0RESHARD\n1UNSHARD,1F0,1B0,1RESHARD\n");
  assert_int_equal(program->level, WEFT_LEVEL_COMMS);
  weft_program_destroy(program);
  options.reduce_grad = true;
  program = lower(table, &options);
  assert_prints(program,
                "0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n1UNSHARD,1F0,1B0,1REDUCE_GRAD,1RESHARD\n");
  weft_program_destroy(program);
  weft_program_destroy(table);
}

static void refuse(const char *csv, enum weft_status status, const char *part) {
  struct weft_program *table = parse(csv), *program = NULL;
  struct weft_error error;
  assert_int_equal(weft_lower(NULL, table, NULL, &program, &error), status);
  if (strstr(error.message, part) == NULL) {
    fail_msg("'%s' is not in '%s'", part, error.message);
  }
  assert_null(program);
  weft_program_destroy(table);
}

static void refuses_with_reasons(void **state) {
  (void)state;
  refuse("0F0,3F0\n2F0,1F0\n", WEFT_ERR_INVALID, "rank 0: 3F0 waits for 2F0 of rank 1");
  refuse("0F0,3F0\n2F0,1F0\n", WEFT_ERR_INVALID, "rank 1: 2F0 waits for 1F0 of rank 1");
  refuse("0F0\n2F0\n", WEFT_ERR_INVALID, "stage 1, which no rank computes");
  refuse("0F0\n0F1\n", WEFT_ERR_INVALID, "stage 0 is computed by more than one rank");
  refuse("0F0,0SEND_F0\n1RECV_F0,1F0\n", WEFT_ERR_INVALID, "already");
  refuse("0F0,0B0,0TIE_GRAD\n", WEFT_ERR_INVALID, "already");
  refuse("60000F16000000\n", WEFT_ERR_INVALID, "too sparse");
  struct weft_program *table = generate("GPipe", 2, 1, 1), *program = NULL;
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_error error;
  options.unshard_window = 0;
  assert_int_equal(weft_lower(NULL, table, &options, &program, &error), WEFT_ERR_USAGE);
  weft_program_destroy(table);
}

/* Sends and receives of every directed pair of ranks are in the same order. */
static void pairs_of_ranks_agree_on_order(void **state) {
  (void)state;
  static const char *const names[] = {"Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble",
                                      "DualPipeV", "LoopedBFS"};
  for (unsigned k = 0; k < 5; k++) {
    struct weft_program *table = generate(names[k], 4, 2, 11);
    struct weft_program *program = lower(table, NULL);
    struct weft_links *links;
    struct weft_error error;
    assert_int_equal(weft_links_create(NULL, program, &links, &error), WEFT_OK);
    for (uint32_t from = 0; from < 4; from++) {
      uint32_t last[4] = {0};
      for (uint64_t i = program->row_begin[from]; i < program->row_begin[from + 1]; i++) {
        const uint8_t op = program->actions[i].op;
        if (op != WEFT_OP_SEND_F && op != WEFT_OP_SEND_B) {
          continue;
        }
        const uint32_t match = weft_links_peer(links, i);
        assert_true(match != WEFT_MATCH_NONE);
        const uint32_t to = weft_program_rank_at(program, match);
        assert_true(match + 1u > last[to]);
        last[to] = match + 1u;
      }
    }
    weft_links_destroy(links);
    weft_program_destroy(program);
    weft_program_destroy(table);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_pass_alone),
      cmocka_unit_test(unshard_follows_its_definition),
      cmocka_unit_test(lowering_is_its_passes_in_order),
      cmocka_unit_test(ties_gradients),
      cmocka_unit_test(ties_nothing_else),
      cmocka_unit_test(stops_after_any_pass),
      cmocka_unit_test(refuses_with_reasons),
      cmocka_unit_test(pairs_of_ranks_agree_on_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
