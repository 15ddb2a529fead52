/* Running a trial; see support_trial.h. */
#include "support_trial.h"
#include "support_conformance.h"
#include "support_fault_injection.h"
#include "support_linear_stage.h"
#include "support_protected_device.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TURNS_MAX = 1000000 };

static void complain(struct trial *trial, const char *format, ...) WEFT_PRINTF(2, 3);

/* The first complaint stays. */
static void complain(struct trial *trial, const char *format, ...) {
  if (trial->complaint[0] == '\0') {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(trial->complaint, sizeof trial->complaint, format, arguments);
    va_end(arguments);
  }
}

static void mix(struct trial *trial, uint64_t value) {
  trial->hash = (trial->hash ^ value) * UINT64_C(0x100000001b3);
  trial->hash ^= trial->hash >> 29;
}

/* ---- Memory ---- */

static bool runs_out(const struct trial *trial) {
  const struct trial_setup *setup = trial->setup;
  switch (setup->fault) {
    case FAULT_MEMORY_ONCE:
    case FAULT_MEMORY_SILENT: return trial->allocations == setup->when;
    case FAULT_MEMORY_GONE: return trial->allocations >= setup->when;
    default: return false;
  }
}

static void *reallocate(void *context, void *pointer, size_t old_size, size_t new_size) {
  struct trial *trial = context;
  if (new_size > old_size) { /* a block that stays too large is no problem */
    trial->allocations++;
    if (runs_out(trial)) {
      trial->starved = trial->was_out_of_memory ? trial->starved : trial->at_work;
      trial->was_out_of_memory = true;
      return NULL;
    }
  }
  const struct weft_allocator *memory = &trial->memory.allocator;
  return memory->reallocate(memory->context, pointer, old_size, new_size);
}

/* ---- Stages ---- */

static void make_stages(struct trial *trial) {
  const struct trial_setup *setup = trial->setup;
  for (uint32_t s = 0; s < setup->program->stage_count; s++) {
    struct fault_stage *stage = &trial->stages[s];
    uint32_t count;
    float *parameters = test_linear_stage_parameters(setup->model.stages[s], &count);
    memcpy(parameters, setup->parameters[s], count * sizeof(float));
    weft_cost_stage_init(&trial->costs[s], WEFT_COST_VIRTUAL);
    memcpy(trial->costs[s].times, setup->cost_times, sizeof setup->cost_times);
    fault_stage_init(stage, setup->has_cost_stages ? &trial->costs[s].stage : setup->model.bases[s],
                     setup->seed + s);
    stage->time_max = setup->has_cost_stages ? 0 : setup->stage_time_max;
    stage->is_quiet = setup->is_quiet;
    trial->bases[s] = &stage->stage;
  }
  struct fault_stage *victim = &trial->stages[setup->victim_stage];
  victim->fail_at = setup->fault == FAULT_STAGE_FAILS ? setup->when : 0;
  victim->never_at = setup->fault == FAULT_STAGE_NEVER_ENDS ? setup->when : 0;
  victim->long_at = setup->fault == FAULT_SLOW_STAGE ? setup->when : 0;
  victim->long_time = setup->amount;
}

/* ---- Ends ---- */

static void end_rank(struct trial_rank *rank, enum weft_status status) {
  rank->runs = false;
  rank->status = status;
}

/* Broadcasts a rank's failure, as its main function would. */
static void tell(struct trial_rank *rank, enum weft_status status) {
  struct weft_failure failure = {.rank = rank->rank, .error = rank->error};
  struct weft_transport *endpoint = weft_comm_endpoint(rank->trial->world, rank->rank);
  if (rank->trial->setup->fault == FAULT_MEMORY_SILENT) {
    rank->is_lost = true;
    end_rank(rank, status);
    return;
  }
  endpoint->ops->fail(endpoint, &failure);
  (void)endpoint->ops->get_failure(endpoint, &failure);
  rank->error = failure.error;
  end_rank(rank, failure.error.status);
}

/* ---- Creation ---- */

static bool is_interrupted(void *context) {
  struct trial_rank *rank = context;
  const struct trial_setup *setup = rank->trial->setup;
  rank->questions++;
  return setup->fault == FAULT_INTERRUPTED && setup->victim == rank->rank &&
         rank->questions >= setup->when;
}

