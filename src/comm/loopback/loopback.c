/* The loopback transport: one rank runs at a time, in virtual time. A run is a function of the
 * seed alone: it decides which rank runs next when several could, and how long messages take.
 *
 * Time: each rank has one wake-up time, in a heap of ranks. Popping the smallest advances the
 * clock. A message wakes its receiver when it arrives; wait() sets a deadline. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "comm/channel_ends.h"
#include "comm/loopback/loopback.h"

/* A message in flight. */
struct flight {
  int64_t begin;
  int64_t arrival;
};

struct loopback_channel {
  struct weft_world_channel base;        /* first */
  struct loopback_end *sends, *receives; /* NULL: that end is not open yet */
  struct weft_random random; /* of delays: they must not depend on the order of wake-ups */
  int64_t free_at;           /* the channel is occupied until then */
  int64_t last_arrival;
};

struct loopback_end {
  struct weft_end base; /* first */
  struct loopback_channel *channel;
  struct flight *flights; /* [mask + 1] of an end that sends */
};

struct weft_loopback_endpoint {
  struct weft_world_endpoint base; /* first */
  struct weft_loopback *world;
  struct weft_ends ends; /* struct loopback_end */
};

/* A rank's position in the heap. */
struct weft_loopback_wake {
  int64_t at;
  uint64_t order; /* random: decides among those of one time */
  uint32_t slot;  /* in heap */
};

/* ---- The heap of ranks ---- */

static bool is_before(const struct weft_loopback *world, uint32_t a, uint32_t b) {
  const struct weft_loopback_wake *x = &world->wakes[a], *y = &world->wakes[b];
  return x->at != y->at ? x->at < y->at : x->order != y->order ? x->order < y->order : a < b;
}

static void put_rank(struct weft_loopback *world, uint32_t slot, uint32_t rank) {
  world->heap[slot] = rank;
  world->wakes[rank].slot = slot;
}

/* No later than at that time, so it only moves up. */
static void wake_by(struct weft_loopback *world, uint32_t rank, int64_t at) {
  uint32_t slot = world->wakes[rank].slot;
  if (at >= world->wakes[rank].at) {
    return;
  }
  world->wakes[rank].at = at;
  world->wakes[rank].order = weft_random_next(&world->random);
  while (slot > 0 && is_before(world, rank, world->heap[(slot - 1) / 2])) {
    put_rank(world, slot, world->heap[(slot - 1) / 2]);
    slot = (slot - 1) / 2;
  }
  put_rank(world, slot, rank);
}

/* The first rank gets its turn: it only moves down. */
static void put_first_last(struct weft_loopback *world) {
  const uint32_t rank = world->heap[0];
  uint32_t slot = 0, child;
  world->wakes[rank].at = WEFT_TIME_NEVER;
  world->wakes[rank].order = weft_random_next(&world->random);
  while ((child = 2 * slot + 1) < world->options.rank_count) {
    if (child + 1 < world->options.rank_count &&
        is_before(world, world->heap[child + 1], world->heap[child])) {
      child++;
    }
    if (!is_before(world, world->heap[child], rank)) {
      break;
    }
    put_rank(world, slot, world->heap[child]);
    slot = child;
  }
  put_rank(world, slot, rank);
}

/* ---- Channels ---- */

static struct weft_loopback_endpoint *endpoint_of(struct weft_transport *transport) {
  return (struct weft_loopback_endpoint *)transport;
}

