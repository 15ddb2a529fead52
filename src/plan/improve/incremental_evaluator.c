/* Incremental evaluation of an order. */
#include "plan/improve/incremental_evaluator.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

#define NONE UINT32_MAX

/* Times that one move may change. */
enum { LOG_MAX = 1 << 20 };

static size_t row_count(const struct weft_problem *problem) {
  return (size_t)problem->stage_count * WEFT_KINDS;
}

static size_t arrival_count(const struct weft_problem *problem) {
  return 2 * (size_t)problem->stage_count * problem->microbatch_count;
}

/* ---- Facts ---- */

static struct weft_op_facts *facts_of(struct weft_evaluator *evaluator, uint32_t stage,
                                      unsigned kind) {
  const struct weft_problem *problem = evaluator->problem;
  const struct weft_problem_stage *at = &problem->stages[stage];
  return &evaluator
              ->facts[((size_t)at->rank * problem->stages_per_rank + at->local_stage) * WEFT_KINDS +
                      kind];
}

static void describe(struct weft_evaluator *evaluator, uint32_t stage) {
  const struct weft_problem_stage *at = &evaluator->problem->stages[stage];
  for (unsigned kind = 0; kind < WEFT_KINDS; kind++) {
    *facts_of(evaluator, stage, kind) = (struct weft_op_facts){
        .time = at->time[kind],
        .change = weft_problem_change(at, kind),
        .grows = weft_problem_gradients(at, kind, 0),
        .input = NONE,
        .output = NONE,
        .own = stage * WEFT_KINDS + weft_problem_counted_as(evaluator->problem, kind)};
  }
}

static void connect(struct weft_evaluator *evaluator, uint32_t from, uint32_t to, unsigned kind,
                    uint32_t row) {
  const struct weft_problem *problem = evaluator->problem;
  struct weft_op_facts *sender = facts_of(evaluator, from, kind);
  const bool crosses = problem->stages[from].rank != problem->stages[to].rank;
  sender->output = row;
  sender->latency = crosses ? problem->latency : 0;
  sender->occupancy = crosses ? problem->occupancy : 0;
  struct weft_op_facts *receiver = facts_of(evaluator, to, kind);
  sender->receiver = receiver->own;
  sender->receiver_rank = problem->stages[to].rank;
  receiver->input = row;
  receiver->sender = sender->own;
  receiver->sender_rank = problem->stages[from].rank;
}

static void describe_all(struct weft_evaluator *evaluator) {
  const struct weft_problem *problem = evaluator->problem;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    describe(evaluator, s);
  }
  for (uint32_t s = 0; s + 1 < problem->stage_count; s++) {
    connect(evaluator, s, s + 1, WEFT_KIND_F, s);
    connect(evaluator, s + 1, s, WEFT_KIND_I, problem->stage_count + s);
    connect(evaluator, s + 1, s, WEFT_KIND_B, problem->stage_count + s);
  }
}

enum weft_status weft_evaluator_init(struct weft_evaluator *evaluator,
                                     const struct weft_problem *problem, struct weft_error *error) {
  assert(evaluator != NULL && problem != NULL);
  const size_t ops = weft_problem_op_count(problem), ranks = problem->rank_count;
  *evaluator =
      (struct weft_evaluator){.problem = problem, .arena = {.allocator = problem->allocator}};
  struct weft_arena *arena = &evaluator->arena;
  evaluator->log_room = 4 * (ops + arrival_count(problem));
  evaluator->log_room = evaluator->log_room < LOG_MAX ? evaluator->log_room : LOG_MAX;
  if (!WEFT_ALLOCATE(arena, evaluator->facts, row_count(problem)) ||
      !WEFT_ALLOCATE(arena, evaluator->order.ops, ops) ||
      !WEFT_ALLOCATE(arena, evaluator->index, ops) ||
      !WEFT_ALLOCATE(arena, evaluator->position, row_count(problem) * problem->microbatch_count) ||
      !WEFT_ALLOCATE(arena, evaluator->end, ops) || !WEFT_ALLOCATE(arena, evaluator->tail, ops) ||
      !WEFT_ALLOCATE(arena, evaluator->held, ops) ||
      !WEFT_ALLOCATE(arena, evaluator->arrival, arrival_count(problem)) ||
      !WEFT_ALLOCATE(arena, evaluator->first, ranks) ||
      !WEFT_ALLOCATE(arena, evaluator->pending, ranks) ||
      !WEFT_ALLOCATE(arena, evaluator->last, ranks) ||
      !WEFT_ALLOCATE(arena, evaluator->waiting, ranks) ||
      !WEFT_ALLOCATE(arena, evaluator->log, evaluator->log_room)) {
    weft_evaluator_finish(evaluator);
    return weft_fail_memory(error, ops * sizeof(int64_t));
  }
  describe_all(evaluator);
  memset(evaluator->pending, 0xff, problem->rank_count * sizeof *evaluator->pending);
  return WEFT_OK;
}

