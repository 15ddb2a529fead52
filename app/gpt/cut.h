/* A row of weights cut into ranges: what splitting a model into stages comes down to. */
#ifndef GPT_CUT_H
#define GPT_CUT_H

#include <weft/base.h>

/* Cuts `count` weights into `stage_count` ranges, none empty: stage s has weights
 * first[s] ... first[s + 1] - 1. Of all cuts whose heaviest range is as light as can
 * be (exactly), it is the one with the least sum of squares, so that the others are as
 * equal as can be; squares are added up in double precision, and of cuts that are as
 * good by that one is chosen, always the same.
 *
 * sums[k] is the sum of the first k weights, below 2^63; sums[0] = 0. Takes
 * 1 <= stage_count <= count < 2^16. Time grows with count * stage_count * log(count)
 * at most, memory with count * stage_count. WEFT_ERR_MEMORY. */
enum weft_status weft_gpt_cut(const struct weft_allocator *allocator,
                              const uint64_t *sums /* [count + 1] */, uint32_t count,
                              uint32_t stage_count, uint32_t *first /* [stage_count + 1] */,
                              struct weft_error *error);

#endif
