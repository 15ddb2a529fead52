/* Faults on purpose, around any transport. A message is this file's own between
 * its delivery by the transport inside and its release to the user: it is held
 * back, and may be damaged. All that is random depends on the seed, the rank, the
 * channel and the message's number on it, never on when somebody asked. Counts
 * are of calls: the n-th message received is the one of the n-th receive() that
 * was taken. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/comm.h>
#include <weft/support.h>

#include "base/memory.h"
#include "support_delay_queue.h"
#include "support_fault_injection.h"
#include "support_protected_device.h"

struct chaos {
  struct weft_transport base;    /* first */
  struct weft_transport_ops ops; /* with a name that says what is inside */
  char name[48];
  const struct weft_allocator *allocator;
  struct weft_transport *inner;
  struct weft_fault_options options;
  struct weft_held_messages held;
  uint64_t operations; /* calls of send and receive */
  uint64_t receives;   /* that were taken */
  uint32_t dead;       /* atomic: fail() comes from any thread */
};

static struct chaos *chaos_of(struct weft_transport *transport) {
  struct chaos *chaos = (struct chaos *)transport;
  assert(transport->ops == &chaos->ops);
  return chaos;
}

static bool is_dead(struct chaos *chaos) { return __atomic_load_n(&chaos->dead, __ATOMIC_RELAXED); }

/* ---- Death ---- */

static const char *ordinal_suffix(uint64_t number) {
  static const char *const suffixes[10] = {"th", "st", "nd", "rd", "th",
                                           "th", "th", "th", "th", "th"};
  return number / 10 % 10 == 1 ? "th" : suffixes[number % 10];
}

static enum weft_status check_alive(struct chaos *chaos, struct weft_error *error) {
  const uint64_t at = chaos->options.die_at;
  if (!is_dead(chaos)) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_CANCELLED, "it was told to: options.die_at",
                   "chaos: rank %" PRIu32 " died at its %" PRIu64 "%s operation", chaos->base.rank,
                   at, ordinal_suffix(at));
}

static enum weft_status count_operation(struct chaos *chaos, struct weft_error *error) {
  chaos->operations++;
  if (chaos->operations == chaos->options.die_at) {
    __atomic_store_n(&chaos->dead, 1, __ATOMIC_RELAXED);
  }
  return check_alive(chaos, error);
}

/* ---- Delays and damage ---- */

/* Numbers of one message and no other. */
static struct weft_random random_of(const struct chaos *chaos, const struct weft_held_end *end,
                                    uint64_t sequence) {
  struct weft_random random = {chaos->options.seed};
  random.state = weft_random_next(&random) ^ chaos->base.rank;
  random.state = weft_random_next(&random) ^ end->channel;
  random.state = weft_random_next(&random) ^ sequence;
  return random;
}

static int64_t delay_of(const struct chaos *chaos, const struct weft_held_end *end,
                        uint64_t sequence) {
  struct weft_random random = random_of(chaos, end, sequence);
  const uint64_t bound = (uint64_t)chaos->options.delay_max + 1;
  int64_t delay = end->sends ? 0 : (int64_t)(weft_random_next(&random) % bound);
  if (__builtin_add_overflow(delay, chaos->options.slow_by, &delay)) {
    delay = WEFT_TIME_NEVER;
  }
  return delay;
}

static void flip(void *data, uint64_t bit) {
  ((unsigned char *)data)[bit / 8] ^= (unsigned char)(1u << (bit % 8));
}

/* One bit of the header and of the shapes that are in use, or of the payload. */
static void damage(const struct chaos *chaos, struct weft_message *message) {
  const uint64_t header_bits = 8 * sizeof message->header;
  const uint64_t bytes =
      message->header.bytes < message->capacity ? message->header.bytes : message->capacity;
  const uint64_t shapes = message->header.tensor_count < WEFT_TENSORS_MAX
                              ? message->header.tensor_count
                              : WEFT_TENSORS_MAX;
  struct weft_random random = {chaos->options.seed};
  random.state = weft_random_next(&random) ^ chaos->base.rank;
  random.state = weft_random_next(&random) ^ chaos->options.damage_receive;
  const uint64_t number = weft_random_next(&random);
  if (chaos->options.damage_payload && bytes > 0 && message->data != NULL) {
    unsigned char *data = test_device_view(message->device, message->data);
    data[(number >> 3) % bytes] ^= (unsigned char)(1u << (number & 7)); /* bytes x 8 may not fit */
    return;
  }
  const uint64_t bit = number % (header_bits + 8 * shapes * sizeof message->shapes[0]);
  if (bit < header_bits) {
    flip(&message->header, bit);
  } else {
    flip(message->shapes, bit - header_bits);
  }
}

