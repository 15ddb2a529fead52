/* Incremental evaluation of an order of a graph problem. */
#include "plan/graph/graph_evaluator.h"

#include <assert.h>
#include <string.h>

#define NONE UINT32_MAX

/* Times that one move may change. */
enum { LOG_MAX = 1 << 20 };

enum weft_status weft_graph_evaluator_init(struct weft_graph_evaluator *evaluator,
                                           const struct weft_graph_problem *problem,
                                           struct weft_error *error) {
  assert(evaluator != NULL && problem != NULL);
  const size_t ops = weft_graph_op_count(problem), p = problem->rank_count;
  const size_t m = problem->microbatch_count, n = problem->stage_count;
  const size_t arrivals = 2 * (size_t)problem->graph->edge_count * m;
  *evaluator =
      (struct weft_graph_evaluator){.problem = problem, .arena = {.allocator = problem->allocator}};
  struct weft_arena *arena = &evaluator->arena;
  evaluator->log_room = 4 * (ops + arrivals) < LOG_MAX ? 4 * (ops + arrivals) : LOG_MAX;
  evaluator->order.ops = weft_arena_allocate(arena, ops, sizeof(uint32_t));
  evaluator->order.whole = weft_arena_allocate(arena, n * m, 1);
  evaluator->index = weft_arena_allocate(arena, ops, sizeof(uint32_t));
  evaluator->position = weft_arena_allocate(arena, n * WEFT_GRAPH_KINDS * m, sizeof(uint32_t));
  evaluator->end = weft_arena_allocate(arena, ops, sizeof(int64_t));
  evaluator->tail = weft_arena_allocate(arena, ops, sizeof(int64_t));
  evaluator->held = weft_arena_allocate(arena, ops, sizeof(int64_t));
  evaluator->arrival = weft_arena_allocate(arena, arrivals, sizeof(int64_t));
  evaluator->pending = weft_arena_allocate(arena, p, sizeof(uint32_t));
  evaluator->last = weft_arena_allocate(arena, p, sizeof(uint32_t));
  evaluator->waiting = weft_arena_allocate(arena, p, sizeof(uint32_t));
  evaluator->log = weft_arena_allocate(arena, evaluator->log_room, sizeof *evaluator->log);
  enum weft_status status = weft_graph_clock_init(&evaluator->clock, problem, arena, error);
  if (status == WEFT_OK) {
    status = weft_arena_status(arena, error);
  }
  if (status < 0) {
    weft_graph_evaluator_finish(evaluator);
    return status;
  }
  memset(evaluator->pending, 0xff, p * sizeof *evaluator->pending);
  return WEFT_OK;
}

void weft_graph_evaluator_finish(struct weft_graph_evaluator *evaluator) {
  weft_arena_finish(&evaluator->arena);
}

/* ---- Ops ---- */

static uint32_t rank_of(const struct weft_graph_evaluator *evaluator, uint32_t op) {
  return evaluator->problem->stages[op / WEFT_GRAPH_KINDS].rank;
}

static size_t key_of(const struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t k) {
  return (size_t)op * evaluator->problem->microbatch_count + k;
}

static bool is_whole(const struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t k) {
  return evaluator->order.whole[key_of(evaluator, op / WEFT_GRAPH_KINDS, k)] != 0;
}

static int64_t time_of(const struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t k) {
  return weft_graph_duration(&evaluator->problem->stages[op / WEFT_GRAPH_KINDS],
                             (enum weft_graph_kind)(op % WEFT_GRAPH_KINDS),
                             is_whole(evaluator, op, k));
}

/* The edges over which an op gets its inputs, and sends its outputs; NULL: none. */
static const struct weft_edge_list *inputs_of(const struct weft_graph_evaluator *evaluator,
                                              uint32_t op) {
  const struct weft_graph *graph = evaluator->problem->graph;
  switch (op % WEFT_GRAPH_KINDS) {
    case WEFT_GRAPH_F: return &graph->in;
    case WEFT_GRAPH_D: return &graph->gradient_in;
    default: return NULL;
  }
}

