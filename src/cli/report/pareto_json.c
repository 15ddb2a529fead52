/* The Pareto front as JSON, "weft-pareto/1". */
#include <weft/support.h>

#include "cli/cmd/pareto.h"

static void add_point(struct weft_json *json, const struct weft_cli_pareto_point *point) {
  weft_json_open(json, NULL, '{');
  weft_json_exact(json, "memory", point->memory);
  weft_json_exact(json, "memory_limit", point->limit);
  weft_json_exact(json, "makespan", point->makespan);
  weft_json_exact(json, "span", point->span);
  weft_json_exact(json, "bubble_ratio", point->bubble_ratio);
  weft_json_exact(json, "bound", point->bound);
  weft_json_exact(json, "gap", point->gap);
  weft_json_boolean(json, "optimal", point->optimal);
  weft_json_string(json, "schedule", point->schedule);
  weft_json_string(json, "placement", weft_placement_name(point->placement));
  weft_json_number(json, "v", point->v);
  weft_json_close(json, '}');
}

void weft_cli_pareto_add_json(struct weft_text *text, const struct weft_cli_pareto *pareto) {
  struct weft_json json = weft_json_begin(text, "weft-pareto/1");
  const struct weft_search_request *request = pareto->request;
  const struct weft_costs *costs = request->costs;
  weft_json_string(&json, "unit", costs->unit);
  weft_json_string(&json, "costs_of",
                   costs->stage_count == 1 && costs->of == WEFT_COSTS_OF_RANK ? "rank" : "stage");
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
    add_point(&json, &pareto->points[k]);
  }
  weft_json_close(&json, ']');
  weft_json_end(&json);
}
