/* See group_plan.h. */
#include "comm/group_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

/* ---- Who owns what ---- */

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

struct weft_span weft_group_share(enum weft_collective_kind kind, uint64_t bytes, uint32_t size,
                                  uint32_t member) {
  assert(member < size);
  if (kind != WEFT_ALL_REDUCE) {
    return (struct weft_span){member * bytes, bytes};
  }
  const uint64_t floats = bytes / sizeof(float);
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): see the assert
  const uint64_t slice = (floats + size - 1) / size * sizeof(float);
  const uint64_t begin = smaller(member * slice, bytes);
  return (struct weft_span){begin, smaller(slice, bytes - begin)};
}

static struct weft_span share_of(const struct weft_group_plan *plan, uint32_t member) {
  return weft_group_share(plan->collective->kind, plan->collective->bytes, plan->size, member);
}

/* What of it goes in the present round. */
static struct weft_span piece_of(const struct weft_group_plan *plan, uint32_t member) {
  const struct weft_span share = share_of(plan, member);
  const uint64_t skip = smaller(plan->at, share.bytes);
  const uint64_t most = plan->gathers ? plan->gather_bytes : plan->reduce_bytes;
  return (struct weft_span){share.begin + skip, smaller(most, share.bytes - skip)};
}

/* ---- Rounds ---- */

void weft_group_plan_begin(struct weft_group_plan *plan) {
  assert(plan->member < plan->size && plan->reduce_bytes > 0 && plan->gather_bytes > 0);
  assert(plan->reduce_bytes % sizeof(float) == 0);
  plan->gathers = plan->collective->kind == WEFT_ALL_GATHER;
  plan->at = 0;
}

bool weft_group_plan_has_round(struct weft_group_plan *plan) {
  const uint64_t longest = share_of(plan, 0).bytes;
  if (plan->at < longest) {
    return true;
  }
  if (plan->gathers || plan->collective->kind != WEFT_ALL_REDUCE) {
    return false;
  }
  plan->gathers = true;
  plan->at = 0;
  return longest > 0;
}

void weft_group_plan_end_round(struct weft_group_plan *plan) {
  const uint64_t step = plan->gathers ? plan->gather_bytes : plan->reduce_bytes;
  plan->at = step < UINT64_MAX - plan->at ? plan->at + step : UINT64_MAX;
}

unsigned char *weft_group_plan_part(const struct weft_group_plan *plan, uint32_t other) {
  assert(other < plan->size && other != plan->member);
  return plan->scratch + (other < plan->member ? other : other - 1) * plan->reduce_bytes;
}

struct weft_group_transfer weft_group_plan_transfer(const struct weft_group_plan *plan,
                                                    uint32_t other) {
  const struct weft_collective *collective = plan->collective;
  const struct weft_span mine = piece_of(plan, plan->member);
  const struct weft_span theirs = piece_of(plan, other);
  unsigned char *to = collective->to;
  if (plan->gathers) { /* a member's own share lies in its place among all */
    return (struct weft_group_transfer){.from = to + mine.begin,
                                        .to = to + theirs.begin,
                                        .send_bytes = mine.bytes,
                                        .receive_bytes = theirs.bytes};
  }
  return (struct weft_group_transfer){
      .from = (const unsigned char *)collective->from + theirs.begin,
      .to = weft_group_plan_part(plan, other),
      .send_bytes = theirs.bytes,
      .receive_bytes = mine.bytes};
}

struct weft_group_sum weft_group_plan_sum(const struct weft_group_plan *plan) {
  assert(!plan->gathers);
  const struct weft_collective *collective = plan->collective;
  const struct weft_span piece = piece_of(plan, plan->member);
  /* A reduce-scatter writes nothing but its own share. */
  const uint64_t first =
      collective->kind == WEFT_ALL_REDUCE ? 0 : share_of(plan, plan->member).begin;
  return (struct weft_group_sum){.own = (const unsigned char *)collective->from + piece.begin,
                                 .to = (unsigned char *)collective->to + (piece.begin - first),
                                 .count = piece.bytes / sizeof(float)};
}

/* ---- What a group may be asked for ---- */

const char *weft_collective_name(enum weft_collective_kind kind) {
  return kind == WEFT_ALL_GATHER       ? "an all-gather"
         : kind == WEFT_REDUCE_SCATTER ? "a reduce-scatter"
                                       : "an all-reduce";
}

enum weft_status weft_group_check(const struct weft_collective *collective, uint32_t size,
                                  struct weft_error *error) {
  uint64_t all;
  if ((uint32_t)collective->kind > WEFT_ALL_REDUCE) {
    return weft_fail(
        error, WEFT_ERR_USAGE, "weft/transport.h has all-gather, reduce-scatter and all-reduce",
        "a collective of kind %" PRIu32 ", which does not exist", (uint32_t)collective->kind);
  }
  if (collective->kind != WEFT_ALL_GATHER && collective->bytes % sizeof(float) != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "sums are of f32: give a multiple of 4 bytes",
                     "%s of %" PRIu64 " bytes, which are not whole floats",
                     weft_collective_name(collective->kind), collective->bytes);
  }
  if (!weft_multiply(collective->bytes, size, &all) || all > PTRDIFF_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, "give each member a smaller share",
                     "a collective of %" PRIu64 " bytes per member", collective->bytes);
  }
  return WEFT_OK;
}

static const char member_hint[] =
    "a group is of ranks of the world, each once, this one among them";

enum weft_status weft_group_find_member(const struct weft_allocator *allocator, uint32_t rank,
                                        uint32_t rank_count, uint32_t id, const uint32_t *ranks,
                                        uint32_t count, uint32_t *member,
                                        struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  unsigned char *seen = weft_arena_allocate(&arena, rank_count, 1);
  WEFT_TRY(weft_arena_status(&arena, error));
  uint32_t found = UINT32_MAX;
  for (uint32_t k = 0; k < count; k++) {
    if (ranks[k] >= rank_count || seen[ranks[k]]) {
      return weft_fail(error, WEFT_ERR_USAGE, member_hint,
                       "group %" PRIu32 " has rank %" PRIu32 " %s %" PRIu32, id, ranks[k],
                       ranks[k] >= rank_count ? "in a world of" : "again at place",
                       ranks[k] >= rank_count ? rank_count : k);
    }
    seen[ranks[k]] = 1;
    found = ranks[k] == rank ? k : found;
  }
  if (found == UINT32_MAX) {
    return weft_fail(error, WEFT_ERR_USAGE, member_hint,
                     "rank %" PRIu32 " creates group %" PRIu32 " of %" PRIu32
                     " ranks and is none of them",
                     rank, id, count);
  }
  *member = found;
  return WEFT_OK;
}

/* ---- The queue ---- */

static struct weft_collective *next_of(const struct weft_collective *collective) {
  struct weft_collective *next;
  _Static_assert(sizeof(void *) <= sizeof collective->state[0], "a pointer fits");
  memcpy((void *)&next, &collective->state[0], sizeof(void *));
  return next;
}

bool weft_group_queue_add(struct weft_group_queue *queue, struct weft_collective *collective) {
  collective->state[0] = 0;
  collective->state[1] = 1;
  if (queue->first == NULL) {
    queue->first = queue->last = collective;
    return true;
  }
  memcpy(&queue->last->state[0], (const void *)&collective, sizeof(void *));
  queue->last = collective;
  return false;
}

void weft_group_queue_pop(struct weft_group_queue *queue) {
  struct weft_collective *done = queue->first;
  assert(done != NULL);
  queue->first = next_of(done);
  queue->last = queue->first != NULL ? queue->last : NULL;
  done->state[1] = 0;
}
