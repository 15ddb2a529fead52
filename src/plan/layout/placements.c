/* Placements: in rounds (loop, V), in blocks of an order of the stages with the least work on the rank
 * with the most, and balanced by work alone. Blocks of stages by their numbers cut few edges of a
 * chain with skip connections; blocks of branches, one after the other, let encoders run at the same
 * time; folded blocks bring both ends of a U together. */
#include "plan/layout/layout.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What an order of the stages is cut into. */
struct cutting {
  const struct weft_search_request *request;
  const double *factors; /* [rank] that loads are multiplied by, or NULL */
  const uint32_t *order; /* [n] stages */
  double *sums;          /* [n + 1] weight of the stages before */
  double *bytes;         /* [n] of the edges that the cut before a stage goes through */
  double *best;          /* [n + 1] */
  uint32_t *from;        /* [pieces * (n + 1)] */
  uint32_t pieces;       /* of 2 * ranks, the later half goes back */
};

static double work_of(const struct weft_search_request *request, uint32_t stage) {
  const struct weft_stage_costs *costs = weft_costs_of(request->costs, stage);
  return !weft_graph_has_backward(request->graph, stage) ? costs->f
         : request->whole_backward                       ? costs->f + costs->b
                                   : costs->f + fmin(costs->b, costs->i + costs->w);
}

/* What a stage keeps, and one activation. */
static double size_of(const struct weft_search_request *request, uint32_t stage) {
  const struct weft_stage_costs *costs = weft_costs_of(request->costs, stage);
  return costs->parameters + fmax(costs->gradients, costs->gradients_sharded) + costs->activation;
}

static double weight_of(const struct weft_search_request *request, uint32_t stage, bool by_memory) {
  return by_memory ? size_of(request, stage) : work_of(request, stage);
}

static uint32_t rank_at(const struct cutting *cutting, uint32_t piece) {
  const uint32_t p = cutting->request->ranks;
  return piece < p ? piece : 2 * p - 1 - piece;
}

static double factor_at(const struct cutting *cutting, uint32_t piece) {
  return cutting->factors != NULL ? cutting->factors[rank_at(cutting, piece)] : 1;
}

/* The pieces with the smallest largest load by bisection: piece after piece takes what it can. */
static double least_load(const struct cutting *cutting) {
  const uint32_t n = cutting->request->graph->stage_count;
  double low = 0, high = 0;
  for (uint32_t k = 0; k < cutting->pieces; k++) {
    high = fmax(high, factor_at(cutting, k) * cutting->sums[n]);
  }
  for (unsigned step = 0; step < 60; step++) {
    const double load = (low + high) / 2;
    uint32_t at = 0;
    for (uint32_t k = 0; k < cutting->pieces; k++) {
      const double room = cutting->sums[at] + load / factor_at(cutting, k);
      while (at < n && cutting->sums[at + 1] <= room) {
        at++;
      }
    }
    if (at == n) {
      high = load;
    } else {
      low = load;
    }
  }
  return high;
}

/* Within a load: the pieces with the least sum of squares, plus the bytes of their cuts. Takes pieces
 * x stages x stages of a piece. */
static void cut(const struct cutting *cutting, double load, double byte_cost, uint32_t *rank_of) {
  const uint32_t n = cutting->request->graph->stage_count, pieces = cutting->pieces;
  double *best = cutting->best, *next = cutting->best + n + 1;
  for (uint32_t k = 0; k <= n; k++) {
    best[k] = k == 0 ? 0 : INFINITY;
  }
  for (uint32_t k = 0; k < pieces; k++) {
    const double factor = factor_at(cutting, k);
    uint32_t *from = &cutting->from[(size_t)k * (n + 1)];
    for (uint32_t end = 0; end <= n; end++) {
      next[end] = best[end];
      from[end] = end;
      for (uint32_t begin = end; begin-- > 0;) {
        const double own = (cutting->sums[end] - cutting->sums[begin]) * factor;
        if (own > load * (1 + 1e-9)) {
          break;
        }
        const double value = best[begin] + own * own / (load * load) +
                             (begin > 0 ? cutting->bytes[begin] : 0) * byte_cost;
        if (value < next[end]) {
          next[end] = value;
          from[end] = begin;
        }
      }
    }
    memcpy(best, next, (n + (size_t)1) * sizeof *best);
  }
  for (uint32_t k = pieces, end = n; k-- > 0;) {
    const uint32_t begin = cutting->from[(size_t)k * (n + 1) + end];
    for (; end > begin; end--) {
      rank_of[cutting->order[end - 1]] = rank_at(cutting, k);
    }
  }
}

