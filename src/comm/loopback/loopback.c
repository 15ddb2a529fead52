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
#include "comm/collectives.h"
#include "comm/loopback/loopback.h"

/* A message in flight. */
struct flight {
  struct weft_message *message; /* the sender's; NULL: cancelled */
  int64_t begin;
  int64_t arrival;
};

/* First in, first out; `capacity` is fixed. */
struct flight_queue {
  struct flight *items;
  uint32_t capacity;
  uint32_t count;
  uint32_t first;
};

struct weft_loopback_channel {
  uint32_t number;
  uint32_t sender, receiver; /* UINT32_MAX: that end is not open yet */
  uint64_t bytes_max;
  char content[WEFT_CONTENT_MAX];
  struct flight_queue sent;
  struct flight_queue posted; /* receives: only `message` counts */
  struct weft_random random;  /* of delays: they must not depend on the order of wake-ups */
  int64_t free_at;            /* the channel is occupied until then */
  int64_t last_arrival;
};

struct weft_loopback_endpoint {
  struct weft_transport base;
  struct weft_loopback *world;
  bool opened;
  uint32_t *incoming; /* channel numbers that this rank receives on */
  uint32_t incoming_count;
};

/* A rank's position in the heap. */
struct weft_loopback_wake {
  int64_t at;
  uint64_t order; /* random: decides among those of one time */
  uint32_t place; /* in heap */
};

enum message_state { IDLE = 0, IN_FLIGHT, DONE };

/* ---- The heap of ranks ---- */

static bool is_before(const struct weft_loopback *world, uint32_t a, uint32_t b) {
  const struct weft_loopback_wake *x = &world->wakes[a], *y = &world->wakes[b];
  return x->at != y->at ? x->at < y->at : x->order != y->order ? x->order < y->order : a < b;
}

static void put(struct weft_loopback *world, uint32_t place, uint32_t rank) {
  world->heap[place] = rank;
  world->wakes[rank].place = place;
}

