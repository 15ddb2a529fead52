/* See support_thread_job.h. */
#include "support_thread_job.h"
#include "comm/comm_registry.h"
#include "support_fault_injection.h"
#include "support_linear_stage.h"
#include "support_protected_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

void thread_job_init(struct thread_job *job, const struct trial_setup *setup) {
  memset(job, 0, sizeof *job);
  job->setup = setup;
  job->stall_limit = INT64_C(20000000000);
  job->leaving_rank = UINT32_MAX;
  job->named = setup->named;
  job->named.lower = &setup->lower;
  job->fixed = (struct weft_fixed_source){.program = setup->program, .lower = &setup->lower};
  job->inputs = linear_model_inputs(&setup->model);
  job->targets = linear_model_targets(&setup->model);
  for (uint32_t s = 0; s < setup->program->stage_count; s++) {
    uint32_t count;
    float *parameters = test_linear_stage_parameters(setup->model.stages[s], &count);
    memcpy(parameters, setup->parameters[s], count * sizeof(float));
    fault_stage_init(&job->stages[s], setup->model.bases[s], setup->seed + s);
    job->bases[s] = &job->stages[s].stage;
  }
}

/* ---- A rank ---- */

static bool has_last_stage(const struct thread_job *job, uint32_t rank) {
  return job->setup->rank_of[job->setup->program->stage_count - 1] == rank;
}

static struct weft_pipeline_options options_of(struct thread_job *job) {
  const struct trial_setup *setup = job->setup;
  const bool is_named = setup->named.schedule != NULL;
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = is_named ? weft_source_named : weft_source_fixed;
  options.source_context = is_named ? (void *)&job->named : (void *)&job->fixed;
  options.microbatch_count = setup->program->microbatch_count;
  options.stages = job->bases;
  options.stage_count = setup->program->stage_count;
  options.device = test_device();
  options.boundaries = &setup->model.boundary;
  options.boundary_count = 1;
  options.comm = setup->comm;
  options.slots = setup->slots;
  options.stall_limit = job->stall_limit;
  options.check_payloads = setup->checks_payloads;
  options.interrupted = job->interrupted;
  options.interrupted_context = job->interrupted_context;
  return options;
}

static const char *check_outputs(const struct thread_job *job, uint32_t step,
                                 const struct weft_step_result *result) {
  const struct linear_model *model = &job->setup->model;
  const struct linear_result *expected = &job->setup->expected[step];
  const uint32_t m = job->setup->program->microbatch_count;
  if (result->loss_count != m ||
      memcmp(result->losses, expected->losses, m * sizeof *result->losses) != 0) {
    return "wrong losses";
  }
  if (result->outputs.count != 1 ||
      memcmp(result->outputs.items[0].data, expected->outputs,
             (size_t)model->rows * model->width * sizeof(float)) != 0) {
    return "wrong outputs";
  }
  return NULL;
}

static const char *check_stages(const struct thread_job *job, uint32_t rank, uint32_t step) {
  const struct trial_setup *setup = job->setup;
  const char *complaint = NULL;
  for (uint32_t s = 0; s < setup->program->stage_count; s++) {
    uint32_t count;
    if (setup->rank_of[s] != rank || setup->is_eval[step]) {
      continue;
    }
    if (!linear_gradients_equal(&setup->model, s, &setup->expected[step])) {
      complaint = "wrong gradients";
    }
    if (job->stages[s].misuse != NULL) {
      complaint = job->stages[s].misuse;
    }
    trial_learn(setup->model.stages[s],
                test_linear_stage_gradients(setup->model.stages[s], &count));
  }
  return complaint;
}

static enum weft_status take_step(struct thread_job *job, struct weft_pipeline *pipeline,
                                  uint32_t rank, uint32_t step, struct weft_error *error) {
  const struct trial_setup *setup = job->setup;
  const bool last = has_last_stage(job, rank);
  const bool compares = step < setup->steps;
  const bool is_eval = compares && setup->is_eval[step];
  const struct weft_batch batch = {.microbatch_count = setup->program->microbatch_count,
                                   .inputs = &job->inputs,
                                   .input_count = 1,
                                   .targets = &job->targets,
                                   .target_count = 1,
                                   .want_losses = last,
                                   .want_outputs = last};
  struct weft_step_result result;
  WEFT_TRY((is_eval ? weft_pipeline_eval : weft_pipeline_step)(pipeline, &batch, &result, error));
  struct thread_job_rank *own = &job->ranks[rank];
  const char *complaint = compares ? check_stages(job, rank, step) : NULL;
  if (complaint == NULL && compares && last) {
    complaint = check_outputs(job, step, &result);
  }
  own->complaint = own->complaint != NULL ? own->complaint : complaint;
  own->steps_done++;
  return WEFT_OK;
}

