/* The step of a rank that is a process, as a graph of its own. The transport enqueues (nccl), so the
 * graph has the rank's transfers as well, one after the other in the order of the row.
 *
 * NCCL wants both ends of a transfer in a graph, or none, and both from the same recording. So all
 * ranks of the pipeline decide alike, by an all-gather at the beginning of each step:
 *
 *     all-gather: step, program, whether this step is like the one before, whether there is a graph
 *        ├─ some rank cannot, or its step is another ────────────────▶ action by action
 *        ├─ all have a graph ────────────────────────────────────────▶ launch it
 *        └─ all record the row; headers go by MPI and are checked as in any step
 *              all-gather: whether that worked
 *                 ├─ yes ──────────────────────────────────────────▶ launch it
 *                 └─ no: all forget it ───────────────────────────▶ action by action
 *
 * The first all-gather also stands for the headers of a replayed step: ranks with the same program
 * at the same step send what they sent when it was recorded. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "run/pipeline.h"
#include "run/step/step_graph.h"
#include "run/device/transfer_chain.h"

/* Chained transfers may make a step so much longer. */
static const double SLOWDOWN_MAX = 1.05;

struct vote {
  uint64_t step, program;
  uint32_t refusal;  /* enum weft_step_graph_refusal */
  uint8_t like;      /* the step before was like this one */
  uint8_t has_graph; /* of such steps */
  uint8_t unused[2];
};

struct outcome {
  uint32_t failed;
  char reason[252];
};

struct weft_rank_graph {
  const struct weft_allocator *allocator;
  struct weft_device *device;
  struct weft_group *group; /* of the pipeline's ranks */
  uint32_t first_rank;      /* of them */
  struct weft_device_graph *recorded;
  struct weft_step_graph_key key;          /* of the last step */
  const struct weft_row *checked;          /* the row of the next: */
  enum weft_step_graph_refusal of_checked; /* what its chain of transfers says */
  /* Of the row that was recorded: what the executor has counted. */
  uint32_t cells, waits, transfers;
  uint64_t actions;

  enum { UNDECIDED, VOTING, RECORDED, DECIDED } state;
  struct weft_collective collective;
  struct vote vote, *votes;          /* [members] */
  struct outcome outcome, *outcomes; /* [members] */
  char refusal[600];                 /* "": none */
};

/* ---- Opening and closing ---- */

static void drop(struct weft_rank_graph *graph) {
  graph->device->ops->graph_destroy(graph->device, graph->recorded);
  graph->recorded = NULL;
}

void weft_rank_graph_destroy(struct weft_rank_graph *graph) {
  if (graph == NULL) {
    return;
  }
  drop(graph);
  if (graph->group != NULL) {
    const uint32_t members = graph->group->size;
    weft_array_free(graph->allocator, graph->votes, members, sizeof *graph->votes);
    weft_array_free(graph->allocator, graph->outcomes, members, sizeof *graph->outcomes);
    graph->group->ops->destroy(graph->group);
  }
  weft_array_free(graph->allocator, graph, 1, sizeof *graph);
}

uint32_t weft_rank_graph_refusal(const struct weft_pipeline *pipeline) {
  return pipeline->transport->ops->group == NULL ? WEFT_STEP_GRAPH_NO_GROUP
                                                 : weft_step_graph_refuse_always(pipeline);
}

static enum weft_status join(struct weft_rank_graph *graph, struct weft_pipeline *pipeline,
                             uint32_t members, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = pipeline->allocator};
  struct weft_transport *transport = pipeline->transport;
  uint32_t *ranks = weft_arena_allocate(&arena, members, sizeof *ranks);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t k = 0; k < members; k++) {
    ranks[k] = graph->first_rank + k;
  }
  WEFT_TRY(transport->ops->group(transport, WEFT_GROUP_PIPELINES + graph->first_rank, ranks,
                                 members, NULL, &graph->group, error));
  graph->votes = weft_array_allocate_zero(graph->allocator, members, sizeof *graph->votes);
  graph->outcomes = weft_array_allocate_zero(graph->allocator, members, sizeof *graph->outcomes);
  return graph->votes != NULL && graph->outcomes != NULL
             ? WEFT_OK
             : weft_fail_memory(error, members * sizeof *graph->outcomes);
}

