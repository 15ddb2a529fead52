/* Attention of gpt_attention.cu with Hopper's matrix instructions (wgmma), for heads of 64 channels
 * and multiples of 64 tokens: the same arguments, the same results but for the order of sums, and
 * as little by atomics. Compiled for sm_90a; for other targets the kernels are there and do
 * nothing, and the trainer does not launch them (cuda_passes.c).
 *
 * A warpgroup, four warps, owns 64 rows, and a block of one or two goes along tiles of 64 rows of
 * the other side. A row of 64 bf16 numbers has 128 bytes, and the tiles of gpt_attention.cu, whose
 * pieces of 16 bytes are permuted, are just what wgmma calls K-major with a swizzle of 128 bytes,
 * provided that they begin at multiples of 1,024 bytes; read the other way they are MN-major.
 * Results are in registers as mma.m16n8k16 has them for a warp's 16 rows, and so are left operands
 * that were just computed. The block's own rows are left operands in shared memory: ptxas 13.0
 * gives the registers of a left operand away after its product, even if a loop uses it again.
 *
 * Tiles are in two pairs of buffers: while one is computed with, the next is on its way. A pair is
 * filled again only after a barrier that every warpgroup passes when its products with it have
 * completed. */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(WEFT_EMULATED)

/* ---- Products of warpgroups ---- */

/* Shared memory at `at`, of tiles with 128 bytes a row: groups of eight rows are 1,024 bytes apart,
 * swizzle of 128 bytes. */
static __device__ __forceinline__ weft_u64 weft_wide_tile(const uint4 *at) {
  const weft_u64 address = (weft_u64)__cvta_generic_to_shared(at);
  return (address & 0x3ffff) >> 4 | (weft_u64)1 << 16 | (weft_u64)(1024 >> 4) << 32 |
         (weft_u64)1 << 62;
}

#ifndef WEFT_EMULATED

/* Registers that products use are written before it, or not until they have completed. */
static __device__ __forceinline__ void weft_wide_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void weft_wide_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define WEFT_WIDE_ROW(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define WEFT_WIDE_SUMS(c)                                                              \
  WEFT_WIDE_ROW(c, 0), WEFT_WIDE_ROW(c, 1), WEFT_WIDE_ROW(c, 2), WEFT_WIDE_ROW(c, 3),   \
      WEFT_WIDE_ROW(c, 4), WEFT_WIDE_ROW(c, 5), WEFT_WIDE_ROW(c, 6), WEFT_WIDE_ROW(c, 7)

/* Waits until at most PENDING committed groups run; `c` is what the others have left. */
template <int PENDING>
static __device__ __forceinline__ void weft_wide_wait(float (&c)[8][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : WEFT_WIDE_SUMS(c) : "n"(PENDING) : "memory");
}

#define WEFT_WIDE_REGISTERS                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "          \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

/* Starts c[64, 64] = left[64, 16] right, + c if it `adds`. Both operands are 64 rows of 16 numbers,
 * the right one transposed. */
static __device__ __forceinline__ void weft_wide_product(float (&c)[8][4], weft_u64 left,
                                                         weft_u64 right, int adds) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.b32 adds, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WEFT_WIDE_REGISTERS
      "%32, %33, adds, 1, 1, 0, 0;\n"
      "}"
      : WEFT_WIDE_SUMS(c)
      : "l"(left), "l"(right), "r"(adds));
}

/* Starts c[64, 64] += left[64, 16] right. The right operand is 16 rows of 64 numbers. */
static __device__ __forceinline__ void weft_wide_product(float (&c)[8][4],
                                                         const weft_fragment &left,
                                                         weft_u64 right) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WEFT_WIDE_REGISTERS
               "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
               : WEFT_WIDE_SUMS(c)
               : "r"(left.x[0]), "r"(left.x[1]), "r"(left.x[2]), "r"(left.x[3]), "l"(right));
}

