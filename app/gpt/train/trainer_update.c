/* After the pipeline's step: what ranks tell each other of it, the norm of all gradients,
 * and AdamW on what the rank keeps of its layers. */
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/kernels/kernels.h"
#include "gpt/train/learning_rate.h"
#include "gpt/train/trainer_rank.h"

static const struct weft_gpt_training *progress_of(const struct weft_gpt_rank *rank) {
  return &rank->trainer->options.training;
}

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- What is told: this, then squares and means of the own layers, then means of the own
 * stages ---- */

struct facts {
  double loss;                 /* of the replica, from its rank with the last stage */
  int64_t busy_ns, begin, end; /* of the step */
  int64_t pipeline_ns;         /* that the pipeline's step took, as the rank saw it */
  double room;                 /* MiB of memory; 0: not known */
  uint64_t stop;
};

static uint64_t step_bytes(const struct weft_gpt_trainer *trainer) {
  return sizeof(struct facts) +
         trainer->layers.most * (sizeof(double) + sizeof(struct weft_gpt_layer_means)) +
         trainer->stages.most * sizeof(struct weft_gpt_stage_means);
}

uint64_t weft_gpt_rank_bulletin_bytes(const struct weft_gpt_trainer *trainer) {
  const uint64_t bytes =
      max64(step_bytes(trainer), trainer->layers.most * sizeof(struct weft_gpt_layer_file));
  return trainer->options.tunes ? max64(bytes, WEFT_GPT_TUNING_PIECE) : bytes;
}

/* Of this replica's slice of a layer's gradients. Slices do not depend on the split, nor on
 * what is sharded. A tied weight counts where the embedding is. */
static double slice_square(const struct weft_gpt_rank *rank, uint32_t layer) {
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_stage(rank, layer, &k);
  const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
  uint64_t end = stage->layers[k].floats, count;
  if (rank->trainer->config.tied && layer + 1 == rank->trainer->layer_count) {
    weft_gpt_tied_range(&rank->trainer->config, true, &end, &count); /* it is the last one */
  }
  end = min64(end, shard->slice_begin + shard->slice_floats);
  return end > shard->slice_begin
             ? weft_gpt_square_sum(end - shard->slice_begin,
                                   shard->gradients + (shard->slice_begin - shard->begin))
             : 0;
}

static void tell_step(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer_options *options = &rank->trainer->options;
  unsigned char *at = rank->bulletin.mine;
  const struct facts facts = {
      .loss = rank->loss,
      .busy_ns = rank->busy_ns,
      .begin = rank->first_begin,
      .end = rank->last_end,
      .pipeline_ns = rank->pipeline_ns,
      .room = options->memory_free,
      .stop = options->interrupted != NULL && options->interrupted(options->context)};
  memcpy(at, &facts, sizeof facts);
  at += sizeof facts;
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    const double square = slice_square(rank, rank->own_layers[k]);
    memcpy(at + k * sizeof square, &square, sizeof square);
  }
  at += rank->trainer->layers.most * sizeof(double);
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    const struct weft_gpt_layer_means means = weft_gpt_rank_layer_means(rank, rank->own_layers[k]);
    memcpy(at + k * sizeof means, &means, sizeof means);
  }
  at += rank->trainer->layers.most * sizeof(struct weft_gpt_layer_means);
  for (uint32_t k = 0; k < rank->own_stage_count; k++) {
    const struct weft_gpt_stage_means means = weft_gpt_rank_means(rank, rank->own_stages[k]);
    memcpy(at + k * sizeof means, &means, sizeof means);
  }
}

/* ---- What was told ---- */

static void add_means(struct weft_gpt_stage_means *sum, const struct weft_gpt_stage_means *means) {
  sum->f += means->f;
  sum->b += means->b;
  sum->i += means->i;
  sum->w += means->w;
  sum->arrival[0] += means->arrival[0];
  sum->arrival[1] += means->arrival[1];
  sum->unshard += means->unshard;
  sum->reduce_grad += means->reduce_grad;
}

static void add_layer_means(struct weft_gpt_layer_means *sum,
                            const struct weft_gpt_layer_means *means) {
  sum->f += means->f;
  sum->i += means->i;
  sum->w += means->w;
}

/* Adds what a rank has told of its layers and stages. */
static void take_lists(struct weft_gpt_rank *rank, uint32_t row, const unsigned char *at) {
  const struct weft_gpt_ownership *layers = &rank->trainer->layers,
                                  *stages = &rank->trainer->stages;
  for (uint32_t k = layers->begin[row]; k < layers->begin[row + 1]; k++) {
    double square;
    memcpy(&square, at + (k - layers->begin[row]) * sizeof square, sizeof square);
    rank->squares[layers->list[k]] += square;
  }
  at += layers->most * sizeof(double);
  for (uint32_t k = layers->begin[row]; k < layers->begin[row + 1]; k++) {
    struct weft_gpt_layer_means means;
    memcpy(&means, at + (k - layers->begin[row]) * sizeof means, sizeof means);
    add_layer_means(&rank->layer_means[layers->list[k]], &means);
  }
  at += layers->most * sizeof(struct weft_gpt_layer_means);
  for (uint32_t k = stages->begin[row]; k < stages->begin[row + 1]; k++) {
    struct weft_gpt_stage_means means;
    memcpy(&means, at + (k - stages->begin[row]) * sizeof means, sizeof means);
    add_means(&rank->means[stages->list[k]], &means);
  }
}

