/* The registry of transports, weft_comm_run(), weft_allgather() and weft_barrier(), on the
 * transports whose ranks are all in this process.
 * Also under ThreadSanitizer. */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "cli/args/option_table.h"
#include "support_conformance.h"
#include "support_memory.h"

enum { RANKS = 5 };

static struct weft_comm *open_world(const char *name, uint32_t rank_count, uint64_t seed) {
  struct weft_comm_options options = weft_comm_options_default();
  struct weft_comm *comm = NULL;
  struct weft_error error;
  options.rank_count = rank_count;
  options.seed = seed;
  options.latency_ticks = 7;
  options.delay_ticks_max = 20;
  if (weft_comm_open(NULL, name, &options, &comm, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return comm;
}

/* The names of all transports whose ranks are in one process. */
static const char *const in_process[] = {"loopback", "threads"};

/* ---- The registry ---- */

static void the_table(void **state) {
  (void)state;
  uint32_t count = 0;
  while (weft_comm_transport(count) != NULL) {
    const struct weft_comm_info *info = weft_comm_transport(count++);
    assert_ptr_equal(weft_comm_find(info->name), info);
  }
  assert_int_equal(count, 5);
  assert_true(weft_comm_find("nccl")->own_sums && !weft_comm_find("mpi")->own_sums);
  assert_true(weft_comm_find("loopback")->virtual_time);
  assert_true(weft_comm_find("mpi")->process_per_rank);
  assert_null(weft_comm_find("pigeons"));
}

/* The command's option has the same names in the same order. */
static void the_option(void **state) {
  (void)state;
  char names[128];
  size_t used = 0;
  for (uint32_t k = 0; weft_comm_transport(k) != NULL; k++) {
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", k > 0 ? "|" : "",
                             weft_comm_transport(k)->name);
    assert_true(used < sizeof names);
  }
  assert_string_equal(weft_cli_option_at(WEFT_CLI_OPTION_TRANSPORT)->choices, names);
}

static void refusals(void **state) {
  (void)state;
  struct weft_comm *comm = NULL;
  struct weft_error error;
  assert_int_equal(weft_comm_open(NULL, "pigeons", NULL, &comm, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message,
                      "no transport is called 'pigeons'; there are loopback, threads, cuda, mpi, "
                      "nccl");
  struct weft_comm_options odd = weft_comm_options_default();
  odd.sums = (enum weft_comm_sums)2;
  assert_int_equal(weft_comm_open(NULL, "threads", &odd, &comm, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message, "weft_comm_options.sums is 2, which does not exist");
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(in_process); k++) {
    assert_int_equal(weft_comm_open(NULL, in_process[k], NULL, &comm, &error), WEFT_ERR_USAGE);
    comm = open_world(in_process[k], 2, 1);
    assert_int_equal(weft_comm_local(comm)->rank_count, 2);
    assert_ptr_equal(weft_comm_local(comm), weft_comm_endpoint(comm, 0));
    assert_null(weft_comm_endpoint(comm, 2));
    assert_string_equal(weft_comm_info(comm)->name, in_process[k]);
    weft_comm_close(comm);
  }
  weft_comm_close(NULL);
}

/* ---- Collectives ---- */

static unsigned char byte_of(uint32_t rank, size_t at) {
  return (unsigned char)(rank * 37 + at * 11 + at / 251);
}

static enum weft_status gather_all_sizes(void *context, struct weft_transport *transport,
                                         struct weft_error *error) {
  static const size_t sizes[] = {0, 1, 127, 128, 129, 256, 1000, 10000};
  (void)context;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(sizes); k++) {
    const size_t size = sizes[k];
    unsigned char *mine = malloc(size + 1);
    unsigned char *all = malloc(size * transport->rank_count + 1);
    for (size_t at = 0; at < size; at++) {
      mine[at] = byte_of(transport->rank, at);
    }
    const enum weft_status status = weft_allgather(transport, mine, all, size, 0, error);
    bool same = status == WEFT_OK;
    for (uint32_t r = 0; r < transport->rank_count && same; r++) {
      for (size_t at = 0; at < size && same; at++) {
        same = all[r * size + at] == byte_of(r, at);
      }
    }
    free(mine);
    free(all);
    WEFT_TRY(status);
    CONFORMANCE_CHECK(error, same);
    WEFT_TRY(weft_barrier(transport, 0, error));
  }
  return WEFT_OK;
}

static void allgather_of_any_size(void **state) {
  (void)state;
  static const uint32_t counts[] = {1, 2, 5, 40};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(in_process); k++) {
    for (size_t n = 0; n < WEFT_ARRAY_LENGTH(counts); n++) {
      struct weft_comm *comm = open_world(in_process[k], counts[n], n);
      struct weft_error error;
      if (weft_comm_run(comm, gather_all_sizes, NULL, &error) != WEFT_OK) {
        fail_msg("%s: %s", in_process[k], error.message);
      }
      weft_comm_close(comm);
    }
  }
}

