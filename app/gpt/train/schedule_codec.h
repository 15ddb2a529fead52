/* A schedule table as bytes, one for each action, to be sent to other ranks. */
#ifndef GPT_SCHEDULE_CODEC_H
#define GPT_SCHEDULE_CODEC_H

#include <weft/ir.h>

/* The stages of each rank: rank r has stages list[begin[r]] ... list[begin[r + 1] - 1]. */
struct weft_gpt_stage_map {
  uint32_t rank_count;
  const uint32_t *list, *begin;
};

/* Writes the codes, rank after rank, action after action: an op, and one of the rank's stages.
 * The n-th of equal codes is of microbatch n. Bubbles have no code, nor has REDUCE_GRAD, which
 * the trainer adds where it needs it. Returns the number of codes, or 0 when the table has
 * anything else: overlaps, microbatches in another order, other stages, more stages on a rank
 * than a byte has room for. `codes` has room for table->action_count. */
uint64_t weft_gpt_schedule_encode(const struct weft_program *table,
                                  const struct weft_gpt_stage_map *map, uint8_t *codes);

/* The table of `count` codes for so many microbatches. WEFT_ERR_FORMAT when there is no
 * such table. allocator NULL: the default. */
enum weft_status weft_gpt_schedule_decode(const struct weft_allocator *allocator,
                                          const struct weft_gpt_stage_map *map,
                                          uint32_t microbatches, const uint8_t *codes,
                                          uint64_t count, struct weft_program **out,
                                          struct weft_error *error);

#endif
