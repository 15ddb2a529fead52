/* The fake CUDA driver itself (fake_cuda/fake_cuda.h): it runs what CUDA would, in any order that
 * CUDA might; it finds what has no order, what cannot go on and what is out of bounds, and nothing
 * else.
 * Also under ThreadSanitizer. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_cuda.h"
#include "support_fake_device.h"

/* ---- Execution ---- */

/* Nothing runs at the call; memory of the device is the driver's. */
static void test_runs_when_the_host_waits(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.seed = 1});
  float *in = pin(BYTES), *out = pin(BYTES);
  const CUdeviceptr data = allocate(BYTES);
  CUstream stream = create_stream();
  for (unsigned k = 0; k < COUNT; k++) {
    in[k] = (float)k;
    out[k] = -1;
  }
  OK(cuda->cuMemcpyAsync(data, (uintptr_t)in, BYTES, stream));
  launch_scale(stream, data, 2, COUNT);
  OK(cuda->cuMemcpyAsync((uintptr_t)out, data, BYTES, stream));
  assert_true(out[1] == -1);
  assert_int_equal(fake_cuda_pending(), 3);
  OK(cuda->cuStreamSynchronize(stream));
  fake_cuda_host_reads(out, BYTES);
  for (unsigned k = 0; k < COUNT; k++) {
    assert_true(out[k] == 2 * (float)k);
  }
  assert_true(((float *)fake_cuda_view(pointer_to(data)))[3] == 6);
  OK(cuda->cuMemFree(data));
  OK(cuda->cuMemFreeHost(in));
  OK(cuda->cuMemFreeHost(out));
  OK(cuda->cuStreamDestroy(stream));
  nothing_found();
  end();
}

