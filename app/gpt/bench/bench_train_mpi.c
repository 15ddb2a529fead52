/* The steps of the GPT for `weft bench mpi`, on two threads or as a rank of a job; and the
 * command `bench` of weft-train, which weft-bench starts. */
#include <string.h>

#include "bench/bench_mpi.h"
#include "cli/io/error_message.h"
#include "gpt/bench/bench_train.h"
#include "gpt/command/sample_text.h"
#include "gpt/model/aligned_memory.h"

static void take_turn(void *context, uint32_t rank, uint64_t step) {
  struct weft_cli_mpi_block *block = context;
  weft_cli_turn_take(&block->ranks[rank], block->turns, rank, step == 0, block->transport);
  if (step == WEFT_CLI_MPI_GPT_STEPS) {
    weft_cli_turn_close(&block->ranks[rank]);
  }
}

static int train_steps(const struct weft_cli *cli, struct weft_cli_job *job,
                       const struct weft_program *program, struct weft_cli_mpi_block *block) {
  struct weft_gpt_dataset corpus;
  struct weft_cli_train_block trained;
  struct weft_error error;
  if (weft_cli_train_fixed_dataset(cli->allocator, &corpus, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  struct weft_gpt_trainer_options options =
      weft_cli_train_fixed_options(&corpus, program, WEFT_CLI_MPI_GPT_STEPS);
  options.on_rank = weft_cli_mpi_bind_rank;
  options.between_steps = block->turns[0] != '\0' ? take_turn : NULL;
  options.context = block;
  options.endpoint = job != NULL ? job->transport : NULL;
  const int status = weft_cli_train_block_run(cli, &options, program, &trained);
  const bool in_turns = block->turns[0] != '\0'; /* then samples have the others' steps in them */
  for (uint32_t k = 0; k < trained.sample_count && status == WEFT_CLI_OK && !in_turns; k++) {
    weft_cli_mpi_add_sample(&block->samples, trained.samples_ns[k]);
  }
  block->hash = trained.hash;
  block->simulated_ns = (uint64_t)(trained.simulated_ms * 1e6);
  weft_gpt_free(cli->allocator, corpus.bytes);
  return status;
}

int weft_train_cmd_bench(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  const char *name = arguments->operand_count > 0 ? arguments->operands[0] : "";
  if (strcmp(name, "mpi") == 0) {
    weft_cli_choose_kernels(cli);
    return weft_cli_bench_mpi_job(cli, arguments, train_steps);
  }
  if (strcmp(name, "train") == 0) {
    return weft_bench_report(cli, arguments, weft_cli_bench_train);
  }
  return weft_cli_usage(cli, "'weft bench' runs the others",
                        "weft-train runs the benchmark train only");
}
