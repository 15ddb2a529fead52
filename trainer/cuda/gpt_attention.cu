/* Causal self-attention on tensor cores, forward and backward, without the matrix of scores in
 * memory. It follows FlashAttention-2 (Dao, 2023, algorithms 1 and 2), but for one thing: the
 * gradients of queries and of keys and values are two kernels, so that nothing is added by
 * atomics and results have the same bits in every run.
 *
 * Letters: B sequences, T tokens, H heads, D channels of a head, C = H D. q, k and v lie side by
 * side in a row of qkv [B T, 3 C]. Products take bf16 and sum in fp32.
 *
 * A warp owns 16 rows of a tile: their numbers are in the registers of its lanes as mma.m16n8k16
 * has them. Lane 4 g + t has, of 16 x 8 results, columns 2 t and 2 t + 1 of rows g and g + 8. */

/* ---- Instructions ---- */

struct weft_fragment {
  unsigned x[4];
};

#ifndef WEFT_EMULATED

/* Starts the copy of 16 bytes, or of as many zeros. */
static __device__ __forceinline__ void weft_copy_piece(uint4 *to, const weft_bf16 *from,
                                                       bool inside) {
  const unsigned address = (unsigned)__cvta_generic_to_shared(to);
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
               "r"(bytes));
}
static __device__ __forceinline__ void weft_copies_commit() {
  asm volatile("cp.async.commit_group;");
}
template <int PENDING>
static __device__ __forceinline__ void weft_copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

static __device__ __forceinline__ weft_fragment weft_load_matrices(const uint4 *at) {
  weft_fragment f;
  const unsigned address = (unsigned)__cvta_generic_to_shared(at);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
               : "r"(address));
  return f;
}

static __device__ __forceinline__ weft_fragment weft_load_transposed(const uint4 *at) {
  weft_fragment f;
  const unsigned address = (unsigned)__cvta_generic_to_shared(at);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
               : "r"(address));
  return f;
}

static __device__ __forceinline__ void weft_mma(float *c, const weft_fragment &a, unsigned b0,
                                                unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b0), "r"(b1));
}

#endif

/* ---- Tiles in shared memory ---- */

/* Rows of D numbers, in pieces of 16 bytes. The pieces of a row are permuted, so that eight rows
 * of the same column lie in different banks. */
template <int D>
static __device__ __forceinline__ int weft_tile_at(int row, int piece) {
  constexpr int pieces = D / 8, rows = pieces >= 8 ? 1 : 8 / pieces;
  constexpr int mask = (pieces >= 8 ? 8 : pieces) - 1;
  return row * pieces + (piece ^ ((row / rows) & mask));
}

/* Starts the copy of `rows` rows of a tile; rows after `count` are 0. */
template <int D, int THREADS>
static __device__ __forceinline__ void weft_tile_load(uint4 *tile, const weft_bf16 *from,
                                                      int stride, int rows, int count) {
  constexpr int pieces = D / 8;
  for (int k = threadIdx.x; k < rows * pieces; k += THREADS) {
    const int row = k / pieces, piece = k % pieces;
    weft_copy_piece(tile + weft_tile_at<D>(row, piece),
                    from + (row < count ? row : 0) * stride + piece * 8, row < count);
  }
}

/* The left operand: rows row ... row + 15, columns 16 k ... 16 k + 15. */
template <int D>
static __device__ __forceinline__ weft_fragment weft_left(const uint4 *tile, int row, int k) {
  const int lane = threadIdx.x % 32;
  return weft_load_matrices(tile + weft_tile_at<D>(row + lane % 16, 2 * k + lane / 16));
}
/* Those of M times 16 rows of a warp. */
template <int D, int M>
static __device__ __forceinline__ void weft_left_rows(weft_fragment (*left)[D / 16],
                                                      const uint4 *tile, int row) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
      left[m][n] = weft_left<D>(tile, row + 16 * m, n);
    }
  }
}
/* The right operand of X tile^T: 16 rows of the tile are 16 columns of the result. x[0], x[1] are
 * for the first eight of them, x[2], x[3] for the others. */
