/* Dynamic programming over the states of one rank.
 *
 * An entry is a number of ops done: of the first op of the line, of the others by the
 * profile, and of W by how many are pending. What fits into memory and what may follow depends on
 * nothing else. Only the earliest time of an entry matters: whatever can follow a later time can
 * follow that one. A whole backward leads to the same entry as a split one and its W. */
#include "plan/bounds/bound_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "plan/bounds/chain_bound.h"

#define UNREACHED INT64_MAX
#define HOPELESS INT64_MIN

/* ---- Memory ---- */

/* W that are only counted. */
static uint32_t weight_count(const struct weft_state_table *table) {
  return table->counted * table->problem->microbatch_count;
}

static bool make_lists(struct weft_state_table *table, struct weft_arena *arena) {
  for (uint32_t n = 0; n < table->line; n++) {
    struct weft_state_table_op *op = &table->ops[n];
    int64_t **const lists[] = {&op->sums, &op->head, &op->tail, &op->start, &op->stop};
    for (unsigned k = 0; k < WEFT_ARRAY_LENGTH(lists); k++) {
      if (!WEFT_ALLOCATE(arena, *lists[k], table->count + (size_t)1)) {
        return false;
      }
    }
  }
  return WEFT_ALLOCATE(arena, table->weight_sums, weight_count(table) + (size_t)1);
}

uint64_t weft_state_table_size(const struct weft_state_table *table, uint32_t rank) {
  assert(rank < table->problem->rank_count);
  const struct weft_line_profiles *profiles = &table->profiles[rank];
  return ((uint64_t)table->count + 1) * profiles->offset[profiles->count];
}

static bool make_profiles(struct weft_state_table *table, uint64_t most, struct weft_arena *arena) {
  const struct weft_problem *problem = table->problem;
  if (!WEFT_ALLOCATE(arena, table->profiles, problem->rank_count)) {
    return false;
  }
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    struct weft_line_profiles *profiles = &table->profiles[r];
    if (!weft_line_profiles_init(profiles, problem, r, table->detail, most / (table->count + 1),
                                 arena)) {
      return false;
    }
    const size_t size = (size_t)weft_state_table_size(table, r);
    const size_t cells = ((size_t)table->count + 1) * profiles->count;
    table->size = size > table->size ? size : table->size;
    table->cells = cells > table->cells ? cells : table->cells;
  }
  return true;
}

bool weft_state_table_init(struct weft_state_table *table, const struct weft_problem *problem,
                           enum weft_line_detail detail, uint64_t most, struct weft_arena *arena) {
  assert(problem->stages_per_rank <= WEFT_LOCAL_STAGES_MAX);
  const uint32_t v = problem->stages_per_rank;
  const bool merged = detail == WEFT_LINE_RANK;
  *table = (struct weft_state_table){.problem = problem,
                                     .detail = detail,
                                     .count = problem->microbatch_count * (merged ? v : 1),
                                     .line = merged ? 2 : 2 * v,
                                     .counted = detail == WEFT_LINE_WEIGHTS ? 1 : v};
  return make_profiles(table, most, arena) && make_lists(table, arena) &&
         WEFT_ALLOCATE(arena, table->earliest, table->size) &&
         WEFT_ALLOCATE(arena, table->latest, table->size) &&
         WEFT_ALLOCATE(arena, table->low, table->cells) &&
         WEFT_ALLOCATE(arena, table->high, table->cells);
}

/* ---- Times ---- */

/* Sums of the n smallest of times that occur m times each; sorts `times`. */
static void add_up(int64_t *times, uint32_t count, uint32_t m, int64_t *sums) {
  sums[0] = 0;
  qsort(times, count, sizeof *times, weft_by_time);
  for (uint32_t n = 0; n < count; n++) {
    for (uint32_t k = 0; k < m; k++) {
      sums[n * m + k + 1] = sums[n * m + k] + times[n];
    }
  }
}

