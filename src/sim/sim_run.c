/* The timed run. Every action begins when its rank has finished the one before
 * and its input has arrived; a transfer starts when its data is made and its
 * channel is free. All of these are maxima and sums, so the order in which ranks
 * are looked at does not matter: a rank is walked until its next input's arrival
 * is unknown, and again when that becomes known. No event queue is needed, and
 * the cost is linear.
 *
 * The walk is bare: it finds when inputs arrive, and when ranks end. Everything
 * else is found by a second walk, rank after rank (sim_record.c). */
#include "sim/sim_run.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "ir/lifetimes.h"
#include "ir/pairs.h"
#include "ir/program.h"

/* Ranks take turns, each with streams of its own: more than the hardware follows
 * by itself, so a walk asks for what it will need some actions later. */
enum { AHEAD_RECORDS = 32, AHEAD_NUMBERS = 16 };

/* For what walks are made of, and each without what it does not need. */
#define WALK_INLINE static inline __attribute__((always_inline))

/* ---- Ranks that wait ---- */

/* After the ranks comes one that never waits, for stages that no rank has. */
static inline uint32_t rank_or_nobody(const struct weft_sim_run *run, uint32_t rank) {
  return rank != WEFT_RANK_NONE ? rank : run->program->rank_count;
}

static inline void wake(struct weft_sim_run *run, uint32_t rank, const int64_t *input) {
  struct weft_rank_run *state = &run->ranks[rank];
  if (state->waits_for == input) {
    state->waits_for = NULL; /* once is enough */
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
    sum += weft_random_share(&random);
  }
  return sum - 6;
}

int64_t weft_sim_adjust(const struct weft_sim_run *run, uint32_t rank, uint64_t record,
                        int64_t duration) {
  assert(duration >= 0);
  double factor = 1;
  if (run->options->rank_factors != NULL) {
    factor = run->options->rank_factors[rank];
  }
  if (run->options->jitter > 0) {
    factor *= fmax(0, 1 + run->options->jitter * noise(run, record));
  }
  return llrint((double)duration * factor);
}

