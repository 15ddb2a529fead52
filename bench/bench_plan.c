/* `weft bench plan`: time and memory of gen, lower and verify, per action of the
 * lowered program. The answer is checked first: a fast wrong one is worth nothing.
 *
 * Times are CPU times. There is one thread, which never waits, so on an idle
 * machine that is the time on the clock, and on a busy one it is still the work
 * done; the report says how much longer the clock ran. */
#include <assert.h>
#include <limits.h>

#include <weft/weft.h>

#include "bench/bench_clock.h"
#include "bench/bench_plan.h"
#include "cli/io/error_message.h"

/* ---- Running ---- */

/* One pass through gen, lower and verify. The table is given back once it is
 * lowered, as the command does. On success the program is the caller's. */
static enum weft_status pass(const struct weft_allocator *allocator,
                             const struct weft_bench_plan_measurement *measurement,
                             uint64_t times_ns[WEFT_BENCH_PLAN_PHASES], bool *ok,
                             struct weft_program **out, struct weft_error *error) {
  struct weft_program *table, *program;
  struct weft_report *report;
  const uint64_t begin = weft_bench_cpu_ns();
  enum weft_status status =
      weft_generate(allocator, measurement->at.schedule, &measurement->at.shape, &table, error);
  if (status < 0) {
    return status;
  }
  const uint64_t generated = weft_bench_cpu_ns();
  status = weft_lower(allocator, table, NULL, &program, error);
  const uint64_t lowered = weft_bench_cpu_ns();
  weft_program_destroy(table);
  if (status < 0) {
    return status;
  }
  const uint64_t verify_begin = weft_bench_cpu_ns();
  status = weft_verify(allocator, program, NULL, &report, error);
  const uint64_t verified = weft_bench_cpu_ns();
  if (status < 0) {
    weft_program_destroy(program);
    return status;
  }
  *ok = report->ok;
  weft_report_destroy(report);
  times_ns[WEFT_BENCH_PLAN_GEN] = generated - begin;
  times_ns[WEFT_BENCH_PLAN_LOWER] = lowered - generated;
  times_ns[WEFT_BENCH_PLAN_VERIFY] = verified - verify_begin;
  *out = program;
  return WEFT_OK;
}

/* The check, which is the warm-up too: the proof, the size, the memory. */
static int check(const struct weft_cli *cli, struct weft_bench_plan_measurement *measurement,
                 uint64_t *hash) {
  struct weft_bench_counter counter;
  struct weft_program *program;
  struct weft_error error;
  uint64_t times_ns[WEFT_BENCH_PLAN_PHASES];
  bool ok;
  weft_bench_counter_init(&counter, cli->allocator);
  if (pass(&counter.allocator, measurement, times_ns, &ok, &program, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  *hash = weft_program_hash(program);
  measurement->at.actions = program->action_count;
  measurement->held_bytes = sizeof *program +
                            (program->rank_count + (size_t)1) * sizeof *program->row_begin +
                            program->action_capacity * sizeof *program->actions;
  measurement->peak_bytes = counter.bytes_peak;
  weft_program_destroy(program);
  if (!ok) {
    return weft_bench_fail(cli, &measurement->at, "the program does not verify");
  }
  return counter.bytes_now == 0 ? WEFT_CLI_OK
                                : weft_bench_fail(cli, &measurement->at, "memory is lost");
}

/* A measurement under way. */
struct sampling {
  struct weft_bench_plan_measurement *measurement;
  uint64_t hash; /* of the program that was checked */
  uint64_t count;
  uint64_t samples[WEFT_BENCH_PLAN_PHASES][WEFT_BENCH_REPEATS_MAX];
};

static int begin_sampling(const struct weft_cli *cli, struct sampling *sampling,
                          struct weft_bench_plan_measurement *measurement) {
  *sampling = (struct sampling){.measurement = measurement};
  weft_bench_print_case(cli, &measurement->at);
  return check(cli, measurement, &sampling->hash);
}

static int sample(const struct weft_cli *cli, struct sampling *sampling) {
  struct weft_bench_case *at = &sampling->measurement->at;
  struct weft_program *program;
  struct weft_error error;
  uint64_t times_ns[WEFT_BENCH_PLAN_PHASES];
  bool ok;
  const uint64_t clock_begin = weft_bench_now_ns(), cpu_begin = weft_bench_cpu_ns();
  if (pass(cli->allocator, sampling->measurement, times_ns, &ok, &program, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  const bool same = weft_program_hash(program) == sampling->hash;
  weft_program_destroy(program);
  at->clock_ns += weft_bench_now_ns() - clock_begin;
  at->cpu_ns += weft_bench_cpu_ns() - cpu_begin;
  if (!ok || !same) {
    return weft_bench_fail(cli, at, "two runs give different programs");
  }
  for (unsigned phase = 0; phase < WEFT_BENCH_PLAN_PHASES; phase++) {
    sampling->samples[phase][sampling->count] = times_ns[phase];
  }
  sampling->count++;
  return WEFT_CLI_OK;
}

static void end_sampling(struct sampling *sampling) {
  for (unsigned phase = 0; phase < WEFT_BENCH_PLAN_PHASES; phase++) {
    sampling->measurement->times_ns[phase] =
        weft_bench_median(sampling->samples[phase], (size_t)sampling->count);
  }
}

/* The small and the large program alternate: a shared machine is fast for some seconds and slow
 * for others, and both must be measured in the same seconds. */
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

static int measure(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                   struct weft_bench_plan_measurement *small,
                   struct weft_bench_plan_measurement *large) {
  struct sampling of_small, of_large;
  int status = begin_sampling(cli, &of_small, small);
  if (status == WEFT_CLI_OK && large != NULL) {
    large->at = weft_bench_large_case(arguments, &small->at);
    status = begin_sampling(cli, &of_large, large);
  }
  if (status == WEFT_CLI_OK) {
    status = take_turns(cli, &of_small, large != NULL ? &of_large : NULL);
  }
  if (status != WEFT_CLI_OK) {
    return status;
  }
  end_sampling(&of_small);
  if (large != NULL) {
    end_sampling(&of_large);
  }
  return WEFT_CLI_OK;
}

static int measure_all(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_bench_plan_results *results) {
  int status = WEFT_CLI_OK;
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES && status == WEFT_CLI_OK; i++) {
    results->small[i].at = weft_bench_small_case(arguments, i);
    status =
        measure(cli, arguments, &results->small[i], results->has_large ? &results->large[i] : NULL);
  }
  return status;
}

int weft_bench_cmd_plan(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_text *text, struct weft_json *json) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  struct weft_bench_plan_results results = {.has_large = arguments->given[WEFT_CLI_OPTION_LARGE]};
  /* Before anything large is allocated: fork() takes longer for a large process. */
  char path[PATH_MAX];
  if (cli->words != NULL && weft_cli_process_sibling("weft", path, sizeof path) != NULL) {
    results.startup_ns = weft_bench_startup_ns(path);
  }
  const int status = measure_all(cli, arguments, &results);
  if (status == WEFT_CLI_OK && json != NULL) {
    weft_bench_add_plan_json(json, &results);
  } else if (status == WEFT_CLI_OK) {
    weft_bench_add_plan_text(text, &results);
  }
  return status;
}
