/* Graphs of stages on the loopback transport: random graphs, tables, placements and boundaries.
 * Losses, outputs and gradients equal a plain evaluation bit for bit, in every mode and order of
 * ranks; events have the times that follow from the graph; faults end with one error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/run.h>
#include <weft/weft.h>

#include "ir/action.h"
#include "support_fault_injection.h"
#include "support_graph_model.h"
#include "support_memory.h"
#include "support_pipelines.h"
#include "support_protected_device.h"

enum { MODELS = 600, STALL = 100000 };

static void expect(const struct graph_model *model, const char *complaint, const char *where) {
  if (complaint != NULL) {
    struct weft_text text = {.size = 0};
    weft_program_print(model->program, &text);
    fail_msg("seed %lu, %u ranks, %s: %s\n%s", (unsigned long)model->seed, model->rank_count, where,
             complaint, text.data);
  }
}

static void step(const struct graph_model *model, struct pipelines *pipelines, bool training,
                 const char *where) {
  struct weft_batch batches[GRAPH_STAGES_MAX];
  struct weft_error error;
  for (uint32_t r = 0; r < model->rank_count; r++) {
    batches[r] = graph_model_batch(model, r);
  }
  if (pipelines_step(pipelines, training, batches, model->rank_count, &error) != WEFT_OK) {
    expect(model, error.message, where);
  }
  for (uint32_t r = 0; r < model->rank_count; r++) {
    struct weft_step_result result;
    weft_pipeline_result(pipelines->items[r], &result);
    expect(model, graph_model_judge(model, r, training, &result), where);
  }
}

/* Two training steps with an eval between them. */
static void run_model(const struct graph_model *model, enum weft_send_model comm, uint64_t seed) {
  struct weft_fixed_source source;
  struct weft_pipeline_options options = graph_model_options(model, &source);
  struct pipelines pipelines;
  struct weft_error error;
  options.comm = comm;
  options.stall_limit = STALL;
  options.check_payloads = seed % 3 == 0;
  options.forward_ahead = (uint32_t)(seed % 4);
  pipelines_open(&pipelines, NULL,
                 &(struct weft_comm_options){.rank_count = model->rank_count,
                                             .seed = seed,
                                             .latency_ticks = (int64_t)(seed % 4),
                                             .delay_ticks_max = (int64_t)(seed % 7) * 3});
  if (pipelines_create(&pipelines, NULL, &options, &error) != WEFT_OK) {
    expect(model, error.message, "create");
  }
  step(model, &pipelines, true, "first step");
  step(model, &pipelines, false, "eval");
  step(model, &pipelines, true, "last step");
  pipelines_close(&pipelines);
}

/* What is accepted runs without a stall; all of it must be accepted. */
static void verify(const struct graph_model *model) {
  struct weft_report *report;
  struct weft_error error;
  assert_int_equal(weft_verify(NULL, model->program, NULL, &report, &error), WEFT_OK);
  expect(model, report->finding_count > 0 ? "it is not accepted" : NULL, "verify");
  weft_report_destroy(report);
}

static void test_random_graphs(void **state) {
  (void)state;
  struct graph_model *model = malloc(sizeof *model);
  uint64_t edges = 0, heads = 0, frozen = 0;
  for (uint64_t seed = 1; seed <= MODELS; seed++) {
    graph_model_init(model, seed, 0);
    verify(model);
    run_model(model, (enum weft_send_model)(seed % 3), seed);
    edges += model->graph->edge_count;
    heads += model->boundary_count - model->graph->edge_count;
    for (uint32_t s = 0; s < model->stage_count; s++) {
      frozen += !weft_graph_has_backward(model->graph, s);
    }
    graph_model_finish(model);
  }
  print_message("%u graphs with %lu edges, %lu losses, %lu frozen stages\n", (unsigned)MODELS,
                (unsigned long)edges, (unsigned long)heads, (unsigned long)frozen);
  assert_true(heads > MODELS && frozen > 0);
  free(model);
}