/* "rank 2: options.no_graph is set"; rank UINT32_MAX: the same on all. */
static void refuse(char refusal[600], struct weft_pipeline *pipeline, uint32_t rank,
                   const char *reason) {
  char text[600];
  (void)snprintf(text, sizeof text, "rank %" PRIu32 ": %s", rank, reason);
  if (rank == UINT32_MAX) {
    (void)snprintf(text, sizeof text, "%s", reason);
  }
  if (strcmp(text, refusal) != 0) { /* then the log has it again */
    memcpy(refusal, text, sizeof text);
    pipeline->no_graph_reason = NULL;
  }
  weft_step_graph_explain(pipeline, refusal);
}

enum weft_status weft_rank_graph_open(struct weft_pipeline *pipeline, struct weft_error *error) {
  const uint32_t first = pipeline->options.first_rank;
  const uint32_t members = pipeline->rows->program->rank_count;
  if (!weft_executor_is_enqueued(&pipeline->executor) || pipeline->handshakes == NULL) {
    return WEFT_OK;
  }
  weft_rank_graph_destroy(pipeline->apart); /* of another source */
  pipeline->apart = NULL;
  for (uint32_t r = first; r < first + members; r++) {
    const uint64_t refusal = pipeline->handshakes[r].graph;
    if (refusal != WEFT_STEP_GRAPH_POSSIBLE) {
      refuse(pipeline->apart_refusal, pipeline, r, weft_step_graph_refusal_text((uint32_t)refusal));
      return WEFT_OK;
    }
  }
  struct weft_rank_graph *graph = weft_array_allocate_zero(pipeline->allocator, 1, sizeof *graph);
  if (graph == NULL) {
    return weft_fail_memory(error, sizeof *graph);
  }
  graph->allocator = pipeline->allocator;
  graph->device = pipeline->options.device;
  graph->first_rank = first;
  pipeline->apart = graph;
  return join(graph, pipeline, members, error);
}

void weft_rank_graph_begin_step(struct weft_pipeline *pipeline) {
  if (pipeline->apart != NULL) {
    pipeline->apart->state = UNDECIDED;
  }
}

/* ---- Deciding ---- */

static enum weft_status gather(struct weft_rank_graph *graph, const void *from, void *to,
                               uint64_t bytes, struct weft_error *error) {
  graph->collective =
      (struct weft_collective){.kind = WEFT_ALL_GATHER, .from = from, .to = to, .bytes = bytes};
  return graph->group->ops->start(graph->group, &graph->collective, error);
}

/* As a rank in the handshake: it waits for the ranks that have not begun the step. */
static enum weft_status await(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_graph *graph = pipeline->apart;
  struct weft_executor *executor = &pipeline->executor;
  const enum weft_status status = graph->group->ops->test(graph->group, &graph->collective, error);
  if (status == WEFT_IN_PROGRESS) {
    return weft_executor_block(executor, WEFT_PHASE_HANDSHAKE, UINT32_MAX, weft_action_idle(),
                               weft_executor_ask_at(executor, executor->last_progress), error);
  }
  weft_executor_read_clock(executor);
  executor->last_progress = executor->now;
  return status;
}

/* Whether a graph of this row ends, and is worth it: the same on all ranks, which have the same
 * program. Where there is no memory to find out, it is not. */
