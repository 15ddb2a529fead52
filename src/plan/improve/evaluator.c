/* Incremental evaluation of an order. */
#include "plan/improve/evaluator.h"

#include <assert.h>
#include <string.h>

#define NONE UINT32_MAX

/* Times that one move may change. */
enum { LOG_MAX = 1 << 20 };

/* ---- Facts ---- */

/* The messages of an op over a list of edges; returns the end of what it wrote. */
static struct weft_op_message *link_all(const struct weft_problem *problem, uint32_t op,
                                        const struct weft_edge_list *list,
                                        struct weft_op_message *link) {
  const uint32_t s = op / WEFT_ORDER_KINDS, kind = op % WEFT_ORDER_KINDS;
  for (uint32_t n = list->begin[s]; n < list->begin[s + 1]; n++) {
    const struct weft_edge *edge = &problem->graph->edges[list->edges[n]];
    const uint32_t other = edge->from == s ? edge->to : edge->from;
    const uint32_t channel = 2 * list->edges[n] + kind;
    const bool crosses = problem->crosses[channel];
    *link++ = (struct weft_op_message){.channel = channel,
                                       .op = other * (uint32_t)WEFT_ORDER_KINDS + kind,
                                       .rank = problem->stages[other].rank,
                                       .crosses = crosses,
                                       .latency = crosses ? problem->latency : 0,
                                       .occupancy = crosses ? problem->occupancy[channel] : 0};
  }
  return link;
}

static struct weft_op_message *describe_op(const struct weft_problem *problem, uint32_t op,
                                           struct weft_op_facts *facts,
                                           struct weft_op_message *links) {
  const enum weft_plan_op_kind kind = (enum weft_plan_op_kind)(op % WEFT_ORDER_KINDS);
  const struct weft_problem_stage *stage = &problem->stages[op / WEFT_ORDER_KINDS];
  const struct weft_graph *graph = problem->graph;
  *facts = (struct weft_op_facts){.rank = stage->rank, .inputs = links, .outputs = links};
  facts->begin = kind == WEFT_KIND_F ? stage->held : 0;
  facts->first = kind == WEFT_KIND_I ? stage->gradients : 0;
  for (unsigned whole = 0; whole < 2; whole++) {
    int64_t after = 0;
    (void)weft_problem_step_memory(stage, kind, 1, whole, &after);
    facts->change[whole] = after - facts->begin;
    facts->time[whole] = weft_problem_duration(stage, kind, whole);
  }
  if (kind != WEFT_KIND_W) {
    const bool gradient = kind == WEFT_KIND_I;
    facts->outputs = link_all(problem, op, gradient ? &graph->gradient_in : &graph->in, links);
    facts->input_count = (uint32_t)(facts->outputs - links);
    links = link_all(problem, op, gradient ? &graph->gradient_out : &graph->out, facts->outputs);
    facts->output_count = (uint32_t)(links - facts->outputs);
  }
  return links;
}

enum weft_status weft_evaluator_init(struct weft_evaluator *evaluator,
                                     const struct weft_problem *problem, struct weft_arena *arena,
                                     struct weft_error *error) {
  assert(evaluator != NULL && problem != NULL);
  const size_t ops = weft_problem_op_count(problem), p = problem->rank_count;
  const size_t m = problem->microbatch_count, n = problem->stage_count;
  const size_t arrivals = 2 * (size_t)problem->graph->edge_count * m;
  *evaluator = (struct weft_evaluator){.problem = problem};
  evaluator->log_room = 4 * (ops + arrivals) < LOG_MAX ? 4 * (ops + arrivals) : LOG_MAX;
  evaluator->mixes = problem->may_split && problem->may_join;
  evaluator->facts = weft_arena_allocate(arena, n * WEFT_ORDER_KINDS, sizeof *evaluator->facts);
  struct weft_op_message *links =
      weft_arena_allocate(arena, 4 * (size_t)problem->graph->edge_count, sizeof *links);
  evaluator->order.ops = weft_arena_allocate(arena, ops, sizeof(uint32_t));
  evaluator->order.whole = weft_arena_allocate(arena, n * m, 1);
  evaluator->index = weft_arena_allocate(arena, ops, sizeof(uint32_t));
  evaluator->position = weft_arena_allocate(arena, n * WEFT_ORDER_KINDS * m, sizeof(uint32_t));
  evaluator->end = weft_arena_allocate(arena, ops, sizeof(int64_t));
  evaluator->tail = weft_arena_allocate(arena, ops, sizeof(int64_t));
  evaluator->held = weft_arena_allocate(arena, ops, sizeof(int64_t));
  evaluator->arrival = weft_arena_allocate(arena, arrivals, sizeof(int64_t));
  evaluator->pending = weft_arena_allocate(arena, p, sizeof(uint32_t));
  evaluator->last = weft_arena_allocate(arena, p, sizeof(uint32_t));
  evaluator->waiting = weft_arena_allocate(arena, p, sizeof(uint32_t));
  evaluator->log = weft_arena_allocate(arena, evaluator->log_room, sizeof *evaluator->log);
  WEFT_TRY(weft_plan_clock_init(&evaluator->clock, problem, arena, error));
  memset(evaluator->pending, 0xff, p * sizeof *evaluator->pending);
  for (uint32_t op = 0; op < n * WEFT_ORDER_KINDS; op++) {
    links = describe_op(problem, op, &evaluator->facts[op], links);
  }
  return WEFT_OK;
}

