/* The dump of a job that failed. */
#ifndef CLI_HANG_FILE_H
#define CLI_HANG_FILE_H

#include <weft/transport.h>

#include "cli/args/option_parser.h"

/* Writes the state of all ranks to the file of --dump, or to weft-hang.json, and prints that, or
 * why it could not. */
void weft_cli_write_hang(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_transport *transport);

#endif
