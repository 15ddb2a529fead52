/* Weft search: the best schedule that can be found for given costs and memory,
 * and a bound that says how good it is.
 *
 *     struct weft_search_request request = weft_search_request_default();
 *     request.ranks = 8, request.microbatches = 24, request.costs = costs;
 *     request.memory_limit = 12;
 *     struct weft_search_answer *answer;
 *     if (weft_search(NULL, &request, &answer, &error) == WEFT_OK) ...
 *
 * Before it returns, weft_search() lowers the answer's table, proves that the program cannot
 * hang under rendezvous (weft/verify.h), and simulates it (weft/sim.h) to exactly the times
 * that the answer states. */
#ifndef WEFT_SEARCH_H
#define WEFT_SEARCH_H

#include <weft/costs.h>
#include <weft/sim.h>
#include <weft/spec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is made small. */
enum weft_objective {
  WEFT_OBJECTIVE_MAKESPAN, /* first start on any rank to last end on any */
  WEFT_OBJECTIVE_SPAN      /* the largest over ranks of last end - first start: the time of a step
                              when steps follow each other without a barrier at the end */
};

WEFT_API const char *weft_objective_name(enum weft_objective objective);

/* Best so far, for a progress line; called from the thread that called
 * weft_search(), now and then. */
struct weft_search_progress {
  double value; /* of the objective; INFINITY before there is one */
  double bound;
  double done;        /* share of the work, 0 to 1 */
  uint64_t evaluated; /* orders */
};

struct weft_search_request {
  uint32_t ranks;
  uint32_t microbatches;
  uint32_t stages_per_rank;           /* v; 0: chosen */
  bool any_placement;                 /* the placement is chosen too; else `placement` */
  enum weft_placement_kind placement; /* LOOP or V; with v = 1 both are the same */
  /* With one entry: of a stage when stages_per_rank is given, else of a rank's whole share,
   * of which a stage is 1/v. With one entry per stage: v follows from their number. With
   * parts: the parts are cut into stages as is best, and entries only give what parts do not
   * have. Borrowed. */
  const struct weft_costs *costs;
  bool keep_partition; /* stages are as the entries are, and parts do not matter */
  bool whole_backward; /* the backward cannot be split: B, and no I and W */
  double memory_limit; /* per rank, in the unit of the costs' sizes; INFINITY: none */
  enum weft_objective objective;
  double effort;     /* how much work: about as many seconds of a usual core, per thread.
                             The answer is the same for the same effort, seed and threads */
  double time_limit; /* seconds after which the best so far is the answer; 0: none */
  uint64_t seed;
  uint32_t threads; /* 0: as many as the process has cores */
  /* Asked often, from the calling thread: true ends the search with the best so far. May be
   * NULL. */
  bool (*stop)(void *context);
  void (*report)(void *context, const struct weft_search_progress *progress); /* may be NULL */
  void *context;                                                              /* for both */
};

/* Any placement, no limit, makespan, effort of half a second. */
WEFT_API struct weft_search_request weft_search_request_default(void);

struct weft_search_answer {
  struct weft_program *table; /* compute only: F I W, or F B */
  const char *schedule;       /* the name of the schedule whose table it is, or "searched" */
  enum weft_objective objective;
  enum weft_placement_kind placement;
  uint32_t stages_per_rank;
  struct weft_costs *costs; /* one entry per stage of the table */
  uint32_t *stage_parts;    /* [stage_count] parts of each stage; NULL without parts */
  double makespan;
  double span;
  double peak_memory; /* of the rank with the most, as simulated */
  double bound;       /* no schedule on this placement and cut takes less, in the objective */
  bool optimal;       /* the bound is reached */
  bool stopped;       /* by `stop` or the time limit: more work might have found more */
  uint64_t evaluated; /* orders looked at */
  uint64_t moves;     /* of single actions that were tried */
  double move_ns;     /* processor time of one of them, in the mean */
  double check_ns;    /* time of the check: lowering, proof and simulation */
  struct weft_simulation *simulation; /* of the table, without events */
  const struct weft_allocator *allocator;
};

/* WEFT_ERR_USAGE for what cannot be a pipeline; WEFT_ERR_INVALID when no schedule fits into
 * the memory, with the smallest limit that has one; WEFT_ERR_LIMIT, WEFT_ERR_MEMORY;
 * WEFT_ERR_INTERNAL when the answer does not pass its check: a bug in Weft, and no answer. */
WEFT_API enum weft_status weft_search(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request,
                                      struct weft_search_answer **out, struct weft_error *error);
WEFT_API void weft_search_answer_destroy(struct weft_search_answer *answer);

/* The smallest memory limit for which the request has a schedule, on the best of the placements
 * and cuts that it leaves open; its own limit does not matter. WEFT_ERR_USAGE, WEFT_ERR_LIMIT,
 * WEFT_ERR_MEMORY as above. */
WEFT_API enum weft_status weft_search_least_memory(const struct weft_allocator *allocator,
                                                   const struct weft_search_request *request,
                                                   double *least, struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
