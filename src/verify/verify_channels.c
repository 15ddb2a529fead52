/* Verify, structure: the order on each directed stage boundary or edge. Messages are
 * matched by order, so the k-th receive must be for what the k-th send sent.
 * Where it is not, the program hangs or mixes data up under every model. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "verify/verify_context.h"

struct channel_check {
  struct weft_verify_context *context;
  struct weft_message_queue queue;
  uint32_t *received; /* [channel] */
  bool *reported;     /* [channel] one finding each */
};

WEFT_GRAPH_INLINE void check_receive(void *of, const struct weft_graph *graph,
                                     const struct weft_location *at) {
  struct channel_check *check = of;
  struct weft_action send;
  if (!weft_op_in(at->action->op, WEFT_OPS_RECV) ||
      !weft_action_partner(*at->action, check->context->stage_count, &send)) {
    return;
  }
  const uint32_t channel = check->queue.channel_of[weft_channel_of_send(graph, send)];
  const uint32_t position = check->received[channel]++;
  assert(check->queue.first[channel] + position < check->queue.first[channel + 1]);
  const struct weft_action sent =
      check->context->program
          ->actions[check->queue.messages[check->queue.first[channel] + position]];
  if (sent.microbatch == send.microbatch || check->reported[channel]) {
    return;
  }
  check->reported[channel] = true;
  char expected[32], found[32];
  weft_findings_add(
      &check->context->findings, WEFT_RULE_CHANNEL_ORDER, *at,
      "is receive number %" PRIu32 " on its boundary and expects %s, but rank %" PRIu32
      " sends %s there; put both sides in the same order",
      position, weft_action_format(&send, expected, sizeof expected),
      check->context->owner[send.stage], weft_action_format(&sent, found, sizeof found));
}

/* Runs on paired programs only, so every receive has a send to look at. */
enum weft_status weft_verify_channels(struct weft_verify_context *context) {
  assert(context->program != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  const struct weft_placed_program placed = weft_placed(context);
  const uint32_t edges = weft_placed_edge_count(&placed);
  struct channel_check check = {
      .context = context,
      .received = weft_arena_allocate(&arena, edges, sizeof *check.received),
      .reported = weft_arena_allocate(&arena, edges, sizeof *check.reported)};
  WEFT_TRY(weft_arena_status(&arena, context->error));
  if (!weft_message_queue_init(&check.queue, &arena, &placed, WEFT_SCOPE_EDGE)) {
    return weft_arena_status(&arena, context->error);
  }
  weft_visit_rows(context->program, context->graph, true, check_receive, &check);
  return WEFT_OK;
}
