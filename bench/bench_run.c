/* `weft bench run`: what the runtime costs. With stages that do nothing, on one
 * thread: the executor, in CPU time per action; with stages that sleep, a thread
 * per rank: how near a run comes to its simulation; and the hand-over of a message
 * (bench_handover.c). Before a schedule is measured it is run in virtual time,
 * where it must take exactly the simulated time; and no step but the first may
 * allocate. */
#include "bench/bench_run.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "bench/bench_clock.h"
#include "bench/bench_steps.h"
#include "cli/cmd/execution.h"
#include "cli/io/error_message.h"

enum {
  RANKS = 8,
  MICROBATCHES = 32,
  MICROBATCHES_LONG = 256,
  ACTIONS_MEASURED = 400000, /* of a measurement, about */
  STEPS_MIN = 5,
  STEPS_MAX = 100,
  SLEEP_STEPS = 4, /* the first is a warm-up */
  REPEATS = 9
};

/* ---- The program, and what it is run with ---- */

/* Counts calls; ranks of several threads may share it. */
struct counter {
  struct weft_allocator allocator;
  const struct weft_allocator *inner;
  uint64_t calls;
};

static void *count(void *context, void *pointer, size_t old_size, size_t new_size) {
  struct counter *counter = context;
  (void)__atomic_add_fetch(&counter->calls, 1, __ATOMIC_RELAXED);
  return counter->inner->reallocate(counter->inner->context, pointer, old_size, new_size);
}

/* Read between steps. */
struct watch {
  struct counter counter;
  uint64_t first_calls; /* when the first step was over */
  uint64_t last_calls;
  uint64_t last_ns;
  uint64_t samples[STEPS_MAX];
  uint32_t sample_count;
};

static void look(void *context, uint32_t step) {
  struct watch *watch = context;
  const uint64_t now = weft_bench_cpu_ns();
  if (step > 1 && watch->sample_count < STEPS_MAX) {
    watch->samples[watch->sample_count++] = now - watch->last_ns;
  }
  watch->last_calls = __atomic_load_n(&watch->counter.calls, __ATOMIC_RELAXED);
  watch->first_calls = step == 1 ? watch->last_calls : watch->first_calls;
  watch->last_ns = weft_bench_cpu_ns();
}

static void watch_init(struct watch *watch, const struct weft_cli *cli) {
  memset(watch, 0, sizeof *watch);
  watch->counter.allocator =
      (struct weft_allocator){.reallocate = count, .context = &watch->counter};
  watch->counter.inner = cli->allocator;
}

struct run {
  struct weft_named_source source;
  struct weft_program *program;
  struct weft_costs *costs;
  struct weft_simulation *simulation;
};

static void release(struct run *run) {
  weft_simulation_destroy(run->simulation);
  weft_costs_destroy(run->costs);
  weft_program_destroy(run->program);
}

/* The times of the stages that sleep, in ms. */
static void set_costs(struct weft_costs *costs) {
  struct weft_stage_costs *stage = &costs->stages[0];
  stage->f = stage->i = stage->w = 2;
  stage->b = 4;
  memcpy(costs->unit, "ms", 3);
}

static int prepare_run(const struct weft_cli *cli, struct weft_bench_case *at, struct run *run) {
  struct weft_error error;
  *run = (struct run){.source = {.allocator = cli->allocator,
                                 .schedule = at->schedule,
                                 .ranks = at->shape.ranks,
                                 .stages_per_rank = at->shape.stages_per_rank}};
  if (weft_source_named(&run->source, at->shape.microbatches, true, &run->program, &error) < 0 ||
      weft_costs_create(cli->allocator, 1, &run->costs, &error) < 0) {
    release(run);
    return weft_cli_fail(cli, NULL, &error);
  }
  set_costs(run->costs);
  run->costs->of = WEFT_COSTS_OF_STAGE;
  if (weft_simulate(cli->allocator, run->program, run->costs, NULL, &run->simulation, &error) < 0) {
    release(run);
    return weft_cli_fail(cli, NULL, &error);
  }
  at->actions = run->program->action_count;
  return WEFT_CLI_OK;
}

static struct weft_cli_execution execution_of(const struct weft_cli *cli, const struct run *run,
                                              struct weft_cli_stages *stages, const char *transport,
                                              uint32_t step_count) {
  return (struct weft_cli_execution){.cli = cli,
                                     .allocator = cli->allocator,
                                     .program = run->program,
                                     .stages = stages,
                                     .transport = weft_comm_find(transport),
                                     .step_count = step_count};
}

