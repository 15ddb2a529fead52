/* Weft device: where the data of a tensor lives, and the functions that may touch it.
 *
 * A tensor, message or buffer has a `device`; NULL is the host. Memory of another device
 * need not be readable by the host: only the device's own functions access it. The
 * runtime and the transports allocate, copy, fill and checksum payloads by the functions
 * below and by nothing else.
 *
 *     float *y = weft_device_allocate(gpu, NULL, bytes);
 *     weft_copy(&(struct weft_copy){.to = y, .to_device = gpu, .from = x,
 *                                   .row_bytes = bytes, .rows = 1}, NULL, &error);
 *     weft_device_free(gpu, NULL, y, bytes);
 *
 * To write a device: put struct weft_device first in a struct of your own, and fill a
 * static const struct weft_device_ops. */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include <weft/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum weft_memory_kind {
  WEFT_MEMORY_HOST = 0, /* the host may read and write it */
  WEFT_MEMORY_DEVICE    /* the host may only hold its address */
};

/* How the work of a device can use the memory of another one of its kind. */
enum weft_reach {
  WEFT_REACH_NONE = 0, /* not at all: through pinned memory */
  WEFT_REACH_COPY,     /* its streams copy from and to it */
  WEFT_REACH_USE       /* kernels do, as its own */
};

struct weft_device;
/* A queue of work on a device, in order; the device defines it. NULL: no queue. The
 * operation then comes after all work given to the device so far, and is complete when the
 * function returns. */
struct weft_stream;
/* A point in a stream; the device defines it. */
struct weft_device_event;
/* Work of streams, recorded once to be replayed; the device defines it. */
struct weft_device_recording;

/* A copy of `rows` rows of `row_bytes` each; strides are from the beginning of a row to the
 * next and are not read for a single row. The regions do not overlap. At least one of the
 * devices is the one whose function is called, the other is the host or of the same kind. */
struct weft_copy {
  void *to;
  struct weft_device *to_device; /* NULL: host */
  const void *from;
  struct weft_device *from_device;
  uint64_t row_bytes;
  uint64_t rows;
  uint64_t to_stride, from_stride;
};

/* Any thread may call these. Enqueued operations (stream not NULL) may report a failure of
 * earlier ones. */
struct weft_device_ops {
  const char *name; /* for messages: "host", "cuda" */
  enum weft_memory_kind memory;

  /* `bytes` (maybe 0) aligned to WEFT_DEVICE_ALIGN and zero; NULL when out of memory. Not
   * called during a step. Bookkeeping on the host comes from `allocator`. */
  void *(*allocate)(struct weft_device *device, const struct weft_allocator *allocator,
                    uint64_t bytes);
  /* NULL is fine; `bytes` as allocated. Nothing enqueued may still use it. */
  void (*free)(struct weft_device *device, const struct weft_allocator *allocator, void *data,
               uint64_t bytes);

  /* Why the last allocation of that many bytes gave NULL, also one of allocate_host(): the status.
   * NULL: there is no memory. */
  enum weft_status (*fail_allocation)(struct weft_device *device, uint64_t bytes,
                                      struct weft_error *error);

  enum weft_status (*copy)(struct weft_device *device, const struct weft_copy *copy,
                           struct weft_stream *stream, struct weft_error *error);
  enum weft_status (*fill)(struct weft_device *device, void *data, unsigned char value,
                           uint64_t bytes, struct weft_stream *stream, struct weft_error *error);
  /* The same number as weft_checksum() of the same bytes; complete at return. */
  enum weft_status (*checksum)(struct weft_device *device, const void *data, uint64_t bytes,
                               uint64_t *sum, struct weft_error *error);

  /* ---- NULL where nothing is enqueued ---- */

  /* Every other function with a stream may be called by a thread after this, until it is called
   * for another device: a thread has one at a time. */
  enum weft_status (*make_current)(struct weft_device *device, struct weft_error *error);

  enum weft_status (*stream_create)(struct weft_device *device, struct weft_stream **out,
                                    struct weft_error *error);
  /* NULL is fine. Nothing may be in it. */
  void (*stream_destroy)(struct weft_device *device, struct weft_stream *stream);

  /* `timed`: its time can be compared with that of other such events. */
  enum weft_status (*event_create)(struct weft_device *device, bool timed,
                                   struct weft_device_event **out, struct weft_error *error);
  /* NULL is fine. */
  void (*event_destroy)(struct weft_device *device, struct weft_device_event *event);
  /* The event happens when all that is in the stream now is done (NULL: all work given to
   * the device so far). It may be recorded again. */
  enum weft_status (*event_record)(struct weft_device *device, struct weft_device_event *event,
                                   struct weft_stream *stream, struct weft_error *error);
  /* What is enqueued later waits for the event as recorded last; NULL: the caller waits.
   * An event that was never recorded has happened. */
  enum weft_status (*event_wait)(struct weft_device *device, struct weft_device_event *event,
                                 struct weft_stream *stream, struct weft_error *error);
  /* WEFT_OK: it has happened; WEFT_IN_PROGRESS; or the failure of the work before it. */
  enum weft_status (*event_query)(struct weft_device *device, struct weft_device_event *event,
                                  struct weft_error *error);
  /* Nanoseconds from one timed event to another; both have happened. */
  enum weft_status (*event_elapsed)(struct weft_device *device, struct weft_device_event *from,
                                    struct weft_device_event *to, int64_t *ns,
                                    struct weft_error *error);

