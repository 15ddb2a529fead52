/* Collectives over some of the ranks, by messages from each member to each: a member sends every
 * other one what that one needs, and sums what it received in order of members, so that the bits
 * of a sum do not depend on the network.
 *
 * A collective is a sequence of rounds. In a round, every member sends a block to every other one
 * and receives one from each; the next round begins when all of that is done, so the memory for
 * received blocks is bounded. All members have the same rounds, and MPI keeps the order between
 * two of them, so blocks need no names. A group executes one collective at a time, in the order in
 * which they were started.
 *
 *   all-gather      shares, in pieces that MPI can count
 *   reduce-scatter  chunks of each share, summed by its owner
 *   all-reduce      reduce-scatter over slices, then all-gather of these */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "comm/mpi/driver/mpi_world.h"

enum { CHUNK = 256 << 10, SUM_BLOCK = 512 };

enum phase { PHASE_REDUCE, PHASE_GATHER };

struct weft_mpi_group {
  struct weft_group base; /* first */
  struct weft_mpi_world *world;
  uint32_t id;
  uint32_t *ranks;       /* [size] */
  MPI_Request *requests; /* [2 * size]: receive and send, by member */
  MPI_Status *statuses;
  unsigned char *arrived;               /* [size][CHUNK] */
  struct weft_collective *first, *last; /* started and not done, linked through state[1] */
  enum phase phase;
  uint64_t round;
  bool posted;                 /* the present round's messages */
  struct weft_mpi_group *next; /* in the world's list */
  bool listed;
};

/* state[0]: 1 while it is the group's; state[1]: the next one. */
static struct weft_collective *next_of(const struct weft_collective *collective) {
  struct weft_collective *next;
  memcpy(&next, &collective->state[1], sizeof(struct weft_collective *));
  return next;
}

/* ---- what belongs to whom ---- */

struct span {
  uint64_t begin;
  uint64_t bytes;
};

/* The part of the whole that a member owns. */
static struct span share_of(const struct weft_mpi_group *group,
                            const struct weft_collective *collective, uint32_t member) {
  if (collective->kind != WEFT_ALL_REDUCE) {
    return (struct span){member * collective->bytes, collective->bytes};
  }
  const uint64_t floats = collective->bytes / sizeof(float);
  const uint64_t slice = (floats + group->base.size - 1) / group->base.size * sizeof(float);
  const uint64_t begin = member * slice < collective->bytes ? member * slice : collective->bytes;
  const uint64_t left = collective->bytes - begin;
  return (struct span){begin, left < slice ? left : slice};
}

static uint64_t block_size(const struct weft_mpi_group *group) {
  return group->phase == PHASE_REDUCE ? CHUNK : group->world->piece;
}

/* What of a member's share goes in the present round. */
static struct span block_of(const struct weft_mpi_group *group,
                            const struct weft_collective *collective, uint32_t member) {
  const struct span share = share_of(group, collective, member);
  const uint64_t size = block_size(group);
  const uint64_t skip = group->round * size < share.bytes ? group->round * size : share.bytes;
  const uint64_t left = share.bytes - skip;
  return (struct span){share.begin + skip, left < size ? left : size};
}

static bool phase_is_over(const struct weft_mpi_group *group,
                          const struct weft_collective *collective) {
  return group->round * block_size(group) >= share_of(group, collective, 0).bytes;
}

/* Where a reduce-scatter's sum goes: its own share is all that it writes. */
static unsigned char *result_place(const struct weft_collective *collective, struct span block,
                                   struct span share) {
  unsigned char *to = collective->to;
  return to + (collective->kind == WEFT_ALL_REDUCE ? block.begin : block.begin - share.begin);
}

/* ---- a round ---- */

static int post_reduce(struct weft_mpi_group *group, const struct weft_collective *collective,
                       uint32_t other) {
  const struct weft_mpi_world *world = group->world;
  const struct span mine = block_of(group, collective, group->base.member);
  const struct span theirs = block_of(group, collective, other);
  const int rank = (int)group->ranks[other];
  const int result =
      MPI_Irecv(group->arrived + (size_t)other * CHUNK, (int)mine.bytes, MPI_BYTE, rank,
                (int)group->id, world->collectives, &group->requests[2 * other]);
  return result != MPI_SUCCESS ? result
                               : MPI_Isend((const unsigned char *)collective->from + theirs.begin,
                                           (int)theirs.bytes, MPI_BYTE, rank, (int)group->id,
                                           world->collectives, &group->requests[2 * other + 1]);
}

