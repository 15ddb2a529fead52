/* weft_target(): flags, tables, modules and layouts for tables and partitions of every kind, and what
 * the targets cannot run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_memory.h"

static struct weft_program *generate(const char *name, uint32_t p, uint32_t v, uint32_t m) {
  const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
  struct weft_program *table;
  assert_int_equal(weft_generate(NULL, name, &shape, &table, NULL), WEFT_OK);
  return table;
}

static struct weft_program *parse(const char *text) {
  struct weft_program *table;
  assert_int_equal(weft_program_parse(NULL, text, strlen(text), "table", &table, NULL), WEFT_OK);
  return table;
}

static struct weft_target *target_of(const struct weft_target_request *request) {
  struct weft_target *target;
  struct weft_error error;
  if (weft_target(NULL, request, &target, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return target;
}

static void expect_refused(const struct weft_target_request *request, enum weft_status status,
                           const char *words) {
  struct weft_target *target = NULL;
  struct weft_error error;
  assert_int_equal(weft_target(NULL, request, &target, &error), status);
  assert_null(target);
  if (strstr(error.message, words) == NULL) {
    fail_msg("'%s' is not in: %s", words, error.message);
  }
}

/* The value of a flag; "" where it has none. */
static const char *flag_of(const struct weft_target *target, const char *name) {
  for (uint32_t k = 0; k < target->flag_count; k++) {
    const struct weft_target_flag *flag = &target->flags[k];
    if (strstr(flag->name, name) != NULL) {
      assert_int_equal(flag->is_number, flag->value != NULL && strspn(flag->value, "0123456789") ==
                                                                   strlen(flag->value));
      return flag->value != NULL ? flag->value : "";
    }
  }
  return NULL;
}

static bool has_note(const struct weft_target *target, const char *words) {
  bool found = false;
  for (uint32_t k = 0; k < target->note_count; k++) {
    found = found || strstr(target->notes[k], words) != NULL;
  }
  return found;
}

static bool has_op(const struct weft_program *program, enum weft_op op) {
  bool found = false;
  for (uint64_t k = 0; k < program->action_count; k++) {
    found = found || program->actions[k].op == op;
  }
  return found;
}

static void torchtitan_takes_the_placement_from_the_name(void **state) {
  (void)state;
  static const struct {
    const char *schedule;
    uint32_t v;
    const char *name, *note;
  } cases[] = {{"1F1B", 1, "PipelineScheduleSingle", "rank r has stage r"},
               {"Interleaved1F1B", 2, "PipelineScheduleMulti", "rank r has stages r and r + 4"},
               {"Interleaved1F1B", 4, "PipelineScheduleMulti", "r + 4, and so on"},
               {"ZBVZeroBubble", 2, "ZBVZeroBubble", "rank r has stages r and 7 - r"}};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(cases); k++) {
    struct weft_program *table = generate(cases[k].schedule, 4, cases[k].v, 8);
    const struct weft_target_request request = {
        .kind = WEFT_TARGET_TORCHTITAN, .table = table, .file = "a b.csv"};
    struct weft_target *target = target_of(&request);
    assert_string_equal(flag_of(target, "pipeline_parallel_degree"), "4");
    assert_string_equal(flag_of(target, "num_pp_microbatches"), "8");
    assert_string_equal(flag_of(target, "pipeline_parallel_schedule_csv"), "a b.csv");
    assert_string_equal(flag_of(target, "pipeline_parallel_schedule"), cases[k].name);
    assert_string_equal(flag_of(target, "disable_cuda_graphs"), "");
    assert_null(flag_of(target, "num_tokens"));
    assert_true(has_note(target, cases[k].note));
    assert_int_equal(has_note(target, "torch.compile"), has_op(table, WEFT_OP_I));
    assert_int_equal(has_note(target, "makes 2 stages per rank by default"), cases[k].v > 2);
    assert_false(has_op(target->table, WEFT_OP_REDUCE_GRAD));
    assert_null(target->modules);
    assert_true(target->code == NULL && target->layout == NULL);
    weft_target_destroy(target);
    weft_program_destroy(table);
  }
}

static void expect_modules(const struct weft_target_request *request, const char *expected) {
  struct weft_target *target = target_of(request);
  struct weft_text text = {.allocator = NULL};
  const char **module = target->modules;
  for (uint32_t s = 0; s < target->stage_count; s++) {
    weft_text_add(&text, s > 0 ? " |" : "");
    for (uint32_t k = 0; k < target->stage_modules[s]; k++) {
      weft_text_addf(&text, " %s", *module++);
    }
  }
  assert_string_equal(text.data, expected);
  weft_text_finish(&text);
  weft_target_destroy(target);
}

