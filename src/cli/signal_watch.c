/* Looks at the flag now and then, and fails the world when it is up. */
#include "cli/signal_watch.h"

#include <stdio.h>
#include <time.h>

#include "cli/interrupt.h"

enum { LOOK_EVERY_NS = 20 * 1000 * 1000, SECOND_NS = 1000 * 1000 * 1000 };

static struct timespec next_look(void) {
  struct timespec at;
  (void)clock_gettime(CLOCK_REALTIME, &at);
  at.tv_nsec += LOOK_EVERY_NS;
  if (at.tv_nsec >= SECOND_NS) {
    at.tv_sec++;
    at.tv_nsec -= SECOND_NS;
  }
  return at;
}

static void tell_all(struct weft_transport *transport) {
  struct weft_failure failure = {.rank = transport->rank, .error = {.status = WEFT_ERR_CANCELLED}};
  (void)snprintf(failure.error.message, sizeof failure.error.message, "stopped by %s",
                 weft_cli_signal_name(weft_cli_interrupt_signal()));
  transport->ops->fail(transport, &failure);
}

static void *look(void *argument) {
  struct weft_cli_signal_watch *watch = argument;
  (void)pthread_mutex_lock(&watch->lock);
  while (!watch->over && weft_cli_interrupt_signal() == 0) {
    const struct timespec at = next_look();
    (void)pthread_cond_timedwait(&watch->changed, &watch->lock, &at);
  }
  (void)pthread_mutex_unlock(&watch->lock);
  if (weft_cli_interrupt_signal() != 0) {
    tell_all(watch->transport);
  }
  return NULL;
}

void weft_cli_signal_watch_begin(struct weft_cli_signal_watch *watch,
                                 struct weft_transport *transport) {
  *watch = (struct weft_cli_signal_watch){.transport = transport};
  (void)pthread_mutex_init(&watch->lock, NULL);
  (void)pthread_cond_init(&watch->changed, NULL);
  watch->started = pthread_create(&watch->thread, NULL, look, watch) == 0;
}

void weft_cli_signal_watch_end(struct weft_cli_signal_watch *watch) {
  if (watch->started) {
    (void)pthread_mutex_lock(&watch->lock);
    watch->over = true;
    (void)pthread_cond_signal(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
    (void)pthread_join(watch->thread, NULL);
  }
  (void)pthread_cond_destroy(&watch->changed);
  (void)pthread_mutex_destroy(&watch->lock);
}
