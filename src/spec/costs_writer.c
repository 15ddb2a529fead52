/* Costs as JSON, the file that costs_reader.c reads. What it would take for granted
 * is left out: sizes that are not known, and zeros where zero is the default. */
#include <assert.h>

#include <weft/costs.h>
#include <weft/support.h>

#include "spec/costs_fields.h"

/* Without defaults every number that is known is written. */
static void add_numbers(struct weft_json *json, const struct weft_cost_field *field,
                        const void *costs, const void *defaults) {
  for (; field->name != NULL; field++) {
    const double number = weft_cost_of(costs, field);
    const bool is_default = defaults != NULL && number == 0 && weft_cost_of(defaults, field) == 0;
    if (!is_default && (number >= 0 || !field->may_be_absent)) {
      weft_json_exact(json, field->name, number);
    }
  }
}

void weft_costs_print(const struct weft_costs *costs, struct weft_json *json, const char *key) {
  const struct weft_stage_costs stage_defaults = weft_stage_costs_default();
  assert(costs != NULL && json != NULL);
  weft_json_open(json, key, '{');
  weft_json_string(json, "schema", "weft-costs/1");
  weft_json_string(json, "unit", costs->unit);
  weft_json_open(json, "hop", '{');
  add_numbers(json, weft_hop_cost_fields(), &costs->hop, NULL);
  weft_json_close(json, '}');
  if (costs->all_reduce.latency > 0 || costs->all_reduce.size_per_unit > 0) {
    weft_json_open(json, "all_reduce", '{');
    add_numbers(json, weft_all_reduce_cost_fields(), &costs->all_reduce, NULL);
    weft_json_close(json, '}');
  }
  if (costs->microbatch_size > 1) {
    weft_json_exact(json, "microbatch_size", costs->microbatch_size);
  }
  weft_json_open(json, "stages", '[');
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    weft_json_open(json, NULL, '{');
    add_numbers(json, weft_stage_cost_fields(), &costs->stages[s], &stage_defaults);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  if (costs->part_count > 0) {
    weft_json_open(json, "parts", '[');
    for (uint32_t p = 0; p < costs->part_count; p++) {
      weft_json_open(json, NULL, '{');
      add_numbers(json, weft_part_cost_fields(), &costs->parts[p], NULL);
      weft_json_close(json, '}');
    }
    weft_json_close(json, ']');
  }
  weft_json_close(json, '}');
}
