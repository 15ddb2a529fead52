/* A libnvrtc whose compiled code is the source: the fake driver finds kernels by their names and
 * does not look at code. The version is one that there is not, so that nothing compiled here is
 * taken from a cache on a machine with a GPU. nvrtc=fail in WEFT_FAKE_CUDA: no program compiles; nvrtc=lost: what was compiled is not given. */
#include <stdlib.h>
#include <string.h>

#define NVRTC_API __attribute__((visibility("default")))

typedef struct program {
  char *source;
} * nvrtcProgram;

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, COMPILATION = 6 };

static const char refusal[] = "fake nvrtc: error: nvrtc=fail in WEFT_FAKE_CUDA\n";

static int refuses(void) {
  const char *text = getenv("WEFT_FAKE_CUDA");
  return text != NULL && strstr(text, "nvrtc=fail") != NULL;
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
  *major = 13;
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
  char *copy = malloc(strlen(source) + 1);
  if (created == NULL || copy == NULL) {
    free(created);
    free(copy);
    return OUT_OF_MEMORY;
  }
  memcpy(copy, source, strlen(source) + 1);
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
  return refuses() ? COMPILATION : SUCCESS;
}

int nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
  *size = strlen(program->source) + 1;
  return SUCCESS;
}

int nvrtcGetCUBIN(nvrtcProgram program, char *code) {
  const char *text = getenv("WEFT_FAKE_CUDA");
  if (text != NULL && strstr(text, "nvrtc=lost") != NULL) {
    return OUT_OF_MEMORY;
  }
  memcpy(code, program->source, strlen(program->source) + 1);
  return SUCCESS;
}

int nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
  (void)program;
  *size = refuses() ? sizeof refusal : 1;
  return SUCCESS;
}

int nvrtcGetProgramLog(nvrtcProgram program, char *log) {
  (void)program;
  memcpy(log, refuses() ? refusal : "", refuses() ? sizeof refusal : 1);
  return SUCCESS;
}
