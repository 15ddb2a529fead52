/* A plan as `weft plan` hands it out: what the search found, checked by the parts of Weft
 * that know nothing of searching; as text and as "weft-plan/1". */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include <weft/search.h>

#include "cli/cmd/plan_target.h"
#include "cli/report/sim_report.h"

struct weft_cli_plan {
  const struct weft_search_request *request; /* borrowed */
  struct weft_search_answer *answer;         /* owned */
  struct weft_simulation *simulation;        /* of the answer's table; owned */
  struct weft_cli_prediction prediction;     /* of the simulation */
};

/* Reads the options into a request; `costs` is borrowed by it. Returns WEFT_CLI_OK, or another
 * exit status after having said what is wrong. */
int weft_cli_plan_read_request(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments,
                               const struct weft_costs *costs, struct weft_search_request *request);

/* Holds an answer to its promise: the table lowers, the program is proved not to hang under
 * rendezvous, and the simulator gets the same times and no more memory than the limit. The
 * answer becomes the plan's. WEFT_CLI_OK, or another exit status after having said why: then
 * there is nothing to finish. */
int weft_cli_plan_take(const struct weft_cli *cli, const struct weft_search_request *request,
                       struct weft_search_answer *answer, struct weft_cli_plan *plan);
/* Searches, and takes the answer. */
int weft_cli_plan_make(const struct weft_cli *cli, const struct weft_search_request *request,
                       struct weft_cli_plan *plan);
void weft_cli_plan_finish(struct weft_cli_plan *plan);

/* The most that a rank needs at any time, as simulated. */
double weft_cli_plan_memory(const struct weft_cli_plan *plan);
/* Of the objective. */
double weft_cli_plan_value(const struct weft_search_answer *answer);
/* How much more it is than the bound, as a share of the bound; INFINITY when that is 0 and the
 * value is not. */
double weft_cli_plan_gap(const struct weft_search_answer *answer);

/* `target` is NULL where none was asked for. */
void weft_cli_plan_add(struct weft_text *text, const struct weft_cli_plan *plan,
                       const struct weft_cli_target *target);
void weft_cli_plan_add_document(struct weft_text *text, const struct weft_cli_plan *plan,
                                const struct weft_cli_target *target);

#endif
