/* 1F1B (arXiv 2006.09503, 2104.04473): after a warm-up, forward and backward
 * alternate, so that a rank holds few activations. Eager 1F1B warms up about
 * twice as long, which hides the time of a transfer behind one more forward. */
#include "gen/generator.h"

#include <assert.h>
#include <math.h>

static double cells(const struct weft_shape *shape) {
  return (double)shape->ranks * (2.0 * shape->microbatches + 1.0);
}

static void put_1f1b(const struct weft_shape *shape, uint32_t rank, uint32_t warm_up,
                     struct weft_program_builder *row) {
  const uint32_t m = shape->microbatches;
  uint32_t forward = 0;
  for (; forward < weft_min_u32(m, warm_up); forward++) {
    weft_program_builder_put(row, WEFT_OP_F, rank, forward);
  }
  for (uint32_t backward = 0; backward < m; backward++) {
    if (forward < m) {
      weft_program_builder_put(row, WEFT_OP_F, rank, forward++);
    }
    weft_program_builder_put(row, WEFT_OP_B, rank, backward);
  }
}

static void put_row(const struct weft_shape *shape, uint32_t rank,
                    struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  put_1f1b(shape, rank, shape->ranks - 1 - rank, row);
  weft_program_builder_put(row, WEFT_OP_REDUCE_GRAD, rank, 0);
}

static void put_eager_row(const struct weft_shape *shape, uint32_t rank,
                          struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  put_1f1b(shape, rank, 2 * (shape->ranks - 1 - rank), row);
}

static double eager_peak(const struct weft_shape *shape) {
  return weft_min_u32(shape->microbatches, 2 * shape->ranks - 1);
}

const struct weft_generator weft_generator_1f1b = {
    .info = {.name = "1F1B",
             .summary = "one forward, one backward, after a warm-up",
             .paper = "2006.09503",
             .placement = WEFT_PLACEMENT_LOOP,
             WEFT_STAGES_PER_RANK(1, 1, 1),
             .trains = true,
             .in_pytorch = true,
             .bubble = "(p-1)(F+B)",
             .peak_activation = "min(m, p)",
             .limits = "",
             .bubble_of = weft_bubble_full_backward,
             .peak_of = weft_peak_of_1f1b},
    .cells = cells,
    .row = put_row};

const struct weft_generator weft_generator_eager_1f1b = {
    .info = {.name = "Eager1F1B",
             .summary = "1F1B with a longer warm-up that hides transfers",
             .paper = "",
             .placement = WEFT_PLACEMENT_LOOP,
             WEFT_STAGES_PER_RANK(1, 1, 1),
             .trains = true,
             .bubble = "(p-1)(F+B)",
             .peak_activation = "min(m, 2p-1)",
             .limits = "",
             .bubble_of = weft_bubble_full_backward,
             .peak_of = eager_peak},
    .cells = cells,
    .row = put_eager_row};

/* ---- ZB-H1 (arXiv 2401.10241): 1F1B with the backward split; W waits until memory would exceed p
 * microbatches or no forward is left, and so fills the bubble ---- */

static double zbh1_cells(const struct weft_shape *shape) {
  return 3.0 * shape->ranks * shape->microbatches;
}

static void put_zbh1_row(const struct weft_shape *shape, uint32_t rank,
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

static double zbh1_bubble(const struct weft_shape *shape, const struct weft_unit_costs *costs) {
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
             WEFT_STAGES_PER_RANK(1, 1, 1),
             .splits_backward = true,
             .trains = true,
             .bubble = "(p-1)(F+I) - (min(m,p)-1)W for W <= F, I",
             .peak_activation = "min(m, p)",
             .limits = "",
             .bubble_of = zbh1_bubble,
             .peak_of = weft_peak_of_1f1b},
    .cells = zbh1_cells,
    .row = put_zbh1_row};
