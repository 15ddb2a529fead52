/* The step of a rank that is a process, recorded by itself. The transport enqueues (nccl), so the
 * recording has the rank's transfers as well, one after the other in the order of the row.
 *
 * NCCL wants both ends of a transfer to be recorded, or none, and both in the same step. So all
 * ranks of the pipeline decide alike, by an all-gather at the beginning of each step:
 *
 *     all-gather: step, program, whether this step is like the one before, whether it is recorded
 *        ├─ some rank cannot, or its step is another ────────────────▶ action by action
 *        ├─ all have recorded it ────────────────────────────────────▶ replay it
 *        └─ all record the row; headers go by MPI and are checked as in any step
 *              all-gather: whether that worked
 *                 ├─ yes ──────────────────────────────────────────▶ replay it
 *                 └─ no: all forget it ───────────────────────────▶ action by action
 *
 * The first all-gather also stands for the headers of a replayed step: ranks with the same program
 * at the same step send what they sent when it was recorded. */
#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/support.h>

#include "run/pipeline.h"
#include "run/step/recording.h"

/* Chained transfers may make a step so much longer. */
static const double SLOWDOWN_MAX = 1.05;

struct vote {
  uint64_t step, program;
  uint32_t reason;       /* enum weft_recording_reason */
  uint8_t like;          /* the step before was like this one */
  uint8_t has_recording; /* of such steps */
  uint8_t unused[2];
};

struct outcome {
  uint32_t failed;
  char reason[252];
};

struct weft_rank_recording {
  struct weft_arena memory; /* of what has an entry per member */
  struct weft_device *device;
  struct weft_group *group; /* of the pipeline's ranks */
  uint32_t first_rank;      /* of them */
  struct weft_device_recording *recorded;
  struct weft_recording_key key;             /* of the last step */
  const struct weft_row *checked;            /* the row of the next: */
  enum weft_recording_reason checked_reason; /* what its chain of transfers says */
  struct weft_recorded_row row;

  enum { UNDECIDED, VOTING, RECORDED, DECIDED } state;
  struct weft_collective collective;
  struct vote vote, *votes;          /* [members] */
  struct outcome outcome, *outcomes; /* [members] */
  char reason[600];                  /* why the last recording failed; "": it did not */
};

/* ---- Opening and closing ---- */

static void drop_recording(struct weft_rank_recording *recording) {
  recording->device->ops->recording_destroy(recording->device, recording->recorded);
  recording->recorded = NULL;
}

void weft_rank_recording_destroy(struct weft_rank_recording *recording) {
  if (recording == NULL) {
    return;
  }
  drop_recording(recording);
  if (recording->group != NULL) {
    recording->group->ops->destroy(recording->group);
  }
  const struct weft_allocator *allocator = recording->memory.allocator;
  weft_arena_finish(&recording->memory);
  weft_array_free(allocator, recording, 1, sizeof *recording);
}

uint32_t weft_rank_recording_reason(const struct weft_pipeline *pipeline) {
  return pipeline->transport->ops->group == NULL ? WEFT_RECORDING_NO_GROUP
                                                 : weft_recording_reason_of_pipeline(pipeline);
}

static enum weft_status join_group(struct weft_rank_recording *recording,
                                   struct weft_pipeline *pipeline, uint32_t members,
                                   struct weft_error *error) {
  struct weft_transport *transport = pipeline->transport;
  struct weft_arena *memory = &recording->memory;
  uint32_t *ranks = weft_arena_allocate(memory, members, sizeof *ranks);
  recording->votes = weft_arena_allocate(memory, members, sizeof *recording->votes);
  recording->outcomes = weft_arena_allocate(memory, members, sizeof *recording->outcomes);
  WEFT_TRY(weft_arena_status(memory, error));
  for (uint32_t k = 0; k < members; k++) {
    ranks[k] = recording->first_rank + k;
  }
  return transport->ops->group(transport, WEFT_GROUP_PIPELINES + recording->first_rank, ranks,
                               members, NULL, &recording->group, error);
}

/* "rank 2: options.eager is set"; rank UINT32_MAX: the same on all. */
static void set_reason(char reason[600], struct weft_pipeline *pipeline, uint32_t rank,
                       const char *cause) {
  char text[600];
  (void)snprintf(text, sizeof text, "rank %" PRIu32 ": %s", rank, cause);
  if (rank == UINT32_MAX) {
    (void)snprintf(text, sizeof text, "%s", cause);
  }
  if (strcmp(text, reason) != 0) { /* then the log has it again */
    memcpy(reason, text, sizeof text);
    pipeline->eager_reason = NULL;
  }
  weft_recording_explain(pipeline, reason);
}

