/* The kernels of the trainer: values and gradients against double, accuracy in ulps,
 * and results that depend on the arguments alone. */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support_gpt_reference.h"
#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

static struct reference_buffer random_buffer(uint64_t seed, double size, uint64_t count,
                                             uint64_t shift) {
  struct reference_buffer buffer = reference_buffer_make(count, shift);
  reference_random(seed, size, count, buffer.at);
  return buffer;
}

static double *widened(uint64_t count, const float *x) {
  double *wide = malloc(count * sizeof *wide);
  assert_non_null(wide);
  reference_widen(count, x, wide);
  return wide;
}

static void assert_near(uint64_t count, const float *found, const double *expected,
                        double tolerance) {
  for (uint64_t i = 0; i < count; i++) {
    const double bound = tolerance * (1.0 + fabs(expected[i]));
    if (!(fabs((double)found[i] - expected[i]) <= bound)) {
      fail_msg("at %llu: found %.9g, expected %.9g", (unsigned long long)i, (double)found[i],
               expected[i]);
    }
  }
}

static double ulps(float found, double expected) {
  int exponent;
  frexp(expected, &exponent);
  exponent = exponent < FLT_MIN_EXP ? FLT_MIN_EXP : exponent;
  return fabs((double)found - expected) / ldexp(1.0, exponent - FLT_MANT_DIG);
}

/* ---- exp and GELU ---- */

static void exp_is_within_an_ulp(void **state) {
  (void)state;
  double worst[2] = {0.0, 0.0};
  for (int i = 0; i < 10000000; i++) {
    const float in = (float)(-87.3 + 1.76e-5 * i);
    worst[0] = fmax(worst[0], ulps(weft_gpt_exp(false, in), exp((double)in)));
    worst[1] = fmax(worst[1], ulps(weft_gpt_exp(true, in), exp((double)in)));
  }
  assert_true(worst[0] < 1.5 && worst[1] < 1.5);
  assert_true(weft_gpt_exp(true, 0.0f) == 1.0f && weft_gpt_exp(false, 0.0f) == 1.0f);
  assert_true(weft_gpt_exp(true, -88.0f) == 0.0f && weft_gpt_exp(true, -3.0e38f) == 0.0f);
  assert_true(weft_gpt_exp(true, 1e6f) > 3.3e38f && isfinite(weft_gpt_exp(true, 1e6f)));
  assert_true(isnan(weft_gpt_exp(true, NAN)) && isnan(weft_gpt_exp(false, NAN)));
}

/* Both functions over (-12, 12), and far outside. Near a zero of either, an ulp of the
 * result means nothing; there the absolute error counts. */
static void gelu_is_accurate(void **state) {
  (void)state;
  enum { COUNT = 240001 };
  float *x = malloc(COUNT * sizeof *x), *y = malloc(COUNT * sizeof *y);
  float *dy = malloc(COUNT * sizeof *dy), *dx = malloc(COUNT * sizeof *dx);
  for (int i = 0; i < COUNT; i++) {
    x[i] = (float)(-12.0 + 1e-4 * i);
    dy[i] = 1.0f;
  }
  weft_gpt_gelu(COUNT, x, y);
  weft_gpt_gelu_backward(COUNT, x, dy, dx);
  for (int i = 0; i < COUNT; i++) {
    const double in = (double)x[i], value = reference_gelu(in), slope = reference_gelu_slope(in);
    assert_true(ulps(y[i], value) < 4.0 || fabs((double)y[i] - value) < 1e-7);
    assert_true(ulps(dx[i], slope) < 4.0 || fabs((double)dx[i] - slope) < 3e-7);
  }
  const float far[] = {-1e30f, -1e4f, -30.0f, 0.0f, 30.0f, 1e4f, 1e30f};
  float value[7], slope[7];
  weft_gpt_gelu(7, far, value);
  weft_gpt_gelu_backward(7, far, dy, slope);
  for (int i = 0; i < 7; i++) {
    assert_true(fabsf(value[i] - (far[i] > 0 ? far[i] : 0.0f)) <= 1e-6f * fabsf(far[i]));
    const float expected = far[i] > 0 ? 1.0f : far[i] < 0 ? 0.0f : 0.5f;
    assert_true(fabsf(slope[i] - expected) < 1e-6f);
  }
  free(x);
  free(y);
  free(dy);
  free(dx);
}

