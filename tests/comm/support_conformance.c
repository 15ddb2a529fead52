/* The tests that every transport passes. */
#include "support_conformance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "support_traffic.h"

enum { RANKS_MAX = 8, LATE_NS_MAX = 2000000000 };

/* A world with its ranks, for one test. */
struct fixture {
  const struct conformance_transport *transport;
  void *world;
  uint32_t rank_count;
  struct weft_transport *endpoints[RANKS_MAX];
  struct conformance_rank ranks[RANKS_MAX];
};

static void set_up(struct fixture *fixture, void **state, uint32_t rank_count) {
  memset(fixture, 0, sizeof *fixture);
  fixture->transport = *state;
  fixture->rank_count = rank_count;
  fixture->world =
      fixture->transport->create(fixture->transport->context, rank_count, fixture->endpoints);
  for (uint32_t r = 0; r < rank_count; r++) {
    if (fixture->endpoints[r] == NULL) { /* another process's */
      assert_true(fixture->transport->same_everywhere != NULL);
      continue;
    }
    assert_int_equal(fixture->endpoints[r]->rank, r);
    assert_int_equal(fixture->endpoints[r]->rank_count, rank_count);
    fixture->ranks[r].transport = fixture->endpoints[r];
  }
}

static void tear_down(struct fixture *fixture) {
  fixture->transport->destroy(fixture->transport->context, fixture->world, fixture->rank_count,
                              fixture->endpoints);
}

/* The first rank of this process; NULL: it has none in this world. */
static struct weft_transport *any_endpoint(const struct fixture *fixture) {
  for (uint32_t r = 0; r < fixture->rank_count; r++) {
    if (fixture->endpoints[r] != NULL) {
      return fixture->endpoints[r];
    }
  }
  return NULL;
}

static void drive(struct fixture *fixture) {
  if (any_endpoint(fixture) != NULL) {
    fixture->transport->drive(fixture->world, fixture->ranks, fixture->rank_count);
  }
}

/* Waits for the other processes, where there are any. */
static bool same_everywhere(const struct fixture *fixture, const void *data, size_t size) {
  return fixture->transport->same_everywhere == NULL || any_endpoint(fixture) == NULL ||
         fixture->transport->same_everywhere(fixture->world, data, size);
}

/* That many ranks, or as many as there can be. */
static uint32_t at_most(void *const *state, uint32_t rank_count) {
  const struct conformance_transport *transport = *state;
  const uint32_t max = transport->ranks_max;
  return max != 0 && max < rank_count ? max : rank_count;
}

/* Drives it; all ranks must succeed. */
static void drive_well(struct fixture *fixture) {
  drive(fixture);
  for (uint32_t r = 0; r < fixture->rank_count; r++) {
    if (fixture->ranks[r].status != WEFT_OK) {
      fail_msg("rank %u: %s", r, fixture->ranks[r].error.message);
    }
  }
}

static void all_advance(struct fixture *fixture,
                        enum weft_status (*advance)(struct conformance_rank *, struct weft_error *),
                        void *states, size_t state_size) {
  for (uint32_t r = 0; r < fixture->rank_count; r++) {
    fixture->ranks[r].advance = advance;
    fixture->ranks[r].state = (unsigned char *)states + r * state_size;
  }
}

/* A while, in the transport's time. */
static int64_t a_while(const struct fixture *fixture) {
  return fixture->transport->real_time ? 20 * 1000 * 1000 : 1000;
}

static int64_t after_a_while(const struct fixture *fixture) {
  struct weft_transport *any = any_endpoint(fixture);
  return any != NULL ? any->ops->now(any) + a_while(fixture) : 0;
}

/* ---- messages ---- */

static void carry(void **state, struct traffic *traffic, uint32_t rank_count) {
  struct fixture fixture;
  set_up(&fixture, state, rank_count);
  traffic_begin(traffic, fixture.ranks, rank_count);
  drive_well(&fixture);
  traffic_finish(traffic, rank_count);
  tear_down(&fixture);
}

static struct traffic_flow flow(uint32_t from, uint32_t to, uint64_t count, uint32_t depth,
                                uint32_t window) {
  return (struct traffic_flow){.from = from,
                               .to = to,
                               .count = count,
                               .depth = depth,
                               .send_window = window,
                               .receive_window = window,
                               .bytes_max = 300};
}

