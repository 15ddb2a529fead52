/* Opening channels: which communicators there are, whether the GPU has room for their blocks, and
 * making them.
 *
 * NCCL connects two ranks when they first exchange something, and both must take part. So every
 * communicator is made and used once here, in one order that is the same on all ranks: by sender,
 * receiver and first channel. Take the first in that order that is not ready. Both of its ranks
 * are through with all that come before, or these would not be ready; so both are at it, and it
 * becomes ready. */
#define _GNU_SOURCE /* sched_getaffinity, setenv */
#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/support.h>

#include "comm/nccl/nccl_world.h"
#include "device/cuda/cuda_device.h"

enum {
  ID_BYTES = sizeof(ncclUniqueId),
  SCRATCH_BYTES = 64,
  PAUSE_NS = 20 * 1000,
  THREADS_MIN = 4, /* cores for the rank and NCCL's threads */
  CONFIG_BYTES_2_26 = offsetof(ncclConfig_t, commName)
};

/* ---- Ends and lanes ---- */

static bool shares_lane(const struct weft_channel_end *a, const struct weft_channel_end *b) {
  return a->peer == b->peer && a->sends == b->sends &&
         (a->channel == b->channel || (a->lane != 0 && a->lane == b->lane));
}

/* The lane of an end, made if it is the first of it. */
static uint32_t find_lane(struct weft_nccl_world *world, const struct weft_channel_end *ends,
                          uint32_t k) {
  const uint32_t rank = world->transport.rank;
  for (uint32_t other = 0; other < k; other++) {
    if (ends[other].device != NULL && shares_lane(&ends[other], &ends[k])) {
      struct weft_nccl_lane *lane = &world->lanes[world->ends[other].lane];
      if (ends[k].channel < lane->channel) {
        lane->channel = ends[k].channel;
        lane->end = k;
      }
      return world->ends[other].lane;
    }
  }
  struct weft_nccl_lane *lane = &world->lanes[world->lane_count];
  lane->from = ends[k].sends ? rank : ends[k].peer;
  lane->to = ends[k].sends ? ends[k].peer : rank;
  lane->channel = ends[k].channel;
  lane->end = k;
  return world->lane_count++;
}

static enum weft_status add_end(struct weft_nccl_world *world, const struct weft_channel_end *ends,
                                uint32_t k, struct weft_error *error) {
  const struct weft_channel_end *from = &ends[k];
  struct weft_nccl_end *end = &world->ends[k];
  WEFT_TRY(weft_channel_ends_add(&world->by_channel, &world->transport, from, k, error));
  end->channel = from->channel;
  end->peer = from->peer;
  end->depth = from->depth;
  end->state = (struct weft_channel_end_state){.sends = from->sends, .bytes_max = from->bytes_max};
  if (weft_device_is_host(from->device)) {
    return WEFT_OK;
  }
  if (world->device != NULL && world->device != from->device) {
    return weft_fail(error, WEFT_ERR_USAGE, "open all channels of a rank for its one device",
                     "rank %" PRIu32 " opens channels for two devices", world->transport.rank);
  }
  world->device = end->device = from->device;
  end->lane = find_lane(world, ends, k);
  end->slots = weft_arena_allocate(&world->arena, from->depth, sizeof *end->slots);
  return weft_arena_status(&world->arena, error);
}

static enum weft_status add_ends(struct weft_nccl_world *world, const struct weft_channel_end *ends,
                                 uint32_t count, struct weft_error *error) {
  world->ends = weft_arena_allocate(&world->arena, count, sizeof *world->ends);
  world->lanes = weft_arena_allocate(&world->arena, count, sizeof *world->lanes);
  world->ranks =
      weft_arena_allocate(&world->arena, world->transport.rank_count, sizeof *world->ranks);
  WEFT_TRY(weft_arena_status(&world->arena, error));
  WEFT_TRY(weft_channel_ends_init(&world->by_channel, world->allocator, &world->transport, count,
                                  error));
  world->end_count = count;
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(add_end(world, ends, k, error));
  }
  return WEFT_OK;
}

/* The mpi world's channels carry notes where payloads are on the GPU. */
static enum weft_status open_inner(struct weft_nccl_world *world,
                                   const struct weft_channel_end *ends, uint32_t count,
                                   struct weft_error *error) {
  struct weft_channel_end *notes =
      weft_array_allocate(world->allocator, count + (size_t)1, sizeof *notes);
  if (notes == NULL) {
    return weft_fail_memory(error, count * sizeof *notes);
  }
  for (uint32_t k = 0; k < count; k++) {
    notes[k] = ends[k];
    if (world->ends[k].device != NULL) {
      notes[k].device = NULL;
      notes[k].bytes_max = ID_BYTES;
    }
  }
  const enum weft_status status = world->inner->ops->open(world->inner, notes, count, error);
  weft_array_free(world->allocator, notes, count + (size_t)1, sizeof *notes);
  return status;
}

