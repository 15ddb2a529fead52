/* Shared channels: all transfers of a rank (or of a rank with one other) go
 * through one queue, in program order, whether sent or received. A transfer
 * starts when both its ends are at the head of their queues and its data is
 * made: so a receive that comes early holds up the sends behind it. With the NCCL
 * models it also waits, at both ends, for the compute before it in the row. */
#include <stdlib.h>

#include <weft/support.h>

#include "sim/sim_run.h"

/* ---- Numbering the queues ---- */

/* An end of a boundary: the rank whose queue it goes through, and the other. */
struct edge_end {
  uint64_t key; /* own rank × 2^32 + other rank, and direction; per rank: own rank alone */
  uint32_t *queue;
};

static int compare_ends(const void *a, const void *b) {
  const struct edge_end *x = a, *y = b;
  return (x->key > y->key) - (x->key < y->key);
}

static uint64_t key_of(const struct weft_sim_run *run, uint32_t own, uint32_t other, bool sends) {
  const enum weft_channel_model channel = run->options->channel;
  const uint32_t peer = (other & UINT32_C(0x7fffffff)) << 1;
  return (uint64_t)own << 32 |
         (channel == WEFT_CHANNEL_NCCL_DIRECTED                               ? peer | sends
          : channel == WEFT_CHANNEL_PAIR || channel == WEFT_CHANNEL_NCCL_PAIR ? peer
                                                                              : 0);
}

/* Ends with the same key share a queue. */
static void number_queues(struct weft_sim_run *run, struct edge_end *ends) {
  const uint32_t n = run->program->stage_count;
  uint32_t count = 0;
  for (uint32_t edge = 0; edge < 2 * n; edge++) {
    const uint32_t stage = edge / 2, next = edge % 2 == 0 ? stage + 1 : stage - 1;
    const uint32_t from = run->rank_of[stage];
    const uint32_t to = next < n ? run->rank_of[next] : WEFT_RANK_NONE;
    ends[2 * edge] = (struct edge_end){key_of(run, from, to, true), &run->queue_of_sender[edge]};
    ends[2 * edge + 1] =
        (struct edge_end){key_of(run, to, from, false), &run->queue_of_receiver[edge]};
  }
  qsort(ends, 4 * (size_t)n, sizeof *ends, compare_ends);
  for (uint32_t k = 0; k < 4 * n; k++) {
    count += k > 0 && ends[k].key != ends[k - 1].key;
    *ends[k].queue = count;
  }
  run->queue_count = count + 1;
}

/* ---- Filling them ---- */

static bool is_transfer(struct weft_action action) {
  return weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV);
}

static uint32_t edge_of(struct weft_action action) {
  switch (action.op) {
    case WEFT_OP_SEND_F: return 2u * action.stage;
    case WEFT_OP_SEND_B: return 2u * action.stage + 1u;
    case WEFT_OP_RECV_F: return 2u * (action.stage - 1u);
    default: return 2u * (action.stage + 1u) + 1u;
  }
}

static bool is_on_boundary(const struct weft_sim_run *run, struct weft_action action) {
  struct weft_action partner;
  return is_transfer(action) && weft_action_partner(action, run->program->stage_count, &partner);
}

static uint32_t queue_of(const struct weft_sim_run *run, struct weft_action action) {
  return weft_op_in(action.op, WEFT_OPS_SEND) ? run->queue_of_sender[edge_of(action)]
                                              : run->queue_of_receiver[edge_of(action)];
}

/* Counting sort of the transfers by queue. Queue ends double as cursors. */
static void fill_queues(struct weft_sim_run *run) {
  const struct weft_program *program = run->program;
  uint32_t total = 0;
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (is_on_boundary(run, program->actions[i])) {
      run->queues[queue_of(run, program->actions[i])].end++;
    }
  }
  for (uint32_t q = 0; q < run->queue_count; q++) {
    const uint32_t size = run->queues[q].end;
    run->queues[q].head = run->queues[q].end = total;
    total += size;
  }
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (is_on_boundary(run, program->actions[i])) {
      run->entries[run->queues[queue_of(run, program->actions[i])].end++] = (uint32_t)i;
    }
  }
}

enum weft_status weft_sim_queues_init(struct weft_sim_run *run, struct weft_error *error) {
  const uint32_t n = run->program->stage_count;
  struct weft_arena *arena = &run->arena;
  const size_t edges = 2 * (size_t)n;
  struct edge_end *ends = weft_arena_allocate(arena, 2 * edges, sizeof *ends);
  run->queue_of_sender = weft_arena_allocate(arena, edges, sizeof(uint32_t));
  run->queue_of_receiver = weft_arena_allocate(arena, edges, sizeof(uint32_t));
  run->queues = weft_arena_allocate(arena, 2 * edges + 1, sizeof *run->queues);
  run->entries = weft_arena_allocate(arena, run->program->action_count, sizeof(uint32_t));
  /* A try pushes at most the queues of the transfer it starts. */
  run->queue_work =
      weft_arena_allocate(arena, 2 * run->program->action_count + 2, sizeof(uint32_t));
  if (run->options->channel >= WEFT_CHANNEL_NCCL_DIRECTED) {
    run->issued = weft_arena_allocate(arena, run->program->action_count, sizeof *run->issued);
  }
  WEFT_TRY(weft_arena_status(arena, error));
  number_queues(run, ends);
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
  const bool is_send = weft_op_in(action.op, WEFT_OPS_SEND);
  struct weft_action partner;
  (void)weft_action_partner(action, run->program->stage_count, &partner);
  const uint32_t other_number = queue_of(run, partner);
  struct weft_transfer_queue *other = &run->queues[other_number];
  if (other->head == other->end ||
      !weft_action_equal(run->program->actions[run->entries[other->head]], partner)) {
    return false;
  }
  const struct weft_action recv = is_send ? partner : action;
  const size_t input = weft_sim_input(run, recv.op == WEFT_OP_RECV_F, recv.stage, recv.microbatch);
  const int64_t made = run->inputs[input];
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
  queue->free = other->free = start + run->ticks.occupancy;
  queue->head++;
  other->head++;
  run->queue_work[run->queue_work_count++] = number;
  run->queue_work[run->queue_work_count++] = other_number;
  weft_sim_deliver(run, input, run->rank_of[recv.stage], ~made, start);
  return true;
}

static void try_queue(struct weft_sim_run *run, uint32_t number) {
  run->queue_work[run->queue_work_count++] = number;
  while (run->queue_work_count > 0) {
    (void)try_head(run, run->queue_work[--run->queue_work_count]);
  }
}

void weft_sim_queues_produced(struct weft_sim_run *run, uint32_t edge) {
  try_queue(run, run->queue_of_sender[edge]);
}

void weft_sim_queues_issue(struct weft_sim_run *run, const struct weft_action *transfer,
                           int64_t time) {
  if (is_on_boundary(run, *transfer)) {
    run->issued[transfer - run->program->actions] = time;
    try_queue(run, queue_of(run, *transfer));
  }
}
