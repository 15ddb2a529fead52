/* Random small pipelines whose structure is sound: every action is there once,
 * each rank's row respects what the rank itself makes and receives. Where SEND
 * and RECV stand is otherwise up to chance, so that some programs complete
 * under every communication model, some under a few, some under none. */
#ifndef TESTS_SUPPORT_RANDOM_PROGRAM_H
#define TESTS_SUPPORT_RANDOM_PROGRAM_H

#include <weft/support.h>

#include "support_draft.h"

/* What the random program may look like. */
struct random_limits {
  bool communicate;     /* SEND and RECV, or a compute-only table */
  bool graph;           /* stages that form a random graph, or a chain */
  uint32_t cells_two;   /* cells per row when there are 2 ranks */
  uint32_t cells_three; /* ... and 3 ranks */
};

/* Makes one into `draft`. misordered: sends and receives of some boundary may
 * have been put into different orders on purpose. */
void random_program(struct weft_random *random, const struct random_limits *limits,
                    struct draft *draft, bool *misordered);

/* True with a probability of percent in 100. */
bool random_chance(struct weft_random *random, uint32_t percent);

/* Any well-formed program at all, sound or not: for readers and writers. At
 * most `ranks` rows of `cells` cells; stages and microbatches now small, now
 * anything up to the limits. */
void random_rows(struct weft_random *random, uint32_t ranks, uint32_t cells, struct draft *draft);

#endif