static enum weft_status attach_end(struct weft_loopback_endpoint *endpoint,
                                   const struct weft_channel_end *from, struct weft_error *error) {
  struct weft_loopback *world = endpoint->world;
  struct loopback_end *end = (struct loopback_end *)weft_ends_find(&endpoint->ends, from->channel);
  struct weft_world_channel *base = NULL;
  WEFT_TRY(weft_world_channel(&world->shared, from, endpoint->base.transport.rank,
                              sizeof *end->channel, &base, error));
  struct loopback_channel *channel = end->channel = (struct loopback_channel *)base;
  if (channel->sends == NULL && channel->receives == NULL) {
    channel->random.state = world->options.seed;
    channel->random.state = weft_random_next(&channel->random) ^ from->channel;
  }
  *(from->sends ? &channel->sends : &channel->receives) = end;
  end->flights = weft_arena_allocate(&endpoint->ends.arena, from->sends ? end->base.mask + 1 : 0,
                                     sizeof *end->flights);
  return weft_arena_status(&endpoint->ends.arena, error);
}

static enum weft_status loopback_open(struct weft_transport *transport,
                                      const struct weft_channel_end *ends, uint32_t count,
                                      struct weft_error *error) {
  struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  WEFT_TRY(weft_ends_open(&endpoint->ends, endpoint->base.world->allocator, transport, ends, count,
                          sizeof(struct loopback_end), error));
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(attach_end(endpoint, &ends[k], error));
  }
  return WEFT_OK;
}

static const struct flight *oldest_flight(const struct loopback_end *end) {
  return &end->flights[end->base.done & end->base.mask];
}

/* ---- Messages ---- */

static int64_t random_delay(const struct weft_loopback *world, struct loopback_channel *channel) {
  const int64_t max = world->options.delay_ticks_max;
  return max > 0 ? (int64_t)(weft_random_next(&channel->random) % ((uint64_t)max + 1)) : 0;
}

static int64_t occupied_ticks(const struct weft_comm_options *options, uint32_t channel) {
  return channel < options->channel_count ? options->channel_ticks[channel]
                                          : options->occupied_ticks;
}

/* The message is on its way, as the channel's next one. */
static void begin_flight(struct weft_loopback *world, struct loopback_end *end, uint64_t number) {
  struct loopback_channel *channel = end->channel;
  const int64_t begin = world->now > channel->free_at ? world->now : channel->free_at;
  channel->free_at = begin + occupied_ticks(&world->options, end->base.channel);
  int64_t arrival = channel->free_at + world->options.latency_ticks + random_delay(world, channel);
  arrival = arrival > channel->last_arrival ? arrival : channel->last_arrival;
  channel->last_arrival = arrival;
  end->flights[number & end->base.mask] = (struct flight){begin, arrival};
  if (channel->receives != NULL) {
    wake_by(world, channel->base.receiver, arrival);
  }
}

/* The receiver takes the sender's buffer and leaves its own. */
static void hand_over(struct weft_message *sent, struct weft_message *received,
                      const struct flight *flight) {
  assert(sent != NULL && received != NULL);
  void *buffer = received->data;
  struct weft_device *device = received->device;
  received->header = sent->header;
  memcpy(received->shapes, sent->shapes, weft_shapes_size(&sent->header));
  received->data = sent->data;
  received->device = sent->device;
  sent->data = buffer;
  sent->device = device;
  sent->begin = received->begin = flight->begin;
  sent->end = received->end = flight->arrival;
}

static void match_channel(struct weft_loopback *world, const struct loopback_channel *channel) {
  struct loopback_end *from = channel->sends, *to = channel->receives;
  if (from == NULL || to == NULL || from->base.closed || to->base.closed) {
    return;
  }
  while (from->base.done < from->base.posted && to->base.done < to->base.posted) {
    struct weft_message *sent = weft_end_oldest(&from->base);
    struct weft_message *received = weft_end_oldest(&to->base);
    const struct flight *flight = oldest_flight(from);
    if (flight->arrival > world->now) {
      return;
    }
    hand_over(sent, received, flight);
    weft_end_give_back(&from->base, sent);
    weft_end_give_back(&to->base, received);
    wake_by(world, channel->base.sender, world->now);
  }
}

