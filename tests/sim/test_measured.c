/* Measured timelines: the simulator's own events give the simulator's own
 * numbers, on every schedule; late and early events, causes, missing ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "support_memory.h"

static struct weft_program *parse(const char *csv) {
  struct weft_program *program = NULL;
  struct weft_error error;
  if (weft_program_parse(NULL, csv, strlen(csv), "test", &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

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

/* Different for every stage. */
static struct weft_costs *make_costs(uint32_t stages, uint64_t seed, double hop) {
  struct weft_costs *costs = NULL;
  struct weft_error error;
  struct weft_random random = {.state = seed};
  assert_int_equal(weft_costs_create(NULL, stages, &costs, &error), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  for (uint32_t s = 0; s < stages; s++) {
    struct weft_stage_costs *stage = &costs->stages[s];
    stage->f = 1 + (double)weft_random_below(&random, 30) / 10;
    stage->i = 1 + (double)weft_random_below(&random, 30) / 10;
    stage->w = (double)weft_random_below(&random, 20) / 10;
    stage->b = stage->i + stage->w;
    stage->overlap_f_b = weft_random_below(&random, 2) == 0 ? -1 : 4.5;
    stage->activation = 0.1 + (double)weft_random_below(&random, 9) / 7;
    stage->activation_after_i = stage->activation * 0.3;
    stage->unshard = (double)weft_random_below(&random, 4);
    stage->reduce_grad = (double)weft_random_below(&random, 3);
    stage->parameters = 5;
    stage->gradients = 2.5;
    stage->parameters_sharded = 0.7;
    stage->gradients_sharded = 0.3;
  }
  costs->hop = (struct weft_hop_costs){
      .latency = hop / 2, .bytes = hop * 3, .bytes_per_unit = hop > 0 ? 2 : 0};
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

static struct weft_simulation *measure(const struct weft_program *program,
                                       const struct weft_costs *costs,
                                       const struct weft_event *events, uint64_t count,
                                       double unit) {
  struct weft_simulation *simulation = NULL;
  struct weft_error error;
  if (weft_simulation_measured(NULL, program, costs, events, count, unit, &simulation, &error) !=
      WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return simulation;
}

static void assert_exact(double a, double b, const char *what, uint32_t rank) {
  if (a != b) {
    fail_msg("%s of rank %u: %.17g, expected %.17g", what, rank, a, b);
  }
}

/* `causes`: also how idle time is put down. */
static void assert_same(const struct weft_simulation *a, const struct weft_simulation *b,
                        bool causes) {
  assert_ptr_equal(a->program, b->program);
  assert_exact(a->ticks_per_unit, b->ticks_per_unit, "ticks", 0);
  assert_exact(a->makespan, b->makespan, "makespan", 0);
  assert_exact(a->span, b->span, "span", 0);
  assert_exact(a->bubble_ratio, b->bubble_ratio, "bubble", 0);
  assert_exact(a->span_bubble_ratio, b->span_bubble_ratio, "span bubble", 0);
  assert_exact(a->peak_activation, b->peak_activation, "peak", 0);
  for (uint32_t r = 0; r < a->program->rank_count; r++) {
    const struct weft_rank_times *x = &a->ranks[r], *y = &b->ranks[r];
    assert_exact(x->busy, y->busy, "busy", r);
    assert_exact(x->idle, y->idle, "idle", r);
    assert_exact(x->first_start, y->first_start, "first start", r);
    assert_exact(x->last_end, y->last_end, "last end", r);
    assert_exact(x->span, y->span, "span", r);
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES && causes; cause++) {
      assert_exact(x->idle_by_cause[cause], y->idle_by_cause[cause],
                   weft_idle_cause_name((enum weft_idle_cause)cause), r);
    }
    assert_exact(x->peak_activation, y->peak_activation, "peak activation", r);
    assert_exact(x->peak_memory, y->peak_memory, "peak memory", r);
    assert_exact(x->peak_parameters, y->peak_parameters, "peak parameters", r);
    assert_exact(x->peak_gradients, y->peak_gradients, "peak gradients", r);
    assert_exact(x->peak_at, y->peak_at, "peak at", r);
    assert_int_equal(x->receive_buffers_peak, y->receive_buffers_peak);
  }
  assert_int_equal(a->event_count, b->event_count);
  assert_memory_equal(a->events, b->events, a->event_count * sizeof a->events[0]);
  assert_memory_equal(a->event_begin, b->event_begin,
                      (a->program->rank_count + 1) * sizeof a->event_begin[0]);
}

/* ---- The simulator's own events ---- */

static void check_program(const struct weft_program *program, const struct weft_costs *costs,
                          const struct weft_sim_options *options, bool causes) {
  struct weft_simulation *expected = simulate(program, costs, options);
  struct weft_simulation *found =
      measure(program, costs, expected->events, expected->event_count, expected->ticks_per_unit);
  assert_same(found, expected, causes);
  weft_simulation_destroy(expected);
  weft_simulation_destroy(found);
}

static void check_table(const struct weft_program *table, uint64_t seed) {
  for (unsigned hop = 0; hop < 3; hop++) {
    struct weft_costs *costs = make_costs(table->stage_count, seed + hop, hop * 0.7);
    struct weft_sim_options options = weft_sim_options_default();
    if (hop == 0) {
      check_program(table, costs, &options, true);
    }
    if (table->level == WEFT_LEVEL_COMPUTE) {
      for (unsigned all = 0; all < 2; all++) {
        struct weft_program *program = lower(table, all == 1);
        check_program(program, costs, &options, true);
        options.jitter = 0.2;
        options.seed = seed;
        check_program(program, costs, &options, true);
        options.channel = WEFT_CHANNEL_PAIR;
        check_program(program, costs, &options, false);
        options = weft_sim_options_default();
        weft_program_destroy(program);
      }
    }
    weft_costs_destroy(costs);
  }
}

static void test_simulated(void **state) {
  (void)state;
  unsigned checked = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    for (uint32_t p = 1; p <= 4; p++) {
      for (uint32_t v = 1; v <= 3; v++) {
        for (uint32_t m = 1; m <= 9; m += 2) {
          struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m + p % 2};
          struct weft_program *table = NULL;
          if (info->fixed) {
            shape = (struct weft_shape){.ranks = 0};
          }
          if (weft_generate(NULL, info->name, &shape, &table, NULL) != WEFT_OK) {
            continue;
          }
          check_table(table, k * 1000 + p * 100 + v * 10 + m);
          weft_program_destroy(table);
          checked++;
        }
      }
    }
  }
  assert_true(checked > 300);
}

