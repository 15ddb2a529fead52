/* See bulletin.h. */
#include "gpt/train/bulletin.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/model/aligned_memory.h"

enum weft_status weft_gpt_bulletin_init(struct weft_gpt_bulletin *bulletin,
                                        const struct weft_allocator *allocator, uint32_t rank_count,
                                        uint64_t capacity, struct weft_error *error) {
  *bulletin = (struct weft_gpt_bulletin){.allocator = allocator, .capacity = capacity};
  bulletin->mine = weft_gpt_allocate(allocator, capacity, 1);
  bulletin->all = weft_gpt_allocate(allocator, rank_count, capacity);
  bulletin->piece = weft_gpt_allocate(allocator, rank_count, WEFT_EXCHANGE_MAX);
  return bulletin->mine != NULL && bulletin->all != NULL && bulletin->piece != NULL
             ? WEFT_OK
             : weft_fail_memory(error, rank_count * capacity);
}

void weft_gpt_bulletin_finish(struct weft_gpt_bulletin *bulletin) {
  weft_gpt_free(bulletin->allocator, bulletin->mine);
  weft_gpt_free(bulletin->allocator, bulletin->all);
  weft_gpt_free(bulletin->allocator, bulletin->piece);
}

void weft_gpt_bulletin_begin(struct weft_gpt_bulletin *bulletin, uint64_t size) {
  assert(size > 0 && size <= bulletin->capacity);
  memset(bulletin->mine, 0, size);
  bulletin->size = size;
  bulletin->at = 0;
}

enum weft_status weft_gpt_bulletin_advance(struct weft_gpt_bulletin *bulletin,
                                           struct weft_transport *transport,
                                           struct weft_error *error) {
  while (bulletin->at < bulletin->size) {
    const uint64_t left = bulletin->size - bulletin->at;
    const size_t bytes = left < WEFT_EXCHANGE_MAX ? (size_t)left : WEFT_EXCHANGE_MAX;
    const enum weft_status status = transport->ops->exchange(
        transport, bulletin->mine + bulletin->at, bulletin->piece, bytes, error);
    if (status != WEFT_OK) {
      return status;
    }
    for (uint32_t r = 0; r < transport->rank_count; r++) {
      memcpy(bulletin->all + r * bulletin->capacity + bulletin->at, bulletin->piece + r * bytes,
             bytes);
    }
    bulletin->at += bytes;
  }
  return WEFT_OK;
}

const unsigned char *weft_gpt_bulletin_of(const struct weft_gpt_bulletin *bulletin, uint32_t rank) {
  return bulletin->all + rank * bulletin->capacity;
}
