/* A thread per rank. Between steps the ranks meet, so that a step begins on all
 * of them at the same time, as in a simulation. */
#include "cli/cmd/execution.h"
#include "cli/io/clock.h"
#include "cli/job.h"

/* Waits until all ranks are here. */
static enum weft_status meet(const struct weft_cli_execution *execution,
                             struct weft_transport *transport, struct weft_error *error) {
  const unsigned char here = 1;
  unsigned char *met = &execution->met[(uint64_t)transport->rank * transport->rank_count];
  return weft_cli_job_exchange(transport, &here, met, sizeof here, error);
}

/* What rank 0 does while all others are at rest. */
static enum weft_status between_steps(struct weft_cli_execution *execution,
                                      struct weft_transport *transport, uint32_t step,
                                      struct weft_error *error) {
  enum weft_status status = meet(execution, transport, error);
  if (status != WEFT_OK) {
    return status;
  }
  if (transport->rank == 0) {
    execution->steps_done = step;
    weft_cli_execution_say(execution, step);
    if (execution->between != NULL) {
      execution->between(execution->between_context, step);
    }
  }
  return execution->between != NULL ? meet(execution, transport, error) : WEFT_OK;
}

static enum weft_status run_rank(void *context, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct weft_cli_execution *execution = context;
  const struct weft_batch batch = {.microbatch_count = execution->program->microbatch_count};
  const uint32_t rank = transport->rank;
  if (execution->on_rank != NULL) {
    execution->on_rank(execution->on_rank_context, rank);
  }
  enum weft_status status = weft_cli_execution_join(execution, transport, error);
  for (uint32_t step = 0; step < execution->step_count && status == WEFT_OK; step++) {
    status = between_steps(execution, transport, step, error);
    if (status == WEFT_OK) {
      const uint64_t entered_ns = weft_cli_clock_ns();
      status = weft_pipeline_step(execution->pipelines[rank], &batch, NULL, error);
      weft_cli_execution_note(execution, rank, step, entered_ns);
    }
  }
  if (status == WEFT_OK) {
    status = between_steps(execution, transport, execution->step_count, error);
  }
  return status;
}

enum weft_status weft_cli_execute_threads(struct weft_cli_execution *execution,
                                          struct weft_error *error) {
  const struct weft_allocator *allocator = execution->cli->allocator;
  const uint32_t p = execution->program->rank_count;
  execution->met = allocator->reallocate(allocator->context, NULL, 0, (size_t)p * p);
  if (execution->met == NULL) {
    *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
    return WEFT_ERR_MEMORY;
  }
  const enum weft_status status =
      weft_threads_create(execution->allocator, p, &execution->threads, error);
  if (status < 0) {
    return status;
  }
  execution->first = weft_threads_endpoint(execution->threads, 0);
  struct weft_launch_watch *watch = weft_launch_watch_begin(execution->first);
  const enum weft_status ended =
      weft_threads_run(execution->threads, NULL, run_rank, execution, error);
  weft_launch_watch_end(watch);
  return ended;
}
