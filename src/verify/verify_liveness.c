/* Verify, liveness: can the ranks wait for each other forever?
 *
 * Every rank takes its actions in order, every channel has one sender and
 * carries messages in order, and what an action waits for stays true once it is
 * true. So whichever rank moves first, the same actions become possible in the
 * end: one run decides all interleavings (tests/verify/test_verify_brute_force.c
 * holds that against trying them all). The run moves a rank until it must
 * wait, and looks at a waiting rank again only when the channel or the data it
 * waits for has changed; that makes it linear.
 *
 * A SEND puts its message into the channel when it is reached; message j is
 * done with when taken + capacity > j. With capacity 0 that is when it has
 * been received (rendezvous), with K when fewer than K older ones wait, with
 * no limit at once. A full channel's newest message is never its oldest, so
 * putting it in early changes nothing.
 *
 * A table without SEND and RECV waits for data alone: it is there as soon as
 * it is made. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <weft/support.h>

#include "verify/message_queue.h"

struct rank_state {
  uint64_t at; /* record */
  uint64_t end;
  uint32_t message; /* number on its channel of the SEND it is at */
  bool offered;     /* that SEND's message is in the channel */
  bool queued;      /* in the work list */
};

struct run {
  struct weft_verify_context *context;
  bool has_transfers;
  uint32_t capacity; /* of a channel */
  struct weft_message_queue queue;
  uint32_t *sent;  /* [channel] messages put in */
  uint32_t *taken; /* [channel] messages received */
  uint8_t *made;   /* tables: [n][m] bit 0 activation, bit 1 gradient */
  struct rank_state *ranks;
  uint32_t *work; /* ranks to look at, a stack */
  uint32_t work_count;
};

static const struct weft_action *record(const struct run *run, uint64_t i) {
  return &run->context->program->actions[i];
}

static void wake(struct run *run, uint32_t rank) {
  if (rank == WEFT_RANK_NONE) {
    return;
  }
  struct rank_state *state = &run->ranks[rank];
  if (!state->queued && state->at < state->end) {
    state->queued = true;
    run->work[run->work_count++] = rank;
  }
}

/* ---- Programs: channels ---- */

static uint32_t channel_of_send(const struct run *run, struct weft_action send) {
  return run->queue.channel_of[weft_edge_of_send(send)];
}

/* The oldest message of a channel, or NULL. */
static const struct weft_action *oldest(const struct run *run, uint32_t channel) {
  if (run->taken[channel] == run->sent[channel]) {
    return NULL;
  }
  return record(run, run->queue.messages[run->queue.first[channel] + run->taken[channel]]);
}

static uint32_t receiver_of(const struct run *run, struct weft_action send) {
  struct weft_action recv;
  return weft_action_partner(send, run->context->stage_count, &recv)
             ? run->context->owner[recv.stage]
             : WEFT_RANK_NONE;
}

static bool try_send(struct run *run, struct rank_state *state, struct weft_action send) {
  const uint32_t channel = channel_of_send(run, send);
  if (!state->offered) {
    state->offered = true;
    state->message = run->sent[channel]++;
    if (state->message == run->taken[channel]) {
      wake(run, receiver_of(run, send));
    }
  }
  if (run->capacity != WEFT_CAPACITY_UNLIMITED &&
      (uint64_t)run->taken[channel] + run->capacity <= state->message) {
    return false;
  }
  state->offered = false;
  return true;
}

static bool try_receive(struct run *run, struct weft_action recv) {
  struct weft_action send;
  if (!weft_action_partner(recv, run->context->stage_count, &send)) {
    return true;
  }
  const uint32_t channel = channel_of_send(run, send);
  const struct weft_action *first = oldest(run, channel);
  if (first == NULL || !weft_action_equal(*first, send)) {
    return false;
  }
  run->taken[channel]++;
  wake(run, run->context->owner[send.stage]); /* its SEND may be done now */
  const struct weft_action *next = oldest(run, channel);
  if (next != NULL) {
    wake(run, receiver_of(run, *next));
  }
  return true;
}

