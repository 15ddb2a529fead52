/* Nothing allocates after the first step: neither a training step nor an eval, on
 * loopback and on threads, for every schedule. Batches and outputs included. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/run.h>
#include <weft/weft.h>

#include "support_pipelines.h"

enum { RANKS = 4, MICROBATCHES = 8, ROUNDS = 4, WIDTH = 2 };

/* Counts calls from any thread. */
struct counter {
  struct weft_allocator allocator;
  uint64_t calls;
};

static void *count(void *context, void *pointer, size_t old_size, size_t new_size) {
  struct counter *counter = context;
  (void)__atomic_add_fetch(&counter->calls, 1, __ATOMIC_RELAXED);
  const struct weft_allocator *inner = weft_allocator_default();
  return inner->reallocate(inner->context, pointer, old_size, new_size);
}

static uint64_t calls_of(const struct counter *counter) {
  return __atomic_load_n(&counter->calls, __ATOMIC_RELAXED);
}

/* ---- The pipeline ---- */

struct setting {
  struct counter counter;
  char what[96];
  struct weft_named_source source;
  struct weft_stage stages[64];
  struct weft_stage *bases[64];
  struct weft_boundary boundary;
  struct weft_pipeline_options options;
  uint32_t last_rank;
  float inputs[MICROBATCHES * WIDTH];
  struct weft_tensor input;
  uint64_t before, after; /* calls when the first round was over, and the last */
};

/* The rank of the last stage asks for losses and outputs. */
static struct weft_batch batch_of(const struct setting *setting, uint32_t rank) {
  const bool last = rank == setting->last_rank;
  return (struct weft_batch){.microbatch_count = MICROBATCHES,
                             .inputs = &setting->input,
                             .input_count = 1,
                             .targets = &setting->input,
                             .target_count = 1,
                             .want_losses = last,
                             .want_outputs = last};
}

static void describe_setting(struct setting *setting, const struct weft_program *program) {
  uint32_t rank_of[64];
  struct weft_pipeline_options *options = &setting->options;
  assert_true(program->stage_count <= 64);
  (void)weft_placement_infer(program, rank_of);
  setting->last_rank = rank_of[program->stage_count - 1];
  for (uint32_t s = 0; s < program->stage_count; s++) {
    setting->stages[s].ops = weft_null_stage_ops();
    setting->bases[s] = &setting->stages[s];
  }
  setting->boundary = (struct weft_boundary){
      .tensor_count = 1,
      .tensors = {{.largest = {.dtype = WEFT_F32, .dim_count = 2, .dims = {1, WIDTH}},
                   .needs_grad = true}}};
  setting->input = (struct weft_tensor){
      .data = setting->inputs,
      .shape = {.dtype = WEFT_F32, .dim_count = 2, .dims = {MICROBATCHES, WIDTH}}};
  *options = weft_pipeline_options_default();
  options->source = weft_source_named;
  options->source_context = &setting->source;
  options->microbatch_count = MICROBATCHES;
  options->stages = setting->bases;
  options->stage_count = program->stage_count;
  options->boundaries = &setting->boundary;
  options->boundary_count = 1;
  options->check_payloads = true;
}

static struct setting *set_up(const char *schedule, enum weft_send_model comm, const char *where) {
  struct weft_error error;
  struct weft_program *program;
  struct setting *setting = calloc(1, sizeof *setting);
  setting->counter.allocator =
      (struct weft_allocator){.reallocate = count, .context = &setting->counter};
  setting->source = (struct weft_named_source){
      .allocator = &setting->counter.allocator, .schedule = schedule, .ranks = RANKS};
  (void)snprintf(setting->what, sizeof setting->what, "%s on %s, comm %d", schedule, where,
                 (int)comm);
  if (weft_source_named(&setting->source, MICROBATCHES, true, &program, &error) < 0) {
    fail_msg("%s: %s", setting->what, error.message);
  }
  describe_setting(setting, program);
  setting->options.comm = comm;
  weft_program_destroy(program);
  return setting;
}

static void expect_none(const struct setting *setting) {
  const uint64_t calls = setting->after - setting->before;
  assert_true(setting->before > 0);
  if (calls != 0) {
    fail_msg("%s: %llu allocations in steps after the first", setting->what,
             (unsigned long long)calls);
  }
}

/* ---- Loopback ---- */

static void step_all(struct pipelines *pipelines, const struct setting *setting, bool training) {
  struct weft_batch batches[RANKS];
  struct weft_error error;
  for (uint32_t r = 0; r < RANKS; r++) {
    batches[r] = batch_of(setting, r);
  }
  if (pipelines_step(pipelines, training, batches, RANKS, &error) < 0) {
    fail_msg("%s: %s", setting->what, error.message);
  }
}

