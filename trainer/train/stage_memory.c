/* Parameters, gradients and moments of a stage, and the pools; see stage_memory.h. */
#include "trainer/train/stage_memory.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/model/aligned_memory.h"

enum { ALIGN_FLOATS = WEFT_GPT_ALIGNMENT / sizeof(float) };
enum { PARAMETERS, GRADIENTS, FIRST_MOMENT, SECOND_MOMENT, BLOCKS };

static enum weft_status fail_floats(uint64_t floats, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_MEMORY,
                   "a smaller model needs less, and so do more ranks, or sharded replicas",
                   "no memory for %" PRIu64 " bytes", floats * sizeof(float));
}

/* ---- Pools ---- */

static enum weft_status add_buffer(struct weft_gpt_pool *pool, struct weft_error *error) {
  const uint64_t bytes = pool->floats * sizeof(float);
  float *buffer = pool->device != NULL
                      ? weft_device_allocate(pool->device, pool->allocator, bytes)
                      : weft_gpt_allocate(pool->allocator, pool->floats, sizeof(float));
  if (buffer == NULL) {
    return fail_floats(pool->floats, error);
  }
  pool->buffers[pool->allocated++] = buffer;
  return WEFT_OK;
}

enum weft_status weft_gpt_pool_init(struct weft_gpt_pool *pool,
                                    const struct weft_allocator *allocator,
                                    struct weft_device *device, uint64_t floats, uint32_t capacity,
                                    uint32_t reserve, struct weft_error *error) {
  assert(capacity > 0 && reserve <= capacity);
  *pool = (struct weft_gpt_pool){
      .allocator = allocator, .device = device, .floats = floats, .capacity = capacity};
  pool->buffers = weft_gpt_allocate(allocator, capacity, sizeof(float *));
  if (pool->buffers == NULL) {
    return weft_fail_memory(error, capacity * sizeof(float *));
  }
  while (pool->allocated < reserve) {
    WEFT_TRY(add_buffer(pool, error));
  }
  return WEFT_OK;
}

void weft_gpt_pool_finish(struct weft_gpt_pool *pool) {
  for (uint32_t k = 0; k < pool->allocated; k++) {
    if (pool->device != NULL) {
      weft_device_free(pool->device, pool->allocator, pool->buffers[k],
                       pool->floats * sizeof(float));
    } else {
      weft_gpt_free(pool->allocator, pool->buffers[k]);
    }
  }
  weft_gpt_free(pool->allocator, pool->buffers);
  *pool = (struct weft_gpt_pool){.allocator = NULL};
}

static enum weft_status pool_acquire(struct weft_gpt_pool *pool, uint64_t floats, float **out,
                                     struct weft_error *error) {
  assert(pool->acquired < pool->capacity); /* a stage has at most one */
  if (pool->acquired == pool->allocated) {
    WEFT_TRY(add_buffer(pool, error));
  }
  *out = pool->buffers[pool->acquired++];
  pool->acquired_bytes += floats * sizeof(float);
  return WEFT_OK;
}

/* Those in use stay in front. */
static void pool_release(struct weft_gpt_pool *pool, float *buffer, uint64_t floats) {
  assert(pool->acquired > 0);
  uint32_t k = 0;
  while (pool->buffers[k] != buffer) {
    k++;
  }
  pool->acquired--;
  pool->buffers[k] = pool->buffers[pool->acquired];
  pool->buffers[pool->acquired] = buffer;
  pool->acquired_bytes -= floats * sizeof(float);
}

static void record_peak(struct weft_gpt_rank_memory *memory) {
  const uint64_t bytes = memory->resident_parameter_bytes + memory->resident_gradient_bytes +
                         memory->parameters.acquired_bytes + memory->gradients.acquired_bytes;
  memory->peak_bytes = bytes > memory->peak_bytes ? bytes : memory->peak_bytes;
}

/* ---- Sizes ---- */

uint64_t weft_gpt_slice_floats(const struct weft_gpt_config *config, uint32_t layer,
                               uint32_t replicas) {
  assert(replicas > 0);
  const uint64_t unit = (uint64_t)replicas * ALIGN_FLOATS;
  return (weft_gpt_layer_floats(config, layer) + unit - 1) / unit * ALIGN_FLOATS;
}

