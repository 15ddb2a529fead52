/* Weft cuda: NVIDIA GPUs as devices (weft/device.h).
 *
 *     struct weft_cuda *cuda;
 *     WEFT_TRY(weft_cuda_open(NULL, NULL, rank_count, &cuda, error));
 *     options.device = weft_cuda_device(cuda, rank);       // of a pipeline, weft/run.h
 *     ...
 *     weft_cuda_close(cuda);                               // after the pipelines
 *
 * Building needs no CUDA: the driver's library is loaded when a GPU is first asked for, and stays
 * loaded; CUDA_DEVICE_MAX_CONNECTIONS is set before, where it is not (weft/base.h).
 *
 * A struct weft_stream is a CUstream, which is a cudaStream_t, and a struct weft_device_event a
 * CUevent: cast them. A stage's function is called with its rank's GPU as the current device,
 * and must leave it so. */
#ifndef WEFT_CUDA_H
#define WEFT_CUDA_H

#include <weft/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is there. Strings are borrowed and live as long as the process. */
struct weft_cuda_driver_info {
  int version;       /* of CUDA that the driver supports, 13000 for 13.0 */
  int nvrtc_version; /* of the compiler for the built-in kernels, likewise; 0: not found */
  uint32_t gpu_count;
};
struct weft_cuda_gpu_info {
  char name[128];
  uint32_t sm_count;
  uint32_t capability; /* 90 for 9.0 */
  uint64_t memory_bytes;
  bool partitions; /* can be split into parts of its SMs */
};

/* WEFT_ERR_UNAVAILABLE without a driver or a GPU; the hint says what to install. */
WEFT_API enum weft_status weft_cuda_driver_info(struct weft_cuda_driver_info *out,
                                                struct weft_error *error);
WEFT_API enum weft_status weft_cuda_gpu_info(uint32_t gpu, struct weft_cuda_gpu_info *out,
                                             struct weft_error *error);

/* Compiled kernels are kept in $XDG_CACHE_HOME/weft or ~/.cache/weft, if that is a folder of this
 * user that nobody else may write to. WEFT_ERR_UNAVAILABLE: it is not, and every start compiles
 * again; the error says what is wrong with it. */
WEFT_API enum weft_status weft_cuda_cache_check(struct weft_error *error);

struct weft_cuda_options {
  const uint32_t *gpus; /* [gpu_count], numbers as CUDA counts them, none twice; NULL: all */
  uint32_t gpu_count;
  uint32_t partitions; /* of each GPU: equal groups of its SMs, each like a small GPU of its own;
                          0: the whole GPU */
  uint32_t first_rank; /* the ranks are first_rank, first_rank + 1, ...: where a rank is a process,
                          its own number */
};

struct weft_cuda;

/* Opens GPUs for that many ranks of this process, and compiles the built-in kernels. Ranks go to
 * GPUs, or partitions, in order: as many in each as is even; several share one where there are
 * more, and GPUs that no rank is on are not opened. NULL `options`: all GPUs. WEFT_ERR_UNAVAILABLE as above; WEFT_ERR_USAGE: no such GPU, or
 * it cannot be split so. */
WEFT_API enum weft_status weft_cuda_open(const struct weft_allocator *allocator,
                                         const struct weft_cuda_options *options,
                                         uint32_t rank_count, struct weft_cuda **out,
                                         struct weft_error *error);
/* NULL is fine. What was allocated on its devices has been freed. */
WEFT_API void weft_cuda_close(struct weft_cuda *cuda);

/* The device of a rank: its memory, and where its work runs. `cuda` owns it. NULL: no rank that it
 * was opened for. A rank whose pipeline
 * has no device is on the host, and exchanges messages with those on GPUs all the same. */
WEFT_API struct weft_device *weft_cuda_device(struct weft_cuda *cuda, uint32_t rank);

/* Where that is, for people: "GPU 0 (NVIDIA H200), partition 2 of 4, 32 SMs". */
WEFT_API const char *weft_cuda_location(const struct weft_cuda *cuda, uint32_t rank);
/* The whole GPU that it is on or a part of; `cuda` owns it. NULL as above. */
WEFT_API const struct weft_cuda_gpu_info *weft_cuda_rank_gpu(const struct weft_cuda *cuda,
                                                             uint32_t rank);

/* Bytes of the GPU's memory that a rank's device holds, and how often it asked the driver for
 * memory so far. */
WEFT_API void weft_cuda_memory(const struct weft_cuda *cuda, uint32_t rank, uint64_t *bytes,
                               uint64_t *allocations);

/* ---- Kernels of your own, without nvcc ---- */

/* CUDA C++ that is compiled for a rank's GPU by NVRTC, on the machine that runs it, and kept in
 * the user's cache; names[count] are its kernels, declared extern "C". For capability 9.0 the
 * target is sm_90a, which has wgmma. WEFT_ERR_UNAVAILABLE without NVRTC, or with what it says about
 * the source. */
struct weft_cuda_kernels;
WEFT_API enum weft_status weft_cuda_kernels_load(struct weft_cuda *cuda, uint32_t rank,
                                                 const char *source, const char *const *names,
                                                 uint32_t count, struct weft_cuda_kernels **out,
                                                 struct weft_error *error);
/* NULL is fine. Nothing enqueued may still use them. */
WEFT_API void weft_cuda_kernels_unload(struct weft_cuda_kernels *kernels);

/* Enqueues names[kernel] on a stream of the rank's device. WEFT_ERR_USAGE: more blocks or threads
 * than CUDA launches: 2^31 - 1 blocks in x, 65,535 in y and in z; 1,024 threads in a block, 64 in
 * its z. */
struct weft_cuda_launch {
  uint32_t kernel;
  uint32_t blocks[3], threads[3]; /* 0: 1 */
  void *const *parameters;        /* parameters[k] points to the k-th */
};
WEFT_API enum weft_status weft_cuda_launch(const struct weft_cuda_kernels *kernels,
                                           const struct weft_cuda_launch *launch,
                                           struct weft_stream *stream, struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
