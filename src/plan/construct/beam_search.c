/* Beam search over prefixes of orders, which is exact for small problems.
 *
 * Prefixes grow op by op, in order of starts: an op starts when its rank is free and its input has
 * arrived, and no earlier than the op added before it. Every order occurs with its true times when
 * its ops are added in the order of their starts. All prefixes with the same number of ops form a
 * layer. Of two that have done the same ops, one that is as early in everything makes the other
 * superfluous, whatever follows; and a prefix whose lower bound reaches the best known value is
 * dropped. A layer keeps the `width` prefixes with the smallest bounds. If that never drops one,
 * no order is better than what is known then, which is optimal.
 *
 * With a target, only orders that reach it are searched: a guide tells how late a rank may be in a
 * state, and which prefixes have the least slack.
 *
 * A whole backward counts as a backward and its W, done at once: it leads to the next layer but
 * one. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "plan/bounds/bound_windows.h"
#include "plan/bounds/chain_bound.h"
#include "plan/construct/constructors.h"

enum { COUNT_F, COUNT_BACK, COUNT_W, COUNTS };

/* A prefix is a block of memory: this, then int64_t times[time_count], then uint16_t
 * done[stage * COUNTS + COUNT_...], in whole words. */
struct prefix {
  int64_t now; /* start of the last op */
  int64_t bound;
  int64_t sum; /* of the ends of all ranks: the tie-breaker */
  uint32_t trace;
  uint32_t next; /* in the same bucket, + 1 */
};

/* The last op of a prefix, and the prefix before. */
struct trace {
  uint32_t before;
  uint16_t stage;
  uint16_t kind;
};

struct layer {
  unsigned char *blocks;
  uint32_t *buckets; /* [bucket_count] index of a prefix + 1 */
  uint32_t count;
};

enum { LAYERS = 3, ROOM = 4 /* prefixes until a layer is thinned, as a multiple of the width */ };

struct beam {
  const struct weft_problem *problem;
  const struct weft_guide *guide; /* NULL: none */
  int64_t target;                 /* of the guide */
  struct weft_arena arena;
  struct layer layers[LAYERS];
  unsigned char *blocks;           /* of all layers: not cleared */
  size_t stride, done_at;          /* of blocks; of the counts in them */
  uint32_t time_count, done_words; /* words of 8 bytes */
  uint32_t width, bucket_count;
  uint32_t clock_at, held_at, left_at, channel_at, arrival_at; /* in the times, */
  uint32_t latest_at, state_at;                                /* and with a guide */
  int64_t *back, *both; /* [stage] least time until the gradient is sent, and with its W */
  int64_t *first;       /* [rank] subtracted from its end */
  struct trace *traces;
  uint32_t trace_count, trace_room;
  int64_t cutoff;
  uint64_t work_left; /* prefixes to try */
  bool is_exact;
  uint32_t *order;        /* scratch of thin() */
  struct choice *choices; /* scratch of extend(), */
  unsigned char *scratch; /* and a prefix */
};

/* ---- Blocks ---- */

static struct prefix *prefix_at(const struct beam *beam, const struct layer *layer, uint32_t n) {
  return (struct prefix *)(void *)(layer->blocks + (size_t)n * beam->stride);
}

static int64_t *times_of(const struct prefix *prefix) { return (int64_t *)(void *)(prefix + 1); }

static uint16_t *done_of(const struct beam *beam, const struct prefix *prefix) {
  return (uint16_t *)(void *)((unsigned char *)prefix + beam->done_at);
}

/* Arrivals at a stage: of activations (path 0) or gradients. */
static uint32_t arrivals_at(const struct beam *beam, uint32_t stage, unsigned path) {
  return beam->arrival_at + (stage * 2 + path) * beam->problem->microbatch_count;
}

/* ---- The next op ---- */

static bool is_allowed(const struct weft_problem *problem, enum weft_plan_op_kind kind) {
  return kind == WEFT_KIND_F || weft_problem_mixes(problem) ||
         (kind == WEFT_KIND_B) == (!problem->may_split);
}

