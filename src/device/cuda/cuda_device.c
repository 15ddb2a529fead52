/* A rank's memory, streams, events and graphs on its GPU: the functions of weft/device.h. */
#include "device/cuda/cuda_device.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "device/kernel.h"

static struct weft_cuda_device *of(struct weft_device *device) {
  assert(device->ops == &weft_cuda_device_ops);
  return (struct weft_cuda_device *)device;
}

static CUdeviceptr address(const void *data) { return (CUdeviceptr)(uintptr_t)data; }

static enum weft_status make_current(struct weft_device *device, struct weft_error *error) {
  const struct weft_cuda_device *rank = of(device);
  WEFT_CUDA_TRY(rank->cuda, error, cuCtxSetCurrent, rank->gpu->context);
  return WEFT_OK;
}

static bool is_abandoned(const struct weft_cuda_device *rank) {
  return __atomic_load_n(&rank->gpu->abandoned, __ATOMIC_ACQUIRE);
}

/* Freeing memory waits for all work of the GPU, whosever it is. */
static void abandon(struct weft_device *device) {
  __atomic_store_n(&of(device)->gpu->abandoned, true, __ATOMIC_RELEASE);
}

/* ---- Other memory ---- */

static enum weft_reach reach(struct weft_device *device, struct weft_device *other) {
  const struct weft_cuda_device *rank = of(device);
  const struct weft_cuda_gpu *gpu = of(other)->gpu;
  if (gpu->device == rank->gpu->device) {
    return WEFT_REACH_USE;
  }
  return (rank->gpu->peers >> (gpu - rank->of->gpus) & 1) != 0 ? WEFT_REACH_COPY : WEFT_REACH_NONE;
}

static struct weft_device *pinned(struct weft_device *device) {
  return &of(device)->of->pinned.device;
}

/* ---- Streams ---- */

/* False: no memory. */
static bool keep_stream(struct weft_cuda_device *rank, CUstream stream) {
  pthread_mutex_lock(&rank->lock);
  if (rank->stream_count == rank->stream_room) {
    const uint32_t room = rank->stream_room > 0 ? 2 * rank->stream_room : 8;
    CUstream *streams = weft_array_resize(rank->of->allocator, rank->streams, rank->stream_room,
                                          room, sizeof(CUstream));
    rank->streams = streams != NULL ? streams : rank->streams;
    rank->stream_room = streams != NULL ? room : rank->stream_room;
  }
  const bool kept = rank->stream_count < rank->stream_room;
  if (kept) {
    rank->streams[rank->stream_count++] = stream;
    rank->own = rank->own != NULL ? rank->own : stream;
  }
  pthread_mutex_unlock(&rank->lock);
  return kept;
}

