/* Which GPUs there are, and opening them for ranks; see weft/cuda.h. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "device/cuda/cuda_compile.h"
#include "device/cuda/cuda_device.h"
#include "device/kernel.h"

/* ---- What is there ---- */

enum weft_status weft_cuda_driver_info(struct weft_cuda_driver_info *out,
                                       struct weft_error *error) {
  const struct weft_cuda_api *cuda;
  int count = 0;
  WEFT_NEED(out, error);
  WEFT_TRY(weft_cuda_api_load(&cuda, error));
  WEFT_CUDA_TRY(cuda, error, cuDeviceGetCount, &count);
  *out = (struct weft_cuda_driver_info){.version = cuda->version,
                                        .nvrtc_version = weft_cuda_compiler_version(),
                                        .gpu_count = (uint32_t)count};
  return WEFT_OK;
}

static bool can_split(const struct weft_cuda_api *cuda) {
  return cuda->cuDeviceGetDevResource != NULL && cuda->cuDevSmResourceSplitByCount != NULL &&
         cuda->cuDevResourceGenerateDesc != NULL && cuda->cuGreenCtxCreate != NULL &&
         cuda->cuGreenCtxDestroy != NULL && cuda->cuGreenCtxStreamCreate != NULL;
}

enum weft_status weft_cuda_gpu_info(uint32_t gpu, struct weft_cuda_gpu_info *out,
                                    struct weft_error *error) {
  struct weft_cuda_driver_info driver = {.gpu_count = 0};
  const struct weft_cuda_api *cuda;
  CUdevice device;
  int sms = 0, major = 0, minor = 0;
  size_t bytes = 0;
  WEFT_NEED(out, error);
  WEFT_TRY(weft_cuda_driver_info(&driver, error));
  WEFT_TRY(weft_cuda_api_load(&cuda, error));
  if (gpu >= driver.gpu_count) {
    return weft_fail(error, WEFT_ERR_USAGE, "GPUs are counted from 0, as nvidia-smi does",
                     "there is no GPU %" PRIu32 ": this machine has %" PRIu32 ", from 0 on", gpu,
                     driver.gpu_count);
  }
  *out = (struct weft_cuda_gpu_info){.partitions = can_split(cuda)};
  WEFT_CUDA_TRY(cuda, error, cuDeviceGet, &device, (int)gpu);
  WEFT_CUDA_TRY(cuda, error, cuDeviceGetName, out->name, sizeof out->name, device);
  WEFT_CUDA_TRY(cuda, error, cuDeviceGetAttribute, &sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                device);
  WEFT_CUDA_TRY(cuda, error, cuDeviceGetAttribute, &major,
                CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  WEFT_CUDA_TRY(cuda, error, cuDeviceGetAttribute, &minor,
                CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  WEFT_CUDA_TRY(cuda, error, cuDeviceTotalMem, &bytes, device);
  out->sm_count = (uint32_t)sms;
  out->capability = (uint32_t)(10 * major + minor);
  out->memory_bytes = bytes;
  return WEFT_OK;
}

/* ---- GPUs ---- */

static enum weft_status load_built_in(const struct weft_cuda *cuda, struct weft_cuda_gpu *gpu,
                                      struct weft_error *error) {
  const char *names[WEFT_CUDA_KERNELS_MAX];
  struct weft_cuda_kernel_set set = {
      .source = weft_cuda_kernels_text, .names = names, .functions = gpu->kernels};
  for (const struct weft_kernel *kernel; (kernel = weft_kernel_at(set.count)) != NULL;) {
    assert(set.count < WEFT_CUDA_KERNELS_MAX);
    names[set.count++] = kernel->name;
  }
  return weft_cuda_load_kernels(cuda->cuda, cuda->allocator, &set, gpu->info.capability,
                                &gpu->library, error);
}

static enum weft_status fail_split(const struct weft_cuda *cuda, const struct weft_cuda_gpu *gpu,
                                   const char *why, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_USAGE, "fewer partitions are larger; without them ranks share",
                   "GPU %" PRIu32 " (%s, %" PRIu32 " SMs) cannot be split into %" PRIu32
                   " partitions: %s",
                   gpu->number, gpu->info.name, gpu->info.sm_count, cuda->partition_count, why);
}

/* Equal groups; what is left over stays unused. */
static enum weft_status split_gpu(const struct weft_cuda *cuda, struct weft_cuda_gpu *gpu,
                                  struct weft_error *error) {
  const struct weft_cuda_api *api = cuda->cuda;
  const uint32_t wanted = cuda->partition_count;
  CUdevResource whole = {.type = CU_DEV_RESOURCE_TYPE_SM}, rest, parts[64];
  if (!can_split(api)) {
    return fail_split(cuda, gpu, "the driver is older than CUDA 12.4", error);
  }
  WEFT_CUDA_TRY(api, error, cuDeviceGetDevResource, gpu->device, &whole, CU_DEV_RESOURCE_TYPE_SM);
  const uint32_t align =
      whole.of.sm.smCoscheduledAlignment > 0 ? whole.of.sm.smCoscheduledAlignment : 8;
  const uint32_t each = wanted > 0 ? whole.of.sm.smCount / wanted / align * align : 0;
  unsigned int count = wanted;
  if (wanted > WEFT_ARRAY_LENGTH(parts) || each < align) {
    return fail_split(cuda, gpu, "a partition needs 8 SMs on most GPUs", error);
  }
  WEFT_CUDA_TRY(api, error, cuDevSmResourceSplitByCount, parts, &count, &whole, &rest, 0, each);
  if (count < wanted) {
    return fail_split(cuda, gpu, "the driver makes fewer", error);
  }
  for (uint32_t k = 0; k < wanted; k++) {
    CUdevResourceDesc description;
    WEFT_CUDA_TRY(api, error, cuDevResourceGenerateDesc, &description, &parts[k], 1);
    WEFT_CUDA_TRY(api, error, cuGreenCtxCreate, &gpu->partitions[k], description, gpu->device,
                  CU_GREEN_CTX_DEFAULT_STREAM);
  }
  gpu->rank_sms = parts[0].of.sm.smCount;
  return WEFT_OK;
}

/* Of the kernels that are compiled for every GPU: Turing. */
enum { CAPABILITY_MIN = 75 };

static enum weft_status open_gpu(struct weft_cuda *cuda, struct weft_cuda_gpu *gpu, uint32_t number,
                                 struct weft_error *error) {
  const struct weft_cuda_api *api = cuda->cuda;
  gpu->number = number;
  WEFT_TRY(weft_cuda_gpu_info(number, &gpu->info, error));
  if (gpu->info.capability < CAPABILITY_MIN) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "Turing (RTX 20, T4) and newer GPUs have it",
                     "GPU %" PRIu32 " (%s) has compute capability %" PRIu32 ".%" PRIu32
                     ", and Weft needs %d.%d",
                     number, gpu->info.name, gpu->info.capability / 10, gpu->info.capability % 10,
                     CAPABILITY_MIN / 10, CAPABILITY_MIN % 10);
  }
  WEFT_CUDA_TRY(api, error, cuDeviceGet, &gpu->device, (int)number);
  WEFT_CUDA_TRY(api, error, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device);
  WEFT_CUDA_TRY(api, error, cuCtxSetCurrent, gpu->context);
  gpu->rank_sms = gpu->info.sm_count;
  if (cuda->partition_count > 0) {
    gpu->partitions = weft_arena_allocate(&cuda->tables, cuda->partition_count, sizeof(CUgreenCtx));
    WEFT_TRY(weft_arena_status(&cuda->tables, error));
    WEFT_TRY(split_gpu(cuda, gpu, error));
  }
  return load_built_in(cuda, gpu, error);
}