static enum weft_status loopback_post(struct weft_transport *transport, uint32_t number, bool sends,
                                      struct weft_message *message, struct weft_error *error) {
  const struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  struct weft_end *end = NULL;
  WEFT_TRY(weft_ends_choose(&endpoint->ends, number, sends, message, &end, error));
  if (weft_end_is_full(end)) {
    return WEFT_IN_PROGRESS;
  }
  const uint64_t message_number = weft_end_accept(end, message);
  if (sends) {
    begin_flight(endpoint->world, (struct loopback_end *)end, message_number);
  } else { /* it may be there already */
    match_channel(endpoint->world, ((const struct loopback_end *)end)->channel);
  }
  return WEFT_OK;
}

static enum weft_status loopback_test(struct weft_transport *transport,
                                      struct weft_message *message, struct weft_error *error) {
  const struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  const struct weft_end *end = weft_ends_of(&endpoint->ends, message);
  (void)error;
  if (end != NULL) {
    match_channel(endpoint->world, ((const struct loopback_end *)end)->channel);
  }
  return message->state[0] == 0 ? WEFT_OK : WEFT_IN_PROGRESS;
}

static void loopback_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct weft_end *end = weft_ends_of(&endpoint_of(transport)->ends, message);
  if (end != NULL) {
    weft_end_cancel(end, message);
  }
}

/* ---- Time ---- */

/* Those that receive: [ends.receiver_count]. */
static const struct loopback_end *receivers_of(const struct weft_loopback_endpoint *endpoint) {
  return (const struct loopback_end *)(const void *)endpoint->ends.items;
}

static enum weft_status loopback_progress(struct weft_transport *transport,
                                          struct weft_error *error) {
  const struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  const struct loopback_end *end = receivers_of(endpoint);
  WEFT_TRY(weft_world_check(endpoint->base.world, error));
  for (uint32_t k = 0; k < endpoint->ends.receiver_count; k++, end++) {
    if (end->base.done < end->base.posted) {
      match_channel(endpoint->world, end->channel);
    }
  }
  return WEFT_OK;
}

static enum weft_status loopback_wait(struct weft_transport *transport, int64_t until,
                                      struct weft_error *error) {
  const struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  const struct loopback_end *end = receivers_of(endpoint);
  struct weft_loopback *world = endpoint->world;
  for (uint32_t k = 0; k < endpoint->ends.receiver_count; k++, end++) {
    const struct loopback_end *from = end->channel->sends;
    if (from != NULL && from->base.done < from->base.posted) {
      const int64_t arrival = oldest_flight(from)->arrival;
      until = arrival > world->now && arrival < until ? arrival : until;
    }
  }
  wake_by(world, transport->rank, until > world->now ? until : world->now);
  return world->run != NULL ? weft_loopback_yield(world, transport->rank, error) : WEFT_OK;
}

static int64_t loopback_now(struct weft_transport *transport) {
  return __atomic_load_n(&endpoint_of(transport)->world->now, __ATOMIC_RELAXED);
}

static void loopback_fail(struct weft_transport *transport, const struct weft_failure *failure) {
  /* Any thread: weft_loopback_next() wakes the ranks. */
  (void)weft_world_fail(&endpoint_of(transport)->world->shared, failure);
}

static const struct weft_transport_ops loopback_ops = {
    .name = "loopback",
    .virtual_time = true,
    .async_progress = true,
    .device_memory = true,
    .open = loopback_open,
    .post = loopback_post,
    .test = loopback_test,
    .cancel = loopback_cancel,
    .progress = loopback_progress,
    .wait = loopback_wait,
    .now = loopback_now,
    .exchange = weft_world_exchange,
    .exchanged = weft_world_exchanged,
    .fail = loopback_fail,
    .get_failure = weft_world_get_failure,
    .rank_status = weft_world_rank_status,
    .group = weft_world_group,
};

/* ---- The world ---- */

