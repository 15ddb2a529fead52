/* Random small jobs with a thread per rank: none of them hangs, and all results
 * are right bit for bit. WEFT_SEED=n runs one, WEFT_TEST_SEEDS=n so many: test-long more than test.
 * Also under ThreadSanitizer. */
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support_seeds.h"
#include "support_thread_job.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define JOBS 1000u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define JOBS 1000u
#endif
#endif
#ifndef JOBS
#define JOBS 2500u
#endif

enum { JOB_SECONDS = 60, RANKS_MAX = 4 };

static volatile sig_atomic_t present_job;

/* The net below the stall limit: says which job it is, and ends. */
static void job_hangs(int number) {
  char line[] = "job 000000 hangs: WEFT_SEED runs it alone\n";
  unsigned job = (unsigned)present_job;
  (void)number;
  for (char *digit = line + 9; digit > line + 3; digit--) {
    *digit = (char)('0' + job % 10);
    job /= 10;
  }
  (void)!write(STDERR_FILENO, line, sizeof line - 1);
  _exit(99);
}

/* The job of a seed; now and then with slow stages and slow messages. */
static void draw(struct trial_setup *setup, struct thread_job *job, uint64_t seed) {
  trial_draw(setup, seed, FAULT_NONE);
  thread_job_init(job, setup);
  job->stage_time_max = seed % 8 == 1 ? 20000 : 0;
  job->delay_max = seed % 8 == 2 ? 20000 : 0;
}

static bool run_job(uint64_t seed) {
  static struct thread_job job; /* large */
  struct trial_setup setup;
  struct weft_error error = {.status = WEFT_OK};
  draw(&setup, &job, seed);
  const bool fits = setup.program->rank_count <= RANKS_MAX;
  if (fits) {
    present_job = (sig_atomic_t)seed;
    (void)alarm(JOB_SECONDS);
    const enum weft_status status = thread_job_run(&job, &error);
    (void)alarm(0);
    const char *complaint = thread_job_judge(&job, status, &error);
    if (status != WEFT_OK || complaint != NULL) {
      fail_msg("job %" PRIu64 ", %s: %s", seed, setup.name,
               status != WEFT_OK ? error.message : complaint);
    }
  }
  trial_setup_finish(&setup);
  return fits;
}

static void no_job_hangs(void **state) {
  (void)state;
  const char *chosen = getenv("WEFT_SEED");
  const uint32_t count = test_seeds(JOBS);
  uint32_t jobs = 0;
  (void)signal(SIGALRM, job_hangs);
  if (chosen != NULL) {
    assert_true(run_job(strtoull(chosen, NULL, 10)));
    return;
  }
  for (uint64_t seed = 0; jobs < count; seed++) {
    jobs += run_job(seed);
  }
  print_message("%u jobs\n", jobs);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(no_job_hangs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
