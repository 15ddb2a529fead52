/* JSON in a checkpoint, which comes from outside and is not trusted. Messages name the file, the
 * field, what it is and what was expected. jansson allocates by malloc(), after the number of values
 * has been checked. */
#ifndef GPT_CHECKPOINT_JSON_H
#define GPT_CHECKPOINT_JSON_H

#include <jansson.h>

#include <weft/base.h>

struct weft_gpt_json {
  const char *name;   /* of the file */
  const char *format; /* that it should have, for messages */
  const char *hint;
  struct weft_error *error;
};

/* WEFT_ERR_FORMAT, with "'FILE': ..." in the error. */
enum weft_status weft_gpt_json_fault(const struct weft_gpt_json *json, const char *format, ...)
    WEFT_PRINTF(2, 3);
/* "FIELD is VALUE; expected EXPECTED" */
enum weft_status weft_gpt_json_unexpected(const struct weft_gpt_json *json, const char *field,
                                          const json_t *value, const char *expected);

/* Reads a text with at most so many commas. The caller gives the document back by json_decref(). */
enum weft_status weft_gpt_json_load(const struct weft_gpt_json *json, const char *text, size_t size,
                                    uint32_t commas_max, json_t **document);

/* Whether it is an object with exactly these members. `object_name` is "" for the document. */
enum weft_status weft_gpt_json_check_members(const struct weft_gpt_json *json,
                                             const char *object_name, json_t *object,
                                             const char *const *names, uint32_t count);

/* False: not an integer from 0 to `most`. */
bool weft_gpt_json_integer(const json_t *value, uint64_t most, uint64_t *number);

#endif
