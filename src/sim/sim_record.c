/* Memory, causes of idle time, receive buffers and events, once the run
 * (sim_run.c) has found when every input arrives. Then ranks no longer depend on
 * each other: each row is gone through once, from front to back, and what is
 * needed on the way is that of one rank and used again for the next. So nothing
 * is written per action but events, and those only on request: in large
 * programs fresh memory costs more than the work. */
#include "sim/sim_run.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "ir/program.h"

/* For what is made several times: with events and without, with single inputs and with several. */
#define ROW_INLINE static inline __attribute__((always_inline))

enum { AHEAD_RECORDS = 32, MOVES_PER_BUFFER = 16 };

/* A row on the way. All of it is copied from and to its owners, so that the
 * compiler may keep it in registers. */
struct row {
  uint32_t rank;
  int64_t clock;
  struct weft_rank_record record;
  struct weft_event *event; /* the next */
  size_t buffer_count;      /* inputs from other ranks that it has consumed */
  size_t buffer_moves;      /* to keep them in order */
  size_t message_count;     /* changes of bytes */
  int64_t taken_last;       /* the latest time of all */
  bool is_unsorted;
};

/* ---- Receive buffers ---- */

/* Brings the last time to its place; returns how many others it moved. */
static size_t insert_last(int64_t *times, size_t last) {
  const int64_t time = times[last];
  size_t at = last;
  for (; at > 0 && times[at - 1] > time; at--) {
    times[at] = times[at - 1];
  }
  times[at] = time;
  return last - at;
}

/* The buffer of an input from another rank is taken when its transfer starts,
 * and free when the action that consumes it has ended. Inputs are consumed nearly
 * in the order of their arrival, so that to keep them in order is nearly free;
 * where it is not, they are sorted at the end. */
ROW_INLINE void remember_buffer(const struct weft_sim_recorder *recorder, struct row *row,
                                int64_t taken, int64_t end) {
  if (row->buffer_count < recorder->buffers_max) {
    recorder->freed[row->buffer_count] = end;
    recorder->taken[row->buffer_count] = taken;
    if (taken >= row->taken_last) {
      row->taken_last = taken;
    } else if (row->buffer_moves < MOVES_PER_BUFFER * row->buffer_count) {
      row->buffer_moves += insert_last(recorder->taken, row->buffer_count);
    } else {
      row->is_unsorted = true;
    }
    row->buffer_count++;
  }
}

ROW_INLINE void remember_buffers(const struct weft_sim_recorder *recorder, struct row *row,
                                 struct weft_action action, int64_t end, bool single) {
  const struct weft_timed_machine *machine = &recorder->run->machine;
  const uint32_t count = weft_timed_input_count(machine, action, single);
  for (uint32_t k = 0; k < count; k++) {
    const struct weft_timed_channel *channel = weft_timed_channel_in(machine, action, k, single);
    const int64_t taken = *weft_timed_input(machine, action, k, single) - channel->hop;
    if (channel->from != row->rank) {
      remember_buffer(recorder, row, taken, end);
    }
    if (recorder->messages != NULL && row->message_count < 2 * recorder->messages_max) {
      struct weft_bytes_change *change = &recorder->messages[row->message_count];
      change[0] = (struct weft_bytes_change){taken, channel->bytes};
      change[1] = (struct weft_bytes_change){end, -channel->bytes};
      row->message_count += 2;
    }
  }
}

/* ---- Causes ---- */

ROW_INLINE void attribute_idle(const struct weft_sim_run *run, struct row *row,
                               const int64_t *input, int64_t unsharded, int64_t begin) {
  const struct weft_timed_machine *machine = &run->machine;
  const int64_t gap = weft_rank_record_begin(&row->record, row->clock, begin, input, unsharded);
  if (gap > 0 && input != NULL) {
    weft_rank_record_blame(&row->record, gap,
                           machine->waits != NULL ? machine->waits[input - machine->inputs] : 0,
                           weft_timed_is_forward(machine, input));
  }
}

/* ---- Events ---- */

ROW_INLINE void write_event(const struct weft_sim_run *run, struct row *row,
                            const struct weft_action *action, int64_t begin, int64_t end) {
  *row->event++ = (struct weft_event){.rank = row->rank,
                                      .record = (uint32_t)(action - run->program->actions),
                                      .begin = begin,
                                      .end = end};
}

/* A SEND and its RECV have the times of their transfer; 0 if it never starts. */
ROW_INLINE void write_transfer(const struct weft_sim_run *run, struct row *row,
                               const struct weft_action *action) {
  const struct weft_timed_channel *channel = weft_timed_channel_of(&run->machine, *action);
  const int64_t arrival = channel != NULL ? channel->inputs[action->microbatch] : -1;
  const bool arrives = arrival >= 0;
  write_event(run, row, action, arrives ? arrival - channel->hop : 0, arrives ? arrival : 0);
}

