#include "support_fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plain_text.h"

void fuzz_require(bool good, const char *what) {
  if (!good) {
    (void)fprintf(stderr, "fuzz: %s\n", what);
    abort();
  }
}

bool fuzz_is_printable(const char *text, bool lines) {
  size_t length;
  for (; *text != '\0'; text += length) {
    length = lines && *text == '\n' ? 1 : weft_plain_length(text, strlen(text));
    if (length == 0) {
      return false;
    }
  }
  return true;
}

void fuzz_check_error(const struct weft_error *error, const uint8_t *data, size_t size) {
  uint64_t lines = 1;
  for (size_t i = 0; i < size; i++) {
    lines += data[i] == '\n';
  }
  fuzz_require(error->message[0] != '\0' && error->hint[0] != '\0',
               "a failing call does not say why");
  fuzz_require(fuzz_is_printable(error->message, false), "a message with bytes of the file");
  fuzz_require(error->status == WEFT_ERR_LIMIT || error->line > 0, "no place");
  fuzz_require(error->line <= lines, "a line that is not there");
  fuzz_require(error->column <= size + 1, "a column that is not there");
}
