/* The candidates of a choice as a table with bars of characters, and as "weft-choice/1". */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "cli/cmd/plan_command.h"
#include "cli/io/text_columns.h"

enum { ROWS_MAX = 10, CUT_SIZE = 40, LABEL_COLUMNS = 24, BAR_MAX = 60 };

uint32_t weft_cli_choice_rows(const struct weft_choice *choice) {
  assert(choice != NULL);
  return choice->count < ROWS_MAX ? choice->count : ROWS_MAX;
}

double weft_cli_choice_longest(const struct weft_choice *choice) {
  double longest = 0;
  for (uint32_t k = 0; k < weft_cli_choice_rows(choice); k++) {
    const struct weft_choice_candidate *candidate = &choice->candidates[k];
    const double length = isfinite(candidate->value) ? candidate->value : candidate->bound;
    longest = isfinite(length) ? fmax(longest, length) : longest;
  }
  return longest;
}

/* ---- The table ---- */

/* The parts of stages, or their ranks. "3,3,2x14,1": equal numbers that follow each other are
 * counted. */
static const char *cut_of(char *buffer, size_t size, const struct weft_search_answer *answer) {
  const uint32_t *parts = answer->stage_parts != NULL ? answer->stage_parts : answer->stage_ranks;
  const uint32_t count = answer->costs->stage_count;
  size_t used = 0;
  for (uint32_t s = 0; s < count && used < size;) {
    uint32_t run = 1;
    while (s + run < count && parts[s + run] == parts[s]) {
      run++;
    }
    const int added =
        run < 3 ? snprintf(buffer + used, size - used, "%s%" PRIu32, s > 0 ? "," : "", parts[s])
                : snprintf(buffer + used, size - used, "%s%" PRIu32 "x%" PRIu32, s > 0 ? "," : "",
                           parts[s], run);
    used += (size_t)added;
    s += run < 3 ? 1 : run;
  }
  if (used >= size) {
    memcpy(buffer + size - 4, "...", 4);
  }
  return buffer;
}

/* One that has a name. */
static bool has_placement(const struct weft_choice_candidate *candidate) {
  return candidate->stages_per_rank > 1 && candidate->placement != WEFT_PLACEMENT_INFERRED;
}

static void add_row(struct weft_text *text, const struct weft_choice_candidate *candidate) {
  char cut[CUT_SIZE];
  weft_text_addf(text, "%5" PRIu32 " %5" PRIu32 "  %2" PRIu32 "  %-4s %6" PRIu32 "  ",
                 candidate->ranks, candidate->replicas, candidate->stages_per_rank,
                 has_placement(candidate) ? weft_placement_name(candidate->placement) : "-",
                 candidate->microbatches);
  const struct weft_cli_words bound = weft_cli_amount(candidate->bound);
  if (candidate->answer == NULL) {
    weft_text_addf(text, "%10s  %10s  %8s  %10s  %s\n", "-",
                   isfinite(candidate->bound) ? bound.text : "-", "-", "-",
                   isfinite(candidate->bound) ? "-" : "does not fit into the memory");
    return;
  }
  weft_text_addf(text, "%10s  %10s  ", weft_cli_amount(candidate->value).text, bound.text);
  const double gap = weft_cli_gap(candidate->value, candidate->bound);
  weft_cli_gap_add_cell(text, gap < 1e-8, gap);
  weft_text_addf(text, "  %10s  %-21s  %s\n", weft_cli_amount(candidate->answer->peak_memory).text,
                 candidate->answer->schedule, cut_of(cut, sizeof cut, candidate->answer));
}

