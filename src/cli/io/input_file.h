/* Reading a table, a program, costs or a dump from a file or from standard input. */
#ifndef CLI_INPUT_FILE_H
#define CLI_INPUT_FILE_H

#include <weft/costs.h>
#include <weft/ir.h>
#include <weft/verify.h>

#include "cli/args/option_parser.h"
#include "cli/cli.h"

/* Reads and parses `path`; NULL or "-" is standard input. Returns WEFT_CLI_OK
 * and the program, or another exit status after printing what is wrong. */
int weft_cli_read_program(const struct weft_cli *cli, const char *path, struct weft_program **out);

/* The same for operand number `index`; with --graph the program gets the graph of that file, for
 * which it must have no row "#graph" or one with the same edges. */
int weft_cli_read_operand(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          unsigned index, struct weft_program **out);

/* The same for the graph that --graph names; NULL without it. */
int weft_cli_read_graph(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_graph **out);

/* The same for a costs file. */
int weft_cli_read_costs(const struct weft_cli *cli, const char *path, struct weft_costs **out);

/* The same for the dump of a run that hangs; appends the explanation as text or as JSON. */
int weft_cli_read_hang(const struct weft_cli *cli, const char *path, bool json,
                       struct weft_text *text);

/* Whether `path` is NULL or "-". */
bool weft_cli_is_standard_input(const char *path);
/* What messages call `path`. */
const char *weft_cli_input_name(const char *path);

/* The simulator only needs to finish, and a table with missing work would look fast. So the
 * program is verified, with unlimited buffers as in the simulation. Returns WEFT_CLI_OK, or
 * another exit status after printing what is wrong with the program, which messages call `name`. */
int weft_cli_check_valid(const struct weft_cli *cli, const struct weft_program *program,
                         const char *name);

/* Prints the first finding of a report that is not ok, and how many more there are if `counts`;
 * returns WEFT_CLI_FOUND_BAD. */
int weft_cli_fail_finding(const struct weft_cli *cli, const char *name,
                          const struct weft_report *report, const char *hint, bool counts);

#endif
