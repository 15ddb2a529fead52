/* A GPU's kernels, their own source in trainer/cuda, on the host: its threads are contexts that
 * take turns, and each instruction that CUDA C++ has no name for does what PTX's manual says of it.
 * What is asynchronous happens at once, or as late as it may: copies when their thread waits for
 * them, products of warpgroups when their group does. So a missing wait, barrier or buffer is a
 * wrong number in one of the four. */
#ifndef EMULATED_GPU_HPP
#define EMULATED_GPU_HPP

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

/* ---- What CUDA C++ has ---- */

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct index3 {
  unsigned x = 0, y = 0, z = 0;
};
static index3 threadIdx, blockIdx, blockDim, gridDim; /* of the context that runs */

static inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }

/* ---- Contexts ---- */

enum { THREADS_MAX = 1024, STACK = 1 << 16 };

/* A copy of 16 bytes, or a product of a warpgroup's thread, that has begun. */
struct copy {
  void *to;
  const void *from; /* NULL: zeros */
};
struct product {
  float (*sums[128])[4];
  unsigned left[128][4];
  uint64_t right, left_at_shared;
  bool by_rows, adds, is_shared;
};

struct thread {
  ucontext_t context;
  char *stack;
  bool done;
  const void *argument; /* of what all of its group do together */
  void *result;
  std::vector<copy> copies;
};
/* Threads that wait for each other: a warp, a warpgroup or the block. */
struct meeting {
  unsigned arrived = 0, turn = 0;
};

static thread threads[THREADS_MAX];
static unsigned thread_count, now;
static ucontext_t scheduler;
static meeting of_block, of_warps[THREADS_MAX / 32], of_groups[THREADS_MAX / 128];
static std::vector<product> begun[THREADS_MAX / 128];
static bool copies_late, products_late; /* as late as they may */
static void (*kernel)();

static void yield() { swapcontext(&threads[now].context, &scheduler); }

/* The last of `count` threads to come does `all`, with what each has left in `argument`. */
template <typename F>
static void meet(meeting &m, unsigned count, const void *argument, void *result, F all) {
  threads[now].argument = argument;
  threads[now].result = result;
  const unsigned turn = m.turn;
  if (++m.arrived == count) {
    all();
    m.arrived = 0;
    m.turn++;
  }
  while (m.turn == turn) {
    yield();
  }
}

static void start() {
  kernel();
  threads[now].done = true;
  yield();
}

static void run_block(unsigned count) {
  thread_count = count;
  for (unsigned k = 0; k < count; k++) {
    thread &t = threads[k];
    t.done = false;
    getcontext(&t.context);
    t.stack = t.stack != nullptr ? t.stack : (char *)malloc(STACK);
    t.context.uc_stack.ss_sp = t.stack;
    t.context.uc_stack.ss_size = STACK;
    makecontext(&t.context, start, 0);
  }
  for (unsigned left = count; left > 0;) {
    left = 0;
    for (now = 0; now < count; now++) {
      if (!threads[now].done) {
        threadIdx.x = now % blockDim.x, threadIdx.y = now / blockDim.x;
        swapcontext(&scheduler, &threads[now].context);
        left++;
      }
    }
  }
  for (unsigned k = 0; k < count; k++) {
    assert(threads[k].copies.empty());
  }
}

static void __syncthreads() {
  meet(of_block, thread_count, nullptr, nullptr, [] {});
}

template <typename T, typename F>
static T in_warp(T x, F choose) {
  T result;
  const unsigned first = now / 32 * 32;
  meet(of_warps[now / 32], 32, &x, &result, [&] {
    for (unsigned lane = 0; lane < 32; lane++) {
      *(T *)threads[first + lane].result = choose(first, lane);
    }
  });
  return result;
}

template <typename T>
static T __shfl_xor_sync(unsigned, T x, int mask) {
  return in_warp(x, [mask](unsigned first, unsigned lane) {
    return *(const T *)threads[first + (lane ^ (unsigned)mask)].argument;
  });
}
static unsigned __ballot_sync(unsigned, bool x) {
  return in_warp((unsigned)x, [](unsigned first, unsigned) {
    unsigned votes = 0;
    for (unsigned k = 0; k < 32; k++) {
      votes |= *(const unsigned *)threads[first + k].argument << k;
    }
    return votes;
  });
}

static bool __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }

/* ---- Instructions ---- */

#define WEFT_EMULATED
typedef unsigned short weft_bf16;
static float to_float(unsigned x) { return __uint_as_float(x << 16); }

