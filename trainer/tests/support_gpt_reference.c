/* See support_gpt_reference.h. */
#include "support_gpt_reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

static double *doubles(uint64_t count) {
  double *x = calloc(count + 1, sizeof *x);
  assert_non_null(x);
  return x;
}

void reference_linear(uint64_t rows, uint64_t in, uint64_t out, const double *x, const double *w,
                      const double *b, double *y) {
  for (uint64_t r = 0; r < rows; r++) {
    for (uint64_t o = 0; o < out; o++) {
      double sum = b != NULL ? b[o] : 0.0;
      for (uint64_t i = 0; i < in; i++) {
        sum += x[r * in + i] * w[o * in + i];
      }
      y[r * out + o] = sum;
    }
  }
}

void reference_norm(uint64_t rows, uint64_t channels, const double *x, const double *weight,
                    const double *bias, double *y) {
  for (uint64_t r = 0; r < rows; r++, x += channels, y += channels) {
    double mean = 0.0, variance = 0.0;
    for (uint64_t i = 0; i < channels; i++) {
      mean += x[i] / (double)channels;
    }
    for (uint64_t i = 0; i < channels; i++) {
      variance += (x[i] - mean) * (x[i] - mean) / (double)channels;
    }
    for (uint64_t i = 0; i < channels; i++) {
      y[i] = (x[i] - mean) / sqrt(variance + 1e-5) * weight[i] + bias[i];
    }
  }
}

static const double root_2_over_pi = 0.79788456080286535588;

double reference_gelu(double x) {
  return 0.5 * x * (1.0 + tanh(root_2_over_pi * (x + 0.044715 * x * x * x)));
}

double reference_gelu_slope(double x) {
  const double t = tanh(root_2_over_pi * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) +
         0.5 * x * (1.0 - t * t) * root_2_over_pi * (1.0 + 3.0 * 0.044715 * x * x);
}

/* One query: scores, softmax, mean of values. */
static void attend(uint64_t seen, uint64_t width, uint64_t stride, const double *q, const double *k,
                   const double *v, double *p, double *y) {
  double max = -INFINITY, sum = 0.0;
  for (uint64_t s = 0; s < seen; s++) {
    p[s] = reference_dot(width, q, k + s * stride) / sqrt((double)width);
    max = fmax(max, p[s]);
  }
  for (uint64_t s = 0; s < seen; s++) {
    p[s] = exp(p[s] - max);
    sum += p[s];
  }
  for (uint64_t i = 0; i < width; i++) {
    y[i] = 0.0;
    for (uint64_t s = 0; s < seen; s++) {
      y[i] += p[s] / sum * v[s * stride + i];
    }
  }
}

void reference_attention(const struct reference_shape *shape, const double *qkv, double *y) {
  const uint64_t t = shape->tokens, c = shape->channels, width = c / shape->heads;
  double *p = doubles(t);
  for (uint64_t b = 0; b < shape->sequences; b++) {
    for (uint64_t h = 0; h < shape->heads; h++) {
      const double *q = qkv + b * t * 3 * c + h * width;
      for (uint64_t i = 0; i < t; i++) {
        attend(i + 1, width, 3 * c, q + i * 3 * c, q + c, q + 2 * c, p,
               y + (b * t + i) * c + h * width);
      }
    }
  }
  free(p);
}

double reference_cross_entropy(uint64_t rows, uint64_t vocabulary, const double *logits,
                               const uint8_t *targets) {
  double loss = 0.0;
  for (uint64_t r = 0; r < rows; r++, logits += vocabulary) {
    double max = -INFINITY, sum = 0.0;
    for (uint64_t i = 0; i < vocabulary; i++) {
      max = fmax(max, logits[i]);
    }
    for (uint64_t i = 0; i < vocabulary; i++) {
      sum += exp(logits[i] - max);
    }
    loss += log(sum) + max - logits[targets[r]];
  }
  return loss;
}

