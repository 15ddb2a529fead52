/* Graphs of stages: what is refused and how it is explained, the lists by stage against the edges,
 * and the language: the row #graph, transfers that name their other end, the place and expectation
 * of every kind of fault. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_csv.h"
#include "support_memory.h"
#include "support_random_graph.h"
#include "support_random_program.h"

#if defined(__SANITIZE_ADDRESS__)
#define GRAPHS 1000u
#define ROUND_TRIPS 5000u
#else
#define GRAPHS 5000u
#define ROUND_TRIPS 50000u
#endif

/* --- Making ------------------------------------------------------------------------ */

/* "0>1,1>2F" as edges. */
static uint32_t read_edges(const char *text, struct weft_edge *edges) {
  uint32_t count = 0;
  for (const char *at = text; *at != '\0';) {
    char *end;
    const unsigned long from = strtoul(at, &end, 10), to = strtoul(end + 1, &end, 10);
    edges[count] = weft_edge_make((uint32_t)from, (uint32_t)to);
    edges[count++].gradient = *end != 'F';
    end += *end == 'F';
    at = *end == ',' ? end + 1 : end;
  }
  return count;
}

static const struct {
  uint32_t stages;
  const char *edges;
  enum weft_status status;
  const char *message;
} wrong[] = {
    {3, "0>1,1>1", WEFT_ERR_INVALID, "stage 1 'b' has an edge to itself"},
    {3, "0>1,2>1", WEFT_ERR_INVALID, "the edge 2>1 goes back, from stage 2 'c' to stage 1 'b'"},
    {3, "0>1,1>2,0>1", WEFT_ERR_INVALID, "two edges 0>1, from stage 0 'a' to stage 1 'b'"},
    {3, "0>1", WEFT_ERR_INVALID, "stage 2 'c' has no edge: nobody feeds it"},
    {3, "0>1,1>3", WEFT_ERR_INVALID, "the edge 1>3: there are 3 stages"},
    {3, "0>1,1>2F", WEFT_ERR_INVALID,
     "no gradient comes to stage 1 'b', so it cannot send one over the edge 0>1 to stage 0 'a'"},
    {0, "", WEFT_ERR_USAGE, "a graph without stages"},
    {300, "0>257", WEFT_ERR_LIMIT, "the edge 0>257 skips 256 stages; the limit is 255"},
    {WEFT_STAGES_MAX + 1, "0>1", WEFT_ERR_LIMIT, "65537 stages and 1 edges; the limits are"},
};

static void wrong_graphs_are_explained(void **state) {
  (void)state;
  static const char *names[WEFT_STAGES_MAX + 1] = {"a", "b", "c"};
  for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
    struct weft_edge edges[8];
    struct weft_graph *graph = NULL;
    struct weft_error error = {0};
    const uint32_t count = read_edges(wrong[k].edges, edges);
    assert_int_equal(weft_graph_create(NULL, wrong[k].stages, edges, count, names, &graph, &error),
                     wrong[k].status);
    assert_null(graph);
    if (strstr(error.message, wrong[k].message) == NULL) {
      fail_msg("'%s' is not in: %s", wrong[k].message, error.message);
    }
    assert_true(error.hint[0] != '\0');
  }
  struct weft_graph *graph = NULL;
  struct weft_error error = {0};
  const struct weft_edge edge = weft_edge_make(0, 2), other = weft_edge_make(1, 2);
  const char *const twice[] = {"b", NULL, "b"}, *const empty[] = {"b", "", "c"};
  assert_int_equal(
      weft_graph_create(NULL, 3, (struct weft_edge[]){edge, other}, 2, twice, &graph, &error),
      WEFT_ERR_INVALID);
  assert_string_equal(error.message, "stage 2 'b' has the name of stage 0");
  assert_int_equal(
      weft_graph_create(NULL, 3, (struct weft_edge[]){edge, other}, 2, empty, &graph, &error),
      WEFT_ERR_INVALID);
  assert_string_equal(error.message, "the name of stage 1 is empty");
  assert_int_equal(weft_graph_create(NULL, 2, NULL, 1, NULL, &graph, &error), WEFT_ERR_USAGE);
  assert_int_equal(weft_graph_create(NULL, 2, NULL, 0, NULL, NULL, &error), WEFT_ERR_USAGE);
  assert_int_equal(weft_graph_create(NULL, 2, (struct weft_edge[]){{0}}, WEFT_EDGES_MAX + 1, NULL,
                                     &graph, &error),
                   WEFT_ERR_LIMIT);
}

