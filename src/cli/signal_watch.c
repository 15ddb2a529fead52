/* Looks at the flag now and then, and fails the world when it is up. */
#include "cli/signal_watch.h"

#include <stdio.h>

#include "cli/interrupt.h"

enum { LOOK_EVERY_NS = 20 * 1000 * 1000 };

static void tell_all(struct weft_transport *transport) {
  struct weft_failure failure = {.rank = transport->rank, .error = {.status = WEFT_ERR_CANCELLED}};
  (void)snprintf(failure.error.message, sizeof failure.error.message, "stopped by %s",
                 weft_cli_signal_name(weft_cli_interrupt_signal()));
  transport->ops->fail(transport, &failure);
}

static void *look(void *argument) {
  struct weft_cli_signal_watch *watch = argument;
  const struct timespec time = {.tv_nsec = LOOK_EVERY_NS};
  while (weft_cli_interrupt_signal() == 0 && !weft_cli_watch_thread_wait(&watch->thread, time)) {
  }
  if (weft_cli_interrupt_signal() != 0) {
    tell_all(watch->transport);
  }
  return NULL;
}

void weft_cli_signal_watch_begin(struct weft_cli_signal_watch *watch,
                                 struct weft_transport *transport) {
  *watch = (struct weft_cli_signal_watch){.transport = transport};
  weft_cli_watch_thread_begin(&watch->thread, look, watch);
}

void weft_cli_signal_watch_end(struct weft_cli_signal_watch *watch) {
  weft_cli_watch_thread_end(&watch->thread);
}
