/* `weft plan --pareto`: the least time for each amount of memory; as a table with a plot, as
 * "weft-pareto/1", and as a picture. */
#ifndef CLI_PARETO_H
#define CLI_PARETO_H

#include "cli/cmd/plan_command.h"
#include "cli/cmd/plan_progress.h"

/* Most searches, each of which gives a point. */
enum { WEFT_CLI_PARETO_MAX = 17 };

/* A plan that no other plan dominates in memory and time. */
struct weft_cli_pareto_point {
  double memory; /* peak of a rank: the smallest limit that the plan fits into */
  double limit;  /* of the search that found it; INFINITY: none */
  double value;  /* of the objective */
  double makespan, span;
  double bubble_ratio; /* of the makespan, or of the span if that is the objective */
  double bound;        /* on its placement, for `limit` */
  double gap;
  bool optimal;
  const char *schedule;
  enum weft_placement_kind placement;
  uint32_t v;
};

struct weft_cli_pareto {
  const struct weft_search_request *request;                /* borrowed */
  struct weft_memory_need need;                             /* weft_search_least_memory()'s */
  struct weft_cli_pareto_point points[WEFT_CLI_PARETO_MAX]; /* memory rises, value falls */
  uint32_t count;
  uint64_t evaluated;
  bool stopped; /* by a signal or the time limit */
};

/* Searches for the points. The request's memory limit is the largest one tried; its effort and time
 * limit are for all searches together. WEFT_CLI_OK, or another exit status after it has printed the
 * error. */
int weft_cli_pareto_find(const struct weft_cli *cli, const struct weft_search_request *request,
                         struct weft_cli_plan_progress *progress, struct weft_cli_pareto *pareto);

void weft_cli_pareto_add(struct weft_text *text, const struct weft_cli_pareto *pareto,
                         uint32_t columns);
void weft_cli_pareto_add_json(struct weft_text *text, const struct weft_cli_pareto *pareto);

/* x.svg, or x.html with the table. */
void weft_cli_pareto_add_picture(struct weft_text *text, const struct weft_cli_pareto *pareto,
                                 const char *path);

#endif
