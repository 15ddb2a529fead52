/* The model's kernels in double, as plainly as they can be written, and gradients by
 * central differences: what the trainer's kernels and layers are compared with. */
#ifndef TESTS_SUPPORT_GPT_REFERENCE_H
#define TESTS_SUPPORT_GPT_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

/* Letters as in trainer/model/model.h. */
struct reference_shape {
  uint64_t sequences, tokens, channels, heads, vocabulary;
};

void reference_linear(uint64_t rows, uint64_t in, uint64_t out, const double *x, const double *w,
                      const double *b, double *y);
void reference_norm(uint64_t rows, uint64_t channels, const double *x, const double *weight,
                    const double *bias, double *y);
double reference_gelu(double x);
double reference_gelu_slope(double x);
/* qkv [B, T, 3 C] -> y [B, T, C]; with a row of scores for each query, nothing else. */
void reference_attention(const struct reference_shape *shape, const double *qkv, double *y);
/* Sum over rows. */
double reference_cross_entropy(uint64_t rows, uint64_t vocabulary, const double *logits,
                               const uint8_t *targets);

/* A block; `at` are the offsets of its twelve tensors in parameters. */
void reference_block(const struct reference_shape *shape, const double *parameters,
                     const uint64_t *at, const double *x, double *y);
/* The head's mean loss; `at` has three offsets. */
double reference_head(const struct reference_shape *shape, const double *parameters,
                      const uint64_t *at, const double *x, const uint8_t *targets);

/* Gradient of f at x [count], by central differences; x is restored. */
void reference_gradient(double (*f)(void *context), void *context, uint64_t count, double *x,
                        double *gradient);

/* Random floats in (-size, size), the same for a seed; and as doubles. */
void reference_random(uint64_t seed, double size, uint64_t count, float *x);
void reference_widen(uint64_t count, const float *from, double *to);
double reference_dot(uint64_t count, const double *a, const double *b);

/* Floats between guards, `shift` floats off any alignment. reference_buffer_check fails
 * the test when a guard was written. */
struct reference_buffer {
  float *memory;
  float *at;
  uint64_t count;
};
struct reference_buffer reference_buffer_make(uint64_t count, uint64_t shift);
void reference_buffer_check(const struct reference_buffer *buffer);
/* Checks too; of a list that ends with NULL, all. */
void reference_buffer_free(struct reference_buffer *buffer);
void reference_buffers_free(struct reference_buffer *const *buffers);

#endif
