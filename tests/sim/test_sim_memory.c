/* Memory over time: peaks of parameters, of gradients and of everything, by hand
 * where collectives lag behind the compute, and against a walk over the events of
 * many programs that knows nothing of queues: all changes, sorted by time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "ir/action.h"
#include "support_random_program.h"

enum { ROUNDS = 4000 };

static struct weft_program *parse(const char *csv) {
  struct weft_program *program = NULL;
  struct weft_error error;
  if (weft_program_parse(NULL, csv, strlen(csv), "test", &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

static struct weft_costs *make_costs(uint32_t stages) {
  struct weft_costs *costs = NULL;
  assert_int_equal(weft_costs_create(NULL, stages, &costs, NULL), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  return costs;
}

static struct weft_simulation *simulate(const struct weft_program *program,
                                        const struct weft_costs *costs,
                                        const struct weft_sim_options *options) {
  struct weft_simulation *simulation = NULL;
  struct weft_error error;
  if (weft_simulate(NULL, program, costs, options, &simulation, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return simulation;
}

/* ---- By hand ---- */

static void expect_peaks(const char *csv, const struct weft_costs *costs, double parameters,
                         double gradients, double memory) {
  struct weft_program *program = parse(csv);
  struct weft_simulation *simulation = simulate(program, costs, NULL);
  const struct weft_rank_times *times = &simulation->ranks[0];
  if (times->peak_parameters != parameters || times->peak_gradients != gradients ||
      times->peak_memory != memory) {
    fail_msg("%s: parameters %g, gradients %g, memory %g; expected %g, %g, %g", csv,
             times->peak_parameters, times->peak_gradients, times->peak_memory, parameters,
             gradients, memory);
  }
  weft_simulation_destroy(simulation);
  weft_program_destroy(program);
}

/* F takes 1, B takes 2. 0B0 begins at 4, with stage 1's REDUCE_GRAD: what that reduces
 * is there until 9. */
static void gradients_stay_while_they_are_reduced(void **state) {
  (void)state;
  static const char row[] = "0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n";
  struct weft_costs *costs = make_costs(1);
  costs->stages[0].gradients = 4;
  costs->stages[0].gradients_sharded = 1;
  expect_peaks(row, costs, 0, 4 + 1, 2 + 4 + 1);
  costs->stages[0].reduce_grad = 5;
  expect_peaks(row, costs, 0, 4 + 4, 1 + 4 + 4);
  weft_costs_destroy(costs);
}

/* As above; the RESHARD of stage 1 comes behind its REDUCE_GRAD, at 9. */
static void parameters_stay_until_the_stream_drops_them(void **state) {
  (void)state;
  static const char row[] =
      "0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,1RESHARD,"
      "0B0,0REDUCE_GRAD,0RESHARD\n";
  struct weft_costs *costs = make_costs(1);
  costs->stages[0].parameters = 10;
  costs->stages[0].parameters_sharded = 2;
  costs->stages[0].gradients = 4;
  expect_peaks(row, costs, 20, 4, 20 + 2 + 4); /* while 1B0 runs */
  costs->stages[0].reduce_grad = 5;
  expect_peaks(row, costs, 20, 8, 20 + 1 + 8); /* while 0B0 runs */
  weft_costs_destroy(costs);
}

/* Stage 2's parameters are gathered from 5 on, when 0F0 has given back what it held. */
static void parameters_come_when_the_stream_gathers_them(void **state) {
  (void)state;
  static const char row[] =
      "0UNSHARD,1UNSHARD,2UNSHARD,0F0,1F0,2F0,"
      "0RESHARD,1RESHARD,2RESHARD\n";
  struct weft_costs *costs = make_costs(3);
  for (uint32_t s = 0; s < 3; s++) {
    costs->stages[s].parameters = 10;
    costs->stages[s].activation = s == 0 ? 7 : 0;
  }
  expect_peaks(row, costs, 30, 0, 37);
  costs->stages[1].unshard = 5;
  expect_peaks(row, costs, 30, 0, 30);
  weft_costs_destroy(costs);
}

