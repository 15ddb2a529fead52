/* The threads transport: the conformance suite, and what is its own: failing and
 * vanishing ranks of weft_threads_run(), ends that disagree, out of memory.
 * Also under ThreadSanitizer. */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "support_conformance.h"
#include "support_memory.h"

static struct weft_comm *make_world(uint32_t rank_count) {
  struct weft_comm *world = NULL;
  struct weft_error error;
  if (weft_comm_open(NULL, "threads", &(struct weft_comm_options){.rank_count = rank_count}, &world,
                     &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return world;
}

/* ---- conformance ---- */

static void *create(void *context, uint32_t rank_count, struct weft_transport **endpoints) {
  (void)context;
  struct weft_comm *world = make_world(rank_count);
  for (uint32_t r = 0; r < rank_count; r++) {
    endpoints[r] = weft_comm_endpoint(world, r);
  }
  return world;
}

static void destroy(void *context, void *world, uint32_t rank_count,
                    struct weft_transport **endpoints) {
  (void)context;
  for (uint32_t r = 0; r < rank_count; r++) {
    assert_null(endpoints[r]->ops->destroy); /* they are the world's */
  }
  weft_comm_close(world);
}

static void drive(void *world, struct conformance_rank *ranks, uint32_t rank_count) {
  conformance_drive_run(world, ranks, rank_count);
}

static const struct conformance_transport threads = {
    .name = "threads", .create = create, .destroy = destroy, .drive = drive, .real_time = true};

/* ---- running ---- */

/* Waits until the world has failed. */
static enum weft_status wait_for_failure(struct weft_transport *transport,
                                         struct weft_error *error) {
  for (;;) {
    WEFT_TRY(transport->ops->progress(transport, error));
    WEFT_TRY(transport->ops->wait(transport, WEFT_TIME_NEVER, error));
  }
}

enum ending { FAILS, FAILS_SILENTLY, EXITS, IS_CANCELLED };

struct endings {
  uint32_t rank; /* that ends so */
  enum ending ending;
  uint32_t notified; /* ranks that saw it; atomic */
};

static enum weft_status rank_that_ends(void *context, struct weft_transport *transport,
                                       struct weft_error *error) {
  struct endings *endings = context;
  if (transport->rank != endings->rank) {
    const enum weft_status status = wait_for_failure(transport, error);
    (void)__atomic_fetch_add(&endings->notified, 1, __ATOMIC_RELAXED);
    return status;
  }
  switch (endings->ending) {
    case FAILS: return weft_fail(error, WEFT_ERR_STAGE, "", "stage %d has no weights", 7);
    case FAILS_SILENTLY: return WEFT_ERR_IO;
    case EXITS: pthread_exit(NULL);
    default:
      pthread_cancel(pthread_self());
      for (;;) {
        pthread_testcancel();
      }
  }
}

static void *run_in_a_thread(void *argument) {
  void **arguments = argument; /* world, endings, error */
  (void)weft_comm_run(arguments[0], rank_that_ends, arguments[1], arguments[2]);
  return NULL;
}

/* Rank 0 is the caller, whose thread may end in it: so it is another one here. */
static void run_ending(uint32_t rank_count, uint32_t rank, enum ending ending,
                       struct weft_failure *failure) {
  struct weft_comm *world = make_world(rank_count);
  struct endings endings = {.rank = rank, .ending = ending};
  struct weft_error error = {.status = WEFT_OK};
  void *arguments[] = {world, &endings, &error};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, run_in_a_thread, arguments), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(endings.notified, rank_count - 1);
  struct weft_transport *transport = weft_comm_endpoint(world, 0);
  assert_true(transport->ops->get_failure(transport, failure));
  assert_int_equal(failure->rank, rank);
  if (rank != 0) { /* it returned, and said the same */
    assert_string_equal(error.message, failure->error.message);
    assert_int_equal(error.status, failure->error.status);
  }
  weft_comm_close(world);
}

static void a_rank_fails(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < 4; rank++) {
    struct weft_failure failure;
    run_ending(4, rank, FAILS, &failure);
    assert_int_equal(failure.error.status, WEFT_ERR_STAGE);
    assert_string_equal(failure.error.message, "stage 7 has no weights");
    run_ending(4, rank, FAILS_SILENTLY, &failure);
    assert_int_equal(failure.error.status, WEFT_ERR_IO);
    assert_non_null(strstr(failure.error.message, "failed"));
  }
}

