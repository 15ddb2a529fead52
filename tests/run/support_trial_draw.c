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

static bool try_schedule(struct trial_plan *plan, struct weft_random *random) {
  const struct weft_schedule_info *info =
      weft_schedule_at(weft_random_below(random, (uint32_t)weft_schedule_count()));
  plan->lower = weft_lower_options_default();
  plan->lower.merge_bw = random_chance(random, 30);
  plan->lower.unshard = random_chance(random, 40);
  plan->lower.unshard_window = 1 + weft_random_below(random, 3);
  plan->named = (struct weft_named_source){.schedule = info->name,
                                           .ranks = 1 + weft_random_below(random, TRIAL_RANKS_MAX),
                                           .stages_per_rank = weft_random_below(random, 5),
                                           .lower = &plan->lower};
  const uint32_t m = 1 + weft_random_below(random, 8);
  if (weft_source_named(&plan->named, m, true, &plan->program, NULL) != WEFT_OK) {
    return false;
  }
  (void)snprintf(plan->name, sizeof plan->name, "%s p=%u v=%u m=%u", info->name, plan->named.ranks,
                 plan->named.stages_per_rank, m);
  return plan->program->stage_count <= TRIAL_STAGES_MAX;
}

static bool completes(const struct weft_program *program, enum weft_run_comm comm) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  options.model = (struct weft_comm_model){
      .capacity = comm == WEFT_COMM_RENDEZVOUS ? 0 : WEFT_CAPACITY_UNLIMITED,
      .channel = WEFT_CHANNEL_EDGE};
  const bool is_ok = weft_verify(NULL, program, &options, &report, NULL) == WEFT_OK && report->ok;
  weft_report_destroy(report);
  return is_ok;
}

static bool try_random_program(struct trial_plan *plan, struct weft_random *random) {
  const struct random_limits limits = {.communicate = true, .cells_two = 40, .cells_three = 30};
  struct draft draft = {0};
  bool misordered;
  random_program(random, &limits, &draft, &misordered);
  plan->lower = weft_lower_options_default();
  plan->named = (struct weft_named_source){.schedule = NULL};
  plan->program = draft_build(&draft);
  (void)snprintf(plan->name, sizeof plan->name, "random program p=%u n=%u m=%u",
                 plan->program->rank_count, plan->program->stage_count,
                 plan->program->microbatch_count);
  draft_finish(&draft);
  return !misordered && completes(plan->program, plan->comm);
}