enum weft_status weft_rank_recording_open(struct weft_pipeline *pipeline,
                                          struct weft_error *error) {
  const uint32_t first = pipeline->options.first_rank;
  const uint32_t members = pipeline->rows->program->rank_count;
  assert(members <= pipeline->transport->rank_count - first);
  if (!weft_executor_is_enqueued(&pipeline->executor) || pipeline->handshakes == NULL) {
    return WEFT_OK;
  }
  weft_rank_recording_destroy(pipeline->rank_recording); /* of another source */
  pipeline->rank_recording = NULL;
  for (uint32_t r = first; r < first + members; r++) {
    const uint64_t reason = pipeline->handshakes[r].recording;
    if (reason != WEFT_RECORDING_POSSIBLE) {
      set_reason(pipeline->reason_text, pipeline, r, weft_recording_reason_text((uint32_t)reason));
      return WEFT_OK;
    }
  }
  struct weft_rank_recording *recording =
      weft_array_allocate_zero(pipeline->allocator, 1, sizeof *recording);
  if (recording == NULL) {
    return weft_fail_memory(error, sizeof *recording);
  }
  recording->memory.allocator = pipeline->allocator;
  recording->device = pipeline->options.device;
  recording->first_rank = first;
  pipeline->rank_recording = recording;
  return join_group(recording, pipeline, members, error);
}

void weft_rank_recording_begin_step(struct weft_pipeline *pipeline) {
  if (pipeline->rank_recording != NULL) {
    pipeline->rank_recording->state = UNDECIDED;
  }
}

/* ---- Deciding ---- */

static enum weft_status start_gather(struct weft_rank_recording *recording, const void *from,
                                     void *to, uint64_t bytes, struct weft_error *error) {
  assert(recording->group != NULL && bytes > 0);
  recording->collective =
      (struct weft_collective){.kind = WEFT_ALL_GATHER, .from = from, .to = to, .bytes = bytes};
  return recording->group->ops->start(recording->group, &recording->collective, error);
}

/* As a rank in the handshake: it waits for the ranks that have not begun the step. */
static enum weft_status await_gather(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_recording *recording = pipeline->rank_recording;
  struct weft_executor *executor = &pipeline->executor;
  const enum weft_status status =
      recording->group->ops->test(recording->group, &recording->collective, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_executor_block(executor, WEFT_PHASE_HANDSHAKE, UINT32_MAX, weft_action_idle(),
                               weft_executor_ask_at(executor, executor->last_progress), error);
  }
  weft_executor_read_clock(executor);
  executor->last_progress = executor->now;
  return status;
}

/* Whether this row, with one transfer at a time, ends and is worth recording: the same on all ranks,
 * which have the same program. Without memory to find out, it is not. */
static enum weft_recording_reason check_chain(struct weft_pipeline *pipeline) {
  struct weft_rank_recording *recording = pipeline->rank_recording;
  const struct weft_row *row = pipeline->last_row;
  if (recording->checked != row) {
    const double most = pipeline->options.record_slow ? DBL_MAX : SLOWDOWN_MAX;
    struct weft_error error;
    double slowdown = INFINITY;
    (void)weft_transfer_chain_check(pipeline->allocator, row->program, row->rank_of, &slowdown,
                                    &error);
    recording->checked = row;
    recording->checked_reason = isinf(slowdown)   ? WEFT_RECORDING_CHAIN_HANGS
                                : slowdown > most ? WEFT_RECORDING_CHAIN_SLOW
                                                  : WEFT_RECORDING_POSSIBLE;
  }
  return recording->checked_reason;
}

static enum weft_status begin_vote(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_recording *recording = pipeline->rank_recording;
  const struct weft_recording_key key = weft_recording_key_of(pipeline);
  struct vote *vote = &recording->vote;
  memset(vote, 0, sizeof *vote);
  vote->step = pipeline->step;
  vote->program = pipeline->last_row->hash;
  vote->like = memcmp(&key, &recording->key, sizeof key) == 0;
  vote->has_recording = recording->recorded != NULL;
  vote->reason = weft_recording_reason_of_step(pipeline);
  if (vote->reason == WEFT_RECORDING_POSSIBLE) {
    vote->reason = check_chain(pipeline);
  }
  recording->key = key;
  return start_gather(recording, vote, recording->votes, sizeof *vote, error);
}

