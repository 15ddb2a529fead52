/* The HTML timeline's page and data: one page, nothing from the network, nothing
 * from a name that acts; and the data, read back, is the simulation. What the
 * page makes of it is tests/browser/browser.bats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <weft/weft.h>

#include "support_csv.h"
#include "support_memory.h"

#define NO_ERROR_TEXT "no error"

static struct weft_program *lowered(const char *name, uint32_t p, uint32_t v, uint32_t m) {
  const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
  struct weft_error error = {.message = NO_ERROR_TEXT};
  struct weft_program *table = NULL, *program = NULL;
  if (weft_generate(NULL, name, &shape, &table, &error) < 0 ||
      weft_lower(NULL, table, NULL, &program, &error) < 0) {
    fail_msg("%s: %s", name, error.message);
  }
  weft_program_destroy(table);
  return program;
}

static struct weft_costs *slow_transfers(void) {
  struct weft_costs *costs = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  costs->stages[0].unshard = 0.75;
  costs->stages[0].reduce_grad = 2;
  costs->stages[0].activation_after_i = 0.5;
  costs->hop = (struct weft_hop_costs){.latency = 0.25, .bytes = 3, .bytes_per_unit = 2};
  (void)snprintf(costs->unit, sizeof costs->unit, "ms");
  return costs;
}

static struct weft_simulation *simulation_of(const struct weft_program *program,
                                             const struct weft_costs *costs) {
  struct weft_simulation *simulation = NULL;
  struct weft_error error = {.message = NO_ERROR_TEXT};
  if (weft_simulate(NULL, program, costs, NULL, &simulation, &error) < 0) {
    fail_msg("%s", error.message);
  }
  return simulation;
}

static struct weft_text page_of(const struct weft_picture *pictures, size_t count) {
  struct weft_text text = {0};
  struct weft_error error = {.message = NO_ERROR_TEXT};
  if (weft_render_html(pictures, count, NULL, &text, &error) < 0) {
    fail_msg("%s", error.message);
  }
  return text;
}

/* ---- The page ---- */

static size_t occurrences(const char *text, const char *part) {
  size_t count = 0;
  for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) {
    count++;
  }
  return count;
}

static const char opening[] = "<script type=\"application/json\" id=\"weft-data\">";

/* The data's text, on the heap. */
static char *data_text(const char *page) {
  const char *begin = strstr(page, opening);
  assert_non_null(begin);
  begin += strlen(opening);
  const char *end = strstr(begin, "</script>");
  assert_non_null(end);
  char *copy = strndup(begin, (size_t)(end - begin));
  assert_non_null(copy);
  return copy;
}

static json_t *data_of(const char *page) {
  char *text = data_text(page);
  json_error_t error;
  json_t *data = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  if (data == NULL) {
    fail_msg("%s at %d", error.text, error.position);
  }
  free(text);
  return data;
}

static const json_t *picture_at(const json_t *data, size_t index) {
  return json_array_get(json_object_get(data, "pictures"), index);
}

static void test_one_page_and_no_network(void **state) {
  (void)state;
  struct weft_program *program = lowered("1F1B", 2, 1, 3);
  struct weft_costs *costs = slow_transfers();
  struct weft_simulation *simulation = simulation_of(program, costs);
  struct weft_text page = page_of(&(struct weft_picture){"x.csv", simulation, costs, NULL}, 1);
  assert_int_equal(page.size, strlen(page.data));
  assert_memory_equal(page.data, "<!doctype html>\n", 16);
  assert_string_equal(page.data + page.size - 8, "</html>\n");
  assert_int_equal(occurrences(page.data, "<script"), 3); /* data, code, and codec.js names one */
  assert_int_equal(occurrences(page.data, "</script>"), 2);
  assert_int_equal(occurrences(page.data, "<style>"), 1);
  assert_int_equal(occurrences(page.data, "default-src 'none'; script-src 'sha256-"), 1);
  static const char *const never[] = {"http:",
                                      "https:",
                                      "@import",
                                      "url(",
                                      " src=",
                                      "eval(",
                                      "innerHTML",
                                      "@DATA@",
                                      "@SCRIPT@",
                                      "@STYLE",
                                      "insertAdjacentHTML",
                                      "document.write",
                                      "unsafe-inline"};
  for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
    if (strstr(page.data, never[i]) != NULL) {
      fail_msg("the page has %s", never[i]);
    }
  }
  weft_text_finish(&page);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- The stream, read with code of its own ---- */

