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

#include "support_delay_queue.h"
#include "support_fault_injection.h"
#include "support_protected_device.h"

struct injector {
  struct weft_transport base;    /* first */
  struct weft_transport_ops ops; /* with a name that says what is inside */
  char name[48];
  const struct weft_allocator *allocator;
  struct weft_transport *inner;
  struct weft_fault_options options;
  struct weft_delay_queue held;
  uint64_t operations; /* calls of send and receive */
  uint64_t receives;   /* that were taken */
  uint32_t dead;       /* atomic: fail() comes from any thread */
};

static struct injector *injector_of(struct weft_transport *transport) {
  struct injector *injector = (struct injector *)transport;
  assert(transport->ops == &injector->ops);
  return injector;
}

static bool is_dead(struct injector *injector) {
  return __atomic_load_n(&injector->dead, __ATOMIC_RELAXED);
}

/* ---- Death ---- */

static const char *ordinal_suffix(uint64_t number) {
  static const char *const suffixes[10] = {"th", "st", "nd", "rd", "th",
                                           "th", "th", "th", "th", "th"};
  return number / 10 % 10 == 1 ? "th" : suffixes[number % 10];
}

static enum weft_status check_alive(struct injector *injector, struct weft_error *error) {
  const uint64_t at = injector->options.die_at;
  if (!is_dead(injector)) {
    return WEFT_OK;
  }
  return weft_fail(error, WEFT_ERR_CANCELLED, "options.die_at asks for it",
                   "fault: rank %" PRIu32 " died at its %" PRIu64 "%s operation",
                   injector->base.rank, at, ordinal_suffix(at));
}

static enum weft_status count_operation(struct injector *injector, struct weft_error *error) {
  injector->operations++;
  if (injector->operations == injector->options.die_at) {
    __atomic_store_n(&injector->dead, 1, __ATOMIC_RELAXED);
  }
  return check_alive(injector, error);
}

/* ---- Delays and damage ---- */

/* Numbers of one message and no other. */
static struct weft_random random_of(const struct injector *injector,
                                    const struct weft_delay_end *end, uint64_t sequence) {
  struct weft_random random = {injector->options.seed};
  random.state = weft_random_next(&random) ^ injector->base.rank;
  random.state = weft_random_next(&random) ^ end->channel;
  random.state = weft_random_next(&random) ^ sequence;
  return random;
}

static int64_t delay_of(const struct injector *injector, const struct weft_delay_end *end,
                        uint64_t sequence) {
  struct weft_random random = random_of(injector, end, sequence);
  const uint64_t bound = (uint64_t)injector->options.delay_max + 1;
  int64_t delay = end->sends ? 0 : (int64_t)(weft_random_next(&random) % bound);
  if (__builtin_add_overflow(delay, injector->options.slow_by, &delay)) {
    delay = WEFT_TIME_NEVER;
  }
  return delay;
}

static void flip(void *data, uint64_t bit) {
  ((unsigned char *)data)[bit / 8] ^= (unsigned char)(1u << (bit % 8));
}

