/* Finds the pipelines of a job from its messages and the process groups that carry them. */
#include <assert.h>
#include <inttypes.h>

#include "flight/flight_verdict.h"

#define NOBODY UINT32_MAX

/* By number in the job, [WEFT_RANKS_MAX]. */
struct numbering {
  uint32_t rank_count; /* of a pipeline */
  uint32_t *parent;    /* 1 + another rank of the same pipeline, towards its first; 0: not in use */
  uint32_t *size;      /* of the pipeline whose first rank it is */
  uint32_t count, largest;
};

static void count_rank(struct numbering *numbering, uint32_t rank) {
  assert(rank < WEFT_RANKS_MAX);
  if (numbering->parent[rank] == 0) {
    numbering->parent[rank] = rank + 1;
    numbering->size[rank] = 1;
    numbering->count++;
    numbering->largest = rank > numbering->largest ? rank : numbering->largest;
  }
}

/* The first rank of its pipeline. */
static uint32_t first_of(struct numbering *numbering, uint32_t rank) {
  uint32_t *parent = numbering->parent;
  while (parent[rank] != rank + 1) {
    parent[rank] = parent[parent[rank] - 1];
    rank = parent[rank] - 1;
  }
  return rank;
}

static void join(struct numbering *numbering, uint32_t a, uint32_t b) {
  count_rank(numbering, a);
  count_rank(numbering, b);
  const uint32_t one = first_of(numbering, a), other = first_of(numbering, b);
  if (one != other) {
    const uint32_t first = one < other ? one : other, second = one < other ? other : one;
    numbering->parent[second] = first + 1;
    numbering->size[first] += numbering->size[second];
  }
}

static void join_record(struct numbering *numbering, const struct weft_flight_record *record) {
  count_rank(numbering, record->rank);
  for (size_t t = 0; t < record->count; t++) {
    join(numbering, record->rank, record->transfers[t].peer);
  }
  for (uint32_t g = 0; g < record->group_count; g++) {
    const struct weft_flight_group *group = &record->groups[g];
    const bool is_of_pipeline = group->has_transfers && group->rank_count <= numbering->rank_count;
    for (uint32_t k = 0; k < group->rank_count && is_of_pipeline; k++) {
      join(numbering, record->rank, group->ranks[k]);
    }
  }
}

static enum weft_status fail_ranks(const struct numbering *numbering, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_INVALID, "give the program that each pipeline of the job runs",
                   "the dumps name %" PRIu32 " ranks, up to rank %" PRIu32
                   "; the program has %" PRIu32,
                   numbering->count, numbering->largest, numbering->rank_count);
}

/* The rows are those of the ranks in their order. */
static enum weft_status number_ranks(struct weft_arena *arena, struct numbering *numbering,
                                     struct weft_flight_ranks *ranks, struct weft_error *error) {
  const uint32_t rank_count = numbering->rank_count;
  for (uint32_t r = 0; numbering->largest < rank_count && r < rank_count; r++) {
    count_rank(numbering, r);
  }
  for (uint32_t r = 0; numbering->count == rank_count && r <= numbering->largest; r++) {
    if (numbering->parent[r] > 0) {
      join(numbering, r, numbering->largest);
    }
  }
  uint32_t *next = weft_arena_allocate(arena, WEFT_RANKS_MAX, sizeof *next); /* of a pipeline */
  ranks->numbers = weft_arena_allocate(arena, numbering->count, sizeof *ranks->numbers);
  ranks->positions = weft_arena_allocate(arena, WEFT_RANKS_MAX, sizeof *ranks->positions);
  ranks->records = weft_arena_allocate(arena, numbering->count, sizeof *ranks->records);
  WEFT_TRY(weft_arena_status(arena, error));
  ranks->count = numbering->count;
  for (uint32_t r = 0, last = ranks->count; r < WEFT_RANKS_MAX; r++) {
    const uint32_t first = numbering->parent[r] > 0 ? first_of(numbering, r) : r;
    const uint32_t size = numbering->size[first];
    if (size > 1 && size != rank_count) {
      return fail_ranks(numbering, error);
    }
    if (first == r && size == rank_count) {
      next[r] = rank_count * ranks->pipelines++;
    }
    ranks->positions[r] = size == 0 ? NOBODY : size == rank_count ? next[first]++ : --last;
    if (size > 0) {
      ranks->numbers[ranks->positions[r]] = r;
    }
  }
  return ranks->pipelines > 0 ? WEFT_OK : fail_ranks(numbering, error);
}

enum weft_status weft_flight_ranks_find(struct weft_arena *arena, uint32_t rank_count,
                                        struct weft_flight_record *records, size_t count,
                                        struct weft_flight_ranks *ranks, struct weft_error *error) {
  assert(rank_count > 0 && ranks != NULL);
  struct numbering numbering = {
      .rank_count = rank_count,
      .parent = weft_arena_allocate(arena, WEFT_RANKS_MAX, sizeof *numbering.parent),
      .size = weft_arena_allocate(arena, WEFT_RANKS_MAX, sizeof *numbering.size)};
  WEFT_TRY(weft_arena_status(arena, error));
  for (size_t k = 0; k < count; k++) {
    join_record(&numbering, &records[k]);
  }
  WEFT_TRY(number_ranks(arena, &numbering, ranks, error));
  for (size_t k = 0; k < count; k++) {
    struct weft_flight_record *record = &records[k];
    const uint32_t position = ranks->positions[record->rank];
    const uint32_t base = position - position % rank_count;
    if (ranks->records[position].name != NULL) {
      return weft_fail(error, WEFT_ERR_USAGE, "give one dump of each rank",
                       "%s and %s are both dumps of rank %" PRIu32, ranks->records[position].name,
                       record->name, record->rank);
    }
    record->rank = position - base;
    for (size_t t = 0; t < record->count; t++) {
      record->transfers[t].peer = ranks->positions[record->transfers[t].peer] - base;
    }
    ranks->records[position] = *record;
  }
  for (uint32_t p = 0; p < ranks->count; p++) {
    ranks->records[p].numbers = &ranks->numbers[p - p % rank_count];
  }
  return WEFT_OK;
}
