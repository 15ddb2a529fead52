/* Mutants of the runtime on GPUs, made by the fake driver: one cuStreamWaitEvent or cuEventRecord
 * does nothing. Something must notice: a race, a deadlock, a query of an event that nobody
 * recorded, a graph that cannot be recorded, an error, or other bits. What nobody can notice is not needed, and is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "fake_cuda.h"
#include "support_cuda_job.h"

enum { SEEDS = 12, STEPS = 3 };

static struct cuda_results expected, found;
static struct cuda_job job;

static uint32_t devices;
static bool no_peers;

static struct fake_cuda_options options_of(uint32_t seed) {
  return (struct fake_cuda_options){.devices = devices,
                                    .no_peers = no_peers,
                                    .seed = seed,
                                    .queues = seed % 3 == 0 ? 32 : 1 + seed,
                                    .policy = (enum fake_cuda_policy)(seed % 4),
                                    .starved = seed,
                                    .query_nodes = seed % 2 == 0 ? 1 : 16,
                                    .strict_queries = true};
}

struct mutation {
  const char *schedule;
  uint32_t ranks;
  uint32_t waits, records; /* that nobody notices */
  bool evaluates;          /* forwards only, of many microbatches */
};

/* ---- How many calls the steps make ---- */

static uint64_t waits_in_steps, records_in_steps;

static void count_calls(struct cuda_job *of, uint32_t step) {
  (void)of;
  (void)step;
  waits_in_steps = fake_cuda_calls("cuStreamWaitEvent");
  records_in_steps = fake_cuda_calls("cuEventRecord");
}

static void begin(const struct mutation *of, bool no_graph, bool no_events) {
  static const struct cuda_step evaluations[STEPS] = {
      {.evaluates = true}, {.evaluates = true}, {.evaluates = true}};
  struct weft_error error;
  const struct fake_cuda_options options = options_of(1);
  job = (struct cuda_job){.schedule = of->schedule,
                          .ranks = of->ranks,
                          .microbatches = of->evaluates ? CUDA_MICROBATCHES_MAX : 2 * of->ranks,
                          .steps = of->evaluates ? evaluations : NULL,
                          .step_count = STEPS,
                          .no_graph = no_graph,
                          .no_events = no_events,
                          .stall_limit = INT64_C(2000000000)};
  assert_int_equal(cuda_job_run_on_host(&job, &expected, &error), WEFT_OK);
  fake_cuda_reset(&options);
  job.after = count_calls;
  assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
  job.after = NULL;
  cuda_job_check_findings(&job);
}

/* ---- A mutant ---- */

/* Of the waits that were dropped, those for a buffer's release: what writes into it again has no
 * order with what still reads it. */
static uint32_t releases;

static bool is_release(void) {
  return fake_cuda_finding_count() > 0 &&
         strstr(fake_cuda_finding(0), ", which reads, and") != NULL;
}

static bool is_noticed(const char *function, uint64_t nth) {
  for (uint32_t seed = 0; seed < SEEDS; seed++) {
    const struct fake_cuda_options options = options_of(seed);
    struct weft_error error;
    fake_cuda_reset(&options);
    fake_cuda_drop(function, nth);
    if (cuda_job_run(&job, &found, &error) < 0 || fake_cuda_finding_count() > 0 ||
        !cuda_job_same(&expected, &found, sizeof found) ||
        strstr(job.log, "cannot be recorded as a graph") != NULL) {
      releases += is_release();
      return true;
    }
  }
  return false;
}

/* How many nobody noticed. */
static uint32_t drop_calls(const char *function, uint64_t count) {
  uint32_t survivors = 0;
  for (uint64_t n = 1; n <= count; n++) {
    survivors += !is_noticed(function, n);
  }
  return survivors;
}

static void mutate(const struct mutation *mutation, bool no_graph, bool no_events) {
  begin(mutation, no_graph, no_events);
  const uint64_t waits = waits_in_steps, records = records_in_steps;
  assert_in_range(waits, 10, 1000);
  assert_in_range(records, 30, 1000);
  releases = 0;
  const uint32_t lost_waits = drop_calls("cuStreamWaitEvent", waits);
  const uint32_t waits_for_releases = releases;
  const uint32_t lost_records = drop_calls("cuEventRecord", records);
  releases = waits_for_releases;
  print_message(
      "%s, %u ranks, %s: %u waits (%u for releases) and %u records dropped; "
      "not noticed: %u and %u\n",
      mutation->schedule, mutation->ranks, no_graph ? "eager" : "graph", (unsigned)waits, releases,
      (unsigned)records, lost_waits, lost_records);
  assert_int_equal(lost_waits, mutation->waits);
  assert_int_equal(lost_records, mutation->records);
}

/* Everything that is enqueued is needed. Of the three overlaps of DualPipeV whose fork or join
 * nobody notices, another one covers it: a backward has its input already when an earlier one
 * forks, or the rest of the step needs what it writes only after a later one joins. */
