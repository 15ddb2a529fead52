/* Threads where there are none: starting one fails, and the planner's calling thread then does the
 * work itself (src/plan/improve/worker_threads.h). Without a second thread no lock is ever taken. */
#ifndef PLAYGROUND_PTHREAD_H
#define PLAYGROUND_PTHREAD_H

#include <errno.h>
#include <time.h>

typedef int pthread_t, pthread_attr_t, pthread_mutex_t, pthread_mutexattr_t, pthread_cond_t,
    pthread_condattr_t;

static inline int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                 void *(*start)(void *), void *context) {
  (void)thread, (void)attributes, (void)start, (void)context;
  return EAGAIN;
}

static inline int pthread_join(pthread_t thread, void **result) {
  (void)thread, (void)result;
  return ESRCH;
}

#define PLAYGROUND_NOTHING(NAME, ...) \
  static inline int NAME(__VA_ARGS__) { return 0; }
PLAYGROUND_NOTHING(pthread_mutex_init, pthread_mutex_t *m __attribute__((unused)),
                   const pthread_mutexattr_t *a __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_mutex_destroy, pthread_mutex_t *m __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_mutex_lock, pthread_mutex_t *m __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_mutex_unlock, pthread_mutex_t *m __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_condattr_init, pthread_condattr_t *a __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_condattr_setclock, pthread_condattr_t *a __attribute__((unused)),
                   clockid_t c __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_condattr_destroy, pthread_condattr_t *a __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_cond_init, pthread_cond_t *c __attribute__((unused)),
                   const pthread_condattr_t *a __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_cond_destroy, pthread_cond_t *c __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_cond_signal, pthread_cond_t *c __attribute__((unused)))
PLAYGROUND_NOTHING(pthread_cond_timedwait, pthread_cond_t *c __attribute__((unused)),
                   pthread_mutex_t *m __attribute__((unused)),
                   const struct timespec *t __attribute__((unused)))
#undef PLAYGROUND_NOTHING

#endif
