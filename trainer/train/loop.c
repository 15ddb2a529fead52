/* The training loop. Every rank runs it, and blocks where it needs the others: in the pipeline,
 * and where ranks gather numbers or layers. */
#include <assert.h>
#include <math.h>
#include <stdio.h>

#include <weft/support.h>

#include "trainer/train/rank.h"

/* ---- Divergence ---- */

/* Whether the optimizer may use the gradients of the step; if not, it is skipped, or the training
 * is over. */
static bool may_update(struct weft_gpt_rank *rank) {
  if (isfinite(rank->stats.loss) && isfinite(rank->stats.second_loss) &&
      isfinite(rank->stats.gradient_norm)) {
    return true;
  }
  switch (rank->trainer->options.on_divergence) {
    case WEFT_GPT_ON_DIVERGENCE_STOP: rank->divergence = WEFT_GPT_DIVERGED_STEP; return false;
    case WEFT_GPT_ON_DIVERGENCE_SKIP: rank->skipped++; return false;
    case WEFT_GPT_ON_DIVERGENCE_CONTINUE: break;
  }
  return true;
}

/* The square of a finite float is finite in double precision, and so is any sum of them here. */
static enum weft_status check_layer(const struct weft_gpt_rank *rank, uint32_t layer, bool *finite,
                                    struct weft_error *error) {
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  const struct weft_gpt_floats arrays[] = {{shard->parameters, shard->floats},
                                           {shard->first_moment, shard->floats},
                                           {shard->second_moment, shard->floats}};
  double sums[3];
  WEFT_TRY(rank->compute->ops->square_sums(rank->compute, 3, arrays, sums, error));
  *finite = isfinite(sums[0]) && isfinite(sums[1]) && isfinite(sums[2]);
  return WEFT_OK;
}

/* Whether parameters and moments of all ranks are finite; if not, the training is over unless it
 * continues. All ranks decide alike, because they decide by numbers that they have gathered. */
static enum weft_status check_parameters(struct weft_gpt_rank *rank, bool *finite,
                                         struct weft_error *error) {
  assert(rank != NULL && finite != NULL);
  double bad = 0, all_bad;
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    bool layer_finite;
    WEFT_TRY(check_layer(rank, rank->own_layers[k], &layer_finite, error));
    bad += layer_finite ? 0 : 1;
  }
  WEFT_TRY(weft_gpt_rank_sum(rank, bad, &all_bad, error));
  *finite = all_bad == 0;
  if (!*finite && rank->trainer->options.on_divergence != WEFT_GPT_ON_DIVERGENCE_CONTINUE) {
    rank->divergence = WEFT_GPT_DIVERGED_PARAMETERS;
  }
  return WEFT_OK;
}

/* This replica's rows of a batch. Only ranks with the first stage or a head read data. */
static struct weft_batch load_batch(struct weft_gpt_rank *rank, bool validation, uint64_t number,
                                    struct weft_tensor *inputs, struct weft_tensor *targets) {
  const struct weft_gpt_training *training = weft_gpt_rank_training(rank);
  const uint64_t tokens = training->config.context;
  const uint64_t rows = training->batch / rank->trainer->options.replicas;
  const enum weft_dtype dtype = weft_gpt_token_dtype(&training->config);
  const uint64_t first = rank->replica * rows * tokens * weft_dtype_size(dtype);
  const uint32_t heads = weft_gpt_head_count(&training->config);
  if (rank->has_first || rank->has_head) {
    weft_gpt_dataset_batch_ahead(rank->trainer->options.dataset, validation, training->data_seed,
                                 number, training->batch, tokens, heads, rank->inputs,
                                 (void *const *)rank->targets);
  }
  const struct weft_tensor_shape shape = {(uint8_t)dtype, 2, {0}, {rows, tokens}};
  *inputs = (struct weft_tensor){.name = "tokens", .data = rank->inputs + first, .shape = shape};
  for (uint32_t k = 0; k < heads; k++) {
    targets[k] =
        (struct weft_tensor){.name = "targets", .data = rank->targets[k] + first, .shape = shape};
  }
  return (struct weft_batch){.microbatch_count = training->microbatches,
                             .inputs = rank->has_first ? inputs : NULL,
                             .input_count = rank->has_first,
                             .targets = rank->has_head ? targets : NULL,
                             .target_count = rank->has_head ? heads : 0,
                             .want_losses = rank->has_head};
}

