/* Weft search: finds a schedule for given costs and memory, with a lower bound that says how good
 * it is.
 *
 *     struct weft_search_request request = weft_search_request_default();
 *     request.ranks = 8, request.microbatches = 24, request.costs = costs;
 *     request.memory_limit = 12;
 *     struct weft_search_answer *answer;
 *     if (weft_search(NULL, &request, &answer, &error) == WEFT_OK) {
 *       printf("%g, bound %g\n", answer->makespan, answer->bound);
 *       weft_program_print(answer->table, &text);
 *       weft_search_answer_destroy(answer);
 *     }
 *
 * Every answer is checked before it is returned: weft_search() lowers the table, proves that the
 * program cannot hang under rendezvous (weft/verify.h), and simulates it (weft/sim.h) to exactly
 * the times that the answer states. docs/planner.md describes the search. */
#ifndef WEFT_SEARCH_H
#define WEFT_SEARCH_H

#include <weft/costs.h>
#include <weft/sim.h>
#include <weft/spec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the search minimises. */
enum weft_objective {
  WEFT_OBJECTIVE_MAKESPAN, /* from the first start on any rank to the last end on any rank */
  WEFT_OBJECTIVE_SPAN      /* the largest over ranks of last end - first start: the time per step
                              when steps follow each other without a barrier */
};

/* "makespan", "span". */
WEFT_API const char *weft_objective_name(enum weft_objective objective);

/* State of a running search, for a progress line. */
struct weft_search_progress {
  double value;       /* objective of the best order so far; INFINITY: none yet */
  double bound;       /* lower bound of its layout */
  double done;        /* share of the work, 0 to 1 */
  uint64_t evaluated; /* orders */
};

/* What to search for. Start from weft_search_request_default(), and set ranks, microbatches and
 * costs. */
struct weft_search_request {
  uint32_t ranks;
  uint32_t microbatches; /* of each replica */
  /* Of the pipeline. More than one sum up their gradients after the last backward, which takes the
   * time of the costs' all_reduce for the rank with the most: it is part of the objective. 0: 1. */
  uint32_t replicas;
  uint32_t stages_per_rank; /* v; 0: the search chooses */
  /* Of stages that form a graph (weft/graph.h); NULL: a chain. The costs then have one entry per
   * stage of the graph, or one for all; stages_per_rank does not matter. Borrowed. */
  const struct weft_graph *graph;
  const uint32_t *rank_of; /* [stages of the graph] their ranks; NULL: as the placement says */
  bool any_placement;      /* true: the search chooses; false: `placement` */
  enum weft_placement_kind placement; /* LOOP or V; the same for v = 1 */

  /* Borrowed for the call.
   * One entry: of a rank's share of the model, or of a stage, as costs->of says.
   * One entry per stage: v follows from their number.
   * With parts: the search partitions the parts into stages, and the entries only supply what the
   * parts do not specify. */
  const struct weft_costs *costs;
  /* [ranks] the actions of a rank take so many times as long as the costs say: more than 0, at most
   * 1e6; NULL: all 1. Partitions take them into account, and so do the placements of a graph; the
   * answer's costs include them. Of a chain, which rank has which stage does not depend on them.
   * Borrowed. */
  const double *rank_factors;
  bool keep_partition; /* the entries are the stages; ignore the parts */
  bool whole_backward; /* do not split backwards: B instead of I and W */
  /* All backwards are whole, or all are split, so that each stage sums its weight gradients in the
   * order of the microbatches. The bound then holds for the kind of the answer. */
  bool uniform_backward;
  double memory_limit; /* per rank, in the unit of the costs' sizes; INFINITY: none */
  enum weft_objective objective;

  /* The same effort, seed and threads give the same answer, unless the search is cancelled. */
  double effort;     /* work, in seconds of a typical core per thread */
  double time_limit; /* in seconds; the search then ends with the best order so far; 0: none */
  bool use_time;     /* go on after the effort until the time limit, unless the order is optimal */
  uint64_t seed;
  uint32_t threads; /* 0: as many as the process has cores */

  /* Called periodically from the thread that called weft_search(); both may be NULL. When
   * `stop` returns true, the search ends with the best order so far. */
  bool (*stop)(void *context);
  void (*report)(void *context, const struct weft_search_progress *progress);
  void *context;
};

/* Effort of a search for which only the time limit is given, as a share of it: the search normally ends
 * before the limit, and with use_time it uses the rest. */
#define WEFT_EFFORT_OF_LIMIT 0.5

/* Any placement and number of stages, no limits, makespan, an effort of half a second. */
WEFT_API struct weft_search_request weft_search_request_default(void);

struct weft_search_answer {
  struct weft_program *table; /* compute only: F I W, or F B */
  const char *schedule;       /* name of the schedule that has this table, or "searched" */
  enum weft_objective objective;
  enum weft_placement_kind placement;
  uint32_t stages_per_rank;
  struct weft_costs *costs;   /* one entry per stage of the table, as its rank executes it */
  uint32_t *stage_parts;      /* [stage_count] number of parts of each stage; NULL without parts */
  uint32_t *stage_ranks;      /* [stage_count] of a graph; NULL without one */
  const char *placement_name; /* of a graph: how its stages were placed; NULL without one */
  double makespan;
  double span;
  double all_reduce;  /* time that replicas need after it; part of the objective */
  double peak_memory; /* of the rank with the most */
  double bound;       /* no schedule with this placement and partition has a smaller objective */
  double open_bound;  /* no schedule that the request allows has: at most `bound` */
  bool optimal;       /* the objective equals the bound */
  bool stopped;       /* by `stop` or the time limit: more work might find a better one */
  uint64_t evaluated; /* orders, of this layout */
  uint64_t moves;     /* tried by local search */
  double move_ns;     /* mean processor time of a move */
  double check_ns;    /* time of the check */
  /* Time of one order and of this answer with its check: no time limit makes a search shorter. */
  double least_seconds;
  struct weft_simulation *simulation; /* of the table, without events */
  const struct weft_allocator *allocator;
};

/* Searches, checks, and returns an answer that the caller destroys. `allocator` may be NULL: the
 * default.
 * WEFT_ERR_USAGE: the request is not a pipeline, or does not match its costs.
 * WEFT_ERR_INVALID: no schedule fits into the memory; the message has the smallest limit.
 * WEFT_ERR_INTERNAL: the answer did not pass its check, which is a bug in Weft.
 * WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
WEFT_API enum weft_status weft_search(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request,
                                      struct weft_search_answer **out, struct weft_error *error);
/* NULL is fine. */
WEFT_API void weft_search_answer_destroy(struct weft_search_answer *answer);

/* Memory per rank, in the unit of the costs' sizes. The two are equal, unless a graph is too large
 * to be decided, or the time limit or `stop` ended the search. */
struct weft_memory_need {
  double least;  /* no schedule fits into less */
  double enough; /* some schedule needs no more */
  bool of_tried; /* on the placements that weft_search() tries, which are not all */
};

/* The smallest memory limit for which the request has a schedule, over all placements and
 * partitions that it leaves open; its own limit is ignored. Of a graph: over the placements that
 * weft_search() tries. WEFT_ERR_USAGE, WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
WEFT_API enum weft_status weft_search_least_memory(const struct weft_allocator *allocator,
                                                   const struct weft_search_request *request,
                                                   struct weft_memory_need *need,
                                                   struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