template <int D>
static __device__ __forceinline__ weft_fragment weft_right_transposed(const uint4 *tile, int row,
                                                                      int k) {
  const int lane = threadIdx.x % 32;
  return weft_load_matrices(
      tile + weft_tile_at<D>(row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}
/* The right operand of X tile: rows row ... row + 15, columns 16 n ... 16 n + 15; likewise. */
template <int D>
static __device__ __forceinline__ weft_fragment weft_right(const uint4 *tile, int row, int n) {
  const int lane = threadIdx.x % 32;
  return weft_load_transposed(
      tile + weft_tile_at<D>(row + lane % 8 + lane / 8 % 2 * 8, 2 * n + lane / 16));
}

/* s[16 M, N] = left tile^T, N rows of the tile from `row` on. */
template <int D, int M, int N>
static __device__ __forceinline__ void weft_scores(float (*s)[N / 8][4],
                                                   const weft_fragment (*left)[D / 16],
                                                   const uint4 *tile, int row) {
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
      s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < D / 16; k++) {
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
      const weft_fragment b = weft_right_transposed<D>(tile, row + 16 * n, k);
#pragma unroll
      for (int m = 0; m < M; m++) {
        weft_mma(s[m][2 * n], left[m][k], b.x[0], b.x[1]);
        weft_mma(s[m][2 * n + 1], left[m][k], b.x[2], b.x[3]);
      }
    }
  }
}

/* sum[16 M, D] += p[16 M, N] tile, p in bf16, N rows of the tile from `row` on. */
template <int D, int M, int N>
static __device__ __forceinline__ void weft_mix(float (*sum)[D / 8][4], const float (*p)[N / 8][4],
                                                const uint4 *tile, int row) {
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    weft_fragment a[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
      a[m].x[0] = weft_pack(p[m][2 * k][0], p[m][2 * k][1]);
      a[m].x[1] = weft_pack(p[m][2 * k][2], p[m][2 * k][3]);
      a[m].x[2] = weft_pack(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
      a[m].x[3] = weft_pack(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
      const weft_fragment b = weft_right<D>(tile, row + 16 * k, n);
#pragma unroll
      for (int m = 0; m < M; m++) {
        weft_mma(sum[m][2 * n], a[m], b.x[0], b.x[1]);
        weft_mma(sum[m][2 * n + 1], a[m], b.x[2], b.x[3]);
      }
    }
  }
}

/* Writes 16 rows of D numbers times a factor for each of the lane's two rows. */
template <int D>
static __device__ __forceinline__ void weft_store_rows(weft_bf16 *to, int stride,
                                                       const float (*x)[4], int row, int count,
                                                       float factor0, float factor1) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < D / 8; n++) {
    if (row + g < count) {
      *(unsigned *)(to + (row + g) * stride + n * 8 + 2 * t) =
          weft_pack(x[n][0] * factor0, x[n][1] * factor0);
    }
    if (row + g + 8 < count) {
      *(unsigned *)(to + (row + g + 8) * stride + n * 8 + 2 * t) =
          weft_pack(x[n][2] * factor1, x[n][3] * factor1);
    }
  }
}

static __device__ __forceinline__ float weft_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
static __device__ __forceinline__ float weft_quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/* The block's sequence and head as one number, (B, H). Blocks are parts of the rows, x H, x B: y and
 * z count to 65,535 each, and together to what a microbatch has. (Head and sequence right out of y
 * and z have ptxas 13.0 spill registers.) */
static __device__ __forceinline__ unsigned weft_head_index() {
  return blockIdx.z * gridDim.y + blockIdx.y;
}

/* A warp has `tiles` times 16 rows, so that what it reads of shared memory serves several products.
 * A block has as many rows as two tiles that it goes along; shared memory of a block has 48 KiB. */
template <int D>
struct weft_attention_size {
  static constexpr int tiles = D <= 64 ? 2 : 1, warps = 4, threads = 32 * warps;
  static constexpr int rows = 16 * tiles * warps, along = rows / 2;
  static constexpr float scale = D == 16   ? 0.25f
                                 : D == 32 ? 0.1767766953f
                                 : D == 64 ? 0.125f
                                           : 0.0883883476f; /* 1 / sqrt(D) */
};