static int init_stages(const struct weft_cli *cli, const struct run *run,
                       enum weft_cli_stage_kind kind, double per_unit,
                       struct weft_cli_stages *stages) {
  const struct weft_cli_time_scale scale = {.per_unit = per_unit};
  return weft_cli_stages_init(stages, cli, run->program, run->costs, kind, &scale);
}

/* ---- The answer ---- */

static int check(const struct weft_cli *cli, const struct weft_bench_case *at,
                 const struct run *run) {
  const double per_unit = run->simulation->ticks_per_unit;
  struct weft_cli_stages stages;
  struct weft_error error;
  int status = init_stages(cli, run, WEFT_CLI_STAGE_VIRTUAL, per_unit, &stages);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  struct weft_cli_execution execution = execution_of(cli, run, &stages, "loopback", 1);
  if (weft_cli_execute(&execution, &error) < 0) {
    status = weft_cli_fail(cli, NULL, &error);
  } else if ((double)execution.makespans[0] / per_unit != run->simulation->makespan) {
    status = weft_bench_fail(cli, at, "in virtual time it does not take the simulated time");
  }
  weft_cli_execution_finish(&execution);
  weft_cli_stages_finish(&stages);
  return status;
}

/* ---- The executor ---- */

/* Of one round; the first is a warm-up. */
static uint32_t choose_steps(const struct weft_bench_case *at) {
  const uint64_t steps = ACTIONS_MEASURED / at->actions / REPEATS;
  return (uint32_t)(steps < STEPS_MIN ? STEPS_MIN : steps > STEPS_MAX ? STEPS_MAX : steps);
}

/* One round: the median of its steps becomes *calmest_ns, if it is less. */
static int time_steps(const struct weft_cli *cli, const struct run *run,
                      struct weft_cli_stages *stages, bool no_events,
                      struct weft_bench_executor_measurement *measurement, uint64_t *calmest_ns) {
  struct watch watch;
  struct weft_error error;
  watch_init(&watch, cli);
  const struct weft_bench_steps steps = {.allocator = &watch.counter.allocator,
                                         .source = &run->source,
                                         .rank_count = run->program->rank_count,
                                         .microbatch_count = run->program->microbatch_count,
                                         .stages = stages,
                                         .step_count = choose_steps(&measurement->at),
                                         .no_events = no_events,
                                         .between = look,
                                         .context = &watch};
  if (weft_bench_steps(&steps, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  const uint64_t median = weft_bench_median(watch.samples, watch.sample_count);
  *calmest_ns = *calmest_ns == 0 || median < *calmest_ns ? median : *calmest_ns;
  measurement->allocations += watch.last_calls - watch.first_calls;
  return WEFT_CLI_OK;
}

/* With and without the event log, alternating. Other work on the machine slows whole rounds down
 * by more than the log costs, so the fastest round of each counts. */
static int time_rounds(const struct weft_cli *cli, const struct run *run,
                       struct weft_cli_stages *stages,
                       struct weft_bench_executor_measurement *measurement) {
  int status = WEFT_CLI_OK;
  for (uint64_t k = 0; k < measurement->at.repeats && status == WEFT_CLI_OK; k++) {
    status = time_steps(cli, run, stages, false, measurement, &measurement->with_ns);
    if (status == WEFT_CLI_OK) {
      status = time_steps(cli, run, stages, true, measurement, &measurement->without_ns);
    }
  }
  return status;
}

static uint64_t count_compute(const struct weft_program *program) {
  uint64_t compute = 0;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const enum weft_op op = (enum weft_op)program->actions[i].op;
    compute += weft_op_info(op)->kind == WEFT_KIND_COMPUTE ? 1 : 0;
  }
  return compute;
}

static int measure_executor(const struct weft_cli *cli,
                            struct weft_bench_executor_measurement *measurement) {
  struct run run;
  struct weft_cli_stages stages;
  weft_bench_print_case(cli, &measurement->at);
  int status = prepare_run(cli, &measurement->at, &run);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  measurement->compute_actions = count_compute(run.program);
  status = check(cli, &measurement->at, &run);
  if (status == WEFT_CLI_OK) {
    status = init_stages(cli, &run, WEFT_CLI_STAGE_NULL, 1, &stages);
    if (status == WEFT_CLI_OK) {
      status = time_rounds(cli, &run, &stages, measurement);
      weft_cli_stages_finish(&stages);
    }
  }
  release(&run);
  return status == WEFT_CLI_OK && measurement->allocations > 0
             ? weft_bench_fail(cli, &measurement->at, "a step allocates")
             : status;
}

static int measure_executors(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                             struct weft_bench_run_results *results) {
  static const char *const schedules[] = {
      "GPipe",         "1F1B",     "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble",
      "ZBVZeroBubble", "DualPipeV"};
  const size_t count_of = WEFT_ARRAY_LENGTH(schedules);
  const bool both = !arguments->given[WEFT_CLI_OPTION_MICROBATCHES];
  int status = WEFT_CLI_OK;
  for (size_t k = 0; k < (both ? 2 : 1) * count_of && status == WEFT_CLI_OK; k++) {
    struct weft_bench_executor_measurement *measurement = &results->executor[k];
    measurement->at = (struct weft_bench_case){
        .schedule = schedules[k % count_of],
        .shape = {.ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, RANKS),
                  .microbatches = k >= count_of
                                      ? MICROBATCHES_LONG
                                      : (uint32_t)weft_cli_number(
                                            arguments, WEFT_CLI_OPTION_MICROBATCHES, MICROBATCHES)},
        .repeats = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS)};
    status = measure_executor(cli, measurement);
    results->executor_count = k + 1;
  }
  return status;
}

