/* Fault injection around a transport that does what the test says: delays, their order and
 * what wakes a waiting rank; damage; death; memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "support_delay_queue.h"
#include "support_fault_injection.h"
#include "support_memory.h"

/* ---- The transport inside ---- */

enum { CHANNELS = 4, POSTED_MAX = 256 };
#define STATE UINT64_C(0x5ca1ab1e)

struct posted {
  struct weft_message *message;
  uint32_t channel;
  int64_t done_at;
  bool done;
};

/* Everything that is posted is done when now() is done_at: set before posting. */
struct fake {
  struct weft_transport base;
  int64_t now;
  int64_t done_at;
  struct posted posted[POSTED_MAX];
  uint32_t posted_count;
  uint32_t calls; /* of anything that others could notice */
  uint32_t cancels;
  int64_t waited_until;
  enum weft_status open_status;
  enum weft_status test_status; /* of what is not done */
  struct weft_rank_status statuses[3];
};

static struct fake *fake_of(struct weft_transport *transport) { return (struct fake *)transport; }

static enum weft_status fake_open(struct weft_transport *transport,
                                  const struct weft_channel_end *ends, uint32_t count,
                                  struct weft_error *error) {
  (void)ends;
  (void)count;
  (void)error;
  return fake_of(transport)->open_status;
}

static enum weft_status fake_post(struct weft_transport *transport, uint32_t channel, bool sends,
                                  struct weft_message *message, struct weft_error *error) {
  struct fake *fake = fake_of(transport);
  (void)sends;
  (void)error;
  if (channel >= CHANNELS) {
    return WEFT_ERR_USAGE;
  }
  assert_true(fake->posted_count < POSTED_MAX);
  message->state[0] = STATE;
  fake->posted[fake->posted_count++] =
      (struct posted){.message = message, .channel = channel, .done_at = fake->done_at};
  fake->calls++;
  return WEFT_OK;
}

static struct posted *find_posted(struct fake *fake, const struct weft_message *message) {
  for (uint32_t k = fake->posted_count; k-- > 0;) {
    if (fake->posted[k].message == message && !fake->posted[k].done) {
      assert_int_equal(message->state[0], STATE); /* ours, untouched */
      return &fake->posted[k];
    }
  }
  fail_msg("a message that is not in flight");
  return NULL;
}

static enum weft_status fake_test(struct weft_transport *transport, struct weft_message *message,
                                  struct weft_error *error) {
  struct fake *fake = fake_of(transport);
  struct posted *posted = find_posted(fake, message);
  (void)error;
  if (fake->now < posted->done_at) {
    return fake->test_status;
  }
  posted->done = true;
  message->end = posted->done_at;
  return WEFT_OK;
}

static void fake_cancel(struct weft_transport *transport, struct weft_message *message) {
  find_posted(fake_of(transport), message)->done = true;
  fake_of(transport)->cancels++;
}

static enum weft_status fake_progress(struct weft_transport *transport, struct weft_error *error) {
  (void)error;
  fake_of(transport)->calls++;
  return WEFT_OK;
}

static enum weft_status fake_wait(struct weft_transport *transport, int64_t until,
                                  struct weft_error *error) {
  (void)error;
  fake_of(transport)->waited_until = until;
  fake_of(transport)->calls++;
  return WEFT_OK;
}

static int64_t fake_now(struct weft_transport *transport) { return fake_of(transport)->now; }

static enum weft_status fake_exchange(struct weft_transport *transport, const void *mine, void *all,
                                      size_t size, struct weft_error *error) {
  (void)error;
  fake_of(transport)->calls++;
  memcpy(all, mine, size);
  return WEFT_OK;
}

static void fake_fail(struct weft_transport *transport, const struct weft_failure *failure) {
  (void)failure;
  fake_of(transport)->calls++;
}

static bool fake_failed(struct weft_transport *transport, struct weft_failure *failure) {
  (void)transport;
  failure->rank = 7;
  return true;
}

static struct weft_rank_status *fake_board(struct weft_transport *transport, uint32_t rank) {
  return &fake_of(transport)->statuses[rank];
}

static const struct weft_transport_ops fake_ops = {
    .name = "fake",
    .open = fake_open,
    .post = fake_post,
    .test = fake_test,
    .cancel = fake_cancel,
    .progress = fake_progress,
    .wait = fake_wait,
    .now = fake_now,
    .exchange = fake_exchange,
    .fail = fake_fail,
    .get_failure = fake_failed,
    .rank_status = fake_board,
};

