/* `weft bench plan`: time and memory of gen, lower and verify, per action of the
 * lowered program. The answer is checked first: a fast wrong one is worth nothing.
 *
 * Times are CPU times. There is one thread, which never waits, so on an idle
 * machine that is the time on the clock, and on a busy one it is still the work
 * done; the report says how much longer the clock ran. */
#include <inttypes.h>

#include <weft/weft.h>

#include "cli/bench_clock.h"
#include "cli/bench_plan.h"
#include "cli/message.h"
#include "cli/output_file.h"
#include "cli/verbs.h"

static const char *const schedules[WEFT_CLI_BENCH_SCHEDULES] = {
    "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"};

enum {
  REPEATS_MAX = 99, /* as in the option table */
  REPEATS_SMALL = 9,
  REPEATS_LARGE = 3,
  RANKS = 64,
  STAGES_PER_RANK = 2,
  MICROBATCHES = 256,
  ACTIONS_LARGE = 50000000
};

/* ---- Running ---- */

static void say_progress(const struct weft_cli *cli,
                         const struct weft_cli_measurement *measurement) {
  if (cli->messages_terminal) {
    weft_cli_say(cli, NULL, "bench: %s, m = %" PRIu32, measurement->schedule,
                 measurement->shape.microbatches);
  }
}

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
      weft_generate(allocator, measurement->schedule, &measurement->shape, &table, error);
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

static int fail_check(const struct weft_cli *cli, const struct weft_cli_measurement *measurement,
                      const char *what) {
  weft_cli_say(cli, "this is a bug; 'weft doctor' checks every schedule",
               "bench: %s at p = %" PRIu32 ", m = %" PRIu32 ": %s; nothing was measured",
               measurement->schedule, measurement->shape.ranks, measurement->shape.microbatches,
               what);
  return WEFT_CLI_FOUND_BAD;
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
  measurement->actions = program->action_count;
  measurement->held_bytes = program->allocated_bytes;
  measurement->peak_bytes = counter.bytes_peak;
  weft_program_destroy(program);
  if (!ok) {
    return fail_check(cli, measurement, "the program does not verify");
  }
  return counter.bytes_now == 0 ? WEFT_CLI_OK : fail_check(cli, measurement, "memory is lost");
}

static int measure(const struct weft_cli *cli, uint64_t repeats,
                   struct weft_cli_measurement *measurement) {
  uint64_t samples[WEFT_CLI_BENCH_PHASES][REPEATS_MAX];
  uint64_t hash = 0;
  say_progress(cli, measurement);
  const int status = check(cli, measurement, &hash);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  measurement->repeats = repeats;
  const uint64_t clock_begin = weft_cli_clock_ns(), cpu_begin = weft_cli_cpu_ns();
  for (uint64_t i = 0; i < repeats; i++) {
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
      return fail_check(cli, measurement, "two runs give different programs");
    }
    for (unsigned phase = 0; phase < WEFT_CLI_BENCH_PHASES; phase++) {
      samples[phase][i] = times_ns[phase];
    }
  }
  measurement->clock_ns = weft_cli_clock_ns() - clock_begin;
  measurement->cpu_ns = weft_cli_cpu_ns() - cpu_begin;
  for (unsigned phase = 0; phase < WEFT_CLI_BENCH_PHASES; phase++) {
    measurement->times_ns[phase] = weft_cli_median(samples[phase], (size_t)repeats);
  }
  return WEFT_CLI_OK;
}

/* Microbatches that make a program of about `actions`, a whole number of rounds
 * of p so that interleaved schedules are at their best. */
static uint32_t scale_microbatches(const struct weft_cli_measurement *small, uint64_t actions) {
  const uint64_t p = small->shape.ranks;
  const double ideal = (double)actions / (double)small->actions * (double)small->shape.microbatches;
  const double most = (double)WEFT_MICROBATCHES_MAX;
  const uint64_t wanted = (uint64_t)(ideal < most ? ideal : most) / p * p;
  return (uint32_t)(wanted > small->shape.microbatches ? wanted : small->shape.microbatches);
}

static int measure_all(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       struct weft_cli_bench_results *results) {
  const uint64_t repeats_small = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS_SMALL);
  const uint64_t repeats_large = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS_LARGE);
  const uint64_t actions = weft_cli_number(arguments, WEFT_CLI_OPTION_ACTIONS, ACTIONS_LARGE);
  const struct weft_shape shape = {
      .ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, RANKS),
      .stages_per_rank = STAGES_PER_RANK,
      .microbatches =
          (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, MICROBATCHES)};
  int status = WEFT_CLI_OK;
  for (size_t i = 0; i < WEFT_CLI_BENCH_SCHEDULES && status == WEFT_CLI_OK; i++) {
    struct weft_cli_measurement *small = &results->small[i], *large = &results->large[i];
    *small = (struct weft_cli_measurement){.schedule = schedules[i], .shape = shape};
    status = measure(cli, repeats_small, small);
    if (status == WEFT_CLI_OK && results->has_large) {
      *large = *small;
      large->shape.microbatches = scale_microbatches(small, actions);
      status = measure(cli, repeats_large, large);
    }
  }
  return status;
}

int weft_cli_bench_plan(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct weft_cli_bench_results results = {.has_large = arguments->given[WEFT_CLI_OPTION_LARGE]};
  /* Before anything large is held: fork() takes longer for a large process. */
  if (cli->program_path != NULL) {
    results.startup_ns = weft_cli_startup_ns(cli->program_path);
  }
  int status = measure_all(cli, arguments, &results);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  struct weft_text text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    weft_cli_bench_add_document(&text, &results);
  } else {
    weft_cli_bench_add_text(&text, &results);
  }
  status = weft_cli_deliver(cli, arguments, &text, WEFT_CLI_OK);
  weft_text_finish(&text);
  return status;
}
