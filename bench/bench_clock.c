/* What benchmarks measure with. */
#include "bench/bench_clock.h"

#include <weft/support.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t weft_bench_now_ns(void) { return (uint64_t)weft_clock_ns(); }

uint64_t weft_bench_median(uint64_t *samples, size_t count) {
  for (size_t i = 1; i < count; i++) {
    const uint64_t sample = samples[i];
    size_t at = i;
    for (; at > 0 && samples[at - 1] > sample; at--) {
      samples[at] = samples[at - 1];
    }
    samples[at] = sample;
  }
  return count > 0 ? samples[(count - 1) / 2] : 0;
}

uint64_t weft_bench_cpu_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t weft_bench_stolen_ms(void) {
  uint64_t ticks = 0;
  FILE *file = fopen("/proc/stat", "r");
  if (file != NULL) {
    /* "cpu  user nice system idle iowait irq softirq steal ..." */
    if (fscanf(file, "cpu %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &ticks) != 1) {
      ticks = 0;
    }
    (void)fclose(file);
  }
  return ticks * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

uint64_t weft_bench_system_ns(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) {
    return 0;
  }
  return (uint64_t)usage.ru_stime.tv_sec * UINT64_C(1000000000) +
         (uint64_t)usage.ru_stime.tv_usec * 1000;
}

static void *count(void *context, void *pointer, size_t old_size, size_t new_size) {
  struct weft_bench_counter *counter = context;
  void *result = counter->inner->reallocate(counter->inner->context, pointer, old_size, new_size);
  if (result == NULL && new_size > 0) {
    return NULL;
  }
  /* While a block moves, old and new may exist both. */
  if (counter->bytes_now + new_size > counter->bytes_peak) {
    counter->bytes_peak = counter->bytes_now + new_size;
  }
  counter->bytes_now += new_size;
  counter->bytes_now -= pointer != NULL ? old_size : 0;
  return result;
}

void weft_bench_counter_init(struct weft_bench_counter *counter,
                             const struct weft_allocator *inner) {
  assert(counter != NULL);
  *counter = (struct weft_bench_counter){.allocator = {.reallocate = count, .context = counter},
                                         .inner = inner};
}

/* ---- Starting ---- */

/* Time of one start; 0 when it failed. */
static uint64_t start_once(const char *program) {
  const uint64_t begin = weft_bench_now_ns();
  const pid_t child = fork();
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    char name[] = "weft", version[] = "--version";
    char *const words[] = {name, version, NULL};
    if (nowhere >= 0 && dup2(nowhere, STDOUT_FILENO) >= 0) {
      (void)execv(program, words);
    }
    _exit(127);
  }
  int status = 0;
  pid_t ended;
  do {
    ended = child > 0 ? waitpid(child, &status, 0) : -1;
  } while (ended < 0 && child > 0 && errno == EINTR);
  const bool fine = ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return fine ? weft_bench_now_ns() - begin : 0;
}

uint64_t weft_bench_startup_ns(const char *program) {
  enum { STARTS = 20 };
  uint64_t samples[STARTS];
  (void)start_once(program); /* warm-up */
  for (size_t i = 0; i < STARTS; i++) {
    samples[i] = start_once(program);
    if (samples[i] == 0) {
      return 0;
    }
  }
  return weft_bench_median(samples, STARTS);
}
