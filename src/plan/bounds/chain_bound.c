/* Lower bounds on the objective in closed form.
 *
 * Every term looks at one rank: its first op is F of its first stage, its last F that of its last
 * stage and the last microbatch, its last I that of its first stage and the last microbatch. The
 * text assumes a split backward; a whole one is an I that takes the time of B, and a W of no time
 * and no memory.
 *
 * opening  time before the rank's first op: in a makespan, F of the stages before it.
 * closing  time after its last I: I of the stages before it, and the W of one of them. A span of
 *          an earlier rank contains both, as far as they lie between the two ranks.
 * trip     from the start of F at a stage to the end of I at the same or another one, for one
 *          microbatch: all stages from there to the last and back, and the hops.
 *
 * Each term is proved where it is computed. */
#include <assert.h>
#include <math.h>

#include "plan/bounds/chain_bound.h"

/* ---- Paths ---- */

static int64_t slowest_at(const struct weft_problem *problem, uint32_t stage) {
  const bool crosses = stage + 1 < problem->stage_count &&
                       problem->stages[stage].rank != problem->stages[stage + 1].rank;
  return weft_max(
      crosses ? problem->chain_occupancy : 0,
      weft_max(problem->stages[stage].time[WEFT_KIND_F], weft_least_gradient(problem, stage)));
}

bool weft_paths_init(struct weft_paths *paths, const struct weft_problem *problem,
                     struct weft_arena *arena) {
  assert(paths != NULL && problem != NULL);
  const uint32_t count = problem->stage_count;
  *paths = (struct weft_paths){.problem = problem};
  if (!WEFT_ALLOCATE(arena, paths->forward, count) ||
      !WEFT_ALLOCATE(arena, paths->backward, count) ||
      !WEFT_ALLOCATE(arena, paths->slowest, count)) {
    return false;
  }
  for (uint32_t s = 0; s + 1 < count; s++) {
    const int64_t hop = weft_problem_hop(problem, 2 * s);
    paths->forward[s + 1] = paths->forward[s] + problem->stages[s].time[WEFT_KIND_F] + hop;
    paths->backward[s + 1] = paths->backward[s] + weft_least_gradient(problem, s) + hop;
  }
  for (uint32_t s = count; s-- > 0;) {
    paths->slowest[s] = weft_max(slowest_at(problem, s), s + 1 < count ? paths->slowest[s + 1] : 0);
  }
  return true;
}

int64_t weft_paths_trip(const struct weft_paths *paths, uint32_t from, uint32_t to) {
  assert(from < paths->problem->stage_count && to < paths->problem->stage_count);
  const struct weft_problem *problem = paths->problem;
  const uint32_t last = problem->stage_count - 1;
  return paths->forward[last] - paths->forward[from] + problem->stages[last].time[WEFT_KIND_F] +
         weft_least_gradient(problem, last) + paths->backward[last] - paths->backward[to];
}

/* ---- A rank ---- */

/* A rank as the terms need it; sums are over its stages, for one microbatch. */
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

static void describe_rank(struct view *view, const struct weft_paths *paths, uint32_t rank) {
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
    view->i += weft_least_gradient(problem, stage);
    view->w += weft_least_weight(problem, stage);
  }
}

/* ---- One stage per rank ---- */

/* The time from the first op to `closing` after the last I, and with `own` to the end of the rank's
 * own ops. */
static int64_t through_one(const struct view *view, int64_t closing, bool own) {
  const int64_t trip = weft_paths_trip(view->paths, view->first, view->first);
  const struct weft_lone_stage at = {.m = view->count,
                                     .f = view->f,
                                     .i = view->i,
                                     .w = view->w,
                                     .trip = trip,
                                     .after_forward = trip + closing,
                                     .closing = closing,
                                     .with_weights = own};
  return weft_bound_lone_stage(&at, view->paths->problem, view->first);
}

/* ---- Several stages per rank ---- */

/* An upper bound on the value of up to m of each item within the room: the fractional knapsack. */
int64_t weft_most_value(struct weft_item *items, uint32_t count, int64_t m, int64_t room) {
  int64_t sum = 0;
  assert(items != NULL && m > 0);
  for (uint32_t n = 0; n < count && room >= 0; n++) {
    uint32_t best = n;
    for (uint32_t k = n + 1; k < count; k++) {
      const double gain = (double)items[k].value * (double)items[best].size;
      best = gain > (double)items[best].value * (double)items[k].size ? k : best;
    }
    const struct weft_item item = items[best];
    items[best] = items[n];
    if (item.size == 0 || m <= room / item.size) {
      sum += m * item.value;
      room -= m * item.size;
    } else {
      sum += room / item.size * item.value;
      return sum +
             (int64_t)ceil((double)item.value * ((double)(room % item.size) / (double)item.size)) +
             1;
    }
  }
  return sum;
}

