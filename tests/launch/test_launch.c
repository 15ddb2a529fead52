/* What weft/launch.h does in one process: the launcher's variables, which rank reports, what a
 * rank was doing, standard input for all ranks, signals. Jobs of processes are in
 * launch_example.bats and cli_mpi*.bats. */
#define _GNU_SOURCE /* setenv, pipe */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/ir.h>
#include <weft/launch.h>
#include <weft/support.h>

static const char *const variables[] = {"OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALNRANKS",
                                        "PMIX_RANK",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS"};

static int clear_environment(void **state) {
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(variables); k++) {
    (void)unsetenv(variables[k]);
  }
  return 0;
}

static void test_no_launcher(void **state) {
  (void)state;
  const struct weft_launch_info info = weft_launch_info();
  assert_null(info.launcher);
  assert_int_equal(info.rank, 0);
  assert_int_equal(info.rank_count, 1);
  weft_launch_begin("test"); /* returns, and has no effect */
  assert_null(getenv("WEFT_SUPERVISOR"));
}

static void test_launchers(void **state) {
  (void)state;
  (void)setenv("PMI_RANK", "3", 1);
  (void)setenv("PMI_SIZE", "8", 1);
  struct weft_launch_info info = weft_launch_info();
  assert_string_equal(info.launcher, "mpich");
  assert_int_equal(info.rank, 3);
  assert_int_equal(info.rank_count, 8);
  assert_int_equal(info.ranks_on_host, 8); /* it does not say */
  (void)setenv("MPI_LOCALNRANKS", "4", 1);
  assert_int_equal(weft_launch_info().ranks_on_host, 4);
  (void)setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  (void)setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  info = weft_launch_info();
  assert_string_equal(info.launcher, "openmpi");
  assert_int_equal(info.rank, 1);
  (void)setenv("OMPI_COMM_WORLD_RANK", "one", 1); /* the next variable that is a number */
  assert_int_equal(weft_launch_info().rank, 3);
}

static struct weft_comm *open_world(uint32_t ranks) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm = NULL;
  struct weft_error error;
  options.rank_count = ranks;
  assert_int_equal(weft_comm_open(NULL, "threads", &options, &comm, &error), WEFT_OK);
  return comm;
}

/* The only rank that reports after this failure, where the first `stopped` ranks are stopped. */
static uint32_t reporter_beside(uint32_t stopped, uint32_t ranks, uint32_t culprit,
                                enum weft_status status) {
  struct weft_comm *comm = open_world(ranks);
  const struct weft_failure failure = {.rank = culprit, .error = {.status = status}};
  uint32_t found = UINT32_MAX;
  struct weft_transport *transport = weft_comm_endpoint(comm, ranks - 1);
  (transport->ops->fail)(transport, &failure);
  for (uint32_t r = 0; r < stopped; r++) {
    transport->ops->rank_status(transport, r)->flags = WEFT_RANK_STOPPED;
  }
  for (uint32_t r = 0; r < ranks; r++) {
    if (weft_launch_is_reporter(weft_comm_endpoint(comm, r))) {
      assert_int_equal(found, UINT32_MAX);
      found = r;
    }
  }
  weft_comm_close(comm);
  return found;
}

static uint32_t reporter(uint32_t ranks, uint32_t culprit, enum weft_status status) {
  return reporter_beside(0, ranks, culprit, status);
}

static void test_reporter(void **state) {
  (void)state;
  struct weft_comm *comm = open_world(3);
  for (uint32_t r = 0; r < 3; r++) { /* nothing has failed */
    assert_int_equal(weft_launch_is_reporter(weft_comm_endpoint(comm, r)), r == 0);
  }
  weft_comm_close(comm);
  assert_int_equal(reporter(4, 2, WEFT_ERR_PEER), 0);
  assert_int_equal(reporter(4, 0, WEFT_ERR_PEER), 1);
  assert_int_equal(reporter(4, UINT32_MAX, WEFT_ERR_STALLED), 0);
  assert_int_equal(reporter(1, 0, WEFT_ERR_STAGE), 0);
  assert_int_equal(reporter(4, 2, WEFT_ERR_CANCELLED), 2);
  assert_int_equal(reporter_beside(1, 4, 2, WEFT_ERR_STALLED), 1);
  assert_int_equal(reporter_beside(1, 4, 1, WEFT_ERR_STALLED), 2);
  assert_int_equal(reporter_beside(2, 4, 0, WEFT_ERR_STALLED), 2);
}

