/* The cases of groups. All of them are one thing, seen from one rank: some groups, each
 * with a list of collectives, of which so many are in flight at once. What goes in is
 * drawn from group, collective, member and element, so every rank knows what must come
 * out, bit for bit. Memory is overwritten as soon as it is the caller's again: who still
 * read it would get other sums, and a report of ThreadSanitizer. */
#include "support_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "support_protected_device.h"

enum { RANKS_MAX = 64, GROUPS_MAX = 66, GUARD = 16, UNDER_WAY_MAX = 8 };

/* ---- Memory ---- */

/* On a GPU, of the host and accessible to both. It is kept: CUDA waits for all that runs on the
 * GPU before it frees, and so for collectives that wait for other ranks. */
enum { GPU_BLOCK = 64 * 1024, GPU_BLOCKS = 1024 };
static struct weft_device *gpu;
static void *gpu_blocks[GPU_BLOCKS];
static uint32_t gpu_block_count;

void groups_use_gpu(struct weft_device *device) {
  while (gpu_block_count > 0) {
    gpu->ops->free_host(gpu, gpu_blocks[--gpu_block_count]);
  }
  gpu = device;
}

static struct weft_device *memory_device(void) { return gpu != NULL ? gpu : test_device(); }

static unsigned char *view_of(const void *data) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): takes const away
  return gpu != NULL ? (unsigned char *)(uintptr_t)data : test_device_view(test_device(), data);
}

static void *block_allocate(uint64_t bytes) {
  if (gpu == NULL) {
    return test_block_allocate(bytes);
  }
  if (bytes > GPU_BLOCK) {
    return NULL;
  }
  return gpu_block_count > 0 ? gpu_blocks[--gpu_block_count]
                             : gpu->ops->allocate_host(gpu, GPU_BLOCK);
}

static void block_free(void *data, uint64_t bytes) {
  if (gpu == NULL) {
    test_block_free(data, bytes);
  } else if (data != NULL && gpu_block_count < GPU_BLOCKS) {
    gpu_blocks[gpu_block_count++] = data;
  }
}

/* ---- One collective ---- */

struct shape {
  enum weft_collective_kind kind;
  bool in_place;
  uint64_t bytes;
};

static const uint64_t gather_bytes[] = {1, 0, 7, 64, 4099};
static const uint64_t sum_floats[] = {1, 0, 3, 17, 64, 2111};

/* Every kind with every size, not in place and in place. */
static uint32_t shape_count(void) {
  return 2 * (sizeof gather_bytes / sizeof gather_bytes[0]) +
         4 * (sizeof sum_floats / sizeof sum_floats[0]);
}

static struct shape shape_of(uint32_t number) {
  const uint32_t gathers = sizeof gather_bytes / sizeof gather_bytes[0];
  const uint32_t sums = sizeof sum_floats / sizeof sum_floats[0];
  struct shape shape = {.in_place = number % 2 == 1};
  number /= 2;
  if (number < gathers) {
    shape.kind = WEFT_ALL_GATHER;
    shape.bytes = gather_bytes[number];
    return shape;
  }
  number -= gathers;
  shape.kind = number < sums ? WEFT_REDUCE_SCATTER : WEFT_ALL_REDUCE;
  shape.bytes = 4 * sum_floats[number % sums];
  return shape;
}

/* Of very different sizes, so that another order of adding shows. */
static float number_of(uint32_t id, uint32_t collective, uint32_t member, uint64_t element) {
  struct weft_random random = {((uint64_t)id << 40) ^ ((uint64_t)collective << 32) ^
                               ((uint64_t)member << 24) ^ element};
  const uint64_t bits = weft_random_next(&random);
  return ((float)(bits >> 40) - (float)(1 << 23)) * (float)(1u << (bits % 20));
}

static unsigned char byte_of(uint32_t id, uint32_t collective, uint32_t member, uint64_t element) {
  return (unsigned char)(element * 31 + member * 57 + collective * 101 + id);
}

/* A collective of a group, with memory of its own. */
struct item {
  struct weft_collective collective;
  unsigned char *from, *to; /* what is allocated, with guards; one is NULL in place */
  uint64_t from_bytes, to_bytes;
};

static unsigned char *with_guards(uint64_t bytes) {
  unsigned char *block = block_allocate(bytes + 2 * GUARD);
  if (block != NULL) {
    memset(view_of(block), 0xa5, bytes + 2 * GUARD);
  }
  return block;
}