void weft_evaluator_finish(struct weft_evaluator *evaluator) {
  weft_arena_finish(&evaluator->arena);
}

static const struct weft_op_facts *rank_facts(const struct weft_evaluator *evaluator,
                                              uint32_t rank) {
  return evaluator->facts + (size_t)rank * evaluator->problem->stages_per_rank * WEFT_KINDS;
}

/* ---- Pending updates ---- */

static void mark(struct weft_evaluator *evaluator, uint32_t rank, uint32_t from) {
  if (evaluator->pending[rank] == NONE) {
    evaluator->waiting[evaluator->waiting_count++] = rank;
    evaluator->pending[rank] = from;
    evaluator->last[rank] = from;
  } else if (from < evaluator->pending[rank]) {
    evaluator->pending[rank] = from;
  } else if (from > evaluator->last[rank]) {
    evaluator->last[rank] = from;
  }
}

/* Takes the rank whose pending op is earliest: then hardly anything is computed twice. */
static uint32_t take_earliest(struct weft_evaluator *evaluator, uint32_t *from) {
  const uint32_t size = evaluator->problem->length;
  uint32_t best = 0;
  int64_t when = INT64_MAX;
  for (uint32_t k = 0; k < evaluator->waiting_count; k++) {
    const uint32_t rank = evaluator->waiting[k];
    const int64_t end = evaluator->end[(size_t)rank * size + evaluator->pending[rank]];
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
  if (evaluator->log_size == evaluator->log_room) {
    return false;
  }
  evaluator->log[evaluator->log_size++] = (struct weft_evaluator_change){.at = at, .before = *at};
  *at = value;
  return true;
}

/* The output of an op arrives at another time, and so may later ones on the channel. */
static bool deliver(struct weft_evaluator *evaluator, const struct weft_op_facts *facts,
                    uint32_t microbatch, int64_t end) {
  const struct weft_problem *problem = evaluator->problem;
  const uint32_t m = problem->microbatch_count;
  int64_t *row = evaluator->arrival + (size_t)facts->output * m;
  const uint32_t *taken_at = evaluator->position + (size_t)facts->receiver * m;
  for (;;) {
    int64_t leaves = end;
    if (facts->occupancy > 0 && microbatch > 0 && row[microbatch - 1] - facts->latency > leaves) {
      leaves = row[microbatch - 1] - facts->latency;
    }
    const int64_t arrives = leaves + facts->occupancy + facts->latency;
    if (arrives == row[microbatch]) {
      return true;
    }
    if (!set(evaluator, &row[microbatch], arrives)) {
      return false;
    }
    mark(evaluator, facts->receiver_rank, taken_at[microbatch]);
    if (facts->occupancy == 0 || ++microbatch == m) {
      return true;
    }
    const uint32_t rank = problem->stages[facts->own / WEFT_KINDS].rank;
    end = evaluator->end[(size_t)rank * problem->length +
                         evaluator->position[(size_t)facts->own * m + microbatch]];
  }
}

/* Recomputes a rank's ops from one on, until they do not change. False when the objective is
 * certain, or by the tails very likely, to exceed the cutoff. */
static bool advance(struct weft_evaluator *evaluator, uint32_t rank, uint32_t from,
                    int64_t cutoff) {
  const struct weft_problem *problem = evaluator->problem;
  const struct weft_op_facts *all = rank_facts(evaluator, rank);
  const size_t row = (size_t)rank * problem->length;
  const uint8_t *sequence = evaluator->order.ops + row;
  const uint32_t last = evaluator->last[rank];
  int64_t now = from == 0 ? 0 : evaluator->end[row + from - 1];
  for (uint32_t n = from; n < problem->length; n++) {
    const struct weft_op_facts *facts = &all[sequence[n]];
    const uint32_t microbatch = evaluator->index[row + n];
    if (facts->input != NONE) {
      const int64_t arrives =
          evaluator->arrival[(size_t)facts->input * problem->microbatch_count + microbatch];
      now = arrives > now ? arrives : now;
    }
    now += facts->time;
    evaluator->computed++;
    if (now == evaluator->end[row + n]) {
      if (n >= last) {
        return true;
      }
      continue;
    }
    if (now + evaluator->tail[row + n] > cutoff || !set(evaluator, &evaluator->end[row + n], now) ||
        (facts->output != NONE && !deliver(evaluator, facts, microbatch, now))) {
      return false;
    }
  }
  return true;
}

static bool settle(struct weft_evaluator *evaluator, int64_t cutoff) {
  while (evaluator->waiting_count > 0) {
    uint32_t from;
    const uint32_t rank = take_earliest(evaluator, &from);
    if (!advance(evaluator, rank, from, cutoff)) {
      drop_pending(evaluator);
      return false;
    }
  }
  return true;
}

static void summarise(struct weft_evaluator *evaluator) {
  const struct weft_problem *problem = evaluator->problem;
  int64_t from = INT64_MAX, to = 0, span = 0, sum = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t end = evaluator->end[(size_t)(r + 1) * problem->length - 1];
    const int64_t own = end - evaluator->first[r];
    from = evaluator->first[r] < from ? evaluator->first[r] : from;
    to = end > to ? end : to;
    span = own > span ? own : span;
    sum += own;
  }
  evaluator->span_sum = sum;
  evaluator->value = problem->objective == WEFT_OBJECTIVE_SPAN ? span : to - from;
}

