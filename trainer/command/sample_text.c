/* Text that a model writes. */
#include <assert.h>
#include <stdlib.h>

#include <weft/launch.h>

#include "cli/args/option_parser.h"

#include "cli/io/error_message.h"
#include "cli/scoped.h"
#include "trainer/command/restart.h"
#include "trainer/command/sample_text.h"
#include "trainer/kernels/kernels.h"

WEFT_SCOPED_TYPE(weft_gpt_sampler)

void weft_train_choose_kernels(const struct weft_cli *cli) {
  assert(cli != NULL);
  const char *core = weft_gpt_blas_core_wanted();
  if (core != NULL && getenv("OPENBLAS_CORETYPE") == NULL) {
    weft_train_restart(cli, "OPENBLAS_CORETYPE", core);
  }
}

/* A signal stops a long sample. */
static bool goes_on(void *context, uint32_t token) {
  (void)context;
  (void)token;
  return weft_launch_signal() == 0;
}

int weft_train_sample(const struct weft_cli *cli, const struct weft_gpt_config *config,
                      const struct weft_gpt_layer_state *layers,
                      struct weft_gpt_sample_options options, struct weft_text *text) {
  assert(cli != NULL && text != NULL);
  WEFT_SCOPED(weft_gpt_sampler) sampler = NULL;
  struct weft_error error;
  options.on_token = goes_on;
  WEFT_CLI_TRY(weft_cli_result(
      cli, NULL, weft_gpt_sampler_create(cli->allocator, config, layers, &sampler, &error),
      &error));
  return weft_cli_result(cli, NULL, weft_gpt_sample(sampler, &options, text, &error), &error);
}

void weft_train_add_printable(struct weft_text *text, const char *data, size_t size) {
  assert(text != NULL);
  size_t begin = 0;
  for (size_t k = 0; k <= size; k++) {
    const bool stays = k < size && (data[k] == '\n' || data[k] == '\t');
    if (k == size || stays) {
      weft_text_add_escaped(text, data + begin, k - begin);
      begin = k + 1;
    }
    if (stays) {
      weft_text_append(text, data + k, 1);
    }
  }
}
