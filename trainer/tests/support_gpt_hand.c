/* See support_gpt_hand.h. */
#include "support_gpt_hand.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/kernels/kernels.h"
#include "trainer/model/layer.h"
#include "trainer/train/rank.h"

/* ---- What is trained ---- */

enum { DATASET_SIZE = 3000 };
static uint8_t text[DATASET_SIZE];

struct weft_gpt_dataset hand_corpus(void) {
  static const char words[] = "a stitch in time saves nine; the weft runs under the warp, ";
  for (uint32_t k = 0; k < DATASET_SIZE; k++) {
    text[k] = (uint8_t)words[(k + k / 83) % (sizeof words - 1)];
  }
  return (struct weft_gpt_dataset){
      .bytes = text, .size = DATASET_SIZE, .train_size = DATASET_SIZE * 9 / 10, .hash = 7};
}

struct weft_gpt_trainer_options hand_options(const struct weft_gpt_dataset *dataset) {
  return (struct weft_gpt_trainer_options){
      .training = {.config = {.blocks = 6,
                              .dim = 8,
                              .heads = 2,
                              .context = 6,
                              .vocabulary = WEFT_GPT_VOCABULARY,
                              .seed = 3},
                   .data_hash = dataset->hash,
                   .data_seed = 11,
                   .batch = 24,
                   .microbatches = HAND_MICROBATCHES,
                   .rate = 3e-3,
                   .rate_min = 1e-4,
                   .beta1 = 0.9,
                   .beta2 = 0.95,
                   .epsilon = 1e-8,
                   .decay = 0.1,
                   .clip = 0.5,
                   .warmup_steps = 2,
                   .total_steps = HAND_STEPS},
      .dataset = dataset,
      .ranks = 1,
      .schedule = "GPipe",
      .stall_limit = INT64_C(60000000000)};
}

/* ---- Memory ---- */

static float *floats(uint64_t count) {
  float *array = calloc(count + 16, sizeof *array);
  assert_non_null(array);
  return array;
}

void hand_init(struct hand *hand, const struct weft_gpt_training *training,
               const struct weft_gpt_dataset *dataset) {
  const struct weft_gpt_config *config = &training->config;
  const uint64_t sequences = training->batch, tokens = sequences * config->context;
  weft_gpt_set_blas_threads(1); /* as a trainer does: products depend on it */
  *hand = (struct hand){
      .training = *training, .dataset = dataset, .layer_count = weft_gpt_layer_count(config)};
  hand->layers = calloc(hand->layer_count, sizeof *hand->layers);
  hand->work = calloc(hand->layer_count, sizeof *hand->work);
  hand->inputs = malloc(tokens);
  hand->targets[0] = malloc(tokens);
  hand->targets[1] = malloc(tokens);
  assert_true(hand->layers != NULL && hand->work != NULL && hand->inputs != NULL &&
              hand->targets[0] != NULL && hand->targets[1] != NULL);
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    struct weft_gpt_layer_state *layer = &hand->layers[k];
    layer->floats = weft_gpt_layer_floats(config, k);
    layer->parameters = floats(layer->floats);
    layer->gradients = floats(layer->floats);
    layer->first_moment = floats(layer->floats);
    layer->second_moment = floats(layer->floats);
    weft_gpt_layer_initialize(config, k, layer->parameters);
    hand->work[k] = (struct hand_layer){
        .saved = floats(weft_gpt_layer_saved(config, k, sequences, config->context)),
        .scratch = floats(weft_gpt_layer_scratch(config, k, sequences, config->context)),
        .x = floats(tokens * config->dim),
        .dx = floats(tokens * config->dim),
        .y = floats(tokens * config->dim),
        .dy = floats(tokens * config->dim),
        .partial = floats(layer->floats)};
  }
}

void hand_finish(struct hand *hand) {
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    free(hand->layers[k].parameters);
    free(hand->layers[k].gradients);
    free(hand->layers[k].first_moment);
    free(hand->layers[k].second_moment);
    free(hand->work[k].saved);
    free(hand->work[k].scratch);
    free(hand->work[k].x);
    free(hand->work[k].dx);
    free(hand->work[k].y);
    free(hand->work[k].dy);
    free(hand->work[k].partial);
  }
  free(hand->layers);
  free(hand->work);
  free(hand->inputs);
  free(hand->targets[0]);
  free(hand->targets[1]);
}

/* ---- A microbatch ---- */

static struct weft_gpt_layer_call call_of(const struct hand *hand, uint32_t k, uint64_t sequences) {
  return (struct weft_gpt_layer_call){.config = &hand->training.config,
                                      .layer = k,
                                      .sequences = sequences,
                                      .tokens = hand->training.config.context,
                                      .parameters = hand->layers[k].parameters,
                                      .saved = hand->work[k].saved,
                                      .scratch = hand->work[k].scratch};
}

/* The layer whose output a block adds to its input; 0: none. By the definition: the output of block
 * k goes to block L - 1 - k, over one block or more. Block k is layer k + 1. */
