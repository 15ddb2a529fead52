/* Signals while ranks run. A handler can reach nothing but global state, so this
 * file has the only piece of it in Weft: one number. */
#include "cli/interrupt.h"

#include <string.h>
#include <unistd.h>

static const int signals[2] = {SIGINT, SIGTERM};

/* Read by the threads of all ranks: by atomic accesses, which a handler may use. */
static volatile sig_atomic_t pending;

static void note(int number) {
  if (__atomic_load_n(&pending, __ATOMIC_RELAXED) != 0) {
    _exit(128 + number);
  }
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
