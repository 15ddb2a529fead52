/* Graphs of stages: made once from a list of edges, checked, and indexed by stage. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/graph.h>
#include <weft/support.h>

#include "ir/action.h"
#include "ir/graph_maker.h"

struct weft_edge weft_edge_make(uint32_t from, uint32_t to) {
  assert(from < WEFT_STAGES_MAX && to < WEFT_STAGES_MAX);
  return (struct weft_edge){.from = (uint16_t)from,
                            .to = (uint16_t)to,
                            .gradient = true,
                            .bytes = -1,
                            .gradient_bytes = -1};
}

/* ---- Names ---- */

static int compare_names(const void *a, const void *b) {
  const struct weft_stage_name *x = a, *y = b;
  const int order = strcmp(x->text, y->text);
  return order != 0 ? order : (x->stage > y->stage) - (x->stage < y->stage);
}

uint32_t weft_stage_names_sort(const char *const *names, uint32_t stage_count,
                               struct weft_stage_name *sorted, uint32_t *again) {
  uint32_t count = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    if (names[s] != NULL) {
      sorted[count++] = (struct weft_stage_name){names[s], s};
    }
  }
  if (count > 0) {
    qsort(sorted, count, sizeof *sorted, compare_names);
  }
  *again = UINT32_MAX;
  for (uint32_t k = 1; k < count; k++) {
    if (sorted[k].stage < *again && strcmp(sorted[k - 1].text, sorted[k].text) == 0) {
      *again = sorted[k].stage;
    }
  }
  return count;
}

const struct weft_stage_name *weft_stage_names_find(const struct weft_stage_name *sorted,
                                                    uint32_t count, const char *text) {
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (strcmp(sorted[middle].text, text) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && strcmp(sorted[low].text, text) == 0 ? &sorted[low] : NULL;
}

/* ---- What can be wrong ---- */

/* As in a graph file, where edges may name their stages. */
static enum weft_status check_names(const struct weft_allocator *allocator, uint32_t stage_count,
                                    const char *const *names, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  struct weft_stage_name *sorted = weft_arena_allocate(&arena, stage_count, sizeof *sorted);
  char stage[96];
  uint32_t again;
  WEFT_TRY(weft_arena_status(&arena, error));
  const uint32_t count = weft_stage_names_sort(names, stage_count, sorted, &again);
  if (again != UINT32_MAX) {
    return weft_fail(error, WEFT_ERR_INVALID, "give every stage a name of its own",
                     "%s has the name of stage %" PRIu32,
                     weft_stage_text(names, again, stage, sizeof stage),
                     weft_stage_names_find(sorted, count, names[again])->stage);
  }
  if (count > 0 && sorted[0].text[0] == '\0') {
    return weft_fail(error, WEFT_ERR_INVALID, "give it a name, or none (NULL)",
                     "the name of stage %" PRIu32 " is empty", sorted[0].stage);
  }
  return WEFT_OK;
}

static enum weft_status check_ends(const struct weft_edge *edge, uint32_t stage_count,
                                   const char *const *names, struct weft_error *error) {
  char from[96];
  if (edge->from >= stage_count || edge->to >= stage_count) {
    return weft_fail(error, WEFT_ERR_INVALID, "stages count from 0",
                     "the edge %u>%u: there are %" PRIu32 " stages", edge->from, edge->to,
                     stage_count);
  }
  if (edge->from == edge->to) {
    return weft_fail(error, WEFT_ERR_INVALID, "what a stage feeds itself stays inside the stage",
                     "%s has an edge to itself",
                     weft_stage_text(names, edge->from, from, sizeof from));
  }
  if (!(edge->bytes <= WEFT_EDGE_BYTES_MAX) || !(edge->gradient_bytes <= WEFT_EDGE_BYTES_MAX)) {
    return weft_fail(error, WEFT_ERR_INVALID, "sizes are from 0 to 1e12, or negative: the hop's",
                     "the edge %u>%u has messages of %g and %g bytes", edge->from, edge->to,
                     edge->bytes, edge->gradient_bytes);
  }
  if (edge->to > edge->from && edge->to - edge->from - 1u > WEFT_SKIP_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "pass the tensor on through a stage in between",
                     "the edge %u>%u skips %u stages; the limit is %" PRIu32, edge->from, edge->to,
                     edge->to - edge->from - 1u, WEFT_SKIP_MAX);
  }
  return WEFT_OK;
}

