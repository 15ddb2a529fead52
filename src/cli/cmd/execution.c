/* A program executed by all its ranks. Between steps the ranks synchronize, so that a step begins
 * on all of them at the same time, as in a simulation. */
#include "cli/cmd/execution.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "cli/io/error_message.h"

#define SAY_AFTER_NS UINT64_C(1000000000)

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

struct weft_event *weft_cli_execution_events(const struct weft_cli_execution *execution,
                                             uint32_t step) {
  assert(execution->keeps_events || step == 0);
  return &execution->events[step * execution->event_begin[execution->program->rank_count]];
}

static struct weft_cli_rank_step *rank_steps_of(const struct weft_cli_execution *execution,
                                                uint32_t step) {
  assert(step < execution->step_count);
  return &execution->rank_steps[(uint64_t)step * execution->program->rank_count];
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

/* Real time: the same on all hosts, or of this process where the transport's is virtual. */
static uint64_t real_time(const struct weft_cli_execution *execution,
                          struct weft_transport *transport) {
  return execution->transport->virtual_time ? (uint64_t)weft_clock_ns()
                                            : (uint64_t)transport->ops->now(transport);
}

/* Records what the rank did in the step that has just ended. */
static void record_step(struct weft_cli_execution *execution, struct weft_transport *transport,
                        uint32_t step, uint64_t entered_ns) {
  const uint32_t rank = transport->rank;
  struct weft_cli_rank_step *sum = &rank_steps_of(execution, step)[rank];
  *sum = (struct weft_cli_rank_step){.entered_ns = entered_ns,
                                     .left_ns = real_time(execution, transport)};
  const uint64_t begin = execution->event_begin[rank];
  struct weft_event *events =
      weft_cli_execution_events(execution, execution->keeps_events ? step : 0) + begin;
  uint64_t count;
  weft_pipeline_events(execution->pipelines[rank], events, execution->event_begin[rank + 1] - begin,
                       &count);
  sum_up(execution->program, events, count, sum);
}

static int64_t makespan_of(const struct weft_cli_execution *execution, uint32_t step) {
  const uint32_t p = execution->program->rank_count;
  const struct weft_cli_rank_step *ranks = rank_steps_of(execution, step);
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
  const struct weft_cli_rank_step *ranks = rank_steps_of(execution, step);
  uint64_t entered = UINT64_MAX, left = 0;
  for (uint32_t r = 0; r < p; r++) {
    entered = ranks[r].entered_ns < entered ? ranks[r].entered_ns : entered;
    left = ranks[r].left_ns > left ? ranks[r].left_ns : left;
  }
  return left - entered;
}

/* ---- Ranks ---- */

/* Of views: what they show is the program's, and lives longer. */
static void *keep_memory(void *context, void *pointer, size_t old_size, size_t new_size) {
  (void)context;
  (void)pointer;
  (void)old_size;
  (void)new_size;
  return NULL;
}

/* A pipeline owns its program. A copy for each of p ranks would need p times the
 * memory; `context` is a view of the one that is there, which nothing frees. */
static enum weft_status lend_view(void *context, uint32_t microbatch_count, bool training,
                                  struct weft_program **out, struct weft_error *error) {
  struct weft_program *view = context;
  (void)microbatch_count;
  (void)training;
  (void)error;
  (void)weft_graph_hold(view->graph); /* the pipeline lets go of it with the view */
  *out = view;
  return WEFT_OK;
}

static void make_views(struct weft_cli_execution *execution) {
  static const struct weft_allocator keeper = {.reallocate = keep_memory};
  const uint64_t hash = weft_program_hash(execution->program); /* once for all ranks */
  (void)weft_placement_infer(execution->program, execution->stage_ranks);
  for (uint32_t r = 0; r < execution->program->rank_count; r++) {
    execution->views[r] = *execution->program;
    execution->views[r].allocator = &keeper;
    execution->views[r].known_hash = hash;
    execution->views[r].known_ranks = execution->stage_ranks;
  }
}

/* What ranks must have in common besides the program: how long stages take. */
static uint64_t configuration_of(const struct weft_cli_execution *execution) {
  uint64_t mixed = execution->step_count;
  for (uint32_t s = 0; s < execution->stages->count; s++) {
    const struct weft_cost_stage *stage = &execution->stages->timed[s];
    mixed = mixed * UINT64_C(0x9e3779b97f4a7c15) + stage->mode;
    mixed ^= weft_checksum(stage->times, sizeof stage->times);
  }
  return mixed;
}

static enum weft_status create_pipeline(struct weft_cli_execution *execution,
                                        struct weft_transport *transport,
                                        struct weft_error *error) {
  static const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {1}}, .needs_grad = true}}};
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = lend_view;
  options.source_context = &execution->views[transport->rank];
  options.microbatch_count = execution->program->microbatch_count;
  options.stages = execution->stages->bases;
  options.stage_count = execution->stages->count;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.comm = execution->comm;
  options.slots = execution->slots;
  options.stall_limit = execution->stall_limit;
  options.forward_ahead = 0;
  options.eager = execution->eager;
  options.device = weft_cuda_device(execution->cuda, transport->rank); /* NULL without */
  options.interrupted = weft_launch_is_interrupted;
  options.configuration = execution->transport->process_per_rank ? configuration_of(execution) : 0;
  struct weft_pipeline **pipeline = &execution->pipelines[transport->rank];
  enum weft_status status =
      weft_pipeline_create(execution->allocator, transport, &options, pipeline, error);
  if (status == WEFT_OK && execution->stages->overlaps) {
    status = weft_pipeline_set_function(*pipeline, WEFT_OP_OVERLAP_F_B, weft_cli_stages_overlap,
                                        execution->stages, error);
  }
  return status;
}

