/* Verify, liveness: can the ranks wait for each other forever?
 *
 * One run of the machine (ir/machine.h) decides all interleavings
 * (tests/verify/test_verify_brute_force.c holds that against trying them all). Where it gets stuck,
 * liveness_waits.c finds who waits for whom, and deadlock_report.c says so. */
#include <assert.h>

#include "verify/liveness_waits.h"

/* ---- The smallest capacity ---- */

/* The smallest capacity with which a stuck SEND can go on; WEFT_CAPACITY_UNLIMITED: none can. */
static uint32_t next_capacity(const struct weft_machine *machine) {
  uint32_t least = WEFT_CAPACITY_UNLIMITED;
  for (uint32_t a = 0; a < machine->agents.count; a++) {
    const struct weft_agent_state *state = &machine->states[a];
    if (weft_machine_is_stuck(machine, a) && state->offered) {
      const uint32_t needed =
          state->message -
          machine->taken[weft_machine_channel(machine, machine->placed.program->graph,
                                              *weft_machine_next(machine, a))] +
          1;
      least = needed < least ? needed : least;
    }
  }
  return least;
}

/* Goes on from where the run got stuck. The capacity grows to what the first SEND needs, at most to
 * the messages of a channel. */
static uint32_t find_capacity(struct weft_machine *machine) {
  uint32_t capacity;
  while (machine->has_transfers && (capacity = next_capacity(machine)) != WEFT_CAPACITY_UNLIMITED) {
    assert(capacity > machine->capacity);
    weft_machine_go_on(machine, capacity);
  }
  for (uint32_t a = 0; a < machine->agents.count; a++) {
    if (weft_machine_is_stuck(machine, a)) {
      return WEFT_CAPACITY_UNLIMITED;
    }
  }
  return machine->capacity;
}

bool weft_liveness_open(struct weft_liveness_run *run, struct weft_verify_context *context,
                        struct weft_arena *arena) {
  assert(context->owner != NULL && arena != NULL);
  const struct weft_placed_program placed = weft_placed(context);
  run->context = context;
  run->arena = arena;
  return weft_machine_init(
      &run->machine, &(struct weft_machine_options){.arena = arena,
                                                    .placed = &placed,
                                                    .model = context->model,
                                                    .has_transfers = weft_has_transfers(context)});
}

enum weft_status weft_verify_liveness(struct weft_verify_context *context,
                                      uint32_t *least_capacity) {
  assert(context->owner != NULL && least_capacity != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  struct weft_liveness_run run;
  if (!weft_liveness_open(&run, context, &arena)) {
    return weft_arena_status(&arena, context->error);
  }
  weft_machine_run(&run.machine);
  const bool enough = weft_report_deadlocks(&run);
  *least_capacity = find_capacity(&run.machine);
  return enough ? WEFT_OK : weft_fail_memory(context->error, context->program->action_count);
}