static int compare_edges(const void *a, const void *b) {
  const struct weft_edge *x = a, *y = b;
  return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                            : (x->to > y->to) - (x->to < y->to);
}

/* *about becomes the edge that a failure is about. */
static enum weft_status check_sorted(const struct weft_graph *graph, const char *const *names,
                                     struct weft_edge *about, struct weft_error *error) {
  char from[96], to[96];
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    *about = *edge;
    if (e > 0 && compare_edges(edge - 1, edge) == 0) {
      return weft_fail(error, WEFT_ERR_INVALID,
                       "several tensors between two stages are one edge, and one message",
                       "two edges %u>%u, from %s to %s", edge->from, edge->to,
                       weft_stage_text(names, edge->from, from, sizeof from),
                       weft_stage_text(names, edge->to, to, sizeof to));
    }
    if (edge->gradient && !weft_graph_has_backward(graph, edge->to)) {
      return weft_fail(error, WEFT_ERR_INVALID,
                       "let an edge from it carry gradients, or none of those to it",
                       "no gradient comes to %s, so it cannot send one over the edge %u>%u to %s",
                       weft_stage_text(names, edge->to, to, sizeof to), edge->from, edge->to,
                       weft_stage_text(names, edge->from, from, sizeof from));
    }
  }
  *about = weft_edge_make(0, 0); /* none is */
  for (uint32_t s = 0; graph->stage_count > 1 && s < graph->stage_count; s++) {
    if (graph->in.begin[s] == graph->in.begin[s + 1] &&
        graph->out.begin[s] == graph->out.begin[s + 1]) {
      return weft_fail(error, WEFT_ERR_INVALID, "connect it, or take it out",
                       "%s has no edge: nobody feeds it, and nobody uses what it makes",
                       weft_stage_text(names, s, from, sizeof from));
    }
  }
  return WEFT_OK;
}

/* ---- Making ---- */

enum end { FROM, TO };

static uint32_t stage_at(const struct weft_edge *edge, enum end end) {
  return end == FROM ? edge->from : edge->to;
}

/* Edges by one of their ends, in their order: a counting sort. */
static void index_edges(const struct weft_graph *graph, enum end end, bool gradients_only,
                        struct weft_edge_list *list) {
  for (uint32_t pass = 0; pass < 2; pass++) {
    for (uint32_t e = 0; e < graph->edge_count; e++) {
      const struct weft_edge *edge = &graph->edges[e];
      if (gradients_only && !edge->gradient) {
        continue;
      }
      if (pass == 0) {
        list->begin[stage_at(edge, end) + 1]++;
      } else {
        list->edges[list->begin[stage_at(edge, end)]++] = e;
      }
    }
    for (uint32_t s = 0; pass == 0 && s < graph->stage_count; s++) {
      list->begin[s + 1] += list->begin[s];
    }
  }
  for (uint32_t s = graph->stage_count; s > 0; s--) { /* the second pass has moved them on */
    list->begin[s] = list->begin[s - 1];
  }
  list->begin[0] = 0;
}

static void copy_names(struct weft_arena *arena, struct weft_graph *graph,
                       const char *const *names) {
  if (names == NULL) {
    return;
  }
  graph->names = weft_arena_allocate(arena, graph->stage_count, sizeof *graph->names);
  for (uint32_t s = 0; graph->names != NULL && s < graph->stage_count; s++) {
    graph->names[s] =
        names[s] != NULL ? weft_arena_copy_text(arena, names[s], strlen(names[s])) : NULL;
  }
}