void reference_block(const struct reference_shape *shape, const double *parameters,
                     const uint64_t *at, const double *x, double *y) {
  const uint64_t rows = shape->sequences * shape->tokens, c = shape->channels;
  double *normed = doubles(rows * c), *wide = doubles(rows * 4 * c), *mixed = doubles(rows * c);
  reference_norm(rows, c, x, parameters + at[0], parameters + at[1], normed);
  reference_linear(rows, c, 3 * c, normed, parameters + at[2], parameters + at[3], wide);
  reference_attention(shape, wide, mixed);
  reference_linear(rows, c, c, mixed, parameters + at[4], parameters + at[5], normed);
  for (uint64_t i = 0; i < rows * c; i++) {
    mixed[i] = x[i] + normed[i];
  }
  reference_norm(rows, c, mixed, parameters + at[6], parameters + at[7], normed);
  reference_linear(rows, c, 4 * c, normed, parameters + at[8], parameters + at[9], wide);
  for (uint64_t i = 0; i < rows * 4 * c; i++) {
    wide[i] = reference_gelu(wide[i]);
  }
  reference_linear(rows, 4 * c, c, wide, parameters + at[10], parameters + at[11], y);
  for (uint64_t i = 0; i < rows * c; i++) {
    y[i] += mixed[i];
  }
  free(normed);
  free(wide);
  free(mixed);
}

double reference_head(const struct reference_shape *shape, const double *parameters,
                      const uint64_t *at, const double *x, const uint8_t *targets) {
  const uint64_t rows = shape->sequences * shape->tokens, c = shape->channels;
  double *normed = doubles(rows * c), *logits = doubles(rows * shape->vocabulary);
  reference_norm(rows, c, x, parameters + at[0], parameters + at[1], normed);
  reference_linear(rows, c, shape->vocabulary, normed, parameters + at[2], NULL, logits);
  const double sum = reference_cross_entropy(rows, shape->vocabulary, logits, targets);
  free(normed);
  free(logits);
  return sum / (double)rows;
}

void reference_gradient(double (*f)(void *context), void *context, uint64_t count, double *x,
                        double *gradient) {
  for (uint64_t i = 0; i < count; i++) {
    const double was = x[i], step = 1e-5;
    x[i] = was + step;
    const double above = f(context);
    x[i] = was - step;
    const double below = f(context);
    x[i] = was;
    gradient[i] = (above - below) / (2.0 * step);
  }
}

void reference_random(uint64_t seed, double size, uint64_t count, float *x) {
  struct weft_random random = {seed};
  for (uint64_t i = 0; i < count; i++) {
    const double unit = (double)(weft_random_next(&random) >> 11) * 0x1p-53;
    x[i] = (float)((2.0 * unit - 1.0) * size);
  }
}

void reference_widen(uint64_t count, const float *from, double *to) {
  for (uint64_t i = 0; i < count; i++) {
    to[i] = (double)from[i];
  }
}

double reference_dot(uint64_t count, const double *a, const double *b) {
  double sum = 0.0;
  for (uint64_t i = 0; i < count; i++) {
    sum += a[i] * b[i];
  }
  return sum;
}

/* ---- Buffers between guards ---- */

#define GUARD 64
static const uint32_t guard_bits = 0x7fa5a5a5; /* a NaN, should it be read */

struct reference_buffer reference_buffer_make(uint64_t count, uint64_t shift) {
  struct reference_buffer buffer = {.count = count};
  void *memory = NULL;
  assert_int_equal(posix_memalign(&memory, 64, (count + 3 * GUARD) * sizeof(float)), 0);
  assert_true(shift < GUARD);
  buffer.memory = memory;
  buffer.at = buffer.memory + GUARD + shift;
  for (uint64_t i = 0; i < count + 3 * GUARD; i++) {
    memcpy(&buffer.memory[i], &guard_bits, sizeof guard_bits);
  }
  return buffer;
}

static void check_guard(const float *from, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &from[i], sizeof bits);
    assert_int_equal(bits, guard_bits);
  }
}

void reference_buffer_check(const struct reference_buffer *buffer) {
  const uint64_t before = (uint64_t)(buffer->at - buffer->memory);
  check_guard(buffer->memory, before);
  check_guard(buffer->at + buffer->count, 3 * GUARD - before);
}

void reference_buffer_free(struct reference_buffer *buffer) {
  reference_buffer_check(buffer);
  free(buffer->memory);
  *buffer = (struct reference_buffer){0};
}

void reference_buffers_free(struct reference_buffer *const *buffers) {
  for (; *buffers != NULL; buffers++) {
    reference_buffer_free(*buffers);
  }
}
