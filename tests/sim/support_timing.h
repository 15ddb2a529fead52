/* A timed run of a compute-only table with equal stages and free transfers, by
 * the plainest means, for checking closed forms: when does each rank end, and
 * how many activations does it hold at most. */
#ifndef SUPPORT_TIMING_H
#define SUPPORT_TIMING_H

#include <weft/weft.h>

struct timing {
  double makespan;
  double peak; /* activations held at once by the rank that holds most, in stages */
};

struct timing time_table(const struct weft_program *table, const struct weft_unit_costs *costs);

#endif
