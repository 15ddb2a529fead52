/* The reports before and after a training. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/spec.h>
#include <weft/support.h>

#include "cli/io/input_file.h"
#include "cli/io/text_columns.h"
#include "trainer/command/train_auto.h"
#include "trainer/command/train_report.h"
#include "trainer/model/layer_graph.h"

const char *weft_train_transport(const struct weft_train_setup *setup) {
  return setup->options.transport;
}

static const char *shard_name(const struct weft_train_setup *setup) {
  static const char *const names[] = {"none", "grads", "full"};
  return names[setup->options.shard];
}

static double to_mebibytes(uint64_t bytes) { return (double)bytes / (1024.0 * 1024.0); }

/* ---- Before ---- */

/* What decided the split, unless it is the default. */
static void add_reason(struct weft_text *text, const struct weft_train_setup *setup) {
  const char *split = setup->arguments->texts[WEFT_CLI_OPTION_SPLIT];
  if (setup->split_by == WEFT_TRAIN_SPLIT_GIVEN) {
    weft_text_add(text, "; as given");
  } else if (setup->split_by == WEFT_TRAIN_SPLIT_MEASURED) {
    const char *name = weft_cli_input_name(split);
    weft_text_add(text, "; by the times in ");
    weft_text_add_escaped(text, name, strlen(name));
  } else if (setup->split_by == WEFT_TRAIN_SPLIT_PLANNED) {
    weft_text_addf(text, "; planned from measured times, promises %.1f %% less than %s",
                   100 * setup->split_gain, split != NULL ? split : "even");
  }
}

static void add_split(struct weft_text *text, const struct weft_train_setup *setup,
                      const struct weft_gpt_trainer *trainer) {
  enum { SHOWN_MAX = 16 };
  uint32_t count;
  const uint32_t *first = weft_gpt_trainer_split(trainer, &count);
  weft_text_add(text, "stages    ");
  for (uint32_t s = 0; s < count && s < SHOWN_MAX; s++) {
    weft_text_add(text, s > 0 ? " | " : "");
    weft_gpt_add_layers(text, first[s], first[s + 1], &setup->options.training.config);
  }
  weft_text_add(text, count > SHOWN_MAX ? " | ..." : "");
  add_reason(text, setup);
  weft_text_add(text, "\n");
}

/* Of a model whose layers are no chain. */
static void add_graph(struct weft_text *text, const struct weft_gpt_config *config,
                      const struct weft_gpt_trainer *trainer) {
  const uint32_t skips = weft_gpt_skip_count(config);
  uint32_t stages;
  (void)weft_gpt_trainer_split(trainer, &stages);
  const uint32_t edges = weft_graph_edge_count(weft_gpt_trainer_graph(trainer), stages);
  if (skips == 0 && weft_gpt_head_count(config) == 1) {
    return;
  }
  weft_text_add(text, "graph     ");
  if (skips > 0) {
    weft_text_addf(text, "%" PRIu32 " skip%s, ", skips, weft_cli_plural(skips));
  }
  if (weft_gpt_head_count(config) > 1) {
    weft_text_addf(text, "a second head of weight %g, ", WEFT_GPT_SECOND_WEIGHT);
  }
  weft_text_addf(text, "%" PRIu32 " edge%s between stages\n", edges, weft_cli_plural(edges));
}

