/* The costs file: JSON to struct weft_costs, strictly. jansson reads the text;
 * json_document finds the line, column and name of a field that is wrong. */
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <weft/costs.h>
#include <weft/support.h>

#include "base/plain_text.h"
#include "spec/costs_fields.h"
#include "spec/json_document.h"

#define SCHEMA "weft-costs/1"
#define TEXT_BYTES_MAX ((size_t)64 << 20)
/* A value after the first of its list or object has a comma before it. */
#define COMMAS_MAX (WEFT_STAGES_MAX * UINT32_C(16))

#define HINT_RANGE "times and sizes are numbers from 0 to 1e12; choose another unit for larger ones"
#define HINT_EXAMPLE                                                                          \
  "for example: {\"schema\": \"weft-costs/1\", \"stages\": [{\"f\": 1.5, \"i\": 1.4, \"w\": " \
  "0.9}]}"
#define HINT_SYNTAX "JSON has no NaN, no Infinity, no comments, and no comma after the last element"

/* ---- Numbers ---- */

static enum weft_status read_number(const struct weft_json_document *reader, const json_t *value,
                                    double *number) {
  if (!json_is_real(value) || !weft_cost_is_sane(json_real_value(value))) {
    return weft_json_document_unexpected(reader, HINT_RANGE, reader->numbers);
  }
  *number = json_real_value(value) + 0.0; /* -0 becomes 0 */
  return WEFT_OK;
}

/* The members of an object, all of them numbers. */
static enum weft_status read_numbers(struct weft_json_document *reader, json_t *object,
                                     const struct weft_cost_field *fields, void *numbers) {
  const char *key;
  json_t *value;
  if (!json_is_object(object)) {
    return weft_json_document_unexpected(reader, HINT_EXAMPLE, "an object with numbers");
  }
  uint64_t *ordinal = weft_json_document_enter(reader);
  json_object_foreach(object, key, value) {
    const struct weft_cost_field *field = fields;
    while (field->name != NULL && strcmp(field->name, key) != 0) {
      field++;
    }
    WEFT_TRY(field->name != NULL ? read_number(reader, value, weft_cost_at(numbers, field))
                                 : weft_json_document_unknown(reader, fields, sizeof *fields));
    ++*ordinal;
  }
  weft_json_document_leave(reader);
  return WEFT_OK;
}

/* ---- Stages ---- */

static enum weft_status read_stage(struct weft_json_document *reader, json_t *entry,
                                   struct weft_stage_costs *stage) {
  *stage = weft_stage_costs_default();
  stage->b = stage->activation_after_i = -1; /* left out */
  WEFT_TRY(read_numbers(reader, entry, weft_stage_cost_fields, stage));
  if (stage->activation_after_i < 0) {
    stage->activation_after_i = stage->activation;
  }
  if (stage->b < 0) {
    stage->b = stage->i + stage->w;
    if (!weft_cost_is_sane(stage->b)) {
      return weft_json_document_fail(reader, NULL, WEFT_ERR_FORMAT, HINT_RANGE,
                                     "b is left out, and i + w is %g: expected at most %g",
                                     stage->b, WEFT_COST_MAX);
    }
  }
  return WEFT_OK;
}

static enum weft_status read_stages(void *reader, json_t *list, void *into) {
  const struct weft_costs *costs = into;
  WEFT_TRY(weft_json_document_check_list(reader, list,
                                         "a list with one object for all stages or one for each",
                                         WEFT_STAGES_MAX, "one entry serves all stages"));
  uint64_t *ordinal = weft_json_document_enter(reader);
  for (; *ordinal < costs->stage_count; ++*ordinal) {
    WEFT_TRY(read_stage(reader, json_array_get(list, (size_t)*ordinal), &costs->stages[*ordinal]));
  }
  weft_json_document_leave(reader);
  return WEFT_OK;
}

/* ---- The other members ---- */

static enum weft_status read_parts(void *of, json_t *list, void *into) {
  struct weft_json_document *reader = of;
  struct weft_costs *costs = into;
  WEFT_TRY(weft_json_document_check_list(reader, list,
                                         "a list with one object for each part of the model",
                                         WEFT_STAGES_MAX, "parts can be left out"));
  WEFT_TRY(weft_costs_add_parts(costs, (uint32_t)json_array_size(list), reader->error));
  uint64_t *ordinal = weft_json_document_enter(reader);
  for (; *ordinal < costs->part_count; ++*ordinal) {
    struct weft_part_costs *part = &costs->parts[*ordinal];
    WEFT_TRY(
        read_numbers(reader, json_array_get(list, (size_t)*ordinal), weft_part_cost_fields, part));
    if (part->activation_after_i < 0) {
      part->activation_after_i = part->activation;
    }
  }
  weft_json_document_leave(reader);
  return WEFT_OK;
}

