/* Finds, for each SEND and RECV of a program, the instruction at the other end
 * of the transfer, and for a TIE_GRAD the one of the other stage. Transfers are identified by direction, sending stage and
 * microbatch; one table slot per possible transfer holds the first SEND, which
 * the first RECV then takes. */
#include "inspect/match.h"

#include <assert.h>

#include <weft/support.h>

#include "ir/action.h"
#include "ir/pairs.h"

/* Indices into program->actions fit, NONE apart. */
_Static_assert(WEFT_ACTIONS_MAX < WEFT_MATCH_NONE, "a record index fits in 32 bits");

static size_t send_slot(const struct weft_program *program, struct weft_action send) {
  const size_t pair = (size_t)send.stage * program->microbatch_count + send.microbatch;
  return 2 * pair + (send.op == WEFT_OP_SEND_B);
}

static void note_sends(const struct weft_program *program, uint32_t *first_send) {
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if (weft_op_in(action.op, WEFT_OPS_SEND)) {
      uint32_t *slot = &first_send[send_slot(program, action)];
      if (*slot == WEFT_MATCH_NONE) {
        *slot = (uint32_t)i;
      }
    }
  }
}

/* A slot is emptied when its SEND is taken, so a second RECV finds nothing. */
static void take_sends(const struct weft_program *program, uint32_t *first_send,
                       uint32_t *matches) {
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    struct weft_action send;
    if (!weft_op_in(action.op, WEFT_OPS_RECV) ||
        !weft_action_partner(action, program->stage_count, &send)) {
      continue;
    }
    uint32_t *slot = &first_send[send_slot(program, send)];
    if (*slot != WEFT_MATCH_NONE) {
      matches[i] = *slot;
      matches[*slot] = (uint32_t)i;
      *slot = WEFT_MATCH_NONE;
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
  assert(matches != NULL || program->action_count == 0);
  size_t pairs;
  WEFT_TRY(weft_pairs_count(program, &pairs, error));
  uint32_t *first_send = weft_array_allocate(program->allocator, 2 * pairs, sizeof *first_send);
  if (first_send == NULL) {
    return weft_fail_memory(error, 2 * pairs * sizeof *first_send);
  }
  for (size_t i = 0; i < 2 * pairs; i++) {
    first_send[i] = WEFT_MATCH_NONE;
  }
  for (uint64_t i = 0; i < program->action_count; i++) {
    matches[i] = WEFT_MATCH_NONE;
  }
  note_sends(program, first_send);
  take_sends(program, first_send, matches);
  pair_ties(program, matches);
  weft_array_free(program->allocator, first_send, 2 * pairs, sizeof *first_send);
  return WEFT_OK;
}
