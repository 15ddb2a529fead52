/* Checksums of headers and payloads; see checksum.h. */
#include "device/checksum.h"

#include <weft/device.h>

uint64_t weft_checksum(const void *data, uint64_t size) {
  enum { SEED = 0x54464557 }; /* "WEFT" */
  const uint64_t sum = weft_checksum_add(weft_checksum_mix(SEED, size), data, size);
  return sum != 0 ? sum : 1;
}
