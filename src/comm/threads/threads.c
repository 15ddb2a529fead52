/* The world of the threads transport, and the operations of an endpoint other than messages
 * (threads_transfer.c): waiting and waking, time, exchanges, the agreed failure.
 *
 * No wake-up is lost: a thread with an event for a rank first increments the rank's counter and
 * then checks whether it sleeps; the rank first sets `sleeping` and then checks the counter. Both
 * are sequentially consistent, so at least one of them sees the other. Waking a rank that does
 * not sleep costs one atomic addition. */
#include "comm/threads/threads.h"

#include <assert.h>
#include <unistd.h>

#include "comm/rank_threads.h"

enum {
  SPIN_NS = 20 * 1000,  /* before sleeping, which costs about as much */
  SPINS_PER_CLOCK = 32, /* readings of the counter for each of the clock */
  YIELDS = 4            /* instead, where ranks outnumber cores */
};

/* ---- waiting and waking ---- */

void weft_endpoint_signal(struct weft_endpoint *endpoint) {
  assert(endpoint != NULL);
  (void)__atomic_fetch_add(&endpoint->shared.events, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&endpoint->shared.sleeping, __ATOMIC_SEQ_CST)) {
    pthread_mutex_lock(&endpoint->lock);
    pthread_cond_signal(&endpoint->wake);
    pthread_mutex_unlock(&endpoint->lock);
  }
}

static bool nothing_happened(const struct weft_endpoint *endpoint) {
  return __atomic_load_n(&endpoint->shared.events, __ATOMIC_SEQ_CST) == endpoint->seen;
}

