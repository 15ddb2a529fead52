/* The trainer's kernels but for attention and matrix products: embedding, norm, cross
 * entropy, column sums, and the optimizer. gpt_kernels.h says what each computes. Every number is
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
#ifndef WEFT_EMULATED /* a test has its own (tests/gpt/emulated_attention.cpp) */
static __device__ __forceinline__ unsigned weft_pack(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
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

/* A block of 256 threads has 32 rows. First its warps compute dx, a row after the other; then its
 * threads sum over the block's rows, for each channel: parts [blocks, 2 C]. `residual`: added to
 * dx, or NULL. */
WEFT_GLOBAL(norm_backward, (weft_bf16 *dx, float *parts, const weft_bf16 *residual,
                            const weft_bf16 *x, const weft_bf16 *weight, const float *mean,
                            const float *rstd, const weft_bf16 *dy, weft_u64 rows,
                            weft_u64 channels)) {
  constexpr int each = 32, warps = 8;
  __shared__ float means[each], rstds[each];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const weft_u64 first = blockIdx.x * (weft_u64)each;
  const int count = rows - first < each ? (int)(rows - first) : each;
  if (threadIdx.x < count) {
    means[threadIdx.x] = mean[first + threadIdx.x];
    rstds[threadIdx.x] = rstd[first + threadIdx.x];
  }
  __syncthreads();
  for (int n = warp; n < count; n += warps) {
    const weft_u64 at = (first + n) * channels;
    const float m = means[n], s = rstds[n];
    float v[8], g[8], w[8], sum = 0, dot = 0;
    for (weft_u64 c = lane * 8; c < channels; c += 256) {
      weft_load8(v, x + at + c);
      weft_load8(g, dy + at + c);
      weft_load8(w, weight + c);
#pragma unroll
      for (int e = 0; e < 8; e++) {
        sum += g[e] * w[e];
        dot += g[e] * w[e] * (v[e] - m) * s;
      }
    }
    sum = weft_warp_sum(sum) / (float)channels;
    dot = weft_warp_sum(dot) / (float)channels;
    for (weft_u64 c = lane * 8; c < channels; c += 256) {
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
  parts += blockIdx.x * 2 * channels;
  for (weft_u64 c = 2 * threadIdx.x; c < channels; c += 512) {
    float w0 = 0, w1 = 0, b0 = 0, b1 = 0;
#pragma unroll 4
    for (int n = 0; n < count; n++) {
      const weft_u64 at = (first + n) * channels + c;
      const unsigned g = *(const unsigned *)(dy + at), v = *(const unsigned *)(x + at);
      const float g0 = __uint_as_float(g << 16), g1 = __uint_as_float(g & 0xffff0000u);
      w0 += g0 * (__uint_as_float(v << 16) - means[n]) * rstds[n];
      w1 += g1 * (__uint_as_float(v & 0xffff0000u) - means[n]) * rstds[n];
      b0 += g0;
      b1 += g1;
    }
    *(float2 *)(parts + c) = make_float2(w0, w1);
    *(float2 *)(parts + channels + c) = make_float2(b0, b1);
  }
}

/* ---- Sums over rows ---- */

/* parts[b][c] = the sum over the b-th `each` rows of x[r][c]. Threads (32, 8), a thread has two
 * columns; blocks (columns / 64, parts). */
WEFT_GLOBAL(column_parts, (float *parts, const weft_bf16 *x, weft_u64 rows, weft_u64 columns,
                           weft_u64 each)) {
  __shared__ float2 sums[8][32];
  const weft_u64 c = (blockIdx.x * 32 + threadIdx.x) * 2;
  const weft_u64 begin = blockIdx.y * each;
  const weft_u64 end = begin + each < rows ? begin + each : rows;
  float2 sum = make_float2(0, 0);
  if (c < columns) {
#pragma unroll 4
    for (weft_u64 r = begin + threadIdx.y; r < end; r += 8) {
      const unsigned v = *(const unsigned *)(x + r * columns + c);
      sum.x += __uint_as_float(v << 16);
      sum.y += __uint_as_float(v & 0xffff0000u);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && c < columns) {
    for (int k = 1; k < 8; k++) {
      sum.x += sums[k][threadIdx.x].x;
      sum.y += sums[k][threadIdx.x].y;
    }
    *(float2 *)(parts + blockIdx.y * columns + c) = sum;
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

/* A block of 1024 threads per row of logits [R, V], which its registers hold: V is at most 65,536.
 * losses[r] = -log softmax(logits[r])[target]; unless `keeps`, logits become
 * scale * (softmax - onehot). */
extern "C" __global__ void __launch_bounds__(1024)
    weft_gpt_cross_entropy(weft_bf16 *logits, float *losses, const void *targets, weft_u64 rows,
                           weft_u64 vocabulary, double scale, weft_u64 keeps,
                           weft_u64 token_bytes) {
  constexpr int threads = 1024, held = 8;
  __shared__ float mosts[32], sums[32];
  const weft_u64 r = blockIdx.x;
  weft_bf16 *row = logits + r * vocabulary;
  const int size = (int)vocabulary, target = (int)weft_token(targets, r, token_bytes);
  const float target_logit = weft_float(row[target]);
  uint4 bits[held];
  float v[8], most = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < held; k++) {
    const int c = (k * threads + (int)threadIdx.x) * 8;
    if (c < size) {
      bits[k] = *(const uint4 *)(row + c);
    }
  }
#pragma unroll
  for (int k = 0; k < held; k++) {
    if ((k * threads + (int)threadIdx.x) * 8 < size) {
      weft_unpack8(v, bits[k]);
#pragma unroll
      for (int e = 0; e < 8; e++) {
        most = fmaxf(most, v[e]);
      }
    }
  }
  most = weft_block_reduce<true>(most, mosts);
#pragma unroll
  for (int k = 0; k < held; k++) {
    if ((k * threads + (int)threadIdx.x) * 8 < size) {
      weft_unpack8(v, bits[k]);
#pragma unroll
      for (int e = 0; e < 8; e++) {
        sum += exp2f((v[e] - most) * 1.4426950408889634f);
      }
    }
  }
  sum = weft_block_reduce<false>(sum, sums);
  if (threadIdx.x == 0) {
    losses[r] = logf(sum) + most - target_logit;
  }
  if (keeps != 0) {
    return;
  }
  const float factor = (float)scale / sum;
#pragma unroll
  for (int k = 0; k < held; k++) {
    const int c = (k * threads + (int)threadIdx.x) * 8;
    if (c < size) {
      weft_unpack8(v, bits[k]);
#pragma unroll
      for (int e = 0; e < 8; e++) {
        v[e] = exp2f((v[e] - most) * 1.4426950408889634f) * factor -
               (c + e == target ? (float)scale : 0.0f);
      }
      weft_store8(row + c, v);
    }
  }
}

/* *loss += the mean of losses; one block of 1024 threads. */
WEFT_GLOBAL(mean_loss, (double *loss, const float *losses, weft_u64 rows)) {
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
    *loss += sum / (double)rows;
  }
}

/* ---- Parameters ---- */

/* x[k] *= factor; four numbers per thread. */
WEFT_GLOBAL(scale, (float *x, double factor, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 4;
  if (k < count) {
    float4 v = *(float4 *)(x + k);
    v.x *= (float)factor;
    v.y *= (float)factor;
    v.z *= (float)factor;
    v.w *= (float)factor;
    *(float4 *)(x + k) = v;
  }
}

/* a[k] = b[k] = a[k] + b[k]. */
WEFT_GLOBAL(tie, (float *a, float *b, weft_u64 count)) {
  const weft_u64 k = weft_thread();
  if (k < count) {
    a[k] = b[k] = a[k] + b[k];
  }
}

/* c[k] = a[k] + b[k]; four numbers per thread. */
WEFT_GLOBAL(add, (float *c, const float *a, const float *b, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 4;
  if (k < count) {
    const float4 x = *(const float4 *)(a + k), y = *(const float4 *)(b + k);
    *(float4 *)(c + k) = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
  }
}

/* To bf16; eight numbers per thread. */
WEFT_GLOBAL(to_bf16, (weft_bf16 *y, const float *x, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 8;
  if (k < count) {
    float v[8];
    *(float4 *)v = *(const float4 *)(x + k);
    *(float4 *)(v + 4) = *(const float4 *)(x + k + 4);
    weft_store8(y + k, v);
  }
}

/* sums[b] = the sum of squares of the b-th of `gridDim.x` parts of x; 256 threads. */
WEFT_GLOBAL(square_sums, (double *sums, const float *x, weft_u64 count, weft_u64 parts)) {
  __shared__ double warps[8];
  const weft_u64 each = ((count + parts - 1) / parts + 3) / 4 * 4, begin = blockIdx.x * each;
  const weft_u64 end = begin + each < count ? begin + each : count;
  double sum = 0;
  for (weft_u64 k = begin + threadIdx.x; k < end; k += 256) {
    sum += (double)x[k] * (double)x[k];
  }
  sum = weft_warp_sum_f64(sum);
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 8; w++) {
      sum += warps[w];
    }
    sums[blockIdx.x] = sum;
  }
}

/* sums[b] = the sum of parts[b], `count` numbers; 256 threads for each of `sum_count`. */
WEFT_GLOBAL(sum_parts, (double *sums, const double *parts, weft_u64 count, weft_u64 sum_count)) {
  __shared__ double warps[8];
  double sum = 0;
  for (weft_u64 k = threadIdx.x; k < count; k += 256) {
    sum += parts[blockIdx.x * count + k];
  }
  sum = weft_warp_sum_f64(sum);
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0 && blockIdx.x < sum_count) {
    for (int w = 1; w < 8; w++) {
      sum += warps[w];
    }
    sums[blockIdx.x] = sum;
  }
}

/* The norm of all gradients, and the settings of AdamW with the factor that clips them. `sums`: the
 * squares of each replica's layers, [replicas][layers], then the losses, [replicas]; added up in
 * the order of layers, as the host does (step_stats.c). `step`: six settings, the norm to clip at
 * (0: none), and whether gradients that are not finite count. One block of 1024 threads. */
WEFT_GLOBAL(clip, (float *settings, double *norm, const double *sums, const double *step,
                   weft_u64 layers, weft_u64 replicas)) {
  __shared__ double some[1024];
  const weft_u64 squares = layers * replicas, count = squares + replicas;
  double sum = 0, of_layer = 0, losses = 0;
  for (weft_u64 begin = 0; begin < count; begin += 1024) {
    const weft_u64 i = begin + threadIdx.x;
    __syncthreads();
    if (i < count) {
      some[threadIdx.x] = sums[i < squares ? i % replicas * layers + i / replicas : i];
    }
    __syncthreads();
    for (weft_u64 k = begin; threadIdx.x == 0 && k < count && k < begin + 1024; k++) {
      if (k >= squares) {
        losses += some[k - begin];
        continue;
      }
      of_layer += some[k - begin];
      if ((k + 1) % replicas == 0) {
        sum += of_layer;
        of_layer = 0;
      }
    }
  }
  if (threadIdx.x < 6) {
    settings[threadIdx.x] = (float)step[threadIdx.x];
  }
  if (threadIdx.x == 0) {
    const double all = sqrt(sum), most = step[6];
    *norm = all;
    settings[6] = most > 0 && all > most ? (float)(most / (all + 1e-6)) : 1;
    settings[7] = step[7] != 0 || (all - all == 0 && losses - losses == 0) ? 1 : 0;
  }
}

/* AdamW, as the host's (weft_gpt_adamw_update), and the new weights in bf16, if wanted; four numbers per
 * thread. `settings`: 1 - rate * decay, rate / correction1, 1 / sqrt(correction2), epsilon, beta1,
 * beta2, the gradients' factor, and 0 for a step that is skipped. decays[k / 16]: whether weight
 * decay applies to 16 numbers. */
WEFT_GLOBAL(adamw, (float *w, float *m, float *v, weft_bf16 *rounded, const float *gradients,
                    const unsigned char *decays, const float *settings, weft_u64 count)) {
  const weft_u64 k = weft_thread() * 4;
  if (k >= count || settings[7] == 0) {
    return;
  }
  const float keep = decays[k / 16] != 0 ? settings[0] : 1;
  const float step = settings[1], root = settings[2], epsilon = settings[3];
  const float beta1 = settings[4], beta2 = settings[5], factor = settings[6];
  float weights[4], first[4], second[4], gradient[4];
  *(float4 *)weights = *(const float4 *)(w + k);
  *(float4 *)first = *(const float4 *)(m + k);
  *(float4 *)second = *(const float4 *)(v + k);
  *(float4 *)gradient = *(const float4 *)(gradients + k);
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const float g = gradient[e] * factor;
    first[e] += (1 - beta1) * (g - first[e]);
    second[e] = beta2 * second[e] + (1 - beta2) * (g * g);
    weights[e] = weights[e] * keep - step * first[e] / (sqrtf(second[e]) * root + epsilon);
  }
  *(float4 *)(w + k) = *(const float4 *)weights;
  *(float4 *)(m + k) = *(const float4 *)first;
  *(float4 *)(v + k) = *(const float4 *)second;
  if (rounded != 0) {
    *(uint2 *)(rounded + k) =
        make_uint2(weft_pack(weights[0], weights[1]), weft_pack(weights[2], weights[3]));
  }
}