struct stream {
  unsigned char *bytes;
  size_t size;
  size_t at;
};

static struct stream stream_of(const json_t *picture) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *text = json_string_value(json_object_get(picture, "data"));
  assert_non_null(text);
  assert_int_equal(strlen(text) % 4, 0);
  struct stream stream = {.bytes = malloc(strlen(text) + 1)};
  assert_non_null(stream.bytes);
  uint32_t bits = 0;
  unsigned held = 0;
  for (; *text != '\0' && *text != '='; text++) {
    const char *digit = strchr(digits, *text);
    assert_non_null(digit);
    bits = bits << 6 | (uint32_t)(digit - digits);
    held += 6;
    if (held >= 8) {
      held -= 8;
      stream.bytes[stream.size++] = (unsigned char)(bits >> held);
    }
  }
  return stream;
}

static unsigned char take_byte(struct stream *stream) {
  assert_true(stream->at < stream->size);
  return stream->bytes[stream->at++];
}

static uint64_t take_number(struct stream *stream) {
  uint64_t number = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const unsigned char byte = take_byte(stream);
    number |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) {
      return number;
    }
  }
  fail_msg("a number of more than 64 bits");
  return 0;
}

static int64_t take_signed(struct stream *stream) {
  const uint64_t number = take_number(stream);
  return number % 2 == 0 ? (int64_t)(number / 2) : -(int64_t)(number / 2) - 1;
}

static double take_real(struct stream *stream) {
  unsigned char bytes[8];
  double real;
  for (unsigned i = 0; i < 8; i++) {
    bytes[i] = take_byte(stream);
  }
  memcpy(&real, bytes, sizeof real); /* the test machines are little-endian */
  return real;
}

static void expect_real(struct stream *stream, double expected) {
  const double found = take_real(stream);
  assert_memory_equal(&found, &expected, sizeof found);
}

static int64_t earliest_of(const struct weft_simulation *simulation) {
  int64_t earliest = simulation->event_count > 0 ? INT64_MAX : 0;
  for (uint64_t i = 0; i < simulation->event_count; i++) {
    const int64_t begin = simulation->events[i].begin;
    earliest = begin < earliest ? begin : earliest;
  }
  return earliest;
}

static void expect_totals(struct stream *stream, const struct weft_simulation *simulation,
                          double hop) {
  assert_int_equal(take_number(stream), simulation->program->rank_count);
  assert_int_equal(take_number(stream), simulation->program->stage_count);
  assert_int_equal(take_number(stream), simulation->program->microbatch_count);
  expect_real(stream, simulation->ticks_per_unit);
  expect_real(stream, simulation->makespan);
  expect_real(stream, simulation->span);
  expect_real(stream, simulation->bubble_ratio);
  expect_real(stream, simulation->span_bubble_ratio);
  expect_real(stream, simulation->peak_activation);
  expect_real(stream, hop);
  for (uint32_t r = 0; r < simulation->program->rank_count; r++) {
    const struct weft_rank_times *times = &simulation->ranks[r];
    expect_real(stream, times->busy);
    expect_real(stream, times->idle);
    expect_real(stream, times->first_start);
    expect_real(stream, times->last_end);
    expect_real(stream, times->span);
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      expect_real(stream, times->idle_by_cause[cause]);
    }
    expect_real(stream, times->peak_activation);
    expect_real(stream, times->peak_memory);
    expect_real(stream, times->peak_at);
    assert_int_equal(take_number(stream), times->receive_buffers_peak);
  }
}

/* From the end of what makes an input to its arrival: in a table with a graph, else 0. */
static void expect_travel(struct stream *stream, const struct weft_simulation *simulation,
                          uint64_t event, uint64_t other) {
  const struct weft_program *program = simulation->program;
  const struct weft_action here = program->actions[simulation->events[event].record];
  const struct weft_action there = program->actions[simulation->events[other].record];
  int64_t travel = 0;
  if (simulation->arrivals != NULL && here.stage != there.stage) {
    const bool forward = here.op == WEFT_OP_F;
    const uint32_t edge = forward ? weft_graph_find(program->graph, there.stage, here.stage)
                                  : weft_graph_find(program->graph, here.stage, there.stage);
    assert_int_not_equal(edge, WEFT_EDGE_NONE);
    travel =
        simulation->arrivals[(2 * edge + !forward) * program->microbatch_count + here.microbatch] -
        simulation->events[other].end;
  }
  assert_int_equal(take_number(stream), travel);
}

