/* The trainer's attention kernels on a GPU, beside each other: against a reference in fp32, twice
 * for the same bits, and their times in turns with those of gpt_attention.cu. Heads of 64
 * channels. For one NVIDIA GPU of capability 9.0; takes half a minute.
 *
 *     nvcc -O2 -gencode=arch=compute_90a,code=sm_90a -Itrainer/cuda -o build/attention_variants \
 *          trainer/bench/attention_variants.cu
 *     build/attention_variants [NAME]
 *
 * Each variant runs in a process of its own with a limit of time, so that one that hangs or faults
 * takes no other with it. The status is 1 if one of them failed. */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "gpt_layers.cu"

#include "gpt_attention.cu"

#include "gpt_attention_hopper.cu"

/* Others that only this program has: warpgroups of a block and blocks of a multiprocessor, for the
 * forward, the queries' and the keys' gradients. */
WEFT_WIDE_ATTENTION(narrow, 1, 4, 1, 3, 1, 3)
WEFT_WIDE_ATTENTION(sparse, 1, 3, 1, 2, 1, 2)

typedef void (*forward_kernel)(weft_bf16 *, float *, const weft_bf16 *, weft_u64, weft_u64,
                               weft_u64);
typedef void (*backward_kernel)(weft_bf16 *, const weft_bf16 *, const weft_bf16 *, const float *,
                                const float *, weft_u64, weft_u64, weft_u64);

struct variant {
  const char *name;
  forward_kernel forward;
  backward_kernel queries, keys;
  int forward_rows, queries_rows, keys_rows; /* of a block */
  int forward_threads, queries_threads, keys_threads;
};