/* ---- What the ranks have ---- */

/* Blocks of a communicator, at most. For tests, and for NVLink with few ranks. */
static uint32_t blocks_of_lane(void) {
  const char *text = getenv("WEFT_NCCL_CTAS");
  const long number = text != NULL ? strtol(text, NULL, 10) : WEFT_NCCL_CTAS;
  return number >= 1 && number <= 64 ? (uint32_t)number : (uint32_t)WEFT_NCCL_CTAS;
}

static int64_t limit_of(struct weft_nccl_world *world) {
  const struct weft_rank_status *status =
      world->inner->ops->rank_status(world->inner, world->transport.rank);
  const int64_t limit = __atomic_load_n(&status->stall_limit, __ATOMIC_RELAXED);
  return limit > 0 ? world->inner->ops->now(world->inner) + limit : WEFT_TIME_NEVER;
}

static enum weft_status fail_late(struct weft_nccl_world *world, const char *what, uint32_t peer,
                                  struct weft_error *error) {
  char name[WEFT_RANK_NAME_SIZE];
  return weft_fail(
      error, WEFT_ERR_STALLED,
      "do all ranks run the same program? NCCL_DEBUG=INFO has NCCL say what it does",
      "rank %" PRIu32 " has waited for %s until the stall limit, while %s", world->transport.rank,
      peer < world->transport.rank_count ? weft_rank_name(&world->transport, peer, name)
                                         : "the other ranks",
      what);
}

static enum weft_status exchange(struct weft_nccl_world *world, const struct weft_nccl_rank *mine,
                                 struct weft_error *error) {
  struct weft_transport *inner = world->inner;
  const int64_t until = limit_of(world);
  enum weft_status status = WEFT_IN_PROGRESS;
  while (status == WEFT_IN_PROGRESS) {
    WEFT_TRY(inner->ops->progress(inner, error));
    status = inner->ops->exchange(inner, mine, world->ranks, sizeof *mine, error);
    if (status == WEFT_IN_PROGRESS) {
      WEFT_TRY(inner->ops->wait(inner, until, error));
      if (inner->ops->now(inner) >= until) {
        return fail_late(world, "channels are opened", UINT32_MAX, error);
      }
    }
  }
  return status;
}

static enum weft_status describe(struct weft_nccl_world *world, struct weft_nccl_rank *out,
                                 struct weft_error *error) {
  struct weft_cuda_identity identity;
  memset(out, 0, sizeof *out);
  out->version = (uint32_t)world->nccl->version;
  if (world->device == NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_cuda_identify(world->device, &identity, error));
  memcpy(out->gpu, identity.uuid, sizeof out->gpu);
  out->has_device = 1;
  out->lanes = world->lane_count;
  out->blocks = world->lane_count * blocks_of_lane();
  out->sm_count = identity.sm_count;
  out->number = world->device->number;
  return WEFT_OK;
}

/* Transfers that spin must leave a multiprocessor free, else they could wait for room forever
 * (docs/gpu.md, Resident blocks). */
static enum weft_status check_blocks(struct weft_nccl_world *world,
                                     const struct weft_nccl_rank *mine, uint32_t *sharing,
                                     struct weft_error *error) {
  uint32_t blocks = 0, lanes = 0;
  *sharing = 0;
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    const struct weft_nccl_rank *other = &world->ranks[r];
    if (other->has_device && memcmp(other->gpu, mine->gpu, sizeof mine->gpu) == 0) {
      *sharing += 1;
      blocks += other->blocks;
      lanes += other->lanes;
    }
  }
  if (blocks < mine->sm_count) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_USAGE,
                   "fewer stages per rank or fewer ranks per GPU have fewer communicators; "
                   "WEFT_NCCL_CTAS=1 has each use one block",
                   "GPU %" PRIu32 " of rank %" PRIu32 " has %" PRIu32
                   " multiprocessors, and transfers of its %" PRIu32 " rank%s could hold %" PRIu32
                   " of them (%" PRIu32 " communicators of up to %" PRIu32
                   " blocks): it must be fewer, or a transfer may wait forever",
                   mine->number, world->transport.rank, mine->sm_count, *sharing,
                   *sharing == 1 ? "" : "s", blocks, lanes, blocks_of_lane());
}

