/* Exhaustive search with dominance: prefixes of orders grow op by op, in order of starts; of the
 * prefixes with the same ops, only those are kept that no other one dominates.
 *
 * An op starts when its rank is free and its input has arrived, and no earlier than the op added
 * before it. So every order occurs at least once with its true times, when its ops are added in the
 * order of their starts; elsewhere it occurs later, never earlier. Times depend on others only
 * through sums and maxima: a prefix that is at least as early as another in everything, and has
 * the same ops, ends no later, whatever follows. A whole backward counts as a backward and its W,
 * which are done at once. */
#include "support_exhaustive.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES = EXHAUSTIVE_STAGES, MICROBATCHES = EXHAUSTIVE_MICROBATCHES, OPS = 3 };
enum { ACT_F, ACT_BACK, ACT_W, ACT_WHOLE, ACTS };

struct prefix {
  uint8_t done[STAGES][OPS];
  int64_t now;                              /* start of the last op */
  int64_t clock[STAGES];                    /* [rank] end of its last op */
  int64_t arrival[STAGES][2][MICROBATCHES]; /* at a stage: activations, gradients */
  int64_t channel[STAGES][2];               /* from a stage: time at which it is free */
};

struct layer {
  struct prefix *list;
  uint32_t *next; /* in the same bucket, + 1 */
  size_t count, room;
  uint32_t *buckets;
};

enum { BUCKETS = 1 << 14 };

struct enumeration {
  const struct weft_problem *problem;
  uint32_t stages, ranks, count;
  bool split, whole; /* backwards may be */
  int64_t time[STAGES][ACTS];
  int64_t back[STAGES]; /* the least time of a backward until its gradient is sent, */
  int64_t both[STAGES]; /* and of a backward and its W */
  int64_t late[STAGES]; /* [rank] subtracted from its end: its first start for spans */
  int64_t best;         /* objective so far; INT64_MAX: none */
  size_t most;
  bool full;
};

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- The next op ---- */

static int64_t memory_of(const struct enumeration *all, const struct prefix *at, uint32_t rank) {
  int64_t sum = 0;
  for (uint32_t s = 0; s < all->stages; s++) {
    const struct weft_problem_stage *stage = &all->problem->stages[s];
    if (stage->rank == rank) {
      const uint8_t *done = at->done[s];
      sum += (done[ACT_F] - done[ACT_BACK]) * stage->held;
      sum += (done[ACT_BACK] - done[ACT_W]) * stage->held_after;
      sum += done[ACT_BACK] > 0 ? stage->gradients : 0;
    }
  }
  return sum;
}

static bool is_allowed(const struct enumeration *all, unsigned act) {
  return act == ACT_F || (act == ACT_WHOLE ? all->whole : all->split);
}

/* Arrival of the inputs of an op; -1 when it is unknown yet. */
static int64_t input_of(const struct enumeration *all, const struct prefix *at, uint32_t s,
                        unsigned act) {
  act = act == ACT_WHOLE ? ACT_BACK : act;
  const uint8_t n = at->done[s][act];
  if (n == all->count || (act != ACT_F && n == at->done[s][act - 1])) {
    return -1;
  }
  if (act == ACT_F) {
    return s == 0 ? 0 : n < at->done[s - 1][ACT_F] ? at->arrival[s][0][n] : -1;
  }
  if (act == ACT_BACK && s + 1 < all->stages) {
    return n < at->done[s + 1][ACT_BACK] ? at->arrival[s][1][n] : -1;
  }
  return 0;
}

static void send(const struct enumeration *all, struct prefix *at, uint32_t from, uint32_t to,
                 unsigned path, uint8_t n, int64_t end) {
  const struct weft_problem *problem = all->problem;
  const bool crosses = problem->stages[from].rank != problem->stages[to].rank;
  if (crosses) {
    end = later(end, at->channel[from][path]) + problem->chain_occupancy;
    at->channel[from][path] = end;
    end += problem->latency;
  }
  at->arrival[to][path][n] = end;
}

