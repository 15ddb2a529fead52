/* Simulation, makespan, period: what the public header promises, from runs. */
#include <weft/sim.h>
#include <weft/support.h>

#include <assert.h>

#include "sim/event_waits.h"
#include "sim/sim_run.h"

struct weft_sim_options weft_sim_options_default(void) {
  return (struct weft_sim_options){.channel = WEFT_CHANNEL_EDGE};
}

const char *weft_idle_cause_name(enum weft_idle_cause cause) {
  assert((unsigned)cause < WEFT_IDLE_CAUSES);
  static const char *const names[WEFT_IDLE_CAUSES] = {"start",   "forward", "gradient",
                                                      "channel", "unshard", "end"};
  return names[cause];
}

const char *weft_idle_cause_words(enum weft_idle_cause cause) {
  assert((unsigned)cause < WEFT_IDLE_CAUSES);
  static const char *const words[WEFT_IDLE_CAUSES] = {
      "before its first action", "waiting for activations", "waiting for gradients",
      "waiting for a channel",   "waiting for parameters",  "after its last action"};
  return words[cause];
}

bool weft_memory_fits(double memory, double limit) { return memory <= limit * (1 + 1e-9); }

#define SCOPED_RUN WEFT_SCOPED_BY(weft_sim_run_finish) struct weft_sim_run

/* ---- Simulation ---- */

/* The simulation and the arena that owns it, and what it points at but for events and arrivals. */
struct owned_simulation {
  struct weft_simulation simulation;
  struct weft_arena arena;
  size_t arrival_count;
};

/* Events: one per record that is no bubble. */
static void count_events(const struct weft_program *program, uint64_t *begin) {
  for (uint32_t r = 0; r < program->rank_count; r++) {
    uint64_t count = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      count += program->actions[i].op != WEFT_OP_IDLE;
    }
    begin[r + 1] = begin[r] + count;
  }
}

/* Without events all of them begin at 0, and there are none. */
static enum weft_status allocate_results(const struct weft_sim_run *run,
                                         struct owned_simulation *owned, struct weft_error *error) {
  const uint32_t p = run->program->rank_count;
  struct weft_simulation *simulation = &owned->simulation;
  uint64_t *begin = weft_arena_allocate(&owned->arena, p + 1u, sizeof *begin);
  simulation->ranks = weft_arena_allocate(&owned->arena, p, sizeof *simulation->ranks);
  WEFT_TRY(weft_arena_status(&owned->arena, error));
  simulation->event_begin = begin;
  if (run->options.no_events) {
    return WEFT_OK;
  }
  count_events(run->program, begin);
  simulation->event_count = begin[p];
  simulation->events = weft_array_allocate(owned->arena.allocator, simulation->event_count,
                                           sizeof *simulation->events);
  return simulation->events != NULL
             ? WEFT_OK
             : weft_fail_memory(error, simulation->event_count * sizeof *simulation->events);
}

/* ---- Results ---- */

static enum weft_status simulate(struct weft_sim_run *run, struct owned_simulation *owned,
                                 struct weft_error *error) {
  struct weft_sim_recorder recorder;
  WEFT_TRY(allocate_results(run, owned, error));
  WEFT_TRY(weft_sim_run_all(run, NULL, error));
  enum weft_status status = weft_sim_recorder_init(&recorder, run, error);
  if (status == WEFT_OK) {
    assert(owned->simulation.event_begin[0] == 0);
    recorder.events = owned->simulation.events;
    recorder.event_begin = owned->simulation.event_begin;
    weft_sim_record_all(&recorder);
    owned->simulation.program = run->program;
    weft_rank_records_summarize(recorder.records, run->ticks.per_unit, &owned->simulation);
  }
  weft_sim_recorder_finish(&recorder);
  /* What RECVs have as their ends; the simulation keeps it. */
  struct weft_timed_machine *machine = &run->machine;
  if (status == WEFT_OK && run->keeps_messages && !machine->options.has_transfers &&
      !run->options.no_events) {
    owned->simulation.arrivals = machine->inputs;
    owned->arrival_count = machine->input_count;
    machine->inputs = NULL;
  }
  return status;
}

enum weft_status weft_simulate(const struct weft_allocator *allocator,
                               const struct weft_program *program, const struct weft_costs *costs,
                               const struct weft_sim_options *options, struct weft_simulation **out,
                               struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(costs, error);
  WEFT_NEED(out, error);
  SCOPED_RUN run;
  WEFT_TRY(weft_sim_run_init(&run, allocator, program, costs, options, true, error));
  struct weft_arena arena = {.allocator = allocator};
  struct owned_simulation *owned = weft_arena_allocate(&arena, 1, sizeof *owned);
  WEFT_TRY(weft_arena_status(&arena, error));
  owned->arena = arena;
  const enum weft_status status = simulate(&run, owned, error);
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
  weft_simulation_drop_arrivals(simulation);
  weft_arena_finish(&arena);
}

void weft_simulation_drop_arrivals(struct weft_simulation *simulation) {
  struct owned_simulation *owned = (struct owned_simulation *)simulation;
  weft_array_free(owned->arena.allocator, simulation->arrivals, owned->arrival_count,
                  sizeof *simulation->arrivals);
  simulation->arrivals = NULL;
}

enum weft_status weft_sim_require_events(const struct weft_simulation *simulation,
                                         struct weft_error *error) {
  assert(simulation != NULL);
  return simulation->events != NULL
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_USAGE, "simulate without no_events",
                         "the simulation has no events: it was made with no_events");
}

/* ---- Makespan ---- */

static int64_t last_end(const struct weft_timed_rank *rank) {
  return rank->clock > rank->stream ? rank->clock : rank->stream;
}

/* Ranks begin at 0, so the last end is the makespan if something begins at once;
 * a table's stage 0 does. */
static int64_t latest_end(const struct weft_sim_run *run) {
  int64_t latest = 0;
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    const int64_t end = last_end(&run->machine.ranks[r]);
    latest = end > latest ? end : latest;
  }
  return latest;
}

enum weft_status weft_makespan(const struct weft_allocator *allocator,
                               const struct weft_program *program, const struct weft_costs *costs,
                               const struct weft_sim_options *options, double *makespan,
                               struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(costs, error);
  WEFT_NEED(makespan, error);
  SCOPED_RUN run;
  WEFT_TRY(weft_sim_run_init(&run, allocator, program, costs, options, false, error));
  WEFT_TRY(weft_sim_run_all(&run, NULL, error));
  *makespan = (double)latest_end(&run) / run.ticks.per_unit;
  return WEFT_OK;
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
      now[r] = last_end(&run->machine.ranks[r]);
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
  *period = (double)(last[0] - half[0]) / (double)PERIOD_HALF / run->ticks.per_unit;
  return WEFT_OK;
}

enum weft_status weft_period(const struct weft_allocator *allocator,
                             const struct weft_program *program, const struct weft_costs *costs,
                             const struct weft_sim_options *options, double *period,
                             struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(costs, error);
  WEFT_NEED(period, error);
  SCOPED_RUN run;
  WEFT_TRY(weft_sim_run_init(&run, allocator, program, costs, options, false, error));
  const size_t size = (size_t)(PERIOD_STEPS_MAX + 1) * program->rank_count;
  int64_t *history = weft_arena_allocate(&run.arena, size, sizeof *history);
  WEFT_TRY(weft_arena_status(&run.arena, error));
  return program->rank_count > 0 ? find_period(&run, history, period, error) : WEFT_OK;
}