static void say_step(struct weft_cli_execution *execution, uint32_t step) {
  const struct weft_cli *cli = execution->cli;
  const uint64_t now = (uint64_t)weft_clock_ns();
  if (execution->says_progress && cli->messages_terminal && step < execution->step_count &&
      now - execution->said_ns >= SAY_AFTER_NS) {
    weft_cli_print(cli, NULL, "run: step %" PRIu32 " of %" PRIu32, step + 1, execution->step_count);
    execution->said_ns = now;
  }
}

/* ---- Steps ---- */

/* All ranks have done `step` steps. Where a rank is a process, each sends what it recorded of the
 * last one. */
static enum weft_status between_steps(struct weft_cli_execution *execution,
                                      struct weft_transport *transport, uint32_t step,
                                      struct weft_error *error) {
  struct weft_cli_rank_step *all = rank_steps_of(execution, step > 0 ? step - 1 : 0);
  /* Ranks that are still in the step know better which rank is the culprit: they report first. */
  const int64_t limit =
      execution->stall_limit < INT64_MAX / 2 ? 2 * execution->stall_limit : execution->stall_limit;
  const struct weft_cli_rank_step mine = all[transport->rank];
  WEFT_TRY(execution->transport->process_per_rank
               ? weft_allgather(transport, &mine, all, sizeof mine, limit, error)
               : weft_barrier(transport, limit, error));
  if (transport->rank == 0) {
    say_step(execution, step);
  }
  if (transport->rank == 0 || execution->transport->process_per_rank) {
    execution->steps_done = step;
  }
  return WEFT_OK;
}

static enum weft_status run_rank(void *context, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct weft_cli_execution *execution = context;
  const struct weft_batch batch = {.microbatch_count = execution->program->microbatch_count};
  WEFT_TRY(create_pipeline(execution, transport, error));
  WEFT_TRY(between_steps(execution, transport, 0, error));
  for (uint32_t step = 0; step < execution->step_count; step++) {
    const uint64_t entered_ns = real_time(execution, transport);
    const enum weft_status status =
        weft_pipeline_step(execution->pipelines[transport->rank], &batch, NULL, error);
    record_step(execution, transport, step, entered_ns);
    WEFT_TRY(status);
    WEFT_TRY(between_steps(execution, transport, step + 1, error));
  }
  return WEFT_OK;
}

/* ---- The whole execution ---- */

static enum weft_status make_room(struct weft_cli_execution *execution, struct weft_error *error) {
  struct weft_arena *arena = &execution->arena;
  const uint32_t p = execution->program->rank_count, steps = execution->step_count;
  arena->allocator = execution->cli->allocator;
  execution->rank_steps =
      weft_arena_allocate(arena, (size_t)steps * p, sizeof *execution->rank_steps);
  execution->makespans = weft_arena_allocate(arena, steps, sizeof *execution->makespans);
  execution->event_begin =
      weft_arena_allocate(arena, p + (size_t)1, sizeof *execution->event_begin);
  execution->pipelines = weft_arena_allocate(arena, p, sizeof(struct weft_pipeline *));
  execution->views = weft_arena_allocate(arena, p, sizeof *execution->views);
  execution->stage_ranks =
      weft_arena_allocate(arena, execution->program->stage_count, sizeof *execution->stage_ranks);
  WEFT_TRY(weft_arena_status(arena, error));
  count_events(execution);
  const uint32_t kept = execution->keeps_events ? steps : 1;
  execution->events = weft_arena_allocate(arena, (size_t)(kept * (execution->event_begin[p] + 1)),
                                          sizeof *execution->events);
  make_views(execution);
  return weft_arena_status(arena, error);
}

