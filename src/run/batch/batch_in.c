/* Splits a batch, as torch.tensor_split does; see batch_in.h. A row-major tensor, split
 * along dimension d, is `outer` blocks of `length` x `inner` bytes; a chunk is a piece of
 * each block, so it is contiguous when `outer` is 1. Everything is checked and measured
 * first, then memory is reserved, then data is copied. */
#include "run/batch/batch_in.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/shape_text.h"

/* How one tensor is split. */
struct cut {
  uint32_t parts;  /* microbatches */
  bool whole;      /* for each of them */
  uint32_t dim;    /* else along this dimension */
  uint64_t length; /* of the dimension */
  uint64_t outer;  /* product of the dimensions before it */
  uint64_t inner;  /* bytes of one index of it */
};

static uint64_t chunk_begin(const struct cut *cut, uint32_t part) {
  const uint64_t longer = cut->length % cut->parts; /* the first so many have one more */
  return cut->length / cut->parts * part + (part < longer ? part : longer);
}

static uint64_t chunk_length(const struct cut *cut, uint32_t part) {
  return cut->length / cut->parts + (part < cut->length % cut->parts);
}

static bool is_copied(const struct cut *cut) {
  return !cut->whole && cut->outer > 1 && cut->parts > 1;
}

void weft_batch_in_finish(struct weft_batch_in *in) {
  weft_batch_memory_finish(&in->made, in->allocator);
  weft_batch_memory_finish(&in->uploaded, in->allocator);
  for (uint32_t t = 0; t < WEFT_TENSORS_MAX; t++) {
    weft_batch_memory_finish(&in->chunks[t], in->allocator);
  }
  *in = (struct weft_batch_in){.allocator = in->allocator};
}

/* ---- Checks ---- */

static enum weft_status check_count(uint32_t tensor_count, const char *what,
                                    struct weft_error *error) {
  return tensor_count > WEFT_TENSORS_MAX
             ? weft_fail(error, WEFT_ERR_USAGE, "pack some of them into one",
                         "%" PRIu32 " %s tensors, at most %d are possible", tensor_count, what,
                         WEFT_TENSORS_MAX)
             : WEFT_OK;
}

/* `label` names the tensor. */
static enum weft_status check_tensor(const struct weft_tensor *tensor, const char *label,
                                     struct weft_error *error) {
  char text[WEFT_SHAPE_TEXT_MAX];
  uint64_t bytes;
  if (weft_dtype_size((enum weft_dtype)tensor->shape.dtype) == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "set shape.dtype to one of enum weft_dtype",
                     "%s has dtype %u, which does not exist", label, tensor->shape.dtype);
  }
  if (tensor->shape.dim_count > WEFT_DIMS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "flatten some of its dimensions into one",
                     "%s has %u dimensions, at most %d are possible", label,
                     tensor->shape.dim_count, WEFT_DIMS_MAX);
  }
  if (!weft_shape_bytes(&tensor->shape, &bytes) || bytes > PTRDIFF_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "no memory can hold it: look at its dimensions",
                     "%s is %s, more bytes than can be counted", label,
                     weft_shape_text(text, &tensor->shape));
  }
  if (tensor->data == NULL && bytes > 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "set its data",
                     "%s is %s, %" PRIu64 " bytes, and its data is NULL", label,
                     weft_shape_text(text, &tensor->shape), bytes);
  }
  return WEFT_OK;
}

static enum weft_status check_split(const struct weft_tensor_shape *shape, uint32_t dim,
                                    uint32_t parts, const char *label, struct weft_error *error) {
  char text[WEFT_SHAPE_TEXT_MAX];
  if (dim >= shape->dim_count) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "name another dimension, or WEFT_CHUNK_REPLICATE to give all of it to every "
                     "microbatch",
                     "%s is %s with %u dimensions and cannot be split along dimension %" PRIu32,
                     label, weft_shape_text(text, shape), shape->dim_count, dim);
  }
  if (shape->dims[dim] < parts) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "give a larger batch or fewer microbatches: one without data would not train",
                     "%s is %s: %" PRIu64 " along dimension %" PRIu32
                     " cannot be split into %" PRIu32 " microbatches",
                     label, weft_shape_text(text, shape), shape->dims[dim], dim, parts);
  }
  return WEFT_OK;
}

/* ---- Splitting ---- */

/* No overflow: check_tensor() has multiplied all of these. */
static void measure_cut(const struct weft_tensor_shape *shape, struct cut *cut) {
  cut->length = shape->dims[cut->dim];
  cut->outer = 1;
  cut->inner = weft_dtype_size((enum weft_dtype)shape->dtype);
  for (uint32_t k = 0; k < cut->dim; k++) {
    cut->outer *= shape->dims[k];
  }
  for (uint32_t k = cut->dim + 1; k < shape->dim_count; k++) {
    cut->inner *= shape->dims[k];
  }
}