/* The number after each occurrence of `mark`, from the beginning of `text` too. */
static uint32_t read_numbers(const char *text, const char *mark, uint32_t *numbers) {
  uint32_t count = 0;
  for (const char *at = text; at != NULL; at = strstr(at, mark)) {
    at += count > 0 ? strlen(mark) : 0;
    numbers[count++] = (uint32_t)strtoul(at, NULL, 10);
  }
  return count;
}

/* Random edges, some of which go back: either the cycle that is named is one, or the order that is
 * named lets every edge go up. */
static void edges_that_go_back_are_explained(void **state) {
  (void)state;
  enum { STAGES = 7 };
  struct weft_random random = {.state = 99};
  uint32_t cycles = 0, orders = 0;
  for (uint32_t k = 0; k < 20000; k++) {
    struct weft_edge edges[9];
    bool exists[STAGES][STAGES] = {{false}};
    uint32_t count = 0, numbers[16], place[STAGES];
    for (uint32_t e = 0; e < 9; e++) {
      const uint32_t from = weft_random_below(&random, STAGES);
      const uint32_t to = weft_random_below(&random, STAGES);
      if (from != to && !exists[from][to]) {
        exists[from][to] = true;
        edges[count++] = weft_edge_make(from, to);
      }
    }
    struct weft_graph *graph = NULL;
    struct weft_error error = {0};
    if (weft_graph_create(NULL, STAGES, edges, count, NULL, &graph, &error) == WEFT_OK ||
        strstr(error.message, "goes back") == NULL) {
      weft_graph_destroy(graph);
      continue;
    }
    const char *cycle = strstr(error.message, "cycle: stage ");
    const char *order = strstr(error.hint, "in the order ");
    if (cycle != NULL) {
      const uint32_t length = read_numbers(cycle + strlen("cycle: stage "), "> stage ", numbers);
      assert_true(length > 2 && numbers[0] == numbers[length - 1]);
      for (uint32_t n = 0; n + 1 < length; n++) {
        assert_true(exists[numbers[n]][numbers[n + 1]]);
      }
      cycles++;
    } else {
      assert_non_null(order);
      assert_int_equal(read_numbers(order + strlen("in the order "), ", ", numbers), STAGES);
      for (uint32_t n = 0; n < STAGES; n++) {
        place[numbers[n]] = n;
      }
      for (uint32_t e = 0; e < count; e++) {
        assert_true(place[edges[e].from] < place[edges[e].to]);
      }
      orders++;
    }
  }
  assert_true(cycles > 1000 && orders > 1000);
}

static void edges_may_skip_255_stages(void **state) {
  (void)state;
  struct weft_edge edges[300];
  struct weft_graph *graph = NULL;
  uint32_t count = 0;
  for (uint32_t s = 0; s + 1 < 258; s++) {
    edges[count++] = weft_edge_make(s, s + 1);
  }
  edges[count++] = weft_edge_make(1, 257);
  assert_int_equal(weft_graph_create(NULL, 258, edges, count, NULL, &graph, NULL), WEFT_OK);
  assert_int_equal(graph->edges[weft_graph_find(graph, 1, 257)].to, 257);
  assert_false(weft_graph_is_chain(graph));
  weft_graph_destroy(graph);
}

/* A list of a stage's edges against all edges. */
static void check_list(const struct weft_graph *graph, const struct weft_edge_list *list, bool to,
                       bool gradient) {
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    uint32_t at = list->begin[s];
    for (uint32_t e = 0; e < graph->edge_count; e++) {
      const struct weft_edge *edge = &graph->edges[e];
      if ((to ? edge->to : edge->from) == s && (!gradient || edge->gradient)) {
        assert_in_range(at, list->begin[s], list->begin[s + 1] - 1u);
        assert_int_equal(list->edges[at], e); /* ascending, as edges are */
        at++;
      }
    }
    assert_int_equal(at, list->begin[s + 1]);
  }
}

static bool trains(const struct weft_graph *graph, uint32_t stage) {
  bool is_loss = true;
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    if (graph->edges[e].from == stage && graph->edges[e].gradient) {
      return true;
    }
    is_loss = is_loss && graph->edges[e].from != stage;
  }
  return is_loss;
}

