/* Lower bounds for graphs. Three facts that hold for every order:
 *
 * Way: one microbatch has to pass the longest way through forwards, losses and backwards.
 *
 * Work: a rank cannot begin before the first of its forwards can, has all its work to do, and after
 * its last op what depends on that has to follow.
 *
 * Memory: the activation of a microbatch is held at a stage for at least as long as the longest way
 * from there to the losses and back takes. The sum of size x time over a rank's activations is at
 * most its limit x the time that it holds any. */
#include <assert.h>
#include <string.h>

#include "plan/graph/graph_problem.h"

/* Times in ticks, [stage]. */
struct ways {
  int64_t *to_forward;    /* from the beginning to the start of the first F */
  int64_t *to_backward;   /* to the start of the first backward */
  int64_t *from_backward; /* from the start of a backward to the end of all that follows it */
  int64_t *from_forward;  /* the same of a forward */
  int64_t *round_trip;    /* from the start of F to the end of I or B of the same microbatch */
  int64_t *start;         /* scratch */
};

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t sooner(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t hop(const struct weft_graph_problem *problem, uint32_t channel) {
  return problem->crosses[channel] ? problem->latency + problem->occupancy[channel] : 0;
}

/* The least time until gradients are there, and until all of a backward is done. */
static int64_t least_gradient(const struct weft_graph_problem *problem,
                              const struct weft_graph_stage *stage) {
  return !problem->may_split ? stage->b : problem->may_join ? sooner(stage->i, stage->b) : stage->i;
}

static int64_t least_backward(const struct weft_graph_problem *problem,
                              const struct weft_graph_stage *stage) {
  const int64_t split = stage->i + stage->w;
  return !problem->may_split ? stage->b : problem->may_join ? sooner(split, stage->b) : split;
}

/* The longest ways from the start of F of stage `from`, or from the beginning (WEFT_EDGE_NONE), to
 * the starts of forwards (into `forward`) and backwards (into `backward`); -1: there is none. */
static void measure(const struct weft_graph_problem *problem, uint32_t from, int64_t *forward,
                    int64_t *backward) {
  const struct weft_graph *graph = problem->graph;
  const uint32_t first = from == WEFT_EDGE_NONE ? 0 : from;
  for (uint32_t s = first; s < problem->stage_count; s++) {
    forward[s] = from == WEFT_EDGE_NONE || s == from ? 0 : -1;
    for (uint32_t n = graph->in.begin[s]; n < graph->in.begin[s + 1]; n++) {
      const uint32_t e = graph->in.edges[n], other = graph->edges[e].from;
      if (other >= first && forward[other] >= 0) {
        forward[s] =
            later(forward[s], forward[other] + problem->stages[other].f + hop(problem, 2 * e));
      }
    }
  }
  for (uint32_t s = problem->stage_count; s-- > first;) {
    const struct weft_graph_stage *stage = &problem->stages[s];
    backward[s] = forward[s] >= 0 && stage->trains ? forward[s] + stage->f : -1;
    for (uint32_t n = graph->gradient_in.begin[s]; n < graph->gradient_in.begin[s + 1]; n++) {
      const uint32_t e = graph->gradient_in.edges[n], other = graph->edges[e].to;
      if (backward[other] >= 0) {
        backward[s] =
            later(backward[s], backward[other] + least_gradient(problem, &problem->stages[other]) +
                                   hop(problem, 2 * e + 1));
      }
    }
  }
}

static void measure_ends(const struct weft_graph_problem *problem, struct ways *ways) {
  const struct weft_graph *graph = problem->graph;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_graph_stage *stage = &problem->stages[s];
    ways->from_backward[s] = stage->trains ? least_backward(problem, stage) : 0;
    for (uint32_t n = graph->gradient_out.begin[s]; n < graph->gradient_out.begin[s + 1]; n++) {
      const uint32_t e = graph->gradient_out.edges[n];
      ways->from_backward[s] =
          later(ways->from_backward[s], least_gradient(problem, stage) + hop(problem, 2 * e + 1) +
                                            ways->from_backward[graph->edges[e].from]);
    }
  }
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    const struct weft_graph_stage *stage = &problem->stages[s];
    ways->from_forward[s] = stage->f + ways->from_backward[s];
    for (uint32_t n = graph->out.begin[s]; n < graph->out.begin[s + 1]; n++) {
      const uint32_t e = graph->out.edges[n];
      ways->from_forward[s] =
          later(ways->from_forward[s],
                stage->f + hop(problem, 2 * e) + ways->from_forward[graph->edges[e].to]);
    }
  }
}

