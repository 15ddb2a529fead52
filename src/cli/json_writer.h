/* JSON out: commas and escaping are kept right here, structure by the caller.
 *
 *     struct weft_cli_json json = {.text = &text};
 *     weft_cli_json_open(&json, NULL, '{');
 *     weft_cli_json_number(&json, "ranks", 4);
 *     weft_cli_json_close(&json, '}');
 */
#ifndef CLI_JSON_WRITER_H
#define CLI_JSON_WRITER_H

#include <weft/base.h>

struct weft_cli_json {
  struct weft_text *text;
  bool comma; /* something stands before on this level */
};

/* In all of these `key` is NULL inside a list. */
void weft_cli_json_open(struct weft_cli_json *json, const char *key, char bracket);
void weft_cli_json_close(struct weft_cli_json *json, char bracket);
/* Ends the document: a newline. */
void weft_cli_json_finish(struct weft_cli_json *json);

void weft_cli_json_string(struct weft_cli_json *json, const char *key, const char *value);
void weft_cli_json_number(struct weft_cli_json *json, const char *key, uint64_t value);
void weft_cli_json_real(struct weft_cli_json *json, const char *key, double value);
/* With as many digits as it takes to read the same number back. */
void weft_cli_json_exact(struct weft_cli_json *json, const char *key, double value);
void weft_cli_json_boolean(struct weft_cli_json *json, const char *key, bool value);
void weft_cli_json_null(struct weft_cli_json *json, const char *key);

#endif
