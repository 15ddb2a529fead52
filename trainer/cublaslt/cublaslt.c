/* cublasLt, loaded at run time; see cublaslt.h. Its binary interface is that of versions 12 and
 * 13; the names and numbers are those of its documentation. */
#include "cublaslt/cublaslt.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <weft/cuda.h>
#include <weft/support.h>

typedef int cublasStatus_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtLayout *cublasLtMatrixLayout_t;
typedef struct cublasLtDesc *cublasLtMatmulDesc_t;
typedef struct cublasLtPreference *cublasLtMatmulPreference_t;
typedef struct {
  uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;

enum { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum { CUDA_R_32F = 0 }; /* of alpha and beta */
enum {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,          /* int32_t */
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6, /* int64_t */
  CUBLASLT_MATMUL_DESC_TRANSA = 3,                 /* int32_t */
  CUBLASLT_MATMUL_DESC_TRANSB = 4,                 /* int32_t */
  CUBLASLT_MATMUL_DESC_EPILOGUE = 7,               /* uint32_t */
  CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,           /* void * */
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,  /* void * */
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,       /* int64_t */
  CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15,       /* int32_t */
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,        /* int32_t */
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,    /* uint64_t */
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,  /* uint32_t */
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5   /* uint32_t; and of B, C, D: 6, 7, 8 */
};
/* Partial sums are kept apart in the workspace and added in order; "in place" (1) is by atomics. */
enum { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4 };

#define CUBLASLT_FUNCTIONS(X)                                                                     \
  X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle))                                  \
  X(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle))                                   \
  X(const char *, cublasLtGetStatusString, (cublasStatus_t status))                               \
  X(size_t, cublasLtGetVersion, (void))                                                           \
  X(cublasStatus_t, cublasLtMatrixLayoutCreate,                                                   \
    (cublasLtMatrixLayout_t * layout, int type, uint64_t rows, uint64_t columns, int64_t stride)) \
  X(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout))                 \
  X(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,                                             \
    (cublasLtMatrixLayout_t layout, int attribute, const void *value, size_t size))               \
  X(cublasStatus_t, cublasLtMatmulDescCreate,                                                     \
    (cublasLtMatmulDesc_t * desc, int compute, int type))                                         \
  X(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc))                       \
  X(cublasStatus_t, cublasLtMatmulDescSetAttribute,                                               \
    (cublasLtMatmulDesc_t desc, int attribute, const void *value, size_t size))                   \
  X(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference))    \
  X(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference))     \
  X(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,                                         \
    (cublasLtMatmulPreference_t preference, int attribute, const void *value, size_t size))       \
  X(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,                                               \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,                \
     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,                \
     cublasLtMatmulPreference_t preference, int room, cublasLtMatmulHeuristicResult_t *results,   \
     int *count))                                                                                 \
  X(cublasStatus_t, cublasLtMatmul,                                                               \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,        \
     cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,             \
     const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,                   \
     cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,          \
     size_t workspace_bytes, struct weft_stream *stream))

static struct {
#define MEMBER(type, name, parameters) type(*name) parameters;
  CUBLASLT_FUNCTIONS(MEMBER)
#undef MEMBER
  uint64_t version; /* 0: not loaded */
} api;
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct weft_cublaslt {
  const struct weft_allocator *allocator;
  cublasLtHandle_t handle;
};

struct weft_product {
  struct weft_cublaslt *lt;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulAlgo_t algo;
  size_t workspace_bytes;
  bool has_bias, has_aux;
};

/* ---- Loading ---- */

