/* What no order can beat.
 *
 * Every term looks at one rank: its first op is F of its first stage, its last F
 * that of its last stage and the last microbatch, its last I that of its first stage
 * and the last microbatch. Written here for a split backward; a whole one is an I
 * that takes the time of B, and a W of no time and no memory.
 *
 * opening  before the rank's first op: in a makespan, F of the stages before it.
 * closing  after its last I: I of the stages before it, and the W of one of them. A span
 *          of a rank before it has both, as far as they lie between the two ranks.
 * trip     from the start of F at a stage to the end of I at the same or another one,
 *          for one microbatch: every stage between them and the last, and the hops.
 *
 * The terms are proved where they are computed. */
#include <math.h>

#include "base/memory.h"
#include "plan/bounds/bound.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- Paths ---- */

int64_t weft_paths_back(const struct weft_problem *problem, uint32_t stage) {
  return problem->stages[stage].time[problem->whole_backward ? WEFT_KIND_B : WEFT_KIND_I];
}

int64_t weft_paths_weight(const struct weft_problem *problem, uint32_t stage) {
  return problem->whole_backward ? 0 : problem->stages[stage].time[WEFT_KIND_W];
}

static int64_t slowest_at(const struct weft_problem *problem, uint32_t stage) {
  const bool crosses = stage + 1 < problem->stage_count &&
                       problem->stages[stage].rank != problem->stages[stage + 1].rank;
  return larger(crosses ? problem->occupancy : 0,
                larger(problem->stages[stage].time[WEFT_KIND_F], weft_paths_back(problem, stage)));
}

bool weft_paths_init(struct weft_paths *paths, const struct weft_problem *problem) {
  const uint32_t count = problem->stage_count;
  *paths = (struct weft_paths){.problem = problem};
  paths->forward = weft_array_allocate_zero(problem->allocator, count, sizeof *paths->forward);
  paths->backward = weft_array_allocate_zero(problem->allocator, count, sizeof *paths->backward);
  paths->slowest = weft_array_allocate_zero(problem->allocator, count, sizeof *paths->slowest);
  if (paths->forward == NULL || paths->backward == NULL || paths->slowest == NULL) {
    weft_paths_finish(paths);
    return false;
  }
  for (uint32_t s = 0; s + 1 < count; s++) {
    const int64_t hop = weft_problem_hop(problem, s, s + 1);
    paths->forward[s + 1] = paths->forward[s] + problem->stages[s].time[WEFT_KIND_F] + hop;
    paths->backward[s + 1] = paths->backward[s] + weft_paths_back(problem, s) + hop;
  }
  for (uint32_t s = count; s-- > 0;) {
    paths->slowest[s] = larger(slowest_at(problem, s), s + 1 < count ? paths->slowest[s + 1] : 0);
  }
  return true;
}

void weft_paths_finish(struct weft_paths *paths) {
  const struct weft_problem *problem = paths->problem;
  weft_array_free(problem->allocator, paths->forward, problem->stage_count, sizeof(int64_t));
  weft_array_free(problem->allocator, paths->backward, problem->stage_count, sizeof(int64_t));
  weft_array_free(problem->allocator, paths->slowest, problem->stage_count, sizeof(int64_t));
  *paths = (struct weft_paths){.problem = problem};
}

int64_t weft_paths_trip(const struct weft_paths *paths, uint32_t from, uint32_t to) {
  const struct weft_problem *problem = paths->problem;
  const uint32_t last = problem->stage_count - 1;
  return paths->forward[last] - paths->forward[from] + problem->stages[last].time[WEFT_KIND_F] +
         weft_paths_back(problem, last) + paths->backward[last] - paths->backward[to];
}

/* ---- A rank ---- */

/* What the terms want to know of a rank; sums are over its stages, for one microbatch. */
struct view {
  const struct weft_paths *paths;
  uint32_t rank, first, last; /* stages */
  int64_t limit, count;       /* microbatches */
  int64_t f, i, w;
  int64_t opening;
  int64_t closing; /* >= W of the first stage */
  /* The largest opening + closing of a span of this rank or one before it. */
  int64_t around;
};

static uint32_t stage_at(const struct weft_problem *problem, uint32_t rank, uint32_t local_stage) {
  return problem->stage_of[rank * problem->stages_per_rank + local_stage];
}