static void run_loopback(const char *schedule, enum weft_send_model comm) {
  struct setting *setting = set_up(schedule, comm, "loopback");
  const struct weft_comm_options options = {.rank_count = RANKS, .latency_ticks = 3};
  struct pipelines pipelines;
  struct weft_error error;
  pipelines_open(&pipelines, &setting->counter.allocator, &options);
  if (pipelines_create(&pipelines, &setting->counter.allocator, &setting->options, &error) < 0) {
    fail_msg("%s: %s", setting->what, error.message);
  }
  for (int round = 0; round < ROUNDS; round++) {
    step_all(&pipelines, setting, true);
    step_all(&pipelines, setting, false);
    setting->before = round == 0 ? calls_of(&setting->counter) : setting->before;
  }
  setting->after = calls_of(&setting->counter);
  pipelines_close(&pipelines);
  expect_none(setting);
  free(setting);
}

/* ---- Threads ---- */

/* All ranks have done the first round before one of them counts. */
static enum weft_status meet(struct weft_transport *transport, struct weft_error *error) {
  const unsigned char here = 1;
  unsigned char all[RANKS];
  enum weft_status status;
  do {
    status = transport->ops->progress(transport, error);
    if (status == WEFT_OK) {
      status = transport->ops->exchange(transport, &here, all, sizeof here, error);
    }
    if (status == WEFT_IN_PROGRESS) {
      (void)transport->ops->wait(transport, WEFT_TIME_NEVER, error);
    }
  } while (status == WEFT_IN_PROGRESS);
  return status;
}

static enum weft_status run_rounds(struct setting *setting, struct weft_transport *transport,
                                   struct weft_pipeline *pipeline, struct weft_error *error) {
  const struct weft_batch batch = batch_of(setting, transport->rank);
  enum weft_status status = WEFT_OK;
  for (int round = 0; round < ROUNDS && status == WEFT_OK; round++) {
    status = weft_pipeline_step(pipeline, &batch, NULL, error);
    if (status == WEFT_OK) {
      status = weft_pipeline_eval(pipeline, &batch, NULL, error);
    }
    if (status == WEFT_OK && round == 0) {
      status = meet(transport, error);
      if (transport->rank == 0) {
        setting->before = calls_of(&setting->counter);
      }
      status = status == WEFT_OK ? meet(transport, error) : status;
    }
  }
  /* Nobody gives anything back before it was counted. */
  status = status == WEFT_OK ? meet(transport, error) : status;
  if (status == WEFT_OK && transport->rank == 0) {
    setting->after = calls_of(&setting->counter);
  }
  return status == WEFT_OK ? meet(transport, error) : status;
}

static enum weft_status run_rank(void *context, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct setting *setting = context;
  struct weft_pipeline *pipeline;
  enum weft_status status = weft_pipeline_create(&setting->counter.allocator, transport,
                                                 &setting->options, &pipeline, error);
  if (status == WEFT_OK) {
    status = run_rounds(setting, transport, pipeline, error);
    weft_pipeline_destroy(pipeline);
  }
  return status;
}

static void run_threads(const char *schedule, enum weft_send_model comm) {
  struct setting *setting = set_up(schedule, comm, "threads");
  struct weft_comm *world;
  struct weft_error error;
  assert_int_equal(weft_comm_open(&setting->counter.allocator, "threads",
                                  &(struct weft_comm_options){.rank_count = RANKS}, &world, &error),
                   WEFT_OK);
  if (weft_comm_run(world, run_rank, setting, &error) < 0) {
    fail_msg("%s: %s", setting->what, error.message);
  }
  weft_comm_close(world);
  expect_none(setting);
  free(setting);
}

/* ---- All ---- */

static void for_every_schedule(void (*run)(const char *schedule, enum weft_send_model comm)) {
  static const enum weft_send_model comms[] = {WEFT_COMM_POSTED, WEFT_COMM_EAGER,
                                               WEFT_COMM_RENDEZVOUS};
  unsigned cases = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    for (size_t c = 0; c < sizeof comms / sizeof comms[0] && !info->fixed; c++) {
      run(info->name, comms[c]);
      cases++;
    }
  }
  assert_true(cases >= 27);
  print_message("%u cases, %d steps and evals each, none allocates after the first\n", cases,
                ROUNDS);
}

static void test_loopback(void **state) {
  (void)state;
  for_every_schedule(run_loopback);
}

static void test_threads(void **state) {
  (void)state;
  for_every_schedule(run_threads);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_loopback),
                                     cmocka_unit_test(test_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