/* ---- Rows ---- */

/* When a cell begins, and the input that comes last, or NULL. */
ROW_INLINE int64_t find_begin(const struct weft_timed_machine *machine, const struct row *row,
                              const struct weft_action *cell, uint32_t first, uint32_t parts,
                              bool single, const int64_t **latest, int64_t *unsharded) {
  *latest = NULL;
  *unsharded = INT64_MIN;
  for (uint32_t k = first; k <= parts; k++) {
    if (!weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      continue;
    }
    const int64_t there = weft_timed_awaited_at(machine, cell[k]);
    *unsharded = there > *unsharded ? there : *unsharded;
    const uint32_t count = weft_timed_input_count(machine, cell[k], single);
    for (uint32_t j = 0; j < count; j++) {
      const int64_t *input = weft_timed_input(machine, cell[k], j, single);
      *latest = *latest == NULL || *input > **latest ? input : *latest;
    }
  }
  const int64_t begin = *latest != NULL && **latest > row->clock ? **latest : row->clock;
  return *unsharded > begin ? *unsharded : begin;
}

/* A compute action is one part, number 0; those of an overlap count from 1. */
ROW_INLINE void record_cell(const struct weft_sim_recorder *recorder, struct row *row,
                            const struct weft_action *cell, bool overlap, bool events,
                            bool single) {
  const struct weft_sim_run *run = recorder->run;
  const uint32_t first = overlap ? 1 : 0, parts = overlap ? cell->parts : 0;
  const int64_t *latest;
  int64_t unsharded;
  const struct weft_timed_machine *machine = &run->machine;
  const int64_t begin = find_begin(machine, row, cell, first, parts, single, &latest, &unsharded);
  const struct weft_timed_work *first_work = overlap ? NULL : weft_timed_work_of(machine, *cell);
  const int64_t duration =
      overlap ? weft_timed_overlap(machine, row->rank, cell)
              : weft_timed_adjust(machine, row->rank, (uint64_t)(cell - run->program->actions),
                                  first_work->duration);
  const int64_t end = begin + duration;
  assert(begin >= row->clock && duration >= 0);
  attribute_idle(run, row, latest, unsharded, begin);
  row->record.busy += duration;
  row->clock = end;
  for (uint32_t k = 0; k <= parts && events; k++) {
    write_event(run, row, &cell[k], begin, end);
  }
  for (uint32_t k = first; k <= parts; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      const struct weft_timed_work *work =
          overlap ? weft_timed_work_of(machine, cell[k]) : first_work;
      weft_rank_memory_begin(&row->record.memory, &recorder->memory, &cell[k], &work->saved, begin);
    }
  }
  for (uint32_t k = first; k <= parts; k++) {
    if (weft_op_in(cell[k].op, WEFT_OPS_COMPUTE)) {
      const struct weft_timed_work *work =
          overlap ? weft_timed_work_of(machine, cell[k]) : first_work;
      weft_rank_memory_activation(&row->record.memory, work->saved.from_end, end);
      remember_buffers(recorder, row, cell[k], end, single);
    }
  }
}

ROW_INLINE void record_collective(const struct weft_sim_recorder *recorder, struct row *row,
                                  const struct weft_action *action, bool events) {
  struct weft_timed_rank *state = &recorder->run->machine.ranks[row->rank];
  struct weft_rank_record *record = &row->record;
  const struct weft_stage_costs *costs = weft_costs_of(recorder->run->costs, action->stage);
  state->clock = row->clock;
  const int64_t begin = weft_timed_collective(&recorder->run->machine, state, *action);
  if (events) {
    write_event(recorder->run, row, action, begin, state->stream);
  }
  if (state->stream > begin && !record->has_begun) {
    record->has_begun = true;
    record->first_begin = begin;
  }
  weft_rank_memory_collective(&record->memory, (enum weft_op)action->op, costs, begin,
                              state->stream);
}

