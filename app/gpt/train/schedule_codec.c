/* See schedule_codec.h. A row ends when every op of every stage of the rank has come as often as
 * there are microbatches, so its length is not encoded. A stage has F and B, or F, I and W. */
#include "gpt/train/schedule_codec.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/model/aligned_memory.h"

enum { KINDS = 4, STAGES_MAX = 256 / KINDS };

static const uint8_t kinds[KINDS] = {WEFT_OP_F, WEFT_OP_B, WEFT_OP_I, WEFT_OP_W};

/* How often each code has come in a row of the table. */
struct counts {
  uint32_t of[KINDS * STAGES_MAX];
};

/* ---- Encoding ---- */

static bool code_of(const struct weft_gpt_stage_map *map, uint32_t rank,
                    const struct weft_action *action, uint8_t *code) {
  const uint32_t *own = map->list + map->begin[rank];
  const uint32_t count = map->begin[rank + 1] - map->begin[rank];
  for (uint32_t k = 0; k < count && k < STAGES_MAX; k++) {
    for (uint32_t kind = 0; kind < KINDS && own[k] == action->stage; kind++) {
      if (kinds[kind] == action->op) {
        *code = (uint8_t)(k * KINDS + kind);
        return true;
      }
    }
  }
  return false;
}

uint64_t weft_gpt_schedule_encode(const struct weft_program *table,
                                  const struct weft_gpt_stage_map *map, uint8_t *codes) {
  assert(table != NULL && codes != NULL);
  struct counts counts;
  uint64_t count = 0;
  if (table->rank_count != map->rank_count) {
    return 0;
  }
  for (uint32_t r = 0; r < table->rank_count; r++) {
    memset(&counts, 0, sizeof counts);
    for (uint64_t k = table->row_begin[r]; k < table->row_begin[r + 1]; k++) {
      const struct weft_action *action = &table->actions[k];
      if (action->op == WEFT_OP_IDLE || action->op == WEFT_OP_REDUCE_GRAD) {
        continue;
      }
      uint8_t *code = &codes[count++];
      if (!code_of(map, r, action, code) || action->microbatch != counts.of[*code]++) {
        return 0;
      }
    }
  }
  return count;
}

/* ---- Decoding ---- */

/* Whether the row has every action of its stages, and none too often. */
static bool row_is_over(const struct counts *counts, uint32_t stage_count, uint32_t microbatches) {
  for (uint32_t k = 0; k < stage_count; k++) {
    const uint32_t *of = &counts->of[k * KINDS];
    if (of[0] != microbatches || of[1] + of[3] != microbatches || of[2] != of[3]) {
      return false;
    }
  }
  return true;
}

static enum weft_status fail_codes(struct weft_error *error, uint32_t rank) {
  return weft_fail(error, WEFT_ERR_FORMAT, "is one of the processes another program?",
                   "the codes that rank 0 has sent are no schedule: row %" PRIu32, rank);
}

static enum weft_status read_rows(const struct weft_gpt_stage_map *map, uint32_t microbatches,
                                  const uint8_t *codes, uint64_t count, uint64_t *row_sizes,
                                  struct weft_action *actions, struct weft_error *error) {
  struct counts counts;
  uint64_t at = 0;
  for (uint32_t r = 0; r < map->rank_count; r++) {
    const uint32_t *own = map->list + map->begin[r];
    const uint32_t stages = map->begin[r + 1] - map->begin[r];
    memset(&counts, 0, sizeof counts);
    const uint64_t begin = at;
    for (; !row_is_over(&counts, stages, microbatches); at++) {
      if (at >= count || codes[at] / KINDS >= stages || counts.of[codes[at]] == microbatches) {
        return fail_codes(error, r);
      }
      actions[at] = (struct weft_action){.op = kinds[codes[at] % KINDS],
                                         .stage = (uint16_t)own[codes[at] / KINDS],
                                         .microbatch = counts.of[codes[at]]++};
    }
    row_sizes[r] = at - begin;
  }
  return at == count ? WEFT_OK : fail_codes(error, map->rank_count);
}

enum weft_status weft_gpt_schedule_decode(const struct weft_allocator *allocator,
                                          const struct weft_gpt_stage_map *map,
                                          uint32_t microbatches, const uint8_t *codes,
                                          uint64_t count, struct weft_program **out,
                                          struct weft_error *error) {
  assert(codes != NULL && microbatches > 0);
  uint64_t *row_sizes = weft_gpt_allocate(allocator, map->rank_count, sizeof *row_sizes);
  struct weft_action *actions = weft_gpt_allocate(allocator, count, sizeof *actions);
  enum weft_status status =
      row_sizes == NULL || actions == NULL
          ? weft_fail_memory(error, count * sizeof *actions)
          : read_rows(map, microbatches, codes, count, row_sizes, actions, error);
  if (status == WEFT_OK) {
    status = weft_program_create(allocator, map->rank_count, row_sizes, actions, out, error);
  }
  weft_gpt_free(allocator, row_sizes);
  weft_gpt_free(allocator, actions);
  return status;
}
