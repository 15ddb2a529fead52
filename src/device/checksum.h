/* The checksum in pieces, for those who sum more than one block. */
#ifndef DEVICE_CHECKSUM_H
#define DEVICE_CHECKSUM_H

#include <weft/device.h>

/* Continues from `sum` over `size` bytes. */
uint64_t weft_checksum_add(uint64_t sum, const void *data, uint64_t size);

#endif
