/* See schedule_codec.h. A row ends when every op of every stage of the rank has come as
 * often as there are microbatches, so ends of rows need not be told. A stage has F and B,
 * or F, I and W. */
#include "gpt/train/schedule_codec.h"

#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/model/aligned_memory.h"

enum { KINDS = 4, PLACES_MAX = 256 / KINDS };

static const uint8_t kinds[KINDS] = {WEFT_OP_F, WEFT_OP_B, WEFT_OP_I, WEFT_OP_W};

/* How often each letter has come in a row. */
struct counts {
  uint32_t of[KINDS * PLACES_MAX];
};

/* ---- Writing ---- */

static bool letter_of(const struct weft_gpt_stage_map *places, uint32_t rank,
                      const struct weft_action *action, uint8_t *letter) {
  const uint32_t *own = places->list + places->begin[rank];
  const uint32_t count = places->begin[rank + 1] - places->begin[rank];
  for (uint32_t k = 0; k < count && k < PLACES_MAX; k++) {
    for (uint32_t kind = 0; kind < KINDS && own[k] == action->stage; kind++) {
      if (kinds[kind] == action->op) {
        *letter = (uint8_t)(k * KINDS + kind);
        return true;
      }
    }
  }
  return false;
}

uint64_t weft_gpt_schedule_encode(const struct weft_program *table,
                                  const struct weft_gpt_stage_map *places, uint8_t *letters) {
  struct counts counts;
  uint64_t count = 0;
  if (table->rank_count != places->rank_count) {
    return 0;
  }
  for (uint32_t r = 0; r < table->rank_count; r++) {
    memset(&counts, 0, sizeof counts);
    for (uint64_t k = table->row_begin[r]; k < table->row_begin[r + 1]; k++) {
      const struct weft_action *action = &table->actions[k];
      if (action->op == WEFT_OP_IDLE || action->op == WEFT_OP_REDUCE_GRAD) {
        continue;
      }
      uint8_t *letter = &letters[count++];
      if (!letter_of(places, r, action, letter) || action->microbatch != counts.of[*letter]++) {
        return 0;
      }
    }
  }
  return count;
}

/* ---- Reading ---- */

/* Whether the row has all that its stages need, and nothing comes too often. */
static bool row_is_over(const struct counts *counts, uint32_t stage_count, uint32_t microbatches) {
  for (uint32_t k = 0; k < stage_count; k++) {
    const uint32_t *of = &counts->of[k * KINDS];
    if (of[0] != microbatches || of[1] + of[3] != microbatches || of[2] != of[3]) {
      return false;
    }
  }
  return true;
}

static enum weft_status fail_letters(struct weft_error *error, uint32_t rank) {
  return weft_fail(error, WEFT_ERR_FORMAT, "is one of the processes another program?",
                   "the table that rank 0 has told is not one: row %" PRIu32, rank);
}

static enum weft_status read_rows(const struct weft_gpt_stage_map *places, uint32_t microbatches,
                                  const uint8_t *letters, uint64_t count, uint64_t *row_sizes,
                                  struct weft_action *actions, struct weft_error *error) {
  struct counts counts;
  uint64_t at = 0;
  for (uint32_t r = 0; r < places->rank_count; r++) {
    const uint32_t *own = places->list + places->begin[r];
    const uint32_t stages = places->begin[r + 1] - places->begin[r];
    memset(&counts, 0, sizeof counts);
    const uint64_t begin = at;
    for (; !row_is_over(&counts, stages, microbatches); at++) {
      if (at >= count || letters[at] / KINDS >= stages || counts.of[letters[at]] == microbatches) {
        return fail_letters(error, r);
      }
      actions[at] = (struct weft_action){.op = kinds[letters[at] % KINDS],
                                         .stage = (uint16_t)own[letters[at] / KINDS],
                                         .microbatch = counts.of[letters[at]]++};
    }
    row_sizes[r] = at - begin;
  }
  return at == count ? WEFT_OK : fail_letters(error, places->rank_count);
}

enum weft_status weft_gpt_schedule_decode(const struct weft_allocator *allocator,
                                          const struct weft_gpt_stage_map *places,
                                          uint32_t microbatches, const uint8_t *letters,
                                          uint64_t count, struct weft_program **out,
                                          struct weft_error *error) {
  uint64_t *row_sizes = weft_gpt_allocate(allocator, places->rank_count, sizeof *row_sizes);
  struct weft_action *actions = weft_gpt_allocate(allocator, count, sizeof *actions);
  enum weft_status status =
      row_sizes == NULL || actions == NULL
          ? weft_fail_memory(error, count * sizeof *actions)
          : read_rows(places, microbatches, letters, count, row_sizes, actions, error);
  if (status == WEFT_OK) {
    status = weft_program_create(allocator, places->rank_count, row_sizes, actions, out, error);
  }
  weft_gpt_free(allocator, row_sizes);
  weft_gpt_free(allocator, actions);
  return status;
}
