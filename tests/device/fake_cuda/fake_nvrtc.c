/* A libnvrtc whose compiled code is the source behind its version, which is all of it that the fake
 * driver looks at: it finds kernels by their names. The version is 13.99, or 12.99 of a file that is
 * called so: one that there is not, so that nothing compiled here is taken from a cache on a machine
 * with a GPU. In WEFT_FAKE_CUDA, nvrtc=fail: no program compiles; nvrtc=lost: what was compiled is
 * not given; nvrtc=builtins: it needs its libnvrtc-builtins, as the real one does. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVRTC_API __attribute__((visibility("default")))

typedef struct program {
  char *source;
} * nvrtcProgram;

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, COMPILATION = 6 };

static bool is_told(const char *option) {
  const char *text = getenv("WEFT_FAKE_CUDA");
  return text != NULL && strstr(text, option) != NULL;
}

static int major_version(void) {
  Dl_info info;
  return dladdr((const void *)major_version, &info) != 0 && strstr(info.dli_fname, ".so.12") != NULL
             ? 12
             : 13;
}

/* NULL: it compiles. */
static const char *refusal(void) {
  char name[40];
  if (is_told("nvrtc=fail")) {
    return "fake nvrtc: error: nvrtc=fail in WEFT_FAKE_CUDA\n";
  }
  (void)snprintf(name, sizeof name, "libnvrtc-builtins.so.%d.99", major_version());
  if (is_told("nvrtc=builtins") && dlopen(name, RTLD_NOW) == NULL) {
    return major_version() == 12 ? "nvrtc: error: failed to open libnvrtc-builtins.so.12.99\n"
                                 : "nvrtc: error: failed to open libnvrtc-builtins.so.13.99\n";
  }
  return NULL;
}

NVRTC_API int nvrtcVersion(int *major, int *minor);
NVRTC_API const char *nvrtcGetErrorString(int result);
NVRTC_API int nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name,
                                 int header_count, const char *const *headers,
                                 const char *const *include_names);
NVRTC_API int nvrtcDestroyProgram(nvrtcProgram *program);
NVRTC_API int nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options);
NVRTC_API int nvrtcGetCUBINSize(nvrtcProgram program, size_t *size);
NVRTC_API int nvrtcGetCUBIN(nvrtcProgram program, char *code);
NVRTC_API int nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size);
NVRTC_API int nvrtcGetProgramLog(nvrtcProgram program, char *log);

int nvrtcVersion(int *major, int *minor) {
  *major = major_version();
  *minor = 99;
  return SUCCESS;
}

const char *nvrtcGetErrorString(int result) {
  switch (result) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR unknown";
  }
}

int nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name,
                       int header_count, const char *const *headers,
                       const char *const *include_names) {
  (void)name;
  (void)headers;
  (void)include_names;
  if (source == NULL || header_count != 0) {
    return INVALID_INPUT;
  }
  nvrtcProgram created = calloc(1, sizeof *created);
  const size_t room = strlen(source) + 32;
  char *copy = malloc(room);
  if (created == NULL || copy == NULL) {
    free(created);
    free(copy);
    return OUT_OF_MEMORY;
  }
  (void)snprintf(copy, room, "fake NVRTC %d.99\n%s", major_version(), source);
  created->source = copy;
  *program = created;
  return SUCCESS;
}

int nvrtcDestroyProgram(nvrtcProgram *program) {
  free((*program)->source);
  free(*program);
  *program = NULL;
  return SUCCESS;
}

int nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options) {
  (void)program;
  (void)count;
  (void)options;
  return refusal() != NULL ? COMPILATION : SUCCESS;
}

int nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
  *size = strlen(program->source) + 1;
  return SUCCESS;
}

int nvrtcGetCUBIN(nvrtcProgram program, char *code) {
  if (is_told("nvrtc=lost")) {
    return OUT_OF_MEMORY;
  }
  memcpy(code, program->source, strlen(program->source) + 1);
  return SUCCESS;
}

int nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
  (void)program;
  *size = refusal() != NULL ? strlen(refusal()) + 1 : 1;
  return SUCCESS;
}

int nvrtcGetProgramLog(nvrtcProgram program, char *log) {
  (void)program;
  const char *text = refusal() != NULL ? refusal() : "";
  memcpy(log, text, strlen(text) + 1);
  return SUCCESS;
}