/* A REDUCE_GRAD that took longer than was said: the peak is that of the run. */
static void measured_peaks_are_those_of_the_run(void **state) {
  (void)state;
  struct weft_program *program = parse("0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD\n");
  struct weft_costs *costs = make_costs(1);
  costs->stages[0].gradients = 4;
  struct weft_simulation *simulation = simulate(program, costs, NULL), *measured = NULL;
  assert_true(simulation->ranks[0].peak_gradients == 4);
  simulation->events[3].end += 1;
  simulation->events[5].end += 1;
  assert_int_equal(
      weft_simulation_measured(NULL, program, costs, simulation->events, simulation->event_count,
                               simulation->ticks_per_unit, &measured, NULL),
      WEFT_OK);
  assert_true(measured->ranks[0].peak_gradients == 8);
  assert_true(measured->ranks[0].peak_memory == 1 + 8);
  weft_simulation_destroy(measured);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- A walk over events ---- */

struct change {
  int64_t at;
  uint64_t order; /* in the row: twice the cell's number, and 1 for its end */
  double activation;
  double parameters;
  double gradients;
};

struct changes {
  const struct weft_simulation *simulation;
  const struct weft_costs *costs;
  bool trains;
  bool *has_gradients; /* [stage] */
  struct change *items;
  size_t count;
};

static bool has_any(const struct weft_program *program, uint32_t ops) {
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (weft_op_in(program->actions[i].op, ops)) {
      return true;
    }
  }
  return false;
}

static struct change change_at_begin(struct changes *changes, struct weft_action action,
                                     const struct weft_stage_costs *costs) {
  struct change change = {0};
  if (action.op == WEFT_OP_F) {
    change.activation = costs->activation;
  } else if (action.op == WEFT_OP_UNSHARD) {
    change.parameters = costs->parameters - costs->parameters_sharded;
  } else if (weft_op_in(action.op, WEFT_OPS_BACKWARD) && !changes->has_gradients[action.stage]) {
    changes->has_gradients[action.stage] = true;
    change.gradients = costs->gradients - costs->gradients_sharded;
  }
  return change;
}

static struct change change_at_end(const struct changes *changes, struct weft_action action,
                                   const struct weft_stage_costs *costs) {
  switch (action.op) {
    case WEFT_OP_F: return (struct change){.activation = changes->trains ? 0 : -costs->activation};
    case WEFT_OP_B: return (struct change){.activation = -costs->activation};
    case WEFT_OP_I:
      return (struct change){.activation = costs->activation_after_i - costs->activation};
    case WEFT_OP_W: return (struct change){.activation = -costs->activation_after_i};
    case WEFT_OP_RESHARD:
      return (struct change){.parameters = costs->parameters_sharded - costs->parameters};
    case WEFT_OP_REDUCE_GRAD:
      return (struct change){.gradients = costs->gradients_sharded - costs->gradients};
    default: return (struct change){0};
  }
}

static void add_change(struct changes *changes, struct change change, int64_t at, uint64_t order) {
  change.at = at;
  change.order = order;
  changes->items[changes->count++] = change;
}

static void collect(struct changes *changes, uint32_t rank) {
  const struct weft_simulation *simulation = changes->simulation;
  const struct weft_action *actions = simulation->program->actions;
  uint64_t cell = 0, parts = 0; /* parts of the last overlap that are to come */
  for (uint64_t e = simulation->event_begin[rank]; e < simulation->event_begin[rank + 1]; e++) {
    const struct weft_event *event = &simulation->events[e];
    const struct weft_action action = actions[event->record];
    const struct weft_stage_costs *costs = weft_costs_of(changes->costs, action.stage);
    cell = parts > 0 ? cell : e;
    parts = parts > 0 ? parts - 1 : action.parts;
    add_change(changes, change_at_begin(changes, action, costs), event->begin, 2 * cell);
    add_change(changes, change_at_end(changes, action, costs), event->end, 2 * cell + 1);
  }
}

