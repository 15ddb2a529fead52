/* A thread that tells all ranks when a signal has come (cli/interrupt.h): ranks that wait
 * for each other do not look at flags. */
#ifndef CLI_SIGNAL_WATCH_H
#define CLI_SIGNAL_WATCH_H

#include <weft/transport.h>

#include "cli/watch_thread.h"

struct weft_cli_signal_watch {
  struct weft_cli_watch_thread thread;
  struct weft_transport *transport;
};

/* Without the thread, where none can be started, ranks notice when they next look. */
void weft_cli_signal_watch_begin(struct weft_cli_signal_watch *watch,
                                 struct weft_transport *transport);
void weft_cli_signal_watch_end(struct weft_cli_signal_watch *watch);

#endif
