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

struct weft_stage_name {
  const char *text;
  uint32_t stage;
};

/* Sorts the names of stages by text, then stage; those that are NULL are left out. Returns how many
 * there are. *again: the lowest stage whose name a lower one has, UINT32_MAX if there is none. */
uint32_t weft_stage_names_sort(const char *const *names, uint32_t stage_count,
                               struct weft_stage_name *sorted, uint32_t *again);

/* The first stage with this name, of sorted ones; NULL where none has it. */
const struct weft_stage_name *weft_stage_names_find(const struct weft_stage_name *sorted,
                                                    uint32_t count, const char *text);

/* "stage 3", or "stage 3 'encoder'"; names may be NULL. Returns buffer. */
const char *weft_stage_text(const char *const *names, uint32_t stage, char *buffer, size_t size);

#endif
