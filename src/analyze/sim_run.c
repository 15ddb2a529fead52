/* The timed run. Every action begins when its rank has finished the one before
 * and its input has arrived; a transfer starts when its data is made and its
 * channel is free. All of these are maxima and sums, so the order in which ranks
 * are looked at does not matter: a rank is walked until its next input's arrival
 * is unknown, and again when that becomes known. No event queue is needed, and
 * the cost is linear.
 *
 * The walk is compiled twice: bare, for the makespan, and with events, causes
 * and memory. */
#include "analyze/sim_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "ir/pairs.h"
#include "ir/program.h"

/* Ranks take turns, each with streams of its own: more than the hardware follows
 * by itself, so a walk asks for what it will need some actions later. */
enum { AHEAD_RECORDS = 32, AHEAD_NUMBERS = 16 };

/* For the walk, which is compiled once with and once without events. */
#define WALK_INLINE static inline __attribute__((always_inline))

/* ---- Ranks that wait ---- */

static inline void wake(struct weft_sim_run *run, uint32_t rank, const int64_t *input) {
  struct weft_rank_run *state = &run->ranks[rank];
  if (state->waits_for == input && !state->queued) {
    state->queued = true;
    run->work[run->work_count++] = rank;
  }
}

/* ---- Durations ---- */

/* Deterministic noise: the same for a seed and a record, whatever the order of
 * the walk. Both are scrambled first, or neighbouring seeds would share most of
 * their numbers. Sum of uniforms, near enough to a normal distribution. */
static double noise(const struct weft_sim_run *run, uint64_t record) {
  struct weft_random scramble = {.state = run->options->seed};
  struct weft_random random = {.state = weft_random_next(&scramble) ^ record};
  random.state = weft_random_next(&random);
  double sum = 0;
  for (int k = 0; k < 12; k++) {
    sum += (double)(weft_random_next(&random) >> 11) * 0x1p-53;
  }
  return sum - 6;
}

static int64_t adjust(const struct weft_sim_run *run, uint32_t rank, uint64_t record,
                      int64_t duration) {
  double factor = 1;
  if (run->options->rank_factors != NULL) {
    factor = run->options->rank_factors[rank];
  }
  if (run->options->jitter > 0) {
    factor *= fmax(0, 1 + run->options->jitter * noise(run, record));
  }
  return llrint((double)duration * factor);
}

static int64_t overlap_duration(const struct weft_sim_run *run, const struct weft_action *cell) {
  int64_t sum = 0;
  for (uint32_t k = 1; k <= cell->parts; k++) {
    const struct weft_stage_ticks *ticks = weft_ticks_of(&run->ticks, cell[k].stage);
    if (cell[k].op == WEFT_OP_F && ticks->overlap >= 0) {
      return ticks->overlap;
    }
    sum += weft_op_in(cell[k].op, WEFT_OPS_COMPUTE) ? ticks->compute[cell[k].op - WEFT_OP_F] : 0;
  }
  return sum;
}

/* ---- Memory ---- */

static void hold(struct weft_rank_record *record, double activation, double other, int64_t at) {
  record->activation += activation;
  record->memory += activation + other;
  if (record->activation > record->peak_activation) {
    record->peak_activation = record->activation;
    record->peak_at = at;
  }
  record->peak_memory = fmax(record->peak_memory, record->memory);
}

static void remember_begin(struct weft_sim_run *run, struct weft_rank_record *record,
                           struct weft_action action, int64_t begin) {
  const struct weft_stage_costs *costs = weft_costs_of(run->costs, action.stage);
  if (action.op == WEFT_OP_F) {
    hold(record, costs->activation, 0, begin);
  } else if (!run->has_gradients[action.stage]) {
    run->has_gradients[action.stage] = true;
    hold(record, 0, costs->gradients, begin);
  }
}

static void remember_end(struct weft_sim_run *run, struct weft_rank_record *record,
                         struct weft_action action, int64_t end) {
  const struct weft_stage_costs *costs = weft_costs_of(run->costs, action.stage);
  switch (action.op) {
    case WEFT_OP_F: hold(record, run->has_backward ? 0 : -costs->activation, 0, end); break;
    case WEFT_OP_B: hold(record, -costs->activation, 0, end); break;
    case WEFT_OP_I: hold(record, costs->activation_after_i - costs->activation, 0, end); break;
    case WEFT_OP_W: hold(record, -costs->activation_after_i, 0, end); break;
    default: break;
  }
}

/* ---- Causes ---- */

