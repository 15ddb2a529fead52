/* A progress line: one line on a terminal that is rewritten while something takes long. */
#ifndef CLI_LIVE_LINE_H
#define CLI_LIVE_LINE_H

#include "cli/cli.h"

/* Zero-initialise, and set `cli`. */
struct weft_cli_progress_line {
  const struct weft_cli *cli;
  uint64_t said_ns; /* when it was last written */
  bool is_open;
};

/* Whether messages go to a terminal that can rewrite a line. */
bool weft_cli_progress_line_is_wanted(const struct weft_cli *cli);

/* Whether it is time to compose a new line. */
bool weft_cli_progress_line_is_due(const struct weft_cli_progress_line *line);

/* Shows `text`, one line without a newline, instead of the previous one; truncated to the width
 * of the terminal. A text that failed is ignored. */
void weft_cli_progress_line_update(struct weft_cli_progress_line *line,
                                   const struct weft_text *text);

/* Clears it, if it is shown. */
void weft_cli_progress_line_clear(struct weft_cli_progress_line *line);

#endif
