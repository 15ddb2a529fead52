/* The trainer under mpirun, a process per rank: every schedule on two and four ranks, and
 * on two replicas of two with whatever is sharded, has the same losses and parameters bit
 * for bit as in one process; a rank with other data is refused; checkpoints of such a job
 * are read by one process. Every process runs the same tests. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <mpi.h>

#include <weft/comm.h>
#include <weft/weft.h>

#include "support_gpt_hand.h"

enum { RANKS_MAX = 4, HANG_SECONDS = 240 };
#if defined(__SANITIZE_ADDRESS__)
enum { EVERY = 4 }; /* schedule; all of them elsewhere */
#else
enum { EVERY = 1 };
#endif

/* The first so many processes of the job. */
static MPI_Comm communicators[RANKS_MAX + 1];

static int rank_of_job(void) {
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

struct outcome {
  double losses[HAND_STEPS];
  uint64_t hash;
};

static void note(void *context, const struct weft_gpt_step_report *report) {
  ((struct outcome *)context)->losses[report->step - 1] = report->loss;
}

static enum weft_status train(struct weft_gpt_trainer_options options, struct outcome *outcome,
                              struct weft_error *error) {
  struct weft_gpt_trainer *trainer;
  *outcome = (struct outcome){.hash = 0};
  options.on_step = note;
  options.context = outcome;
  enum weft_status status = weft_gpt_trainer_create(&options, &trainer, error);
  if (status == WEFT_OK) {
    status = weft_gpt_trainer_run(trainer, error);
    outcome->hash = weft_gpt_trainer_hash(trainer);
    weft_gpt_trainer_destroy(trainer);
  }
  return status;
}

/* A world of its own; only processes that are in it call it. */
static enum weft_status train_on_mpi(struct weft_gpt_trainer_options options, uint32_t ranks,
                                     struct outcome *outcome, struct weft_error *error) {
  struct weft_comm *world;
  const struct weft_comm_options with = {.communicator = &communicators[ranks]};
  if (weft_comm_open(NULL, "mpi", &with, &world, error) < 0) {
    fail_msg("%s", error->message);
  }
  options.endpoint = weft_comm_local(world);
  const enum weft_status status = train(options, outcome, error);
  weft_comm_close(world);
  return status;
}

/* ---- The matrix ---- */

static void check(struct weft_gpt_trainer_options options, uint32_t *runs) {
  const uint32_t ranks = options.ranks * options.replicas;
  struct outcome outcome, expected;
  struct weft_error error;
  char what[96];
  if (communicators[ranks] == MPI_COMM_NULL) {
    return;
  }
  snprintf(what, sizeof what, "%u x %s on %u, shard %d%s", options.replicas, options.schedule,
           options.ranks, (int)options.shard, options.training.config.tied ? ", tied" : "");
  options.transport = "loopback";
  if (train(options, &expected, &error) < 0) {
    fail_msg("%s in one process: %s", what, error.message);
  }
  if (train_on_mpi(options, ranks, &outcome, &error) < 0) {
    fail_msg("%s: %s", what, error.message);
  }
  if (rank_of_job() != 0) { /* losses are told to rank 0, the hash to all */
    memcpy(outcome.losses, expected.losses, sizeof outcome.losses);
  }
  for (uint32_t k = 0; k < HAND_STEPS; k++) {
    if (outcome.losses[k] != expected.losses[k]) {
      fail_msg("%s: the loss of step %u is not that of one process", what, k + 1);
    }
  }
  if (outcome.hash != expected.hash) {
    fail_msg("%s: parameters are not those of one process", what);
  }
  (*runs)++;
}

/* Skips between blocks, and two heads: on one rank each, or on one. */
static void check_graphs(struct weft_gpt_trainer_options options, uint32_t *runs) {
  static const char *const schedules[] = {"1F1B", "ZBVZeroBubble"};
  static const uint32_t heads_apart[] = {0, 4, 7, 8, 9};
  options.training.config.skips = true;
  options.training.config.predict = 2;
  options.training.config.tied = false;
  for (uint32_t k = 0; k < 4; k++) {
    options.schedule = schedules[k / 2];
    options.first_layers = k % 2 == 0 ? heads_apart : NULL;
    options.ranks = k < 2 ? 4 : 2;
    options.replicas = k < 2 ? 1 : 2;
    options.shard = k < 2 ? WEFT_GPT_SHARD_NONE : WEFT_GPT_SHARD_FULL;
    check(options, runs);
  }
}

static void test_matrix(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  uint32_t runs = 0;
  options.eval_every = 2;
  for (size_t k = 0; k < weft_schedule_count(); k += EVERY) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    if (info->fixed || !info->trains) {
      continue;
    }
    options.schedule = info->name;
    options.training.config.tied = k % 2 == 0;
    options.replicas = 1;
    options.shard = WEFT_GPT_SHARD_NONE;
    options.training.microbatches = 8; /* DualPipeV needs that many */
    options.ranks = 4;
    check(options, &runs);
    options.training.microbatches = 4;
    options.ranks = 2;
    check(options, &runs);
    options.replicas = 2;
    options.unshard_window = 1;
    options.shard = (enum weft_gpt_shard)(k % 3);
    check(options, &runs);
  }
  check_graphs(options, &runs);
  if (rank_of_job() == 0) {
    print_message("%u runs of %d steps, bit for bit\n", runs, HAND_STEPS);
  }
}

