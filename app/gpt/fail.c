/* Errors: filling struct weft_error. */
#include "gpt/fail.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Marks a text of `wanted` bytes that was cut to fit. */
static void mark_cut(char *buffer, size_t buffer_size, int wanted) {
  if (wanted >= 0 && (size_t)wanted >= buffer_size) {
    memcpy(buffer + buffer_size - 4, "...", 4);
  }
}

static void clean(char *text) {
  for (; *text != '\0'; text++) {
    const unsigned char byte = (unsigned char)*text;
    if (byte < 0x20 || byte == 0x7f) {
      *text = '?';
    }
  }
}

enum weft_status weft_gpt_fail(struct weft_error *error, enum weft_status status, const char *hint,
                               const char *format, ...) {
  if (error == NULL) {
    return status;
  }
  *error = (struct weft_error){.status = status};
  va_list arguments;
  va_start(arguments, format);
  mark_cut(error->message, sizeof error->message,
           vsnprintf(error->message, sizeof error->message, format, arguments));
  va_end(arguments);
  clean(error->message);
  mark_cut(error->hint, sizeof error->hint, snprintf(error->hint, sizeof error->hint, "%s", hint));
  return status;
}

enum weft_status weft_gpt_fail_memory(struct weft_error *error, uint64_t bytes) {
  return weft_gpt_fail(error, WEFT_ERR_MEMORY, "use a smaller model, or smaller microbatches",
                       "out of memory: %" PRIu64 " bytes could not be had", bytes);
}
