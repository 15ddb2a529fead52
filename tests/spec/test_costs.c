/* The costs file: every field and default, every kind of error with the field
 * and the place it names, the limits, hostile text, failing memory; and the
 * checks of costs made in code. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "spec/costs_fields.h"
#include "support_memory.h"

static struct weft_costs *parsed(const char *text) {
  struct weft_costs *costs = NULL;
  struct weft_error error;
  if (weft_costs_parse(NULL, text, strlen(text), "c.json", &costs, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return costs;
}

/* Refused with this status, and a message that has all of the text's words, which
 * are separated by '|'. */
static void expect_error_of(const char *text, size_t size, enum weft_status status,
                            const char *words) {
  struct weft_costs *costs = NULL;
  struct weft_error error;
  char list[512], *rest = list;
  if (weft_costs_parse(NULL, text, size, "c.json", &costs, &error) != status) {
    fail_msg("not refused, or otherwise: %.200s: %s", text, error.message);
  }
  assert_null(costs);
  assert_int_equal(error.status, status);
  assert_true(error.hint[0] != '\0');
  (void)snprintf(list, sizeof list, "%s", words);
  for (char *word; (word = strtok_r(NULL, "|", &rest)) != NULL;) {
    if (strstr(error.message, word) == NULL) {
      fail_msg("'%s' is not in: %s", word, error.message);
    }
  }
}

static void expect_error(const char *text, const char *words) {
  expect_error_of(text, strlen(text), WEFT_ERR_FORMAT, words);
}

#define HEAD "{\"schema\": \"weft-costs/1\", "
#define STAGE(FIELDS) HEAD "\"stages\": [{" FIELDS "}]}"

/* ---- What is accepted ---- */

static void test_defaults(void **state) {
  (void)state;
  struct weft_costs *costs = parsed(STAGE(""));
  const struct weft_stage_costs *stage = &costs->stages[0];
  assert_int_equal(costs->stage_count, 1);
  assert_string_equal(costs->unit, "");
  assert_true(stage->f == 1 && stage->i == 1 && stage->w == 1 && stage->b == 2);
  assert_true(stage->overlap_f_b < 0);
  assert_true(stage->activation == 1 && stage->activation_after_i == 1);
  assert_true(stage->unshard == 0 && stage->reduce_grad == 0);
  assert_true(stage->parameters == 0 && stage->gradients == 0);
  assert_true(costs->hop.latency == 0 && costs->hop.bytes == 0 && costs->hop.bytes_per_unit == 0);
  weft_costs_destroy(costs);
  /* What I leaves behind is all of it, unless the file says otherwise. */
  costs = parsed(HEAD
                 "\"stages\": [{\"activation\": 3}, {\"activation_after_i\": 0},"
                 " {\"activation_after_i\": 5, \"activation\": 2}],"
                 " \"parts\": [{\"activation\": 4}, {\"activation\": 4, "
                 "\"activation_after_i\": 1}, {}]}");
  assert_true(costs->stages[0].activation_after_i == 3);
  assert_true(costs->stages[1].activation == 1 && costs->stages[1].activation_after_i == 0);
  assert_true(costs->stages[2].activation_after_i == 5);
  assert_true(costs->parts[0].activation_after_i == 4 && costs->parts[1].activation_after_i == 1);
  assert_true(costs->parts[2].activation_after_i < 0);
  weft_costs_destroy(costs);
}

