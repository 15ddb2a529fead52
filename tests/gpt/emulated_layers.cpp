/* The kernels of norms and cross entropy of app/gpt/cuda, emulated (emulated_gpu.hpp), beside sums in
 * double.
 *
 *     g++ -std=c++17 -O1 -Iapp/gpt/cuda -o emulated_layers tests/gpt/emulated_layers.cpp */
#include "emulated_gpu.hpp"

static bool report(const char *name, unsigned rows, unsigned columns, double distance, double most) {
  const bool right = distance < most;
  printf("%-28s %4u x %5u: %.1e%s\n", name, rows, columns, distance, right ? "" : "  WRONG");
  return right;
}

/* ---- Norm ---- */

static struct {
  unsigned rows, channels;
  std::vector<weft_bf16> x, dy, residual, weight, bias, y, dx;
  std::vector<float> mean, rstd, parts;
  bool has_residual;
} norm;

static void run_norm() {
  weft_gpt_norm(norm.y.data(), norm.mean.data(), norm.rstd.data(), norm.x.data(), norm.weight.data(),
                norm.bias.data(), norm.rows, norm.channels);
}
static void run_norm_backward() {
  weft_gpt_norm_backward(norm.dx.data(), norm.parts.data(),
                         norm.has_residual ? norm.residual.data() : nullptr, norm.x.data(),
                         norm.weight.data(), norm.mean.data(), norm.rstd.data(), norm.dy.data(),
                         norm.rows, norm.channels);
}

static bool check_norm(unsigned rows, unsigned channels, bool has_residual) {
  const size_t count = (size_t)rows * channels, blocks = (rows + 31) / 32;
  norm = {rows, channels, draw_many(count), draw_many(count), draw_many(count), draw_many(channels),
          draw_many(channels), std::vector<weft_bf16>(count, 0x7fff),
          std::vector<weft_bf16>(count, 0x7fff), std::vector<float>(rows, NAN),
          std::vector<float>(rows, NAN), std::vector<float>(blocks * 2 * channels, NAN),
          has_residual};
  launch(run_norm, (rows + 7) / 8, 1, 256);
  launch(run_norm_backward, (unsigned)blocks, 1, 256);
  std::vector<double> y(count), dx(count), sums(2 * channels);
  std::vector<float> own_sums(2 * channels);
  for (unsigned r = 0; r < rows; r++) {
    double mean = 0, variance = 0, sum = 0, dot = 0;
    auto at = [&](const std::vector<weft_bf16> &a, unsigned c) {
      return number_of(a[(size_t)r * channels + c]);
    };
    for (unsigned c = 0; c < channels; c++) {
      mean += at(norm.x, c) / channels;
    }
    for (unsigned c = 0; c < channels; c++) {
      variance += pow(at(norm.x, c) - mean, 2) / channels;
    }
    const double rstd = 1 / sqrt(variance + 1e-5);
    for (unsigned c = 0; c < channels; c++) {
      const double w = number_of(norm.weight[c]), normed = (at(norm.x, c) - mean) * rstd;
      y[(size_t)r * channels + c] = normed * w + number_of(norm.bias[c]);
      sum += at(norm.dy, c) * w / channels;
      dot += at(norm.dy, c) * w * normed / channels;
      sums[c] += at(norm.dy, c) * normed;
      sums[channels + c] += at(norm.dy, c);
    }
    for (unsigned c = 0; c < channels; c++) {
      const double w = number_of(norm.weight[c]), normed = (at(norm.x, c) - mean) * rstd;
      dx[(size_t)r * channels + c] = (has_residual ? at(norm.residual, c) : 0) +
                                     rstd * (at(norm.dy, c) * w - sum - normed * dot);
    }
  }
  for (size_t k = 0; k < norm.parts.size(); k++) {
    own_sums[k % (2 * channels)] += norm.parts[k];
  }
  const bool good = report("norm", rows, channels, distance(norm.y, y), 0.003);
  const bool dx_good = report("norm_backward", rows, channels, distance(norm.dx, dx), 0.003);
  return report("norm_backward's sums", rows, channels, distance(own_sums, sums), 1e-5) && good &&
         dx_good;
}

/* ---- Column sums ---- */

static struct {
  unsigned rows, columns, each;
  std::vector<weft_bf16> x;
  std::vector<float> parts, to;
} columns;

static void run_parts() {
  weft_gpt_column_parts(columns.parts.data(), columns.x.data(), columns.rows, columns.columns,
                        columns.each);
}
static void run_add() {
  weft_gpt_add_parts(columns.to.data(), columns.parts.data(), columns.parts.size() / columns.columns,
                     columns.columns, columns.columns);
}