/* ---- A new order ---- */

static void number_ops(struct weft_evaluator *evaluator, uint32_t rank) {
  const struct weft_problem *problem = evaluator->problem;
  const struct weft_op_facts *all = rank_facts(evaluator, rank);
  const size_t row = (size_t)rank * problem->length;
  uint32_t counts[WEFT_LOCAL_STAGES_MAX * WEFT_KINDS] = {0};
  int64_t held = 0;
  for (uint32_t n = 0; n < problem->length; n++) {
    const uint8_t op = evaluator->order.ops[row + n];
    const unsigned kind = op % WEFT_KINDS;
    const uint32_t microbatch =
        counts[op - kind + (unsigned)weft_problem_counted_as(problem, kind)]++;
    evaluator->index[row + n] = microbatch;
    evaluator->position[(size_t)all[op].own * problem->microbatch_count + microbatch] = n;
    evaluator->held[row + n] = held;
    held += all[op].change + (microbatch == 0 ? all[op].grows : 0);
  }
}

/* Copies the arrivals of an evaluation, and computes the ends of all ops. */
static void copy_times(struct weft_evaluator *evaluator, const struct weft_evaluation *evaluation) {
  const struct weft_problem *problem = evaluator->problem;
  memcpy(evaluator->arrival, evaluation->arrivals,
         arrival_count(problem) * sizeof *evaluator->arrival);
  memcpy(evaluator->first, evaluation->first, problem->rank_count * sizeof *evaluator->first);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const struct weft_op_facts *all = rank_facts(evaluator, r);
    const size_t row = (size_t)r * problem->length;
    int64_t now = 0;
    for (uint32_t n = 0; n < problem->length; n++) {
      const struct weft_op_facts *facts = &all[evaluator->order.ops[row + n]];
      if (facts->input != NONE) {
        const int64_t arrives =
            evaluator->arrival[(size_t)facts->input * problem->microbatch_count +
                               evaluator->index[row + n]];
        now = arrives > now ? arrives : now;
      }
      now += facts->time;
      evaluator->end[row + n] = now;
    }
  }
}

void weft_evaluator_set(struct weft_evaluator *evaluator, const struct weft_order *order,
                        const struct weft_evaluation *evaluation) {
  assert(order != NULL && evaluation->problem == evaluator->problem);
  const struct weft_problem *problem = evaluator->problem;
  memcpy(evaluator->order.ops, order->ops, weft_problem_op_count(problem));
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    number_ops(evaluator, r);
  }
  copy_times(evaluator, evaluation);
  summarise(evaluator);
  assert(evaluator->span_sum == evaluation->span_sum);
  (void)weft_evaluator_refresh(evaluator);
}

/* ---- Tails ---- */

