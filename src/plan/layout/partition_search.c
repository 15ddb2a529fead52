/* Search for partitions with small lower bounds. The bound of a partition is cheap, and close to
 * what its best order takes; so parts are moved between stages by simulated annealing of the bound,
 * and the best few partitions found on the way become layouts of their own. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "plan/bounds/chain_bound.h"
#include "plan/layout/layout.h"
#include "plan/layout/partition.h"

struct partition_search {
  const struct weft_allocator *allocator;
  const struct weft_search_request *request;
  const struct weft_shape *shape;
  uint32_t stage_count;
  struct weft_random random;
  struct weft_partition_list *list;
  struct weft_error *error;
};

/* The bound of a partition, in the unit of the costs. Partitions that do not fit into the memory
 * come after all others, those that exceed it least first. */
static enum weft_status rate(const struct partition_search *search, const uint32_t *first,
                             double *score) {
  struct weft_plan_layout layout = {.shape = *search->shape,
                                    .whole_backward = search->request->whole_backward};
  struct weft_problem problem;
  WEFT_TRY(weft_partition_costs(search->allocator, search->request, search->shape, first,
                                &layout.costs, search->error));
  const enum weft_status status = weft_plan_layout_problem(&problem, search->allocator,
                                                           search->request, &layout, search->error);
  if (status == WEFT_OK) {
    uint32_t rank;
    const uint32_t stages = weft_chain_serial_stages(&problem, &rank);
    const int64_t excess = weft_chain_serial_peak(&problem, rank, stages) - problem.limit[rank];
    *score = excess > 0 ? WEFT_PARTITION_TOO_LARGE * (1 + (double)excess / problem.sizes_per_unit)
                        : (double)weft_chain_bound(&problem) / problem.ticks_per_unit +
                              weft_all_reduce_of(search->request, &problem, layout.costs);
    weft_problem_finish(&problem);
  }
  weft_costs_destroy(layout.costs);
  return status;
}

/* Moves a part from one stage to another: those in between shift by one. */
static bool move_part(struct partition_search *search, uint32_t *first) {
  const uint32_t from = weft_random_below(&search->random, search->stage_count);
  const uint32_t far = weft_random_below(&search->random, 2) == 0
                           ? 1
                           : 1 + weft_random_below(&search->random, search->stage_count);
  const uint32_t to = weft_random_below(&search->random, 2) == 0 ? from + far : from - far;
  if (to >= search->stage_count || first[from + 1] - first[from] < 2) {
    return false;
  }
  for (uint32_t s = from + 1; s <= to; s++) {
    first[s]--;
  }
  for (uint32_t s = to + 1; s <= from; s++) {
    first[s]++;
  }
  return true;
}

/* Keeps the best few, each once; of those that do not fit only for the least memory. */
static void note(const struct partition_search *search, const uint32_t *first, double score) {
  struct weft_partition_list *list = search->list;
  if (score >= WEFT_PARTITION_TOO_LARGE && search->request->memory_limit > 0) {
    return;
  }
  const size_t size = ((size_t)search->stage_count + 1) * sizeof *first;
  uint32_t worst = 0;
  for (uint32_t n = 0; n < list->count; n++) {
    if (memcmp(list->first[n], first, size) == 0) {
      return;
    }
    worst = list->score[n] > list->score[worst] ? n : worst;
  }
  if (list->count < list->most) {
    worst = list->count++;
  } else if (score >= list->score[worst]) {
    list->rest = fmin(list->rest, score);
    return;
  } else {
    list->rest = fmin(list->rest, list->score[worst]);
  }
  memcpy(list->first[worst], first, size);
  list->score[worst] = score;
}

/* So many partitions are rated in a millisecond or two, whatever the effort. */
enum { FEW = 300 };

/* The number of partitions, if it is at most `most`; else more than that. */
static double count_partitions(uint32_t parts, uint32_t stages, double most) {
  double count = 1; /* parts - 1 over stages - 1 */
  for (uint32_t k = 1; k < stages && count <= most; k++) {
    count = count * (parts - k) / k;
  }
  return count;
}

/* The next partition in lexicographic order; false after the last. */
static bool next_partition(uint32_t *first, uint32_t stages, uint32_t parts) {
  for (uint32_t s = stages; s-- > 1;) {
    if (first[s] < parts - (stages - s)) {
      first[s]++;
      for (uint32_t k = s + 1; k < stages; k++) {
        first[k] = first[k - 1] + 1;
      }
      return true;
    }
  }
  return false;
}

/* Rates all of them; *done: it has not been cancelled. */
static enum weft_status rate_all(struct partition_search *search,
                                 struct weft_search_control *control, uint32_t *first, bool *done) {
  const uint32_t parts = search->request->costs->part_count;
  for (uint32_t s = 0; s < search->stage_count; s++) {
    first[s] = s;
  }
  first[search->stage_count] = parts;
  do {
    double score = 0;
    if (weft_search_control_poll(control)) {
      return WEFT_OK;
    }
    WEFT_TRY(rate(search, first, &score));
    note(search, first, score);
  } while (next_partition(first, search->stage_count, parts));
  *done = true;
  return WEFT_OK;
}

enum weft_status weft_partition_search(const struct weft_allocator *allocator,
                                       const struct weft_search_request *request,
                                       const struct weft_shape *shape, uint32_t tries,
                                       struct weft_search_control *control, const uint32_t *start,
                                       struct weft_partition_list *list, struct weft_error *error) {
  assert(request->costs->part_count > 0 && start[0] == 0 && list != NULL);
  struct partition_search search = {.allocator = allocator,
                                    .request = request,
                                    .shape = shape,
                                    .stage_count = shape->ranks * shape->stages_per_rank,
                                    .random = {.state = request->seed},
                                    .list = list,
                                    .error = error};
  const uint32_t room = search.stage_count + 1;
  const size_t size = room * sizeof *start;
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  uint32_t *now = weft_arena_allocate(&arena, room, sizeof *now);
  uint32_t *tried = weft_arena_allocate(&arena, room, sizeof *tried);
  WEFT_TRY(weft_arena_status(&arena, error));
  double score = 0;
  memcpy(now, start, size);
  const double most = fmax(tries, FEW);
  const bool all = count_partitions(request->costs->part_count, search.stage_count, most) <= most;
  bool done = false;
  WEFT_TRY(all ? rate_all(&search, control, tried, &done) : rate(&search, now, &score));
  /* A problem with only split backwards says nothing about whole ones. */
  if (!done || request->uniform_backward) {
    WEFT_TRY(weft_partition_bound(allocator, request, shape, &list->rest, error));
  }
  for (uint32_t n = 0; !all && n < tries && !weft_search_control_poll(control); n++) {
    double own = 0;
    memcpy(tried, now, size);
    if (!move_part(&search, tried)) {
      continue;
    }
    WEFT_TRY(rate(&search, tried, &own));
    const double left = 1 - (double)n / tries;
    const double allowance =
        -0.01 * score * left * left * log(weft_random_share(&search.random) + 1e-300);
    note(&search, tried, own);
    if (own <= score + allowance) {
      memcpy(now, tried, size);
      score = own;
    }
  }
  return WEFT_OK;
}