/* The same graph and batch on 1 to 6 ranks: gradients add up in another order, losses do not. */
static void test_any_number_of_ranks(void **state) {
  (void)state;
  struct graph_model *one = malloc(sizeof *one), *more = malloc(sizeof *more);
  for (uint64_t seed = 1; seed <= 40; seed++) {
    graph_model_init(one, seed, 1);
    for (uint32_t ranks = 1; ranks <= 6; ranks++) {
      graph_model_init(more, seed, ranks);
      run_model(more, WEFT_COMM_RENDEZVOUS, seed);
      assert_memory_equal(more->losses, one->losses, sizeof one->losses);
      graph_model_finish(more);
    }
    graph_model_finish(one);
  }
  free(one);
  free(more);
}

/* ---- Times ---- */

/* What each rank does when, in order: compute takes its time, a message the latency, and compute
 * waits for its messages. Repeated until nothing changes; a program that can run ends. */
struct reference {
  const struct weft_program *program;
  const struct weft_cost_stage *stages;
  int64_t latency;
  int64_t *begin, *end; /* [record]; -1: not yet */
  uint64_t *at;         /* [rank] */
  int64_t *now;         /* [rank] */
};

static uint64_t find_send(const struct weft_program *program, struct weft_action recv) {
  struct weft_action send;
  assert_true(weft_action_partner(recv, program->stage_count, &send));
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (weft_action_equal(program->actions[i], send)) {
      return i;
    }
  }
  fail_msg("no partner");
  return 0;
}

/* When all messages of an action have arrived; -1: one of them has not been sent. */
static int64_t inputs_at(const struct reference *of, uint32_t rank, struct weft_action action) {
  const struct weft_program *program = of->program;
  const bool forward = action.op == WEFT_OP_F;
  int64_t latest = 0;
  for (uint64_t i = program->row_begin[rank]; i < of->at[rank]; i++) {
    const struct weft_action recv = program->actions[i];
    if (action.op != WEFT_OP_W && recv.op == (forward ? WEFT_OP_RECV_F : WEFT_OP_RECV_B) &&
        recv.stage == action.stage && recv.microbatch == action.microbatch) {
      const int64_t sent = of->end[find_send(program, recv)];
      if (sent < 0) {
        return -1;
      }
      latest = sent + of->latency > latest ? sent + of->latency : latest;
    }
  }
  return latest;
}

static bool advance_reference(struct reference *of, uint32_t rank) {
  const uint64_t i = of->at[rank];
  if (i == of->program->row_begin[rank + 1]) {
    return false;
  }
  const struct weft_action action = of->program->actions[i];
  if (weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
    const int64_t ready = inputs_at(of, rank, action);
    if (ready < 0) {
      return false;
    }
    of->begin[i] = of->now[rank] > ready ? of->now[rank] : ready;
    of->now[rank] = of->begin[i] + of->stages[action.stage].times[action.op];
  } else {
    of->begin[i] = of->now[rank];
  }
  of->end[i] = of->now[rank];
  of->at[rank]++;
  return true;
}

/* Compares the computes; where the simulator takes graphs, every event of it as well. */
static void compare_times(const struct graph_model *model, struct reference *of,
                          const struct weft_event *events, uint64_t count) {
  int64_t first = INT64_MAX;
  for (uint64_t k = 0; k < count; k++) {
    first = events[k].begin < first ? events[k].begin : first;
  }
  for (uint64_t k = 0; k < count; k++) {
    const uint32_t i = events[k].record;
    if (weft_op_in(of->program->actions[i].op, WEFT_OPS_COMPUTE) &&
        (events[k].begin - first != of->begin[i] || events[k].end - first != of->end[i])) {
      char cell[64], text[200];
      snprintf(text, sizeof text, "%s ran %ld..%ld, expected %ld..%ld",
               weft_action_format(&of->program->actions[i], cell, sizeof cell),
               (long)(events[k].begin - first), (long)(events[k].end - first), (long)of->begin[i],
               (long)of->end[i]);
      expect(model, text, "times");
    }
  }
}

