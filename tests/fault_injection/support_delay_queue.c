/* Messages between two transports; see support_delay_queue.h. Those to be delivered are
 * linked by index, so that one array holds all of them, and found through a table
 * with open addressing that is at most half full. */
#include "support_delay_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#define NONE WEFT_HELD_NONE

static int compare_ends(const void *left, const void *right) {
  const struct weft_delay_end *a = left;
  const struct weft_delay_end *b = right;
  const int by_channel = (a->channel > b->channel) - (a->channel < b->channel);
  return by_channel != 0 ? by_channel : a->sends - b->sends;
}

/* ---- Delivered messages: a ring through their states ---- */

_Static_assert(sizeof(void *) <= sizeof(uint64_t), "a pointer fits a word of `state`");

static struct weft_message *neighbour(const struct weft_message *message, int side) {
  void *other;
  memcpy(&other, &message->state[side], sizeof other);
  return other;
}

static struct weft_message *before(const struct weft_message *message) {
  return neighbour(message, 0);
}

static struct weft_message *after(const struct weft_message *message) {
  return neighbour(message, 1);
}

static void link_pair(struct weft_message *first, struct weft_message *second) {
  const void *const ends[2] = {first, second};
  memcpy(&first->state[1], &ends[1], sizeof ends[1]);
  memcpy(&second->state[0], &ends[0], sizeof ends[0]);
}

void weft_delay_let_go(struct weft_message *message) {
  link_pair(before(message), after(message));
  link_pair(message, message); /* so that it may be let go again */
}

/* ---- Memory ---- */

static void init_ends(struct weft_delay_queue *held, const struct weft_channel_end *ends) {
  for (uint32_t k = 0; k < held->end_count; k++) {
    held->ends[k] = (struct weft_delay_end){.channel = ends[k].channel,
                                            .depth = ends[k].depth,
                                            .sends = ends[k].sends,
                                            .first = NONE,
                                            .last = NONE,
                                            .released = INT64_MIN};
  }
  qsort(held->ends, held->end_count, sizeof *held->ends, compare_ends);
  for (uint32_t k = 0; k < held->end_count; k++) {
    link_pair(&held->ends[k].news, &held->ends[k].news); /* where it stays */
  }
}

enum weft_status weft_delay_init(struct weft_delay_queue *held,
                                 const struct weft_allocator *allocator,
                                 const struct weft_channel_end *ends, uint32_t count,
                                 struct weft_error *error) {
  uint64_t room = 0;
  uint64_t table_room = 2;
  *held = (struct weft_delay_queue){.allocator = allocator};
  for (uint32_t k = 0; k < count; k++) {
    room += ends[k].depth; /* the sum of 2^32 of them fits */
  }
  if (room > UINT32_MAX / 4) {
    return weft_fail_memory(error, SIZE_MAX);
  }
  while (table_room < 2 * room) {
    table_room *= 2;
  }
  held->end_count = count;
  held->room = (uint32_t)room;
  held->table_room = (uint32_t)table_room;
  held->ends = weft_array_allocate(allocator, count, sizeof *held->ends);
  held->messages = weft_array_allocate(allocator, room, sizeof *held->messages);
  held->table = weft_array_allocate(allocator, table_room, sizeof *held->table);
  if (held->ends == NULL || held->messages == NULL || held->table == NULL) {
    weft_delay_finish(held);
    return weft_fail_memory(error, room * sizeof *held->messages);
  }
  init_ends(held, ends);
  for (uint32_t k = 0; k < room; k++) {
    held->messages[k].after = k + 1 < room ? k + 1 : NONE;
  }
  held->free = room > 0 ? 0 : NONE;
  for (uint32_t k = 0; k < table_room; k++) {
    held->table[k] = NONE;
  }
  return WEFT_OK;
}

void weft_delay_finish(struct weft_delay_queue *held) {
  weft_array_free(held->allocator, held->ends, held->end_count, sizeof *held->ends);
  weft_array_free(held->allocator, held->messages, held->room, sizeof *held->messages);
  weft_array_free(held->allocator, held->table, held->table_room, sizeof *held->table);
  *held = (struct weft_delay_queue){.allocator = held->allocator};
}