static enum weft_status plan_cut(const struct weft_tensor *tensor, const struct weft_chunk *chunk,
                                 uint32_t parts, const char *label, struct cut *cut,
                                 struct weft_error *error) {
  *cut = (struct cut){.parts = parts};
  WEFT_TRY(check_tensor(tensor, label, error));
  if (chunk != NULL && chunk->kind == WEFT_CHUNK_REPLICATE) {
    cut->whole = true;
    return WEFT_OK;
  }
  if (chunk != NULL && chunk->kind != WEFT_CHUNK_SPLIT) {
    return weft_fail(error, WEFT_ERR_USAGE, "WEFT_CHUNK_SPLIT or WEFT_CHUNK_REPLICATE",
                     "%s is to be split in way %d, which does not exist", label, (int)chunk->kind);
  }
  cut->dim = chunk != NULL ? chunk->dim : 0;
  WEFT_TRY(check_split(&tensor->shape, cut->dim, parts, label, error));
  measure_cut(&tensor->shape, cut);
  return WEFT_OK;
}

/* Memory for the copies of all chunks of a tensor, each aligned. */
static enum weft_status reserve_copies(struct weft_batch_in *in, uint32_t number,
                                       const struct weft_tensor *tensor, const struct cut *cut,
                                       struct weft_error *error) {
  uint64_t bytes = 0;
  assert(cut->parts > 0);
  for (uint32_t part = 0; is_copied(cut) && part < cut->parts; part++) {
    if (!weft_batch_memory_add(&bytes, chunk_length(cut, part) * cut->inner * cut->outer)) {
      return weft_fail_memory(error, SIZE_MAX);
    }
  }
  return bytes == 0 ? WEFT_OK
                    : weft_batch_memory_reserve(&in->chunks[number], in->allocator, 0,
                                                tensor->device, bytes, error);
}

/* One tensor of all microbatches: views of the caller's memory, or copies. */
static enum weft_status split_tensor(struct weft_batch_in *in, uint32_t number,
                                     const struct weft_tensor *tensor, const struct cut *cut,
                                     struct weft_error *error) {
  unsigned char *data = tensor->data;
  uint64_t used = 0; /* of the copies */
  for (uint32_t part = 0; part < cut->parts; part++) {
    struct weft_tensor *item = &in->made.items[part].items[number];
    *item = *tensor;
    if (cut->whole) {
      continue;
    }
    item->shape.dims[cut->dim] = chunk_length(cut, part);
    if (data == NULL || cut->outer == 0) {
      continue; /* empty: there is no address to move */
    }
    unsigned char *first = data + chunk_begin(cut, part) * cut->inner;
    if (!is_copied(cut)) {
      item->data = first;
      continue;
    }
    const uint64_t piece = chunk_length(cut, part) * cut->inner;
    const struct weft_copy copy = {.to = in->chunks[number].data + used,
                                   .to_device = tensor->device,
                                   .from = first,
                                   .from_device = tensor->device,
                                   .row_bytes = piece,
                                   .rows = cut->outer,
                                   .to_stride = piece,
                                   .from_stride = cut->length * cut->inner};
    WEFT_TRY(weft_copy(&copy, NULL, error));
    item->data = copy.to;
    (void)weft_batch_memory_add(&used, cut->outer * piece);
  }
  return WEFT_OK;
}

enum weft_status weft_batch_in_split(struct weft_batch_in *in, const struct weft_tensor *tensors,
                                     uint32_t tensor_count, const struct weft_chunk *chunks,
                                     uint32_t microbatch_count, const char *what,
                                     struct weft_error *error) {
  assert((tensors != NULL || tensor_count == 0) && microbatch_count > 0);
  struct cut cuts[WEFT_TENSORS_MAX];
  char label[WEFT_TENSOR_LABEL_MAX];
  in->items = NULL;
  in->count = 0;
  WEFT_TRY(check_count(tensor_count, what, error));
  for (uint32_t t = 0; t < tensor_count; t++) {
    WEFT_TRY(plan_cut(&tensors[t], chunks != NULL ? &chunks[t] : NULL, microbatch_count,
                      weft_tensor_label(label, what, t, tensors[t].name), &cuts[t], error));
  }
  for (uint32_t t = 0; t < tensor_count; t++) {
    WEFT_TRY(reserve_copies(in, t, &tensors[t], &cuts[t], error));
  }
  WEFT_TRY(weft_batch_memory_reserve(&in->made, in->allocator, microbatch_count, NULL, 0, error));
  for (uint32_t part = 0; part < microbatch_count; part++) {
    in->made.items[part].count = tensor_count;
  }
  for (uint32_t t = 0; t < tensor_count; t++) {
    WEFT_TRY(split_tensor(in, t, &tensors[t], &cuts[t], error));
  }
  in->items = in->made.items;
  in->count = microbatch_count;
  return WEFT_OK;
}