static uint32_t skip_to(const struct weft_gpt_config *config, uint32_t layer) {
  const uint32_t to = layer - 1, from = config->blocks - 1 - to;
  return config->skips && from + 1 < to ? from + 1 : 0;
}

static void sum(uint64_t count, const float *a, const float *b, float *c) {
  memmove(c, a, count * sizeof *c);
  if (b != NULL) {
    weft_gpt_add(count, b, c);
  }
}

static void forward(const struct hand *hand, uint64_t sequences, uint64_t at, double *losses) {
  const struct weft_gpt_config *config = &hand->training.config;
  const struct hand_layer *work = hand->work;
  const uint64_t count = sequences * config->context * config->dim;
  const struct weft_gpt_layer_call first = call_of(hand, 0, sequences);
  weft_gpt_embedding_forward(&first, hand->inputs + at, work[0].y);
  for (uint32_t k = 1; k <= config->blocks; k++) {
    const struct weft_gpt_layer_call block = call_of(hand, k, sequences);
    const uint32_t skip = skip_to(config, k);
    sum(count, work[k - 1].y, skip > 0 ? work[skip].y : NULL, work[k].x);
    weft_gpt_block_forward(&block, work[k].x, work[k].y);
  }
  for (uint32_t k = config->blocks + 1; k < hand->layer_count; k++) {
    const struct weft_gpt_layer_call head = call_of(hand, k, sequences);
    const uint32_t n = k - config->blocks - 1;
    losses[n] +=
        weft_gpt_head_forward(&head, work[config->blocks].y, hand->targets[n] + at, true, NULL);
  }
}

/* The losses of heads are added to `losses`. */
static void microbatch(const struct hand *hand, uint64_t sequences, uint64_t at, double *losses) {
  const struct weft_gpt_config *config = &hand->training.config;
  const struct hand_layer *work = hand->work;
  const uint32_t last = config->blocks;
  const uint64_t count = sequences * config->context * config->dim;
  forward(hand, sequences, at, losses);
  for (uint32_t k = last + 1; k < hand->layer_count; k++) {
    const struct weft_gpt_layer_call head = call_of(hand, k, sequences);
    weft_gpt_head_backward_input(&head, work[last].y, work[k].dx);
    weft_gpt_head_backward_weight(&head, work[last].y, work[k].partial);
  }
  sum(count, work[last + 1].dx, hand->layer_count > last + 2 ? work[last + 2].dx : NULL,
      work[last].dy);
  for (uint32_t k = last; k > 0; k--) {
    const struct weft_gpt_layer_call block = call_of(hand, k, sequences);
    const float *skipped = NULL;
    weft_gpt_block_backward_input(&block, work[k].x, work[k].dy, work[k].dx);
    weft_gpt_block_backward_weight(&block, work[k].x, work[k].dy, work[k].partial);
    for (uint32_t to = 1; to <= last; to++) {
      skipped = k > 1 && skip_to(config, to) == k - 1 ? work[to].dx : skipped;
    }
    sum(count, work[k].dx, skipped, work[k - 1].dy);
  }
  const struct weft_gpt_layer_call embedding = call_of(hand, 0, sequences);
  weft_gpt_embedding_backward_weight(&embedding, hand->inputs + at, work[0].dy, work[0].partial);
}

/* ---- A replica ---- */

/* Where the tied weight is, in the embedding and in the head. */
static const struct weft_gpt_parameter *tied(const struct hand *hand, bool head,
                                             struct weft_gpt_parameter *parameters) {
  weft_gpt_layer_parameters(&hand->training.config, head ? hand->training.config.blocks + 1 : 0,
                            parameters);
  return &parameters[head ? 2 : 0];
}

static void tie(const struct hand *hand) {
  struct weft_gpt_parameter first[WEFT_GPT_PARAMETERS_MAX], last[WEFT_GPT_PARAMETERS_MAX];
  const struct weft_gpt_parameter *wte = tied(hand, false, first), *head = tied(hand, true, last);
  float *a = hand->work[0].partial + wte->offset;
  float *b = hand->work[hand->training.config.blocks + 1].partial + head->offset;
  for (uint64_t i = 0; i < wte->count; i++) {
    a[i] = b[i] = a[i] + b[i];
  }
}

/* Scaled partial sums of one replica; its losses are added to the means. */
static void replica(const struct hand *hand, uint32_t d, uint32_t replicas, double *means) {
  const struct weft_gpt_training *training = &hand->training;
  const uint32_t m = training->microbatches;
  const uint64_t sequences = training->batch / replicas / m;
  const uint64_t share = sequences * training->config.context;
  double losses[WEFT_GPT_HEADS_MAX] = {0};
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    memset(hand->work[k].partial, 0, hand->layers[k].floats * sizeof(float));
  }
  for (uint32_t n = 0; n < m; n++) {
    const uint64_t at = ((uint64_t)d * m + n) * share;
    microbatch(hand, sequences, at, losses);
  }
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    weft_gpt_scale(hand->layers[k].floats, (float)(1.0 / m / replicas), hand->work[k].partial);
  }
  if (training->config.tied) {
    tie(hand);
  }
  means[0] += losses[0] / m;
  means[1] += losses[1] / m;
}