static void torchtitan_gets_the_modules_of_each_stage(void **state) {
  (void)state;
  struct weft_program *table = generate("1F1B", 2, 1, 4), *one = generate("1F1B", 1, 1, 4);
  const uint32_t parts[] = {2, 3}, all[] = {1};
  const char *names[] = {"a", "b+c", "d", "e+f+g", "h"};
  struct weft_target_request request = {.kind = WEFT_TARGET_TORCHTITAN,
                                        .table = table,
                                        .stage_parts = parts,
                                        .tokens_per_microbatch = 4096,
                                        .file = "x"};
  expect_modules(&request, " tok_embeddings layers.0 | layers.1 layers.2 norm lm_head");
  request.part_names = names;
  request.part_count = 5;
  expect_modules(&request, " a b c | d e f g h");
  struct weft_target *target = target_of(&request);
  assert_string_equal(flag_of(target, "num_tokens_per_microbatch_per_dp_rank"), "4096");
  weft_target_destroy(target);
  request.part_count = 4;
  expect_refused(&request, WEFT_ERR_USAGE, "the plan has 5 parts, but 4 are named");
  request = (struct weft_target_request){
      .kind = WEFT_TARGET_TORCHTITAN, .table = one, .stage_parts = all, .file = "x"};
  expect_modules(&request, " tok_embeddings norm lm_head");
  weft_program_destroy(table);
  weft_program_destroy(one);
}

static void pytorch_gets_code(void **state) {
  (void)state;
  struct weft_program *table = generate("ZBH1", 2, 1, 3);
  struct weft_program *odd = parse("1F0,1B0\n0F0,0B0\n"),
                      *three = parse("0F0,1F0,1B0,0B0\n2F0,2B0\n");
  struct weft_target_request request = {
      .kind = WEFT_TARGET_PYTORCH, .table = table, .file = "a\"b\\\n\xff\xc3\xb6.csv"};
  struct weft_target *target = target_of(&request);
  assert_int_equal(target->flag_count, 0);
  assert_non_null(strstr(target->code, "n_microbatches=3"));
  assert_non_null(strstr(target->code,
                         "runtime._load_csv(\"a\\\"b\\\\\\x0a\\udcff\xc3\xb6.csv\", "
                         "format=\"compute_only\")\n"));
  assert_true(has_note(target, "torch.compile"));
  weft_target_destroy(target);
  for (unsigned k = 0; k < 2; k++) { /* which torchtitan cannot place */
    request.table = k == 0 ? odd : three;
    target = target_of(&request);
    assert_true(has_note(target, "each rank has the stages of its row"));
    weft_target_destroy(target);
  }
  weft_program_destroy(table);
  weft_program_destroy(odd);
  weft_program_destroy(three);
}

static void megatron_gets_a_layout(void **state) {
  (void)state;
  const uint32_t parts[] = {2, 3, 0, 2}, all[] = {1};
  const char *letters[] = {"E", "t", "t", "t", "m", "m", "L"};
  struct weft_program *loop = generate("Interleaved1F1B", 2, 2, 4);
  struct weft_program *v = generate("ZBVZeroBubble", 2, 2, 4);
  struct weft_target_request request = {
      .kind = WEFT_TARGET_MEGATRON, .ranks = 2, .stage_count = 4, .stage_parts = parts};
  for (unsigned k = 0; k < 2; k++) { /* by number of stages, and of a table */
    request.table = k == 0 ? NULL : loop;
    struct weft_target *target = target_of(&request);
    assert_string_equal(target->layout, "Et|ttt||tL");
    assert_string_equal(flag_of(target, "layout"), "Et|ttt||tL");
    assert_string_equal(flag_of(target, "model-parallel-size"), "2");
    assert_string_equal(flag_of(target, "microbatch-group-size"), "2");
    assert_true(target->table == NULL && target->modules == NULL);
    weft_target_destroy(target);
  }
  request.part_names = letters;
  request.part_count = 7;
  struct weft_target *target = target_of(&request);
  assert_string_equal(target->layout, "Et|ttm||mL");
  weft_target_destroy(target);
  letters[3] = "x";
  expect_refused(&request, WEFT_ERR_USAGE, "part 3 is called 'x'");
  request.part_names = NULL;
  request.table = v;
  expect_refused(&request, WEFT_ERR_INVALID, "the plan is a V");
  request.table = NULL;
  request.stage_count = 3;
  expect_refused(&request, WEFT_ERR_USAGE, "3 stages are not the same number on each of 2 ranks");
  request.stage_parts = NULL;
  expect_refused(&request, WEFT_ERR_USAGE, "does not partition the model");
  request = (struct weft_target_request){
      .kind = WEFT_TARGET_MEGATRON, .ranks = 1, .stage_count = 1, .stage_parts = all};
  target = target_of(&request);
  assert_string_equal(target->layout, "EL");
  assert_null(flag_of(target, "microbatch-group-size"));
  weft_target_destroy(target);
  weft_program_destroy(loop);
  weft_program_destroy(v);
}

