/* The channel of a SEND or RECV. */
#include "cli/args/transfer_channel.h"

#include <weft/spec.h>

bool weft_cli_channel_of(const struct weft_action *action, struct weft_cli_channel *channel) {
  const int64_t stage = action->stage;
  switch (action->op) {
    case WEFT_OP_SEND_F: *channel = (struct weft_cli_channel){'F', stage, stage + 1}; return true;
    case WEFT_OP_RECV_F: *channel = (struct weft_cli_channel){'F', stage - 1, stage}; return true;
    case WEFT_OP_SEND_B: *channel = (struct weft_cli_channel){'B', stage, stage - 1}; return true;
    case WEFT_OP_RECV_B: *channel = (struct weft_cli_channel){'B', stage + 1, stage}; return true;
    default: return false;
  }
}

uint32_t weft_cli_channel_rank(const struct weft_links *links, int64_t stage) {
  return stage < 0 ? WEFT_RANK_NONE : weft_links_owner(links, (uint32_t)stage);
}