static enum weft_status allocate_ranks(struct weft_loopback *world, struct weft_error *error) {
  const uint32_t count = world->options.rank_count;
  struct weft_arena *arena = &world->shared.arena;
  world->endpoints = weft_arena_allocate(arena, count, sizeof *world->endpoints);
  world->wakes = weft_arena_allocate(arena, count, sizeof *world->wakes);
  world->heap = weft_arena_allocate(arena, count, sizeof *world->heap);
  return weft_arena_status(arena, error);
}

static void start_ranks(struct weft_loopback *world) {
  for (uint32_t r = 0; r < world->options.rank_count; r++) {
    world->endpoints[r] = (struct weft_loopback_endpoint){
        .base = {.transport = {.ops = &loopback_ops,
                               .rank = r,
                               .rank_count = world->options.rank_count},
                 .world = &world->shared},
        .world = world};
    world->wakes[r].at = WEFT_TIME_NEVER;
    put_rank(world, r, r);
  }
  weft_world_wake_all(&world->shared);
}

static void wake_comm(struct weft_comm *comm, uint32_t rank) {
  struct weft_loopback *world = weft_loopback_of(comm);
  assert(rank < world->options.rank_count);
  wake_by(world, rank, world->now);
}

static void close_comm(struct weft_comm *comm) {
  struct weft_loopback *world = weft_loopback_of(comm);
  for (uint32_t r = 0; world->endpoints != NULL && r < world->options.rank_count; r++) {
    weft_ends_close(&world->endpoints[r].ends);
  }
  weft_world_finish(&world->shared);
  weft_array_free(world->shared.allocator, world, 1, sizeof *world);
}

static enum weft_status open_comm(const struct weft_comm_kind *kind,
                                  const struct weft_allocator *allocator,
                                  const struct weft_comm_options *options, struct weft_comm **out,
                                  struct weft_error *error) {
  struct weft_loopback *world = weft_array_allocate_zero(allocator, 1, sizeof *world);
  if (world == NULL) {
    return weft_fail_memory(error, sizeof *world);
  }
  world->comm.kind = kind;
  world->options = *options;
  world->random.state = options->seed;
  enum weft_status status = weft_world_init(&world->shared, allocator, options->rank_count,
                                            &world->comm, wake_comm, error);
  if (status < 0) {
    weft_array_free(allocator, world, 1, sizeof *world);
    return status;
  }
  status = allocate_ranks(world, error);
  if (status < 0) {
    close_comm(&world->comm);
    return status;
  }
  start_ranks(world);
  *out = &world->comm;
  return WEFT_OK;
}

static struct weft_transport *comm_endpoint(struct weft_comm *comm, uint32_t rank) {
  const struct weft_loopback *world = weft_loopback_of(comm);
  return rank < world->options.rank_count ? &world->endpoints[rank].base.transport : NULL;
}

enum weft_status weft_loopback_next(struct weft_comm *comm, uint32_t *rank,
                                    struct weft_error *error) {
  struct weft_loopback *world = weft_loopback_of(comm);
  if (!world->failure_spread && weft_world_check(&world->shared, NULL) < 0) {
    world->failure_spread = true;
    weft_world_wake_all(&world->shared);
  }
  const uint32_t next = world->heap[0];
  const int64_t at = world->wakes[next].at;
  if (at == WEFT_TIME_NEVER) {
    return weft_fail(error, WEFT_ERR_STALLED, "with a stall limit, the ranks report the wait cycle",
                     "no rank has a deadline, and no message is in flight");
  }
  if (at > world->now) {
    __atomic_store_n(&world->now, at, __ATOMIC_RELAXED);
  }
  put_first_last(world);
  *rank = next;
  return WEFT_OK;
}

const struct weft_comm_kind weft_loopback_kind = {
    .info = {.name = "loopback", .virtual_time = true},
    .open = open_comm,
    .close = close_comm,
    .endpoint = comm_endpoint,
    .run = weft_loopback_run,
    .next = weft_loopback_next,
    .wake = wake_comm,
};