static enum weft_status fill_graph(struct weft_arena *arena, struct weft_graph *graph,
                                   const struct weft_edge *edges, const char *const *names,
                                   struct weft_edge *about, struct weft_error *error) {
  graph->edges = weft_arena_allocate(arena, graph->edge_count, sizeof *graph->edges);
  struct weft_edge_list *const lists[] = {&graph->in, &graph->out, &graph->gradient_in,
                                          &graph->gradient_out};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(lists); k++) {
    lists[k]->begin = weft_arena_allocate(arena, graph->stage_count + 1, sizeof(uint32_t));
    lists[k]->edges = weft_arena_allocate(arena, graph->edge_count, sizeof(uint32_t));
  }
  copy_names(arena, graph, names);
  WEFT_TRY(weft_arena_status(arena, error));
  if (graph->edge_count > 0) {
    memcpy(graph->edges, edges, graph->edge_count * sizeof *edges);
    qsort(graph->edges, graph->edge_count, sizeof *edges, compare_edges);
  }
  index_edges(graph, TO, false, &graph->in);
  index_edges(graph, FROM, false, &graph->out);
  index_edges(graph, FROM, true, &graph->gradient_in);
  index_edges(graph, TO, true, &graph->gradient_out);
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    if (edges[e].from > edges[e].to) {
      *about = edges[e];
      return weft_graph_fail_order(arena, graph, names, about, error);
    }
  }
  return check_sorted(graph, names, about, error);
}

/* The last one between these stages: of two, the second is one too many. */
static uint32_t find_last(const struct weft_edge *edges, uint32_t count,
                          const struct weft_edge *about) {
  while (count > 0 && compare_edges(&edges[count - 1], about) != 0) {
    count--;
  }
  return count > 0 ? count - 1 : WEFT_EDGE_NONE;
}

enum weft_status weft_graph_make(const struct weft_allocator *allocator, uint32_t stage_count,
                                 const struct weft_edge *edges, uint32_t edge_count,
                                 const char *const *names, struct weft_graph **out, uint32_t *at,
                                 struct weft_error *error) {
  *at = WEFT_EDGE_NONE;
  WEFT_NEED(out, error);
  if (edge_count > 0) {
    WEFT_NEED(edges, error);
  }
  if (stage_count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "give at least one stage", "a graph without stages");
  }
  if (stage_count > WEFT_STAGES_MAX || edge_count > WEFT_EDGES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "use fewer",
                     "%" PRIu32 " stages and %" PRIu32 " edges; the limits are %" PRIu32
                     " and %" PRIu32,
                     stage_count, edge_count, WEFT_STAGES_MAX, WEFT_EDGES_MAX);
  }
  if (names != NULL) {
    WEFT_TRY(check_names(allocator, stage_count, names, error));
  }
  for (uint32_t e = 0; e < edge_count; e++) {
    *at = e;
    WEFT_TRY(check_ends(&edges[e], stage_count, names, error));
  }
  *at = WEFT_EDGE_NONE;
  struct weft_arena arena = {.allocator = allocator};
  struct weft_graph *graph = weft_arena_allocate(&arena, 1, sizeof *graph);
  enum weft_status status = weft_arena_status(&arena, error);
  if (graph != NULL) {
    *graph = (struct weft_graph){
        .stage_count = stage_count, .edge_count = edge_count, .allocator = allocator, .holders = 1};
    struct weft_edge about = weft_edge_make(0, 0);
    status = fill_graph(&arena, graph, edges, names, &about, error);
    *at = status < 0 ? find_last(edges, edge_count, &about) : WEFT_EDGE_NONE;
  }
  if (status < 0) {
    weft_arena_finish(&arena);
    return status;
  }
  assert(graph != NULL);
  graph->memory = arena.chunks;
  *out = graph;
  return WEFT_OK;
}

enum weft_status weft_graph_create(const struct weft_allocator *allocator, uint32_t stage_count,
                                   const struct weft_edge *edges, uint32_t edge_count,
                                   const char *const *names, struct weft_graph **out,
                                   struct weft_error *error) {
  uint32_t at;
  return weft_graph_make(allocator, stage_count, edges, edge_count, names, out, &at, error);
}

struct weft_graph *weft_graph_hold(const struct weft_graph *graph) {
  struct weft_graph *held = (struct weft_graph *)graph; /* only the number of holders changes */
  if (held != NULL) {
    (void)__atomic_add_fetch(&held->holders, 1, __ATOMIC_RELAXED);
  }
  return held;
}