/* dx may be x, dy, or neither; any count, so the ends of loops are seen. */
static void gelu_works_in_place(void **state) {
  (void)state;
  for (uint64_t count = 1; count < 70; count++) {
    struct reference_buffer x = random_buffer(1, 3.0, count, count % 5);
    struct reference_buffer dy = random_buffer(2, 1.0, count, 0);
    struct reference_buffer dx = reference_buffer_make(count, 1);
    weft_gpt_gelu_backward(count, x.at, dy.at, dx.at);
    for (uint64_t i = 0; i < count; i++) {
      const double expected = (double)dy.at[i] * reference_gelu_slope((double)x.at[i]);
      assert_true(fabs((double)dx.at[i] - expected) < 1e-6);
    }
    struct reference_buffer over_dy = random_buffer(2, 1.0, count, 0);
    weft_gpt_gelu_backward(count, x.at, over_dy.at, over_dy.at);
    assert_memory_equal(over_dy.at, dx.at, count * sizeof(float));
    weft_gpt_gelu_backward(count, x.at, dy.at, x.at);
    assert_memory_equal(x.at, dx.at, count * sizeof(float));
    reference_buffer_free(&x);
    reference_buffer_free(&dy);
    reference_buffer_free(&dx);
    reference_buffer_free(&over_dy);
  }
}

/* ---- A kernel's gradients, by central differences of dot(dy, y) ---- */

struct trial {
  uint64_t rows, in, out;
  struct reference_shape shape;
  double *x, *w, *b, *y, *dy;
};

static double linear_loss(void *context) {
  const struct trial *t = context;
  reference_linear(t->rows, t->in, t->out, t->x, t->w, t->b, t->y);
  return reference_dot(t->rows * t->out, t->y, t->dy);
}

static double norm_loss(void *context) {
  const struct trial *t = context;
  reference_norm(t->rows, t->in, t->x, t->w, t->b, t->y);
  return reference_dot(t->rows * t->in, t->y, t->dy);
}

static double attention_loss(void *context) {
  const struct trial *t = context;
  reference_attention(&t->shape, t->x, t->y);
  return reference_dot(t->rows * t->out, t->y, t->dy);
}

static void free_trial(struct trial *t) {
  free(t->x);
  free(t->w);
  free(t->b);
  free(t->y);
  free(t->dy);
}

/* Compares found with base + the gradient by differences. */
static void check_gradient(double (*loss)(void *), struct trial *trial, uint64_t count, double *at,
                           const float *base, const float *found, double tolerance) {
  double *expected = malloc(count * sizeof *expected);
  reference_gradient(loss, trial, count, at, expected);
  for (uint64_t i = 0; i < count; i++) {
    expected[i] += base != NULL ? (double)base[i] : 0.0;
  }
  assert_near(count, found, expected, tolerance);
  free(expected);
}