static void test_every_field(void **state) {
  (void)state;
  struct weft_costs *costs = parsed(
      "{\"stages\": [{\"f\": 1.5, \"i\": 2, \"w\": 0.25, \"b\": 2.5, \"overlap_f_b\": 3.5,"
      " \"activation\": 4, \"activation_after_i\": 5e-1, \"unshard\": 6, \"reduce_grad\": 7,"
      " \"parameters\": 8, \"gradients\": 9}, {\"w\": 3}],\n"
      " \"hop\": {\"latency\": 0.125, \"bytes\": 1e6, \"bytes_per_unit\": 1e9},"
      " \"unit\": \"\\u00b5s\", \"schema\": \"weft-costs/1\"}");
  const struct weft_stage_costs *stage = &costs->stages[0];
  assert_int_equal(costs->stage_count, 2);
  assert_string_equal(costs->unit, "\xc2\xb5s");
  assert_true(stage->f == 1.5 && stage->i == 2 && stage->w == 0.25 && stage->b == 2.5);
  assert_true(stage->overlap_f_b == 3.5 && stage->activation == 4);
  assert_true(stage->activation_after_i == 0.5 && stage->unshard == 6);
  assert_true(stage->reduce_grad == 7 && stage->parameters == 8 && stage->gradients == 9);
  assert_true(costs->stages[1].b == 4); /* i + w */
  assert_true(costs->hop.latency == 0.125 && costs->hop.bytes == 1e6);
  assert_true(costs->hop.bytes_per_unit == 1e9);
  assert_ptr_equal(weft_costs_of(costs, 1), &costs->stages[1]);
  weft_costs_destroy(costs);
}

static void test_parts(void **state) {
  (void)state;
  struct weft_costs *costs = parsed(STAGE(""));
  assert_int_equal(costs->part_count, 0);
  assert_null(costs->parts);
  weft_costs_destroy(costs);
  costs = parsed(HEAD
                 "\"parts\": [{\"f\": 0.5, \"w\": 2}, {\"i\": 3, \"f\": 1e12}, {}],"
                 " \"stages\": [{\"f\": 4}]}");
  assert_int_equal(costs->stage_count, 1);
  assert_int_equal(costs->part_count, 3);
  const struct weft_part_costs *parts = costs->parts;
  assert_true(parts[0].f == 0.5 && parts[0].i == 0 && parts[0].w == 2);
  assert_true(parts[1].f == 1e12 && parts[1].i == 3 && parts[1].w == 0);
  assert_true(parts[2].f == 0 && parts[2].i == 0 && parts[2].w == 0);
  assert_int_equal(weft_costs_check(costs, 5, NULL), WEFT_OK);
  weft_costs_destroy(costs);
}

#define PARTS(LIST) HEAD "\"stages\": [{}], \"parts\": " LIST "}"

static void test_wrong_parts(void **state) {
  (void)state;
  expect_error(PARTS("{}"), "c.json:1:|parts: expected a list|each part of the model|an object");
  expect_error(PARTS("[]"), "parts: expected at least one entry");
  expect_error(PARTS("[1]"), "parts[0]: expected an object|found 1");
  expect_error(PARTS("[{}, {\"w\": -1}]"), "parts[1].w: expected a number from 0|found -1");
  expect_error(PARTS("[{\"f\": null}]"), "parts[0].f: expected a number|found null");
  expect_error(PARTS("[{\"b\": 1}]"), "parts[0].b: unknown field; expected f, i, w");
}

/* So that none is forgotten here. */
static void test_every_field_is_in_the_tables(void **state) {
  (void)state;
  size_t count = 0;
  for (const struct weft_cost_field *field = weft_stage_cost_fields; field->name != NULL; field++) {
    char text[128];
    (void)snprintf(text, sizeof text, STAGE("\"%s\": 77"), field->name);
    struct weft_costs *costs = parsed(text);
    assert_int_equal(field->offset, count * sizeof(double));
    assert_true(((const double *)costs->stages)[count++] == 77);
    weft_costs_destroy(costs);
    (void)snprintf(text, sizeof text, STAGE("\"%s\": -1"), field->name);
    char words[64];
    (void)snprintf(words, sizeof words, "stages[0].%s|found -1", field->name);
    expect_error(text, words);
  }
  assert_int_equal(count * sizeof(double), sizeof(struct weft_stage_costs));
}

