/* Mutants of the runtime on GPUs, made by the fake driver: one cuStreamWaitEvent or cuEventRecord
 * does nothing. Something must notice:
 *
 *   - a race, a deadlock, a query of an event that nobody recorded, a graph that cannot be recorded,
 *     an error, or other bits;
 *   - a step that ends before all its work;
 *   - another order of the step's work.
 *
 * What nobody notices changes nothing: the same work comes after the same work, by other waits. Such
 * calls are counted.
 * Not under sanitizers: each mutant is a run of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "fake_cuda.h"
#include "run/pipeline.h"
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
  uint32_t waits, records; /* that change nothing */
  bool evaluates;          /* forwards only, of many microbatches */
  bool finishes;           /* with options.finish */
  uint32_t host_ranks;
};

/* ---- How many calls the steps make, and how they are ordered ---- */

static uint64_t waits_in_steps, records_in_steps, order_of_steps;
static bool ends_early;

static void look_after_step(struct cuda_job *of, uint32_t step) {
  (void)of;
  (void)step;
  waits_in_steps = fake_cuda_calls("cuStreamWaitEvent");
  records_in_steps = fake_cuda_calls("cuEventRecord");
  ends_early = ends_early || !fake_cuda_host_knows_all();
}

static void note_order(struct cuda_job *of, uint32_t step) {
  (void)of;
  (void)step;
  fake_cuda_host_sees_all();
  order_of_steps = fake_cuda_order();
}

/* The order of all work in the steps; with a call that is dropped. 0: they have failed. */
static uint64_t find_order(const char *function, uint64_t nth) {
  struct weft_error error;
  fake_cuda_reset(&(struct fake_cuda_options){
      .devices = devices, .no_peers = no_peers, .queues = 32, .orders = true});
  if (function != NULL) {
    fake_cuda_drop(function, nth);
  }
  order_of_steps = 0;
  job.after = note_order;
  const enum weft_status status = cuda_job_run(&job, &found, &error);
  return status == WEFT_OK ? order_of_steps : 0;
}

/* ---- An optimizer ---- */

static const struct weft_stage_ops *linear_ops;

static enum weft_status scale_by(struct weft_stage *stage, double factor,
                                 struct weft_stream *stream, struct weft_error *error) {
  struct weft_stage_call call = {.grad_scale = factor, .stream = stream};
  return linear_ops->scale_grads(stage, &call, error);
}

/* On the host, what the two passes below do. */
static enum weft_status scale_by_six(struct weft_stage *stage, struct weft_stage_call *call,
                                     struct weft_error *error) {
  WEFT_TRY(scale_by(stage, 2, call->stream, error));
  return scale_by(stage, 3, call->stream, error);
}

static void let_hosts_scale(struct cuda_job *of) {
  static struct weft_stage_ops ops;
  linear_ops = of->stages[0].stage.ops;
  ops = *linear_ops;
  ops.reduce_grad = of->cuda == NULL ? scale_by_six : NULL;
  for (uint32_t s = 0; s < of->stage_count; s++) {
    of->stages[s].stage.ops = &ops;
  }
}

/* In every pass a rank writes to gradients of another one. */
static enum weft_status scale_others(struct cuda_job *of, uint32_t rank, uint32_t pass,
                                     struct weft_stream *stream, struct weft_error *error) {
  for (uint32_t s = 0; s < of->stage_count; s++) {
    if (of->rank_of[s] == (rank + 1 + pass) % of->ranks) {
      WEFT_TRY(scale_by(&of->stages[s].stage, pass == 0 ? 2 : 3, stream, error));
    }
  }
  return pass == 0 ? WEFT_IN_PROGRESS : WEFT_OK;
}

