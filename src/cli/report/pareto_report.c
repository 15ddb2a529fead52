/* The Pareto front as a table with a plot of characters, and as "weft-pareto/1". */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "cli/cmd/plan_command.h"
#include "cli/io/text_columns.h"

enum { PLOT_ROWS = 12, PLOT_COLUMNS_MIN = 20, PLOT_COLUMNS_MAX = 72, LABEL_COLUMNS = 11 };

/* ---- The table ---- */

static void add_point(struct weft_text *text, const struct weft_search_answer *answer) {
  weft_text_addf(text, "%10s  %10s  %6.2f %%  %10s  ", weft_cli_amount(answer->peak_memory).text,
                 weft_cli_amount(weft_cli_plan_value(answer)).text,
                 100 * weft_cli_plan_bubble(answer), weft_cli_amount(answer->bound).text);
  weft_cli_gap_add_cell(text, answer->optimal, weft_cli_plan_gap(answer));
  weft_text_addf(text, "  %2" PRIu32 "  %-4s  %s\n", answer->stages_per_rank,
                 answer->stages_per_rank > 1 && answer->placement != WEFT_PLACEMENT_INFERRED
                     ? weft_placement_name(answer->placement)
                     : "-",
                 answer->schedule);
}

static void add_table(struct weft_text *text, const struct weft_cli_pareto *pareto) {
  const struct weft_search_request *request = pareto->request;
  weft_cli_heading_add(text, request->ranks, request->microbatches, request->costs, request->graph,
                       weft_cli_plan_cuts(request));
  weft_text_addf(text, "%10s  %10s  %8s  %10s  %8s  %2s  %-4s  %s\n", "memory",
                 weft_objective_name(request->objective), "bubble", "bound", "gap", "v", "",
                 "schedule");
  for (uint32_t k = 0; k < pareto->count; k++) {
    add_point(text, pareto->points[k].answer);
  }
}

/* ---- The plot ---- */

/* Memory to the right, time up. */
struct plot {
  const struct weft_cli_pareto *pareto;
  int columns;
  double left, right, low, high;
};

static int column_of(const struct plot *plot, double memory) {
  return (int)lround((memory - plot->left) / (plot->right - plot->left) * (plot->columns - 1));
}

/* A star for each plan, a line to where the next one begins. */
static void fill_row(const struct plot *plot, int row, char *cells) {
  const struct weft_cli_pareto *pareto = plot->pareto;
  memset(cells, ' ', (size_t)plot->columns);
  for (uint32_t k = 0; k < pareto->count; k++) {
    const int column = column_of(plot, pareto->points[k].answer->peak_memory);
    const int end = k + 1 < pareto->count
                        ? column_of(plot, pareto->points[k + 1].answer->peak_memory)
                        : plot->columns;
    const double value = weft_cli_plan_value(pareto->points[k].answer);
    if (lround((plot->high - value) / (plot->high - plot->low) * (PLOT_ROWS - 1)) == row) {
      memset(cells + column, '-', (size_t)(end > column ? end - column : 0));
      cells[column] = '*';
    }
  }
}

static void add_rows(struct weft_text *text, const struct plot *plot) {
  char cells[PLOT_COLUMNS_MAX];
  for (int row = 0; row < PLOT_ROWS; row++) {
    const bool is_end = row == 0 || row == PLOT_ROWS - 1;
    const struct weft_cli_words label = weft_cli_amount(row == 0 ? plot->high : plot->low);
    fill_row(plot, row, cells);
    weft_text_addf(text, "%*s |", LABEL_COLUMNS - 2, is_end ? label.text : "");
    weft_text_append(text, cells, (size_t)plot->columns);
    weft_cli_trim(text);
    weft_text_add(text, "\n");
  }
}

