/* The step of all ranks of a process, driven by one thread: it advances one rank after the other,
 * and none of them waits for the device inside the step. After such a step the work of all ranks
 * is recorded once and replayed with one launch per step, as long as nothing changes that the
 * recording depends on. */
#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/pipeline.h"
#include "run/step/recording.h"

/* ---- The recording of a step ---- */

/* A rank's part of it. */
struct rank_recording {
  struct weft_recording_key key;
  struct weft_recorded_row row;
  uint32_t clock; /* the first item with the same GPU, and so with the same clock */
};

struct weft_process_recording {
  const struct weft_allocator *allocator;
  struct weft_device *device;             /* of rank 0 */
  struct weft_stream *origin;             /* from which it is recorded and launched */
  struct weft_device_event *begin;        /* of the origin */
  struct weft_device_event *finish;       /* likewise */
  struct weft_device_recording *recorded; /* NULL: none yet */
  char reason[600]; /* why steps like this one cannot be recorded; "": they can */
  uint32_t rank_count;
  struct rank_recording ranks[]; /* [rank_count] */
};

void weft_process_recording_destroy(struct weft_process_recording *recording) {
  if (recording == NULL) {
    return;
  }
  const struct weft_device_ops *ops = recording->device->ops;
  ops->recording_destroy(recording->device, recording->recorded);
  ops->event_destroy(recording->device, recording->begin);
  ops->event_destroy(recording->device, recording->finish);
  ops->stream_destroy(recording->device, recording->origin);
  weft_array_free(recording->allocator, recording,
                  sizeof *recording + recording->rank_count * sizeof recording->ranks[0], 1);
}

static enum weft_status make_recording(struct weft_pipeline *first, uint32_t rank_count,
                                       struct weft_error *error) {
  struct weft_device *device = first->options.device;
  const size_t size =
      sizeof(struct weft_process_recording) + rank_count * sizeof(struct rank_recording);
  struct weft_process_recording *recording = weft_array_allocate_zero(first->allocator, size, 1);
  if (recording == NULL) {
    return weft_fail_memory(error, size);
  }
  recording->allocator = first->allocator;
  recording->device = device;
  recording->rank_count = rank_count;
  first->process_recording = recording;
  WEFT_TRY(device->ops->stream_create(device, &recording->origin, error));
  WEFT_TRY(device->ops->event_create(device, false, &recording->begin, error));
  return device->ops->event_create(device, false, &recording->finish, error);
}

/* Remembers the key of this step; false when the one before had another. */
static bool remember_keys(struct weft_process_recording *recording, void *const *items) {
  bool same = true;
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    const struct weft_recording_key key = weft_recording_key_of(items[r]);
    same = memcmp(&key, &recording->ranks[r].key, sizeof key) == 0 && same;
    recording->ranks[r].key = key;
  }
  return same;
}

/* ---- Recording it ---- */

static struct weft_device_work *work_of(void *const *items, uint32_t r) {
  return ((struct weft_pipeline *)items[r])->executor.device;
}

/* Ranks of one GPU count their times from the same beginning. */
static void find_clocks(struct weft_process_recording *recording, void *const *items) {
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    struct weft_device *device = work_of(items, r)->device;
    uint32_t first = 0;
    while (first < r &&
           device->ops->reach(device, work_of(items, first)->device) != WEFT_REACH_USE) {
      first++;
    }
    recording->ranks[r].clock = first;
  }
}

/* All streams of all ranks begin with the origin, and it ends with them. What watches a rank comes
 * after its last cell; only collectives may follow that in its stream. */
static enum weft_status fork_ranks(const struct weft_process_recording *recording,
                                   void *const *items, struct weft_error *error) {
  const struct weft_device_ops *ops = recording->device->ops;
  WEFT_TRY(ops->event_record(recording->device, recording->begin, recording->origin, error));
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    const struct weft_pipeline *pipeline = items[r];
    WEFT_TRY(
        ops->event_wait(recording->device, recording->begin, work_of(items, r)->stream, error));
    if (recording->ranks[r].clock == r) {
      WEFT_TRY(weft_executor_record_begin(&pipeline->executor, error));
    }
  }
  return WEFT_OK;
}

