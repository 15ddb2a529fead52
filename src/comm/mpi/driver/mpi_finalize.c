/* The end of MPI in this process, after all ranks have agreed to end.
 *
 * This is MPI_Finalize, with one exception: MPICH over UCX and a network hangs in it, one job in
 * three on a loaded machine (4.0.2 with UCX 1.13 over TCP). A rank that has closed its
 * connections waits in the launcher's barrier and makes no progress, while another rank needs it
 * to close its own; openucx/ucx issue 2254 is similar. So with MPICH and ranks on several hosts
 * this file speaks the launcher's protocol (PMI 1) itself: a barrier, in which this rank keeps
 * making progress so that every rank receives its last messages; then the end. Nothing is lost:
 * the process ends after this, and its connections with it. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi/driver/mpi_world.h"

#ifdef MPICH_VERSION

enum { ANSWER_S = 60, LINE_SIZE = 64 };

/* The launcher's connection; -1: another kind of launcher, or none. */
static int launcher_file(void) {
  const char *text = getenv("PMI_FD");
  char *end = NULL;
  const long file = text != NULL ? strtol(text, &end, 10) : -1;
  return text != NULL && end != text && *end == '\0' && file >= 0 ? (int)file : -1;
}

/* Waits for the next byte, and makes progress meanwhile. */
static bool next_byte(int file, int64_t until, char *byte) {
  struct pollfd polled = {.fd = file, .events = POLLIN};
  while (poll(&polled, 1, 0) == 0) {
    int flag;
    (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    if (weft_clock_ns() > until) {
      return false;
    }
    weft_mpi_sleep(50 * WEFT_MPI_NS_PER_US);
  }
  return read(file, byte, 1) == 1;
}

/* Sends a line to the launcher and waits for the answer that is expected. */
static bool ask_launcher(int file, const char *line, const char *expected) {
  const int64_t until = weft_clock_ns() + ANSWER_S * (int64_t)WEFT_MPI_NS_PER_S;
  char answer[LINE_SIZE];
  size_t size = 0;
  if (write(file, line, strlen(line)) != (ssize_t)strlen(line)) {
    return false;
  }
  while (size + 1 < sizeof answer && next_byte(file, until, &answer[size])) {
    if (answer[size++] == '\n') {
      answer[size] = '\0';
      return strncmp(answer, expected, strlen(expected)) == 0;
    }
  }
  return false;
}

static bool finalize_by_launcher(void) {
  const int file = launcher_file();
  return file >= 0 && ask_launcher(file, "cmd=barrier_in\n", "cmd=barrier_out") &&
         ask_launcher(file, "cmd=finalize\n", "cmd=finalize_ack");
}

#endif

void weft_mpi_finalize(bool several_hosts) {
#ifdef MPICH_VERSION
  if (several_hosts && finalize_by_launcher()) {
    return;
  }
#endif
  (void)several_hosts;
  (void)MPI_Finalize();
}
