/* Streams, events and the queues that they share: what calls put into them. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "fake_driver.h"

enum { LATE_NS = 200 * 1000 }; /* late_queries */

/* ---- Marks: one record of an event each ---- */

static struct fake_mark *unused_marks;

struct fake_mark *fake_mark_create(int device) {
  struct fake_mark *mark = unused_marks;
  if (mark != NULL) {
    unused_marks = mark->next;
  } else {
    mark = fake_allocate(sizeof *mark);
  }
  mark->references = 1;
  mark->done = mark->lost = false;
  mark->device = device;
  mark->serial = fake.serial;
  mark->record = 0;
  mark->seen = mark->timed = false;
  mark->noted_in = 0;
  mark->time_ns = 0;
  mark->clock.count = 0;
  return mark;
}

struct fake_mark *fake_mark_reference(struct fake_mark *mark) {
  if (mark != NULL) {
    mark->references++;
  }
  return mark;
}

void fake_mark_release(struct fake_mark *mark) {
  if (mark != NULL && --mark->references == 0) {
    mark->next = unused_marks;
    unused_marks = mark;
  }
}

/* ---- Streams ---- */

static CUstream default_streams[FAKE_DEVICES_MAX];

static CUstream create_stream(int device) {
  CUstream stream = fake_object_create(FAKE_STREAM, sizeof *stream);
  stream->index = fake.streams_created++;
  stream->device = device;
  stream->queue = fake.options.policy == FAKE_CUDA_RANDOM ? (uint32_t)fake_random() : stream->index;
  stream->component = fake_clock_component_take();
  fake.streams = fake_array_grow(fake.streams, &fake.stream_capacity, fake.stream_count + 1,
                                 sizeof(struct CUstream_st *));
  fake.streams[fake.stream_count++] = stream;
  return stream;
}

void fake_stream_release(CUstream stream) {
  if (!stream->destroyed || stream->pending > 0) {
    return;
  }
  fake_clock_component_give(stream->component);
  free(stream->after);
  fake_object_destroy(stream);
}

CUresult fake_stream_of(CUstream handle, CUstream *out) {
  const struct CUctx_st *context = fake_thread()->context;
  if (handle == NULL) {
    if (context == NULL) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (default_streams[context->device] == NULL) {
      default_streams[context->device] = create_stream(context->device);
      default_streams[context->device]->name = "default";
    }
    handle = default_streams[context->device];
  }
  if (!fake_object_is(handle, FAKE_STREAM) || handle->destroyed) {
    fake_find(FAKE_CUDA_FAULT, "a call names a stream that is none, or is destroyed");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  FAKE_TRY(fake.lost[handle->device]);
  *out = handle;
  return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *stream, int device) {
  *stream = create_stream(device);
  fake.statistics.streams++;
  return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream) {
  if (!fake_object_is(stream, FAKE_STREAM) || stream->destroyed) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  uint32_t at = 0;
  while (fake.streams[at] != stream) {
    at++;
    assert(at < fake.stream_count);
  }
  fake.streams[at] = fake.streams[--fake.stream_count];
  stream->destroyed = true;
  fake.statistics.streams--;
  fake_stream_release(stream);
  return CUDA_SUCCESS;
}

static CUresult stream_synchronize(CUstream handle) {
  CUstream stream;
  FAKE_TRY(fake_capture_forbid());
  FAKE_TRY(fake_stream_of(handle, &stream));
  if (stream->capture != NULL) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  fake.statistics.synchronizations++;
  FAKE_TRY(fake_run_until_empty(stream));
  fake_host_wait(&stream->clock, stream->time_ns);
  return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream handle) {
  CUstream stream;
  FAKE_TRY(fake_capture_forbid());
  FAKE_TRY(fake_stream_of(handle, &stream));
  if (stream->capture != NULL) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->pending > 0) {
    FAKE_TRY(fake_run_some());
  }
  FAKE_TRY(fake.lost[stream->device]);
  if (stream->pending > 0) {
    return CUDA_ERROR_NOT_READY;
  }
  fake_host_wait(&stream->clock, stream->time_ns);
  return CUDA_SUCCESS;
}

/* The join costs time, and mostly nothing is new. */
void fake_stream_follow_host(CUstream stream) {
  struct fake_host *host = fake_host();
  if (stream->host != host || stream->host_version != host->version) {
    fake_clock_join(&stream->clock, &host->clock);
    stream->host = host;
    stream->host_version = host->version;
  }
}

/* ---- Nodes ---- */

