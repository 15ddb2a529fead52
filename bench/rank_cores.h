/* A core for each rank of a measurement: which, and keeping a thread there. Where ranks are
 * on two threads of one core, or on another core every time, two measurements of the same
 * thing differ by a third. */
#ifndef CLI_RANK_CORES_H
#define CLI_RANK_CORES_H

#include <weft/base.h>

enum { WEFT_CLI_CORES_MAX = 16, WEFT_CLI_CORES_TEXT = 12 * WEFT_CLI_CORES_MAX };

struct weft_cli_cores {
  uint32_t count;                          /* of ranks; 0: they are not bound */
  uint32_t processors[WEFT_CLI_CORES_MAX]; /* of each, as the system numbers them */
};

/* For up to WEFT_CLI_CORES_MAX ranks, of the processors that the calling thread may use:
 * cores of one package and memory node where it has enough of them, else any cores, else
 * processors that share one. None where there are fewer processors than ranks, or where
 * the system does not tell. */
struct weft_cli_cores weft_cli_cores_choose(uint32_t rank_count);
/* The same of a list of processors, ascending, with `folder` for /sys/devices/system/cpu. */
struct weft_cli_cores weft_cli_cores_of(const char *folder, const uint32_t *processors,
                                        size_t processor_count, uint32_t rank_count);

/* "2,3", or "" for none; and back. False: that is no such list. */
void weft_cli_cores_write(const struct weft_cli_cores *cores, char text[WEFT_CLI_CORES_TEXT]);
bool weft_cli_cores_read(const char *text, struct weft_cli_cores *cores);

/* Keeps the calling thread, and threads that it starts from then on, on the rank's
 * processor. True where it is there, or where ranks are not bound. */
bool weft_cli_cores_bind(const struct weft_cli_cores *cores, uint32_t rank);

/* Where the calling thread may be, to be undone; nothing is said when the system refuses. */
struct weft_cli_affinity {
  bool is_known;
  unsigned char set[128];
};
void weft_cli_affinity_keep(struct weft_cli_affinity *affinity);
void weft_cli_affinity_restore(const struct weft_cli_affinity *affinity);

#endif