uint64_t weft_gpt_unsharded_floats(const struct weft_gpt_config *config, uint32_t first_layer,
                                   uint32_t layer_count, uint32_t replicas) {
  uint64_t floats = 0;
  for (uint32_t k = 0; k < layer_count; k++) {
    floats += replicas * weft_gpt_slice_floats(config, first_layer + k, replicas);
  }
  return floats;
}

/* Whether a block has all slices or this replica's only. */
static bool is_unsharded(const struct weft_gpt_stage_memory *memory, int block) {
  return memory->sharding.mode == WEFT_GPT_SHARD_NONE ||
         (memory->sharding.mode == WEFT_GPT_SHARD_GRADS && block == PARAMETERS);
}

static uint64_t block_floats(const struct weft_gpt_stage_memory *memory, int block) {
  return is_unsharded(memory, block) ? memory->unsharded_floats
                                     : memory->unsharded_floats / memory->sharding.replicas;
}

uint64_t weft_gpt_stage_memory_moment_bytes(const struct weft_gpt_stage_memory *memory) {
  return 2 * block_floats(memory, FIRST_MOMENT) * sizeof(float);
}

/* ---- Where everything is ---- */

/* In a block: at its place, or after the slices of the layers before it. */
static float *array_at(const struct weft_gpt_stage_memory *memory, int block, uint32_t k) {
  const uint64_t offset = memory->offsets[k];
  return memory->blocks[block] +
         (is_unsharded(memory, block) ? offset : offset / memory->sharding.replicas);
}

static void place_unsharded(struct weft_gpt_stage_memory *memory, uint32_t k) {
  struct weft_gpt_layer_state *layer = &memory->layers[k];
  float **arrays[BLOCKS] = {&layer->parameters, &layer->gradients, &layer->first_moment,
                            &layer->second_moment};
  for (int block = 0; block < BLOCKS; block++) {
    *arrays[block] = is_unsharded(memory, block) ? array_at(memory, block, k) : NULL;
  }
}

static void place_shard(struct weft_gpt_stage_memory *memory, uint32_t k) {
  struct weft_gpt_layer_shard *shard = &memory->shards[k];
  float **arrays[BLOCKS] = {&shard->parameters, &shard->gradients, &shard->first_moment,
                            &shard->second_moment};
  const uint32_t replicas = memory->sharding.replicas;
  const uint64_t padded = memory->offsets[k + 1] - memory->offsets[k];
  const bool all = memory->sharding.mode == WEFT_GPT_SHARD_NONE;
  shard->slice_floats = padded / replicas;
  shard->slice_begin = memory->sharding.replica * shard->slice_floats;
  shard->begin = all ? 0 : shard->slice_begin;
  shard->floats = all ? padded : shard->slice_floats;
  for (int block = 0; block < BLOCKS; block++) {
    const uint64_t into = is_unsharded(memory, block) ? shard->begin : 0;
    *arrays[block] = array_at(memory, block, k) + into;
  }
  shard->rounded = memory->rounded != NULL ? memory->rounded + memory->offsets[k] : NULL;
}

/* ---- Init and finish ---- */

static enum weft_status allocate_tables(struct weft_gpt_stage_memory *memory,
                                        struct weft_error *error) {
  struct weft_arena *arena = &memory->tables;
  memory->offsets = weft_arena_allocate(arena, memory->layer_count + 1u, sizeof *memory->offsets);
  memory->layers = weft_arena_allocate(arena, memory->layer_count, sizeof *memory->layers);
  memory->shards = weft_arena_allocate(arena, memory->layer_count, sizeof *memory->shards);
  return weft_arena_status(arena, error);
}

static enum weft_status allocate_blocks(struct weft_gpt_stage_memory *memory,
                                        struct weft_error *error) {
  for (int block = 0; block < BLOCKS; block++) {
    const uint64_t floats = block_floats(memory, block);
    memory->blocks[block] =
        weft_device_allocate(memory->compute->device, memory->allocator, floats * sizeof(float));
    if (memory->blocks[block] == NULL) {
      return fail_floats(floats, error);
    }
  }
  if (memory->compute->ops->rounds && memory->sharding.mode != WEFT_GPT_SHARD_FULL) {
    memory->rounded = weft_device_allocate(memory->compute->device, memory->allocator,
                                           memory->unsharded_floats * sizeof *memory->rounded);
    if (memory->rounded == NULL) {
      return fail_floats(memory->unsharded_floats / 2, error);
    }
    memory->rank->resident_parameter_bytes += memory->unsharded_floats * sizeof *memory->rounded;
  }
  memory->rank->resident_parameter_bytes += block_floats(memory, PARAMETERS) * sizeof(float);
  memory->rank->resident_gradient_bytes += block_floats(memory, GRADIENTS) * sizeof(float);
  record_peak(memory->rank);
  return WEFT_OK;
}

