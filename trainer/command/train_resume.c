/* Model, data and optimizer of a training: new ones from options and defaults, or those of the
 * checkpoint. The shape of a trained model cannot change, so an option that differs from the
 * checkpoint is refused, with both numbers. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/scoped.h"
#include "trainer/command/train_setup.h"

/* A model that trains in a few minutes on two cores. */
enum {
  LAYERS_DEFAULT = 6,
  DIM_DEFAULT = 128,
  HEADS_DEFAULT = 4,
  CONTEXT_DEFAULT = 128,
  BATCH_DEFAULT = 16,
  MICROBATCHES_DEFAULT = 8,
  STEPS_DEFAULT = 800,
  SEED_DEFAULT = 1,
  WARMUP_MAX = 100
};

#define RATE_DEFAULT 0.002
#define DECAY_DEFAULT 0.1
#define CLIP_DEFAULT 1.0

int weft_train_setup_open(struct weft_train_setup *setup) {
  assert(setup != NULL);
  struct weft_error error;
  const char *dir = setup->arguments->texts[WEFT_CLI_OPTION_RESUME];
  if (dir == NULL) {
    return WEFT_CLI_OK;
  }
  return weft_cli_result(
      setup->cli, NULL,
      weft_gpt_checkpoint_open(setup->cli->allocator, dir, &setup->resume, &error), &error);
}

/* ---- A checkpoint's ---- */

static int contradict(const struct weft_train_setup *setup, enum weft_cli_option_id option,
                      uint64_t has) {
  const struct weft_cli_arguments *arguments = setup->arguments;
  const char *name = weft_cli_option_at(option)->name;
  char hint[128];
  if (!arguments->given[option] || arguments->numbers[option] == has) {
    return WEFT_CLI_OK;
  }
  (void)snprintf(hint, sizeof hint, "leave out --%s, or train without --resume", name);
  return weft_cli_usage(setup->cli, hint,
                        "--%s %" PRIu64
                        " is not what the checkpoint in '%s' was trained with: "
                        "that is %" PRIu64,
                        name, arguments->numbers[option],
                        weft_cli_quoted(arguments->texts[WEFT_CLI_OPTION_RESUME]).text, has);
}

static int check_shape(const struct weft_train_setup *setup,
                       const struct weft_gpt_training *training) {
  const struct weft_gpt_config *config = &training->config;
  const struct {
    enum weft_cli_option_id option;
    uint64_t has;
  } pairs[] = {{WEFT_CLI_OPTION_LAYERS, config->blocks},
               {WEFT_CLI_OPTION_DIM, config->dim},
               {WEFT_CLI_OPTION_HEADS, config->heads},
               {WEFT_CLI_OPTION_CONTEXT, config->context},
               {WEFT_CLI_OPTION_VOCABULARY, config->vocabulary},
               {WEFT_CLI_OPTION_PREDICT_TOKENS, weft_gpt_head_count(config)},
               {WEFT_CLI_OPTION_BATCH, training->batch},
               {WEFT_CLI_OPTION_SEED, training->data_seed},
               {WEFT_CLI_OPTION_MICROBATCHES, training->microbatches}};
  /* With --dp the microbatches of a replica may have to change. */
  const size_t count =
      WEFT_ARRAY_LENGTH(pairs) - (setup->arguments->given[WEFT_CLI_OPTION_DP] ? 1 : 0);
  for (size_t i = 0; i < count; i++) {
    WEFT_CLI_TRY(contradict(setup, pairs[i].option, pairs[i].has));
  }
  /* Options about its shape, given beside the name, are those above. */
  const struct weft_gpt_config named = weft_train_new_training(setup->arguments, false).config;
  if (setup->arguments->given[WEFT_CLI_OPTION_MODEL] &&
      (named.blocks != config->blocks || named.dim != config->dim || named.heads != config->heads ||
       named.context != config->context || named.vocabulary != config->vocabulary ||
       named.tied != config->tied)) {
    return weft_cli_usage(setup->cli, "leave out --model, or train without --resume",
                          "--model %s is not what the checkpoint was trained with: that has "
                          "%" PRIu32 " layers, dim %" PRIu32 ", context %" PRIu32
                          " and a vocabulary of %" PRIu32,
                          setup->arguments->texts[WEFT_CLI_OPTION_MODEL], config->blocks,
                          config->dim, config->context, config->vocabulary);
  }
  if (setup->arguments->given[WEFT_CLI_OPTION_TIED] && !config->tied) {
    return weft_cli_usage(setup->cli, "leave out --tied, or train without --resume",
                          "--tied is not what the checkpoint was trained with: its head has "
                          "weights of its own");
  }
  if (setup->arguments->given[WEFT_CLI_OPTION_SKIPS] && !config->skips) {
    return weft_cli_usage(setup->cli, "leave out --skips, or train without --resume",
                          "--skips is not what the checkpoint was trained with: its blocks have "
                          "none");
  }
  return WEFT_CLI_OK;
}