static double mean(const double *losses, uint32_t count) {
  double sum = 0;
  for (uint32_t k = 0; k < count; k++) {
    sum += losses[k];
  }
  return count > 0 ? sum / count : 0;
}

/* Of each head, the mean over microbatches, which are equally long; 0 without the head. */
static void mean_losses(const struct weft_gpt_rank *rank, const struct weft_step_result *result,
                        double losses[WEFT_GPT_HEADS_MAX]) {
  const struct weft_gpt_config *config = &rank->trainer->config;
  const uint32_t m = weft_gpt_rank_training(rank)->microbatches;
  losses[0] = losses[1] = 0;
  if (weft_gpt_head_count(config) == 1) {
    losses[0] = mean(result->losses, result->loss_count);
    return;
  }
  for (uint32_t head = 0; head < WEFT_GPT_HEADS_MAX; head++) {
    uint32_t k;
    const struct weft_gpt_stage *stage =
        weft_gpt_rank_find_layer(rank, config->blocks + 1 + head, &k);
    losses[head] = stage != NULL ? mean(stage->head_losses + (size_t)head * m, m) : 0;
  }
}

/* The sign of a NAN says nothing, but is printed. */
static double unsigned_nan(double number) { return isnan(number) ? NAN : number; }

/* The mean loss of the first head over the validation batches and the replicas. */
static enum weft_status evaluate(struct weft_gpt_rank *rank, double *loss,
                                 struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint32_t batches = trainer->options.eval_steps > 0 ? trainer->options.eval_steps : 1;
  struct weft_tensor inputs, targets[WEFT_GPT_HEADS_MAX];
  struct weft_step_result result;
  double own = 0, losses[WEFT_GPT_HEADS_MAX];
  for (uint32_t k = 0; k < batches; k++) {
    const struct weft_batch batch = load_batch(rank, true, k, &inputs, targets);
    WEFT_TRY(weft_pipeline_eval(rank->pipeline, &batch, &result, error));
    mean_losses(rank, &result, losses);
    own += losses[0];
  }
  WEFT_TRY(weft_gpt_rank_sum(rank, own / batches, loss, error));
  *loss = unsigned_nan(*loss / trainer->options.replicas);
  if (!isfinite(*loss) && trainer->options.on_divergence == WEFT_GPT_ON_DIVERGENCE_STOP) {
    rank->divergence = WEFT_GPT_DIVERGED_VALIDATION;
  }
  return WEFT_OK;
}

/* After a divergence nothing is due. */
static bool is_due(const struct weft_gpt_rank *rank, uint64_t every) {
  return rank->divergence == WEFT_GPT_NOT_DIVERGED &&
         ((every > 0 && rank->step % every == 0) || weft_gpt_rank_is_over(rank));
}

static bool is_evaluation_due(const struct weft_gpt_rank *rank) {
  const uint64_t every = rank->trainer->options.eval_every;
  return every > 0 && is_due(rank, every);
}

static bool is_checkpoint_due(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  return options->checkpoint_dir != NULL && is_due(rank, options->checkpoint_every);
}

/* Loss, norm, times and bubble of the last step. */
static void fill_report(struct weft_gpt_rank *rank, int64_t step_begin_ns,
                        struct weft_gpt_step_report *report) {
  const struct weft_gpt_training *training = weft_gpt_rank_training(rank);
  const int64_t now = weft_clock_ns();
  report->step = rank->step + (rank->divergence == WEFT_GPT_DIVERGED_STEP ? 1 : 0);
  report->steps = training->total_steps;
  report->loss = unsigned_nan(rank->stats.loss);
  report->second_loss = unsigned_nan(rank->stats.second_loss);
  report->gradient_norm = unsigned_nan(rank->stats.gradient_norm);
  report->seconds = (double)(now - step_begin_ns) * 1e-9;
  report->tokens_per_s =
      (double)(training->batch * training->config.context) / fmax(report->seconds, 1e-9);
  report->seconds_so_far = (double)(now - rank->run_begin_ns) * 1e-9;
  report->bubble = rank->stats.bubble;
  report->predicted_bubble = weft_gpt_profile_predict_bubble(rank);
  report->schedule = rank->autotune.current.schedule;
  const char *reason = weft_pipeline_eager_reason(rank->pipeline); /* until an evaluation */
  if (reason != NULL && !rank->trainer->options.eager) {
    (void)snprintf(rank->eager_reason, sizeof rank->eager_reason, "%s", reason);
    report->eager_reason = rank->eager_reason;
  }
}

