/* The progress line of a search: best value so far, bound, gap, and share of the work. */
#include <weft/launch.h>

#include "cli/cmd/plan_command.h"

#include <inttypes.h>
#include <math.h>

#include "cli/io/text_columns.h"

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

static void report(void *context, const struct weft_search_progress *at) {
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
  *progress =
      (struct weft_cli_plan_progress){.line = {.cli = cli},
                                      .is_live = is_wanted && weft_cli_progress_line_is_wanted(cli),
                                      .unit = request->costs->unit,
                                      .rounds = 1,
                                      .text = {.allocator = cli->allocator}};
  request->stop = weft_launch_is_interrupted;
  request->report = report;
  request->context = progress;
}

void weft_cli_plan_progress_finish(struct weft_cli_plan_progress *progress) {
  weft_cli_progress_line_clear(&progress->line);
  weft_text_finish(&progress->text);
}
