/* A thread that waits beside the rank's own, until it is told that it need not any more. */
#ifndef CLI_WATCH_THREAD_H
#define CLI_WATCH_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

struct weft_cli_watch_thread {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool over; /* under the lock */
  bool started;
};

/* Without the thread, where none can be started, nobody watches. */
void weft_cli_watch_thread_begin(struct weft_cli_watch_thread *watch, void *(*look)(void *),
                                 void *context);
/* It is over; returns when the thread has ended. */
void weft_cli_watch_thread_end(struct weft_cli_watch_thread *watch);

/* For the thread: waits that long, or until it is over. Returns whether it is. */
bool weft_cli_watch_thread_wait(struct weft_cli_watch_thread *watch, struct timespec time);

#endif
