/* The report of `weft bench sim`: a table, or JSON. */
#include <assert.h>
#include <inttypes.h>

#include "bench/bench_sim.h"

static double per_action(const struct weft_bench_sim_measurement *measurement,
                         enum weft_bench_sim_phase phase) {
  return weft_bench_per_action(&measurement->at, measurement->times_ns[phase]);
}

static double growth(const struct weft_bench_sim_measurement *large,
                     const struct weft_bench_sim_measurement *small,
                     enum weft_bench_sim_phase phase) {
  return per_action(large, phase) / per_action(small, phase);
}

static double table_per_action(const struct weft_bench_sim_measurement *measurement) {
  return (double)measurement->times_ns[WEFT_BENCH_SIM_TABLE] / (double)measurement->table_actions;
}

/* How much longer the clock on the wall ran than this process worked. */
static double clock_per_cpu(const struct weft_bench_sim_results *results) {
  uint64_t clock_ns = results->wide.at.clock_ns, cpu_ns = results->wide.at.cpu_ns;
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES; i++) {
    clock_ns += results->small[i].at.clock_ns + results->large[i].at.clock_ns;
    cpu_ns += results->small[i].at.cpu_ns + results->large[i].at.cpu_ns;
  }
  return cpu_ns > 0 ? (double)clock_ns / (double)cpu_ns : 1.0;
}

/* ---- Text ---- */

static void add_row(struct weft_text *text, const struct weft_bench_sim_measurement *measurement,
                    const struct weft_bench_sim_measurement *small) {
  const struct weft_bench_case *at = &measurement->at;
  weft_text_addf(text, "%-22s %8" PRIu32 " %10" PRIu64 " %8.2f %7.2f %7.2f %7.2f %9.2f %9.2f",
                 at->schedule, at->shape.microbatches, at->actions,
                 per_action(measurement, WEFT_BENCH_SIM_NUMBERS),
                 per_action(measurement, WEFT_BENCH_SIM_NUMBERS_SYSTEM),
                 per_action(measurement, WEFT_BENCH_SIM_EVENTS),
                 per_action(measurement, WEFT_BENCH_SIM_EVENTS_SYSTEM),
                 per_action(measurement, WEFT_BENCH_SIM_MAKESPAN), table_per_action(measurement));
  weft_text_addf(text, " %8.1f %7.1f %9.1f", weft_bench_per_action(at, measurement->numbers_bytes),
                 weft_bench_per_action(at, measurement->events_bytes),
                 weft_bench_per_action(at, measurement->makespan_bytes));
  if (small != NULL) {
    weft_text_addf(text, " %8.2f %7.2f %9.2f", growth(measurement, small, WEFT_BENCH_SIM_NUMBERS),
                   growth(measurement, small, WEFT_BENCH_SIM_EVENTS),
                   growth(measurement, small, WEFT_BENCH_SIM_MAKESPAN));
  }
  weft_text_add(text, "\n");
}

static void add_head(struct weft_text *text, const struct weft_bench_sim_results *results) {
  const struct weft_shape *shape = &results->small[0].at.shape;
  weft_text_addf(text,
                 "weft %s, bench sim: p = %" PRIu32 ", v = %" PRIu32
                 "; checked: simulation, makespan alone and a plain evaluation agree, closed "
                 "forms are met\n\n",
                 weft_version(), shape->ranks, shape->stages_per_rank);
  weft_text_addf(
      text, "%-42s %-52s %s\n", "", "ns per action",
      results->has_large ? "bytes per action           large/small" : "bytes per action");
  weft_text_addf(text, "%-22s %8s %10s %8s %7s %7s %7s %9s %9s %8s %7s %9s%s\n", "schedule", "m",
                 "actions", "numbers", "system", "events", "system", "makespan", "of table",
                 "numbers", "events", "makespan",
                 results->has_large ? "  numbers  events  makespan" : "");
}

static double seconds(const struct weft_bench_sim_measurement *measurement,
                      enum weft_bench_sim_phase phase) {
  return (double)measurement->times_ns[phase] / 1e9;
}

static double gibibytes(size_t bytes) { return (double)bytes / (1024.0 * 1024 * 1024); }

static void add_wide(struct weft_text *text, const struct weft_bench_sim_measurement *wide) {
  const struct weft_shape *shape = &wide->at.shape;
  weft_text_addf(text,
                 "\n%s, p = %" PRIu32 ", v = %" PRIu32 ", m = %" PRIu32 ": %" PRIu64
                 " actions; gen and lower %.2f s\n",
                 wide->at.schedule, shape->ranks, shape->stages_per_rank, shape->microbatches,
                 wide->at.actions, (double)wide->plan_ns / 1e9);
  weft_text_addf(
      text,
      "  numbers %.2f s (%.1f ns per action), with events %.2f s (%.1f), makespan alone %.2f s "
      "(%.1f)\n"
      "  at most %.2f GiB for the numbers, %.2f GiB with events, the program included\n",
      seconds(wide, WEFT_BENCH_SIM_NUMBERS), per_action(wide, WEFT_BENCH_SIM_NUMBERS),
      seconds(wide, WEFT_BENCH_SIM_EVENTS), per_action(wide, WEFT_BENCH_SIM_EVENTS),
      seconds(wide, WEFT_BENCH_SIM_MAKESPAN), per_action(wide, WEFT_BENCH_SIM_MAKESPAN),
      gibibytes(wide->numbers_bytes), gibibytes(wide->events_bytes));
}

