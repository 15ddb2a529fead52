/* ForwardOnly: evaluation. A rank takes the deepest stage that has input, so
 * that as few activations as possible are under way:
 *   loop  groups of p microbatches go through all local stages before the next
 *         group begins, which is when the first stage would run dry;
 *   V     rank r sees a microbatch again 2(p-r)-1 steps later, and from then on
 *         alternates between its stages. */
#include <assert.h>
#include <math.h>

#include "gen/generator.h"

static double cells(const struct weft_shape *shape) {
  return (double)shape->ranks * shape->stages_per_rank * shape->microbatches;
}

static void put_loop_row(const struct weft_shape *shape, uint32_t rank,
                         struct weft_program_builder *row) {
  for (uint32_t begin = 0; begin < shape->microbatches; begin += shape->ranks) {
    const uint32_t end = begin + weft_min_u32(shape->ranks, shape->microbatches - begin);
    for (uint32_t k = 0; k < shape->stages_per_rank; k++) {
      for (uint32_t mb = begin; mb < end; mb++) {
        weft_program_builder_put(row, WEFT_OP_F, weft_shape_stage_of(shape, rank, k), mb);
      }
    }
  }
}

static void put_v_row(const struct weft_shape *shape, uint32_t rank,
                      struct weft_program_builder *row) {
  const uint32_t m = shape->microbatches;
  uint32_t down = 0;
  for (; down < weft_min_u32(m, 2 * (shape->ranks - rank) - 1); down++) {
    weft_program_builder_put(row, WEFT_OP_F, rank, down);
  }
  for (uint32_t up = 0; up < m; up++) {
    weft_program_builder_put(row, WEFT_OP_F, 2 * shape->ranks - 1 - rank, up);
    if (down < m) {
      weft_program_builder_put(row, WEFT_OP_F, rank, down++);
    }
  }
}

static void put_row(const struct weft_shape *shape, uint32_t rank,
                    struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  if (shape->placement == WEFT_PLACEMENT_V && shape->stages_per_rank == 2) {
    put_v_row(shape, rank, row);
  } else {
    put_loop_row(shape, rank, row);
  }
}

static double bubble(const struct weft_shape *shape, const struct weft_unit_costs *costs) {
  const bool exact =
      shape->placement == WEFT_PLACEMENT_LOOP && shape->microbatches % shape->ranks == 0;
  return exact ? (shape->ranks - 1.0) * costs->f : NAN;
}

const struct weft_generator weft_generator_forward_only = {
    .info = {.name = "ForwardOnly",
             .summary = "evaluation: forwards alone, at any placement, with little memory",
             .paper = "",
             .placement = WEFT_PLACEMENT_LOOP,
             WEFT_STAGES_PER_RANK(1, UINT32_MAX, 1),
             .bubble = "(p-1)F for loop placement, p | m",
             .peak_activation = "",
             .limits = "",
             .bubble_of = bubble},
    .cells = cells,
    .row = put_row};
