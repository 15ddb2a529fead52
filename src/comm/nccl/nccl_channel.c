/* Opening channels: which communicators there are, and whether the GPU has room for their blocks. */
#define _GNU_SOURCE /* sched_getaffinity */
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
#include "device/environment_default.h"

enum {
  ID_BYTES = sizeof(ncclUniqueId),
  BLOCKS_MAX = 64,
  THREADS_MIN = 4 /* cores for the rank and NCCL's threads */
};

/* ---- Ends and communicators ---- */

static struct weft_nccl_end *end_at(const struct weft_nccl_world *world, uint32_t index) {
  return (struct weft_nccl_end *)weft_ends_at(&world->ends, index);
}

/* The communicator of an end, made if it is the first of it. */
static uint32_t find_communicator(struct weft_nccl_world *world, const struct weft_nccl_end *end) {
  assert(end->device == NULL); /* not among the others yet */
  const uint32_t rank = world->transport.rank;
  const struct weft_end *base = &end->base;
  for (uint32_t k = 0; k < world->ends.count && end->shares != 0; k++) {
    const struct weft_nccl_end *other = end_at(world, k);
    if (other->device != NULL && other->shares == end->shares && other->base.peer == base->peer &&
        other->base.sends == base->sends) {
      uint32_t *channel = &world->communicators[other->communicator].channel;
      *channel = base->channel < *channel ? base->channel : *channel;
      return other->communicator;
    }
  }
  struct weft_nccl_communicator *communicator = &world->communicators[world->communicator_count];
  communicator->world = world;
  communicator->from = base->sends ? rank : base->peer;
  communicator->to = base->sends ? base->peer : rank;
  communicator->channel = base->channel;
  return world->communicator_count++;
}

static enum weft_status set_up_end(struct weft_nccl_world *world,
                                   const struct weft_channel_end *from, struct weft_error *error) {
  struct weft_nccl_end *end = (struct weft_nccl_end *)weft_ends_find(&world->ends, from->channel);
  if (weft_device_is_host(from->device)) {
    return WEFT_OK;
  }
  if (world->device != NULL && world->device != from->device) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "open all channels of a rank for its one device, that of its groups",
                     "rank %" PRIu32 " opens channels for two devices", world->transport.rank);
  }
  end->shares = from->communicator;
  end->slots =
      weft_arena_allocate(&world->ends.arena, (size_t)end->base.mask + 1, sizeof *end->slots);
  WEFT_TRY(weft_arena_status(&world->ends.arena, error));
  world->device = from->device;
  end->communicator = find_communicator(world, end);
  end->device = from->device;
  return WEFT_OK;
}

static enum weft_status set_up_ends(struct weft_nccl_world *world,
                                    const struct weft_channel_end *ends, uint32_t count,
                                    struct weft_error *error) {
  assert(world->communicator_count == 0);
  struct weft_arena *arena = &world->ends.arena;
  world->device = world->groups != NULL ? world->groups->device : NULL;
  world->communicators =
      weft_arena_allocate(arena, count + (size_t)world->group_count, sizeof *world->communicators);
  world->ranks = weft_arena_allocate(arena, world->transport.rank_count, sizeof *world->ranks);
  WEFT_TRY(weft_arena_status(arena, error));
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(set_up_end(world, &ends[k], error));
  }
  for (struct weft_nccl_group *group = world->groups; group != NULL; group = group->next) {
    group->communicator = &world->communicators[world->communicator_count++];
    *group->communicator = (struct weft_nccl_communicator){.world = world,
                                                           .group = group,
                                                           .group_id = group->id,
                                                           .size = group->base.size,
                                                           .member = group->base.member};
  }
  return WEFT_OK;
}

/* The mpi world's channels carry headers where payloads are on the GPU. */
static enum weft_status open_inner(struct weft_nccl_world *world,
                                   const struct weft_channel_end *ends, uint32_t count,
                                   struct weft_error *error) {
  struct weft_channel_end *headers =
      weft_array_allocate(world->allocator, count + (size_t)1, sizeof *headers);
  if (headers == NULL) {
    return weft_fail_memory(error, count * sizeof *headers);
  }
  for (uint32_t k = 0; k < count; k++) {
    headers[k] = ends[k];
    if (!weft_device_is_host(ends[k].device)) {
      headers[k].device = NULL;
      headers[k].bytes_max = ID_BYTES;
    }
  }
  const enum weft_status status = world->inner->ops->open(world->inner, headers, count, error);
  weft_array_free(world->allocator, headers, count + (size_t)1, sizeof *headers);
  return status;
}

/* ---- What the ranks have ---- */