static void add_table(struct weft_text *text, const struct weft_cli_choice *report) {
  const struct weft_choice *choice = report->choice;
  const struct weft_search_request *search = &report->request->search;
  const char *unit = search->costs->unit;
  weft_text_addf(
      text, "%s, a global batch of %" PRIu64 ", microbatches of %g%s%s; times are of %s stage\n\n",
      weft_cli_count(search->ranks, "rank").text, report->request->global_batch,
      fmax(1, search->costs->microbatch_size), unit[0] != '\0' ? "; times in " : "", unit,
      weft_cli_plan_cuts(search) || search->costs->stage_count > 1 ? "each" : "a");
  weft_text_addf(
      text, "%5s %5s  %2s  %-4s %6s  %10s  %10s  %8s  %10s  %-21s  %s\n", "p", "dp", "v", "", "m",
      "step", "bound", "gap", "memory", "schedule",
      choice->candidates[0].answer->stage_parts != NULL ? "parts of stages" : "ranks of stages");
  for (uint32_t k = 0; k < weft_cli_choice_rows(choice); k++) {
    add_row(text, &choice->candidates[k]);
  }
  if (choice->count > ROWS_MAX) {
    weft_text_addf(text, "  ... and %" PRIu32 " more, none of them better; --json has all\n",
                   choice->count - ROWS_MAX);
  }
}

/* ---- The plot ---- */

struct weft_cli_choice_bar weft_cli_choice_bar_of(const struct weft_choice_candidate *candidate) {
  const struct weft_search_answer *answer = candidate->answer;
  struct weft_cli_choice_bar bar = {.bound = candidate->bound};
  (void)snprintf(bar.label, sizeof bar.label, "p %" PRIu32 " x dp %" PRIu32 ", v %" PRIu32 "%s%s",
                 candidate->ranks, candidate->replicas, candidate->stages_per_rank,
                 has_placement(candidate) ? " " : "",
                 has_placement(candidate) ? weft_placement_name(candidate->placement) : "");
  if (answer != NULL) {
    const double time = candidate->value - answer->all_reduce;
    bar.all_reduce = answer->all_reduce;
    bar.idle = time * weft_cli_plan_bubble(answer);
    bar.work = time - bar.idle;
  }
  return bar;
}

static void add_cells(struct weft_text *text, char cell, double from, double to, double scale) {
  for (long k = lround(from * scale); k < lround(to * scale); k++) {
    weft_text_append(text, &cell, 1);
  }
}

static void add_bars(struct weft_text *text, const struct weft_choice *choice, uint32_t columns) {
  const uint32_t rows = weft_cli_choice_rows(choice);
  const double room = columns > LABEL_COLUMNS + 20 && columns < LABEL_COLUMNS + BAR_MAX
                          ? columns - LABEL_COLUMNS
                          : BAR_MAX;
  const double longest = weft_cli_choice_longest(choice);
  weft_text_add(text, "\nstep: # work, - idle, + all-reduce, . at least (bound)\n");
  for (uint32_t k = 0; k < rows && longest > 0; k++) {
    const struct weft_cli_choice_bar bar = weft_cli_choice_bar_of(&choice->candidates[k]);
    const double scale = room / longest, busy = bar.work + bar.idle;
    if (choice->candidates[k].answer == NULL && !isfinite(bar.bound)) {
      continue;
    }
    weft_text_addf(text, "%-*s ", LABEL_COLUMNS - 1, bar.label);
    if (choice->candidates[k].answer == NULL) {
      add_cells(text, '.', 0, bar.bound, scale);
    }
    add_cells(text, '#', 0, bar.work, scale);
    add_cells(text, '-', bar.work, busy, scale);
    add_cells(text, '+', busy, busy + bar.all_reduce, scale);
    weft_text_add(text, "\n");
  }
}

/* ---- The certificate ---- */

