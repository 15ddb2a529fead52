/* One rank's timeline as a line of text: what each column shows. */
#ifndef RENDER_TEXT_LANE_H
#define RENDER_TEXT_LANE_H

#include "render/timeline.h"

/* What one column saw of an op: its share of the column's time, and which cell of
 * the op has most of it. */
struct weft_text_share {
  double time;
  double best_time;
  uint64_t best;                 /* number of the cell in the lane */
  struct weft_action actions[2]; /* of that cell; the second is of an overlap */
};

struct weft_text_column {
  struct weft_text_share shares[WEFT_OP_COUNT];
  enum weft_op op; /* that it shows */
};

struct weft_text_lanes {
  const struct weft_simulation *simulation;
  struct weft_extent extent;
  uint32_t column_count;
  bool colour;
  struct weft_text_column *columns;  /* [column_count] scratch */
  enum weft_op shown[WEFT_OP_COUNT]; /* what a column can show, by priority; IDLE is the last */
  unsigned shown_count;
  bool seen[WEFT_OP_COUNT];     /* has a cell that takes time */
  bool labelled[WEFT_OP_COUNT]; /* its cells are wide enough for microbatches */
  bool counted[WEFT_OP_COUNT];  /* else, and they have columns of their own: neighbours alternate
                                   between capitals and small letters */
  bool has_pairs;               /* some lane that was written has such neighbours */
};

/* Sets `shown`, and `seen` and `labelled` from all ranks. */
void weft_text_lanes_measure(struct weft_text_lanes *lanes);

/* Appends the columns of a rank. */
void weft_text_lane_add(struct weft_text_lanes *lanes, uint32_t rank, struct weft_text *text);

#endif