static enum weft_status join_ranks(const struct weft_process_recording *recording,
                                   void *const *items, struct weft_error *error) {
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    const struct weft_device_work *work = work_of(items, r);
    WEFT_TRY(
        weft_device_order(recording->device, work->join, work->watch, recording->origin, error));
    if (work->trails) {
      WEFT_TRY(
          weft_device_order(recording->device, work->end, work->stream, recording->origin, error));
    }
  }
  return WEFT_OK;
}

/* Advances every rank until its row is enqueued. */
static enum weft_status enqueue_rows(void *const *items, uint32_t count, struct weft_error *error) {
  uint32_t left = count;
  while (left > 0) {
    left = 0;
    for (uint32_t r = 0; r < count; r++) {
      if (!work_of(items, r)->finishing) {
        WEFT_TRY(weft_pipeline_advance(items[r], error));
        left += !work_of(items, r)->finishing;
      }
    }
  }
  return WEFT_OK;
}

/* ---- The end of a step ---- */

/* The streams of all ranks meet in the first one's. */
static enum weft_status join_streams(void *const *items, uint32_t count, struct weft_error *error) {
  const struct weft_device_work *first = work_of(items, 0);
  const struct weft_device_ops *ops = first->device->ops;
  for (uint32_t r = 1; r < count; r++) {
    const struct weft_device_work *work = work_of(items, r);
    WEFT_TRY(ops->make_current(work->device, error));
    WEFT_TRY(weft_device_order(work->device, work->end, work->stream, first->stream, error));
  }
  WEFT_TRY(ops->make_current(first->device, error));
  WEFT_TRY(ops->event_record(first->device, first->end, first->stream, error));
  for (uint32_t r = 1; r < count; r++) {
    WEFT_TRY(ops->event_wait(first->device, first->end, work_of(items, r)->stream, error));
  }
  return WEFT_OK;
}

/* One pass of all ranks; *again: another one is wanted. */
static enum weft_status finish_pass(void *const *items, uint32_t count, uint32_t pass, bool *again,
                                    struct weft_error *error) {
  *again = false;
  WEFT_TRY(join_streams(items, count, error));
  for (uint32_t r = 0; r < count; r++) {
    struct weft_pipeline *pipeline = items[r];
    struct weft_device_work *work = work_of(items, r);
    WEFT_TRY(work->device->ops->make_current(work->device, error));
    const enum weft_status status =
        pipeline->options.finish != NULL
            ? pipeline->options.finish(pipeline->options.finish_context, pass, work->stream, error)
            : WEFT_OK;
    if (status < 0) {
      return status;
    }
    work->trails = true; /* behind its last cell */
    *again = *again || status == WEFT_IN_PROGRESS;
  }
  return WEFT_OK;
}

static bool has_finish(void *const *items, uint32_t count) {
  bool has = false;
  for (uint32_t r = 0; r < count; r++) {
    const struct weft_pipeline *pipeline = items[r];
    has = has || (pipeline->options.finish != NULL && pipeline->last_row->training);
  }
  return has;
}

static enum weft_status finish_rows(void *const *items, uint32_t count, struct weft_error *error) {
  bool again = has_finish(items, count);
  for (uint32_t pass = 0; again; pass++) {
    WEFT_TRY(finish_pass(items, count, pass, &again, error));
  }
  return WEFT_OK;
}

/* Records the rows of all ranks. attempt->error says why they cannot be recorded; *error is a failure
 * of the step. */