static bool guards_hold(const unsigned char *shown, uint64_t bytes) {
  const unsigned char *block = shown != NULL ? view_of(shown) : NULL;
  for (unsigned k = 0; block != NULL && k < GUARD; k++) {
    if (block[k] != 0xa5 || block[GUARD + bytes + k] != 0xa5) {
      return false;
    }
  }
  return true;
}

static void drop(struct item *item) {
  if (item->from != NULL) {
    memset(view_of(item->from), 0xff, item->from_bytes + 2 * GUARD);
  }
  if (item->to != NULL) {
    memset(view_of(item->to), 0xff, item->to_bytes + 2 * GUARD);
  }
  block_free(item->from, item->from_bytes + 2 * GUARD);
  block_free(item->to, item->to_bytes + 2 * GUARD);
  item->from = item->to = NULL;
}

static void fill(uint32_t id, uint32_t number, uint32_t member, enum weft_collective_kind kind,
                 unsigned char *from, uint64_t bytes) {
  if (kind == WEFT_ALL_GATHER) {
    for (uint64_t k = 0; k < bytes; k++) {
      from[k] = byte_of(id, number, member, k);
    }
    return;
  }
  for (uint64_t k = 0; k < bytes / 4; k++) {
    const float value = number_of(id, number, member, k);
    memcpy(from + 4 * k, &value, 4);
  }
}

/* Memory for it, and what goes in. A copy from memory of the host to memory of the host, which an
 * all-gather that is not in place begins with, makes CUDA wait for what is before it in the stream:
 * for ever, if that waits for a member that fails. */
static bool prepare_item(struct item *item, const struct weft_group *group, uint32_t id,
                         uint32_t number, bool member_fails) {
  struct shape shape = shape_of(number % shape_count());
  shape.in_place |= gpu != NULL && member_fails && shape.kind == WEFT_ALL_GATHER;
  const uint64_t all = shape.bytes * group->size, own = group->member * shape.bytes;
  item->from_bytes = shape.kind == WEFT_REDUCE_SCATTER ? all : shape.bytes;
  item->to_bytes = shape.kind == WEFT_ALL_GATHER ? all : shape.bytes;
  const bool reads_larger = shape.kind == WEFT_REDUCE_SCATTER;
  item->from = shape.in_place && !reads_larger ? NULL : with_guards(item->from_bytes);
  item->to = shape.in_place && reads_larger ? NULL : with_guards(item->to_bytes);
  if ((item->from == NULL && item->to == NULL) ||
      (!shape.in_place && (item->from == NULL || item->to == NULL))) {
    return false;
  }
  unsigned char *from = item->from != NULL              ? item->from + GUARD
                        : shape.kind == WEFT_ALL_GATHER ? item->to + GUARD + own
                                                        : item->to + GUARD;
  item->collective = (struct weft_collective){
      .kind = shape.kind,
      .bytes = shape.bytes,
      .device = memory_device(),
      .from = from,
      .to = item->to != NULL ? item->to + GUARD : item->from + GUARD + own};
  fill(id, number, group->member, shape.kind, view_of(from), item->from_bytes);
  return true;
}

/* Element `element` of everybody's `from`, added up in order. */
static float sum_of(uint32_t id, uint32_t number, uint32_t size, uint64_t element) {
  float sum = number_of(id, number, 0, element);
  for (uint32_t k = 1; k < size; k++) {
    sum += number_of(id, number, k, element);
  }
  return sum;
}

static bool came_out(const struct item *item, const struct weft_group *group, uint32_t id,
                     uint32_t number) {
  const struct weft_collective *done = &item->collective;
  const unsigned char *to = view_of(done->to);
  if (done->kind == WEFT_ALL_GATHER) {
    for (uint64_t k = 0; k < done->bytes * group->size; k++) {
      if (to[k] != byte_of(id, number, (uint32_t)(k / done->bytes), k % done->bytes)) {
        return false;
      }
    }
    return true;
  }
  const uint64_t count = done->bytes / 4;
  const uint64_t first = done->kind == WEFT_REDUCE_SCATTER ? group->member * count : 0;
  for (uint64_t k = 0; k < count; k++) {
    const float sum = sum_of(id, number, group->size, first + k);
    uint32_t found, expected;
    memcpy(&found, to + 4 * k, 4);
    memcpy(&expected, &sum, 4);
    if (found != expected) {
      return false;
    }
  }
  return true;
}

