/* The report of `weft bench run`: tables, or JSON. */
#include <assert.h>
#include <inttypes.h>

#include "bench/bench_run.h"

#define STAGE_NS 10000.0

/* What the event log costs, as a share of a step whose stages take 10 us. */
static double log_share(const struct weft_bench_executor_measurement *at) {
  const double more = (double)at->with_ns - (double)at->without_ns;
  return more / ((double)at->compute_actions * STAGE_NS + (double)at->with_ns);
}

static double ratio_of(const struct weft_bench_sleep_measurement *at) {
  return at->measured_ms / at->simulated_ms;
}

/* ---- Text ---- */

static void add_executors(struct weft_text *text, const struct weft_bench_run_results *results) {
  weft_text_addf(text, "%-22s %6s %6s %9s %8s %11s %9s %9s\n", "stages that do nothing", "p", "m",
                 "actions", "ns/act", "without log", "log", "of 10 us");
  for (size_t k = 0; k < results->executor_count; k++) {
    const struct weft_bench_executor_measurement *at = &results->executor[k];
    const double with = weft_bench_per_action(&at->at, at->with_ns);
    const double without = weft_bench_per_action(&at->at, at->without_ns);
    weft_text_addf(text,
                   "%-22s %6" PRIu32 " %6" PRIu32 " %9" PRIu64 " %8.1f %11.1f %9.1f %7.2f %%\n",
                   at->at.schedule, at->at.shape.ranks, at->at.shape.microbatches, at->at.actions,
                   with, without, with - without, 100 * log_share(at));
  }
  weft_text_add(text,
                "  CPU time per action, all ranks in one thread: the median step of the fastest\n"
                "  round. What the event log takes of it, and of a step whose stages take 10 us\n"
                "  each. No step but the first allocates.\n\n");
}

static void add_sleeps(struct weft_text *text, const struct weft_bench_run_results *results) {
  weft_text_addf(text, "%-22s %6s %6s %12s %12s %8s %8s %10s\n", "stages that sleep", "p", "m",
                 "measured ms", "simulated ms", "ratio", "fastest", "stolen ms");
  for (size_t k = 0; k < results->sleep_count; k++) {
    const struct weft_bench_sleep_measurement *at = &results->sleep[k];
    weft_text_addf(
        text, "%-22s %6" PRIu32 " %6" PRIu32 " %12.2f %12.2f %8.4f %8.4f %10" PRIu64 "\n",
        at->at.schedule, at->at.shape.ranks, at->at.shape.microbatches, at->measured_ms,
        at->simulated_ms, ratio_of(at), at->fastest_ms / at->simulated_ms, at->stolen_ms);
  }
  weft_text_add(text,
                "  F 2 ms, B 4 ms, I 2 ms, W 2 ms; a thread per rank, the median of three steps;\n"
                "  the fastest of them too, since other work on the machine only delays; and what\n"
                "  the host gave to others meanwhile, of all processors together.\n");
}

void weft_bench_add_run_text(struct weft_text *text, const struct weft_bench_run_results *results) {
  assert(text != NULL && results != NULL);
  weft_text_addf(text,
                 "weft %s, bench run: checked: in virtual time every schedule takes exactly the "
                 "simulated time\n\n",
                 weft_version());
  add_executors(text, results);
  weft_text_addf(text,
                 "hand-over of a message between two threads: %" PRIu64
                 " ns, half of a round "
                 "trip\n  (median of %" PRIu64 ", the fastest block of %" PRIu64 "; %" PRIu64
                 " processors)\n\n",
                 results->handover.one_way_ns, results->handover.block,
                 results->handover.round_trips / results->handover.block,
                 results->handover.processors);
  add_sleeps(text, results);
}

/* ---- JSON ---- */

static void add_shape(struct weft_json *json, const struct weft_bench_case *at) {
  weft_json_string(json, "schedule", at->schedule);
  weft_json_number(json, "ranks", at->shape.ranks);
  weft_json_number(json, "microbatches", at->shape.microbatches);
  weft_json_number(json, "actions", at->actions);
}

static void add_executor(struct weft_json *json, const struct weft_bench_executor_measurement *at) {
  weft_json_open(json, NULL, '{');
  add_shape(json, &at->at);
  weft_json_real(json, "ns_per_action", weft_bench_per_action(&at->at, at->with_ns));
  weft_json_real(json, "ns_per_action_without_events",
                 weft_bench_per_action(&at->at, at->without_ns));
  weft_json_real(json, "event_share_of_10us_stages", log_share(at));
  weft_json_number(json, "allocations_per_step", at->allocations);
  weft_json_close(json, '}');
}

void weft_bench_add_run_json(struct weft_json *json, const struct weft_bench_run_results *results) {
  assert(results != NULL);
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-run/1");
  weft_json_string(json, "version", weft_version());
  weft_json_number(json, "processors", results->handover.processors);
  weft_json_open(json, "executor", '[');
  for (size_t k = 0; k < results->executor_count; k++) {
    add_executor(json, &results->executor[k]);
  }
  weft_json_close(json, ']');
  weft_json_number(json, "handover_ns", results->handover.one_way_ns);
  weft_json_number(json, "handover_round_trips", results->handover.round_trips);
  weft_json_open(json, "sleep", '[');
  for (size_t k = 0; k < results->sleep_count; k++) {
    const struct weft_bench_sleep_measurement *at = &results->sleep[k];
    weft_json_open(json, NULL, '{');
    add_shape(json, &at->at);
    weft_json_exact(json, "measured_ms", at->measured_ms);
    weft_json_exact(json, "simulated_ms", at->simulated_ms);
    weft_json_exact(json, "ratio", ratio_of(at));
    weft_json_exact(json, "fastest_ratio", at->fastest_ms / at->simulated_ms);
    weft_json_number(json, "stolen_ms", at->stolen_ms);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}