static enum weft_status take_steps(struct thread_job *job, struct weft_transport *transport,
                                   struct weft_error *error) {
  const struct weft_pipeline_options options = options_of(job);
  const uint32_t steps = job->steps > 0 ? job->steps : job->setup->steps;
  struct weft_pipeline *pipeline;
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, &pipeline, error));
  enum weft_status status = WEFT_OK;
  for (uint32_t step = 0; step < steps && status == WEFT_OK; step++) {
    status = take_step(job, pipeline, transport->rank, step, error);
  }
  weft_pipeline_destroy(pipeline);
  return status;
}

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct thread_job *job = context;
  struct thread_job_rank *own = &job->ranks[transport->rank];
  if (transport->rank == job->leaving_rank) {
    own->status = job->leaving;
    return job->leaving < 0 ? weft_fail(error, job->leaving, "", "rank %u leaves early",
                                        (unsigned)transport->rank)
                            : WEFT_OK;
  }
  own->status = take_steps(job, transport, error);
  own->error = *error;
  return own->status;
}

/* ---- All ranks ---- */

static void wrap(const struct thread_job *job, struct weft_comm *world,
                 struct weft_transport **endpoints) {
  for (uint32_t r = 0; r < job->setup->program->rank_count; r++) {
    const struct weft_fault_options options = {.seed = job->setup->seed,
                                               .delay_max = job->delay_max};
    struct weft_error error;
    assert_int_equal(weft_fault_injector_create(NULL, weft_comm_endpoint(world, r), &options,
                                                &endpoints[r], &error),
                     WEFT_OK);
  }
}

enum weft_status thread_job_run(struct thread_job *job, struct weft_error *error) {
  const uint32_t p = job->setup->program->rank_count;
  struct weft_transport *endpoints[THREAD_JOB_RANKS_MAX] = {NULL};
  struct weft_comm *world;
  assert_in_range(p, 1, THREAD_JOB_RANKS_MAX);
  for (uint32_t s = 0; s < job->setup->program->stage_count; s++) {
    job->stages[s].time_max = job->stage_time_max;
    job->stages[s].is_quiet = job->setup->is_quiet;
  }
  assert_int_equal(
      weft_comm_open(NULL, "threads", &(struct weft_comm_options){.rank_count = p}, &world, error),
      WEFT_OK);
  for (uint32_t r = 0; r < p; r++) {
    test_device_restrict(weft_comm_endpoint(world, r));
  }
  if (job->delay_max > 0) {
    wrap(job, world, endpoints);
  }
  if (job->on_start != NULL) {
    job->on_start(job->on_context, world);
  }
  const enum weft_status status =
      weft_comm_run_endpoints(world, job->delay_max > 0 ? endpoints : NULL, rank_main, job, error);
  if (job->on_end != NULL) {
    job->on_end(job->on_context);
  }
  for (uint32_t r = 0; r < p; r++) {
    if (endpoints[r] != NULL && endpoints[r]->ops->destroy != NULL) {
      endpoints[r]->ops->destroy(endpoints[r]);
    }
  }
  weft_comm_close(world);
  return status;
}

const char *thread_job_judge(const struct thread_job *job, enum weft_status status,
                             const struct weft_error *error) {
  for (uint32_t r = 0; r < job->setup->program->rank_count; r++) {
    const struct thread_job_rank *rank = &job->ranks[r];
    if (rank->complaint != NULL) {
      return rank->complaint;
    }
    if (r == job->leaving_rank || rank->status == WEFT_OK) {
      continue; /* it had nothing left to do */
    }
    if (rank->status != status || strcmp(rank->error.message, error->message) != 0) {
      return "ranks end with different errors";
    }
  }
  return NULL;
}
