/* A rank's name in errors. Where ranks are processes, it includes the host and the process. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/transport.h>

enum { PLACE_SIZE = WEFT_RANK_NAME_SIZE - (int)sizeof "rank 4294967295 ()" };

char *weft_rank_name(struct weft_transport *transport, uint32_t rank,
                     char buffer[WEFT_RANK_NAME_SIZE]) {
  assert(transport != NULL && buffer != NULL);
  char place[PLACE_SIZE] = "";
  if (transport->ops->location != NULL && rank < transport->rank_count) {
    transport->ops->location(transport, rank, place, sizeof place);
  }
  (void)snprintf(buffer, WEFT_RANK_NAME_SIZE,
                 place[0] != '\0' ? "rank %" PRIu32 " (%s)" : "rank %" PRIu32, rank, place);
  return buffer;
}