/* The rank was idle from its clock to `begin`, because of an input or of
 * parameters that came late. */
static void blame(struct weft_rank_record *record, const struct weft_sim_run *run,
                  const struct weft_rank_run *state, const int64_t *input, int64_t unsharded,
                  int64_t begin) {
  const int64_t gap = begin - state->clock;
  if (!record->has_begun) {
    record->has_begun = true;
    record->first_begin = begin;
    return; /* the start is reckoned from the first begin of all ranks */
  }
  if (gap <= 0) {
    return;
  }
  if (input == NULL || unsharded > *input) {
    record->idle[WEFT_IDLE_UNSHARD] += gap;
    return;
  }
  const size_t number = (size_t)(input - run->inputs);
  const struct weft_transfer *transfer = &run->transfers[number];
  const int64_t held_up = transfer->start - transfer->produced;
  const int64_t channel = held_up < gap ? held_up : gap;
  record->idle[WEFT_IDLE_CHANNEL] += channel;
  record->idle[number < run->pairs ? WEFT_IDLE_FORWARD : WEFT_IDLE_GRADIENT] += gap - channel;
}

/* ---- Transfers ---- */

static inline void deliver(struct weft_sim_run *run, int64_t *input, uint32_t to, int64_t produced,
                           int64_t start) {
  __builtin_prefetch(input + AHEAD_NUMBERS, 1);
  *input = start + run->ticks.occupancy + run->ticks.latency;
  if (run->transfers != NULL) {
    struct weft_transfer *transfer = &run->transfers[input - run->inputs];
    __builtin_prefetch(transfer + AHEAD_NUMBERS, 1);
    *transfer = (struct weft_transfer){.produced = produced, .start = start};
  }
  if (to != WEFT_RANK_NONE) {
    wake(run, to, input);
  }
}

void weft_sim_deliver(struct weft_sim_run *run, size_t input, uint32_t to, int64_t produced,
                      int64_t start) {
  deliver(run, &run->inputs[input], to, produced, start);
}

static inline void send_over(struct weft_sim_run *run, int64_t *input, uint32_t to, uint32_t edge,
                             int64_t produced) {
  int64_t *channel = &run->edge_free[edge];
  const int64_t start = produced > *channel ? produced : *channel;
  *channel = start + run->ticks.occupancy;
  deliver(run, input, to, produced, start);
}

/* An action has made something: hand it over on the rank, send it, or leave it
 * for its SEND. */
WALK_INLINE void publish(struct weft_sim_run *run, uint32_t rank, struct weft_action action,
                         int64_t end) {
  const struct weft_stage_run *stage = &run->stages[action.stage];
  const bool forward = action.op == WEFT_OP_F;
  int64_t *inputs = forward ? stage->next : stage->previous;
  if (inputs == NULL || action.op == WEFT_OP_W) {
    return;
  }
  const uint32_t to = forward ? stage->next_rank : stage->previous_rank;
  int64_t *input = &inputs[action.microbatch];
  if (to == rank) {
    *input = end;
    if (run->transfers != NULL) {
      run->transfers[input - run->inputs] = (struct weft_transfer){.produced = end, .start = end};
    }
  } else if (!run->has_transfers) {
    send_over(run, input, to, 2u * action.stage + !forward, end);
  } else {
    *input = ~end;
    if (run->queues != NULL) {
      weft_sim_queues_produced(run, 2u * action.stage + !forward);
    }
  }
}

static inline void send(struct weft_sim_run *run, struct weft_action action) {
  const struct weft_stage_run *stage = &run->stages[action.stage];
  const bool forward = action.op == WEFT_OP_SEND_F;
  int64_t *inputs = forward ? stage->next : stage->previous;
  if (inputs == NULL || run->queues != NULL) {
    return;
  }
  int64_t *input = &inputs[action.microbatch];
  if (*input >= 0 || *input == WEFT_TIME_UNKNOWN) {
    return; /* sent before, or before its producer: then the receiver is found stuck */
  }
  send_over(run, input, forward ? stage->next_rank : stage->previous_rank,
            2u * action.stage + !forward, ~*input);
}

/* ---- Collectives: on a stream of their own, after the compute before them ---- */

