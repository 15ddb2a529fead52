/* Fuzzes the reader of dumps. Beyond not crashing, what must hold:
 *   - a failing call explains itself in printable text, and names a place inside
 *     of the text;
 *   - what was read is explained to the end: a verdict, and a culprit, a
 *     cycle or nobody, in lines that a terminal can show. */
#include <string.h>

#include <weft/run.h>

#include "support_fuzz.h"

/* Larger inputs only make it slower, not wiser. */
#define SIZE_MAX_FUZZED 8192u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct weft_text text = {.allocator = NULL};
  struct weft_error error = {.status = WEFT_OK};
  if (size > SIZE_MAX_FUZZED) {
    return 0;
  }
  const enum weft_status status =
      weft_hang_explain((const char *)data, size, "fuzz", &text, &error);
  if (status != WEFT_OK) {
    fuzz_require(error.status == status, "the error carries another status");
    fuzz_require(text.size == 0, "a failing call wrote its output");
    fuzz_require(error.status == WEFT_ERR_FORMAT, "a status that text cannot have");
    fuzz_check_error(&error, data, size);
  } else {
    fuzz_require(fuzz_is_printable(text.data, true), "an explanation with bytes of the file");
    fuzz_require(strstr(text.data, "\n\nverdict: ") != NULL, "no verdict");
    fuzz_require(strstr(text.data, "\nculprit: ") != NULL || strstr(text.data, "\ncycle: ") != NULL,
                 "nobody is named");
  }
  weft_text_finish(&text);
  return 0;
}
