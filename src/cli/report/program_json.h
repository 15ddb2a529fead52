/* The JSON document of a program, "weft-program/1", and one action as text. */
#ifndef CLI_PROGRAM_JSON_H
#define CLI_PROGRAM_JSON_H

#include <weft/ir.h>
#include <weft/support.h>

#include "cli/args/option_parser.h"

/* Writes `program` as CSV or, with --json, as a document, to where -o points. */
int weft_cli_write_program(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                           const struct weft_program *program);

/* "compute" or "comms". */
const char *weft_cli_level_name(enum weft_level level);

/* Records of the cell that begins at `action`: 1, or an overlap's header and parts. */
uint64_t weft_cli_cell_size(const struct weft_action *action);

/* "4 ranks, 8 stages, 16 microbatches". */
struct weft_cli_words weft_cli_size(const struct weft_program *program);

/* "note: rank 2 has no action", a line of its own; nothing where there is nothing to say. */
void weft_cli_note_text(struct weft_text *text, const struct weft_program *program);
/* The same as the member "notes", a list. */
void weft_cli_note_json(struct weft_json *json, const struct weft_program *program);
/* The same on standard error, where the output has no place for it; of several files, with the
 * name of this one, else NULL. */
void weft_cli_print_note(const struct weft_cli *cli, const char *name,
                         const struct weft_program *program);

/* A text value of the document: the cell that begins at `action`; null for NULL. */
void weft_json_action(struct weft_json *json, const char *key, const struct weft_action *action);

#endif
