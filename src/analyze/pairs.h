/* How many (stage, microbatch) pairs a program spans: the size of the tables
 * that are indexed by pair. */
#ifndef ANALYZE_PAIRS_H
#define ANALYZE_PAIRS_H

#include <weft/ir.h>

/* *count = stage_count x microbatch_count. WEFT_ERR_INVALID when that is far
 * more than the program's actions could fill: a table of that size would let a
 * file of a few bytes take gigabytes. */
enum weft_status weft_pairs_count(const struct weft_program *program, size_t *count,
                                  struct weft_error *error);

#endif