/* Another begin, other orders of ranks, another unit. */
static void test_shifted(void **state) {
  (void)state;
  struct weft_program *table = parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  struct weft_program *program = lower(table, true);
  struct weft_costs *costs = make_costs(2, 3, 0.5);
  struct weft_simulation *expected = simulate(program, costs, NULL);
  struct weft_event *events = calloc(expected->event_count, sizeof *events);
  assert_non_null(events);
  const uint64_t second = expected->event_count - expected->event_begin[1];
  memcpy(events, expected->events + expected->event_begin[1], second * sizeof *events);
  memcpy(events + second, expected->events, expected->event_begin[1] * sizeof *events);
  for (uint64_t i = 0; i < expected->event_count; i++) {
    events[i].begin -= 123456789;
    events[i].end -= 123456789;
  }
  struct weft_simulation *found =
      measure(program, costs, events, expected->event_count, expected->ticks_per_unit);
  assert_same(found, expected, true);
  weft_simulation_destroy(found);
  found = measure(program, costs, events, expected->event_count, expected->ticks_per_unit * 4);
  assert_true(found->makespan == expected->makespan / 4);
  assert_true(found->bubble_ratio == expected->bubble_ratio);
  weft_simulation_destroy(found);
  weft_simulation_destroy(expected);
  free(events);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
  weft_program_destroy(table);
}