/* ---- Ready-made microbatches ---- */

static enum weft_status check_alike(const struct weft_tensors *items, uint32_t part,
                                    const char *what, struct weft_error *error) {
  char label[WEFT_TENSOR_LABEL_MAX + 32];
  char found[WEFT_SHAPE_TEXT_MAX];
  char expected[WEFT_SHAPE_TEXT_MAX];
  if (items[part].count != items[0].count) {
    return weft_fail(error, WEFT_ERR_USAGE, "all microbatches must have the same tensors",
                     "microbatch %" PRIu32 " has %" PRIu32 " %s tensors, microbatch 0 has %" PRIu32,
                     part, items[part].count, what, items[0].count);
  }
  for (uint32_t t = 0; t < items[part].count; t++) {
    const struct weft_tensor *tensor = &items[part].items[t];
    const struct weft_tensor_shape *first = &items[0].items[t].shape;
    weft_tensor_label(label, what, t, tensor->name);
    (void)snprintf(label + strlen(label), 32, " of microbatch %" PRIu32, part);
    WEFT_TRY(check_tensor(tensor, label, error));
    if (tensor->shape.dtype != first->dtype || tensor->shape.dim_count != first->dim_count) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "a tensor has the same dtype and number of dimensions in all microbatches",
                       "%s is %s, that of microbatch 0 is %s", label,
                       weft_shape_text(found, &tensor->shape), weft_shape_text(expected, first));
    }
  }
  return WEFT_OK;
}

enum weft_status weft_batch_in_borrow(struct weft_batch_in *in, const struct weft_tensors *items,
                                      uint32_t microbatch_count, const char *what,
                                      struct weft_error *error) {
  assert(items != NULL && microbatch_count > 0);
  in->items = NULL;
  in->count = 0;
  WEFT_TRY(check_count(items[0].count, what, error));
  for (uint32_t part = 0; part < microbatch_count; part++) {
    WEFT_TRY(check_alike(items, part, what, error));
  }
  in->items = items;
  in->count = microbatch_count;
  return WEFT_OK;
}

/* ---- To a device ---- */

static bool follows(const struct weft_copy *next, const struct weft_copy *before) {
  return next->from_device == before->from_device &&
         next->from == (const unsigned char *)before->from + before->row_bytes &&
         next->to == (unsigned char *)before->to + before->row_bytes;
}

/* Microbatches that are one after the other at both ends, as those of a whole tensor are, are one
 * copy: a call takes the host some microseconds. */
static enum weft_status copy_items(const struct weft_batch_in *in, struct weft_stream *stream,
                                   struct weft_error *error) {
  struct weft_copy copy = {.rows = 0};
  uint64_t at = 0;
  for (uint32_t m = 0; m < in->count; m++) {
    in->uploaded.items[m] = in->items[m];
    for (uint32_t t = 0; t < in->items[m].count; t++) {
      const struct weft_tensor *from = &in->items[m].items[t];
      struct weft_tensor *to = &in->uploaded.items[m].items[t];
      to->data = in->uploaded.data + at;
      to->device = in->uploaded.device;
      const struct weft_copy next = {.to = to->data,
                                     .to_device = to->device,
                                     .from = from->data,
                                     .from_device = from->device,
                                     .row_bytes = weft_batch_shape_bytes(&from->shape),
                                     .rows = 1};
      (void)weft_batch_memory_add(&at, next.row_bytes);
      if (copy.rows > 0 && follows(&next, &copy)) {
        copy.row_bytes += next.row_bytes;
        continue;
      }
      WEFT_TRY(weft_copy(&copy, stream, error));
      copy = next;
    }
  }
  return weft_copy(&copy, stream, error);
}

enum weft_status weft_batch_in_upload(struct weft_batch_in *in, struct weft_device *device,
                                      struct weft_stream *stream, struct weft_error *error) {
  uint64_t bytes = 0;
  for (uint32_t m = 0; m < in->count; m++) {
    for (uint32_t t = 0; t < in->items[m].count; t++) {
      (void)weft_batch_memory_add(&bytes, weft_batch_shape_bytes(&in->items[m].items[t].shape));
    }
  }
  WEFT_TRY(
      weft_batch_memory_reserve(&in->uploaded, in->allocator, in->count, device, bytes, error));
  WEFT_TRY(copy_items(in, stream, error));
  in->items = in->uploaded.items;
  return WEFT_OK;
}
