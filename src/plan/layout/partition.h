/* Partitions: which parts of the model make a stage. Inside the module. */
#ifndef PLAN_PARTITION_H
#define PLAN_PARTITION_H

#include <weft/search.h>

/* What a partition is made for. All make the heaviest rank as light as they find. */
enum weft_partition_kind {
  WEFT_PARTITION_EVEN,        /* and the others as equal as can be */
  WEFT_PARTITION_LIGHT_LAST,  /* the last stages have what is left */
  WEFT_PARTITION_LIGHT_FIRST, /* the first ones */
  WEFT_PARTITION_FULL,        /* room for as many microbatches as 1F1B has under way, */
  WEFT_PARTITION_HALF,        /* for half as many, */
  WEFT_PARTITION_SINGLE,      /* or for one, comes before time */
  WEFT_PARTITION_KINDS
};

/* Fills first[stages + 1]: stage s has parts first[s] ... first[s + 1] - 1, at least one. The
 * request has the costs, with parts, and the memory limit. WEFT_ERR_USAGE for more stages than
 * parts, WEFT_ERR_MEMORY. */
enum weft_status weft_partition_make(const struct weft_allocator *allocator,
                                     const struct weft_search_request *request,
                                     const struct weft_shape *shape, enum weft_partition_kind kind,
                                     uint32_t *first, struct weft_error *error);

/* Costs of the stages of a partition, one entry each. Times and known sizes are sums over
 * parts; what parts do not say is shared out of what the entries of the request's costs have
 * in all, by the time of F. */
enum weft_status weft_partition_costs(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request,
                                      const struct weft_shape *shape, const uint32_t *first,
                                      struct weft_costs **out, struct weft_error *error);

#endif
