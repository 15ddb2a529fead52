/* Keeps the tables of all ranks for one target. */
#include "plan/bounds/window_guide.h"

#include <assert.h>

bool weft_guide_init(struct weft_guide *guide, const struct weft_problem *problem, uint64_t work) {
  assert(guide != NULL && problem != NULL);
  *guide = (struct weft_guide){.problem = problem};
  if (!weft_paths_init(&guide->paths, problem) ||
      !weft_windows_init(&guide->windows, &guide->paths, WEFT_LINE_WEIGHTS, work) ||
      !WEFT_ALLOCATE(&guide->windows.arena, guide->kept, problem->rank_count)) {
    return false;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (!weft_state_table_keep_init(&guide->kept[r], &guide->windows.table, r)) {
      return false;
    }
  }
  return true;
}

void weft_guide_finish(struct weft_guide *guide) {
  weft_windows_finish(&guide->windows);
  weft_paths_finish(&guide->paths);
}

enum weft_guide_result weft_guide_aim(struct weft_guide *guide, int64_t target) {
  assert(guide->problem != NULL && guide->kept != NULL);
  struct weft_windows *windows = &guide->windows;
  if (weft_windows_refute(windows, target)) {
    return WEFT_GUIDE_REFUTED;
  }
  for (uint32_t r = 0; r < guide->problem->rank_count && windows->work_left > 0; r++) {
    const bool done = weft_windows_fill(windows, r);
    guide->filled += windows->table.visited;
    if (windows->table.cancelled) {
      windows->work_left = 0;
    } else if (!done) {
      return WEFT_GUIDE_REFUTED;
    } else {
      weft_state_table_keep(&guide->kept[r], &windows->table, r);
    }
  }
  return windows->work_left > 0 ? WEFT_GUIDE_OPEN : WEFT_GUIDE_UNKNOWN;
}