/* The copies that this thread has started are done, and products may read them after a barrier. */
static __device__ __forceinline__ void weft_wide_arrived() {
  weft_copies_wait<0>();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif

/* Starts s[64, 64] = left tile^T. */
static __device__ __forceinline__ void weft_wide_scores(float (&s)[8][4], weft_u64 left,
                                                        weft_u64 tile) {
#pragma unroll
  for (int k = 0; k < 4; k++) { /* 16 numbers of a row have 32 bytes */
    weft_wide_product(s, left + k * (32 >> 4), tile + k * (32 >> 4), k > 0);
  }
  weft_wide_commit();
}

/* Starts sum[64, 64] += p tile. */
static __device__ __forceinline__ void weft_wide_mix(float (&sum)[8][4], const weft_fragment *p,
                                                     weft_u64 tile) {
#pragma unroll
  for (int k = 0; k < 4; k++) { /* 16 rows have 2,048 bytes */
    weft_wide_product(sum, p[k], tile + k * (2048 >> 4));
  }
  weft_wide_commit();
}

/* 64 columns of a warp's 16 rows in bf16, as the left operand. */
static __device__ __forceinline__ void weft_wide_pack(weft_fragment *to, const float (&p)[8][4]) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
    to[k].x[0] = weft_pack(p[2 * k][0], p[2 * k][1]);
    to[k].x[1] = weft_pack(p[2 * k][2], p[2 * k][3]);
    to[k].x[2] = weft_pack(p[2 * k + 1][0], p[2 * k + 1][1]);
    to[k].x[3] = weft_pack(p[2 * k + 1][2], p[2 * k + 1][3]);
  }
}

/* ---- Tiles ---- */

enum { WEFT_WIDE_ROWS = 64, WEFT_WIDE_TILE = 64 * 64 / 8 /* uint4s */ };

/* weft_tile_load for a block of GROUPS warpgroups, without a branch: TILES tiles. */
template <int GROUPS, int TILES>
static __device__ __forceinline__ void weft_wide_load(uint4 *to, const weft_bf16 *from, int stride,
                                                      int count) {
  constexpr int each = 16 * GROUPS; /* rows at once; a row has eight pieces */
  const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
  uint4 *const own = to + weft_tile_at<64>(row, piece); /* rows 16 k later are permuted alike */
  from += row * stride + piece * 8;
#pragma unroll
  for (int k = 0; k < TILES * WEFT_WIDE_ROWS / each; k++) {
    const bool inside = row + each * k < count;
    weft_copy_piece(own + 8 * each * k, inside ? from + each * k * stride : from, inside);
  }
}

/* The tiles along which a block goes, in two pairs of buffers. */
template <int GROUPS>
struct weft_wide_tiles {
  uint4 *buffers; /* [2][2][tile] */
  const weft_bf16 *z1, *z2;
  int stride1, stride2;

  __device__ __forceinline__ void load(int tile, int where) const {
    uint4 *to = buffers + 2 * where * WEFT_WIDE_TILE;
    weft_wide_load<GROUPS, 1>(to, z1 + tile * WEFT_WIDE_ROWS * stride1, stride1, WEFT_WIDE_ROWS);
    weft_wide_load<GROUPS, 1>(to + WEFT_WIDE_TILE, z2 + tile * WEFT_WIDE_ROWS * stride2, stride2,
                              WEFT_WIDE_ROWS);
    weft_copies_commit();
  }
  __device__ __forceinline__ weft_u64 first(int where) const {
    return weft_wide_tile(buffers + 2 * where * WEFT_WIDE_TILE);
  }
  __device__ __forceinline__ weft_u64 second(int where) const {
    return weft_wide_tile(buffers + (2 * where + 1) * WEFT_WIDE_TILE);
  }
};

/* ---- Forward ---- */

/* As weft_softmax, but `most` is the largest score of some tile before, or of this one if it is
 * more than 2^8 times as large: sums then rarely shrink, and are in the range of fp32 all the
 * same. What is divided by in the end is the sum relative to the same `most`. */
