/* A world of ranks on one GPU, or on the host beside it: runs steps, times them by the host's clock
 * and by the GPU's, and simulates them. */
#include <assert.h>
#include <string.h>

#include <weft/comm.h>
#include <weft/sim.h>
#include <weft/source.h>

#include "bench/bench_clock.h"
#include "bench/gpu/bench_gpu.h"
#include "bench/linear/linear_stage.h"

enum { WARM_UP = 3, STEPS_MAX = 256, LINEAR_WIDTH = 24, LINEAR_ROWS = 3, LINEAR_STEPS = 4 };
/* After the warm-up the free memory is asked for, which takes the driver longer than ranks wait
 * awake. With stages that do nothing, some steps pass until all are awake again. */
enum { AWAKENING = 20 };

/* What actions of a stage took, in all. */
struct tally {
  double ns[WEFT_OP_COUNT];
  uint64_t count[WEFT_OP_COUNT];
};

struct rank {
  int64_t begins[STEPS_MAX], ends[STEPS_MAX]; /* of the noted steps */
  struct tally *tallies;                      /* [stage_count], of its own stages */
  uint64_t allocations;                       /* after the first step */
  uint64_t saved_bytes;
};

struct world {
  const struct weft_bench_gpu_case *at;
  struct weft_bench_gpu_result *result;
  struct weft_named_source source;
  struct weft_lower_options lower;
  struct weft_program *program;
  uint32_t rank_of[WEFT_BENCH_GPU_STAGES_MAX];
  struct weft_cuda *cuda; /* NULL: on the host */
  struct weft_bench_gpu_plans *plans;
  struct weft_bench_gpu_stage *stages[WEFT_BENCH_GPU_STAGES_MAX];
  struct weft_linear_stage linear[WEFT_BENCH_GPU_STAGES_MAX];
  struct weft_cost_stage timed[WEFT_BENCH_GPU_STAGES_MAX];
  struct weft_stage null;
  struct weft_stage *bases[WEFT_BENCH_GPU_STAGES_MAX];
  float batch[2][WEFT_BENCH_GPU_MICROBATCHES_MAX * LINEAR_ROWS * LINEAR_WIDTH];
  uint64_t samples[STEPS_MAX];
  struct rank *ranks;
  uint64_t free_before[2]; /* after the first step, and after the warm-up */
  uint64_t losses_checksum;
};

/* ---- Steps ---- */

/* Adds what the rank's actions took, an overlap to its F's stage. */
static void note(struct world *world, const struct weft_pipeline *pipeline, uint32_t r,
                 uint32_t step, struct weft_event *events, uint64_t room) {
  struct rank *rank = &world->ranks[r];
  uint64_t count, parts_end = 0;
  bool begun = false;
  weft_pipeline_events(pipeline, events, room, &count);
  for (uint64_t k = 0; k < count; k++) {
    const struct weft_action *action = &world->program->actions[events[k].record];
    const bool group = action->op == WEFT_OP_OVERLAP_F_B;
    if (events[k].record < parts_end ||
        (!group && weft_op_info((enum weft_op)action->op)->kind != WEFT_KIND_COMPUTE)) {
      continue;
    }
    parts_end = (uint64_t)events[k].record + 1 + action->parts;
    struct tally *tally = &rank->tallies[group ? action[1].stage : action->stage];
    tally->ns[action->op] += (double)(events[k].end - events[k].begin);
    tally->count[action->op]++;
    rank->begins[step] = begun ? rank->begins[step] : events[k].begin;
    rank->ends[step] = events[k].end;
    begun = true;
  }
}

static void record_losses(struct world *world, const struct weft_step_result *step) {
  const uint32_t count = world->at->microbatches;
  if (step->loss_count > 0) {
    world->losses_checksum =
        world->losses_checksum * 31 + weft_checksum(step->losses, count * sizeof(double));
    memcpy(world->result->losses, step->losses, count * sizeof(double));
  }
}

static uint64_t count_allocations(const struct world *world, uint32_t r) {
  uint64_t bytes = 0, allocations = 0;
  if (world->cuda != NULL) {
    weft_cuda_memory(world->cuda, r, &bytes, &allocations);
  }
  return allocations;
}

