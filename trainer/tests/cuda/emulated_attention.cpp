/* The attention kernels of trainer/cuda, emulated (emulated_gpu.hpp), beside sums in double.
 *
 *     g++ -std=c++17 -O1 -Itrainer/cuda -o emulated_attention trainer/tests/cuda/emulated_attention.cpp */
#include "emulated_gpu.hpp"

/* ---- The kernels ---- */

WEFT_WIDE_ATTENTION(narrow, 1, 1, 2, 1, 2, 1)

struct problem {
  weft_u64 sequences, tokens, heads;
  std::vector<weft_bf16> qkv, dy, y, dqkv;
  std::vector<float> log_sums, products, own_sums;
  std::vector<double> y_true, dqkv_true;
};
static problem *given;

enum { D = 64 };

#define BLOCKS(rows)                                                                    \
  grid {                                                                                \
    (unsigned)(given->tokens + rows - 1) / rows, (unsigned)given->heads, (unsigned)given->sequences \
  }
/* Rows and threads of a block, forward and backward. */
#define RUN_VARIANT(name, rows, count, back_rows, back_count)                                   \
  static void run_##name() {                                                                    \
    launch(                                                                                     \
        [] {                                                                                    \
          weft_gpt_attention_forward_##name(given->y.data(), given->own_sums.data(),            \
                                            given->qkv.data(), given->sequences, given->tokens, \
                                            given->heads);                                      \
        },                                                                                      \
        BLOCKS(rows), count);                                                                   \
    launch([] { weft_gpt_attention_backward_queries_##name(BACKWARD_VALUES); }, \
           BLOCKS(back_rows), back_count); \
    launch([] { weft_gpt_attention_backward_keys_##name(BACKWARD_VALUES); }, \
           BLOCKS(back_rows), back_count); \
  }
#define BACKWARD_VALUES                                                                           \
  given->dqkv.data(), given->qkv.data(), given->dy.data(), given->log_sums.data(),                \
      given->products.data(), given->sequences, given->tokens, given->heads
RUN_VARIANT(64, 128, 128, 128, 128)
RUN_VARIANT(hopper, 128, 256, 64, 128)
RUN_VARIANT(narrow, 64, 128, 128, 256)

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

/* `size`: of queries; with large ones the largest score grows by much from tile to tile. */
static problem make(weft_u64 sequences, weft_u64 tokens, weft_u64 heads, float size = 1) {
  const weft_u64 numbers = sequences * tokens * heads * D, sums = sequences * tokens * heads;
  problem p = {sequences, tokens, heads, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  p.qkv = draw_many(3 * numbers), p.dy = draw_many(numbers);
  p.y.resize(numbers), p.dqkv.resize(3 * numbers);
  p.log_sums.resize(sums), p.products.resize(sums), p.own_sums.resize(sums);
  p.y_true.resize(numbers), p.dqkv_true.resize(3 * numbers);
  for (size_t k = 0; k < p.qkv.size(); k++) {
    if (k / (heads * D) % 3 == 0) {
      p.qkv[k] = (weft_bf16)to_bf16(size * to_float(p.qkv[k]));
    }
  }
  for (weft_u64 n = 0; n < sequences * heads; n++) {
    compute_head(p, n);
  }
  return p;
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
  p = make(1, 256, 1, 8);
  good = check("hopper", run_hopper, p) && good;
  p = make(2, 128, 2);
  good = check("hopper", run_hopper, p) && good;
  return good ? 0 : 1;
}
