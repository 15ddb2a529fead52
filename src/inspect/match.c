/* Finds, for each SEND and RECV of a program, the instruction at the other end
 * of the transfer, and for a TIE_GRAD the one of the other stage. Transfers are
 * identified by channel and microbatch; one table slot per possible transfer holds
 * the first SEND, which the first RECV then takes. */
#include "inspect/match.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "ir/action.h"
#include "ir/pairs.h"
#include "ir/program.h"

/* Indices into program->actions fit, NONE apart. */
_Static_assert(WEFT_ACTIONS_MAX < WEFT_MATCH_NONE, "a record index fits in 32 bits");

WEFT_GRAPH_INLINE void match_transfers(const struct weft_program *program,
                                       const struct weft_graph *graph, uint32_t *first_send,
                                       uint32_t *matches) {
  const struct weft_action *actions = program->actions;
  const uint64_t count = program->action_count;
  const uint32_t stages = program->stage_count;
  const size_t microbatches = program->microbatch_count;
  for (uint64_t i = 0; i < count; i++) {
    if (weft_op_in(actions[i].op, WEFT_OPS_SEND)) {
      const uint32_t channel = weft_channel_of_send(graph, actions[i]);
      const size_t slot = channel * microbatches + actions[i].microbatch;
      if (channel != WEFT_EDGE_NONE && first_send[slot] == WEFT_MATCH_NONE) {
        first_send[slot] = (uint32_t)i;
      }
    }
  }
  /* A slot is emptied when its SEND is taken, so a second RECV finds nothing. */
  for (uint64_t i = 0; i < count; i++) {
    if (weft_op_in(actions[i].op, WEFT_OPS_RECV)) {
      const uint32_t channel = weft_channel_of_recv(graph, stages, actions[i]);
      const size_t slot = channel * microbatches + actions[i].microbatch;
      if (channel != WEFT_EDGE_NONE && first_send[slot] != WEFT_MATCH_NONE) {
        matches[i] = first_send[slot];
        matches[first_send[slot]] = (uint32_t)i;
        first_send[slot] = WEFT_MATCH_NONE;
      }
    }
  }
}

/* The first of either stage; where there is one stage only, it has no other. */
static void pair_ties(const struct weft_program *program, uint32_t *matches) {
  uint32_t first = WEFT_MATCH_NONE, last = WEFT_MATCH_NONE;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if (action.op != WEFT_OP_TIE_GRAD) {
      continue;
    }
    if (action.stage == 0 && first == WEFT_MATCH_NONE) {
      first = (uint32_t)i;
    } else if (action.stage + 1u == program->stage_count && last == WEFT_MATCH_NONE &&
               action.stage > 0) {
      last = (uint32_t)i;
    }
  }
  if (first != WEFT_MATCH_NONE && last != WEFT_MATCH_NONE) {
    matches[first] = last;
    matches[last] = first;
  }
}

enum weft_status weft_program_match(const struct weft_program *program, uint32_t *matches,
                                    struct weft_error *error) {
  assert(weft_program_is_sound(program));
  assert(matches != NULL || program->action_count == 0);
  size_t messages;
  WEFT_TRY(weft_messages_count(program, &messages, error));
  WEFT_SCOPED_ARENA arena = {.allocator = program->allocator};
  uint32_t *first_send = weft_arena_allocate(&arena, messages, sizeof *first_send);
  WEFT_TRY(weft_arena_status(&arena, error));
  memset(first_send, 0xff, messages * sizeof *first_send); /* WEFT_MATCH_NONE */
  if (program->action_count > 0) {
    memset(matches, 0xff, program->action_count * sizeof *matches);
  }
  WEFT_TWICE(graph, program->graph, match_transfers(program, graph, first_send, matches));
  pair_ties(program, matches);
  return WEFT_OK;
}