static bool add_op(const struct enumeration *all, struct prefix *at, uint32_t s, unsigned act) {
  const uint32_t rank = all->problem->stages[s].rank;
  const int64_t input = input_of(all, at, s, act);
  const bool is_back = act == ACT_BACK || act == ACT_WHOLE;
  if (input < 0 || !is_allowed(all, act)) {
    return false;
  }
  const uint8_t n = at->done[s][is_back ? ACT_BACK : act];
  const int64_t grows = is_back && n == 0 ? all->problem->stages[s].gradients : 0;
  if (memory_of(all, at, rank) + grows > all->problem->limit[rank]) {
    return false;
  }
  at->done[s][is_back ? ACT_BACK : act]++;
  at->done[s][ACT_W] = (uint8_t)(at->done[s][ACT_W] + (act == ACT_WHOLE));
  if (memory_of(all, at, rank) > all->problem->limit[rank]) {
    return false;
  }
  at->now = later(at->now, later(at->clock[rank], input));
  at->clock[rank] = at->now + all->time[s][act];
  if (act == ACT_F && s + 1 < all->stages) {
    send(all, at, s, s + 1, 0, n, at->clock[rank]);
  } else if (is_back && s > 0) {
    send(all, at, s, s - 1, 1, n, at->clock[rank]);
  }
  return true;
}

static bool is_done(const struct enumeration *all, const struct prefix *at, uint32_t rank) {
  for (uint32_t s = 0; s < all->stages; s++) {
    if (all->problem->stages[s].rank == rank && at->done[s][ACT_W] < all->count) {
      return false;
    }
  }
  return true;
}

/* Normalises what no longer matters: times before now, consumed inputs. The end of
 * a rank that is done still matters. */
static void forget(const struct enumeration *all, struct prefix *at) {
  for (uint32_t r = 0; r < all->ranks; r++) {
    at->clock[r] = is_done(all, at, r) ? at->clock[r] : later(at->clock[r], at->now);
  }
  for (uint32_t s = 0; s < all->stages; s++) {
    for (unsigned path = 0; path < 2; path++) {
      at->channel[s][path] = later(at->channel[s][path], at->now);
      for (uint32_t n = 0; n < all->count; n++) {
        int64_t *arrival = &at->arrival[s][path][n];
        const bool taken = n < at->done[s][path == 0 ? ACT_F : ACT_BACK];
        *arrival = taken || *arrival == 0 /* not sent */ ? 0 : later(*arrival, at->now);
      }
    }
  }
}

/* ---- Dominance and bounds ---- */

static int64_t left_of(const struct enumeration *all, const struct prefix *at, uint32_t rank) {
  int64_t sum = 0;
  for (uint32_t s = 0; s < all->stages; s++) {
    if (all->problem->stages[s].rank == rank) {
      const uint8_t *done = at->done[s];
      sum += (all->count - done[ACT_F]) * all->time[s][ACT_F];
      sum += (all->count - done[ACT_BACK]) * all->both[s];
      sum += (done[ACT_BACK] - done[ACT_W]) * all->time[s][ACT_W];
    }
  }
  return sum;
}

static int64_t hop_of(const struct enumeration *all, uint32_t s) {
  const struct weft_problem *problem = all->problem;
  return problem->stages[s].rank == problem->stages[s + 1].rank
             ? 0
             : problem->latency + problem->chain_occupancy;
}

/* A lower bound on the objective of a prefix: the work left on each rank, and the path of the last
 * microbatch. */
