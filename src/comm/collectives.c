/* Groups within a process; see collectives.h. Members meet in a struct that they share
 * and that keeps what is under way now: one collective at a time, where each member
 * shows its memory and then passes gates.
 *
 *   ARRIVED    its `from` may be read
 *   SUMMED     (ALL_REDUCE) its slice of the sum may be read
 *   FINISHED   it reads nobody's memory any more
 *
 * A gate is open once every member has passed it; whoever passes it last wakes the
 * others. A gate is one counter, which never goes back: nobody comes to a gate a second
 * time before all have been through it once. Each member does its part behind a gate
 * straight from the others' memory to its own, without scratch: it sums or copies what
 * will be its own, so the work is shared and the order of the sum is fixed.
 *
 * A member that gives up while others may read its memory (the world has failed) closes
 * the meeting, and waits for those who are reading at that moment: as long as a copy
 * takes. Either a reader sees that it is closed, or the one who closes it sees the
 * reader; both are sequentially consistent. */
#include "comm/collectives.h"

#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

enum gate { GATE_NONE, GATE_ARRIVED, GATE_SUMMED, GATE_FINISHED, GATE_COUNT };

/* What a member shows of its present collective: written before it arrives. A cache
 * line. */
struct part {
  enum weft_collective_kind kind;
  uint32_t taken; /* under the world's lock: a rank has this end */
  uint64_t bytes;
  const unsigned char *from;
  unsigned char *to;
  struct weft_device *device; /* of both */
  uint64_t padding[3];
};

struct weft_meeting {
  struct weft_arena arena; /* of all of it */
  struct weft_meeting *next;
  uint32_t id;
  uint32_t size;
  uint32_t ends; /* under the world's lock, as the next: that exist */
  bool is_over;  /* a member has left: it is off the world's list, nobody joins */
  uint32_t *ranks;
  struct part *parts;
  uint64_t passed[GATE_COUNT]; /* atomic: by all members together */
  uint32_t closed;             /* atomic */
  uint32_t readers;            /* atomic: members that read others' memory now */
};

struct group {
  struct weft_group base; /* first */
  struct weft_world *world;
  struct weft_meeting *meeting;
  void (*wake)(void *context, uint32_t rank);
  void *context;
  struct weft_collective *first, *last; /* started and not done; a list through state[0] */
  enum gate gate;                       /* that `first` has come to */
  uint64_t passed[GATE_COUNT];          /* by this member */
};

enum { STATE_NEXT, STATE_DONE };

/* ---- Gates ---- */

static void wake_others(const struct group *group) {
  const struct weft_meeting *meeting = group->meeting;
  for (uint32_t k = 0; k < meeting->size; k++) {
    if (k != group->base.member) {
      group->wake(group->context, meeting->ranks[k]);
    }
  }
}

static void pass(struct group *group, enum gate gate) {
  const uint64_t all = ++group->passed[gate] * group->base.size;
  group->gate = gate;
  if (__atomic_add_fetch(&group->meeting->passed[gate], 1, __ATOMIC_ACQ_REL) == all) {
    wake_others(group);
  }
}

/* Whether all have passed the gate that this member has come to. */
static bool is_open(const struct group *group) {
  return __atomic_load_n(&group->meeting->passed[group->gate], __ATOMIC_ACQUIRE) >=
         group->passed[group->gate] * group->base.size;
}

/* ---- Giving up ---- */

static void end_reading(struct weft_meeting *meeting) {
  (void)__atomic_fetch_sub(&meeting->readers, 1, __ATOMIC_RELEASE);
}

static bool begin_reading(struct weft_meeting *meeting) {
  (void)__atomic_fetch_add(&meeting->readers, 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&meeting->closed, __ATOMIC_SEQ_CST)) {
    return true;
  }
  end_reading(meeting);
  return false;
}

/* What is under way is the caller's again. */
static void give_up(struct group *group) {
  struct weft_meeting *meeting = group->meeting;
  __atomic_store_n(&meeting->closed, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&meeting->readers, __ATOMIC_SEQ_CST) > 0) {
    (void)sched_yield();
  }
  group->first = group->last = NULL;
}

