/* The comparison as JSON, "weft-compare/1". */
#include <assert.h>

#include <weft/support.h>

#include "cli/report/compare_report.h"

static void add_entry(struct weft_json *json, const struct weft_comparison_entry *entry) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "name", entry->name);
  weft_json_boolean(json, "file", entry->info == NULL);
  weft_json_exact(json, "v", entry->stages_per_rank);
  weft_json_exact(json, "makespan", entry->makespan);
  weft_json_exact(json, "span", entry->span);
  weft_json_exact(json, "bubble_ratio", entry->bubble_ratio);
  weft_json_exact(json, "peak_activation", entry->peak_activation);
  weft_json_exact(json, "peak_memory", entry->peak_memory);
  weft_json_boolean(json, "fits", entry->fits);
  weft_json_close(json, '}');
}

static void add_omission(struct weft_json *json, const struct weft_comparison_omission *omission) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "name", omission->info->name);
  weft_json_number(json, "v", omission->stages_per_rank);
  weft_json_string(json, "why", omission->why);
  weft_json_close(json, '}');
}

static void add_winner(struct weft_json *json, const struct weft_comparison *comparison) {
  if (comparison->fitting == 0) {
    weft_json_null(json, "winner");
    return;
  }
  weft_json_open(json, "winner", '{');
  weft_json_string(json, "name", comparison->entries[0].name);
  weft_json_exact(json, "v", comparison->entries[0].stages_per_rank);
  weft_json_close(json, '}');
}

void weft_cli_compare_json(struct weft_text *text, const struct weft_compare_request *request,
                           const struct weft_comparison *comparison) {
  assert(text != NULL && request != NULL && comparison != NULL);
  struct weft_json json = weft_json_begin(text, "weft-compare/1");
  const struct weft_costs *costs = request->costs;
  weft_json_string(&json, "unit", costs->unit);
  weft_json_string(&json, "costs_of",
                   costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK ? "rank" : "stage");
  weft_json_number(&json, "ranks", comparison->shape.ranks);
  weft_json_number(&json, "microbatches", comparison->shape.microbatches);
  weft_json_exact(&json, "memory_limit", request->memory_limit); /* null: none */
  weft_json_open(&json, "schedules", '[');
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    add_entry(&json, &comparison->entries[k]);
  }
  weft_json_close(&json, ']');
  weft_json_open(&json, "left_out", '[');
  for (uint32_t k = 0; k < comparison->omission_count; k++) {
    add_omission(&json, &comparison->omissions[k]);
  }
  weft_json_close(&json, ']');
  add_winner(&json, comparison);
  weft_json_string(&json, "why", comparison->why);
  weft_json_end(&json);
}
