/* Several pipelines on one transport, replicas of each other: each gives what it gives
 * alone, bit for bit; what fails or hangs in one ends all of them with one error, which
 * names the transport's rank. On threads and on loopback.
 * Also under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/support.h>

#include "run/hang/hang.h"
#include "support_csv.h"
#include "support_linear_model.h"
#include "support_linear_stage.h"
#include "support_pipelines.h"
#include "support_protected_device.h"
#include "support_rank_states.h"

enum {
  REPLICAS_MAX = 3,
  RANKS_MAX = 12,
  WIDTH = 3,
  WATCHDOG_SECONDS = 250,
  STALL_NS = 1500 * 1000 * 1000,
  STALL_TICKS = 1000
};

/* ---- A job: models and what a plain evaluation makes of them ---- */

enum defect { NONE, FAILS, HANGS };

/* A rank's part of adding up gradients over replicas; one stage per rank. */
struct sharing {
  struct weft_group *group;
  struct test_linear_stage *stage;
  struct weft_collective sum;
};

struct job {
  struct weft_named_source source;
  struct weft_program *program;
  uint32_t m, replicas;
  struct linear_model models[REPLICAS_MAX]; /* each with weights and data of its own */
  struct linear_result expected[REPLICAS_MAX];
  struct weft_tensor inputs[REPLICAS_MAX], targets[REPLICAS_MAX];
  struct weft_batch batches[RANKS_MAX];

  enum defect defect; /* of a rank, in its n-th F */
  uint32_t defective_rank, defect_at, forwards;
  uint32_t odd_rank; /* has another configuration; UINT32_MAX: none */
  int64_t stall_limit;
  bool shares; /* gradients, between replicas */
  struct sharing sharing[RANKS_MAX];

  enum weft_status statuses[RANKS_MAX];
  struct weft_error errors[RANKS_MAX];
  struct weft_step_result results[RANKS_MAX];
  bool wrong[RANKS_MAX]; /* results, where a rank has the last stage */
};

static uint32_t rank_count(const struct job *job) { return job->source.ranks * job->replicas; }

static void make_batches(struct job *job) {
  uint32_t rank_of[64];
  const uint32_t stages = job->program->stage_count;
  assert_in_range(stages, 1, 64);
  weft_placement_infer(job->program, rank_of);
  for (uint32_t r = 0; r < rank_count(job); r++) {
    const uint32_t replica = r / job->source.ranks;
    const bool last = rank_of[stages - 1] == r % job->source.ranks;
    job->batches[r] = (struct weft_batch){.microbatch_count = job->m,
                                          .inputs = &job->inputs[replica],
                                          .input_count = 1,
                                          .targets = &job->targets[replica],
                                          .target_count = 1,
                                          .want_losses = last,
                                          .want_outputs = last};
  }
}

static void job_init(struct job *job, const char *schedule, uint32_t p, uint32_t v, uint32_t m,
                     uint32_t replicas) {
  struct weft_error error;
  memset(job, 0, sizeof *job);
  job->source = (struct weft_named_source){.schedule = schedule, .ranks = p, .stages_per_rank = v};
  job->m = m;
  job->replicas = replicas;
  job->odd_rank = UINT32_MAX;
  assert_int_equal(weft_source_named(&job->source, m, true, &job->program, &error), WEFT_OK);
  for (uint32_t d = 0; d < replicas; d++) {
    linear_model_init(&job->models[d], job->program->stage_count, WIDTH, 2 * m, 7 + d);
    job->expected[d] = linear_model_evaluate(&job->models[d], job->program, true, UINT32_MAX);
    job->inputs[d] = linear_model_inputs(&job->models[d]);
    job->targets[d] = linear_model_targets(&job->models[d]);
  }
  make_batches(job);
}

static void job_finish(struct job *job) {
  for (uint32_t d = 0; d < job->replicas; d++) {
    linear_result_free(&job->models[d], &job->expected[d]);
    linear_model_finish(&job->models[d]);
  }
  weft_program_destroy(job->program);
}

/* ---- Ranks ---- */

