/* Whether a table or program can be simulated and believed. */
#ifndef CLI_VALIDITY_H
#define CLI_VALIDITY_H

#include <weft/ir.h>

#include "cli/cli.h"

/* The simulator needs to finish only; a table in which work is missing would too,
 * and be called fast. Buffers are unlimited, as in the simulation. Returns
 * WEFT_CLI_OK, or another exit status after having said what is wrong with the
 * program, which messages call `name`. */
int weft_cli_check_valid(const struct weft_cli *cli, const struct weft_program *program,
                         const char *name);

#endif
