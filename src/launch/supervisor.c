/* The supervisor process around a rank, and the rank's side of it.
 *
 * The rank is in a process group of its own: a signal that a launcher or a terminal sends to
 * the whole group reaches the supervisor only, which forwards it once. Signal handlers write
 * to a pipe, so it does not matter which thread receives a signal; the main loop does the
 * rest. A second pipe carries notices from the rank. */
#define _GNU_SOURCE /* gethostname, pipe2 */
#include "launch/supervisor.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <weft/support.h>

/* In the rank's environment: the supervisor's process id, and the descriptor for notices.
 * It survives exec, so a rank may start its program again. */
#define MARK "WEFT_SUPERVISOR"
enum {
  LINGER_MS = 1000,
  LINGER_HOSTS_MS = 300, /* Open MPI, several hosts */
  REPORT_MS = 200,       /* for reports to pass through the launcher */
  GRACE_S = 5,           /* from SIGTERM to SIGKILL when the launcher is gone */
  START_LIMIT_S = 120,
  REPORT_SIZE = 2048
};
#define START_LIMIT_MAX_S UINT64_C(100000000)
#define NS_PER_MS INT64_C(1000000)

/* From the rank to its supervisor, by one write() of at most PIPE_BUF bytes. */
struct notice {
  uint64_t limit_s; /* MPI starts now, and has this long; 0: it has started */
  int32_t exit_status;
  uint32_t leaves; /* the rank is about to exit, and knows its status */
  char report[PIPE_BUF - 2 * sizeof(uint64_t)]; /* when it takes longer; "": the usual one */
};

/* All but the last are forwarded. */
static const int caught[] = {SIGTERM, SIGINT,  SIGHUP,  SIGQUIT, SIGUSR1,
                             SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD};
enum { FORWARDED = sizeof caught / sizeof caught[0] - 1 };

/* Of this process. */
static const char *program_name = "weft";
static int notice_fd = -1; /* the rank's end; -1: no supervisor */
static int signal_fd = -1; /* the handler's end */

static void sleep_ms(long ms) {
  const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * NS_PER_MS};
  (void)nanosleep(&time, NULL);
}

void weft_launch_report(const char *hint, const char *format, ...) {
  char text[REPORT_SIZE], sentence[REPORT_SIZE / 2];
  va_list arguments;
  assert(format != NULL);
  va_start(arguments, format);
  (void)vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  const bool hints = hint != NULL && hint[0] != '\0';
  const int size = snprintf(text, sizeof text, "%s: %s%s%.500s\n", program_name, sentence,
                            hints ? "\n  hint: " : "", hints ? hint : "");
  (void)!write(STDERR_FILENO, text, (size_t)size < sizeof text ? (size_t)size : sizeof text - 1);
}

/* ---- The rank's side ---- */

/* Finds the supervisor that this process was started by, if any. */
static bool is_supervised(void) {
  intmax_t pid = 0;
  int fd = -1;
  const char *mark = getenv(MARK);
  if (mark == NULL || sscanf(mark, "%jd %d", &pid, &fd) != 2 || pid != (intmax_t)getppid()) {
    return false;
  }
  notice_fd = fd;
  return true;
}

static void send_notice(const struct notice *notice) {
  if (notice_fd >= 0) {
    (void)!write(notice_fd, notice, sizeof *notice);
  }
}

void weft_launch_startup_begin(const char *report, int exit_status) {
  struct notice notice = {.limit_s = START_LIMIT_S, .exit_status = exit_status};
  uint64_t limit;
  if (weft_launch_read_number(getenv("WEFT_START_LIMIT"), &limit)) {
    notice.limit_s = limit < START_LIMIT_MAX_S ? limit : START_LIMIT_MAX_S;
  }
  (void)snprintf(notice.report, sizeof notice.report, "%s", report != NULL ? report : "");
  send_notice(&notice);
}

void weft_launch_startup_end(void) {
  const struct notice notice = {.limit_s = 0};
  send_notice(&notice);
}

void weft_launch_leave(void) {
  const struct notice notice = {.leaves = 1};
  send_notice(&notice);
}

/* ---- The supervisor's side ---- */

struct supervisor {
  pid_t rank, launcher;
  int signals, notices; /* pipes to read from */
  sigset_t sent;        /* signals that were forwarded */
  struct notice notice;
  int64_t deadline_ns;      /* of the rank's start; 0: none */
  bool in_job;              /* MPI has started, and the rank has not begun to leave */
  int64_t launcher_gone_ns; /* since when the launcher is gone; 0: it is not */
};

static void record_signal(int number) {
  const int saved = errno;
  const unsigned char byte = (unsigned char)number;
  (void)!write(signal_fd, &byte, 1);
  errno = saved;
}

static void forward_signals(struct supervisor *self) {
  unsigned char number;
  while (read(self->signals, &number, 1) == 1) {
    if (number != SIGCHLD && kill(self->rank, number) == 0) {
      (void)sigaddset(&self->sent, number);
    }
  }
}

