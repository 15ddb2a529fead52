/* Simulation, makespan, period: what the public header promises, from runs. */
#include <weft/sim.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "analyze/sim_run.h"
#include "base/fail.h"

struct weft_sim_options weft_sim_options_default(void) {
  return (struct weft_sim_options){.channel = WEFT_CHANNEL_EDGE};
}

const char *weft_idle_cause_name(enum weft_idle_cause cause) {
  static const char *const names[WEFT_IDLE_CAUSES] = {"start",   "forward", "gradient",
                                                      "channel", "unshard", "end"};
  return names[cause];
}

static const struct weft_sim_options *or_default(const struct weft_sim_options *options,
                                                 struct weft_sim_options *standard) {
  *standard = weft_sim_options_default();
  return options != NULL ? options : standard;
}

/* ---- The whole simulation ---- */

/* The simulation and the arena that owns all it points at. */
struct owned_simulation {
  struct weft_simulation simulation;
  struct weft_arena arena;
};

/* Events: one per record that is no bubble. Buffers: at most one per action that
 * takes an input. */
static void count_rows(const struct weft_program *program, uint64_t *events, uint64_t *buffers) {
  const uint32_t takers = WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    uint64_t event_count = 0, buffer_count = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      event_count += program->actions[i].op != WEFT_OP_IDLE;
      buffer_count += weft_op_in(program->actions[i].op, takers);
    }
    events[r + 1] = events[r] + event_count;
    buffers[r + 1] = buffers[r] + buffer_count;
  }
}

static bool allocate_records(struct weft_sim_run *run) {
  const uint32_t p = run->program->rank_count;
  const uint64_t buffers = run->buffer_begin[p];
  run->held_up = weft_array_allocate(run->allocator, 2 * run->pairs, sizeof *run->held_up);
  run->taken = weft_array_allocate(run->allocator, 2 * buffers, sizeof *run->taken);
  run->records = weft_arena_allocate(&run->arena, p, sizeof *run->records);
  run->has_gradients =
      weft_arena_allocate(&run->arena, run->program->stage_count, sizeof *run->has_gradients);
  if (run->held_up == NULL || run->taken == NULL || run->records == NULL ||
      run->has_gradients == NULL) {
    return false;
  }
  run->freed = run->taken + buffers;
  for (uint32_t r = 0; r < p; r++) {
    run->records[r].late_first = WEFT_EVENT_NONE;
  }
  return true;
}

static bool allocate_events(struct weft_sim_run *run, struct owned_simulation *owned) {
  const uint32_t p = run->program->rank_count;
  struct weft_simulation *simulation = &owned->simulation;
  uint64_t *begin = weft_arena_allocate(&owned->arena, p + 1u, sizeof *begin);
  run->buffer_begin = weft_arena_allocate(&run->arena, p + 1u, sizeof *run->buffer_begin);
  if (begin == NULL || run->buffer_begin == NULL) {
    return false;
  }
  count_rows(run->program, begin, run->buffer_begin);
  simulation->event_count = begin[p];
  simulation->event_begin = begin;
  simulation->events = weft_array_allocate(owned->arena.allocator, simulation->event_count,
                                           sizeof *simulation->events);
  simulation->ranks = weft_arena_allocate(&owned->arena, p, sizeof *simulation->ranks);
  run->events = simulation->events;
  run->event_begin = begin;
  return simulation->events != NULL && simulation->ranks != NULL && allocate_records(run);
}

/* Parameters that are never sharded are there all the time. */
static void hold_parameters(struct weft_sim_run *run) {
  const struct weft_program *program = run->program;
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (program->actions[i].op == WEFT_OP_UNSHARD || program->actions[i].op == WEFT_OP_RESHARD) {
      return;
    }
  }
  for (uint32_t s = 0; s < program->stage_count; s++) {
    if (run->rank_of[s] != WEFT_RANK_NONE) {
      struct weft_rank_record *record = &run->records[run->rank_of[s]];
      record->memory += weft_costs_of(run->costs, s)->parameters;
      record->peak_memory = record->memory;
    }
  }
}

/* ---- Receive buffers ---- */