static void ping_pong(void **state) {
  struct traffic traffic = {.flow_count = 2, .seed = 1};
  traffic.flows[0] = flow(0, 1, 300, 1, 1);
  traffic.flows[0].send_when = (struct traffic_condition){TRAFFIC_RECEIVED, 1, 1, 1};
  traffic.flows[1] = flow(1, 0, 300, 1, 1);
  traffic.flows[1].send_when = (struct traffic_condition){TRAFFIC_RECEIVED, 0, 1, 0};
  carry(state, &traffic, 2);
}

static void order_on_a_channel(void **state) {
  static const uint32_t shapes[][3] = {
      /* depth, send window, receive window */
      {1, 1, 1}, {1, 3, 3}, {3, 1, 7}, {3, 7, 1}, {4, 12, 12}, {8, 8, 8}, {100, 100, 100}};
  for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
    struct traffic traffic = {.flow_count = 1, .seed = k};
    traffic.flows[0] = flow(0, 1, 1000, shapes[k][0], shapes[k][1]);
    traffic.flows[0].receive_window = shapes[k][2];
    carry(state, &traffic, 2);
  }
}

static void many_channels(void **state) {
  struct traffic traffic = {.flow_count = 24, .seed = 3};
  for (uint32_t f = 0; f < traffic.flow_count; f++) {
    traffic.flows[f] = flow(f % 2, 1 - f % 2, 50 + f * 5, 1 + f % 5, 1 + f % 7);
  }
  carry(state, &traffic, 2);
}

/* Rank 1 receives nothing on channel 0 before rank 0 has had to wait. */
static void full_channel(void **state) {
  for (uint32_t depth = 1; depth <= 9; depth += 4) {
    struct traffic traffic = {.flow_count = 2, .seed = depth};
    traffic.flows[0] = flow(0, 1, 100, depth, 40);
    traffic.flows[0].receive_when = (struct traffic_condition){TRAFFIC_RECEIVED, 1, TRAFFIC_ALL, 0};
    traffic.flows[1] = flow(0, 1, 1, 1, 1);
    traffic.flows[1].send_when = (struct traffic_condition){TRAFFIC_STUCK, 0, TRAFFIC_ALL, 0};
    carry(state, &traffic, 2);
  }
}

static void receive_before_send(void **state) {
  struct traffic traffic = {.flow_count = 2, .seed = 5};
  traffic.flows[0] = flow(0, 1, 4, 4, 4);
  traffic.flows[0].send_when = (struct traffic_condition){TRAFFIC_RECEIVED, 1, TRAFFIC_ALL, 0};
  traffic.flows[1] = flow(1, 0, 1, 1, 1);
  traffic.flows[1].send_when = (struct traffic_condition){TRAFFIC_POSTED, 0, 1, 0};
  carry(state, &traffic, 2);
}

static void send_before_receive(void **state) {
  struct traffic traffic = {.flow_count = 2, .seed = 6};
  traffic.flows[0] = flow(0, 1, 4, 4, 4);
  traffic.flows[0].receive_when = (struct traffic_condition){TRAFFIC_RECEIVED, 1, TRAFFIC_ALL, 0};
  traffic.flows[1] = flow(0, 1, 1, 1, 1);
  traffic.flows[1].send_when = (struct traffic_condition){TRAFFIC_STUCK, 0, TRAFFIC_ALL, 0};
  carry(state, &traffic, 2);
}

static void payload_sizes(void **state) {
  static const uint64_t largest[] = {0, 1, 4096, 100000};
  for (size_t k = 0; k < sizeof largest / sizeof largest[0]; k++) {
    struct traffic traffic = {.flow_count = 3, .seed = 7 + k};
    for (uint32_t f = 0; f < traffic.flow_count; f++) {
      traffic.flows[f] = flow(f % 2, 1 - f % 2, 10, 2, 3);
      traffic.flows[f].bytes_max = largest[k];
      traffic.flows[f].sizes = (enum traffic_sizes)f;
    }
    carry(state, &traffic, 2);
  }
}