static void a_thread_vanishes(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < 4; rank++) {
    for (enum ending ending = EXITS; ending <= IS_CANCELLED; ending++) {
      struct weft_failure failure;
      char expected[64];
      (void)snprintf(expected, sizeof expected, "the thread of rank %u ended without returning",
                     rank);
      run_ending(4, rank, ending, &failure);
      assert_int_equal(failure.error.status, WEFT_ERR_PEER);
      assert_string_equal(failure.error.message, expected);
    }
  }
}

static enum weft_status never_called(void *context, struct weft_transport *transport,
                                     struct weft_error *error) {
  (void)transport;
  (void)error;
  *(bool *)context = true;
  return WEFT_OK;
}

/* Stacks that no machine has room for. */
static void threads_cannot_be_started(void **state) {
  (void)state;
  struct weft_comm *world = make_world(3);
  struct weft_error error;
  pthread_attr_t before;
  pthread_attr_t huge;
  bool called = false;
  assert_int_equal(pthread_getattr_default_np(&before), 0);
  assert_int_equal(pthread_attr_init(&huge), 0);
  assert_int_equal(pthread_attr_setstacksize(&huge, (size_t)1 << 50), 0);
  assert_int_equal(pthread_setattr_default_np(&huge), 0);
  assert_int_equal(weft_comm_run(world, never_called, &called, &error), WEFT_ERR_SYSTEM);
  assert_int_equal(pthread_setattr_default_np(&before), 0);
  assert_non_null(strstr(error.message, "rank 1 of 3"));
  assert_false(called);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
  weft_comm_close(world);
}

static enum weft_status count_ranks(void *context, struct weft_transport *transport,
                                    struct weft_error *error) {
  (void)error;
  (void)__atomic_fetch_add((uint64_t *)context, UINT64_C(1) << (4 * transport->rank),
                           __ATOMIC_RELAXED);
  return WEFT_OK;
}

/* Each once; and a world may be run again. */
static void every_rank_runs(void **state) {
  (void)state;
  struct weft_comm *world = make_world(5);
  struct weft_error error;
  uint64_t counts = 0;
  assert_int_equal(weft_comm_run(world, count_ranks, &counts, &error), WEFT_OK);
  assert_int_equal(counts, 0x11111);
  assert_int_equal(weft_comm_run(world, count_ranks, &counts, &error), WEFT_OK);
  assert_int_equal(counts, 0x22222);
  assert_null(weft_comm_endpoint(world, 5));
  weft_comm_close(world);
  weft_comm_close(NULL);
}

/* ---- channels ---- */

static void assert_says(const struct weft_error *error, const char *first, const char *second) {
  if (strstr(error->message, first) == NULL || strstr(error->message, second) == NULL) {
    fail_msg("neither \"%s\" nor \"%s\": %s", first, second, error->message);
  }
}

static void ends_disagree(void **state) {
  (void)state;
  for (int first = 0; first < 2; first++) {
    struct weft_comm *world = make_world(3);
    struct weft_error error;
    struct weft_channel_end ends[2] = {
        {.channel = 4, .peer = 1, .sends = true, .depth = 1, .bytes_max = 100},
        {.channel = 4, .peer = 0, .sends = false, .depth = 3, .bytes_max = 200}};
    struct weft_transport *a = weft_comm_endpoint(world, (uint32_t)first);
    struct weft_transport *b = weft_comm_endpoint(world, (uint32_t)(1 - first));
    struct weft_transport *c = weft_comm_endpoint(world, 2);
    assert_int_equal(a->ops->open(a, &ends[first], 1, &error), WEFT_OK);
    assert_int_equal(b->ops->open(b, &ends[1 - first], 1, &error), WEFT_ERR_USAGE);
    assert_says(&error, "100", "200");
    assert_int_equal(c->ops->open(c, &ends[0], 1, &error), WEFT_ERR_USAGE); /* of two others */
    assert_non_null(strstr(error.hint, "first_channel of replicas"));
    assert_says(&error, "from rank 2 to rank 1", "from rank 0 to rank 1");
    weft_comm_close(world);
  }
}