static void sift(struct weft_loopback *world, uint32_t rank) {
  uint32_t place = world->wakes[rank].place;
  while (place > 0 && is_before(world, rank, world->heap[(place - 1) / 2])) {
    put(world, place, world->heap[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  for (;;) {
    uint32_t child = 2 * place + 1;
    if (child + 1 < world->options.rank_count &&
        is_before(world, world->heap[child + 1], world->heap[child])) {
      child++;
    }
    if (child >= world->options.rank_count || !is_before(world, world->heap[child], rank)) {
      break;
    }
    put(world, place, world->heap[child]);
    place = child;
  }
  put(world, place, rank);
}

static void set_wake(struct weft_loopback *world, uint32_t rank, int64_t at) {
  world->wakes[rank].at = at;
  world->wakes[rank].order = weft_random_next(&world->random);
  sift(world, rank);
}

static void wake_by(struct weft_loopback *world, uint32_t rank, int64_t at) {
  if (at < world->wakes[rank].at) {
    set_wake(world, rank, at);
  }
}

static void wake_all(struct weft_loopback *world) {
  for (uint32_t r = 0; r < world->options.rank_count; r++) {
    wake_by(world, r, world->now);
  }
}

/* ---- Queues ---- */

static struct flight *queue_at(const struct flight_queue *queue, uint32_t k) {
  const uint32_t place = queue->first + k;
  return &queue->items[place < queue->capacity ? place : place - queue->capacity];
}

static bool queue_push(struct flight_queue *queue, struct flight flight) {
  if (queue->count == queue->capacity) {
    return false;
  }
  *queue_at(queue, queue->count++) = flight;
  return true;
}

static void queue_pop(struct flight_queue *queue) {
  assert(queue->count > 0);
  queue->first = queue->first + 1 < queue->capacity ? queue->first + 1 : 0;
  queue->count--;
}

static void queue_forget(struct flight_queue *queue, const struct weft_message *message) {
  for (uint32_t k = 0; k < queue->count; k++) {
    if (queue_at(queue, k)->message == message) {
      queue_at(queue, k)->message = NULL;
    }
  }
}

/* ---- Channels ---- */

static struct weft_loopback_endpoint *endpoint_of(struct weft_transport *transport) {
  return (struct weft_loopback_endpoint *)transport;
}

/* The table that it outgrows stays in the arena. */
static enum weft_status reserve_channels(struct weft_loopback *world, uint32_t number,
                                         struct weft_error *error) {
  if (number < world->channel_capacity) {
    return WEFT_OK;
  }
  const size_t wanted = 2 * ((size_t)number + 1), size = sizeof(struct weft_loopback_channel *);
  struct weft_loopback_channel **channels = weft_arena_allocate(&world->arena, wanted, size);
  WEFT_TRY(weft_arena_status(&world->arena, error));
  if (world->channel_capacity > 0) {
    memcpy(channels, world->channels, world->channel_capacity * size);
  }
  world->channels = channels;
  world->channel_capacity = wanted;
  return WEFT_OK;
}

static enum weft_status find_channel(struct weft_loopback *world,
                                     const struct weft_channel_end *end,
                                     struct weft_loopback_channel **out, struct weft_error *error) {
  WEFT_TRY(reserve_channels(world, end->channel, error));
  struct weft_loopback_channel **channel = &world->channels[end->channel];
  if (*channel == NULL) {
    *channel = weft_arena_allocate(&world->arena, 1, sizeof **channel);
    WEFT_TRY(weft_arena_status(&world->arena, error));
    (*channel)->number = end->channel;
    (*channel)->random.state = world->options.seed;
    (*channel)->random.state = weft_random_next(&(*channel)->random) ^ end->channel;
    (*channel)->sender = (*channel)->receiver = UINT32_MAX;
    (*channel)->bytes_max = end->bytes_max;
    weft_channel_copy_content(end, (*channel)->content);
  }
  *out = *channel;
  return WEFT_OK;
}

static enum weft_status open_end(struct weft_loopback_endpoint *endpoint,
                                 const struct weft_channel_end *end, struct weft_error *error) {
  struct weft_loopback *world = endpoint->world;
  struct weft_loopback_channel *channel = NULL;
  if (end->peer >= endpoint->base.rank_count) {
    return weft_fail(error, WEFT_ERR_USAGE, "ranks count from 0",
                     "channel %" PRIu32 " leads to rank %" PRIu32 " of %" PRIu32, end->channel,
                     end->peer, endpoint->base.rank_count);
  }
  WEFT_TRY(find_channel(world, end, &channel, error));
  assert(channel != NULL);
  uint32_t *self = end->sends ? &channel->sender : &channel->receiver;
  const uint32_t other = end->sends ? channel->receiver : channel->sender;
  if (*self != UINT32_MAX || (other != UINT32_MAX && other != end->peer)) {
    return weft_fail(
        error, WEFT_ERR_USAGE,
        "a channel has one sender and one receiver: keep options.first_channel of replicas apart",
        "rank %" PRIu32 " opens channel %" PRIu32 " to rank %" PRIu32 ", which is already open",
        endpoint->base.rank, end->channel, end->peer);
  }
  WEFT_TRY(weft_channel_compare_content(end, endpoint->base.rank, channel->bytes_max,
                                        channel->content, error));
  struct flight_queue *queue = end->sends ? &channel->sent : &channel->posted;
  queue->items = weft_arena_allocate(&world->arena, end->depth, sizeof *queue->items);
  queue->capacity = end->depth;
  WEFT_TRY(weft_arena_status(&world->arena, error));
  *self = endpoint->base.rank;
  if (!end->sends) {
    endpoint->incoming[endpoint->incoming_count++] = end->channel;
  }
  return WEFT_OK;
}

static enum weft_status loopback_open(struct weft_transport *transport,
                                      const struct weft_channel_end *ends, uint32_t count,
                                      struct weft_error *error) {
  assert(ends != NULL || count == 0);
  struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  struct weft_arena *arena = &endpoint->world->arena;
  uint32_t incoming = 0;
  WEFT_TRY(weft_channel_check_open(transport, endpoint->opened, error));
  endpoint->opened = true;
  for (uint32_t k = 0; k < count; k++) {
    incoming += !ends[k].sends;
  }
  endpoint->incoming = weft_arena_allocate(arena, incoming, sizeof *endpoint->incoming);
  WEFT_TRY(weft_arena_status(arena, error));
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(open_end(endpoint, &ends[k], error));
  }
  return WEFT_OK;
}

static struct weft_loopback_channel *channel_of(struct weft_loopback_endpoint *endpoint,
                                                uint32_t number, bool sends) {
  struct weft_loopback *world = endpoint->world;
  struct weft_loopback_channel *channel =
      number < world->channel_capacity ? world->channels[number] : NULL;
  const uint32_t rank = endpoint->base.rank;
  return channel != NULL && (sends ? channel->sender : channel->receiver) == rank ? channel : NULL;
}

static enum weft_status fail_channel(const struct weft_loopback_endpoint *endpoint, uint32_t number,
                                     bool sends, struct weft_error *error) {
  return weft_fail(error, WEFT_ERR_USAGE, "open() names the channels of a rank",
                   "rank %" PRIu32 " does not %s on channel %" PRIu32, endpoint->base.rank,
                   sends ? "send" : "receive", number);
}

/* ---- Messages ---- */

static int64_t random_delay(const struct weft_loopback *world,
                            struct weft_loopback_channel *channel) {
  const int64_t max = world->options.delay_ticks_max;
  return max > 0 ? (int64_t)(weft_random_next(&channel->random) % ((uint64_t)max + 1)) : 0;
}

static int64_t occupied_ticks(const struct weft_comm_options *options, uint32_t channel) {
  return channel < options->channel_count ? options->channel_ticks[channel]
                                          : options->occupied_ticks;
}

static enum weft_status loopback_send(struct weft_transport *transport, uint32_t number,
                                      struct weft_message *message, struct weft_error *error) {
  struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  struct weft_loopback *world = endpoint->world;
  struct weft_loopback_channel *channel = channel_of(endpoint, number, true);
  if (channel == NULL) {
    return fail_channel(endpoint, number, true, error);
  }
  if (message->header.bytes > channel->bytes_max || message->capacity < message->header.bytes) {
    return weft_fail(error, WEFT_ERR_USAGE, "the boundary's largest shape must be larger",
                     "a message of %" PRIu64 " bytes on channel %" PRIu32 ", which is for %" PRIu64,
                     message->header.bytes, number, channel->bytes_max);
  }
  if (channel->sent.count == channel->sent.capacity) {
    return WEFT_IN_PROGRESS;
  }
  const int64_t begin = world->now > channel->free_at ? world->now : channel->free_at;
  channel->free_at = begin + occupied_ticks(&world->options, number);
  int64_t arrival = channel->free_at + world->options.latency_ticks + random_delay(world, channel);
  arrival = arrival > channel->last_arrival ? arrival : channel->last_arrival;
  channel->last_arrival = arrival;
  (void)queue_push(&channel->sent, (struct flight){message, begin, arrival});
  message->state[0] = IN_FLIGHT;
  message->state[1] = number;
  if (channel->receiver != UINT32_MAX) {
    wake_by(world, channel->receiver, arrival);
  }
  return WEFT_OK;
}

/* The receiver takes the sender's buffer and leaves its own. */
static void hand_over(struct weft_message *sent, struct weft_message *received,
                      const struct flight *flight) {
  void *buffer = received->data;
  struct weft_device *device = received->device;
  received->header = sent->header;
  memcpy(received->shapes, sent->shapes, sent->header.tensor_count * sizeof sent->shapes[0]);
  received->data = sent->data;
  received->device = sent->device;
  sent->data = buffer;
  sent->device = device;
  sent->begin = received->begin = flight->begin;
  sent->end = received->end = flight->arrival;
  sent->state[0] = received->state[0] = DONE;
}

static void match(struct weft_loopback *world, struct weft_loopback_channel *channel) {
  while (channel->sent.count > 0 && channel->posted.count > 0) {
    const struct flight *flight = queue_at(&channel->sent, 0);
    struct weft_message *received = queue_at(&channel->posted, 0)->message;
    if (flight->arrival > world->now || flight->message == NULL || received == NULL) {
      return;
    }
    hand_over(flight->message, received, flight);
    queue_pop(&channel->sent);
    queue_pop(&channel->posted);
    wake_by(world, channel->sender, world->now);
  }
}

static enum weft_status loopback_receive(struct weft_transport *transport, uint32_t number,
                                         struct weft_message *message, struct weft_error *error) {
  struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  struct weft_loopback_channel *channel = channel_of(endpoint, number, false);
  if (channel == NULL) {
    return fail_channel(endpoint, number, false, error);
  }
  if (!queue_push(&channel->posted, (struct flight){.message = message})) {
    return WEFT_IN_PROGRESS;
  }
  message->state[0] = IN_FLIGHT;
  message->state[1] = number;
  match(endpoint->world, channel); /* it may be there already */
  return WEFT_OK;
}

static enum weft_status loopback_test(struct weft_transport *transport,
                                      struct weft_message *message, struct weft_error *error) {
  struct weft_loopback *world = endpoint_of(transport)->world;
  (void)error;
  assert(message->state[0] != IDLE);
  if (message->state[0] == IN_FLIGHT) {
    match(world, world->channels[message->state[1]]);
  }
  return message->state[0] == DONE ? WEFT_OK : WEFT_IN_PROGRESS;
}

static void loopback_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct weft_loopback *world = endpoint_of(transport)->world;
  if (message->state[0] == IN_FLIGHT) {
    struct weft_loopback_channel *channel = world->channels[message->state[1]];
    queue_forget(&channel->sent, message);
    queue_forget(&channel->posted, message);
  }
  message->state[0] = IDLE;
}

/* ---- Time ---- */

static enum weft_status loopback_progress(struct weft_transport *transport,
                                          struct weft_error *error) {
  const struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  struct weft_loopback *world = endpoint->world;
  WEFT_TRY(weft_world_check(&world->shared, error));
  for (uint32_t k = 0; k < endpoint->incoming_count; k++) {
    match(world, world->channels[endpoint->incoming[k]]);
  }
  return WEFT_OK;
}

static enum weft_status loopback_wait(struct weft_transport *transport, int64_t until,
                                      struct weft_error *error) {
  struct weft_loopback_endpoint *endpoint = endpoint_of(transport);
  struct weft_loopback *world = endpoint->world;
  for (uint32_t k = 0; k < endpoint->incoming_count; k++) {
    const struct weft_loopback_channel *channel = world->channels[endpoint->incoming[k]];
    if (channel->sent.count > 0 && queue_at(&channel->sent, 0)->arrival > world->now &&
        queue_at(&channel->sent, 0)->arrival < until) {
      until = queue_at(&channel->sent, 0)->arrival;
    }
  }
  wake_by(world, transport->rank, until > world->now ? until : world->now);
  return world->run != NULL ? weft_loopback_yield(world, transport->rank, error) : WEFT_OK;
}

static int64_t loopback_now(struct weft_transport *transport) {
  return __atomic_load_n(&endpoint_of(transport)->world->now, __ATOMIC_RELAXED);
}

/* ---- What all share ---- */

static enum weft_status loopback_exchange(struct weft_transport *transport, const void *mine,
                                          void *all, size_t size, struct weft_error *error) {
  struct weft_loopback *world = endpoint_of(transport)->world;
  bool first_call;
  (void)error;
  const enum weft_status status =
      weft_world_exchange(&world->shared, transport->rank, mine, all, size, &first_call);
  if (first_call && status == WEFT_OK) {
    wake_all(world);
  }
  return status;
}

static const void *loopback_exchanged(struct weft_transport *transport, uint32_t rank) {
  return weft_world_exchanged(&endpoint_of(transport)->world->shared, transport->rank, rank);
}

static void loopback_fail(struct weft_transport *transport, const struct weft_failure *failure) {
  /* Any thread: weft_loopback_next() wakes the ranks. */
  (void)weft_world_fail(&endpoint_of(transport)->world->shared, failure);
}

static bool loopback_failed(struct weft_transport *transport, struct weft_failure *failure) {
  return weft_world_failed(&endpoint_of(transport)->world->shared, failure);
}

static struct weft_rank_status *loopback_status(struct weft_transport *transport, uint32_t rank) {
  return &endpoint_of(transport)->world->shared.ranks[rank].status;
}

static void wake_rank(void *context, uint32_t rank) { weft_loopback_wake(context, rank); }

static enum weft_status loopback_group(struct weft_transport *transport, uint32_t id,
                                       const uint32_t *ranks, uint32_t count,
                                       struct weft_device *device, struct weft_group **out,
                                       struct weft_error *error) {
  struct weft_loopback *world = endpoint_of(transport)->world;
  (void)device;
  return weft_world_group(&world->shared, transport->rank, id, ranks, count, wake_rank, world, out,
                          error);
}

/* Endpoints are the world's. */
static void loopback_destroy(struct weft_transport *transport) { (void)transport; }

static const struct weft_transport_ops loopback_ops = {
    .name = "loopback",
    .virtual_time = true,
    .async_progress = true,
    .device_memory = true,
    .destroy = loopback_destroy,
    .open = loopback_open,
    .send = loopback_send,
    .receive = loopback_receive,
    .test = loopback_test,
    .cancel = loopback_cancel,
    .progress = loopback_progress,
    .wait = loopback_wait,
    .now = loopback_now,
    .exchange = loopback_exchange,
    .exchanged = loopback_exchanged,
    .fail = loopback_fail,
    .get_failure = loopback_failed,
    .rank_status = loopback_status,
    .group = loopback_group,
};

/* ---- The world ---- */

static enum weft_status allocate_ranks(struct weft_loopback *world, struct weft_error *error) {
  const uint32_t count = world->options.rank_count;
  world->endpoints = weft_arena_allocate(&world->arena, count, sizeof *world->endpoints);
  world->wakes = weft_arena_allocate(&world->arena, count, sizeof *world->wakes);
  world->heap = weft_arena_allocate(&world->arena, count, sizeof *world->heap);
  return weft_arena_status(&world->arena, error);
}

static void start_ranks(struct weft_loopback *world) {
  for (uint32_t r = 0; r < world->options.rank_count; r++) {
    world->endpoints[r] = (struct weft_loopback_endpoint){
        .base = {.ops = &loopback_ops, .rank = r, .rank_count = world->options.rank_count},
        .world = world};
    world->wakes[r].at = WEFT_TIME_NEVER;
    put(world, r, r);
  }
  wake_all(world);
}

static struct weft_loopback *loopback_of(struct weft_comm *comm) {
  assert(comm->kind == &weft_loopback_kind);
  return (struct weft_loopback *)comm;
}

static void close_comm(struct weft_comm *comm) {
  struct weft_loopback *world = loopback_of(comm);
  weft_arena_finish(&world->arena);
  weft_world_finish(&world->shared);
  weft_array_free(world->allocator, world, 1, sizeof *world);
}

static enum weft_status open_comm(const struct weft_allocator *allocator,
                                  const struct weft_comm_options *options, struct weft_comm **out,
                                  struct weft_error *error) {
  struct weft_loopback *world = weft_array_allocate_zero(allocator, 1, sizeof *world);
  if (world == NULL) {
    return weft_fail_memory(error, sizeof *world);
  }
  world->comm.kind = &weft_loopback_kind;
  world->allocator = world->arena.allocator = allocator;
  world->options = *options;
  world->random.state = options->seed;
  enum weft_status status = weft_world_init(&world->shared, allocator, options->rank_count, error);
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
  const struct weft_loopback *world = loopback_of(comm);
  return rank < world->options.rank_count ? &world->endpoints[rank].base : NULL;
}

enum weft_status weft_loopback_next(struct weft_loopback *world, uint32_t *rank,
                                    struct weft_error *error) {
  if (!world->failure_spread && weft_world_check(&world->shared, NULL) < 0) {
    world->failure_spread = true;
    wake_all(world);
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
  set_wake(world, next, WEFT_TIME_NEVER);
  *rank = next;
  return WEFT_OK;
}

void weft_loopback_wake(struct weft_loopback *world, uint32_t rank) {
  assert(rank < world->options.rank_count);
  wake_by(world, rank, world->now);
}

static enum weft_status next_rank(struct weft_comm *comm, uint32_t *rank,
                                  struct weft_error *error) {
  return weft_loopback_next(loopback_of(comm), rank, error);
}

static void wake_comm(struct weft_comm *comm, uint32_t rank) {
  assert(rank < loopback_of(comm)->options.rank_count);
  weft_loopback_wake(loopback_of(comm), rank);
}

const struct weft_comm_kind weft_loopback_kind = {
    .info = {.name = "loopback",
             .summary = "all ranks in this process, one at a time, in virtual time",
             .virtual_time = true},
    .open = open_comm,
    .close = close_comm,
    .endpoint = comm_endpoint,
    .run = weft_loopback_run,
    .next = next_rank,
    .wake = wake_comm,
};
