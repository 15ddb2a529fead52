/* GPipe (arXiv 1811.06965): all forwards, then all backwards. */
#include "gen/generator.h"

#include <assert.h>

static double cells(const struct weft_shape *shape) {
  return (double)shape->ranks * (2.0 * shape->microbatches + 1.0);
}

/* The recipe's bubbles are left out of the written table, and REDUCE_GRAD ends
 * each row: so PyTorch writes it. */
static void put_row(const struct weft_shape *shape, uint32_t rank,
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

static double peak(const struct weft_shape *shape) { return shape->microbatches; }

const struct weft_generator weft_generator_gpipe = {
    .info = {.name = "GPipe",
             .summary = "all forwards, then all backwards",
             .paper = "1811.06965",
             .placement = WEFT_PLACEMENT_LOOP,
             .stages_per_rank_min = 1,
             .stages_per_rank_max = 1,
             .stages_per_rank_default = 1,
             .trains = true,
             .in_pytorch = true,
             .bubble = "(p-1)(F+B)",
             .peak_activation = "m",
             .limits = "",
             .bubble_of = weft_bubble_full_backward,
             .peak_of = peak},
    .cells = cells,
    .row = put_row};