static void odd_ends_are_refused(void **state) {
  (void)state;
  static const struct weft_channel_end odd[] = {
      {.channel = 0, .peer = 0, .sends = true, .depth = 1}, /* oneself */
      {.channel = 0, .peer = 1, .sends = true, .depth = 0},
      {.channel = 0, .peer = 1, .sends = true, .depth = UINT32_MAX}};
  for (size_t k = 0; k < sizeof odd / sizeof odd[0]; k++) {
    struct weft_comm *world = make_world(2);
    struct weft_error error;
    struct weft_transport *a = weft_comm_endpoint(world, 0);
    assert_int_equal(a->ops->open(a, &odd[k], 1, &error), WEFT_ERR_USAGE);
    assert_int_equal(a->ops->open(a, NULL, 0, &error), WEFT_ERR_USAGE); /* again */
    weft_comm_close(world);
  }
}

/* A sender does not wait for its receiver to come: exactly `depth` go. */
static void sends_before_the_peer_opens(void **state) {
  (void)state;
  struct weft_comm *world = make_world(2);
  struct weft_error error;
  struct weft_transport *a = weft_comm_endpoint(world, 0);
  struct weft_transport *b = weft_comm_endpoint(world, 1);
  const struct weft_channel_end out = {.channel = 9, .peer = 1, .sends = true, .depth = 3};
  const struct weft_channel_end in = {.channel = 9, .peer = 0, .sends = false, .depth = 1};
  struct weft_message sent[4] = {{.header = {.sequence = 0}}};
  struct weft_message received = {.capacity = 0};
  assert_int_equal(a->ops->open(a, &out, 1, &error), WEFT_OK);
  for (uint64_t k = 0; k < 4; k++) {
    sent[k].header.sequence = k;
    assert_int_equal(a->ops->post(a, 9, true, &sent[k], &error),
                     k < 3 ? WEFT_OK : WEFT_IN_PROGRESS);
  }
  assert_int_equal(b->ops->open(b, &in, 1, &error), WEFT_OK);
  for (uint64_t k = 0; k < 3; k++) {
    assert_int_equal(a->ops->test(a, &sent[k], &error), WEFT_IN_PROGRESS);
    assert_int_equal(b->ops->post(b, 9, false, &received, &error), WEFT_OK);
    assert_int_equal(b->ops->test(b, &received, &error), WEFT_OK);
    assert_int_equal(received.header.sequence, k);
  }
  /* Taken sends make room, though nobody has asked for them yet. */
  assert_int_equal(a->ops->post(a, 9, true, &sent[3], &error), WEFT_OK);
  for (uint64_t k = 0; k < 3; k++) {
    assert_int_equal(a->ops->test(a, &sent[k], &error), WEFT_OK);
    assert_int_equal(sent[k].begin == 0, false);
  }
  a->ops->cancel(a, &sent[3]);
  assert_int_equal(a->ops->post(a, 9, true, &sent[3], &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "cancelled"));
  weft_comm_close(world);
}

/* A send is done when its receive is posted and the receiver has looked: it need
 * not ask for that very message. */
static void posted_receives_are_taken(void **state) {
  (void)state;
  for (int posted_first = 0; posted_first < 2; posted_first++) {
    struct weft_comm *world = make_world(2);
    struct weft_error error;
    struct weft_transport *a = weft_comm_endpoint(world, 0);
    struct weft_transport *b = weft_comm_endpoint(world, 1);
    const struct weft_channel_end out = {.channel = 2, .peer = 1, .sends = true, .depth = 1};
    const struct weft_channel_end in = {.channel = 2, .peer = 0, .sends = false, .depth = 1};
    struct weft_message sent = {.capacity = 0};
    struct weft_message received = {.capacity = 0};
    assert_int_equal(a->ops->open(a, &out, 1, &error), WEFT_OK);
    assert_int_equal(b->ops->open(b, &in, 1, &error), WEFT_OK);
    if (posted_first) {
      assert_int_equal(b->ops->post(b, 2, false, &received, &error), WEFT_OK);
    }
    assert_int_equal(a->ops->post(a, 2, true, &sent, &error), WEFT_OK);
    assert_int_equal(b->ops->progress(b, &error), WEFT_OK);
    if (!posted_first) {
      assert_int_equal(a->ops->test(a, &sent, &error), WEFT_IN_PROGRESS);
      assert_int_equal(b->ops->post(b, 2, false, &received, &error), WEFT_OK);
    }
    assert_int_equal(a->ops->test(a, &sent, &error), WEFT_OK);
    weft_comm_close(world);
  }
}

