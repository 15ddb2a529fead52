/* The oracle, part two: every interleaving of a small program
 * (support_oracle.h). A state holds where each rank is and what is on the
 * channels, spelled out; from each state each rank that can do something does
 * one thing; every state is visited once. Nothing here relies on an argument
 * that some interleavings need not be tried. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "support_oracle.h"

/* 32 bytes, compared and hashed as bytes. `flight` holds the messages on all
 * channels, channel by channel, oldest first within one. */
struct state {
  uint8_t cell[ORACLE_EXPLORE_RANKS];
  uint8_t posted[ORACLE_EXPLORE_RANKS];
  uint8_t in_flight;
  uint8_t flight[ORACLE_EXPLORE_MESSAGES];
};

#define TABLE_SIZE 131072u
#define SEEN_MAX (TABLE_SIZE / 2)

struct search {
  const struct oracle *oracle;
  uint32_t capacity;
  uint8_t channel[ORACLE_EXPLORE_MESSAGES];
  uint32_t table[TABLE_SIZE]; /* number of a seen state + 1, or 0 */
  uint32_t used[SEEN_MAX];    /* the table entries to clear afterwards */
  struct state seen[SEEN_MAX];
  uint32_t seen_count;
};

static uint64_t state_hash(const struct state *state) {
  uint64_t words[4], hash = 0;
  memcpy(words, state, sizeof words);
  for (int word = 0; word < 4; word++) {
    hash = (hash ^ words[word]) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
  }
  return hash;
}

static void see(struct search *search, const struct state *state) {
  uint32_t at = (uint32_t)(state_hash(state) % TABLE_SIZE);
  while (search->table[at] != 0) {
    if (memcmp(&search->seen[search->table[at] - 1], state, sizeof *state) == 0) {
      return;
    }
    at = (at + 1) % TABLE_SIZE;
  }
  assert(search->seen_count < SEEN_MAX);
  search->used[search->seen_count] = at;
  search->seen[search->seen_count++] = *state;
  search->table[at] = search->seen_count;
}

/* Messages on `channel`, and the oldest of them if there is one. */
static uint32_t on_channel(const struct search *search, const struct state *state, uint8_t channel,
                           uint8_t *oldest) {
  uint32_t count = 0;
  for (uint32_t at = 0; at < state->in_flight; at++) {
    if (search->channel[state->flight[at]] == channel && count++ == 0) {
      *oldest = state->flight[at];
    }
  }
  return count;
}

static void put(const struct search *search, struct state *state, uint8_t message) {
  uint32_t at = state->in_flight++;
  while (at > 0 && search->channel[state->flight[at - 1]] > search->channel[message]) {
    state->flight[at] = state->flight[at - 1];
    at--;
  }
  state->flight[at] = message;
}

static void take_message(struct state *state, uint8_t message) {
  uint32_t at = 0;
  while (state->flight[at] != message) {
    at++;
  }
  state->in_flight--;
  for (; at < state->in_flight; at++) {
    state->flight[at] = state->flight[at + 1];
  }
  state->flight[state->in_flight] = 0;
}

static bool in_flight(const struct state *state, uint8_t message) {
  return memchr(state->flight, message, state->in_flight) != NULL;
}

/* The state after `rank` has done its next thing; false when it cannot. */
static bool advance_send(const struct search *search, struct state *state, uint32_t rank,
                         uint8_t message) {
  if (search->capacity == 0 && !state->posted[rank]) {
    put(search, state, message);
    state->posted[rank] = 1;
    return true;
  }
  if (search->capacity == 0) {
    if (in_flight(state, message)) {
      return false;
    }
    state->posted[rank] = 0;
    state->cell[rank]++;
    return true;
  }
  uint8_t oldest = 0;
  if (on_channel(search, state, search->channel[message], &oldest) >= search->capacity) {
    return false;
  }
  put(search, state, message);
  state->cell[rank]++;
  return true;
}

static bool advance_recv(const struct search *search, struct state *state, uint32_t rank,
                         uint8_t message) {
  uint8_t oldest = 0;
  if (on_channel(search, state, search->channel[message], &oldest) == 0 || oldest != message) {
    return false;
  }
  take_message(state, message);
  state->cell[rank]++;
  return true;
}

static bool advance(const struct search *search, struct state *state, uint32_t rank) {
  const struct oracle *oracle = search->oracle;
  const uint32_t begin = oracle->cell_begin[rank];
  if (begin + state->cell[rank] == oracle->cell_begin[rank + 1]) {
    return false;
  }
  const struct oracle_cell *cell = &oracle->cells[begin + state->cell[rank]];
  if (cell->kind == ORACLE_SEND) {
    return advance_send(search, state, rank, (uint8_t)cell->message);
  }
  if (cell->kind == ORACLE_RECV) {
    return advance_recv(search, state, rank, (uint8_t)cell->message);
  }
  for (uint32_t need = 0; need < cell->need_count; need++) {
    if (state->cell[cell->needs[need].rank] <= cell->needs[need].cell) {
      return false;
    }
  }
  state->cell[rank]++;
  return true;
}

static void note_end(const struct oracle *oracle, const struct state *state,
                     struct oracle_exploration *found) {
  bool complete = true;
  for (uint32_t rank = 0; rank < oracle->rank_count; rank++) {
    complete =
        complete && oracle->cell_begin[rank] + state->cell[rank] == oracle->cell_begin[rank + 1];
    if (found->ends == 0) {
      found->end_cell[rank] = state->cell[rank];
    }
  }
  found->ends++;
  found->ends_complete += complete ? 1 : 0;
}

static void search_channels(struct search *search, enum weft_channel_model channel) {
  for (uint32_t message = 0; message < search->oracle->message_count; message++) {
    const struct oracle_message *m = &search->oracle->messages[message];
    uint32_t number = m->from;
    if (channel == WEFT_CHANNEL_EDGE) {
      number = m->edge;
    } else if (channel == WEFT_CHANNEL_PAIR) {
      number = m->from * ORACLE_EXPLORE_RANKS + m->to;
    }
    assert(number < 256);
    search->channel[message] = (uint8_t)number;
  }
}

struct oracle_exploration oracle_explore(const struct oracle *oracle,
                                         struct weft_comm_model model) {
  static struct search search; /* 3 MB: kept, and cleared through `used` */
  assert(oracle->rank_count <= ORACLE_EXPLORE_RANKS);
  assert(oracle->message_count <= ORACLE_EXPLORE_MESSAGES);
  struct oracle_exploration found = {0};
  const struct state start = {0};
  search.oracle = oracle;
  search.capacity = model.capacity;
  search_channels(&search, model.channel);
  see(&search, &start);
  for (uint32_t at = 0; at < search.seen_count; at++) {
    bool moved = false;
    for (uint32_t rank = 0; rank < oracle->rank_count; rank++) {
      struct state next = search.seen[at];
      if (advance(&search, &next, rank)) {
        see(&search, &next);
        moved = true;
      }
    }
    if (!moved) {
      note_end(oracle, &search.seen[at], &found);
    }
  }
  found.states = search.seen_count;
  while (search.seen_count > 0) {
    search.table[search.used[--search.seen_count]] = 0;
  }
  return found;
}