/* ---- Ops ---- */

static const struct weft_op_facts *facts_of(const struct weft_evaluator *evaluator, uint32_t op) {
  return &evaluator->facts[op];
}

static size_t key_of(const struct weft_evaluator *evaluator, uint32_t op, uint32_t k) {
  return (size_t)op * evaluator->problem->microbatch_count + k;
}

static bool is_whole(const struct weft_evaluator *evaluator, uint32_t op, uint32_t k) {
  return evaluator->mixes ? evaluator->order.whole[key_of(evaluator, op / WEFT_ORDER_KINDS, k)] != 0
                          : !evaluator->problem->may_split;
}

static int64_t time_of(const struct weft_evaluator *evaluator, uint32_t op, uint32_t k) {
  return facts_of(evaluator, op)->time[is_whole(evaluator, op, k)];
}

static int64_t start_of(const struct weft_evaluator *evaluator, const struct weft_op_facts *facts,
                        uint32_t k, int64_t now) {
  for (uint32_t n = 0; n < facts->input_count; n++) {
    const int64_t arrives = evaluator->arrival[key_of(evaluator, facts->inputs[n].channel, k)];
    now = arrives > now ? arrives : now;
  }
  return now;
}

/* ---- Pending updates ---- */

static void mark(struct weft_evaluator *evaluator, uint32_t rank, uint32_t from) {
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
static uint32_t take_earliest(struct weft_evaluator *evaluator, uint32_t *from) {
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

static void drop_pending(struct weft_evaluator *evaluator) {
  while (evaluator->waiting_count > 0) {
    evaluator->pending[evaluator->waiting[--evaluator->waiting_count]] = NONE;
  }
}

/* ---- Times ---- */

/* False when the log is full, which only a deadlock can cause. */
static bool set(struct weft_evaluator *evaluator, int64_t *at, int64_t value) {
  if (*at == value) {
    return true;
  }
  if (evaluator->log_size == evaluator->log_room) {
    return false;
  }
  evaluator->log[evaluator->log_size++] = (struct weft_evaluator_change){.at = at, .before = *at};
  *at = value;
  return true;
}

/* A message arrives at another time, and so may later ones on the channel. */
static bool deliver_over(struct weft_evaluator *evaluator, uint32_t op,
                         const struct weft_op_message *link, uint32_t k, int64_t end) {
  int64_t *row = &evaluator->arrival[key_of(evaluator, link->channel, 0)];
  for (;;) {
    int64_t leaves = end;
    if (link->occupancy > 0 && k > 0 && row[k - 1] - link->latency > leaves) {
      leaves = row[k - 1] - link->latency;
    }
    const int64_t arrives = leaves + link->occupancy + link->latency;
    if (arrives == row[k]) {
      return true;
    }
    if (!set(evaluator, &row[k], arrives)) {
      return false;
    }
    mark(evaluator, link->rank, evaluator->position[key_of(evaluator, link->op, k)]);
    if (link->occupancy == 0 || ++k == evaluator->problem->microbatch_count) {
      return true;
    }
    end = evaluator->end[evaluator->position[key_of(evaluator, op, k)]];
  }
}

static bool deliver(struct weft_evaluator *evaluator, const struct weft_op_facts *facts,
                    uint32_t op, uint32_t k, int64_t end) {
  for (uint32_t e = 0; e < facts->output_count; e++) {
    if (!deliver_over(evaluator, op, &facts->outputs[e], k, end)) {
      return false;
    }
  }
  return true;
}

/* Recomputes a rank's ops from one on, at least to `last`, until they do not change. False when the
 * objective is certain, or by the tails very likely, to exceed the cutoff. */
static bool advance(struct weft_evaluator *evaluator, uint32_t rank, uint32_t from, uint32_t last,
                    int64_t cutoff) {
  const struct weft_problem *problem = evaluator->problem;
  int64_t now = from == problem->begin[rank] ? 0 : evaluator->end[from - 1];
  for (uint32_t n = from; n < problem->begin[rank + 1]; n++) {
    const uint32_t op = evaluator->order.ops[n], k = evaluator->index[n];
    const struct weft_op_facts *facts = facts_of(evaluator, op);
    now = start_of(evaluator, facts, k, now) + facts->time[is_whole(evaluator, op, k)];
    evaluator->computed++;
    if (now == evaluator->end[n]) {
      if (n >= last) {
        return true;
      }
      continue;
    }
    if (now + evaluator->tail[n] > cutoff || !set(evaluator, &evaluator->end[n], now) ||
        !deliver(evaluator, facts, op, k, now)) {
      return false;
    }
  }
  return true;
}

static bool propagate(struct weft_evaluator *evaluator, int64_t cutoff) {
  while (evaluator->waiting_count > 0) {
    uint32_t from;
    const uint32_t rank = take_earliest(evaluator, &from);
    if (!advance(evaluator, rank, from, evaluator->last[rank], cutoff)) {
      drop_pending(evaluator);
      return false;
    }
  }
  return true;
}

static int64_t first_start(const struct weft_evaluator *evaluator, uint32_t rank) {
  const uint32_t n = evaluator->problem->begin[rank];
  return evaluator->end[n] - time_of(evaluator, evaluator->order.ops[n], evaluator->index[n]);
}

static void summarise(struct weft_evaluator *evaluator) {
  const struct weft_problem *problem = evaluator->problem;
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
static int64_t hold(const struct weft_evaluator *evaluator, uint32_t op, uint32_t k,
                    int64_t *held) {
  const struct weft_op_facts *facts = facts_of(evaluator, op);
  const int64_t begin = *held + facts->begin + (k == 0 ? facts->first : 0);
  *held = begin + facts->change[is_whole(evaluator, op, k)];
  return *held > begin ? *held : begin;
}

/* Recomputes the memory before the ops after `from` up to `to`; false where it exceeds the limit. */
static bool hold_again(struct weft_evaluator *evaluator, uint32_t from, uint32_t to) {
  const struct weft_problem *problem = evaluator->problem;
  const uint32_t rank = facts_of(evaluator, evaluator->order.ops[from])->rank;
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

static void number_ops(struct weft_evaluator *evaluator, uint32_t rank) {
  const struct weft_problem *problem = evaluator->problem;
  int64_t now = 0, held = 0;
  for (uint32_t n = problem->begin[rank]; n < problem->begin[rank + 1]; n++) {
    const uint32_t op = evaluator->order.ops[n], k = evaluator->clock.done[op]++;
    evaluator->index[n] = k;
    evaluator->position[key_of(evaluator, op, k)] = n;
    evaluator->held[n] = held;
    (void)hold(evaluator, op, k, &held);
    now = start_of(evaluator, facts_of(evaluator, op), k, now) + time_of(evaluator, op, k);
    evaluator->end[n] = now;
  }
}

bool weft_evaluator_set(struct weft_evaluator *evaluator, const struct weft_order *order) {
  assert(order->ops != NULL && evaluator->waiting_count == 0);
  const struct weft_problem *problem = evaluator->problem;
  const size_t m = problem->microbatch_count, n = problem->stage_count;
  const int64_t value = weft_order_evaluate(problem, &evaluator->clock, order, WEFT_NEVER);
  if (value == WEFT_NEVER) {
    return false;
  }
  memcpy(evaluator->order.ops, order->ops, weft_problem_op_count(problem) * sizeof *order->ops);
  memcpy(evaluator->order.whole, order->whole, n * m);
  memcpy(evaluator->arrival, evaluator->clock.arrivals,
         2 * (size_t)problem->graph->edge_count * m * sizeof *evaluator->arrival);
  memset(evaluator->clock.done, 0, n * WEFT_ORDER_KINDS * sizeof *evaluator->clock.done);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    number_ops(evaluator, r);
  }
  summarise(evaluator);
  assert(evaluator->value == value);
  return weft_evaluator_refresh(evaluator);
}

/* ---- Tails ---- */

/* The longest path after an op, through those who get its output in a message. */
static int64_t tail_over(const struct weft_evaluator *evaluator, const struct weft_op_message *link,
                         uint32_t k) {
  return link->latency + link->occupancy + time_of(evaluator, link->op, k) +
         evaluator->tail[evaluator->position[key_of(evaluator, link->op, k)]];
}

/* Whether the tails of all that get the output of an op are known; the longest path into *tail. */
static bool follow(const struct weft_evaluator *evaluator, uint32_t op, uint32_t k, int64_t *tail) {
  const struct weft_op_facts *facts = facts_of(evaluator, op);
  for (uint32_t n = 0; n < facts->output_count; n++) {
    const struct weft_op_message *link = &facts->outputs[n];
    if (link->rank != facts->rank &&
        evaluator->position[key_of(evaluator, link->op, k)] < evaluator->pending[link->rank]) {
      return false;
    }
    const int64_t own = tail_over(evaluator, link, k);
    *tail = own > *tail ? own : *tail;
  }
  return true;
}

/* Of the ops after position n of a rank. */
static int64_t tail_behind(const struct weft_evaluator *evaluator, uint32_t rank, uint32_t n) {
  if (n + 1 == evaluator->problem->begin[rank + 1]) {
    return evaluator->problem->objective == WEFT_OBJECTIVE_SPAN ? -first_start(evaluator, rank) : 0;
  }
  return time_of(evaluator, evaluator->order.ops[n + 1], evaluator->index[n + 1]) +
         evaluator->tail[n + 1];
}

/* From the end of each rank as far as tails are known, in turn; pending[rank] is behind what is
 * left. */
bool weft_evaluator_refresh(struct weft_evaluator *evaluator) {
  assert(evaluator->waiting_count == 0);
  const struct weft_problem *problem = evaluator->problem;
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
  evaluator->computed += weft_problem_op_count(problem);
  return complete;
}

/* ---- Moves ---- */

/* Whether one op of a rank must stay before or behind another one. */
static bool are_bound(const struct weft_evaluator *evaluator, const struct weft_op_facts *facts,
                      uint32_t a, uint32_t k, uint32_t b, uint32_t other) {
  if (a / WEFT_ORDER_KINDS == b / WEFT_ORDER_KINDS) {
    return k == other;
  }
  if (k != other || a % WEFT_ORDER_KINDS != b % WEFT_ORDER_KINDS) {
    return false;
  }
  const struct weft_op_facts *behind = facts_of(evaluator, b);
  for (uint32_t n = 0; n < facts->output_count; n++) {
    if (facts->outputs[n].op == b) {
      return true;
    }
  }
  for (uint32_t n = 0; n < behind->output_count; n++) {
    if (behind->outputs[n].op == a) {
      return true;
    }
  }
  return false;
}

/* The ops between both ends of a move, as they are after it. */
struct segment {
  uint32_t low, size;
  uint32_t ops[WEFT_MOVE_MAX], index[WEFT_MOVE_MAX];
};

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* An op that passes others of its kind and stage changes its microbatch with theirs: they stay in
 * ascending order. */
static void arrange(const struct weft_evaluator *evaluator, const struct weft_move *move,
                    struct segment *segment) {
  const uint32_t low = least(move->from, move->to), high = most(move->from, move->to);
  const bool right = move->from < move->to;
  segment->low = low;
  segment->size = high - low + 1;
  for (uint32_t k = 0; k < segment->size; k++) {
    const uint32_t n = low + k == move->to ? move->from : right ? low + k + 1 : low + k - 1;
    segment->ops[k] = evaluator->order.ops[n];
    segment->index[k] = evaluator->index[n];
  }
  const uint32_t moved = move->to - low, op = segment->ops[moved];
  for (uint32_t k = 0; k < segment->size; k++) {
    const uint32_t at = right ? k : segment->size - 1 - k;
    if (segment->ops[at] == op) {
      const uint32_t index = segment->index[at];
      segment->index[at] = segment->index[moved];
      segment->index[moved] = index;
    }
  }
}

/* Tails stay where they are: they say more about a place in the sequence than about an op. */
static void write_segment(struct weft_evaluator *evaluator, const struct segment *segment) {
  for (uint32_t k = 0; k < segment->size; k++) {
    const uint32_t at = segment->low + k;
    evaluator->order.ops[at] = segment->ops[k];
    evaluator->index[at] = segment->index[k];
    evaluator->position[key_of(evaluator, segment->ops[k], segment->index[k])] = at;
  }
}

/* Whether the moved op passes none that it must stay before or behind. Past another one of its kind
 * and stage it is that one which goes on. */
static bool may_pass(const struct weft_evaluator *evaluator, const struct weft_move *move) {
  const uint32_t op = evaluator->order.ops[move->from];
  const struct weft_op_facts *facts = facts_of(evaluator, op);
  uint32_t k = evaluator->index[move->from];
  for (uint32_t n = move->from; n != move->to;) {
    n = move->from < move->to ? n + 1 : n - 1;
    if (evaluator->order.ops[n] == op) {
      k = evaluator->index[n];
    } else if (are_bound(evaluator, facts, op, k, evaluator->order.ops[n], evaluator->index[n])) {
      return false;
    }
  }
  return true;
}

static bool fits(const struct weft_evaluator *evaluator, const struct segment *segment) {
  const int64_t limit = evaluator->problem->limit[facts_of(evaluator, segment->ops[0])->rank];
  int64_t held = evaluator->held[segment->low];
  for (uint32_t k = 0; k < segment->size; k++) {
    if (hold(evaluator, segment->ops[k], segment->index[k], &held) > limit) {
      return false;
    }
  }
  return true;
}

/* Whether the tails allow the new order of the ops between both ends to stay within the cutoff. */
static bool is_promising(struct weft_evaluator *evaluator, const struct segment *segment,
                         int64_t cutoff) {
  const uint32_t low = segment->low, rank = facts_of(evaluator, segment->ops[0])->rank;
  int64_t now = low == evaluator->problem->begin[rank] ? 0 : evaluator->end[low - 1];
  for (uint32_t n = 0; n < segment->size; n++) {
    const uint32_t op = segment->ops[n], k = segment->index[n];
    const struct weft_op_facts *facts = facts_of(evaluator, op);
    now = start_of(evaluator, facts, k, now) + facts->time[is_whole(evaluator, op, k)];
    evaluator->computed++;
    for (uint32_t e = 0; e < facts->output_count; e++) {
      if (facts->outputs[e].crosses && now + tail_over(evaluator, &facts->outputs[e], k) > cutoff) {
        return false;
      }
    }
  }
  return now + tail_behind(evaluator, rank, low + segment->size - 1) <= cutoff;
}

static void undo_times(struct weft_evaluator *evaluator) {
  while (evaluator->log_size > 0) {
    const struct weft_evaluator_change *change = &evaluator->log[--evaluator->log_size];
    *change->at = change->before;
  }
}

/* The positions of the backward and the W of the op at a position. False: it has none, or whole and
 * split ones are not mixed. */
static bool find_backward(const struct weft_evaluator *evaluator, uint32_t at, uint32_t *backward,
                          uint32_t *weight) {
  const struct weft_problem *problem = evaluator->problem;
  const uint32_t op = evaluator->order.ops[at], k = evaluator->index[at];
  const uint32_t d = op / WEFT_ORDER_KINDS * WEFT_ORDER_KINDS + WEFT_KIND_I;
  if (!problem->may_split || !problem->may_join || !problem->stages[op / WEFT_ORDER_KINDS].trains) {
    return false;
  }
  *backward = evaluator->position[key_of(evaluator, d, k)];
  *weight = evaluator->position[key_of(evaluator, d + 1, k)];
  return true;
}

static bool flip(struct weft_evaluator *evaluator, uint32_t backward, uint32_t weight) {
  const uint32_t s = evaluator->order.ops[backward] / WEFT_ORDER_KINDS;
  uint8_t *whole = &evaluator->order.whole[key_of(evaluator, s, evaluator->index[backward])];
  *whole = !*whole;
  return hold_again(evaluator, backward, weight);
}

void weft_evaluator_undo(struct weft_evaluator *evaluator, const struct weft_move *move) {
  assert(evaluator->waiting_count == 0 && move != NULL);
  uint32_t backward, weight;
  undo_times(evaluator);
  if (move->from != move->to) {
    struct segment segment;
    arrange(evaluator, &(struct weft_move){move->to, move->from}, &segment);
    write_segment(evaluator, &segment);
    (void)hold_again(evaluator, least(move->from, move->to), most(move->from, move->to));
  } else if (find_backward(evaluator, move->from, &backward, &weight)) {
    (void)flip(evaluator, backward, weight);
  }
  summarise(evaluator);
}

/* Computes all ops of a segment: the times there are those of other ops. What follows waits until its
 * turn. is_promising() has counted the work. */
static bool advance_segment(struct weft_evaluator *evaluator, uint32_t rank, uint32_t low,
                            uint32_t high) {
  const struct weft_problem *problem = evaluator->problem;
  int64_t now = low == problem->begin[rank] ? 0 : evaluator->end[low - 1];
  for (uint32_t n = low; n <= high; n++) {
    const uint32_t op = evaluator->order.ops[n], k = evaluator->index[n];
    const struct weft_op_facts *facts = facts_of(evaluator, op);
    now = start_of(evaluator, facts, k, now) + facts->time[is_whole(evaluator, op, k)];
    if (!set(evaluator, &evaluator->end[n], now) || !deliver(evaluator, facts, op, k, now)) {
      return false;
    }
  }
  if (high + 1 < problem->begin[rank + 1]) {
    mark(evaluator, rank, high + 1);
  }
  return true;
}

/* False: the move is not allowed, or not promising. */
static bool make_move(struct weft_evaluator *evaluator, const struct weft_move *move,
                      int64_t cutoff) {
  struct segment segment;
  if (!may_pass(evaluator, move)) {
    return false;
  }
  arrange(evaluator, move, &segment);
  if (!fits(evaluator, &segment) || !is_promising(evaluator, &segment, cutoff)) {
    return false;
  }
  write_segment(evaluator, &segment);
  (void)hold_again(evaluator, segment.low, segment.low + segment.size - 1);
  return true;
}

/* Splits or joins the backward at a position. False: there is none, or no memory for it. */
static bool make_flip(struct weft_evaluator *evaluator, uint32_t rank, uint32_t at) {
  uint32_t backward, weight;
  if (!find_backward(evaluator, at, &backward, &weight)) {
    return false;
  }
  if (!flip(evaluator, backward, weight)) {
    (void)flip(evaluator, backward, weight);
    return false;
  }
  mark(evaluator, rank, backward);
  mark(evaluator, rank, weight);
  return true;
}

bool weft_evaluator_try(struct weft_evaluator *evaluator, const struct weft_move *move,
                        int64_t cutoff) {
  const uint32_t rank = facts_of(evaluator, evaluator->order.ops[move->from])->rank;
  const uint32_t low = least(move->from, move->to), high = most(move->from, move->to);
  assert(high - low < WEFT_MOVE_MAX && high < evaluator->problem->begin[rank + 1]);
  evaluator->log_size = 0;
  if (low < high ? !make_move(evaluator, move, cutoff) : !make_flip(evaluator, rank, low)) {
    return false;
  }
  if ((low < high && !advance_segment(evaluator, rank, low, high)) ||
      !propagate(evaluator, cutoff)) {
    drop_pending(evaluator);
    weft_evaluator_undo(evaluator, move);
    return false;
  }
  summarise(evaluator);
  return true;
}

/* ---- The critical path ---- */

static uint32_t find_last(const struct weft_evaluator *evaluator) {
  const struct weft_problem *problem = evaluator->problem;
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

uint32_t weft_evaluator_critical(const struct weft_evaluator *evaluator, uint32_t *positions,
                                 uint32_t room) {
  assert(positions != NULL && room > 0);
  const struct weft_problem *problem = evaluator->problem;
  uint32_t count = 0, n = find_last(evaluator);
  while (n != NONE && count < room) {
    const uint32_t op = evaluator->order.ops[n], k = evaluator->index[n];
    const struct weft_op_facts *facts = facts_of(evaluator, op);
    const int64_t start = evaluator->end[n] - time_of(evaluator, op, k);
    positions[count++] = n;
    if (n > problem->begin[facts->rank] && evaluator->end[n - 1] >= start) {
      n--;
      continue;
    }
    n = NONE;
    for (uint32_t e = 0; e < facts->input_count; e++) {
      const struct weft_op_message *link = &facts->inputs[e];
      if (evaluator->arrival[key_of(evaluator, link->channel, k)] == start) {
        n = evaluator->position[key_of(evaluator, link->op, k)];
        break;
      }
    }
  }
  return count;
}
