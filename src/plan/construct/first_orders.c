/* The first orders of a problem: those of all constructors that take little time. */
#include <assert.h>

#include "plan/construct/constructors.h"

typedef enum weft_status constructor(struct weft_incumbent *incumbent,
                                     struct weft_error *error);

static constructor *const constructors[] = {
    weft_construct_named,
    weft_construct_v_blocks,
    weft_construct_chain_greedy,
};

/* Work of the constructor of periodic orders, in nanoseconds of a typical core. */
enum { PERIODIC = 7000000 };

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
  weft_incumbent_finish(&own);
  return status;
}

enum weft_status weft_construct_first(struct weft_incumbent *incumbent, struct weft_error *error) {
  assert(incumbent->problem->stages_per_rank > 0);
  if (weft_problem_mixes(incumbent->problem)) {
    WEFT_TRY(construct_unmixed(incumbent, false, error));
    return construct_unmixed(incumbent, true, error);
  }
  weft_construct_serial(incumbent);
  weft_construct_limited(incumbent);
  weft_search_control_note_order(incumbent->problem->control);
  for (size_t n = 0; n < WEFT_ARRAY_LENGTH(constructors); n++) {
    if (!weft_incumbent_is_done(incumbent)) {
      WEFT_TRY(constructors[n](incumbent, error));
    }
  }
  (void)weft_construct_periodic(incumbent, PERIODIC, 0);
  return WEFT_OK;
}
