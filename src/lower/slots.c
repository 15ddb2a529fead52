/* Slot assignment: which buffer each message arrives in and each microbatch's
 * activations live in, so that nothing is allocated while a program runs.
 *
 * Lifetimes are intervals on the rank's own row; taking any free slot when one
 * begins and giving it back when it ends colours an interval graph with as few
 * colours as any colouring can (the largest number alive at once). The last
 * slot freed is taken first: it is the one still in the cache. */
#include <string.h>

#include <weft/lower.h>

#include "base/fail.h"
#include "base/memory.h"
#include "ir/action.h"


/* Slots of one kind on one rank. */
struct pool {
  uint32_t *free; /* stack */
  uint32_t free_count;
  uint32_t count; /* slots ever made */
};

struct assignment {
  struct weft_program *program;
  bool has_backward;
  /* [stage][microbatch], the slot now held, or WEFT_SLOT_NONE */
  uint32_t *activation;
  uint32_t *received_activation;
  uint32_t *received_gradient;
  struct pool activations;
  struct pool receives;
};

static uint32_t pool_take(struct pool *pool) {
  return pool->free_count > 0 ? pool->free[--pool->free_count] : pool->count++;
}

static void pool_give(struct pool *pool, uint32_t *held) {
  if (*held != WEFT_SLOT_NONE) {
    pool->free[pool->free_count++] = *held;
    *held = WEFT_SLOT_NONE;
  }
}

/* Begins a lifetime. A second begin without an end (an invalid program) keeps
 * the first slot, so that pools never exceed the row. */
static uint32_t begin_life(struct pool *pool, uint32_t *held) {
  if (*held == WEFT_SLOT_NONE) {
    *held = pool_take(pool);
  }
  return *held;
}

static uint64_t pair_index(const struct assignment *a, struct weft_action action) {
  return (uint64_t)action.stage * a->program->microbatch_count + action.microbatch;
}

static uint32_t slot_of(struct assignment *a, struct weft_action action) {
  const uint64_t pair = pair_index(a, action);
  switch (action.op) {
    case WEFT_OP_RECV_F: return begin_life(&a->receives, &a->received_activation[pair]);
    case WEFT_OP_RECV_B: return begin_life(&a->receives, &a->received_gradient[pair]);
    case WEFT_OP_F: return begin_life(&a->activations, &a->activation[pair]);
    case WEFT_OP_B:
    case WEFT_OP_I:
    case WEFT_OP_W: return a->activation[pair];
    default: return WEFT_SLOT_NONE;
  }
}

/* What is free again when the action is done. */
static void end_lives(struct assignment *a, struct weft_action action) {
  const uint64_t pair = pair_index(a, action);
  switch (action.op) {
    case WEFT_OP_F:
      pool_give(&a->receives, &a->received_activation[pair]);
      if (!a->has_backward) {
        pool_give(&a->activations, &a->activation[pair]);
      }
      break;
    case WEFT_OP_B:
      pool_give(&a->receives, &a->received_gradient[pair]);
      pool_give(&a->activations, &a->activation[pair]);
      break;
    case WEFT_OP_I: pool_give(&a->receives, &a->received_gradient[pair]); break;
    case WEFT_OP_W: pool_give(&a->activations, &a->activation[pair]); break;
    default: break;
  }
}

/* Parts of an overlap run together: all of them begin before any ends. */
static void assign_row(struct assignment *a, uint32_t rank) {
  struct weft_program *program = a->program;
  a->activations.count = a->activations.free_count = 0;
  a->receives.count = a->receives.free_count = 0;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];) {
    const uint32_t records = weft_cell_records(&program->actions[i]);
    for (uint32_t k = 0; k < records; k++) {
      program->slots[i + k] = slot_of(a, program->actions[i + k]);
    }
    for (uint32_t k = 0; k < records; k++) {
      end_lives(a, program->actions[i + k]);
    }
    i += records;
  }
  program->receive_slots[rank] = a->receives.count;
  program->activation_slots[rank] = a->activations.count;
}

static bool has_backward(const struct weft_program *program) {
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (weft_op_in(program->actions[i].op, WEFT_OPS_GRADIENT | WEFT_OP_BIT(WEFT_OP_W))) {
      return true;
    }
  }
  return false;
}

static uint64_t longest_row(const struct weft_program *program) {
  uint64_t longest = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const uint64_t size = program->row_begin[r + 1] - program->row_begin[r];
    longest = size > longest ? size : longest;
  }
  return longest;
}

/* The program's own arrays; kept if they are there already. */
static bool allocate_results(struct weft_program *program) {
  const struct weft_allocator *allocator = program->allocator;
  const uint32_t p = program->rank_count;
  if (program->slots != NULL) {
    return true;
  }
  uint32_t *slots = weft_array_allocate(allocator, program->action_count, sizeof *slots);
  uint32_t *receive = weft_array_allocate(allocator, p, sizeof *receive);
  uint32_t *activation = weft_array_allocate(allocator, p, sizeof *activation);
  if (slots == NULL || receive == NULL || activation == NULL) {
    weft_array_free(allocator, slots, program->action_count, sizeof *slots);
    weft_array_free(allocator, receive, p, sizeof *receive);
    weft_array_free(allocator, activation, p, sizeof *activation);
    return false;
  }
  program->slots = slots;
  program->receive_slots = receive;
  program->activation_slots = activation;
  program->allocated_bytes += (program->action_count + 2 * (uint64_t)p) * sizeof *slots;
  return true;
}

enum weft_status weft_slots_assign(struct weft_program *program, struct weft_error *error) {
  const struct weft_allocator *allocator = program->allocator;
  const uint64_t pairs = (uint64_t)program->stage_count * program->microbatch_count;
  const uint64_t row = longest_row(program);
  if (pairs > 64 * program->action_count + 65536) {
    return weft_fail(error, WEFT_ERR_INVALID, "'weft verify' tells which numbers are out of range",
                     "too few actions for the stages and microbatches they name");
  }
  struct assignment a = {
      .program = program,
      .has_backward = has_backward(program),
      .activation = weft_array_allocate(allocator, 3 * pairs, sizeof(uint32_t)),
      .activations.free = weft_array_allocate(allocator, row, sizeof(uint32_t)),
      .receives.free = weft_array_allocate(allocator, row, sizeof(uint32_t))};
  enum weft_status status = WEFT_OK;
  if (a.activation == NULL || a.activations.free == NULL || a.receives.free == NULL ||
      !allocate_results(program)) {
    status = weft_fail_memory(error, 3 * pairs * sizeof(uint32_t));
  } else {
    a.received_activation = a.activation + pairs;
    a.received_gradient = a.received_activation + pairs;
    memset(a.activation, 0xff, 3 * pairs * sizeof(uint32_t)); /* WEFT_SLOT_NONE */
    for (uint32_t r = 0; r < program->rank_count; r++) {
      assign_row(&a, r);
    }
  }
  weft_array_free(allocator, a.activation, 3 * pairs, sizeof(uint32_t));
  weft_array_free(allocator, a.activations.free, row, sizeof(uint32_t));
  weft_array_free(allocator, a.receives.free, row, sizeof(uint32_t));
  return status;
}
