/* The report of a plan: the schedule, its gap to the bound, and the prediction; as text, and as
 * "weft-plan/1" with the members of sim. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "cli/cmd/plan_command.h"
#include "cli/io/error_message.h"
#include "cli/io/text_columns.h"

bool weft_cli_plan_cuts(const struct weft_search_request *request) {
  assert(request != NULL && request->costs != NULL);
  return request->costs->part_count > 0 && !request->keep_partition && request->graph == NULL;
}

double weft_cli_plan_value(const struct weft_search_answer *answer) {
  return (answer->objective == WEFT_OBJECTIVE_SPAN ? answer->span : answer->makespan) +
         answer->all_reduce;
}

double weft_cli_gap(double value, double bound) {
  return bound > 0 ? value / bound - 1 : value > 0 ? INFINITY : 0;
}

double weft_cli_plan_gap(const struct weft_search_answer *answer) {
  return weft_cli_gap(weft_cli_plan_value(answer), answer->bound);
}

double weft_cli_plan_bubble(const struct weft_search_answer *answer) {
  return answer->objective == WEFT_OBJECTIVE_SPAN ? answer->simulation->span_bubble_ratio
                                                  : answer->simulation->bubble_ratio;
}

const char *weft_cli_answer_placement(const struct weft_search_answer *answer) {
  return answer->placement_name != NULL ? answer->placement_name
                                        : weft_placement_name(answer->placement);
}

void weft_cli_gap_add(struct weft_text *text, bool optimal, double gap) {
  if (optimal) {
    weft_text_add(text, "optimal");
  } else {
    weft_text_addf(text, "at most %.2f %% above optimal", 100 * gap);
  }
}

void weft_cli_gap_add_cell(struct weft_text *text, bool optimal, double gap) {
  if (optimal) {
    weft_text_addf(text, "%8s", "optimal");
  } else {
    weft_text_addf(text, "%6.2f %%", 100 * gap);
  }
}

/* ---- Text ---- */

static void add_head(struct weft_text *text, const struct weft_cli_plan *plan) {
  const struct weft_search_answer *answer = plan->answer;
  const struct weft_search_request *request = plan->request;
  const bool is_graph = answer->stage_ranks != NULL;
  const uint32_t v = is_graph ? answer->costs->stage_count : answer->stages_per_rank;
  weft_text_addf(text, "%s: %s, %s%s", answer->schedule,
                 weft_cli_count(request->ranks, "rank").text, weft_cli_count(v, "stage").text,
                 is_graph ? "" : " on each");
  if (v > 1 && !is_graph) {
    weft_text_addf(text, " (placement: %s)", weft_placement_name(answer->placement));
  }
  weft_text_addf(text, ", %s\n", weft_cli_count(request->microbatches, "microbatch").text);
}

static void add_result(struct weft_text *text, const struct weft_cli_plan *plan) {
  const struct weft_search_answer *answer = plan->answer;
  const char *unit = plan->prediction.costs->unit;
  weft_text_addf(text, "%-17s %s %s, bound %s: ", "result", weft_objective_name(answer->objective),
                 weft_cli_amount_in(weft_cli_plan_value(answer), unit).text,
                 weft_cli_amount_in(answer->bound, unit).text);
  weft_cli_gap_add(text, answer->optimal, weft_cli_plan_gap(answer));
  weft_text_add(text, answer->stage_parts != NULL ? " for this placement and partition\n"
                                                  : " for this placement\n");
}

static void add_memory(struct weft_text *text, const struct weft_cli_plan *plan) {
  const struct weft_simulation *simulation = plan->answer->simulation;
  uint32_t rank = 0;
  for (uint32_t r = 1; r < simulation->program->rank_count; r++) {
    rank = simulation->ranks[r].peak_memory > simulation->ranks[rank].peak_memory ? r : rank;
  }
  weft_text_addf(text, "%-17s %s at most, on rank %" PRIu32, "memory",
                 weft_cli_amount(simulation->ranks[rank].peak_memory).text, rank);
  if (plan->prediction.limited) {
    weft_text_addf(text, "; the limit is %s", weft_cli_amount(plan->prediction.memory_limit).text);
  }
  weft_text_add(text, "\n");
}

static void add_numbers(struct weft_text *text, const uint32_t *numbers, uint32_t count) {
  for (uint32_t s = 0; s < count; s++) {
    weft_text_addf(text, "%s%" PRIu32, s > 0 ? "," : "", numbers[s]);
  }
  weft_text_add(text, "\n");
}

