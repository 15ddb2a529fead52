/* A program and costs as the machine takes them (ir/timed_machine.h): what takes how many ticks, and
 * on which rank each stage is. What is not found by stepping the program is found by a second scan,
 * rank after rank (sim_record.c). */
#include "sim/sim_run.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include <weft/support.h>

#include "ir/lifetimes.h"
#include "ir/program.h"

/* ---- Durations ---- */

/* Deterministic noise: the same for a seed and a record, whatever the order of
 * the run. Both are scrambled first, or neighbouring seeds would share most of
 * their numbers. Sum of uniforms, near enough to a normal distribution. */
static double noise(const struct weft_sim_run *run, uint64_t record) {
  struct weft_random scramble = {.state = run->options.seed};
  struct weft_random random = {.state = weft_random_next(&scramble) ^ record};
  random.state = weft_random_next(&random);
  double sum = 0;
  for (int k = 0; k < 12; k++) {
    sum += weft_random_share(&random);
  }
  return sum - 6;
}

static int64_t adjust(const void *context, uint32_t rank, uint64_t record, int64_t duration) {
  const struct weft_sim_run *run = context;
  assert(duration >= 0);
  double factor = 1;
  if (run->options.rank_factors != NULL) {
    factor = run->options.rank_factors[rank];
  }
  if (run->options.jitter > 0) {
    factor *= fmax(0, 1 + run->options.jitter * noise(run, record));
  }
  return llrint((double)duration * factor);
}

static int64_t action_ticks(const void *context, enum weft_op op, uint32_t stage) {
  const struct weft_sim_run *run = context;
  return weft_ticks_of(&run->ticks, stage)->compute[op - WEFT_OP_F];
}

static int64_t overlap_ticks(const void *context, const struct weft_action *cell) {
  const struct weft_sim_run *run = context;
  assert(cell->op == WEFT_OP_OVERLAP_F_B);
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

static void channel_ticks(const void *context, uint32_t number,
                          struct weft_timed_channel *channel) {
  const struct weft_sim_run *run = context;
  const struct weft_hop_costs *hop = &run->costs->hop;
  const double bytes = weft_channel_bytes(run->program->graph, number);
  channel->occupancy = weft_ticks_occupancy(&run->ticks, hop, bytes);
  channel->hop = run->ticks.latency + channel->occupancy;
  channel->bytes = bytes >= 0 ? bytes : hop->bytes;
}

/* ---- A rank that cannot finish ---- */

static enum weft_status fail_stuck(const struct weft_sim_run *run, struct weft_error *error) {
  enum { NAMED_MAX = 4 };
  WEFT_SCOPED_TEXT waits = {.allocator = run->arena.allocator};
  uint32_t stuck = 0;
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    const struct weft_timed_rank *state = &run->machine.ranks[r];
    if (state->at < state->end && ++stuck <= NAMED_MAX) {
      char cell[64];
      weft_text_addf(&waits, "; rank %" PRIu32 " waits before %s", r,
                     weft_action_format(&run->program->actions[state->at], cell, sizeof cell));
    }
  }
  WEFT_TRY(weft_text_status(&waits, error));
  return weft_fail(error, WEFT_ERR_INVALID,
                   "verify the program to see what is missing, or the cycle",
                   "it never finishes: %" PRIu32 " of %" PRIu32
                   " ranks wait for an input that does not come%s%s",
                   stuck, run->program->rank_count, waits.data != NULL ? waits.data : "",
                   stuck > NAMED_MAX ? "; ..." : "");
}

enum weft_status weft_sim_run_all(struct weft_sim_run *run, const int64_t *starts,
                                  struct weft_error *error) {
  const struct weft_timed_machine *machine = &run->machine;
  assert(machine->options.timing == &run->timing); /* the run has not moved */
  if (!weft_timed_run(&run->machine, starts)) {
    return weft_fail_memory(error, machine->input_count * sizeof *machine->waits);
  }
  return weft_timed_is_over(machine) ? WEFT_OK : fail_stuck(run, error);
}

