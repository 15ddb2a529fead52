/* The trainer: stages, pipelines and ranks made and driven; see trainer.h. What a rank
 * does is trainer_rank.c's. */
#include "gpt/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include <weft/net.h>
#include <weft/plan.h>

#include "gpt/fail.h"
#include "gpt/kernels.h"
#include "gpt/memory.h"
#include "gpt/trainer_rank.h"

/* ---- Parts and stages ---- */

static uint32_t stage_of_part(const struct weft_gpt_trainer *trainer, uint32_t part) {
  uint32_t stage = 0;
  while (part >= trainer->first_parts[stage + 1]) {
    stage++;
  }
  return stage;
}

struct weft_gpt_part_state *weft_gpt_rank_part(const struct weft_gpt_trainer *trainer,
                                               uint32_t part) {
  struct weft_gpt_stage *stage = trainer->stages[stage_of_part(trainer, part)];
  return &stage->parts[part - stage->first_part];
}

/* Rows of the largest microbatch. */
static uint64_t sequences_max(const struct weft_gpt_trainer_options *options) {
  const uint64_t m = options->progress.microbatches;
  return (options->progress.batch + m - 1) / m;
}

static enum weft_status make_stages(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const uint64_t sequences = sequences_max(&trainer->options);
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    const uint32_t first = trainer->first_parts[s];
    WEFT_GPT_TRY(weft_gpt_stage_create(trainer->allocator, &trainer->config, first,
                                       trainer->first_parts[s + 1] - first, sequences,
                                       &trainer->stages[s], error));
    trainer->bases[s] = &trainer->stages[s]->stage;
    trainer->boundaries[s] = s + 1 < trainer->stage_count
                                 ? weft_gpt_boundary(&trainer->config, sequences)
                                 : weft_gpt_output_boundary(&trainer->config, sequences, false);
  }
  return WEFT_OK;
}

static enum weft_status load_parts(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const struct weft_gpt_checkpoint *resume = trainer->options.resume;
  for (uint32_t part = 0; resume != NULL && part < trainer->part_count; part++) {
    WEFT_GPT_TRY(weft_gpt_checkpoint_read_part(resume, weft_gpt_rank_part(trainer, part), error));
  }
  return WEFT_OK;
}

/* ---- The schedule ---- */

static enum weft_status plan(void *context, uint32_t microbatches, bool training,
                             struct weft_program **out, struct weft_error *error) {
  struct weft_gpt_trainer *trainer = context;
  const struct weft_gpt_trainer_options *options = &trainer->options;
  if (options->program != NULL) {
    struct weft_fixed_plan fixed = {.allocator = trainer->allocator, .program = options->program};
    return weft_plan_fixed(&fixed, microbatches, training, out, error);
  }
  struct weft_named_plan named = {.allocator = trainer->allocator,
                                  .schedule = options->schedule,
                                  .ranks = options->ranks,
                                  .stages_per_rank = options->stages_per_rank};
  return weft_plan_named(&named, microbatches, training, out, error);
}

static enum weft_status read_shape(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  struct weft_program *program;
  WEFT_GPT_TRY(plan(trainer, trainer->options.progress.microbatches, true, &program, error));
  trainer->stage_count = program->stage_count;
  trainer->options.ranks = program->rank_count;
  trainer->rank_of =
      weft_gpt_allocate(trainer->allocator, program->stage_count, sizeof *trainer->rank_of);
  if (trainer->rank_of != NULL) {
    (void)weft_placement_infer(program, trainer->rank_of);
  }
  weft_program_destroy(program);
  return trainer->rank_of != NULL
             ? WEFT_OK
             : weft_gpt_fail_memory(error, trainer->stage_count * sizeof *trainer->rank_of);
}

static enum weft_status split(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const uint32_t *given = trainer->options.first_parts;
  trainer->first_parts = weft_gpt_allocate(trainer->allocator, trainer->stage_count + 1u,
                                           sizeof *trainer->first_parts);
  if (trainer->first_parts == NULL) {
    return weft_gpt_fail_memory(error, trainer->stage_count * sizeof *trainer->first_parts);
  }
  if (given != NULL) {
    memcpy(trainer->first_parts, given, (trainer->stage_count + 1u) * sizeof *trainer->first_parts);
    return WEFT_OK;
  }
  return weft_gpt_split(&trainer->config, NULL, trainer->stage_count, trainer->first_parts, error);
}

/* ---- Ranks ---- */

