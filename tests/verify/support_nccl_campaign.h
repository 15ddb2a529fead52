/* The NCCL channel models of the verifier and of the simulator against every interleaving of random
 * small programs. Shared by the test of every run and by the long one. */
#ifndef TESTS_SUPPORT_NCCL_CAMPAIGN_H
#define TESTS_SUPPORT_NCCL_CAMPAIGN_H

#include "support_oracle.h"

struct nccl_counts {
  uint64_t complete, stuck, cycles, states, unexplored;
  uint32_t directed_pair, pair_world, slots, blocking; /* programs whose verdict depends on it */
};

/* One program under one model (oracle_nccl_model()); whether it completes. Fails the test at a
 * disagreement. */
bool nccl_check_model(const struct weft_program *program, const struct oracle *oracle,
                      uint32_t number, struct nccl_counts *counts);

/* Random programs under every model, whose stages form a random graph or a chain. */
void nccl_campaign(uint64_t seed, uint32_t programs, bool graph, struct nccl_counts *counts);

#endif
