/* Checks a model configuration. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "gpt/model/model.h"

static enum weft_status check_range(const char *what, uint32_t found, uint32_t most,
                                    struct weft_error *error) {
  return found >= 1 && found <= most
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_USAGE, "", "%s is %" PRIu32 "; expected 1 to %" PRIu32,
                         what, found, most);
}

enum weft_status weft_gpt_config_check(const struct weft_gpt_config *config,
                                       struct weft_error *error) {
  assert(config != NULL);
  WEFT_TRY(check_range("the number of layers", config->blocks, WEFT_GPT_BLOCKS_MAX, error));
  WEFT_TRY(check_range("the model's dimension", config->dim, WEFT_GPT_DIM_MAX, error));
  WEFT_TRY(check_range("the context", config->context, WEFT_GPT_CONTEXT_MAX, error));
  if (config->heads < 1 || config->dim % config->heads != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "each head has as many channels",
                     "the number of heads is %" PRIu32
                     "; expected a divisor of the dimension, which is %" PRIu32,
                     config->heads, config->dim);
  }
  if (config->vocabulary != WEFT_GPT_VOCABULARY) {
    return weft_fail(error, WEFT_ERR_USAGE, "a token is a byte",
                     "the vocabulary is %" PRIu32 "; expected %d", config->vocabulary,
                     WEFT_GPT_VOCABULARY);
  }
  return WEFT_OK;
}