static int64_t overlap_ticks(const struct weft_sim_run *run, const struct weft_action *cell) {
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

int64_t weft_sim_overlap_duration(const struct weft_sim_run *run, uint32_t rank,
                                  const struct weft_action *cell) {
  assert(cell->op == WEFT_OP_OVERLAP_F_B);
  const int64_t duration = overlap_ticks(run, cell);
  return run->adjusts
             ? weft_sim_adjust(run, rank, (uint64_t)(cell - run->program->actions), duration)
             : duration;
}

/* ---- Transfers ---- */

/* Most programs never wait for a channel, and need no memory for it. */
static void remember_wait(struct weft_sim_run *run, const int64_t *input, int64_t wait) {
  if (run->waits == NULL) {
    run->waits = weft_array_allocate_zero(run->allocator, run->input_count, sizeof *run->waits);
  }
  if (run->waits == NULL) {
    run->lacks_memory = true;
    return;
  }
  run->waits[input - run->inputs] = wait;
}

WALK_INLINE void deliver(struct weft_sim_run *run, int64_t *input, uint32_t to, int64_t produced,
                         int64_t start, int64_t hop) {
  __builtin_prefetch(input + AHEAD_NUMBERS, 1);
  *input = start + hop;
  if (start > produced && run->keeps_waits) {
    remember_wait(run, input, start - produced);
  }
  wake(run, to, input);
}

void weft_sim_deliver(struct weft_sim_run *run, const struct weft_sim_channel *channel,
                      int64_t *input, int64_t produced, int64_t start) {
  deliver(run, input, channel->to, produced, start, channel->hop);
}

WALK_INLINE void send_over(struct weft_sim_run *run, const struct weft_work *work, int64_t *input,
                           int64_t produced) {
  const int64_t start = produced > *work->channel ? produced : *work->channel;
  *work->channel = start + run->ticks.occupancy;
  deliver(run, input, work->to, produced, start, run->ticks.occupancy + run->ticks.latency);
}

/* An action of a chain has made something: hand it over on the rank, send it, or
 * leave it for its SEND. */
WALK_INLINE void publish(struct weft_sim_run *run, uint32_t rank, struct weft_action action,
                         int64_t end) {
  const struct weft_work *work = weft_sim_work(run, action);
  if (work->outputs == NULL) {
    return;
  }
  int64_t *input = &work->outputs[action.microbatch];
  if (work->to == rank) {
    *input = end;
  } else if (!run->has_transfers) {
    send_over(run, work, input, end);
  } else {
    *input = ~end;
    if (run->queues != NULL) {
      weft_sim_queues_produced(run, 2u * action.stage + (action.op != WEFT_OP_F));
    }
  }
}

WALK_INLINE void send(struct weft_sim_run *run, struct weft_action action) {
  const struct weft_work *work =
      &run->stages[action.stage].works[action.op == WEFT_OP_SEND_F ? 0 : 1];
  if (work->outputs == NULL || run->queues != NULL) {
    return;
  }
  int64_t *input = &work->outputs[action.microbatch];
  if (*input >= 0 || *input == WEFT_TIME_UNKNOWN) {
    return; /* sent before, or before its producer: then the receiver is found stuck */
  }
  send_over(run, work, input, ~*input);
}

/* ---- Collectives: on a stream of their own, after the compute before them ---- */

int64_t weft_sim_collective(struct weft_sim_run *run, struct weft_rank_run *state,
                            struct weft_action action) {
  assert(weft_op_in(action.op, WEFT_OPS_SHARD));
  const struct weft_stage_ticks *ticks = weft_ticks_of(&run->ticks, action.stage);
  const int64_t duration = action.op == WEFT_OP_UNSHARD       ? ticks->unshard
                           : action.op == WEFT_OP_REDUCE_GRAD ? ticks->reduce_grad
                                                              : 0;
  const int64_t begin = state->clock > state->stream ? state->clock : state->stream;
  state->stream = begin + duration;
  if (action.op == WEFT_OP_UNSHARD) {
    run->unsharded_at[action.stage] = state->stream;
  }
  return begin;
}

/* ---- Overlaps ---- */

/* Moves `begin` on to where all inputs are there; false if one is unknown. */
WALK_INLINE bool await_parts(const struct weft_sim_run *run, struct weft_rank_run *state,
                             const struct weft_action *cell, bool graph, int64_t *begin) {
  for (uint32_t k = 1; k <= cell->parts; k++) {
    if (!weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      continue;
    }
    const struct weft_work *work = weft_sim_work(run, cell[k]);
    const int64_t unsharded = run->unsharded_at[cell[k].stage];
    *begin = unsharded > *begin ? unsharded : *begin;
    if (graph) {
      state->waits_for = weft_sim_await_edges(run, cell[k], begin);
      if (state->waits_for != NULL) {
        return false;
      }
    } else if (work->inputs != NULL) {
      const int64_t *input = &work->inputs[cell[k].microbatch];
      if (*input < 0) {
        state->waits_for = input;
        return false;
      }
      *begin = *input > *begin ? *input : *begin;
    }
  }
  return true;
}

/* False if it has to wait. */
WALK_INLINE bool run_overlap(struct weft_sim_run *run, uint32_t rank, struct weft_rank_run *state,
                             const struct weft_action *cell, bool graph) {
  int64_t begin = state->clock;
  if (!await_parts(run, state, cell, graph, &begin)) {
    return false;
  }
  state->clock = begin + weft_sim_overlap_duration(run, rank, cell);
  for (uint32_t k = 1; k <= cell->parts; k++) {
    if (!weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      continue;
    }
    if (graph) {
      weft_sim_publish_edges(run, rank, cell[k], state->clock);
    } else {
      publish(run, rank, cell[k], state->clock);
    }
  }
  state->at += 1 + cell->parts;
  return true;
}

/* ---- The walk ---- */

/* Overlaps and collectives; false if it has to wait. */
static bool run_rare(struct weft_sim_run *run, uint32_t rank, struct weft_rank_run *state,
                     const struct weft_action *cell) {
  if (cell->op == WEFT_OP_OVERLAP_F_B) {
    return run->graph != NULL ? run_overlap(run, rank, state, cell, true)
                              : run_overlap(run, rank, state, cell, false);
  }
  (void)weft_sim_collective(run, state, *cell);
  state->at++;
  return true;
}

/* Whether the record behind a compute is its SEND: it differs in the op alone. */
WALK_INLINE bool is_its_send(const struct weft_action *compute) {
  const enum weft_op send = compute->op == WEFT_OP_F ? WEFT_OP_SEND_F : WEFT_OP_SEND_B;
  const struct weft_action difference = {.op = (uint8_t)(compute->op ^ send)};
  uint64_t words[2], expected;
  memcpy(words, compute, sizeof words);
  memcpy(&expected, &difference, sizeof expected);
  return (words[0] ^ words[1]) == expected;
}

/* Hands over what an action has made. Returns how many records are done with
 * that: its SEND nearly always comes next, and then it crosses at once. */
WALK_INLINE uint64_t hand_over(struct weft_sim_run *run, uint32_t rank,
                               const struct weft_work *work, const struct weft_action *action,
                               bool is_last, int64_t end, bool plain) {
  if (work->outputs == NULL) {
    return 1;
  }
  if (plain && work->to != rank && !is_last && is_its_send(action)) {
    send_over(run, work, &work->outputs[action->microbatch], end);
    return 2;
  }
  publish(run, rank, *action, end);
  return 1;
}

/* Place and clock are in variables: as far as the compiler knows, stores to
 * inputs might change them in the state. Plain: actions take the times of the
 * costs, and no channel is shared. Graph: stages have any number of inputs. */
WALK_INLINE void walk_rank(struct weft_sim_run *run, uint32_t rank, bool plain, bool graph) {
  struct weft_rank_run *state = &run->ranks[rank];
  const struct weft_action *const actions = run->program->actions;
  const struct weft_action *at = actions + state->at, *const end = actions + state->end;
  const struct weft_sim_stage *const stages = run->stages;
  const int64_t *const unsharded_at = run->unsharded_at;
  int64_t clock = state->clock;
  while (at < end) {
    if (weft_op_in(at->op, WEFT_OPS_COMPUTE)) {
      const struct weft_work *work = &stages[at->stage].works[at->op - WEFT_OP_F];
      const int64_t unsharded = unsharded_at[at->stage];
      int64_t begin = clock > unsharded ? clock : unsharded;
      __builtin_prefetch(at + AHEAD_RECORDS);
      if (graph) {
        state->waits_for = weft_sim_await_edges(run, *at, &begin);
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
        begin = *input > begin ? *input : begin;
      }
      clock = begin + (!plain && run->adjusts
                           ? weft_sim_adjust(run, rank, (uint64_t)(at - actions), work->duration)
                           : work->duration);
      if (graph) {
        weft_sim_publish_edges(run, rank, *at++, clock);
      } else {
        at += hand_over(run, rank, work, at, at + 1 == end, clock, plain);
      }
    } else if (weft_op_in(at->op, WEFT_OPS_RECV | WEFT_OP_BIT(WEFT_OP_IDLE))) {
      if (!plain && run->issued != NULL) {
        weft_sim_queues_issue(run, at, clock);
      }
      at++;
    } else if (weft_op_in(at->op, WEFT_OPS_SEND)) {
      if (!plain && run->issued != NULL) {
        weft_sim_queues_issue(run, at, clock);
      }
      if (graph) {
        weft_sim_send_edge(run, *at);
      } else {
        send(run, *at);
      }
      at++;
    } else {
      state->at = (uint64_t)(at - actions);
      state->clock = clock;
      if (!run_rare(run, rank, state, at)) {
        return;
      }
      at = actions + state->at;
      clock = state->clock;
    }
  }
  state->at = (uint64_t)(at - actions);
  state->clock = clock;
}

static void walk_plain(struct weft_sim_run *run, uint32_t rank) {
  walk_rank(run, rank, true, false);
}

static void walk_any(struct weft_sim_run *run, uint32_t rank) {
  walk_rank(run, rank, false, false);
}

static void walk_graph(struct weft_sim_run *run, uint32_t rank) {
  walk_rank(run, rank, false, true);
}

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
  return weft_fail(error, WEFT_ERR_INVALID,
                   "verify the program to see what is missing, or the cycle",
                   "it never finishes: %" PRIu32 " of %" PRIu32
                   " ranks wait for an input that does not come%s%s",
                   stuck, run->program->rank_count, waits, stuck > NAMED_MAX ? "; ..." : "");
}

