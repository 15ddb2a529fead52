/* The number of replicas and of ranks of a training. On mpi the launcher determines the number of
 * processes, and missing options get the values that fit. */
#include "cli/args/option_parser.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "cli/io/error_message.h"
#include "cli/io/text_columns.h"
#include "gpt/command/train_setup.h"

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
  const uint64_t usual = processes == 0         ? RANKS_DEFAULT
                         : processes < replicas ? 1
                                                : processes / replicas;
  return (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_RANKS, usual);
}

static int say_misfit(const struct weft_train_setup *setup, uint64_t replicas) {
  const uint32_t ranks = setup->options.ranks, processes = processes_of(setup);
  char hint[160];
  (void)snprintf(hint, sizeof hint,
                 "mpirun -n %" PRIu64 " weft train ... --dp %" PRIu64 " --pp %" PRIu32
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