static void measure(struct cutting *cutting, bool by_memory, uint32_t *at) {
  const struct weft_graph *graph = cutting->request->graph;
  const uint32_t n = graph->stage_count;
  memset(cutting->bytes, 0, n * sizeof *cutting->bytes);
  for (uint32_t k = 0; k < n; k++) {
    cutting->sums[k + 1] =
        cutting->sums[k] + weight_of(cutting->request, cutting->order[k], by_memory);
    at[cutting->order[k]] = k;
  }
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    const struct weft_edge *edge = &graph->edges[e];
    const double bytes = edge->bytes >= 0 ? edge->bytes : cutting->request->costs->hop.bytes;
    for (uint32_t k = at[edge->from] + 1; k <= at[edge->to]; k++) {
      cutting->bytes[k] += bytes;
    }
  }
}

/* Steps of cut(), some tenths of a second. */
#define STEPS_MAX 2e8

/* At most so many: for each piece and end, the stages that the fastest rank takes before it. */
static double step_count(const struct cutting *cutting, double load) {
  const uint32_t n = cutting->request->graph->stage_count;
  double factor = INFINITY, stages = 0;
  for (uint32_t k = 0; k < cutting->pieces; k++) {
    factor = fmin(factor, factor_at(cutting, k));
  }
  for (uint32_t end = 0, begin = 0; end <= n; end++) {
    while ((cutting->sums[end] - cutting->sums[begin]) * factor > load * (1 + 1e-9)) {
      begin++;
    }
    stages += end - begin + 1.0;
  }
  return stages * cutting->pieces;
}

/* How to cut. */
struct blocks {
  const char *name;
  const uint32_t *order; /* of the stages */
  uint32_t pieces;
  bool by_memory; /* balance what ranks hold, not their work */
  double slack;   /* so much more than the least load, for fewer bytes between blocks */
};

static enum weft_status place_blocks(const struct weft_search_request *request,
                                     const struct blocks *blocks, struct weft_arena *arena,
                                     uint32_t *rank_of, struct weft_error *error) {
  const uint32_t n = request->graph->stage_count, pieces = blocks->pieces;
  struct cutting cutting = {.request = request,
                            .factors = blocks->by_memory ? NULL : request->rank_factors,
                            .order = blocks->order,
                            .pieces = pieces};
  cutting.sums = weft_arena_allocate(arena, n + (size_t)1, sizeof(double));
  cutting.bytes = weft_arena_allocate(arena, n, sizeof(double));
  cutting.best = weft_arena_allocate(arena, n + (size_t)1, 2 * sizeof(double));
  cutting.from = weft_arena_allocate(arena, pieces * (n + (size_t)1), sizeof(uint32_t));
  uint32_t *at = weft_arena_allocate(arena, n, sizeof *at);
  WEFT_TRY(weft_arena_status(arena, error));
  measure(&cutting, blocks->by_memory, at);
  const double load = fmax(least_load(&cutting), 1e-300) * (1 + blocks->slack);
  if (step_count(&cutting, load) > STEPS_MAX) { /* without looking at what is cut */
    for (uint32_t k = 0; k < n; k++) {
      const double all = cutting.sums[n];
      const double share = all > 0 ? cutting.sums[k + 1] / all : (k + 1.0) / n;
      const double piece = fmin(pieces - 1, fmax(0, ceil(share * pieces) - 1));
      rank_of[blocks->order[k]] = rank_at(&cutting, (uint32_t)piece);
    }
    return WEFT_OK;
  }
  double bytes = 0;
  for (uint32_t k = 0; k < n; k++) {
    bytes = fmax(bytes, cutting.bytes[k]);
  }
  /* With slack, a byte counts for more than all squares. */
  const double byte_cost = blocks->slack > 0 && bytes > 0 ? n / bytes : 0;
  cut(&cutting, load, byte_cost, rank_of);
  return WEFT_OK;
}