ROW_INLINE void record_row(const struct weft_sim_recorder *recorder, uint32_t rank, bool events,
                           bool single) {
  const struct weft_program *program = recorder->run->program;
  struct weft_timed_rank *state = &recorder->run->machine.ranks[rank];
  const struct weft_action *at = &program->actions[program->row_begin[rank]];
  const struct weft_action *const end = &program->actions[program->row_begin[rank + 1]];
  struct row row = {.rank = rank,
                    .taken_last = INT64_MIN,
                    .record = recorder->records[rank],
                    .event = events ? &recorder->events[recorder->event_begin[rank]] : NULL};
  state->stream = 0;
  while (at < end) {
    if (weft_op_in(at->op, WEFT_OPS_COMPUTE)) {
      __builtin_prefetch(at + AHEAD_RECORDS);
      record_cell(recorder, &row, at, false, events, single);
    } else if (weft_op_in(at->op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
      if (events) {
        write_transfer(recorder->run, &row, at);
      }
    } else if (at->op == WEFT_OP_OVERLAP_F_B) {
      record_cell(recorder, &row, at, true, events, single);
      at += at->parts;
    } else if (weft_op_in(at->op, WEFT_OPS_SHARD)) {
      record_collective(recorder, &row, at, events);
    }
    at++;
  }
  state->clock = row.clock;
  weft_rank_memory_advance(&row.record.memory, INT64_MAX);
  if (row.is_unsorted) {
    qsort(recorder->taken, row.buffer_count, sizeof *recorder->taken, weft_compare_times);
  }
  row.record.buffers_peak = weft_buffers_peak(recorder->taken, recorder->freed, row.buffer_count);
  row.record.message_bytes_peak = weft_bytes_peak(recorder->messages, row.message_count);
  row.record.clock = row.clock;
  row.record.stream = state->stream;
  recorder->records[rank] = row.record;
}

void weft_sim_record_all(struct weft_sim_recorder *recorder) {
  assert(recorder->records != NULL && weft_timed_is_over(&recorder->run->machine));
  assert(recorder->events == NULL || recorder->event_begin != NULL);
  const struct weft_program *program = recorder->run->program;
  struct weft_timed_machine *machine = &recorder->run->machine;
  weft_timed_forget_awaited(machine);
  weft_rank_records_init(recorder->records, program, &recorder->memory, recorder->run->rank_of);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    if (!machine->single) {
      record_row(recorder, r, recorder->events != NULL, false);
    } else if (recorder->events != NULL) {
      record_row(recorder, r, true, true);
    } else {
      record_row(recorder, r, false, true);
    }
  }
}

/* ---- Setting up ---- */

/* The most messages that a rank takes, from another rank or from all. (A program that consumes an
 * input twice is no valid one; it has one buffer all the same.) */
static size_t count_messages(const struct weft_timed_machine *machine, bool of_others,
                             size_t *counts) {
  const uint32_t p = machine->placed.program->rank_count;
  size_t most = 0;
  memset(counts, 0, p * sizeof *counts);
  for (uint32_t k = 0; k < machine->channel_count; k++) {
    const struct weft_timed_channel *channel = &machine->channels[k];
    if (channel->to < p && !(of_others && channel->from == channel->to)) {
      counts[channel->to] += machine->placed.microbatch_count;
      most = counts[channel->to] > most ? counts[channel->to] : most;
    }
  }
  return most;
}

static bool has_sizes(const struct weft_sim_run *run) {
  for (uint32_t k = 0; run->keeps_messages && k < run->machine.channel_count; k++) {
    if (run->machine.channels[k].bytes > 0) {
      return true;
    }
  }
  return false;
}

enum weft_status weft_sim_recorder_init(struct weft_sim_recorder *recorder,
                                        struct weft_sim_run *run, struct weft_error *error) {
  const struct weft_program *program = run->program;
  assert(run->machine.inputs != NULL && run->machine.placed.program == program);
  *recorder = (struct weft_sim_recorder){.run = run};
  recorder->records =
      weft_arena_allocate(&run->arena, program->rank_count, sizeof *recorder->records);
  WEFT_TRY(weft_memory_model_init(&recorder->memory, &run->arena, program, run->costs, error));
  size_t *counts = weft_arena_allocate(&run->arena, program->rank_count, sizeof *counts);
  WEFT_TRY(weft_arena_status(&run->arena, error));
  recorder->buffers_max = count_messages(&run->machine, true, counts);
  if (has_sizes(run)) {
    recorder->messages_max = count_messages(&run->machine, false, counts);
    recorder->messages =
        weft_arena_allocate(&run->arena, 2 * recorder->messages_max, sizeof *recorder->messages);
    WEFT_TRY(weft_arena_status(&run->arena, error));
  }
  const size_t numbers = 2 * recorder->buffers_max;
  recorder->taken = weft_array_allocate(run->arena.allocator, numbers, sizeof *recorder->taken);
  if (recorder->taken == NULL) {
    return weft_fail_memory(error, numbers * sizeof *recorder->taken);
  }
  recorder->freed = recorder->taken + recorder->buffers_max;
  return WEFT_OK;
}

void weft_sim_recorder_finish(struct weft_sim_recorder *recorder) {
  weft_array_free(recorder->run->arena.allocator, recorder->taken, 2 * recorder->buffers_max,
                  sizeof *recorder->taken);
}