static enum weft_status run_steps(struct world *world, struct weft_pipeline *pipeline,
                                  struct weft_transport *transport, struct weft_event *events,
                                  struct weft_error *error) {
  const struct weft_bench_gpu_case *at = world->at;
  const uint32_t r = transport->rank;
  const bool linear = at->kind == WEFT_BENCH_GPU_LINEAR;
  const struct weft_tensor_shape shape = {
      .dtype = WEFT_F32,
      .dim_count = 2,
      .dims = {(uint64_t)at->microbatches * LINEAR_ROWS, LINEAR_WIDTH}};
  const struct weft_tensor input = {.data = world->batch[0], .shape = shape};
  const struct weft_tensor target = {.data = world->batch[1], .shape = shape};
  struct weft_batch batch = {.microbatch_count = at->microbatches};
  if (linear) {
    batch.inputs = &input;
    batch.targets = &target;
    batch.input_count = batch.target_count = 1;
    batch.want_losses = world->rank_of[world->program->stage_count - 1] == r;
  }
  const uint64_t room = world->program->row_begin[r + 1] - world->program->row_begin[r];
  const uint32_t first = at->kind == WEFT_BENCH_GPU_NULL ? WARM_UP + AWAKENING : WARM_UP;
  const uint32_t timed = linear ? LINEAR_STEPS : first + at->steps;
  uint64_t last = weft_bench_now_ns();
  for (uint32_t step = 0; step < timed + at->noted; step++) {
    struct weft_step_result result;
    WEFT_TRY(weft_pipeline_step(pipeline, &batch, &result, error));
    if (at->communicator != NULL) {
      WEFT_TRY(weft_barrier(transport, 0, error));
    }
    const uint64_t now = weft_bench_now_ns();
    if (r == 0 && step >= first && step < timed) {
      world->samples[step - first] = now - last;
    }
    last = now;
    record_losses(world, &result);
    if (step == 0) {
      world->ranks[r].allocations = count_allocations(world, r);
    }
    if (r == 0 && (step == 0 || step == WARM_UP - 1)) {
      world->free_before[step > 0] = weft_bench_gpu_free_bytes(world->cuda);
      last = weft_bench_now_ns();
    }
    if (step >= timed) {
      note(world, pipeline, r, step - timed, events, room);
      WEFT_TRY(weft_barrier(transport, 0, error)); /* the next step begins at the same time */
    }
  }
  world->ranks[r].allocations = count_allocations(world, r) - world->ranks[r].allocations;
  return WEFT_OK;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct world *world = context;
  const struct weft_bench_gpu_case *at = world->at;
  const bool products = at->kind == WEFT_BENCH_GPU_PRODUCTS;
  const bool linear = at->kind == WEFT_BENCH_GPU_LINEAR;
  const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {{.largest = {.dtype = products ? WEFT_BF16 : WEFT_F32,
                               .dim_count = 2,
                               .dims = {products ? at->rows
                                        : linear ? LINEAR_ROWS
                                                 : 1,
                                        products ? at->width
                                        : linear ? LINEAR_WIDTH
                                                 : 1}},
                   .needs_grad = true}}};
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = &world->source;
  options.microbatch_count = at->microbatches;
  options.stages = world->bases;
  options.stage_count = world->program->stage_count;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.scale_grads = !products;
  options.eager = at->eager;
  options.no_events = at->no_events;
  options.device = world->cuda != NULL ? weft_cuda_device(world->cuda, transport->rank) : NULL;
  struct weft_pipeline *pipeline;
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));
  const uint64_t room = world->program->row_begin[transport->rank + 1] -
                        world->program->row_begin[transport->rank] + 1;
  struct weft_event *events = weft_array_allocate(NULL, (size_t)room, sizeof *events);
  const enum weft_status status = events != NULL
                                      ? run_steps(world, pipeline, transport, events, error)
                                      : weft_fail_memory(error, (size_t)room * sizeof *events);
  weft_array_free(NULL, events, (size_t)room, sizeof *events);
  world->ranks[transport->rank].saved_bytes = weft_pipeline_saved_bytes(pipeline);
  if (transport->rank == at->own_rank) {
    world->result->replayed_steps = weft_pipeline_replayed_steps(pipeline);
  }
  weft_pipeline_destroy(pipeline);
  return status;
}

