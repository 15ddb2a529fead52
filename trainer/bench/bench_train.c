/* `weft bench train`: the reference trainer on one rank and on two, a thread each, against bare
 * matrix products and its simulation.
 *
 * Before anything is timed, one rank and two must compute the same parameters, bit for bit; so
 * must every block of steps that is timed. What is compared is measured alternately: the bare
 * products, one rank, two ranks, schedule after schedule, round after round. */
#define _DEFAULT_SOURCE /* _SC_NPROCESSORS_ONLN */
#include "bench/bench.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include <weft/comm.h>
#include <weft/source.h>
#include <weft/support.h>
#include <weft/weft.h>

#include "bench/bench_clock.h"
#include "cli/io/error_message.h"
#include "trainer/bench/bench_train.h"
#include "trainer/command/sample_text.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/aligned_memory.h"

enum {
  MICROBATCHES = WEFT_BENCH_TRAIN_MICROBATCHES,
  ROUNDS = 2,
  STEPS = 3, /* of a block; the first is a warm-up */
  CHECK_STEPS = 2,
  SAMPLES_MAX = WEFT_BENCH_REPEATS_MAX * WEFT_BENCH_TRAIN_SCHEDULES * STEPS
};

static const char *const schedules[WEFT_BENCH_TRAIN_SCHEDULES] = {"1F1B", "Interleaved1F1B", "ZBH1",
                                                                  "ZBVZeroBubble", "GPipe"};

/* ---- The bare products ---- */

static struct weft_bench_bare *bare_of(struct weft_transport *transport, void *context) {
  struct weft_bench_bare **bares = context;
  return bares[transport->rank];
}

static enum weft_status run_bare(void *context, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct weft_bench_bare *bare = bare_of(transport, context);
  (void)error;
  for (uint32_t k = 0; k < MICROBATCHES; k++) {
    weft_bench_bare_run(bare);
  }
  return WEFT_OK;
}

/* Each of `count` threads does the products of a whole step. */
static enum weft_status time_bare(const struct weft_cli *cli, struct weft_bench_bare **bares,
                                  uint32_t count, uint64_t *time_ns, struct weft_error *error) {
  const struct weft_comm_options options = {.rank_count = count};
  struct weft_comm *comm = NULL;
  WEFT_TRY(weft_comm_open(cli->allocator, "threads", &options, &comm, error));
  const uint64_t begin = weft_bench_now_ns();
  const enum weft_status status = weft_comm_run(comm, run_bare, bares, error);
  *time_ns = weft_bench_now_ns() - begin;
  weft_comm_close(comm);
  return status;
}

/* ---- A schedule: its program, the same on one rank, and the samples ---- */

struct series {
  uint32_t count;
  uint64_t samples[SAMPLES_MAX];
};

static void add_sample(struct series *series, uint64_t sample) {
  if (series->count < SAMPLES_MAX) {
    series->samples[series->count++] = sample;
  }
}

static double median_ms(struct series *series) {
  return (double)weft_bench_median(series->samples, series->count) / 1e6;
}

#define BILLION 1e9

struct prediction {
  struct series step_ns;
  struct series reached; /* the measured speed-up by the predicted one, in billionths */
};

struct entry {
  struct weft_program *program, *on_one;
  struct series one, all;
  struct prediction alone, together;
};

/* The state of the benchmark. */
struct bench {
  const struct weft_cli *cli;
  struct weft_gpt_training training;
  struct weft_gpt_dataset dataset;
  struct weft_bench_bare *bares[WEFT_BENCH_TRAIN_RANKS];
  struct entry entries[WEFT_BENCH_TRAIN_SCHEDULES];
  struct series bare, bare_all;
  struct series steps; /* on one rank, in whatever order */
  uint64_t hash;       /* of the parameters after a block */
};

static enum weft_status make_entry(struct bench *bench, const char *schedule, struct entry *entry,
                                   struct weft_error *error) {
  struct weft_named_source plan = {
      .allocator = bench->cli->allocator, .schedule = schedule, .ranks = WEFT_BENCH_TRAIN_RANKS};
  WEFT_TRY(weft_source_named(&plan, MICROBATCHES, true, &entry->program, error));
  return weft_bench_train_on_one_rank(bench->cli->allocator, entry->program, &entry->on_one, error);
}

static enum weft_status prepare_bench(struct bench *bench, struct weft_error *error) {
  const struct weft_allocator *allocator = bench->cli->allocator;
  const struct weft_gpt_training *training = &bench->training;
  WEFT_TRY(weft_gpt_config_check(&training->config, error));
  WEFT_TRY(weft_bench_train_fixed_dataset(allocator, &bench->dataset, error));
  for (int k = 0; k < WEFT_BENCH_TRAIN_RANKS; k++) {
    WEFT_TRY(weft_bench_bare_create(allocator, &training->config, training->batch / MICROBATCHES,
                                    training->config.context, &bench->bares[k], error));
  }
  for (int k = 0; k < WEFT_BENCH_TRAIN_SCHEDULES; k++) {
    WEFT_TRY(make_entry(bench, schedules[k], &bench->entries[k], error));
  }
  weft_gpt_set_blas_threads(1);
  return WEFT_OK;
}

