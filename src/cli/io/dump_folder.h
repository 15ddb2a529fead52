/* The dumps of a PyTorch job: the files of a folder with a number at the end of their names. */
#ifndef CLI_DUMP_FOLDER_H
#define CLI_DUMP_FOLDER_H

#include <weft/ir.h>

#include "cli/cli.h"

/* Reads the folder and appends the explanation, as text or as JSON. Returns WEFT_CLI_OK, or
 * another exit status after printing what is wrong. */
int weft_cli_explain_flight(const struct weft_cli *cli, const char *folder,
                            const struct weft_program *program, bool json, struct weft_text *text);

#endif
