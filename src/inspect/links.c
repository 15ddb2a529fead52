/* Links: what each action waits for, for listings and pictures. The rules are those of
 * ir/action.h; here they become record numbers. */
#include <assert.h>

#include <weft/inspect.h>
#include <weft/spec.h>
#include <weft/support.h>

#include "inspect/match.h"
#include "ir/action.h"
#include "ir/pairs.h"
#include "ir/program.h"

_Static_assert(WEFT_NEEDS_MAX == WEFT_SKIP_MAX + 2, "an input per edge, and the stage's own F");

/* First record of each kind for a (stage, microbatch), or WEFT_MATCH_NONE. */
struct producers {
  uint32_t activation; /* F */
  uint32_t gradient;   /* B or I */
};

struct weft_links {
  const struct weft_program *program;
  struct weft_arena arena;     /* owns all of it, this struct too */
  uint32_t *matches;           /* [record] */
  uint32_t *rank_of;           /* [stage] */
  uint32_t *last_backward;     /* [stage] record of the last B or W */
  struct producers *producers; /* [stage][microbatch] */
  uint32_t *received;          /* [channel][microbatch] first RECV, or WEFT_MATCH_NONE */
};

static struct producers *producers_of(const struct weft_links *links, uint32_t stage,
                                      uint32_t microbatch) {
  return &links->producers[(uint64_t)stage * links->program->microbatch_count + microbatch];
}

static void note_first(uint32_t *first, uint64_t record) {
  *first = *first == WEFT_MATCH_NONE ? (uint32_t)record : *first;
}

WEFT_GRAPH_INLINE void note_producers(const struct weft_links *links,
                                      const struct weft_graph *graph) {
  const struct weft_program *program = links->program;
  const struct weft_action *actions = program->actions;
  const uint64_t count = program->action_count;
  const size_t microbatches = program->microbatch_count;
  struct producers *producers = links->producers;
  uint32_t *last_backward = links->last_backward, *received = links->received;
  for (uint64_t i = 0; i < count; i++) {
    const struct weft_action action = actions[i];
    const size_t pair = action.stage * microbatches + action.microbatch;
    uint32_t channel;
    switch (action.op) {
      case WEFT_OP_F: note_first(&producers[pair].activation, i); break;
      case WEFT_OP_B:
        note_first(&producers[pair].gradient, i);
        last_backward[action.stage] = (uint32_t)i;
        break;
      case WEFT_OP_I: note_first(&producers[pair].gradient, i); break;
      case WEFT_OP_W: last_backward[action.stage] = (uint32_t)i; break;
      case WEFT_OP_RECV_F:
      case WEFT_OP_RECV_B:
        channel = weft_channel_of_recv(graph, program->stage_count, action);
        if (channel != WEFT_EDGE_NONE) {
          note_first(&received[channel * microbatches + action.microbatch], i);
        }
        break;
      default: break;
    }
  }
}

static enum weft_status allocate(struct weft_links *links, struct weft_error *error) {
  const struct weft_program *program = links->program;
  size_t pairs, messages;
  WEFT_TRY(weft_pairs_count(program, &pairs, error));
  WEFT_TRY(weft_messages_count(program, &messages, error));
  links->matches =
      weft_arena_allocate(&links->arena, program->action_count, sizeof *links->matches);
  links->rank_of = weft_arena_allocate(&links->arena, program->stage_count, sizeof(uint32_t));
  links->last_backward = weft_arena_allocate(&links->arena, program->stage_count, sizeof(uint32_t));
  links->producers = weft_arena_allocate(&links->arena, pairs, sizeof *links->producers);
  links->received = weft_arena_allocate(&links->arena, messages, sizeof *links->received);
  WEFT_TRY(weft_arena_status(&links->arena, error));
  memset(links->last_backward, 0xff, program->stage_count * sizeof(uint32_t));
  memset(links->producers, 0xff, pairs * sizeof *links->producers); /* WEFT_MATCH_NONE */
  memset(links->received, 0xff, messages * sizeof *links->received);
  return weft_program_match(program, links->matches, error);
}

enum weft_status weft_links_create(const struct weft_allocator *allocator,
                                   const struct weft_program *program, struct weft_links **out,
                                   struct weft_error *error) {
  WEFT_NEED(program, error);
  WEFT_NEED(out, error);
  assert(weft_program_is_sound(program));
  struct weft_links *links = weft_array_allocate_zero(allocator, 1, sizeof *links);
  if (links == NULL) {
    return weft_fail_memory(error, sizeof *links);
  }
  links->program = program;
  links->arena.allocator = allocator;
  const enum weft_status status = allocate(links, error);
  if (status < 0) {
    weft_links_destroy(links);
    return status;
  }
  (void)weft_placement_infer(program, links->rank_of);
  WEFT_TWICE(graph, program->graph, note_producers(links, graph));
  *out = links;
  return WEFT_OK;
}

void weft_links_destroy(struct weft_links *links) {
  if (links == NULL) {
    return;
  }
  const struct weft_allocator *allocator = links->arena.allocator;
  weft_arena_finish(&links->arena);
  weft_array_free(allocator, links, 1, sizeof *links);
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
WEFT_GRAPH_INLINE unsigned add_inputs_of(const struct weft_links *links,
                                         const struct weft_graph *graph, struct weft_action action,
                                         uint64_t *needs, unsigned count) {
  const struct weft_program *program = links->program;
  const uint32_t inputs = weft_action_input_count(graph, action, program->stage_count);
  for (uint32_t k = 0; k < inputs; k++) {
    const uint32_t stage = weft_action_input_at(graph, action, k);
    const uint64_t channel = weft_action_input_channel(graph, action, k);
    uint32_t need = links->received[channel * program->microbatch_count + action.microbatch];
    if (need == WEFT_MATCH_NONE && stage < program->stage_count) {
      const struct producers *other = producers_of(links, stage, action.microbatch);
      need = action.op == WEFT_OP_F ? other->activation : other->gradient;
    }
    count = add_need(need, needs, count);
  }
  return count;
}

static unsigned add_inputs(const struct weft_links *links, struct weft_action action,
                           uint64_t *needs, unsigned count) {
  WEFT_TWICE(graph, links->program->graph,
             return add_inputs_of(links, graph, action, needs, count));
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
