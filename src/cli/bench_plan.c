/* `weft bench plan`: time and memory of gen, lower and verify, per action of the
 * lowered program. The answer is checked first: a fast wrong one is worth nothing.
 *
 * Times are CPU times. There is one thread, which never waits, so on an idle
 * machine that is the time on the clock, and on a busy one it is still the work
 * done; the report says how much longer the clock ran. */
#include <weft/weft.h>

#include "cli/bench_clock.h"
#include "cli/bench_plan.h"
#include "cli/message.h"

/* ---- Running ---- */

/* One pass through gen, lower and verify. The table is given back once it is
 * lowered, as the command does. On success the program is the caller's. */
static enum weft_status pass(const struct weft_allocator *allocator,
                             const struct weft_cli_measurement *measurement,
                             uint64_t times_ns[WEFT_CLI_BENCH_PHASES], bool *ok,
                             struct weft_program **out, struct weft_error *error) {
  struct weft_program *table, *program;
  struct weft_report *report;
  const uint64_t begin = weft_cli_cpu_ns();
  enum weft_status status =
      weft_generate(allocator, measurement->at.schedule, &measurement->at.shape, &table, error);
  if (status < 0) {
    return status;
  }
  const uint64_t generated = weft_cli_cpu_ns();
  status = weft_lower(allocator, table, NULL, &program, error);
  const uint64_t lowered = weft_cli_cpu_ns();
  weft_program_destroy(table);
  if (status < 0) {
    return status;
  }
  const uint64_t verify_begin = weft_cli_cpu_ns();
  status = weft_verify(allocator, program, NULL, &report, error);
  const uint64_t verified = weft_cli_cpu_ns();
  if (status < 0) {
    weft_program_destroy(program);
    return status;
  }
  *ok = report->ok;
  weft_report_destroy(report);
  times_ns[WEFT_CLI_BENCH_GEN] = generated - begin;
  times_ns[WEFT_CLI_BENCH_LOWER] = lowered - generated;
  times_ns[WEFT_CLI_BENCH_VERIFY] = verified - verify_begin;
  *out = program;
  return WEFT_OK;
}

/* The check, which is the warm-up too: the proof, the size, the memory. */
static int check(const struct weft_cli *cli, struct weft_cli_measurement *measurement,
                 uint64_t *hash) {
  struct weft_cli_counter counter;
  struct weft_program *program;
  struct weft_error error;
  uint64_t times_ns[WEFT_CLI_BENCH_PHASES];
  bool ok;
  weft_cli_counter_init(&counter, cli->allocator);
  if (pass(&counter.allocator, measurement, times_ns, &ok, &program, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  *hash = weft_program_hash(program);
  measurement->at.actions = program->action_count;
  measurement->held_bytes = program->allocated_bytes;
  measurement->peak_bytes = counter.bytes_peak;
  weft_program_destroy(program);
  if (!ok) {
    return weft_cli_bench_fail(cli, &measurement->at, "the program does not verify");
  }
  return counter.bytes_now == 0 ? WEFT_CLI_OK
                                : weft_cli_bench_fail(cli, &measurement->at, "memory is lost");
}

static int measure(const struct weft_cli *cli, struct weft_cli_measurement *measurement) {
  uint64_t samples[WEFT_CLI_BENCH_PHASES][WEFT_CLI_BENCH_REPEATS_MAX];
  uint64_t hash = 0;
  weft_cli_bench_say(cli, &measurement->at);
  const int status = check(cli, measurement, &hash);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  const uint64_t clock_begin = weft_cli_clock_ns(), cpu_begin = weft_cli_cpu_ns();
  for (uint64_t i = 0; i < measurement->at.repeats; i++) {
    struct weft_program *program;
    struct weft_error error;
    uint64_t times_ns[WEFT_CLI_BENCH_PHASES];
    bool ok;
    if (pass(cli->allocator, measurement, times_ns, &ok, &program, &error) < 0) {
      return weft_cli_fail(cli, NULL, &error);
    }
    const bool same = weft_program_hash(program) == hash;
    weft_program_destroy(program);
    if (!ok || !same) {
      return weft_cli_bench_fail(cli, &measurement->at, "two runs give different programs");
    }
    for (unsigned phase = 0; phase < WEFT_CLI_BENCH_PHASES; phase++) {
      samples[phase][i] = times_ns[phase];
    }
  }
  measurement->at.clock_ns = weft_cli_clock_ns() - clock_begin;
  measurement->at.cpu_ns = weft_cli_cpu_ns() - cpu_begin;
  for (unsigned phase = 0; phase < WEFT_CLI_BENCH_PHASES; phase++) {
    measurement->times_ns[phase] = weft_cli_median(samples[phase], (size_t)measurement->at.repeats);
  }
  return WEFT_CLI_OK;
}

static int measure_all(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_cli_bench_results *results) {
  int status = WEFT_CLI_OK;
  for (size_t i = 0; i < WEFT_CLI_BENCH_SCHEDULES && status == WEFT_CLI_OK; i++) {
    struct weft_cli_measurement *small = &results->small[i], *large = &results->large[i];
    small->at = weft_cli_bench_small(arguments, i);
    status = measure(cli, small);
    if (status == WEFT_CLI_OK && results->has_large) {
      large->at = weft_cli_bench_large(arguments, &small->at);
      status = measure(cli, large);
    }
  }
  return status;
}

int weft_cli_bench_plan(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_text *text, struct weft_cli_json *json) {
  struct weft_cli_bench_results results = {.has_large = arguments->given[WEFT_CLI_OPTION_LARGE]};
  /* Before anything large is held: fork() takes longer for a large process. */
  if (cli->program_path != NULL) {
    results.startup_ns = weft_cli_startup_ns(cli->program_path);
  }
  const int status = measure_all(cli, arguments, &results);
  if (status == WEFT_CLI_OK && json != NULL) {
    weft_cli_bench_add_document(json, &results);
  } else if (status == WEFT_CLI_OK) {
    weft_cli_bench_add_text(text, &results);
  }
  return status;
}