static bool check_columns(unsigned rows, unsigned width, unsigned each) {
  const unsigned parts = (rows + each - 1) / each;
  columns = {rows, width, each, draw_many((size_t)rows * width),
             std::vector<float>((size_t)parts * width, NAN), std::vector<float>(width, 1)};
  std::vector<double> truth(width, 1);
  for (size_t k = 0; k < columns.x.size(); k++) {
    truth[k % width] += number_of(columns.x[k]);
  }
  launch(run_parts, (width + 255) / 256, parts, 32, 8);
  launch(run_add, (width + 31) / 32, 1, 32, 32);
  return report("column sums", rows, width, distance(columns.to, truth), 1e-5);
}

/* ---- Sums of activations ---- */

static struct {
  std::vector<weft_bf16> a, b, sum;
} sums;

static void run_sum() {
  weft_gpt_add_bf16(sums.sum.data(), sums.a.data(), sums.b.data(), sums.sum.size());
}
static void run_sum_swapped() {
  weft_gpt_add_bf16(sums.sum.data(), sums.b.data(), sums.a.data(), sums.sum.size());
}

static bool check_sum(unsigned rows, unsigned channels) {
  const size_t count = (size_t)rows * channels;
  sums = {draw_many(count), draw_many(count), std::vector<weft_bf16>(count, 0x7fff)};
  std::vector<double> truth(count);
  for (size_t k = 0; k < count; k++) {
    truth[k] = number_of(sums.a[k]) + number_of(sums.b[k]);
  }
  const unsigned blocks = (unsigned)((count / 8 + 255) / 256);
  launch(run_sum, blocks, 1, 256);
  const std::vector<weft_bf16> first = sums.sum;
  launch(run_sum_swapped, blocks, 1, 256);
  return report("add_bf16", rows, channels, distance(first, truth), 0.003) && first == sums.sum;
}

/* ---- Cross entropy ---- */

static struct {
  unsigned rows, vocabulary;
  std::vector<weft_bf16> logits;
  std::vector<float> losses;
  std::vector<unsigned short> targets;
  bool keeps;
} entropy;

static void run_entropy() {
  weft_gpt_cross_entropy(entropy.logits.data(), entropy.losses.data(), entropy.targets.data(),
                         entropy.rows, entropy.vocabulary, 1.0 / entropy.rows, entropy.keeps, 2);
}

static bool check_entropy(unsigned rows, unsigned vocabulary, bool keeps) {
  entropy = {rows, vocabulary, draw_many((size_t)rows * vocabulary), std::vector<float>(rows, NAN),
             std::vector<unsigned short>(rows), keeps};
  for (unsigned r = 0; r < rows; r++) {
    entropy.targets[r] = (unsigned short)(r * 7919 % vocabulary);
    entropy.logits[(size_t)r * vocabulary + (r + 1) * 31 % vocabulary] = (weft_bf16)to_bf16(9);
  }
  std::vector<double> truth((size_t)rows * vocabulary), losses(rows);
  for (unsigned r = 0; r < rows; r++) {
    const weft_bf16 *row = &entropy.logits[(size_t)r * vocabulary];
    double sum = 0;
    for (unsigned c = 0; c < vocabulary; c++) {
      sum += exp(number_of(row[c]));
    }
    losses[r] = log(sum) - number_of(row[entropy.targets[r]]);
    for (unsigned c = 0; c < vocabulary; c++) {
      truth[(size_t)r * vocabulary + c] =
          keeps ? number_of(row[c])
                : (exp(number_of(row[c])) / sum - (c == entropy.targets[r] ? 1 : 0)) / rows;
    }
  }
  launch(run_entropy, rows, 1, 1024);
  const bool good = report(keeps ? "cross_entropy, keeps logits" : "cross_entropy, gradients", rows,
                           vocabulary, distance(entropy.logits, truth), 0.003);
  return report("cross_entropy's losses", rows, vocabulary, distance(entropy.losses, losses), 1e-5) &&
         good;
}

int main() {
  bool good = true;
  for (const unsigned channels : {32u, 256u, 768u, 1024u, 1280u}) {
    good = check_norm(40, channels, channels != 768) && good;
  }
  good = check_norm(32, 768, true) && good;
  good = check_columns(1000, 96, 256) && check_columns(512, 768, 256) && good;
  good = check_sum(7, 32) && check_sum(37, 768) && good;
  for (const unsigned vocabulary : {256u, 8200u, 50304u}) {
    good = check_entropy(2, vocabulary, false) && good;
  }
  good = check_entropy(2, 512, true) && good;
  return good ? 0 : 1;
}
