/* Breadth first: every local stage takes all microbatches before the next one begins. GPipe (arXiv
 * 1811.06965) has one stage per rank, Looped BFS (arXiv 2211.05953) several. */
#include "gen/generator.h"

#include <assert.h>

static double peak(const struct weft_shape *shape) { return shape->microbatches; }

/* ---- GPipe ---- */

static double gpipe_cells(const struct weft_shape *shape) {
  return (double)shape->ranks * (2.0 * shape->microbatches + 1.0);
}

/* The recipe's bubbles are left out of the written table, and REDUCE_GRAD ends
 * each row: so PyTorch writes it. */
static void put_gpipe_row(const struct weft_shape *shape, uint32_t rank,
                          struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  for (uint32_t mb = 0; mb < shape->microbatches; mb++) {
    weft_program_builder_put(row, WEFT_OP_F, rank, mb);
  }
  for (uint32_t mb = 0; mb < shape->microbatches; mb++) {
    weft_program_builder_put(row, WEFT_OP_B, rank, mb);
  }
  weft_program_builder_put(row, WEFT_OP_REDUCE_GRAD, rank, 0);
}

const struct weft_generator weft_generator_gpipe = {
    .info = {.name = "GPipe",
             .summary = "all forwards, then all backwards",
             .paper = "1811.06965",
             .placement = WEFT_PLACEMENT_LOOP,
             WEFT_STAGES_PER_RANK(1, 1, 1),
             .trains = true,
             .in_pytorch = true,
             .bubble = "(p-1)(F+B)",
             .peak_activation = "m",
             .limits = "",
             .bubble_of = weft_bubble_full_backward,
             .peak_of = peak},
    .cells = gpipe_cells,
    .row = put_gpipe_row};

/* ---- Looped BFS ---- */

static double cells(const struct weft_shape *shape) {
  const double p = shape->ranks;
  return p * (2.0 * shape->stages_per_rank * shape->microbatches) + 2.0 * p * p;
}

static void put_row(const struct weft_shape *shape, uint32_t rank,
                    struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  const uint32_t m = shape->microbatches, v = shape->stages_per_rank;
  weft_program_builder_idle(row, rank);
  for (uint32_t k = 0; k < v; k++) {
    for (uint32_t mb = 0; mb < m; mb++) {
      weft_program_builder_put(row, WEFT_OP_F, weft_shape_stage_of(shape, rank, k), mb);
    }
  }
  weft_program_builder_idle(row, 2 * (uint64_t)(shape->ranks - 1 - rank));
  for (uint32_t k = v; k-- > 0;) {
    for (uint32_t mb = m; mb-- > 0;) {
      weft_program_builder_put(row, WEFT_OP_B, weft_shape_stage_of(shape, rank, k), mb);
    }
  }
}

const struct weft_generator weft_generator_looped_bfs = {
    .info = {.name = "LoopedBFS",
             .summary = "breadth first: each local stage takes all microbatches in turn",
             .paper = "2211.05953",
             .placement = WEFT_PLACEMENT_LOOP,
             WEFT_STAGES_PER_RANK(1, UINT32_MAX, 2),
             .trains = true,
             .in_pytorch = true,
             .bubble = "(p-1 + (v-1)max(0, p-m))(F+B)",
             .peak_activation = "m",
             .limits = "",
             .bubble_of = weft_bubble_full_backward,
             .peak_of = peak},
    .cells = cells,
    .row = put_row};
