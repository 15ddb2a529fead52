/* `weft bench sim`: time and memory of the simulation, per action of the
 * lowered program, without and with its events, and of the makespan alone, which a
 * search calls. The answers are checked first (bench_sim_check.c).
 *
 * Times are CPU times, as in bench_plan.c. */
#include <assert.h>
#include <string.h>

#include <weft/weft.h>

#include "bench/bench_clock.h"
#include "bench/bench_sim.h"
#include "cli/io/error_message.h"

enum { WIDE_RANKS = 1024, WIDE_STAGES_PER_RANK = 2, WIDE_MICROBATCHES = 4096, SVG_SCHEDULE = 1 };

/* What is simulated again and again. */
struct run {
  struct weft_bench_counter counter; /* all its memory goes through it */
  struct weft_costs *costs;
  struct weft_program *table;
  struct weft_program *program;
};

static void release(struct run *run) {
  weft_program_destroy(run->program);
  weft_program_destroy(run->table);
  weft_costs_destroy(run->costs);
}

/* On success the run is the caller's to release. */
static int prepare_run(const struct weft_cli *cli, const struct weft_bench_case *at,
                       struct run *run, uint64_t *plan_ns) {
  struct weft_error error;
  *run = (struct run){.costs = NULL};
  weft_bench_counter_init(&run->counter, cli->allocator);
  const struct weft_allocator *allocator = &run->counter.allocator;
  const uint64_t begin = weft_bench_cpu_ns();
  if (weft_generate(allocator, at->schedule, &at->shape, &run->table, &error) < 0 ||
      weft_lower(allocator, run->table, NULL, &run->program, &error) < 0 ||
      weft_costs_create(allocator, 1, &run->costs, &error) < 0) {
    release(run);
    return weft_cli_fail(cli, NULL, &error);
  }
  *plan_ns = weft_bench_cpu_ns() - begin;
  run->costs->of = WEFT_COSTS_OF_STAGE;
  return WEFT_CLI_OK;
}

static enum weft_status simulate(const struct run *run, bool no_events,
                                 struct weft_simulation **simulation, struct weft_error *error) {
  struct weft_sim_options options = weft_sim_options_default();
  options.no_events = no_events;
  return weft_simulate(&run->counter.allocator, run->program, run->costs, &options, simulation,
                       error);
}

/* One simulation, and the system's part of it. */
static enum weft_status time_simulation(const struct run *run, bool no_events, uint64_t times_ns[2],
                                        double *makespan, struct weft_error *error) {
  struct weft_simulation *simulation;
  const uint64_t system_begin = weft_bench_system_ns(), begin = weft_bench_cpu_ns();
  const enum weft_status status = simulate(run, no_events, &simulation, error);
  if (status < 0) {
    return status;
  }
  times_ns[0] = weft_bench_cpu_ns() - begin;
  times_ns[1] = weft_bench_system_ns() - system_begin;
  *makespan = simulation->makespan;
  weft_simulation_destroy(simulation);
  return WEFT_OK;
}

static enum weft_status time_simulations(const struct run *run,
                                         uint64_t times_ns[WEFT_BENCH_SIM_PHASES], double *makespan,
                                         bool *same, struct weft_error *error) {
  double without;
  enum weft_status status =
      time_simulation(run, true, &times_ns[WEFT_BENCH_SIM_NUMBERS], &without, error);
  if (status == WEFT_OK) {
    status = time_simulation(run, false, &times_ns[WEFT_BENCH_SIM_EVENTS], makespan, error);
  }
  *same = status == WEFT_OK && without == *makespan;
  return status;
}

/* One pass: both simulations, the makespan, the makespan of the table. */
static enum weft_status pass(const struct run *run, uint64_t times_ns[WEFT_BENCH_SIM_PHASES],
                             bool *same, struct weft_error *error) {
  const struct weft_allocator *allocator = &run->counter.allocator;
  const struct weft_costs *costs = run->costs;
  double expected, of_program = 0, of_table = 0;
  enum weft_status status = time_simulations(run, times_ns, &expected, same, error);
  if (status < 0) {
    return status;
  }
  const uint64_t program_begin = weft_bench_cpu_ns();
  status = weft_makespan(allocator, run->program, costs, NULL, &of_program, error);
  const uint64_t table_begin = weft_bench_cpu_ns();
  if (status == WEFT_OK) {
    status = weft_makespan(allocator, run->table, costs, NULL, &of_table, error);
  }
  if (status < 0) {
    return status;
  }
  times_ns[WEFT_BENCH_SIM_MAKESPAN] = table_begin - program_begin;
  times_ns[WEFT_BENCH_SIM_TABLE] = weft_bench_cpu_ns() - table_begin;
  *same = *same && of_program == expected && of_table == expected;
  return WEFT_OK;
}

