/* The whole model, layer after layer in one thread, trained with AdamW: its gradients
 * against differences of its loss, and its first steps.
 *
 *   test_gpt_model_gradients FOLDER
 *
 * is for trainer/tests/test_gpt_pytorch.py. It reads from FOLDER `settings`, `inputs`, `targets`,
 * `second_targets` for a second head, and a file of floats `initial.NAME` for each tensor, and writes what became of them:
 * `logits` and `gradient.NAME` of the first step, `losses` and `norms` of all of them
 * (doubles), and `final.NAME`. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "trainer/kernels/kernels.h"
#include "trainer/model/layer.h"
#include "trainer/train/stage.h"

enum { LAYERS_MAX = 16 };

/* ---- The model ---- */

struct whole {
  struct weft_gpt_config config;
  uint64_t sequences, tokens;
  uint32_t layer_count;
  struct weft_gpt_layer_state layers[LAYERS_MAX];
  float *x[LAYERS_MAX];     /* what a layer reads [B, T, C] */
  float *dx[LAYERS_MAX];    /* its gradient */
  float *y[LAYERS_MAX];     /* what a layer makes [B, T, C]; a head's are logits [B, T, V] */
  float *dy[LAYERS_MAX];    /* its gradient */
  float *saved[LAYERS_MAX]; /* from forward to backward */
  float *scratch[LAYERS_MAX];
};

static float *floats_of(uint64_t count) {
  float *floats = aligned_alloc(64, (count * sizeof *floats / 64 + 1) * 64);
  assert_non_null(floats);
  memset(floats, 0, count * sizeof *floats);
  return floats;
}

static void make_layer(struct whole *whole, uint32_t layer) {
  const struct weft_gpt_config *config = &whole->config;
  const uint64_t rows = whole->sequences * whole->tokens;
  const uint64_t floats = weft_gpt_layer_floats(config, layer);
  const uint64_t width = layer > config->blocks ? config->vocabulary : config->dim;
  whole->layers[layer] = (struct weft_gpt_layer_state){.layer = layer,
                                                       .floats = floats,
                                                       .parameters = floats_of(floats),
                                                       .gradients = floats_of(floats),
                                                       .first_moment = floats_of(floats),
                                                       .second_moment = floats_of(floats)};
  weft_gpt_layer_initialize(config, layer, whole->layers[layer].parameters);
  whole->x[layer] = floats_of(rows * config->dim);
  whole->dx[layer] = floats_of(rows * config->dim);
  whole->y[layer] = floats_of(rows * width);
  whole->dy[layer] = floats_of(rows * width);
  whole->saved[layer] =
      floats_of(weft_gpt_layer_saved(config, layer, whole->sequences, whole->tokens));
  whole->scratch[layer] =
      floats_of(weft_gpt_layer_scratch(config, layer, whole->sequences, whole->tokens));
}

static void make_whole(struct whole *whole, const struct weft_gpt_config *config,
                       uint64_t sequences, uint64_t tokens) {
  *whole = (struct whole){.config = *config,
                          .sequences = sequences,
                          .tokens = tokens,
                          .layer_count = weft_gpt_layer_count(config)};
  assert_true(whole->layer_count <= LAYERS_MAX);
  for (uint32_t layer = 0; layer < whole->layer_count; layer++) {
    make_layer(whole, layer);
  }
}

static void free_whole(struct whole *whole) {
  for (uint32_t layer = 0; layer < whole->layer_count; layer++) {
    const struct weft_gpt_layer_state *state = &whole->layers[layer];
    free(state->parameters);
    free(state->gradients);
    free(state->first_moment);
    free(state->second_moment);
    free(whole->x[layer]);
    free(whole->dx[layer]);
    free(whole->y[layer]);
    free(whole->dy[layer]);
    free(whole->saved[layer]);
    free(whole->scratch[layer]);
  }
}