/* ---- Real events ---- */

/* Two ranks, one microbatch; times by hand. */
static void test_by_hand(void **state) {
  (void)state;
  struct weft_program *program = parse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  struct weft_costs *costs = make_costs(2, 1, 0);
  static const struct weft_event events[] = {
      {0, 0, 1000, 1010}, {0, 1, 1012, 1015}, {0, 2, 1036, 1040},
      {0, 3, 1041, 1060}, {1, 4, 990, 1016}, /* posted before all else */
      {1, 5, 1017, 1025}, {1, 6, 1026, 1035}, {1, 7, 1036, 1040},
  };
  struct weft_simulation *found = measure(program, costs, events, 8, 10);
  const struct weft_rank_times *zero = &found->ranks[0], *one = &found->ranks[1];
  assert_exact(found->makespan, 6.0, "makespan", 0);
  assert_exact(zero->busy, 2.9, "busy", 0);
  assert_exact(zero->first_start, 0, "first", 0);
  assert_exact(zero->idle_by_cause[WEFT_IDLE_GRADIENT], 3.1, "gradient", 0);
  assert_exact(one->busy, 1.7, "busy", 1);
  assert_exact(one->first_start, 1.7, "first", 1);
  assert_exact(one->idle_by_cause[WEFT_IDLE_START], 1.7, "start", 1);
  assert_exact(one->idle_by_cause[WEFT_IDLE_GRADIENT], 0.1, "a delay before the backward", 1);
  assert_exact(one->idle_by_cause[WEFT_IDLE_END], 2.5, "end", 1);
  assert_exact(one->last_end, 3.5, "last end", 1);
  assert_int_equal(found->events[4].begin, 0);
  assert_int_equal(found->events[4].end, 16);
  weft_simulation_destroy(found);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* Gathering parameters takes nearly no time in a run, and none in its prediction: what the first
 * compute waits for is the start in both, unless the parameters come last. */
static void test_the_start_has_one_cause(void **state) {
  (void)state;
  struct weft_program *program =
      parse("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0\n1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0\n");
  struct weft_costs *costs = make_costs(2, 1, 0);
  struct weft_event events[] = {
      {0, 0, 0, 1}, {0, 1, 1, 11},  {0, 2, 11, 12}, {0, 3, 33, 34}, {0, 4, 34, 54},
      {1, 5, 2, 3}, {1, 6, 11, 12}, {1, 7, 12, 22}, {1, 8, 22, 33}, {1, 9, 33, 34},
  };
  struct weft_simulation *found = measure(program, costs, events, 10, 1);
  assert_exact(found->ranks[0].idle_by_cause[WEFT_IDLE_UNSHARD], 1, "parameters", 0);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_START], 12, "start", 1);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_FORWARD], 0, "activation", 1);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_UNSHARD], 0, "parameters", 1);
  weft_simulation_destroy(found);
  events[5].end = 12; /* and the activation was there */
  events[6].end = 11;
  found = measure(program, costs, events, 10, 1);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_START], 2, "start", 1);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_UNSHARD], 10, "parameters", 1);
  weft_simulation_destroy(found);
  struct weft_error error;
  for (unsigned k = 0; k < 2; k++) { /* predicted, without and with a time for it */
    costs->stages[0].unshard = costs->stages[1].unshard = 0.001 * k;
    assert_int_equal(weft_simulate(NULL, program, costs, NULL, &found, &error), WEFT_OK);
    assert_true(found->ranks[1].idle_by_cause[WEFT_IDLE_START] > 0);
    assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_FORWARD], 0, "activation", 1);
    weft_simulation_destroy(found);
  }
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* The second message queues behind the first. */
static void test_channel(void **state) {
  (void)state;
  struct weft_program *program = parse("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1RECV_F1,1F0,1F1\n");
  struct weft_costs *costs = make_costs(2, 1, 0);
  struct weft_event events[] = {
      {0, 0, 0, 10},  {0, 1, 10, 40}, {0, 2, 10, 20}, {0, 3, 40, 70},
      {1, 4, 10, 40}, {1, 5, 40, 70}, {1, 6, 40, 45}, {1, 7, 70, 75},
  };
  struct weft_simulation *found = measure(program, costs, events, 8, 1);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_CHANNEL], 20, "channel", 1);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_FORWARD], 5, "forward", 1);
  weft_simulation_destroy(found);
  /* It was only sent late: nobody else had the channel. */
  events[3].begin = events[5].begin = 60;
  events[1].end = events[4].end = 15;
  found = measure(program, costs, events, 8, 1);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_CHANNEL], 0, "channel", 1);
  assert_exact(found->ranks[1].idle_by_cause[WEFT_IDLE_FORWARD], 25, "forward", 1);
  weft_simulation_destroy(found);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* Random delays everywhere: whatever was measured, idle time and busy time add up,
 * and everything can be drawn. */