/* What went in is as it was, where it was not in place. */
static bool stayed(const struct item *item, const struct weft_group *group, uint32_t id,
                   uint32_t number) {
  if (item->from == NULL || item->to == NULL) {
    return true;
  }
  unsigned char *copy = malloc(item->from_bytes + 1);
  if (copy == NULL) {
    return false;
  }
  fill(id, number, group->member, item->collective.kind, copy, item->from_bytes);
  const bool same = memcmp(copy, view_of(item->from + GUARD), item->from_bytes) == 0;
  free(copy);
  return same;
}

/* ---- A rank's part of a case ---- */

/* A group that this rank is a member of. */
struct end {
  uint32_t id;
  uint32_t count;
  uint32_t ranks[RANKS_MAX];
  struct weft_group *group;
  struct item items[UNDER_WAY_MAX]; /* number n is at n % UNDER_WAY_MAX */
  bool done[UNDER_WAY_MAX];
  uint32_t started, ended;
};

struct part {
  struct end *ends; /* [GROUPS_MAX] */
  uint32_t end_count;
  uint32_t under_way;   /* collectives of a group at once */
  uint32_t collectives; /* of each group */
  bool backwards;       /* the last one in flight is tested first */
  bool member_fails;    /* a rank does, */
  bool fails;           /* this one, once it has begun what it has to */
  bool is_open;
};

static void add_end(struct part *part, uint32_t rank, uint32_t id, const uint32_t *ranks,
                    uint32_t count) {
  for (uint32_t k = 0; k < count; k++) {
    if (ranks[k] == rank) {
      struct end *end = &part->ends[part->end_count++];
      end->id = id;
      end->count = count;
      memcpy(end->ranks, ranks, count * sizeof *ranks);
    }
  }
}

static enum weft_status open_ends(struct part *part, struct weft_transport *transport,
                                  struct weft_error *error) {
  for (uint32_t k = 0; k < part->end_count; k++) {
    struct end *end = &part->ends[k];
    WEFT_TRY(transport->ops->group(transport, end->id, end->ranks, end->count, memory_device(),
                                   &end->group, error));
    CONFORMANCE_CHECK(error, end->group->size == end->count);
    CONFORMANCE_CHECK(error, end->ranks[end->group->member] == transport->rank);
  }
  part->is_open = true;
  return gpu != NULL ? transport->ops->open(transport, NULL, 0, error) : WEFT_OK;
}

static enum weft_status start_some(const struct part *part, struct end *end,
                                   struct weft_error *error) {
  while (end->started < part->collectives && end->started - end->ended < part->under_way) {
    const uint32_t number = end->started;
    struct item *item = &end->items[number % UNDER_WAY_MAX];
    end->done[number % UNDER_WAY_MAX] = false;
    CONFORMANCE_CHECK(error, prepare_item(item, end->group, end->id, number, part->member_fails));
    WEFT_TRY(end->group->ops->start(end->group, &item->collective, error));
    end->started++;
  }
  return WEFT_OK;
}

static enum weft_status ask(struct end *end, uint32_t number, struct weft_error *error) {
  struct item *item = &end->items[number % UNDER_WAY_MAX];
  if (end->done[number % UNDER_WAY_MAX]) {
    return WEFT_OK;
  }
  const enum weft_status status = end->group->ops->test(end->group, &item->collective, error);
  if (status != WEFT_OK) {
    return status;
  }
  CONFORMANCE_CHECK(error, came_out(item, end->group, end->id, number));
  CONFORMANCE_CHECK(error, stayed(item, end->group, end->id, number));
  CONFORMANCE_CHECK(error, guards_hold(item->from, item->from_bytes));
  CONFORMANCE_CHECK(error, guards_hold(item->to, item->to_bytes));
  drop(item);
  end->done[number % UNDER_WAY_MAX] = true;
  return WEFT_OK;
}

