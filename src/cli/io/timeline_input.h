/* What `weft show` draws: tables or programs, read, checked and simulated. */
#ifndef CLI_TIMELINE_INPUT_H
#define CLI_TIMELINE_INPUT_H

#include <weft/render.h>

#include "cli/args/option_parser.h"

enum { WEFT_CLI_TIMELINES_MAX = 2 };

struct weft_cli_timeline {
  struct weft_program *given;
  struct weft_program *lowered; /* a table with SEND and RECV added; or NULL */
  struct weft_simulation *simulation;
};

/* All that a command line names. Zero-initialise. */
struct weft_cli_timelines {
  struct weft_cli_timeline list[WEFT_CLI_TIMELINES_MAX];
  struct weft_picture pictures[WEFT_CLI_TIMELINES_MAX];
  size_t count;
  struct weft_costs *costs; /* of all of them */
};

/* Reads and simulates them. Returns WEFT_CLI_OK, or another exit status after
 * printing what is wrong. Finish in either case. */
int weft_cli_timelines_read(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            struct weft_cli_timelines *timelines);
void weft_cli_timelines_finish(struct weft_cli_timelines *timelines);

#endif