/* A ring both ways, of more ranks than cores too. */
static void ranks_in_a_ring(void **state) {
  static const uint32_t counts[] = {1, 2, 3, 8};
  for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
    const uint32_t p = at_most(state, counts[k]);
    struct traffic traffic = {.flow_count = p == 1 ? 0 : 2 * p, .seed = 8 + p};
    for (uint32_t f = 0; f < traffic.flow_count; f++) {
      const uint32_t rank = f / 2;
      traffic.flows[f] = flow(rank, (rank + (f % 2 == 0 ? 1 : p - 1)) % p, 100, 2, 3);
    }
    carry(state, &traffic, p);
  }
}

static void random_traffic(struct traffic *traffic, uint32_t rank_count, uint64_t seed) {
  struct weft_random random = {seed};
  memset(traffic, 0, sizeof *traffic);
  traffic->seed = seed;
  traffic->hesitant = true;
  traffic->flow_count = 1 + weft_random_below(&random, 20);
  for (uint32_t f = 0; f < traffic->flow_count; f++) {
    const uint32_t from = weft_random_below(&random, rank_count);
    const uint32_t to = (from + 1 + weft_random_below(&random, rank_count - 1)) % rank_count;
    struct traffic_flow *one = &traffic->flows[f];
    *one = flow(from, to, weft_random_below(&random, 60), 1 + weft_random_below(&random, 6),
                1 + weft_random_below(&random, 8));
    one->receive_window = 1 + weft_random_below(&random, 8);
    one->bytes_max = weft_random_below(&random, 200);
  }
}

static void traffic_at_random(void **state) {
  static const uint32_t counts[] = {2, 3, 8};
  for (uint64_t seed = 0; seed < 30; seed++) {
    struct traffic traffic;
    const uint32_t rank_count = at_most(state, counts[seed % 3]);
    random_traffic(&traffic, rank_count, seed);
    carry(state, &traffic, rank_count);
  }
}

/* One rank fails in the middle; every rank cancels, frees and goes, on its own. */
static void failure_in_traffic(void **state) {
  static const uint32_t counts[] = {2, 3, 8};
  uint32_t failed = 0;
  for (uint64_t seed = 100; seed < 160; seed++) {
    struct traffic traffic;
    struct fixture fixture;
    const uint32_t rank_count = at_most(state, counts[seed % 3]);
    random_traffic(&traffic, rank_count, seed);
    traffic.hesitant = seed % 2 == 0;
    traffic.fail_rank = (uint32_t)seed % rank_count;
    traffic.fail_after = 1 + seed % 37;
    set_up(&fixture, state, rank_count);
    traffic_begin(&traffic, fixture.ranks, rank_count);
    drive(&fixture);
    for (uint32_t r = 0; r < rank_count; r++) {
      const enum weft_status status = fixture.ranks[r].status;
      if (status != WEFT_OK && status != WEFT_ERR_STAGE) {
        fail_msg("seed %u, rank %u: %s", (unsigned)seed, r, fixture.ranks[r].error.message);
      }
      failed += status == WEFT_ERR_STAGE;
    }
    traffic_finish(&traffic, rank_count);
    tear_down(&fixture);
  }
  const struct conformance_transport *transport = *state; /* ranks, in most of the worlds */
  assert_in_range(failed, transport->same_everywhere == NULL ? 100 : 1, UINT32_MAX);
}

/* Rank 0 sends on channel 1 when its send on channel 0 is done, and rank 1 asks
 * for the one on channel 0 last: progress() alone takes it. */
struct patient {
  struct weft_message messages[2];
  char data[2][8];
  uint32_t started;
  uint32_t done;
};

static enum weft_status open_two(struct patient *self, struct weft_transport *transport,
                                 struct weft_error *error) {
  struct weft_channel_end ends[2];
  for (uint32_t c = 0; c < 2; c++) {
    ends[c] = (struct weft_channel_end){.channel = c,
                                        .peer = 1 - transport->rank,
                                        .sends = transport->rank == 0,
                                        .depth = 1,
                                        .bytes_max = sizeof self->data[c]};
    self->messages[c].data = self->data[c];
    self->messages[c].capacity = sizeof self->data[c];
  }
  return transport->ops->open(transport, ends, 2, error);
}

