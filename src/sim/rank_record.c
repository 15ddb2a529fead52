/* From what a timeline says about each rank to the numbers of a simulation. */
#include "sim/rank_record.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include <weft/spec.h>

#include "ir/lifetimes.h"
#include "ir/program.h"

/* ---- Memory ---- */

/* Whether parameters or gradients have sizes. */
static bool exceeds_activations(const struct weft_costs *costs) {
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    const struct weft_stage_costs *stage = &costs->stages[s];
    if (stage->parameters > 0 || stage->gradients > 0 || stage->parameters_sharded > 0 ||
        stage->gradients_sharded > 0) {
      return true;
    }
  }
  return false;
}

enum weft_status weft_memory_model_init(struct weft_memory_model *model, struct weft_arena *arena,
                                        const struct weft_program *program,
                                        const struct weft_costs *costs, struct weft_error *error) {
  *model = (struct weft_memory_model){
      .costs = costs,
      .has_gradients = weft_arena_allocate(arena, program->stage_count, sizeof(bool))};
  if (exceeds_activations(costs)) { /* one more than needed: it is not NULL */
    const size_t collectives = weft_program_most_in_row(program, WEFT_OPS_SHARD);
    model->changes = weft_arena_allocate(arena, collectives + 1, sizeof *model->changes);
  }
  return weft_arena_status(arena, error);
}

/* No memory is in use. `changes` is the model's, and may serve one rank after the other; NULL:
 * parameters and gradients have no sizes. */
static void init_rank_memory(struct weft_rank_memory *memory, struct weft_memory_change *changes) {
  *memory = (struct weft_rank_memory){.next_at = INT64_MAX, .changes = changes};
}

static void change_memory(struct weft_rank_memory *memory, struct weft_memory_change change) {
  struct weft_memory_level *level = (void *)((char *)memory + change.kind);
  if (weft_memory_level_change(level, change.size) && level == &memory->activations) {
    memory->peak_at = change.at;
  }
  (void)weft_memory_level_change(&memory->total, change.size);
}

#define KIND(kind) offsetof(struct weft_rank_memory, kind)

/* What a stage has from the beginning: its shards. Parameters of a program that never shards them
 * are unsharded, and without backwards there are no gradients. */
static void add_stage(struct weft_rank_memory *memory, const struct weft_stage_costs *costs,
                      bool is_sharded, bool has_backward) {
  const double parameters = is_sharded ? costs->parameters_sharded : costs->parameters;
  const double gradients = has_backward ? costs->gradients_sharded : 0;
  change_memory(memory, (struct weft_memory_change){0, KIND(parameters), parameters});
  change_memory(memory, (struct weft_memory_change){0, KIND(gradients), gradients});
}

void weft_rank_memory_advance(struct weft_rank_memory *memory, int64_t until) {
  assert(memory->first <= memory->end);
  while (memory->first < memory->end && memory->changes[memory->first].at <= until) {
    change_memory(memory, memory->changes[memory->first++]);
  }
  memory->next_at = memory->first < memory->end ? memory->changes[memory->first].at : INT64_MAX;
}

void weft_rank_memory_first_backward(struct weft_rank_memory *memory,
                                     const struct weft_stage_costs *costs, int64_t at) {
  assert(costs != NULL && at >= 0);
  weft_rank_memory_advance(memory, at);
  change_memory(memory, (struct weft_memory_change){at, KIND(gradients),
                                                    costs->gradients - costs->gradients_sharded});
}

void weft_rank_memory_collective(struct weft_rank_memory *memory, enum weft_op op,
                                 const struct weft_stage_costs *costs, int64_t begin, int64_t end) {
  assert(begin <= end && weft_op_in(op, WEFT_OPS_SHARD));
  const double parameters = costs->parameters - costs->parameters_sharded;
  const double gradients = costs->gradients - costs->gradients_sharded;
  struct weft_memory_change change;
  switch (op) {
    case WEFT_OP_UNSHARD:
      change = (struct weft_memory_change){begin, KIND(parameters), parameters};
      break;
    case WEFT_OP_RESHARD:
      change = (struct weft_memory_change){end, KIND(parameters), -parameters};
      break;
    case WEFT_OP_REDUCE_GRAD:
      change = (struct weft_memory_change){end, KIND(gradients), -gradients};
      break;
    default: return; /* TIE_GRAD gives nothing back */
  }
  if (memory->changes != NULL) {
    memory->changes[memory->end++] = change;
    memory->next_at = memory->changes[memory->first].at;
  }
}

void weft_rank_records_init(struct weft_rank_record *records, const struct weft_program *program,
                            const struct weft_memory_model *model, const uint32_t *rank_of) {
  assert(records != NULL && rank_of != NULL && model->costs->stage_count > 0);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    init_rank_memory(&records[r].memory, model->changes);
  }
  if (model->changes == NULL) {
    return;
  }
  const bool is_sharded =
      weft_program_has(program, WEFT_OP_BIT(WEFT_OP_UNSHARD) | WEFT_OP_BIT(WEFT_OP_RESHARD));
  const bool has_backward = weft_program_has(program, WEFT_OPS_BACKWARD);
  for (uint32_t s = 0; s < program->stage_count; s++) {
    if (rank_of[s] != WEFT_RANK_NONE) {
      add_stage(&records[rank_of[s]].memory, weft_costs_of(model->costs, s), is_sharded,
                weft_saves_for_backward(program->graph, has_backward, s));
    }
  }
}

