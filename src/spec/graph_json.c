/* The graph file: JSON to struct weft_graph, strictly. Stages are named by number or by name. */
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/spec.h>
#include <weft/support.h>

#include "ir/graph_maker.h"
#include "spec/json_document.h"

#define SCHEMA "weft-graph/1"
#define TEXT_BYTES_MAX ((size_t)64 << 20)
#define COMMAS_MAX (WEFT_EDGES_MAX * UINT32_C(8))

#define HINT_EXAMPLE                                                                    \
  "for example: {\"schema\": \"weft-graph/1\", \"stages\": [\"encoder\", \"decoder\", " \
  "\"head\"], \"edges\": [{\"from\": \"encoder\", \"to\": \"decoder\"}, {\"from\": 1, " \
  "\"to\": 2}, {\"from\": 0, \"to\": 2, \"gradient\": false}]}"
#define HINT_STAGE "a stage is its number, counted from 0, or its name in the list 'stages'"
#define HINT_BYTES "sizes are numbers from 0 to 1e12"

struct graph_reader {
  struct weft_json_document document;
  struct weft_arena arena;
  uint32_t stage_count;
  uint32_t edge_count;
  uint64_t edges_at;              /* which member of the document they are */
  const char **names;             /* [stage_count] NULL where a stage has none */
  struct weft_stage_name *sorted; /* [name_count] */
  uint32_t name_count;
  struct weft_edge *edges;
};

static enum weft_status unexpected(const struct graph_reader *reader, const char *hint,
                                   const char *expected) {
  return weft_json_document_unexpected(&reader->document, hint, expected);
}

static enum weft_status require(const struct graph_reader *reader, const json_t *object,
                                const char *key, const char *expected) {
  return weft_json_document_require(&reader->document, object, HINT_EXAMPLE, key, expected);
}

/* A whole number from 0 on. */
static bool is_number(const json_t *value, uint32_t most) {
  const double number = json_real_value(value);
  return json_is_real(value) && number >= 0 && number <= most && number == (double)(uint32_t)number;
}

/* ---- Stages ---- */

static enum weft_status read_name(struct graph_reader *reader, const json_t *value,
                                  uint32_t stage) {
  const char *name = json_string_value(value);
  if (json_is_null(value)) {
    return WEFT_OK;
  }
  if (name == NULL || name[0] == '\0') {
    return unexpected(reader, HINT_EXAMPLE, "a name, or null");
  }
  reader->names[stage] = name;
  return WEFT_OK;
}

static const struct weft_stage_name *find_name(const struct graph_reader *reader,
                                               const char *text) {
  return weft_stage_names_find(reader->sorted, reader->name_count, text);
}

/* A list of names, or a number of stages without names. */
static enum weft_status read_stages(void *of, json_t *value, void *into) {
  struct graph_reader *reader = of;
  (void)into;
  if (is_number(value, WEFT_STAGES_MAX) && json_real_value(value) > 0) {
    reader->stage_count = (uint32_t)json_real_value(value);
    return WEFT_OK;
  }
  WEFT_TRY(weft_json_document_check_list(&reader->document, value,
                                         "a list of names, or the number of stages from 1 to 65536",
                                         WEFT_STAGES_MAX, HINT_EXAMPLE));
  reader->stage_count = (uint32_t)json_array_size(value);
  reader->names = weft_arena_allocate(&reader->arena, reader->stage_count, sizeof *reader->names);
  reader->sorted = weft_arena_allocate(&reader->arena, reader->stage_count, sizeof *reader->sorted);
  WEFT_TRY(weft_arena_status(&reader->arena, reader->document.error));
  uint64_t *ordinal = weft_json_document_enter(&reader->document);
  for (; *ordinal < reader->stage_count; ++*ordinal) {
    WEFT_TRY(read_name(reader, json_array_get(value, (size_t)*ordinal), (uint32_t)*ordinal));
  }
  uint32_t again;
  reader->name_count = weft_stage_names_sort((const char *const *)reader->names,
                                             reader->stage_count, reader->sorted, &again);
  if (again != UINT32_MAX) {
    *ordinal = again;
    return weft_json_document_fail(
        &reader->document, NULL, WEFT_ERR_FORMAT, "give every stage a name of its own",
        "stage %" PRIu32 " has this name already", find_name(reader, reader->names[again])->stage);
  }
  weft_json_document_leave(&reader->document);
  return WEFT_OK;
}