/* Rank 2 does not come: it waits until the world fails. */
static enum weft_status one_is_missing(void *context, struct weft_transport *transport,
                                       struct weft_error *error) {
  const int64_t *limit = context;
  if (transport->rank != 2) {
    return weft_barrier(transport, *limit, error);
  }
  struct weft_rank_status *own = transport->ops->rank_status(transport, 2);
  __atomic_store_n(&own->phase, (uint32_t)WEFT_PHASE_COMPUTE, __ATOMIC_RELAXED);
  if (*limit % 2 != 0) {
    __atomic_store_n(&own->flags, WEFT_RANK_STOPPED, __ATOMIC_RELAXED);
  }
  for (;;) {
    WEFT_TRY(transport->ops->progress(transport, error));
    WEFT_TRY(transport->ops->wait(transport, WEFT_TIME_NEVER, error));
  }
}

static void barrier_with_a_limit(void **state) {
  (void)state;
  int64_t limits[] = {500, 50 * 1000 * 1000};
  static const char *const waited[] = {"500 ticks", "0.1 s"};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(in_process); k++) {
    struct weft_comm *comm = open_world(in_process[k], 4, 1);
    struct weft_error error;
    assert_int_equal(weft_comm_run(comm, one_is_missing, &limits[k], &error), WEFT_ERR_STALLED);
    assert_non_null(strstr(error.message, "rank 2 has not"));
    assert_non_null(strstr(error.message, waited[k]));
    weft_comm_close(comm);
    comm = open_world(in_process[k], 4, 1);
    limits[k]++; /* odd: its process is stopped */
    assert_int_equal(weft_comm_run(comm, one_is_missing, &limits[k], &error), WEFT_ERR_STALLED);
    assert_non_null(strstr(error.message, "rank 2, which is stopped, by a signal or a debugger"));
    assert_string_equal(error.hint, "SIGCONT resumes rank 2's process");
    weft_comm_close(comm);
  }
}

/* ---- Ranks that do not return as they should ---- */

/* Ranks 0 and 1 wait for each other, and the others return. */
static enum weft_status wait_in_a_cycle(void *context, struct weft_transport *transport,
                                        struct weft_error *error) {
  (void)context;
  if (transport->rank > 1) {
    return WEFT_OK;
  }
  struct weft_rank_status *own = transport->ops->rank_status(transport, transport->rank);
  __atomic_store_n(&own->peer, 1 - transport->rank, __ATOMIC_RELAXED);
  for (;;) {
    WEFT_TRY(transport->ops->progress(transport, error));
    WEFT_TRY(transport->ops->wait(transport, WEFT_TIME_NEVER, error));
  }
}

static void a_deadlock_is_reported(void **state) {
  (void)state;
  struct weft_comm *comm = open_world("loopback", RANKS, 1);
  struct weft_error error;
  assert_int_equal(weft_comm_run(comm, wait_in_a_cycle, NULL, &error), WEFT_ERR_STALLED);
  assert_string_equal(error.message,
                      "no rank can continue, and no message is in flight: "
                      "rank 0 waits for rank 1, rank 1 waits for rank 0");
  weft_comm_close(comm);
}

enum ending { FAILS, EXITS };

struct endings {
  struct weft_comm *comm;
  uint32_t rank; /* that ends so */
  enum ending ending;
  uint32_t notified; /* ranks that saw it */
};

static enum weft_status rank_that_ends(void *context, struct weft_transport *transport,
                                       struct weft_error *error) {
  struct endings *endings = context;
  if (transport->rank == endings->rank) {
    if (endings->ending == EXITS) {
      pthread_exit(NULL);
    }
    return weft_fail(error, WEFT_ERR_STAGE, "", "no weights");
  }
  const enum weft_status status = weft_barrier(transport, 0, error);
  (void)__atomic_fetch_add(&endings->notified, 1, __ATOMIC_RELAXED);
  return status;
}

static void *run_in_a_thread(void *argument) {
  struct endings *endings = argument;
  struct weft_error error;
  (void)weft_comm_run(endings->comm, rank_that_ends, endings, &error);
  return NULL;
}