static void test_the_host_cannot_access_device_memory(void **state) {
  (void)state;
  begin((struct fake_cuda_options){0});
  const CUdeviceptr data = allocate(BYTES);
  const pid_t child = fork();
  if (child == 0) {
    (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler, too */
    *(volatile char *)pointer_to(data) = 1;
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  OK(cuda->cuMemFree(data));
  end();
}

/* Rows with gaps, fills, and memory of the host that is not pinned. */
static void test_copies(void **state) {
  (void)state;
  begin((struct fake_cuda_options){0});
  unsigned char in[60], out[60] = {0};
  const CUdeviceptr a = allocate(60), b = allocate(60);
  CUstream stream = create_stream();
  for (unsigned k = 0; k < 60; k++) {
    in[k] = (unsigned char)k;
  }
  OK(cuda->cuMemcpyAsync(a, (uintptr_t)in, 60, stream));
  memset(in, 0, sizeof in); /* it was taken at the call */
  OK(cuda->cuMemsetD8Async(b, 9, 60, stream));
  const CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .srcDevice = a,
                              .srcPitch = 20,
                              .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                              .dstDevice = b,
                              .dstPitch = 15,
                              .WidthInBytes = 10,
                              .Height = 3};
  OK(cuda->cuMemcpy2DAsync(&rows, stream));
  OK(cuda->cuMemcpyAsync((uintptr_t)out, b, 60, stream)); /* ends with the copy */
  assert_true(out[0] == 0 && out[9] == 9 && out[10] == 9 && out[15] == 20 && out[59] == 9);
  assert_int_equal(fake_cuda_statistics().pageable_copies, 2);
  OK(cuda->cuMemFree(a));
  OK(cuda->cuMemFree(b));
  OK(cuda->cuStreamDestroy(stream));
  nothing_found();
  end();
}

/* A counter that all streams write in turn: `waits` says how many of the hand-overs keep their
 * event. The value it ends with. */
static uint32_t relay(CUdeviceptr word, uint32_t rounds, uint32_t dropped) {
  CUstream streams[STREAMS];
  CUevent events[STREAMS];
  uint32_t value;
  for (unsigned k = 0; k < STREAMS; k++) {
    streams[k] = create_stream();
    events[k] = create_event(CU_EVENT_DISABLE_TIMING);
  }
  OK(cuda->cuMemsetD8Async(word, 0, 4, streams[0]));
  if (dropped > 0) {
    fake_cuda_drop("cuStreamWaitEvent", dropped);
  }
  for (unsigned k = 0; k < rounds; k++) {
    fake_cuda_label(k % 2 == 0 ? "even" : "odd");
    OK(launch(add_one, streams[k % STREAMS], &word, NULL, NULL));
    OK(cuda->cuEventRecord(events[k % STREAMS], streams[k % STREAMS]));
    OK(cuda->cuStreamWaitEvent(streams[(k + 1) % STREAMS], events[k % STREAMS], 0));
  }
  fake_cuda_label(NULL);
  OK(cuda->cuMemcpyAsync((uintptr_t)&value, word, 4, streams[rounds % STREAMS]));
  for (unsigned k = 0; k < STREAMS; k++) {
    OK(cuda->cuStreamSynchronize(streams[k]));
    OK(cuda->cuStreamDestroy(streams[k]));
    OK(cuda->cuEventDestroy(events[k]));
  }
  return value;
}

static void test_events_order_streams(void **state) {
  (void)state;
  static const enum fake_cuda_policy policies[] = {FAKE_CUDA_RANDOM, FAKE_CUDA_NEWEST,
                                                   FAKE_CUDA_OLDEST, FAKE_CUDA_STARVE};
  for (unsigned seed = 0; seed < SEEDS; seed++) {
    begin((struct fake_cuda_options){
        .seed = seed, .queues = 1 + seed % 32, .policy = policies[seed % 4], .starved = seed % 5});
    const CUdeviceptr word = allocate(4);
    assert_int_equal(relay(word, 20, 0), 20);
    nothing_found();
    OK(cuda->cuMemFree(word));
    end();
  }
}

/* Any one wait dropped is a race of the two neighbours, in every order of execution. */
static void test_finds_each_dropped_wait(void **state) {
  (void)state;
  for (unsigned dropped = 1; dropped <= 20; dropped++) {
    begin((struct fake_cuda_options){.seed = dropped});
    const CUdeviceptr word = allocate(4);
    (void)relay(word, 20, dropped);
    assert_true(fake_cuda_count(FAKE_CUDA_RACE) > 0);
    assert_int_equal(fake_cuda_count(FAKE_CUDA_DEADLOCK) + fake_cuda_count(FAKE_CUDA_FAULT), 0);
    const char *text = fake_cuda_finding(0);
    assert_non_null(strstr(text, dropped % 2 == 1 ? "\n  even (add_one #" : "\n  odd (add_one #"));
    assert_non_null(strstr(text, "stream"));
    assert_int_equal(fake_cuda_calls("cuStreamWaitEvent"), 20);
    OK(cuda->cuMemFree(word));
    end();
  }
}

/* Different bytes of one block, and readers at the same time: no race. */
static void test_no_race_without_a_conflict(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.seed = 3});
  const CUdeviceptr data = allocate(BYTES), other = allocate(BYTES);
  CUstream a = create_stream(), b = create_stream();
  CUevent event = create_event(CU_EVENT_DISABLE_TIMING);
  launch_scale(a, data, 2, COUNT / 2);
  launch_scale(b, data + BYTES / 2, 2, COUNT / 2);
  OK(cuda->cuEventRecord(event, b));
  OK(cuda->cuStreamWaitEvent(a, event, 0));
  OK(cuda->cuMemcpyAsync(other, data, BYTES, a));
  OK(cuda->cuMemcpyAsync(other, data + BYTES / 2, 1, a));
  nothing_found();
  OK(cuda->cuMemcpyAsync(data + BYTES - 1, data, 1, b)); /* reads what a wrote */
  assert_int_equal(fake_cuda_count(FAKE_CUDA_RACE), 2);  /* and writes what a reads */
  OK(cuda->cuStreamSynchronize(a));
  OK(cuda->cuStreamSynchronize(b));
  OK(cuda->cuMemFree(data));
  OK(cuda->cuMemFree(other));
  OK(cuda->cuEventDestroy(event));
  OK(cuda->cuStreamDestroy(a));
  OK(cuda->cuStreamDestroy(b));
  end();
}