/* Gradients of the rank's last stage, which are there from the rank's first I on. */
static int64_t first_gradients(const struct view *view) {
  return view->paths->problem->stages[view->last].gradients;
}

/* An upper bound on the value of what a rank's microbatches hold within the room: any of the stages,
 * each at most once, and W that are pending. Who holds a stage holds those before it too; so it is
 * also a bound to take each stage together with those before it. */
static int64_t most_held(const struct weft_item *stages, uint32_t stage_count,
                         const struct weft_item *weights, uint32_t weight_count, int64_t m,
                         int64_t room) {
  struct weft_item items[2 * WEFT_LOCAL_STAGES_MAX], sums[2 * WEFT_LOCAL_STAGES_MAX];
  const uint32_t count = stage_count + weight_count;
  for (uint32_t k = 0; k < count; k++) {
    items[k] = k < stage_count ? stages[k] : weights[k - stage_count];
    sums[k] = items[k];
    if (k > 0 && k < stage_count) {
      sums[k].size += sums[k - 1].size;
      sums[k].value += sums[k - 1].value;
    }
  }
  return weft_min(weft_most_value(items, count, m, room), weft_most_value(sums, count, m, room));
}

/* The most time of F of the rank's first `stages` stages that fits into the room together. */
static int64_t most_forward(const struct view *view, uint32_t stages, int64_t room) {
  const struct weft_problem *problem = view->paths->problem;
  struct weft_item items[WEFT_LOCAL_STAGES_MAX];
  for (uint32_t k = 0; k < stages; k++) {
    const struct weft_problem_stage *stage = &problem->stages[stage_at(problem, view->rank, k)];
    items[k] = (struct weft_item){stage->held, stage->time[WEFT_KIND_F]};
  }
  return most_held(items, stages, NULL, 0, view->count, room);
}

/* Idle time before the first I, which belongs to the last stage: a trip passes, during which only
 * F that fit into the memory together can run, beside the gradients that come with this I. The
 * same holds before the first F of each stage, with F of the stages before it. */
static int64_t head_of_many(const struct view *view) {
  const struct weft_problem *problem = view->paths->problem;
  const uint32_t stages = problem->stages_per_rank;
  const int64_t trip = weft_paths_trip(view->paths, view->first, view->last) -
                       weft_least_gradient(problem, view->last);
  int64_t head =
      weft_max(0, trip - most_forward(view, stages, view->limit - first_gradients(view)));
  for (uint32_t k = 1; k < stages; k++) {
    const int64_t arrival =
        view->paths->forward[stage_at(problem, view->rank, k)] - view->paths->forward[view->first];
    head = weft_max(head, arrival - most_forward(view, k, view->limit));
  }
  return head;
}

/* The most time of I and W that can be left when the last F starts: those that are in the room. All
 * other F are done, so who awaits I of a stage also awaits those of the stages before it. */
static int64_t most_left(const struct view *view, int64_t room) {
  const struct weft_problem *problem = view->paths->problem;
  struct weft_item stages[WEFT_LOCAL_STAGES_MAX], weights[WEFT_LOCAL_STAGES_MAX];
  const uint32_t v = problem->stages_per_rank;
  for (uint32_t k = 0; k < v; k++) {
    const uint32_t s = stage_at(problem, view->rank, k);
    const int64_t w = weft_least_weight(problem, s);
    stages[k] = (struct weft_item){problem->stages[s].held, weft_least_gradient(problem, s) + w};
    weights[k] = (struct weft_item){weft_least_after(problem, s), w};
  }
  return weft_min(most_held(stages, v, weights, v, view->count, room),
                  view->count * (view->i + view->w));
}

/* The most time of W that can be left when the last I ends: those in memory beside the gradients of
 * all stages, and its own. */
static int64_t most_weights(const struct view *view) {
  const struct weft_problem *problem = view->paths->problem;
  struct weft_item items[WEFT_LOCAL_STAGES_MAX];
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const uint32_t s = stage_at(problem, view->rank, k);
    items[k] = (struct weft_item){weft_least_after(problem, s), weft_least_weight(problem, s)};
  }
  const int64_t room =
      weft_problem_limit_at_end(problem, view->rank) - problem->stages[view->first].held;
  return weft_min(view->count * view->w,
                  weft_most_value(items, problem->stages_per_rank, view->count, weft_max(0, room)) +
                      weft_least_weight(problem, view->first));
}

/* As through_one(), with sums instead of states. If not all activations fit into the memory, some
 * I ends before the last F starts: the idle times at both ends add up, and there are gradients. */
