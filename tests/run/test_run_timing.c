/* The executor against the simulator: on the loopback transport, with stages that
 * take virtual time, every event of every rank has the simulated times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/run.h>
#include <weft/weft.h>

#include "support_pipelines.h"

/* Whole numbers of ticks. */
struct times {
  int64_t f, i, w, b, latency, occupied;
};

static void simulate(const struct weft_program *program, const struct times *times,
                     const int64_t *factors, struct weft_simulation **out) {
  struct weft_error error;
  struct weft_costs *costs;
  assert_int_equal(weft_costs_create(NULL, program->stage_count, &costs, &error), WEFT_OK);
  for (uint32_t s = 0; s < program->stage_count; s++) {
    struct weft_stage_costs *stage = &costs->stages[s];
    stage->f = (double)(times->f * factors[s]);
    stage->i = (double)(times->i * factors[s]);
    stage->w = (double)(times->w * factors[s]);
    stage->b = (double)(times->b * factors[s]);
  }
  costs->hop.latency = (double)times->latency;
  costs->hop.bytes = (double)times->occupied;
  costs->hop.bytes_per_unit = times->occupied > 0 ? 1 : 0;
  assert_int_equal(weft_simulate(NULL, program, costs, NULL, out, &error), WEFT_OK);
  weft_costs_destroy(costs);
}

static void make_stages(struct weft_cost_stage *stages, struct weft_stage **bases, uint32_t count,
                        const struct times *times, const int64_t *factors) {
  for (uint32_t s = 0; s < count; s++) {
    weft_cost_stage_init(&stages[s], WEFT_COST_VIRTUAL);
    stages[s].times[WEFT_OP_F] = times->f * factors[s];
    stages[s].times[WEFT_OP_I] = times->i * factors[s];
    stages[s].times[WEFT_OP_W] = times->w * factors[s];
    stages[s].times[WEFT_OP_B] = times->b * factors[s];
    bases[s] = &stages[s].stage;
  }
}

static int64_t first_begin(const struct weft_event *events, uint64_t count) {
  int64_t first = INT64_MAX;
  for (uint64_t k = 0; k < count; k++) {
    first = events[k].begin < first ? events[k].begin : first;
  }
  return first;
}

static void compare(const struct weft_program *program, const struct weft_simulation *sim,
                    const struct weft_event *events, uint64_t count, int64_t origin,
                    const char *what) {
  assert_int_equal(count, sim->event_count);
  for (uint64_t k = 0; k < count; k++) {
    const struct weft_event *a = &events[k], *b = &sim->events[k];
    const double ticks = sim->ticks_per_unit;
    if (a->rank != b->rank || a->record != b->record ||
        (double)(a->begin - origin) * ticks != (double)b->begin ||
        (double)(a->end - origin) * ticks != (double)b->end) {
      char cell[64];
      fail_msg("%s: rank %u, %s: ran %ld..%ld, simulated %g..%g", what, a->rank,
               weft_action_format(&program->actions[a->record], cell, sizeof cell),
               (long)(a->begin - origin), (long)(a->end - origin), (double)b->begin / ticks,
               (double)b->end / ticks);
    }
  }
}

static void run_case(const char *schedule, uint32_t p, uint32_t v, uint32_t m,
                     const struct times *times, uint64_t seed) {
  struct weft_error error;
  struct weft_named_source source = {.schedule = schedule, .ranks = p, .stages_per_rank = v};
  struct weft_program *program;
  if (weft_source_named(&source, m, true, &program, &error) != WEFT_OK) {
    fail_msg("%s p=%u v=%u m=%u: %s", schedule, p, v, m, error.message);
  }
  const uint32_t n = program->stage_count;
  struct weft_cost_stage *stages = calloc(n, sizeof *stages);
  struct weft_stage **bases = calloc(n, sizeof(struct weft_stage *));
  int64_t *factors = calloc(n, sizeof *factors);
  for (uint32_t s = 0; s < n; s++) {
    factors[s] = seed == 0 ? 1 : 1 + (int64_t)((s * 7 + seed) % 5);
  }
  make_stages(stages, bases, n, times, factors);
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {1}}, .needs_grad = true}}};
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = &source;
  options.microbatch_count = m;
  options.stages = bases;
  options.stage_count = n;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.scale_grads = false;
  options.stall_limit = 0;
  options.forward_ahead = 0;
  struct pipelines pipelines;
  pipelines_open(&pipelines, NULL,
                 &(struct weft_comm_options){.rank_count = p,
                                             .seed = seed,
                                             .latency_ticks = times->latency,
                                             .occupied_ticks = times->occupied});
  const enum weft_status created = pipelines_create(&pipelines, NULL, &options, &error);
  if (created < 0) {
    fail_msg("%s p=%u v=%u m=%u: %s", schedule, p, v, m, error.message);
  }
  char what[96];
  snprintf(what, sizeof what, "%s p=%u v=%u m=%u", schedule, p, v, m);
  struct weft_simulation *sim;
  simulate(program, times, factors, &sim);
  for (int step = 0; step < 2; step++) { /* the second one starts where the first ended */
    const struct weft_batch batch = {.microbatch_count = m};
    if (pipelines_step(&pipelines, true, &batch, 1, &error) < 0) {
      fail_msg("%s: %s", what, error.message);
    }
    uint64_t count;
    struct weft_event *events = pipelines_events(&pipelines, &count);
    compare(program, sim, events, count, first_begin(events, count), what);
    free(events);
  }
  weft_simulation_destroy(sim);
  pipelines_close(&pipelines);
  weft_program_destroy(program);
  free(factors);
  free(bases);
  free(stages);
}

/* Under AddressSanitizer one of the three times has to do, each in its turn. */
#if defined(__SANITIZE_ADDRESS__)
enum { ONE_OF = 3 };
#else
enum { ONE_OF = 1 };
#endif

static void test_every_schedule(void **state) {
  (void)state;
  static const struct times times[] = {{1, 1, 1, 2, 0, 0}, {3, 5, 2, 7, 2, 0}, {4, 6, 5, 11, 1, 3}};
  uint32_t cases = 0, drawn = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (info->fixed) {
      continue;
    }
    for (uint32_t p = 1; p <= 8; p += p < 4 ? 1 : 2) {
      for (uint32_t v = 1; v <= 4; v++) {
        for (uint32_t m = 1; m <= 24; m += m < 8 ? 1 : 8) {
          const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
          struct weft_program *table;
          if (weft_generate(NULL, info->name, &shape, &table, NULL) < 0) {
            continue;
          }
          weft_program_destroy(table);
          for (size_t t = 0; t < sizeof times / sizeof times[0]; t++) {
            drawn++;
            if ((drawn + drawn / 3) % ONE_OF == 0) {
              run_case(info->name, p, v, m, &times[t], t == 0 ? 0 : cases);
              cases++;
            }
          }
        }
      }
    }
  }
  print_message("%u cases, two steps each, every event equal\n", cases);
  assert_true(cases * ONE_OF > 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_schedule)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