/* Arrival of the input of the next op of a kind; -1: it cannot be next. */
static int64_t input_of(const struct beam *beam, const struct prefix *from, uint32_t s,
                        enum weft_plan_op_kind kind) {
  const struct weft_problem *problem = beam->problem;
  const uint16_t *done = done_of(beam, from) + (size_t)s * COUNTS;
  if (kind == WEFT_KIND_W) {
    return done[COUNT_W] < done[COUNT_BACK] ? 0 : -1;
  }
  if (kind == WEFT_KIND_F) {
    const uint16_t n = done[COUNT_F];
    return n == problem->microbatch_count ? -1
           : s == 0                       ? 0
           : n < done[COUNT_F - COUNTS]   ? times_of(from)[arrivals_at(beam, s, 0) + n]
                                          : -1;
  }
  const uint16_t n = done[COUNT_BACK];
  return n == done[COUNT_F]              ? -1
         : s + 1 == problem->stage_count ? 0
         : n < done[COUNT_BACK + COUNTS] ? times_of(from)[arrivals_at(beam, s, 1) + n]
                                         : -1;
}

static void send(const struct beam *beam, struct prefix *at, uint32_t from, uint32_t to,
                 unsigned path, uint32_t microbatch, int64_t end) {
  const struct weft_problem *problem = beam->problem;
  int64_t *times = times_of(at);
  if (problem->stages[from].rank != problem->stages[to].rank) {
    int64_t *channel = &times[beam->channel_at + from * 2 + path];
    end = weft_max(end, *channel) + problem->chain_occupancy;
    *channel = end;
    end += problem->latency;
  }
  times[arrivals_at(beam, to, path) + microbatch] = end;
}

/* ---- Guide ---- */

/* The state of a rank in its table takes two words. */
enum { STATE_WORDS = (sizeof(struct weft_state_table_at) + 7) / 8 };

/* Follows an op in the table of its rank. False when no order that reaches the target does so. */
static bool follow_guide(const struct beam *beam, struct prefix *at, uint32_t s,
                         enum weft_plan_op_kind kind, uint32_t microbatch, int64_t end) {
  const struct weft_problem_stage *stage = &beam->problem->stages[s];
  int64_t *times = times_of(at);
  int64_t *words = times + beam->state_at + (size_t)stage->rank * STATE_WORDS;
  struct weft_state_table_at state;
  memcpy(&state, words, sizeof state);
  if (!weft_state_table_follow(&beam->guide->windows.table, stage->rank, stage->local_stage, kind,
                               &state)) {
    return false;
  }
  memcpy(words, &state, sizeof state);
  const int64_t latest = weft_guide_latest(beam->guide, stage->rank, state);
  times[beam->latest_at + stage->rank] = latest;
  if (latest == INT64_MIN) {
    return false;
  }
  const int64_t slack = weft_min(latest, weft_guide_tail(beam->guide, s, kind, microbatch)) - end;
  at->bound = weft_max(at->bound, beam->target - slack);
  return slack >= 0;
}

/* Memory and time left after an op. False when memory does not suffice. */
static bool account(const struct beam *beam, struct prefix *at, uint32_t s,
                    enum weft_plan_op_kind kind) {
  const struct weft_problem_stage *stage = &beam->problem->stages[s];
  const int64_t limit = beam->problem->limit[stage->rank];
  int64_t *held = &times_of(at)[beam->held_at + stage->rank];
  int64_t *left = &times_of(at)[beam->left_at + stage->rank];
  uint16_t *done = done_of(beam, at) + (size_t)s * COUNTS;
  *held += weft_problem_gradients(stage, kind, done[COUNT_BACK]);
  if (*held > limit) {
    return false;
  }
  *held += weft_problem_change(stage, kind);
  switch (kind) {
    case WEFT_KIND_F:
      done[COUNT_F]++;
      *left -= stage->time[WEFT_KIND_F];
      break;
    case WEFT_KIND_W:
      done[COUNT_W]++;
      *left -= stage->time[WEFT_KIND_W];
      break;
    case WEFT_KIND_I:
      done[COUNT_BACK]++;
      *left += stage->time[WEFT_KIND_W] - beam->both[s];
      break;
    default:
      done[COUNT_BACK]++;
      done[COUNT_W]++;
      *left -= beam->both[s];
  }
  return *held <= limit;
}