static enum weft_status check_ranks(const struct weft_nccl_world *world, struct weft_error *error) {
  for (uint32_t k = 0; k < world->end_count; k++) {
    const struct weft_nccl_end *end = &world->ends[k];
    const struct weft_nccl_rank *peer = &world->ranks[end->peer];
    if ((end->device != NULL) != (peer->has_device != 0)) {
      return weft_fail(error, WEFT_ERR_USAGE, "put both on GPUs, or both on the host",
                       "rank %" PRIu32 " is on %s and exchanges messages with rank %" PRIu32
                       ", which is on %s",
                       world->transport.rank, end->device != NULL ? "a GPU" : "the host", end->peer,
                       peer->has_device ? "a GPU" : "the host");
    }
    if (peer->version != (uint32_t)world->nccl->version) {
      return weft_fail(error, WEFT_ERR_UNAVAILABLE, "install the same NCCL on all hosts",
                       "rank %" PRIu32 " has NCCL %d, and rank %" PRIu32 " NCCL %" PRIu32,
                       world->transport.rank, world->nccl->version, end->peer, peer->version);
    }
  }
  return WEFT_OK;
}

/* NCCL refuses two ranks on one GPU of one host; with a name of its own, each process is a host
 * to it, and messages go by sockets. What the user has set stays. */
static void name_host(const struct weft_nccl_world *world, uint32_t sharing) {
  char name[64];
  if (sharing > 1) {
    (void)snprintf(name, sizeof name, "weft-rank-%" PRIu32, world->transport.rank);
    (void)setenv("NCCL_HOSTID", name, 0);
  }
}

/* NCCL moves messages between hosts by threads that poll without a pause. On a core that a launcher
 * has bound the whole process to, a message would take a turn of the scheduler, milliseconds; so
 * they leave it for the cores near the GPU. What the user has set stays. */
static void free_threads(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < THREADS_MIN) {
    (void)setenv("NCCL_IGNORE_CPU_AFFINITY", "1", 0);
  }
}

static enum weft_status compare_ranks(struct weft_nccl_world *world, struct weft_error *error) {
  struct weft_nccl_rank mine;
  uint32_t sharing = 0;
  _Static_assert(sizeof mine <= WEFT_EXCHANGE_MAX, "what can be exchanged");
  const enum weft_status status = describe(world, &mine, error);
  if (status < 0) {
    return status; /* the caller fails, and the others learn of it */
  }
  WEFT_TRY(exchange(world, &mine, error));
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    world->any_lanes = world->any_lanes || world->ranks[r].lanes > 0;
  }
  WEFT_TRY(check_ranks(world, error));
  if (world->device == NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(check_blocks(world, &mine, &sharing, error));
  name_host(world, sharing);
  free_threads();
  return WEFT_OK;
}

/* ---- Communicators ---- */

/* Waits a moment; the error of a world that has failed. */
static enum weft_status pause_and_look(struct weft_nccl_world *world, struct weft_error *error) {
  const struct timespec pause = {.tv_nsec = PAUSE_NS};
  WEFT_TRY(world->inner->ops->progress(world->inner, error));
  (void)nanosleep(&pause, NULL);
  return WEFT_OK;
}

/* What NCCL says is often the consequence of another rank's failure, which is on its way. */
static enum weft_status fail_after_others(struct weft_nccl_world *world, ncclResult_t result,
                                          const char *call, struct weft_error *error) {
  struct weft_error reason;
  const int64_t until = weft_clock_ns() + (int64_t)WEFT_NCCL_SETTLE_MS * WEFT_NCCL_NS_PER_MS;
  (void)weft_nccl_fail(world->nccl, result, call, &reason);
  while (weft_clock_ns() < until) {
    WEFT_TRY(pause_and_look(world, error));
  }
  *error = reason;
  return reason.status;
}

enum weft_status weft_nccl_await(struct weft_nccl_world *world, ncclComm_t comm,
                                 ncclResult_t result, const char *call, int64_t until,
                                 struct weft_error *error) {
  while (result == ncclInProgress) {
    const ncclResult_t asked = world->nccl->ncclCommGetAsyncError(comm, &result);
    if (asked != ncclSuccess) {
      return weft_nccl_fail(world->nccl, asked, "ncclCommGetAsyncError", error);
    }
    if (result == ncclInProgress) {
      WEFT_TRY(pause_and_look(world, error));
      if (world->inner->ops->now(world->inner) >= until) {
        return fail_late(world, call, UINT32_MAX, error);
      }
    }
  }
  return result == ncclSuccess ? WEFT_OK : fail_after_others(world, result, call, error);
}