static void begin(const struct mutation *of, bool eager, bool no_events) {
  static const struct cuda_step evaluations[STEPS] = {
      {.evaluates = true}, {.evaluates = true}, {.evaluates = true}};
  struct weft_error error;
  const struct fake_cuda_options options = options_of(1);
  job = (struct cuda_job){.schedule = of->schedule,
                          .ranks = of->ranks,
                          .microbatches = of->evaluates ? CUDA_MICROBATCHES_MAX : 2 * of->ranks,
                          .steps = of->evaluates ? evaluations : NULL,
                          .step_count = STEPS,
                          .eager = eager,
                          .no_events = no_events,
                          .host_ranks = of->host_ranks,
                          .with_stages = of->finishes ? let_hosts_scale : NULL,
                          .finish = of->finishes ? scale_others : NULL,
                          .stall_limit = INT64_C(2000000000)};
  assert_int_equal(cuda_job_run_on_host(&job, &expected, &error), WEFT_OK);
  fake_cuda_reset(&options);
  job.after = look_after_step;
  ends_early = false;
  assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
  assert_false(ends_early);
  cuda_job_check_findings(&job);
  assert_memory_equal(expected.grads, found.grads, sizeof found.grads);
  assert_memory_equal(expected.losses[STEPS - 1], found.losses[0], sizeof found.losses[0]);
  expected = found; /* with `after`, losses are the last step's */
}

/* ---- A mutant ---- */

/* Of the waits that were dropped, those for a buffer's release: what writes into it again has no
 * order with what still reads it. */
static uint32_t releases;

static bool is_release(void) {
  return fake_cuda_finding_count() > 0 &&
         strstr(fake_cuda_finding(0), ", which reads, and") != NULL;
}

/* A race names both actions; one of them may be the host's own access. */
static void check_names(void) {
  const char *text = fake_cuda_finding_count() > 0 ? fake_cuda_finding(0) : "";
  if (strncmp(text, "race", 4) != 0) {
    return;
  }
  const char *first = strstr(text, " of rank ");
  if (first == NULL ||
      (strstr(first + 1, " of rank ") == NULL && strstr(text, "\n  the host") == NULL)) {
    fail_msg("%s", text);
  }
}

static bool is_noticed(const char *function, uint64_t nth) {
  for (uint32_t seed = 0; seed < SEEDS; seed++) {
    const struct fake_cuda_options options = options_of(seed);
    struct weft_error error;
    fake_cuda_reset(&options);
    fake_cuda_drop(function, nth);
    ends_early = false;
    job.after = look_after_step;
    if (cuda_job_run(&job, &found, &error) < 0 || fake_cuda_finding_count() > 0 ||
        !cuda_job_same(&expected, &found, sizeof found) ||
        strstr(job.log, "cannot be recorded as a CUDA graph") != NULL || ends_early) {
      check_names();
      releases += is_release();
      return true;
    }
  }
  return false;
}

/* Of the calls that change the order, those that nothing else notices. */
static uint32_t reordered;

/* How many change nothing. */
static uint32_t drop_calls(const char *function, uint64_t count) {
  const bool ordered = job.host_ranks == 0; /* with ranks on the host, the calls depend on time */
  const uint64_t order = ordered ? find_order(NULL, 0) : 0;
  uint32_t survivors = 0;
  assert_true(!ordered || (order != 0 && find_order(NULL, 0) == order));
  for (uint64_t n = 1; n <= count; n++) {
    const bool noticed = is_noticed(function, n);
    const bool moves = !noticed && ordered && find_order(function, n) != order;
    survivors += !noticed && !moves;
    reordered += moves;
  }
  return survivors;
}

static void mutate(const struct mutation *mutation, bool eager, bool no_events) {
  begin(mutation, eager, no_events);
  const uint64_t waits = waits_in_steps, records = records_in_steps;
  assert_in_range(waits, 10, 1000);
  assert_in_range(records, 30, 1000);
  releases = reordered = 0;
  const uint32_t lost_waits = drop_calls("cuStreamWaitEvent", waits);
  const uint32_t waits_for_releases = releases;
  const uint32_t lost_records = drop_calls("cuEventRecord", records);
  releases = waits_for_releases;
  print_message(
      "%s, %u ranks, %s%s: %u waits (%u for releases) and %u records dropped; by their order alone "
      "%u are noticed, and %u and %u change nothing\n",
      mutation->schedule, mutation->ranks, eager ? "eager" : "graph",
      mutation->finishes ? ", with an optimizer" : "", (unsigned)waits, releases, (unsigned)records,
      reordered, lost_waits, lost_records);
  if (mutation->host_ranks == 0) {
    assert_int_equal(lost_waits, mutation->waits);
  } else { /* other ones every time; the host has often waited already, which is not proven here */
    assert_in_range(lost_waits, 0, waits / 2);
  }
  assert_int_equal(lost_records, mutation->records);
}

