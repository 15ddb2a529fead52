/* The real process behind struct weft_cli. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/io/error_message.h"

#define OWN_FILE "/proc/self/exe"

enum { TRAINER_MB = 512 };

/* With a standard descriptor closed, the next open() would get its number, and messages or data
 * would end up in some file. /dev/null replaces it; for stdout it is read-only, so that writing
 * data there fails. */
static void keep_standard_descriptors(void) {
  static const int modes[3] = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int fd = 0; fd < 3; fd++) {
    if (fcntl(fd, F_GETFD) < 0) {
      (void)!open("/dev/null", modes[fd]);
    }
  }
}

static bool colour_allowed(void) {
  const char *no_color = getenv("NO_COLOR");
  const char *term = getenv("TERM");
  return (no_color == NULL || no_color[0] == '\0') && term != NULL && strcmp(term, "dumb") != 0;
}

/* COLUMNS, if exported, comes before the terminal's width. */
static uint32_t text_columns(void) {
  const char *wanted = getenv("COLUMNS");
  if (wanted != NULL && wanted[0] >= '1' && wanted[0] <= '9' && strlen(wanted) <= 5) {
    return (uint32_t)strtoul(wanted, NULL, 10);
  }
  struct winsize size;
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void weft_cli_process_init(struct weft_cli *cli, char **argv) {
  assert(cli != NULL);
  keep_standard_descriptors();
  /* A closed pipe and a file above `ulimit -f` are errors of write(), reported as exit status 74. */
  struct sigaction ignore;
  memset(&ignore, 0, sizeof ignore);
  ignore.sa_handler = SIG_IGN;
  (void)sigaction(SIGPIPE, &ignore, NULL);
  (void)sigaction(SIGXFSZ, &ignore, NULL);

  *cli = (struct weft_cli){
      .allocator = weft_allocator_default(),
      .input = STDIN_FILENO,
      .output = STDOUT_FILENO,
      .messages = STDERR_FILENO,
      .input_terminal = isatty(STDIN_FILENO) == 1,
      .output_terminal = isatty(STDOUT_FILENO) == 1,
      .messages_terminal = isatty(STDERR_FILENO) == 1,
      .columns = text_columns(),
      .colour = colour_allowed(),
      .program_path = access(OWN_FILE, X_OK) == 0 ? OWN_FILE : argv[0],
      .words = argv,
  };
}

const char *weft_cli_process_file(char *buffer, size_t size) {
  const ssize_t length = readlink(OWN_FILE, buffer, size);
  if (length <= 0 || (size_t)length >= size) {
    return NULL;
  }
  buffer[length] = '\0';
  return buffer;
}

const char *weft_cli_process_sibling(const char *name, char *buffer, size_t size) {
  assert(name != NULL);
  const char *own = weft_cli_process_file(buffer, size);
  char *slash = own != NULL ? strrchr(buffer, '/') : NULL;
  if (slash == NULL || (size_t)(slash + 1 - buffer) + strlen(name) >= size) {
    return NULL;
  }
  memcpy(slash + 1, name, strlen(name) + 1);
  return access(buffer, X_OK) == 0 ? buffer : NULL;
}

/* OpenBLAS takes memory while it is loaded, before main(), and tries forever when there is none. */
static bool trainer_fits(const struct weft_cli *cli) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= (rlim_t)TRAINER_MB << 20) {
    return true;
  }
  weft_cli_print(
      cli, "raise the limit: 'ulimit -v unlimited'",
      "the trainer needs an address space of at least %d MB, and this process is limited "
      "to %llu MB",
      TRAINER_MB, (unsigned long long)(limit.rlim_cur >> 20));
  return false;
}

int weft_cli_process_become(const struct weft_cli *cli, const char *name) {
  assert(cli != NULL);
  char path[PATH_MAX];
  const bool is_trainer = strcmp(name, "weft-train") == 0;
  if (cli->words != NULL && weft_cli_process_sibling(name, path, sizeof path) != NULL) {
    if (is_trainer && !trainer_fits(cli)) {
      return WEFT_CLI_INTERNAL;
    }
    cli->words[0] = path;
    (void)execv(path, cli->words);
    weft_cli_print(cli, "run it yourself to see more", "%s cannot be started: %s",
                   weft_cli_quoted(path).text, strerror(errno));
    return WEFT_CLI_UNAVAILABLE;
  }
  weft_cli_print(cli,
                 is_trainer ? "install libopenblas-dev, and build again: 'make' does both"
                            : "build and install all of Weft: 'make', 'make install'",
                 "the program %s, which runs this command, is not in the folder of this one", name);
  return WEFT_CLI_UNAVAILABLE;
}
