/* A libcublasLt without a GPU: a product is a kernel of the fake driver, computed by loops. The
 * numbers of types and attributes are those of cublasLt's documentation, as in trainer/cublaslt. */
#define _GNU_SOURCE /* dladdr */
#include <assert.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda_api.h"
#include "fake_cuda.h"

#define LT_API __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { TYPE_F32 = 0, TYPE_BF16 = 14 };
enum { BIAS = 4, GELU = 32, AUX = 128, DGELU = 64 + AUX, GRADIENT_A = 256, GRADIENT_B = 512 };
enum { WORKSPACE_BYTES = 4096, PRODUCTS_MAX = 4096 };

struct layout {
  int type;
  uint64_t rows, columns;
  int64_t stride;
  int32_t batch;
  int64_t batch_stride;
};

struct desc {
  int32_t transpose_a, transpose_b;
  uint32_t epilogue;
  int32_t bias_type;
  void *bias, *aux;
  int64_t aux_stride;
};

struct handle {
  CUlibrary library;
  CUkernel kernel;
};

/* All of a product but its addresses. */
struct product {
  struct layout a, b, d;
  struct desc desc;
  float alpha, beta;
  uint64_t m, n, k;
};

/* ---- Computing ---- */

static float load(const void *data, int type, uint64_t at) {
  if (type == TYPE_F32) {
    return ((const float *)data)[at];
  }
  /* Not by memcpy(): AddressSanitizer would make a frame for the number's address, at each. */
  const union {
    uint32_t bits;
    float number;
  } value = {.bits = (uint32_t)((const uint16_t *)data)[at] << 16};
  return value.number;
}

static void store(void *data, int type, uint64_t at, float number) {
  uint32_t bits;
  if (type == TYPE_F32) {
    ((float *)data)[at] = number;
    return;
  }
  memcpy(&bits, &number, sizeof bits);
  ((uint16_t *)data)[at] =
      isnan(number) ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint64_t place(const struct layout *layout, bool transposed, uint64_t row, uint64_t column,
                      uint64_t batch) {
  const uint64_t stride = (uint64_t)layout->stride;
  return (transposed ? column + row * stride : row + column * stride) +
         batch * (uint64_t)layout->batch_stride;
}

static float gelu(float x) {
  return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x) {
  const float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

static float finish(const struct product *p, float sum, void *bias, void *aux, uint64_t row,
                    uint64_t column) {
  const uint64_t at = row + column * (uint64_t)p->desc.aux_stride;
  if ((p->desc.epilogue & BIAS) != 0) {
    sum += load(bias, p->desc.bias_type, row);
  }
  if ((p->desc.epilogue & DGELU) == DGELU) {
    return sum * gelu_slope(load(aux, TYPE_BF16, at));
  }
  if ((p->desc.epilogue & AUX) != 0) {
    store(aux, TYPE_BF16, at, sum);
  }
  return (p->desc.epilogue & GELU) != 0 ? gelu(sum) : sum;
}

static void run_product(void *const *parameters, uint64_t threads) {
  const struct product *p = *(const struct product *const *)parameters[7];
  void *const a = *(void *const *)parameters[0], *const b = *(void *const *)parameters[1];
  void *const c = *(void *const *)parameters[2], *const d = *(void *const *)parameters[3];
  void *const bias = *(void *const *)parameters[4], *const aux = *(void *const *)parameters[5];
  const int32_t batches = p->d.batch > 0 ? p->d.batch : 1;
  const bool transpose_a = p->desc.transpose_a != 0, transpose_b = p->desc.transpose_b != 0;
  const uint64_t a_step = place(&p->a, transpose_a, 0, 1, 0);
  const uint64_t b_step = place(&p->b, transpose_b, 1, 0, 0);
  (void)threads;
  for (uint64_t n = 0; n < (uint64_t)batches * p->n * p->m; n++) {
    const uint64_t row = n % p->m, column = n / p->m % p->n, batch = n / p->m / p->n;
    const uint64_t a_first = place(&p->a, transpose_a, row, 0, batch);
    const uint64_t b_first = place(&p->b, transpose_b, 0, column, batch);
    float sum = 0;
    for (uint64_t k = 0; k < p->k; k++) {
      sum += load(a, p->a.type, a_first + k * a_step) * load(b, p->b.type, b_first + k * b_step);
    }
    sum *= p->alpha;
    const uint64_t at = place(&p->d, false, row, column, batch);
    if (p->beta != 0) {
      sum += p->beta * load(c, p->d.type, at);
    }
    store(d, p->d.type, at, finish(p, sum, bias, aux, row, column));
  }
}

static uint64_t size_of(const struct layout *layout) {
  const uint64_t last = layout->batch > 1 ? (uint64_t)(layout->batch - 1) : 0;
  return (last * (uint64_t)layout->batch_stride + (layout->columns - 1) * (uint64_t)layout->stride +
          layout->rows) *
         (layout->type == TYPE_F32 ? 4 : 2);
}

static uint32_t accesses(const uint64_t *values, struct fake_cuda_access *out) {
  const struct product *p =
      (const struct product *)(uintptr_t)values[7]; // NOLINT(performance-no-int-to-ptr)
  const uint64_t row = p->desc.bias_type == TYPE_F32 ? 4 : 2;
  uint32_t count = 0;
  out[count++] =
      (struct fake_cuda_access){.data = values[0], .bytes = size_of(&p->a), .reads = true};
  out[count++] =
      (struct fake_cuda_access){.data = values[1], .bytes = size_of(&p->b), .reads = true};
  if (p->beta != 0) {
    out[count++] =
        (struct fake_cuda_access){.data = values[2], .bytes = size_of(&p->d), .reads = true};
  }
  out[count++] =
      (struct fake_cuda_access){.data = values[3], .bytes = size_of(&p->d), .writes = true};
  if ((p->desc.epilogue & BIAS) != 0) {
    out[count++] = (struct fake_cuda_access){.data = values[4], .bytes = p->m * row, .reads = true};
  }
  if ((p->desc.epilogue & AUX) != 0) {
    const bool reads = (p->desc.epilogue & DGELU) == DGELU;
    out[count++] = (struct fake_cuda_access){.data = values[5],
                                             .bytes = (uint64_t)p->desc.aux_stride * p->n * 2,
                                             .reads = reads,
                                             .writes = !reads};
  }
  out[count++] =
      (struct fake_cuda_access){.data = values[6], .bytes = WORKSPACE_BYTES, .writes = true};
  return count;
}

/* ---- The library ---- */

/* cuda_api.h gives names, and the driver exports symbols: these have no version. */
extern CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options,
                                  void **jit_values, unsigned int jit_count, int *options,
                                  void **values, unsigned int count);
extern CUresult cuLibraryUnload(CUlibrary library);
extern CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
extern CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                               unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                               unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                               void **parameters, void **extra);