static void small_buffers_are_refused(void **state) {
  (void)state;
  struct weft_comm *world = make_world(2);
  struct weft_error error;
  struct weft_transport *a = weft_comm_endpoint(world, 0);
  const struct weft_channel_end ends[] = {
      {.channel = 0, .peer = 1, .sends = true, .depth = 3, .bytes_max = 10},
      {.channel = 1, .peer = 1, .sends = false, .depth = 3, .bytes_max = 10}};
  char data[9];
  struct weft_message message = {.data = data, .capacity = sizeof data};
  assert_int_equal(a->ops->open(a, ends, 2, &error), WEFT_OK);
  assert_int_equal(a->ops->post(a, 0, true, &message, &error), WEFT_ERR_USAGE);
  assert_says(&error, "9 bytes", "up to 10");
  assert_int_equal(a->ops->post(a, 1, false, &message, &error), WEFT_ERR_USAGE);
  assert_says(&error, "9 bytes", "up to 10");
  weft_comm_close(world);
}

static void an_exchange_is_too_large(void **state) {
  (void)state;
  struct weft_comm *world = make_world(1);
  struct weft_error error;
  char bytes[WEFT_EXCHANGE_MAX + 1] = {0};
  char all[WEFT_EXCHANGE_MAX + 1];
  struct weft_transport *a = weft_comm_endpoint(world, 0);
  assert_int_equal(a->ops->exchange(a, bytes, all, sizeof bytes, &error), WEFT_ERR_USAGE);
  assert_says(&error, "129", "128");
  weft_comm_close(world);
}

/* ---- cancelling what is just being taken ---- */

enum { RACES = 4000 };

struct race {
  struct weft_message messages[2][RACES]; /* by rank: a channel each */
  char buffers[2][RACES];
  uint32_t turn[2]; /* atomic: channels that the rank has come to */
  uint32_t taken;
};

static enum weft_status open_races(struct race *race, struct weft_transport *transport,
                                   struct weft_error *error) {
  const uint32_t rank = transport->rank;
  struct weft_channel_end *ends = calloc(RACES, sizeof *ends);
  if (ends == NULL) {
    return weft_fail_memory(error, RACES * sizeof *ends);
  }
  for (uint32_t c = 0; c < RACES; c++) {
    ends[c] = (struct weft_channel_end){
        .channel = c, .peer = 1 - rank, .sends = rank == 0, .depth = 1, .bytes_max = 1};
    race->messages[rank][c].data = &race->buffers[rank][c];
    race->messages[rank][c].capacity = 1;
  }
  const enum weft_status status = transport->ops->open(transport, ends, RACES, error);
  free(ends);
  return status;
}

static void send_and_cancel(struct race *race, uint32_t c, struct weft_transport *transport) {
  struct weft_error error;
  while (__atomic_load_n(&race->turn[1], __ATOMIC_ACQUIRE) <= c) {
    sched_yield(); /* the receiver is at it */
  }
  (void)transport->ops->post(transport, c, true, &race->messages[0][c], &error);
  for (uint32_t k = 0; k < c % 64; k++) {
    (void)__atomic_load_n(&race->turn[1], __ATOMIC_SEQ_CST); /* a few instants */
  }
  transport->ops->cancel(transport, &race->messages[0][c]);
  __atomic_store_n(&race->turn[0], c + 1, __ATOMIC_RELEASE);
}

