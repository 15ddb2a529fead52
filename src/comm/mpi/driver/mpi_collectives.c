/* Collectives over some of the ranks, by messages (comm/group_plan.h).
 *
 * The next round begins when all messages of the present one are done, so the memory for received
 * parts is bounded. MPI keeps the order between two members, so parts need no names. A group
 * executes one collective at a time, in the order in which they were started. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "comm/group_plan.h"
#include "comm/mpi/driver/mpi_world.h"

enum { CHUNK = 256 << 10, SUM_BLOCK = 512 };

struct weft_mpi_group {
  struct weft_group base;  /* first */
  struct weft_arena arena; /* of all of it but `arrived` */
  struct weft_mpi_world *world;
  uint32_t id;
  uint32_t *ranks;       /* [size] */
  MPI_Request *requests; /* [2 * size]: receive and send, by member */
  MPI_Status *statuses;
  unsigned char *arrived; /* [size - 1][CHUNK] */
  struct weft_group_queue queue;
  struct weft_group_plan plan; /* of the first of the queue */
  bool posted;                 /* the present round's messages */
  struct weft_mpi_group *next; /* of the world's */
};

/* ---- a round ---- */

static int post_transfer(struct weft_mpi_group *group, uint32_t other) {
  assert(other < group->base.size && other != group->base.member);
  const struct weft_mpi_world *world = group->world;
  const struct weft_group_transfer transfer = weft_group_plan_transfer(&group->plan, other);
  const int rank = (int)group->ranks[other];
  const int result = MPI_Irecv(transfer.to, (int)transfer.receive_bytes, MPI_BYTE, rank,
                               (int)group->id, world->collectives, &group->requests[2 * other]);
  return result != MPI_SUCCESS
             ? result
             : MPI_Isend(transfer.from, (int)transfer.send_bytes, MPI_BYTE, rank, (int)group->id,
                         world->collectives, &group->requests[2 * other + 1]);
}

/* Each begins with its neighbour, so that not all send to the first at once. */
static int post_round(struct weft_mpi_group *group) {
  int result = MPI_SUCCESS;
  for (uint32_t k = 1; k < group->base.size && result == MPI_SUCCESS; k++) {
    result = post_transfer(group, (group->base.member + k) % group->base.size);
  }
  group->posted = true;
  return result;
}

/* ((x0 + x1) + x2) + ... of what this member sums in the round. The result may lie where its own
 * part does. */
static void sum_round(const struct weft_group_plan *plan) {
  const struct weft_group_sum range = weft_group_plan_sum(plan);
  const uint64_t end = range.count * sizeof(float);
  float sum[SUM_BLOCK];
  float part[SUM_BLOCK];
  for (uint64_t at = 0; at < end; at += sizeof sum) {
    const size_t bytes = end - at < sizeof sum ? (size_t)(end - at) : sizeof sum;
    for (uint32_t m = 0; m < plan->size; m++) {
      const unsigned char *from = m == plan->member ? range.own : weft_group_plan_part(plan, m);
      memcpy(m == 0 ? sum : part, from + at, bytes);
      for (size_t i = 0; m > 0 && i < bytes / sizeof(float); i++) {
        sum[i] += part[i];
      }
    }
    memcpy(range.to + at, sum, bytes);
  }
}

/* ---- a collective ---- */

static void begin_collective(struct weft_mpi_group *group) {
  const struct weft_collective *collective = group->queue.first;
  group->posted = false;
  if (collective == NULL) {
    return;
  }
  group->plan = (struct weft_group_plan){.collective = collective,
                                         .size = group->base.size,
                                         .member = group->base.member,
                                         .scratch = group->arrived,
                                         .reduce_bytes = CHUNK,
                                         .gather_bytes = group->world->piece};
  weft_group_plan_begin(&group->plan);
  unsigned char *own = (unsigned char *)collective->to + group->base.member * collective->bytes;
  if (collective->kind == WEFT_ALL_GATHER && collective->bytes > 0 && collective->from != own) {
    memmove(own, collective->from, (size_t)collective->bytes);
  }
}

static void end_collective(struct weft_mpi_group *group) {
  weft_group_queue_pop(&group->queue);
  group->world->events++;
  group->world->collective_count--;
  begin_collective(group);
}

/* MPI accepts a message that is shorter than its receive. */
static bool is_complete(struct weft_mpi_group *group) {
  for (uint32_t other = 0; other < group->base.size; other++) {
    int count = 0;
    if (other == group->base.member) {
      continue;
    }
    const uint64_t expected = weft_group_plan_transfer(&group->plan, other).receive_bytes;
    (void)MPI_Get_count(&group->statuses[2 * other], MPI_BYTE, &count);
    if ((uint64_t)count != expected) {
      struct weft_failure failure = {.rank = group->ranks[other]};
      (void)weft_fail(
          &failure.error, WEFT_ERR_PROTOCOL, "members start the same collectives in the same order",
          "group %" PRIu32 ": rank %" PRIu32 " sent %d bytes to rank %" PRIu32
          ", which expected %" PRIu64,
          group->id, group->ranks[other], count, group->world->transport.rank, expected);
      weft_mpi_failure_report(group->world, &failure);
      return false;
    }
  }
  return true;
}

/* False when it has to wait. */
static bool end_round(struct weft_mpi_group *group) {
  assert(group->posted && group->queue.first != NULL);
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
  if (!group->plan.gathers) {
    sum_round(&group->plan);
  }
  group->posted = false;
  weft_group_plan_end_round(&group->plan);
  return true;
}

