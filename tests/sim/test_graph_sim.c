/* The simulator on graphs: by hand, and on many random ones as a reference has it
 * (support_graph_timing.h), to the tick. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_graph_timing.h"
#include "support_memory.h"

#if defined(__SANITIZE_ADDRESS__)
enum { CASES = 300 }; /* about memory; the other build tries all of them */
#else
enum { CASES = 1500 };
#endif
enum { SCOPES = WEFT_CHANNEL_COUNT };

/* ---- By hand ---- */

/* 0 feeds 1 and 2, 1 feeds 2; stage 0 is on rank 0, 1 and 2 on rank 1. */
#define TRIANGLE "#graph,0>1,0>2,1>2\n"

static void a_skip_connection_by_hand(void **state) {
  (void)state;
  struct weft_program *table = parse_text(TRIANGLE "0F0,0B0\n1F0,2F0,2B0,1B0\n");
  struct weft_costs *costs = NULL;
  struct weft_simulation *sim = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  costs->hop = (struct weft_hop_costs){.latency = 1, .bytes = 2, .bytes_per_unit = 1};
  assert_int_equal(weft_simulate(NULL, table, costs, NULL, &sim, &error), WEFT_OK);
  /* 0F0 0-1; both messages arrive at 4; 1F0 4-5, 2F0 5-6, 2B0 6-8, 1B0 8-10; the gradients
   * arrive at 11 and 13; 0B0 13-15. */
  assert_true(sim->makespan == 15);
  assert_true(sim->ranks[0].idle_by_cause[WEFT_IDLE_GRADIENT] == 12);
  assert_int_equal(sim->ranks[1].receive_buffers_peak, 2);
  assert_int_equal(sim->ranks[0].receive_buffers_peak, 2);
  assert_true(sim->ranks[1].peak_activation == 2);
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

/* Stage 0 is frozen: it keeps nothing, and has no gradients to store. */
static void a_frozen_stage_keeps_nothing(void **state) {
  (void)state;
  struct weft_program *table = parse_text(
      "#graph,0>1F,1>2\n0F0,0F1,0F2\n1F0,1F1,1F2,1B0,1B1,1B2\n"
      "2F0,2B0,2F1,2B1,2F2,2B2\n");
  struct weft_costs *costs = NULL;
  struct weft_simulation *sim = NULL;
  struct weft_error error;
  struct weft_memory_point points[64];
  uint64_t count;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  costs->stages[0].gradients = costs->stages[0].gradients_sharded = 7;
  assert_int_equal(weft_simulate(NULL, table, costs, NULL, &sim, &error), WEFT_OK);
  assert_true(sim->ranks[0].peak_activation == 1);
  assert_true(sim->ranks[0].peak_gradients == 0);
  assert_true(sim->ranks[1].peak_activation == 3);
  assert_true(sim->ranks[1].peak_gradients == 7);
  weft_memory_curve(sim, costs, 0, points, 64, &count);
  assert_true(count > 0 && points[count - 1].size == 0);
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

/* ---- Against the reference ---- */

static void expect_numbers(const struct weft_simulation *sim, const struct timed_program *timed,
                           const struct weft_costs *costs) {
  const struct weft_program *program = sim->program;
  for (uint64_t e = 0; e < sim->event_count; e++) {
    const struct timed_record *record = &timed->records[sim->events[e].record];
    assert_true(2 * sim->events[e].begin == record->begin * (int64_t)sim->ticks_per_unit);
    assert_true(2 * sim->events[e].end == record->end * (int64_t)sim->ticks_per_unit);
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const struct weft_rank_times *times = &sim->ranks[r];
    struct weft_memory_point points[1024];
    uint64_t count;
    double peak = 0, sum = 0;
    for (unsigned cause = WEFT_IDLE_FORWARD; cause <= WEFT_IDLE_CHANNEL; cause++) {
      const int64_t idle = timed->idle[r * WEFT_IDLE_CAUSES + cause];
      assert_true(2 * times->idle_by_cause[cause] == (double)idle);
    }
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      sum += times->idle_by_cause[cause];
    }
    assert_true(times->busy == 0 || sum == times->idle);
    assert_int_equal(times->receive_buffers_peak, timed->buffers[r]);
    assert_true(times->message_bytes_peak == timed->bytes[r]);
    assert_true(times->peak_activation == timed->peaks[r]);
    weft_memory_curve(sim, costs, r, points, 1024, &count);
    for (uint64_t k = 0; k < count; k++) {
      peak = points[k].size > peak ? points[k].size : peak;
    }
    assert_true(count == 0 || points[count - 1].size == 0);
    assert_true(peak <= times->peak_activation);
  }
}

/* Each begins where the one before it ends, or where the message of that one arrives. */
static void expect_path(const struct weft_simulation *sim) {
  static uint64_t path[4096];
  struct weft_error error;
  uint64_t count;
  int64_t last = 0, last_transfer = 0;
  assert_int_equal(weft_critical_path(NULL, sim, path, 4096, &count, &error), WEFT_OK);
  for (uint64_t e = 0; e < sim->event_count; e++) {
    const uint8_t op = sim->program->actions[sim->events[e].record].op;
    int64_t *latest = op >= WEFT_OP_SEND_F && op <= WEFT_OP_RECV_B ? &last_transfer : &last;
    *latest = sim->events[e].end > *latest ? sim->events[e].end : *latest;
  }
  /* Where the last action takes no time, the path may end with the transfer before it. */
  assert_true(count > 0);
  assert_true(sim->events[path[count - 1]].end == last || last_transfer == last);
  for (uint64_t k = 1; k < count; k++) {
    const struct weft_event *before = &sim->events[path[k - 1]], *at = &sim->events[path[k]];
    assert_true(before->end <= at->begin);
    assert_true(before->end == at->begin || before->rank != at->rank ||
                sim->program->level == WEFT_LEVEL_COMMS);
  }
}

static void expect_same_rank(const struct weft_rank_times *a, const struct weft_rank_times *b) {
  assert_true(a->busy == b->busy && a->idle == b->idle && a->span == b->span);
  assert_true(a->peak_activation == b->peak_activation && a->peak_memory == b->peak_memory);
  assert_int_equal(a->receive_buffers_peak, b->receive_buffers_peak);
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    assert_true(a->idle_by_cause[cause] == b->idle_by_cause[cause]);
  }
}