static enum weft_status record_rows(struct weft_process_recording *recording, void *const *items,
                                    struct weft_recording *attempt, struct weft_error *error) {
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    struct weft_executor *executor = &((struct weft_pipeline *)items[r])->executor;
    weft_executor_record(executor, attempt);
    recording->ranks[r].row.actions = executor->actions_done;
  }
  find_clocks(recording, items);
  attempt->failed = fork_ranks(recording, items, &attempt->error) < 0;
  const enum weft_status status = enqueue_rows(items, recording->rank_count, error);
  attempt->failed =
      attempt->failed ||
      (status == WEFT_OK && finish_rows(items, recording->rank_count, &attempt->error) < 0) ||
      join_ranks(recording, items, &attempt->error) < 0;
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    struct weft_executor *executor = &((struct weft_pipeline *)items[r])->executor;
    recording->ranks[r].row = weft_executor_end_record(executor, recording->ranks[r].row.actions);
  }
  return status;
}

/* The step has not run, and cannot be recorded: rows begin once more, to be enqueued. */
static void restart_eagerly(struct weft_process_recording *recording, void *const *items,
                            const struct weft_error *reason) {
  (void)snprintf(recording->reason, sizeof recording->reason,
                 "it cannot be recorded as a CUDA graph: %s", reason->message);
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    struct weft_pipeline *pipeline = items[r];
    weft_executor_begin(&pipeline->executor, pipeline->last_row, pipeline->step);
  }
}

/* Without recording->recorded afterwards, recording->reason says why. */
static enum weft_status record_step(struct weft_process_recording *recording, void *const *items,
                                    struct weft_error *error) {
  const struct weft_device_ops *ops = recording->device->ops;
  struct weft_recording attempt = {.failed = false};
  struct weft_error ignored;
  if (ops->make_current(recording->device, &attempt.error) < 0 ||
      ops->capture_begin(recording->device, recording->origin, &attempt.error) < 0) {
    restart_eagerly(recording, items, &attempt.error);
    return WEFT_OK;
  }
  const enum weft_status status = record_rows(recording, items, &attempt, error);
  (void)ops->make_current(recording->device, &ignored); /* the rows' last one may be another */
  if (status < 0 || attempt.failed) {
    (void)ops->capture_end(recording->device, recording->origin, NULL, &ignored);
  } else if (ops->capture_end(recording->device, recording->origin, &recording->recorded,
                              &attempt.error) < 0) {
    attempt.failed = true;
  }
  if (status == WEFT_OK && attempt.failed) {
    restart_eagerly(recording, items, &attempt.error);
  }
  return status;
}

/* ---- Repeating it ---- */

/* After the batches have been copied, which each rank's own stream does. */
static enum weft_status launch_step(const struct weft_process_recording *recording,
                                    void *const *items, struct weft_error *error) {
  const struct weft_device_ops *ops = recording->device->ops;
  const int64_t now = weft_clock_ns();
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    struct weft_pipeline *pipeline = items[r];
    const struct weft_device_work *work = work_of(items, r);
    if (pipeline->ends.count > 0) {
      WEFT_TRY(
          weft_device_order(recording->device, work->fork, work->stream, recording->origin, error));
    }
    weft_executor_replay(&pipeline->executor, &recording->ranks[r].row, now,
                         work_of(items, recording->ranks[r].clock)->clocks);
  }
  WEFT_TRY(ops->replay(recording->device, recording->recorded, recording->origin, error));
  return ops->event_record(recording->device, recording->finish, recording->origin, error);
}

/* Between two polls of how far the ranks are, which take longer than to see that all are done: of
 * a recording, and while rows are enqueued. */
enum { WATCH_NS = 50 * 1000, POLL_NS = 200 * 1000 };

