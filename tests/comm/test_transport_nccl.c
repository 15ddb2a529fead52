/* The nccl transport under mpirun, on the fake NCCL of tests/device/fake_cuda or on a real one:
 * the conformance suite with payloads on a GPU, and in memory of the host. Like
 * test_transport_mpi.c, the program starts MPI itself, and one job tests worlds of several sizes.
 *
 *     mpirun -n 4 test_transport_nccl [FILTER]     cmocka's, for tests of the suite */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <mpi.h>

#include <weft/cuda.h>
#include <weft/support.h>

#include "support_conformance.h"
#include "support_on_device.h"

enum { HANG_SECONDS = 300, SIZES_MAX = 8 };

static MPI_Comm communicators[SIZES_MAX + 1]; /* by number of ranks */
static struct weft_cuda *cuda;

struct part {
  MPI_Comm communicator;
  struct weft_comm *world;
  struct weft_transport *wrapped; /* NULL: payloads are on the host */
};

static void wait_for(MPI_Request *request) {
  int flag = 0;
  for (MPI_Test(request, &flag, MPI_STATUS_IGNORE); !flag;
       MPI_Test(request, &flag, MPI_STATUS_IGNORE)) {
    (void)usleep(20);
  }
}

/* `context` is the device, or NULL. */
static void *create(void *context, uint32_t rank_count, struct weft_transport **endpoints) {
  struct part *part = calloc(1, sizeof *part);
  struct weft_error error;
  assert_non_null(part);
  part->communicator = communicators[rank_count];
  if (part->communicator == MPI_COMM_NULL) {
    return part;
  }
  const struct weft_comm_options options = {.communicator = &part->communicator};
  if (weft_comm_open(NULL, "nccl", &options, &part->world, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  struct weft_transport *endpoint = weft_comm_local(part->world);
  endpoints[endpoint->rank] = endpoint;
  if (context != NULL) {
    part->wrapped = on_device_create(endpoint, context);
    assert_non_null(part->wrapped);
    endpoints[endpoint->rank] = part->wrapped;
  }
  return part;
}

static void destroy(void *context, void *world, uint32_t rank_count,
                    struct weft_transport **endpoints) {
  struct part *part = world;
  (void)context;
  (void)rank_count;
  (void)endpoints;
  weft_comm_close(part->world);
  if (part->wrapped != NULL) {
    part->wrapped->ops->destroy(part->wrapped);
  }
  free(part);
}

static void drive(void *world, struct conformance_rank *ranks, uint32_t rank_count) {
  const struct part *part = world;
  (void)rank_count;
  while (conformance_step(&ranks[weft_comm_local(part->world)->rank])) {
  }
}

static bool same_everywhere(void *world, const void *data, size_t size) {
  const struct part *part = world;
  unsigned char first[1024] = {0};
  MPI_Request request;
  int same;
  int all = 0;
  assert_in_range(size, 0, sizeof first - 1);
  memcpy(first, data, size);
  /* NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker): it does not see that wait_for() does */
  MPI_Ibcast(first, sizeof first, MPI_BYTE, 0, part->communicator, &request);
  wait_for(&request);
  same = memcmp(first, data, size) == 0 && first[size] == 0;
  MPI_Iallreduce(&same, &all, 1, MPI_INT, MPI_MIN, part->communicator, &request);
  wait_for(&request);
  return all != 0;
  /* NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker) */
}

int main(int argc, char **argv) {
  struct weft_error error;
  int level;
  int size;
  int rank;
  int failed = 0;
  (void)alarm(HANG_SECONDS); /* a test that failed in one process may leave others waiting */
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int count = 1; count <= size && count <= SIZES_MAX; count++) {
    MPI_Comm_split(MPI_COMM_WORLD, rank < count ? 0 : MPI_UNDEFINED, 0, &communicators[count]);
  }
  if (weft_cuda_open(NULL, NULL, 1, &cuda, &error) < 0) {
    fprintf(stderr, "%s\n", error.message);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  struct conformance_transport nccl = {.name = "nccl",
                                       .context = weft_cuda_device(cuda, 0),
                                       .create = create,
                                       .destroy = destroy,
                                       .drive = drive,
                                       .real_time = true,
                                       .ranks_max = (uint32_t)size,
                                       .same_everywhere = same_everywhere};
  if (argc > 1) {
    cmocka_set_test_filter(argv[1]);
  }
  if (argc > 2) {
    cmocka_set_skip_filter(argv[2]);
  }
  failed += conformance_run(&nccl);
  nccl.context = NULL;
  failed += argc > 1 ? 0 : conformance_run(&nccl);
  if (failed > 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  weft_cuda_close(cuda);
  MPI_Finalize();
  return 0;
}