static void set_times(struct weft_state_table *table, uint32_t rank) {
  const struct weft_problem *problem = table->problem;
  const uint32_t v = problem->stages_per_rank, m = problem->microbatch_count;
  const bool mixed = weft_problem_mixes(problem);
  const uint32_t own = table->detail == WEFT_LINE_RANK ? v : 1; /* stages of an op */
  int64_t forward[WEFT_LOCAL_STAGES_MAX] = {0}, back[WEFT_LOCAL_STAGES_MAX] = {0},
          weight[WEFT_LOCAL_STAGES_MAX] = {0};
  table->weight_time = INT64_MAX;
  table->has_gradients = false;
  for (uint32_t n = 0; n < table->line; n++) {
    table->ops[n].time = INT64_MAX;
    table->ops[n].whole = mixed && n >= table->line / 2 ? INT64_MAX : -1;
  }
  for (uint32_t k = 0; k < v; k++) {
    const uint32_t s = problem->stage_of[rank * v + k];
    const int64_t *time = problem->stages[s].time;
    struct weft_state_table_op *op = &table->ops[own == 1 ? k : 0];
    struct weft_state_table_op *mirror = &table->ops[table->line - 1 - (own == 1 ? k : 0)];
    forward[k] = time[WEFT_KIND_F];
    back[k] = weft_least_gradient(problem, s);
    weight[k] = weft_least_weight(problem, s);
    op->time = weft_min(op->time, forward[k]);
    mirror->time = weft_min(mirror->time, mixed ? time[WEFT_KIND_I] : back[k]);
    mirror->whole = mixed ? weft_min(mirror->whole, time[WEFT_KIND_B]) : -1;
    table->extra_time[k] = mixed ? time[WEFT_KIND_W] : weight[k];
    table->extra_least[k] = weight[k];
    table->gradients[k] = problem->stages[s].gradients;
    table->has_gradients = table->has_gradients || table->gradients[k] > 0;
    if (k < table->counted) {
      table->weight_time = weft_min(table->weight_time, table->extra_time[k]);
    }
  }
  for (uint32_t n = 0; n < table->line / 2; n++) {
    add_up(forward + n, own, m, table->ops[n].sums);
    add_up(back + n, own, m, table->ops[table->line - 1 - n].sums);
  }
  add_up(weight, table->counted, m, table->weight_sums);
  if (own > 1) {
    qsort(table->gradients, v, sizeof *table->gradients, weft_by_time);
  }
}

/* ---- Moves ---- */

/* The entries with the same number of first ops and the same profile. */
static size_t cell(const struct weft_state_table *table, uint32_t first, uint32_t profile) {
  return (size_t)first * table->now->count + profile;
}

static size_t row(const struct weft_state_table *table, uint32_t first, uint32_t profile) {
  const struct weft_line_profiles *profiles = table->now;
  return (size_t)first * profiles->offset[profiles->count] + profiles->offset[profile];
}

/* An op that may follow all entries of a cell. */
struct move {
  uint32_t n, k; /* op of the line and its occurrence; larger n for W */
  int64_t head, tail, time;
  uint32_t before;    /* counted W that may be pending before it, */
  uint32_t most;      /* and after it */
  uint32_t pending;   /* W that may be pending and are not counted */
  int shift;          /* change of their number */
  size_t cell, row;   /* that it leads to */
  int64_t done, left; /* there: least time of what is done and left, without counted W */
  uint32_t backs;     /* there: I done whose W are only counted */
};

enum { MOVES_MAX = 4 * WEFT_LOCAL_STAGES_MAX + 1 };

static void weigh(const struct weft_state_table *table, uint32_t first, uint32_t profile,
                  struct move *move) {
  const struct weft_line_profiles *profiles = table->now;
  const uint32_t *behind = profiles->behind + (size_t)profile * table->line;
  for (uint32_t n = 0; n < table->line; n++) {
    const uint32_t count = first - behind[n];
    move->done += table->ops[n].sums[count];
    move->left += table->ops[n].sums[table->count - count];
    move->backs += n >= table->line - (table->line == 2 ? 1 : table->counted) ? count : 0;
  }
  for (uint32_t k = 0; k < profiles->extra; k++) {
    const uint32_t back = first - behind[table->line - 2 - k];
    const int64_t done = back - profiles->waiting[(size_t)profile * profiles->extra + k];
    move->done += done * table->extra_least[k + 1];
    move->left += (table->count - done) * table->extra_least[k + 1];
  }
}

/* The gradients that a rank has, before or after its next op n of the line. If stages are merged,
 * the smallest that are possible. */
static int64_t gradients_at(const struct weft_state_table *table, uint32_t first, uint32_t profile,
                            uint32_t next) {
  const uint32_t *behind = table->now->behind + (size_t)profile * table->line;
  const uint32_t m = table->problem->microbatch_count;
  int64_t sum = 0;
  for (uint32_t n = table->line / 2; n < table->line; n++) {
    uint32_t count = first - behind[n] + (n == next);
    for (uint32_t k = table->line - 1 - n; count > 0; k++, count -= count < m ? count : m) {
      sum += table->gradients[k];
    }
  }
  return sum;
}

