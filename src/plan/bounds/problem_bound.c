/* Lower bounds for graphs, from facts that hold for every order. The text assumes a split backward; a
 * whole one is an I that takes the time of B, and a W of no time and no memory. As for chains
 * (bounds/chain_bound.c), whose proofs these are where a rank has one stage.
 *
 * way      the longest way of a microbatch through forwards, losses and backwards.
 * trip     the part of it from the start of F of a stage to the end of its I.
 * file     all microbatches pass each op, and each channel, one after the other.
 * work     a rank has all its work to do, after the first of its inputs can be there; and what
 *          depends on its last op has to follow.
 * memory   limits how much a rank can do before its first backward, and how much it can leave for the
 *          time after its last forward.
 * Each term is proved where it is computed. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/bounds/chain_bound.h"

/* Times in ticks, [stage]. */
struct ways {
  int64_t *to_forward;    /* from the beginning to the start of the first F */
  int64_t *to_backward;   /* to the start of the first backward */
  int64_t *from_backward; /* from the start of a backward to the end of all that follows it */
  int64_t *from_forward;  /* the same of a forward */
  int64_t *round_trip;    /* from the start of F to the end of I or B of the same microbatch */
  int64_t *start;         /* scratch */
};

/* The longest ways from the start of F of stage `from`, or from the beginning (WEFT_EDGE_NONE), to
 * the starts of forwards (into `forward`) and backwards (into `backward`); -1: there is none. */
static void measure(const struct weft_problem *problem, uint32_t from, int64_t *forward,
                    int64_t *backward) {
  const struct weft_graph *graph = problem->graph;
  const uint32_t first = from == WEFT_EDGE_NONE ? 0 : from;
  for (uint32_t s = first; s < problem->stage_count; s++) {
    forward[s] = from == WEFT_EDGE_NONE || s == from ? 0 : -1;
    for (uint32_t n = graph->in.begin[s]; n < graph->in.begin[s + 1]; n++) {
      const uint32_t e = graph->in.edges[n], other = graph->edges[e].from;
      if (other >= first && forward[other] >= 0) {
        forward[s] = weft_max(forward[s], forward[other] + problem->stages[other].f +
                                              weft_problem_hop(problem, 2 * e));
      }
    }
  }
  for (uint32_t s = problem->stage_count; s-- > first;) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    backward[s] = forward[s] >= 0 && stage->trains ? forward[s] + stage->f : -1;
    for (uint32_t n = graph->gradient_in.begin[s]; n < graph->gradient_in.begin[s + 1]; n++) {
      const uint32_t e = graph->gradient_in.edges[n], other = graph->edges[e].to;
      if (backward[other] >= 0) {
        backward[s] = weft_max(backward[s], backward[other] + weft_least_gradient(problem, other) +
                                                weft_problem_hop(problem, 2 * e + 1));
      }
    }
  }
}

static void measure_ends(const struct weft_problem *problem, struct ways *ways) {
  const struct weft_graph *graph = problem->graph;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    ways->from_backward[s] = stage->trains ? weft_least_backward(problem, stage) : 0;
    for (uint32_t n = graph->gradient_out.begin[s]; n < graph->gradient_out.begin[s + 1]; n++) {
      const uint32_t e = graph->gradient_out.edges[n];
      ways->from_backward[s] =
          weft_max(ways->from_backward[s], weft_least_gradient(problem, s) +
                                               weft_problem_hop(problem, 2 * e + 1) +
                                               ways->from_backward[graph->edges[e].from]);
    }
  }
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    ways->from_forward[s] = stage->f + ways->from_backward[s];
    for (uint32_t n = graph->out.begin[s]; n < graph->out.begin[s + 1]; n++) {
      const uint32_t e = graph->out.edges[n];
      ways->from_forward[s] =
          weft_max(ways->from_forward[s], stage->f + weft_problem_hop(problem, 2 * e) +
                                              ways->from_forward[graph->edges[e].to]);
    }
  }
}

/* Takes stages x edges; for the largest graphs what F and backward take must do. */
static void measure_round_trips(const struct weft_problem *problem, struct ways *ways) {
  enum { STEPS_MAX = 1 << 26 };
  const bool small =
      (uint64_t)problem->stage_count * (problem->graph->edge_count + problem->stage_count) <
      STEPS_MAX;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    int64_t way = stage->f;
    if (small && stage->trains) {
      measure(problem, s, ways->start, ways->round_trip + problem->stage_count);
      way = ways->round_trip[problem->stage_count + s];
    }
    ways->round_trip[s] = stage->trains ? way + weft_least_gradient(problem, s) : 0;
  }
}

