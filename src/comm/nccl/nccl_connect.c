/* Making communicators, of two ranks and of groups.
 *
 * NCCL connects ranks when they first exchange something, and all must take part. So every
 * communicator is made and used once here, in one order that is the same on all ranks: first those
 * of two ranks, then those of groups, by id. Take the first in that order that is not ready. All of
 * its ranks are through with all that come before, or these would not be ready; so all are at it,
 * and it becomes ready.
 *
 * Making one takes NCCL a second or so, so pairs without a common rank should do it at once. Let d be
 * the distance of two ranks. The pairs of a distance whose lower rank is in an even block of d ranks
 * have no rank in common, and so have the others. The order goes by distance and by this, so a
 * pipeline with a stage per rank takes as long as four communicators, whatever its length. */
#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/support.h>

#include "comm/nccl/nccl_world.h"
#include "comm/rank_status.h"

enum {
  ID_BYTES = sizeof(ncclUniqueId),
  WARM_BYTES = 64,
  SPIN_NS =
      200 * 1000, /* a call that NCCL passes on to a thread of its own is mostly done by then */
  PAUSE_NS = 20 * 1000,
  CONFIG_BYTES_2_26 = offsetof(ncclConfig_t, commName)
};

/* ---- Waiting ---- */

int64_t weft_nccl_limit(struct weft_nccl_world *world) {
  const struct weft_rank_status *status =
      world->inner->ops->rank_status(world->inner, world->transport.rank);
  const int64_t limit = WEFT_STATUS_LOAD(status->stall_limit);
  return limit > 0 ? world->inner->ops->now(world->inner) + limit : WEFT_TIME_NEVER;
}

/* The stall limit is over, while `what`. A rank that is stopped is the reason, whomever this one
 * waits for; `peer`: UINT32_MAX, or that one. */
static enum weft_status fail_late(struct weft_nccl_world *world, const char *what, uint32_t peer,
                                  struct weft_error *error) {
  assert(what != NULL && (peer == UINT32_MAX || peer < world->transport.rank_count));
  char name[WEFT_RANK_NAME_SIZE] = "the other ranks";
  bool stopped = false;
  const uint32_t missing = weft_missing_rank(&world->transport, &stopped);
  stopped = stopped && missing != world->transport.rank; /* it was, until now */
  struct weft_failure failure = {.rank = stopped ? missing : peer};
  if (failure.rank < world->transport.rank_count) {
    (void)weft_rank_name(&world->transport, failure.rank, name);
  }
  (void)weft_fail(&failure.error, WEFT_ERR_STALLED,
                  "do all ranks run the same program? NCCL_DEBUG=INFO has NCCL say what it does",
                  "rank %" PRIu32 ", GPU %" PRIu32
                  ": has waited for %s%s until the stall limit, while %s",
                  world->transport.rank, world->device != NULL ? world->device->number : 0, name,
                  stopped ? ", which is stopped, by a signal or a debugger," : "", what);
  world->inner->ops->fail(world->inner, &failure);
  *error = failure.error;
  return error->status;
}

enum weft_status weft_nccl_wait(struct weft_nccl_world *world, const char *what, uint32_t peer,
                                int64_t until, struct weft_error *error) {
  struct weft_transport *inner = world->inner;
  WEFT_TRY(inner->ops->wait(inner, until, error));
  WEFT_TRY(inner->ops->progress(inner, error));
  return inner->ops->now(inner) < until ? WEFT_OK : fail_late(world, what, peer, error);
}

/* Waits a moment; the error of a world that has failed. */
static enum weft_status pause_and_poll(struct weft_nccl_world *world, struct weft_error *error) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  WEFT_TRY(world->inner->ops->progress(world->inner, error));
  (void)nanosleep(&pause, NULL);
  return WEFT_OK;
}