static bool add_op(const struct beam *beam, struct prefix *at, uint32_t s,
                   enum weft_plan_op_kind kind, int64_t input) {
  const struct weft_problem *problem = beam->problem;
  const uint32_t rank = problem->stages[s].rank;
  const uint16_t *done = done_of(beam, at) + (size_t)s * COUNTS;
  int64_t *clock = &times_of(at)[beam->clock_at + rank];
  if (!account(beam, at, s, kind)) {
    return false;
  }
  at->now = weft_max(at->now, weft_max(*clock, input));
  at->sum -= *clock;
  *clock = at->now + problem->stages[s].time[kind];
  at->sum += *clock;
  if (beam->guide != NULL &&
      !follow_guide(beam, at, s, kind, done[kind == WEFT_KIND_F ? COUNT_F : COUNT_BACK] - 1U,
                    *clock)) {
    return false;
  }
  if (kind == WEFT_KIND_F && s + 1 < problem->stage_count) {
    send(beam, at, s, s + 1, 0, done[COUNT_F] - 1U, *clock);
  } else if (kind != WEFT_KIND_F && kind != WEFT_KIND_W && s > 0) {
    send(beam, at, s, s - 1, 1, done[COUNT_BACK] - 1U, *clock);
  }
  return true;
}

/* The work left on each rank, and the path of the last microbatch. */
static int64_t bound_of(const struct beam *beam, struct prefix *at) {
  const struct weft_problem *problem = beam->problem;
  const uint32_t m = problem->microbatch_count;
  const int64_t *times = times_of(at), *clock = times + beam->clock_at;
  int64_t worst = 0, sum = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t left = times[beam->left_at + r];
    const int64_t from = left > 0 ? weft_max(clock[r], at->now) : clock[r];
    worst = weft_max(worst, from + left - beam->first[r]);
    if (beam->guide != NULL) {
      worst = weft_max(worst, beam->target + from - times[beam->latest_at + r]);
      sum += from - times[beam->latest_at + r];
    }
  }
  if (beam->guide != NULL) {
    at->sum = sum;
  }
  int64_t path = at->now;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    if (done_of(beam, at)[(size_t)s * COUNTS + COUNT_F] < m) {
      path = weft_max(path, clock[problem->stages[s].rank]) + problem->stages[s].time[WEFT_KIND_F];
      path += s + 1 < problem->stage_count ? weft_problem_hop(problem, 2 * s) : 0;
    }
  }
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    if (done_of(beam, at)[(size_t)s * COUNTS + COUNT_BACK] < m) {
      const uint32_t rank = problem->stages[s].rank;
      path = weft_max(path, clock[rank]);
      worst = weft_max(worst, path + beam->both[s] - beam->first[rank]);
      path += beam->back[s] + (s > 0 ? weft_problem_hop(problem, 2 * (s - 1)) : 0);
    }
  }
  return worst;
}

/* ---- Dominance ---- */

/* Whether `a`, which has done the same ops, is as early as `b` in all that matters later. */
static bool is_as_early(const struct beam *beam, const struct prefix *a, const struct prefix *b) {
  const struct weft_problem *problem = beam->problem;
  const int64_t *x = times_of(a), *y = times_of(b);
  const uint16_t *done = done_of(beam, a);
  if (a->now > b->now) {
    return false;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t other = y[beam->clock_at + r];
    if (x[beam->clock_at + r] > (y[beam->left_at + r] > 0 ? weft_max(other, b->now) : other)) {
      return false;
    }
  }
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    for (unsigned path = 0; path < 2; path++) {
      const unsigned count = path == 0 ? COUNT_F : COUNT_BACK;
      const uint32_t from = path == 0 ? s - 1 : s + 1;
      if (from >= problem->stage_count) {
        continue;
      }
      const uint32_t row = arrivals_at(beam, s, path);
      for (uint32_t n = done[(size_t)s * COUNTS + count]; n < done[(size_t)from * COUNTS + count];
           n++) {
        if (x[row + n] > weft_max(y[row + n], b->now)) {
          return false;
        }
      }
      const uint32_t channel = beam->channel_at + from * 2 + path;
      if (problem->chain_occupancy > 0 && x[channel] > weft_max(y[channel], b->now)) {
        return false;
      }
    }
  }
  return true;
}

static uint32_t bucket_of(const struct beam *beam, const struct prefix *at) {
  const uint64_t *words = (const uint64_t *)(const void *)done_of(beam, at);
  uint64_t hash = 0x9e3779b97f4a7c15U;
  for (uint32_t n = 0; n < beam->done_words; n++) {
    hash = (hash ^ words[n]) * 0xff51afd7ed558ccdU;
    hash ^= hash >> 32;
  }
  return (uint32_t)hash & (beam->bucket_count - 1);
}

/* ---- Layers ---- */