/* ---- Setting up ---- */

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
  const uint64_t longest = weft_program_longest_row(program);
  for (uint32_t s = 0; s < program->stage_count; s++) {
    rank_of[s] = WEFT_RANK_NONE;
  }
  for (uint64_t from = 0; from < longest && missing > 0; from += TURN_RECORDS) {
    for (uint32_t r = 0; r < program->rank_count; r++) {
      missing -= place_some(program, r, from, from + TURN_RECORDS, rank_of);
    }
  }
}

static void set_memory(struct weft_sim_run *run) {
  const struct weft_program *program = run->program;
  const bool trains = weft_program_has(program, WEFT_OPS_BACKWARD);
  for (uint32_t s = 0; s < program->stage_count; s++) {
    const struct weft_stage_costs *costs = weft_costs_of(run->costs, s);
    for (enum weft_op op = WEFT_OP_F; op <= WEFT_OP_W; op++) {
      run->machine.stages[s].works[op - WEFT_OP_F].saved =
          weft_saved_by(weft_action_make(op, s, 0), costs->activation, costs->activation_after_i,
                        program->graph, trains);
    }
  }
}

static enum weft_status open_machine(struct weft_sim_run *run, bool has_transfers, bool keeps_waits,
                                     struct weft_error *error) {
  const struct weft_program *program = run->program;
  run->rank_of = weft_arena_allocate(&run->arena, program->stage_count, sizeof *run->rank_of);
  WEFT_TRY(weft_arena_status(&run->arena, error));
  place_stages(program, run->rank_of);
  const struct weft_placed_program placed = {.program = program,
                                             .stage_count = program->stage_count,
                                             .microbatch_count = program->microbatch_count,
                                             .rank_of = run->rank_of};
  const bool adjusts = run->options.rank_factors != NULL || run->options.jitter > 0;
  run->timing = (struct weft_timing){.context = run,
                                     .action = action_ticks,
                                     .overlap = overlap_ticks,
                                     .channel = channel_ticks,
                                     .adjust = adjusts ? adjust : NULL};
  WEFT_TRY(weft_timed_init(&run->machine,
                           &(struct weft_timed_options){
                               .allocator = run->arena.allocator,
                               .placed = &placed,
                               .timing = &run->timing,
                               .has_transfers = has_transfers,
                               .channel = has_transfers ? run->options.channel : WEFT_CHANNEL_EDGE,
                               .keeps_waits = keeps_waits},
                           error));
  set_memory(run);
  return WEFT_OK;
}

enum weft_status weft_sim_run_init(struct weft_sim_run *run, const struct weft_allocator *allocator,
                                   const struct weft_program *program,
                                   const struct weft_costs *costs,
                                   const struct weft_sim_options *options, bool keeps_waits,
                                   struct weft_error *error) {
  assert(program != NULL && costs != NULL);
  *run = (struct weft_sim_run){.program = program,
                               .options = options != NULL ? *options : weft_sim_options_default(),
                               .keeps_messages = program->graph != NULL,
                               .arena = {.allocator = allocator},
                               .machine = {.arena = {.allocator = allocator}}};
  run->costs = weft_costs_of_stages(costs, program->rank_count, program->stage_count, &run->view);
  const bool has_transfers = program->level == WEFT_LEVEL_COMMS &&
                             weft_program_has(program, WEFT_OPS_SEND | WEFT_OPS_RECV);
  if (weft_channel_model_info(run->options.channel) == NULL) {
    return weft_fail(error, WEFT_ERR_USAGE, "one of enum weft_channel_model",
                     "channel model %d does not exist", (int)run->options.channel);
  }
  if (!(run->options.jitter >= 0 && run->options.jitter < INFINITY)) {
    return weft_fail(error, WEFT_ERR_USAGE, "a share of an action's time, 0 or more",
                     "jitter %g is not possible", run->options.jitter);
  }
  if (run->options.channel != WEFT_CHANNEL_EDGE && !has_transfers && program->rank_count > 1) {
    return weft_fail(error, WEFT_ERR_USAGE, "lower the table with send/recv first",
                     "shared channels carry SENDs and RECVs, and this table has none");
  }
  WEFT_TRY(weft_ticks_init(&run->ticks, &run->arena, program, run->costs, &run->options, error));
  return open_machine(run, has_transfers, keeps_waits, error);
}

void weft_sim_run_finish(struct weft_sim_run *run) {
  weft_timed_finish(&run->machine);
  weft_arena_finish(&run->arena);
}