/* What headers would say. */
static enum weft_status check_vote(struct weft_pipeline *pipeline, uint32_t k,
                                   struct weft_error *error) {
  assert(k < pipeline->rank_recording->group->size);
  const struct weft_rank_recording *recording = pipeline->rank_recording;
  const struct vote *other = &recording->votes[k];
  if (other->step == recording->vote.step && other->program == recording->vote.program) {
    return WEFT_OK;
  }
  const bool step = other->step != recording->vote.step;
  pipeline->executor.blamed_rank = recording->first_rank + k;
  return weft_fail(error, WEFT_ERR_PROTOCOL,
                   "all ranks must do the same steps, with the same numbers of microbatches",
                   "rank %" PRIu32 " begins a step with %s %" PRIu64 ", and rank %" PRIu32
                   " with %" PRIu64,
                   pipeline->transport->rank, step ? "number" : "program",
                   step ? recording->vote.step : recording->vote.program, recording->first_rank + k,
                   step ? other->step : other->program);
}

/* The reason of the first rank that cannot record. There is none while a step merely differs from
 * the one before: the next one may be recorded. */
static enum weft_status count_votes(struct weft_pipeline *pipeline, bool *replays, bool *records,
                                    struct weft_error *error) {
  struct weft_rank_recording *recording = pipeline->rank_recording;
  uint32_t against = UINT32_MAX;
  bool like = true, has_recording = true;
  for (uint32_t k = recording->group->size; k-- > 0;) {
    const struct vote *vote = &recording->votes[k];
    WEFT_TRY(check_vote(pipeline, k, error));
    against = vote->reason != WEFT_RECORDING_POSSIBLE ? k : against;
    like = like && vote->like != 0;
    has_recording = has_recording && vote->has_recording != 0;
  }
  if (!like) {
    drop_recording(recording);
    recording->reason[0] = '\0';
  }
  const uint32_t reason = against != UINT32_MAX ? recording->votes[against].reason : 0;
  const bool everywhere =
      reason == WEFT_RECORDING_CHAIN_HANGS || reason == WEFT_RECORDING_CHAIN_SLOW;
  if (against != UINT32_MAX) {
    set_reason(pipeline->reason_text, pipeline,
               everywhere ? UINT32_MAX : recording->first_rank + against,
               weft_recording_reason_text(reason));
  } else {
    weft_recording_explain(pipeline, recording->reason[0] != '\0' ? recording->reason : NULL);
  }
  *replays = like && against == UINT32_MAX && recording->reason[0] == '\0' && has_recording;
  *records = like && against == UINT32_MAX && recording->reason[0] == '\0' && !has_recording;
  return WEFT_OK;
}

/* ---- Recording ---- */

static enum weft_status fork_streams(const struct weft_executor *executor,
                                     struct weft_error *error) {
  const struct weft_device_work *work = executor->device;
  const struct weft_device_ops *ops = work->device->ops;
  struct weft_stream *const others[] = {work->watch, work->incoming, work->outgoing};
  WEFT_TRY(ops->event_record(work->device, work->fork, work->stream, error));
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(others); k++) {
    if (others[k] != NULL) {
      WEFT_TRY(ops->event_wait(work->device, work->fork, others[k], error));
    }
  }
  return weft_executor_record_begin(executor, error);
}

/* Advances through the whole row in one call: between two calls the caller might use the device,
 * which a recording does not allow. It waits for headers of other ranks, which do the same. */
static enum weft_status advance_row(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_transport *transport = pipeline->transport;
  struct weft_executor *executor = &pipeline->executor;
  while (!executor->device->finishing) {
    WEFT_TRY(weft_pipeline_poll(pipeline, error));
    executor->blamed_rank = transport->rank;
    WEFT_TRY(weft_executor_advance(executor, error));
    if (!executor->device->finishing) {
      WEFT_TRY(transport->ops->wait(transport, executor->wake_at, error));
    }
  }
  return WEFT_OK;
}

/* attempt->error says why the row cannot be recorded; *error is a failure of the step. */
static enum weft_status record_row(struct weft_pipeline *pipeline, struct weft_recording *attempt,
                                   struct weft_error *error) {
  struct weft_rank_recording *recording = pipeline->rank_recording;
  struct weft_executor *executor = &pipeline->executor;
  struct weft_device_work *work = executor->device;
  const struct weft_device_ops *ops = recording->device->ops;
  const uint64_t before = executor->actions_done;
  struct weft_error ignored;
  const bool captures =
      ops->make_current(recording->device, &attempt->error) == WEFT_OK &&
      ops->capture_begin(recording->device, work->stream, &attempt->error) == WEFT_OK;
  attempt->failed = !captures || fork_streams(executor, &attempt->error) < 0;
  weft_executor_record(executor, attempt);
  const enum weft_status status = advance_row(pipeline, error);
  recording->row = weft_executor_end_record(executor, before);
  attempt->failed = attempt->failed || status < 0 || weft_device_join(work, &attempt->error) < 0;
  if (captures && attempt->failed) {
    (void)ops->capture_end(recording->device, work->stream, NULL, &ignored);
  } else if (captures) {
    attempt->failed = ops->capture_end(recording->device, work->stream, &recording->recorded,
                                       &attempt->error) < 0;
  }
  return status;
}