/* Whether the current GPU `a` can access the memory of `b` from here on. */
static bool enable_peer(const struct weft_cuda *cuda, const struct weft_cuda_gpu *a,
                        const struct weft_cuda_gpu *b) {
  int can = 0;
  if (cuda->cuda->cuDeviceCanAccessPeer(&can, a->device, b->device) != CUDA_SUCCESS || can == 0) {
    return false;
  }
  const CUresult result = cuda->cuda->cuCtxEnablePeerAccess(b->context, 0);
  return result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

/* What a rank sends to another GPU is copied by that one, or goes through pinned memory. */
static enum weft_status connect_peers(const struct weft_cuda *cuda, struct weft_error *error) {
  for (uint32_t a = 0; cuda->gpu_count > 1 && a < cuda->gpu_count; a++) {
    WEFT_CUDA_TRY(cuda->cuda, error, cuCtxSetCurrent, cuda->gpus[a].context);
    for (uint32_t b = 0; b < cuda->gpu_count; b++) {
      if (cuda->gpus[a].device != cuda->gpus[b].device &&
          enable_peer(cuda, &cuda->gpus[a], &cuda->gpus[b])) {
        cuda->gpus[a].peers |= UINT64_C(1) << b;
      }
    }
  }
  return WEFT_OK;
}

static void close_gpu(const struct weft_cuda *cuda, struct weft_cuda_gpu *gpu) {
  const struct weft_cuda_api *api = cuda->cuda;
  for (uint32_t k = 0; gpu->partitions != NULL && k < cuda->partition_count; k++) {
    if (gpu->partitions[k] != NULL && !gpu->abandoned) {
      (void)api->cuGreenCtxDestroy(gpu->partitions[k]);
    }
  }
  if (gpu->library != NULL && !gpu->abandoned) {
    (void)api->cuLibraryUnload(gpu->library);
  }
  if (gpu->context != NULL && !gpu->abandoned) {
    (void)api->cuDevicePrimaryCtxRelease(gpu->device);
  }
}

/* ---- Ranks ---- */

static void name_location(const struct weft_cuda *cuda, struct weft_cuda_device *rank,
                          uint32_t partition) {
  char part[64] = "";
  if (cuda->partition_count > 0) {
    (void)snprintf(part, sizeof part, ", partition %" PRIu32 " of %" PRIu32, partition,
                   cuda->partition_count);
  }
  (void)snprintf(rank->location, sizeof rank->location, "GPU %" PRIu32 " (%s)%s, %" PRIu32 " SMs",
                 rank->gpu->number, rank->gpu->info.name, part, rank->sm_count);
}

static enum weft_status open_rank(struct weft_cuda *cuda, uint32_t r, struct weft_error *error) {
  struct weft_cuda_device *rank = &cuda->ranks[r];
  const uint32_t parts = cuda->partition_count > 0 ? cuda->partition_count : 1;
  const uint64_t slots = (uint64_t)cuda->gpu_count * parts;
  const uint64_t slot = cuda->rank_count < slots ? r : r * slots / cuda->rank_count;
  struct weft_stream *stream;
  rank->device.ops = &weft_cuda_device_ops;
  rank->cuda = cuda->cuda;
  rank->of = cuda;
  rank->gpu = &cuda->gpus[slot / parts];
  rank->device.number = rank->gpu->number;
  rank->sm_count = rank->gpu->rank_sms;
  rank->partition = cuda->partition_count > 0 ? rank->gpu->partitions[slot % parts] : NULL;
  name_location(cuda, rank, (uint32_t)(slot % parts));
  if (pthread_mutex_init(&rank->lock, NULL) != 0) {
    return weft_fail_memory(error, sizeof rank->lock);
  }
  if (!weft_cuda_arena_init(&rank->arena, cuda->cuda, cuda->allocator)) {
    pthread_mutex_destroy(&rank->lock);
    return weft_fail_memory(error, sizeof rank->arena);
  }
  rank->has_arena = true;
  return rank->device.ops->stream_create(&rank->device, &stream, error);
}

static void close_rank(struct weft_cuda_device *rank) {
  if (!rank->has_arena) {
    return;
  }
  (void)rank->device.ops->make_current(&rank->device, NULL);
  while (rank->stream_count > 0) {
    rank->device.ops->stream_destroy(&rank->device,
                                     (struct weft_stream *)rank->streams[rank->stream_count - 1]);
  }
  weft_array_free(rank->of->allocator, rank->streams, rank->stream_room, sizeof(CUstream));
  weft_cuda_arena_finish(&rank->arena, rank->gpu->abandoned);
  pthread_mutex_destroy(&rank->lock);
}

enum weft_status weft_cuda_identify(struct weft_device *device, struct weft_cuda_identity *out,
                                    struct weft_error *error) {
  assert(device != NULL && out != NULL);
  const struct weft_cuda_device *rank = (const struct weft_cuda_device *)device;
  memset(out, 0, sizeof *out);
  if (device->ops != &weft_cuda_device_ops) {
    return weft_fail(error, WEFT_ERR_USAGE, "use a device of weft_cuda_open()",
                     "a %s device is no GPU", device->ops->name);
  }
  out->sm_count = rank->sm_count;
  if (rank->cuda->cuDeviceGetUuid == NULL) {
    out->uuid[0] = (unsigned char)rank->gpu->number;
    return WEFT_OK;
  }
  WEFT_CUDA_TRY(rank->cuda, error, cuDeviceGetUuid, out->uuid, rank->gpu->device);
  return WEFT_OK;
}

/* ---- Open and close ---- */

static enum weft_status open_all(struct weft_cuda *cuda, const struct weft_cuda_options *options,
                                 struct weft_error *error) {
  weft_cuda_pinned_init(cuda);
  for (uint32_t k = 0; k < cuda->gpu_count; k++) {
    WEFT_TRY(open_gpu(cuda, &cuda->gpus[k], options->gpus != NULL ? options->gpus[k] : k, error));
  }
  WEFT_TRY(connect_peers(cuda, error));
  for (uint32_t r = 0; r < cuda->rank_count; r++) {
    WEFT_TRY(open_rank(cuda, r, error));
  }
  return WEFT_OK;
}

static enum weft_status check_gpus(const struct weft_cuda_options *options,
                                   struct weft_error *error) {
  for (uint32_t k = 0; options->gpus != NULL && k < options->gpu_count; k++) {
    struct weft_cuda_gpu_info info; /* of those that no rank needs, too */
    WEFT_TRY(weft_cuda_gpu_info(options->gpus[k], &info, error));
    for (uint32_t j = 0; j < k; j++) {
      if (options->gpus[j] == options->gpus[k]) {
        return weft_fail(error, WEFT_ERR_USAGE, "name it once: several ranks share a GPU anyway",
                         "GPU %" PRIu32 " is named twice", options->gpus[k]);
      }
    }
  }
  return WEFT_OK;
}

/* A context takes memory and time on every GPU, so only those that ranks are on get one. */
static uint32_t count_used(uint32_t gpu_count, uint32_t partitions, uint32_t rank_count) {
  const uint32_t parts = partitions > 0 ? partitions : 1;
  const uint32_t needed = (uint32_t)(((uint64_t)rank_count + parts - 1) / parts);
  return needed < gpu_count ? needed : gpu_count;
}

enum weft_status weft_cuda_open(const struct weft_allocator *allocator,
                                const struct weft_cuda_options *options, uint32_t rank_count,
                                struct weft_cuda **out, struct weft_error *error) {
  static const struct weft_cuda_options all;
  struct weft_cuda_driver_info driver = {.gpu_count = 0};
  const struct weft_cuda_api *api;
  WEFT_NEED(out, error);
  options = options != NULL ? options : &all;
  WEFT_TRY(weft_cuda_api_load(&api, error));
  WEFT_TRY(weft_cuda_driver_info(&driver, error));
  if (rank_count == 0 || (options->gpus != NULL && options->gpu_count == 0)) {
    return weft_fail(error, WEFT_ERR_USAGE, "give at least one of each",
                     "%" PRIu32 " ranks on %" PRIu32 " GPUs", rank_count, options->gpu_count);
  }
  const uint32_t gpu_count = options->gpus != NULL ? options->gpu_count : driver.gpu_count;
  if (gpu_count > WEFT_CUDA_GPUS_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "give fewer GPUs",
                     "%" PRIu32 " GPUs in one process; at most %d", gpu_count, WEFT_CUDA_GPUS_MAX);
  }
  WEFT_TRY(check_gpus(options, error));
  struct weft_cuda *cuda = weft_array_allocate_zero(allocator, 1, sizeof *cuda);
  if (cuda == NULL) {
    return weft_fail_memory(error, sizeof *cuda);
  }
  cuda->allocator = cuda->tables.allocator = allocator;
  cuda->cuda = api;
  cuda->gpu_count = count_used(gpu_count, options->partitions, rank_count);
  cuda->partition_count = options->partitions;
  cuda->first_rank = options->first_rank;
  cuda->rank_count = rank_count;
  cuda->gpus = weft_arena_allocate(&cuda->tables, cuda->gpu_count, sizeof *cuda->gpus);
  cuda->ranks = weft_arena_allocate(&cuda->tables, rank_count, sizeof *cuda->ranks);
  enum weft_status status = weft_arena_status(&cuda->tables, error);
  if (status == WEFT_OK) {
    status = open_all(cuda, options, error);
  }
  if (status < 0) {
    weft_cuda_close(cuda);
    return status;
  }
  *out = cuda;
  return WEFT_OK;
}