static void check_linear(uint64_t rows, uint64_t in, uint64_t out, bool bias) {
  struct reference_buffer x = random_buffer(1, 1.0, rows * in, 1);
  struct reference_buffer w = random_buffer(2, 1.0, out * in, 2);
  struct reference_buffer b = random_buffer(3, 1.0, out, 3);
  struct reference_buffer dy = random_buffer(4, 1.0, rows * out, 0);
  struct reference_buffer y = reference_buffer_make(rows * out, 0);
  struct reference_buffer dx = reference_buffer_make(rows * in, 0);
  struct reference_buffer dw = random_buffer(5, 1.0, out * in, 0),
                          dw0 = random_buffer(5, 1.0, out * in, 0);
  struct reference_buffer db = random_buffer(6, 1.0, out, 0), db0 = random_buffer(6, 1.0, out, 0);
  struct trial t = {.rows = rows, .in = in, .out = out};
  t.x = widened(rows * in, x.at);
  t.w = widened(out * in, w.at);
  t.b = bias ? widened(out, b.at) : NULL;
  t.y = malloc(rows * out * sizeof *t.y);
  t.dy = widened(rows * out, dy.at);

  weft_gpt_linear(rows, in, out, x.at, w.at, bias ? b.at : NULL, y.at);
  linear_loss(&t);
  assert_near(rows * out, y.at, t.y, 1e-5);
  weft_gpt_linear_backward_input(rows, in, out, dy.at, w.at, dx.at, false);
  check_gradient(linear_loss, &t, rows * in, t.x, NULL, dx.at, 1e-5);
  weft_gpt_linear_backward_input(rows, in, out, dy.at, w.at, x.at, true);
  for (uint64_t i = 0; i < rows * in; i++) {
    assert_true(fabs((double)x.at[i] - (t.x[i] + (double)dx.at[i])) < 1e-5);
  }
  reference_random(1, 1.0, rows * in, x.at);
  weft_gpt_linear_backward_weight(rows, in, out, x.at, dy.at, dw.at, bias ? db.at : NULL);
  check_gradient(linear_loss, &t, out * in, t.w, dw0.at, dw.at, 1e-5);
  if (bias) {
    check_gradient(linear_loss, &t, out, t.b, db0.at, db.at, 1e-5);
    struct reference_buffer residual = random_buffer(7, 1.0, rows * out, 1);
    weft_gpt_linear_residual(rows, in, out, x.at, w.at, b.at, residual.at, residual.at);
    for (uint64_t i = 0; i < rows * out; i++) {
      struct reference_buffer again = random_buffer(7, 1.0, rows * out, 0);
      assert_true(fabs((double)residual.at[i] - (t.y[i] + (double)again.at[i])) < 1e-4);
      reference_buffer_free(&again);
    }
    reference_buffer_free(&residual);
  }
  struct reference_buffer *all[] = {&x, &w, &b, &dy, &y, &dx, &dw, &dw0, &db, &db0, NULL};
  reference_buffers_free(all);
  free_trial(&t);
}

static void linear_is_the_reference(void **state) {
  (void)state;
  check_linear(1, 1, 1, true);
  check_linear(5, 3, 7, true);
  check_linear(6, 17, 9, false);
  check_linear(11, 16, 33, true);
}

/* Element (i, j) at `at`[i row + j column]. */
struct view {
  const float *at;
  uint64_t row, column;
};

/* start + a b, [m, n], compared with `found`; sums in double. start.at may be NULL. */
static void check_product(uint64_t m, uint64_t n, uint64_t k, struct view start, struct view a,
                          struct view b, const float *found) {
  double *expected = malloc(m * n * sizeof *expected);
  assert_non_null(expected);
  for (uint64_t at = 0; at < m * n; at++) {
    const uint64_t i = at / n, j = at % n;
    double sum = start.at != NULL ? (double)start.at[i * start.row + j * start.column] : 0.0;
    for (uint64_t l = 0; l < k; l++) {
      sum += (double)a.at[i * a.row + l * a.column] * (double)b.at[l * b.row + j * b.column];
    }
    expected[at] = sum;
  }
  assert_near(m * n, found, expected, 3e-5);
  free(expected);
}

static void check_forward_shape(uint64_t rows, uint64_t in, uint64_t out) {
  struct reference_buffer x = random_buffer(1, 1.0, rows * in, 1);
  struct reference_buffer w = random_buffer(2, 1.0, out * in, 0);
  struct reference_buffer b = random_buffer(3, 1.0, out, 2);
  struct reference_buffer y = random_buffer(4, 1.0, rows * out, 3);
  struct reference_buffer sum = random_buffer(4, 1.0, rows * out, 0);
  const struct view xs = {x.at, in, 1}, ws = {w.at, 1, in};
  for (uint64_t i = 0; i < rows * out; i++) {
    sum.at[i] += b.at[i % out];
  }
  weft_gpt_linear_residual(rows, in, out, x.at, w.at, b.at, y.at, y.at);
  check_product(rows, out, in, (struct view){sum.at, out, 1}, xs, ws, y.at);
  weft_gpt_linear(rows, in, out, x.at, w.at, b.at, y.at);
  check_product(rows, out, in, (struct view){b.at, 0, 1}, xs, ws, y.at);
  weft_gpt_linear(rows, in, out, x.at, w.at, NULL, y.at);
  check_product(rows, out, in, (struct view){NULL, 0, 0}, xs, ws, y.at);
  struct reference_buffer *all[] = {&x, &w, &b, &y, &sum, NULL};
  reference_buffers_free(all);
}

