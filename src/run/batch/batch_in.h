/* A batch on its way in: split into microbatches, and on a device with streams copied there. */
#ifndef RUN_BATCH_IN_H
#define RUN_BATCH_IN_H

#include <weft/run.h>

#include "run/batch/batch_memory.h"

/* Zero-initialise and set `allocator` (NULL: the default). Made again for each step; memory
 * only grows, so equal steps allocate nothing. */
struct weft_batch_in {
  const struct weft_allocator *allocator;
  const struct weft_tensors *items; /* [count]; valid until the next split or borrow */
  uint32_t count;                   /* 0 after a failure */
  struct weft_batch_memory made;    /* its items */
  struct weft_batch_memory chunks[WEFT_TENSORS_MAX]; /* that had to be copied, by tensor */
  struct weft_batch_memory uploaded;
};

void weft_batch_in_finish(struct weft_batch_in *in);

/* Splits each tensor into m = microbatch_count chunks along its dimension (`chunks` NULL: 0);
 * of n elements the first n % m chunks get n / m + 1, the others n / m. Or gives the whole
 * tensor to each microbatch. Contiguous chunks, as those along dimension 0, are views of the
 * caller's memory; others are copied, on the tensor's own device. Names are kept. `what`
 * ("input", "target") is for messages. Without tensors, microbatches have none.
 * WEFT_ERR_USAGE, WEFT_ERR_MEMORY. */
enum weft_status weft_batch_in_split(struct weft_batch_in *in, const struct weft_tensor *tensors,
                                     uint32_t tensor_count, const struct weft_chunk *chunks,
                                     uint32_t microbatch_count, const char *what,
                                     struct weft_error *error);

/* Borrows the caller's microbatches until the step ends. All must have the same number of
 * tensors, with the same dtypes and numbers of dimensions. WEFT_ERR_USAGE. */
enum weft_status weft_batch_in_borrow(struct weft_batch_in *in, const struct weft_tensors *items,
                                      uint32_t microbatch_count, const char *what,
                                      struct weft_error *error);

/* Copies all microbatches on the stream to places that stay the same from step to step; items are
 * then the copies. The caller's memory must stay as it is until the stream has come so far.
 * WEFT_ERR_MEMORY, WEFT_ERR_DEVICE. */
enum weft_status weft_batch_in_upload(struct weft_batch_in *in, struct weft_device *device,
                                      struct weft_stream *stream, struct weft_error *error);

#endif
