/* The dump of a job that failed. */
#ifndef CLI_HANG_FILE_H
#define CLI_HANG_FILE_H

#include <weft/transport.h>

#include "cli/args/option_parser.h"

/* Writes what all ranks are doing to the file of --dump, else to weft-hang.json, and says so;
 * or says why not. */
void weft_cli_write_hang(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_transport *transport);

#endif