static enum weft_status record_step(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_recording *recording = pipeline->rank_recording;
  struct weft_recording attempt = {.failed = false};
  drop_recording(recording);
  WEFT_TRY(record_row(pipeline, &attempt, error));
  memset(&recording->outcome, 0, sizeof recording->outcome);
  recording->outcome.failed = attempt.failed;
  if (attempt.failed) {
    (void)snprintf(recording->outcome.reason, sizeof recording->outcome.reason, "%.*s",
                   (int)sizeof recording->outcome.reason - 1, attempt.error.message);
  }
  return start_gather(recording, &recording->outcome, recording->outcomes,
                      sizeof recording->outcome, error);
}

/* ---- Repeating ---- */

/* The batch is before it in the stream. */
static enum weft_status launch_step(struct weft_pipeline *pipeline, struct weft_error *error) {
  assert(pipeline->rank_recording->recorded != NULL);
  struct weft_rank_recording *recording = pipeline->rank_recording;
  struct weft_executor *executor = &pipeline->executor;
  struct weft_device_work *work = executor->device;
  const struct weft_device_ops *ops = recording->device->ops;
  recording->state = DECIDED;
  WEFT_TRY(ops->make_current(recording->device, error));
  weft_executor_read_clock(executor);
  weft_executor_replay(executor, &recording->row, executor->now, work->clocks);
  WEFT_TRY(ops->replay(recording->device, recording->recorded, work->stream, error));
  return ops->event_record(work->device, work->end, work->stream, error);
}

/* The row is enqueued action by action, from its beginning. */
static enum weft_status run_eagerly(struct weft_pipeline *pipeline, struct weft_error *error) {
  pipeline->rank_recording->state = DECIDED;
  return weft_executor_begin_times(&pipeline->executor, error);
}

/* All ranks have recorded the row, or have tried to. */
static enum weft_status act_on_outcomes(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_recording *recording = pipeline->rank_recording;
  char reason[sizeof recording->outcome.reason + 40];
  for (uint32_t k = 0; k < recording->group->size; k++) {
    struct outcome *outcome = &recording->outcomes[k];
    if (outcome->failed != 0) {
      outcome->reason[sizeof outcome->reason - 1] = '\0'; /* another process has written it */
      (void)snprintf(reason, sizeof reason, "it cannot be recorded as a CUDA graph: %s",
                     outcome->reason);
      drop_recording(recording);
      const bool has_rank = strncmp(outcome->reason, "rank ", 5) == 0;
      set_reason(recording->reason, pipeline, has_rank ? UINT32_MAX : recording->first_rank + k,
                 reason);
      weft_executor_begin(&pipeline->executor, pipeline->last_row, pipeline->step);
      return run_eagerly(pipeline, error);
    }
  }
  return launch_step(pipeline, error);
}

static enum weft_status act_on_votes(struct weft_pipeline *pipeline, struct weft_error *error) {
  bool replays, records;
  WEFT_TRY(count_votes(pipeline, &replays, &records, error));
  if (records) {
    WEFT_TRY(record_step(pipeline, error));
    pipeline->rank_recording->state = RECORDED;
    return WEFT_OK;
  }
  return replays ? launch_step(pipeline, error) : run_eagerly(pipeline, error);
}

enum weft_status weft_rank_recording_advance(struct weft_pipeline *pipeline,
                                             struct weft_error *error) {
  assert(pipeline->rank_recording != NULL && pipeline->executor.device != NULL);
  struct weft_rank_recording *recording = pipeline->rank_recording;
  if (recording->state == UNDECIDED) {
    WEFT_TRY(begin_vote(pipeline, error));
    recording->state = VOTING;
  }
  while (recording->state != DECIDED) {
    WEFT_AWAIT(await_gather(pipeline, error));
    WEFT_TRY((recording->state == VOTING ? act_on_votes : act_on_outcomes)(pipeline, error));
  }
  if (!pipeline->executor.device->replaying) {
    return weft_executor_advance(&pipeline->executor, error);
  }
  WEFT_AWAIT(weft_executor_await_device(&pipeline->executor, error));
  pipeline->executor.actions_done += recording->row.actions;
  pipeline->replayed_steps++;
  return WEFT_OK;
}