#define WIDE(name, F, Q, K)                                                                       \
  {#name, weft_gpt_attention_forward_##name, weft_gpt_attention_backward_queries_##name,          \
   weft_gpt_attention_backward_keys_##name, 64 * F, 64 * Q, 64 * K, 128 * F, 128 * Q, 128 * K}
static const variant variants[] = {
    {"mma", weft_gpt_attention_forward_64, weft_gpt_attention_backward_queries_64,
     weft_gpt_attention_backward_keys_64, 128, 128, 128, 128, 128, 128},
    WIDE(hopper, 2, 1, 1),
    WIDE(narrow, 1, 1, 1),
    WIDE(sparse, 1, 1, 1),
};
enum { D = 64, SECONDS = 12 };

#define CHECK(call)                                                                    \
  do {                                                                                 \
    const cudaError_t result = (call);                                                 \
    if (result != cudaSuccess) {                                                       \
      printf("  %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(result)); \
      fflush(stdout);                                                                  \
      _exit(1);                                                                        \
    }                                                                                  \
  } while (0)

/* ---- The reference: fp32, a block of 64 threads per row ---- */

__device__ float value(const weft_bf16 *x, weft_u64 at) { return weft_float(x[at]); }

__device__ float sum_64(float x, float *shared) {
  shared[threadIdx.x] = x;
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < 64; k++) {
    sum += shared[k];
  }
  __syncthreads();
  return sum;
}

/* A thread per channel; blocks (T, B H). */
__global__ void reference_forward(float *y, float *log_sums, const weft_bf16 *qkv, int tokens,
                                  int heads) {
  __shared__ float shared[64];
  const int row = blockIdx.x, head = blockIdx.y % heads, c = threadIdx.x;
  const weft_u64 sequence = blockIdx.y / heads, stride = 3 * heads * D;
  const weft_bf16 *q = qkv + sequence * tokens * stride + head * D;
  const weft_bf16 *k = q + heads * D, *v = k + heads * D;
  float most = -INFINITY, total = 0, sum = 0;
  for (int j = 0; j <= row; j++) {
    const float s = sum_64(value(q, row * stride + c) * value(k, j * stride + c), shared) / 8;
    const float larger = fmaxf(most, s), fade = expf(most - larger), p = expf(s - larger);
    total = total * fade + p;
    sum = sum * fade + p * value(v, j * stride + c);
    most = larger;
  }
  y[((sequence * tokens + row) * heads + head) * D + c] = sum / total;
  log_sums[blockIdx.y * (weft_u64)tokens + row] = most + logf(total);
}

/* products = y dy. */
__global__ void reference_products(float *products, const float *y, const weft_bf16 *dy, int tokens,
                                   int heads) {
  __shared__ float shared[64];
  const int row = blockIdx.x, head = blockIdx.y % heads;
  const weft_u64 at =
      (((weft_u64)(blockIdx.y / heads) * tokens + row) * heads + head) * D + threadIdx.x;
  products[blockIdx.y * (weft_u64)tokens + row] = sum_64(y[at] * value(dy, at), shared);
}

/* dqkv as the kernels', in fp32. */
__global__ void reference_backward(float *dqkv, const weft_bf16 *qkv, const weft_bf16 *dy,
                                   const float *log_sums, const float *products, int tokens,
                                   int heads) {
  __shared__ float shared[64];
  const int row = blockIdx.x, head = blockIdx.y % heads, c = threadIdx.x;
  const weft_u64 sequence = blockIdx.y / heads, stride = 3 * heads * D, out_stride = heads * D;
  const weft_u64 offset = sequence * tokens * stride + head * D;
  const weft_bf16 *q = qkv + offset, *k = q + heads * D, *v = k + heads * D;
  const weft_bf16 *out = dy + sequence * tokens * out_stride + head * D;
  log_sums += blockIdx.y * (weft_u64)tokens;
  products += blockIdx.y * (weft_u64)tokens;
  float dq = 0, dk = 0, dv = 0;
  for (int j = 0; j < tokens; j++) { /* query `row` and key j, or query j and key `row` */
    const int query = j <= row ? row : j, key = j <= row ? j : row;
    const float s = sum_64(value(q, query * stride + c) * value(k, key * stride + c), shared) / 8;
    const float dp = sum_64(value(out, query * out_stride + c) * value(v, key * stride + c), shared);
    const float p = expf(s - log_sums[query]), ds = p * (dp - products[query]);
    if (j <= row) {
      dq += ds * value(k, j * stride + c) / 8;
    }
    if (j >= row) {
      dk += ds * value(q, j * stride + c) / 8;
      dv += p * value(out, j * out_stride + c);
    }
  }
  dqkv[offset + row * stride + c] = dq;
  dqkv[offset + row * stride + heads * D + c] = dk;
  dqkv[offset + row * stride + 2 * heads * D + c] = dv;
}

/* ---- Arrays ---- */

__global__ void draw(weft_bf16 *x, weft_u64 count, unsigned seed, float size) {
  const weft_u64 k = blockIdx.x * (weft_u64)blockDim.x + threadIdx.x;
  if (k < count) { /* about normal: the sum of four */
    weft_u64 state = (k + 1) * 0x9e3779b97f4a7c15ull + seed;
    float sum = 0;
    for (int n = 0; n < 4; n++) {
      state ^= state >> 29;
      state *= 0xbf58476d1ce4e5b9ull;
      state ^= state >> 32;
      sum += (float)(state & 0xffff) / 65536.0f - 0.5f;
    }
    x[k] = (weft_bf16)weft_pack(sum * 1.732f * size, 0);
  }
}

struct problem {
  weft_u64 sequences, tokens, heads, rows, channels;
  weft_bf16 *qkv, *dy, *y, *dqkv;
  float *log_sums, *products, *own_sums, *y_reference, *dqkv_reference;
};

template <typename T>
static T *array_of(weft_u64 count) {
  T *data;
  CHECK(cudaMalloc(&data, count * sizeof(T)));
  return data;
}

static problem make(weft_u64 sequences, weft_u64 tokens, weft_u64 heads, bool compares) {
  problem p = {sequences, tokens, heads, sequences * tokens, heads * D};
  const weft_u64 numbers = p.rows * p.channels, sums = p.rows * heads;
  p.qkv = array_of<weft_bf16>(3 * numbers);
  p.dqkv = array_of<weft_bf16>(3 * numbers);
  p.dy = array_of<weft_bf16>(numbers);
  p.y = array_of<weft_bf16>(numbers);
  p.log_sums = array_of<float>(sums);
  p.own_sums = array_of<float>(sums);
  p.products = array_of<float>(sums);
  draw<<<(unsigned)((3 * numbers + 255) / 256), 256>>>(p.qkv, 3 * numbers, 1 + (unsigned)tokens, 1.5f);
  draw<<<(unsigned)((numbers + 255) / 256), 256>>>(p.dy, numbers, 77, 1);
  if (compares) {
    const dim3 blocks((unsigned)tokens, (unsigned)(sequences * heads));
    p.y_reference = array_of<float>(numbers);
    p.dqkv_reference = array_of<float>(3 * numbers);
    reference_forward<<<blocks, 64>>>(p.y_reference, p.log_sums, p.qkv, (int)tokens, (int)heads);
    reference_products<<<blocks, 64>>>(p.products, p.y_reference, p.dy, (int)tokens, (int)heads);
    reference_backward<<<blocks, 64>>>(p.dqkv_reference, p.qkv, p.dy, p.log_sums, p.products,
                                       (int)tokens, (int)heads);
  } else {
    const variant &first = variants[0];
    first.forward<<<dim3((unsigned)((tokens + 127) / 128), (unsigned)(sequences * heads)), 128>>>(
        p.y, p.log_sums, p.qkv, sequences, tokens, heads);
    weft_gpt_attention_products<<<(unsigned)((numbers / 8 + 255) / 256), 256>>>(
        p.products, p.y, p.dy, p.rows, tokens, heads, p.channels);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  return p;
}

static void destroy(problem &p) {
  void *const arrays[] = {p.qkv,      p.dqkv,     p.dy,          p.y,             p.log_sums,
                          p.own_sums, p.products, p.y_reference, p.dqkv_reference};
  for (void *data : arrays) {
    CHECK(cudaFree(data));
  }
}

enum { FORWARD, QUERIES, KEYS, PARTS };
static const char *const part_names[] = {"forward", "queries", "keys"};

static void launch(const variant &v, const problem &p, int part) {
  const int rows = part == FORWARD ? v.forward_rows : part == QUERIES ? v.queries_rows : v.keys_rows;
  const unsigned threads = (unsigned)(part == FORWARD   ? v.forward_threads
                                      : part == QUERIES ? v.queries_threads
                                                        : v.keys_threads);
  const dim3 blocks((unsigned)((p.tokens + rows - 1) / rows), (unsigned)(p.sequences * p.heads));
  if (part == FORWARD) {
    v.forward<<<blocks, threads>>>(p.y, p.own_sums, p.qkv, p.sequences, p.tokens, p.heads);
  } else {
    (part == QUERIES ? v.queries : v.keys)<<<blocks, threads>>>(
        p.dqkv, p.qkv, p.dy, p.log_sums, p.products, p.sequences, p.tokens, p.heads);
  }
}

/* ---- Checks ---- */

static float to_float(weft_bf16 x) {
  const unsigned bits = (unsigned)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

struct distance {
  double difference = 0, size = 0;
  void add(double x, double reference) {
    difference += (x - reference) * (x - reference);
    size += reference * reference;
  }
  double relative() const { return std::sqrt(difference / size); } /* NaN stays NaN */
};

template <typename T>
static std::vector<T> fetch(const T *from, weft_u64 count) {
  std::vector<T> to(count);
  CHECK(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost));
  return to;
}

/* Outputs of all three, poisoned before; dqkv is written by two kernels. */
struct results {
  std::vector<weft_bf16> y, dqkv;
  std::vector<float> sums;
};

static results run_all(const variant &v, const problem &p) {
  const weft_u64 numbers = p.rows * p.channels;
  CHECK(cudaMemset(p.y, 0xff, numbers * 2));
  CHECK(cudaMemset(p.dqkv, 0xff, 3 * numbers * 2));
  CHECK(cudaMemset(p.own_sums, 0xff, p.rows * p.heads * 4));
  for (int part = 0; part < PARTS; part++) {
    launch(v, p, part);
    CHECK(cudaGetLastError());
    const cudaError_t result = cudaDeviceSynchronize();
    if (result != cudaSuccess) {
      printf("  %s: %s\n", part_names[part], cudaGetErrorString(result));
      fflush(stdout);
      _exit(1);
    }
  }
  return {fetch(p.y, numbers), fetch(p.dqkv, 3 * numbers), fetch(p.own_sums, p.rows * p.heads)};
}

static bool check(const variant &v, weft_u64 sequences, weft_u64 tokens, weft_u64 heads) {
  problem p = make(sequences, tokens, heads, true);
  const results once = run_all(v, p), twice = run_all(v, p);
  const bool same = once.y == twice.y && once.dqkv == twice.dqkv &&
                    memcmp(once.sums.data(), twice.sums.data(), once.sums.size() * 4) == 0;
  const auto y = fetch(p.y_reference, p.rows * p.channels);
  const auto dqkv = fetch(p.dqkv_reference, 3 * p.rows * p.channels);
  const auto sums = fetch(p.log_sums, p.rows * p.heads);
  distance of_y, of_sums, of_d[3];
  for (size_t k = 0; k < y.size(); k++) {
    of_y.add(to_float(once.y[k]), y[k]);
  }
  for (size_t k = 0; k < sums.size(); k++) {
    of_sums.add(once.sums[k], sums[k]);
  }
  for (size_t k = 0; k < dqkv.size(); k++) {
    of_d[k / p.channels % 3].add(to_float(once.dqkv[k]), dqkv[k]);
  }
  const double all[] = {of_y.relative(), of_sums.relative(), of_d[0].relative(), of_d[1].relative(),
                        of_d[2].relative()};
  bool good = same;
  for (double relative : all) {
    good = good && relative < 0.01;
  }
  printf("  %-6s B %llu T %4llu H %2llu: y %.1e log_sums %.1e dq %.1e dk %.1e dv %.1e, %s%s\n", v.name,
         sequences, tokens, heads, all[0], all[1], all[2], all[3], all[4],
         same ? "same bits twice" : "OTHER BITS THE SECOND TIME", good ? "" : "  WRONG");
  fflush(stdout);
  destroy(p);
  return good;
}

/* ---- Times ---- */

static float milliseconds(const variant &v, const problem &p, int part) {
  static cudaEvent_t begin, end;
  if (begin == nullptr) {
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
  }
  enum { CALLS = 6 };
  float time;
  CHECK(cudaEventRecord(begin));
  for (int k = 0; k < CALLS; k++) {
    launch(v, p, part);
  }
  CHECK(cudaEventRecord(end));
  CHECK(cudaEventSynchronize(end));
  CHECK(cudaEventElapsedTime(&time, begin, end));
  return time / CALLS;
}

/* In turns with the first variant; medians. GPT-2 124M's. */
static void compare_times(const variant &v) {
  problem p = make(32, 1024, 12, false);
  for (int part = 0; part < PARTS; part++) {
    std::vector<float> old_times, times;
    for (int round = 0; round < 12; round++) {
      const float a = milliseconds(variants[0], p, part), b = milliseconds(v, p, part);
      if (round > 1) { /* the first ones warm up */
        old_times.push_back(a);
        times.push_back(b);
      }
    }
    std::sort(old_times.begin(), old_times.end());
    std::sort(times.begin(), times.end());
    const double a = old_times[5], b = times[5];
    const double pairs = 32.0 * 12 * 1024 * 1025 / 2;
    const double flops = 2 * pairs * D * (part == FORWARD ? 2 : part == QUERIES ? 3 : 4);
    printf("  %-6s %-8s %.3f ms (%.3f-%.3f) %4.0f TFLOP/s; mma %.3f ms %4.0f TFLOP/s: %.2f x\n", v.name,
           part_names[part], b, times.front(), times.back(), flops / b / 1e9, a, flops / a / 1e9,
           a / b);
    fflush(stdout);
  }
  destroy(p);
}

static int run_variant(const variant &v) {
  static const weft_u64 shapes[][3] = {{1, 64, 1},  {1, 128, 2}, {3, 192, 2},
                                       {2, 448, 3}, {2, 1024, 4}, {1, 2048, 1}};
  bool good = true;
  for (const auto &shape : shapes) {
    good = check(v, shape[0], shape[1], shape[2]) && good;
  }
  if (&v == variants) {
    good = check(v, 2, 100, 2) && good; /* only it takes any number of tokens */
  } else {
    compare_times(v);
  }
  return good ? 0 : 1;
}

int main(int count, char **words) {
  bool good = true;
  for (const variant &v : variants) {
    if (count > 1 && strcmp(words[1], v.name) != 0) {
      continue;
    }
    printf("%s\n", v.name);
    fflush(stdout);
    const pid_t child = fork(); /* before this process uses the GPU, which it never does */
    if (child == 0) {
      alarm(SECONDS);
      _exit(run_variant(v));
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
      printf("  %s: ended by signal %d%s\n", v.name, WTERMSIG(status),
             WTERMSIG(status) == SIGALRM ? ": it hangs, or takes too long" : "");
    } else if (WEXITSTATUS(status) != 0) {
      printf("  %s: FAILED\n", v.name);
    }
    good = good && status == 0;
  }
  return good ? 0 : 1;
}
