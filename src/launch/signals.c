/* SIGINT, SIGTERM and SIGHUP while ranks run. A handler reaches global state only: one number, and
 * when it arrived. */
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "comm/rank_threads.h"

static const struct {
  int number;
  const char *name;
} signals[] = {{SIGINT, "SIGINT"},   {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"},
               {SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"},
               {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGILL, "SIGILL"},
               {SIGQUIT, "SIGQUIT"}, {SIGXCPU, "SIGXCPU"}, {SIGSYS, "SIGSYS"}};
enum { SIGNALS = 3 }; /* the first, which are recorded */

/* Atomic accesses: a handler writes, threads of all ranks read. */
static volatile sig_atomic_t pending;
static int64_t pending_ns;
static struct sigaction actions_before[SIGNALS];
static bool is_recording;

#define SAME_REQUEST_NS INT64_C(200000000)

static void record_signal(int number) {
  const int before = __atomic_load_n(&pending, __ATOMIC_RELAXED);
  const int64_t now = weft_clock_ns();
  if (before == number && now - __atomic_load_n(&pending_ns, __ATOMIC_RELAXED) < SAME_REQUEST_NS) {
    return;
  }
  if (before != 0) {
    _exit(128 + number);
  }
  __atomic_store_n(&pending_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&pending, number, __ATOMIC_RELAXED);
}

void weft_launch_signals_begin(void) {
  struct sigaction action;
  assert(!is_recording);
  is_recording = true;
  memset(&action, 0, sizeof action);
  action.sa_handler = record_signal;
  action.sa_flags = SA_RESTART;
  __atomic_store_n(&pending, 0, __ATOMIC_RELAXED);
  for (unsigned k = 0; k < SIGNALS; k++) {
    (void)sigaction(signals[k].number, NULL, &actions_before[k]);
    if (actions_before[k].sa_handler != SIG_IGN) {
      (void)sigaction(signals[k].number, &action, NULL);
    }
  }
}

void weft_launch_signals_end(void) {
  assert(is_recording);
  is_recording = false;
  for (unsigned k = 0; k < SIGNALS; k++) {
    (void)sigaction(signals[k].number, &actions_before[k], NULL);
  }
}

int weft_launch_signal(void) { return __atomic_load_n(&pending, __ATOMIC_RELAXED); }

const char *weft_launch_signal_name(int number) {
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(signals); k++) {
    if (signals[k].number == number) {
      return signals[k].name;
    }
  }
  return "an uncommon signal";
}

bool weft_launch_is_interrupted(void *context) {
  (void)context;
  return weft_launch_signal() != 0;
}

/* ---- The thread that polls for it ---- */

enum { POLL_NS = 20 * 1000 * 1000 };

struct weft_launch_watch {
  struct weft_transport *transport;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool over; /* under the lock */
};

static void *watch_signals(void *context) {
  struct weft_launch_watch *watch = context;
  (void)pthread_mutex_lock(&watch->lock);
  while (!watch->over && weft_launch_signal() == 0) {
    (void)weft_condition_wait(&watch->changed, &watch->lock, weft_clock_ns() + POLL_NS);
  }
  (void)pthread_mutex_unlock(&watch->lock);
  if (weft_launch_signal() != 0) {
    struct weft_failure failure = {.rank = watch->transport->rank,
                                   .error = {.status = WEFT_ERR_CANCELLED}};
    (void)snprintf(failure.error.message, sizeof failure.error.message, "stopped by %s",
                   weft_launch_signal_name(weft_launch_signal()));
    watch->transport->ops->fail(watch->transport, &failure);
  }
  return NULL;
}

static void free_watch(struct weft_launch_watch *watch) {
  (void)pthread_cond_destroy(&watch->changed);
  (void)pthread_mutex_destroy(&watch->lock);
  weft_array_free(NULL, watch, 1, sizeof *watch);
}

struct weft_launch_watch *weft_launch_watch_begin(struct weft_transport *transport) {
  assert(transport != NULL);
  struct weft_launch_watch *watch = weft_array_allocate_zero(NULL, 1, sizeof *watch);
  if (watch == NULL) {
    return NULL;
  }
  watch->transport = transport;
  (void)pthread_mutex_init(&watch->lock, NULL);
  (void)weft_condition_init(&watch->changed);
  if (pthread_create(&watch->thread, NULL, watch_signals, watch) != 0) {
    free_watch(watch);
    return NULL;
  }
  return watch;
}

void weft_launch_watch_end(struct weft_launch_watch *watch) {
  if (watch != NULL) {
    (void)pthread_mutex_lock(&watch->lock);
    watch->over = true;
    (void)pthread_cond_signal(&watch->changed);
    (void)pthread_mutex_unlock(&watch->lock);
    (void)pthread_join(watch->thread, NULL);
    free_watch(watch);
  }
}