static __device__ __forceinline__ void weft_wide_softmax(float (&s)[8][4], float (&sum)[8][4],
                                                         float *most, float *total) {
  constexpr float scale = weft_attention_size<64>::scale * WEFT_LOG2E;
  float larger[2] = {most[0], most[1]};
#pragma unroll
  for (int n = 0; n < 8; n++) {
    larger[0] = fmaxf(larger[0], fmaxf(s[n][0], s[n][1]));
    larger[1] = fmaxf(larger[1], fmaxf(s[n][2], s[n][3]));
  }
  larger[0] = weft_quad_max(larger[0]); /* finite: column 0 is in the first tile */
  larger[1] = weft_quad_max(larger[1]);
  const bool grows0 = (larger[0] - most[0]) * scale > 8, grows1 = (larger[1] - most[1]) * scale > 8;
  if (__any_sync(~0u, grows0 || grows1)) {
    const float fade0 = grows0 ? weft_exp2((most[0] - larger[0]) * scale) : 1;
    const float fade1 = grows1 ? weft_exp2((most[1] - larger[1]) * scale) : 1;
    most[0] = grows0 ? larger[0] : most[0];
    most[1] = grows1 ? larger[1] : most[1];
    total[0] *= fade0;
    total[1] *= fade1;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      sum[n][0] *= fade0;
      sum[n][1] *= fade0;
      sum[n][2] *= fade1;
      sum[n][3] *= fade1;
    }
  }
  const float offset[2] = {-most[0] * scale, -most[1] * scale};
#pragma unroll
  for (int n = 0; n < 8; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      s[n][e] = weft_exp2(fmaf(s[n][e], scale, offset[e / 2]));
      total[e / 2] += s[n][e];
    }
  }
}

template <int GROUPS>
static __device__ __forceinline__ void weft_wide_forward(weft_bf16 *y, float *log_sums,
                                                         const weft_bf16 *qkv, int tokens,
                                                         int heads) {
  constexpr int D = 64;
  constexpr float scale = weft_attention_size<D>::scale * WEFT_LOG2E;
  __shared__ __align__(1024) uint4 buffers[4 * WEFT_WIDE_TILE], queries[GROUPS * WEFT_WIDE_TILE];
  const unsigned index = weft_head_index();
  const int head = index % heads, sequence = index / heads, stride = 3 * heads * D;
  const weft_bf16 *q = qkv + (weft_u64)sequence * tokens * stride + head * D;
  const weft_wide_tiles<GROUPS> along = {buffers, q + heads * D, q + 2 * heads * D, stride, stride};
  const int part = (int)gridDim.x - 1 - (int)blockIdx.x, group = threadIdx.x / 128;
  const int own = part * GROUPS + group; /* the group's tile of queries, and its last of keys */
  const int first = part * GROUPS * WEFT_WIDE_ROWS, all = tokens / WEFT_WIDE_ROWS;
  const int end = (part + 1) * GROUPS < all ? (part + 1) * GROUPS : all;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = first + 16 * warp;

  weft_wide_load<GROUPS, GROUPS>(queries, q + first * stride, stride, tokens - first);
  along.load(0, 0);
  weft_wide_arrived();
  const weft_u64 left = weft_wide_tile(queries + group * WEFT_WIDE_TILE);

  weft_fragment p[4];
  float sum[8][4] = {}, s[8][4], most[2] = {-INFINITY, -INFINITY}, total[2] = {};
  int tile = 0;
  for (; tile <= own && tile < end; tile++) {
    __syncthreads();
    if (tile + 1 < end) {
      along.load(tile + 1, (tile + 1) % 2);
    }
    weft_wide_fence();
    weft_wide_scores(s, left, along.first(tile % 2));
    weft_wide_wait<0>(s);
    if (tile == own) {
      weft_mask<64>(s, row, tile * WEFT_WIDE_ROWS);
    }
    weft_wide_softmax(s, sum, most, total);
    weft_wide_pack(p, s);
    weft_wide_fence();
    weft_wide_mix(sum, p, along.second(tile % 2));
    weft_wide_wait<0>(sum);
    weft_wide_arrived();
  }
  for (; tile < end; tile++) { /* the other group's */
    __syncthreads();
    if (tile + 1 < end) {
      along.load(tile + 1, (tile + 1) % 2);
    }
    weft_wide_arrived();
  }
  total[0] = weft_quad_sum(total[0]);
  total[1] = weft_quad_sum(total[1]);
  weft_store_rows<D>(y + (weft_u64)sequence * tokens * heads * D + head * D, heads * D, sum, row,
                     tokens, 1 / total[0], 1 / total[1]);
  float *sums = log_sums + (weft_u64)index * tokens;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (t == 0 && row + g + 8 * h < tokens) {
      sums[row + g + 8 * h] = (most[h] * scale + log2f(total[h])) / WEFT_LOG2E;
    }
  }
}