static void expect_measured(const struct weft_simulation *sim, const struct weft_costs *costs) {
  struct weft_simulation *measured = NULL;
  struct weft_error error;
  assert_int_equal(
      weft_simulation_measured(NULL, sim->program, costs, sim->events, sim->event_count,
                               sim->ticks_per_unit, &measured, &error),
      WEFT_OK);
  assert_true(measured->makespan == sim->makespan);
  for (uint32_t r = 0; r < sim->program->rank_count; r++) {
    expect_same_rank(&measured->ranks[r], &sim->ranks[r]);
  }
  weft_simulation_destroy(measured);
}

static void expect_lean(const struct weft_simulation *sim, const struct weft_costs *costs,
                        struct weft_sim_options options) {
  struct weft_simulation *lean = NULL;
  struct weft_error error;
  double makespan;
  options.no_events = true;
  assert_int_equal(weft_simulate(NULL, sim->program, costs, &options, &lean, &error), WEFT_OK);
  assert_int_equal(weft_makespan(NULL, sim->program, costs, &options, &makespan, &error), WEFT_OK);
  assert_true(makespan == lean->makespan && makespan == sim->makespan);
  for (uint32_t r = 0; r < sim->program->rank_count; r++) {
    expect_same_rank(&lean->ranks[r], &sim->ranks[r]);
  }
  weft_simulation_destroy(lean);
}

/* Returns whether it finishes. */
static bool check(const struct weft_program *program, const struct weft_costs *costs,
                  enum weft_channel_model scope) {
  struct weft_sim_options options = weft_sim_options_default();
  struct timed_program timed = time_program(program, costs, scope);
  struct weft_simulation *sim = NULL;
  struct weft_error error;
  options.channel = scope;
  const enum weft_status status = weft_simulate(NULL, program, costs, &options, &sim, &error);
  assert_int_equal(status, timed.finishes ? WEFT_OK : WEFT_ERR_INVALID);
  if (timed.finishes) {
    expect_numbers(sim, &timed, costs);
    expect_path(sim);
    expect_lean(sim, costs, options);
    if (scope == WEFT_CHANNEL_EDGE &&
        (program->level == WEFT_LEVEL_COMMS ||
         (costs->hop.latency == 0 && costs->hop.bytes_per_unit == 0))) {
      expect_measured(sim, costs);
    }
  }
  weft_simulation_destroy(sim);
  timed_program_finish(&timed);
  return status == WEFT_OK;
}

