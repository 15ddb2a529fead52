/* A program of ranks for tests/comm/mpi_jobs.bats, linked with no MPI: the library loads the
 * driver. `job_mpi WHAT [RANK]`:
 *
 *   works       the ranks exchange something, and end well
 *   fails       that rank fails; all say why, and end the job with status 75
 *   is-killed   that rank is killed
 *   exits       that rank ends without a word
 *   differs     that rank sends in pieces of another size: no world comes about
 *   fails-twice all ranks fail at once */
#define _GNU_SOURCE /* setenv, kill */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/comm.h>

enum { EXIT_PEER = 75, HANG_SECONDS = 60 };

static int report(const struct weft_error *error) {
  (void)fprintf(stderr, "job: %s\n", error->message);
  return EXIT_PEER;
}

static enum weft_status exchange(struct weft_transport *transport, uint32_t round,
                                 struct weft_error *error) {
  uint32_t all[64];
  enum weft_status status = WEFT_IN_PROGRESS;
  while (status == WEFT_IN_PROGRESS) {
    status = transport->ops->progress(transport, error);
    if (status == WEFT_OK) {
      status = transport->ops->exchange(transport, &round, all, sizeof round, error);
    }
    if (status == WEFT_IN_PROGRESS) {
      (void)transport->ops->wait(transport, WEFT_TIME_NEVER, error);
    }
  }
  for (uint32_t r = 0; status == WEFT_OK && r < transport->rank_count; r++) {
    if (all[r] != round) {
      abort();
    }
  }
  return status;
}

static void misbehave(struct weft_transport *transport, const char *what) {
  struct weft_failure failure = {.rank = transport->rank,
                                 .error = {.status = WEFT_ERR_STAGE, .hint = ""}};
  if (strcmp(what, "is-killed") == 0) {
    (void)kill(getpid(), SIGKILL);
  } else if (strcmp(what, "exits") == 0) {
    _exit(3);
  } else if (strncmp(what, "fails", 5) == 0) {
    (void)snprintf(failure.error.message, sizeof failure.error.message,
                   "rank %" PRIu32 " has had enough", transport->rank);
    transport->ops->fail(transport, &failure);
  }
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "works";
  const uint32_t culprit = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
  const char *rank_text = getenv("OMPI_COMM_WORLD_RANK");
  struct weft_comm_options options = {.progress = getenv("WEFT_TEST_PROGRESS") != NULL
                                                      ? WEFT_COMM_PROGRESS_THREAD
                                                      : WEFT_COMM_PROGRESS_CALLS};
  struct weft_comm *world = NULL;
  struct weft_error error;
  (void)alarm(HANG_SECONDS);
  rank_text = rank_text != NULL ? rank_text : getenv("PMI_RANK");
  if (strcmp(what, "differs") == 0 && rank_text != NULL &&
      strtoul(rank_text, NULL, 10) == culprit) {
    options.piece_bytes = 4096;
  }
  if (weft_comm_open(NULL, "mpi", &options, &world, &error) != WEFT_OK) {
    return report(&error);
  }
  struct weft_transport *transport = weft_comm_local(world);
  enum weft_status status = WEFT_OK;
  for (uint32_t round = 0; round < 200 && status == WEFT_OK; round++) {
    if (round == 100 && strcmp(what, "works") != 0 &&
        (transport->rank == culprit || strcmp(what, "fails-twice") == 0)) {
      misbehave(transport, what);
    }
    status = exchange(transport, round, &error);
  }
  if (status != WEFT_OK) {
    weft_comm_abandon(world, report(&error));
  }
  if (transport->rank == 0) {
    struct weft_comm_facts facts;
    weft_comm_facts(world, &facts);
    (void)printf("%" PRIu32 " ranks on %s\n", transport->rank_count, facts.implementation);
  }
  weft_comm_close(world);
  return 0;
}