void weft_graph_destroy(struct weft_graph *graph) {
  if (graph != NULL && __atomic_sub_fetch(&graph->holders, 1, __ATOMIC_ACQ_REL) == 0) {
    struct weft_arena arena = {.allocator = graph->allocator, .chunks = graph->memory};
    weft_arena_finish(&arena); /* the graph itself is in it */
  }
}

/* ---- Asking ---- */

static inline uint32_t find_edge(const struct weft_graph *graph, uint32_t from, uint32_t to) {
  if (from >= graph->stage_count) {
    return WEFT_EDGE_NONE;
  }
  uint32_t low = graph->out.begin[from], high = graph->out.begin[from + 1];
  while (low < high) { /* out.edges are in the order of edges */
    const uint32_t middle = low + (high - low) / 2;
    if (graph->edges[middle].to < to) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < graph->out.begin[from + 1] && graph->edges[low].to == to ? low : WEFT_EDGE_NONE;
}

uint32_t weft_graph_find(const struct weft_graph *graph, uint32_t from, uint32_t to) {
  const uint32_t in_chain = to == from + 1 ? from : WEFT_EDGE_NONE;
  return graph != NULL ? find_edge(graph, from, to) : in_chain;
}

uint32_t weft_graph_channel_of(const struct weft_graph *graph, struct weft_action transfer) {
  assert(graph != NULL && weft_op_in(transfer.op, WEFT_OPS_SEND | WEFT_OPS_RECV));
  const bool gradient = transfer.op == WEFT_OP_SEND_B || transfer.op == WEFT_OP_RECV_B;
  const uint32_t stage = transfer.stage, other = weft_transfer_other(transfer);
  const bool up = stage < other;
  const uint32_t edge = find_edge(graph, up ? stage : other, up ? other : stage);
  const bool exists = edge != WEFT_EDGE_NONE && (!gradient || graph->edges[edge].gradient);
  return exists ? 2 * edge + gradient : WEFT_EDGE_NONE;
}

bool weft_graph_is_chain(const struct weft_graph *graph) {
  if (graph == NULL) {
    return true;
  }
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    if (graph->edges[e].from != e || graph->edges[e].to != e + 1 || !graph->edges[e].gradient) {
      return false;
    }
  }
  return graph->edge_count + 1 == graph->stage_count;
}

bool weft_graph_equal(const struct weft_graph *a, const struct weft_graph *b) {
  if (a == NULL || b == NULL || a == b) {
    return weft_graph_is_chain(a) == weft_graph_is_chain(b);
  }
  if (a->stage_count != b->stage_count || a->edge_count != b->edge_count) {
    return false;
  }
  for (uint32_t e = 0; e < a->edge_count; e++) {
    if (compare_edges(&a->edges[e], &b->edges[e]) != 0 ||
        a->edges[e].gradient != b->edges[e].gradient) {
      return false;
    }
  }
  return true;
}

static bool has_edge(const struct weft_graph *graph, const struct weft_edge *edge) {
  const uint32_t found = weft_graph_find(graph, edge->from, edge->to);
  return found != WEFT_EDGE_NONE && weft_graph_edge(graph, found).gradient == edge->gradient;
}

bool weft_graph_difference(const struct weft_graph *a, const struct weft_graph *b,
                           struct weft_edge *edge, bool *in_a) {
  assert(edge != NULL && in_a != NULL);
  for (unsigned side = 0; side < 2 && (a != NULL || b != NULL); side++) {
    const struct weft_graph *one = side == 0 ? a : b, *other = side == 0 ? b : a;
    const uint32_t count = weft_graph_edge_count(one, weft_graph_stage_count(other));
    for (uint32_t e = 0; e < count; e++) {
      const struct weft_edge candidate = weft_graph_edge(one, e);
      if (!has_edge(other, &candidate)) {
        *edge = candidate;
        *in_a = side == 0;
        return true;
      }
    }
  }
  return false;
}

void weft_graph_add_stage(const struct weft_graph *graph, uint32_t stage, struct weft_text *text) {
  assert(text != NULL);
  const char *name = weft_graph_name(graph, stage);
  weft_text_add_number(text, stage);
  if (name != NULL) {
    weft_text_add(text, " '");
    weft_text_add_escaped(text, name, strlen(name));
    weft_text_add(text, "'");
  }
}