/* The links are the records that weft_links_needs() gives, and a RECV's SEND. */
static void expect_links(struct stream *stream, const struct weft_simulation *simulation,
                         const struct weft_links *links, uint64_t event, uint64_t count) {
  uint64_t needs[WEFT_NEEDS_MAX + 1];
  const uint32_t record = simulation->events[event].record;
  const uint8_t op = simulation->program->actions[record].op;
  unsigned expected = weft_links_needs(links, record, needs);
  if ((op == WEFT_OP_RECV_F || op == WEFT_OP_RECV_B) &&
      weft_links_peer(links, record) != WEFT_MATCH_NONE) {
    needs[expected++] = weft_links_peer(links, record);
  }
  assert_int_equal(count, expected);
  for (unsigned i = 0; i < count; i++) {
    const int64_t other = (int64_t)event + take_signed(stream);
    assert_in_range(other, 0, simulation->event_count - 1);
    assert_int_equal(simulation->events[other].record, needs[i]);
    if (simulation->program->graph != NULL) {
      expect_travel(stream, simulation, event, (uint64_t)other);
    }
  }
}

static void expect_event(struct stream *stream, const struct weft_simulation *simulation,
                         const struct weft_links *links, uint64_t number, int64_t *begin) {
  const struct weft_event *event = &simulation->events[number];
  const struct weft_action action = simulation->program->actions[event->record];
  const unsigned char head = take_byte(stream);
  const uint64_t link_count = (head >> 4) + (head >> 4 == 15 ? take_number(stream) : 0u);
  const bool transfer = action.op >= WEFT_OP_SEND_F && action.op <= WEFT_OP_RECV_B;
  assert_int_equal(head & 15, action.op);
  assert_int_equal(take_number(stream),
                   action.op == WEFT_OP_OVERLAP_F_B ? action.parts : action.stage);
  if (transfer && simulation->program->graph != NULL) {
    assert_int_equal(take_number(stream), action.skip);
  }
  assert_int_equal(take_number(stream), action.microbatch);
  *begin += take_signed(stream);
  assert_int_equal(*begin, event->begin);
  assert_int_equal(take_number(stream), event->end - event->begin);
  expect_links(stream, simulation, links, number, link_count);
}

static void expect_events(struct stream *stream, const struct weft_simulation *simulation) {
  struct weft_links *links = NULL;
  struct weft_error error;
  assert_int_equal(weft_links_create(NULL, simulation->program, &links, &error), WEFT_OK);
  assert_int_equal(take_number(stream), simulation->event_count);
  for (uint32_t r = 0; r < simulation->program->rank_count; r++) {
    int64_t begin = earliest_of(simulation);
    assert_int_equal(take_number(stream),
                     simulation->event_begin[r + 1] - simulation->event_begin[r]);
    for (uint64_t i = simulation->event_begin[r]; i < simulation->event_begin[r + 1]; i++) {
      expect_event(stream, simulation, links, i, &begin);
    }
  }
  weft_links_destroy(links);
}

static void expect_curve(struct stream *stream, const struct weft_picture *picture, uint32_t rank) {
  struct weft_memory_point points[4096];
  const size_t room = sizeof points / sizeof points[0];
  uint64_t count = 0, at = 0;
  if (picture->costs != NULL) {
    weft_memory_curve(picture->simulation, picture->costs, rank, points, room, &count);
  }
  assert_in_range(count, 0, room);
  assert_int_equal(take_number(stream), count);
  for (uint64_t i = 0; i < count; i++) {
    at += take_number(stream);
    assert_true((double)at == points[i].at * picture->simulation->ticks_per_unit);
    expect_real(stream, points[i].size);
  }
}