static struct weft_gpt_layer_call call_of(const struct whole *whole, uint32_t layer) {
  return (struct weft_gpt_layer_call){.config = &whole->config,
                                      .layer = layer,
                                      .sequences = whole->sequences,
                                      .tokens = whole->tokens,
                                      .parameters = whole->layers[layer].parameters,
                                      .saved = whole->saved[layer],
                                      .scratch = whole->scratch[layer]};
}

/* The head's number, from 0. */
static uint32_t head_of(const struct whole *whole, uint32_t layer) {
  return layer - whole->config.blocks - 1;
}

/* A layer's input: the output that it reads, or the sum of two. */
static void gather_input(struct whole *whole, uint32_t layer) {
  const uint64_t count = whole->sequences * whole->tokens * whole->config.dim;
  const struct weft_gpt_links inputs = weft_gpt_layer_inputs(&whole->config, layer);
  memset(whole->x[layer], 0, count * sizeof(float));
  for (uint32_t k = 0; k < inputs.count; k++) {
    weft_gpt_add(count, whole->y[inputs.layers[k]], whole->x[layer]);
  }
}

/* targets: [heads][B, T], of all heads. */
static double forward(struct whole *whole, const uint8_t *inputs, const uint8_t *const *targets) {
  double loss = 0;
  struct weft_gpt_layer_call call = call_of(whole, 0);
  weft_gpt_embedding_forward(&call, inputs, whole->y[0]);
  for (uint32_t layer = 1; layer < whole->layer_count; layer++) {
    call = call_of(whole, layer);
    gather_input(whole, layer);
    if (layer <= whole->config.blocks) {
      weft_gpt_block_forward(&call, whole->x[layer], whole->y[layer]);
      continue;
    }
    const uint32_t head = head_of(whole, layer);
    loss += (head > 0 ? WEFT_GPT_SECOND_WEIGHT : 1) *
            weft_gpt_head_forward(&call, whole->x[layer], targets[head], true, whole->y[layer]);
  }
  return loss;
}

static float *tied_gradient(const struct whole *whole, uint32_t layer, uint32_t tensor,
                            uint64_t *count) {
  struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
  (void)weft_gpt_layer_parameters(&whole->config, layer, table);
  *count = table[tensor].count;
  return whole->layers[layer].gradients + table[tensor].offset;
}

/* Both copies get the sum. */
static void tie(const struct whole *whole) {
  uint64_t count;
  float *embedding = tied_gradient(whole, 0, 0, &count);
  float *head = tied_gradient(whole, whole->config.blocks + 1, 2, &count);
  weft_gpt_add(count, head, embedding);
  memcpy(head, embedding, count * sizeof *head);
}

/* The gradient of a layer's output, from those that read it. */
static void gather_gradient(struct whole *whole, uint32_t layer) {
  const uint64_t count = whole->sequences * whole->tokens * whole->config.dim;
  const struct weft_gpt_links readers = weft_gpt_layer_readers(&whole->config, layer);
  memset(whole->dy[layer], 0, count * sizeof(float));
  for (uint32_t k = 0; k < readers.count; k++) {
    weft_gpt_add(count, whole->dx[readers.layers[k]], whole->dy[layer]);
  }
}

static void backward(struct whole *whole, const uint8_t *inputs) {
  for (uint32_t layer = whole->layer_count; layer-- > 0;) {
    const struct weft_gpt_layer_state *state = &whole->layers[layer];
    const struct weft_gpt_layer_call call = call_of(whole, layer);
    memset(state->gradients, 0, state->floats * sizeof *state->gradients);
    if (layer > whole->config.blocks) {
      weft_gpt_head_backward_input(&call, whole->x[layer], whole->dx[layer]);
      weft_gpt_head_backward_weight(&call, whole->x[layer], state->gradients);
      continue;
    }
    gather_gradient(whole, layer);
    if (layer == 0) {
      weft_gpt_embedding_backward_weight(&call, inputs, whole->dy[0], state->gradients);
      continue;
    }
    weft_gpt_block_backward_input(&call, whole->x[layer], whole->dy[layer], whole->dx[layer]);
    weft_gpt_block_backward_weight(&call, whole->x[layer], whole->dy[layer], state->gradients);
  }
  if (whole->config.tied) {
    tie(whole);
  }
}