static void draw_program(struct trial_plan *plan, struct weft_random *random) {
  const bool is_random = random_chance(random, 20);
  for (int round = 0; round < ROUNDS_MAX; round++) {
    const bool found = is_random ? try_random_program(plan, random) : try_schedule(plan, random);
    if (found) {
      (void)weft_placement_infer(plan->program, plan->rank_of);
      return;
    }
    weft_program_destroy(plan->program);
    plan->program = NULL;
  }
  (void)fprintf(stderr, "seed %llu: no program found\n", (unsigned long long)plan->seed);
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

void trial_learn(struct weft_linear_stage *stage, const float *gradients) {
  uint32_t count;
  float *parameters = weft_linear_stage_parameters(stage, &count);
  for (uint32_t k = 0; k < count; k++) {
    parameters[k] -= 0.125F * gradients[k];
  }
}

static void draw_model(struct trial_plan *plan, struct weft_random *random) {
  const uint32_t m = plan->program->microbatch_count;
  const uint32_t stages = plan->program->stage_count;
  linear_model_init(&plan->model, stages, 2 + weft_random_below(random, 3),
                    m + weft_random_below(random, 2 * m), weft_random_next(random));
  for (uint32_t s = 0; s < stages; s++) {
    uint32_t count;
    const float *parameters = weft_linear_stage_parameters(plan->model.stages[s], &count);
    plan->parameters[s] = malloc(count * sizeof(float));
    memcpy(plan->parameters[s], parameters, count * sizeof(float));
  }
  for (uint32_t step = 0; step < plan->steps; step++) {
    plan->expected[step] = linear_model_evaluate(&plan->model, plan->program, true, UINT32_MAX);
    for (uint32_t s = 0; s < stages && !plan->is_eval[step]; s++) {
      trial_learn(plan->model.stages[s], plan->expected[step].gradients[s]);
    }
  }
}

/* ---- The rest ---- */

static void draw_times(struct trial_plan *plan, struct weft_random *random) {
  plan->network = (struct weft_comm_options){.rank_count = plan->program->rank_count,
                                             .seed = weft_random_next(random),
                                             .latency_ticks = draw_ticks(random, 20),
                                             .occupied_ticks = draw_ticks(random, 10),
                                             .delay_ticks_max = draw_ticks(random, 30)};
  plan->stall_limit = STALL_LIMIT;
  plan->stage_time_max = draw_ticks(random, 20);
  plan->is_quiet = random_chance(random, 30);
  plan->has_cost_stages = random_chance(random, 15);
  for (uint32_t op = 0; op < WEFT_OP_COUNT; op++) {
    plan->cost_times[op] = weft_random_below(random, 12);
  }
}

static void draw_fault(struct trial_plan *plan, struct weft_random *random) {
  const uint32_t m = plan->program->microbatch_count;
  plan->victim = weft_random_below(random, plan->program->rank_count);
  plan->victim_stage = weft_random_below(random, plan->program->stage_count);
  plan->when = draw_count(random, 7);
  plan->amount = 1 + weft_random_below(random, 60);
  plan->other_microbatches = 1 + (m + weft_random_below(random, 7)) % 8;
  plan->checks_payloads = plan->fault == FAULT_PAYLOAD || random_chance(random, 30);
  if (plan->fault == FAULT_SLOW_BEYOND || plan->fault == FAULT_SLOW_STAGE) {
    plan->amount = INT64_C(10) * STALL_LIMIT;
  }
  switch (plan->fault) {
    case FAULT_SLOW_WITHIN: /* polls would shift with the limit, and with them the waits */
      plan->is_quiet = false;
      break;
    case FAULT_SLOW_STAGE:
    case FAULT_STAGE_FAILS:
    case FAULT_STAGE_NEVER_ENDS:
      plan->victim = plan->rank_of[plan->victim_stage];
      plan->when = draw_count(random, 5);
      break;
    case FAULT_MEMORY_ONCE:
    case FAULT_MEMORY_SILENT:
    case FAULT_MEMORY_GONE: plan->when = draw_count(random, 10); break;
    default: break;
  }
}

static void draw_evals(struct trial_plan *plan, struct weft_random *random) {
  for (uint32_t step = 0; step < plan->steps; step++) {
    plan->is_eval[step] = random_chance(random, 20);
  }
}

void trial_draw(struct trial_plan *plan, uint64_t seed, enum trial_fault fault) {
  struct weft_random random = {.state = seed};
  const enum trial_fault drawn = (enum trial_fault)weft_random_below(&random, FAULT_COUNT);
  *plan = (struct trial_plan){.seed = seed, .fault = fault == FAULT_COUNT ? drawn : fault};
  plan->comm = (enum weft_run_comm)weft_random_below(&random, 3);
  plan->steps = 1 + weft_random_below(&random, TRIAL_STEPS_MAX);
  draw_program(plan, &random);
  draw_evals(plan, &random);
  draw_times(plan, &random);
  draw_model(plan, &random);
  draw_fault(plan, &random);
  plan->other_program = alter_program(plan->program, plan->victim);
}

bool trial_draw_schedule(struct trial_plan *plan, const struct weft_named_source *named, uint32_t m,
                         uint64_t seed) {
  struct weft_random random = {.state = seed};
  *plan = (struct trial_plan){.seed = seed, .fault = FAULT_NONE, .named = *named, .steps = 2};
  plan->lower = weft_lower_options_default();
  plan->named.lower = &plan->lower;
  if (weft_source_named(&plan->named, m, true, &plan->program, NULL) != WEFT_OK) {
    return false;
  }
  if (plan->program->stage_count > TRIAL_STAGES_MAX) {
    weft_program_destroy(plan->program);
    return false;
  }
  (void)snprintf(plan->name, sizeof plan->name, "%s p=%u n=%u m=%u", named->schedule, named->ranks,
                 plan->program->stage_count, m);
  (void)weft_placement_infer(plan->program, plan->rank_of);
  plan->comm = (enum weft_run_comm)weft_random_below(&random, 3);
  draw_times(plan, &random);
  plan->has_cost_stages = false;
  draw_model(plan, &random);
  plan->other_program = alter_program(plan->program, 0);
  return true;
}

void trial_plan_finish(struct trial_plan *plan) {
  for (uint32_t step = 0; step < plan->steps; step++) {
    linear_result_free(&plan->model, &plan->expected[step]);
  }
  for (uint32_t s = 0; s < plan->program->stage_count; s++) {
    free(plan->parameters[s]);
  }
  linear_model_finish(&plan->model);
  weft_program_destroy(plan->other_program);
  weft_program_destroy(plan->program);
}
