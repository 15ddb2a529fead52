/* libnccl, loaded at run time; see nccl_api.h. */
#include "comm/nccl/nccl_api.h"

#include <assert.h>

#include <weft/comm.h>
#include <weft/support.h>

static struct weft_nccl_api api;

static const char install_hint[] =
    "install libnccl2 2.26 or later, or 'pip install nvidia-nccl-cu13' and have LD_LIBRARY_PATH "
    "name its folder; "
    "the transport mpi works without it";

static const struct weft_library_symbol symbols[] = {
#define SYMBOL(name, parameters) {#name, (void *)&api.name, false},
    WEFT_NCCL_FUNCTIONS(SYMBOL)
#undef SYMBOL
        {"ncclGetErrorString", (void *)&api.ncclGetErrorString, false},
    {"ncclGetLastError", (void *)&api.ncclGetLastError, false}};
static const char *const names[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"};
static enum weft_status check_version(struct weft_error *error) {
  if (api.ncclGetVersion(&api.version) != ncclSuccess || api.version < WEFT_NCCL_VERSION_MIN) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, install_hint,
                     "libnccl.so.2 is NCCL %d.%d.%d, and 2.26 or later is needed",
                     api.version / 10000, api.version / 100 % 100, api.version % 100);
  }
  return WEFT_OK;
}

enum weft_status weft_nccl_api_load(const struct weft_nccl_api **out, struct weft_error *error) {
  static struct weft_library libnccl = {.title = "NCCL",
                                        .names = names,
                                        .name_count = WEFT_ARRAY_LENGTH(names),
                                        .symbols = symbols,
                                        .symbol_count = WEFT_ARRAY_LENGTH(symbols),
                                        .hint = install_hint,
                                        .start = check_version};
  assert(out != NULL);
  WEFT_TRY(weft_library_load(&libnccl, error));
  *out = &api;
  return WEFT_OK;
}

enum weft_status weft_nccl_version(int *version, struct weft_error *error) {
  const struct weft_nccl_api *nccl;
  WEFT_TRY(weft_nccl_api_load(&nccl, error));
  *version = nccl->version;
  return WEFT_OK;
}

enum weft_status weft_nccl_fail(const struct weft_nccl_api *nccl, ncclResult_t result,
                                const char *call, struct weft_error *error) {
  assert(result != ncclSuccess && call != NULL);
  const char *more = nccl->ncclGetLastError(NULL);
  const bool has_more = more != NULL && more[0] != '\0';
  return weft_fail(error, result == ncclRemoteError ? WEFT_ERR_PEER : WEFT_ERR_DEVICE,
                   "NCCL_DEBUG=INFO has NCCL say more", "NCCL: %s failed: %s%s%.200s", call,
                   nccl->ncclGetErrorString(result), has_more ? ": " : "", has_more ? more : "");
}
