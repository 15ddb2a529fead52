/* Parameters, gradients and moments of a stage, and buffers for what is whole for a while
 * only; see stage_memory.h. */
#include "gpt/train/stage_memory.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/model/aligned_memory.h"

enum { ALIGN_FLOATS = WEFT_GPT_ALIGNMENT / sizeof(float) };
enum { PARAMETERS, GRADIENTS, FIRST_MOMENT, SECOND_MOMENT, BLOCKS };

static enum weft_status fail_floats(uint64_t floats, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_MEMORY,
                   "a smaller model needs less, and so do more ranks, or sharded replicas",
                   "no memory for %" PRIu64 " bytes", floats * sizeof(float));
}

/* ---- Pools ---- */

enum weft_status weft_gpt_pool_init(struct weft_gpt_pool *pool,
                                    const struct weft_allocator *allocator, uint64_t floats,
                                    uint32_t capacity, struct weft_error *error) {
  *pool = (struct weft_gpt_pool){.allocator = allocator, .floats = floats, .capacity = capacity};
  pool->buffers = weft_gpt_allocate(allocator, capacity, sizeof(float *));
  return pool->buffers != NULL ? WEFT_OK : weft_fail_memory(error, capacity * sizeof(float *));
}

void weft_gpt_pool_finish(struct weft_gpt_pool *pool) {
  for (uint32_t k = 0; k < pool->made; k++) {
    weft_gpt_free(pool->allocator, pool->buffers[k]);
  }
  weft_gpt_free(pool->allocator, pool->buffers);
  *pool = (struct weft_gpt_pool){.allocator = NULL};
}

enum weft_status weft_gpt_pool_take(struct weft_gpt_pool *pool, uint64_t floats, float **out,
                                    struct weft_error *error) {
  assert(pool->taken < pool->capacity); /* a stage takes one at a time */
  if (pool->taken == pool->made) {
    float *buffer = weft_gpt_allocate(pool->allocator, pool->floats, sizeof(float));
    if (buffer == NULL) {
      return fail_floats(pool->floats, error);
    }
    pool->buffers[pool->made++] = buffer;
  }
  *out = pool->buffers[pool->taken++];
  pool->taken_bytes += floats * sizeof(float);
  return WEFT_OK;
}

/* Those in use stay in front. */
void weft_gpt_pool_give_back(struct weft_gpt_pool *pool, float *buffer, uint64_t floats) {
  uint32_t k = 0;
  while (pool->buffers[k] != buffer) {
    k++;
  }
  pool->taken--;
  pool->buffers[k] = pool->buffers[pool->taken];
  pool->buffers[pool->taken] = buffer;
  pool->taken_bytes -= floats * sizeof(float);
}

void weft_gpt_rank_memory_note(struct weft_gpt_rank_memory *memory) {
  const uint64_t bytes = memory->kept_parameter_bytes + memory->kept_gradient_bytes +
                         memory->parameters.taken_bytes + memory->gradients.taken_bytes;
  memory->peak_bytes = bytes > memory->peak_bytes ? bytes : memory->peak_bytes;
}

/* ---- Sizes ---- */

uint64_t weft_gpt_slice_floats(const struct weft_gpt_config *config, uint32_t part,
                               uint32_t replicas) {
  const uint64_t unit = (uint64_t)replicas * ALIGN_FLOATS;
  return (weft_gpt_part_floats(config, part) + unit - 1) / unit * ALIGN_FLOATS;
}

uint64_t weft_gpt_whole_floats(const struct weft_gpt_config *config, uint32_t first_part,
                               uint32_t part_count, uint32_t replicas) {
  uint64_t floats = 0;
  for (uint32_t k = 0; k < part_count; k++) {
    floats += replicas * weft_gpt_slice_floats(config, first_part + k, replicas);
  }
  return floats;
}

/* Whether a block has all slices or this replica's only. */
static bool is_whole(const struct weft_gpt_stage_memory *memory, int block) {
  return memory->sharding.mode == WEFT_GPT_SHARD_NONE ||
         (memory->sharding.mode == WEFT_GPT_SHARD_GRADS && block == PARAMETERS);
}

static uint64_t block_floats(const struct weft_gpt_stage_memory *memory, int block) {
  return is_whole(memory, block) ? memory->whole_floats
                                 : memory->whole_floats / memory->sharding.replicas;
}

uint64_t weft_gpt_stage_memory_moment_bytes(const struct weft_gpt_stage_memory *memory) {
  return 2 * block_floats(memory, FIRST_MOMENT) * sizeof(float);
}

/* ---- Where everything is ---- */

