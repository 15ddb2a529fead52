/* The first orders of a problem: those of all constructors that take little time. */
#include <assert.h>

#include "plan/construct/constructors.h"
#include "plan/construct/rule_scheduler.h"

typedef enum weft_status constructor(struct weft_incumbent *incumbent, struct weft_error *error);

static constructor *const constructors[] = {
    weft_construct_named,
    weft_construct_v_blocks,
    weft_construct_chain_greedy,
};

/* Where the other constructors take a second or more: what a search without time has to offer. */
enum { MANY_OPS = 1000000 };

/* Work of the constructor of periodic orders, in nanoseconds of a typical core. */
enum { PERIODIC = 7000000 };

/* ---- Of any graph ---- */

/* One as 1F1B, with W where a rank would be idle. */
static enum weft_status construct_classic(struct weft_incumbent *incumbent,
                                          struct weft_error *error) {
  const struct weft_problem *problem = incumbent->problem;
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct weft_rule_scheduler scheduler;
  uint64_t work = 0;
  struct weft_list_rule *rules = weft_arena_allocate(&arena, problem->stage_count, sizeof *rules);
  WEFT_TRY(weft_rule_scheduler_init(&scheduler, problem, &incumbent->clock, &arena, error));
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    rules[s] = weft_list_rule_classic(problem, s);
  }
  if (weft_rule_schedule(problem, &scheduler, rules, WEFT_NEVER, &incumbent->draft, &work) !=
      WEFT_NEVER) {
    weft_incumbent_try(incumbent, &incumbent->draft, NULL);
  }
  return WEFT_OK;
}

/* That one; else one that fits, if one is found: of one microbatch after the other some always does,
 * unless gradients come late, or branches share a rank. */
static enum weft_status construct_any(struct weft_incumbent *incumbent, struct weft_error *error) {
  const struct weft_problem *problem = incumbent->problem;
  WEFT_TRY(construct_classic(incumbent, error));
  if (incumbent->value == WEFT_NEVER) {
    weft_order_serial(problem, &incumbent->clock, 0, &incumbent->draft);
    weft_incumbent_try(incumbent, &incumbent->draft, NULL);
  }
  if (incumbent->value == WEFT_NEVER) {
    bool found;
    WEFT_TRY(weft_problem_fit(problem, &incumbent->draft, &found, error));
    if (found) {
      weft_incumbent_try(incumbent, &incumbent->draft, NULL);
      assert(incumbent->value != WEFT_NEVER);
    }
  }
  if (incumbent->value != WEFT_NEVER) {
    weft_search_control_note_order(problem->control);
  }
  return WEFT_OK;
}

/* ---- Of a chain ---- */

/* The orders of a mixed problem in which all backwards are whole, or all are split. */
static enum weft_status construct_unmixed(struct weft_incumbent *incumbent, bool whole,
                                          struct weft_error *error) {
  struct weft_problem view = *incumbent->problem;
  struct weft_incumbent own;
  view.may_split = !whole;
  view.may_join = whole;
  WEFT_TRY(weft_incumbent_init(&own, &view, incumbent->bound, error));
  const enum weft_status status = weft_construct_first(&own, error);
  if (status == WEFT_OK && own.value != WEFT_NEVER) {
    weft_incumbent_try(incumbent, &own.best, own.name);
  }
  incumbent->evaluated += own.evaluated;
  incumbent->is_impossible = own.is_impossible && incumbent->value == WEFT_NEVER;
  weft_incumbent_finish(&own);
  return status;
}

enum weft_status weft_construct_first(struct weft_incumbent *incumbent, struct weft_error *error) {
  assert(incumbent->clock.done != NULL);
  if (incumbent->problem->stages_per_rank == 0) {
    return construct_any(incumbent, error);
  }
  if (weft_problem_mixes(incumbent->problem)) {
    WEFT_TRY(construct_unmixed(incumbent, false, error));
    return construct_unmixed(incumbent, true, error);
  }
  weft_construct_serial(incumbent);
  incumbent->is_impossible = incumbent->value == WEFT_NEVER;
  if (weft_problem_timed_op_count(incumbent->problem) >= MANY_OPS) {
    WEFT_TRY(construct_classic(incumbent, error));
  }
  weft_search_control_note_order(incumbent->problem->control);
  for (size_t n = 0; n < WEFT_ARRAY_LENGTH(constructors); n++) {
    if (!weft_incumbent_is_done(incumbent)) {
      WEFT_TRY(constructors[n](incumbent, error));
    }
  }
  (void)weft_construct_periodic(incumbent, PERIODIC, 0);
  return WEFT_OK;
}
