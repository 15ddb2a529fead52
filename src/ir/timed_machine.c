/* The run of ranks and queues with a clock; see timed_machine.h.
 *
 * The run is bare: it finds when inputs arrive, and when ranks end. What else a caller wants to know
 * it finds row by row, when all times are known. */
#include "ir/timed_machine.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

#include "ir/pairs.h"

_Static_assert(sizeof(struct weft_timed_work) <= 64, "one is a cache line");

/* Ranks take turns, each with streams of its own: more than the hardware follows
 * by itself, so a run asks for what it will need some actions later. */
enum { AHEAD_RECORDS = 32, AHEAD_NUMBERS = 16 };

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- Times where nothing says them ---- */

static int64_t unit_action(const void *context, enum weft_op op, uint32_t stage) {
  const struct weft_action action = weft_action_make(op, stage, 0);
  (void)context;
  return weft_cell_work(&action);
}

static int64_t unit_overlap(const void *context, const struct weft_action *cell) {
  (void)context;
  return weft_cell_work(cell);
}

static void unit_channel(const void *context, uint32_t number, struct weft_timed_channel *channel) {
  (void)context;
  (void)number;
  channel->occupancy = channel->hop = 0;
}

const struct weft_timing weft_unit_timing = {
    .action = unit_action, .overlap = unit_overlap, .channel = unit_channel};

/* ---- Transfers ---- */

static inline void wake(struct weft_timed_machine *machine, uint32_t rank, const int64_t *input) {
  struct weft_timed_rank *state = &machine->ranks[rank];
  if (state->waits_for == input) {
    state->waits_for = NULL; /* once is enough */
    machine->work[machine->work_count++] = rank;
  }
}

/* Most programs never wait for a channel, and need no memory for it. */
static void remember_wait(struct weft_timed_machine *machine, const int64_t *input, int64_t wait) {
  if (machine->waits == NULL) {
    machine->waits = weft_array_allocate_zero(machine->arena.allocator, machine->input_count,
                                              sizeof *machine->waits);
  }
  if (machine->waits == NULL) {
    machine->lacks_memory = true;
    return;
  }
  machine->waits[input - machine->inputs] = wait;
}

/* The transfer of a message starts: writes its arrival down, and wakes the rank that may wait for
 * it. */
WEFT_GRAPH_INLINE void deliver_message(struct weft_timed_machine *machine,
                                       const struct weft_timed_channel *channel, int64_t *input,
                                       int64_t produced, int64_t start) {
  __builtin_prefetch(input + AHEAD_NUMBERS, 1);
  *input = start + channel->hop;
  if (start > produced && machine->options.keeps_waits) {
    remember_wait(machine, input, start - produced);
  }
  wake(machine, channel->to, input);
}

WEFT_GRAPH_INLINE void send_message(struct weft_timed_machine *machine,
                                    struct weft_timed_channel *channel, int64_t *input,
                                    int64_t produced) {
  const int64_t start = later(produced, channel->free_at);
  channel->free_at = start + channel->occupancy;
  deliver_message(machine, channel, input, produced, start);
}

/* ---- Queues that channels share ---- */

/* Starts the transfer at the head of a queue, if its other end is at the head of its queue too and
 * its data is made. */