static const struct weft_edge_list *outputs_of(const struct weft_graph_evaluator *evaluator,
                                               uint32_t op) {
  const struct weft_graph *graph = evaluator->problem->graph;
  switch (op % WEFT_GRAPH_KINDS) {
    case WEFT_GRAPH_F: return &graph->out;
    case WEFT_GRAPH_D: return &graph->gradient_out;
    default: return NULL;
  }
}

/* The op of the same kind at the other end of an edge. */
static uint32_t other_end(const struct weft_graph_evaluator *evaluator, uint32_t op,
                          uint32_t edge) {
  const struct weft_edge *at = &evaluator->problem->graph->edges[edge];
  const uint32_t s = op / WEFT_GRAPH_KINDS, kind = op % WEFT_GRAPH_KINDS;
  return (uint32_t)(at->from == s ? at->to : at->from) * WEFT_GRAPH_KINDS + kind;
}

static int64_t start_of(const struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t k,
                        int64_t now) {
  const struct weft_edge_list *list = inputs_of(evaluator, op);
  const uint32_t s = op / WEFT_GRAPH_KINDS, gradient = op % WEFT_GRAPH_KINDS;
  for (uint32_t n = list != NULL ? list->begin[s] : 0; list != NULL && n < list->begin[s + 1];
       n++) {
    const int64_t arrives = evaluator->arrival[key_of(evaluator, 2 * list->edges[n] + gradient, k)];
    now = arrives > now ? arrives : now;
  }
  return now;
}

/* ---- Pending updates ---- */

static void mark(struct weft_graph_evaluator *evaluator, uint32_t rank, uint32_t from) {
  if (evaluator->pending[rank] == NONE) {
    evaluator->waiting[evaluator->waiting_count++] = rank;
    evaluator->pending[rank] = evaluator->last[rank] = from;
  } else if (from < evaluator->pending[rank]) {
    evaluator->pending[rank] = from;
  } else if (from > evaluator->last[rank]) {
    evaluator->last[rank] = from;
  }
}

/* Takes the rank whose pending op is earliest: then hardly anything is computed twice. */
static uint32_t take_earliest(struct weft_graph_evaluator *evaluator, uint32_t *from) {
  uint32_t best = 0;
  int64_t when = INT64_MAX;
  for (uint32_t k = 0; k < evaluator->waiting_count; k++) {
    const int64_t end = evaluator->end[evaluator->pending[evaluator->waiting[k]]];
    if (end < when) {
      when = end;
      best = k;
    }
  }
  const uint32_t rank = evaluator->waiting[best];
  evaluator->waiting[best] = evaluator->waiting[--evaluator->waiting_count];
  *from = evaluator->pending[rank];
  evaluator->pending[rank] = NONE;
  return rank;
}

static void drop_pending(struct weft_graph_evaluator *evaluator) {
  while (evaluator->waiting_count > 0) {
    evaluator->pending[evaluator->waiting[--evaluator->waiting_count]] = NONE;
  }
}

/* ---- Times ---- */

/* False when the log is full, which only a deadlock can cause. */
static bool set(struct weft_graph_evaluator *evaluator, int64_t *at, int64_t value) {
  if (*at == value) {
    return true;
  }
  if (evaluator->log_size == evaluator->log_room) {
    return false;
  }
  evaluator->log[evaluator->log_size++] = (struct weft_graph_change){.at = at, .before = *at};
  *at = value;
  return true;
}

