/* After the pipeline's step: what ranks tell each other of it, the norm of all gradients,
 * and AdamW on what the rank keeps of its parts. */
#include <math.h>
#include <string.h>

#include <weft/support.h>

#include "gpt/kernels/kernels.h"
#include "gpt/train/learning_rate.h"
#include "gpt/train/trainer_rank.h"

static const struct weft_gpt_progress *progress_of(const struct weft_gpt_rank *rank) {
  return &rank->trainer->options.progress;
}

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- What is told: this, then squares and means of the own parts, then means of the own
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
         trainer->parts.most * (sizeof(double) + sizeof(struct weft_gpt_part_means)) +
         trainer->stages.most * sizeof(struct weft_gpt_stage_means);
}

uint64_t weft_gpt_rank_bulletin_bytes(const struct weft_gpt_trainer *trainer) {
  const uint64_t bytes =
      max64(step_bytes(trainer), trainer->parts.most * sizeof(struct weft_gpt_part_file));
  return trainer->options.tunes ? max64(bytes, WEFT_GPT_TUNING_PIECE) : bytes;
}

/* Of this replica's slice of a part's gradients. Slices do not depend on the split, nor on
 * what is sharded. A tied weight counts where the embedding is. */
static double slice_square(const struct weft_gpt_rank *rank, uint32_t part) {
  uint32_t k;
  const struct weft_gpt_stage *stage = weft_gpt_rank_stage(rank, part, &k);
  const struct weft_gpt_part_kept *kept = &stage->memory.kept[k];
  uint64_t end = stage->parts[k].floats, count;
  if (rank->trainer->config.tied && part + 1 == rank->trainer->part_count) {
    weft_gpt_tied_range(&rank->trainer->config, true, &end, &count); /* it is the last one */
  }
  end = min64(end, kept->slice_begin + kept->slice_floats);
  return end > kept->slice_begin
             ? weft_gpt_square_sum(end - kept->slice_begin,
                                   kept->gradients + (kept->slice_begin - kept->begin))
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
  for (uint32_t k = 0; k < rank->own_part_count; k++) {
    const double square = slice_square(rank, rank->own_parts[k]);
    memcpy(at + k * sizeof square, &square, sizeof square);
  }
  at += rank->trainer->parts.most * sizeof(double);
  for (uint32_t k = 0; k < rank->own_part_count; k++) {
    const struct weft_gpt_part_means means = weft_gpt_rank_part_means(rank, rank->own_parts[k]);
    memcpy(at + k * sizeof means, &means, sizeof means);
  }
  at += rank->trainer->parts.most * sizeof(struct weft_gpt_part_means);
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

static void add_part_means(struct weft_gpt_part_means *sum,
                           const struct weft_gpt_part_means *means) {
  sum->f += means->f;
  sum->i += means->i;
  sum->w += means->w;
}

/* Adds what a rank has told of its parts and stages. */
static void take_lists(struct weft_gpt_rank *rank, uint32_t row, const unsigned char *at) {
  const struct weft_gpt_ownership *parts = &rank->trainer->parts, *stages = &rank->trainer->stages;
  for (uint32_t k = parts->begin[row]; k < parts->begin[row + 1]; k++) {
    double square;
    memcpy(&square, at + (k - parts->begin[row]) * sizeof square, sizeof square);
    rank->squares[parts->list[k]] += square;
  }
  at += parts->most * sizeof(double);
  for (uint32_t k = parts->begin[row]; k < parts->begin[row + 1]; k++) {
    struct weft_gpt_part_means means;
    memcpy(&means, at + (k - parts->begin[row]) * sizeof means, sizeof means);
    add_part_means(&rank->part_means[parts->list[k]], &means);
  }
  at += parts->most * sizeof(struct weft_gpt_part_means);
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
  memset(rank->squares, 0, trainer->part_count * sizeof *rank->squares);
  memset(rank->means, 0, trainer->stage_count * sizeof *rank->means);
  memset(rank->part_means, 0, trainer->part_count * sizeof *rank->part_means);
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
  for (uint32_t p = 0; p < rank->trainer->part_count; p++) {
    struct weft_gpt_part_means *means = &rank->part_means[p];
    means->f /= replicas;
    means->i /= replicas;
    means->w /= replicas;
  }
}

/* In the order of replicas, and then of parts: so sums are the same everywhere. */
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
  for (uint32_t part = 0; part < trainer->part_count; part++) {
    square += rank->squares[part];
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
static void update_part(const struct weft_gpt_rank *rank, uint32_t part,
                        struct weft_gpt_adamw adamw) {
  struct weft_gpt_parameter parameters[WEFT_GPT_PARAMETERS_MAX];
  uint32_t k;
  const struct weft_gpt_part_kept *kept = weft_gpt_rank_stage(rank, part, &k)->memory.kept;
  const uint32_t count = weft_gpt_part_parameters(&rank->trainer->config, part, parameters);
  const float decay = adamw.decay;
  kept += k;
  for (uint32_t n = 0; n < count; n++) {
    const uint64_t begin = max64(parameters[n].offset, kept->begin);
    const uint64_t end =
        min64(parameters[n].offset + parameters[n].count, kept->begin + kept->floats);
    if (begin < end) {
      const uint64_t at = begin - kept->begin;
      adamw.decay = parameters[n].decays ? decay : 0;
      weft_gpt_adamw_update(&adamw, end - begin, kept->gradients + at, kept->parameters + at,
                            kept->first_moment + at, kept->second_moment + at);
    }
  }
}

static double rate_now(const struct weft_gpt_rank *rank) {
  const struct weft_gpt_progress *progress = progress_of(rank);
  return weft_gpt_rate_at(rank->step, progress->rate, progress->rate_min, progress->warmup_steps,
                          progress->total_steps);
}

/* When sharded, every replica has updated its slices of parameters that all need whole. */
static enum weft_status start_gathering(struct weft_gpt_rank *rank, struct weft_error *error) {
  struct weft_group *group = rank->group;
  for (uint32_t n = 0; n < rank->own_stage_count; n++) {
    struct weft_gpt_stage *stage = rank->stages[rank->own_stages[n]];
    stage->collectives_done = 0;
    for (uint32_t k = 0; k < stage->part_count; k++) {
      const struct weft_gpt_part_kept *kept = &stage->memory.kept[k];
      stage->collectives[k] = (struct weft_collective){.kind = WEFT_ALL_GATHER,
                                                       .from = kept->parameters,
                                                       .to = stage->parts[k].parameters,
                                                       .bytes = kept->slice_floats * sizeof(float)};
      WEFT_TRY(group->ops->start(group, &stage->collectives[k], error));
    }
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_rank_update(struct weft_gpt_rank *rank, struct weft_error *error) {
  const struct weft_gpt_progress *progress = progress_of(rank);
  const double rate = rate_now(rank), steps = (double)rank->step + 1;
  const bool clips = progress->clip > 0 && rank->norm > progress->clip;
  const struct weft_gpt_adamw adamw = {
      .rate = (float)rate,
      .beta1 = (float)progress->beta1,
      .beta2 = (float)progress->beta2,
      .epsilon = (float)progress->epsilon,
      .decay = (float)progress->decay,
      .correction1 = (float)(1 - pow(progress->beta1, steps)),
      .correction2 = (float)(1 - pow(progress->beta2, steps)),
      .grad_scale = clips ? (float)(progress->clip / (rank->norm + 1e-6)) : 1};
  for (uint32_t k = 0; k < rank->own_part_count; k++) {
    update_part(rank, rank->own_parts[k], adamw);
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
        rank->group, stage->collectives, stage->part_count, &stage->collectives_done, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  return WEFT_OK;
}

/* ---- The report ---- */

static void report_step(struct weft_gpt_rank *rank) {
  struct weft_gpt_step_report *report = &rank->report;
  const struct weft_gpt_progress *progress = progress_of(rank);
  const int64_t now = weft_clock_ns();
  report->step = rank->step;
  report->steps = progress->total_steps;
  report->loss = rank->loss;
  report->gradient_norm = rank->norm;
  report->seconds = (double)(now - rank->step_begin_ns) * 1e-9;
  report->tokens_per_s =
      (double)(progress->batch * progress->config.context) / fmax(report->seconds, 1e-9);
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