static void start_head(struct weft_timed_machine *machine, uint32_t agent) {
  struct weft_timed_queue *queue = &machine->queues[agent];
  if (queue->head == queue->end) {
    return;
  }
  const struct weft_action *actions = machine->placed.program->actions;
  const uint64_t record = weft_agent_record(&machine->agents, queue->head);
  const struct weft_action action = actions[record];
  const uint32_t number = weft_channel_of(machine->placed.program, action);
  struct weft_action partner;
  (void)weft_action_partner(action, WEFT_STAGES_MAX, &partner); /* it has a channel */
  const uint32_t other_agent = weft_op_in(action.op, WEFT_OPS_SEND)
                                   ? machine->agents.of_receiver[number]
                                   : machine->agents.of_sender[number];
  struct weft_timed_queue *other = &machine->queues[other_agent];
  if (other->head == other->end) {
    return;
  }
  const uint64_t other_record = weft_agent_record(&machine->agents, other->head);
  if (!weft_action_equal(actions[other_record], partner)) {
    return;
  }
  const struct weft_timed_channel *channel = &machine->channels[number];
  int64_t *input = &channel->inputs[action.microbatch];
  const int64_t made = *input;
  if (made >= 0 || made == WEFT_TIME_UNKNOWN) {
    return;
  }
  int64_t start = later(~made, later(queue->free_at, other->free_at));
  if (machine->issued != NULL) {
    const int64_t here = machine->issued[record], there = machine->issued[other_record];
    if (here == WEFT_TIME_UNKNOWN || there == WEFT_TIME_UNKNOWN) {
      return;
    }
    start = later(start, later(here, there));
  }
  assert(start >= 0);
  queue->free_at = other->free_at = start + channel->occupancy;
  queue->head++;
  other->head++;
  machine->queue_work[machine->queue_work_count++] = agent;
  machine->queue_work[machine->queue_work_count++] = other_agent;
  deliver_message(machine, channel, input, ~made, start);
}

static void advance_queue(struct weft_timed_machine *machine, uint32_t agent) {
  if (agent == WEFT_AGENT_NONE) {
    return;
  }
  machine->queue_work[machine->queue_work_count++] = agent;
  while (machine->queue_work_count > 0) {
    start_head(machine, machine->queue_work[--machine->queue_work_count]);
  }
}

/* A rank has come to a transfer of its row: it may start, as far as the row is concerned. */
static void issue_transfer(struct weft_timed_machine *machine, const struct weft_action *transfer,
                           int64_t time) {
  const struct weft_program *program = machine->placed.program;
  const uint32_t number =
      transfer->op != WEFT_OP_IDLE ? weft_channel_of(program, *transfer) : WEFT_EDGE_NONE;
  if (number != WEFT_EDGE_NONE) {
    machine->issued[transfer - program->actions] = time;
    advance_queue(machine, weft_op_in(transfer->op, WEFT_OPS_SEND)
                               ? machine->agents.of_sender[number]
                               : machine->agents.of_receiver[number]);
  }
}

/* ---- What an action makes ---- */

/* Hands it over on the rank, sends it, or leaves it for its SEND. */
static inline void hand_output(struct weft_timed_machine *machine, uint32_t rank,
                               struct weft_timed_channel *channel, int64_t *input, int64_t end) {
  if (channel->to == rank) {
    *input = end;
  } else if (!machine->options.has_transfers) {
    send_message(machine, channel, input, end);
  } else {
    *input = ~end;
    if (machine->queues != NULL) {
      advance_queue(machine, machine->agents.of_sender[channel - machine->channels]);
    }
  }
}

WEFT_GRAPH_INLINE void hand_outputs(struct weft_timed_machine *machine, uint32_t rank,
                                    struct weft_action action, int64_t end, bool single) {
  if (single) {
    const struct weft_timed_work *work = weft_timed_work_of(machine, action);
    if (work->out != NULL) {
      hand_output(machine, rank, work->out, &work->outputs[action.microbatch], end);
    }
    return;
  }
  const uint32_t count =
      weft_action_output_count(machine->placed.program->graph, action, machine->placed.stage_count);
  for (uint32_t k = 0; k < count; k++) {
    struct weft_timed_channel *channel =
        &machine->channels[weft_action_output_channel(machine->placed.program->graph, action, k)];
    hand_output(machine, rank, channel, &channel->inputs[action.microbatch], end);
  }
}

