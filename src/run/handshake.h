/* The handshake: before the first step, ranks compare their builds, programs and options. */
#ifndef RUN_HANDSHAKE_H
#define RUN_HANDSHAKE_H

#include <weft/run.h>

/* What each rank sends; it must be equal on all ranks, but for the device and the recording. */
struct weft_handshake {
  uint64_t protocol;
  uint64_t build;         /* version, and layout of messages */
  uint64_t stages;        /* these two as they are, and not as hashes */
  uint64_t microbatches;  /* of the first program */
  uint64_t boundaries;    /* hash */
  uint64_t program;       /* hash of the first program */
  uint64_t configuration; /* hash of options, and the user's own */
  uint64_t device;    /* with streams, of the rank: its address, for ranks of its process; or 0 */
  uint64_t recording; /* why its steps cannot be recorded: enum weft_recording_reason */
  char boundary[56];  /* the first boundary in words, for the message */
};
_Static_assert(sizeof(struct weft_handshake) <= WEFT_EXCHANGE_MAX, "one exchange");

struct weft_handshake weft_handshake_make(const struct weft_pipeline_options *options,
                                          uint64_t program_hash);

/* Those of all ranks: `all`, [rank_count], or where NULL what the transport keeps (ops->exchanged).
 * WEFT_OK, or WEFT_ERR_PEER, which names the rank that differs from most others (two ranks
 * when there is no majority), and the field. Numbers and shapes are compared before hashes. */
enum weft_status weft_handshakes_compare(struct weft_transport *transport,
                                         const struct weft_handshake *all, uint32_t *odd_rank,
                                         struct weft_error *error);

#endif
