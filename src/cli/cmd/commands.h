/* The commands of weft, a file each. Each returns the exit status. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/args/option_parser.h"

int weft_cli_cmd_gen(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_lower(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_verify(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_sim(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_show(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_plan(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_run(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_explain(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_explain_hang(const struct weft_cli *cli,
                              const struct weft_cli_arguments *arguments);
int weft_cli_cmd_diff(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_doctor(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_playground(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_cmd_help(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);

#endif