struct fake_operation fake_operation_of(const char *name, CUstream stream) {
  return (struct fake_operation){.name = name,
                                 .label = fake_label_of(stream),
                                 .stream_name = stream != NULL ? stream->name : NULL,
                                 .stream = stream != NULL ? stream->index : UINT32_MAX,
                                 .serial = fake.serial};
}

struct fake_node *fake_node_create(enum fake_node_kind kind, CUstream stream,
                                   struct fake_operation operation) {
  struct fake_node *node = fake_allocate(sizeof *node);
  node->kind = kind;
  node->stream = stream;
  node->operation = operation;
  node->issued_ns = fake_host()->time_ns;
  return node;
}

void fake_node_push(struct fake_node *node) {
  struct fake_queue *queue =
      &fake.queues[node->stream->device][node->stream->queue % fake.options.queues];
  if (queue->last != NULL) {
    queue->last->next = node;
  } else {
    queue->first = node;
  }
  queue->last = node;
  if (node->kind == FAKE_NODE_WAIT) {
    char more[40];
    (void)snprintf(more, sizeof more, "for #%llu", (unsigned long long)node->mark->serial);
    fake_trace(&node->operation, more);
  } else {
    fake_trace(&node->operation, "");
  }
  fake_note_node(node);
  node->stream->pending++;
  fake.pending++;
}

/* ---- Events ---- */

static CUresult event_of(CUevent event) {
  if (!fake_object_is(event, FAKE_EVENT)) {
    fake_find(FAKE_CUDA_FAULT, "a call names an event that is none, or is destroyed");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return CUDA_SUCCESS;
}

static void forget_record(CUevent event) {
  fake_mark_release(event->mark);
  event->mark = NULL;
  if (event->capture != NULL) {
    fake_capture_release(event->capture);
    free(event->after);
    event->capture = NULL;
    event->after = NULL;
  }
}

static CUresult event_create(CUevent *out, unsigned int flags) {
  const struct CUctx_st *context = fake_thread()->context;
  if (context == NULL) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  CUevent event = fake_object_create(FAKE_EVENT, sizeof *event);
  event->flags = flags;
  event->device = context->device;
  fake.statistics.events++;
  *out = event;
  return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event) {
  FAKE_TRY(event_of(event));
  forget_record(event);
  fake.statistics.events--;
  fake_object_destroy(event);
  return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream handle, unsigned int flags) {
  CUstream stream;
  FAKE_TRY(event_of(event));
  FAKE_TRY(fake_stream_of(handle, &stream));
  if (event->device != stream->device) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream->capture != NULL) {
    if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0) {
      return fake_capture_add(stream, NULL, event);
    }
    FAKE_TRY(fake_capture_is_active(stream->capture) ? CUDA_SUCCESS : FAKE_CAPTURE_INVALIDATED);
    forget_record(event);
    return fake_capture_record(event, stream);
  }
  forget_record(event);
  fake_stream_follow_host(stream);
  event->mark = fake_mark_create(stream->device);
  event->mark->record = fake_calls(FAKE_CALL_cuEventRecord);
  fake_clock_copy(&event->mark->clock, &stream->clock);
  struct fake_node *node =
      fake_node_create(FAKE_NODE_RECORD, stream, fake_operation_of("cuEventRecord", stream));
  node->mark = fake_mark_reference(event->mark);
  fake_node_push(node);
  return CUDA_SUCCESS;
}

/* The wait is for the record that was the last when it was issued. */
static CUresult event_wait(CUstream handle, CUevent event) {
  CUstream stream;
  FAKE_TRY(event_of(event));
  FAKE_TRY(fake_stream_of(handle, &stream));
  if (stream->capture != NULL || event->capture != NULL) {
    return fake_capture_wait(stream, event);
  }
  fake_stream_follow_host(stream);
  if (event->mark == NULL) {
    return CUDA_SUCCESS;
  }
  stream->fresh = true;
  fake_record_used(event->mark->record);
  fake_clock_join(&stream->clock, &event->mark->clock);
  struct fake_node *node =
      fake_node_create(FAKE_NODE_WAIT, stream, fake_operation_of("cuStreamWaitEvent", stream));
  node->mark = fake_mark_reference(event->mark);
  fake_node_push(node);
  return CUDA_SUCCESS;
}

