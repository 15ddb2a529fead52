/* What fails on GPUs, on the fake driver: calls of CUDA, kernels that never end, and kernels that
 * crash. All ranks end with the same error, nothing is left behind, and nobody waits forever. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "device/cuda/cuda_api.h"
#include "fake_cuda.h"
#include "fake_functions.h"
#include "support_cuda_job.h"

/* Under AddressSanitizer a part of the calls and crashes has to do; the other build has all. */
#if defined(__SANITIZE_ADDRESS__)
enum { SPARED = 6, CONFIGURATIONS_SPARED = 5, CRASHES_SPARED = 3 };
#else
enum { SPARED = 1, CONFIGURATIONS_SPARED = 1, CRASHES_SPARED = 1 };
#endif

static struct cuda_results expected, found;
static struct cuda_job job;
static uint32_t devices;
static bool no_peers, late_queries;

static const struct cuda_step steps[] = {{.microbatches = 4}, {.microbatches = 4},
                                         {.microbatches = 4}, {.microbatches = 6},
                                         {.microbatches = 6}, {.evaluates = true}};

static void make_job(const char *schedule, bool eager) {
  job = (struct cuda_job){.schedule = schedule,
                          .ranks = 2,
                          .microbatches = 4,
                          .steps = steps,
                          .step_count = WEFT_ARRAY_LENGTH(steps),
                          .eager = eager,
                          .partitions = eager ? 2 : 0,
                          .stall_limit = INT64_C(20000000000)};
}

/* ---- The n-th call of a function fails ---- */

static const char *const functions[] = {
#define NAME(how, name, symbol, parameters) #name,
    WEFT_CUDA_FUNCTIONS(NAME)
#undef NAME
};

static bool is_cleanup(const char *function) {
  return strstr(function, "Destroy") != NULL || strstr(function, "Free") != NULL ||
         strstr(function, "Unload") != NULL || strstr(function, "Release") != NULL;
}

/* Whether the run may succeed all the same. */
static bool may_be_ignored(const char *function) {
  return is_cleanup(function) || strstr(function, "Peer") != NULL ||
         strstr(function, "cuGetError") != NULL || strcmp(function, "cuCtxSetCurrent") == 0 ||
         strcmp(function, "cuEventQuery") == 0 || strcmp(function, "cuEventElapsedTime") == 0;
}

static void fail_call(const char *function, uint64_t nth, bool sticky, uint64_t seed) {
  char what[96];
  struct weft_error error = {.status = WEFT_OK};
  (void)snprintf(what, sizeof what, "call %" PRIu64 " of %s fails%s", nth, function,
                 sticky ? " and the GPU is lost" : "");
  fake_cuda_reset(&(struct fake_cuda_options){.seed = seed,
                                              .queues = 1 + (uint32_t)(seed % 32),
                                              .devices = devices,
                                              .no_peers = no_peers,
                                              .late_queries = late_queries});
  fake_cuda_fail(function, nth, 0, sticky);
  const enum weft_status status = cuda_job_run(&job, &found, &error);
  if (status == WEFT_OK) {
    const bool says_so = strstr(job.log, "no memory for a recording") != NULL ||
                         strstr(job.log, "cannot be recorded as a CUDA graph: ") != NULL;
    if (!may_be_ignored(function) && !says_so && fake_cuda_calls(function) >= nth) {
      fail_msg("%s: nobody noticed", what);
    }
    assert_memory_equal(&found, &expected, sizeof found);
  } else {
    if (error.message[0] == '\0' || error.hint[0] == '\0') {
      fail_msg("%s: message '%s', hint '%s'", what, error.message, error.hint);
    }
    if (strcmp(function, "cuCtxSetCurrent") == 0 && error.status == WEFT_ERR_MEMORY) {
      fail_msg("%s, and the reason given is memory: %s", what, error.message);
    }
    if (error.status == WEFT_ERR_DEVICE && job.failed_ranks > 0 &&
        strstr(error.message, "rank ") == NULL) {
      fail_msg("%s, and no rank is named: %s", what, error.message);
    }
    if (job.failed_ranks != 0 && job.failed_ranks != job.ranks) {
      fail_msg("%s: %u ranks of %u failed: %s", what, job.failed_ranks, job.ranks, error.message);
    }
    for (uint32_t r = 0; r < job.failed_ranks; r++) {
      assert_true(job.errors[r].status < 0 && job.errors[r].message[0] != '\0');
    }
  }
  assert_int_equal(job.stuck_ranks, 0);
  if (is_cleanup(function) || strcmp(function, "cuStreamEndCapture") == 0) {
    return; /* what it should have ended or freed is still there */
  }
  if (strcmp(function, "cuStreamSynchronize") != 0 && fake_cuda_finding_count() > 0) {
    fail_msg("%s: %s", what, fake_cuda_finding(0));
  }
  cuda_job_check_leaks(&job, what);
}

