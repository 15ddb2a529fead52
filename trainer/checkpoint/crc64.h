/* The checksum of checkpoints: CRC-64/XZ. It finds every error in up to 64 bits that
 * lie together, and so every flipped bit. */
#ifndef GPT_CRC64_H
#define GPT_CRC64_H

#include <stddef.h>
#include <stdint.h>

struct weft_gpt_checksum {
  uint64_t table[8][256];
  uint64_t state;
};

void weft_gpt_checksum_init(struct weft_gpt_checksum *checksum);
void weft_gpt_checksum_add(struct weft_gpt_checksum *checksum, const void *data, size_t size);
/* Of all that was added. */
uint64_t weft_gpt_checksum_value(const struct weft_gpt_checksum *checksum);
/* Of one piece of memory. */
uint64_t weft_gpt_checksum_of(const void *data, size_t size);

#endif