/* What NCCL says is often the consequence of another rank's failure, which is on its way. */
static enum weft_status fail_after_others(struct weft_nccl_world *world, ncclResult_t result,
                                          const char *call, struct weft_error *error) {
  struct weft_error reason;
  const int64_t until = weft_clock_ns() + (int64_t)WEFT_NCCL_REPORT_MS * WEFT_NCCL_NS_PER_MS;
  (void)weft_nccl_fail(world->nccl, result, call, &reason);
  while (weft_clock_ns() < until) {
    WEFT_TRY(pause_and_poll(world, error));
  }
  *error = reason;
  return reason.status;
}

enum weft_status weft_nccl_await(struct weft_nccl_world *world, ncclComm_t comm,
                                 ncclResult_t result, const char *call, int64_t until,
                                 struct weft_error *error) {
  assert(comm != NULL || result != ncclInProgress);
  const int64_t spin_until = result == ncclInProgress ? weft_clock_ns() + SPIN_NS : 0;
  while (result == ncclInProgress) {
    const ncclResult_t asked = world->nccl->ncclCommGetAsyncError(comm, &result);
    if (asked != ncclSuccess) {
      return weft_nccl_fail(world->nccl, asked, "ncclCommGetAsyncError", error);
    }
    if (result == ncclInProgress && weft_clock_ns() < spin_until) {
      (void)sched_yield();
    } else if (result == ncclInProgress) {
      WEFT_TRY(pause_and_poll(world, error));
      if (world->inner->ops->now(world->inner) >= until) {
        return fail_late(world, call, UINT32_MAX, error);
      }
    }
  }
  return result == ncclSuccess ? WEFT_OK : fail_after_others(world, result, call, error);
}

enum weft_status weft_nccl_await_event(struct weft_nccl_world *world,
                                       struct weft_device_event *event, const char *what,
                                       uint32_t peer, int64_t until, struct weft_error *error) {
  assert(world->device != NULL && event != NULL);
  struct weft_device *device = world->device;
  enum weft_status status;
  while ((status = device->ops->event_query(device, event, error)) == WEFT_IN_PROGRESS) {
    WEFT_TRY(pause_and_poll(world, error));
    if (world->inner->ops->now(world->inner) >= until) {
      return fail_late(world, what, peer, error);
    }
  }
  return status;
}

/* ---- Ids ---- */

static enum weft_status make_id(const struct weft_nccl_world *world, ncclUniqueId *id,
                                struct weft_error *error) {
  const ncclResult_t result = world->nccl->ncclGetUniqueId(id);
  return result == ncclSuccess ? WEFT_OK
                               : weft_nccl_fail(world->nccl, result, "ncclGetUniqueId", error);
}

/* The first member makes the id. All memory is the arena's: after a failure MPI may still use it. */
static enum weft_status share_group_id(struct weft_nccl_world *world,
                                       const struct weft_nccl_communicator *communicator,
                                       int64_t until, ncclUniqueId *id, struct weft_error *error) {
  assert(communicator->group != NULL && communicator->size > 1);
  struct weft_group *group = communicator->group->inner;
  struct weft_collective *gather = weft_arena_allocate(&world->ends.arena, 1, sizeof *gather);
  ncclUniqueId *ids =
      weft_arena_allocate(&world->ends.arena, communicator->size + (size_t)1, sizeof *ids);
  enum weft_status status;
  WEFT_TRY(weft_arena_status(&world->ends.arena, error));
  if (communicator->member == 0) {
    WEFT_TRY(make_id(world, &ids[communicator->size], error));
  }
  *gather = (struct weft_collective){
      .kind = WEFT_ALL_GATHER, .from = &ids[communicator->size], .to = ids, .bytes = ID_BYTES};
  WEFT_TRY(group->ops->start(group, gather, error));
  while ((status = group->ops->test(group, gather, error)) == WEFT_IN_PROGRESS) {
    WEFT_TRY(
        weft_nccl_wait(world, "the communicator of a group is made", UINT32_MAX, until, error));
  }
  *id = ids[0];
  return status;
}