static void add_result(struct weft_text *text, const struct weft_cli_choice *report) {
  const struct weft_choice *choice = report->choice;
  const struct weft_choice_candidate *best = &choice->candidates[0];
  const char *unit = report->request->search.costs->unit;
  weft_text_addf(
      text, "\nbest: %s x %s, v %" PRIu32 ", %s: %s; the bound of all candidates is %s: ",
      weft_cli_count(best->ranks, "rank").text, weft_cli_count(best->replicas, "replica").text,
      best->stages_per_rank, weft_cli_count(best->microbatches, "microbatch").text,
      weft_cli_amount_in(best->value, unit).text, weft_cli_amount_in(choice->bound, unit).text);
  weft_cli_gap_add(text, choice->optimal, weft_cli_gap(best->value, choice->bound));
  weft_text_addf(text, "\n%s evaluated, seed %" PRIu64 "%s\n",
                 weft_cli_count(choice->evaluated, "order").text, report->request->search.seed,
                 choice->stopped ? "; stopped: more time may find a better one" : "");
}

void weft_cli_choice_add(struct weft_text *text, const struct weft_cli_choice *choice,
                         uint32_t columns) {
  assert(text != NULL && choice->choice->count > 0);
  add_table(text, choice);
  add_bars(text, choice->choice, columns);
  add_result(text, choice);
  weft_cli_plan_add_files(text, choice->file, choice->costs_file);
}

/* ---- JSON ---- */

static void add_answer(struct weft_json *json, const struct weft_search_answer *answer) {
  weft_json_exact(json, "makespan", answer->makespan);
  weft_json_exact(json, "span", answer->span);
  weft_json_exact(json, "all_reduce", answer->all_reduce);
  weft_json_exact(json, "bubble_ratio", answer->simulation->bubble_ratio);
  weft_json_exact(json, "peak_memory", answer->peak_memory);
  weft_json_string(json, "schedule", answer->schedule);
  weft_cli_answer_add_stages(json, answer);
}

static void add_candidate(struct weft_json *json, const struct weft_choice_candidate *candidate) {
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "ranks", candidate->ranks);
  weft_json_number(json, "replicas", candidate->replicas);
  weft_json_number(json, "v", candidate->stages_per_rank);
  weft_json_string(json, "placement",
                   candidate->answer != NULL ? weft_cli_answer_placement(candidate->answer)
                                             : weft_placement_name(candidate->placement));
  weft_json_number(json, "microbatches", candidate->microbatches);
  weft_json_exact(json, "step", candidate->value);
  weft_json_exact(json, "bound", candidate->bound);
  if (candidate->answer != NULL) {
    weft_json_exact(json, "gap", weft_cli_gap(candidate->value, candidate->bound));
    add_answer(json, candidate->answer);
  }
  weft_json_close(json, '}');
}

void weft_cli_choice_add_json(struct weft_text *text, const struct weft_cli_choice *report) {
  assert(text != NULL && report->choice->count > 0);
  struct weft_json json = weft_json_begin(text, "weft-choice/1");
  const struct weft_choice *choice = report->choice;
  const struct weft_search_request *search = &report->request->search;
  weft_json_string(&json, "unit", search->costs->unit);
  weft_json_string(&json, "costs_of", "stage");
  weft_json_number(&json, "ranks", search->ranks);
  weft_json_number(&json, "global_batch", report->request->global_batch);
  weft_json_exact(&json, "microbatch_size", fmax(1, search->costs->microbatch_size));
  weft_json_exact(&json, "memory_limit", search->memory_limit);
  weft_json_string(&json, "objective", weft_objective_name(search->objective));
  weft_json_exact(&json, "bound", choice->bound);
  weft_json_exact(&json, "gap", weft_cli_gap(choice->candidates[0].value, choice->bound));
  weft_json_boolean(&json, "optimal", choice->optimal);
  weft_json_boolean(&json, "stopped", choice->stopped);
  weft_json_number(&json, "evaluated", choice->evaluated);
  weft_json_number(&json, "seed", search->seed);
  weft_json_open(&json, "candidates", '[');
  for (uint32_t k = 0; k < choice->count; k++) {
    add_candidate(&json, &choice->candidates[k]);
  }
  weft_json_close(&json, ']');
  weft_costs_print(choice->candidates[0].answer->costs, &json, "costs");
  weft_json_string(&json, "costs_file", report->costs_file);
  weft_json_end(&json);
}
