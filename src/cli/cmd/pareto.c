/* Finding out what memory is good for. First without a limit, and with the least that there
 * is; then in the middle of where time and memory still differ most, again and again. A plan is
 * good for every limit from its own memory on, so the points that are kept fall by
 * construction, whatever a search missed. */
#include <weft/launch.h>

#include "cli/cmd/pareto.h"

#include <math.h>
#include <string.h>

#include "cli/io/clock.h"
#include "cli/io/error_message.h"

/* Limits closer together than this share of all of them are not told apart. */
#define RESOLUTION 0.004

struct hunt {
  const struct weft_cli *cli;
  struct weft_search_request request; /* of one search */
  struct weft_cli_plan_progress *progress;
  struct weft_cli_pareto *pareto;
  uint64_t begin_ns;
  /* Limits and what is known to come out, in order: what was searched for, and what the plan
   * needs. INFINITY where the search found nothing. */
  struct trial {
    double limit, value;
  } trials[2 * WEFT_CLI_PARETO_MAX];
  uint32_t trial_count;
};

/* ---- Points ---- */

static bool is_beaten(const struct weft_cli_pareto_point *point,
                      const struct weft_cli_pareto_point *by) {
  return by->memory <= point->memory * (1 + 1e-9) && by->value <= point->value * (1 + 1e-12);
}

static void keep(struct weft_cli_pareto *pareto, const struct weft_cli_pareto_point *point) {
  uint32_t kept = 0, at = 0;
  for (uint32_t k = 0; k < pareto->count; k++) {
    if (is_beaten(point, &pareto->points[k])) {
      return;
    }
  }
  for (uint32_t k = 0; k < pareto->count; k++) {
    if (!is_beaten(&pareto->points[k], point)) {
      pareto->points[kept++] = pareto->points[k];
    }
  }
  while (at < kept && pareto->points[at].memory < point->memory) {
    at++;
  }
  memmove(&pareto->points[at + 1], &pareto->points[at], (kept - at) * sizeof pareto->points[0]);
  pareto->points[at] = *point;
  pareto->count = kept + 1;
}

static struct weft_cli_pareto_point point_of(const struct weft_search_answer *answer,
                                             double limit) {
  const struct weft_simulation *simulation = answer->simulation;
  return (struct weft_cli_pareto_point){.memory = answer->peak_memory,
                                        .limit = limit,
                                        .value = weft_cli_plan_value(answer),
                                        .makespan = answer->makespan,
                                        .span = answer->span,
                                        .bubble_ratio = answer->objective == WEFT_OBJECTIVE_SPAN
                                                            ? simulation->span_bubble_ratio
                                                            : simulation->bubble_ratio,
                                        .bound = answer->bound,
                                        .gap = weft_cli_plan_gap(answer),
                                        .optimal = answer->optimal,
                                        .schedule = answer->schedule,
                                        .placement = answer->placement,
                                        .v = answer->stages_per_rank};
}

/* ---- One search ---- */

static void note_trial(struct hunt *hunt, double limit, double value) {
  uint32_t at = hunt->trial_count;
  while (at > 0 && hunt->trials[at - 1].limit > limit) {
    hunt->trials[at] = hunt->trials[at - 1];
    at--;
  }
  hunt->trials[at] = (struct trial){limit, value};
  hunt->trial_count++;
}

static void take(struct hunt *hunt, const struct weft_search_answer *answer) {
  const struct weft_cli_pareto_point point = point_of(answer, hunt->request.memory_limit);
  hunt->pareto->evaluated += answer->evaluated;
  hunt->pareto->stopped = hunt->pareto->stopped || answer->stopped;
  keep(hunt->pareto, &point);
  note_trial(hunt, point.memory, point.value);
  if (isfinite(point.limit) && point.limit > point.memory) {
    note_trial(hunt, point.limit, point.value);
  }
}