/* One bit of the header and of the shapes that are in use, or of the payload. */
static void damage(const struct injector *injector, struct weft_message *message) {
  const uint64_t header_bits = 8 * sizeof message->header;
  const uint64_t bytes =
      message->header.bytes < message->capacity ? message->header.bytes : message->capacity;
  const uint64_t shapes = message->header.tensor_count < WEFT_TENSORS_MAX
                              ? message->header.tensor_count
                              : WEFT_TENSORS_MAX;
  struct weft_random random = {injector->options.seed};
  random.state = weft_random_next(&random) ^ injector->base.rank;
  random.state = weft_random_next(&random) ^ injector->options.damage_receive;
  const uint64_t number = weft_random_next(&random);
  if (injector->options.damage_payload && bytes > 0 && message->data != NULL) {
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

static enum weft_status injector_open(struct weft_transport *transport,
                                      const struct weft_channel_end *ends, uint32_t count,
                                      struct weft_error *error) {
  struct injector *injector = injector_of(transport);
  struct weft_delay_queue held;
  WEFT_TRY(weft_delay_init(&held, injector->allocator, ends, count, error));
  const enum weft_status status = injector->inner->ops->open(injector->inner, ends, count, error);
  weft_delay_finish(status < 0 ? &held : &injector->held);
  if (status >= 0) {
    injector->held = held;
  }
  return status;
}

/* Takes what the transport inside has delivered on a channel, in its order. */
static enum weft_status take_delivered(struct injector *injector, struct weft_delay_end *end,
                                       struct weft_error *error) {
  while (end->count > 0) {
    const struct weft_delay_message *held = &injector->held.messages[end->first];
    const enum weft_status status =
        injector->inner->ops->test(injector->inner, held->message, error);
    if (status != WEFT_OK) {
      return status;
    }
    if (held->damage) {
      damage(injector, held->message);
    }
    weft_delay_deliver(&injector->held, end);
  }
  return WEFT_OK;
}

static enum weft_status injector_post(struct weft_transport *transport, uint32_t channel,
                                      bool sends, struct weft_message *message,
                                      struct weft_error *error) {
  struct injector *injector = injector_of(transport);
  WEFT_TRY(count_operation(injector, error));
  struct weft_delay_end *end = weft_delay_find_end(&injector->held, channel, sends);
  if (end != NULL && end->count == end->depth) {
    /* What has been taken makes room, even if nobody has asked for it yet. */
    WEFT_TRY(take_delivered(injector, end, error));
    if (end->count == end->depth) {
      return WEFT_IN_PROGRESS;
    }
  }
  const enum weft_status status =
      injector->inner->ops->post(injector->inner, channel, sends, message, error);
  if (status != WEFT_OK || end == NULL) {
    return status;
  }
  struct weft_delay_message *held = weft_delay_add(&injector->held, end, message);
  held->delay = delay_of(injector, end, end->sequence);
  injector->receives += !sends;
  held->damage = !sends && injector->receives == injector->options.damage_receive;
  return WEFT_OK;
}

static enum weft_status injector_test(struct weft_transport *transport,
                                      struct weft_message *message, struct weft_error *error) {
  struct injector *injector = injector_of(transport);
  WEFT_TRY(check_alive(injector, error));
  const struct weft_delay_message *held = weft_delay_find(&injector->held, message);
  if (held != NULL) {
    const enum weft_status status =
        take_delivered(injector, &injector->held.ends[held->end], error);
    if (weft_delay_find(&injector->held, message) != NULL) {
      return status;
    }
  }
  if (injector->inner->ops->now(injector->inner) < message->end) {
    return WEFT_IN_PROGRESS;
  }
  weft_delay_let_go(message);
  return WEFT_OK;
}

/* Of a dead rank too: what the transport inside holds is about to be freed. */
static void injector_cancel(struct weft_transport *transport, struct weft_message *message) {
  struct injector *injector = injector_of(transport);
  struct weft_delay_message *held = weft_delay_find(&injector->held, message);
  if (held == NULL) {
    weft_delay_let_go(message);
    return;
  }
  weft_delay_drop(&injector->held, held);
  injector->inner->ops->cancel(injector->inner, message);
}

/* ---- Time ---- */

static int64_t injector_now(struct weft_transport *transport) {
  struct weft_transport *inner = injector_of(transport)->inner;
  return inner->ops->now(inner);
}

/* Looks at every channel: wait() must know of all releases to come. A test() that
 * fails will fail again when its owner asks. */
static enum weft_status injector_progress(struct weft_transport *transport,
                                          struct weft_error *error) {
  struct injector *injector = injector_of(transport);
  WEFT_TRY(check_alive(injector, error));
  WEFT_TRY(injector->inner->ops->progress(injector->inner, error));
  for (uint32_t k = 0; k < injector->held.end_count; k++) {
    (void)take_delivered(injector, &injector->held.ends[k], NULL);
  }
  weft_delay_pass(&injector->held, injector->inner->ops->now(injector->inner));
  return WEFT_OK;
}

/* A release is something that happens. Those before progress() are not new: if
 * they counted, a rank that waits for another message would never sleep. */
static enum weft_status injector_wait(struct weft_transport *transport, int64_t until,
                                      struct weft_error *error) {
  struct injector *injector = injector_of(transport);
  WEFT_TRY(check_alive(injector, error));
  const int64_t release = weft_delay_next_release(&injector->held);
  return injector->inner->ops->wait(injector->inner, release < until ? release : until, error);
}

/* ---- Passed on ---- */

static enum weft_status injector_exchange(struct weft_transport *transport, const void *mine,
                                          void *all, size_t size, struct weft_error *error) {
  struct injector *injector = injector_of(transport);
  WEFT_TRY(check_alive(injector, error));
  return injector->inner->ops->exchange(injector->inner, mine, all, size, error);
}

static void injector_fail(struct weft_transport *transport, const struct weft_failure *failure) {
  struct injector *injector = injector_of(transport);
  if (!is_dead(injector)) {
    injector->inner->ops->fail(injector->inner, failure);
  }
}

static bool injector_get_failure(struct weft_transport *transport, struct weft_failure *failure) {
  struct weft_transport *inner = injector_of(transport)->inner;
  return inner->ops->get_failure(inner, failure);
}

static struct weft_rank_status *injector_status(struct weft_transport *transport, uint32_t rank) {
  struct weft_transport *inner = injector_of(transport)->inner;
  return inner->ops->rank_status(inner, rank);
}

static void injector_refresh_boards(struct weft_transport *transport, int64_t until) {
  struct weft_transport *inner = injector_of(transport)->inner;
  inner->ops->refresh_status(inner, until);
}

static void injector_location(struct weft_transport *transport, uint32_t rank, char *buffer,
                              size_t size) {
  struct weft_transport *inner = injector_of(transport)->inner;
  inner->ops->location(inner, rank, buffer, size);
}

/* The group is the one inside: it knows no faults. */
static enum weft_status injector_group(struct weft_transport *transport, uint32_t id,
                                       const uint32_t *ranks, uint32_t count,
                                       struct weft_device *device, struct weft_group **out,
                                       struct weft_error *error) {
  struct injector *injector = injector_of(transport);
  WEFT_TRY(check_alive(injector, error));
  return injector->inner->ops->group(injector->inner, id, ranks, count, device, out, error);
}

static void injector_destroy(struct weft_transport *transport) {
  if (transport == NULL) {
    return;
  }
  struct injector *injector = injector_of(transport);
  weft_delay_finish(&injector->held);
  weft_array_free(injector->allocator, injector, 1, sizeof *injector);
}

static const struct weft_transport_ops injector_ops = {
    .destroy = injector_destroy,
    .open = injector_open,
    .post = injector_post,
    .test = injector_test,
    .cancel = injector_cancel,
    .progress = injector_progress,
    .wait = injector_wait,
    .now = injector_now,
    .exchange = injector_exchange,
    .fail = injector_fail,
    .get_failure = injector_get_failure,
    .rank_status = injector_status,
};

enum weft_status weft_fault_injector_create(const struct weft_allocator *allocator,
                                            struct weft_transport *inner,
                                            const struct weft_fault_options *options,
                                            struct weft_transport **out, struct weft_error *error) {
  if (options->delay_max < 0 || options->slow_by < 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "a message cannot be seen before it came",
                     "fault injection with delay_max %" PRId64 " and slow_by %" PRId64
                     ", neither may be negative",
                     options->delay_max, options->slow_by);
  }
  struct injector *injector = weft_array_allocate_zero(allocator, 1, sizeof *injector);
  if (injector == NULL) {
    return weft_fail_memory(error, sizeof *injector);
  }
  (void)snprintf(injector->name, sizeof injector->name, "injector(%s)", inner->ops->name);
  injector->ops = injector_ops;
  injector->ops.group = inner->ops->group != NULL ? injector_group : NULL;
  injector->ops.refresh_status =
      inner->ops->refresh_status != NULL ? injector_refresh_boards : NULL;
  injector->ops.location = inner->ops->location != NULL ? injector_location : NULL;
  injector->ops.name = injector->name;
  injector->ops.async_progress = inner->ops->async_progress;
  injector->ops.device_memory = inner->ops->device_memory;
  injector->base = (struct weft_transport){
      .ops = &injector->ops, .rank = inner->rank, .rank_count = inner->rank_count};
  injector->allocator = allocator;
  injector->inner = inner;
  injector->options = *options;
  *out = &injector->base;
  return WEFT_OK;
}
