/* The report of a plan as JSON, "weft-plan/1": the members of sim, and those of the search. */

#include "cli/cmd/plan_command.h"

static void add_answer(struct weft_json *json, const struct weft_cli_plan *plan) {
  const struct weft_search_answer *answer = plan->answer;
  weft_json_string(json, "schedule", answer->schedule);
  weft_json_string(json, "placement",
                   answer->placement_name != NULL ? answer->placement_name
                                                  : weft_placement_name(answer->placement));
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

static void add_numbers(struct weft_json *json, const char *name, const uint32_t *numbers,
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

void weft_cli_plan_add_json(struct weft_text *text, const struct weft_cli_plan *plan) {
  struct weft_json json = weft_json_begin(text, "weft-plan/1");
  add_answer(&json, plan);
  weft_json_number(&json, "seed", plan->request->seed);
  const struct weft_search_answer *answer = plan->answer;
  add_numbers(&json, "stage_parts", answer->stage_parts, answer->costs->stage_count);
  add_numbers(&json, "stage_ranks", answer->stage_ranks, answer->costs->stage_count);
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