static void check_graph(const struct weft_graph *graph) {
  bool chain = graph->edge_count + 1 == graph->stage_count;
  check_list(graph, &graph->in, true, false);
  check_list(graph, &graph->out, false, false);
  check_list(graph, &graph->gradient_in, false, true);
  check_list(graph, &graph->gradient_out, true, true);
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    assert_int_equal(weft_graph_find(graph, edge->from, edge->to), e);
    assert_int_equal(weft_graph_find(graph, edge->to, edge->from), WEFT_EDGE_NONE);
    assert_true(!edge->gradient || trains(graph, edge->to));
    chain = chain && edge->from == e && edge->to == e + 1 && edge->gradient;
  }
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    assert_int_equal(weft_graph_has_backward(graph, s), trains(graph, s));
    assert_int_equal(weft_graph_find(graph, s, s), WEFT_EDGE_NONE);
  }
  assert_int_equal(weft_graph_find(graph, graph->stage_count, 0), WEFT_EDGE_NONE);
  assert_int_equal(weft_graph_is_chain(graph), chain);
  assert_int_equal(weft_graph_equal(graph, NULL), chain);
}

static void random_graphs(void **state) {
  (void)state;
  struct weft_random random = {.state = 2211};
  uint32_t chains = 0, frozen = 0;
  for (uint32_t k = 0; k < GRAPHS; k++) {
    const struct random_graph_shape shape =
        random_graph_shape(&random, 1 + weft_random_below(&random, 20));
    struct weft_graph *graph = random_graph(&random, &shape), *again = NULL;
    check_graph(graph);
    chains += weft_graph_is_chain(graph);
    for (uint32_t s = 0; s < graph->stage_count; s++) {
      frozen += !weft_graph_has_backward(graph, s);
    }
    /* The order in which edges are given does not matter. */
    struct weft_edge *edges = calloc(graph->edge_count + 1u, sizeof *edges);
    assert_non_null(edges);
    for (uint32_t e = 0; e < graph->edge_count; e++) {
      edges[e] = graph->edges[graph->edge_count - 1 - e];
    }
    assert_int_equal(
        weft_graph_create(NULL, graph->stage_count, edges, graph->edge_count, NULL, &again, NULL),
        WEFT_OK);
    assert_true(weft_graph_equal(graph, again) && weft_graph_equal(graph, graph));
    if (graph->edge_count > 0) {
      again->edges[0].gradient = !again->edges[0].gradient;
      assert_false(weft_graph_equal(graph, again));
    }
    free(edges);
    weft_graph_destroy(again);
    weft_graph_destroy(graph);
  }
  assert_true(chains > GRAPHS / 100 && frozen > GRAPHS);
}

static void memory_runs_out_anywhere(void **state) {
  (void)state;
  static const char *const names[] = {"a", "b", "c"};
  static const char text[] = "#graph,0>1,1>2,0>2\n0F0,1F0\n2F0\n";
  struct weft_edge edges[4];
  const uint32_t count = read_edges("0>1,1>2,0>2", edges);
  for (uint32_t kind = 0; kind < 2; kind++) {
    enum weft_status status = WEFT_ERR_MEMORY;
    for (uint64_t fail_at = 1; status == WEFT_ERR_MEMORY; fail_at++) {
      struct test_memory memory;
      struct weft_graph *graph = NULL;
      struct weft_program *program = NULL;
      struct weft_error error = {0};
      test_memory_init(&memory);
      memory.fail_at = fail_at;
      status =
          kind == 0
              ? weft_graph_create(&memory.allocator, 3, edges, count, names, &graph, &error)
              : weft_program_parse(&memory.allocator, text, strlen(text), NULL, &program, &error);
      assert_true((status == WEFT_OK) == (graph != NULL || program != NULL));
      weft_graph_destroy(graph);
      weft_program_destroy(program);
      assert_int_equal(memory.blocks, 0);
      assert_true(fail_at < 100);
    }
    assert_int_equal(status, WEFT_OK);
  }
}

/* --- Programs ------------------------------------------------------------------------ */