static enum weft_status open_world(struct weft_cli_execution *execution, struct weft_error *error) {
  struct weft_comm_options options = weft_comm_options_default();
  options.rank_count = execution->program->rank_count;
  options.latency_ticks = execution->latency_ticks;
  options.occupied_ticks = execution->occupied_ticks;
  options.channel_ticks = execution->channel_ticks;
  options.channel_count = execution->channel_count;
  if (execution->job != NULL) {
    execution->comm_world = execution->job->comm;
    return WEFT_OK;
  }
  return weft_comm_open(execution->allocator, execution->transport->name, &options,
                        &execution->comm_world, error);
}

enum weft_status weft_cli_execute(struct weft_cli_execution *execution, struct weft_error *error) {
  assert(execution->transport != NULL);
  assert(execution->transport->process_per_rank == (execution->job != NULL));
  WEFT_TRY(make_room(execution, error));
  WEFT_TRY(open_world(execution, error));
  execution->said_ns = (uint64_t)weft_clock_ns();
  execution->first = weft_comm_local(execution->comm_world);
  struct weft_launch_watch *watch = weft_launch_watch_begin(execution->first);
  const enum weft_status status = weft_comm_run(execution->comm_world, run_rank, execution, error);
  weft_launch_watch_end(watch);
  for (uint32_t step = 0; step < execution->steps_done; step++) {
    execution->makespans[step] = makespan_of(execution, step);
  }
  if (execution->cuda != NULL && status == WEFT_OK) {
    const struct weft_pipeline *pipeline = execution->pipelines[execution->first->rank];
    execution->replayed_steps = weft_pipeline_replayed_steps(pipeline);
    execution->eager_reason = execution->eager ? NULL : weft_pipeline_eager_reason(pipeline);
  }
  return status;
}

void weft_cli_execution_finish(struct weft_cli_execution *execution) {
  assert(execution != NULL && execution->program != NULL);
  const uint32_t p = execution->program->rank_count;
  if (weft_comm_stuck_ranks(execution->comm_world) > 0) {
    return; /* their threads use it all */
  }
  for (uint32_t r = 0; execution->pipelines != NULL && r < p; r++) {
    weft_pipeline_destroy(execution->pipelines[r]);
  }
  if (execution->job == NULL) {
    weft_comm_close(execution->comm_world);
  }
  weft_arena_finish(&execution->arena);
}

/* ---- Events of other processes ---- */

enum weft_status weft_cli_execution_collect(struct weft_cli_execution *execution, uint32_t step,
                                            struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = execution->cli->allocator};
  struct weft_transport *transport = execution->first;
  const uint64_t *begin = execution->event_begin;
  const uint32_t p = transport->rank_count, rank = transport->rank;
  struct weft_event *events = weft_cli_execution_events(execution, step);
  uint64_t share = 0; /* of each rank: as many as the most that a rank has */
  for (uint32_t r = 0; r < p; r++) {
    share = begin[r + 1] - begin[r] > share ? begin[r + 1] - begin[r] : share;
  }
  struct weft_event *mine = weft_arena_allocate(&arena, share, sizeof *mine);
  struct weft_event *shares = weft_arena_allocate(&arena, (size_t)share * p, sizeof *shares);
  WEFT_TRY(weft_arena_status(&arena, error));
  memcpy(mine, events + begin[rank], (size_t)(begin[rank + 1] - begin[rank]) * sizeof *mine);
  WEFT_TRY(weft_allgather(transport, mine, shares, (size_t)share * sizeof *mine, 0, error));
  for (uint32_t r = 0; r < p; r++) {
    memcpy(events + begin[r], shares + r * share,
           (size_t)(begin[r + 1] - begin[r]) * sizeof *events);
  }
  return WEFT_OK;
}
