/* See support_gpt_hand.h. */
#include "support_gpt_hand.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpt/kernels/kernels.h"
#include "gpt/model/layer.h"
#include "gpt/train/learning_rate.h"

/* ---- What is trained ---- */

enum { CORPUS = 3000 };
static uint8_t text[CORPUS];

struct weft_gpt_corpus hand_corpus(void) {
  static const char words[] = "a stitch in time saves nine; the weft runs under the warp, ";
  for (uint32_t k = 0; k < CORPUS; k++) {
    text[k] = (uint8_t)words[(k + k / 83) % (sizeof words - 1)];
  }
  return (struct weft_gpt_corpus){
      .bytes = text, .size = CORPUS, .train_size = CORPUS * 9 / 10, .hash = 7};
}

struct weft_gpt_trainer_options hand_options(const struct weft_gpt_corpus *corpus) {
  return (struct weft_gpt_trainer_options){
      .progress = {.config = {.layers = 6,
                              .dim = 8,
                              .heads = 2,
                              .context = 6,
                              .vocabulary = WEFT_GPT_VOCABULARY,
                              .seed = 3},
                   .data_hash = corpus->hash,
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
      .corpus = corpus,
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

void hand_init(struct hand *hand, const struct weft_gpt_progress *progress,
               const struct weft_gpt_corpus *corpus) {
  const struct weft_gpt_config *config = &progress->config;
  const uint64_t sequences = progress->batch, tokens = sequences * config->context;
  weft_gpt_set_blas_threads(1); /* as a trainer does: products depend on it */
  *hand = (struct hand){
      .progress = *progress, .corpus = corpus, .part_count = weft_gpt_part_count(config)};
  hand->parts = calloc(hand->part_count, sizeof *hand->parts);
  hand->work = calloc(hand->part_count, sizeof *hand->work);
  hand->inputs = malloc(tokens);
  hand->targets = malloc(tokens);
  assert_true(hand->parts != NULL && hand->work != NULL && hand->inputs != NULL &&
              hand->targets != NULL);
  for (uint32_t k = 0; k < hand->part_count; k++) {
    struct weft_gpt_part_state *part = &hand->parts[k];
    part->floats = weft_gpt_part_floats(config, k);
    part->parameters = floats(part->floats);
    part->gradients = floats(part->floats);
    part->first_moment = floats(part->floats);
    part->second_moment = floats(part->floats);
    weft_gpt_part_initialize(config, k, part->parameters);
    hand->work[k] = (struct hand_part){
        .kept = floats(weft_gpt_part_kept(config, k, sequences, config->context)),
        .scratch = floats(weft_gpt_part_scratch(config, k, sequences, config->context)),
        .x = floats(tokens * config->dim),
        .dx = floats(tokens * config->dim),
        .partial = floats(part->floats)};
  }
}

void hand_finish(struct hand *hand) {
  for (uint32_t k = 0; k < hand->part_count; k++) {
    free(hand->parts[k].parameters);
    free(hand->parts[k].gradients);
    free(hand->parts[k].first_moment);
    free(hand->parts[k].second_moment);
    free(hand->work[k].kept);
    free(hand->work[k].scratch);
    free(hand->work[k].x);
    free(hand->work[k].dx);
    free(hand->work[k].partial);
  }
  free(hand->parts);
  free(hand->work);
  free(hand->inputs);
  free(hand->targets);
}

/* ---- A microbatch ---- */

static struct weft_gpt_part_call call_of(const struct hand *hand, uint32_t k, uint64_t sequences) {
  return (struct weft_gpt_part_call){.config = &hand->progress.config,
                                     .part = k,
                                     .sequences = sequences,
                                     .tokens = hand->progress.config.context,
                                     .parameters = hand->parts[k].parameters,
                                     .kept = hand->work[k].kept,
                                     .scratch = hand->work[k].scratch};
}

static double microbatch(const struct hand *hand, uint64_t sequences, const uint8_t *inputs,
                         const uint8_t *targets) {
  const struct hand_part *work = hand->work;
  const uint32_t last = hand->part_count - 1;
  const struct weft_gpt_part_call first = call_of(hand, 0, sequences);
  const struct weft_gpt_part_call head = call_of(hand, last, sequences);
  weft_gpt_embedding_forward(&first, inputs, work[1].x);
  for (uint32_t k = 1; k < last; k++) {
    const struct weft_gpt_part_call block = call_of(hand, k, sequences);
    weft_gpt_block_forward(&block, work[k].x, work[k + 1].x);
  }
  const double loss = weft_gpt_head_forward(&head, work[last].x, targets, true, NULL);
  weft_gpt_head_input(&head, work[last].x, work[last].dx);
  weft_gpt_head_weight(&head, work[last].x, work[last].partial);
  for (uint32_t k = last; k-- > 1;) {
    const struct weft_gpt_part_call block = call_of(hand, k, sequences);
    weft_gpt_block_input(&block, work[k].x, work[k + 1].dx, work[k].dx);
    weft_gpt_block_weight(&block, work[k].x, work[k + 1].dx, work[k].partial);
  }
  weft_gpt_embedding_weight(&first, inputs, work[1].dx, work[0].partial);
  return loss;
}

/* ---- A replica ---- */

/* Where the tied weight is, in the embedding and in the head. */
static const struct weft_gpt_parameter *tied(const struct hand *hand, bool head,
                                             struct weft_gpt_parameter *parameters) {
  weft_gpt_part_parameters(&hand->progress.config, head ? hand->part_count - 1 : 0, parameters);
  return &parameters[head ? 2 : 0];
}

static void tie(const struct hand *hand) {
  struct weft_gpt_parameter first[WEFT_GPT_PARAMETERS_MAX], last[WEFT_GPT_PARAMETERS_MAX];
  const struct weft_gpt_parameter *wte = tied(hand, false, first), *head = tied(hand, true, last);
  float *a = hand->work[0].partial + wte->offset;
  float *b = hand->work[hand->part_count - 1].partial + head->offset;
  for (uint64_t i = 0; i < wte->count; i++) {
    a[i] = b[i] = a[i] + b[i];
  }
}

/* Scaled partial sums of one replica; returns its loss. */
static double replica(const struct hand *hand, uint32_t d, uint32_t replicas) {
  const struct weft_gpt_progress *progress = &hand->progress;
  const uint32_t m = progress->microbatches;
  const uint64_t sequences = progress->batch / replicas / m;
  const uint64_t share = sequences * progress->config.context;
  double sum = 0;
  for (uint32_t k = 0; k < hand->part_count; k++) {
    memset(hand->work[k].partial, 0, hand->parts[k].floats * sizeof(float));
  }
  for (uint32_t n = 0; n < m; n++) {
    const uint64_t at = ((uint64_t)d * m + n) * share;
    sum += microbatch(hand, sequences, hand->inputs + at, hand->targets + at);
  }
  for (uint32_t k = 0; k < hand->part_count; k++) {
    weft_gpt_scale(hand->parts[k].floats, (float)(1.0 / m / replicas), hand->work[k].partial);
  }
  if (progress->config.tied) {
    tie(hand);
  }
  return sum / m;
}

/* ---- The update ---- */

/* The norm's sum of squares is taken slice by slice: ceil(floats / (16 D)) x 16 each. */
static double square_of(const struct hand *hand, uint32_t k, uint32_t replicas) {
  const struct weft_gpt_part_state *part = &hand->parts[k];
  const uint64_t unit = 16 * (uint64_t)(replicas > 0 ? replicas : 1),
                 slice = (part->floats + unit - 1) / unit * 16;
  uint64_t end = part->floats;
  double sum = 0;
  if (hand->progress.config.tied && k + 1 == hand->part_count) {
    struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
    end = tied(hand, true, parameters)->offset;
  }
  for (uint64_t at = 0; at < end; at += slice) {
    sum += weft_gpt_square_sum(end - at < slice ? end - at : slice, part->gradients + at);
  }
  return sum;
}

static void update(const struct hand *hand, uint64_t step, double norm) {
  const struct weft_gpt_progress *progress = &hand->progress;
  const double steps = (double)step + 1;
  struct weft_gpt_adamw adamw = {
      .rate = (float)weft_gpt_rate_at(step, progress->rate, progress->rate_min,
                                      progress->warmup_steps, progress->total_steps),
      .beta1 = (float)progress->beta1,
      .beta2 = (float)progress->beta2,
      .epsilon = (float)progress->epsilon,
      .correction1 = (float)(1 - pow(progress->beta1, steps)),
      .correction2 = (float)(1 - pow(progress->beta2, steps)),
      .grad_scale = norm > progress->clip ? (float)(progress->clip / (norm + 1e-6)) : 1};
  for (uint32_t k = 0; k < hand->part_count; k++) {
    struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
    const uint32_t count = weft_gpt_part_parameters(&progress->config, k, parameters);
    for (uint32_t n = 0; n < count; n++) {
      const uint64_t at = parameters[n].offset;
      const struct weft_gpt_part_state *part = &hand->parts[k];
      adamw.decay = parameters[n].decays ? (float)progress->decay : 0;
      weft_gpt_adamw_update(&adamw, parameters[n].count, part->gradients + at,
                            part->parameters + at, part->first_moment + at,
                            part->second_moment + at);
    }
  }
}

double hand_step(struct hand *hand, uint64_t step, uint32_t replicas) {
  const struct weft_gpt_progress *progress = &hand->progress;
  double loss = 0, square = 0;
  assert_true(replicas > 0);
  weft_gpt_corpus_batch(hand->corpus, false, progress->data_seed, step, progress->batch,
                        progress->config.context, hand->inputs, hand->targets);
  for (uint32_t d = 0; d < replicas; d++) {
    loss += replica(hand, d, replicas);
    for (uint32_t k = 0; k < hand->part_count; k++) {
      const uint64_t size = hand->parts[k].floats * sizeof(float);
      if (d == 0) {
        memcpy(hand->parts[k].gradients, hand->work[k].partial, size);
      } else {
        weft_gpt_add(hand->parts[k].floats, hand->work[k].partial, hand->parts[k].gradients);
      }
    }
  }
  for (uint32_t k = 0; k < hand->part_count; k++) {
    square += square_of(hand, k, replicas);
  }
  update(hand, step, sqrt(square));
  return loss / replicas;
}

/* ---- Hashes ---- */

static void mix(uint64_t *hash, const float *array, uint64_t count) {
  const uint64_t pair[2] = {*hash, weft_checksum(array, count * sizeof *array)};
  *hash = weft_checksum(pair, sizeof pair);
}

uint64_t hand_hash(const struct hand *hand) {
  uint64_t hash = 0;
  for (uint32_t k = 0; k < hand->part_count; k++) {
    mix(&hash, hand->parts[k].parameters, hand->parts[k].floats);
  }
  return hash;
}

static void mix_state(uint64_t *hash, const struct weft_gpt_part_state *part) {
  mix(hash, part->gradients, part->floats);
  mix(hash, part->first_moment, part->floats);
  mix(hash, part->second_moment, part->floats);
}

uint64_t hand_hash_state(const struct hand *hand) {
  uint64_t hash = 0;
  for (uint32_t k = 0; k < hand->part_count; k++) {
    mix_state(&hash, &hand->parts[k]);
  }
  return hash;
}

uint64_t hand_hash_state_of(const struct weft_gpt_trainer *trainer,
                            const struct weft_gpt_config *config) {
  uint64_t hash = 0;
  for (uint32_t k = 0; k < weft_gpt_part_count(config); k++) {
    const uint64_t count = weft_gpt_part_floats(config, k);
    struct weft_gpt_part_state part = {.part = k,
                                       .gradients = floats(count),
                                       .first_moment = floats(count),
                                       .second_moment = floats(count)};
    assert_true(weft_gpt_trainer_copy_part(trainer, &part));
    mix_state(&hash, &part);
    free(part.gradients);
    free(part.first_moment);
    free(part.second_moment);
  }
  return hash;
}
