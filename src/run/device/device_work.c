/* The work of a rank on a device: the host enqueues a whole row without waiting, and events carry
 * what the actions need of each other.
 *
 * A rank has one stream for its compute cells, so they run in the order of its row. After each of
 * them it records an event, and buffers carry that event to other ranks:
 *
 *     rank 0, stream 0                      rank 1, stream 1
 *     0F0 writes a buffer, event 0.0
 *     SEND: the buffer is handed over ───▶  RECV
 *                                           wait for 0.0
 *                                           1F0 and 1B0 read the buffer, event 1.1
 *     0F4 takes it: wait for 1.1 ◀───────── it comes back with another message
 *
 * Copies of messages between devices have a stream per direction (device_transfer.c).
 *
 * A wait for what the stream already waits for is left out, so the second one seldom remains. A
 * wait is enqueued after the record that it is for, on every path: so the order in which the host
 * enqueues is one in which everything can run, and no device can deadlock (docs/gpu.md). All
 * ranks end a step before one begins the next, so events of earlier steps have happened. */
#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/executor/executor.h"

/* For its inputs, and for the last use of its buffers. */
static uint32_t waits_per_cell(const struct weft_executor *executor) {
  uint32_t most = 0;
  for (uint32_t k = 0; k < executor->own_count; k++) {
    const uint32_t waits = 2 * executor->stages[k].port_count;
    most = waits > most ? waits : most;
  }
  return most;
}

/* ---- Setting up ---- */

static enum weft_status check_stages(const struct weft_executor *executor,
                                     const struct weft_device *device, struct weft_error *error) {
  for (uint32_t k = 0; k < executor->own_count; k++) {
    const struct weft_stage_ops *ops = executor->stages[k].impl->ops;
    if (!ops->enqueues) {
      return weft_fail(
          error, WEFT_ERR_USAGE,
          "set `enqueues` of its struct weft_stage_ops if its functions put their work "
          "on call->stream; a stage on the CPU belongs on a rank without device",
          "stage %" PRIu32 " (%s) is on a %s device and does not enqueue its work",
          executor->stages[k].stage, ops->name != NULL ? ops->name : "unnamed", device->ops->name);
    }
  }
  if (executor->transport->ops->device_memory && executor->transport->ops->step_barrier == NULL &&
      !executor->transport->ops->enqueues) {
    return weft_fail(error, WEFT_ERR_USAGE, "open the transport cuda",
                     "ranks on a %s device cannot use the transport %s: nothing keeps their steps "
                     "together",
                     device->ops->name, executor->transport->ops->name);
  }
  return WEFT_OK;
}

enum weft_status weft_executor_open_device(struct weft_executor *executor,
                                           struct weft_error *error) {
  struct weft_device *device = executor->options->device;
  const struct weft_allocator *allocator = executor->allocator;
  if (device == NULL || device->ops->stream_create == NULL) {
    return WEFT_OK;
  }
  WEFT_TRY(check_stages(executor, device, error));
  struct weft_device_work *work = weft_array_allocate_zero(allocator, 1, sizeof *work);
  if (work == NULL) {
    return weft_fail_memory(error, sizeof *work);
  }
  executor->device = work;
  work->device = device;
  WEFT_STATUS_STORE(executor->status->gpu, device->number);
  (void)__atomic_fetch_or(&executor->status->flags, WEFT_RANK_HAS_GPU, __ATOMIC_RELAXED);
  WEFT_TRY(device->ops->stream_create(device, &work->stream, error));
  executor->call.stream = work->stream;
  WEFT_TRY(device->ops->stream_create(device, &work->second, error));
  WEFT_TRY(device->ops->stream_create(device, &work->watch, error));
  WEFT_TRY(device->ops->event_create(device, false, &work->fork, error));
  WEFT_TRY(device->ops->event_create(device, false, &work->join, error));
  WEFT_TRY(device->ops->event_create(device, false, &work->end, error));
  WEFT_TRY(device->ops->event_create(device, true, &work->base, error));
  work->done = device->ops->allocate_host(device, sizeof *work->done);
  work->waited_for = weft_array_allocate_zero(allocator, executor->transport->rank_count,
                                              sizeof *work->waited_for);
  if (work->done == NULL) {
    return weft_device_fail_allocation(device, sizeof *work->done, error);
  }
  return work->waited_for != NULL
             ? WEFT_OK
             : weft_fail_memory(error, executor->transport->rank_count * sizeof(uint64_t));
}

