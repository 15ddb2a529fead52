/* The part of NCCL's interface that Weft uses: types, constants and functions, declared here
 * because building Weft needs no NCCL. The names and numbers are those of its documentation;
 * libnccl.so.2 keeps this binary interface.
 *
 *     const struct weft_nccl_api *nccl;
 *     WEFT_TRY(weft_nccl_api_load(&nccl, error));
 *     nccl->ncclGetUniqueId(&id); */
#ifndef COMM_NCCL_API_H
#define COMM_NCCL_API_H

#include <limits.h>
#include <stddef.h>

#include <weft/base.h>

typedef int ncclResult_t;
typedef int ncclDataType_t;
typedef int ncclRedOp_t;
typedef struct ncclComm *ncclComm_t;
typedef struct {
  char internal[128];
} ncclUniqueId;

enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum { ncclInt8 = 0, ncclFloat32 = 7 };
enum { ncclSum = 0 };

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_API_MAGIC 0xcafebeefU
enum { WEFT_NCCL_VERSION_MIN = 22600, WEFT_NCCL_VERSION_NAMES = 22700 };

/* As of 2.27. Of an older one only the first 48 bytes are given. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char *netName;
  int splitShare;
  int trafficClass;
  const char *commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
} ncclConfig_t;

/* X(name, parameters) */
#define WEFT_NCCL_FUNCTIONS(X)                                                                     \
  X(ncclGetVersion, (int *version))                                                                \
  X(ncclGetUniqueId, (ncclUniqueId * id))                                                          \
  X(ncclCommInitRankConfig,                                                                        \
    (ncclComm_t * comm, int rank_count, ncclUniqueId id, int rank, ncclConfig_t *config))          \
  X(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * state))                                \
  X(ncclCommFinalize, (ncclComm_t comm))                                                           \
  X(ncclCommDestroy, (ncclComm_t comm))                                                            \
  X(ncclCommAbort, (ncclComm_t comm))                                                              \
  X(ncclGroupStart, (void))                                                                        \
  X(ncclGroupEnd, (void))                                                                          \
  X(ncclSend, (const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,     \
               void *stream))                                                                      \
  X(ncclRecv,                                                                                      \
    (void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, void *stream))      \
  X(ncclAllGather, (const void *from, void *to, size_t count, ncclDataType_t type,                 \
                    ncclComm_t comm, void *stream))                                                \
  X(ncclReduceScatter, (const void *from, void *to, size_t count, ncclDataType_t type,             \
                        ncclRedOp_t op, ncclComm_t comm, void *stream))                            \
  X(ncclAllReduce, (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, \
                    ncclComm_t comm, void *stream))

struct weft_nccl_api {
#define WEFT_NCCL_MEMBER(name, parameters) ncclResult_t(*name) parameters;
  WEFT_NCCL_FUNCTIONS(WEFT_NCCL_MEMBER)
#undef WEFT_NCCL_MEMBER
  const char *(*ncclGetErrorString)(ncclResult_t result);
  const char *(*ncclGetLastError)(ncclComm_t comm);
  int version; /* 22807 for 2.28.7 */
};

/* libnccl, loaded once per process; it stays loaded. WEFT_ERR_UNAVAILABLE: there is none, or it
 * is older than 2.26; the hint says what to install. Any thread. */
enum weft_status weft_nccl_api_load(const struct weft_nccl_api **out, struct weft_error *error);
/* As weft_comm_library_version(). */
enum weft_status weft_nccl_version(int *version, struct weft_error *error);

/* A call has failed: WEFT_ERR_DEVICE, or WEFT_ERR_PEER where NCCL says that another rank is the
 * reason, with NCCL's own text. */
enum weft_status weft_nccl_fail(const struct weft_nccl_api *nccl, ncclResult_t result,
                                const char *call, struct weft_error *error);

#endif
