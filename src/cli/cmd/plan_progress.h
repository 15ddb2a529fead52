/* The progress line of `weft plan` on a terminal. */
#ifndef CLI_PLAN_PROGRESS_H
#define CLI_PLAN_PROGRESS_H

#include <weft/search.h>

#include "cli/io/progress_line.h"

struct weft_cli_plan_progress {
  struct weft_cli_progress_line line;
  bool is_live;
  const char *unit;       /* of time */
  uint32_t round, rounds; /* number of this search from 0, and of all */
  struct weft_text text;  /* of the line being written */
};

/* Sets the request's `stop`, `report` and context. A signal since
 * weft_launch_signals_begin() stops the search. */
void weft_cli_plan_progress_begin(struct weft_cli_plan_progress *progress,
                                  const struct weft_cli *cli, bool is_wanted,
                                  struct weft_search_request *request);
void weft_cli_plan_progress_finish(struct weft_cli_plan_progress *progress);

#endif