/* Every field, alone and at its default, is read back as it was written. */
static void test_printed_costs_are_read_back(void **state) {
  (void)state;
  size_t count = 0;
  for (; weft_stage_cost_fields[count].name != NULL; count++) {
  }
  for (size_t k = 0; k <= count; k++) {
    struct weft_text text = {.allocator = NULL};
    struct weft_json json = {.text = &text};
    struct weft_costs *costs = parsed(HEAD
                                      "\"unit\": \"ms\", \"hop\": {\"bytes\": 3}, "
                                      "\"all_reduce\": {\"latency\": 1, \"size_per_unit\": 2}, "
                                      "\"microbatch_size\": 4, \"rank_factors\": [1, 1.5], "
                                      "\"stages\": [{}, "
                                      "{}], \"parts\": [{\"f\": 0.1}]}");
    for (size_t field = 0; field < count; field++) {
      ((double *)&costs->stages[1])[field] = field == k ? 1.0 / 3 : 0;
    }
    weft_costs_print(costs, &json, NULL);
    weft_json_finish(&json);
    assert_false(text.failed);
    struct weft_costs *read = parsed(text.data);
    assert_string_equal(read->unit, "ms");
    assert_int_equal(read->stage_count, 2);
    assert_memory_equal(read->stages, costs->stages, 2 * sizeof *costs->stages);
    assert_memory_equal(&read->hop, &costs->hop, sizeof costs->hop);
    assert_memory_equal(&read->all_reduce, &costs->all_reduce, sizeof costs->all_reduce);
    assert_true(read->microbatch_size == costs->microbatch_size);
    assert_true(read->rank_count == costs->rank_count &&
                (read->rank_count == 0 || read->rank_factors[1] == costs->rank_factors[1]));
    assert_int_equal(read->part_count, 1);
    assert_memory_equal(read->parts, costs->parts, sizeof *costs->parts);
    weft_costs_destroy(read);
    weft_costs_destroy(costs);
    weft_text_finish(&text);
  }
}

static void test_divided_costs(void **state) {
  (void)state;
  struct weft_stage_costs costs = weft_stage_costs_default();
  for (size_t k = 0; weft_stage_cost_fields[k].name != NULL; k++) {
    ((double *)&costs)[k] = 4;
  }
  struct weft_stage_costs divided = weft_stage_costs_divide(&costs, 2);
  for (size_t k = 0; weft_stage_cost_fields[k].name != NULL; k++) {
    assert_true(((double *)&divided)[k] == 2);
  }
  costs.overlap_f_b = -1; /* not known: it stays so */
  assert_true(weft_stage_costs_divide(&costs, 2).overlap_f_b == -1);
}

static void test_numbers_at_the_edge(void **state) {
  (void)state;
  struct weft_costs *costs =
      parsed(STAGE("\"f\": 1e12, \"i\": 0, \"w\": -0.0, \"b\": 1000000000000"));
  assert_true(costs->stages[0].f == WEFT_COST_MAX && costs->stages[0].b == WEFT_COST_MAX);
  assert_true(costs->stages[0].w == 0 && !signbit(costs->stages[0].w));
  weft_costs_destroy(costs);
  costs = parsed(STAGE("\"overlap_f_b\": 0"));
  assert_true(costs->stages[0].overlap_f_b == 0);
  weft_costs_destroy(costs);
}

static void test_one_entry_serves_all(void **state) {
  (void)state;
  struct weft_costs *costs = parsed(STAGE("\"f\": 3"));
  assert_ptr_equal(weft_costs_of(costs, 0), weft_costs_of(costs, 60000));
  assert_int_equal(weft_costs_check(costs, 17, NULL), WEFT_OK);
  weft_costs_destroy(costs);
}

/* ---- What is refused ---- */

