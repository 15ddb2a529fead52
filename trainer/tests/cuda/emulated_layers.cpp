/* The kernels of trainer/cuda but for attention, emulated (emulated_gpu.hpp), beside sums in double.
 *
 *     g++ -std=c++17 -O1 -Itrainer/cuda -o emulated_layers trainer/tests/cuda/emulated_layers.cpp */
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
  launch(run_norm, {(rows + 7) / 8}, 256);
  launch(run_norm_backward, {(unsigned)blocks}, 256);
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
  launch(run_parts, {(width + 255) / 256 * parts}, 32, 8);
  launch(run_add, {(width + 31) / 32}, 32, 32);
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
  launch(run_sum, {blocks}, 256);
  const std::vector<weft_bf16> first = sums.sum;
  launch(run_sum_swapped, {blocks}, 256);
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
  launch(run_entropy, {rows}, 1024);
  const bool good = report(keeps ? "cross_entropy, keeps logits" : "cross_entropy, gradients", rows,
                           vocabulary, distance(entropy.logits, truth), 0.003);
  return report("cross_entropy's losses", rows, vocabulary, distance(entropy.losses, losses), 1e-5) &&
         good;
}

/* ---- Losses, norm and AdamW ---- */

static struct {
  std::vector<float> losses, settings, gradients, w, m, v;
  std::vector<double> sums, step, parts;
  std::vector<weft_bf16> rounded;
  std::vector<unsigned char> decays;
  double loss, own, norm;
  unsigned layers, replicas, heads;
} end;

static void run_mean() {
  weft_gpt_mean_loss(&end.loss, &end.own, end.losses.data(), end.losses.size(), 0.3);
}
static void run_mean_alone() {
  weft_gpt_mean_loss(&end.loss, nullptr, end.losses.data(), end.losses.size(), 1);
}
static void run_squares() {
  weft_gpt_square_sums(end.parts.data(), end.gradients.data(), end.gradients.size(), end.parts.size());
}
static void run_sum_parts() {
  weft_gpt_sum_parts(end.sums.data(), end.parts.data(), end.parts.size(), 1);
}
static void run_clip() {
  weft_gpt_clip(end.settings.data(), &end.norm, end.sums.data(), end.step.data(), end.layers,
                end.replicas, end.heads * end.replicas);
}
static void run_adamw() {
  weft_gpt_adamw(end.w.data(), end.m.data(), end.v.data(), end.rounded.data(), end.gradients.data(),
                 end.decays.data(), end.settings.data(), end.w.size());
}

static bool check_losses() {
  end.losses.assign(3000, 0);
  double mean = 0;
  for (size_t r = 0; r < end.losses.size(); r++) {
    end.losses[r] = (float)(r % 7) + 0.25f;
    mean += end.losses[r] / 3000.0;
  }
  end.loss = 1;
  launch(run_mean, {1}, 1024);
  bool good = fabs(end.own - mean) < 1e-12 && fabs(end.loss - (1 + 0.3 * mean)) < 1e-12;
  end.own = 5;
  launch(run_mean_alone, {1}, 1024);
  good = good && end.own == 5 && fabs(end.loss - (1 + 1.3 * mean)) < 1e-12;
  return report("mean_loss", 3000, 1, good ? 0 : 1, 0.5);
}

/* Layers, replicas and heads of which there are more numbers than threads; a loss that is not finite
 * skips the step, whichever head has it, unless all steps count. */
static bool check_clip(unsigned layers, unsigned replicas, unsigned heads) {
  end.layers = layers, end.replicas = replicas, end.heads = heads;
  end.sums.assign((size_t)replicas * (layers + heads), 2);
  end.settings.assign(8, -1);
  double sum = 0;
  for (unsigned k = 0; k < layers * replicas; k++) {
    sum += end.sums[k] = k % 5;
  }
  end.step = {0.9, 0.01, 1, 1e-8, 0.9, 0.95, 1, 0};
  launch(run_clip, {1}, 1024);
  bool good = fabs(end.norm - sqrt(sum)) < 1e-12 * sqrt(sum) && end.settings[7] == 1 &&
              end.settings[6] == (float)(1 / (sqrt(sum) + 1e-6)) && end.settings[0] == 0.9f;
  for (unsigned k = 0; k < heads * replicas; k++) {
    for (int always = 0; always < 2; always++) {
      end.step[7] = always;
      end.sums[layers * replicas + k] = INFINITY;
      launch(run_clip, {1}, 1024);
      good = good && end.settings[7] == (float)always;
      end.sums[layers * replicas + k] = 2;
    }
  }
  return report("clip", layers, replicas * heads, good ? 0 : 1, 0.5);
}