WEFT_GRAPH_INLINE void step_send(struct weft_timed_machine *machine, struct weft_action action,
                                 bool single) {
  struct weft_timed_channel *channel;
  if (single) {
    channel = machine->stages[action.stage].works[action.op == WEFT_OP_SEND_F ? 0 : 1].out;
  } else {
    channel = weft_timed_channel_of(machine, action);
  }
  if (channel == NULL || machine->queues != NULL) {
    return;
  }
  int64_t *input = &channel->inputs[action.microbatch];
  if (*input < 0 && *input != WEFT_TIME_UNKNOWN) { /* made, and not sent before */
    send_message(machine, channel, input, ~*input);
  }
}

/* Whether the record behind a compute is its SEND: it differs in the op alone. */
WEFT_GRAPH_INLINE bool is_its_send(const struct weft_action *compute) {
  const enum weft_op send_op = compute->op == WEFT_OP_F ? WEFT_OP_SEND_F : WEFT_OP_SEND_B;
  const struct weft_action difference = {.op = (uint8_t)(compute->op ^ send_op)};
  uint64_t words[2], expected;
  memcpy(words, compute, sizeof words);
  memcpy(&expected, &difference, sizeof expected);
  return (words[0] ^ words[1]) == expected;
}

/* Hands over what an action has made. Returns how many records are done with
 * that: its SEND nearly always comes next, and then it crosses at once. */
WEFT_GRAPH_INLINE uint64_t hand_single(struct weft_timed_machine *machine, uint32_t rank,
                                       const struct weft_timed_work *work,
                                       const struct weft_action *action, bool is_last,
                                       int64_t end) {
  struct weft_timed_channel *channel = work->out;
  if (channel == NULL) {
    return 1;
  }
  int64_t *input = &work->outputs[action->microbatch];
  if (work->to != rank && !is_last && is_its_send(action)) {
    send_message(machine, channel, input, end);
    return 2;
  }
  hand_output(machine, rank, channel, input, end);
  return 1;
}

/* ---- What an action waits for ---- */

/* Moves `begin` on to where all inputs are there; the first that is not known yet, or NULL. */
WEFT_GRAPH_INLINE const int64_t *await_inputs(const struct weft_timed_machine *machine,
                                              struct weft_action action, int64_t *begin,
                                              bool single) {
  const uint32_t count = weft_timed_input_count(machine, action, single);
  for (uint32_t k = 0; k < count; k++) {
    const int64_t *input = weft_timed_input(machine, action, k, single);
    if (*input < 0) {
      return input;
    }
    *begin = later(*begin, *input);
  }
  return NULL;
}

/* False if it has to wait. */
WEFT_GRAPH_INLINE bool run_overlap(struct weft_timed_machine *machine, uint32_t rank,
                                   struct weft_timed_rank *state, const struct weft_action *cell,
                                   bool single) {
  int64_t begin = state->clock;
  for (uint32_t k = 1; k <= cell->parts; k++) {
    if (!weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      continue;
    }
    begin = later(begin, weft_timed_awaited_at(machine, cell[k]));
    state->waits_for = await_inputs(machine, cell[k], &begin, single);
    if (state->waits_for != NULL) {
      return false;
    }
  }
  state->clock = begin + weft_timed_overlap(machine, rank, cell);
  for (uint32_t k = 1; k <= cell->parts; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      hand_outputs(machine, rank, cell[k], state->clock, single);
    }
  }
  state->at += 1 + cell->parts;
  return true;
}

/* ---- The run ---- */

/* Overlaps and collectives; false if it has to wait. */
static bool run_rare(struct weft_timed_machine *machine, uint32_t rank,
                     struct weft_timed_rank *state, const struct weft_action *cell) {
  if (cell->op == WEFT_OP_OVERLAP_F_B) {
    return machine->single ? run_overlap(machine, rank, state, cell, true)
                           : run_overlap(machine, rank, state, cell, false);
  }
  (void)weft_timed_collective(machine, state, *cell);
  state->at++;
  return true;
}