static struct weft_pipeline_options options_for(struct job *job, uint32_t rank) {
  const uint32_t replica = rank / job->source.ranks;
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = &job->source;
  options.microbatch_count = job->m;
  options.stages = job->models[replica].bases;
  options.stage_count = job->program->stage_count;
  options.boundaries = &job->models[replica].boundary;
  options.boundary_count = 1;
  options.device = test_device();
  options.first_rank = replica * job->source.ranks;
  options.first_channel = replica * 2 * options.stage_count;
  options.configuration = rank == job->odd_rank;
  if (job->stall_limit > 0) {
    options.stall_limit = job->stall_limit;
  }
  return options;
}

/* The defective rank's F. */
static enum weft_status forward(void *context, const struct weft_custom_call *call,
                                struct weft_error *error) {
  struct job *job = context;
  job->forwards += !call->calls[0]->again;
  if (job->forwards == job->defect_at) {
    return job->defect == HANGS ? WEFT_IN_PROGRESS
                                : weft_fail(error, WEFT_ERR_IO, "", "out of paper");
  }
  return call->stages[0]->ops->forward(call->stages[0], call->calls[0], error);
}

/* REDUCE_GRAD between replicas. */
static enum weft_status reduce(void *context, const struct weft_custom_call *call,
                               struct weft_error *error) {
  struct sharing *sharing = context;
  if (!call->calls[0]->again) {
    uint32_t count;
    float *gradients = test_linear_stage_gradients(sharing->stage, &count);
    sharing->sum = (struct weft_collective){
        .kind = WEFT_ALL_REDUCE, .from = gradients, .to = gradients, .bytes = 4 * count};
    WEFT_TRY(sharing->group->ops->start(sharing->group, &sharing->sum, error));
  }
  return sharing->group->ops->test(sharing->group, &sharing->sum, error);
}

static enum weft_status share(struct job *job, struct weft_transport *transport,
                              struct weft_pipeline *pipeline, struct weft_error *error) {
  const uint32_t p = job->source.ranks, row = transport->rank % p;
  struct sharing *sharing = &job->sharing[transport->rank];
  uint32_t ranks[REPLICAS_MAX];
  for (uint32_t d = 0; d < job->replicas; d++) {
    ranks[d] = d * p + row;
  }
  sharing->stage = job->models[transport->rank / p].stages[row];
  WEFT_TRY(
      transport->ops->group(transport, row, ranks, job->replicas, NULL, &sharing->group, error));
  return weft_pipeline_set_function(pipeline, WEFT_OP_REDUCE_GRAD, reduce, sharing, error);
}

static void end_sharing(struct job *job, uint32_t rank) {
  struct weft_group *group = job->sharing[rank].group;
  if (group != NULL) {
    group->ops->destroy(group);
    job->sharing[rank].group = NULL;
  }
}

static enum weft_status create(struct job *job, struct weft_transport *transport,
                               struct weft_pipeline **out, struct weft_error *error) {
  const struct weft_pipeline_options options = options_for(job, transport->rank);
  WEFT_TRY(weft_pipeline_create(NULL, transport, &options, out, error));
  if (job->shares) {
    WEFT_TRY(share(job, transport, *out, error));
  }
  return job->defect != NONE && transport->rank == job->defective_rank
             ? weft_pipeline_set_function(*out, WEFT_OP_F, forward, job, error)
             : WEFT_OK;
}

/* Losses and outputs; gradients are looked at when all ranks have ended. */
static bool is_right(const struct job *job, uint32_t rank, const struct weft_step_result *result) {
  const uint32_t replica = rank / job->source.ranks;
  const struct linear_result *expected = &job->expected[replica];
  return !job->batches[rank].want_losses ||
         (result->loss_count == job->m && result->outputs.count == 1 &&
          memcmp(result->losses, expected->losses, job->m * sizeof(double)) == 0 &&
          memcmp(result->outputs.items[0].data, expected->outputs,
                 (size_t)job->models[replica].rows * WIDTH * sizeof(float)) == 0);
}

