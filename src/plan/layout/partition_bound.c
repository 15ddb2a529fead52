/* A lower bound for all partitions of a shape.
 *
 * Costs of a stage are sums over its parts, so what a bound needs to know about a rank with one
 * stage depends only on where its parts begin and end: its own costs, and the sums before and after
 * it, which are what a microbatch passes on its way. The bound of a partition is the largest of its
 * ranks, and dynamic programming over the ranks finds the partition that makes it smallest. The
 * terms are those of bounds/chain_bound.c, where they are proved.
 *
 * With several stages per rank only sums over all ranks are independent of the partition: of the
 * work, and of memory over time.
 *
 * Everything here is in the unit of the costs. Rounding to ticks moves the sums by less than SLACK. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include <weft/support.h>

#include "plan/layout/partition.h"
#include "plan/problem/problem.h"

#define SLACK 1e-9

/* States of through() in all, which take some milliseconds: from then on x is not enumerated. With
 * more ranks and ranges of parts the sums have to do. */
#define STATES_MAX 2e6
#define RANGES_MAX 1e6

double weft_all_reduce_time(const struct weft_search_request *request, double size) {
  assert(request != NULL);
  const struct weft_all_reduce_costs *costs = &request->costs->all_reduce;
  const double d = request->replicas;
  if (d < 2) {
    return 0;
  }
  const double transfer = costs->size_per_unit > 0 ? size / d / costs->size_per_unit : 0;
  return 2 * (d - 1) * (costs->latency + transfer);
}

/* Gradients have the size of the parameters where their own is not specified. */
static double gradients_of(const struct weft_stage_costs *stage, bool specified) {
  return specified ? stage->gradients : stage->parameters;
}

static bool are_gradients_specified(const struct weft_costs *costs) {
  assert(costs != NULL);
  double sum = 0;
  for (uint32_t s = 0; s < costs->stage_count; s++) {
    sum += costs->stages[s].gradients;
  }
  return sum > 0;
}

double weft_gradients_to_reduce(const struct weft_costs *costs, uint32_t stage) {
  assert(costs != NULL);
  return gradients_of(weft_costs_of(costs, stage), are_gradients_specified(costs));
}

double weft_all_reduce_of(const struct weft_search_request *request,
                          const struct weft_problem *problem, const struct weft_costs *costs) {
  assert(problem != NULL && costs != NULL);
  const bool specified = are_gradients_specified(costs);
  double most = 0;
  for (uint32_t r = 0; r < problem->rank_count && request->replicas > 1; r++) {
    double sum = 0;
    for (uint32_t k = problem->first_of[r]; k < problem->first_of[r + 1]; k++) {
      sum += gradients_of(weft_costs_of(costs, problem->stage_of[k]), specified);
    }
    most = fmax(most, sum);
  }
  return weft_all_reduce_time(request, most);
}

/* ---- Sums over parts ---- */

/* Of the parts before one. */
struct sums {
  double f, i, w, b;
  double back;            /* of I or B, whichever is less for each part */
  double work;            /* of F and the backward */
  double held, after;     /* memory of a microbatch */
  double kept, gradients; /* memory of parameters and gradients, and of gradients to be reduced */
};

struct bounding {
  const struct weft_search_request *request;
  const struct weft_shape *shape;
  struct weft_arena *arena;
  uint32_t part_count;
  struct sums *before; /* [part_count + 1] */
  double hop, occupancy;
  double m;
  bool spans;
  double states_left;   /* of STATES_MAX */
  double slowest;       /* F or backward of a part */
  double closing;       /* W of the first part, where it comes after all I */
  double *fastest_to;   /* [rank] the smallest factor of the ranks before it, */
  double *fastest_from; /* [rank] and of those after it */
};

static double factor_of(const struct bounding *all, uint32_t rank) {
  return all->request->rank_factors != NULL ? all->request->rank_factors[rank] : 1;
}

