/* What follows from the trainer's options before anything is allocated: programs, the split of
 * layers into stages, the stages and layers of each rank, and a hash of everything that ranks
 * must agree on. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/source.h>
#include <weft/support.h>

#include "trainer/cuda/compute_cuda.h"
#include "trainer/train/rank.h"

WEFT_SCOPED_TYPE(weft_program)

/* ---- The schedule ---- */

static struct weft_lower_options lower_options(const struct weft_gpt_trainer *trainer) {
  const struct weft_gpt_trainer_options *options = &trainer->options;
  struct weft_lower_options lower = weft_lower_options_default();
  lower.unshard = options->shard == WEFT_GPT_SHARD_FULL;
  lower.unshard_window = options->unshard_window;
  lower.reduce_grad = options->replicas > 1;
  lower.tie_grad = trainer->config.tied;
  lower.by_time = trainer->process_per_rank; /* recordings of ranks have one transfer at a time */
  return lower;
}

enum weft_status weft_gpt_trainer_source(void *context, uint32_t microbatches, bool training,
                                         struct weft_program **out, struct weft_error *error) {
  struct weft_gpt_trainer *trainer = context;
  const struct weft_gpt_trainer_options *options = &trainer->options;
  const struct weft_lower_options lower = lower_options(trainer);
  const struct weft_program *program = trainer->first.table != NULL     ? trainer->first.table
                                       : trainer->graph_program != NULL ? trainer->graph_program
                                                                        : options->program;
  if (program != NULL) {
    struct weft_fixed_source fixed = {
        .allocator = trainer->allocator, .program = program, .lower = &lower};
    return weft_source_fixed(&fixed, microbatches, training, out, error);
  }
  struct weft_named_source named = {.allocator = trainer->allocator,
                                    .schedule = options->schedule,
                                    .ranks = options->ranks,
                                    .stages_per_rank = options->stages_per_rank,
                                    .lower = &lower,
                                    .graph = trainer->graph};
  return weft_source_named(&named, microbatches, training, out, error);
}

/* Room for events is that of the longest row of all programs so far. */
static void record_rows(const struct weft_program *program, uint64_t *longest) {
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const uint64_t row = program->row_begin[r + 1] - program->row_begin[r];
    *longest = row > *longest ? row : *longest;
  }
}

enum weft_status weft_gpt_rank_source(void *context, uint32_t microbatches, bool training,
                                      struct weft_program **out, struct weft_error *error) {
  struct weft_gpt_rank *rank = context;
  const struct weft_lower_options lower = lower_options(rank->trainer);
  struct weft_fixed_source fixed = {.allocator = rank->trainer->allocator,
                                    .program = rank->autotune.current.table,
                                    .lower = &lower};
  WEFT_TRY(rank->autotune.current.table != NULL
               ? weft_source_fixed(&fixed, microbatches, training, out, error)
               : weft_gpt_trainer_source(rank->trainer, microbatches, training, out, error));
  if (training) {
    record_rows(*out, &rank->profile.event_capacity);
  }
  return WEFT_OK;
}

enum weft_status weft_gpt_trainer_lower(const struct weft_gpt_trainer *trainer,
                                        const struct weft_program *table, struct weft_program **out,
                                        struct weft_error *error) {
  assert(table != NULL && out != NULL);
  const struct weft_lower_options lower = lower_options(trainer);
  struct weft_fixed_source fixed = {
      .allocator = trainer->allocator, .program = table, .lower = &lower};
  return weft_source_fixed(&fixed, table->microbatch_count, true, out, error);
}

/* ---- A program that is already lowered ---- */

static enum weft_status fail_lacking(const char *what, uint32_t stage, const char *why,
                                     struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_USAGE,
                   "give the table without SEND and RECV: the trainer lowers it as it needs it",
                   "the program has no %s of stage %" PRIu32 ", and %s", what, stage, why);
}