/* The agreed error, if there is one; else the one of a member that has gone. */
static enum weft_status fail_closed(struct group *group, struct weft_error *error) {
  give_up(group);
  WEFT_TRY(weft_world_check(group->world, error));
  return weft_fail(error, WEFT_ERR_PEER, "destroy a group when nothing is under way in it",
                   "a member of group %" PRIu32 " (%" PRIu32
                   " ranks) has left while a collective was under way",
                   group->meeting->id, group->meeting->size);
}

/* ---- The work ---- */

enum { LANE = 16, BLOCK = 2048 };

/* The inner loop has a fixed length: compilers make vectors of it at any level. */
static void add(float *restrict sum, const float *restrict numbers, uint64_t count) {
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

/* Between two members' memory; NULL: a block of ours. */
static enum weft_status copy(void *to, const struct part *to_part, const void *from,
                             const struct part *from_part, uint64_t bytes,
                             struct weft_error *error) {
  if (to == from) {
    return WEFT_OK;
  }
  const struct weft_copy one = {.to = to,
                                .to_device = to_part != NULL ? to_part->device : NULL,
                                .from = from,
                                .from_device = from_part != NULL ? from_part->device : NULL,
                                .row_bytes = bytes,
                                .rows = 1};
  return weft_copy(&one, NULL, error);
}

/* to[count] = the sum of all members' `from` at `offset` bytes, in their order. It may
 * be one of them: so it is made block by block elsewhere, in the nearest cache. What the
 * host cannot read is copied there too. */
static enum weft_status sum_parts(const struct weft_meeting *meeting, uint32_t member,
                                  uint64_t offset, uint64_t count, unsigned char *to,
                                  struct weft_error *error) {
  const struct part *own = &meeting->parts[member];
  float sum[BLOCK], read[BLOCK];
  for (uint64_t at = 0; at < count; at += BLOCK) {
    const uint64_t length = count - at < BLOCK ? count - at : BLOCK;
    const uint64_t bytes = length * sizeof(float);
    for (uint32_t k = 0; k < meeting->size; k++) {
      const struct part *part = &meeting->parts[k];
      const unsigned char *from = part->from + offset + at * sizeof(float);
      if (k == 0) {
        WEFT_TRY(copy(sum, NULL, from, part, bytes, error));
      } else if (weft_device_is_host(part->device)) {
        add(sum, (const float *)(const void *)from, length);
      } else {
        WEFT_TRY(copy(read, NULL, from, part, bytes, error));
        add(sum, read, length);
      }
    }
    WEFT_TRY(copy(to + at * sizeof(float), own, sum, NULL, bytes, error));
  }
  return WEFT_OK;
}

static enum weft_status gather(const struct weft_meeting *meeting, uint32_t member,
                               struct weft_error *error) {
  const struct part *own = &meeting->parts[member];
  for (uint32_t k = 0; k < meeting->size; k++) {
    const struct part *part = &meeting->parts[k];
    WEFT_TRY(copy(own->to + k * own->bytes, own, part->from, part, own->bytes, error));
  }
  return WEFT_OK;
}

/* Where a member's slice of an ALL_REDUCE begins, in floats. */
static uint64_t slice_begin(const struct weft_meeting *meeting, uint32_t member) {
  const uint64_t count = meeting->parts[0].bytes / sizeof(float);
  const uint64_t longer = count % meeting->size;
  return count / meeting->size * member + (member < longer ? member : longer);
}

static enum weft_status sum_slice(const struct weft_meeting *meeting, uint32_t member,
                                  struct weft_error *error) {
  const uint64_t begin = slice_begin(meeting, member);
  const uint64_t offset = begin * sizeof(float);
  return sum_parts(meeting, member, offset, slice_begin(meeting, member + 1) - begin,
                   meeting->parts[member].to + offset, error);
}

static enum weft_status copy_slices(const struct weft_meeting *meeting, uint32_t member,
                                    struct weft_error *error) {
  const struct part *own = &meeting->parts[member];
  for (uint32_t k = 0; k < meeting->size; k++) {
    const struct part *part = &meeting->parts[k];
    const uint64_t begin = slice_begin(meeting, k) * sizeof(float);
    const uint64_t end = slice_begin(meeting, k + 1) * sizeof(float);
    WEFT_TRY(copy(own->to + begin, own, part->to + begin, part, end - begin, error));
  }
  return WEFT_OK;
}

/* All have arrived: this member's part. */
static enum weft_status do_part(const struct weft_meeting *meeting, uint32_t member,
                                struct weft_error *error) {
  const struct part *own = &meeting->parts[member];
  switch (own->kind) {
    case WEFT_ALL_GATHER: return gather(meeting, member, error);
    case WEFT_REDUCE_SCATTER:
      return sum_parts(meeting, member, member * own->bytes, own->bytes / sizeof(float), own->to,
                       error);
    case WEFT_ALL_REDUCE: return sum_slice(meeting, member, error);
  }
  return WEFT_OK;
}

/* ---- Collectives ---- */

static const char *name_of(enum weft_collective_kind kind) {
  return kind == WEFT_ALL_GATHER       ? "an all-gather"
         : kind == WEFT_REDUCE_SCATTER ? "a reduce-scatter"
                                       : "an all-reduce";
}

/* All members see the same, and say the same. */
static enum weft_status check_same(const struct weft_meeting *meeting, struct weft_error *error) {
  const struct part *first = &meeting->parts[0];
  for (uint32_t k = 1; k < meeting->size; k++) {
    const struct part *part = &meeting->parts[k];
    if (part->kind != first->kind || part->bytes != first->bytes) {
      return weft_fail(error, WEFT_ERR_PROTOCOL,
                       "members of a group start the same collectives in the same order",
                       "in group %" PRIu32 " rank %" PRIu32 " starts %s of %" PRIu64
                       " bytes, and rank %" PRIu32 " %s of %" PRIu64,
                       meeting->id, meeting->ranks[0], name_of(first->kind), first->bytes,
                       meeting->ranks[k], name_of(part->kind), part->bytes);
    }
  }
  return WEFT_OK;
}

static void arrive(struct group *group) {
  const struct weft_collective *collective = group->first;
  struct part *part = &group->meeting->parts[group->base.member];
  part->kind = collective->kind;
  part->bytes = collective->bytes;
  part->from = collective->from;
  part->to = collective->to;
  part->device = collective->device;
  pass(group, GATE_ARRIVED);
}

/* The first that is under way, as far as it goes: WEFT_OK when it is done. */
static enum weft_status go_on(struct group *group, struct weft_error *error) {
  struct weft_meeting *meeting = group->meeting;
  while (is_open(group)) {
    if (group->gate == GATE_FINISHED) {
      return WEFT_OK;
    }
    const uint32_t member = group->base.member;
    enum gate next = GATE_FINISHED;
    enum weft_status status;
    if (group->gate == GATE_ARRIVED) {
      WEFT_TRY(check_same(meeting, error));
    }
    if (!begin_reading(meeting)) {
      return fail_closed(group, error);
    }
    if (group->gate == GATE_ARRIVED) {
      status = do_part(meeting, member, error);
      next = meeting->parts[member].kind == WEFT_ALL_REDUCE ? GATE_SUMMED : GATE_FINISHED;
    } else {
      status = copy_slices(meeting, member, error);
    }
    end_reading(meeting);
    WEFT_TRY(status);
    pass(group, next);
  }
  return WEFT_IN_PROGRESS;
}

static struct weft_collective *next_of(const struct weft_collective *collective) {
  struct weft_collective *next;
  memcpy((void *)&next, &collective->state[STATE_NEXT], sizeof(void *));
  return next;
}

static void set_next(struct weft_collective *collective, struct weft_collective *next) {
  _Static_assert(sizeof(void *) <= sizeof collective->state[STATE_NEXT], "a pointer fits");
  memcpy(&collective->state[STATE_NEXT], (const void *)&next, sizeof(void *));
}

static void end_first(struct group *group) {
  struct weft_collective *done = group->first;
  group->first = next_of(done);
  group->gate = GATE_NONE;
  done->state[STATE_DONE] = 1;
  if (group->first != NULL) {
    arrive(group);
  } else {
    group->last = NULL;
  }
}

static enum weft_status group_test(struct weft_group *base, struct weft_collective *collective,
                                   struct weft_error *error) {
  struct group *group = (struct group *)base;
  while (!collective->state[STATE_DONE]) {
    if (weft_world_check(group->world, NULL) < 0 || group->first == NULL) {
      return fail_closed(group, error);
    }
    const enum weft_status status = go_on(group, error);
    if (status != WEFT_OK) {
      return status;
    }
    end_first(group);
  }
  return WEFT_OK;
}

static enum weft_status check_collective(const struct weft_collective *collective,
                                         struct weft_error *error) {
  if ((uint32_t)collective->kind > WEFT_ALL_REDUCE) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "weft/transport.h has all-gather, reduce-scatter and "
                     "all-reduce",
                     "a collective of kind %" PRIu32 ", which does not exist",
                     (uint32_t)collective->kind);
  }
  if (collective->kind != WEFT_ALL_GATHER && collective->bytes % sizeof(float) != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "sums are of f32: give a multiple of 4 bytes",
                     "%s of %" PRIu64 " bytes, which are not whole floats",
                     name_of(collective->kind), collective->bytes);
  }
  return WEFT_OK;
}

