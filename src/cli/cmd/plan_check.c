/* Holding a plan to its promise. What is found wrong here is a bug of Weft: the search has its
 * own model of time and memory, and the simulator, the lowering and the verifier are the
 * other opinion. Nothing that fails here is handed out. */
#include <math.h>

#include <weft/lower.h>
#include <weft/verify.h>

#include "cli/cmd/plan_command.h"
#include "cli/io/error_message.h"

#define HINT "this is a bug of Weft: please report it with the command and the costs"

/* Sizes are rounded to parts of a unit by the search. */
#define SIZE_ERROR 1e-6

static int fail_promise(const struct weft_cli *cli, const char *what, double promised,
                        double found) {
  weft_cli_say(cli, HINT, "the plan promises a %s of %.17g, and the simulator finds %.17g", what,
               promised, found);
  return WEFT_CLI_INTERNAL;
}

static int prove(const struct weft_cli *cli, const struct weft_program *program) {
  struct weft_report *report;
  struct weft_error error;
  if (weft_verify(cli->allocator, program, NULL, &report, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  int status = WEFT_CLI_OK;
  if (!report->ok) {
    weft_cli_say(cli, HINT, "the plan cannot be run: %s [%s]", report->findings[0].message,
                 weft_rule_id(report->findings[0].rule));
    status = WEFT_CLI_INTERNAL;
  }
  weft_report_destroy(report);
  return status;
}

static int check_program(const struct weft_cli *cli, const struct weft_program *table) {
  struct weft_program *program;
  struct weft_error error;
  const enum weft_status made = weft_lower(cli->allocator, table, NULL, &program, &error);
  if (made == WEFT_ERR_MEMORY) {
    return weft_cli_fail_memory(cli);
  }
  if (made < 0) {
    weft_cli_say(cli, HINT, "the plan cannot be lowered: %s", error.message);
    return WEFT_CLI_INTERNAL;
  }
  const int status = prove(cli, program);
  weft_program_destroy(program);
  return status;
}

double weft_cli_plan_memory(const struct weft_cli_plan *plan) {
  const struct weft_simulation *simulation = plan->simulation;
  double peak = 0;
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    peak = fmax(peak, simulation->ranks[rank].peak_memory);
  }
  return peak;
}

static int check_numbers(const struct weft_cli *cli, const struct weft_cli_plan *plan) {
  const struct weft_search_answer *answer = plan->answer;
  const struct weft_simulation *simulation = plan->simulation;
  const double peak = weft_cli_plan_memory(plan);
  if (simulation->makespan != answer->makespan) {
    return fail_promise(cli, "makespan", answer->makespan, simulation->makespan);
  }
  if (simulation->span != answer->span) {
    return fail_promise(cli, "span", answer->span, simulation->span);
  }
  /* Less is fine: the search reckons with gradients from the beginning. */
  if (!(peak <= answer->peak_memory + SIZE_ERROR * fmax(1, peak))) {
    return fail_promise(cli, "memory", answer->peak_memory, peak);
  }
  if (plan->prediction.limited && weft_cli_is_over(peak, plan->prediction.memory_limit)) {
    return fail_promise(cli, "memory below the limit", plan->prediction.memory_limit, peak);
  }
  return WEFT_CLI_OK;
}

static int predict(const struct weft_cli *cli, struct weft_cli_plan *plan) {
  const struct weft_search_answer *answer = plan->answer;
  struct weft_sim_options options = weft_sim_options_default();
  struct weft_error error;
  options.no_events = true;
  plan->prediction = (struct weft_cli_prediction){.name = answer->schedule,
                                                  .costs = answer->costs,
                                                  .limited = isfinite(plan->request->memory_limit),
                                                  .memory_limit = plan->request->memory_limit};
  if (weft_simulate(cli->allocator, answer->table, answer->costs, &options, &plan->simulation,
                    &error) < 0 ||
      weft_period(cli->allocator, answer->table, answer->costs, &options, &plan->prediction.period,
                  &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  plan->prediction.simulation = plan->simulation;
  return WEFT_CLI_OK;
}

int weft_cli_plan_take(const struct weft_cli *cli, const struct weft_search_request *request,
                       struct weft_search_answer *answer, struct weft_cli_plan *plan) {
  *plan = (struct weft_cli_plan){.request = request, .answer = answer};
  int status = check_program(cli, plan->answer->table);
  if (status == WEFT_CLI_OK) {
    status = predict(cli, plan);
  }
  if (status == WEFT_CLI_OK) {
    status = check_numbers(cli, plan);
  }
  if (status != WEFT_CLI_OK) {
    weft_cli_plan_finish(plan);
  }
  return status;
}

int weft_cli_plan_make(const struct weft_cli *cli, const struct weft_search_request *request,
                       struct weft_cli_plan *plan) {
  struct weft_search_answer *answer;
  struct weft_error error;
  return weft_search(cli->allocator, request, &answer, &error) < 0
             ? weft_cli_fail(cli, NULL, &error)
             : weft_cli_plan_take(cli, request, answer, plan);
}

void weft_cli_plan_finish(struct weft_cli_plan *plan) {
  weft_simulation_destroy(plan->simulation);
  weft_search_answer_destroy(plan->answer);
  plan->simulation = NULL;
  plan->answer = NULL;
}

double weft_cli_plan_value(const struct weft_search_answer *answer) {
  return answer->objective == WEFT_OBJECTIVE_SPAN ? answer->span : answer->makespan;
}

double weft_cli_plan_gap(const struct weft_search_answer *answer) {
  const double value = weft_cli_plan_value(answer);
  if (answer->bound > 0) {
    return value / answer->bound - 1;
  }
  return value > 0 ? INFINITY : 0;
}
