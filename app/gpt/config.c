/* Which configurations there can be. */
#include <inttypes.h>
#include <stdio.h>

#include "gpt/model.h"

static enum weft_status refuse(struct weft_error *error, const char *what, uint64_t found,
                               const char *expected) {
  if (error != NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_USAGE};
    snprintf(error->message, sizeof error->message, "%s is %" PRIu64 "; expected %s", what, found,
             expected);
  }
  return WEFT_ERR_USAGE;
}

enum weft_status weft_gpt_config_check(const struct weft_gpt_config *config,
                                       struct weft_error *error) {
  if (config->layers < 1 || config->layers > WEFT_GPT_LAYERS_MAX) {
    return refuse(error, "the number of layers", config->layers, "1 to 4096");
  }
  if (config->dim < 1 || config->dim > WEFT_GPT_DIM_MAX) {
    return refuse(error, "the model's dimension", config->dim, "1 to 65536");
  }
  if (config->heads < 1 || config->dim % config->heads != 0) {
    return refuse(error, "the number of heads", config->heads, "a divisor of the dimension");
  }
  if (config->context < 1 || config->context > WEFT_GPT_CONTEXT_MAX) {
    return refuse(error, "the context", config->context, "1 to 1048576 tokens");
  }
  if (config->vocabulary != WEFT_GPT_VOCABULARY) {
    return refuse(error, "the vocabulary", config->vocabulary, "256, a token per byte");
  }
  return WEFT_OK;
}