static uint32_t number_in(const char *variable, uint32_t otherwise) {
  const char *text = getenv(variable);
  const long number = text != NULL ? strtol(text, NULL, 10) : 0;
  return number >= 1 && number <= BLOCKS_MAX ? (uint32_t)number : otherwise;
}

/* NCCL's own variables go before what a communicator is created with; and it rounds the blocks of
 * sends and receives up to a power of two. */
uint32_t weft_nccl_blocks(void) {
  static const char *const minima[] = {"NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS",
                                       "NCCL_MIN_P2P_NCHANNELS"};
  uint32_t blocks = number_in("NCCL_MAX_CTAS", WEFT_NCCL_CTAS);
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(minima); k++) {
    const uint32_t minimum = number_in(minima[k], 1);
    blocks = minimum > blocks ? minimum : blocks;
  }
  return weft_channel_round_up(blocks);
}

static enum weft_status exchange_ranks(struct weft_nccl_world *world,
                                       const struct weft_nccl_rank *mine,
                                       struct weft_error *error) {
  struct weft_transport *inner = world->inner;
  const int64_t until = weft_nccl_limit(world);
  enum weft_status status;
  while ((status = inner->ops->exchange(inner, mine, world->ranks, sizeof *mine, error)) ==
         WEFT_IN_PROGRESS) {
    WEFT_TRY(weft_nccl_wait(world, "channels are opened", UINT32_MAX, until, error));
  }
  return status;
}

static enum weft_status describe_rank(struct weft_nccl_world *world, struct weft_nccl_rank *out,
                                      struct weft_error *error) {
  struct weft_cuda_identity identity;
  memset(out, 0, sizeof *out);
  out->version = (uint32_t)world->nccl->version;
  out->own_order = world->own_order;
  if (world->device == NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(weft_cuda_identify(world->device, &identity, error));
  memcpy(out->gpu, identity.uuid, sizeof out->gpu);
  out->has_device = 1;
  out->communicators = world->communicator_count;
  out->blocks = world->communicator_count * weft_nccl_blocks();
  out->sm_count = identity.sm_count;
  out->number = world->device->number;
  return WEFT_OK;
}

/* Transfers that spin must leave a multiprocessor free, else they could wait for room forever
 * (docs/gpu.md, Resident blocks). */
static enum weft_status check_blocks(struct weft_nccl_world *world,
                                     const struct weft_nccl_rank *mine, uint32_t *sharing,
                                     struct weft_error *error) {
  uint32_t blocks = 0, communicators = 0;
  *sharing = 0;
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    const struct weft_nccl_rank *other = &world->ranks[r];
    if (other->has_device && memcmp(other->gpu, mine->gpu, sizeof mine->gpu) == 0) {
      *sharing += 1;
      blocks += other->blocks;
      communicators += other->communicators;
    }
  }
  if (blocks < mine->sm_count) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_USAGE,
                   "fewer stages, groups or ranks per GPU have fewer communicators; "
                   "NCCL_MAX_CTAS=1 has each use one block",
                   "GPU %" PRIu32 " of rank %" PRIu32 " has %" PRIu32
                   " multiprocessors, and transfers of its %" PRIu32 " rank%s could hold %" PRIu32
                   " of them (%" PRIu32 " communicators of up to %" PRIu32
                   " blocks): it must be fewer, or a transfer may wait forever",
                   mine->number, world->transport.rank, mine->sm_count, *sharing,
                   *sharing == 1 ? "" : "s", blocks, communicators, weft_nccl_blocks());
}

static enum weft_status check_ranks(const struct weft_nccl_world *world, struct weft_error *error) {
  for (uint32_t k = 0; k < world->ends.count; k++) {
    const struct weft_nccl_end *end = end_at(world, k);
    const struct weft_nccl_rank *peer = &world->ranks[end->base.peer];
    if ((end->device != NULL) != (peer->has_device != 0)) {
      return weft_fail(error, WEFT_ERR_USAGE, "put both on GPUs, or both on the host",
                       "rank %" PRIu32 " is on %s and exchanges messages with rank %" PRIu32
                       ", which is on %s",
                       world->transport.rank, end->device != NULL ? "a GPU" : "the host",
                       end->base.peer, peer->has_device ? "a GPU" : "the host");
    }
  }
  for (uint32_t r = 0; r < world->transport.rank_count && world->device != NULL; r++) {
    const struct weft_nccl_rank *other = &world->ranks[r];
    if (other->has_device && other->version != (uint32_t)world->nccl->version) {
      return weft_fail(error, WEFT_ERR_UNAVAILABLE, "install the same NCCL on all hosts",
                       "rank %" PRIu32 " has NCCL %d, and rank %" PRIu32 " NCCL %" PRIu32,
                       world->transport.rank, world->nccl->version, r, other->version);
    }
    if (other->has_device && other->own_order != (uint32_t)world->own_order) {
      return weft_fail(error, WEFT_ERR_USAGE, "open the world with the same options on all ranks",
                       "rank %" PRIu32 " sums in %s, and rank %" PRIu32 " does not",
                       world->transport.rank,
                       world->own_order ? "NCCL's order" : "the order of members", r);
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
    weft_environment_default(WEFT_ENVIRONMENT_NCCL_HOSTID, name);
  }
}

/* NCCL moves messages between hosts by threads that poll without a pause. On a core that a launcher
 * has bound the whole process to, a message would take a turn of the scheduler, milliseconds; so
 * they leave it for the cores near the GPU. What the user has set stays. */
static void free_threads(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < THREADS_MIN) {
    weft_environment_default(WEFT_ENVIRONMENT_NCCL_IGNORE_CPU_AFFINITY, "1");
  }
}