static enum weft_status group_start(struct weft_group *base, struct weft_collective *collective,
                                    struct weft_error *error) {
  struct group *group = (struct group *)base;
  WEFT_TRY(check_collective(collective, error));
  if (__atomic_load_n(&group->meeting->closed, __ATOMIC_ACQUIRE)) {
    return fail_closed(group, error);
  }
  WEFT_TRY(weft_world_check(group->world, error));
  collective->state[STATE_DONE] = 0;
  set_next(collective, NULL);
  if (group->last != NULL) {
    set_next(group->last, collective);
    group->last = collective;
    return WEFT_OK;
  }
  group->first = group->last = collective;
  arrive(group);
  return WEFT_OK;
}

/* ---- Meetings ---- */

/* Under the world's lock, as all of these. Where it is on its list, or would be. */
static struct weft_meeting **find_meeting(struct weft_world *world, uint32_t id) {
  struct weft_meeting **place = &world->meetings[id % WEFT_WORLD_MEETINGS];
  while (*place != NULL && (*place)->id != id) {
    place = &(*place)->next;
  }
  return place;
}

static struct weft_meeting *make_meeting(const struct weft_allocator *allocator, uint32_t id,
                                         const uint32_t *ranks, uint32_t count) {
  struct weft_arena arena = {.allocator = allocator};
  struct weft_meeting *meeting = weft_arena_allocate(&arena, 1, sizeof *meeting);
  uint32_t *copies = weft_arena_allocate(&arena, count, sizeof *copies);
  struct part *parts = weft_arena_allocate(&arena, count, sizeof *parts);
  if (meeting == NULL || copies == NULL || parts == NULL) {
    weft_arena_finish(&arena);
    return NULL;
  }
  memcpy(copies, ranks, count * sizeof *copies);
  *meeting = (struct weft_meeting){
      .arena = arena, .id = id, .size = count, .ranks = copies, .parts = parts};
  return meeting;
}

