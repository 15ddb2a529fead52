/* The part of the grid round a finding. */
#ifndef CLI_FINDING_GRID_H
#define CLI_FINDING_GRID_H

#include <weft/inspect.h>

/* Appends an excerpt of the grid of `program` with the finding's place, or all
 * members of its cycle, marked; nothing when the finding has no place in it. */
enum weft_status weft_cli_finding_grid_add(struct weft_text *text,
                                           const struct weft_program *program,
                                           const struct weft_finding *finding,
                                           struct weft_error *error);

#endif