/* ---- Sends and receives ---- */

static enum weft_status chaos_open(struct weft_transport *transport,
                                   const struct weft_channel_end *ends, uint32_t count,
                                   struct weft_error *error) {
  struct chaos *chaos = chaos_of(transport);
  struct weft_held_messages held;
  WEFT_TRY(weft_held_init(&held, chaos->allocator, ends, count, error));
  const enum weft_status status = chaos->inner->ops->open(chaos->inner, ends, count, error);
  weft_held_finish(status < 0 ? &held : &chaos->held);
  if (status >= 0) {
    chaos->held = held;
  }
  return status;
}

/* Takes what the transport inside has delivered on a channel, in its order. */
static enum weft_status take_delivered(struct chaos *chaos, struct weft_held_end *end,
                                       struct weft_error *error) {
  while (end->count > 0) {
    const struct weft_held_message *held = &chaos->held.messages[end->first];
    const enum weft_status status = chaos->inner->ops->test(chaos->inner, held->message, error);
    if (status != WEFT_OK) {
      return status;
    }
    if (held->damage) {
      damage(chaos, held->message);
    }
    weft_held_deliver(&chaos->held, end);
  }
  return WEFT_OK;
}

static enum weft_status begin(struct chaos *chaos, bool sends, uint32_t channel,
                              struct weft_message *message, struct weft_error *error) {
  WEFT_TRY(count_operation(chaos, error));
  struct weft_held_end *end = weft_held_find_end(&chaos->held, channel, sends);
  if (end != NULL && end->count == end->depth) {
    /* What has been taken makes room, even if nobody has asked for it yet. */
    WEFT_TRY(take_delivered(chaos, end, error));
    if (end->count == end->depth) {
      return WEFT_IN_PROGRESS;
    }
  }
  const enum weft_status status =
      sends ? chaos->inner->ops->send(chaos->inner, channel, message, error)
            : chaos->inner->ops->receive(chaos->inner, channel, message, error);
  if (status != WEFT_OK || end == NULL) {
    return status;
  }
  struct weft_held_message *held = weft_held_add(&chaos->held, end, message);
  held->delay = delay_of(chaos, end, end->sequence);
  chaos->receives += !sends;
  held->damage = !sends && chaos->receives == chaos->options.damage_receive;
  return WEFT_OK;
}

static enum weft_status chaos_send(struct weft_transport *transport, uint32_t channel,
                                   struct weft_message *message, struct weft_error *error) {
  return begin(chaos_of(transport), true, channel, message, error);
}

static enum weft_status chaos_receive(struct weft_transport *transport, uint32_t channel,
                                      struct weft_message *message, struct weft_error *error) {
  return begin(chaos_of(transport), false, channel, message, error);
}

static enum weft_status chaos_test(struct weft_transport *transport, struct weft_message *message,
                                   struct weft_error *error) {
  struct chaos *chaos = chaos_of(transport);
  WEFT_TRY(check_alive(chaos, error));
  const struct weft_held_message *held = weft_held_find(&chaos->held, message);
  if (held != NULL) {
    const enum weft_status status = take_delivered(chaos, &chaos->held.ends[held->end], error);
    if (weft_held_find(&chaos->held, message) != NULL) {
      return status;
    }
  }
  if (chaos->inner->ops->now(chaos->inner) < message->end) {
    return WEFT_IN_PROGRESS;
  }
  weft_held_let_go(message);
  return WEFT_OK;
}

/* Of a dead rank too: what the transport inside holds is about to be freed. */
static void chaos_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct chaos *chaos = chaos_of(transport);
  struct weft_held_message *held = weft_held_find(&chaos->held, message);
  if (held == NULL) {
    weft_held_let_go(message);
    return;
  }
  weft_held_drop(&chaos->held, held);
  chaos->inner->ops->cancel(chaos->inner, message);
}

/* ---- Time ---- */

static int64_t chaos_now(struct weft_transport *transport) {
  struct weft_transport *inner = chaos_of(transport)->inner;
  return inner->ops->now(inner);
}

/* Looks at every channel: wait() must know of all releases to come. A test() that
 * fails will fail again when its owner asks. */
static enum weft_status chaos_progress(struct weft_transport *transport, struct weft_error *error) {
  struct chaos *chaos = chaos_of(transport);
  WEFT_TRY(check_alive(chaos, error));
  WEFT_TRY(chaos->inner->ops->progress(chaos->inner, error));
  for (uint32_t k = 0; k < chaos->held.end_count; k++) {
    (void)take_delivered(chaos, &chaos->held.ends[k], NULL);
  }
  weft_held_pass(&chaos->held, chaos->inner->ops->now(chaos->inner));
  return WEFT_OK;
}

