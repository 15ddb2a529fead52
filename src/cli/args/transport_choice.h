/* --transport and --progress, and what they are when nothing is said. */
#ifndef CLI_TRANSPORT_CHOICE_H
#define CLI_TRANSPORT_CHOICE_H

#include <weft/comm.h>

#include "cli/cmd/execution.h"

/* Threads; but where a launcher of MPI has started several processes, these are the ranks. */
enum weft_cli_transport weft_cli_chosen_transport(const struct weft_cli_arguments *arguments);
enum weft_mpi_progress weft_cli_chosen_progress(const struct weft_cli_arguments *arguments);

/* WEFT_CLI_USAGE, having said so, when --progress is given and the transport has none. */
int weft_cli_check_progress(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            enum weft_cli_transport transport);

#endif
