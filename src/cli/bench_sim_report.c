/* The report of `weft bench sim`: a table, or JSON. */
#include <inttypes.h>

#include "cli/bench_sim.h"

static double full_per_action(const struct weft_cli_sim_measurement *measurement) {
  return weft_cli_per_action(&measurement->at, measurement->times_ns[WEFT_CLI_SIM_FULL]);
}

static double fresh_per_action(const struct weft_cli_sim_measurement *measurement) {
  return weft_cli_per_action(&measurement->at, measurement->times_ns[WEFT_CLI_SIM_FRESH]);
}

static double system_per_action(const struct weft_cli_sim_measurement *measurement) {
  return weft_cli_per_action(&measurement->at, measurement->times_ns[WEFT_CLI_SIM_SYSTEM]);
}

static double makespan_per_action(const struct weft_cli_sim_measurement *measurement) {
  return weft_cli_per_action(&measurement->at, measurement->times_ns[WEFT_CLI_SIM_MAKESPAN]);
}

static double table_per_action(const struct weft_cli_sim_measurement *measurement) {
  return (double)measurement->times_ns[WEFT_CLI_SIM_TABLE] / (double)measurement->table_actions;
}

/* How much longer the clock on the wall ran than this process worked. */
static double clock_per_cpu(const struct weft_cli_sim_results *results) {
  uint64_t clock_ns = results->wide.at.clock_ns, cpu_ns = results->wide.at.cpu_ns;
  for (size_t i = 0; i < WEFT_CLI_BENCH_SCHEDULES; i++) {
    clock_ns += results->small[i].at.clock_ns + results->large[i].at.clock_ns;
    cpu_ns += results->small[i].at.cpu_ns + results->large[i].at.cpu_ns;
  }
  return cpu_ns > 0 ? (double)clock_ns / (double)cpu_ns : 1.0;
}

/* ---- Text ---- */

static void add_row(struct weft_text *text, const struct weft_cli_sim_measurement *measurement,
                    const struct weft_cli_sim_measurement *small) {
  const struct weft_cli_bench_case *at = &measurement->at;
  weft_text_addf(text,
                 "%-22s %8" PRIu32 " %10" PRIu64 " %9.2f %8.2f %7.2f %7.2f %9.2f %9.2f %6.1f %8.1f",
                 at->schedule, at->shape.microbatches, at->actions,
                 (double)measurement->times_ns[WEFT_CLI_SIM_FULL] / 1e6,
                 full_per_action(measurement), fresh_per_action(measurement),
                 system_per_action(measurement), makespan_per_action(measurement),
                 table_per_action(measurement), weft_cli_per_action(at, measurement->peak_bytes),
                 weft_cli_per_action(at, measurement->makespan_bytes));
  if (small != NULL) {
    weft_text_addf(text, " %6.2f %6.2f %8.2f",
                   full_per_action(measurement) / full_per_action(small),
                   fresh_per_action(measurement) / fresh_per_action(small),
                   makespan_per_action(measurement) / makespan_per_action(small));
  }
  weft_text_add(text, "\n");
}

static void add_head(struct weft_text *text, const struct weft_cli_sim_results *results) {
  const struct weft_shape *shape = &results->small[0].at.shape;
  weft_text_addf(text,
                 "weft %s, bench sim: p = %" PRIu32 ", v = %" PRIu32
                 "; checked: simulation, makespan alone and a plain evaluation agree, closed "
                 "forms are met\n\n",
                 weft_version(), shape->ranks, shape->stages_per_rank);
  weft_text_addf(text, "%-22s %8s %10s %9s %8s %7s %7s %9s %9s %6s %8s%s\n", "", "", "", "full",
                 "full", "fresh", "system", "makespan", "of table", "peak", "makespan",
                 results->has_large ? "            large/small" : "");
  weft_text_addf(text, "%-22s %8s %10s %9s %8s %7s %7s %9s %9s %6s %8s%s\n", "schedule", "m",
                 "actions", "ms", "ns/act", "ns/act", "ns/act", "ns/act", "ns/act", "B/act",
                 "B/act", results->has_large ? "   full  fresh makespan" : "");
}