static enum weft_status read_hop(void *reader, json_t *object, void *into) {
  struct weft_hop_costs *hop = into;
  WEFT_TRY(read_numbers(reader, object, weft_hop_cost_fields, hop));
  const double transfer = weft_hop_transfer(hop, -1);
  return weft_cost_is_sane(transfer)
             ? WEFT_OK
             : weft_json_document_fail(reader, NULL, WEFT_ERR_FORMAT, HINT_RANGE,
                                       "bytes / bytes_per_unit is %g: expected at most %g",
                                       transfer, WEFT_COST_MAX);
}

static enum weft_status read_all_reduce(void *reader, json_t *object, void *into) {
  return read_numbers(reader, object, weft_all_reduce_cost_fields, into);
}

/* Shown on terminals and in pictures; jansson has seen that it is UTF-8. */
static bool is_printable(const char *text) {
  size_t length = 1;
  for (size_t left = strlen(text); left > 0 && length > 0; left -= length, text += length) {
    length = weft_plain_length(text, left);
  }
  return length > 0;
}

static enum weft_status read_unit(void *reader, json_t *value, void *into) {
  struct weft_costs *costs = into;
  const char *unit = json_string_value(value);
  if (unit == NULL || strlen(unit) >= sizeof costs->unit || !is_printable(unit)) {
    return weft_json_document_unexpected(reader, "for example \"unit\": \"ms\"",
                                         "a text of at most 15 bytes that can be printed");
  }
  memcpy(costs->unit, unit, strlen(unit) + 1);
  return WEFT_OK;
}

static enum weft_status read_schema(void *reader, json_t *value, void *into) {
  (void)into;
  const char *schema = json_string_value(value);
  return schema != NULL && strcmp(schema, SCHEMA) == 0
             ? WEFT_OK
             : weft_json_document_unexpected(reader, "this release reads no other",
                                             "\"" SCHEMA "\"");
}

static enum weft_status read_microbatch_size(void *reader, json_t *value, void *into) {
  if (!json_is_real(value) || !weft_microbatch_size_is_sane(json_real_value(value))) {
    return weft_json_document_unexpected(reader, "the samples of a microbatch, for example 4",
                                         "a whole number of samples");
  }
  *(double *)into = json_real_value(value);
  return WEFT_OK;
}

static enum weft_status read_of(void *reader, json_t *value, void *into) {
  struct weft_costs *costs = into;
  const char *of = json_string_value(value);
  const bool is_rank = of != NULL && strcmp(of, "rank") == 0;
  if (!is_rank && (of == NULL || strcmp(of, "stage") != 0)) {
    return weft_json_document_unexpected(reader, "what the entry of stages is of",
                                         "\"rank\" (a rank's share of the model) or \"stage\"");
  }
  if (is_rank && costs->stage_count > 1) {
    return weft_json_document_unexpected(reader, "leave it out, or give one entry",
                                         "\"stage\", because each stage has its own entry");
  }
  costs->of = is_rank ? WEFT_COSTS_OF_RANK : WEFT_COSTS_OF_STAGE;
  return WEFT_OK;
}

static enum weft_status read_rank_factors(void *of, json_t *list, void *into) {
  struct weft_json_document *reader = of;
  struct weft_costs *costs = into;
  WEFT_TRY(weft_json_document_check_list(reader, list, "a list with one number for each rank",
                                         WEFT_STAGES_MAX, "rank_factors can be left out"));
  const size_t count = json_array_size(list);
  costs->rank_factors = weft_array_allocate(costs->allocator, count, sizeof(double));
  if (costs->rank_factors == NULL) {
    return weft_fail_memory(reader->error, count * sizeof(double));
  }
  costs->rank_count = (uint32_t)count;
  uint64_t *ordinal = weft_json_document_enter(reader);
  for (; *ordinal < count; ++*ordinal) {
    const json_t *value = json_array_get(list, (size_t)*ordinal);
    if (!json_is_real(value) || !weft_rank_factor_is_sane(json_real_value(value))) {
      return weft_json_document_unexpected(reader, "1 is as fast as the other costs say",
                                           "a number from 1e-6 to 1e6");
    }
    costs->rank_factors[*ordinal] = json_real_value(value);
  }
  weft_json_document_leave(reader);
  return WEFT_OK;
}

/* ---- The document ---- */

