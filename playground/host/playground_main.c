/* The command weft for the playground: the same command line, files, reports and messages, without
 * the commands that run something. A call is a process: the page starts it with words and files,
 * and gets its exit status, what it wrote, and its files (page/wasi.js). */
#include <weft/support.h>

#include "cli/cli_program.h"
#include "cli/cmd/commands.h"

static const struct weft_cli_handler handlers[] = {
    {"gen", weft_cli_cmd_gen},   {"lower", weft_cli_cmd_lower},     {"verify", weft_cli_cmd_verify},
    {"sim", weft_cli_cmd_sim},   {"compare", weft_cli_cmd_compare}, {"plan", weft_cli_cmd_plan},
    {"show", weft_cli_cmd_show}, {"explain", weft_cli_cmd_explain}, {"diff", weft_cli_cmd_diff},
    {"help", weft_cli_cmd_help},
};

const struct weft_cli_program weft_program = {
    .name = "weft",
    .summary = "Pipeline-parallel schedules: write them, prove them safe, look at them.",
    .example = "weft gen 1F1B -p 4 -m 8 | weft lower | weft verify",
    .handlers = handlers,
    .handler_count = WEFT_ARRAY_LENGTH(handlers),
};

int main(int argc, char **argv) {
  const struct weft_cli cli = {.input = 0, .output = 1, .messages = 2};
  return weft_cli_run(&cli, &weft_program, argc, argv);
}
