/* Random graphs of stages, and tables of them. */
#ifndef TESTS_SUPPORT_RANDOM_GRAPH_H
#define TESTS_SUPPORT_RANDOM_GRAPH_H

#include <weft/support.h>

#include "support_draft.h"

/* Of a random graph. */
struct random_graph_shape {
  uint32_t stages;
  uint32_t skip_percent;   /* of pairs of stages that have an edge beside what connects all */
  uint32_t frozen_percent; /* of edges that carry no gradient */
};

/* Some density and share of frozen edges. */
struct random_graph_shape random_graph_shape(struct weft_random *random, uint32_t stages);

/* A valid graph; free it with weft_graph_destroy(). Chains come up too. */
struct weft_graph *random_graph(struct weft_random *random, const struct random_graph_shape *shape);

/* Into `draft` a compute-only table of the graph that can be executed: the actions of each rank in
 * the order of one random run. `rank_of` gets each stage's rank; split: I and W in place of B. */
void random_graph_table(struct weft_random *random, const struct weft_graph *graph, uint32_t ranks,
                        uint32_t microbatches, bool split, uint32_t *rank_of, struct draft *draft);

#endif
