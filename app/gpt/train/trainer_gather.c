/* What is divided among replicas or ranks, made whole: parts for checkpoints, for the hash
 * of all parameters and for the sampler, one at a time; and events for the timeline. */
#include <string.h>

#include <weft/support.h>

#include "gpt/model/aligned_memory.h"
#include "gpt/train/trainer_rank.h"

enum { WEIGHTS_ONLY = 1, WITH_MOMENTS = 3 };

/* ---- A part ---- */

/* The n-th buffer, made when it is first needed. */
static enum weft_status buffer_of(struct weft_gpt_rank *rank, uint32_t n, float **out,
                                  struct weft_error *error) {
  const uint64_t floats = rank->trainer->floats_largest;
  float **buffer = &rank->gathering.buffers[n];
  if (*buffer == NULL) {
    *buffer = weft_gpt_allocate(rank->trainer->allocator, floats, sizeof **buffer);
  }
  *out = *buffer;
  return *buffer != NULL ? WEFT_OK : weft_fail_memory(error, floats * sizeof **buffer);
}

static void free_buffers(struct weft_gpt_rank *rank) {
  for (uint32_t n = 0; n < WEFT_GPT_GATHERED_MAX; n++) {
    weft_gpt_free(rank->trainer->allocator, rank->gathering.buffers[n]);
    rank->gathering.buffers[n] = NULL;
  }
}

static enum weft_status start_gathering(struct weft_gpt_rank *rank, uint32_t part, uint32_t arrays,
                                        struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_stage(rank, part, &k);
  const struct weft_gpt_part_kept *kept = &stage->memory.kept[k];
  const float *slices[] = {kept->parameters, kept->first_moment, kept->second_moment};
  struct weft_gpt_part_state *whole = &gathering->whole;
  float **wholes[] = {&whole->parameters, &whole->first_moment, &whole->second_moment};
  *whole = stage->parts[k];
  gathering->count = gathering->done = 0;
  for (uint32_t n = 0; n < arrays; n++) {
    if (*wholes[n] == NULL) {
      struct weft_collective *collective = &gathering->collectives[gathering->count];
      WEFT_TRY(buffer_of(rank, n, wholes[n], error));
      *collective = (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                             .from = slices[n],
                                             .to = *wholes[n],
                                             .bytes = kept->slice_floats * sizeof(float)};
      WEFT_TRY(rank->group->ops->start(rank->group, collective, error));
      gathering->count++;
    }
  }
  return WEFT_OK;
}

/* WEFT_OK: gathering.whole has weights, and moments, of an own part. All replicas of the
 * rank call it. */
static enum weft_status gather_part(struct weft_gpt_rank *rank, uint32_t part, uint32_t arrays,
                                    struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  if (!gathering->started) {
    WEFT_TRY(start_gathering(rank, part, arrays, error));
    gathering->started = true;
  }
  const enum weft_status status = weft_gpt_collectives_advance(
      rank->group, gathering->collectives, gathering->count, &gathering->done, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_gpt_rank_await(rank, error);
  }
  gathering->started = false;
  rank->wait_since = 0;
  return status;
}

/* ---- Checkpoints ---- */

static bool saves_now(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const uint64_t every = options->checkpoint_every;
  return options->checkpoint_dir != NULL &&
         ((every > 0 && rank->step % every == 0) || weft_gpt_rank_is_over(rank));
}

/* The first replica writes. */
static enum weft_status save_part(struct weft_gpt_rank *rank, uint32_t part,
                                  struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const enum weft_status status = gather_part(rank, part, WITH_MOMENTS, error);
  if (status != WEFT_OK || rank->replica != 0) {
    return status;
  }
  return weft_gpt_checkpoint_write_part(options->files, options->checkpoint_dir,
                                        &rank->trainer->config, rank->step, &rank->gathering.whole,
                                        &rank->files[part], error);
}

