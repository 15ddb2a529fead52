/* A rank's activation memory over time, from its events. */
#include <assert.h>

#include <weft/sim.h>

#include "ir/lifetimes.h"
#include "ir/program.h"
#include "sim/rank_record.h"

struct curve {
  struct weft_memory_point *points;
  uint64_t room;
  uint64_t count;
  double unit;    /* ticks */
  int64_t last_at; /* of the newest point */
  double size;
};

/* Several changes at one time are one point. */
static void note_size(struct curve *curve, const struct weft_rank_memory *memory, int64_t at) {
  const double size = memory->activations.now;
  if (size == curve->size) {
    return;
  }
  curve->size = size;
  curve->count += curve->count == 0 || curve->last_at != at;
  curve->last_at = at;
  if (curve->points != NULL && curve->count <= curve->room) {
    curve->points[curve->count - 1] =
        (struct weft_memory_point){.at = (double)at / curve->unit, .size = size};
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
  struct curve curve = {.points = points, .room = room, .unit = simulation->ticks_per_unit};
  struct weft_rank_memory memory;
  weft_rank_memory_init(&memory, NULL); /* parameters and gradients are not in it */
  const bool trains = weft_program_has(program, WEFT_OPS_BACKWARD);
  for (uint64_t e = simulation->event_begin[rank]; e < simulation->event_begin[rank + 1];) {
    /* An overlap's parts begin together, then end together. */
    const struct weft_event *event = &simulation->events[e];
    const struct weft_action *cell = &program->actions[event->record];
    const uint32_t records = weft_cell_records(cell);
    for (uint32_t k = 0; k < 2 * records; k++) {
      const struct weft_action action = cell[k % records];
      const struct weft_stage_costs *stage = weft_costs_of(costs, action.stage);
      const struct weft_saved saved = weft_saved_by(
          action, stage->activation, stage->activation_after_i, program->graph, trains);
      const int64_t at = k < records ? event->begin : event->end;
      weft_rank_memory_activation(&memory, k < records ? saved.from_begin : saved.from_end, at);
      note_size(&curve, &memory, at);
    }
    e += records;
  }
  *count = curve.count;
}