/* Lowers a number of W that may be pending with a profile to what gradients leave room for; false
 * when they leave none for the profile itself. */
static bool make_room(const struct weft_line_profiles *profiles, uint32_t profile,
                      int64_t gradients, uint32_t *weights) {
  const int64_t room = profiles->room[profile] - gradients;
  if (room >= 0 && profiles->after > 0) {
    *weights = (uint32_t)weft_min(*weights, room / profiles->after);
  }
  return room >= 0;
}

/* The same for a move. A first backward needs room for its gradients before it releases its
 * activation. */
static bool fit_gradients(const struct weft_state_table *table, uint32_t first, uint32_t profile,
                          uint32_t next, struct move *move) {
  const struct weft_line_profiles *profiles = table->now;
  return make_room(profiles, profile, gradients_at(table, first, profile, move->n),
                   &move->before) &&
         make_room(profiles, next, gradients_at(table, first + (move->n == 0), next, UINT32_MAX),
                   table->detail == WEFT_LINE_FLOW ? &move->pending : &move->most);
}

/* The move of the k-th op n of the line, or of a W. */
static struct move describe_move(const struct weft_state_table *table, uint32_t n, uint32_t k) {
  const uint32_t known = table->line + table->now->extra;
  if (n >= table->line) {
    return (struct move){
        .n = n,
        .head = table->from,
        .tail = table->end,
        .time = n == known ? table->weight_time : table->extra_time[n - table->line + 1],
        .shift = n == known ? -1 : 0};
  }
  const struct weft_state_table_op *op = &table->ops[n];
  const bool adds = table->now->extra > 0 ? n == table->line - 1 : n >= table->line / 2;
  return (struct move){
      .n = n,
      .k = k,
      .head = op->head[k],
      .tail = op->tail[k],
      .time = op->time,
      .shift = adds && table->detail != WEFT_LINE_FLOW && table->problem->may_split};
}

static struct move lead_to(const struct weft_state_table *table, struct move move, uint32_t first,
                           uint32_t profile) {
  move.before = UINT32_MAX;
  move.most = table->now->most[profile];
  move.pending = table->now->pending[profile];
  move.cell = cell(table, first, profile);
  move.row = row(table, first, profile);
  weigh(table, first, profile, &move);
  return move;
}

static uint32_t list_moves(const struct weft_state_table *table, uint32_t first, uint32_t profile,
                           struct move *moves) {
  const struct weft_line_profiles *profiles = table->now;
  const uint32_t known = table->line + profiles->extra;
  uint32_t count = 0;
  for (uint32_t n = 0; n <= known; n++) {
    const uint32_t next = n == known ? profile : profiles->next[(size_t)profile * known + n];
    const uint32_t k =
        n >= table->line ? 0 : first - profiles->behind[(size_t)profile * table->line + n];
    if (next == WEFT_PROFILE_NONE || k == table->count) {
      continue;
    }
    moves[count] = lead_to(table, describe_move(table, n, k), first + (n == 0), next);
    count += !table->has_gradients || fit_gradients(table, first, profile, next, &moves[count]);
    if (n < table->line && table->ops[n].whole >= 0) {
      struct move whole = describe_move(table, n, k);
      whole.time = table->ops[n].whole;
      whole.shift = 0;
      const uint32_t then = profiles->whole[(size_t)profile * table->line + n];
      moves[count] = lead_to(table, whole, first, then);
      count += !table->has_gradients || fit_gradients(table, first, profile, then, &moves[count]);
    }
  }
  return count;
}

/* Pending W after a move; false when they do not fit into the memory, or when none was pending. */
static bool weights_after(const struct move *move, uint32_t weights, uint32_t *after) {
  *after = weights + (uint32_t)move->shift;
  return weights <= move->before && *after <= move->most && (move->shift >= 0 || weights > 0);
}

/* ---- Forward: earliest times ---- */

static void note(const struct weft_state_table *table, const struct move *move, uint32_t weights,
                 int64_t time) {
  int64_t *earliest = table->earliest + move->row;
  uint32_t *low = &table->low[move->cell], *high = &table->high[move->cell];
  if (*low > *high) {
    for (uint32_t y = 0; y <= move->most; y++) {
      earliest[y] = UNREACHED;
    }
    *low = *high = weights;
  }
  *low = weights < *low ? weights : *low;
  *high = weights > *high ? weights : *high;
  earliest[weights] = weft_min(earliest[weights], time);
}

