/* Reporting failures. The first function that knows says what happened; the
 * others forward the status (WEFT_TRY). */
#ifndef BASE_FAIL_H
#define BASE_FAIL_H

#include <weft/base.h>

/* Returns the status of a failing call to the caller. */
#define WEFT_TRY(call)                               \
  do {                                               \
    const enum weft_status weft_try_status = (call); \
    if (weft_try_status < 0) {                       \
      return weft_try_status;                        \
    }                                                \
  } while (0)

/* Fills *error (unless NULL) and returns `status`. The message is formatted,
 * the hint is literal; either is cut with "..." when too long. */
enum weft_status weft_fail(struct weft_error *error, enum weft_status status, const char *hint,
                           const char *format, ...) WEFT_PRINTF(4, 5);

/* WEFT_ERR_MEMORY, with the number of bytes that could not be had. */
enum weft_status weft_fail_memory(struct weft_error *error, size_t bytes);

/* Puts `size` bytes of outside text into `buffer` with control bytes escaped,
 * cut with "..."; returns buffer. For building messages. */
char *weft_escape(char *buffer, size_t buffer_size, const char *data, size_t size);

#endif