/* ---- The optimizer ---- */

struct settings {
  double rate, beta1, beta2, epsilon, decay, clip;
};

/* Of all gradients; a tied one counts once. */
static double norm_of(const struct whole *whole) {
  double square = 0;
  for (uint32_t layer = 0; layer < whole->layer_count; layer++) {
    const bool head = layer == whole->config.blocks + 1;
    struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
    const uint32_t count = weft_gpt_layer_parameters(&whole->config, layer, table);
    for (uint32_t k = 0; k < count - (head && whole->config.tied); k++) {
      square +=
          weft_gpt_square_sum(table[k].count, whole->layers[layer].gradients + table[k].offset);
    }
  }
  return sqrt(square);
}

static void update_layer(const struct whole *whole, uint32_t layer, struct weft_gpt_adamw adamw) {
  struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
  const struct weft_gpt_layer_state *state = &whole->layers[layer];
  const uint32_t count = weft_gpt_layer_parameters(&whole->config, layer, table);
  const float decay = adamw.decay;
  for (uint32_t k = 0; k < count; k++) {
    const uint64_t at = table[k].offset;
    adamw.decay = table[k].decays ? decay : 0;
    weft_gpt_adamw_update(&adamw, table[k].count, state->gradients + at, state->parameters + at,
                          state->first_moment + at, state->second_moment + at);
  }
}

/* Step `step`, from 0. Returns the norm before clipping. */
static double update(const struct whole *whole, const struct settings *settings, uint64_t step) {
  const double norm = norm_of(whole);
  const bool clips = norm > settings->clip;
  const struct weft_gpt_adamw adamw = {
      .rate = (float)settings->rate,
      .beta1 = (float)settings->beta1,
      .beta2 = (float)settings->beta2,
      .epsilon = (float)settings->epsilon,
      .decay = (float)settings->decay,
      .correction1 = (float)(1 - pow(settings->beta1, (double)step + 1)),
      .correction2 = (float)(1 - pow(settings->beta2, (double)step + 1)),
      .grad_scale = clips ? (float)(settings->clip / (norm + 1e-6)) : 1};
  for (uint32_t layer = 0; layer < whole->layer_count; layer++) {
    update_layer(whole, layer, adamw);
  }
  return norm;
}

/* ---- Tests ---- */

static struct weft_gpt_config small_config(bool tied) {
  return (struct weft_gpt_config){.blocks = 2,
                                  .dim = 16,
                                  .heads = 2,
                                  .context = 12,
                                  .vocabulary = WEFT_GPT_VOCABULARY,
                                  .tied = tied,
                                  .seed = 5};
}

enum { SEQUENCES = 3, TOKENS = 10, ROWS = SEQUENCES * TOKENS };

struct batch {
  uint8_t inputs[ROWS], first[ROWS], second[ROWS];
  const uint8_t *targets[WEFT_GPT_HEADS_MAX];
};

static void fill_batch(struct batch *batch) {
  struct weft_random random = {8};
  batch->targets[0] = batch->first;
  batch->targets[1] = batch->second;
  for (unsigned k = 0; k < ROWS; k++) {
    batch->inputs[k] = (uint8_t)weft_random_below(&random, 256);
    batch->first[k] = (uint8_t)weft_random_below(&random, 256);
    batch->second[k] = (uint8_t)weft_random_below(&random, 256);
  }
}