/* At time 0, before everything. */
static void collect_shares(struct changes *changes, uint32_t rank) {
  const struct weft_program *program = changes->simulation->program;
  uint32_t *rank_of = calloc(program->stage_count + 1u, sizeof *rank_of);
  const bool is_sharded = has_any(program, WEFT_OP_BIT(WEFT_OP_UNSHARD));
  (void)weft_placement_infer(program, rank_of);
  for (uint32_t s = 0; s < program->stage_count; s++) {
    const struct weft_stage_costs *costs = weft_costs_of(changes->costs, s);
    const struct change share = {
        .parameters = is_sharded ? costs->parameters_sharded : costs->parameters,
        .gradients = changes->trains ? costs->gradients_sharded : 0};
    if (rank_of[s] == rank) {
      add_change(changes, share, INT64_MIN, 0);
    }
  }
  free(rank_of);
}

static int compare_changes(const void *a, const void *b) {
  const struct change *x = a, *y = b;
  const int by_time = (x->at > y->at) - (x->at < y->at);
  return by_time != 0 ? by_time : (x->order > y->order) - (x->order < y->order);
}

static double larger(double a, double b) { return a > b ? a : b; }

/* Parts of an overlap that begin, or end, at once are one step: what is between
 * them is nobody's to see. Peaks do not tell, as those all take, or all give. */
static void check_rank(const struct weft_simulation *simulation, const struct weft_costs *costs,
                       uint32_t rank, const char *what) {
  const struct weft_program *program = simulation->program;
  const struct weft_rank_times *times = &simulation->ranks[rank];
  const size_t room = 2 * (size_t)simulation->event_count + program->stage_count + 1;
  struct changes changes = {.simulation = simulation,
                            .costs = costs,
                            .trains = has_any(program, WEFT_OPS_BACKWARD),
                            .has_gradients = calloc(program->stage_count + 1u, sizeof(bool)),
                            .items = calloc(room, sizeof(struct change))};
  struct change now = {0}, peak = {0};
  double memory = 0;
  collect_shares(&changes, rank);
  collect(&changes, rank);
  qsort(changes.items, changes.count, sizeof *changes.items, compare_changes);
  for (size_t k = 0; k < changes.count; k++) {
    now.activation += changes.items[k].activation;
    now.parameters += changes.items[k].parameters;
    now.gradients += changes.items[k].gradients;
    peak.activation = larger(peak.activation, now.activation);
    peak.parameters = larger(peak.parameters, now.parameters);
    peak.gradients = larger(peak.gradients, now.gradients);
    memory = larger(memory, now.activation + now.parameters + now.gradients);
  }
  if (times->peak_activation != peak.activation || times->peak_parameters != peak.parameters ||
      times->peak_gradients != peak.gradients || times->peak_memory != memory) {
    fail_msg("%s, rank %u: %g, %g, %g, %g; expected %g, %g, %g, %g", what, rank,
             times->peak_activation, times->peak_parameters, times->peak_gradients,
             times->peak_memory, peak.activation, peak.parameters, peak.gradients, memory);
  }
  free(changes.items);
  free(changes.has_gradients);
}

/* ---- Many programs ---- */

/* Whole numbers, so that sums are exact in any order. */
static struct weft_costs *draw_costs(struct weft_random *random, uint32_t stages) {
  struct weft_costs *costs = make_costs(stages);
  const uint32_t slow = 1 + weft_random_below(random, 30);
  for (uint32_t s = 0; s < stages; s++) {
    struct weft_stage_costs *stage = &costs->stages[s];
    stage->f = weft_random_below(random, 4);
    stage->i = weft_random_below(random, 4);
    stage->w = weft_random_below(random, 4);
    stage->b = stage->i + stage->w;
    stage->activation = 1 + weft_random_below(random, 9);
    stage->activation_after_i = weft_random_below(random, 9);
    stage->unshard = weft_random_below(random, slow);
    stage->reduce_grad = weft_random_below(random, slow);
    stage->parameters_sharded = weft_random_below(random, 4);
    stage->parameters = stage->parameters_sharded + weft_random_below(random, 30);
    stage->gradients_sharded = weft_random_below(random, 4);
    stage->gradients = stage->gradients_sharded + weft_random_below(random, 30);
  }
  costs->hop.latency = weft_random_below(random, 3);
  return costs;
}

