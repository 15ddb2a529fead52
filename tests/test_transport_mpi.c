/* The mpi transport under mpirun: every process is one rank and runs the same tests. The
 * program starts MPI itself and makes a world on a part of its communicator for each of
 * them, so that one job tests worlds of several sizes. tests/CMakeLists.txt has the
 * runs. */
#define _GNU_SOURCE /* kill, setenv */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <mpi.h>

#include "base/fail.h"
#include "mpi/mpi_world.h"
#include "support_conformance.h"

enum { HANG_SECONDS = 240 };

struct part {
  MPI_Comm communicator;
  struct weft_mpi *world;
};

static int rank_of_job(void) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

static enum weft_mpi_progress progress_of_job(void) {
  const char *text = getenv("WEFT_TEST_PROGRESS");
  return text != NULL && strcmp(text, "thread") == 0 ? WEFT_MPI_THREAD : WEFT_MPI_CALLS;
}

/* All processes of the job call it; those that are too many get no world. */
static struct part make_part(uint32_t rank_count) {
  struct part part = {.communicator = MPI_COMM_NULL};
  struct weft_error error;
  const int rank = rank_of_job();
  const bool in = (uint32_t)rank < rank_count;
  MPI_Comm_split(MPI_COMM_WORLD, in ? 0 : MPI_UNDEFINED, rank, &part.communicator);
  if (in) {
    const struct weft_mpi_options options = {.progress = progress_of_job(),
                                             .communicator = &part.communicator};
    if (weft_mpi_create(NULL, &options, &part.world, &error) != WEFT_OK) {
      fail_msg("%s", error.message);
    }
  }
  return part;
}

static void end_part(struct part *part) {
  if (part->world != NULL) {
    weft_mpi_destroy(part->world);
    MPI_Comm_free(&part->communicator);
  }
}

/* ---- conformance ---- */

static void *create(void *context, uint32_t rank_count, struct weft_transport **endpoints) {
  struct part *part = malloc(sizeof *part);
  (void)context;
  assert_non_null(part);
  *part = make_part(rank_count);
  if (part->world != NULL) {
    struct weft_transport *endpoint = weft_mpi_endpoint(part->world);
    endpoints[endpoint->rank] = endpoint;
  }
  return part;
}

static void destroy(void *context, void *world, uint32_t rank_count,
                    struct weft_transport **endpoints) {
  (void)context;
  (void)rank_count;
  (void)endpoints;
  end_part(world);
  free(world);
}

static void drive(void *world, struct conformance_rank *ranks, uint32_t rank_count) {
  const struct part *part = world;
  struct conformance_rank *rank = &ranks[weft_mpi_endpoint(part->world)->rank];
  (void)rank_count;
  while (conformance_step(rank)) {
  }
}

static bool same_everywhere(void *world, const void *data, size_t size) {
  const struct part *part = world;
  unsigned char first[1024] = {0};
  int same;
  assert_in_range(size, 0, sizeof first);
  memcpy(first, data, size);
  MPI_Bcast(first, sizeof first, MPI_BYTE, 0, part->communicator);
  same = memcmp(first, data, size) == 0 && (size == sizeof first || first[size] == 0);
  MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, part->communicator);
  return same != 0;
}

int main(int argc, char **argv) {
  int level;
  int size;
  int failed = 0;
  (void)argc;
  (void)argv;
  (void)alarm(HANG_SECONDS); /* a test that failed in one process may leave others waiting */
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const struct conformance_transport mpi = {.name = "mpi",
                                            .create = create,
                                            .destroy = destroy,
                                            .drive = drive,
                                            .real_time = true,
                                            .ranks_max = (uint32_t)size,
                                            .same_everywhere = same_everywhere};
  if (size > 1) {
    failed += conformance_run(&mpi);
  }
  if (failed > 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
