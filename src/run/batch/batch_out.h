/* The outputs of a loss on their way out: kept by microbatch during a step, merged after it. */
#ifndef RUN_BATCH_OUT_H
#define RUN_BATCH_OUT_H

#include <weft/run.h>

#include "run/batch/batch_memory.h"

/* Zero-initialise and set `allocator` (NULL: the default). Memory only grows, so equal
 * steps allocate nothing. */
struct weft_batch_out {
  const struct weft_allocator *allocator;
  struct weft_device *pinned; /* for outputs of a device with streams: copies to other memory of the
                                 host would have it wait in the middle of a step; NULL: none */
  const struct weft_boundary *boundary; /* borrowed from begin to merge */
  uint32_t microbatch_count;
  uint32_t kept_count;
  uint64_t slot_bytes;             /* of one microbatch's data, at the boundary's largest */
  struct weft_batch_memory kept;   /* [microbatch_count] items, and their data on the host */
  struct weft_batch_memory merged; /* data on the host, valid until the next merge */
};

void weft_batch_out_finish(struct weft_batch_out *out);

/* Starts a step: room for that many microbatches of the boundary's largest shapes, which the
 * pipeline has checked. WEFT_ERR_MEMORY. The last merge stays valid. */
enum weft_status weft_batch_out_begin(struct weft_batch_out *out,
                                      const struct weft_boundary *boundary,
                                      uint32_t microbatch_count, struct weft_error *error);

/* Copies a microbatch's outputs, as many as the boundary has, from their device to the host, on a
 * stream (NULL: complete at return); in any order, each microbatch once. WEFT_ERR_USAGE when they
 * do not fit the boundary: other dtypes or numbers of dimensions, or larger. */
enum weft_status weft_batch_out_keep(struct weft_batch_out *out, uint32_t microbatch,
                                     const struct weft_tensors *tensors, struct weft_stream *stream,
                                     struct weft_error *error);

/* Merges each tensor over all microbatches, which must all have been kept: concatenated
 * along a dimension (`merges` NULL: 0), or their sum or mean in the order of microbatches,
 * computed in the tensor's own dtype, f32 or f64; a mean is the sum divided by their number.
 * Names are the boundary's. *merged is valid until the next merge or finish.
 * WEFT_ERR_USAGE, WEFT_ERR_MEMORY. */
enum weft_status weft_batch_out_merge(struct weft_batch_out *out, const struct weft_merge *merges,
                                      struct weft_tensors *merged, struct weft_error *error);

#endif
