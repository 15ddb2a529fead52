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

#include <weft/support.h>

#include "comm/mpi/driver/mpi_world.h"
#include "support_conformance.h"
#include "support_groups.h"
#include "support_linear_model.h"
#include "support_memory.h"
#include "support_protected_device.h"

enum { HANG_SECONDS = 240 };

enum { SIZES_MAX = 8 };
/* By number of ranks: the first so many processes of the job. */
static MPI_Comm communicators[SIZES_MAX + 1];

struct part {
  MPI_Comm communicator;
  struct weft_comm *world;
};

/* Gives the core away meanwhile: there are more ranks than cores. */
static void wait_for(MPI_Request *request) {
  int flag = 0;
  for (MPI_Test(request, &flag, MPI_STATUS_IGNORE); !flag;
       MPI_Test(request, &flag, MPI_STATUS_IGNORE)) {
    (void)usleep(20);
  }
}

static int rank_of_job(void) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

static uint32_t job_size(void) {
  int size;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return (uint32_t)size;
}

static enum weft_comm_progress progress_of_job(void) {
  const char *text = getenv("WEFT_TEST_PROGRESS");
  return text != NULL && strcmp(text, "thread") == 0 ? WEFT_COMM_PROGRESS_THREAD
                                                     : WEFT_COMM_PROGRESS_CALLS;
}

static uint64_t piece_of_job(void) {
  const char *text = getenv("WEFT_TEST_PIECE");
  return text != NULL ? strtoull(text, NULL, 10) : 0;
}

/* All processes of the job call it; `host` NULL: on the machines they are on. Those that are too many get no world. */
static struct part make_part_on(uint32_t rank_count, const char *host) {
  struct part part = {.communicator = communicators[rank_count]};
  struct weft_error error;
  if (part.communicator != MPI_COMM_NULL) {
    const struct weft_comm_options options = {.progress = progress_of_job(),
                                              .communicator = &part.communicator,
                                              .host = host,
                                              .piece_bytes = piece_of_job()};
    if (weft_comm_open(NULL, "mpi", &options, &part.world, &error) != WEFT_OK) {
      fail_msg("%s", error.message);
    }
  }
  return part;
}

static struct part make_part(uint32_t rank_count) { return make_part_on(rank_count, NULL); }

static void end_part(struct part *part) {
  if (part->world != NULL) {
    weft_comm_close(part->world);
  }
}

/* ---- conformance ---- */

