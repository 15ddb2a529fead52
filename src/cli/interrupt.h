/* SIGINT and SIGTERM while ranks run. The first one asks them to stop, and the
 * command says what was done; a second one ends the process at once (but not the same
 * one within 0.2 s, which is taken for the same wish). */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <signal.h>
#include <stdbool.h>

struct weft_cli_interrupt {
  struct sigaction before[2]; /* what to put back */
};

/* From here on until end() the two signals are only noted. One that is ignored,
 * as in the background of a shell, stays ignored. */
void weft_cli_interrupt_begin(struct weft_cli_interrupt *interrupt);
void weft_cli_interrupt_end(const struct weft_cli_interrupt *interrupt);

/* The signal that came since begin(), or 0. Any thread. */
int weft_cli_interrupt_signal(void);

/* For options.interrupted of a pipeline; `context` is not used. */
bool weft_cli_is_interrupted(void *context);

/* "SIGINT" or "SIGTERM". */
const char *weft_cli_signal_name(int number);

#endif
