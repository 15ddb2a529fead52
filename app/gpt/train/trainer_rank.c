/* One rank's training, as a step function; see trainer_rank.h. */
#include "gpt/train/trainer_rank.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

static const struct weft_gpt_training *progress_of(const struct weft_gpt_rank *rank) {
  return &rank->trainer->options.training;
}

struct weft_gpt_stage *weft_gpt_rank_stage(const struct weft_gpt_rank *rank, uint32_t layer,
                                           uint32_t *k) {
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    if (layer >= stage->first_layer && layer - stage->first_layer < stage->layer_count) {
      *k = layer - stage->first_layer;
      return stage;
    }
  }
  return NULL;
}

/* ---- Waiting for others ---- */

static enum weft_status fail_missing(struct weft_gpt_rank *rank, int64_t waited,
                                     struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  uint32_t missing = transport->rank;
  char name[WEFT_RANK_NAME_SIZE];
  if (transport->ops->refresh_status != NULL) {
    transport->ops->refresh_status(transport, transport->ops->now(transport) + 1000000000);
  }
  for (uint32_t r = 0; r < transport->rank_count; r++) { /* who still works on its step */
    const struct weft_rank_status *board = transport->ops->rank_status(transport, r);
    if (__atomic_load_n(&board->phase, __ATOMIC_RELAXED) != WEFT_PHASE_DONE) {
      missing = r;
    }
  }
  (void)weft_fail(error, WEFT_ERR_STALLED, "'weft explain-hang' reads the dump",
                  "rank %" PRIu32 " has waited %.1f s after step %" PRIu64
                  " for the other ranks, and %s has not come",
                  transport->rank, (double)waited * 1e-9, rank->step,
                  weft_rank_name(transport, missing, name));
  const struct weft_failure failure = {.rank = missing, .error = *error};
  transport->ops->fail(transport, &failure);
  return WEFT_ERR_STALLED;
}

/* In virtual time nobody is late. */
static int64_t stall_limit(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  return options->transport == WEFT_GPT_LOOPBACK ? 0 : options->stall_limit;
}

enum weft_status weft_gpt_rank_await(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  const int64_t now = transport->ops->now(transport);
  const int64_t limit = stall_limit(rank);
  rank->waits = true;
  rank->wait_since = rank->wait_since == 0 ? now : rank->wait_since;
  if (limit > 0 && now - rank->wait_since >= limit) {
    return fail_missing(rank, now - rank->wait_since, error);
  }
  return WEFT_IN_PROGRESS;
}

enum weft_status weft_gpt_rank_meet(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status =
      weft_gpt_bulletin_advance(&rank->bulletin, rank->transport, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_gpt_rank_await(rank, error);
  }
  rank->wait_since = 0;
  rank->told = false;
  return status;
}

/* ---- The step ---- */

