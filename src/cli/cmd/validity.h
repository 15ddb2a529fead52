/* Whether the simulation of a table or program is meaningful. */
#ifndef CLI_VALIDITY_H
#define CLI_VALIDITY_H

#include <weft/ir.h>

#include "cli/cli.h"

/* The simulator only needs to finish, and a table with missing work would look fast. So the
 * program is verified, with unlimited buffers as in the simulation. Returns WEFT_CLI_OK, or
 * another exit status after printing what is wrong with the program, which messages call `name`. */
int weft_cli_check_valid(const struct weft_cli *cli, const struct weft_program *program,
                         const char *name);

#endif