static int check_steps(const struct weft_train_setup *setup,
                       const struct weft_gpt_training *training) {
  const uint64_t steps =
      weft_cli_number(setup->arguments, WEFT_CLI_OPTION_STEPS, training->total_steps);
  if (steps >= training->step) {
    return WEFT_CLI_OK;
  }
  return weft_cli_usage(setup->cli, "--steps counts all steps, also those before the checkpoint",
                        "--steps %" PRIu64 " is over already: the checkpoint has %" PRIu64, steps,
                        training->step);
}

/* ---- New ones ---- */

/* In the order of the option's choices; `always`: the first without the option. */
static struct weft_gpt_config named_model(const struct weft_cli_arguments *arguments, bool always) {
  static const struct weft_gpt_config models[] = {
      {.blocks = 12, .dim = 768, .heads = 12},
      {.blocks = 24, .dim = 1024, .heads = 16},
      {.blocks = 36, .dim = 1280, .heads = 20},
  };
  struct weft_gpt_config config = {.blocks = LAYERS_DEFAULT,
                                   .dim = DIM_DEFAULT,
                                   .heads = HEADS_DEFAULT,
                                   .context = CONTEXT_DEFAULT,
                                   .vocabulary = WEFT_GPT_VOCABULARY};
  if (always || arguments->given[WEFT_CLI_OPTION_MODEL]) {
    config = models[arguments->choices[WEFT_CLI_OPTION_MODEL]];
    config.context = 1024;
    config.vocabulary = 50304;
    config.tied = true;
  }
  return config;
}

struct weft_gpt_training weft_train_new_training(const struct weft_cli_arguments *arguments,
                                                 bool named) {
  const struct weft_gpt_config usual = named_model(arguments, named);
  const uint64_t seed = weft_cli_number(arguments, WEFT_CLI_OPTION_SEED, SEED_DEFAULT);
  return (struct weft_gpt_training){
      .config = {.blocks =
                     (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_LAYERS, usual.blocks),
                 .dim = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_DIM, usual.dim),
                 .heads = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_HEADS, usual.heads),
                 .context =
                     (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_CONTEXT, usual.context),
                 .vocabulary = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_VOCABULARY,
                                                         usual.vocabulary),
                 .tied = usual.tied || arguments->given[WEFT_CLI_OPTION_TIED],
                 .skips = arguments->given[WEFT_CLI_OPTION_SKIPS],
                 .predict = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_PREDICT_TOKENS, 1),
                 .seed = seed},
      .data_seed = seed,
      .batch = weft_cli_number(arguments, WEFT_CLI_OPTION_BATCH, BATCH_DEFAULT),
      .microbatches =
          (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_MICROBATCHES, MICROBATCHES_DEFAULT),
      .rate = RATE_DEFAULT,
      .rate_min = RATE_DEFAULT / 10,
      .beta1 = 0.9,
      .beta2 = 0.95,
      .epsilon = 1e-8,
      .decay = DECAY_DEFAULT,
      .clip = CLIP_DEFAULT,
      .total_steps = STEPS_DEFAULT};
}

/* What may differ from the checkpoint. */
static void read_optimizer(const struct weft_cli_arguments *arguments, bool is_new,
                           struct weft_gpt_training *training) {
  training->total_steps = weft_cli_number(arguments, WEFT_CLI_OPTION_STEPS, training->total_steps);
  training->rate = weft_cli_real(arguments, WEFT_CLI_OPTION_LR, training->rate);
  const bool follows = is_new || arguments->given[WEFT_CLI_OPTION_LR];
  training->rate_min = weft_cli_real(arguments, WEFT_CLI_OPTION_LR_MIN,
                                     follows ? training->rate / 10 : training->rate_min);
  const uint64_t tenth = training->total_steps / 10;
  training->warmup_steps =
      weft_cli_number(arguments, WEFT_CLI_OPTION_WARMUP,
                      !is_new ? training->warmup_steps : (tenth < WARMUP_MAX ? tenth : WARMUP_MAX));
  training->decay = weft_cli_real(arguments, WEFT_CLI_OPTION_WEIGHT_DECAY, training->decay);
  training->clip = weft_cli_real(arguments, WEFT_CLI_OPTION_CLIP, training->clip);
}

