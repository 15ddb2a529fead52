/* Links: what each action waits for, for listings and pictures. The rules are those of
 * ir/action.h; here they become record numbers. */
#include <assert.h>
#include <string.h>

#include <weft/inspect.h>
#include <weft/spec.h>
#include <weft/support.h>

#include "ir/pairs.h"
#include "ir/program.h"

_Static_assert(WEFT_NEEDS_MAX == WEFT_SKIP_MAX + 2, "an input per edge, and the stage's own F");
/* Indices into program->actions fit, NONE apart. */
_Static_assert(WEFT_ACTIONS_MAX < WEFT_MATCH_NONE, "a record index fits in 32 bits");

/* First record of each kind for a (stage, microbatch), or WEFT_MATCH_NONE. */
struct producers {
  uint32_t activation; /* F */
  uint32_t gradient;   /* B or I */
};

/* Likewise for a (channel, microbatch). */
struct message {
  uint32_t sent, received;
};

struct weft_links {
  const struct weft_program *program;
  struct weft_arena arena;     /* owns all of it, this struct too */
  uint32_t *matches;           /* [record] at the other end */
  uint32_t *rank_of;           /* [stage] */
  uint32_t *last_backward;     /* [stage] record of the last B or W */
  struct producers *producers; /* [stage][microbatch] */
  struct message *messages;    /* [channel][microbatch] */
};

static struct producers *producers_of(const struct weft_links *links, uint32_t stage,
                                      uint32_t microbatch) {
  return &links->producers[(uint64_t)stage * links->program->microbatch_count + microbatch];
}

static void record_first(uint32_t *first, uint64_t record) {
  *first = *first == WEFT_MATCH_NONE ? (uint32_t)record : *first;
}

static void record_transfer(struct weft_links *links, struct weft_action action, uint64_t record) {
  const struct weft_program *program = links->program;
  const uint32_t channel = weft_channel_of(program, action);
  if (channel != WEFT_EDGE_NONE) {
    struct message *message =
        &links->messages[(size_t)channel * program->microbatch_count + action.microbatch];
    record_first(weft_op_in(action.op, WEFT_OPS_SEND) ? &message->sent : &message->received,
                 record);
  }
}

static void read_records(struct weft_links *links) {
  const struct weft_program *program = links->program;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if (weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
      record_transfer(links, action, i);
    } else if (action.op == WEFT_OP_F) {
      record_first(&producers_of(links, action.stage, action.microbatch)->activation, i);
    } else if (weft_op_in(action.op, WEFT_OPS_GRADIENT)) {
      record_first(&producers_of(links, action.stage, action.microbatch)->gradient, i);
    }
    if (action.op == WEFT_OP_B || action.op == WEFT_OP_W) {
      links->last_backward[action.stage] = (uint32_t)i;
    }
  }
}

/* The first SEND of a message and its first RECV; what comes again has no other end. */
static void match_transfers(struct weft_links *links, size_t message_count) {
  for (size_t k = 0; k < message_count; k++) {
    const struct message *message = &links->messages[k];
    if (message->sent != WEFT_MATCH_NONE && message->received != WEFT_MATCH_NONE) {
      links->matches[message->sent] = message->received;
      links->matches[message->received] = message->sent;
    }
  }
}

/* The first of either stage; where there is one stage only, it has no other. */
static void match_ties(struct weft_links *links) {
  const struct weft_program *program = links->program;
  uint32_t first = WEFT_MATCH_NONE, last = WEFT_MATCH_NONE;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if (action.op == WEFT_OP_TIE_GRAD && action.stage == 0) {
      record_first(&first, i);
    } else if (action.op == WEFT_OP_TIE_GRAD && action.stage + 1u == program->stage_count) {
      record_first(&last, i);
    }
  }
  if (first != WEFT_MATCH_NONE && last != WEFT_MATCH_NONE) {
    links->matches[first] = last;
    links->matches[last] = first;
  }
}

