/* The manifest's fields, once, and the writer. It indents, which weft_json does not. */
#include "gpt/checkpoint/manifest.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#define AT(member) offsetof(struct weft_gpt_training, member)
#define COUNT_OF(array) ((uint32_t)(sizeof(array) / sizeof *(array)))

static const struct weft_gpt_field progress_fields[] = {
    {"step", WEFT_GPT_FIELD_NUMBER64, AT(step)},
    {"batch", WEFT_GPT_FIELD_NUMBER64, AT(batch)},
    {"microbatches", WEFT_GPT_FIELD_NUMBER32, AT(microbatches)},
};

static const struct weft_gpt_field model_fields[] = {
    {"layers", WEFT_GPT_FIELD_NUMBER32, AT(config.blocks)},
    {"dim", WEFT_GPT_FIELD_NUMBER32, AT(config.dim)},
    {"heads", WEFT_GPT_FIELD_NUMBER32, AT(config.heads)},
    {"context", WEFT_GPT_FIELD_NUMBER32, AT(config.context)},
    {"vocabulary", WEFT_GPT_FIELD_NUMBER32, AT(config.vocabulary)},
    {"tied", WEFT_GPT_FIELD_FLAG, AT(config.tied)},
    {"seed", WEFT_GPT_FIELD_HEX, AT(config.seed)},
};

static const struct weft_gpt_field data_fields[] = {
    {"hash", WEFT_GPT_FIELD_HEX, AT(data_hash)},
    {"seed", WEFT_GPT_FIELD_HEX, AT(data_seed)},
};

static const struct weft_gpt_field optimizer_fields[] = {
    {"rate", WEFT_GPT_FIELD_REAL, AT(rate)},
    {"rate_min", WEFT_GPT_FIELD_REAL, AT(rate_min)},
    {"beta1", WEFT_GPT_FIELD_REAL, AT(beta1)},
    {"beta2", WEFT_GPT_FIELD_REAL, AT(beta2)},
    {"epsilon", WEFT_GPT_FIELD_REAL, AT(epsilon)},
    {"decay", WEFT_GPT_FIELD_REAL, AT(decay)},
    {"clip", WEFT_GPT_FIELD_REAL, AT(clip)},
    {"warmup_steps", WEFT_GPT_FIELD_NUMBER64, AT(warmup_steps)},
    {"total_steps", WEFT_GPT_FIELD_NUMBER64, AT(total_steps)},
};

const struct weft_gpt_section *weft_gpt_manifest_sections(void) {
  static const struct weft_gpt_section sections[WEFT_GPT_SECTIONS] = {
      {"", progress_fields, COUNT_OF(progress_fields)},
      {"model", model_fields, COUNT_OF(model_fields)},
      {"data", data_fields, COUNT_OF(data_fields)},
      {"optimizer", optimizer_fields, COUNT_OF(optimizer_fields)},
  };
  return sections;
}

/* ---- Writing ---- */

/* The shortest that reads back as the same number; with a point, whatever the locale. */
static void add_real(struct weft_text *text, double value) {
  char digits[40];
  for (int precision = 15; precision <= 17; precision++) {
    (void)snprintf(digits, sizeof digits, "%.*g", precision, value);
    if (strtod(digits, NULL) == value) {
      break;
    }
  }
  for (char *digit = digits; *digit != '\0'; digit++) {
    if (strchr("0123456789+-e", *digit) == NULL) {
      *digit = '.';
    }
  }
  weft_text_add(text, digits);
}

static enum weft_status add_number(struct weft_text *text, const char *name, uint64_t value,
                                   struct weft_error *error) {
  if (value > INT64_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "use a smaller number",
                     "%s is %" PRIu64 "; a checkpoint holds at most %" PRId64, name, value,
                     INT64_MAX);
  }
  weft_text_add_number(text, value);
  return WEFT_OK;
}

static enum weft_status add_value(struct weft_text *text, const struct weft_gpt_field *field,
                                  const void *value, struct weft_error *error) {
  uint64_t number;
  uint32_t small;
  double real;
  switch (field->kind) {
    case WEFT_GPT_FIELD_NUMBER32:
      memcpy(&small, value, sizeof small);
      return add_number(text, field->name, small, error);
    case WEFT_GPT_FIELD_NUMBER64:
      memcpy(&number, value, sizeof number);
      return add_number(text, field->name, number, error);
    case WEFT_GPT_FIELD_HEX:
      memcpy(&number, value, sizeof number);
      weft_text_addf(text, "\"%016" PRIx64 "\"", number);
      return WEFT_OK;
    case WEFT_GPT_FIELD_FLAG:
      weft_text_add(text, *(const bool *)value ? "true" : "false");
      return WEFT_OK;
    case WEFT_GPT_FIELD_REAL: break;
  }
  memcpy(&real, value, sizeof real);
  if (!isfinite(real)) {
    return weft_fail(error, WEFT_ERR_USAGE, "use a finite number",
                     "%s is %g, which a checkpoint cannot hold", field->name, real);
  }
  add_real(text, real);
  return WEFT_OK;
}

static enum weft_status add_section(struct weft_text *text, const struct weft_gpt_section *section,
                                    const struct weft_gpt_training *training,
                                    struct weft_error *error) {
  const bool inner = section->name[0] != '\0';
  const char *indent = inner ? "    " : "  ";
  if (inner) {
    weft_text_addf(text, ",\n  \"%s\": {", section->name);
  }
  for (uint32_t k = 0; k < section->field_count; k++) {
    const struct weft_gpt_field *field = &section->fields[k];
    weft_text_addf(text, "%s\n%s\"%s\": ", inner && k == 0 ? "" : ",", indent, field->name);
    WEFT_TRY(add_value(text, field, (const char *)training + field->offset, error));
  }
  weft_text_add(text, inner ? "\n  }" : "");
  return WEFT_OK;
}

static enum weft_status add_layers(struct weft_text *text, uint32_t layer_count,
                                   const struct weft_gpt_manifest_layer *layers,
                                   struct weft_error *error) {
  weft_text_add(text, ",\n  \"parts\": [");
  for (uint32_t k = 0; k < layer_count; k++) {
    weft_text_addf(text, "%s\n    {\"file\": \"%s\", \"size\": ", k > 0 ? "," : "",
                   layers[k].file.text);
    WEFT_TRY(add_number(text, "the size of a part", layers[k].size, error));
    weft_text_addf(text, ", \"checksum\": \"%016" PRIx64 "\"}", layers[k].checksum);
  }
  weft_text_add(text, "\n  ]");
  return WEFT_OK;
}

enum weft_status weft_gpt_manifest_write(struct weft_text *text,
                                         const struct weft_gpt_training *training,
                                         const struct weft_gpt_manifest_layer *layers,
                                         struct weft_error *error) {
  assert(training != NULL && layers != NULL);
  const size_t first = text->size;
  weft_text_add(text, "{\n  \"schema\": \"" WEFT_GPT_MANIFEST_SCHEMA "\"");
  for (uint32_t k = 0; k < WEFT_GPT_SECTIONS; k++) {
    WEFT_TRY(add_section(text, &weft_gpt_manifest_sections()[k], training, error));
  }
  WEFT_TRY(add_layers(text, weft_gpt_layer_count(&training->config), layers, error));
  weft_text_add(text, ",\n");
  WEFT_TRY(weft_text_status(text, error));
  weft_text_addf(text, "  \"checksum\": \"%016" PRIx64 "\"\n}\n",
                 weft_gpt_checksum_of(text->data + first, text->size - first));
  return weft_text_status(text, error);
}