static int64_t work_of(const struct view *view) {
  return view->count * (view->f + view->i + view->w);
}

/* How many of a size there is room for. */
static int64_t fits(const struct view *view, int64_t room, int64_t size) {
  return room < 0 ? 0 : size == 0 ? view->count : smaller(view->count, room / size);
}

static void look_at(struct view *view, const struct weft_paths *paths, uint32_t rank) {
  const struct weft_problem *problem = paths->problem;
  *view = (struct view){.paths = paths,
                        .rank = rank,
                        .first = stage_at(problem, rank, 0),
                        .last = stage_at(problem, rank, problem->stages_per_rank - 1),
                        .limit = problem->limit[rank],
                        .count = problem->microbatch_count};
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const uint32_t stage = stage_at(problem, rank, k);
    view->f += problem->stages[stage].time[WEFT_KIND_F];
    view->i += weft_paths_back(problem, stage);
    view->w += weft_paths_weight(problem, stage);
  }
}

/* ---- One stage a rank ---- */

/* Idle time before the first I ends, when at most `count` F come before that: the first I
 * ends a trip after the start, and nothing but F can be done meanwhile. */
static int64_t head_of(const struct view *view, int64_t count) {
  return larger(0,
                weft_paths_trip(view->paths, view->first, view->last) - view->i - count * view->f);
}

/* The time from the first op to `closing` after the last I, and to the end of the rank's own
 * ops if they count, given that x microbatches await I when the last F starts (it is one of
 * them), and y only W.
 * Before the last F starts m-1 F, m-x I, m-x-y W are done. From then the last I ends after a
 * trip, and not before x more I; and all x + y W are left.
 * x < m: the first I ends before, so the idle time before its end, with m-1 F at most, is
 * added: it is no part of that work nor of what follows.
 * x = m: no I ends before, and y = 0. The first I ends a trip after the start, then m-1 I
 * follow, and all W. */
static int64_t through_state(const struct view *view, int64_t x, int64_t y, int64_t closing,
                             bool own) {
  const int64_t m = view->count, f = view->f, i = view->i, w = view->w;
  const int64_t trip = weft_paths_trip(view->paths, view->first, view->last);
  const int64_t before = (m - 1) * f + (m - x) * i + (m - x - y) * w;
  const int64_t after = larger(trip, f + x * i) + closing;
  const int64_t rest = own ? f + x * i + (x + y) * w : 0;
  const int64_t value = before + larger(after, rest);
  if (x < m) {
    const int64_t before_last =
        fits(view, view->limit, view->paths->problem->stages[view->first].held);
    return head_of(view, smaller(before_last, m - 1)) + value;
  }
  return larger(value, trip + (m - 1) * i + larger(closing, own ? m * w : 0));
}

/* The least over the states that fit: x + y <= m, and x in full and y in part within the
 * limit. A larger y never takes longer. */
static int64_t through_one(const struct view *view, int64_t closing, bool own) {
  const struct weft_problem *problem = view->paths->problem;
  const struct weft_problem_stage *stage = &problem->stages[view->first];
  const int64_t after = problem->whole_backward ? 0 : stage->held_after;
  const int64_t most = larger(1, fits(view, view->limit, stage->held));
  int64_t least = INT64_MAX;
  for (int64_t x = 1; x <= most; x++) {
    const int64_t room = view->limit - x * stage->held;
    const int64_t y = smaller(view->count - x, fits(view, room, after));
    least = smaller(least, through_state(view, x, y, closing, own));
  }
  return least;
}

/* ---- Several stages a rank ---- */

struct item {
  int64_t size, value, count;
};

/* No choice of items within the room is worth more: the fractional knapsack. */
static int64_t knapsack_bound(struct item *items, uint32_t count, int64_t room) {
  int64_t sum = 0;
  for (uint32_t n = 0; n < count && room >= 0; n++) {
    uint32_t best = n;
    for (uint32_t k = n + 1; k < count; k++) {
      const double gain = (double)items[k].value * (double)items[best].size;
      best = gain > (double)items[best].value * (double)items[k].size ? k : best;
    }
    const struct item item = items[best];
    items[best] = items[n];
    if (item.size == 0 || item.count <= room / item.size) {
      sum += item.count * item.value;
      room -= item.count * item.size;
    } else {
      sum += room / item.size * item.value;
      room %= item.size;
      return sum + (int64_t)ceil((double)item.value * ((double)room / (double)item.size)) + 1;
    }
  }
  return sum;
}

