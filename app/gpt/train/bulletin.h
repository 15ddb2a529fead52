/* What all ranks tell each other: some bytes of each, in as many exchanges of the
 * transport as that takes. */
#ifndef GPT_BULLETIN_H
#define GPT_BULLETIN_H

#include <weft/transport.h>

struct weft_gpt_bulletin {
  const struct weft_allocator *allocator;
  uint64_t capacity;    /* bytes of a rank */
  unsigned char *mine;  /* [capacity], to be written after begin() */
  unsigned char *all;   /* [ranks][capacity] */
  unsigned char *piece; /* [ranks][WEFT_EXCHANGE_MAX] of the exchange that is under way */
  uint64_t size, at;    /* of this time */
};

enum weft_status weft_gpt_bulletin_init(struct weft_gpt_bulletin *bulletin,
                                        const struct weft_allocator *allocator, uint32_t rank_count,
                                        uint64_t capacity, struct weft_error *error);
void weft_gpt_bulletin_finish(struct weft_gpt_bulletin *bulletin);

/* `size` bytes of each rank, the same on all, 1 ... capacity; `mine` is 0. */
void weft_gpt_bulletin_begin(struct weft_gpt_bulletin *bulletin, uint64_t size);
/* WEFT_OK: all that ranks have told is there. WEFT_IN_PROGRESS, or an error. */
enum weft_status weft_gpt_bulletin_advance(struct weft_gpt_bulletin *bulletin,
                                           struct weft_transport *transport,
                                           struct weft_error *error);
const unsigned char *weft_gpt_bulletin_of(const struct weft_gpt_bulletin *bulletin, uint32_t rank);

#endif
