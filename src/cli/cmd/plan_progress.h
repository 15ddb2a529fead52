/* What `weft plan` shows on a terminal while it searches. */
#ifndef CLI_PLAN_PROGRESS_H
#define CLI_PLAN_PROGRESS_H

#include <weft/search.h>

#include "cli/io/progress_line.h"

struct weft_cli_plan_progress {
  struct weft_cli_live_line line;
  bool is_live;
  const char *unit;       /* of time */
  uint32_t round, rounds; /* of several searches, this one from 0; rounds 1: it is the only one */
  struct weft_text text;  /* of the line being written */
};

/* Also for the request's `stop` and `report`, and their context. A signal that came since
 * weft_launch_signals_begin() stops the search. */
void weft_cli_plan_progress_begin(struct weft_cli_plan_progress *progress,
                                  const struct weft_cli *cli, bool is_wanted,
                                  struct weft_search_request *request);
void weft_cli_plan_progress_finish(struct weft_cli_plan_progress *progress);

#endif
