#include "support_case_search.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support_cases.h"

static bool is_equal(const struct weft_costs *costs) {
  for (uint32_t s = 1; s < costs->stage_count; s++) {
    const struct weft_stage_costs *one = &costs->stages[s], *first = &costs->stages[0];
    if (one->f != first->f || one->i != first->i || one->w != first->w) {
      return false;
    }
  }
  return true;
}

static void expect_simulated(const struct weft_search_answer *answer, double limit) {
  struct weft_simulation *simulation = NULL;
  assert_int_equal(weft_simulate(NULL, answer->table, answer->costs, NULL, &simulation, NULL),
                   WEFT_OK);
  assert_true(simulation->span == answer->span);
  for (uint32_t r = 0; r < answer->table->rank_count; r++) {
    assert_true(simulation->ranks[r].peak_memory <= limit * (1 + 1e-8));
  }
  weft_simulation_destroy(simulation);
}

static double search_case(const struct planner_case *one, double effort,
                          struct case_summary *summary) {
  struct weft_search_request request = weft_search_request_default();
  struct weft_search_answer *answer = NULL;
  struct weft_error error;
  request.ranks = one->ranks;
  request.microbatches = one->microbatches;
  request.stages_per_rank = 1;
  request.costs = one->costs;
  request.memory_limit = one->memory;
  request.objective = WEFT_OBJECTIVE_SPAN;
  request.effort = effort;
  request.threads = 2;
  if (weft_search(NULL, &request, &answer, &error) != WEFT_OK) {
    fail_msg("case %d: %s", one->id, error.message);
  }
  expect_simulated(answer, one->memory);
  const double span = answer->span, bound = answer->bound;
  summary->optimal += answer->optimal;
  /* The peer's number and the costs are rounded. */
  if (span > one->peer_span * (1 + 1e-7)) {
    print_message("case %d: %.6f, peer %.6f\n", one->id, span, one->peer_span);
    summary->above_peer++;
  }
  weft_search_answer_destroy(answer);
  return 100 * (span / bound - 1);
}

struct case_summary search_cases(double effort, uint32_t every) {
  struct planner_cases cases = planner_cases_read();
  struct case_summary summary = {0};
  uint32_t counts[2] = {0};
  for (size_t n = 0; n < cases.count; n += every) {
    const unsigned kind = is_equal(cases.list[n].costs) ? 0 : 1;
    const double gap = search_case(&cases.list[n], effort, &summary);
    if (gap > 0.5 && effort > 0.1) {
      print_message("case %d: gap %.3f %%\n", cases.list[n].id, gap);
    }
    summary.mean_gap[kind] += gap;
    summary.worst_gap = fmax(summary.worst_gap, gap);
    counts[kind]++;
    summary.count++;
  }
  for (unsigned kind = 0; kind < 2; kind++) {
    summary.mean_gap[kind] /= counts[kind] > 0 ? counts[kind] : 1;
  }
  planner_cases_destroy(&cases);
  return summary;
}
