/* Weft compare: every named schedule for a shape, and programs of your own, simulated and ranked,
 * with a sentence that says why the first one wins.
 *
 *     struct weft_compare_request request = weft_compare_request_default();
 *     request.ranks = 4, request.microbatches = 8, request.costs = costs;
 *     struct weft_comparison *comparison;
 *     if (weft_compare(NULL, &request, &comparison, &error) == WEFT_OK) {
 *       puts(comparison->why);
 *       weft_comparison_destroy(comparison);
 *     }
 */
#ifndef WEFT_COMPARE_H
#define WEFT_COMPARE_H

#include <weft/costs.h>
#include <weft/gen.h>
#include <weft/sim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What to compare. Start from weft_compare_request_default(), and set the costs, and the shape or
 * programs. Everything is borrowed for the call. */
struct weft_compare_request {
  /* 0: as the first program has them. Ranks of a graph without programs: as many as its stages need.
   * Stages per rank: each schedule with 1, 2, 4 and those of the programs, as far as it takes them;
   * of a graph, and of costs with an entry per stage, as many as there are stages. */
  uint32_t ranks;
  uint32_t stages_per_rank;
  uint32_t microbatches;
  /* Of the stages. NULL: that of the first program, or chains. */
  const struct weft_graph *graph;

  /* Tables or programs that weft_verify() found right. All do the same work: they train, and have the
   * same ranks, microbatches and edges between stages. */
  const struct weft_program *const *programs; /* [program_count] */
  const char *const *names;                   /* [program_count] NULL: "program 0", ... */
  uint32_t program_count;

  const struct weft_costs *costs;
  enum weft_channel_model channel;
  const double *rank_factors; /* [ranks] NULL: those of the costs, where they have them */
  double memory_limit;        /* of a rank, in the unit of the costs' sizes; INFINITY: none */
  bool keep_tables;           /* entries have the tables of named schedules */
};

/* Channels of their own for all edges, no memory limit. */
WEFT_API struct weft_compare_request weft_compare_request_default(void);

/* A schedule or program with its simulation. */
struct weft_comparison_entry {
  const char *name;
  const struct weft_schedule_info *info; /* NULL: a program of the request */
  uint32_t program;                      /* its number, where it is one */
  double stages_per_rank; /* a whole number, unless a program's ranks have different numbers */
  bool fits;              /* into the memory limit */
  double makespan;
  double span;
  double bubble_ratio;
  double peak_activation;
  double peak_memory; /* of the rank with the most */
  double busy;        /* of a rank, on average, and so are the causes */
  double idle_by_cause[WEFT_IDLE_CAUSES];
  struct weft_program *table; /* of a schedule, with keep_tables; else NULL */
};

/* A schedule that does not take the shape. */
struct weft_comparison_omission {
  const struct weft_schedule_info *info;
  uint32_t stages_per_rank;
  const char *why; /* the message of weft_generate() */
};

struct weft_comparison {
  struct weft_shape shape;  /* stages_per_rank 0: several were tried */
  struct weft_graph *graph; /* of the stages; NULL: chains */
  /* Those that fit first, then by makespan, memory and stages per rank; of equal ones a program comes
   * before a schedule. Numbers that differ by a billionth are equal. At least one. */
  struct weft_comparison_entry *entries;
  uint32_t entry_count;
  uint32_t fitting; /* how many fit */
  struct weft_comparison_omission *omissions;
  uint32_t omission_count;
  const char *why; /* the first one wins, without a full stop */
};

/* The caller destroys the comparison. `allocator` may be NULL: the default.
 * WEFT_ERR_USAGE: the programs do not do the same work, the graph or the costs do not have as many
 * stages as the shape, or no schedule has the shape.
 * WEFT_ERR_INVALID: a program cannot finish. WEFT_ERR_LIMIT, WEFT_ERR_MEMORY. */
WEFT_API enum weft_status weft_compare(const struct weft_allocator *allocator,
                                       const struct weft_compare_request *request,
                                       struct weft_comparison **out, struct weft_error *error);
/* NULL is fine. */
WEFT_API void weft_comparison_destroy(struct weft_comparison *comparison);

/* The shape that weft_compare() takes from a request: for who needs the number of ranks first, as for
 * rank_factors. Its errors are those of weft_compare(). */
WEFT_API enum weft_status weft_compare_shape(const struct weft_compare_request *request,
                                             struct weft_shape *out, struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
