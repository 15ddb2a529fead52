/* The schedule of a training replaced between two steps; autotune_policy.h decides when. Rank 0
 * of the world plans and sends the schedule, as text, to all ranks; each gives it to its
 * pipeline, which compares programs with the other ranks before the next step. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/sim.h>
#include <weft/support.h>

#include "trainer/train/rank.h"

/* ---- Order ---- */

/* The microbatch that comes after those of the same op and stage in the row before `at`. The last
 * of them is near, except for the first of each op. */
static uint32_t next_microbatch(const struct weft_program *table, uint64_t row_begin, uint64_t at) {
  const struct weft_action *action = &table->actions[at];
  for (uint64_t k = at; k > row_begin; k--) {
    const struct weft_action *before = &table->actions[k - 1];
    if (before->op == action->op && before->stage == action->stage) {
      return before->microbatch + 1;
    }
  }
  return 0;
}

bool weft_gpt_schedule_keeps_order(const struct weft_program *table, const uint32_t *rank_of,
                                   uint32_t stage_count) {
  assert(table != NULL && rank_of != NULL);
  for (uint32_t r = 0; r < table->rank_count; r++) {
    for (uint64_t k = table->row_begin[r]; k < table->row_begin[r + 1]; k++) {
      const struct weft_action *action = &table->actions[k];
      switch (action->op) {
        case WEFT_OP_IDLE:
        case WEFT_OP_REDUCE_GRAD: break;
        case WEFT_OP_F:
        case WEFT_OP_B:
        case WEFT_OP_I:
        case WEFT_OP_W:
          if (action->stage >= stage_count || rank_of[action->stage] != r ||
              action->microbatch != next_microbatch(table, table->row_begin[r], k)) {
            return false;
          }
          break;
        default: return false;
      }
    }
  }
  return true;
}

WEFT_SCOPED_TYPE(weft_costs)
WEFT_SCOPED_TYPE(weft_program)

/* ---- Reports ---- */

static void send_report(const struct weft_gpt_rank *rank, enum weft_gpt_tuning_news news,
                        const char *before) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const struct weft_gpt_autotune *autotune = &rank->autotune;
  const struct weft_gpt_tuning *policy = &autotune->policy;
  if (!weft_gpt_rank_reports(rank) || options->on_tuning == NULL) {
    return;
  }
  const bool plans = news != WEFT_GPT_TUNING_STAYED;
  const struct weft_gpt_tuning_report report = {
      .news = news,
      .step = rank->step,
      .before_schedule = before,
      .schedule = autotune->current.schedule,
      .before_ms = plans ? policy->before : policy->expected,
      .promised_ms = plans ? policy->promised : NAN,
      .after_ms = plans ? policy->after : NAN,
      .promised_gain = plans ? policy->promised_gain : NAN,
      .gain = policy->gain,
      .memory = autotune->current.memory,
      .memory_limit = autotune->memory_limit,
      .planning_seconds = autotune->planning_seconds,
      .plans = policy->plans,
      .switches = policy->switches,
      .returns = policy->returns};
  options->on_tuning(options->context, &report);
}

/* ---- Switching ---- */

static void destroy_planned(struct weft_gpt_planned *planned) {
  weft_program_destroy(planned->table);
  *planned = (struct weft_gpt_planned){.table = NULL};
}

void weft_gpt_autotune_finish(struct weft_gpt_autotune *autotune) {
  destroy_planned(&autotune->current);
  destroy_planned(&autotune->previous);
}

static enum weft_status switch_to(struct weft_gpt_rank *rank, struct weft_gpt_planned planned,
                                  struct weft_error *error) {
  rank->autotune.previous = rank->autotune.current;
  rank->autotune.current = planned;
  rank->profile.program = NULL; /* the pipeline destroys it */
  WEFT_TRY(weft_pipeline_set_source(rank->pipeline, weft_gpt_rank_source, rank, error));
  return weft_gpt_profile_reserve(rank, error);
}

/* To the schedule before; a later switch_back() returns to this one. */
static enum weft_status switch_back(struct weft_gpt_rank *rank, enum weft_gpt_tuning_news news,
                                    struct weft_error *error) {
  WEFT_TRY(switch_to(rank, rank->autotune.previous, error));
  send_report(rank, news, rank->autotune.previous.schedule);
  return WEFT_OK;
}

/* ---- Planning, on rank 0 ---- */

/* Rank 0 sends the head and, when the policy accepts it, the table as text. */
struct plan {
  struct {
    double current_ms, planned_ms; /* predicted; NAN: no better plan was found */
    uint64_t text_size;
  } head;
  struct weft_text text;         /* on rank 0 */
  struct weft_gpt_planned found; /* on rank 0 */
};

/* Predicts lowered programs, with their transfers and collectives. */
static enum weft_status predict(const struct weft_gpt_rank *rank, const struct weft_costs *costs,
                                struct plan *plan, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_allocator *allocator = trainer->allocator;
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_TRY(
      weft_makespan(allocator, rank->profile.program, costs, NULL, &plan->head.current_ms, error));
  WEFT_TRY(weft_gpt_trainer_lower(trainer, plan->found.table, &program, error));
  return weft_makespan(allocator, program, costs, NULL, &plan->head.planned_ms, error);
}

