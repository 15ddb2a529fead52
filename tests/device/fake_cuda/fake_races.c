/* Vector clocks, and the history of memory: who wrote it last, and who read it since. An order
 * between operations comes from calls alone, not from the order in which nodes happen to run, so
 * each operation is looked at when it is issued, and one run finds what any run could. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"

/* ---- Clocks ---- */

static uint32_t ticks[FAKE_CLOCKS_MAX]; /* the last of each component */
static uint32_t component_count;
static uint32_t unused[FAKE_CLOCKS_MAX], unused_count;

uint32_t fake_clock_component_take(void) {
  if (unused_count > 0) {
    return unused[--unused_count];
  }
  if (component_count == FAKE_CLOCKS_MAX) {
    abort(); /* more streams, threads and lanes of graphs than FAKE_CLOCKS_MAX */
  }
  return component_count++;
}

/* The next owner goes on where this one ended, so nothing of it is taken for concurrent. */
void fake_clock_component_give(uint32_t component) {
  assert(unused_count < FAKE_CLOCKS_MAX);
  unused[unused_count++] = component;
}

uint32_t fake_clock_tick(struct fake_clock *clock, uint32_t component) {
  while (clock->count <= component) {
    clock->ticks[clock->count++] = 0;
  }
  return clock->ticks[component] = ++ticks[component];
}

void fake_clock_join(struct fake_clock *to, const struct fake_clock *from) {
  while (to->count < from->count) {
    to->ticks[to->count++] = 0;
  }
  for (uint32_t k = 0; k < from->count; k++) {
    to->ticks[k] = to->ticks[k] > from->ticks[k] ? to->ticks[k] : from->ticks[k];
  }
}

void fake_clock_copy(struct fake_clock *to, const struct fake_clock *from) {
  to->count = from->count;
  memcpy(to->ticks, from->ticks, from->count * sizeof from->ticks[0]);
}

/* ---- What comes after what ---- */

enum { NAMES_MAX = 8192 };

/* How often an operation of that label and name was issued: that distinguishes it from others. */
static struct occurrence {
  const char *label, *name;
  uint64_t count;
} occurrences[NAMES_MAX];

/* Of each component: ticks of its work, and sums of what each is. */
static struct lane {
  uint32_t *ticks;
  uint64_t *sums;
  uint32_t count, tick_capacity, sum_capacity;
} lanes[FAKE_CLOCKS_MAX];
static uint64_t order;

static uint64_t mix(uint64_t value) {
  value = (value ^ value >> 31) * UINT64_C(0x9e3779b97f4a7c15);
  return value ^ value >> 29;
}

static uint64_t hash_text(const char *text) {
  uint64_t hash = 7;
  for (; *text != '\0'; text++) {
    hash = mix(hash + (unsigned char)*text);
  }
  return hash;
}

static uint64_t identify(const struct fake_operation *operation) {
  const uint64_t hash = hash_text(operation->label) + 3 * hash_text(operation->name);
  struct occurrence *at = &occurrences[hash % NAMES_MAX];
  uint32_t tries = 0;
  while (at->label != NULL && (at->label != operation->label || at->name != operation->name)) {
    at = at + 1 < occurrences + NAMES_MAX ? at + 1 : occurrences;
    if (++tries == NAMES_MAX) {
      abort();
    }
  }
  at->label = operation->label;
  at->name = operation->name;
  return mix(hash + ++at->count);
}

/* The sum of what the component has done up to that tick. */
static uint64_t sum_until(const struct lane *lane, uint32_t tick) {
  uint32_t low = 0, high = lane->count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (lane->ticks[middle] <= tick) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low > 0 ? lane->sums[low - 1] : 0;
}

void fake_order_add(const struct fake_operation *operation, const struct fake_clock *clock,
                    uint32_t component) {
  if (!fake.options.orders || operation->label == NULL) {
    return;
  }
  struct lane *own = &lanes[component];
  const uint64_t id = identify(operation);
  uint64_t before = 0;
  for (uint32_t k = 0; k < clock->count; k++) {
    before += sum_until(&lanes[k], clock->ticks[k]);
  }
  order += mix(id ^ mix(before));
  own->ticks = fake_array_grow(own->ticks, &own->tick_capacity, own->count + 1, sizeof *own->ticks);
  own->sums = fake_array_grow(own->sums, &own->sum_capacity, own->count + 1, sizeof *own->sums);
  own->ticks[own->count] = clock->ticks[component];
  own->sums[own->count] = id + (own->count > 0 ? own->sums[own->count - 1] : 0);
  own->count++;
}

void fake_order_forget(void) {
  memset(occurrences, 0, sizeof occurrences);
  for (uint32_t k = 0; k < FAKE_CLOCKS_MAX; k++) {
    lanes[k].count = 0;
  }
  order = 0;
}

uint64_t fake_cuda_order(void) {
  pthread_mutex_lock(&fake.lock);
  const uint64_t found = order;
  pthread_mutex_unlock(&fake.lock);
  return found;
}

void fake_cuda_host_sees_all(void) {
  pthread_mutex_lock(&fake.lock);
  for (uint32_t k = 0; k < fake.stream_count; k++) {
    fake_host_wait(&fake.streams[k]->clock, 0);
  }
  pthread_mutex_unlock(&fake.lock);
}

bool fake_cuda_host_knows_all(void) {
  bool knows = true;
  pthread_mutex_lock(&fake.lock);
  const struct fake_clock *clock = &fake_host()->clock;
  for (uint32_t k = 0; k < fake.stream_count; k++) {
    const struct CUstream_st *stream = fake.streams[k];
    knows =
        knows && (stream->work_tick == 0 || (stream->component < clock->count &&
                                             clock->ticks[stream->component] >= stream->work_tick));
  }
  pthread_mutex_unlock(&fake.lock);
  return knows;
}