static bool needs_faults(const struct trial_setup *setup, uint32_t rank) {
  switch (setup->fault) {
    case FAULT_DELAY: return true;
    case FAULT_SLOW_WITHIN:
    case FAULT_SLOW_BEYOND:
    case FAULT_HEADER:
    case FAULT_PAYLOAD:
    case FAULT_DEATH: return rank == setup->victim;
    default: return false;
  }
}

static enum weft_status make_transport(struct trial_rank *rank) {
  const struct trial_setup *setup = rank->trial->setup;
  const bool is_slow = setup->fault == FAULT_SLOW_WITHIN || setup->fault == FAULT_SLOW_BEYOND;
  const bool damages = setup->fault == FAULT_HEADER || setup->fault == FAULT_PAYLOAD;
  const struct weft_fault_options options = {
      .seed = setup->seed,
      .delay_max = setup->fault == FAULT_DELAY ? setup->amount : 0,
      .damage_receive = damages ? setup->when : 0,
      .damage_payload = setup->fault == FAULT_PAYLOAD,
      .die_at = setup->fault == FAULT_DEATH ? setup->when : 0,
      .slow_by = is_slow ? setup->amount : 0};
  rank->transport = weft_comm_endpoint(rank->trial->world, rank->rank);
  test_device_restrict(rank->transport);
  return needs_faults(setup, rank->rank)
             ? weft_fault_injector_create(&rank->trial->allocator, rank->transport, &options,
                                          &rank->transport, &rank->error)
             : WEFT_OK;
}

static struct weft_pipeline_options options_of(struct trial_rank *rank, int64_t stall_limit) {
  struct trial *trial = rank->trial;
  const struct trial_setup *setup = trial->setup;
  const bool is_odd = rank->rank == setup->victim;
  struct weft_pipeline_options options = weft_pipeline_options_default();
  const bool is_named = setup->named.schedule != NULL;
  options.source = is_named ? weft_source_named : weft_source_fixed;
  options.source_context = is_named ? (void *)&trial->named : (void *)&trial->fixed;
  if (setup->fault == FAULT_PROGRAM && is_odd) {
    options.source = weft_source_fixed;
    options.source_context = &trial->other;
  }
  options.configuration = setup->fault == FAULT_CONFIGURATION && is_odd ? setup->when : 0;
  options.microbatch_count = setup->program->microbatch_count;
  options.stages = trial->bases;
  options.stage_count = setup->program->stage_count;
  options.device = test_device();
  options.boundaries = &setup->model.boundary;
  options.boundary_count = 1;
  options.comm = setup->comm;
  options.slots = setup->slots;
  options.stall_limit = stall_limit >= 0 ? stall_limit : setup->stall_limit;
  options.check_payloads = setup->checks_payloads;
  options.interrupted = is_interrupted;
  options.interrupted_context = rank;
  return options;
}

static void create_rank(struct trial_rank *rank, int64_t stall_limit) {
  const struct weft_pipeline_options options = options_of(rank, stall_limit);
  rank->trial->at_work = rank->rank;
  enum weft_status status = make_transport(rank);
  if (status == WEFT_OK) {
    status = weft_pipeline_create(&rank->trial->allocator, rank->transport, &options,
                                  &rank->pipeline, &rank->error);
  }
  if (status < 0) {
    tell(rank, status);
    return;
  }
  rank->runs = true;
}

/* ---- Steps ---- */

static bool has_last_stage(const struct trial_rank *rank) {
  const struct trial_setup *setup = rank->trial->setup;
  return setup->rank_of[setup->program->stage_count - 1] == rank->rank;
}

static bool is_odd_one(const struct trial_rank *rank) {
  return rank->trial->setup->fault == FAULT_OTHER_MICROBATCHES &&
         rank->trial->setup->victim == rank->rank;
}

static void begin_step(struct trial_rank *rank) {
  struct trial *trial = rank->trial;
  const struct trial_setup *setup = trial->setup;
  const bool last = has_last_stage(rank);
  trial->at_work = rank->rank;
  const struct weft_batch batch = {.microbatch_count = is_odd_one(rank)
                                                           ? setup->other_microbatches
                                                           : setup->program->microbatch_count,
                                   .inputs = &trial->inputs,
                                   .input_count = 1,
                                   .targets = &trial->targets,
                                   .target_count = 1,
                                   .want_losses = last,
                                   .want_outputs = last};
  if (setup->fault == FAULT_ABSENT && setup->victim == rank->rank) {
    rank->is_lost = true;
    end_rank(rank, WEFT_ERR_CANCELLED);
    return;
  }
  const enum weft_status status =
      weft_pipeline_begin(rank->pipeline, !setup->is_eval[rank->steps_done], &batch, &rank->error);
  if (status < 0) {
    tell(rank, status);
    return;
  }
  rank->progress = conformance_now(trial->world);
  weft_comm_wake(trial->world, rank->rank);
}