static void clear(const struct beam *beam, struct layer *layer) {
  layer->count = 0;
  memset(layer->buckets, 0, beam->bucket_count * sizeof *layer->buckets);
}

static void link_in(const struct beam *beam, struct layer *layer, uint32_t n) {
  struct prefix *at = prefix_at(beam, layer, n);
  uint32_t *head = &layer->buckets[bucket_of(beam, at)];
  at->next = *head;
  *head = n + 1;
}

/* Whether prefix `a` goes before `b` when a layer is thinned. */
static bool goes_before(const struct prefix *a, const struct prefix *b) {
  return a->bound != b->bound ? a->bound < b->bound
         : a->sum != b->sum   ? a->sum < b->sum
                              : a->trace < b->trace;
}

static void sift(const struct beam *beam, const struct layer *layer, uint32_t from,
                 uint32_t count) {
  uint32_t *order = beam->order;
  for (uint32_t child; (child = 2 * from + 1) < count; from = child) {
    if (child + 1 < count && goes_before(prefix_at(beam, layer, order[child]),
                                         prefix_at(beam, layer, order[child + 1]))) {
      child++;
    }
    if (!goes_before(prefix_at(beam, layer, order[from]), prefix_at(beam, layer, order[child]))) {
      return;
    }
    const uint32_t swap = order[from];
    order[from] = order[child];
    order[child] = swap;
  }
}

/* Keeps the `width` best prefixes, in their order. */
static void thin(struct beam *beam, struct layer *layer, uint32_t width) {
  if (layer->count <= width) {
    return;
  }
  beam->is_exact = false;
  for (uint32_t n = 0; n < width; n++) { /* a heap of the best, the worst of them first */
    beam->order[n] = n;
  }
  for (uint32_t n = width / 2; n-- > 0;) {
    sift(beam, layer, n, width);
  }
  for (uint32_t n = width; n < layer->count; n++) {
    if (goes_before(prefix_at(beam, layer, n), prefix_at(beam, layer, beam->order[0]))) {
      beam->order[0] = n;
      sift(beam, layer, 0, width);
    }
  }
  for (uint32_t n = 0; n < layer->count; n++) {
    prefix_at(beam, layer, n)->next = 0;
  }
  for (uint32_t n = 0; n < width; n++) {
    prefix_at(beam, layer, beam->order[n])->next = 1;
  }
  const uint32_t count = layer->count;
  clear(beam, layer);
  for (uint32_t n = 0; n < count; n++) {
    const struct prefix *at = prefix_at(beam, layer, n);
    if (at->next == 1) {
      memmove(prefix_at(beam, layer, layer->count), at, beam->stride);
      link_in(beam, layer, layer->count++);
    }
  }
}

/* Keeps a prefix unless another one is as early; false when there is no memory for its trace. */
static bool keep(struct beam *beam, struct layer *layer, const struct prefix *at, uint32_t stage,
                 enum weft_plan_op_kind kind) {
  const size_t done_size = (size_t)beam->done_words * sizeof(uint64_t);
  struct prefix *slot = NULL;
  for (uint32_t n = layer->buckets[bucket_of(beam, at)]; n != 0;) {
    struct prefix *other = prefix_at(beam, layer, n - 1);
    n = other->next;
    if (memcmp(done_of(beam, other), done_of(beam, at), done_size) != 0) {
      continue;
    }
    if (is_as_early(beam, other, at)) {
      return true;
    }
    if (is_as_early(beam, at, other)) {
      slot = other;
      break;
    }
  }
  if (beam->trace_count == beam->trace_room) {
    beam->is_exact = false;
    return false;
  }
  if (slot == NULL) {
    if (layer->count == ROOM * beam->width) {
      thin(beam, layer, beam->width);
    }
    slot = prefix_at(beam, layer, layer->count);
    memcpy(slot, at, beam->stride);
    link_in(beam, layer, layer->count++);
  } else {
    const uint32_t next = slot->next;
    memcpy(slot, at, beam->stride);
    slot->next = next;
  }
  beam->traces[beam->trace_count] =
      (struct trace){.before = at->trace, .stage = (uint16_t)stage, .kind = (uint16_t)kind};
  slot->trace = beam->trace_count++;
  return true;
}

/* An op that may be next. */
struct choice {
  uint32_t stage;
  enum weft_plan_op_kind kind;
  int64_t input, start, end;
};