/* `has[stage]`: a bit for each op that the stage has. */
static enum weft_status check_ops(const struct weft_gpt_trainer *trainer, const uint32_t *has,
                                  uint32_t stage_count, struct weft_error *error) {
  const struct weft_gpt_trainer_options *options = &trainer->options;
  for (uint32_t s = 0; s < stage_count; s++) {
    if (options->replicas > 1 && (has[s] & UINT32_C(1) << WEFT_OP_REDUCE_GRAD) == 0) {
      return fail_lacking("REDUCE_GRAD", s, "there are several replicas", error);
    }
    if (options->shard == WEFT_GPT_SHARD_FULL && (has[s] & UINT32_C(1) << WEFT_OP_UNSHARD) == 0) {
      return fail_lacking("UNSHARD", s, "the parameters are sharded", error);
    }
    if (trainer->config.tied && (s == 0 || s + 1 == stage_count) &&
        (has[s] & UINT32_C(1) << WEFT_OP_TIE_GRAD) == 0) {
      return fail_lacking("TIE_GRAD", s, "the model's embedding and head share weights", error);
    }
  }
  return WEFT_OK;
}

static enum weft_status check_program(const struct weft_gpt_trainer *trainer,
                                      const struct weft_program *program,
                                      struct weft_error *error) {
  if (trainer->options.program == NULL) {
    return WEFT_OK; /* lowered here */
  }
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  uint32_t *has = weft_arena_allocate(&arena, program->stage_count, sizeof *has);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint64_t k = 0; k < program->action_count; k++) {
    const struct weft_action *action = &program->actions[k];
    if (action->stage < program->stage_count) {
      has[action->stage] |= UINT32_C(1) << action->op;
    }
  }
  return check_ops(trainer, has, program->stage_count, error);
}

/* ---- Options ---- */

static enum weft_status check_batch(const struct weft_gpt_trainer_options *options,
                                    struct weft_error *error) {
  const struct weft_gpt_training *training = &options->training;
  if (training->batch % options->replicas != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "every replica has as many sequences",
                     "a batch of %" PRIu64 " sequences cannot be divided among %" PRIu32
                     " replicas",
                     training->batch, options->replicas);
  }
  const uint64_t rows = training->batch / options->replicas;
  if (training->microbatches == 0 || rows < training->microbatches ||
      rows % training->microbatches != 0) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "every microbatch has as many sequences, so that their losses weigh the "
                     "same",
                     "a batch of %" PRIu64 " sequences%s cannot be cut into %" PRIu32
                     " equal microbatches",
                     rows, options->replicas > 1 ? " of each replica" : "", training->microbatches);
  }
  return WEFT_OK;
}

static enum weft_status fill_options(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  enum { WINDOW_DEFAULT = 3 };
  struct weft_gpt_trainer_options *options = &trainer->options;
  options->replicas = options->replicas > 0 ? options->replicas : 1;
  options->shard = options->replicas > 1 ? options->shard : WEFT_GPT_SHARD_NONE;
  options->unshard_window = options->unshard_window > 0 ? options->unshard_window : WINDOW_DEFAULT;
  WEFT_TRY(weft_gpt_config_check(&options->training.config, error));
  WEFT_TRY(check_batch(options, error));
  trainer->config = options->training.config;
  trainer->layer_count = weft_gpt_layer_count(&trainer->config);
  trainer->sequences_max =
      options->training.batch / options->replicas / options->training.microbatches;
  return WEFT_OK;
}

/* ---- Ownership ---- */

static enum weft_status read_shape(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_TRY(weft_gpt_trainer_source(trainer, trainer->options.training.microbatches, true, &program,
                                   error));
  WEFT_TRY(check_program(trainer, program, error));
  trainer->stage_count = program->stage_count;
  trainer->options.ranks = program->rank_count;
  if (__builtin_mul_overflow(trainer->options.replicas, program->rank_count,
                             &trainer->world_size)) {
    return weft_fail(error, WEFT_ERR_USAGE, "", "there are too many replicas: %" PRIu32,
                     trainer->options.replicas);
  }
  trainer->rank_of =
      weft_arena_allocate(&trainer->arena, program->stage_count, sizeof *trainer->rank_of);
  trainer->ties =
      weft_arena_allocate(&trainer->arena, trainer->options.replicas, sizeof *trainer->ties);
  WEFT_TRY(weft_arena_status(&trainer->arena, error));
  trainer->placement = weft_placement_infer(program, trainer->rank_of);
  return WEFT_OK;
}

