/* The part of CUDA's driver interface that Weft uses: types, constants and functions, declared
 * here because building Weft needs no CUDA. libcuda keeps this binary interface; the names and
 * numbers are those of its documentation. Requires a driver for CUDA 12.0 or later; what came
 * later is OPTIONAL.
 *
 *     const struct weft_cuda_api *cuda;
 *     WEFT_TRY(weft_cuda_api_load(&cuda, error));
 *     cuda->cuDeviceGetCount(&count); */
#ifndef CUDA_API_H
#define CUDA_API_H

#include <stddef.h>
#include <stdint.h>

#include <weft/base.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
  CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
  CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED = 809
};

enum {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
};

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DEFAULT = 0, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2 };
enum { CU_MEMORYTYPE_UNIFIED = 4 };
enum { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1 };
enum { CU_DEV_RESOURCE_TYPE_SM = 1 };
enum { CU_GREEN_CTX_DEFAULT_STREAM = 1 };

typedef struct {
  size_t srcXInBytes, srcY;
  int srcMemoryType;
  const void *srcHost;
  CUdeviceptr srcDevice;
  void *srcArray;
  size_t srcPitch;
  size_t dstXInBytes, dstY;
  int dstMemoryType;
  void *dstHost;
  CUdeviceptr dstDevice;
  void *dstArray;
  size_t dstPitch;
  size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* 144 bytes; of CUDA 12.4. */
typedef struct {
  int type;
  unsigned char padding[92];
  union {
    struct {
      unsigned int smCount, minSmPartitionSize, smCoscheduledAlignment;
    } sm;
    unsigned char room[48];
  } of;
} CUdevResource;

/* X(how, name, symbol, parameters): REQUIRED ones must be in libcuda. */
#define WEFT_CUDA_FUNCTIONS(X)                                                                     \
  X(REQUIRED, cuInit, "cuInit", (unsigned int flags))                                              \
  X(REQUIRED, cuDriverGetVersion, "cuDriverGetVersion", (int *version))                            \
  X(REQUIRED, cuGetErrorName, "cuGetErrorName", (CUresult error, const char **name))               \
  X(REQUIRED, cuGetErrorString, "cuGetErrorString", (CUresult error, const char **text))           \
  X(REQUIRED, cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                  \
  X(REQUIRED, cuDeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                        \
  X(REQUIRED, cuDeviceGetName, "cuDeviceGetName", (char *name, int size, CUdevice device))         \
  X(REQUIRED, cuDeviceGetAttribute, "cuDeviceGetAttribute",                                        \
    (int *value, int attribute, CUdevice device))                                                  \
  X(OPTIONAL, cuDeviceGetUuid, "cuDeviceGetUuid_v2", (unsigned char *uuid, CUdevice device))       \
  X(REQUIRED, cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, CUdevice device))          \
  X(REQUIRED, cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer",                                      \
    (int *can, CUdevice device, CUdevice peer))                                                    \
  X(REQUIRED, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain",                                \
    (CUcontext * context, CUdevice device))                                                        \
  X(REQUIRED, cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))        \
  X(REQUIRED, cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                             \
  X(REQUIRED, cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess",                                      \
    (CUcontext peer, unsigned int flags))                                                          \
  X(REQUIRED, cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * data, size_t bytes))                     \
  X(REQUIRED, cuMemFree, "cuMemFree_v2", (CUdeviceptr data))                                       \
  X(REQUIRED, cuMemHostAlloc, "cuMemHostAlloc", (void **data, size_t bytes, unsigned int flags))   \
  X(REQUIRED, cuMemFreeHost, "cuMemFreeHost", (void *data))                                        \
  X(REQUIRED, cuMemcpyAsync, "cuMemcpyAsync",                                                      \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                             \
  X(REQUIRED, cuMemcpy2DAsync, "cuMemcpy2DAsync_v2", (const CUDA_MEMCPY2D *copy, CUstream stream)) \
  X(REQUIRED, cuMemsetD8Async, "cuMemsetD8Async",                                                  \
    (CUdeviceptr data, unsigned char value, size_t count, CUstream stream))                        \
  X(REQUIRED, cuStreamCreate, "cuStreamCreate", (CUstream * stream, unsigned int flags))           \
  X(REQUIRED, cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                            \
  X(REQUIRED, cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                       \
  X(REQUIRED, cuStreamWaitEvent, "cuStreamWaitEvent",                                              \
    (CUstream stream, CUevent event, unsigned int flags))                                          \
  X(OPTIONAL, cuStreamWriteValue32, "cuStreamWriteValue32_v2",                                     \
    (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags))                    \
  X(REQUIRED, cuEventCreate, "cuEventCreate", (CUevent * event, unsigned int flags))               \
  X(REQUIRED, cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                \
  X(REQUIRED, cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                    \
  X(REQUIRED, cuEventQuery, "cuEventQuery", (CUevent event))                                       \
  X(REQUIRED, cuEventSynchronize, "cuEventSynchronize", (CUevent event))                           \
  X(REQUIRED, cuEventElapsedTime, "cuEventElapsedTime",                                            \
    (float *milliseconds, CUevent from, CUevent to))                                               \
  X(REQUIRED, cuLibraryLoadData, "cuLibraryLoadData",                                              \
    (CUlibrary * library, const void *code, int *jit_options, void **jit_values,                   \
     unsigned int jit_count, int *options, void **values, unsigned int count))                     \
  X(REQUIRED, cuLibraryUnload, "cuLibraryUnload", (CUlibrary library))                             \
  X(REQUIRED, cuLibraryGetKernel, "cuLibraryGetKernel",                                            \
    (CUkernel * kernel, CUlibrary library, const char *name))                                      \
  X(REQUIRED, cuLaunchKernel, "cuLaunchKernel",                                                    \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,           \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,  \
     CUstream stream, void **parameters, void **extra))                                            \
  X(REQUIRED, cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode))        \
  X(REQUIRED, cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * graph))        \
  X(REQUIRED, cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                   \
    (CUgraphExec * executable, CUgraph graph, unsigned long long flags))                           \
  X(REQUIRED, cuGraphDestroy, "cuGraphDestroy", (CUgraph graph))                                   \
  X(REQUIRED, cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec executable))                  \
  X(REQUIRED, cuGraphLaunch, "cuGraphLaunch", (CUgraphExec executable, CUstream stream))           \
  X(OPTIONAL, cuDeviceGetDevResource, "cuDeviceGetDevResource",                                    \
    (CUdevice device, CUdevResource * resource, int type))                                         \
  X(OPTIONAL, cuDevSmResourceSplitByCount, "cuDevSmResourceSplitByCount",                          \
    (CUdevResource * parts, unsigned int *count, const CUdevResource *whole, CUdevResource *rest,  \
     unsigned int flags, unsigned int least))                                                      \
  X(OPTIONAL, cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc",                              \
    (CUdevResourceDesc * description, CUdevResource * resources, unsigned int count))              \
  X(OPTIONAL, cuGreenCtxCreate, "cuGreenCtxCreate",                                                \
    (CUgreenCtx * context, CUdevResourceDesc description, CUdevice device, unsigned int flags))    \
  X(OPTIONAL, cuGreenCtxDestroy, "cuGreenCtxDestroy", (CUgreenCtx context))                        \
  X(OPTIONAL, cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate",                                    \
    (CUstream * stream, CUgreenCtx context, unsigned int flags, int priority))

/* An OPTIONAL function that this libcuda does not have is NULL. */
struct weft_cuda_api {
#define WEFT_CUDA_MEMBER(how, name, symbol, parameters) CUresult(*name) parameters;
  WEFT_CUDA_FUNCTIONS(WEFT_CUDA_MEMBER)
#undef WEFT_CUDA_MEMBER
  int version; /* of CUDA that the driver supports: 13000 for 13.0 */
};

/* libcuda, loaded and initialised once per process; it stays loaded. WEFT_ERR_UNAVAILABLE: there
 * is none, it has no GPU, or it is too old; the hint says what to install. Any thread. */
enum weft_status weft_cuda_api_load(const struct weft_cuda_api **out, struct weft_error *error);

/* A CUDA call has failed: WEFT_ERR_MEMORY or WEFT_ERR_DEVICE with CUDA's own text. */
enum weft_status weft_cuda_fail(const struct weft_cuda_api *cuda, CUresult result, const char *call,
                                struct weft_error *error);

/* Calls a function of the table, and returns from the caller when it fails. */
#define WEFT_CUDA_TRY(cuda, error, name, ...)                     \
  do {                                                            \
    const CUresult weft_result = (cuda)->name(__VA_ARGS__);       \
    if (weft_result != CUDA_SUCCESS) {                            \
      return weft_cuda_fail((cuda), weft_result, #name, (error)); \
    }                                                             \
  } while (0)

#endif