static void test_activity(void **state) {
  (void)state;
  struct weft_comm *comm = open_world(40);
  struct weft_transport *transport = weft_comm_endpoint(comm, 3);
  const struct weft_failure failure = {.rank = 7, .error = {.status = WEFT_ERR_PEER}};
  struct weft_rank_status *own = transport->ops->rank_status(transport, 3);
  char text[256];
  own->phase = WEFT_PHASE_RECEIVE;
  own->peer = 7;
  own->step = 14;
  (transport->ops->fail)(transport, &failure);
  assert_string_equal(weft_launch_rank_activity(transport, text, sizeof text),
                      "waiting for a message in step 14, for rank 7; ends with the others");
  /* A collective whose other members are missing. */
  const struct weft_action sum = {.op = WEFT_OP_REDUCE_GRAD, .stage = 1};
  own->phase = WEFT_PHASE_COMPUTE;
  memcpy(&own->wants, &sum, sizeof sum);
  assert_string_equal(weft_launch_rank_activity(transport, text, sizeof text),
                      "waiting for its 1REDUCE_GRAD in step 14, for rank 7; ends with the others");
  /* A rank that has nothing to do with it, in a large job. */
  assert_string_equal(weft_launch_rank_activity(weft_comm_endpoint(comm, 5), text, sizeof text),
                      "");
  weft_comm_close(comm);
}

/* ---- Standard input ---- */

enum { INPUT_BYTES = 20001 }; /* not a multiple of anything */

struct input {
  int pipe[2];
};

static enum weft_status share(void *context, struct weft_transport *transport,
                              struct weft_error *error) {
  const struct input *input = context;
  static const char end[] = "the end";
  char text[INPUT_BYTES + 1];
  int copy = -1;
  WEFT_TRY(
      weft_launch_share_input(transport, transport->rank == 0 ? input->pipe[0] : -1, &copy, error));
  const ssize_t size = read(copy, text, sizeof text);
  (void)close(copy);
  if (size != INPUT_BYTES || memcmp(text + INPUT_BYTES - sizeof end, end, sizeof end) != 0) {
    return weft_fail(error, WEFT_ERR_IO, "", "%zd bytes", size);
  }
  return WEFT_OK;
}

static void test_share_input(void **state) {
  (void)state;
  static const char end[] = "the end";
  char text[INPUT_BYTES];
  struct input input;
  struct weft_error error;
  struct weft_comm *comm = open_world(3);
  memset(text, 'x', sizeof text);
  memcpy(text + sizeof text - sizeof end, end, sizeof end);
  assert_int_equal(pipe(input.pipe), 0);
  assert_int_equal(write(input.pipe[1], text, sizeof text), sizeof text);
  (void)close(input.pipe[1]);
  assert_int_equal(weft_comm_run(comm, share, &input, &error), WEFT_OK);
  (void)close(input.pipe[0]);
  weft_comm_close(comm);
}

static void test_unreadable_input(void **state) {
  (void)state;
  struct input input = {.pipe = {-1, -1}};
  struct weft_error error;
  struct weft_comm *comm = open_world(2);
  assert_int_equal(weft_comm_run(comm, share, &input, &error), WEFT_ERR_IO);
  assert_non_null(strstr(error.message, "cannot read standard input"));
  weft_comm_close(comm);
}

/* ---- Signals ---- */

static void test_signals(void **state) {
  (void)state;
  struct sigaction before, after;
  assert_int_equal(sigaction(SIGTERM, NULL, &before), 0);
  weft_launch_signals_begin();
  assert_int_equal(weft_launch_signal(), 0);
  assert_false(weft_launch_is_interrupted(NULL));
  assert_int_equal(raise(SIGTERM), 0);
  assert_int_equal(raise(SIGTERM), 0); /* at once: the same request */
  assert_int_equal(weft_launch_signal(), SIGTERM);
  assert_string_equal(weft_launch_signal_name(SIGTERM), "SIGTERM");
  assert_true(weft_launch_is_interrupted(NULL));
  weft_launch_signals_end();
  assert_int_equal(sigaction(SIGTERM, NULL, &after), 0);
  assert_true(before.sa_handler == after.sa_handler);
}

static void test_signal_fails_world(void **state) {
  (void)state;
  struct weft_comm *comm = open_world(2);
  struct weft_transport *transport = weft_comm_endpoint(comm, 1);
  struct weft_failure failure;
  weft_launch_signals_begin();
  struct weft_launch_watch *watch = weft_launch_watch_begin(transport);
  assert_non_null(watch);
  assert_int_equal(raise(SIGINT), 0);
  for (int k = 0; k < 500 && !transport->ops->get_failure(transport, &failure); k++) {
    (void)usleep(10000);
  }
  weft_launch_watch_end(watch);
  weft_launch_signals_end();
  assert_true(transport->ops->get_failure(transport, &failure));
  assert_int_equal(failure.error.status, WEFT_ERR_CANCELLED);
  assert_string_equal(failure.error.message, "stopped by SIGINT");
  weft_launch_watch_end(NULL);
  weft_comm_close(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_no_launcher, clear_environment),
      cmocka_unit_test_setup_teardown(test_launchers, clear_environment, clear_environment),
      cmocka_unit_test(test_reporter),
      cmocka_unit_test(test_activity),
      cmocka_unit_test(test_share_input),
      cmocka_unit_test(test_unreadable_input),
      cmocka_unit_test(test_signals),
      cmocka_unit_test(test_signal_fails_world),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