static enum weft_status split_layers(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const uint32_t *given = trainer->options.first_layers;
  const size_t count = trainer->stage_count + 1u;
  trainer->first_layers =
      weft_arena_allocate(&trainer->arena, count, sizeof *trainer->first_layers);
  WEFT_TRY(weft_arena_status(&trainer->arena, error));
  if (given != NULL) {
    memcpy(trainer->first_layers, given, count * sizeof *trainer->first_layers);
    return weft_gpt_split_check(&trainer->config, trainer->stage_count, given, error);
  }
  return weft_gpt_split(trainer->allocator, &trainer->config, NULL, trainer->stage_count,
                        trainer->first_layers, error);
}

/* ---- The graph of stages ---- */

/* A table for a chain serves every graph with as many stages: edges go from lower to higher ones
 * there too. */
static enum weft_status give_graph(struct weft_gpt_trainer *trainer,
                                   const struct weft_program *program, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  uint64_t *sizes = weft_arena_allocate(&arena, program->rank_count, sizeof *sizes);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t r = 0; r < program->rank_count; r++) {
    sizes[r] = program->row_begin[r + 1] - program->row_begin[r];
  }
  WEFT_TRY(weft_program_create(trainer->allocator, program->rank_count, sizes, program->actions,
                               &trainer->graph_program, error));
  return weft_program_set_graph(trainer->graph_program, trainer->graph, error);
}

/* A program that is given has the edges of the model's stages, or gets them. */
static enum weft_status fit_program(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const struct weft_program *program = trainer->options.program;
  if (program == NULL || weft_graph_equal(program->graph, trainer->graph)) {
    return WEFT_OK;
  }
  struct weft_edge edge;
  bool in_program;
  if (program->graph != NULL &&
      weft_graph_difference(program->graph, trainer->graph, &edge, &in_program)) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "give the table without its row '#graph': the model and the split determine "
                     "the edges",
                     "the program has the edges of another graph than the model's stages: only %s "
                     "has the edge %u>%u%s",
                     in_program ? "the program" : "the model", edge.from, edge.to,
                     edge.gradient ? "" : " without a gradient");
  }
  if (program->level != WEFT_LEVEL_COMPUTE) {
    return weft_fail(error, WEFT_ERR_USAGE,
                     "give the table without SEND and RECV: the trainer lowers it as it needs it",
                     "the program has the SEND and RECV of a chain of stages, and the model's "
                     "form a graph of %" PRIu32 " edges",
                     trainer->edge_count);
  }
  return give_graph(trainer, program, error);
}

static enum weft_status connect(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  const struct weft_gpt_stage_split split = {.config = &trainer->config,
                                             .stage_count = trainer->stage_count,
                                             .first = trainer->first_layers};
  WEFT_TRY(weft_gpt_stage_graph(trainer->allocator, &split, &trainer->graph, error));
  const struct weft_graph *graph = trainer->graph;
  uint32_t losses = 0;
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    losses += weft_graph_is_loss(graph, s, trainer->stage_count);
  }
  trainer->edge_count = weft_graph_edge_count(graph, trainer->stage_count);
  trainer->boundary_count = trainer->edge_count + losses;
  trainer->boundaries =
      weft_arena_allocate(&trainer->arena, trainer->boundary_count, sizeof *trainer->boundaries);
  WEFT_TRY(weft_arena_status(&trainer->arena, error));
  for (uint32_t e = 0; e < trainer->edge_count; e++) {
    const struct weft_edge edge = weft_graph_edge(graph, e);
    trainer->boundaries[e] =
        weft_gpt_boundary(&trainer->config, trainer->compute_ops->dtype, trainer->sequences_max,
                          weft_gpt_edge_outputs(&split, edge.from, edge.to));
  }
  return fit_program(trainer, error);
}

