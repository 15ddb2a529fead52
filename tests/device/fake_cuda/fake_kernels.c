/* Libraries and kernels. A kernel is found by its name, whatever the code: the built-in kernels and
 * the linear stage's run their host functions, a test's own are registered. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/linear/linear_kernels.h"
#include "device/kernel.h"
#include "fake_driver.h"
#include "fake_gpt_kernels.h"

static struct CUkern_st *kernels;

static struct CUkern_st *find(const char *name) {
  struct CUkern_st *kernel = kernels;
  while (kernel != NULL && strcmp(kernel->kernel->name, name) != 0) {
    kernel = kernel->next;
  }
  return kernel;
}

static void add_kernel(const struct fake_cuda_kernel *kernel) {
  struct CUkern_st *handle = find(kernel->name);
  if (handle == NULL) {
    handle = fake_object_create(FAKE_KERNEL, sizeof *handle);
    handle->next = kernels;
    kernels = handle;
  }
  handle->kernel = kernel;
}

void fake_kernels_forget(void) {
  for (struct CUkern_st *kernel = kernels; kernel != NULL; kernel = kernel->next) {
    kernel->launches = 0;
    kernel->shared_asked = 0;
  }
}

/* ---- What they access: device/kernel.h, bench/linear/linear_kernels.h ---- */

static uint32_t list(struct fake_cuda_access *out, const uint64_t *values, const uint64_t *bytes,
                     uint32_t count, bool updates) {
  for (uint32_t k = 0; k < count; k++) {
    out[k] = (struct fake_cuda_access){
        .data = values[k], .bytes = bytes[k], .writes = k == 0, .reads = k > 0 || updates};
  }
  return count;
}

static uint32_t linear_forward(const uint64_t *v, struct fake_cuda_access *out) {
  const uint64_t rows = v[3], in = v[4], width = v[5];
  return list(out, v, (uint64_t[]){4 * rows * width, 4 * rows * in, 4 * width * in}, 3, false);
}

static uint32_t linear_backward_input(const uint64_t *v, struct fake_cuda_access *out) {
  const uint64_t rows = v[3], in = v[4], width = v[5];
  return list(out, v, (uint64_t[]){4 * rows * in, 4 * rows * width, 4 * width * in}, 3, false);
}

static uint32_t linear_backward_weight(const uint64_t *v, struct fake_cuda_access *out) {
  const uint64_t rows = v[3], in = v[4], width = v[5];
  return list(out, v, (uint64_t[]){4 * width * in, 4 * rows * width, 4 * rows * in}, 3, true);
}

static uint32_t square_loss(const uint64_t *v, struct fake_cuda_access *out) {
  return list(out, v, (uint64_t[]){8, 4 * v[3], 4 * v[3]}, 3, true);
}

static uint32_t subtract(const uint64_t *v, struct fake_cuda_access *out) {
  return list(out, v, (uint64_t[]){4 * v[3], 4 * v[3], 4 * v[3]}, 3, false);
}

static uint32_t scale(const uint64_t *v, struct fake_cuda_access *out) {
  return list(out, v, (uint64_t[]){4 * v[2]}, 1, true);
}

static uint32_t add_f32(const uint64_t *v, struct fake_cuda_access *out) {
  return list(out, v, (uint64_t[]){4 * v[2], 4 * v[2]}, 2, true);
}

static uint32_t add_f64(const uint64_t *v, struct fake_cuda_access *out) {
  return list(out, v, (uint64_t[]){8 * v[2], 8 * v[2]}, 2, true);
}

static uint32_t add_16_bits(const uint64_t *v, struct fake_cuda_access *out) {
  return list(out, v, (uint64_t[]){2 * v[2], 2 * v[2]}, 2, true);
}

static uint32_t add_members(const uint64_t *v, struct fake_cuda_access *out) {
  const uint64_t count = v[3], stride = v[4], members = v[5];
  return list(out, v, (uint64_t[]){4 * count, 4 * count, 4 * ((members - 2) * stride + count)}, 3,
              false);
}

static uint32_t spin(const uint64_t *v, struct fake_cuda_access *out) {
  return list(out, v, NULL, 0, false);
}

