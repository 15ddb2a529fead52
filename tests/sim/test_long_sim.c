/* A pipeline of 1,024 ranks, two stages each and 4,096 microbatches, with
 * communication: it is simulated within 4 GiB, with the closed form's makespan,
 * and every rank's time adds up. How long it takes is `weft bench sim --large`'s
 * business; here it must only not hang. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_memory.h"

#define GIB (UINT64_C(1) << 30)

static const struct weft_shape shape = {.ranks = 1024, .stages_per_rank = 2, .microbatches = 4096};

/* All of it through `memory`. */
static struct weft_program *make(struct test_memory *memory, const char *name) {
  struct weft_program *table = NULL, *program = NULL;
  struct weft_error error;
  if (weft_generate(&memory->allocator, name, &shape, &table, &error) < 0 ||
      weft_lower(&memory->allocator, table, NULL, &program, &error) < 0) {
    fail_msg("%s", error.message);
  }
  weft_program_destroy(table);
  return program;
}

static void check_ranks(const struct weft_simulation *simulation) {
  for (uint32_t r = 0; r < shape.ranks; r++) {
    const struct weft_rank_times *times = &simulation->ranks[r];
    double sum = times->busy;
    for (unsigned cause = 0; cause < WEFT_IDLE_CAUSES; cause++) {
      sum += times->idle_by_cause[cause];
    }
    assert_true(times->busy == 3.0 * shape.stages_per_rank * shape.microbatches);
    assert_true(fabs(sum - simulation->makespan) < 1e-6);
  }
}

/* Every action has an event, of its rank, and compute is in order. */
static void check_events(const struct weft_simulation *simulation) {
  const struct weft_program *program = simulation->program;
  assert_int_equal(simulation->event_count, program->action_count);
  for (uint32_t r = 0; r < shape.ranks; r++) {
    int64_t clock = 0;
    for (uint64_t e = simulation->event_begin[r]; e < simulation->event_begin[r + 1]; e++) {
      const struct weft_event *event = &simulation->events[e];
      const enum weft_op_kind kind = weft_op_info(program->actions[event->record].op)->kind;
      if (event->rank != r || event->end < event->begin) {
        fail_msg("event %llu", (unsigned long long)e);
      }
      if (kind == WEFT_KIND_COMPUTE) {
        if (event->begin < clock) {
          fail_msg("event %llu begins too early", (unsigned long long)e);
        }
        clock = event->end;
      }
    }
  }
}

static void check(const char *name) {
  struct test_memory memory;
  struct weft_costs *costs = NULL;
  struct weft_simulation *simulation = NULL;
  struct weft_error error;
  double makespan;
  test_memory_init(&memory);
  struct weft_program *program = make(&memory, name);
  assert_true(program->action_count > 50000000);
  assert_int_equal(weft_costs_create(&memory.allocator, 1, &costs, &error), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  memory.bytes_peak = memory.bytes;
  if (weft_makespan(&memory.allocator, program, costs, NULL, &makespan, &error) < 0 ||
      weft_simulate(&memory.allocator, program, costs, NULL, &simulation, &error) < 0) {
    fail_msg("%s: %s", name, error.message);
    return;
  }
  assert_true(memory.bytes_peak < 4 * GIB);
  assert_true(makespan == simulation->makespan);
  const struct weft_unit_costs unit = {.f = 1, .i = 1, .w = 1};
  const double bubble = weft_schedule_find(name, NULL)->bubble_of(&shape, &unit);
  assert_true(makespan == 3.0 * shape.stages_per_rank * shape.microbatches + bubble);
  check_ranks(simulation);
  check_events(simulation);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
  assert_int_equal(memory.blocks, 0);
}

static void interleaved_zero_bubble(void **state) {
  (void)state;
  check("InterleavedZeroBubble");
}

static void interleaved_1f1b(void **state) {
  (void)state;
  check("Interleaved1F1B");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(interleaved_zero_bubble),
      cmocka_unit_test(interleaved_1f1b),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
