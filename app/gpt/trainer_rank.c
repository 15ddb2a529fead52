/* One rank's training, as a step function; see trainer_rank.h. */
#include "gpt/trainer_rank.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "gpt/fail.h"
#include "gpt/kernels.h"
#include "gpt/schedule_rate.h"

_Static_assert(sizeof(struct weft_gpt_meeting) <= WEFT_EXCHANGE_MAX, "a meeting is one exchange");

static int64_t clock_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static const struct weft_gpt_progress *progress_of(const struct weft_gpt_rank *rank) {
  return &rank->trainer->options.progress;
}

/* ---- Meetings ---- */

static enum weft_status fail_missing(struct weft_gpt_rank *rank, int64_t waited,
                                     struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  uint32_t missing = transport->rank;
  for (uint32_t r = 0; r < transport->rank_count; r++) { /* who still works on its step */
    const struct weft_rank_board *board = transport->ops->board(transport, r);
    if (__atomic_load_n(&board->phase, __ATOMIC_RELAXED) != WEFT_PHASE_DONE) {
      missing = r;
    }
  }
  (void)weft_gpt_fail(error, WEFT_ERR_STALLED, "'weft explain-hang' reads the dump",
                      "rank %" PRIu32 " has waited %.1f s after step %" PRIu64
                      " for the other ranks, and rank %" PRIu32 " has not come",
                      transport->rank, (double)waited * 1e-9, rank->step, missing);
  const struct weft_failure failure = {.rank = missing, .error = *error};
  transport->ops->fail(transport, &failure);
  return WEFT_ERR_STALLED;
}

/* All ranks tell each other what is in `mine`. */
static enum weft_status meet(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  const enum weft_status status =
      transport->ops->exchange(transport, &rank->mine, rank->all, sizeof rank->mine, error);
  if (status != WEFT_IN_PROGRESS) {
    rank->wait_since = 0;
    return status;
  }
  const int64_t now = transport->ops->now(transport);
  const int64_t limit = rank->trainer->options.stall_limit;
  rank->waits = true;
  rank->wait_since = rank->wait_since == 0 ? now : rank->wait_since;
  if (limit > 0 && now - rank->wait_since >= limit) {
    return fail_missing(rank, now - rank->wait_since, error);
  }
  return WEFT_IN_PROGRESS;
}

/* ---- The step ---- */

static enum weft_status begin_batch(struct weft_gpt_rank *rank, bool validation, uint64_t number,
                                    struct weft_error *error) {
  const struct weft_gpt_progress *progress = progress_of(rank);
  const uint64_t rows = progress->batch, tokens = progress->config.context;
  if (rank->has_first || rank->has_last) {
    weft_gpt_corpus_batch(rank->trainer->options.corpus, validation, progress->data_seed, number,
                          rows, tokens, rank->inputs, rank->targets);
  }
  const struct weft_tensor_shape shape = {WEFT_U8, 2, {0}, {rows, tokens}};
  const struct weft_tensor inputs = {"tokens", rank->inputs, shape};
  const struct weft_tensor targets = {"targets", rank->targets, shape};
  const struct weft_batch batch = {.microbatch_count = progress->microbatches,
                                   .inputs = rank->has_first ? &inputs : NULL,
                                   .input_count = rank->has_first,
                                   .targets = rank->has_last ? &targets : NULL,
                                   .target_count = rank->has_last,
                                   .want_losses = rank->has_last};
  return weft_pipeline_begin(rank->pipeline, !validation, &batch, error);
}

/* The mean over microbatches, which are equally long. */
static double mean_loss(const struct weft_gpt_rank *rank) {
  struct weft_step_result result;
  double sum = 0;
  weft_pipeline_result(rank->pipeline, &result);
  for (uint32_t k = 0; k < result.loss_count; k++) {
    sum += result.losses[k];
  }
  return sum / result.loss_count;
}

static enum weft_status next(struct weft_gpt_rank *rank, struct weft_error *error) {
  if (rank->step >= progress_of(rank)->total_steps || rank->stop) {
    rank->state = WEFT_GPT_RANK_DONE;
    return WEFT_OK;
  }
  rank->step_begin_ns = clock_ns();
  rank->state = WEFT_GPT_RANK_STEP;
  rank->report = (struct weft_gpt_step_report){.validation_loss = NAN, .predicted_bubble = NAN};
  return begin_batch(rank, false, rank->step, error);
}