/* The most F of the first `places` of the rank's stages that the memory holds together. */
static int64_t most_forward(const struct view *view, uint32_t places) {
  const struct weft_problem *problem = view->paths->problem;
  struct item items[WEFT_LOCAL_STAGES_MAX];
  for (uint32_t k = 0; k < places; k++) {
    const struct weft_problem_stage *stage = &problem->stages[stage_at(problem, view->rank, k)];
    items[k] = (struct item){stage->held, stage->time[WEFT_KIND_F], view->count};
  }
  return knapsack_bound(items, places, view->limit);
}

/* Idle time before the first I ends, which is of the last stage: a trip passes, and what is done
 * meanwhile are F that fit into the memory together. So it is before the first F of a
 * stage, with F of the stages before. */
static int64_t head_of_many(const struct view *view) {
  const struct weft_problem *problem = view->paths->problem;
  const uint32_t places = problem->stages_per_rank;
  const int64_t trip =
      weft_paths_trip(view->paths, view->first, view->last) - weft_paths_back(problem, view->last);
  int64_t head = larger(0, trip - most_forward(view, places));
  for (uint32_t k = 1; k < places; k++) {
    const int64_t arrival =
        view->paths->forward[stage_at(problem, view->rank, k)] - view->paths->forward[view->first];
    head = larger(head, arrival - most_forward(view, k));
  }
  return head;
}

/* The most I and W that can be left when the last F starts: those it holds the memory of. */
static int64_t most_left(const struct view *view) {
  const struct weft_problem *problem = view->paths->problem;
  struct item items[2 * WEFT_LOCAL_STAGES_MAX];
  uint32_t count = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const uint32_t s = stage_at(problem, view->rank, k);
    const struct weft_problem_stage *stage = &problem->stages[s];
    const int64_t w = weft_paths_weight(problem, s);
    items[count++] = (struct item){stage->held, weft_paths_back(problem, s) + w, view->count};
    items[count++] = (struct item){problem->whole_backward ? 0 : stage->held_after, w, view->count};
  }
  return smaller(knapsack_bound(items, count, view->limit), view->count * (view->i + view->w));
}

/* The most W that can be left when the last I ends: what is in memory before, and its own. */
static int64_t most_weights(const struct view *view) {
  const struct weft_problem *problem = view->paths->problem;
  struct item items[WEFT_LOCAL_STAGES_MAX];
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const uint32_t s = stage_at(problem, view->rank, k);
    items[k] = (struct item){problem->whole_backward ? 0 : problem->stages[s].held_after,
                             weft_paths_weight(problem, s), view->count};
  }
  const int64_t room = view->limit - problem->stages[view->first].held;
  return smaller(view->count * view->w,
                 knapsack_bound(items, problem->stages_per_rank, larger(0, room)) +
                     weft_paths_weight(problem, view->first));
}

/* As through_one(), with sums instead of states. If the memory cannot hold all there is, some
 * I ends before the last F starts, and idle time at both ends adds up. */
static int64_t through_many(const struct view *view, int64_t closing, bool own) {
  const struct weft_problem *problem = view->paths->problem;
  const int64_t head = head_of_many(view);
  const int64_t work = work_of(view);
  const int64_t last = problem->stages[view->last].time[WEFT_KIND_F];
  const int64_t tail = work - last - most_left(view) +
                       weft_paths_trip(view->paths, view->last, view->first) + closing;
  const int64_t chain = head + work - most_weights(view) + closing;
  double all = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    all += (double)problem->stages[stage_at(problem, view->rank, k)].held * (double)view->count;
  }
  const bool apart = all > (double)view->limit * (1 + 1e-9);
  const int64_t least = larger(chain, tail + (apart ? head : 0));
  return own ? larger(least, work + head) : least;
}

/* ---- Memory over time ---- */

/* Each microbatch takes its memory for a trip at each stage, and for W; together no more than
 * the limit all the time. */