/* ---- A world of one rank: channels 0, 1, 2 receive, 3 sends ---- */

enum { DEPTH = 16 };

struct world {
  struct fake fake;
  struct weft_transport *injector;
  struct weft_message messages[CHANNELS][DEPTH];
};

static enum weft_status try_world(struct world *world, const struct weft_allocator *allocator,
                                  uint32_t rank, struct weft_fault_options options) {
  struct weft_channel_end ends[CHANNELS];
  struct weft_error error;
  memset(world, 0, sizeof *world);
  world->fake.base = (struct weft_transport){.ops = &fake_ops, .rank = rank, .rank_count = 3};
  world->fake.test_status = WEFT_IN_PROGRESS;
  for (uint32_t k = 0; k < CHANNELS; k++) { /* not in order */
    ends[k] = (struct weft_channel_end){
        .channel = CHANNELS - 1 - k, .sends = k == 0, .depth = DEPTH, .bytes_max = 64};
  }
  enum weft_status status =
      weft_fault_injector_create(allocator, &world->fake.base, &options, &world->injector, &error);
  if (status == WEFT_OK) {
    status = world->injector->ops->open(world->injector, ends, CHANNELS, &error);
    if (status != WEFT_OK) {
      world->injector->ops->destroy(world->injector);
    }
  }
  return status;
}

static struct world *make_world(struct weft_fault_options options) {
  struct world *world = malloc(sizeof *world);
  assert_non_null(world);
  assert_int_equal(try_world(world, NULL, 2, options), WEFT_OK);
  return world;
}

static void free_world(struct world *world) {
  world->injector->ops->destroy(world->injector);
  free(world);
}

static enum weft_status receive(struct world *world, uint32_t channel, uint32_t k,
                                int64_t done_at) {
  world->fake.done_at = done_at;
  return world->injector->ops->post(world->injector, channel, false, &world->messages[channel][k],
                                    NULL);
}

static enum weft_status test(struct world *world, uint32_t channel, uint32_t k) {
  return world->injector->ops->test(world->injector, &world->messages[channel][k], NULL);
}

static void progress(struct world *world) {
  assert_int_equal(world->injector->ops->progress(world->injector, NULL), WEFT_OK);
}

/* What wait() passes to the inner transport. */
static int64_t wait_until(struct world *world, int64_t until) {
  assert_int_equal(world->injector->ops->wait(world->injector, until, NULL), WEFT_OK);
  return world->fake.waited_until;
}

/* ---- Nothing asked for, nothing changed ---- */

static void test_without_faults(void **state) {
  (void)state;
  struct world *world = make_world((struct weft_fault_options){.seed = 1});
  struct weft_transport *injector = world->injector;
  struct weft_failure failure = {.error = {.status = WEFT_ERR_STALLED}};
  int all = 0;
  assert_string_equal(injector->ops->name, "injector(fake)");
  assert_int_equal(injector->rank, 2);
  assert_int_equal(injector->rank_count, 3);
  world->fake.now = 5;
  assert_int_equal(injector->ops->now(injector), 5);
  assert_ptr_equal(injector->ops->rank_status(injector, 1), &world->fake.statuses[1]);
  assert_int_equal(injector->ops->exchange(injector, &(int){42}, &all, sizeof all, NULL), WEFT_OK);
  assert_int_equal(all, 42);
  assert_true(injector->ops->get_failure(injector, &failure));
  assert_int_equal(failure.rank, 7);
  const uint32_t calls = world->fake.calls;
  (injector->ops->fail)(injector, &failure); /* cmocka has a macro of that name */
  assert_int_equal(world->fake.calls, calls + 1);

  assert_int_equal(receive(world, 0, 0, 9), WEFT_OK);
  assert_int_equal(injector->ops->post(injector, 3, true, &world->messages[3][0], NULL), WEFT_OK);
  progress(world);
  assert_int_equal(test(world, 0, 0), WEFT_IN_PROGRESS);
  assert_int_equal(wait_until(world, 77), 77);
  assert_int_equal(wait_until(world, WEFT_TIME_NEVER), WEFT_TIME_NEVER);
  world->fake.now = 12;
  assert_int_equal(test(world, 0, 0), WEFT_OK);
  assert_int_equal(world->messages[0][0].end, 9); /* whenever it was asked for */
  assert_int_equal(test(world, 3, 0), WEFT_OK);
  assert_int_equal(injector->ops->post(injector, 9, true, &world->messages[0][0], NULL),
                   WEFT_ERR_USAGE); /* the one inside says so */
  injector->ops->destroy(NULL);
  free_world(world);
}