/* The host may look at the word any time. */
static void run_note(void *const *parameters, uint64_t threads) {
  (void)threads;
  **(uint64_t *const *)parameters[2] = fake.now_ns;
  __atomic_store_n(*(uint32_t *const *)parameters[0], (uint32_t) * (const uint64_t *)parameters[1],
                   __ATOMIC_RELEASE);
}

static uint32_t note(const uint64_t *v, struct fake_cuda_access *out) {
  out[0] = (struct fake_cuda_access){.data = v[0], .bytes = 4, .writes = true};
  out[1] = (struct fake_cuda_access){.data = v[2], .bytes = 8, .writes = true};
  return 2;
}

static uint64_t note_time_ns(const uint64_t *v) {
  (void)v;
  return 0;
}

static uint64_t spin_time_ns(const uint64_t *v) { return v[0]; }

/* Parameters that are addresses come first, but for weft_note's. */
enum { FIRST = 1, FIRST_TWO = 3, FIRST_THREE = 7, FIRST_AND_THIRD = 5 };

/* Each runs its host function, but weft_spin, which has the virtual clock instead, and weft_note,
 * which is atomic. */
static struct fake_cuda_kernel builtin[] = {
    {"weft_add", 3, FIRST_TWO, .accesses = add_f32},
    {"weft_add_f64", 3, FIRST_TWO, .accesses = add_f64},
    {"weft_add_f16", 3, FIRST_TWO, .accesses = add_16_bits},
    {"weft_add_bf16", 3, FIRST_TWO, .accesses = add_16_bits},
    {"weft_add_members", 7, FIRST_THREE, .accesses = add_members},
    {"weft_note", 3, FIRST_AND_THIRD, .run = run_note, .accesses = note, .time_ns = note_time_ns,
     .tells_host = true},
    {"weft_spin", 1, .accesses = spin, .time_ns = spin_time_ns},
};
static struct fake_cuda_kernel linear[WEFT_LINEAR_KERNELS] = {
    [WEFT_LINEAR_FORWARD] = {NULL, 6, FIRST_THREE, .accesses = linear_forward},
    [WEFT_LINEAR_BACKWARD_INPUT] = {NULL, 6, FIRST_THREE, .accesses = linear_backward_input},
    [WEFT_LINEAR_BACKWARD_WEIGHT] = {NULL, 6, FIRST_THREE, .accesses = linear_backward_weight},
    [WEFT_LINEAR_SQUARE_LOSS] = {NULL, 4, FIRST_THREE, .accesses = square_loss},
    [WEFT_LINEAR_SUBTRACT] = {NULL, 4, FIRST_THREE, .accesses = subtract},
    [WEFT_LINEAR_SCALE] = {NULL, 3, FIRST, .accesses = scale},
    [WEFT_LINEAR_ADD] = {NULL, 3, FIRST_TWO, .accesses = add_f32},
};

static void add_kernels(void) {
  const struct weft_kernel *of;
  for (uint32_t k = 0; (of = weft_kernel_at(k)) != NULL; k++) {
    uint32_t at = 0;
    while (strcmp(builtin[at].name, of->name) != 0) {
      at++;
      if (at == sizeof builtin / sizeof builtin[0]) {
        (void)fprintf(stderr, "fake CUDA: no accesses of the kernel %s: add them in %s\n", of->name,
                      __FILE__);
        abort();
      }
    }
    if (builtin[at].time_ns == NULL) {
      builtin[at].run = of->host;
    }
    add_kernel(&builtin[at]);
  }
  for (uint32_t k = 0; k < WEFT_LINEAR_KERNELS; k++) {
    linear[k].name = weft_linear_kernel_names[k];
    linear[k].run = weft_linear_kernel_hosts[k];
    add_kernel(&linear[k]);
  }
  for (uint32_t k = 0; fake_gpt_kernel_at(k) != NULL; k++) {
    add_kernel(fake_gpt_kernel_at(k));
  }
}

/* ---- Execution ---- */

