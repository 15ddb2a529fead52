/* Ranks take turns; each goes on while its next cell's inputs have an end
 * time. Activations are counted in row order, which is time order on a rank. */
#include "support_timing.h"

#include <assert.h>
#include <stdlib.h>

struct times {
  const struct weft_program *table;
  const struct weft_unit_costs *costs;
  double *end[2]; /* of F, and of B or I: [stage][microbatch], -1: not yet */
};

static double duration(const struct times *times, struct weft_action action) {
  switch (action.op) {
    case WEFT_OP_F: return times->costs->f;
    case WEFT_OP_B: return times->costs->i + times->costs->w;
    case WEFT_OP_I: return times->costs->i;
    case WEFT_OP_W: return times->costs->w;
    default: return 0;
  }
}

static double *end_of(const struct times *times, bool forward, uint32_t stage, uint32_t mb) {
  return &times->end[forward ? 0 : 1][(size_t)stage * times->table->microbatch_count + mb];
}

/* When its input is there; -1 if that is not known yet. */
static double input_time(const struct times *times, struct weft_action action) {
  const bool forward = action.op == WEFT_OP_F;
  if (forward && action.stage > 0) {
    return *end_of(times, true, action.stage - 1u, action.microbatch);
  }
  if ((action.op == WEFT_OP_B || action.op == WEFT_OP_I) &&
      action.stage + 1u < times->table->stage_count) {
    return *end_of(times, false, action.stage + 1u, action.microbatch);
  }
  return 0;
}

/* Runs the cell at `clock`; -1 if it has to wait for something not yet known. */
static double run_cell(const struct times *times, const struct weft_action *cell, double clock) {
  for (uint32_t k = 0; k <= cell->parts; k++) {
    const double input = input_time(times, cell[k]);
    if (input < 0) {
      return -1;
    }
    clock = input > clock ? input : clock;
  }
  for (uint32_t k = 0; k <= cell->parts; k++) {
    clock += duration(times, cell[k]);
  }
  for (uint32_t k = 0; k <= cell->parts; k++) {
    if (cell[k].op == WEFT_OP_F || cell[k].op == WEFT_OP_B || cell[k].op == WEFT_OP_I) {
      *end_of(times, cell[k].op == WEFT_OP_F, cell[k].stage, cell[k].microbatch) = clock;
    }
  }
  return clock;
}

/* An overlap's F takes its memory before its B gives any back. */
static double peak_of_row(const struct weft_program *table, uint32_t rank) {
  long held = 0, peak = 0;
  for (uint64_t i = table->row_begin[rank]; i < table->row_begin[rank + 1]; i++) {
    const uint8_t op = table->actions[i].op;
    held += op == WEFT_OP_F;
    peak = held > peak ? held : peak;
    held -= op == WEFT_OP_B || op == WEFT_OP_W;
  }
  return (double)peak;
}

struct timing time_table(const struct weft_program *table, const struct weft_unit_costs *costs) {
  const size_t pairs = (size_t)table->stage_count * table->microbatch_count;
  struct times times = {.table = table,
                        .costs = costs,
                        .end = {malloc(pairs * sizeof(double)), malloc(pairs * sizeof(double))}};
  double *clock = calloc(table->rank_count, sizeof *clock);
  uint64_t *at = calloc(table->rank_count, sizeof *at);
  struct timing timing = {0};
  assert(times.end[0] != NULL && times.end[1] != NULL && clock != NULL && at != NULL);
  for (size_t i = 0; i < pairs; i++) {
    times.end[0][i] = times.end[1][i] = -1;
  }
  for (uint32_t r = 0; r < table->rank_count; r++) {
    at[r] = table->row_begin[r];
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t r = 0; r < table->rank_count; r++) {
      while (at[r] < table->row_begin[r + 1]) {
        const struct weft_action *cell = &table->actions[at[r]];
        const double end = run_cell(&times, cell, clock[r]);
        if (end < 0) {
          break;
        }
        clock[r] = end;
        at[r] += 1u + cell->parts;
        moved = true;
      }
    }
  }
  for (uint32_t r = 0; r < table->rank_count; r++) {
    assert(at[r] == table->row_begin[r + 1]);
    const double peak = peak_of_row(table, r);
    timing.makespan = clock[r] > timing.makespan ? clock[r] : timing.makespan;
    timing.peak = peak > timing.peak ? peak : timing.peak;
  }
  free(times.end[0]);
  free(times.end[1]);
  free(clock);
  free(at);
  return timing;
}