/* A message arrives at another time, and so may later ones on the channel. */
static bool deliver_over(struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t edge,
                         uint32_t k, int64_t end) {
  const struct weft_graph_problem *problem = evaluator->problem;
  const uint32_t channel = 2 * edge + op % WEFT_GRAPH_KINDS;
  const uint32_t to = other_end(evaluator, op, edge);
  const bool crosses = problem->crosses[channel];
  const int64_t occupancy = crosses ? problem->occupancy[channel] : 0;
  const int64_t latency = crosses ? problem->latency : 0;
  int64_t *row = &evaluator->arrival[key_of(evaluator, channel, 0)];
  for (;;) {
    int64_t leaves = end;
    if (occupancy > 0 && k > 0 && row[k - 1] - latency > leaves) {
      leaves = row[k - 1] - latency;
    }
    const int64_t arrives = leaves + occupancy + latency;
    if (arrives == row[k]) {
      return true;
    }
    if (!set(evaluator, &row[k], arrives)) {
      return false;
    }
    mark(evaluator, rank_of(evaluator, to), evaluator->position[key_of(evaluator, to, k)]);
    if (occupancy == 0 || ++k == problem->microbatch_count) {
      return true;
    }
    end = evaluator->end[evaluator->position[key_of(evaluator, op, k)]];
  }
}

static bool deliver(struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t k, int64_t end) {
  const struct weft_edge_list *list = outputs_of(evaluator, op);
  const uint32_t s = op / WEFT_GRAPH_KINDS;
  for (uint32_t n = list != NULL ? list->begin[s] : 0; list != NULL && n < list->begin[s + 1];
       n++) {
    if (!deliver_over(evaluator, op, list->edges[n], k, end)) {
      return false;
    }
  }
  return true;
}

/* Recomputes a rank's ops from one on, at least to `last`, until they do not change. False when the
 * objective is certain, or by the tails very likely, to exceed the cutoff. */
static bool advance(struct weft_graph_evaluator *evaluator, uint32_t rank, uint32_t from,
                    uint32_t last, bool is_new, int64_t cutoff) {
  const struct weft_graph_problem *problem = evaluator->problem;
  int64_t now = from == problem->begin[rank] ? 0 : evaluator->end[from - 1];
  for (uint32_t n = from; n < problem->begin[rank + 1]; n++) {
    const uint32_t op = evaluator->order.ops[n], k = evaluator->index[n];
    now = start_of(evaluator, op, k, now) + time_of(evaluator, op, k);
    evaluator->computed++;
    if (now == evaluator->end[n] && !(is_new && n <= last)) {
      if (n >= last) {
        return true;
      }
      continue;
    }
    const bool is_late = !(is_new && n <= last) && now + evaluator->tail[n] > cutoff;
    if (is_late || !set(evaluator, &evaluator->end[n], now) || !deliver(evaluator, op, k, now)) {
      return false;
    }
  }
  return true;
}

static bool settle(struct weft_graph_evaluator *evaluator, int64_t cutoff) {
  while (evaluator->waiting_count > 0) {
    uint32_t from;
    const uint32_t rank = take_earliest(evaluator, &from);
    if (!advance(evaluator, rank, from, evaluator->last[rank], false, cutoff)) {
      drop_pending(evaluator);
      return false;
    }
  }
  return true;
}

static int64_t first_start(const struct weft_graph_evaluator *evaluator, uint32_t rank) {
  const uint32_t n = evaluator->problem->begin[rank];
  return evaluator->end[n] - time_of(evaluator, evaluator->order.ops[n], evaluator->index[n]);
}

static void summarise(struct weft_graph_evaluator *evaluator) {
  const struct weft_graph_problem *problem = evaluator->problem;
  int64_t from = INT64_MAX, to = 0, span = 0, sum = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (problem->begin[r] < problem->begin[r + 1]) {
      const int64_t begin = first_start(evaluator, r);
      const int64_t end = evaluator->end[problem->begin[r + 1] - 1];
      from = begin < from ? begin : from;
      to = end > to ? end : to;
      span = end - begin > span ? end - begin : span;
      sum += end - begin;
    }
  }
  evaluator->span_sum = sum;
  evaluator->value = problem->objective == WEFT_OBJECTIVE_SPAN ? span : to - from;
}