/* ---- Setting up ---- */

static void reset(struct weft_sim_run *run, const int64_t *starts) {
  const struct weft_program *program = run->program;
  int64_t *const inputs = run->inputs;
  const size_t input_count = run->input_count;
  const uint32_t channels = weft_channel_count(run->graph, program->stage_count);
  for (size_t k = 0; k < input_count; k++) {
    inputs[k] = WEFT_TIME_UNKNOWN;
  }
  for (uint32_t k = 0; k < channels; k++) {
    run->channel_free[k] = 0;
  }
  for (uint32_t s = 0; s < program->stage_count; s++) {
    run->unsharded_at[s] = 0;
  }
  run->work_count = 0;
  for (uint32_t r = program->rank_count; r-- > 0;) {
    const int64_t start = starts != NULL ? starts[r] : 0;
    run->ranks[r] = (struct weft_rank_run){.at = program->row_begin[r],
                                           .end = program->row_begin[r + 1],
                                           .clock = start,
                                           .stream = start};
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
    if (run->graph != NULL) {
      walk_graph(run, rank);
    } else if (run->adjusts || run->queues != NULL) {
      walk_any(run, rank);
    } else {
      walk_plain(run, rank);
    }
  }
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    if (run->ranks[r].at < run->ranks[r].end) {
      return fail_stuck(run, error);
    }
  }
  return run->lacks_memory ? weft_fail_memory(error, run->input_count * sizeof *run->waits)
                           : WEFT_OK;
}

