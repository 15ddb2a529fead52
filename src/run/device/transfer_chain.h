/* What it costs that a recording has a rank's transfers one after the other. */
#ifndef RUN_TRANSFER_CHAIN_H
#define RUN_TRANSFER_CHAIN_H

#include <weft/ir.h>
#include <weft/support.h>

/* Runs all rows with rendezvous sends and transfers that take no time. A transfer waits for all
 * transfers before it in its row, a SEND for what it sends, and compute for the RECVs of all its
 * inputs, as in a recorded step. *slowdown: how much longer that takes than if compute waited for
 * its inputs alone, with forwards, input and weight gradients of equal lengths; 1: no longer.
 * Infinite: it never ends. WEFT_ERR_MEMORY. */
enum weft_status weft_transfer_chain_check(const struct weft_allocator *allocator,
                                           const struct weft_program *program,
                                           const uint32_t *rank_of, double *slowdown,
                                           struct weft_error *error);

#endif
