/* Checks the simulation before it is timed. */
#include <assert.h>
#include <math.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "bench/bench_sim.h"
#include "cli/io/error_message.h"

/* ---- A plain evaluation ----
 *
 * Shares nothing with the library's: goes over the ranks again and again, and
 * takes each as far as its inputs are known. For tables, whose data crosses
 * ranks as it is made. */

struct evaluation {
  const struct weft_allocator *allocator;
  const struct weft_program *table;
  const struct weft_stage_costs *costs;
  double hop;
  void *block; /* all arrays */
  size_t block_size;
  double *activations; /* [stage][microbatch] end of F; negative: not yet */
  double *gradients;   /* [stage][microbatch] end of B or I */
  double *clocks;      /* [rank] */
  uint64_t *at;        /* [rank] next record */
  uint32_t *rank_of;   /* [stage] */
};

static bool begin_evaluation(struct evaluation *evaluation) {
  const struct weft_program *table = evaluation->table;
  const size_t pairs = (size_t)table->stage_count * table->microbatch_count;
  evaluation->block_size = 2 * pairs * sizeof(double) +
                           table->rank_count * (sizeof(double) + sizeof(uint64_t)) +
                           table->stage_count * sizeof(uint32_t);
  evaluation->block = weft_array_allocate(evaluation->allocator, evaluation->block_size, 1);
  if (evaluation->block == NULL) {
    return false;
  }
  evaluation->activations = evaluation->block;
  evaluation->gradients = evaluation->activations + pairs;
  evaluation->clocks = evaluation->gradients + pairs;
  evaluation->at = (uint64_t *)(void *)(evaluation->clocks + table->rank_count);
  evaluation->rank_of = (uint32_t *)(void *)(evaluation->at + table->rank_count);
  for (size_t i = 0; i < 2 * pairs; i++) {
    evaluation->activations[i] = -1;
  }
  for (uint32_t rank = 0; rank < table->rank_count; rank++) {
    evaluation->clocks[rank] = 0;
    evaluation->at[rank] = table->row_begin[rank];
  }
  (void)weft_placement_infer(table, evaluation->rank_of);
  return true;
}

static void end_evaluation(struct evaluation *evaluation) {
  weft_array_free(evaluation->allocator, evaluation->block, evaluation->block_size, 1);
}

/* When the action's input is on the rank; negative when that is not known. */
static double input_time(const struct evaluation *evaluation, uint32_t rank,
                         struct weft_action action) {
  const bool forward = action.op == WEFT_OP_F;
  const uint32_t last = forward ? 0 : evaluation->table->stage_count - 1;
  if (action.op == WEFT_OP_W || weft_op_info(action.op)->kind != WEFT_KIND_COMPUTE ||
      action.stage == last) {
    return 0;
  }
  const uint32_t stage = forward ? action.stage - 1u : action.stage + 1u;
  const double *made = forward ? evaluation->activations : evaluation->gradients;
  const double time = made[(size_t)stage * evaluation->table->microbatch_count + action.microbatch];
  return time < 0 || evaluation->rank_of[stage] == rank ? time : time + evaluation->hop;
}

static double duration_of(const struct evaluation *evaluation, struct weft_action action) {
  switch (action.op) {
    case WEFT_OP_F: return evaluation->costs->f;
    case WEFT_OP_B: return evaluation->costs->b;
    case WEFT_OP_I: return evaluation->costs->i;
    case WEFT_OP_W: return evaluation->costs->w;
    default: return 0;
  }
}

static void record_end(struct evaluation *evaluation, struct weft_action action, double end) {
  const size_t pair =
      (size_t)action.stage * evaluation->table->microbatch_count + action.microbatch;
  if (action.op == WEFT_OP_F) {
    evaluation->activations[pair] = end;
  } else if (action.op == WEFT_OP_B || action.op == WEFT_OP_I) {
    evaluation->gradients[pair] = end;
  }
}

/* One cell; false when an input is missing. An overlap takes the sum of its parts. */
static bool step(struct evaluation *evaluation, uint32_t rank) {
  const struct weft_action *cell = &evaluation->table->actions[evaluation->at[rank]];
  double begin = evaluation->clocks[rank], duration = 0;
  for (unsigned i = 0; i <= cell->parts; i++) {
    const double input = input_time(evaluation, rank, cell[i]);
    if (input < 0) {
      return false;
    }
    begin = fmax(begin, input);
    duration += duration_of(evaluation, cell[i]);
  }
  for (unsigned i = 0; i <= cell->parts; i++) {
    record_end(evaluation, cell[i], begin + duration);
  }
  evaluation->clocks[rank] = duration > 0 ? begin + duration : evaluation->clocks[rank];
  evaluation->at[rank] += 1u + cell->parts;
  return true;
}