int weft_train_setup_read_training(struct weft_train_setup *setup) {
  assert(setup != NULL);
  struct weft_gpt_training *training = &setup->options.training;
  const bool is_new = setup->resume == NULL;
  *training = is_new ? weft_train_new_training(setup->arguments, false)
                     : *weft_gpt_checkpoint_training(setup->resume);
  if (!is_new) {
    WEFT_CLI_TRY(check_shape(setup, training));
    WEFT_CLI_TRY(check_steps(setup, training));
  }
  training->microbatches = (uint32_t)weft_cli_number(setup->arguments, WEFT_CLI_OPTION_MICROBATCHES,
                                                     training->microbatches);
  read_optimizer(setup->arguments, is_new, training);
  struct weft_error error;
  return weft_cli_result(setup->cli, NULL, weft_gpt_config_check(&training->config, &error),
                         &error);
}

/* ---- The folder of checkpoints ---- */

/* Whether two trainings compute the same; then one may overwrite the checkpoints of the other. */
static bool is_same(const struct weft_gpt_training *a, const struct weft_gpt_training *b) {
  const struct weft_gpt_config *x = &a->config, *y = &b->config;
  return x->blocks == y->blocks && x->dim == y->dim && x->heads == y->heads &&
         x->context == y->context && x->vocabulary == y->vocabulary && x->tied == y->tied &&
         x->skips == y->skips && weft_gpt_head_count(x) == weft_gpt_head_count(y) &&
         x->seed == y->seed && a->data_hash == b->data_hash && a->data_seed == b->data_seed &&
         a->batch == b->batch && a->microbatches == b->microbatches && a->rate == b->rate &&
         a->rate_min == b->rate_min && a->decay == b->decay && a->clip == b->clip &&
         a->warmup_steps == b->warmup_steps && a->total_steps == b->total_steps;
}

/* Checkpoints of two trainings in one folder could be confused. */
static int check_folder(struct weft_train_setup *setup) {
  const char *dir = setup->arguments->texts[WEFT_CLI_OPTION_CHECKPOINT];
  struct weft_gpt_checkpoint *there;
  struct weft_error error;
  if (dir != NULL && weft_train_setup_reports(setup) &&
      weft_gpt_checkpoint_lock(dir, &setup->lock, &error) < 0) {
    return weft_cli_fail(setup->cli, NULL, &error);
  }
  if (dir == NULL || setup->resume != NULL ||
      weft_gpt_checkpoint_open(setup->cli->allocator, dir, &there, &error) < 0) {
    return WEFT_CLI_OK;
  }
  const struct weft_gpt_training *training = weft_gpt_checkpoint_training(there);
  int status = WEFT_CLI_OK;
  if (!is_same(training, &setup->options.training)) {
    char hint[400];
    const struct weft_cli_words quoted = weft_cli_quoted(dir);
    (void)snprintf(hint, sizeof hint,
                   "--resume %s continues that training; otherwise give another folder",
                   weft_cli_shell_word(dir).text);
    status = weft_cli_usage(setup->cli, hint,
                            "in '%s' there is a checkpoint of another training, after step %" PRIu64
                            " of %" PRIu64,
                            quoted.text, training->step, training->total_steps);
  }
  weft_gpt_checkpoint_close(there);
  return status;
}

int weft_train_setup_check_data(struct weft_train_setup *setup) {
  assert(setup != NULL);
  struct weft_gpt_training *training = &setup->options.training;
  const uint64_t hash = setup->dataset.hash;
  if (setup->resume != NULL && training->data_hash != hash) {
    return weft_cli_usage(
        setup->cli, "give --data as at the beginning",
        "the data is not what the checkpoint was trained on: its hash is %016" PRIx64
        ", and the checkpoint has %016" PRIx64,
        hash, training->data_hash);
  }
  training->data_hash = hash;
  return check_folder(setup);
}