/* ---- Memory ---- */

/* Goes on to the memory after an op; its peak is the result. */
static int64_t hold(const struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t k,
                    int64_t *held) {
  return weft_graph_step_memory(&evaluator->problem->stages[op / WEFT_GRAPH_KINDS],
                                (enum weft_graph_kind)(op % WEFT_GRAPH_KINDS), k,
                                is_whole(evaluator, op, k), held);
}

/* Recomputes the memory before the ops after `from` up to `to`; false where it exceeds the limit. */
static bool hold_again(struct weft_graph_evaluator *evaluator, uint32_t from, uint32_t to) {
  const struct weft_graph_problem *problem = evaluator->problem;
  const uint32_t rank = rank_of(evaluator, evaluator->order.ops[from]);
  int64_t held = evaluator->held[from];
  bool fits = true;
  for (uint32_t n = from; n <= to; n++) {
    evaluator->held[n] = held;
    fits = hold(evaluator, evaluator->order.ops[n], evaluator->index[n], &held) <=
               problem->limit[rank] &&
           fits;
  }
  return fits;
}

/* ---- A new order ---- */

static void number_ops(struct weft_graph_evaluator *evaluator, uint32_t rank) {
  const struct weft_graph_problem *problem = evaluator->problem;
  int64_t now = 0, held = 0;
  for (uint32_t n = problem->begin[rank]; n < problem->begin[rank + 1]; n++) {
    const uint32_t op = evaluator->order.ops[n], k = evaluator->clock.done[op]++;
    evaluator->index[n] = k;
    evaluator->position[key_of(evaluator, op, k)] = n;
    evaluator->held[n] = held;
    (void)hold(evaluator, op, k, &held);
    now = start_of(evaluator, op, k, now) + time_of(evaluator, op, k);
    evaluator->end[n] = now;
  }
}

bool weft_graph_evaluator_set(struct weft_graph_evaluator *evaluator,
                              const struct weft_graph_order *order) {
  const struct weft_graph_problem *problem = evaluator->problem;
  const size_t m = problem->microbatch_count, n = problem->stage_count;
  const int64_t value = weft_graph_evaluate(problem, &evaluator->clock, order);
  if (value == WEFT_GRAPH_NEVER) {
    return false;
  }
  memcpy(evaluator->order.ops, order->ops, weft_graph_op_count(problem) * sizeof *order->ops);
  memcpy(evaluator->order.whole, order->whole, n * m);
  memcpy(evaluator->arrival, evaluator->clock.arrivals,
         2 * (size_t)problem->graph->edge_count * m * sizeof *evaluator->arrival);
  memset(evaluator->clock.done, 0, n * WEFT_GRAPH_KINDS * sizeof *evaluator->clock.done);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    number_ops(evaluator, r);
  }
  summarise(evaluator);
  assert(evaluator->value == value);
  return weft_graph_evaluator_refresh(evaluator);
}

/* ---- Tails ---- */

/* The longest path after an op, through those who get its output over an edge. */
static int64_t tail_over(const struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t edge,
                         uint32_t k) {
  const struct weft_graph_problem *problem = evaluator->problem;
  const uint32_t channel = 2 * edge + op % WEFT_GRAPH_KINDS;
  const uint32_t to = other_end(evaluator, op, edge);
  return (problem->crosses[channel] ? problem->latency + problem->occupancy[channel] : 0) +
         time_of(evaluator, to, k) + evaluator->tail[evaluator->position[key_of(evaluator, to, k)]];
}

