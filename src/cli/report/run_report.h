/* The report of `weft run`, as text and as "weft-run/1". */
#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

#include <weft/sim.h>

#include "cli/cmd/execution.h"

struct weft_cli_run_report {
  const char *name; /* of the input */
  const char *unit; /* of all times but those in ns; "" on loopback when none was given */
  const struct weft_costs *costs; /* as they were given */
  double per_unit;                /* the transport's time */
  const struct weft_cli_execution *execution;
  const struct weft_simulation *simulation; /* NULL: it cannot be simulated */
  const char *transport, *stage, *comm;
  bool is_virtual, is_null;
  uint32_t first_step; /* counted: 1 after a warm-up, else 0 */
  uint32_t step;       /* the median one */
  double makespan;     /* of it */
  uint64_t wall_ns;    /* median */
  uint64_t actions;    /* that one thread executes: of the busiest rank, or all on loopback */
};

/* Computes from the execution: step, makespan, wall_ns, actions. */
void weft_cli_run_report_compute(struct weft_cli_run_report *report);

void weft_cli_run_add_text(struct weft_text *text, const struct weft_cli_run_report *report);
void weft_cli_run_add_json(struct weft_text *text, const struct weft_cli_run_report *report);

#endif
