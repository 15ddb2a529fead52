/* The MPIs that may be installed, and their launchers. */
#ifndef CLI_MPI_LAUNCHER_H
#define CLI_MPI_LAUNCHER_H

#include <weft/base.h>

enum { WEFT_CLI_MPI_COUNT = 2 };

struct weft_cli_mpi {
  const char *name;     /* "openmpi" */
  const char *package;  /* how to install it */
  const char *launcher; /* "mpirun.openmpi", as found in PATH; NULL: none */
};

/* MPI number `index`; `starts` its launcher with --version to see whether it is there, else that is
 * NULL. */
struct weft_cli_mpi weft_cli_mpi_find(size_t index, bool starts);

/* The command line of two processes of `command` (words until NULL) under the launcher, which binds
 * nothing if `unbound`; written to words [WEFT_CLI_MPI_WORDS_MAX], with NULL behind it. */
enum { WEFT_CLI_MPI_WORDS_MAX = 40 };
void weft_cli_mpi_two_processes(const struct weft_cli_mpi *mpi, bool unbound,
                                const char *const *command, const char **words);

#endif
