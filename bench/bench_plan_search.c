/* `weft bench plan-search`: how long the planner takes to be as good as what has been
 * published, for all memory limits of a V, and for one move of its local search. The time of
 * the check that weft_search() makes of each answer is reported apart. */
#include <weft/support.h>
#include <weft/weft.h>

#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "bench/bench.h"
#include "bench/bench_clock.h"
#include "cli/io/error_message.h"

/* A problem with equal stages, and what others have reached for it. */
struct profile {
  const char *name;
  uint32_t ranks, stages_per_rank, microbatches;
  double f, i, w, hop;
  double kept;   /* of an activation, between I and W */
  double memory; /* limit */
  double bubble; /* published, to four decimals; 1: nobody has */
  enum weft_placement_kind placement;
};

/* arXiv 2401.10241, table 9: 28.3B on 32 ranks. */
static const struct profile singles[] = {
    {"ZB-1p", 32, 1, 256, 10.402, 10.248, 7.698, 0.460, 0.432432, 32, 0.0594, WEFT_PLACEMENT_LOOP},
    {"ZB-2p", 32, 1, 256, 10.402, 10.248, 7.698, 0.460, 0.432432, 64, 0.0018, WEFT_PLACEMENT_LOOP},
};
/* The same paper's 6.2B, in half stages. */
static const struct profile v = {"V",  8,    2,        24, 14407, 14380,
                                 9676, 1610, 0.432432, 0,  1,     WEFT_PLACEMENT_V};
/* Moves are measured where the search does not end before: in little memory. */
enum { MOVES_LIMIT = 8 };

enum { SINGLES = WEFT_ARRAY_LENGTH(singles) };

/* Efforts, in seconds of a core: what is enough for each. */
#define EFFORT_SINGLE 0.002
#define EFFORT_V 0.01
#define EFFORT_MOVES 0.3

/* Limits of the V, in halves of a microbatch: the least that any order needs, up to where no
 * more is gained. */
enum { V_LEAST = 2, V_MOST = 24, V_LIMITS = V_MOST - V_LEAST + 1 };

struct results {
  double single_ms[SINGLES], single_check_ms[SINGLES], single_bubble[SINGLES];
  double v_ms; /* all limits together */
  double v_bubble[V_LIMITS];
  double move_ns;
  uint64_t moves;
  uint32_t repeats;
};

static struct weft_bench_case case_of(const struct profile *profile) {
  return (struct weft_bench_case){.schedule = profile->name,
                                  .shape = {.ranks = profile->ranks,
                                            .stages_per_rank = profile->stages_per_rank,
                                            .microbatches = profile->microbatches,
                                            .placement = profile->placement}};
}

static enum weft_status make_costs(const struct weft_cli *cli, const struct profile *profile,
                                   struct weft_costs **out, struct weft_error *error) {
  const enum weft_status status = weft_costs_create(cli->allocator, 1, out, error);
  if (status == WEFT_OK) {
    struct weft_stage_costs *stage = (*out)->stages;
    stage->f = profile->f;
    stage->i = profile->i;
    stage->w = profile->w;
    stage->b = profile->i + profile->w;
    stage->activation_after_i = profile->kept;
    (*out)->hop.latency = profile->hop;
    (*out)->of = WEFT_COSTS_OF_STAGE;
  }
  return status;
}

struct measurement {
  const struct profile *profile;
  double limit, effort;
  uint32_t threads;
  double bubble;     /* found */
  uint64_t clock_ns; /* of the search alone */
  double check_ns;   /* of the check of its answer */
  uint64_t moves;
  double move_ns;
};

static int search(const struct weft_cli *cli, struct measurement *measurement) {
  const struct profile *profile = measurement->profile;
  struct weft_search_request request = weft_search_request_default();
  struct weft_search_answer *answer;
  struct weft_costs *costs;
  struct weft_error error;
  if (make_costs(cli, profile, &costs, &error) != WEFT_OK) {
    return weft_cli_fail(cli, NULL, &error);
  }
  request.ranks = profile->ranks;
  request.stages_per_rank = profile->stages_per_rank;
  request.microbatches = profile->microbatches;
  request.any_placement = false;
  request.placement = profile->placement;
  request.costs = costs;
  request.objective = WEFT_OBJECTIVE_SPAN;
  request.memory_limit = measurement->limit;
  request.effort = measurement->effort;
  request.threads = measurement->threads;
  const uint64_t begin = weft_bench_now_ns();
  const enum weft_status status = weft_search(cli->allocator, &request, &answer, &error);
  measurement->clock_ns = weft_bench_now_ns() - begin;
  weft_costs_destroy(costs);
  if (status != WEFT_OK) {
    return weft_cli_fail(cli, NULL, &error);
  }
  const double work = (double)profile->microbatches * profile->stages_per_rank *
                      (profile->f + profile->i + profile->w);
  measurement->check_ns = answer->check_ns;
  measurement->clock_ns -= (uint64_t)answer->check_ns;
  measurement->bubble = 1 - work / answer->span;
  measurement->moves = answer->moves;
  measurement->move_ns = answer->move_ns;
  weft_search_answer_destroy(answer);
  return WEFT_CLI_OK;
}

/* ---- What is measured ---- */

