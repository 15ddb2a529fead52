/* Whether a process may read another one's memory: MPIs move large messages so, in one
 * copy instead of two. Some containers and kernel settings forbid it. Tried between two
 * processes that are nothing to each other but children of one, as ranks are. */
#define _GNU_SOURCE /* process_vm_readv */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/doctor_mpi.h"

enum { SECRET = 0x5a, WRONG = 254, LIMIT_S = 5 };

/* At the same place in all three processes. */
static int read_from(pid_t holder, const volatile char *place) {
  char got = 0;
  union {
    const volatile char *here;
    void *there;
  } address = {.here = place};
  const struct iovec to = {.iov_base = &got, .iov_len = 1};
  const struct iovec from = {.iov_base = address.there, .iov_len = 1};
  if (process_vm_readv(holder, &to, 1, &from, 1, 0) != 1) {
    return errno < WRONG ? errno : WRONG;
  }
  return got == SECRET ? 0 : WRONG;
}

static int try_it(void) {
  volatile char secret = SECRET;
  int how = 0;
  const pid_t holder = fork();
  if (holder == 0) {
    (void)alarm(LIMIT_S); /* in case nobody ends it */
    for (;;) {
      (void)pause();
    }
  }
  secret = 0; /* only the holder has it now */
  const pid_t reader = holder > 0 ? fork() : -1;
  if (reader == 0) {
    _exit(read_from(holder, &secret));
  }
  const bool ended = reader > 0 && waitpid(reader, &how, 0) == reader && WIFEXITED(how);
  if (holder > 0) {
    (void)kill(holder, SIGKILL);
    (void)waitpid(holder, NULL, 0);
  }
  return ended ? WEXITSTATUS(how) : WRONG;
}

void weft_cli_single_copy_check(char *why, size_t size) {
  const int code = try_it();
  (void)snprintf(why, size, "%s",
                 code == 0       ? ""
                 : code == WRONG ? "it could not be tried"
                                 : strerror(code));
}