/* The longest path after an op, through the receiver of its output. */
static int64_t tail_through(const struct weft_evaluator *evaluator,
                            const struct weft_op_facts *facts, uint32_t microbatch) {
  const struct weft_problem *problem = evaluator->problem;
  const size_t at =
      (size_t)facts->receiver_rank * problem->length +
      evaluator->position[(size_t)facts->receiver * problem->microbatch_count + microbatch];
  return facts->occupancy + facts->latency +
         rank_facts(evaluator, facts->receiver_rank)[evaluator->order.ops[at]].time +
         evaluator->tail[at];
}

/* Computes tails of a rank backwards, as far as its receivers' are known; pending[rank] ops are
 * left. */
static void retreat(struct weft_evaluator *evaluator, uint32_t rank) {
  const struct weft_problem *problem = evaluator->problem;
  const struct weft_op_facts *all = rank_facts(evaluator, rank);
  const size_t row = (size_t)rank * problem->length;
  const uint8_t *sequence = evaluator->order.ops + row;
  uint32_t n = evaluator->pending[rank];
  for (; n > 0; n--) {
    const struct weft_op_facts *facts = &all[sequence[n - 1]];
    const uint32_t microbatch = evaluator->index[row + n - 1];
    int64_t tail = problem->objective == WEFT_OBJECTIVE_SPAN ? -evaluator->first[rank] : 0;
    if (n < problem->length) {
      tail = all[sequence[n]].time + evaluator->tail[row + n];
    }
    if (facts->output != NONE) {
      const uint32_t at =
          evaluator->position[(size_t)facts->receiver * problem->microbatch_count + microbatch];
      if (facts->receiver_rank != rank && at < evaluator->pending[facts->receiver_rank]) {
        break;
      }
      const int64_t through = tail_through(evaluator, facts, microbatch);
      tail = through > tail ? through : tail;
    }
    evaluator->tail[row + n - 1] = tail;
  }
  evaluator->pending[rank] = n;
}

/* Sweeps the ranks in both directions: tails of forwards become known from the last rank to the
 * first, tails of backwards from the first to the last. */
bool weft_evaluator_refresh(struct weft_evaluator *evaluator) {
  assert(evaluator->waiting_count == 0);
  const struct weft_problem *problem = evaluator->problem;
  const uint32_t ranks = problem->rank_count;
  for (uint32_t r = 0; r < ranks; r++) {
    evaluator->pending[r] = problem->length;
  }
  uint64_t left = UINT64_MAX, before = 0;
  for (bool stuck = false; left > 0 && !stuck;) {
    before = left;
    left = 0;
    for (uint32_t k = 0; k < 2 * ranks; k++) {
      const uint32_t rank = k < ranks ? ranks - 1 - k : k - ranks;
      retreat(evaluator, rank);
      left += evaluator->pending[rank];
    }
    stuck = left == before;
  }
  memset(evaluator->pending, 0xff, ranks * sizeof *evaluator->pending);
  evaluator->computed += weft_problem_op_count(problem);
  return left == 0;
}

/* ---- Moves ---- */

/* The ops between both ends of a move, as they would be after it. */
struct segment {
  uint32_t rank;
  uint32_t from, size;
  uint8_t ops[WEFT_MOVE_MAX];
  uint32_t index[WEFT_MOVE_MAX];
  int64_t held[WEFT_MOVE_MAX];
};

static void shift(struct weft_evaluator *evaluator, const struct weft_move *move,
                  struct segment *segment) {
  const size_t row = (size_t)move->rank * evaluator->problem->length;
  const uint32_t from = move->from < move->to ? move->from : move->to;
  const uint32_t size = (move->from < move->to ? move->to : move->from) - from + 1;
  const uint8_t *sequence = evaluator->order.ops + row;
  segment->rank = move->rank;
  segment->from = from;
  segment->size = size;
  if (move->from < move->to) {
    memcpy(segment->ops, sequence + from + 1, size - 1);
    memcpy(segment->index, evaluator->index + row + from + 1, (size - 1) * sizeof(uint32_t));
    segment->ops[size - 1] = sequence[move->from];
  } else {
    memcpy(segment->ops + 1, sequence + from, size - 1);
    memcpy(segment->index + 1, evaluator->index + row + from, (size - 1) * sizeof(uint32_t));
    segment->ops[0] = sequence[move->from];
  }
}

/* Renumbers the ops of the moved op's stage; false when one would come before the op that it
 * needs, or when whole and split backwards would change places, and so belong to other
 * microbatches than their W. Only ops within the segment can be passed, so the first of each kind
 * in it says how many came before. */