void weft_train_add_plan(struct weft_text *text, const struct weft_train_setup *setup,
                         const struct weft_gpt_trainer *trainer) {
  assert(text != NULL && setup != NULL && trainer != NULL);
  const struct weft_gpt_trainer_options *options = &setup->options;
  const struct weft_gpt_training *training = &options->training;
  const struct weft_gpt_config *config = &training->config;
  const uint64_t rows = training->batch / options->replicas / training->microbatches;
  weft_text_addf(text,
                 "model     %" PRIu32 " block%s, %" PRIu32 " wide, %" PRIu32
                 " head%s, context %" PRIu32 "; %" PRIu64 " parameters\n",
                 config->blocks, weft_cli_plural(config->blocks), config->dim, config->heads,
                 weft_cli_plural(config->heads), config->context, weft_gpt_parameter_count(config));
  add_graph(text, config, trainer);
  weft_text_addf(text, "data      %" PRIu64 " %s, of which %" PRIu64 " validate\n",
                 setup->dataset.size, setup->dataset.token_bytes == 2 ? "tokens" : "bytes",
                 setup->dataset.size - setup->dataset.train_size);
  weft_text_addf(text,
                 "pipeline  %" PRIu32 " rank%s, %" PRIu32 " stage%s, %s%s, %" PRIu32
                 " microbatch%s of %" PRIu64 " sequence%s, %s\n",
                 options->ranks, weft_cli_plural(options->ranks), setup->stage_count,
                 weft_cli_plural(setup->stage_count), options->tunes ? "auto from " : "",
                 weft_gpt_trainer_schedule(trainer), training->microbatches,
                 training->microbatches == 1 ? "" : "es", rows, weft_cli_plural(rows),
                 weft_train_transport(setup));
  if (weft_gpt_trainer_attention(trainer) != NULL) {
    weft_text_addf(text, "attention by %s\n", weft_gpt_trainer_attention(trainer));
  }
  if (options->replicas > 1) {
    static const char *const shared[] = {"unsharded", "gradients and moments sharded",
                                         "weights, gradients and moments sharded"};
    weft_text_addf(text, "replicas  %" PRIu32 ", %s\n", options->replicas, shared[options->shard]);
  }
  add_split(text, setup, trainer);
  if (setup->resume != NULL) {
    weft_text_addf(text, "resumes   after step %" PRIu64 " of %" PRIu64 "\n", training->step,
                   training->total_steps);
  }
  weft_text_add(text, "\n");
}

/* ---- After ---- */

static void add_path(struct weft_text *text, const struct weft_train_setup *setup,
                     enum weft_cli_option_id option, const char *label) {
  const char *path = setup->arguments->texts[option];
  if (path != NULL) {
    weft_text_addf(text, "%-17s", label);
    weft_text_add_escaped(text, path, strlen(path));
    weft_text_add(text, "\n");
  }
}

static void add_losses(struct weft_text *text, const struct weft_train_progress *progress,
                       const struct weft_gpt_dataset *dataset) {
  const char *unit = dataset->token_bytes == 2 ? "token" : "byte";
  const struct weft_gpt_step_report *last = &progress->last;
  weft_text_addf(text, "loss             %.4f nats per %s after step %" PRIu64 "\n", last->loss,
                 unit, last->step);
  if (last->second_loss != 0) {
    weft_text_addf(text, "second head      %.4f for the %s after it\n", last->second_loss, unit);
  }
  if (progress->evaluated) {
    weft_text_addf(text, "validation       %.4f on text that it has not seen\n",
                   last->validation_loss);
  }
  weft_text_addf(text, "unigram baseline %.4f, from the frequencies of %ss\n",
                 weft_gpt_dataset_unigram_loss(dataset), unit);
}

void weft_train_add_summary(struct weft_text *text, const struct weft_train_setup *setup,
                            const struct weft_train_progress *progress,
                            const struct weft_gpt_trainer *trainer) {
  assert(text != NULL && setup != NULL && progress != NULL && trainer != NULL);
  const double bubble = weft_train_progress_bubble(progress);
  const double rate = weft_train_progress_rate(progress);
  weft_text_add(text, "\n");
  if (progress->steps > 0) {
    add_losses(text, progress, &setup->dataset);
  }
  if (isfinite(rate)) {
    weft_text_addf(text, "speed            %.0f tokens/s; %.1f s for %" PRIu64 " step%s\n", rate,
                   progress->last.seconds_so_far, progress->steps,
                   weft_cli_plural(progress->steps));
  }
  if (isfinite(bubble)) {
    weft_text_addf(text, "bubble           %.1f %% measured", 100 * bubble);
    if (isfinite(progress->last.predicted_bubble)) {
      weft_text_addf(text, ", %.1f %% predicted from measured times",
                     100 * progress->last.predicted_bubble);
    }
    weft_text_add(text, "\n");
  }
  weft_text_addf(text, "memory           %.1f MiB: weights, gradients, moments, activations",
                 to_mebibytes(progress->bytes));
  if (setup->job != NULL) {
    weft_text_addf(text, "; at most %.1f MiB on a rank", to_mebibytes(progress->bytes_max));
  }
  weft_text_add(text, "\n");
  if (progress->has_tuned) {
    weft_train_tuning_add_summary(text, &progress->tuning);
  }
  const uint64_t skipped = weft_gpt_trainer_steps_skipped(trainer);
  if (skipped > 0) {
    weft_text_addf(
        text, "skipped          %" PRIu64 " step%s, whose loss or gradient norm is not finite\n",
        skipped, weft_cli_plural(skipped));
  }
  weft_text_addf(text, "parameters_hash  %016" PRIx64 "\n", weft_gpt_trainer_hash(trainer));
  add_path(text, setup, WEFT_CLI_OPTION_CHECKPOINT, "checkpoint");
  add_path(text, setup, WEFT_CLI_OPTION_LOG, "log");
  add_path(text, setup, WEFT_CLI_OPTION_OUTPUT, "timeline");
  add_path(text, setup, WEFT_CLI_OPTION_PROFILE, "measured costs");
}