/* The sender makes the id, and it goes over the communicator's first channel, before any header. */
static enum weft_status share_id(struct weft_nccl_world *world,
                                 const struct weft_nccl_communicator *communicator, int64_t until,
                                 ncclUniqueId *id, struct weft_error *error) {
  if (communicator->size > 0) {
    return share_group_id(world, communicator, until, id, error);
  }
  const struct weft_end *end = weft_ends_find(&world->ends, communicator->channel);
  struct weft_transport *inner = world->inner;
  struct weft_message message = {
      .header = {.bytes = end->sends ? ID_BYTES : 0}, .data = id, .capacity = ID_BYTES};
  if (end->sends) {
    WEFT_TRY(make_id(world, id, error));
  }
  WEFT_TRY(inner->ops->post(inner, communicator->channel, end->sends, &message, error));
  enum weft_status status;
  while ((status = inner->ops->test(inner, &message, error)) == WEFT_IN_PROGRESS) {
    status = weft_nccl_wait(world, "communicators are made", end->peer, until, error);
    if (status < 0) {
      inner->ops->cancel(inner, &message);
      return status;
    }
  }
  WEFT_TRY(status);
  return message.header.bytes == ID_BYTES
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_PROTOCOL, "all ranks must open the same channels",
                         "rank %" PRIu32
                         " got something else than a communicator's id from rank "
                         "%" PRIu32,
                         world->transport.rank, end->peer);
}

/* ---- Communicators ---- */

static enum weft_status make_communicator(struct weft_nccl_world *world,
                                          struct weft_nccl_communicator *communicator,
                                          int64_t until, struct weft_error *error) {
  const bool has_names = world->nccl->version >= WEFT_NCCL_VERSION_NAMES;
  ncclConfig_t config = {.size = has_names ? sizeof config : CONFIG_BYTES_2_26,
                         .magic = NCCL_API_MAGIC,
                         .version = has_names ? WEFT_NCCL_VERSION_NAMES : WEFT_NCCL_VERSION_MIN,
                         .blocking = 0,
                         .cgaClusterSize = 0, /* each block finds room by itself */
                         .minCTAs = NCCL_CONFIG_UNDEF_INT,
                         .maxCTAs = (int)weft_nccl_blocks(),
                         .splitShare = NCCL_CONFIG_UNDEF_INT,
                         .trafficClass = NCCL_CONFIG_UNDEF_INT,
                         .commName = communicator->name,
                         .collnetEnable = NCCL_CONFIG_UNDEF_INT,
                         .CTAPolicy = NCCL_CONFIG_UNDEF_INT,
                         .shrinkShare = NCCL_CONFIG_UNDEF_INT,
                         .nvlsCTAs = NCCL_CONFIG_UNDEF_INT};
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  if (communicator->size > 0) {
    (void)snprintf(communicator->name, sizeof communicator->name, "weft group %" PRIu32,
                   communicator->group_id);
  } else {
    (void)snprintf(communicator->name, sizeof communicator->name,
                   "weft %" PRIu32 ">%" PRIu32 " channel %" PRIu32, communicator->from,
                   communicator->to, communicator->channel);
  }
  WEFT_TRY(share_id(world, communicator, until, &id, error));
  const int size = communicator->size > 0 ? (int)communicator->size : 2;
  const int member = communicator->size > 0 ? (int)communicator->member
                                            : world->transport.rank != communicator->from;
  const ncclResult_t result =
      world->nccl->ncclCommInitRankConfig(&communicator->comm, size, id, member, &config);
  return weft_nccl_await(world, communicator->comm, result, "ncclCommInitRankConfig", until, error);
}

/* The first transfer, for which NCCL connects the ranks. */
static enum weft_status warm_up(struct weft_nccl_world *world,
                                struct weft_nccl_communicator *communicator, int64_t until,
                                struct weft_error *error) {
  assert(communicator->comm != NULL && world->scratch != NULL);
  struct weft_device *device = world->device;
  const bool sends = world->transport.rank == communicator->from;
  uint32_t peer = UINT32_MAX;
  if (communicator->size > 0) {
    WEFT_TRY(weft_nccl_collect_first(world, communicator, world->scratch, error));
  } else {
    WEFT_TRY(weft_nccl_transfer(world, communicator, sends, world->scratch, WARM_BYTES,
                                world->stream, until, error));
    peer = sends ? communicator->to : communicator->from;
  }
  WEFT_TRY(device->ops->event_record(device, communicator->marks[0], world->stream, error));
  return weft_nccl_await_event(world, communicator->marks[0], "the first transfer is under way",
                               peer, until, error);
}

