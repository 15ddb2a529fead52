/* Weft choice: how to use a number of ranks for a global batch. Chooses the ranks of a pipeline and
 * its replicas, the stages per rank and their placement, the microbatches, the partition of the
 * layers, and the schedule.
 *
 *     struct weft_choice_request request = {.search = weft_search_request_default()};
 *     request.search.ranks = 16, request.search.costs = costs, request.search.memory_limit = 40;
 *     request.global_batch = 64;
 *     struct weft_choice *choice;
 *     if (weft_choose(NULL, &request, &choice, &error) == WEFT_OK) {
 *       const struct weft_choice_candidate *best = &choice->candidates[0];
 *       printf("%u x %u: %g\n", best->ranks, best->replicas, best->value);
 *       weft_choice_destroy(choice);
 *     }
 *
 * docs/planner.md describes the model. */
#ifndef WEFT_CHOICE_H
#define WEFT_CHOICE_H

#include <weft/search.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Effort of a usual choice, or of another series of searches. */
#define WEFT_CHOICE_EFFORT 2

struct weft_choice_request {
  /* `ranks` are those of all replicas together, and so are `rank_factors`: rank d * p + r is rank r
   * of replica d. `costs` have parts, and one entry in `stages` is of the whole model; with a graph it
   * is of a stage, and every candidate's stages are placed by it. costs->of does not matter: the model
   * is the same for any number of ranks.
   * `microbatches`, `replicas` and `keep_partition` are not used. `effort` and `time_limit` are for
   * all candidates together. */
  struct weft_search_request search;
  uint64_t global_batch; /* samples of a step; a microbatch has costs->microbatch_size of them */
};

/* A pipeline and its replicas. */
struct weft_choice_candidate {
  uint32_t ranks; /* of the pipeline */
  uint32_t replicas;
  uint32_t microbatches; /* of each replica */
  uint32_t stages_per_rank;
  enum weft_placement_kind placement;
  double bound;                      /* no plan of this candidate has a smaller objective; INFINITY:
                                        none fits into the memory */
  double value;                      /* the objective of the answer; INFINITY: there is none */
  struct weft_search_answer *answer; /* the best plan; NULL: the bound exceeds another candidate's
                                        value, no plan was found within the memory, or time was up */
};

struct weft_choice {
  struct weft_choice_candidate *candidates; /* by value, then by bound */
  uint32_t count;
  double bound;       /* no plan of any candidate has a smaller objective */
  bool optimal;       /* the first candidate's value equals it, up to rounding */
  bool stopped;       /* by `stop` or the time limit: more work might find a better one */
  uint64_t evaluated; /* orders */
  const struct weft_allocator *allocator;
};

/* The caller destroys the choice, which has at least one answer. Statuses are those of
 * weft_search(); WEFT_ERR_USAGE too when the batch cannot be divided. */
WEFT_API enum weft_status weft_choose(const struct weft_allocator *allocator,
                                      const struct weft_choice_request *request,
                                      struct weft_choice **out, struct weft_error *error);
/* NULL is fine. */
WEFT_API void weft_choice_destroy(struct weft_choice *choice);

#ifdef __cplusplus
}
#endif
#endif