static void test_absurd_numbers_name_the_field(void **state) {
  (void)state;
  expect_error(STAGE("\"f\": -1"), "c.json:1:|stages[0].f|from 0 to 1e+12|found -1");
  expect_error(STAGE("\"f\": 1e30"), "stages[0].f|found 1e30");
  expect_error(STAGE("\"f\": 1000000000000000000000000000000"), "stages[0].f|found 1000");
  expect_error(STAGE("\"w\": 1e999"), "stages[0].w|found 1e999");
  expect_error(STAGE("\"w\": -1e999"), "stages[0].w|found -1e999");
  expect_error(STAGE("\"i\": NaN"), "stages[0].i|NaN");
  expect_error(STAGE("\"i\": Infinity"), "stages[0].i|Infinity");
  expect_error(STAGE("\"i\": -Infinity"), "stages[0].i");
  expect_error(STAGE("\"b\": 1e12, \"activation\": 1.0000001e12"), "stages[0].activation");
  expect_error(HEAD "\"stages\": [{}, {}, {\"f\": 1}, {\"f\": -0.5}]}", "stages[3].f|found -0.5");
  expect_error(STAGE("\"i\": 9e11, \"w\": 2e11"), "stages[0]|i + w");
  expect_error(HEAD "\"stages\": [{}], \"hop\": {\"latency\": -2}}", "hop.latency|found -2");
  expect_error(HEAD "\"stages\": [{}], \"hop\": {\"bytes\": 1e12, \"bytes_per_unit\": 1e-3}}",
               "hop|bytes / bytes_per_unit");
}

static void test_wrong_types_name_the_field(void **state) {
  (void)state;
  expect_error(STAGE("\"f\": \"fast\""), "stages[0].f|found \"fast\"");
  expect_error(STAGE("\"f\": true"), "stages[0].f|found true");
  expect_error(STAGE("\"f\": null"), "stages[0].f|found null");
  expect_error(STAGE("\"f\": [1]"), "stages[0].f|found a list");
  expect_error(STAGE("\"f\": {\"x\": [[[[1]]]]}"), "stages[0].f|found an object");
  expect_error(HEAD "\"stages\": {}}", "stages: expected a list|found an object");
  expect_error(HEAD "\"stages\": 3}", "stages: expected a list|found 3");
  expect_error(HEAD "\"stages\": [{}, 7]}", "stages[1]|found 7");
  expect_error(HEAD "\"stages\": [{}], \"hop\": []}", "hop|found a list");
  expect_error(HEAD "\"stages\": [{}], \"unit\": 1}", "unit|found 1");
  expect_error(HEAD "\"stages\": [{}], \"unit\": \"0123456789abcdef\"}", "unit|15 bytes");
  expect_error(HEAD "\"stages\": [{}], \"unit\": \"\\u001b[2J\"}", "unit|printed");
  expect_error(HEAD "\"stages\": [{}], \"unit\": \"\\u009b2J\"}", "unit|printed");
  expect_error("[]", "expected an object, found a list");
}

/* One entry is of a rank's share, unless it says otherwise; entries per stage are what they say. */
static void test_shares_of_ranks(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint32_t ranks, stages;
    double f;
    const char *words;
  } cases[] = {
      {HEAD "\"stages\": [{\"f\": 3}]}", 4, 8, 1.5,
       "times are of a rank's share of the model: a stage takes 1/2"},
      {HEAD "\"stages\": [{\"f\": 3}], \"of\": \"rank\"}", 4, 6, 2,
       "times are of a rank's share of the model: a stage takes 2/3"},
      {HEAD "\"stages\": [{\"f\": 3}]}", 4, 4, 3,
       "times are of a rank's share of the model, one stage"},
      {HEAD "\"stages\": [{\"f\": 3}]}", 4, 1, 3,
       "times are of a rank's share of the model, one stage"},
      {HEAD "\"stages\": [{\"f\": 3}], \"of\": \"stage\"}", 4, 8, 3, "times are of a stage"},
      {HEAD "\"stages\": [{\"f\": 3}, {}]}", 1, 2, 3, "times are of each stage"},
  };
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    struct weft_costs *costs = NULL;
    struct weft_costs_view view;
    char words[96];
    assert_int_equal(
        weft_costs_parse(NULL, cases[k].text, strlen(cases[k].text), "c.json", &costs, NULL),
        WEFT_OK);
    const struct weft_costs *own =
        weft_costs_of_stages(costs, cases[k].ranks, cases[k].stages, &view);
    assert_true(weft_costs_of(own, 0)->f == cases[k].f);
    /* They are of stages then: nothing is divided twice. */
    assert_ptr_equal(weft_costs_of_stages(own, cases[k].ranks, cases[k].stages, &view), own);
    assert_string_equal(weft_costs_describe(costs, cases[k].ranks, cases[k].stages, words, 96),
                        cases[k].words);
    weft_costs_destroy(costs);
  }
}

