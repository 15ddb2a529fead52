/* Closed forms that several schedules share. */
#include "gen/generator.h"

double weft_bubble_full_backward(const struct weft_shape *shape,
                                 const struct weft_unit_costs *costs) {
  const double p = shape->ranks, v = shape->stages_per_rank, m = shape->microbatches;
  const double late = m < p ? (v - 1) * (p - m) : 0;
  return (p - 1 + late) * (costs->f + costs->i + costs->w);
}

double weft_peak_of_1f1b(const struct weft_shape *shape) {
  return weft_min_u32(shape->microbatches, shape->ranks);
}
