/* The trainer's kernels but for attention, matrix products and the optimizer: embedding, norm, cross
 * entropy and column sums. gpt_kernels.h says what each computes. Every number is
 * written by one thread, and sums have one order: no atomics.
 *
 * Letters: R rows (B sequences x T tokens), C channels, V vocabulary. Numbers are bf16, sums and
 * gradients of parameters fp32. C and V are multiples of 8. All parameters have eight bytes. */
typedef unsigned short weft_bf16;
typedef unsigned long long weft_u64;

#define WEFT_GLOBAL(name, parameters) extern "C" __global__ void weft_gpt_##name parameters
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

static __device__ __forceinline__ float weft_float(weft_bf16 x) {
  return __uint_as_float((unsigned)x << 16);
}
#ifndef WEFT_EMULATED /* a test has its own (trainer/tests/cuda/emulated_attention.cpp) */
static __device__ __forceinline__ unsigned weft_pack(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
/* One instruction, where exp2f takes care of numbers below 2^-126: they are 0 here. */
static __device__ __forceinline__ float weft_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
#endif

/* Eight bf16 numbers. */
static __device__ __forceinline__ void weft_unpack8(float *x, const uint4 &bits) {
  const unsigned word[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    x[2 * k] = __uint_as_float(word[k] << 16);
    x[2 * k + 1] = __uint_as_float(word[k] & 0xffff0000u);
  }
}
static __device__ __forceinline__ void weft_load8(float *x, const weft_bf16 *from) {
  weft_unpack8(x, *(const uint4 *)from);
}
static __device__ __forceinline__ void weft_store8(weft_bf16 *to, const float *x) {
  uint4 bits;
  bits.x = weft_pack(x[0], x[1]);
  bits.y = weft_pack(x[2], x[3]);
  bits.z = weft_pack(x[4], x[5]);
  bits.w = weft_pack(x[6], x[7]);
  *(uint4 *)to = bits;
}

static __device__ __forceinline__ float weft_warp_sum(float x) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) {
    x += __shfl_xor_sync(~0u, x, k);
  }
  return x;
}
static __device__ __forceinline__ double weft_warp_sum_f64(double x) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) {
    x += __shfl_xor_sync(~0u, x, k);
  }
  return x;
}

static __device__ __forceinline__ weft_u64 weft_thread() {
  return blockIdx.x * (weft_u64)blockDim.x + threadIdx.x;
}

/* The r-th token, of one byte or two. */
static __device__ __forceinline__ weft_u64 weft_token(const void *ids, weft_u64 r, weft_u64 bytes) {
  return bytes == 1 ? ((const unsigned char *)ids)[r] : ((const unsigned short *)ids)[r];
}

/* ---- Embedding ---- */

/* Eight channels per thread. */
WEFT_GLOBAL(embed, (weft_bf16 *y, const void *ids, const weft_bf16 *wte, const weft_bf16 *wpe,
                    weft_u64 rows, weft_u64 tokens, weft_u64 channels, weft_u64 token_bytes)) {
  const weft_u64 each = channels / 8, k = weft_thread();
  if (k >= rows * each) {
    return;
  }
  const weft_u64 r = k / each, c = k % each * 8;
  float a[8], b[8];
  weft_load8(a, wte + weft_token(ids, r, token_bytes) * channels + c);
  weft_load8(b, wpe + r % tokens * channels + c);
#pragma unroll
  for (int e = 0; e < 8; e++) {
    a[e] += b[e];
  }
  weft_store8(y + r * channels + c, a);
}

/* A thread per number of wpe: it sums over sequences. */
WEFT_GLOBAL(embed_backward_positions, (float *dwpe, const weft_bf16 *dx, weft_u64 rows,
                                       weft_u64 tokens, weft_u64 channels)) {
  const weft_u64 k = weft_thread();
  if (k >= tokens * channels) {
    return;
  }
  float sum = 0;
  for (weft_u64 r = k / channels; r < rows; r += tokens) {
    sum += weft_float(dx[r * channels + k % channels]);
  }
  dwpe[k] += sum;
}

/* A block of 256 threads has `each` tokens of the vocabulary. It goes along all rows, lists those
 * with its tokens in their order, and adds them to the tokens' rows. */
