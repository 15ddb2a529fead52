/* Shared channels: all transfers of a rank (or of a rank with one other) go
 * through one queue, in program order, whether sent or received. A transfer
 * starts when both its ends are at the head of their queues and its data is
 * made: so a receive that comes early holds up the sends behind it. With the NCCL
 * models it also waits, at both ends, for the compute before it in the row. */
#include <assert.h>
#include <stdlib.h>

#include <weft/support.h>

#include "sim/sim_run.h"

/* ---- Numbering the queues ---- */

/* An end of a channel: the rank whose queue it goes through, and the other. */
struct channel_end {
  uint64_t key; /* own rank × 2^32 + other rank, and direction; per rank: own rank alone */
  uint32_t *queue;
};

static int compare_ends(const void *a, const void *b) {
  const struct channel_end *x = a, *y = b;
  return (x->key > y->key) - (x->key < y->key);
}

static uint64_t key_of(const struct weft_sim_run *run, uint32_t own, uint32_t other, bool sends) {
  const enum weft_channel_scope scope = weft_channel_model_info(run->options->channel)->at_rank;
  const uint32_t peer = (other & UINT32_C(0x7fffffff)) << 1;
  assert(scope == WEFT_SCOPE_DIRECTED_PAIR || scope == WEFT_SCOPE_PAIR || scope == WEFT_SCOPE_RANK);
  return (uint64_t)own << 32 | (scope == WEFT_SCOPE_DIRECTED_PAIR ? peer | sends
                                : scope == WEFT_SCOPE_PAIR        ? peer
                                                                  : 0);
}

/* Ends with the same key share a queue. */
static void number_queues(struct weft_sim_run *run, struct channel_end *ends, uint32_t channels) {
  uint32_t count = 0;
  for (uint32_t k = 0; k < channels; k++) {
    const uint32_t from = run->channels[k].from, to = run->channels[k].to;
    ends[2 * k] = (struct channel_end){key_of(run, from, to, true), &run->queue_of_sender[k]};
    ends[2 * k + 1] =
        (struct channel_end){key_of(run, to, from, false), &run->queue_of_receiver[k]};
  }
  qsort(ends, 2 * (size_t)channels, sizeof *ends, compare_ends);
  for (uint32_t k = 0; k < 2 * channels; k++) {
    count += k > 0 && ends[k].key != ends[k - 1].key;
    *ends[k].queue = count;
  }
  run->queue_count = count + 1;
}

/* ---- Filling them ---- */

#define QUEUE_NONE UINT32_MAX

/* Of a transfer; QUEUE_NONE for all else, and for one that leads nowhere. */
static uint32_t queue_of(const struct weft_sim_run *run, struct weft_action action) {
  if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    return QUEUE_NONE;
  }
  const uint32_t channel = weft_channel_of(run->program, action);
  if (channel == WEFT_EDGE_NONE) {
    return QUEUE_NONE;
  }
  return weft_op_in(action.op, WEFT_OPS_SEND) ? run->queue_of_sender[channel]
                                              : run->queue_of_receiver[channel];
}

/* Counting sort of the transfers by queue. Queue ends double as cursors. */
static void fill_queues(struct weft_sim_run *run) {
  const struct weft_program *program = run->program;
  uint32_t *const queue_of_record = run->queue_of_record;
  uint32_t total = 0;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const uint32_t queue = queue_of(run, program->actions[i]);
    queue_of_record[i] = queue;
    if (queue != QUEUE_NONE) {
      run->queues[queue].end++;
    }
  }
  for (uint32_t q = 0; q < run->queue_count; q++) {
    const uint32_t size = run->queues[q].end;
    run->queues[q].head = run->queues[q].end = total;
    total += size;
  }
  for (uint64_t i = 0; i < program->action_count; i++) {
    const uint32_t queue = queue_of_record[i];
    if (queue != QUEUE_NONE) {
      run->entries[run->queues[queue].end++] = (uint32_t)i;
    }
  }
}