/* ---- Tables: data ---- */

static uint8_t made_bit(struct weft_action action) { return action.op == WEFT_OP_F ? 1 : 2; }

/* The rank an action waits for, or WEFT_RANK_NONE if its input is there. */
static uint32_t missing_input(const struct run *run, struct weft_action action, uint32_t rank) {
  uint32_t producer;
  if (!weft_op_in(action.op, WEFT_OPS_COMPUTE) ||
      !weft_action_input(action, run->context->stage_count, &producer)) {
    return WEFT_RANK_NONE;
  }
  const uint32_t from = run->context->owner[producer];
  const uint64_t pair = weft_pair_index(run->context, producer, action.microbatch);
  /* Order on the rank itself is the order check's business. */
  return from == rank || (run->made[pair] & made_bit(action)) != 0 ? WEFT_RANK_NONE : from;
}

static void make(struct run *run, struct weft_action action) {
  uint32_t consumer;
  if (!weft_op_in(action.op, WEFT_OP_BIT(WEFT_OP_F) | WEFT_OPS_GRADIENT)) {
    return;
  }
  run->made[weft_pair_index(run->context, action.stage, action.microbatch)] |= made_bit(action);
  if (weft_action_output(action, run->context->stage_count, &consumer)) {
    wake(run, run->context->owner[consumer]);
  }
}

static bool try_compute(struct run *run, uint32_t rank, const struct weft_action *cell) {
  for (uint32_t k = 0; k <= cell->parts; k++) {
    if (missing_input(run, cell[k], rank) != WEFT_RANK_NONE) {
      return false;
    }
  }
  for (uint32_t k = 0; k <= cell->parts; k++) {
    make(run, cell[k]);
  }
  return true;
}

/* ---- The run ---- */

static bool try_cell(struct run *run, uint32_t rank, const struct weft_action *cell) {
  if (!run->has_transfers) {
    return try_compute(run, rank, cell);
  }
  if (weft_op_in(cell->op, WEFT_OPS_SEND)) {
    return try_send(run, &run->ranks[rank], *cell);
  }
  return !weft_op_in(cell->op, WEFT_OPS_RECV) || try_receive(run, *cell);
}

/* Until every rank has finished or must wait. */
static void run_on(struct run *run) {
  while (run->work_count > 0) {
    const uint32_t rank = run->work[--run->work_count];
    struct rank_state *state = &run->ranks[rank];
    state->queued = false;
    while (state->at < state->end && try_cell(run, rank, record(run, state->at))) {
      state->at += weft_cell_records(record(run, state->at));
    }
  }
}

static void run_all(struct run *run) {
  const struct weft_program *program = run->context->program;
  for (uint32_t r = program->rank_count; r-- > 0;) {
    run->ranks[r] =
        (struct rank_state){.at = program->row_begin[r], .end = program->row_begin[r + 1]};
    wake(run, r);
  }
  run_on(run);
}

/* ---- The wait graph ---- */

/* What a stuck rank needs: another rank to do something. */
struct wait {
  uint32_t rank;
  struct weft_action action; /* what that rank must do */
  char reason[96];
};

static struct wait wait_for_send(const struct run *run, const struct rank_state *state) {
  const struct weft_action send = *record(run, state->at);
  const uint32_t channel = channel_of_send(run, send);
  const struct weft_action *first = oldest(run, channel);
  const bool own = run->taken[channel] == state->message;
  struct wait wait = {.rank = receiver_of(run, *first)};
  (void)weft_action_partner(*first, run->context->stage_count, &wait.action);
  (void)snprintf(wait.reason, sizeof wait.reason, "%s",
                 own ? "its message has not been received" : "its channel is full");
  return wait;
}

