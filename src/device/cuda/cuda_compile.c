/* Kernels compiled on the machine that runs them; see cuda_compile.h. One build of Weft so serves
 * machines with any GPU or none, and building it needs no CUDA. */
#define _GNU_SOURCE /* dladdr */
#include "device/cuda/cuda_compile.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/cuda.h>
#include <weft/support.h>

/* Of CUDA; the second one is what is looked for first where there is no driver. */
enum { VERSION_MAJOR_MIN = 12, VERSION_MAJOR_MAX = 13, CACHE_NAME_SIZE = 128 };

typedef struct nvrtcProgram_st *nvrtcProgram;

#define NVRTC_FUNCTIONS(X)                                                                        \
  X(nvrtcVersion, (int *major, int *minor))                                                       \
  X(nvrtcCreateProgram, (nvrtcProgram * program, const char *source, const char *name,            \
                         int header_count, const char *const *headers, const char *const *names)) \
  X(nvrtcCompileProgram, (nvrtcProgram program, int option_count, const char *const *options))    \
  X(nvrtcGetCUBINSize, (nvrtcProgram program, size_t * size))                                     \
  X(nvrtcGetCUBIN, (nvrtcProgram program, char *code))                                            \
  X(nvrtcGetProgramLogSize, (nvrtcProgram program, size_t * size))                                \
  X(nvrtcGetProgramLog, (nvrtcProgram program, char *log))                                        \
  X(nvrtcDestroyProgram, (nvrtcProgram * program))

static struct {
#define MEMBER(name, parameters) int(*name) parameters;
  NVRTC_FUNCTIONS(MEMBER)
#undef MEMBER
  int version;
  char folder[128]; /* where it is, for a hint */
} nvrtc;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const struct weft_library_symbol symbols[] = {
#define SYMBOL(name, parameters) {#name, (void *)&nvrtc.name, false},
    NVRTC_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

static int version_of(void *library) {
  int (*version)(int *major, int *minor) = NULL;
  const struct weft_library_symbol symbol = {"nvrtcVersion", (void *)&version, true};
  int major = 0, minor = 0;
  (void)weft_library_find(library, &symbol, 1);
  return version != NULL && version(&major, &minor) == 0 ? 1000 * major + 10 * minor : 0;
}

/* A driver loads code that a compiler of its own major version made, or of an older one; so those
 * come first. */
static bool accepts(void *library, bool any, void *driver_major) {
  return any || version_of(library) / 1000 <= *(const int *)driver_major;
}

/* NVRTC opens its built-in headers' library by its name when it compiles. That of CUDA 13 has no run
 * path, so its own folder is not searched; one that is loaded is found. */
static void load_builtins(void) {
  Dl_info info;
  char path[PATH_MAX], name[PATH_MAX + 64];
  if (dladdr((const void *)nvrtc.nvrtcVersion, &info) == 0 ||
      realpath(info.dli_fname, path) == NULL) {
    return;
  }
  *strrchr(path, '/') = '\0';
  (void)snprintf(nvrtc.folder, sizeof nvrtc.folder, "%.100s", path);
  (void)snprintf(name, sizeof name, "%s/libnvrtc-builtins.so.%d.%d", path, nvrtc.version / 1000,
                 nvrtc.version % 1000 / 10);
  (void)weft_library_open(name, false, NULL);
}

static void load_nvrtc(void) {
  const struct weft_cuda_api *cuda;
  const bool has_driver = weft_cuda_api_load(&cuda, NULL) == WEFT_OK;
  int major = has_driver ? cuda->version / 1000 : VERSION_MAJOR_MAX;
  void *library = weft_library_open_version("libnvrtc.so", "/usr/local/cuda/lib64",
                                            VERSION_MAJOR_MIN, major, accepts, &major);
  if (library != NULL && weft_library_find(library, symbols, WEFT_ARRAY_LENGTH(symbols)) == NULL) {
    nvrtc.version = version_of(library);
    load_builtins();
  }
}

int weft_cuda_compiler_version(void) {
  (void)pthread_once(&once, load_nvrtc);
  return nvrtc.version;
}

/* Hopper's own instructions, wgmma among them, are only in the target of that one capability. */
static const char *target_suffix(uint32_t capability) { return capability == 90 ? "a" : ""; }

static void name_code(const char *source, uint32_t capability, char *out) {
  (void)snprintf(out, CACHE_NAME_SIZE, "kernels-%016" PRIx64 "-%d-sm%" PRIu32 "%s",
                 weft_checksum(source, (uint64_t)strlen(source)), nvrtc.version, capability,
                 target_suffix(capability));
}

/* ---- The user's cache ----
 *
 * A file for each source, compiler and capability, in $XDG_CACHE_HOME/weft or ~/.cache/weft. Code
 * from there runs on the GPU, so it is read only from a regular file of this user in a folder of
 * this user that nobody else may write to; any other cache is left alone, and the kernels are
 * compiled. The folder is opened once per call, and files only relative to it, so that what was
 * checked is what is used. */

enum { PATH_SIZE = 4096, SHOWN_SIZE = 256 };

static bool find_folder(char *out) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  const bool is_default = cache == NULL || cache[0] != '/'; /* a relative one is ignored, by XDG */
  if (is_default && (home == NULL || home[0] != '/')) {
    return false;
  }
  const int length =
      snprintf(out, PATH_SIZE, "%s%s/weft", is_default ? home : cache, is_default ? "/.cache" : "");
  return length > 0 && length < PATH_SIZE;
}

