/* The commands of the program weft in the Python package, in place of src/cli/weft_program.c: it
 * has no trainer, no benchmarks and no playground beside it. */
#include <weft/support.h>

#include "cli/cli_program.h"
#include "cli/cmd/commands.h"

static const struct weft_cli_handler handlers[] = {
    {"gen", weft_cli_cmd_gen},         {"lower", weft_cli_cmd_lower},
    {"verify", weft_cli_cmd_verify},   {"sim", weft_cli_cmd_sim},
    {"compare", weft_cli_cmd_compare}, {"plan", weft_cli_cmd_plan},
    {"show", weft_cli_cmd_show},       {"run", weft_cli_cmd_run},
    {"explain", weft_cli_cmd_explain}, {"explain-hang", weft_cli_cmd_explain_hang},
    {"diff", weft_cli_cmd_diff},       {"doctor", weft_cli_cmd_doctor},
    {"help", weft_cli_cmd_help},
};

const struct weft_cli_program weft_program = {
    .name = "weft",
    .summary = "Pipeline-parallel schedules: write them, prove them safe, look at them.",
    .example = "weft gen 1F1B -p 4 -m 8 | weft lower | weft verify",
    .elsewhere = "build Weft from its sources, with 'make': that weft has all commands",
    .handlers = handlers,
    .handler_count = WEFT_ARRAY_LENGTH(handlers),
};