static struct wait wait_for_receive(const struct run *run, const struct rank_state *state) {
  struct wait wait = {.rank = WEFT_RANK_NONE};
  struct weft_action send = {0};
  (void)weft_action_partner(*record(run, state->at), run->context->stage_count, &send);
  const uint32_t channel = channel_of_send(run, send);
  const struct weft_action *first = oldest(run, channel);
  bool is_sent = false;
  for (uint32_t k = run->taken[channel]; k < run->sent[channel] && !is_sent; k++) {
    is_sent =
        weft_action_equal(*record(run, run->queue.messages[run->queue.first[channel] + k]), send);
  }
  if (is_sent) {
    char older[32];
    wait.rank = receiver_of(run, *first);
    (void)weft_action_partner(*first, run->context->stage_count, &wait.action);
    (void)snprintf(wait.reason, sizeof wait.reason,
                   "its message is on the channel behind that of %s",
                   weft_action_format(first, older, sizeof older));
  } else {
    wait.rank = run->context->owner[send.stage];
    wait.action = send;
    (void)snprintf(wait.reason, sizeof wait.reason, "its message has not been sent");
  }
  return wait;
}

static struct wait wait_for_data(const struct run *run, uint32_t rank,
                                 const struct weft_action *cell) {
  struct wait wait = {.rank = WEFT_RANK_NONE};
  for (uint32_t k = 0; k <= cell->parts && wait.rank == WEFT_RANK_NONE; k++) {
    uint32_t producer = 0;
    wait.rank = missing_input(run, cell[k], rank);
    if (wait.rank == WEFT_RANK_NONE) {
      continue;
    }
    (void)weft_action_input(cell[k], run->context->stage_count, &producer);
    const bool split = weft_pair_has(run->context, WEFT_OP_I, producer, cell[k].microbatch);
    const enum weft_op op = cell[k].op == WEFT_OP_F ? WEFT_OP_F : split ? WEFT_OP_I : WEFT_OP_B;
    wait.action = weft_action_make(op, producer, cell[k].microbatch);
    (void)snprintf(wait.reason, sizeof wait.reason, "its input has not been made");
  }
  return wait;
}

static struct wait wait_of(const struct run *run, uint32_t rank) {
  const struct rank_state *state = &run->ranks[rank];
  const struct weft_action *cell = record(run, state->at);
  if (!run->has_transfers) {
    return wait_for_data(run, rank, cell);
  }
  return weft_op_in(cell->op, WEFT_OPS_SEND) ? wait_for_send(run, state)
                                             : wait_for_receive(run, state);
}

/* ---- Reporting ---- */

static bool is_stuck(const struct run *run, uint32_t rank) {
  return run->ranks[rank].at < run->ranks[rank].end;
}

/* Step of an action on a rank, at or after where the rank is. */
static uint64_t step_of(const struct run *run, uint32_t rank, struct weft_action action) {
  const struct weft_program *program = run->context->program;
  for (uint64_t i = run->ranks[rank].at; i < program->row_begin[rank + 1]; i++) {
    if (weft_action_equal(program->actions[i], action)) {
      return weft_place_of(program, rank, i).step;
    }
  }
  return 0;
}

static bool describe_member(const struct run *run, uint32_t rank, struct weft_place *place,
                            const char **wait_text) {
  const struct wait wait = wait_of(run, rank);
  char action[32], text[192];
  const int size = snprintf(text, sizeof text, "rank %" PRIu32 " to do %s (step %" PRIu64 "): %s",
                            wait.rank, weft_action_format(&wait.action, action, sizeof action),
                            step_of(run, wait.rank, wait.action), wait.reason);
  *place = weft_place_of(run->context->program, rank, run->ranks[rank].at);
  *wait_text = weft_arena_copy_text(run->context->findings.arena, text, (size_t)size);
  return *wait_text != NULL;
}

static const char *model_text(const struct run *run, char *buffer, size_t size) {
  const struct weft_comm_model *model = &run->context->model;
  static const char *const channels[] = {"stage boundary", "pair of ranks", "rank"};
  if (!run->has_transfers) {
    (void)snprintf(buffer, size, "whatever the transport");
  } else if (model->capacity == 0) {
    (void)snprintf(buffer, size, "when a send blocks until it is received");
  } else if (model->capacity == WEFT_CAPACITY_UNLIMITED) {
    (void)snprintf(buffer, size, "even with sends that never block, one channel per %s",
                   channels[model->channel]);
  } else {
    (void)snprintf(buffer, size, "with %" PRIu32 " messages buffered per %s", model->capacity,
                   channels[model->channel]);
  }
  return buffer;
}

