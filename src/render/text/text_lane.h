/* One rank's timeline as a line of text: what each column shows. */
#ifndef ANALYZE_TEXT_LANE_H
#define ANALYZE_TEXT_LANE_H

#include "render/timeline.h"

/* What a column can show, by priority where two have the same share of it. */
enum weft_text_mark {
  WEFT_TEXT_F,
  WEFT_TEXT_B,
  WEFT_TEXT_I,
  WEFT_TEXT_W,
  WEFT_TEXT_OVERLAP, /* F and B together */
  WEFT_TEXT_UNSHARD,
  WEFT_TEXT_REDUCE,
  WEFT_TEXT_TIE,
  WEFT_TEXT_IDLE,
  WEFT_TEXT_MARKS
};

struct weft_text_mark_info {
  char letter;
  const char *colour; /* what an SGR sequence sets, "48;5;74;38;5;16" */
  const char *meaning;
};
const struct weft_text_mark_info *weft_text_mark_info(enum weft_text_mark mark);

/* What one column saw of a mark: its share of the column's time, and which cell
 * of the mark has most of it. */
struct weft_text_share {
  double time;
  double best_time;
  uint64_t best;                 /* number of the cell in the lane */
  struct weft_action actions[2]; /* of that cell; the second is of an overlap */
};

struct weft_text_column {
  struct weft_text_share shares[WEFT_TEXT_MARKS];
  enum weft_text_mark mark; /* that it shows */
};

struct weft_text_lanes {
  const struct weft_simulation *simulation;
  struct weft_extent extent;
  uint32_t column_count;
  bool colour;
  struct weft_text_column *columns; /* [column_count] scratch */
  bool seen[WEFT_TEXT_MARKS];       /* has a cell that takes time */
  bool labelled[WEFT_TEXT_MARKS];   /* its cells are wide enough for microbatches */
};

/* Sets `seen` and `labelled` from all ranks. */
void weft_text_lanes_measure(struct weft_text_lanes *lanes);

/* Appends the columns of a rank. */
void weft_text_lane_add(struct weft_text_lanes *lanes, uint32_t rank, struct weft_text *text);

#endif
