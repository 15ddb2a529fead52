/* The report of `weft bench plan`: a table, or JSON. */
#include <assert.h>
#include <inttypes.h>

#include "bench/bench_plan.h"

static double per_action(const struct weft_bench_plan_measurement *measurement, uint64_t amount) {
  return weft_bench_per_action(&measurement->at, amount);
}

static double plan_per_action(const struct weft_bench_plan_measurement *measurement) {
  return per_action(measurement, measurement->times_ns[WEFT_BENCH_PLAN_GEN] +
                                     measurement->times_ns[WEFT_BENCH_PLAN_LOWER]);
}

static double verify_per_action(const struct weft_bench_plan_measurement *measurement) {
  return per_action(measurement, measurement->times_ns[WEFT_BENCH_PLAN_VERIFY]);
}

/* ---- Text ---- */

/* How much longer the clock on the wall ran than this process worked. */
static double clock_per_cpu(const struct weft_bench_plan_results *results) {
  uint64_t clock_ns = 0, cpu_ns = 0;
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES; i++) {
    clock_ns += results->small[i].at.clock_ns + results->large[i].at.clock_ns;
    cpu_ns += results->small[i].at.cpu_ns + results->large[i].at.cpu_ns;
  }
  return cpu_ns > 0 ? (double)clock_ns / (double)cpu_ns : 1.0;
}

static void add_row(struct weft_text *text, const struct weft_bench_plan_measurement *measurement,
                    const struct weft_bench_plan_measurement *small) {
  weft_text_addf(
      text, "%-22s %8" PRIu32 " %10" PRIu64 " %9.2f %7.2f %7.2f %10.2f %8.2f %6.1f %6.1f",
      measurement->at.schedule, measurement->at.shape.microbatches, measurement->at.actions,
      (double)(measurement->times_ns[WEFT_BENCH_PLAN_GEN] +
               measurement->times_ns[WEFT_BENCH_PLAN_LOWER]) /
          1e6,
      per_action(measurement, measurement->times_ns[WEFT_BENCH_PLAN_GEN]),
      per_action(measurement, measurement->times_ns[WEFT_BENCH_PLAN_LOWER]),
      plan_per_action(measurement), verify_per_action(measurement),
      per_action(measurement, measurement->held_bytes),
      per_action(measurement, measurement->peak_bytes));
  if (small != NULL) {
    weft_text_addf(text, " %7.2f %7.2f", plan_per_action(measurement) / plan_per_action(small),
                   verify_per_action(measurement) / verify_per_action(small));
  }
  weft_text_add(text, "\n");
}

void weft_bench_add_plan_text(struct weft_text *text,
                              const struct weft_bench_plan_results *results) {
  assert(text != NULL && results != NULL);
  weft_text_addf(text,
                 "weft %s, bench plan: p = %" PRIu32
                 ", v = %d; checked: verified under "
                 "rendezvous, same hash in every run\n\n",
                 weft_version(), results->small[0].at.shape.ranks,
                 (int)results->small[0].at.shape.stages_per_rank);
  weft_text_addf(text, "%-22s %8s %10s %9s %7s %7s %10s %8s %6s %6s", "", "", "", "gen+lower",
                 "gen", "lower", "gen+lower", "verify", "held", "peak");
  weft_text_add(text, results->has_large ? "   large/small\n" : "\n");
  weft_text_addf(text, "%-22s %8s %10s %9s %7s %7s %10s %8s %6s %6s", "schedule", "m", "actions",
                 "ms", "ns/act", "ns/act", "ns/act", "ns/act", "B/act", "B/act");
  weft_text_add(text, results->has_large ? "    plan  verify\n" : "\n");
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES; i++) {
    add_row(text, &results->small[i], NULL);
  }
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES && results->has_large; i++) {
    add_row(text, &results->large[i], &results->small[i]);
  }
  weft_text_addf(text, "\nCPU time, medians; the clock ran %.2f times as long.\n",
                 clock_per_cpu(results));
  if (results->startup_ns > 0) {
    weft_text_addf(text, "start-up of the command: %.2f ms\n", (double)results->startup_ns / 1e6);
  }
}

/* ---- JSON ---- */

static void add_json_run(struct weft_json *json,
                         const struct weft_bench_plan_measurement *measurement,
                         const struct weft_bench_plan_measurement *small) {
  weft_json_open(json, NULL, '{');
  weft_bench_add_case(json, &measurement->at);
  weft_json_number(json, "gen_ns", measurement->times_ns[WEFT_BENCH_PLAN_GEN]);
  weft_json_number(json, "lower_ns", measurement->times_ns[WEFT_BENCH_PLAN_LOWER]);
  weft_json_number(json, "verify_ns", measurement->times_ns[WEFT_BENCH_PLAN_VERIFY]);
  weft_json_real(json, "gen_lower_ns_per_action", plan_per_action(measurement));
  weft_json_real(json, "verify_ns_per_action", verify_per_action(measurement));
  weft_json_real(json, "held_bytes_per_action", per_action(measurement, measurement->held_bytes));
  weft_json_real(json, "peak_bytes_per_action", per_action(measurement, measurement->peak_bytes));
  if (small != NULL) {
    weft_json_real(json, "gen_lower_growth", plan_per_action(measurement) / plan_per_action(small));
    weft_json_real(json, "verify_growth",
                   verify_per_action(measurement) / verify_per_action(small));
  }
  weft_json_close(json, '}');
}

void weft_bench_add_plan_json(struct weft_json *json,
                              const struct weft_bench_plan_results *results) {
  assert(results != NULL);
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-plan/1");
  weft_json_string(json, "version", weft_version());
  weft_json_optional(json, "startup_ns", results->startup_ns > 0, results->startup_ns);
  weft_json_real(json, "clock_per_cpu", clock_per_cpu(results));
  weft_json_open(json, "runs", '[');
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES; i++) {
    add_json_run(json, &results->small[i], NULL);
  }
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES && results->has_large; i++) {
    add_json_run(json, &results->large[i], &results->small[i]);
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
}
