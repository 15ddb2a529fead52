/* The timeline of a run as a file, by the file's ending. */
#ifndef CLI_RUN_PICTURE_H
#define CLI_RUN_PICTURE_H

#include "cli/args/option_parser.h"
#include "cli/io/picture_file.h"
#include "cli/report/run_report.h"

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
int weft_cli_run_draw(const struct weft_cli *cli, const char *path, const struct weft_costs *costs,
                      const struct weft_cli_run_report *report);

#endif
