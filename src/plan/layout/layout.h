/* Layouts: what a request leaves open besides the order: the stages per rank, their placement, and
 * the partition of the model into stages. Internal to the module. */
#ifndef PLAN_LAYOUT_H
#define PLAN_LAYOUT_H

#include <weft/search.h>

#include "plan/problem/problem.h"

struct weft_plan_layout {
  struct weft_shape
      shape; /* of a graph with the most stages that an even placement has on a rank */
  uint32_t stage_count;
  uint32_t *rank_of; /* [stages] of a graph; NULL: as the shape says */
  const char *name;  /* of a graph's placement; NULL without one */
  bool whole_backward;
  struct weft_costs *costs; /* one entry per stage, as its rank executes it; owned */
  uint32_t *stage_parts;    /* [stages] number of parts of each; owned; NULL without parts */
};

/* Up to five placements of a chain or nine of a graph, a hundred partitions, and backwards that are
 * all whole or all split. */
enum { WEFT_PLAN_LAYOUTS_MAX = 1000 };

struct weft_stage_source;

struct weft_plan_layouts {
  const struct weft_allocator *allocator;
  const struct weft_stage_source *source;
  struct weft_arena arena;             /* of placements */
  struct weft_search_control *control; /* of the search; NULL: none */
  double effort;                       /* for partitions */
  uint32_t count;
  struct weft_plan_layout *list; /* [count] of WEFT_PLAN_LAYOUTS_MAX */
  bool has_others;               /* other placements are possible */
  double rest;  /* lower bound of the objective for all others; INFINITY: there are none that fit */
  double least; /* of all; 0: not known */
};

/* Stages per rank that are tried where they are not given. */
enum { WEFT_USUAL_STAGES = 3, WEFT_PLAN_SHAPES_MAX = 2 * WEFT_USUAL_STAGES };
extern const uint32_t weft_usual_stages_per_rank[WEFT_USUAL_STAGES];

/* Where the stages of a request come from: a graph gives them, and each can be on any rank; or parts of
 * a model are cut into as many for each rank, on a loop or a V. */
struct weft_stage_source {
  const char *pieces; /* that ranks share, */
  const char *rule;   /* as a clause after "every" */
  bool
      divides_model; /* anew for each number of ranks: a choice has costs of all of it, and keeps no
                         partition */
  uint32_t (*count_pieces)(const struct weft_search_request *request); /* 0: not known */
  /* The shapes that a request leaves open if it has v stages per rank, 0: the usual ones; returns how
   * many there are. None have more stages than there are parts. A graph has one, whose placement the
   * search finds, unless there are more ranks than stages, or other numbers of stages on them than its
   * placement allows. */
  uint32_t (*list_shapes)(const struct weft_search_request *request, uint32_t v,
                          struct weft_shape list[WEFT_PLAN_SHAPES_MAX]);
  /* Adds all layouts that are not listed, and sets what is known of others. */
  enum weft_status (*list_layouts)(struct weft_plan_layouts *layouts,
                                   const struct weft_search_request *request,
                                   struct weft_error *error);
  /* As weft_plan_open_bound(), of a resolved request. */
  enum weft_status (*bound)(const struct weft_allocator *allocator,
                            const struct weft_search_request *request, double *bound,
                            struct weft_error *error);
};
const struct weft_stage_source *weft_stage_source_of(const struct weft_search_request *request);

static inline uint32_t weft_plan_layout_rank_of(const struct weft_plan_layout *layout,
                                                uint32_t stage) {
  return layout->rank_of != NULL ? layout->rank_of[stage]
                                 : weft_shape_rank_of(&layout->shape, stage);
}

/* The request with the costs of its stages, if their number is known; the view has to last as long. */
struct weft_search_request weft_plan_resolve(const struct weft_search_request *request,
                                             struct weft_costs_view *view);

/* All layouts that a resolved request leaves open, at least one; partitions as they are found with this
 * effort, in seconds; of a graph those placements that are worth a try.
 * WEFT_ERR_USAGE when the costs do not fit the shape; WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. A cancelled search has fewer partitions. */
enum weft_status weft_plan_layouts_init(struct weft_plan_layouts *layouts,
                                        const struct weft_allocator *allocator,
                                        const struct weft_search_request *request, double effort,
                                        struct weft_search_control *control,
                                        struct weft_error *error);
/* Adds the partitions that are found with another effort, as long as there is room for them. */
enum weft_status weft_plan_layouts_extend(struct weft_plan_layouts *layouts,
                                          const struct weft_search_request *request, double effort,
                                          struct weft_error *error);
/* Adds the placements of a graph that the request leaves open and that are worth a try
 * (placements.c), */
enum weft_status weft_plan_placements(struct weft_plan_layouts *layouts,
                                      const struct weft_search_request *request,
                                      struct weft_error *error);
/* or this one; not those that are there already. WEFT_ERR_USAGE, WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
enum weft_status weft_plan_layouts_add_placement(struct weft_plan_layouts *layouts,
                                                 const struct weft_search_request *request,
                                                 const uint32_t *rank_of, const char *name,
                                                 enum weft_placement_kind kind,
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

/* Costs of the stages on their ranks, without parts. The layout's own do not matter. */
enum weft_status weft_plan_layout_costs(const struct weft_allocator *allocator,
                                        const struct weft_search_request *request,
                                        const struct weft_plan_layout *layout,
                                        struct weft_costs **out, struct weft_error *error);

/* The problem of a layout. WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
enum weft_status weft_plan_layout_problem(struct weft_problem *problem,
                                          const struct weft_allocator *allocator,
                                          const struct weft_search_request *request,
                                          const struct weft_plan_layout *layout,
                                          struct weft_error *error);

/* From the placement of a layout, by moves and swaps of stages, to one with a smaller bound, for a
 * fixed amount of work; bounds are close unless memory is short, and take less time than orders. The
 * layout has `bound`, and nothing is below `open`. Fills rank_of[stages] (placement_search.c).
 * WEFT_ERR_MEMORY. */
enum weft_status weft_plan_placement_search(const struct weft_plan_layout *layout,
                                            const struct weft_problem *problem,
                                            const struct weft_search_request *request, double bound,
                                            double open, uint32_t *rank_of,
                                            struct weft_error *error);

/* No layout that a request leaves open has a smaller objective; of a chain one that gives the stages
 * per rank and the placement. INFINITY: none fits into the memory. WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
enum weft_status weft_plan_open_bound(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request, double *bound,
                                      struct weft_error *error);
/* Of all placements of a graph (open_bound.c). */
enum weft_status weft_plan_placement_bound(const struct weft_allocator *allocator,
                                           const struct weft_search_request *request, double *bound,
                                           struct weft_error *error);

/* As struct weft_memory_need, and why. */
struct weft_plan_need {
  double least, enough;
  bool of_tried;
  bool is_of_rank;   /* on the layout that needs least, this rank has most, */
  uint32_t rank;     /* and both numbers are the sum of */
  double kept, held; /* its parameters and gradients, and its activations */
};

/* weft_search_least_memory() under a control, which may be cancelled, or NULL. */
enum weft_status weft_plan_least_memory(const struct weft_allocator *allocator,
                                        const struct weft_search_request *request,
                                        struct weft_search_control *control,
                                        struct weft_plan_need *need, struct weft_error *error);

#endif