void weft_bench_add_sim_text(struct weft_text *text, const struct weft_bench_sim_results *results) {
  assert(text != NULL && results != NULL);
  add_head(text, results);
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES; i++) {
    add_row(text, &results->small[i], NULL);
  }
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES && results->has_large; i++) {
    add_row(text, &results->large[i], &results->small[i]);
  }
  if (results->has_wide) {
    add_wide(text, &results->wide);
  }
  weft_text_addf(text, "\nSVG of %s, p = %" PRIu32 ", m = %" PRIu32 ": %.1f ms, %.1f MB\n",
                 results->svg_at.schedule, results->svg_at.shape.ranks,
                 results->svg_at.shape.microbatches, (double)results->svg_ns / 1e6,
                 (double)results->svg_bytes / 1e6);
  weft_text_addf(text, "CPU time, medians; the clock ran %.2f times as long.\n",
                 clock_per_cpu(results));
}

/* ---- JSON ---- */

static void add_json_times(struct weft_json *json,
                           const struct weft_bench_sim_measurement *measurement) {
  const uint64_t *times_ns = measurement->times_ns;
  weft_json_number(json, "gen_lower_ns", measurement->plan_ns);
  weft_json_number(json, "numbers_ns", times_ns[WEFT_BENCH_SIM_NUMBERS]);
  weft_json_number(json, "numbers_system_ns", times_ns[WEFT_BENCH_SIM_NUMBERS_SYSTEM]);
  weft_json_number(json, "events_ns", times_ns[WEFT_BENCH_SIM_EVENTS]);
  weft_json_number(json, "events_system_ns", times_ns[WEFT_BENCH_SIM_EVENTS_SYSTEM]);
  weft_json_number(json, "makespan_ns", times_ns[WEFT_BENCH_SIM_MAKESPAN]);
  weft_json_number(json, "table_makespan_ns", times_ns[WEFT_BENCH_SIM_TABLE]);
  weft_json_real(json, "numbers_ns_per_action", per_action(measurement, WEFT_BENCH_SIM_NUMBERS));
  weft_json_real(json, "events_ns_per_action", per_action(measurement, WEFT_BENCH_SIM_EVENTS));
  weft_json_real(json, "makespan_ns_per_action", per_action(measurement, WEFT_BENCH_SIM_MAKESPAN));
  weft_json_real(json, "table_makespan_ns_per_action", table_per_action(measurement));
}

static void add_json_fields(struct weft_json *json,
                            const struct weft_bench_sim_measurement *measurement,
                            const struct weft_bench_sim_measurement *small) {
  weft_bench_add_case(json, &measurement->at);
  weft_json_number(json, "table_actions", measurement->table_actions);
  add_json_times(json, measurement);
  weft_json_number(json, "numbers_peak_bytes", measurement->numbers_bytes);
  weft_json_number(json, "events_peak_bytes", measurement->events_bytes);
  weft_json_number(json, "makespan_peak_bytes", measurement->makespan_bytes);
  if (small != NULL) {
    weft_json_real(json, "numbers_growth", growth(measurement, small, WEFT_BENCH_SIM_NUMBERS));
    weft_json_real(json, "events_growth", growth(measurement, small, WEFT_BENCH_SIM_EVENTS));
    weft_json_real(json, "makespan_growth", growth(measurement, small, WEFT_BENCH_SIM_MAKESPAN));
  }
}

static void add_json_run(struct weft_json *json, const char *key,
                         const struct weft_bench_sim_measurement *measurement,
                         const struct weft_bench_sim_measurement *small) {
  weft_json_open(json, key, '{');
  add_json_fields(json, measurement, small);
  weft_json_close(json, '}');
}

static void add_json_svg(struct weft_json *json, const struct weft_bench_sim_results *results) {
  weft_json_open(json, "svg", '{');
  weft_bench_add_case(json, &results->svg_at);
  weft_json_number(json, "ns", results->svg_ns);
  weft_json_number(json, "bytes", results->svg_bytes);
  weft_json_close(json, '}');
}

void weft_bench_add_sim_json(struct weft_json *json, const struct weft_bench_sim_results *results) {
  assert(results != NULL);
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-sim/1");
  weft_json_string(json, "version", weft_version());
  weft_json_real(json, "clock_per_cpu", clock_per_cpu(results));
  weft_json_open(json, "runs", '[');
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES; i++) {
    add_json_run(json, NULL, &results->small[i], NULL);
  }
  for (size_t i = 0; i < WEFT_BENCH_SCHEDULES && results->has_large; i++) {
    add_json_run(json, NULL, &results->large[i], &results->small[i]);
  }
  weft_json_close(json, ']');
  if (results->has_wide) {
    add_json_run(json, "wide", &results->wide, NULL);
  } else {
    weft_json_null(json, "wide");
  }
  add_json_svg(json, results);
  weft_json_close(json, '}');
}
