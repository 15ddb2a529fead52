/* Reads the options of `weft train`. The order matters: the checkpoint determines the context,
 * the data must be at least as long, and only then can it be compared with the checkpoint's. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include <weft/support.h>

#include "cli/args/option_parser.h"
#include "cli/gpus.h"
#include "cli/io/error_message.h"
#include "cli/io/text_columns.h"
#include "cli/report/run_report.h"
#include "cli/scoped.h"
#include "trainer/command/train_auto.h"
#include "trainer/command/train_setup.h"

/* ---- Ranks and replicas ---- */

enum { RANKS_DEFAULT = 2 };

static uint32_t processes_of(const struct weft_train_setup *setup) {
  return setup->job != NULL ? setup->job->transport->rank_count : 0;
}

bool weft_train_setup_reports(const struct weft_train_setup *setup) {
  return setup->job == NULL || setup->job->transport->rank == 0;
}

/* read_world() reports it when the numbers do not fit. */
uint32_t weft_train_setup_ranks(const struct weft_train_setup *setup) {
  assert(setup != NULL);
  const struct weft_cli_arguments *arguments = setup->arguments;
  const uint32_t processes = processes_of(setup);
  const uint64_t replicas = weft_cli_number(arguments, WEFT_CLI_OPTION_DP, 1);
  const uint64_t alone = weft_cli_is_on_gpus(arguments) ? 1 : RANKS_DEFAULT;
  const uint64_t usual = processes == 0 ? alone : processes < replicas ? 1 : processes / replicas;
  return (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, usual);
}

static int say_misfit(const struct weft_train_setup *setup, uint64_t replicas) {
  const uint32_t ranks = setup->options.ranks, processes = processes_of(setup);
  char hint[160];
  (void)snprintf(hint, sizeof hint,
                 "mpirun -n %" PRIu64 " weft train ... --dp %" PRIu64 " -p %" PRIu32
                 " --transport mpi",
                 replicas * ranks, replicas, ranks);
  return weft_cli_usage(setup->cli, hint,
                        "the job has %" PRIu32 " process%s: %" PRIu64 " replica%s of %" PRIu32
                        " rank%s need %" PRIu64,
                        processes, processes == 1 ? "" : "es", replicas, weft_cli_plural(replicas),
                        ranks, weft_cli_plural(ranks), replicas * ranks);
}

int weft_train_setup_read_world(struct weft_train_setup *setup) {
  assert(setup != NULL);
  const struct weft_cli_arguments *arguments = setup->arguments;
  const uint32_t processes = processes_of(setup), ranks = setup->options.ranks;
  const uint64_t usual = ranks > 0 && processes >= ranks ? processes / ranks : 1;
  const uint64_t replicas = weft_cli_number(arguments, WEFT_CLI_OPTION_DP, usual);
  if (processes > 0 && replicas * ranks != processes) {
    return say_misfit(setup, replicas);
  }
  setup->options.replicas = (uint32_t)replicas;
  return WEFT_CLI_OK;
}

enum { SYNTHETIC_CONTEXTS = 1024 };
enum { STALL_LIMIT_S = 300, KEEP_DEFAULT = 2, EVAL_STEPS = 4, EVALS_DEFAULT = 20 };

/* ---- Options without an effect ---- */

static int refuse_idle(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id of_checkpoints[] = {WEFT_CLI_OPTION_CHECKPOINT_EVERY,
                                                           WEFT_CLI_OPTION_CHECKPOINT_KEEP};
  const char *name =
      weft_cli_first_given(arguments, of_checkpoints, WEFT_ARRAY_LENGTH(of_checkpoints));
  return name != NULL && !arguments->given[WEFT_CLI_OPTION_CHECKPOINT]
             ? weft_cli_usage(cli, "add --checkpoint DIR",
                              "--%s has no effect without --checkpoint", name)
             : WEFT_CLI_OK;
}

static int refuse_untuned(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id of_plans[] = {WEFT_CLI_OPTION_MEMORY,
                                                     WEFT_CLI_OPTION_KEEP_PARTITION};
  const char *name = weft_cli_first_given(arguments, of_plans, WEFT_ARRAY_LENGTH(of_plans));
  return name != NULL && !weft_train_setup_is_auto(arguments)
             ? weft_cli_usage(cli, "--schedule auto plans within it",
                              "--%s has no effect without --schedule auto", name)
             : WEFT_CLI_OK;
}

