/* The graph of stages (weft/graph.h) that follows from the graph of layers and a split into stages.
 * An edge is a message with the outputs, of layers of one stage, that layers of another one read;
 * each output once, however many layers of that stage read it. Every output is a tensor, as long as
 * a message may have so many; beyond that several outputs, one after the other, are one tensor. */
#ifndef GPT_LAYER_GRAPH_H
#define GPT_LAYER_GRAPH_H

#include <weft/graph.h>
#include <weft/run.h>

#include "trainer/model/model.h"

/* A split: stage s has layers first[s] ... first[s + 1] - 1. Borrowed. */
struct weft_gpt_stage_split {
  const struct weft_gpt_config *config;
  uint32_t stage_count;
  const uint32_t *first; /* [stage_count + 1] */
};

/* Whether any layer of the stage reads the output of a layer. */
bool weft_gpt_stage_reads(const struct weft_gpt_stage_split *split, uint32_t stage, uint32_t layer);
/* Outputs of layers of stage `from` that stage `to` reads; 0: there is no edge. */
uint32_t weft_gpt_edge_outputs(const struct weft_gpt_stage_split *split, uint32_t from,
                               uint32_t to);
/* Of a message with so many: each tensor has as many of them, but for the last one. */
static inline uint32_t weft_gpt_outputs_per_tensor(uint32_t outputs) {
  return outputs > 0 ? (outputs + WEFT_TENSORS_MAX - 1) / WEFT_TENSORS_MAX : 1;
}

/* "embedding, blocks 0-2": the layers first ... end - 1 of a stage. */
void weft_gpt_add_layers(struct weft_text *text, uint32_t first, uint32_t end,
                         const struct weft_gpt_config *config);

/* The graph, with these as names of its stages; NULL for a chain. WEFT_ERR_LIMIT where an edge
 * skips more than WEFT_SKIP_MAX stages. */
enum weft_status weft_gpt_stage_graph(const struct weft_allocator *allocator,
                                      const struct weft_gpt_stage_split *split,
                                      struct weft_graph **out, struct weft_error *error);

#endif