/* NULL: it is this user's, and nobody else may write to it. */
static const char *distrust(const struct stat *facts) {
  return facts->st_uid != geteuid()    ? "belongs to another user"
         : (facts->st_mode & 022) != 0 ? "may be written to by others"
                                       : NULL;
}

static enum weft_status fail_folder(const char *folder, const char *reason,
                                    struct weft_error *error) {
  char shown[SHOWN_SIZE];
  return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                   "have it be a folder of your own that only you may write to (chmod go-w), or "
                   "XDG_CACHE_HOME name another place",
                   "compiled kernels are not kept: %s %s",
                   weft_escape(shown, sizeof shown, folder, strlen(folder)), reason);
}

/* Folders on the way are the user's own as well, as XDG has it. */
static void make_folders(char *path) {
  for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    (void)mkdir(path, 0700);
    *slash = '/';
  }
  (void)mkdir(path, 0700);
}

/* -1 in *out: there is none yet. `make`: then it is made. */
static enum weft_status open_folder(bool make, int *out, struct weft_error *error) {
  char folder[PATH_SIZE];
  struct stat facts;
  *out = -1;
  if (!find_folder(folder)) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "set HOME or XDG_CACHE_HOME",
                     "compiled kernels are not kept: there is no folder for a cache");
  }
  if (make) {
    make_folders(folder);
  }
  const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    return errno == ENOENT ? WEFT_OK
                           : fail_folder(folder,
                                         errno == ELOOP || errno == ENOTDIR
                                             ? "is a link or a file, not a folder"
                                             : "cannot be opened",
                                         error);
  }
  const char *reason = fstat(fd, &facts) == 0 ? distrust(&facts) : "cannot be examined";
  if (reason != NULL) {
    (void)close(fd);
    return fail_folder(folder, reason, error);
  }
  *out = fd;
  return WEFT_OK;
}

enum weft_status weft_cuda_cache_check(struct weft_error *error) {
  int fd;
  WEFT_TRY(open_folder(false, &fd, error));
  if (fd >= 0) {
    (void)close(fd);
  }
  return WEFT_OK;
}

/* A file is the code, and its checksum. */

static bool read_code(const struct weft_allocator *allocator, FILE *file, size_t file_size,
                      char **code, size_t *size) {
  uint64_t sum;
  if (file_size <= sizeof sum) {
    return false;
  }
  const size_t code_size = file_size - sizeof sum;
  char *read = weft_array_allocate(allocator, code_size, 1);
  if (read == NULL || fread(read, 1, code_size, file) != code_size ||
      fread(&sum, sizeof sum, 1, file) != 1 || sum != weft_checksum(read, code_size)) {
    weft_array_free(allocator, read, code_size, 1);
    return false;
  }
  *code = read;
  *size = code_size;
  return true;
}