/* ---- The update ---- */

/* The norm's sum of squares is taken slice by slice: ceil(floats / (16 D)) x 16 each. */
static double square_of(const struct hand *hand, uint32_t k, uint32_t replicas) {
  const struct weft_gpt_layer_state *layer = &hand->layers[k];
  const uint64_t unit = 16 * (uint64_t)(replicas > 0 ? replicas : 1),
                 slice = (layer->floats + unit - 1) / unit * 16;
  uint64_t end = layer->floats;
  double sum = 0;
  if (hand->training.config.tied && k == hand->training.config.blocks + 1) {
    struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
    end = tied(hand, true, parameters)->offset;
  }
  for (uint64_t at = 0; at < end; at += slice) {
    sum += weft_gpt_square_sum(end - at < slice ? end - at : slice, layer->gradients + at);
  }
  return sum;
}

static void update(const struct hand *hand, uint64_t step, double norm) {
  const struct weft_gpt_training *training = &hand->training;
  const double steps = (double)step + 1;
  struct weft_gpt_adamw adamw = {
      .rate = (float)weft_gpt_learning_rate(step, training->rate, training->rate_min,
                                            training->warmup_steps, training->total_steps),
      .beta1 = (float)training->beta1,
      .beta2 = (float)training->beta2,
      .epsilon = (float)training->epsilon,
      .correction1 = (float)(1 - pow(training->beta1, steps)),
      .correction2 = (float)(1 - pow(training->beta2, steps)),
      .grad_scale = norm > training->clip ? (float)(training->clip / (norm + 1e-6)) : 1};
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
    const uint32_t count = weft_gpt_layer_parameters(&training->config, k, parameters);
    for (uint32_t n = 0; n < count; n++) {
      const uint64_t at = parameters[n].offset;
      const struct weft_gpt_layer_state *layer = &hand->layers[k];
      adamw.decay = parameters[n].decays ? (float)training->decay : 0;
      weft_gpt_adamw_update(&adamw, parameters[n].count, layer->gradients + at,
                            layer->parameters + at, layer->first_moment + at,
                            layer->second_moment + at);
    }
  }
}

double hand_step(struct hand *hand, uint64_t step, uint32_t replicas) {
  const struct weft_gpt_training *training = &hand->training;
  double losses[WEFT_GPT_HEADS_MAX] = {0}, square = 0;
  assert_true(replicas > 0);
  weft_gpt_dataset_batch_ahead(hand->dataset, false, training->data_seed, step, training->batch,
                               training->config.context, weft_gpt_head_count(&training->config),
                               hand->inputs, (void *const *)hand->targets);
  for (uint32_t d = 0; d < replicas; d++) {
    replica(hand, d, replicas, losses);
    for (uint32_t k = 0; k < hand->layer_count; k++) {
      const uint64_t size = hand->layers[k].floats * sizeof(float);
      if (d == 0) {
        memcpy(hand->layers[k].gradients, hand->work[k].partial, size);
      } else {
        weft_gpt_add(hand->layers[k].floats, hand->work[k].partial, hand->layers[k].gradients);
      }
    }
  }
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    square += square_of(hand, k, replicas);
  }
  update(hand, step, sqrt(square));
  hand->second_loss = losses[1] / replicas;
  return losses[0] / replicas;
}

/* ---- Hashes ---- */

static void mix(uint64_t *hash, const float *array, uint64_t count) {
  const uint64_t pair[2] = {*hash, weft_checksum(array, count * sizeof *array)};
  *hash = weft_checksum(pair, sizeof pair);
}

uint64_t hand_hash(const struct hand *hand) {
  uint64_t hash = 0;
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    mix(&hash, hand->layers[k].parameters, hand->layers[k].floats);
  }
  return hash;
}

static void mix_state(uint64_t *hash, const struct weft_gpt_layer_state *layer) {
  mix(hash, layer->gradients, layer->floats);
  mix(hash, layer->first_moment, layer->floats);
  mix(hash, layer->second_moment, layer->floats);
}

uint64_t hand_hash_state(const struct hand *hand) {
  uint64_t hash = 0;
  for (uint32_t k = 0; k < hand->layer_count; k++) {
    mix_state(&hash, &hand->layers[k]);
  }
  return hash;
}

uint64_t hand_hash_state_of(const struct weft_gpt_trainer *trainer,
                            const struct weft_gpt_config *config) {
  uint64_t hash = 0;
  for (uint32_t k = 0; k < weft_gpt_layer_count(config); k++) {
    const uint64_t count = weft_gpt_layer_floats(config, k);
    struct weft_gpt_layer_state layer = {.layer = k,
                                         .gradients = floats(count),
                                         .first_moment = floats(count),
                                         .second_moment = floats(count)};
    assert_true(weft_gpt_trainer_copy_layer(trainer, &layer));
    mix_state(&hash, &layer);
    free(layer.gradients);
    free(layer.first_moment);
    free(layer.second_moment);
  }
  return hash;
}