static void add_stages(struct weft_text *text, const struct weft_search_answer *answer) {
  if (answer->stage_parts != NULL) {
    weft_text_addf(text, "%-17s ", "parts of stages");
    add_numbers(text, answer->stage_parts, answer->costs->stage_count);
  }
  if (answer->stage_ranks != NULL) {
    weft_text_addf(text, "%-17s %s", "placement", answer->placement_name);
    if (answer->open_bound < answer->bound) {
      weft_text_addf(text, "; no placement takes less than %s",
                     weft_cli_amount(answer->open_bound).text);
    }
    weft_text_addf(text, "\n%-17s ", "ranks of stages");
    add_numbers(text, answer->stage_ranks, answer->costs->stage_count);
  }
}

static void add_search(struct weft_text *text, const struct weft_cli_plan *plan) {
  weft_text_addf(text, "%-17s %s evaluated, seed %" PRIu64 "%s\n", "search",
                 weft_cli_count(plan->answer->evaluated, "order").text, plan->request->seed,
                 plan->answer->stopped ? "; stopped: more time may find a better one" : "");
}

void weft_cli_plan_add_files(struct weft_text *text, const char *file, const char *costs_file) {
  assert(text != NULL && (costs_file == NULL || file != NULL));
  if (costs_file == NULL) {
    return;
  }
  weft_text_addf(text, "%-17s weft sim ", "repeat");
  weft_cli_add_shell_word(text, file);
  weft_text_add(text, " --costs ");
  weft_cli_add_shell_word(text, costs_file);
  weft_text_add(text, "\n");
}

void weft_cli_plan_add(struct weft_text *text, const struct weft_cli_plan *plan) {
  assert(text != NULL && plan->request != NULL && plan->answer != NULL);
  add_head(text, plan);
  add_result(text, plan);
  weft_cli_sim_text_numbers(text, &plan->prediction);
  add_memory(text, plan);
  add_stages(text, plan->answer);
  add_search(text, plan);
  weft_cli_plan_add_files(text, plan->file, plan->costs_file);
  weft_cli_sim_text_ranks(text, &plan->prediction);
  if (plan->target != NULL) {
    weft_text_add(text, "\n");
    weft_cli_target_text(text, plan->kind, plan->target);
  }
}

/* ---- JSON ---- */

static void add_answer(struct weft_json *json, const struct weft_cli_plan *plan) {
  const struct weft_search_answer *answer = plan->answer;
  weft_json_string(json, "schedule", answer->schedule);
  weft_json_string(json, "placement", weft_cli_answer_placement(answer));
  weft_json_number(json, "v", answer->stages_per_rank);
  weft_json_string(json, "objective", weft_objective_name(answer->objective));
  weft_json_exact(json, "bound", answer->bound);
  weft_json_exact(json, "open_bound", answer->open_bound);
  weft_json_exact(json, "gap", weft_cli_plan_gap(answer));
  weft_json_boolean(json, "optimal", answer->optimal);
  weft_json_exact(json, "peak_memory", answer->peak_memory);
  weft_json_number(json, "evaluated", answer->evaluated);
  weft_json_boolean(json, "stopped", answer->stopped);
}

static void add_json_numbers(struct weft_json *json, const char *name, const uint32_t *numbers,
                             uint32_t count) {
  if (numbers == NULL) {
    return;
  }
  weft_json_open(json, name, '[');
  for (uint32_t s = 0; s < count; s++) {
    weft_json_number(json, NULL, numbers[s]);
  }
  weft_json_close(json, ']');
}

void weft_cli_answer_add_stages(struct weft_json *json, const struct weft_search_answer *answer) {
  add_json_numbers(json, "stage_parts", answer->stage_parts, answer->costs->stage_count);
  add_json_numbers(json, "stage_ranks", answer->stage_ranks, answer->costs->stage_count);
}

void weft_cli_plan_add_json(struct weft_text *text, const struct weft_cli_plan *plan) {
  assert(text != NULL && plan->request != NULL && plan->answer != NULL);
  struct weft_json json = weft_json_begin(text, "weft-plan/1");
  add_answer(&json, plan);
  weft_json_number(&json, "seed", plan->request->seed);
  weft_cli_answer_add_stages(&json, plan->answer);
  if (!plan->prediction.limited) {
    weft_json_null(&json, "memory_limit");
  }
  weft_cli_sim_json_members(&json, &plan->prediction);
  weft_json_string(&json, "costs_file", plan->costs_file);
  weft_costs_print(plan->answer->costs, &json, "costs");
  if (plan->target != NULL) {
    weft_cli_target_json(&json, plan->kind, plan->target);
  }
  weft_json_end(&json);
}