/* Gradients come before an activation goes: the op needs memory even if it then holds less. */
static bool needs_memory(const struct beam *beam, const struct prefix *from, uint32_t s,
                         enum weft_plan_op_kind kind) {
  const struct weft_problem_stage *stage = &beam->problem->stages[s];
  const uint16_t *done = done_of(beam, from) + (size_t)s * COUNTS;
  return beam->problem->limit[stage->rank] < beam->problem->limit_max &&
         (weft_problem_change(stage, kind) > 0 ||
          weft_problem_gradients(stage, kind, done[COUNT_BACK]) > 0);
}

/* When an op that starts now would have ended, whether its backward is whole or split; INT64_MAX
 * when it needs memory. */
static int64_t end_of(const struct beam *beam, const struct prefix *from,
                      const struct choice *choice) {
  const struct weft_problem *problem = beam->problem;
  const int64_t *time = problem->stages[choice->stage].time;
  int64_t end = choice->end;
  if (needs_memory(beam, from, choice->stage, choice->kind)) {
    return INT64_MAX;
  }
  if (weft_problem_mixes(problem) && choice->kind == WEFT_KIND_I) {
    end = needs_memory(beam, from, choice->stage, WEFT_KIND_B)
              ? INT64_MAX
              : weft_max(end, choice->start + time[WEFT_KIND_B]);
  } else if (weft_problem_mixes(problem) && choice->kind == WEFT_KIND_B) {
    end = needs_memory(beam, from, choice->stage, WEFT_KIND_I)
              ? INT64_MAX
              : weft_max(end, choice->start + time[WEFT_KIND_I]);
  }
  return end;
}

/* Lists the ops that may be next. Let one that needs no memory end before another can start: if
 * the other were next, the rank of the first would idle that long, and could run it meanwhile.
 * So the other need not be next. */
static uint32_t list_choices(const struct beam *beam, const struct prefix *from,
                             struct choice *choices) {
  static const enum weft_plan_op_kind kinds[] = {WEFT_KIND_F, WEFT_KIND_I, WEFT_KIND_B,
                                                 WEFT_KIND_W};
  const struct weft_problem *problem = beam->problem;
  int64_t first_end = INT64_MAX;
  uint32_t count = 0, kept = 0;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    for (unsigned k = 0; k < WEFT_ARRAY_LENGTH(kinds); k++) {
      const int64_t input = is_allowed(problem, kinds[k]) ? input_of(beam, from, s, kinds[k]) : -1;
      if (input < 0) {
        continue;
      }
      const int64_t clock = times_of(from)[beam->clock_at + problem->stages[s].rank];
      const int64_t start = weft_max(from->now, weft_max(clock, input));
      struct choice *choice = &choices[count++];
      *choice = (struct choice){.stage = s,
                                .kind = kinds[k],
                                .input = input,
                                .start = start,
                                .end = start + problem->stages[s].time[kinds[k]]};
      first_end = weft_min(first_end, end_of(beam, from, choice));
    }
  }
  for (uint32_t n = 0; n < count; n++) {
    if (choices[n].start < first_end || choices[n].end <= first_end) {
      choices[kept++] = choices[n];
    }
  }
  return kept;
}

enum { POLL_INTERVAL = 1024 }; /* tries */

static bool extend(struct beam *beam, const struct prefix *from, struct layer *next,
                   struct layer *next_but_one) {
  struct prefix *at = (struct prefix *)(void *)beam->scratch;
  const uint32_t count = list_choices(beam, from, beam->choices);
  for (uint32_t n = 0; n < count; n++) {
    const struct choice *choice = &beam->choices[n];
    if (beam->work_left == 0 || (beam->work_left % POLL_INTERVAL == 0 &&
                                 weft_search_control_poll(beam->problem->control))) {
      beam->is_exact = false;
      return false;
    }
    beam->work_left--;
    memcpy(at, from, beam->stride);
    if (!add_op(beam, at, choice->stage, choice->kind, choice->input)) {
      continue;
    }
    at->bound = weft_max(at->bound, bound_of(beam, at));
    if (at->bound < beam->cutoff && !keep(beam, choice->kind == WEFT_KIND_B ? next_but_one : next,
                                          at, choice->stage, choice->kind)) {
      return false;
    }
  }
  return true;
}

/* ---- Orders ---- */

/* The slot of the W of a whole backward, as yet. */
enum { NO_OP = UINT32_MAX };

