/* Fuzzes the check of a message that came: any header, shapes and capacity. The
 * message lies in a block of its own size, so that a read beyond it is seen.
 * Beyond not crashing, what must hold:
 *   - a message that is refused is refused for a reason, in printable text;
 *   - of one that passes, payload and every tensor fit the capacity;
 *   - sealing makes the checksum right, so that what is behind it is reached too;
 *     after it, any flipped bit is found. */
#include <stdlib.h>
#include <string.h>

#include <weft/transport.h>

#include "support_fuzz.h"

static void check_accepted(const struct weft_message *message) {
  fuzz_require(message->header.magic == WEFT_MESSAGE_MAGIC, "another magic number passes");
  fuzz_require(message->header.protocol == WEFT_PROTOCOL, "another protocol passes");
  fuzz_require(message->header.tensor_count <= WEFT_TENSORS_MAX, "too many tensors pass");
  fuzz_require(message->header.bytes <= message->capacity, "a payload without room passes");
  for (uint32_t k = 0; k < message->header.tensor_count; k++) {
    uint64_t bytes;
    fuzz_require(message->shapes[k].dim_count <= WEFT_DIMS_MAX, "too many dimensions pass");
    fuzz_require(weft_shape_bytes(&message->shapes[k], &bytes) && bytes <= message->capacity,
                 "a shape without room passes");
  }
}

static bool check(const struct weft_message *message) {
  struct weft_error error = {0};
  const enum weft_status status = weft_message_check(message, &error);
  if (status == WEFT_OK) {
    check_accepted(message);
    return true;
  }
  fuzz_require(status == WEFT_ERR_PROTOCOL && error.status == status, "another status");
  fuzz_require(error.message[0] != '\0' && error.hint[0] != '\0', "no reason");
  fuzz_require(fuzz_is_printable(error.message, false), "bytes of the message in the reason");
  fuzz_require(weft_message_check(message, NULL) == status, "another answer without an error");
  return false;
}

/* The bit is one of the header's or of the shapes' in use. */
static void check_flipped(struct weft_message *message, uint64_t number) {
  const uint64_t header_bits = 8 * sizeof message->header;
  const uint64_t bits = header_bits + 8 * message->header.tensor_count * sizeof message->shapes[0];
  const uint64_t bit = number % bits;
  unsigned char *bytes =
      bit < header_bits ? (unsigned char *)&message->header : (unsigned char *)message->shapes;
  const uint64_t at = bit < header_bits ? bit : bit - header_bits;
  bytes[at / 8] ^= (unsigned char)(1u << (at % 8));
  fuzz_require(!check(message), "a flipped bit passes");
}

/* Bytes: how often to repair it, the capacity, then the message as it lies in memory. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  enum { AHEAD = 1 + sizeof(uint64_t) };
  const size_t room = offsetof(struct weft_message, data); /* header and shapes */
  if (size < AHEAD) {
    return 0;
  }
  struct weft_message *message = calloc(1, sizeof *message);
  if (message == NULL) {
    return 0;
  }
  memcpy(message, data + AHEAD, size - AHEAD < room ? size - AHEAD : room);
  memcpy(&message->capacity, data + 1, sizeof message->capacity);
  (void)check(message);

  /* Repaired step by step, so that every check is the first to fail for some. */
  const unsigned repairs = data[0];
  message->header.magic = (repairs & 1) ? WEFT_MESSAGE_MAGIC : message->header.magic;
  message->header.protocol = (repairs & 2) ? WEFT_PROTOCOL : message->header.protocol;
  if (message->header.tensor_count <= WEFT_TENSORS_MAX) {
    weft_message_seal(message);
    if (check(message)) {
      check_flipped(message, message->header.checksum + data[0]);
    }
  } else {
    fuzz_require(!check(message), "too many tensors pass");
  }
  free(message);
  return 0;
}