static enum weft_status step(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = weft_pipeline_advance(rank->pipeline, error);
  if (status != WEFT_OK) {
    return status;
  }
  weft_gpt_rank_measure(rank);
  if (rank->has_last) {
    rank->report.loss = rank->trainer->loss = mean_loss(rank);
  }
  rank->meeting = 0;
  rank->mine = (struct weft_gpt_meeting){.busy_ns = 0};
  rank->state = rank->trainer->config.tied ? WEFT_GPT_RANK_TIE : WEFT_GPT_RANK_NORMS;
  return WEFT_OK;
}

/* ---- Tied weights: both copies get the sum of both gradients ---- */

/* The gradient of wte, in the embedding or in the head; NULL if that is another rank's. */
static float *tied_gradient(const struct weft_gpt_rank *rank, bool head, uint64_t *count) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint32_t part = head ? trainer->part_count - 1 : 0;
  weft_gpt_part_parameters(&trainer->config, part, parameters);
  const struct weft_gpt_parameter *wte = &parameters[head ? 2 : 0];
  *count = wte->count;
  return weft_gpt_rank_part(trainer, part)->gradients + wte->offset;
}

static enum weft_status tie(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = meet(rank, error);
  if (status != WEFT_OK) {
    return status;
  }
  if (rank->has_first || rank->has_last) {
    uint64_t count;
    const float *embedding = tied_gradient(rank, false, &count);
    const float *head = tied_gradient(rank, true, &count);
    memcpy(rank->tied_sum, embedding, count * sizeof(float));
    weft_gpt_add(count, head, rank->tied_sum);
  }
  rank->state = WEFT_GPT_RANK_UNTIE;
  return WEFT_OK;
}

static enum weft_status untie(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = meet(rank, error);
  if (status != WEFT_OK) {
    return status;
  }
  for (int head = 0; head < 2; head++) {
    if (head ? rank->has_last : rank->has_first) {
      uint64_t count;
      float *gradient = tied_gradient(rank, head, &count);
      memcpy(gradient, rank->tied_sum, count * sizeof(float));
    }
  }
  rank->state = WEFT_GPT_RANK_NORMS;
  return WEFT_OK;
}

/* ---- Norms ---- */

/* Of a part's gradients; a tied weight counts where the embedding is. */
static double part_square(const struct weft_gpt_rank *rank, uint32_t part) {
  const struct weft_gpt_part_state *state = weft_gpt_rank_part(rank->trainer, part);
  uint64_t floats = state->floats;
  if (rank->trainer->config.tied && part + 1 == rank->trainer->part_count) {
    struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
    weft_gpt_part_parameters(&rank->trainer->config, part, parameters);
    floats = parameters[2].offset; /* it is the last one */
  }
  return weft_gpt_square_sum(floats, state->gradients);
}

static void prepare_meeting(struct weft_gpt_rank *rank) {
  const uint32_t first = rank->meeting * WEFT_GPT_NORMS_PER_MEETING;
  for (uint32_t k = 0; k < WEFT_GPT_NORMS_PER_MEETING; k++) {
    rank->mine.norms[k] =
        first + k < rank->own_part_count ? part_square(rank, rank->own_parts[first + k]) : 0;
  }
  rank->mine.busy_ns = rank->busy_ns;
  rank->mine.begin = rank->first_begin;
  rank->mine.end = rank->last_end;
  rank->mine.stop = rank->trainer->options.interrupted != NULL &&
                    rank->trainer->options.interrupted(rank->trainer->options.context);
}

static void take_meeting(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint32_t first = rank->meeting * WEFT_GPT_NORMS_PER_MEETING;
  for (uint32_t r = 0; r < trainer->options.ranks; r++) {
    const struct weft_gpt_rank *other = &trainer->ranks[r];
    for (uint32_t k = 0; k < WEFT_GPT_NORMS_PER_MEETING && first + k < other->own_part_count; k++) {
      rank->norms[other->own_parts[first + k]] = rank->all[r].norms[k];
    }
    rank->stop = rank->stop || rank->all[r].stop;
  }
}

static void find_bubble(struct weft_gpt_rank *rank) {
  const uint32_t count = rank->trainer->options.ranks;
  int64_t begin = INT64_MAX, end = INT64_MIN;
  double busy = 0;
  for (uint32_t r = 0; r < count; r++) {
    begin = rank->all[r].begin < begin ? rank->all[r].begin : begin;
    end = rank->all[r].end > end ? rank->all[r].end : end;
    busy += (double)rank->all[r].busy_ns;
  }
  rank->bubble = end > begin ? 1 - busy / ((double)count * (double)(end - begin)) : NAN;
}