/* The most that is held while it simulates, the program included. */
static int measure_peak(const struct weft_cli *cli, struct run *run, bool no_events,
                        size_t *bytes) {
  struct weft_simulation *simulation;
  struct weft_error error;
  run->counter.bytes_peak = run->counter.bytes_now;
  if (simulate(run, no_events, &simulation, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  weft_simulation_destroy(simulation);
  *bytes = run->counter.bytes_peak;
  return WEFT_CLI_OK;
}

static int measure_memory(const struct weft_cli *cli, struct run *run,
                          struct weft_bench_sim_measurement *measurement) {
  struct weft_bench_counter *counter = &run->counter;
  const size_t held = counter->bytes_now;
  struct weft_error error;
  double makespan;
  counter->bytes_peak = held;
  if (weft_makespan(&counter->allocator, run->program, run->costs, NULL, &makespan, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  measurement->makespan_bytes = counter->bytes_peak;
  int status = measure_peak(cli, run, true, &measurement->numbers_bytes);
  if (status == WEFT_CLI_OK) {
    status = measure_peak(cli, run, false, &measurement->events_bytes);
  }
  if (status == WEFT_CLI_OK && counter->bytes_now != held) {
    status = weft_bench_fail(cli, &measurement->at, "memory is lost");
  }
  return status;
}

/* A measurement under way. */
struct sampling {
  struct weft_bench_sim_measurement *measurement;
  struct run run;
  uint64_t count;
  uint64_t samples[WEFT_BENCH_SIM_PHASES][WEFT_BENCH_REPEATS_MAX];
};

/* Checks first. On success the run is there until end_sampling(). */
static int begin_sampling(const struct weft_cli *cli, struct sampling *sampling,
                          struct weft_bench_sim_measurement *measurement) {
  struct run *run = &sampling->run;
  sampling->measurement = measurement;
  sampling->count = 0;
  weft_bench_print_case(cli, &measurement->at);
  int status = prepare_run(cli, &measurement->at, run, &measurement->plan_ns);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  measurement->at.actions = run->program->action_count;
  measurement->table_actions = run->table->action_count;
  status = weft_bench_check_sim(cli, &measurement->at, run->table, run->program);
  if (status == WEFT_CLI_OK) {
    status = measure_memory(cli, run, measurement);
  }
  if (status != WEFT_CLI_OK) {
    release(run);
  }
  return status;
}

static int sample(const struct weft_cli *cli, struct sampling *sampling) {
  struct weft_bench_case *at = &sampling->measurement->at;
  uint64_t times_ns[WEFT_BENCH_SIM_PHASES];
  struct weft_error error;
  bool same;
  const uint64_t clock_begin = weft_bench_now_ns(), cpu_begin = weft_bench_cpu_ns();
  if (pass(&sampling->run, times_ns, &same, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  at->clock_ns += weft_bench_now_ns() - clock_begin;
  at->cpu_ns += weft_bench_cpu_ns() - cpu_begin;
  if (!same) {
    return weft_bench_fail(cli, at, "two runs give different times");
  }
  for (unsigned phase = 0; phase < WEFT_BENCH_SIM_PHASES; phase++) {
    sampling->samples[phase][sampling->count] = times_ns[phase];
  }
  sampling->count++;
  return WEFT_CLI_OK;
}

static void end_sampling(struct sampling *sampling) {
  for (unsigned phase = 0; phase < WEFT_BENCH_SIM_PHASES; phase++) {
    sampling->measurement->times_ns[phase] =
        weft_bench_median(sampling->samples[phase], (size_t)sampling->count);
  }
  release(&sampling->run);
}

/* The small and the large program alternate */
static int take_turns(const struct weft_cli *cli, struct sampling *small, struct sampling *large) {
  const uint64_t rounds = large != NULL ? large->measurement->at.repeats : 1;
  const uint64_t repeats = small->measurement->at.repeats;
  int status = WEFT_CLI_OK;
  for (uint64_t round = 1; round <= rounds && status == WEFT_CLI_OK; round++) {
    while (small->count * rounds < round * repeats && status == WEFT_CLI_OK) {
      status = sample(cli, small);
    }
    if (large != NULL && status == WEFT_CLI_OK) {
      status = sample(cli, large);
    }
  }
  return status;
}

/* `large` may be NULL. */
static int measure(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   struct weft_bench_sim_measurement *small,
                   struct weft_bench_sim_measurement *large) {
  struct sampling of_small, of_large;
  int status = begin_sampling(cli, &of_small, small);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  if (large != NULL) {
    large->at = weft_bench_large_case(arguments, &small->at);
    status = begin_sampling(cli, &of_large, large);
  }
  if (status != WEFT_CLI_OK) {
    release(&of_small.run);
    return status;
  }
  status = take_turns(cli, &of_small, large != NULL ? &of_large : NULL);
  end_sampling(&of_small);
  if (large != NULL) {
    end_sampling(&of_large);
  }
  return status;
}

/* ---- The picture ---- */

static int draw(const struct weft_cli *cli, const struct weft_bench_case *at,
                const struct weft_simulation *simulation, const struct weft_costs *costs,
                struct weft_bench_sim_results *results) {
  const struct weft_render_options options = weft_render_options_default();
  const struct weft_picture picture = {
      .name = at->schedule, .simulation = simulation, .costs = costs};
  uint64_t samples[WEFT_BENCH_REPEATS_MAX];
  for (uint64_t i = 0; i < at->repeats; i++) {
    struct weft_text text = {.allocator = cli->allocator};
    struct weft_error error;
    const uint64_t begin = weft_bench_cpu_ns();
    const enum weft_status status = weft_render_svg(&picture, &options, &text, &error);
    samples[i] = weft_bench_cpu_ns() - begin;
    results->svg_bytes = text.size;
    const bool whole = status == WEFT_OK && strstr(text.data, "</svg>") != NULL;
    weft_text_finish(&text);
    if (status < 0) {
      return weft_cli_fail(cli, NULL, &error);
    }
    if (!whole) {
      return weft_bench_fail(cli, at, "the SVG is not whole");
    }
  }
  results->svg_ns = weft_bench_median(samples, (size_t)at->repeats);
  return WEFT_CLI_OK;
}

static int measure_svg(const struct weft_cli *cli, const struct weft_bench_case *at,
                       struct weft_bench_sim_results *results) {
  struct run run;
  struct weft_simulation *simulation;
  struct weft_error error;
  uint64_t plan_ns;
  int status = prepare_run(cli, at, &run, &plan_ns);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  if (weft_simulate(cli->allocator, run.program, run.costs, NULL, &simulation, &error) < 0) {
    status = weft_cli_fail(cli, NULL, &error);
  } else {
    status = draw(cli, at, simulation, run.costs, results);
    weft_simulation_destroy(simulation);
  }
  release(&run);
  return status;
}

/* ---- All ---- */

static int measure_all(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_bench_sim_results *results) {
  int status = WEFT_CLI_OK;
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES && status == WEFT_CLI_OK; i++) {
    results->small[i].at = weft_bench_small_case(arguments, i);
    status =
        measure(cli, arguments, &results->small[i], results->has_large ? &results->large[i] : NULL);
  }
  if (status == WEFT_CLI_OK) {
    results->svg_at = results->small[SVG_SCHEDULE].at;
    status = measure_svg(cli, &results->svg_at, results);
  }
  if (status == WEFT_CLI_OK && results->has_wide) {
    results->wide.at = (struct weft_bench_case){.schedule = "InterleavedZeroBubble",
                                                .shape = {.ranks = WIDE_RANKS,
                                                          .stages_per_rank = WIDE_STAGES_PER_RANK,
                                                          .microbatches = WIDE_MICROBATCHES},
                                                .repeats = 1};
    status = measure(cli, arguments, &results->wide, NULL);
  }
  return status;
}

int weft_bench_cmd_sim(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  struct weft_bench_sim_results results = {.has_large = arguments->given[WEFT_CLI_OPTION_LARGE],
                                           /* Not when another size was asked for. */
                                           .has_wide = arguments->given[WEFT_CLI_OPTION_LARGE] &&
                                                       !arguments->given[WEFT_CLI_OPTION_ACTIONS]};
  const int status = measure_all(cli, arguments, &results);
  if (status == WEFT_CLI_OK && json != NULL) {
    weft_bench_add_sim_json(json, &results);
  } else if (status == WEFT_CLI_OK) {
    weft_bench_add_sim_text(text, &results);
  }
  return status;
}