/* What is left of the time, for the searches that are left. */
static void divide_time(struct hunt *hunt, const struct weft_search_request *whole) {
  if (whole->time_limit > 0) {
    const double gone = (double)(weft_cli_clock_ns() - hunt->begin_ns) * 1e-9;
    const double left = fmax(0.001, whole->time_limit - gone);
    hunt->request.time_limit = left / (WEFT_CLI_PARETO_MAX - hunt->progress->round);
  }
}

/* A limit for which nothing is found is no reason to give up. */
static int search(struct hunt *hunt, double limit) {
  struct weft_search_answer *answer;
  struct weft_error error;
  hunt->request.memory_limit = limit;
  divide_time(hunt, hunt->pareto->request);
  const enum weft_status found = weft_search(hunt->cli->allocator, &hunt->request, &answer, &error);
  hunt->progress->round++;
  if (found == WEFT_ERR_INVALID && isfinite(limit)) {
    note_trial(hunt, limit, INFINITY);
    return WEFT_CLI_OK;
  }
  if (found < 0) {
    return weft_cli_fail(hunt->cli, NULL, &error);
  }
  take(hunt, answer);
  weft_search_answer_destroy(answer);
  return WEFT_CLI_OK;
}

/* ---- Where to look next ---- */

/* How much there may be to find between two neighbours. */
static double promise_of(const struct trial *a, const struct trial *b, double range, double scale) {
  const double width = (b->limit - a->limit) / range;
  const double height = isfinite(a->value) ? (a->value - b->value) / scale : 1;
  return width <= RESOLUTION || height <= 1e-9 ? 0 : width * fmin(1, height);
}

/* False: nothing is worth another search. */
static bool choose_limit(const struct hunt *hunt, double *limit) {
  const struct trial *trials = hunt->trials;
  const uint32_t last = hunt->trial_count - 1;
  const double range = trials[last].limit - trials[0].limit;
  double scale = 0, most = 0;
  for (uint32_t k = 0; k <= last; k++) {
    scale = isfinite(trials[k].value) ? fmax(scale, trials[k].value - trials[last].value) : scale;
  }
  for (uint32_t k = 0; k < last && range > 0 && scale > 0; k++) {
    const double promise = promise_of(&trials[k], &trials[k + 1], range, scale);
    if (promise > most) {
      most = promise;
      *limit = (trials[k].limit + trials[k + 1].limit) / 2;
    }
  }
  return most > 0;
}

static bool goes_on(const struct hunt *hunt) {
  return hunt->progress->round < WEFT_CLI_PARETO_MAX && weft_launch_signal() == 0 &&
         (hunt->pareto->request->time_limit <= 0 ||
          (double)(weft_cli_clock_ns() - hunt->begin_ns) * 1e-9 <
              hunt->pareto->request->time_limit);
}

static int look(struct hunt *hunt) {
  const struct weft_search_request *whole = hunt->pareto->request;
  double limit = hunt->pareto->least;
  int status = search(hunt, whole->memory_limit);
  if (status == WEFT_CLI_OK && goes_on(hunt) && limit < hunt->trials[0].limit) {
    status = search(hunt, limit);
  }
  while (status == WEFT_CLI_OK && goes_on(hunt) && choose_limit(hunt, &limit)) {
    status = search(hunt, limit);
  }
  hunt->pareto->stopped = hunt->pareto->stopped || weft_launch_signal() != 0;
  return status;
}

int weft_cli_pareto_find(const struct weft_cli *cli, const struct weft_search_request *request,
                         struct weft_cli_plan_progress *progress, struct weft_cli_pareto *pareto) {
  struct weft_error error;
  *pareto = (struct weft_cli_pareto){.request = request};
  struct hunt hunt = {.cli = cli,
                      .request = *request,
                      .progress = progress,
                      .pareto = pareto,
                      .begin_ns = weft_cli_clock_ns()};
  hunt.request.effort = request->effort / WEFT_CLI_PARETO_MAX;
  progress->rounds = WEFT_CLI_PARETO_MAX;
  return weft_search_least_memory(cli->allocator, request, &pareto->least, &error) < 0
             ? weft_cli_fail(cli, NULL, &error)
             : look(&hunt);
}