static struct weft_program *parsed(const char *text) {
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  if (weft_program_parse(NULL, text, strlen(text), "g.csv", &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

/* A program has the stages of its graph, and holds it. */
static void programs_hold_their_graph(void **state) {
  (void)state;
  struct weft_program *program = parsed("#graph,0>1,0>2\n0F0,1F0\n");
  struct weft_graph *graph = weft_graph_hold(program->graph), *small = NULL;
  struct weft_error error = {0};
  assert_int_equal(program->stage_count, 3);
  const uint64_t hash = weft_program_hash(program);
  assert_int_equal(weft_program_set_graph(program, NULL, &error), WEFT_OK);
  assert_int_equal(program->stage_count, 2);
  assert_true(weft_program_hash(program) != hash);
  assert_int_equal(weft_program_set_graph(program, graph, &error), WEFT_OK);
  assert_int_equal(program->stage_count, 3);
  assert_true(weft_program_hash(program) == hash);
  assert_int_equal(weft_graph_create(NULL, 1, NULL, 0, NULL, &small, &error), WEFT_OK);
  assert_int_equal(weft_program_set_graph(program, small, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "2 stages, and a graph of 1"));
  assert_true(program->graph == graph && program->stage_count == 3);
  weft_program_destroy(program);
  assert_int_equal(graph->edge_count, 2); /* still held here */
  weft_graph_destroy(graph);
  weft_graph_destroy(small);
}

/* Records made in code: a transfer must have its other end within the limits. */
static void transfers_stay_within_the_stages(void **state) {
  (void)state;
  const struct weft_action bad[] = {
      {.op = WEFT_OP_RECV_F, .skip = 2, .stage = 2},
      {.op = WEFT_OP_SEND_B, .skip = 255, .stage = 255},
      {.op = WEFT_OP_SEND_F, .skip = 1, .stage = UINT16_MAX - 1},
  };
  const uint64_t size = 1;
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    assert_int_equal(weft_program_create(NULL, 1, &size, &bad[k], &program, &error),
                     WEFT_ERR_USAGE);
    assert_null(program);
    assert_non_null(strstr(error.message, "skips beyond all stages"));
  }
}

static const struct {
  const char *text, *canonical;
} tolerated[] = {
    {"#graph,0>1,0>2,1>2\n0F0\n", "#graph,0>1,0>2,1>2\n0F0\n"},
    {"#graph,1>2,0>2F,0>1\n0F0\n", "#graph,0>1,0>2F,1>2\n0F0\n"},
    {"\xef\xbb\xbf#graph, 0>1 ,0>2\t\r\n0F0\r\n", "#graph,0>1,0>2\n0F0\n"},
    {"#graph,0>1,0>2,, ,\r\n0F0,1F0,2F0,2B0,1B0\r\n", "#graph,0>1,0>2\n0F0,1F0,2F0,2B0,1B0\n"},
    /* a chain says nothing */
    {"#graph,0>1,1>2\n0F0\n", "0F0\n"},
    {"#graph\n0F0\n", "0F0\n"},
    /* the neighbour may be named */
    {"0SEND_F0>1\n1RECV_F0<0\n", "0SEND_F0\n1RECV_F0\n"},
    {"2SEND_F0>5,5SEND_B0>2\n5RECV_F0<2,2RECV_B0<5\n",
     "2SEND_F0>5,5SEND_B0>2\n5RECV_F0<2,2RECV_B0<5\n"},
    {"0SEND_F3>256\n256RECV_F3<0\n", "0SEND_F3>256\n256RECV_F3<0\n"},
    {"(0SEND_F0>2;1B0)OVERLAP_F_B\n", "(0SEND_F0>2;1B0)OVERLAP_F_B\n"},
    {"#graph,0>1\n\"\"\n", "\"\"\n"},
};

static void tolerated_spellings(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof tolerated / sizeof tolerated[0]; k++) {
    struct weft_program *program = parsed(tolerated[k].text);
    char *text = csv_text(program);
    assert_string_equal(text, tolerated[k].canonical);
    free(text);
    weft_program_destroy(program);
  }
}

static void actions_are_formatted(void **state) {
  (void)state;
  const struct weft_action actions[] = {
      draft_transfer(WEFT_OP_SEND_F, 2, 5, 0), draft_transfer(WEFT_OP_RECV_F, 5, 2, 0),
      draft_transfer(WEFT_OP_SEND_B, 5, 2, 0), draft_transfer(WEFT_OP_RECV_B, 2, 5, 0),
      draft_transfer(WEFT_OP_RECV_B, 2, 3, 7)};
  static const char *const texts[] = {"2SEND_F0>5", "5RECV_F0<2", "5SEND_B0>2", "2RECV_B0<5",
                                      "2RECV_B7"};
  for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
    char buffer[32];
    assert_string_equal(weft_action_format(&actions[k], buffer, sizeof buffer), texts[k]);
  }
}

#define CELL_END "',' or the end of the line"