/* ---- Activations over time, from events ---- */

struct curve {
  struct weft_memory_point *points;
  uint64_t room;
  uint64_t count;
  double unit;     /* ticks */
  int64_t last_at; /* of the newest point */
  double size;
};

/* Several changes at one time are one point. */
static void record_size(struct curve *curve, const struct weft_rank_memory *memory, int64_t at) {
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
  init_rank_memory(&memory, NULL); /* parameters and gradients are not in it */
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
      record_size(&curve, &memory, at);
    }
    e += records;
  }
  *count = curve.count;
}

/* ---- Buffers ---- */

int weft_compare_times(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

uint32_t weft_buffers_peak(const int64_t *taken, const int64_t *freed, size_t count) {
  size_t f = 0;
  uint32_t peak = 0;
  for (size_t t = 0; t < count; t++) {
    assert(t == 0 || (taken[t - 1] <= taken[t] && freed[t - 1] <= freed[t]));
    while (f < count && freed[f] <= taken[t]) {
      f++;
    }
    /* What is consumed in no time when it comes is never in use. */
    const uint32_t used = (uint32_t)(t + 1 > f ? t + 1 - f : 0);
    peak = used > peak ? used : peak;
  }
  return peak;
}

static int compare_changes(const void *a, const void *b) {
  const struct weft_bytes_change *x = a, *y = b;
  return x->at != y->at ? (x->at > y->at) - (x->at < y->at)
                        : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

double weft_bytes_peak(struct weft_bytes_change *changes, size_t count) {
  assert(count == 0 || changes != NULL);
  double size = 0, peak = 0;
  if (count > 0) {
    qsort(changes, count, sizeof *changes, compare_changes);
  }
  for (size_t k = 0; k < count; k++) {
    size += changes[k].bytes;
    peak = size > peak ? size : peak;
  }
  return peak;
}

/* ---- Numbers of a simulation ---- */

static int64_t last_end(const struct weft_rank_record *record) {
  return record->clock > record->stream ? record->clock : record->stream;
}

static struct weft_rank_times times_of(const struct weft_rank_record *record, int64_t origin,
                                       int64_t end, double unit) {
  const int64_t first = record->has_begun ? record->first_begin : end;
  const int64_t last = record->has_begun ? last_end(record) : end;
  struct weft_rank_times times = {.busy = (double)record->busy / unit,
                                  .idle = (double)(end - origin - record->busy) / unit,
                                  .first_start = (double)(first - origin) / unit,
                                  .last_end = (double)(last - origin) / unit,
                                  .span = (double)(last - first) / unit,
                                  .peak_activation = record->memory.activations.peak,
                                  .peak_memory = record->memory.total.peak,
                                  .peak_parameters = record->memory.parameters.peak,
                                  .peak_gradients = record->memory.gradients.peak,
                                  .peak_at = (double)(record->memory.peak_at - origin) / unit,
                                  .receive_buffers_peak = record->buffers_peak,
                                  .message_bytes_peak = record->message_bytes_peak};
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    times.idle_by_cause[cause] = (double)record->idle[cause] / unit;
  }
  times.idle_by_cause[WEFT_IDLE_START] += times.first_start;
  times.idle_by_cause[WEFT_IDLE_END] = record->has_begun ? (double)(end - record->clock) / unit : 0;
  return times;
}

void weft_rank_records_summarize(const struct weft_rank_record *records, double ticks_per_unit,
                                 struct weft_simulation *simulation) {
  const uint32_t p = simulation->program->rank_count;
  int64_t first = INT64_MAX, busy = 0;
  double widest_idle = 0;
  assert(ticks_per_unit > 0);
  for (uint32_t r = 0; r < p; r++) {
    first = records[r].has_begun && records[r].first_begin < first ? records[r].first_begin : first;
  }
  first = first < INT64_MAX ? first : 0;
  int64_t end = first;
  for (uint32_t r = 0; r < p; r++) {
    end = records[r].has_begun && last_end(&records[r]) > end ? last_end(&records[r]) : end;
    busy += records[r].busy;
  }
  assert(busy >= 0 && end >= first);
  simulation->ticks_per_unit = ticks_per_unit;
  simulation->makespan = (double)(end - first) / ticks_per_unit;
  simulation->span = 0;
  simulation->peak_activation = 0;
  for (uint32_t r = 0; r < p; r++) {
    struct weft_rank_times *times = &simulation->ranks[r];
    *times = times_of(&records[r], first, end, ticks_per_unit);
    if (times->span > simulation->span) {
      simulation->span = times->span;
      widest_idle = times->span - times->busy;
    }
    simulation->peak_activation = fmax(simulation->peak_activation, times->peak_activation);
  }
  /* From integer ticks, so that a third is a third. */
  const double area = (double)(end - first) * p;
  simulation->bubble_ratio = area > 0 ? (area - (double)busy) / area : 0;
  simulation->span_bubble_ratio = simulation->span > 0 ? widest_idle / simulation->span : 0;
}
