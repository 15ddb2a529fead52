/* What `weft plan --global-batch` reports: the candidates as a table with a plot, as
 * "weft-choice/1", and as a picture. */
#ifndef CLI_CHOICE_COMMAND_H
#define CLI_CHOICE_COMMAND_H

#include <weft/choice.h>

#include "cli/cli.h"

struct weft_cli_choice {
  const struct weft_choice_request *request; /* borrowed */
  const struct weft_choice *choice;          /* borrowed */
};

/* Candidates that text and picture show. */
enum { WEFT_CLI_CHOICE_ROWS = 10 };

/* Relative gap of a value to a bound; INFINITY when the bound is 0 and the value is not. */
double weft_cli_choice_gap(double value, double bound);

void weft_cli_choice_add(struct weft_text *text, const struct weft_cli_choice *choice,
                         uint32_t columns);
void weft_cli_choice_add_json(struct weft_text *text, const struct weft_cli_choice *report);
/* x.svg, or x.html with the table. */
void weft_cli_choice_add_picture(struct weft_text *text, const struct weft_cli_choice *choice,
                                 const char *path);

/* The parts of a time: of work, idle, and all-reduce; for a candidate without a plan its bound. */
struct weft_cli_choice_bar {
  char label[48];
  double work, idle, all_reduce, bound;
};
struct weft_cli_choice_bar weft_cli_choice_bar_of(const struct weft_choice_candidate *candidate);

#endif