static void run_collective(struct weft_sim_run *run, uint32_t rank, struct weft_rank_run *state,
                           struct weft_action action) {
  const struct weft_stage_ticks *ticks = weft_ticks_of(&run->ticks, action.stage);
  const int64_t duration = action.op == WEFT_OP_UNSHARD       ? ticks->unshard
                           : action.op == WEFT_OP_REDUCE_GRAD ? ticks->reduce_grad
                                                              : 0;
  const int64_t begin = state->clock > state->stream ? state->clock : state->stream;
  state->stream = begin + duration;
  if (action.op == WEFT_OP_UNSHARD) {
    run->stages[action.stage].unsharded_at = state->stream;
  }
  if (run->events != NULL) {
    const struct weft_stage_costs *costs = weft_costs_of(run->costs, action.stage);
    struct weft_rank_record *record = &run->records[rank];
    run->events[state->event++] = (struct weft_event){
        .rank = rank, .record = (uint32_t)state->at, .begin = begin, .end = state->stream};
    if (duration > 0 && !record->has_begun) {
      record->has_begun = true;
      record->first_begin = begin;
    }
    hold(record, 0,
         action.op == WEFT_OP_UNSHARD   ? costs->parameters
         : action.op == WEFT_OP_RESHARD ? -costs->parameters
                                        : -costs->gradients,
         begin);
  }
}

/* ---- The walk ---- */

/* Where the arrival of an action's input is written; NULL if it needs none. */
static inline const int64_t *input_of(const struct weft_stage_run *stage,
                                      struct weft_action action) {
  const int64_t *inputs = action.op == WEFT_OP_F   ? stage->activations
                          : action.op != WEFT_OP_W ? stage->gradients
                                                   : NULL;
  return inputs != NULL ? &inputs[action.microbatch] : NULL;
}

/* When a cell can begin, given its inputs, and the input that comes last; false
 * if an arrival is unknown. */
WALK_INLINE bool find_begin(const struct weft_sim_run *run, struct weft_rank_run *state,
                            const struct weft_action *cell, int64_t *begin, const int64_t **latest,
                            int64_t *unsharded) {
  *latest = NULL;
  *unsharded = INT64_MIN;
  for (uint32_t k = cell->parts > 0; k <= cell->parts; k++) {
    if (!weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      continue;
    }
    const struct weft_stage_run *stage = &run->stages[cell[k].stage];
    const int64_t *input = input_of(stage, cell[k]);
    *unsharded = stage->unsharded_at > *unsharded ? stage->unsharded_at : *unsharded;
    if (input == NULL) {
      continue;
    }
    __builtin_prefetch(input + AHEAD_NUMBERS);
    if (*input < 0) {
      state->waits_for = input;
      return false;
    }
    if (*latest == NULL || *input > **latest) {
      *latest = input;
    }
  }
  *begin = *latest != NULL && **latest > state->clock ? **latest : state->clock;
  *begin = *unsharded > *begin ? *unsharded : *begin;
  return true;
}

static void write_events(struct weft_sim_run *run, uint32_t rank, struct weft_rank_run *state,
                         const struct weft_action *cell, int64_t begin, int64_t end) {
  struct weft_rank_record *record = &run->records[rank];
  record->busy += end - begin;
  for (uint32_t k = 0; k <= cell->parts; k++) {
    run->events[state->event++] = (struct weft_event){
        .rank = rank, .record = (uint32_t)state->at + k, .begin = begin, .end = end};
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      remember_begin(run, record, cell[k], begin);
    }
  }
  for (uint32_t k = 0; k <= cell->parts; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      remember_end(run, record, cell[k], end);
    }
  }
}

/* One compute cell, plain or overlap; false if it has to wait. */
WALK_INLINE bool run_compute(struct weft_sim_run *run, uint32_t rank, struct weft_rank_run *state,
                             const struct weft_action *cell, bool full) {
  const int64_t *latest;
  int64_t begin, unsharded;
  if (!find_begin(run, state, cell, &begin, &latest, &unsharded)) {
    return false;
  }
  int64_t duration = cell->parts > 0
                         ? overlap_duration(run, cell)
                         : run->stages[cell->stage].ticks->compute[cell->op - WEFT_OP_F];
  if (run->adjusts) {
    duration = adjust(run, rank, state->at, duration);
  }
  const int64_t end = begin + duration;
  if (full) {
    blame(&run->records[rank], run, state, latest, unsharded, begin);
    write_events(run, rank, state, cell, begin, end);
  }
  state->clock = end;
  for (uint32_t k = cell->parts > 0; k <= cell->parts; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      publish(run, rank, cell[k], end);
    }
  }
  return true;
}