static void expect_path(struct stream *stream, const struct weft_simulation *simulation) {
  uint64_t path[4096], count = 0, event = 0;
  const size_t room = sizeof path / sizeof path[0];
  struct weft_error error;
  assert_int_equal(weft_critical_path(NULL, simulation, path, room, &count, &error), WEFT_OK);
  assert_in_range(count, 0, room);
  assert_int_equal(take_number(stream), count);
  for (uint64_t i = 0; i < count; i++) {
    event += (uint64_t)take_signed(stream);
    assert_int_equal(event, path[i]);
  }
}

static void expect_picture(const json_t *data, size_t index, const struct weft_picture *picture,
                           double hop) {
  const json_t *read = picture_at(data, index);
  const uint32_t stages = picture->simulation->program->stage_count;
  assert_string_equal(json_string_value(json_object_get(read, "name")), picture->name);
  assert_string_equal(json_string_value(json_object_get(read, "unit")),
                      picture->costs != NULL ? picture->costs->unit : "");
  assert_int_equal(json_string_length(json_object_get(read, "stageLight")),
                   24 * (stages < 256 ? stages : 256));
  assert_int_equal(json_string_length(json_object_get(read, "stageDark")),
                   24 * (stages < 256 ? stages : 256));
  struct stream stream = stream_of(read);
  expect_totals(&stream, picture->simulation, hop);
  expect_events(&stream, picture->simulation);
  for (uint32_t r = 0; r < picture->simulation->program->rank_count; r++) {
    expect_curve(&stream, picture, r);
  }
  expect_path(&stream, picture->simulation);
  assert_int_equal(stream.at, stream.size);
  free(stream.bytes);
}

static void test_data_is_the_simulation(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint32_t p, v, m;
  } shapes[] = {{"GPipe", 1, 1, 1},         {"1F1B", 4, 1, 8},       {"Interleaved1F1B", 4, 2, 8},
                {"ZBVZeroBubble", 4, 2, 8}, {"DualPipeV", 4, 2, 10}, {"LoopedBFS", 3, 100, 6}};
  struct weft_costs *costs = slow_transfers();
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    struct weft_program *program = lowered(shapes[i].name, shapes[i].p, shapes[i].v, shapes[i].m);
    struct weft_simulation *simulation = simulation_of(program, costs);
    const struct weft_picture pictures[] = {{shapes[i].name, simulation, costs, NULL},
                                            {"without costs", simulation, NULL, NULL}};
    struct weft_text page = page_of(pictures, 2);
    json_t *data = data_of(page.data);
    assert_string_equal(json_string_value(json_object_get(data, "schema")), "weft-timeline/1");
    assert_int_equal(json_array_size(json_object_get(data, "pictures")), 2);
    expect_picture(data, 0, &pictures[0], 1.75);
    expect_picture(data, 1, &pictures[1], 0);
    json_decref(data);
    weft_text_finish(&page);
    weft_simulation_destroy(simulation);
    weft_program_destroy(program);
  }
  weft_costs_destroy(costs);
}

/* A table, and the program that it becomes. */
static void expect_graph(const struct weft_program *table, struct weft_costs *costs) {
  const struct weft_lower_options options = {.communicate = true, .unshard_window = 1};
  struct weft_program *program = NULL;
  struct weft_error error;
  assert_int_equal(weft_lower(NULL, table, &options, &program, &error), WEFT_OK);
  struct weft_simulation *simulations[] = {simulation_of(table, costs),
                                           simulation_of(program, costs)};
  const struct weft_picture pictures[] = {{"table", simulations[0], costs, NULL},
                                          {"program", simulations[1], costs, NULL}};
  struct weft_text page = page_of(pictures, 2);
  char *text = data_text(page.data);
  assert_null(strpbrk(text, "<>&'"));
  free(text);
  json_t *data = data_of(page.data);
  for (size_t i = 0; i < 2; i++) {
    const json_t *edges = json_object_get(picture_at(data, i), "edges");
    expect_picture(data, i, &pictures[i], 1.75);
    assert_int_equal(json_array_size(edges), table->graph->edge_count);
    weft_simulation_destroy(simulations[i]);
  }
  json_decref(data);
  weft_text_finish(&page);
  weft_program_destroy(program);
}

