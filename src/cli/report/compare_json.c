/* The comparison as JSON, "weft-compare/1". */
#include <assert.h>

#include <weft/support.h>

#include "cli/report/compare_report.h"

static void add_entry(struct weft_json *json, const struct weft_cli_entry *entry) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "name", entry->name);
  weft_json_boolean(json, "file", entry->file);
  weft_json_exact(json, "v", entry->v);
  weft_json_exact(json, "makespan", entry->makespan);
  weft_json_exact(json, "span", entry->span);
  weft_json_exact(json, "bubble_ratio", entry->bubble_ratio);
  weft_json_exact(json, "peak_activation", entry->peak_activation);
  weft_json_exact(json, "peak_memory", entry->peak_memory);
  weft_json_boolean(json, "fits", entry->fits);
  weft_json_close(json, '}');
}

static void add_omission(struct weft_json *json, const struct weft_cli_omission *omission) {
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "name", omission->info->name);
  weft_json_number(json, "v", omission->v);
  weft_json_string(json, "why", omission->why);
  weft_json_close(json, '}');
}

static void add_winner(struct weft_json *json, const struct weft_cli_comparison *comparison) {
  if (comparison->fitting == 0) {
    weft_json_null(json, "winner");
    return;
  }
  weft_json_open(json, "winner", '{');
  weft_json_string(json, "name", comparison->entries[0].name);
  weft_json_exact(json, "v", comparison->entries[0].v);
  weft_json_close(json, '}');
}

static void add_reason(struct weft_json *json, const struct weft_cli_comparison *comparison) {
  struct weft_text reason = {.allocator = json->text->allocator};
  weft_cli_compare_reason(&reason, comparison);
  json->text->failed = json->text->failed || reason.failed;
  weft_json_string(json, "why", reason.failed ? "" : reason.data);
  weft_text_finish(&reason);
}

void weft_cli_compare_json(struct weft_text *text, const struct weft_cli_comparison *comparison) {
  assert(text != NULL && comparison != NULL);
  struct weft_json json = weft_json_begin(text, "weft-compare/1");
  const struct weft_costs *costs = comparison->costs;
  weft_json_string(&json, "unit", costs->unit);
  weft_json_string(&json, "costs_of",
                   costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK ? "rank" : "stage");
  weft_json_number(&json, "ranks", comparison->shape.ranks);
  weft_json_number(&json, "microbatches", comparison->shape.microbatches);
  if (comparison->limited) {
    weft_json_exact(&json, "memory_limit", comparison->memory_limit);
  } else {
    weft_json_null(&json, "memory_limit");
  }
  weft_json_open(&json, "schedules", '[');
  for (size_t k = 0; k < comparison->entry_count; k++) {
    add_entry(&json, &comparison->entries[k]);
  }
  weft_json_close(&json, ']');
  weft_json_open(&json, "left_out", '[');
  for (size_t k = 0; k < comparison->omission_count; k++) {
    add_omission(&json, &comparison->omissions[k]);
  }
  weft_json_close(&json, ']');
  add_winner(&json, comparison);
  add_reason(&json, comparison);
  weft_json_end(&json);
}
