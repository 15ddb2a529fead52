/* Devices, contexts and partitions of a device (green contexts). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

enum { SM_GROUP = 8 }; /* SMs of a partition come in such groups */

static struct CUctx_st contexts[FAKE_DEVICES_MAX];
static uint64_t retained[FAKE_DEVICES_MAX];

static bool is_device(CUdevice device) {
  return device >= 0 && (uint32_t)device < fake.options.devices;
}

static unsigned long connections; /* of this process, as it said at first */

static CUresult initialise(unsigned int flags) {
  if (flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (fake.options.devices == 0) {
    return CUDA_ERROR_NO_DEVICE;
  }
  const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  connections = text != NULL ? strtoul(text, NULL, 10) : 2;
  fake.initialised = true;
  return CUDA_SUCCESS;
}

/* As MPS does, the first processes get theirs, and the last none. Here all are taken for the last:
 * nobody knows how many there are already. */
static bool has_connections(void) {
  const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  text = text != NULL ? text : getenv("MPI_LOCALNRANKS");
  const unsigned long processes = text != NULL ? strtoul(text, NULL, 10) : 1;
  return fake.options.mps == 0 || connections * processes <= fake.options.mps;
}

static uint32_t sms_of(CUdevice device) {
  return fake.options.sms - (fake.options.mixed ? 8 * (uint32_t)device : 0);
}

static CUresult attribute_of(int *value, int attribute, CUdevice device) {
  if (!is_device(device)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = (int)sms_of(device); break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = (int)fake.options.capability / 10;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = (int)fake.options.capability % 10;
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device) {
  if (!is_device(device)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!has_connections()) {
    return CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED;
  }
  contexts[device].object.kind = FAKE_CONTEXT;
  contexts[device].device = device;
  retained[device]++;
  fake.statistics.contexts++;
  *context = &contexts[device];
  return CUDA_SUCCESS;
}

static CUresult release(CUdevice device) {
  if (!is_device(device) || retained[device] == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  retained[device]--;
  fake.statistics.contexts--;
  return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context) {
  if (context != NULL && !fake_object_is(context, FAKE_CONTEXT)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  fake_thread()->context = context;
  return CUDA_SUCCESS;
}

int fake_cuda_current_device(void) {
  pthread_mutex_lock(&fake.lock);
  const struct CUctx_st *context = fake_thread()->context;
  const int device = context != NULL ? context->device : -1;
  pthread_mutex_unlock(&fake.lock);
  return device;
}

static CUresult enable_peer(CUcontext peer, unsigned int flags) {
  const struct CUctx_st *context = fake_thread()->context;
  if (context == NULL || !fake_object_is(peer, FAKE_CONTEXT)) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  if (flags != 0 || peer == context || fake.options.no_peers) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool *enabled = &fake.peers[context->device][peer->device];
  const CUresult result = *enabled ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
  *enabled = true;
  return result;
}

/* ---- Partitions ---- */

static CUresult resource_of(CUdevice device, CUdevResource *resource, int type) {
  if (!is_device(device) || type != CU_DEV_RESOURCE_TYPE_SM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memset(resource, 0, sizeof *resource);
  resource->type = type;
  resource->of.sm.smCount = sms_of(device);
  resource->of.sm.minSmPartitionSize = SM_GROUP;
  resource->of.sm.smCoscheduledAlignment = SM_GROUP;
  return CUDA_SUCCESS;
}

/* At most *count parts with at least so many SMs each; parts NULL: how many there could be. */
static CUresult split(CUdevResource *parts, unsigned int *count, const CUdevResource *whole,
                      CUdevResource *rest, unsigned int flags, unsigned int least) {
  if (flags != 0 || whole->type != CU_DEV_RESOURCE_TYPE_SM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const unsigned int size = least == 0 ? SM_GROUP : (least + SM_GROUP - 1) / SM_GROUP * SM_GROUP;
  const unsigned int possible = whole->of.sm.smCount / size;
  if (possible == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (parts == NULL || *count > possible) {
    *count = possible;
  }
  for (unsigned int k = 0; parts != NULL && k < *count; k++) {
    parts[k] = *whole;
    parts[k].of.sm.smCount = size;
  }
  if (rest != NULL) {
    *rest = *whole;
    rest->of.sm.smCount = whole->of.sm.smCount - *count * size;
  }
  return CUDA_SUCCESS;
}

static CUresult describe_resources(CUdevResourceDesc *out, const CUdevResource *resources,
                                   unsigned int count) {
  unsigned int sms = 0;
  for (unsigned int k = 0; k < count; k++) {
    if (resources[k].type != CU_DEV_RESOURCE_TYPE_SM) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    sms += resources[k].of.sm.smCount;
  }
  if (sms == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUdevResourceDesc description = fake_object_create(FAKE_DESCRIPTION, sizeof *description);
  description->sm_count = sms;
  *out = description;
  return CUDA_SUCCESS;
}

/* CUDA has no call that ends a description; here the context does. */
static CUresult green_create(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device,
                             unsigned int flags) {
  if (!is_device(device) || flags != CU_GREEN_CTX_DEFAULT_STREAM ||
      !fake_object_is(description, FAKE_DESCRIPTION)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUgreenCtx context = fake_object_create(FAKE_GREEN_CONTEXT, sizeof *context);
  context->device = device;
  context->sm_count = description->sm_count;
  fake_object_destroy(description);
  fake.statistics.partitions++;
  *out = context;
  return CUDA_SUCCESS;
}

static CUresult green_destroy(CUgreenCtx context) {
  if (!fake_object_is(context, FAKE_GREEN_CONTEXT)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  fake.statistics.partitions--;
  fake_object_destroy(context);
  return CUDA_SUCCESS;
}

/* ---- Errors ---- */

static const struct {
  CUresult result;
  const char *name, *text;
} errors[] = {{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
              {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
              {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
              {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
              {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
              {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
              {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
              {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
              {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
              {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
               "an illegal memory access was encountered"},
              {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
               "peer access is already enabled"},
              {FAKE_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
              {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
              {CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
               "the hardware resources required to device connections have been exhausted"},
              {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
               "operation not permitted when stream is capturing"},
              {FAKE_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
               "operation failed due to a previous error during capture"},
              {FAKE_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
               "operation would result in a merge of separate capture sequences"},
              {FAKE_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
               "capture was not ended in the same stream as it began"},
              {FAKE_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
               "capturing stream has unjoined work"},
              {FAKE_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
               "dependency created on uncaptured work in another stream"},
              {FAKE_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
               "operation not permitted on an event last recorded in a capturing stream"},
              {FAKE_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
               "capture was not ended by the thread that began it"}};

static CUresult error_at(CUresult error, uint32_t *at) {
  for (*at = 0; *at < sizeof errors / sizeof errors[0]; ++*at) {
    if (errors[*at].result == error) {
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

/* ---- Calls ---- */

CUresult cuInit(unsigned int flags) { FAKE_BODY(cuInit, initialise(flags)); }

CUresult cuDriverGetVersion(int *version) {
  FAKE_BODY(cuDriverGetVersion, (*version = (int)fake.options.version, CUDA_SUCCESS));
}

static CUresult error_name(CUresult error, const char **name) {
  uint32_t at;
  FAKE_TRY(error_at(error, &at));
  *name = errors[at].name;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
  FAKE_BODY(cuGetErrorName, error_name(error, name));
}

static CUresult error_text(CUresult error, const char **text) {
  uint32_t at;
  FAKE_TRY(error_at(error, &at));
  *text = errors[at].text;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  FAKE_BODY(cuGetErrorString, error_text(error, text));
}

CUresult cuDeviceGetCount(int *count) {
  FAKE_BODY(cuDeviceGetCount, (*count = (int)fake.options.devices, CUDA_SUCCESS));
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  FAKE_BODY(cuDeviceGet,
            is_device(ordinal) ? (*device = ordinal, CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  FAKE_BODY(cuDeviceGetName, is_device(device) && size > 0
                                 ? (snprintf(name, (size_t)size, "Weft fake GPU"), CUDA_SUCCESS)
                                 : CUDA_ERROR_INVALID_VALUE);
}

/* The same in all processes, as that of a card is. */
static CUresult uuid_of(unsigned char *uuid, CUdevice device) {
  if (!is_device(device)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  memset(uuid, 'w', 16);
  uuid[0] = (unsigned char)device;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) {
  FAKE_BODY(cuDeviceGetUuid, uuid_of(uuid, device));
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  FAKE_BODY(cuDeviceGetAttribute, attribute_of(value, attribute, device));
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  FAKE_BODY(cuDeviceTotalMem, is_device(device) ? (*bytes = fake.options.memory_bytes, CUDA_SUCCESS)
                                                : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  FAKE_BODY(cuDeviceCanAccessPeer,
            is_device(device) && is_device(peer)
                ? (*can = device != peer && !fake.options.no_peers, CUDA_SUCCESS)
                : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  FAKE_BODY(cuDevicePrimaryCtxRetain, retain(context, device));
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  FAKE_BODY(cuDevicePrimaryCtxRelease, release(device));
}

CUresult cuCtxSetCurrent(CUcontext context) { FAKE_BODY(cuCtxSetCurrent, set_current(context)); }

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  FAKE_BODY(cuCtxEnablePeerAccess, enable_peer(peer, flags));
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, int type) {
  FAKE_BODY(cuDeviceGetDevResource, resource_of(device, resource, type));
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *parts, unsigned int *count,
                                     const CUdevResource *whole, CUdevResource *rest,
                                     unsigned int flags, unsigned int least) {
  FAKE_BODY(cuDevSmResourceSplitByCount, split(parts, count, whole, rest, flags, least));
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *resources,
                                   unsigned int count) {
  FAKE_BODY(cuDevResourceGenerateDesc, describe_resources(description, resources, count));
}

CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc description, CUdevice device,
                          unsigned int flags) {
  FAKE_BODY(cuGreenCtxCreate, green_create(context, description, device, flags));
}

CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  FAKE_BODY(cuGreenCtxDestroy, green_destroy(context));
}
