/* Raises a signal at an exact moment, for tests: preloaded into a rank (LD_PRELOAD), it counts
 * the calls that actions of a program come down to, and raises the signal before one of them.
 * It is compiled once against each MPI and calls its PMPI functions.
 *
 *     SEND      MPI_Isend
 *     RECV      MPI_Irecv
 *     F, B ...  clock_nanosleep: stages that sleep
 *
 * WEFT_TEST_SIGNAL="RANK CALL SIGNAL FILE": before the CALL-th of these calls (from 1) of that
 * rank, the time (CLOCK_REALTIME, seconds) is written to FILE, and SIGNAL is raised (0: none).
 * With CALL 0 nothing happens, and FILE holds the number of calls in the end.
 *
 * WEFT_TEST_SLOW_DISK: fsync takes three seconds. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <dlfcn.h>
#include <mpi.h>

struct plan {
  int is_read, is_mine;
  unsigned rank, call, count;
  int signal;
  char file[512];
};

/* Ranks are single-threaded where they count: a progress thread only tests. */
static struct plan plan;

static const char *own_rank(void) {
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  return rank != NULL ? rank : getenv("PMI_RANK");
}

static void read_plan(void) {
  const char *text = getenv("WEFT_TEST_SIGNAL");
  const char *rank = own_rank();
  plan.is_read = 1;
  plan.is_mine =
      text != NULL && rank != NULL &&
      sscanf(text, "%u %u %d %511s", &plan.rank, &plan.call, &plan.signal, plan.file) == 4 &&
      strtoul(rank, NULL, 10) == plan.rank;
}

static void write_file(const char *text) {
  const int fd = open(plan.file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || write(fd, text, strlen(text)) < 0 || close(fd) != 0) {
    abort();
  }
}

static void count_call(void) {
  if (!plan.is_read) {
    read_plan();
  }
  if (plan.is_mine && ++plan.count == plan.call) {
    struct timespec now;
    char text[64];
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(text, sizeof text, "%lld.%09ld\n", (long long)now.tv_sec, now.tv_nsec);
    write_file(text);
    (void)raise(plan.signal);
  }
}

__attribute__((destructor)) static void tell_count(void) {
  if (plan.is_mine && plan.call == 0) {
    char text[64];
    (void)snprintf(text, sizeof text, "%u\n", plan.count);
    write_file(text);
  }
}

/* ---- What is counted ---- */

__attribute__((visibility("default"))) int MPI_Isend(const void *buf, int count,
                                                     MPI_Datatype datatype, int dest, int tag,
                                                     MPI_Comm comm, MPI_Request *request) {
  count_call();
  return PMPI_Isend(buf, count, datatype, dest, tag, comm, request);
}

__attribute__((visibility("default"))) int MPI_Irecv(void *buf, int count, MPI_Datatype datatype,
                                                     int source, int tag, MPI_Comm comm,
                                                     MPI_Request *request) {
  count_call();
  return PMPI_Irecv(buf, count, datatype, source, tag, comm, request);
}

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): libc's are reserved */
__attribute__((visibility("default"))) int clock_nanosleep(clockid_t clock, int flags,
                                                           const struct timespec *time,
                                                           struct timespec *left) {
  int (*next)(clockid_t, int, const struct timespec *, struct timespec *);
  *(void **)&next = dlsym(RTLD_NEXT, "clock_nanosleep");
  count_call();
  return next(clock, flags, time, left);
}

/* ---- A slow disk ---- */

__attribute__((visibility("default"))) int fsync(int fd) {
  int (*next)(int);
  *(void **)&next = dlsym(RTLD_NEXT, "fsync");
  if (getenv("WEFT_TEST_SLOW_DISK") != NULL) {
    (void)sleep(3);
  }
  return next(fd);
}
