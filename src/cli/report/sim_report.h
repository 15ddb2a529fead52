/* The result of `weft sim`: as text, and as "weft-sim/1". */
#ifndef CLI_SIM_REPORT_H
#define CLI_SIM_REPORT_H

#include <weft/sim.h>
#include <weft/support.h>

#include "cli/args/cost_options.h"

/* Makespans of many runs with varied times. */
struct weft_cli_jitter {
  uint64_t runs; /* 0: none were asked for */
  double share;
  double mean, least, p50, p90, p99, most;
};

struct weft_cli_sim_report {
  const char *name;               /* of the input */
  const struct weft_costs *costs; /* as they were given: the report says what they are of */
  const struct weft_simulation *simulation;
  double period;
  struct weft_cli_jitter jitter;
  bool limited;
  double memory_limit; /* when limited */
  bool has_path;
  uint64_t *path; /* events of the critical path */
  uint64_t path_count;
};

void weft_cli_sim_text(struct weft_text *text, const struct weft_cli_sim_report *report);
void weft_cli_sim_json(struct weft_text *text, const struct weft_cli_sim_report *report);

/* Parts of both, for other reports: the lines from makespan to peak; the table of
 * ranks; the members of the JSON object after its schema. */
void weft_cli_sim_text_numbers(struct weft_text *text, const struct weft_cli_sim_report *report);
void weft_cli_sim_text_ranks(struct weft_text *text, const struct weft_cli_sim_report *report);
void weft_cli_sim_json_members(struct weft_json *json, const struct weft_cli_sim_report *report);

/* What the costs of a program are of: a sentence; and members "costs_of" (rank or stage) and
 * "stage_share", how much of it a stage has. */
struct weft_cli_words weft_cli_scope_text(const struct weft_costs *costs,
                                          const struct weft_program *program);
void weft_cli_scope_json(struct weft_json *json, const struct weft_costs *costs,
                         const struct weft_program *program);

/* "rank" or "stage". */
const char *weft_cli_scope_name(const struct weft_costs *costs);

/* The heading of a table of schedules: "4 ranks, 8 microbatches; times in ms; " and what the costs
 * are of, where the numbers of stages differ, and an empty line; NULL graph: chains. `by_parts`:
 * stages are cut from the costs' parts. */
void weft_cli_heading_add(struct weft_text *text, uint32_t ranks, uint32_t microbatches,
                          const struct weft_costs *costs, const struct weft_graph *graph,
                          bool by_parts);

#endif