static void report_cycle(struct run *run, uint32_t first, uint32_t length, uint32_t stuck) {
  struct weft_verify_context *context = run->context;
  struct weft_findings *findings = &context->findings;
  char model[96];
  if (findings->count[WEFT_RULE_DEADLOCK] >= findings->max) {
    findings->count[WEFT_RULE_DEADLOCK]++;
    return;
  }
  struct weft_place *cycle = weft_arena_allocate(findings->arena, length, sizeof *cycle);
  const char **waits = weft_arena_allocate(findings->arena, length, sizeof *waits);
  bool described = cycle != NULL && waits != NULL;
  uint32_t rank = first;
  for (uint32_t k = 0; described && k < length; k++) {
    described = describe_member(run, rank, &cycle[k], &waits[k]);
    rank = wait_of(run, rank).rank;
  }
  if (!described) {
    findings->failed = true;
    return;
  }
  weft_findings_add(findings, WEFT_RULE_DEADLOCK, cycle[0],
                    "deadlock: %" PRIu32 " rank%s forever, %s; %" PRIu32 " of %" PRIu32
                    " ranks never finish",
                    length, length == 1 ? " waits for itself" : "s wait for each other in a cycle",
                    model_text(run, model, sizeof model), stuck, context->program->rank_count);
  struct weft_finding *finding = weft_findings_last(findings);
  if (finding != NULL && !findings->failed) {
    finding->cycle = cycle;
    finding->cycle_waits = waits;
    finding->cycle_length = length;
  }
}

/* Each stuck rank waits for one other, so following the waits from anywhere
 * ends in a cycle. `seen` holds, per rank, the walk that came by. Cycles are
 * reported from their lowest rank, the shortest first. */
struct cycle {
  uint32_t first;
  uint32_t length;
};

static int compare_cycles(const void *a, const void *b) {
  const struct cycle *x = a, *y = b;
  if (x->length != y->length) {
    return x->length < y->length ? -1 : 1;
  }
  return (x->first > y->first) - (x->first < y->first);
}

static struct cycle measure_cycle(const struct run *run, uint32_t member) {
  struct cycle cycle = {.first = member, .length = 1};
  for (uint32_t r = wait_of(run, member).rank; r != member; r = wait_of(run, r).rank) {
    cycle.length++;
    cycle.first = r < cycle.first ? r : cycle.first;
  }
  return cycle;
}

static uint32_t find_cycles(const struct run *run, uint32_t *seen, struct cycle *cycles) {
  const uint32_t p = run->context->program->rank_count;
  uint32_t count = 0;
  for (uint32_t start = 0; start < p; start++) {
    uint32_t rank = start;
    while (rank < p && is_stuck(run, rank) && seen[rank] == 0) {
      seen[rank] = start + 1;
      rank = wait_of(run, rank).rank;
    }
    if (rank < p && is_stuck(run, rank) && seen[rank] == start + 1) {
      cycles[count++] = measure_cycle(run, rank);
    }
  }
  return count;
}

static bool report_stuck(struct run *run) {
  const struct weft_allocator *allocator = run->context->allocator;
  const uint32_t p = run->context->program->rank_count;
  uint32_t stuck = 0;
  for (uint32_t r = 0; r < p; r++) {
    stuck += is_stuck(run, r);
  }
  if (stuck == 0) {
    return true;
  }
  uint32_t *seen = weft_array_allocate_zero(allocator, p, sizeof *seen);
  struct cycle *cycles = weft_array_allocate(allocator, p, sizeof *cycles);
  const bool allocated = seen != NULL && cycles != NULL;
  if (allocated) {
    const uint32_t count = find_cycles(run, seen, cycles);
    qsort(cycles, count, sizeof *cycles, compare_cycles);
    for (uint32_t k = 0; k < count; k++) {
      report_cycle(run, cycles[k].first, cycles[k].length, stuck);
    }
  }
  weft_array_free(allocator, seen, p, sizeof *seen);
  weft_array_free(allocator, cycles, p, sizeof *cycles);
  return allocated;
}

