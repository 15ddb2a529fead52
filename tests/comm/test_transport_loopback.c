/* The loopback transport: the conformance suite, with and without delays, and what
 * is its own: virtual time, and the same run for a seed.
 * Also under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_conformance.h"
#include "support_memory.h"

static struct weft_comm *make_world(const struct weft_comm_options *options) {
  struct weft_comm *world = NULL;
  struct weft_error error;
  if (weft_comm_open(NULL, "loopback", options, &world, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return world;
}

/* ---- conformance ---- */

static void *create(void *context, uint32_t rank_count, struct weft_transport **endpoints) {
  struct weft_comm_options options = *(const struct weft_comm_options *)context;
  options.rank_count = rank_count;
  struct weft_comm *world = make_world(&options);
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

static void drive_run(void *world, struct conformance_rank *ranks, uint32_t rank_count) {
  conformance_drive_run(world, ranks, rank_count);
}

static void drive(void *world, struct conformance_rank *ranks, uint32_t rank_count) {
  conformance_drive_steps(world, ranks, rank_count);
}

/* ---- its own ---- */

static const struct weft_channel_end sender = {
    .channel = 0, .peer = 1, .sends = true, .depth = 4, .bytes_max = 0};
static const struct weft_channel_end receiver = {
    .channel = 0, .peer = 0, .sends = false, .depth = 4, .bytes_max = 0};

/* Two messages on an occupied channel: begin and end to the tick. */
static void test_times(void **state) {
  (void)state;
  struct weft_error error;
  struct weft_comm *world = make_world(
      &(struct weft_comm_options){.rank_count = 2, .latency_ticks = 5, .occupied_ticks = 3});
  struct weft_transport *a = weft_comm_endpoint(world, 0);
  struct weft_transport *b = weft_comm_endpoint(world, 1);
  assert_int_equal(a->ops->open(a, &sender, 1, &error), WEFT_OK);
  assert_int_equal(b->ops->open(b, &receiver, 1, &error), WEFT_OK);
  struct weft_message sent[2] = {0}, received[2] = {0};
  for (int k = 0; k < 2; k++) {
    assert_int_equal(a->ops->post(a, 0, true, &sent[k], &error), WEFT_OK);
    assert_int_equal(b->ops->post(b, 0, false, &received[k], &error), WEFT_OK);
  }
  uint32_t rank;
  for (int k = 0; k < 3; k++) { /* both at 0, then the receiver when something arrives */
    assert_int_equal(weft_comm_next(world, &rank, &error), WEFT_OK);
    struct weft_transport *t = rank == 0 ? a : b;
    assert_int_equal(t->ops->wait(t, WEFT_TIME_NEVER, &error), WEFT_OK);
  }
  assert_int_equal(rank, 1);
  assert_int_equal(conformance_now(world), 8);
  assert_int_equal(b->ops->test(b, &received[0], &error), WEFT_OK);
  assert_int_equal(b->ops->test(b, &received[1], &error), WEFT_IN_PROGRESS);
  assert_int_equal(received[0].begin, 0);
  assert_int_equal(received[0].end, 8);
  for (int k = 0; k < 3 && b->ops->test(b, &received[1], &error) != WEFT_OK; k++) {
    assert_int_equal(b->ops->wait(b, WEFT_TIME_NEVER, &error), WEFT_OK);
    assert_int_equal(weft_comm_next(world, &rank, &error), WEFT_OK);
  }
  assert_int_equal(received[1].begin, 3); /* the channel was occupied until then */
  assert_int_equal(received[1].end, 11);
  assert_int_equal(a->ops->test(a, &sent[1], &error), WEFT_OK);
  weft_comm_close(world);
}

/* Nothing is in flight, and no rank has a deadline: reported, not waited for. */
static void test_nothing_left(void **state) {
  (void)state;
  struct weft_error error;
  struct weft_comm *world = make_world(&(struct weft_comm_options){.rank_count = 3});
  uint32_t rank;
  bool named[3] = {false, false, false};
  for (int k = 0; k < 3; k++) {
    assert_int_equal(weft_comm_next(world, &rank, &error), WEFT_OK);
    named[rank] = true;
  }
  assert_true(named[0] && named[1] && named[2]);
  assert_int_equal(weft_comm_next(world, &rank, &error), WEFT_ERR_STALLED);
  weft_comm_wake(world, 2);
  assert_int_equal(weft_comm_next(world, &rank, &error), WEFT_OK);
  assert_int_equal(rank, 2);
  struct weft_transport *t = weft_comm_endpoint(world, 1);
  assert_int_equal(t->ops->wait(t, 77, &error), WEFT_OK);
  assert_int_equal(weft_comm_next(world, &rank, &error), WEFT_OK);
  assert_int_equal(rank, 1);
  assert_int_equal(conformance_now(world), 77);
  weft_comm_close(world);
}

/* A thousand ranks: orders differ between seeds and repeat for one. */
static void test_seeds(void **state) {
  (void)state;
  enum { RANKS = 1000 };
  uint32_t order[3][RANKS];
  for (int k = 0; k < 3; k++) {
    struct weft_error error;
    struct weft_comm *world =
        make_world(&(struct weft_comm_options){.rank_count = RANKS, .seed = k < 2 ? 11 : 12});
    for (uint32_t n = 0; n < RANKS; n++) {
      assert_int_equal(weft_comm_next(world, &order[k][n], &error), WEFT_OK);
    }
    weft_comm_close(world);
  }
  assert_memory_equal(order[0], order[1], sizeof order[0]);
  assert_memory_not_equal(order[0], order[2], sizeof order[0]);
}

static void test_refusals(void **state) {
  (void)state;
  struct weft_error error;
  struct weft_comm *world = make_world(&(struct weft_comm_options){.rank_count = 3});
  struct weft_transport *a = weft_comm_endpoint(world, 0);
  struct weft_transport *b = weft_comm_endpoint(world, 1);
  struct weft_transport *c = weft_comm_endpoint(world, 2);
  assert_int_equal(a->ops->open(a, &sender, 1, &error), WEFT_OK);
  struct weft_channel_end other = receiver;
  other.bytes_max = 8;
  assert_int_equal(b->ops->open(b, &other, 1, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "rank 1 has up to 8 bytes"));
  other = receiver;
  other.peer = 3;
  assert_int_equal(b->ops->open(b, &other, 1, &error), WEFT_ERR_USAGE);
  assert_int_equal(b->ops->open(b, &sender, 1, &error), WEFT_ERR_USAGE);
  assert_int_equal(c->ops->open(c, &sender, 1, &error), WEFT_ERR_USAGE); /* a channel of a and b */
  assert_non_null(strstr(error.hint, "first_channel of replicas"));
  assert_null(weft_comm_endpoint(world, 3));
  weft_comm_close(world);
  assert_int_equal(weft_comm_open(NULL, "loopback", &(struct weft_comm_options){.rank_count = 0},
                                  &world, &error),
                   WEFT_ERR_USAGE);
}

static void test_out_of_memory(void **state) {
  (void)state;
  struct weft_error error;
  for (uint64_t n = 1;; n++) {
    struct test_memory memory;
    test_memory_init(&memory);
    memory.fail_at = n;
    struct weft_comm *world = NULL;
    enum weft_status status =
        weft_comm_open(&memory.allocator, "loopback", &(struct weft_comm_options){.rank_count = 2},
                       &world, &error);
    if (status == WEFT_OK) {
      struct weft_transport *a = weft_comm_endpoint(world, 0);
      status = a->ops->open(a, &sender, 1, &error);
    }
    weft_comm_close(world);
    assert_int_equal(memory.blocks, 0);
    if (status == WEFT_OK) {
      assert_true(n > 2);
      return;
    }
    assert_int_equal(status, WEFT_ERR_MEMORY);
  }
}

int main(void) {
  static struct weft_comm_options plain = {.seed = 1};
  static struct weft_comm_options delayed = {
      .seed = 2, .latency_ticks = 3, .occupied_ticks = 2, .delay_ticks_max = 20};
  const struct conformance_transport transports[] = {
      {.name = "loopback", .context = &plain, .create = create, .destroy = destroy, .drive = drive},
      {.name = "loopback with delays",
       .context = &delayed,
       .create = create,
       .destroy = destroy,
       .drive = drive},
      {.name = "loopback with a thread per rank",
       .context = &plain,
       .create = create,
       .destroy = destroy,
       .drive = drive_run},
      {.name = "loopback with a thread per rank, and delays",
       .context = &delayed,
       .create = create,
       .destroy = destroy,
       .drive = drive_run},
  };
  int failed = 0;
  for (size_t k = 0; k < sizeof transports / sizeof transports[0]; k++) {
    failed += conformance_run(&transports[k]);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_times),         cmocka_unit_test(test_nothing_left),
      cmocka_unit_test(test_seeds),         cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_out_of_memory),
  };
  return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