static void test_missing_empty_unknown(void **state) {
  (void)state;
  expect_error("{}", "schema is missing|weft-costs/1");
  expect_error(HEAD "\"stages\": [{}], \"all_reduce\": {\"latency\": -2}}",
               "all_reduce.latency|found -2");
  expect_error(HEAD "\"stages\": [{}], \"microbatch_size\": 1.5}",
               "microbatch_size|whole number|found 1.5");
  expect_error(HEAD "\"stages\": [{}], \"rank_factors\": [1, 0]}", "rank_factors[1]|found 0");
  expect_error(HEAD "\"stages\": [{}], \"rank_factors\": 2}", "rank_factors|one number for each");
  expect_error(HEAD "\"hop\": {}}", "stages is missing");
  expect_error(HEAD "\"stages\": [{}], \"of\": \"model\"}", "of|rank's share|found \"model\"");
  expect_error(HEAD "\"stages\": [{}, {}], \"of\": \"rank\"}", "of|each stage has its own");
  expect_error(HEAD "\"stages\": []}", "stages|empty list");
  expect_error("{\"schema\": \"weft-costs/2\", \"stages\": [{}]}", "schema|found \"weft-costs/2\"");
  expect_error("{\"schema\": 1, \"stages\": [{}]}", "schema|found 1");
  expect_error(STAGE("\"F\": 1"), "stages[0].F|unknown field|f, i, w, b, overlap_f_b");
  expect_error(HEAD "\"stages\": [{}], \"hops\": {}}",
               "hops|unknown field|schema, unit, stages, of, hop, all_reduce, microbatch_size, "
               "rank_factors, parts");
  expect_error(HEAD "\"stages\": [{}], \"hop\": {\"time\": 1}}", "hop.time|unknown field|latency");
  expect_error(STAGE("\"\": 1"), "unknown field");
  expect_error(STAGE("\"f\": 1, \"f\": 2"), "stages[0].f|duplicate");
  expect_error(HEAD "\"stages\": [{}], \"stages\": [{}]}", "stages|duplicate");
}

static void test_syntax_has_line_and_column(void **state) {
  (void)state;
  struct weft_costs *costs = NULL;
  struct weft_error error;
  static const char text[] = "{\n  \"stages\": [\n    {\"f\": 1,}\n  ]\n}\n";
  assert_int_equal(weft_costs_parse(NULL, text, strlen(text), "c.json", &costs, &error),
                   WEFT_ERR_FORMAT);
  assert_int_equal(error.line, 3);
  assert_int_equal(error.column, 13);
  assert_non_null(strstr(error.message, "c.json:3:13: stages[0]: not JSON"));
  static const char late[] =
      "{\"schema\": \"weft-costs/1\",\n\"stages\": [{},\n  {\"f\": 1,\n \"q\":\n 2}]}";
  assert_int_equal(weft_costs_parse(NULL, late, strlen(late), "c.json", &costs, &error),
                   WEFT_ERR_FORMAT);
  assert_int_equal(error.line, 4); /* of the key, not of the value */
  assert_int_equal(error.column, 2);
  expect_error("", "c.json:1:1");
  expect_error("{", "c.json:1:2|end of file");
  expect_error("\xef\xbb\xbf{}", "c.json:1:1");
  expect_error("{\"a\": \"\xff\"}", "c.json:1:7|0xff");
  expect_error("{} x", "c.json:1:4");
}

static void test_text_from_the_file_is_escaped(void **state) {
  (void)state;
  struct weft_costs *costs = NULL;
  struct weft_error error;
  static const char *const texts[] = {
      "{\"schema\": \"weft-costs/1\", \"stages\": [{\"\x1b[2J\": 1}]}",
      "{\"schema\": \"weft-costs/1\", \"stages\": [{\"\\u001b[2J\x7f\": 1}]}",
      "{\"schema\": \"\x7f\xc2\x9b\", \"stages\": [{}]}", "{\"a\": \x1b}", "{\"a\": nul\x1b}"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    assert_true(weft_costs_parse(NULL, texts[i], strlen(texts[i]), "n\x1b\n", &costs, &error) < 0);
    for (const char *at = error.message; *at != '\0'; at++) {
      assert_true(*at >= 0x20 && *at < 0x7f);
    }
  }
}