/* A rank on the host may be asking for an event of this rank (ask_event() below). After a failure
 * nobody begins to. */
static void await_askers(const struct weft_executor *executor) {
  struct weft_transport *transport = executor->transport;
  for (uint32_t r = 0; transport->ops->step_barrier != NULL && r < transport->rank_count; r++) {
    struct weft_rank_status *status = transport->ops->rank_status(transport, r);
    while ((__atomic_fetch_or(&status->flags, 0, __ATOMIC_ACQ_REL) & WEFT_RANK_ASKS_EVENT) != 0) {
      (void)sched_yield();
    }
  }
}

static void free_events(struct weft_executor *executor) {
  struct weft_device_work *work = executor->device;
  for (uint32_t k = 0; k < work->event_room; k++) {
    work->device->ops->event_destroy(work->device, work->events[k]);
    work->device->ops->event_destroy(work->device, work->begins != NULL ? work->begins[k] : NULL);
  }
  weft_executor_free_copies(executor);
  weft_arena_finish(&work->memory);
  work->device->ops->free_host(work->device, work->clocks);
  work->begins = NULL;
  work->ends = work->starts = NULL;
  work->clocks = NULL;
  work->event_room = work->wait_room = 0;
}

static uint32_t count_cells(const struct weft_row *row, uint32_t *transfers) {
  uint32_t count = 0;
  *transfers = 0;
  for (uint64_t i = row->begin; i < row->end; i += weft_cell_records(&row->program->actions[i])) {
    const struct weft_action *cell = &row->program->actions[i];
    count += weft_op_in(cell->op, WEFT_OPS_COMPUTE | WEFT_OP_BIT(WEFT_OP_OVERLAP_F_B));
    *transfers += weft_op_in(cell->op, WEFT_OPS_SEND | WEFT_OPS_RECV);
  }
  return count;
}

enum weft_status weft_executor_fit_device(struct weft_executor *executor,
                                          const struct weft_row *row, struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  if (work == NULL) {
    return WEFT_OK;
  }
  uint32_t transfers;
  const uint32_t count = count_cells(row, &transfers);
  work->transfer_count = transfers > work->transfer_count ? transfers : work->transfer_count;
  if (count <= work->event_room) {
    return weft_executor_fit_copies(executor, error);
  }
  free_events(executor);
  const struct weft_allocator *allocator = executor->allocator;
  const bool timed = row->times != NULL;
  const uint32_t waits = waits_per_cell(executor) * count;
  work->memory.allocator = allocator;
  work->events = weft_arena_allocate(&work->memory, count, sizeof(void *));
  work->records = weft_arena_allocate(&work->memory, count, sizeof *work->records);
  work->waits = weft_arena_allocate(&work->memory, waits, sizeof *work->waits);
  if (timed) {
    work->ends = weft_arena_allocate(&work->memory, count, sizeof *work->ends);
    work->starts = weft_arena_allocate(&work->memory, count, sizeof *work->starts);
    work->begins = weft_arena_allocate(&work->memory, count, sizeof(void *));
  }
  WEFT_TRY(weft_arena_status(&work->memory, error));
  work->event_room = count;
  work->wait_room = waits;
  work->clocks =
      work->device->ops->allocate_host(work->device, (count + UINT64_C(1)) * sizeof *work->clocks);
  if (work->clocks == NULL) {
    return weft_device_fail_allocation(work->device, count * sizeof *work->clocks, error);
  }
  const struct weft_device_ops *ops = work->device->ops;
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(ops->event_create(work->device, timed, &work->events[k], error));
    if (timed) {
      WEFT_TRY(ops->event_create(work->device, true, &work->begins[k], error));
    }
  }
  return weft_executor_fit_copies(executor, error);
}

void weft_executor_close_device(struct weft_executor *executor) {
  struct weft_device_work *work = executor->device;
  const struct weft_allocator *allocator = executor->allocator;
  if (work == NULL) {
    return;
  }
  const struct weft_device_ops *ops = work->device->ops;
  await_askers(executor);
  free_events(executor);
  ops->event_destroy(work->device, work->fork);
  ops->event_destroy(work->device, work->join);
  ops->event_destroy(work->device, work->end);
  ops->event_destroy(work->device, work->base);
  ops->free_host(work->device, work->done);
  ops->stream_destroy(work->device, work->watch);
  ops->stream_destroy(work->device, work->outgoing);
  ops->stream_destroy(work->device, work->incoming);
  ops->stream_destroy(work->device, work->second);
  ops->stream_destroy(work->device, work->stream);
  weft_array_free(allocator, work->waited_for, executor->transport->rank_count,
                  sizeof *work->waited_for);
  weft_array_free(allocator, work, 1, sizeof *work);
  executor->device = NULL;
}