/* ---- Backward ---- */

/* See weft_attention_backward. */
template <int GROUPS, bool KEYS>
static __device__ __forceinline__ void weft_wide_backward(
    weft_bf16 *dqkv, const weft_bf16 *qkv, const weft_bf16 *dy, const float *log_sums,
    const float *products, int tokens, int heads) {
  constexpr int D = 64;
  constexpr float scale = weft_attention_size<D>::scale;
  __shared__ __align__(1024) uint4 buffers[4 * WEFT_WIDE_TILE];
  __shared__ __align__(1024) uint4 x1_tile[GROUPS * WEFT_WIDE_TILE], x2_tile[GROUPS * WEFT_WIDE_TILE];
  const unsigned index = weft_head_index();
  const int head = index % heads, sequence = index / heads;
  const int stride = 3 * heads * D, out_stride = heads * D;
  const weft_u64 offset = (weft_u64)sequence * tokens * stride + head * D;
  const weft_bf16 *q = qkv + offset, *k = q + heads * D, *v = k + heads * D;
  const weft_bf16 *out = dy + (weft_u64)sequence * tokens * out_stride + head * D;
  log_sums += (weft_u64)index * tokens;
  products += (weft_u64)index * tokens;
  const weft_bf16 *x1 = KEYS ? k : q, *x2 = KEYS ? v : out;
  const int x2_stride = KEYS ? stride : out_stride;
  const weft_wide_tiles<GROUPS> along = {buffers, KEYS ? q : k, KEYS ? out : v, stride,
                                         KEYS ? out_stride : stride};
  const int part = KEYS ? (int)blockIdx.x : (int)gridDim.x - 1 - (int)blockIdx.x;
  const int group = threadIdx.x / 128, own = part * GROUPS + group;
  const int first = part * GROUPS * WEFT_WIDE_ROWS, all = tokens / WEFT_WIDE_ROWS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = first + 16 * warp;

  /* The block's tiles, and the group's among them: up to its own, or from its own on. */
  const int begin = KEYS ? part * GROUPS : 0;
  const int end = KEYS || (part + 1) * GROUPS > all ? all : (part + 1) * GROUPS;
  const int own_begin = KEYS ? (own < end ? own : end) : 0;
  const int own_end = KEYS ? end : (own + 1 < end ? own + 1 : end);

  weft_wide_load<GROUPS, GROUPS>(x1_tile, x1 + first * stride, stride, tokens - first);
  weft_wide_load<GROUPS, GROUPS>(x2_tile, x2 + first * x2_stride, x2_stride, tokens - first);
  along.load(begin, begin % 2);
  weft_wide_arrived();
  const weft_u64 left1 = weft_wide_tile(x1_tile + group * WEFT_WIDE_TILE);
  const weft_u64 left2 = weft_wide_tile(x2_tile + group * WEFT_WIDE_TILE);
  weft_fragment packed_p[4], packed_ds[4];
  float row_sum[2], row_product[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int r = row + g + 8 * h;
    row_sum[h] = !KEYS && r < tokens ? log_sums[r] * WEFT_LOG2E : 0;
    row_product[h] = !KEYS && r < tokens ? products[r] : 0;
  }

  float sum1[8][4] = {}, sum2[8][4] = {}, p[8][4], dp[8][4];
  int tile = begin;
  auto arrive_and_go_on = [&]() { /* the barrier, and the next tile's copies */
    __syncthreads();
    if (tile + 1 < end) {
      along.load(tile + 1, (tile + 1) % 2);
    }
  };
  for (; tile < own_begin; tile++) { /* the other group's */
    arrive_and_go_on();
    weft_wide_arrived();
  }
  for (; tile < own_end; tile++) {
    arrive_and_go_on();
    const weft_u64 z1 = along.first(tile % 2), z2 = along.second(tile % 2);
    weft_wide_fence();
    weft_wide_scores(p, left1, z1);
    weft_wide_scores(dp, left2, z2);
    float2 column_sums[8], column_products[8];
    if (KEYS) {
#pragma unroll
      for (int n = 0; n < 8; n++) {
        const int column = tile * WEFT_WIDE_ROWS + 8 * n + 2 * t;
        column_sums[n] = *(const float2 *)(log_sums + column);
      }
    }
    weft_wide_wait<1>(p);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float log_sum =
            KEYS ? (e % 2 == 0 ? column_sums[n].x : column_sums[n].y) * WEFT_LOG2E : row_sum[e / 2];
        p[n][e] = weft_exp2(fmaf(p[n][e], scale * WEFT_LOG2E, -log_sum));
      }
    }
    if (tile == own) { /* pairs of a later key are not seen */
#pragma unroll
      for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int r = 16 * (warp % 4) + g + e / 2 * 8, column = 8 * n + 2 * t + e % 2;
          p[n][e] = (KEYS ? r <= column : column <= r) ? p[n][e] : 0;
        }
      }
    }
    if (KEYS) {
      weft_wide_pack(packed_p, p);
      weft_wide_fence();
      weft_wide_mix(sum2, packed_p, z2);
#pragma unroll
      for (int n = 0; n < 8; n++) {
        column_products[n] =
            *(const float2 *)(products + tile * WEFT_WIDE_ROWS + 8 * n + 2 * t);
      }
      weft_wide_wait<1>(dp);
    } else {
      weft_wide_wait<0>(dp);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float product =
            KEYS ? (e % 2 == 0 ? column_products[n].x : column_products[n].y) : row_product[e / 2];
        dp[n][e] = p[n][e] * (dp[n][e] - product);
      }
    }
    weft_wide_pack(packed_ds, dp);
    weft_wide_fence();
    weft_wide_mix(sum1, packed_ds, z1);
    weft_wide_wait<0>(sum1);
    if (KEYS) {
      weft_wide_wait<0>(sum2);
    }
    weft_wide_arrived();
  }
  for (; tile < end; tile++) {
    arrive_and_go_on();
    weft_wide_arrived();
  }
  weft_bf16 *to = dqkv + offset;
  weft_store_rows<D>(KEYS ? to + heads * D : to, stride, sum1, row, tokens, scale, scale);
  if (KEYS) {
    weft_store_rows<D>(to + 2 * heads * D, stride, sum2, row, tokens, 1, 1);
  }
}

