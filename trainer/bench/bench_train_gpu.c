/* `weft bench train --device cuda`: the trainer on the first GPU, as tokens per second.
 *
 * Before anything is timed, a small model is trained on the host and on the GPU: losses must agree
 * but for roundings to bf16, and one rank and four, with and without graph, must compute the same
 * parameters. Cases are measured in turns, and each is a training of its own. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include <weft/cuda.h>
#include <weft/support.h>
#include <weft/weft.h>

#include "bench/bench_clock.h"
#include "cli/io/error_message.h"
#include "cli/scoped.h"
#include "trainer/bench/bench_train.h"
#include "trainer/command/train_setup.h"
#include "trainer/model/aligned_memory.h"

enum {
  RANKS = 4, /* where there are several, and partitions */
  MICROBATCHES = 8,
  BATCH = 32,
  STEPS = WEFT_BENCH_TRAIN_STEPS_MAX + 1, /* enqueued, recorded, then repeated */
  CHECK_STEPS = 3,
  ROUNDS_MAX = WEFT_BENCH_REPEATS_MAX
};
#define LOSS_TOLERANCE 0.002 /* as a share: trainer/README.md */
/* What is aimed at: of one rank's speed when ranks share a GPU, and of the gain that is simulated. */
#define SHARE_TARGET 0.97
#define GAIN_TARGET 0.97

static const struct gpu_case {
  const char *name, *schedule;
  uint32_t ranks, partitions;
  uint32_t microbatches; /* 0: one for each sequence */
} cases[] = {{"one", "1F1B", 1, 0, 1},
             {"small_microbatches", "1F1B", 1, 0, 0},
             {"eight_microbatches", "1F1B", 1, 0, MICROBATCHES},
             {"ranks_share", "1F1B", RANKS, 0, MICROBATCHES},
             {"partitions", "1F1B", RANKS, RANKS, MICROBATCHES},
             {"partitions_zero_bubble", "ZBVZeroBubble", RANKS, RANKS, MICROBATCHES}};
enum { EIGHT = 2, SHARE, PARTITIONS, ZERO_BUBBLE, CASES };
_Static_assert(WEFT_ARRAY_LENGTH(cases) == CASES, "one name for each");

struct bench {
  const struct weft_cli *cli;
  struct weft_gpt_dataset text, tokens;
  struct weft_gpt_training training;
  struct weft_cuda_gpu_info gpu;
  uint64_t rounds;
  uint64_t samples[CASES][ROUNDS_MAX * WEFT_BENCH_TRAIN_STEPS_MAX];
  uint32_t sample_count[CASES];
  double step_ms[CASES], simulated_ms[CASES]; /* medians; of the last round. 0: not possible */
  double loss_error;                          /* of the check, as a share */
  bool quiet;                                 /* says nothing before the report */
};

/* ---- A training ---- */

static bool is_possible(const struct bench *bench, const struct gpu_case *at) {
  return at->partitions == 0 || bench->gpu.partitions;
}

static int run_case(const struct bench *bench, struct weft_gpt_trainer_options *options,
                    uint32_t partitions, struct weft_bench_train_block *block) {
  const uint32_t first = 0;
  const struct weft_cuda_options gpus = {.gpus = &first, .gpu_count = 1, .partitions = partitions};
  struct weft_error error;
  options->transport = "cuda";
  options->stall_limit = INT64_C(60000000000);
  if (weft_cuda_open(bench->cli->allocator, &gpus, options->ranks, &options->cuda, &error) < 0) {
    return weft_cli_fail(bench->cli, NULL, &error);
  }
  const int status = weft_bench_train_block_run(bench->cli, options, NULL, block);
  weft_cuda_close(options->cuda);
  return status;
}

/* ---- The answer ---- */

static struct weft_gpt_trainer_options small_options(const struct bench *bench) {
  struct weft_gpt_trainer_options options = {
      .training = weft_bench_train_fixed_training(CHECK_STEPS),
      .dataset = &bench->text,
      .ranks = 1,
      .schedule = "1F1B"};
  options.training.config.blocks = 6;
  options.training.config.dim = 64;
  options.training.config.heads = 2;
  options.training.config.context = 16;
  options.training.batch = options.training.microbatches = MICROBATCHES;
  return options;
}

static int fail_answer(const struct bench *bench, const struct weft_gpt_trainer_options *options,
                       const char *what) {
  const struct weft_bench_case at = {
      .schedule = options->schedule,
      .shape = {.ranks = options->ranks, .microbatches = options->training.microbatches}};
  return weft_bench_fail(bench->cli, &at, what);
}