CUresult fake_kernel_visit(const struct fake_work *work, struct fake_visitor *visitor) {
  const struct fake_cuda_kernel *kernel = work->of.launch.kernel->kernel;
  struct fake_cuda_access accesses[FAKE_CUDA_PARAMETERS_MAX];
  const uint32_t count = kernel->accesses(work->of.launch.values, accesses);
  assert(count <= FAKE_CUDA_PARAMETERS_MAX);
  for (uint32_t writes = 0; writes < 2; writes++) { /* reads first: they see what was before */
    for (uint32_t k = 0; k < count; k++) {
      if (accesses[k].writes == (writes == 1)) {
        FAKE_TRY(visitor->visit(visitor, accesses[k].data, accesses[k].bytes, accesses[k].reads,
                                accesses[k].writes));
      }
    }
  }
  return CUDA_SUCCESS;
}

struct arguments {
  uint64_t values[FAKE_CUDA_PARAMETERS_MAX];
  void *pointers[FAKE_CUDA_PARAMETERS_MAX];
};

static void translate(const struct fake_work *work, struct arguments *out) {
  const struct fake_cuda_kernel *kernel = work->of.launch.kernel->kernel;
  for (uint32_t k = 0; k < kernel->parameter_count; k++) {
    out->values[k] = work->of.launch.values[k];
    if ((kernel->addresses >> k & 1) != 0) {
      out->values[k] = (uint64_t)(uintptr_t)fake_address_view((uintptr_t)out->values[k]);
    }
    out->pointers[k] = &out->values[k];
  }
}

bool fake_kernel_is_ready(const struct fake_work *work) {
  const struct fake_cuda_kernel *kernel = work->of.launch.kernel->kernel;
  struct arguments arguments;
  if (kernel->ready == NULL) {
    return true;
  }
  translate(work, &arguments);
  return kernel->ready(arguments.pointers);
}

void fake_kernel_run(const struct fake_work *work) {
  const struct fake_cuda_kernel *kernel = work->of.launch.kernel->kernel;
  struct arguments arguments;
  translate(work, &arguments);
  if (kernel->run != NULL) {
    kernel->run(arguments.pointers, work->of.launch.threads);
  }
}

void fake_work_forget(const struct fake_work *work) {
  if (work->kind == FAKE_WORK_KERNEL && work->of.launch.kernel->kernel->forget != NULL) {
    work->of.launch.kernel->kernel->forget(work->of.launch.values);
  }
}

bool fake_work_is_outside(const struct fake_work *work) {
  return work->kind == FAKE_WORK_KERNEL && work->of.launch.kernel->kernel->outside;
}

uint64_t fake_kernel_time_ns(const struct fake_work *work) {
  const struct fake_cuda_kernel *kernel = work->of.launch.kernel->kernel;
  return kernel->time_ns != NULL ? kernel->time_ns(work->of.launch.values) : 1000;
}

/* ---- Calls ---- */

enum { NO_BINARY_FOR_GPU = 209 };

/* Of the NVRTC that made it, as fake_nvrtc.c notes it in front of the source; 0: it was another. */
static uint32_t compiler_major(const char *code) {
  static const char mark[] = "fake NVRTC ";
  return strncmp(code, mark, sizeof mark - 1) == 0
             ? (uint32_t)strtoul(code + sizeof mark - 1, NULL, 10)
             : 0;
}

