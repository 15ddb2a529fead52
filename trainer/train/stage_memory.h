/* The memory of a stage's parameters, unsharded or sharded over replicas.
 *
 * Each layer's arrays are padded to a multiple of 16 floats for each replica and cut into
 * as many equal slices; replica d has slice d. A slice depends on the layer and the number of
 * replicas alone, never on the layer's stage, so sums over slices are the same for every split.
 *
 *   mode    parameters              gradients                 AdamW's moments
 *   none    unsharded               unsharded                 unsharded
 *   grads   unsharded               own slices, reduced;      own slices
 *   full    own slices; unsharded   unsharded from the first  own slices
 *           from UNSHARD to         backward to REDUCE_GRAD
 *           RESHARD
 *
 * What is unsharded for a time only is in a buffer of the rank's pools. */
#ifndef GPT_STAGE_MEMORY_H
#define GPT_STAGE_MEMORY_H

#include <weft/support.h>

#include "trainer/model/compute.h"

enum weft_gpt_shard { WEFT_GPT_SHARD_NONE, WEFT_GPT_SHARD_GRADS, WEFT_GPT_SHARD_FULL };

/* One replica's view. With one replica the mode is "none". */
struct weft_gpt_sharding {
  enum weft_gpt_shard mode;
  uint32_t replicas, replica;
};

/* One layer's arrays, each weft_gpt_layer_floats() long; NULL while it is sharded. */
struct weft_gpt_layer_state {
  uint32_t layer;
  uint64_t floats;
  float *parameters, *gradients, *first_moment, *second_moment;
};

/* What a rank keeps of a layer from step to step: [begin, begin + floats) of each array.
 * The slice is that of this replica; both may reach into the padding. */
struct weft_gpt_layer_shard {
  uint64_t begin, floats;
  uint64_t slice_begin, slice_floats;
  float *parameters, *gradients, *first_moment, *second_moment;
  void *rounded; /* the parameters as layers compute with them, bf16; NULL: as they are */
};

/* ---- Pools: buffers for unsharded stages, which a rank's stages share ---- */

struct weft_gpt_pool {
  const struct weft_allocator *allocator;
  struct weft_device *device; /* NULL: host */
  uint64_t floats;            /* of a buffer: the largest stage's */
  float **buffers; /* [capacity]; the first `allocated` exist, the first `acquired` are in use */
  uint32_t capacity, allocated, acquired;
  uint64_t acquired_bytes; /* that the users of the buffers need */
};

/* A buffer is allocated when it is first needed; on a device, where that would be in a step, the
 * first `reserve` are allocated here. */
enum weft_status weft_gpt_pool_init(struct weft_gpt_pool *pool,
                                    const struct weft_allocator *allocator,
                                    struct weft_device *device, uint64_t floats, uint32_t capacity,
                                    uint32_t reserve, struct weft_error *error);
/* Also what is in use. */
void weft_gpt_pool_finish(struct weft_gpt_pool *pool);

/* The pools of a rank, and how much they were used: bytes of shards, and the most of shards and
 * acquired buffers at one time. */
struct weft_gpt_rank_memory {
  struct weft_gpt_pool parameters, gradients;
  uint64_t resident_parameter_bytes, resident_gradient_bytes;
  uint64_t peak_bytes; /* parameters and gradients */
};

/* ---- A stage ---- */

struct weft_gpt_stage_memory {
  const struct weft_allocator *allocator;
  struct weft_gpt_compute *compute; /* borrowed; whose device has the arrays */
  struct weft_gpt_sharding sharding;
  struct weft_gpt_rank_memory *rank; /* borrowed */
  uint32_t layer_count;
  uint64_t unsharded_floats;           /* of all layers, padded */
  struct weft_arena tables;            /* of these three */
  uint64_t *offsets;                   /* [layer_count + 1] of layers in an unsharded buffer */
  struct weft_gpt_layer_state *layers; /* [layer_count] */
  struct weft_gpt_layer_shard *shards; /* [layer_count] */
  float *blocks[4];            /* parameters, gradients, moments: what `shards` point into */
  uint16_t *rounded;           /* likewise; NULL: none */
  float *unsharded_parameters; /* from the pool; NULL: not acquired */
  float *unsharded_gradients;
};

/* Floats of a layer's slice, and of the padded parts of a stage. */
uint64_t weft_gpt_slice_floats(const struct weft_gpt_config *config, uint32_t layer,
                               uint32_t replicas);
uint64_t weft_gpt_unsharded_floats(const struct weft_gpt_config *config, uint32_t first_layer,
                                   uint32_t layer_count, uint32_t replicas);

/* Parameters are initialised; all else is 0. */
enum weft_status weft_gpt_stage_memory_init(
    struct weft_gpt_stage_memory *memory, const struct weft_allocator *allocator,
    struct weft_gpt_compute *compute, const struct weft_gpt_config *config, uint32_t first_layer,
    uint32_t layer_count, const struct weft_gpt_sharding *sharding,
    struct weft_gpt_rank_memory *rank, struct weft_error *error);
void weft_gpt_stage_memory_finish(struct weft_gpt_stage_memory *memory);

/* Unsharded parameters or gradients in a buffer of the pool, unless the stage has them already;
 * new gradients are 0. Where layers compute with rounded parameters, those are what is acquired. */
enum weft_status weft_gpt_stage_memory_acquire_parameters(struct weft_gpt_stage_memory *memory,
                                                          struct weft_error *error);
enum weft_status weft_gpt_stage_memory_acquire_gradients(struct weft_gpt_stage_memory *memory,
                                                         struct weft_stream *stream,
                                                         struct weft_error *error);
void weft_gpt_stage_memory_release_parameters(struct weft_gpt_stage_memory *memory);
void weft_gpt_stage_memory_release_gradients(struct weft_gpt_stage_memory *memory);

uint64_t weft_gpt_stage_memory_moment_bytes(const struct weft_gpt_stage_memory *memory);

/* Copies unsharded arrays of the host of layer k (weights and moments, those that are not NULL) to what this
 * rank keeps of it. */
enum weft_status weft_gpt_stage_memory_store(struct weft_gpt_stage_memory *memory, uint32_t k,
                                             const struct weft_gpt_layer_state *unsharded,
                                             struct weft_error *error);

#endif