/* Whether the tails of all that get the output of an op are known; the longest path into *tail. */
static bool follow(const struct weft_graph_evaluator *evaluator, uint32_t op, uint32_t k,
                   int64_t *tail) {
  const struct weft_edge_list *list = outputs_of(evaluator, op);
  const uint32_t s = op / WEFT_GRAPH_KINDS, rank = rank_of(evaluator, op);
  for (uint32_t n = list != NULL ? list->begin[s] : 0; list != NULL && n < list->begin[s + 1];
       n++) {
    const uint32_t to = other_end(evaluator, op, list->edges[n]), where = rank_of(evaluator, to);
    if (where != rank &&
        evaluator->position[key_of(evaluator, to, k)] < evaluator->pending[where]) {
      return false;
    }
    const int64_t own = tail_over(evaluator, op, list->edges[n], k);
    *tail = own > *tail ? own : *tail;
  }
  return true;
}

/* Of the ops after position n of a rank. */
static int64_t tail_behind(const struct weft_graph_evaluator *evaluator, uint32_t rank,
                           uint32_t n) {
  if (n + 1 == evaluator->problem->begin[rank + 1]) {
    return evaluator->problem->objective == WEFT_OBJECTIVE_SPAN ? -first_start(evaluator, rank) : 0;
  }
  return time_of(evaluator, evaluator->order.ops[n + 1], evaluator->index[n + 1]) +
         evaluator->tail[n + 1];
}

/* From the end of each rank as far as tails are known, in turn; pending[rank] is behind what is
 * left. */
bool weft_graph_evaluator_refresh(struct weft_graph_evaluator *evaluator) {
  assert(evaluator->waiting_count == 0);
  const struct weft_graph_problem *problem = evaluator->problem;
  bool moves = true, complete = false;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    evaluator->pending[r] = problem->begin[r + 1];
  }
  while (moves && !complete) {
    moves = false;
    complete = true;
    for (uint32_t k = 0; k < 2 * problem->rank_count; k++) {
      const uint32_t r =
          k < problem->rank_count ? problem->rank_count - 1 - k : k - problem->rank_count;
      uint32_t n = evaluator->pending[r];
      for (; n > problem->begin[r]; n--) {
        int64_t tail = tail_behind(evaluator, r, n - 1);
        if (!follow(evaluator, evaluator->order.ops[n - 1], evaluator->index[n - 1], &tail)) {
          break;
        }
        evaluator->tail[n - 1] = tail;
      }
      moves = moves || n < evaluator->pending[r];
      evaluator->pending[r] = n;
    }
    for (uint32_t r = 0; r < problem->rank_count && complete; r++) {
      complete = evaluator->pending[r] == problem->begin[r];
    }
  }
  memset(evaluator->pending, 0xff, problem->rank_count * sizeof *evaluator->pending);
  evaluator->computed += weft_graph_op_count(problem);
  return complete;
}

/* ---- Moves ---- */

/* Whether one op of a rank must stay before or behind another one. */
static bool are_bound(const struct weft_graph_evaluator *evaluator, uint32_t a, uint32_t k,
                      uint32_t b, uint32_t other) {
  const uint32_t s = a / WEFT_GRAPH_KINDS, t = b / WEFT_GRAPH_KINDS;
  const uint32_t kind = a % WEFT_GRAPH_KINDS;
  if (s == t) {
    return a == b || k == other;
  }
  return k == other && kind == b % WEFT_GRAPH_KINDS && kind != WEFT_GRAPH_W &&
         weft_graph_find(evaluator->problem->graph, s < t ? s : t, s < t ? t : s) != WEFT_EDGE_NONE;
}

static void write(struct weft_graph_evaluator *evaluator, uint32_t at, uint32_t op, uint32_t k,
                  int64_t tail) {
  evaluator->order.ops[at] = op;
  evaluator->index[at] = k;
  evaluator->tail[at] = tail;
  evaluator->position[key_of(evaluator, op, k)] = at;
}

