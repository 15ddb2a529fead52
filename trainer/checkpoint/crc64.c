/* CRC-64/XZ (polynomial of ECMA-182, reflected), eight bytes at a time: table[k] has
 * what a byte does that k more bytes follow. The tables are computed for each use, which
 * takes microseconds, so that there is no global state. */
#include "trainer/checkpoint/crc64.h"

#include <string.h>

#define POLYNOMIAL UINT64_C(0xc96c5795d7870f42)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "checkpoints are written as memory has them: little-endian");

static uint64_t byte_effect(uint64_t byte) {
  for (int bit = 0; bit < 8; bit++) {
    byte = (byte & 1) != 0 ? byte >> 1 ^ POLYNOMIAL : byte >> 1;
  }
  return byte;
}

void weft_gpt_checksum_init(struct weft_gpt_checksum *checksum) {
  uint64_t(*const table)[256] = checksum->table;
  checksum->state = UINT64_MAX;
  for (uint32_t byte = 0; byte < 256; byte++) {
    table[0][byte] = byte_effect(byte);
  }
  for (int k = 1; k < 8; k++) {
    for (uint32_t byte = 0; byte < 256; byte++) {
      const uint64_t effect = table[k - 1][byte];
      table[k][byte] = effect >> 8 ^ table[0][effect & 0xff];
    }
  }
}

void weft_gpt_checksum_add(struct weft_gpt_checksum *checksum, const void *data, size_t size) {
  uint64_t(*const table)[256] = checksum->table;
  const unsigned char *bytes = data;
  uint64_t state = checksum->state;
  for (; size >= 8; size -= 8, bytes += 8) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    word ^= state;
    state = table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
            table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^
            table[2][word >> 40 & 0xff] ^ table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
  }
  for (; size > 0; size--, bytes++) {
    state = state >> 8 ^ table[0][(state ^ *bytes) & 0xff];
  }
  checksum->state = state;
}

uint64_t weft_gpt_checksum_value(const struct weft_gpt_checksum *checksum) {
  return ~checksum->state;
}

uint64_t weft_gpt_checksum_of(const void *data, size_t size) {
  struct weft_gpt_checksum checksum;
  weft_gpt_checksum_init(&checksum);
  weft_gpt_checksum_add(&checksum, data, size);
  return weft_gpt_checksum_value(&checksum);
}
