/* Launchers: where distributions install several MPIs, they differ by the ending. */
#include "cli/io/mpi_launcher.h"

#include <assert.h>
#include <string.h>

#include "cli/io/child_process.h"

enum { VERSION_LIMIT_MS = 5000, LAUNCHERS_MAX = 3 };

static const struct kind {
  const char *name;
  const char *launchers[LAUNCHERS_MAX + 1];
  const char *says; /* in the output of --version */
  const char *package;
  const char *options[4], *unbound[3];
} kinds[WEFT_CLI_MPI_COUNT] = {
    {"openmpi",
     {"mpirun.openmpi", "orterun", "mpirun", NULL},
     "open-mpi.org",
     "apt-get install openmpi-bin libopenmpi-dev",
     {"--oversubscribe", "-n", "2", NULL},
     {"--bind-to", "none", NULL}},
    {"mpich",
     {"mpiexec.mpich", "mpiexec.hydra", "mpirun", NULL},
     "HYDRA",
     "apt-get install mpich libmpich-dev",
     {"-n", "2", NULL},
     {"-bind-to", "none", NULL}},
};

struct weft_cli_mpi weft_cli_mpi_find(size_t index, bool starts) {
  assert(index < WEFT_CLI_MPI_COUNT);
  struct weft_cli_mpi mpi = {.name = kinds[index].name, .package = kinds[index].package};
  for (size_t k = 0; starts && kinds[index].launchers[k] != NULL && mpi.launcher == NULL; k++) {
    const char *const words[] = {kinds[index].launchers[k], "--version", NULL};
    struct weft_cli_child child = {.words = words, .limit_ms = VERSION_LIMIT_MS};
    weft_cli_child_run(&child);
    if (child.started && strstr(child.output, kinds[index].says) != NULL) {
      mpi.launcher = words[0];
    }
  }
  return mpi;
}

static size_t append_words(const char **words, size_t count, const char *const *more) {
  while (*more != NULL) {
    assert(count + 1 < WEFT_CLI_MPI_WORDS_MAX);
    words[count++] = *more++;
  }
  words[count] = NULL;
  return count;
}

void weft_cli_mpi_two_processes(const struct weft_cli_mpi *mpi, bool unbound,
                                const char *const *command, const char **words) {
  assert(mpi->launcher != NULL);
  const struct kind *kind = &kinds[0];
  while (strcmp(kind->name, mpi->name) != 0) {
    kind++;
  }
  words[0] = mpi->launcher;
  size_t count = append_words(words, 1, kind->options);
  if (unbound) {
    count = append_words(words, count, kind->unbound);
  }
  (void)append_words(words, count, command);
}
