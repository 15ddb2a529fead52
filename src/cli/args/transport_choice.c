/* Which transport is chosen. */
#include "cli/args/transport_choice.h"

#include <assert.h>

#include <weft/launch.h>

#include "cli/io/error_message.h"

const struct weft_comm_info *weft_cli_chosen_transport(const struct weft_cli_arguments *arguments) {
  const bool launched = weft_launch_info().rank_count > 1;
  const struct weft_comm_info *info = NULL;
  if (arguments->given[WEFT_CLI_OPTION_TRANSPORT]) {
    info = weft_comm_find(arguments->texts[WEFT_CLI_OPTION_TRANSPORT]);
  }
  for (uint32_t k = 0; info == NULL; k++) {
    info = weft_comm_transport(k);
    assert(info != NULL);
    info = info->virtual_time || info->process_per_rank != launched ? NULL : info;
  }
  return info;
}

/* In the order of the option's choices, of which the first is the default. */
enum weft_comm_progress weft_cli_chosen_progress(const struct weft_cli_arguments *arguments) {
  return arguments->choices[WEFT_CLI_OPTION_PROGRESS] == 0 ? WEFT_COMM_PROGRESS_CALLS
                                                           : WEFT_COMM_PROGRESS_THREAD;
}

int weft_cli_check_progress(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                            const struct weft_comm_info *transport) {
  return arguments->given[WEFT_CLI_OPTION_PROGRESS] && !transport->progress_thread
             ? weft_cli_usage(cli, "leave it out, or give --transport mpi",
                              "--progress has no effect: it is for the transport mpi")
             : WEFT_CLI_OK;
}