static void shift(struct weft_graph_evaluator *evaluator, uint32_t from, uint32_t to) {
  const uint32_t op = evaluator->order.ops[from], k = evaluator->index[from];
  const int64_t tail = evaluator->tail[from];
  for (uint32_t n = from; n != to;) {
    const uint32_t next = from < to ? n + 1 : n - 1;
    write(evaluator, n, evaluator->order.ops[next], evaluator->index[next], evaluator->tail[next]);
    n = next;
  }
  write(evaluator, to, op, k, tail);
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Whether the move respects the order of ops and the memory. */
static bool is_allowed(const struct weft_graph_evaluator *evaluator,
                       const struct weft_graph_move *move) {
  const uint32_t from = move->from, to = move->to, low = least(from, to), high = most(from, to);
  const uint32_t op = evaluator->order.ops[from], k = evaluator->index[from];
  const int64_t limit = evaluator->problem->limit[rank_of(evaluator, op)];
  for (uint32_t n = low; n <= high; n++) {
    if (n != from && are_bound(evaluator, op, k, evaluator->order.ops[n], evaluator->index[n])) {
      return false;
    }
  }
  int64_t held = evaluator->held[low];
  if (to < from && hold(evaluator, op, k, &held) > limit) {
    return false;
  }
  for (uint32_t n = low; n <= high; n++) {
    if (n != from && hold(evaluator, evaluator->order.ops[n], evaluator->index[n], &held) > limit) {
      return false;
    }
  }
  return to < from || hold(evaluator, op, k, &held) <= limit;
}

/* Whether the tails allow the new order of the ops between both ends to stay within the cutoff. */
static bool is_promising(struct weft_graph_evaluator *evaluator, const struct weft_graph_move *move,
                         int64_t cutoff) {
  const uint32_t from = move->from, to = move->to, low = least(from, to), high = most(from, to);
  const uint32_t rank = rank_of(evaluator, evaluator->order.ops[from]);
  int64_t now = low == evaluator->problem->begin[rank] ? 0 : evaluator->end[low - 1];
  for (uint32_t k = low; k <= high; k++) {
    const uint32_t n = k == to               ? from
                       : k >= from && k < to ? k + 1
                       : k <= from && k > to ? k - 1
                                             : k;
    const uint32_t op = evaluator->order.ops[n], index = evaluator->index[n];
    const struct weft_edge_list *list = outputs_of(evaluator, op);
    const uint32_t s = op / WEFT_GRAPH_KINDS;
    now = start_of(evaluator, op, index, now) + time_of(evaluator, op, index);
    evaluator->computed++;
    for (uint32_t e = list != NULL ? list->begin[s] : 0; list != NULL && e < list->begin[s + 1];
         e++) {
      if (evaluator->problem->crosses[2 * (size_t)list->edges[e]] &&
          now + tail_over(evaluator, op, list->edges[e], index) > cutoff) {
        return false;
      }
    }
  }
  return now + tail_behind(evaluator, rank, high) <= cutoff;
}

static void undo_times(struct weft_graph_evaluator *evaluator) {
  while (evaluator->log_size > 0) {
    const struct weft_graph_change *change = &evaluator->log[--evaluator->log_size];
    *change->at = change->before;
  }
}

/* The positions of the backward and the W of the op at a position. False: it has none, or whole and
 * split ones are not mixed. */
static bool find_backward(const struct weft_graph_evaluator *evaluator, uint32_t at,
                          uint32_t *backward, uint32_t *weight) {
  const struct weft_graph_problem *problem = evaluator->problem;
  const uint32_t op = evaluator->order.ops[at], k = evaluator->index[at];
  const uint32_t d = op / WEFT_GRAPH_KINDS * WEFT_GRAPH_KINDS + WEFT_GRAPH_D;
  if (!problem->may_split || !problem->may_join || !problem->stages[op / WEFT_GRAPH_KINDS].trains) {
    return false;
  }
  *backward = evaluator->position[key_of(evaluator, d, k)];
  *weight = evaluator->position[key_of(evaluator, d + 1, k)];
  return true;
}

static bool flip(struct weft_graph_evaluator *evaluator, uint32_t backward, uint32_t weight) {
  const uint32_t s = evaluator->order.ops[backward] / WEFT_GRAPH_KINDS;
  uint8_t *whole = &evaluator->order.whole[key_of(evaluator, s, evaluator->index[backward])];
  *whole = !*whole;
  return hold_again(evaluator, backward, weight);
}

void weft_graph_evaluator_undo(struct weft_graph_evaluator *evaluator,
                               const struct weft_graph_move *move) {
  uint32_t backward, weight;
  undo_times(evaluator);
  if (move->from != move->to) {
    shift(evaluator, move->to, move->from);
    (void)hold_again(evaluator, least(move->from, move->to), most(move->from, move->to));
  } else if (find_backward(evaluator, move->from, &backward, &weight)) {
    (void)flip(evaluator, backward, weight);
  }
  summarise(evaluator);
}

bool weft_graph_evaluator_try(struct weft_graph_evaluator *evaluator,
                              const struct weft_graph_move *move, int64_t cutoff) {
  const uint32_t rank = rank_of(evaluator, evaluator->order.ops[move->from]);
  uint32_t low = least(move->from, move->to), high = most(move->from, move->to);
  assert(high - low < WEFT_GRAPH_MOVE_MAX && high < evaluator->problem->begin[rank + 1]);
  evaluator->log_size = 0;
  if (low < high) {
    if (!is_allowed(evaluator, move) || !is_promising(evaluator, move, cutoff)) {
      return false;
    }
    shift(evaluator, move->from, move->to);
    (void)hold_again(evaluator, low, high);
  } else if (!find_backward(evaluator, low, &low, &high)) {
    return false;
  } else if (!flip(evaluator, low, high)) {
    (void)flip(evaluator, low, high);
    return false;
  }
  if (!advance(evaluator, rank, low, high, true, cutoff) || !settle(evaluator, cutoff)) {
    drop_pending(evaluator);
    weft_graph_evaluator_undo(evaluator, move);
    return false;
  }
  summarise(evaluator);
  return true;
}

/* ---- The critical path ---- */

static uint32_t find_last(const struct weft_graph_evaluator *evaluator) {
  const struct weft_graph_problem *problem = evaluator->problem;
  uint32_t best = NONE;
  int64_t latest = -1;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (problem->begin[r] < problem->begin[r + 1]) {
      const uint32_t n = problem->begin[r + 1] - 1;
      const int64_t end =
          evaluator->end[n] -
          (problem->objective == WEFT_OBJECTIVE_SPAN ? first_start(evaluator, r) : 0);
      if (end > latest) {
        latest = end;
        best = n;
      }
    }
  }
  return best;
}