static void check_delayed(const struct weft_program *program, const struct weft_costs *costs,
                          uint64_t seed) {
  struct weft_simulation *predicted = simulate(program, costs, NULL);
  struct weft_random random = {.state = seed};
  struct weft_event *events = calloc(predicted->event_count, sizeof *events);
  assert_non_null(events);
  memcpy(events, predicted->events, predicted->event_count * sizeof *events);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    int64_t delay = (int64_t)weft_random_below(&random, 50);
    for (uint64_t i = predicted->event_begin[r]; i < predicted->event_begin[r + 1]; i++) {
      const bool part = i > 0 && program->actions[events[i].record].op != WEFT_OP_RECV_F &&
                        events[i].begin == events[i - 1].begin - delay;
      delay += part ? 0 : (int64_t)weft_random_below(&random, 9);
      events[i].begin += delay;
      events[i].end += delay;
    }
  }
  struct weft_simulation *found =
      measure(program, costs, events, predicted->event_count, predicted->ticks_per_unit);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const struct weft_rank_times *times = &found->ranks[r];
    double idle = 0;
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      assert_true(times->idle_by_cause[cause] >= 0);
      idle += times->idle_by_cause[cause];
    }
    assert_true(idle - times->idle < 1e-6 && times->idle - idle < 1e-6);
    assert_true(times->first_start >= 0 && times->last_end <= found->makespan);
  }
  const struct weft_picture pictures[2] = {{"measured", found, costs, NULL},
                                           {"predicted", predicted, costs, NULL}};
  struct weft_text text = {.allocator = NULL};
  struct weft_error error;
  assert_int_equal(weft_render_html(pictures, 2, NULL, &text, &error), WEFT_OK);
  assert_int_equal(weft_render_svg(pictures, NULL, &text, &error), WEFT_OK);
  assert_int_equal(weft_render_text(pictures, NULL, &text, &error), WEFT_OK);
  assert_int_equal(weft_render_trace(pictures, NULL, &text, &error), WEFT_OK);
  weft_text_finish(&text);
  weft_simulation_destroy(found);
  weft_simulation_destroy(predicted);
  free(events);
}

static void test_delayed(void **state) {
  (void)state;
  static const char *const names[] = {"1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"};
  for (size_t k = 0; k < 4; k++) {
    const struct weft_shape shape = {
        .ranks = 2, .stages_per_rank = k == 0 ? 1 : 2, .microbatches = 6};
    struct weft_program *table = NULL;
    struct weft_error error;
    if (weft_generate(NULL, names[k], &shape, &table, &error) != WEFT_OK) {
      fail_msg("%s", error.message);
    }
    struct weft_program *program = lower(table, true);
    struct weft_costs *costs = make_costs(program->stage_count, k, 0.7);
    for (uint64_t seed = 0; seed < 5; seed++) {
      check_delayed(program, costs, seed);
    }
    weft_costs_destroy(costs);
    weft_program_destroy(program);
    weft_program_destroy(table);
  }
}