/* The costs of every part as if it were a stage, at the speed of 1. */
static enum weft_status costs_of_parts(struct bounding *all, struct weft_costs **out,
                                       struct weft_error *error) {
  struct weft_search_request plain = *all->request;
  const struct weft_shape single = {.ranks = all->part_count, .stages_per_rank = 1};
  const size_t room = (size_t)all->part_count + 1;
  uint32_t *first = weft_arena_allocate(all->arena, room, sizeof *first);
  WEFT_TRY(weft_arena_status(all->arena, error));
  for (uint32_t k = 0; k < room; k++) {
    first[k] = k;
  }
  plain.rank_factors = NULL;
  return weft_partition_costs(all->arena->allocator, &plain, &single, first, out, error);
}

static void add_up(struct bounding *all, const struct weft_costs *parts) {
  const bool whole = all->request->whole_backward, specified = are_gradients_specified(parts);
  const bool may_be_whole = whole || weft_costs_gain_from_whole(parts);
  for (uint32_t k = 0; k < all->part_count; k++) {
    const struct weft_stage_costs *part = &parts->stages[k];
    const double back = whole ? part->b : fmin(part->i, part->b);
    const double work = part->f + (whole ? part->b : fmin(part->i + part->w, part->b));
    const double kept = part->parameters + part->gradients_sharded;
    /* With several stages per rank, gradients may come when activations have gone. */
    const double late =
        all->shape->stages_per_rank > 1 ? 0 : fmax(0, part->gradients - part->gradients_sharded);
    const struct sums *sums = &all->before[k];
    all->before[k + 1] =
        (struct sums){.f = sums->f + part->f,
                      .i = sums->i + part->i,
                      .w = sums->w + part->w,
                      .b = sums->b + part->b,
                      .back = sums->back + back,
                      .work = sums->work + work,
                      .held = sums->held + part->activation,
                      .after = sums->after + part->activation_after_i,
                      .kept = sums->kept + kept + late,
                      .gradients = sums->gradients + gradients_of(part, specified)};
    all->slowest = fmax(all->slowest, fmax(part->f, back));
  }
  all->closing = may_be_whole ? 0 : parts->stages[0].w * factor_of(all, 0);
}

/* ---- One stage per rank ---- */

struct view {
  double f, i, w;
  double trip; /* from the start of F to the end of I */
  double opening, closing;
  double limit, held, after;
  double slowest;
};

static double fits(const struct bounding *all, double room, double size) {
  return size <= 0 ? all->m : fmin(all->m, floor(room / size * (1 + SLACK) + SLACK));
}

/* False when the stage does not fit into the memory. */
static bool describe_range(const struct bounding *all, uint32_t rank, uint32_t begin, uint32_t end,
                           struct view *view) {
  const struct sums *a = &all->before[begin], *b = &all->before[end];
  const struct sums *last = &all->before[all->part_count];
  const double factor = factor_of(all, rank), whole = b->b - a->b, i = b->i - a->i;
  const double back = all->request->whole_backward ? whole : fmin(i, whole);
  const double ahead = (last->f - b->f + last->back - b->back) * all->fastest_from[rank];
  *view = (struct view){
      .f = (b->f - a->f) * factor,
      .i = back * factor,
      .w = all->request->whole_backward ? 0 : fmin(b->w - a->w, whole - back) * factor,
      .held = b->held - a->held,
      .after = all->request->whole_backward ? 0 : fmin(b->after - a->after, b->held - a->held),
      .limit = all->request->memory_limit * (1 + SLACK) - (b->kept - a->kept),
      .opening = a->f * all->fastest_to[rank] + rank * all->hop};
  view->w = fmax(0, view->w);
  view->trip = view->f + view->i + ahead + 2 * (all->shape->ranks - 1 - rank) * all->hop;
  view->closing = fmax(
      view->w, rank == 0 ? 0 : a->back * all->fastest_to[rank] + rank * all->hop + all->closing);
  view->slowest = fmax(fmax(view->f, view->i), rank + 1 < all->shape->ranks ? all->occupancy : 0);
  return view->limit >= 0 && fits(all, view->limit, view->held) >= 1;
}

static double through_state(const struct bounding *all, const struct view *view, double x, double y,
                            double closing, double head) {
  const double m = all->m;
  const double before = (m - 1) * view->f + (m - x) * view->i + (m - x - y) * view->w;
  const double after = fmax(view->trip, view->f + x * view->i) + closing;
  const double value = before + fmax(after, view->f + x * view->i + (x + y) * view->w);
  return x < m ? head + value
               : fmax(value, view->trip + (m - 1) * view->i + fmax(closing, m * view->w));
}