/* ---- Delays ---- */

struct seen {
  int64_t at[CHANNELS][DEPTH];
};

/* The k-th message of each channel arrives at 100 + 3k; asked at every tick, or
 * only when all must be there. */
static void watch(uint64_t seed, uint32_t rank, int64_t delay_max, bool ask_late,
                  struct seen *seen) {
  struct world *world = malloc(sizeof *world);
  uint32_t left = 3 * DEPTH;
  assert_non_null(world);
  const struct weft_fault_options options = {.seed = seed, .delay_max = delay_max};
  assert_int_equal(try_world(world, NULL, rank, options), WEFT_OK);
  memset(seen, 0xff, sizeof *seen);
  for (uint32_t k = 0; k < DEPTH; k++) {
    for (uint32_t c = 0; c < 3; c++) {
      assert_int_equal(receive(world, c, k, 100 + 3 * (int64_t)k), WEFT_OK);
    }
  }
  for (; left > 0; world->fake.now++) {
    progress(world);
    if (ask_late && world->fake.now < 200 + delay_max) {
      continue;
    }
    for (uint32_t c = 0; c < 3; c++) {
      for (uint32_t k = DEPTH; k-- > 0;) {
        if (seen->at[c][k] < 0 && test(world, c, k) == WEFT_OK) {
          seen->at[c][k] = world->messages[c][k].end;
          assert_true(ask_late || seen->at[c][k] == world->fake.now);
          left--;
        }
      }
    }
  }
  free_world(world);
}

static void test_messages_are_held_back(void **state) {
  (void)state;
  enum { DELAY = 40 };
  bool overtaken = false;
  for (uint64_t seed = 0; seed < 20; seed++) {
    struct seen seen;
    int64_t latest = 0;
    watch(seed, 2, DELAY, false, &seen);
    for (uint32_t c = 0; c < 3; c++) {
      for (uint32_t k = 0; k < DEPTH; k++) {
        const int64_t arrival = 100 + 3 * (int64_t)k;
        const int64_t late = seen.at[c][k] - arrival;
        assert_in_range(late, 0, DELAY);
        latest = late > latest ? late : latest;
        assert_true(k == 0 || seen.at[c][k] >= seen.at[c][k - 1]); /* in order */
        overtaken = overtaken || (k > 0 && seen.at[(c + 1) % 3][k] < seen.at[c][k - 1]);
      }
    }
    assert_true(latest > DELAY / 2);
  }
  assert_true(overtaken);
}

static void test_delays_depend_on_the_seed_alone(void **state) {
  (void)state;
  struct seen first;
  struct seen again;
  watch(5, 2, 40, false, &first);
  watch(5, 2, 40, false, &again);
  assert_memory_equal(&first, &again, sizeof first);
  watch(5, 2, 40, true, &again); /* not on when somebody asks */
  assert_memory_equal(&first, &again, sizeof first);
  watch(6, 2, 40, false, &again);
  assert_memory_not_equal(&first, &again, sizeof first);
  watch(5, 1, 40, false, &again);
  assert_memory_not_equal(&first, &again, sizeof first);
}

/* A later message that is asked for first does not overtake. */
static void test_order_holds_in_any_order_of_tests(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 50; seed++) {
    struct world *world = make_world((struct weft_fault_options){.seed = seed, .delay_max = 30});
    assert_int_equal(receive(world, 1, 0, 10), WEFT_OK);
    assert_int_equal(receive(world, 1, 1, 10), WEFT_OK);
    for (world->fake.now = 10; test(world, 1, 1) != WEFT_OK;) {
      world->fake.now++;
    }
    assert_int_equal(test(world, 1, 0), WEFT_OK);
    assert_true(world->messages[1][0].end <= world->messages[1][1].end);
    free_world(world);
  }
}

/* Two messages come at 100. Nobody asks for them: a rank may wait for something
 * else. */