static void a_rank_fails_or_vanishes(void **state) {
  (void)state;
  for (uint32_t n = 0; n < 2 * RANKS * WEFT_ARRAY_LENGTH(in_process); n++) {
    struct weft_failure failure;
    struct endings endings = {.rank = n / 2 % RANKS, .ending = n % 2 ? EXITS : FAILS};
    struct weft_transport *transport;
    pthread_t thread;
    endings.comm = open_world(in_process[n / 2 / RANKS], RANKS, n);
    assert_int_equal(pthread_create(&thread, NULL, run_in_a_thread, &endings), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    transport = weft_comm_local(endings.comm);
    assert_true(transport->ops->get_failure(transport, &failure));
    assert_int_equal(failure.rank, endings.rank);
    assert_int_equal(failure.error.status,
                     endings.ending == FAILS ? WEFT_ERR_STAGE : WEFT_ERR_PEER);
    assert_int_equal(endings.notified, RANKS - 1);
    weft_comm_close(endings.comm);
  }
}

static enum weft_status fail_from_outside(void *context, struct weft_transport *transport,
                                          struct weft_error *error) {
  bool *begun = context;
  __atomic_store_n(begun, true, __ATOMIC_RELAXED);
  for (int64_t until = 1;; until++) {
    WEFT_TRY(transport->ops->progress(transport, error));
    WEFT_TRY(transport->ops->wait(transport, transport->ops->now(transport) + until, error));
  }
}

struct outsider {
  struct weft_transport *transport;
  bool begun;
};

static void *fail_soon(void *argument) {
  struct outsider *outsider = argument;
  struct weft_failure failure = {.rank = UINT32_MAX};
  while (!__atomic_load_n(&outsider->begun, __ATOMIC_RELAXED)) {
  }
  (void)weft_fail(&failure.error, WEFT_ERR_CANCELLED, "", "stopped from outside");
  (outsider->transport->ops->fail)(outsider->transport, &failure); /* cmocka has a macro */
  return NULL;
}

/* A thread that is no rank ends a run: a signal watch does. */
static void any_thread_may_fail_the_world(void **state) {
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(in_process); k++) {
    struct weft_comm *comm = open_world(in_process[k], RANKS, 3);
    struct outsider outsider = {.transport = weft_comm_local(comm)};
    struct weft_error error;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_soon, &outsider), 0);
    assert_int_equal(weft_comm_run(comm, fail_from_outside, &outsider.begun, &error),
                     WEFT_ERR_CANCELLED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    weft_comm_close(comm);
  }
}

/* Stacks that no machine has room for. */
static void threads_cannot_be_started(void **state) {
  (void)state;
  pthread_attr_t before, huge;
  assert_int_equal(pthread_getattr_default_np(&before), 0);
  assert_int_equal(pthread_attr_init(&huge), 0);
  assert_int_equal(pthread_attr_setstacksize(&huge, (size_t)1 << 50), 0);
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(in_process); k++) {
    struct weft_comm *comm = open_world(in_process[k], 3, 1);
    struct weft_error error;
    assert_int_equal(pthread_setattr_default_np(&huge), 0);
    assert_int_equal(weft_comm_run(comm, gather_all_sizes, NULL, &error), WEFT_ERR_SYSTEM);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    assert_non_null(strstr(error.message, "rank 1 of 3"));
    weft_comm_close(comm);
  }
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they reserve terabytes */
static enum weft_status count_call(void *context, struct weft_transport *transport,
                                   struct weft_error *error) {
  (void)transport, (void)error;
  (void)__atomic_fetch_add((uint32_t *)context, 1, __ATOMIC_RELAXED);
  return WEFT_OK;
}

/* Room for some stacks and not for all: no rank begins. */
static void some_threads_cannot_be_started(void **state) {
  enum { STACK = 1 << 28, FIT = 3, ALL = 8 };
  struct rlimit before, limit;
  unsigned long pages;
  pthread_attr_t usual, large;
  (void)state;
  FILE *file = fopen("/proc/self/statm", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%lu", &pages), 1);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(pthread_getattr_default_np(&usual), 0);
  assert_int_equal(pthread_attr_init(&large), 0);
  assert_int_equal(pthread_attr_setstacksize(&large, STACK), 0);
  assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(in_process); k++) {
    struct weft_comm *comm = open_world(in_process[k], ALL, 1);
    struct weft_error error;
    uint32_t calls = 0;
    limit = before;
    limit.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)FIT * STACK + STACK / 2;
    assert_int_equal(pthread_setattr_default_np(&large), 0);
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    assert_int_equal(weft_comm_run(comm, count_call, &calls, &error), WEFT_ERR_SYSTEM);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(pthread_setattr_default_np(&usual), 0);
    assert_non_null(strstr(error.message, "cannot start a thread for rank"));
    assert_int_equal(calls, 0);
    weft_comm_close(comm);
  }
  pthread_attr_destroy(&large);
  pthread_attr_destroy(&usual);
}
#endif