static enum weft_status join(struct weft_world *world, struct group *group, uint32_t id,
                             const uint32_t *ranks, struct weft_error *error) {
  struct weft_meeting **place = find_meeting(world, id);
  const uint32_t size = group->base.size;
  if (*place == NULL) {
    *place = make_meeting(world->allocator, id, ranks, size);
    if (*place == NULL) {
      return weft_fail_memory(error, size * sizeof *(*place)->parts);
    }
  }
  struct weft_meeting *meeting = *place;
  if (meeting->size != size || memcmp(meeting->ranks, ranks, size * sizeof *ranks) != 0) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "all members give the same ranks in the same order, and another id for "
                     "another group",
                     "rank %" PRIu32 " makes group %" PRIu32 " of %" PRIu32
                     " ranks, and others have made it of %" PRIu32 " or of other ones",
                     ranks[group->base.member], id, size, meeting->size);
  }
  if (meeting->parts[group->base.member].taken) {
    return weft_fail(error, WEFT_ERR_USAGE, "each group of a world has an id of its own",
                     "rank %" PRIu32 " is in group %" PRIu32 " already", ranks[group->base.member],
                     id);
  }
  meeting->parts[group->base.member].taken = 1;
  meeting->ends++;
  group->meeting = meeting;
  return WEFT_OK;
}

