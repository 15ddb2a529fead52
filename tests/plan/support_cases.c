#include "support_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

static void read_costs(struct planner_case *one, const json_t *from) {
  const json_t *stages = json_object_get(from, "stages");
  assert_int_equal(weft_costs_create(NULL, one->ranks, &one->costs, NULL), WEFT_OK);
  one->costs->hop.latency = json_number_value(json_object_get(from, "hop"));
  for (uint32_t s = 0; s < one->ranks; s++) {
    const json_t *row = json_array_get(stages, json_array_size(stages) == 1 ? 0 : s);
    struct weft_stage_costs *stage = &one->costs->stages[s];
    double *const fields[] = {&stage->f, &stage->i, &stage->w, &stage->activation,
                              &stage->activation_after_i};
    for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++) {
      assert_true(json_is_number(json_array_get(row, n)));
      *fields[n] = json_number_value(json_array_get(row, n));
    }
    stage->b = stage->i + stage->w;
  }
}

struct planner_cases planner_cases_read(void) {
  json_error_t error;
  json_t *from = json_load_file(WEFT_SOURCE_DIR "/tests/planner/cases.json", 0, &error);
  if (from == NULL) {
    fail_msg("cases.json, line %d: %s", error.line, error.text);
  }
  struct planner_cases cases = {.count = json_array_size(from)};
  cases.list = calloc(cases.count, sizeof *cases.list);
  assert_non_null(cases.list);
  for (size_t n = 0; n < cases.count; n++) {
    const json_t *row = json_array_get(from, n);
    struct planner_case *one = &cases.list[n];
    one->id = (int)json_integer_value(json_object_get(row, "id"));
    one->ranks = (uint32_t)json_integer_value(json_object_get(row, "p"));
    one->microbatches = (uint32_t)json_integer_value(json_object_get(row, "m"));
    one->memory = json_number_value(json_object_get(row, "memory"));
    one->peer_span = json_number_value(json_object_get(row, "peer_span"));
    one->bound_span = json_number_value(json_object_get(row, "bound_span"));
    read_costs(one, row);
  }
  json_decref(from);
  return cases;
}

void planner_cases_destroy(struct planner_cases *cases) {
  for (size_t n = 0; n < cases->count; n++) {
    weft_costs_destroy(cases->list[n].costs);
  }
  free(cases->list);
}

void planner_case_problem(const struct planner_case *one, struct weft_problem *problem) {
  struct weft_search_request request = weft_search_request_default();
  request.ranks = one->ranks;
  request.stages_per_rank = 1;
  request.microbatches = one->microbatches;
  request.costs = one->costs;
  request.memory_limit = one->memory;
  request.objective = WEFT_OBJECTIVE_SPAN;
  assert_int_equal(weft_problem_init(problem, NULL, &request, NULL, NULL), WEFT_OK);
}
