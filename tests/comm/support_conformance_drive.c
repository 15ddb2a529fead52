/* Drives the ranks of a conformance test: one round of a rank, and all of them by the
 * transport's own run(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "comm/comm_registry.h"
#include "support_conformance.h"

enum weft_status conformance_violated(struct weft_error *error, const char *file, int line,
                                      const char *what) {
  return weft_fail(error, WEFT_ERR_INVALID, "", "%s:%d: does not hold: %s", file, line, what);
}

static void end_rank(struct conformance_rank *rank, enum weft_status status) {
  rank->status = status;
  if (status < 0) {
    const struct weft_failure failure = {.rank = rank->transport->rank, .error = rank->error};
    /* No effect if it is the agreed one. In parentheses: cmocka has a macro `fail`. */
    (rank->transport->ops->fail)(rank->transport, &failure);
  }
  if (rank->end != NULL) {
    rank->end(rank);
  }
}

bool conformance_step(struct conformance_rank *rank) {
  struct weft_transport *transport = rank->transport;
  enum weft_status status = transport->ops->progress(transport, &rank->error);
  if (status == WEFT_OK) {
    rank->until = WEFT_TIME_NEVER;
    status = rank->advance(rank, &rank->error);
  }
  if (status == WEFT_IN_PROGRESS) {
    const enum weft_status waited = transport->ops->wait(transport, rank->until, &rank->error);
    status = waited < 0 ? waited : status;
  }
  if (status != WEFT_IN_PROGRESS) {
    end_rank(rank, status);
  }
  return status == WEFT_IN_PROGRESS;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct conformance_rank *ranks = context;
  struct conformance_rank *rank = &ranks[transport->rank];
  while (conformance_step(rank)) {
  }
  *error = rank->error;
  return rank->status;
}

void conformance_drive_run(struct weft_comm *comm, struct conformance_rank *ranks,
                           uint32_t rank_count) {
  struct weft_transport *endpoints[64];
  struct weft_error error;
  assert_in_range(rank_count, 1, 64);
  for (uint32_t r = 0; r < rank_count; r++) {
    endpoints[r] = ranks[r].transport;
  }
  (void)weft_comm_run_endpoints(comm, endpoints, rank_main, ranks,
                                &error); /* ranks[] say the same */
}