  enum weft_reach (*reach)(struct weft_device *device, struct weft_device *other);
  /* Memory of the host that such devices copy from and to without making the host wait, as a
   * device of its own: it lives as long as this one. Its event_query() is for events of all of
   * them. */
  struct weft_device *(*pinned)(struct weft_device *device);

  /* Memory of the host that the device also accesses, at the same address; zero. NULL when out
   * of memory. */
  void *(*allocate_host)(struct weft_device *device, uint64_t bytes);
  void (*free_host)(struct weft_device *device, void *data);

  /* Its work does not end. From here on nothing waits for it: memory that it may use stays until
   * the process ends, and what would have to wait fails. */
  void (*abandon)(struct weft_device *device);

  /* After all that is in the stream, writes the device's clock, in nanoseconds, and then a number,
   * both into memory of allocate_host(). */
  enum weft_status (*note)(struct weft_device *device, uint32_t *number, uint32_t value,
                           uint64_t *clock, struct weft_stream *stream, struct weft_error *error);

  /* Everything that is enqueued from here on in the stream, and in streams that wait for its
   * events, is recorded and not run, until end(). All of them must have been joined to the
   * stream by events then. One thread. */
  enum weft_status (*capture_begin)(struct weft_device *device, struct weft_stream *stream,
                                    struct weft_error *error);
  /* NULL `out`: forgets what was recorded. */
  enum weft_status (*capture_end)(struct weft_device *device, struct weft_stream *stream,
                                  struct weft_device_recording **out, struct weft_error *error);
  enum weft_status (*replay)(struct weft_device *device, struct weft_device_recording *recording,
                             struct weft_stream *stream, struct weft_error *error);
  void (*recording_destroy)(struct weft_device *device, struct weft_device_recording *recording);

  /* Runs built-in kernel number `kernel` (src/device/kernel.h). */
  enum weft_status (*launch)(struct weft_device *device, uint32_t kernel, uint64_t threads,
                             void *const *parameters, struct weft_stream *stream,
                             struct weft_error *error);
};

#define WEFT_DEVICE_ALIGN 64

/* Base of every device: put it first. */
struct weft_device {
  const struct weft_device_ops *ops;
  uint32_t number; /* of the GPU, as CUDA counts them: for messages */
};

/* The host as a device: what NULL means. Operations are complete at return. Memory comes from the
 * allocator. */
WEFT_API struct weft_device *weft_host_device(void);

/* ---- The same functions for a device that may be NULL ---- */

WEFT_API const char *weft_device_name(const struct weft_device *device);
/* Whether the host may read and write its memory. */
WEFT_API bool weft_device_is_host(const struct weft_device *device);
WEFT_API void *weft_device_allocate(struct weft_device *device,
                                    const struct weft_allocator *allocator, uint64_t bytes);
/* After that was NULL: WEFT_ERR_MEMORY, or what else kept it. */
WEFT_API enum weft_status weft_device_fail_allocation(struct weft_device *device, uint64_t bytes,
                                                      struct weft_error *error);
WEFT_API void weft_device_free(struct weft_device *device, const struct weft_allocator *allocator,
                               void *data, uint64_t bytes);
WEFT_API enum weft_status weft_device_fill(struct weft_device *device, void *data,
                                           unsigned char value, uint64_t bytes,
                                           struct weft_stream *stream, struct weft_error *error);
WEFT_API enum weft_status weft_device_checksum(struct weft_device *device, const void *data,
                                               uint64_t bytes, uint64_t *sum,
                                               struct weft_error *error);

/* By the device of either end. WEFT_ERR_UNAVAILABLE between devices of two kinds neither of
 * which is the host. */
WEFT_API enum weft_status weft_copy(const struct weft_copy *copy, struct weft_stream *stream,
                                    struct weft_error *error);

/* The same of bytes in one piece; NULL devices: host. */
WEFT_API enum weft_status weft_copy_bytes(void *to, struct weft_device *to_device, const void *from,
                                          struct weft_device *from_device, uint64_t bytes,
                                          struct weft_stream *stream, struct weft_error *error);

/* 64-bit checksum of bytes that the host can read; never 0. */
WEFT_API uint64_t weft_checksum(const void *data, uint64_t size);

#ifdef __cplusplus
}
#endif
#endif