/* A sharded layer, or one of a device, is initialised in a temporary buffer. */
static enum weft_status initialize_layer(struct weft_gpt_stage_memory *memory,
                                         const struct weft_gpt_config *config, uint32_t k,
                                         struct weft_error *error) {
  struct weft_gpt_layer_state *layer = &memory->layers[k];
  if (layer->parameters != NULL && weft_device_is_host(memory->compute->device)) {
    weft_gpt_layer_initialize(config, layer->layer, layer->parameters);
    return WEFT_OK;
  }
  const uint64_t padded = memory->offsets[k + 1] - memory->offsets[k];
  float *floats = weft_gpt_allocate(memory->allocator, padded, sizeof *floats);
  if (floats == NULL) {
    return fail_floats(padded, error);
  }
  weft_gpt_layer_initialize(config, layer->layer, floats);
  const enum weft_status status = weft_gpt_stage_memory_store(
      memory, k, &(struct weft_gpt_layer_state){.parameters = floats}, error);
  weft_gpt_free(memory->allocator, floats);
  return status;
}

enum weft_status weft_gpt_stage_memory_init(
    struct weft_gpt_stage_memory *memory, const struct weft_allocator *allocator,
    struct weft_gpt_compute *compute, const struct weft_gpt_config *config, uint32_t first_layer,
    uint32_t layer_count, const struct weft_gpt_sharding *sharding,
    struct weft_gpt_rank_memory *rank, struct weft_error *error) {
  assert(layer_count > 0 && sharding->replica < sharding->replicas);
  const uint32_t replicas = sharding->replicas;
  *memory = (struct weft_gpt_stage_memory){.allocator = allocator,
                                           .compute = compute,
                                           .sharding = *sharding,
                                           .rank = rank,
                                           .layer_count = layer_count,
                                           .tables = {.allocator = allocator}};
  WEFT_TRY(allocate_tables(memory, error));
  memory->unsharded_floats = weft_gpt_unsharded_floats(config, first_layer, layer_count, replicas);
  for (uint32_t k = 0; k < layer_count; k++) {
    const uint64_t padded = replicas * weft_gpt_slice_floats(config, first_layer + k, replicas);
    memory->offsets[k + 1] = memory->offsets[k] + padded;
    memory->layers[k].layer = first_layer + k;
    memory->layers[k].floats = weft_gpt_layer_floats(config, first_layer + k);
  }
  WEFT_TRY(allocate_blocks(memory, error));
  for (uint32_t k = 0; k < layer_count; k++) {
    place_unsharded(memory, k);
    place_shard(memory, k);
    WEFT_TRY(initialize_layer(memory, config, k, error));
  }
  return WEFT_OK;
}

void weft_gpt_stage_memory_finish(struct weft_gpt_stage_memory *memory) {
  for (int block = 0; block < BLOCKS; block++) {
    if (memory->blocks[block] != NULL) {
      weft_device_free(memory->compute->device, memory->allocator, memory->blocks[block],
                       block_floats(memory, block) * sizeof(float));
    }
  }
  if (memory->rounded != NULL) {
    weft_device_free(memory->compute->device, memory->allocator, memory->rounded,
                     memory->unsharded_floats * sizeof *memory->rounded);
  }
  weft_arena_finish(&memory->tables);
}

/* ---- Unsharded for a time ---- */