struct weft_delay_end *weft_delay_find_end(struct weft_delay_queue *held, uint32_t channel,
                                           bool sends) {
  const struct weft_delay_end key = {.channel = channel, .sends = sends};
  return held->end_count == 0
             ? NULL
             : bsearch(&key, held->ends, held->end_count, sizeof key, compare_ends);
}

/* ---- The table ---- */

static uint32_t home(const struct weft_delay_queue *held, const struct weft_message *message) {
  const uint64_t hash = (uint64_t)(uintptr_t)message * UINT64_C(0x9e3779b97f4a7c15);
  return (uint32_t)(hash >> 32) & (held->table_room - 1);
}

/* Where it is, or the free place where it would be. */
static uint32_t place_of(const struct weft_delay_queue *held, const struct weft_message *message) {
  uint32_t at = home(held, message);
  while (held->table[at] != NONE && held->messages[held->table[at]].message != message) {
    at = (at + 1) & (held->table_room - 1);
  }
  return at;
}

/* Those behind a hole that were pushed over it move back into it. */
static void close_hole(struct weft_delay_queue *held, uint32_t hole) {
  const uint32_t mask = held->table_room - 1;
  for (uint32_t at = (hole + 1) & mask; held->table[at] != NONE; at = (at + 1) & mask) {
    const uint32_t from = home(held, held->messages[held->table[at]].message);
    if (((at - from) & mask) >= ((at - hole) & mask)) {
      held->table[hole] = held->table[at];
      hole = at;
    }
  }
  held->table[hole] = NONE;
}

struct weft_delay_message *weft_delay_find(struct weft_delay_queue *held,
                                           const struct weft_message *message) {
  if (held->table == NULL) {
    return NULL;
  }
  const uint32_t index = held->table[place_of(held, message)];
  return index != NONE ? &held->messages[index] : NULL;
}

/* ---- The lists of those to be delivered ---- */

struct weft_delay_message *weft_delay_add(struct weft_delay_queue *held, struct weft_delay_end *end,
                                          struct weft_message *message) {
  const uint32_t index = held->free;
  assert(end->count < end->depth && index != NONE);
  struct weft_delay_message *added = &held->messages[index];
  held->free = added->after;
  *added = (struct weft_delay_message){
      .message = message, .end = (uint32_t)(end - held->ends), .before = end->last, .after = NONE};
  *(end->last != NONE ? &held->messages[end->last].after : &end->first) = index;
  end->last = index;
  end->count++;
  end->sequence++;
  held->table[place_of(held, message)] = index;
  return added;
}

void weft_delay_drop(struct weft_delay_queue *held, struct weft_delay_message *message) {
  const uint32_t index = (uint32_t)(message - held->messages);
  struct weft_delay_end *end = &held->ends[message->end];
  close_hole(held, place_of(held, message->message));
  *(message->before != NONE ? &held->messages[message->before].after : &end->first) =
      message->after;
  *(message->after != NONE ? &held->messages[message->after].before : &end->last) = message->before;
  end->count--;
  message->after = held->free;
  held->free = index;
}

/* ---- Time ---- */

void weft_delay_deliver(struct weft_delay_queue *held, struct weft_delay_end *end) {
  struct weft_delay_message *held_message = &held->messages[end->first];
  struct weft_message *message = held_message->message;
  int64_t release;
  if (__builtin_add_overflow(message->end, held_message->delay, &release)) {
    release = WEFT_TIME_NEVER;
  }
  end->released = release > end->released ? release : end->released;
  message->end = end->released;
  weft_delay_drop(held, held_message);
  link_pair(before(&end->news), message);
  link_pair(message, &end->news);
}

void weft_delay_pass(struct weft_delay_queue *held, int64_t now) {
  for (uint32_t k = 0; k < held->end_count; k++) {
    struct weft_message *news = &held->ends[k].news;
    while (after(news) != news && after(news)->end <= now) {
      weft_delay_let_go(after(news));
    }
  }
}

int64_t weft_delay_next_release(const struct weft_delay_queue *held) {
  int64_t next = WEFT_TIME_NEVER;
  for (uint32_t k = 0; k < held->end_count; k++) {
    const struct weft_message *news = &held->ends[k].news;
    if (after(news) != news && after(news)->end < next) {
      next = after(news)->end;
    }
  }
  return next;
}