static bool allocate_rank(struct weft_gpt_trainer *trainer, struct weft_gpt_rank *rank) {
  const struct weft_gpt_progress *progress = &trainer->options.progress;
  const struct weft_allocator *allocator = trainer->allocator;
  const uint64_t tokens = progress->batch * progress->config.context;
  const uint64_t tied = (uint64_t)trainer->config.vocabulary * trainer->config.dim;
  rank->own_parts = weft_gpt_allocate(allocator, trainer->part_count, sizeof *rank->own_parts);
  rank->inputs = weft_gpt_allocate(allocator, tokens, 1);
  rank->targets = weft_gpt_allocate(allocator, tokens, 1);
  rank->all = weft_gpt_allocate(allocator, trainer->options.ranks, sizeof *rank->all);
  rank->norms = weft_gpt_allocate(allocator, trainer->part_count, sizeof *rank->norms);
  rank->tied_sum = weft_gpt_allocate(allocator, trainer->config.tied ? tied : 1, sizeof(float));
  return rank->own_parts != NULL && rank->inputs != NULL && rank->targets != NULL &&
         rank->all != NULL && rank->norms != NULL && rank->tied_sum != NULL;
}

static void find_own_parts(const struct weft_gpt_trainer *trainer, struct weft_gpt_rank *rank,
                           uint32_t number) {
  for (uint32_t part = 0; part < trainer->part_count; part++) {
    if (trainer->rank_of[stage_of_part(trainer, part)] == number) {
      rank->own_parts[rank->own_part_count++] = part;
    }
  }
  rank->has_first = trainer->rank_of[0] == number;
  rank->has_last = trainer->rank_of[trainer->stage_count - 1] == number;
}

static struct weft_pipeline_options pipeline_options(struct weft_gpt_trainer *trainer) {
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.plan = plan;
  options.plan_context = trainer;
  options.microbatch_count = trainer->options.progress.microbatches;
  options.stages = trainer->bases;
  options.stage_count = trainer->stage_count;
  options.boundaries = trainer->boundaries;
  options.boundary_count = trainer->stage_count;
  options.stall_limit = trainer->options.transport == WEFT_GPT_THREADS
                            ? trainer->options.stall_limit
                            : 0; /* virtual time stands still while a rank computes */
  return options;
}

static enum weft_status make_events(struct weft_gpt_trainer *trainer, struct weft_gpt_rank *rank,
                                    struct weft_error *error) {
  struct weft_program *program;
  WEFT_GPT_TRY(plan(trainer, trainer->options.progress.microbatches, true, &program, error));
  const uint32_t number = rank->transport->rank;
  rank->event_room = program->row_begin[number + 1] - program->row_begin[number];
  weft_program_destroy(program);
  rank->events = weft_gpt_allocate(trainer->allocator, rank->event_room, sizeof *rank->events);
  return rank->events != NULL
             ? WEFT_OK
             : weft_gpt_fail_memory(error, rank->event_room * sizeof *rank->events);
}

static enum weft_status make_rank(struct weft_gpt_trainer *trainer, uint32_t number,
                                  struct weft_error *error) {
  struct weft_gpt_rank *rank = &trainer->ranks[number];
  const struct weft_pipeline_options options = pipeline_options(trainer);
  rank->trainer = trainer;
  rank->step = trainer->options.progress.step;
  rank->transport = trainer->threads != NULL ? weft_threads_endpoint(trainer->threads, number)
                                             : weft_loopback_endpoint(trainer->loopback, number);
  if (!allocate_rank(trainer, rank)) {
    return weft_gpt_fail_memory(error, trainer->options.progress.batch * trainer->config.context);
  }
  find_own_parts(trainer, rank, number);
  const uint32_t meetings =
      (rank->own_part_count + WEFT_GPT_NORMS_PER_MEETING - 1) / WEFT_GPT_NORMS_PER_MEETING;
  trainer->meetings = meetings > trainer->meetings ? meetings : trainer->meetings;
  WEFT_GPT_TRY(make_events(trainer, rank, error));
  return weft_pipeline_create(trainer->allocator, rank->transport, &options, &rank->pipeline,
                              error);
}

static enum weft_status make_world(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const uint32_t count = trainer->options.ranks;
  if (trainer->options.transport == WEFT_GPT_THREADS) {
    return weft_threads_create(trainer->allocator, count, &trainer->threads, error);
  }
  return weft_loopback_create(
      trainer->allocator,
      &(struct weft_loopback_options){.rank_count = count, .seed = trainer->options.loopback_seed},
      &trainer->loopback, error);
}

