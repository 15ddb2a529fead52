/* What a worker holds. */
#include "plan/improve/worker.h"

#include <assert.h>

enum weft_status weft_worker_init(struct weft_worker *worker, const struct weft_problem *problem,
                                  uint64_t seed, int64_t bound, struct weft_search_control *control,
                                  struct weft_error *error) {
  assert(worker != NULL && control != NULL);
  struct weft_arena *arena = &worker->incumbent.arena; /* all live as long */
  *worker = (struct weft_worker){.control = control, .random = {.state = seed}};
  WEFT_TRY(weft_incumbent_init(&worker->incumbent, problem, bound, error));
  worker->rules = weft_arena_allocate(arena, problem->stage_count, sizeof *worker->rules);
  worker->tried = weft_arena_allocate(arena, problem->stage_count, sizeof *worker->tried);
  return weft_rule_scheduler_init(&worker->scheduler, problem, &worker->incumbent.clock, arena,
                                  error);
}

void weft_worker_finish(struct weft_worker *worker) {
  weft_evaluator_finish(&worker->evaluator);
  weft_incumbent_finish(&worker->incumbent);
}