static inline void relax_core(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* True when something happened, or the deadline has passed. */
static bool spin_until(const struct weft_endpoint *endpoint, int64_t until) {
  const int64_t start = weft_clock_ns();
  for (int64_t now = start; now < until && now - start < SPIN_NS; now = weft_clock_ns()) {
    for (int k = 0; k < SPINS_PER_CLOCK; k++) {
      if (!nothing_happened(endpoint)) {
        return true;
      }
      relax_core();
    }
  }
  return until - start < SPIN_NS;
}

/* True when something happened. */
static bool yield_core(struct weft_endpoint *endpoint) {
  for (int k = 0; k < YIELDS && weft_core_yield(&endpoint->yield); k++) {
    if (!nothing_happened(endpoint)) {
      return true;
    }
  }
  return false;
}

static void sleep_until(struct weft_endpoint *endpoint, int64_t until) {
  pthread_mutex_lock(&endpoint->lock);
  __atomic_store_n(&endpoint->shared.sleeping, 1, __ATOMIC_SEQ_CST);
  while (nothing_happened(endpoint)) {
    if (!weft_condition_wait(&endpoint->wake, &endpoint->lock, until)) {
      break; /* the deadline */
    }
  }
  __atomic_store_n(&endpoint->shared.sleeping, 0, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&endpoint->lock);
}

enum weft_status weft_endpoint_wait(struct weft_transport *transport, int64_t until,
                                    struct weft_error *error) {
  struct weft_endpoint *endpoint = (struct weft_endpoint *)transport;
  (void)error;
  if (!nothing_happened(endpoint) || until <= 0) {
    return WEFT_OK;
  }
  if (endpoint->threads->spins ? !spin_until(endpoint, until) : !yield_core(endpoint)) {
    sleep_until(endpoint, until);
  }
  return WEFT_OK;
}

/* ---- the other ops ---- */

static enum weft_status endpoint_progress(struct weft_transport *transport,
                                          struct weft_error *error) {
  struct weft_endpoint *endpoint = (struct weft_endpoint *)transport;
  const uint64_t events = __atomic_load_n(&endpoint->shared.events, __ATOMIC_SEQ_CST);
  WEFT_TRY(weft_world_check(endpoint->base.world, error));
  if (events != endpoint->seen) {
    endpoint->seen = events;
    weft_endpoint_match(endpoint);
  }
  return WEFT_OK;
}

static int64_t endpoint_now(struct weft_transport *transport) {
  (void)transport;
  return weft_clock_ns();
}

static void endpoint_fail(struct weft_transport *transport, const struct weft_failure *failure) {
  struct weft_threads *threads = ((struct weft_endpoint *)transport)->threads;
  if (weft_world_fail(&threads->world, failure)) {
    weft_world_wake_all(&threads->world);
    if (threads->has_barrier) {
      weft_step_barrier_wake(&threads->barrier);
    }
  }
}

static enum weft_status endpoint_step_barrier(struct weft_transport *transport, void *item,
                                              void (*drive)(void *const *items, uint32_t count),
                                              int64_t until, struct weft_error *error) {
  return weft_step_barrier_arrive(&((struct weft_endpoint *)transport)->threads->barrier,
                                  transport->rank, item, drive, until, error);
}

static void endpoint_set_undriven(struct weft_transport *transport) {
  weft_step_barrier_set_undriven(&((struct weft_endpoint *)transport)->threads->barrier,
                                 transport->rank);
}

static const struct weft_transport_ops endpoint_ops = {
    .name = "threads",
    .async_progress = true,
    .device_memory = true,
    .open = weft_endpoint_open,
    .post = weft_endpoint_post,
    .test = weft_endpoint_test,
    .cancel = weft_endpoint_cancel,
    .progress = endpoint_progress,
    .wait = weft_endpoint_wait,
    .now = endpoint_now,
    .exchange = weft_world_exchange,
    .exchanged = weft_world_exchanged,
    .fail = endpoint_fail,
    .get_failure = weft_world_get_failure,
    .rank_status = weft_world_rank_status,
    .group = weft_world_group,
};

/* ---- the world ---- */

static void wake_rank(struct weft_comm *comm, uint32_t rank) {
  assert(rank < ((struct weft_threads *)comm)->world.rank_count);
  weft_endpoint_signal(&((struct weft_threads *)comm)->endpoints[rank]);
}

static enum weft_status init_endpoints(struct weft_threads *threads, struct weft_error *error) {
  struct weft_world *world = &threads->world;
  threads->endpoints =
      weft_arena_allocate(&world->arena, world->rank_count, sizeof *threads->endpoints);
  WEFT_TRY(weft_arena_status(&world->arena, error));
  for (uint32_t r = 0; r < world->rank_count; r++) {
    struct weft_endpoint *endpoint = &threads->endpoints[r];
    endpoint->base = (struct weft_world_endpoint){
        .transport = {.ops = &threads->ops, .rank = r, .rank_count = world->rank_count},
        .world = world};
    endpoint->threads = threads;
    if (pthread_mutex_init(&endpoint->lock, NULL) != 0 || !weft_condition_init(&endpoint->wake)) {
      return weft_fail_memory(error, sizeof(pthread_mutex_t) + sizeof(pthread_cond_t));
    }
    threads->endpoint_count++;
  }
  return WEFT_OK;
}

static struct weft_threads *threads_of(struct weft_comm *comm) {
  assert(comm->kind->close == weft_threads_close);
  return (struct weft_threads *)comm;
}

void weft_threads_close(struct weft_comm *comm) {
  struct weft_threads *threads = threads_of(comm);
  for (uint32_t r = 0; r < threads->endpoint_count; r++) {
    weft_ends_close(&threads->endpoints[r].ends);
    pthread_mutex_destroy(&threads->endpoints[r].lock);
    pthread_cond_destroy(&threads->endpoints[r].wake);
  }
  if (threads->has_barrier) {
    weft_step_barrier_finish(&threads->barrier);
  }
  weft_world_finish(&threads->world);
  weft_array_free(threads->world.allocator, threads, 1, sizeof *threads);
}

enum weft_status weft_threads_open(const struct weft_comm_kind *kind,
                                   const struct weft_allocator *allocator,
                                   const struct weft_comm_options *options, struct weft_comm **out,
                                   struct weft_error *error) {
  assert(kind != NULL && options != NULL && out != NULL);
  struct weft_threads *threads = weft_array_allocate_zero(allocator, 1, sizeof *threads);
  if (threads == NULL) {
    return weft_fail_memory(error, sizeof *threads);
  }
  threads->comm.kind = kind;
  threads->ops = endpoint_ops;
  threads->ops.name = kind->info.name;
  if (kind->one_thread) {
    threads->ops.step_barrier = endpoint_step_barrier;
    threads->ops.set_undriven = endpoint_set_undriven;
  }
  threads->spins = (long)options->rank_count <= sysconf(_SC_NPROCESSORS_ONLN);
  enum weft_status status = weft_world_init(&threads->world, allocator, options->rank_count,
                                            &threads->comm, wake_rank, error);
  if (status != WEFT_OK) {
    weft_array_free(allocator, threads, 1, sizeof *threads);
    return status;
  }
  threads->has_barrier = kind->one_thread &&
                         weft_step_barrier_init(&threads->barrier, &threads->world, threads->spins);
  status = threads->has_barrier == kind->one_thread
               ? init_endpoints(threads, error)
               : weft_fail_memory(error, options->rank_count * sizeof(void *));
  if (status != WEFT_OK) {
    weft_threads_close(&threads->comm);
    return status;
  }
  *out = &threads->comm;
  return WEFT_OK;
}

struct weft_transport *weft_threads_endpoint(struct weft_comm *comm, uint32_t rank) {
  const struct weft_threads *threads = threads_of(comm);
  return rank < threads->world.rank_count ? &threads->endpoints[rank].base.transport : NULL;
}

enum weft_status weft_threads_run(struct weft_comm *comm, struct weft_transport *const *endpoints,
                                  weft_rank_main *rank_main, void *context,
                                  struct weft_error *error) {
  struct weft_threads *threads = threads_of(comm);
  const struct weft_rank_threads run = {.world = &threads->world,
                                        .barrier = threads->has_barrier ? &threads->barrier : NULL,
                                        .endpoints = endpoints,
                                        .rank_main = rank_main,
                                        .context = context};
  return weft_rank_threads_run(&run, error);
}

const struct weft_comm_kind weft_threads_kind = {
    .info = {.name = "threads"},
    .open = weft_threads_open,
    .close = weft_threads_close,
    .endpoint = weft_threads_endpoint,
    .run = weft_threads_run,
};
