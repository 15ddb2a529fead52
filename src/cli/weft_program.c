/* The commands of the program weft. Those that need more than it links are run by another
 * program from the same folder. */
#include <stdlib.h>

#include <weft/support.h>

#include "cli/cli_program.h"
#include "cli/cmd/commands.h"

static int start_trainer(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  (void)arguments;
  /* OpenBLAS starts threads when it is loaded, and kills the process where it cannot. */
  (void)setenv("OPENBLAS_NUM_THREADS", "1", 1);
  return weft_cli_process_become(cli, "weft-train");
}

static int start_benchmarks(const struct weft_cli *cli,
                            const struct weft_cli_arguments *arguments) {
  (void)arguments;
  return weft_cli_process_become(cli, "weft-bench");
}

static const struct weft_cli_handler handlers[] = {
    {"gen", weft_cli_cmd_gen},         {"lower", weft_cli_cmd_lower},
    {"verify", weft_cli_cmd_verify},   {"sim", weft_cli_cmd_sim},
    {"compare", weft_cli_cmd_compare}, {"plan", weft_cli_cmd_plan},
    {"show", weft_cli_cmd_show},       {"run", weft_cli_cmd_run},
    {"train", start_trainer},          {"sample", start_trainer},
    {"explain", weft_cli_cmd_explain}, {"explain-hang", weft_cli_cmd_explain_hang},
    {"diff", weft_cli_cmd_diff},       {"bench", start_benchmarks},
    {"doctor", weft_cli_cmd_doctor},   {"playground", weft_cli_cmd_playground},
    {"help", weft_cli_cmd_help},
};

const struct weft_cli_program weft_program = {
    .name = "weft",
    .summary = "Pipeline-parallel schedules: write them, prove them safe, look at them.",
    .example = "weft gen 1F1B -p 4 -m 8 | weft lower | weft verify",
    .handlers = handlers,
    .handler_count = WEFT_ARRAY_LENGTH(handlers),
};