static enum weft_step_graph_refusal check_chain(struct weft_pipeline *pipeline) {
  struct weft_rank_graph *graph = pipeline->apart;
  const struct weft_row *row = pipeline->last_row;
  if (graph->checked != row) {
    const char *wanted = getenv("WEFT_NCCL_GRAPHS");
    const bool all = wanted != NULL && strcmp(wanted, "all") == 0;
    struct weft_error error;
    double slowdown = INFINITY;
    (void)weft_transfer_chain_check(pipeline->allocator, row->program, row->rank_of, &slowdown,
                                    &error);
    graph->checked = row;
    graph->of_checked = isinf(slowdown)                   ? WEFT_STEP_GRAPH_CHAIN_HANGS
                        : slowdown > SLOWDOWN_MAX && !all ? WEFT_STEP_GRAPH_CHAIN_SLOW
                                                          : WEFT_STEP_GRAPH_POSSIBLE;
  }
  return graph->of_checked;
}

static enum weft_status begin_vote(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_graph *graph = pipeline->apart;
  const struct weft_step_graph_key key = weft_step_graph_key_of(pipeline);
  struct vote *vote = &graph->vote;
  memset(vote, 0, sizeof *vote);
  vote->step = pipeline->step;
  vote->program = pipeline->last_row->hash;
  vote->like = memcmp(&key, &graph->key, sizeof key) == 0;
  vote->has_graph = graph->recorded != NULL;
  vote->refusal = weft_step_graph_refuse(pipeline);
  if (vote->refusal == WEFT_STEP_GRAPH_POSSIBLE) {
    vote->refusal = check_chain(pipeline);
  }
  graph->key = key;
  return gather(graph, vote, graph->votes, sizeof *vote, error);
}

/* What headers would say. */
static enum weft_status check_vote(struct weft_pipeline *pipeline, uint32_t k,
                                   struct weft_error *error) {
  const struct weft_rank_graph *graph = pipeline->apart;
  const struct vote *other = &graph->votes[k];
  if (other->step == graph->vote.step && other->program == graph->vote.program) {
    return WEFT_OK;
  }
  const bool step = other->step != graph->vote.step;
  pipeline->executor.blamed_rank = graph->first_rank + k;
  return weft_fail(error, WEFT_ERR_PROTOCOL,
                   "all ranks must do the same steps, with the same numbers of microbatches",
                   "rank %" PRIu32 " begins a step with %s %" PRIu64 ", and rank %" PRIu32
                   " with %" PRIu64,
                   pipeline->transport->rank, step ? "number" : "program",
                   step ? graph->vote.step : graph->vote.program, graph->first_rank + k,
                   step ? other->step : other->program);
}

/* The rank that refuses; or, if another rank's step is not like its last, nobody's: a graph may
 * follow. */
static enum weft_status count_votes(struct weft_pipeline *pipeline, bool *replays, bool *records,
                                    struct weft_error *error) {
  struct weft_rank_graph *graph = pipeline->apart;
  uint32_t refuses = UINT32_MAX;
  bool like = true, has_graph = true;
  for (uint32_t k = graph->group->size; k-- > 0;) {
    const struct vote *vote = &graph->votes[k];
    WEFT_TRY(check_vote(pipeline, k, error));
    refuses = vote->refusal != WEFT_STEP_GRAPH_POSSIBLE ? k : refuses;
    like = like && vote->like != 0;
    has_graph = has_graph && vote->has_graph != 0;
  }
  if (!like) {
    drop(graph);
    graph->refusal[0] = '\0';
  }
  const uint32_t refusal = refuses != UINT32_MAX ? graph->votes[refuses].refusal : 0;
  const bool everywhere =
      refusal == WEFT_STEP_GRAPH_CHAIN_HANGS || refusal == WEFT_STEP_GRAPH_CHAIN_SLOW;
  if (refuses != UINT32_MAX) {
    refuse(pipeline->apart_refusal, pipeline, everywhere ? UINT32_MAX : graph->first_rank + refuses,
           weft_step_graph_refusal_text(refusal));
  } else {
    weft_step_graph_explain(pipeline, graph->refusal[0] != '\0' ? graph->refusal : NULL);
  }
  *replays = like && refuses == UINT32_MAX && graph->refusal[0] == '\0' && has_graph;
  *records = like && refuses == UINT32_MAX && graph->refusal[0] == '\0' && !has_graph;
  return WEFT_OK;
}