/* ---- Edges ---- */

static enum weft_status read_stage(void *of, json_t *value, void *into) {
  const struct graph_reader *reader = of;
  uint16_t *stage = into;
  const char *text = json_string_value(value);
  const struct weft_stage_name *name = text != NULL ? find_name(reader, text) : NULL;
  if (is_number(value, reader->stage_count - 1)) {
    *stage = (uint16_t)json_real_value(value);
    return WEFT_OK;
  }
  if (name == NULL) {
    return unexpected(reader, HINT_STAGE, "a stage of the list 'stages'");
  }
  *stage = (uint16_t)name->stage;
  return WEFT_OK;
}

static enum weft_status read_bytes(void *reader, json_t *value, void *into) {
  const double size = json_real_value(value);
  if (!json_is_real(value) || size < 0 || size > WEFT_EDGE_BYTES_MAX) {
    return unexpected(reader, HINT_BYTES, "a size from 0 to 1e12");
  }
  *(double *)into = size;
  return WEFT_OK;
}

static enum weft_status read_gradient(void *reader, json_t *value, void *into) {
  if (!json_is_boolean(value)) {
    return unexpected(reader, HINT_EXAMPLE, "true or false");
  }
  *(bool *)into = json_is_true(value);
  return WEFT_OK;
}

static enum weft_status read_edge(struct graph_reader *reader, json_t *object,
                                  struct weft_edge *edge) {
  static const struct weft_json_member members[] = {
      {"from", read_stage, offsetof(struct weft_edge, from)},
      {"to", read_stage, offsetof(struct weft_edge, to)},
      {"gradient", read_gradient, offsetof(struct weft_edge, gradient)},
      {"bytes", read_bytes, offsetof(struct weft_edge, bytes)},
      {"gradient_bytes", read_bytes, offsetof(struct weft_edge, gradient_bytes)},
      {NULL, NULL, 0}};
  if (!json_is_object(object)) {
    return unexpected(reader, HINT_EXAMPLE, "an object with 'from' and 'to'");
  }
  WEFT_TRY(require(reader, object, "from", "the stage that the edge comes from"));
  WEFT_TRY(require(reader, object, "to", "the stage that it goes to"));
  *edge = weft_edge_make(0, 0);
  WEFT_TRY(weft_json_document_read(reader, object, members, edge));
  if (edge->gradient_bytes < 0) {
    edge->gradient_bytes = edge->bytes;
  }
  return WEFT_OK;
}

static enum weft_status read_edges(void *of, json_t *list, void *into) {
  struct graph_reader *reader = of;
  const size_t count = json_array_size(list);
  (void)into;
  reader->edges_at = reader->document.path.ordinals[0];
  if (!json_is_array(list) || count > 0) { /* there may be none */
    WEFT_TRY(weft_json_document_check_list(&reader->document, list, "a list of edges",
                                           WEFT_EDGES_MAX, HINT_EXAMPLE));
  }
  reader->edge_count = (uint32_t)count;
  reader->edges = weft_arena_allocate(&reader->arena, count, sizeof *reader->edges);
  WEFT_TRY(weft_arena_status(&reader->arena, reader->document.error));
  uint64_t *ordinal = weft_json_document_enter(&reader->document);
  for (; *ordinal < count; ++*ordinal) {
    WEFT_TRY(read_edge(reader, json_array_get(list, (size_t)*ordinal), &reader->edges[*ordinal]));
  }
  weft_json_document_leave(&reader->document);
  return WEFT_OK;
}

/* ---- The document ---- */

