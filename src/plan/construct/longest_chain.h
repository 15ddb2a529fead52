/* The longest chain of stages in a graph as a problem of its own, with the closer bounds in little
 * memory and the constructors that chains have. Internal to the module. */
#ifndef PLAN_LONGEST_CHAIN_H
#define PLAN_LONGEST_CHAIN_H

#include "plan/improve/improve.h"

struct weft_longest_chain {
  bool exists;      /* on a loop or a V */
  bool has_all;     /* stages, so that its orders are the graph's */
  uint32_t *stages; /* of the graph, in the chain's order */
  struct weft_problem problem;
  struct weft_incumbent incumbent; /* its bound holds for the graph */
};

/* Not of a problem that has what chains have itself, nor for spans, for which the chain's bounds do not
 * hold. That there is none is no error. WEFT_ERR_MEMORY; weft_longest_chain_finish() in any case. */
enum weft_status weft_longest_chain_init(struct weft_longest_chain *chain,
                                         const struct weft_problem *problem,
                                         struct weft_error *error);
void weft_longest_chain_finish(struct weft_longest_chain *chain);

/* Raises the bound, which is at most `value`, that of a known order of the graph; and improves the
 * order of a chain that has all stages. WEFT_ERR_MEMORY. */
enum weft_status weft_longest_chain_improve(struct weft_longest_chain *chain, int64_t value,
                                            const struct weft_worker_task *task,
                                            struct weft_search_control *control,
                                            struct weft_error *error);

/* The best order of a chain that has all stages, as one of the graph; false: there is none. It may
 * exceed the chain's times: the messages of other edges take time, too. */
bool weft_longest_chain_order(const struct weft_longest_chain *chain,
                              const struct weft_problem *problem, struct weft_order *order);

#endif