/* ---- One stage ---- */

static bool spans(const struct weft_problem *problem) {
  return problem->objective == WEFT_OBJECTIVE_SPAN;
}

/* Time before the first op of a stage, in a makespan. */
static int64_t opening(const struct weft_problem *problem, const struct ways *ways, uint32_t s) {
  return spans(problem) ? 0 : ways->to_forward[s];
}

/* What follows the start of a forward: in a makespan all, in a span its own backward. */
static int64_t after_forward(const struct weft_problem *problem, const struct ways *ways,
                             uint32_t s) {
  const struct weft_problem_stage *stage = &problem->stages[s];
  return !spans(problem)  ? ways->from_forward[s]
         : !stage->trains ? stage->f
                          : ways->round_trip[s] - weft_least_gradient(problem, s) +
                                weft_least_backward(problem, stage);
}

static int64_t after_backward(const struct weft_problem *problem, const struct ways *ways,
                              uint32_t s) {
  return spans(problem) ? weft_least_backward(problem, &problem->stages[s])
                        : ways->from_backward[s];
}

/* With room for K microbatches, F of microbatch n + K starts after the backward of n has ended: the
 * trips of every K-th come one after the other, plus the F of those before the first, or the
 * backwards of those after the last. And all microbatches pass in single file. */
static int64_t bound_of_stage(const struct weft_problem *problem, const struct ways *ways,
                              uint32_t s) {
  const struct weft_problem_stage *stage = &problem->stages[s];
  const int64_t m = problem->microbatch_count, begin = opening(problem, ways, s);
  const int64_t forward = after_forward(problem, ways, s);
  if (!stage->trains) {
    return begin + (m - 1) * stage->f + forward;
  }
  const int64_t gradient = weft_least_gradient(problem, s), trip = ways->round_trip[s];
  const int64_t backward = trip - gradient + after_backward(problem, ways, s);
  const int64_t room = weft_problem_most_held(problem, s), rounds = (m - 1) / room + 1;
  const int64_t rest = m - 1 - (rounds - 1) * room;
  int64_t bound = begin + weft_max(forward + (m - 1) * stage->f, backward + (m - 1) * gradient);
  bound = weft_max(bound, begin + (rounds - 1) * trip +
                              weft_max(forward + rest * stage->f, backward + rest * gradient));
  if (!spans(problem)) { /* the backward may have to wait for more than its own forward's way */
    bound = weft_max(bound, ways->to_backward[s] + (m - 1) * gradient + ways->from_backward[s]);
  }
  return bound;
}

static int64_t bound_of_edge(const struct weft_problem *problem, const struct ways *ways,
                             uint32_t e) {
  const struct weft_edge *edge = &problem->graph->edges[e];
  const int64_t others = problem->microbatch_count - (int64_t)1;
  if (spans(problem) || !problem->crosses[2 * e]) {
    return 0;
  }
  int64_t bound = ways->to_forward[edge->from] + problem->stages[edge->from].f +
                  others * problem->occupancy[2 * e] + weft_problem_hop(problem, 2 * e) +
                  ways->from_forward[edge->to];
  if (edge->gradient) {
    bound =
        weft_max(bound, ways->to_backward[edge->to] + weft_least_gradient(problem, edge->to) +
                            others * problem->occupancy[2 * e + 1] +
                            weft_problem_hop(problem, 2 * e + 1) + ways->from_backward[edge->from]);
  }
  return bound;
}

/* ---- A rank with one stage ---- */

/* The time from its first op, given that x microbatches await I when the last F starts (it is one of
 * them), and y await only W.
 * Before the last F starts, m-1 F, m-x I and m-x-y W are done. After that comes what follows a
 * forward, and x more I before what follows a backward; and x + y W are left.
 * x < m: some I ends before the last F starts. The idle time before the first I, with at most m-1 F
 * that fit together, is part of neither, so it is added.
 * x = m: no I ends before, and y = 0. The first I ends a trip after the start, then m-1 I follow, and
 * all W. */
static int64_t through_state(const struct weft_lone_stage *at, int64_t most, int64_t x, int64_t y) {
  const int64_t before = (at->m - 1) * at->f + (at->m - x) * at->i + (at->m - x - y) * at->w;
  const int64_t own = at->with_weights ? (x + y) * at->w : 0;
  const int64_t after =
      before + weft_max(at->after_forward, at->f + x * at->i + weft_max(at->closing, own));
  return x < at->m ? weft_max(0, at->trip - at->i - weft_min(most, at->m - 1) * at->f) + after
                   : weft_max(after, at->trip + (at->m - 1) * at->i + weft_max(at->closing, own));
}

