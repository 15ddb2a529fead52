/* What `weft plan` reports: the answer of a search with its prediction, "weft-plan/1"; with
 * --pareto the least time for each amount of memory, "weft-pareto/1"; with --global-batch the
 * candidates for the use of all ranks, "weft-choice/1". Each as text and as JSON, the last two also
 * as a picture. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include <weft/choice.h>
#include <weft/search.h>

#include "cli/args/cost_options.h"
#include "cli/io/progress_line.h"
#include "cli/report/sim_report.h"
#include "cli/report/target_report.h"

/* Reads the options into a request, which borrows `costs`, fitted to its ranks. Returns
 * WEFT_CLI_OK, or another exit status after it has printed the error. */
int weft_cli_plan_read_request(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments,
                               struct weft_cli_costs *costs, struct weft_search_request *request);

/* ---- The progress line on a terminal ---- */

struct weft_cli_plan_progress {
  struct weft_cli_progress_line line;
  bool is_live;
  const char *unit;       /* of time */
  uint32_t round, rounds; /* number of this search from 0, and of all */
  struct weft_text text;  /* of the line being written */
};

/* Sets the request's `stop`, `report` and context. A signal since weft_launch_signals_begin() stops
 * the search. */
void weft_cli_plan_progress_begin(struct weft_cli_plan_progress *progress,
                                  const struct weft_cli *cli, bool is_wanted,
                                  struct weft_search_request *request);
void weft_cli_plan_progress_finish(struct weft_cli_plan_progress *progress);

/* ---- One plan ---- */

struct weft_cli_plan {
  const struct weft_search_request *request; /* borrowed */
  const struct weft_search_answer *answer;   /* borrowed */
  struct weft_cli_sim_report prediction;     /* of the answer's simulation */
  const char *file, *costs_file; /* where the table and its costs are written; NULL: nowhere */
  enum weft_target_kind kind;
  const struct weft_target *target; /* NULL: none */
};

/* Whether stages are cut from the costs' parts: then times are of each stage. */
bool weft_cli_plan_cuts(const struct weft_search_request *request);

/* Value of the objective. */
double weft_cli_plan_value(const struct weft_search_answer *answer);
/* Relative gap of a value to a bound; INFINITY when the bound is 0 and the value is not. */
double weft_cli_gap(double value, double bound);
double weft_cli_plan_gap(const struct weft_search_answer *answer);
/* The idle share of the objective. */
double weft_cli_plan_bubble(const struct weft_search_answer *answer);

/* "optimal", or "at most 1.25 % above optimal"; and the same in eight columns of a table. */
void weft_cli_gap_add(struct weft_text *text, bool optimal, double gap);
void weft_cli_gap_add_cell(struct weft_text *text, bool optimal, double gap);

/* The placement's name; the members "stage_parts" and "stage_ranks", as far as there are any. */
const char *weft_cli_answer_placement(const struct weft_search_answer *answer);
void weft_cli_answer_add_stages(struct weft_json *json, const struct weft_search_answer *answer);

/* How to get the same numbers again, unless costs_file is NULL. */
void weft_cli_plan_add_files(struct weft_text *text, const char *file, const char *costs_file);

void weft_cli_plan_add(struct weft_text *text, const struct weft_cli_plan *plan);
void weft_cli_plan_add_json(struct weft_text *text, const struct weft_cli_plan *plan);

/* ---- The Pareto front ---- */

/* Most searches, each of which gives a point. */
enum { WEFT_CLI_PARETO_MAX = 17 };

/* A plan that no other plan dominates in memory and time. Its memory is the smallest limit that it
 * fits into. */
struct weft_cli_pareto_point {
  struct weft_search_answer *answer;
  double limit; /* of the search that found it; INFINITY: none */
};

struct weft_cli_pareto {
  const struct weft_search_request *request;                /* borrowed */
  struct weft_memory_need need;                             /* weft_search_least_memory()'s */
  struct weft_cli_pareto_point points[WEFT_CLI_PARETO_MAX]; /* memory rises, value falls */
  uint32_t count;
  uint64_t evaluated;
  bool stopped; /* by a signal or the time limit */
};

/* Searches for the points, to be finished in any case. The request's memory limit is the largest
 * one tried; its effort and time limit are for all searches together. WEFT_CLI_OK, or another exit
 * status after it has printed the error. */
int weft_cli_pareto_find(const struct weft_cli *cli, const struct weft_search_request *request,
                         struct weft_cli_plan_progress *progress, struct weft_cli_pareto *pareto);

void weft_cli_pareto_finish(struct weft_cli_pareto *pareto);

/* `columns` as in struct weft_cli. */
void weft_cli_pareto_add(struct weft_text *text, const struct weft_cli_pareto *pareto,
                         uint32_t columns);
void weft_cli_pareto_add_json(struct weft_text *text, const struct weft_cli_pareto *pareto);
/* x.svg, or x.html with the table. */
void weft_cli_pareto_add_picture(struct weft_text *text, const struct weft_cli_pareto *pareto,
                                 const char *path);

/* ---- The choice ---- */

struct weft_cli_choice {
  const struct weft_choice_request *request; /* borrowed */
  const struct weft_choice *choice;          /* borrowed */
  const char *file, *costs_file; /* where the best table and its costs are written; NULL: nowhere */
};

void weft_cli_choice_add(struct weft_text *text, const struct weft_cli_choice *choice,
                         uint32_t columns);
void weft_cli_choice_add_json(struct weft_text *text, const struct weft_cli_choice *report);
void weft_cli_choice_add_picture(struct weft_text *text, const struct weft_cli_choice *report,
                                 const char *path);

/* How many candidates text and picture show, and the longest time of these. */
uint32_t weft_cli_choice_rows(const struct weft_choice *choice);
double weft_cli_choice_longest(const struct weft_choice *choice);

/* The parts of a time: of work, idle, and all-reduce; for a candidate without a plan its bound. */
struct weft_cli_choice_bar {
  char label[48];
  double work, idle, all_reduce, bound;
};
struct weft_cli_choice_bar weft_cli_choice_bar_of(const struct weft_choice_candidate *candidate);

#endif
