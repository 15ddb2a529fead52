/* See batch_out.h. A merge first checks and measures all tensors, then reserves memory,
 * then makes the tensors one by one. */
#include "run/batch/batch_out.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "device/kernel.h"
#include "run/shape_text.h"

void weft_batch_out_finish(struct weft_batch_out *out) {
  weft_batch_memory_finish(&out->kept, out->allocator);
  weft_batch_memory_finish(&out->merged, out->allocator);
  *out = (struct weft_batch_out){.allocator = out->allocator, .pinned = out->pinned};
}

/* ---- Keeping ---- */

enum weft_status weft_batch_out_begin(struct weft_batch_out *out,
                                      const struct weft_boundary *boundary,
                                      uint32_t microbatch_count, struct weft_error *error) {
  assert(microbatch_count > 0 && boundary->tensor_count <= WEFT_TENSORS_MAX);
  uint64_t slot_bytes = 0, bytes;
  bool fits = true;
  out->microbatch_count = out->kept_count = 0;
  for (uint32_t t = 0; t < boundary->tensor_count; t++) {
    fits = fits && weft_batch_memory_add(&slot_bytes,
                                         weft_batch_shape_bytes(&boundary->tensors[t].largest));
  }
  if (!fits || !weft_multiply(slot_bytes, microbatch_count, &bytes)) {
    return weft_fail_memory(error, SIZE_MAX);
  }
  WEFT_TRY(weft_batch_memory_reserve(&out->kept, out->allocator, microbatch_count, out->pinned,
                                     bytes, error));
  out->boundary = boundary;
  out->slot_bytes = slot_bytes;
  out->microbatch_count = microbatch_count;
  return WEFT_OK;
}

static bool fits(const struct weft_tensor_shape *shape, const struct weft_tensor_shape *largest) {
  if (shape->dtype != largest->dtype || shape->dim_count != largest->dim_count) {
    return false;
  }
  for (uint32_t k = 0; k < shape->dim_count; k++) {
    if (shape->dims[k] > largest->dims[k]) {
      return false;
    }
  }
  return true;
}

static enum weft_status check_kept(const struct weft_boundary *boundary, uint32_t microbatch,
                                   const struct weft_tensors *tensors, struct weft_error *error) {
  char label[WEFT_TENSOR_LABEL_MAX];
  char found[WEFT_SHAPE_TEXT_MAX];
  char largest[WEFT_SHAPE_TEXT_MAX];
  for (uint32_t t = 0; t < tensors->count; t++) {
    const struct weft_tensor_shape *shape = &tensors->items[t].shape;
    if (!fits(shape, &boundary->tensors[t].largest)) {
      return weft_fail(error, WEFT_ERR_USAGE,
                       "a stage may only make its outputs smaller than the boundary's largest",
                       "%s of microbatch %" PRIu32 " is %s, the boundary's largest is %s",
                       weft_tensor_label(label, "output", t, boundary->tensors[t].name), microbatch,
                       weft_shape_text(found, shape),
                       weft_shape_text(largest, &boundary->tensors[t].largest));
    }
  }
  return WEFT_OK;
}

enum weft_status weft_batch_out_keep(struct weft_batch_out *out, uint32_t microbatch,
                                     const struct weft_tensors *tensors, struct weft_stream *stream,
                                     struct weft_error *error) {
  assert(microbatch < out->microbatch_count && tensors->count == out->boundary->tensor_count);
  WEFT_TRY(check_kept(out->boundary, microbatch, tensors, error));
  struct weft_tensors *item = &out->kept.items[microbatch];
  uint64_t at = out->slot_bytes * microbatch;
  item->count = tensors->count;
  for (uint32_t t = 0; t < tensors->count; t++) {
    const struct weft_boundary_tensor *of = &out->boundary->tensors[t];
    item->items[t] = (struct weft_tensor){
        .name = of->name, .data = out->kept.data + at, .shape = tensors->items[t].shape};
    WEFT_TRY(weft_copy_bytes(out->kept.data + at, out->pinned, tensors->items[t].data,
                             tensors->items[t].device,
                             weft_batch_shape_bytes(&tensors->items[t].shape), stream, error));
    (void)weft_batch_memory_add(&at, weft_batch_shape_bytes(&of->largest));
  }
  out->kept_count++;
  return WEFT_OK;
}

