/* The schedule of a training changed between two steps (autotune.h says when). Rank 0 of the
 * world plans, and tells all ranks how good the plan is and what it is, in letters; then
 * every rank gives it to its pipeline, which compares programs before the next step. */
#include <math.h>
#include <string.h>

#include <weft/sim.h>
#include <weft/support.h>

#include "gpt/model/aligned_memory.h"
#include "gpt/train/trainer_rank.h"

/* ---- What is said ---- */

static void report(struct weft_gpt_rank *rank, enum weft_gpt_tuning_news news, const char *before) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const struct weft_gpt_tuning *tuning = &rank->tuning;
  if (!weft_gpt_rank_reports(rank)) {
    return;
  }
  const bool plans = news != WEFT_GPT_TUNING_STAYED;
  rank->tuning_report =
      (struct weft_gpt_tuning_report){.news = news,
                                      .step = rank->step,
                                      .before_schedule = before,
                                      .schedule = rank->now.schedule,
                                      .before_ms = plans ? tuning->before : tuning->expected,
                                      .promised_ms = plans ? tuning->promised : NAN,
                                      .after_ms = plans ? tuning->after : NAN,
                                      .promised_gain = plans ? tuning->promised_gain : NAN,
                                      .gain = tuning->gain,
                                      .memory = rank->now.memory,
                                      .memory_limit = rank->retuning.limit,
                                      .planning_seconds = rank->retuning.seconds,
                                      .plans = tuning->plans,
                                      .switches = tuning->switches,
                                      .returns = tuning->returns};
  rank->has_tuned = true;
  if (options->on_tuning != NULL) {
    options->on_tuning(options->context, &rank->tuning_report);
  }
}

/* ---- Switching ---- */

static void destroy_planned(struct weft_gpt_planned *planned) {
  weft_program_destroy(planned->table);
  *planned = (struct weft_gpt_planned){.table = NULL};
}

static enum weft_status switch_to(struct weft_gpt_rank *rank, struct weft_gpt_planned planned,
                                  struct weft_error *error) {
  rank->before = rank->now;
  rank->now = planned;
  rank->program = NULL; /* the pipeline destroys it */
  WEFT_TRY(weft_pipeline_set_source(rank->pipeline, weft_gpt_rank_plan, rank, error));
  return weft_gpt_rank_make_event_room(rank, error);
}

void weft_gpt_rank_end_tuning(const struct weft_allocator *allocator, struct weft_gpt_rank *rank) {
  destroy_planned(&rank->now);
  destroy_planned(&rank->before);
  destroy_planned(&rank->retuning.found);
  weft_gpt_free(allocator, rank->retuning.letters);
}

/* ---- Planning, on rank 0 ---- */

static struct weft_gpt_stage_map places_of(const struct weft_gpt_trainer *trainer) {
  return (struct weft_gpt_stage_map){.rank_count = trainer->options.ranks,
                                     .list = trainer->stages.list,
                                     .begin = trainer->stages.begin};
}

static enum weft_status write_letters(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_retuning *retuning = &rank->retuning;
  const struct weft_program *table = retuning->found.table;
  const struct weft_gpt_stage_map places = places_of(rank->trainer);
  retuning->letters = weft_gpt_allocate(rank->trainer->allocator, table->action_count, 1);
  if (retuning->letters == NULL) {
    return weft_fail_memory(error, table->action_count);
  }
  retuning->letter_count = weft_gpt_schedule_encode(table, &places, retuning->letters);
  if (retuning->letter_count == 0) { /* it adds up gradients in another order */
    retuning->planned = NAN;
  }
  return WEFT_OK;
}

/* With everything that programs have and tables have not. */
static enum weft_status predict(const struct weft_gpt_rank *rank, const struct weft_costs *costs,
                                double *now, double *planned, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_allocator *allocator = trainer->allocator;
  struct weft_program *program;
  WEFT_TRY(weft_makespan(allocator, rank->program, costs, NULL, now, error));
  WEFT_TRY(weft_gpt_trainer_lower(trainer, rank->retuning.found.table, &program, error));
  const enum weft_status status = weft_makespan(allocator, program, costs, NULL, planned, error);
  weft_program_destroy(program);
  return status;
}

static enum weft_status plan_from(struct weft_gpt_rank *rank, const struct weft_costs *costs,
                                  struct weft_error *error) {
  struct weft_gpt_retuning *retuning = &rank->retuning;
  const double given = rank->trainer->options.memory_limit;
  retuning->limit = given > 0 ? given : rank->room;
  const enum weft_status status =
      weft_gpt_trainer_search(rank->trainer, rank, costs, retuning->limit, &retuning->found, error);
  if (status == WEFT_ERR_INVALID) {
    return WEFT_OK; /* nothing fits better than what runs */
  }
  WEFT_TRY(status);
  WEFT_TRY(predict(rank, costs, &retuning->now, &retuning->planned, error));
  return write_letters(rank, error);
}

static enum weft_status make_plan(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_retuning *retuning = &rank->retuning;
  const int64_t begin = weft_clock_ns();
  struct weft_costs *costs;
  WEFT_TRY(weft_gpt_rank_costs(rank, &costs, error));
  const enum weft_status status = plan_from(rank, costs, error);
  weft_costs_destroy(costs);
  retuning->seconds = (double)(weft_clock_ns() - begin) * 1e-9;
  return status;
}

/* ---- Telling ---- */

struct plan_facts {
  double now, planned;
  uint64_t letter_count;
};

static void clear_retuning(struct weft_gpt_rank *rank) {
  struct weft_gpt_retuning *retuning = &rank->retuning;
  destroy_planned(&retuning->found);
  weft_gpt_free(rank->trainer->allocator, retuning->letters);
  retuning->letters = NULL;
  retuning->letter_count = retuning->letters_told = 0;
  retuning->now = retuning->planned = NAN;
}

