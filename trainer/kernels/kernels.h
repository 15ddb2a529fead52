/* The kernels, on rows of floats. Matrix products use gemm_avx512.h where the machine has AVX-512
 * and a rank one BLAS thread, else CBLAS's sgemm; everything else is written so that the compiler
 * vectorises it. Every result depends on the arguments alone: no threads, no global state.
 *
 * Gradients of inputs are written (=) unless it says added (+=); gradients of
 * parameters are always added. Arrays do not overlap unless it says they may. */
#ifndef GPT_KERNELS_H
#define GPT_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* ---- Linear: y[R, N] = x[R, K] w[N, K]^T + b[N]; b may be NULL ---- */
void weft_gpt_linear(uint64_t rows, uint64_t in, uint64_t out, const float *x, const float *w,
                     const float *b, float *y);
/* y = residual + x w^T + b; y may be residual. */
void weft_gpt_linear_residual(uint64_t rows, uint64_t in, uint64_t out, const float *x,
                              const float *w, const float *b, const float *residual, float *y);
/* dx = dy w, or added to dx. */
void weft_gpt_linear_backward_input(uint64_t rows, uint64_t in, uint64_t out, const float *dy,
                                    const float *w, float *dx, bool add);
/* dw += dy^T x, db += column sums of dy (db may be NULL). */
void weft_gpt_linear_backward_weight(uint64_t rows, uint64_t in, uint64_t out, const float *x,
                                     const float *dy, float *dw, float *db);

/* ---- Layer norm, epsilon 1e-5 ---- */
/* mean[R], rstd[R] are saved for the backward. */
void weft_gpt_layernorm(uint64_t rows, uint64_t channels, const float *x, const float *weight,
                        const float *bias, float *y, float *mean, float *rstd);
/* dx += the gradient through the norm (the residual's is there already). share[2 C]
 * gets (=) this microbatch's share of the gradients of weight and bias, which backward_weight adds. */
void weft_gpt_layernorm_backward_input(uint64_t rows, uint64_t channels, const float *x,
                                       const float *weight, const float *mean, const float *rstd,
                                       const float *dy, float *dx, float *share);

/* ---- GELU, the tanh form (PyTorch's approximate="tanh") ---- */
void weft_gpt_gelu(uint64_t count, const float *x, float *y);
/* dx = dy * gelu'(x); dx may be x, or dy. */
void weft_gpt_gelu_backward(uint64_t count, const float *x, const float *dy, float *dx);

/* ---- y += x, and sums ---- */
void weft_gpt_add(uint64_t count, const float *x, float *y);

/* ---- Causal self-attention over qkv[B, T, 3 C] (q, k, v side by side) ---- */
/* y[B, T, C]; log_sums[B, H, T] is saved for the backward. scratch has
 * weft_gpt_attention_scratch() floats. Memory does not grow with T x T: keys are taken
 * in tiles, with a running softmax. */
uint64_t weft_gpt_attention_scratch(uint64_t tokens, uint64_t channels, uint64_t heads);
void weft_gpt_attention(uint64_t sequences, uint64_t tokens, uint64_t channels, uint64_t heads,
                        const float *qkv, float *y, float *log_sums, float *scratch);
/* dqkv (=) from dy; y is the forward's. dqkv may be qkv. */
void weft_gpt_attention_backward(uint64_t sequences, uint64_t tokens, uint64_t channels,
                                 uint64_t heads, const float *qkv, const float *y,
                                 const float *log_sums, const float *dy, float *dqkv,
                                 float *scratch);

/* ---- Tokens: bytes, or 16 bits where the vocabulary has more than 256 ---- */
static inline uint64_t weft_gpt_token_bytes(uint64_t vocabulary) {
  return vocabulary > 256 ? 2 : 1;
}
/* The r-th of those that have so many bytes. */
static inline uint64_t weft_gpt_token_at(const void *ids, uint64_t token_bytes, uint64_t r) {
  return token_bytes == 1 ? ((const uint8_t *)ids)[r] : ((const uint16_t *)ids)[r];
}

/* ---- Embedding: x[b, t] = wte[token] + wpe[t] ---- */
void weft_gpt_embed(uint64_t sequences, uint64_t tokens, uint64_t channels, uint64_t token_bytes,
                    const void *ids, const float *wte, const float *wpe, float *x);
void weft_gpt_embed_backward_weight(uint64_t sequences, uint64_t tokens, uint64_t channels,
                                    uint64_t token_bytes, const void *ids, const float *dx,
                                    float *dwte, float *dwpe);

/* ---- Softmax and cross entropy ---- */
/* Sum over rows of -log softmax(logits[r])[targets[r]], in double. If dlogits is not
 * NULL it gets (=) scale * (softmax - onehot); it may be logits. */
double weft_gpt_cross_entropy(uint64_t rows, uint64_t vocabulary, const float *logits,
                              const void *targets, float scale, float *dlogits);

/* ---- Optimizer ---- */
/* Sum of squares, in double, in a fixed order. */
double weft_gpt_square_sum(uint64_t count, const float *x);
void weft_gpt_scale(uint64_t count, float factor, float *x);

struct weft_gpt_adamw {
  float rate, beta1, beta2, epsilon, decay;
  float correction1, correction2; /* 1 - beta^step */
  float grad_scale;               /* clipping: gradients times this */
};
/* PyTorch's AdamW: w -= rate * decay * w; then the step with m and v. */
void weft_gpt_adamw_update(const struct weft_gpt_adamw *adamw, uint64_t count,
                           const float *gradient, float *w, float *m, float *v);

/* How many threads a matrix product may use, for all of the process. */
void weft_gpt_set_blas_threads(int count);
/* OpenBLAS chooses its kernels by a list of processors when it is loaded. On a processor newer
 * than the list it takes those for SSE3, which are five times slower. Then this is the value that
 * OPENBLAS_CORETYPE should have in the environment of the process; NULL: nothing to change. */
const char *weft_gpt_blas_core_wanted(void);

#endif
