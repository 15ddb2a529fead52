/* The end of a step where each rank computes on a GPU in a process of its own: kernels cannot
 * access the memory of the other ranks. So what they need of each other goes through collectives:
 * in the stream of the kernels where the transport enqueues them, else on the host. The kernels are
 * those of one process (optimizer_step.c), and sums have the order of members: the same bits. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "trainer/train/rank.h"

enum { SPIN_NS = 1000 * 1000, PAUSE_NS = 50 * 1000 };

/* ---- The GPU ---- */

/* The GPU may wait for collectives, and so for a rank that is stopped. */
static enum weft_status fail_stalled(const struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  const uint32_t gpu = rank->compute->device->number;
  const double seconds = (double)rank->trainer->stall_limit * 1e-9;
  char name[WEFT_RANK_NAME_SIZE], hint[64] = "look for what else runs on that GPU";
  bool stopped = false;
  const uint32_t missing = weft_missing_rank(transport, &stopped);
  stopped = stopped && missing != transport->rank; /* it was, until now */
  struct weft_failure failure = {.rank = stopped ? missing : transport->rank};
  if (stopped) {
    (void)snprintf(hint, sizeof hint, "SIGCONT resumes rank %" PRIu32 "'s process", missing);
  }
  (void)weft_fail(&failure.error, WEFT_ERR_STALLED, hint,
                  "rank %" PRIu32 ": GPU %" PRIu32
                  " has not ended the optimizer's part of step "
                  "%" PRIu64 " for %.1f s%s%s%s",
                  transport->rank, gpu, rank->step + 1, seconds, stopped ? ": it waits for " : "",
                  stopped ? weft_rank_name(transport, missing, name) : "",
                  stopped ? ", which is stopped, by a signal or a debugger" : "");
  transport->ops->fail(transport, &failure);
  *error = failure.error;
  return WEFT_ERR_STALLED;
}

/* All that is in the exchange's stream is done. */
static enum weft_status complete(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_device *device = rank->compute->device;
  struct weft_transport *transport = rank->transport;
  const int64_t limit = rank->trainer->stall_limit;
  const int64_t begin = transport->ops->now(transport);
  enum weft_status status;
  WEFT_TRY(device->ops->event_record(device, rank->exchange.event, rank->exchange.stream, error));
  while ((status = device->ops->event_query(device, rank->exchange.event, error)) ==
         WEFT_IN_PROGRESS) {
    WEFT_TRY(transport->ops->progress(transport, error));
    const int64_t now = transport->ops->now(transport);
    if (limit > 0 && now - begin > limit) {
      return fail_stalled(rank, error);
    }
    if (now - begin > SPIN_NS) { /* other ranks may need the core */
      WEFT_TRY(transport->ops->wait(transport, now + PAUSE_NS, error));
    }
  }
  return status;
}

static enum weft_status to_host(const struct weft_gpt_rank *rank, float *to, const float *from,
                                uint64_t floats, struct weft_error *error) {
  return weft_copy(&(struct weft_copy){.to = to,
                                       .from = from,
                                       .from_device = rank->compute->device,
                                       .row_bytes = floats * sizeof *to,
                                       .rows = 1},
                   NULL, error);
}

static enum weft_status to_device(const struct weft_gpt_rank *rank, float *to, const float *from,
                                  uint64_t floats, struct weft_error *error) {
  return weft_copy(&(struct weft_copy){.to = to,
                                       .to_device = rank->compute->device,
                                       .from = from,
                                       .row_bytes = floats * sizeof *to,
                                       .rows = 1},
                   NULL, error);
}

/* ---- Collectives ---- */

/* Of arrays of the GPU, which have from_floats and to_floats; at most a layer's. */
static enum weft_status collect(struct weft_gpt_rank *rank, struct weft_group *group,
                                struct weft_collective collective, uint64_t from_floats,
                                uint64_t to_floats, struct weft_error *error) {
  const float *from = collective.from;
  float *to = collective.to, *inputs, *outputs;
  assert(from_floats <= rank->trainer->floats_largest && group != NULL);
  assert(to_floats <= rank->trainer->floats_largest);
  if (rank->transport->ops->enqueues) {
    collective.device = rank->compute->device;
    collective.stream = rank->exchange.stream;
    WEFT_TRY(group->ops->start(group, &collective, error));
    return group->ops->test(group, &collective, error); /* enqueued */
  }
  WEFT_TRY(weft_gpt_rank_gather_buffer(rank, 0, &inputs, error));
  WEFT_TRY(weft_gpt_rank_gather_buffer(rank, 1, &outputs, error));
  WEFT_TRY(to_host(rank, inputs, from, from_floats, error));
  collective.from = inputs;
  collective.to = outputs;
  WEFT_TRY(group->ops->start(group, &collective, error));
  WEFT_TRY(weft_gpt_rank_wait_collective(rank, group, &collective, error));
  return to_device(rank, to, outputs, to_floats, error);
}

/* The gradients of a weight that stages of two ranks share. */
static enum weft_status tie(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_stage *stage = rank->has_first ? rank->tie.first : rank->tie.last;
  uint64_t count;
  if (rank->tie_group == NULL) {
    return WEFT_OK;
  }
  float *gradient = weft_gpt_tied_gradient(stage, !rank->has_first, &count);
  return collect(rank, rank->tie_group,
                 (struct weft_collective){.kind = WEFT_ALL_REDUCE,
                                          .from = gradient,
                                          .to = gradient,
                                          .bytes = count * sizeof *gradient},
                 count, count, error);
}