/* False: the simulator refuses graphs. */
static bool compare_simulation(const struct graph_model *model, const struct reference *of,
                               const struct weft_event *events, uint64_t count) {
  struct weft_error error;
  struct weft_costs *costs;
  struct weft_simulation *sim;
  assert_int_equal(weft_costs_create(NULL, model->stage_count, &costs, &error), WEFT_OK);
  for (uint32_t s = 0; s < model->stage_count; s++) {
    const int64_t *times = of->stages[s].times;
    costs->stages[s].f = (double)times[WEFT_OP_F];
    costs->stages[s].b = (double)times[WEFT_OP_B];
    costs->stages[s].i = (double)times[WEFT_OP_I];
    costs->stages[s].w = (double)times[WEFT_OP_W];
  }
  costs->hop.latency = (double)of->latency;
  costs->hop.bytes_per_unit = 0;
  const enum weft_status status = weft_simulate(NULL, model->program, costs, NULL, &sim, &error);
  weft_costs_destroy(costs);
  if (status != WEFT_OK) {
    return false;
  }
  assert_int_equal(count, sim->event_count);
  int64_t first = INT64_MAX;
  for (uint64_t k = 0; k < count; k++) {
    first = events[k].begin < first ? events[k].begin : first;
  }
  for (uint64_t k = 0; k < count; k++) {
    const double ticks = sim->ticks_per_unit;
    if (events[k].record != sim->events[k].record ||
        (double)(events[k].begin - first) * ticks != (double)sim->events[k].begin ||
        (double)(events[k].end - first) * ticks != (double)sim->events[k].end) {
      char cell[64];
      expect(model,
             weft_action_format(&model->program->actions[events[k].record], cell, sizeof cell),
             "an event at another time than simulated");
    }
  }
  weft_simulation_destroy(sim);
  return true;
}

static bool run_timed(const struct graph_model *model, uint64_t seed) {
  const struct weft_program *program = model->program;
  struct weft_cost_stage stages[GRAPH_STAGES_MAX];
  struct weft_stage *bases[GRAPH_STAGES_MAX];
  for (uint32_t s = 0; s < model->stage_count; s++) {
    weft_cost_stage_init(&stages[s], WEFT_COST_VIRTUAL);
    stages[s].times[WEFT_OP_F] = 1 + (int64_t)((s * 5 + seed) % 7);
    stages[s].times[WEFT_OP_B] = 2 + (int64_t)((s * 3 + seed) % 5);
    stages[s].times[WEFT_OP_I] = 1 + (int64_t)((s + seed) % 4);
    stages[s].times[WEFT_OP_W] = 1 + (int64_t)((s * 2 + seed) % 3);
    bases[s] = &stages[s].stage;
  }
  struct weft_fixed_source source;
  struct weft_pipeline_options options = graph_model_options(model, &source);
  options.stages = bases;
  options.scale_grads = false;
  options.stall_limit = 0;
  options.forward_ahead = 0;
  struct reference of = {.program = program, .stages = stages, .latency = (int64_t)(seed % 4)};
  of.begin = malloc(program->action_count * sizeof *of.begin);
  of.end = malloc(program->action_count * sizeof *of.end);
  of.at = calloc(program->rank_count, sizeof *of.at);
  of.now = calloc(program->rank_count, sizeof *of.now);
  memset(of.begin, 0xff, program->action_count * sizeof *of.begin);
  memset(of.end, 0xff, program->action_count * sizeof *of.end);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    of.at[r] = program->row_begin[r];
  }
  for (bool moves = true; moves;) {
    moves = false;
    for (uint32_t r = 0; r < program->rank_count; r++) {
      moves = advance_reference(&of, r) || moves;
    }
  }
  struct pipelines pipelines;
  struct weft_error error;
  pipelines_open(&pipelines, NULL,
                 &(struct weft_comm_options){
                     .rank_count = program->rank_count, .seed = seed, .latency_ticks = of.latency});
  if (pipelines_create(&pipelines, NULL, &options, &error) != WEFT_OK) {
    expect(model, error.message, "create");
  }
  const struct weft_batch batch = {.microbatch_count = model->microbatch_count};
  if (pipelines_step(&pipelines, true, &batch, 1, &error) != WEFT_OK) {
    expect(model, error.message, "timed step");
  }
  uint64_t count;
  struct weft_event *events = pipelines_events(&pipelines, &count);
  compare_times(model, &of, events, count);
  const bool simulated = compare_simulation(model, &of, events, count);
  free(events);
  pipelines_close(&pipelines);
  free(of.begin);
  free(of.end);
  free(of.at);
  free(of.now);
  return simulated;
}

