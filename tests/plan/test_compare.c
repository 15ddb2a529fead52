/* weft_compare(): it agrees with weft_simulate() of every schedule, ranks by one order, takes shape,
 * graph and costs from where they are, and refuses what is not comparable. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_memory.h"

static struct weft_costs *unit_costs(void) {
  struct weft_costs *costs;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, NULL), WEFT_OK);
  return costs;
}

static struct weft_program *generate(const char *name, uint32_t p, uint32_t v, uint32_t m) {
  const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
  struct weft_program *table;
  assert_int_equal(weft_generate(NULL, name, &shape, &table, NULL), WEFT_OK);
  return table;
}

static struct weft_comparison *compare(const struct weft_compare_request *request) {
  struct weft_comparison *comparison;
  struct weft_error error;
  if (weft_compare(NULL, request, &comparison, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return comparison;
}

static void expect_refused(const struct weft_compare_request *request, const char *words) {
  struct weft_comparison *comparison = NULL;
  struct weft_error error;
  assert_int_equal(weft_compare(NULL, request, &comparison, &error), WEFT_ERR_USAGE);
  assert_null(comparison);
  assert_true(error.hint[0] != '\0');
  if (strstr(error.message, words) == NULL) {
    fail_msg("'%s' is not in: %s", words, error.message);
  }
}

/* As simulated here, and in the order that the header states. */
static void check_entries(const struct weft_compare_request *request,
                          const struct weft_comparison *comparison) {
  uint32_t fitting = 0;
  for (uint32_t k = 0; k < comparison->entry_count; k++) {
    const struct weft_comparison_entry *entry = &comparison->entries[k];
    const struct weft_program *program =
        entry->info != NULL ? entry->table : request->programs[entry->program];
    struct weft_simulation *simulation;
    assert_int_equal(weft_simulate(NULL, program, request->costs, NULL, &simulation, NULL),
                     WEFT_OK);
    assert_true(entry->makespan == simulation->makespan && entry->span == simulation->span);
    assert_true(entry->bubble_ratio == simulation->bubble_ratio);
    assert_true(entry->peak_activation == simulation->peak_activation);
    double peak = 0, sum = entry->busy;
    for (uint32_t r = 0; r < program->rank_count; r++) {
      peak = fmax(peak, simulation->ranks[r].peak_memory);
    }
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      sum += entry->idle_by_cause[cause];
    }
    assert_true(entry->peak_memory == peak && fabs(sum - entry->makespan) < 1e-9 * sum);
    assert_true(entry->stages_per_rank == (double)program->stage_count / program->rank_count);
    assert_int_equal(entry->fits, weft_memory_fits(peak, request->memory_limit));
    fitting += entry->fits;
    if (k > 0) {
      const struct weft_comparison_entry *better = &comparison->entries[k - 1];
      assert_true(better->fits >= entry->fits);
      assert_true(better->fits != entry->fits || better->makespan <= entry->makespan * (1 + 1e-9));
    }
    weft_simulation_destroy(simulation);
  }
  assert_int_equal(comparison->fitting, fitting);
}

static void every_schedule_is_simulated_and_ranked(void **state) {
  (void)state;
  struct weft_compare_request request = weft_compare_request_default();
  struct weft_costs *costs = unit_costs();
  costs->hop.latency = 0.25;
  request.costs = costs;
  request.ranks = 4, request.microbatches = 8;
  request.memory_limit = 4.5;
  request.keep_tables = true;
  struct weft_comparison *comparison = compare(&request);
  check_entries(&request, comparison);
  assert_int_equal(comparison->shape.ranks, 4);
  assert_int_equal(comparison->shape.stages_per_rank, 0);
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    uint32_t found = 0, expected = 0;
    for (uint32_t e = 0; e < comparison->entry_count; e++) {
      found += comparison->entries[e].info == info;
    }
    for (uint32_t v = 1; v <= 4 && info->trains && !info->fixed; v *= 2) {
      expected += v >= info->stages_per_rank_min && v <= info->stages_per_rank_max;
    }
    assert_int_equal(found, expected);
  }
  assert_true(comparison->fitting > 0 && comparison->fitting < comparison->entry_count);
  assert_non_null(strstr(comparison->why, " wins: "));
  weft_comparison_destroy(comparison);
  request.keep_tables = false;
  comparison = compare(&request);
  assert_null(comparison->entries[0].table);
  weft_comparison_destroy(comparison);
  weft_costs_destroy(costs);
}

