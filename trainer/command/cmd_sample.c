/* `weft sample`: text with a trained model. */
#include "trainer/command/train_commands.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/command/sample_text.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/aligned_memory.h"

enum { TOKENS_DEFAULT = 300 };
#define TEMPERATURE_DEFAULT 0.8

/* A checkpoint's weights, in memory. */
struct model {
  const struct weft_allocator *allocator;
  struct weft_gpt_checkpoint *checkpoint;
  const struct weft_gpt_training *training;
  struct weft_gpt_layer_state *layers; /* [layer_count], weights alone */
  uint32_t layer_count;
};

static enum weft_status load_layer(struct model *model, uint32_t layer, struct weft_error *error) {
  struct weft_gpt_layer_state *state = &model->layers[layer];
  state->layer = layer;
  state->floats = weft_gpt_layer_floats(&model->training->config, layer);
  state->parameters = weft_gpt_allocate(model->allocator, state->floats, sizeof(float));
  if (state->parameters == NULL) {
    return weft_fail_memory(error, state->floats * sizeof(float));
  }
  return weft_gpt_checkpoint_read_layer(model->checkpoint, state, error);
}

static enum weft_status load_model(struct model *model, const char *dir, struct weft_error *error) {
  WEFT_TRY(weft_gpt_checkpoint_open(model->allocator, dir, &model->checkpoint, error));
  model->training = weft_gpt_checkpoint_training(model->checkpoint);
  model->layer_count = weft_gpt_layer_count(&model->training->config);
  model->layers = weft_gpt_allocate(model->allocator, model->layer_count, sizeof *model->layers);
  if (model->layers == NULL) {
    return weft_fail_memory(error, model->layer_count * sizeof *model->layers);
  }
  for (uint32_t layer = 0; layer < model->layer_count; layer++) {
    WEFT_TRY(load_layer(model, layer, error));
  }
  return WEFT_OK;
}

static void unload(struct model *model) {
  for (uint32_t layer = 0; model->layers != NULL && layer < model->layer_count; layer++) {
    weft_gpt_free(model->allocator, model->layers[layer].parameters);
  }
  weft_gpt_free(model->allocator, model->layers);
  weft_gpt_checkpoint_close(model->checkpoint);
}

/* ---- What comes out ---- */

static void add_json(struct weft_text *text, const struct model *model, const char *prompt,
                     const struct weft_text *sample) {
  struct weft_json json = weft_json_begin(text, "weft-sample/1");
  WEFT_SCOPED_TEXT printable = {.allocator = text->allocator};
  weft_train_add_printable(&printable, sample->data, sample->size);
  weft_json_number(&json, "step", model->training->step);
  weft_json_string(&json, "prompt", prompt);
  weft_json_string(&json, "text", printable.data != NULL ? printable.data : "");
  weft_json_end(&json);
  text->failed = text->failed || printable.failed;
}

/* The prompt and the sample: as bytes, or on a terminal with control bytes escaped. */
static void add_words(struct weft_text *text, const char *prompt, const struct weft_text *sample,
                      bool printable) {
  if (printable) {
    weft_train_add_printable(text, prompt, strlen(prompt));
    weft_train_add_printable(text, sample->data, sample->size);
  } else {
    weft_text_add(text, prompt);
    weft_text_append(text, sample->data, sample->size);
  }
  weft_text_add(text, "\n");
}

/* The numbers of tokens, with spaces between them. */
static int read_tokens(const struct weft_cli *cli, const char *prompt, uint32_t vocabulary,
                       uint16_t *tokens, uint64_t *count) {
  const char *at = prompt;
  *count = 0;
  for (;;) {
    at += strspn(at, " ,\n");
    const size_t length = strspn(at, "0123456789");
    const unsigned long token = strtoul(at, NULL, 10);
    if (*at == '\0') {
      return WEFT_CLI_OK;
    }
    if (length == 0 || length > 5 || token >= vocabulary) {
      char hint[128];
      (void)snprintf(hint, sizeof hint,
                     "give numbers from 0 to %" PRIu32 ", for example '464 3290'", vocabulary - 1);
      return weft_cli_usage(cli, hint,
                            "--prompt '%s': '%.*s' is no token of this model, whose vocabulary has "
                            "%" PRIu32,
                            weft_cli_quoted(prompt).text, (int)strcspn(at, " ,\n"), at, vocabulary);
    }
    tokens[(*count)++] = (uint16_t)token;
    at += length;
  }
}

static int write_sample(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        const struct model *model) {
  const char *given = arguments->texts[WEFT_CLI_OPTION_PROMPT];
  const char *prompt = given != NULL ? given : "";
  const struct weft_gpt_config *config = &model->training->config;
  struct weft_gpt_sample_options options = weft_gpt_sample_options_default();
  WEFT_SCOPED_ARENA arena = {.allocator = cli->allocator};
  options.prompt = prompt;
  options.prompt_size = strlen(prompt);
  if (weft_gpt_token_bytes(config->vocabulary) > 1) {
    uint16_t *tokens = weft_arena_allocate(&arena, strlen(prompt) + 1, sizeof *tokens);
    if (tokens == NULL) {
      return weft_cli_fail_memory(cli);
    }
    WEFT_CLI_TRY(read_tokens(cli, prompt, config->vocabulary, tokens, &options.prompt_size));
    options.prompt = tokens;
  }
  options.count = weft_cli_number(arguments, WEFT_CLI_OPTION_TOKENS, TOKENS_DEFAULT);
  options.temperature = weft_cli_real(arguments, WEFT_CLI_OPTION_TEMPERATURE, TEMPERATURE_DEFAULT);
  options.top_k = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_TOP_K, 0);
  options.seed = weft_cli_number(arguments, WEFT_CLI_OPTION_SEED, 1);
  WEFT_SCOPED_TEXT sample = {.allocator = cli->allocator};
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  weft_text_add(&sample, "");
  WEFT_CLI_TRY(weft_train_sample(cli, config, model->layers, options, &sample));
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    add_json(&text, model, prompt, &sample);
  } else {
    add_words(&text, prompt, &sample,
              cli->output_terminal && !arguments->given[WEFT_CLI_OPTION_OUTPUT]);
  }
  text.failed = text.failed || sample.failed;
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}

int weft_train_cmd_sample(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  const char *dir = arguments->texts[WEFT_CLI_OPTION_CHECKPOINT];
  struct model model = {.allocator = cli->allocator};
  struct weft_error error;
  if (dir == NULL) {
    return weft_cli_usage(cli, "'weft train --checkpoint DIR' trains a model into a folder",
                          "there is no model: expected --checkpoint DIR");
  }
  weft_train_choose_kernels(cli);
  const bool loaded = load_model(&model, dir, &error) == WEFT_OK;
  weft_launch_signals_begin();
  int status = loaded ? write_sample(cli, arguments, &model) : weft_cli_fail(cli, NULL, &error);
  weft_launch_signals_end();
  unload(&model);
  const int number = weft_launch_signal();
  return status == WEFT_CLI_OK && number != 0 ? 128 + number : status;
}
