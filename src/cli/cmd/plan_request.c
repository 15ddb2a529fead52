/* The request of a search: from the options, and with the progress line as its report. */
#include "cli/cmd/plan_command.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include <weft/launch.h>

#include "cli/io/text_columns.h"
#include "cli/scoped.h"

static int check_shape(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const char example[] = "for example: weft plan -p 4 -m 8";
  if (!arguments->given[WEFT_CLI_OPTION_RANKS]) {
    return weft_cli_usage(cli, example, "plan needs -p, the number of ranks");
  }
  if (!arguments->given[WEFT_CLI_OPTION_MICROBATCHES] &&
      !arguments->given[WEFT_CLI_OPTION_GLOBAL_BATCH]) {
    return weft_cli_usage(cli, example,
                          "plan needs -m, the number of microbatches, or --global-batch");
  }
  return WEFT_CLI_OK;
}

static void read_effort(const struct weft_cli_arguments *arguments,
                        struct weft_search_request *request) {
  request->time_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_TIME_LIMIT, 0);
  const double usual =
      request->time_limit > 0 ? WEFT_EFFORT_OF_LIMIT * request->time_limit : request->effort;
  request->effort = weft_cli_real(arguments, WEFT_CLI_OPTION_EFFORT, usual);
  request->use_time = request->time_limit > 0 && !arguments->given[WEFT_CLI_OPTION_EFFORT];
}

int weft_cli_plan_read_request(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments,
                               struct weft_cli_costs *costs, struct weft_search_request *request) {
  assert(cli != NULL && arguments != NULL && costs != NULL && request != NULL);
  /* The parser keeps numbers within 32 bits. */
  const uint32_t ranks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, 0);
  WEFT_CLI_TRY(check_shape(cli, arguments));
  WEFT_CLI_TRY(weft_cli_costs_fit_ranks(cli, costs, ranks));
  const unsigned placement = arguments->choices[WEFT_CLI_OPTION_PLACEMENT];
  *request = weft_search_request_default();
  request->ranks = ranks;
  request->microbatches = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, 0);
  request->stages_per_rank =
      (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES_PER_RANK, 0);
  request->any_placement = placement == 0;
  request->placement = placement == 2 ? WEFT_PLACEMENT_V : WEFT_PLACEMENT_LOOP;
  request->keep_partition = arguments->given[WEFT_CLI_OPTION_KEEP_PARTITION];
  request->whole_backward = arguments->given[WEFT_CLI_OPTION_NO_SPLIT];
  request->costs = costs->costs;
  request->rank_factors = costs->options.rank_factors;
  request->memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, request->memory_limit);
  request->objective = arguments->choices[WEFT_CLI_OPTION_OBJECTIVE] == 1 ? WEFT_OBJECTIVE_SPAN
                                                                          : WEFT_OBJECTIVE_MAKESPAN;
  read_effort(arguments, request);
  request->seed = weft_cli_number(arguments, WEFT_CLI_OPTION_SEED, 0);
  request->threads = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_THREADS, 0);
  return WEFT_CLI_OK;
}

/* ---- The progress line: best value so far, bound, gap, and share of the work ---- */

static void add_value(struct weft_text *text, const char *unit,
                      const struct weft_search_progress *at) {
  if (!isfinite(at->value)) {
    weft_text_add(text, "no schedule yet");
    return;
  }
  weft_text_addf(text, "best %s", weft_cli_amount_in(at->value, unit).text);
  if (at->bound > 0) {
    weft_text_addf(text, "  bound %s  gap %.2f %%", weft_cli_amount(at->bound).text,
                   100 * (at->value / at->bound - 1));
  }
}

static void report_progress(void *context, const struct weft_search_progress *at) {
  struct weft_cli_plan_progress *progress = context;
  struct weft_text *text = &progress->text;
  if (!progress->is_live || !weft_cli_progress_line_is_due(&progress->line)) {
    return;
  }
  const double done = (progress->round + fmin(1, at->done)) / progress->rounds;
  text->size = 0;
  weft_text_addf(text, "%3.0f %%  ", 100 * done);
  add_value(text, progress->unit, at);
  weft_text_addf(text, "  %" PRIu64 " orders", at->evaluated);
  weft_cli_progress_line_update(&progress->line, text);
}

void weft_cli_plan_progress_begin(struct weft_cli_plan_progress *progress,
                                  const struct weft_cli *cli, bool is_wanted,
                                  struct weft_search_request *request) {
  assert(progress != NULL && request->costs != NULL);
  *progress =
      (struct weft_cli_plan_progress){.line = {.cli = cli},
                                      .is_live = is_wanted && weft_cli_progress_line_is_wanted(cli),
                                      .unit = request->costs->unit,
                                      .rounds = 1,
                                      .text = {.allocator = cli->allocator}};
  request->stop = weft_launch_is_interrupted;
  request->report = report_progress;
  request->context = progress;
}

void weft_cli_plan_progress_finish(struct weft_cli_plan_progress *progress) {
  weft_cli_progress_line_clear(&progress->line);
  weft_text_finish(&progress->text);
}
