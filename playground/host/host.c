/* What the command asks of an operating system and of libweft-run, as a browser has it: no
 * launcher, no signals, no transports, and files that live as long as a call. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/launch.h>
#include <weft/run.h>

#include "cli/io/error_message.h"
#include "cli/io/output_file.h"
#include "cli/job.h"

/* ---- Launchers, signals, transports ---- */

struct weft_launch_info weft_launch_info(void) {
  return (struct weft_launch_info){.rank_count = 1};
}

void weft_launch_begin(const char *program) { (void)program; }
void weft_launch_leave(void) {}
void weft_launch_signals_begin(void) {}
void weft_launch_signals_end(void) {}
int weft_launch_signal(void) { return 0; }

const char *weft_launch_signal_name(int number) {
  (void)number;
  return "a signal";
}

/* A search is stopped by ending its worker. */
bool weft_launch_is_interrupted(void *context) {
  (void)context;
  return false;
}

/* The commands that choose a transport are not here. */
const struct weft_comm_info *weft_comm_find(const char *name) {
  (void)name;
  return NULL;
}

const struct weft_comm_info *weft_comm_transport(uint32_t index) {
  (void)index;
  return NULL;
}

enum weft_status weft_comm_library_version(const struct weft_comm_info *info, int *version,
                                           struct weft_error *error) {
  (void)info;
  (void)error;
  *version = 0;
  return WEFT_OK;
}

int weft_cli_job_report_reason(const struct weft_cli *cli, const struct weft_cli_reason *reason) {
  (void)cli;
  return reason->status;
}

int pipe(int ends[2]) {
  (void)ends;
  errno = ENOSYS;
  return -1;
}

/* ---- Files (src/cli/io/output_file.c does more: links, permissions, signals) ---- */

int weft_cli_write_descriptor(const struct weft_cli *cli, int fd, const char *name,
                              const struct weft_text *text) {
  assert(cli != NULL && text != NULL);
  if (text->failed) {
    return weft_cli_fail_memory(cli);
  }
  for (size_t at = 0; at < text->size;) {
    const ssize_t written = write(fd, text->data + at, text->size - at);
    if (written < 0) {
      weft_cli_print(cli, "", "cannot write to '%s': %s", name, strerror(errno));
      return WEFT_CLI_IO;
    }
    at += (size_t)written;
  }
  return WEFT_CLI_OK;
}

int weft_cli_write_file(const struct weft_cli *cli, const char *path,
                        const struct weft_text *text) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (fd < 0) {
    weft_cli_print(cli, "", "cannot create '%s': %s", weft_cli_quoted(path).text, strerror(errno));
    return WEFT_CLI_IO;
  }
  const int status = weft_cli_write_descriptor(cli, fd, path, text);
  (void)close(fd);
  return status;
}