/* In a block: at its place, or after the slices of the parts before it. */
static float *array_at(const struct weft_gpt_stage_memory *memory, int block, uint32_t k) {
  const uint64_t offset = memory->offsets[k];
  return memory->blocks[block] +
         (is_whole(memory, block) ? offset : offset / memory->sharding.replicas);
}

static void place_whole(struct weft_gpt_stage_memory *memory, uint32_t k) {
  struct weft_gpt_part_state *part = &memory->parts[k];
  float **arrays[BLOCKS] = {&part->parameters, &part->gradients, &part->first_moment,
                            &part->second_moment};
  for (int block = 0; block < BLOCKS; block++) {
    *arrays[block] = is_whole(memory, block) ? array_at(memory, block, k) : NULL;
  }
}

static void place_kept(struct weft_gpt_stage_memory *memory, uint32_t k) {
  struct weft_gpt_part_kept *kept = &memory->kept[k];
  float **arrays[BLOCKS] = {&kept->parameters, &kept->gradients, &kept->first_moment,
                            &kept->second_moment};
  const uint32_t replicas = memory->sharding.replicas;
  const uint64_t padded = memory->offsets[k + 1] - memory->offsets[k];
  const bool all = memory->sharding.mode == WEFT_GPT_SHARD_NONE;
  kept->slice_floats = padded / replicas;
  kept->slice_begin = memory->sharding.replica * kept->slice_floats;
  kept->begin = all ? 0 : kept->slice_begin;
  kept->floats = all ? padded : kept->slice_floats;
  for (int block = 0; block < BLOCKS; block++) {
    const uint64_t into = is_whole(memory, block) ? kept->begin : 0;
    *arrays[block] = array_at(memory, block, k) + into;
  }
}

/* ---- Init and finish ---- */

static bool allocate_tables(struct weft_gpt_stage_memory *memory) {
  const struct weft_allocator *allocator = memory->allocator;
  memory->offsets = weft_gpt_allocate(allocator, memory->part_count + 1u, sizeof *memory->offsets);
  memory->parts = weft_gpt_allocate(allocator, memory->part_count, sizeof *memory->parts);
  memory->kept = weft_gpt_allocate(allocator, memory->part_count, sizeof *memory->kept);
  return memory->offsets != NULL && memory->parts != NULL && memory->kept != NULL;
}

static enum weft_status allocate_blocks(struct weft_gpt_stage_memory *memory,
                                        struct weft_error *error) {
  for (int block = 0; block < BLOCKS; block++) {
    const uint64_t floats = block_floats(memory, block);
    memory->blocks[block] = weft_gpt_allocate(memory->allocator, floats, sizeof(float));
    if (memory->blocks[block] == NULL) {
      return fail_floats(floats, error);
    }
  }
  memory->rank->kept_parameter_bytes += block_floats(memory, PARAMETERS) * sizeof(float);
  memory->rank->kept_gradient_bytes += block_floats(memory, GRADIENTS) * sizeof(float);
  weft_gpt_rank_memory_note(memory->rank);
  return WEFT_OK;
}

/* A part that is not whole here is made whole for a moment. */
static enum weft_status initialize_part(struct weft_gpt_stage_memory *memory,
                                        const struct weft_gpt_config *config, uint32_t k,
                                        struct weft_error *error) {
  struct weft_gpt_part_state *part = &memory->parts[k];
  if (part->parameters != NULL) {
    weft_gpt_part_initialize(config, part->part, part->parameters);
    return WEFT_OK;
  }
  const uint64_t padded = memory->offsets[k + 1] - memory->offsets[k];
  float *floats = weft_gpt_allocate(memory->allocator, padded, sizeof *floats);
  if (floats == NULL) {
    return fail_floats(padded, error);
  }
  weft_gpt_part_initialize(config, part->part, floats);
  weft_gpt_stage_memory_keep(memory, k, &(struct weft_gpt_part_state){.parameters = floats});
  weft_gpt_free(memory->allocator, floats);
  return WEFT_OK;
}