static enum weft_status await_message(struct weft_nccl_world *world, struct weft_message *message,
                                      uint32_t peer, int64_t until, struct weft_error *error) {
  struct weft_transport *inner = world->inner;
  enum weft_status status;
  while ((status = inner->ops->progress(inner, error)) == WEFT_OK &&
         (status = inner->ops->test(inner, message, error)) == WEFT_IN_PROGRESS) {
    WEFT_TRY(inner->ops->wait(inner, until, error));
    if (inner->ops->now(inner) >= until) {
      inner->ops->cancel(inner, message);
      return fail_late(world, "communicators are made", peer, error);
    }
  }
  return status;
}

/* The sender makes the id, and it goes over the lane's first channel, before any note. */
static enum weft_status share_id(struct weft_nccl_world *world, const struct weft_nccl_lane *lane,
                                 int64_t until, ncclUniqueId *id, struct weft_error *error) {
  const struct weft_nccl_end *end = &world->ends[lane->end];
  struct weft_transport *inner = world->inner;
  struct weft_message message = {
      .header = {.bytes = end->state.sends ? ID_BYTES : 0}, .data = id, .capacity = ID_BYTES};
  if (end->state.sends) {
    const ncclResult_t result = world->nccl->ncclGetUniqueId(id);
    if (result != ncclSuccess) {
      return weft_nccl_fail(world->nccl, result, "ncclGetUniqueId", error);
    }
  }
  WEFT_TRY((end->state.sends ? inner->ops->send : inner->ops->receive)(inner, lane->channel,
                                                                       &message, error));
  WEFT_TRY(await_message(world, &message, end->peer, until, error));
  return message.header.bytes == ID_BYTES
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_PROTOCOL, "all ranks must open the same channels",
                         "rank %" PRIu32
                         " got something else than a communicator's id from rank "
                         "%" PRIu32,
                         world->transport.rank, end->peer);
}

static enum weft_status make_lane(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                                  int64_t until, struct weft_error *error) {
  const bool has_names = world->nccl->version >= WEFT_NCCL_VERSION_NAMES;
  ncclConfig_t config = {.size = has_names ? sizeof config : CONFIG_BYTES_2_26,
                         .magic = NCCL_API_MAGIC,
                         .version = has_names ? WEFT_NCCL_VERSION_NAMES : WEFT_NCCL_VERSION_MIN,
                         .blocking = 0,
                         .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                         .minCTAs = NCCL_CONFIG_UNDEF_INT,
                         .maxCTAs = (int)blocks_of_lane(),
                         .splitShare = NCCL_CONFIG_UNDEF_INT,
                         .trafficClass = NCCL_CONFIG_UNDEF_INT,
                         .commName = lane->name,
                         .collnetEnable = NCCL_CONFIG_UNDEF_INT,
                         .CTAPolicy = NCCL_CONFIG_UNDEF_INT,
                         .shrinkShare = NCCL_CONFIG_UNDEF_INT,
                         .nvlsCTAs = NCCL_CONFIG_UNDEF_INT};
  ncclUniqueId id;
  memset(&id, 0, sizeof id);
  (void)snprintf(lane->name, sizeof lane->name, "weft %" PRIu32 ">%" PRIu32 " channel %" PRIu32,
                 lane->from, lane->to, lane->channel);
  WEFT_TRY(share_id(world, lane, until, &id, error));
  const ncclResult_t result = world->nccl->ncclCommInitRankConfig(
      &lane->comm, 2, id, world->transport.rank == lane->from ? 0 : 1, &config);
  return weft_nccl_await(world, lane->comm, result, "ncclCommInitRankConfig", until, error);
}

static enum weft_status await_event(struct weft_nccl_world *world, struct weft_device_event *event,
                                    uint32_t peer, int64_t until, struct weft_error *error) {
  struct weft_device *device = world->device;
  enum weft_status status;
  while ((status = device->ops->event_query(device, event, error)) == WEFT_IN_PROGRESS) {
    WEFT_TRY(pause_and_look(world, error));
    if (world->inner->ops->now(world->inner) >= until) {
      return fail_late(world, "the first transfer is under way", peer, error);
    }
  }
  return status;
}

/* The first transfer, for which NCCL connects the two ranks. */
static enum weft_status warm_up(struct weft_nccl_world *world, struct weft_nccl_lane *lane,
                                int64_t until, struct weft_error *error) {
  const struct weft_nccl_api *nccl = world->nccl;
  struct weft_device *device = world->device;
  const bool sends = world->transport.rank == lane->from;
  const ncclResult_t result =
      sends ? nccl->ncclSend(world->scratch, SCRATCH_BYTES, ncclInt8, 1, lane->comm, world->stream)
            : nccl->ncclRecv(world->scratch, SCRATCH_BYTES, ncclInt8, 0, lane->comm, world->stream);
  WEFT_TRY(
      weft_nccl_await(world, lane->comm, result, sends ? "ncclSend" : "ncclRecv", until, error));
  WEFT_TRY(device->ops->event_record(device, lane->marks[0], world->stream, error));
  return await_event(world, lane->marks[0], sends ? lane->to : lane->from, until, error);
}