static enum weft_status one_after_the_other(struct conformance_rank *rank,
                                            struct weft_error *error) {
  struct patient *self = rank->state;
  struct weft_transport *transport = rank->transport;
  const bool sends = transport->rank == 0;
  if (self->started == 0) {
    WEFT_TRY(open_two(self, transport, error));
  }
  while (self->done < 2) {
    for (; self->started < 2 && (!sends || self->started == self->done); self->started++) {
      struct weft_message *message = &self->messages[self->started];
      CONFORMANCE_CHECK(
          error, transport->ops->post(transport, self->started, sends, message, error) == WEFT_OK);
    }
    const enum weft_status status = transport->ops->test(
        transport, &self->messages[sends ? self->done : 1 - self->done], error);
    if (status != WEFT_OK) {
      return status;
    }
    self->done++;
  }
  return WEFT_OK;
}

static void posted_receives_are_taken(void **state) {
  struct fixture fixture;
  struct patient ranks[2];
  memset(ranks, 0, sizeof ranks);
  set_up(&fixture, state, 2);
  all_advance(&fixture, one_after_the_other, ranks, sizeof ranks[0]);
  drive_well(&fixture);
  tear_down(&fixture);
}

/* Rank 0 sends on channel 0. Rank 1 posts the receive late, and then sends back on channel 1 when
 * it did. */
struct late {
  struct weft_message messages[2]; /* of channels 0 and 1 */
  uint64_t bytes;
  int64_t a_while, post_at, done_at;
  int64_t posted_at; /* payload of channel 1 */
  uint32_t started, done;
  char data[100000];
};

static enum weft_status open_late(struct late *self, struct weft_transport *transport,
                                  struct weft_error *error) {
  struct weft_channel_end ends[2];
  const uint64_t bytes[2] = {self->bytes, sizeof self->posted_at};
  for (uint32_t c = 0; c < 2; c++) {
    ends[c] = (struct weft_channel_end){.channel = c,
                                        .peer = 1 - transport->rank,
                                        .sends = transport->rank == c,
                                        .depth = 1,
                                        .bytes_max = bytes[c],
                                        .rendezvous = true};
    self->messages[c].header.bytes = bytes[c];
    self->messages[c].capacity = bytes[c];
    self->messages[c].data = c == 0 ? (void *)self->data : (void *)&self->posted_at;
  }
  self->post_at = transport->ops->now(transport) + self->a_while;
  return transport->ops->open(transport, ends, 2, error);
}

static enum weft_status send_to_late(struct conformance_rank *rank, struct weft_error *error) {
  struct late *self = rank->state;
  struct weft_transport *transport = rank->transport;
  if (self->post_at == 0) {
    WEFT_TRY(open_late(self, transport, error));
  }
  for (; self->done < 2; self->done++) {
    struct weft_message *message = &self->messages[self->done];
    if (self->started == self->done) {
      const int64_t now = transport->ops->now(transport);
      if (transport->rank == 1 && now < self->post_at) {
        rank->until = self->post_at;
        return WEFT_IN_PROGRESS;
      }
      if (transport->rank == 1 && self->done == 0) {
        self->posted_at = now;
      }
      WEFT_TRY(transport->ops->post(transport, self->done, transport->rank == self->done, message,
                                    error));
      self->started++;
    }
    const enum weft_status status = transport->ops->test(transport, message, error);
    if (status != WEFT_OK) {
      return status;
    }
    if (self->done == 0) {
      self->done_at = transport->ops->now(transport);
    }
  }
  CONFORMANCE_CHECK(error, self->done_at >= *(const int64_t *)self->messages[1].data);
  return WEFT_OK;
}

static void rendezvous_waits_for_the_receive(void **state) {
  static const uint64_t sizes[] = {0, 8, 3000, 100000};
  static struct late ranks[2];
  for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
    struct fixture fixture;
    memset(ranks, 0, sizeof ranks);
    set_up(&fixture, state, 2);
    ranks[0].bytes = ranks[1].bytes = sizes[k];
    ranks[0].a_while = ranks[1].a_while = a_while(&fixture);
    all_advance(&fixture, send_to_late, ranks, sizeof ranks[0]);
    drive_well(&fixture);
    tear_down(&fixture);
  }
}

/* ---- what is refused; calls of both ranks from this thread ---- */