static unsigned to_bf16(float x) { /* nearest, ties to even */
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static unsigned weft_pack(float low, float high) { return to_bf16(high) << 16 | to_bf16(low); }
static float weft_exp2(float x) { return exp2f(x); }

/* Shared memory has 18 bits of address here: those of the host's, whose others are of the lowest
 * array. */
static uintptr_t lowest = UINTPTR_MAX;
static uint64_t __cvta_generic_to_shared(const void *at) {
  lowest = (uintptr_t)at < lowest ? (uintptr_t)at : lowest;
  return (uint64_t)(uintptr_t)at & 0x3ffff;
}
static const char *at_shared(uint64_t address) {
  const uintptr_t at = (lowest & ~(uintptr_t)0x3ffff) | (uintptr_t)address;
  return (const char *)(at < lowest ? at + 0x40000 : at);
}

static void copy_now(const copy &c) {
  static const char zeros[16] = {};
  memcpy(c.to, c.from != nullptr ? c.from : zeros, 16);
}
static void weft_copy_piece(uint4 *to, const weft_bf16 *from, bool inside) {
  (void)__cvta_generic_to_shared(to);
  const copy c = {to, inside ? from : nullptr};
  if (!copies_late) {
    copy_now(c);
  }
  threads[now].copies.push_back(c);
}
static void weft_copies_commit() {}
template <int PENDING>
static void weft_copies_wait() {
  static_assert(PENDING == 0, "groups of copies are not told apart here");
  for (const copy &c : threads[now].copies) {
    if (copies_late) {
      copy_now(c);
    }
  }
  threads[now].copies.clear();
}

#include "gpt_layers.cu"
#include "gpt_optimizer.cu"

struct weft_fragment;
static weft_fragment weft_load_matrices(const uint4 *at);
static weft_fragment weft_load_transposed(const uint4 *at);
static void weft_mma(float *c, const weft_fragment &a, unsigned b0, unsigned b1);
static void weft_wide_fence();
static void weft_wide_commit();
static void weft_wide_arrived();
template <int PENDING>
static void weft_wide_wait(float (&c)[8][4]);
static void weft_wide_product(float (&c)[8][4], unsigned long long left, unsigned long long right,
                              int adds);
static void weft_wide_product(float (&c)[8][4], const weft_fragment &left,
                              unsigned long long right);

#include "gpt_attention.cu"

#include "gpt_attention_hopper.cu"

/* Lane 8 m + r has the address of row r of matrix m, and is given two numbers of each. */
template <bool TRANSPOSED>
static weft_fragment load_matrices(const uint4 *at) {
  const unsigned first = now / 32 * 32;
  weft_fragment result;
  meet(of_warps[now / 32], 32, at, &result, [&] {
    for (unsigned lane = 0; lane < 32; lane++) {
      for (unsigned m = 0; m < 4; m++) {
        unsigned both = 0;
        for (unsigned e = 0; e < 2; e++) {
          const unsigned row = TRANSPOSED ? lane % 4 * 2 + e : lane / 4;
          const unsigned column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + e;
          both |= (unsigned)((const weft_bf16 *)threads[first + 8 * m + row].argument)[column]
                  << 16 * e;
        }
        ((weft_fragment *)threads[first + lane].result)->x[m] = both;
      }
    }
  });
  return result;
}
static weft_fragment weft_load_matrices(const uint4 *at) { return load_matrices<false>(at); }
static weft_fragment weft_load_transposed(const uint4 *at) { return load_matrices<true>(at); }

/* Rows and columns of 16 x 16 that a lane has in the left operand. */
static float left_at(const unsigned (*left)[4], unsigned row, unsigned column) {
  const unsigned lane = row % 8 * 4 + column % 8 / 2, word = row / 8 + column / 8 * 2;
  return to_float(left[lane][word] >> 16 * (column % 2) & 0xffff);
}

struct mma_argument {
  float *c;
  const weft_fragment *a;
  unsigned b[2];
};
static void weft_mma(float *c, const weft_fragment &a, unsigned b0, unsigned b1) {
  const unsigned first = now / 32 * 32;
  const mma_argument argument = {c, &a, {b0, b1}};
  meet(of_warps[now / 32], 32, &argument, nullptr, [&] {
    unsigned left[32][4];
    const mma_argument *arguments[32];
    for (unsigned lane = 0; lane < 32; lane++) {
      arguments[lane] = (const mma_argument *)threads[first + lane].argument;
      memcpy(left[lane], arguments[lane]->a->x, sizeof left[lane]);
    }
    for (unsigned lane = 0; lane < 32; lane++) {
      for (unsigned e = 0; e < 4; e++) {
        const unsigned row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (unsigned k = 0; k < 16; k++) { /* lane 4 n + t has rows 2 t, 2 t + 1 of column n */
          const unsigned b = arguments[4 * column + k % 8 / 2]->b[k / 8];
          arguments[lane]->c[e] += left_at(left, row, k) * to_float(b >> 16 * (k % 2) & 0xffff);
        }
      }
    }
  });
}

/* Of a descriptor with a swizzle of 128 bytes: bits 4 to 6 of the address are flipped by bits 7 to
 * 9. Column n of row k of the right operand. */
static float right_at(uint64_t descriptor, bool by_rows, unsigned k, unsigned n) {
  const uint64_t start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  assert(descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0);
  const unsigned row = by_rows ? k : n, column = by_rows ? n : k;
  uint64_t address = start + row / 8 * stride + row % 8 * 128 + column * 2;
  address ^= (address >> 7 & 7) << 4;
  return to_float(*(const weft_bf16 *)at_shared(address));
}

static void multiply(const product &p) {
  for (unsigned warp = 0; warp < 4; warp++) {
    for (unsigned row = 0; row < 16; row++) {
      for (unsigned n = 0; n < 64; n++) {
        const unsigned lane = row % 8 * 4 + n % 8 / 2;
        float *to = &p.sums[32 * warp + lane][n / 8][row / 8 * 2 + n % 2];
        float sum = p.adds ? *to : 0;
        for (unsigned k = 0; k < 16; k++) {
          sum += (p.is_shared ? right_at(p.left_at_shared, false, k, 16 * warp + row)
                              : left_at(p.left + 32 * warp, row, k)) *
                 right_at(p.right, p.by_rows, k, n);
        }
        *to = sum;
      }
    }
  }
}

static void weft_wide_fence() {}
static std::vector<size_t> ends[THREADS_MAX / 128]; /* of committed groups among those begun */

static void weft_wide_commit() {
  const unsigned group = now / 128;
  meet(of_groups[group], 128, nullptr, nullptr,
       [&] { ends[group].push_back(begun[group].size()); });
}

struct wide_argument {
  float (*c)[4];
  const weft_fragment *left;
};
/* `left` NULL: rows of 16 numbers in shared memory. */
static void begin_product(float (&c)[8][4], const weft_fragment *left, uint64_t left_at_shared,
                          uint64_t right, bool by_rows, bool adds) {
  const unsigned group = now / 128;
  const wide_argument argument = {c, left};
  meet(of_groups[group], 128, &argument, nullptr, [&] {
    product p;
    for (unsigned k = 0; k < 128; k++) {
      const wide_argument *a = (const wide_argument *)threads[128 * group + k].argument;
      p.sums[k] = a->c;
      if (a->left != nullptr) {
        memcpy(p.left[k], a->left->x, sizeof p.left[k]);
      }
    }
    p.right = right, p.by_rows = by_rows, p.adds = adds;
    p.is_shared = left == nullptr, p.left_at_shared = left_at_shared;
    if (!products_late) {
      multiply(p);
    }
    begun[group].push_back(p);
  });
}
static void weft_wide_product(float (&c)[8][4], unsigned long long left, unsigned long long right,
                              int adds) {
  begin_product(c, nullptr, left, right, false, adds != 0);
}
static void weft_wide_product(float (&c)[8][4], const weft_fragment &left,
                              unsigned long long right) {
  begin_product(c, &left, 0, right, true, true);
}

template <int PENDING>
static void weft_wide_wait(float (&)[8][4]) {
  const unsigned group = now / 128;
  meet(of_groups[group], 128, nullptr, nullptr, [&] {
    while (ends[group].size() > PENDING) {
      const size_t count = ends[group].front();
      for (size_t k = 0; k < count; k++) {
        if (products_late) {
          multiply(begun[group][k]);
        }
      }
      begun[group].erase(begun[group].begin(), begun[group].begin() + (long)count);
      ends[group].erase(ends[group].begin());
      for (size_t &end : ends[group]) {
        end -= count;
      }
    }
  });
}

static void weft_wide_arrived() { weft_copies_wait<0>(); }

/* ---- Launching ---- */

struct grid {
  unsigned x, y = 1, z = 1;
};

/* Blocks of `count` by `other` threads that all do `run`. */
static void launch(void (*run)(), grid blocks, unsigned count, unsigned other = 1) {
  kernel = run;
  lowest = UINTPTR_MAX; /* it has arrays of its own */
  const auto [x, y, z] = blocks;
  gridDim.x = x, gridDim.y = y, gridDim.z = z, blockDim.x = count, blockDim.y = other;
  for (unsigned block = 0; block < x * y * z; block++) {
    blockIdx.x = block % x, blockIdx.y = block / x % y, blockIdx.z = block / x / y;
    run_block(count * other);
  }
}

/* About normal, the same numbers in every run. */
static unsigned drawn = 1;
static weft_bf16 draw() {
  float sum = 0;
  for (int k = 0; k < 4; k++) {
    drawn = drawn * 1664525 + 1013904223;
    sum += (float)(drawn >> 8) / 16777216.0f - 0.5f;
  }
  return (weft_bf16)to_bf16(1.7f * sum);
}
static std::vector<weft_bf16> draw_many(size_t count) {
  std::vector<weft_bf16> x(count);
  for (weft_bf16 &number : x) {
    number = draw();
  }
  return x;
}

/* || x - truth || / || truth ||; NaN if a number is. */
static double number_of(float x) { return (double)x; }
static double number_of(weft_bf16 x) { return (double)to_float(x); }
template <typename T>
static double distance(const std::vector<T> &x, const std::vector<double> &truth) {
  double difference = 0, size = 0;
  for (size_t k = 0; k < x.size(); k++) {
    difference += pow(number_of(x[k]) - truth[k], 2);
    size += truth[k] * truth[k];
  }
  return sqrt(difference / size);
}

#endif