/* ---- Merging: the shape of the result ---- */

/* One tensor to be merged. */
struct job {
  const struct weft_batch_out *out;
  uint32_t number; /* of the tensor */
  struct weft_merge merge;
  char label[WEFT_TENSOR_LABEL_MAX];
};

static const struct weft_tensor *part_of(const struct job *job, uint32_t microbatch) {
  return &job->out->kept.items[microbatch].items[job->number];
}

/* All parts must have the shape of the first, except in dimension `except`. */
static enum weft_status check_equal(const struct job *job, uint32_t except, const char *hint,
                                    struct weft_error *error) {
  const struct weft_tensor_shape *first = &part_of(job, 0)->shape;
  for (uint32_t m = 1; m < job->out->microbatch_count; m++) {
    const struct weft_tensor_shape *shape = &part_of(job, m)->shape;
    for (uint32_t k = 0; k < first->dim_count; k++) {
      if (k != except && shape->dims[k] != first->dims[k]) {
        char found[WEFT_SHAPE_TEXT_MAX];
        char expected[WEFT_SHAPE_TEXT_MAX];
        return weft_fail(error, WEFT_ERR_USAGE, hint,
                         "%s of microbatch %" PRIu32
                         " is %s and that of microbatch 0 %s: "
                         "dimension %" PRIu32 " differs",
                         job->label, m, weft_shape_text(found, shape),
                         weft_shape_text(expected, first), k);
      }
    }
  }
  return WEFT_OK;
}

static enum weft_status shape_concatenated(const struct job *job, struct weft_tensor_shape *shape,
                                           struct weft_error *error) {
  const uint32_t dim = job->merge.dim;
  char text[WEFT_SHAPE_TEXT_MAX];
  *shape = part_of(job, 0)->shape;
  if (dim >= shape->dim_count) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     shape->dim_count == 0
                         ? "single numbers can be merged by WEFT_MERGE_SUM or WEFT_MERGE_MEAN"
                         : "name another dimension in batch.merges",
                     "%s is %s with %u dimensions and cannot be concatenated along dimension "
                     "%" PRIu32,
                     job->label, weft_shape_text(text, shape), shape->dim_count, dim);
  }
  WEFT_TRY(check_equal(job, dim, "only the dimension of concatenation may differ", error));
  for (uint32_t m = 1; m < job->out->microbatch_count; m++) {
    if (!weft_add(shape->dims[dim], part_of(job, m)->shape.dims[dim], &shape->dims[dim])) {
      return weft_fail_memory(error, SIZE_MAX);
    }
  }
  return WEFT_OK;
}

static enum weft_status shape_added(const struct job *job, struct weft_tensor_shape *shape,
                                    struct weft_error *error) {
  *shape = part_of(job, 0)->shape;
  if (shape->dtype != WEFT_F32 && shape->dtype != WEFT_F64) {
    return weft_fail(error, WEFT_ERR_USAGE, "only f32 and f64 can be added; concatenate it",
                     "%s is %s and cannot be merged by %s", job->label,
                     weft_dtype_name((enum weft_dtype)shape->dtype),
                     job->merge.kind == WEFT_MERGE_SUM ? "sum" : "mean");
  }
  return check_equal(job, UINT32_MAX, "what is added must have the same shape in all microbatches",
                     error);
}

static enum weft_status shape_merged(const struct job *job, struct weft_tensor_shape *shape,
                                     struct weft_error *error) {
  switch (job->merge.kind) {
    case WEFT_MERGE_CONCATENATE: return shape_concatenated(job, shape, error);
    case WEFT_MERGE_SUM:
    case WEFT_MERGE_MEAN: return shape_added(job, shape, error);
  }
  return weft_fail(
      error, WEFT_ERR_USAGE, "WEFT_MERGE_CONCATENATE, WEFT_MERGE_SUM or WEFT_MERGE_MEAN",
      "%s is to be merged in way %d, which does not exist", job->label, (int)job->merge.kind);
}

/* ---- Merging: the data ---- */

