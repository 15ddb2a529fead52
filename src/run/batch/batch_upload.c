/* See batch_upload.h. */
#include "run/batch/batch_upload.h"

#include <assert.h>

#include <weft/support.h>

void weft_batch_upload_finish(struct weft_batch_upload *upload,
                              const struct weft_allocator *allocator) {
  weft_staging_finish(&upload->staging, allocator);
  weft_array_free(allocator, upload->items, upload->room, sizeof *upload->items);
  *upload = (struct weft_batch_upload){.room = 0};
}

static uint64_t bytes_of(const struct weft_tensor *tensor) {
  uint64_t bytes = 0;
  const bool counted = weft_shape_bytes(&tensor->shape, &bytes); /* splitting has checked it */
  assert(counted);
  (void)counted;
  return bytes;
}

/* Sets the places of all tensors, from `base` on (NULL: only measures); returns the bytes. */
static uint64_t place(struct weft_batch_upload *upload, const struct weft_batch_split *from,
                      struct weft_device *device, unsigned char *base) {
  uint64_t total = 0;
  for (uint32_t m = 0; m < from->count; m++) {
    for (uint32_t t = 0; t < from->items[m].count; t++) {
      if (base != NULL) {
        upload->items[m].items[t] = from->items[m].items[t];
        upload->items[m].items[t].data = base + total;
        upload->items[m].items[t].device = device;
      }
      (void)weft_staging_add(&total, bytes_of(&from->items[m].items[t]));
    }
    if (base != NULL) {
      upload->items[m].count = from->items[m].count;
    }
  }
  return total;
}

static bool follows(const struct weft_copy *next, const struct weft_copy *before) {
  return next->from_device == before->from_device &&
         next->from == (const unsigned char *)before->from + before->row_bytes &&
         next->to == (unsigned char *)before->to + before->row_bytes;
}

/* Microbatches that are one after the other at both ends, as those of a whole tensor are, are one
 * copy: a call takes the host some microseconds. */
static enum weft_status copy_all(const struct weft_batch_upload *upload,
                                 const struct weft_batch_split *from, struct weft_stream *stream,
                                 struct weft_error *error) {
  struct weft_copy copy = {.rows = 0};
  for (uint32_t m = 0; m < from->count; m++) {
    for (uint32_t t = 0; t < from->items[m].count; t++) {
      const struct weft_tensor *source = &from->items[m].items[t];
      const struct weft_tensor *target = &upload->items[m].items[t];
      const struct weft_copy next = {.to = target->data,
                                     .to_device = target->device,
                                     .from = source->data,
                                     .from_device = source->device,
                                     .row_bytes = bytes_of(source),
                                     .rows = 1};
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

enum weft_status weft_batch_upload_run(struct weft_batch_upload *upload,
                                       const struct weft_allocator *allocator,
                                       const struct weft_batch_split *from,
                                       struct weft_device *device, struct weft_stream *stream,
                                       const struct weft_tensors **items,
                                       struct weft_error *error) {
  if (from->count > upload->room) {
    weft_array_free(allocator, upload->items, upload->room, sizeof *upload->items);
    upload->room = 0;
    upload->items = weft_array_allocate_zero(allocator, from->count, sizeof *upload->items);
    if (upload->items == NULL) {
      return weft_fail_memory(error, from->count * sizeof *upload->items);
    }
    upload->room = from->count;
  }
  const uint64_t bytes = place(upload, from, device, NULL);
  WEFT_TRY(weft_staging_reserve(&upload->staging, allocator, device, bytes, error));
  (void)place(upload, from, device, upload->staging.data);
  *items = upload->items;
  return copy_all(upload, from, stream, error);
}
