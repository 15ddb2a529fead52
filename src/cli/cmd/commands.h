/* The commands of weft, a file each. Each returns the exit status. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/cli_program.h"

weft_cli_command_function weft_cli_cmd_gen, weft_cli_cmd_lower, weft_cli_cmd_verify,
    weft_cli_cmd_sim, weft_cli_cmd_show, weft_cli_cmd_plan, weft_cli_cmd_compare, weft_cli_cmd_run,
    weft_cli_cmd_explain, weft_cli_cmd_explain_hang, weft_cli_cmd_diff, weft_cli_cmd_doctor,
    weft_cli_cmd_playground, weft_cli_cmd_help;

#endif
