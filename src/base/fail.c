/* Errors: filling struct weft_error, and making outside text safe to show. */
#include <assert.h>
#include <weft/support.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/plain_text.h"

const char *weft_version(void) { return WEFT_VERSION; }

const char *weft_status_name(enum weft_status status) {
  switch (status) {
    case WEFT_OK: return "ok";
    case WEFT_IN_PROGRESS: return "in progress";
    case WEFT_ERR_USAGE: return "usage";
    case WEFT_ERR_FORMAT: return "format";
    case WEFT_ERR_LIMIT: return "limit";
    case WEFT_ERR_MEMORY: return "memory";
    case WEFT_ERR_INVALID: return "invalid";
    case WEFT_ERR_MISSING: return "missing";
    case WEFT_ERR_IO: return "io";
    case WEFT_ERR_PEER: return "peer";
    case WEFT_ERR_STALLED: return "stalled";
    case WEFT_ERR_PROTOCOL: return "protocol";
    case WEFT_ERR_STAGE: return "stage";
    case WEFT_ERR_CANCELLED: return "cancelled";
    case WEFT_ERR_UNAVAILABLE: return "unavailable";
    case WEFT_ERR_INTERNAL: return "internal";
    case WEFT_ERR_SYSTEM: return "system";
    case WEFT_ERR_DEVICE: return "device";
  }
  return "unknown";
}

void weft_mark_cut(char *buffer, size_t buffer_size, int wanted) {
  if (wanted >= 0 && (size_t)wanted >= buffer_size && buffer_size >= 4) {
    size_t end = buffer_size - 4;
    while (end > 0 && ((unsigned char)buffer[end] & 0xc0) == 0x80) {
      end--;
    }
    memcpy(buffer + end, "...", 4);
  }
}

/* Outside text in a message, such as the name of a file, must not control a terminal. */
static void replace_controls(char *text) {
  for (size_t left = strlen(text); left > 0;) {
    const size_t length = weft_plain_length(text, left);
    if (length == 0) {
      *text = '?';
    }
    text += length > 0 ? length : 1;
    left -= length > 0 ? length : 1;
  }
}

enum weft_status weft_fail(struct weft_error *error, enum weft_status status, const char *hint,
                           const char *format, ...) {
  assert(status < 0 && hint != NULL && format != NULL);
  if (error == NULL) {
    return status;
  }
  struct weft_error made = {.status = status}; /* the arguments may be in *error */
  va_list arguments;
  va_start(arguments, format);
  weft_mark_cut(made.message, sizeof made.message,
                vsnprintf(made.message, sizeof made.message, format, arguments));
  va_end(arguments);
  replace_controls(made.message);
  weft_mark_cut(made.hint, sizeof made.hint, snprintf(made.hint, sizeof made.hint, "%s", hint));
  *error = made;
  return status;
}

enum weft_status weft_fail_null(struct weft_error *error, const char *function,
                                const char *argument) {
  return weft_fail(error, WEFT_ERR_USAGE, "its header says which pointers may be NULL",
                   "%s: %s is NULL", function, argument);
}

enum weft_status weft_fail_memory(struct weft_error *error, size_t bytes) {
  return weft_fail(error, WEFT_ERR_MEMORY, "close other programs, or use a smaller schedule",
                   "out of memory: %zu bytes could not be had", bytes);
}

char *weft_escape(char *buffer, size_t buffer_size, const char *data, size_t size) {
  assert(buffer != NULL && buffer_size > 0 && (data != NULL || size == 0));
  size_t used = 0;
  for (size_t i = 0; i < size;) {
    const size_t length = weft_plain_length(data + i, size - i);
    const size_t width = length > 0 ? length : 4;
    const size_t taken = length > 0 ? length : 1;
    /* Leave room for "..." and the NUL until it is known that all fits. */
    const size_t reserve = i + taken < size ? 4 : 1;
    if (used + width + reserve > buffer_size) {
      (void)snprintf(buffer + used, buffer_size - used, "...");
      return buffer;
    }
    if (length > 0) {
      memcpy(buffer + used, data + i, length);
    } else {
      (void)snprintf(buffer + used, width + 1, "\\x%02x", (unsigned char)data[i]);
    }
    used += width;
    i += taken;
  }
  buffer[used] = '\0';
  return buffer;
}