static void dropped_calls_are_noticed_when_enqueued(void **state) {
  static const struct mutation mutations[] = {{"1F1B", 2, 0, 0, false},
                                              {"GPipe", 3, 0, 0, false},
                                              {"Interleaved1F1B", 2, 0, 0, false},
                                              {"ZBVZeroBubble", 2, 0, 0, false},
                                              {"DualPipeV", 2, 3 * STEPS, 3 * STEPS, false}};
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(mutations); k++) {
    mutate(&mutations[k], true, true);
  }
}

/* In training a gradient comes after all that has read the activation, so that the waits for it
 * cover those for buffers that are used again. An evaluation has no gradients. In its graph, the
 * streams of ranks that begin with a wait for another rank need not wait for the graph's begin. */
static void dropped_releases_are_noticed(void **state) {
  static const struct mutation eager = {"1F1B", 3, 0, 0, true}, graph = {"1F1B", 3, 2, 0, true};
  (void)state;
  mutate(&eager, true, true);
  assert_int_equal(releases, 12);
  mutate(&graph, false, true);
  assert_int_equal(releases, 8);
}

/* Whatever is not given back is still there at the end. */
static void dropped_frees_are_noticed(void **state) {
  static const char *const functions[] = {
      "cuMemFree",       "cuMemFreeHost",     "cuEventDestroy",
      "cuStreamDestroy", "cuGraphDestroy",    "cuGraphExecDestroy",
      "cuLibraryUnload", "cuGreenCtxDestroy", "cuDevicePrimaryCtxRelease"};
  static const struct mutation mutation = {"ZBVZeroBubble", 2, 0, 0, false};
  uint64_t counts[WEFT_ARRAY_LENGTH(functions)];
  struct weft_error error;
  (void)state;
  begin(&mutation, false, false);
  job.partitions = 2;
  fake_cuda_reset(NULL);
  assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
  cuda_job_check_leaks(&job, "before all");
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(functions); k++) {
    counts[k] = fake_cuda_calls(functions[k]);
    assert_in_range(counts[k], 1, 1000);
  }
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(functions); k++) {
    for (uint64_t n = 1; n <= counts[k]; n++) {
      fake_cuda_reset(NULL);
      fake_cuda_drop(functions[k], n);
      assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
      if (!cuda_job_leaks(&job)) {
        fail_msg("nobody notices that %s number %u is missing", functions[k], (unsigned)n);
      }
    }
  }
}

/* With event times, a rank records the beginning of its step, and of each cell that waits, here for
 * each of four microbatches, and of the first one: for its times alone. */
static void records_are_for_times(void **state) {
  static const struct mutation mutation = {"1F1B", 2, 0, (2 * (1 + 4) + 1) * STEPS, false};
  (void)state;
  mutate(&mutation, true, false);
}

/* One step of three is enqueued, and one is recorded. */
static void dropped_calls_are_noticed_in_graphs(void **state) {
  static const struct mutation mutations[] = {{"1F1B", 2, 0, 0, false},
                                              {"GPipe", 3, 0, 0, false},
                                              {"Interleaved1F1B", 2, 0, 0, false},
                                              {"ZBVZeroBubble", 2, 0, 0, false},
                                              {"DualPipeV", 2, 2 * 3, 2 * 3, false}};
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(mutations); k++) {
    mutate(&mutations[k], false, true);
  }
}

/* Copies between GPUs, by the receiver or through pinned memory, have streams of their own. Their
 * waits for the last use of the memory are often covered by messages that go the other way. How
 * often depends on the schedule, so each has its count. */
static void dropped_calls_are_noticed_between_gpus(void **state) {
  static const struct {
    bool no_peers;
    struct mutation eager, graph;
  } cases[] = {
      {false, {"1F1B", 2, 3 * STEPS, 0, false}, {"1F1B", 2, 2 * 3, 0, false}},
      {true, {"1F1B", 2, 7 * STEPS, 0, false}, {"1F1B", 2, 2 * 8, 0, false}},
      {false, {"Interleaved1F1B", 2, 4 * STEPS, 0, false}, {"Interleaved1F1B", 2, 2 * 4, 0, false}},
      {true,
       {"Interleaved1F1B", 2, 14 * STEPS, 0, false},
       {"Interleaved1F1B", 2, 2 * 15, 0, false}},
      {false, {"ZBVZeroBubble", 2, 3 * STEPS, 0, false}, {"ZBVZeroBubble", 2, 2 * 3, 0, false}},
      {true, {"ZBVZeroBubble", 2, 8 * STEPS, STEPS, false}, {"ZBVZeroBubble", 2, 2 * 9, 1, false}}};
  (void)state;
  devices = 2;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(cases); k++) {
    no_peers = cases[k].no_peers;
    mutate(&cases[k].eager, true, true);
    mutate(&cases[k].graph, false, true);
  }
  devices = 1;
  no_peers = false;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dropped_calls_are_noticed_when_enqueued),
      cmocka_unit_test(dropped_releases_are_noticed),
      cmocka_unit_test(dropped_frees_are_noticed),
      cmocka_unit_test(records_are_for_times),
      cmocka_unit_test(dropped_calls_are_noticed_in_graphs),
      cmocka_unit_test(dropped_calls_are_noticed_between_gpus),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
