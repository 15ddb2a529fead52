/* What benchmarks share. */
#include <assert.h>
#include <inttypes.h>

#include "bench/bench.h"
#include "cli/io/error_message.h"

static const char *const schedules[WEFT_BENCH_SCHEDULES] = {
    "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"};

enum {
  REPEATS_SMALL = 9,
  REPEATS_LARGE = 3,
  RANKS = 64,
  STAGES_PER_RANK = 2,
  MICROBATCHES = 256,
  ACTIONS_LARGE = 50000000
};

struct weft_bench_case weft_bench_small_case(const struct weft_cli_arguments *arguments,
                                             size_t schedule) {
  assert(arguments != NULL);
  return (struct weft_bench_case){
      .schedule = schedules[schedule],
      .shape = {.ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, RANKS),
                .stages_per_rank = STAGES_PER_RANK,
                .microbatches = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES,
                                                          MICROBATCHES)},
      .repeats = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS_SMALL)};
}

/* Microbatches that make a program of about `actions`, a whole number of rounds
 * of p so that interleaved schedules are at their best. */
static uint32_t scale_microbatches(const struct weft_bench_case *small, uint64_t actions) {
  const uint64_t p = small->shape.ranks;
  const double ideal = (double)actions / (double)small->actions * (double)small->shape.microbatches;
  const double most = (double)WEFT_MICROBATCHES_MAX;
  const uint64_t wanted = (uint64_t)(ideal < most ? ideal : most) / p * p;
  return (uint32_t)(wanted > small->shape.microbatches ? wanted : small->shape.microbatches);
}

struct weft_bench_case weft_bench_large_case(const struct weft_cli_arguments *arguments,
                                             const struct weft_bench_case *small) {
  assert(arguments != NULL);
  struct weft_bench_case large = *small;
  large.shape.microbatches =
      scale_microbatches(small, weft_cli_number(arguments, WEFT_CLI_OPTION_ACTIONS, ACTIONS_LARGE));
  large.repeats = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, REPEATS_LARGE);
  return large;
}

void weft_bench_print_case(const struct weft_cli *cli, const struct weft_bench_case *at) {
  assert(cli != NULL);
  if (cli->messages_terminal) {
    weft_cli_print(cli, NULL, "bench: %s, p = %" PRIu32 ", m = %" PRIu32, at->schedule,
                   at->shape.ranks, at->shape.microbatches);
  }
}

int weft_bench_fail(const struct weft_cli *cli, const struct weft_bench_case *at,
                    const char *what) {
  assert(cli != NULL);
  weft_cli_print(cli, "this is a bug; 'weft doctor' checks every schedule",
                 "bench: %s at p = %" PRIu32 ", m = %" PRIu32 ": %s; nothing was measured",
                 at->schedule, at->shape.ranks, at->shape.microbatches, what);
  return WEFT_CLI_FOUND_BAD;
}

void weft_bench_add_case(struct weft_json *json, const struct weft_bench_case *at) {
  weft_json_string(json, "schedule", at->schedule);
  weft_json_number(json, "ranks", at->shape.ranks);
  weft_json_number(json, "stages_per_rank", at->shape.stages_per_rank);
  weft_json_number(json, "microbatches", at->shape.microbatches);
  weft_json_number(json, "actions", at->actions);
  weft_json_boolean(json, "checked", true);
  weft_json_number(json, "repeats", at->repeats);
}

double weft_bench_per_action(const struct weft_bench_case *at, uint64_t amount) {
  return (double)amount / (double)at->actions;
}