static void test_graphs_name_their_edges(void **state) {
  (void)state;
  struct weft_costs *costs = slow_transfers();
  struct weft_program *table = csv_program(
      "#graph,0>1,0>3,1>2,2>3\n0F0,0F1,0B0,0B1\n1F0,1F1,2F0,2F1,2B0,1B0,2B1,1B1\n"
      "3F0,3B0,3F1,3B1\n");
  expect_graph(table, costs);
  weft_program_destroy(table);
  /* Twenty stages feed the last one: more links than a byte has room for. */
  struct weft_edge edges[20];
  struct weft_graph *graph = NULL;
  struct weft_error error;
  struct weft_text csv = {0};
  for (uint32_t s = 0; s < 20; s++) {
    edges[s] = weft_edge_make(s, 20);
    weft_text_addf(&csv, "%uF0,%uB0\n", s, s);
  }
  weft_text_add(&csv, "20F0,20B0\n");
  table = csv_program(csv.data);
  assert_int_equal(weft_graph_create(NULL, 21, edges, 20, NULL, &graph, &error), WEFT_OK);
  assert_int_equal(weft_program_set_graph(table, graph, &error), WEFT_OK);
  expect_graph(table, costs);
  weft_text_finish(&csv);
  weft_graph_destroy(graph);
  weft_program_destroy(table);
  weft_costs_destroy(costs);
}

/* Times that do not begin at 0, as a measured timeline's: far away, and before. */
static void test_times_from_anywhere(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0F0,0B0\n1F0,1B0\n");
  struct weft_event events[] = {{0, 0, INT64_C(1) << 61, (INT64_C(1) << 61) + 5},
                                {0, 1, -7, INT64_C(1) << 40},
                                {1, 2, INT64_MIN / 4, -1},
                                {1, 3, 0, 0}};
  struct weft_rank_times times[2] = {{.busy = 1}, {.idle = 2}};
  const struct weft_simulation simulation = {.program = program,
                                             .ticks_per_unit = 1e9,
                                             .ranks = times,
                                             .events = events,
                                             .event_count = 4,
                                             .event_begin = (const uint64_t[]){0, 2, 4}};
  const struct weft_picture picture = {"measured", &simulation, NULL, NULL};
  struct weft_text page = page_of(&picture, 1);
  json_t *data = data_of(page.data);
  expect_picture(data, 0, &picture, 0);
  json_decref(data);
  weft_text_finish(&page);
  weft_program_destroy(program);
}

/* ---- Names ---- */

