/* What a launcher of MPI tells the processes that it starts, in their environment: known
 * before MPI is there. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "cli/cli.h"

struct weft_cli_launch {
  const char *launcher; /* as weft_mpi_launcher(); NULL: no launcher, one process */
  uint32_t rank, rank_count;
  uint32_t host_count; /* ranks on this machine; all, when the launcher does not say */
};

struct weft_cli_launch weft_cli_launch(void);

#endif