static void test_waits_end_at_a_release(void **state) {
  (void)state;
  uint32_t two_wakes = 0;
  for (uint64_t seed = 0; seed < 50; seed++) {
    struct world *world = make_world((struct weft_fault_options){.seed = seed, .delay_max = 1000});
    int64_t woken = 100;
    uint32_t wakes = 0;
    assert_int_equal(receive(world, 0, 0, 100), WEFT_OK);
    assert_int_equal(receive(world, 1, 0, 100), WEFT_OK);
    progress(world);
    assert_int_equal(wait_until(world, WEFT_TIME_NEVER), WEFT_TIME_NEVER);
    world->fake.now = 100;
    progress(world);
    while (wait_until(world, WEFT_TIME_NEVER) != WEFT_TIME_NEVER) {
      const int64_t until = wait_until(world, WEFT_TIME_NEVER);
      assert_in_range(until, woken + 1, 1100);       /* a new one each time */
      assert_int_equal(wait_until(world, 101), 101); /* an earlier deadline counts */
      world->fake.now = until + 1;
      assert_int_equal(wait_until(world, WEFT_TIME_NEVER), until); /* not slept through */
      progress(world);
      woken = until;
      wakes++;
    }
    assert_int_equal(test(world, 0, 0), WEFT_OK);
    assert_int_equal(test(world, 1, 0), WEFT_OK);
    const int64_t ends[2] = {world->messages[0][0].end, world->messages[1][0].end};
    assert_int_equal(ends[0] > ends[1] ? ends[0] : ends[1], woken);
    two_wakes += wakes == 2;
    free_world(world);
  }
  assert_true(two_wakes > 40);
}

static void test_everything_is_slower(void **state) {
  (void)state;
  struct world *world = make_world((struct weft_fault_options){.slow_by = 50});
  struct weft_transport *injector = world->injector;
  world->fake.done_at = 10;
  assert_int_equal(injector->ops->post(injector, 3, true, &world->messages[3][0], NULL), WEFT_OK);
  assert_int_equal(receive(world, 0, 0, 20), WEFT_OK);
  world->fake.now = 20;
  progress(world);
  assert_int_equal(wait_until(world, WEFT_TIME_NEVER), 60);
  world->fake.now = 59;
  assert_int_equal(test(world, 3, 0), WEFT_IN_PROGRESS);
  world->fake.now = 69;
  assert_int_equal(test(world, 3, 0), WEFT_OK);
  assert_int_equal(world->messages[3][0].end, 60);
  assert_int_equal(test(world, 0, 0), WEFT_IN_PROGRESS);
  world->fake.now = 70;
  assert_int_equal(test(world, 0, 0), WEFT_OK);
  assert_int_equal(world->messages[0][0].end, 70);
  free_world(world);

  world = make_world((struct weft_fault_options){.slow_by = INT64_MAX, .delay_max = INT64_MAX});
  assert_int_equal(receive(world, 0, 0, 20), WEFT_OK);
  world->fake.now = INT64_MAX - 1;
  assert_int_equal(test(world, 0, 0), WEFT_IN_PROGRESS);
  world->injector->ops->cancel(world->injector, &world->messages[0][0]);
  assert_int_equal(world->fake.cancels, 0); /* the one inside has given it back already */
  free_world(world);
}

/* No more than `depth` in flight; what has been delivered makes room, asked for or
 * not. */
static void test_depth(void **state) {
  (void)state;
  struct world *world = make_world((struct weft_fault_options){.slow_by = 5});
  struct weft_message extra[3] = {{.end = 0}};
  for (uint32_t k = 0; k < DEPTH; k++) {
    assert_int_equal(receive(world, 0, k, k < 2 ? 10 : 20), WEFT_OK);
  }
  const uint32_t calls = world->fake.calls;
  assert_int_equal(world->injector->ops->post(world->injector, 0, false, &extra[0], NULL),
                   WEFT_IN_PROGRESS);
  assert_int_equal(world->fake.calls, calls);
  world->fake.now = 10;
  for (int k = 0; k < 3; k++) {
    assert_int_equal(world->injector->ops->post(world->injector, 0, false, &extra[k], NULL),
                     k < 2 ? WEFT_OK : WEFT_IN_PROGRESS);
  }
  assert_int_equal(test(world, 0, 0), WEFT_IN_PROGRESS);
  world->fake.now = 24;
  assert_int_equal(test(world, 0, 3), WEFT_IN_PROGRESS);
  assert_int_equal(test(world, 0, 1), WEFT_OK);
  assert_int_equal(test(world, 0, 0), WEFT_OK);
  world->fake.now = 25;
  assert_int_equal(world->injector->ops->test(world->injector, &extra[1], NULL), WEFT_OK);
  for (uint32_t k = 2; k < DEPTH; k++) {
    assert_int_equal(test(world, 0, k), WEFT_OK);
  }
  free_world(world);
}