WEFT_GLOBAL(embed_backward_tokens, (float *dwte, const void *ids, const weft_bf16 *dx, weft_u64 rows,
                                    weft_u64 channels, weft_u64 each, weft_u64 token_bytes,
                                    weft_u64 vocabulary)) {
  constexpr int threads = 256, warps = threads / 32;
  __shared__ unsigned found[threads]; /* row and token of those in this part */
  __shared__ unsigned tokens[threads];
  __shared__ int counts[warps];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const weft_u64 first = blockIdx.x * each;
  for (weft_u64 begin = 0; begin < rows; begin += threads) {
    const weft_u64 r = begin + thread;
    const weft_u64 id = r < rows ? weft_token(ids, r, token_bytes) : 0;
    const bool mine = r < rows && id >= first && id - first < each;
    const unsigned votes = __ballot_sync(~0u, mine);
    if (lane == 0) {
      counts[warp] = __popc(votes);
    }
    __syncthreads();
    int at = __popc(votes & ((1u << lane) - 1)), count = 0;
#pragma unroll
    for (int w = 0; w < warps; w++) {
      at += w < warp ? counts[w] : 0;
      count += counts[w];
    }
    if (mine) {
      found[at] = (unsigned)r;
      tokens[at] = (unsigned)id;
    }
    __syncthreads();
    for (weft_u64 c = thread; c < channels && count > 0; c += threads) {
      int n = 0;
      for (; n + 4 <= count; n += 4) { /* four reads at once */
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
          x[e] = weft_float(dx[found[n + e] * channels + c]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
          dwte[tokens[n + e] * channels + c] += x[e];
        }
      }
      for (; n < count; n++) {
        dwte[tokens[n] * channels + c] += weft_float(dx[found[n] * channels + c]);
      }
    }
    __syncthreads();
  }
}

/* ---- Layer norm ---- */

#define WEFT_EPSILON 1e-5f

/* A warp per row. The row is read three times, the last two from the cache. */
WEFT_GLOBAL(norm, (weft_bf16 *y, float *mean, float *rstd, const weft_bf16 *x,
                   const weft_bf16 *weight, const weft_bf16 *bias, weft_u64 rows,
                   weft_u64 channels)) {
  const weft_u64 r = weft_thread() / 32;
  const int lane = threadIdx.x % 32;
  if (r >= rows) {
    return;
  }
  x += r * channels;
  y += r * channels;
  float v[8], w[8], b[8], sum = 0;
  for (weft_u64 c = lane * 8; c < channels; c += 256) {
    weft_load8(v, x + c);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      sum += v[e];
    }
  }
  const float m = weft_warp_sum(sum) / (float)channels;
  sum = 0;
  for (weft_u64 c = lane * 8; c < channels; c += 256) {
    weft_load8(v, x + c);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      sum += (v[e] - m) * (v[e] - m);
    }
  }
  const float s = rsqrtf(weft_warp_sum(sum) / (float)channels + WEFT_EPSILON);
  for (weft_u64 c = lane * 8; c < channels; c += 256) {
    weft_load8(v, x + c);
    weft_load8(w, weight + c);
    weft_load8(b, bias + c);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      v[e] = (v[e] - m) * s * w[e] + b[e];
    }
    weft_store8(y + c, v);
  }
  if (lane == 0) {
    mean[r] = m;
    rstd[r] = s;
  }
}

/* The sums of a norm's gradient over a row, of eight channels. */
static __device__ __forceinline__ void weft_norm_sums(float *sum, float *dot, const float *v,
                                                      const float *g, const float *w, float m,
                                                      float s) {
#pragma unroll
  for (int e = 0; e < 8; e++) {
    *sum += g[e] * w[e];
    *dot += g[e] * w[e] * (v[e] - m) * s;
  }
}

/* Rows of a warp, and what is read of them once: a lane has the same channels of every row, eight
 * of each 256, and sums the gradients of their weight and bias. */