static void read_notices(struct supervisor *self) {
  while (read(self->notices, &self->notice, sizeof self->notice) == sizeof self->notice) {
    const uint64_t limit_s = self->notice.limit_s;
    self->notice.report[sizeof self->notice.report - 1] = '\0';
    self->deadline_ns = limit_s > 0 ? weft_clock_ns() + (int64_t)limit_s * 1000 * NS_PER_MS : 0;
    self->in_job = limit_s == 0 && self->notice.leaves == 0;
  }
}

/* Without its launcher nobody would end the rank. PR_SET_PDEATHSIG does not help: a launcher
 * may start processes from a thread that ends before they do. */
static void end_without_launcher(struct supervisor *self) {
  const int64_t now = weft_clock_ns();
  if (self->launcher_gone_ns == 0) {
    self->launcher_gone_ns = now;
    (void)kill(self->rank, SIGTERM);
  } else if (now - self->launcher_gone_ns > GRACE_S * 1000 * NS_PER_MS) {
    (void)kill(self->rank, SIGKILL);
  }
}

/* Open MPI's launcher ends the job when a process exits with another status than 0. MPICH's
 * does not, and ranks on other hosts, or in MPI_Init, would wait forever: it gets an abort
 * message of PMI 1. When the rank has left MPI already, nobody reads it. The message takes
 * another way than the reports and must not overtake them: nothing is read after it. */
static void end_job(int status) {
  uint64_t file;
  char line[48];
  if (!weft_launch_read_number(getenv("PMI_FD"), &file) || file > INT_MAX) {
    return;
  }
  sleep_ms(REPORT_MS);
  const int size = snprintf(line, sizeof line, "cmd=abort exitcode=%d\n", status);
  (void)!write((int)file, line, (size_t)size);
}

/* Waits for the end of the rank; returns its wait status. -1: MPI did not start in time. */
static int wait_for_rank(struct supervisor *self) {
  int how = 0;
  while (waitpid(self->rank, &how, WNOHANG) != self->rank) {
    struct pollfd files[2] = {{.fd = self->signals, .events = POLLIN},
                              {.fd = self->notices, .events = POLLIN}};
    int64_t wait_ms = 1000;
    if (self->deadline_ns > 0) {
      const int64_t left_ms = (self->deadline_ns - weft_clock_ns()) / NS_PER_MS + 1;
      wait_ms = left_ms < 0 ? 0 : left_ms < wait_ms ? left_ms : wait_ms;
    }
    (void)poll(files, 2, (int)wait_ms);
    forward_signals(self);
    read_notices(self);
    if (getppid() != self->launcher) {
      end_without_launcher(self);
    }
    if (self->deadline_ns > 0 && weft_clock_ns() >= self->deadline_ns) {
      return -1;
    }
  }
  return how;
}

static int report_startup(const struct supervisor *self) {
  const struct weft_launch_info info = weft_launch_info();
  const char *report = self->notice.report;
  char missing[96];
  if (report[0] != '\0') {
    (void)!write(STDERR_FILENO, report, strlen(report));
    return self->notice.exit_status;
  }
  const bool found = weft_launch_find_missing(self->launcher, missing, sizeof missing);
  weft_launch_report(found ? "see what that process does"
                           : "has one of them ended, is it stopped, or is its host out of reach?",
                     "rank %" PRIu32 ": MPI has not started after %" PRIu64
                     " s: not all of the %" PRIu32 " processes have come%s%s",
                     info.rank, self->notice.limit_s, info.rank_count, found ? "; " : "",
                     found ? missing : "");
  return WEFT_LAUNCH_FAILED;
}

static const char *advice(int number) {
  switch (number) {
    case SIGKILL: return "was memory short? then 'dmesg' names the process that the system ended";
    case SIGSEGV:
    case SIGBUS:
    case SIGABRT:
    case SIGILL:
    case SIGFPE: return "that is a bug in the program or in a library; a core file shows where";
    default: return NULL;
  }
}

/* The other ranks of the host notice the death themselves, and end the job when they have
 * reported it. They need a moment before the launcher notices it too: MPICH's then ends all at
 * once. Open MPI's gives them a second, and takes four in all when there are several hosts. */
static void report_death(const struct supervisor *self, int how) {
  const struct weft_launch_info info = weft_launch_info();
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  if (WIFEXITED(how)) {
    weft_launch_report(
        "look for exit() in the program and its libraries; weft_launch_end() ends a "
        "rank and its job",
        "rank %" PRIu32
        " (pid %jd on %s) exited with status %d, in the middle of "
        "the job",
        info.rank, (intmax_t)self->rank, host, WEXITSTATUS(how));
  } else {
    weft_launch_report(advice(WTERMSIG(how)),
                       "rank %" PRIu32 " (pid %jd on %s) was killed by signal %d (%s)", info.rank,
                       (intmax_t)self->rank, host, WTERMSIG(how),
                       weft_launch_signal_name(WTERMSIG(how)));
  }
  const bool is_slow =
      strcmp(info.launcher, "openmpi") == 0 && info.ranks_on_host < info.rank_count;
  sleep_ms(is_slow ? LINGER_HOSTS_MS : LINGER_MS);
}