/* Over all ranks. */
struct totals {
  int64_t begin, end, longest;
  int64_t pipeline_ns; /* the longest: all begin together */
  double busy, loss, room;
};

static void take_facts(struct weft_gpt_rank *rank, const struct facts *facts,
                       struct totals *totals) {
  const int64_t span = facts->end - facts->begin;
  totals->begin = facts->begin < totals->begin ? facts->begin : totals->begin;
  totals->end = facts->end > totals->end ? facts->end : totals->end;
  totals->longest = span > totals->longest ? span : totals->longest;
  totals->pipeline_ns =
      facts->pipeline_ns > totals->pipeline_ns ? facts->pipeline_ns : totals->pipeline_ns;
  totals->room = facts->room > 0 && facts->room < totals->room ? facts->room : totals->room;
  totals->busy += (double)facts->busy_ns;
  rank->stop = rank->stop || facts->stop != 0;
}

/* Clocks of several machines differ: there the longest of the ranks' own spans must do. */
static double find_bubble(const struct weft_gpt_rank *rank, const struct totals *totals) {
  const bool one_clock = rank->trainer->options.transport != WEFT_GPT_MPI;
  const int64_t span = one_clock ? totals->end - totals->begin : totals->longest;
  return span > 0 ? 1 - totals->busy / ((double)rank->trainer->world_size * (double)span) : NAN;
}

static void clear_step(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  memset(rank->squares, 0, trainer->layer_count * sizeof *rank->squares);
  memset(rank->means, 0, trainer->stage_count * sizeof *rank->means);
  memset(rank->layer_means, 0, trainer->layer_count * sizeof *rank->layer_means);
}

static void divide_means(struct weft_gpt_rank *rank) {
  const float replicas = (float)rank->trainer->options.replicas;
  for (uint32_t s = 0; s < rank->trainer->stage_count; s++) {
    struct weft_gpt_stage_means *means = &rank->means[s];
    means->f /= replicas;
    means->b /= replicas;
    means->i /= replicas;
    means->w /= replicas;
    means->arrival[0] /= replicas;
    means->arrival[1] /= replicas;
    means->unshard /= replicas;
    means->reduce_grad /= replicas;
  }
  for (uint32_t p = 0; p < rank->trainer->layer_count; p++) {
    struct weft_gpt_layer_means *means = &rank->layer_means[p];
    means->f /= replicas;
    means->i /= replicas;
    means->w /= replicas;
  }
}

/* In the order of replicas, and then of layers: so sums are the same everywhere. */
static void take_step(struct weft_gpt_rank *rank) {
  const struct weft_gpt_trainer *trainer = rank->trainer;
  const uint32_t rows = trainer->options.ranks;
  const uint32_t last = trainer->rank_of[trainer->stage_count - 1];
  struct totals totals = {.begin = INT64_MAX, .end = INT64_MIN, .room = INFINITY};
  double square = 0;
  clear_step(rank);
  for (uint32_t r = 0; r < trainer->world_size; r++) {
    const unsigned char *told = weft_gpt_bulletin_of(&rank->bulletin, r);
    struct facts facts;
    memcpy(&facts, told, sizeof facts);
    take_facts(rank, &facts, &totals);
    totals.loss += r % rows == last ? facts.loss : 0;
    take_lists(rank, r % rows, told + sizeof facts);
  }
  divide_means(rank);
  for (uint32_t layer = 0; layer < trainer->layer_count; layer++) {
    square += rank->squares[layer];
  }
  rank->norm = sqrt(square);
  rank->loss = totals.loss / trainer->options.replicas;
  rank->bubble = find_bubble(rank, &totals);
  rank->pipeline_ns = totals.pipeline_ns;
  rank->room = totals.room;
}

enum weft_status weft_gpt_rank_norms(struct weft_gpt_rank *rank, struct weft_error *error) {
  if (!rank->told) {
    weft_gpt_bulletin_begin(&rank->bulletin, step_bytes(rank->trainer));
    tell_step(rank);
    rank->told = true;
  }
  const enum weft_status status = weft_gpt_rank_meet(rank, error);
  if (status != WEFT_OK) {
    return status;
  }
  take_step(rank);
  rank->state = WEFT_GPT_RANK_UPDATE;
  return WEFT_OK;
}