template <int CHUNKS>
static __device__ __forceinline__ void weft_norm_backward_rows(
    float *sums, weft_bf16 *dx, float *parts, const weft_bf16 *residual, const weft_bf16 *x,
    const weft_bf16 *weight, const float *means, const float *rstds, const weft_bf16 *dy, int count,
    int channels) {
  constexpr int warps = 8, width = 256 * CHUNKS;
  /* There are registers for the residual and for dy, too; else they are read when they are needed,
   * dy a second time from the cache. */
  constexpr bool early = CHUNKS <= 3;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float of_weight[CHUNKS][8] = {}, of_bias[CHUNKS][8] = {};
  for (int n = warp; n < count; n += warps) {
    const int at = n * channels + lane * 8;
    const float m = means[n], s = rstds[n];
    uint4 v_bits[CHUNKS], g_bits[CHUNKS], d_bits[CHUNKS];
    float v[8], g[8], w[8], sum = 0, dot = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
      if (lane * 8 + 256 * k < channels) {
        v_bits[k] = *(const uint4 *)(x + at + 256 * k);
        g_bits[k] = *(const uint4 *)(dy + at + 256 * k);
        if (early) {
          d_bits[k] = residual != nullptr ? *(const uint4 *)(residual + at + 256 * k) : uint4{};
        }
      }
    }
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
      if (lane * 8 + 256 * k < channels) {
        weft_unpack8(v, v_bits[k]);
        weft_unpack8(g, g_bits[k]);
        weft_load8(w, weight + lane * 8 + 256 * k);
        weft_norm_sums(&sum, &dot, v, g, w, m, s);
      }
    }
    sum = weft_warp_sum(sum) / (float)channels;
    dot = weft_warp_sum(dot) / (float)channels;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
      if (lane * 8 + 256 * k < channels) {
        float d[8] = {};
        if (early) {
          weft_unpack8(d, d_bits[k]);
        } else if (residual != nullptr) {
          weft_load8(d, residual + at + 256 * k);
        }
        weft_unpack8(v, v_bits[k]);
        weft_unpack8(g, early ? g_bits[k] : *(const uint4 *)(dy + at + 256 * k));
        weft_load8(w, weight + lane * 8 + 256 * k);
#pragma unroll
        for (int e = 0; e < 8; e++) {
          const float normed = (v[e] - m) * s;
          d[e] += s * (g[e] * w[e] - sum - normed * dot);
          of_weight[k][e] += g[e] * normed;
          of_bias[k][e] += g[e];
        }
        weft_store8(dx + at + 256 * k, d);
      }
    }
  }
#pragma unroll
  for (int which = 0; which < 2; which++) {
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
#pragma unroll
      for (int e = 0; e < 8; e++) {
        sums[warp * width + 256 * k + lane * 8 + e] =
            which == 0 ? of_weight[k][e] : of_bias[k][e];
      }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < channels; c += 256) {
      float sum = 0;
#pragma unroll
      for (int other = 0; other < warps; other++) {
        sum += sums[other * width + c];
      }
      parts[which * channels + c] = sum;
    }
    __syncthreads();
  }
}

/* For any number of channels: what is read of a row the second time comes from the cache. Then
 * threads sum over the block's rows, for each channel. */
static __device__ __forceinline__ void weft_norm_backward_any(
    float *, weft_bf16 *dx, float *parts, const weft_bf16 *residual, const weft_bf16 *x,
    const weft_bf16 *weight, const float *means, const float *rstds, const weft_bf16 *dy, int count,
    int channels) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int n = warp; n < count; n += 8) {
    const int at = n * channels;
    const float m = means[n], s = rstds[n];
    float v[8], g[8], w[8], sum = 0, dot = 0;
    for (int c = lane * 8; c < channels; c += 256) {
      weft_load8(v, x + at + c);
      weft_load8(g, dy + at + c);
      weft_load8(w, weight + c);
      weft_norm_sums(&sum, &dot, v, g, w, m, s);
    }
    sum = weft_warp_sum(sum) / (float)channels;
    dot = weft_warp_sum(dot) / (float)channels;
    for (int c = lane * 8; c < channels; c += 256) {
      float d[8] = {};
      weft_load8(v, x + at + c);
      weft_load8(g, dy + at + c);
      weft_load8(w, weight + c);
      if (residual != nullptr) {
        weft_load8(d, residual + at + c);
      }
#pragma unroll
      for (int e = 0; e < 8; e++) {
        d[e] += s * (g[e] * w[e] - sum - (v[e] - m) * s * dot);
      }
      weft_store8(dx + at + c, d);
    }
  }
  for (int c = threadIdx.x; c < channels; c += 256) {
    float of_weight = 0, of_bias = 0;
    for (int n = 0; n < count; n++) {
      const float g = weft_float(dy[n * channels + c]);
      of_weight += g * (weft_float(x[n * channels + c]) - means[n]) * rstds[n];
      of_bias += g;
    }
    parts[c] = of_weight;
    parts[channels + c] = of_bias;
  }
}