/* A wait is for the last record before it: a later one does not count. */
static void test_a_wait_is_for_the_record_before_it(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.seed = 4});
  const CUdeviceptr data = allocate(BYTES);
  CUstream a = create_stream(), b = create_stream();
  CUevent event = create_event(CU_EVENT_DISABLE_TIMING);
  OK(cuda->cuStreamWaitEvent(b, event, 0)); /* never recorded: no wait */
  OK(cuda->cuEventQuery(event));
  OK(cuda->cuEventRecord(event, a));
  OK(cuda->cuStreamWaitEvent(b, event, 0));
  launch_scale(a, data, 2, COUNT);
  OK(cuda->cuEventRecord(event, a));
  nothing_found();
  launch_scale(b, data, 2, COUNT);
  assert_int_equal(fake_cuda_count(FAKE_CUDA_RACE), 1);
  assert_true(fake_cuda_record_is_used(1) && !fake_cuda_record_is_used(2));
  OK(cuda->cuEventSynchronize(event));
  assert_true(fake_cuda_record_is_used(2));
  OK(cuda->cuStreamSynchronize(b));
  OK(cuda->cuMemFree(data));
  OK(cuda->cuEventDestroy(event));
  OK(cuda->cuStreamDestroy(a));
  OK(cuda->cuStreamDestroy(b));
  end();
}

static void test_the_host_takes_part(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.seed = 5});
  float *out = pin(BYTES);
  const CUdeviceptr data = allocate(BYTES);
  CUstream a = create_stream(), b = create_stream();
  launch_scale(a, data, 2, COUNT);
  OK(cuda->cuStreamSynchronize(a)); /* orders what the host calls later */
  launch_scale(b, data, 2, COUNT);
  OK(cuda->cuMemcpyAsync((uintptr_t)out, data, BYTES, b));
  nothing_found();
  fake_cuda_host_reads(out, BYTES);
  assert_int_equal(fake_cuda_count(FAKE_CUDA_RACE), 1);
  OK(cuda->cuMemFree(data)); /* still in use */
  assert_int_equal(fake_cuda_count(FAKE_CUDA_RACE), 2);
  assert_non_null(strstr(fake_cuda_finding(1), "cuMemFree"));
  assert_int_equal(cuda->cuStreamSynchronize(b), CUDA_ERROR_ILLEGAL_ADDRESS);
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 2});
  OK(cuda->cuMemFreeHost(out));
  OK(cuda->cuStreamDestroy(a));
  OK(cuda->cuStreamDestroy(b));
  end();
}

