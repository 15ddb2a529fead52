/* How far a rank's letters are apart, as far as its memory allows. Inside the module.
 *
 * F and I (or B) of a microbatch on a rank come in one order: F of its stages, then I of
 * the same in reverse. They make a line; at any time each has been done for no more
 * microbatches than the one before it. A shape says how many fewer, for each, and how
 * many await W at the stages but the first; those of the first are only counted. It
 * does not change when all have gone on by one. */
#ifndef PLAN_BOUND_SHAPES_H
#define PLAN_BOUND_SHAPES_H

#include "plan/problem.h"

/* What is told apart. What is not has the smallest of times and sizes. */
enum weft_line_detail {
  WEFT_LINE_RANK,   /* nothing: the line has an F and an I, of whichever stage */
  WEFT_LINE_STAGES, /* F and I of the stages; all that awaits W is only counted */
  WEFT_LINE_WEIGHTS /* W too */
};

enum { WEFT_LINE_MAX = 3 * WEFT_PLACES_MAX };

struct weft_line_shapes {
  uint32_t line;     /* letters of the line */
  uint32_t extra;    /* W letters that shapes know: of the second stage, the third... */
  uint32_t count;    /* of shapes; each comes after those that lead to it by another than the
                        first letter */
  uint32_t start;    /* the shape with nothing done */
  uint32_t *behind;  /* [shape * line + n] how many fewer than the first letter */
  uint32_t *waiting; /* [shape * extra + n] that await W */
  uint32_t *next;    /* [shape * (line + extra) + n] after one more; WEFT_SHAPE_NONE */
  uint32_t *most;    /* [shape] that may await W and are only counted */
  size_t *offset;    /* [shape + 1] sums of most + 1: for tables over shapes and W */
};

#define WEFT_SHAPE_NONE UINT32_MAX

/* All shapes within a rank's memory. False when there are more than `most` entries of shapes
 * and W together, or no room. */
bool weft_line_shapes_init(struct weft_line_shapes *shapes, const struct weft_problem *problem,
                           uint32_t rank, enum weft_line_detail detail, uint64_t most);
void weft_line_shapes_finish(struct weft_line_shapes *shapes,
                             const struct weft_allocator *allocator);

#endif