/* The gradients of a layer, summed over replicas: this replica's slice, or all. */
static enum weft_status reduce(struct weft_gpt_rank *rank, const struct weft_gpt_stage *stage,
                               uint32_t k, struct weft_error *error) {
  const bool all = rank->trainer->options.shard == WEFT_GPT_SHARD_NONE;
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  const uint64_t padded = shard->slice_floats * rank->trainer->options.replicas;
  return collect(rank, rank->replica_group,
                 (struct weft_collective){.kind = all ? WEFT_ALL_REDUCE : WEFT_REDUCE_SCATTER,
                                          .from = stage->layers[k].gradients,
                                          .to = shard->gradients,
                                          .bytes = shard->floats * sizeof(float)},
                 padded, shard->floats, error);
}

/* The parameters of a layer whose slices the replicas have updated, where they are not sharded. */
static enum weft_status fetch(struct weft_gpt_rank *rank, const struct weft_gpt_stage *stage,
                              uint32_t k, struct weft_error *error) {
  const uint32_t replicas = rank->trainer->options.replicas;
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  float *parameters = stage->layers[k].parameters;
  WEFT_TRY(collect(rank, rank->replica_group,
                   (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                            .from = shard->parameters,
                                            .to = parameters,
                                            .bytes = shard->slice_floats * sizeof(float)},
                   shard->slice_floats, shard->slice_floats * replicas, error));
  return rank->compute->ops->enqueue_round(rank->compute, shard->slice_floats * replicas,
                                           parameters, shard->rounded, rank->exchange.stream,
                                           error);
}

static enum weft_status for_layers(struct weft_gpt_rank *rank,
                                   enum weft_status (*function)(struct weft_gpt_rank *rank,
                                                                const struct weft_gpt_stage *stage,
                                                                uint32_t k,
                                                                struct weft_error *error),
                                   struct weft_error *error) {
  for (uint32_t n = 0; n < rank->own_layer_count; n++) {
    uint32_t k;
    const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, rank->own_layers[n], &k);
    WEFT_TRY(function(rank, stage, k, error));
  }
  return WEFT_OK;
}

/* ---- The norm ---- */

/* Every rank has the sums of its layers, and gets those of all; see weft_gpt_trainer.sums. */
static enum weft_status exchange_sums(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint32_t layers = trainer->layer_count, rows = trainer->options.ranks;
  const uint32_t heads = weft_gpt_head_count(&trainer->config), first_head = layers - heads;
  const size_t count = layers + heads; /* and their losses */
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  double *mine = weft_arena_allocate(&arena, count, sizeof *mine);
  double *all = weft_arena_allocate(&arena, count * trainer->world_size, sizeof *all);
  WEFT_TRY(weft_arena_status(&arena, error));
  memcpy(mine, trainer->sums + (uint64_t)rank->replica * layers, layers * sizeof *mine);
  memcpy(mine + layers, weft_gpt_trainer_losses(trainer, rank->replica), heads * sizeof *mine);
  WEFT_TRY(weft_allgather(rank->transport, mine, all, count * sizeof *mine, trainer->stall_limit,
                          error));
  for (uint32_t r = 0; r < trainer->world_size; r++) {
    const double *of = all + r * count;
    const uint32_t replica = r / rows, row = r % rows;
    for (uint32_t k = trainer->layers.begin[row]; k < trainer->layers.begin[row + 1]; k++) {
      const uint32_t layer = trainer->layers.list[k];
      trainer->sums[(uint64_t)replica * layers + layer] = of[layer];
      if (layer >= first_head) {
        weft_gpt_trainer_losses(trainer, replica)[layer - first_head] =
            of[layers + layer - first_head];
      }
    }
  }
  return WEFT_OK;
}

/* ---- The end of the step ---- */

enum weft_status weft_gpt_exchange_end_step(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  struct weft_device *device = rank->compute->device;
  const uint32_t sum = options->replicas > 1 ? 1 : 0; /* passes of finish_step() */
  WEFT_TRY(device->ops->make_current(device, error));
  WEFT_TRY(tie(rank, error));
  if (options->replicas > 1) {
    WEFT_TRY(for_layers(rank, reduce, error));
  }
  WEFT_TRY(weft_gpt_rank_finish_step(rank, sum, rank->exchange.stream, error));
  WEFT_TRY(complete(rank, error));
  WEFT_TRY(exchange_sums(rank, error));
  WEFT_TRY(weft_gpt_rank_finish_step(rank, sum + 1, rank->exchange.stream, error));
  WEFT_TRY(complete(rank, error));
  if (options->shard == WEFT_GPT_SHARD_GRADS) {
    WEFT_TRY(for_layers(rank, fetch, error));
  }
  return complete(rank, error);
}

/* ---- Its stream ---- */

enum weft_status weft_gpt_exchange_init(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_device *device = rank->compute->device;
  if (!rank->trainer->process_per_rank) {
    return WEFT_OK;
  }
  WEFT_TRY(device->ops->make_current(device, error));
  WEFT_TRY(device->ops->stream_create(device, &rank->exchange.stream, error));
  return device->ops->event_create(device, false, &rank->exchange.event, error);
}

void weft_gpt_exchange_finish(struct weft_gpt_rank *rank) {
  if (rank->trainer->process_per_rank && rank->compute != NULL && rank->compute->device != NULL) {
    struct weft_device *device = rank->compute->device;
    (void)device->ops->make_current(device, NULL);
    device->ops->event_destroy(device, rank->exchange.event);
    device->ops->stream_destroy(device, rank->exchange.stream);
  }
}
