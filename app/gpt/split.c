/* How parts become stages: by cost, or by given numbers of blocks.
 *
 * Costs are taken in units of 2^-48 of the largest (rounded up to a power of two), as
 * integers: sums are exact then, and the same from either end. Where to cut is cut.c's. */
#include <inttypes.h>
#include <math.h>

#include "gpt/cut.h"
#include "gpt/fail.h"
#include "gpt/memory.h"
#include "gpt/model.h"

_Static_assert(WEFT_GPT_LAYERS_MAX + 2 < 1 << 14, "2^14 parts of 2^48 units are below 2^63");
enum { UNIT_BITS = 48 };

/* Two operations per weight of the block's matrices (12 C^2), and attention's products
 * with keys and values, of which a token sees half of the context on average. The
 * embedding adds two rows; that is nearly nothing. */
double weft_gpt_part_work(const struct weft_gpt_config *config, uint32_t part) {
  const double c = config->dim;
  if (part == 0) {
    return c;
  }
  if (part == config->layers + 1) {
    return 2 * c * config->vocabulary;
  }
  return 24 * c * c + 2 * c * config->context;
}

/* ---- By cost ---- */

static enum weft_status check_costs(const double *costs, uint32_t count, struct weft_error *error) {
  for (uint32_t p = 0; p < count; p++) {
    if (!isfinite(costs[p]) || costs[p] < 0) {
      return weft_gpt_fail(error, WEFT_ERR_USAGE, "",
                           "the cost of part %" PRIu32 " is %g; expected a number from 0 on", p,
                           costs[p]);
    }
  }
  return WEFT_OK;
}

static double cost_of(const struct weft_gpt_config *config, const double *costs, uint32_t part) {
  return costs != NULL ? costs[part] : weft_gpt_part_work(config, part);
}

/* Sums of the costs as integers. If nothing costs anything, parts count alike. */
static void add_up(const struct weft_gpt_config *config, const double *costs, uint64_t *sums) {
  const uint32_t count = weft_gpt_part_count(config);
  double largest = 0;
  int exponent;
  for (uint32_t p = 0; p < count; p++) {
    largest = fmax(largest, cost_of(config, costs, p));
  }
  (void)frexp(largest, &exponent);
  sums[0] = 0;
  for (uint32_t p = 0; p < count; p++) {
    const double cost = ldexp(cost_of(config, costs, p), UNIT_BITS - exponent);
    sums[p + 1] = sums[p] + (largest > 0 ? (uint64_t)round(cost) : 1);
  }
}

enum weft_status weft_gpt_split(const struct weft_allocator *allocator,
                                const struct weft_gpt_config *config, const double *costs,
                                uint32_t stage_count, uint32_t *first, struct weft_error *error) {
  const uint32_t count = weft_gpt_part_count(config);
  if (stage_count < 1 || stage_count > count) {
    return weft_gpt_fail(error, WEFT_ERR_USAGE, "use more layers, or fewer stages",
                         "%" PRIu32 " stages; %" PRIu32
                         " layers, the embedding and the head make 1 to %" PRIu32,
                         stage_count, config->layers, count);
  }
  if (costs != NULL) {
    WEFT_GPT_TRY(check_costs(costs, count, error));
  }
  uint64_t *sums = weft_gpt_allocate(allocator, count + 1, sizeof *sums);
  if (sums == NULL) {
    return weft_gpt_fail_memory(error, (count + 1) * sizeof *sums);
  }
  add_up(config, costs, sums);
  const enum weft_status status = weft_gpt_cut(allocator, sums, count, stage_count, first, error);
  weft_gpt_free(allocator, sums);
  return status;
}

/* ---- By given numbers of blocks ---- */

static enum weft_status check_counts(const struct weft_gpt_config *config, const uint32_t *blocks,
                                     uint32_t stage_count, struct weft_error *error) {
  uint64_t sum = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    if (blocks[s] == 0 && s > 0 && s + 1 < stage_count) {
      return weft_gpt_fail(error, WEFT_ERR_USAGE,
                           "only the first stage, with the embedding, and the last one, with the "
                           "head, may have none",
                           "stage %" PRIu32 " has no block", s);
    }
    sum += blocks[s];
  }
  if (stage_count < 1 || sum != config->layers) {
    return weft_gpt_fail(error, WEFT_ERR_USAGE, "give a number of blocks for each stage",
                         "the %" PRIu32 " stages have %" PRIu64 " blocks; the model has %" PRIu32,
                         stage_count, sum, config->layers);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_split_counts(const struct weft_gpt_config *config, const uint32_t *blocks,
                                       uint32_t stage_count, uint32_t *first,
                                       struct weft_error *error) {
  WEFT_GPT_TRY(check_counts(config, blocks, stage_count, error));
  uint32_t end = 1; /* after the embedding */
  first[0] = 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    end += blocks[s];
    first[s + 1] = end;
  }
  first[stage_count]++; /* the head */
  return WEFT_OK;
}
