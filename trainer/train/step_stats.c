/* What ranks tell each other about a step. Every rank sends one record: a head, then one entry
 * for each of its layers, then one for each of its stages. All ranks add up the same records in
 * the same order, so that sums, and with them clipping, have the same bits everywhere. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/train/rank.h"

struct head {
  double losses[WEFT_GPT_HEADS_MAX]; /* of the replica, each from its rank with that head */
  int64_t busy_ns, begin, end;       /* compute of the step */
  int64_t pipeline_ns;               /* the pipeline's step, as this rank saw it */
  double memory_free;                /* MiB; 0: not known */
  uint64_t stop;
};

struct layer_entry {
  double square_sum; /* of the gradients of this replica's slice */
  struct weft_gpt_op_means means;
};

/* A record in memory; `layers` and `stages` have as many entries as the row with the most. */
struct record {
  struct head *head;
  struct layer_entry *layers;
  struct weft_gpt_op_means *stages;
};
_Static_assert(sizeof(struct head) % 8 == 0 && sizeof(struct layer_entry) % 8 == 0 &&
                   sizeof(struct weft_gpt_op_means) % 8 == 0,
               "records lie one after the other");

uint64_t weft_gpt_step_stats_bytes(const struct weft_gpt_trainer *trainer) {
  return sizeof(struct head) + trainer->layers.most * sizeof(struct layer_entry) +
         trainer->stages.most * sizeof(struct weft_gpt_op_means);
}

static struct record record_at(const struct weft_gpt_trainer *trainer, unsigned char *bytes) {
  struct record record = {.head = (void *)bytes};
  record.layers = (void *)(bytes + sizeof *record.head);
  record.stages = (void *)(record.layers + trainer->layers.most);
  return record;
}

/* ---- Sent ---- */

/* Over this replica's slice of a layer's gradients. Slices depend on the layer and the number
 * of replicas alone, not on the split or on what is sharded. A tied weight counts once, in the
 * embedding. */
struct weft_gpt_floats weft_gpt_rank_slice_gradients(const struct weft_gpt_rank *rank,
                                                     uint32_t layer) {
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  uint64_t end = stage->layers[k].floats, count;
  if (rank->trainer->config.tied && layer == rank->trainer->config.blocks + 1) {
    weft_gpt_tied_range(&rank->trainer->config, true, &end, &count); /* it is the last one */
  }
  if (end > shard->slice_begin + shard->slice_floats) {
    end = shard->slice_begin + shard->slice_floats;
  }
  return (struct weft_gpt_floats){.data = shard->gradients + (shard->slice_begin - shard->begin),
                                  .count = end > shard->slice_begin ? end - shard->slice_begin : 0};
}

static enum weft_status fill_square_sums(const struct weft_gpt_rank *rank,
                                         const struct record *record, struct weft_error *error) {
  const uint32_t count = rank->own_layer_count;
  if (rank->compute->ops->norm != NULL) { /* the end of the step has it */
    return WEFT_OK;
  }
  WEFT_SCOPED_ARENA arena = {.allocator = rank->trainer->allocator};
  struct weft_gpt_floats *slices = weft_arena_allocate(&arena, count, sizeof *slices);
  double *sums = weft_arena_allocate(&arena, count, sizeof *sums);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t k = 0; k < count; k++) {
    slices[k] = weft_gpt_rank_slice_gradients(rank, rank->own_layers[k]);
  }
  WEFT_TRY(rank->compute->ops->square_sums(rank->compute, count, slices, sums, error));
  for (uint32_t k = 0; k < count; k++) {
    record->layers[k].square_sum = sums[k];
  }
  return WEFT_OK;
}

static void fill_record(const struct weft_gpt_rank *rank, const double *losses, int64_t pipeline_ns,
                        const struct record *record) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const struct weft_gpt_profile *profile = &rank->profile;
  *record->head =
      (struct head){.losses = {losses[0], losses[1]},
                    .busy_ns = profile->busy_ns,
                    .begin = profile->first_begin,
                    .end = profile->last_end,
                    .pipeline_ns = pipeline_ns,
                    .memory_free = options->memory_free,
                    .stop = options->interrupted != NULL && options->interrupted(options->context)};
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    record->layers[k].means = weft_gpt_profile_layer_means(rank, rank->own_layers[k]);
  }
  for (uint32_t k = 0; k < rank->own_stage_count; k++) {
    record->stages[k] = weft_gpt_profile_stage_means(rank, rank->own_stages[k]);
  }
}

/* ---- Received ---- */

static void add_floats(uint32_t count, const float *values, float *sums) {
  for (uint32_t k = 0; k < count; k++) {
    sums[k] += values[k];
  }
}

static void divide_floats(uint32_t count, float divisor, float *values) {
  for (uint32_t k = 0; k < count; k++) {
    values[k] /= divisor;
  }
}

