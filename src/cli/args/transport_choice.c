/* Which transport is meant. */
#include <weft/launch.h>

#include "cli/args/transport_choice.h"

#include "cli/io/error_message.h"

enum weft_cli_transport weft_cli_chosen_transport(const struct weft_cli_arguments *arguments) {
  if (arguments->given[WEFT_CLI_OPTION_TRANSPORT]) {
    return (enum weft_cli_transport)arguments->choices[WEFT_CLI_OPTION_TRANSPORT];
  }
  return weft_launch_info().rank_count > 1 ? WEFT_CLI_TRANSPORT_MPI : WEFT_CLI_TRANSPORT_THREADS;
}

/* In the order of the option's choices, of which the first is the default. */
enum weft_mpi_progress weft_cli_chosen_progress(const struct weft_cli_arguments *arguments) {
  return arguments->choices[WEFT_CLI_OPTION_PROGRESS] == 0 ? WEFT_MPI_CALLS : WEFT_MPI_THREAD;
}

int weft_cli_check_progress(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            enum weft_cli_transport transport) {
  return arguments->given[WEFT_CLI_OPTION_PROGRESS] && transport != WEFT_CLI_TRANSPORT_MPI
             ? weft_cli_usage(cli, "leave it out, or give --transport mpi",
                              "--progress would change nothing: it is for the transport mpi")
             : WEFT_CLI_OK;
}
