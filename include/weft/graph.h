/* Weft graph: which stages feed which.
 *
 * Without a graph the stages of a pipeline form a chain: the activation of stage s goes to s+1,
 * and its gradient comes back. A graph says otherwise: skip connections, several encoders, heads.
 *
 *     0 --> 1 --> 2 --> 3        edges 0>1, 1>2, 2>3 and the skip connection 0>3
 *      `---------------^
 *
 * Stages are numbered so that an edge goes from a lower to a higher one. A stage without
 * out-edges computes a loss. A stage runs its forward when all its in-edges have brought their
 * activations. It runs its backward when all its out-edges that carry gradients have brought
 * them; it adds these up in ascending order of the stages that they come from. A stage that is no
 * loss and none of whose out-edges carries a gradient has no backward: it is frozen. */
#ifndef WEFT_GRAPH_H
#define WEFT_GRAPH_H

#include <weft/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_STAGES_MAX UINT32_C(65536)
#define WEFT_EDGES_MAX UINT32_C(1048576)
#define WEFT_SKIP_MAX UINT32_C(255) /* stages between the two ends of an edge */
#define WEFT_EDGE_BYTES_MAX 1e12
#define WEFT_EDGE_NONE UINT32_MAX

struct weft_edge {
  uint16_t from; /* the stage whose forward makes the tensors */
  uint16_t to;   /* the stage whose forward consumes them; larger */
  bool gradient; /* a gradient comes back, from `to` to `from` */
  /* Sizes of a message, in the bytes of the costs' hop; negative: those of the hop. */
  double bytes;
  double gradient_bytes;
};

/* Numbers of edges by stage: those of stage s are edges[begin[s]] ... edges[begin[s + 1] - 1]. */
struct weft_edge_list {
  uint32_t *begin; /* [stage_count + 1] */
  uint32_t *edges;
};

/* Plain data, never changed once it is made; several programs may hold it. */
struct weft_graph {
  uint32_t stage_count;
  uint32_t edge_count;
  struct weft_edge *edges;            /* ascending by `from`, then `to` */
  struct weft_edge_list in;           /* edges to a stage, ascending by `from` */
  struct weft_edge_list out;          /* edges from a stage, ascending by `to` */
  struct weft_edge_list gradient_in;  /* of `out`, those that bring a gradient to the stage */
  struct weft_edge_list gradient_out; /* of `in`, those that the stage sends a gradient over */
  const char **names;                 /* [stage_count] of the stages, or NULL */
  const struct weft_allocator *allocator;
  struct weft_arena_chunk *memory;
  uint32_t holders; /* weft_graph_hold() and the maker */
};

/* An edge of the costs' sizes that carries gradients. */
WEFT_API struct weft_edge weft_edge_make(uint32_t from, uint32_t to);

/* A graph with these edges, in any order; `names` may be NULL, and so
 * may any of them. Everything is copied.
 * WEFT_ERR_INVALID, naming the stages, for a cycle (also an edge from a higher to a lower stage),
 * an edge of a stage with itself, two edges between the same stages, a stage without edges, and a
 * gradient that nobody can send: over an edge to a stage that has no backward; for a size beyond
 * WEFT_EDGE_BYTES_MAX, and for a name that is empty, or that two stages have. WEFT_ERR_LIMIT for
 * more stages, edges, or stages between the ends of an edge than there may be. */
WEFT_API enum weft_status weft_graph_create(const struct weft_allocator *allocator,
                                            uint32_t stage_count, const struct weft_edge *edges,
                                            uint32_t edge_count, const char *const *names,
                                            struct weft_graph **out, struct weft_error *error);

/* One more holder; returns its argument, which may be NULL. Threads may hold and let go of a
 * graph at the same time. */
WEFT_API struct weft_graph *weft_graph_hold(const struct weft_graph *graph);
/* One holder less; the last one's call gives the memory back. NULL is fine. */
WEFT_API void weft_graph_destroy(struct weft_graph *graph);

/* Number of the edge, or WEFT_EDGE_NONE. NULL is a chain of any length. */
WEFT_API uint32_t weft_graph_find(const struct weft_graph *graph, uint32_t from, uint32_t to);

/* Whether its edges are those of a pipeline without a graph: from every stage to the next one,
 * with gradients. */
WEFT_API bool weft_graph_is_chain(const struct weft_graph *graph);

/* How many of its edges have to be told: none of a chain, whose edges go without saying. */
static inline uint32_t weft_graph_told_edges(const struct weft_graph *graph) {
  return weft_graph_is_chain(graph) ? 0 : graph->edge_count;
}

/* Same stages and edges; sizes and names are not compared. NULL is a chain of any length. */
WEFT_API bool weft_graph_equal(const struct weft_graph *a, const struct weft_graph *b);

/* The first edge that only one of them has, or that carries gradients in only one; *in_a says which
 * has it. False where there is none. NULL is a chain with as many stages as the other. */
WEFT_API bool weft_graph_difference(const struct weft_graph *a, const struct weft_graph *b,
                                    struct weft_edge *edge, bool *in_a);

/* The name of a stage; NULL where it has none. The graph may be NULL. */
static inline const char *weft_graph_name(const struct weft_graph *graph, uint32_t stage) {
  return graph != NULL && graph->names != NULL && stage < graph->stage_count ? graph->names[stage]
                                                                             : NULL;
}

/* Appends "2", or "2 'up'" where the stage has a name. The graph may be NULL. */
WEFT_API void weft_graph_add_stage(const struct weft_graph *graph, uint32_t stage,
                                   struct weft_text *text);

/* ---- Graphs and chains ----
 *
 * NULL is a chain: the graph whose edge number e goes from stage e to stage e + 1, computed. How
 * many stages it has is the caller's to say. */

/* 0: a chain, which may have any number. */
static inline uint32_t weft_graph_stage_count(const struct weft_graph *graph) {
  return graph != NULL ? graph->stage_count : 0;
}

static inline uint32_t weft_graph_edge_count(const struct weft_graph *graph, uint32_t stage_count) {
  return graph != NULL ? graph->edge_count : stage_count > 0 ? stage_count - 1 : 0;
}

/* Edge number e, below weft_graph_edge_count(). */
static inline struct weft_edge weft_graph_edge(const struct weft_graph *graph, uint32_t e) {
  return graph != NULL ? graph->edges[e] : weft_edge_make(e, e + 1);
}

/* Whether no edge leads to a stage. */
static inline bool weft_graph_is_source(const struct weft_graph *graph, uint32_t stage) {
  return graph != NULL ? graph->in.begin[stage] == graph->in.begin[stage + 1] : stage == 0;
}

/* Whether no edge leads from a stage, so that it computes a loss. */
static inline bool weft_graph_is_loss(const struct weft_graph *graph, uint32_t stage,
                                      uint32_t stage_count) {
  return graph != NULL ? graph->out.begin[stage] == graph->out.begin[stage + 1]
                       : stage + 1 == stage_count;
}

/* Whether any stage has a name. */
static inline bool weft_graph_has_names(const struct weft_graph *graph) {
  return graph != NULL && graph->names != NULL;
}

/* Whether a stage has a backward: it is a loss, or a gradient comes to it. */
static inline bool weft_graph_has_backward(const struct weft_graph *graph, uint32_t stage) {
  return graph == NULL || graph->out.begin[stage] == graph->out.begin[stage + 1] ||
         graph->gradient_in.begin[stage] < graph->gradient_in.begin[stage + 1];
}

#ifdef __cplusplus
}
#endif
#endif
