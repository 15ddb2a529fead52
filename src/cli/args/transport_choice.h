/* --transport and --progress, and their defaults. */
#ifndef CLI_TRANSPORT_CHOICE_H
#define CLI_TRANSPORT_CHOICE_H

#include <weft/comm.h>

#include "cli/args/option_parser.h"

/* --transport; by default threads, but where a launcher has started several processes, these are
 * the ranks. */
const struct weft_comm_info *weft_cli_chosen_transport(const struct weft_cli_arguments *arguments);
enum weft_comm_progress weft_cli_chosen_progress(const struct weft_cli_arguments *arguments);

/* WEFT_CLI_USAGE, having reported it, when --progress is given and has no effect. */
int weft_cli_check_progress(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            const struct weft_comm_info *transport);

#endif