/* NCCL's own collectives have to be connected before a step, whatever their sizes (nccl_sum.c). */
static void connect_algorithms(const struct weft_nccl_world *world) {
  if (world->own_order && world->groups != NULL) {
    weft_environment_default(WEFT_ENVIRONMENT_NCCL_RUNTIME_CONNECT, "0");
  }
}

static enum weft_status compare_ranks(struct weft_nccl_world *world, struct weft_error *error) {
  struct weft_nccl_rank mine;
  uint32_t sharing = 0;
  _Static_assert(sizeof mine <= WEFT_EXCHANGE_MAX, "what can be exchanged");
  WEFT_TRY(describe_rank(world, &mine, error)); /* the caller fails, and the others learn of it */
  WEFT_TRY(exchange_ranks(world, &mine, error));
  for (uint32_t r = 0; r < world->transport.rank_count; r++) {
    world->any_communicators = world->any_communicators || world->ranks[r].communicators > 0;
  }
  WEFT_TRY(check_ranks(world, error));
  if (world->device == NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(check_blocks(world, &mine, &sharing, error));
  name_host(world, sharing);
  free_threads();
  connect_algorithms(world);
  return WEFT_OK;
}

/* ---- Open and close ---- */

enum weft_status weft_nccl_open(struct weft_transport *transport,
                                const struct weft_channel_end *ends, uint32_t count,
                                struct weft_error *error) {
  assert(ends != NULL || count == 0);
  struct weft_nccl_world *world = weft_nccl_world_of(transport);
  WEFT_TRY(weft_ends_open(&world->ends, world->allocator, transport, ends, count,
                          sizeof(struct weft_nccl_end), error));
  WEFT_TRY(set_up_ends(world, ends, count, error));
  WEFT_TRY(open_inner(world, ends, count, error));
  WEFT_TRY(compare_ranks(world, error));
  return world->device != NULL ? weft_nccl_connect(world, error) : WEFT_OK;
}

void weft_nccl_close_ends(struct weft_nccl_world *world) {
  struct weft_device *device = world->device;
  const struct weft_allocator *allocator = world->allocator;
  struct weft_error error;
  if (device != NULL && device->ops->make_current(device, &error) == WEFT_OK) {
    if (world->communicator_count > 0) { /* a first transfer that failed */
      weft_nccl_drain_stream(world, world->communicators[0].marks[0], world->stream);
    }
    for (uint32_t k = 0; k < world->communicator_count; k++) {
      for (uint32_t m = 0; m < WEFT_NCCL_MARKS; m++) {
        device->ops->event_destroy(device, world->communicators[k].marks[m]);
      }
      device->ops->stream_destroy(device, world->communicators[k].stream);
      device->ops->free(device, allocator, world->communicators[k].others,
                        world->communicators[k].others_bytes);
    }
    for (uint32_t k = 0; k < world->ends.count; k++) {
      const struct weft_nccl_end *end = end_at(world, k);
      for (uint32_t s = 0; end->slots != NULL && s <= end->base.mask; s++) {
        device->ops->event_destroy(device, end->slots[s].event);
      }
    }
    device->ops->free(device, allocator, world->scratch, world->scratch_bytes);
    device->ops->stream_destroy(device, world->stream);
  }
  for (struct weft_nccl_group *group = world->groups; group != NULL; group = group->next) {
    group->communicator = NULL;
  }
  weft_ends_close(&world->ends);
  world->device = NULL;
  world->stream = NULL;
  world->any_communicators = false;
  world->communicators = NULL;
  world->communicator_count = 0;
}
