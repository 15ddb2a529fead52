/* Weft spec: the pipeline that a schedule is for: its shape, its placement of
 * stages on ranks, and the graph of its stages. */
#ifndef WEFT_SPEC_H
#define WEFT_SPEC_H

#include <weft/ir.h>

#ifdef __cplusplus
extern "C" {
#endif

enum weft_placement_kind {
  WEFT_PLACEMENT_LOOP,    /* stage s on rank s mod p */
  WEFT_PLACEMENT_V,       /* rank r owns r and 2p-1-r; for larger even v the direction alternates */
  WEFT_PLACEMENT_INFERRED /* any other: a stage belongs to the rank that computes it */
};

WEFT_API const char *weft_placement_name(enum weft_placement_kind kind);

/* p ranks, v stages per rank, m microbatches; stages that form a chain, where there is no graph. */
struct weft_shape {
  uint32_t ranks;
  uint32_t stages_per_rank;
  uint32_t microbatches;
  enum weft_placement_kind placement; /* LOOP or V */
  const struct weft_graph *graph;     /* borrowed; NULL: a chain */
};

/* Rank of a stage, and the stage that rank owns as its k-th (k < v, ascending),
 * under LOOP or V placement. */
WEFT_API uint32_t weft_shape_rank_of(const struct weft_shape *shape, uint32_t stage);
WEFT_API uint32_t weft_shape_stage_of(const struct weft_shape *shape, uint32_t rank, uint32_t k);

/* Reads the placement off a table: rank_of[s] for s < program->stage_count,
 * which the caller provides, becomes the first rank that computes stage s, or
 * WEFT_RANK_NONE. Returns what kind it is. */
WEFT_API enum weft_placement_kind weft_placement_infer(const struct weft_program *program,
                                                       uint32_t *rank_of);

/* ---- Graphs (weft/graph.h) ---- */

/* Reads {"schema": "weft-graph/1", "stages": [...], "edges": [...]} (docs/graphs.md).
 * A name may be null. WEFT_ERR_FORMAT names the field and what was expected; else as
 * weft_graph_create(). */
WEFT_API enum weft_status weft_graph_parse(const struct weft_allocator *allocator, const char *text,
                                           size_t size, const char *name, struct weft_graph **out,
                                           struct weft_error *error);

/* Writes what weft_graph_parse() reads, as a member `key` of another object or with NULL by
 * itself; nothing of a chain (NULL). */
struct weft_json;
WEFT_API void weft_graph_print(const struct weft_graph *graph, struct weft_json *json,
                               const char *key);

#ifdef __cplusplus
}
#endif
#endif