/* ---- Checkpoints ---- */

static void test_checkpoint(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  struct outcome outcome, after;
  struct weft_gpt_checkpoint *checkpoint;
  struct weft_error error;
  char dir[64] = "/tmp/weft-gpt-mpi-XXXXXX", command[96];
  if (communicators[RANKS_MAX] == MPI_COMM_NULL) {
    return;
  }
  if (rank_of_job() == 0) {
    assert_non_null(mkdtemp(dir));
  }
  MPI_Bcast(dir, sizeof dir, MPI_CHAR, 0, communicators[RANKS_MAX]);
  options.schedule = "1F1B";
  options.ranks = options.replicas = 2;
  options.shard = WEFT_GPT_SHARD_FULL;
  options.checkpoint_dir = dir;
  if (train_on_mpi(options, RANKS_MAX, &outcome, &error) < 0) {
    fail_msg("%s", error.message);
  }
  if (weft_gpt_checkpoint_open(NULL, dir, &checkpoint, &error) < 0) {
    fail_msg("%s", error.message);
  }
  struct weft_gpt_trainer_options one = hand_options(&dataset);
  one.resume = checkpoint; /* nothing is left to train: the hash is of what was read */
  one.training = *weft_gpt_checkpoint_training(checkpoint);
  if (train(one, &after, &error) < 0) {
    fail_msg("%s", error.message);
  }
  assert_true(after.hash == outcome.hash);
  weft_gpt_checkpoint_close(checkpoint);
  MPI_Barrier(communicators[RANKS_MAX]);
  if (rank_of_job() == 0) {
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
  }
}

/* ---- What is refused ---- */

static void test_odd_rank(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  struct outcome outcome;
  struct weft_error error;
  if (communicators[RANKS_MAX] == MPI_COMM_NULL) {
    return;
  }
  options.ranks = options.replicas = 2;
  options.schedule = "1F1B";
  options.training.data_hash += rank_of_job() == 2;
  assert_int_equal(train_on_mpi(options, RANKS_MAX, &outcome, &error), WEFT_ERR_PEER);
  assert_non_null(strstr(error.message, "rank 2 has another configuration"));
}

/* One rank cannot even begin: the others are told. */
static void test_failed_rank(void **state) {
  (void)state;
  const struct weft_gpt_dataset dataset = hand_corpus();
  struct weft_gpt_trainer_options options = hand_options(&dataset);
  struct outcome outcome;
  struct weft_error error;
  if (communicators[RANKS_MAX] == MPI_COMM_NULL) {
    return;
  }
  options.ranks = 4;
  options.schedule = "1F1B";
  options.training.microbatches = rank_of_job() == 1 ? 5 : 4;
  assert_int_equal(train_on_mpi(options, RANKS_MAX, &outcome, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "5 equal microbatches"));
}

int main(void) {
  int level, size;
  (void)alarm(HANG_SECONDS); /* a test that failed in one process may leave others waiting */
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int count = 1; count <= RANKS_MAX; count++) {
    MPI_Comm_split(MPI_COMM_WORLD, rank_of_job() < count && count <= size ? 0 : MPI_UNDEFINED, 0,
                   &communicators[count]);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_matrix), cmocka_unit_test(test_checkpoint),
      cmocka_unit_test(test_odd_rank), cmocka_unit_test(test_failed_rank)};
  if (cmocka_run_group_tests(tests, NULL, NULL) > 0) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