/* Records `from` to `to` of a row; returns how many stages are new. */
static uint32_t place_some(const struct weft_program *program, uint32_t rank, uint64_t from,
                           uint64_t to, uint32_t *rank_of) {
  const uint64_t begin = program->row_begin[rank], size = program->row_begin[rank + 1] - begin;
  uint32_t found = 0;
  for (uint64_t i = from; i < to && i < size; i++) {
    const struct weft_action action = program->actions[begin + i];
    if (rank_of[action.stage] == WEFT_RANK_NONE && weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
      rank_of[action.stage] = rank;
      found++;
    }
  }
  return found;
}

/* As weft_placement_infer(), but rows take turns until every stage has its rank,
 * which is soon: to go through large programs takes longer than the work. A stage
 * that several ranks compute is no valid one; any of them will do here. */
static void place_stages(const struct weft_program *program, uint32_t *rank_of) {
  enum { TURN_RECORDS = 64 };
  uint32_t missing = program->stage_count;
  uint64_t longest = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const uint64_t size = program->row_begin[r + 1] - program->row_begin[r];
    longest = size > longest ? size : longest;
  }
  for (uint32_t s = 0; s < program->stage_count; s++) {
    rank_of[s] = WEFT_RANK_NONE;
  }
  for (uint64_t from = 0; from < longest && missing > 0; from += TURN_RECORDS) {
    for (uint32_t r = 0; r < program->rank_count; r++) {
      missing -= place_some(program, r, from, from + TURN_RECORDS, rank_of);
    }
  }
}

/* Whether what goes from one stage to the other crosses ranks. */
static int64_t hop_between(const struct weft_sim_run *run, uint32_t stage, uint32_t other) {
  return run->rank_of[stage] != run->rank_of[other] ? run->ticks.latency + run->ticks.occupancy : 0;
}

/* F takes what the stage before it made, and feeds the one after it. */
static struct weft_work forward_work(const struct weft_sim_run *run, uint32_t s) {
  const bool is_first = s == 0, is_last = s + 1 == run->program->stage_count;
  return (struct weft_work){
      .inputs = is_first ? NULL : &run->inputs[weft_sim_input(run, true, s, 0)],
      .outputs = is_last ? NULL : &run->inputs[weft_sim_input(run, true, s + 1, 0)],
      .channel = &run->channel_free[2 * s],
      .hop = is_first ? 0 : hop_between(run, s - 1, s),
      .from = is_first ? WEFT_RANK_NONE : run->rank_of[s - 1],
      .to = rank_or_nobody(run, is_last ? WEFT_RANK_NONE : run->rank_of[s + 1])};
}

/* B and I take what the stage after it made, and feed the one before it. */
static struct weft_work gradient_work(const struct weft_sim_run *run, uint32_t s) {
  const bool is_first = s == 0, is_last = s + 1 == run->program->stage_count;
  return (struct weft_work){
      .inputs = is_last ? NULL : &run->inputs[weft_sim_input(run, false, s, 0)],
      .outputs = is_first ? NULL : &run->inputs[weft_sim_input(run, false, s - 1, 0)],
      .channel = &run->channel_free[2 * s + 1],
      .hop = is_last ? 0 : hop_between(run, s, s + 1),
      .from = is_last ? WEFT_RANK_NONE : run->rank_of[s + 1],
      .to = rank_or_nobody(run, is_first ? WEFT_RANK_NONE : run->rank_of[s - 1])};
}

