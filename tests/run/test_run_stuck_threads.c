/* A stage's function that never returns: weft_comm_run() does, names the rank and the action, and
 * the thread that was left behind does nothing any more if its function returns after all.
 * Also under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/support.h>

enum { RANKS_MAX = 4, MICROBATCHES = 4, LIMIT_NS = 300 * 1000 * 1000 };

enum stuck_in { FORWARD, BACKWARD, ZERO_GRAD, PREPARE, REDUCE_GRAD, NOWHERE };

/* What ranks that are left behind use must stay, so nothing of this is on a stack. */
struct stuck_job {
  enum stuck_in where;
  uint32_t rank, microbatch; /* where it is stuck */
  int64_t stall_limit, forward_ns;
  struct weft_named_source source;
  struct weft_lower_options lower;
  struct weft_stage stages[RANKS_MAX];
  struct weft_stage *bases[RANKS_MAX];
  uint32_t released; /* atomic: the function returns */
  uint32_t calls;    /* atomic: of all stages */
  uint32_t returned; /* atomic: ranks */
};

static struct stuck_job *job_of; /* atomic: the stages' */

static struct stuck_job *current_job(void) { return __atomic_load_n(&job_of, __ATOMIC_ACQUIRE); }

static void sleep_ns(int64_t ns) {
  const struct timespec time = {.tv_sec = (time_t)(ns / 1000000000),
                                .tv_nsec = (long)(ns % 1000000000)};
  (void)nanosleep(&time, NULL);
}

static enum weft_status call_stage(const struct weft_stage *stage, enum stuck_in where,
                                   uint32_t microbatch) {
  struct stuck_job *job = current_job();
  const uint32_t rank = (uint32_t)(stage - job->stages);
  (void)__atomic_fetch_add(&job->calls, 1, __ATOMIC_RELAXED);
  while (where == job->where && rank == job->rank && microbatch == job->microbatch &&
         !__atomic_load_n(&job->released, __ATOMIC_RELAXED)) {
    sleep_ns(1000000);
  }
  return WEFT_OK;
}

static enum weft_status stage_forward(struct weft_stage *stage, struct weft_stage_call *call,
                                      struct weft_error *error) {
  (void)error;
  sleep_ns(current_job()->forward_ns);
  return call_stage(stage, FORWARD, call->microbatch);
}

static enum weft_status stage_backward(struct weft_stage *stage, struct weft_stage_call *call,
                                       struct weft_error *error) {
  (void)error;
  return call_stage(stage, BACKWARD, call->microbatch);
}

static enum weft_status stage_zero_grad(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error) {
  (void)error;
  return call_stage(stage, ZERO_GRAD, call->microbatch);
}

static enum weft_status stage_reduce_grad(struct weft_stage *stage, struct weft_stage_call *call,
                                          struct weft_error *error) {
  (void)error;
  return call_stage(stage, REDUCE_GRAD, call->microbatch);
}

static enum weft_status stage_prepare(struct weft_stage *stage, uint32_t slot_count,
                                      struct weft_error *error) {
  (void)slot_count, (void)error;
  return call_stage(stage, PREPARE, 0);
}

static const struct weft_stage_ops ops = {.name = "stuck",
                                          .prepare = stage_prepare,
                                          .forward = stage_forward,
                                          .backward = stage_backward,
                                          .zero_grad = stage_zero_grad,
                                          .reduce_grad = stage_reduce_grad};

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  static const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {1}}, .needs_grad = true}}};
  struct stuck_job *job = context;
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_named;
  options.source_context = &job->source;
  options.microbatch_count = MICROBATCHES;
  options.stages = job->bases;
  options.stage_count = job->source.ranks;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.scale_grads = false;
  options.stall_limit = job->stall_limit;
  struct weft_pipeline *pipeline = NULL;
  float x[MICROBATCHES] = {0};
  const struct weft_tensor input = {
      .data = x, .shape = {.dtype = WEFT_F32, .dim_count = 1, .dims = {MICROBATCHES}}};
  const struct weft_batch batch = {
      .microbatch_count = MICROBATCHES, .inputs = &input, .input_count = 1};
  enum weft_status status = weft_pipeline_create(NULL, transport, &options, &pipeline, error);
  if (status == WEFT_OK) {
    status = weft_pipeline_step(pipeline, &batch, NULL, error);
  }
  weft_pipeline_destroy(pipeline);
  (void)__atomic_fetch_add(&job->returned, 1, __ATOMIC_RELAXED);
  return status;
}