enum weft_status weft_gpt_stage_memory_init(struct weft_gpt_stage_memory *memory,
                                            const struct weft_allocator *allocator,
                                            const struct weft_gpt_config *config,
                                            uint32_t first_part, uint32_t part_count,
                                            const struct weft_gpt_sharding *sharding,
                                            struct weft_gpt_rank_memory *rank,
                                            struct weft_error *error) {
  const uint32_t replicas = sharding->replicas;
  *memory = (struct weft_gpt_stage_memory){
      .allocator = allocator, .sharding = *sharding, .rank = rank, .part_count = part_count};
  if (!allocate_tables(memory)) {
    return weft_fail_memory(error, part_count * sizeof *memory->kept);
  }
  memory->whole_floats = weft_gpt_whole_floats(config, first_part, part_count, replicas);
  for (uint32_t k = 0; k < part_count; k++) {
    const uint64_t padded = replicas * weft_gpt_slice_floats(config, first_part + k, replicas);
    memory->offsets[k + 1] = memory->offsets[k] + padded;
    memory->parts[k].part = first_part + k;
    memory->parts[k].floats = weft_gpt_part_floats(config, first_part + k);
  }
  WEFT_TRY(allocate_blocks(memory, error));
  for (uint32_t k = 0; k < part_count; k++) {
    place_whole(memory, k);
    place_kept(memory, k);
    WEFT_TRY(initialize_part(memory, config, k, error));
  }
  return WEFT_OK;
}

void weft_gpt_stage_memory_finish(struct weft_gpt_stage_memory *memory) {
  for (int block = 0; block < BLOCKS; block++) {
    weft_gpt_free(memory->allocator, memory->blocks[block]);
  }
  weft_gpt_free(memory->allocator, memory->offsets);
  weft_gpt_free(memory->allocator, memory->parts);
  weft_gpt_free(memory->allocator, memory->kept);
}

/* ---- Whole for a while ---- */

enum weft_status weft_gpt_stage_memory_take_parameters(struct weft_gpt_stage_memory *memory,
                                                       struct weft_error *error) {
  if (is_whole(memory, PARAMETERS) || memory->whole_parameters != NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_gpt_pool_take(&memory->rank->parameters, memory->whole_floats,
                              &memory->whole_parameters, error));
  weft_gpt_rank_memory_note(memory->rank);
  for (uint32_t k = 0; k < memory->part_count; k++) {
    memory->parts[k].parameters = memory->whole_parameters + memory->offsets[k];
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_stage_memory_take_gradients(struct weft_gpt_stage_memory *memory,
                                                      struct weft_error *error) {
  if (is_whole(memory, GRADIENTS) || memory->whole_gradients != NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_gpt_pool_take(&memory->rank->gradients, memory->whole_floats,
                              &memory->whole_gradients, error));
  weft_gpt_rank_memory_note(memory->rank);
  assert(memory->whole_gradients != NULL);
  memset(memory->whole_gradients, 0, memory->whole_floats * sizeof(float));
  for (uint32_t k = 0; k < memory->part_count; k++) {
    memory->parts[k].gradients = memory->whole_gradients + memory->offsets[k];
  }
  return WEFT_OK;
}

void weft_gpt_stage_memory_drop_parameters(struct weft_gpt_stage_memory *memory) {
  if (memory->whole_parameters == NULL) {
    return;
  }
  weft_gpt_pool_give_back(&memory->rank->parameters, memory->whole_parameters,
                          memory->whole_floats);
  memory->whole_parameters = NULL;
  for (uint32_t k = 0; k < memory->part_count; k++) {
    memory->parts[k].parameters = NULL;
  }
}

void weft_gpt_stage_memory_drop_gradients(struct weft_gpt_stage_memory *memory) {
  if (memory->whole_gradients == NULL) {
    return;
  }
  weft_gpt_pool_give_back(&memory->rank->gradients, memory->whole_gradients, memory->whole_floats);
  memory->whole_gradients = NULL;
  for (uint32_t k = 0; k < memory->part_count; k++) {
    memory->parts[k].gradients = NULL;
  }
}

/* ---- From whole arrays ---- */

/* Beyond the part's floats there is padding, which is 0. */
static void keep_array(const struct weft_gpt_part_kept *kept, uint64_t floats, const float *whole,
                       float *to) {
  const uint64_t end = kept->begin + kept->floats < floats ? kept->begin + kept->floats : floats;
  if (whole != NULL && end > kept->begin) {
    memcpy(to, whole + kept->begin, (end - kept->begin) * sizeof *to);
  }
}

void weft_gpt_stage_memory_keep(struct weft_gpt_stage_memory *memory, uint32_t k,
                                const struct weft_gpt_part_state *whole) {
  const struct weft_gpt_part_kept *kept = &memory->kept[k];
  const uint64_t floats = memory->parts[k].floats;
  float *parameters = memory->parts[k].parameters;
  if (parameters != NULL && whole->parameters != NULL) {
    memcpy(parameters, whole->parameters, floats * sizeof *parameters);
  } else {
    keep_array(kept, floats, whole->parameters, kept->parameters);
  }
  keep_array(kept, floats, whole->first_moment, kept->first_moment);
  keep_array(kept, floats, whole->second_moment, kept->second_moment);
}
