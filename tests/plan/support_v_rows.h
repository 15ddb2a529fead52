/* Published bubbles of V placement with two stages per rank (arXiv 2401.10241 and
 * 2405.15362), and the problems they belong to.
 *
 * Times are microseconds of half a rank's share. A stage holds 1 unit of a microbatch from
 * F to I, and 32h / (34h + 5as) of it from I to W, which is 32/74 for all these models at
 * a sequence of 1024. A limit of p full units is 2p of these. The objective is the largest
 * span of a rank; the bubble is the share of it in which that rank would not have to work. */
#ifndef TESTS_SUPPORT_V_ROWS_H
#define TESTS_SUPPORT_V_ROWS_H

#include <weft/weft.h>

#include "plan/problem/problem.h"

struct v_row {
  uint32_t ranks, microbatches;
  double f, i, w, hop;
  double limit;     /* units of a stage */
  double published; /* bubble */
};

enum { V_ROWS = 9 };

extern const struct v_row v_rows[V_ROWS]; /* ZB-V */
extern const struct v_row v_half_row, v_min_row;

struct v_case {
  const struct v_row *row;
  struct weft_costs *costs;
  struct weft_search_request request;
  struct weft_problem problem;
};

void v_case_init(struct v_case *planned, const struct v_row *row, double limit);
void v_case_finish(struct v_case *planned);
/* Of a span in ticks; 1 for WEFT_NEVER. */
double v_case_bubble(const struct v_case *planned, int64_t span);

#endif
