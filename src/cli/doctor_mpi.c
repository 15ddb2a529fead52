/* Which MPIs this machine has, how they are set, and whether they work: tried by starting
 * this command twice under each of their launchers. */
#include "cli/doctor_mpi.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/child_process.h"
#include "cli/mca_setting.h"

enum { VERSION_LIMIT_MS = 5000, PING_LIMIT_MS = 10000, LAUNCHERS_MAX = 3 };

/* Distributions that have both call them apart by the ending. */
static const struct kind {
  const char *name;
  const char *launchers[LAUNCHERS_MAX + 1];
  const char *says; /* what `--version` says */
  const char *package;
} kinds[WEFT_CLI_MPI_COUNT] = {
    {"openmpi",
     {"mpirun.openmpi", "orterun", "mpirun", NULL},
     "open-mpi.org",
     "apt-get install openmpi-bin libopenmpi-dev"},
    {"mpich",
     {"mpiexec.mpich", "mpiexec.hydra", "mpirun", NULL},
     "HYDRA",
     "apt-get install mpich libmpich-dev"},
};

/* Words for `mpirun`, which refuses to work for root unless it is told twice. */
static const char *const environment[] = {WEFT_CLI_PING_MARK,
                                          "1",
                                          "OMPI_ALLOW_RUN_AS_ROOT",
                                          "1",
                                          "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                                          "1",
                                          NULL};

static const char *find_launcher(const struct kind *kind) {
  for (size_t k = 0; kind->launchers[k] != NULL; k++) {
    const char *const words[] = {kind->launchers[k], "--version", NULL};
    struct weft_cli_child child = {
        .words = words, .sets = environment, .limit_ms = VERSION_LIMIT_MS};
    weft_cli_child_run(&child);
    if (child.started && strstr(child.output, kind->says) != NULL) {
      return kind->launchers[k];
    }
  }
  return NULL;
}

/* ---- What the two processes write ---- */

/* The rest of the line that begins with `key` and a space; false when there is none. */
static bool find_line(const char *text, const char *key, char *value, size_t size) {
  const size_t key_size = strlen(key);
  for (const char *at = text; at != NULL; at = strchr(at, '\n')) {
    at += *at == '\n' ? 1 : 0;
    if (strncmp(at, key, key_size) == 0 && at[key_size] == ' ') {
      const char *begin = at + key_size + 1;
      (void)snprintf(value, size, "%.*s", (int)strcspn(begin, "\n"), begin);
      return true;
    }
  }
  return false;
}

static uint64_t find_number(const char *text, const char *key) {
  char digits[32];
  uint64_t number;
  return find_line(text, key, digits, sizeof digits) &&
                 weft_cli_read_number(digits, &number) == WEFT_CLI_DIGITS_OK
             ? number
             : 0;
}

/* Its first line of sense: launchers wrap theirs in rulers. */
static void quote_trouble(const struct weft_cli_child *child, char *message, size_t size) {
  const char *line = child->output;
  while (*line == '\n' || *line == '-' || *line == ' ') {
    line++;
  }
  if (child->timed_out) {
    (void)snprintf(message, size, "two processes had not exchanged messages after %d s",
                   PING_LIMIT_MS / 1000);
  } else {
    (void)snprintf(message, size, "ended with status %d: %.*s", child->status,
                   (int)strcspn(line, "\n"), line);
  }
}

static void ping(const char *command, struct weft_cli_mpi *mpi) {
  const bool is_open = strcmp(mpi->name, "openmpi") == 0;
  const char *const open_words[] = {mpi->launcher, "--oversubscribe", "-n", "2",
                                    command,       "doctor",          NULL};
  const char *const other_words[] = {mpi->launcher, "-n", "2", command, "doctor", NULL};
  struct weft_cli_child child = {
      .words = is_open ? open_words : other_words, .sets = environment, .limit_ms = PING_LIMIT_MS};
  weft_cli_child_run(&child);
  mpi->ping.latency_ns = find_number(child.output, "latency_ns");
  mpi->ping.bytes_per_s = find_number(child.output, "bytes_per_s");
  (void)find_line(child.output, "library", mpi->library, sizeof mpi->library);
  (void)find_line(child.output, "threading", mpi->threading, sizeof mpi->threading);
  (void)find_line(child.output, "binding", mpi->binding, sizeof mpi->binding);
  mpi->without_driver = !child.timed_out && child.status == WEFT_CLI_UNAVAILABLE;
  if (!mpi->without_driver && (child.timed_out || child.status != 0 || mpi->ping.latency_ns == 0)) {
    quote_trouble(&child, mpi->message, sizeof mpi->message);
  }
}

void weft_cli_mpi_find(size_t index, struct weft_cli_mpi *mpi) {
  *mpi = (struct weft_cli_mpi){.name = kinds[index].name,
                               .package = kinds[index].package,
                               .launcher = find_launcher(&kinds[index])};
}

void weft_cli_mpi_look(const struct weft_cli *cli, bool quick,
                       struct weft_cli_mpi found[WEFT_CLI_MPI_COUNT]) {
  char buffer[PATH_MAX];
  const char *command = cli->words != NULL ? weft_cli_process_file(buffer, sizeof buffer) : NULL;
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    struct weft_cli_mpi *mpi = &found[k];
    *mpi = (struct weft_cli_mpi){.name = kinds[k].name};
    mpi->package = kinds[k].package;
    if (command == NULL || quick) {
      continue;
    }
    mpi->launcher = find_launcher(&kinds[k]);
    if (mpi->launcher != NULL) {
      ping(command, mpi);
      weft_cli_mca_describe(mpi);
    }
  }
}
