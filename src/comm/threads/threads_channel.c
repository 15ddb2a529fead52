/* Opening channels of the threads transport. The two ends open a channel independently, in any
 * order: the first creates it, and the second must agree with it. The ring belongs to the sending
 * end and has its depth, so a send need not wait for the receiver to open its end. All memory for
 * messages is allocated here, and lives until the world is closed: either rank may end before
 * the other. */
#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "comm/threads/threads.h"

enum { CHANNEL_ROOM_MIN = 64 };

/* ---- the table of channels; under the world's lock ---- */

static struct weft_threads_channel **find_place(struct weft_threads_channel **table, uint32_t room,
                                                uint32_t number) {
  assert(room > 0 && (room & (room - 1)) == 0);
  uint32_t k = weft_channel_hash(number, room - 1);
  while (table[k] != NULL && table[k]->number != number) {
    k = (k + 1) & (room - 1);
  }
  return &table[k];
}

/* Room for one more, and half of it empty. The table that it outgrows stays in the arena. */
static enum weft_status grow_table(struct weft_threads *threads, struct weft_error *error) {
  if (threads->channel_count < threads->channel_room / 2) {
    return WEFT_OK;
  }
  const uint32_t room = threads->channel_room == 0 ? CHANNEL_ROOM_MIN : threads->channel_room * 2;
  struct weft_threads_channel **table =
      weft_arena_allocate(&threads->arena, room, sizeof(struct weft_threads_channel *));
  WEFT_TRY(weft_arena_status(&threads->arena, error));
  for (uint32_t k = 0; k < threads->channel_room; k++) {
    if (threads->channels[k] != NULL) {
      *find_place(table, room, threads->channels[k]->number) = threads->channels[k];
    }
  }
  threads->channels = table;
  threads->channel_room = room;
  return WEFT_OK;
}

/* Finds the channel or makes it as this end describes it. */
static enum weft_status get_channel(struct weft_threads *threads,
                                    const struct weft_channel_end *end, uint32_t rank,
                                    struct weft_threads_channel **out, struct weft_error *error) {
  WEFT_TRY(grow_table(threads, error));
  struct weft_threads_channel **place =
      find_place(threads->channels, threads->channel_room, end->channel);
  if (*place != NULL) {
    *out = *place;
    return WEFT_OK;
  }
  struct weft_threads_channel *channel = weft_arena_allocate(&threads->arena, 1, sizeof *channel);
  WEFT_TRY(weft_arena_status(&threads->arena, error));
  channel->number = end->channel;
  channel->sender = end->sends ? rank : end->peer;
  channel->receiver = end->sends ? end->peer : rank;
  channel->bytes_max = end->bytes_max;
  weft_channel_copy_content(end, channel->content);
  *out = *place = channel;
  threads->channel_count++;
  return WEFT_OK;
}

/* ---- one end; under the world's lock ---- */

static enum weft_status agree(const struct weft_threads_channel *channel,
                              const struct weft_channel_end *end, uint32_t rank,
                              struct weft_error *error) {
  const uint32_t sender = end->sends ? rank : end->peer;
  const uint32_t receiver = end->sends ? end->peer : rank;
  if (sender != channel->sender || receiver != channel->receiver) {
    return weft_fail(
        error, WEFT_ERR_USAGE,
        "place stages alike on all ranks, and keep options.first_channel of replicas apart",
        "rank %" PRIu32 " opens channel %" PRIu32 " from rank %" PRIu32 " to rank %" PRIu32
        ", where the other end has it from rank %" PRIu32 " to rank %" PRIu32,
        rank, channel->number, sender, receiver, channel->sender, channel->receiver);
  }
  return weft_channel_compare_content(end, rank, channel->bytes_max, channel->content, error);
}

/* Whole cache lines, on their boundaries. */
static enum weft_status make_ring(struct weft_threads *threads,
                                  struct weft_threads_channel *channel, uint32_t depth,
                                  struct weft_error *error) {
  assert(channel->entries == NULL && depth > 0);
  const uint32_t count = weft_channel_round_up(depth);
  const size_t size = (size_t)count * sizeof(struct weft_entry) + WEFT_CACHE_LINE;
  unsigned char *block = weft_arena_allocate(&threads->arena, size, 1);
  WEFT_TRY(weft_arena_status(&threads->arena, error));
  const size_t skip = WEFT_CACHE_LINE - (uintptr_t)block % WEFT_CACHE_LINE;
  channel->entry_mask = count - 1;
  __atomic_store_n(&channel->entries, (struct weft_entry *)(void *)(block + skip),
                   __ATOMIC_RELEASE);
  return WEFT_OK;
}