/* A model that knows nothing gives every byte the same chance. */
static void test_loss_at_the_beginning(void **state) {
  (void)state;
  const struct weft_gpt_config config = small_config(false);
  struct whole whole;
  struct batch batch;
  make_whole(&whole, &config, SEQUENCES, TOKENS);
  fill_batch(&batch);
  assert_true(fabs(forward(&whole, batch.inputs, batch.targets) - log(256)) < 0.1);
  free_whole(&whole);
}

/* Moves a tensor along a direction; both copies of a tied one. */
static void move(const struct whole *whole, uint32_t layer, const struct weft_gpt_parameter *tensor,
                 const float *direction, float length) {
  struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
  const uint32_t head = whole->config.blocks + 1;
  float *values = whole->layers[layer].parameters + tensor->offset;
  for (uint64_t k = 0; k < tensor->count; k++) {
    values[k] += length * direction[k];
  }
  (void)weft_gpt_layer_parameters(&whole->config, head, table);
  if (whole->config.tied && layer == 0 && tensor->offset == 0) {
    memcpy(whole->layers[head].parameters + table[2].offset, values,
           tensor->count * sizeof *values);
  }
}

/* The loss changes along a tensor's gradient as its norm says. */
static void check_direction(struct whole *whole, uint32_t layer,
                            const struct weft_gpt_parameter *tensor, const struct batch *batch) {
  const float *gradient = whole->layers[layer].gradients + tensor->offset;
  const double norm = sqrt(weft_gpt_square_sum(tensor->count, gradient));
  const float length = (float)(2e-3 / norm);
  assert_true(norm > 1e-6);
  move(whole, layer, tensor, gradient, length);
  const double above = forward(whole, batch->inputs, batch->targets);
  move(whole, layer, tensor, gradient, -2 * length);
  const double below = forward(whole, batch->inputs, batch->targets);
  move(whole, layer, tensor, gradient, length);
  const double found = (above - below) / 4e-3;
  if (fabs(found - norm) > 1e-3 * (1 + norm)) {
    fail_msg("%s: the loss grows by %g, the gradient is %g", tensor->name, found, norm);
  }
}

/* Makes the weights large, so that blocks matter, and norms are nearly straight. */
static void enlarge(const struct whole *whole) {
  for (uint32_t layer = 0; layer < whole->layer_count; layer++) {
    struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
    const uint32_t count = weft_gpt_layer_parameters(&whole->config, layer, table);
    for (uint32_t k = 0; k < count; k++) {
      if (table[k].dim_count == 2) {
        weft_gpt_scale(table[k].count, 10, whole->layers[layer].parameters + table[k].offset);
      }
    }
  }
}

static void check_gradients(const struct weft_gpt_config *config) {
  struct whole whole;
  struct batch batch;
  make_whole(&whole, config, SEQUENCES, TOKENS);
  fill_batch(&batch);
  enlarge(&whole);
  (void)forward(&whole, batch.inputs, batch.targets);
  backward(&whole, batch.inputs);
  for (uint32_t layer = 0; layer < whole.layer_count; layer++) {
    struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
    const uint32_t count = weft_gpt_layer_parameters(config, layer, table);
    for (uint32_t k = 0; k < count - (config->tied && layer == config->blocks + 1); k++) {
      check_direction(&whole, layer, &table[k], &batch);
    }
  }
  free_whole(&whole);
}

static void test_gradients(void **state) {
  (void)state;
  for (unsigned tied = 0; tied < 2; tied++) {
    const struct weft_gpt_config config = small_config(tied != 0);
    check_gradients(&config);
  }
}

/* With residuals over blocks, and with a second head. */
static void test_gradients_of_a_graph(void **state) {
  (void)state;
  for (unsigned kind = 1; kind < 4; kind++) {
    struct weft_gpt_config config = small_config(kind == 3);
    config.blocks = 5;
    config.skips = (kind & 1) != 0;
    config.predict = (kind & 2) != 0 ? 2 : 1;
    check_gradients(&config);
  }
}

