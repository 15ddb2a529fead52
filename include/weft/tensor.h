/* Weft tensor: a dense block of numbers with a shape, on a device. The runtime moves tensors;
 * it computes only to merge outputs. */
#ifndef WEFT_TENSOR_H
#define WEFT_TENSOR_H

#include <weft/device.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_DIMS_MAX 6
#define WEFT_TENSORS_MAX 8 /* of one boundary, batch or target */

enum weft_dtype {
  WEFT_F32 = 1,
  WEFT_F64,
  WEFT_F16,
  WEFT_BF16,
  WEFT_I8,
  WEFT_I16,
  WEFT_I32,
  WEFT_I64,
  WEFT_U8,
  WEFT_BOOL,
  WEFT_DTYPE_END
};

/* Bytes of one element; 0 for a value that is not a dtype. */
WEFT_API uint64_t weft_dtype_size(enum weft_dtype dtype);
/* "f32", ...; "?" for a value that is not a dtype. */
WEFT_API const char *weft_dtype_name(enum weft_dtype dtype);

/* Dtype and dimensions, as they travel with a message. */
struct weft_tensor_shape {
  uint8_t dtype; /* enum weft_dtype */
  uint8_t dim_count;
  uint8_t reserved[6]; /* 0 */
  uint64_t dims[WEFT_DIMS_MAX];
};

/* Row-major, without gaps. A tensor without dimensions is one number; a tensor with a
 * dimension of 0 has no data. */
struct weft_tensor {
  const char *name;           /* borrowed; may be NULL */
  void *data;                 /* aligned to WEFT_DEVICE_ALIGN where the runtime allocated it */
  struct weft_device *device; /* where `data` is; NULL: host */
  struct weft_tensor_shape shape;
};

/* Number of elements, and of bytes; false on overflow or for an invalid shape. */
WEFT_API bool weft_shape_elements(const struct weft_tensor_shape *shape, uint64_t *elements);
WEFT_API bool weft_shape_bytes(const struct weft_tensor_shape *shape, uint64_t *bytes);

/* The tensors of a boundary or a microbatch. */
struct weft_tensors {
  uint32_t count;
  struct weft_tensor items[WEFT_TENSORS_MAX];
};

#ifdef __cplusplus
}
#endif
#endif
