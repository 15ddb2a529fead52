/* The nccl transport under mpirun, on the fake NCCL of tests/device/fake_cuda or on a real one:
 * the conformance suite with payloads on a GPU, and in memory of the host; and groups. Like
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
#include "support_groups.h"
#include "support_on_device.h"

enum { HANG_SECONDS = 300, SIZES_MAX = 8, AHEAD = 600, PIECE_BYTES = 1000 };

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

/* NULL: this process has no part in it. */
static struct weft_comm *open_world(MPI_Comm *communicator, enum weft_comm_sums sums) {
  struct weft_comm *world = NULL;
  struct weft_error error;
  const struct weft_comm_options options = {
      .communicator = communicator, .sums = sums, .piece_bytes = PIECE_BYTES};
  if (*communicator != MPI_COMM_NULL &&
      weft_comm_open(NULL, "nccl", &options, &world, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return world;
}

/* `context` is the device, or NULL. */
static void *create(void *context, uint32_t rank_count, struct weft_transport **endpoints) {
  struct part *part = calloc(1, sizeof *part);
  assert_non_null(part);
  part->communicator = communicators[rank_count];
  part->world = open_world(&part->communicator, WEFT_COMM_SUMS_IN_ORDER);
  if (part->world == NULL) {
    return part;
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

/* ---- Groups on the GPU ---- */

static uint32_t job_size(void) {
  int size;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return (uint32_t)size < SIZES_MAX ? (uint32_t)size : SIZES_MAX;
}

/* A case of support_groups.h, in a world of its own. */
static void play(uint32_t count, uint32_t number) {
  struct weft_comm *world = open_world(&communicators[count], WEFT_COMM_SUMS_IN_ORDER);
  if (world == NULL) {
    return;
  }
  struct conformance_rank rank = {.transport = weft_comm_local(world)};
  const bool fails = number == groups_case_count();
  if (fails) {
    groups_failure_begin(&rank);
  } else {
    groups_case_begin(number, &rank);
  }
  while (conformance_step(&rank)) {
  }
  if (fails ? !groups_failure_is_right(&rank) : rank.status != WEFT_OK) {
    fail_msg("%u ranks, %s: %s", count, fails ? "a member fails" : groups_case_name(number),
             rank.error.message);
  }
  weft_comm_close(world);
}

static void groups(void **state) {
  (void)state;
  groups_use_gpu(weft_cuda_device(cuda, 0));
  for (uint32_t count = 1; count <= job_size(); count++) {
    for (uint32_t k = 0; k < groups_case_count(); k++) {
      play(count, k);
    }
  }
  groups_use_gpu(NULL);
}

static void a_member_fails(void **state) {
  (void)state;
  groups_use_gpu(weft_cuda_device(cuda, 0));
  for (uint32_t count = 2; count <= job_size(); count++) {
    play(count, groups_case_count());
  }
  groups_use_gpu(NULL);
}

/* A group of all ranks on the GPU, and some memory. */
struct all {
  struct weft_comm *world;
  struct weft_transport *transport;
  struct weft_device *device;
  struct weft_group *group;
  float *data; /* [2][256] */
};

static bool begin_all(struct all *all, enum weft_comm_sums sums) {
  uint32_t ranks[SIZES_MAX];
  struct weft_error error;
  all->world = open_world(&communicators[job_size()], sums);
  if (all->world == NULL) {
    return false;
  }
  all->transport = weft_comm_local(all->world);
  all->device = weft_cuda_device(cuda, 0);
  for (uint32_t r = 0; r < job_size(); r++) {
    ranks[r] = r;
  }
  assert_int_equal(all->transport->ops->group(all->transport, 3, ranks, job_size(), all->device,
                                              &all->group, &error),
                   WEFT_OK);
  if (all->transport->ops->open(all->transport, NULL, 0, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  assert_int_equal(all->device->ops->make_current(all->device, &error), WEFT_OK);
  all->data = all->device->ops->allocate_host(all->device, 2 * 256 * sizeof(float));
  assert_non_null(all->data);
  return true;
}

static void end_all(struct all *all) {
  all->group->ops->destroy(all->group);
  weft_comm_close(all->world);
  all->device->ops->free_host(all->device, all->data);
}

/* More than NCCL would take at once, in a stream of the caller's: sums of sums, which are exact. */
static void far_ahead(void **state) {
  struct all all;
  struct weft_device *device;
  struct weft_stream *stream = NULL;
  struct weft_error error;
  (void)state;
  if (!begin_all(&all, WEFT_COMM_SUMS_IN_ORDER)) {
    return;
  }
  device = all.device;
  assert_int_equal(device->ops->stream_create(device, &stream, &error), WEFT_OK);
  for (uint32_t k = 0; k < AHEAD; k++) {
    /* 0: gathers what all have; 1: sums. */
    struct weft_collective one = {.kind = k % 2 == 0 ? WEFT_ALL_GATHER : WEFT_ALL_REDUCE,
                                  .from = all.data + (k % 2 == 0 ? all.transport->rank : 0),
                                  .to = all.data + (k % 2 == 0 ? 0 : 256),
                                  .device = device,
                                  .bytes = (k % 2 == 0 ? 1 : job_size()) * sizeof(float),
                                  .stream = stream};
    if (k == 0) {
      all.data[all.transport->rank] = (float)(all.transport->rank + 1);
    }
    if (all.group->ops->start(all.group, &one, &error) != WEFT_OK) {
      fail_msg("%s", error.message);
    }
    assert_int_equal(all.group->ops->test(all.group, &one, &error), WEFT_OK);
  }
  struct weft_device_event *event = NULL;
  assert_int_equal(device->ops->event_create(device, false, &event, &error), WEFT_OK);
  assert_int_equal(device->ops->event_record(device, event, stream, &error), WEFT_OK);
  while (device->ops->event_query(device, event, &error) == WEFT_IN_PROGRESS) {
    assert_int_equal(all.transport->ops->progress(all.transport, &error), WEFT_OK);
  }
  for (uint32_t r = 0; r < job_size(); r++) {
    assert_true(all.data[256 + r] == (float)((r + 1) * job_size()));
  }
  device->ops->event_destroy(device, event);
  device->ops->stream_destroy(device, stream);
  end_all(&all);
}

/* Whole numbers: the same in every order. */
static void in_the_order_of_nccl(void **state) {
  static const enum weft_collective_kind kinds[] = {WEFT_ALL_GATHER, WEFT_REDUCE_SCATTER,
                                                    WEFT_ALL_REDUCE};
  struct all all;
  struct weft_error error;
  (void)state;
  if (!begin_all(&all, WEFT_COMM_SUMS_OF_NCCL)) {
    return;
  }
  const uint32_t p = job_size(), rank = all.transport->rank;
  for (uint32_t k = 0; k < 3; k++) {
    struct weft_collective one = {.kind = kinds[k],
                                  .from = all.data,
                                  .to = all.data + 256,
                                  .device = all.device,
                                  .bytes = (k == 2 ? p : 1) * sizeof(float)};
    enum weft_status status;
    for (uint32_t r = 0; r < p; r++) {
      all.data[r] = (float)(10 * rank + r);
    }
    assert_int_equal(all.group->ops->start(all.group, &one, &error), WEFT_OK);
    while ((status = all.group->ops->test(all.group, &one, &error)) == WEFT_IN_PROGRESS) {
      assert_int_equal(all.transport->ops->progress(all.transport, &error), WEFT_OK);
    }
    assert_int_equal(status, WEFT_OK);
    const float sum = 5.0f * (float)(p * (p - 1));
    for (uint32_t r = 0; r < (k == 1 ? 1 : p); r++) {
      const float expected = k == 0   ? (float)(10 * r)
                             : k == 1 ? sum + (float)(p * rank)
                                      : sum + (float)(p * r);
      assert_true(all.data[256 + r] == expected);
    }
  }
  end_all(&all);
}

static void misused(void **state) {
  struct all all;
  struct weft_error error;
  struct weft_group *group = NULL;
  (void)state;
  if (!begin_all(&all, WEFT_COMM_SUMS_IN_ORDER)) {
    return;
  }
  const uint32_t rank = all.transport->rank, pair[] = {rank, (rank + 1) % job_size()};
  struct weft_collective one = {
      .kind = WEFT_ALL_REDUCE, .from = all.data, .to = all.data, .device = all.device, .bytes = 6};
  assert_int_equal(all.group->ops->start(all.group, &one, &error), WEFT_ERR_USAGE);
  one.bytes = 8;
  if (job_size() > 1) {
    assert_int_equal(
        all.transport->ops->group(all.transport, 9, pair, 2, all.device, &group, &error),
        WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "after its channels have been opened"));
    assert_int_equal(
        all.transport->ops->group(all.transport, 9 + rank, pair, 2, NULL, &group, &error), WEFT_OK);
    assert_int_equal(group->ops->start(group, &one, &error), WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "one of the host"));
    group->ops->destroy(group);
  }
  end_all(&all);
}

/* ---- The job ---- */

int main(int argc, char **argv) {
  static const struct CMUnitTest of_groups[] = {
      cmocka_unit_test(groups), cmocka_unit_test(a_member_fails), cmocka_unit_test(far_ahead),
      cmocka_unit_test(in_the_order_of_nccl), cmocka_unit_test(misused)};
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
  failed += cmocka_run_group_tests_name("groups on the GPU", of_groups, NULL, NULL);
  if (failed > 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  weft_cuda_close(cuda);
  MPI_Finalize();
  return 0;
}