#define WEFT_LOG2E 1.4426950408889634f

/* ---- Forward ---- */

/* Scores of columns after their row become -INFINITY: 16 rows from `row` on, N columns from `begin`
 * on. */
template <int N>
static __device__ __forceinline__ void weft_mask(float (*s)[4], int row, int begin) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < N / 8; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int column = begin + 8 * n + 2 * t + e % 2;
      s[n][e] = column <= row + g + e / 2 * 8 ? s[n][e] : -INFINITY;
    }
  }
}

/* The next N columns of 16 rows: scores become exponentials. Of rows g and g + 8, `most` is the
 * largest score so far, `total` the sum of exponentials; it and `sum` shrink when `most` grows. */
template <int D, int N>
static __device__ __forceinline__ void weft_softmax(float (*s)[4], float (*sum)[4], float *most,
                                                    float *total) {
  constexpr float scale = weft_attention_size<D>::scale * WEFT_LOG2E;
  float larger[2] = {most[0], most[1]}, fade[2];
#pragma unroll
  for (int n = 0; n < N / 8; n++) {
    larger[0] = fmaxf(larger[0], fmaxf(s[n][0], s[n][1]));
    larger[1] = fmaxf(larger[1], fmaxf(s[n][2], s[n][3]));
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    larger[h] = weft_quad_max(larger[h]); /* finite: column 0 is in the first tile */
    fade[h] = weft_exp2((most[h] - larger[h]) * scale);
    most[h] = larger[h];
    total[h] *= fade[h];
  }
#pragma unroll
  for (int n = 0; n < D / 8; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      sum[n][e] *= fade[e / 2];
    }
  }
#pragma unroll
  for (int n = 0; n < N / 8; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      s[n][e] = weft_exp2(fmaf(s[n][e], scale, -most[e / 2] * scale));
      total[e / 2] += s[n][e];
    }
  }
}

/* y [B T, C]; log_sums [B, H, T]: the logarithm of the sum of exponentials of each row of
 * scores. Blocks: tiles of rows from the last, which takes longest, x H x B. */
template <int D>
static __device__ __forceinline__ void weft_attention_forward(weft_bf16 *y, float *log_sums,
                                                              const weft_bf16 *qkv, int tokens,
                                                              int heads) {
  using size = weft_attention_size<D>;
  constexpr int N = size::along;
  __shared__ uint4 q_tile[size::rows * D / 8];
  __shared__ uint4 k_tile[2][N * D / 8], v_tile[2][N * D / 8];
  constexpr int M = size::tiles;
  const unsigned index = weft_head_index();
  const int head = index % heads, sequence = index / heads;
  const int stride = 3 * heads * D; /* a sequence has less than 2^31 numbers */
  const weft_bf16 *q = qkv + (weft_u64)sequence * tokens * stride + head * D;
  const weft_bf16 *k = q + heads * D, *v = k + heads * D;
  const int first = ((int)gridDim.x - 1 - (int)blockIdx.x) * size::rows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row = first + 16 * M * warp; /* the warp's first */
  constexpr float scale = size::scale * WEFT_LOG2E;

  const int end = first + size::rows < tokens ? first + size::rows : tokens;
  const int tiles = (end + N - 1) / N;
  weft_tile_load<D, size::threads>(q_tile, q + first * stride, stride, size::rows, tokens - first);
  weft_tile_load<D, size::threads>(k_tile[0], k, stride, N, tokens);
  weft_tile_load<D, size::threads>(v_tile[0], v, stride, N, tokens);
  weft_copies_commit();
  weft_copies_wait<0>();
  __syncthreads();
  weft_fragment left[M][D / 16];
  weft_left_rows<D, M>(left, q_tile, 16 * M * warp);

  float sum[M][D / 8][4] = {}, most[M][2], total[M][2] = {};
#pragma unroll
  for (int m = 0; m < M; m++) {
    most[m][0] = most[m][1] = -INFINITY;
  }
  for (int tile = 0; tile < tiles; tile++) {
    const int now = tile % 2, begin = tile * N;
    if (tile + 1 < tiles) {
      const int next = begin + N;
      weft_tile_load<D, size::threads>(k_tile[1 - now], k + next * stride, stride, N,
                                       tokens - next);
      weft_tile_load<D, size::threads>(v_tile[1 - now], v + next * stride, stride, N,
                                       tokens - next);
      weft_copies_commit();
    }
    if (begin <= row + 16 * M - 1) { /* else all of it is later than the warp's rows */
      float s[M][N / 8][4];
      weft_scores<D, M, N>(s, left, k_tile[now], 0);
#pragma unroll
      for (int m = 0; m < M; m++) {
        if (begin + N - 1 > row + 16 * m) {
          weft_mask<N>(s[m], row + 16 * m, begin);
        }
        weft_softmax<D, N>(s[m], sum[m], most[m], total[m]);
      }
      weft_mix<D, M, N>(sum, s, v_tile[now], 0);
    }
    weft_copies_wait<0>();
    __syncthreads();
  }
  float *sums = log_sums + (weft_u64)index * tokens;
#pragma unroll
  for (int m = 0; m < M; m++) {
    const int r = row + 16 * m;
    total[m][0] = weft_quad_sum(total[m][0]);
    total[m][1] = weft_quad_sum(total[m][1]);
    weft_store_rows<D>(y + (weft_u64)sequence * tokens * heads * D + head * D, heads * D,
                       sum[m], r, tokens, 1 / total[m][0], 1 / total[m][1]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (t == 0 && r + g + 8 * h < tokens) {
        sums[r + g + 8 * h] = (most[m][h] * scale + log2f(total[m][h])) / WEFT_LOG2E;
      }
    }
  }
}