static void check_backward_shape(uint64_t rows, uint64_t in, uint64_t out) {
  struct reference_buffer x = random_buffer(1, 1.0, rows * in, 1);
  struct reference_buffer w = random_buffer(2, 1.0, out * in, 0);
  struct reference_buffer dy = random_buffer(3, 1.0, rows * out, 2);
  struct reference_buffer dx = random_buffer(4, 1.0, rows * in, 3);
  struct reference_buffer dx0 = random_buffer(4, 1.0, rows * in, 0);
  struct reference_buffer dw = random_buffer(5, 1.0, out * in, 1);
  struct reference_buffer dw0 = random_buffer(5, 1.0, out * in, 0);
  struct reference_buffer db = random_buffer(6, 1.0, out, 1), db0 = random_buffer(6, 1.0, out, 0);
  const float one = 1.0f;
  const struct view dys = {dy.at, out, 1}, turned = {dy.at, 1, out}, ws = {w.at, in, 1};
  weft_gpt_linear_backward_input(rows, in, out, dy.at, w.at, dx.at, true);
  check_product(rows, in, out, (struct view){dx0.at, in, 1}, dys, ws, dx.at);
  weft_gpt_linear_backward_input(rows, in, out, dy.at, w.at, dx.at, false);
  check_product(rows, in, out, (struct view){NULL, 0, 0}, dys, ws, dx.at);
  weft_gpt_linear_backward_weight(rows, in, out, x.at, dy.at, dw.at, db.at);
  check_product(out, in, rows, (struct view){dw0.at, in, 1}, turned, (struct view){x.at, in, 1},
                dw.at);
  check_product(out, 1, rows, (struct view){db0.at, 1, 0}, turned, (struct view){&one, 0, 0},
                db.at);
  struct reference_buffer *all[] = {&x, &w, &dy, &dx, &dx0, &dw, &dw0, &db, &db0, NULL};
  reference_buffers_free(all);
}

static void check_shape(uint64_t rows, uint64_t in, uint64_t out) {
  check_forward_shape(rows, in, out);
  check_backward_shape(rows, in, out);
}

/* Shapes that fill no register, panel or block, and some that fill several. */
static void linear_takes_any_shape(void **state) {
  (void)state;
  const uint64_t sizes[] = {1, 15, 16, 17, 33};
  for (int k = 0; k < 5 * 5 * 5; k++) {
    check_shape(sizes[k % 5], sizes[k / 5 % 5], sizes[k / 25]);
  }
  check_shape(300, 40, 33);
  check_shape(3, 600, 35);
  check_shape(20, 17, 530);
  check_shape(539, 14, 270);
}

static void check_norm(uint64_t rows, uint64_t channels, double offset) {
  struct reference_buffer x = random_buffer(1, 1.0, rows * channels, 1);
  struct reference_buffer w = random_buffer(2, 1.0, channels, 2);
  struct reference_buffer b = random_buffer(3, 1.0, channels, 3);
  struct reference_buffer dy = random_buffer(4, 1.0, rows * channels, 0);
  struct reference_buffer y = reference_buffer_make(rows * channels, 0);
  struct reference_buffer dx = random_buffer(5, 1.0, rows * channels, 0);
  struct reference_buffer dx0 = random_buffer(5, 1.0, rows * channels, 0);
  struct reference_buffer mean = reference_buffer_make(rows, 0);
  struct reference_buffer rstd = reference_buffer_make(rows, 0);
  struct reference_buffer share = reference_buffer_make(2 * channels, 0);
  for (uint64_t i = 0; i < rows * channels; i++) {
    x.at[i] += (float)offset;
  }
  struct trial t = {.rows = rows, .in = channels};
  t.x = widened(rows * channels, x.at);
  t.w = widened(channels, w.at);
  t.b = widened(channels, b.at);
  t.y = malloc(rows * channels * sizeof *t.y);
  t.dy = widened(rows * channels, dy.at);
  const double tolerance = 1e-5 * (1.0 + fabs(offset));
  weft_gpt_layernorm(rows, channels, x.at, w.at, b.at, y.at, mean.at, rstd.at);
  norm_loss(&t);
  assert_near(rows * channels, y.at, t.y, tolerance);
  weft_gpt_layernorm_backward_input(rows, channels, x.at, w.at, mean.at, rstd.at, dy.at, dx.at,
                                    share.at);
  check_gradient(norm_loss, &t, rows * channels, t.x, dx0.at, dx.at, tolerance);
  check_gradient(norm_loss, &t, channels, t.w, NULL, share.at, tolerance);
  check_gradient(norm_loss, &t, channels, t.b, NULL, share.at + channels, tolerance);
  struct reference_buffer *all[] = {&x, &w, &b, &dy, &y, &dx, &dx0, &mean, &rstd, &share, NULL};
  reference_buffers_free(all);
  free_trial(&t);
}

