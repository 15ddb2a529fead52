/* Reporting failures: the first function that knows says what happened, the others
 * forward the status. */
#ifndef GPT_FAIL_H
#define GPT_FAIL_H

#include <weft/base.h>

/* Returns the status of a failing call to the caller. */
#define WEFT_GPT_TRY(call)                          \
  do {                                              \
    const enum weft_status gpt_try_status = (call); \
    if (gpt_try_status < 0) {                       \
      return gpt_try_status;                        \
    }                                               \
  } while (0)

/* Fills *error (unless NULL) and returns `status`. The message is formatted, the hint
 * is literal; either is cut with "..." when too long. Control bytes in the message,
 * from a file's name for one, become "?". */
enum weft_status weft_gpt_fail(struct weft_error *error, enum weft_status status, const char *hint,
                               const char *format, ...) WEFT_PRINTF(4, 5);

/* WEFT_ERR_MEMORY, with the number of bytes that could not be had. */
enum weft_status weft_gpt_fail_memory(struct weft_error *error, uint64_t bytes);

/* `size` bytes of outside text in `buffer`, all but printable ASCII as \xNN, cut with
 * "..."; returns buffer. For building messages. */
char *weft_gpt_escape(char *buffer, size_t buffer_size, const char *data, size_t size);

#endif
