/* Another command with a time limit. It gets a process group of its own, which is ended
 * as a whole: gently, since a launcher has to clear up after itself, then not. */
#include "cli/io/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <weft/support.h>

enum { NOT_FOUND = 127, GRACE_MS = 2000, NS_PER_MS = 1000 * 1000 };

/* In the new process. */
static void become(const struct weft_cli_child *child, int output) {
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

/* True until the other end is closed. */
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

static int left_ms(uint64_t begin_ns, uint32_t limit_ms) {
  const uint64_t passed = ((uint64_t)weft_clock_ns() - begin_ns) / NS_PER_MS;
  return passed < limit_ms ? (int)(limit_ms - passed) : 0;
}

/* To the end of what it writes, which is its own end and that of all it started. */
static bool listen_to(struct weft_cli_child *child, uint64_t begin_ns, uint32_t limit_ms) {
  for (int left; (left = left_ms(begin_ns, limit_ms)) > 0;) {
    struct pollfd wanted = {.fd = child->fd, .events = POLLIN};
    if (poll(&wanted, 1, left) > 0 && !read_some(child, child->fd)) {
      return true;
    }
  }
  return false;
}

void weft_cli_child_start(struct weft_cli_child *child) {
  int ends[2];
  child->started = false;
  child->output_size = 0;
  child->output[0] = '\0';
  child->pid = child->fd = -1;
  child->begin_ns = (uint64_t)weft_clock_ns();
  if (pipe(ends) != 0) {
    return;
  }
  (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
  child->fd = ends[0];
  child->pid = fork();
  if (child->pid == 0) {
    become(child, ends[1]);
  }
  (void)close(ends[1]);
  if (child->pid > 0) {
    (void)setpgid(child->pid, child->pid);
  }
}

static void follow(struct weft_cli_child *child) {
  int how = 0;
  child->timed_out = !listen_to(child, child->begin_ns, child->limit_ms);
  if (child->timed_out) {
    (void)kill(-child->pid, SIGTERM);
    if (!listen_to(child, (uint64_t)weft_clock_ns(), GRACE_MS)) {
      (void)kill(-child->pid, SIGKILL);
    }
  }
  while (waitpid(child->pid, &how, 0) < 0 && errno == EINTR) {
  }
  child->output[child->output_size] = '\0';
  child->status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  child->started = child->status != NOT_FOUND;
}

void weft_cli_child_finish(struct weft_cli_child *child) {
  if (child->pid > 0) {
    follow(child);
  }
  if (child->fd >= 0) {
    (void)close(child->fd);
  }
  child->pid = child->fd = -1;
}

void weft_cli_child_run(struct weft_cli_child *child) {
  weft_cli_child_start(child);
  weft_cli_child_finish(child);
}
