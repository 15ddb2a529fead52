/* The verbs, a file each. Each returns the exit status. */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

#include "cli/args/option_parser.h"

int weft_cli_verb_gen(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_lower(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_verify(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_sim(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_show(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_plan(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_compare(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_run(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_train(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_sample(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_explain(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_explain_hang(const struct weft_cli *cli,
                               const struct weft_cli_arguments *arguments);
int weft_cli_verb_diff(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_bench(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_doctor(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);
int weft_cli_verb_help(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);

#endif
