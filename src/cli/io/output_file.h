/* Data out: to standard output, or to -o FILE, whole or not at all. */
#ifndef CLI_OUTPUT_FILE_H
#define CLI_OUTPUT_FILE_H

#include <weft/transport.h>

#include "cli/args/option_parser.h"

/* The file of -o; NULL: the data goes to standard output. */
const char *weft_cli_output_path(const struct weft_cli_arguments *arguments);

/* Writes `text`, all the output of a command, to standard output or to -o FILE. Returns `status`
 * when all of it was written, WEFT_CLI_INTERNAL when the text is incomplete for lack of memory,
 * WEFT_CLI_IO when it could not be written (after printing why). */
int weft_cli_write_output(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          const struct weft_text *text, int status);

/* Writes `text` to a file, whole or not at all; WEFT_CLI_OK, or another exit status
 * after printing why. */
int weft_cli_write_file(const struct weft_cli *cli, const char *path, const struct weft_text *text);

/* Writes `text` to a descriptor that messages call `name`, or to standard output; the same
 * statuses. */
int weft_cli_write_descriptor(const struct weft_cli *cli, int fd, const char *name,
                              const struct weft_text *text);
int weft_cli_write_stdout(const struct weft_cli *cli, const struct weft_text *text);

/* Whether the data of this command goes to a terminal that may be coloured. */
bool weft_cli_colours_data(const struct weft_cli *cli, const struct weft_cli_arguments *arguments);

/* Writes the state of all ranks to the file of --dump, or to weft-hang.json, and prints that, or
 * why it could not. */
void weft_cli_write_hang(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_transport *transport);

#endif
