/* Drawing a trial; see support_trial.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_draft.h"
#include "support_linear_stage.h"
#include "support_random_program.h"
#include "support_trial.h"

enum {
  STALL_LIMIT = 1000000, /* ticks; far above what any sound trial waits */
  ROUNDS_MAX = 200
};

const char *trial_fault_name(enum trial_fault fault) {
  static const char *const names[FAULT_COUNT] = {
      "no fault",         "messages delayed", "slow within the limit", "slow beyond the limit",
      "stage too slow",   "damaged header",   "damaged payload",       "death",
      "frozen",           "absent",           "stage fails",           "stage never ends",
      "allocation fails", "... silently",     "memory gone",           "another configuration",
      "another program",  "interrupted",      "other microbatches"};
  return names[fault];
}

/* 1 ... 2^bits - 1, small ones as likely as large ones. */
static uint64_t draw_count(struct weft_random *random, uint32_t bits) {
  return 1 + weft_random_below(random, UINT32_C(1) << (1 + weft_random_below(random, bits)));
}

static int64_t draw_ticks(struct weft_random *random, uint32_t max) {
  return random_chance(random, 50) ? 0 : weft_random_below(random, max + 1);
}

/* ---- Programs ---- */

static bool try_schedule(struct trial_setup *setup, struct weft_random *random) {
  const struct weft_schedule_info *info =
      weft_schedule_at(weft_random_below(random, (uint32_t)weft_schedule_count()));
  setup->lower = weft_lower_options_default();
  setup->lower.merge_bw = random_chance(random, 30);
  setup->lower.unshard = random_chance(random, 40);
  setup->lower.unshard_window = 1 + weft_random_below(random, 3);
  setup->named = (struct weft_named_source){.schedule = info->name,
                                            .ranks = 1 + weft_random_below(random, TRIAL_RANKS_MAX),
                                            .stages_per_rank = weft_random_below(random, 5),
                                            .lower = &setup->lower};
  const uint32_t m = 1 + weft_random_below(random, 8);
  if (weft_source_named(&setup->named, m, true, &setup->program, NULL) != WEFT_OK) {
    return false;
  }
  (void)snprintf(setup->name, sizeof setup->name, "%s p=%u v=%u m=%u", info->name,
                 setup->named.ranks, setup->named.stages_per_rank, m);
  return setup->program->stage_count <= TRIAL_STAGES_MAX;
}

static bool completes(const struct weft_program *program, enum weft_send_model comm,
                      uint32_t slots) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  options.model = (struct weft_comm_model){.capacity = weft_send_model_capacity(comm, slots),
                                           .channel = WEFT_CHANNEL_EDGE,
                                           .posted = !weft_send_model_info(comm)->row_waits};
  const bool is_ok = weft_verify(NULL, program, &options, &report, NULL) == WEFT_OK && report->ok;
  weft_report_destroy(report);
  return is_ok;
}

static bool try_random_program(struct trial_setup *setup, struct weft_random *random) {
  const struct random_limits limits = {.communicate = true, .cells_two = 40, .cells_three = 30};
  struct draft draft = {0};
  bool misordered;
  random_program(random, &limits, &draft, &misordered);
  setup->lower = weft_lower_options_default();
  setup->named = (struct weft_named_source){.schedule = NULL};
  setup->program = draft_build(&draft);
  (void)snprintf(setup->name, sizeof setup->name, "random program p=%u n=%u m=%u",
                 setup->program->rank_count, setup->program->stage_count,
                 setup->program->microbatch_count);
  draft_finish(&draft);
  return !misordered && completes(setup->program, setup->comm, setup->slots);
}

static void draw_program(struct trial_setup *setup, struct weft_random *random) {
  const bool is_random = random_chance(random, 20);
  for (int round = 0; round < ROUNDS_MAX; round++) {
    const bool found = is_random ? try_random_program(setup, random) : try_schedule(setup, random);
    if (found) {
      (void)weft_placement_infer(setup->program, setup->rank_of);
      return;
    }
    weft_program_destroy(setup->program);
    setup->program = NULL;
  }
  (void)fprintf(stderr, "seed %llu: no program found\n", (unsigned long long)setup->seed);
  abort();
}

/* The same with an empty cell more, which changes nothing but its hash. */
static struct weft_program *alter_program(const struct weft_program *program, uint32_t rank) {
  struct draft draft = {0};
  draft_copy(&draft, program);
  draft_append(&draft, rank, draft_action(WEFT_OP_IDLE, 0, 0));
  struct weft_program *other = draft_build(&draft);
  draft_finish(&draft);
  return other;
}

/* ---- Expected results ---- */

void trial_learn(struct test_linear_stage *stage, const float *gradients) {
  uint32_t count;
  float *parameters = test_linear_stage_parameters(stage, &count);
  for (uint32_t k = 0; k < count; k++) {
    parameters[k] -= 0.125F * gradients[k];
  }
}

static void draw_model(struct trial_setup *setup, struct weft_random *random) {
  const uint32_t m = setup->program->microbatch_count;
  const uint32_t stages = setup->program->stage_count;
  linear_model_init(&setup->model, stages, 2 + weft_random_below(random, 3),
                    m + weft_random_below(random, 2 * m), weft_random_next(random));
  for (uint32_t s = 0; s < stages; s++) {
    uint32_t count;
    const float *parameters = test_linear_stage_parameters(setup->model.stages[s], &count);
    setup->parameters[s] = malloc(count * sizeof(float));
    memcpy(setup->parameters[s], parameters, count * sizeof(float));
  }
  for (uint32_t step = 0; step < setup->steps; step++) {
    setup->expected[step] = linear_model_evaluate(&setup->model, setup->program, true, UINT32_MAX);
    for (uint32_t s = 0; s < stages && !setup->is_eval[step]; s++) {
      trial_learn(setup->model.stages[s], setup->expected[step].gradients[s]);
    }
  }
}