static CUresult library_load(CUlibrary *library, const void *code) {
  FAKE_TRY(fake_capture_forbid());
  if (code == NULL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (compiler_major(code) > fake.options.version / 1000) {
    return NO_BINARY_FOR_GPU;
  }
  *library = fake_object_create(FAKE_LIBRARY, sizeof **library);
  fake.statistics.libraries++;
  return CUDA_SUCCESS;
}

static CUresult library_unload(CUlibrary library) {
  if (!fake_object_is(library, FAKE_LIBRARY)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  fake.statistics.libraries--;
  fake_object_destroy(library);
  return CUDA_SUCCESS;
}

static CUresult get_kernel(CUkernel *out, CUlibrary library, const char *name) {
  static bool begun;
  if (!begun) {
    add_kernels();
    begun = true;
  }
  if (!fake_object_is(library, FAKE_LIBRARY)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  struct CUkern_st *kernel = find(name);
  if (kernel == NULL) {
    return CUDA_ERROR_NOT_FOUND;
  }
  *out = kernel;
  return CUDA_SUCCESS;
}

/* CUDA's limits for a launch, of capability 9.0: "Technical specifications per compute
 * capability" of the programming guide. */
enum {
  GRID_X_MAX = INT32_MAX,
  GRID_YZ_MAX = 65535,
  BLOCK_MAX = 1024,
  BLOCK_Z_MAX = 64,
  SHARED_MAX = 48 * 1024,        /* unless a function asks for more */
  SHARED_ASKED_MAX = 227 * 1024, /* then */
  MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
};

struct size {
  unsigned int x, y, z;
};

static bool is_launchable(struct size grid, struct size block) {
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= GRID_X_MAX && grid.y <= GRID_YZ_MAX &&
         grid.z <= GRID_YZ_MAX && block.x > 0 && block.y > 0 && block.z > 0 &&
         block.x <= BLOCK_MAX && block.y <= BLOCK_MAX && block.z <= BLOCK_Z_MAX &&
         block.x * block.y * block.z <= BLOCK_MAX;
}

static CUresult set_attribute(CUfunction function, int attribute, int value) {
  struct CUkern_st *kernel = (struct CUkern_st *)function;
  if (!fake_object_is(kernel, FAKE_KERNEL)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
      (uint64_t)value + kernel->kernel->shared_bytes > SHARED_ASKED_MAX) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  kernel->shared_asked = (uint32_t)value;
  return CUDA_SUCCESS;
}

/* Memory that the kernel declares and that of the launch share one limit, unless the function has
 * asked for so much of the launch's. */
static bool fits_shared(const struct CUkern_st *kernel, uint32_t shared_bytes) {
  return (uint64_t)shared_bytes + kernel->kernel->shared_bytes <= SHARED_MAX ||
         shared_bytes <= kernel->shared_asked;
}

static CUresult launch(CUfunction function, struct size grid, struct size block,
                       uint32_t shared_bytes, CUstream handle, void **parameters, void **extra) {
  struct CUkern_st *kernel = (struct CUkern_st *)function;
  CUstream stream;
  if (!fake_object_is(kernel, FAKE_KERNEL)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (extra != NULL || !is_launchable(grid, block) || !fits_shared(kernel, shared_bytes) ||
      (kernel->kernel->parameter_count > 0 && parameters == NULL)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t threads = (uint64_t)grid.x * grid.y * grid.z * block.x * block.y * block.z;
  FAKE_TRY(fake_stream_of(handle, &stream));
  const struct CUctx_st *context = fake_thread()->context;
  if (context == NULL || context->device != stream->device) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  struct fake_work work = {.kind = FAKE_WORK_KERNEL,
                           .name = kernel->kernel->name,
                           .of.launch = {.kernel = kernel, .threads = threads}};
  for (uint32_t k = 0; k < kernel->kernel->parameter_count; k++) {
    memcpy(&work.of.launch.values[k], parameters[k], sizeof work.of.launch.values[k]);
  }
  return fake_work_submit(stream, &work);
}

/* NOLINTBEGIN(readability-non-const-parameter): CUDA's */
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options,
                           void **jit_values, unsigned int jit_count, int *options, void **values,
                           unsigned int count) {
  (void)jit_options;
  (void)jit_values;
  (void)jit_count;
  (void)options;
  (void)values;
  (void)count;
  FAKE_BODY(cuLibraryLoadData, library_load(library, code));
}
/* NOLINTEND(readability-non-const-parameter) */

CUresult cuLibraryUnload(CUlibrary library) { FAKE_BODY(cuLibraryUnload, library_unload(library)); }

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  FAKE_BODY(cuLibraryGetKernel, get_kernel(kernel, library, name));
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **parameters, void **extra) {
  FAKE_BODY(cuLaunchKernel, launch(function, (struct size){grid_x, grid_y, grid_z},
                                   (struct size){block_x, block_y, block_z}, shared_bytes, stream,
                                   parameters, extra));
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  pthread_mutex_lock(&fake.lock);
  const CUresult result = set_attribute(function, attribute, value);
  pthread_mutex_unlock(&fake.lock);
  return result;
}

void fake_cuda_register(const struct fake_cuda_kernel *kernel) {
  assert(kernel->parameter_count <= FAKE_CUDA_PARAMETERS_MAX && kernel->accesses != NULL);
  pthread_mutex_lock(&fake.lock);
  add_kernel(kernel);
  pthread_mutex_unlock(&fake.lock);
}