/* The same batch again and again is learnt; a tied head stays the embedding's copy. */
static void test_learns(void **state) {
  (void)state;
  const struct settings settings = {3e-3, 0.9, 0.95, 1e-8, 0.1, 1};
  for (unsigned tied = 0; tied < 2; tied++) {
    const struct weft_gpt_config config = small_config(tied != 0);
    struct whole whole;
    struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
    struct batch batch;
    double loss = 0;
    make_whole(&whole, &config, SEQUENCES, TOKENS);
    fill_batch(&batch);
    for (uint64_t step = 0; step < 200; step++) {
      loss = forward(&whole, batch.inputs, batch.targets);
      backward(&whole, batch.inputs);
      (void)update(&whole, &settings, step);
    }
    assert_true(loss < 1);
    (void)weft_gpt_layer_parameters(&config, 3, table);
    const int order =
        memcmp(whole.layers[0].parameters, whole.layers[3].parameters + table[2].offset,
               table[2].count * sizeof(float));
    assert_true((order == 0) == (tied != 0));
    free_whole(&whole);
  }
}

/* ---- For Python ---- */

struct dump {
  const char *folder;
  struct whole whole;
  struct settings settings;
  uint64_t steps;
};

static FILE *open_file(const char *folder, const char *kind, const char *name, const char *mode) {
  char path[1024];
  (void)snprintf(path, sizeof path, "%s/%s%s", folder, kind, name);
  FILE *file = fopen(path, mode);
  if (file == NULL) {
    (void)fprintf(stderr, "%s cannot be opened\n", path);
    exit(2); // NOLINT(concurrency-mt-unsafe): one thread
  }
  return file;
}

static void read_all(const char *folder, const char *kind, const char *name, void *data,
                     size_t size) {
  FILE *file = open_file(folder, kind, name, "rb");
  const size_t count = fread(data, 1, size, file);
  (void)fclose(file);
  if (count != size) {
    (void)fprintf(stderr, "%s%s has %zu bytes, expected %zu\n", kind, name, count, size);
    exit(2); // NOLINT(concurrency-mt-unsafe): one thread
  }
}

static void write_all(const char *folder, const char *kind, const char *name, const void *data,
                      size_t size) {
  FILE *file = open_file(folder, kind, name, "wb");
  const size_t count = fwrite(data, 1, size, file);
  if (fclose(file) != 0 || count != size) {
    (void)fprintf(stderr, "%s%s cannot be written\n", kind, name);
    exit(2); // NOLINT(concurrency-mt-unsafe): one thread
  }
}

static double read_setting(FILE *file) {
  double value = NAN;
  if (fscanf(file, "%lf", &value) != 1) { // NOLINT(cert-err34-c): a file of ours
    (void)fprintf(stderr, "a setting is missing\n");
    exit(2); // NOLINT(concurrency-mt-unsafe): one thread
  }
  return value;
}

/* Numbers in this order, with space between them. */
static void read_settings(struct dump *dump) {
  struct weft_gpt_config config = {.vocabulary = WEFT_GPT_VOCABULARY};
  FILE *file = open_file(dump->folder, "settings", "", "r");
  config.blocks = (uint32_t)read_setting(file);
  config.dim = (uint32_t)read_setting(file);
  config.heads = (uint32_t)read_setting(file);
  config.context = (uint32_t)read_setting(file);
  config.tied = read_setting(file) != 0;
  config.skips = read_setting(file) != 0;
  config.predict = (uint32_t)read_setting(file);
  const uint64_t sequences = (uint64_t)read_setting(file);
  const uint64_t tokens = (uint64_t)read_setting(file);
  dump->steps = (uint64_t)read_setting(file);
  dump->settings.rate = read_setting(file);
  dump->settings.beta1 = read_setting(file);
  dump->settings.beta2 = read_setting(file);
  dump->settings.epsilon = read_setting(file);
  dump->settings.decay = read_setting(file);
  dump->settings.clip = read_setting(file);
  (void)fclose(file);
  make_whole(&dump->whole, &config, sequences, tokens);
}