static enum weft_status read_document(struct weft_json_document *reader,
                                      const struct weft_allocator *allocator, json_t *document,
                                      struct weft_costs **out) {
  static const struct weft_json_member members[] = {
      {"schema", read_schema, 0},
      {"unit", read_unit, 0},
      {"stages", read_stages, 0},
      {"of", read_of, 0},
      {"hop", read_hop, offsetof(struct weft_costs, hop)},
      {"all_reduce", read_all_reduce, offsetof(struct weft_costs, all_reduce)},
      {"microbatch_size", read_microbatch_size, offsetof(struct weft_costs, microbatch_size)},
      {"rank_factors", read_rank_factors, 0},
      {"parts", read_parts, 0},
      {NULL, NULL, 0}};
  if (!json_is_object(document)) {
    return weft_json_document_unexpected(reader, HINT_EXAMPLE, "an object");
  }
  WEFT_TRY(weft_json_document_require(reader, document, HINT_EXAMPLE, "schema",
                                      "\"schema\": \"" SCHEMA "\""));
  WEFT_TRY(
      weft_json_document_require(reader, document, HINT_EXAMPLE, "stages", "a list of objects"));
  struct weft_costs *costs;
  const size_t stages = json_array_size(json_object_get(document, "stages"));
  const bool is_count = stages > 0 && stages <= WEFT_STAGES_MAX; /* else read_stages() fails */
  WEFT_TRY(weft_costs_create(allocator, is_count ? (uint32_t)stages : 1, &costs, reader->error));
  const enum weft_status status = weft_json_document_read(reader, document, members, costs);
  if (status < 0) {
    weft_costs_destroy(costs);
    return status;
  }
  *out = costs;
  return WEFT_OK;
}

/* ---- The text ---- */

enum weft_status weft_costs_parse(const struct weft_allocator *allocator, const char *text,
                                  size_t size, const char *name, struct weft_costs **out,
                                  struct weft_error *error) {
  WEFT_NEED(out, error);
  if (size > 0) {
    WEFT_NEED(text, error);
  }
  char numbers[64];
  (void)snprintf(numbers, sizeof numbers, "a number from 0 to %g", WEFT_COST_MAX);
  struct weft_json_document reader = {
      .text = text,
      .size = size,
      .name = name != NULL ? name : "costs",
      .what = "costs",
      .hint = "is this a costs file?",
      .example = HINT_EXAMPLE,
      .unknown_hint = "take it out; docs/prediction.md has the format",
      .syntax_hint = HINT_SYNTAX,
      .numbers = numbers,
      .numbers_hint = HINT_RANGE,
      .error = error};
  /* Whole numbers as reals, so that 10^30 is a number like others, and refused by name. */
  json_t *document;
  WEFT_TRY(weft_json_document_load(&reader, TEXT_BYTES_MAX, COMMAS_MAX, JSON_DECODE_INT_AS_REAL,
                                   &document));
  const enum weft_status status = read_document(&reader, allocator, document, out);
  json_decref(document);
  return status;
}

/* ---- Writing ---- */

/* Without defaults every number that is known is written. */
static void add_numbers(struct weft_json *json, const struct weft_cost_field *field,
                        const void *costs, const void *defaults) {
  for (; field->name != NULL; field++) {
    const double number = weft_cost_of(costs, field);
    const bool is_default = defaults != NULL && number == 0 && weft_cost_of(defaults, field) == 0;
    if (!is_default && (number >= 0 || !field->may_be_absent)) {
      weft_json_exact(json, field->name, number);
    }
  }
}

void weft_costs_print(const struct weft_costs *costs, struct weft_json *json, const char *key) {
  const struct weft_stage_costs stage_defaults = weft_stage_costs_default();
  assert(costs != NULL && json != NULL);
  weft_json_open(json, key, '{');
  weft_json_string(json, "schema", "weft-costs/1");
  weft_json_string(json, "unit", costs->unit);
  weft_json_open(json, "hop", '{');
  add_numbers(json, weft_hop_cost_fields, &costs->hop, NULL);
  weft_json_close(json, '}');
  if (costs->all_reduce.latency > 0 || costs->all_reduce.size_per_unit > 0) {
    weft_json_open(json, "all_reduce", '{');
    add_numbers(json, weft_all_reduce_cost_fields, &costs->all_reduce, NULL);
    weft_json_close(json, '}');
  }
  if (costs->microbatch_size > 1) {
    weft_json_exact(json, "microbatch_size", costs->microbatch_size);
  }
  if (costs->rank_factors != NULL) {
    weft_json_open(json, "rank_factors", '[');
    for (uint32_t r = 0; r < costs->rank_count; r++) {
      weft_json_exact(json, NULL, costs->rank_factors[r]);
    }
    weft_json_close(json, ']');
  }
  if (costs->stage_count == 1) {
    weft_json_string(json, "of", costs->of == WEFT_COSTS_OF_RANK ? "rank" : "stage");
  }
  weft_json_open(json, "stages", '[');
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    weft_json_open(json, NULL, '{');
    add_numbers(json, weft_stage_cost_fields, &costs->stages[s], &stage_defaults);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  if (costs->part_count > 0) {
    weft_json_open(json, "parts", '[');
    for (uint32_t p = 0; p < costs->part_count; p++) {
      weft_json_open(json, NULL, '{');
      add_numbers(json, weft_part_cost_fields, &costs->parts[p], NULL);
      weft_json_close(json, '}');
    }
    weft_json_close(json, ']');
  }
  weft_json_close(json, '}');
}