static int64_t occupied(const struct view *view) {
  const struct weft_problem *problem = view->paths->problem;
  double sum = 0;
  if (view->limit <= 0 || view->limit < weft_problem_least_of(problem, view->rank)) {
    return 0;
  }
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const uint32_t s = stage_at(problem, view->rank, k);
    sum += (double)problem->stages[s].held * (double)weft_paths_trip(view->paths, s, s);
    if (!problem->whole_backward) {
      sum += (double)problem->stages[s].held_after * (double)weft_paths_weight(problem, s);
    }
  }
  const double least = sum * (double)view->count / (double)view->limit;
  return (int64_t)(least * (1 - 1e-12));
}

/* With room for K microbatches, F of number n + K starts after I of number n has ended: trips
 * of every K-th come one after the other, with the F of those before the first, or the I of
 * those after the last. */
static int64_t trips(const struct view *view) {
  const struct weft_problem_stage *stage = &view->paths->problem->stages[view->first];
  const int64_t room = larger(1, fits(view, view->limit, stage->held));
  const int64_t rounds = (view->count - 1) / room + 1;
  const int64_t rest = view->count - 1 - (rounds - 1) * room;
  return rounds * weft_paths_trip(view->paths, view->first, view->first) +
         rest *
             larger(stage->time[WEFT_KIND_F], weft_paths_back(view->paths->problem, view->first));
}

/* ---- All together ---- */

/* All microbatches go one after the other through the slowest op, or the slowest channel, of a
 * trip: the first comes to it, and the last goes on. */
static int64_t in_single_file(const struct view *view) {
  return weft_paths_trip(view->paths, view->first, view->first) +
         (view->count - 1) * view->paths->slowest[view->first];
}

/* From the rank's first op to `closing` after its last I. */
static int64_t through(const struct view *view, int64_t closing, bool own) {
  const struct weft_problem *problem = view->paths->problem;
  const int64_t inner = larger(trips(view), in_single_file(view)) + closing;
  const int64_t least = problem->stages_per_rank == 1 ? through_one(view, closing, own)
                                                      : through_many(view, closing, own);
  return larger(larger(inner, least), own ? occupied(view) : 0);
}

static int64_t bound_of(const struct view *view, enum weft_objective objective) {
  if (objective == WEFT_OBJECTIVE_MAKESPAN) {
    return view->opening + through(view, view->closing, true);
  }
  const int64_t w = weft_paths_weight(view->paths->problem, view->first);
  return larger(through(view, w, true), through(view, view->around, false));
}

static int64_t bound_with(const struct weft_paths *paths, enum weft_objective objective) {
  const struct weft_problem *problem = paths->problem;
  int64_t bound = 0;
  int64_t closing = 0; /* the latest end of a W before, less backward[] */
  int64_t around = 0;  /* the largest opening + closing before, less both paths */
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    struct view view;
    look_at(&view, paths, r);
    const int64_t w = weft_paths_weight(problem, view.first);
    const int64_t out = paths->forward[view.first], back = paths->backward[view.first];
    closing = r == 0 ? w : larger(closing, w - back);
    around = r == 0 ? w : larger(around, w - out - back);
    view.opening = out;
    view.closing = back + closing;
    view.around = out + back + around;
    bound = larger(bound, bound_of(&view, objective));
  }
  return bound;
}

int64_t weft_problem_bound(const struct weft_problem *problem, enum weft_objective objective) {
  struct weft_paths paths;
  if (!weft_paths_init(&paths, problem)) {
    return 0;
  }
  const int64_t bound = weft_bound_cascade(&paths, objective, bound_with(&paths, objective));
  weft_paths_finish(&paths);
  return bound;
}

/* ---- Least memory ---- */

/* One microbatch at a time, its weight gradients at once, holds this. And nobody holds less: the
 * first microbatch holds all of a rank's stages when its F starts at the last of them; and when
 * I of the last microbatch ends at a stage, it has not come to those before, and holds
 * them, and what is kept for W. */
int64_t weft_problem_least_of(const struct weft_problem *problem, uint32_t rank) {
  int64_t held = 0, peak = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const struct weft_problem_stage *stage = &problem->stages[stage_at(problem, rank, k)];
    const int64_t after = problem->whole_backward ? 0 : stage->held_after;
    peak = larger(peak, held + after);
    held += stage->held;
    peak = larger(peak, held);
  }
  return peak;
}

int64_t weft_problem_least_memory(const struct weft_problem *problem, uint32_t *rank) {
  int64_t least = -1;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t own = weft_problem_least_of(problem, r);
    if (own > least) {
      least = own;
      *rank = r;
    }
  }
  return least;
}