/* The minimum over the states that fit: x whole and y partial activations within the limit. A larger
 * y never takes longer. */
int64_t weft_bound_lone_stage(const struct weft_lone_stage *at, const struct weft_problem *problem,
                              uint32_t stage) {
  assert(at->m > 0 && stage < problem->stage_count);
  const struct weft_problem_stage *of = &problem->stages[stage];
  const int64_t size = weft_least_after(problem, stage);
  const int64_t most = weft_problem_most_held(problem, stage);
  int64_t least = INT64_MAX;
  for (int64_t x = 1; x <= most; x++) {
    const int64_t room = problem->limit[of->rank] - x * of->held, others = at->m - x;
    const int64_t y = room < 0 ? 0 : size == 0 ? others : weft_min(others, room / size);
    least = weft_min(least, through_state(at, most, x, y));
  }
  return least;
}

static int64_t through_stage(const struct weft_problem *problem, const struct ways *ways,
                             uint32_t s) {
  const int64_t gradient = weft_least_gradient(problem, s);
  const struct weft_lone_stage at = {.m = problem->microbatch_count,
                                     .f = problem->stages[s].f,
                                     .i = gradient,
                                     .w = weft_least_weight(problem, s),
                                     .trip = ways->round_trip[s],
                                     .after_forward = after_forward(problem, ways, s),
                                     .closing = after_backward(problem, ways, s) - gradient,
                                     .with_weights = true};
  return opening(problem, ways, s) + weft_bound_lone_stage(&at, problem, s);
}

/* ---- A rank with several stages ---- */

/* More stages of a rank, and memory is taken to be enough. */
enum { ITEMS_MAX = 128 };

/* Of a rank, for the bounds below. */
struct load {
  int64_t head;           /* before its first op */
  int64_t work, frozen;   /* all of it; of stages without backward */
  int64_t forwards;       /* the most before its first backward */
  int64_t left;           /* the most of backwards after the start of its last forward */
  int64_t weights;        /* the most W after the start of its last backward */
  int64_t first_backward; /* its earliest start, after the head */
  int64_t last_forward, last_backward; /* what follows their start, less their own work */
  double held;                         /* all activations together */
};

static void describe_load(const struct weft_problem *problem, const struct ways *ways,
                          uint32_t rank, struct load *load) {
  const int64_t m = problem->microbatch_count, limit = weft_max(0, problem->limit[rank]);
  struct weft_item forwards[ITEMS_MAX], left[2 * ITEMS_MAX], weights[ITEMS_MAX];
  uint32_t count = 0;
  int64_t all_forwards = 0, all_left = 0, all_weights = 0, last_frozen = INT64_MAX;
  *load = (struct load){.head = INT64_MAX,
                        .first_backward = INT64_MAX,
                        .last_forward = INT64_MAX,
                        .last_backward = INT64_MAX};
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    const uint32_t s = problem->stage_of[k];
    const struct weft_problem_stage *stage = &problem->stages[s];
    load->head = weft_min(load->head, opening(problem, ways, s));
    load->work += m * stage->f;
    if (!stage->trains) {
      load->frozen += m * stage->f;
      last_frozen = weft_min(last_frozen, after_forward(problem, ways, s) - stage->f);
      continue;
    }
    const int64_t back = weft_least_backward(problem, stage), w = weft_least_weight(problem, s);
    load->work += m * back;
    load->held += (double)m * (double)stage->held;
    all_forwards += m * stage->f;
    all_left += m * back;
    all_weights += m * w;
    load->last_forward = weft_min(load->last_forward, after_forward(problem, ways, s) - stage->f);
    load->last_backward = weft_min(load->last_backward, after_backward(problem, ways, s) - back);
    load->first_backward = weft_min(
        load->first_backward, spans(problem) ? ways->round_trip[s] - weft_least_gradient(problem, s)
                                             : ways->to_backward[s]);
    if (count < ITEMS_MAX) {
      forwards[count] = (struct weft_item){stage->held, stage->f};
      left[2 * count] = (struct weft_item){stage->held, back};
      left[2 * count + 1] = (struct weft_item){weft_least_after(problem, s), w};
      weights[count] = (struct weft_item){weft_least_after(problem, s), w};
    }
    count++;
  }
  if (count <= ITEMS_MAX) {
    all_forwards = weft_min(all_forwards, weft_most_value(forwards, count, m, limit));
    all_left = weft_min(all_left, weft_most_value(left, 2 * count, m, limit));
    all_weights = weft_min(all_weights, weft_most_value(weights, count, m, limit));
  }
  load->last_forward = count == 0 ? last_frozen : load->last_forward;
  load->forwards = all_forwards + load->frozen;
  load->left = all_left;
  load->weights = all_weights;
}

