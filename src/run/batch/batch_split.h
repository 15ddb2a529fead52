/* Splitting a batch into microbatches: what stage 0 and the last stage read. */
#ifndef RUN_BATCH_SPLIT_H
#define RUN_BATCH_SPLIT_H

#include <weft/run.h>

#include "run/batch/staging.h"

/* Zero-initialise and set `allocator` (NULL: the default). Made again for each step; memory
 * only grows, so equal steps allocate nothing. */
struct weft_batch_split {
  const struct weft_allocator *allocator;
  const struct weft_tensors *items; /* [count]; valid until the next make or borrow */
  uint32_t count;                   /* 0 after a failure */
  struct weft_tensors *made;        /* [made_room] */
  uint32_t made_room;
  struct weft_staging staging[WEFT_TENSORS_MAX]; /* chunks that had to be copied, by tensor */
};

void weft_batch_split_finish(struct weft_batch_split *mb);

/* Splits each tensor into m = microbatch_count chunks along its dimension (`chunks` NULL: 0);
 * of n elements the first n % m chunks get n / m + 1, the others n / m. Or gives the whole
 * tensor to each microbatch. Contiguous chunks, as those along dimension 0, are views of the
 * caller's memory; others are copied, on the tensor's own device. Names are kept. `what`
 * ("input", "target") is for messages. Without tensors, microbatches have none.
 * WEFT_ERR_USAGE, WEFT_ERR_MEMORY. */
enum weft_status weft_batch_split_make(struct weft_batch_split *mb,
                                       const struct weft_tensor *tensors, uint32_t tensor_count,
                                       const struct weft_chunk *chunks, uint32_t microbatch_count,
                                       const char *what, struct weft_error *error);

/* Borrows the caller's microbatches until the step ends. All must have the same number of
 * tensors, with the same dtypes and numbers of dimensions. WEFT_ERR_USAGE. */
enum weft_status weft_batch_split_borrow(struct weft_batch_split *mb,
                                         const struct weft_tensors *items,
                                         uint32_t microbatch_count, const char *what,
                                         struct weft_error *error);

#endif
