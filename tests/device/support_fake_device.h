/* Two GPUs of the fake driver, for tests of the driver itself: calls of CUDA that must succeed, and
 * what must be left at the end. Include it once. */
#ifndef SUPPORT_FAKE_DEVICE_H
#define SUPPORT_FAKE_DEVICE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cuda/cuda_api.h"
#include "fake_cuda.h"
#include "fake_functions.h"

enum { COUNT = 64, BYTES = 4 * COUNT, STREAMS = 4, SEEDS = 200 };

static const struct weft_cuda_api *cuda;
static CUcontext contexts[2];
static CUlibrary library;
static CUkernel scale, add_one, await, spin;

#define OK(call) assert_int_equal((call), CUDA_SUCCESS)

/* ---- Two kernels beside the built-in ones ---- */

static inline void run_add_one(void *const *parameters, uint64_t threads) {
  uint32_t *data = *(uint32_t **)parameters[0];
  for (uint64_t k = 0; k < threads; k++) {
    data[k]++;
  }
}

static inline uint32_t add_one_accesses(const uint64_t *values, struct fake_cuda_access *out) {
  *out = (struct fake_cuda_access){.data = values[0], .bytes = 4, .writes = true, .reads = true};
  return 1;
}

/* Spins until the word is 1. */
static inline bool await_ready(void *const *parameters) {
  return **(uint32_t **)parameters[0] == 1;
}

static inline uint32_t no_accesses(const uint64_t *values, struct fake_cuda_access *out) {
  (void)values;
  (void)out;
  return 0;
}

static const struct fake_cuda_kernel own_kernels[] = {{.name = "add_one",
                                                       .parameter_count = 1,
                                                       .addresses = 1,
                                                       .run = run_add_one,
                                                       .accesses = add_one_accesses},
                                                      {.name = "await",
                                                       .parameter_count = 1,
                                                       .addresses = 1,
                                                       .ready = await_ready,
                                                       .accesses = no_accesses}};

/* ---- The device ---- */

static inline void begin(struct fake_cuda_options options) {
  struct weft_error error;
  options.devices = 2;
  fake_cuda_reset(&options);
  assert_int_equal(weft_cuda_api_load(&cuda, &error), WEFT_OK);
  for (int k = 1; k >= 0; k--) {
    OK(cuda->cuDevicePrimaryCtxRetain(&contexts[k], k));
    OK(cuda->cuCtxSetCurrent(contexts[k]));
  }
  fake_cuda_register(&own_kernels[0]);
  fake_cuda_register(&own_kernels[1]);
  OK(cuda->cuLibraryLoadData(&library, "code", NULL, NULL, 0, NULL, NULL, 0));
  OK(cuda->cuLibraryGetKernel(&scale, library, "weft_linear_scale"));
  OK(cuda->cuLibraryGetKernel(&spin, library, "weft_spin"));
  OK(cuda->cuLibraryGetKernel(&add_one, library, "add_one"));
  OK(cuda->cuLibraryGetKernel(&await, library, "await"));
  assert_int_equal(cuda->cuLibraryGetKernel(&scale, library, "nobody"), CUDA_ERROR_NOT_FOUND);
}

/* Nothing is left, and nothing was found. */
static inline void end(void) {
  OK(cuda->cuLibraryUnload(library));
  OK(cuda->cuDevicePrimaryCtxRelease(0));
  OK(cuda->cuDevicePrimaryCtxRelease(1));
  const struct fake_cuda_statistics left = fake_cuda_statistics();
  assert_int_equal(left.blocks + left.pinned_blocks + left.bytes, 0);
  assert_int_equal(left.streams + left.events + left.graphs + left.executables, 0);
  assert_int_equal(fake_cuda_pending(), 0);
}

static inline void nothing_found(void) {
  if (fake_cuda_finding_count() > 0) {
    fail_msg("%s", fake_cuda_finding(0));
  }
}

static inline CUresult launch(CUkernel kernel, CUstream stream, void *a, void *b, void *c) {
  void *parameters[] = {a, b, c};
  return cuda->cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static inline void launch_scale(CUstream stream, CUdeviceptr data, double factor, uint64_t count) {
  void *parameters[] = {&data, &factor, &count};
  OK(cuda->cuLaunchKernel((CUfunction)scale, 1, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
}

static inline CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr data;
  OK(cuda->cuMemAlloc(&data, bytes));
  assert_int_equal(data % 256, 0);
  return data;
}

/* Memory of the device as a pointer. */
static inline void *pointer_to(CUdeviceptr data) {
  return (void *)(uintptr_t)data; /* NOLINT(performance-no-int-to-ptr) */
}

static inline CUstream create_stream(void) {
  CUstream stream;
  OK(cuda->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

static inline CUevent create_event(unsigned int flags) {
  CUevent event;
  OK(cuda->cuEventCreate(&event, flags));
  return event;
}

static inline float *pin(size_t bytes) {
  void *data;
  OK(cuda->cuMemHostAlloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE));
  return data;
}

#endif
