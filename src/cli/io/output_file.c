/* Data out. A file is written under a temporary name in the same folder, synced and renamed, so
 * that a reader sees the old file or the new one, never a part.
 *
 * Signals that end the command are blocked while the temporary file exists, and looked for
 * between pieces; so no temporary file is left behind, without a handler and the global state
 * that it would need. */
#define _XOPEN_SOURCE 700 /* realpath() */
#include "cli/io/output_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/run.h>
#include <weft/support.h>

#include "cli/scoped.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define NAME_TRIES 100

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

static bool ending_signal_waits(void) {
  sigset_t pending;
  bool waits = false;
  const bool known = sigpending(&pending) == 0;
  for (size_t i = 0; known && i < WEFT_ARRAY_LENGTH(ending_signals); i++) {
    waits = waits || sigismember(&pending, ending_signals[i]) == 1;
  }
  return waits;
}

static const char *hint_for(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "make room on the disk, or write elsewhere with -o FILE";
    case ENOENT:
    case ENOTDIR: return "make the folder first";
    case EISDIR: return "give the name of a file in it";
    default: return "-o FILE writes elsewhere";
  }
}

static int fail_write(const struct weft_cli *cli, const char *what, const char *name, int code) {
  const struct weft_cli_words quoted = weft_cli_quoted(name);
  weft_cli_print(cli, hint_for(code), "cannot %s '%s': %s", what, quoted.text, strerror(code));
  return WEFT_CLI_IO;
}

/* ---- Standard output, and what is not a regular file ---- */

int weft_cli_write_descriptor(const struct weft_cli *cli, int fd, const char *name,
                              const struct weft_text *text) {
  assert(cli != NULL && text != NULL);
  if (text->failed) {
    return weft_cli_fail_memory(cli);
  }
  int code = weft_cli_write_all(fd, text->data, text->size);
  if (code == 0) {
    /* Some file systems report a failed write only when it is closed. */
    const int copy = dup(fd);
    code = copy >= 0 && close(copy) != 0 && errno != EINTR ? errno : 0;
  }
  if (code == EPIPE) {
    return WEFT_CLI_IO; /* the reader has gone, as in `weft ... | head`: nothing to explain */
  }
  return code == 0 ? WEFT_CLI_OK : fail_write(cli, "write to", name, code);
}

/* /dev/null, /dev/full, a named pipe: never to be replaced by a file. */
static int write_special(const struct weft_cli *cli, const char *path,
                         const struct weft_text *text) {
  int fd;
  do {
    fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    return fail_write(cli, "open", path, errno);
  }
  const int status = weft_cli_write_descriptor(cli, fd, path, text);
  (void)close(fd);
  return status;
}

/* ---- Regular files ---- */

/* Creates a file of its own name beside `path`; the mode is what the umask
 * leaves of 0666. Returns its descriptor, or -1 with errno. */
static int create_beside(const char *path, struct weft_text *name) {
  const char *slash = strrchr(path, '/');
  const size_t folder_size = slash != NULL ? (size_t)(slash - path) + 1 : 0;
  for (int attempt = 0; attempt < NAME_TRIES; attempt++) {
    name->size = 0;
    weft_text_append(name, path, folder_size);
    weft_text_addf(name, ".weft-%jd-%d.tmp", (intmax_t)getpid(), attempt);
    if (name->failed) {
      errno = ENOMEM;
      return -1;
    }
    const int fd = open(name->data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || (errno != EEXIST && errno != EINTR)) {
      return fd;
    }
  }
  errno = EEXIST;
  return -1;
}

/* Piece by piece; EINTR when a signal waits. */
static int write_pieces(int fd, const struct weft_text *text) {
  int code = 0;
  for (size_t at = 0; at < text->size && code == 0; at += PIECE_BYTES) {
    const size_t left = text->size - at;
    code = ending_signal_waits()
               ? EINTR
               : weft_cli_write_all(fd, text->data + at, left < PIECE_BYTES ? left : PIECE_BYTES);
  }
  return code;
}

