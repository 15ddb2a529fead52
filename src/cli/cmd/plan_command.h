/* What `weft plan` reports: the answer of the search and its prediction, as text and as
 * "weft-plan/1". */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include <weft/search.h>

#include "cli/args/cost_options.h"
#include "cli/report/sim_report.h"
#include "cli/report/target_report.h"

struct weft_cli_plan {
  const struct weft_search_request *request; /* borrowed */
  const struct weft_search_answer *answer;   /* borrowed */
  struct weft_cli_sim_report prediction;     /* of the answer's simulation */
  const char *file, *costs_file; /* where the table and its costs are written; NULL: nowhere */
  enum weft_target_kind kind;
  const struct weft_target *target; /* NULL: none */
};

/* Reads the options into a request, which borrows `costs`, fitted to its ranks. Returns WEFT_CLI_OK, or another exit
 * status after it has printed the error. */
int weft_cli_plan_read_request(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments,
                               struct weft_cli_costs *costs, struct weft_search_request *request);

/* Value of the objective. */
double weft_cli_plan_value(const struct weft_search_answer *answer);
/* Relative gap of a value to a bound; INFINITY when the bound is 0 and the value is not. */
double weft_cli_gap(double value, double bound);
double weft_cli_plan_gap(const struct weft_search_answer *answer);

void weft_cli_plan_add(struct weft_text *text, const struct weft_cli_plan *plan);
void weft_cli_plan_add_json(struct weft_text *text, const struct weft_cli_plan *plan);

#endif