/* Waits and records after the last step are for what may still run, which is nothing. */
static uint64_t waits_in_steps, records_in_steps;

static void count_in_steps(struct cuda_job *of, uint32_t step) {
  (void)of;
  (void)step;
  waits_in_steps = fake_cuda_calls("cuStreamWaitEvent");
  records_in_steps = fake_cuda_calls("cuEventRecord");
}

static uint64_t count_calls(const char *function) {
  return strcmp(function, "cuStreamWaitEvent") == 0 ? waits_in_steps
         : strcmp(function, "cuEventRecord") == 0   ? records_in_steps
                                                    : fake_cuda_calls(function);
}

/* The first ones, the last, and some between them. */
static void fail_calls(uint64_t each_at_most) {
  const uint64_t each = each_at_most > SPARED ? each_at_most / SPARED : 1;
  uint64_t counts[WEFT_ARRAY_LENGTH(functions)];
  struct weft_error error;
  assert_int_equal(cuda_job_run_on_host(&job, &expected, &error), WEFT_OK);
  fake_cuda_reset(&(struct fake_cuda_options){.seed = 1, .devices = devices, .no_peers = no_peers});
  job.after = count_in_steps;
  assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
  job.after = NULL;
  fake_cuda_reset(&(struct fake_cuda_options){.seed = 1, .devices = devices, .no_peers = no_peers});
  assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_OK);
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(functions); k++) {
    counts[k] = count_calls(functions[k]);
  }
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(functions); k++) {
#if defined(__SANITIZE_ADDRESS__)
    if (is_cleanup(functions[k]) || strcmp(functions[k], "cuStreamEndCapture") == 0 ||
        strcmp(functions[k], "cuGreenCtxCreate") == 0) {
      continue; /* the driver's own objects would leak */
    }
#endif
    for (uint64_t n = 1; n <= counts[k];
         n += n < 3 || counts[k] < each ? 1 : counts[k] / each + 1) {
      fail_call(functions[k], n, false, n);
      fail_call(functions[k], n, true, n);
    }
  }
}

static void calls_fail_when_enqueued(void **state) {
  (void)state;
  make_job("1F1B", true);
  fail_calls(12);
  make_job("DualPipeV", true);
  fail_calls(6);
}

static void calls_fail_in_graphs(void **state) {
  (void)state;
  make_job("1F1B", false);
  fail_calls(12);
  make_job("ZBVZeroBubble", false);
  fail_calls(6);
}

static void calls_fail_between_gpus(void **state) {
  (void)state;
  devices = 2;
  make_job("1F1B", false);
  fail_calls(4);
  for (uint64_t n = 1; n < 200; n += SPARED) { /* with the other GPU current, too */
    fail_call("cuCtxSetCurrent", n, true, n);
  }
  no_peers = true;
  make_job("1F1B", false);
  fail_calls(4);
  devices = 0;
  no_peers = false;
}

static void calls_fail_with_a_rank_on_the_host(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < 2; rank++) {
    make_job("1F1B", false);
    job.host_ranks = 1u << rank;
    fail_calls(4);
    late_queries = true; /* the rank on the host asks while the other one destroys its events */
    for (uint64_t n = 0; n < 400; n += SPARED) {
      fail_call("cuCtxSetCurrent", 20 + n % 100, false, n);
    }
    late_queries = false;
  }
}

/* ---- A kernel that never ends ---- */

