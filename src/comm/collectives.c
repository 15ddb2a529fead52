/* Groups within a process (world.h). Members find each other by the group's id in their world, and
 * share a struct with the collective in flight, one at a time: each member publishes its memory and
 * then arrives at barriers.
 *
 *   ARRIVED    its `from` may be read
 *   SUMMED     (ALL_REDUCE) its slice of the sum may be read
 *   FINISHED   it no longer reads the memory of others
 *
 * A barrier opens when every member has arrived; the last one wakes the others. It is one counter
 * that only grows: no member arrives a second time before all have passed it once. Behind a
 * barrier each member sums or copies the data that it owns, straight from the others' memory to
 * its own, without scratch memory; so the work is shared, and the order of a sum is fixed.
 *
 * A member that abandons a collective while others may read its memory (the world has failed)
 * closes the group and waits for those that are reading at that moment: as long as a copy takes.
 * Either a reader sees that the group is closed, or the closing member sees the reader; both
 * accesses are sequentially consistent. */
#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>

#include "comm/group_plan.h"
#include "comm/world.h"

enum barrier { BARRIER_NONE, BARRIER_ARRIVED, BARRIER_SUMMED, BARRIER_FINISHED, BARRIER_COUNT };

/* What a member publishes of its present collective, before it arrives. One cache line. */
struct contribution {
  enum weft_collective_kind kind;
  uint32_t taken; /* with the world's lock: this member exists */
  uint64_t bytes;
  const unsigned char *from;
  unsigned char *to;
  struct weft_device *device; /* of both */
  uint64_t padding[3];
};

struct weft_shared_group {
  struct weft_arena arena; /* of all of it */
  struct weft_shared_group *next;
  uint32_t id;
  uint32_t size;
  uint32_t ends; /* with the world's lock, as the next: members that exist */
  bool is_over;  /* a member was destroyed: no rank can join any more */
  uint32_t *ranks;
  struct contribution *contributions;
  uint64_t passed[BARRIER_COUNT]; /* atomic: by all members together */
  uint32_t closed;                /* atomic */
  uint32_t readers;               /* atomic: members that read others' memory now */
};

struct group {
  struct weft_group base; /* first */
  struct weft_world *world;
  struct weft_shared_group *shared;
  struct weft_group_queue queue;
  enum barrier barrier;           /* at which the first of the queue is */
  uint64_t passed[BARRIER_COUNT]; /* by this member */
};

/* ---- Barriers ---- */

static void wake_others(const struct group *group) {
  const struct weft_shared_group *shared = group->shared;
  for (uint32_t k = 0; k < shared->size; k++) {
    if (k != group->base.member) {
      group->world->wake(group->world->comm, shared->ranks[k]);
    }
  }
}

static void arrive_at(struct group *group, enum barrier barrier) {
  assert(barrier > BARRIER_NONE && barrier < BARRIER_COUNT);
  const uint64_t all = ++group->passed[barrier] * group->base.size;
  group->barrier = barrier;
  if (__atomic_add_fetch(&group->shared->passed[barrier], 1, __ATOMIC_ACQ_REL) == all) {
    wake_others(group);
  }
}

/* Whether all members have arrived at the barrier where this one is. */
static bool is_open(const struct group *group) {
  return __atomic_load_n(&group->shared->passed[group->barrier], __ATOMIC_ACQUIRE) >=
         group->passed[group->barrier] * group->base.size;
}

/* ---- Abandoning a collective ---- */

static void end_reading(struct weft_shared_group *shared) {
  (void)__atomic_fetch_sub(&shared->readers, 1, __ATOMIC_RELEASE);
}

static bool begin_reading(struct weft_shared_group *shared) {
  (void)__atomic_fetch_add(&shared->readers, 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&shared->closed, __ATOMIC_SEQ_CST)) {
    return true;
  }
  end_reading(shared);
  return false;
}

/* The memory of collectives in flight belongs to the caller again. */
static void abandon_group(struct group *group) {
  struct weft_shared_group *shared = group->shared;
  __atomic_store_n(&shared->closed, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&shared->readers, __ATOMIC_SEQ_CST) > 0) {
    (void)sched_yield();
  }
  group->queue = (struct weft_group_queue){.first = NULL};
}