/* One that is held back leaves nothing behind that could be looked at later. */
static void test_cancelling_what_is_held(void **state) {
  (void)state;
  struct world *world = make_world((struct weft_fault_options){.slow_by = 50});
  for (uint32_t k = 0; k < 3; k++) {
    assert_int_equal(receive(world, 0, k, 10 + k), WEFT_OK);
  }
  world->fake.now = 20;
  progress(world);
  assert_int_equal(wait_until(world, WEFT_TIME_NEVER), 60);
  for (uint32_t k = 0; k < 3; k++) {
    struct weft_message *message = &world->messages[0][k];
    world->injector->ops->cancel(world->injector, message);
    memset(message, 0xee, sizeof *message);
    assert_int_equal(wait_until(world, WEFT_TIME_NEVER), k < 2 ? 61 + k : WEFT_TIME_NEVER);
  }
  assert_int_equal(world->fake.cancels, 0);
  free_world(world);
}

static void test_errors_inside_are_passed_on(void **state) {
  (void)state;
  struct world *world = make_world((struct weft_fault_options){.delay_max = 5});
  assert_int_equal(receive(world, 0, 0, 10), WEFT_OK);
  world->fake.test_status = WEFT_ERR_PROTOCOL;
  progress(world); /* whose message it is, gets it */
  assert_int_equal(test(world, 0, 0), WEFT_ERR_PROTOCOL);
  world->injector->ops->cancel(world->injector, &world->messages[0][0]);
  assert_int_equal(world->fake.cancels, 1);
  free_world(world);
}

/* ---- Damage ---- */

static void fill(struct weft_message *message, unsigned char *data, uint32_t tensor_count) {
  *message = (struct weft_message){.header = {.magic = WEFT_MESSAGE_MAGIC,
                                              .protocol = WEFT_PROTOCOL,
                                              .tensor_count = (uint8_t)tensor_count,
                                              .bytes = 32},
                                   .data = data,
                                   .capacity = 64};
  for (uint32_t k = 0; k < tensor_count; k++) {
    message->shapes[k] =
        (struct weft_tensor_shape){.dtype = WEFT_F32, .dim_count = 2, .dims = {2, 4}};
  }
  message->header.payload_checksum = weft_checksum(data, 32);
  weft_message_seal(message);
}

static uint32_t bits_differing(const void *left, const void *right, size_t size) {
  const unsigned char *a = left;
  const unsigned char *b = right;
  uint32_t count = 0;
  for (size_t k = 0; k < size; k++) {
    count += (uint32_t)__builtin_popcount((unsigned)(a[k] ^ b[k]));
  }
  return count;
}

/* Three messages, the second of which is damaged. */
static void damage_one(uint64_t seed, uint32_t tensor_count, bool payload, bool *in_shapes) {
  unsigned char data[3][64] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
  unsigned char data_before[64];
  struct weft_message before[3];
  struct world *world = make_world(
      (struct weft_fault_options){.seed = seed, .damage_receive = 2, .damage_payload = payload});
  memcpy(data_before, data[1], 64);
  for (uint32_t k = 0; k < 3; k++) {
    fill(&world->messages[0][k], data[k], tensor_count);
    assert_int_equal(receive(world, 0, k, 0), WEFT_OK);
    before[k] = world->messages[0][k];
  }
  for (uint32_t k = 0; k < 3; k++) {
    struct weft_error error = {0};
    const struct weft_message *message = &world->messages[0][k];
    assert_int_equal(test(world, 0, k), WEFT_OK);
    const uint32_t header_bits = bits_differing(&message->header, &before[k].header, 64);
    const uint32_t shape_bits =
        bits_differing(message->shapes, before[k].shapes, tensor_count * sizeof message->shapes[0]);
    const bool damaged = k == 1;
    assert_int_equal(header_bits + shape_bits, damaged && !payload);
    assert_int_equal(bits_differing(message->shapes, before[k].shapes, sizeof before[k].shapes),
                     shape_bits); /* only those in use */
    assert_int_equal(weft_message_check(message, &error),
                     damaged && !payload ? WEFT_ERR_PROTOCOL : WEFT_OK);
    assert_true(weft_checksum(data[k], 32) == before[k].header.payload_checksum ||
                (damaged && payload));
    *in_shapes = *in_shapes || shape_bits > 0;
  }
  assert_int_equal(bits_differing(data[1], data_before, 32), payload);
  assert_int_equal(bits_differing(data[1] + 32, data_before + 32, 32), 0);
  free_world(world);
}

