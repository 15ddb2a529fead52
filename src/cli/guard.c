/* A guard around a rank: one process waits for another.
 *
 * The rank is in a process group of its own, so that what a launcher or a terminal sends
 * to a whole group comes to the guard alone, which passes it on, once. It is started
 * anew by exec, not only forked: OpenBLAS had threads, which a forked process lacks. */
#define _DEFAULT_SOURCE /* gethostname */
#include "cli/guard.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "cli/io/error_message.h"
#include "cli/launch.h"

/* Holds the guard's process id. */
#define MARK "WEFT_GUARD"
enum {
  LINGER_MS = 1000,
  LINGER_OPEN_MPI_MS = 300,
  ORPHAN_GRACE_S = 5,
  LAST_WORDS_NS = 200 * 1000 * 1000
};

static const int passed_on[] = {SIGTERM, SIGINT,  SIGHUP,  SIGQUIT,
                                SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
enum { PASSED_ON = sizeof passed_on / sizeof passed_on[0] };

/* ---- The rank ---- */

static bool is_guarded(void) {
  const char *mark = getenv(MARK);
  return mark != NULL && strtoimax(mark, NULL, 10) == (intmax_t)getppid();
}

static bool put_mark(void) {
  char text[24];
  (void)snprintf(text, sizeof text, "%jd", (intmax_t)getpid());
  return setenv(MARK, text, 1) == 0;
}

/* In the new process. Where it cannot be begun anew, it goes on as it is. */
static void become_rank(const struct weft_cli *cli, pid_t guard, const sigset_t *mask) {
#ifdef __linux__
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (getppid() != guard) {
    _exit(WEFT_CLI_PEER); /* it was gone before it could be asked for */
  }
  (void)setpgid(0, 0);
  (void)sigprocmask(SIG_SETMASK, mask, NULL);
  weft_cli_process_again(cli);
}

/* ---- The guard ---- */

static void fill_set(sigset_t *set) {
  (void)sigemptyset(set);
  (void)sigaddset(set, SIGCHLD);
  for (unsigned k = 0; k < PASSED_ON; k++) {
    (void)sigaddset(set, passed_on[k]);
  }
}

/* Without its launcher a job is nobody's: the rank is asked to end, and then made to.
 * PR_SET_PDEATHSIG would not do, since a launcher may start processes from a thread that
 * ends before they do. */
static void end_orphan(pid_t rank, unsigned seconds) {
  if (seconds == 0) {
    (void)kill(rank, SIGTERM);
  } else if (seconds == ORPHAN_GRACE_S) {
    (void)kill(rank, SIGKILL);
  }
}

/* Until the rank has ended; what waitpid() says of it. `asked`: the signals that were
 * passed on. More than the last one: of SIGTERM and SIGCONT, which Open MPI's launcher sends
 * together, either may come last. */
static int wait_for(pid_t rank, const sigset_t *set, sigset_t *asked) {
  const struct timespec second = {.tv_sec = 1};
  const pid_t launcher = getppid();
  unsigned alone_s = 0;
  int how = 0;
  (void)sigemptyset(asked);
  while (waitpid(rank, &how, WNOHANG) != rank) {
    const int number = sigtimedwait(set, NULL, &second);
    if (number > 0 && number != SIGCHLD && kill(rank, number) == 0) {
      (void)sigaddset(asked, number);
    } else if (number < 0 && getppid() != launcher) {
      end_orphan(rank, alone_s++);
    }
  }
  return how;
}

static const char *signal_name(int number) {
  static const struct {
    int number;
    const char *name;
  } names[] = {{SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"},
               {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGILL, "SIGILL"},
               {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},   {SIGHUP, "SIGHUP"},
               {SIGQUIT, "SIGQUIT"}, {SIGXCPU, "SIGXCPU"}, {SIGSYS, "SIGSYS"}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (names[i].number == number) {
      return names[i].name;
    }
  }
  return "no common one";
}

static const char *advice(int number) {
  switch (number) {
    case SIGKILL: return "was memory short? then 'dmesg' names the process that the system ended";
    case SIGSEGV:
    case SIGBUS:
    case SIGABRT:
    case SIGILL:
    case SIGFPE: return "that is a bug in Weft or in a library; a core file shows where";
    default: return NULL;
  }
}

/* Open MPI's launcher ends the job when a process ends with another status than 0. MPICH's
 * goes on, and ranks on other hosts, or in MPI_Init, would wait for ever; it must be told, in
 * its own words (PMI 1). When the rank has left MPI already, nobody is listening. The word
 * comes another way than what the rank has said, and must not come first: nothing is read
 * any more after it. */
static void end_job(int status) {
  const char *text = getenv("PMI_FD");
  char *end = NULL, line[48];
  const struct timespec moment = {.tv_nsec = LAST_WORDS_NS};
  const intmax_t file = text != NULL ? strtoimax(text, &end, 10) : -1;
  if (text == NULL || end == text || *end != '\0' || file < 0 || file > INT_MAX) {
    return;
  }
  (void)nanosleep(&moment, NULL);
  const int size = snprintf(line, sizeof line, "cmd=abort exitcode=%d\n", status);
  (void)!write((int)file, line, (size_t)size);
}

/* The others see the death for themselves; the launcher must not until they have. MPICH's
 * then ends all at once. Open MPI's gives them a second, and takes four in all when there are
 * several hosts: a second before SIGTERM and one after it, on the first host, and again on
 * the others. */
static void linger(void) {
  const bool is_open = strcmp(weft_cli_launch().launcher, "openmpi") == 0;
  const long ms = is_open ? LINGER_OPEN_MPI_MS : LINGER_MS;
  const struct timespec moment = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  (void)nanosleep(&moment, NULL);
}

static int report_death(const struct weft_cli *cli, pid_t rank, int number) {
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  weft_cli_say(cli, advice(number), "rank %" PRIu32 " (pid %jd on %s) was killed by signal %d (%s)",
               weft_cli_launch().rank, (intmax_t)rank, host, number, signal_name(number));
  linger();
  end_job(WEFT_CLI_PEER);
  return WEFT_CLI_PEER;
}

static int guard(const struct weft_cli *cli, pid_t rank, const sigset_t *set) {
  sigset_t asked;
  (void)setpgid(rank, rank); /* whoever comes first */
  const int how = wait_for(rank, set, &asked);
  if (WIFEXITED(how)) {
    if (WEXITSTATUS(how) != WEFT_CLI_OK && WEXITSTATUS(how) < 128) { /* no signal to all */
      end_job(WEXITSTATUS(how));
    }
    return WEXITSTATUS(how);
  }
  const int number = WTERMSIG(how);
  return sigismember(&asked, number) == 1 ? 128 + number : report_death(cli, rank, number);
}

int weft_cli_guard(const struct weft_cli *cli) {
  struct sigaction usual;
  sigset_t set, before;
  if (cli->words == NULL || weft_cli_launch().launcher == NULL || is_guarded() || !put_mark()) {
    return WEFT_CLI_GO_ON;
  }
  memset(&usual, 0, sizeof usual);
  usual.sa_handler = SIG_DFL;
  (void)sigaction(SIGCHLD, &usual, NULL); /* ignored, there would be nothing to wait for */
  fill_set(&set);
  (void)sigprocmask(SIG_BLOCK, &set, &before);
  const pid_t self = getpid();
  const pid_t rank = fork();
  if (rank == 0) {
    become_rank(cli, self, &before);
  }
  if (rank <= 0) { /* without a guard is better than not at all */
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return WEFT_CLI_GO_ON;
  }
  return guard(cli, rank, &set);
}
