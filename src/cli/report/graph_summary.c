/* What a graph of stages amounts to, as text and as JSON. */
#include "cli/report/graph_summary.h"

#include <assert.h>
#include <inttypes.h>

enum { STAGES_SHOWN = 8, PARTS_SHOWN = 4 };

enum role { ROLE_LOSS, ROLE_FROZEN };

static bool has_role(const struct weft_graph *graph, uint32_t stage, enum role role) {
  return role == ROLE_LOSS ? weft_graph_is_loss(graph, stage, graph->stage_count)
                           : !weft_graph_has_backward(graph, stage);
}

/* ---- Parts ---- */

/* The first stage of each stage's part; NULL for a chain, and without memory: the text has failed
 * then. */
static uint32_t *find_parts(struct weft_arena *arena, const struct weft_graph *graph,
                            struct weft_text *text) {
  if (weft_graph_is_chain(graph)) {
    return NULL;
  }
  uint32_t *first = weft_arena_allocate(arena, graph->stage_count, sizeof *first);
  text->failed = text->failed || first == NULL;
  if (first == NULL) {
    return NULL;
  }
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    first[s] = s;
  }
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    uint32_t a = graph->edges[e].from, b = graph->edges[e].to;
    while (first[a] != a) {
      a = first[a] = first[first[a]];
    }
    while (first[b] != b) {
      b = first[b] = first[first[b]];
    }
    first[a > b ? a : b] = a < b ? a : b;
  }
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    first[s] = first[first[s]]; /* that of an earlier stage is final */
  }
  return first;
}

static uint32_t count_parts(const struct weft_graph *graph, const uint32_t *first) {
  uint32_t count = 0;
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    count += first[s] == s;
  }
  return count;
}

/* ---- Text ---- */

/* A list that is cut after some; `index` counts its stages from 0. */
static void add_listed(struct weft_text *text, const struct weft_graph *graph, uint32_t stage,
                       uint32_t index) {
  if (index < STAGES_SHOWN) {
    weft_text_add(text, index > 0 ? ", " : "");
    weft_graph_add_stage(graph, stage, text);
  }
}

static void add_rest(struct weft_text *text, uint32_t count, uint32_t shown, const char *what) {
  if (count > shown) {
    weft_text_addf(text, " and %" PRIu32 " more%s", count - shown, what);
  }
}

static void add_role(struct weft_text *text, const struct weft_graph *graph, enum role role,
                     const char *one, const char *several) {
  uint32_t count = 0, index = 0;
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    count += has_role(graph, s, role);
  }
  if (count == 0) {
    return;
  }
  weft_text_add(text, count == 1 ? one : several);
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    if (has_role(graph, s, role)) {
      add_listed(text, graph, s, index++);
    }
  }
  add_rest(text, count, STAGES_SHOWN, "");
}

static void add_parts(struct weft_text *text, const struct weft_graph *graph,
                      const uint32_t *first) {
  const uint32_t count = count_parts(graph, first);
  uint32_t part = 0;
  if (count < 2) {
    return;
  }
  weft_text_addf(text, "; %" PRIu32 " parts without an edge between them: ", count);
  for (uint32_t begin = 0; begin < graph->stage_count && part < PARTS_SHOWN; begin++) {
    if (first[begin] != begin) {
      continue;
    }
    uint32_t index = 0;
    weft_text_add(text, part++ > 0 ? " | stages " : "stages ");
    for (uint32_t s = begin; s < graph->stage_count; s++) {
      if (first[s] == begin) {
        add_listed(text, graph, s, index++);
      }
    }
    add_rest(text, index, STAGES_SHOWN, "");
  }
  add_rest(text, count, PARTS_SHOWN, " parts");
}

void weft_cli_graph_text(struct weft_text *text, const char *label,
                         const struct weft_graph *graph) {
  assert(text != NULL && label != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = text->allocator};
  const uint32_t *first = find_parts(&arena, graph, text);
  if (first != NULL) {
    weft_text_add(text, label);
    add_role(text, graph, ROLE_LOSS, "loss in stage ", "losses in stages ");
    add_role(text, graph, ROLE_FROZEN, "; frozen: stage ", "; frozen: stages ");
    add_parts(text, graph, first);
    weft_text_add(text, "\n");
  }
}

/* ---- JSON ---- */

static void add_json_role(struct weft_json *json, const char *key, const struct weft_graph *graph,
                          enum role role) {
  weft_json_open(json, key, '[');
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    if (has_role(graph, s, role)) {
      weft_json_open(json, NULL, '{');
      weft_json_number(json, "stage", s);
      if (weft_graph_name(graph, s) != NULL) {
        weft_json_string(json, "name", graph->names[s]);
      }
      weft_json_close(json, '}');
    }
  }
  weft_json_close(json, ']');
}

void weft_cli_graph_json(struct weft_json *json, const struct weft_graph *graph) {
  assert(json != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = json->text->allocator};
  const uint32_t *first = find_parts(&arena, graph, json->text);
  if (first == NULL) {
    return;
  }
  weft_json_open(json, "graph_summary", '{');
  add_json_role(json, "losses", graph, ROLE_LOSS);
  add_json_role(json, "frozen", graph, ROLE_FROZEN);
  weft_json_number(json, "parts", count_parts(graph, first));
  weft_json_close(json, '}');
}