/* A block of 256 threads has 32 rows: their dx, and the sums over them of the gradients of weight
 * and bias, parts [blocks, 2 C]. `residual`: added to dx, or NULL. */
extern "C" __global__ void __launch_bounds__(256, 2)
    weft_gpt_norm_backward(weft_bf16 *dx, float *parts, const weft_bf16 *residual,
                           const weft_bf16 *x, const weft_bf16 *weight, const float *mean,
                           const float *rstd, const weft_bf16 *dy, weft_u64 rows,
                           weft_u64 channels) {
  constexpr int each = 32;
  __shared__ float means[each], rstds[each];
  __shared__ __align__(16) float sums[8 * 1024]; /* of warps */
  const weft_u64 first = blockIdx.x * (weft_u64)each, at = first * channels;
  const int count = rows - first < each ? (int)(rows - first) : each;
  if (threadIdx.x < count) {
    means[threadIdx.x] = mean[first + threadIdx.x];
    rstds[threadIdx.x] = rstd[first + threadIdx.x];
  }
  __syncthreads();
  parts += blockIdx.x * 2 * channels;
  residual = residual != nullptr ? residual + at : nullptr;
#define WEFT_NORM_BACKWARD(rows_of_block)                                                      \
  rows_of_block(sums, dx + at, parts, residual, x + at, weight, means, rstds, dy + at, count, \
                (int)channels)
  if (channels <= 256) {
    WEFT_NORM_BACKWARD(weft_norm_backward_rows<1>);
  } else if (channels <= 768) {
    WEFT_NORM_BACKWARD(weft_norm_backward_rows<3>);
  } else if (channels <= 1024) {
    WEFT_NORM_BACKWARD(weft_norm_backward_rows<4>);
  } else {
    WEFT_NORM_BACKWARD(weft_norm_backward_any);
  }
#undef WEFT_NORM_BACKWARD
}

/* ---- Sums over rows ---- */

/* parts[b][c] = the sum over the b-th `each` rows of x[r][c]. Threads (32, 8), a thread has eight
 * columns. Blocks: columns / 256, x parts, both in x: y counts to 65,535 only. */
WEFT_GLOBAL(column_parts, (float *parts, const weft_bf16 *x, weft_u64 rows, weft_u64 columns,
                           weft_u64 each)) {
  __shared__ float sums[8][256];
  const unsigned across = ((unsigned)columns + 255) / 256, part = blockIdx.x / across;
  const int first = (int)(blockIdx.x - part * across) * 256, width = (int)columns;
  const int c = first + (int)threadIdx.x * 8, end = (int)(rows - part * each);
  float sum[8] = {}, v[8];
  x += part * each * columns;
  if (c < width) {
#pragma unroll 4
    for (int r = threadIdx.y; r < (int)each && r < end; r += 8) {
      weft_load8(v, x + (weft_u64)r * columns + c);
#pragma unroll
      for (int e = 0; e < 8; e++) {
        sum[e] += v[e];
      }
    }
  }
#pragma unroll
  for (int e = 0; e < 8; e++) {
    sums[threadIdx.y][threadIdx.x * 8 + e] = sum[e];
  }
  __syncthreads();
  const int own = (int)(threadIdx.y * 32 + threadIdx.x);
  if (first + own < width) {
    float total = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      total += sums[k][own];
    }
    parts[part * columns + first + own] = total;
  }
}