enum weft_status weft_gpt_rank_save(struct weft_gpt_rank *rank, struct weft_error *error) {
  if (!saves_now(rank)) {
    weft_gpt_rank_tell(rank);
    return WEFT_OK;
  }
  for (; rank->part_at < rank->own_part_count; rank->part_at++) {
    const enum weft_status status = save_part(rank, rank->own_parts[rank->part_at], error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  free_buffers(rank);
  rank->state = WEFT_GPT_RANK_SAVED;
  return WEFT_OK;
}

/* ---- Told by the ranks of the first replica, of each of their parts ---- */

static void tell_parts(struct weft_gpt_rank *rank, const void *items, size_t size) {
  weft_gpt_bulletin_begin(&rank->bulletin, rank->trainer->parts.most * size);
  for (uint32_t k = 0; rank->replica == 0 && k < rank->own_part_count; k++) {
    memcpy(rank->bulletin.mine + k * size, (const char *)items + rank->own_parts[k] * size, size);
  }
  rank->told = true;
}

static void take_parts(struct weft_gpt_rank *rank, void *items, size_t size) {
  const struct weft_gpt_ownership *parts = &rank->trainer->parts;
  for (uint32_t row = 0; row < rank->trainer->options.ranks; row++) {
    const unsigned char *told = weft_gpt_bulletin_of(&rank->bulletin, row);
    for (uint32_t k = parts->begin[row]; k < parts->begin[row + 1]; k++) {
      memcpy((char *)items + parts->list[k] * size, told + (k - parts->begin[row]) * size, size);
    }
  }
}

static enum weft_status exchange_parts(struct weft_gpt_rank *rank, void *items, size_t size,
                                       struct weft_error *error) {
  if (!rank->told) {
    tell_parts(rank, items, size);
  }
  const enum weft_status status = weft_gpt_rank_meet(rank, error);
  if (status == WEFT_OK) {
    take_parts(rank, items, size);
  }
  return status;
}

enum weft_status weft_gpt_rank_saved(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  const enum weft_status status = exchange_parts(rank, rank->files, sizeof *rank->files, error);
  if (status != WEFT_OK) {
    return status;
  }
  if (weft_gpt_rank_reports(rank)) {
    struct weft_gpt_progress progress = options->progress;
    progress.step = rank->step;
    WEFT_TRY(weft_gpt_checkpoint_commit(options->files, options->checkpoint_dir, &progress,
                                        rank->files, options->checkpoint_keep, error));
  }
  rank->state = WEFT_GPT_RANK_COMMITTED;
  return WEFT_OK;
}

/* ---- The hash ---- */

enum weft_status weft_gpt_rank_hash(struct weft_gpt_rank *rank, struct weft_error *error) {
  for (; rank->part_at < rank->own_part_count; rank->part_at++) {
    const uint32_t part = rank->own_parts[rank->part_at];
    const enum weft_status status = gather_part(rank, part, WEIGHTS_ONLY, error);
    if (status != WEFT_OK) {
      return status;
    }
    const struct weft_gpt_part_state *whole = &rank->gathering.whole;
    rank->hashes[part] = weft_checksum(whole->parameters, whole->floats * sizeof(float));
  }
  rank->state = WEFT_GPT_RANK_HASHED;
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_hashed(struct weft_gpt_rank *rank, struct weft_error *error) {
  const enum weft_status status = exchange_parts(rank, rank->hashes, sizeof *rank->hashes, error);
  if (status == WEFT_OK) {
    rank->is_hashed = true;
    rank->part_at = 0;
    rank->state = WEFT_GPT_RANK_MODEL;
  }
  return status;
}

/* ---- The model ---- */

/* The sum over the first replica's ranks, of which all but one give zeros, is what that
 * one has. */
static enum weft_status start_spreading(struct weft_gpt_rank *rank, uint32_t part, bool own,
                                        struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  const uint64_t bytes = weft_gpt_part_floats(&rank->trainer->config, part) * sizeof(float);
  float *buffer;
  WEFT_TRY(buffer_of(rank, WEFT_GPT_GATHERED_MAX - 1, &buffer, error));
  memset(buffer, 0, bytes);
  if (own) {
    memcpy(buffer, gathering->whole.parameters, bytes);
  }
  gathering->spread = (struct weft_collective){
      .kind = WEFT_ALL_REDUCE, .from = buffer, .to = buffer, .bytes = bytes};
  return rank->whole_group == NULL
             ? WEFT_OK
             : rank->whole_group->ops->start(rank->whole_group, &gathering->spread, error);
}

static enum weft_status spread_part(struct weft_gpt_rank *rank, uint32_t part, bool own,
                                    struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  struct weft_group *group = rank->whole_group;
  if (!gathering->spreads) {
    WEFT_TRY(start_spreading(rank, part, own, error));
    gathering->spreads = true;
  }
  const enum weft_status status =
      group != NULL ? group->ops->test(group, &gathering->spread, error) : WEFT_OK;
  if (status == WEFT_IN_PROGRESS) {
    return weft_gpt_rank_await(rank, error);
  }
  gathering->spreads = false;
  rank->wait_since = 0;
  if (status == WEFT_OK && rank->model != NULL) {
    memcpy(rank->model[part].parameters, gathering->spread.to, gathering->spread.bytes);
  }
  return status;
}

static enum weft_status model_part(struct weft_gpt_rank *rank, uint32_t part,
                                   struct weft_error *error) {
  uint32_t k;
  const bool own = weft_gpt_rank_stage(rank, part, &k) != NULL;
  if (own && !rank->gathering.spreads) {
    const enum weft_status status = gather_part(rank, part, WEIGHTS_ONLY, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  return rank->replica == 0 ? spread_part(rank, part, own, error) : WEFT_OK;
}

enum weft_status weft_gpt_rank_model(struct weft_gpt_rank *rank, struct weft_error *error) {
  const bool wanted = rank->trainer->options.gather_model;
  for (; wanted && rank->part_at < rank->trainer->part_count; rank->part_at++) {
    const enum weft_status status = model_part(rank, rank->part_at, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  free_buffers(rank);
  rank->is_modelled = wanted;
  rank->state = WEFT_GPT_RANK_EVENTS;
  return WEFT_OK;
}

/* ---- Events ---- */

static enum weft_status start_events(struct weft_gpt_rank *rank, struct weft_error *error) {
  const uint64_t room = rank->event_room;
  struct weft_gpt_gathering *gathering = &rank->gathering;
  for (uint64_t k = rank->event_count; k < room; k++) {
    rank->events[k] = (struct weft_event){.record = UINT32_MAX};
  }
  gathering->spread = (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                               .from = rank->events,
                                               .to = rank->all_events,
                                               .bytes = room * sizeof *rank->events};
  return rank->whole_group->ops->start(rank->whole_group, &gathering->spread, error);
}

static void pack_events(struct weft_gpt_rank *rank) {
  const uint64_t count = rank->event_room * rank->trainer->options.ranks;
  rank->all_event_count = 0;
  for (uint64_t k = 0; k < count; k++) {
    if (rank->all_events[k].record != UINT32_MAX) {
      rank->all_events[rank->all_event_count++] = rank->all_events[k];
    }
  }
}

enum weft_status weft_gpt_rank_events(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_gpt_gathering *gathering = &rank->gathering;
  if (rank->all_events == NULL) {
    rank->state = WEFT_GPT_RANK_DONE;
    return WEFT_OK;
  }
  if (!gathering->spreads) {
    WEFT_TRY(start_events(rank, error));
    gathering->spreads = true;
  }
  const enum weft_status status =
      rank->whole_group->ops->test(rank->whole_group, &gathering->spread, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_gpt_rank_await(rank, error);
  }
  gathering->spreads = false;
  rank->wait_since = 0;
  if (status == WEFT_OK) {
    pack_events(rank);
    rank->state = WEFT_GPT_RANK_DONE;
  }
  return status;
}
