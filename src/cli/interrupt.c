/* Signals while ranks run. A handler can reach nothing but global state, so this
 * file has the only piece of it in Weft: one number, and when it came. */
#include "cli/interrupt.h"

#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int signals[2] = {SIGINT, SIGTERM};

/* Read by the threads of all ranks: by atomic accesses, which a handler may use. */
static volatile sig_atomic_t pending;
static int64_t pending_ns; /* when it came */

/* The same signal again within this time is the same wish: a batch system that signals
 * every process of a job reaches a rank twice, by itself and through its guard. */
#define SAME_WISH_NS INT64_C(200000000)

static int64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void note(int number) {
  const int before = __atomic_load_n(&pending, __ATOMIC_RELAXED);
  const int64_t now = now_ns();
  if (before == number && now - __atomic_load_n(&pending_ns, __ATOMIC_RELAXED) < SAME_WISH_NS) {
    return;
  }
  if (before != 0) {
    _exit(128 + number);
  }
  __atomic_store_n(&pending_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&pending, number, __ATOMIC_RELAXED);
}

void weft_cli_interrupt_begin(struct weft_cli_interrupt *interrupt) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  __atomic_store_n(&pending, 0, __ATOMIC_RELAXED);
  for (unsigned k = 0; k < 2; k++) {
    (void)sigaction(signals[k], NULL, &interrupt->before[k]);
    if (interrupt->before[k].sa_handler != SIG_IGN) {
      (void)sigaction(signals[k], &action, NULL);
    }
  }
}

void weft_cli_interrupt_end(const struct weft_cli_interrupt *interrupt) {
  for (unsigned k = 0; k < 2; k++) {
    (void)sigaction(signals[k], &interrupt->before[k], NULL);
  }
}

int weft_cli_interrupt_signal(void) { return __atomic_load_n(&pending, __ATOMIC_RELAXED); }

bool weft_cli_is_interrupted(void *context) {
  (void)context;
  return weft_cli_interrupt_signal() != 0;
}

const char *weft_cli_signal_name(int number) { return number == SIGINT ? "SIGINT" : "SIGTERM"; }
