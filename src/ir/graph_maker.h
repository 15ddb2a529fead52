/* Making a graph of stages, for what reads one from a text and marks the place of a mistake. */
#ifndef IR_GRAPH_MAKER_H
#define IR_GRAPH_MAKER_H

#include <weft/graph.h>
#include <weft/support.h>

/* weft_graph_create(), and which of the edges a failure is about: *at, WEFT_EDGE_NONE if none. */
enum weft_status weft_graph_make(const struct weft_allocator *allocator, uint32_t stage_count,
                                 const struct weft_edge *edges, uint32_t edge_count,
                                 const char *const *names, struct weft_graph **out, uint32_t *at,
                                 struct weft_error *error);

/* Describes why some edges of an indexed graph go back: they close a cycle, or stages are in another
 * order than they run in, and then the hint has one that works. *back: an edge that goes back; at
 * the end the one that the message is about. Memory comes from the arena. */
enum weft_status weft_graph_fail_order(struct weft_arena *arena, const struct weft_graph *graph,
                                       const char *const *names, struct weft_edge *back,
                                       struct weft_error *error);

/* "stage 3", or "stage 3 'encoder'"; names may be NULL. Returns buffer. */
const char *weft_stage_text(const char *const *names, uint32_t stage, char *buffer, size_t size);

#endif