static void take_or_not(struct race *race, uint32_t c, struct weft_transport *transport) {
  struct weft_error error;
  struct weft_message *message = &race->messages[1][c];
  enum weft_status status;
  (void)transport->ops->post(transport, c, false, message, &error);
  __atomic_store_n(&race->turn[1], c + 1, __ATOMIC_RELEASE);
  do {
    status = transport->ops->test(transport, message, &error);
  } while (status == WEFT_IN_PROGRESS && __atomic_load_n(&race->turn[0], __ATOMIC_ACQUIRE) <= c);
  race->taken += status == WEFT_OK;
  transport->ops->cancel(transport, message);
}

static enum weft_status race_main(void *context, struct weft_transport *transport,
                                  struct weft_error *error) {
  WEFT_TRY(open_races(context, transport, error));
  for (uint32_t c = 0; c < RACES; c++) {
    (transport->rank == 0 ? send_and_cancel : take_or_not)(context, c, transport);
  }
  return WEFT_OK;
}

/* Either may be faster: afterwards each has one of the two buffers. */
static void each_buffer_has_one_owner(void **state) {
  (void)state;
  struct weft_comm *world = make_world(2);
  struct race *race = calloc(1, sizeof *race);
  struct weft_error error;
  assert_non_null(race);
  assert_int_equal(weft_comm_run(world, race_main, race, &error), WEFT_OK);
  for (uint32_t c = 0; c < RACES; c++) {
    const bool swapped = race->messages[0][c].data != &race->buffers[0][c];
    assert_ptr_equal(race->messages[0][c].data, &race->buffers[swapped][c]);
    assert_ptr_equal(race->messages[1][c].data, &race->buffers[!swapped][c]);
    race->taken -= swapped;
  }
  assert_int_equal(race->taken, 0);
  free(race);
  weft_comm_close(world);
}

/* ---- memory ---- */

/* A world with 100 channels, so that tables grow. WEFT_OK, or what went wrong. */
static enum weft_status make_and_open(const struct weft_allocator *allocator,
                                      struct weft_error *error) {
  struct weft_comm *world;
  struct weft_channel_end ends[2][100];
  WEFT_TRY(weft_comm_open(allocator, "threads", &(struct weft_comm_options){.rank_count = 2},
                          &world, error));
  enum weft_status status = WEFT_OK;
  for (uint32_t r = 0; r < 2 && status == WEFT_OK; r++) {
    struct weft_transport *transport = weft_comm_endpoint(world, r);
    for (uint32_t k = 0; k < 100; k++) {
      ends[r][k] = (struct weft_channel_end){
          .channel = k * 977, .peer = 1 - r, .sends = k % 2 == r, .depth = 1 + k % 9};
    }
    status = transport->ops->open(transport, ends[r], 100, error);
  }
  weft_comm_close(world);
  return status;
}

static void no_memory(void **state) {
  (void)state;
  struct weft_error error;
  for (uint64_t k = 1;; k++) {
    struct test_memory memory;
    test_memory_init(&memory);
    memory.fail_at = k;
    const enum weft_status status = make_and_open(&memory.allocator, &error);
    assert_int_equal(memory.blocks, 0);
    if (status == WEFT_OK) {
      assert_true(k > 100);
      break;
    }
    assert_int_equal(status, WEFT_ERR_MEMORY);
  }
  struct weft_comm *world = NULL;
  assert_int_equal(
      weft_comm_open(NULL, "threads", &(struct weft_comm_options){.rank_count = 0}, &world, &error),
      WEFT_ERR_USAGE);
  assert_null(world);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_rank_runs),
      cmocka_unit_test(a_rank_fails),
      cmocka_unit_test(a_thread_vanishes),
      cmocka_unit_test(threads_cannot_be_started),
      cmocka_unit_test(ends_disagree),
      cmocka_unit_test(odd_ends_are_refused),
      cmocka_unit_test(sends_before_the_peer_opens),
      cmocka_unit_test(posted_receives_are_taken),
      cmocka_unit_test(each_buffer_has_one_owner),
      cmocka_unit_test(small_buffers_are_refused),
      cmocka_unit_test(an_exchange_is_too_large),
      cmocka_unit_test(no_memory),
  };
  const int failed = conformance_run(&threads);
  return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