/* ---- Recording ---- */

/* What is beside the rank's stream; a rank that exchanges no messages has no stream for them. */
static void list_streams(const struct weft_device_work *work, struct weft_stream *others[3]) {
  others[0] = work->watch;
  others[1] = work->incoming;
  others[2] = work->outgoing;
}

static enum weft_status fork_streams(const struct weft_executor *executor,
                                     struct weft_error *error) {
  const struct weft_device_work *work = executor->device;
  const struct weft_device_ops *ops = work->device->ops;
  struct weft_stream *others[3];
  list_streams(work, others);
  WEFT_TRY(ops->event_record(work->device, work->fork, work->stream, error));
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(others); k++) {
    if (others[k] != NULL) {
      WEFT_TRY(ops->event_wait(work->device, work->fork, others[k], error));
    }
  }
  return weft_executor_note_begin(executor, error);
}

static enum weft_status join_streams(const struct weft_device_work *work,
                                     struct weft_error *error) {
  const struct weft_device_ops *ops = work->device->ops;
  struct weft_stream *others[3];
  list_streams(work, others);
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(others); k++) {
    if (others[k] != NULL) {
      WEFT_TRY(ops->event_record(work->device, work->join, others[k], error));
      WEFT_TRY(ops->event_wait(work->device, work->join, work->stream, error));
    }
  }
  return WEFT_OK;
}

/* Goes through the row in one call: between two calls the caller might use the device, which a
 * recording does not allow. It waits for headers of other ranks, which do the same. */
static enum weft_status go_through(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_transport *transport = pipeline->transport;
  struct weft_executor *executor = &pipeline->executor;
  while (!executor->device->finishing) {
    WEFT_TRY(transport->ops->progress(transport, error));
    executor->blamed_rank = transport->rank;
    if (weft_executor_is_interrupted(executor)) {
      return weft_fail(error, WEFT_ERR_CANCELLED, "",
                       "rank %" PRIu32 " was asked to stop in step %" PRIu64, transport->rank,
                       pipeline->step);
    }
    const enum weft_status status = weft_executor_advance(executor, error);
    if (status < 0) {
      return status;
    }
    if (!executor->device->finishing) {
      WEFT_TRY(transport->ops->wait(transport, executor->wake_at, error));
    }
  }
  return WEFT_OK;
}

/* What is wrong with the recording is in there; an error is one of the step. */
static enum weft_status record_row(struct weft_pipeline *pipeline, struct weft_recording *recording,
                                   struct weft_error *error) {
  struct weft_rank_graph *graph = pipeline->apart;
  struct weft_executor *executor = &pipeline->executor;
  struct weft_device_work *work = executor->device;
  const struct weft_device_ops *ops = graph->device->ops;
  const uint64_t before = executor->actions_done;
  struct weft_error ignored;
  const bool captures =
      ops->make_current(graph->device, &recording->error) == WEFT_OK &&
      ops->capture_begin(graph->device, work->stream, &recording->error) == WEFT_OK;
  recording->failed = !captures || fork_streams(executor, &recording->error) < 0;
  weft_executor_record(executor, recording);
  const enum weft_status status = go_through(pipeline, error);
  weft_executor_record(executor, NULL);
  graph->cells = work->enqueued;
  graph->waits = work->wait_count;
  graph->transfers = work->copy_count;
  graph->actions = executor->actions_done - before;
  executor->actions_done = before; /* they are still to be done */
  recording->failed = recording->failed || status < 0 || join_streams(work, &recording->error) < 0;
  if (captures && recording->failed) {
    (void)ops->capture_end(graph->device, work->stream, NULL, &ignored);
  } else if (captures) {
    recording->failed =
        ops->capture_end(graph->device, work->stream, &graph->recorded, &recording->error) < 0;
  }
  return status;
}