static const struct {
  const char *text;
  enum weft_status status;
  uint64_t line, column;
  const char *message;
  const char *hint;
} faults[] = {
    {"#graph,0>1,x\n0F0\n", WEFT_ERR_FORMAT, 1, 12, "in cell 'x': expected a stage number", ""},
    {"#graph,0\n0F0\n", WEFT_ERR_FORMAT, 1, 9, "expected '>' and the stage that uses it", "0>2F"},
    {"#graph,0<1\n0F0\n", WEFT_ERR_FORMAT, 1, 9, "expected '>' and the stage that uses it", "0>2F"},
    {"#graph,0>\n0F0\n", WEFT_ERR_FORMAT, 1, 10, "expected a stage number", ""},
    {"#graph,0>1G\n0F0\n", WEFT_ERR_FORMAT, 1, 11, "expected " CELL_END ", found 'G'", "#graph"},
    {"#graph,0>1FF\n0F0\n", WEFT_ERR_FORMAT, 1, 12, "expected " CELL_END ", found 'F'", "#graph"},
    {"#graph,,0>1\n0F0\n", WEFT_ERR_FORMAT, 1, 8, "expected a stage number", ""},
    {"#graph 0>1\n0F0\n", WEFT_ERR_FORMAT, 1, 7, "expected ',' and an edge", "#graph"},
    {"#grape,0>1\n0F0\n", WEFT_ERR_FORMAT, 1, 1, "expected an action, found '#'", "#graph"},
    {"0F0\n#graph,0>1\n", WEFT_ERR_FORMAT, 2, 1, "expected an action, found '#'", ""},
    {"#graph,0>65536\n0F0\n", WEFT_ERR_LIMIT, 1, 10, "a stage number of at most 65535", ""},
    {"#graph,0>257\n0F0\n", WEFT_ERR_LIMIT, 1, 8, "the edge 0>257 skips 256 stages", "stage in"},
    {"#graph,0>1,1>0\n0F0\n", WEFT_ERR_INVALID, 1, 12,
     "the edge 1>0 goes back and closes a cycle: stage 0 > stage 1 > stage 0", "take one"},
    {"#graph,0>2,2>1\n0F0\n", WEFT_ERR_INVALID, 1, 12, "the edge 2>1 goes back", "order 0, 2, 1"},
    {"#graph,0>0\n0F0\n", WEFT_ERR_INVALID, 1, 8, "stage 0 has an edge to itself", "inside"},
    {"#graph,0>1,0>1F\n0F0\n", WEFT_ERR_INVALID, 1, 12, "two edges 0>1", "one edge"},
    {"#graph,0>1,0>3\n0F0\n", WEFT_ERR_INVALID, 1, 1, "stage 2 has no edge", "connect it"},
    {"#graph,0>1,1>2F\n0F0\n", WEFT_ERR_INVALID, 1, 8, "no gradient comes to stage 1", "carry"},
    /* stages beyond the graph */
    {"#graph,0>1\n0F0,2F0\n", WEFT_ERR_FORMAT, 2, 5, "a stage of the row #graph, which has 0 to 1",
     "#graph"},
    {"#graph,0>1\n0SEND_F0>2\n", WEFT_ERR_FORMAT, 2, 10,
     "a stage of the row #graph, which has 0 to 1", "#graph"},
    {"#graph,0>1\nF0_s2\n", WEFT_ERR_FORMAT, 2, 5, "a stage of the row #graph, which has 0 to 1",
     "#graph"},
    /* the other end of a transfer */
    {"2SEND_F0<5\n", WEFT_ERR_FORMAT, 1, 9, "'>' before the stage that a SEND goes to", "2SEND_F"},
    {"5RECV_F0>2\n", WEFT_ERR_FORMAT, 1, 9, "'<' before the stage that a RECV comes", "2SEND_F"},
    {"2SEND_F0>2\n", WEFT_ERR_FORMAT, 1, 10, "a higher stage than its own", "2SEND_F0>5"},
    {"2SEND_F0>1\n", WEFT_ERR_FORMAT, 1, 10, "a higher stage than its own", "2SEND_F0>5"},
    {"2RECV_B0<1\n", WEFT_ERR_FORMAT, 1, 10, "a higher stage than its own", "2RECV_B0<5"},
    {"2RECV_F0<3\n", WEFT_ERR_FORMAT, 1, 10, "a lower stage than its own", "5RECV_F0<2"},
    {"2SEND_B0>3\n", WEFT_ERR_FORMAT, 1, 10, "a lower stage than its own", "5SEND_B0>2"},
    {"2SEND_F0>\n", WEFT_ERR_FORMAT, 1, 10, "a stage number, found the end of the cell", ""},
    {"2SEND_F0>5x\n", WEFT_ERR_FORMAT, 1, 11, "expected " CELL_END, ""},
    {"2SEND_F0>5>6\n", WEFT_ERR_FORMAT, 1, 11, "expected " CELL_END, ""},
    {"0SEND_F0>257\n", WEFT_ERR_LIMIT, 1, 10, "a stage at most 256 from its own", "2SEND_F0>5"},
    {"2F0>3\n", WEFT_ERR_FORMAT, 1, 4, "expected " CELL_END ", found '>'", ""},
    {"2UNSHARD>3\n", WEFT_ERR_FORMAT, 1, 9, "expected " CELL_END ", found '>'", ""},
};

