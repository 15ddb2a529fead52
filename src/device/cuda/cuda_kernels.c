/* A program's own kernels on a rank's GPU; see weft/cuda.h. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "device/cuda/cuda_compile.h"
#include "device/cuda/cuda_device.h"

struct weft_cuda_kernels {
  const struct weft_allocator *allocator;
  const struct weft_cuda_device *rank;
  CUlibrary library;
  CUfunction *functions; /* [count] */
  uint32_t count;
};

static enum weft_status load_all(struct weft_cuda_kernels *kernels, const char *source,
                                 const char *const *names, struct weft_error *error) {
  const struct weft_cuda_device *rank = kernels->rank;
  const struct weft_cuda_kernel_set set = {
      .source = source, .names = names, .functions = kernels->functions, .count = kernels->count};
  WEFT_CUDA_TRY(rank->cuda, error, cuCtxSetCurrent, rank->gpu->context);
  return weft_cuda_load_kernels(rank->cuda, kernels->allocator, &set, rank->gpu->info.capability,
                                &kernels->library, error);
}

enum weft_status weft_cuda_kernels_load(struct weft_cuda *cuda, uint32_t rank, const char *source,
                                        const char *const *names, uint32_t count,
                                        struct weft_cuda_kernels **out, struct weft_error *error) {
  WEFT_NEED(cuda, error);
  WEFT_NEED(source, error);
  WEFT_NEED(names, error);
  WEFT_NEED(out, error);
  if (weft_cuda_find_rank(cuda, rank) == NULL || count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "ranks are counted from 0, and a kernel has a name",
                     "%" PRIu32 " kernels for rank %" PRIu32 " of %" PRIu32 " from %" PRIu32 " on",
                     count, rank, cuda->rank_count, cuda->first_rank);
  }
  struct weft_cuda_kernels *kernels = weft_array_allocate_zero(cuda->allocator, 1, sizeof *kernels);
  if (kernels == NULL) {
    return weft_fail_memory(error, sizeof *kernels);
  }
  *kernels = (struct weft_cuda_kernels){
      .allocator = cuda->allocator, .rank = weft_cuda_find_rank(cuda, rank), .count = count};
  kernels->functions = weft_array_allocate_zero(cuda->allocator, count, sizeof(CUfunction));
  const enum weft_status status = kernels->functions != NULL
                                      ? load_all(kernels, source, names, error)
                                      : weft_fail_memory(error, count * sizeof(CUfunction));
  if (status < 0) {
    weft_cuda_kernels_unload(kernels);
    return status;
  }
  *out = kernels;
  return WEFT_OK;
}

void weft_cuda_kernels_unload(struct weft_cuda_kernels *kernels) {
  if (kernels == NULL) {
    return;
  }
  if (kernels->library != NULL && !kernels->rank->gpu->abandoned) {
    (void)kernels->rank->cuda->cuLibraryUnload(kernels->library);
  }
  weft_array_free(kernels->allocator, kernels->functions, kernels->count, sizeof(CUfunction));
  weft_array_free(kernels->allocator, kernels, 1, sizeof *kernels);
}

/* Of every GPU since capability 3.0. */
enum { GRID_X_MAX = INT32_MAX, GRID_YZ_MAX = 65535, THREADS_MAX = 1024, THREADS_Z_MAX = 64 };

static unsigned at_least_one(uint32_t number) { return number > 0 ? number : 1; }

/* CUDA's own answer is "invalid argument", whichever it was. */
static enum weft_status check_launch(const uint32_t *blocks, const uint32_t *threads,
                                     struct weft_error *error) {
  const uint64_t side = (uint64_t)at_least_one(threads[0]) * at_least_one(threads[1]);
  if (blocks[0] > GRID_X_MAX || blocks[1] > GRID_YZ_MAX || blocks[2] > GRID_YZ_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "count what is many in x, or have a block do more",
                     "a grid of %" PRIu32 " x %" PRIu32 " x %" PRIu32
                     " blocks: CUDA's limits are %d, %d and %d",
                     blocks[0], at_least_one(blocks[1]), at_least_one(blocks[2]), GRID_X_MAX,
                     GRID_YZ_MAX, GRID_YZ_MAX);
  }
  if (side > THREADS_MAX || threads[2] > THREADS_Z_MAX ||
      side * at_least_one(threads[2]) > THREADS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "more blocks may have fewer threads each",
                     "a block of %" PRIu32 " x %" PRIu32 " x %" PRIu32
                     " threads: CUDA's limit is %d together, and %d in z",
                     threads[0], at_least_one(threads[1]), at_least_one(threads[2]), THREADS_MAX,
                     THREADS_Z_MAX);
  }
  return WEFT_OK;
}

enum weft_status weft_cuda_launch(const struct weft_cuda_kernels *kernels,
                                  const struct weft_cuda_launch *launch, struct weft_stream *stream,
                                  struct weft_error *error) {
  assert(kernels != NULL && launch->kernel < kernels->count && stream != NULL);
  const uint32_t *blocks = launch->blocks, *threads = launch->threads;
  WEFT_TRY(check_launch(blocks, threads, error));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver does not write them
  WEFT_CUDA_TRY(kernels->rank->cuda, error, cuLaunchKernel, kernels->functions[launch->kernel],
                at_least_one(blocks[0]), at_least_one(blocks[1]), at_least_one(blocks[2]),
                at_least_one(threads[0]), at_least_one(threads[1]), at_least_one(threads[2]), 0,
                (CUstream)stream, (void **)(uintptr_t)launch->parameters, NULL);
  return WEFT_OK;
}
