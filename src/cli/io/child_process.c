/* Another command with a time limit. It has a process group of its own, which is ended as a
 * whole: by SIGTERM first, since a launcher has to clean up, then by SIGKILL. */
#include "cli/io/child_process.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/support.h>

enum { NOT_FOUND = 127, GRACE_MS = 2000, NS_PER_MS = 1000 * 1000 };

/* In the new process. */
static _Noreturn void become_command(const struct weft_cli_child *child, int output) {
  const int empty = open("/dev/null", O_RDONLY);
  (void)setpgid(0, 0);
  for (size_t k = 0; child->sets != NULL && child->sets[k] != NULL; k += 2) {
    (void)setenv(child->sets[k], child->sets[k + 1], 1);
  }
  if (empty >= 0 && dup2(empty, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
      dup2(output, STDERR_FILENO) >= 0) {
    union { /* execvp() promises not to change them */
      const char *const *given;
      char *const *taken;
    } words = {.given = child->words};
    (void)execvp(child->words[0], words.taken);
  }
  _exit(NOT_FOUND);
}

/* False when the other end is closed. */
static bool read_some(struct weft_cli_child *child, int fd) {
  char dropped[512];
  const size_t room = sizeof child->output - 1 - child->output_size;
  char *to = room > 0 ? child->output + child->output_size : dropped;
  const ssize_t got = read(fd, to, room > 0 ? room : sizeof dropped);
  if (got > 0 && room > 0) {
    child->output_size += (size_t)got;
  }
  return got > 0 || (got < 0 && errno == EINTR);
}

/* Until all processes that can write have ended; false: the limit has passed. */
static bool read_all(struct weft_cli_child *child, int fd, uint32_t limit_ms) {
  const int64_t begin_ns = weft_clock_ns();
  for (int64_t left_ms = limit_ms; left_ms > 0;
       left_ms = limit_ms - (weft_clock_ns() - begin_ns) / NS_PER_MS) {
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    if (poll(&wanted, 1, (int)left_ms) > 0 && !read_some(child, fd)) {
      return true;
    }
  }
  return false;
}

void weft_cli_child_run(struct weft_cli_child *child) {
  assert(child->words != NULL && child->words[0] != NULL);
  int ends[2], how = 0;
  child->started = child->timed_out = false;
  child->output_size = 0;
  child->output[0] = '\0';
  child->status = NOT_FOUND;
  if (pipe(ends) != 0) {
    return;
  }
  (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
  const pid_t pid = fork();
  if (pid == 0) {
    become_command(child, ends[1]);
  }
  (void)close(ends[1]);
  if (pid > 0) {
    (void)setpgid(pid, pid);
    child->timed_out = !read_all(child, ends[0], child->limit_ms);
    if (child->timed_out) {
      (void)kill(-pid, SIGTERM);
      if (!read_all(child, ends[0], GRACE_MS)) {
        (void)kill(-pid, SIGKILL);
      }
    }
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR) {
    }
    child->output[child->output_size] = '\0';
    child->status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    child->started = child->status != NOT_FOUND;
  }
  (void)close(ends[0]);
}