static void hang(const char *kernel, uint64_t nth, bool eager, const char *action) {
  struct weft_error error;
  make_job("1F1B", eager);
  job.partitions = 0;
  job.stall_limit = 200 * 1000 * 1000;
  fake_cuda_reset(&(struct fake_cuda_options){.seed = nth, .stall_waits = true});
  fake_cuda_hang(kernel, nth);
  const enum weft_status status = cuda_job_run(&job, &found, &error);
  fake_cuda_release();
  assert_int_equal(status, WEFT_ERR_STALLED);
  assert_int_equal(job.failed_ranks, job.ranks);
  assert_non_null(strstr(error.message, action));
  assert_int_equal(fake_cuda_calls("cuMemFree"), 0); /* they would wait for it forever */
  assert_int_equal(fake_cuda_calls("cuMemFreeHost"), 0);
}

static void kernels_that_never_end_are_named(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__)
  skip(); /* what is left on the GPU would be leaks of the driver */
#endif
  hang("weft_linear_forward", 1, true, "0F0");
  hang("weft_linear_forward", 1, false, "0F0");
  hang("weft_linear_forward", 20, false, "F");
}

/* ---- A step that is interrupted ---- */

static int64_t interrupt_at;

static bool is_interrupted(void *context) {
  (void)context;
  return weft_clock_ns() >= interrupt_at;
}

/* A kernel hangs, and nobody waits for the stall limit. */
static void interrupt(uint64_t nth, bool eager, uint32_t host_ranks) {
  struct weft_error error;
  make_job("1F1B", eager);
  job.partitions = 0;
  job.host_ranks = host_ranks;
  job.stall_limit = nth % 2 == 0 ? INT64_MAX : INT64_C(600000000000);
  job.interrupted = is_interrupted;
  fake_cuda_reset(&(struct fake_cuda_options){.seed = nth, .stall_waits = true});
  fake_cuda_hang("weft_linear_forward", nth);
  interrupt_at = weft_clock_ns() + 200 * 1000 * 1000;
  const enum weft_status status = cuda_job_run(&job, &found, &error);
  fake_cuda_release();
  assert_int_equal(status, WEFT_ERR_CANCELLED);
  assert_non_null(strstr(error.message, "was asked to stop in step"));
  assert_int_equal(job.failed_ranks, job.ranks);
  assert_int_equal(job.stuck_ranks, 0);
  assert_true(weft_clock_ns() - interrupt_at < INT64_C(5000000000));
}

static void interrupted_steps_end(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__)
  skip(); /* what is left on the GPU would be leaks of the driver */
#endif
  interrupt(1, true, 0);
  interrupt(2, true, 0);
  interrupt(21, false, 0);
  interrupt(1, false, 1);
  interrupt(2, false, 2);
}

/* ---- A kernel that crashes ---- */

static void crash(const char *kernel, uint64_t nth, bool eager, const char *action) {
  struct weft_error error;
  make_job("1F1B", eager);
  fake_cuda_reset(&(struct fake_cuda_options){.seed = nth});
  fake_cuda_crash(kernel, nth, CUDA_ERROR_ILLEGAL_ADDRESS);
  const enum weft_status status = cuda_job_run(&job, &found, &error);
  assert_int_equal(status, WEFT_ERR_DEVICE);
  assert_int_equal(job.failed_ranks, job.ranks);
  assert_non_null(strstr(error.message, action));
  assert_non_null(strstr(error.message, "rank "));
  cuda_job_check_leaks(&job, "after a crash");
}

static void kernels_that_crash_are_named(void **state) {
  (void)state;
  crash("weft_linear_forward", 1, true, "0F0");
  crash("weft_linear_forward", 1, false, "0F0");
  crash("weft_linear_forward", 20, false, "most likely");
  crash("weft_linear_backward_input", 7, true, "most likely");
}

/* ---- Who is blamed for it ---- */

/* "1F3 of rank 1" is among "rank 0, step 2, most likely one of 0F4, 1F3 (rank 1): ..." */
static bool is_named(const char *culprit, const char *message, uint32_t *names) {
  char action[64], first[24], other[80];
  unsigned rank;
  assert_int_equal(sscanf(culprit, "%63s of rank %u", action, &rank), 2);
  const char *list = strstr(message, "most likely ");
  const char *end = list != NULL ? strstr(list, ": ") : NULL;
  if (end == NULL) {
    return false;
  }
  char text[400];
  (void)snprintf(text, sizeof text, "%.*s,", (int)(end - list), list);
  (void)snprintf(first, sizeof first, "rank %u, step ", rank);
  *names = 1;
  for (const char *at = strchr(text, ','); at[1] != '\0'; at = strchr(at + 1, ',')) {
    ++*names;
  }
  (void)snprintf(other, sizeof other, " %s (rank %u)", action, rank);
  if (strstr(text, other) != NULL) {
    return true;
  }
  (void)snprintf(other, sizeof other, " %s,", action);
  return strncmp(message, first, strlen(first)) == 0 && strstr(text, other) != NULL;
}