void weft_cuda_close(struct weft_cuda *cuda) {
  if (cuda == NULL) {
    return;
  }
  for (uint32_t r = 0; cuda->ranks != NULL && r < cuda->rank_count; r++) {
    close_rank(&cuda->ranks[r]);
  }
  for (uint32_t k = 0; cuda->gpus != NULL && k < cuda->gpu_count; k++) {
    close_gpu(cuda, &cuda->gpus[k]);
  }
  weft_arena_finish(&cuda->tables);
  weft_array_free(cuda->allocator, cuda, 1, sizeof *cuda);
}

struct weft_device *weft_cuda_device(struct weft_cuda *cuda, uint32_t rank) {
  struct weft_cuda_device *found = weft_cuda_find_rank(cuda, rank);
  return found != NULL ? &found->device : NULL;
}

const char *weft_cuda_location(const struct weft_cuda *cuda, uint32_t rank) {
  const struct weft_cuda_device *found = weft_cuda_find_rank(cuda, rank);
  return found != NULL ? found->location : "?";
}

const struct weft_cuda_gpu_info *weft_cuda_rank_gpu(const struct weft_cuda *cuda, uint32_t rank) {
  const struct weft_cuda_device *found = weft_cuda_find_rank(cuda, rank);
  return found != NULL ? &found->gpu->info : NULL;
}

void weft_cuda_memory(const struct weft_cuda *cuda, uint32_t rank, uint64_t *bytes,
                      uint64_t *allocations) {
  const struct weft_cuda_device *found = weft_cuda_find_rank(cuda, rank);
  assert(found != NULL && bytes != NULL && allocations != NULL);
  *bytes = found->arena.bytes;
  *allocations = found->arena.allocations;
}
