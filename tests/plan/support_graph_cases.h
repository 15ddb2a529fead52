/* Random small graph problems, compared with all their orders (support_graph_exhaustive.h). */
#ifndef TESTS_SUPPORT_GRAPH_CASES_H
#define TESTS_SUPPORT_GRAPH_CASES_H

#include <stdint.h>

struct graph_tally {
  uint32_t cases, refused, too_large, solved, proven, frozen;
};

/* No bound above the optimum, no value below it, nothing called optimal that is not, and nothing
 * refused that fits. Prints the tally. */
void graph_cases_compare_times(uint64_t seed, uint32_t cases, struct graph_tally *tally);

/* weft_search_least_memory() finds the least limit; weft_search() plans with it, and refuses less. */
void graph_cases_compare_memory(uint64_t seed, uint32_t cases, uint32_t stages_max,
                                struct graph_tally *tally);

#endif