/* Polling comes to an end, and is sometimes too early. */
static void test_queries(void **state) {
  (void)state;
  unsigned early = 0;
  begin((struct fake_cuda_options){.seed = 6, .strict_queries = true});
  const CUdeviceptr data = allocate(BYTES);
  CUstream a = create_stream();
  CUevent event = create_event(CU_EVENT_DISABLE_TIMING);
  for (unsigned k = 0; k < 50; k++) {
    launch_scale(a, data, 2, COUNT);
  }
  OK(cuda->cuEventRecord(event, a));
  CUresult result;
  while ((result = cuda->cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
    early++;
  }
  OK(result);
  OK(cuStreamQuery(a));
  assert_true(early > 0);
  nothing_found();
  fake_cuda_drop("cuEventRecord", 2);
  OK(cuda->cuEventRecord(event, a));
  OK(cuda->cuEventQuery(event)); /* seen before */
  assert_int_equal(fake_cuda_count(FAKE_CUDA_EARLY), 1);
  OK(cuda->cuMemFree(data));
  OK(cuda->cuEventDestroy(event));
  assert_int_equal(cuda->cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
  OK(cuda->cuStreamDestroy(a));
  end();
}

/* ---- Deadlocks ---- */

/* One kernel waits for another stream's: with one queue the second is behind the first. */
static CUresult wait_for_a_peer(uint32_t queues) {
  begin((struct fake_cuda_options){.queues = queues, .policy = FAKE_CUDA_OLDEST});
  void *word = pin(8);
  memset(word, 0, 8);
  CUstream a = create_stream(), b = create_stream();
  fake_cuda_label("1F0 of rank 1");
  OK(launch(await, a, &word, NULL, NULL));
  OK(cuda->cuMemsetD8Async((uintptr_t)word + 4, 0, 4, b));
  fake_cuda_label("0SEND_F0 of rank 0");
  OK(cuda->cuStreamWriteValue32(b, (uintptr_t)word, 1, 0));
  fake_cuda_label(NULL);
  const CUresult result = cuda->cuStreamSynchronize(a);
  if (result == CUDA_SUCCESS) {
    OK(cuda->cuStreamSynchronize(b));
    nothing_found();
    OK(cuda->cuMemFreeHost(word));
    OK(cuda->cuStreamDestroy(a));
    OK(cuda->cuStreamDestroy(b));
    end();
    return result;
  }
  assert_int_equal(fake_cuda_finding_count(), 1);
  assert_int_equal(fake_cuda_count(FAKE_CUDA_DEADLOCK), 1);
  const char *text = fake_cuda_finding(0);
  assert_int_equal(
      strncmp(text, "deadlock: 2 operations wait for each other in a cycle forever; 3 ", 65), 0);
  assert_non_null(strstr(text, "\n  1F0 of rank 1 (await #"));
  assert_non_null(strstr(text, ") waits for 0SEND_F0 of rank 0 (cuStreamWriteValue32 #"));
  assert_non_null(strstr(text, "): it spins on what that writes\n  0SEND_F0 of rank 0 (cu"));
  assert_non_null(strstr(text, "): it is behind that in a hardware queue"));
  assert_int_equal(cuda->cuMemFreeHost(word), result); /* freed, and it says that all is lost */
  assert_int_equal(cuda->cuStreamDestroy(a), result);
  assert_int_equal(cuda->cuStreamDestroy(b), result);
  assert_int_equal(fake_cuda_finding_count(), 1);
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 2});
  end();
  return result;
}

static void test_finds_a_deadlock(void **state) {
  (void)state;
  assert_int_equal(wait_for_a_peer(2), CUDA_SUCCESS);
  assert_int_equal(wait_for_a_peer(1), 719);
}

/* The kernel waits for a stream that waits for what comes after the kernel. */
static void test_a_cycle_through_an_event(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.queues = 8, .policy = FAKE_CUDA_OLDEST});
  void *word = pin(4);
  memset(word, 0, 4);
  CUstream a = create_stream(), b = create_stream();
  CUevent event = create_event(CU_EVENT_DISABLE_TIMING);
  OK(launch(await, a, &word, NULL, NULL));
  OK(cuda->cuEventRecord(event, a));
  OK(cuda->cuStreamWaitEvent(b, event, 0));
  OK(cuda->cuStreamWriteValue32(b, (uintptr_t)word, 1, 0));
  assert_int_equal(cuda->cuStreamSynchronize(a), 719);
  assert_int_equal(fake_cuda_count(FAKE_CUDA_DEADLOCK), 1);
  assert_non_null(strstr(fake_cuda_finding(0), "deadlock: 4 operations wait for each other"));
  assert_non_null(strstr(fake_cuda_finding(0), ": its event has not happened"));
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 2});
  OK(cuda->cuMemFreeHost(word));
  OK(cuda->cuEventDestroy(event));
  OK(cuda->cuStreamDestroy(a));
  OK(cuda->cuStreamDestroy(b));
  end();
}