static enum weft_status open_one(struct weft_transport *transport, uint32_t channel, bool sends,
                                 uint64_t bytes_max) {
  const struct weft_channel_end end = {.channel = channel,
                                       .peer = 1 - transport->rank,
                                       .sends = sends,
                                       .depth = 4,
                                       .bytes_max = bytes_max};
  struct weft_error error;
  return transport->ops->open(transport, &end, 1, &error);
}

static void assert_refused(enum weft_status status, const struct weft_error *error) {
  assert_int_equal(status, WEFT_ERR_USAGE);
  assert_int_equal(error->status, WEFT_ERR_USAGE);
  assert_true(strlen(error->message) > 10);
}

static void sends_are_refused(void **state) {
  struct fixture fixture;
  struct weft_error error;
  char data[64];
  struct weft_message message = {.data = data, .capacity = sizeof data};
  set_up(&fixture, state, 2);
  struct weft_transport *a = fixture.endpoints[0];
  struct weft_transport *b = fixture.endpoints[1];
  if (a != NULL) {
    assert_int_equal(open_one(a, 6, true, 32), WEFT_OK);
    message.header.bytes = 33; /* too long */
    assert_refused(a->ops->post(a, 6, true, &message, &error), &error);
    message.header.bytes = 32;
    assert_refused(a->ops->post(a, 7, true, &message, &error), &error);  /* not opened */
    assert_refused(a->ops->post(a, 6, false, &message, &error), &error); /* wrong way */
  }
  if (b != NULL) {
    assert_int_equal(open_one(b, 6, false, 32), WEFT_OK);
    assert_refused(b->ops->post(b, 4, false, &message, &error), &error);
    assert_refused(b->ops->post(b, 6, true, &message, &error), &error);
  }
  assert_ptr_equal(message.data, data);
  tear_down(&fixture);
}

static void channels_are_refused(void **state) {
  struct fixture fixture;
  struct weft_error error;
  const struct weft_channel_end twice[] = {
      {.channel = 2, .peer = 1, .sends = true, .depth = 1, .bytes_max = 8},
      {.channel = 3, .peer = 1, .sends = true, .depth = 1, .bytes_max = 8},
      {.channel = 2, .peer = 1, .sends = true, .depth = 1, .bytes_max = 8}};
  const struct weft_channel_end nobody = {
      .channel = 2, .peer = 2, .sends = true, .depth = 1, .bytes_max = 8};
  set_up(&fixture, state, 2);
  struct weft_transport *a = fixture.endpoints[0];
  struct weft_transport *b = fixture.endpoints[1];
  if (a != NULL) {
    assert_refused(a->ops->open(a, twice, 3, &error), &error);
  }
  if (b != NULL) {
    assert_refused(b->ops->open(b, &nobody, 1, &error), &error);
  }
  tear_down(&fixture);
}

/* A send that nobody takes and a receive that nobody serves. */
static void cancel_all(struct weft_transport *a) {
  struct weft_error error;
  char data[4][64];
  struct weft_message messages[4];
  memset(messages, 0, sizeof messages);
  for (int k = 0; k < 4; k++) {
    messages[k].data = data[k];
    messages[k].capacity = sizeof data[k];
    assert_int_equal(k < 2 ? a->ops->post(a, 0, true, &messages[k], &error)
                           : a->ops->post(a, 3, false, &messages[k], &error),
                     WEFT_OK);
    if (k >= 2) {
      assert_int_equal(a->ops->test(a, &messages[k], &error), WEFT_IN_PROGRESS);
    }
  }
  for (int k = 3; k >= 0; k--) {
    a->ops->cancel(a, &messages[k]);
    assert_ptr_equal(messages[k].data, data[k]);
    assert_int_equal(messages[k].capacity, sizeof data[k]);
  }
}

static void cancel_gives_back(void **state) {
  struct fixture fixture;
  struct weft_error error;
  set_up(&fixture, state, 2);
  struct weft_transport *a = fixture.endpoints[0];
  struct weft_transport *b = fixture.endpoints[1];
  const struct weft_channel_end ours[] = {
      {.channel = 0, .peer = 1, .sends = true, .depth = 2, .bytes_max = 64},
      {.channel = 3, .peer = 1, .sends = false, .depth = 2, .bytes_max = 64}};
  const struct weft_channel_end theirs[] = {
      {.channel = 0, .peer = 0, .sends = false, .depth = 2, .bytes_max = 64},
      {.channel = 3, .peer = 0, .sends = true, .depth = 2, .bytes_max = 64}};
  if (a != NULL) {
    assert_int_equal(a->ops->open(a, ours, 2, &error), WEFT_OK);
  }
  if (b != NULL) {
    assert_int_equal(b->ops->open(b, theirs, 2, &error), WEFT_OK);
  }
  if (a != NULL) {
    cancel_all(a);
  }
  tear_down(&fixture);
}

