/* Launchers and their variables. */
#include "cli/launch.h"

#include <stdlib.h>

#include <weft/comm.h>

#include "cli/args/option_parser.h"

/* The first of these variables that is a number; they are from mpirun of Open MPI, from
 * PMI (MPICH and its kin), and from Slurm. */
static uint32_t first_number(const char *const *names, size_t count, uint32_t otherwise) {
  for (size_t i = 0; i < count; i++) {
    const char *text = getenv(names[i]);
    uint64_t number;
    if (text != NULL && weft_cli_read_number(text, &number) == WEFT_CLI_DIGITS_OK &&
        number <= UINT32_MAX) {
      return (uint32_t)number;
    }
  }
  return otherwise;
}

struct weft_cli_launch weft_cli_launch(void) {
  static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                      "SLURM_PROCID"};
  static const char *const counts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
  static const char *const neighbours[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
  const char *launcher = weft_mpi_launcher();
  if (launcher == NULL) {
    return (struct weft_cli_launch){.rank_count = 1, .host_count = 1};
  }
  const uint32_t count = first_number(counts, sizeof counts / sizeof counts[0], 1);
  return (struct weft_cli_launch){
      .launcher = launcher,
      .rank = first_number(ranks, sizeof ranks / sizeof ranks[0], 0),
      .rank_count = count,
      .host_count = first_number(neighbours, sizeof neighbours / sizeof neighbours[0], count)};
}