static enum weft_status await_replay(struct weft_process_recording *recording, void *const *items,
                                     struct weft_error *error) {
  enum weft_status status;
  int64_t watch_at = 0;
  while ((status = recording->device->ops->event_query(recording->device, recording->finish,
                                                       error)) == WEFT_IN_PROGRESS) {
    const int64_t now = weft_clock_ns();
    if (now < watch_at) {
      continue;
    }
    watch_at = now + WATCH_NS;
    for (uint32_t r = 0; r < recording->rank_count; r++) {
      struct weft_pipeline *pipeline = items[r];
      WEFT_TRY(weft_pipeline_poll(pipeline, error));
      status = weft_executor_watch_device(&pipeline->executor, error);
      if (status < 0) {
        return weft_pipeline_fail(pipeline, pipeline->transport->rank, error);
      }
    }
  }
  if (status < 0) {
    struct weft_pipeline *first = items[0];
    first->executor.blamed_rank = first->transport->rank;
    (void)weft_executor_fail_device(&first->executor, error);
    return weft_pipeline_fail(first, first->executor.blamed_rank, error);
  }
  for (uint32_t r = 0; r < recording->rank_count; r++) {
    struct weft_pipeline *pipeline = items[r];
    pipeline->executor.actions_done += recording->ranks[r].row.actions;
    pipeline->replayed_steps++;
    pipeline->driven_status = weft_pipeline_end_step(pipeline, pipeline->driven_error);
  }
  return WEFT_OK;
}

/* ---- The step of all ranks ---- */

static void share_failure(void *const *items, uint32_t count, const struct weft_error *error) {
  for (uint32_t r = 0; r < count; r++) {
    struct weft_pipeline *pipeline = items[r];
    *pipeline->driven_error = *error;
    pipeline->driven_status = error->status;
    pipeline->failure = *error;
    pipeline->state = WEFT_PIPELINE_FAILED;
  }
}

/* All rows are enqueued, and their ends are held: then what ends the step is enqueued too. */
static void finish_eagerly(void *const *items, uint32_t count) {
  struct weft_pipeline *first = items[0];
  struct weft_error error;
  for (uint32_t r = 0; r < count; r++) {
    if (!work_of(items, r)->finishing || !work_of(items, r)->held) {
      return;
    }
  }
  enum weft_status status = finish_rows(items, count, &error);
  for (uint32_t r = 0; r < count; r++) {
    struct weft_device_work *work = work_of(items, r);
    work->held = false;
    if (status == WEFT_OK) {
      status = work->device->ops->event_record(work->device, work->end, work->stream, &error);
    }
  }
  if (status < 0) {
    (void)weft_pipeline_fail(first, first->transport->rank, &error);
  }
}

/* Long rows are enqueued while the devices already work. A device that fails tells nothing any
 * more, so what it has done is asked for before, and seldom: asking takes as long as a record. */
static void poll_devices(void *const *items, uint32_t count, int64_t *poll_at) {
  const int64_t now = weft_clock_ns();
  if (now < *poll_at) {
    return;
  }
  *poll_at = now + POLL_NS;
  for (uint32_t r = 0; r < count; r++) {
    if (!work_of(items, r)->finishing) { /* else the rank does it by itself */
      weft_executor_poll_device(&((struct weft_pipeline *)items[r])->executor);
    }
  }
}

static void drive_eagerly(void *const *items, uint32_t count) {
  const struct weft_pipeline *first = items[0];
  const bool waits_for_host = count < first->transport->rank_count;
  const bool finishes = has_finish(items, count);
  uint32_t left = count;
  int64_t poll_at = weft_clock_ns() + POLL_NS;
  for (uint32_t r = 0; r < count; r++) {
    struct weft_pipeline *pipeline = items[r];
    pipeline->driven_status =
        weft_executor_begin_times(&pipeline->executor, pipeline->driven_error);
    if (pipeline->driven_status < 0) {
      (void)weft_pipeline_fail(pipeline, pipeline->transport->rank, pipeline->driven_error);
      break;
    }
    pipeline->driven_status = WEFT_IN_PROGRESS;
    work_of(items, r)->held = finishes;
  }
  while (left > 0) {
    left = 0;
    for (uint32_t r = 0; r < count; r++) {
      struct weft_pipeline *pipeline = items[r];
      if (pipeline->driven_status == WEFT_IN_PROGRESS) {
        pipeline->driven_status = weft_pipeline_advance(pipeline, pipeline->driven_error);
        left += pipeline->driven_status == WEFT_IN_PROGRESS;
      }
    }
    if (finishes && left > 0) {
      finish_eagerly(items, count);
    }
    poll_devices(items, count, &poll_at);
    if (waits_for_host) {
      (void)sched_yield();
    }
  }
  for (uint32_t r = 0; r < count; r++) { /* a rank may have been done before another failed */
    const struct weft_pipeline *pipeline = items[r];
    if (pipeline->state == WEFT_PIPELINE_FAILED) {
      const struct weft_error error = pipeline->failure;
      share_failure(items, count, &error);
      return;
    }
  }
}