/* Two steps; with a defect as many as it takes. */
static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct job *job = context;
  const uint32_t rank = transport->rank;
  struct weft_pipeline *pipeline = NULL;
  enum weft_status status = create(job, transport, &pipeline, error);
  for (uint32_t step = 0; status == WEFT_OK && (step < 2 || job->defect != NONE); step++) {
    struct weft_step_result result;
    status = weft_pipeline_step(pipeline, &job->batches[rank], &result, error);
    job->wrong[rank] |= status == WEFT_OK && !is_right(job, rank, &result);
  }
  job->statuses[rank] = status;
  job->errors[rank] = *error;
  end_sharing(job, rank);
  weft_pipeline_destroy(pipeline);
  return status;
}

static void run_threads(struct job *job, struct weft_failure *failure) {
  struct weft_comm *world = NULL;
  struct weft_error error;
  assert_int_equal(
      weft_comm_open(NULL, "threads", &(struct weft_comm_options){.rank_count = rank_count(job)},
                     &world, &error),
      WEFT_OK);
  (void)weft_comm_run(world, rank_main, job, &error);
  struct weft_transport *transport = weft_comm_endpoint(world, 0);
  failure->error.status = WEFT_OK;
  (void)transport->ops->get_failure(transport, failure);
  weft_comm_close(world);
}

static void note_ends(struct job *job, const struct pipelines *pipelines) {
  for (uint32_t r = 0; r < rank_count(job); r++) {
    struct weft_step_result result;
    job->statuses[r] = pipelines->statuses[r];
    job->errors[r] = pipelines->errors[r];
    weft_pipeline_result(pipelines->items[r], &result);
    job->wrong[r] |= job->statuses[r] == WEFT_OK && !is_right(job, r, &result);
  }
}

static void run_loopback(struct job *job, struct weft_failure *failure) {
  const struct weft_comm_options world = {
      .rank_count = rank_count(job), .seed = job->m, .latency_ticks = 3, .delay_ticks_max = 5};
  struct pipelines pipelines;
  struct weft_error error;
  pipelines_open(&pipelines, NULL, &world);
  for (uint32_t r = 0; r < rank_count(job); r++) {
    assert_int_equal(create(job, pipelines.transports[r], &pipelines.items[r], &error), WEFT_OK);
  }
  enum weft_status status = WEFT_OK;
  for (uint32_t step = 0; status == WEFT_OK && (step < 2 || job->defect != NONE); step++) {
    status = pipelines_step(&pipelines, true, job->batches, rank_count(job), &error);
    note_ends(job, &pipelines);
  }
  if (status != WEFT_OK) { /* who had done its step hears of it in the next */
    (void)pipelines_step(&pipelines, true, job->batches, rank_count(job), &error);
    note_ends(job, &pipelines);
  }
  failure->error.status = WEFT_OK;
  (void)pipelines.transports[0]->ops->get_failure(pipelines.transports[0], failure);
  for (uint32_t r = 0; r < rank_count(job); r++) {
    end_sharing(job, r);
  }
  pipelines_close(&pipelines);
}

static void run_job(struct job *job, bool threads, struct weft_failure *failure) {
  (threads ? run_threads : run_loopback)(job, failure);
}

/* ---- Results ---- */

static void check_replicas(const char *schedule, uint32_t p, uint32_t v, uint32_t m,
                           uint32_t replicas, bool threads) {
  static struct job job; /* large */
  struct weft_failure failure;
  job_init(&job, schedule, p, v, m, replicas);
  run_job(&job, threads, &failure);
  for (uint32_t r = 0; r < rank_count(&job); r++) {
    if (job.statuses[r] != WEFT_OK || job.wrong[r]) {
      fail_msg("%s x %u, rank %u: %s", schedule, replicas, r,
               job.wrong[r] ? "other results" : job.errors[r].message);
    }
  }
  for (uint32_t d = 0; d < replicas; d++) {
    for (uint32_t s = 0; s < job.program->stage_count; s++) {
      if (!linear_gradients_equal(&job.models[d], s, &job.expected[d])) {
        fail_msg("%s x %u: gradients of replica %u, stage %u", schedule, replicas, d, s);
      }
    }
  }
  job_finish(&job);
}