static void call_between_steps(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  if (options->between_steps != NULL) {
    options->between_steps(options->context, rank->transport->rank, rank->step);
  }
}

enum weft_status weft_gpt_rank_train(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const struct weft_gpt_training *training = &options->training;
  const bool reports = weft_gpt_rank_reports(rank);
  struct weft_tensor inputs, targets[WEFT_GPT_HEADS_MAX];
  struct weft_step_result result;
  double losses[WEFT_GPT_HEADS_MAX];
  assert(rank->pipeline != NULL);
  rank->run_begin_ns = weft_clock_ns();

  for (call_between_steps(rank); !weft_gpt_rank_is_over(rank); call_between_steps(rank)) {
    struct weft_gpt_step_report report = {.validation_loss = NAN, .predicted_bubble = NAN};
    const int64_t begin_ns = weft_clock_ns();

    /* Forward and backward of all microbatches; gradients are summed over replicas. */
    const struct weft_batch batch = load_batch(rank, false, rank->step, &inputs, targets);
    report.rate = weft_gpt_learning_rate(rank->step, training->rate, training->rate_min,
                                         training->warmup_steps, training->total_steps);
    weft_gpt_rank_set_step(rank, report.rate);
    WEFT_TRY(weft_pipeline_step(rank->pipeline, &batch, &result, error));
    if (rank->trainer->process_per_rank) {
      WEFT_TRY(weft_gpt_exchange_end_step(rank, error));
    }
    const int64_t pipeline_ns = weft_clock_ns() - begin_ns;
    weft_gpt_profile_add_step(rank);

    /* The loss and the gradient norm come from all ranks; each updates its own layers. */
    mean_losses(rank, &result, losses);
    WEFT_TRY(weft_gpt_rank_gather_stats(rank, losses, pipeline_ns, error));
    const uint64_t skipped = rank->skipped;
    if (may_update(rank) && rank->compute->ops->update != NULL) {
      WEFT_TRY(weft_gpt_rank_optimizer_step(rank, report.rate, error));
    }
    report.skipped = rank->skipped > skipped;
    rank->step += rank->divergence == WEFT_GPT_NOT_DIVERGED;
    if (reports) {
      fill_report(rank, begin_ns, &report);
    }

    bool finite = true;
    if (report.skipped || is_evaluation_due(rank) || is_checkpoint_due(rank) || is_due(rank, 0)) {
      WEFT_TRY(check_parameters(rank, &finite, error));
    }
    if (is_evaluation_due(rank)) {
      WEFT_TRY(evaluate(rank, &report.validation_loss, error));
      report.evaluated = true;
    }
    if (is_checkpoint_due(rank)) {
      if (finite) {
        WEFT_TRY(weft_gpt_rank_save_checkpoint(rank, error));
      }
      report.checkpointed = finite;
      report.checkpoint_withheld = !finite;
    }
    if (reports && options->on_step != NULL) {
      options->on_step(options->context, &report);
    }
    if (options->tunes && rank->divergence == WEFT_GPT_NOT_DIVERGED) {
      WEFT_TRY(weft_gpt_rank_autotune(rank, error));
    }
  }

  WEFT_TRY(weft_gpt_rank_hash(rank, error));
  if (options->gather_model) {
    WEFT_TRY(weft_gpt_rank_gather_model(rank, error));
  }
  return weft_gpt_rank_gather_events(rank, error);
}
