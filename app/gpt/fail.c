/* Errors: filling struct weft_error, and making outside text safe to show. */
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

static bool is_plain(unsigned char byte) { return byte >= 0x20 && byte < 0x7f; }

char *weft_gpt_escape(char *buffer, size_t buffer_size, const char *data, size_t size) {
  size_t used = 0;
  for (size_t i = 0; i < size; i++) {
    const unsigned char byte = (unsigned char)data[i];
    const size_t width = is_plain(byte) ? 1 : 4;
    /* Room for "..." and the NUL until it is known that all fits. */
    const size_t reserve = i + 1 < size ? 4 : 1;
    if (used + width + reserve > buffer_size) {
      (void)snprintf(buffer + used, buffer_size - used, "...");
      return buffer;
    }
    if (is_plain(byte)) {
      buffer[used] = (char)byte;
    } else {
      (void)snprintf(buffer + used, width + 1, "\\x%02x", byte);
    }
    used += width;
  }
  buffer[used] = '\0';
  return buffer;
}
