/* Splits layers into stages: by cost, or by given numbers of blocks. */
#include <assert.h>
#include <inttypes.h>

#include <weft/costs.h>
#include <weft/support.h>

#include "gpt/model/model.h"

/* Two operations per weight of the block's matrices (12 C^2), and attention's products
 * with keys and values, of which a token sees half of the context on average. The
 * embedding adds two rows; that is nearly nothing. */
double weft_gpt_layer_work(const struct weft_gpt_config *config, uint32_t layer) {
  assert(layer < weft_gpt_layer_count(config));
  const double c = config->dim;
  if (layer == 0) {
    return c;
  }
  if (layer == config->blocks + 1) {
    return 2 * c * config->vocabulary;
  }
  return 24 * c * c + 2 * c * config->context;
}

/* ---- By cost ---- */

enum weft_status weft_gpt_split(const struct weft_allocator *allocator,
                                const struct weft_gpt_config *config, const double *costs,
                                uint32_t stage_count, uint32_t *first, struct weft_error *error) {
  assert(first != NULL);
  const uint32_t count = weft_gpt_layer_count(config);
  if (stage_count < 1 || stage_count > count) {
    return weft_fail(error, WEFT_ERR_USAGE, "use more layers, or fewer stages",
                     "%" PRIu32 " stages; %" PRIu32
                     " layers, the embedding and the head make 1 to %" PRIu32,
                     stage_count, config->blocks, count);
  }
  if (costs != NULL) {
    return weft_balanced_partition(allocator, costs, count, stage_count, first, error);
  }
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  double *work = weft_arena_allocate(&arena, count, sizeof *work);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t p = 0; p < count; p++) {
    work[p] = weft_gpt_layer_work(config, p);
  }
  return weft_balanced_partition(allocator, work, count, stage_count, first, error);
}

/* ---- By given numbers of blocks ---- */

static enum weft_status check_counts(const struct weft_gpt_config *config, const uint32_t *blocks,
                                     uint32_t stage_count, struct weft_error *error) {
  uint64_t sum = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    if (blocks[s] == 0 && s > 0 && s + 1 < stage_count) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "only the first stage, with the embedding, and the last one, with the "
                       "head, may have none",
                       "stage %" PRIu32 " has no block", s);
    }
    sum += blocks[s];
  }
  if (stage_count < 1 || sum != config->blocks) {
    return weft_fail(error, WEFT_ERR_USAGE, "give a number of blocks for each stage",
                     "the %" PRIu32 " stages have %" PRIu64 " blocks; the model has %" PRIu32,
                     stage_count, sum, config->blocks);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_split_counts(const struct weft_gpt_config *config, const uint32_t *blocks,
                                       uint32_t stage_count, uint32_t *first,
                                       struct weft_error *error) {
  assert((blocks != NULL || stage_count == 0) && first != NULL);
  WEFT_TRY(check_counts(config, blocks, stage_count, error));
  uint32_t end = 1; /* after the embedding */
  first[0] = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    end += blocks[s];
    first[s + 1] = end;
  }
  first[stage_count]++; /* the head */
  return WEFT_OK;
}