/* A plain action without a record of it: the whole of what the makespan needs. */
WALK_INLINE bool run_bare(struct weft_sim_run *run, uint32_t rank, struct weft_rank_run *state,
                          struct weft_action action) {
  const struct weft_stage_run *stage = &run->stages[action.stage];
  const int64_t *input = input_of(stage, action);
  int64_t begin = state->clock > stage->unsharded_at ? state->clock : stage->unsharded_at;
  if (input != NULL) {
    __builtin_prefetch(input + AHEAD_NUMBERS);
    if (*input < 0) {
      state->waits_for = input;
      return false;
    }
    begin = *input > begin ? *input : begin;
  }
  int64_t duration = stage->ticks->compute[action.op - WEFT_OP_F];
  if (run->adjusts) {
    duration = adjust(run, rank, state->at, duration);
  }
  state->clock = begin + duration;
  publish(run, rank, action, state->clock);
  return true;
}

WALK_INLINE void walk(struct weft_sim_run *run, uint32_t rank, bool full) {
  struct weft_rank_run *state = &run->ranks[rank];
  state->waits_for = NULL;
  while (state->at < state->end) {
    const struct weft_action *cell = &run->program->actions[state->at];
    __builtin_prefetch(cell + AHEAD_RECORDS);
    if (full) {
      __builtin_prefetch(&run->events[state->event + AHEAD_RECORDS], 1);
    }
    if (!full && weft_op_in(cell->op, WEFT_OPS_COMPUTE)) {
      if (!run_bare(run, rank, state, *cell)) {
        return;
      }
    } else if (weft_op_in(cell->op, WEFT_OPS_COMPUTE | WEFT_OP_BIT(WEFT_OP_OVERLAP_F_B))) {
      if (!run_compute(run, rank, state, cell, full)) {
        return;
      }
    } else if (weft_op_in(cell->op, WEFT_OPS_SHARD)) {
      run_collective(run, rank, state, *cell);
    } else if (weft_op_in(cell->op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
      /* Times of transfers are written once all are known. */
      state->event += full;
      if (weft_op_in(cell->op, WEFT_OPS_SEND)) {
        send(run, *cell);
      }
    }
    state->at += weft_cell_records(cell);
  }
}

static void walk_bare(struct weft_sim_run *run, uint32_t rank) { walk(run, rank, false); }

static void walk_full(struct weft_sim_run *run, uint32_t rank) { walk(run, rank, true); }

/* ---- A rank that cannot finish ---- */

static enum weft_status fail_stuck(const struct weft_sim_run *run, struct weft_error *error) {
  enum { NAMED_MAX = 4 };
  char waits[320] = "";
  size_t used = 0;
  uint32_t stuck = 0;
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    const struct weft_rank_run *state = &run->ranks[r];
    if (state->at == state->end || ++stuck > NAMED_MAX) {
      continue;
    }
    char cell[64];
    const int added =
        snprintf(waits + used, sizeof waits - used, "; rank %" PRIu32 " waits before %s", r,
                 weft_action_format(&run->program->actions[state->at], cell, sizeof cell));
    used += added > 0 ? (size_t)added : 0;
    used = used < sizeof waits ? used : sizeof waits - 1;
  }
  return weft_fail(error, WEFT_ERR_INVALID, "'weft verify' shows what is missing, or the circle",
                   "it never finishes: %" PRIu32 " of %" PRIu32
                   " ranks wait for an input that does not come%s%s",
                   stuck, run->program->rank_count, waits, stuck > NAMED_MAX ? "; ..." : "");
}

/* ---- Setting up ---- */

static void reset(struct weft_sim_run *run, const int64_t *starts) {
  const struct weft_program *program = run->program;
  for (size_t k = 0; k < 2 * run->pairs; k++) {
    run->inputs[k] = WEFT_TIME_UNKNOWN;
  }
  for (uint32_t s = 0; s < program->stage_count; s++) {
    run->edge_free[2 * s] = run->edge_free[2 * s + 1] = 0;
    run->stages[s].unsharded_at = 0;
  }
  run->work_count = 0;
  for (uint32_t r = program->rank_count; r-- > 0;) {
    const int64_t start = starts != NULL ? starts[r] : 0;
    run->ranks[r] =
        (struct weft_rank_run){.at = program->row_begin[r],
                               .end = program->row_begin[r + 1],
                               .event = run->event_begin != NULL ? run->event_begin[r] : 0,
                               .clock = start,
                               .stream = start,
                               .queued = true};
    run->work[run->work_count++] = r;
  }
  if (run->queues != NULL) {
    weft_sim_queues_reset(run);
  }
}

