#include "support_v_rows.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

const struct v_row v_rows[V_ROWS] = {
    {16, 48, 14407, 14380, 9676, 1610, 32, 0.0697},  {16, 64, 14412, 14393, 9688, 1621, 32, 0.0533},
    {16, 128, 14316, 14306, 9639, 1619, 32, 0.0274}, {24, 72, 6763, 6969, 5251, 755, 48, 0.0638},
    {24, 96, 6783, 6984, 5259, 758, 48, 0.0483},     {24, 192, 6785, 6990, 5260, 770, 48, 0.0250},
    {32, 96, 9458, 9748, 7288, 879, 64, 0.0593},     {32, 128, 9469, 9744, 7306, 892, 64, 0.0451},
    {32, 256, 9447, 9644, 7193, 887, 64, 0.0236},
};

const struct v_row v_half_row = {8, 24, 14407, 14380, 9676, 1610, 10, 0.1649};
const struct v_row v_min_row = {8, 24, 14407, 14380, 9676, 1610, 8, 0.3143};

void v_case_init(struct v_case *planned, const struct v_row *row, double limit) {
  *planned = (struct v_case){.row = row, .request = weft_search_request_default()};
  assert_int_equal(weft_costs_create(NULL, 2 * row->ranks, &planned->costs, NULL), WEFT_OK);
  for (uint32_t s = 0; s < 2 * row->ranks; s++) {
    struct weft_stage_costs *stage = &planned->costs->stages[s];
    stage->f = row->f;
    stage->i = row->i;
    stage->w = row->w;
    stage->b = row->i + row->w;
    stage->activation_after_i = 32.0 / 74;
  }
  planned->costs->hop.latency = row->hop;
  struct weft_search_request *request = &planned->request;
  request->ranks = row->ranks;
  request->microbatches = row->microbatches;
  request->stages_per_rank = 2;
  request->any_placement = false;
  request->placement = WEFT_PLACEMENT_V;
  request->costs = planned->costs;
  request->memory_limit = limit;
  request->objective = WEFT_OBJECTIVE_SPAN;
  assert_int_equal(weft_problem_init(&planned->problem, NULL, request, NULL, NULL), WEFT_OK);
}

void v_case_finish(struct v_case *planned) {
  weft_problem_finish(&planned->problem);
  weft_costs_destroy(planned->costs);
}

double v_case_bubble(const struct v_case *planned, int64_t span) {
  const struct v_row *row = planned->row;
  if (span == WEFT_NEVER) {
    return 1;
  }
  const double work = row->microbatches * 2 * (row->f + row->i + row->w);
  return 1 - work * planned->problem.ticks_per_unit / (double)span;
}
