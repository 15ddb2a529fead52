/* A program executed by all its ranks: what all transports share. */
#include <weft/launch.h>

#include "cli/cmd/execution.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/io/clock.h"
#include "cli/io/error_message.h"

#define SAY_AFTER_NS UINT64_C(1000000000)

/* ---- Memory ---- */

static void *allocate(const struct weft_cli_execution *execution, uint64_t count, size_t size) {
  const struct weft_allocator *allocator = execution->cli->allocator;
  if (count > SIZE_MAX / 2 / size) {
    return NULL;
  }
  void *block = allocator->reallocate(allocator->context, NULL, 0, (size_t)count * size);
  return block != NULL ? memset(block, 0, (size_t)count * size) : NULL;
}

static void release(const struct weft_cli_execution *execution, void *block, uint64_t count,
                    size_t size) {
  const struct weft_allocator *allocator = execution->cli->allocator;
  if (block != NULL) {
    (void)allocator->reallocate(allocator->context, block, (size_t)count * size, 0);
  }
}

static enum weft_status fail_memory(struct weft_error *error) {
  *error = (struct weft_error){.status = WEFT_ERR_MEMORY, .message = "out of memory"};
  return WEFT_ERR_MEMORY;
}

/* ---- Events ---- */

/* Bubbles have none. */
static void count_events(struct weft_cli_execution *execution) {
  const struct weft_program *program = execution->program;
  uint64_t count = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    execution->event_begin[r] = count;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      count += program->actions[i].op != WEFT_OP_IDLE ? 1 : 0;
    }
  }
  execution->event_begin[program->rank_count] = count;
}

static struct weft_event *events_of(const struct weft_cli_execution *execution, uint32_t step) {
  return &execution->events[step * execution->event_begin[execution->program->rank_count]];
}

const struct weft_event *weft_cli_execution_events(const struct weft_cli_execution *execution,
                                                   uint32_t step) {
  return events_of(execution, step);
}

/* As the simulator reckons: from the first compute, or collective that takes time,
 * to the end of the last; an overlap is one, and its parts are no more of it. */
static void sum_up(const struct weft_program *program, const struct weft_event *events,
                   uint64_t count, struct weft_cli_rank_step *sum) {
  uint64_t parts_end = 0;
  bool has_begun = false;
  for (uint64_t k = 0; k < count; k++) {
    const struct weft_event *event = &events[k];
    const struct weft_action *action = &program->actions[event->record];
    const enum weft_op_kind kind = weft_op_info((enum weft_op)action->op)->kind;
    const bool computes = kind == WEFT_KIND_COMPUTE || kind == WEFT_KIND_GROUP;
    if (event->record < parts_end || (!computes && kind != WEFT_KIND_SHARD)) {
      continue;
    }
    parts_end = (uint64_t)event->record + 1 + action->parts;
    sum->end = event->end > sum->end || k == 0 ? event->end : sum->end;
    sum->busy += computes ? event->end - event->begin : 0;
    if (!has_begun && (computes || event->end > event->begin)) {
      sum->begin = event->begin;
      has_begun = true;
    }
  }
  sum->begin = has_begun ? sum->begin : sum->end;
}

void weft_cli_execution_note(struct weft_cli_execution *execution, uint32_t rank, uint32_t step,
                             uint64_t entered_ns) {
  const uint32_t p = execution->program->rank_count;
  struct weft_cli_rank_step *sum = &execution->rank_steps[(uint64_t)step * p + rank];
  *sum = (struct weft_cli_rank_step){.entered_ns = entered_ns, .left_ns = weft_cli_clock_ns()};
  if (execution->events == NULL) {
    return;
  }
  const uint64_t begin = execution->event_begin[rank];
  struct weft_event *events = events_of(execution, execution->keeps_events ? step : 0) + begin;
  uint64_t count;
  weft_pipeline_events(execution->pipelines[rank], events, execution->event_begin[rank + 1] - begin,
                       &count);
  sum_up(execution->program, events, count, sum);
}

static int64_t makespan_of(const struct weft_cli_execution *execution, uint32_t step) {
  const uint32_t p = execution->program->rank_count;
  const struct weft_cli_rank_step *ranks = &execution->rank_steps[(uint64_t)step * p];
  int64_t begin = INT64_MAX, end = INT64_MIN;
  for (uint32_t r = 0; r < p; r++) {
    if (execution->event_begin[r] < execution->event_begin[r + 1]) {
      begin = ranks[r].begin < begin ? ranks[r].begin : begin;
      end = ranks[r].end > end ? ranks[r].end : end;
    }
  }
  return begin <= end ? end - begin : 0;
}

uint64_t weft_cli_execution_wall_ns(const struct weft_cli_execution *execution, uint32_t step) {
  const uint32_t p = execution->program->rank_count;
  const struct weft_cli_rank_step *ranks = &execution->rank_steps[(uint64_t)step * p];
  uint64_t entered = UINT64_MAX, left = 0;
  for (uint32_t r = 0; r < p; r++) {
    entered = ranks[r].entered_ns < entered ? ranks[r].entered_ns : entered;
    left = ranks[r].left_ns > left ? ranks[r].left_ns : left;
  }
  return left - entered;
}

/* ---- Ranks ---- */

/* Of views: what they show is the program's, and lives longer. */
static void *keep(void *context, void *pointer, size_t old_size, size_t new_size) {
  (void)context;
  (void)pointer;
  (void)old_size;
  (void)new_size;
  return NULL;
}

/* A pipeline owns its program. A copy for each of p ranks would need p times the
 * memory; `context` is a view of the one that is there, which nothing frees. */
