/* Cores for ranks, from what the system tells in files: /sys/devices/system/cpu/cpuN has
 * `topology/thread_siblings_list` ("0,16": both are in one core), `topology/
 * physical_package_id`, and an entry `nodeK` for the memory that is near. What is not told
 * is taken to be the same for all, but for a core, which each processor then has alone. */
#define _GNU_SOURCE /* sched_setaffinity() */
#include "bench/rank_cores.h"

#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESSORS_MAX = 1024 };

/* ---- What the system tells ---- */

struct place {
  uint32_t processor;
  uint32_t core; /* the lowest processor in it */
  uint32_t package, node;
};

/* The first number of a file; `fallback` where there is none. */
static uint32_t read_number(const char *folder, uint32_t processor, const char *name,
                            uint32_t fallback) {
  char path[PATH_MAX];
  unsigned number;
  const int length = snprintf(path, sizeof path, "%s/cpu%u/%s", folder, (unsigned)processor, name);
  FILE *file = length > 0 && (size_t)length < sizeof path ? fopen(path, "r") : NULL;
  if (file == NULL) {
    return fallback;
  }
  const bool is_found = fscanf(file, "%u", &number) == 1;
  (void)fclose(file);
  return is_found ? number : fallback;
}

static uint32_t find_node(const char *folder, uint32_t processor) {
  char path[PATH_MAX];
  uint32_t node = 0;
  const int length = snprintf(path, sizeof path, "%s/cpu%u", folder, (unsigned)processor);
  DIR *entries = length > 0 && (size_t)length < sizeof path ? opendir(path) : NULL;
  if (entries == NULL) {
    return 0;
  }
  for (const struct dirent *at = readdir(entries); at != NULL; at = readdir(entries)) {
    char *end;
    if (strncmp(at->d_name, "node", 4) == 0) {
      const unsigned long number = strtoul(at->d_name + 4, &end, 10);
      node = end != at->d_name + 4 && *end == '\0' ? (uint32_t)number : node;
    }
  }
  (void)closedir(entries);
  return node;
}

static struct place find_place(const char *folder, uint32_t processor) {
  return (struct place){
      .processor = processor,
      .core = read_number(folder, processor, "topology/thread_siblings_list", processor),
      .package = read_number(folder, processor, "topology/physical_package_id", 0),
      .node = find_node(folder, processor)};
}

/* ---- Choosing ---- */

static bool has_core(const struct place *places, uint32_t count, uint32_t core) {
  for (uint32_t k = 0; k < count; k++) {
    if (places[k].core == core) {
      return true;
    }
  }
  return false;
}

/* Of the places near to `near`, or of all where that is NULL, one per core, or all where
 * cores may be shared. */
static bool take(const struct place *places, size_t place_count, const struct place *near,
                 bool shares_cores, uint32_t rank_count, struct weft_cli_cores *cores) {
  struct place taken[WEFT_CLI_CORES_MAX];
  uint32_t count = 0;
  for (size_t k = 0; k < place_count && count < rank_count; k++) {
    const bool is_near =
        near == NULL || (places[k].package == near->package && places[k].node == near->node);
    if (is_near && (shares_cores || !has_core(taken, count, places[k].core))) {
      taken[count++] = places[k];
    }
  }
  if (count < rank_count) {
    return false;
  }
  cores->count = count;
  for (uint32_t r = 0; r < count; r++) {
    cores->processors[r] = taken[r].processor;
  }
  return true;
}

struct weft_cli_cores weft_cli_cores_of(const char *folder, const uint32_t *processors,
                                        size_t processor_count, uint32_t rank_count) {
  struct weft_cli_cores cores = {.count = 0};
  struct place places[PROCESSORS_MAX];
  const size_t count = processor_count < PROCESSORS_MAX ? processor_count : PROCESSORS_MAX;
  bool is_found = rank_count == 0 || rank_count > WEFT_CLI_CORES_MAX || rank_count > count;
  for (size_t k = 0; k < count && !is_found; k++) {
    places[k] = find_place(folder, processors[k]);
  }
  for (size_t k = 0; k < count && !is_found; k++) {
    is_found = take(places, count, &places[k], false, rank_count, &cores);
  }
  (void)(is_found || take(places, count, NULL, false, rank_count, &cores) ||
         take(places, count, NULL, true, rank_count, &cores));
  return cores;
}

/* ---- As text ---- */

void weft_cli_cores_write(const struct weft_cli_cores *cores, char text[WEFT_CLI_CORES_TEXT]) {
  size_t length = 0;
  text[0] = '\0';
  for (uint32_t r = 0; r < cores->count; r++) {
    length += (size_t)snprintf(text + length, WEFT_CLI_CORES_TEXT - length, r > 0 ? ",%u" : "%u",
                               (unsigned)cores->processors[r]);
  }
}

bool weft_cli_cores_read(const char *text, struct weft_cli_cores *cores) {
  struct weft_cli_cores found = {.count = 0};
  while (*text != '\0') {
    char *end;
    const unsigned long number = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || number > UINT32_MAX || found.count == WEFT_CLI_CORES_MAX ||
        (*end != '\0' && (*end != ',' || end[1] == '\0'))) {
      return false;
    }
    found.processors[found.count++] = (uint32_t)number;
    text = *end == ',' ? end + 1 : end;
  }
  *cores = found;
  return true;
}

/* ---- Binding ---- */

#ifdef __linux__

_Static_assert(sizeof(cpu_set_t) <= sizeof((struct weft_cli_affinity *)0)->set,
               "a set of processors fits");

struct weft_cli_cores weft_cli_cores_choose(uint32_t rank_count) {
  uint32_t processors[PROCESSORS_MAX];
  size_t count = 0;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return (struct weft_cli_cores){.count = 0};
  }
  for (uint32_t k = 0; k < CPU_SETSIZE && count < PROCESSORS_MAX; k++) {
    if (CPU_ISSET(k, &allowed)) {
      processors[count++] = k;
    }
  }
  return weft_cli_cores_of("/sys/devices/system/cpu", processors, count, rank_count);
}

bool weft_cli_cores_bind(const struct weft_cli_cores *cores, uint32_t rank) {
  cpu_set_t one;
  if (cores->count == 0) {
    return true;
  }
  if (rank >= cores->count || cores->processors[rank] >= CPU_SETSIZE) {
    return false;
  }
  CPU_ZERO(&one);
  CPU_SET(cores->processors[rank], &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

void weft_cli_affinity_keep(struct weft_cli_affinity *affinity) {
  cpu_set_t set;
  affinity->is_known = sched_getaffinity(0, sizeof set, &set) == 0;
  if (affinity->is_known) {
    memcpy(affinity->set, &set, sizeof set);
  }
}

void weft_cli_affinity_restore(const struct weft_cli_affinity *affinity) {
  cpu_set_t set;
  if (affinity->is_known) {
    memcpy(&set, affinity->set, sizeof set);
    (void)sched_setaffinity(0, sizeof set, &set);
  }
}

#else

struct weft_cli_cores weft_cli_cores_choose(uint32_t rank_count) {
  (void)rank_count;
  return (struct weft_cli_cores){.count = 0};
}

bool weft_cli_cores_bind(const struct weft_cli_cores *cores, uint32_t rank) {
  (void)rank;
  return cores->count == 0;
}

void weft_cli_affinity_keep(struct weft_cli_affinity *affinity) { affinity->is_known = false; }

void weft_cli_affinity_restore(const struct weft_cli_affinity *affinity) { (void)affinity; }

#endif