/* ---- A step ---- */

void weft_executor_begin_device(struct weft_executor *executor) {
  struct weft_device_work *work = executor->device;
  if (work != NULL) {
    work->enqueued = work->seen = work->wait_count = work->copy_count = work->seen_moved = 0;
    work->cell_before[0] = work->cell_before[1] = 0;
    work->departed = NULL;
    work->finishing = work->replaying = work->trails = false;
    work->held = work->has_unread_times = false;
    __atomic_store_n(work->done, 0, __ATOMIC_RELAXED);
    if (work->moved != NULL) {
      __atomic_store_n(work->moved, 0, __ATOMIC_RELAXED);
    }
    (void)__atomic_fetch_and(&executor->status->flags, ~(uint64_t)WEFT_RANK_ON_DEVICE,
                             __ATOMIC_RELAXED);
  }
}

enum weft_status weft_executor_begin_times(const struct weft_executor *executor,
                                           struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  if (work == NULL || work->ends == NULL) {
    return WEFT_OK;
  }
  work->base_ns = executor->transport->ops->now(executor->transport);
  /* Not behind the batch, which is being copied in the rank's stream; in an eager step nobody else uses this one. */
  return work->device->ops->event_record(work->device, work->base, work->watch, error);
}

enum weft_status weft_device_order(struct weft_device *device, struct weft_device_event *event,
                                   struct weft_stream *before, struct weft_stream *after,
                                   struct weft_error *error) {
  WEFT_TRY(device->ops->event_record(device, event, before, error));
  return device->ops->event_wait(device, event, after, error);
}

struct weft_recorded_row weft_executor_end_record(struct weft_executor *executor, uint64_t before) {
  assert(executor->actions_done >= before);
  const struct weft_device_work *work = executor->device;
  const struct weft_recorded_row recorded = {.cells = work->enqueued,
                                             .waits = work->wait_count,
                                             .transfers = work->copy_count,
                                             .actions = executor->actions_done - before};
  weft_executor_record(executor, NULL);
  executor->actions_done = before;
  return recorded;
}

void weft_executor_replay(struct weft_executor *executor, const struct weft_recorded_row *recorded,
                          int64_t now, const uint64_t *begin_clock) {
  struct weft_device_work *work = executor->device;
  work->enqueued = recorded->cells;
  work->wait_count = recorded->waits;
  work->copy_count = recorded->transfers;
  work->base_ns = now;
  work->begin_clock = begin_clock;
  work->finishing = work->replaying = true;
  executor->at = executor->row->end;
}

/* Adds the rank and the action that is being enqueued. */
static void name_action(const struct weft_executor *executor, struct weft_error *error) {
  const struct weft_row *row = executor->row;
  char text[64] = "the end";
  if (executor->at < row->end) {
    (void)weft_action_format(&row->program->actions[executor->at], text, sizeof text);
  }
  (void)weft_fail(error, error->status, error->hint, "rank %" PRIu32 ", %s: %s",
                  executor->transport->rank, text, error->message);
}

enum weft_status weft_executor_record_error(const struct weft_executor *executor,
                                            enum weft_status status,
                                            const struct weft_error *error) {
  const struct weft_device_work *work = executor->device;
  if (status >= 0 || work == NULL || work->recording == NULL) {
    return status;
  }
  if (!work->recording->failed) {
    work->recording->error = *error;
    work->recording->failed = true;
    if (status == WEFT_ERR_DEVICE) { /* a stage's failure names it already */
      name_action(executor, &work->recording->error);
    }
  }
  return WEFT_OK;
}

/* An event of another rank, which may fail and destroy it. It does not do so while the flag is set;
 * if it has looked at the flag before, its failure is seen here: both are changes of the same
 * word, so one of them comes after the other and knows what went before. */