static void norm_is_the_reference(void **state) {
  (void)state;
  check_norm(1, 2, 0.0);
  check_norm(4, 5, 0.0);
  check_norm(3, 16, 0.0);
  check_norm(7, 39, 0.0);
  check_norm(3, 64, 20.0); /* a mean that is large beside the deviation */
}

/* ---- Attention ---- */

/* Of a naive implementation: dqkv by the chain rule, one query at a time. */
static void naive_backward(const struct reference_shape *shape, const double *qkv, const double *dy,
                           double *dqkv) {
  const uint64_t tokens = shape->tokens, c = shape->channels, d = c / shape->heads;
  double *p = malloc(tokens * sizeof *p), *dp = malloc(tokens * sizeof *dp);
  memset(dqkv, 0, shape->sequences * tokens * 3 * c * sizeof *dqkv);
  for (uint64_t n = 0; n < shape->sequences * shape->heads * tokens; n++) {
    const uint64_t t = n % tokens, head = n / tokens % shape->heads,
                   first = n / tokens / shape->heads * tokens;
    const uint64_t q = (first + t) * 3 * c + head * d, y = (first + t) * c + head * d;
    double max = -INFINITY, sum = 0.0, mean = 0.0;
    for (uint64_t s = 0; s <= t; s++) {
      const uint64_t k = (first + s) * 3 * c + c + head * d;
      p[s] = reference_dot(d, qkv + q, qkv + k) / sqrt((double)d);
      dp[s] = reference_dot(d, dy + y, qkv + k + c);
      max = fmax(max, p[s]);
    }
    for (uint64_t s = 0; s <= t; s++) {
      p[s] = exp(p[s] - max);
      sum += p[s];
    }
    for (uint64_t s = 0; s <= t; s++) {
      p[s] /= sum;
      mean += p[s] * dp[s];
    }
    for (uint64_t s = 0; s <= t; s++) {
      const uint64_t k = (first + s) * 3 * c + c + head * d;
      const double ds = p[s] * (dp[s] - mean) / sqrt((double)d);
      for (uint64_t i = 0; i < d; i++) {
        dqkv[q + i] += ds * qkv[k + i];
        dqkv[k + i] += ds * qkv[q + i];
        dqkv[k + c + i] += p[s] * dy[y + i];
      }
    }
  }
  free(p);
  free(dp);
}

struct attention {
  struct reference_shape shape;
  uint64_t rows;
  struct reference_buffer qkv, y, log_sums, dy, dqkv, scratch;
};

static struct attention make_attention(uint64_t sequences, uint64_t tokens, uint64_t heads,
                                       uint64_t width, double size, uint64_t shift) {
  const uint64_t rows = sequences * tokens, c = heads * width;
  return (struct attention){
      .shape = {sequences, tokens, c, heads, 0},
      .rows = rows,
      .qkv = random_buffer(1, size, rows * 3 * c, shift),
      .y = reference_buffer_make(rows * c, shift),
      .log_sums = reference_buffer_make(rows * heads, shift),
      .dy = random_buffer(2, 1.0, rows * c, shift),
      .dqkv = reference_buffer_make(rows * 3 * c, shift),
      .scratch = reference_buffer_make(weft_gpt_attention_scratch(tokens, c, heads), shift)};
}