static void test_times(void **state) {
  (void)state;
  struct graph_model *model = malloc(sizeof *model);
  uint32_t simulated = 0;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    graph_model_init(model, seed, 0);
    simulated += run_timed(model, seed);
    graph_model_finish(model);
  }
  print_message("200 graphs, every compute at its tick; %u of them simulated\n", simulated);
  assert_int_equal(simulated, 200);
  free(model);
}

/* ---- Faults ---- */

/* One step with an injector around every rank, or around one (UINT32_MAX: all). */
static enum weft_status run_faulty(const struct graph_model *model, uint32_t only,
                                   const struct weft_fault_options *faults,
                                   struct pipelines *pipelines, struct weft_error *error) {
  struct weft_fixed_source source;
  struct weft_pipeline_options options = graph_model_options(model, &source);
  struct weft_batch batches[GRAPH_STAGES_MAX];
  options.stall_limit = STALL;
  options.check_payloads = true;
  pipelines_open(pipelines, NULL,
                 &(struct weft_comm_options){.rank_count = model->rank_count, .latency_ticks = 3});
  for (uint32_t r = 0; r < model->rank_count; r++) {
    batches[r] = graph_model_batch(model, r);
    if (only != UINT32_MAX && only != r) {
      continue;
    }
    struct weft_fault_options own = *faults;
    own.seed += r;
    assert_int_equal(weft_fault_injector_create(NULL, pipelines->transports[r], &own,
                                                &pipelines->transports[r], error),
                     WEFT_OK);
  }
  assert_int_equal(pipelines_create(pipelines, NULL, &options, error), WEFT_OK);
  return pipelines_step(pipelines, true, batches, model->rank_count, error);
}

static void test_delays_change_nothing(void **state) {
  (void)state;
  struct graph_model *model = malloc(sizeof *model);
  for (uint64_t seed = 1; seed <= 60; seed++) {
    struct pipelines pipelines;
    struct weft_error error;
    graph_model_init(model, seed, 0);
    const struct weft_fault_options faults = {.seed = seed, .delay_max = 40};
    if (run_faulty(model, UINT32_MAX, &faults, &pipelines, &error) != WEFT_OK) {
      expect(model, error.message, "delays");
    }
    for (uint32_t r = 0; r < model->rank_count; r++) {
      struct weft_step_result result;
      weft_pipeline_result(pipelines.items[r], &result);
      expect(model, graph_model_judge(model, r, true, &result), "delays");
    }
    pipelines_close(&pipelines);
    graph_model_finish(model);
  }
  free(model);
}

static uint64_t receives_of(const struct weft_program *program, uint32_t rank) {
  uint64_t count = 0;
  for (uint64_t k = program->row_begin[rank]; k < program->row_begin[rank + 1]; k++) {
    count += weft_op_in(program->actions[k].op, WEFT_OPS_RECV);
  }
  return count;
}

/* A bit of the n-th message of a rank flips: it says so, and all ranks the same. */
static void test_damage_is_found(void **state) {
  (void)state;
  struct graph_model *model = malloc(sizeof *model);
  uint32_t found = 0;
  for (uint64_t seed = 1; seed <= 120; seed++) {
    graph_model_init(model, seed, 0);
    struct pipelines pipelines;
    struct weft_error error;
    const uint32_t victim = (uint32_t)(seed % model->rank_count);
    const uint64_t n = 1 + seed % 11;
    const struct weft_fault_options faults = {
        .seed = seed, .damage_receive = n, .damage_payload = seed % 2 == 0};
    const bool damaged = n <= receives_of(model->program, victim);
    const enum weft_status status = run_faulty(model, victim, &faults, &pipelines, &error);
    assert_int_equal(status, damaged ? WEFT_ERR_PROTOCOL : WEFT_OK);
    for (uint32_t r = 0; r < model->rank_count; r++) {
      if (pipelines.statuses[r] != WEFT_OK) { /* one that was done before is done */
        assert_string_equal(pipelines.errors[r].message, error.message);
      }
    }
    found += damaged;
    pipelines_close(&pipelines);
    graph_model_finish(model);
  }
  assert_true(found > 20);
  free(model);
}