/* Lists `count` layers or stages by the row that has them: a counting sort. */
static enum weft_status list_owned(struct weft_gpt_trainer *trainer, const uint32_t *row_of,
                                   uint32_t count, struct weft_gpt_ownership *ownership,
                                   struct weft_error *error) {
  const uint32_t rows = trainer->options.ranks;
  ownership->list = weft_arena_allocate(&trainer->arena, count, sizeof *ownership->list);
  ownership->begin = weft_arena_allocate(&trainer->arena, rows + 2u, sizeof *ownership->begin);
  WEFT_TRY(weft_arena_status(&trainer->arena, error));
  for (uint32_t k = 0; k < count; k++) {
    ownership->begin[row_of[k] + 2]++;
  }
  for (uint32_t r = 0; r < rows; r++) {
    const uint32_t has = ownership->begin[r + 2];
    ownership->most = has > ownership->most ? has : ownership->most;
    ownership->begin[r + 2] += ownership->begin[r + 1];
  }
  for (uint32_t k = 0; k < count; k++) {
    ownership->list[ownership->begin[row_of[k] + 1]++] = k;
  }
  return WEFT_OK;
}

static enum weft_status own_layers(struct weft_gpt_trainer *trainer, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = trainer->allocator};
  uint32_t *row_of = weft_arena_allocate(&arena, trainer->layer_count, sizeof *row_of);
  WEFT_TRY(weft_arena_status(&arena, error));
  for (uint32_t s = 0; s < trainer->stage_count; s++) {
    for (uint32_t layer = trainer->first_layers[s]; layer < trainer->first_layers[s + 1]; layer++) {
      row_of[layer] = trainer->rank_of[s];
    }
  }
  return list_owned(trainer, row_of, trainer->layer_count, &trainer->layers, error);
}

/* ---- What ranks must agree on ---- */

static uint64_t combine(uint64_t sum, const void *data, size_t size) {
  const uint64_t pair[2] = {sum, weft_checksum(data, size)};
  return weft_checksum(pair, sizeof pair);
}

static uint64_t hash_configuration(const struct weft_gpt_trainer *trainer) {
  const struct weft_gpt_trainer_options *options = &trainer->options;
  const struct weft_gpt_training *training = &options->training;
  const struct weft_gpt_config *config = &training->config;
  const uint64_t numbers[] = {config->blocks,
                              config->dim,
                              config->heads,
                              config->context,
                              config->vocabulary,
                              config->tied,
                              config->skips,
                              config->predict,
                              config->seed,
                              training->step,
                              training->data_hash,
                              training->data_seed,
                              training->batch,
                              training->microbatches,
                              training->warmup_steps,
                              training->total_steps,
                              options->replicas,
                              options->shard,
                              options->checkpoint_dir != NULL,
                              options->checkpoint_every,
                              options->eval_every,
                              options->eval_steps,
                              options->on_divergence,
                              options->resume != NULL,
                              options->tunes,
                              options->gather_events,
                              options->gather_model};
  const double reals[] = {training->rate,  training->rate_min,   training->beta1,
                          training->beta2, training->epsilon,    training->decay,
                          training->clip,  options->memory_limit};
  uint64_t sum = combine(0, numbers, sizeof numbers);
  sum = combine(sum, reals, sizeof reals);
  return combine(sum, trainer->first_layers, (trainer->stage_count + 1u) * sizeof(uint32_t));
}

/* ---- The layout ---- */

enum weft_status weft_gpt_trainer_lay_out(struct weft_gpt_trainer *trainer,
                                          struct weft_error *error) {
  assert(trainer->options.ranks > 0);
  assert(trainer->stage_count == 0);
  trainer->compute_ops =
      trainer->options.cuda != NULL ? weft_gpt_compute_cuda_ops() : weft_gpt_compute_host()->ops;
  WEFT_TRY(fill_options(trainer, error));
  WEFT_TRY(read_shape(trainer, error));
  WEFT_TRY(split_layers(trainer, error));
  WEFT_TRY(connect(trainer, error));
  WEFT_TRY(list_owned(trainer, trainer->rank_of, trainer->stage_count, &trainer->stages, error));
  WEFT_TRY(own_layers(trainer, error));
  for (uint32_t layer = 0; layer < trainer->layer_count; layer++) {
    const uint32_t replicas = trainer->options.replicas;
    const uint64_t floats = replicas * weft_gpt_slice_floats(&trainer->config, layer, replicas);
    trainer->floats_largest = floats > trainer->floats_largest ? floats : trainer->floats_largest;
  }
  WEFT_TRY(weft_gpt_trainer_fit(trainer, error));
  trainer->configuration = hash_configuration(trainer);
  return WEFT_OK;
}