/* ---- exchanges ---- */

struct exchanging {
  uint32_t round;
  unsigned char all[RANKS_MAX * WEFT_EXCHANGE_MAX];
};

static unsigned char exchanged_byte(uint32_t rank, uint32_t round, size_t i) {
  return (unsigned char)(rank * 59 + round * 13 + i);
}

static enum weft_status exchange_rounds(struct conformance_rank *rank, struct weft_error *error) {
  struct exchanging *self = rank->state;
  struct weft_transport *transport = rank->transport;
  unsigned char mine[WEFT_EXCHANGE_MAX];
  for (; self->round < 128; self->round++) {
    const size_t size = (self->round * 37) % (WEFT_EXCHANGE_MAX + 1);
    for (size_t i = 0; i < size; i++) {
      mine[i] = exchanged_byte(transport->rank, self->round, i);
    }
    const enum weft_status status =
        transport->ops->exchange(transport, mine, self->all, size, error);
    if (status != WEFT_OK) {
      return status;
    }
    for (size_t i = 0; i < size * transport->rank_count; i++) {
      CONFORMANCE_CHECK(
          error, self->all[i] == exchanged_byte((uint32_t)(i / size), self->round, i % size));
    }
  }
  return WEFT_OK;
}

static void exchanges(void **state) {
  static const uint32_t counts[] = {1, 2, 3, 8};
  for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
    struct fixture fixture;
    struct exchanging ranks[RANKS_MAX] = {{0}};
    set_up(&fixture, state, at_most(state, counts[k]));
    all_advance(&fixture, exchange_rounds, ranks, sizeof ranks[0]);
    drive_well(&fixture);
    tear_down(&fixture);
  }
}

/* ---- failures ---- */

struct failing {
  bool fails;
  bool waits; /* before it fails */
  bool failed;
  int64_t at; /* when it failed, or is to fail */
  int64_t ended;
};

static enum weft_status fail_or_wait(struct conformance_rank *rank, struct weft_error *error) {
  struct failing *self = rank->state;
  struct weft_transport *transport = rank->transport;
  struct weft_failure failure = {.rank = 40 + transport->rank};
  if (!self->fails) {
    return WEFT_IN_PROGRESS;
  }
  CONFORMANCE_CHECK(error, !self->failed);
  if (self->waits && transport->ops->now(transport) < self->at) {
    CONFORMANCE_CHECK(error, !transport->ops->get_failure(transport, &failure));
    rank->until = self->at;
    return WEFT_IN_PROGRESS;
  }
  (void)weft_fail(&failure.error, WEFT_ERR_STAGE, "a hint", "rank %u has had enough",
                  transport->rank);
  failure.error.line = 12;
  self->at = transport->ops->now(transport);
  self->failed = true;
  (transport->ops->fail)(transport, &failure); /* cmocka has a macro of that name */
  return WEFT_IN_PROGRESS;
}

static void note_end(struct conformance_rank *rank) {
  struct failing *self = rank->state;
  self->ended = rank->transport->ops->now(rank->transport);
}

/* All ranks have ended with the failure of `blamed`, or, when that is UINT32_MAX, of any. */
static void check_agreed(const struct fixture *fixture, uint32_t blamed) {
  struct weft_failure first;
  struct weft_transport *any = any_endpoint(fixture);
  if (any == NULL) {
    return;
  }
  assert_true(any->ops->get_failure(any, &first));
  assert_true(blamed == UINT32_MAX || first.rank == 40 + blamed);
  assert_true(same_everywhere(fixture, first.error.message, strlen(first.error.message)));
  for (uint32_t r = 0; r < fixture->rank_count; r++) {
    struct weft_transport *transport = fixture->endpoints[r];
    struct weft_failure failure;
    struct weft_error error;
    if (transport == NULL) {
      continue;
    }
    assert_int_equal(fixture->ranks[r].status, WEFT_ERR_STAGE);
    assert_string_equal(fixture->ranks[r].error.message, first.error.message);
    assert_true(transport->ops->get_failure(transport, &failure));
    assert_int_equal(failure.rank, first.rank);
    assert_int_equal(failure.error.line, 12);
    assert_string_equal(failure.error.hint, "a hint");
    assert_int_equal(transport->ops->progress(transport, &error), WEFT_ERR_STAGE);
    assert_string_equal(error.message, first.error.message);
  }
}

