/* Where a rank computes: on the host (compute_host.c) or on a GPU (trainer/cuda/compute_cuda.c). The
 * trainer calls these functions for everything that touches activations, parameters, gradients
 * or moments, so that there is one training loop for both.
 *
 * Parameters, gradients and moments are fp32 on both. The host computes with the parameters
 * themselves and passes on fp32; a GPU computes with copies in bf16 and passes on bf16. */
#ifndef GPT_COMPUTE_H
#define GPT_COMPUTE_H

#include "trainer/kernels/kernels.h"
#include "trainer/model/model.h"

struct weft_gpt_compute;

/* The arguments of a pass of a layer. Activations are [B, T, C] of ops->dtype. A layer does not
 * change x and dy, and does not save them: they stay until its last backward. */
struct weft_gpt_pass_call {
  const struct weft_gpt_config *config;
  uint32_t layer;
  uint64_t sequences, tokens; /* B, T */
  const void *parameters;     /* fp32, or the rounded ones */
  void *saved;                /* saved_bytes; from F to the last backward */
  void *scratch;              /* scratch_bytes; free between calls */
  struct weft_stream *stream; /* NULL on the host */

  const void *x; /* of the embedding: tokens, weft_gpt_token_dtype() */
  void *y;       /* of the head: logits [B, T, V] if not NULL, on the host only */
  /* Forward of a head: the mean loss of B T tokens becomes *head_loss, if not NULL, and times the
   * head's weight it is added to *loss. NULL targets: none. */
  const void *targets;
  double *loss, *head_loss;
  bool training;

  const void *dy;   /* not of the head */
  void *dx;         /* backward_input writes it; not of the embedding */
  float *gradients; /* backward_weight adds to them */
};

/* An array of floats. */
struct weft_gpt_floats {
  const float *data;
  uint64_t count;
};

/* What the optimizer changes of a layer: floats [begin, begin + count) of its arrays. */
struct weft_gpt_update {
  uint32_t layer;
  uint64_t begin, count;
  float *parameters, *first_moment, *second_moment;
  const float *gradients;
  void *rounded; /* the same parameters in bf16, where ops->rounds */
};

struct weft_gpt_compute_ops {
  enum weft_dtype dtype;
  bool rounds;   /* layers compute with copies of the parameters in bf16 */
  bool enqueues; /* what has a stream is enqueued there */

  uint64_t (*saved_bytes)(const struct weft_gpt_config *config, uint32_t layer, uint64_t sequences,
                          uint64_t tokens);
  uint64_t (*scratch_bytes)(const struct weft_gpt_config *config, uint32_t layer,
                            uint64_t sequences, uint64_t tokens);
  enum weft_status (*forward)(struct weft_gpt_compute *compute,
                              const struct weft_gpt_pass_call *call, struct weft_error *error);
  enum weft_status (*backward_input)(struct weft_gpt_compute *compute,
                                     const struct weft_gpt_pass_call *call,
                                     struct weft_error *error);
  enum weft_status (*backward_weight)(struct weft_gpt_compute *compute,
                                      const struct weft_gpt_pass_call *call,
                                      struct weft_error *error);
  /* x *= factor. */
  enum weft_status (*scale)(struct weft_gpt_compute *compute, uint64_t count, float factor,
                            float *x, struct weft_stream *stream, struct weft_error *error);
  /* Both become a + b. */
  enum weft_status (*tie)(struct weft_gpt_compute *compute, uint64_t count, float *a, float *b,
                          struct weft_stream *stream, struct weft_error *error);
  /* Activations, or their gradients, of ops->dtype: c = a + b, rounded once. A multiple of 8. */
  enum weft_status (*sum)(struct weft_gpt_compute *compute, uint64_t count, const void *a,
                          const void *b, void *c, struct weft_stream *stream,
                          struct weft_error *error);

  /* Between steps; complete at return. */
  enum weft_status (*square_sums)(struct weft_gpt_compute *compute, uint32_t count,
                                  const struct weft_gpt_floats *arrays, double *sums,
                                  struct weft_error *error);
  /* AdamW; NULL where the end of a step has it, below. */
  enum weft_status (*update)(struct weft_gpt_compute *compute, const struct weft_gpt_config *config,
                             const struct weft_gpt_adamw *adamw, uint32_t count,
                             const struct weft_gpt_update *updates, struct weft_error *error);
  /* Rounds parameters that somebody else has written; NULL unless it rounds. */
  enum weft_status (*round)(struct weft_gpt_compute *compute, uint64_t count,
                            const float *parameters, void *rounded, struct weft_error *error);

  /* ---- The end of a step, where work is enqueued; else NULL. Without the host: it sets what
   * differs by step before it begins, and reads the norm when it is over. ---- */

  /* grad_scale is found there: gradients are clipped to a norm of `clip` (0: not). Those that are
   * not finite count if `always`; else such a step changes nothing. */
  void (*set_step)(struct weft_gpt_compute *compute, const struct weft_gpt_adamw *adamw,
                   double clip, bool always);
  /* Of neighbouring layers, into memory of the host. */
  enum weft_status (*sum_squares)(struct weft_gpt_compute *compute, uint32_t first_layer,
                                  uint32_t count, const struct weft_gpt_floats *arrays,
                                  double *sums, struct weft_stream *stream,
                                  struct weft_error *error);
  enum weft_status (*sum_losses)(struct weft_gpt_compute *compute, uint32_t count,
                                 const double *losses, double *sum, struct weft_stream *stream,
                                 struct weft_error *error);
  /* The norm and the factor that clips, of the sums of all replicas' layers, [replicas][layers],
   * and of the losses of their heads, [replicas][heads]. */
  enum weft_status (*clip)(struct weft_gpt_compute *compute, const double *sums, uint32_t layers,
                           uint32_t heads, uint32_t replicas, struct weft_stream *stream,
                           struct weft_error *error);
  enum weft_status (*update_layer)(struct weft_gpt_compute *compute,
                                   const struct weft_gpt_config *config,
                                   const struct weft_gpt_update *update, struct weft_stream *stream,
                                   struct weft_error *error);
  double (*norm)(const struct weft_gpt_compute *compute);
  /* c = a + b, which may be a. */
  enum weft_status (*add)(struct weft_gpt_compute *compute, uint64_t count, const float *a,
                          const float *b, float *c, struct weft_stream *stream,
                          struct weft_error *error);
  enum weft_status (*enqueue_round)(struct weft_gpt_compute *compute, uint64_t count,
                                    const float *parameters, void *rounded,
                                    struct weft_stream *stream, struct weft_error *error);
};

struct weft_gpt_compute {
  const struct weft_gpt_compute_ops *ops;
  struct weft_device *device; /* where all arrays are; NULL: host */
  const char *attention;      /* the name of its kernels on a GPU, "wgmma" or "mma"; NULL: host */
};

struct weft_gpt_compute *weft_gpt_compute_host(void);

/* A token of the vocabulary: a byte, or 16 bits (unsigned). */
static inline enum weft_dtype weft_gpt_token_dtype(const struct weft_gpt_config *config) {
  return weft_gpt_token_bytes(config->vocabulary) == 1 ? WEFT_U8 : WEFT_I16;
}

#endif