/* Rank 0 knows; the others give nothing. */
static void tell_facts(struct weft_gpt_rank *rank) {
  const struct weft_gpt_retuning *retuning = &rank->retuning;
  const struct plan_facts facts = {
      .now = retuning->now, .planned = retuning->planned, .letter_count = retuning->letter_count};
  weft_gpt_bulletin_begin(&rank->bulletin, sizeof facts);
  if (weft_gpt_rank_reports(rank)) {
    memcpy(rank->bulletin.mine, &facts, sizeof facts);
  }
  rank->told = true;
}

enum weft_status weft_gpt_rank_planned(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_retuning *retuning = &rank->retuning;
  struct plan_facts facts;
  if (!rank->told) {
    tell_facts(rank);
  }
  const enum weft_status status = weft_gpt_rank_meet(rank, error);
  if (status != WEFT_OK) {
    return status;
  }
  memcpy(&facts, weft_gpt_bulletin_of(&rank->bulletin, 0), sizeof facts);
  if (!weft_gpt_tuning_planned(&rank->tuning, facts.now, facts.planned)) {
    report(rank, WEFT_GPT_TUNING_STAYED, rank->now.schedule);
    clear_retuning(rank);
    rank->state = WEFT_GPT_RANK_NEXT;
    return WEFT_OK;
  }
  rank->state = WEFT_GPT_RANK_LETTERS;
  if (retuning->letters == NULL) {
    retuning->letter_count = facts.letter_count;
    retuning->letters = weft_gpt_allocate(rank->trainer->allocator, facts.letter_count, 1);
  }
  return retuning->letters != NULL ? WEFT_OK : weft_fail_memory(error, facts.letter_count);
}

/* From letters on all ranks, so that all have made it in the same way. */
static enum weft_status begin_trial(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_retuning *retuning = &rank->retuning;
  const struct weft_gpt_stage_map places = places_of(rank->trainer);
  const char *before = rank->now.schedule;
  struct weft_gpt_planned planned = retuning->found;
  WEFT_TRY(weft_gpt_schedule_decode(rank->trainer->allocator, &places,
                                    rank->trainer->options.training.microbatches, retuning->letters,
                                    retuning->letter_count, &planned.table, error));
  destroy_planned(&rank->before);
  WEFT_TRY(switch_to(rank, planned, error));
  report(rank, WEFT_GPT_TUNING_TRIES, before);
  clear_retuning(rank);
  rank->state = WEFT_GPT_RANK_NEXT;
  return WEFT_OK;
}

static uint64_t piece_size(const struct weft_gpt_retuning *retuning) {
  const uint64_t left = retuning->letter_count - retuning->letters_told;
  return left < WEFT_GPT_TUNING_PIECE ? left : WEFT_GPT_TUNING_PIECE;
}

enum weft_status weft_gpt_rank_letters(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_retuning *retuning = &rank->retuning;
  while (retuning->letters_told < retuning->letter_count) {
    uint8_t *piece = retuning->letters + retuning->letters_told;
    const uint64_t size = piece_size(retuning);
    if (!rank->told) {
      weft_gpt_bulletin_begin(&rank->bulletin, size);
      memcpy(rank->bulletin.mine, piece, size); /* zeros but for rank 0 */
      rank->told = true;
    }
    const enum weft_status status = weft_gpt_rank_meet(rank, error);
    if (status != WEFT_OK) {
      return status;
    }
    memcpy(piece, weft_gpt_bulletin_of(&rank->bulletin, 0), size);
    retuning->letters_told += size;
  }
  return begin_trial(rank, error);
}

/* ---- After a step ---- */

/* In virtual time a step takes none. */
static double step_ms(const struct weft_gpt_rank *rank) {
  return rank->trainer->options.transport != WEFT_GPT_LOOPBACK ? (double)rank->pipeline_ns * 1e-6
                                                               : NAN;
}

/* The one before, which may be asked for again. */
static enum weft_status exchange(struct weft_gpt_rank *rank, enum weft_gpt_tuning_news news,
                                 struct weft_error *error) {
  WEFT_TRY(switch_to(rank, rank->before, error));
  report(rank, news, rank->before.schedule);
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_tune(struct weft_gpt_rank *rank, struct weft_error *error) {
  const bool is_over = weft_gpt_rank_is_over(rank); /* nobody would run another schedule */
  rank->state = WEFT_GPT_RANK_NEXT;
  switch (weft_gpt_tuning_step(&rank->tuning, step_ms(rank))) {
    case WEFT_GPT_TUNING_GO_ON: return WEFT_OK;
    case WEFT_GPT_TUNING_KEEP:
      report(rank, WEFT_GPT_TUNING_KEPT, rank->before.schedule);
      return WEFT_OK;
    case WEFT_GPT_TUNING_BACK:
      return is_over ? WEFT_OK : exchange(rank, WEFT_GPT_TUNING_RETURNED, error);
    case WEFT_GPT_TUNING_RETRY:
      return is_over ? WEFT_OK : exchange(rank, WEFT_GPT_TUNING_TRIES, error);
    case WEFT_GPT_TUNING_FORGET:
      report(rank, WEFT_GPT_TUNING_DRIFTED, rank->now.schedule);
      weft_gpt_rank_forget(rank);
      return WEFT_OK;
    case WEFT_GPT_TUNING_PLAN: break;
  }
  if (is_over) {
    return WEFT_OK;
  }
  clear_retuning(rank);
  rank->state = WEFT_GPT_RANK_PLANNED;
  return weft_gpt_rank_reports(rank) ? make_plan(rank, error) : WEFT_OK;
}
