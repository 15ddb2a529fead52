/* The commands of weft-train. Each returns the exit status. */
#ifndef GPT_TRAIN_COMMANDS_H
#define GPT_TRAIN_COMMANDS_H

#include "cli/args/option_parser.h"

int weft_train_cmd_train(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_train_cmd_sample(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);

#endif