static enum weft_status ask_event(const struct weft_executor *executor,
                                  const struct weft_message *message, struct weft_error *error) {
  struct weft_transport *transport = executor->transport;
  struct weft_device *device = message->device;
  struct weft_failure failure;
  enum weft_status status;
  (void)__atomic_fetch_or(&executor->status->flags, WEFT_RANK_ASKS_EVENT, __ATOMIC_ACQ_REL);
  if (transport->ops->get_failure(transport, &failure)) {
    *error = failure.error;
    status = failure.error.status;
  } else {
    status = device->ops->event_query(device, message->event, error);
  }
  (void)__atomic_fetch_and(&executor->status->flags, ~(uint64_t)WEFT_RANK_ASKS_EVENT,
                           __ATOMIC_ACQ_REL);
  return status;
}

/* On the host: whether it has happened. */
static enum weft_status await_event(struct weft_executor *executor, struct weft_message *message,
                                    struct weft_error *error) {
  const enum weft_status status = ask_event(executor, message, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_executor_block(executor, WEFT_PHASE_RECEIVE, message->event_rank,
                               weft_action_idle(),
                               weft_executor_ask_at(executor, executor->last_progress), error);
  }
  message->event = NULL;
  return status;
}

enum weft_status weft_executor_order_after(struct weft_executor *executor,
                                           struct weft_message *message, struct weft_error *error) {
  assert(message->event != NULL);
  struct weft_device_work *work = executor->device;
  if (message->event_rank == executor->transport->rank ||
      message->event_number >> 32 != executor->round) {
    return WEFT_OK;
  }
  if (work == NULL) {
    return await_event(executor, message, error);
  }
  const bool is_copy = (message->event_number & WEFT_EVENT_COPY) != 0;
  if (!is_copy && message->event_number <= work->waited_for[message->event_rank]) {
    return WEFT_OK;
  }
  if (!is_copy) {
    work->waited_for[message->event_rank] = message->event_number;
    weft_executor_record_wait(work, message->event_rank, message->event_number);
  }
  return WEFT_ENQUEUE(
      executor, work->device->ops->event_wait(work->device, message->event, work->stream, error),
      error);
}

enum weft_status weft_executor_begin_cell(struct weft_executor *executor,
                                          const struct weft_action *cell,
                                          struct weft_error *error) {
  assert(executor->device->enqueued < executor->device->event_room);
  struct weft_device_work *work = executor->device;
  if (work->starts != NULL && work->recording == NULL) {
    const uint32_t k = work->enqueued;
    const bool waits = k == 0 || /* for the batch */
                       (work->wait_count > 0 && work->waits[work->wait_count - 1].cell == k);
    work->starts[k] = waits ? 0 : -1;
    if (waits) {
      WEFT_TRY(work->device->ops->event_record(work->device, work->begins[k], work->stream, error));
    }
  }
  if (weft_cell_parts(cell) == 0) {
    return WEFT_OK;
  }
  /* The parts of an overlap run at the same time: the forward in the first stream, the others in
   * the second, which begins and ends with it. */
  for (uint32_t k = 0; k < executor->sub_action_count; k++) {
    struct weft_sub_action *sub = &executor->sub_actions[k];
    sub->call.stream = sub->action->op == WEFT_OP_F ? work->stream : work->second;
  }
  return WEFT_ENQUEUE(
      executor, weft_device_order(work->device, work->fork, work->stream, work->second, error),
      error);
}

/* The cell's event. */
static enum weft_status enqueue_end(const struct weft_device_work *work, bool joins,
                                    struct weft_error *error) {
  const struct weft_device_ops *ops = work->device->ops;
  struct weft_device_event *event = work->events[work->enqueued - 1];
  if (joins) {
    WEFT_TRY(weft_device_order(work->device, work->join, work->second, work->stream, error));
  }
  WEFT_TRY(ops->event_record(work->device, event, work->stream, error));
  if (work->recording == NULL) {
    return WEFT_OK;
  }
  /* Events of a recording cannot be queried: beside the work, it writes how far it is. */
  WEFT_TRY(ops->event_wait(work->device, event, work->watch, error));
  return ops->note(work->device, work->done, work->enqueued, &work->clocks[work->enqueued],
                   work->watch, error);
}

enum weft_status weft_executor_end_cell(struct weft_executor *executor,
                                        const struct weft_action *cell, struct weft_error *error) {
  assert(executor->device->enqueued < executor->device->event_room);
  struct weft_device_work *work = executor->device;
  if (weft_executor_recording_failed(executor)) {
    return WEFT_OK;
  }
  assert(work->enqueued < work->event_room);
  work->records[work->enqueued++] = (uint32_t)executor->at;
  work->trails = false;
  return weft_executor_record_error(executor, enqueue_end(work, weft_cell_parts(cell) > 0, error),
                                    error);
}

