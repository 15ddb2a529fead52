/* The results of a training, for the caller of run(). */
#include <assert.h>

#include "trainer/train/rank.h"

uint64_t weft_gpt_trainer_steps_done(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].step;
}

enum weft_gpt_divergence weft_gpt_trainer_divergence(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].divergence;
}

uint64_t weft_gpt_trainer_steps_skipped(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].skipped;
}

uint64_t weft_gpt_trainer_hash(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].hash;
}

const uint32_t *weft_gpt_trainer_split(const struct weft_gpt_trainer *trainer,
                                       uint32_t *stage_count) {
  *stage_count = trainer->stage_count;
  return trainer->first_layers;
}

const struct weft_graph *weft_gpt_trainer_graph(const struct weft_gpt_trainer *trainer) {
  return trainer->graph;
}

/* ---- Layers ---- */

static uint32_t stage_of_layer(const struct weft_gpt_trainer *trainer, uint32_t layer) {
  uint32_t stage = 0;
  while (layer >= trainer->first_layers[stage + 1]) {
    stage++;
  }
  return stage;
}

/* The stage with the layer in a replica, and which of its layers it is; NULL: not here. */
static const struct weft_gpt_stage *find_layer(const struct weft_gpt_trainer *trainer,
                                               uint32_t replica, uint32_t layer, uint32_t *k) {
  const uint32_t row = trainer->rank_of[stage_of_layer(trainer, layer)];
  const struct weft_gpt_rank *rank =
      weft_gpt_trainer_local(trainer, replica * trainer->options.ranks + row);
  return rank != NULL ? weft_gpt_rank_find_layer(rank, layer, k) : NULL;
}

const struct weft_gpt_layer_state *weft_gpt_trainer_layer(const struct weft_gpt_trainer *trainer,
                                                          uint32_t layer) {
  assert(layer < trainer->layer_count);
  uint32_t k;
  const struct weft_gpt_stage *stage = find_layer(trainer, trainer->ranks[0].replica, layer, &k);
  return stage != NULL && weft_device_is_host(stage->context->compute->device) ? &stage->layers[k]
                                                                               : NULL;
}

static bool copy_slice(const struct weft_gpt_stage *stage, uint32_t k, const float *from,
                       float *to) {
  assert(k < stage->layer_count);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  const uint64_t floats = stage->layers[k].floats;
  const uint64_t end = shard->slice_begin + shard->slice_floats;
  const uint64_t last = end < floats ? end : floats;
  if (to == NULL || last <= shard->slice_begin) {
    return true;
  }
  return weft_copy(&(struct weft_copy){.to = to + shard->slice_begin,
                                       .from = from + (shard->slice_begin - shard->begin),
                                       .from_device = stage->context->compute->device,
                                       .row_bytes = (last - shard->slice_begin) * sizeof *to,
                                       .rows = 1},
                   NULL, NULL) == WEFT_OK;
}

bool weft_gpt_trainer_copy_layer(const struct weft_gpt_trainer *trainer,
                                 struct weft_gpt_layer_state *unsharded) {
  assert(unsharded->layer < trainer->layer_count);
  unsharded->floats = weft_gpt_layer_floats(&trainer->config, unsharded->layer);
  for (uint32_t d = 0; d < trainer->options.replicas; d++) {
    uint32_t k;
    const struct weft_gpt_stage *stage = find_layer(trainer, d, unsharded->layer, &k);
    if (stage == NULL) {
      return false;
    }
    const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
    if (!copy_slice(stage, k, shard->parameters, unsharded->parameters) ||
        !copy_slice(stage, k, shard->gradients, unsharded->gradients) ||
        !copy_slice(stage, k, shard->first_moment, unsharded->first_moment) ||
        !copy_slice(stage, k, shard->second_moment, unsharded->second_moment)) {
      return false;
    }
  }
  return true;
}

const struct weft_gpt_layer_state *weft_gpt_trainer_model(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].has_model ? trainer->ranks[0].model : NULL;
}

/* ---- Memory ---- */

bool weft_gpt_trainer_memory(const struct weft_gpt_trainer *trainer, uint32_t world_rank,
                             struct weft_gpt_memory *memory) {
  const struct weft_gpt_rank *rank = weft_gpt_trainer_local(trainer, world_rank);
  if (rank == NULL) {
    return false;
  }
  const struct weft_gpt_rank_memory *pools = &rank->memory;
  *memory = (struct weft_gpt_memory){
      .parameters = pools->resident_parameter_bytes +
                    pools->parameters.allocated * pools->parameters.floats * sizeof(float),
      .gradients = pools->resident_gradient_bytes +
                   pools->gradients.allocated * pools->gradients.floats * sizeof(float),
      .activations = rank->pipeline != NULL ? weft_pipeline_saved_bytes(rank->pipeline) : 0,
      .peak = pools->peak_bytes};
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    const struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    memory->moments += weft_gpt_stage_memory_moment_bytes(&stage->memory);
    memory->scratch += weft_gpt_stage_scratch_bytes(stage);
  }
  return true;
}

uint64_t weft_gpt_trainer_bytes(const struct weft_gpt_trainer *trainer) {
  uint64_t bytes = 0;
  for (uint32_t k = 0; k < trainer->local_count; k++) {
    struct weft_gpt_memory memory = {.parameters = 0};
    (void)weft_gpt_trainer_memory(trainer, trainer->first_local + k, &memory);
    bytes +=
        memory.parameters + memory.gradients + memory.moments + memory.activations + memory.scratch;
  }
  return bytes;
}

/* ---- The last step ---- */

struct weft_transport *weft_gpt_trainer_transport(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].transport;
}

const struct weft_program *weft_gpt_trainer_program(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].profile.program;
}

static void add_events(const struct weft_event *from, uint64_t from_count,
                       struct weft_event *events, uint64_t room, uint64_t *count) {
  for (uint64_t k = 0; k < from_count; k++, (*count)++) {
    if (*count < room) {
      events[*count] = from[k];
    }
  }
}

void weft_gpt_trainer_events(const struct weft_gpt_trainer *trainer, struct weft_event *events,
                             uint64_t room, uint64_t *count) {
  const struct weft_gpt_profile *first = &trainer->ranks[0].profile;
  *count = 0;
  if (first->all_event_count > 0) {
    add_events(first->all_events, first->all_event_count, events, room, count);
    return;
  }
  for (uint32_t r = 0; r < trainer->options.ranks; r++) {
    const struct weft_gpt_rank *rank = weft_gpt_trainer_local(trainer, r);
    if (rank != NULL) {
      add_events(rank->profile.events, rank->profile.event_count, events, room, count);
    }
  }
}

const char *weft_gpt_trainer_schedule(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].autotune.current.schedule;
}

const char *weft_gpt_trainer_attention(const struct weft_gpt_trainer *trainer) {
  const struct weft_gpt_compute *compute = trainer->ranks[0].compute;
  return compute != NULL ? compute->attention : NULL;
}