static bool renumber(const struct weft_evaluator *evaluator, struct segment *segment,
                     uint8_t moved) {
  const struct weft_problem *problem = evaluator->problem;
  const size_t row = (size_t)segment->rank * problem->length + segment->from;
  const unsigned first = moved / WEFT_KINDS * (unsigned)WEFT_KINDS;
  const unsigned moved_as = weft_problem_counted_as(problem, moved - first);
  uint32_t counts[WEFT_KINDS] = {NONE, NONE, NONE, NONE, NONE};
  for (uint32_t k = segment->size; k-- > 0;) {
    const unsigned kind = evaluator->order.ops[row + k] - first;
    if (kind < WEFT_KINDS) {
      const unsigned as = weft_problem_counted_as(problem, kind);
      if (as == moved_as && kind != moved - first) {
        return false;
      }
      counts[as] = evaluator->index[row + k];
    }
  }
  for (uint32_t k = 0; k < segment->size; k++) {
    const unsigned kind = segment->ops[k] - first;
    if (kind >= WEFT_KINDS) {
      continue;
    }
    const unsigned as = weft_problem_counted_as(problem, kind);
    const uint32_t needed = kind == WEFT_KIND_F ? NONE : counts[weft_problem_needed_by(kind)];
    if (needed != NONE && counts[as] >= needed) {
      return false;
    }
    segment->index[k] = counts[as]++;
  }
  return true;
}

static bool fits(const struct weft_evaluator *evaluator, struct segment *segment) {
  const struct weft_op_facts *all = rank_facts(evaluator, segment->rank);
  const int64_t limit = evaluator->problem->limit[segment->rank];
  int64_t held =
      evaluator->held[(size_t)segment->rank * evaluator->problem->length + segment->from];
  for (uint32_t k = 0; k < segment->size; k++) {
    const struct weft_op_facts *facts = &all[segment->ops[k]];
    segment->held[k] = held;
    held += segment->index[k] == 0 ? facts->grows : 0;
    if (held > limit) {
      return false;
    }
    held += facts->change;
    if (held > limit) {
      return false;
    }
  }
  return true;
}

/* Whether the tails allow the segment to stay within the cutoff. */
static bool is_promising(struct weft_evaluator *evaluator, const struct segment *segment,
                         int64_t cutoff) {
  const struct weft_problem *problem = evaluator->problem;
  const struct weft_op_facts *all = rank_facts(evaluator, segment->rank);
  const size_t row = (size_t)segment->rank * problem->length;
  const uint32_t after = segment->from + segment->size;
  int64_t now = evaluator->end[row + segment->from - 1];
  evaluator->computed += segment->size;
  for (uint32_t k = 0; k < segment->size; k++) {
    const struct weft_op_facts *facts = &all[segment->ops[k]];
    if (facts->input != NONE) {
      const int64_t arrives =
          evaluator->arrival[(size_t)facts->input * problem->microbatch_count + segment->index[k]];
      now = arrives > now ? arrives : now;
    }
    now += facts->time;
    if (facts->output != NONE && facts->receiver_rank != segment->rank &&
        now + tail_through(evaluator, facts, segment->index[k]) > cutoff) {
      return false;
    }
  }
  const int64_t tail =
      after < problem->length
          ? all[evaluator->order.ops[row + after]].time + evaluator->tail[row + after]
      : problem->objective == WEFT_OBJECTIVE_SPAN ? -evaluator->first[segment->rank]
                                                  : 0;
  return now + tail <= cutoff;
}

static void write_segment(struct weft_evaluator *evaluator, const struct segment *segment) {
  const struct weft_problem *problem = evaluator->problem;
  const struct weft_op_facts *all = rank_facts(evaluator, segment->rank);
  const size_t row = (size_t)segment->rank * problem->length + segment->from;
  for (uint32_t k = 0; k < segment->size; k++) {
    evaluator->order.ops[row + k] = segment->ops[k];
    evaluator->index[row + k] = segment->index[k];
    evaluator->held[row + k] = segment->held[k];
    evaluator->position[(size_t)all[segment->ops[k]].own * problem->microbatch_count +
                        segment->index[k]] = segment->from + k;
  }
}