/* Blocks of each stage, as --split takes them. */
static void add_blocks(struct weft_json *json, const struct weft_gpt_trainer *trainer,
                       uint32_t layers) {
  uint32_t count;
  const uint32_t *first = weft_gpt_trainer_split(trainer, &count);
  weft_json_open(json, "split", '[');
  for (uint32_t s = 0; s < count; s++) {
    const uint32_t begin = first[s] > 1 ? first[s] : 1;
    const uint32_t end = first[s + 1] < layers + 1 ? first[s + 1] : layers + 1;
    weft_json_number(json, NULL, end > begin ? end - begin : 0);
  }
  weft_json_close(json, ']');
}

void weft_train_add_json(struct weft_text *text, const struct weft_train_setup *setup,
                         const struct weft_train_progress *progress,
                         const struct weft_gpt_trainer *trainer, const char *stopped_by) {
  assert(text != NULL && setup != NULL && progress != NULL && trainer != NULL);
  const struct weft_gpt_trainer_options *options = &setup->options;
  struct weft_json json = weft_json_begin(text, NULL);
  char hash[24];
  (void)snprintf(hash, sizeof hash, "%016" PRIx64, weft_gpt_trainer_hash(trainer));
  const bool diverged = weft_gpt_trainer_divergence(trainer) != WEFT_GPT_NOT_DIVERGED;
  weft_json_exact(&json, "final_loss", diverged ? NAN : progress->last.loss);
  if (weft_gpt_head_count(&options->training.config) > 1) {
    weft_json_exact(&json, "second_loss", diverged ? NAN : progress->last.second_loss);
  }
  weft_json_exact(&json, "validation_loss", diverged ? NAN : progress->last.validation_loss);
  weft_json_exact(&json, "unigram_entropy", weft_gpt_dataset_unigram_loss(&setup->dataset));
  weft_json_string(&json, "parameters_hash", hash);
  weft_json_number(&json, "steps", weft_gpt_trainer_steps_done(trainer));
  weft_json_number(&json, "skipped_steps", weft_gpt_trainer_steps_skipped(trainer));
  weft_json_real(&json, "tokens_per_s", weft_train_progress_rate(progress));
  weft_json_real(&json, "seconds", progress->last.seconds_so_far);
  weft_json_real(&json, "bubble", weft_train_progress_bubble(progress));
  weft_json_real(&json, "predicted_bubble", progress->last.predicted_bubble);
  weft_json_number(&json, "memory_bytes", progress->bytes);
  weft_json_number(&json, "memory_bytes_max", progress->bytes_max);
  weft_json_number(&json, "parameters", weft_gpt_parameter_count(&options->training.config));
  weft_json_number(&json, "ranks", options->ranks);
  weft_json_number(&json, "replicas", options->replicas);
  weft_json_string(&json, "shard", shard_name(setup));
  weft_json_number(&json, "stages", setup->stage_count);
  add_blocks(&json, trainer, options->training.config.blocks);
  if (weft_gpt_trainer_graph(trainer) != NULL) {
    weft_graph_print(weft_gpt_trainer_graph(trainer), &json, "graph");
  }
  if (options->tunes) {
    weft_json_exact(&json, "split_gain", setup->split_gain);
  }
  weft_json_string(&json, "schedule", weft_gpt_trainer_schedule(trainer));
  if (options->tunes) {
    weft_train_tuning_add_totals(&json, progress->has_tuned ? &progress->tuning : NULL);
  }
  weft_json_string(&json, "transport", weft_train_transport(setup));
  if (weft_gpt_trainer_attention(trainer) != NULL) {
    weft_json_string(&json, "attention", weft_gpt_trainer_attention(trainer));
  }
  if (stopped_by != NULL) {
    weft_json_string(&json, "stopped_by", stopped_by);
  }
  weft_json_end(&json);
}