enum weft_status weft_executor_record_begin(const struct weft_executor *executor,
                                            struct weft_error *error) {
  const struct weft_device_work *work = executor->device;
  WEFT_TRY(work->device->ops->make_current(work->device, error)); /* for the kernel */
  return work->device->ops->note(work->device, work->done, 0, &work->clocks[0], work->stream,
                                 error);
}

/* ---- The device's progress ---- */

/* Cells that the device has done: events happen in the order of the stream. */
static uint32_t cells_done(const struct weft_device_work *work) {
  struct weft_error error;
  uint32_t done = work->seen;
  if (work->replaying) {
    return __atomic_load_n(work->done, __ATOMIC_ACQUIRE);
  }
  while (done < work->enqueued &&
         work->device->ops->event_query(work->device, work->events[done], &error) == WEFT_OK) {
    done++;
  }
  return done;
}

void weft_executor_poll_device(struct weft_executor *executor) {
  assert(executor->device != NULL);
  struct weft_device_work *work = executor->device;
  const uint32_t done = cells_done(work);
  if (done != work->seen) {
    work->seen = done;
    executor->last_progress = executor->now;
  }
}

/* Of a replay whose transfers come one after the other: the one that the device is at, if its next
 * cell, or its end, comes after that. */
static const struct weft_device_transfer *find_next_transfer(const struct weft_device_work *work) {
  const uint32_t at = work->seen_moved;
  bool waits = work->seen == work->enqueued; /* only transfers are left */
  for (uint32_t w = 0; w < work->wait_count; w++) {
    const struct weft_device_wait *wait = &work->waits[w];
    waits = waits || (wait->cell == work->seen && wait->transfer != NULL && wait->number >= at);
  }
  return waits && at < work->copy_count ? &work->transfers[at] : NULL;
}

/* The transfer that the device's next cell waits for; NULL: none. */
static const struct weft_device_transfer *find_transfer(const struct weft_device_work *work) {
  struct weft_error error;
  if (work->replaying) {
    return work->moved != NULL ? find_next_transfer(work) : NULL;
  }
  for (uint32_t w = 0; w < work->wait_count; w++) {
    const struct weft_device_wait *wait = &work->waits[w];
    if (wait->cell == work->seen && wait->transfer != NULL &&
        work->device->ops->event_query(work->device, wait->transfer, &error) == WEFT_IN_PROGRESS) {
      return &work->transfers[wait->number];
    }
  }
  return NULL;
}

/* The rank whose work the cell waits for that is the device's next; UINT32_MAX: it runs. */
static uint32_t find_awaited(const struct weft_device_work *work) {
  assert(work->seen <= work->enqueued);
  for (uint32_t w = 0; work->ranks != NULL && w < work->wait_count; w++) {
    const struct weft_device_wait *wait = &work->waits[w];
    const struct weft_executor *of = work->ranks[wait->rank];
    const struct weft_device_work *other = of != NULL ? of->device : NULL;
    if (wait->cell == work->seen && other != NULL && other->seen <= wait->for_cell) {
      return wait->rank;
    }
  }
  return UINT32_MAX;
}

enum weft_status weft_executor_watch_device(struct weft_executor *executor,
                                            struct weft_error *error) {
  assert(executor->device != NULL && executor->row != NULL);
  struct weft_device_work *work = executor->device;
  const struct weft_row *row = executor->row;
  weft_executor_read_clock(executor);
  (void)__atomic_fetch_or(&executor->status->flags, WEFT_RANK_ON_DEVICE, __ATOMIC_RELAXED);
  const uint32_t done = cells_done(work);
  const uint32_t moved = work->replaying && work->moved != NULL
                             ? __atomic_load_n(work->moved, __ATOMIC_ACQUIRE)
                             : work->seen_moved;
  if (done != work->seen || moved != work->seen_moved) {
    work->seen = done;
    work->seen_moved = moved;
    executor->last_progress = executor->now;
  }
  executor->at = done < work->enqueued ? work->records[done] : row->end; /* what it does now */
  executor->cell = executor->at - row->begin;
  const struct weft_device_transfer *transfer = find_transfer(work);
  const uint32_t peer = transfer != NULL ? transfer->peer : find_awaited(work);
  enum weft_rank_phase phase = peer == UINT32_MAX ? WEFT_PHASE_COMPUTE : WEFT_PHASE_RECEIVE;
  struct weft_action wants = weft_action_idle();
  if (transfer != NULL) {
    const struct weft_action action = row->program->actions[transfer->record];
    phase = weft_op_in(action.op, WEFT_OPS_SEND) ? WEFT_PHASE_SEND : WEFT_PHASE_RECEIVE;
    (void)weft_action_partner(action, executor->stage_count, &wants);
  }
  const enum weft_status status = weft_executor_block(
      executor, phase, peer, wants, weft_executor_ask_at(executor, executor->last_progress), error);
  executor->at = row->end;
  return status;
}