static void add_plot(struct weft_text *text, const struct weft_cli_pareto *pareto,
                     uint32_t columns) {
  const struct weft_search_answer *first = pareto->points[0].answer;
  const struct weft_search_answer *last = pareto->points[pareto->count - 1].answer;
  const int room =
      columns > 0 && columns < 100000 ? (int)columns - LABEL_COLUMNS : PLOT_COLUMNS_MAX;
  const struct plot plot = {.pareto = pareto,
                            .columns = room > PLOT_COLUMNS_MAX   ? PLOT_COLUMNS_MAX
                                       : room < PLOT_COLUMNS_MIN ? PLOT_COLUMNS_MIN
                                                                 : room,
                            .left = first->peak_memory,
                            .right = last->peak_memory,
                            .low = weft_cli_plan_value(last),
                            .high = weft_cli_plan_value(first)};
  if (pareto->count < 2 || !(plot.right > plot.left) || !(plot.high > plot.low)) {
    return;
  }
  weft_text_addf(text, "\n%s\n", weft_objective_name(pareto->request->objective));
  add_rows(text, &plot);
  weft_text_addf(text, "%*s +", LABEL_COLUMNS - 2, "");
  for (int k = 0; k < plot.columns; k++) {
    weft_text_append(text, "-", 1);
  }
  const struct weft_cli_words left = weft_cli_amount(plot.left);
  weft_text_addf(text, "\n%*s%s%*s\n", LABEL_COLUMNS, "", left.text,
                 plot.columns - (int)strlen(left.text), weft_cli_amount(plot.right).text);
  weft_text_addf(text, "%*s\n", LABEL_COLUMNS + (plot.columns + 6) / 2, "memory");
}

void weft_cli_pareto_add(struct weft_text *text, const struct weft_cli_pareto *pareto,
                         uint32_t columns) {
  assert(text != NULL && pareto->request != NULL);
  add_table(text, pareto);
  if (pareto->count > 0) {
    add_plot(text, pareto, columns);
  }
  const struct weft_memory_need *need = &pareto->need;
  weft_text_addf(text, "\nno schedule%s fits into less than %s",
                 need->of_tried ? " on the placements tried" : "",
                 weft_cli_amount(need->least).text);
  if (need->enough > need->least) {
    weft_text_addf(text, ", and %s is enough", weft_cli_amount(need->enough).text);
  }
  weft_text_addf(text, "; %s evaluated%s\n", weft_cli_count(pareto->evaluated, "order").text,
                 pareto->stopped ? "; stopped: more time may find better ones" : "");
}

/* ---- JSON ---- */

static void add_json_point(struct weft_json *json, const struct weft_cli_pareto_point *point) {
  const struct weft_search_answer *answer = point->answer;
  weft_json_open(json, NULL, '{');
  weft_json_exact(json, "memory", answer->peak_memory);
  weft_json_exact(json, "memory_limit", point->limit);
  weft_json_exact(json, "makespan", answer->makespan);
  weft_json_exact(json, "span", answer->span);
  weft_json_exact(json, "bubble_ratio", weft_cli_plan_bubble(answer));
  weft_json_exact(json, "bound", answer->bound);
  weft_json_exact(json, "gap", weft_cli_plan_gap(answer));
  weft_json_boolean(json, "optimal", answer->optimal);
  weft_json_string(json, "schedule", answer->schedule);
  weft_json_string(json, "placement", weft_placement_name(answer->placement));
  weft_json_number(json, "v", answer->stages_per_rank);
  weft_json_close(json, '}');
}

void weft_cli_pareto_add_json(struct weft_text *text, const struct weft_cli_pareto *pareto) {
  assert(text != NULL && pareto->request != NULL);
  struct weft_json json = weft_json_begin(text, "weft-pareto/1");
  const struct weft_search_request *request = pareto->request;
  const struct weft_costs *costs = request->costs;
  weft_json_string(&json, "unit", costs->unit);
  weft_json_string(&json, "costs_of",
                   weft_cli_plan_cuts(request) ? "stage" : weft_cli_scope_name(costs));
  weft_json_number(&json, "ranks", request->ranks);
  weft_json_number(&json, "microbatches", request->microbatches);
  weft_json_string(&json, "objective", weft_objective_name(request->objective));
  weft_json_exact(&json, "least_memory", pareto->need.enough); /* an order needs no more */
  weft_json_exact(&json, "memory_bound", pareto->need.least);
  weft_json_number(&json, "seed", request->seed);
  weft_json_number(&json, "evaluated", pareto->evaluated);
  weft_json_boolean(&json, "stopped", pareto->stopped);
  weft_json_open(&json, "points", '[');
  for (uint32_t k = 0; k < pareto->count; k++) {
    add_json_point(&json, &pareto->points[k]);
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
}