static void test_one_message_is_damaged(void **state) {
  (void)state;
  bool in_shapes = false;
  for (uint64_t seed = 0; seed < 300; seed++) {
    bool nowhere = false;
    damage_one(seed, 2, false, &in_shapes);
    damage_one(seed, 0, false, &nowhere);
    damage_one(seed, WEFT_TENSORS_MAX, true, &nowhere);
    assert_false(nowhere);
  }
  assert_true(in_shapes);
}

/* A header that is wrong already leads nowhere it should not. */
static void test_damage_of_a_wrong_header(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 100; seed++) {
    unsigned char data[64] = {0};
    struct world *world = make_world((struct weft_fault_options){
        .seed = seed, .damage_receive = 1, .damage_payload = seed % 2 == 0});
    struct weft_message *message = &world->messages[0][0];
    fill(message, data, 1);
    message->header.bytes = UINT64_MAX;
    message->header.tensor_count = 255;
    if (seed % 4 == 0) {
      message->data = NULL;
      message->capacity = 0;
    }
    const struct weft_message before = *message;
    assert_int_equal(receive(world, 0, 0, 0), WEFT_OK);
    assert_int_equal(test(world, 0, 0), WEFT_OK);
    assert_int_equal(bits_differing(&before.header, &message->header, sizeof before.header) +
                         bits_differing(before.shapes, message->shapes, sizeof before.shapes) +
                         bits_differing(data, (const unsigned char[64]){0}, sizeof data),
                     1);
    free_world(world);
  }
}

/* ---- Death ---- */

static void check_death(enum weft_status status, const struct weft_error *error,
                        const char *message) {
  assert_int_equal(status, WEFT_ERR_CANCELLED);
  assert_string_equal(error->message, message);
}

static void test_the_dead_are_silent(void **state) {
  (void)state;
  static const char message[] = "fault: rank 2 died at its 3rd operation";
  struct world *world = make_world((struct weft_fault_options){.die_at = 3});
  struct weft_transport *injector = world->injector;
  struct weft_failure failure = {.error = {.status = WEFT_ERR_STALLED}};
  struct weft_error error = {0};
  char all[8];
  assert_int_equal(receive(world, 0, 0, 100), WEFT_OK);
  assert_int_equal(injector->ops->post(injector, 3, true, &world->messages[3][0], NULL), WEFT_OK);
  progress(world);
  world->fake.statuses[2].cell = 17;
  const uint32_t calls = world->fake.calls;
  check_death(injector->ops->post(injector, 3, true, &world->messages[3][1], &error), &error,
              message);
  check_death(injector->ops->progress(injector, &error), &error, message);
  check_death(injector->ops->wait(injector, 5, &error), &error, message);
  check_death(injector->ops->exchange(injector, "x", all, 1, &error), &error, message);
  check_death(injector->ops->test(injector, &world->messages[0][0], &error), &error, message);
  check_death(injector->ops->post(injector, 0, false, &world->messages[0][1], &error), &error,
              message);
  (injector->ops->fail)(injector, &failure);  /* cmocka has a macro of that name */
  assert_int_equal(world->fake.calls, calls); /* nothing was forwarded */
  assert_ptr_equal(injector->ops->rank_status(injector, 2), &world->fake.statuses[2]);
  assert_int_equal(world->fake.statuses[2].cell, 17);
  assert_true(injector->ops->get_failure(injector, &failure));
  injector->ops->cancel(injector, &world->messages[0][0]); /* its memory is about to go */
  injector->ops->cancel(injector, &world->messages[3][0]);
  assert_int_equal(world->fake.cancels, 2);
  free_world(world);
}

