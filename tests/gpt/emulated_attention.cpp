/* The attention kernels of app/gpt/cuda, their own source, on the host: a GPU's threads are
 * contexts that take turns, and each instruction that CUDA C++ has no name for does what PTX's
 * manual says of it. What is asynchronous happens at once, or as late as it may: copies when
 * their thread waits for them, products of warpgroups when their group does. So a missing wait,
 * barrier or buffer is a wrong number in one of the four. Results are compared with sums in
 * double.
 *
 *     g++ -std=c++17 -O1 -Iapp/gpt/cuda -o emulated_attention tests/gpt/emulated_attention.cpp */
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

enum { THREADS_MAX = 256, STACK = 1 << 17 };

/* A copy of 16 bytes, or a product of a warpgroup's thread, that has begun. */
struct copy {
  void *to;
  const void *from; /* NULL: zeros */
};
struct product {
  float (*sums[128])[4];
  unsigned left[128][4];
  uint64_t right;
  bool by_rows, adds;
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
        threadIdx.x = now;
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

struct weft_fragment;
static weft_fragment weft_load_matrices(const uint4 *at);
static weft_fragment weft_load_transposed(const uint4 *at);
static void weft_mma(float *c, const weft_fragment &a, unsigned b0, unsigned b1);
static void weft_wide_fence();
static void weft_wide_commit();
static void weft_wide_arrived();
template <int PENDING>
static void weft_wide_wait(float (&c)[8][4]);
template <bool BY_ROWS>
static void weft_wide_product(float (&c)[8][4], const weft_fragment &left, uint64_t right, int adds);

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
          sum += left_at(p.left + 32 * warp, row, k) * right_at(p.right, p.by_rows, k, n);
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
  meet(of_groups[group], 128, nullptr, nullptr, [&] { ends[group].push_back(begun[group].size()); });
}

struct wide_argument {
  float (*c)[4];
  const weft_fragment *left;
};
template <bool BY_ROWS>
static void weft_wide_product(float (&c)[8][4], const weft_fragment &left, uint64_t right,
                              int adds) {
  const unsigned group = now / 128;
  const wide_argument argument = {c, &left};
  meet(of_groups[group], 128, &argument, nullptr, [&] {
    product p;
    for (unsigned k = 0; k < 128; k++) {
      const wide_argument *a = (const wide_argument *)threads[128 * group + k].argument;
      p.sums[k] = a->c;
      memcpy(p.left[k], a->left->x, sizeof p.left[k]);
    }
    p.right = right, p.by_rows = BY_ROWS, p.adds = adds != 0;
    if (!products_late) {
      multiply(p);
    }
    begun[group].push_back(p);
  });
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

/* ---- The kernels ---- */

WEFT_WIDE_ATTENTION(narrow, 1, 1, 1, 1, 1, 1)

struct problem {
  weft_u64 sequences, tokens, heads;
  std::vector<weft_bf16> qkv, dy, y, dqkv;
  std::vector<float> log_sums, products, own_sums;
  std::vector<double> y_true, dqkv_true;
};
static problem *given;

enum { D = 64 };

static void launch(void (*run)(), unsigned rows, unsigned count) {
  kernel = run;
  lowest = UINTPTR_MAX; /* it has arrays of its own */
  gridDim.x = (unsigned)((given->tokens + rows - 1) / rows);
  blockDim.x = count;
  for (blockIdx.y = 0; blockIdx.y < given->sequences * given->heads; blockIdx.y++) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
      run_block(count);
    }
  }
}

#define RUN_VARIANT(name, rows, count)                                                            \
  static void run_##name() {                                                                      \
    launch([] { weft_gpt_attention_forward_##name(given->y.data(), given->own_sums.data(),        \
                                                  given->qkv.data(), given->sequences,            \
                                                  given->tokens, given->heads); }, rows, count);  \
    launch([] { weft_gpt_attention_backward_queries_##name(                                       \
                    given->dqkv.data(), given->qkv.data(), given->dy.data(),                      \
                    given->log_sums.data(), given->products.data(), given->sequences,             \
                    given->tokens, given->heads); }, rows, count);                                \
    launch([] { weft_gpt_attention_backward_keys_##name(                                          \
                    given->dqkv.data(), given->qkv.data(), given->dy.data(),                      \
                    given->log_sums.data(), given->products.data(), given->sequences,             \
                    given->tokens, given->heads); }, rows, count);                                \
  }
RUN_VARIANT(64, 128, 128)
RUN_VARIANT(hopper, 128, 256)
RUN_VARIANT(narrow, 64, 128)

/* ---- The truth ---- */

static double dot(const weft_bf16 *a, const weft_bf16 *b) {
  double sum = 0;
  for (int c = 0; c < D; c++) {
    sum += (double)to_float(a[c]) * (double)to_float(b[c]);
  }
  return sum;
}