static enum weft_status norms(struct weft_gpt_rank *rank, struct weft_error *error) {
  if (rank->wait_since == 0) {
    prepare_meeting(rank);
  }
  const enum weft_status status = meet(rank, error);
  if (status != WEFT_OK) {
    return status;
  }
  take_meeting(rank);
  if (++rank->meeting < rank->trainer->meetings) {
    return WEFT_OK;
  }
  double square = 0;
  for (uint32_t part = 0; part < rank->trainer->part_count; part++) {
    square += rank->norms[part];
  }
  rank->norm = sqrt(square);
  find_bubble(rank);
  rank->state = WEFT_GPT_RANK_UPDATE;
  return WEFT_OK;
}

/* ---- Update ---- */

static void update_part(const struct weft_gpt_rank *rank, uint32_t part,
                        struct weft_gpt_adamw adamw) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  const struct weft_gpt_part_state *state = weft_gpt_rank_part(rank->trainer, part);
  const uint32_t count = weft_gpt_part_parameters(&rank->trainer->config, part, parameters);
  const float decay = adamw.decay;
  for (uint32_t k = 0; k < count; k++) {
    const uint64_t at = parameters[k].offset;
    adamw.decay = parameters[k].decays ? decay : 0;
    weft_gpt_adamw_update(&adamw, parameters[k].count, state->gradients + at,
                          state->parameters + at, state->first_moment + at,
                          state->second_moment + at);
  }
}

static double rate_now(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_progress *progress = progress_of(rank);
  return weft_gpt_rate_at(rank->step, progress->rate, progress->rate_min, progress->warmup_steps,
                          progress->total_steps);
}

static void report_step(struct weft_gpt_rank *rank) {
  struct weft_gpt_step_report *report = &rank->report;
  const struct weft_gpt_progress *progress = progress_of(rank);
  const int64_t now = clock_ns();
  report->step = rank->step;
  report->steps = progress->total_steps;
  report->gradient_norm = rank->norm;
  report->seconds = (double)(now - rank->step_begin_ns) * 1e-9;
  report->tokens_per_s =
      (double)(progress->batch * progress->config.context) / fmax(report->seconds, 1e-9);
  report->seconds_so_far = (double)(now - rank->run_begin_ns) * 1e-9;
  report->bubble = rank->bubble;
  report->predicted_bubble = weft_gpt_trainer_predict(rank->trainer, rank->program);
}

static enum weft_status update(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_progress *progress = progress_of(rank);
  const double rate = rate_now(rank), steps = (double)rank->step + 1;
  const bool clips = progress->clip > 0 && rank->norm > progress->clip;
  (void)error;
  const struct weft_gpt_adamw adamw = {
      .rate = (float)rate,
      .beta1 = (float)progress->beta1,
      .beta2 = (float)progress->beta2,
      .epsilon = (float)progress->epsilon,
      .decay = (float)progress->decay,
      .correction1 = (float)(1 - pow(progress->beta1, steps)),
      .correction2 = (float)(1 - pow(progress->beta2, steps)),
      .grad_scale = clips ? (float)(progress->clip / (rank->norm + 1e-6)) : 1};
  for (uint32_t k = 0; k < rank->own_part_count; k++) {
    update_part(rank, rank->own_parts[k], adamw);
  }
  rank->report.rate = rate;
  rank->step++;
  if (rank->has_last) {
    report_step(rank);
  }
  rank->eval_at = 0;
  rank->eval_sum = 0;
  rank->state = WEFT_GPT_RANK_EVALUATE;
  return WEFT_OK;
}

/* ---- Evaluation, checkpoint ---- */

static bool is_due(uint64_t step, uint64_t every, bool at_the_end) {
  return (every > 0 && step % every == 0) || at_the_end;
}

static bool is_over(const struct weft_gpt_rank *rank) {
  return rank->stop || rank->step >= progress_of(rank)->total_steps;
}

static enum weft_status evaluate(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const uint32_t batches = options->eval_steps > 0 ? options->eval_steps : 1;
  const bool due =
      options->eval_every > 0 && is_due(rank->step, options->eval_every, is_over(rank));
  if (due && rank->eval_at < batches) {
    rank->state = WEFT_GPT_RANK_EVALUATING;
    return begin_batch(rank, true, rank->eval_at, error);
  }
  if (due && rank->has_last) {
    rank->report.validation_loss = rank->eval_sum / batches;
  }
  rank->state = WEFT_GPT_RANK_SAVE;
  return WEFT_OK;
}

