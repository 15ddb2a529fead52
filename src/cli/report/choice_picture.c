/* A choice as a picture: a bar per candidate, of work, idle time and all-reduce. A page has the same
 * picture with the table. */
#include <math.h>
#include <stdio.h>

#include "cli/cmd/choice_command.h"
#include "cli/io/chart.h"
#include "cli/io/picture_file.h"
#include "cli/io/text_columns.h"

#define WORK "#3b82d6"
#define IDLE "#c9ced6"
#define ALL_REDUCE "#d9822b"
#define BOUND "#2f9e6a"

enum { LEFT = 190, RIGHT = 640, TOP = 64, PITCH = 30, HEIGHT = 18 };

static void add_box(struct weft_text *text, double from, double to, int y, const char *colour) {
  if (to > from) {
    weft_text_addf(text, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>",
                   from, y, to - from, HEIGHT, colour);
  }
}

static void add_bar(struct weft_text *text, const struct weft_choice_candidate *candidate, int y,
                    double scale) {
  const struct weft_cli_choice_bar bar = weft_cli_choice_bar_of(candidate);
  const double busy = bar.work + bar.idle, bound = isfinite(bar.bound) ? bar.bound : 0;
  weft_text_addf(
      text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"" WEFT_CLI_CHART_INK "\">%s</text>",
      LEFT - 8, y + HEIGHT - 5, bar.label);
  add_box(text, LEFT, (double)LEFT + bar.work * scale, y, WORK);
  add_box(text, (double)LEFT + bar.work * scale, (double)LEFT + busy * scale, y, IDLE);
  add_box(text, (double)LEFT + busy * scale, (double)LEFT + (busy + bar.all_reduce) * scale, y,
          ALL_REDUCE);
  if (bound > 0) {
    weft_text_addf(text, "<path d=\"M%.2f %dv%d\" stroke=\"" BOUND "\" stroke-width=\"2\"/>",
                   (double)LEFT + bound * scale, y - 3, HEIGHT + 6);
  }
  const double end =
      (double)LEFT + (candidate->answer != NULL ? busy + bar.all_reduce : bound) * scale;
  weft_text_addf(text, "<text x=\"%.2f\" y=\"%d\" fill=\"" WEFT_CLI_CHART_INK "\">", end + 8,
                 y + HEIGHT - 5);
  if (candidate->answer != NULL) {
    weft_text_addf(text, "%s, memory %s", weft_cli_amount(candidate->value).text,
                   weft_cli_amount(candidate->answer->peak_memory).text);
  } else if (bound > 0) {
    weft_text_addf(text, "at least %s", weft_cli_amount(bound).text);
  } else {
    weft_text_add(text, "does not fit into the memory");
  }
  weft_text_add(text, "</text>\n");
}

static void add_svg(struct weft_text *text, const struct weft_cli_choice *report) {
  const struct weft_choice *choice = report->choice;
  const uint32_t rows = weft_cli_choice_rows(choice);
  const double longest = fmax(1e-300, weft_cli_choice_longest(choice));
  char title[96];
  (void)snprintf(title, sizeof title, "time of a step: %u ranks, a global batch of %llu",
                 (unsigned)report->request->search.ranks,
                 (unsigned long long)report->request->global_batch);
  weft_cli_picture_begin(text, TOP + (int)rows * PITCH + 8, 12, title);
  int x = weft_cli_chart_add_entry(text, 12, WORK, "", "work");
  x = weft_cli_chart_add_entry(text, x, IDLE, "", "idle");
  x = weft_cli_chart_add_entry(text, x, ALL_REDUCE, "", "all-reduce");
  (void)weft_cli_chart_add_entry(text, x, BOUND, "", "lower bound");
  for (uint32_t k = 0; k < rows; k++) {
    add_bar(text, &choice->candidates[k], TOP + (int)k * PITCH, (RIGHT - LEFT) / longest);
  }
  weft_cli_chart_end(text);
}

void weft_cli_choice_add_picture(struct weft_text *text, const struct weft_cli_choice *choice,
                                 const char *path) {
  const bool is_page = weft_cli_picture_of(path) == WEFT_CLI_HTML;
  if (is_page) {
    weft_cli_page_begin(text, "weft plan --global-batch");
  }
  add_svg(text, choice);
  if (is_page) {
    weft_text_add(text, "<pre>\n");
    weft_cli_choice_add(text, choice, 0);
    weft_cli_page_end(text);
  }
}