/* ---- The rest ---- */

static void draw_times(struct trial_setup *setup, struct weft_random *random) {
  setup->network = (struct weft_comm_options){.rank_count = setup->program->rank_count,
                                              .seed = weft_random_next(random),
                                              .latency_ticks = draw_ticks(random, 20),
                                              .occupied_ticks = draw_ticks(random, 10),
                                              .delay_ticks_max = draw_ticks(random, 30)};
  setup->stall_limit = STALL_LIMIT;
  setup->stage_time_max = draw_ticks(random, 20);
  setup->is_quiet = random_chance(random, 30);
  setup->has_cost_stages = random_chance(random, 15);
  for (uint32_t op = 0; op < WEFT_OP_COUNT; op++) {
    setup->cost_times[op] = weft_random_below(random, 12);
  }
}

static void draw_fault(struct trial_setup *setup, struct weft_random *random) {
  const uint32_t m = setup->program->microbatch_count;
  setup->victim = weft_random_below(random, setup->program->rank_count);
  setup->victim_stage = weft_random_below(random, setup->program->stage_count);
  setup->when = draw_count(random, 7);
  setup->amount = 1 + weft_random_below(random, 60);
  setup->other_microbatches = 1 + (m + weft_random_below(random, 7)) % 8;
  setup->checks_payloads = setup->fault == FAULT_PAYLOAD || random_chance(random, 30);
  if (setup->fault == FAULT_SLOW_BEYOND || setup->fault == FAULT_SLOW_STAGE) {
    setup->amount = INT64_C(10) * STALL_LIMIT;
  }
  switch (setup->fault) {
    case FAULT_SLOW_WITHIN: /* polls would shift with the limit, and with them the waits */
      setup->is_quiet = false;
      break;
    case FAULT_SLOW_STAGE:
    case FAULT_STAGE_FAILS:
    case FAULT_STAGE_NEVER_ENDS:
      setup->victim = setup->rank_of[setup->victim_stage];
      setup->when = draw_count(random, 5);
      break;
    case FAULT_MEMORY_ONCE:
    case FAULT_MEMORY_SILENT:
    case FAULT_MEMORY_GONE: setup->when = draw_count(random, 10); break;
    default: break;
  }
}

static void draw_evals(struct trial_setup *setup, struct weft_random *random) {
  for (uint32_t step = 0; step < setup->steps; step++) {
    setup->is_eval[step] = random_chance(random, 20);
  }
}

void trial_draw(struct trial_setup *setup, uint64_t seed, enum trial_fault fault) {
  struct weft_random random = {.state = seed};
  const enum trial_fault drawn = (enum trial_fault)weft_random_below(&random, FAULT_COUNT);
  *setup = (struct trial_setup){.seed = seed, .fault = fault == FAULT_COUNT ? drawn : fault};
  setup->comm = (enum weft_send_model)weft_random_below(&random, WEFT_SEND_MODEL_COUNT);
  setup->slots = 1 + (uint32_t)(seed % 3);
  setup->steps = 1 + weft_random_below(&random, TRIAL_STEPS_MAX);
  draw_program(setup, &random);
  draw_evals(setup, &random);
  draw_times(setup, &random);
  draw_model(setup, &random);
  draw_fault(setup, &random);
  setup->other_program = alter_program(setup->program, setup->victim);
}

bool trial_draw_schedule(struct trial_setup *setup, const struct weft_named_source *named,
                         uint32_t m, uint64_t seed) {
  struct weft_random random = {.state = seed};
  *setup = (struct trial_setup){.seed = seed, .fault = FAULT_NONE, .named = *named, .steps = 2};
  setup->lower = weft_lower_options_default();
  setup->named.lower = &setup->lower;
  if (weft_source_named(&setup->named, m, true, &setup->program, NULL) != WEFT_OK) {
    return false;
  }
  if (setup->program->stage_count > TRIAL_STAGES_MAX) {
    weft_program_destroy(setup->program);
    return false;
  }
  (void)snprintf(setup->name, sizeof setup->name, "%s p=%u n=%u m=%u", named->schedule,
                 named->ranks, setup->program->stage_count, m);
  (void)weft_placement_infer(setup->program, setup->rank_of);
  setup->comm = (enum weft_send_model)weft_random_below(&random, WEFT_SEND_MODEL_COUNT);
  setup->slots = 1 + (uint32_t)(seed % 3);
  draw_times(setup, &random);
  setup->has_cost_stages = false;
  draw_model(setup, &random);
  setup->other_program = alter_program(setup->program, 0);
  return true;
}

void trial_setup_finish(struct trial_setup *setup) {
  for (uint32_t step = 0; step < setup->steps; step++) {
    linear_result_free(&setup->model, &setup->expected[step]);
  }
  for (uint32_t s = 0; s < setup->program->stage_count; s++) {
    free(setup->parameters[s]);
  }
  linear_model_finish(&setup->model);
  weft_program_destroy(setup->other_program);
  weft_program_destroy(setup->program);
}
