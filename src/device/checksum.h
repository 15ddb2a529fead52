/* Checksums of headers and payloads, in line because a header is short. */
#ifndef DEVICE_CHECKSUM_H
#define DEVICE_CHECKSUM_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One round of a 64-bit mixer: any changed bit of the word changes the sum, because each step is a
 * bijection. */
static inline uint64_t weft_checksum_mix(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  return sum ^ (sum >> 29);
}

/* Continues a sum. Two words at a time, in two sums that do not wait for each other. */
static inline uint64_t weft_checksum_add(uint64_t sum, const void *data, uint64_t size) {
  assert(data != NULL || size == 0);
  const unsigned char *bytes = data;
  uint64_t other = ~sum, words[2];
  for (; size >= sizeof words; size -= sizeof words, bytes += sizeof words) {
    memcpy(words, bytes, sizeof words);
    sum = weft_checksum_mix(sum, words[0]);
    other = weft_checksum_mix(other, words[1]);
  }
  words[0] = words[1] = 0;
  if (size > 0) {
    memcpy(words, bytes, (size_t)size);
  }
  return weft_checksum_mix(weft_checksum_mix(sum, words[0]), weft_checksum_mix(other, words[1]));
}

#endif
