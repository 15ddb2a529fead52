/* Layouts: what a request leaves open besides the order: the stages per rank, their placement, and
 * the partition of the model into stages. Internal to the module. */
#ifndef PLAN_LAYOUT_H
#define PLAN_LAYOUT_H

#include <weft/search.h>

#include "plan/problem/problem.h"

struct weft_plan_layout {
  struct weft_shape shape;
  bool whole_backward;
  struct weft_costs *costs; /* one entry per stage; owned */
  uint32_t *stage_parts;    /* [stages] number of parts of each; owned; NULL without parts */
  double all_reduce;        /* part of the objective, in the unit of the costs */
};

/* Up to five placements, a hundred partitions, and backwards that are all whole or all split. */
enum { WEFT_PLAN_LAYOUTS_MAX = 1000 };

struct weft_plan_layouts {
  const struct weft_allocator *allocator;
  struct weft_search_control *control; /* of the search; NULL: none */
  double effort;                       /* for partitions */
  uint32_t count;
  struct weft_plan_layout *list; /* [count] of WEFT_PLAN_LAYOUTS_MAX */
  double rest; /* lower bound of the objective for all others; INFINITY: there are none that fit */
};

/* All layouts that a request leaves open, at least one; partitions as they are found with this
 * effort, in seconds. WEFT_ERR_USAGE when the costs do not fit the shape; WEFT_ERR_LIMIT,
 * WEFT_ERR_MEMORY. A cancelled search has fewer partitions. */
enum weft_status weft_plan_layouts_init(struct weft_plan_layouts *layouts,
                                        const struct weft_allocator *allocator,
                                        const struct weft_search_request *request, double effort,
                                        struct weft_search_control *control,
                                        struct weft_error *error);
/* Adds the partitions that are found with another effort, as long as there is room for them. */
enum weft_status weft_plan_layouts_extend(struct weft_plan_layouts *layouts,
                                          const struct weft_search_request *request, double effort,
                                          struct weft_error *error);
/* Whether more effort finds no other partitions. */
bool weft_plan_layouts_are_complete(const struct weft_plan_layouts *layouts,
                                    const struct weft_search_request *request);
/* The share of the effort that goes into partitions. */
double weft_plan_layouts_share(const struct weft_plan_layouts *layouts,
                               const struct weft_search_request *request);
/* WEFT_ERR_USAGE when a factor of a rank is out of range. */
enum weft_status weft_plan_check_factors(const struct weft_search_request *request,
                                         struct weft_error *error);
void weft_plan_layouts_finish(struct weft_plan_layouts *layouts);

/* The problem of a layout. WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
enum weft_status weft_plan_layout_problem(struct weft_problem *problem,
                                          const struct weft_allocator *allocator,
                                          const struct weft_search_request *request,
                                          const struct weft_plan_layout *layout,
                                          struct weft_error *error);

#endif