static void free_attention(struct attention *a) {
  struct reference_buffer *all[] = {&a->qkv,  &a->y,       &a->log_sums, &a->dy,
                                    &a->dqkv, &a->scratch, NULL};
  reference_buffers_free(all);
}

static void run_attention(struct attention *a, bool in_place) {
  const struct reference_shape *s = &a->shape;
  weft_gpt_attention(s->sequences, s->tokens, s->channels, s->heads, a->qkv.at, a->y.at,
                     a->log_sums.at, a->scratch.at);
  weft_gpt_attention_backward(s->sequences, s->tokens, s->channels, s->heads, a->qkv.at, a->y.at,
                              a->log_sums.at, a->dy.at, in_place ? a->qkv.at : a->dqkv.at,
                              a->scratch.at);
}

static void check_attention(uint64_t sequences, uint64_t tokens, uint64_t heads, uint64_t width,
                            double size) {
  struct attention a = make_attention(sequences, tokens, heads, width, size, 0);
  struct attention b = make_attention(sequences, tokens, heads, width, size, 3);
  const uint64_t c = a.shape.channels, values = a.rows * c;
  double *qkv = widened(3 * values, a.qkv.at), *dy = widened(values, a.dy.at);
  double *y = malloc(values * sizeof *y), *dqkv = malloc(3 * values * sizeof *dqkv);
  reference_attention(&a.shape, qkv, y);
  naive_backward(&a.shape, qkv, dy, dqkv);
  run_attention(&a, false);
  assert_near(values, a.y.at, y, 2e-5 * size);
  assert_near(3 * values, a.dqkv.at, dqkv, 1e-4 * size * size);
  run_attention(&b, true); /* elsewhere, and over qkv: the same bits */
  assert_memory_equal(b.y.at, a.y.at, values * sizeof(float));
  assert_memory_equal(b.qkv.at, a.dqkv.at, 3 * values * sizeof(float));
  free(qkv);
  free(dy);
  free(y);
  free(dqkv);
  free_attention(&a);
  free_attention(&b);
}

static void attention_is_the_naive_one(void **state) {
  (void)state;
  const uint64_t tokens[] = {1, 2, 7, 64, 65, 200}, heads[] = {1, 3, 4}, widths[] = {8, 5, 32};
  for (int i = 0; i < 6; i++) {
    for (int k = 0; k < 3; k++) {
      check_attention(2, tokens[i], heads[k], widths[k], 1.0);
    }
  }
  check_attention(1, 300, 1, 64, 1.0);
  check_attention(1, 130, 2, 80, 1.0);
  check_attention(1, 129, 1, 16, 6.0); /* scores of about +-100: the softmax is nearly hard */
}

/* The naive backward itself, and the kernel, by differences. */
static void attention_gradients_are_differences(void **state) {
  (void)state;
  struct attention a = make_attention(1, 9, 2, 4, 1.0, 0);
  const uint64_t values = a.rows * a.shape.channels;
  struct trial t = {.rows = a.rows, .out = a.shape.channels, .shape = a.shape};
  t.x = widened(3 * values, a.qkv.at);
  t.y = malloc(values * sizeof *t.y);
  t.dy = widened(values, a.dy.at);
  run_attention(&a, false);
  check_gradient(attention_loss, &t, 3 * values, t.x, NULL, a.dqkv.at, 1e-5);
  free_trial(&t);
  free_attention(&a);
}

static void scratch_does_not_grow_with_a_square(void **state) {
  (void)state;
  const uint64_t once = weft_gpt_attention_scratch(4096, 256, 4);
  assert_true(weft_gpt_attention_scratch(8192, 256, 4) <= 2 * once);
  assert_true(once < 4096 * 4096);
}

/* ---- Cross entropy ---- */

/* Bytes, and, of more than 256 tokens, 16 bits. */
static const uint8_t narrow_targets[] = {0, 4, 2};
static const uint16_t wide_targets[] = {0, 4, 300};