/* ---- Backward ---- */

/* products[B, H, T] = the sum over a head's channels of y dy. Eight channels per thread; the
 * threads of a head, 2 to 16 of them, add up. */
WEFT_GLOBAL(attention_products, (float *products, const weft_bf16 *y, const weft_bf16 *dy,
                                 weft_u64 rows, weft_u64 tokens, weft_u64 heads,
                                 weft_u64 channels)) {
  const weft_u64 k = weft_thread() * 8;
  const int each = (int)(channels / heads / 8); /* threads of a head */
  const bool inside = k < rows * channels;
  float a[8], b[8], sum = 0;
  if (inside) {
    weft_load8(a, y + k);
    weft_load8(b, dy + k);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      sum += a[e] * b[e];
    }
  }
  for (int n = 1; n < each; n *= 2) {
    sum += __shfl_xor_sync(~0u, sum, n);
  }
  if (inside && threadIdx.x % each == 0) {
    const weft_u64 row = k / channels, head = k % channels / (channels / heads);
    products[(row / tokens * heads + head) * tokens + row % tokens] = sum;
  }
}

/* P and dS, below, of 16 rows from `row` on and S columns from `begin` on, from X1 Z1^T and dP. */
template <int D, int S, bool KEYS>
static __device__ __forceinline__ void weft_score_gradients(
    float (*p)[4], float (*dp)[4], int row, int begin, const float *row_sum,
    const float *row_product, const float *column_sums, const float *column_products) {
  constexpr float scale = weft_attention_size<D>::scale * WEFT_LOG2E;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  /* Columns beyond the last token: their rows of Z are 0, and so is what they add. */
  const bool masks = KEYS ? begin < row + 15 : begin + S - 1 > row;
#pragma unroll
  for (int n = 0; n < S / 8; n++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int at = 8 * n + 2 * t + e % 2;
      const int r = row + g + e / 2 * 8, column = begin + at;
      const bool seen = !masks || (KEYS ? r <= column : column <= r);
      const float log_sum = KEYS ? column_sums[at] : row_sum[e / 2];
      const float product = KEYS ? column_products[at] : row_product[e / 2];
      p[n][e] = seen ? exp2f(fmaf(p[n][e], scale, -log_sum)) : 0;
      dp[n][e] = p[n][e] * (dp[n][e] - product);
    }
  }
}

