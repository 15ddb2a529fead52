/* The parameters of the layers: names, shapes, offsets and initial values; and the check of a
 * configuration. */
#include "trainer/model/model.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

/* ---- Tables of tensors ---- */

/* The initial values of a tensor. */
enum fill {
  FILL_ZERO,
  FILL_ONE,
  FILL_NORMAL,
  FILL_RESIDUAL /* normal, smaller: 2 L of these add up on the residual stream */
};

/* A size: a multiple of C, or one of these. */
enum { NO_SIZE = 0, VOCABULARY = -1, CONTEXT = -2 };

struct form {
  const char *name;
  enum fill fill;
  int rows, columns; /* columns NO_SIZE: one dimension */
};

static const struct form embedding_forms[] = {
    {"wte.weight", FILL_NORMAL, VOCABULARY, 1},
    {"wpe.weight", FILL_NORMAL, CONTEXT, 1},
};

static const struct form block_forms[] = {
    {"ln1.weight", FILL_ONE, 1, NO_SIZE},      {"ln1.bias", FILL_ZERO, 1, NO_SIZE},
    {"attn.qkv.weight", FILL_NORMAL, 3, 1},    {"attn.qkv.bias", FILL_ZERO, 3, NO_SIZE},
    {"attn.proj.weight", FILL_RESIDUAL, 1, 1}, {"attn.proj.bias", FILL_ZERO, 1, NO_SIZE},
    {"ln2.weight", FILL_ONE, 1, NO_SIZE},      {"ln2.bias", FILL_ZERO, 1, NO_SIZE},
    {"mlp.fc.weight", FILL_NORMAL, 4, 1},      {"mlp.fc.bias", FILL_ZERO, 4, NO_SIZE},
    {"mlp.proj.weight", FILL_RESIDUAL, 1, 4},  {"mlp.proj.bias", FILL_ZERO, 1, NO_SIZE},
};

static const struct form head_forms[] = {
    {"lnf.weight", FILL_ONE, 1, NO_SIZE},
    {"lnf.bias", FILL_ZERO, 1, NO_SIZE},
    {"lm_head.weight", FILL_NORMAL, VOCABULARY, 1},
};

#define COUNT_OF(array) ((uint32_t)(sizeof(array) / sizeof *(array)))
_Static_assert(sizeof block_forms / sizeof *block_forms == WEFT_GPT_PARAMETERS_MAX, "");

static const struct form *forms_of(const struct weft_gpt_config *config, uint32_t layer,
                                   uint32_t *count) {
  assert(layer < weft_gpt_layer_count(config));
  if (layer == 0) {
    *count = COUNT_OF(embedding_forms);
    return embedding_forms;
  }
  if (weft_gpt_is_head(config, layer)) {
    *count = COUNT_OF(head_forms);
    return head_forms;
  }
  *count = COUNT_OF(block_forms);
  return block_forms;
}

static uint64_t size_of(const struct weft_gpt_config *config, int size) {
  switch (size) {
    case VOCABULARY: return config->vocabulary;
    case CONTEXT: return config->context;
    default: return (uint64_t)size * config->dim;
  }
}

/* ---- Offsets ---- */

enum { ALIGN_FLOATS = 64 / sizeof(float) };

static uint64_t aligned(uint64_t floats) {
  return (floats + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
}

static void describe_parameter(const struct weft_gpt_config *config, uint32_t layer,
                               const struct form *form, struct weft_gpt_parameter *parameter) {
  const bool matrix = form->columns != NO_SIZE;
  *parameter = (struct weft_gpt_parameter){
      .dim_count = matrix ? 2 : 1,
      .dims = {size_of(config, form->rows), matrix ? size_of(config, form->columns) : 1},
      .decays = matrix,
  };
  parameter->count = parameter->dims[0] * parameter->dims[1];
  if (layer == 0 || weft_gpt_is_head(config, layer)) {
    snprintf(parameter->name, sizeof parameter->name, "%s%s",
             layer > config->blocks + 1 ? "mtp." : "", form->name);
  } else {
    snprintf(parameter->name, sizeof parameter->name, "block.%" PRIu32 ".%s", layer - 1,
             form->name);
  }
}

uint32_t weft_gpt_layer_parameters(const struct weft_gpt_config *config, uint32_t layer,
                                   struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX]) {
  uint32_t count;
  const struct form *forms = forms_of(config, layer, &count);
  uint64_t offset = 0;
  for (uint32_t k = 0; k < count; k++) {
    describe_parameter(config, layer, &forms[k], &parameters[k]);
    parameters[k].offset = offset;
    offset = aligned(offset + parameters[k].count);
  }
  return count;
}