/* ---- Stages that sleep ---- */

static int time_sleep(const struct weft_cli *cli, const struct run *run,
                      struct weft_cli_stages *stages, struct weft_bench_sleep_measurement *at) {
  struct weft_error error;
  uint64_t samples[SLEEP_STEPS - 1];
  struct weft_cli_execution execution = execution_of(cli, run, stages, "threads", SLEEP_STEPS);
  const uint64_t stolen_ms = weft_bench_stolen_ms();
  const enum weft_status result = weft_cli_execute(&execution, &error);
  at->stolen_ms = weft_bench_stolen_ms() - stolen_ms;
  for (uint32_t step = 1; step < SLEEP_STEPS && result == WEFT_OK; step++) {
    samples[step - 1] = (uint64_t)execution.makespans[step];
  }
  weft_cli_execution_finish(&execution);
  if (result < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  at->measured_ms = (double)weft_bench_median(samples, SLEEP_STEPS - 1) / 1e6;
  at->fastest_ms = (double)samples[0] / 1e6; /* they are sorted now */
  at->simulated_ms = run->simulation->makespan;
  return WEFT_CLI_OK;
}

static int measure_sleep(const struct weft_cli *cli, struct weft_bench_sleep_measurement *at) {
  struct run run;
  struct weft_cli_stages stages;
  weft_bench_print_case(cli, &at->at);
  int status = prepare_run(cli, &at->at, &run);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  status = check(cli, &at->at, &run);
  if (status == WEFT_CLI_OK) {
    status = init_stages(cli, &run, WEFT_CLI_STAGE_SLEEP, 1e6, &stages);
    if (status == WEFT_CLI_OK) {
      status = time_sleep(cli, &run, &stages, at);
      weft_cli_stages_finish(&stages);
    }
  }
  release(&run);
  return status;
}

static int measure_sleeps(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          struct weft_bench_run_results *results) {
  int status = WEFT_CLI_OK;
  for (size_t k = 0; k < weft_schedule_count() && status == WEFT_CLI_OK; k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (!info->trains || info->fixed || results->sleep_count == WEFT_BENCH_SLEEP_MAX) {
      continue;
    }
    struct weft_bench_sleep_measurement *measurement = &results->sleep[results->sleep_count++];
    measurement->at = (struct weft_bench_case){
        .schedule = info->name,
        .shape = {.ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, RANKS),
                  .microbatches = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES,
                                                            MICROBATCHES)}};
    status = measure_sleep(cli, measurement);
  }
  return status;
}

/* ---- All ---- */

int weft_bench_cmd_run(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_text *text, struct weft_json *json) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  struct weft_bench_run_results results = {.executor_count = 0};
  int status = measure_executors(cli, arguments, &results);
  if (status == WEFT_CLI_OK) {
    status = weft_bench_handover(cli, weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS),
                                 &results.handover);
  }
  if (status == WEFT_CLI_OK) {
    status = measure_sleeps(cli, arguments, &results);
  }
  if (status == WEFT_CLI_OK && json != NULL) {
    weft_bench_add_run_json(json, &results);
  } else if (status == WEFT_CLI_OK) {
    weft_bench_add_run_text(text, &results);
  }
  return status;
}