/* Its own share lies in its place among all. */
static int post_gather(struct weft_mpi_group *group, const struct weft_collective *collective,
                       uint32_t other) {
  const struct weft_mpi_world *world = group->world;
  unsigned char *to = collective->to;
  const struct span mine = block_of(group, collective, group->base.member);
  const struct span theirs = block_of(group, collective, other);
  const int rank = (int)group->ranks[other];
  const int result = MPI_Irecv(to + theirs.begin, (int)theirs.bytes, MPI_BYTE, rank, (int)group->id,
                               world->collectives, &group->requests[2 * other]);
  return result != MPI_SUCCESS
             ? result
             : MPI_Isend(to + mine.begin, (int)mine.bytes, MPI_BYTE, rank, (int)group->id,
                         world->collectives, &group->requests[2 * other + 1]);
}

/* Each begins with its neighbour, so that not all send to the first at once. */
static int post_round(struct weft_mpi_group *group, const struct weft_collective *collective) {
  int result = MPI_SUCCESS;
  for (uint32_t k = 1; k < group->base.size && result == MPI_SUCCESS; k++) {
    const uint32_t other = (group->base.member + k) % group->base.size;
    result = group->phase == PHASE_REDUCE ? post_reduce(group, collective, other)
                                          : post_gather(group, collective, other);
  }
  group->posted = true;
  return result;
}

/* ((x0 + x1) + x2) + ... of this rank's block. The result may lie where this rank's
 * own part of the sum does. */
static void sum_round(struct weft_mpi_group *group, const struct weft_collective *collective) {
  const uint32_t member = group->base.member;
  const struct span share = share_of(group, collective, member);
  const struct span block = block_of(group, collective, member);
  const unsigned char *own = (const unsigned char *)collective->from + block.begin;
  unsigned char *to = result_place(collective, block, share);
  float sum[SUM_BLOCK];
  float part[SUM_BLOCK];
  for (uint64_t at = 0; at < block.bytes; at += sizeof sum) {
    const size_t bytes = block.bytes - at < sizeof sum ? (size_t)(block.bytes - at) : sizeof sum;
    for (uint32_t m = 0; m < group->base.size; m++) {
      const unsigned char *from = m == member ? own : group->arrived + (size_t)m * CHUNK;
      memcpy(m == 0 ? sum : part, from + at, bytes);
      for (size_t i = 0; m > 0 && i < bytes / sizeof(float); i++) {
        sum[i] += part[i];
      }
    }
    memcpy(to + at, sum, bytes);
  }
}

/* ---- a collective ---- */

static void begin_collective(struct weft_mpi_group *group) {
  const struct weft_collective *collective = group->first;
  group->round = 0;
  group->posted = false;
  group->phase = PHASE_REDUCE;
  if (collective == NULL || collective->kind != WEFT_ALL_GATHER) {
    return;
  }
  group->phase = PHASE_GATHER;
  unsigned char *place = (unsigned char *)collective->to + group->base.member * collective->bytes;
  if (collective->bytes > 0 && collective->from != place) {
    memmove(place, collective->from, (size_t)collective->bytes);
  }
}

static void end_collective(struct weft_mpi_group *group) {
  struct weft_collective *collective = group->first;
  group->first = next_of(collective);
  group->last = group->first != NULL ? group->last : NULL;
  collective->state[0] = 0;
  group->world->events++;
  begin_collective(group);
}

/* MPI accepts a message that is shorter than its receive. */
static bool is_complete(struct weft_mpi_group *group) {
  for (uint32_t other = 0; other < group->base.size; other++) {
    const struct span block =
        block_of(group, group->first, group->phase == PHASE_REDUCE ? group->base.member : other);
    int count = 0;
    if (other == group->base.member) {
      continue;
    }
    (void)MPI_Get_count(&group->statuses[2 * other], MPI_BYTE, &count);
    if ((uint64_t)count != block.bytes) {
      struct weft_failure failure = {.rank = group->ranks[other]};
      (void)weft_fail(
          &failure.error, WEFT_ERR_PROTOCOL, "members start the same collectives in the same order",
          "group %" PRIu32 ": rank %" PRIu32 " sent %d bytes to rank %" PRIu32
          ", which expected %" PRIu64,
          group->id, group->ranks[other], count, group->world->transport.rank, block.bytes);
      weft_mpi_failure_report(group->world, &failure);
      return false;
    }
  }
  return true;
}