static double loss_of_logits(void *context) {
  const struct trial *t = context;
  double loss = 0;
  for (uint64_t r = 0; r < 3; r++) {
    const uint64_t target = t->in > 256 ? wide_targets[r] : narrow_targets[r];
    double sum = 0;
    for (uint64_t k = 0; k < t->in; k++) {
      sum += exp(t->x[r * t->in + k]);
    }
    loss += log(sum) - t->x[r * t->in + target];
  }
  return 0.25 * loss;
}

static void cross_entropy_is_the_reference(void **state) {
  (void)state;
  for (uint64_t vocabulary = 5; vocabulary < 700; vocabulary += 251) {
    const void *targets = vocabulary > 256 ? (const void *)wide_targets : narrow_targets;
    struct reference_buffer x = random_buffer(1, 4.0, 3 * vocabulary, 1);
    struct reference_buffer dx = reference_buffer_make(3 * vocabulary, 0);
    struct trial t = {.rows = 3, .in = vocabulary};
    t.x = widened(3 * vocabulary, x.at);
    const double loss = weft_gpt_cross_entropy(3, vocabulary, x.at, targets, 0.25f, dx.at);
    assert_true(fabs(0.25 * loss - loss_of_logits(&t)) < 1e-5);
    check_gradient(loss_of_logits, &t, 3 * vocabulary, t.x, NULL, dx.at, 1e-6);
    assert_true(weft_gpt_cross_entropy(3, vocabulary, x.at, targets, 0.25f, NULL) == loss);
    assert_true(weft_gpt_cross_entropy(3, vocabulary, x.at, targets, 0.25f, x.at) == loss);
    assert_memory_equal(x.at, dx.at, 3 * vocabulary * sizeof(float));
    reference_buffer_free(&x);
    reference_buffer_free(&dx);
    free_trial(&t);
  }
}

static void cross_entropy_takes_huge_logits(void **state) {
  (void)state;
  const float x[] = {1e30f, -1e30f, 0.0f, 1e30f, 500.0f, 1000.0f, 1000.0f, -1000.0f};
  const uint8_t targets[] = {0, 1};
  float dx[8];
  const double loss = weft_gpt_cross_entropy(2, 4, x, targets, 1.0f, dx);
  assert_true(fabs(loss - 2.0 * log(2.0)) < 1e-6);
  const float expected[] = {-0.5f, 0.0f, 0.0f, 0.5f, 0.0f, -0.5f, 0.5f, 0.0f};
  for (int i = 0; i < 8; i++) {
    assert_true(fabsf(dx[i] - expected[i]) < 1e-6f);
  }
}

/* ---- The optimizer ---- */

static void adamw_is_the_reference(void **state) {
  (void)state;
  enum { COUNT = 77, STEPS = 20 };
  struct reference_buffer w = random_buffer(1, 1.0, COUNT, 1), m = reference_buffer_make(COUNT, 2);
  struct reference_buffer v = reference_buffer_make(COUNT, 3), g = reference_buffer_make(COUNT, 0);
  double wide[COUNT], first[COUNT] = {0}, second[COUNT] = {0};
  memset(m.at, 0, COUNT * sizeof(float));
  memset(v.at, 0, COUNT * sizeof(float));
  reference_widen(COUNT, w.at, wide);
  for (int step = 1; step <= STEPS; step++) {
    const struct weft_gpt_adamw adamw = {.rate = 1e-2f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .epsilon = 1e-8f,
                                         .decay = 0.1f,
                                         .correction1 = (float)(1.0 - pow(0.9, step)),
                                         .correction2 = (float)(1.0 - pow(0.95, step)),
                                         .grad_scale = 0.5f};
    reference_random((uint64_t)step, 2.0, COUNT, g.at);
    weft_gpt_adamw_update(&adamw, COUNT, g.at, w.at, m.at, v.at);
    for (int i = 0; i < COUNT; i++) {
      const double gradient = 0.5 * (double)g.at[i];
      first[i] = 0.9 * first[i] + 0.1 * gradient;
      second[i] = 0.95 * second[i] + 0.05 * gradient * gradient;
      const double root = sqrt(second[i] / (1.0 - pow(0.95, step))) + 1e-8;
      wide[i] -= 1e-2 * 0.1 * wide[i];
      wide[i] -= 1e-2 * first[i] / (1.0 - pow(0.9, step)) / root;
    }
  }
  assert_near(COUNT, w.at, wide, 2e-6);
  assert_near(COUNT, m.at, first, 2e-6);
  assert_near(COUNT, v.at, second, 2e-6);
  struct reference_buffer *all[] = {&w, &m, &v, &g, NULL};
  reference_buffers_free(all);
}

