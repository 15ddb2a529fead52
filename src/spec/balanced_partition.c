/* Partitions a sequence of weights into contiguous ranges: the layers of a model into
 * stages.
 *
 * Weights are taken in units of 2^-46 of the largest (rounded up to a power of two), as
 * integers: sums are exact then, and the same from either end.
 *
 * First the least bound. Whether all weights fit into the stages under a bound is found
 * by filling one stage after the other, so the least one is found by bisection. What is
 * possible under it is a window for each stage's begin: not before the rest fits into
 * the stages that are left, and not after what the stages before can take.
 *
 * Then the least sum of squares inside these windows, stage after stage: of every begin
 * of the next stage, where this one begins best. That moves to the right when the other
 * does, since the square of a sum is convex; a bound on it does not change that. So the
 * best one of a middle begin divides the search for those on both sides of it. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include <weft/costs.h>
#include <weft/support.h>

enum { UNIT_BITS = 46 };
_Static_assert(WEFT_STAGES_MAX <= 1 << 17, "2^17 weights of 2^46 units are below 2^63");

struct partition {
  uint64_t *sums; /* [count + 1] of the weights before */
  uint32_t count, stage_count;
  uint64_t bound;
  uint32_t *earliest, *latest; /* [stage_count + 1] begins of stages; the last is `count` */
  double *before;              /* [count + 1] least squares of the stages before this one ... */
  double *squares;             /* [count + 1] ... and with it, by where the next one begins */
  uint32_t *best;              /* [stage_count][count + 1] where this one begins then */
};

static uint64_t load_of(const struct partition *partition, uint32_t begin, uint32_t end) {
  return partition->sums[end] - partition->sums[begin];
}

/* ---- The least bound ---- */

/* Each stage takes what it can: no partition under this bound has fewer stages. */
static uint32_t stages_needed(const struct partition *partition, uint64_t bound) {
  uint32_t stages = 1, begin = 0;
  for (uint32_t end = 1; end <= partition->count; end++) {
    if (load_of(partition, begin, end) > bound) {
      stages++;
      begin = end - 1;
    }
  }
  return stages;
}