static void as_one_alone(void **state) {
  (void)state;
  for (uint32_t replicas = 1; replicas <= REPLICAS_MAX; replicas++) {
    for (int threads = 0; threads < 2; threads++) {
      check_replicas("1F1B", 3, 1, 5, replicas, threads == 1);
      check_replicas("1F1B", 1, 1, 3, replicas, threads == 1);
      check_replicas("ZBVZeroBubble", 2, 2, 4, replicas, threads == 1);
      check_replicas("Interleaved1F1B", 4, 2, 8, replicas, threads == 1);
    }
  }
}

static void check_sums(const struct job *job, uint32_t stage) {
  const struct linear_result *expected = job->expected;
  for (uint32_t d = 0; d < job->replicas; d++) {
    uint32_t count;
    const float *found = test_linear_stage_gradients(job->models[d].stages[stage], &count);
    for (uint32_t k = 0; k < count; k++) {
      float sum = expected[0].gradients[stage][k];
      for (uint32_t e = 1; e < job->replicas; e++) {
        sum += expected[e].gradients[stage][k];
      }
      assert_memory_equal(&found[k], &sum, sizeof sum);
    }
  }
}

static void gradients_over_a_group(void **state) {
  (void)state;
  static struct job job;
  for (int threads = 0; threads < 2; threads++) {
    struct weft_failure failure;
    job_init(&job, "1F1B", 3, 1, 5, 3);
    job.shares = true;
    run_job(&job, threads == 1, &failure);
    assert_int_equal(failure.error.status, WEFT_OK);
    for (uint32_t s = 0; s < 3; s++) {
      check_sums(&job, s);
    }
    job_finish(&job);
  }
}

/* ---- Trouble ---- */

/* All ranks of all replicas say the same, and it is about that rank. */
static void check_trouble(const struct job *job, const struct weft_failure *failure,
                          enum weft_status status, uint32_t culprit) {
  char name[16];
  (void)snprintf(name, sizeof name, "rank %u", culprit);
  if (failure->error.status != status || failure->rank != culprit ||
      strstr(failure->error.message, name) == NULL) {
    fail_msg("not %s of rank %u but of rank %u: %s", weft_status_name(status), culprit,
             failure->rank, failure->error.message);
  }
  for (uint32_t r = 0; r < rank_count(job); r++) {
    assert_int_equal(job->statuses[r], status);
    assert_string_equal(job->errors[r].message, failure->error.message);
    assert_false(job->wrong[r]); /* steps before it */
  }
}

static void cause(struct job *job, enum defect defect, uint32_t rank, bool threads) {
  const enum weft_status status = defect == HANGS ? WEFT_ERR_STALLED : WEFT_ERR_STAGE;
  struct weft_failure failure;
  job->defect = defect;
  job->defective_rank = rank;
  job->defect_at = job->m + 2; /* in the second step */
  job->stall_limit = defect == HANGS ? (threads ? STALL_NS : STALL_TICKS) : 0;
  run_job(job, threads, &failure);
  check_trouble(job, &failure, status, rank);
}

static void one_fails(void **state) {
  (void)state;
  static struct job job;
  for (uint32_t rank = 0; rank < 6; rank++) {
    job_init(&job, rank % 2 == 0 ? "1F1B" : "ZBVZeroBubble", 2, 1 + rank % 2, 4, 3);
    cause(&job, FAILS, rank, rank > 3);
    assert_non_null(strstr(job.errors[0].message, "out of paper"));
    job_finish(&job);
  }
}

static void one_hangs(void **state) {
  (void)state;
  static struct job job;
  for (uint32_t rank = 0; rank < 6; rank++) {
    job_init(&job, "1F1B", 2, 1, 4, 3);
    cause(&job, HANGS, rank, rank == 3);
    job_finish(&job);
  }
}