static void expect_name(const char *name, const char *shown) {
  struct weft_program *program = csv_program("0F0\n");
  struct weft_costs *costs = slow_transfers();
  struct weft_simulation *simulation = simulation_of(program, costs);
  (void)snprintf(costs->unit, sizeof costs->unit, "</script>");
  struct weft_text page = page_of(&(struct weft_picture){name, simulation, costs, NULL}, 1);
  char *text = data_text(page.data);
  assert_null(strpbrk(text, "<>&'")); /* nothing that HTML would take for its own */
  assert_null(strstr(text, "\xe2\x80\xa8"));
  free(text);
  json_t *data = data_of(page.data);
  assert_string_equal(json_string_value(json_object_get(picture_at(data, 0), "name")), shown);
  assert_string_equal(json_string_value(json_object_get(picture_at(data, 0), "unit")), "</script>");
  json_decref(data);
  weft_text_finish(&page);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

static void test_names_are_escaped(void **state) {
  (void)state;
  expect_name("</script><img src=x onerror=alert(1)>", "</script><img src=x onerror=alert(1)>");
  expect_name("<!--<script>", "<!--<script>");
  expect_name("a\"b\\c&d'e", "a\"b\\c&d'e");
  expect_name("line\xe2\x80\xa8par\xe2\x80\xa9 \xe2\x80\xa7 \xe2\x82\xac",
              "line\\xe2\\x80\\xa8par\\xe2\\x80\\xa9 \xe2\x80\xa7 \xe2\x82\xac");
  expect_name("tab\tnew\nline\x1b[31m\x7f", "tab\\x09new\\x0aline\\x1b[31m\\x7f");
  expect_name("bad \xff\xfe \xe2\x80", "bad \\xff\\xfe \\xe2\\x80");
  expect_name("\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80");
  expect_name("", "");
  expect_name(NULL, "");
}

static void test_options(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0F0\n");
  struct weft_costs *costs = slow_transfers();
  struct weft_simulation *simulation = simulation_of(program, costs);
  struct weft_render_options options = weft_render_options_default();
  const struct weft_picture picture = {"x", simulation, costs, NULL};
  for (int by = WEFT_COLOUR_BY_OP; by <= WEFT_COLOUR_BY_STAGE; by++) {
    struct weft_text text = {0};
    struct weft_error error;
    options.colour_by = (enum weft_colour_by)by;
    assert_int_equal(weft_render_html(&picture, 1, &options, &text, &error), WEFT_OK);
    json_t *data = data_of(text.data);
    assert_string_equal(json_string_value(json_object_get(data, "colourBy")),
                        by == WEFT_COLOUR_BY_STAGE ? "stage" : "op");
    json_decref(data);
    weft_text_finish(&text);
  }
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- Refusals, memory ---- */

static void test_refusals(void **state) {
  (void)state;
  struct weft_text text = {0};
  struct weft_error error;
  assert_int_equal(weft_render_html(NULL, 0, NULL, &text, &error), WEFT_ERR_USAGE);
  const struct weft_simulation huge = {.event_count = UINT64_C(6000000)};
  const struct weft_picture pictures[] = {{"a", &huge, NULL, NULL}, {"b", &huge, NULL, NULL}};
  assert_int_equal(weft_render_html(pictures, 2, NULL, &text, &error), WEFT_ERR_LIMIT);
  assert_string_equal(error.message,
                      "a page of 12000000 events would not open; the most is 10000000");
  assert_int_equal(text.size, 0);
  weft_text_finish(&text);
}

static void test_empty_program(void **state) {
  (void)state;
  struct weft_program *program = csv_program("\"\"\n\"\"\n");
  struct weft_costs *costs = slow_transfers();
  struct weft_simulation *simulation = simulation_of(program, costs);
  const struct weft_picture picture = {"empty", simulation, costs, NULL};
  struct weft_text page = page_of(&picture, 1);
  json_t *data = data_of(page.data);
  expect_picture(data, 0, &picture, 1.75);
  json_decref(data);
  weft_text_finish(&page);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

static void test_failing_memory(void **state) {
  (void)state;
  struct weft_program *program = lowered("ZBVZeroBubble", 2, 2, 4);
  struct weft_costs *costs = slow_transfers();
  struct weft_simulation *simulation = simulation_of(program, costs);
  const struct weft_picture pictures[] = {{"a", simulation, costs, NULL},
                                          {"b", simulation, costs, NULL}};
  struct weft_text whole = page_of(pictures, 2);
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t n = 1; status != WEFT_OK; n++) {
    struct test_memory memory;
    test_memory_init(&memory);
    memory.fail_at = n;
    struct weft_text text = {.allocator = &memory.allocator};
    struct weft_error error = {.message = NO_ERROR_TEXT};
    status = weft_render_html(pictures, 2, NULL, &text, &error);
    if (status == WEFT_OK) {
      assert_true(n > 10);
      assert_string_equal(text.data, whole.data);
    } else {
      assert_int_equal(status, WEFT_ERR_MEMORY);
      assert_int_equal(error.status, WEFT_ERR_MEMORY);
    }
    weft_text_finish(&text);
    assert_int_equal(memory.blocks, 0);
  }
  weft_text_finish(&whole);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* 64 ranks, 256 microbatches: a page that can be sent around. */
static void test_size_of_large_page(void **state) {
  (void)state;
  struct weft_program *program = lowered("Interleaved1F1B", 64, 2, 256);
  struct weft_costs *costs = slow_transfers();
  struct weft_simulation *simulation = simulation_of(program, costs);
  struct weft_text page = page_of(&(struct weft_picture){"large", simulation, costs, NULL}, 1);
  assert_in_range(simulation->event_count, 190000, 300000);
  assert_in_range(page.size, 1, 15 * 1000 * 1000);
  weft_text_finish(&page);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_page_and_no_network),
      cmocka_unit_test(test_data_is_the_simulation),
      cmocka_unit_test(test_graphs_name_their_edges),
      cmocka_unit_test(test_times_from_anywhere),
      cmocka_unit_test(test_names_are_escaped),
      cmocka_unit_test(test_options),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_empty_program),
      cmocka_unit_test(test_failing_memory),
      cmocka_unit_test(test_size_of_large_page),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
