/* The program weft-train, which `weft train` and `weft sample` start: the reference trainer,
 * and the only program with BLAS. */
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "cli/cli_program.h"
#include "trainer/bench/bench_train.h"
#include "trainer/command/restart.h"
#include "trainer/command/train_commands.h"

static const struct weft_cli_handler handlers[] = {
    {"train", weft_train_cmd_train},
    {"sample", weft_train_cmd_sample},
    {"bench", weft_train_cmd_bench},
};

static const struct weft_cli_program program = {
    .name = "weft-train",
    .summary = "The reference trainer of Weft: a small GPT on a pipeline.",
    .example = "weft-train train notes.txt --layers 2 --dim 32 --steps 50 --checkpoint model",
    .handlers = handlers,
    .handler_count = WEFT_ARRAY_LENGTH(handlers),
};

/* OpenBLAS reads this variable when it is loaded, and starts threads for more than one. They
 * would take signals that this process waits for, and memory. */
static void load_without_threads(const struct weft_cli *cli) {
  const char *threads = getenv("OPENBLAS_NUM_THREADS");
  if (threads == NULL || strcmp(threads, "1") != 0) {
    weft_train_restart(cli, "OPENBLAS_NUM_THREADS", "1");
  }
}

int main(int argc, char **argv) {
  struct weft_cli cli;
  weft_cli_process_init(&cli, argv);
  load_without_threads(&cli);
  return weft_cli_run(&cli, &program, argc, argv);
}
