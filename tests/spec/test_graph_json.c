/* The graph file: every field and default, every kind of error with the field and the place it
 * names, print and parse of random graphs, failing memory. */
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

#include "support_memory.h"
#include "support_random_graph.h"

static struct weft_graph *parsed(const char *text, size_t size) {
  struct weft_graph *graph = NULL;
  struct weft_error error;
  if (weft_graph_parse(NULL, text, size, "g.json", &graph, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return graph;
}

/* --- What is accepted ---------------------------------------------------------------- */

static void every_field(void **state) {
  (void)state;
  static const char text[] =
      "{\"edges\": [{\"to\": \"head\", \"from\": 1, \"bytes\": 2.5},\n"
      " {\"from\": \"encoder\", \"to\": 1, \"gradient\": true, \"gradient_bytes\": 7},\n"
      " {\"from\": 0, \"to\": 3, \"gradient\": false, \"bytes\": 1, \"gradient_bytes\": 3}],\n"
      " \"stages\": [\"encoder\", null, \"head\", \"second head\"],\n"
      " \"schema\": \"weft-graph/1\"}";
  struct weft_graph *graph = parsed(text, strlen(text));
  assert_int_equal(graph->stage_count, 4);
  assert_int_equal(graph->edge_count, 3);
  assert_string_equal(graph->names[0], "encoder");
  assert_null(graph->names[1]);
  assert_string_equal(graph->names[3], "second head");
  const struct weft_edge *edges = graph->edges;
  assert_true(edges[0].from == 0 && edges[0].to == 1 && edges[0].gradient);
  assert_true(edges[0].bytes < 0 && edges[0].gradient_bytes == 7);
  assert_true(edges[1].from == 0 && edges[1].to == 3 && !edges[1].gradient);
  assert_true(edges[1].bytes == 1 && edges[1].gradient_bytes == 3);
  assert_true(edges[2].from == 1 && edges[2].to == 2);
  assert_true(edges[2].bytes == 2.5 && edges[2].gradient_bytes == 2.5); /* as the activation */
  weft_graph_destroy(graph);
}

static void stages_without_names(void **state) {
  (void)state;
  static const char text[] = "{\"schema\": \"weft-graph/1\", \"stages\": 1, \"edges\": []}";
  struct weft_graph *graph = parsed(text, strlen(text));
  assert_true(graph->stage_count == 1 && graph->edge_count == 0 && graph->names == NULL);
  weft_graph_destroy(graph);
}

/* --- What is not ------------------------------------------------------------------------ */

#define HEAD "{\"schema\": \"weft-graph/1\", "
#define EDGES(LIST) HEAD "\"stages\": [\"a\", \"b\", \"c\"],\n \"edges\": " LIST "}"
#define EDGE(FIELDS) EDGES("[{\"from\": 0, \"to\": 1}, {" FIELDS "}]")

static const struct {
  const char *text;
  enum weft_status status;
  const char *message; /* its words, separated by '|' */
} wrong[] = {
    {"", WEFT_ERR_FORMAT, "g.json:1:1"},
    {"[]", WEFT_ERR_FORMAT, "g.json:1:1|expected an object|found"},
    {"{\"schema\": 1}", WEFT_ERR_FORMAT, "expected \"schema\": \"weft-graph/1\""},
    {"{\"schema\": \"weft-costs/1\"}", WEFT_ERR_FORMAT, "weft-graph/1|found another one"},
    {HEAD "\"stages\": 3}", WEFT_ERR_FORMAT, "edges is missing: expected a list of edges"},
    {HEAD "\"edges\": []}", WEFT_ERR_FORMAT, "stages is missing: expected a list of names"},
    {HEAD "\"stages\": 3, \"edges\": [], \"x\": 1}", WEFT_ERR_FORMAT,
     "x: unknown field; expected schema, stages, edges"},
    {HEAD "\"stages\": 3, \"stages\": 3, \"edges\": []}", WEFT_ERR_FORMAT, "duplicate"},
    {HEAD "\"stages\": 0, \"edges\": []}", WEFT_ERR_FORMAT,
     "g.json:1:38|stages: expected a list of names, or the number of stages|found 0"},
    {HEAD "\"stages\": 65537, \"edges\": []}", WEFT_ERR_FORMAT,
     "the number of stages from 1 to 65536|found 65537"},
    {HEAD "\"stages\": [], \"edges\": []}", WEFT_ERR_FORMAT, "stages: expected at least one entry"},
    {HEAD "\"stages\": [\"a\", \"\"], \"edges\": []}", WEFT_ERR_FORMAT,
     "stages[1]: expected a name, or null"},
    {HEAD "\"stages\": [1], \"edges\": []}", WEFT_ERR_FORMAT, "stages[0]: expected a name|found 1"},
    {HEAD "\"stages\": [\"a\", \"b\", \"a\"], \"edges\": []}", WEFT_ERR_FORMAT,
     "stages[2]: stage 0 has this name already"},
    {EDGES("3"), WEFT_ERR_FORMAT, "g.json:2:11|edges: expected a list of edges|found 3"},
    {EDGES("[3]"), WEFT_ERR_FORMAT, "edges[0]: expected an object with 'from' and 'to'|found 3"},
    {EDGES("[{\"from\": 0}]"), WEFT_ERR_FORMAT, "edges[0]: to is missing: expected the stage"},
    {EDGES("[{\"to\": 1}]"), WEFT_ERR_FORMAT, "edges[0]: from is missing: expected the stage"},
    {EDGE("\"from\": 0, \"to\": 3"), WEFT_ERR_FORMAT,
     "edges[1].to: expected a stage of the list 'stages'|found 3"},
    {EDGE("\"from\": -1, \"to\": 2"), WEFT_ERR_FORMAT, "edges[1].from: expected a stage|found -1"},
    {EDGE("\"from\": \"d\", \"to\": 2"), WEFT_ERR_FORMAT, "edges[1].from: expected a stage|\"d\""},
    {EDGE("\"from\": 1.5, \"to\": 2"), WEFT_ERR_FORMAT, "edges[1].from: expected a stage|1.5"},
    {EDGE("\"from\": 1, \"to\": 2, \"gradient\": 1"), WEFT_ERR_FORMAT,
     "edges[1].gradient: expected true or false|found 1"},
    {EDGE("\"from\": 1, \"to\": 2, \"bytes\": -1"), WEFT_ERR_FORMAT,
     "edges[1].bytes: expected a size from 0 to 1e12|found -1"},
    {EDGE("\"from\": 1, \"to\": 2, \"gradient_bytes\": 1e13"), WEFT_ERR_FORMAT,
     "edges[1].gradient_bytes: expected a size"},
    {EDGE("\"from\": 1, \"to\": 2, \"size\": 1"), WEFT_ERR_FORMAT,
     "edges[1].size: unknown field; expected from, to, gradient, bytes, gradient_bytes"},
    /* what no graph can be, with names */
    {EDGE("\"from\": 2, \"to\": 1"), WEFT_ERR_INVALID,
     "g.json:2:34: edges[1]: the edge 2>1 goes back, from stage 2 'c' to stage 1 'b'"},
    {EDGES("[{\"from\": 2, \"to\": 0}, {\"from\": 0, \"to\": 1}, {\"from\": 1, \"to\": 2}]"),
     WEFT_ERR_INVALID,
     "g.json:2:12: edges[0]: the edge 2>0 goes back and closes a cycle: stage 0 'a' > stage 1 'b' "
     "> "
     "stage 2 'c' > stage 0 'a'"},
    {HEAD "\"stages\": [\"\xe5\x85\xa5\", \"\xc2\x9b\"], \"edges\": [{\"from\": 1, \"to\": 0}]}",
     WEFT_ERR_INVALID, "from stage 1 '\\xc2\\x9b' to stage 0 '\xe5\x85\xa5'"},
    {EDGE("\"from\": \"a\", \"to\": \"b\""), WEFT_ERR_INVALID,
     "g.json:2:34: edges[1]: two edges 0>1|'a'|'b'"},
    {EDGE("\"from\": 1, \"to\": 1"), WEFT_ERR_INVALID,
     "edges[1]: stage 1 'b' has an edge to itself"},
    {EDGES("[{\"from\": 0, \"to\": 1}]"), WEFT_ERR_INVALID,
     "g.json:2:11: edges: stage 2 'c' has no edge"},
    {EDGE("\"from\": 1, \"to\": 2, \"gradient\": false"), WEFT_ERR_INVALID,
     "edges[0]: no gradient comes to stage 1 'b'|over the edge 0>1 to stage 0 'a'"},
    {HEAD "\"stages\": 300, \"edges\": [{\"from\": 0, \"to\": 299}]}", WEFT_ERR_LIMIT,
     "the edge 0>299 skips 298 stages; the limit is 255"},
};

static void wrong_files_are_explained(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
    struct weft_graph *graph = NULL;
    struct weft_error error = {0};
    char list[256], *rest = list;
    const char *text = wrong[k].text;
    if (weft_graph_parse(NULL, text, strlen(text), "g.json", &graph, &error) != wrong[k].status) {
      fail_msg("not refused, or otherwise: %s: %s", text, error.message);
    }
    assert_null(graph);
    assert_true(error.hint[0] != '\0' && error.line > 0 && error.column > 0);
    (void)snprintf(list, sizeof list, "%s", wrong[k].message);
    for (char *word; (word = strtok_r(NULL, "|", &rest)) != NULL;) {
      if (strstr(error.message, word) == NULL) {
        fail_msg("'%s' is not in: %s", word, error.message);
      }
    }
  }
}

static void too_many_names(void **state) {
  (void)state;
  struct weft_text text = {0};
  struct weft_graph *graph = NULL;
  struct weft_error error = {0};
  weft_text_add(&text, HEAD "\"stages\": [null");
  for (uint32_t s = 0; s < 65536; s++) {
    weft_text_add(&text, ", null");
  }
  weft_text_add(&text, "], \"edges\": []}");
  assert_int_equal(weft_graph_parse(NULL, text.data, text.size, "g.json", &graph, &error),
                   WEFT_ERR_LIMIT);
  assert_non_null(strstr(error.message, "65537 entries; the limit is 65536"));
  weft_text_finish(&text);
}

/* 20,000 names and edges by name: in no order, each found. */
static void many_names(void **state) {
  (void)state;
  enum { COUNT = 20000 };
  struct weft_text text = {0};
  weft_text_add(&text, HEAD "\"stages\": [");
  for (uint32_t s = 0; s < COUNT; s++) {
    weft_text_addf(&text, "%s\"%" PRIu32 "\"", s > 0 ? ", " : "", s * 7919 % COUNT);
  }
  weft_text_add(&text, "], \"edges\": [");
  for (uint32_t s = 0; s + 1 < COUNT; s++) {
    weft_text_addf(&text, "%s{\"from\": \"%" PRIu32 "\", \"to\": \"%" PRIu32 "\"}",
                   s > 0 ? ", " : "", s * 7919 % COUNT, (s + 1) * 7919 % COUNT);
  }
  weft_text_add(&text, "]}");
  struct weft_graph *graph = parsed(text.data, text.size);
  assert_true(weft_graph_is_chain(graph));
  weft_graph_destroy(graph);
  weft_text_finish(&text);
}

/* Made in code, where numbers can be anything. */
static void sizes_are_numbers(void **state) {
  (void)state;
  static const double bad[] = {NAN, INFINITY, 1.1e12};
  for (size_t k = 0; k < 2 * sizeof bad / sizeof bad[0]; k++) {
    struct weft_edge edge = weft_edge_make(0, 1);
    struct weft_graph *graph = NULL;
    struct weft_error error = {0};
    *(k % 2 == 0 ? &edge.bytes : &edge.gradient_bytes) = bad[k / 2];
    assert_int_equal(weft_graph_create(NULL, 2, &edge, 1, NULL, &graph, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(error.message, "the edge 0>1 has messages of"));
  }
}

/* --- Printing ------------------------------------------------------------------------- */

static struct weft_graph *named(struct weft_random *random, const struct weft_graph *graph) {
  char texts[24][16];
  const char *names[24];
  struct weft_graph *copy = NULL;
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    (void)snprintf(texts[s], sizeof texts[s], "s\"%" PRIu32 "\n\xc3\xa9", s);
    names[s] = weft_random_below(random, 4) == 0 ? NULL : texts[s];
  }
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    if (weft_random_below(random, 2) == 0) {
      graph->edges[e].bytes = weft_random_below(random, 1000) / 7.0;
      graph->edges[e].gradient_bytes = weft_random_below(random, 1000) * 1e6;
    }
  }
  assert_int_equal(weft_graph_create(NULL, graph->stage_count, graph->edges, graph->edge_count,
                                     weft_random_below(random, 3) == 0 ? NULL : names, &copy, NULL),
                   WEFT_OK);
  return copy;
}