/* The first step is a warm-up. */
static int refuse_single(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  const bool measures =
      arguments->given[WEFT_CLI_OPTION_PROFILE] || arguments->given[WEFT_CLI_OPTION_OUTPUT];
  return measures && weft_cli_number(arguments, WEFT_CLI_OPTION_STEPS, 2) < 2
             ? weft_cli_usage(cli, "train at least two steps",
                              "there is nothing to measure in one step: the first is a warm-up")
             : WEFT_CLI_OK;
}

/* In virtual time there is nothing to measure. */
static int refuse_measuring(const struct weft_cli *cli,
                            const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id measured[] = {WEFT_CLI_OPTION_PROFILE,
                                                     WEFT_CLI_OPTION_OUTPUT};
  const char *name = weft_cli_first_given(arguments, measured, WEFT_ARRAY_LENGTH(measured));
  return name != NULL && weft_cli_chosen_transport(arguments)->virtual_time
             ? weft_cli_usage(cli, "--transport threads has real times",
                              "--%s is not possible on loopback: its time is virtual, and does not "
                              "pass while a rank computes",
                              name)
             : WEFT_CLI_OK;
}

static int check_timeline(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  const char *path = arguments->texts[WEFT_CLI_OPTION_OUTPUT];
  if (path == NULL || weft_cli_picture_of(path) != WEFT_CLI_NO_PICTURE) {
    return WEFT_CLI_OK;
  }
  return weft_cli_usage(cli, "the report goes to standard output; --log FILE keeps it",
                        "-o '%s' has an unknown ending: expected a name that ends in .html "
                        "(page), .svg (picture) or .json (Chrome trace)",
                        weft_cli_quoted(path).text);
}

/* ---- Data ---- */

/* In its own source folder Weft trains on its sources. */
static bool is_own_folder(void) {
  return access("include/weft/base.h", R_OK) == 0 && access("trainer/model/model.h", R_OK) == 0 &&
         access("README.md", R_OK) == 0;
}

static int read_data(struct weft_train_setup *setup) {
  static const char *const own[] = {"README.md", "docs", "include", "trainer", "src"};
  const struct weft_cli_arguments *arguments = setup->arguments;
  const char *const *paths = arguments->list;
  uint32_t count = arguments->list_count;
  struct weft_error error;
  const struct weft_gpt_config *config = &setup->options.training.config;
  const bool bytes = config->vocabulary == WEFT_GPT_VOCABULARY;
  if (arguments->given[WEFT_CLI_OPTION_SYNTHETIC]) {
    if (count > 0) {
      return weft_cli_usage(setup->cli, "leave out one of them",
                            "--synthetic and --data contradict each other");
    }
    return weft_cli_result(
        setup->cli, NULL,
        weft_gpt_dataset_draw(&setup->dataset, setup->cli->allocator,
                              setup->options.training.data_seed, config->vocabulary,
                              SYNTHETIC_CONTEXTS * (uint64_t)config->context, &error),
        &error);
  }
  if (count == 0 && !(bytes && is_own_folder())) {
    return weft_cli_usage(setup->cli, "for example: weft train --data notes.txt; folders work too",
                          "there is nothing to train on: this is not the folder of Weft's own "
                          "sources, so --data FILE is needed");
  }
  if (count == 0) {
    paths = own;
    count = WEFT_ARRAY_LENGTH(own);
  }
  const uint64_t least = (uint64_t)config->context + weft_gpt_head_count(config);
  return weft_cli_result(
      setup->cli, NULL,
      bytes ? weft_gpt_dataset_read(&setup->dataset, setup->cli->allocator, paths, count, least,
                                    &error)
            : weft_gpt_dataset_read_tokens(&setup->dataset, setup->cli->allocator, paths, count,
                                           config->vocabulary, least, &error),
      &error);
}

/* ---- The rest ---- */