static void run_job(struct stuck_job *job, const char *transport, uint32_t ranks,
                    enum weft_status expected, struct weft_error *error, uint32_t *stuck) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm = NULL;
  options.rank_count = ranks;
  options.stage_limit_ns = job->stall_limit;
  job->lower = weft_lower_options_default();
  job->source =
      (struct weft_named_source){.schedule = "1F1B", .ranks = ranks, .lower = &job->lower};
  for (uint32_t r = 0; r < ranks; r++) {
    job->stages[r].ops = &ops;
    job->bases[r] = &job->stages[r];
  }
  __atomic_store_n(&job_of, job, __ATOMIC_RELEASE);
  assert_int_equal(weft_comm_open(NULL, transport, &options, &comm, error), WEFT_OK);
  error->message[0] = '\0';
  const enum weft_status status = weft_comm_run(comm, rank_main, job, error);
  if (status != expected) {
    fail_msg("%s, %u ranks: %d, %s", transport, ranks, status, error->message);
  }
  *stuck = weft_comm_stuck_ranks(comm);
  weft_comm_close(comm);
}

static const char *const transports[] = {"threads", "loopback"};

static void expect_stuck(const char *transport, uint32_t ranks, uint32_t rank, enum stuck_in where,
                         const char *text) {
  /* Never freed: the thread that is stuck has it. */
  static struct stuck_job jobs[16];
  static size_t job_count;
  assert_true(job_count < WEFT_ARRAY_LENGTH(jobs));
  struct stuck_job *job = &jobs[job_count++];
  struct weft_error error;
  char name[32];
  uint32_t stuck;
  *job = (struct stuck_job){.where = where,
                            .rank = rank,
                            .microbatch = where == FORWARD || where == BACKWARD ? 2 : 0,
                            .stall_limit = LIMIT_NS};
  run_job(job, transport, ranks, WEFT_ERR_STALLED, &error, &stuck);
  const bool is_threads = strcmp(transport, "threads") == 0;
  (void)snprintf(name, sizeof name, "rank %u", rank);
  if (strstr(error.message, name) == NULL || strstr(error.message, text) == NULL) {
    fail_msg("%s, %u ranks: \"%s\" has no \"%s\", \"%s\"", transport, ranks, error.message, name,
             text);
  }
  assert_int_equal(stuck, is_threads ? 1 : ranks);
  assert_int_equal(job->returned, is_threads ? ranks - 1 : 0);

  /* It returns after all: nothing is called any more. */
  const uint32_t calls = __atomic_load_n(&job->calls, __ATOMIC_RELAXED);
  __atomic_store_n(&job->released, 1, __ATOMIC_RELAXED);
  sleep_ns(20 * 1000 * 1000);
  assert_int_equal(__atomic_load_n(&job->calls, __ATOMIC_RELAXED), calls);
  assert_int_equal(__atomic_load_n(&job->returned, __ATOMIC_RELAXED), is_threads ? ranks - 1 : 0);
}

static void any_function_of_any_rank(void **state) {
  (void)state;
  static const char *const texts[] = {"F2", "B2", "", "", "REDUCE_GRAD"};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(transports); k++) {
    for (enum stuck_in where = FORWARD; where < NOWHERE; where++) {
      const uint32_t rank = (uint32_t)where % 3; /* also rank 0 */
      expect_stuck(transports[k], 3, rank, where, texts[where]);
    }
    expect_stuck(transports[k], 1, 0, FORWARD, "0F2 (stage 0, microbatch 2)");
    expect_stuck(transports[k], 1, 0, ZERO_GRAD, "zero_grad");
  }
}

/* A step longer than the limit is fine, as long as no single call is. */
static void slow_is_not_stuck(void **state) {
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(transports); k++) {
    static struct stuck_job job;
    struct weft_error error;
    uint32_t stuck;
    job = (struct stuck_job){
        .where = NOWHERE, .stall_limit = 4 * LIMIT_NS, .forward_ns = 4 * LIMIT_NS / 3};
    run_job(&job, transports[k], 1, WEFT_OK, &error, &stuck);
    assert_int_equal(stuck, 0);
    assert_int_equal(job.returned, 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(any_function_of_any_rank),
                                     cmocka_unit_test(slow_is_not_stuck)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