enum weft_status weft_sim_queues_init(struct weft_sim_run *run, struct weft_error *error) {
  struct weft_arena *arena = &run->arena;
  const uint32_t channels = weft_channel_count(run->graph, run->program->stage_count);
  const size_t ends_count = 2 * (size_t)channels;
  struct channel_end *ends = weft_arena_allocate(arena, ends_count, sizeof *ends);
  run->queue_of_sender = weft_arena_allocate(arena, channels, sizeof(uint32_t));
  run->queue_of_receiver = weft_arena_allocate(arena, channels, sizeof(uint32_t));
  run->queues = weft_arena_allocate(arena, ends_count + 1, sizeof *run->queues);
  run->entries = weft_arena_allocate(arena, run->program->action_count, sizeof(uint32_t));
  /* A try pushes at most the queues of the transfer it starts. */
  run->queue_work =
      weft_arena_allocate(arena, 2 * run->program->action_count + 2, sizeof(uint32_t));
  /* The stack is free until the run; NCCL's models look queues up during it. */
  run->queue_of_record = run->queue_work;
  if (weft_channel_model_info(run->options->channel)->asynchronous) {
    run->issued = weft_arena_allocate(arena, run->program->action_count, sizeof *run->issued);
    run->queue_of_record = weft_arena_allocate(arena, run->program->action_count, sizeof(uint32_t));
  }
  WEFT_TRY(weft_arena_status(arena, error));
  number_queues(run, ends, channels);
  fill_queues(run);
  return WEFT_OK;
}

void weft_sim_queues_reset(struct weft_sim_run *run) {
  uint32_t begin = 0;
  for (uint32_t q = 0; q < run->queue_count; q++) {
    run->queues[q].head = begin;
    run->queues[q].free = 0;
    begin = run->queues[q].end;
  }
  run->queue_work_count = 0;
  for (uint64_t i = 0; run->issued != NULL && i < run->program->action_count; i++) {
    run->issued[i] = WEFT_TIME_UNKNOWN;
  }
}

/* ---- Running ---- */

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* Starts the transfer at the head of a queue, if its other end is at the head
 * of its queue too and its data is made. */
static bool try_head(struct weft_sim_run *run, uint32_t number) {
  struct weft_transfer_queue *queue = &run->queues[number];
  if (queue->head == queue->end) {
    return false;
  }
  const struct weft_action action = run->program->actions[run->entries[queue->head]];
  const uint32_t channel_number = weft_channel_of(run->program, action);
  struct weft_action partner;
  (void)weft_action_partner(action, WEFT_STAGES_MAX, &partner); /* it has a channel */
  const uint32_t other_number = weft_op_in(action.op, WEFT_OPS_SEND)
                                    ? run->queue_of_receiver[channel_number]
                                    : run->queue_of_sender[channel_number];
  struct weft_transfer_queue *other = &run->queues[other_number];
  if (other->head == other->end ||
      !weft_action_equal(run->program->actions[run->entries[other->head]], partner)) {
    return false;
  }
  const struct weft_sim_channel *channel = &run->channels[channel_number];
  int64_t *input = &channel->inputs[action.microbatch];
  const int64_t made = *input;
  if (made >= 0 || made == WEFT_TIME_UNKNOWN) {
    return false;
  }
  int64_t start = later(~made, later(queue->free, other->free));
  if (run->issued != NULL) {
    const int64_t here = run->issued[run->entries[queue->head]];
    const int64_t there = run->issued[run->entries[other->head]];
    if (here == WEFT_TIME_UNKNOWN || there == WEFT_TIME_UNKNOWN) {
      return false;
    }
    start = later(start, later(here, there));
  }
  queue->free = other->free = start + channel->occupancy;
  queue->head++;
  other->head++;
  run->queue_work[run->queue_work_count++] = number;
  run->queue_work[run->queue_work_count++] = other_number;
  weft_sim_deliver(run, channel, input, ~made, start);
  return true;
}

static void try_queue(struct weft_sim_run *run, uint32_t number) {
  run->queue_work[run->queue_work_count++] = number;
  while (run->queue_work_count > 0) {
    (void)try_head(run, run->queue_work[--run->queue_work_count]);
  }
}

void weft_sim_queues_produced(struct weft_sim_run *run, uint32_t channel) {
  try_queue(run, run->queue_of_sender[channel]);
}

void weft_sim_queues_issue(struct weft_sim_run *run, const struct weft_action *transfer,
                           int64_t time) {
  const uint32_t queue = run->queue_of_record[transfer - run->program->actions];
  if (queue != QUEUE_NONE) {
    run->issued[transfer - run->program->actions] = time;
    try_queue(run, queue);
  }
}