static int check(struct bench *bench) {
  struct weft_gpt_trainer_options options = small_options(bench);
  struct weft_bench_train_block host = {.hash = 0}, one = host, other = host;
  WEFT_CLI_TRY(weft_bench_train_block_run(bench->cli, &options, NULL, &host));
  WEFT_CLI_TRY(run_case(bench, &options, 0, &one));
  bench->loss_error = fabs(one.last_loss - host.last_loss) / host.last_loss;
  if (!(bench->loss_error < LOSS_TOLERANCE)) {
    return fail_answer(bench, &options, "its loss is not that of the host");
  }
  options.ranks = RANKS;
  options.schedule = "ZBVZeroBubble";
  for (uint32_t k = 0; k < 2; k++) {
    options.eager = k == 1;
    WEFT_CLI_TRY(run_case(bench, &options, 0, &other));
    if (other.hash != one.hash) {
      return fail_answer(bench, &options, "the parameters differ from those of one rank");
    }
  }
  return WEFT_CLI_OK;
}

/* ---- Cases ---- */

static double tokens_per_s(const struct bench *bench, double step_ms) {
  return (double)(bench->training.batch * bench->training.config.context) / step_ms * 1e3;
}

/* A bench takes minutes, and what it has found so far shall not be lost with it. */
static void say_case(const struct bench *bench, uint32_t k, struct weft_bench_train_block *block) {
  if (!bench->quiet) {
    const double ms = (double)weft_bench_median(block->samples_ns, block->sample_count) / 1e6;
    weft_cli_print(bench->cli, NULL, "bench: %s: %.2f ms, %.0f tokens/s, simulated %.2f ms",
                   cases[k].name, ms, tokens_per_s(bench, ms), block->simulated_ms);
  }
}

static int measure_case(struct bench *bench, uint32_t k) {
  const struct gpu_case *at = &cases[k];
  struct weft_gpt_trainer_options options = {.training = bench->training,
                                             .dataset = &bench->tokens,
                                             .ranks = at->ranks,
                                             .schedule = at->schedule};
  struct weft_bench_train_block block = {.hash = 0};
  options.training.microbatches =
      at->microbatches > 0 ? at->microbatches : (uint32_t)bench->training.batch;
  WEFT_CLI_TRY(run_case(bench, &options, at->partitions, &block));
  say_case(bench, k, &block);
  for (uint32_t s = 0; s < block.sample_count; s++) {
    bench->samples[k][bench->sample_count[k]++] = block.samples_ns[s];
  }
  bench->simulated_ms[k] = block.simulated_ms;
  return WEFT_CLI_OK;
}

static int measure(struct bench *bench) {
  struct weft_error error;
  const struct weft_gpt_config *config = &bench->training.config;
  if (weft_cuda_gpu_info(0, &bench->gpu, &error) < 0 ||
      weft_bench_train_fixed_dataset(bench->cli->allocator, &bench->text, &error) < 0 ||
      weft_gpt_dataset_draw(&bench->tokens, bench->cli->allocator, 1, config->vocabulary,
                            UINT64_C(64) * (config->context + 1), &error) < 0) {
    return weft_cli_fail(bench->cli, NULL, &error);
  }
  WEFT_CLI_TRY(check(bench));
  for (uint64_t k = 0; k < bench->rounds * CASES; k++) {
    if (is_possible(bench, &cases[k % CASES])) {
      WEFT_CLI_TRY(measure_case(bench, (uint32_t)(k % CASES)));
    }
  }
  for (uint32_t k = 0; k < CASES; k++) {
    bench->step_ms[k] =
        bench->sample_count[k] > 0
            ? (double)weft_bench_median(bench->samples[k], bench->sample_count[k]) / 1e6
            : 0;
  }
  return WEFT_CLI_OK;
}

/* ---- The report ---- */

static double ratio_of_share(const struct bench *bench) {
  return bench->step_ms[EIGHT] / bench->step_ms[SHARE];
}
/* By ZBVZeroBubble, against 1F1B. */
static double gain(const struct bench *bench) {
  return bench->step_ms[PARTITIONS] / bench->step_ms[ZERO_BUBBLE];
}
static double simulated_gain(const struct bench *bench) {
  return bench->simulated_ms[PARTITIONS] / bench->simulated_ms[ZERO_BUBBLE];
}

static void add_text(struct weft_text *text, const struct bench *bench) {
  const struct weft_gpt_config *config = &bench->training.config;
  weft_text_addf(text,
                 "weft %s, bench train on %s: checked: a small model's loss is the host's but for "
                 "%.3f %%,\nand 1 and %d ranks come to the same parameters, bit for bit\n\n"
                 "model: %" PRIu32 " blocks, dim %" PRIu32 ", %" PRIu32 " heads, context %" PRIu32
                 ", vocabulary %" PRIu32 ", %.1f M parameters; %" PRIu64 " sequences per step\n\n",
                 weft_version(), bench->gpu.name, 100 * bench->loss_error, RANKS, config->blocks,
                 config->dim, config->heads, config->context, config->vocabulary,
                 (double)weft_gpt_parameter_count(config) / 1e6, bench->training.batch);
  weft_text_addf(text, "%-23s %-14s %5s %12s %10s %12s\n", "case", "schedule", "ranks",
                 "microbatches", "step ms", "tokens/s");
  for (uint32_t k = 0; k < CASES; k++) {
    const struct gpu_case *at = &cases[k];
    const uint64_t microbatches = at->microbatches > 0 ? at->microbatches : bench->training.batch;
    if (bench->step_ms[k] > 0) {
      weft_text_addf(text, "%-23s %-14s %5" PRIu32 " %12" PRIu64 " %10.2f %12.0f\n", at->name,
                     at->schedule, at->ranks, microbatches, bench->step_ms[k],
                     tokens_per_s(bench, bench->step_ms[k]));
    } else {
      weft_text_addf(text, "%-23s this GPU cannot be split\n", at->name);
    }
  }
  weft_text_addf(text,
                 "  Medians of whole steps with AdamW on random tokens.\n\n%d ranks that share the "
                 "GPU: %.3f of one rank's tokens/s (target: %.2f or more)\n",
                 RANKS, ratio_of_share(bench), SHARE_TARGET);
  if (bench->step_ms[ZERO_BUBBLE] > 0) {
    weft_text_addf(text,
                   "ZBVZeroBubble against 1F1B on %d partitions: %.3f times the speed, simulated "
                   "%.3f: %.3f of that (target: %.2f or more)\n",
                   RANKS, gain(bench), simulated_gain(bench), gain(bench) / simulated_gain(bench),
                   GAIN_TARGET);
  }
}