static void compute_head(problem &p, weft_u64 n) {
  const weft_u64 h = p.heads, t = p.tokens, stride = 3 * h * D, out_stride = h * D;
  const weft_u64 at = n / h * t * stride + n % h * D, out_at = n / h * t * out_stride + n % h * D;
  const weft_bf16 *q = &p.qkv[at], *k = q + h * D, *v = k + h * D, *dy = &p.dy[out_at];
  double *y = &p.y_true[out_at], *dq = &p.dqkv_true[at], *dk = dq + h * D, *dv = dk + h * D;
  for (weft_u64 i = 0; i < t; i++) {
    std::vector<double> s(i + 1);
    double sum = 0, product = 0;
    for (weft_u64 j = 0; j <= i; j++) {
      s[j] = exp(dot(q + i * stride, k + j * stride) / 8);
      sum += s[j];
    }
    for (weft_u64 j = 0; j <= i; j++) {
      for (int c = 0; c < D; c++) {
        y[i * out_stride + c] += s[j] / sum * (double)to_float(v[j * stride + c]);
      }
    }
    for (int c = 0; c < D; c++) {
      product += y[i * out_stride + c] * (double)to_float(dy[i * out_stride + c]);
    }
    p.log_sums[n * t + i] = (float)log(sum);
    p.products[n * t + i] = (float)product;
    for (weft_u64 j = 0; j <= i; j++) {
      const double ds = s[j] / sum * (dot(dy + i * out_stride, v + j * stride) - product) / 8;
      for (int c = 0; c < D; c++) {
        dq[i * stride + c] += ds * (double)to_float(k[j * stride + c]);
        dk[j * stride + c] += ds * (double)to_float(q[i * stride + c]);
        dv[j * stride + c] += s[j] / sum * (double)to_float(dy[i * out_stride + c]);
      }
    }
  }
}

static unsigned drawn = 1;
static weft_bf16 draw() {
  float sum = 0;
  for (int k = 0; k < 4; k++) {
    drawn = drawn * 1664525 + 1013904223;
    sum += (float)(drawn >> 8) / 16777216.0f - 0.5f;
  }
  return (weft_bf16)to_bf16(1.7f * sum);
}

static problem make(weft_u64 sequences, weft_u64 tokens, weft_u64 heads) {
  const weft_u64 numbers = sequences * tokens * heads * D, sums = sequences * tokens * heads;
  problem p = {sequences, tokens, heads, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  p.qkv.resize(3 * numbers), p.dy.resize(numbers);
  p.y.resize(numbers), p.dqkv.resize(3 * numbers);
  p.log_sums.resize(sums), p.products.resize(sums), p.own_sums.resize(sums);
  p.y_true.resize(numbers), p.dqkv_true.resize(3 * numbers);
  for (weft_bf16 &x : p.qkv) {
    x = draw();
  }
  for (weft_bf16 &x : p.dy) {
    x = draw();
  }
  for (weft_u64 n = 0; n < sequences * heads; n++) {
    compute_head(p, n);
  }
  return p;
}

static double distance(const std::vector<weft_bf16> &x, const std::vector<double> &truth) {
  double difference = 0, size = 0;
  for (size_t k = 0; k < x.size(); k++) {
    difference += pow((double)to_float(x[k]) - truth[k], 2);
    size += truth[k] * truth[k];
  }
  return sqrt(difference / size);
}

static bool check(const char *name, void (*run)(), problem &p) {
  bool good = true;
  for (int turn = 0; turn < 4; turn++) {
    copies_late = turn % 2 == 1, products_late = turn / 2 == 1;
    given = &p;
    p.y.assign(p.y.size(), 0x7fff); /* NaN */
    p.dqkv.assign(p.dqkv.size(), 0x7fff);
    p.own_sums.assign(p.own_sums.size(), NAN);
    run();
    double most = 0;
    for (size_t k = 0; k < p.own_sums.size(); k++) {
      const double off = fabs((double)p.own_sums[k] - (double)p.log_sums[k]);
      most = off <= most ? most : off; /* NaN too */
    }
    const double of_y = distance(p.y, p.y_true), of_d = distance(p.dqkv, p.dqkv_true);
    const bool right = of_y < 0.006 && of_d < 0.006 && most < 1e-4;
    printf("%-6s copies %s, products %s: B %llu T %3llu H %llu: y %.1e, dqkv %.1e, log_sums %.1e%s\n", name,
           copies_late ? "late" : "soon", products_late ? "late" : "soon", p.sequences, p.tokens, p.heads, of_y, of_d, most,
           right ? "" : "  WRONG");
    good = good && right;
  }
  return good;
}

int main() {
  bool good = true;
  for (const weft_u64 tokens : {64, 192, 320}) { /* multiples of 64, for warpgroups */
    problem p = make(1, tokens, 1);
    good = check("hopper", run_hopper, p) && good;
    good = check("narrow", run_narrow, p) && good;
  }
  problem p = make(2, 100, 2);
  good = check("mma", run_64, p) && good;
  p = make(2, 128, 2);
  good = check("hopper", run_hopper, p) && good;
  return good ? 0 : 1;
}