static void test_ordinals(void **state) {
  (void)state;
  static const struct {
    uint64_t number;
    const char *text;
  } cases[] = {{1, " 1st "},   {2, " 2nd "},     {4, " 4th "},     {11, " 11th "},
               {12, " 12th "}, {13, " 13th "},   {21, " 21st "},   {22, " 22nd "},
               {10, " 10th "}, {101, " 101st "}, {111, " 111th "}, {112, " 112th "}};
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    struct world *world = make_world((struct weft_fault_options){.die_at = cases[c].number});
    struct weft_error error = {0};
    enum weft_status status = WEFT_OK;
    uint64_t calls = 0;
    for (; status == WEFT_OK; calls++) {
      status =
          world->injector->ops->post(world->injector, 0, false, &world->messages[0][0], &error);
      if (status == WEFT_OK) {
        assert_int_equal(test(world, 0, 0), WEFT_OK);
      }
    }
    assert_int_equal(calls, cases[c].number);
    assert_non_null(strstr(error.message, cases[c].text));
    free_world(world);
  }
}

/* ---- Making one ---- */

static void test_wrong_options(void **state) {
  (void)state;
  struct fake fake = {.base = {.ops = &fake_ops, .rank_count = 1}};
  struct weft_transport *out = NULL;
  struct weft_error error = {0};
  assert_int_equal(
      weft_fault_injector_create(NULL, &fake.base, &(struct weft_fault_options){.delay_max = -1},
                                 &out, &error),
      WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "delay_max -1"));
  assert_int_equal(weft_fault_injector_create(
                       NULL, &fake.base, &(struct weft_fault_options){.slow_by = -3}, &out, &error),
                   WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "slow_by -3"));
  assert_null(out);
}

static void test_memory(void **state) {
  (void)state;
  struct world *world = malloc(sizeof *world);
  struct test_memory memory;
  enum weft_status status = WEFT_ERR_MEMORY;
  assert_non_null(world);
  for (uint64_t n = 1; status != WEFT_OK; n++) {
    test_memory_init(&memory);
    memory.fail_at = n;
    status = try_world(world, &memory.allocator, 0, (struct weft_fault_options){.delay_max = 3});
    assert_true(status == WEFT_OK || (status == WEFT_ERR_MEMORY && memory.blocks == 0));
  }
  const uint64_t calls = memory.calls;
  for (uint32_t round = 0; round < 10; round++) {
    for (uint32_t k = 0; k < DEPTH; k++) {
      assert_int_equal(receive(world, 0, k, world->fake.now), WEFT_OK);
    }
    world->fake.now += 3;
    progress(world);
    world->fake.now += 3;
    for (uint32_t k = 0; k < DEPTH; k++) {
      assert_int_equal(test(world, 0, k), WEFT_OK);
    }
  }
  assert_int_equal(memory.calls, calls);
  world->injector->ops->destroy(world->injector);
  assert_int_equal(memory.blocks, 0);
  free(world);
}

static void test_open_that_fails(void **state) {
  (void)state;
  struct test_memory memory;
  struct fake fake = {.base = {.ops = &fake_ops, .rank_count = 1}, .open_status = WEFT_ERR_USAGE};
  const struct weft_channel_end ends[2] = {{.depth = 4}, {.depth = UINT32_MAX, .sends = true}};
  struct weft_transport *injector = NULL;
  struct weft_error error = {0};
  test_memory_init(&memory);
  assert_int_equal(weft_fault_injector_create(&memory.allocator, &fake.base,
                                              &(struct weft_fault_options){0}, &injector, &error),
                   WEFT_OK);
  assert_int_equal(injector->ops->open(injector, ends, 1, &error), WEFT_ERR_USAGE);
  assert_int_equal(memory.blocks, 1);
  fake.open_status = WEFT_OK;
  assert_int_equal(injector->ops->open(injector, ends, 1, &error), WEFT_OK);
  fake.open_status = WEFT_ERR_USAGE; /* once more: nothing changes, nothing is lost */
  assert_int_equal(injector->ops->open(injector, ends, 1, &error), WEFT_ERR_USAGE);
  assert_int_equal(injector->ops->open(injector, ends, 2, &error), WEFT_ERR_MEMORY); /* absurd */
  injector->ops->destroy(injector);
  assert_int_equal(memory.blocks, 0);
}

/* ---- The table of held messages ---- */