struct crashes {
  const char *schedule;
  bool eager;
  uint32_t devices;
  uint32_t query_nodes, lasts; /* queries of the host, from the kernel's begin to its crash */
  uint32_t count, named, names;
};

/* Every launch of the kernels in the second step crashes once. (In the first, ranks allocate what
 * goes between GPUs, and wait for it.) */
static void crash_everywhere(struct crashes *of) {
  static const char *const kernels[] = {"weft_linear_forward", "weft_linear_backward_input",
                                        "weft_linear_backward_weight"};
  enum { RANKS = 4, MICROBATCHES = 8 };
  job = (struct cuda_job){.schedule = of->schedule,
                          .ranks = RANKS,
                          .microbatches = MICROBATCHES,
                          .step_count = 2,
                          .eager = of->eager};
  assert_true(cuda_job_fits(&job));
  for (uint32_t k = 0; k < WEFT_ARRAY_LENGTH(kernels); k++) {
    const uint32_t each = (job.stage_count - (k == 1)) * MICROBATCHES; /* none for the input */
    for (uint32_t nth = each + 1; nth <= 2 * each; nth += CRASHES_SPARED) {
      struct weft_error error;
      uint32_t names = 0;
      fake_cuda_reset(&(struct fake_cuda_options){.seed = nth,
                                                  .queues = 32,
                                                  .devices = of->devices,
                                                  .query_nodes = of->query_nodes,
                                                  .crash_queries = of->lasts});
      fake_cuda_crash(kernels[k], nth, CUDA_ERROR_ILLEGAL_ADDRESS);
      assert_int_equal(cuda_job_run(&job, &found, &error), WEFT_ERR_DEVICE);
      assert_non_null(fake_cuda_crashed());
      const bool named = is_named(fake_cuda_crashed(), error.message, &names);
      if (!named && of->lasts > 0) {
        fail_msg("%s, %s: %s", of->schedule, fake_cuda_crashed(), error.message);
      }
      of->named += named;
      of->names += names;
      of->count++;
    }
  }
  print_message("%s, %s, %u GPUs, %u nodes per query: %u of %u named, %.2f actions each%s\n",
                of->schedule, of->eager ? "eager" : "graph", of->devices, of->query_nodes,
                of->named, of->count, (double)of->names / of->count,
                of->lasts > 0 ? "" : "; kernels crash as they begin");
}

/* The action that crashed is among those that are named, always, if the host has looked at the ranks
 * while its kernel ran. One that crashes at once may be taken for the one before it. */
static void culprits_are_named(void **state) {
  static const uint32_t query_nodes[] = {1, 16, 64};
  (void)state;
  for (uint32_t k = 0; k < 12; k += CONFIGURATIONS_SPARED) {
    struct crashes of = {.schedule = k < 6 ? "1F1B" : "ZBVZeroBubble",
                         .eager = k % 2 == 0,
                         .devices = 1 + k / 2 % 2,
                         .query_nodes = query_nodes[k / 2 % 3],
                         .lasts = 200};
    crash_everywhere(&of);
  }
  for (uint32_t k = 0; k < 2; k++) {
    struct crashes of = {.schedule = "1F1B", .eager = k % 2 == 0, .devices = 1, .query_nodes = 1};
    crash_everywhere(&of);
    assert_true(5 * of.named > of.count);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_fail_when_enqueued),
      cmocka_unit_test(calls_fail_in_graphs),
      cmocka_unit_test(calls_fail_between_gpus),
      cmocka_unit_test(calls_fail_with_a_rank_on_the_host),
      cmocka_unit_test(kernels_that_never_end_are_named),
      cmocka_unit_test(interrupted_steps_end),
      cmocka_unit_test(kernels_that_crash_are_named),
      cmocka_unit_test(culprits_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
