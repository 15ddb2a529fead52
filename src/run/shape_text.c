/* See shape_text.h. */
#include "run/shape_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

/* A dtype, six numbers of 20 digits and what is between them. */
_Static_assert(WEFT_SHAPE_TEXT_MAX >= 4 + WEFT_DIMS_MAX * 22 + 3, "any shape fits");

char *weft_shape_text(char *buffer, const struct weft_tensor_shape *shape) {
  int at =
      snprintf(buffer, WEFT_SHAPE_TEXT_MAX, "%s[", weft_dtype_name((enum weft_dtype)shape->dtype));
  for (uint32_t k = 0; k < shape->dim_count && k < WEFT_DIMS_MAX; k++) {
    at += snprintf(buffer + at, WEFT_SHAPE_TEXT_MAX - (size_t)at, "%s%" PRIu64, k > 0 ? ", " : "",
                   shape->dims[k]);
  }
  (void)snprintf(buffer + at, WEFT_SHAPE_TEXT_MAX - (size_t)at, "]");
  return buffer;
}

char *weft_tensor_label(char *buffer, const char *what, uint32_t number, const char *name) {
  char safe[WEFT_TENSOR_LABEL_MAX / 2];
  if (name == NULL) {
    (void)snprintf(buffer, WEFT_TENSOR_LABEL_MAX, "%.20s %" PRIu32, what, number);
  } else {
    (void)snprintf(buffer, WEFT_TENSOR_LABEL_MAX, "%.20s %" PRIu32 " (%s)", what, number,
                   weft_escape(safe, sizeof safe, name, strlen(name)));
  }
  return buffer;
}