static int compare_times(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Receives stand nearly in the order of their arrival, so insertion is nearly
 * free; where they do not, sorting takes over. */
static void sort_times(int64_t *times, size_t count) {
  size_t moves = 0;
  for (size_t i = 1; i < count; i++) {
    const int64_t time = times[i];
    size_t j = i;
    for (; j > 0 && times[j - 1] > time; j--) {
      times[j] = times[j - 1];
      moves++;
    }
    times[j] = time;
    if (moves > 16 * count) {
      qsort(times, count, sizeof *times, compare_times);
      return;
    }
  }
}

/* Both lists are in order of time then, so one walk finds the peak. */
static uint32_t peak_buffers(const struct weft_sim_run *run, uint32_t rank) {
  const size_t count = (size_t)run->records[rank].buffer_count;
  int64_t *taken = run->taken + run->buffer_begin[rank];
  const int64_t *freed = run->freed + run->buffer_begin[rank];
  size_t f = 0;
  uint32_t peak = 0;
  sort_times(taken, count);
  for (size_t t = 0; t < count; t++) {
    while (f < count && freed[f] <= taken[t]) {
      f++;
    }
    const uint32_t held = (uint32_t)(t + 1 - f);
    peak = held > peak ? held : peak;
  }
  return peak;
}

/* ---- Results ---- */

static int64_t last_end(const struct weft_rank_run *rank) {
  return rank->clock > rank->stream ? rank->clock : rank->stream;
}

struct range {
  int64_t first;
  int64_t last;
};

/* From the first begin to the last end, over ranks that do anything. */
static struct range whole_range(const struct weft_sim_run *run) {
  struct range range = {.first = INT64_MAX, .last = INT64_MIN};
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    const struct weft_rank_record *record = &run->records[r];
    if (record->has_begun) {
      const int64_t end = last_end(&run->ranks[r]);
      range.first = record->first_begin < range.first ? record->first_begin : range.first;
      range.last = end > range.last ? end : range.last;
    }
  }
  return range.first == INT64_MAX ? (struct range){0, 0} : range;
}

static void fill_rank(const struct weft_sim_run *run, uint32_t rank, struct range range,
                      struct weft_rank_times *times) {
  const struct weft_rank_record *record = &run->records[rank];
  const double unit = run->ticks.per_unit;
  const int64_t first = record->has_begun ? record->first_begin : range.last;
  const int64_t last = record->has_begun ? last_end(&run->ranks[rank]) : range.last;
  times->busy = (double)record->busy / unit;
  times->idle = (double)(range.last - range.first - record->busy) / unit;
  times->first_start = (double)(first - range.first) / unit;
  times->last_end = (double)(last - range.first) / unit;
  times->span = (double)(last - first) / unit;
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    times->idle_by_cause[cause] = (double)record->idle[cause] / unit;
  }
  times->idle_by_cause[WEFT_IDLE_START] = (double)(first - range.first) / unit;
  times->idle_by_cause[WEFT_IDLE_END] = (double)(range.last - run->ranks[rank].clock) / unit;
  if (!record->has_begun) {
    times->idle_by_cause[WEFT_IDLE_END] = 0;
  }
  times->peak_activation = record->peak_activation;
  times->peak_memory = record->peak_memory;
  times->peak_at = (double)(record->peak_at - range.first) / unit;
}

static void fill_simulation(const struct weft_sim_run *run, struct weft_simulation *simulation) {
  const struct range range = whole_range(run);
  const uint32_t p = run->program->rank_count;
  int64_t busy = 0;
  double widest_idle = 0;
  simulation->program = run->program;
  simulation->ticks_per_unit = run->ticks.per_unit;
  simulation->makespan = (double)(range.last - range.first) / run->ticks.per_unit;
  for (uint32_t r = 0; r < p; r++) {
    struct weft_rank_times *times = &simulation->ranks[r];
    fill_rank(run, r, range, times);
    times->receive_buffers_peak = peak_buffers(run, r);
    busy += run->records[r].busy;
    if (times->span > simulation->span) {
      simulation->span = times->span;
      widest_idle = times->span - times->busy;
    }
    simulation->peak_activation = fmax(simulation->peak_activation, times->peak_activation);
  }
  /* From whole ticks, so that a third is a third. */
  const double whole = (double)(range.last - range.first) * p;
  simulation->bubble_ratio = whole > 0 ? (whole - (double)busy) / whole : 0;
  simulation->span_bubble_ratio = simulation->span > 0 ? widest_idle / simulation->span : 0;
}

static enum weft_status simulate(struct weft_sim_run *run, struct owned_simulation *owned,
                                 struct weft_error *error) {
  if (!allocate_events(run, owned)) {
    return weft_fail_memory(error, run->program->action_count * sizeof(struct weft_event));
  }
  hold_parameters(run);
  WEFT_TRY(weft_sim_run_all(run, NULL, error));
  fill_simulation(run, &owned->simulation);
  return WEFT_OK;
}

enum weft_status weft_simulate(const struct weft_allocator *allocator,
                               const struct weft_program *program, const struct weft_costs *costs,
                               const struct weft_sim_options *options, struct weft_simulation **out,
                               struct weft_error *error) {
  struct weft_sim_options standard;
  struct weft_sim_run run;
  struct owned_simulation *owned = weft_array_allocate_zero(allocator, 1, sizeof *owned);
  if (owned == NULL) {
    return weft_fail_memory(error, sizeof *owned);
  }
  owned->arena.allocator = allocator;
  enum weft_status status =
      weft_sim_run_init(&run, allocator, program, costs, or_default(options, &standard), error);
  if (status == WEFT_OK) {
    status = simulate(&run, owned, error);
  }
  weft_sim_run_finish(&run);
  if (status < 0) {
    weft_simulation_destroy(&owned->simulation);
    return status;
  }
  *out = &owned->simulation;
  return WEFT_OK;
}

