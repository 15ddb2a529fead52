/* Graphs of the fake CUDA driver, and recordings: the same work in any order that CUDA might take,
 * and nothing that CUDA would not.
 * Also under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fake_cuda.h"
#include "support_fake_device.h"

/* ---- Graphs ---- */

enum { WORKERS = 3 };

/* A fork to WORKERS streams and the join; the word of each gets +1, then all are copied.
 * dropped: which wait does nothing. */
struct forked {
  CUstream origin, workers[WORKERS];
  CUevent fork, joins[WORKERS], timed;
  CUdeviceptr words, copy;
};

static void forked_begin(struct forked *of) {
  of->origin = create_stream();
  of->fork = create_event(CU_EVENT_DISABLE_TIMING);
  of->timed = create_event(CU_EVENT_DEFAULT);
  of->words = allocate(4 * WORKERS);
  of->copy = allocate(4 * WORKERS);
  for (unsigned k = 0; k < WORKERS; k++) {
    of->workers[k] = create_stream();
    of->joins[k] = create_event(CU_EVENT_DISABLE_TIMING);
  }
  OK(cuda->cuMemsetD8Async(of->words, 0, 4 * WORKERS, of->origin));
  OK(cuda->cuStreamSynchronize(of->origin));
}

static void forked_issue(struct forked *of) {
  OK(launch(add_one, of->origin, &of->words, NULL, NULL));
  OK(cuda->cuEventRecord(of->fork, of->origin));
  for (unsigned k = 0; k < WORKERS; k++) {
    CUdeviceptr word = of->words + 4 * k;
    OK(cuda->cuStreamWaitEvent(of->workers[k], of->fork, 0));
    OK(launch(add_one, of->workers[k], &word, NULL, NULL));
    OK(launch(add_one, of->workers[k], &word, NULL, NULL));
    OK(cuda->cuEventRecord(of->joins[k], of->workers[k]));
  }
  for (unsigned k = 0; k < WORKERS; k++) {
    OK(cuda->cuStreamWaitEvent(of->origin, of->joins[k], 0));
  }
  OK(cuda->cuMemcpyAsync(of->copy, of->words, 4 * WORKERS, of->origin));
  OK(cuEventRecordWithFlags(of->timed, of->origin, CU_EVENT_RECORD_EXTERNAL));
}

static void forked_end(struct forked *of) {
  OK(cuda->cuMemFree(of->words));
  OK(cuda->cuMemFree(of->copy));
  OK(cuda->cuStreamDestroy(of->origin));
  OK(cuda->cuEventDestroy(of->fork));
  OK(cuda->cuEventDestroy(of->timed));
  for (unsigned k = 0; k < WORKERS; k++) {
    OK(cuda->cuStreamDestroy(of->workers[k]));
    OK(cuda->cuEventDestroy(of->joins[k]));
  }
}

static void check_words(const struct forked *of, uint32_t rounds) {
  uint32_t words[WORKERS];
  OK(cuda->cuMemcpyAsync((uintptr_t)words, of->copy, sizeof words, of->origin));
  for (unsigned k = 0; k < WORKERS; k++) {
    assert_int_equal(words[k], rounds * (k == 0 ? 3 : 2));
  }
}