/* The sequence of each rank, from the trace of a complete prefix, with the W of whole backwards right
 * after them; where backwards are mixed, W have to move to where it is their turn. */
static void write_order(const struct beam *beam, const struct prefix *at, struct weft_order *order,
                        struct weft_plan_clock *scratch) {
  const struct weft_problem *problem = beam->problem;
  uint32_t *done = scratch->done, *position = scratch->at;
  weft_plan_clock_reset(problem, scratch);
  memcpy(position, problem->begin + 1, problem->rank_count * sizeof *position);
  for (uint32_t n = at->trace; n != 0; n = beam->traces[n].before) {
    const uint32_t stage = beam->traces[n].stage, kind = beam->traces[n].kind;
    const uint32_t rank = problem->stages[stage].rank;
    if (kind == WEFT_KIND_B) {
      order->ops[--position[rank]] = NO_OP;
    }
    order->ops[--position[rank]] =
        stage * WEFT_ORDER_KINDS + (kind == WEFT_KIND_B ? (uint32_t)WEFT_KIND_I : kind);
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    uint32_t to = problem->begin[r]; /* what is written never exceeds what is read */
    for (uint32_t n = problem->begin[r]; n < problem->begin[r + 1]; n++) {
      const uint32_t op = order->ops[n], s = op / WEFT_ORDER_KINDS;
      const uint32_t *own = &done[(size_t)s * WEFT_ORDER_KINDS];
      uint8_t *whole = &order->whole[(size_t)s * problem->microbatch_count];
      if (op % WEFT_ORDER_KINDS == WEFT_KIND_I) {
        whole[own[WEFT_KIND_I]] = n + 1 < problem->begin[r + 1] && order->ops[n + 1] == NO_OP;
        n += whole[own[WEFT_KIND_I]];
      }
      order->ops[to++] = op;
      done[op]++;
      while (own[WEFT_KIND_W] < own[WEFT_KIND_I] && whole[own[WEFT_KIND_W]]) {
        const uint32_t w = s * WEFT_ORDER_KINDS + WEFT_KIND_W;
        order->ops[to++] = w;
        done[w]++;
      }
    }
    assert(to == problem->begin[r + 1]);
  }
}

/* ---- The search ---- */

/* Those of all layers, and one more. */
static size_t block_count(const struct beam *beam) {
  return (size_t)LAYERS * ROOM * beam->width + 1;
}

static void release(struct beam *beam) {
  const struct weft_allocator *allocator = beam->problem->allocator;
  weft_array_free(allocator, beam->blocks, block_count(beam), beam->stride);
  weft_array_free(allocator, beam->traces, beam->trace_room, sizeof *beam->traces);
  weft_arena_finish(&beam->arena);
}

static bool allocate(struct beam *beam) {
  struct weft_arena *arena = &beam->arena;
  const struct weft_problem *problem = beam->problem;
  beam->blocks = weft_array_allocate(problem->allocator, block_count(beam), beam->stride);
  beam->traces = weft_array_allocate(problem->allocator, beam->trace_room, sizeof *beam->traces);
  if (beam->blocks == NULL || beam->traces == NULL) {
    return false;
  }
  for (unsigned n = 0; n < LAYERS; n++) {
    beam->layers[n].blocks = beam->blocks + n * (size_t)ROOM * beam->width * beam->stride;
    if (!WEFT_ALLOCATE(arena, beam->layers[n].buckets, beam->bucket_count)) {
      return false;
    }
  }
  beam->scratch = beam->blocks + (block_count(beam) - 1) * beam->stride;
  return WEFT_ALLOCATE(arena, beam->order, beam->width) &&
         WEFT_ALLOCATE(arena, beam->back, problem->stage_count) &&
         WEFT_ALLOCATE(arena, beam->both, problem->stage_count) &&
         WEFT_ALLOCATE(arena, beam->first, problem->rank_count) &&
         WEFT_ALLOCATE(arena, beam->choices, (size_t)problem->stage_count * WEFT_KINDS);
}