static void exact_places_of_faults(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof faults / sizeof faults[0]; k++) {
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    char place[64];
    const char *text = faults[k].text;
    assert_int_equal(weft_program_parse(NULL, text, strlen(text), "bad.csv", &program, &error),
                     faults[k].status);
    assert_null(program);
    (void)snprintf(place, sizeof place, "bad.csv:%" PRIu64 ":%" PRIu64 ": ", faults[k].line,
                   faults[k].column);
    if (strncmp(error.message, place, strlen(place)) != 0 ||
        strstr(error.message, faults[k].message) == NULL ||
        strstr(error.hint, faults[k].hint) == NULL || error.hint[0] == '\0') {
      fail_msg("expected '%s... %s', hint '%s': %s; %s", place, faults[k].message, faults[k].hint,
               error.message, error.hint);
    }
    assert_int_equal(error.line, faults[k].line);
    assert_int_equal(error.column, faults[k].column);
  }
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  assert_int_equal(weft_program_parse(NULL, "#graph,0>1\n", 11, "bad.csv", &program, &error),
                   WEFT_ERR_FORMAT);
  assert_non_null(strstr(error.message, "empty: expected a row of actions"));
}

static void too_many_edges(void **state) {
  (void)state;
  struct weft_text text = {0};
  struct weft_program *program = NULL;
  struct weft_error error = {0};
  weft_text_add(&text, "#graph");
  for (uint32_t e = 0; e < WEFT_EDGES_MAX + 2; e++) {
    weft_text_add(&text, ",0>1");
  }
  weft_text_add(&text, "\n0F0\n");
  assert_int_equal(weft_program_parse(NULL, text.data, text.size, "bad.csv", &program, &error),
                   WEFT_ERR_LIMIT);
  assert_non_null(strstr(error.message, "at most 1048576 edges"));
  weft_text_finish(&text);
}

/* parse(print(x)) = x, of programs of graphs. */
static void round_trips(void **state) {
  (void)state;
  const struct random_limits limits = {
      .communicate = true, .graph = true, .cells_two = 26, .cells_three = 18};
  struct weft_random random = {.state = 2212};
  struct draft draft = {0};
  uint32_t graphs = 0;
  for (uint32_t k = 0; k < ROUND_TRIPS; k++) {
    bool misordered;
    random_program(&random, &limits, &draft, &misordered);
    struct weft_program *program = draft_build(&draft);
    char *text = csv_text(program);
    struct weft_program *again = parsed(text);
    char *same = csv_text(again);
    assert_true(weft_program_equal(program, again));
    assert_true(weft_program_hash(program) == weft_program_hash(again));
    assert_string_equal(text, same);
    graphs += text[0] == '#';
    free(text);
    free(same);
    weft_program_destroy(program);
    weft_program_destroy(again);
  }
  draft_finish(&draft);
  assert_true(graphs > ROUND_TRIPS / 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wrong_graphs_are_explained),
      cmocka_unit_test(edges_that_go_back_are_explained),
      cmocka_unit_test(edges_may_skip_255_stages),
      cmocka_unit_test(random_graphs),
      cmocka_unit_test(memory_runs_out_anywhere),
      cmocka_unit_test(programs_hold_their_graph),
      cmocka_unit_test(transfers_stay_within_the_stages),
      cmocka_unit_test(tolerated_spellings),
      cmocka_unit_test(actions_are_formatted),
      cmocka_unit_test(exact_places_of_faults),
      cmocka_unit_test(too_many_edges),
      cmocka_unit_test(round_trips),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