/* Fills and closes the temporary file; 0 or an errno. With `syncs`, it also survives the machine,
 * which may take a second or more on a busy disk. */
static int fill_file(int fd, const struct stat *old, const struct weft_text *text, bool syncs) {
  int code = 0;
  if (old != NULL && fchmod(fd, old->st_mode & 07777) != 0) {
    code = errno;
  }
  if (code == 0) {
    code = write_pieces(fd, text);
  }
  if (code == 0 && syncs && fsync(fd) != 0) {
    code = errno;
  }
  if (close(fd) != 0 && code == 0 && errno != EINTR) {
    code = errno;
  }
  return code;
}

/* `given` is what messages call it; `path` the same with links followed. */
static int replace_file(const struct weft_cli *cli, const char *given, const char *path,
                        const struct stat *old, const struct weft_text *text, bool syncs) {
  WEFT_SCOPED_TEXT name = {.allocator = cli->allocator};
  const int fd = create_beside(path, &name);
  if (fd < 0) {
    return name.failed ? weft_cli_fail_memory(cli) : fail_write(cli, "create", given, errno);
  }
  int code = fill_file(fd, old, text, syncs);
  if (code == 0 && rename(name.data, path) != 0) {
    code = errno;
  }
  if (code == 0) {
    return WEFT_CLI_OK;
  }
  (void)unlink(name.data);
  return code == EINTR ? WEFT_CLI_IO : fail_write(cli, "write", given, code);
}

/* Replaces `path` with those signals blocked. One that came in the meantime ends the process when
 * they are unblocked. */
static int write_regular(const struct weft_cli *cli, const char *given, const char *path,
                         const struct stat *old, const struct weft_text *text, bool syncs) {
  sigset_t ending, before;
  (void)sigemptyset(&ending);
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(ending_signals); i++) {
    (void)sigaddset(&ending, ending_signals[i]);
  }
  (void)sigprocmask(SIG_BLOCK, &ending, &before);
  const int status = replace_file(cli, given, path, old, text, syncs);
  (void)sigprocmask(SIG_SETMASK, &before, NULL);
  return status;
}

static int write_file(const struct weft_cli *cli, const char *path, const struct weft_text *text,
                      bool syncs) {
  assert(cli != NULL && text != NULL);
  if (text->failed) {
    return weft_cli_fail_memory(cli);
  }
  struct stat status;
  if (stat(path, &status) != 0) {
    return write_regular(cli, path, path, NULL, text, syncs);
  }
  if (S_ISDIR(status.st_mode)) {
    return fail_write(cli, "write", path, EISDIR);
  }
  if (!S_ISREG(status.st_mode)) {
    return write_special(cli, path, text);
  }
  if (access(path, W_OK) != 0) {
    return fail_write(cli, "write", path, errno);
  }
  /* The file that a link points to is what gets replaced, not the link. */
  char resolved[PATH_MAX];
  return write_regular(cli, path, realpath(path, resolved) != NULL ? resolved : path, &status, text,
                       syncs);
}

int weft_cli_write_file(const struct weft_cli *cli, const char *path,
                        const struct weft_text *text) {
  return write_file(cli, path, text, true);
}

/* ---- The state of ranks that hang ---- */

void weft_cli_write_hang(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct weft_transport *transport) {
  assert(cli != NULL && arguments != NULL);
  const char *given = arguments->texts[WEFT_CLI_OPTION_DUMP];
  const char *path = given != NULL ? given : "weft-hang.json";
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  struct weft_error error;
  char hint[320];
  if (weft_hang_dump(transport, &text, &error) < 0) {
    (void)weft_cli_fail(cli, NULL, &error);
  } else if (write_file(cli, path, &text, false) ==
             WEFT_CLI_OK) { /* the job may be ended any time */
    (void)snprintf(hint, sizeof hint, "'weft explain-hang %s' explains it",
                   weft_cli_shell_word(path).text);
    weft_cli_print(cli, hint, "what all ranks were doing is in '%s'", weft_cli_quoted(path).text);
  }
}