/* Both directions of the backward have one form. Rows X of a block, tiles of rows Z along which
 * it goes, and two pairs (X1, Z1), (X2, Z2):
 *
 *   P = exp(X1 Z1^T / sqrt(D) - log_sum),   dP = X2 Z2^T,   dS = P (dP - product)
 *   queries:  X = q, dy   Z = k, v     dq = dS k / sqrt(D)
 *   keys:     X = k, v    Z = q, dy    dk = dS q / sqrt(D),   dv = P dy
 *
 * log_sum and product belong to the query, which is the row, or the column. */
template <int D, bool KEYS>
static __device__ __forceinline__ void weft_attention_backward(
    weft_bf16 *dqkv, const weft_bf16 *qkv, const weft_bf16 *dy, const float *log_sums,
    const float *products, int tokens, int heads) {
  using size = weft_attention_size<D>;
  constexpr int M = size::tiles, N = size::along, S = KEYS || D > 64 ? 16 : 32;
  constexpr int tile_size = N * D / 8;
  __shared__ uint4 tiles[4 * tile_size]; /* of Z1, Z2: now and next; before that, of X1, X2 */
  __shared__ float column_sums[2][N], column_products[2][N];
  static_assert(2 * size::rows <= 4 * N, "X1 and X2 fit");
  const unsigned index = weft_head_index();
  const int head = index % heads, sequence = index / heads;
  const int stride = 3 * heads * D, out_stride = heads * D; /* as above */
  const weft_u64 offset = (weft_u64)sequence * tokens * stride + head * D;
  const weft_bf16 *q = qkv + offset, *k = q + heads * D, *v = k + heads * D;
  const weft_bf16 *out = dy + (weft_u64)sequence * tokens * out_stride + head * D;
  log_sums += (weft_u64)index * tokens;
  products += (weft_u64)index * tokens;

  const weft_bf16 *x1 = KEYS ? k : q, *x2 = KEYS ? v : out;
  const weft_bf16 *z1 = KEYS ? q : k, *z2 = KEYS ? out : v;
  const int x2_stride = KEYS ? stride : out_stride, z2_stride = KEYS ? out_stride : stride;
  const int part = KEYS ? (int)blockIdx.x : (int)gridDim.x - 1 - (int)blockIdx.x;
  const int first = part * size::rows;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int row = first + 16 * M * warp;
  constexpr float scale = size::scale;

  /* X1 and X2 stay in registers. */
  uint4 *x1_tile = tiles, *x2_tile = tiles + size::rows * D / 8;
  weft_tile_load<D, size::threads>(x1_tile, x1 + first * stride, stride, size::rows,
                                   tokens - first);
  weft_tile_load<D, size::threads>(x2_tile, x2 + first * x2_stride, x2_stride, size::rows,
                                   tokens - first);
  weft_copies_commit();
  weft_copies_wait<0>();
  __syncthreads();
  weft_fragment left1[M][D / 16], left2[M][D / 16];
  float row_sum[M][2], row_product[M][2];
  weft_left_rows<D, M>(left1, x1_tile, 16 * M * warp);
  weft_left_rows<D, M>(left2, x2_tile, 16 * M * warp);
#pragma unroll
  for (int m = 0; m < M; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int r = row + 16 * m + g + 8 * h;
      row_sum[m][h] = !KEYS && r < tokens ? log_sums[r] * WEFT_LOG2E : 0;
      row_product[m][h] = !KEYS && r < tokens ? products[r] : 0;
    }
  }
  __syncthreads();

  const int end = first + size::rows < tokens ? first + size::rows : tokens;
  const int tile_begin = KEYS ? first / N : 0;
  const int tile_end = ((KEYS ? tokens : end) + N - 1) / N;
  auto load = [&](int tile, int where) {
    const int begin = tile * N;
    weft_tile_load<D, size::threads>(tiles + 2 * where * tile_size, z1 + begin * stride, stride, N,
                                     tokens - begin);
    weft_tile_load<D, size::threads>(tiles + (2 * where + 1) * tile_size, z2 + begin * z2_stride,
                                     z2_stride, N, tokens - begin);
    if (KEYS && threadIdx.x < N) {
      const int column = begin + (int)threadIdx.x;
      column_sums[where][threadIdx.x] = column < tokens ? log_sums[column] * WEFT_LOG2E : 0;
      column_products[where][threadIdx.x] = column < tokens ? products[column] : 0;
    }
    weft_copies_commit();
  };
  load(tile_begin, 0);
  weft_copies_wait<0>();
  __syncthreads();

  float sum1[M][D / 8][4] = {}, sum2[KEYS ? M : 1][D / 8][4] = {};
  for (int tile = tile_begin; tile < tile_end; tile++) {
    const int now = (tile - tile_begin) % 2;
    if (tile + 1 < tile_end) {
      load(tile + 1, 1 - now);
    }
    const uint4 *z1_tile = tiles + 2 * now * tile_size, *z2_tile = z1_tile + tile_size;
#pragma unroll 1
    for (int sub = 0; sub < N; sub += S) { /* registers do not hold more columns at once */
      const int begin = tile * N + sub;
      if (KEYS ? begin + S - 1 < row : begin > row + 16 * M - 1) {
        continue; /* no pair of them is seen */
      }
      float p[M][S / 8][4], dp[M][S / 8][4];
      weft_scores<D, M, S>(p, left1, z1_tile, sub);
      weft_scores<D, M, S>(dp, left2, z2_tile, sub);
#pragma unroll
      for (int m = 0; m < M; m++) {
        weft_score_gradients<D, S, KEYS>(p[m], dp[m], row + 16 * m, begin, row_sum[m],
                                         row_product[m], column_sums[now] + sub,
                                         column_products[now] + sub);
      }
      weft_mix<D, M, S>(sum1, dp, z1_tile, sub);
      if (KEYS) {
        weft_mix<D, M, S>(sum2, p, z2_tile, sub);
      }
    }
    weft_copies_wait<0>();
    __syncthreads();
  }
  weft_bf16 *to = dqkv + offset;
