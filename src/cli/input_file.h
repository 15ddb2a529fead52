/* Reading a table, a program or costs from a file or from standard input. */
#ifndef CLI_INPUT_FILE_H
#define CLI_INPUT_FILE_H

#include <weft/costs.h>

#include "cli/cli.h"

/* Reads and parses `path`; NULL or "-" is standard input. Returns WEFT_CLI_OK
 * and the program, or another exit status after having said what is wrong. */
int weft_cli_read_program(const struct weft_cli *cli, const char *path, struct weft_program **out);

/* The same for a costs file. */
int weft_cli_read_costs(const struct weft_cli *cli, const char *path, struct weft_costs **out);

/* What messages call `path`. */
const char *weft_cli_input_name(const char *path);

#endif