static void test_a_kernel_that_never_ends(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.seed = 7});
  const CUdeviceptr data = allocate(BYTES);
  CUstream a = create_stream();
  fake_cuda_hang("weft_linear_scale", 2);
  launch_scale(a, data, 2, COUNT);
  launch_scale(a, data, 2, COUNT);
  for (unsigned k = 0; k < 100; k++) {
    assert_int_equal(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
  }
  fake_cuda_release();
  OK(cuda->cuStreamSynchronize(a));
  nothing_found();
  OK(cuda->cuMemFree(data));
  OK(cuda->cuStreamDestroy(a));
  end();
}

/* A word that tells the host how far a stream is needs something to tell. */
static void test_words_for_the_host(void **state) {
  (void)state;
  for (unsigned dropped = 0; dropped < 3; dropped++) {
    begin((struct fake_cuda_options){.seed = dropped});
    float *word = pin(4);
    const CUdeviceptr data = allocate(BYTES);
    CUstream worker = create_stream(), watch = create_stream();
    CUevent event = create_event(CU_EVENT_DISABLE_TIMING);
    fake_cuda_drop("cuStreamWaitEvent", dropped);
    for (uint32_t k = 0; k < 2; k++) {
      launch_scale(worker, data, 2, COUNT);
      OK(cuda->cuEventRecord(event, worker));
      OK(cuda->cuStreamWaitEvent(watch, event, 0));
      OK(cuda->cuStreamWriteValue32(watch, (uintptr_t)word, k, 0));
    }
    assert_int_equal(fake_cuda_count(FAKE_CUDA_EARLY), dropped > 0);
    assert_int_equal(fake_cuda_finding_count(), dropped > 0);
    OK(cuda->cuStreamSynchronize(watch));
    OK(cuda->cuStreamSynchronize(worker));
    OK(cuda->cuMemFree(data));
    OK(cuda->cuMemFreeHost(word));
    OK(cuda->cuEventDestroy(event));
    OK(cuda->cuStreamDestroy(watch));
    OK(cuda->cuStreamDestroy(worker));
    end();
  }
}

/* ---- Faults and failures ---- */

static void test_accesses_out_of_bounds(void **state) {
  (void)state;
  for (unsigned k = 0; k < 3; k++) {
    begin((struct fake_cuda_options){.seed = k});
    const CUdeviceptr data = allocate(BYTES);
    CUstream a = create_stream();
    switch (k) {
      case 0: launch_scale(a, data, 2, COUNT + 1); break;
      case 1: launch_scale(a, data + 4, 2, COUNT); break;
      default: OK(cuda->cuMemsetD8Async(data + BYTES, 0, 1, a)); break;
    }
    assert_int_equal(cuda->cuStreamSynchronize(a), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(fake_cuda_count(FAKE_CUDA_FAULT), 1);
    assert_int_equal(cuStreamQuery(a), CUDA_ERROR_ILLEGAL_ADDRESS); /* it is lost */
    assert_int_equal(cuda->cuMemFree(data), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuda->cuStreamDestroy(a), CUDA_ERROR_ILLEGAL_ADDRESS);
    fake_cuda_reset(&(struct fake_cuda_options){.devices = 2});
    end();
  }
}

static void test_failures_at_a_call(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.memory_bytes = 1000});
  CUdeviceptr data, more;
  size_t free_bytes, total;
  fake_cuda_fail("cuMemAlloc", 1, 0, false);
  assert_int_equal(cuda->cuMemAlloc(&data, 8), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuda->cuMemAlloc(&data, 600));
  OK(cuMemGetInfo(&free_bytes, &total));
  assert_true(free_bytes == 400 && total == 1000);
  assert_int_equal(cuda->cuMemAlloc(&more, 600), CUDA_ERROR_OUT_OF_MEMORY);
  assert_int_equal(fake_cuda_calls("cuMemAlloc"), 3);
  CUstream a = create_stream();
  fake_cuda_mark();
  fake_cuda_fail("cuLaunchKernel", 2, 0, false);
  launch_scale(a, data, 2, 100);
  assert_int_equal(launch(scale, a, &data, &data, &data), 719);
  fake_cuda_crash("weft_linear_scale", 2, 0);
  launch_scale(a, data, 2, 100);
  assert_int_equal(cuda->cuStreamSynchronize(a), 719);
  assert_int_equal(cuda->cuMemAlloc(&more, 8), 719);
  const char *name;
  OK(cuda->cuGetErrorName(719, &name));
  assert_string_equal(name, "CUDA_ERROR_LAUNCH_FAILED");
  assert_int_equal(fake_cuda_statistics().nodes, 1);
  assert_int_equal(fake_cuda_statistics().allocations, 0);
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 2});
  OK(cuda->cuMemFree(data));
  OK(cuda->cuStreamDestroy(a));
  end();
}

