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

struct weft_boundary;
/* "x f32[2, 3], mask u8[2]": the tensors of a boundary, or those that need gradients; as many as
 * fit. Returns the buffer. */
char *weft_boundary_text(char *buffer, size_t size, const struct weft_boundary *boundary,
                         bool gradients);

#endif