static enum weft_status stream_create(struct weft_device *device, struct weft_stream **out,
                                      struct weft_error *error) {
  struct weft_cuda_device *rank = of(device);
  CUstream stream;
  WEFT_TRY(make_current(device, error));
  if (rank->partition != NULL) {
    WEFT_CUDA_TRY(rank->cuda, error, cuGreenCtxStreamCreate, &stream, rank->partition,
                  CU_STREAM_NON_BLOCKING, 0);
  } else {
    WEFT_CUDA_TRY(rank->cuda, error, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  }
  if (!keep_stream(rank, stream)) {
    (void)rank->cuda->cuStreamDestroy(stream);
    return weft_fail_memory(error, sizeof(void *));
  }
  *out = (struct weft_stream *)stream;
  return WEFT_OK;
}

static void stream_destroy(struct weft_device *device, struct weft_stream *stream) {
  struct weft_cuda_device *rank = of(device);
  if (stream == NULL) {
    return;
  }
  pthread_mutex_lock(&rank->lock);
  for (uint32_t k = 0; k < rank->stream_count; k++) {
    if (rank->streams[k] == (CUstream)stream) {
      rank->streams[k] = rank->streams[--rank->stream_count];
      break;
    }
  }
  pthread_mutex_unlock(&rank->lock);
  (void)rank->cuda->cuStreamDestroy((CUstream)stream);
}

/* The stream for an operation without one, after all that the rank has enqueued. */
static enum weft_status begin_complete(struct weft_cuda_device *rank, CUstream *stream,
                                       struct weft_error *error) {
  if (*stream != NULL) {
    return WEFT_OK;
  }
  if (is_abandoned(rank)) {
    return weft_fail(error, WEFT_ERR_DEVICE, "end this process", "work on %s does not end",
                     rank->location);
  }
  WEFT_TRY(make_current(&rank->device, error));
  pthread_mutex_lock(&rank->lock);
  CUresult result = CUDA_SUCCESS;
  for (uint32_t k = 0; k < rank->stream_count && result == CUDA_SUCCESS; k++) {
    result = rank->cuda->cuStreamSynchronize(rank->streams[k]);
  }
  pthread_mutex_unlock(&rank->lock);
  *stream = rank->own;
  return result == CUDA_SUCCESS ? WEFT_OK
                                : weft_cuda_fail(rank->cuda, result, "cuStreamSynchronize", error);
}

static enum weft_status end_complete(const struct weft_cuda_device *rank,
                                     const struct weft_stream *asked, struct weft_error *error) {
  if (asked == NULL) {
    WEFT_CUDA_TRY(rank->cuda, error, cuStreamSynchronize, rank->own);
  }
  return WEFT_OK;
}

/* ---- Memory ---- */

/* The driver's error, also where it need not be asked. */
static CUresult begin_allocation(const struct weft_cuda_device *rank) {
  return is_abandoned(rank) ? CUDA_ERROR_NOT_READY
                            : rank->cuda->cuCtxSetCurrent(rank->gpu->context);
}

static bool end_allocation(struct weft_cuda_device *rank, CUresult result) {
  if (result != CUDA_SUCCESS) {
    __atomic_store_n(&rank->allocation, result, __ATOMIC_RELAXED);
  }
  return result == CUDA_SUCCESS;
}

static void *allocate(struct weft_device *device, const struct weft_allocator *allocator,
                      uint64_t bytes) {
  struct weft_cuda_device *rank = of(device);
  const struct weft_cuda_api *cuda = rank->cuda;
  CUdeviceptr data = 0;
  (void)allocator;
  CUresult result = begin_allocation(rank);
  if (result == CUDA_SUCCESS) {
    result = weft_cuda_arena_allocate(&rank->arena, bytes, &data);
  }
  if (result == CUDA_SUCCESS && bytes > 0) {
    result = cuda->cuMemsetD8Async(data, 0, (size_t)bytes, rank->own);
    if (result == CUDA_SUCCESS) {
      result = cuda->cuStreamSynchronize(rank->own);
    }
    if (result != CUDA_SUCCESS) {
      weft_cuda_arena_free(&rank->arena, data);
    }
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver has addresses as integers
  return end_allocation(rank, result) ? (void *)(uintptr_t)data : NULL;
}

static enum weft_status fail_allocation(struct weft_device *device, uint64_t bytes,
                                        struct weft_error *error) {
  const struct weft_cuda_device *rank = of(device);
  const CUresult result = __atomic_load_n(&rank->allocation, __ATOMIC_RELAXED);
  if (result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_SUCCESS) {
    return weft_fail(error, WEFT_ERR_MEMORY,
                     "use more GPUs, smaller microbatches, or a schedule that holds fewer of them",
                     "no memory for %" PRIu64 " bytes on %s", bytes, rank->location);
  }
  return weft_cuda_fail(rank->cuda, result, "allocating for a GPU", error);
}

static void release(struct weft_device *device, const struct weft_allocator *allocator, void *data,
                    uint64_t bytes) {
  (void)allocator;
  (void)bytes;
  if (data != NULL) {
    weft_cuda_arena_free(&of(device)->arena, address(data));
  }
}

static void *allocate_host(struct weft_device *device, uint64_t bytes) {
  struct weft_cuda_device *rank = of(device);
  void *data = NULL;
  CUresult result = begin_allocation(rank);
  if (result == CUDA_SUCCESS) {
    result = rank->cuda->cuMemHostAlloc(&data, (size_t)(bytes > 0 ? bytes : 1),
                                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  }
  if (!end_allocation(rank, result)) {
    return NULL;
  }
  memset(data, 0, (size_t)bytes);
  return data;
}

static void free_host(struct weft_device *device, void *data) {
  if (data != NULL && !is_abandoned(of(device))) {
    (void)of(device)->cuda->cuMemFreeHost(data);
  }
}

static enum weft_status copy(struct weft_device *device, const struct weft_copy *copy,
                             struct weft_stream *asked, struct weft_error *error) {
  assert(copy->rows > 0 && copy->row_bytes > 0);
  struct weft_cuda_device *rank = of(device);
  CUstream stream = (CUstream)asked;
  WEFT_TRY(begin_complete(rank, &stream, error));
  if (copy->rows == 1) {
    WEFT_CUDA_TRY(rank->cuda, error, cuMemcpyAsync, address(copy->to), address(copy->from),
                  (size_t)copy->row_bytes, stream);
  } else {
    const CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                                .srcDevice = address(copy->from),
                                .srcPitch = (size_t)copy->from_stride,
                                .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                                .dstDevice = address(copy->to),
                                .dstPitch = (size_t)copy->to_stride,
                                .WidthInBytes = (size_t)copy->row_bytes,
                                .Height = (size_t)copy->rows};
    WEFT_CUDA_TRY(rank->cuda, error, cuMemcpy2DAsync, &rows, stream);
  }
  return end_complete(rank, asked, error);
}

static enum weft_status fill(struct weft_device *device, void *data, unsigned char value,
                             uint64_t bytes, struct weft_stream *asked, struct weft_error *error) {
  struct weft_cuda_device *rank = of(device);
  CUstream stream = (CUstream)asked;
  if (bytes == 0) {
    return WEFT_OK;
  }
  WEFT_TRY(begin_complete(rank, &stream, error));
  WEFT_CUDA_TRY(rank->cuda, error, cuMemsetD8Async, address(data), value, (size_t)bytes, stream);
  return end_complete(rank, asked, error);
}

/* Through the host: it is for tests and options.check_payloads. */
static enum weft_status checksum(struct weft_device *device, const void *data, uint64_t bytes,
                                 uint64_t *sum, struct weft_error *error) {
  unsigned char *host = weft_array_allocate(NULL, (size_t)bytes + 1, 1);
  if (host == NULL) {
    return weft_fail_memory(error, (size_t)bytes);
  }
  const enum weft_status status = weft_copy_bytes(host, NULL, data, device, bytes, NULL, error);
  if (status == WEFT_OK) {
    *sum = weft_checksum(host, bytes);
  }
  weft_array_free(NULL, host, (size_t)bytes + 1, 1);
  return status;
}

/* ---- Events ---- */

static enum weft_status event_create(struct weft_device *device, bool timed,
                                     struct weft_device_event **out, struct weft_error *error) {
  const struct weft_cuda_device *rank = of(device);
  CUevent event;
  WEFT_TRY(make_current(device, error));
  WEFT_CUDA_TRY(rank->cuda, error, cuEventCreate, &event,
                timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
  *out = (struct weft_device_event *)event;
  return WEFT_OK;
}

static enum weft_status event_elapsed(struct weft_device *device, struct weft_device_event *from,
                                      struct weft_device_event *to, int64_t *ns,
                                      struct weft_error *error) {
  assert(from != NULL && to != NULL && ns != NULL);
  float milliseconds;
  WEFT_CUDA_TRY(of(device)->cuda, error, cuEventElapsedTime, &milliseconds, (CUevent)from,
                (CUevent)to);
  *ns = (int64_t)((double)milliseconds * 1e6);
  return WEFT_OK;
}

static void event_destroy(struct weft_device *device, struct weft_device_event *event) {
  if (event != NULL) {
    (void)of(device)->cuda->cuEventDestroy((CUevent)event);
  }
}

static enum weft_status event_record(struct weft_device *device, struct weft_device_event *event,
                                     struct weft_stream *asked, struct weft_error *error) {
  assert(event != NULL);
  struct weft_cuda_device *rank = of(device);
  CUstream stream = (CUstream)asked;
  WEFT_TRY(begin_complete(rank, &stream, error));
  WEFT_CUDA_TRY(rank->cuda, error, cuEventRecord, (CUevent)event, stream);
  return WEFT_OK;
}

static enum weft_status event_wait(struct weft_device *device, struct weft_device_event *event,
                                   struct weft_stream *stream, struct weft_error *error) {
  assert(event != NULL);
  const struct weft_cuda_device *rank = of(device);
  if (stream == NULL) {
    WEFT_CUDA_TRY(rank->cuda, error, cuEventSynchronize, (CUevent)event);
  } else {
    WEFT_CUDA_TRY(rank->cuda, error, cuStreamWaitEvent, (CUstream)stream, (CUevent)event, 0);
  }
  return WEFT_OK;
}

static enum weft_status event_query(struct weft_device *device, struct weft_device_event *event,
                                    struct weft_error *error) {
  assert(event != NULL);
  const struct weft_cuda_device *rank = of(device);
  const CUresult result = rank->cuda->cuEventQuery((CUevent)event);
  return result == CUDA_SUCCESS ? WEFT_OK
         : result == CUDA_ERROR_NOT_READY
             ? WEFT_IN_PROGRESS
             : weft_cuda_fail(rank->cuda, result, "the GPU's work", error);
}

/* ---- Recordings: CUDA graphs ---- */

static enum weft_status capture_begin(struct weft_device *device, struct weft_stream *stream,
                                      struct weft_error *error) {
  assert(stream != NULL);
  WEFT_CUDA_TRY(of(device)->cuda, error, cuStreamBeginCapture, (CUstream)stream,
                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  return WEFT_OK;
}

static enum weft_status capture_end(struct weft_device *device, struct weft_stream *stream,
                                    struct weft_device_recording **out, struct weft_error *error) {
  const struct weft_cuda_api *cuda = of(device)->cuda;
  CUgraph graph = NULL;
  CUgraphExec executable;
  WEFT_CUDA_TRY(cuda, error, cuStreamEndCapture, (CUstream)stream, &graph);
  const CUresult result =
      out != NULL ? cuda->cuGraphInstantiate(&executable, graph, 0) : CUDA_SUCCESS;
  (void)cuda->cuGraphDestroy(graph);
  if (result != CUDA_SUCCESS) {
    return weft_cuda_fail(cuda, result, "cuGraphInstantiate", error);
  }
  if (out != NULL) {
    *out = (struct weft_device_recording *)executable;
  }
  return WEFT_OK;
}

static enum weft_status replay(struct weft_device *device, struct weft_device_recording *recording,
                               struct weft_stream *stream, struct weft_error *error) {
  assert(recording != NULL && stream != NULL);
  WEFT_CUDA_TRY(of(device)->cuda, error, cuGraphLaunch, (CUgraphExec)recording, (CUstream)stream);
  return WEFT_OK;
}

static void recording_destroy(struct weft_device *device, struct weft_device_recording *recording) {
  if (recording != NULL && !is_abandoned(of(device))) {
    (void)of(device)->cuda->cuGraphExecDestroy((CUgraphExec)recording);
  }
}

/* ---- Kernels ---- */

static enum weft_status launch(struct weft_device *device, uint32_t kernel, uint64_t threads,
                               void *const *parameters, struct weft_stream *asked,
                               struct weft_error *error) {
  assert(kernel < WEFT_CUDA_KERNELS_MAX && threads > 0);
  struct weft_cuda_device *rank = of(device);
  CUstream stream = (CUstream)asked;
  const uint64_t block = threads < WEFT_KERNEL_BLOCK ? threads : WEFT_KERNEL_BLOCK;
  const uint64_t grid = (threads + block - 1) / block;
  if (grid > INT32_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "smaller microbatches need fewer",
                     "%" PRIu64 " threads of a kernel: CUDA's limit is %" PRIu64, threads,
                     (uint64_t)INT32_MAX * WEFT_KERNEL_BLOCK);
  }
  WEFT_TRY(begin_complete(rank, &stream, error));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver does not write them
  WEFT_CUDA_TRY(rank->cuda, error, cuLaunchKernel, rank->gpu->kernels[kernel], (unsigned)grid, 1, 1,
                (unsigned)block, 1, 1, 0, stream, (void **)(uintptr_t)parameters, NULL);
  return end_complete(rank, asked, error);
}

/* By a kernel: cuStreamWriteValue32 takes the host 1.3 us where a kernel of a graph takes 0.1
 * (docs/gpu.md). */
static enum weft_status note(struct weft_device *device, uint32_t *number, uint32_t value,
                             uint64_t *clock, struct weft_stream *stream,
                             struct weft_error *error) {
  uint64_t wide = value;
  void *const parameters[] = {(void *)&number, &wide, (void *)&clock};
  return weft_kernel_launch(device, WEFT_KERNEL_NOTE, 1, parameters, stream, error);
}

const struct weft_device_ops weft_cuda_device_ops = {
    .name = "cuda",
    .memory = WEFT_MEMORY_DEVICE,
    .allocate = allocate,
    .free = release,
    .fail_allocation = fail_allocation,
    .copy = copy,
    .fill = fill,
    .checksum = checksum,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .make_current = make_current,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .reach = reach,
    .pinned = pinned,
    .allocate_host = allocate_host,
    .free_host = free_host,
    .abandon = abandon,
    .note = note,
    .event_elapsed = event_elapsed,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .replay = replay,
    .recording_destroy = recording_destroy,
    .launch = launch,
};

/* ---- Pinned memory of the host, as a device ----
 *
 * The host accesses it as any of its memory, and streams of all GPUs copy from and to it. Messages
 * travel in it between GPUs that do not reach each other, and between ranks on the host and on
 * GPUs. It is what allocate_host() of the first rank gives. */

static struct weft_cuda_device *first_rank(struct weft_device *device) {
  return &((struct weft_cuda_pinned *)device)->of->ranks[0];
}

/* The driver would wait for a GPU whose work does not end. */
static bool is_any_abandoned(const struct weft_cuda *cuda) {
  bool abandoned = false;
  for (uint32_t k = 0; k < cuda->gpu_count; k++) {
    abandoned = abandoned || __atomic_load_n(&cuda->gpus[k].abandoned, __ATOMIC_ACQUIRE);
  }
  return abandoned;
}

static void *pinned_allocate(struct weft_device *device, const struct weft_allocator *allocator,
                             uint64_t bytes) {
  struct weft_cuda_device *rank = first_rank(device);
  (void)allocator;
  if (is_any_abandoned(rank->of)) {
    (void)end_allocation(rank, CUDA_ERROR_NOT_READY);
    return NULL;
  }
  return allocate_host(&rank->device, bytes);
}

static enum weft_status pinned_fail_allocation(struct weft_device *device, uint64_t bytes,
                                               struct weft_error *error) {
  const enum weft_status status = fail_allocation(&first_rank(device)->device, bytes, error);
  return status == WEFT_ERR_MEMORY ? weft_fail_memory(error, (size_t)bytes) : status;
}

static void pinned_free(struct weft_device *device, const struct weft_allocator *allocator,
                        void *data, uint64_t bytes) {
  struct weft_cuda_device *rank = first_rank(device);
  (void)allocator;
  (void)bytes;
  if (!is_any_abandoned(rank->of)) {
    free_host(&rank->device, data);
  }
}

static enum weft_status pinned_event_query(struct weft_device *device,
                                           struct weft_device_event *event,
                                           struct weft_error *error) {
  return event_query(&first_rank(device)->device, event, error);
}

void weft_cuda_pinned_init(struct weft_cuda *cuda) {
  struct weft_cuda_pinned *pinned = &cuda->pinned;
  assert(cuda->rank_count > 0);
  pinned->ops = *weft_host_device()->ops;
  pinned->ops.name = "pinned";
  pinned->ops.allocate = pinned_allocate;
  pinned->ops.free = pinned_free;
  pinned->ops.fail_allocation = pinned_fail_allocation;
  pinned->ops.event_query = pinned_event_query;
  pinned->device.ops = &pinned->ops;
  pinned->of = cuda;
}
