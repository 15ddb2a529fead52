/* Capture of streams into a graph. It begins in one stream; another one joins it when it waits for
 * an event that was recorded in it, and must be joined to the first by events before the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

struct fake_capture {
  uint32_t references; /* while it is active, and of events */
  bool active, invalid;
  struct fake_thread *thread; /* that began it */
  CUstream origin;
  CUgraph graph;
  struct fake_capture *next; /* among the active */
};

static struct fake_capture *captures;

void fake_capture_release(struct fake_capture *capture) {
  if (--capture->references == 0) {
    free(capture);
  }
}

bool fake_capture_is_active(const struct fake_capture *capture) {
  return capture->active && !capture->invalid;
}

CUresult fake_capture_forbid(void) {
  const struct fake_thread *thread = fake_thread();
  CUresult result = CUDA_SUCCESS;
  for (struct fake_capture *at = captures; at != NULL && thread->captures > 0; at = at->next) {
    if (at->thread == thread && fake.lost[at->origin->device] == CUDA_SUCCESS) {
      at->invalid = true; /* on a lost device, a capture is over */
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

/* ---- What comes after what ---- */

static void add_predecessor(CUstream stream, uint32_t node) {
  for (uint32_t k = 0; k < stream->after_count; k++) {
    if (stream->after[k] == node) {
      return;
    }
  }
  stream->after = fake_array_grow(stream->after, &stream->after_capacity, stream->after_count + 1,
                                  sizeof *stream->after);
  stream->after[stream->after_count++] = node;
}

static uint32_t *copy_predecessors(CUstream stream) {
  uint32_t *copy = fake_allocate(stream->after_count * sizeof *copy);
  if (stream->after_count > 0) {
    memcpy(copy, stream->after, stream->after_count * sizeof *copy);
  }
  return copy;
}

static void enter(CUstream stream, struct fake_capture *capture) {
  stream->capture = capture;
  stream->lane = capture->graph->lane_count++;
  stream->after_count = 0;
}

static void trace(CUstream stream, const char *name, const char *more) {
  const struct fake_operation operation = fake_operation_of(name, stream);
  fake_trace(&operation, more);
}

CUresult fake_capture_add(CUstream stream, const struct fake_work *work, CUevent records) {
  struct fake_capture *capture = stream->capture;
  if (!fake_capture_is_active(capture)) {
    return FAKE_CAPTURE_INVALIDATED;
  }
  CUgraph graph = capture->graph;
  graph->nodes = fake_array_grow(graph->nodes, &graph->node_capacity, graph->node_count + 1,
                                 sizeof *graph->nodes);
  struct fake_graph_node *node = &graph->nodes[graph->node_count];
  memset(node, 0, sizeof *node);
  if (work != NULL) {
    node->work = *work;
  }
  node->records = records;
  node->label = fake_label_of(stream);
  node->stream_name = stream->name;
  node->stream = stream->index;
  node->lane = stream->lane;
  node->after = copy_predecessors(stream);
  node->after_count = stream->after_count;
  stream->after_count = 0;
  add_predecessor(stream, graph->node_count++);
  trace(stream, work != NULL ? work->name : "cuEventRecordWithFlags", "captured");
  return CUDA_SUCCESS;
}

CUresult fake_capture_record(CUevent event, CUstream stream) {
  event->capture = stream->capture;
  event->capture->references++;
  event->after = copy_predecessors(stream);
  event->after_count = stream->after_count;
  event->serial = fake.serial;
  event->record = fake_calls(FAKE_CALL_cuEventRecord);
  trace(stream, "cuEventRecord", "captured");
  return CUDA_SUCCESS;
}

CUresult fake_capture_wait(CUstream stream, CUevent event) {
  struct fake_capture *mine = stream->capture, *its = event->capture;
  if (its == NULL) {
    if (event->mark == NULL) {
      return CUDA_SUCCESS; /* never recorded */
    }
    mine->invalid = true;
    return FAKE_CAPTURE_ISOLATION;
  }
  if (!its->active) {
    return FAKE_CAPTURED_EVENT;
  }
  if (its->invalid || (mine != NULL && mine->invalid)) {
    return FAKE_CAPTURE_INVALIDATED;
  }
  if (mine == NULL) {
    enter(stream, its);
  } else if (mine != its) {
    mine->invalid = its->invalid = true;
    return FAKE_CAPTURE_MERGE;
  }
  for (uint32_t k = 0; k < event->after_count; k++) {
    add_predecessor(stream, event->after[k]);
  }
  stream->fresh = true;
  fake_record_used(event->record);
  char more[60];
  (void)snprintf(more, sizeof more, "captured, for #%llu", (unsigned long long)event->serial);
  trace(stream, "cuStreamWaitEvent", more);
  return CUDA_SUCCESS;
}

bool fake_cuda_is_capturing(void *stream) {
  pthread_mutex_lock(&fake.lock);
  const bool active =
      stream != NULL && fake_object_is(stream, FAKE_STREAM) && ((CUstream)stream)->capture != NULL;
  pthread_mutex_unlock(&fake.lock);
  return active;
}

/* ---- Beginning and end ---- */

static CUresult begin(CUstream handle, int mode) {
  CUstream stream;
  if (handle == NULL) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  FAKE_TRY(fake_stream_of(handle, &stream));
  if (stream->capture != NULL || mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct fake_capture *capture = fake_allocate(sizeof *capture);
  *capture = (struct fake_capture){.references = 1,
                                   .active = true,
                                   .thread = fake_thread(),
                                   .origin = stream,
                                   .graph = fake_object_create(FAKE_GRAPH, sizeof *capture->graph),
                                   .next = captures};
  capture->graph->references = 1;
  captures = capture;
  capture->thread->captures++;
  enter(stream, capture);
  return CUDA_SUCCESS;
}

static void finish(struct fake_capture *capture) {
  struct fake_capture **link = &captures;
  while (*link != capture) {
    link = &(*link)->next;
  }
  *link = capture->next;
  for (uint32_t k = 0; k < fake.stream_count; k++) {
    if (fake.streams[k]->capture == capture) {
      fake.streams[k]->capture = NULL;
      fake.streams[k]->after_count = 0;
    }
  }
  if (capture->thread != NULL) {
    capture->thread->captures--;
  }
  capture->active = false;
  fake_capture_release(capture);
}

void fake_captures_leave(const struct fake_thread *thread) {
  for (struct fake_capture *at = captures; at != NULL; at = at->next) {
    at->thread = at->thread == thread ? NULL : at->thread;
  }
}

void fake_captures_drop(void) {
  while (captures != NULL) {
    fake_graph_release(captures->graph);
    finish(captures);
  }
}

/* Whether all nodes come before what the origin would do next. */
static bool is_joined(const struct fake_capture *capture) {
  const struct CUgraph_st *graph = capture->graph;
  bool *reached = fake_allocate(graph->node_count * sizeof *reached);
  uint32_t count = 0;
  for (uint32_t k = 0; k < capture->origin->after_count; k++) {
    reached[capture->origin->after[k]] = true;
  }
  for (uint32_t k = graph->node_count; k-- > 0;) { /* predecessors have smaller numbers */
    for (uint32_t j = 0; reached[k] && j < graph->nodes[k].after_count; j++) {
      reached[graph->nodes[k].after[j]] = true;
    }
    count += reached[k];
  }
  free(reached);
  return count == graph->node_count;
}

static CUresult end(CUstream handle, CUgraph *out) {
  CUstream stream;
  FAKE_TRY(fake_stream_of(handle, &stream));
  FAKE_TRY(fake.lost[stream->device]);
  struct fake_capture *capture = stream->capture;
  if (capture == NULL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (capture->origin != stream) {
    capture->invalid = true;
    return FAKE_CAPTURE_UNMATCHED;
  }
  if (capture->thread != fake_thread()) {
    return FAKE_CAPTURE_WRONG_THREAD;
  }
  CUresult result = CUDA_SUCCESS;
  if (capture->invalid) {
    result = FAKE_CAPTURE_INVALIDATED;
  } else if (!is_joined(capture)) {
    result = FAKE_CAPTURE_UNJOINED;
  }
  if (result == CUDA_SUCCESS) {
    *out = capture->graph;
    fake.statistics.graphs++;
  } else {
    *out = NULL;
    fake_graph_release(capture->graph);
  }
  finish(capture);
  return result;
}

CUresult cuStreamBeginCapture(CUstream stream, int mode) {
  FAKE_BODY(cuStreamBeginCapture, begin(stream, mode));
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  FAKE_BODY(cuStreamEndCapture, end(stream, graph));
}
