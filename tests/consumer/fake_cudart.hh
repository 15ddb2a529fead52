// As much of CUDA's runtime and language as examples/trainer_cuda.cu needs, for the fake driver:
// included before the example, in which f<<<grid, block, 0, stream>>>(...) has become
// fake_launch(f, grid, block, 0, stream)(...). A kernel's threads are fibers of the host.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
#include "fake_cuda.h"
}

#define __global__ static
#define __shared__ static
#define __syncthreads() fake_yield()

typedef struct CUstream_st *cudaStream_t;
typedef int cudaError_t;
enum { cudaSuccess = 0 };

static struct { int x; } blockIdx, threadIdx;
static cudaError_t fake_last_error;

static inline cudaError_t cudaGetLastError() { return fake_last_error; }
static inline const char *cudaGetErrorString(cudaError_t) { return "an error of the fake driver"; }

/* ---- Threads ---- */

struct fake_work {
  virtual void run() = 0;
};

static ucontext_t fake_scheduler, fake_fibers[1024];
static bool fake_ended[1024];
static fake_work *fake_present;

static inline void fake_yield() {
  const int thread = threadIdx.x;
  swapcontext(&fake_fibers[thread], &fake_scheduler);
  threadIdx.x = thread;
}

static void fake_fiber() {
  const int thread = threadIdx.x;
  fake_present->run();
  fake_ended[thread] = true;
}

// All threads up to their next __syncthreads(), until all have ended.
static void fake_run_block(fake_work *work, int threads) {
  static std::vector<char> stacks(1024 * 16384);
  fake_present = work;
  for (int k = 0; k < threads; k++) {
    getcontext(&fake_fibers[k]);
    fake_fibers[k].uc_stack.ss_sp = &stacks[(size_t)k * 16384];
    fake_fibers[k].uc_stack.ss_size = 16384;
    fake_fibers[k].uc_link = &fake_scheduler;
    makecontext(&fake_fibers[k], fake_fiber, 0);
    fake_ended[k] = false;
  }
  for (int left = threads; left > 0;) {
    for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
      const int thread = threadIdx.x;
      if (!fake_ended[thread]) {
        swapcontext(&fake_scheduler, &fake_fibers[thread]);
        left -= fake_ended[thread];
      }
      threadIdx.x = thread;
    }
  }
}

/* ---- Launches ---- */

extern "C" {
int cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetKernel(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   cudaStream_t, void **, void **);
}

// Addresses of the device, in pointers and in structs, become those that the host can access.
template <typename T>
static T fake_seen_by_host(T value) {
  char bytes[sizeof(T)];
  memcpy(bytes, &value, sizeof value);
  for (size_t k = 0; k + sizeof(void *) <= sizeof bytes; k += sizeof(void *)) {
    void *word;
    memcpy(&word, bytes + k, sizeof word);
    word = fake_cuda_view(word);
    memcpy(bytes + k, &word, sizeof word);
  }
  memcpy(&value, bytes, sizeof value);
  return value;
}

static void fake_run(void *const *parameters, uint64_t) {
  struct shape { int blocks, threads; };
  fake_work *work = *(fake_work *const *)parameters[0];
  const shape *of = *(shape *const *)parameters[1];
  for (blockIdx.x = 0; blockIdx.x < of->blocks; blockIdx.x++) fake_run_block(work, of->threads);
}

static inline void fake_enqueue(fake_work *work, int blocks, int threads, cudaStream_t stream) {
  static const fake_cuda_kernel kernel = {
      .name = "fibers", .parameter_count = 2, .addresses = 0, .run = fake_run,
      .accesses = [](const uint64_t *, fake_cuda_access *) { return 0u; }};
  static void *handle = NULL;
  if (handle == NULL) {
    void *library;
    fake_cuda_register(&kernel);
    cuLibraryLoadData(&library, "code", NULL, NULL, 0, NULL, NULL, 0);
    cuLibraryGetKernel(&handle, library, "fibers");
  }
  const int *shape = new int[2]{blocks, threads};
  void *parameters[] = {&work, &shape};
  fake_last_error = cuLaunchKernel(handle, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

// A graph may run it any time later, so what is launched stays.
template <typename... A>
static auto fake_launch(void (*kernel)(A...), int blocks, int threads, int, cudaStream_t stream) {
  return [=](A... arguments) {
    auto call = [kernel, ... seen = fake_seen_by_host(arguments)]() { kernel(seen...); };
    struct bound : fake_work {
      decltype(call) run_it;
      explicit bound(decltype(call) of) : run_it(of) {}
      void run() override { run_it(); }
    };
    fake_enqueue(new bound(call), blocks, threads, stream);
  };
}
