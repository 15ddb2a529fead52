/* Costs as a file. What a reader would take for granted is left out. */
#include "cli/report/costs_json.h"

static void add_unless(struct weft_json *json, const char *key, double value, double usual) {
  if (value != usual) {
    weft_json_exact(json, key, value);
  }
}

static void add_stage(struct weft_json *json, const struct weft_stage_costs *stage) {
  weft_json_open(json, NULL, '{');
  weft_json_exact(json, "f", stage->f);
  weft_json_exact(json, "i", stage->i);
  weft_json_exact(json, "w", stage->w);
  weft_json_exact(json, "b", stage->b);
  if (stage->overlap_f_b >= 0) {
    weft_json_exact(json, "overlap_f_b", stage->overlap_f_b);
  }
  weft_json_exact(json, "activation", stage->activation);
  weft_json_exact(json, "activation_after_i", stage->activation_after_i);
  add_unless(json, "unshard", stage->unshard, 0);
  add_unless(json, "reduce_grad", stage->reduce_grad, 0);
  add_unless(json, "parameters", stage->parameters, 0);
  add_unless(json, "gradients", stage->gradients, 0);
  add_unless(json, "parameters_sharded", stage->parameters_sharded, 0);
  add_unless(json, "gradients_sharded", stage->gradients_sharded, 0);
  weft_json_close(json, '}');
}

static void add_known(struct weft_json *json, const char *key, double size) {
  if (size >= 0) {
    weft_json_exact(json, key, size);
  }
}

static void add_parts(struct weft_json *json, const struct weft_costs *costs) {
  if (costs->part_count == 0) {
    return;
  }
  weft_json_open(json, "parts", '[');
  for (uint32_t p = 0; p < costs->part_count; p++) {
    weft_json_open(json, NULL, '{');
    weft_json_exact(json, "f", costs->parts[p].f);
    weft_json_exact(json, "i", costs->parts[p].i);
    weft_json_exact(json, "w", costs->parts[p].w);
    add_known(json, "activation", costs->parts[p].activation);
    add_known(json, "activation_after_i", costs->parts[p].activation_after_i);
    add_known(json, "parameters", costs->parts[p].parameters);
    add_known(json, "gradients", costs->parts[p].gradients);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

void weft_cli_costs_add_object(struct weft_json *json, const char *key,
                               const struct weft_costs *costs) {
  weft_json_open(json, key, '{');
  weft_json_string(json, "schema", "weft-costs/1");
  weft_json_string(json, "unit", costs->unit);
  weft_json_open(json, "hop", '{');
  weft_json_exact(json, "latency", costs->hop.latency);
  weft_json_exact(json, "bytes", costs->hop.bytes);
  weft_json_exact(json, "bytes_per_unit", costs->hop.bytes_per_unit);
  weft_json_close(json, '}');
  weft_json_open(json, "stages", '[');
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    add_stage(json, &costs->stages[s]);
  }
  weft_json_close(json, ']');
  add_parts(json, costs);
  weft_json_close(json, '}');
}

void weft_cli_costs_add(struct weft_text *text, const struct weft_costs *costs) {
  struct weft_json json = {.text = text};
  weft_cli_costs_add_object(&json, NULL, costs);
  weft_json_finish(&json);
}