static uint64_t least_bound(const struct partition *partition) {
  uint64_t low = 0; /* the heaviest weight: no bound is less */
  uint64_t high = partition->sums[partition->count];
  for (uint32_t k = 0; k < partition->count; k++) {
    const uint64_t weight = load_of(partition, k, k + 1);
    low = weight > low ? weight : low;
  }
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (stages_needed(partition, middle) <= partition->stage_count) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/* ---- What is possible under it ---- */

static void find_windows(struct partition *partition) {
  uint32_t begin = partition->count, end = 0;
  partition->earliest[partition->stage_count] = begin;
  for (uint32_t s = partition->stage_count; s-- > 0;) {
    const uint32_t after = begin;
    while (begin > s && load_of(partition, begin - 1, after) <= partition->bound) {
      begin--;
    }
    partition->earliest[s] = begin;
  }
  for (uint32_t s = 0; s < partition->stage_count; s++) {
    partition->latest[s] = begin = end;
    const uint32_t stages_after = partition->stage_count - s - 1;
    while (end < partition->count - stages_after &&
           load_of(partition, begin, end + 1) <= partition->bound) {
      end++;
    }
    assert(partition->earliest[s] <= partition->latest[s]);
  }
  partition->latest[partition->stage_count] = end;
  assert(partition->earliest[0] == 0 && end == partition->count);
}

/* ---- The least squares ---- */

/* Where stage s begins best, from `low` to `high`, if the next one begins at `end`. */
static uint32_t best_begin(const struct partition *partition, uint32_t end, uint32_t low,
                           uint32_t high, double *least) {
  uint32_t best = high < end ? high : end - 1;
  *least = INFINITY;
  for (uint32_t begin = low; begin <= high && begin < end; begin++) {
    const uint64_t load = load_of(partition, begin, end);
    const double square = (double)load * (double)load;
    if (load <= partition->bound && partition->before[begin] + square < *least) {
      *least = partition->before[begin] + square;
      best = begin;
    }
  }
  return best;
}

/* For all begins of the next stage from `first` to `last`; stage s itself begins from
 * `low` to `high`. There is always one under the bound: the latest of the next ones that
 * were searched, or the weight before `end` alone. */
static void search(struct partition *partition, uint32_t s, uint32_t first, uint32_t last,
                   uint32_t low, uint32_t high) {
  const uint32_t end = first + (last - first) / 2;
  const uint32_t best = best_begin(partition, end, low, high, &partition->squares[end]);
  assert(isfinite(partition->squares[end]));
  partition->best[(size_t)s * (partition->count + 1) + end] = best;
  if (first < end) {
    search(partition, s, first, end - 1, low, best);
  }
  if (end < last) {
    search(partition, s, end + 1, last, best, high);
  }
}

static void find_best(struct partition *partition, uint32_t *first) {
  for (uint32_t s = 0; s < partition->stage_count; s++) {
    search(partition, s, partition->earliest[s + 1], partition->latest[s + 1],
           partition->earliest[s], partition->latest[s]);
    double *made = partition->squares;
    partition->squares = partition->before;
    partition->before = made;
  }
  first[partition->stage_count] = partition->count;
  for (uint32_t s = partition->stage_count; s-- > 0;) {
    first[s] = partition->best[(size_t)s * (partition->count + 1) + first[s + 1]];
  }
}

/* ---- All of it ---- */

static enum weft_status check_weights(const double *weights, uint32_t count, uint32_t stage_count,
                                      struct weft_error *error) {
  if (stage_count < 1 || stage_count > count) {
    return weft_fail(error, WEFT_ERR_USAGE, "use fewer stages, or smaller parts",
                     "%" PRIu32 " parts cannot be cut into %" PRIu32
                     " stages: expected 1 to %" PRIu32,
                     count, stage_count, count);
  }
  if (count > WEFT_STAGES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "use larger parts",
                     "%" PRIu32 " parts; the limit is %" PRIu32, count, WEFT_STAGES_MAX);
  }
  for (uint32_t k = 0; k < count; k++) {
    if (!isfinite(weights[k]) || weights[k] < 0) {
      return weft_fail(error, WEFT_ERR_USAGE, "",
                       "the cost of part %" PRIu32 " is %g; expected a number from 0 on", k,
                       weights[k]);
    }
  }
  return WEFT_OK;
}

/* If nothing weighs anything, all count alike. */
static void add_up(const double *weights, uint32_t count, uint64_t *sums) {
  double largest = 0;
  int exponent;
  for (uint32_t k = 0; k < count; k++) {
    largest = fmax(largest, weights[k]);
  }
  (void)frexp(largest, &exponent);
  sums[0] = 0;
  for (uint32_t k = 0; k < count; k++) {
    const double weight = ldexp(weights[k], UNIT_BITS - exponent);
    sums[k + 1] = sums[k] + (largest > 0 ? (uint64_t)round(weight) : 1);
  }
}

static enum weft_status allocate_arrays(struct partition *partition, struct weft_arena *arena,
                                        struct weft_error *error) {
  const size_t ends = (size_t)partition->count + 1, stages = (size_t)partition->stage_count + 1;
  partition->sums = weft_arena_allocate(arena, ends, sizeof *partition->sums);
  partition->earliest = weft_arena_allocate(arena, stages, sizeof *partition->earliest);
  partition->latest = weft_arena_allocate(arena, stages, sizeof *partition->latest);
  partition->before = weft_arena_allocate(arena, ends, sizeof *partition->before);
  partition->squares = weft_arena_allocate(arena, ends, sizeof *partition->squares);
  partition->best = weft_arena_allocate(arena, stages * ends, sizeof *partition->best);
  return weft_arena_status(arena, error);
}

enum weft_status weft_balanced_partition(const struct weft_allocator *allocator,
                                         const double *weights, uint32_t count,
                                         uint32_t stage_count, uint32_t *first,
                                         struct weft_error *error) {
  WEFT_NEED(first, error);
  if (count > 0) {
    WEFT_NEED(weights, error);
  }
  struct partition partition = {.count = count, .stage_count = stage_count};
  WEFT_TRY(check_weights(weights, count, stage_count, error));
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  WEFT_TRY(allocate_arrays(&partition, &arena, error));
  add_up(weights, count, partition.sums);
  partition.bound = least_bound(&partition);
  find_windows(&partition);
  find_best(&partition, first);
  return WEFT_OK;
}