/* ---- The smallest capacity ---- */

/* The smallest capacity with which a stuck rank can go on; WEFT_CAPACITY_UNLIMITED: none can. */
static uint32_t next_capacity(const struct run *run) {
  uint32_t least = WEFT_CAPACITY_UNLIMITED;
  for (uint32_t r = 0; r < run->context->program->rank_count; r++) {
    const struct rank_state *state = &run->ranks[r];
    if (is_stuck(run, r) && state->offered) {
      const uint32_t needed =
          state->message - run->taken[channel_of_send(run, *record(run, state->at))] + 1;
      least = needed < least ? needed : least;
    }
  }
  return least;
}

/* Goes on from where the run got stuck. What was possible with a smaller capacity is possible
 * with a larger one, so the run with the larger one comes by there too. The capacity grows to
 * what the first rank needs, at most to the messages of a channel. */
static uint32_t find_capacity(struct run *run) {
  uint32_t capacity;
  while (run->has_transfers && (capacity = next_capacity(run)) != WEFT_CAPACITY_UNLIMITED) {
    run->capacity = capacity;
    for (uint32_t r = 0; r < run->context->program->rank_count; r++) {
      if (run->ranks[r].offered) {
        wake(run, r);
      }
    }
    run_on(run);
  }
  for (uint32_t r = 0; r < run->context->program->rank_count; r++) {
    if (is_stuck(run, r)) {
      return WEFT_CAPACITY_UNLIMITED;
    }
  }
  return run->capacity;
}

/* ---- Setting up ---- */

static bool allocate(struct run *run) {
  const struct weft_allocator *allocator = run->context->allocator;
  const uint32_t p = run->context->program->rank_count;
  run->ranks = weft_array_allocate_zero(allocator, p, sizeof *run->ranks);
  run->work = weft_array_allocate(allocator, p, sizeof *run->work);
  if (run->ranks == NULL || run->work == NULL) {
    return false;
  }
  if (!run->has_transfers) {
    run->made = weft_array_allocate_zero(
        allocator, weft_pair_index(run->context, run->context->stage_count, 0), 1);
    return run->made != NULL;
  }
  if (!weft_message_queue_init(&run->queue, run->context, run->context->model.channel)) {
    return false;
  }
  run->sent = weft_array_allocate_zero(allocator, run->queue.channel_count, sizeof *run->sent);
  run->taken = weft_array_allocate_zero(allocator, run->queue.channel_count, sizeof *run->taken);
  return run->sent != NULL && run->taken != NULL;
}

static void release(struct run *run) {
  const struct weft_allocator *allocator = run->context->allocator;
  const uint32_t p = run->context->program->rank_count;
  weft_array_free(allocator, run->ranks, p, sizeof *run->ranks);
  weft_array_free(allocator, run->work, p, sizeof *run->work);
  weft_array_free(allocator, run->made, weft_pair_index(run->context, run->context->stage_count, 0),
                  1);
  weft_array_free(allocator, run->sent, run->queue.channel_count, sizeof *run->sent);
  weft_array_free(allocator, run->taken, run->queue.channel_count, sizeof *run->taken);
  weft_message_queue_finish(&run->queue);
}

enum weft_status weft_verify_liveness(struct weft_verify_context *context,
                                      uint32_t *least_capacity) {
  assert(context->owner != NULL);
  struct run run = {.context = context,
                    .has_transfers = weft_has_transfers(context),
                    .capacity = context->model.capacity,
                    .queue = {.allocator = context->allocator}};
  bool enough = allocate(&run);
  if (enough) {
    run_all(&run);
    enough = report_stuck(&run);
    *least_capacity = find_capacity(&run);
  }
  release(&run);
  return enough ? WEFT_OK : weft_fail_memory(context->error, context->program->action_count);
}