static int compare_lanes(const void *left, const void *right) {
  const struct weft_nccl_lane *const *a = left, *const *b = right;
  if ((*a)->from != (*b)->from) {
    return (*a)->from < (*b)->from ? -1 : 1;
  }
  if ((*a)->to != (*b)->to) {
    return (*a)->to < (*b)->to ? -1 : 1;
  }
  return (*a)->channel < (*b)->channel ? -1 : (*a)->channel > (*b)->channel;
}

static enum weft_status prepare_device(struct weft_nccl_world *world, struct weft_error *error) {
  struct weft_device *device = world->device;
  WEFT_TRY(device->ops->make_current(device, error));
  WEFT_TRY(device->ops->stream_create(device, world->allocator, &world->stream, error));
  world->scratch = device->ops->allocate(device, world->allocator, SCRATCH_BYTES);
  if (world->scratch == NULL) {
    return weft_device_fail_allocation(device, SCRATCH_BYTES, error);
  }
  for (uint32_t k = 0; k < world->lane_count; k++) {
    for (uint32_t m = 0; m < WEFT_NCCL_MARKS; m++) {
      WEFT_TRY(
          device->ops->event_create(device, world->allocator, &world->lanes[k].marks[m], error));
    }
  }
  return WEFT_OK;
}

static enum weft_status connect(struct weft_nccl_world *world, struct weft_error *error) {
  const int64_t until = limit_of(world);
  struct weft_nccl_lane **order =
      weft_arena_allocate(&world->arena, world->lane_count, sizeof(struct weft_nccl_lane *));
  WEFT_TRY(weft_arena_status(&world->arena, error));
  WEFT_TRY(prepare_device(world, error));
  for (uint32_t k = 0; k < world->lane_count; k++) {
    order[k] = &world->lanes[k];
  }
  qsort(order, world->lane_count, sizeof(struct weft_nccl_lane *), compare_lanes);
  for (uint32_t k = 0; k < world->lane_count; k++) {
    WEFT_TRY(make_lane(world, order[k], until, error));
    WEFT_TRY(warm_up(world, order[k], until, error));
  }
  return WEFT_OK;
}

/* ---- Open and close ---- */

enum weft_status weft_nccl_open(struct weft_transport *transport,
                                const struct weft_channel_end *ends, uint32_t count,
                                struct weft_error *error) {
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  WEFT_TRY(weft_channel_check_open(transport, world->opened, error));
  world->opened = true;
  enum weft_status status = add_ends(world, ends, count, error);
  if (status == WEFT_OK) {
    status = open_inner(world, ends, count, error);
  }
  if (status == WEFT_OK) {
    status = compare_ranks(world, error);
  }
  if (status == WEFT_OK && world->device != NULL) {
    status = connect(world, error);
  }
  return status;
}

void weft_nccl_close_ends(struct weft_nccl_world *world) {
  struct weft_device *device = world->device;
  const struct weft_allocator *allocator = world->allocator;
  struct weft_error error;
  if (device != NULL && device->ops->make_current(device, &error) == WEFT_OK) {
    for (uint32_t k = 0; k < world->lane_count; k++) {
      for (uint32_t m = 0; m < WEFT_NCCL_MARKS; m++) {
        device->ops->event_destroy(device, allocator, world->lanes[k].marks[m]);
      }
      device->ops->stream_destroy(device, allocator, world->lanes[k].stream);
    }
    for (uint32_t k = 0; k < world->end_count; k++) {
      struct weft_nccl_end *end = &world->ends[k];
      for (uint32_t s = 0; end->slots != NULL && s < end->depth; s++) {
        device->ops->event_destroy(device, allocator, end->slots[s].event);
      }
    }
    device->ops->free(device, allocator, world->scratch, SCRATCH_BYTES);
    device->ops->stream_destroy(device, allocator, world->stream);
  }
  weft_channel_ends_finish(&world->by_channel, allocator);
  weft_arena_finish(&world->arena);
  world->device = NULL;
  world->stream = NULL;
  world->any_lanes = false;
  world->ends = NULL;
  world->lanes = NULL;
  world->end_count = world->lane_count = 0;
}