/* Before its first backward a rank can only run forwards, those that fit together: it is idle for the
 * rest. When its last forward of a stage with a backward starts, what is left of backwards is in the
 * memory; all else but frozen forwards was before. If not all activations fit together, some
 * backward was before that, and so was the idle time. When its last backward starts, only W are left,
 * which are in the memory, too. */
static int64_t through_rank(const struct weft_problem *problem, const struct ways *ways,
                            uint32_t rank) {
  struct load load;
  describe_load(problem, ways, rank, &load);
  if (load.head == INT64_MAX) {
    return 0;
  }
  if (load.first_backward == INT64_MAX) { /* only frozen stages */
    return load.head + load.work + load.last_forward;
  }
  const int64_t head = load.head + weft_max(0, load.first_backward - load.head - load.forwards);
  const bool apart = load.held > (double)problem->limit[rank] * (1 + 1e-9);
  const int64_t done = load.work - load.frozen;
  const int64_t last_forward = (apart ? head : load.head) + done - load.left + load.last_forward;
  const int64_t last_backward = head + done - load.weights + load.last_backward;
  return weft_max(head + load.work, weft_max(last_forward, last_backward));
}

/* ---- Memory over time ---- */

/* Each microbatch occupies memory for a trip at each stage, and for W. The sum over time is at most
 * the limit times the duration. Activations that await a backward are multiples of a size that
 * divides all of them, and so is what they take of the limit. */
static int64_t bound_of_memory(const struct weft_problem *problem, const struct ways *ways,
                               uint32_t rank) {
  double sum = 0, after = 0;
  int64_t divisor = 0;
  const int64_t limit = problem->limit[rank];
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    const uint32_t s = problem->stage_of[k];
    const struct weft_problem_stage *stage = &problem->stages[s];
    if (stage->trains) {
      sum += (double)stage->held * (double)ways->round_trip[s];
      after += (double)weft_least_after(problem, s) * (double)weft_least_weight(problem, s);
      for (int64_t other = stage->held; other != 0;) {
        const int64_t rest = divisor % other;
        divisor = other;
        other = rest;
      }
    }
  }
  const int64_t whole = divisor > 0 ? limit / divisor * divisor : 0;
  if (limit <= 0 || whole <= 0) {
    return 0;
  }
  /* Rounded down, with some to spare for the rounding of doubles. */
  const double least = fmax(sum / (double)whole, (sum + after) / (double)limit);
  const double ticks = least * problem->microbatch_count * (1 - 1e-12);
  return ticks < 0x1p60 ? (int64_t)ticks : INT64_C(1) << 60; /* more than the limit allows */
}

/* ---- First backwards ---- */

static bool has_one_stage(const struct weft_problem *problem, uint32_t rank) {
  return problem->first_of[rank + 1] - problem->first_of[rank] == 1;
}

/* Before its first backward, a rank can only run F. If it may idle for D in all, it must run n of
 * them, so that the first gradient arrives within D after the last; that gradient then waits for the
 * n-th F to end, and reaches the stages before that much later. For a target T, D of a rank is T less
 * its work. The earliest times of the first gradient follow from the last stage to the first: each is
 * the smallest that the later ones allow, and monotone in theirs. If n exceeds the microbatches or the
 * memory, no order reaches T. A larger T leaves more D, so bisection finds the smallest T that is not
 * refuted. Ranks with several stages are taken to wait for nothing else. */
static bool is_refuted(const struct weft_problem *problem, const int64_t *to_forward,
                       int64_t target, int64_t *ends) {
  const struct weft_graph *graph = problem->graph;
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    int64_t starts = stage->f; /* the first backward, after the start of the first F */
    for (uint32_t n = graph->gradient_in.begin[s]; n < graph->gradient_in.begin[s + 1]; n++) {
      const uint32_t e = graph->gradient_in.edges[n];
      starts =
          weft_max(starts, stage->f + weft_problem_hop(problem, 2 * e) + ends[graph->edges[e].to] +
                               weft_problem_hop(problem, 2 * e + 1));
    }
    if (stage->trains && has_one_stage(problem, stage->rank)) {
      const int64_t idle =
          target - (spans(problem) ? 0 : to_forward[s]) -
          problem->microbatch_count * (stage->f + weft_least_backward(problem, stage));
      const int64_t short_of = starts - stage->f - idle;
      const int64_t more = short_of <= 0  ? 0
                           : stage->f > 0 ? (short_of + stage->f - 1) / stage->f
                                          : INT32_MAX;
      if (idle < 0 || 1 + more > weft_problem_most_held(problem, s)) {
        return true;
      }
      starts = weft_max(starts, (1 + more) * stage->f);
    }
    ends[s] = starts + weft_least_gradient(problem, s);
  }
  return false;
}