/* ---- Simulation ---- */

static double mean(const struct tally *tally, enum weft_op op, double otherwise) {
  return tally->count[op] > 0 ? tally->ns[op] / (double)tally->count[op] / 1e3 : otherwise;
}

static void set_costs(const struct world *world, uint32_t s, double gap_us,
                      struct weft_stage_costs *costs) {
  const struct weft_bench_gpu_case *at = world->at;
  const double us = (double)at->stage_ns / 1e3, one = us + gap_us, two = 2 * us + gap_us;
  *costs = (struct weft_stage_costs){.f = one, .i = one, .w = one, .b = two, .overlap_f_b = two};
  if (at->kind != WEFT_BENCH_GPU_TIMED) {
    const struct tally *tally = &world->ranks[world->rank_of[s]].tallies[s];
    costs->f = mean(tally, WEFT_OP_F, 0);
    costs->i = mean(tally, WEFT_OP_I, 0);
    costs->w = mean(tally, WEFT_OP_W, 0);
    costs->b = mean(tally, WEFT_OP_B, costs->i + costs->w);
    costs->overlap_f_b = mean(tally, WEFT_OP_OVERLAP_F_B, -1);
  }
  if (world->stages[s] != NULL) {
    uint64_t bytes;
    weft_bench_gpu_stage_sizes(world->stages[s], costs, &bytes);
    world->result->stage_bytes += bytes;
  }
}

static enum weft_status simulate(const struct world *world, double gap_us, double *makespan_us,
                                 struct weft_error *error) {
  const uint32_t stage_count = world->program->stage_count;
  struct weft_costs *costs;
  struct weft_simulation *simulation;
  WEFT_TRY(weft_costs_create(NULL, stage_count, &costs, error));
  for (uint32_t s = 0; s < stage_count; s++) {
    set_costs(world, s, gap_us, &costs->stages[s]);
  }
  const enum weft_status status =
      weft_simulate(NULL, world->program, costs, NULL, &simulation, error);
  if (status == WEFT_OK) {
    *makespan_us = simulation->makespan;
    world->result->simulated_bytes = 0;
    for (uint32_t r = 0; world->stages[0] != NULL && r < world->at->ranks; r++) {
      world->result->simulated_bytes += simulation->ranks[r].peak_memory;
    }
    weft_simulation_destroy(simulation);
  }
  weft_costs_destroy(costs);
  return status;
}

/* ---- Results ---- */

static void summarize_steps(struct world *world) {
  const struct weft_bench_gpu_case *at = world->at;
  struct weft_bench_gpu_result *result = world->result;
  uint64_t spans[STEPS_MAX];
  if (at->steps > 0) {
    result->wall_us = (double)weft_bench_median(world->samples, at->steps) / 1e3;
    result->fastest_us = (double)world->samples[0] / 1e3; /* they are sorted now */
  }
  for (uint32_t step = 0; step < at->noted; step++) {
    int64_t begin = INT64_MAX, end = INT64_MIN;
    for (uint32_t r = 0; r < at->ranks; r++) {
      begin = world->ranks[r].begins[step] < begin ? world->ranks[r].begins[step] : begin;
      end = world->ranks[r].ends[step] > end ? world->ranks[r].ends[step] : end;
    }
    spans[step] = (uint64_t)(end - begin);
  }
  if (at->noted > 0) {
    result->gpu_us = (double)weft_bench_median(spans, at->noted) / 1e3;
  }
}

static void count_actions(struct world *world) {
  struct weft_bench_gpu_result *result = world->result;
  for (uint64_t i = 0; i < world->program->action_count; i++) {
    const struct weft_action *action = &world->program->actions[i];
    const enum weft_op_kind kind = weft_op_info((enum weft_op)action->op)->kind;
    result->compute += kind == WEFT_KIND_COMPUTE;
    result->cells += kind == WEFT_KIND_COMPUTE;
    result->cells -= action->op == WEFT_OP_OVERLAP_F_B ? action->parts - UINT64_C(1) : 0;
    result->receives += action->op == WEFT_OP_RECV_F || action->op == WEFT_OP_RECV_B;
    result->transfers += action->op == WEFT_OP_RECV_F || action->op == WEFT_OP_RECV_B ||
                         action->op == WEFT_OP_SEND_F || action->op == WEFT_OP_SEND_B;
  }
}