/* The replica's rows of the batch. */
static enum weft_status begin_batch(struct weft_gpt_rank *rank, bool validation, uint64_t number,
                                    struct weft_error *error) {
  const struct weft_gpt_training *training = progress_of(rank);
  const uint64_t tokens = training->config.context;
  const uint64_t rows = training->batch / rank->trainer->options.replicas;
  const uint64_t first = rank->replica * rows * tokens;
  if (rank->has_first || rank->has_last) {
    weft_gpt_dataset_batch(rank->trainer->options.dataset, validation, training->data_seed, number,
                           training->batch, tokens, rank->inputs, rank->targets);
  }
  const struct weft_tensor_shape shape = {WEFT_U8, 2, {0}, {rows, tokens}};
  const struct weft_tensor inputs = {
      .name = "tokens", .data = rank->inputs + first, .shape = shape};
  const struct weft_tensor targets = {
      .name = "targets", .data = rank->targets + first, .shape = shape};
  const struct weft_batch batch = {.microbatch_count = training->microbatches,
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
  if (!rank->has_last) {
    return 0;
  }
  weft_pipeline_result(rank->pipeline, &result);
  for (uint32_t k = 0; k < result.loss_count; k++) {
    sum += result.losses[k];
  }
  return sum / result.loss_count;
}

bool weft_gpt_rank_is_over(const struct weft_gpt_rank *rank) {
  return rank->stop || rank->step >= progress_of(rank)->total_steps;
}

static enum weft_status next(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  if (options->between_steps != NULL) {
    options->between_steps(options->context, rank->transport->rank, rank->step);
  }
  if (weft_gpt_rank_is_over(rank)) {
    rank->layer_at = 0;
    rank->state = WEFT_GPT_RANK_HASH;
    return WEFT_OK;
  }
  rank->step_begin_ns = weft_clock_ns();
  rank->state = WEFT_GPT_RANK_STEP;
  rank->report = (struct weft_gpt_step_report){.validation_loss = NAN, .predicted_bubble = NAN};
  return begin_batch(rank, false, rank->step, error);
}

static enum weft_status step(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = weft_pipeline_advance(rank->pipeline, error);
  if (status != WEFT_OK) {
    return status;
  }
  rank->pipeline_ns = weft_clock_ns() - rank->step_begin_ns;
  weft_gpt_rank_measure(rank);
  rank->loss = mean_loss(rank);
  rank->state = WEFT_GPT_RANK_NORMS;
  return WEFT_OK;
}

/* ---- Evaluation ---- */

static enum weft_status evaluate(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const uint32_t batches = options->eval_steps > 0 ? options->eval_steps : 1;
  const bool due = options->eval_every > 0 &&
                   (rank->step % options->eval_every == 0 || weft_gpt_rank_is_over(rank));
  if (due && rank->eval_at < batches) {
    rank->state = WEFT_GPT_RANK_EVALUATING;
    return begin_batch(rank, true, rank->eval_at, error);
  }
  rank->layer_at = 0;
  rank->eval_sum /= batches;
  rank->state = due ? WEFT_GPT_RANK_EVALUATED : WEFT_GPT_RANK_SAVE;
  return WEFT_OK;
}

static enum weft_status evaluating(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = weft_pipeline_advance(rank->pipeline, error);
  if (status != WEFT_OK) {
    return status;
  }
  rank->eval_sum += mean_loss(rank);
  rank->eval_at++;
  rank->state = WEFT_GPT_RANK_EVALUATE;
  return WEFT_OK;
}

/* The rank with the last stage tells its replica's loss; the others 0. */
static enum weft_status evaluated(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  double sum = 0, loss;
  if (!rank->told) {
    weft_gpt_bulletin_begin(&rank->bulletin, sizeof loss);
    memcpy(rank->bulletin.mine, &rank->eval_sum, sizeof loss);
    rank->told = true;
  }
  const enum weft_status status = weft_gpt_rank_meet(rank, error);
  if (status != WEFT_OK) {
    return status;
  }
  for (uint32_t r = 0; r < trainer->world_size; r++) {
    memcpy(&loss, weft_gpt_bulletin_of(&rank->bulletin, r), sizeof loss);
    sum += loss;
  }
  rank->report.validation_loss = sum / trainer->options.replicas;
  rank->state = WEFT_GPT_RANK_SAVE;
  return WEFT_OK;
}

/* Nobody goes on before the checkpoint is there. */
static enum weft_status committed(struct weft_gpt_rank *rank, struct weft_error *error) {
  if (!rank->told) {
    weft_gpt_bulletin_begin(&rank->bulletin, 1);
    rank->told = true;
  }
  const enum weft_status status = weft_gpt_rank_meet(rank, error);
  if (status == WEFT_OK) {
    rank->report.checkpointed = true;
    weft_gpt_rank_tell(rank);
  }
  return status;
}

void weft_gpt_rank_tell(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  if (weft_gpt_rank_reports(rank) && options->on_step != NULL) {
    options->on_step(options->context, &rank->report);
  }
  rank->state = options->tunes ? WEFT_GPT_RANK_TUNE : WEFT_GPT_RANK_NEXT;
}

/* ---- The loop ---- */

static enum weft_status advance_once(struct weft_gpt_rank *rank, struct weft_error *error) {
  switch (rank->state) {
    case WEFT_GPT_RANK_TUNE: return weft_gpt_rank_tune(rank, error);
    case WEFT_GPT_RANK_PLANNED: return weft_gpt_rank_planned(rank, error);
    case WEFT_GPT_RANK_LETTERS: return weft_gpt_rank_letters(rank, error);
    case WEFT_GPT_RANK_NEXT: return next(rank, error);
    case WEFT_GPT_RANK_STEP: return step(rank, error);
    case WEFT_GPT_RANK_NORMS: return weft_gpt_rank_norms(rank, error);
    case WEFT_GPT_RANK_UPDATE: return weft_gpt_rank_update(rank, error);
    case WEFT_GPT_RANK_UPDATING: return weft_gpt_rank_updating(rank, error);
    case WEFT_GPT_RANK_EVALUATE: return evaluate(rank, error);
    case WEFT_GPT_RANK_EVALUATING: return evaluating(rank, error);
    case WEFT_GPT_RANK_EVALUATED: return evaluated(rank, error);
    case WEFT_GPT_RANK_SAVE: return weft_gpt_rank_save(rank, error);
    case WEFT_GPT_RANK_SAVED: return weft_gpt_rank_saved(rank, error);
    case WEFT_GPT_RANK_COMMITTED: return committed(rank, error);
    case WEFT_GPT_RANK_HASH: return weft_gpt_rank_hash(rank, error);
    case WEFT_GPT_RANK_HASHED: return weft_gpt_rank_hashed(rank, error);
    case WEFT_GPT_RANK_MODEL: return weft_gpt_rank_model(rank, error);
    case WEFT_GPT_RANK_EVENTS: return weft_gpt_rank_events(rank, error);
    case WEFT_GPT_RANK_DONE: break;
  }
  return WEFT_OK;
}

/* This rank's own trouble becomes everybody's. */
static enum weft_status give_up(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  struct weft_failure failure = {.rank = transport->rank, .error = *error};
  transport->ops->fail(transport, &failure);
  if (transport->ops->get_failure(transport, &failure)) {
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
  const int64_t limit = stall_limit(rank);
  return rank->transport->ops->wait(rank->transport,
                                    limit > 0 ? rank->wait_since + limit : WEFT_TIME_NEVER, error);
}