static enum weft_status lend(void *context, uint32_t microbatch_count, bool training,
                             struct weft_program **out, struct weft_error *error) {
  (void)microbatch_count;
  (void)training;
  (void)error;
  *out = context;
  return WEFT_OK;
}

static void make_views(struct weft_cli_execution *execution) {
  static const struct weft_allocator keeper = {.reallocate = keep};
  for (uint32_t r = 0; r < execution->program->rank_count; r++) {
    execution->views[r] = *execution->program;
    execution->views[r].allocator = &keeper;
  }
}

/* What ranks must have in common beside the program: how long stages take. */
static uint64_t configuration_of(const struct weft_cli_execution *execution) {
  uint64_t mixed = execution->step_count;
  for (uint32_t s = 0; s < execution->stages->count; s++) {
    const struct weft_cost_stage *stage = &execution->stages->timed[s];
    mixed = mixed * UINT64_C(0x9e3779b97f4a7c15) + stage->mode;
    mixed ^= weft_checksum(stage->times, sizeof stage->times);
  }
  return mixed;
}

enum weft_status weft_cli_execution_join(struct weft_cli_execution *execution,
                                         struct weft_transport *transport,
                                         struct weft_error *error) {
  static const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {1}}, .needs_grad = true}}};
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = lend;
  options.source_context = &execution->views[transport->rank];
  options.microbatch_count = execution->program->microbatch_count;
  options.stages = execution->stages->bases;
  options.stage_count = execution->stages->count;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.comm = execution->comm;
  options.stall_limit = execution->stall_limit;
  options.forward_ahead = 0;
  options.no_events = execution->no_events;
  options.interrupted = weft_launch_is_interrupted;
  options.configuration =
      execution->transport == WEFT_CLI_TRANSPORT_MPI ? configuration_of(execution) : 0;
  struct weft_pipeline **pipeline = &execution->pipelines[transport->rank];
  enum weft_status status =
      weft_pipeline_create(execution->allocator, transport, &options, pipeline, error);
  if (status == WEFT_OK && execution->stages->overlaps) {
    status = weft_pipeline_set_function(*pipeline, WEFT_OP_OVERLAP_F_B, weft_cli_stages_overlap,
                                        execution->stages, error);
  }
  return status;
}

void weft_cli_execution_say(struct weft_cli_execution *execution, uint32_t step) {
  const struct weft_cli *cli = execution->cli;
  const uint64_t now = weft_cli_clock_ns();
  if (execution->says_progress && cli->messages_terminal && step < execution->step_count &&
      now - execution->said_ns >= SAY_AFTER_NS) {
    weft_cli_say(cli, NULL, "run: step %" PRIu32 " of %" PRIu32, step + 1, execution->step_count);
    execution->said_ns = now;
  }
}

/* ---- The whole ---- */

static bool make_room(struct weft_cli_execution *execution) {
  const uint32_t p = execution->program->rank_count;
  execution->rank_steps =
      allocate(execution, (uint64_t)execution->step_count * p, sizeof *execution->rank_steps);
  execution->makespans = allocate(execution, execution->step_count, sizeof *execution->makespans);
  execution->event_begin = allocate(execution, p + UINT64_C(1), sizeof *execution->event_begin);
  execution->pipelines = allocate(execution, p, sizeof(struct weft_pipeline *));
  execution->views = allocate(execution, p, sizeof *execution->views);
  if (execution->rank_steps == NULL || execution->makespans == NULL ||
      execution->event_begin == NULL || execution->pipelines == NULL || execution->views == NULL) {
    return false;
  }
  count_events(execution);
  if (!execution->no_events && !execution->no_notes) {
    execution->events = allocate(
        execution,
        (execution->keeps_events ? execution->step_count : 1) * (execution->event_begin[p] + 1),
        sizeof *execution->events);
  }
  return execution->no_events || execution->no_notes || execution->events != NULL;
}

enum weft_status weft_cli_execute(struct weft_cli_execution *execution, struct weft_error *error) {
  if (!make_room(execution)) {
    return fail_memory(error);
  }
  make_views(execution);
  execution->said_ns = weft_cli_clock_ns();
  /* In the order of enum weft_cli_transport. */
  static enum weft_status (*const ways[])(struct weft_cli_execution *, struct weft_error *) = {
      weft_cli_execute_loopback, weft_cli_execute_threads, weft_cli_execute_mpi};
  const enum weft_status status = ways[execution->transport](execution, error);
  for (uint32_t step = 0; step < execution->steps_done; step++) {
    execution->makespans[step] = makespan_of(execution, step);
  }
  return status;
}

void weft_cli_execution_finish(struct weft_cli_execution *execution) {
  const uint32_t p = execution->program->rank_count;
  for (uint32_t r = 0; execution->pipelines != NULL && r < p; r++) {
    weft_pipeline_destroy(execution->pipelines[r]);
  }
  weft_loopback_destroy(execution->loopback);
  weft_threads_destroy(execution->threads);
  release(execution, execution->met, (uint64_t)p * p, 1);
  if (execution->events != NULL) {
    release(execution, execution->events,
            (execution->keeps_events ? execution->step_count : 1) * (execution->event_begin[p] + 1),
            sizeof *execution->events);
  }
  release(execution, execution->views, p, sizeof *execution->views);
  release(execution, execution->pipelines, p, sizeof(struct weft_pipeline *));
  release(execution, execution->event_begin, p + UINT64_C(1), sizeof *execution->event_begin);
  release(execution, execution->makespans, execution->step_count, sizeof *execution->makespans);
  release(execution, execution->rank_steps, (uint64_t)execution->step_count * p,
          sizeof *execution->rank_steps);
}