static void what_a_target_cannot_run_is_refused(void **state) {
  (void)state;
  struct weft_program *table = generate("1F1B", 2, 1, 2), *lowered;
  struct weft_program *odd = parse("1F0,1B0\n0F0,0B0\n"),
                      *three = parse("0F0,1F0,1B0,0B0\n2F0,2B0\n");
  struct weft_program *skips = parse("#graph,0>1,0>2,1>2\n0F0,0B0\n1F0,1B0\n2F0,2B0\n");
  struct weft_program *v =
      parse("0F0,3F0,4F0,7F0,7B0,4B0,3B0,0B0\n1F0,2F0,5F0,6F0,6B0,5B0,2B0,1B0\n");
  struct weft_target_request request = {.kind = WEFT_TARGET_TORCHTITAN, .file = "x"};
  assert_int_equal(weft_lower(NULL, table, NULL, &lowered, NULL), WEFT_OK);
  expect_refused(&request, WEFT_ERR_USAGE, "table");
  request.table = odd;
  expect_refused(&request, WEFT_ERR_INVALID, "neither as a loop nor as a V");
  request.table = three;
  expect_refused(&request, WEFT_ERR_USAGE, "3 stages are not the same number");
  request.table = v;
  expect_refused(&request, WEFT_ERR_INVALID, "torchtitan has no V with 4 stages per rank");
  for (unsigned kind = 0; kind < WEFT_TARGETS; kind++) {
    request.kind = (enum weft_target_kind)kind;
    const uint32_t parts[] = {1, 1, 1};
    request.stage_parts = parts;
    request.table = skips;
    expect_refused(&request, WEFT_ERR_INVALID, "form a graph");
    request.table = lowered;
    if (kind != WEFT_TARGET_MEGATRON) {
      expect_refused(&request, WEFT_ERR_INVALID, "");
    }
  }
  weft_program_destroy(table);
  weft_program_destroy(lowered);
  weft_program_destroy(odd);
  weft_program_destroy(three);
  weft_program_destroy(skips);
  weft_program_destroy(v);
}

static void no_allocation_that_fails_leaks(void **state) {
  (void)state;
  struct weft_program *table = generate("Interleaved1F1B", 2, 2, 4);
  const uint32_t parts[] = {2, 3, 1, 2};
  struct test_memory memory;
  for (unsigned kind = 0; kind < WEFT_TARGETS; kind++) {
    const struct weft_target_request request = {.kind = (enum weft_target_kind)kind,
                                                .table = table,
                                                .stage_parts = parts,
                                                .file = "plan.csv"};
    enum weft_status status = WEFT_ERR_MEMORY;
    for (uint64_t fail_at = 1; status != WEFT_OK; fail_at++) {
      struct weft_target *target = NULL;
      test_memory_init(&memory);
      memory.fail_at = fail_at;
      status = weft_target(&memory.allocator, &request, &target, NULL);
      assert_true(status == WEFT_OK || status == WEFT_ERR_MEMORY);
      weft_target_destroy(target);
      assert_true(memory.blocks == 0 && memory.bytes == 0);
    }
  }
  weft_program_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(torchtitan_takes_the_placement_from_the_name),
      cmocka_unit_test(torchtitan_gets_the_modules_of_each_stage),
      cmocka_unit_test(pytorch_gets_code),
      cmocka_unit_test(megatron_gets_a_layout),
      cmocka_unit_test(what_a_target_cannot_run_is_refused),
      cmocka_unit_test(no_allocation_that_fails_leaks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
