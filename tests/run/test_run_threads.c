/* Pipelines with a thread per rank, for ThreadSanitizer to look at: every
 * schedule with results bit for bit, and the ways in which a rank can end
 * before the others.
 * Also under ThreadSanitizer. */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/support.h>

#include "support_thread_job.h"

enum { REPEATS = 3, WATCHDOG_SECONDS = 250, ENDLESS = 100000000 };

/* One at a time: large. */
static struct thread_job job;

static bool draw(struct trial_setup *setup, const char *schedule, uint32_t p, uint32_t m,
                 uint64_t seed) {
  const struct weft_named_source named = {.schedule = schedule, .ranks = p};
  if (!trial_draw_schedule(setup, &named, m, seed)) {
    return false;
  }
  thread_job_init(&job, setup);
  return true;
}

/* ---- Results ---- */

static void run_well(const struct trial_setup *setup) {
  struct weft_error error = {.status = WEFT_OK};
  const enum weft_status status = thread_job_run(&job, &error);
  const char *complaint = thread_job_judge(&job, status, &error);
  if (status != WEFT_OK || complaint != NULL) {
    fail_msg("%s: %s", setup->name, status != WEFT_OK ? error.message : complaint);
  }
}

static void every_schedule(void **state) {
  (void)state;
  uint32_t jobs = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    for (uint32_t p = 2; p <= 8; p *= 2) {
      for (uint32_t repeat = 0; repeat < REPEATS; repeat++) {
        struct trial_setup setup;
        if (!draw(&setup, weft_schedule_at(k)->name, p, 2 * p, 100 * p + 10 * k + repeat)) {
          continue;
        }
        setup.comm = (enum weft_send_model)(repeat % 3);
        job.stage_time_max = repeat == 1 ? 50000 : 0;
        job.delay_max = repeat == 2 ? 50000 : 0;
        run_well(&setup);
        trial_setup_finish(&setup);
        jobs++;
      }
    }
  }
  print_message("%u jobs\n", jobs);
  assert_true(jobs > 60);
}

/* ---- A stage that fails ---- */

static void a_stage_fails(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 40; seed++) {
    struct trial_setup setup;
    struct weft_error error = {.status = WEFT_OK};
    char rank[32];
    assert_true(draw(&setup, seed % 2 == 0 ? "1F1B" : "ZBVZeroBubble", 4, 8, seed));
    const uint32_t stage = seed % setup.program->stage_count;
    job.stages[stage].fail_at = 1 + seed % 20;
    const enum weft_status status = thread_job_run(&job, &error);
    assert_int_equal(status, WEFT_ERR_STAGE);
    assert_ptr_equal(thread_job_judge(&job, status, &error), NULL);
    (void)snprintf(rank, sizeof rank, "rank %u,", setup.rank_of[stage]);
    assert_non_null(strstr(error.message, rank));
    trial_setup_finish(&setup);
  }
}

/* ---- A rank that leaves ---- */

/* It says why. */
static void a_rank_leaves(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 20; seed++) {
    struct trial_setup setup;
    struct weft_error error = {.status = WEFT_OK};
    char message[64];
    assert_true(draw(&setup, "Interleaved1F1B", 4, 8, seed));
    job.leaving_rank = seed % 4;
    job.leaving = WEFT_ERR_IO;
    const enum weft_status status = thread_job_run(&job, &error);
    assert_int_equal(status, WEFT_ERR_IO);
    assert_ptr_equal(thread_job_judge(&job, status, &error), NULL);
    (void)snprintf(message, sizeof message, "rank %u leaves early", seed % 4);
    assert_string_equal(error.message, message);
    trial_setup_finish(&setup);
  }
}

/* It does not: the others miss it. */
static void a_rank_leaves_silently(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 4; seed++) {
    struct trial_setup setup;
    struct weft_error error = {.status = WEFT_OK};
    char rank[48];
    assert_true(draw(&setup, "1F1B", 4, 4, seed));
    job.leaving_rank = seed % 4;
    job.leaving = WEFT_OK;
    job.stall_limit = 500000000; /* so that no other rank is that late, on a loaded machine too */
    const enum weft_status status = thread_job_run(&job, &error);
    assert_int_equal(status, WEFT_ERR_STALLED);
    assert_ptr_equal(thread_job_judge(&job, status, &error), NULL);
    (void)snprintf(rank, sizeof rank, "rank %u, which never joined", seed % 4);
    assert_non_null(strstr(error.message, rank));
    trial_setup_finish(&setup);
  }
}