/* ---- Create and destroy ---- */

static enum weft_status check_options(const struct weft_gpt_trainer_options *options,
                                      struct weft_error *error) {
  const struct weft_gpt_progress *progress = &options->progress;
  WEFT_GPT_TRY(weft_gpt_config_check(&progress->config, error));
  if (progress->microbatches == 0 || progress->batch < progress->microbatches ||
      progress->batch % progress->microbatches != 0) {
    return weft_gpt_fail(error, WEFT_ERR_USAGE,
                         "every microbatch has as many sequences, so that their losses weigh the "
                         "same",
                         "a batch of %" PRIu64 " sequences cannot be cut into %" PRIu32
                         " equal microbatches",
                         progress->batch, progress->microbatches);
  }
  return WEFT_OK;
}

static bool allocate_tables(struct weft_gpt_trainer *trainer) {
  const struct weft_allocator *allocator = trainer->allocator;
  const uint32_t stages = trainer->stage_count;
  trainer->stages = weft_gpt_allocate(allocator, stages, sizeof(struct weft_gpt_stage *));
  trainer->bases = weft_gpt_allocate(allocator, stages, sizeof(struct weft_stage *));
  trainer->boundaries = weft_gpt_allocate(allocator, stages, sizeof *trainer->boundaries);
  trainer->times = weft_gpt_allocate(allocator, stages, sizeof *trainer->times);
  trainer->files = weft_gpt_allocate(allocator, trainer->part_count, sizeof *trainer->files);
  trainer->ranks = weft_gpt_allocate(allocator, trainer->options.ranks, sizeof *trainer->ranks);
  return trainer->stages != NULL && trainer->bases != NULL && trainer->boundaries != NULL &&
         trainer->times != NULL && trainer->files != NULL && trainer->ranks != NULL;
}