/* ---- Limits of a launch ---- */

/* Of libcuda, and not in the product's table. */
extern CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
enum { MAX_DYNAMIC_SHARED = 8 };

struct launch_size {
  unsigned int grid[3], block[3], shared;
};

static CUresult launch_spin(CUstream stream, struct launch_size size) {
  uint64_t ns = 1;
  void *parameters[] = {&ns};
  const unsigned int *grid = size.grid, *block = size.block;
  return cuda->cuLaunchKernel((CUfunction)spin, grid[0], grid[1], grid[2], block[0], block[1],
                              block[2], size.shared, stream, parameters, NULL);
}

static void test_limits_of_a_launch(void **state) {
  (void)state;
  static const struct launch_size good[] = {{{INT32_MAX, 1, 1}, {1024, 1, 1}, 0},
                                            {{1, 65535, 65535}, {4, 4, 64}, 0},
                                            {{1, 1, 1}, {1, 1024, 1}, 48 << 10}};
  static const struct launch_size bad[] = {{{UINT32_C(1) << 31, 1, 1}, {1, 1, 1}, 0},
                                           {{1, 65536, 1}, {1, 1, 1}, 0},
                                           {{1, 1, 65536}, {1, 1, 1}, 0},
                                           {{0, 1, 1}, {1, 1, 1}, 0},
                                           {{1, 0, 1}, {1, 1, 1}, 0},
                                           {{1, 1, 1}, {1025, 1, 1}, 0},
                                           {{1, 1, 1}, {33, 32, 1}, 0},
                                           {{1, 1, 1}, {1, 1, 65}, 0},
                                           {{1, 1, 1}, {1, 1, 0}, 0},
                                           {{1, 1, 1}, {65536, 65536, 1}, 0},
                                           {{1, 1, 1}, {1, 1, 1}, (48 << 10) + 1}};
  begin((struct fake_cuda_options){.seed = 3});
  CUstream stream = create_stream();
  for (size_t k = 0; k < sizeof good / sizeof good[0]; k++) {
    OK(launch_spin(stream, good[k]));
  }
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
    assert_int_equal(launch_spin(stream, bad[k]), CUDA_ERROR_INVALID_VALUE);
  }
  /* A function that asks for more gets it: 227 KiB on Hopper. */
  const struct launch_size most = {{1, 1, 1}, {1, 1, 1}, 227 << 10};
  assert_int_equal(launch_spin(stream, most), CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(cuFuncSetAttribute((CUfunction)spin, MAX_DYNAMIC_SHARED, (227 << 10) + 1),
                   CUDA_ERROR_INVALID_VALUE);
  OK(cuFuncSetAttribute((CUfunction)spin, MAX_DYNAMIC_SHARED, 227 << 10));
  OK(launch_spin(stream, most));
  OK(cuda->cuStreamSynchronize(stream));
  OK(cuda->cuStreamDestroy(stream));
  nothing_found();
  end();
}

