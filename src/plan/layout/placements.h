/* Placements for the stages of a graph: which rank has which stage. Internal to the module. */
#ifndef PLAN_PLACEMENTS_H
#define PLAN_PLACEMENTS_H

#include <weft/search.h>
#include <weft/support.h>

struct weft_plan_placement {
  uint32_t *rank_of; /* [stage] */
  const char *name;  /* for the report */
  enum weft_placement_kind kind;
};

enum { WEFT_PLAN_PLACEMENTS_MAX = 9 };

/* Those that the request leaves open and that are worth an attempt, at least one and all different.
 * They live in the arena, where each of the list has a rank_of; the last one is never used.
 * WEFT_ERR_USAGE, WEFT_ERR_MEMORY. */
enum weft_status weft_plan_placements(const struct weft_search_request *request,
                                      struct weft_arena *arena, struct weft_plan_placement list[],
                                      uint32_t *count, struct weft_error *error);

#endif
