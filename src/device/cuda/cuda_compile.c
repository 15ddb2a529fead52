/* Kernels compiled on the machine that runs them; see cuda_compile.h. One build of Weft so serves
 * machines with any GPU or none, and building it needs no CUDA. */
#include "device/cuda/cuda_compile.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/device.h>
#include <weft/support.h>

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
} nvrtc;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool find_functions(void *library) {
  void *found;
#define FIND(name, parameters)   \
  found = dlsym(library, #name); \
  if (found == NULL) {           \
    return false;                \
  }                              \
  memcpy((void *)&nvrtc.name, (const void *)&found, sizeof found);
  NVRTC_FUNCTIONS(FIND)
#undef FIND
  return true;
}

static void load(void) {
  static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                      "/usr/local/cuda/lib64/libnvrtc.so"};
  void *library = NULL;
  int major = 0, minor = 0;
  for (size_t k = 0; library == NULL && k < WEFT_ARRAY_LENGTH(names); k++) {
    library = dlopen(names[k], RTLD_NOW | RTLD_LOCAL);
  }
  if (library != NULL && find_functions(library) && nvrtc.nvrtcVersion(&major, &minor) == 0) {
    nvrtc.version = 1000 * major + 10 * minor;
  }
}

int weft_cuda_compiler_version(void) {
  (void)pthread_once(&once, load);
  return nvrtc.version;
}

/* ---- The cache: a file per source, compiler and capability: the code, and its checksum ---- */

enum { PATH_SIZE = 4096 };

/* Hopper's own instructions, wgmma among them, are only in the target of that one capability. */
static const char *target_suffix(uint32_t capability) { return capability == 90 ? "a" : ""; }

static bool cache_path(const char *source, bool exact, uint32_t capability, char *out) {
  const char *folder = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  const uint64_t hash = weft_checksum(source, (uint64_t)strlen(source));
  const bool own = folder == NULL || folder[0] != '/';
  if (own && (home == NULL || home[0] != '/')) {
    return false;
  }
  const int length =
      snprintf(out, PATH_SIZE, "%s%s/weft/kernels-%016" PRIx64 "-%d-sm%" PRIu32 "%s%s",
               own ? home : folder, own ? "/.cache" : "", hash, nvrtc.version, capability,
               target_suffix(capability), exact ? "" : "-fused");
  return length > 0 && length < PATH_SIZE - 16;
}

/* False: there is none, or it is damaged. */
static bool read_cache(const struct weft_allocator *allocator, const char *path, char **code,
                       size_t *size) {
  FILE *file = fopen(path, "rb");
  struct stat facts;
  bool done = false;
  if (file == NULL) {
    return false;
  }
  uint64_t sum;
  if (fstat(fileno(file), &facts) == 0 && facts.st_size > (off_t)sizeof sum) {
    *size = (size_t)facts.st_size - sizeof sum;
    *code = weft_array_allocate(allocator, *size, 1);
    done = *code != NULL && fread(*code, 1, *size, file) == *size &&
           fread(&sum, sizeof sum, 1, file) == 1 && sum == weft_checksum(*code, *size);
    if (!done) {
      weft_array_free(allocator, *code, *size, 1);
    }
  }
  (void)fclose(file);
  return done;
}

/* Written beside and renamed, so that nobody reads half of it. Without a cache the next start
 * compiles again, and nothing else changes. */
static void write_cache(char *path, const char *code, size_t size) {
  char temporary[PATH_SIZE];
  for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    const bool made = mkdir(path, 0777) == 0 || errno == EEXIST;
    *slash = '/';
    if (!made) {
      return;
    }
  }
  (void)snprintf(temporary, sizeof temporary, "%.4000s.%ld", path, (long)getpid());
  FILE *file = fopen(temporary, "wb");
  if (file == NULL) {
    return;
  }
  const uint64_t sum = weft_checksum(code, size);
  const bool written =
      fwrite(code, 1, size, file) == size && fwrite(&sum, sizeof sum, 1, file) == 1;
  if (fclose(file) != 0 || !written || rename(temporary, path) != 0) {
    (void)remove(temporary);
  }
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
  const enum weft_status status = weft_fail(
      error, WEFT_ERR_UNAVAILABLE, "an NVRTC of the driver's CUDA version may do it",
      "NVRTC %d.%d cannot compile the kernels for capability %" PRIu32 ".%" PRIu32 ": %.200s",
      nvrtc.version / 1000, nvrtc.version % 1000 / 10, capability / 10, capability % 10,
      log != NULL ? log : "no reason given");
  weft_array_free(allocator, log, size + 1, 1);
  return status;
}

static enum weft_status compile(const struct weft_allocator *allocator, nvrtcProgram program,
                                bool exact, uint32_t capability, char **code, size_t *size,
                                struct weft_error *error) {
  char architecture[32];
  (void)snprintf(architecture, sizeof architecture, "-arch=sm_%" PRIu32 "%s", capability,
                 target_suffix(capability));
  const char *const options[] = {architecture, exact ? "-fmad=false" : "-fmad=true"};
  if (nvrtc.nvrtcCompileProgram(program, 2, options) != 0 ||
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

enum weft_status weft_cuda_compile(const struct weft_allocator *allocator, const char *source,
                                   bool exact, uint32_t capability, char **code, size_t *size,
                                   struct weft_error *error) {
  char path[PATH_SIZE];
  nvrtcProgram program;
  if (weft_cuda_compiler_version() == 0) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     "install it with CUDA's toolkit or 'pip install nvidia-cuda-nvrtc', and have "
                     "LD_LIBRARY_PATH name its folder",
                     "there is no libnvrtc here, which compiles the kernels");
  }
  const bool caches = cache_path(source, exact, capability, path);
  if (caches && read_cache(allocator, path, code, size)) {
    return WEFT_OK;
  }
  if (nvrtc.nvrtcCreateProgram(&program, source, "kernels.cu", 0, NULL, NULL) != 0) {
    return weft_fail_memory(error, strlen(source));
  }
  const enum weft_status status = compile(allocator, program, exact, capability, code, size, error);
  (void)nvrtc.nvrtcDestroyProgram(&program);
  if (status == WEFT_OK && caches) {
    write_cache(path, *code, *size);
  }
  return status;
}
