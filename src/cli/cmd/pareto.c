/* Searches the Pareto front of memory and time. The first searches have no limit, and the least
 * possible limit; then the interval with the largest difference in time and memory is bisected
 * again and again. A plan is valid for every limit from its own memory on, so the front is
 * monotone by construction. */
#include "cli/cmd/plan_command.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/launch.h>

#include "cli/io/error_message.h"

/* Intervals shorter than this share of the range are not divided. */
#define RESOLUTION 0.004

struct front {
  const struct weft_cli *cli;
  struct weft_search_request request; /* of one search */
  struct weft_cli_plan_progress *progress;
  struct weft_cli_pareto *pareto;
  int64_t begin_ns;
  /* Limits with known values, ascending: those of the searches, and the memory of their plans.
   * INFINITY where a search found nothing. */
  struct point {
    double limit, value;
  } points[2 * WEFT_CLI_PARETO_MAX];
  uint32_t trial_count;
};

/* ---- Points ---- */

static bool is_dominated(const struct weft_search_answer *answer,
                         const struct weft_search_answer *by) {
  return by->peak_memory <= answer->peak_memory * (1 + 1e-9) &&
         weft_cli_plan_value(by) <= weft_cli_plan_value(answer) * (1 + 1e-12);
}

/* Takes the answer over. */
static void keep_point(struct weft_cli_pareto *pareto, struct weft_search_answer *answer,
                       double limit) {
  uint32_t kept = 0, at = 0;
  for (uint32_t k = 0; k < pareto->count; k++) {
    if (is_dominated(answer, pareto->points[k].answer)) {
      weft_search_answer_destroy(answer);
      return;
    }
  }
  for (uint32_t k = 0; k < pareto->count; k++) {
    if (is_dominated(pareto->points[k].answer, answer)) {
      weft_search_answer_destroy(pareto->points[k].answer);
    } else {
      pareto->points[kept++] = pareto->points[k];
    }
  }
  while (at < kept && pareto->points[at].answer->peak_memory < answer->peak_memory) {
    at++;
  }
  memmove(&pareto->points[at + 1], &pareto->points[at], (kept - at) * sizeof pareto->points[0]);
  pareto->points[at] = (struct weft_cli_pareto_point){answer, limit};
  pareto->count = kept + 1;
}

void weft_cli_pareto_finish(struct weft_cli_pareto *pareto) {
  for (uint32_t k = 0; k < pareto->count; k++) {
    weft_search_answer_destroy(pareto->points[k].answer);
  }
  pareto->count = 0;
}

/* ---- One search ---- */

static void record_trial(struct front *front, double limit, double value) {
  uint32_t at = front->trial_count;
  while (at > 0 && front->points[at - 1].limit > limit) {
    front->points[at] = front->points[at - 1];
    at--;
  }
  front->points[at] = (struct point){limit, value};
  front->trial_count++;
}

static void record_answer(struct front *front, struct weft_search_answer *answer) {
  const double limit = front->request.memory_limit, value = weft_cli_plan_value(answer);
  front->pareto->evaluated += answer->evaluated;
  front->pareto->stopped = front->pareto->stopped || answer->stopped;
  record_trial(front, answer->peak_memory, value);
  if (isfinite(limit) && limit > answer->peak_memory) {
    record_trial(front, limit, value);
  }
  keep_point(front->pareto, answer, limit);
}

/* Divides the remaining time among the remaining searches. */
static void divide_time(struct front *front, const struct weft_search_request *whole) {
  if (whole->time_limit > 0) {
    const double gone = (double)(weft_clock_ns() - front->begin_ns) * 1e-9;
    const double left = fmax(0.001, whole->time_limit - gone);
    front->request.time_limit = left / (WEFT_CLI_PARETO_MAX - front->progress->round);
  }
}

/* A limit without a plan is not an error. */
static int search_limit(struct front *front, double limit) {
  struct weft_search_answer *answer;
  struct weft_error error;
  front->request.memory_limit = limit;
  divide_time(front, front->pareto->request);
  const enum weft_status found =
      weft_search(front->cli->allocator, &front->request, &answer, &error);
  front->progress->round++;
  if (found == WEFT_ERR_INVALID && isfinite(limit)) {
    record_trial(front, limit, INFINITY);
    return WEFT_CLI_OK;
  }
  if (found < 0) {
    return weft_cli_fail(front->cli, NULL, &error);
  }
  record_answer(front, answer);
  return WEFT_CLI_OK;
}

/* ---- The next limit ---- */

/* The potential of an interval. */
static double potential_of(const struct point *a, const struct point *b, double range,
                           double scale) {
  const double width = (b->limit - a->limit) / range;
  const double height = isfinite(a->value) ? (a->value - b->value) / scale : 1;
  return width <= RESOLUTION || height <= 1e-9 ? 0 : width * fmin(1, height);
}

/* False: no interval is worth another search. */
static bool choose_limit(const struct front *front, double *limit) {
  const struct point *points = front->points;
  const uint32_t last = front->trial_count - 1;
  const double range = points[last].limit - points[0].limit;
  double scale = 0, most = 0;
  for (uint32_t k = 0; k <= last; k++) {
    scale = isfinite(points[k].value) ? fmax(scale, points[k].value - points[last].value) : scale;
  }
  for (uint32_t k = 0; k < last && range > 0 && scale > 0; k++) {
    const double potential = potential_of(&points[k], &points[k + 1], range, scale);
    if (potential > most) {
      most = potential;
      *limit = (points[k].limit + points[k + 1].limit) / 2;
    }
  }
  return most > 0;
}

static bool goes_on(const struct front *front) {
  return front->progress->round < WEFT_CLI_PARETO_MAX && weft_launch_signal() == 0 &&
         (front->pareto->request->time_limit <= 0 ||
          (double)(weft_clock_ns() - front->begin_ns) * 1e-9 < front->pareto->request->time_limit);
}

static int search_front(struct front *front) {
  const struct weft_search_request *whole = front->pareto->request;
  double limit = front->pareto->need.enough;
  int status = search_limit(front, whole->memory_limit);
  if (status == WEFT_CLI_OK && goes_on(front) && limit < front->points[0].limit) {
    status = search_limit(front, limit);
  }
  while (status == WEFT_CLI_OK && goes_on(front) && choose_limit(front, &limit)) {
    status = search_limit(front, limit);
  }
  front->pareto->stopped = front->pareto->stopped || weft_launch_signal() != 0;
  return status;
}

int weft_cli_pareto_find(const struct weft_cli *cli, const struct weft_search_request *request,
                         struct weft_cli_plan_progress *progress, struct weft_cli_pareto *pareto) {
  struct weft_error error;
  assert(cli != NULL && request != NULL);
  *pareto = (struct weft_cli_pareto){.request = request};
  struct front front = {.cli = cli,
                        .request = *request,
                        .progress = progress,
                        .pareto = pareto,
                        .begin_ns = weft_clock_ns()};
  front.request.effort = request->effort / (double)WEFT_CLI_PARETO_MAX;
  progress->rounds = WEFT_CLI_PARETO_MAX;
  return weft_search_least_memory(cli->allocator, request, &pareto->need, &error) < 0
             ? weft_cli_fail(cli, NULL, &error)
             : search_front(&front);
}
