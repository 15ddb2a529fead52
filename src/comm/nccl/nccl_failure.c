/* When NCCL fails. A communicator does not report errors by itself, so they are asked for; and
 * transfers whose peer is gone spin on the GPU until their communicator is aborted. Aborting can
 * take forever itself, so threads do it, and the rank waits for them for a moment only. */
#include "comm/nccl/nccl_world.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <weft/support.h>

#include "comm/rank_threads.h"

enum { FINALIZE_MS = 5000 }; /* of each communicator */

/* ---- Errors ---- */

static void record_trouble(struct weft_nccl_world *world,
                           const struct weft_nccl_communicator *communicator, ncclResult_t result) {
  assert(result != ncclSuccess && world->device != NULL);
  const uint32_t rank = world->transport.rank;
  const uint32_t peer = communicator->size > 0       ? UINT32_MAX
                        : communicator->from == rank ? communicator->to
                                                     : communicator->from;
  char name[WEFT_RANK_NAME_SIZE + sizeof "with "], own[WEFT_RANK_NAME_SIZE];
  struct weft_error error;
  const bool remote = result == ncclRemoteError || result == ncclSystemError;
  (void)weft_nccl_fail(world->nccl, result, communicator->size > 0 ? "a collective" : "a transfer",
                       &error);
  if (communicator->size > 0) {
    (void)snprintf(name, sizeof name, "of group %" PRIu32, communicator->group_id);
  } else {
    (void)snprintf(name, sizeof name, "with ");
    (void)weft_rank_name(&world->transport, peer, name + strlen(name));
  }
  world->trouble.rank = remote ? peer : rank;
  (void)weft_fail(&world->trouble.error, error.status, error.hint,
                  "%s, GPU %" PRIu32 ": on the communicator %s: %s",
                  weft_rank_name(&world->transport, rank, own), world->device->number, name,
                  error.message);
  world->trouble_at = weft_clock_ns();
}

static void poll_communicators(struct weft_nccl_world *world) {
  for (uint32_t k = 0; k < world->communicator_count && world->trouble_at == 0; k++) {
    const struct weft_nccl_communicator *communicator = &world->communicators[k];
    ncclResult_t state = ncclSuccess;
    if (communicator->comm == NULL || communicator->gone) {
      continue;
    }
    const ncclResult_t result = world->nccl->ncclCommGetAsyncError(communicator->comm, &state);
    state = result != ncclSuccess ? result : state;
    if (state != ncclSuccess && state != ncclInProgress) {
      record_trouble(world, communicator, state);
    }
  }
}

static bool is_aborting(struct weft_nccl_world *world) {
  (void)pthread_mutex_lock(&world->lock);
  const bool aborting = world->aborting;
  (void)pthread_mutex_unlock(&world->lock);
  return aborting;
}

enum weft_status weft_nccl_check_alive(struct weft_nccl_world *world, struct weft_error *error) {
  if (!is_aborting(world)) {
    return WEFT_OK;
  }
  WEFT_TRY(world->inner->ops->progress(world->inner, error));
  return weft_fail(error, WEFT_ERR_PEER, "", "the communicators of rank %" PRIu32 " have ended",
                   world->transport.rank);
}

void weft_nccl_poll(struct weft_nccl_world *world) {
  const int64_t now = weft_clock_ns();
  if (now < world->next_poll || is_aborting(world)) {
    return;
  }
  world->next_poll = now + (int64_t)WEFT_NCCL_POLL_MS * WEFT_NCCL_NS_PER_MS;
  if (world->trouble_at == 0) {
    poll_communicators(world);
  } else if (now - world->trouble_at > (int64_t)WEFT_NCCL_REPORT_MS * WEFT_NCCL_NS_PER_MS) {
    world->inner->ops->fail(world->inner, &world->trouble);
  }
}

/* ---- Aborting ---- */

/* Freeing memory waits for all that runs on the GPU, and so for transfers of other communicators.
 * So all are aborted at once. */
static void *abort_communicator(void *context) {
  struct weft_nccl_communicator *communicator = context;
  struct weft_nccl_world *world = communicator->world;
  struct weft_error error;
  (void)world->device->ops->make_current(world->device, &error);
  (void)world->nccl->ncclCommAbort(communicator->comm);
  (void)pthread_mutex_lock(&world->lock);
  communicator->gone = true;
  world->aborts_left--;
  (void)pthread_cond_broadcast(&world->ended);
  (void)pthread_mutex_unlock(&world->lock);
  return NULL;
}

/* With the lock. */
static void start_aborts(struct weft_nccl_world *world) {
  world->aborting = true;
  for (uint32_t k = 0; k < world->communicator_count; k++) {
    struct weft_nccl_communicator *communicator = &world->communicators[k];
    pthread_t thread;
    if (communicator->comm != NULL && !communicator->gone &&
        pthread_create(&thread, NULL, abort_communicator, communicator) == 0) {
      (void)pthread_detach(thread);
      world->aborts_left++;
    }
  }
}

bool weft_nccl_abort(struct weft_nccl_world *world) {
  const int64_t until = weft_clock_ns() + (int64_t)WEFT_NCCL_ABORT_MS * WEFT_NCCL_NS_PER_MS;
  (void)pthread_mutex_lock(&world->lock);
  if (!world->aborting) {
    start_aborts(world);
  }
  while (world->aborts_left > 0 && !__atomic_load_n(&world->recorded, __ATOMIC_RELAXED) &&
         weft_condition_wait(&world->ended, &world->lock, until)) {
  }
  const bool ended = world->aborts_left == 0;
  (void)pthread_mutex_unlock(&world->lock);
  return ended;
}

/* ---- A good end ---- */

static bool finalize_communicator(const struct weft_nccl_world *world,
                                  const struct weft_nccl_communicator *communicator) {
  assert(communicator->comm != NULL && !communicator->gone);
  const int64_t until = weft_clock_ns() + (int64_t)FINALIZE_MS * WEFT_NCCL_NS_PER_MS;
  ncclResult_t state = world->nccl->ncclCommFinalize(communicator->comm);
  while (state == ncclInProgress && weft_clock_ns() < until) {
    const struct timespec pause = {.tv_nsec = 100 * 1000};
    (void)nanosleep(&pause, NULL);
    if (world->nccl->ncclCommGetAsyncError(communicator->comm, &state) != ncclSuccess) {
      return false;
    }
  }
  return state == ncclSuccess && world->nccl->ncclCommDestroy(communicator->comm) == ncclSuccess;
}

void weft_nccl_finalize(struct weft_nccl_world *world) {
  struct weft_error error;
  bool good =
      world->device == NULL || world->device->ops->make_current(world->device, &error) == WEFT_OK;
  for (uint32_t k = 0; k < world->communicator_count && good; k++) {
    struct weft_nccl_communicator *communicator = &world->communicators[k];
    if (communicator->comm != NULL && !communicator->gone) {
      good = finalize_communicator(world, communicator);
      communicator->gone = good;
    }
  }
  if (!good) {
    (void)weft_nccl_abort(world);
  }
}