/* The code kept under a name. False: there is none that is whole and can be trusted. Without
 * O_NONBLOCK, opening a named pipe would wait for its writer. */
static bool read_cache(const struct weft_allocator *allocator, const char *name, char **code,
                       size_t *size) {
  assert(strlen(name) < CACHE_NAME_SIZE && code != NULL && size != NULL);
  int folder;
  struct stat facts;
  bool done = false;
  if (open_folder(false, &folder, NULL) < 0 || folder < 0) {
    return false;
  }
  const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  (void)close(folder);
  FILE *file = fd >= 0 ? fdopen(fd, "rb") : NULL;
  if (file == NULL) {
    if (fd >= 0) {
      (void)close(fd);
    }
    return false;
  }
  if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) && distrust(&facts) == NULL) {
    done = read_code(allocator, file, (size_t)facts.st_size, code, size);
  }
  (void)fclose(file);
  return done;
}

/* Keeps code, unless there is no cache that can be trusted. Written beside and renamed, so that
 * nobody reads half of it; what had the name before, a link or a pipe, is replaced. Two threads of a
 * process may write at the same time. */
static void write_cache(const char *name, const char *code, size_t size) {
  assert(strlen(name) < CACHE_NAME_SIZE && code != NULL && size > 0);
  char temporary[CACHE_NAME_SIZE + 48];
  struct timespec now = {0};
  int folder;
  if (open_folder(true, &folder, NULL) < 0 || folder < 0) {
    return;
  }
  (void)clock_gettime(CLOCK_REALTIME, &now);
  (void)snprintf(temporary, sizeof temporary, "%.*s.%ld.%ld", CACHE_NAME_SIZE, name, (long)getpid(),
                 now.tv_nsec);
  const int fd =
      openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
  if (file != NULL) {
    const uint64_t sum = weft_checksum(code, size);
    const bool written =
        fwrite(code, 1, size, file) == size && fwrite(&sum, sizeof sum, 1, file) == 1;
    if (fclose(file) != 0 || !written || renameat(folder, temporary, folder, name) != 0) {
      (void)unlinkat(folder, temporary, 0);
    }
  } else if (fd >= 0) {
    (void)close(fd);
    (void)unlinkat(folder, temporary, 0);
  }
  (void)close(folder);
}

/* ---- Compiling ---- */

static enum weft_status fail_compile(const struct weft_allocator *allocator, nvrtcProgram program,
                                     uint32_t capability, struct weft_error *error) {
  size_t size = 0;
  char *log = nvrtc.nvrtcGetProgramLogSize(program, &size) == 0 && size > 0
                  ? weft_array_allocate_zero(allocator, size + 1, 1)
                  : NULL;
  if (log != NULL) {
    (void)nvrtc.nvrtcGetProgramLog(program, log);
  }
  char hint[sizeof error->hint];
  const bool builtins = log != NULL && strstr(log, "libnvrtc-builtins") != NULL;
  (void)snprintf(hint, sizeof hint,
                 builtins ? "it comes with NVRTC, as a file of its own: have LD_LIBRARY_PATH name "
                            "its folder (%.100s, if it is there)"
                          : "a newer NVRTC knows newer GPUs, and an older one older GPUs",
                 nvrtc.folder);
  const enum weft_status status = weft_fail(
      error, WEFT_ERR_UNAVAILABLE, hint,
      "NVRTC %d.%d cannot compile the kernels for capability %" PRIu32 ".%" PRIu32 ": %.200s",
      nvrtc.version / 1000, nvrtc.version % 1000 / 10, capability / 10, capability % 10,
      log != NULL ? log : "no reason given");
  weft_array_free(allocator, log, size + 1, 1);
  return status;
}

