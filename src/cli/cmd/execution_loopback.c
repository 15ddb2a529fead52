/* All ranks in one thread, in virtual time. */
#include "cli/cmd/execution.h"
#include "cli/io/clock.h"

static enum weft_status begin_all(struct weft_cli_execution *execution, uint32_t step,
                                  struct weft_error *error) {
  const struct weft_batch batch = {.microbatch_count = execution->program->microbatch_count};
  const uint32_t p = execution->program->rank_count;
  for (uint32_t r = 0; r < p; r++) {
    /* Kept until the rank is done, and then replaced. */
    execution->rank_steps[(uint64_t)step * p + r].entered_ns = weft_cli_clock_ns();
    const enum weft_status status =
        weft_pipeline_begin(execution->pipelines[r], true, &batch, error);
    if (status < 0) {
      return status;
    }
    weft_loopback_wake(execution->loopback, r);
  }
  return WEFT_OK;
}

/* Goes on with whichever rank can, until all are done or one fails; then all have. */
static enum weft_status run_step(struct weft_cli_execution *execution, uint32_t step,
                                 struct weft_error *error) {
  const uint32_t p = execution->program->rank_count;
  struct weft_cli_rank_step *ranks = &execution->rank_steps[(uint64_t)step * p];
  enum weft_status status = begin_all(execution, step, error);
  for (uint32_t running = p; running > 0 && status >= 0;) {
    uint32_t r;
    status = weft_loopback_next(execution->loopback, &r, error);
    if (status < 0 || ranks[r].left_ns > 0) {
      continue; /* a rank that is done is named when its sends are taken */
    }
    status = weft_pipeline_advance(execution->pipelines[r], error);
    if (status == WEFT_IN_PROGRESS) {
      status = weft_pipeline_wait(execution->pipelines[r], error);
    } else if (status == WEFT_OK) {
      weft_cli_execution_note(execution, r, step, ranks[r].entered_ns);
      running--;
    }
  }
  return status;
}

enum weft_status weft_cli_execute_loopback(struct weft_cli_execution *execution,
                                           struct weft_error *error) {
  const struct weft_loopback_options options = {.rank_count = execution->program->rank_count,
                                                .latency_ticks = execution->latency_ticks,
                                                .occupied_ticks = execution->occupied_ticks};
  enum weft_status status =
      weft_loopback_create(execution->allocator, &options, &execution->loopback, error);
  if (status < 0) {
    return status;
  }
  execution->first = weft_loopback_endpoint(execution->loopback, 0);
  for (uint32_t r = 0; r < options.rank_count && status == WEFT_OK; r++) {
    status =
        weft_cli_execution_join(execution, weft_loopback_endpoint(execution->loopback, r), error);
  }
  for (uint32_t step = 0; step < execution->step_count && status == WEFT_OK; step++) {
    weft_cli_execution_say(execution, step);
    if (execution->between != NULL) {
      execution->between(execution->between_context, step);
    }
    status = run_step(execution, step, error);
    execution->steps_done += status == WEFT_OK ? 1 : 0;
  }
  if (status == WEFT_OK && execution->between != NULL) {
    execution->between(execution->between_context, execution->step_count);
  }
  return status;
}