static enum weft_status attach(struct weft_endpoint *endpoint, const struct weft_channel_end *end,
                               struct weft_threads_channel **out, struct weft_error *error) {
  struct weft_threads *threads = endpoint->threads;
  struct weft_threads_channel *channel = NULL;
  WEFT_TRY(get_channel(threads, end, endpoint->base.rank, &channel, error));
  WEFT_TRY(agree(channel, end, endpoint->base.rank, error));
  if (end->sends) {
    WEFT_TRY(make_ring(threads, channel, end->depth, error));
  }
  *out = channel;
  return WEFT_OK;
}

static enum weft_status attach_all(struct weft_endpoint *endpoint,
                                   const struct weft_channel_end *ends, uint32_t count,
                                   struct weft_error *error) {
  enum weft_status status = WEFT_OK;
  pthread_mutex_lock(&endpoint->threads->lock);
  for (uint32_t k = 0; k < count && status == WEFT_OK; k++) {
    const uint32_t index = weft_channel_ends_find(&endpoint->by_channel, ends[k].channel);
    status = attach(endpoint, &ends[k], &endpoint->ends[index].channel, error);
  }
  pthread_mutex_unlock(&endpoint->threads->lock);
  return status;
}

/* ---- the rank's own tables ---- */

static enum weft_status add_end(struct weft_endpoint *endpoint, uint32_t index,
                                const struct weft_channel_end *from, struct weft_error *error) {
  struct weft_end *end = &endpoint->ends[index];
  WEFT_TRY(weft_channel_ends_add(&endpoint->by_channel, &endpoint->base, from, index, error));
  const uint32_t room = weft_channel_round_up(from->depth);
  end->messages = weft_arena_allocate(&endpoint->arena, room, sizeof(struct weft_message *));
  WEFT_TRY(weft_arena_status(&endpoint->arena, error));
  end->state = (struct weft_channel_end_state){.sends = from->sends, .bytes_max = from->bytes_max};
  end->peer = &endpoint->threads->endpoints[from->peer];
  end->depth = from->depth;
  end->mask = room - 1;
  return WEFT_OK;
}

/* Those that receive come first, so that progress() walks over them alone. */
static enum weft_status open_ends(struct weft_endpoint *endpoint,
                                  const struct weft_channel_end *ends, uint32_t count,
                                  struct weft_error *error) {
  const struct weft_allocator *allocator = endpoint->threads->allocator;
  WEFT_TRY(weft_channel_ends_init(&endpoint->by_channel, allocator, &endpoint->base, count, error));
  endpoint->arena.allocator = allocator;
  endpoint->ends = weft_arena_allocate(&endpoint->arena, count, sizeof *endpoint->ends);
  WEFT_TRY(weft_arena_status(&endpoint->arena, error));
  endpoint->end_count = count;
  for (uint32_t k = 0; k < count; k++) {
    endpoint->receiver_count += !ends[k].sends;
  }
  uint32_t senders = endpoint->receiver_count, receivers = 0;
  for (uint32_t k = 0; k < count; k++) {
    WEFT_TRY(add_end(endpoint, ends[k].sends ? senders++ : receivers++, &ends[k], error));
  }
  return attach_all(endpoint, ends, count, error);
}

enum weft_status weft_endpoint_open(struct weft_transport *transport,
                                    const struct weft_channel_end *ends, uint32_t count,
                                    struct weft_error *error) {
  assert(ends != NULL || count == 0);
  struct weft_endpoint *endpoint = (struct weft_endpoint *)transport;
  WEFT_TRY(weft_channel_check_open(transport, endpoint->opened, error));
  endpoint->opened = true;
  const enum weft_status status = open_ends(endpoint, ends, count, error);
  if (status != WEFT_OK) {
    weft_endpoint_close(endpoint); /* no channel is open then */
  }
  return status;
}

void weft_endpoint_close(struct weft_endpoint *endpoint) {
  weft_channel_ends_finish(&endpoint->by_channel, endpoint->threads->allocator);
  weft_arena_finish(&endpoint->arena);
  endpoint->ends = NULL;
  endpoint->end_count = endpoint->receiver_count = 0;
}