static void set_times(struct beam *beam, struct prefix *start) {
  const struct weft_problem *problem = beam->problem;
  int64_t path = 0; /* a rank starts with F of its first stage, and nothing delays that */
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    beam->back[s] = weft_least_gradient(problem, s);
    beam->both[s] = weft_least_backward(problem, stage);
    times_of(start)[beam->left_at + stage->rank] +=
        problem->microbatch_count * (stage->time[WEFT_KIND_F] + beam->both[s]);
    if (stage->local_stage == 0 && problem->objective == WEFT_OBJECTIVE_SPAN) {
      beam->first[stage->rank] = path;
    }
    path += stage->time[WEFT_KIND_F];
    path += s + 1 < problem->stage_count ? weft_problem_hop(problem, 2 * s) : 0;
  }
}

/* The objective of a complete prefix. */
static int64_t value_of(const struct beam *beam, const struct prefix *at) {
  int64_t worst = 0;
  for (uint32_t r = 0; r < beam->problem->rank_count; r++) {
    worst = weft_max(worst, times_of(at)[beam->clock_at + r] - beam->first[r]);
  }
  return worst;
}

/* Nothing is done. */
static void begin(struct beam *beam, struct prefix *start) {
  memset(start, 0, beam->stride);
  set_times(beam, start);
  for (uint32_t r = 0; beam->guide != NULL && r < beam->problem->rank_count; r++) {
    const struct weft_state_table_at state = weft_state_table_begin(&beam->guide->windows.table, r);
    memcpy(times_of(start) + beam->state_at + (size_t)r * STATE_WORDS, &state, sizeof state);
    times_of(start)[beam->latest_at + r] = weft_guide_latest(beam->guide, r, state);
  }
  beam->trace_count = 1;
}

static void search(struct beam *beam, struct weft_incumbent *incumbent) {
  struct layer *now = &beam->layers[0], *next = &beam->layers[1], *after = &beam->layers[2];
  const struct weft_problem *problem = beam->problem;
  const uint64_t layers = (uint64_t)problem->stage_count * problem->microbatch_count * COUNTS;
  const uint64_t tries = beam->work_left;
  uint64_t extended = 0;
  begin(beam, prefix_at(beam, now, 0));
  now->count = 1;
  for (uint64_t n = 0; n < layers; n++) {
    /* As many as the work allows, if all layers to come have as many, and as many tries each. */
    const double per_prefix = 1.5 + (double)(tries - beam->work_left) / (double)(extended + 1);
    const double width = (double)beam->work_left / (double)(layers - n) / per_prefix;
    thin(beam, now, width < beam->width ? 1 + (uint32_t)width : beam->width);
    extended += now->count;
    for (uint32_t k = 0; k < now->count; k++) {
      if (!extend(beam, prefix_at(beam, now, k), next, after)) {
        return;
      }
    }
    struct layer *empty = now;
    now = next;
    next = after;
    after = empty;
    clear(beam, after);
  }
  uint32_t best = 0;
  for (uint32_t k = 0; k < now->count; k++) {
    struct prefix *at = prefix_at(beam, now, k);
    at->bound = value_of(beam, at); /* what a guide tells is no bound */
    best = goes_before(at, prefix_at(beam, now, best)) ? k : best;
  }
  if (now->count > 0) {
    write_order(beam, prefix_at(beam, now, best), &incumbent->draft, &incumbent->clock);
    weft_incumbent_try(incumbent, &incumbent->draft, NULL);
  }
}

static void set_layout(struct beam *beam) {
  const struct weft_problem *problem = beam->problem;
  const uint32_t ranks = problem->rank_count, stages = problem->stage_count;
  beam->clock_at = 0;
  beam->held_at = ranks;
  beam->left_at = 2 * ranks;
  beam->channel_at = 3 * ranks;
  beam->arrival_at = beam->channel_at + 2 * stages;
  beam->latest_at = beam->arrival_at + 2 * stages * problem->microbatch_count;
  beam->state_at = beam->latest_at + (beam->guide != NULL ? ranks : 0);
  beam->time_count = beam->state_at + (beam->guide != NULL ? ranks * STATE_WORDS : 0);
  beam->done_words = (stages * COUNTS + 3) / 4;
  beam->done_at = sizeof(struct prefix) + (size_t)beam->time_count * sizeof(int64_t);
  beam->stride = beam->done_at + (size_t)beam->done_words * sizeof(uint64_t);
}

/* Narrower beams find nothing that other constructors do not. */
enum { OPS_MAX = 4096, WIDTH_MIN = 100, WIDTH_MAX = 1 << 15 };

/* Nanoseconds to try a prefix: with its bound, and a copy of so many bytes per nanosecond. */
enum { TRY_WORK = 100, COPY_BYTES = 16 };

