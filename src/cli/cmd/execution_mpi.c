/* A process per rank, of which this is one. Between steps the ranks meet, and tell each
 * other when they began and ended the step before; so that every rank knows all makespans.
 * Events stay where they are until a picture is asked for. */
#include <string.h>

#include "cli/cmd/execution.h"
#include "cli/job.h"

/* ---- Steps ---- */

/* The transport's: one for all hosts. */
static uint64_t time_of(struct weft_transport *transport) {
  return (uint64_t)transport->ops->now(transport);
}

static enum weft_status run_step(struct weft_cli_execution *execution,
                                 struct weft_transport *transport, uint32_t step,
                                 struct weft_error *error) {
  const struct weft_batch batch = {.microbatch_count = execution->program->microbatch_count};
  const uint32_t rank = transport->rank;
  const uint64_t entered_ns = time_of(transport);
  const enum weft_status status =
      weft_pipeline_step(execution->pipelines[rank], &batch, NULL, error);
  weft_cli_execution_note(execution, rank, step, entered_ns);
  execution->rank_steps[(uint64_t)step * transport->rank_count + rank].left_ns = time_of(transport);
  return status;
}

/* All have done `step` steps; what was noted of the last of them is told. */
static enum weft_status meet(struct weft_cli_execution *execution, struct weft_transport *transport,
                             uint32_t step, struct weft_error *error) {
  const uint32_t p = transport->rank_count;
  struct weft_cli_rank_step *all = &execution->rank_steps[(uint64_t)(step > 0 ? step - 1 : 0) * p];
  const struct weft_cli_rank_step mine = all[transport->rank];
  _Static_assert(sizeof mine <= WEFT_EXCHANGE_MAX, "a note fits into an exchange");
  /* Those still in the step know better who is to blame, so they come first. */
  const int64_t limit =
      execution->stall_limit < INT64_MAX / 2 ? 2 * execution->stall_limit : execution->stall_limit;
  const enum weft_status status =
      weft_cli_job_synchronize(transport, &mine, all, sizeof mine, limit, error);
  if (status == WEFT_OK) {
    execution->steps_done = step;
    if (transport->rank == 0) {
      weft_cli_execution_say(execution, step);
    }
  }
  return status;
}

static enum weft_status run_rank(struct weft_cli_execution *execution,
                                 struct weft_transport *transport, struct weft_error *error) {
  enum weft_status status = weft_cli_execution_join(execution, transport, error);
  if (status == WEFT_OK) {
    status = meet(execution, transport, 0, error);
  }
  for (uint32_t step = 0; step < execution->step_count && status == WEFT_OK; step++) {
    status = run_step(execution, transport, step, error);
    if (status == WEFT_OK) {
      status = meet(execution, transport, step + 1, error);
    }
  }
  return status;
}

enum weft_status weft_cli_execute_mpi(struct weft_cli_execution *execution,
                                      struct weft_error *error) {
  struct weft_transport *transport = execution->job->transport;
  execution->first = transport;
  struct weft_launch_watch *watch = weft_launch_watch_begin(transport);
  const enum weft_status status = run_rank(execution, transport, error);
  weft_launch_watch_end(watch);
  return status;
}

/* ---- Events ---- */

/* All ranks' shares have the size of the largest. */
static uint64_t share_of(const struct weft_cli_execution *execution) {
  const uint64_t *begin = execution->event_begin;
  uint64_t most = 0;
  for (uint32_t r = 0; r < execution->program->rank_count; r++) {
    most = begin[r + 1] - begin[r] > most ? begin[r + 1] - begin[r] : most;
  }
  return most;
}

static enum weft_status collect(struct weft_cli_execution *execution, struct weft_event *events,
                                struct weft_event *shares, uint64_t share,
                                struct weft_error *error) {
  const uint64_t *begin = execution->event_begin;
  const uint32_t p = execution->program->rank_count, rank = execution->job->transport->rank;
  struct weft_event *mine = shares + p * share;
  const uint64_t count = begin[rank + 1] - begin[rank];
  memset(mine, 0, share * sizeof *mine);
  memcpy(mine, events + begin[rank], count * sizeof *mine);
  const enum weft_status status =
      weft_cli_job_gather(execution->job, mine, share * sizeof *mine, shares, error);
  for (uint32_t r = 0; r < p && status == WEFT_OK; r++) {
    memcpy(events + begin[r], shares + r * share, (begin[r + 1] - begin[r]) * sizeof *events);
  }
  return status;
}

enum weft_status weft_cli_execution_collect(struct weft_cli_execution *execution, uint32_t step,
                                            struct weft_error *error) {
  const struct weft_allocator *allocator = execution->cli->allocator;
  const uint64_t share = share_of(execution);
  const uint64_t count = (execution->program->rank_count + UINT64_C(1)) * share;
  struct weft_event *events =
      &execution->events[step * execution->event_begin[execution->program->rank_count]];
  struct weft_event *shares =
      count <= SIZE_MAX / 2 / sizeof *shares
          ? allocator->reallocate(allocator->context, NULL, 0, (size_t)count * sizeof *shares)
          : NULL;
  if (shares == NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
    return WEFT_ERR_MEMORY;
  }
  const enum weft_status status = collect(execution, events, shares, share, error);
  (void)allocator->reallocate(allocator->context, shares, (size_t)count * sizeof *shares, 0);
  return status;
}