/* ---- Update ---- */

/* Of each parameter, what is kept here. */
static void update_layer(const struct weft_gpt_rank *rank, uint32_t layer,
                         struct weft_gpt_adamw adamw) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  uint32_t k;
  const struct weft_gpt_layer_shard *shard = weft_gpt_rank_stage(rank, layer, &k)->memory.shards;
  const uint32_t count = weft_gpt_layer_parameters(&rank->trainer->config, layer, parameters);
  const float decay = adamw.decay;
  shard += k;
  for (uint32_t n = 0; n < count; n++) {
    const uint64_t begin = max64(parameters[n].offset, shard->begin);
    const uint64_t end =
        min64(parameters[n].offset + parameters[n].count, shard->begin + shard->floats);
    if (begin < end) {
      const uint64_t at = begin - shard->begin;
      adamw.decay = parameters[n].decays ? decay : 0;
      weft_gpt_adamw_update(&adamw, end - begin, shard->gradients + at, shard->parameters + at,
                            shard->first_moment + at, shard->second_moment + at);
    }
  }
}

static double rate_now(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_training *training = progress_of(rank);
  return weft_gpt_learning_rate(rank->step, training->rate, training->rate_min,
                                training->warmup_steps, training->total_steps);
}

/* When sharded, every replica has updated its slices of parameters that all need whole. */
static enum weft_status start_gathering(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_group *group = rank->group;
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    stage->collectives_done = 0;
    for (uint32_t k = 0; k < stage->layer_count; k++) {
      const struct weft_gpt_layer_shard *shard = &stage->memory.shards[k];
      stage->collectives[k] =
          (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                   .from = shard->parameters,
                                   .to = stage->layers[k].parameters,
                                   .bytes = shard->slice_floats * sizeof(float)};
      WEFT_TRY(group->ops->start(group, &stage->collectives[k], error));
    }
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_update(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_training *training = progress_of(rank);
  const double rate = rate_now(rank), steps = (double)rank->step + 1;
  const bool clips = training->clip > 0 && rank->norm > training->clip;
  const struct weft_gpt_adamw adamw = {
      .rate = (float)rate,
      .beta1 = (float)training->beta1,
      .beta2 = (float)training->beta2,
      .epsilon = (float)training->epsilon,
      .decay = (float)training->decay,
      .correction1 = (float)(1 - pow(training->beta1, steps)),
      .correction2 = (float)(1 - pow(training->beta2, steps)),
      .grad_scale = clips ? (float)(training->clip / (rank->norm + 1e-6)) : 1};
  for (uint32_t k = 0; k < rank->own_layer_count; k++) {
    update_layer(rank, rank->own_layers[k], adamw);
  }
  rank->report.rate = rate;
  rank->step++;
  if (rank->trainer->options.shard == WEFT_GPT_SHARD_GRADS) {
    WEFT_TRY(start_gathering(rank, error));
  }
  rank->state = WEFT_GPT_RANK_UPDATING;
  return WEFT_OK;
}

static enum weft_status gather_updates(struct weft_gpt_rank *rank, struct weft_error *error) {
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    const enum weft_status status = weft_gpt_collectives_advance(
        rank->group, stage->collectives, stage->layer_count, &stage->collectives_done, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  return WEFT_OK;
}

/* ---- The report ---- */

static void report_step(struct weft_gpt_rank *rank) {
  struct weft_gpt_step_report *report = &rank->report;
  const struct weft_gpt_training *training = progress_of(rank);
  const int64_t now = weft_clock_ns();
  report->step = rank->step;
  report->steps = training->total_steps;
  report->loss = rank->loss;
  report->gradient_norm = rank->norm;
  report->seconds = (double)(now - rank->step_begin_ns) * 1e-9;
  report->tokens_per_s =
      (double)(training->batch * training->config.context) / fmax(report->seconds, 1e-9);
  report->seconds_so_far = (double)(now - rank->run_begin_ns) * 1e-9;
  report->bubble = rank->bubble;
  report->predicted_bubble = weft_gpt_rank_predict(rank);
  report->schedule = rank->now.schedule;
}

enum weft_status weft_gpt_rank_updating(struct weft_gpt_rank *rank, struct weft_error *error) {
  if (rank->trainer->options.shard == WEFT_GPT_SHARD_GRADS) {
    const enum weft_status status = gather_updates(rank, error);
    if (status != WEFT_OK) {
      return status == WEFT_IN_PROGRESS ? weft_gpt_rank_await(rank, error) : status;
    }
    rank->wait_since = 0;
  }
  if (weft_gpt_rank_reports(rank)) {
    report_step(rank);
  }
  rank->eval_at = 0;
  rank->eval_sum = 0;
  rank->state = WEFT_GPT_RANK_EVALUATE;
  return WEFT_OK;
}