static enum weft_status search(struct weft_gpt_rank *rank, const struct weft_costs *costs,
                               struct plan *plan, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const double given = trainer->options.memory_limit;
  rank->autotune.memory_limit = given > 0 ? given : rank->stats.memory_free;
  const enum weft_status status = weft_gpt_trainer_search(
      trainer, rank, costs, rank->autotune.memory_limit, &plan->found, error);
  if (status == WEFT_ERR_INVALID) {
    return WEFT_OK; /* none fits into the memory */
  }
  WEFT_TRY(status);
  WEFT_TRY(predict(rank, costs, plan, error));
  if (!weft_gpt_schedule_keeps_order(plan->found.table, trainer->rank_of, trainer->stage_count)) {
    plan->head.planned_ms = NAN; /* gradients would be summed in another order */
  }
  weft_program_print(plan->found.table, &plan->text);
  plan->head.text_size = plan->text.size;
  return weft_text_status(&plan->text, error);
}

static enum weft_status make_plan(struct weft_gpt_rank *rank, struct plan *plan,
                                  struct weft_error *error) {
  const int64_t begin_ns = weft_clock_ns();
  WEFT_SCOPED(weft_costs) costs = NULL;
  WEFT_TRY(weft_gpt_profile_planner_costs(rank, &costs, error));
  const enum weft_status status = search(rank, costs, plan, error);
  rank->autotune.planning_seconds = (double)(weft_clock_ns() - begin_ns) * 1e-9;
  return status;
}

/* ---- Replanning, on all ranks ---- */

/* `size` bytes of rank 0, for all ranks. */
static enum weft_status broadcast(const struct weft_gpt_rank *rank, void *bytes, size_t size,
                                  struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  char *all = weft_arena_allocate(&arena, trainer->world_size, size);
  WEFT_TRY(weft_arena_status(&arena, error));
  WEFT_TRY(weft_allgather(rank->transport, bytes, all, size, trainer->stall_limit, error));
  memcpy(bytes, all, size);
  return WEFT_OK;
}

/* All ranks read the table, rank 0 too, so that all have the same. */
static enum weft_status share_table(const struct weft_gpt_rank *rank, const struct plan *plan,
                                    struct weft_program **table, struct weft_error *error) {
  const struct weft_allocator *allocator = rank->trainer->allocator;
  const size_t size = (size_t)plan->head.text_size;
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  char *text = weft_arena_allocate(&arena, size, 1);
  WEFT_TRY(weft_arena_status(&arena, error));
  if (plan->text.size > 0) {
    memcpy(text, plan->text.data, size);
  }
  WEFT_TRY(broadcast(rank, text, size, error));
  return weft_program_parse(allocator, text, size, "the schedule of rank 0", table, error);
}

static enum weft_status begin_trial(struct weft_gpt_rank *rank, struct plan *plan,
                                    struct weft_error *error) {
  const char *before = rank->autotune.current.schedule;
  struct weft_gpt_planned planned = plan->found;
  WEFT_TRY(share_table(rank, plan, &planned.table, error));
  destroy_planned(&rank->autotune.previous);
  WEFT_TRY(switch_to(rank, planned, error));
  send_report(rank, WEFT_GPT_TUNING_TRIES, before);
  return WEFT_OK;
}

static enum weft_status share_plan(struct weft_gpt_rank *rank, struct plan *plan,
                                   struct weft_error *error) {
  WEFT_TRY(broadcast(rank, &plan->head, sizeof plan->head, error));
  if (weft_gpt_tuning_planned(&rank->autotune.policy, plan->head.current_ms,
                              plan->head.planned_ms)) {
    return begin_trial(rank, plan, error);
  }
  send_report(rank, WEFT_GPT_TUNING_STAYED, rank->autotune.current.schedule);
  return WEFT_OK;
}

static enum weft_status replan(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct plan plan = {.head = {.current_ms = NAN, .planned_ms = NAN},
                      .text = {.allocator = rank->trainer->allocator}};
  enum weft_status status = weft_gpt_rank_reports(rank) ? make_plan(rank, &plan, error) : WEFT_OK;
  if (status == WEFT_OK) {
    status = share_plan(rank, &plan, error);
  }
  destroy_planned(&plan.found);
  weft_text_finish(&plan.text);
  return status;
}

enum weft_status weft_gpt_rank_autotune(struct weft_gpt_rank *rank, struct weft_error *error) {
  const bool is_over = weft_gpt_rank_is_over(rank); /* no step would run another schedule */
  const double step_ms = rank->trainer->virtual_time ? NAN : (double)rank->stats.pipeline_ns * 1e-6;
  assert(rank->trainer->options.tunes);
  switch (weft_gpt_tuning_step(&rank->autotune.policy, step_ms)) {
    case WEFT_GPT_TUNING_GO_ON: break;
    case WEFT_GPT_TUNING_KEEP:
      send_report(rank, WEFT_GPT_TUNING_KEPT, rank->autotune.previous.schedule);
      break;
    case WEFT_GPT_TUNING_BACK:
      return is_over ? WEFT_OK : switch_back(rank, WEFT_GPT_TUNING_RETURNED, error);
    case WEFT_GPT_TUNING_RETRY:
      return is_over ? WEFT_OK : switch_back(rank, WEFT_GPT_TUNING_TRIES, error);
    case WEFT_GPT_TUNING_FORGET:
      send_report(rank, WEFT_GPT_TUNING_DRIFTED, rank->autotune.current.schedule);
      weft_gpt_profile_reset(rank);
      break;
    case WEFT_GPT_TUNING_PLAN: return is_over ? WEFT_OK : replan(rank, error);
  }
  return WEFT_OK;
}