/* ---- Devices ---- */

static void test_two_devices(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.seed = 8});
  int can;
  OK(cuda->cuDeviceCanAccessPeer(&can, 0, 1));
  assert_true(can);
  const CUdeviceptr here = allocate(BYTES);
  CUstream a = create_stream();
  CUevent event = create_event(CU_EVENT_DISABLE_TIMING);
  OK(cuda->cuCtxSetCurrent(contexts[1]));
  const CUdeviceptr there = allocate(BYTES);
  CUstream b = create_stream();
  OK(cuda->cuMemsetD8Async(here, 1, BYTES, a));
  assert_int_equal(cuda->cuEventRecord(event, b), CUDA_ERROR_INVALID_HANDLE);
  OK(cuMemcpyPeerAsync(there, contexts[1], here, contexts[0], BYTES, a));
  OK(cuda->cuEventRecord(event, a));
  OK(cuda->cuStreamWaitEvent(b, event, 0));
  launch_scale(b, there, 2, COUNT);
  OK(cuda->cuStreamSynchronize(b));
  nothing_found();
  launch_scale(b, here, 2, COUNT); /* no access to the peer's memory */
  assert_int_equal(fake_cuda_count(FAKE_CUDA_FAULT), 1);
  assert_int_equal(cuda->cuStreamSynchronize(b), CUDA_ERROR_ILLEGAL_ADDRESS);
  fake_cuda_reset(&(struct fake_cuda_options){.devices = 2});
  OK(cuda->cuCtxEnablePeerAccess(contexts[0], 0));
  assert_int_equal(cuda->cuCtxEnablePeerAccess(contexts[0], 0),
                   CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  launch_scale(b, here, 2, COUNT);
  OK(cuda->cuStreamSynchronize(b));
  nothing_found();
  OK(cuda->cuMemFree(here));
  OK(cuda->cuMemFree(there));
  OK(cuda->cuEventDestroy(event));
  OK(cuda->cuStreamDestroy(a));
  OK(cuda->cuStreamDestroy(b));
  end();
}

