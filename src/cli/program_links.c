/* What an instruction of a program is tied to. Tables by (stage, microbatch) are
 * safe to make here: weft_program_match() has refused programs too sparse for them. */
#include "cli/program_links.h"

#include <weft/spec.h>

/* What can make something that another instruction of the rank waits for. */
enum producer { MAKES_ACTIVATION, MAKES_GRADIENT, BRINGS_ACTIVATION, BRINGS_GRADIENT, PRODUCERS };

static int producer_of(uint8_t op) {
  switch (op) {
    case WEFT_OP_F: return MAKES_ACTIVATION;
    case WEFT_OP_B:
    case WEFT_OP_I: return MAKES_GRADIENT;
    case WEFT_OP_RECV_F: return BRINGS_ACTIVATION;
    case WEFT_OP_RECV_B: return BRINGS_GRADIENT;
    default: return -1;
  }
}

static uint32_t *producer_at(const struct weft_cli_links *links, enum producer producer,
                             uint32_t stage, uint32_t microbatch) {
  const size_t pair = (size_t)stage * links->program->microbatch_count + microbatch;
  return &links->producers[pair * PRODUCERS + producer];
}

static void *allocate(const struct weft_allocator *allocator, size_t bytes) {
  return allocator->reallocate(allocator->context, NULL, 0, bytes > 0 ? bytes : 1);
}

static void release(const struct weft_allocator *allocator, void *pointer, size_t bytes) {
  if (pointer != NULL) {
    allocator->reallocate(allocator->context, pointer, bytes > 0 ? bytes : 1, 0);
  }
}

static enum weft_status fail_memory(struct weft_error *error) {
  *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
  return WEFT_ERR_MEMORY;
}

static void note_producers(struct weft_cli_links *links) {
  const struct weft_program *program = links->program;
  for (size_t i = 0; i < links->producer_count; i++) {
    links->producers[i] = WEFT_MATCH_NONE;
  }
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action *action = &program->actions[i];
    const int producer = producer_of(action->op);
    if (producer >= 0) {
      uint32_t *first =
          producer_at(links, (enum producer)producer, action->stage, action->microbatch);
      *first = *first == WEFT_MATCH_NONE ? (uint32_t)i : *first;
    }
  }
}

enum weft_status weft_cli_links_init(struct weft_cli_links *links,
                                     const struct weft_program *program, struct weft_error *error) {
  const struct weft_allocator *allocator = program->allocator;
  *links = (struct weft_cli_links){.program = program};
  links->matches = allocate(allocator, (size_t)program->action_count * sizeof *links->matches);
  links->rank_of = allocate(allocator, program->stage_count * sizeof *links->rank_of);
  if (links->matches == NULL || links->rank_of == NULL) {
    return fail_memory(error);
  }
  const enum weft_status status = weft_program_match(program, links->matches, error);
  if (status < 0) {
    return status;
  }
  (void)weft_placement_infer(program, links->rank_of);
  links->producer_count = (size_t)program->stage_count * program->microbatch_count * PRODUCERS;
  links->producers = allocate(allocator, links->producer_count * sizeof *links->producers);
  if (links->producers == NULL) {
    return fail_memory(error);
  }
  note_producers(links);
  return WEFT_OK;
}

void weft_cli_links_finish(struct weft_cli_links *links) {
  const struct weft_allocator *allocator = links->program->allocator;
  release(allocator, links->producers, links->producer_count * sizeof *links->producers);
  release(allocator, links->rank_of, links->program->stage_count * sizeof *links->rank_of);
  release(allocator, links->matches, (size_t)links->program->action_count * sizeof *links->matches);
}

/* ---- What it waits for ---- */

static unsigned add_need(const struct weft_cli_links *links, enum producer producer, int64_t stage,
                         uint32_t microbatch, uint64_t *needs, unsigned count) {
  if (stage < 0 || stage >= links->program->stage_count) {
    return count;
  }
  const uint32_t found = *producer_at(links, producer, (uint32_t)stage, microbatch);
  if (found == WEFT_MATCH_NONE) {
    return count;
  }
  needs[count] = found;
  return count + 1;
}

/* The input of an F, B or I: what a RECV brings, else what the neighbour makes. */
static unsigned add_input(const struct weft_cli_links *links, const struct weft_action *action,
                          uint64_t *needs, unsigned count) {
  const bool forward = action->op == WEFT_OP_F;
  const unsigned received = add_need(links, forward ? BRINGS_ACTIVATION : BRINGS_GRADIENT,
                                     action->stage, action->microbatch, needs, count);
  if (received > count) {
    return received;
  }
  return add_need(links, forward ? MAKES_ACTIVATION : MAKES_GRADIENT,
                  (int64_t)action->stage + (forward ? -1 : 1), action->microbatch, needs, count);
}

unsigned weft_cli_links_needs(const struct weft_cli_links *links, uint64_t index,
                              uint64_t needs[WEFT_CLI_NEEDS_MAX]) {
  const struct weft_action *action = &links->program->actions[index];
  const uint32_t stage = action->stage, microbatch = action->microbatch;
  switch (action->op) {
    case WEFT_OP_F: return add_input(links, action, needs, 0);
    case WEFT_OP_B:
    case WEFT_OP_I:
      return add_input(links, action, needs,
                       add_need(links, MAKES_ACTIVATION, stage, microbatch, needs, 0));
    case WEFT_OP_SEND_F: return add_need(links, MAKES_ACTIVATION, stage, microbatch, needs, 0);
    case WEFT_OP_SEND_B:
    case WEFT_OP_W: return add_need(links, MAKES_GRADIENT, stage, microbatch, needs, 0);
    default: return 0;
  }
}

/* ---- Channels and ranks ---- */

bool weft_cli_links_channel(const struct weft_action *action, struct weft_cli_channel *channel) {
  const int64_t stage = action->stage;
  switch (action->op) {
    case WEFT_OP_SEND_F: *channel = (struct weft_cli_channel){'F', stage, stage + 1}; return true;
    case WEFT_OP_RECV_F: *channel = (struct weft_cli_channel){'F', stage - 1, stage}; return true;
    case WEFT_OP_SEND_B: *channel = (struct weft_cli_channel){'B', stage, stage - 1}; return true;
    case WEFT_OP_RECV_B: *channel = (struct weft_cli_channel){'B', stage + 1, stage}; return true;
    default: return false;
  }
}

uint32_t weft_cli_links_owner(const struct weft_cli_links *links, int64_t stage) {
  const bool inside = stage >= 0 && stage < links->program->stage_count;
  return inside ? links->rank_of[stage] : WEFT_RANK_NONE;
}

uint32_t weft_cli_links_rank(const struct weft_program *program, uint64_t index) {
  uint32_t low = 0, high = program->rank_count; /* row_begin[low] <= index < row_begin[high] */
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (program->row_begin[middle] <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}
