/* Checks an answer before weft_search() returns it. The search has its own model of time and
 * memory; the lowering, the verifier and the simulator share none of that code, so any
 * disagreement is a bug in Weft, and the answer is withheld. */
#include "plan/plan_check.h"

#include <assert.h>
#include <math.h>

#include <weft/lower.h>
#include <weft/support.h>
#include <weft/verify.h>

#define HINT "this is a bug in Weft: please report it with the command and the costs"

/* Each size that the search adds up is rounded to about this share of a unit; weft_problem_init()
 * accepts orders that are as much over the limit. */
#define SIZE_ERROR 1e-9

/* Out of memory stays that; any other failure of a check is a bug. */
static enum weft_status fail_check(struct weft_error *error, const struct weft_error *cause,
                                   const char *what) {
  return cause->status == WEFT_ERR_MEMORY
             ? weft_fail(error, cause->status, cause->hint, "%s", cause->message)
             : weft_fail(error, WEFT_ERR_INTERNAL, HINT, "the plan cannot be %s: %s", what,
                         cause->message);
}

static enum weft_status prove(const struct weft_allocator *allocator,
                              const struct weft_program *program, struct weft_error *error) {
  struct weft_report *report;
  struct weft_error cause;
  enum weft_status status = weft_verify(allocator, program, NULL, &report, &cause);
  if (status < 0) {
    return fail_check(error, &cause, "verified");
  }
  if (!report->ok) {
    status = weft_fail(error, WEFT_ERR_INTERNAL, HINT, "the plan cannot be run: %s [%s]",
                       report->findings[0].message, weft_rule_id(report->findings[0].rule));
  }
  weft_report_destroy(report);
  return status;
}

static enum weft_status check_program(const struct weft_search_answer *answer,
                                      struct weft_error *error) {
  struct weft_program *program;
  struct weft_error cause;
  if (weft_lower(answer->allocator, answer->table, NULL, &program, &cause) < 0) {
    return fail_check(error, &cause, "lowered");
  }
  const enum weft_status status = prove(answer->allocator, program, error);
  weft_program_destroy(program);
  return status;
}

static enum weft_status fail_number(struct weft_error *error, const char *what, double expected,
                                    double found) {
  return weft_fail(error, WEFT_ERR_INTERNAL, HINT,
                   "the planner computes a %s of %.17g, and the simulator finds %.17g", what,
                   expected, found);
}

static enum weft_status check_numbers(const struct weft_search_answer *answer,
                                      const struct weft_simulation *simulation, double memory_limit,
                                      double *peak, struct weft_error *error) {
  *peak = 0;
  for (uint32_t r = 0; r < answer->table->rank_count; r++) {
    *peak = fmax(*peak, simulation->ranks[r].peak_memory);
  }
  if (simulation->makespan != answer->makespan) {
    return fail_number(error, "makespan", answer->makespan, simulation->makespan);
  }
  if (simulation->span != answer->span) {
    return fail_number(error, "span", answer->span, simulation->span);
  }
  const double rounding =
      SIZE_ERROR * (*peak + (double)answer->stages_per_rank * answer->table->microbatch_count);
  /* Less is fine: gradients may take less memory than sharded ones, and then the search does not
   * count that. */
  if (!(*peak <= answer->peak_memory + rounding)) {
    return fail_number(error, "peak memory", answer->peak_memory, *peak);
  }
  if (!(*peak <= memory_limit + rounding)) {
    return fail_number(error, "peak memory within the limit", memory_limit, *peak);
  }
  return WEFT_OK;
}

enum weft_status weft_plan_check(struct weft_search_answer *answer, double memory_limit,
                                 struct weft_error *error) {
  assert(answer != NULL && answer->table != NULL && answer->costs != NULL);
  assert(answer->simulation == NULL);
  struct weft_sim_options options = weft_sim_options_default();
  struct weft_simulation *simulation;
  struct weft_error cause;
  double peak;
  options.no_events = true;
  WEFT_TRY(check_program(answer, error));
  if (weft_simulate(answer->allocator, answer->table, answer->costs, &options, &simulation,
                    &cause) < 0) {
    return fail_check(error, &cause, "simulated");
  }
  const enum weft_status status = check_numbers(answer, simulation, memory_limit, &peak, error);
  if (status < 0) {
    weft_simulation_destroy(simulation);
    return status;
  }
  answer->simulation = simulation;
  answer->peak_memory = peak;
  return WEFT_OK;
}