/* Means over replicas, and the norm: squares by layer in order of ranks, then over layers. */
static enum weft_status add_up_entries(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct weft_gpt_ownership *layers = &trainer->layers, *stages = &trainer->stages;
  const uint64_t bytes = weft_gpt_step_stats_bytes(trainer);
  struct weft_gpt_profile *profile = &rank->profile;
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  double *squares = weft_arena_allocate(&arena, trainer->layer_count, sizeof *squares);
  WEFT_TRY(weft_arena_status(&arena, error));
  memset(profile->means, 0, trainer->stage_count * sizeof *profile->means);
  memset(profile->layer_means, 0, trainer->layer_count * sizeof *profile->layer_means);
  for (uint32_t r = 0; r < trainer->world_size; r++) {
    const struct record record = record_at(trainer, rank->stats_received + r * bytes);
    const uint32_t row = r % trainer->options.ranks;
    for (uint32_t k = layers->begin[row]; k < layers->begin[row + 1]; k++) {
      const struct layer_entry *entry = &record.layers[k - layers->begin[row]];
      squares[layers->list[k]] += entry->square_sum;
      add_floats(WEFT_OP_COUNT, entry->means.ms, profile->layer_means[layers->list[k]].ms);
    }
    for (uint32_t k = stages->begin[row]; k < stages->begin[row + 1]; k++) {
      add_floats(WEFT_OP_COUNT, record.stages[k - stages->begin[row]].ms,
                 profile->means[stages->list[k]].ms);
    }
  }
  const float replicas = (float)trainer->options.replicas;
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    divide_floats(WEFT_OP_COUNT, replicas, profile->means[s].ms);
  }
  double sum = 0;
  for (uint32_t layer = 0; layer < trainer->layer_count; layer++) {
    divide_floats(WEFT_OP_COUNT, replicas, profile->layer_means[layer].ms);
    sum += squares[layer];
  }
  rank->stats.gradient_norm =
      rank->compute->ops->norm != NULL ? rank->compute->ops->norm(rank->compute) : sqrt(sum);
  return WEFT_OK;
}

static void add_up_heads(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint64_t bytes = weft_gpt_step_stats_bytes(trainer);
  int64_t begin = INT64_MAX, end = INT64_MIN, longest = 0;
  double busy = 0, losses[WEFT_GPT_HEADS_MAX] = {0};
  rank->stats.pipeline_ns = 0;
  rank->stats.memory_free = INFINITY;
  for (uint32_t r = 0; r < trainer->world_size; r++) {
    const struct head *head = record_at(trainer, rank->stats_received + r * bytes).head;
    begin = head->begin < begin ? head->begin : begin;
    end = head->end > end ? head->end : end;
    longest = head->end - head->begin > longest ? head->end - head->begin : longest;
    busy += (double)head->busy_ns;
    for (uint32_t k = 0; k < WEFT_GPT_HEADS_MAX; k++) {
      losses[k] += head->losses[k]; /* 0 from other ranks */
    }
    rank->stop = rank->stop || head->stop != 0;
    if (head->pipeline_ns > rank->stats.pipeline_ns) { /* all begin together */
      rank->stats.pipeline_ns = head->pipeline_ns;
    }
    if (head->memory_free > 0 && head->memory_free < rank->stats.memory_free) {
      rank->stats.memory_free = head->memory_free;
    }
  }
  rank->stats.loss = losses[0] / trainer->options.replicas;
  rank->stats.second_loss = losses[1] / trainer->options.replicas;
  /* Clocks of several machines differ: there the longest span of one rank has to do. */
  const bool one_clock = trainer->local_count == trainer->world_size;
  const int64_t span = one_clock ? end - begin : longest;
  rank->stats.bubble = span > 0 ? 1 - busy / ((double)trainer->world_size * (double)span) : NAN;
}

enum weft_status weft_gpt_rank_sum(struct weft_gpt_rank *rank, double number, double *sum,
                                   struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  double *all = weft_arena_allocate(&arena, trainer->world_size, sizeof *all);
  WEFT_TRY(weft_arena_status(&arena, error));
  WEFT_TRY(
      weft_allgather(rank->transport, &number, all, sizeof number, trainer->stall_limit, error));
  *sum = 0;
  for (uint32_t r = 0; r < trainer->world_size; r++) {
    *sum += all[r];
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_gather_stats(struct weft_gpt_rank *rank, const double *losses,
                                            int64_t pipeline_ns, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const struct record record = record_at(trainer, rank->stats_sent);
  assert(rank->own_layer_count <= trainer->layers.most);
  WEFT_TRY(fill_square_sums(rank, &record, error));
  fill_record(rank, losses, pipeline_ns, &record);
  WEFT_TRY(weft_allgather(rank->transport, rank->stats_sent, rank->stats_received,
                          (size_t)weft_gpt_step_stats_bytes(trainer), trainer->stall_limit, error));
  add_up_heads(rank);
  return add_up_entries(rank, error);
}