static void release(struct bench *bench) {
  weft_gpt_free(bench->cli->allocator, bench->dataset.bytes);
  for (int k = 0; k < WEFT_BENCH_TRAIN_RANKS; k++) {
    weft_bench_bare_destroy(bench->bares[k]);
  }
  for (int k = 0; k < WEFT_BENCH_TRAIN_SCHEDULES; k++) {
    weft_program_destroy(bench->entries[k].program);
    weft_program_destroy(bench->entries[k].on_one);
  }
}

/* ---- The answer ---- */

static int fail_hash(const struct weft_cli *cli, const char *schedule, uint32_t ranks) {
  const struct weft_bench_case at = {.schedule = schedule,
                                     .shape = {.ranks = ranks, .microbatches = MICROBATCHES}};
  return weft_bench_fail(cli, &at, "the parameters differ from those of one rank");
}

static struct weft_gpt_trainer_options options_of(const struct bench *bench,
                                                  const struct weft_program *program,
                                                  uint64_t steps) {
  struct weft_gpt_trainer_options options =
      weft_bench_train_fixed_options(&bench->dataset, program, steps);
  options.training.config = bench->training.config;
  return options;
}

/* A few steps of 1F1B: first on all ranks, where memory is measured, since nothing has been
 * returned to malloc() yet; then on one. */
static int check(struct bench *bench, struct weft_bench_train_results *results) {
  const struct entry *entry = &bench->entries[0];
  struct weft_gpt_trainer_options options = options_of(bench, entry->program, CHECK_STEPS);
  struct weft_bench_train_block on_one;
  int status = weft_bench_train_block_run(bench->cli, &options, entry->program, &results->memory);
  options.program = entry->on_one;
  if (status == WEFT_CLI_OK) {
    status = weft_bench_train_block_run(bench->cli, &options, entry->program, &on_one);
  }
  return status == WEFT_CLI_OK && on_one.hash != results->memory.hash
             ? fail_hash(bench->cli, schedules[0], WEFT_BENCH_TRAIN_RANKS)
             : status;
}

/* The hash of every block is that of the first. */
static int run_block(struct bench *bench, size_t schedule, const struct weft_program *program,
                     struct weft_bench_train_block *block) {
  const struct weft_gpt_trainer_options options = options_of(bench, program, STEPS);
  const int status =
      weft_bench_train_block_run(bench->cli, &options, bench->entries[schedule].program, block);
  bench->hash = bench->hash == 0 ? block->hash : bench->hash;
  return status == WEFT_CLI_OK && block->hash != bench->hash
             ? fail_hash(bench->cli, schedules[schedule], program->rank_count)
             : status;
}

/* ---- Rounds ---- */

static void record_samples(struct series *series, const struct weft_bench_train_block *block) {
  for (uint32_t k = 0; k < block->sample_count; k++) {
    add_sample(series, block->samples_ns[k]);
  }
}

/* Work outside the pipeline, norms and updates, is that of one rank divided by the ranks. Costs
 * are means, so the mean step is compared with the prediction. */
static void record_prediction(struct prediction *prediction, double pipeline_ms,
                              const struct weft_bench_train_block *one,
                              const struct weft_bench_train_block *all) {
  const double rest_ms = (one->mean_ms - one->busy_ms) / (double)WEFT_BENCH_TRAIN_RANKS;
  const double step_ms = pipeline_ms + rest_ms;
  add_sample(&prediction->step_ns, (uint64_t)(step_ms * 1e6));
  add_sample(&prediction->reached, (uint64_t)(step_ms / all->mean_ms * BILLION));
}

static int measure_schedule(struct bench *bench, size_t schedule,
                            struct weft_bench_train_results *results) {
  struct entry *entry = &bench->entries[schedule];
  struct weft_bench_train_block one, all;
  int status = run_block(bench, schedule, entry->on_one, &one);
  if (status == WEFT_CLI_OK) {
    status = run_block(bench, schedule, entry->program, &all);
  }
  if (status != WEFT_CLI_OK) {
    return status;
  }
  record_samples(&entry->one, &one);
  record_samples(&bench->steps, &one);
  record_samples(&entry->all, &all);
  record_prediction(&entry->alone, one.simulated_ms, &one, &all);
  record_prediction(&entry->together, all.simulated_ms, &one, &all);
  results->first_loss = one.first_loss;
  results->last_loss = one.last_loss;
  return WEFT_CLI_OK;
}