static void concatenate_parts(const struct job *job, const struct weft_tensor *merged) {
  const struct weft_tensor_shape *shape = &merged->shape;
  const uint32_t dim = job->merge.dim;
  uint64_t outer = 1;
  uint64_t inner = weft_dtype_size((enum weft_dtype)shape->dtype);
  uint64_t at = 0; /* in a row of the result */
  if (weft_batch_shape_bytes(shape) == 0) {
    return; /* the products below might overflow */
  }
  for (uint32_t k = 0; k < shape->dim_count; k++) {
    outer *= k < dim ? shape->dims[k] : 1;
    inner *= k > dim ? shape->dims[k] : 1;
  }
  for (uint32_t m = 0; m < job->out->microbatch_count; m++) {
    const struct weft_tensor *part = part_of(job, m);
    const uint64_t piece = part->shape.dims[dim] * inner;
    for (uint64_t k = 0; k < outer; k++) {
      memcpy((unsigned char *)merged->data + k * shape->dims[dim] * inner + at,
             (const unsigned char *)part->data + k * piece, (size_t)piece);
    }
    at += piece;
  }
}

static enum weft_status add_up(const struct job *job, const struct weft_tensor *merged,
                               struct weft_error *error) {
  const bool is_f32 = merged->shape.dtype == WEFT_F32;
  const uint32_t parts = job->out->microbatch_count;
  const uint64_t bytes = weft_batch_shape_bytes(&merged->shape);
  uint64_t count = bytes / weft_dtype_size((enum weft_dtype)merged->shape.dtype);
  memcpy(merged->data, part_of(job, 0)->data, (size_t)bytes);
  for (uint32_t m = 1; m < parts && count > 0; m++) {
    void *const parameters[] = {(void *)&merged->data, (void *)&part_of(job, m)->data, &count};
    WEFT_TRY(weft_kernel_launch(NULL, is_f32 ? WEFT_KERNEL_ADD : WEFT_KERNEL_ADD_F64, count,
                                parameters, NULL, error));
  }
  for (uint64_t k = 0; job->merge.kind == WEFT_MERGE_MEAN && k < count; k++) {
    if (is_f32) {
      ((float *)merged->data)[k] /= (float)parts;
    } else {
      ((double *)merged->data)[k] /= (double)parts;
    }
  }
  return WEFT_OK;
}

static struct job job_of(const struct weft_batch_out *out, const struct weft_merge *merges,
                         uint32_t number) {
  struct job job = {.out = out, .number = number};
  if (merges != NULL) {
    job.merge = merges[number];
  }
  weft_tensor_label(job.label, "output", number, out->boundary->tensors[number].name);
  return job;
}

/* Shapes of the result, and its bytes in all. */
static enum weft_status measure_merged(const struct weft_batch_out *out,
                                       const struct weft_merge *merges, struct weft_tensors *merged,
                                       uint64_t *total, struct weft_error *error) {
  for (uint32_t t = 0; t < merged->count; t++) {
    const struct job job = job_of(out, merges, t);
    struct weft_tensor *tensor = &merged->items[t];
    uint64_t bytes;
    tensor->name = out->boundary->tensors[t].name;
    WEFT_TRY(shape_merged(&job, &tensor->shape, error));
    if (!weft_shape_bytes(&tensor->shape, &bytes) || !weft_batch_memory_add(total, bytes)) {
      return weft_fail_memory(error, SIZE_MAX);
    }
  }
  return WEFT_OK;
}

enum weft_status weft_batch_out_merge(struct weft_batch_out *out, const struct weft_merge *merges,
                                      struct weft_tensors *merged, struct weft_error *error) {
  assert(out->microbatch_count > 0 && out->kept_count == out->microbatch_count);
  struct weft_tensors result = {.count = out->boundary->tensor_count};
  uint64_t at = 0;
  WEFT_TRY(measure_merged(out, merges, &result, &at, error));
  WEFT_TRY(weft_batch_memory_reserve(&out->merged, out->allocator, 0, NULL, at, error));
  at = 0;
  for (uint32_t t = 0; t < result.count; t++) {
    const struct job job = job_of(out, merges, t);
    struct weft_tensor *tensor = &result.items[t];
    tensor->data = out->merged.data + at;
    if (job.merge.kind == WEFT_MERGE_CONCATENATE) {
      concatenate_parts(&job, tensor);
    } else {
      WEFT_TRY(add_up(&job, tensor, error));
    }
    (void)weft_batch_memory_add(&at, weft_batch_shape_bytes(&tensor->shape));
  }
  *merged = result;
  return WEFT_OK;
}