#define WEFT_WIDE(...) __VA_ARGS__
#else
#define WEFT_WIDE(...)
#endif

/* Warpgroups of a block, and blocks of a multiprocessor that registers allow. */
#define WEFT_WIDE_ATTENTION(name, FORWARD, FORWARD_BLOCKS, QUERIES, QUERIES_BLOCKS, KEYS,         \
                            KEYS_BLOCKS)                                                          \
  extern "C" __global__ void __launch_bounds__(128 * FORWARD, FORWARD_BLOCKS)                     \
      weft_gpt_attention_forward_##name(weft_bf16 *y, float *log_sums, const weft_bf16 *qkv,      \
                                        weft_u64 sequences, weft_u64 tokens, weft_u64 heads) {    \
    WEFT_WIDE(weft_wide_forward<FORWARD>(y, log_sums, qkv, (int)tokens, (int)heads);)             \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(128 * QUERIES, QUERIES_BLOCKS)                     \
      weft_gpt_attention_backward_queries_##name(                                                 \
          weft_bf16 *dqkv, const weft_bf16 *qkv, const weft_bf16 *dy, const float *log_sums,      \
          const float *products, weft_u64 sequences, weft_u64 tokens, weft_u64 heads) {           \
    WEFT_WIDE(weft_wide_backward<QUERIES, false>(dqkv, qkv, dy, log_sums, products, (int)tokens,  \
                                                 (int)heads);)                                    \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(128 * KEYS, KEYS_BLOCKS)                           \
      weft_gpt_attention_backward_keys_##name(                                                    \
          weft_bf16 *dqkv, const weft_bf16 *qkv, const weft_bf16 *dy, const float *log_sums,      \
          const float *products, weft_u64 sequences, weft_u64 tokens, weft_u64 heads) {           \
    WEFT_WIDE(weft_wide_backward<KEYS, true>(dqkv, qkv, dy, log_sums, products, (int)tokens,      \
                                             (int)heads);)                                        \
  }

WEFT_WIDE_ATTENTION(hopper, 2, 2, 1, 4, 1, 2)