static void add_wide(struct weft_text *text, const struct weft_cli_sim_measurement *wide) {
  const struct weft_shape *shape = &wide->at.shape;
  weft_text_addf(text,
                 "\n%s, p = %" PRIu32 ", v = %" PRIu32 ", m = %" PRIu32 ": %" PRIu64
                 " actions\n"
                 "  gen and lower %.2f s, simulation %.2f s (%.1f ns per action), makespan alone "
                 "%.2f s (%.1f ns)\n"
                 "  at most %.2f GiB in the simulation, the program included\n",
                 wide->at.schedule, shape->ranks, shape->stages_per_rank, shape->microbatches,
                 wide->at.actions, (double)wide->plan_ns / 1e9,
                 (double)wide->times_ns[WEFT_CLI_SIM_FULL] / 1e9, full_per_action(wide),
                 (double)wide->times_ns[WEFT_CLI_SIM_MAKESPAN] / 1e9, makespan_per_action(wide),
                 (double)wide->peak_bytes / (1024.0 * 1024 * 1024));
}

void weft_cli_bench_add_sim_text(struct weft_text *text,
                                 const struct weft_cli_sim_results *results) {
  add_head(text, results);
  for (size_t i = 0; i < WEFT_CLI_BENCH_SCHEDULES; i++) {
    add_row(text, &results->small[i], NULL);
  }
  for (size_t i = 0; i < WEFT_CLI_BENCH_SCHEDULES && results->has_large; i++) {
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

static void add_json_fields(struct weft_cli_json *json,
                            const struct weft_cli_sim_measurement *measurement,
                            const struct weft_cli_sim_measurement *small) {
  weft_cli_bench_add_case(json, &measurement->at);
  weft_cli_json_number(json, "table_actions", measurement->table_actions);
  weft_cli_json_number(json, "gen_lower_ns", measurement->plan_ns);
  weft_cli_json_number(json, "full_ns", measurement->times_ns[WEFT_CLI_SIM_FULL]);
  weft_cli_json_number(json, "full_system_ns", measurement->times_ns[WEFT_CLI_SIM_SYSTEM]);
  weft_cli_json_number(json, "full_fresh_ns", measurement->times_ns[WEFT_CLI_SIM_FRESH]);
  weft_cli_json_number(json, "makespan_ns", measurement->times_ns[WEFT_CLI_SIM_MAKESPAN]);
  weft_cli_json_number(json, "table_makespan_ns", measurement->times_ns[WEFT_CLI_SIM_TABLE]);
  weft_cli_json_real(json, "full_ns_per_action", full_per_action(measurement));
  weft_cli_json_real(json, "makespan_ns_per_action", makespan_per_action(measurement));
  weft_cli_json_real(json, "table_makespan_ns_per_action", table_per_action(measurement));
  weft_cli_json_number(json, "peak_bytes", measurement->peak_bytes);
  weft_cli_json_number(json, "makespan_peak_bytes", measurement->makespan_bytes);
  if (small != NULL) {
    weft_cli_json_real(json, "full_growth", full_per_action(measurement) / full_per_action(small));
    weft_cli_json_real(json, "full_fresh_growth",
                       fresh_per_action(measurement) / fresh_per_action(small));
    weft_cli_json_real(json, "makespan_growth",
                       makespan_per_action(measurement) / makespan_per_action(small));
  }
}

static void add_json_run(struct weft_cli_json *json, const char *key,
                         const struct weft_cli_sim_measurement *measurement,
                         const struct weft_cli_sim_measurement *small) {
  weft_cli_json_open(json, key, '{');
  add_json_fields(json, measurement, small);
  weft_cli_json_close(json, '}');
}

static void add_json_svg(struct weft_cli_json *json, const struct weft_cli_sim_results *results) {
  weft_cli_json_open(json, "svg", '{');
  weft_cli_bench_add_case(json, &results->svg_at);
  weft_cli_json_number(json, "ns", results->svg_ns);
  weft_cli_json_number(json, "bytes", results->svg_bytes);
  weft_cli_json_close(json, '}');
}

void weft_cli_bench_add_sim_document(struct weft_cli_json *json,
                                     const struct weft_cli_sim_results *results) {
  weft_cli_json_open(json, NULL, '{');
  weft_cli_json_string(json, "schema", "weft-bench-sim/1");
  weft_cli_json_string(json, "version", weft_version());
  weft_cli_json_real(json, "clock_per_cpu", clock_per_cpu(results));
  weft_cli_json_open(json, "runs", '[');
  for (size_t i = 0; i < WEFT_CLI_BENCH_SCHEDULES; i++) {
    add_json_run(json, NULL, &results->small[i], NULL);
  }
  for (size_t i = 0; i < WEFT_CLI_BENCH_SCHEDULES && results->has_large; i++) {
    add_json_run(json, NULL, &results->large[i], &results->small[i]);
  }
  weft_cli_json_close(json, ']');
  if (results->has_wide) {
    add_json_run(json, "wide", &results->wide, NULL);
  } else {
    weft_cli_json_null(json, "wide");
  }
  add_json_svg(json, results);
  weft_cli_json_close(json, '}');
}