static struct product *products[PRODUCTS_MAX]; /* that were launched; graphs refer to them */
static size_t product_count;

static const struct product *keep(const struct product *product) {
  for (size_t k = 0; k < product_count; k++) {
    if (memcmp(products[k], product, sizeof *product) == 0) {
      return products[k];
    }
  }
  assert(product_count < PRODUCTS_MAX);
  struct product *kept = calloc(1, sizeof *kept);
  assert(kept != NULL);
  memcpy(kept, product, sizeof *kept);
  return products[product_count++] = kept;
}

LT_API size_t cublasLtGetVersion(void);
LT_API const char *cublasLtGetStatusString(int status);
LT_API int cublasLtCreate(struct handle **handle);
LT_API int cublasLtDestroy(struct handle *handle);
LT_API int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows,
                                      uint64_t columns, int64_t stride);
LT_API int cublasLtMatrixLayoutDestroy(struct layout *layout);
LT_API int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *value,
                                            size_t size);
LT_API int cublasLtMatmulDescCreate(struct desc **desc, int compute, int type);
LT_API int cublasLtMatmulDescDestroy(struct desc *desc);
LT_API int cublasLtMatmulDescSetAttribute(struct desc *desc, int attribute, const void *value,
                                          size_t size);
LT_API int cublasLtMatmulPreferenceCreate(void **preference);
LT_API int cublasLtMatmulPreferenceDestroy(void *preference);
LT_API int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                                size_t size);
struct result {
  uint64_t algo[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
LT_API int cublasLtMatmulAlgoGetHeuristic(struct handle *handle, struct desc *desc,
                                          struct layout *a, struct layout *b, struct layout *c,
                                          struct layout *d, void *preference, int room,
                                          struct result *results, int *count);
LT_API int cublasLtMatmul(struct handle *handle, struct desc *desc, const float *alpha,
                          const void *a, struct layout *a_layout, const void *b,
                          struct layout *b_layout, const float *beta, const void *c,
                          struct layout *c_layout, void *d, struct layout *d_layout,
                          const uint64_t *algo, void *workspace, size_t workspace_bytes,
                          CUstream stream);

/* A file that is called so is of CUDA 12; the driver looks at the version in front of code. */
static bool is_of_12(void) {
  Dl_info info;
  return dladdr((const void *)is_of_12, &info) != 0 && strstr(info.dli_fname, ".so.12") != NULL;
}

size_t cublasLtGetVersion(void) { return is_of_12() ? 129900 : 139900; }

const char *cublasLtGetStatusString(int status) {
  return status == SUCCESS ? "success" : status == INVALID_VALUE ? "invalid value" : "failed";
}

int cublasLtCreate(struct handle **handle) {
  static const struct fake_cuda_kernel kernel = {.name = "fake_cublaslt_product",
                                                 .parameter_count = 8,
                                                 .addresses = 0x7f,
                                                 .run = run_product,
                                                 .accesses = accesses};
  struct handle *made = calloc(1, sizeof *made);
  const char *code = is_of_12() ? "fake NVRTC 12" : "fake NVRTC 13";
  fake_cuda_register(&kernel);
  if (made == NULL || cuLibraryLoadData(&made->library, code, NULL, NULL, 0, NULL, NULL, 0) != 0 ||
      cuLibraryGetKernel(&made->kernel, made->library, kernel.name) != 0) {
    (void)cublasLtDestroy(made);
    return INVALID_VALUE;
  }
  *handle = made;
  return SUCCESS;
}

int cublasLtDestroy(struct handle *handle) {
  if (handle != NULL && handle->library != NULL) {
    (void)cuLibraryUnload(handle->library);
  }
  free(handle);
  return SUCCESS;
}

int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows, uint64_t columns,
                               int64_t stride) {
  *layout = calloc(1, sizeof **layout);
  if (*layout == NULL || stride < (int64_t)rows || (type != TYPE_F32 && type != TYPE_BF16)) {
    free(*layout);
    return INVALID_VALUE;
  }
  (*layout)->type = type;
  (*layout)->rows = rows;
  (*layout)->columns = columns;
  (*layout)->stride = stride;
  return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(struct layout *layout) {
  free(layout);
  return SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *value,
                                     size_t size) {
  void *to = attribute == 5   ? (void *)&layout->batch
             : attribute == 6 ? (void *)&layout->batch_stride
                              : NULL;
  if (to == NULL) {
    return INVALID_VALUE;
  }
  memcpy(to, value, size);
  return SUCCESS;
}

int cublasLtMatmulDescCreate(struct desc **desc, int compute, int type) {
  (void)compute;
  (void)type;
  *desc = calloc(1, sizeof **desc);
  return *desc != NULL ? SUCCESS : INVALID_VALUE;
}

int cublasLtMatmulDescDestroy(struct desc *desc) {
  free(desc);
  return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(struct desc *desc, int attribute, const void *value,
                                   size_t size) {
  void *to = attribute == 3    ? (void *)&desc->transpose_a
             : attribute == 4  ? (void *)&desc->transpose_b
             : attribute == 7  ? (void *)&desc->epilogue
             : attribute == 8  ? (void *)&desc->bias
             : attribute == 11 ? (void *)&desc->aux
             : attribute == 12 ? (void *)&desc->aux_stride
             : attribute == 26 ? (void *)&desc->bias_type
                               : NULL;
  if (to != NULL) {
    memcpy(to, value, size);
  }
  return to != NULL || attribute == 15 ? SUCCESS : INVALID_VALUE;
}

int cublasLtMatmulPreferenceCreate(void **preference) {
  *preference = calloc(1, 1);
  return *preference != NULL ? SUCCESS : INVALID_VALUE;
}

int cublasLtMatmulPreferenceDestroy(void *preference) {
  free(preference);
  return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                         size_t size) {
  (void)preference;
  (void)attribute;
  (void)value;
  (void)size;
  return SUCCESS;
}

/* How often algorithms have been chosen: for tests, by dlsym(). */
LT_API unsigned fake_cublaslt_choices;
unsigned fake_cublaslt_choices;

/* Epilogues with gradients of a bias are not there. */
int cublasLtMatmulAlgoGetHeuristic(struct handle *handle, struct desc *desc, struct layout *a,
                                   struct layout *b, struct layout *c, struct layout *d,
                                   void *preference, int room, struct result *results, int *count) {
  fake_cublaslt_choices++;
  (void)handle;
  (void)a;
  (void)b;
  (void)c;
  (void)d;
  (void)preference;
  if ((desc->epilogue & (GRADIENT_A | GRADIENT_B)) != 0 || desc->epilogue == 208) {
    return NOT_SUPPORTED;
  }
  memset(results, 0, (size_t)room * sizeof *results);
  for (int k = 0; k < room; k++) {
    results[k].workspace = WORKSPACE_BYTES;
  }
  *count = room;
  return SUCCESS;
}

int cublasLtMatmul(struct handle *handle, struct desc *desc, const float *alpha, const void *a,
                   struct layout *a_layout, const void *b, struct layout *b_layout,
                   const float *beta, const void *c, struct layout *c_layout, void *d,
                   struct layout *d_layout, const uint64_t *algo, void *workspace,
                   size_t workspace_bytes, CUstream stream) {
  (void)c_layout;
  (void)algo;
  const void *bias = desc->bias, *aux = desc->aux;
  struct product product;
  memset(&product, 0, sizeof product); /* padding too: it is compared */
  memcpy(&product.a, a_layout, sizeof product.a);
  memcpy(&product.b, b_layout, sizeof product.b);
  memcpy(&product.d, d_layout, sizeof product.d);
  memcpy(&product.desc, desc, sizeof product.desc);
  product.desc.bias = product.desc.aux = NULL;
  product.alpha = *alpha;
  product.beta = *beta;
  product.m = d_layout->rows;
  product.n = d_layout->columns;
  product.k = desc->transpose_a != 0 ? a_layout->rows : a_layout->columns;
  if (workspace_bytes < WORKSPACE_BYTES) {
    return INVALID_VALUE;
  }
  const struct product *kept = keep(&product);
  void *parameters[] = {&a, &b, &c, &d, &bias, &aux, &workspace, &kept};
  return cuLaunchKernel((CUfunction)handle->kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                        NULL) == 0
             ? SUCCESS
             : NOT_SUPPORTED;
}