/* ---- Orders of the stages ---- */

/* The branches of the graph one after the other: each loss, after all that it needs and that no other
 * one needed before, the longest way first. */
static enum weft_status order_branches(const struct weft_search_request *request,
                                       struct weft_arena *arena, uint32_t *order,
                                       struct weft_error *error) {
  const struct weft_graph *graph = request->graph;
  const uint32_t n = graph->stage_count;
  uint32_t *stack = weft_arena_allocate(arena, n + (size_t)graph->edge_count, sizeof *stack);
  uint8_t *state = weft_arena_allocate(arena, n, sizeof *state); /* 1: begun, 2: listed */
  uint32_t listed = 0;
  WEFT_TRY(weft_arena_status(arena, error));
  for (uint32_t last = 0; last < n; last++) {
    uint32_t depth = 0;
    if (graph->out.begin[last] < graph->out.begin[last + 1]) {
      continue;
    }
    stack[depth++] = last;
    while (depth > 0) {
      const uint32_t s = stack[depth - 1];
      if (state[s] != 0) {
        depth--;
        if (state[s] == 1) {
          order[listed++] = s;
          state[s] = 2;
        }
        continue;
      }
      state[s] = 1;
      for (uint32_t k = graph->in.begin[s]; k < graph->in.begin[s + 1]; k++) {
        const uint32_t from = graph->edges[graph->in.edges[k]].from;
        if (state[from] == 0) {
          stack[depth++] = from; /* the nearest stage is looked at first */
        }
      }
    }
  }
  assert(listed == n);
  return WEFT_OK;
}

/* The heaviest stage first, each where it ends first. */
static void place_balanced(const struct weft_search_request *request, double *load, bool *placed,
                           uint32_t *rank_of) {
  const uint32_t n = request->graph->stage_count;
  for (uint32_t k = 0; k < n; k++) {
    uint32_t heaviest = n, best = 0;
    for (uint32_t s = 0; s < n; s++) {
      if (!placed[s] && (heaviest == n || work_of(request, s) > work_of(request, heaviest))) {
        heaviest = s;
      }
    }
    double least = INFINITY;
    for (uint32_t r = 0; r < request->ranks; r++) {
      const double factor = request->rank_factors != NULL ? request->rank_factors[r] : 1;
      const double own = load[r] + work_of(request, heaviest) * factor;
      if (own < least) {
        least = own;
        best = r;
      }
    }
    placed[heaviest] = true;
    rank_of[heaviest] = best;
    load[best] = least;
  }
}

/* ---- The list ---- */

/* Where the list goes; rank_of is scratch for [stage]. */
struct placing {
  struct weft_plan_layouts *layouts;
  const struct weft_search_request *request;
  struct weft_arena *arena;
  uint32_t *rank_of;
};

static enum weft_status add_scratch(struct placing *placing, const char *name,
                                    enum weft_placement_kind kind, struct weft_error *error) {
  return weft_plan_layouts_add_placement(placing->layouts, placing->request, placing->rank_of, name,
                                         kind, error);
}

static enum weft_status add_shape(struct placing *placing, enum weft_placement_kind kind,
                                  struct weft_error *error) {
  const struct weft_shape shape = {.ranks = placing->request->ranks, .placement = kind};
  for (uint32_t s = 0; s < placing->request->graph->stage_count; s++) {
    placing->rank_of[s] = weft_shape_rank_of(&shape, s);
  }
  return add_scratch(placing, weft_placement_name(kind), kind, error);
}