/* ---- The same run, stepped and with a thread per rank ---- */

enum { LOG_SIZE = 4096, ROUNDS = 60 };

struct log {
  uint32_t count;
  struct {
    uint32_t rank;
    int64_t now;
  } entries[LOG_SIZE];
};

struct walker {
  struct log *log;
  struct weft_random random;
  uint32_t rounds;
  unsigned char all[RANKS];
};

/* Waits for random times, and now and then for all ranks. */
static enum weft_status walk(struct conformance_rank *rank, struct weft_error *error) {
  struct walker *walker = rank->state;
  struct weft_transport *transport = rank->transport;
  struct log *log = walker->log;
  CONFORMANCE_CHECK(error, log->count < LOG_SIZE);
  log->entries[log->count].rank = transport->rank;
  log->entries[log->count++].now = transport->ops->now(transport);
  if (walker->rounds % 7 == 3) {
    const unsigned char mine = (unsigned char)transport->rank;
    const enum weft_status status =
        transport->ops->exchange(transport, &mine, walker->all, 1, error);
    if (status != WEFT_OK) {
      return status;
    }
  }
  if (++walker->rounds == ROUNDS) {
    return WEFT_OK;
  }
  rank->until = transport->ops->now(transport) + (int64_t)weft_random_below(&walker->random, 3);
  return WEFT_IN_PROGRESS;
}

static void walk_all(uint64_t seed, bool steps, struct log *log) {
  struct weft_comm *comm = open_world("loopback", RANKS, seed);
  struct conformance_rank ranks[RANKS];
  struct walker walkers[RANKS];
  memset(ranks, 0, sizeof ranks);
  memset(log, 0, sizeof *log);
  for (uint32_t r = 0; r < RANKS; r++) {
    walkers[r] = (struct walker){.log = log, .random = {.state = seed + r}};
    ranks[r].transport = weft_comm_endpoint(comm, r);
    ranks[r].advance = walk;
    ranks[r].state = &walkers[r];
  }
  if (steps) {
    conformance_drive_steps(comm, ranks, RANKS);
  } else {
    conformance_drive_run(comm, ranks, RANKS);
  }
  for (uint32_t r = 0; r < RANKS; r++) {
    assert_int_equal(ranks[r].status, WEFT_OK);
  }
  weft_comm_close(comm);
}

static void threads_run_as_steps_do(void **state) {
  (void)state;
  static struct log stepped, run;
  for (uint64_t seed = 0; seed < 50; seed++) {
    walk_all(seed, true, &stepped);
    walk_all(seed, false, &run);
    assert_true(stepped.count >= RANKS * ROUNDS);
    assert_memory_equal(&stepped, &run, sizeof run);
  }
}

/* ---- Memory ---- */

static void out_of_memory(void **state) {
  (void)state;
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(in_process); k++) {
    enum weft_status status = WEFT_ERR_MEMORY;
    for (uint64_t n = 1; status != WEFT_OK; n++) {
      const struct weft_comm_options options = {.rank_count = 3};
      struct weft_comm *comm = NULL;
      struct weft_error error;
      struct test_memory memory;
      test_memory_init(&memory);
      memory.fail_at = n;
      status = weft_comm_open(&memory.allocator, in_process[k], &options, &comm, &error);
      if (status == WEFT_OK) {
        status = weft_comm_run(comm, gather_all_sizes, NULL, &error);
      }
      weft_comm_close(comm);
      assert_int_equal(memory.blocks, 0);
      assert_true(status == WEFT_OK || status == WEFT_ERR_MEMORY);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_table),
    cmocka_unit_test(the_option),
    cmocka_unit_test(refusals),
    cmocka_unit_test(allgather_of_any_size),
    cmocka_unit_test(barrier_with_a_limit),
    cmocka_unit_test(a_deadlock_is_reported),
    cmocka_unit_test(a_rank_fails_or_vanishes),
    cmocka_unit_test(any_thread_may_fail_the_world),
    cmocka_unit_test(threads_cannot_be_started),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    cmocka_unit_test(some_threads_cannot_be_started),
#endif
    cmocka_unit_test(threads_run_as_steps_do),
    cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
