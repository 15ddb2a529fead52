/* A schedule table as bytes, to be told to other ranks: one for each action. */
#ifndef GPT_TABLE_LETTERS_H
#define GPT_TABLE_LETTERS_H

#include <weft/ir.h>

/* Where stages are: rank r has stages list[begin[r]] ... list[begin[r + 1] - 1]. */
struct weft_gpt_stage_map {
  uint32_t rank_count;
  const uint32_t *list, *begin;
};

/* Rank after rank, action after action: which op, and which of the rank's stages. Letters
 * that are alike are those of microbatches 0, 1, ... in order; bubbles have none, nor
 * has REDUCE_GRAD, which the trainer adds where it needs it. Returns how many there are, or 0 when the table has anything else: overlaps, microbatches in
 * another order, other stages, more stages of a rank than a byte has room for. `letters`
 * has room for table->action_count of them. */
uint64_t weft_gpt_schedule_encode(const struct weft_program *table,
                                  const struct weft_gpt_stage_map *places, uint8_t *letters);

/* The table of `count` letters for so many microbatches. WEFT_ERR_FORMAT when there is no
 * such table. allocator NULL: the default. */
enum weft_status weft_gpt_schedule_decode(const struct weft_allocator *allocator,
                                          const struct weft_gpt_stage_map *places,
                                          uint32_t microbatches, const uint8_t *letters,
                                          uint64_t count, struct weft_program **out,
                                          struct weft_error *error);

#endif