static void sums_and_scales(void **state) {
  (void)state;
  for (uint64_t count = 0; count < 60; count++) {
    struct reference_buffer x = random_buffer(1, 1.0, count, 1),
                            y = random_buffer(2, 1.0, count, 2);
    double expected = 0.0;
    for (uint64_t i = 0; i < count; i++) {
      expected += (double)x.at[i] * (double)x.at[i];
    }
    assert_true(fabs(weft_gpt_square_sum(count, x.at) - expected) < 1e-12);
    struct reference_buffer z = random_buffer(2, 1.0, count, 0);
    weft_gpt_add(count, x.at, y.at);
    weft_gpt_scale(count, 0.3f, x.at);
    struct reference_buffer again = random_buffer(1, 1.0, count, 0);
    for (uint64_t i = 0; i < count; i++) {
      assert_true(y.at[i] == z.at[i] + again.at[i] && x.at[i] == 0.3f * again.at[i]);
    }
    struct reference_buffer *all[] = {&x, &y, &z, &again, NULL};
    reference_buffers_free(all);
  }
}

/* ---- Results depend on the arguments alone ---- */

static void *attend_in_thread(void *context) {
  struct attention *a = context;
  for (int i = 0; i < 3; i++) {
    run_attention(a, false);
  }
  return NULL;
}

static void threads_change_nothing(void **state) {
  (void)state;
  enum { THREADS = 4 };
  struct attention all[THREADS], alone = make_attention(2, 150, 2, 32, 1.0, 0);
  pthread_t threads[THREADS];
  run_attention(&alone, false);
  for (uint64_t i = 0; i < THREADS; i++) {
    all[i] = make_attention(2, 150, 2, 32, 1.0, 5 * i);
  }
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, attend_in_thread, &all[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_memory_equal(all[i].y.at, alone.y.at, alone.y.count * sizeof(float));
    assert_memory_equal(all[i].dqkv.at, alone.dqkv.at, alone.dqkv.count * sizeof(float));
    free_attention(&all[i]);
  }
  free_attention(&alone);
}

/* A process that starts with what is wanted has nothing to want. */
static void a_wanted_core_is_taken(void **state) {
  (void)state;
  int status = -1;
  char *const arguments[] = {"test", "core", NULL};
  const char *wanted = weft_gpt_blas_core_wanted();
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (wanted != NULL) {
      setenv("OPENBLAS_CORETYPE", wanted, 1);
    }
    execv("/proc/self/exe", arguments);
    _exit(2);
  }
  assert_true(waitpid(child, &status, 0) == child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "core") == 0) {
    return weft_gpt_blas_core_wanted() == NULL ? 0 : 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exp_is_within_an_ulp),
      cmocka_unit_test(gelu_is_accurate),
      cmocka_unit_test(gelu_works_in_place),
      cmocka_unit_test(linear_is_the_reference),
      cmocka_unit_test(linear_takes_any_shape),
      cmocka_unit_test(norm_is_the_reference),
      cmocka_unit_test(attention_is_the_naive_one),
      cmocka_unit_test(attention_gradients_are_differences),
      cmocka_unit_test(scratch_does_not_grow_with_a_square),
      cmocka_unit_test(cross_entropy_is_the_reference),
      cmocka_unit_test(cross_entropy_takes_huge_logits),
      cmocka_unit_test(adamw_is_the_reference),
      cmocka_unit_test(sums_and_scales),
      cmocka_unit_test(threads_change_nothing),
      cmocka_unit_test(a_wanted_core_is_taken),
  };
  weft_gpt_set_blas_threads(1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
