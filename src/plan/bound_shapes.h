/* How far a rank's letters are apart, as far as its memory allows. Inside the module.
 *
 * The letters of a microbatch on a rank come in one order: F of its stages, then I (or B)
 * of the same in reverse. They make a line; at any time each has been done for no more
 * microbatches than the one before it. A shape says how many fewer, for each: it does not
 * change when all have gone on by one. With `merged` letters the stages of a rank are not
 * told apart: the line has an F and an I, of whichever stage, with the smallest times
 * and sizes. W is not on the line: what awaits W is only counted. */
#ifndef PLAN_BOUND_SHAPES_H
#define PLAN_BOUND_SHAPES_H

#include "plan/problem.h"

enum { WEFT_LINE_MAX = 2 * WEFT_PLACES_MAX };

struct weft_line_shapes {
  uint32_t letters; /* of the line */
  uint32_t count;   /* of shapes; each comes after those that lead to it by another than the
                       first letter */
  uint32_t start;   /* the shape with nothing done */
  uint32_t *behind; /* [shape * letters + n] how many fewer than the first letter */
  uint32_t *next;   /* [shape * letters + n] after one more of letter n; WEFT_SHAPE_NONE */
  uint32_t *most;   /* [shape] that may await W */
  size_t *offset;   /* [shape + 1] sums of most + 1: for tables over shapes and W */
};

#define WEFT_SHAPE_NONE UINT32_MAX

/* All shapes within a rank's memory. False when there are more than `most` entries of shapes
 * and W together, or no room. */
bool weft_line_shapes_init(struct weft_line_shapes *shapes, const struct weft_problem *problem,
                           uint32_t rank, bool merged, uint64_t most);
void weft_line_shapes_finish(struct weft_line_shapes *shapes,
                             const struct weft_allocator *allocator);

#endif