enum weft_status weft_gpt_stage_memory_acquire_parameters(struct weft_gpt_stage_memory *memory,
                                                          struct weft_error *error) {
  if (is_unsharded(memory, PARAMETERS) || memory->unsharded_parameters != NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(pool_acquire(&memory->rank->parameters, memory->unsharded_floats,
                        &memory->unsharded_parameters, error));
  record_peak(memory->rank);
  for (uint32_t k = 0; k < memory->layer_count; k++) {
    if (memory->compute->ops->rounds) {
      memory->shards[k].rounded = (uint16_t *)memory->unsharded_parameters + memory->offsets[k];
    } else {
      memory->layers[k].parameters = memory->unsharded_parameters + memory->offsets[k];
    }
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_stage_memory_acquire_gradients(struct weft_gpt_stage_memory *memory,
                                                         struct weft_stream *stream,
                                                         struct weft_error *error) {
  if (is_unsharded(memory, GRADIENTS) || memory->unsharded_gradients != NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(pool_acquire(&memory->rank->gradients, memory->unsharded_floats,
                        &memory->unsharded_gradients, error));
  record_peak(memory->rank);
  assert(memory->unsharded_gradients != NULL);
  WEFT_TRY(weft_device_fill(memory->compute->device, memory->unsharded_gradients, 0,
                            memory->unsharded_floats * sizeof(float), stream, error));
  for (uint32_t k = 0; k < memory->layer_count; k++) {
    memory->layers[k].gradients = memory->unsharded_gradients + memory->offsets[k];
  }
  return WEFT_OK;
}

void weft_gpt_stage_memory_release_parameters(struct weft_gpt_stage_memory *memory) {
  if (memory->unsharded_parameters == NULL) {
    return;
  }
  pool_release(&memory->rank->parameters, memory->unsharded_parameters, memory->unsharded_floats);
  memory->unsharded_parameters = NULL;
  for (uint32_t k = 0; k < memory->layer_count; k++) {
    memory->layers[k].parameters = NULL;
    memory->shards[k].rounded = NULL;
  }
}

void weft_gpt_stage_memory_release_gradients(struct weft_gpt_stage_memory *memory) {
  if (memory->unsharded_gradients == NULL) {
    return;
  }
  pool_release(&memory->rank->gradients, memory->unsharded_gradients, memory->unsharded_floats);
  memory->unsharded_gradients = NULL;
  for (uint32_t k = 0; k < memory->layer_count; k++) {
    memory->layers[k].gradients = NULL;
  }
}

/* ---- Storing ---- */

static enum weft_status copy_floats(const struct weft_gpt_stage_memory *memory, float *to,
                                    const float *from, uint64_t count, struct weft_error *error) {
  return weft_copy(&(struct weft_copy){.to = to,
                                       .to_device = memory->compute->device,
                                       .from = from,
                                       .row_bytes = count * sizeof *to,
                                       .rows = 1},
                   NULL, error);
}

/* Beyond the layer's floats there is padding, which is 0. */
static enum weft_status store_slice(const struct weft_gpt_stage_memory *memory, uint32_t k,
                                    const float *unsharded, float *to, struct weft_error *error) {
  const struct weft_gpt_layer_shard *shard = &memory->shards[k];
  const uint64_t floats = memory->layers[k].floats;
  const uint64_t end =
      shard->begin + shard->floats < floats ? shard->begin + shard->floats : floats;
  return unsharded != NULL && end > shard->begin
             ? copy_floats(memory, to, unsharded + shard->begin, end - shard->begin, error)
             : WEFT_OK;
}

enum weft_status weft_gpt_stage_memory_store(struct weft_gpt_stage_memory *memory, uint32_t k,
                                             const struct weft_gpt_layer_state *unsharded,
                                             struct weft_error *error) {
  assert(k < memory->layer_count);
  struct weft_gpt_compute *compute = memory->compute;
  const struct weft_gpt_layer_shard *shard = &memory->shards[k];
  const uint64_t floats = memory->layers[k].floats;
  float *parameters = memory->layers[k].parameters;
  if (parameters != NULL && unsharded->parameters != NULL) {
    WEFT_TRY(copy_floats(memory, parameters, unsharded->parameters, floats, error));
  } else {
    WEFT_TRY(store_slice(memory, k, unsharded->parameters, shard->parameters, error));
  }
  if (memory->rounded != NULL && unsharded->parameters != NULL) {
    WEFT_TRY(compute->ops->round(compute, floats, parameters, shard->rounded, error));
  }
  WEFT_TRY(store_slice(memory, k, unsharded->first_moment, shard->first_moment, error));
  return store_slice(memory, k, unsharded->second_moment, shard->second_moment, error);
}