/* to[c] += the sum over the parts of parts[p][c]. Threads (32, 32). */
WEFT_GLOBAL(add_parts, (float *to, const float *parts, weft_u64 count, weft_u64 columns,
                        weft_u64 stride)) {
  __shared__ float sums[32][33];
  const weft_u64 c = blockIdx.x * 32 + threadIdx.x;
  float sum = 0;
  if (c < columns) {
#pragma unroll 8
    for (weft_u64 p = threadIdx.y; p < count; p += 32) {
      sum += parts[p * stride + c];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = weft_warp_sum(sums[threadIdx.x][threadIdx.y]); /* a warp per column */
  const weft_u64 column = blockIdx.x * 32 + threadIdx.y;
  if (threadIdx.x == 0 && column < columns) {
    to[column] += sum;
  }
}

/* ---- Cross entropy ---- */

/* Over all 1024 threads of a block; `shared` has room for 32. */
template <bool MOST>
static __device__ __forceinline__ float weft_block_reduce(float x, float *shared) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) {
    const float other = __shfl_xor_sync(~0u, x, k);
    x = MOST ? fmaxf(x, other) : x + other;
  }
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32] = x;
  }
  __syncthreads();
  x = shared[threadIdx.x % 32];
#pragma unroll
  for (int k = 16; k > 0; k /= 2) {
    const float other = __shfl_xor_sync(~0u, x, k);
    x = MOST ? fmaxf(x, other) : x + other;
  }
  return x;
}

/* A block of 1024 threads per row of logits [R, V]. losses[r] = -log softmax(logits[r])[target];
 * unless `keeps`, logits become scale * (softmax - onehot). The row is read twice, the second time
 * from the cache: two blocks of a multiprocessor so have one that reads while the other computes,
 * which pays more than holding the row in registers. */
extern "C" __global__ void __launch_bounds__(1024, 2)
    weft_gpt_cross_entropy(weft_bf16 *logits, float *losses, const void *targets, weft_u64 rows,
                           weft_u64 vocabulary, double scale, weft_u64 keeps,
                           weft_u64 token_bytes) {
  constexpr int each = 8 * 1024;
  constexpr float log2e = 1.4426950408889634f;
  __shared__ float mosts[32], sums[32];
  const weft_u64 r = blockIdx.x;
  weft_bf16 *row = logits + r * vocabulary;
  const int size = (int)vocabulary, first = 8 * (int)threadIdx.x;
  const int target = (int)weft_token(targets, r, token_bytes);
  const float target_logit = weft_float(row[target]);
  /* Of what the thread has seen, the largest and the sum of exponentials relative to it. */
  float v[8], most = -INFINITY, sum = 0;
#pragma unroll 2
  for (int c = first; c < size; c += each) {
    weft_load8(v, row + c);
    float larger = most;
#pragma unroll
    for (int e = 0; e < 8; e++) {
      larger = fmaxf(larger, v[e]);
    }
    sum *= weft_exp2((most - larger) * log2e);
    most = larger;
#pragma unroll
    for (int e = 0; e < 8; e++) {
      sum += weft_exp2(fmaf(v[e], log2e, -most * log2e));
    }
  }
  const float own = most;
  most = weft_block_reduce<true>(most, mosts);
  sum = weft_block_reduce<false>(own > -INFINITY ? sum * weft_exp2((own - most) * log2e) : 0, sums);
  if (threadIdx.x == 0) {
    losses[r] = logf(sum) + most - target_logit;
  }
  if (keeps != 0) {
    return;
  }
  const float factor = (float)scale / sum;
#pragma unroll 2
  for (int c = first; c < size; c += each) {
    weft_load8(v, row + c);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      v[e] = weft_exp2(fmaf(v[e], log2e, -most * log2e)) * factor -
             (c + e == target ? (float)scale : 0.0f);
    }
    weft_store8(row + c, v);
  }
}

/* *own, if not NULL, = the mean of losses; *loss += weight times it. One block of 1024 threads. */
WEFT_GLOBAL(mean_loss, (double *loss, double *own, const float *losses, weft_u64 rows,
                        double weight)) {
  __shared__ double sums[32];
  double sum = 0;
  for (weft_u64 r = threadIdx.x; r < rows; r += 1024) {
    sum += losses[r];
  }
  sum = weft_warp_sum_f64(sum);
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 32; w++) {
      sum += sums[w];
    }
    const double mean = sum / (double)rows;
    if (own != nullptr) {
      *own = mean;
    }
    *loss += weight * mean;
  }
}
