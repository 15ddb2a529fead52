/* The safetensors format: 8 bytes with the header's length, the header in JSON, padded
 * with spaces to a multiple of 8, and the tensors' bytes without gaps.
 *
 *   {"__metadata__": {...}, "NAME": {"dtype": "F32", "shape": [3, 4],
 *                                    "data_offsets": [0, 48]}, ...} */
#ifndef GPT_SAFETENSORS_H
#define GPT_SAFETENSORS_H

#include <weft/base.h>

#define WEFT_GPT_TENSORS_MAX 36
#define WEFT_GPT_HEADER_BYTES_MAX (1u << 20) /* the format's own limit is 100 MiB */

/* A tensor of floats in a file. */
struct weft_gpt_tensor {
  char name[64]; /* printable ASCII without quotes and backslashes */
  uint32_t dim_count;
  uint64_t dims[2];
  uint64_t bytes; /* 4 x dims, not 0 */
  uint64_t begin; /* first byte, counted from the beginning of the file */
};

/* Adds the 8 bytes and the header of a file with these tensors one after the other, and
 * writes where they begin. metadata: pairs of names and values, then NULL. */
void weft_gpt_safetensors_header(struct weft_text *text, struct weft_gpt_tensor *tensors,
                                 uint32_t tensor_count, const char *const *metadata);

/* Reads the header of a file that is in memory, and writes where each tensor begins:
 * the file must have exactly these, in any order, and not a byte that is in none.
 * WEFT_ERR_FORMAT says what is wrong in the file, which is called `name`; then no tensor
 * is changed. */
enum weft_status weft_gpt_safetensors_find(const char *name, const unsigned char *bytes,
                                           uint64_t size, struct weft_gpt_tensor *tensors,
                                           uint32_t tensor_count, struct weft_error *error);

#endif