/* False when it has to wait. */
static bool end_round(struct weft_mpi_group *group) {
  int flag = 0;
  const int result =
      MPI_Testall((int)(2 * group->base.size), group->requests, &flag, group->statuses);
  if (result != MPI_SUCCESS) {
    weft_mpi_failure_of_mpi(group->world, result, "a collective");
    return false;
  }
  if (!flag || !is_complete(group)) {
    return false;
  }
  if (group->phase == PHASE_REDUCE) {
    sum_round(group, group->first);
  }
  group->posted = false;
  group->round++;
  return true;
}

static void advance_group(struct weft_mpi_group *group) {
  while (group->first != NULL && !group->world->has_failed) {
    if (group->posted) {
      if (!end_round(group)) {
        return;
      }
    } else if (!phase_is_over(group, group->first)) {
      const int result = post_round(group, group->first);
      if (result != MPI_SUCCESS) {
        weft_mpi_failure_of_mpi(group->world, result, "starting a collective");
        return;
      }
    } else if (group->first->kind == WEFT_ALL_REDUCE && group->phase == PHASE_REDUCE) {
      group->phase = PHASE_GATHER;
      group->round = 0;
    } else {
      end_collective(group);
    }
  }
}

void weft_mpi_groups_advance(struct weft_mpi_world *world) {
  struct weft_mpi_group **place = &world->groups;
  while (*place != NULL) {
    struct weft_mpi_group *group = *place;
    advance_group(group);
    if (group->first == NULL) {
      *place = group->next;
      group->listed = false;
    } else {
      place = &group->next;
    }
  }
}

/* ---- the ops ---- */

static enum weft_status check(const struct weft_mpi_group *group,
                              const struct weft_collective *collective, struct weft_error *error) {
  const uint64_t bytes = collective->bytes;
  if (!weft_device_is_host(collective->device)) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "copy it to host memory (weft_copy)",
                     "a collective in the memory of a %s device, and mpi works on host memory only",
                     weft_device_name(collective->device));
  }
  if (collective->kind != WEFT_ALL_GATHER && bytes % sizeof(float) != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "sums are of f32",
                     "a sum over %" PRIu64 " bytes, which are no whole floats", bytes);
  }
  uint64_t all;
  if (!weft_multiply(bytes, group->base.size, &all) || all > PTRDIFF_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "", "a collective of %" PRIu64 " bytes per member",
                     bytes);
  }
  return WEFT_OK;
}

static enum weft_status group_start(struct weft_group *base, struct weft_collective *collective,
                                    struct weft_error *error) {
  struct weft_mpi_group *group = (struct weft_mpi_group *)base;
  struct weft_mpi_world *world = group->world;
  WEFT_TRY(check(group, collective, error));
  weft_mpi_lock(world);
  collective->state[0] = 1;
  collective->state[1] = 0;
  if (group->first == NULL) {
    group->first = group->last = collective;
    begin_collective(group);
  } else {
    memcpy(&group->last->state[1], &collective, sizeof(struct weft_collective *));
    group->last = collective;
  }
  if (!group->listed) {
    group->listed = true;
    group->next = world->groups;
    world->groups = group;
  }
  weft_mpi_groups_advance(world);
  weft_mpi_unlock(world);
  return WEFT_OK;
}

static enum weft_status group_test(struct weft_group *base, struct weft_collective *collective,
                                   struct weft_error *error) {
  struct weft_mpi_world *world = ((struct weft_mpi_group *)base)->world;
  enum weft_status status = WEFT_OK;
  weft_mpi_lock(world);
  if (collective->state[0] != 0) {
    weft_mpi_advance(world);
  }
  if (collective->state[0] != 0) {
    status = weft_mpi_failure_check(world, error);
    status = status == WEFT_OK ? WEFT_IN_PROGRESS : status;
  }
  weft_mpi_unlock(world);
  return status;
}

