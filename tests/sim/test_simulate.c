/* The simulator: closed forms and hand-computed cases exactly, the cost of
 * shared channels, causes that add up, and properties on many schedules. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_memory.h"
#include "support_timing.h"

static struct weft_program *parse(const char *csv) {
  struct weft_program *program = NULL;
  struct weft_error error;
  if (weft_program_parse(NULL, csv, strlen(csv), "test", &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

static struct weft_program *generate(const char *name, uint32_t p, uint32_t v, uint32_t m) {
  const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
  struct weft_program *table = NULL;
  struct weft_error error;
  if (weft_generate(NULL, name, &shape, &table, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return table;
}

/* With SEND and RECV only, or with everything. */
static struct weft_program *lower(const struct weft_program *table, bool all) {
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_program *program = NULL;
  struct weft_error error;
  options.unshard = options.reduce_grad = all;
  if (weft_lower(NULL, table, &options, &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

static struct weft_costs *make_costs(double f, double i, double w, double latency) {
  struct weft_costs *costs = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  costs->stages[0].f = f;
  costs->stages[0].i = i;
  costs->stages[0].w = w;
  costs->stages[0].b = i + w;
  costs->hop.latency = latency;
  return costs;
}

static void expect_same_rank(const struct weft_rank_times *a, const struct weft_rank_times *b) {
  assert_true(a->busy == b->busy && a->idle == b->idle && a->span == b->span);
  assert_true(a->first_start == b->first_start && a->last_end == b->last_end);
  assert_true(a->peak_activation == b->peak_activation && a->peak_at == b->peak_at);
  assert_true(a->peak_memory == b->peak_memory);
  assert_true(a->peak_parameters == b->peak_parameters && a->peak_gradients == b->peak_gradients);
  assert_int_equal(a->receive_buffers_peak, b->receive_buffers_peak);
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    assert_true(a->idle_by_cause[cause] == b->idle_by_cause[cause]);
  }
}

/* Without events everything else is the same. */
static void expect_same_numbers(const struct weft_simulation *full, const struct weft_costs *costs,
                                const struct weft_sim_options *options) {
  struct weft_sim_options numbers = options != NULL ? *options : weft_sim_options_default();
  struct weft_simulation *lean = NULL;
  struct weft_error error;
  numbers.no_events = true;
  assert_int_equal(weft_simulate(NULL, full->program, costs, &numbers, &lean, &error), WEFT_OK);
  assert_null(lean->events);
  assert_int_equal(lean->event_count, 0);
  assert_true(lean->ticks_per_unit == full->ticks_per_unit && lean->makespan == full->makespan);
  assert_true(lean->span == full->span && lean->bubble_ratio == full->bubble_ratio);
  assert_true(lean->span_bubble_ratio == full->span_bubble_ratio);
  assert_true(lean->peak_activation == full->peak_activation);
  for (uint32_t r = 0; r < full->program->rank_count; r++) {
    expect_same_rank(&lean->ranks[r], &full->ranks[r]);
  }
  weft_simulation_destroy(lean);
}

static struct weft_simulation *simulate(const struct weft_program *program,
                                        const struct weft_costs *costs,
                                        const struct weft_sim_options *options) {
  struct weft_simulation *simulation = NULL;
  struct weft_error error;
  if (weft_simulate(NULL, program, costs, options, &simulation, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  expect_same_numbers(simulation, costs, options);
  return simulation;
}

static double makespan(const struct weft_program *program, const struct weft_costs *costs,
                       const struct weft_sim_options *options) {
  double result = NAN;
  struct weft_error error;
  if (weft_makespan(NULL, program, costs, options, &result, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return result;
}

static double period(const struct weft_program *program, const struct weft_costs *costs) {
  double result = NAN;
  struct weft_error error;
  assert_int_equal(weft_period(NULL, program, costs, NULL, &result, &error), WEFT_OK);
  return result;
}

/* ---- What must hold of every simulation ---- */

static double sum_of_causes(const struct weft_rank_times *rank) {
  double sum = 0;
  for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
    sum += rank->idle_by_cause[cause];
  }
  return sum;
}

static void check_rank(const struct weft_simulation *simulation, uint32_t r) {
  const struct weft_rank_times *rank = &simulation->ranks[r];
  int64_t clock = INT64_MIN;
  assert_true(fabs(sum_of_causes(rank) - rank->idle) < 1e-9 * (1 + simulation->makespan));
  assert_true(rank->span <= simulation->span &&
              rank->peak_activation <= simulation->peak_activation);
  for (uint64_t e = simulation->event_begin[r]; e < simulation->event_begin[r + 1]; e++) {
    const struct weft_event *event = &simulation->events[e];
    const struct weft_action *action = &simulation->program->actions[event->record];
    assert_int_equal(event->rank, r);
    assert_true(event->begin <= event->end);
    if (weft_op_info((enum weft_op)action->op)->kind == WEFT_KIND_GROUP) {
      e += action->parts; /* parts share its time */
    }
    if (weft_op_info((enum weft_op)action->op)->kind == WEFT_KIND_COMPUTE ||
        action->op == WEFT_OP_OVERLAP_F_B) {
      assert_true(event->begin >= clock);
      clock = event->end;
    }
  }
}

static void check_simulation(const struct weft_simulation *simulation,
                             const struct weft_costs *costs) {
  for (uint32_t r = 0; r < simulation->program->rank_count; r++) {
    struct weft_memory_point *points;
    uint64_t count = 0;
    double peak = 0;
    check_rank(simulation, r);
    weft_memory_curve(simulation, costs, r, NULL, 0, &count);
    points = malloc((count + 1) * sizeof *points);
    weft_memory_curve(simulation, costs, r, points, count, &count);
    for (uint64_t k = 0; k < count; k++) {
      peak = fmax(peak, points[k].size);
      assert_true(k == 0 || points[k].at >= points[k - 1].at);
    }
    assert_true(fabs(peak - simulation->ranks[r].peak_activation) < 1e-9 * (1 + peak));
    if (count > 0 && simulation->program->microbatch_count > 0) {
      assert_true(fabs(points[count - 1].size) < 1e-9 * (1 + peak) || points[count - 1].size > 0);
    }
    free(points);
  }
}

/* ---- By hand ---- */

static void two_by_two_by_hand(void **state) {
  (void)state;
  /* F = 1, B = 2:  rank 0  F0 F1 -- B0 B0 .. B1 B1   rank 1  .. F0 B0 B0 F1 B1 B1 */
  struct weft_program *table = generate("1F1B", 2, 1, 2);
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  struct weft_simulation *sim = simulate(table, costs, NULL);
  assert_true(sim->makespan == 9 && sim->span == 9);
  assert_true(sim->bubble_ratio == 6.0 / 18);
  assert_true(sim->ranks[0].busy == 6 && sim->ranks[0].idle == 3);
  assert_true(sim->ranks[0].idle_by_cause[WEFT_IDLE_GRADIENT] == 3);
  assert_true(sim->ranks[1].idle_by_cause[WEFT_IDLE_START] == 1);
  assert_true(sim->ranks[1].idle_by_cause[WEFT_IDLE_END] == 2);
  assert_true(sim->ranks[1].span == 6 && sim->ranks[1].first_start == 1);
  assert_true(sim->ranks[0].peak_activation == 2 && sim->ranks[1].peak_activation == 1);
  assert_true(sim->ranks[0].peak_at == 1);
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

static void four_by_four_by_hand(void **state) {
  (void)state;
  /* GPipe: the last F ends at (m + p - 1) F, the last B (m + p - 1) B later. */
  struct weft_program *table = generate("GPipe", 4, 1, 4);
  struct weft_costs *costs = make_costs(1, 1.5, 0.5, 0);
  struct weft_simulation *sim = simulate(table, costs, NULL);
  assert_true(sim->makespan == 7 * 1 + 7 * 2);
  assert_true(sim->peak_activation == 4);
  assert_true(sim->ranks[3].idle_by_cause[WEFT_IDLE_START] == 3);
  assert_true(sim->ranks[3].idle_by_cause[WEFT_IDLE_END] == 6);
  assert_true(sim->ranks[0].idle_by_cause[WEFT_IDLE_GRADIENT] == 9);
  weft_simulation_destroy(sim);
  /* A hop of 1/4 is paid 2 (p - 1) times. */
  costs->hop.latency = 0.25;
  assert_true(makespan(table, costs, NULL) == 21 + 6 * 0.25);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

static void a_busy_channel_holds_transfers_up(void **state) {
  (void)state;
  /* F takes 1, a transfer occupies its channel for 3: arrivals at 4, 7, 10. */
  struct weft_program *table = parse("0F0,0F1,0F2\n1F0,1F1,1F2\n");
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  costs->hop.bytes = 30;
  costs->hop.bytes_per_unit = 10;
  struct weft_simulation *sim = simulate(table, costs, NULL);
  assert_true(sim->makespan == 11);
  assert_true(sim->ranks[1].idle_by_cause[WEFT_IDLE_START] == 4);
  assert_true(sim->ranks[1].idle_by_cause[WEFT_IDLE_CHANNEL] == 4);
  assert_true(sim->ranks[1].idle_by_cause[WEFT_IDLE_FORWARD] == 0);
  assert_int_equal(sim->ranks[1].receive_buffers_peak, 2); /* one consumed, one arriving */
  weft_simulation_destroy(sim);
  struct weft_program *program = lower(table, false);
  assert_true(makespan(program, costs, NULL) == 11);
  weft_program_destroy(program);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

static void collectives_take_their_time(void **state) {
  (void)state;
  struct weft_program *program = parse("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n");
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  costs->stages[0].unshard = 5;
  costs->stages[0].reduce_grad = 7;
  costs->stages[0].parameters = 10;
  costs->stages[0].gradients = 4;
  struct weft_simulation *sim = simulate(program, costs, NULL);
  assert_true(sim->events[1].begin == 5 && sim->events[3].begin == 8 && sim->events[3].end == 15);
  assert_true(sim->ranks[0].peak_memory == 10 + 1 + 4);
  assert_true(sim->ranks[0].peak_activation == 1);
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* What is gathered at once is the window; what is reduced is a share again. */
static void windows_bound_parameters(void **state) {
  (void)state;
  for (uint32_t v = 1; v <= 4; v++) {
    struct weft_program *table = generate("Interleaved1F1B", 2, v, 4);
    struct weft_costs *costs = make_costs(1, 1, 1, 0);
    costs->stages[0].parameters = 8;
    costs->stages[0].parameters_sharded = 2;
    costs->stages[0].gradients = 6;
    costs->stages[0].gradients_sharded = 1;
    for (uint32_t window = 1; window <= 5; window++) {
      struct weft_lower_options options = weft_lower_options_default();
      struct weft_program *program = NULL;
      options.unshard_window = window;
      assert_int_equal(weft_lower(NULL, table, &options, &program, NULL), WEFT_OK);
      struct weft_simulation *sim = simulate(program, costs, NULL);
      for (uint32_t r = 0; r < 2; r++) {
        const struct weft_rank_times *times = &sim->ranks[r];
        const uint32_t whole = window < v ? window : v;
        assert_true(times->peak_parameters == 8 * whole + 2 * (v - whole));
        assert_true(times->peak_gradients > v && times->peak_gradients <= 6 * v);
        assert_true(times->peak_memory >= times->peak_parameters + v);
        assert_true(times->peak_memory <=
                    times->peak_parameters + times->peak_gradients + times->peak_activation);
      }
      weft_simulation_destroy(sim);
      weft_program_destroy(program);
    }
    struct weft_simulation *sim = simulate(table, costs, NULL);
    assert_true(sim->ranks[0].peak_parameters == 8 * v); /* never sharded */
    assert_true(sim->ranks[0].peak_gradients == 6 * v);  /* never reduced */
    weft_simulation_destroy(sim);
    weft_costs_destroy(costs);
    weft_program_destroy(table);
  }
}

static void overlaps_take_the_given_time(void **state) {
  (void)state;
  struct weft_program *table = generate("DualPipeV", 4, 2, 8);
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  const double apart = makespan(table, costs, NULL);
  costs->stages[0].overlap_f_b = 2.5;
  assert_true(makespan(table, costs, NULL) < apart);
  costs->stages[0].overlap_f_b = 3;
  assert_true(makespan(table, costs, NULL) == apart);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

/* ---- Closed forms ---- */

static unsigned points_checked;

static void check_closed_forms(const struct weft_schedule_info *info, uint32_t p, uint32_t v,
                               uint32_t m) {
  static const struct weft_unit_costs units[] = {
      {1, 1, 1}, {0.125, 0.125, 0.125}, {10, 12, 7}, {1.1, 2.2, 0.7}, {20, 7, 7}};
  const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
  struct weft_program *table = generate(info->name, p, v, m), *program = lower(table, true);
  for (size_t k = 0; k < sizeof units / sizeof units[0]; k++) {
    const double bubble = info->bubble_of != NULL ? info->bubble_of(&shape, &units[k]) : NAN;
    const double work = m * v * (info->trains ? units[k].f + units[k].i + units[k].w : units[k].f);
    struct weft_costs *costs = make_costs(units[k].f, units[k].i, units[k].w, 0);
    struct weft_simulation *sim = simulate(program, costs, NULL);
    const double independent = time_table(table, &units[k]).makespan;
    check_simulation(sim, costs);
    assert_true(fabs(sim->makespan - independent) < 1e-9 * independent);
    assert_true(makespan(program, costs, NULL) == sim->makespan);
    assert_true(makespan(table, costs, NULL) == sim->makespan);
    if (!isnan(bubble)) {
      /* Exact in ticks: the only rounding is that of the division by them. */
      const double expected = nearbyint((work + bubble) * sim->ticks_per_unit);
      assert_true(sim->makespan * sim->ticks_per_unit == expected ||
                  sim->makespan == expected / sim->ticks_per_unit);
      points_checked++;
    }
    if (info->peak_of != NULL) {
      assert_true(sim->peak_activation == info->peak_of(&shape) * v);
      points_checked++;
    }
    const double steady = period(table, costs);
    assert_true(steady <= sim->makespan * (1 + 1e-12));
    assert_true(steady >= sim->ranks[0].busy * (1 - 1e-12));
    weft_simulation_destroy(sim);
    weft_costs_destroy(costs);
  }
  weft_program_destroy(program);
  weft_program_destroy(table);
}

static void closed_forms_come_out_exactly(void **state) {
  (void)state;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    for (uint32_t p = 1; p <= 6 && !info->fixed; p++) {
      for (uint32_t v = 1; v <= 3; v++) {
        for (uint32_t m = 1; m <= 14; m += 1 + m / 4) {
          const bool serves = v >= info->stages_per_rank_min && v <= info->stages_per_rank_max &&
                              (strcmp(info->name, "DualPipeV") != 0 || m >= 2 * p);
          if (serves) {
            check_closed_forms(info, p, v, m);
          }
        }
      }
    }
  }
  print_message("closed forms: %u points\n", points_checked);
  assert_true(points_checked >= 400);
}

/* ---- Shared channels ---- */

static void check_queues(const char *name, uint32_t p, uint32_t v, uint32_t m, double edge,
                         double rank) {
  struct weft_program *table = generate(name, p, v, m), *program = lower(table, false);
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  struct weft_sim_options options = weft_sim_options_default();
  assert_true(makespan(program, costs, &options) == edge);
  options.channel = WEFT_CHANNEL_PAIR;
  const double pair = makespan(program, costs, &options);
  options.channel = WEFT_CHANNEL_RANK;
  assert_true(makespan(program, costs, &options) == rank);
  assert_true(edge <= pair && pair <= rank);
  struct weft_simulation *sim = simulate(program, costs, &options);
  check_simulation(sim, costs);
  assert_true(sim->makespan == rank);
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
  weft_program_destroy(table);
}

static void one_queue_per_rank_costs_what_it_costs(void **state) {
  (void)state;
  check_queues("LoopedBFS", 8, 2, 32, 213, 405);
  check_queues("Interleaved1F1B", 8, 4, 16, 213, 360);
  check_queues("ZBVZeroBubble", 8, 2, 32, 199, 211);
}

static void a_receive_too_early_stops_a_shared_queue(void **state) {
  (void)state;
  struct weft_program *program = parse("0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  struct weft_sim_options options = weft_sim_options_default();
  struct weft_simulation *sim = NULL;
  struct weft_error error;
  assert_true(makespan(program, costs, &options) == 6);
  options.channel = WEFT_CHANNEL_PAIR;
  assert_int_equal(weft_simulate(NULL, program, costs, &options, &sim, &error), WEFT_ERR_INVALID);
  assert_non_null(strstr(error.message, "rank 1 waits before 1F0"));
  assert_null(sim);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- Properties ---- */

static void a_longer_action_never_shortens_the_whole(void **state) {
  (void)state;
  static const char *const names[] = {"1F1B", "ZBH1", "Interleaved1F1B", "ZBVZeroBubble",
                                      "DualPipeV"};
  for (size_t k = 0; k < 5; k++) {
    const uint32_t v = weft_schedule_find(names[k], NULL)->stages_per_rank_default, n = 3 * v;
    struct weft_program *table = generate(names[k], 3, v, 7);
    struct weft_costs *costs = NULL;
    struct weft_error error;
    assert_int_equal(weft_costs_create(NULL, n, &costs, &error), WEFT_OK);
    const double before = makespan(table, costs, NULL);
    for (uint32_t s = 0; s < n; s++) {
      double *fields[] = {&costs->stages[s].f, &costs->stages[s].i, &costs->stages[s].w,
                          &costs->stages[s].b};
      for (size_t j = 0; j < 4; j++) {
        *fields[j] += 0.3;
        assert_true(makespan(table, costs, NULL) >= before);
        *fields[j] -= 0.3;
      }
    }
    weft_costs_destroy(costs);
    weft_program_destroy(table);
  }
}

static void a_slow_rank_slows_the_whole(void **state) {
  (void)state;
  struct weft_program *table = generate("1F1B", 4, 1, 16);
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  double factors[] = {1, 1, 2, 1};
  struct weft_sim_options options = weft_sim_options_default();
  options.rank_factors = factors;
  struct weft_simulation *sim = simulate(table, costs, &options);
  assert_true(sim->ranks[2].busy == 2 * sim->ranks[0].busy);
  assert_true(sim->makespan > 96);
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

static void jitter_is_seeded(void **state) {
  (void)state;
  struct weft_program *table = generate("1F1B", 4, 1, 16);
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  struct weft_sim_options options = weft_sim_options_default();
  options.jitter = 0.1;
  options.seed = 7;
  const double first = makespan(table, costs, &options);
  assert_true(makespan(table, costs, &options) == first);
  struct weft_simulation *sim = simulate(table, costs, &options);
  assert_true(sim->makespan == first);
  weft_simulation_destroy(sim);
  options.seed = 8;
  assert_true(makespan(table, costs, &options) != first);
  /* Noise in time has no sign; waiting for the latest of several only adds. */
  const double steady = makespan(table, costs, NULL);
  unsigned longer = 0;
  double sum = 0;
  for (options.seed = 0; options.seed < 400; options.seed++) {
    const double varied = makespan(table, costs, &options);
    longer += varied > steady;
    sum += varied;
  }
  assert_true(longer > 250);
  assert_true(sum / 400 > steady && sum / 400 < 1.1 * steady);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

/* 1F1B's rank r idles (p-1) (F+B) in a step; without a barrier the next step
 * begins while the others finish, and nothing is idle once it has settled. */
static void steps_without_a_barrier_overlap(void **state) {
  (void)state;
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  struct weft_program *table = generate("1F1B", 1, 1, 5);
  assert_true(period(table, costs) == 15);
  weft_program_destroy(table);
  table = generate("ZBH1", 4, 1, 8);
  const double steady = period(table, costs);
  assert_true(steady >= 24 && steady <= makespan(table, costs, NULL));
  weft_program_destroy(table);
  weft_costs_destroy(costs);
}

static void the_critical_path_adds_up(void **state) {
  (void)state;
  static const char *const names[] = {"1F1B", "ZBH1", "Interleaved1F1B", "ZBVZeroBubble",
                                      "DualPipeV"};
  for (size_t k = 0; k < 5; k++) {
    for (int lowered = 0; lowered < 2; lowered++) {
      struct weft_program *table = generate(names[k], 4, 0, 9);
      struct weft_program *program = lowered ? lower(table, true) : table;
      struct weft_costs *costs = make_costs(1, 1.5, 0.5, 0.25);
      struct weft_simulation *sim = simulate(program, costs, NULL);
      uint64_t *path = malloc(sim->event_count * sizeof *path), count = 0;
      struct weft_error error;
      assert_int_equal(weft_critical_path(NULL, sim, path, sim->event_count, &count, &error),
                       WEFT_OK);
      assert_true(count > 0 && count <= sim->event_count);
      assert_true(sim->events[path[0]].begin == 0);
      assert_true((double)sim->events[path[count - 1]].end == sim->makespan * sim->ticks_per_unit);
      for (uint64_t j = 1; j < count; j++) {
        const int64_t wait = sim->events[path[j]].begin - sim->events[path[j - 1]].end;
        assert_true(wait == 0 || (double)wait == 0.25 * sim->ticks_per_unit);
      }
      free(path);
      weft_simulation_destroy(sim);
      weft_costs_destroy(costs);
      if (lowered) {
        weft_program_destroy(program);
      }
      weft_program_destroy(table);
    }
  }
}

static void what_cannot_finish_is_refused(void **state) {
  (void)state;
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  static const char *const tables[] = {"0F0,3F0\n2F0,1F0\n", "1F0\n", "0F0\n1RECV_F0,1F0\n",
                                       "0SEND_F0,0F0\n1RECV_F0,1F0\n"};
  for (size_t k = 0; k < sizeof tables / sizeof tables[0]; k++) {
    struct weft_program *program = parse(tables[k]);
    struct weft_simulation *sim = NULL;
    struct weft_error error;
    assert_int_equal(weft_simulate(NULL, program, costs, NULL, &sim, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(error.message, "never finishes"));
    weft_program_destroy(program);
  }
  weft_costs_destroy(costs);
}

/* ---- Receive buffers ---- */

enum { MESSAGES = 400 };

/* Rank 0 makes them in order, rank 1 consumes them in random order within every
 * `window` of them. */
static struct weft_program *shuffled_table(uint32_t window, uint32_t seed) {
  char csv[MESSAGES * 16] = "";
  uint32_t order[MESSAGES];
  size_t used = 0;
  for (uint32_t k = 0; k < MESSAGES; k++) {
    order[k] = k;
    used += (size_t)snprintf(csv + used, sizeof csv - used, "%s0F%u", k > 0 ? "," : "", k);
  }
  for (uint32_t k = 0; k < MESSAGES; k++) {
    const uint32_t first = k / window * window;
    seed = seed * 1664525u + 1013904223u;
    const uint32_t other = first + (seed >> 8) % (k - first + 1), swapped = order[k];
    order[k] = order[other];
    order[other] = swapped;
  }
  for (uint32_t k = 0; k < MESSAGES; k++) {
    used += (size_t)snprintf(csv + used, sizeof csv - used, "%s1F%u", k > 0 ? "," : "\n", order[k]);
  }
  assert_true(used + 2 < sizeof csv);
  csv[used] = '\n';
  return parse(csv);
}

/* As the header defines it, looking at every moment at which one arrives. */
static uint32_t count_buffers(const struct weft_simulation *sim) {
  int64_t taken[MESSAGES] = {0}, freed[MESSAGES] = {0};
  uint32_t peak = 0;
  for (uint64_t e = 0; e < sim->event_count; e++) {
    const struct weft_action *action = &sim->program->actions[sim->events[e].record];
    (action->stage == 0 ? taken : freed)[action->microbatch] = sim->events[e].end;
  }
  for (uint32_t k = 0; k < MESSAGES; k++) {
    uint32_t held = 0;
    for (uint32_t j = 0; j < MESSAGES; j++) {
      held += taken[j] <= taken[k] && freed[j] > taken[k];
    }
    peak = held > peak ? held : peak;
  }
  return peak;
}

static void buffers_are_counted_in_any_order(void **state) {
  (void)state;
  static const uint32_t windows[] = {1, 5, 60, 200, 400};
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  for (size_t k = 0; k < 5 * sizeof windows / sizeof windows[0]; k++) {
    struct weft_program *table = shuffled_table(windows[k / 5], (uint32_t)k);
    const double factors[] = {1, 0.25 * (double)(k % 5 + 1)};
    struct weft_sim_options options = weft_sim_options_default();
    options.rank_factors = factors;
    struct weft_simulation *sim = simulate(table, costs, &options);
    assert_int_equal(sim->ranks[1].receive_buffers_peak, count_buffers(sim));
    assert_int_equal(sim->ranks[0].receive_buffers_peak, 0);
    weft_simulation_destroy(sim);
    weft_program_destroy(table);
  }
  weft_costs_destroy(costs);
}

/* ---- Without events ---- */

static size_t peak_of(const struct weft_program *program, const struct weft_costs *costs,
                      bool no_events) {
  struct weft_sim_options options = weft_sim_options_default();
  struct weft_simulation *sim = NULL;
  struct weft_error error;
  struct test_memory memory;
  options.no_events = no_events;
  test_memory_init(&memory);
  assert_int_equal(weft_simulate(&memory.allocator, program, costs, &options, &sim, &error),
                   WEFT_OK);
  weft_simulation_destroy(sim);
  assert_int_equal(memory.blocks, 0);
  return memory.bytes_peak;
}

static void without_events_it_needs_little_memory(void **state) {
  (void)state;
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  struct weft_program *table = generate("Interleaved1F1B", 16, 2, 256);
  struct weft_program *program = lower(table, true);
  const size_t events = (size_t)program->action_count * sizeof(struct weft_event);
  const size_t lean = peak_of(program, costs, true);
  assert_true(lean + events <= peak_of(program, costs, false));
  assert_true(lean < 4 * (size_t)program->action_count);
  weft_program_destroy(program);
  weft_program_destroy(table);
  weft_costs_destroy(costs);
}

/* Transfers wait for their channel here, which takes memory when it is seen. */
static void every_allocation_may_fail(void **state) {
  (void)state;
  struct weft_program *table = generate("1F1B", 3, 1, 5);
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  struct weft_sim_options options = weft_sim_options_default();
  costs->hop.bytes = 3;
  costs->hop.bytes_per_unit = 1;
  for (int k = 0; k < 2; k++) {
    enum weft_status status = WEFT_ERR_MEMORY;
    uint64_t failed = 0;
    options.no_events = k == 1;
    while (status == WEFT_ERR_MEMORY) {
      struct weft_simulation *sim = NULL;
      struct weft_error error;
      struct test_memory memory;
      test_memory_init(&memory);
      memory.fail_at = ++failed;
      status = weft_simulate(&memory.allocator, table, costs, &options, &sim, &error);
      assert_true(status == WEFT_OK || sim == NULL);
      weft_simulation_destroy(sim);
      assert_int_equal(memory.blocks, 0);
    }
    assert_int_equal(status, WEFT_OK);
    assert_true(failed > 4);
  }
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

static void what_needs_events_says_so(void **state) {
  (void)state;
  struct weft_program *table = generate("1F1B", 2, 1, 2);
  struct weft_costs *costs = make_costs(1, 1, 1, 0);
  struct weft_sim_options options = weft_sim_options_default();
  struct weft_simulation *sim = NULL;
  struct weft_text text = {0};
  struct weft_error error;
  uint64_t path[8], count = 77;
  options.no_events = true;
  assert_int_equal(weft_simulate(NULL, table, costs, &options, &sim, &error), WEFT_OK);
  const struct weft_picture picture = {"1F1B", sim, costs, NULL};
  assert_int_equal(weft_critical_path(NULL, sim, path, 8, &count, &error), WEFT_ERR_USAGE);
  assert_int_equal(count, 77);
  assert_non_null(strstr(error.message, "no events"));
  assert_int_equal(weft_render_text(&picture, NULL, &text, &error), WEFT_ERR_USAGE);
  assert_int_equal(weft_render_svg(&picture, NULL, &text, &error), WEFT_ERR_USAGE);
  assert_int_equal(weft_render_html(&picture, 1, NULL, &text, &error), WEFT_ERR_USAGE);
  assert_int_equal(weft_render_trace(&picture, NULL, &text, &error), WEFT_ERR_USAGE);
  assert_int_equal(text.size, 0);
  weft_memory_curve(sim, costs, 1, NULL, 0, &count);
  assert_int_equal(count, 0);
  weft_simulation_destroy(sim);
  weft_costs_destroy(costs);
  weft_program_destroy(table);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_by_two_by_hand),
      cmocka_unit_test(four_by_four_by_hand),
      cmocka_unit_test(a_busy_channel_holds_transfers_up),
      cmocka_unit_test(collectives_take_their_time),
      cmocka_unit_test(windows_bound_parameters),
      cmocka_unit_test(overlaps_take_the_given_time),
      cmocka_unit_test(closed_forms_come_out_exactly),
      cmocka_unit_test(one_queue_per_rank_costs_what_it_costs),
      cmocka_unit_test(a_receive_too_early_stops_a_shared_queue),
      cmocka_unit_test(a_longer_action_never_shortens_the_whole),
      cmocka_unit_test(a_slow_rank_slows_the_whole),
      cmocka_unit_test(jitter_is_seeded),
      cmocka_unit_test(steps_without_a_barrier_overlap),
      cmocka_unit_test(the_critical_path_adds_up),
      cmocka_unit_test(what_cannot_finish_is_refused),
      cmocka_unit_test(buffers_are_counted_in_any_order),
      cmocka_unit_test(without_events_it_needs_little_memory),
      cmocka_unit_test(every_allocation_may_fail),
      cmocka_unit_test(what_needs_events_says_so),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