/* The agreed error, if there is one; else that a member was destroyed. */
static enum weft_status fail_closed(struct group *group, struct weft_error *error) {
  abandon_group(group);
  WEFT_TRY(weft_world_check(group->world, error));
  return weft_fail(error, WEFT_ERR_PEER, "destroy a group when no collective is in flight",
                   "a member of group %" PRIu32 " (%" PRIu32
                   " ranks) was destroyed while a collective was in flight",
                   group->shared->id, group->shared->size);
}

/* ---- The work ---- */

enum { LANE = 16, BLOCK = 2048 };

/* The inner loop has a fixed length: compilers make vectors of it at any level. */
static void add_numbers(float *restrict sum, const float *restrict numbers, uint64_t count) {
  uint64_t i = 0;
  for (; i + LANE <= count; i += LANE) {
    for (unsigned k = 0; k < LANE; k++) {
      sum[i + k] += numbers[i + k];
    }
  }
  for (; i < count; i++) {
    sum[i] += numbers[i];
  }
}

/* to[count] = the sum of all members' `from` at `offset` bytes, in their order. It may
 * be one of them: so it is made block by block elsewhere, in the nearest cache. What the
 * host cannot read is copied there too. */
static enum weft_status sum_range(const struct weft_shared_group *shared, uint32_t member,
                                  uint64_t offset, uint64_t count, unsigned char *to,
                                  struct weft_error *error) {
  const struct contribution *own = &shared->contributions[member];
  float sum[BLOCK], read[BLOCK];
  for (uint64_t at = 0; at < count; at += BLOCK) {
    const uint64_t length = count - at < BLOCK ? count - at : BLOCK;
    const uint64_t bytes = length * sizeof(float);
    for (uint32_t k = 0; k < shared->size; k++) {
      const struct contribution *theirs = &shared->contributions[k];
      const unsigned char *from = theirs->from + offset + at * sizeof(float);
      if (k == 0) {
        WEFT_TRY(weft_copy_bytes(sum, NULL, from, theirs->device, bytes, NULL, error));
      } else if (weft_device_is_host(theirs->device)) {
        add_numbers(sum, (const float *)(const void *)from, length);
      } else {
        WEFT_TRY(weft_copy_bytes(read, NULL, from, theirs->device, bytes, NULL, error));
        add_numbers(sum, read, length);
      }
    }
    WEFT_TRY(weft_copy_bytes(to + at * sizeof(float), own->device, sum, NULL, bytes, NULL, error));
  }
  return WEFT_OK;
}

static struct weft_span share_of(const struct weft_shared_group *shared, uint32_t member) {
  return weft_group_share(shared->contributions[0].kind, shared->contributions[0].bytes,
                          shared->size, member);
}

/* The share of every member, from where that one has it. */
static enum weft_status copy_shares(const struct weft_shared_group *shared, uint32_t member,
                                    struct weft_error *error) {
  const struct contribution *own = &shared->contributions[member];
  for (uint32_t k = 0; k < shared->size; k++) {
    const struct contribution *theirs = &shared->contributions[k];
    const struct weft_span share = share_of(shared, k);
    const unsigned char *from =
        own->kind == WEFT_ALL_GATHER ? theirs->from : theirs->to + share.begin;
    if (from != own->to + share.begin) {
      WEFT_TRY(weft_copy_bytes(own->to + share.begin, own->device, from, theirs->device,
                               share.bytes, NULL, error));
    }
  }
  return WEFT_OK;
}

/* All members have arrived: this member's work. A reduce-scatter writes nothing but its share. */
static enum weft_status do_work(const struct weft_shared_group *shared, uint32_t member,
                                struct weft_error *error) {
  const struct contribution *own = &shared->contributions[member];
  const struct weft_span share = share_of(shared, member);
  if (own->kind == WEFT_ALL_GATHER) {
    return copy_shares(shared, member, error);
  }
  return sum_range(shared, member, share.begin, share.bytes / sizeof(float),
                   own->to + (own->kind == WEFT_ALL_REDUCE ? share.begin : 0), error);
}

/* ---- Collectives ---- */

