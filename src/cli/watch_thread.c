/* Beginning and end of a thread that watches. */
#include "cli/watch_thread.h"

#include <errno.h>

enum { SECOND_NS = 1000 * 1000 * 1000 };

void weft_cli_watch_thread_begin(struct weft_cli_watch_thread *watch, void *(*look)(void *),
                                 void *context) {
  *watch = (struct weft_cli_watch_thread){.over = false};
  (void)pthread_mutex_init(&watch->lock, NULL);
  (void)pthread_cond_init(&watch->changed, NULL);
  watch->started = pthread_create(&watch->thread, NULL, look, context) == 0;
}

void weft_cli_watch_thread_end(struct weft_cli_watch_thread *watch) {
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

bool weft_cli_watch_thread_wait(struct weft_cli_watch_thread *watch, struct timespec time) {
  struct timespec at;
  int result = 0;
  (void)clock_gettime(CLOCK_REALTIME, &at);
  at.tv_sec += time.tv_sec + (at.tv_nsec + time.tv_nsec) / SECOND_NS;
  at.tv_nsec = (at.tv_nsec + time.tv_nsec) % SECOND_NS;
  (void)pthread_mutex_lock(&watch->lock);
  while (!watch->over && result != ETIMEDOUT) {
    result = pthread_cond_timedwait(&watch->changed, &watch->lock, &at);
  }
  const bool over = watch->over;
  (void)pthread_mutex_unlock(&watch->lock);
  return over;
}
