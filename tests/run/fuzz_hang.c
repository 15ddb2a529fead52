/* Fuzzes the reader of dumps. Beyond not crashing, what must hold:
 *   - a failing call explains itself in printable text, and names a place inside
 *     of the text;
 *   - what was read is explained to the end: a verdict, and a culprit, a
 *     cycle or nobody, in lines that a terminal can show. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/run.h>

/* Larger inputs only make it slower, not wiser. */
#define SIZE_MAX_FUZZED 8192u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool good, const char *what) {
  if (!good) {
    (void)fprintf(stderr, "fuzz_hang: %s\n", what);
    abort();
  }
}

/* Lines of UTF-8 without control bytes. */
static bool is_printable(const char *text) {
  for (; *text != '\0'; text++) {
    const unsigned char byte = (unsigned char)*text;
    if ((byte < 0x20 && byte != '\n') || byte == 0x7f) {
      return false;
    }
  }
  return true;
}

static void check_error(const struct weft_error *error, const uint8_t *data, size_t size) {
  uint64_t lines = 1;
  for (size_t i = 0; i < size; i++) {
    lines += data[i] == '\n';
  }
  require(error->message[0] != '\0' && error->hint[0] != '\0', "a failing call does not say why");
  require(is_printable(error->message), "a message with bytes of the file");
  require(error->status == WEFT_ERR_FORMAT, "a status that text cannot have");
  require(error->line > 0 && error->line <= lines, "a line that is not there");
  require(error->column <= size + 1, "a column that is not there");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct weft_text text = {.allocator = NULL};
  struct weft_error error = {.status = WEFT_OK};
  if (size > SIZE_MAX_FUZZED) {
    return 0;
  }
  const enum weft_status status =
      weft_hang_explain(NULL, (const char *)data, size, "fuzz", &text, &error);
  if (status != WEFT_OK) {
    require(error.status == status, "the error carries another status");
    require(text.size == 0, "a failing call wrote its output");
    check_error(&error, data, size);
  } else {
    require(is_printable(text.data), "an explanation with bytes of the file");
    require(strstr(text.data, "\n\nverdict: ") != NULL, "no verdict");
    require(strstr(text.data, "\nculprit: ") != NULL || strstr(text.data, "\ncycle: ") != NULL,
            "nobody is named");
  }
  weft_text_finish(&text);
  return 0;
}