static void read_run(struct weft_train_setup *setup) {
  const struct weft_cli_arguments *arguments = setup->arguments;
  struct weft_gpt_trainer_options *options = &setup->options;
  const uint64_t steps = options->training.total_steps;
  options->allocator = setup->cli->allocator;
  options->dataset = &setup->dataset;
  options->transport = weft_cli_chosen_transport(arguments)->name;
  options->endpoint = setup->job != NULL ? setup->job->transport : NULL;
  options->shard = (enum weft_gpt_shard)arguments->choices[WEFT_CLI_OPTION_SHARD];
  options->on_divergence =
      (enum weft_gpt_on_divergence)arguments->choices[WEFT_CLI_OPTION_ON_DIVERGENCE];
  options->loopback_seed = options->training.data_seed;
  options->stall_limit = weft_cli_stall_limit(arguments, STALL_LIMIT_S);
  options->checkpoint_every = weft_cli_number(arguments, WEFT_CLI_OPTION_CHECKPOINT_EVERY, 0);
  options->checkpoint_keep =
      (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_CHECKPOINT_KEEP, KEEP_DEFAULT);
  options->resume = setup->resume;
  options->eval_every = weft_cli_number(arguments, WEFT_CLI_OPTION_EVAL_EVERY,
                                        steps > EVALS_DEFAULT ? steps / EVALS_DEFAULT : 1);
  options->eval_steps = EVAL_STEPS;
  options->cuda = setup->cuda;
  options->eager = arguments->given[WEFT_CLI_OPTION_EAGER];
  options->gather_events = arguments->given[WEFT_CLI_OPTION_OUTPUT];
  options->times_layers |= arguments->given[WEFT_CLI_OPTION_PROFILE];
  options->gather_model =
      !arguments->given[WEFT_CLI_OPTION_JSON] &&
      options->training.config.vocabulary == WEFT_GPT_VOCABULARY; /* else there are no letters */
}

static int check_options(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  WEFT_CLI_TRY(refuse_idle(cli, arguments));
  WEFT_CLI_TRY(refuse_untuned(cli, arguments));
  WEFT_CLI_TRY(refuse_single(cli, arguments));
  WEFT_CLI_TRY(refuse_measuring(cli, arguments));
  WEFT_CLI_TRY(check_timeline(cli, arguments));
  return weft_cli_check_transport(cli, arguments, weft_cli_chosen_transport(arguments));
}

int weft_train_setup_read(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          struct weft_cli_job *job, struct weft_train_setup *setup) {
  assert(cli != NULL && arguments != NULL && setup != NULL);
  *setup = (struct weft_train_setup){
      .cli = cli,
      .arguments = arguments,
      .job = job,
      .options = {.checkpoint_dir = arguments->texts[WEFT_CLI_OPTION_CHECKPOINT]},
      .arena = {.allocator = cli->allocator},
      .lock = {.descriptor = -1}};
  WEFT_CLI_TRY(check_options(cli, arguments));
  WEFT_CLI_TRY(weft_train_setup_open(setup));
  WEFT_CLI_TRY(weft_train_setup_read_training(setup));
  WEFT_CLI_TRY(weft_train_setup_read_schedule(setup));
  WEFT_CLI_TRY(weft_train_setup_read_world(setup));
  WEFT_CLI_TRY(weft_train_setup_read_split(setup));
  WEFT_CLI_TRY(read_data(setup));
  WEFT_CLI_TRY(weft_train_setup_check_data(setup));
  WEFT_CLI_TRY(weft_cli_open_gpus(cli, arguments, job,
                                  setup->options.ranks * setup->options.replicas, &setup->cuda));
  read_run(setup);
  weft_train_setup_read_memory(setup);
  return WEFT_CLI_OK;
}

void weft_train_setup_finish(struct weft_train_setup *setup) {
  assert(setup != NULL);
  weft_gpt_checkpoint_unlock(setup->options.checkpoint_dir, &setup->lock);
  weft_comm_disconnect(setup->job != NULL ? setup->job->comm : NULL); /* it uses the GPU */
  weft_cuda_close(setup->cuda);
  weft_gpt_dataset_finish(&setup->dataset);
  weft_gpt_checkpoint_close(setup->resume);
  weft_program_destroy(setup->program);
  weft_arena_finish(&setup->arena);
}
