/* How many (stage, microbatch) pairs a program spans: the size of the tables
 * that are indexed by pair. */
#ifndef IR_PAIRS_H
#define IR_PAIRS_H

#include <weft/ir.h>

/* WEFT_ERR_INVALID when stages x microbatches is far more than that many actions
 * could fill: a table of that size would let a file of a few bytes take
 * gigabytes. */
enum weft_status weft_pairs_check(uint32_t stages, uint32_t microbatches, uint64_t actions,
                                  struct weft_error *error);

/* The same for a program; *count = stage_count x microbatch_count. */
enum weft_status weft_pairs_count(const struct weft_program *program, size_t *count,
                                  struct weft_error *error);

/* The same for channels: *count = weft_channel_count() x microbatch_count. In a
 * table an action may have as many messages as its stage has edges. */
enum weft_status weft_messages_count(const struct weft_program *program, size_t *count,
                                     struct weft_error *error);

#endif