/* Others wait for it in a collective, at the same time as its neighbours for messages. */
static void one_hangs_before_a_collective(void **state) {
  (void)state;
  static struct job job;
  for (uint32_t p = 1; p <= 3; p++) {
    for (uint32_t rank = 0; rank < 3 * p; rank++) {
      job_init(&job, "1F1B", p, 1, 4, 3);
      job.shares = true;
      cause(&job, HANGS, rank, p == 2 && rank == 4);
      job_finish(&job);
    }
  }
}

/* The rank that hangs cannot say so itself: it never comes back from its function. */
static void behind_in_a_collective(void **state) {
  (void)state;
  struct weft_program *program = NULL;
  const char *text = "0F0,0B0,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD\n";
  struct rank_states states;
  struct weft_failure failure;
  assert_int_equal(weft_program_parse(NULL, text, strlen(text), "rows", &program, NULL), WEFT_OK);
  rank_states_init(&states, 6, "threads");
  for (uint32_t r = 0; r < 6; r++) {
    rank_state_set(&states, r, WEFT_PHASE_COMPUTE, "", UINT32_MAX,
                   r % 2 == 0 ? "0REDUCE_GRAD" : "1REDUCE_GRAD", 1000000000);
    states.items[r].cell = 3;
  }
  rank_states_diagnose(&states.transport, program, 0, WEFT_COMM_POSTED, 0, &failure);
  assert_int_equal(failure.rank, 0);
  assert_string_equal(failure.error.message, "rank 0 waits for its 0REDUCE_GRAD since 1.0 s");
  rank_state_set(&states, 4, WEFT_PHASE_COMPUTE, "0F0", UINT32_MAX, "", 2000000000);
  states.items[4].cell = 0;
  rank_states_diagnose(&states.transport, program, 0, WEFT_COMM_POSTED, 0, &failure);
  assert_int_equal(failure.rank, 4);
  assert_string_equal(
      failure.error.message,
      "rank 0 has waited 1.0 s in its 0REDUCE_GRAD for rank 4, which is in 0F0 since "
      "2.0 s");
  rank_states_diagnose(&states.transport, program, 0, WEFT_COMM_POSTED, 1, &failure);
  assert_int_equal(failure.rank, 1); /* of another row */
  rank_states_finish(&states);
  weft_program_destroy(program);
}

/* A GPU that gathers parameters in its stream does not end its action while a member is stopped,
 * whatever that one was doing. */
static void stopped_in_a_collective(void **state) {
  (void)state;
  struct weft_program *program = NULL;
  const char *text = "0UNSHARD,0F0,0B0\n1UNSHARD,1F0,1B0\n";
  struct rank_states states;
  struct weft_failure failure;
  assert_int_equal(weft_program_parse(NULL, text, strlen(text), "rows", &program, NULL), WEFT_OK);
  rank_states_init(&states, 4, "nccl");
  rank_state_set(&states, 1, WEFT_PHASE_COMPUTE, "1F0", UINT32_MAX, "", 2000000000);
  states.items[1].flags = WEFT_RANK_ON_DEVICE | WEFT_RANK_HAS_GPU;
  rank_state_set(&states, 3, WEFT_PHASE_COMPUTE, "", UINT32_MAX, "1UNSHARD", 3000000000);
  rank_states_diagnose(&states.transport, program, 0, WEFT_COMM_POSTED, 1, &failure);
  assert_int_equal(failure.rank, 1);
  states.items[3].flags = WEFT_RANK_STOPPED | WEFT_RANK_HAS_GPU;
  states.items[3].gpu = 5;
  rank_states_diagnose(&states.transport, program, 0, WEFT_COMM_POSTED, 1, &failure);
  assert_int_equal(failure.rank, 3);
  assert_string_equal(
      failure.error.message,
      "rank 1 with GPU 0 has waited 2.0 s before 1F0 for rank 3, which is stopped, by a "
      "signal or a debugger, in 1UNSHARD with GPU 5 since 3.0 s");
  assert_string_equal(failure.error.hint, "SIGCONT resumes rank 3's process");
  rank_states_finish(&states);
  weft_program_destroy(program);
}