static void leave(struct group *group) {
  struct weft_meeting *meeting = group->meeting;
  pthread_mutex_lock(&group->world->lock);
  if (!meeting->is_over) {
    *find_meeting(group->world, meeting->id) = meeting->next;
    meeting->is_over = true;
  }
  meeting->ends--;
  if (meeting->ends == 0) {
    struct weft_arena arena = meeting->arena; /* it lies in it */
    weft_arena_finish(&arena);
  }
  pthread_mutex_unlock(&group->world->lock);
}

/* ---- Making and destroying ---- */

static void group_destroy(struct weft_group *base) {
  struct group *group = (struct group *)base;
  if (group == NULL) {
    return;
  }
  if (group->first != NULL) {
    give_up(group);
    wake_others(group);
  }
  leave(group);
  weft_array_free(group->world->allocator, group, 1, sizeof *group);
}

static const struct weft_group_ops group_ops = {
    .destroy = group_destroy, .start = group_start, .test = group_test};

/* Marks the ranks of a group in seen[]; *member, UINT32_MAX before, is the place of
 * `rank` among them. */
static enum weft_status check_ranks(const struct weft_world *world, uint32_t rank, uint32_t id,
                                    const uint32_t *ranks, uint32_t count, unsigned char *seen,
                                    uint32_t *member, struct weft_error *error) {
  static const char hint[] = "a group is of ranks of the world, each once, this one among them";
  for (uint32_t k = 0; k < count; k++) {
    if (ranks[k] >= world->rank_count || seen[ranks[k]]) {
      return weft_fail(error, WEFT_ERR_USAGE, hint,
                       "group %" PRIu32 " has rank %" PRIu32 " %s %" PRIu32, id, ranks[k],
                       ranks[k] >= world->rank_count ? "in a world of" : "again at place",
                       ranks[k] >= world->rank_count ? world->rank_count : k);
    }
    seen[ranks[k]] = 1;
    *member = ranks[k] == rank ? k : *member;
  }
  if (*member == UINT32_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, hint,
                     "rank %" PRIu32 " makes group %" PRIu32 " of %" PRIu32
                     " ranks and is none of them",
                     rank, id, count);
  }
  return WEFT_OK;
}

static enum weft_status find_member(const struct weft_world *world, uint32_t rank, uint32_t id,
                                    const uint32_t *ranks, uint32_t count, uint32_t *member,
                                    struct weft_error *error) {
  unsigned char *seen = weft_array_allocate_zero(world->allocator, world->rank_count, 1);
  if (seen == NULL) {
    return weft_fail_memory(error, world->rank_count);
  }
  const enum weft_status status = check_ranks(world, rank, id, ranks, count, seen, member, error);
  weft_array_free(world->allocator, seen, world->rank_count, 1);
  return status;
}

enum weft_status weft_world_group(struct weft_world *world, uint32_t rank, uint32_t id,
                                  const uint32_t *ranks, uint32_t count,
                                  void (*wake)(void *context, uint32_t rank), void *context,
                                  struct weft_group **out, struct weft_error *error) {
  uint32_t member = UINT32_MAX;
  WEFT_TRY(find_member(world, rank, id, ranks, count, &member, error));
  struct group *group = weft_array_allocate_zero(world->allocator, 1, sizeof *group);
  if (group == NULL) {
    return weft_fail_memory(error, sizeof *group);
  }
  group->base = (struct weft_group){.ops = &group_ops, .member = member, .size = count};
  group->world = world;
  group->wake = wake;
  group->context = context;
  pthread_mutex_lock(&world->lock);
  const enum weft_status status = join(world, group, id, ranks, error);
  pthread_mutex_unlock(&world->lock);
  if (status < 0) {
    weft_array_free(world->allocator, group, 1, sizeof *group);
    return status;
  }
  *out = &group->base;
  return WEFT_OK;
}
