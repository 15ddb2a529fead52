/* Processors by the affinity of this thread and /sys/devices/system/cpu. */
#define _GNU_SOURCE /* sched_setaffinity */
#include "bench/two_cores.h"

#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(cpu_set_t) <= sizeof((struct weft_bench_affinity *)0)->set, "it fits");

/* A number of a processor's topology; -1: unknown. */
static long topology(uint32_t processor, const char *name) {
  char path[128];
  long number = -1;
  (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%" PRIu32 "/topology/%s", processor,
                 name);
  FILE *file = fopen(path, "re");
  if (file != NULL) {
    if (fscanf(file, "%ld", &number) != 1) {
      number = -1;
    }
    (void)fclose(file);
  }
  return number;
}

/* How well two processors go together: 2 on two cores of a package, 1 on any two cores. */
static int fit(uint32_t a, uint32_t b) {
  const bool same_package =
      topology(a, "physical_package_id") == topology(b, "physical_package_id");
  const bool same_core = same_package && topology(a, "core_id") == topology(b, "core_id");
  return same_core ? 0 : same_package ? 2 : 1;
}

bool weft_bench_two_cores(uint32_t processors[2]) {
  cpu_set_t allowed;
  int best = -1;
  uint32_t first = CPU_SETSIZE;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return false;
  }
  for (uint32_t k = 0; k < CPU_SETSIZE && best < 2; k++) {
    if (!CPU_ISSET(k, &allowed)) {
      continue;
    }
    if (first == CPU_SETSIZE) {
      first = k;
    } else if (fit(first, k) > best) {
      best = fit(first, k);
      processors[0] = first;
      processors[1] = k;
    }
  }
  return best >= 0;
}

void weft_bench_bind(const uint32_t *processors, size_t count, struct weft_bench_affinity *before) {
  cpu_set_t set;
  if (before != NULL) {
    before->is_known = sched_getaffinity(0, sizeof set, &set) == 0;
    memcpy(before->set, &set, sizeof set);
  }
  CPU_ZERO(&set);
  for (size_t k = 0; k < count; k++) {
    assert(processors[k] < CPU_SETSIZE);
    CPU_SET(processors[k], &set);
  }
  (void)sched_setaffinity(0, sizeof set, &set);
}

void weft_bench_unbind(const struct weft_bench_affinity *before) {
  cpu_set_t set;
  if (before->is_known) {
    memcpy(&set, before->set, sizeof set);
    (void)sched_setaffinity(0, sizeof set, &set);
  }
}