static const struct weft_library_symbol symbols[] = {
#define SYMBOL(type, name, parameters) {#name, (void *)&api.name, false},
    CUBLASLT_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

/* Of CUDA; the second one is what is looked for first where there is no driver. */
enum { VERSION_MAJOR_MIN = 12, VERSION_MAJOR_MAX = 13 };

static int driver_major(void) {
  struct weft_cuda_driver_info driver;
  return weft_cuda_driver_info(&driver, NULL) == WEFT_OK ? driver.version / 1000
                                                         : VERSION_MAJOR_MAX;
}

/* A driver runs what a cublasLt of its own major version has, or of an older one; so those come
 * first. */
static bool accepts(void *library, bool any, void *driver) {
  return weft_library_find(library, symbols, WEFT_ARRAY_LENGTH(symbols)) == NULL &&
         (any || api.cublasLtGetVersion() / 10000 <= (size_t) * (const int *)driver);
}

static void load(void) {
  int driver = driver_major();
  if (weft_library_open_version("libcublasLt.so", "/usr/local/cuda/lib64", VERSION_MAJOR_MIN,
                                driver, accepts, &driver) != NULL) {
    api.version = api.cublasLtGetVersion();
  }
}

uint64_t weft_cublaslt_version(void) {
  (void)pthread_once(&once, load);
  return api.version;
}

static enum weft_status fail(cublasStatus_t result, const char *call, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_DEVICE, "'weft doctor' names the GPU and its driver",
                   "cublasLt: %s: %s", call, api.cublasLtGetStatusString(result));
}

static enum weft_status fail_version(cublasStatus_t result, struct weft_error *error) {
  return weft_fail(
      error, WEFT_ERR_UNAVAILABLE,
      "install the cublasLt of the driver's CUDA version and have LD_LIBRARY_PATH name "
      "its folder; or a newer driver",
      "the driver, for CUDA %d, does not run cublasLt %" PRIu64 ": %s", driver_major(),
      api.version / 10000, api.cublasLtGetStatusString(result));
}

#define LT_TRY(error, name, ...)                            \
  do {                                                      \
    const cublasStatus_t lt_result = api.name(__VA_ARGS__); \
    if (lt_result != CUBLAS_STATUS_SUCCESS) {               \
      return fail(lt_result, #name, (error));               \
    }                                                       \
  } while (0)

enum weft_status weft_cublaslt_open(const struct weft_allocator *allocator,
                                    struct weft_cublaslt **out, struct weft_error *error) {
  if (weft_cublaslt_version() == 0) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     "install it with CUDA's toolkit or 'pip install nvidia-cublas', and have "
                     "LD_LIBRARY_PATH name its folder",
                     "there is no libcublasLt here, which computes matrix products on GPUs");
  }
  struct weft_cublaslt *lt = weft_array_allocate_zero(allocator, 1, sizeof *lt);
  if (lt == NULL) {
    return weft_fail_memory(error, sizeof *lt);
  }
  lt->allocator = allocator;
  const cublasStatus_t result = api.cublasLtCreate(&lt->handle);
  if (result != CUBLAS_STATUS_SUCCESS) {
    weft_array_free(allocator, lt, 1, sizeof *lt);
    return api.version / 10000 > (uint64_t)driver_major() ? fail_version(result, error)
                                                          : fail(result, "cublasLtCreate", error);
  }
  *out = lt;
  return WEFT_OK;
}

void weft_cublaslt_close(struct weft_cublaslt *lt) {
  if (lt != NULL) {
    (void)api.cublasLtDestroy(lt->handle);
    weft_array_free(lt->allocator, lt, 1, sizeof *lt);
  }
}

/* ---- A product ---- */

static bool has_bias(uint32_t epilogue) {
  return epilogue == WEFT_EPILOGUE_BIAS || epilogue == WEFT_EPILOGUE_GELU_BIAS ||
         epilogue == WEFT_EPILOGUE_GELU_AUX_BIAS || epilogue == WEFT_EPILOGUE_DGELU_BGRAD ||
         epilogue == WEFT_EPILOGUE_BIAS_GRAD_A || epilogue == WEFT_EPILOGUE_BIAS_GRAD_B;
}

static bool has_aux(uint32_t epilogue) {
  return epilogue == WEFT_EPILOGUE_GELU_AUX || epilogue == WEFT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == WEFT_EPILOGUE_DGELU || epilogue == WEFT_EPILOGUE_DGELU_BGRAD;
}