/* All members compare the same contributions, and return the same error. */
static enum weft_status check_same(const struct weft_shared_group *shared,
                                   struct weft_error *error) {
  const struct contribution *first = &shared->contributions[0];
  for (uint32_t k = 1; k < shared->size; k++) {
    const struct contribution *theirs = &shared->contributions[k];
    if (theirs->kind != first->kind || theirs->bytes != first->bytes) {
      return weft_fail(error, WEFT_ERR_PROTOCOL,
                       "members of a group start the same collectives in the same order",
                       "in group %" PRIu32 " rank %" PRIu32 " starts %s of %" PRIu64
                       " bytes, and rank %" PRIu32 " %s of %" PRIu64,
                       shared->id, shared->ranks[0], weft_collective_name(first->kind),
                       first->bytes, shared->ranks[k], weft_collective_name(theirs->kind),
                       theirs->bytes);
    }
  }
  return WEFT_OK;
}

static void publish_collective(struct group *group) {
  const struct weft_collective *collective = group->queue.first;
  struct contribution *own = &group->shared->contributions[group->base.member];
  own->kind = collective->kind;
  own->bytes = collective->bytes;
  own->from = collective->from;
  own->to = collective->to;
  own->device = collective->device;
  arrive_at(group, BARRIER_ARRIVED);
}

/* Advances the first collective as far as possible: WEFT_OK when it is done. */
static enum weft_status advance_first(struct group *group, struct weft_error *error) {
  struct weft_shared_group *shared = group->shared;
  while (is_open(group)) {
    if (group->barrier == BARRIER_FINISHED) {
      return WEFT_OK;
    }
    const uint32_t member = group->base.member;
    enum barrier next = BARRIER_FINISHED;
    enum weft_status status;
    if (group->barrier == BARRIER_ARRIVED) {
      WEFT_TRY(check_same(shared, error));
    }
    if (!begin_reading(shared)) {
      return fail_closed(group, error);
    }
    if (group->barrier == BARRIER_ARRIVED) {
      status = do_work(shared, member, error);
      next =
          shared->contributions[member].kind == WEFT_ALL_REDUCE ? BARRIER_SUMMED : BARRIER_FINISHED;
    } else {
      status = copy_shares(shared, member, error);
    }
    end_reading(shared);
    WEFT_TRY(status);
    arrive_at(group, next);
  }
  return WEFT_IN_PROGRESS;
}

static void end_first(struct group *group) {
  assert(group->queue.first != NULL);
  weft_group_queue_pop(&group->queue);
  group->barrier = BARRIER_NONE;
  if (group->queue.first != NULL) {
    publish_collective(group);
  }
}

static enum weft_status group_test(struct weft_group *base, struct weft_collective *collective,
                                   struct weft_error *error) {
  struct group *group = (struct group *)base;
  while (!weft_group_is_done(collective)) {
    if (weft_world_check(group->world, NULL) < 0 || group->queue.first == NULL) {
      return fail_closed(group, error);
    }
    const enum weft_status status = advance_first(group, error);
    if (status != WEFT_OK) {
      return status;
    }
    end_first(group);
  }
  return WEFT_OK;
}

static enum weft_status group_start(struct weft_group *base, struct weft_collective *collective,
                                    struct weft_error *error) {
  struct group *group = (struct group *)base;
  WEFT_TRY(weft_group_check(collective, base->size, error));
  if (__atomic_load_n(&group->shared->closed, __ATOMIC_ACQUIRE)) {
    return fail_closed(group, error);
  }
  WEFT_TRY(weft_world_check(group->world, error));
  if (weft_group_queue_add(&group->queue, collective)) {
    publish_collective(group);
  }
  return WEFT_OK;
}

/* ---- The shared state ---- */

/* With the world's lock, as all of these. Where the group is on its list, or would be. */
static struct weft_shared_group **find_group(struct weft_world *world, uint32_t id) {
  struct weft_shared_group **link = &world->groups[id % WEFT_WORLD_GROUP_LISTS];
  while (*link != NULL && (*link)->id != id) {
    link = &(*link)->next;
  }
  return link;
}