static void check_gradients(struct trial_rank *rank) {
  struct trial *trial = rank->trial;
  const struct trial_setup *setup = trial->setup;
  for (uint32_t s = 0; s < setup->program->stage_count; s++) {
    uint32_t count;
    if (setup->rank_of[s] != rank->rank) {
      continue;
    }
    if (!linear_gradients_equal(&setup->model, s, &setup->expected[rank->steps_done])) {
      complain(trial, "step %u: wrong gradients of stage %u", rank->steps_done, s);
    }
    trial_learn(setup->model.stages[s],
                test_linear_stage_gradients(setup->model.stages[s], &count));
  }
}

static void check_outputs(struct trial_rank *rank) {
  struct trial *trial = rank->trial;
  const struct trial_setup *setup = trial->setup;
  const struct linear_result *expected = &setup->expected[rank->steps_done];
  const uint32_t m = setup->program->microbatch_count;
  struct weft_step_result result;
  weft_pipeline_result(rank->pipeline, &result);
  if (result.loss_count != m ||
      memcmp(result.losses, expected->losses, m * sizeof *result.losses) != 0) {
    complain(trial, "step %u: wrong losses", rank->steps_done);
  }
  if (result.outputs.count != 1 || result.outputs.items[0].shape.dims[0] != setup->model.rows ||
      memcmp(result.outputs.items[0].data, expected->outputs,
             (size_t)setup->model.rows * setup->model.width * sizeof(float)) != 0) {
    complain(trial, "step %u: wrong outputs", rank->steps_done);
  }
}

static void end_step(struct trial_rank *rank) {
  const struct trial_setup *setup = rank->trial->setup;
  if (!setup->has_cost_stages && !is_odd_one(rank)) {
    if (!setup->is_eval[rank->steps_done]) {
      check_gradients(rank);
    }
    if (has_last_stage(rank)) {
      check_outputs(rank);
    }
  }
  rank->steps_done++;
  if (rank->steps_done == setup->steps) {
    end_rank(rank, WEFT_OK);
  } else {
    begin_step(rank);
  }
}

/* ---- Turns ---- */

static void watch_wait(struct trial_rank *rank) {
  struct trial *trial = rank->trial;
  const int64_t now = conformance_now(trial->world);
  const uint64_t actions = weft_pipeline_actions_done(rank->pipeline);
  const int64_t waited = now - rank->progress;
  trial->longest_wait = waited > trial->longest_wait ? waited : trial->longest_wait;
  if (actions != rank->actions) {
    rank->actions = actions;
    rank->progress = now;
  }
}

static void take_turn(struct trial_rank *rank) {
  struct trial *trial = rank->trial;
  const struct trial_setup *setup = trial->setup;
  if (setup->fault == FAULT_FROZEN && setup->victim == rank->rank &&
      rank->advances >= setup->when) {
    rank->is_lost = true;
    end_rank(rank, WEFT_ERR_CANCELLED);
    return;
  }
  rank->advances++;
  trial->at_work = rank->rank;
  const enum weft_status status = weft_pipeline_advance(rank->pipeline, &rank->error);
  mix(trial, rank->rank);
  mix(trial, (uint64_t)conformance_now(trial->world));
  mix(trial, (uint64_t)(int64_t)status);
  watch_wait(rank);
  if (status == WEFT_IN_PROGRESS) {
    struct weft_error error;
    if (weft_pipeline_wait(rank->pipeline, &error) != WEFT_OK) {
      complain(trial, "waiting fails: %s", error.message);
    }
  } else if (status == WEFT_OK) {
    end_step(rank);
  } else {
    rank->is_lost = setup->fault == FAULT_DEATH && setup->victim == rank->rank &&
                    strncmp(rank->error.message, "fault:", 6) == 0;
    end_rank(rank, status);
  }
}

static bool anybody_runs(const struct trial *trial) {
  for (uint32_t r = 0; r < trial->rank_count; r++) {
    if (trial->ranks[r].runs) {
      return true;
    }
  }
  return false;
}