enum { MESSAGES = 64, ENDS = 5 };
enum held_state { OUTSIDE, TO_DELIVER, DELIVERED };

static void check_lists(const struct weft_delay_queue *held) {
  for (uint32_t e = 0; e < held->end_count; e++) {
    uint32_t length = 0;
    uint32_t last = WEFT_HELD_NONE;
    for (uint32_t at = held->ends[e].first; at != WEFT_HELD_NONE; at = held->messages[at].after) {
      assert_int_equal(held->messages[at].end, e);
      assert_int_equal(held->messages[at].before, last);
      last = at;
      length++;
    }
    assert_int_equal(held->ends[e].last, last);
    assert_int_equal(held->ends[e].count, length);
  }
}

/* The earliest release after `now`, found the plain way; and who is where. */
static void check_held(struct weft_delay_queue *held, const struct weft_message *messages,
                       const enum held_state *states, int64_t now) {
  int64_t next = WEFT_TIME_NEVER;
  for (uint32_t k = 0; k < MESSAGES; k++) {
    const struct weft_delay_message *found = weft_delay_find(held, &messages[k]);
    assert_int_equal(found != NULL, states[k] == TO_DELIVER);
    assert_true(found == NULL || found->message == &messages[k]);
    if (states[k] == DELIVERED && messages[k].end > now && messages[k].end < next) {
      next = messages[k].end;
    }
  }
  assert_true(weft_delay_next_release(held) == next);
}

static void test_held_messages(void **state) {
  (void)state;
  static struct weft_message messages[MESSAGES];
  enum held_state states[MESSAGES] = {OUTSIDE};
  struct weft_delay_queue held;
  struct weft_channel_end ends[ENDS];
  struct weft_random random = {11};
  for (uint32_t k = 0; k < ENDS; k++) {
    ends[k] = (struct weft_channel_end){.channel = 10 - k, .depth = 3 + 4 * k};
  }
  assert_int_equal(weft_delay_init(&held, NULL, ends, ENDS, NULL), WEFT_OK);
  assert_null(weft_delay_find_end(&held, 3, false));
  assert_null(weft_delay_find_end(&held, 10, true));
  for (int64_t now = 0; now < 20000; now++) {
    const uint32_t k = weft_random_below(&random, MESSAGES);
    struct weft_delay_end *end =
        weft_delay_find_end(&held, 10 - weft_random_below(&random, ENDS), false);
    assert_non_null(end);
    if (states[k] == TO_DELIVER && weft_random_below(&random, 4) == 0) {
      weft_delay_drop(&held, weft_delay_find(&held, &messages[k]));
      states[k] = OUTSIDE;
    } else if (states[k] == DELIVERED && weft_random_below(&random, 2) == 0) {
      weft_delay_let_go(&messages[k]); /* before its time, or after */
      states[k] = OUTSIDE;
    } else if (states[k] == OUTSIDE && end->count < end->depth) {
      weft_delay_add(&held, end, &messages[k])->delay = weft_random_below(&random, 200);
      states[k] = TO_DELIVER;
    }
    if (end->count > 0 && weft_random_below(&random, 2) == 0) {
      struct weft_message *first = held.messages[end->first].message;
      const int64_t released = end->released;
      first->end = now;
      weft_delay_deliver(&held, end);
      states[first - messages] = DELIVERED;
      assert_true(first->end >= now && first->end >= released);
    }
    weft_delay_pass(&held, now);
    check_held(&held, messages, states, now);
    check_lists(&held);
  }
  weft_delay_finish(&held);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_without_faults),
      cmocka_unit_test(test_messages_are_held_back),
      cmocka_unit_test(test_delays_depend_on_the_seed_alone),
      cmocka_unit_test(test_order_holds_in_any_order_of_tests),
      cmocka_unit_test(test_waits_end_at_a_release),
      cmocka_unit_test(test_everything_is_slower),
      cmocka_unit_test(test_depth),
      cmocka_unit_test(test_cancelling_what_is_held),
      cmocka_unit_test(test_errors_inside_are_passed_on),
      cmocka_unit_test(test_one_message_is_damaged),
      cmocka_unit_test(test_damage_of_a_wrong_header),
      cmocka_unit_test(test_the_dead_are_silent),
      cmocka_unit_test(test_ordinals),
      cmocka_unit_test(test_wrong_options),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_open_that_fails),
      cmocka_unit_test(test_held_messages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