/* The others sleep without a deadline. */
static void one_rank_fails(void **state) {
  for (uint32_t rank_count = 1; rank_count <= at_most(state, RANKS_MAX); rank_count++) {
    struct fixture fixture;
    struct failing ranks[RANKS_MAX] = {{0}};
    const uint32_t blamed = rank_count / 2;
    set_up(&fixture, state, rank_count);
    all_advance(&fixture, fail_or_wait, ranks, sizeof ranks[0]);
    ranks[blamed].fails = ranks[blamed].waits = true;
    ranks[blamed].at = after_a_while(&fixture);
    for (uint32_t r = 0; r < rank_count; r++) {
      fixture.ranks[r].end = note_end;
    }
    drive(&fixture);
    check_agreed(&fixture, blamed);
    for (uint32_t r = 0; r < rank_count && fixture.endpoints[blamed] != NULL; r++) {
      if (fixture.endpoints[r] == NULL) {
        continue;
      }
      assert_true(ranks[r].ended >= ranks[blamed].at);
      assert_true(ranks[r].ended - ranks[blamed].at < LATE_NS_MAX);
    }
    tear_down(&fixture);
  }
}

static void all_ranks_fail(void **state) {
  for (int trial = 0; trial < 20; trial++) {
    struct fixture fixture;
    struct failing ranks[RANKS_MAX] = {{0}};
    set_up(&fixture, state, at_most(state, RANKS_MAX));
    all_advance(&fixture, fail_or_wait, ranks, sizeof ranks[0]);
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
      ranks[r].fails = true;
    }
    drive(&fixture);
    check_agreed(&fixture, UINT32_MAX);
    tear_down(&fixture);
  }
}

static void a_failure_ends_an_exchange(void **state) {
  struct fixture fixture;
  struct failing failing = {.fails = true, .waits = true};
  struct exchanging exchanging = {0};
  set_up(&fixture, state, 2);
  failing.at = after_a_while(&fixture);
  fixture.ranks[0].advance = fail_or_wait;
  fixture.ranks[0].state = &failing;
  fixture.ranks[1].advance = exchange_rounds;
  fixture.ranks[1].state = &exchanging;
  drive(&fixture);
  check_agreed(&fixture, 0);
  tear_down(&fixture);
}

/* ---- time ---- */

struct dozing {
  uint32_t times;
  int64_t length;
  int64_t until; /* 0: not asked yet */
  bool real_time;
};

static enum weft_status doze(struct conformance_rank *rank, struct weft_error *error) {
  struct dozing *self = rank->state;
  const int64_t now = rank->transport->ops->now(rank->transport);
  if (self->until != 0 && now >= self->until) {
    CONFORMANCE_CHECK(error, now - self->until < LATE_NS_MAX);
    CONFORMANCE_CHECK(error, self->real_time || now - self->until < self->length);
    self->until = 0;
    self->times++;
  }
  if (self->times == 3) {
    return WEFT_OK;
  }
  if (self->until == 0) {
    self->until = now + self->length;
  }
  rank->until = self->until;
  return WEFT_IN_PROGRESS;
}

static void waits_have_deadlines(void **state) {
  struct fixture fixture;
  struct dozing ranks[RANKS_MAX] = {{0}};
  set_up(&fixture, state, at_most(state, RANKS_MAX));
  all_advance(&fixture, doze, ranks, sizeof ranks[0]);
  for (uint32_t r = 0; r < RANKS_MAX; r++) {
    ranks[r].length = a_while(&fixture) / (r + 1);
    ranks[r].real_time = fixture.transport->real_time;
  }
  drive_well(&fixture);
  tear_down(&fixture);
}

/* ---- statuses ---- */

enum { STATUS_ROUNDS = 300 };

struct writing {
  uint64_t rounds;
  uint64_t seen[RANKS_MAX];
};

