/* What `weft plan --global-batch` reports: the candidates as a table with a plot, as
 * "weft-choice/1", and as a picture. */
#ifndef CLI_CHOICE_COMMAND_H
#define CLI_CHOICE_COMMAND_H

#include <weft/choice.h>

#include "cli/cmd/plan_command.h"

struct weft_cli_choice {
  const struct weft_choice_request *request; /* borrowed */
  const struct weft_choice *choice;          /* borrowed */
};

/* How many candidates text and picture show, and the longest time of these. */
uint32_t weft_cli_choice_rows(const struct weft_choice *choice);
double weft_cli_choice_longest(const struct weft_choice *choice);

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
