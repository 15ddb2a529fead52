/* Shapes and tensors as text, for messages. */
#ifndef RUN_SHAPE_TEXT_H
#define RUN_SHAPE_TEXT_H

#include <weft/tensor.h>

#define WEFT_SHAPE_TEXT_MAX 160
#define WEFT_TENSOR_LABEL_MAX 80

/* "f32[2, 3]"; buffer of WEFT_SHAPE_TEXT_MAX; returns it. */
char *weft_shape_text(char *buffer, const struct weft_tensor_shape *shape);

/* "input 1 (mask)", or "input 1" without a name; buffer of WEFT_TENSOR_LABEL_MAX;
 * returns it. */
char *weft_tensor_label(char *buffer, const char *what, uint32_t number, const char *name);

#endif