static void test_partitions(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.sms = 132});
  CUdevResource whole, rest, parts[8];
  unsigned int count = 8;
  CUdevResourceDesc description;
  CUgreenCtx partition;
  CUstream stream;
  OK(cuda->cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
  assert_int_equal(whole.of.sm.smCount, 132);
  OK(cuda->cuDevSmResourceSplitByCount(parts, &count, &whole, &rest, 0, 30));
  assert_int_equal(count, 4);
  assert_int_equal(parts[3].of.sm.smCount, 32);
  assert_int_equal(rest.of.sm.smCount, 4);
  OK(cuda->cuDevResourceGenerateDesc(&description, &parts[0], 1));
  OK(cuda->cuGreenCtxCreate(&partition, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  OK(cuda->cuGreenCtxStreamCreate(&stream, partition, CU_STREAM_NON_BLOCKING, 0));
  const CUdeviceptr data = allocate(BYTES);
  launch_scale(stream, data, 2, COUNT);
  OK(cuda->cuStreamSynchronize(stream));
  OK(cuda->cuStreamDestroy(stream));
  OK(cuda->cuGreenCtxDestroy(partition));
  OK(cuda->cuMemFree(data));
  nothing_found();
  end();
}

/* weft_spin moves the clock of its stream; waits and the host's waiting carry it on. */
static void test_time(void **state) {
  (void)state;
  begin((struct fake_cuda_options){.queues = 32, .policy = FAKE_CUDA_OLDEST});
  CUstream a = create_stream(), b = create_stream();
  CUevent events[3];
  uint64_t long_ns = 5000000, short_ns = 1000000;
  float ms;
  for (unsigned k = 0; k < 3; k++) {
    events[k] = create_event(CU_EVENT_DEFAULT);
  }
  OK(cuda->cuEventRecord(events[0], a));
  OK(launch(spin, a, &long_ns, NULL, NULL));
  OK(cuda->cuEventRecord(events[1], a));
  OK(launch(spin, b, &short_ns, NULL, NULL));
  OK(cuda->cuStreamWaitEvent(b, events[1], 0));
  OK(launch(spin, b, &short_ns, NULL, NULL));
  OK(cuda->cuEventRecord(events[2], b));
  assert_int_equal(cuda->cuEventElapsedTime(&ms, events[0], events[2]), CUDA_ERROR_NOT_READY);
  OK(cuda->cuEventSynchronize(events[2]));
  OK(cuda->cuEventElapsedTime(&ms, events[0], events[1]));
  assert_true(ms == 5);
  OK(cuda->cuEventElapsedTime(&ms, events[0], events[2]));
  assert_true(ms == 6);
  for (unsigned k = 0; k < 3; k++) {
    OK(cuda->cuEventDestroy(events[k]));
  }
  OK(cuda->cuStreamDestroy(a));
  OK(cuda->cuStreamDestroy(b));
  end();
}

/* ---- Host threads ---- */

static CUstream shared_stream;
static CUdeviceptr shared_data;

static void *use_without_order(void *argument) {
  (void)argument;
  OK(cuda->cuCtxSetCurrent(contexts[0]));
  CUstream mine = create_stream();
  launch_scale(mine, shared_data, 2, COUNT); /* this thread comes after the other's first wait */
  OK(cuda->cuStreamSynchronize(mine));
  OK(cuda->cuStreamDestroy(mine));
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  for (unsigned joins = 0; joins < 3; joins++) { /* 2: all threads are one host */
    begin((struct fake_cuda_options){.seed = 12, .separate_hosts = joins < 2});
    pthread_t thread;
    shared_stream = create_stream();
    shared_data = allocate(BYTES);
    launch_scale(shared_stream, shared_data, 2, COUNT);
    OK(cuda->cuStreamSynchronize(shared_stream));
    assert_int_equal(pthread_create(&thread, NULL, use_without_order, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    nothing_found();
    if (joins == 1) {
      fake_cuda_host_joins(); /* what pthread_join() means */
    }
    launch_scale(shared_stream, shared_data, 2, COUNT);
    assert_int_equal(fake_cuda_count(FAKE_CUDA_RACE), joins == 0);
    OK(cuda->cuStreamSynchronize(shared_stream));
    OK(cuda->cuMemFree(shared_data));
    OK(cuda->cuStreamDestroy(shared_stream));
    end();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_runs_when_the_host_waits),
      cmocka_unit_test(test_the_host_cannot_access_device_memory),
      cmocka_unit_test(test_copies),
      cmocka_unit_test(test_events_order_streams),
      cmocka_unit_test(test_finds_each_dropped_wait),
      cmocka_unit_test(test_no_race_without_a_conflict),
      cmocka_unit_test(test_a_wait_is_for_the_record_before_it),
      cmocka_unit_test(test_the_host_takes_part),
      cmocka_unit_test(test_queries),
      cmocka_unit_test(test_finds_a_deadlock),
      cmocka_unit_test(test_a_cycle_through_an_event),
      cmocka_unit_test(test_a_kernel_that_never_ends),
      cmocka_unit_test(test_words_for_the_host),
      cmocka_unit_test(test_accesses_out_of_bounds),
      cmocka_unit_test(test_failures_at_a_call),
      cmocka_unit_test(test_limits_of_a_launch),
      cmocka_unit_test(test_two_devices),
      cmocka_unit_test(test_partitions),
      cmocka_unit_test(test_time),
      cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