static void *create(void *context, uint32_t rank_count, struct weft_transport **endpoints) {
  struct part *part = malloc(sizeof *part);
  (void)context;
  assert_non_null(part);
  *part = make_part(rank_count);
  if (part->world != NULL) {
    struct weft_transport *endpoint = weft_comm_local(part->world);
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
  struct conformance_rank *rank = &ranks[weft_comm_local(part->world)->rank];
  (void)rank_count;
  while (conformance_step(rank)) {
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

/* ---- groups ---- */

/* Every case of support_groups.h in worlds of all sizes. */
static void groups(void **state) {
  (void)state;
  for (uint32_t count = 1; count <= job_size(); count++) {
    struct part part = make_part(count);
    if (part.world != NULL) {
      struct conformance_rank rank = {.transport = weft_comm_local(part.world)};
      for (uint32_t k = 0; k < groups_case_count(); k++) {
        groups_case_begin(k, &rank);
        while (conformance_step(&rank)) {
        }
        if (rank.status != WEFT_OK) {
          fail_msg("%u ranks, %s: %s", count, groups_case_name(k), rank.error.message);
        }
      }
    }
    end_part(&part);
  }
}

static void a_member_fails(void **state) {
  (void)state;
  for (uint32_t count = 2; count <= job_size(); count++) {
    struct part part = make_part(count);
    if (part.world != NULL) {
      struct conformance_rank rank = {.transport = weft_comm_local(part.world)};
      groups_failure_begin(&rank);
      while (conformance_step(&rank)) {
      }
      assert_true(groups_failure_is_right(&rank));
    }
    end_part(&part);
  }
}

/* ---- what comes is checked ---- */

enum { LARGE = 50000 }; /* more than WEFT_MPI_EAGER: a header and pieces */

static void open_end(struct weft_transport *transport, bool sends, uint64_t bytes_max) {
  struct weft_error error;
  const struct weft_channel_end end = {.channel = 5,
                                       .peer = 1 - transport->rank,
                                       .sends = sends,
                                       .depth = 2,
                                       .bytes_max = bytes_max};
  assert_int_equal(transport->ops->open(transport, &end, 1, &error), WEFT_OK);
}

/* Until the message is done, or there is an error. */
static enum weft_status finish(struct weft_transport *transport, struct weft_message *message,
                               struct weft_error *error) {
  enum weft_status status = WEFT_IN_PROGRESS;
  while (status == WEFT_IN_PROGRESS) {
    status = transport->ops->progress(transport, error);
    if (status == WEFT_OK) {
      status = transport->ops->test(transport, message, error);
    }
    if (status == WEFT_IN_PROGRESS) {
      (void)transport->ops->wait(transport, WEFT_TIME_NEVER, error);
    }
  }
  return status;
}

static void assert_says(const struct weft_error *error, const char *const *words) {
  for (; *words != NULL; words++) {
    if (strstr(error->message, *words) == NULL) {
      fail_msg("no \"%s\" in: %s", *words, error->message);
    }
  }
}

/* The receiver gets it, cancels, and fails the world, as the executor does. */
static void expect_trouble(struct weft_transport *transport, struct weft_message *message,
                           const char *const *words) {
  struct weft_failure failure = {.rank = 0};
  assert_int_equal(transport->ops->post(transport, 5, false, message, &failure.error), WEFT_OK);
  assert_int_equal(finish(transport, message, &failure.error), WEFT_ERR_PROTOCOL);
  assert_says(&failure.error, words);
  transport->ops->cancel(transport, message);
  (transport->ops->fail)(transport, &failure); /* cmocka has a macro of that name */
}

static void expect_failure(struct weft_transport *transport, const char *const *words) {
  struct weft_error error;
  enum weft_status status = WEFT_OK;
  while (status == WEFT_OK) {
    status = transport->ops->progress(transport, &error);
    (void)transport->ops->wait(transport, transport->ops->now(transport) + 1000000, &error);
  }
  assert_int_equal(status, WEFT_ERR_PROTOCOL);
  assert_says(&error, words);
}

/* Rank 0 has opened the channel for other payloads than rank 1: in one message with the header,
 * or in pieces, at one end or at both. */
static void play_disagreement(uint64_t there, uint64_t here) {
  static unsigned char data[LARGE];
  char found[24];
  char expected[24];
  const char *const words[] = {"channel 5", "from rank 0 to rank 1", found, expected, NULL};
  struct weft_message message = {.header = {.bytes = there}, .data = data, .capacity = sizeof data};
  struct weft_error error;
  struct part part = make_part(2);
  (void)snprintf(found, sizeof found, "found %u", (unsigned)there);
  (void)snprintf(expected, sizeof expected, "expected %u", (unsigned)here);
  if (part.world != NULL) {
    struct weft_transport *transport = weft_comm_local(part.world);
    open_end(transport, transport->rank == 0, transport->rank == 0 ? there : here);
    if (transport->rank == 0) {
      assert_int_equal(transport->ops->post(transport, 5, true, &message, &error), WEFT_OK);
      expect_failure(transport, words);
      transport->ops->cancel(transport, &message);
    } else {
      expect_trouble(transport, &message, words);
      if (there > WEFT_MPI_EAGER && here <= WEFT_MPI_EAGER) {
        /* No receive is posted for the payload; MPICH 4.2 ends no process that still sends. */
        const struct weft_mpi_world *world = weft_mpi_world_of(transport);
        MPI_Recv(data, (int)there, MPI_BYTE, 0, weft_mpi_payload_tag(5), world->messages,
                 MPI_STATUS_IGNORE);
      }
    }
  }
  end_part(&part);
}

static void ends_disagree(void **state) {
  (void)state;
  play_disagreement(100, 200);
  play_disagreement(100, LARGE);
  play_disagreement(LARGE, 100);
}

/* What a header is on the wire, as in mpi_transfer.c. */
struct wire {
  int64_t begin;
  uint64_t bytes_max;
  struct weft_message_header header;
};

/* Rank 0 sends a good message, and then less than it promised: of the payload, or of the
 * header. MPI accepts it. */
static void send_short(struct weft_transport *transport, struct weft_message *message,
                       bool whole_header) {
  const struct weft_mpi_world *world = weft_mpi_world_of(transport);
  const struct wire wire = {.bytes_max = LARGE, .header = message->header};
  struct weft_error error;
  assert_int_equal(transport->ops->post(transport, 5, true, message, &error), WEFT_OK);
  assert_int_equal(finish(transport, message, &error), WEFT_OK);
  MPI_Send(&wire, whole_header ? (int)sizeof wire : 3, MPI_BYTE, 1, weft_mpi_header_tag(5),
           world->messages);
  MPI_Send(message->data, 77, MPI_BYTE, 1, weft_mpi_payload_tag(5), world->messages);
}

static void play_short(const char *found, bool whole_header) {
  const char *const words[] = {"channel 5, message 1", "from rank 0 to rank 1", found, NULL};
  static unsigned char data[LARGE];
  struct weft_message message = {.header = {.bytes = LARGE}, .data = data, .capacity = sizeof data};
  struct part part = make_part(2);
  if (part.world != NULL) {
    struct weft_transport *transport = weft_comm_local(part.world);
    struct weft_error error;
    open_end(transport, transport->rank == 0, LARGE);
    if (transport->rank == 0) {
      send_short(transport, &message, whole_header);
      expect_failure(transport, words);
    } else {
      assert_int_equal(transport->ops->post(transport, 5, false, &message, &error), WEFT_OK);
      assert_int_equal(finish(transport, &message, &error), WEFT_OK);
      expect_trouble(transport, &message, words);
    }
  }
  end_part(&part);
}

static void a_payload_is_short(void **state) {
  (void)state;
  play_short("found 77", true);
}

static void a_header_is_short(void **state) {
  (void)state;
  play_short("found 3, expected 80", false);
}

/* Payloads around the size up to which they travel with their header, and shapes with them. */
static void small_and_large_payloads(void **state) {
  static const uint64_t sizes[] = {0, 1, WEFT_MPI_EAGER - 1, WEFT_MPI_EAGER, WEFT_MPI_EAGER + 1};
  static unsigned char data[WEFT_MPI_EAGER + 1];
  (void)state;
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    struct part part = make_part(2);
    if (part.world != NULL) {
      struct weft_transport *transport = weft_comm_local(part.world);
      const bool sends = transport->rank == 0;
      struct weft_message message = {.data = data, .capacity = sizeof data};
      struct weft_error error;
      for (uint64_t b = 0; b < sizes[k]; b++) {
        data[b] = sends ? (unsigned char)(b * 7 + 3) : 0;
      }
      if (sends) {
        message.header = (struct weft_message_header){
            .bytes = sizes[k], .tensor_count = WEFT_TENSORS_MAX, .microbatch = 9};
        for (uint64_t t = 0; t < WEFT_TENSORS_MAX; t++) {
          message.shapes[t] = (struct weft_tensor_shape){.dim_count = 1, .dims = {t + 1}};
        }
      }
      open_end(transport, sends, sizes[k]);
      assert_int_equal(transport->ops->post(transport, 5, sends, &message, &error), WEFT_OK);
      assert_int_equal(finish(transport, &message, &error), WEFT_OK);
      assert_int_equal(message.header.bytes, sizes[k]);
      assert_int_equal(message.header.microbatch, 9);
      assert_int_equal(message.shapes[WEFT_TENSORS_MAX - 1].dims[0], WEFT_TENSORS_MAX);
      assert_true(message.begin > 0 && message.begin <= message.end);
      for (uint64_t b = 0; b < sizes[k]; b++) {
        assert_int_equal(data[b], (unsigned char)(b * 7 + 3));
      }
    }
    end_part(&part);
  }
}

/* ---- progress from a computation ---- */

/* A message arrives without progress() and wait(), and with fewer test()s than would poll. */
static void progress_from_compute_is_enough(void **state) {
  static unsigned char data[LARGE];
  struct weft_message message = {.header = {.bytes = LARGE}, .data = data, .capacity = sizeof data};
  struct part part = make_part(2);
  (void)state;
  if (part.world != NULL) {
    struct weft_transport *transport = weft_comm_local(part.world);
    struct weft_error error;
    enum weft_status status = WEFT_IN_PROGRESS;
    open_end(transport, transport->rank == 0, LARGE);
    assert_int_equal(transport->ops->post(transport, 5, transport->rank == 0, &message, &error),
                     WEFT_OK);
    for (int tests = 0; tests < 20 && status == WEFT_IN_PROGRESS; tests++) {
      for (int k = 0; k < 200 << tests; k++) {
        transport->ops->progress_from_compute(transport);
        (void)usleep(10);
      }
      status = transport->ops->test(transport, &message, &error);
    }
    assert_int_equal(status, WEFT_OK);
  }
  end_part(&part);
}

/* ---- device memory ---- */

/* mpi carries host memory only, and says so. */
static void device_memory_is_refused(void **state) {
  struct part part = make_part(2);
  (void)state;
  if (part.world != NULL) {
    static const char *const words[] = {"protected", "host", NULL};
    const uint32_t ranks[] = {0, 1};
    struct weft_transport *transport = weft_comm_local(part.world);
    struct weft_device *device = protected_device();
    void *data = weft_device_allocate(device, NULL, 64);
    struct weft_message message = {.data = data, .device = device, .capacity = 64};
    struct weft_collective sum = {
        .kind = WEFT_ALL_REDUCE, .from = data, .to = data, .device = device, .bytes = 64};
    struct weft_group *group;
    struct weft_error error;
    assert_false(transport->ops->device_memory);
    open_end(transport, transport->rank == 0, 64);
    assert_int_equal(transport->ops->post(transport, 5, transport->rank == 0, &message, &error),
                     WEFT_ERR_UNAVAILABLE);
    assert_says(&error, words);
    assert_int_equal(transport->ops->group(transport, 1, ranks, 2, NULL, &group, &error), WEFT_OK);
    assert_int_equal(group->ops->start(group, &sum, &error), WEFT_ERR_UNAVAILABLE);
    assert_says(&error, words);
    group->ops->destroy(group);
    weft_device_free(device, NULL, data, 64);
  }
  end_part(&part);
}

/* The endpoint has a pipeline already. */
static void refuses_a_second(struct weft_transport *transport,
                             struct weft_pipeline_options options) {
  struct weft_pipeline *second = NULL;
  struct weft_error error;
  for (options.first_channel = 0; options.first_channel <= 4; options.first_channel += 4) {
    assert_int_equal(weft_pipeline_create(NULL, transport, &options, &second, &error),
                     WEFT_ERR_USAGE);
    assert_non_null(strstr(error.message, "opens its channels a second time"));
  }
  assert_null(second);
}

/* A pipeline on a device copies its messages through host memory. */
static void a_pipeline_on_a_device(void **state) {
  struct part part = make_part(2);
  (void)state;
  if (part.world != NULL) {
    struct weft_transport *transport = weft_comm_local(part.world);
    struct weft_named_source source = {.schedule = "1F1B", .ranks = 2};
    struct weft_pipeline_options options = weft_pipeline_options_default();
    struct weft_pipeline *pipeline;
    struct weft_program *program;
    struct linear_model model;
    struct weft_error error;
    linear_model_init(&model, 2, 3, 8, 5);
    assert_int_equal(weft_source_named(&source, 4, true, &program, &error), WEFT_OK);
    struct linear_result expected = linear_model_evaluate(&model, program, true, UINT32_MAX);
    options.source = weft_source_named;
    options.source_context = &source;
    options.microbatch_count = 4;
    options.stages = model.bases;
    options.stage_count = 2;
    options.boundaries = &model.boundary;
    options.boundary_count = 1;
    options.check_payloads = true;
    options.device = protected_device();
    assert_int_equal(weft_pipeline_create(NULL, transport, &options, &pipeline, &error), WEFT_OK);
    const struct weft_tensor inputs = linear_model_inputs(&model);
    const struct weft_tensor targets = linear_model_targets(&model);
    const struct weft_batch batch = {.microbatch_count = 4,
                                     .inputs = &inputs,
                                     .input_count = 1,
                                     .targets = &targets,
                                     .target_count = 1};
    for (int step = 0; step < 2; step++) {
      assert_int_equal(weft_pipeline_step(pipeline, &batch, NULL, &error), WEFT_OK);
      assert_true(linear_gradients_equal(&model, transport->rank, &expected));
    }
    refuses_a_second(transport, options);
    weft_pipeline_destroy(pipeline);
    linear_result_free(&model, &expected);
    linear_model_finish(&model);
    weft_program_destroy(program);
    assert_int_equal(protected_device_blocks(), 0);
  }
  end_part(&part);
}

/* ---- statuses ---- */

static void synchronize(struct part *part, const char *what) {
  assert_true(same_everywhere(part, what, strlen(what)));
}

static uint64_t flags_of(struct weft_transport *transport, uint32_t rank) {
  transport->ops->refresh_status(transport, transport->ops->now(transport) + 100000000);
  return __atomic_load_n(&transport->ops->rank_status(transport, rank)->flags, __ATOMIC_RELAXED);
}

/* Rank 0 stops rank 1's process, and can still read its status. */
static void a_stopped_process_shows(void **state) {
  struct part part = make_part(2);
  (void)state;
  if (part.world != NULL) {
    struct weft_transport *transport = weft_comm_local(part.world);
    int pid = (int)getpid();
    __atomic_store_n(&transport->ops->rank_status(transport, transport->rank)->step,
                     70 + transport->rank, __ATOMIC_RELAXED);
    MPI_Bcast(&pid, 1, MPI_INT, 1, part.communicator);
    if (transport->rank == 0) {
      assert_int_equal(flags_of(transport, 1), 0);
      assert_int_equal(kill(pid, SIGSTOP), 0);
      while (flags_of(transport, 1) != WEFT_RANK_STOPPED) {
      }
      assert_int_equal(transport->ops->rank_status(transport, 1)->step, 71);
      assert_int_equal(kill(pid, SIGCONT), 0);
      while (flags_of(transport, 1) != 0) {
      }
    }
    synchronize(&part, "stopped");
  }
  end_part(&part);
}

static bool all_statuses_are(struct weft_transport *transport, uint64_t step) {
  transport->ops->refresh_status(transport, transport->ops->now(transport) + 5000000);
  for (uint32_t r = 0; r < transport->rank_count; r++) {
    if (transport->ops->rank_status(transport, r)->step < step) {
      return false;
    }
  }
  return true;
}

/* As on another machine each: statuses come when asked for, and clocks are compared. */
static void ranks_on_several_machines(void **state) {
  char name[16];
  struct weft_error error;
  struct weft_comm_facts facts;
  (void)state;
  (void)snprintf(name, sizeof name, "machine-%d", rank_of_job());
  struct part part = make_part_on(job_size(), name);
  struct weft_transport *transport = weft_comm_local(part.world);
  weft_comm_facts(part.world, &facts);
  assert_string_equal(facts.host, name);
  assert_int_equal(facts.ranks_on_host, 1);
  const int64_t offset = weft_mpi_world_of(transport)->clock_offset;
  assert_in_range(offset + 1000000000, 0, 2000000000); /* it is one clock, after all */
  __atomic_store_n(&transport->ops->rank_status(transport, transport->rank)->step, 5,
                   __ATOMIC_RELAXED);
  while (!all_statuses_are(transport, 5)) {
    assert_int_equal(transport->ops->progress(transport, &error), WEFT_OK);
  }
  __atomic_store_n(&transport->ops->rank_status(transport, transport->rank)->step, 6,
                   __ATOMIC_RELAXED);
  while (!all_statuses_are(transport, 6)) { /* the slower ones still ask for these */
    assert_int_equal(transport->ops->progress(transport, &error), WEFT_OK);
  }
  end_part(&part);
}

/* ---- memory ---- */

/* A world that ends well gives everything back. */
static void all_memory_comes_back(void **state) {
  struct test_memory memory;
  struct weft_comm *world = NULL;
  struct weft_error error;
  struct weft_group *group = NULL;
  (void)state;
  test_memory_init(&memory);
  const struct weft_comm_options options = {.progress = progress_of_job(),
                                            .communicator = &communicators[job_size()]};
  assert_int_equal(weft_comm_open(&memory.allocator, "mpi", &options, &world, &error), WEFT_OK);
  struct weft_transport *transport = weft_comm_local(world);
  const uint32_t ranks[1] = {transport->rank};
  if (transport->rank < 2) {
    open_end(transport, transport->rank == 0, LARGE);
  }
  assert_int_equal(
      transport->ops->group(transport, transport->rank, ranks, 1, NULL, &group, &error), WEFT_OK);
  assert_true(memory.blocks > 0);
  group->ops->destroy(group);
  weft_comm_close(world);
  assert_int_equal(memory.blocks, 0);
}

/* ---- what is refused, and facts ---- */

static void facts_are_reported(void **state) {
  struct weft_comm_facts facts;
  struct part part = make_part(job_size());
  (void)state;
  weft_comm_facts(part.world, &facts);
  assert_string_equal(facts.implementation, weft_mpi_launcher());
  assert_int_equal(weft_comm_local(part.world)->rank, rank_of_job());
  assert_int_equal(weft_comm_local(part.world)->rank_count, job_size());
  assert_int_equal(facts.ranks_on_host, job_size());
  assert_int_equal(facts.rank_on_host, rank_of_job());
  assert_string_equal(facts.threading, "multiple");
  assert_true(strlen(facts.binding) > 0 && strlen(facts.host) > 0);
  assert_non_null(strstr(facts.library, "MPI"));
  end_part(&part);
}

static void odd_wishes_are_refused(void **state) {
  static const struct {
    const char *implementation;
    const char *says;
  } wishes[] = {{"mvapich", "mvapich"},
                {"openmpi", "each process would be"},
                {"mpich", "each process would be"}};
  (void)state;
  for (size_t k = 0; k < sizeof wishes / sizeof wishes[0]; k++) {
    const struct weft_comm_options options = {.implementation = wishes[k].implementation};
    struct weft_comm *world = NULL;
    struct weft_error error;
    if (strcmp(weft_mpi_launcher(), wishes[k].implementation) != 0) {
      assert_int_equal(weft_comm_open(NULL, "mpi", &options, &world, &error), WEFT_ERR_USAGE);
      assert_non_null(strstr(error.message, wishes[k].says));
      assert_null(world);
    }
  }
}

static void a_driver_is_missing(void **state) {
  struct weft_comm *world = NULL;
  struct weft_error error;
  (void)state;
  (void)setenv("WEFT_MPI_DRIVER", "/nowhere/weft-mpi.so", 1);
  assert_int_equal(weft_comm_open(NULL, "mpi", NULL, &world, &error), WEFT_ERR_UNAVAILABLE);
  assert_non_null(strstr(error.message, "/nowhere/weft-mpi.so"));
  (void)unsetenv("WEFT_MPI_DRIVER");
  assert_int_equal(weft_comm_open(NULL, "mpi", NULL, &world, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "initialised already"));
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
  for (int count = 1; count <= size && count <= SIZES_MAX; count++) {
    MPI_Comm_split(MPI_COMM_WORLD, rank_of_job() < count ? 0 : MPI_UNDEFINED, 0,
                   &communicators[count]);
  }
  const struct conformance_transport mpi = {.name = "mpi",
                                            .create = create,
                                            .destroy = destroy,
                                            .drive = drive,
                                            .real_time = true,
                                            .ranks_max = (uint32_t)size,
                                            .same_everywhere = same_everywhere};
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(facts_are_reported),
      cmocka_unit_test(all_memory_comes_back),
      cmocka_unit_test(odd_wishes_are_refused),
      cmocka_unit_test(a_driver_is_missing),
      cmocka_unit_test(a_stopped_process_shows),
      cmocka_unit_test(ranks_on_several_machines),
      cmocka_unit_test(groups),
      cmocka_unit_test(a_member_fails),
      cmocka_unit_test(ends_disagree),
      cmocka_unit_test(a_payload_is_short),
      cmocka_unit_test(a_header_is_short),
      cmocka_unit_test(small_and_large_payloads),
      cmocka_unit_test(progress_from_compute_is_enough),
      cmocka_unit_test(device_memory_is_refused),
      cmocka_unit_test(a_pipeline_on_a_device),
  };
  failed += conformance_run(&mpi);
  failed += cmocka_run_group_tests(tests, NULL, NULL);
  if (failed > 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