static void take_turns(struct trial *trial) {
  while (anybody_runs(trial)) {
    struct weft_error error;
    uint32_t next;
    if (++trial->turns > TURNS_MAX) {
      complain(trial, "it does not end: %d turns, tick %" PRId64, TURNS_MAX,
               conformance_now(trial->world));
      return;
    }
    if (weft_comm_next(trial->world, &next, &error) < 0) {
      complain(trial, "it came to a stop: %s", error.message);
      return;
    }
    if (trial->ranks[next].runs) {
      take_turn(&trial->ranks[next]);
    }
  }
}

/* ---- The whole ---- */

static void mix_events(struct trial *trial, const struct weft_pipeline *pipeline) {
  struct weft_event events[512];
  uint64_t count;
  weft_pipeline_events(pipeline, events, 512, &count);
  mix(trial, count);
  for (uint64_t k = 0; k < count && k < 512; k++) {
    mix(trial, events[k].record);
    mix(trial, (uint64_t)events[k].begin);
    mix(trial, (uint64_t)events[k].end);
  }
}

static void look_back(struct trial *trial) {
  struct weft_transport *endpoint = weft_comm_endpoint(trial->world, 0);
  trial->has_failure = endpoint->ops->get_failure(endpoint, &trial->failure);
  for (uint32_t r = 0; r < trial->rank_count; r++) {
    if (trial->ranks[r].pipeline != NULL) {
      mix_events(trial, trial->ranks[r].pipeline);
    }
  }
  for (uint32_t s = 0; s < trial->setup->program->stage_count; s++) {
    if (trial->stages[s].misuse != NULL) {
      complain(trial, "stage %u: %s", s, trial->stages[s].misuse);
    }
  }
}

static void close_all(struct trial *trial) {
  const uint32_t first = (uint32_t)(trial->setup->seed % trial->rank_count);
  for (uint32_t r = 0; r < trial->rank_count; r++) { /* in no particular order */
    weft_pipeline_destroy(trial->ranks[(first + r) % trial->rank_count].pipeline);
  }
  for (uint32_t r = 0; r < trial->rank_count; r++) {
    struct weft_transport *transport = trial->ranks[r].transport;
    if (transport != NULL && transport->ops->destroy != NULL) {
      transport->ops->destroy(transport);
    }
  }
  weft_comm_close(trial->world);
}

static void prepare_trial(struct trial *trial, const struct trial_setup *setup) {
  memset(trial, 0, sizeof *trial);
  trial->setup = setup;
  test_memory_init(&trial->memory);
  trial->allocator = (struct weft_allocator){.reallocate = reallocate, .context = trial};
  trial->named = setup->named;
  trial->named.allocator = &trial->allocator;
  trial->named.lower = &setup->lower;
  trial->fixed = (struct weft_fixed_source){
      .allocator = &trial->allocator, .program = setup->program, .lower = &setup->lower};
  trial->other = trial->fixed;
  trial->other.program = setup->other_program;
  trial->inputs = linear_model_inputs(&setup->model);
  trial->targets = linear_model_targets(&setup->model);
  make_stages(trial);
}

static void run_ranks(struct trial *trial, int64_t stall_limit) {
  trial->rank_count = trial->setup->program->rank_count;
  for (uint32_t r = 0; r < trial->rank_count; r++) {
    trial->ranks[r].trial = trial;
    trial->ranks[r].rank = r;
    create_rank(&trial->ranks[r], stall_limit);
  }
  for (uint32_t r = 0; r < trial->rank_count; r++) {
    if (trial->ranks[r].runs) {
      begin_step(&trial->ranks[r]);
    }
  }
  take_turns(trial);
  look_back(trial);
  close_all(trial);
}

void trial_run(struct trial *trial, const struct trial_setup *setup, int64_t stall_limit) {
  struct weft_error error;
  const uint64_t blocks = protected_device_blocks();
  prepare_trial(trial, setup);
  if (weft_comm_open(&trial->allocator, "loopback", &setup->network, &trial->world, &error) ==
      WEFT_OK) {
    run_ranks(trial, stall_limit);
  } else if (!trial->was_out_of_memory) {
    complain(trial, "no world: %s", error.message);
  }
  if (protected_device_blocks() != blocks) {
    complain(trial, "blocks are left behind on the device");
  }
  if (trial->memory.blocks != 0 || trial->memory.bytes != 0) {
    complain(trial, "%zu blocks are left behind", trial->memory.blocks);
  }
}