static void add_json(struct weft_json *json, const struct bench *bench) {
  const struct weft_gpt_config *config = &bench->training.config;
  weft_json_open(json, NULL, '{');
  weft_json_string(json, "schema", "weft-bench-train-gpu/1");
  weft_json_string(json, "version", weft_version());
  weft_json_string(json, "gpu", bench->gpu.name);
  weft_json_boolean(json, "checked", true);
  weft_json_exact(json, "loss_error", bench->loss_error);
  weft_json_open(json, "model", '{');
  weft_json_number(json, "layers", config->blocks);
  weft_json_number(json, "dim", config->dim);
  weft_json_number(json, "heads", config->heads);
  weft_json_number(json, "context", config->context);
  weft_json_number(json, "vocabulary", config->vocabulary);
  weft_json_number(json, "parameters", weft_gpt_parameter_count(config));
  weft_json_close(json, '}');
  weft_json_number(json, "batch", bench->training.batch);
  weft_json_open(json, "cases", '[');
  for (uint32_t k = 0; k < CASES; k++) {
    const struct gpu_case *at = &cases[k];
    if (bench->step_ms[k] == 0) {
      continue;
    }
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "name", at->name);
    weft_json_string(json, "schedule", at->schedule);
    weft_json_number(json, "ranks", at->ranks);
    weft_json_number(json, "partitions", at->partitions);
    weft_json_number(json, "microbatches",
                     at->microbatches > 0 ? at->microbatches : bench->training.batch);
    weft_json_number(json, "steps_measured", bench->sample_count[k]);
    weft_json_exact(json, "step_ms", bench->step_ms[k]);
    weft_json_exact(json, "simulated_pipeline_ms", bench->simulated_ms[k]);
    weft_json_exact(json, "tokens_per_s", tokens_per_s(bench, bench->step_ms[k]));
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
  weft_json_exact(json, "ranks_share", ratio_of_share(bench));
  if (bench->step_ms[ZERO_BUBBLE] > 0) {
    weft_json_exact(json, "zero_bubble_gain", gain(bench));
    weft_json_exact(json, "simulated_gain", simulated_gain(bench));
  }
  weft_json_close(json, '}');
}

/* ---- The command ---- */

/* GPT-2 124M, unless the options say otherwise. */
static void read_model(const struct weft_cli_arguments *arguments, struct bench *bench) {
  bench->training = weft_train_new_training(arguments, true);
  bench->training.batch = weft_cli_number(arguments, WEFT_CLI_OPTION_BATCH, BATCH);
  bench->training.rate = bench->training.rate_min = 3e-4;
  bench->training.total_steps = STEPS;
}

int weft_bench_cmd_train_gpu(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                             struct weft_text *text, struct weft_json *json) {
  assert(cli != NULL && arguments != NULL && text != NULL);
  struct bench *bench = weft_gpt_allocate(cli->allocator, 1, sizeof *bench);
  if (bench == NULL) {
    return weft_cli_fail_memory(cli);
  }
  bench->cli = cli;
  bench->rounds = weft_cli_number(arguments, WEFT_CLI_OPTION_REPEATS, 1);
  bench->quiet = json != NULL;
  read_model(arguments, bench);
  int status = WEFT_CLI_OK;
  if (bench->training.batch % MICROBATCHES != 0) {
    status =
        weft_cli_usage(cli, "for example --batch 32",
                       "--batch %" PRIu64 " is not a multiple of the %d microbatches of a case",
                       bench->training.batch, MICROBATCHES);
  } else {
    status = measure(bench);
  }
  if (status == WEFT_CLI_OK && json != NULL) {
    add_json(json, bench);
  } else if (status == WEFT_CLI_OK) {
    add_text(text, bench);
  }
  weft_gpt_free(cli->allocator, bench->text.bytes);
  weft_gpt_dataset_finish(&bench->tokens);
  weft_gpt_free(cli->allocator, bench);
  return status;
}
