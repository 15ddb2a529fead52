/* The first orders of a problem: those of all constructors that take little time. */
#include <assert.h>

#include "plan/construct/chain_incumbent.h"

typedef enum weft_status constructor(struct weft_chain_incumbent *incumbent,
                                     struct weft_error *error);

static constructor *const constructors[] = {
    weft_construct_named,
    weft_construct_v_blocks,
    weft_construct_chain_greedy,
};

/* Work of the constructor of periodic orders, in nanoseconds of a typical core. */
enum { PERIODIC = 7000000 };

/* The orders of a mixed problem in which all backwards are whole, or all are split. */
static enum weft_status construct_unmixed(struct weft_chain_incumbent *incumbent,
                                          enum weft_plan_backward backward,
                                          struct weft_error *error) {
  const struct weft_chain *problem = incumbent->problem;
  const struct weft_chain view = weft_chain_restrict(problem, backward);
  struct weft_chain_incumbent own;
  WEFT_TRY(weft_chain_incumbent_init_bound(&own, &view, incumbent->bound, error));
  const enum weft_status status = weft_construct_first(&own, error);
  if (status == WEFT_OK && own.value != WEFT_NEVER) {
    weft_chain_order_convert(&view, &own.best, problem, &incumbent->draft);
    (void)weft_chain_incumbent_offer(incumbent, &incumbent->draft, own.name);
  }
  incumbent->evaluated += own.evaluated;
  weft_chain_incumbent_finish(&own);
  return status;
}

enum weft_status weft_construct_first(struct weft_chain_incumbent *incumbent,
                                      struct weft_error *error) {
  assert(incumbent->draft.ops != NULL);
  if (incumbent->problem->backward == WEFT_BACKWARD_MIXED) {
    WEFT_TRY(construct_unmixed(incumbent, WEFT_BACKWARD_SPLIT, error));
    return construct_unmixed(incumbent, WEFT_BACKWARD_WHOLE, error);
  }
  weft_construct_serial(incumbent);
  weft_construct_limited(incumbent);
  weft_search_control_note_order(incumbent->problem->control);
  for (size_t n = 0; n < WEFT_ARRAY_LENGTH(constructors); n++) {
    if (!weft_chain_incumbent_is_done(incumbent)) {
      WEFT_TRY(constructors[n](incumbent, error));
    }
  }
  (void)weft_construct_periodic(incumbent, PERIODIC, 0);
  return WEFT_OK;
}
