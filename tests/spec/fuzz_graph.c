/* Fuzzes the graph file. Beyond not crashing, what must hold:
 *   - a failing call leaves its output alone, explains itself in printable text,
 *     and names a place inside of the text;
 *   - what was read is a graph that can be made in code, and prints to text that reads back. */
#include <weft/support.h>
#include <weft/weft.h>

#include "support_fuzz.h"

/* Larger inputs only make it slower, not wiser. */
#define SIZE_MAX_FUZZED 4096u

static void check_graph(const struct weft_graph *graph) {
  struct weft_graph *again = NULL;
  struct weft_error error = {0};
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    fuzz_require(weft_graph_find(graph, edge->from, edge->to) == e, "an edge that is not found");
    fuzz_require(!edge->gradient || weft_graph_has_backward(graph, edge->to),
                 "a gradient of nobody");
  }
  fuzz_require(weft_graph_create(NULL, graph->stage_count, graph->edges, graph->edge_count,
                                 graph->names, &again, &error) == WEFT_OK,
               "read, but not right");
  fuzz_require(weft_graph_equal(graph, again), "made another one");
  weft_graph_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct weft_graph *graph = NULL, *again = NULL;
  struct weft_error error = {0};
  if (size > SIZE_MAX_FUZZED) {
    return 0;
  }
  const enum weft_status status =
      weft_graph_parse(NULL, (const char *)data, size, "fuzz", &graph, &error);
  if (status != WEFT_OK) {
    fuzz_require(graph == NULL, "a failing call wrote its output");
    fuzz_require(error.status == status, "the error carries another status");
    fuzz_require(error.status == WEFT_ERR_FORMAT || error.status == WEFT_ERR_INVALID ||
                     error.status == WEFT_ERR_LIMIT,
                 "a status that text cannot have");
    fuzz_check_error(&error, data, size);
    return 0;
  }
  check_graph(graph);
  struct weft_text text = {0};
  struct weft_json json = {.text = &text};
  weft_graph_print(graph, &json, NULL);
  fuzz_require(weft_graph_parse(NULL, text.data, text.size, "again", &again, &error) == WEFT_OK,
               "what was printed does not read");
  fuzz_require(weft_graph_equal(graph, again) && (graph->names == NULL) == (again->names == NULL),
               "what was printed reads as another graph");
  weft_text_finish(&text);
  weft_graph_destroy(again);
  weft_graph_destroy(graph);
  return 0;
}