static enum weft_status write_and_read(struct conformance_rank *rank, struct weft_error *error) {
  struct writing *self = rank->state;
  struct weft_transport *transport = rank->transport;
  struct weft_rank_status *mine = transport->ops->rank_status(transport, transport->rank);
  const uint64_t round = ++self->rounds;
  __atomic_store_n(&mine->step, round, __ATOMIC_RELAXED);
  __atomic_store_n(&mine->recent[round % WEFT_STATUS_RECENT].action, round, __ATOMIC_RELAXED);
  for (uint32_t r = 0; r < transport->rank_count; r++) {
    const struct weft_rank_status *found = transport->ops->rank_status(transport, r);
    const uint64_t step = __atomic_load_n(&found->step, __ATOMIC_RELAXED);
    CONFORMANCE_CHECK(error, step >= self->seen[r]);
    CONFORMANCE_CHECK(error, step <= STATUS_ROUNDS);
    CONFORMANCE_CHECK(error, r != transport->rank || step == round);
    self->seen[r] = step;
  }
  rank->until = transport->ops->now(transport) + 1;
  return round == STATUS_ROUNDS ? WEFT_OK : WEFT_IN_PROGRESS;
}

static void check_fresh_boards(struct weft_transport *transport) {
  for (uint32_t r = 0; r < transport->rank_count; r++) {
    const struct weft_rank_status *found = transport->ops->rank_status(transport, r);
    assert_int_equal(found->phase, WEFT_PHASE_IDLE);
    assert_int_equal(found->peer, UINT32_MAX);
    assert_int_equal(found->recent_count, 0);
  }
}

static void statuses_can_be_read(void **state) {
  struct fixture fixture;
  struct writing ranks[RANKS_MAX] = {{0}};
  const uint32_t rank_count = at_most(state, 3);
  set_up(&fixture, state, rank_count);
  if (any_endpoint(&fixture) != NULL) {
    check_fresh_boards(any_endpoint(&fixture));
  }
  all_advance(&fixture, write_and_read, ranks, sizeof ranks[0]);
  drive_well(&fixture);
  assert_true(same_everywhere(&fixture, "written", 7));
  for (uint32_t r = 0; r < rank_count; r++) {
    for (uint32_t other = 0; other < rank_count && fixture.endpoints[r] != NULL; other++) {
      struct weft_transport *transport = fixture.endpoints[r];
      assert_int_equal(transport->ops->rank_status(transport, other)->step, STATUS_ROUNDS);
    }
  }
  assert_true(same_everywhere(&fixture, "read", 4));
  tear_down(&fixture);
}

/* ---- the suite ---- */

int conformance_run(const struct conformance_transport *transport) {
  struct conformance_transport copy = *transport;
  void *const context = &copy; /* what each test finds in its state */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_prestate(ping_pong, context),
      cmocka_unit_test_prestate(order_on_a_channel, context),
      cmocka_unit_test_prestate(many_channels, context),
      cmocka_unit_test_prestate(full_channel, context),
      cmocka_unit_test_prestate(receive_before_send, context),
      cmocka_unit_test_prestate(send_before_receive, context),
      cmocka_unit_test_prestate(posted_receives_are_taken, context),
      cmocka_unit_test_prestate(rendezvous_waits_for_the_receive, context),
      cmocka_unit_test_prestate(payload_sizes, context),
      cmocka_unit_test_prestate(ranks_in_a_ring, context),
      cmocka_unit_test_prestate(traffic_at_random, context),
      cmocka_unit_test_prestate(failure_in_traffic, context),
      cmocka_unit_test_prestate(sends_are_refused, context),
      cmocka_unit_test_prestate(channels_are_refused, context),
      cmocka_unit_test_prestate(cancel_gives_back, context),
      cmocka_unit_test_prestate(exchanges, context),
      cmocka_unit_test_prestate(one_rank_fails, context),
      cmocka_unit_test_prestate(all_ranks_fail, context),
      cmocka_unit_test_prestate(a_failure_ends_an_exchange, context),
      cmocka_unit_test_prestate(waits_have_deadlines, context),
      cmocka_unit_test_prestate(statuses_can_be_read, context),
  };
  return cmocka_run_group_tests_name(transport->name, tests, NULL, NULL);
}
