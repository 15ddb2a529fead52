/* Cutting a row of weights; see cut.h.
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
#include "gpt/cut.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "gpt/fail.h"
#include "gpt/memory.h"

struct cut {
  const uint64_t *sums;
  uint32_t count, stage_count;
  uint64_t bound;
  uint32_t *earliest, *latest; /* [stage_count + 1] begins of stages; the last is `count` */
  double *before;              /* [count + 1] least squares of the stages before this one ... */
  double *squares;             /* [count + 1] ... and with it, by where the next one begins */
  uint16_t *best;              /* [stage_count][count + 1] where this one begins then */
};

static uint64_t load_of(const struct cut *cut, uint32_t begin, uint32_t end) {
  return cut->sums[end] - cut->sums[begin];
}

/* ---- The least bound ---- */

/* Each stage takes what it can: no cut under this bound has fewer stages. */
static uint32_t stages_needed(const struct cut *cut, uint64_t bound) {
  uint32_t stages = 1, begin = 0;
  for (uint32_t end = 1; end <= cut->count; end++) {
    if (load_of(cut, begin, end) > bound) {
      stages++;
      begin = end - 1;
    }
  }
  return stages;
}

static uint64_t least_bound(const struct cut *cut) {
  uint64_t low = 0; /* the heaviest weight: no bound is less */
  uint64_t high = cut->sums[cut->count];
  for (uint32_t k = 0; k < cut->count; k++) {
    const uint64_t weight = load_of(cut, k, k + 1);
    low = weight > low ? weight : low;
  }
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (stages_needed(cut, middle) <= cut->stage_count) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/* ---- What is possible under it ---- */

static void find_windows(struct cut *cut) {
  uint32_t begin = cut->count, end = 0;
  cut->earliest[cut->stage_count] = begin;
  for (uint32_t s = cut->stage_count; s-- > 0;) {
    const uint32_t after = begin;
    while (begin > s && load_of(cut, begin - 1, after) <= cut->bound) {
      begin--;
    }
    cut->earliest[s] = begin;
  }
  for (uint32_t s = 0; s < cut->stage_count; s++) {
    cut->latest[s] = begin = end;
    const uint32_t stages_after = cut->stage_count - s - 1;
    while (end < cut->count - stages_after && load_of(cut, begin, end + 1) <= cut->bound) {
      end++;
    }
    assert(cut->earliest[s] <= cut->latest[s]);
  }
  cut->latest[cut->stage_count] = end;
  assert(cut->earliest[0] == 0 && end == cut->count);
}

/* ---- The least squares ---- */

/* Where stage s begins best, from `low` to `high`, if the next one begins at `end`. */
static uint32_t best_begin(const struct cut *cut, uint32_t end, uint32_t low, uint32_t high,
                           double *least) {
  uint32_t best = high < end ? high : end - 1;
  *least = INFINITY;
  for (uint32_t begin = low; begin <= high && begin < end; begin++) {
    const uint64_t load = load_of(cut, begin, end);
    const double square = (double)load * (double)load;
    if (load <= cut->bound && cut->before[begin] + square < *least) {
      *least = cut->before[begin] + square;
      best = begin;
    }
  }
  return best;
}

/* For all begins of the next stage from `first` to `last`; stage s itself begins from
 * `low` to `high`. There is always one under the bound: the latest of the next ones that
 * were searched, or the weight before `end` alone. */
static void search(struct cut *cut, uint32_t s, uint32_t first, uint32_t last, uint32_t low,
                   uint32_t high) {
  const uint32_t end = first + (last - first) / 2;
  const uint32_t best = best_begin(cut, end, low, high, &cut->squares[end]);
  assert(isfinite(cut->squares[end]));
  cut->best[(size_t)s * (cut->count + 1) + end] = (uint16_t)best;
  if (first < end) {
    search(cut, s, first, end - 1, low, best);
  }
  if (end < last) {
    search(cut, s, end + 1, last, best, high);
  }
}

static void find_best(struct cut *cut, uint32_t *first) {
  for (uint32_t s = 0; s < cut->stage_count; s++) {
    search(cut, s, cut->earliest[s + 1], cut->latest[s + 1], cut->earliest[s], cut->latest[s]);
    double *made = cut->squares;
    cut->squares = cut->before;
    cut->before = made;
  }
  first[cut->stage_count] = cut->count;
  for (uint32_t s = cut->stage_count; s-- > 0;) {
    first[s] = cut->best[(size_t)s * (cut->count + 1) + first[s + 1]];
  }
}

/* ---- All of it ---- */

enum weft_status weft_gpt_cut(const struct weft_allocator *allocator, const uint64_t *sums,
                              uint32_t count, uint32_t stage_count, uint32_t *first,
                              struct weft_error *error) {
  const uint64_t places = (uint64_t)stage_count * (count + 1);
  struct cut cut = {.sums = sums, .count = count, .stage_count = stage_count};
  assert(stage_count >= 1 && stage_count <= count && count < UINT16_MAX);
  uint32_t *windows = weft_gpt_allocate(allocator, 2 * (stage_count + 1), sizeof *windows);
  double *squares = weft_gpt_allocate(allocator, 2 * (count + 1), sizeof *squares);
  cut.best = weft_gpt_allocate(allocator, places, sizeof *cut.best);
  const bool has_memory = windows != NULL && squares != NULL && cut.best != NULL;
  if (has_memory) {
    cut.earliest = windows;
    cut.latest = windows + stage_count + 1;
    cut.before = squares; /* cleared: nothing is before the first stage */
    cut.squares = squares + count + 1;
    cut.bound = least_bound(&cut);
    find_windows(&cut);
    find_best(&cut, first);
  }
  weft_gpt_free(allocator, windows);
  weft_gpt_free(allocator, squares);
  weft_gpt_free(allocator, cut.best);
  return has_memory ? WEFT_OK : weft_gpt_fail_memory(error, places * sizeof *cut.best);
}