static int measure_single(const struct weft_cli *cli, size_t which, struct results *results) {
  uint64_t samples[WEFT_BENCH_REPEATS_MAX], checks[WEFT_BENCH_REPEATS_MAX];
  struct measurement measurement = {
      .profile = &singles[which], .limit = singles[which].memory, .effort = EFFORT_SINGLE};
  for (uint32_t n = 0; n < results->repeats; n++) {
    const int status = search(cli, &measurement);
    if (status != WEFT_CLI_OK) {
      return status;
    }
    if (measurement.bubble > singles[which].bubble + 0.00005) {
      const struct weft_bench_case at = case_of(&singles[which]);
      return weft_bench_fail(cli, &at, "the plan is worse than the published one");
    }
    samples[n] = measurement.clock_ns;
    checks[n] = (uint64_t)measurement.check_ns;
  }
  results->single_check_ms[which] = (double)weft_bench_median(checks, results->repeats) / 1e6;
  results->single_ms[which] = (double)weft_bench_median(samples, results->repeats) / 1e6;
  results->single_bubble[which] = measurement.bubble;
  return WEFT_CLI_OK;
}

static int measure_v(const struct weft_cli *cli, struct results *results) {
  uint64_t samples[WEFT_BENCH_REPEATS_MAX] = {0};
  for (uint32_t n = 0; n < results->repeats; n++) {
    for (uint32_t k = 0; k < V_LIMITS; k++) {
      struct measurement measurement = {.profile = &v, .limit = V_LEAST + k, .effort = EFFORT_V};
      const int status = search(cli, &measurement);
      if (status != WEFT_CLI_OK) {
        return status;
      }
      samples[n] += measurement.clock_ns;
      results->v_bubble[k] = measurement.bubble;
    }
  }
  results->v_ms = (double)weft_bench_median(samples, results->repeats) / 1e6;
  return WEFT_CLI_OK;
}

static int measure_moves(const struct weft_cli *cli, struct results *results) {
  struct measurement measurement = {
      .profile = &v, .limit = MOVES_LIMIT, .effort = EFFORT_MOVES, .threads = 1};
  const int status = search(cli, &measurement);
  results->move_ns = measurement.move_ns;
  results->moves = measurement.moves;
  return status;
}

/* ---- Report ---- */

static void add_text(struct weft_text *text, const struct results *results) {
  weft_text_addf(
      text, "weft %s, bench plan-search; every plan is checked (lowered, verified, simulated)\n\n",
      weft_version());
  weft_text_add(
      text,
      "                                             bubble  published        ms   check ms\n");
  for (size_t n = 0; n < SINGLES; n++) {
    weft_text_addf(
        text, "p = %" PRIu32 ", m = %" PRIu32 ", memory %-19g %8.4f %10.4f %9.2f %10.2f\n",
        singles[n].ranks, singles[n].microbatches, singles[n].memory, results->single_bubble[n],
        singles[n].bubble, results->single_ms[n], results->single_check_ms[n]);
  }
  weft_text_addf(text, "V, p = %" PRIu32 ", m = %" PRIu32 ", %d memory limits %36.2f\n", v.ranks,
                 v.microbatches, V_LIMITS, results->v_ms);
  weft_text_add(text, "\nlimit  bubble   (V, in microbatches through both stages)\n");
  for (uint32_t k = 0; k < V_LIMITS; k += 2) {
    weft_text_addf(text, "%5g  %.4f\n", (V_LEAST + k) / 2.0, results->v_bubble[k]);
  }
  weft_text_addf(text, "\none move of the V, limit %d: %.0f ns of one core (%" PRIu64 " moves)\n",
                 MOVES_LIMIT / 2, results->move_ns, results->moves);
}

static void add_json(struct weft_json *json, const struct results *results) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-plan-search/1");
  weft_json_open(json, "single", '[');
  for (size_t n = 0; n < SINGLES; n++) {
    weft_json_open(json, NULL, '{');
    weft_json_number(json, "p", singles[n].ranks);
    weft_json_number(json, "m", singles[n].microbatches);
    weft_json_real(json, "memory", singles[n].memory);
    weft_json_real(json, "bubble", results->single_bubble[n]);
    weft_json_real(json, "published", singles[n].bubble);
    weft_json_real(json, "ms", results->single_ms[n]);
    weft_json_real(json, "check_ms", results->single_check_ms[n]);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_open(json, "v", '{');
  weft_json_real(json, "ms", results->v_ms);
  weft_json_open(json, "bubble", '[');
  for (uint32_t k = 0; k < V_LIMITS; k++) {
    weft_json_real(json, NULL, results->v_bubble[k]);
  }
  weft_json_close(json, ']');
  weft_json_close(json, '}');
  weft_json_real(json, "move_ns", results->move_ns);
  weft_json_number(json, "moves", results->moves);
  weft_json_close(json, '}');
}

int weft_bench_cmd_plan_search(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments, struct weft_text *text,
                               struct weft_json *json) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  struct results results = {.repeats =
                                (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, 5)};
  int status = WEFT_CLI_OK;
  for (size_t n = 0; n < SINGLES && status == WEFT_CLI_OK; n++) {
    status = measure_single(cli, n, &results);
  }
  if (status == WEFT_CLI_OK) {
    status = measure_v(cli, &results);
  }
  if (status == WEFT_CLI_OK) {
    status = measure_moves(cli, &results);
  }
  if (status == WEFT_CLI_OK && json == NULL) {
    add_text(text, &results);
  } else if (status == WEFT_CLI_OK) {
    add_json(json, &results);
  }
  return status;
}
