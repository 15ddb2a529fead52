/* Tensors: dtypes and sizes. */
#include <weft/support.h>
#include <weft/tensor.h>

static const struct {
  const char *name;
  uint8_t size;
} dtypes[WEFT_DTYPE_END] = {
    [WEFT_F32] = {"f32", 4},   [WEFT_F64] = {"f64", 8}, [WEFT_F16] = {"f16", 2},
    [WEFT_BF16] = {"bf16", 2}, [WEFT_I8] = {"i8", 1},   [WEFT_I16] = {"i16", 2},
    [WEFT_I32] = {"i32", 4},   [WEFT_I64] = {"i64", 8}, [WEFT_U8] = {"u8", 1},
    [WEFT_BOOL] = {"bool", 1},
};

uint64_t weft_dtype_size(enum weft_dtype dtype) {
  return dtype > 0 && dtype < WEFT_DTYPE_END ? dtypes[dtype].size : 0;
}

const char *weft_dtype_name(enum weft_dtype dtype) {
  return weft_dtype_size(dtype) > 0 ? dtypes[dtype].name : "?";
}

bool weft_shape_elements(const struct weft_tensor_shape *shape, uint64_t *elements) {
  uint64_t product = 1;
  bool empty = false;
  if (shape->dim_count > WEFT_DIMS_MAX) {
    return false;
  }
  for (uint32_t k = 0; k < shape->dim_count; k++) {
    empty = empty || shape->dims[k] == 0;
    if (shape->dims[k] > 0 && !weft_multiply(product, shape->dims[k], &product)) {
      return false;
    }
  }
  *elements = empty ? 0 : product;
  return true;
}

bool weft_shape_bytes(const struct weft_tensor_shape *shape, uint64_t *bytes) {
  const uint64_t size = weft_dtype_size((enum weft_dtype)shape->dtype);
  uint64_t elements;
  return size > 0 && weft_shape_elements(shape, &elements) && weft_multiply(elements, size, bytes);
}
