/* Steps on the fake driver, each under another order of the device's work. */
#ifndef SUPPORT_CUDA_SEEDS_H
#define SUPPORT_CUDA_SEEDS_H

#include "support_cuda_job.h"

/* Runs so many steps under as many seeds, from `first` on, and requires after each: the host's
 * bits, nothing found, nothing allocated but in the first, no waiting of the host, and a graph
 * where there has to be one. Then takes the last step's calls in as many other orders as
 * `replays` says (fake_cuda_replay). How many of both; 0 where the schedule has no such shape. */
uint32_t cuda_seeds_run(const char *schedule, uint32_t ranks, bool eager, uint64_t first,
                        uint32_t count, uint32_t replays);

#endif