/* ---- Limits and hostile text ---- */

static void add_entries(struct weft_text *text, uint32_t count) {
  weft_text_add(text, HEAD "\"stages\": [");
  for (uint32_t i = 0; i < count; i++) {
    weft_text_add(text, i > 0 ? ",{}" : "{}");
  }
  weft_text_add(text, "]}");
}

static void test_number_of_entries(void **state) {
  (void)state;
  struct weft_text text = {0};
  struct weft_costs *costs = NULL;
  add_entries(&text, WEFT_STAGES_MAX);
  assert_int_equal(weft_costs_parse(NULL, text.data, text.size, NULL, &costs, NULL), WEFT_OK);
  assert_int_equal(costs->stage_count, WEFT_STAGES_MAX);
  weft_costs_destroy(costs);
  weft_text_finish(&text);
  text = (struct weft_text){0};
  add_entries(&text, WEFT_STAGES_MAX + 1);
  expect_error_of(text.data, text.size, WEFT_ERR_LIMIT, "stages|65537|65536");
  weft_text_finish(&text);
}

static void test_size_of_the_text(void **state) {
  (void)state;
  const size_t size = ((size_t)64 << 20) + 1;
  char *text = malloc(size);
  assert_non_null(text);
  memset(text, ' ', size);
  expect_error_of(text, size, WEFT_ERR_LIMIT, "67108865|67108864");
  memset(text, ',', size);
  expect_error_of(text, size - 1, WEFT_ERR_LIMIT, "67108864 values|1048576");
  memset(text, '[', size);
  expect_error_of(text, size - 1, WEFT_ERR_FORMAT, "depth");
  free(text);
}

/* Every prefix, and every byte replaced: refused or read, never worse. */
static void test_damaged_text(void **state) {
  (void)state;
  static const char good[] = HEAD
      "\"unit\": \"ms\", \"stages\": [{\"f\": 1.5}, {\"i\": 2}], \"hop\": {\"latency\": 0.1},"
      " \"parts\": [{\"w\": 3}, {}]}";
  char text[sizeof good];
  for (size_t size = 0; size + 1 < sizeof good - 1; size++) {
    struct weft_costs *costs = NULL;
    struct weft_error error = {0};
    assert_true(weft_costs_parse(NULL, good, size, "x", &costs, &error) < 0);
    assert_true(error.line == 1 && error.column >= 1 && error.column <= size + 1);
  }
  for (size_t i = 0; i < sizeof good - 1; i++) {
    for (unsigned byte = 0; byte < 256; byte++) {
      struct weft_costs *costs = NULL;
      memcpy(text, good, sizeof good);
      text[i] = (char)byte;
      if (weft_costs_parse(NULL, text, sizeof good - 1, "x", &costs, NULL) < 0) {
        assert_null(costs);
      }
      weft_costs_destroy(costs);
    }
  }
}

static void test_failing_memory(void **state) {
  (void)state;
  static const char text[] = PARTS("[{\"f\": 2}, {}]");
  for (uint64_t n = 1; n <= 3; n++) {
    struct test_memory memory;
    struct weft_costs *costs = NULL;
    struct weft_error error;
    test_memory_init(&memory);
    memory.fail_at = n;
    assert_int_equal(weft_costs_parse(&memory.allocator, text, strlen(text), "c", &costs, &error),
                     WEFT_ERR_MEMORY);
    assert_null(costs);
    assert_int_equal(memory.blocks, 0);
  }
  struct test_memory memory;
  struct weft_costs *costs = NULL;
  test_memory_init(&memory);
  assert_int_equal(weft_costs_parse(&memory.allocator, text, strlen(text), "c", &costs, NULL),
                   WEFT_OK);
  assert_int_equal(memory.calls, 3);
  weft_costs_destroy(costs);
  assert_int_equal(memory.blocks, 0);
}