/* ---- History of memory ---- */

struct epoch {
  uint32_t component, tick; /* tick 0: nobody */
  struct fake_operation operation;
};

/* begin <= byte < end of the block. Ranges of a block are in order and do not overlap. */
struct fake_range {
  uint64_t begin, end;
  struct epoch writer;
  struct epoch *readers; /* since; none of them knows another */
  uint32_t reader_count, reader_capacity;
};

void fake_ranges_free(struct fake_block *block) {
  for (uint32_t k = 0; k < block->range_count; k++) {
    free(block->ranges[k].readers);
  }
  free(block->ranges);
  block->ranges = NULL;
  block->range_count = block->range_capacity = 0;
}

static struct fake_range *insert(struct fake_block *block, uint32_t at) {
  block->ranges = fake_array_grow(block->ranges, &block->range_capacity, block->range_count + 1,
                                  sizeof *block->ranges);
  memmove(&block->ranges[at + 1], &block->ranges[at],
          (block->range_count - at) * sizeof *block->ranges);
  block->range_count++;
  memset(&block->ranges[at], 0, sizeof *block->ranges);
  return &block->ranges[at];
}

/* ranges[at] becomes two that meet at `middle`. */
static void split(struct fake_block *block, uint32_t at, uint64_t middle) {
  struct fake_range *right = insert(block, at + 1);
  struct fake_range *left = &block->ranges[at];
  *right = *left;
  right->readers = NULL;
  right->reader_capacity = 0;
  right->readers =
      fake_array_grow(NULL, &right->reader_capacity, left->reader_count, sizeof *right->readers);
  if (left->reader_count > 0) {
    memcpy(right->readers, left->readers, left->reader_count * sizeof *left->readers);
  }
  left->end = right->begin = middle;
}

static bool known(const struct epoch *epoch, const struct fake_clock *clock) {
  return epoch->tick == 0 ||
         (epoch->component < clock->count && clock->ticks[epoch->component] >= epoch->tick);
}

static void report(const struct fake_block *block, const struct fake_range *range,
                   const struct epoch *before, bool before_writes,
                   const struct fake_operation *operation, bool writes) {
  char first[200], second[200];
  fake_find(FAKE_CUDA_RACE,
            "race on bytes %llu to %llu of block %llu (%s): nothing orders\n"
            "  %s, which %s, and\n  %s, which %s",
            (unsigned long long)range->begin, (unsigned long long)range->end - 1,
            (unsigned long long)block->number, block->device < 0 ? "pinned" : "device",
            fake_operation_text(&before->operation, first, sizeof first),
            before_writes ? "writes" : "reads",
            fake_operation_text(operation, second, sizeof second), writes ? "writes" : "reads");
}

/* True: a race, which has been reported. */
static bool visit(const struct fake_block *block, struct fake_range *range, bool writes,
                  const struct epoch *epoch, const struct fake_clock *clock, bool quiet) {
  bool race = !known(&range->writer, clock);
  if (race && !quiet) {
    report(block, range, &range->writer, true, &epoch->operation, writes);
  }
  /* A reader that this one knows need not be kept: who knows this one knows that, too. */
  uint32_t kept = 0;
  for (uint32_t k = 0; k < range->reader_count; k++) {
    const struct epoch *reader = &range->readers[k];
    if (known(reader, clock)) {
      continue;
    }
    if (writes && !race) {
      race = true;
      if (!quiet) {
        report(block, range, reader, false, &epoch->operation, true);
      }
    }
    range->readers[kept++] = *reader;
  }
  range->reader_count = kept;
  if (writes) {
    range->writer = *epoch;
    range->reader_count = 0;
  } else {
    range->readers =
        fake_array_grow(range->readers, &range->reader_capacity, kept + 1, sizeof *range->readers);
    range->readers[range->reader_count++] = *epoch;
  }
  return race;
}

/* The first range that ends behind `offset`. */
static uint32_t first_behind(const struct fake_block *block, uint64_t offset) {
  uint32_t low = 0, high = block->range_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (block->ranges[middle].end > offset) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void fake_access(struct fake_block *block, uint64_t begin, uint64_t end, bool reads, bool writes,
                 const struct fake_operation *operation, const struct fake_clock *clock,
                 uint32_t component) {
  assert((reads || writes) && begin <= end && end <= block->bytes);
  const struct epoch epoch = {
      .component = component, .tick = clock->ticks[component], .operation = *operation};
  const uint32_t first = first_behind(block, begin);
  uint32_t at = first;
  bool race = false;
  for (uint64_t offset = begin; offset < end; at++) {
    if (at == block->range_count || block->ranges[at].begin > offset) {
      const uint64_t next =
          at == block->range_count || block->ranges[at].begin > end ? end : block->ranges[at].begin;
      struct fake_range *fresh = insert(block, at);
      fresh->begin = offset;
      fresh->end = next;
    } else if (block->ranges[at].begin < offset) {
      split(block, at, offset);
      continue;
    }
    if (block->ranges[at].end > end) {
      split(block, at, end);
    }
    race |= visit(block, &block->ranges[at], writes, &epoch, clock, race);
    offset = block->ranges[at].end;
  }
  /* What was written at once has one history. */
  const uint32_t begin_at = first_behind(block, begin);
  if (writes && at > begin_at + 1) {
    block->ranges[begin_at].end = end;
    for (uint32_t k = begin_at + 1; k < at; k++) {
      free(block->ranges[k].readers);
    }
    memmove(&block->ranges[begin_at + 1], &block->ranges[at],
            (block->range_count - at) * sizeof *block->ranges);
    block->range_count -= at - (begin_at + 1);
  }
}