static void advance_group(struct weft_mpi_group *group) {
  while (group->queue.first != NULL && !group->world->has_failed) {
    if (group->posted) {
      if (!end_round(group)) {
        return;
      }
    } else if (weft_group_plan_has_round(&group->plan)) {
      const int result = post_round(group);
      if (result != MPI_SUCCESS) {
        weft_mpi_failure_of_mpi(group->world, result, "starting a collective");
        return;
      }
    } else {
      end_collective(group);
    }
  }
}

void weft_mpi_groups_advance(struct weft_mpi_world *world) {
  for (struct weft_mpi_group *group = world->groups; group != NULL; group = group->next) {
    advance_group(group);
  }
}

/* ---- the ops ---- */

static enum weft_status check_collective(const struct weft_mpi_group *group,
                                         const struct weft_collective *collective,
                                         struct weft_error *error) {
  if (!weft_device_is_host(collective->device)) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "copy it to host memory (weft_copy)",
                     "a collective in the memory of a %s device, and mpi works on host memory only",
                     weft_device_name(collective->device));
  }
  return weft_group_check(collective, group->base.size, error);
}

static enum weft_status group_start(struct weft_group *base, struct weft_collective *collective,
                                    struct weft_error *error) {
  struct weft_mpi_group *group = (struct weft_mpi_group *)base;
  struct weft_mpi_world *world = group->world;
  WEFT_TRY(check_collective(group, collective, error));
  weft_mpi_lock(world);
  if (weft_group_queue_add(&group->queue, collective)) {
    begin_collective(group);
  }
  world->collective_count++;
  weft_mpi_groups_advance(world);
  weft_mpi_unlock(world);
  return WEFT_OK;
}

static enum weft_status group_test(struct weft_group *base, struct weft_collective *collective,
                                   struct weft_error *error) {
  struct weft_mpi_world *world = ((struct weft_mpi_group *)base)->world;
  enum weft_status status = WEFT_OK;
  weft_mpi_lock(world);
  if (!weft_group_is_done(collective)) {
    weft_mpi_advance(world);
  }
  if (!weft_group_is_done(collective)) {
    status = weft_mpi_failure_check(world, error);
    status = status == WEFT_OK ? WEFT_IN_PROGRESS : status;
  }
  weft_mpi_unlock(world);
  return status;
}

/* After a failure a collective may be in flight, which keeps its memory. */
static void group_destroy(struct weft_group *base) {
  struct weft_mpi_group *group = (struct weft_mpi_group *)base;
  struct weft_mpi_world *world = group->world;
  weft_mpi_lock(world);
  const bool free_it = group->queue.first == NULL;
  struct weft_mpi_group **link = &world->groups;
  while (*link != group) {
    link = &(*link)->next;
  }
  *link = group->next;
  weft_mpi_unlock(world);
  if (free_it) {
    struct weft_arena arena = group->arena; /* the group lies in it */
    weft_array_free(world->allocator, group->arrived, group->base.size, CHUNK);
    weft_arena_finish(&arena);
  }
}

static const struct weft_group_ops group_ops = {
    .destroy = group_destroy, .start = group_start, .test = group_test};

/* ---- making one ---- */

enum weft_status weft_mpi_group_create(struct weft_transport *transport, uint32_t id,
                                       const uint32_t *ranks, uint32_t count,
                                       struct weft_device *device, struct weft_group **out,
                                       struct weft_error *error) {
  assert(out != NULL && (ranks != NULL || count == 0));
  struct weft_mpi_world *world = weft_mpi_world_of(transport);
  (void)device; /* start() refuses what is on one */
  const struct weft_allocator *allocator = world->allocator;
  uint32_t member;
  if (id > world->tag_max) {
    return weft_fail(error, WEFT_ERR_USAGE, "number groups from 0: a group is a tag of MPI's",
                     "group %" PRIu32 "; this MPI has tags up to %" PRIu64, id, world->tag_max);
  }
  WEFT_TRY(weft_group_find_member(allocator, transport->rank, transport->rank_count, id, ranks,
                                  count, &member, error));
  struct weft_arena arena = {.allocator = allocator};
  struct weft_mpi_group *group = weft_arena_allocate(&arena, 1, sizeof *group);
  struct weft_mpi_group made = {
      .base = {.ops = &group_ops, .member = member, .size = count},
      .world = world,
      .id = id,
      .ranks = weft_arena_allocate(&arena, count, sizeof *made.ranks),
      .requests = weft_arena_allocate(&arena, 2 * (size_t)count, sizeof(MPI_Request)),
      .statuses = weft_arena_allocate(&arena, 2 * (size_t)count, sizeof *made.statuses),
      .arrived = weft_array_allocate(allocator, count, CHUNK)}; /* untouched until a sum */
  if (weft_arena_status(&arena, NULL) < 0 || made.arrived == NULL) {
    weft_array_free(allocator, made.arrived, count, CHUNK);
    weft_arena_finish(&arena);
    return weft_fail_memory(error, (size_t)count * CHUNK);
  }
  made.arena = arena;
  *group = made;
  memcpy(group->ranks, ranks, count * sizeof *ranks);
  for (size_t k = 0; k < 2 * (size_t)count; k++) {
    group->requests[k] = MPI_REQUEST_NULL;
  }
  weft_mpi_lock(world);
  group->next = world->groups;
  world->groups = group;
  weft_mpi_unlock(world);
  *out = &group->base;
  return WEFT_OK;
}