/* The signal that was forwarded and has ended the rank, or 0: a rank that gets a second one exits
 * with 128 more. */
static int stopped_by(const struct supervisor *self, int how) {
  const int number = WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how) - 128;
  return number > 0 && number < NSIG && sigismember(&self->sent, number) == 1 ? number : 0;
}

static _Noreturn void supervise(struct supervisor *self) {
  const int how = wait_for_rank(self);
  int status;
  if (how != -1) {
    read_notices(self); /* the last one may have come with the end */
  }
  if (how == -1) {
    status = report_startup(self); /* before the end of a rank that is stopped, which it names */
    (void)kill(self->rank, SIGKILL);
    (void)waitpid(self->rank, NULL, 0);
  } else if (stopped_by(self, how) != 0) {
    status = 128 + stopped_by(self, how);
  } else if (WIFEXITED(how) && !self->in_job) {
    status = WEXITSTATUS(how);
  } else {
    report_death(self, how);
    status = WEFT_LAUNCH_FAILED;
  }
  if (status != 0 && status < 128) { /* a signal from outside reaches all ranks anyway */
    end_job(status);
  }
  _exit(status);
}

/* ---- Beginning ---- */

#define OWN_FILE "/proc/self/exe"

static bool has_threads(void) {
  char line[128];
  long count = 1;
  FILE *file = fopen("/proc/self/status", "re");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    (void)sscanf(line, "Threads: %ld", &count);
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return count > 1;
}

/* What this process was started with, for execv(); NULL: not known. */
static char **read_words(void) {
  FILE *file = fopen("/proc/self/cmdline", "re");
  char **words = NULL;
  for (size_t count = 0; file != NULL; count++) {
    size_t capacity = 0;
    char **more = weft_array_resize(NULL, words, count, count + 1, sizeof *words);
    if (more == NULL) {
      (void)fclose(file);
      return NULL;
    }
    words = more;
    words[count] = NULL;
    if (getdelim(&words[count], &capacity, '\0', file) <= 0) {
      words[count] = NULL;
      (void)fclose(file);
      file = NULL;
    }
  }
  return words;
}

static void restore_handlers(const struct sigaction before[FORWARDED + 1]) {
  for (unsigned k = 0; k <= FORWARDED; k++) {
    (void)sigaction(caught[k], &before[k], NULL);
  }
}

/* In the new process; without allocating, since other threads may have held a lock.
 *
 * Libraries may start threads when they are loaded: UCX does, which MPICH uses. A fork copies
 * their locks but not them, and a lock that one of them holds then is never free in the new
 * process: MPI_Init() waits for it forever. So the rank starts its program again (`words`). */
static void become_rank(pid_t supervisor, const struct sigaction *before, const char *path,
                        char **words) {
#ifdef __linux__
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  if (getppid() != supervisor) {
    _exit(WEFT_LAUNCH_FAILED); /* it died before it could be watched */
  }
  (void)setpgid(0, 0);
  restore_handlers(before);
  if (words != NULL && notice_fd >= 0) {
    (void)execv(path, words); /* by its name, if that file still exists: it is what 'ps' shows */
    (void)execv(OWN_FILE, words);
  }
}

void weft_launch_begin(const char *program) {
  struct supervisor self = {.rank = -1};
  struct sigaction action, before[FORWARDED + 1];
  char mark[48], path[PATH_MAX] = "";
  int signals[2], notices[2];
  assert(program != NULL);
  program_name = program;
  if (weft_launch_info().launcher == NULL || is_supervised()) {
    return;
  }
  if (pipe2(signals, O_CLOEXEC | O_NONBLOCK) != 0) {
    return; /* without a supervisor is better than not at all */
  }
  if (pipe(notices) != 0) {
    goto close_signals;
  }
  signal_fd = signals[1];
  memset(&action, 0, sizeof action);
  action.sa_handler = record_signal;
  action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  for (unsigned k = 0; k <= FORWARDED; k++) {
    (void)sigaction(caught[k], &action, &before[k]);
  }
  const pid_t supervisor = getpid();
  char **words = has_threads() ? read_words() : NULL;
  (void)!readlink(OWN_FILE, path, sizeof path - 1);
  (void)snprintf(mark, sizeof mark, "%jd %d", (intmax_t)supervisor, notices[1]);
  notice_fd = setenv(MARK, mark, 1) == 0 ? notices[1] : -1;
  self.rank = fork();
  if (self.rank > 0) {
    (void)close(notices[1]);
    (void)fcntl(notices[0], F_SETFL, O_NONBLOCK);
    (void)setpgid(self.rank, self.rank); /* both sides, so that it is done when either goes on */
    self.launcher = getppid();
    self.signals = signals[0];
    self.notices = notices[0];
    (void)sigemptyset(&self.sent);
    supervise(&self);
  }
  (void)close(notices[0]);
  if (self.rank == 0) {
    become_rank(supervisor, before, path, words);
  } else {
    notice_fd = -1;
    restore_handlers(before);
    (void)close(notices[1]);
  }
close_signals:
  (void)close(signals[0]);
  (void)close(signals[1]);
}