/* A release is something that happens. Those before progress() are not new: if
 * they counted, a rank that waits for another message would never sleep. */
static enum weft_status chaos_wait(struct weft_transport *transport, int64_t until,
                                   struct weft_error *error) {
  struct chaos *chaos = chaos_of(transport);
  WEFT_TRY(check_alive(chaos, error));
  const int64_t release = weft_held_next_release(&chaos->held);
  return chaos->inner->ops->wait(chaos->inner, release < until ? release : until, error);
}

/* ---- Passed on ---- */

static enum weft_status chaos_exchange(struct weft_transport *transport, const void *mine,
                                       void *all, size_t size, struct weft_error *error) {
  struct chaos *chaos = chaos_of(transport);
  WEFT_TRY(check_alive(chaos, error));
  return chaos->inner->ops->exchange(chaos->inner, mine, all, size, error);
}

static void chaos_fail(struct weft_transport *transport, const struct weft_failure *failure) {
  struct chaos *chaos = chaos_of(transport);
  if (!is_dead(chaos)) {
    chaos->inner->ops->fail(chaos->inner, failure);
  }
}

static bool chaos_failed(struct weft_transport *transport, struct weft_failure *failure) {
  struct weft_transport *inner = chaos_of(transport)->inner;
  return inner->ops->get_failure(inner, failure);
}

static struct weft_rank_status *chaos_board(struct weft_transport *transport, uint32_t rank) {
  struct weft_transport *inner = chaos_of(transport)->inner;
  return inner->ops->rank_status(inner, rank);
}

static void chaos_refresh_boards(struct weft_transport *transport, int64_t until) {
  struct weft_transport *inner = chaos_of(transport)->inner;
  inner->ops->refresh_status(inner, until);
}

static void chaos_place(struct weft_transport *transport, uint32_t rank, char *buffer,
                        size_t size) {
  struct weft_transport *inner = chaos_of(transport)->inner;
  inner->ops->location(inner, rank, buffer, size);
}

/* The group is the one inside: it knows no faults. */
static enum weft_status chaos_group(struct weft_transport *transport, uint32_t id,
                                    const uint32_t *ranks, uint32_t count, struct weft_group **out,
                                    struct weft_error *error) {
  struct chaos *chaos = chaos_of(transport);
  WEFT_TRY(check_alive(chaos, error));
  return chaos->inner->ops->group(chaos->inner, id, ranks, count, out, error);
}

static void chaos_destroy(struct weft_transport *transport) {
  if (transport == NULL) {
    return;
  }
  struct chaos *chaos = chaos_of(transport);
  weft_held_finish(&chaos->held);
  weft_array_free(chaos->allocator, chaos, 1, sizeof *chaos);
}

static const struct weft_transport_ops chaos_ops = {
    .destroy = chaos_destroy,
    .open = chaos_open,
    .send = chaos_send,
    .receive = chaos_receive,
    .test = chaos_test,
    .cancel = chaos_cancel,
    .progress = chaos_progress,
    .wait = chaos_wait,
    .now = chaos_now,
    .exchange = chaos_exchange,
    .fail = chaos_fail,
    .get_failure = chaos_failed,
    .rank_status = chaos_board,
};

enum weft_status weft_fault_injector_create(const struct weft_allocator *allocator,
                                            struct weft_transport *inner,
                                            const struct weft_fault_options *options,
                                            struct weft_transport **out, struct weft_error *error) {
  if (options->delay_max < 0 || options->slow_by < 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "a message cannot be seen before it came",
                     "chaos with delay_max %" PRId64 " and slow_by %" PRId64
                     ", neither may be negative",
                     options->delay_max, options->slow_by);
  }
  struct chaos *chaos = weft_array_allocate_zero(allocator, 1, sizeof *chaos);
  if (chaos == NULL) {
    return weft_fail_memory(error, sizeof *chaos);
  }
  (void)snprintf(chaos->name, sizeof chaos->name, "chaos(%s)", inner->ops->name);
  chaos->ops = chaos_ops;
  chaos->ops.group = inner->ops->group != NULL ? chaos_group : NULL;
  chaos->ops.refresh_status = inner->ops->refresh_status != NULL ? chaos_refresh_boards : NULL;
  chaos->ops.location = inner->ops->location != NULL ? chaos_place : NULL;
  chaos->ops.name = chaos->name;
  chaos->ops.async_progress = inner->ops->async_progress;
  chaos->ops.device_memory = inner->ops->device_memory;
  chaos->base = (struct weft_transport){
      .ops = &chaos->ops, .rank = inner->rank, .rank_count = inner->rank_count};
  chaos->allocator = allocator;
  chaos->inner = inner;
  chaos->options = *options;
  *out = &chaos->base;
  return WEFT_OK;
}