int64_t weft_bound_first_backwards(const struct weft_problem *problem, const int64_t *to_forward,
                                   int64_t bound, int64_t *scratch) {
  assert(to_forward != NULL && bound >= 0 && scratch != NULL);
  if (!is_refuted(problem, to_forward, bound, scratch)) {
    return bound;
  }
  int64_t low = bound, high = bound; /* low is refuted */
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    high = weft_max(
        high, to_forward[s] + problem->round_trip[s] +
                  problem->microbatch_count * (stage->f + weft_least_backward(problem, stage)));
  }
  if (is_refuted(problem, to_forward, high, scratch)) {
    return bound; /* not even one microbatch fits */
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (is_refuted(problem, to_forward, middle, scratch)) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return high;
}

/* ---- The bound ---- */

static enum weft_status ways_init(struct ways *ways, struct weft_problem *problem,
                                  struct weft_arena *arena, struct weft_error *error) {
  const uint32_t n = problem->stage_count;
  *ways = (struct ways){weft_arena_allocate(arena, n, sizeof(int64_t)),
                        weft_arena_allocate(arena, n, sizeof(int64_t)),
                        weft_arena_allocate(arena, n, sizeof(int64_t)),
                        weft_arena_allocate(arena, n, sizeof(int64_t)),
                        weft_arena_allocate(arena, 2 * (size_t)n, sizeof(int64_t)),
                        weft_arena_allocate(arena, n, sizeof(int64_t))};
  WEFT_TRY(weft_arena_status(arena, error));
  measure(problem, WEFT_EDGE_NONE, ways->to_forward, ways->to_backward);
  measure_ends(problem, ways);
  measure_round_trips(problem, ways);
  memcpy(problem->round_trip, ways->round_trip, n * sizeof *problem->round_trip);
  return WEFT_OK;
}

static int64_t bound_of_stages(const struct weft_problem *problem, const struct ways *ways) {
  int64_t bound = 0;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    bound = weft_max(bound, bound_of_stage(problem, ways, s));
  }
  for (uint32_t e = 0; e < problem->graph->edge_count; e++) {
    bound = weft_max(bound, bound_of_edge(problem, ways, e));
  }
  return bound;
}

enum weft_status weft_problem_bound(struct weft_problem *problem, int64_t *bound,
                                    struct weft_error *error) {
  assert(problem->stage_count > 0);
  if (problem->stages_per_rank > 0) {
    *bound = weft_chain_bound(problem);
    return WEFT_OK;
  }
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct ways ways;
  WEFT_TRY(ways_init(&ways, problem, &arena, error));
  int64_t most = bound_of_stages(problem, &ways);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const uint32_t only = problem->stage_of[problem->first_of[r] % problem->stage_count];
    most = weft_max(most, through_rank(problem, &ways, r));
    most = weft_max(most, bound_of_memory(problem, &ways, r));
    if (has_one_stage(problem, r) && problem->stages[only].trains) {
      most = weft_max(most, through_stage(problem, &ways, only));
    }
  }
  *bound = weft_bound_first_backwards(problem, ways.to_forward, most, ways.start);
  return WEFT_OK;
}

/* Of the k * ranks + 1 stages with the most work, k + 1 are on one rank. */
enum weft_status weft_problem_open_bound(struct weft_problem *problem, uint32_t ranks,
                                         double speeds, int64_t *bound, struct weft_error *error) {
  assert(ranks > 0 && speeds > 0);
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct ways ways;
  const uint32_t n = problem->stage_count;
  int64_t *work = weft_arena_allocate(&arena, n, sizeof *work);
  double sum = 0;
  WEFT_TRY(ways_init(&ways, problem, &arena, error));
  int64_t most = bound_of_stages(problem, &ways);
  for (uint32_t s = 0; s < n; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    work[s] = problem->microbatch_count *
              (stage->f + (stage->trains ? weft_least_backward(problem, stage) : 0));
    sum += (double)work[s];
  }
  qsort(work, n, sizeof *work, weft_by_time);
  for (uint64_t last = 0, k = 0; last < n; last += ranks, k++) {
    int64_t together = 0;
    for (uint64_t j = 0; j <= k; j++) {
      together += work[n - 1 - (last - j)];
    }
    most = weft_max(most, together);
  }
  *bound = weft_max(most, (int64_t)(sum / speeds * (1 - 1e-12)));
  return WEFT_OK;
}