/* `below`: of no interest from there on. */
static double through(struct bounding *all, const struct view *view, double closing, double below) {
  const double m = all->m, most = fits(all, view->limit, view->held);
  const double head = fmax(0, view->trip - view->i - fmin(most, m - 1) * view->f);
  const double rounds = floor((m - 1) / most) + 1, rest = m - 1 - (rounds - 1) * most;
  const double trips = rounds * view->trip + rest * fmax(view->f, view->i);
  const double in_file = view->trip + (m - 1) * view->slowest;
  const double occupied = isfinite(view->limit) && view->limit > 0
                              ? (view->held * view->trip + view->after * view->w) * m / view->limit
                              : 0;
  const double work = m * (view->f + view->i + view->w);
  const double bound = fmax(fmax(fmax(trips, in_file) + closing, work), occupied);
  double least = INFINITY;
  if (bound >= below || all->states_left < most) {
    return bound;
  }
  all->states_left -= most;
  for (double x = 1; x <= most && least > bound; x++) {
    const double y = fmin(m - x, fmax(0, fits(all, view->limit - x * view->held, view->after)));
    least = fmin(least, through_state(all, view, x, y, closing, head));
  }
  return fmax(bound, least);
}

/* Of a rank with these parts; INFINITY when they do not fit. */
static double bound_of(struct bounding *all, uint32_t rank, uint32_t begin, uint32_t end,
                       double below) {
  struct view view;
  if (!describe_range(all, rank, begin, end, &view)) {
    return INFINITY;
  }
  const double gradients = all->before[end].gradients - all->before[begin].gradients;
  const double besides =
      weft_all_reduce_time(all->request, gradients) + (all->spans ? 0 : view.opening);
  return besides + through(all, &view, all->spans ? view.w : view.closing, below - besides);
}

/* least[k]: for the ranks so far, which have the first k parts. */
static double with_one_stage(struct bounding *all, double *least) {
  const uint32_t ranks = all->shape->ranks, slack = all->part_count - ranks;
  for (uint32_t k = 0; k <= all->part_count; k++) {
    least[k] = k == 0 ? 0 : INFINITY;
  }
  for (uint32_t r = 0; r < ranks; r++) {
    for (uint32_t end = r + 1 + slack; end > r; end--) {
      double best = INFINITY;
      for (uint32_t begin = end; begin-- > r && (r + 1 < ranks || end == all->part_count);) {
        const double work = all->before[end].work - all->before[begin].work;
        if (all->m * work * factor_of(all, r) >= best) {
          break; /* more parts are more work */
        }
        if (least[begin] < best) {
          best = fmin(best, fmax(least[begin], bound_of(all, r, begin, end, best)));
        }
      }
      least[end] = best;
    }
    least[r] = INFINITY;
  }
  return least[all->part_count];
}

/* ---- Several stages per rank ---- */

static int compare(const void *a, const void *b) {
  const double one = *(const double *)a, other = *(const double *)b;
  return one > other ? -1 : one < other;
}

/* The least work of the heaviest rank, whatever parts it has: of the n p + 1 heaviest parts some
 * rank has n + 1, which weigh at least as much as the n + 1 lightest of them. */
static double heaviest_rank(const struct bounding *all, double *work) {
  const uint32_t ranks = all->shape->ranks;
  double heaviest = 0;
  for (uint32_t k = 0; k < all->part_count; k++) {
    work[k] = all->before[k + 1].work - all->before[k].work;
  }
  qsort(work, all->part_count, sizeof *work, compare);
  for (uint32_t k = 1; k < all->part_count; k++) {
    work[k] += work[k - 1];
  }
  for (uint32_t n = 0; n * ranks < all->part_count; n++) {
    const uint32_t last = n * ranks;
    heaviest = fmax(heaviest, work[last] - (last > n ? work[last - n - 1] : 0));
  }
  return heaviest;
}

