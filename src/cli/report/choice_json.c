/* A choice as JSON, "weft-choice/1". */
#include <math.h>

#include <weft/support.h>

#include "cli/cmd/choice_command.h"

static void add_answer(struct weft_json *json, const struct weft_search_answer *answer) {
  weft_json_exact(json, "makespan", answer->makespan);
  weft_json_exact(json, "span", answer->span);
  weft_json_exact(json, "all_reduce", answer->all_reduce);
  weft_json_exact(json, "bubble_ratio", answer->simulation->bubble_ratio);
  weft_json_exact(json, "peak_memory", answer->peak_memory);
  weft_json_string(json, "schedule", answer->schedule);
  const uint32_t *stages = answer->stage_parts != NULL ? answer->stage_parts : answer->stage_ranks;
  weft_json_open(json, answer->stage_parts != NULL ? "stage_parts" : "stage_ranks", '[');
  for (uint32_t s = 0; s < answer->costs->stage_count; s++) {
    weft_json_number(json, NULL, stages[s]);
  }
  weft_json_close(json, ']');
}

static void add_candidate(struct weft_json *json, const struct weft_choice_candidate *candidate) {
  weft_json_open(json, NULL, '{');
  weft_json_number(json, "ranks", candidate->ranks);
  weft_json_number(json, "replicas", candidate->replicas);
  weft_json_number(json, "v", candidate->stages_per_rank);
  weft_json_string(json, "placement",
                   candidate->answer != NULL && candidate->answer->placement_name != NULL
                       ? candidate->answer->placement_name
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
  struct weft_json json = weft_json_begin(text, "weft-choice/1");
  const struct weft_choice *choice = report->choice;
  const struct weft_search_request *search = &report->request->search;
  weft_json_string(&json, "unit", search->costs->unit);
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
  weft_json_end(&json);
}