/* ---- Whose fault a failure of the device is ----
 *
 * A GPU that has failed says so with every call, and tells neither which kernel it was nor which
 * events have happened. What is known is how far each rank was: in a recording as the device has noted
 * it, else as the host has last seen it; and that what a cell waits for is done if the cell is.
 * From there on, the cells that can have begun are candidates: one for each rank that was busy. */

enum { CANDIDATES_NAMED = 4 };

struct candidates {
  uint32_t ranks[CANDIDATES_NAMED];
  uint32_t count; /* of all */
};

/* The device answers every call with an error. This event is never part of a recording. */
static bool is_lost(const struct weft_device_work *work) {
  struct weft_error error;
  return work->device->ops->make_current(work->device, &error) < 0 ||
         work->device->ops->event_query(work->device, work->base, &error) < 0;
}

static struct weft_device_work *work_of(const struct weft_executor *const *ranks, uint32_t r) {
  return ranks[r] != NULL ? ranks[r]->device : NULL;
}

/* What the cells that are done have waited for is done; false: that was known. */
static bool infer_progress(const struct weft_executor *const *ranks,
                           const struct weft_device_work *work) {
  bool changed = false;
  for (uint32_t w = 0; w < work->wait_count; w++) {
    const struct weft_device_wait *wait = &work->waits[w];
    struct weft_device_work *other = work_of(ranks, wait->rank);
    if (wait->cell < work->seen && other != NULL && other->seen <= wait->for_cell) {
      other->seen = wait->for_cell + 1;
      changed = true;
    }
  }
  return changed;
}

/* rank_count 1: this rank alone, whose waits are for others. */
static struct candidates find_candidates(const struct weft_executor *const *ranks,
                                         uint32_t rank_count) {
  struct candidates found = {.count = 0};
  struct weft_error ignored;
  for (uint32_t r = 0; r < rank_count; r++) {
    struct weft_device_work *work = work_of(ranks, r);
    if (work != NULL && work->device->ops->make_current(work->device, &ignored) == WEFT_OK) {
      work->seen = cells_done(work);
    }
  }
  for (bool changed = rank_count > 1; changed;) {
    changed = false;
    for (uint32_t r = 0; r < rank_count; r++) {
      const struct weft_device_work *work = work_of(ranks, r);
      changed = (work != NULL && infer_progress(ranks, work)) || changed;
    }
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    const struct weft_device_work *work = work_of(ranks, r);
    if (work != NULL && work->seen < work->enqueued && find_awaited(work) == UINT32_MAX &&
        is_lost(work)) {
      if (found.count < CANDIDATES_NAMED) {
        found.ranks[found.count] = r;
      }
      found.count++;
    }
  }
  return found;
}

/* "1F3", "one of 1F3, 2F2 (rank 2)", "one of ... or 3 more" */
static void name_candidates(const struct weft_executor *const *ranks,
                            const struct candidates *found, char *out, size_t size) {
  size_t used = (size_t)snprintf(out, size, found->count > 1 ? "one of " : "");
  for (uint32_t k = 0; k < found->count && k < CANDIDATES_NAMED; k++) {
    const struct weft_device_work *work = ranks[found->ranks[k]]->device;
    const struct weft_program *program = ranks[found->ranks[k]]->row->program;
    char text[64], rank[24] = "";
    if (k > 0) {
      (void)snprintf(rank, sizeof rank, " (rank %" PRIu32 ")", found->ranks[k]);
    }
    used += (size_t)snprintf(
        out + used, size - used, "%s%s%s", k > 0 ? ", " : "",
        weft_action_format(&program->actions[work->records[work->seen]], text, sizeof text), rank);
    assert(used < size);
  }
  if (found->count > CANDIDATES_NAMED) {
    (void)snprintf(out + used, size - used, " or %" PRIu32 " more",
                   found->count - CANDIDATES_NAMED);
  }
}