/* Position and clock are in variables: as far as the compiler knows, stores to
 * inputs might change them in the state. Plain: actions take the times of their
 * stages, no channel is shared, and all are single. */
WEFT_GRAPH_INLINE void step_rank(struct weft_timed_machine *machine, uint32_t rank, bool plain) {
  struct weft_timed_rank *state = &machine->ranks[rank];
  const struct weft_action *const actions = machine->placed.program->actions;
  const struct weft_action *at = actions + state->at, *const end = actions + state->end;
  const struct weft_timed_stage *const stages = machine->stages;
  int64_t clock = state->clock;
  while (at < end) {
    if (weft_op_in(at->op, WEFT_OPS_COMPUTE)) {
      const struct weft_timed_work *work = &stages[at->stage].works[at->op - WEFT_OP_F];
      int64_t begin = later(clock, weft_timed_awaited_at(machine, *at));
      __builtin_prefetch(at + AHEAD_RECORDS);
      if (!plain) {
        state->waits_for = await_inputs(machine, *at, &begin, false);
        if (state->waits_for != NULL) {
          break;
        }
      } else if (work->inputs != NULL) {
        const int64_t *input = &work->inputs[at->microbatch];
        __builtin_prefetch(input + AHEAD_NUMBERS);
        if (*input < 0) {
          state->waits_for = input;
          break;
        }
        begin = later(begin, *input);
      }
      clock = begin +
              (plain ? work->duration
                     : weft_timed_adjust(machine, rank, (uint64_t)(at - actions), work->duration));
      if (plain) {
        at += hand_single(machine, rank, work, at, at + 1 == end, clock);
      } else {
        hand_outputs(machine, rank, *at++, clock, false);
      }
    } else if (weft_op_in(at->op, WEFT_OPS_SEND | WEFT_OPS_RECV | WEFT_OP_BIT(WEFT_OP_IDLE))) {
      if (!plain && machine->issued != NULL) {
        issue_transfer(machine, at, clock);
      }
      if (weft_op_in(at->op, WEFT_OPS_SEND)) {
        step_send(machine, *at, plain);
      }
      at++;
    } else {
      state->at = (uint64_t)(at - actions);
      state->clock = clock;
      if (!run_rare(machine, rank, state, at)) {
        return;
      }
      at = actions + state->at;
      clock = state->clock;
    }
  }
  state->at = (uint64_t)(at - actions);
  state->clock = clock;
}

static void reset(struct weft_timed_machine *machine, const int64_t *starts) {
  const struct weft_program *program = machine->placed.program;
  int64_t *const inputs = machine->inputs;
  const size_t input_count = machine->input_count;
  for (size_t k = 0; k < input_count; k++) {
    inputs[k] = WEFT_TIME_UNKNOWN;
  }
  for (uint32_t k = 0; k < machine->channel_count; k++) {
    machine->channels[k].free_at = 0;
  }
  weft_timed_forget_awaited(machine);
  machine->work_count = 0;
  for (uint32_t r = program->rank_count; r-- > 0;) {
    const int64_t start = starts != NULL ? starts[r] : 0;
    machine->ranks[r] = (struct weft_timed_rank){.at = program->row_begin[r],
                                                 .end = program->row_begin[r + 1],
                                                 .clock = start,
                                                 .stream = start};
    machine->work[machine->work_count++] = r;
  }
  for (uint32_t a = program->rank_count; machine->queues != NULL && a < machine->agents.count;
       a++) {
    machine->queues[a] =
        (struct weft_timed_queue){machine->agents.begin[a], machine->agents.begin[a + 1], 0};
  }
  for (uint64_t i = 0; machine->issued != NULL && i < program->action_count; i++) {
    machine->issued[i] = WEFT_TIME_UNKNOWN;
  }
}

