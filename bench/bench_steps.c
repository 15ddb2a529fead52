/* Stepping all ranks in this thread. */
#include "bench/bench_steps.h"

#include <assert.h>
#include <string.h>

#include <weft/comm.h>
#include <weft/run.h>
#include <weft/support.h>

struct world {
  const struct weft_bench_steps *steps;
  struct weft_comm *comm;
  struct weft_pipeline **pipelines; /* [rank_count] */
  bool *done;                       /* [rank_count] with the step */
};

static enum weft_status create_pipeline(struct world *world, uint32_t rank,
                                        struct weft_error *error) {
  static const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {1}}, .needs_grad = true}}};
  const struct weft_bench_steps *steps = world->steps;
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = (void *)steps->source;
  options.microbatch_count = steps->microbatch_count;
  options.stages = steps->stages->bases;
  options.stage_count = steps->stages->count;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.stall_limit = 0;
  options.forward_ahead = 0;
  options.no_events = steps->no_events;
  WEFT_TRY(weft_pipeline_create(steps->allocator, weft_comm_endpoint(world->comm, rank), &options,
                                &world->pipelines[rank], error));
  return steps->stages->overlaps
             ? weft_pipeline_set_function(world->pipelines[rank], WEFT_OP_OVERLAP_F_B,
                                          weft_cli_stages_overlap, steps->stages, error)
             : WEFT_OK;
}

/* Advances the rank with the next event, until all are done or one fails; then all have. */
static enum weft_status step_all(struct world *world, struct weft_error *error) {
  const struct weft_batch batch = {.microbatch_count = world->steps->microbatch_count};
  const uint32_t p = world->steps->rank_count;
  for (uint32_t r = 0; r < p; r++) {
    world->done[r] = false;
    WEFT_TRY(weft_pipeline_begin(world->pipelines[r], true, &batch, error));
    weft_comm_wake(world->comm, r);
  }
  for (uint32_t running = p; running > 0;) {
    uint32_t r;
    WEFT_TRY(weft_comm_next(world->comm, &r, error));
    if (world->done[r]) {
      continue; /* a rank that is done is named when its sends are received */
    }
    const enum weft_status status = weft_pipeline_advance(world->pipelines[r], error);
    WEFT_TRY(status);
    if (status == WEFT_IN_PROGRESS) {
      WEFT_TRY(weft_pipeline_wait(world->pipelines[r], error));
    } else {
      world->done[r] = true;
      running--;
    }
  }
  return WEFT_OK;
}

static enum weft_status run_steps(struct world *world, struct weft_error *error) {
  const struct weft_bench_steps *steps = world->steps;
  for (uint32_t r = 0; r < steps->rank_count; r++) {
    WEFT_TRY(create_pipeline(world, r, error));
  }
  for (uint32_t step = 0;; step++) {
    steps->between(steps->context, step);
    if (step == steps->step_count) {
      return WEFT_OK;
    }
    WEFT_TRY(step_all(world, error));
  }
}

enum weft_status weft_bench_steps(const struct weft_bench_steps *steps, struct weft_error *error) {
  assert(steps != NULL && steps->between != NULL && steps->rank_count > 0);
  const uint32_t p = steps->rank_count;
  struct weft_comm_options options = weft_comm_options_default();
  WEFT_SCOPED_ARENA arena = {.allocator = steps->source->allocator};
  struct world world = {.steps = steps};
  world.pipelines = weft_arena_allocate(&arena, p, sizeof(struct weft_pipeline *));
  world.done = weft_arena_allocate(&arena, p, sizeof *world.done);
  WEFT_TRY(weft_arena_status(&arena, error));
  options.rank_count = p;
  WEFT_TRY(weft_comm_open(steps->allocator, "loopback", &options, &world.comm, error));
  const enum weft_status status = run_steps(&world, error);
  for (uint32_t r = 0; r < p; r++) {
    weft_pipeline_destroy(world.pipelines[r]);
  }
  weft_comm_close(world.comm);
  return status;
}