static int64_t through_many(const struct view *view, int64_t closing, bool own) {
  const struct weft_problem *problem = view->paths->problem;
  const int64_t head = head_of_many(view);
  const int64_t work = work_of(view);
  const int64_t last = problem->stages[view->last].time[WEFT_KIND_F];
  const int64_t chain = head + work - most_weights(view) + closing;
  double all = 0;
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    all += (double)problem->stages[stage_at(problem, view->rank, k)].held * (double)view->count;
  }
  const bool apart = all > (double)view->limit * (1 + 1e-9);
  const int64_t room = view->limit - (apart ? first_gradients(view) : 0);
  const int64_t tail = work - last - most_left(view, room) +
                       weft_paths_trip(view->paths, view->last, view->first) + closing;
  const int64_t least = weft_max(chain, tail + (apart ? head : 0));
  return own ? weft_max(least, work + head) : least;
}

/* ---- Memory over time ---- */

/* Each microbatch occupies memory for a trip at each stage, and for W; the gradients of a stage are
 * there during all its backwards and those of the rank's stages before it, whose first backwards
 * come later. The sum over time is at most the limit times the duration. */
static int64_t occupied(const struct view *view) {
  const struct weft_problem *problem = view->paths->problem;
  double sum = 0, backwards = 0;
  if (view->limit <= 0 || view->limit < weft_chain_least_of(problem, view->rank)) {
    return 0;
  }
  for (uint32_t k = 0; k < problem->stages_per_rank; k++) {
    const uint32_t s = stage_at(problem, view->rank, k);
    sum += (double)problem->stages[s].held * (double)weft_paths_trip(view->paths, s, s);
    sum += (double)weft_least_after(problem, s) * (double)weft_least_weight(problem, s);
    backwards += (double)(weft_least_gradient(problem, s) + weft_least_weight(problem, s));
    sum += (double)problem->stages[s].gradients * backwards;
  }
  const double least = sum * (double)view->count / (double)view->limit;
  return (int64_t)(least * (1 - 1e-12));
}

/* With room for K microbatches, F of microbatch n + K starts after I of n has ended: the trips of
 * every K-th come one after the other, plus the F of those before the first, or the I of those
 * after the last. */
static int64_t trips(const struct view *view) {
  const struct weft_problem_stage *stage = &view->paths->problem->stages[view->first];
  const int64_t room = weft_problem_most_held(view->paths->problem, view->first);
  const int64_t rounds = (view->count - 1) / room + 1;
  const int64_t rest = view->count - 1 - (rounds - 1) * room;
  return rounds * weft_paths_trip(view->paths, view->first, view->first) +
         rest * weft_max(stage->time[WEFT_KIND_F],
                         weft_least_gradient(view->paths->problem, view->first));
}

/* ---- The bound ---- */

/* All microbatches pass the slowest op, or the slowest channel, of a trip one after the other: the
 * first has to reach it, and the last has to continue. */
static int64_t in_single_file(const struct view *view) {
  return weft_paths_trip(view->paths, view->first, view->first) +
         (view->count - 1) * view->paths->slowest[view->first];
}

/* From the rank's first op to `closing` after its last I. */
static int64_t through(const struct view *view, int64_t closing, bool own) {
  const struct weft_problem *problem = view->paths->problem;
  const int64_t inner = weft_max(trips(view), in_single_file(view)) + closing;
  const int64_t least = problem->stages_per_rank == 1 ? through_one(view, closing, own)
                                                      : through_many(view, closing, own);
  return weft_max(weft_max(inner, least), own ? occupied(view) : 0);
}

static int64_t bound_of(const struct view *view) {
  if (view->paths->problem->objective == WEFT_OBJECTIVE_MAKESPAN) {
    return view->opening + through(view, view->closing, true);
  }
  const int64_t w = weft_least_weight(view->paths->problem, view->first);
  return weft_max(through(view, w, true), through(view, view->around, false));
}

static int64_t bound_with(const struct weft_paths *paths) {
  const struct weft_problem *problem = paths->problem;
  int64_t bound = 0;
  int64_t closing = 0; /* the latest end of a W before, less backward[] */
  int64_t around = 0;  /* the largest opening + closing before, less both paths */
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    struct view view;
    describe_rank(&view, paths, r);
    const int64_t w = weft_least_weight(problem, view.first);
    const int64_t out = paths->forward[view.first], back = paths->backward[view.first];
    closing = r == 0 ? w : weft_max(closing, w - back);
    around = r == 0 ? w : weft_max(around, w - out - back);
    view.opening = out;
    view.closing = back + closing;
    view.around = out + back + around;
    bound = weft_max(bound, bound_of(&view));
  }
  return bound;
}

int64_t weft_chain_bound(const struct weft_problem *problem) {
  assert(problem != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct weft_paths paths;
  if (!weft_paths_init(&paths, problem, &arena)) {
    return 0;
  }
  const int64_t bound = bound_with(&paths);
  return problem->stages_per_rank == 1 /* slowest[] has done its service */
             ? weft_bound_first_backwards(problem, paths.forward, bound, paths.slowest)
             : bound;
}