/* The makespan; negative when the table gets stuck. */
static double evaluate(struct evaluation *evaluation) {
  const struct weft_program *table = evaluation->table;
  double makespan = 0;
  bool progress = true, finished = false;
  while (progress && !finished) {
    progress = false;
    finished = true;
    for (uint32_t rank = 0; rank < table->rank_count; rank++) {
      while (evaluation->at[rank] < table->row_begin[rank + 1] && step(evaluation, rank)) {
        progress = true;
      }
      finished = finished && evaluation->at[rank] == table->row_begin[rank + 1];
      makespan = fmax(makespan, evaluation->clocks[rank]);
    }
  }
  return finished ? makespan : -1;
}

/* ---- The checks ---- */

static bool is_near(double a, double b) { return fabs(a - b) <= 1e-9 * fmax(1, fabs(b)); }

/* With unequal times and dear transfers: three ways, one answer. */
static int check_makespans(const struct weft_cli *cli, const struct weft_bench_case *at,
                           const struct weft_program *table, const struct weft_program *program) {
  struct weft_stage_costs stage = {.f = 2, .i = 3, .w = 1.5, .b = 4.25, .overlap_f_b = -1};
  const struct weft_costs costs = {
      .stage_count = 1, .of = WEFT_COSTS_OF_STAGE, .stages = &stage, .hop = {.latency = 0.75}};
  struct evaluation evaluation = {
      .allocator = cli->allocator, .table = table, .costs = &stage, .hop = costs.hop.latency};
  struct weft_error error;
  double of_table, of_program;
  if (!begin_evaluation(&evaluation)) {
    return weft_cli_fail_memory(cli);
  }
  const double expected = evaluate(&evaluation);
  end_evaluation(&evaluation);
  if (weft_makespan(cli->allocator, table, &costs, NULL, &of_table, &error) < 0 ||
      weft_makespan(cli->allocator, program, &costs, NULL, &of_program, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  return is_near(of_table, expected) && is_near(of_program, expected)
             ? WEFT_CLI_OK
             : weft_bench_fail(cli, at, "the makespan is not that of a plain evaluation");
}

static bool adds_up(const struct weft_simulation *simulation) {
  for (uint32_t rank = 0; rank < simulation->program->rank_count; rank++) {
    const struct weft_rank_times *times = &simulation->ranks[rank];
    double sum = times->busy;
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      sum += times->idle_by_cause[cause];
    }
    if (!is_near(sum, simulation->makespan)) {
      return false;
    }
  }
  return true;
}

/* The closed forms of `weft gen --list`, where there is one for the shape. */
static bool meets_forms(const struct weft_bench_case *at,
                        const struct weft_simulation *simulation) {
  const struct weft_unit_costs unit = {.f = 1, .i = 1, .w = 1};
  const struct weft_schedule_info *info = weft_schedule_find(at->schedule, NULL);
  const double v = at->shape.stages_per_rank;
  const double bubble = info->bubble_of != NULL ? info->bubble_of(&at->shape, &unit) : NAN;
  const double peak = info->peak_of != NULL ? info->peak_of(&at->shape) : NAN;
  return (isnan(bubble) ||
          is_near(simulation->makespan, 3 * v * at->shape.microbatches + bubble)) &&
         (isnan(peak) || is_near(simulation->peak_activation, v * peak));
}

static const char *find_wrong(const struct weft_bench_case *at,
                              const struct weft_simulation *simulation, double makespan) {
  return simulation->makespan != makespan ? "the makespan alone is not that of the simulation"
         : !adds_up(simulation)           ? "the time of a rank does not add up"
         : !meets_forms(at, simulation)   ? "the closed forms are not met"
                                          : NULL;
}

static int check_simulation(const struct weft_cli *cli, const struct weft_bench_case *at,
                            const struct weft_costs *costs, const struct weft_program *program) {
  struct weft_sim_options options = weft_sim_options_default();
  struct weft_error error;
  const char *wrong = NULL;
  double makespan;
  if (weft_makespan(cli->allocator, program, costs, NULL, &makespan, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  for (int with = 0; with < 2 && wrong == NULL; with++) {
    struct weft_simulation *simulation;
    options.no_events = with == 0;
    if (weft_simulate(cli->allocator, program, costs, &options, &simulation, &error) < 0) {
      return weft_cli_fail(cli, NULL, &error);
    }
    wrong = find_wrong(at, simulation, makespan);
    weft_simulation_destroy(simulation);
  }
  return wrong == NULL ? WEFT_CLI_OK : weft_bench_fail(cli, at, wrong);
}

int weft_bench_check_sim(const struct weft_cli *cli, const struct weft_bench_case *at,
                         const struct weft_program *table, const struct weft_program *program) {
  assert(cli != NULL && program != NULL);
  struct weft_costs *costs;
  struct weft_error error;
  int status = check_makespans(cli, at, table, program);
  if (status != WEFT_CLI_OK) {
    return status;
  }
  if (weft_costs_create(cli->allocator, 1, &costs, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  costs->of = WEFT_COSTS_OF_STAGE;
  status = check_simulation(cli, at, costs, program);
  weft_costs_destroy(costs);
  return status;
}