static bool check_update(unsigned count) {
  end.gradients.assign(count, 0);
  end.w.assign(count, 1), end.m.assign(count, 0.5f), end.v.assign(count, 0.25f);
  end.rounded.assign(count, 0), end.decays.assign(count / 16, 0);
  end.settings = {0.5f, 0.1f, 2, 1e-8f, 0.9f, 0.95f, 0.5f, 1};
  double squares = 0, worst = 0;
  for (unsigned k = 0; k < count; k++) {
    end.gradients[k] = (float)(k % 11) - 5;
    squares += (double)end.gradients[k] * end.gradients[k];
    end.decays[k / 16] = k / 16 % 2;
  }
  end.parts.assign(64, NAN), end.sums.assign(1, NAN);
  launch(run_squares, {64}, 256);
  launch(run_sum_parts, {1}, 256);
  launch(run_adamw, {(count / 4 + 255) / 256}, 256);
  for (unsigned k = 0; k < count; k++) {
    const double g = 0.5 * end.gradients[k], m = 0.5 + 0.1 * (g - 0.5), v = 0.95 * 0.25 + 0.05 * g * g;
    const double w = (k / 16 % 2 != 0 ? 0.5 : 1) - 0.1 * m / (sqrt(v) * 2 + 1e-8);
    worst = fmax(worst, fabs(end.w[k] - w) + fabs(end.m[k] - m) + fabs(end.v[k] - v));
    worst = fmax(worst, fabs(number_of(end.rounded[k]) - w) / 1000); /* bf16 */
  }
  return report("square_sums", count, 1, fabs(end.sums[0] - squares) / squares, 1e-12) &&
         report("adamw", count, 1, worst, 1e-5);
}

/* ---- Embedding ---- */

static struct {
  unsigned rows, tokens, channels, vocabulary, bytes;
  std::vector<unsigned char> ids;
  std::vector<weft_bf16> wte, wpe, y, dy;
  std::vector<float> dwte, dwpe;
} embedding;

static void run_embed() {
  weft_gpt_embed(embedding.y.data(), embedding.ids.data(), embedding.wte.data(),
                 embedding.wpe.data(), embedding.rows, embedding.tokens, embedding.channels,
                 embedding.bytes);
}
static void run_positions() {
  weft_gpt_embed_backward_positions(embedding.dwpe.data(), embedding.dy.data(), embedding.rows,
                                    embedding.tokens, embedding.channels);
}
static unsigned each_block() { return (embedding.vocabulary + 1023) / 1024; }
static void run_tokens() {
  weft_gpt_embed_backward_tokens(embedding.dwte.data(), embedding.ids.data(), embedding.dy.data(),
                                 embedding.rows, embedding.channels, each_block(), embedding.bytes,
                                 embedding.vocabulary);
}

static bool check_embedding(unsigned sequences, unsigned tokens, unsigned channels,
                            unsigned vocabulary) {
  auto &e = embedding;
  const unsigned rows = sequences * tokens, bytes = vocabulary > 256 ? 2 : 1;
  e = {rows, tokens, channels, vocabulary, bytes, std::vector<unsigned char>(rows * bytes),
       draw_many((size_t)vocabulary * channels), draw_many((size_t)tokens * channels),
       std::vector<weft_bf16>((size_t)rows * channels, 0x7fff), draw_many((size_t)rows * channels),
       std::vector<float>((size_t)vocabulary * channels, 1),
       std::vector<float>((size_t)tokens * channels, 1)};
  std::vector<double> y(e.y.size()), dwte(e.dwte.size(), 1), dwpe(e.dwpe.size(), 1);
  for (unsigned r = 0; r < rows; r++) {
    const unsigned id = r % 3 == 0 ? vocabulary - 1 : r * 7919 % vocabulary; /* some often */
    for (unsigned b = 0; b < bytes; b++) {
      e.ids[r * bytes + b] = (unsigned char)(id >> (8 * b));
    }
    for (unsigned c = 0; c < channels; c++) {
      const size_t at = (size_t)r * channels + c;
      y[at] = number_of(e.wte[(size_t)id * channels + c]) +
              number_of(e.wpe[(size_t)(r % tokens) * channels + c]);
      dwte[(size_t)id * channels + c] += number_of(e.dy[at]);
      dwpe[(size_t)(r % tokens) * channels + c] += number_of(e.dy[at]);
    }
  }
  launch(run_embed, {(rows * channels / 8 + 255) / 256}, 256);
  launch(run_positions, {(tokens * channels + 255) / 256}, 256);
  launch(run_tokens, {(vocabulary + each_block() - 1) / each_block()}, 256);
  const bool forward = report("embed", rows, channels, distance(e.y, y), 0.003);
  return report("embed_backward_positions", rows, channels, distance(e.dwpe, dwpe), 1e-5) &&
         report("embed_backward_tokens", rows, vocabulary, distance(e.dwte, dwte), 1e-5) && forward;
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
  good = check_losses() && check_clip(8, 1, 1) && check_clip(9, 3, 2) && check_clip(700, 2, 2) && good;
  good = check_update(4096) && check_update(16 * 37) && good;
  good = check_embedding(3, 90, 32, 256) && check_embedding(2, 160, 16, 2064) && good;
  return good ? 0 : 1;
}