/* Computes all ops of the segment: the old times there belong to other ops. */
static bool advance_segment(struct weft_evaluator *evaluator, const struct segment *segment) {
  const struct weft_problem *problem = evaluator->problem;
  const struct weft_op_facts *all = rank_facts(evaluator, segment->rank);
  const size_t row = (size_t)segment->rank * problem->length + segment->from;
  int64_t now = evaluator->end[row - 1];
  for (uint32_t k = 0; k < segment->size; k++) {
    const struct weft_op_facts *facts = &all[segment->ops[k]];
    if (facts->input != NONE) {
      const int64_t arrives =
          evaluator->arrival[(size_t)facts->input * problem->microbatch_count + segment->index[k]];
      now = arrives > now ? arrives : now;
    }
    now += facts->time;
    if (!set(evaluator, &evaluator->end[row + k], now) ||
        (facts->output != NONE && !deliver(evaluator, facts, segment->index[k], now))) {
      return false;
    }
  }
  if (segment->from + segment->size < problem->length) {
    mark(evaluator, segment->rank, segment->from + segment->size);
  }
  return true;
}

static void roll_back(struct weft_evaluator *evaluator) {
  while (evaluator->log_size > 0) {
    const struct weft_evaluator_change *change = &evaluator->log[--evaluator->log_size];
    *change->at = change->before;
  }
}

/* Restores ops and memory. */
static void put_back(struct weft_evaluator *evaluator, const struct weft_move *move) {
  const struct weft_move back = {.rank = move->rank, .from = move->to, .to = move->from};
  struct segment segment;
  const uint8_t moved =
      evaluator->order.ops[(size_t)move->rank * evaluator->problem->length + move->to];
  shift(evaluator, &back, &segment);
  /* Both hold, as before the move. (If its result were unused, gcc 12.2 would drop the call of
   * renumber().) */
  if (renumber(evaluator, &segment, moved) && fits(evaluator, &segment)) {
    write_segment(evaluator, &segment);
  }
}

/* ---- Whole and split backwards ---- */

/* Splits the backward at a position, or joins it with its W. `n`: the positions of both. */
static void flip(struct weft_evaluator *evaluator, uint32_t rank, const uint32_t n[2]) {
  const struct weft_op_facts *all = rank_facts(evaluator, rank);
  const size_t row = (size_t)rank * evaluator->problem->length;
  uint8_t *sequence = evaluator->order.ops + row;
  const bool split = sequence[n[0]] % WEFT_KINDS == WEFT_KIND_B;
  const uint8_t first = sequence[n[0]] / WEFT_KINDS * (uint8_t)WEFT_KINDS;
  const int64_t before = all[sequence[n[0]]].change;
  sequence[n[0]] = (uint8_t)(first + (split ? WEFT_KIND_I : WEFT_KIND_B));
  sequence[n[1]] = (uint8_t)(first + (split ? WEFT_KIND_W : WEFT_KIND_NO_W));
  const int64_t more = all[sequence[n[0]]].change - before;
  for (uint32_t k = n[0] + 1; k <= n[1]; k++) {
    evaluator->held[row + k] += more;
  }
}

/* Whether the memory allows to split a backward: it holds more until its W. */
static bool may_split(const struct weft_evaluator *evaluator, uint32_t rank, const uint32_t n[2]) {
  const struct weft_op_facts *all = rank_facts(evaluator, rank);
  const size_t row = (size_t)rank * evaluator->problem->length;
  const uint8_t *sequence = evaluator->order.ops + row;
  const uint8_t first = sequence[n[0]] / WEFT_KINDS * (uint8_t)WEFT_KINDS;
  const int64_t more = -all[first + WEFT_KIND_W].change;
  const int64_t limit = evaluator->problem->limit[rank];
  for (uint32_t k = n[0] + 1; k <= n[1]; k++) {
    const struct weft_op_facts *facts = &all[sequence[k]];
    const int64_t held = evaluator->held[row + k] + more;
    const int64_t starts = held + (evaluator->index[row + k] == 0 ? facts->grows : 0);
    if (held > limit || starts > limit || (k < n[1] && starts + facts->change > limit)) {
      return false;
    }
  }
  return true;
}