static void programs_are_ranked_before_schedules_that_are_as_good(void **state) {
  (void)state;
  struct weft_compare_request request = weft_compare_request_default();
  struct weft_program *three = generate("Interleaved1F1B", 3, 3, 6);
  struct weft_program *lowered, *one = generate("1F1B", 3, 1, 6);
  assert_int_equal(weft_lower(NULL, one, NULL, &lowered, NULL), WEFT_OK);
  const struct weft_program *programs[] = {lowered, three};
  const char *names[] = {"mine", "a\nb"};
  struct weft_costs *costs = unit_costs();
  request.costs = costs;
  request.programs = programs;
  request.program_count = 2;
  request.keep_tables = true;
  for (unsigned named = 0; named < 2; named++) {
    request.names = named == 1 ? names : NULL;
    struct weft_comparison *comparison = compare(&request);
    check_entries(&request, comparison);
    const struct weft_comparison_entry *last = NULL;
    for (uint32_t k = 0; k < comparison->entry_count; k++) {
      const struct weft_comparison_entry *entry = &comparison->entries[k];
      if (entry->info == NULL) {
        const char *expected[][2] = {{"program 0", "program 1"}, {"mine", "a\nb"}};
        assert_string_equal(entry->name, expected[named][entry->program]);
      } else if (strcmp(entry->name, "1F1B") == 0 ||
                 (strcmp(entry->name, "Interleaved1F1B") == 0 && entry->stages_per_rank == 3)) {
        last = entry - 1;
        while (last->info != NULL && last->makespan == entry->makespan) {
          last--;
        }
        assert_true(last->info == NULL && last->makespan == entry->makespan);
      }
    }
    assert_non_null(last); /* v of a program is tried, too */
    weft_comparison_destroy(comparison);
  }
  weft_costs_destroy(costs);
  weft_program_destroy(lowered);
  weft_program_destroy(one);
  weft_program_destroy(three);
}

static void ties_and_limits_are_explained(void **state) {
  (void)state;
  struct weft_compare_request request = weft_compare_request_default();
  struct weft_costs *costs = unit_costs();
  request.costs = costs;
  request.ranks = 1, request.microbatches = 4;
  struct weft_comparison *comparison = compare(&request);
  assert_non_null(strstr(comparison->why, " wins: as fast as "));
  weft_comparison_destroy(comparison);
  request.ranks = 4;
  request.memory_limit = 0.5;
  comparison = compare(&request);
  assert_int_equal(comparison->fitting, 0);
  assert_non_null(strstr(comparison->why, "no schedule fits into 0.5: the least, "));
  weft_comparison_destroy(comparison);
  /* One schedule alone. */
  struct weft_program *table;
  struct weft_graph *graph;
  const struct weft_edge edges[] = {{.from = 0, .to = 1, .gradient = true},
                                    {.from = 0, .to = 2, .gradient = true},
                                    {.from = 1, .to = 2, .gradient = true}};
  assert_int_equal(weft_graph_create(NULL, 3, edges, 3, NULL, &graph, NULL), WEFT_OK);
  static const char rows[] = "#graph,0>1,0>2,1>2\n0F0,1F0,,,1B0,0B0\n,,2F0,2B0,,\n";
  assert_int_equal(weft_program_parse(NULL, rows, sizeof rows - 1, "rows", &table, NULL), WEFT_OK);
  const struct weft_program *programs[] = {table};
  request = weft_compare_request_default();
  request.costs = costs;
  request.programs = programs;
  request.program_count = 1;
  request.graph = graph;
  comparison = compare(&request);
  assert_int_equal(comparison->entry_count, 1);
  assert_true(comparison->entries[0].stages_per_rank == 1.5);
  assert_non_null(strstr(comparison->why, "it is the only one"));
  weft_comparison_destroy(comparison);
  weft_program_destroy(table);
  weft_graph_destroy(graph);
  weft_costs_destroy(costs);
}

static void the_shape_comes_from_graph_and_costs(void **state) {
  (void)state;
  struct weft_compare_request request = weft_compare_request_default();
  struct weft_costs *costs, *one = unit_costs();
  struct weft_shape shape;
  assert_int_equal(weft_costs_create(NULL, 4, &costs, NULL), WEFT_OK);
  request.costs = costs;
  request.ranks = 2, request.microbatches = 4;
  assert_int_equal(weft_compare_shape(&request, &shape, NULL), WEFT_OK);
  assert_int_equal(shape.stages_per_rank, 2);
  request.stages_per_rank = 3;
  expect_refused(&request, "4 entries in stages, which is not 2 ranks with 3 stages each");
  request.ranks = 3, request.stages_per_rank = 0;
  expect_refused(&request, "4 entries in stages, which is not 3 ranks with v stages each");

  const struct weft_edge edges[] = {{.from = 0, .to = 3, .gradient = true},
                                    {.from = 1, .to = 2, .gradient = true},
                                    {.from = 2, .to = 3, .gradient = true}};
  struct weft_graph *graph;
  assert_int_equal(weft_graph_create(NULL, 4, edges, 3, NULL, &graph, NULL), WEFT_OK);
  request = weft_compare_request_default();
  request.costs = one;
  request.graph = graph;
  request.microbatches = 4;
  assert_int_equal(weft_compare_shape(&request, &shape, NULL), WEFT_OK);
  assert_true(shape.ranks == 4 && shape.stages_per_rank == 1);
  request.stages_per_rank = 2;
  assert_int_equal(weft_compare_shape(&request, &shape, NULL), WEFT_OK);
  assert_int_equal(shape.ranks, 2);
  struct weft_comparison *comparison = compare(&request);
  assert_ptr_equal(comparison->graph, graph);
  weft_comparison_destroy(comparison);
  request.ranks = 3;
  expect_refused(&request, "the graph has 4 stages, which is not 3 ranks with 2 stages each");
  weft_graph_destroy(graph);
  weft_costs_destroy(costs);
  weft_costs_destroy(one);
}