static int64_t bound_of(const struct enumeration *all, const struct prefix *at) {
  int64_t worst = 0;
  for (uint32_t r = 0; r < all->ranks; r++) {
    worst = later(worst, at->clock[r] + left_of(all, at, r) - all->late[r]);
  }
  int64_t path = at->now;
  for (uint32_t s = 0; s < all->stages; s++) {
    if (at->done[s][ACT_F] < all->count) {
      path = later(path, at->clock[all->problem->stages[s].rank]) + all->time[s][ACT_F];
      path += s + 1 < all->stages ? hop_of(all, s) : 0;
    }
  }
  for (uint32_t s = all->stages; s-- > 0;) {
    const uint32_t rank = all->problem->stages[s].rank;
    if (at->done[s][ACT_BACK] < all->count) {
      path = later(path, at->clock[rank]);
      worst = later(worst, path + all->both[s] - all->late[rank]);
      path += all->back[s] + (s > 0 ? hop_of(all, s - 1) : 0);
    }
  }
  return worst;
}

static bool as_early(const struct enumeration *all, const struct prefix *a,
                     const struct prefix *b) {
  if (a->now > b->now) {
    return false;
  }
  for (uint32_t r = 0; r < all->ranks; r++) {
    if (a->clock[r] > b->clock[r]) {
      return false;
    }
  }
  for (uint32_t s = 0; s < all->stages; s++) {
    for (unsigned path = 0; path < 2; path++) {
      if (a->channel[s][path] > b->channel[s][path]) {
        return false;
      }
      for (uint32_t n = 0; n < all->count; n++) {
        if (a->arrival[s][path][n] > b->arrival[s][path][n]) {
          return false;
        }
      }
    }
  }
  return true;
}

/* ---- Layers ---- */

static uint32_t bucket_of(const struct prefix *at) {
  uint32_t hash = 2166136261U;
  for (size_t n = 0; n < sizeof at->done; n++) {
    hash = (hash ^ ((const uint8_t *)at->done)[n]) * 16777619U;
  }
  return (hash ^ hash >> 15) % BUCKETS;
}

static void layer_init(struct layer *layer) {
  *layer = (struct layer){.buckets = calloc(BUCKETS, sizeof *layer->buckets)};
  assert_non_null(layer->buckets);
}

static void layer_finish(struct layer *layer) {
  free(layer->list);
  free(layer->next);
  free(layer->buckets);
}

static void layer_clear(struct layer *layer) {
  layer->count = 0;
  memset(layer->buckets, 0, BUCKETS * sizeof *layer->buckets);
}

static void grow(struct layer *layer) {
  if (layer->count == layer->room) {
    layer->room = layer->room * 2 + 64;
    layer->list = realloc(layer->list, layer->room * sizeof *layer->list);
    layer->next = realloc(layer->next, layer->room * sizeof *layer->next);
    assert_non_null(layer->list);
    assert_non_null(layer->next);
  }
}

static void keep(const struct enumeration *all, struct layer *layer, const struct prefix *at) {
  uint32_t *head = &layer->buckets[bucket_of(at)];
  for (uint32_t n = *head; n != 0 && layer->list != NULL; n = layer->next[n - 1]) {
    struct prefix *other = &layer->list[n - 1];
    if (memcmp(other->done, at->done, sizeof at->done) != 0) {
      continue;
    }
    if (as_early(all, other, at)) {
      return;
    }
    if (as_early(all, at, other)) {
      *other = *at;
      return;
    }
  }
  grow(layer);
  layer->list[layer->count] = *at;
  layer->next[layer->count] = *head;
  *head = (uint32_t)++layer->count;
}

/* Layers are numbered by the ops done; a whole backward leads to the next but one. */
static void follow(const struct enumeration *all, const struct prefix *from, struct layer *next,
                   struct layer *next_but_one) {
  for (uint32_t s = 0; s < all->stages; s++) {
    for (unsigned act = 0; act < ACTS; act++) {
      struct prefix at = *from;
      if (add_op(all, &at, s, act)) {
        forget(all, &at);
        if (bound_of(all, &at) < all->best) {
          keep(all, act == ACT_WHOLE ? next_but_one : next, &at);
        }
      }
    }
  }
}

/* ---- A first order ---- */