static enum weft_status compile_program(const struct weft_allocator *allocator,
                                        nvrtcProgram program, uint32_t capability, char **code,
                                        size_t *size, struct weft_error *error) {
  char architecture[32];
  (void)snprintf(architecture, sizeof architecture, "-arch=sm_%" PRIu32 "%s", capability,
                 target_suffix(capability));
  const char *const options[] = {architecture};
  if (nvrtc.nvrtcCompileProgram(program, 1, options) != 0 ||
      nvrtc.nvrtcGetCUBINSize(program, size) != 0 || *size == 0) {
    return fail_compile(allocator, program, capability, error);
  }
  *code = weft_array_allocate(allocator, *size, 1);
  if (*code == NULL) {
    return weft_fail_memory(error, *size);
  }
  if (nvrtc.nvrtcGetCUBIN(program, *code) != 0) {
    weft_array_free(allocator, *code, *size, 1);
    return fail_compile(allocator, program, capability, error);
  }
  return WEFT_OK;
}

/* Into the current context. */
static enum weft_status load_code(const struct weft_cuda_api *cuda, const char *code,
                                  CUlibrary *out, struct weft_error *error) {
  const CUresult result = cuda->cuLibraryLoadData(out, code, NULL, NULL, 0, NULL, NULL, 0);
  if (result == CUDA_SUCCESS) {
    return WEFT_OK;
  }
  if (nvrtc.version / 1000 <= cuda->version / 1000) {
    return weft_cuda_fail(cuda, result, "cuLibraryLoadData", error);
  }
  const char *text = NULL;
  (void)cuda->cuGetErrorString(result, &text);
  char hint[sizeof error->hint];
  (void)snprintf(hint, sizeof hint,
                 "install NVRTC %d ('pip install nvidia-cuda-nvrtc-cu%d') and have "
                 "LD_LIBRARY_PATH name its folder; or a driver for CUDA %d",
                 cuda->version / 1000, cuda->version / 1000, nvrtc.version / 1000);
  return weft_fail(error, WEFT_ERR_UNAVAILABLE, hint,
                   "the driver, for CUDA %d.%d, does not load what NVRTC %d.%d compiled: %s",
                   cuda->version / 1000, cuda->version % 1000 / 10, nvrtc.version / 1000,
                   nvrtc.version % 1000 / 10, text != NULL ? text : "unknown error");
}

/* From the cache, or compiled and kept there. The caller frees *code, which has *size bytes. */
static enum weft_status find_code(const struct weft_allocator *allocator, const char *source,
                                  uint32_t capability, char **code, size_t *size,
                                  struct weft_error *error) {
  char name[CACHE_NAME_SIZE];
  nvrtcProgram program;
  if (weft_cuda_compiler_version() == 0) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     "install it with CUDA's toolkit or 'pip install nvidia-cuda-nvrtc', and have "
                     "LD_LIBRARY_PATH name its folder",
                     "there is no libnvrtc here, which compiles the kernels");
  }
  name_code(source, capability, name);
  if (read_cache(allocator, name, code, size)) {
    return WEFT_OK;
  }
  if (nvrtc.nvrtcCreateProgram(&program, source, "kernels.cu", 0, NULL, NULL) != 0) {
    return weft_fail_memory(error, strlen(source));
  }
  const enum weft_status status =
      compile_program(allocator, program, capability, code, size, error);
  (void)nvrtc.nvrtcDestroyProgram(&program);
  if (status == WEFT_OK) {
    write_cache(name, *code, *size);
  }
  return status;
}

enum weft_status weft_cuda_load_kernels(const struct weft_cuda_api *cuda,
                                        const struct weft_allocator *allocator,
                                        const struct weft_cuda_kernel_set *kernels,
                                        uint32_t capability, CUlibrary *library,
                                        struct weft_error *error) {
  assert(kernels->source != NULL && kernels->names != NULL && *library == NULL);
  char *code = NULL;
  size_t size = 0;
  WEFT_TRY(find_code(allocator, kernels->source, capability, &code, &size, error));
  const enum weft_status status = load_code(cuda, code, library, error);
  weft_array_free(allocator, code, size, 1);
  WEFT_TRY(status);
  for (uint32_t k = 0; k < kernels->count; k++) {
    CUkernel found;
    WEFT_CUDA_TRY(cuda, error, cuLibraryGetKernel, &found, *library, kernels->names[k]);
    kernels->functions[k] = (CUfunction)found; /* the driver takes either */
  }
  return WEFT_OK;
}
