/* A chain as a problem whose stages form a graph, and orders of one as orders of the other. Internal
 * to the module. */
#ifndef PLAN_CHAIN_ORDERS_H
#define PLAN_CHAIN_ORDERS_H

#include "plan/improve/improve.h"

/* The same problem; it borrows arrays of the chain. WEFT_ERR_MEMORY. */
enum weft_status weft_problem_init_of_chain(struct weft_problem *problem,
                                            const struct weft_chain *chain,
                                            struct weft_error *error);

/* An order of a chain as one of a graph with the same ops; `stages` are those of the graph in the
 * chain's order, NULL: the same. */
void weft_chain_order_write(const struct weft_chain *chain, const struct weft_chain_order *from,
                            const uint32_t *stages, const struct weft_problem *problem,
                            struct weft_order *to);

/* Offers the best order of a chain to an incumbent of the same problem; `draft` is scratch. */
void weft_chain_take(struct weft_incumbent *incumbent, struct weft_order *draft,
                     const struct weft_chain_incumbent *chain);

/* Offers the best order to the chain, and adds what was counted; draft orders of the chain change. */
void weft_chain_give(struct weft_incumbent *incumbent, struct weft_chain_incumbent *chain);

#endif