/* Stages that place_balanced() sorts in the simplest way. */
enum { BALANCED_MAX = 4096 };

static enum weft_status add_open(struct placing *placing, struct weft_error *error) {
  const struct weft_search_request *request = placing->request;
  const uint32_t n = request->graph->stage_count, p = request->ranks;
  uint32_t *numbers = weft_arena_allocate(placing->arena, n, sizeof *numbers);
  uint32_t *branches = weft_arena_allocate(placing->arena, n, sizeof *branches);
  double *load = weft_arena_allocate(placing->arena, p, sizeof *load);
  bool *placed = weft_arena_allocate(placing->arena, n, sizeof *placed);
  WEFT_TRY(weft_arena_status(placing->arena, error));
  for (uint32_t s = 0; s < n; s++) {
    numbers[s] = s;
  }
  WEFT_TRY(order_branches(request, placing->arena, branches, error));
  const struct blocks ways[] = {
      {.name = "blocks", .order = numbers, .pieces = p},
      {.name = "blocks of branches", .order = branches, .pieces = p},
      {.name = "blocks with few bytes between", .order = branches, .pieces = p, .slack = 0.1},
      {.name = "folded blocks", .order = numbers, .pieces = 2 * p},
      {.name = "blocks by memory", .order = branches, .pieces = p, .by_memory = true}};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(ways); k++) {
    const bool makes_sense = ways[k].pieces == p || n >= ways[k].pieces;
    if (makes_sense && (!ways[k].by_memory || isfinite(request->memory_limit))) {
      WEFT_TRY(place_blocks(request, &ways[k], placing->arena, placing->rank_of, error));
      WEFT_TRY(add_scratch(placing, ways[k].name, WEFT_PLACEMENT_INFERRED, error));
    }
  }
  if (n <= BALANCED_MAX) {
    place_balanced(request, load, placed, placing->rank_of);
    WEFT_TRY(add_scratch(placing, "balanced", WEFT_PLACEMENT_INFERRED, error));
  }
  return WEFT_OK;
}

static enum weft_status add_all(struct placing *placing, struct weft_error *error) {
  const struct weft_search_request *request = placing->request;
  const uint32_t n = request->graph->stage_count, p = request->ranks;
  const bool is_even = n % p == 0, any = request->any_placement;
  placing->rank_of = weft_arena_allocate(placing->arena, n, sizeof *placing->rank_of);
  WEFT_TRY(weft_arena_status(placing->arena, error));
  if (request->rank_of != NULL) {
    memcpy(placing->rank_of, request->rank_of, n * sizeof *placing->rank_of);
    return add_scratch(placing, "as given", WEFT_PLACEMENT_INFERRED, error);
  }
  if (!any && !is_even) {
    return weft_fail(error, WEFT_ERR_USAGE, "leave the placement open, or place every stage",
                     "%" PRIu32 " stages on %" PRIu32 " ranks make no %s", n, p,
                     weft_placement_name(request->placement));
  }
  if (is_even && (any || request->placement == WEFT_PLACEMENT_LOOP)) {
    WEFT_TRY(add_shape(placing, WEFT_PLACEMENT_LOOP, error));
  }
  if (is_even && (any || request->placement == WEFT_PLACEMENT_V)) {
    WEFT_TRY(add_shape(placing, WEFT_PLACEMENT_V, error));
  }
  /* With one stage on each rank all placements are the same, unless ranks differ. */
  return any && (n != p || request->rank_factors != NULL) ? add_open(placing, error) : WEFT_OK;
}

enum weft_status weft_plan_placements(struct weft_plan_layouts *layouts,
                                      const struct weft_search_request *request,
                                      struct weft_error *error) {
  assert(request->graph != NULL && request->ranks > 0 && layouts->list != NULL);
  WEFT_SCOPED_ARENA arena = {.allocator = layouts->allocator};
  return add_all(&(struct placing){.layouts = layouts, .request = request, .arena = &arena}, error);
}