static enum weft_status check_document(struct graph_reader *reader, json_t *root) {
  if (!json_is_object(root)) {
    return unexpected(reader, HINT_EXAMPLE, "an object");
  }
  const char *schema = json_string_value(json_object_get(root, "schema"));
  if (schema == NULL || strcmp(schema, SCHEMA) != 0) {
    return weft_json_document_fail(&reader->document, NULL, WEFT_ERR_FORMAT, HINT_EXAMPLE,
                                   "expected \"schema\": \"" SCHEMA "\"%s",
                                   schema != NULL ? ", found another one" : "");
  }
  WEFT_TRY(require(reader, root, "stages", "a list of names, or the number of stages"));
  return require(reader, root, "edges", "a list of edges");
}

static enum weft_status read_root(struct graph_reader *reader, json_t *root,
                                  const struct weft_allocator *allocator, struct weft_graph **out) {
  /* Edges name stages, so these are read first, wherever they are. */
  static const struct weft_json_member first[] = {
      {"schema", NULL, 0}, {"stages", read_stages, 0}, {"edges", NULL, 0}, {NULL, NULL, 0}};
  static const struct weft_json_member second[] = {
      {"schema", NULL, 0}, {"stages", NULL, 0}, {"edges", read_edges, 0}, {NULL, NULL, 0}};
  struct weft_error why;
  WEFT_TRY(check_document(reader, root));
  WEFT_TRY(weft_json_document_read(reader, root, first, NULL));
  WEFT_TRY(weft_json_document_read(reader, root, second, NULL));
  uint32_t edge;
  const enum weft_status status =
      weft_graph_make(allocator, reader->stage_count, reader->edges, reader->edge_count,
                      (const char *const *)reader->names, out, &edge, &why);
  if (status < 0) {
    *weft_json_document_enter(&reader->document) = reader->edges_at;
    if (edge != WEFT_EDGE_NONE) {
      *weft_json_document_enter(&reader->document) = edge;
    }
    (void)weft_json_document_fail(&reader->document, NULL, status, why.hint, "%s", why.message);
  }
  return status;
}

enum weft_status weft_graph_parse(const struct weft_allocator *allocator, const char *text,
                                  size_t size, const char *name, struct weft_graph **out,
                                  struct weft_error *error) {
  WEFT_NEED(out, error);
  if (size > 0) {
    WEFT_NEED(text, error);
  }
  struct graph_reader reader = {
      .document = {.text = text,
                   .size = size,
                   .name = name != NULL ? name : "input",
                   .what = "graph",
                   .hint = HINT_EXAMPLE,
                   .unknown_hint = "take it out; docs/graphs.md has the format",
                   .syntax_hint = "JSON has no comments, and no comma after the last element",
                   .error = error},
      .arena = {.allocator = allocator}};
  json_t *root = NULL;
  WEFT_TRY(weft_json_document_load(&reader.document, TEXT_BYTES_MAX, COMMAS_MAX,
                                   JSON_DECODE_INT_AS_REAL, &root));
  const enum weft_status status = read_root(&reader, root, allocator, out);
  weft_arena_finish(&reader.arena);
  json_decref(root);
  return status;
}

void weft_graph_print(const struct weft_graph *graph, struct weft_json *json, const char *key) {
  assert(json != NULL);
  if (graph == NULL) {
    return;
  }
  weft_json_open(json, key, '{');
  weft_json_string(json, "schema", SCHEMA);
  if (graph->names != NULL) {
    weft_json_open(json, "stages", '[');
    for (uint32_t s = 0; s < graph->stage_count; s++) {
      weft_json_string(json, NULL, graph->names[s]);
    }
    weft_json_close(json, ']');
  } else {
    weft_json_number(json, "stages", graph->stage_count);
  }
  weft_json_open(json, "edges", '[');
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    weft_json_open(json, NULL, '{');
    weft_json_number(json, "from", edge->from);
    weft_json_number(json, "to", edge->to);
    if (!edge->gradient) {
      weft_json_boolean(json, "gradient", false);
    }
    if (edge->bytes >= 0) {
      weft_json_exact(json, "bytes", edge->bytes);
    }
    if (edge->gradient_bytes >= 0) {
      weft_json_exact(json, "gradient_bytes", edge->gradient_bytes);
    }
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}