/* A matrix of rows by columns before it is transposed. */
static enum weft_status make_layout(const struct weft_product_matrix *matrix, uint64_t rows,
                                    uint64_t columns, uint32_t batch, cublasLtMatrixLayout_t *out,
                                    struct weft_error *error) {
  const uint64_t stored_rows = matrix->transposed ? columns : rows;
  const int64_t stride = (int64_t)(matrix->stride > 0 ? matrix->stride : stored_rows);
  const int64_t batch_stride = (int64_t)matrix->batch_stride;
  const int32_t count = (int32_t)batch;
  LT_TRY(error, cublasLtMatrixLayoutCreate, out, (int)matrix->type, stored_rows,
         matrix->transposed ? rows : columns, stride);
  if (batch > 1) {
    LT_TRY(error, cublasLtMatrixLayoutSetAttribute, *out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
           &count, sizeof count);
    LT_TRY(error, cublasLtMatrixLayoutSetAttribute, *out,
           CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride, sizeof batch_stride);
  }
  return WEFT_OK;
}

static enum weft_status set_pointer(const struct weft_product *product, int attribute,
                                    const void *pointer, struct weft_error *error) {
  LT_TRY(error, cublasLtMatmulDescSetAttribute, product->desc, attribute, (const void *)&pointer,
         sizeof pointer);
  return WEFT_OK;
}

