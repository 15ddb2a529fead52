/* The best time of a small graph problem, by trying everything; shares no code with the planner. */
#ifndef TESTS_SUPPORT_GRAPH_EXHAUSTIVE_H
#define TESTS_SUPPORT_GRAPH_EXHAUSTIVE_H

#include <weft/search.h>

enum {
  GRAPH_STAGES_MAX = 5,
  GRAPH_EDGES_MAX = 10,
  GRAPH_MICROBATCHES_MAX = 3,
  GRAPH_RANKS_MAX = 4,
};

#define GRAPH_NONE (-1.0)      /* nothing fits into the memory */
#define GRAPH_TOO_LARGE (-2.0) /* more states than `most` */

/* With uniform_backward alone all backwards are split. The smallest objective of the request (its costs have an entry per stage), with the given ranks of
 * stages. Times, sizes and factors of ranks must be integers, the hop's
 * bytes_per_unit 1. */
double graph_exhaustive_best(const struct weft_search_request *request, const uint32_t *rank_of,
                             size_t most);

#endif