static double with_many_stages(const struct bounding *all, double *scratch) {
  const struct weft_shape *shape = all->shape;
  const struct sums *last = &all->before[all->part_count];
  const uint32_t stages = shape->ranks * shape->stages_per_rank;
  const uint32_t turns = shape->placement == WEFT_PLACEMENT_V ? shape->stages_per_rank - 1 : 0;
  const double hops = shape->ranks > 1 ? 2 * (stages - 1 - turns) * all->hop : 0;
  double fastest = INFINITY, speeds = 0, openings = 0;
  for (uint32_t r = 0; r < shape->ranks; r++) {
    const double factor = factor_of(all, r);
    fastest = fmin(fastest, factor);
    speeds += 1 / factor;
    /* The rank's first stage is stage r, and each stage before it has a part. */
    openings += all->spans ? 0 : (all->before[r].f * all->fastest_to[r] + r * all->hop) / factor;
  }
  const double balanced = (all->m * last->work + openings) / speeds;
  const double chain =
      (last->f + last->back) * fastest + hops + (all->m - 1) * all->slowest * fastest;
  double bound = fmax(fmax(balanced, chain), all->m * heaviest_rank(all, scratch) * fastest);
  if (isfinite(all->request->memory_limit)) {
    const double room = all->request->memory_limit * (1 + SLACK) * shape->ranks - last->kept;
    double occupied = 0; /* a part is held until the backward of all parts after it */
    for (uint32_t k = 0; k < all->part_count; k++) {
      occupied += (all->before[k + 1].held - all->before[k].held) *
                  (last->f - all->before[k].f + last->back - all->before[k].back) * fastest;
    }
    if (room * (1 + SLACK) < last->held) {
      return INFINITY;
    }
    bound = room > 0 ? fmax(bound, all->m * occupied / room) : bound;
  }
  return bound + weft_all_reduce_time(all->request, last->gradients / shape->ranks);
}

/* ---- The bound ---- */

static enum weft_status find(struct bounding *all, double *bound, struct weft_error *error) {
  const uint32_t ranks = all->shape->ranks;
  const double slack = all->part_count - ranks + 1;
  struct weft_costs *parts = NULL;
  const size_t room = (size_t)all->part_count + 1;
  double *least = weft_arena_allocate(all->arena, room, sizeof *least);
  all->before = weft_arena_allocate(all->arena, room, sizeof *all->before);
  all->fastest_to = weft_arena_allocate(all->arena, ranks, sizeof *all->fastest_to);
  all->fastest_from = weft_arena_allocate(all->arena, ranks, sizeof *all->fastest_from);
  WEFT_TRY(costs_of_parts(all, &parts, error));
  add_up(all, parts);
  weft_costs_destroy(parts);
  for (uint32_t r = 1; r < ranks; r++) {
    const double before = r == 1 ? INFINITY : all->fastest_to[r - 1];
    const double after = r == 1 ? INFINITY : all->fastest_from[ranks - r];
    all->fastest_to[r] = fmin(before, factor_of(all, r - 1));
    all->fastest_from[ranks - 1 - r] = fmin(after, factor_of(all, ranks - r));
  }
  if (all->before[all->part_count].f <= 0) { /* sizes are not sums then */
    *bound = 0;
    return WEFT_OK;
  }
  const double found = all->shape->stages_per_rank == 1 && ranks * slack * slack / 2 <= RANGES_MAX
                           ? with_one_stage(all, least)
                           : with_many_stages(all, least);
  *bound = found * (1 - SLACK);
  return WEFT_OK;
}

enum weft_status weft_partition_bound(const struct weft_allocator *allocator,
                                      const struct weft_search_request *request,
                                      const struct weft_shape *shape, double *bound,
                                      struct weft_error *error) {
  assert(request->costs->part_count >= shape->ranks * shape->stages_per_rank && bound != NULL);
  const struct weft_hop_costs *hop = &request->costs->hop;
  const double occupancy = hop->bytes_per_unit > 0 ? hop->bytes / hop->bytes_per_unit : 0;
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  struct bounding all = {.request = request,
                         .shape = shape,
                         .arena = &arena,
                         .part_count = request->costs->part_count,
                         .hop = hop->latency + occupancy,
                         .occupancy = occupancy,
                         .m = shape->microbatches,
                         .states_left = STATES_MAX,
                         .spans = request->objective == WEFT_OBJECTIVE_SPAN};
  return find(&all, bound, error);
}