static enum weft_status build(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  WEFT_GPT_TRY(check_options(&trainer->options, error));
  trainer->config = trainer->options.progress.config;
  trainer->part_count = weft_gpt_part_count(&trainer->config);
  WEFT_GPT_TRY(read_shape(trainer, error));
  WEFT_GPT_TRY(split(trainer, error));
  if (!allocate_tables(trainer)) {
    return weft_gpt_fail_memory(error, trainer->stage_count * sizeof *trainer->boundaries);
  }
  weft_gpt_set_blas_threads(
      trainer->options.threads_per_rank > 0 ? (int)trainer->options.threads_per_rank : 1);
  WEFT_GPT_TRY(make_stages(trainer, error));
  WEFT_GPT_TRY(load_parts(trainer, error));
  WEFT_GPT_TRY(make_world(trainer, error));
  for (uint32_t r = 0; r < trainer->options.ranks; r++) {
    WEFT_GPT_TRY(make_rank(trainer, r, error));
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_create(const struct weft_gpt_trainer_options *options,
                                         struct weft_gpt_trainer **out, struct weft_error *error) {
  struct weft_gpt_trainer *trainer = weft_gpt_allocate(options->allocator, 1, sizeof *trainer);
  if (trainer == NULL) {
    return weft_gpt_fail_memory(error, sizeof *trainer);
  }
  trainer->options = *options;
  trainer->allocator = options->allocator;
  trainer->loss = NAN;
  const enum weft_status status = build(trainer, error);
  if (status < 0) {
    weft_gpt_trainer_destroy(trainer);
    return status;
  }
  *out = trainer;
  return WEFT_OK;
}

static void finish_rank(const struct weft_allocator *allocator, struct weft_gpt_rank *rank) {
  weft_pipeline_destroy(rank->pipeline);
  weft_gpt_free(allocator, rank->own_parts);
  weft_gpt_free(allocator, rank->inputs);
  weft_gpt_free(allocator, rank->targets);
  weft_gpt_free(allocator, rank->all);
  weft_gpt_free(allocator, rank->norms);
  weft_gpt_free(allocator, rank->tied_sum);
  weft_gpt_free(allocator, rank->events);
}

void weft_gpt_trainer_destroy(struct weft_gpt_trainer *trainer) {
  if (trainer == NULL) {
    return;
  }
  const struct weft_allocator *allocator = trainer->allocator;
  for (uint32_t r = 0; trainer->ranks != NULL && r < trainer->options.ranks; r++) {
    finish_rank(allocator, &trainer->ranks[r]);
  }
  weft_threads_destroy(trainer->threads);
  weft_loopback_destroy(trainer->loopback);
  for (uint32_t s = 0; trainer->stages != NULL && s < trainer->stage_count; s++) {
    weft_gpt_stage_destroy(trainer->stages[s]);
  }
  weft_gpt_free(allocator, trainer->stages);
  weft_gpt_free(allocator, trainer->bases);
  weft_gpt_free(allocator, trainer->boundaries);
  weft_gpt_free(allocator, trainer->times);
  weft_gpt_free(allocator, trainer->files);
  weft_gpt_free(allocator, trainer->ranks);
  weft_gpt_free(allocator, trainer->first_parts);
  weft_gpt_free(allocator, trainer->rank_of);
  weft_gpt_free(allocator, trainer);
}

/* ---- Run ---- */

static enum weft_status rank_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct weft_gpt_trainer *trainer = context;
  struct weft_gpt_rank *rank = &trainer->ranks[transport->rank];
  enum weft_status status;
  while ((status = weft_gpt_rank_advance(rank, error)) == WEFT_IN_PROGRESS) {
    WEFT_GPT_TRY(weft_gpt_rank_wait(rank, error));
  }
  return status;
}

static enum weft_status run_loopback(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  uint32_t running = trainer->options.ranks;
  while (running > 0) {
    uint32_t number;
    WEFT_GPT_TRY(weft_loopback_next(trainer->loopback, &number, error));
    struct weft_gpt_rank *rank = &trainer->ranks[number];
    if (rank->state == WEFT_GPT_RANK_DONE) {
      continue;
    }
    const enum weft_status status = weft_gpt_rank_advance(rank, error);
    if (status == WEFT_IN_PROGRESS) {
      WEFT_GPT_TRY(weft_gpt_rank_wait(rank, error));
      continue;
    }
    WEFT_GPT_TRY(status);
    running--;
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_run(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  for (uint32_t r = 0; r < trainer->options.ranks; r++) {
    trainer->ranks[r].state = WEFT_GPT_RANK_NEXT;
    trainer->ranks[r].run_begin_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (trainer->loopback != NULL) {
      weft_loopback_wake(trainer->loopback, r);
    }
  }
  return trainer->threads != NULL
             ? weft_threads_run(trainer->threads, NULL, rank_main, trainer, error)
             : run_loopback(trainer, error);
}

/* ---- What came out ---- */

uint64_t weft_gpt_trainer_steps_done(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].step;
}

double weft_gpt_trainer_loss(const struct weft_gpt_trainer *trainer) { return trainer->loss; }

uint64_t weft_gpt_trainer_hash(const struct weft_gpt_trainer *trainer) {
  uint64_t hash = 0;
  for (uint32_t part = 0; part < trainer->part_count; part++) {
    const struct weft_gpt_part_state *state = weft_gpt_rank_part(trainer, part);
    const uint64_t pair[2] = {hash,
                              weft_checksum(state->parameters, state->floats * sizeof(float))};
    hash = weft_checksum(pair, sizeof pair);
  }
  return hash;
}

const struct weft_gpt_part_state *weft_gpt_trainer_part(const struct weft_gpt_trainer *trainer,
                                                        uint32_t part) {
  return weft_gpt_rank_part(trainer, part);
}

const uint32_t *weft_gpt_trainer_split(const struct weft_gpt_trainer *trainer,
                                       uint32_t *stage_count) {
  *stage_count = trainer->stage_count;
  return trainer->first_parts;
}

uint64_t weft_gpt_trainer_bytes(const struct weft_gpt_trainer *trainer) {
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    bytes += trainer->stages[s]->allocated_bytes;
  }
  return bytes;
}

struct weft_transport *weft_gpt_trainer_transport(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].transport;
}

const struct weft_program *weft_gpt_trainer_program(const struct weft_gpt_trainer *trainer) {
  return trainer->ranks[0].program;
}

void weft_gpt_trainer_events(const struct weft_gpt_trainer *trainer, struct weft_event *events,
                             uint64_t room, uint64_t *count) {
  *count = 0;
  for (uint32_t r = 0; r < trainer->options.ranks; r++) {
    const struct weft_gpt_rank *rank = &trainer->ranks[r];
    for (uint64_t k = 0; k < rank->event_count; k++, (*count)++) {
      if (*count < room) {
        events[*count] = rank->events[k];
      }
    }
  }
}