void weft_simulation_destroy(struct weft_simulation *simulation) {
  if (simulation == NULL) {
    return;
  }
  struct owned_simulation *owned = (struct owned_simulation *)simulation; /* its first member */
  struct weft_arena arena = owned->arena;
  weft_array_free(arena.allocator, simulation->events, simulation->event_count,
                  sizeof *simulation->events);
  weft_array_free(arena.allocator, owned, 1, sizeof *owned);
  weft_arena_finish(&arena);
}

/* ---- Makespan ---- */

/* Ranks begin at 0, so the last end is the makespan if something begins at once;
 * a table's stage 0 does. */
static int64_t latest_end(const struct weft_sim_run *run) {
  int64_t latest = 0;
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    const int64_t end = last_end(&run->ranks[r]);
    latest = end > latest ? end : latest;
  }
  return latest;
}

enum weft_status weft_makespan(const struct weft_allocator *allocator,
                               const struct weft_program *program, const struct weft_costs *costs,
                               const struct weft_sim_options *options, double *makespan,
                               struct weft_error *error) {
  struct weft_sim_options standard;
  struct weft_sim_run run;
  enum weft_status status =
      weft_sim_run_init(&run, allocator, program, costs, or_default(options, &standard), error);
  if (status == WEFT_OK) {
    status = weft_sim_run_all(&run, NULL, error);
  }
  if (status == WEFT_OK) {
    *makespan = (double)latest_end(&run) / run.ticks.per_unit;
  }
  weft_sim_run_finish(&run);
  return status;
}

/* ---- Period ----
 *
 * A step maps the times at which ranks may begin to the times at which they have
 * ended; the next step begins there. The map is linear in the algebra of maxima
 * and sums, so after some steps the times repeat, shifted by a constant every
 * few steps: that constant over the number of steps is the period. */
enum { PERIOD_HALF = 32, PERIOD_STEPS_MAX = 2 * PERIOD_HALF, PERIOD_CYCLE_MAX = 8 };

/* Whether now and then differ by the same shift on every rank. */
static bool is_shifted(const int64_t *now, const int64_t *then, uint32_t ranks) {
  for (uint32_t r = 1; r < ranks; r++) {
    if (now[r] - then[r] != now[0] - then[0]) {
      return false;
    }
  }
  return true;
}

static enum weft_status find_period(struct weft_sim_run *run, int64_t *history, double *period,
                                    struct weft_error *error) {
  const uint32_t p = run->program->rank_count;
  for (uint32_t step = 0; step < PERIOD_STEPS_MAX; step++) {
    int64_t *now = history + (size_t)(step + 1) * p;
    WEFT_TRY(weft_sim_run_all(run, now - p, error));
    for (uint32_t r = 0; r < p; r++) {
      now[r] = last_end(&run->ranks[r]);
    }
    for (uint32_t cycle = 1; cycle <= PERIOD_CYCLE_MAX && cycle <= step; cycle++) {
      const int64_t *then = now - (size_t)cycle * p;
      if (is_shifted(now, then, p)) {
        *period = (double)(now[0] - then[0]) / cycle / run->ticks.per_unit;
        return WEFT_OK;
      }
    }
  }
  /* Not yet settled: the mean of the second half is within 1/32 of a step. */
  const int64_t *last = history + (size_t)PERIOD_STEPS_MAX * p;
  const int64_t *half = history + (size_t)PERIOD_HALF * p;
  *period = (double)(last[0] - half[0]) / PERIOD_HALF / run->ticks.per_unit;
  return WEFT_OK;
}

enum weft_status weft_period(const struct weft_allocator *allocator,
                             const struct weft_program *program, const struct weft_costs *costs,
                             const struct weft_sim_options *options, double *period,
                             struct weft_error *error) {
  struct weft_sim_options standard;
  struct weft_sim_run run;
  const size_t size = (size_t)(PERIOD_STEPS_MAX + 1) * program->rank_count;
  int64_t *history = weft_array_allocate_zero(allocator, size, sizeof *history);
  if (history == NULL) {
    return weft_fail_memory(error, size * sizeof *history);
  }
  enum weft_status status =
      weft_sim_run_init(&run, allocator, program, costs, or_default(options, &standard), error);
  if (status == WEFT_OK) {
    status = program->rank_count > 0 ? find_period(&run, history, period, error) : WEFT_OK;
  }
  weft_sim_run_finish(&run);
  weft_array_free(allocator, history, size, sizeof *history);
  return status;
}