/* ---- What is refused ---- */

static void check_refused(const struct weft_program *program, const struct weft_costs *costs,
                          const struct weft_event *events, uint64_t count, double unit,
                          const char *expected) {
  struct weft_simulation *out = NULL;
  struct weft_error error = {.message = ""};
  assert_int_equal(
      weft_simulation_measured(NULL, program, costs, events, count, unit, &out, &error),
      WEFT_ERR_USAGE);
  assert_string_equal(error.message, expected);
  assert_true(error.hint[0] != '\0');
  assert_null(out);
}

static void test_refused(void **state) {
  (void)state;
  struct weft_program *program = parse("0F0,0SEND_F0\n1RECV_F0,,1F0\n");
  struct weft_costs *costs = make_costs(2, 1, 0);
  struct weft_event events[] = {{0, 0, 0, 10}, {0, 1, 10, 11}, {1, 2, 10, 11}, {1, 4, 11, 20}};
  weft_simulation_destroy(measure(program, costs, events, 4, 1));
  check_refused(program, costs, events, 3, 1,
                "rank 1 has 1 events; expected 2, one for each of its actions");
  check_refused(program, costs, events + 1, 3, 1,
                "rank 0 has 1 events; expected 2, one for each of its actions");
  check_refused(program, costs, NULL, 0, 1,
                "rank 0 has 0 events; expected 2, one for each of its actions");
  check_refused(program, costs, events, 4, 0, "there are 0 ticks to a unit; expected more than 0");
  events[3].record = 3;
  check_refused(program, costs, events, 4, 1,
                "rank 1 has an event of record 3 (); expected record 4 (1F0)");
  events[3].record = 99;
  check_refused(program, costs, events, 4, 1,
                "rank 1 has an event of record 99 (beyond the program); expected record 4 (1F0)");
  events[3] = (struct weft_event){1, 4, 11, 10};
  check_refused(program, costs, events, 4, 1, "rank 1 has an event of record 4 from 11 to 10");
  events[3] = (struct weft_event){1, 4, INT64_MIN, INT64_MAX};
  check_refused(program, costs, events, 4, 1,
                "rank 1 has an event of record 4 from -9223372036854775808 to "
                "9223372036854775807");
  events[3] = (struct weft_event){2, 4, 11, 20};
  check_refused(program, costs, events, 4, 1, "event 3 is of rank 2; the program has 2 ranks");
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

static void test_memory(void **state) {
  (void)state;
  struct weft_program *program = parse("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  struct weft_costs *costs = make_costs(2, 1, 0.5);
  struct weft_simulation *expected = simulate(program, costs, NULL);
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t n = 1; status == WEFT_ERR_MEMORY; n++) {
    struct test_memory memory;
    struct weft_simulation *out = NULL;
    struct weft_error error = {.status = WEFT_OK};
    test_memory_init(&memory);
    memory.fail_at = n;
    status = weft_simulation_measured(&memory.allocator, program, costs, expected->events,
                                      expected->event_count, 1, &out, &error);
    assert_true(status == WEFT_OK ? out != NULL : out == NULL && error.status == status);
    weft_simulation_destroy(out);
    assert_int_equal(memory.blocks, 0);
    assert_true(n < 200);
  }
  assert_int_equal(status, WEFT_OK);
  weft_simulation_destroy(expected);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_simulated),
      cmocka_unit_test(test_shifted),
      cmocka_unit_test(test_by_hand),
      cmocka_unit_test(test_channel),
      cmocka_unit_test(test_the_start_has_one_cause),
      cmocka_unit_test(test_delayed),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