uint32_t weft_graph_evaluator_critical(const struct weft_graph_evaluator *evaluator,
                                       uint32_t *positions, uint32_t room) {
  const struct weft_graph_problem *problem = evaluator->problem;
  uint32_t count = 0, n = find_last(evaluator);
  while (n != NONE && count < room) {
    const uint32_t op = evaluator->order.ops[n], k = evaluator->index[n];
    const uint32_t rank = rank_of(evaluator, op), s = op / WEFT_GRAPH_KINDS;
    const int64_t start = evaluator->end[n] - time_of(evaluator, op, k);
    positions[count++] = n;
    if (n > problem->begin[rank] && evaluator->end[n - 1] >= start) {
      n--;
      continue;
    }
    const struct weft_edge_list *list = inputs_of(evaluator, op);
    n = NONE;
    for (uint32_t e = list != NULL ? list->begin[s] : 0; list != NULL && e < list->begin[s + 1];
         e++) {
      const uint32_t channel = 2 * list->edges[e] + op % WEFT_GRAPH_KINDS;
      if (evaluator->arrival[key_of(evaluator, channel, k)] == start) {
        n = evaluator->position[key_of(evaluator, other_end(evaluator, op, list->edges[e]), k)];
        break;
      }
    }
  }
  return count;
}