/* A rank goes silent: the others name it, all the same. */
static void test_death_is_noticed(void **state) {
  (void)state;
  struct graph_model *model = malloc(sizeof *model);
  uint32_t deaths = 0;
  for (uint64_t seed = 1; seed <= 120; seed++) {
    graph_model_init(model, seed, 0);
    struct pipelines pipelines;
    struct weft_error error;
    const uint32_t victim = (uint32_t)(seed % model->rank_count);
    const struct weft_fault_options faults = {.die_at = 1 + seed % 7};
    const enum weft_status status = run_faulty(model, victim, &faults, &pipelines, &error);
    const bool died = pipelines.statuses[victim] == WEFT_ERR_CANCELLED;
    char name[16];
    (void)snprintf(name, sizeof name, "rank %u", victim);
    assert_true(died || status == WEFT_OK);
    for (uint32_t r = 0; r < model->rank_count; r++) {
      const enum weft_status other = pipelines.statuses[r];
      assert_true(r == victim || other == WEFT_ERR_STALLED || other == WEFT_OK);
      if (other == WEFT_ERR_STALLED) {
        assert_non_null(strstr(pipelines.errors[r].message, name));
      }
    }
    deaths += died;
    pipelines_close(&pipelines);
    graph_model_finish(model);
  }
  assert_true(deaths > 20);
  free(model);
}

/* The k-th allocation fails, for every k: the rank's own error, and nothing is left. */
static void test_memory(void **state) {
  (void)state;
  struct graph_model *model = malloc(sizeof *model);
  graph_model_init(model, 11, 3);
  struct weft_comm_options network = {.rank_count = model->rank_count};
  uint64_t failures = 0;
  for (uint64_t k = 1, ended = 0; ended == 0; k++) {
    struct test_memory memory;
    struct weft_fixed_source source;
    struct weft_pipeline_options options = graph_model_options(model, &source);
    struct weft_batch batches[GRAPH_STAGES_MAX];
    struct pipelines pipelines;
    struct weft_error error;
    test_memory_init(&memory);
    source.allocator = &memory.allocator;
    pipelines_open(&pipelines, NULL, &network);
    memory.fail_at = k;
    enum weft_status status = pipelines_create(&pipelines, &memory.allocator, &options, &error);
    for (uint32_t r = 0; r < model->rank_count; r++) {
      batches[r] = graph_model_batch(model, r);
    }
    if (status == WEFT_OK) {
      status = pipelines_step(&pipelines, false, batches, model->rank_count, &error);
    }
    bool is_told = status == WEFT_ERR_MEMORY; /* others may wait for the rank */
    for (uint32_t r = 0; r < model->rank_count; r++) {
      is_told = is_told || pipelines.statuses[r] == WEFT_ERR_MEMORY;
    }
    assert_int_equal(is_told, status != WEFT_OK);
    failures += is_told;
    ended = status == WEFT_OK;
    pipelines_close(&pipelines);
    assert_int_equal(memory.blocks, 0);
  }
  print_message("%lu allocations failed in turn\n", (unsigned long)failures);
  assert_true(failures > 50);
  graph_model_finish(model);
  free(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_graphs),   cmocka_unit_test(test_any_number_of_ranks),
      cmocka_unit_test(test_times),           cmocka_unit_test(test_delays_change_nothing),
      cmocka_unit_test(test_damage_is_found), cmocka_unit_test(test_death_is_noticed),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