static enum weft_status evaluating(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = weft_pipeline_advance(rank->pipeline, error);
  if (status != WEFT_OK) {
    return status;
  }
  rank->eval_sum += rank->has_last ? mean_loss(rank) : 0;
  rank->eval_at++;
  rank->state = WEFT_GPT_RANK_EVALUATE;
  return WEFT_OK;
}

static void tell(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  if (rank->has_last && options->on_step != NULL) {
    options->on_step(options->context, &rank->report);
  }
  rank->state = WEFT_GPT_RANK_NEXT;
}

static enum weft_status save(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_trainer_options *options = &trainer->options;
  if (options->checkpoint_dir == NULL ||
      !is_due(rank->step, options->checkpoint_every, is_over(rank))) {
    tell(rank);
    return WEFT_OK;
  }
  for (uint32_t k = 0; k < rank->own_part_count; k++) {
    const uint32_t part = rank->own_parts[k];
    WEFT_GPT_TRY(weft_gpt_checkpoint_write_part(
        options->files, options->checkpoint_dir, &trainer->config, rank->step,
        weft_gpt_rank_part(trainer, part), &trainer->files[part], error));
  }
  rank->state = WEFT_GPT_RANK_SAVED;
  return WEFT_OK;
}

static enum weft_status saved(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const enum weft_status status = meet(rank, error);
  if (status != WEFT_OK) {
    return status;
  }
  if (rank->transport->rank == 0) {
    struct weft_gpt_progress progress = options->progress;
    progress.step = rank->step;
    WEFT_GPT_TRY(weft_gpt_checkpoint_commit(options->files, options->checkpoint_dir, &progress,
                                            rank->trainer->files, options->checkpoint_keep, error));
  }
  rank->state = WEFT_GPT_RANK_COMMITTED;
  return WEFT_OK;
}

/* Nobody goes on before it is there. */
static enum weft_status committed(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = meet(rank, error);
  if (status != WEFT_OK) {
    return status;
  }
  rank->report.checkpointed = true;
  tell(rank);
  return WEFT_OK;
}

/* ---- The loop ---- */

static enum weft_status advance_once(struct weft_gpt_rank *rank, struct weft_error *error) {
  switch (rank->state) {
    case WEFT_GPT_RANK_NEXT: return next(rank, error);
    case WEFT_GPT_RANK_STEP: return step(rank, error);
    case WEFT_GPT_RANK_TIE: return tie(rank, error);
    case WEFT_GPT_RANK_UNTIE: return untie(rank, error);
    case WEFT_GPT_RANK_NORMS: return norms(rank, error);
    case WEFT_GPT_RANK_UPDATE: return update(rank, error);
    case WEFT_GPT_RANK_EVALUATE: return evaluate(rank, error);
    case WEFT_GPT_RANK_EVALUATING: return evaluating(rank, error);
    case WEFT_GPT_RANK_SAVE: return save(rank, error);
    case WEFT_GPT_RANK_SAVED: return saved(rank, error);
    case WEFT_GPT_RANK_COMMITTED: return committed(rank, error);
    case WEFT_GPT_RANK_DONE: break;
  }
  return WEFT_OK;
}

/* This rank's own trouble becomes everybody's. */
static enum weft_status give_up(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  struct weft_failure failure = {.rank = transport->rank, .error = *error};
  transport->ops->fail(transport, &failure);
  if (transport->ops->failed(transport, &failure)) {
    *error = failure.error;
  }
  return error->status;
}

enum weft_status weft_gpt_rank_advance(struct weft_gpt_rank *rank, struct weft_error *error) {
  enum weft_status status = rank->transport->ops->progress(rank->transport, error);
  rank->waits = false;
  while (status == WEFT_OK && rank->state != WEFT_GPT_RANK_DONE) {
    status = advance_once(rank, error);
  }
  return status < 0 ? give_up(rank, error) : status;
}

enum weft_status weft_gpt_rank_wait(struct weft_gpt_rank *rank, struct weft_error *error) {
  if (!rank->waits) {
    return weft_pipeline_wait(rank->pipeline, error);
  }
  const int64_t limit = rank->trainer->options.stall_limit;
  return rank->transport->ops->wait(rank->transport,
                                    limit > 0 ? rank->wait_since + limit : WEFT_TIME_NEVER, error);
}
