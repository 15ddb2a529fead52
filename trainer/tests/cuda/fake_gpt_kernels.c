/* The trainer's kernels on the host: what trainer/cuda/gpt_layers.cu and gpt_attention.cu compute,
 * in the simplest way, with the same roundings to bf16 at the end. Sums may have another order, so
 * a number may differ by a rounding. */
#include "fake_gpt_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;

static float to_float(bf16 x) {
  const uint32_t bits = (uint32_t)x << 16;
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

static bf16 to_bf16(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return isnan(number) ? 0x7fff : (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The k-th parameter. */
#define BF16(k) (*(bf16 *const *)parameters[k])
#define F32(k) (*(float *const *)parameters[k])
#define F64(k) (*(double *const *)parameters[k])
#define BYTES(k) (*(const unsigned char *const *)parameters[k])
#define U64(k) (*(const uint64_t *)parameters[k])
#define REAL(k) (*(const double *)parameters[k])

/* A kernel: what it does, and what it accesses. */
#define RUN(name) static void run_##name(void *const *parameters, uint64_t threads)
#define ACCESSES(name) \
  static uint32_t access_##name(const uint64_t *v, struct fake_cuda_access *out)
#define READS(k, size) \
  out[count++] = (struct fake_cuda_access) { .data = v[k], .bytes = (size), .reads = true }
#define WRITES(k, size) \
  out[count++] = (struct fake_cuda_access) { .data = v[k], .bytes = (size), .writes = true }
#define UPDATES(k, size)                                         \
  out[count++] = (struct fake_cuda_access) {                     \
    .data = v[k], .bytes = (size), .reads = true, .writes = true \
  }

static uint64_t token(const unsigned char *ids, uint64_t r, uint64_t bytes) {
  uint16_t wide = 0;
  memcpy(&wide, ids + r * bytes, (size_t)bytes);
  return wide;
}

/* ---- Embedding ---- */

RUN(embed) {
  const uint64_t rows = U64(4), tokens = U64(5), c = U64(6);
  (void)threads;
  for (uint64_t k = 0; k < rows * c; k++) {
    const uint64_t r = k / c, id = token(BYTES(1), r, U64(7));
    BF16(0)
    [k] = to_bf16(to_float(BF16(2)[id * c + k % c]) + to_float(BF16(3)[r % tokens * c + k % c]));
  }
}
ACCESSES(embed) {
  uint32_t count = 0;
  WRITES(0, v[4] * v[6] * 2);
  READS(1, v[4] * v[7]);
  READS(2, v[6] * 2); /* a row: the tokens say which others */
  READS(3, v[5] * v[6] * 2);
  return count;
}

RUN(embed_backward_positions) {
  const uint64_t rows = U64(2), tokens = U64(3), c = U64(4);
  (void)threads;
  for (uint64_t k = 0; k < tokens * c; k++) {
    float sum = 0;
    for (uint64_t r = k / c; r < rows; r += tokens) {
      sum += to_float(BF16(1)[r * c + k % c]);
    }
    F32(0)[k] += sum;
  }
}
ACCESSES(embed_backward_positions) {
  uint32_t count = 0;
  UPDATES(0, v[3] * v[4] * 4);
  READS(1, v[2] * v[4] * 2);
  return count;
}

RUN(embed_backward_tokens) {
  const uint64_t rows = U64(3), c = U64(4);
  (void)threads;
  for (uint64_t r = 0; r < rows; r++) {
    const uint64_t id = token(BYTES(1), r, U64(6));
    for (uint64_t k = 0; k < c; k++) {
      F32(0)[id * c + k] += to_float(BF16(2)[r * c + k]);
    }
  }
}
ACCESSES(embed_backward_tokens) {
  uint32_t count = 0;
  UPDATES(0, v[7] * v[4] * 4);
  READS(1, v[3] * v[6]);
  READS(2, v[3] * v[4] * 2);
  return count;
}

/* ---- Norm ---- */

RUN(norm) {
  const uint64_t rows = U64(6), c = U64(7);
  (void)threads;
  for (uint64_t r = 0; r < rows; r++) {
    const bf16 *x = BF16(3) + r * c;
    float mean = 0, square = 0;
    for (uint64_t k = 0; k < c; k++) {
      mean += to_float(x[k]);
    }
    mean /= (float)c;
    for (uint64_t k = 0; k < c; k++) {
      square += (to_float(x[k]) - mean) * (to_float(x[k]) - mean);
    }
    const float rstd = 1 / sqrtf(square / (float)c + 1e-5f);
    for (uint64_t k = 0; k < c; k++) {
      BF16(0)
      [r * c + k] =
          to_bf16((to_float(x[k]) - mean) * rstd * to_float(BF16(4)[k]) + to_float(BF16(5)[k]));
    }
    F32(1)[r] = mean;
    F32(2)[r] = rstd;
  }
}
ACCESSES(norm) {
  const uint64_t rows = v[6], c = v[7];
  uint32_t count = 0;
  WRITES(0, rows * c * 2);
  WRITES(1, rows * 4);
  WRITES(2, rows * 4);
  READS(3, rows * c * 2);
  READS(4, c * 2);
  READS(5, c * 2);
  return count;
}

enum { NORM_ROWS = 32 };

RUN(norm_backward) {
  const uint64_t rows = U64(8), c = U64(9);
  const bf16 *residual = BF16(2);
  (void)threads;
  memset(F32(1), 0, (rows + NORM_ROWS - 1) / NORM_ROWS * 2 * c * sizeof(float));
  for (uint64_t r = 0; r < rows; r++) {
    const bf16 *x = BF16(3) + r * c, *dy = BF16(7) + r * c;
    float *parts = F32(1) + r / NORM_ROWS * 2 * c;
    const float mean = F32(5)[r], rstd = F32(6)[r];
    float sum = 0, dot = 0;
    for (uint64_t k = 0; k < c; k++) {
      const float g = to_float(dy[k]), h = (to_float(x[k]) - mean) * rstd;
      sum += g * to_float(BF16(4)[k]);
      dot += g * to_float(BF16(4)[k]) * h;
      parts[k] += g * h;
      parts[c + k] += g;
    }
    for (uint64_t k = 0; k < c; k++) {
      const float g = to_float(dy[k]) * to_float(BF16(4)[k]);
      const float h = (to_float(x[k]) - mean) * rstd;
      const float before = residual != NULL ? to_float(residual[r * c + k]) : 0;
      BF16(0)[r * c + k] = to_bf16(before + rstd * (g - sum / (float)c - h * dot / (float)c));
    }
  }
}
ACCESSES(norm_backward) {
  const uint64_t rows = v[8], c = v[9];
  uint32_t count = 0;
  WRITES(0, rows * c * 2);
  WRITES(1, (rows + NORM_ROWS - 1) / NORM_ROWS * 2 * c * 4);
  if (v[2] != 0) {
    READS(2, rows * c * 2);
  }
  READS(3, rows * c * 2);
  READS(4, c * 2);
  READS(5, rows * 4);
  READS(6, rows * 4);
  READS(7, rows * c * 2);
  return count;
}

/* ---- Sums ---- */

RUN(column_parts) {
  const uint64_t rows = U64(2), columns = U64(3), each = U64(4);
  (void)threads;
  memset(F32(0), 0, (rows + each - 1) / each * columns * sizeof(float));
  for (uint64_t r = 0; r < rows; r++) {
    for (uint64_t c = 0; c < columns; c++) {
      F32(0)[r / each * columns + c] += to_float(BF16(1)[r * columns + c]);
    }
  }
}
ACCESSES(column_parts) {
  uint32_t count = 0;
  WRITES(0, (v[2] + v[4] - 1) / v[4] * v[3] * 4);
  READS(1, v[2] * v[3] * 2);
  return count;
}

RUN(add_parts) {
  const uint64_t parts = U64(2), columns = U64(3), stride = U64(4);
  (void)threads;
  for (uint64_t c = 0; c < columns; c++) {
    float sum = 0;
    for (uint64_t p = 0; p < parts; p++) {
      sum += F32(1)[p * stride + c];
    }
    F32(0)[c] += sum;
  }
}
ACCESSES(add_parts) {
  uint32_t count = 0;
  UPDATES(0, v[3] * 4);
  READS(1, ((v[2] - 1) * v[4] + v[3]) * 4);
  return count;
}

/* ---- Cross entropy ---- */

RUN(cross_entropy) {
  const uint64_t rows = U64(3), vocabulary = U64(4);
  const float scale = (float)REAL(5);
  (void)threads;
  for (uint64_t r = 0; r < rows; r++) {
    bf16 *row = BF16(0) + r * vocabulary;
    const uint64_t target = token(BYTES(2), r, U64(7));
    float most = -INFINITY, sum = 0;
    for (uint64_t c = 0; c < vocabulary; c++) {
      most = fmaxf(most, to_float(row[c]));
    }
    for (uint64_t c = 0; c < vocabulary; c++) {
      sum += expf(to_float(row[c]) - most);
    }
    F32(1)[r] = logf(sum) + most - to_float(row[target]);
    for (uint64_t c = 0; U64(6) == 0 && c < vocabulary; c++) {
      row[c] = to_bf16(expf(to_float(row[c]) - most) * scale / sum - (c == target ? scale : 0));
    }
  }
}
ACCESSES(cross_entropy) {
  uint32_t count = 0;
  UPDATES(0, v[3] * v[4] * 2);
  WRITES(1, v[3] * 4);
  READS(2, v[3] * v[7]);
  return count;
}

RUN(mean_loss) {
  double sum = 0;
  (void)threads;
  for (uint64_t r = 0; r < U64(3); r++) {
    sum += (double)F32(2)[r];
  }
  const double mean = sum / (double)U64(3);
  if (F64(1) != NULL) {
    *F64(1) = mean;
  }
  *F64(0) += REAL(4) * mean;
}
ACCESSES(mean_loss) {
  uint32_t count = 0;
  UPDATES(0, 8);
  if (v[1] != 0) {
    WRITES(1, 8);
  }
  READS(2, v[3] * 4);
  return count;
}

/* ---- Parameters ---- */

RUN(scale) {
  (void)threads;
  for (uint64_t k = 0; k < U64(2); k++) {
    F32(0)[k] *= (float)REAL(1);
  }
}
ACCESSES(scale) {
  uint32_t count = 0;
  UPDATES(0, v[2] * 4);
  return count;
}

RUN(tie) {
  (void)threads;
  for (uint64_t k = 0; k < U64(2); k++) {
    F32(0)[k] = F32(1)[k] = F32(0)[k] + F32(1)[k];
  }
}
ACCESSES(tie) {
  uint32_t count = 0;
  UPDATES(0, v[2] * 4);
  UPDATES(1, v[2] * 4);
  return count;
}

RUN(add) {
  (void)threads;
  for (uint64_t k = 0; k < U64(3); k++) {
    F32(0)[k] = F32(1)[k] + F32(2)[k];
  }
}
ACCESSES(add) {
  uint32_t count = 0;
  WRITES(0, v[3] * 4);
  READS(1, v[3] * 4);
  READS(2, v[3] * 4);
  return count;
}

RUN(add_bf16) {
  (void)threads;
  for (uint64_t k = 0; k < U64(3); k++) {
    BF16(0)[k] = to_bf16(to_float(BF16(1)[k]) + to_float(BF16(2)[k]));
  }
}
ACCESSES(add_bf16) {
  uint32_t count = 0;
  WRITES(0, v[3] * 2);
  READS(1, v[3] * 2);
  READS(2, v[3] * 2);
  return count;
}

RUN(to_bf16) {
  (void)threads;
  for (uint64_t k = 0; k < U64(2); k++) {
    BF16(0)[k] = to_bf16(F32(1)[k]);
  }
}
ACCESSES(to_bf16) {
  uint32_t count = 0;
  WRITES(0, v[2] * 2);
  READS(1, v[2] * 4);
  return count;
}

RUN(square_sums) {
  const uint64_t size = U64(2), parts = U64(3);
  const uint64_t each = ((size + parts - 1) / parts + 3) / 4 * 4;
  (void)threads;
  for (uint64_t p = 0; p < parts; p++) {
    double sum = 0;
    for (uint64_t k = p * each; k < size && k < (p + 1) * each; k++) {
      sum += (double)F32(1)[k] * (double)F32(1)[k];
    }
    F64(0)[p] = sum;
  }
}
ACCESSES(square_sums) {
  uint32_t count = 0;
  WRITES(0, v[3] * 8);
  READS(1, v[2] * 4);
  return count;
}

RUN(sum_parts) {
  const uint64_t size = U64(2);
  (void)threads;
  for (uint64_t b = 0; b < U64(3); b++) {
    double sum = 0;
    for (uint64_t k = 0; k < size; k++) {
      sum += F64(1)[b * size + k];
    }
    F64(0)[b] = sum;
  }
}
ACCESSES(sum_parts) {
  uint32_t count = 0;
  WRITES(0, v[3] * 8);
  READS(1, v[2] * v[3] * 8);
  return count;
}

RUN(clip) {
  const uint64_t layers = U64(4), replicas = U64(5);
  const double *sums = F64(2), *step = F64(3);
  double sum = 0, losses = 0;
  (void)threads;
  for (uint64_t layer = 0; layer < layers; layer++) {
    double of_layer = 0;
    for (uint64_t d = 0; d < replicas; d++) {
      of_layer += sums[d * layers + layer];
    }
    sum += of_layer;
  }
  for (uint64_t k = 0; k < U64(6); k++) {
    losses += sums[layers * replicas + k];
  }
  const double norm = sqrt(sum);
  *F64(1) = norm;
  for (int k = 0; k < 6; k++) {
    F32(0)[k] = (float)step[k];
  }
  F32(0)[6] = step[6] > 0 && norm > step[6] ? (float)(step[6] / (norm + 1e-6)) : 1;
  F32(0)[7] = step[7] != 0 || (isfinite(norm) && isfinite(losses)) ? 1 : 0;
}
ACCESSES(clip) {
  uint32_t count = 0;
  WRITES(0, 32);
  WRITES(1, 8);
  READS(2, (v[5] * v[4] + v[6]) * 8);
  READS(3, 64);
  return count;
}

RUN(adamw) {
  const float *s = F32(6);
  (void)threads;
  for (uint64_t k = 0; s[7] != 0 && k < U64(7); k++) {
    const float g = F32(4)[k] * s[6], keep = BYTES(5)[k / 16] != 0 ? s[0] : 1;
    float *w = F32(0) + k, *m = F32(1) + k, *v = F32(2) + k;
    *m += (1 - s[4]) * (g - *m);
    *v = s[5] * *v + (1 - s[5]) * (g * g);
    *w = *w * keep - s[1] * *m / (sqrtf(*v) * s[2] + s[3]);
    if (BF16(3) != NULL) {
      BF16(3)[k] = to_bf16(*w);
    }
  }
}
ACCESSES(adamw) {
  uint32_t count = 0;
  UPDATES(0, v[7] * 4);
  UPDATES(1, v[7] * 4);
  UPDATES(2, v[7] * 4);
  if (v[3] != 0) {
    WRITES(3, v[7] * 2);
  }
  READS(4, v[7] * 4);
  READS(5, v[7] / 16);
  READS(6, 32);
  return count;
}

/* ---- Attention ---- */

RUN(attention_products) {
  const uint64_t rows = U64(3), tokens = U64(4), heads = U64(5), c = U64(6), width = c / heads;
  (void)threads;
  for (uint64_t r = 0; r < rows; r++) {
    for (uint64_t h = 0; h < heads; h++) {
      float sum = 0;
      for (uint64_t k = r * c + h * width; k < r * c + (h + 1) * width; k++) {
        sum += to_float(BF16(1)[k]) * to_float(BF16(2)[k]);
      }
      F32(0)[(r / tokens * heads + h) * tokens + r % tokens] = sum;
    }
  }
}
ACCESSES(attention_products) {
  uint32_t count = 0;
  WRITES(0, v[3] * v[5] * 4);
  READS(1, v[3] * v[6] * 2);
  READS(2, v[3] * v[6] * 2);
  return count;
}

static float dot(const bf16 *a, const bf16 *b, uint64_t count) {
  float sum = 0;
  for (uint64_t k = 0; k < count; k++) {
    sum += to_float(a[k]) * to_float(b[k]);
  }
  return sum;
}

/* One head of a sequence: where its numbers are. */
struct head {
  const bf16 *q, *k, *v; /* a row after the other is `stride` away */
  uint64_t stride, out_stride, tokens, width;
};

static void forward_head(const struct head *h, bf16 *y, float *log_sums) {
  const float scale = 1 / sqrtf((float)h->width);
  float *p = calloc((size_t)h->tokens, sizeof *p);
  for (uint64_t i = 0; i < h->tokens; i++) {
    float most = -INFINITY, sum = 0;
    for (uint64_t j = 0; j <= i; j++) {
      p[j] = scale * dot(h->q + i * h->stride, h->k + j * h->stride, h->width);
      most = fmaxf(most, p[j]);
    }
    for (uint64_t j = 0; j <= i; j++) {
      p[j] = expf(p[j] - most);
      sum += p[j];
    }
    log_sums[i] = most + logf(sum);
    for (uint64_t c = 0; c < h->width; c++) {
      float mixed = 0;
      for (uint64_t j = 0; j <= i; j++) {
        mixed += p[j] * to_float(h->v[j * h->stride + c]);
      }
      y[i * h->out_stride + c] = to_bf16(mixed / sum);
    }
  }
  free(p);
}

static void run_forward(void *const *parameters, uint64_t width) {
  const uint64_t sequences = U64(3), tokens = U64(4), heads = U64(5), c = heads * width;
  for (uint64_t n = 0; n < sequences * heads; n++) {
    const bf16 *q = BF16(2) + n / heads * tokens * 3 * c + n % heads * width;
    const struct head head = {.q = q,
                              .k = q + c,
                              .v = q + 2 * c,
                              .stride = 3 * c,
                              .out_stride = c,
                              .tokens = tokens,
                              .width = width};
    forward_head(&head, BF16(0) + n / heads * tokens * c + n % heads * width, F32(1) + n * tokens);
  }
}

/* Query i and key j: the probability, and the gradient of the score. */
static void backward_pair(const struct head *h, const bf16 *dy, float log_sum, float product,
                          uint64_t i, uint64_t j, float *p, float *ds) {
  const float scale = 1 / sqrtf((float)h->width);
  *p = expf(scale * dot(h->q + i * h->stride, h->k + j * h->stride, h->width) - log_sum);
  *ds = scale * *p * (dot(dy + i * h->out_stride, h->v + j * h->stride, h->width) - product);
}

static void run_backward(void *const *parameters, uint64_t width, bool keys) {
  const uint64_t sequences = U64(5), tokens = U64(6), heads = U64(7), c = heads * width;
  float *sums = calloc((size_t)(tokens * 2 * width), sizeof *sums);
  for (uint64_t n = 0; n < sequences * heads; n++) {
    const uint64_t at = n / heads * tokens * 3 * c + n % heads * width;
    const bf16 *q = BF16(1) + at, *dy = BF16(2) + n / heads * tokens * c + n % heads * width;
    const struct head head = {.q = q,
                              .k = q + c,
                              .v = q + 2 * c,
                              .stride = 3 * c,
                              .out_stride = c,
                              .tokens = tokens,
                              .width = width};
    memset(sums, 0, tokens * 2 * width * sizeof *sums);
    for (uint64_t i = 0; i < tokens; i++) {
      for (uint64_t j = 0; j <= i; j++) {
        float p, ds;
        backward_pair(&head, dy, F32(3)[n * tokens + i], F32(4)[n * tokens + i], i, j, &p, &ds);
        for (uint64_t e = 0; e < width; e++) {
          if (keys) {
            sums[j * 2 * width + e] += ds * to_float(head.q[i * 3 * c + e]);
            sums[j * 2 * width + width + e] += p * to_float(dy[i * c + e]);
          } else {
            sums[i * 2 * width + e] += ds * to_float(head.k[j * 3 * c + e]);
          }
        }
      }
    }
    for (uint64_t t = 0; t < tokens; t++) {
      for (uint64_t e = 0; e < width; e++) {
        bf16 *to = BF16(0) + at + t * 3 * c + e;
        to[keys ? c : 0] = to_bf16(sums[t * 2 * width + e]);
        if (keys) {
          to[2 * c] = to_bf16(sums[t * 2 * width + width + e]);
        }
      }
    }
  }
  free(sums);
}

static uint32_t access_forward(const uint64_t *v, struct fake_cuda_access *out, uint64_t width) {
  const uint64_t rows = v[3] * v[4], c = v[5] * width;
  uint32_t count = 0;
  WRITES(0, rows * c * 2);
  WRITES(1, rows * v[5] * 4);
  READS(2, rows * 3 * c * 2);
  return count;
}

static uint32_t access_backward(const uint64_t *v, struct fake_cuda_access *out, uint64_t width) {
  const uint64_t rows = v[5] * v[6], c = v[7] * width;
  uint32_t count = 0;
  WRITES(0, rows * 3 * c * 2);
  READS(1, rows * 3 * c * 2);
  READS(2, rows * c * 2);
  READS(3, rows * v[7] * 4);
  READS(4, rows * v[7] * 4);
  return count;
}

#define ATTENTION(name, width)                                                           \
  RUN(attention_forward_##name) {                                                        \
    (void)threads;                                                                       \
    run_forward(parameters, width);                                                      \
  }                                                                                      \
  ACCESSES(attention_forward_##name) { return access_forward(v, out, width); }           \
  RUN(attention_backward_queries_##name) {                                               \
    (void)threads;                                                                       \
    run_backward(parameters, width, false);                                              \
  }                                                                                      \
  ACCESSES(attention_backward_queries_##name) { return access_backward(v, out, width); } \
  RUN(attention_backward_keys_##name) {                                                  \
    (void)threads;                                                                       \
    run_backward(parameters, width, true);                                               \
  }                                                                                      \
  ACCESSES(attention_backward_keys_##name) { return access_backward(v, out, width); }

ATTENTION(16, 16)
ATTENTION(32, 32)
ATTENTION(64, 64)
ATTENTION(128, 128)
ATTENTION(hopper, 64)

/* ---- The table ---- */

/* `addresses`: how many of the parameters are, which come first. */
#define KERNEL(name_, parameters_, addresses_)                                                     \
  {                                                                                                \
    .name = "weft_gpt_" #name_, .parameter_count = (parameters_),                                  \
    .addresses = (UINT32_C(1) << (addresses_)) - 1, .run = run_##name_, .accesses = access_##name_ \
  }
#define ATTENTION_KERNELS(width)                                                             \
  KERNEL(attention_forward_##width, 6, 3), KERNEL(attention_backward_queries_##width, 8, 5), \
      KERNEL(attention_backward_keys_##width, 8, 5)

static const struct fake_cuda_kernel kernels[] = {
    KERNEL(embed, 8, 4),
    KERNEL(embed_backward_positions, 5, 2),
    KERNEL(embed_backward_tokens, 8, 3),
    KERNEL(norm, 8, 6),
    KERNEL(norm_backward, 10, 8),
    KERNEL(column_parts, 5, 2),
    KERNEL(add_parts, 5, 2),
    KERNEL(cross_entropy, 8, 3),
    KERNEL(mean_loss, 5, 3),
    KERNEL(scale, 3, 1),
    KERNEL(tie, 3, 2),
    KERNEL(add, 4, 3),
    KERNEL(add_bf16, 4, 3),
    KERNEL(to_bf16, 3, 2),
    KERNEL(square_sums, 4, 2),
    KERNEL(sum_parts, 4, 2),
    KERNEL(clip, 7, 4),
    KERNEL(adamw, 8, 7),
    KERNEL(attention_products, 7, 3),
    ATTENTION_KERNELS(16),
    ATTENTION_KERNELS(32),
    ATTENTION_KERNELS(64),
    ATTENTION_KERNELS(128),
    ATTENTION_KERNELS(hopper),
};

const struct fake_cuda_kernel *fake_gpt_kernel_at(uint32_t k) {
  return k < sizeof kernels / sizeof kernels[0] ? &kernels[k] : NULL;
}