enum weft_status weft_executor_fail_device(struct weft_executor *executor,
                                           struct weft_error *error) {
  assert(executor->device != NULL && error->status < 0);
  const struct weft_executor *own[] = {executor};
  const bool together = executor->device->ranks != NULL;
  const struct weft_executor *const *ranks = together ? executor->device->ranks : own;
  const struct candidates found =
      find_candidates(ranks, together ? executor->transport->rank_count : 1);
  const struct weft_row *row = executor->row;
  char text[400];
  if (found.count > 0) {
    executor->blamed_rank = ranks[found.ranks[0]]->transport->rank;
    (void)snprintf(text, sizeof text, "most likely ");
    name_candidates(ranks, &found, text + strlen(text), sizeof text - strlen(text));
  } else if (is_lost(executor->device)) {
    (void)snprintf(text, sizeof text, "most likely what ends it");
  } else if (error->status == WEFT_ERR_DEVICE && executor->at < row->end) {
    (void)weft_action_format(&row->program->actions[executor->at], text, sizeof text);
  } else {
    return error->status;
  }
  return weft_fail(error, error->status, error->hint, "rank %" PRIu32 ", step %" PRIu64 ", %s: %s",
                   executor->blamed_rank, executor->step, text, error->message);
}

enum weft_status weft_executor_await_device(struct weft_executor *executor,
                                            struct weft_error *error) {
  struct weft_device_work *work = executor->device;
  if (work == NULL) {
    return WEFT_OK;
  }
  if (!work->finishing) {
    WEFT_TRY(weft_executor_join_copies(executor, error));
    work->finishing = true;
    if (work->recording == NULL && !work->held) { /* else something is still to come */
      WEFT_TRY(work->device->ops->event_record(work->device, work->end, work->stream, error));
    }
  }
  if (work->held || work->recording != NULL) {
    return WEFT_IN_PROGRESS;
  }
  const enum weft_status status = work->device->ops->event_query(work->device, work->end, error);
  work->seen = status == WEFT_OK ? work->enqueued : work->seen;
  if (status == WEFT_OK && work->replaying) {
    weft_executor_read_clocks(executor);
    weft_executor_write_times(executor, NULL);
  } else if (status == WEFT_OK && executor->transport->ops->step_barrier == NULL) {
    work->has_unread_times = work->ends != NULL; /* else write_times() of all ranks decides */
  }
  return status == WEFT_IN_PROGRESS ? weft_executor_watch_device(executor, error) : status;
}

enum weft_status weft_device_join(const struct weft_device_work *work, struct weft_error *error) {
  assert(work->watch != NULL);
  struct weft_stream *const others[] = {work->watch, work->incoming, work->outgoing};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(others) && others[k] != NULL; k++) {
    WEFT_TRY(weft_device_order(work->device, work->join, others[k], work->stream, error));
  }
  return WEFT_OK;
}

/* The end of all that the rank has enqueued: of its other streams, too. */
static enum weft_status record_end(const struct weft_device_work *work, struct weft_error *error) {
  const struct weft_device_ops *ops = work->device->ops;
  WEFT_TRY(ops->make_current(work->device, error));
  WEFT_TRY(weft_device_order(work->device, work->join, work->second, work->stream, error));
  WEFT_TRY(weft_device_join(work, error));
  return ops->event_record(work->device, work->end, work->stream, error);
}

bool weft_executor_drain_device(struct weft_executor *executor, int64_t limit) {
  struct weft_device_work *work = executor->device;
  struct weft_error error;
  if (work == NULL || work->end == NULL || work->abandoned || record_end(work, &error) < 0) {
    return true;
  }
  const int64_t begin = weft_clock_ns();
  while (work->device->ops->event_query(work->device, work->end, &error) == WEFT_IN_PROGRESS) {
    const int64_t waited = weft_clock_ns() - begin;
    if ((limit > 0 && waited > limit) ||
        (waited > WEFT_CANCEL_NS && weft_executor_is_interrupted(executor))) {
      return false;
    }
  }
  return true;
}

void weft_executor_abandon_device(struct weft_executor *executor) {
  struct weft_device_work *work = executor->device;
  if (work != NULL) {
    work->abandoned = true;
    work->device->ops->abandon(work->device);
  }
}