static enum weft_status ask_all(const struct part *part, struct end *end,
                                struct weft_error *error) {
  bool later_done = false;
  for (uint32_t k = end->ended; k < end->started; k++) {
    const uint32_t number = part->backwards ? end->started - 1 - (k - end->ended) : k;
    const enum weft_status status = ask(end, number, error);
    if (status < 0) {
      return status;
    }
    /* They are done in order: nothing before one that is done can be in flight. */
    CONFORMANCE_CHECK(error, !(part->backwards && later_done && status != WEFT_OK));
    later_done = later_done || status == WEFT_OK;
  }
  while (end->ended < end->started && end->done[end->ended % UNDER_WAY_MAX]) {
    end->ended++;
  }
  return WEFT_OK;
}

static enum weft_status advance(struct conformance_rank *rank, struct weft_error *error) {
  struct part *part = rank->state;
  uint32_t finished = 0;
  if (!part->is_open) {
    WEFT_TRY(open_ends(part, rank->transport, error));
  }
  for (uint32_t k = 0; k < part->end_count; k++) {
    struct end *end = &part->ends[k];
    for (uint32_t before = UINT32_MAX; before != end->ended && !part->fails;) {
      before = end->ended;
      WEFT_TRY(start_some(part, end, error));
      WEFT_TRY(ask_all(part, end, error));
    }
    finished += end->ended == part->collectives;
  }
  if (part->fails) {
    return weft_fail(error, WEFT_ERR_STAGE, "", "rank %u fails on purpose", rank->transport->rank);
  }
  return finished == part->end_count ? WEFT_OK : WEFT_IN_PROGRESS;
}

/* Groups first: after a failure others may be reading the memory until then. */
static void end_part(struct conformance_rank *rank) {
  struct part *part = rank->state;
  for (uint32_t k = 0; k < part->end_count; k++) {
    struct end *end = &part->ends[k];
    if (end->group != NULL) {
      end->group->ops->destroy(end->group);
    }
    for (uint32_t n = 0; n < UNDER_WAY_MAX; n++) {
      drop(&end->items[n]);
    }
  }
  free(part->ends);
  free(part);
  rank->state = NULL;
}

static enum weft_status out_of_memory(struct conformance_rank *rank, struct weft_error *error) {
  (void)rank;
  return weft_fail(error, WEFT_ERR_MEMORY, "", "no memory for a part of a case");
}

static struct part *begin(struct conformance_rank *rank, uint32_t under_way, uint32_t collectives) {
  struct part *part = calloc(1, sizeof *part);
  struct end *ends = calloc(GROUPS_MAX, sizeof *ends);
  rank->advance = out_of_memory;
  rank->end = NULL;
  if (part == NULL || ends == NULL || rank->transport->rank_count > RANKS_MAX) {
    free(part);
    free(ends);
    return NULL;
  }
  *part = (struct part){.ends = ends, .under_way = under_way, .collectives = collectives};
  rank->state = part;
  rank->advance = advance;
  rank->end = end_part;
  return part;
}

/* ---- The cases ---- */

/* Ranks 0 to size-1; every other group in falling order, so that members are not ranks. */
static void add_first_ranks(struct part *part, const struct weft_transport *transport, uint32_t id,
                            uint32_t size, bool falling) {
  uint32_t ranks[RANKS_MAX];
  for (uint32_t k = 0; k < size; k++) {
    ranks[k] = falling ? size - 1 - k : k;
  }
  add_end(part, transport->rank, id, ranks, size);
}

/* Groups of all sizes, overlapping; one collective at a time in each. */
static void all_sizes(struct conformance_rank *rank, uint32_t first_id) {
  struct part *part = begin(rank, 1, shape_count());
  for (uint32_t size = 1; part != NULL && size <= rank->transport->rank_count; size++) {
    add_first_ranks(part, rank->transport, first_id + size, size, size % 2 == 0);
  }
}

static void several_in_flight(struct conformance_rank *rank, uint32_t first_id) {
  struct part *part = begin(rank, UNDER_WAY_MAX, 2 * shape_count());
  if (part != NULL) {
    add_first_ranks(part, rank->transport, first_id, rank->transport->rank_count, true);
  }
}

static void asked_backwards(struct conformance_rank *rank, uint32_t first_id) {
  struct part *part = begin(rank, 5, shape_count());
  if (part != NULL) {
    part->backwards = true;
    add_first_ranks(part, rank->transport, first_id, rank->transport->rank_count, false);
  }
}

