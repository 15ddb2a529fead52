/* The channel of a SEND or RECV, for listings. */
#ifndef CLI_TRANSFER_CHANNEL_H
#define CLI_TRANSFER_CHANNEL_H

#include <weft/inspect.h>

/* The stages at the two ends of a SEND's or RECV's channel; the numbers may lie
 * outside the pipeline where the program is wrong. */
struct weft_cli_channel {
  char kind; /* 'F' activations, 'B' gradients */
  int64_t from_stage;
  int64_t to_stage;
};

/* False for what is neither SEND nor RECV. */
bool weft_cli_channel_of(const struct weft_action *action, struct weft_cli_channel *channel);

/* The rank that owns a stage; WEFT_RANK_NONE when none does. */
uint32_t weft_cli_channel_rank(const struct weft_links *links, int64_t stage);

#endif
