/* Partitions: which parts of the model make up each stage. Internal to the module. */
#ifndef PLAN_PARTITION_H
#define PLAN_PARTITION_H

#include <weft/search.h>

#include "plan/problem/problem.h"

/* Goals of a partition. All minimise the work of the heaviest rank, heuristically. */
enum weft_partition_kind {
  WEFT_PARTITION_EVEN,        /* ... with the others as equal as possible */
  WEFT_PARTITION_LIGHT_LAST,  /* ... with light last stages */
  WEFT_PARTITION_LIGHT_FIRST, /* ... with light first stages */
  WEFT_PARTITION_FULL,        /* memory first: for as many microbatches as 1F1B has in flight, */
  WEFT_PARTITION_HALF,        /* for half as many, */
  WEFT_PARTITION_SINGLE,      /* or for one */
  WEFT_PARTITION_KINDS
};

/* Fills first[stages + 1]: stage s has parts first[s] ... first[s + 1] - 1, at least one. The
 * request has the costs, with parts, and the memory limit. A cancelled search (NULL: none) ends
 * with what it has. WEFT_ERR_USAGE for more stages than parts, WEFT_ERR_MEMORY. */
enum weft_status weft_partition_make(const struct weft_allocator *allocator,
                                     const struct weft_search_request *request,
                                     const struct weft_shape *shape, enum weft_partition_kind kind,
                                     struct weft_search_control *control, uint32_t *first,
                                     struct weft_error *error);

enum { WEFT_PARTITION_LIST_MAX = 24 };

/* Scores from here on: the partition does not fit into the memory. */
#define WEFT_PARTITION_TOO_LARGE 1e30

/* Partitions with small lower bounds. */
struct weft_partition_list {
  uint32_t count, most;
  uint32_t *first[WEFT_PARTITION_LIST_MAX]; /* [stage_count + 1] */
  double score[WEFT_PARTITION_LIST_MAX];    /* the bound */
  double rest; /* lower bound of all partitions that are not in the list; INFINITY: none fits */
};

/* Rates so many partitions, all of them if there are few, else from `start` on, and adds the
 * best few to the list (partition_search.c), or fewer when the search is cancelled. Errors as for
 * weft_partition_make(). */
enum weft_status weft_partition_search(const struct weft_allocator *allocator,
                                       const struct weft_search_request *request,
                                       const struct weft_shape *shape, uint32_t tries,
                                       struct weft_search_control *control, const uint32_t *start,
                                       struct weft_partition_list *list, struct weft_error *error);

/* A lower bound of the objective, in the unit of the costs, for all partitions of a shape
 * (partition_bound.c); INFINITY when none fits into the memory. WEFT_ERR_MEMORY. */
enum weft_status weft_partition_bound(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request,
                                      const struct weft_shape *shape, double *bound,
                                      struct weft_error *error);

/* Time of the all-reduce of gradients of this size among the replicas of the request, and of those
 * of the rank with the most, given the costs of the stages. */
double weft_all_reduce_time(const struct weft_search_request *request, double size);
/* Size of a stage's gradients that replicas sum up. */
double weft_gradients_to_reduce(const struct weft_costs *costs, uint32_t stage);
double weft_all_reduce_of(const struct weft_search_request *request,
                          const struct weft_problem *problem, const struct weft_costs *costs);

/* Costs of the stages of a partition on their ranks, one entry each. Times and known sizes are sums over the
 * parts; what the parts do not specify comes from the entries of the request's costs, divided in
 * proportion to the time of F. */
enum weft_status weft_partition_costs(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request,
                                      const struct weft_shape *shape, const uint32_t *first,
                                      struct weft_costs **out, struct weft_error *error);

#endif