static struct weft_shared_group *make_group(const struct weft_allocator *allocator, uint32_t id,
                                            const uint32_t *ranks, uint32_t count) {
  struct weft_arena arena = {.allocator = allocator};
  struct weft_shared_group *shared = weft_arena_allocate(&arena, 1, sizeof *shared);
  uint32_t *copies = weft_arena_allocate(&arena, count, sizeof *copies);
  struct contribution *contributions = weft_arena_allocate(&arena, count, sizeof *contributions);
  if (shared == NULL || copies == NULL || contributions == NULL) {
    weft_arena_finish(&arena);
    return NULL;
  }
  memcpy(copies, ranks, count * sizeof *copies);
  *shared = (struct weft_shared_group){
      .arena = arena, .id = id, .size = count, .ranks = copies, .contributions = contributions};
  return shared;
}

static enum weft_status join_group(struct weft_world *world, struct group *group, uint32_t id,
                                   const uint32_t *ranks, struct weft_error *error) {
  struct weft_shared_group **link = find_group(world, id);
  const uint32_t size = group->base.size;
  if (*link == NULL) {
    *link = make_group(world->allocator, id, ranks, size);
    if (*link == NULL) {
      return weft_fail_memory(error, size * sizeof *(*link)->contributions);
    }
  }
  struct weft_shared_group *shared = *link;
  if (shared->size != size || memcmp(shared->ranks, ranks, size * sizeof *ranks) != 0) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "all members give the same ranks in the same order, and another id for "
                     "another group",
                     "rank %" PRIu32 " creates group %" PRIu32 " of %" PRIu32
                     " ranks, and others have created it of %" PRIu32 " or of other ones",
                     ranks[group->base.member], id, size, shared->size);
  }
  if (shared->contributions[group->base.member].taken) {
    return weft_fail(error, WEFT_ERR_USAGE, "each group of a world has an id of its own",
                     "rank %" PRIu32 " is in group %" PRIu32 " already", ranks[group->base.member],
                     id);
  }
  shared->contributions[group->base.member].taken = 1;
  shared->ends++;
  group->shared = shared;
  return WEFT_OK;
}

static void leave_group(struct group *group) {
  struct weft_shared_group *shared = group->shared;
  pthread_mutex_lock(&group->world->lock);
  if (!shared->is_over) {
    *find_group(group->world, shared->id) = shared->next;
    shared->is_over = true;
  }
  shared->ends--;
  if (shared->ends == 0) {
    struct weft_arena arena = shared->arena; /* it lies in it */
    weft_arena_finish(&arena);
  }
  pthread_mutex_unlock(&group->world->lock);
}

/* ---- Making and destroying ---- */

static void group_destroy(struct weft_group *base) {
  struct group *group = (struct group *)base;
  if (group->queue.first != NULL) {
    abandon_group(group);
    wake_others(group);
  }
  leave_group(group);
  weft_array_free(group->world->allocator, group, 1, sizeof *group);
}

static const struct weft_group_ops group_ops = {
    .destroy = group_destroy, .start = group_start, .test = group_test};

enum weft_status weft_world_group(struct weft_transport *transport, uint32_t id,
                                  const uint32_t *ranks, uint32_t count, struct weft_device *device,
                                  struct weft_group **out, struct weft_error *error) {
  struct weft_world *world = ((struct weft_world_endpoint *)transport)->world;
  (void)device; /* any */
  assert(transport->rank < world->rank_count && out != NULL);
  uint32_t member;
  WEFT_TRY(weft_group_find_member(world->allocator, transport->rank, world->rank_count, id, ranks,
                                  count, &member, error));
  struct group *group = weft_array_allocate_zero(world->allocator, 1, sizeof *group);
  if (group == NULL) {
    return weft_fail_memory(error, sizeof *group);
  }
  group->base = (struct weft_group){.ops = &group_ops, .member = member, .size = count};
  group->world = world;
  pthread_mutex_lock(&world->lock);
  const enum weft_status status = join_group(world, group, id, ranks, error);
  pthread_mutex_unlock(&world->lock);
  if (status < 0) {
    weft_array_free(world->allocator, group, 1, sizeof *group);
    return status;
  }
  *out = &group->base;
  return WEFT_OK;
}