/* The limit is so short that many ranks give up at once, and may miss others that
 * are only late: whatever they say, it is the same. */
static void all_stall_at_once(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 100; seed++) {
    struct trial_setup setup;
    struct weft_error error = {.status = WEFT_OK};
    assert_true(draw(&setup, "GPipe", 8, 2, seed));
    job.leaving_rank = seed % 8;
    job.leaving = WEFT_OK;
    job.stall_limit = 300000;
    const enum weft_status status = thread_job_run(&job, &error);
    assert_int_equal(status, WEFT_ERR_STALLED);
    assert_ptr_equal(thread_job_judge(&job, status, &error), NULL);
    trial_setup_finish(&setup);
  }
}

/* ---- From another thread ---- */

struct outsider {
  struct weft_comm *world;
  pthread_t thread;
  int flag; /* atomic */
  bool dump_failed;
};

static void pause_for(long nanoseconds) {
  const struct timespec time = {.tv_nsec = nanoseconds};
  (void)nanosleep(&time, NULL);
}

static bool is_raised(void *context) {
  return __atomic_load_n(&((struct outsider *)context)->flag, __ATOMIC_RELAXED) != 0;
}

static void *raise_flag(void *context) {
  struct outsider *outsider = context;
  pause_for(5000000);
  __atomic_store_n(&outsider->flag, 1, __ATOMIC_RELAXED);
  return NULL;
}

static void *end_world(void *context) {
  struct outsider *outsider = context;
  struct weft_transport *transport = weft_comm_endpoint(outsider->world, 1);
  struct weft_failure failure = {.rank = UINT32_MAX};
  (void)weft_fail(&failure.error, WEFT_ERR_CANCELLED, "", "enough");
  pause_for(5000000);
  (transport->ops->fail)(transport, &failure); /* fail() is cmocka's */
  return NULL;
}

/* What all ranks are doing, while they do it. */
static void *watch_world(void *context) {
  struct outsider *outsider = context;
  for (int k = 0; k < 20; k++) {
    struct weft_text text = {0};
    struct weft_error error;
    pause_for(200000);
    if (weft_hang_dump(weft_comm_endpoint(outsider->world, 0), &text, &error) < 0) {
      outsider->dump_failed = true;
    }
    weft_text_finish(&text);
  }
  return end_world(context);
}

static void *(*outsider_main)(void *);

static void start_outsider(void *context, struct weft_comm *world) {
  struct outsider *outsider = context;
  outsider->world = world;
  assert_int_equal(pthread_create(&outsider->thread, NULL, outsider_main, outsider), 0);
}

static void join_outsider(void *context) {
  assert_int_equal(pthread_join(((struct outsider *)context)->thread, NULL), 0);
}

/* A run that would last for days, ended from outside. */
static void run_until_told(void *(*thread_main)(void *), const char *schedule,
                           const char *expected) {
  for (uint32_t seed = 0; seed < 3; seed++) {
    struct trial_setup setup;
    struct outsider outsider = {.flag = 0};
    struct weft_error error = {.status = WEFT_OK};
    assert_true(draw(&setup, schedule, 4, 8, seed));
    outsider_main = thread_main;
    job.steps = ENDLESS;
    job.interrupted = is_raised;
    job.interrupted_context = &outsider;
    job.on_start = start_outsider;
    job.on_end = join_outsider;
    job.on_context = &outsider;
    const enum weft_status status = thread_job_run(&job, &error);
    assert_false(outsider.dump_failed);
    assert_int_equal(status, WEFT_ERR_CANCELLED);
    assert_ptr_equal(thread_job_judge(&job, status, &error), NULL);
    assert_non_null(strstr(error.message, expected));
    trial_setup_finish(&setup);
  }
}

static void interrupted_from_outside(void **state) {
  (void)state;
  run_until_told(raise_flag, "1F1B", "was asked to stop");
}

static void failed_from_outside(void **state) {
  (void)state;
  run_until_told(end_world, "InterleavedZeroBubble", "enough");
}

static void watched_from_outside(void **state) {
  (void)state;
  run_until_told(watch_world, "ZBH1", "enough");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_schedule),      cmocka_unit_test(a_stage_fails),
      cmocka_unit_test(a_rank_leaves),       cmocka_unit_test(a_rank_leaves_silently),
      cmocka_unit_test(all_stall_at_once),   cmocka_unit_test(interrupted_from_outside),
      cmocka_unit_test(failed_from_outside), cmocka_unit_test(watched_from_outside),
  };
  (void)alarm(WATCHDOG_SECONDS); /* the net below the stall limits */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
