/* The trainer: opens the world, creates the ranks of this process and runs them. What a rank
 * does is loop.c's. */
#include "trainer/train/trainer.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "trainer/kernels/kernels.h"
#include "trainer/model/aligned_memory.h"
#include "trainer/train/rank.h"

struct weft_gpt_rank *weft_gpt_trainer_local(const struct weft_gpt_trainer *trainer,
                                             uint32_t world_rank) {
  return world_rank >= trainer->first_local &&
                 world_rank - trainer->first_local < trainer->local_count
             ? &trainer->ranks[world_rank - trainer->first_local]
             : NULL;
}

/* ---- The world ---- */

/* The world of options.endpoint, or a new one of options.transport. */
static enum weft_status open_world(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &trainer->options;
  const struct weft_transport *local = options->endpoint;
  bool one_rank = true;
  if (local == NULL) {
    struct weft_comm_options comm = weft_comm_options_default();
    comm.rank_count = trainer->world_size;
    comm.seed = options->loopback_seed;
    comm.stage_limit_ns = options->stall_limit;
    WEFT_TRY(weft_comm_open(trainer->allocator,
                            options->transport != NULL ? options->transport : "threads", &comm,
                            &trainer->comm, error));
    local = weft_comm_local(trainer->comm);
    one_rank = weft_comm_info(trainer->comm)->process_per_rank;
  }
  if (local->rank_count != trainer->world_size) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "start as many processes as replicas times pipeline ranks",
                     "the world has %" PRIu32 " ranks; %" PRIu32 " replicas of %" PRIu32
                     " pipeline ranks are %" PRIu32,
                     local->rank_count, options->replicas, options->ranks, trainer->world_size);
  }
  trainer->first_local = local->rank;
  trainer->local_count = one_rank ? 1 : trainer->world_size;
  trainer->process_per_rank = options->cuda != NULL && local->ops->step_barrier == NULL;
  trainer->virtual_time = local->ops->virtual_time;
  trainer->stall_limit = trainer->virtual_time ? 0 : options->stall_limit;
  return WEFT_OK;
}

static struct weft_transport *endpoint_of(const struct weft_gpt_trainer *trainer, uint32_t rank) {
  return trainer->comm != NULL ? weft_comm_endpoint(trainer->comm, rank)
                               : trainer->options.endpoint;
}

/* ---- Create and destroy ---- */

static void announce(const struct weft_gpt_trainer *trainer, uint32_t rank) {
  if (trainer->options.on_rank != NULL) {
    trainer->options.on_rank(trainer->options.context, rank);
  }
}

static enum weft_status build(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  WEFT_TRY(weft_gpt_trainer_lay_out(trainer, error));
  WEFT_TRY(open_world(trainer, error));
  trainer->ranks =
      weft_arena_allocate(&trainer->arena, trainer->local_count, sizeof *trainer->ranks);
  WEFT_TRY(weft_arena_status(&trainer->arena, error));
  weft_gpt_set_blas_threads(1); /* a rank has one thread; more would change the bits */
  for (uint32_t k = 0; k < trainer->local_count; k++) {
    const uint32_t rank = trainer->first_local + k;
    announce(trainer, rank);
    WEFT_TRY(weft_gpt_rank_init(&trainer->ranks[k], trainer, endpoint_of(trainer, rank), error));
  }
  return WEFT_OK;
}

/* Ranks in other processes would wait for this one. The error becomes the one that all ranks
 * agree on. */
static enum weft_status fail_world(struct weft_transport *endpoint, struct weft_error *error) {
  struct weft_failure failure = {.rank = endpoint->rank, .error = *error};
  endpoint->ops->fail(endpoint, &failure);
  if (endpoint->ops->get_failure(endpoint, &failure)) {
    *error = failure.error;
  }
  return error->status;
}

enum weft_status weft_gpt_trainer_create(const struct weft_gpt_trainer_options *options,
                                         struct weft_gpt_trainer **out, struct weft_error *error) {
  assert(options != NULL && options->dataset != NULL && error != NULL);
  struct weft_gpt_trainer *trainer = weft_gpt_allocate(options->allocator, 1, sizeof *trainer);
  if (trainer == NULL) {
    return weft_fail_memory(error, sizeof *trainer);
  }
  trainer->options = *options;
  trainer->allocator = trainer->arena.allocator = options->allocator;
  const enum weft_status status = build(trainer, error);
  if (status < 0) {
    struct weft_transport *local =
        trainer->comm != NULL ? weft_comm_local(trainer->comm) : options->endpoint;
    if (local != NULL) {
      struct weft_error agreed = *error; /* the caller gets the reason found here */
      (void)fail_world(local, &agreed);
    }
    weft_gpt_trainer_destroy(trainer);
    return status;
  }
  *out = trainer;
  return WEFT_OK;
}

void weft_gpt_trainer_destroy(struct weft_gpt_trainer *trainer) {
  if (trainer == NULL || weft_comm_stuck_ranks(trainer->comm) > 0) {
    return; /* threads that are stuck in a stage use it */
  }
  for (uint32_t k = 0; trainer->ranks != NULL && k < trainer->local_count; k++) {
    weft_gpt_rank_finish(&trainer->ranks[k]);
  }
  weft_comm_close(trainer->comm);
  weft_program_destroy(trainer->first.table);
  weft_program_destroy(trainer->graph_program);
  weft_graph_destroy(trainer->graph);
  weft_arena_finish(&trainer->arena);
  weft_gpt_free(trainer->allocator, trainer);
}

/* ---- Run ---- */

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct weft_gpt_trainer *trainer = context;
  announce(trainer, transport->rank);
  return weft_gpt_rank_train(weft_gpt_trainer_local(trainer, transport->rank), error);
}

/* When a checkpoint cannot be written, for lack of space perhaps, its files only take space. */
static void discard_checkpoint(const struct weft_gpt_trainer *trainer) {
  const struct weft_gpt_trainer_options *options = &trainer->options;
  if (options->checkpoint_dir != NULL) {
    weft_gpt_checkpoint_discard(options->files, options->checkpoint_dir, trainer->ranks[0].step);
  }
}

enum weft_status weft_gpt_trainer_run(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  assert(trainer != NULL && error != NULL);
  enum weft_status status;
  if (trainer->comm != NULL) {
    status = weft_comm_run(trainer->comm, rank_main, trainer, error);
  } else {
    status = rank_main(trainer, trainer->options.endpoint, error);
    status = status < 0 ? fail_world(trainer->options.endpoint, error) : status;
  }
  if (status < 0) {
    discard_checkpoint(trainer);
  }
  return status;
}
