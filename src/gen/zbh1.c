/* ZB-H1 (arXiv 2401.10241): 1F1B with the backward split; W waits until memory
 * would exceed p microbatches or no forward is left, and so fills the bubble. */
#include <assert.h>
#include <math.h>

#include "gen/generator.h"

static double cells(const struct weft_shape *shape) {
  return 3.0 * shape->ranks * shape->microbatches;
}

static void put_row(const struct weft_shape *shape, uint32_t rank,
                    struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  const uint32_t m = shape->microbatches, p = shape->ranks;
  uint32_t forward = 0, weight = 0;
  for (; forward < weft_min_u32(m, p - rank); forward++) {
    weft_program_builder_put(row, WEFT_OP_F, rank, forward);
  }
  for (uint32_t input = 0; input < m; input++) {
    weft_program_builder_put(row, WEFT_OP_I, rank, input);
    if (forward - weight >= p || forward == m) {
      weft_program_builder_put(row, WEFT_OP_W, rank, weight++);
    }
    if (forward < m) {
      weft_program_builder_put(row, WEFT_OP_F, rank, forward++);
    }
  }
  for (; weight < m; weight++) {
    weft_program_builder_put(row, WEFT_OP_W, rank, weight);
  }
}

static double bubble(const struct weft_shape *shape, const struct weft_unit_costs *costs) {
  const double p = shape->ranks, filled = weft_min_u32(shape->microbatches, shape->ranks) - 1.0;
  return costs->w <= costs->i && costs->w <= costs->f
             ? (p - 1) * (costs->f + costs->i) - filled * costs->w
             : NAN;
}

const struct weft_generator weft_generator_zbh1 = {
    .info = {.name = "ZBH1",
             .summary = "zero bubble H1: split backward at the memory of 1F1B",
             .paper = "2401.10241",
             .placement = WEFT_PLACEMENT_LOOP,
             .stages_per_rank_min = 1,
             .stages_per_rank_max = 1,
             .stages_per_rank_default = 1,
             .splits_backward = true,
             .trains = true,
             .bubble = "(p-1)(F+I) - (min(m,p)-1)W for W <= F, I",
             .peak_activation = "min(m, p)",
             .limits = "",
             .bubble_of = bubble,
             .peak_of = weft_peak_of_1f1b},
    .cells = cells,
    .row = put_row};
