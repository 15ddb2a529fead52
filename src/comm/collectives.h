/* Groups of ranks in one process: members find each other by the group's id in their world, and
 * read each other's memory. Thread-safe between members; used by threads and loopback. */
#ifndef COMM_COLLECTIVES_H
#define COMM_COLLECTIVES_H

#include "comm/world.h"

/* As ops->group. `wake` is called with ranks for which something has happened: their wait() must
 * return. Any thread. */
enum weft_status weft_world_group(struct weft_world *world, uint32_t rank, uint32_t id,
                                  const uint32_t *ranks, uint32_t count,
                                  void (*wake)(void *context, uint32_t rank), void *context,
                                  struct weft_group **out, struct weft_error *error);

#endif
