/* Pinned memory as a device: the host accesses it as any of its memory, and streams of all GPUs copy
 * from and to it. Messages travel in it between GPUs that do not reach each other, and between
 * ranks on the host and on GPUs. */
#include <string.h>

#include <weft/support.h>

#include "device/cuda/cuda_device.h"

static struct weft_cuda *of(struct weft_device *device) {
  return ((struct weft_cuda_pinned *)device)->of;
}

/* The driver would wait for a GPU whose work does not end. */
static bool is_abandoned(const struct weft_cuda *cuda) {
  bool abandoned = false;
  for (uint32_t k = 0; k < cuda->gpu_count; k++) {
    abandoned = abandoned || __atomic_load_n(&cuda->gpus[k].abandoned, __ATOMIC_ACQUIRE);
  }
  return abandoned;
}

static void *allocate(struct weft_device *device, const struct weft_allocator *allocator,
                      uint64_t bytes) {
  struct weft_cuda *cuda = of(device);
  void *data = NULL;
  (void)allocator;
  CUresult result = is_abandoned(cuda) ? CUDA_ERROR_NOT_READY
                                       : cuda->cuda->cuCtxSetCurrent(cuda->gpus[0].context);
  if (result == CUDA_SUCCESS) {
    result =
        cuda->cuda->cuMemHostAlloc(&data, bytes > 0 ? (size_t)bytes : 1, CU_MEMHOSTALLOC_PORTABLE);
  }
  if (result != CUDA_SUCCESS) {
    __atomic_store_n(&cuda->pinned.allocation, result, __ATOMIC_RELAXED);
    return NULL;
  }
  memset(data, 0, (size_t)bytes);
  return data;
}

static enum weft_status fail_allocation(struct weft_device *device, uint64_t bytes,
                                        struct weft_error *error) {
  const struct weft_cuda *cuda = of(device);
  const CUresult result = __atomic_load_n(&cuda->pinned.allocation, __ATOMIC_RELAXED);
  return result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_SUCCESS
             ? weft_fail_memory(error, (size_t)bytes)
             : weft_cuda_fail(cuda->cuda, result, "allocating pinned memory", error);
}

static void release(struct weft_device *device, const struct weft_allocator *allocator, void *data,
                    uint64_t bytes) {
  struct weft_cuda *cuda = of(device);
  (void)allocator;
  (void)bytes;
  if (data != NULL && !is_abandoned(cuda)) {
    (void)cuda->cuda->cuMemFreeHost(data);
  }
}

static enum weft_status event_query(struct weft_device *device, struct weft_device_event *event,
                                    struct weft_error *error) {
  struct weft_device *gpu = &of(device)->ranks[0].device;
  return gpu->ops->event_query(gpu, event, error);
}

void weft_cuda_pinned_init(struct weft_cuda *cuda) {
  struct weft_cuda_pinned *pinned = &cuda->pinned;
  pinned->ops = *weft_host_device()->ops;
  pinned->ops.name = "pinned";
  pinned->ops.allocate = allocate;
  pinned->ops.free = release;
  pinned->ops.fail_allocation = fail_allocation;
  pinned->ops.event_query = event_query;
  pinned->device.ops = &pinned->ops;
  pinned->of = cuda;
}
