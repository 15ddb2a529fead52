/* A batch on its way to a device with streams: the microbatches' tensors, copied to places that
 * stay the same from step to step. */
#ifndef RUN_BATCH_UPLOAD_H
#define RUN_BATCH_UPLOAD_H

#include "run/batch/batch_split.h"

/* Zero-initialise. Memory only grows. */
struct weft_batch_upload {
  struct weft_staging staging;
  struct weft_tensors *items; /* [room] */
  uint32_t room;
};

/* Copies all of `from` on the stream; *items are the copies, [from->count]. The caller's memory
 * must stay as it is until the stream has come so far. WEFT_ERR_MEMORY, WEFT_ERR_DEVICE. */
enum weft_status weft_batch_upload_run(struct weft_batch_upload *upload,
                                       const struct weft_allocator *allocator,
                                       const struct weft_batch_split *from,
                                       struct weft_device *device, struct weft_stream *stream,
                                       const struct weft_tensors **items, struct weft_error *error);
void weft_batch_upload_finish(struct weft_batch_upload *upload,
                              const struct weft_allocator *allocator);

#endif
