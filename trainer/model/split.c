/* Splits layers into stages: by cost, or by given numbers of blocks. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/costs.h>
#include <weft/support.h>

#include "trainer/model/model.h"

/* Two operations per weight of the block's matrices (12 C^2), and attention's products
 * with keys and values, of which a token sees half of the context on average. The
 * embedding adds two rows; that is nearly nothing. */
double weft_gpt_layer_work(const struct weft_gpt_config *config, uint32_t layer) {
  assert(layer < weft_gpt_layer_count(config));
  const double c = config->dim;
  if (layer == 0) {
    return c;
  }
  if (weft_gpt_is_head(config, layer)) {
    return 2 * c * config->vocabulary;
  }
  return 24 * c * c + 2 * c * config->context;
}

/* ---- Two heads ---- */

static bool is_begin(uint32_t stage_count, const uint32_t *first, uint32_t layer) {
  uint32_t s = 0;
  while (s < stage_count && first[s] < layer) {
    s++;
  }
  return first[s] == layer;
}

enum weft_status weft_gpt_split_check(const struct weft_gpt_config *config, uint32_t stage_count,
                                      const uint32_t *first, struct weft_error *error) {
  const uint32_t head = config->blocks + 1;
  if (weft_gpt_head_count(config) == 1 || !is_begin(stage_count, first, head + 1)) {
    return WEFT_OK;
  }
  if (config->tied) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "leave out --tied, or give the last stage blocks: both heads go there",
                     "stage %" PRIu32
                     " has the second head alone; the first one shares weights "
                     "with the embedding, and has to be on the last stage",
                     stage_count - 1);
  }
  return is_begin(stage_count, first, head)
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_USAGE,
                         "put both heads on the last stage, or each on a stage without blocks",
                         "stage %" PRIu32 " has blocks and the first head, and stage %" PRIu32
                         " the second one; a stage with a loss has nothing to pass on",
                         stage_count - 2, stage_count - 1);
}

/* ---- By cost ---- */

/* The largest cost of a stage. */
static double heaviest(const double *costs, uint32_t stage_count, const uint32_t *first) {
  double most = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    double sum = 0;
    for (uint32_t p = first[s]; p < first[s + 1]; p++) {
      sum += costs[p];
    }
    most = sum > most ? sum : most;
  }
  return most;
}

/* Two heads are one part at the end, or two stages of their own if that is lighter. `costs` has the
 * first `count` layers, and room; `first` and `apart` have room for the stages. */
static enum weft_status split_heads(const struct weft_allocator *allocator,
                                    const struct weft_gpt_config *config, double *costs,
                                    uint32_t stage_count, uint32_t *first, uint32_t *apart,
                                    struct weft_error *error) {
  const uint32_t head = config->blocks + 1;
  const double alone = costs[head];
  const bool can_join = stage_count <= head + 1;
  const bool can_part = stage_count > 2 && !config->tied;
  if (!can_join && !can_part) {
    return weft_fail(error, WEFT_ERR_USAGE, "use fewer stages, or leave out --tied",
                     "%" PRIu32
                     " stages; with --tied both heads are on one stage, and that "
                     "makes at most %" PRIu32,
                     stage_count, head + 1);
  }
  if (can_part) {
    WEFT_TRY(weft_balanced_partition(allocator, costs, head, stage_count - 2, apart, error));
    apart[stage_count - 1] = head + 1;
    apart[stage_count] = head + 2;
  }
  if (can_join) {
    costs[head] += costs[head + 1];
    WEFT_TRY(weft_balanced_partition(allocator, costs, head + 1, stage_count, first, error));
    costs[head] = alone;
    first[stage_count]++;
  }
  if (can_part &&
      (!can_join || heaviest(costs, stage_count, apart) < heaviest(costs, stage_count, first))) {
    memcpy(first, apart, (stage_count + 1u) * sizeof *first);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_split(const struct weft_allocator *allocator,
                                const struct weft_gpt_config *config, const double *costs,
                                uint32_t stage_count, uint32_t *first, struct weft_error *error) {
  assert(first != NULL);
  const uint32_t count = weft_gpt_layer_count(config);
  const uint32_t heads = weft_gpt_head_count(config);
  if (stage_count < 1 || stage_count > count) {
    return weft_fail(error, WEFT_ERR_USAGE, "use more layers, or fewer stages",
                     "%" PRIu32 " stages; %" PRIu32
                     " layers, the embedding and the head%s make 1 to %" PRIu32,
                     stage_count, config->blocks, heads > 1 ? "s" : "", count);
  }
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  double *work = weft_arena_allocate(&arena, count, sizeof *work);
  uint32_t *apart = weft_arena_allocate(&arena, stage_count + 1u, sizeof *apart);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t p = 0; p < count; p++) {
    work[p] = costs != NULL ? costs[p] : weft_gpt_layer_work(config, p);
  }
  return heads > 1 ? split_heads(allocator, config, work, stage_count, first, apart, error)
                   : weft_balanced_partition(allocator, work, count, stage_count, first, error);
}

/* ---- By given numbers of blocks ---- */

/* The embedding and each head can be a stage. */
static bool may_be_empty(const struct weft_gpt_config *config, uint32_t s, uint32_t stage_count) {
  return s == 0 || s + weft_gpt_head_count(config) >= stage_count;
}

static enum weft_status check_counts(const struct weft_gpt_config *config, const uint32_t *blocks,
                                     uint32_t stage_count, struct weft_error *error) {
  uint64_t sum = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    const bool heads_apart = s + 1 == stage_count || blocks[stage_count - 1] == 0;
    if (blocks[s] == 0 && !(may_be_empty(config, s, stage_count) && (s == 0 || heads_apart))) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       weft_gpt_head_count(config) == 1
                           ? "only the first stage, with the embedding, and the last one, with "
                             "the head, may have none"
                           : "only the first stage, with the embedding, and the last one or both "
                             "of the last two, with the heads, may have none",
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
  if (weft_gpt_head_count(config) > 1 && stage_count > 2 && blocks[stage_count - 1] == 0 &&
      blocks[stage_count - 2] == 0) {
    first[stage_count - 1]++; /* a head for each of them */
  }
  first[stage_count] = weft_gpt_layer_count(config);
  return WEFT_OK;
}
