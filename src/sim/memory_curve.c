/* A rank's activation memory over time, from its events. */
#include <assert.h>

#include <weft/sim.h>

#include "ir/lifetimes.h"
#include "ir/program.h"

struct curve {
  struct weft_memory_point *points;
  uint64_t room;
  uint64_t count;
  double last_at; /* of the newest point */
  double size;
};

/* Several changes at one time are one point. */
static void change(struct curve *curve, double at, double by) {
  if (by == 0) {
    return;
  }
  curve->size += by;
  curve->count += curve->count == 0 || curve->last_at != at;
  curve->last_at = at;
  if (curve->points != NULL && curve->count <= curve->room) {
    curve->points[curve->count - 1] = (struct weft_memory_point){.at = at, .size = curve->size};
  }
}

void weft_memory_curve(const struct weft_simulation *simulation, const struct weft_costs *costs,
                       uint32_t rank, struct weft_memory_point *points, uint64_t room,
                       uint64_t *count) {
  assert(rank < simulation->program->rank_count);
  assert(points != NULL || room == 0);
  const struct weft_program *program = simulation->program;
  struct weft_costs_view view;
  costs = weft_costs_of_stages(costs, program->rank_count, program->stage_count, &view);
  struct curve curve = {.points = points, .room = room};
  const double unit = simulation->ticks_per_unit;
  const bool trains = weft_program_has(program, WEFT_OPS_BACKWARD);
  for (uint64_t e = simulation->event_begin[rank]; e < simulation->event_begin[rank + 1];) {
    /* An overlap's parts begin together, then end together. */
    const struct weft_action *cell = &program->actions[simulation->events[e].record];
    const uint32_t records = weft_cell_records(cell);
    if (records == 1 && !weft_op_in(cell->op, WEFT_OPS_COMPUTE)) {
      e++;
      continue;
    }
    for (uint32_t k = 0; k < records; k++) {
      change(&curve, (double)simulation->events[e].begin / unit,
             weft_saved_from_begin(cell[k].op, weft_costs_of(costs, cell[k].stage)->activation));
    }
    for (uint32_t k = 0; k < records; k++) {
      if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
        const struct weft_stage_costs *stage = weft_costs_of(costs, cell[k].stage);
        change(&curve, (double)simulation->events[e].end / unit,
               weft_saved_from_end(cell[k].op, stage->activation, stage->activation_after_i,
                                   weft_saves_for_backward(program->graph, trains, cell[k].stage)));
      }
    }
    e += records;
  }
  *count = curve.count;
}
