/* GPUs and the devices of ranks on them, inside; weft/cuda.h is the outside. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include <weft/cuda.h>
#include <weft/support.h>

#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_arena.h"

enum { WEFT_CUDA_KERNELS_MAX = 16, WEFT_CUDA_LOCATION_SIZE = 256 };

/* A GPU that is open: its primary context is retained. */
struct weft_cuda_gpu {
  uint32_t number;
  CUdevice device;
  CUcontext context;
  CUlibrary library;
  CUfunction kernels[WEFT_CUDA_KERNELS_MAX];
  struct weft_cuda_gpu_info info;
  uint32_t rank_sms;      /* of a partition, or of the whole GPU */
  CUgreenCtx *partitions; /* [cuda->partition_count] */
  uint64_t peers;         /* bit k: it can access the memory of cuda->gpus[k] */
  bool abandoned;         /* the driver would wait forever for its work; atomic */
};

/* A rank's device. */
struct weft_cuda_device {
  struct weft_device device; /* first */
  const struct weft_cuda_api *cuda;
  struct weft_cuda *of;
  struct weft_cuda_gpu *gpu;
  CUgreenCtx partition; /* NULL: the whole GPU */
  struct weft_cuda_arena arena;
  bool has_arena;
  pthread_mutex_t lock; /* over the streams */
  CUstream *streams;    /* [stream_room]: those that exist */
  uint32_t stream_count, stream_room;
  CUstream own;        /* the first: for operations without one */
  uint32_t sm_count;   /* of the partition, or of the GPU */
  CUresult allocation; /* what the last one that failed ended with; atomic */
  char location[WEFT_CUDA_LOCATION_SIZE];
};

/* Pinned memory of the host, which all its GPUs access. */
struct weft_cuda_pinned {
  struct weft_device device; /* first */
  struct weft_device_ops ops;
  struct weft_cuda *of;
};

struct weft_cuda {
  const struct weft_allocator *allocator;
  struct weft_arena tables; /* of gpus, their partitions, and ranks */
  const struct weft_cuda_api *cuda;
  struct weft_cuda_gpu *gpus; /* [gpu_count] */
  uint32_t gpu_count;
  uint32_t partition_count;       /* of each; 0: none */
  struct weft_cuda_device *ranks; /* [rank_count], from first_rank on */
  uint32_t first_rank, rank_count;
  struct weft_cuda_pinned pinned;
};

enum { WEFT_CUDA_GPUS_MAX = 64 };

void weft_cuda_pinned_init(struct weft_cuda *cuda);

/* NULL: it was not opened for that rank, or is NULL. */
static inline struct weft_cuda_device *weft_cuda_find_rank(const struct weft_cuda *cuda,
                                                           uint32_t rank) {
  return cuda != NULL && rank >= cuda->first_rank && rank - cuda->first_rank < cuda->rank_count
             ? &cuda->ranks[rank - cuda->first_rank]
             : NULL;
}

extern const struct weft_device_ops weft_cuda_device_ops;

/* Which GPU it is, the same for all processes that use it, and its multiprocessors; of a
 * partition, the partition's. */
struct weft_cuda_identity {
  unsigned char uuid[16];
  uint32_t sm_count;
};
/* WEFT_ERR_USAGE: it is no GPU. */
enum weft_status weft_cuda_identify(struct weft_device *device, struct weft_cuda_identity *out,
                                    struct weft_error *error);

#endif
