/* The report of `weft run`, as text, as "weft-run/1" and as a picture. */
#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

#include <weft/sim.h>

#include "cli/cmd/execution.h"
#include "cli/io/picture_file.h"

struct weft_cli_run_report {
  const char *name; /* of the input */
  const struct weft_costs
      *costs;      /* as they were given; their unit is "" on loopback when none was */
  double per_unit; /* the transport's time */
  const struct weft_cli_execution *execution;
  const struct weft_simulation *simulation; /* NULL: it cannot be simulated */
  const char *stage, *comm;
  bool is_null;
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

/* ---- The timeline as a file, by its ending ---- */

/* What -o asks for; NO_PICTURE: if it is given, it is for the report. With --json, x.json is the
 * report. */
enum weft_cli_picture weft_cli_run_picture_of(const struct weft_cli_arguments *arguments);

/* Writes the measured timeline to a file, on a page together with the predicted one (NULL: none);
 * `name` and `transport` are parts of the titles, `step` and `source` say on the page which step
 * was measured and what the prediction is from. WEFT_CLI_OK, or another exit status after
 * printing why. */
struct weft_cli_run_timeline {
  const char *name, *transport;
  const char *step, *source;
  const struct weft_simulation *measured, *predicted;
  const struct weft_costs *costs;
};
int weft_cli_timeline_write(const struct weft_cli *cli, const char *path,
                            const struct weft_cli_run_timeline *timeline);

/* Draws the median step, a page with the prediction below it, and writes it to `path`.
 * The execution has kept its events. WEFT_CLI_OK, or another exit status after printing why. */
int weft_cli_run_draw(const struct weft_cli *cli, const char *path,
                      const struct weft_cli_run_report *report);

#endif
