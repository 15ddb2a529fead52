/* Layers gathered from the shards of their replicas, and the blocking wait for a collective. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/support.h>

#include "trainer/model/aligned_memory.h"
#include "trainer/train/rank.h"

/* ---- Waiting ---- */

/* Names a rank that is stopped or still in its step, if there is one. */
static enum weft_status fail_stalled(const struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  char name[WEFT_RANK_NAME_SIZE] = "one of them", hint[64] = "'weft explain-hang' reads the dump";
  bool stopped = false;
  struct weft_failure failure = {.rank = weft_missing_rank(transport, &stopped)};
  if (failure.rank == transport->rank) { /* it was, until now */
    failure.rank = UINT32_MAX;
    stopped = false;
  }
  if (failure.rank != UINT32_MAX) {
    (void)weft_rank_name(transport, failure.rank, name);
  }
  if (stopped) {
    (void)snprintf(hint, sizeof hint, "SIGCONT resumes rank %" PRIu32 "'s process", failure.rank);
  }
  (void)weft_fail(&failure.error, WEFT_ERR_STALLED, hint,
                  "rank %" PRIu32 " has waited %.1f s after step %" PRIu64
                  " for the other replicas, and %s%s has not come",
                  transport->rank, (double)rank->trainer->stall_limit * 1e-9, rank->step, name,
                  stopped ? ", which is stopped, by a signal or a debugger," : "");
  transport->ops->fail(transport, &failure);
  if (error != NULL) {
    *error = failure.error;
  }
  return WEFT_ERR_STALLED;
}

enum weft_status weft_gpt_rank_wait_collective(struct weft_gpt_rank *rank, struct weft_group *group,
                                               struct weft_collective *collective,
                                               struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  const int64_t limit = rank->trainer->stall_limit;
  const int64_t until = limit > 0 ? transport->ops->now(transport) + limit : WEFT_TIME_NEVER;
  assert(group != NULL);
  for (;;) {
    WEFT_TRY(transport->ops->progress(transport, error));
    const enum weft_status status = group->ops->test(group, collective, error);
    if (status != WEFT_IN_PROGRESS) {
      return status;
    }
    if (transport->ops->now(transport) >= until) {
      return fail_stalled(rank, error);
    }
    WEFT_TRY(transport->ops->wait(transport, until, error));
  }
}

/* ---- Layers ---- */

enum weft_status weft_gpt_rank_gather_buffer(struct weft_gpt_rank *rank, uint32_t n, float **out,
                                             struct weft_error *error) {
  const uint64_t floats = rank->trainer->floats_largest;
  float **buffer = &rank->gather.buffers[n];
  assert(n < WEFT_GPT_GATHERED_MAX);
  if (*buffer == NULL) {
    *buffer = weft_gpt_allocate(rank->trainer->allocator, floats, sizeof **buffer);
  }
  *out = *buffer;
  return *buffer != NULL ? WEFT_OK : weft_fail_memory(error, floats * sizeof **buffer);
}

void weft_gpt_rank_free_gather_buffers(struct weft_gpt_rank *rank) {
  for (uint32_t n = 0; n < WEFT_GPT_GATHERED_MAX; n++) {
    weft_gpt_free(rank->trainer->allocator, rank->gather.buffers[n]);
    rank->gather.buffers[n] = NULL;
  }
}

/* An array of a device, in a gather buffer. */
static enum weft_status read_array(struct weft_gpt_rank *rank, uint32_t n, uint64_t floats,
                                   float **array, struct weft_error *error) {
  const float *from = *array;
  WEFT_TRY(weft_gpt_rank_gather_buffer(rank, n, array, error));
  return weft_copy(&(struct weft_copy){.to = *array,
                                       .from = from,
                                       .from_device = rank->compute->device,
                                       .row_bytes = floats * sizeof **array,
                                       .rows = 1},
                   NULL, error);
}

/* Slices of all replicas' devices, between steps. Array 0: parameters, then moments. */
static enum weft_status read_slices(struct weft_gpt_rank *rank, const struct weft_gpt_stage *stage,
                                    uint32_t k, uint32_t n, float **array,
                                    struct weft_error *error) {
  WEFT_TRY(weft_gpt_rank_gather_buffer(rank, n, array, error));
  for (uint32_t d = 0; d < rank->trainer->options.replicas; d++) {
    const struct weft_gpt_stage *peer = rank->context.peer(rank->context.peer_context, stage, d);
    const struct weft_gpt_layer_shard *shard = &peer->memory.shards[k];
    const float *slices[] = {shard->parameters, shard->first_moment, shard->second_moment};
    WEFT_TRY(weft_copy(&(struct weft_copy){.to = *array + shard->slice_begin,
                                           .from = slices[n],
                                           .from_device = peer->context->compute->device,
                                           .row_bytes = shard->slice_floats * sizeof **array,
                                           .rows = 1},
                       NULL, error));
  }
  return WEFT_OK;
}

/* The slice of this replica's device, at its place in a gather buffer. */
static enum weft_status read_own_slice(const struct weft_gpt_rank *rank,
                                       const struct weft_gpt_layer_shard *shard, const float *slice,
                                       float *gathered, struct weft_error *error) {
  return weft_copy(&(struct weft_copy){.to = gathered + shard->slice_begin,
                                       .from = slice,
                                       .from_device = rank->compute->device,
                                       .row_bytes = shard->slice_floats * sizeof *slice,
                                       .rows = 1},
                   NULL, error);
}

enum weft_status weft_gpt_rank_gather_layer(struct weft_gpt_rank *rank, uint32_t layer,
                                            bool moments, struct weft_gpt_layer_state *gathered,
                                            struct weft_error *error) {
  struct weft_collective *collectives = rank->gather.collectives;
  struct weft_group *group = rank->replica_group;
  uint32_t k, count = 0;
  const struct weft_gpt_stage *stage = weft_gpt_rank_find_layer(rank, layer, &k);
  assert(stage != NULL);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  const float *shards[] = {shard->parameters, shard->first_moment, shard->second_moment};
  float **arrays[] = {&gathered->parameters, &gathered->first_moment, &gathered->second_moment};
  *gathered = stage->layers[k];
  for (uint32_t n = 0; n < (moments ? 3 : 1); n++) {
    if (*arrays[n] == NULL && rank->compute->ops->enqueues && group == NULL) {
      WEFT_TRY(read_slices(rank, stage, k, n, arrays[n], error));
    } else if (*arrays[n] == NULL) { /* it is sharded */
      assert(group != NULL);
      WEFT_TRY(weft_gpt_rank_gather_buffer(rank, n, arrays[n], error));
      const float *slice = shards[n];
      if (!weft_device_is_host(rank->compute->device)) {
        WEFT_TRY(read_own_slice(rank, shard, slice, *arrays[n], error));
        slice = *arrays[n] + shard->slice_begin;
      }
      collectives[count] = (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                                    .from = slice,
                                                    .to = *arrays[n],
                                                    .bytes = shard->slice_floats * sizeof(float)};
      WEFT_TRY(group->ops->start(group, &collectives[count++], error));
    } else if (!weft_device_is_host(rank->compute->device)) {
      WEFT_TRY(read_array(rank, n, gathered->floats, arrays[n], error));
    }
  }
  for (uint32_t n = 0; n < count; n++) {
    WEFT_TRY(weft_gpt_rank_wait_collective(rank, group, &collectives[n], error));
  }
  return WEFT_OK;
}
