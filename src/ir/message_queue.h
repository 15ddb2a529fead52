/* The messages of a program, in the order in which each channel carries them.
 *
 * A channel of any kind has one sending rank, so the order of its messages is
 * the order of that rank's SENDs: a list per channel of SEND records, made by
 * counting, known before anything runs. */
#ifndef IR_MESSAGE_QUEUE_H
#define IR_MESSAGE_QUEUE_H

#include <weft/channel_models.h>
#include <weft/support.h>

#include "ir/placed_program.h"

struct weft_message_queue {
  uint32_t edge_count; /* weft_placed_edge_count() */
  uint32_t channel_count;
  uint64_t message_count;
  uint32_t *channel_of; /* [edge] */
  uint32_t *first;      /* [channel + 1] into messages */
  uint32_t *messages;   /* [message] record of the SEND */
};

/* Of a program whose SENDs are in range and on their stage's rank; `scope` is that of a channel's
 * messages. The arena owns it. False when out of memory. */
bool weft_message_queue_init(struct weft_message_queue *queue, struct weft_arena *arena,
                             const struct weft_placed_program *placed,
                             enum weft_channel_scope scope);

#endif
