/* Drives the ranks of a conformance test in one thread, in the order of the
 * loopback's virtual time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support_conformance.h"

int64_t conformance_now(struct weft_comm *comm) {
  struct weft_transport *transport = weft_comm_local(comm);
  return transport->ops->now(transport);
}

void conformance_drive_steps(struct weft_comm *comm, struct conformance_rank *ranks,
                             uint32_t rank_count) {
  bool ended[64] = {false};
  assert_in_range(rank_count, 1, 64);
  for (uint32_t running = rank_count; running > 0;) {
    uint32_t rank = UINT32_MAX;
    struct weft_error error;
    if (weft_comm_next(comm, &rank, &error) != WEFT_OK) {
      fail_msg("%u of %u ranks have not ended: %s", running, rank_count, error.message);
    }
    assert_in_range(rank, 0, rank_count - 1);
    if (!ended[rank] && !conformance_step(&ranks[rank])) {
      ended[rank] = true;
      running--;
    }
  }
}