static int measure_bare(struct bench *bench) {
  struct weft_error error;
  uint64_t alone_ns = 0, together_ns = 0;
  if (time_bare(bench->cli, bench->bares, 1, &alone_ns, &error) < 0 ||
      time_bare(bench->cli, bench->bares, WEFT_BENCH_TRAIN_RANKS, &together_ns, &error) < 0) {
    return weft_cli_fail(bench->cli, NULL, &error);
  }
  add_sample(&bench->bare, alone_ns);
  add_sample(&bench->bare_all, together_ns);
  return WEFT_CLI_OK;
}

static int measure_rounds(struct bench *bench, uint64_t rounds,
                          struct weft_bench_train_results *results) {
  int status = WEFT_CLI_OK;
  for (uint64_t k = 0; k < rounds * WEFT_BENCH_TRAIN_SCHEDULES && status == WEFT_CLI_OK; k++) {
    const size_t schedule = (size_t)(k % WEFT_BENCH_TRAIN_SCHEDULES);
    const struct weft_bench_case at = {
        .schedule = schedules[schedule],
        .shape = {.ranks = WEFT_BENCH_TRAIN_RANKS, .microbatches = MICROBATCHES}};
    weft_bench_print_case(bench->cli, &at);
    status = measure_bare(bench);
    if (status == WEFT_CLI_OK) {
      status = measure_schedule(bench, schedule, results);
    }
  }
  return status;
}

static struct weft_bench_train_prediction sum_up_prediction(struct prediction *prediction) {
  return (struct weft_bench_train_prediction){
      .step_ms = median_ms(&prediction->step_ns),
      .reached = (double)weft_bench_median(prediction->reached.samples, prediction->reached.count) /
                 BILLION};
}

static void sum_up(struct bench *bench, struct weft_bench_train_results *results) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  results->training = bench->training;
  const struct weft_gpt_config *config = &results->training.config;
  results->parameters = weft_gpt_parameter_count(config);
  results->processors = processors > 0 ? (uint64_t)processors : 0;
  results->operations =
      (double)MICROBATCHES *
      weft_bench_flops(config, results->training.batch / MICROBATCHES, config->context);
  results->core_wanted = weft_gpt_blas_core_wanted();
  results->bare_ms = median_ms(&bench->bare);
  results->bare_all_ms = median_ms(&bench->bare_all);
  results->steps = bench->entries[0].one.count;
  for (size_t k = 0; k < WEFT_BENCH_TRAIN_SCHEDULES; k++) {
    struct entry *entry = &bench->entries[k];
    results->schedules[k] =
        (struct weft_bench_train_measurement){.schedule = schedules[k],
                                              .stage_count = entry->program->stage_count,
                                              .one_ms = median_ms(&entry->one),
                                              .all_ms = median_ms(&entry->all),
                                              .alone = sum_up_prediction(&entry->alone),
                                              .together = sum_up_prediction(&entry->together)};
  }
  results->step_ms = median_ms(&bench->steps);
}

static int measure(struct bench *bench, uint64_t rounds, struct weft_bench_train_results *results) {
  struct weft_error error;
  if (prepare_bench(bench, &error) < 0) {
    return weft_cli_fail(bench->cli, NULL, &error);
  }
  int status = check(bench, results);
  if (status == WEFT_CLI_OK) {
    status = measure_rounds(bench, rounds, results);
  }
  if (status == WEFT_CLI_OK) {
    sum_up(bench, results);
  }
  return status;
}

int weft_bench_cmd_train(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_text *text, struct weft_json *json) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  struct weft_bench_train_results results = {.steps = 0};
  weft_train_choose_kernels(cli);
  struct bench *bench = weft_gpt_allocate(cli->allocator, 1, sizeof *bench);
  if (bench == NULL) {
    return weft_cli_fail_memory(cli);
  }
  bench->cli = cli;
  bench->training = weft_bench_train_fixed_training(STEPS);
  struct weft_gpt_config *config = &bench->training.config;
  config->blocks = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_LAYERS, config->blocks);
  config->dim = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_DIM, config->dim);
  const int status =
      measure(bench, weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, ROUNDS), &results);
  release(bench);
  weft_gpt_free(cli->allocator, bench);
  if (status == WEFT_CLI_OK && json != NULL) {
    weft_bench_add_train_json(json, &results);
  } else if (status == WEFT_CLI_OK) {
    weft_bench_add_train_text(text, &results);
  }
  return status;
}

int weft_train_cmd_bench(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  if (arguments->operand_count > 0 && strcmp(arguments->operands[0], "train") == 0) {
    return weft_bench_report(
        cli, arguments,
        weft_cli_is_on_gpus(arguments) ? weft_bench_cmd_train_gpu : weft_bench_cmd_train);
  }
  return weft_cli_usage(cli, "'weft bench' runs the others",
                        "weft-train runs the benchmark train only");
}
