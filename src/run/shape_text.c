/* See shape_text.h. */
#include "run/shape_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/run.h>
#include <weft/support.h>

/* A dtype, six numbers of 20 digits and what is between them. */
_Static_assert(WEFT_SHAPE_TEXT_MAX >= 4 + WEFT_DIMS_MAX * 22 + 3, "any shape fits");

char *weft_shape_text(char *buffer, const struct weft_tensor_shape *shape) {
  assert(buffer != NULL && shape->dim_count <= WEFT_DIMS_MAX);
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

char *weft_boundary_text(char *buffer, size_t size, const struct weft_boundary *boundary,
                         bool gradients) {
  assert(size > 0 && boundary->tensor_count <= WEFT_TENSORS_MAX);
  size_t used = 0;
  buffer[0] = '\0';
  for (uint32_t k = 0; k < boundary->tensor_count && used + 1 < size; k++) {
    const struct weft_boundary_tensor *tensor = &boundary->tensors[k];
    char shape[WEFT_SHAPE_TEXT_MAX], name[32];
    if (gradients && !tensor->needs_grad) {
      continue;
    }
    if (tensor->name == NULL) {
      (void)snprintf(name, sizeof name, "tensor %" PRIu32, k);
    } else {
      (void)weft_escape(name, sizeof name, tensor->name, strlen(tensor->name));
    }
    const int more = snprintf(buffer + used, size - used, "%s%s %s", used > 0 ? ", " : "", name,
                              weft_shape_text(shape, &tensor->largest));
    used += (size_t)more;
  }
  return buffer;
}