static void random_graphs_take_the_time_of_the_reference(void **state) {
  (void)state;
  uint32_t finished[SCOPES] = {0}, tried = 0;
  for (uint64_t seed = 0; seed < CASES; seed++) {
    struct weft_random random = {.state = seed};
    struct weft_graph *graph = any_graph(&random);
    struct weft_program *table = any_graph_table(&random, graph);
    struct weft_costs *costs = any_costs(&random, graph->stage_count);
    struct weft_program *program = lower_plainly(table);
    assert_true(check(table, costs, WEFT_CHANNEL_EDGE));
    assert_true(check(program, costs, WEFT_CHANNEL_EDGE));
    finished[0]++;
    if (program->level == WEFT_LEVEL_COMMS) {
      tried++;
      for (unsigned scope = 1; scope < SCOPES; scope++) {
        finished[scope] += check(program, costs, (enum weft_channel_model)scope);
      }
    }
    weft_program_destroy(program);
    weft_program_destroy(table);
    weft_costs_destroy(costs);
    weft_graph_destroy(graph);
  }
  for (unsigned scope = 0; scope < SCOPES; scope++) {
    assert_true(finished[scope] > tried / 4);
  }
}

/* ---- A graph that is a chain ---- */

static void a_chain_written_as_a_graph_is_the_same(void **state) {
  (void)state;
  const struct weft_shape shape = {.ranks = 4, .stages_per_rank = 2, .microbatches = 8};
  struct weft_program *plain = NULL, *table = NULL;
  struct weft_graph *graph = NULL;
  struct weft_costs *costs = NULL;
  struct weft_error error;
  struct weft_edge edges[7];
  for (uint32_t e = 0; e < 7; e++) {
    edges[e] = weft_edge_make(e, e + 1);
  }
  assert_int_equal(weft_graph_create(NULL, 8, edges, 7, NULL, &graph, &error), WEFT_OK);
  assert_int_equal(weft_generate(NULL, "Interleaved1F1B", &shape, &plain, &error), WEFT_OK);
  assert_int_equal(weft_generate(NULL, "Interleaved1F1B", &shape, &table, &error), WEFT_OK);
  assert_int_equal(weft_program_set_graph(table, graph, &error), WEFT_OK);
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  costs->hop = (struct weft_hop_costs){.latency = 0.5, .bytes = 3, .bytes_per_unit = 4};
  struct weft_program *programs[2] = {lower_plainly(plain), lower_plainly(table)};
  for (unsigned scope = 0; scope < SCOPES; scope++) {
    struct weft_sim_options options = weft_sim_options_default();
    struct weft_simulation *sims[2] = {NULL};
    double periods[2];
    options.channel = (enum weft_channel_model)scope;
    for (int k = 0; k < 2; k++) {
      assert_int_equal(weft_simulate(NULL, programs[k], costs, &options, &sims[k], &error),
                       WEFT_OK);
      assert_int_equal(weft_period(NULL, programs[k], costs, &options, &periods[k], &error),
                       WEFT_OK);
    }
    assert_true(periods[0] == periods[1]);
    assert_true(sims[0]->makespan == sims[1]->makespan);
    for (uint32_t r = 0; r < 4; r++) {
      expect_same_rank(&sims[0]->ranks[r], &sims[1]->ranks[r]);
    }
    assert_memory_equal(sims[0]->events, sims[1]->events,
                        sims[0]->event_count * sizeof *sims[0]->events);
    weft_simulation_destroy(sims[0]);
    weft_simulation_destroy(sims[1]);
  }
  weft_program_destroy(programs[0]);
  weft_program_destroy(programs[1]);
  weft_program_destroy(plain);
  weft_program_destroy(table);
  weft_graph_destroy(graph);
  weft_costs_destroy(costs);
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  struct weft_program *table = parse_text(TRIANGLE "0F0,0B0\n1F0,2F0,2B0,1B0\n");
  struct weft_costs *costs = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t failed = 1; status == WEFT_ERR_MEMORY; failed++) {
    struct weft_simulation *sim = NULL;
    struct test_memory memory;
    test_memory_init(&memory);
    memory.fail_at = failed;
    status = weft_simulate(&memory.allocator, table, costs, NULL, &sim, &error);
    weft_simulation_destroy(sim);
    assert_int_equal(memory.blocks, 0);
  }
  assert_int_equal(status, WEFT_OK);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_skip_connection_by_hand),
      cmocka_unit_test(a_frozen_stage_keeps_nothing),
      cmocka_unit_test(random_graphs_take_the_time_of_the_reference),
      cmocka_unit_test(a_chain_written_as_a_graph_is_the_same),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