/* Where a communicator is in the order of all. */
struct order {
  uint32_t keys[6];
};

static struct order order_of(const struct weft_nccl_communicator *communicator) {
  if (communicator->size > 0) {
    return (struct order){{1, communicator->group_id}};
  }
  assert(communicator->from != communicator->to);
  const uint32_t low =
      communicator->from < communicator->to ? communicator->from : communicator->to;
  const uint32_t distance = communicator->from + communicator->to - 2 * low;
  return (struct order){
      {0, distance, low / distance % 2, communicator->channel, communicator->from != low, low}};
}

static int compare_communicators(const void *left, const void *right) {
  const struct order a = order_of(*(const struct weft_nccl_communicator *const *)left);
  const struct order b = order_of(*(const struct weft_nccl_communicator *const *)right);
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(a.keys); k++) {
    if (a.keys[k] != b.keys[k]) {
      return a.keys[k] < b.keys[k] ? -1 : 1;
    }
  }
  return 0;
}

static enum weft_status allocate_communicator(struct weft_nccl_world *world,
                                              struct weft_nccl_communicator *communicator,
                                              struct weft_error *error) {
  struct weft_device *device = world->device;
  for (uint32_t m = 0; m < WEFT_NCCL_MARKS; m++) {
    WEFT_TRY(device->ops->event_create(device, false, &communicator->marks[m], error));
  }
  if (communicator->size > 0 && !world->own_order) {
    communicator->others_bytes = (communicator->size - 1) * world->piece;
    communicator->others =
        device->ops->allocate(device, world->allocator, communicator->others_bytes);
    return communicator->others != NULL
               ? WEFT_OK
               : weft_device_fail_allocation(device, communicator->others_bytes, error);
  }
  return WEFT_OK;
}

static enum weft_status prepare_device(struct weft_nccl_world *world, struct weft_error *error) {
  struct weft_device *device = world->device;
  world->scratch_bytes = WARM_BYTES + world->transport.rank_count * sizeof(float);
  WEFT_TRY(device->ops->make_current(device, error));
  WEFT_TRY(device->ops->stream_create(device, &world->stream, error));
  world->scratch = device->ops->allocate(device, world->allocator, world->scratch_bytes);
  if (world->scratch == NULL) {
    return weft_device_fail_allocation(device, world->scratch_bytes, error);
  }
  for (uint32_t k = 0; k < world->communicator_count; k++) {
    WEFT_TRY(allocate_communicator(world, &world->communicators[k], error));
  }
  return WEFT_OK;
}

enum weft_status weft_nccl_connect(struct weft_nccl_world *world, struct weft_error *error) {
  assert(world->device != NULL && world->stream == NULL);
  struct weft_nccl_communicator **order = weft_arena_allocate(
      &world->ends.arena, world->communicator_count, sizeof(struct weft_nccl_communicator *));
  WEFT_TRY(weft_arena_status(&world->ends.arena, error));
  WEFT_TRY(prepare_device(world, error));
  for (uint32_t k = 0; k < world->communicator_count; k++) {
    order[k] = &world->communicators[k];
  }
  qsort(order, world->communicator_count, sizeof(struct weft_nccl_communicator *),
        compare_communicators);
  for (uint32_t k = 0; k < world->communicator_count; k++) {
    const int64_t until = weft_nccl_limit(world); /* of each: so many are made */
    WEFT_TRY(make_communicator(world, order[k], until, error));
    WEFT_TRY(warm_up(world, order[k], until, error));
  }
  return WEFT_OK;
}