typedef void visit_function(const char *folder, const char *kind, const char *name, float *values,
                            size_t size);

static void read_tensor(const char *folder, const char *kind, const char *name, float *values,
                        size_t size) {
  read_all(folder, kind, name, values, size);
}

static void write_tensor(const char *folder, const char *kind, const char *name, float *values,
                         size_t size) {
  write_all(folder, kind, name, values, size);
}

static void visit_tensors(const struct dump *dump, const char *kind, bool gradients,
                          visit_function *visit) {
  for (uint32_t layer = 0; layer < dump->whole.layer_count; layer++) {
    struct weft_gpt_parameter table[WEFT_GPT_PARAMETERS_MAX];
    const struct weft_gpt_layer_state *state = &dump->whole.layers[layer];
    const uint32_t count = weft_gpt_layer_parameters(&dump->whole.config, layer, table);
    for (uint32_t k = 0; k < count; k++) {
      float *values = (gradients ? state->gradients : state->parameters) + table[k].offset;
      visit(dump->folder, kind, table[k].name, values, table[k].count * sizeof *values);
    }
  }
}

static void run_steps(struct dump *dump, const uint8_t *inputs, const uint8_t *const *targets,
                      double *losses, double *norms) {
  struct whole *whole = &dump->whole;
  const uint64_t rows = whole->sequences * whole->tokens;
  for (uint64_t step = 0; step < dump->steps; step++) {
    const uint8_t *own[] = {targets[0] + step * rows, targets[1] + step * rows};
    losses[step] = forward(whole, inputs + step * rows, own);
    backward(whole, inputs + step * rows);
    if (step == 0) {
      write_all(dump->folder, "logits", "", whole->y[whole->config.blocks + 1],
                rows * WEFT_GPT_VOCABULARY * sizeof(float));
      visit_tensors(dump, "gradient.", true, write_tensor);
    }
    norms[step] = update(whole, &dump->settings, step);
  }
}

static void *bytes_of(size_t size) {
  void *bytes = malloc(size);
  if (bytes == NULL) {
    (void)fprintf(stderr, "out of memory\n");
    exit(2); // NOLINT(concurrency-mt-unsafe): one thread
  }
  return bytes;
}

static int dump_to(const char *folder) {
  struct dump dump = {.folder = folder};
  read_settings(&dump);
  visit_tensors(&dump, "initial.", false, read_tensor);
  const size_t size = dump.steps * dump.whole.sequences * dump.whole.tokens;
  uint8_t *inputs = bytes_of(size);
  uint8_t *targets = bytes_of(size);
  uint8_t *second_targets = bytes_of(size);
  double *losses = bytes_of(dump.steps * sizeof *losses);
  double *norms = bytes_of(dump.steps * sizeof *norms);
  read_all(folder, "inputs", "", inputs, size);
  read_all(folder, "targets", "", targets, size);
  if (weft_gpt_head_count(&dump.whole.config) > 1) {
    read_all(folder, "second_targets", "", second_targets, size);
  }
  const uint8_t *const all[] = {targets, second_targets};
  run_steps(&dump, inputs, all, losses, norms);
  visit_tensors(&dump, "final.", false, write_tensor);
  write_all(folder, "losses", "", losses, dump.steps * sizeof *losses);
  write_all(folder, "norms", "", norms, dump.steps * sizeof *norms);
  free(inputs);
  free(targets);
  free(second_targets);
  free(losses);
  free(norms);
  free_whole(&dump.whole);
  return 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_loss_at_the_beginning),
      cmocka_unit_test(test_gradients),
      cmocka_unit_test(test_gradients_of_a_graph),
      cmocka_unit_test(test_learns),
  };
  if (argc > 1) {
    return dump_to(argv[1]);
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