static enum weft_status describe_product(struct weft_product *product,
                                         const struct weft_product_shape *shape, uint32_t align,
                                         struct weft_error *error) {
  const int32_t transpose_a = shape->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int32_t transpose_b = shape->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const uint32_t epilogue = shape->epilogue != 0 ? shape->epilogue : WEFT_EPILOGUE_NONE;
  const int32_t bias_type = (int32_t)shape->bias_type, sms = (int32_t)shape->sm_count;
  const int64_t aux_stride = (int64_t)(shape->aux_stride > 0 ? shape->aux_stride : shape->m);
  LT_TRY(error, cublasLtMatmulDescCreate, &product->desc,
         shape->compute != 0 ? (int)shape->compute : WEFT_PRODUCT_COMPUTE_F32, CUDA_R_32F);
#define SET(attribute, value) \
  LT_TRY(error, cublasLtMatmulDescSetAttribute, product->desc, attribute, &(value), sizeof(value))
  SET(CUBLASLT_MATMUL_DESC_TRANSA, transpose_a);
  SET(CUBLASLT_MATMUL_DESC_TRANSB, transpose_b);
  SET(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (shape->sm_count > 0) {
    SET(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, sms);
  }
  /* Only the alignment of these pointers matters to the choice of the algorithm. */
  static _Alignas(256) const char somewhere[256];
  const void *aligned = &somewhere[align % 256];
  product->has_bias = has_bias(epilogue);
  product->has_aux = has_aux(epilogue);
  if (product->has_bias) {
    SET(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
    WEFT_TRY(set_pointer(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned, error));
  }
  if (product->has_aux) {
    SET(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_stride);
    WEFT_TRY(set_pointer(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned, error));
  }
#undef SET
  return WEFT_OK;
}

static enum weft_status set_preference(cublasLtMatmulPreference_t preference,
                                       const struct weft_product_shape *shape, uint32_t align,
                                       struct weft_error *error) {
  const uint32_t schemes =
      CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  LT_TRY(error, cublasLtMatmulPreferenceSetAttribute, preference,
         CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &shape->workspace_bytes,
         sizeof shape->workspace_bytes);
  LT_TRY(error, cublasLtMatmulPreferenceSetAttribute, preference,
         CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
  for (int k = 0; k < 4; k++) {
    LT_TRY(error, cublasLtMatmulPreferenceSetAttribute, preference,
           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + k, &align, sizeof align);
  }
  return WEFT_OK;
}

static enum weft_status choose(struct weft_product *product, const struct weft_product_shape *shape,
                               cublasLtMatmulPreference_t preference, struct weft_error *error) {
  cublasLtMatmulHeuristicResult_t first; /* that cublasLt takes for the fastest */
  int count = 0;
  const cublasStatus_t result =
      api.cublasLtMatmulAlgoGetHeuristic(product->lt->handle, product->desc, product->a, product->b,
                                         product->d, product->d, preference, 1, &first, &count);
  if (result != CUBLAS_STATUS_SUCCESS && result != CUBLAS_STATUS_NOT_SUPPORTED) {
    return fail(result, "cublasLtMatmulAlgoGetHeuristic", error);
  }
  if (result == CUBLAS_STATUS_NOT_SUPPORTED || count < 1 || first.state != CUBLAS_STATUS_SUCCESS) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE,
                     "a newer cublasLt, more workspace or other types may do it",
                     "cublasLt %" PRIu64 " has no algorithm for the product of %" PRIu64
                     " by %" PRIu64 " by %" PRIu64 " with epilogue %d",
                     api.version, shape->m, shape->n, shape->k, (int)shape->epilogue);
  }
  product->algo = first.algo;
  product->workspace_bytes = first.workspaceSize;
  return WEFT_OK;
}

static enum weft_status prepare_product(struct weft_product *product,
                                        const struct weft_product_shape *shape,
                                        struct weft_error *error) {
  const uint32_t batch = shape->batch > 0 ? shape->batch : 1;
  const uint32_t align = shape->align_bytes > 0 ? shape->align_bytes : 256;
  cublasLtMatmulPreference_t preference;
  WEFT_TRY(describe_product(product, shape, align, error));
  WEFT_TRY(make_layout(&shape->a, shape->m, shape->k, batch, &product->a, error));
  WEFT_TRY(make_layout(&shape->b, shape->k, shape->n, batch, &product->b, error));
  WEFT_TRY(make_layout(&shape->d, shape->m, shape->n, batch, &product->d, error));
  LT_TRY(error, cublasLtMatmulPreferenceCreate, &preference);
  enum weft_status status = set_preference(preference, shape, align, error);
  if (status == WEFT_OK) {
    status = choose(product, shape, preference, error);
  }
  (void)api.cublasLtMatmulPreferenceDestroy(preference);
  return status;
}

enum weft_status weft_product_create(struct weft_cublaslt *lt,
                                     const struct weft_product_shape *shape,
                                     struct weft_product **out, struct weft_error *error) {
  assert(lt != NULL && shape->m > 0 && shape->n > 0 && shape->k > 0);
  assert(!shape->d.transposed);
  struct weft_product *product = weft_array_allocate_zero(lt->allocator, 1, sizeof *product);
  if (product == NULL) {
    return weft_fail_memory(error, sizeof *product);
  }
  product->lt = lt;
  const enum weft_status status = prepare_product(product, shape, error);
  if (status < 0) {
    weft_product_destroy(product);
    return status;
  }
  *out = product;
  return WEFT_OK;
}

void weft_product_destroy(struct weft_product *product) {
  if (product == NULL) {
    return;
  }
  const cublasLtMatrixLayout_t layouts[] = {product->a, product->b, product->d};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(layouts); k++) {
    if (layouts[k] != NULL) {
      (void)api.cublasLtMatrixLayoutDestroy(layouts[k]);
    }
  }
  if (product->desc != NULL) {
    (void)api.cublasLtMatmulDescDestroy(product->desc);
  }
  weft_array_free(product->lt->allocator, product, 1, sizeof *product);
}

uint64_t weft_product_workspace(const struct weft_product *product) {
  return product->workspace_bytes;
}

enum weft_status weft_product_run(struct weft_product *product,
                                  const struct weft_product_call *call, struct weft_stream *stream,
                                  struct weft_error *error) {
  assert(call->a != NULL && call->b != NULL && call->d != NULL);
  assert(call->workspace != NULL || product->workspace_bytes == 0);
  if (product->has_bias) {
    WEFT_TRY(set_pointer(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->bias, error));
  }
  if (product->has_aux) {
    WEFT_TRY(set_pointer(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call->aux, error));
  }
  LT_TRY(error, cublasLtMatmul, product->lt->handle, product->desc, &call->alpha, call->a,
         product->a, call->b, product->b, &call->beta, call->c != NULL ? call->c : call->d,
         product->d, call->d, product->d, &product->algo, call->workspace, product->workspace_bytes,
         stream);
  return WEFT_OK;
}
