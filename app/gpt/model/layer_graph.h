/* The graph of stages (weft/graph.h) that follows from the graph of layers and a split into stages.
 * An edge is a message with the outputs, of layers of one stage, that layers of another one read;
 * each output once, however many layers of that stage read it. */
#ifndef GPT_LAYER_GRAPH_H
#define GPT_LAYER_GRAPH_H

#include <weft/graph.h>
#include <weft/run.h>

#include "gpt/model/model.h"

/* A split: stage s has layers first[s] ... first[s + 1] - 1. Borrowed. */
struct weft_gpt_stage_split {
  const struct weft_gpt_config *config;
  uint32_t stage_count;
  const uint32_t *first; /* [stage_count + 1] */
};

/* The layers of stage `from` that stage `to` reads, ascending: how many there are, and the first
 * WEFT_TENSORS_MAX of them. 0: there is no edge. */
uint32_t weft_gpt_edge_layers(const struct weft_gpt_stage_split *split, uint32_t from, uint32_t to,
                              uint32_t layers[WEFT_TENSORS_MAX]);

/* The graph; NULL for a chain. WEFT_ERR_USAGE where an edge has more tensors than a message may,
 * WEFT_ERR_LIMIT where one passes over too many stages. */
enum weft_status weft_gpt_stage_graph(const struct weft_allocator *allocator,
                                      const struct weft_gpt_stage_split *split,
                                      struct weft_graph **out, struct weft_error *error);

#endif