/* The recording for this step, to be made if the step before was like it; NULL: the step is enqueued
 * action by action. Every step's key is remembered, recorded or not: an eager step, or another
 * program source, may free memory that the recording refers to, and reuse its addresses. */
static struct weft_process_recording *find_recording(void *const *items, uint32_t count,
                                                     struct weft_error *error) {
  struct weft_pipeline *first = items[0];
  const char *reason = count < first->transport->rank_count ? "a rank is on the host" : NULL;
  bool source_is_same = true;
  for (uint32_t r = 0; r < count; r++) {
    const struct weft_pipeline *pipeline = items[r];
    reason = reason == NULL ? weft_recording_reason_text(weft_recording_reason_of_step(pipeline))
                            : reason;
    source_is_same = source_is_same && pipeline->handshake_done;
  }
  if (reason == NULL && first->process_recording == NULL &&
      make_recording(first, count, error) < 0) {
    weft_process_recording_destroy(first->process_recording);
    first->process_recording = NULL;
    reason = "there is no memory for a recording";
  }
  struct weft_process_recording *recording = first->process_recording;
  const bool same = recording != NULL && remember_keys(recording, items) && source_is_same;
  if (recording != NULL && !same) {
    recording->device->ops->recording_destroy(recording->device, recording->recorded);
    recording->recorded = NULL;
    recording->reason[0] = '\0';
  }
  if (reason == NULL && recording != NULL && recording->reason[0] != '\0') {
    reason = recording->reason;
  }
  weft_recording_explain(first, reason);
  return same && reason == NULL ? recording : NULL;
}

/* When each action ran, now that all of them have. Reading the clocks that a recording has noted takes
 * no time; reading events does, so it is left to those who ask. */
static void write_times(void *const *items, uint32_t count,
                        const struct weft_executor *const *ranks) {
  bool done = true, replayed = true;
  for (uint32_t r = 0; r < count; r++) {
    done = done && ((const struct weft_pipeline *)items[r])->driven_status == WEFT_OK;
    replayed = replayed && work_of(items, r)->replaying;
  }
  for (uint32_t r = 0; done && r < count; r++) {
    work_of(items, r)->has_unread_times = !replayed && work_of(items, r)->ends != NULL;
    if (replayed) {
      weft_executor_read_clocks(&((struct weft_pipeline *)items[r])->executor);
    }
  }
  for (uint32_t r = 0; done && replayed && r < count; r++) {
    weft_executor_write_times(&((struct weft_pipeline *)items[r])->executor, ranks);
  }
}

static void drive_step(void *const *items, uint32_t count) {
  struct weft_error error = {.status = WEFT_OK};
  struct weft_process_recording *recording = find_recording(items, count, &error);
  if (recording == NULL) {
    drive_eagerly(items, count);
    return;
  }
  enum weft_status status = WEFT_OK;
  if (recording->recorded == NULL) {
    status = record_step(recording, items, &error);
    if (status == WEFT_OK && recording->recorded == NULL) {
      weft_recording_explain(items[0], recording->reason);
      drive_eagerly(items, count);
      return;
    }
  }
  if (status == WEFT_OK) {
    status = launch_step(recording, items, &error);
  }
  if (status == WEFT_OK) {
    status = await_replay(recording, items, &error);
  }
  if (status < 0) {
    struct weft_pipeline *first = items[0];
    if (first->state != WEFT_PIPELINE_FAILED) {
      (void)weft_pipeline_fail(first, first->transport->rank, &error);
    }
    share_failure(items, count, &error);
  }
}