void weft_timed_forget_awaited(struct weft_timed_machine *machine) {
  memset(machine->unsharded_at, 0,
         weft_timed_awaited_count(&machine->placed) * sizeof *machine->unsharded_at);
}

bool weft_timed_run(struct weft_timed_machine *machine, const int64_t *starts) {
  assert(machine->inputs != NULL && machine->queue_work_count == 0);
  reset(machine, starts);
  const bool plain =
      machine->single && machine->options.timing->adjust == NULL && machine->queues == NULL;
  while (machine->work_count > 0) {
    const uint32_t rank = machine->work[--machine->work_count];
    if (plain) {
      step_rank(machine, rank, true);
    } else {
      step_rank(machine, rank, false);
    }
  }
  return !machine->lacks_memory;
}

bool weft_timed_is_over(const struct weft_timed_machine *machine) {
  assert(machine->work_count == 0);
  bool over = true;
  for (uint32_t r = 0; r < machine->placed.program->rank_count; r++) {
    over = over && machine->ranks[r].at == machine->ranks[r].end;
  }
  return over;
}

int64_t weft_timed_end(const struct weft_timed_machine *machine) {
  const uint32_t p = machine->placed.program->rank_count;
  int64_t end = weft_timed_is_over(machine) ? 0 : -1;
  for (uint32_t r = 0; end >= 0 && r < p; r++) {
    end = later(end, later(machine->ranks[r].clock, machine->ranks[r].stream));
  }
  for (uint32_t a = p; machine->queues != NULL && a < machine->agents.count; a++) {
    if (machine->queues[a].head < machine->queues[a].end) {
      return -1;
    }
  }
  return end;
}

/* ---- Setting up ---- */

/* The rank of a stage; after the ranks comes one that never waits, for stages that no rank has. */
static uint32_t owner_of(const struct weft_timed_machine *machine, uint32_t stage) {
  const struct weft_placed_program *placed = &machine->placed;
  const uint32_t rank = stage < placed->stage_count ? placed->rank_of[stage] : WEFT_RANK_NONE;
  return rank != WEFT_RANK_NONE ? rank : placed->program->rank_count;
}

static void open_channels(struct weft_timed_machine *machine) {
  for (uint32_t k = 0; k < machine->channel_count; k++) {
    struct weft_timed_channel *channel = &machine->channels[k];
    uint32_t from, to;
    weft_channel_ends(machine->placed.program->graph, k, &from, &to);
    *channel = (struct weft_timed_channel){
        .inputs = &machine->inputs[(size_t)k * machine->placed.microbatch_count],
        .from = owner_of(machine, from),
        .to = owner_of(machine, to)};
    machine->options.timing->channel(machine->options.timing->context, k, channel);
    channel->hop = channel->from != channel->to ? channel->hop : 0;
    assert(channel->occupancy >= 0 && channel->hop >= 0);
  }
}

/* False where there is more than a work has room for, or what is its SEND is not seen from the op
 * alone: the other end is no neighbour. */
static bool link_work(const struct weft_timed_machine *machine, struct weft_timed_work *work,
                      struct weft_action action) {
  const struct weft_graph *graph = machine->placed.program->graph;
  const uint32_t n = machine->placed.stage_count;
  if (weft_action_input_count(graph, action, n) > 0) {
    work->in = &machine->channels[weft_action_input_channel(graph, action, 0)];
    work->inputs = work->in->inputs;
    work->from = work->in->from;
  }
  if (weft_action_output_count(graph, action, n) == 0) {
    return weft_action_input_count(graph, action, n) <= 1;
  }
  work->out = &machine->channels[weft_action_output_channel(graph, action, 0)];
  work->outputs = work->out->inputs;
  work->to = work->out->to;
  const uint32_t next = action.op == WEFT_OP_F ? action.stage + 1u : action.stage - 1u;
  return weft_action_input_count(graph, action, n) <= 1 &&
         weft_action_output_count(graph, action, n) == 1 &&
         weft_action_output_at(graph, action, 0) == next;
}