static struct weft_program *draw_schedule(struct weft_random *random) {
  const struct weft_schedule_info *info =
      weft_schedule_at(weft_random_below(random, (uint32_t)weft_schedule_count()));
  const struct weft_shape shape = {.ranks = 1 + weft_random_below(random, 4),
                                   .stages_per_rank = 1 + weft_random_below(random, 4),
                                   .microbatches = 1 + weft_random_below(random, 8)};
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_program *table = NULL, *program = NULL;
  if (weft_generate(NULL, info->name, &shape, &table, NULL) != WEFT_OK) {
    return NULL;
  }
  if (table->level != WEFT_LEVEL_COMPUTE) {
    return table;
  }
  options.merge_bw = random_chance(random, 30);
  options.unshard = random_chance(random, 80);
  options.reduce_grad = random_chance(random, 80);
  options.tie_grad = random_chance(random, 30);
  options.unshard_window = 1 + weft_random_below(random, 4);
  struct weft_error error;
  if (weft_lower(NULL, table, &options, &program, &error) != WEFT_OK) {
    fail_msg("%s: %s", info->name, error.message);
  }
  weft_program_destroy(table);
  return program;
}

static struct weft_program *draw_program(struct weft_random *random) {
  const struct random_limits limits = {.cells_two = 40, .cells_three = 30};
  struct draft draft = {0};
  bool misordered;
  if (random_chance(random, 75)) {
    return draw_schedule(random);
  }
  random_program(random, &limits, &draft, &misordered);
  struct weft_program *program = draft_build(&draft);
  draft_finish(&draft);
  return program;
}

/* How often time matters: where collectives are free, the peak is another one. */
static bool is_shifted(const struct weft_simulation *simulation, struct weft_costs *costs) {
  bool differs = false;
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    costs->stages[s].unshard = costs->stages[s].reduce_grad = 0;
  }
  struct weft_simulation *free_ones = simulate(simulation->program, costs, NULL);
  for (uint32_t r = 0; r < simulation->program->rank_count; r++) {
    differs = differs || free_ones->ranks[r].peak_memory != simulation->ranks[r].peak_memory;
  }
  weft_simulation_destroy(free_ones);
  return differs;
}

static void peaks_are_those_of_the_events(void **state) {
  (void)state;
  uint32_t checked = 0, shifted = 0;
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    struct weft_random random = {.state = seed};
    struct weft_program *program = draw_program(&random);
    struct weft_simulation *simulation = NULL;
    char what[32];
    if (program == NULL) {
      continue;
    }
    struct weft_costs *costs = draw_costs(&random, program->stage_count);
    (void)snprintf(what, sizeof what, "seed %llu", (unsigned long long)seed);
    if (weft_simulate(NULL, program, costs, NULL, &simulation, NULL) == WEFT_OK) {
      for (uint32_t r = 0; r < program->rank_count; r++) {
        check_rank(simulation, costs, r, what);
      }
      checked++;
      shifted += is_shifted(simulation, costs);
    }
    weft_simulation_destroy(simulation);
    weft_costs_destroy(costs);
    weft_program_destroy(program);
  }
  print_message("%u programs; in %u the times of collectives change a peak\n", checked, shifted);
  assert_true(checked > ROUNDS / 4 && shifted > 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_stay_while_they_are_reduced),
                                     cmocka_unit_test(parameters_stay_until_the_stream_drops_them),
                                     cmocka_unit_test(parameters_come_when_the_stream_gathers_them),
                                     cmocka_unit_test(measured_peaks_are_those_of_the_run),
                                     cmocka_unit_test(peaks_are_those_of_the_events)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
