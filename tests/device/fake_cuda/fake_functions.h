/* What of CUDA's driver interface only the fake driver and its tests name; the rest is in
 * device/cuda/cuda_api.h. */
#ifndef FAKE_FUNCTIONS_H
#define FAKE_FUNCTIONS_H

#include "device/cuda/cuda_api.h"
#include "fake_cuda.h"

enum {
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
};

enum { CU_EVENT_RECORD_EXTERNAL = 1 }; /* under capture: a node that records at every launch */

#define FAKE_ONLY_FUNCTIONS(X)                                                                     \
  X(OPTIONAL, cuMemGetInfo, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total))              \
  X(OPTIONAL, cuMemcpyPeerAsync, "cuMemcpyPeerAsync",                                              \
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, \
     CUstream stream))                                                                             \
  X(OPTIONAL, cuStreamQuery, "cuStreamQuery", (CUstream stream))                                   \
  X(OPTIONAL, cuEventRecordWithFlags, "cuEventRecordWithFlags",                                    \
    (CUevent event, CUstream stream, unsigned int flags))                                          \
  X(OPTIONAL, cuGraphGetNodes, "cuGraphGetNodes", (CUgraph graph, void *nodes, size_t *count))

/* All that the fake driver has. */
#define FAKE_CUDA_FUNCTIONS(X) WEFT_CUDA_FUNCTIONS(X) FAKE_ONLY_FUNCTIONS(X)

/* They are defined under their names in C, and exported as their symbols. */
#define FAKE_DECLARE(how, name, symbol, parameters) \
  FAKE_CUDA_API CUresult name parameters __asm__(symbol);
FAKE_CUDA_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

#endif