/* After a failure, each rank frees what is its own, which others and the recording may still use. A
 * device that does not end is left as it is. */
static void drain_devices(void *const *items, uint32_t count) {
  struct weft_pipeline *first = items[0];
  int64_t limit = first->options.stall_limit;
  struct weft_error error;
  bool failed = false, drained = true;
  for (uint32_t r = 0; r < count; r++) {
    const enum weft_status status = ((const struct weft_pipeline *)items[r])->driven_status;
    failed = failed || status < 0;
    limit = status < 0 ? weft_pipeline_drain_limit(first, status) : limit;
  }
  if (failed && first->process_recording != NULL) { /* rank 0's stream comes after the recording */
    const struct weft_process_recording *recording = first->process_recording;
    if (recording->device->ops->make_current(recording->device, &error) == WEFT_OK) {
      (void)weft_device_order(recording->device, recording->finish, recording->origin,
                              first->executor.device->stream, &error);
    }
  }
  for (uint32_t r = 0; failed && drained && r < count; r++) {
    drained = weft_executor_drain_device(&((struct weft_pipeline *)items[r])->executor, limit);
  }
  for (uint32_t r = 0; !drained && r < count; r++) {
    weft_executor_abandon_device(&((struct weft_pipeline *)items[r])->executor);
  }
}

/* During a step ranks know each other, and where some ranks are on the host (`mixed`), those keep
 * their messages until the step has ended for the devices, too. */
static void mark_ranks(void *const *items, uint32_t count, bool mixed, bool in_step,
                       const struct weft_executor *const *ranks) {
  for (uint32_t r = 0; r < count; r++) {
    struct weft_rank_status *status = ((struct weft_pipeline *)items[r])->executor.status;
    work_of(items, r)->ranks = ranks;
    if (mixed && in_step) {
      (void)__atomic_fetch_or(&status->flags, WEFT_RANK_IN_STEP, __ATOMIC_ACQ_REL);
    } else if (mixed) {
      (void)__atomic_fetch_and(&status->flags, ~(uint64_t)WEFT_RANK_IN_STEP, __ATOMIC_ACQ_REL);
    }
  }
}

static void drive_ranks(void *const *items, uint32_t count) {
  struct weft_pipeline *first = items[0];
  const uint32_t rank_count = first->transport->rank_count;
  if (first->ranks == NULL) { /* once */
    first->ranks = weft_arena_allocate(&first->memory, rank_count, sizeof(void *));
  }
  const struct weft_executor **ranks = first->ranks;
  for (uint32_t r = 0; ranks != NULL && r < count; r++) {
    const struct weft_pipeline *pipeline = items[r];
    ranks[pipeline->transport->rank] = &pipeline->executor;
  }
  mark_ranks(items, count, count < rank_count, true, ranks);
  drive_step(items, count);
  if (ranks != NULL && !first->options.no_events) {
    write_times(items, count, ranks);
  }
  drain_devices(items, count);
  mark_ranks(items, count, count < rank_count, false, NULL);
}

enum weft_status weft_pipeline_step_process(struct weft_pipeline *pipeline,
                                            struct weft_error *error) {
  assert(pipeline->transport->ops->step_barrier != NULL);
  struct weft_transport *transport = pipeline->transport;
  const int64_t limit = pipeline->options.stall_limit;
  pipeline->driven_error = error;
  pipeline->driven_status = WEFT_OK;
  WEFT_STATUS_STORE(pipeline->executor.status->phase, (uint32_t)WEFT_PHASE_HANDSHAKE);
  const int64_t until = limit > 0 ? transport->ops->now(transport) + limit : WEFT_TIME_NEVER;
  const enum weft_status status =
      transport->ops->step_barrier(transport, pipeline, drive_ranks, until, error);
  if (status < 0) {
    pipeline->state = WEFT_PIPELINE_FAILED;
    pipeline->failure = *error;
    return status;
  }
  return status == WEFT_OK ? pipeline->driven_status : status;
}