static enum weft_status read_results(struct world *world, struct weft_error *error) {
  struct weft_bench_gpu_result *result = world->result;
  result->checksum = world->losses_checksum;
  for (uint32_t s = 0; s < world->program->stage_count; s++) {
    uint64_t sum = 0;
    if (world->at->kind == WEFT_BENCH_GPU_LINEAR) {
      float grads[LINEAR_WIDTH * LINEAR_WIDTH];
      WEFT_TRY(weft_linear_stage_read(&world->linear[s], true, grads, error));
      sum = weft_checksum(grads, sizeof grads);
    } else if (world->stages[s] != NULL) {
      WEFT_TRY(weft_bench_gpu_stage_read(world->stages[s], &sum, result->losses, error));
    }
    result->checksum = result->checksum * 31 + sum;
  }
  result->checksum = result->checksum * 31 + weft_checksum(result->losses, sizeof result->losses);
  for (uint32_t r = 0; world->cuda != NULL && r < world->at->ranks; r++) {
    uint64_t bytes, allocations;
    if (weft_cuda_device(world->cuda, r) == NULL) {
      continue; /* another process has it */
    }
    weft_cuda_memory(world->cuda, r, &bytes, &allocations);
    result->memory_bytes += bytes;
    result->stage_bytes += world->ranks[r].saved_bytes;
    result->allocations += world->ranks[r].allocations;
  }
  return WEFT_OK;
}

/* ---- The whole world ---- */

static enum weft_status make_stages(struct world *world, struct weft_error *error) {
  const struct weft_bench_gpu_case *at = world->at;
  world->null.ops = weft_null_stage_ops();
  if (at->kind == WEFT_BENCH_GPU_PRODUCTS) {
    WEFT_TRY(weft_bench_gpu_plans_open(weft_cuda_device(world->cuda, at->own_rank), at,
                                       &world->plans, error));
  }
  for (uint32_t s = 0; s < world->program->stage_count; s++) {
    struct weft_device *device =
        world->cuda != NULL ? weft_cuda_device(world->cuda, world->rank_of[s]) : NULL;
    world->bases[s] = &world->null;
    if (at->communicator != NULL && device == NULL) {
      continue; /* another process has it */
    }
    if (at->kind == WEFT_BENCH_GPU_TIMED) {
      struct weft_cost_stage *timed = &world->timed[s];
      weft_cost_stage_init(timed, WEFT_COST_DEVICE);
      timed->times[WEFT_OP_F] = timed->times[WEFT_OP_I] = timed->times[WEFT_OP_W] = at->stage_ns;
      timed->times[WEFT_OP_B] = 2 * at->stage_ns;
      world->bases[s] = &timed->stage;
    } else if (at->kind == WEFT_BENCH_GPU_LINEAR) {
      WEFT_TRY(weft_linear_stage_init(&world->linear[s], world->cuda, world->rank_of[s],
                                      LINEAR_WIDTH, LINEAR_WIDTH, 100 + s, error));
      world->bases[s] = &world->linear[s].stage;
    } else if (at->kind == WEFT_BENCH_GPU_PRODUCTS) {
      WEFT_TRY(weft_bench_gpu_stage_create(world->plans, device, s, world->program->stage_count,
                                           at->microbatches, &world->stages[s], error));
      world->bases[s] = weft_bench_gpu_stage_base(world->stages[s]);
    }
  }
  return WEFT_OK;
}

