/* One line on a terminal that renews itself while something takes long. */
#ifndef CLI_LIVE_LINE_H
#define CLI_LIVE_LINE_H

#include "cli/cli.h"

/* Zero-initialise, and set `cli`. */
struct weft_cli_progress_line {
  const struct weft_cli *cli;
  uint64_t said_ns; /* when it was last renewed */
  bool is_open;
};

/* Whether messages go to a terminal that takes such a line. */
bool weft_cli_progress_line_is_wanted(const struct weft_cli *cli);

/* Whether the line was not renewed for a while, so that it is worth composing a new one. */
bool weft_cli_progress_line_is_due(const struct weft_cli_progress_line *line);

/* Shows `text`, one line without its end, in place of what stands there; cut to the width of
 * the terminal. A text that failed is left out. */
void weft_cli_progress_line_update(struct weft_cli_progress_line *line,
                                   const struct weft_text *text);

/* Takes it away, if it is there. */
void weft_cli_progress_line_clear(struct weft_cli_progress_line *line);

#endif