uint64_t weft_gpt_layer_floats(const struct weft_gpt_config *config, uint32_t layer) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  const uint32_t count = weft_gpt_layer_parameters(config, layer, parameters);
  return aligned(parameters[count - 1].offset + parameters[count - 1].count);
}

static uint64_t layer_parameter_count(const struct weft_gpt_config *config, uint32_t layer) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  const uint32_t count = weft_gpt_layer_parameters(config, layer, parameters);
  uint64_t sum = 0;
  for (uint32_t k = 0; k < count; k++) {
    sum += parameters[k].count;
  }
  return sum;
}

uint64_t weft_gpt_parameter_count(const struct weft_gpt_config *config) {
  const uint64_t twice = config->tied ? (uint64_t)config->vocabulary * config->dim : 0;
  return layer_parameter_count(config, 0) + config->blocks * layer_parameter_count(config, 1) +
         weft_gpt_head_count(config) * layer_parameter_count(config, config->blocks + 1) - twice;
}

/* ---- Initial values ---- */

static uint64_t stream_of(uint64_t seed, uint32_t layer, uint32_t tensor) {
  return weft_splitmix(weft_splitmix(weft_splitmix(seed) + layer) + tensor);
}

/* The sum of twelve uniform numbers, minus its mean, has variance 1 and is close enough to normal.
 * In integers of 16 bits it is exact, so it is the same on every machine; Box-Muller, with log and
 * cos, is not. */
static double normal_at(uint64_t stream, uint64_t index) {
  enum { WORDS = 3, MEAN = 6 * 65535 };
  int64_t sum = -MEAN;
  for (uint64_t k = 0; k < WORDS; k++) {
    const uint64_t word = weft_splitmix(stream + (WORDS * index + k) * WEFT_SPLITMIX_STEP);
    sum += (int64_t)(word & 0xffff) + (int64_t)(word >> 16 & 0xffff) +
           (int64_t)(word >> 32 & 0xffff) + (int64_t)(word >> 48);
  }
  return (double)sum / 65536;
}

static void fill_normal(uint64_t stream, double deviation, uint64_t count, float *values) {
  for (uint64_t k = 0; k < count; k++) {
    values[k] = (float)(deviation * normal_at(stream, k));
  }
}

static void fill_tensor(const struct weft_gpt_config *config, uint64_t stream, enum fill fill,
                        uint64_t count, float *values) {
  switch (fill) {
    case FILL_ZERO: break; /* the array is cleared */
    case FILL_ONE:
      for (uint64_t k = 0; k < count; k++) {
        values[k] = 1;
      }
      break;
    case FILL_NORMAL: fill_normal(stream, 0.02, count, values); break;
    case FILL_RESIDUAL:
      fill_normal(stream, 0.02 / sqrt(2.0 * config->blocks), count, values);
      break;
  }
}

void weft_gpt_layer_initialize(const struct weft_gpt_config *config, uint32_t layer,
                               float *parameters) {
  assert(parameters != NULL);
  struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
  uint32_t count;
  const struct form *forms = forms_of(config, layer, &count);
  (void)weft_gpt_layer_parameters(config, layer, table);
  memset(parameters, 0, weft_gpt_layer_floats(config, layer) * sizeof *parameters);
  for (uint32_t k = 0; k < count; k++) {
    /* A tied head begins with the embedding's. */
    const bool copy = config->tied && layer == config->blocks + 1 && k == WEFT_GPT_LM_HEAD_WEIGHT;
    const uint64_t stream = stream_of(config->seed, copy ? 0 : layer, copy ? WEFT_GPT_WTE : k);
    fill_tensor(config, stream, forms[k].fill, table[k].count, parameters + table[k].offset);
  }
}

/* ---- Checking ---- */

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
  if (config->vocabulary < WEFT_GPT_VOCABULARY || config->vocabulary > WEFT_GPT_VOCABULARY_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "a token is a byte, or has 16 bits",
                     "the vocabulary is %" PRIu32 "; expected %d to %d", config->vocabulary,
                     WEFT_GPT_VOCABULARY, WEFT_GPT_VOCABULARY_MAX);
  }
  if (config->skips && config->blocks < 3) {
    return weft_fail(error, WEFT_ERR_USAGE, "--layers 3 or more, or leave out --skips",
                     "%" PRIu32
                     " layers have no room for skips: they go from block k to block "
                     "L - 1 - k of L, over at least one block",
                     config->blocks);
  }
  return check_range("the number of tokens to predict", weft_gpt_head_count(config),
                     WEFT_GPT_HEADS_MAX, error);
}