/* Takes stages x edges; for the largest graphs what F and backward take must do. */
static void measure_round_trips(const struct weft_graph_problem *problem, struct ways *ways) {
  enum { STEPS_MAX = 1 << 26 };
  const bool small =
      (uint64_t)problem->stage_count * (problem->graph->edge_count + problem->stage_count) <
      STEPS_MAX;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_graph_stage *stage = &problem->stages[s];
    int64_t way = stage->f;
    if (small && stage->trains) {
      measure(problem, s, ways->start, ways->round_trip + problem->stage_count);
      way = ways->round_trip[problem->stage_count + s];
    }
    ways->round_trip[s] = stage->trains ? way + least_gradient(problem, stage) : 0;
  }
}

static int64_t bound_of_work(const struct weft_graph_problem *problem, const struct ways *ways,
                             uint32_t rank) {
  const bool spans = problem->objective == WEFT_OBJECTIVE_SPAN;
  int64_t head = INT64_MAX, tail = INT64_MAX, work = 0;
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    const uint32_t s = problem->stage_of[k];
    const struct weft_graph_stage *stage = &problem->stages[s];
    head = sooner(head, ways->to_forward[s]);
    work += problem->microbatch_count *
            (stage->f + (stage->trains ? least_backward(problem, stage) : 0));
    /* The last op is a W, after which nothing has to follow; or a backward; or, without one, an F. */
    const int64_t follows = !stage->trains       ? ways->from_forward[s] - stage->f
                            : problem->may_split ? 0
                                                 : ways->from_backward[s] - stage->b;
    tail = sooner(tail, follows);
  }
  return head == INT64_MAX ? 0 : spans ? work : head + work + tail;
}

static int64_t bound_of_memory(const struct weft_graph_problem *problem, const struct ways *ways,
                               uint32_t rank) {
  double product = 0;
  for (uint32_t k = problem->first_of[rank]; k < problem->first_of[rank + 1]; k++) {
    const uint32_t s = problem->stage_of[k];
    product += (double)problem->stages[s].held * (double)ways->round_trip[s];
  }
  if (problem->limit[rank] <= 0) {
    return 0;
  }
  /* Rounded down, with some to spare for the rounding of doubles. */
  return (int64_t)(product * problem->microbatch_count / (double)problem->limit[rank] *
                   (1 - 1e-12));
}

static int64_t bound_of_ways(const struct weft_graph_problem *problem, const struct ways *ways) {
  int64_t bound = 0;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const int64_t way = problem->objective == WEFT_OBJECTIVE_SPAN
                            ? ways->round_trip[s]
                            : later(ways->to_forward[s] + ways->from_forward[s],
                                    ways->to_backward[s] + ways->from_backward[s]);
    bound = later(bound, way);
  }
  return bound;
}

enum weft_status weft_graph_bound(struct weft_graph_problem *problem, int64_t *bound,
                                  struct weft_error *error) {
  assert(problem->stage_count > 0);
  const uint32_t n = problem->stage_count;
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct ways ways = {weft_arena_allocate(&arena, n, sizeof(int64_t)),
                      weft_arena_allocate(&arena, n, sizeof(int64_t)),
                      weft_arena_allocate(&arena, n, sizeof(int64_t)),
                      weft_arena_allocate(&arena, n, sizeof(int64_t)),
                      weft_arena_allocate(&arena, 2 * (size_t)n, sizeof(int64_t)),
                      weft_arena_allocate(&arena, n, sizeof(int64_t))};
  WEFT_TRY(weft_arena_status(&arena, error));
  measure(problem, WEFT_EDGE_NONE, ways.to_forward, ways.to_backward);
  measure_ends(problem, &ways);
  measure_round_trips(problem, &ways);
  *bound = bound_of_ways(problem, &ways);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    *bound = later(*bound, bound_of_work(problem, &ways, r));
    *bound = later(*bound, bound_of_memory(problem, &ways, r));
  }
  return WEFT_OK;
}