static void what_is_not_comparable_is_refused(void **state) {
  (void)state;
  struct weft_compare_request request = weft_compare_request_default();
  struct weft_program *a = generate("1F1B", 4, 1, 8), *b = generate("1F1B", 2, 1, 8);
  struct weft_program *forward = generate("ForwardOnly", 4, 1, 8);
  struct weft_costs *costs = unit_costs();
  const struct weft_program *programs[] = {a, b};
  request.costs = costs;
  expect_refused(&request, "the number of ranks");
  request.ranks = 4;
  expect_refused(&request, "the number of microbatches");
  request.ranks = 1000000, request.microbatches = 1000000;
  expect_refused(&request, "no schedule has this shape");
  request = weft_compare_request_default();
  request.costs = costs;
  request.programs = programs;
  request.program_count = 2;
  expect_refused(&request, "program 1 has 2 ranks and 8 microbatches, not 4 and 8 as program 0");
  request.program_count = 1;
  request.ranks = 3;
  expect_refused(&request, "program 0 has 4 ranks and 8 microbatches, not 3 and 8 as asked for");
  request.ranks = 0, request.stages_per_rank = 2;
  expect_refused(&request, "program 0 has 4 stages, which is not 4 ranks with 2 stages each");
  request.stages_per_rank = 0;
  programs[0] = forward;
  expect_refused(&request, "program 0 has no backward");
  programs[0] = a;
  static double factors[] = {1, 2};
  costs->rank_factors = factors;
  costs->rank_count = 2;
  expect_refused(&request, "rank_factors of 2 ranks, but there are 4");
  costs->rank_factors = NULL;
  costs->rank_count = 0;
  assert_int_equal(weft_compare(NULL, NULL, NULL, NULL), WEFT_ERR_USAGE);
  weft_comparison_destroy(NULL);
  weft_costs_destroy(costs);
  weft_program_destroy(a);
  weft_program_destroy(b);
  weft_program_destroy(forward);
}

static void shared_channels_and_slow_ranks_count(void **state) {
  (void)state;
  struct weft_compare_request request = weft_compare_request_default();
  struct weft_program *lowered, *table = generate("LoopedBFS", 8, 2, 32);
  struct weft_costs *costs = unit_costs();
  double factors[] = {1, 1, 2, 1, 1, 1, 1, 1}, makespan;
  struct weft_sim_options options = weft_sim_options_default();
  request.costs = costs;
  request.ranks = 8, request.microbatches = 32, request.stages_per_rank = 2;
  request.channel = options.channel = WEFT_CHANNEL_RANK;
  request.rank_factors = options.rank_factors = factors;
  assert_int_equal(weft_lower_transfers(NULL, table, &lowered, NULL), WEFT_OK);
  assert_int_equal(weft_makespan(NULL, lowered, costs, &options, &makespan, NULL), WEFT_OK);
  struct weft_comparison *comparison = compare(&request);
  uint32_t k = 0;
  while (strcmp(comparison->entries[k].name, "LoopedBFS") != 0) {
    k++;
  }
  assert_true(comparison->entries[k].makespan == makespan);
  weft_comparison_destroy(comparison);
  weft_costs_destroy(costs);
  weft_program_destroy(lowered);
  weft_program_destroy(table);
}

static void no_allocation_that_fails_leaks(void **state) {
  (void)state;
  struct weft_compare_request request = weft_compare_request_default();
  struct weft_program *table = generate("ZBVZeroBubble", 2, 2, 4);
  const struct weft_program *programs[] = {table};
  struct weft_costs *costs = unit_costs();
  request.costs = costs;
  request.programs = programs;
  request.program_count = 1;
  request.channel = WEFT_CHANNEL_PAIR;
  request.keep_tables = true;
  struct test_memory memory;
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t fail_at = 1; status != WEFT_OK; fail_at++) {
    struct weft_comparison *comparison = NULL;
    test_memory_init(&memory);
    memory.fail_at = fail_at;
    status = weft_compare(&memory.allocator, &request, &comparison, NULL);
    assert_true(status == WEFT_OK || status == WEFT_ERR_MEMORY);
    weft_comparison_destroy(comparison);
    assert_true(memory.blocks == 0 && memory.bytes == 0);
  }
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_schedule_is_simulated_and_ranked),
      cmocka_unit_test(programs_are_ranked_before_schedules_that_are_as_good),
      cmocka_unit_test(ties_and_limits_are_explained),
      cmocka_unit_test(the_shape_comes_from_graph_and_costs),
      cmocka_unit_test(what_is_not_comparable_is_refused),
      cmocka_unit_test(shared_channels_and_slow_ranks_count),
      cmocka_unit_test(no_allocation_that_fails_leaks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