static enum weft_status fill_links(struct weft_links *links, struct weft_error *error) {
  const struct weft_program *program = links->program;
  const size_t records = (size_t)program->action_count, stages = program->stage_count;
  struct weft_arena *arena = &links->arena;
  size_t pairs, messages;
  WEFT_TRY(weft_pairs_count(program, &pairs, &messages, error));
  links->matches = weft_arena_allocate(arena, records, sizeof *links->matches);
  links->rank_of = weft_arena_allocate(arena, stages, sizeof *links->rank_of);
  links->last_backward = weft_arena_allocate(arena, stages, sizeof *links->last_backward);
  links->producers = weft_arena_allocate(arena, pairs, sizeof *links->producers);
  links->messages = weft_arena_allocate(arena, messages, sizeof *links->messages);
  WEFT_TRY(weft_arena_status(arena, error));
  memset(links->matches, 0xff, records * sizeof *links->matches); /* WEFT_MATCH_NONE */
  memset(links->last_backward, 0xff, stages * sizeof *links->last_backward);
  memset(links->producers, 0xff, pairs * sizeof *links->producers);
  memset(links->messages, 0xff, messages * sizeof *links->messages);
  (void)weft_placement_infer(program, links->rank_of);
  read_records(links);
  match_transfers(links, messages);
  match_ties(links);
  return WEFT_OK;
}

enum weft_status weft_links_create(const struct weft_allocator *allocator,
                                   const struct weft_program *program, struct weft_links **out,
                                   struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(out, error);
  assert(weft_program_is_sound(program));
  struct weft_arena arena = {.allocator = allocator};
  struct weft_links *links = weft_arena_allocate(&arena, 1, sizeof *links);
  WEFT_TRY(weft_arena_status(&arena, error));
  *links = (struct weft_links){.program = program, .arena = arena};
  const enum weft_status status = fill_links(links, error);
  if (status < 0) {
    weft_links_destroy(links);
    return status;
  }
  *out = links;
  return WEFT_OK;
}

void weft_links_destroy(struct weft_links *links) {
  if (links != NULL) {
    struct weft_arena arena = links->arena; /* links themselves are in it */
    weft_arena_finish(&arena);
  }
}

uint32_t weft_links_peer(const struct weft_links *links, uint64_t record) {
  assert(record < links->program->action_count);
  return links->matches[record];
}

uint32_t weft_links_owner(const struct weft_links *links, uint32_t stage) {
  return stage < links->program->stage_count ? links->rank_of[stage] : WEFT_RANK_NONE;
}

static unsigned add_need(uint32_t record, uint64_t *needs, unsigned count) {
  if (record != WEFT_MATCH_NONE) {
    needs[count++] = record;
  }
  return count;
}

/* What the RECV of each input brings, else what the stage at the other end makes. */
static unsigned add_inputs(const struct weft_links *links, struct weft_action action,
                           uint64_t *needs, unsigned count) {
  const struct weft_program *program = links->program;
  const uint32_t inputs = weft_action_input_count(program->graph, action, program->stage_count);
  for (uint32_t k = 0; k < inputs; k++) {
    const uint32_t stage = weft_action_input_at(program->graph, action, k);
    const uint64_t channel = weft_action_input_channel(program->graph, action, k);
    uint32_t need =
        links->messages[channel * program->microbatch_count + action.microbatch].received;
    if (need == WEFT_MATCH_NONE && stage < program->stage_count) {
      const struct producers *other = producers_of(links, stage, action.microbatch);
      need = action.op == WEFT_OP_F ? other->activation : other->gradient;
    }
    count = add_need(need, needs, count);
  }
  return count;
}

unsigned weft_links_needs(const struct weft_links *links, uint64_t record,
                          uint64_t needs[WEFT_NEEDS_MAX]) {
  assert(record < links->program->action_count);
  const struct weft_action action = links->program->actions[record];
  if (action.op == WEFT_OP_REDUCE_GRAD || action.op == WEFT_OP_TIE_GRAD) {
    return add_need(links->last_backward[action.stage], needs, 0);
  }
  if (!weft_op_in(action.op, WEFT_OPS_COMPUTE | WEFT_OPS_SEND)) {
    return 0;
  }
  const struct producers *own = producers_of(links, action.stage, action.microbatch);
  switch (action.op) {
    case WEFT_OP_F: return add_inputs(links, action, needs, 0);
    case WEFT_OP_B:
    case WEFT_OP_I: return add_inputs(links, action, needs, add_need(own->activation, needs, 0));
    case WEFT_OP_SEND_F: return add_need(own->activation, needs, 0);
    default: return add_need(own->gradient, needs, 0); /* SEND_B, W */
  }
}

uint32_t weft_program_rank_at(const struct weft_program *program, uint64_t record) {
  assert(record < program->action_count);
  uint32_t low = 0, high = program->rank_count; /* row_begin[low] <= record < row_begin[high] */
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (program->row_begin[middle] <= record) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}