static void reach(const struct weft_state_table *table, const struct move *move, uint32_t weights,
                  int64_t clock) {
  uint32_t after;
  if (!weights_after(move, weights, &after)) {
    return;
  }
  const uint32_t all = weight_count(table), done = move->backs - after;
  const int64_t *sums = table->weight_sums;
  const int64_t least = sums[done > move->pending ? done - move->pending : 0];
  const int64_t end =
      weft_max(weft_max(clock, move->head) + move->time, table->from + move->done + least);
  if (end <= move->tail && end + move->left + sums[all - move->backs + after] <= table->end) {
    note(table, move, after, end);
  }
}

static void go_on(struct weft_state_table *table, uint32_t first, uint32_t profile) {
  struct move moves[MOVES_MAX];
  const uint32_t count = list_moves(table, first, profile, moves);
  const size_t where = cell(table, first, profile);
  const int64_t *earliest = table->earliest + row(table, first, profile);
  /* Descending: a W leads to an entry below. */
  for (uint32_t y = table->high[where] + 1; y-- > table->low[where];) {
    if (earliest[y] != UNREACHED) {
      table->visited++;
      for (uint32_t n = 0; n < count; n++) {
        reach(table, &moves[n], y, earliest[y]);
      }
    }
  }
}

/* Starts with nothing done. Ops other than the first lead to profiles that come later, and W to
 * entries with fewer pending. */
static void go_forward(struct weft_state_table *table) {
  const size_t cells = cell(table, table->count + 1, 0);
  for (size_t n = 0; n < cells; n++) {
    table->low[n] = 1;
    table->high[n] = 0;
  }
  const uint32_t start = table->now->start;
  const struct move begin = {
      .most = table->now->most[start], .cell = cell(table, 0, start), .row = row(table, 0, start)};
  note(table, &begin, 0, table->from);
  for (uint32_t first = 0; first <= table->count && !table->cancelled; first++) {
    table->cancelled = weft_search_control_poll(table->problem->control);
    for (uint32_t profile = 0; profile < table->now->count; profile++) {
      const size_t where = cell(table, first, profile);
      if (table->low[where] <= table->high[where]) {
        go_on(table, first, profile);
      }
    }
  }
}

/* ---- Backward: latest times ---- */

/* The latest time at which a move can still lead to the end in time, or HOPELESS; also widens the
 * window of its op. */
static int64_t look_back(const struct weft_state_table *table, const struct move *move,
                         uint32_t weights, int64_t clock) {
  uint32_t after;
  if (!weights_after(move, weights, &after) || after < table->low[move->cell] ||
      after > table->high[move->cell]) {
    return HOPELESS;
  }
  const int64_t then = table->latest[move->row + after];
  const int64_t stop = weft_min(then, move->tail);
  const int64_t start = weft_max(clock, move->head);
  if (then == HOPELESS || stop - move->time < start) {
    return HOPELESS;
  }
  if (move->n < table->line) {
    const struct weft_state_table_op *op = &table->ops[move->n];
    op->start[move->k] = weft_min(op->start[move->k], start);
    op->stop[move->k] = weft_max(op->stop[move->k], stop);
  }
  return stop - move->time;
}

/* All entries of a cell. What is left takes at least the sums of the smallest times. */
static void go_back(const struct weft_state_table *table, uint32_t first, uint32_t profile) {
  struct move moves[MOVES_MAX];
  const uint32_t count = list_moves(table, first, profile, moves);
  const size_t where = cell(table, first, profile), at = row(table, first, profile);
  struct move here = {0};
  weigh(table, first, profile, &here);
  const uint32_t weights_left = weight_count(table) - here.backs;
  const bool is_last = first == table->count && profile == table->now->start;
  for (uint32_t y = table->low[where]; y <= table->high[where]; y++) {
    const int64_t clock = table->earliest[at + y];
    int64_t latest = is_last && y == 0 ? table->end : HOPELESS;
    for (uint32_t n = 0; clock != UNREACHED && n < count; n++) {
      latest = weft_max(latest, look_back(table, &moves[n], y, clock));
    }
    table->latest[at + y] =
        weft_min(latest, table->end - here.left - table->weight_sums[weights_left + y]);
  }
}

static void reset_windows(const struct weft_state_table *table) {
  for (uint32_t n = 0; n < table->line; n++) {
    for (uint32_t k = 0; k < table->count; k++) {
      table->ops[n].start[k] = INT64_MAX;
      table->ops[n].stop[k] = INT64_MIN;
    }
  }
}

