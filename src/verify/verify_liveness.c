/* Verify, liveness: can the ranks wait for each other forever? And, for a trace, how the program goes
 * when its ranks take turns: each action that is done, and what it waited for.
 *
 * One run of the machine (ir/machine.h) decides all interleavings
 * (tests/verify/test_verify_brute_force.c holds that against trying them all). Where it gets stuck,
 * liveness_waits.c finds who waits for whom, and deadlock_report.c says so. */
#include <assert.h>

#include <weft/support.h>

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

static bool open_run(struct weft_liveness_run *run, struct weft_verify_context *context,
                     struct weft_arena *arena) {
  assert(context->owner != NULL && arena != NULL);
  const struct weft_placed_program placed = weft_placed(context);
  run->context = context;
  run->arena = arena;
  return weft_machine_init(&run->machine, arena, &placed, context->model,
                           weft_has_transfers(context));
}

enum weft_status weft_verify_liveness(struct weft_verify_context *context,
                                      uint32_t *least_capacity) {
  assert(context->owner != NULL && least_capacity != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  struct weft_liveness_run run;
  if (!open_run(&run, context, &arena)) {
    return weft_arena_status(&arena, context->error);
  }
  weft_machine_run(&run.machine);
  const bool enough = weft_report_deadlocks(&run);
  *least_capacity = find_capacity(&run.machine);
  return enough ? WEFT_OK : weft_fail_memory(context->error, context->program->action_count);
}

/* ---- A trace ---- */

struct trace {
  struct weft_liveness_run run;
  uint32_t *step_of;       /* [record] */
  struct weft_turn *moves; /* [agent count + cells] those done, then those that never are */
  uint64_t count;
  struct weft_turn *awaited; /* [agent] its `after` */
};

static struct weft_location location_of(const struct trace *trace, uint32_t agent,
                                        uint64_t record) {
  return (struct weft_location){.rank = weft_agent_rank(&trace->run.machine.agents, agent),
                                .step = trace->step_of[record],
                                .action = weft_machine_record(&trace->run.machine, record)};
}

static void moved(void *context, uint32_t agent, uint64_t record) {
  struct trace *trace = context;
  struct weft_turn *move = &trace->moves[trace->count++];
  *move = trace->awaited[agent];
  move->location = location_of(trace, agent, record);
  trace->awaited[agent].after_rank = WEFT_RANK_NONE;
}

static void waits(void *context, uint32_t agent) {
  struct trace *trace = context;
  struct weft_wait_cursor cursor = {0};
  struct weft_wait wait;
  if (weft_wait_next(&trace->run, agent, &cursor, &wait)) {
    trace->awaited[agent] =
        (struct weft_turn){.after_rank = weft_agent_rank(&trace->run.machine.agents, wait.agent),
                           .after = wait.action};
  }
}

static void number_steps(const struct weft_program *program, uint32_t *step_of) {
  for (uint32_t r = 0; r < program->rank_count; r++) {
    uint32_t step = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; step++) {
      step_of[i] = step;
      i += weft_cell_records(&program->actions[i]);
    }
  }
}

static bool run_trace(struct trace *trace, struct weft_arena *kept, struct weft_report *report) {
  struct weft_machine *machine = &trace->run.machine;
  struct weft_arena *scratch = trace->run.arena;
  const uint64_t cells = trace->run.context->program->action_count;
  trace->step_of = weft_arena_allocate(scratch, cells, sizeof *trace->step_of);
  trace->awaited = weft_arena_allocate(scratch, machine->agents.count, sizeof *trace->awaited);
  trace->moves = weft_arena_allocate(kept, cells + machine->agents.count, sizeof *trace->moves);
  if (trace->step_of == NULL || trace->awaited == NULL || trace->moves == NULL) {
    return false;
  }
  number_steps(trace->run.context->program, trace->step_of);
  for (uint32_t a = 0; a < machine->agents.count; a++) {
    trace->awaited[a].after_rank = WEFT_RANK_NONE;
  }
  weft_machine_take_turns(
      machine, &(struct weft_machine_watch){.context = trace, .moved = moved, .waits = waits});
  report->moves = trace->moves;
  report->move_count = trace->count;
  report->waits = trace->moves + trace->count;
  for (uint32_t a = 0; a < machine->agents.count; a++) {
    if (weft_machine_is_stuck(machine, a)) {
      moved(trace, a, weft_machine_record_number(machine, a));
    }
  }
  report->wait_count = trace->count - report->move_count;
  assert(trace->count <= cells + machine->agents.count);
  return true;
}

enum weft_status weft_verify_trace(struct weft_verify_context *context,
                                   struct weft_report *report) {
  assert(context->owner != NULL && report != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = context->allocator};
  struct trace trace = {0};
  return open_run(&trace.run, context, &arena) && run_trace(&trace, context->findings.arena, report)
             ? WEFT_OK
             : weft_fail_memory(context->error,
                                context->program->action_count * sizeof *trace.moves);
}
