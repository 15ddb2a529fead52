/* Two processors on different cores, for measurements with two ranks: on two hardware threads
 * of one core, or on other cores every time, results differ by a third. */
#ifndef BENCH_TWO_CORES_H
#define BENCH_TWO_CORES_H

#include <weft/base.h>

/* Of the processors that the calling thread may use: the first, and the next one on another core
 * of the same package, else any other. False: there is only one, or the system does not say. */
bool weft_bench_two_cores(uint32_t processors[2]);

/* Which processors a thread may use. */
struct weft_bench_affinity {
  unsigned char set[128];
  bool is_known;
};

/* Restricts the calling thread, and what it starts from then on, to these processors; `before`
 * (or NULL) is what to restore. Without effect where the system refuses. */
void weft_bench_bind(const uint32_t *processors, size_t count, struct weft_bench_affinity *before);
void weft_bench_unbind(const struct weft_bench_affinity *before);

#endif