static CUresult event_status(CUevent event, bool synchronize) {
  FAKE_TRY(fake_capture_forbid());
  FAKE_TRY(event_of(event));
  if (event->capture != NULL) {
    return FAKE_CAPTURED_EVENT;
  }
  struct fake_mark *mark = event->mark;
  if (fake.options.strict_queries && !synchronize && (mark == NULL || mark->seen)) {
    fake_find(FAKE_CUDA_EARLY, "cuEventQuery #%llu of an event that %s",
              (unsigned long long)fake.serial,
              mark == NULL ? "nobody has recorded" : "nobody has recorded since it was seen");
  }
  if (mark == NULL) {
    return fake.lost[event->device];
  }
  fake_record_used(mark->record);
  if (synchronize) {
    fake.statistics.synchronizations++;
    FAKE_TRY(fake_run_until_done(&mark->done));
  } else if (!mark->done) {
    FAKE_TRY(fake_run_some());
  }
  FAKE_TRY(fake.lost[mark->device]);
  if (!mark->done) {
    return CUDA_ERROR_NOT_READY;
  }
  mark->seen = true;
  if (synchronize || !fake.options.orders) {
    fake_host_wait(&mark->clock, mark->time_ns);
  }
  return CUDA_SUCCESS;
}

static CUresult elapsed(float *milliseconds, CUevent from, CUevent to) {
  FAKE_TRY(event_of(from));
  FAKE_TRY(event_of(to));
  if (from->capture != NULL || to->capture != NULL) {
    return FAKE_CAPTURED_EVENT;
  }
  if (((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING) != 0 || from->mark == NULL ||
      to->mark == NULL || from->device != to->device) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!from->mark->done || !to->mark->done) {
    return CUDA_ERROR_NOT_READY;
  }
  if (fake.options.strict_queries && to->mark->timed) {
    fake_find(FAKE_CUDA_EARLY,
              "cuEventElapsedTime #%llu to an event that nobody has recorded since",
              (unsigned long long)fake.serial);
  }
  to->mark->timed = true;
  *milliseconds = (float)(((double)to->mark->time_ns - (double)from->mark->time_ns) / 1e6);
  return CUDA_SUCCESS;
}

/* ---- Calls ---- */

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
  (void)flags;
  FAKE_BODY(cuStreamCreate, fake_thread()->context == NULL
                                ? CUDA_ERROR_INVALID_CONTEXT
                                : stream_create(stream, fake_thread()->context->device));
}

static CUresult green_stream_create(CUstream *stream, CUgreenCtx context, unsigned int flags) {
  if (!fake_object_is(context, FAKE_GREEN_CONTEXT)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return flags != CU_STREAM_NON_BLOCKING ? CUDA_ERROR_INVALID_VALUE
                                         : stream_create(stream, context->device);
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned int flags,
                                int priority) {
  (void)priority;
  FAKE_BODY(cuGreenCtxStreamCreate, green_stream_create(stream, context, flags));
}

CUresult cuStreamDestroy(CUstream stream) { FAKE_BODY(cuStreamDestroy, stream_destroy(stream)); }

CUresult cuStreamSynchronize(CUstream stream) {
  FAKE_BODY(cuStreamSynchronize, stream_synchronize(stream));
}

CUresult cuStreamQuery(CUstream stream) { FAKE_BODY(cuStreamQuery, stream_query(stream)); }

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  (void)flags;
  FAKE_BODY(cuStreamWaitEvent, event_wait(stream, event));
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
  FAKE_BODY(cuEventCreate, event_create(event, flags));
}

CUresult cuEventDestroy(CUevent event) { FAKE_BODY(cuEventDestroy, event_destroy(event)); }

CUresult cuEventRecord(CUevent event, CUstream stream) {
  FAKE_BODY(cuEventRecord, event_record(event, stream, 0));
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  FAKE_BODY(cuEventRecordWithFlags, event_record(event, stream, flags));
}

CUresult cuEventQuery(CUevent event) {
  static uint32_t count;
  if (fake.options.late_queries && __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED) % 2 == 1) {
    (void)nanosleep(&(struct timespec){.tv_nsec = LATE_NS}, NULL);
  }
  FAKE_BODY(cuEventQuery, event_status(event, false));
}

CUresult cuEventSynchronize(CUevent event) {
  FAKE_BODY(cuEventSynchronize, event_status(event, true));
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  FAKE_BODY(cuEventElapsedTime, elapsed(milliseconds, from, to));
}

void fake_cuda_name_stream(void *stream, const char *name) {
  pthread_mutex_lock(&fake.lock);
  ((CUstream)stream)->name = fake_intern(name);
  pthread_mutex_unlock(&fake.lock);
}