/* Likewise where the host waits: all have come to the collective, and one of them is stopped in it. */
static void stopped_after_all_have_come(void **state) {
  (void)state;
  struct weft_program *program = NULL;
  const char *text = "0F0,0B0,0TIE_GRAD,0REDUCE_GRAD\n1F0,1B0,1TIE_GRAD,1REDUCE_GRAD\n";
  struct rank_states states;
  struct weft_failure failure;
  assert_int_equal(weft_program_parse(NULL, text, strlen(text), "rows", &program, NULL), WEFT_OK);
  rank_states_init(&states, 4, "mpi");
  for (uint32_t r = 0; r < 4; r++) {
    rank_state_set(&states, r, WEFT_PHASE_COMPUTE, "", UINT32_MAX,
                   r % 2 == 0 ? "0REDUCE_GRAD" : "1REDUCE_GRAD", 1000000000);
    states.items[r].cell = 4;
  }
  rank_state_set(&states, 2, WEFT_PHASE_COMPUTE, "0B0", UINT32_MAX, "0REDUCE_GRAD", 2000000000);
  states.items[2].flags = WEFT_RANK_STOPPED;
  rank_states_diagnose(&states.transport, program, 0, WEFT_COMM_POSTED, 0, &failure);
  assert_int_equal(failure.rank, 2);
  assert_string_equal(
      failure.error.message,
      "rank 0 has waited 1.0 s in its 0REDUCE_GRAD for rank 2, which is stopped, by "
      "a signal or a debugger, in 0REDUCE_GRAD since 2.0 s");
  assert_string_equal(failure.error.hint, "SIGCONT resumes rank 2's process");
  rank_states_diagnose(&states.transport, program, 0, WEFT_COMM_POSTED, 1, &failure);
  assert_int_equal(failure.rank, 1); /* of another row */
  for (uint32_t r = 2; r < 4; r++) { /* in the same replica */
    rank_state_set(&states, r, WEFT_PHASE_COMPUTE, "", UINT32_MAX,
                   r == 2 ? "0TIE_GRAD" : "1TIE_GRAD", 1000000000);
    states.items[r].cell = 3;
  }
  rank_states_diagnose(&states.transport, program, 0, WEFT_COMM_POSTED, 3, &failure);
  assert_int_equal(failure.rank, 2);
  rank_states_finish(&states);
  weft_program_destroy(program);
}

/* All ranks of `count` wait in their last collective. */
static void all_wait(struct rank_states *states, uint32_t count) {
  static const char *const wants[] = {"0TIE_GRAD", "1REDUCE_GRAD", "2TIE_GRAD"};
  for (uint32_t r = 0; r < count; r++) {
    rank_state_set(states, r, WEFT_PHASE_COMPUTE, "", UINT32_MAX, wants[r % 3], 1000000000);
    states->items[r].cell = r % 3 == 1 ? 3 : 4;
  }
}

static void diagnose(struct rank_states *states, const struct weft_program *program,
                     uint32_t reporter, uint32_t culprit, const char *message) {
  struct weft_failure failure;
  rank_states_diagnose(&states->transport, program, 0, WEFT_COMM_POSTED, reporter, &failure);
  assert_string_equal(failure.error.message, message);
  assert_int_equal(failure.rank, culprit);
}