/* The position of a backward and of its W; false when there is none, or no choice. */
static bool find_pair(const struct weft_evaluator *evaluator, uint32_t rank, uint32_t from,
                      uint32_t n[2]) {
  const struct weft_problem *problem = evaluator->problem;
  const size_t row = (size_t)rank * problem->length;
  const uint8_t op = evaluator->order.ops[row + from];
  const unsigned as = weft_problem_counted_as(problem, op % WEFT_KINDS);
  if (problem->backward != WEFT_BACKWARD_MIXED || as == WEFT_KIND_F) {
    return false;
  }
  const struct weft_op_facts *first = rank_facts(evaluator, rank) + (op - op % WEFT_KINDS);
  for (unsigned k = 0; k < 2; k++) {
    n[k] = evaluator->position[(size_t)first[WEFT_KIND_I + k].own * problem->microbatch_count +
                               evaluator->index[row + from]];
  }
  return true;
}

static bool try_flip(struct weft_evaluator *evaluator, const struct weft_move *move,
                     int64_t cutoff) {
  uint32_t n[2];
  if (!find_pair(evaluator, move->rank, move->from, n)) {
    return false;
  }
  const size_t row = (size_t)move->rank * evaluator->problem->length;
  if (evaluator->order.ops[row + n[0]] % WEFT_KINDS == WEFT_KIND_B &&
      !may_split(evaluator, move->rank, n)) {
    return false;
  }
  evaluator->log_size = 0;
  flip(evaluator, move->rank, n);
  mark(evaluator, move->rank, n[0]);
  mark(evaluator, move->rank, n[1]);
  if (!settle(evaluator, cutoff)) {
    roll_back(evaluator);
    flip(evaluator, move->rank, n);
    return false;
  }
  summarise(evaluator);
  return true;
}

bool weft_evaluator_try(struct weft_evaluator *evaluator, const struct weft_move *move,
                        int64_t cutoff) {
  assert(move->rank < evaluator->problem->rank_count && move->from > 0 && move->to > 0);
  if (move->from == move->to) {
    return try_flip(evaluator, move, cutoff);
  }
  assert(move->from < evaluator->problem->length && move->to < evaluator->problem->length);
  const uint8_t moved =
      evaluator->order.ops[(size_t)move->rank * evaluator->problem->length + move->from];
  struct segment segment;
  shift(evaluator, move, &segment);
  if (!renumber(evaluator, &segment, moved) || !fits(evaluator, &segment) ||
      !is_promising(evaluator, &segment, cutoff)) {
    return false;
  }
  evaluator->log_size = 0;
  write_segment(evaluator, &segment);
  if (!advance_segment(evaluator, &segment) || !settle(evaluator, cutoff)) {
    drop_pending(evaluator);
    roll_back(evaluator);
    put_back(evaluator, move);
    return false;
  }
  summarise(evaluator);
  return true;
}

void weft_evaluator_undo(struct weft_evaluator *evaluator, const struct weft_move *move) {
  assert(evaluator->waiting_count == 0);
  uint32_t n[2];
  roll_back(evaluator);
  if (move->from != move->to) {
    put_back(evaluator, move);
  } else if (find_pair(evaluator, move->rank, move->from, n)) {
    flip(evaluator, move->rank, n);
  }
  summarise(evaluator);
}

/* ---- The critical path ---- */

static uint32_t worst_rank(const struct weft_evaluator *evaluator) {
  const struct weft_problem *problem = evaluator->problem;
  uint32_t worst = 0;
  int64_t most = INT64_MIN;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t end = evaluator->end[(size_t)(r + 1) * problem->length - 1] -
                        (problem->objective == WEFT_OBJECTIVE_SPAN ? evaluator->first[r] : 0);
    if (end > most) {
      most = end;
      worst = r;
    }
  }
  return worst;
}

uint32_t weft_evaluator_critical(const struct weft_evaluator *evaluator, uint32_t *positions,
                                 uint32_t room) {
  assert(positions != NULL && room > 0);
  const struct weft_problem *problem = evaluator->problem;
  const uint32_t size = problem->length;
  uint32_t rank = worst_rank(evaluator), n = size - 1, count = 0;
  for (; count < room; count++) {
    const size_t row = (size_t)rank * size;
    const struct weft_op_facts *facts = &rank_facts(evaluator, rank)[evaluator->order.ops[row + n]];
    positions[count] = (uint32_t)(row + n);
    const int64_t start = evaluator->end[row + n] - facts->time;
    if (n > 0 && (facts->input == NONE || evaluator->end[row + n - 1] == start)) {
      n--;
    } else if (facts->input != NONE) {
      n = evaluator->position[(size_t)facts->sender * problem->microbatch_count +
                              evaluator->index[row + n]];
      rank = facts->sender_rank;
    } else {
      return count + 1;
    }
  }
  return count;
}