static void link_stages(struct weft_timed_machine *machine) {
  const struct weft_timing *timing = machine->options.timing;
  machine->single = true;
  for (uint32_t s = 0; s < machine->placed.stage_count; s++) {
    for (enum weft_op op = WEFT_OP_F; op <= WEFT_OP_W; op++) {
      struct weft_timed_work *work = &machine->stages[s].works[op - WEFT_OP_F];
      machine->single = link_work(machine, work, weft_action_make(op, s, 0)) && machine->single;
      work->duration = timing->action(timing->context, op, s);
    }
  }
}

static enum weft_status open_queues(struct weft_timed_machine *machine,
                                    const struct weft_channel_model_info *model,
                                    struct weft_error *error) {
  const uint64_t records = machine->placed.program->action_count;
  struct weft_arena *arena = &machine->arena;
  if (!weft_agents_init(&machine->agents, arena, &machine->placed, model->at_rank, true)) {
    return weft_arena_status(arena, error);
  }
  machine->queues = weft_arena_allocate(arena, machine->agents.count, sizeof *machine->queues);
  /* A look pushes at most the queues of the transfer it starts. */
  machine->queue_work = weft_arena_allocate(arena, 2 * records + 2, sizeof(uint32_t));
  if (model->asynchronous) {
    machine->issued = weft_arena_allocate(arena, records, sizeof *machine->issued);
  }
  return weft_arena_status(arena, error);
}

enum weft_status weft_timed_init(struct weft_timed_machine *machine,
                                 const struct weft_timed_options *options,
                                 struct weft_error *error) {
  const struct weft_placed_program *placed = options->placed;
  const struct weft_program *program = placed->program;
  const struct weft_channel_model_info *model = weft_channel_model_info(options->channel);
  assert(placed->rank_of != NULL && options->timing != NULL && model != NULL);
  assert(placed->stage_count == program->stage_count &&
         placed->microbatch_count == program->microbatch_count);
  assert(options->has_transfers || options->channel == WEFT_CHANNEL_EDGE);
  *machine = (struct weft_timed_machine){.options = *options,
                                         .placed = *placed,
                                         .channel_count = weft_placed_edge_count(placed),
                                         .arena = {.allocator = options->allocator}};
  struct weft_arena *arena = &machine->arena;
  size_t pairs, inputs;
  WEFT_TRY(weft_pairs_count(program, &pairs, &inputs, error));
  machine->channels = weft_arena_allocate(arena, machine->channel_count, sizeof *machine->channels);
  machine->unsharded_at =
      weft_arena_allocate(arena, weft_timed_awaited_count(placed), sizeof *machine->unsharded_at);
  machine->stages = weft_arena_allocate(arena, placed->stage_count, sizeof *machine->stages);
  machine->ranks = weft_arena_allocate(arena, program->rank_count + 1u, sizeof *machine->ranks);
  machine->work = weft_arena_allocate(arena, program->rank_count, sizeof *machine->work);
  WEFT_TRY(weft_arena_status(arena, error));
  machine->inputs = weft_array_allocate(machine->arena.allocator, inputs, sizeof *machine->inputs);
  if (machine->inputs == NULL) {
    return weft_fail_memory(error, inputs * sizeof *machine->inputs);
  }
  machine->input_count = inputs;
  open_channels(machine);
  link_stages(machine);
  return model->at_rank != WEFT_SCOPE_EDGE ? open_queues(machine, model, error) : WEFT_OK;
}

void weft_timed_finish(struct weft_timed_machine *machine) {
  weft_array_free(machine->arena.allocator, machine->inputs, machine->input_count,
                  sizeof *machine->inputs);
  weft_array_free(machine->arena.allocator, machine->waits, machine->input_count,
                  sizeof *machine->waits);
  weft_arena_finish(&machine->arena);
}