static void link_stages(struct weft_sim_run *run) {
  for (uint32_t s = 0; s < run->program->stage_count; s++) {
    const struct weft_stage_costs *costs = weft_costs_of(run->costs, s);
    struct weft_work *works = run->stages[s].works;
    works[0] = run->graph == NULL ? forward_work(run, s) : (struct weft_work){0};
    works[1] = works[2] = run->graph == NULL ? gradient_work(run, s) : (struct weft_work){0};
    works[3] = (struct weft_work){0};
    for (uint32_t op = 0; op < 4; op++) {
      works[op].duration = weft_ticks_of(&run->ticks, s)->compute[op];
      works[op].held_from_begin = weft_saved_from_begin(WEFT_OP_F + op, costs->activation);
      works[op].held_from_end =
          weft_saved_from_end(WEFT_OP_F + op, costs->activation, costs->activation_after_i,
                              weft_saves_for_backward(run->graph, run->has_backward, s));
    }
  }
}

static enum weft_status allocate(struct weft_sim_run *run, struct weft_error *error) {
  const struct weft_program *program = run->program;
  const uint32_t n = program->stage_count, p = program->rank_count;
  const uint32_t channels = weft_channel_count(run->graph, n);
  struct weft_arena *arena = &run->arena;
  WEFT_TRY(weft_pairs_count(program, &run->pairs, error));
  run->input_count = 2 * run->pairs;
  if (run->graph != NULL) {
    WEFT_TRY(weft_messages_count(program, &run->input_count, error));
  }
  run->rank_of = weft_arena_allocate(arena, n, sizeof *run->rank_of);
  run->inputs = weft_array_allocate(run->allocator, run->input_count, sizeof *run->inputs);
  run->channel_free = weft_arena_allocate(arena, channels, sizeof *run->channel_free);
  run->unsharded_at = weft_arena_allocate(arena, n, sizeof *run->unsharded_at);
  run->stages = weft_arena_allocate(arena, n, sizeof *run->stages);
  run->ranks = weft_arena_allocate(arena, p + 1u, sizeof *run->ranks);
  run->work = weft_arena_allocate(arena, p, sizeof *run->work);
  if (run->inputs == NULL) {
    return weft_fail_memory(error, run->input_count * sizeof *run->inputs);
  }
  WEFT_TRY(weft_arena_status(arena, error));
  place_stages(program, run->rank_of);
  link_stages(run);
  const bool shared = weft_channel_model_info(run->options->channel)->at_rank != WEFT_SCOPE_EDGE;
  if (run->graph != NULL || shared) {
    WEFT_TRY(weft_sim_channels_init(run, error));
  }
  return shared ? weft_sim_queues_init(run, error) : WEFT_OK;
}

enum weft_status weft_sim_run_init(struct weft_sim_run *run, const struct weft_allocator *allocator,
                                   const struct weft_program *program,
                                   const struct weft_costs *costs,
                                   const struct weft_sim_options *options,
                                   struct weft_error *error) {
  assert(program != NULL && costs != NULL && options != NULL);
  *run = (struct weft_sim_run){
      .allocator = allocator,
      .program = program,
      .graph = program->graph,
      .options = options,
      .arena = {.allocator = allocator},
      .has_transfers = program->level == WEFT_LEVEL_COMMS &&
                       weft_program_has(program, WEFT_OPS_SEND | WEFT_OPS_RECV),
      .has_backward = weft_program_has(program, WEFT_OPS_BACKWARD),
      .adjusts = options->rank_factors != NULL || options->jitter > 0};
  run->costs = weft_costs_of_stages(costs, program->rank_count, program->stage_count, &run->view);
  if (weft_channel_model_info(options->channel) == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "one of enum weft_channel_model",
                     "channel model %d does not exist", (int)options->channel);
  }
  if (!(options->jitter >= 0 && options->jitter < INFINITY)) {
    return weft_fail(error, WEFT_ERR_USAGE, "a share of an action's time, 0 or more",
                     "jitter %g is not possible", options->jitter);
  }
  if (options->channel != WEFT_CHANNEL_EDGE && !run->has_transfers && program->rank_count > 1) {
    return weft_fail(error, WEFT_ERR_USAGE, "lower the table with send/recv first",
                     "shared channels carry SENDs and RECVs, and this table has none");
  }
  WEFT_TRY(weft_ticks_init(&run->ticks, allocator, program, run->costs, options, error));
  return allocate(run, error);
}

void weft_sim_run_finish(struct weft_sim_run *run) {
  weft_ticks_finish(&run->ticks);
  weft_array_free(run->allocator, run->inputs, run->input_count, sizeof *run->inputs);
  weft_array_free(run->allocator, run->waits, run->input_count, sizeof *run->waits);
  weft_arena_finish(&run->arena);
}