enum weft_status weft_sim_run_all(struct weft_sim_run *run, const int64_t *starts,
                                  struct weft_error *error) {
  reset(run, starts);
  while (run->work_count > 0) {
    const uint32_t rank = run->work[--run->work_count];
    run->ranks[rank].queued = false;
    if (run->events != NULL) {
      walk_full(run, rank);
    } else {
      walk_bare(run, rank);
    }
  }
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    if (run->ranks[r].at < run->ranks[r].end) {
      return fail_stuck(run, error);
    }
  }
  return WEFT_OK;
}

static void link_stages(struct weft_sim_run *run) {
  const uint32_t n = run->program->stage_count;
  for (uint32_t s = 0; s < n; s++) {
    const bool is_first = s == 0, is_last = s + 1 == n;
    run->stages[s] = (struct weft_stage_run){
        .activations = is_first ? NULL : &run->inputs[weft_sim_input(run, true, s, 0)],
        .gradients = is_last ? NULL : &run->inputs[weft_sim_input(run, false, s, 0)],
        .next = is_last ? NULL : &run->inputs[weft_sim_input(run, true, s + 1, 0)],
        .previous = is_first ? NULL : &run->inputs[weft_sim_input(run, false, s - 1, 0)],
        .next_rank = is_last ? WEFT_RANK_NONE : run->rank_of[s + 1],
        .previous_rank = is_first ? WEFT_RANK_NONE : run->rank_of[s - 1],
        .ticks = weft_ticks_of(&run->ticks, s)};
  }
}

static enum weft_status allocate(struct weft_sim_run *run, struct weft_error *error) {
  const struct weft_program *program = run->program;
  const uint32_t n = program->stage_count, p = program->rank_count;
  struct weft_arena *arena = &run->arena;
  WEFT_TRY(weft_pairs_count(program, &run->pairs, error));
  run->rank_of = weft_arena_allocate(arena, n, sizeof *run->rank_of);
  run->inputs = weft_array_allocate(run->allocator, 2 * run->pairs, sizeof *run->inputs);
  run->edge_free = weft_arena_allocate(arena, 2 * (size_t)n, sizeof *run->edge_free);
  run->stages = weft_arena_allocate(arena, n, sizeof *run->stages);
  run->ranks = weft_arena_allocate(arena, p, sizeof *run->ranks);
  run->work = weft_arena_allocate(arena, p, sizeof *run->work);
  if (run->rank_of == NULL || run->inputs == NULL || run->edge_free == NULL ||
      run->stages == NULL || run->ranks == NULL || run->work == NULL) {
    return weft_fail_memory(error, 2 * run->pairs * sizeof *run->inputs);
  }
  (void)weft_placement_infer(program, run->rank_of);
  link_stages(run);
  return run->options->channel == WEFT_CHANNEL_EDGE ? WEFT_OK : weft_sim_queues_init(run, error);
}

enum weft_status weft_sim_run_init(struct weft_sim_run *run, const struct weft_allocator *allocator,
                                   const struct weft_program *program,
                                   const struct weft_costs *costs,
                                   const struct weft_sim_options *options,
                                   struct weft_error *error) {
  *run = (struct weft_sim_run){
      .allocator = allocator,
      .program = program,
      .costs = costs,
      .options = options,
      .arena = {.allocator = allocator},
      .has_transfers = program->level == WEFT_LEVEL_COMMS &&
                       weft_program_has(program, WEFT_OPS_SEND | WEFT_OPS_RECV),
      .has_backward = weft_program_has(program, WEFT_OPS_BACKWARD),
      .adjusts = options->rank_factors != NULL || options->jitter > 0};
  if (options->channel != WEFT_CHANNEL_EDGE && !run->has_transfers && program->rank_count > 1) {
    return weft_fail(error, WEFT_ERR_USAGE, "lower the table with send/recv first",
                     "shared channels carry SENDs and RECVs, and this table has none");
  }
  WEFT_TRY(weft_ticks_init(&run->ticks, allocator, program, costs, options, error));
  return allocate(run, error);
}

void weft_sim_run_finish(struct weft_sim_run *run) {
  weft_ticks_finish(&run->ticks);
  weft_array_free(run->allocator, run->inputs, 2 * run->pairs, sizeof *run->inputs);
  weft_array_free(run->allocator, run->transfers, 2 * run->pairs, sizeof *run->transfers);
  weft_arena_finish(&run->arena);
}