/* Even and odd ranks apart, and one group across: all at once. */
static void disjoint_and_across(struct conformance_rank *rank, uint32_t first_id) {
  struct part *part = begin(rank, 3, shape_count());
  const uint32_t p = rank->transport->rank_count;
  for (uint32_t odd = 0; part != NULL && odd < 2; odd++) {
    uint32_t ranks[RANKS_MAX], count = 0;
    for (uint32_t r = odd; r < p; r += 2) {
      ranks[count++] = r;
    }
    add_end(part, rank->transport->rank, first_id + odd, ranks, count);
  }
  if (part != NULL) {
    add_first_ranks(part, rank->transport, first_id + 2, p, true);
  }
}

static enum weft_status misuse(struct conformance_rank *rank, struct weft_error *error) {
  struct weft_transport *transport = rank->transport;
  const uint32_t id = *(const uint32_t *)rank->state;
  const uint32_t self = transport->rank, p = transport->rank_count;
  const uint32_t twice[] = {self, self}, absent[] = {self, p}, others[] = {(self + 1) % p};
  struct weft_group *group = NULL;
  struct weft_error said;
  CONFORMANCE_CHECK(error, transport->ops->group(transport, id + 2 * self, twice, 2, NULL, &group,
                                                 &said) == WEFT_ERR_USAGE);
  CONFORMANCE_CHECK(error, transport->ops->group(transport, id + 2 * self, absent, 2, NULL, &group,
                                                 &said) == WEFT_ERR_USAGE);
  CONFORMANCE_CHECK(error, transport->ops->group(transport, id + 2 * self, &self, 0, NULL, &group,
                                                 &said) == WEFT_ERR_USAGE);
  CONFORMANCE_CHECK(error, p == 1 || transport->ops->group(transport, id + 2 * self, others, 1,
                                                           NULL, &group, &said) == WEFT_ERR_USAGE);
  CONFORMANCE_CHECK(error, group == NULL);

  float number = 1;
  struct weft_collective odd = {.from = &number, .to = &number, .bytes = 3};
  WEFT_TRY(transport->ops->group(transport, id + 2 * self + 1, &self, 1, NULL, &group, error));
  odd.kind = WEFT_REDUCE_SCATTER;
  const enum weft_status scatter = group->ops->start(group, &odd, &said);
  odd.kind = WEFT_ALL_REDUCE;
  const enum weft_status reduce = group->ops->start(group, &odd, &said);
  group->ops->destroy(group);
  CONFORMANCE_CHECK(error, scatter == WEFT_ERR_USAGE);
  CONFORMANCE_CHECK(error, reduce == WEFT_ERR_USAGE);
  return WEFT_OK;
}

static void free_state(struct conformance_rank *rank) {
  free(rank->state);
  rank->state = NULL;
}

static void misused(struct conformance_rank *rank, uint32_t first_id) {
  uint32_t *id = malloc(sizeof *id);
  rank->state = id;
  rank->advance = id != NULL ? misuse : out_of_memory;
  rank->end = free_state;
  if (id != NULL) {
    *id = first_id;
  }
}

static const struct {
  const char *name;
  void (*begin)(struct conformance_rank *rank, uint32_t first_id);
} cases[] = {
    {"all sizes", all_sizes},
    {"several in flight", several_in_flight},
    {"asked backwards", asked_backwards},
    {"disjoint and across", disjoint_and_across},
    {"misused", misused},
};

uint32_t groups_case_count(void) { return sizeof cases / sizeof cases[0]; }

const char *groups_case_name(uint32_t number) { return cases[number].name; }

void groups_case_begin(uint32_t number, struct conformance_rank *rank) {
  cases[number].begin(rank, 1000 * number);
}

/* ---- Failure ---- */

void groups_failure_begin(struct conformance_rank *rank) {
  struct part *part = begin(rank, UNDER_WAY_MAX, shape_count());
  const uint32_t p = rank->transport->rank_count;
  if (part != NULL) {
    part->member_fails = true;
    part->fails = rank->transport->rank == p - 1;
    add_first_ranks(part, rank->transport, 1000 * groups_case_count(), p, false);
    add_first_ranks(part, rank->transport, 1000 * groups_case_count() + 1, p, true);
  }
}

bool groups_failure_is_right(const struct conformance_rank *rank) {
  char expected[64];
  (void)snprintf(expected, sizeof expected, "rank %u fails on purpose",
                 rank->transport->rank_count - 1);
  return rank->status == WEFT_ERR_STAGE && strcmp(rank->error.message, expected) == 0;
}