static int by_bound(const void *a, const void *b) {
  const int64_t *x = a, *y = b;
  return x[0] < y[0] ? -1 : x[0] > y[0];
}

/* Keeps only the prefixes of a layer with the smallest bounds. */
static void thin(const struct enumeration *all, struct layer *layer, size_t width) {
  if (layer->count <= width) {
    return;
  }
  int64_t(*keys)[2] = malloc(layer->count * sizeof *keys);
  struct prefix *list = malloc(width * sizeof *list);
  assert_non_null(keys);
  assert_non_null(list);
  for (size_t n = 0; n < layer->count; n++) {
    keys[n][0] = bound_of(all, &layer->list[n]);
    keys[n][1] = (int64_t)n;
  }
  qsort(keys, layer->count, sizeof *keys, by_bound);
  for (size_t n = 0; n < width; n++) {
    list[n] = layer->list[keys[n][1]];
  }
  memcpy(layer->list, list, width * sizeof *list);
  layer->count = width;
  free(list);
  free(keys);
}

/* All layers, or with a width only the prefixes with the smallest bounds of each (beam search).
 * Returns the best objective found, all->best if none is smaller. */
static int64_t pass(struct enumeration *all, size_t width) {
  struct layer now, next, last;
  layer_init(&now);
  layer_init(&next);
  layer_init(&last);
  const struct prefix empty = {0};
  keep(all, &now, &empty);
  for (uint32_t n = 0; n < all->stages * OPS * all->count && !all->full; n++) {
    for (size_t k = 0; k < now.count; k++) {
      follow(all, &now.list[k], &next, &last);
    }
    if (width > 0) {
      thin(all, &next, width);
    }
    all->full = width == 0 && next.count > all->most;
    const struct layer swap = now;
    now = next;
    next = last;
    last = swap;
    layer_clear(&last);
  }
  int64_t best = all->best;
  for (size_t k = 0; k < now.count; k++) {
    const int64_t value = bound_of(all, &now.list[k]);
    best = value < best ? value : best;
  }
  layer_finish(&now);
  layer_finish(&next);
  layer_finish(&last);
  return best;
}

static void set_times(struct enumeration *all, enum weft_objective objective) {
  const struct weft_problem *problem = all->problem;
  int64_t first = 0; /* a rank's first op is F of its first stage, and nothing delays it */
  for (uint32_t s = 0; s < all->stages; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    all->time[s][ACT_F] = stage->time[WEFT_KIND_F];
    const int64_t i = stage->time[WEFT_KIND_I], w = stage->time[WEFT_KIND_W];
    const int64_t b = stage->time[WEFT_KIND_B];
    all->time[s][ACT_BACK] = i;
    all->time[s][ACT_W] = w;
    all->time[s][ACT_WHOLE] = b;
    all->back[s] = !all->split ? b : !all->whole ? i : weft_min(i, b);
    all->both[s] = !all->split ? b : !all->whole ? i + w : weft_min(i + w, b);
    if (stage->local_stage == 0 && objective == WEFT_OBJECTIVE_SPAN) {
      all->late[stage->rank] = first;
    }
    first += all->time[s][ACT_F] + (s + 1 < all->stages ? hop_of(all, s) : 0);
  }
}

int64_t exhaustive_best(const struct weft_problem *problem, enum weft_objective objective,
                        size_t most) {
  assert_true(problem->stage_count <= STAGES && problem->microbatch_count <= MICROBATCHES);
  struct enumeration all = {.problem = problem,
                            .stages = problem->stage_count,
                            .ranks = problem->rank_count,
                            .count = problem->microbatch_count,
                            .split = problem->may_split,
                            .whole = problem->may_join,
                            .best = INT64_MAX,
                            .most = most};
  set_times(&all, objective);
  const int64_t first = pass(&all, 32);
  all.best = first;
  const int64_t best = pass(&all, 0);
  return all.full ? EXHAUSTIVE_TOO_LARGE : best == INT64_MAX ? EXHAUSTIVE_NONE : best;
}