#pragma unroll
  for (int m = 0; m < M; m++) {
    const int r = row + 16 * m;
    weft_store_rows<D>(KEYS ? to + heads * D : to, stride, sum1[m], r, tokens, scale, scale);
    if (KEYS) {
      weft_store_rows<D>(to + 2 * heads * D, stride, sum2[m], r, tokens, 1, 1);
    }
  }
}

#define WEFT_ATTENTION(D)                                                                         \
  extern "C" __global__ void __launch_bounds__(weft_attention_size<D>::threads)                   \
      weft_gpt_attention_forward_##D(weft_bf16 *y, float *log_sums, const weft_bf16 *qkv,         \
                                     weft_u64 sequences, weft_u64 tokens, weft_u64 heads) {       \
    weft_attention_forward<D>(y, log_sums, qkv, (int)tokens, (int)heads);                         \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(weft_attention_size<D>::threads)                   \
      weft_gpt_attention_backward_queries_##D(                                                    \
          weft_bf16 *dqkv, const weft_bf16 *qkv, const weft_bf16 *dy, const float *log_sums,      \
          const float *products, weft_u64 sequences, weft_u64 tokens, weft_u64 heads) {           \
    weft_attention_backward<D, false>(dqkv, qkv, dy, log_sums, products, (int)tokens,             \
                                      (int)heads);                                                \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(weft_attention_size<D>::threads)                   \
      weft_gpt_attention_backward_keys_##D(                                                       \
          weft_bf16 *dqkv, const weft_bf16 *qkv, const weft_bf16 *dy, const float *log_sums,      \
          const float *products, weft_u64 sequences, weft_u64 tokens, weft_u64 heads) {           \
    weft_attention_backward<D, true>(dqkv, qkv, dy, log_sums, products, (int)tokens, (int)heads); \
  }

WEFT_ATTENTION(16)
WEFT_ATTENTION(32)
WEFT_ATTENTION(64)
WEFT_ATTENTION(128)
