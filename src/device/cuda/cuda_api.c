/* libcuda, loaded at run time; see cuda_api.h. */
#include "device/cuda/cuda_api.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <weft/support.h>

#include "device/environment_default.h"

enum { VERSION_MIN = 12000 };
static const unsigned long CONNECTIONS_MIN = 2, CONNECTIONS_MAX = 32, CONNECTIONS_MPS = 64;

static struct weft_cuda_api api;

static const char install_hint[] = "install NVIDIA's driver for CUDA 12.0 or later";

static const struct weft_library_symbol symbols[] = {
#define REQUIRED false
#define OPTIONAL true
#define SYMBOL(how, name, symbol, parameters) {symbol, (void *)&api.name, how},
    WEFT_CUDA_FUNCTIONS(SYMBOL)
#undef SYMBOL
#undef OPTIONAL
#undef REQUIRED
};
static const char *const names[] = {"libcuda.so.1"};
/* Whether processes share GPUs by MPS: its control daemon listens here. */
static bool has_mps(void) {
  const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
  char path[4096];
  (void)snprintf(path, sizeof path, "%s/control", folder != NULL ? folder : "/tmp/nvidia-mps");
  return access(path, F_OK) == 0;
}

/* Of a job, on this host; as launchers say. */
static unsigned long count_processes(void) {
  static const char *const variables[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                          "SLURM_TASKS_PER_NODE"};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(variables); k++) {
    const char *text = getenv(variables[k]);
    const unsigned long count = text != NULL ? strtoul(text, NULL, 10) : 0;
    if (count > 0) {
      return count;
    }
  }
  return 1;
}

/* More hardware queues than CUDA's eight, so that a rank's streams do not share one. Under MPS the
 * processes on a GPU have one pool of them, for 60 processes with 2 each, and one that finds too few
 * left gets no context: so those of a job take 64 together. Read by cuInit(); what the user has set
 * stays. */
static void choose_connections(void) {
  const unsigned long share = has_mps() ? CONNECTIONS_MPS / count_processes() : CONNECTIONS_MAX;
  char text[16];
  (void)snprintf(text, sizeof text, "%lu",
                 share > CONNECTIONS_MAX   ? CONNECTIONS_MAX
                 : share < CONNECTIONS_MIN ? CONNECTIONS_MIN
                                           : share);
  weft_environment_default(WEFT_ENVIRONMENT_CUDA_DEVICE_MAX_CONNECTIONS, text);
}

static enum weft_status start_driver(struct weft_error *error) {
  choose_connections();
  const CUresult result = api.cuInit(0);
  int count = 0;
  if (result == CUDA_ERROR_NO_DEVICE ||
      (result == CUDA_SUCCESS && api.cuDeviceGetCount(&count) == CUDA_SUCCESS && count == 0)) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     "a GPU must be visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
                     "libcuda.so.1 is installed, and finds no GPU");
  }
  if (result != CUDA_SUCCESS) {
    const char *text = NULL;
    (void)api.cuGetErrorString(result, &text);
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     "the kernel module may be missing or of another version: see nvidia-smi",
                     "CUDA cannot be initialised: %s", text != NULL ? text : "unknown error");
  }
  if (api.cuDriverGetVersion(&api.version) != CUDA_SUCCESS || api.version < VERSION_MIN) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, install_hint,
                     "the driver supports CUDA %d.%d, and 12.0 is needed", api.version / 1000,
                     api.version % 1000 / 10);
  }
  return WEFT_OK;
}

enum weft_status weft_cuda_api_load(const struct weft_cuda_api **out, struct weft_error *error) {
  static struct weft_library libcuda = {.title = "CUDA driver",
                                        .names = names,
                                        .name_count = WEFT_ARRAY_LENGTH(names),
                                        .symbols = symbols,
                                        .symbol_count = WEFT_ARRAY_LENGTH(symbols),
                                        .hint = install_hint,
                                        .start = start_driver};
  assert(out != NULL);
  WEFT_TRY(weft_library_load(&libcuda, error));
  *out = &api;
  return WEFT_OK;
}

enum weft_status weft_cuda_fail(const struct weft_cuda_api *cuda, CUresult result, const char *call,
                                struct weft_error *error) {
  assert(result != CUDA_SUCCESS && call != NULL);
  const char *name = NULL, *text = NULL;
  (void)cuda->cuGetErrorName(result, &name);
  (void)cuda->cuGetErrorString(result, &text);
  const bool memory = result == CUDA_ERROR_OUT_OF_MEMORY;
  const bool mps = result == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED ||
                   result == CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED;
  return weft_fail(
      error, memory ? WEFT_ERR_MEMORY : WEFT_ERR_DEVICE,
      memory ? "fewer microbatches in flight, smaller ones, or more ranks need less"
      : mps  ? "processes that share a GPU by MPS share its connections, too: a smaller "
               "CUDA_DEVICE_MAX_CONNECTIONS lets more of them in"
             : "compute-sanitizer shows where a kernel goes wrong",
      "%s failed: %s (%s)", call, text != NULL ? text : "unknown error", name != NULL ? name : "?");
}