/* One beam search for about `work`, which becomes what it took: 0 when there was too little for
 * one. True when it was complete: no order is better than the incumbent and the target. */
static bool run_beam(struct weft_incumbent *incumbent, const struct weft_guide *guide,
                     int64_t target, uint64_t *work) {
  const struct weft_problem *problem = incumbent->problem;
  const size_t ops = weft_problem_timed_op_count(problem);
  struct beam beam = {.problem = problem,
                      .guide = guide,
                      .target = target,
                      .arena = {.allocator = problem->allocator},
                      .cutoff = weft_min(target, incumbent->value - 1) + 1,
                      .is_exact = true};
  set_layout(&beam);
  const uint64_t per_try = TRY_WORK + beam.stride / COPY_BYTES;
  const uint64_t tries = *work / per_try;
  *work = 0;
  beam.work_left = tries;
  beam.width = tries / ops < WIDTH_MAX ? (uint32_t)(tries / ops) : WIDTH_MAX;
  beam.trace_room = (uint32_t)weft_min((int64_t)tries + 1, 1 << 24);
  for (beam.bucket_count = 64; beam.bucket_count < ROOM * beam.width;) {
    beam.bucket_count *= 2;
  }
  if (beam.width < WIDTH_MIN) {
    return false;
  }
  const bool done = allocate(&beam); /* without memory for it, the search goes on without it */
  if (done) {
    search(&beam, incumbent);
    *work = (tries - beam.work_left) * per_try;
  }
  release(&beam);
  return done && beam.is_exact;
}

uint64_t weft_construct_beam(struct weft_incumbent *incumbent, uint64_t work) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  if (weft_problem_timed_op_count(incumbent->problem) > OPS_MAX ||
      weft_incumbent_is_done(incumbent)) {
    return 0;
  }
  if (run_beam(incumbent, NULL, INT64_MAX, &work)) {
    incumbent->bound = incumbent->value;
  }
  return work;
}

/* ---- Targets ---- */

/* Nanoseconds per state of a table; parts of the work, one for each beam search; and the smallest
 * difference between targets, as a share of the bound. */
enum { STATE_WORK = 50, PARTS = 4, STEPS = 100000 };

/* Searches for an order that reaches a target. Returns whether it is known afterwards that none
 * does, or which is the best of those that do. */
static bool search_target(struct weft_incumbent *incumbent, struct weft_guide *guide,
                          int64_t target, uint64_t part, uint64_t *left) {
  const uint64_t states = part / 2 / STATE_WORK;
  guide->windows.work_left = states;
  const enum weft_guide_result result = weft_guide_aim(guide, target);
  uint64_t work = result == WEFT_GUIDE_OPEN ? part : 0;
  const bool complete = work > 0 && run_beam(incumbent, guide, target, &work);
  const uint64_t all = work + (states - guide->windows.work_left) * STATE_WORK;
  /* Nothing can be done with so little. */
  *left = *left < all || (result != WEFT_GUIDE_REFUTED && work == 0) ? 0 : *left - all;
  return complete || result == WEFT_GUIDE_REFUTED;
}

/* The best value is tried first, since it may be optimal; then bisection, since lower targets leave
 * less open. */
uint64_t weft_construct_guided(struct weft_incumbent *incumbent, uint64_t work) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  if (weft_problem_timed_op_count(incumbent->problem) > OPS_MAX ||
      weft_incumbent_is_done(incumbent)) {
    return 0;
  }
  WEFT_SCOPED_ARENA arena = {.allocator = incumbent->problem->allocator};
  struct weft_guide guide;
  uint64_t left = weft_guide_init(&guide, incumbent->problem, work / STATE_WORK, &arena) ? work : 0;
  int64_t low = incumbent->bound, target = incumbent->value - 1;
  bool first = true;
  while (left > 0 && !weft_incumbent_is_done(incumbent)) {
    const uint64_t part = left < work / PARTS ? left : work / PARTS;
    if (search_target(incumbent, &guide, target, part, &left)) {
      incumbent->bound = weft_max(incumbent->bound, weft_min(target + 1, incumbent->value));
      low = weft_max(low, incumbent->bound);
    } else if (!first && incumbent->value > target) {
      low = target + 1;
    }
    if (incumbent->value - low <= incumbent->bound / STEPS) {
      break;
    }
    first = false;
    target = low + (incumbent->value - 1 - low) / 2;
  }
  return work - left;
}