/* A TIE_GRAD waits for the one of the other stage, in the same replica. */
static void before_the_other_tie(void **state) {
  (void)state;
  struct weft_program *program = NULL;
  const char *text =
      "0F0,0B0,0TIE_GRAD,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD\n"
      "2F0,2B0,2TIE_GRAD,2REDUCE_GRAD\n";
  struct rank_states states;
  assert_int_equal(weft_program_parse(NULL, text, strlen(text), "rows", &program, NULL), WEFT_OK);
  rank_states_init(&states, 6, "threads");
  all_wait(&states, 6);
  diagnose(&states, program, 3, 3,
           "rank 3 waits for its 0TIE_GRAD since 1.0 s"); /* both are there */
  rank_state_set(&states, 5, WEFT_PHASE_COMPUTE, "2B0", UINT32_MAX, "", 2000000000);
  states.items[5].cell = 1;
  diagnose(&states, program, 3, 5,
           "rank 3 has waited 1.0 s in its 0TIE_GRAD for rank 5, which is in 2B0 since 2.0 s");
  diagnose(&states, program, 5, 5, "rank 5 is in 2B0 since 2.0 s");
  /* It waits for a message, and the one that sends it computes. */
  rank_state_set(&states, 5, WEFT_PHASE_RECEIVE, "2F0", 4, "1SEND_F0", 2000000000);
  states.items[5].cell = 0;
  rank_state_set(&states, 4, WEFT_PHASE_COMPUTE, "1F0", UINT32_MAX, "", 3000000000);
  states.items[4].cell = 0;
  diagnose(
      &states, program, 3, 4,
      "rank 3 has waited 1.0 s in its 0TIE_GRAD for rank 5, which waits for rank 4, which is in "
      "1F0 since 3.0 s");
  /* The other way round, and a rank that has not begun the step, whatever its cell was. */
  all_wait(&states, 6);
  rank_state_set(&states, 0, WEFT_PHASE_HANDSHAKE, "", UINT32_MAX, "", 1000000000);
  diagnose(
      &states, program, 2, 0,
      "rank 2 has waited 1.0 s in its 2TIE_GRAD for rank 0, which waits in the handshake since "
      "1.0 s, for no known rank");
  /* It is past it: nobody can say more. */
  rank_state_set(&states, 0, WEFT_PHASE_COMPUTE, "", UINT32_MAX, "0REDUCE_GRAD", 1000000000);
  states.items[0].cell = 4;
  diagnose(&states, program, 2, 2, "rank 2 waits for its 2TIE_GRAD since 1.0 s");
  rank_states_finish(&states);
  weft_program_destroy(program);
}

/* A collective before the TIE_GRAD, in which another replica is behind. */
static void behind_before_the_other_tie(void **state) {
  (void)state;
  struct weft_program *program = NULL;
  const char *text = "0F0,1B0,1REDUCE_GRAD,0B0,0TIE_GRAD\n2F0,2B0,2TIE_GRAD\n";
  struct rank_states states;
  assert_int_equal(weft_program_parse(NULL, text, strlen(text), "rows", &program, NULL), WEFT_OK);
  rank_states_init(&states, 4, "threads");
  rank_state_set(&states, 0, WEFT_PHASE_COMPUTE, "", UINT32_MAX, "1REDUCE_GRAD", 1000000000);
  states.items[0].cell = 5;
  rank_state_set(&states, 1, WEFT_PHASE_COMPUTE, "", UINT32_MAX, "2TIE_GRAD", 1000000000);
  states.items[1].cell = 3;
  rank_state_set(&states, 2, WEFT_PHASE_COMPUTE, "1B0", UINT32_MAX, "", 2000000000);
  states.items[2].cell = 1;
  rank_state_set(&states, 3, WEFT_PHASE_COMPUTE, "", UINT32_MAX, "2TIE_GRAD", 1000000000);
  states.items[3].cell = 3;
  diagnose(
      &states, program, 1, 2,
      "rank 1 has waited 1.0 s in its 2TIE_GRAD for rank 0, which waits for rank 2, which is in "
      "1B0 since 2.0 s");
  rank_states_finish(&states);
  weft_program_destroy(program);
}

static void one_is_odd(void **state) {
  (void)state;
  static struct job job;
  for (int threads = 0; threads < 2; threads++) {
    struct weft_failure failure;
    job_init(&job, "1F1B", 2, 1, 4, 3);
    job.odd_rank = 4;
    run_job(&job, threads == 1, &failure);
    check_trouble(&job, &failure, WEFT_ERR_PEER, 4);
    assert_non_null(strstr(failure.error.message, "rank 4 has another configuration"));
    job_finish(&job);
  }
}