/* Everything that is enqueued is needed. Some forks and joins of DualPipeV's overlaps are noticed by
 * their order alone: a backward has its input already when an earlier one forks, or the rest of the
 * step needs what it writes only after a later one joins; but the rank's cells would not come one
 * after the other. */
static void dropped_calls_are_noticed_when_enqueued(void **state) {
  static const struct mutation mutations[] = {{.schedule = "1F1B", .ranks = 2},
                                              {.schedule = "GPipe", .ranks = 3},
                                              {.schedule = "Interleaved1F1B", .ranks = 2},
                                              {.schedule = "ZBVZeroBubble", .ranks = 2},
                                              {.schedule = "DualPipeV", .ranks = 2}};
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(mutations); k++) {
    mutate(&mutations[k], true, true);
  }
}

/* In training a gradient comes after all that has read the activation, so that the waits for it
 * cover those for buffers that are used again. An evaluation has no gradients. In its graph, the
 * streams of ranks that begin with a wait for another rank need not wait for the graph's begin. */
static void dropped_releases_are_noticed(void **state) {
  static const struct mutation eager = {.schedule = "1F1B", .ranks = 3, .evaluates = true},
                               graph = {
                                   .schedule = "1F1B", .ranks = 3, .waits = 2, .evaluates = true};
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
  static const struct mutation mutation = {.schedule = "ZBVZeroBubble", .ranks = 2};
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

/* ---- Times ---- */

enum { EVENTS_MAX = 64, TIMED_RANKS = 2 };

/* Of all steps, counted from the step's beginning: when each event ends. */
static int64_t times[2][TIMED_RANKS][STEPS][EVENTS_MAX];
static unsigned times_of;

static void note_times(struct cuda_job *of, const struct weft_pipeline *pipeline, uint32_t rank,
                       uint32_t step) {
  struct weft_event events[EVENTS_MAX];
  uint64_t count = 0;
  (void)of;
  weft_pipeline_events(pipeline, events, EVENTS_MAX, &count);
  assert_in_range(count, 0, EVENTS_MAX);
  for (uint64_t k = 0; k < count; k++) {
    times[times_of][rank][step][k] = events[k].end - pipeline->executor.device->base_ns;
  }
}

/* Batches of ranks are copied in any order, 1 us each. A step takes longer. */
enum { TOLERANCE_NS = 8 * 1000 };

static bool are_close(void) {
  const int64_t *a = &times[0][0][0][0], *b = &times[1][0][0][0];
  for (size_t k = 0; k < sizeof times[0] / sizeof *a; k++) {
    if (a[k] - b[k] > TOLERANCE_NS || b[k] - a[k] > TOLERANCE_NS) {
      return false;
    }
  }
  return true;
}

static bool has_same_times(const char *function, uint64_t nth) {
  struct weft_error error;
  fake_cuda_reset(&(struct fake_cuda_options){
      .queues = 32, .policy = FAKE_CUDA_OLDEST, .strict_queries = true});
  if (nth > 0) {
    fake_cuda_drop(function, nth);
  }
  memset(times[times_of], 0, sizeof times[times_of]);
  return cuda_job_run(&job, &found, &error) == WEFT_OK && fake_cuda_finding_count() == 0 &&
         are_close();
}

/* With event times, a rank records the beginning of its step, of each cell that waits, and of the
 * first one. Those records are for times alone, which are others without them. */
static void records_are_for_times(void **state) {
  static const struct mutation mutation = {.schedule = "1F1B", .ranks = TIMED_RANKS};
  (void)state;
  begin(&mutation, true, false);
  const uint64_t records = records_in_steps;
  job.after = NULL;
  job.look = note_times;
  times_of = 0;
  (void)has_same_times("cuEventRecord", 0);
  times_of = 1;
  assert_true(has_same_times("cuEventRecord", 0));
  uint32_t for_times = 0;
  for (uint64_t n = 1; n <= records; n++) {
    job.look = NULL;
    const bool noticed = is_noticed("cuEventRecord", n);
    job.after = NULL;
    job.look = note_times;
    for_times += !noticed;
    if (!noticed && has_same_times("cuEventRecord", n)) {
      fail_msg("nobody notices that record %u of %u is missing", (unsigned)n, (unsigned)records);
    }
  }
  assert_int_equal(for_times, (TIMED_RANKS * (1 + 4) + 1) * STEPS);
}

/* One step of three is enqueued, and one is recorded. */
static void dropped_calls_are_noticed_in_graphs(void **state) {
  static const struct mutation mutations[] = {{.schedule = "1F1B", .ranks = 2},
                                              {.schedule = "GPipe", .ranks = 3},
                                              {.schedule = "Interleaved1F1B", .ranks = 2},
                                              {.schedule = "ZBVZeroBubble", .ranks = 2},
                                              {.schedule = "DualPipeV", .ranks = 2}};
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
  } cases[] = {{false,
                {.schedule = "1F1B", .ranks = 2, .waits = 3 * STEPS},
                {.schedule = "1F1B", .ranks = 2, .waits = 2 * 3}},
               {true,
                {.schedule = "1F1B", .ranks = 2, .waits = 7 * STEPS},
                {.schedule = "1F1B", .ranks = 2, .waits = 2 * 8}},
               {false,
                {.schedule = "Interleaved1F1B", .ranks = 2, .waits = 4 * STEPS},
                {.schedule = "Interleaved1F1B", .ranks = 2, .waits = 2 * 4}},
               {true,
                {.schedule = "Interleaved1F1B", .ranks = 2, .waits = 14 * STEPS},
                {.schedule = "Interleaved1F1B", .ranks = 2, .waits = 2 * 15}},
               {false,
                {.schedule = "ZBVZeroBubble", .ranks = 2, .waits = 3 * STEPS},
                {.schedule = "ZBVZeroBubble", .ranks = 2, .waits = 2 * 3}},
               {true,
                {.schedule = "ZBVZeroBubble", .ranks = 2, .waits = 8 * STEPS, .records = STEPS},
                {.schedule = "ZBVZeroBubble", .ranks = 2, .waits = 2 * 9, .records = 1}}};
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

/* The ranks meet before each pass of an optimizer. In 1F1B the last backward of rank 0 comes after
 * rank 1's anyway. */
static void dropped_calls_of_optimizers_are_noticed(void **state) {
  static const struct mutation eager[] = {
      {.schedule = "1F1B", .ranks = 2, .finishes = true, .waits = STEPS, .records = STEPS},
      {.schedule = "ZBVZeroBubble", .ranks = 2, .finishes = true}};
  static const struct mutation graph[] = {
      {.schedule = "1F1B", .ranks = 2, .finishes = true, .waits = 2, .records = 1},
      {.schedule = "ZBVZeroBubble", .ranks = 2, .finishes = true}};
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(eager); k++) {
    mutate(&eager[k], true, true);
    mutate(&graph[k], false, true);
  }
}

static void dropped_calls_beside_hosts_are_noticed(void **state) {
  (void)state;
  for (uint32_t mask = 1; mask <= 2; mask++) {
    const struct mutation mutation = {.schedule = "1F1B", .ranks = 2, .host_ranks = mask};
    mutate(&mutation, true, true);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dropped_calls_are_noticed_when_enqueued),
      cmocka_unit_test(dropped_releases_are_noticed),
      cmocka_unit_test(dropped_calls_of_optimizers_are_noticed),
      cmocka_unit_test(dropped_calls_beside_hosts_are_noticed),
      cmocka_unit_test(dropped_frees_are_noticed),
      cmocka_unit_test(records_are_for_times),
      cmocka_unit_test(dropped_calls_are_noticed_in_graphs),
      cmocka_unit_test(dropped_calls_are_noticed_between_gpus),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
