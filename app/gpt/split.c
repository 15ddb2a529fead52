/* How parts become stages: the cut whose heaviest stage is as light as can be.
 *
 * Costs are taken in units of 2^-48 of the largest (rounded up to a power of two), as
 * integers: sums are exact then, and the same from either end. Up to 2^12 parts of
 * 2^48 units stay far below 2^64. Whether all parts fit into the stages under a bound
 * is found by filling one stage after the other, so the least bound is found by
 * bisection. No memory is needed beyond `first`. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "gpt/fail.h"
#include "gpt/model.h"

_Static_assert(WEFT_GPT_LAYERS_MAX + 2 < 1 << 14, "2^14 parts of 2^48 units are below 2^64");
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

/* ---- Costs as integers ---- */

struct weights {
  const struct weft_gpt_config *config;
  const double *costs; /* or NULL */
  uint32_t count;
  bool alike; /* nothing costs anything: then parts count alike */
  int shift;
};

static double cost_of(const struct weights *weights, uint32_t part) {
  return weights->costs != NULL ? weights->costs[part] : weft_gpt_part_work(weights->config, part);
}

static uint64_t weight_of(const struct weights *weights, uint32_t part) {
  return weights->alike ? 1 : (uint64_t)round(ldexp(cost_of(weights, part), weights->shift));
}

static enum weft_status weights_init(struct weights *weights, const struct weft_gpt_config *config,
                                     const double *costs, struct weft_error *error) {
  double largest = 0;
  int exponent;
  *weights =
      (struct weights){.config = config, .costs = costs, .count = weft_gpt_part_count(config)};
  for (uint32_t p = 0; p < weights->count; p++) {
    const double cost = cost_of(weights, p);
    if (!isfinite(cost) || cost < 0) {
      return weft_gpt_fail(error, WEFT_ERR_USAGE, "",
                           "the cost of part %" PRIu32 " is %g; expected a number from 0 on", p,
                           cost);
    }
    largest = fmax(largest, cost);
  }
  (void)frexp(largest, &exponent);
  weights->shift = UNIT_BITS - exponent;
  weights->alike = largest <= 0;
  return WEFT_OK;
}

/* ---- The least bound ---- */

/* Each stage takes what it can: no cut under this bound has fewer stages. */
static uint32_t stages_needed(const struct weights *weights, uint64_t bound) {
  uint32_t stages = 1;
  uint64_t load = 0;
  for (uint32_t p = 0; p < weights->count; p++) {
    const uint64_t weight = weight_of(weights, p);
    if (load + weight > bound) {
      stages++;
      load = 0;
    }
    load += weight;
  }
  return stages;
}

static uint64_t least_bound(const struct weights *weights, uint32_t stage_count) {
  uint64_t low = 0; /* the heaviest part: no bound is less */
  uint64_t high = 0;
  for (uint32_t p = 0; p < weights->count; p++) {
    const uint64_t weight = weight_of(weights, p);
    low = weight > low ? weight : low;
    high += weight;
  }
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (stages_needed(weights, middle) <= stage_count) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/* ---- A balanced cut under it ---- */

/* first[s]: where stage s may begin at the earliest, so that the rest fits under the
 * bound, and every stage has a part. */
static void earliest_begins(const struct weights *weights, uint64_t bound, uint32_t stage_count,
                            uint32_t *first) {
  uint32_t begin = weights->count;
  first[stage_count] = begin;
  for (uint32_t s = stage_count; s-- > 0;) {
    uint64_t load = 0;
    while (begin > s && load + weight_of(weights, begin - 1) <= bound) {
      load += weight_of(weights, --begin);
    }
    first[s] = begin;
  }
  assert(first[0] == 0);
}

/* Whether a stage comes nearer to its share with one more part; if it is as near, the
 * shorter one is taken. */
static bool is_nearer(uint64_t load, uint64_t weight, uint64_t share) {
  return load < share && (load + weight <= share || load + weight - share < share - load);
}

/* From the earliest begins to a cut: each stage takes as near to its share of what is
 * left as the bound and the stages after it allow. */
static void balance(const struct weights *weights, uint64_t bound, uint32_t stage_count,
                    uint32_t *first) {
  uint64_t left = 0;
  uint32_t end = 0;
  for (uint32_t p = 0; p < weights->count; p++) {
    left += weight_of(weights, p);
  }
  for (uint32_t s = 0; s < stage_count; s++) {
    const uint32_t stages_after = stage_count - s - 1;
    const uint64_t share = left / (stages_after + 1);
    uint64_t load = weight_of(weights, end);
    first[s] = end++;
    while (end < weights->count - stages_after) {
      const uint64_t weight = weight_of(weights, end);
      const bool must = end < first[s + 1];
      if (!must && (load + weight > bound || !is_nearer(load, weight, share))) {
        break;
      }
      load += weight;
      end++;
    }
    assert(load <= bound);
    left -= load;
  }
  assert(end == weights->count && first[stage_count] == end);
}

enum weft_status weft_gpt_split(const struct weft_gpt_config *config, const double *costs,
                                uint32_t stage_count, uint32_t *first, struct weft_error *error) {
  struct weights weights;
  if (stage_count < 1 || stage_count > weft_gpt_part_count(config)) {
    return weft_gpt_fail(error, WEFT_ERR_USAGE, "use more layers, or fewer stages",
                         "%" PRIu32 " stages; %" PRIu32
                         " layers, the embedding and the head make 1 to %" PRIu32,
                         stage_count, config->layers, weft_gpt_part_count(config));
  }
  WEFT_GPT_TRY(weights_init(&weights, config, costs, error));
  const uint64_t bound = least_bound(&weights, stage_count);
  earliest_begins(&weights, bound, stage_count, first);
  balance(&weights, bound, stage_count, first);
  return WEFT_OK;
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