static enum weft_status record(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_graph *graph = pipeline->apart;
  struct weft_recording recording = {.failed = false};
  drop(graph); /* that of one rank alone is of no use */
  WEFT_TRY(record_row(pipeline, &recording, error));
  memset(&graph->outcome, 0, sizeof graph->outcome);
  graph->outcome.failed = recording.failed;
  if (recording.failed) {
    (void)snprintf(graph->outcome.reason, sizeof graph->outcome.reason, "%.*s",
                   (int)sizeof graph->outcome.reason - 1, recording.error.message);
  }
  return gather(graph, &graph->outcome, graph->outcomes, sizeof graph->outcome, error);
}

/* ---- Repeating ---- */

/* The batch is before it in the stream. */
static enum weft_status launch(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_graph *graph = pipeline->apart;
  struct weft_executor *executor = &pipeline->executor;
  struct weft_device_work *work = executor->device;
  const struct weft_device_ops *ops = graph->device->ops;
  work->enqueued = graph->cells;
  work->wait_count = graph->waits;
  work->copy_count = graph->transfers;
  work->begin_clock = &work->clocks[0];
  work->finishing = work->replaying = true;
  executor->at = executor->row->end;
  graph->state = DECIDED;
  WEFT_TRY(ops->make_current(graph->device, error));
  work->base_ns = pipeline->transport->ops->now(pipeline->transport);
  WEFT_TRY(ops->graph_launch(graph->device, graph->recorded, work->stream, error));
  return ops->event_record(work->device, work->end, work->stream, error);
}

/* The row is enqueued action by action, from its beginning. */
static enum weft_status run_eagerly(struct weft_pipeline *pipeline, struct weft_error *error) {
  pipeline->apart->state = DECIDED;
  return weft_executor_begin_times(&pipeline->executor, error);
}

/* All ranks have recorded the row, or have tried to. */
static enum weft_status conclude(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_graph *graph = pipeline->apart;
  char reason[sizeof graph->outcome.reason + 40];
  for (uint32_t k = 0; k < graph->group->size; k++) {
    struct outcome *outcome = &graph->outcomes[k];
    if (outcome->failed != 0) {
      outcome->reason[sizeof outcome->reason - 1] = '\0'; /* another process has written it */
      (void)snprintf(reason, sizeof reason, "it cannot be recorded as a graph: %s",
                     outcome->reason);
      drop(graph);
      const bool has_rank = strncmp(outcome->reason, "rank ", 5) == 0;
      refuse(graph->refusal, pipeline, has_rank ? UINT32_MAX : graph->first_rank + k, reason);
      weft_executor_begin(&pipeline->executor, pipeline->last_row, pipeline->step);
      return run_eagerly(pipeline, error);
    }
  }
  return launch(pipeline, error);
}

static enum weft_status act_on_votes(struct weft_pipeline *pipeline, struct weft_error *error) {
  bool replays, records;
  WEFT_TRY(count_votes(pipeline, &replays, &records, error));
  if (records) {
    WEFT_TRY(record(pipeline, error));
    pipeline->apart->state = RECORDED;
    return WEFT_OK;
  }
  return replays ? launch(pipeline, error) : run_eagerly(pipeline, error);
}

enum weft_status weft_rank_graph_advance(struct weft_pipeline *pipeline, struct weft_error *error) {
  struct weft_rank_graph *graph = pipeline->apart;
  if (graph->state == UNDECIDED) {
    WEFT_TRY(begin_vote(pipeline, error));
    graph->state = VOTING;
  }
  while (graph->state != DECIDED) {
    const enum weft_status status = await(pipeline, error);
    if (status != WEFT_OK) {
      return status;
    }
    WEFT_TRY((graph->state == VOTING ? act_on_votes : conclude)(pipeline, error));
  }
  if (!pipeline->executor.device->replaying) {
    return weft_executor_advance(&pipeline->executor, error);
  }
  const enum weft_status status = weft_executor_await_device(&pipeline->executor, error);
  if (status == WEFT_OK) {
    pipeline->executor.actions_done += graph->actions;
    pipeline->graph_steps++;
  }
  return status;
}
