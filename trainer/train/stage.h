/* A range of layers as a stage of the pipeline (weft/run.h). */
#ifndef GPT_STAGE_H
#define GPT_STAGE_H

#include <weft/run.h>

#include "trainer/train/stage_memory.h"
#include "trainer/train/stage_wiring.h"

/* What several stages of a rank share. */
struct weft_gpt_stage_context {
  const struct weft_allocator *allocator;
  const struct weft_gpt_config *config;
  struct weft_gpt_compute *compute;
  uint64_t sequences_max; /* of a microbatch */
  uint32_t microbatches;
  struct weft_gpt_stage_split split; /* of all layers */
  struct weft_gpt_sharding sharding;
  struct weft_group *group; /* of the replicas of this rank; NULL: there is one, or below */
  bool group_enqueues;      /* its collectives on the GPU are enqueued; else they are on the host */
  bool reduces_at_end; /* gradients: after the pipeline's step, not by REDUCE_GRAD and TIE_GRAD */
  /* Where work is enqueued, without a group: the same stage of another replica, whose memory is in
   * reach. */
  const struct weft_gpt_stage *(*peer)(void *peer_context, const struct weft_gpt_stage *stage,
                                       uint32_t replica);
  void *peer_context;
  struct weft_gpt_rank_memory *memory;
  struct weft_gpt_tie *tie; /* NULL: no tied weights on this rank */
  /* Called in every forward of training, whose time it adds to; NULL: not. */
  void (*before_forward)(void *context, uint32_t stage, uint64_t step);
  void *before_forward_context;
};

/* Times of a layer's calls in training: F, I and W. */
struct weft_gpt_layer_times {
  int64_t total_ns[WEFT_OP_COUNT];
  uint64_t count[WEFT_OP_COUNT];
};

struct weft_gpt_stage {
  struct weft_stage stage;                      /* first */
  const struct weft_gpt_stage_context *context; /* borrowed */
  const struct weft_gpt_config *config;
  uint32_t first_layer, layer_count;
  struct weft_arena arena;
  struct weft_gpt_wiring wiring;
  struct weft_gpt_stage_memory memory;
  struct weft_gpt_layer_state *layers; /* [layer_count], memory's */
  struct weft_gpt_layer_times *times;  /* [layer_count]; the trainer clears them after a warm-up */
  void *scratch;
  uint64_t scratch_bytes;
  const double *losses; /* of the head: [microbatches] of the last forward's step */
  double *head_losses;  /* likewise of each of two heads, [heads][microbatches], without weights;
                           memory of the host that the GPU accesses. NULL: there is one head */
  struct weft_collective *collectives; /* [layer_count] in flight */
  uint32_t collectives_done;
  /* On the host: rounded parameters, as they are unsharded between processes; NULL: they are not,
   * or are on the GPU. */
  uint16_t *gathered;
  bool reduces_later; /* REDUCE_GRAD waits for the tied weights of this rank's other stage */
};

/* Weights that the first and the last stage share, as one rank sees them. Both copies get
 * the sum of both gradients, the embedding's first. */
struct weft_gpt_tie {
  struct weft_gpt_stage *first, *last; /* on this rank; NULL: elsewhere */
  struct weft_group *group;            /* of the two ranks; NULL: both are here */
  struct weft_device_event *events[2]; /* where work is enqueued: of the first and the last stage */
  struct weft_collective collective;
  bool first_ready, last_ready; /* its gradients are complete, in this step */
};

/* Parameters are initialised. */
enum weft_status weft_gpt_stage_create(const struct weft_gpt_stage_context *context,
                                       uint32_t first_layer, uint32_t layer_count,
                                       struct weft_gpt_stage **out, struct weft_error *error);
void weft_gpt_stage_destroy(struct weft_gpt_stage *stage);

uint64_t weft_gpt_stage_scratch_bytes(const struct weft_gpt_stage *stage);

/* UNSHARD, RESHARD, REDUCE_GRAD, TIE_GRAD, for the stage's ops (stage_collective.c). */
enum weft_status weft_gpt_stage_unshard(struct weft_stage *base, struct weft_stage_call *call,
                                        struct weft_error *error);
enum weft_status weft_gpt_stage_reshard(struct weft_stage *base, struct weft_stage_call *call,
                                        struct weft_error *error);
enum weft_status weft_gpt_stage_reduce_grad(struct weft_stage *base, struct weft_stage_call *call,
                                            struct weft_error *error);
enum weft_status weft_gpt_stage_tie_grad(struct weft_stage *base, struct weft_stage_call *call,
                                         struct weft_error *error);

/* The range of the tied weight, wte, in the embedding or in the head. */
void weft_gpt_tied_range(const struct weft_gpt_config *config, bool head, uint64_t *offset,
                         uint64_t *count);
/* Its gradient, in the first or in the last stage. */
float *weft_gpt_tied_gradient(const struct weft_gpt_stage *stage, bool head, uint64_t *count);

/* A boundary between stages: so many outputs of layers [B, T, C], with gradients; each a tensor, or
 * several (trainer/model/layer_graph.h). That of a loss, its outputs, has none. */
struct weft_boundary weft_gpt_boundary(const struct weft_gpt_config *config, enum weft_dtype dtype,
                                       uint64_t sequences_max, uint32_t outputs);

#endif