static enum weft_status run_world(struct world *world, struct weft_error *error) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm;
  options.rank_count = world->at->ranks;
  WEFT_TRY(make_stages(world, error));
  options.communicator = world->at->communicator;
  const char *transport = world->at->communicator != NULL ? "nccl"
                          : world->cuda != NULL           ? "cuda"
                                                          : "threads";
  WEFT_TRY(weft_comm_open(NULL, transport, &options, &comm, error));
  enum weft_status status = weft_comm_run(comm, rank_main, world, error);
  const uint64_t free_after = weft_bench_gpu_free_bytes(world->cuda);
  weft_comm_close(comm);
  if (status == WEFT_OK) {
    world->result->graph_bytes = (int64_t)(world->free_before[0] - world->free_before[1]);
    world->result->later_bytes = (int64_t)(world->free_before[1] - free_after);
    status = read_results(world, error);
  }
  if (status == WEFT_OK) {
    summarize_steps(world);
  }
  if (status == WEFT_OK && world->at->noted > 0) {
    status = simulate(world, 0, &world->result->simulated_us, error);
  }
  if (status == WEFT_OK && world->at->noted > 0 && world->at->kind == WEFT_BENCH_GPU_TIMED) {
    status = simulate(world, world->at->gap_us, &world->result->gap_simulated_us, error);
  }
  return status;
}

static enum weft_status open_world(struct world *world, struct weft_error *error) {
  const struct weft_bench_gpu_case *at = world->at;
  const uint32_t gpu = 0;
  const struct weft_cuda_options options = {
      .gpus = &gpu, .gpu_count = 1, .partitions = at->partitions, .first_rank = at->own_rank};
  struct weft_random random = {.state = 7};
  WEFT_TRY(weft_source_named(&world->source, at->microbatches, true, &world->program, error));
  assert(world->program->stage_count <= WEFT_BENCH_GPU_STAGES_MAX);
  assert(at->microbatches <= WEFT_BENCH_GPU_MICROBATCHES_MAX && at->steps <= STEPS_MAX);
  (void)weft_placement_infer(world->program, world->rank_of);
  count_actions(world);
  world->ranks = weft_array_allocate_zero(NULL, at->ranks, sizeof *world->ranks);
  if (world->ranks == NULL) {
    return weft_fail_memory(error, at->ranks * sizeof *world->ranks);
  }
  for (uint32_t r = 0; r < at->ranks; r++) {
    world->ranks[r].tallies = weft_array_allocate_zero(NULL, world->program->stage_count,
                                                       sizeof *world->ranks[r].tallies);
    if (world->ranks[r].tallies == NULL) {
      return weft_fail_memory(error, world->program->stage_count * sizeof(struct tally));
    }
  }
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(world->batch[0]); k++) {
    world->batch[0][k] = (float)weft_random_share(&random);
    world->batch[1][k] = (float)weft_random_share(&random);
  }
  const uint32_t here = at->communicator != NULL ? 1 : at->ranks;
  return at->on_host ? WEFT_OK : weft_cuda_open(NULL, &options, here, &world->cuda, error);
}

static void close_world(struct world *world) {
  const uint32_t stage_count = world->program != NULL ? world->program->stage_count : 0;
  for (uint32_t s = 0; s < stage_count; s++) {
    weft_bench_gpu_stage_destroy(world->stages[s]);
    if (world->linear[s].weights != NULL) {
      weft_linear_stage_finish(&world->linear[s]);
    }
  }
  weft_bench_gpu_plans_close(world->plans);
  weft_cuda_close(world->cuda);
  for (uint32_t r = 0; world->ranks != NULL && r < world->at->ranks; r++) {
    weft_array_free(NULL, world->ranks[r].tallies, stage_count, sizeof *world->ranks[r].tallies);
  }
  weft_array_free(NULL, world->ranks, world->at->ranks, sizeof *world->ranks);
  weft_program_destroy(world->program);
}

enum weft_status weft_bench_gpu_run(const struct weft_bench_gpu_case *at,
                                    struct weft_bench_gpu_result *result,
                                    struct weft_error *error) {
  struct world *world = weft_array_allocate_zero(NULL, 1, sizeof *world);
  if (world == NULL) {
    return weft_fail_memory(error, sizeof *world);
  }
  memset(result, 0, sizeof *result);
  world->at = at;
  world->result = result;
  world->lower = weft_lower_options_default();
  world->lower.by_time = at->communicator != NULL; /* as the command does */
  world->source = (struct weft_named_source){.schedule = at->schedule,
                                             .ranks = at->ranks,
                                             .stages_per_rank = at->stages_per_rank,
                                             .lower = &world->lower};
  enum weft_status status = open_world(world, error);
  if (status == WEFT_OK) {
    status = run_world(world, error);
  }
  close_world(world);
  weft_array_free(NULL, world, 1, sizeof *world);
  return status;
}