static void unlist(struct weft_mpi_group *group) {
  struct weft_mpi_group **place = &group->world->groups;
  while (group->listed) {
    if (*place == group) {
      *place = group->next;
      group->listed = false;
    } else {
      place = &(*place)->next;
    }
  }
}

static void free_group(struct weft_mpi_group *group) {
  const struct weft_allocator *allocator = group->world->allocator;
  const uint32_t size = group->base.size;
  weft_array_free(allocator, group->ranks, size, sizeof *group->ranks);
  weft_array_free(allocator, group->requests, 2 * (size_t)size, sizeof(MPI_Request));
  weft_array_free(allocator, group->statuses, 2 * (size_t)size, sizeof *group->statuses);
  weft_array_free(allocator, group->arrived, size, CHUNK);
  weft_array_free(allocator, group, 1, sizeof *group);
}

/* After a failure a collective may be in flight, which keeps its memory. */
static void group_destroy(struct weft_group *base) {
  struct weft_mpi_group *group = (struct weft_mpi_group *)base;
  if (group == NULL) {
    return;
  }
  struct weft_mpi_world *world = group->world;
  weft_mpi_lock(world);
  const bool free_it = group->first == NULL;
  unlist(group);
  weft_mpi_unlock(world);
  if (free_it) {
    free_group(group);
  }
}

static const struct weft_group_ops group_ops = {
    .destroy = group_destroy, .start = group_start, .test = group_test};

/* ---- making one ---- */

static enum weft_status check_members(const struct weft_transport *transport, uint32_t id,
                                      uint64_t tag_max, const uint32_t *ranks, uint32_t count,
                                      uint32_t *member, struct weft_error *error) {
  *member = UINT32_MAX;
  if (id > tag_max) {
    return weft_fail(error, WEFT_ERR_USAGE, "number groups from 0: a group is a tag of MPI's",
                     "group %" PRIu32 "; this MPI has tags up to %" PRIu64, id, tag_max);
  }
  for (uint32_t k = 0; k < count; k++) {
    bool twice = false;
    for (uint32_t other = 0; other < k; other++) {
      twice |= ranks[other] == ranks[k];
    }
    if (ranks[k] >= transport->rank_count || twice) {
      return weft_fail(error, WEFT_ERR_USAGE, "name each rank of the group once",
                       "rank %" PRIu32 " is %s group %" PRIu32, ranks[k],
                       twice ? "twice in" : "not there, but in", id);
    }
    *member = ranks[k] == transport->rank ? k : *member;
  }
  if (*member == UINT32_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "only its members make a group",
                     "rank %" PRIu32 " is not in group %" PRIu32, transport->rank, id);
  }
  return WEFT_OK;
}

enum weft_status weft_mpi_group_create(struct weft_transport *transport, uint32_t id,
                                       const uint32_t *ranks, uint32_t count,
                                       struct weft_device *device, struct weft_group **out,
                                       struct weft_error *error) {
  assert(out != NULL && (ranks != NULL || count == 0));
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  (void)device; /* start() refuses what is on one */
  const struct weft_allocator *allocator = world->allocator;
  uint32_t member;
  WEFT_TRY(check_members(transport, id, world->tag_max, ranks, count, &member, error));
  struct weft_mpi_group *group = weft_array_allocate_zero(allocator, 1, sizeof *group);
  if (group == NULL) {
    return weft_fail_memory(error, sizeof *group);
  }
  group->base = (struct weft_group){.ops = &group_ops, .member = member, .size = count};
  group->world = world;
  group->id = id;
  group->ranks = weft_array_allocate(allocator, count, sizeof *group->ranks);
  group->requests = weft_array_allocate(allocator, 2 * (size_t)count, sizeof(MPI_Request));
  group->statuses = weft_array_allocate(allocator, 2 * (size_t)count, sizeof *group->statuses);
  group->arrived = weft_array_allocate(allocator, count, CHUNK); /* untouched until a sum */
  if (group->ranks == NULL || group->requests == NULL || group->statuses == NULL ||
      group->arrived == NULL) {
    free_group(group);
    return weft_fail_memory(error, (size_t)count * CHUNK);
  }
  memcpy(group->ranks, ranks, count * sizeof *ranks);
  for (size_t k = 0; k < 2 * (size_t)count; k++) {
    group->requests[k] = MPI_REQUEST_NULL;
  }
  *out = &group->base;
  return WEFT_OK;
}