static void check_same(const struct weft_graph *a, const struct weft_graph *b) {
  assert_true(a->stage_count == b->stage_count && a->edge_count == b->edge_count);
  for (uint32_t e = 0; e < a->edge_count; e++) {
    assert_true(a->edges[e].from == b->edges[e].from && a->edges[e].to == b->edges[e].to);
    assert_true(a->edges[e].gradient == b->edges[e].gradient);
    assert_true(a->edges[e].bytes == b->edges[e].bytes);
    assert_true(a->edges[e].gradient_bytes == b->edges[e].gradient_bytes);
  }
  assert_int_equal(a->names == NULL, b->names == NULL);
  for (uint32_t s = 0; a->names != NULL && b->names != NULL && s < a->stage_count; s++) {
    assert_int_equal(a->names[s] == NULL, b->names[s] == NULL);
    if (a->names[s] != NULL) {
      assert_string_equal(a->names[s], b->names[s]);
    }
  }
}

static void what_is_printed_is_read(void **state) {
  (void)state;
  struct weft_random random = {.state = 2213};
  for (uint32_t k = 0; k < 2000; k++) {
    const struct random_graph_shape shape =
        random_graph_shape(&random, 1 + weft_random_below(&random, 24));
    struct weft_graph *plain = random_graph(&random, &shape), *graph = named(&random, plain);
    struct weft_text text = {0};
    struct weft_json json = {.text = &text};
    weft_graph_print(graph, &json, NULL);
    assert_int_equal(weft_text_status(&text, NULL), WEFT_OK);
    struct weft_graph *again = parsed(text.data, text.size);
    check_same(graph, again);
    weft_text_finish(&text);
    weft_graph_destroy(plain);
    weft_graph_destroy(graph);
    weft_graph_destroy(again);
  }
}

static void memory_runs_out_anywhere(void **state) {
  (void)state;
  static const char text[] = EDGE("\"from\": 1, \"to\": 2");
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t fail_at = 1; status == WEFT_ERR_MEMORY; fail_at++) {
    struct test_memory memory;
    struct weft_graph *graph = NULL;
    struct weft_error error = {0};
    test_memory_init(&memory);
    memory.fail_at = fail_at;
    status = weft_graph_parse(&memory.allocator, text, strlen(text), NULL, &graph, &error);
    assert_true((status == WEFT_OK) == (graph != NULL));
    weft_graph_destroy(graph);
    assert_int_equal(memory.blocks, 0);
    assert_true(fail_at < 100);
  }
  assert_int_equal(status, WEFT_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_field),
      cmocka_unit_test(stages_without_names),
      cmocka_unit_test(wrong_files_are_explained),
      cmocka_unit_test(too_many_names),
      cmocka_unit_test(many_names),
      cmocka_unit_test(sizes_are_numbers),
      cmocka_unit_test(what_is_printed_is_read),
      cmocka_unit_test(memory_runs_out_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