/* A rank waits for what its peer has done: which row that is depends on the replica. */
static void done_in_a_replica(void **state) {
  (void)state;
  struct weft_program *program = NULL;
  const char *text = "0F0,0SEND_F0,0F1,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
  assert_int_equal(weft_program_parse(NULL, text, strlen(text), "rows", &program, NULL), WEFT_OK);
  for (uint32_t first = 0; first < 6; first++) { /* any place, as of a replica there */
    struct rank_states states;
    struct weft_failure failure;
    char expected[64];
    rank_states_init(&states, 8, "threads");
    rank_state_set(&states, first + 1, WEFT_PHASE_RECEIVE, "1F0", first, "0SEND_F0", 1000);
    rank_state_set(&states, first, WEFT_PHASE_COMPUTE, "0F1", UINT32_MAX, "", 1000);
    states.items[first].cell = 2;
    rank_states_diagnose(&states.transport, program, first, WEFT_COMM_POSTED, first + 1, &failure);
    (void)snprintf(expected, sizeof expected, "for rank %u (0SEND_F0), which has done that", first);
    assert_non_null(strstr(failure.error.message, expected));
    assert_int_equal(failure.rank, first + 1);
    states.items[first].cell = 0; /* before that it has not */
    rank_states_diagnose(&states.transport, program, first % 2 + 2, WEFT_COMM_POSTED, first + 1,
                         &failure);
    assert_int_equal(failure.rank, first);
    rank_states_finish(&states);
  }
  weft_program_destroy(program);
}

/* ---- What is refused ---- */

static void refuse(uint32_t p, uint32_t ranks, uint32_t rank, uint32_t first_rank,
                   uint32_t first_channel, enum weft_status status, const char *message) {
  static struct job job;
  const struct weft_comm_options options = {.rank_count = ranks};
  struct weft_comm *world = NULL;
  struct weft_pipeline *pipeline = NULL;
  struct weft_error error;
  job_init(&job, "1F1B", p, 1, 4, 1);
  assert_int_equal(weft_comm_open(NULL, "loopback", &options, &world, &error), WEFT_OK);
  struct weft_pipeline_options wrong = options_for(&job, 0);
  wrong.first_rank = first_rank;
  wrong.first_channel = first_channel;
  assert_int_equal(
      weft_pipeline_create(NULL, weft_comm_endpoint(world, rank), &wrong, &pipeline, &error),
      status);
  assert_string_equal(error.message, message);
  weft_comm_close(world);
  job_finish(&job);
}

static void places_that_do_not_exist(void **state) {
  (void)state;
  refuse(2, 4, 3, 3, 0, WEFT_ERR_USAGE,
         "the program has 2 ranks, from rank 3 on, and the transport 4");
  refuse(2, 4, 3, UINT32_MAX, 0, WEFT_ERR_USAGE,
         "the program has 2 ranks, from rank 4294967295 on, and the transport 4");
  refuse(2, 4, 2, 0, 0, WEFT_ERR_USAGE,
         "the program has 2 ranks, from rank 0 on, and rank 2 has no row of it");
  refuse(2, 4, 1, 2, 0, WEFT_ERR_USAGE,
         "the program has 2 ranks, from rank 2 on, and rank 1 has no row of it");
  refuse(2, 2, 0, 0, UINT32_MAX - 2, WEFT_ERR_LIMIT,
         "channels of 2 stages from channel 4294967293 on; there are 4294967295");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(as_one_alone),
      cmocka_unit_test(one_fails),
      cmocka_unit_test(one_hangs),
      cmocka_unit_test(one_is_odd),
      cmocka_unit_test(gradients_over_a_group),
      cmocka_unit_test(one_hangs_before_a_collective),
      cmocka_unit_test(behind_in_a_collective),
      cmocka_unit_test(stopped_in_a_collective),
      cmocka_unit_test(stopped_after_all_have_come),
      cmocka_unit_test(before_the_other_tie),
      cmocka_unit_test(behind_before_the_other_tie),
      cmocka_unit_test(done_in_a_replica),
      cmocka_unit_test(places_that_do_not_exist),
  };
  (void)alarm(WATCHDOG_SECONDS); /* the net below the stall limits */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