/* ---- Costs made in code ---- */

static void test_create(void **state) {
  (void)state;
  struct weft_costs *costs = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 0, &costs, &error), WEFT_ERR_USAGE);
  assert_int_equal(weft_costs_create(NULL, WEFT_STAGES_MAX + 1, &costs, &error), WEFT_ERR_LIMIT);
  assert_non_null(strstr(error.message, "65537"));
  assert_null(costs);
  assert_int_equal(weft_costs_create(NULL, 3, &costs, &error), WEFT_OK);
  assert_true(costs->stages[2].b == 2);
  assert_int_equal(weft_costs_check(costs, 3, &error), WEFT_OK);
  assert_int_equal(weft_costs_check(costs, 4, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "3 entries"));
  assert_non_null(strstr(error.message, "4 stages"));
  assert_int_equal(weft_costs_add_parts(costs, 0, &error), WEFT_ERR_USAGE);
  assert_int_equal(weft_costs_add_parts(costs, WEFT_STAGES_MAX + 1, &error), WEFT_ERR_LIMIT);
  assert_int_equal(weft_costs_add_parts(costs, 7, &error), WEFT_OK);
  assert_true(costs->part_count == 7 && costs->parts[6].w == 0);
  assert_int_equal(weft_costs_add_parts(costs, 7, &error), WEFT_ERR_USAGE);
  weft_costs_destroy(costs);
  weft_costs_destroy(NULL);
}

static void test_check_names_the_number(void **state) {
  (void)state;
  static const double bad[] = {-1, 1e13, NAN, INFINITY};
  struct weft_costs *costs;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 2, &costs, &error), WEFT_OK);
  assert_int_equal(weft_costs_add_parts(costs, 4, &error), WEFT_OK);
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
    costs->stages[1].gradients = bad[k];
    assert_int_equal(weft_costs_check(costs, 2, &error), WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "stages[1].gradients"));
    costs->stages[1].gradients = 0;
    costs->parts[3].i = bad[k];
    assert_int_equal(weft_costs_check(costs, 2, &error), WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "parts[3].i"));
    costs->parts[3].i = 0;
    costs->hop.bytes = bad[k];
    assert_int_equal(weft_costs_check(costs, 2, &error), WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "hop.bytes"));
    costs->hop.bytes = 0;
    costs->stages[0].overlap_f_b = bad[k];
    assert_int_equal(weft_costs_check(costs, 2, &error), k == 0 ? WEFT_OK : WEFT_ERR_USAGE);
    costs->stages[0].overlap_f_b = -1;
  }
  costs->hop = (struct weft_hop_costs){.bytes = 1e12, .bytes_per_unit = 1e-12};
  assert_int_equal(weft_costs_check(costs, 2, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "bytes_per_unit"));
  weft_costs_destroy(costs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_every_field),
      cmocka_unit_test(test_parts),
      cmocka_unit_test(test_wrong_parts),
      cmocka_unit_test(test_every_field_is_in_the_tables),
      cmocka_unit_test(test_printed_costs_are_read_back),
      cmocka_unit_test(test_divided_costs),
      cmocka_unit_test(test_numbers_at_the_edge),
      cmocka_unit_test(test_one_entry_serves_all),
      cmocka_unit_test(test_absurd_numbers_name_the_field),
      cmocka_unit_test(test_wrong_types_name_the_field),
      cmocka_unit_test(test_shares_of_ranks),
      cmocka_unit_test(test_missing_empty_unknown),
      cmocka_unit_test(test_syntax_has_line_and_column),
      cmocka_unit_test(test_text_from_the_file_is_escaped),
      cmocka_unit_test(test_number_of_entries),
      cmocka_unit_test(test_size_of_the_text),
      cmocka_unit_test(test_damaged_text),
      cmocka_unit_test(test_failing_memory),
      cmocka_unit_test(test_create),
      cmocka_unit_test(test_check_names_the_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