static void go_backward(const struct weft_state_table *table) {
  reset_windows(table);
  for (uint32_t first = table->count + 1; first-- > 0;) {
    for (uint32_t profile = table->now->count; profile-- > 0;) {
      const size_t where = cell(table, first, profile);
      if (table->low[where] <= table->high[where]) {
        go_back(table, first, profile);
      }
    }
  }
}

bool weft_state_table_fill(struct weft_state_table *table, uint32_t rank, int64_t from,
                           int64_t end) {
  assert(rank < table->problem->rank_count && table->high != NULL);
  table->now = &table->profiles[rank];
  table->from = from;
  table->end = end;
  table->visited = 0;
  set_times(table, rank);
  go_forward(table);
  if (table->cancelled) {
    return true;
  }
  const uint32_t start = table->now->start;
  const size_t last = cell(table, table->count, start);
  if (table->low[last] > table->high[last] ||
      table->earliest[row(table, table->count, start)] == UNREACHED) {
    return false;
  }
  go_backward(table);
  return table->latest[row(table, 0, start)] != HOPELESS;
}

/* ---- Building an order along the table ---- */

struct weft_state_table_at weft_state_table_begin(const struct weft_state_table *table,
                                                  uint32_t rank) {
  assert(rank < table->problem->rank_count);
  return (struct weft_state_table_at){.profile = table->profiles[rank].start};
}

bool weft_state_table_follow(const struct weft_state_table *table, uint32_t rank,
                             uint32_t local_stage, enum weft_plan_op_kind kind,
                             struct weft_state_table_at *at) {
  assert(rank < table->problem->rank_count && local_stage < table->problem->stages_per_rank);
  const struct weft_line_profiles *profiles = &table->profiles[rank];
  const uint32_t known = table->line + profiles->extra;
  const uint32_t own = table->detail == WEFT_LINE_RANK ? 0 : local_stage;
  const bool is_weight = kind == WEFT_KIND_W;
  const uint32_t n = kind == WEFT_KIND_F              ? own
                     : !is_weight                     ? table->line - 1 - own
                     : profiles->extra > 0 && own > 0 ? table->line + own - 1
                                                      : known;
  if (n == known) {
    at->weights -= at->weights > 0;
    return true;
  }
  const uint32_t profile = kind == WEFT_KIND_B
                               ? profiles->whole[(size_t)at->profile * table->line + n]
                               : profiles->next[(size_t)at->profile * known + n];
  const bool adds = kind == WEFT_KIND_I && (profiles->extra == 0 || own == 0);
  if (profile == WEFT_PROFILE_NONE || at->weights + adds > profiles->most[profile]) {
    return false;
  }
  *at = (struct weft_state_table_at){at->first + (n == 0), profile, at->weights + adds};
  return true;
}

static size_t cells_of(const struct weft_state_table *table, uint32_t rank) {
  return ((size_t)table->count + 1) * table->profiles[rank].count;
}

bool weft_state_table_keep_init(struct weft_state_table_kept *kept,
                                const struct weft_state_table *table, uint32_t rank,
                                struct weft_arena *arena) {
  assert(kept != NULL && rank < table->problem->rank_count);
  const size_t cells = cells_of(table, rank);
  return WEFT_ALLOCATE(arena, kept->latest, (size_t)weft_state_table_size(table, rank)) &&
         WEFT_ALLOCATE(arena, kept->low, cells) && WEFT_ALLOCATE(arena, kept->high, cells);
}

void weft_state_table_keep(struct weft_state_table_kept *kept, const struct weft_state_table *table,
                           uint32_t rank) {
  assert(table->now == &table->profiles[rank] && kept->latest != NULL);
  const size_t cells = cells_of(table, rank);
  memcpy(kept->latest, table->latest,
         (size_t)weft_state_table_size(table, rank) * sizeof *kept->latest);
  memcpy(kept->low, table->low, cells * sizeof *kept->low);
  memcpy(kept->high, table->high, cells * sizeof *kept->high);
}

int64_t weft_state_table_latest(const struct weft_state_table *table,
                                const struct weft_state_table_kept *kept, uint32_t rank,
                                struct weft_state_table_at at) {
  assert(rank < table->problem->rank_count && kept->latest != NULL);
  const struct weft_line_profiles *profiles = &table->profiles[rank];
  const size_t where = (size_t)at.first * profiles->count + at.profile;
  return at.weights < kept->low[where] || at.weights > kept->high[where]
             ? HOPELESS
             : kept->latest[(size_t)at.first * profiles->offset[profiles->count] +
                            profiles->offset[at.profile] + at.weights];
}