static CUgraphExec capture(struct forked *of) {
  CUgraph graph;
  CUgraphExec executable;
  size_t count;
  OK(cuda->cuStreamBeginCapture(of->origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  forked_issue(of);
  OK(cuda->cuStreamEndCapture(of->origin, &graph));
  OK(cuGraphGetNodes(graph, NULL, &count));
  assert_int_equal(count, 1 + 2 * WORKERS + 2);
  OK(cuda->cuGraphInstantiate(&executable, graph, 0));
  OK(cuda->cuGraphDestroy(graph));
  assert_int_equal(fake_cuda_pending(), 0); /* nothing ran */
  return executable;
}

static void test_capture_and_replay(void **state) {
  (void)state;
  static const enum fake_cuda_policy policies[] = {FAKE_CUDA_RANDOM, FAKE_CUDA_NEWEST,
                                                   FAKE_CUDA_OLDEST, FAKE_CUDA_STARVE};
  for (unsigned seed = 0; seed < SEEDS; seed++) {
    struct forked of;
    begin((struct fake_cuda_options){
        .seed = seed, .queues = 1 + seed % 32, .policy = policies[seed % 4]});
    forked_begin(&of);
    CUgraphExec executable = capture(&of);
    assert_int_equal(cuda->cuEventQuery(of.fork), 907); /* it was captured */
    assert_int_equal(cuda->cuStreamWaitEvent(of.workers[0], of.fork, 0), 907);
    for (unsigned round = 1; round <= 3; round++) {
      OK(cuda->cuGraphLaunch(executable, of.origin));
      if (round == 2) { /* in a hurry: the next one comes after it */
        OK(cuda->cuEventSynchronize(of.timed));
        check_words(&of, round);
      }
    }
    check_words(&of, 3);
    forked_issue(&of);
    check_words(&of, 4);
    nothing_found();
    OK(cuda->cuGraphExecDestroy(executable));
    for (unsigned k = 0; k < WORKERS; k++) {
      OK(cuda->cuStreamSynchronize(of.workers[k]));
    }
    forked_end(&of);
    end();
  }
}

/* Work beside the graph on what it uses, and a wait dropped inside. */
static void test_races_of_graphs(void **state) {
  (void)state;
  struct forked of;
  begin((struct fake_cuda_options){.seed = 9});
  forked_begin(&of);
  CUgraphExec executable = capture(&of);
  OK(cuda->cuGraphLaunch(executable, of.origin));
  nothing_found();
  OK(cuda->cuMemsetD8Async(of.words, 0, 4, of.workers[0])); /* has no order with the launch */
  assert_int_equal(fake_cuda_count(FAKE_CUDA_RACE), 1);
  OK(cuda->cuStreamSynchronize(of.origin));
  OK(cuda->cuStreamSynchronize(of.workers[0]));
  OK(cuda->cuGraphExecDestroy(executable));
  forked_end(&of);
  end();

  begin((struct fake_cuda_options){.seed = 10});
  forked_begin(&of);
  CUgraph graph;
  OK(cuda->cuStreamBeginCapture(of.origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuda->cuEventRecord(of.fork, of.origin));
  OK(cuda->cuStreamWaitEvent(of.workers[0], of.fork, 0));
  OK(launch(add_one, of.origin, &of.words, NULL, NULL)); /* should have been before the record */
  OK(launch(add_one, of.workers[0], &of.words, NULL, NULL));
  OK(cuda->cuEventRecord(of.joins[0], of.workers[0]));
  OK(cuda->cuStreamWaitEvent(of.origin, of.joins[0], 0));
  OK(cuda->cuStreamEndCapture(of.origin, &graph));
  OK(cuda->cuGraphInstantiate(&executable, graph, 0));
  OK(cuda->cuGraphLaunch(executable, of.origin));
  assert_int_equal(fake_cuda_count(FAKE_CUDA_RACE), 1);
  OK(cuda->cuStreamSynchronize(of.origin));
  OK(cuda->cuGraphExecDestroy(executable));
  OK(cuda->cuGraphDestroy(graph));
  forked_end(&of);
  end();
}

static void test_what_capture_forbids(void **state) {
  (void)state;
  struct forked of;
  CUgraph graph;
  CUdeviceptr data;
  begin((struct fake_cuda_options){0});
  forked_begin(&of);
  for (unsigned k = 0; k < 6; k++) {
    CUresult result = CUDA_SUCCESS;
    OK(cuda->cuEventRecord(of.joins[1], of.workers[1]));
    OK(cuda->cuStreamBeginCapture(of.origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(launch(add_one, of.origin, &of.words, NULL, NULL));
    switch (k) {
      case 0: result = cuda->cuMemAlloc(&data, 8); break;
      case 1: result = cuda->cuStreamSynchronize(of.origin); break;
      case 2: result = cuda->cuEventQuery(of.joins[1]); break;
      case 3: /* waits for what is outside */
        assert_int_equal(cuda->cuStreamWaitEvent(of.origin, of.joins[1], 0), 905);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        break;
      case 4: /* never joined */
        OK(cuda->cuEventRecord(of.fork, of.origin));
        OK(cuda->cuStreamWaitEvent(of.workers[0], of.fork, 0));
        OK(launch(add_one, of.workers[0], &of.words, NULL, NULL));
        break;
      default: break;
    }
    if (k < 4) {
      assert_int_equal(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    static const CUresult ends[] = {901, 901, 901, 901, 904, CUDA_SUCCESS};
    assert_int_equal(cuda->cuStreamEndCapture(of.origin, &graph), ends[k]);
    OK(cuda->cuStreamSynchronize(of.workers[0]));
    OK(cuda->cuStreamSynchronize(of.workers[1]));
  }
  OK(cuda->cuGraphDestroy(graph));
  nothing_found();
  forked_end(&of);
  end();
}

static void test_failures_in_graphs(void **state) {
  (void)state;
  struct forked of;
  begin((struct fake_cuda_options){.seed = 11});
  forked_begin(&of);
  CUgraphExec executable = capture(&of);
  fake_cuda_hang("add_one", 3 + 1 + 2 * WORKERS); /* of the second launch */
  OK(cuda->cuGraphLaunch(executable, of.origin));
  OK(cuda->cuEventSynchronize(of.timed));
  OK(cuda->cuGraphLaunch(executable, of.origin));
  for (unsigned k = 0; k < 100; k++) {
    assert_int_equal(cuda->cuEventQuery(of.timed), CUDA_ERROR_NOT_READY);
  }
  fake_cuda_release();
  OK(cuda->cuStreamSynchronize(of.origin));
  check_words(&of, 2);
  fake_cuda_crash("add_one", 2 + 2 * (1 + 2 * WORKERS), 700);
  OK(cuda->cuGraphLaunch(executable, of.origin));
  assert_int_equal(cuda->cuStreamSynchronize(of.origin), 700);
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 2});
  OK(cuda->cuGraphExecDestroy(executable));
  forked_end(&of);
  end();
}

/* ---- Recordings ---- */

static const char *replay_all(struct fake_cuda_recording *recording) {
  const char *finding = NULL;
  for (unsigned seed = 0; seed < SEEDS && finding == NULL; seed++) {
    finding = fake_cuda_replay(
        recording, &(struct fake_cuda_options){.seed = seed,
                                               .queues = 1 + seed % 32,
                                               .policy = (enum fake_cuda_policy)(seed % 4),
                                               .starved = seed % 5});
  }
  return finding;
}

/* The work of a fork and a join, without one of its waits, or as a graph with other work beside it:
 * where there is a race, some order has a node that reads what it should not, and else none. */
static void test_orders_of_a_recording(void **state) {
  unsigned found = 0;
  (void)state;
  for (unsigned graph = 0; graph < 2; graph++) {
    for (unsigned dropped = 0; dropped <= 2 * WORKERS; dropped++) {
      struct forked of;
      CUgraph captured = NULL;
      CUgraphExec executable = NULL;
      begin((struct fake_cuda_options){.seed = dropped});
      forked_begin(&of);
      fake_cuda_drop("cuEventRecordWithFlags", 1); /* nobody waits for it */
      if (dropped > 0 && graph == 0) {
        fake_cuda_drop("cuStreamWaitEvent", dropped);
      }
      if (graph == 0) {
        fake_cuda_recording_begin();
        forked_issue(&of);
      } else {
        OK(cuda->cuStreamBeginCapture(of.origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        forked_issue(&of);
        OK(cuda->cuStreamEndCapture(of.origin, &captured));
        OK(cuda->cuGraphInstantiate(&executable, captured, 0));
        fake_cuda_recording_begin();
        OK(cuda->cuGraphLaunch(executable, of.origin));
        if (dropped > 0) { /* beside the graph */
          CUdeviceptr word = of.words + 4 * (dropped % WORKERS);
          OK(launch(add_one, of.workers[0], &word, NULL, NULL));
        }
      }
      struct fake_cuda_recording *recording = fake_cuda_recording_end();
      assert_in_range(fake_cuda_recording_nodes(recording), 1 + 2 * WORKERS + 1, 100);
      const char *finding = replay_all(recording);
      assert_true((finding != NULL) == (fake_cuda_count(FAKE_CUDA_RACE) > 0));
      assert_true(finding == NULL || dropped > 0);
      found += finding != NULL;
      if (finding != NULL && graph == 0) {
        assert_non_null(strstr(finding, " reads what "));
      }
      fake_cuda_recording_free(recording);
      assert_true(fake_cuda_run());
      if (executable != NULL) {
        OK(cuda->cuGraphExecDestroy(executable));
        OK(cuda->cuGraphDestroy(captured));
      }
      forked_end(&of);
      end();
    }
  }
  assert_int_equal(found,
                   1 + WORKERS + 2 * WORKERS); /* the first worker reads what the fork wrote */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_capture_and_replay),    cmocka_unit_test(test_races_of_graphs),
      cmocka_unit_test(test_what_capture_forbids),  cmocka_unit_test(test_failures_in_graphs),
      cmocka_unit_test(test_orders_of_a_recording),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
