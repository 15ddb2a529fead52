/* Messages: the checksum of the header, and whether a received message is plausible. The executor
 * checks what its receiver expects beyond that (stage, microbatch, sequence). */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/support.h>
#include <weft/transport.h>

#include "device/checksum.h"

_Static_assert(sizeof(struct weft_message_header) == 64, "a header is 64 bytes");
_Static_assert(offsetof(struct weft_message_header, checksum) == 56, "its checksum comes last");
_Static_assert(sizeof(struct weft_tensor_shape) == 56, "shapes have no padding");

static uint64_t header_checksum(const struct weft_message *message) {
  uint64_t sum = weft_checksum_add(WEFT_MESSAGE_MAGIC, &message->header,
                                   offsetof(struct weft_message_header, checksum));
  for (uint32_t k = 0; k < message->header.tensor_count; k++) {
    sum = weft_checksum_add(sum, &message->shapes[k], sizeof message->shapes[k]);
  }
  return sum;
}

void weft_message_seal(struct weft_message *message) {
  assert(message->header.tensor_count <= WEFT_TENSORS_MAX);
  message->header.checksum = header_checksum(message);
}

static enum weft_status damaged(struct weft_error *error, const char *field, uint64_t found,
                                uint64_t expected) {
  return weft_fail(error, WEFT_ERR_PROTOCOL,
                   "all ranks must run the same build of Weft; if they do, the network or a "
                   "process's memory is damaged",
                   "a message has %s %" PRIu64 " where %" PRIu64 " is expected", field, found,
                   expected);
}

static enum weft_status check_shapes(const struct weft_message *message, struct weft_error *error) {
  for (uint32_t k = 0; k < message->header.tensor_count; k++) {
    uint64_t bytes;
    if (!weft_shape_bytes(&message->shapes[k], &bytes) || bytes > message->capacity) {
      return weft_fail(error, WEFT_ERR_PROTOCOL, "all ranks must describe the same boundaries",
                       "tensor %" PRIu32
                       " of a message has a shape that cannot be: dtype %u, "
                       "%u dimensions, room for %" PRIu64 " bytes",
                       k, message->shapes[k].dtype, message->shapes[k].dim_count,
                       message->capacity);
    }
  }
  return WEFT_OK;
}

enum weft_status weft_message_check(const struct weft_message *message, struct weft_error *error) {
  WEFT_NEED(message, error);
  const struct weft_message_header *header = &message->header;
  if (header->magic != WEFT_MESSAGE_MAGIC) {
    return damaged(error, "magic number", header->magic, WEFT_MESSAGE_MAGIC);
  }
  if (header->protocol != WEFT_PROTOCOL) {
    return damaged(error, "protocol", header->protocol, WEFT_PROTOCOL);
  }
  if (header->tensor_count > WEFT_TENSORS_MAX) {
    return damaged(error, "tensors", header->tensor_count, WEFT_TENSORS_MAX);
  }
  const uint64_t checksum = header_checksum(message);
  if (header->checksum != checksum) {
    return damaged(error, "checksum", header->checksum, checksum);
  }
  if (header->bytes > message->capacity) {
    return weft_fail(error, WEFT_ERR_PROTOCOL, "all ranks must describe the same boundaries",
                     "a message of %" PRIu64 " bytes came where there is room for %" PRIu64,
                     header->bytes, message->capacity);
  }
  return check_shapes(message, error);
}

enum { LOCATION_SIZE = WEFT_RANK_NAME_SIZE - (int)sizeof "rank 4294967295 ()" };

char *weft_rank_name(struct weft_transport *transport, uint32_t rank,
                     char buffer[WEFT_RANK_NAME_SIZE]) {
  assert(transport != NULL && buffer != NULL);
  char location[LOCATION_SIZE] = "";
  if (transport->ops->location != NULL && rank < transport->rank_count) {
    transport->ops->location(transport, rank, location, sizeof location);
  }
  (void)snprintf(buffer, WEFT_RANK_NAME_SIZE,
                 location[0] != '\0' ? "rank %" PRIu32 " (%s)" : "rank %" PRIu32, rank, location);
  return buffer;
}
