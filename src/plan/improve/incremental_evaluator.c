/* Times that follow a change of the order. */
#include "plan/improve/incremental_evaluator.h"

#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

#define NONE UINT32_MAX

/* Times that one move may change. */
enum { LOG_MAX = 1 << 20 };

/* ---- Room ---- */

static size_t letter_count(const struct weft_problem *problem) {
  return (size_t)problem->rank_count * problem->word_size;
}

static size_t row_count(const struct weft_problem *problem) {
  return (size_t)problem->stage_count * WEFT_KINDS;
}

static size_t arrival_count(const struct weft_problem *problem) {
  return 2 * (size_t)problem->stage_count * problem->microbatch_count;
}

static bool allocate(struct weft_tableau *tableau) {
  const struct weft_problem *problem = tableau->problem;
  const size_t letters = letter_count(problem), ranks = problem->rank_count;
  tableau->log_room = 4 * (letters + arrival_count(problem));
  tableau->log_room = tableau->log_room < LOG_MAX ? tableau->log_room : LOG_MAX;
#define ROOM(field, count) \
  ((tableau->field =       \
        weft_array_allocate_zero(problem->allocator, count, sizeof *tableau->field)) != NULL)
  return ROOM(facts, row_count(problem)) && ROOM(order.letters, letters) && ROOM(index, letters) &&
         ROOM(position, row_count(problem) * problem->microbatch_count) && ROOM(end, letters) &&
         ROOM(tail, letters) && ROOM(held, letters) && ROOM(arrival, arrival_count(problem)) &&
         ROOM(first, ranks) && ROOM(pending, ranks) && ROOM(last, ranks) && ROOM(waiting, ranks) &&
         ROOM(log, tableau->log_room);
#undef ROOM
}

void weft_tableau_finish(struct weft_tableau *tableau) {
  const struct weft_problem *problem = tableau->problem;
  const size_t letters = letter_count(problem), ranks = problem->rank_count;
#define FREE(field, count) \
  weft_array_free(problem->allocator, tableau->field, count, sizeof *tableau->field)
  FREE(facts, row_count(problem));
  FREE(order.letters, letters);
  FREE(index, letters);
  FREE(position, row_count(problem) * problem->microbatch_count);
  FREE(end, letters);
  FREE(tail, letters);
  FREE(held, letters);
  FREE(arrival, arrival_count(problem));
  FREE(first, ranks);
  FREE(pending, ranks);
  FREE(last, ranks);
  FREE(waiting, ranks);
  FREE(log, tableau->log_room);
#undef FREE
  *tableau = (struct weft_tableau){.problem = problem};
}

/* ---- Facts ---- */

static struct weft_letter_facts *facts_of(struct weft_tableau *tableau, uint32_t stage,
                                          unsigned kind) {
  const struct weft_problem *problem = tableau->problem;
  const struct weft_problem_stage *at = &problem->stages[stage];
  return &tableau->facts[((size_t)at->rank * problem->stages_per_rank + at->place) * WEFT_KINDS +
                         kind];
}

static void describe(struct weft_tableau *tableau, uint32_t stage) {
  const struct weft_problem_stage *at = &tableau->problem->stages[stage];
  const int64_t changes[WEFT_KINDS] = {at->held, at->held_after - at->held, -at->held_after,
                                       -at->held};
  for (unsigned kind = 0; kind < WEFT_KINDS; kind++) {
    *facts_of(tableau, stage, kind) = (struct weft_letter_facts){.time = at->time[kind],
                                                                 .change = changes[kind],
                                                                 .input = NONE,
                                                                 .output = NONE,
                                                                 .own = stage * WEFT_KINDS + kind};
  }
}

static void connect(struct weft_tableau *tableau, uint32_t from, uint32_t to, unsigned kind,
                    uint32_t row) {
  const struct weft_problem *problem = tableau->problem;
  struct weft_letter_facts *giver = facts_of(tableau, from, kind);
  const bool crosses = problem->stages[from].rank != problem->stages[to].rank;
  giver->output = row;
  giver->latency = crosses ? problem->latency : 0;
  giver->occupancy = crosses ? problem->occupancy : 0;
  giver->taker = to * WEFT_KINDS + kind;
  giver->taker_rank = problem->stages[to].rank;
  giver->taker_letter = problem->stages[to].place * WEFT_KINDS + kind;
  struct weft_letter_facts *taker = facts_of(tableau, to, kind);
  taker->input = row;
  taker->giver = from * WEFT_KINDS + kind;
  taker->giver_rank = problem->stages[from].rank;
}

static void describe_all(struct weft_tableau *tableau) {
  const struct weft_problem *problem = tableau->problem;
  const unsigned back = problem->whole_backward ? WEFT_LETTER_B : WEFT_LETTER_I;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    describe(tableau, s);
  }
  for (uint32_t s = 0; s + 1 < problem->stage_count; s++) {
    connect(tableau, s, s + 1, WEFT_LETTER_F, s);
    connect(tableau, s + 1, s, back, problem->stage_count + s);
  }
}

enum weft_status weft_tableau_init(struct weft_tableau *tableau, const struct weft_problem *problem,
                                   struct weft_error *error) {
  *tableau = (struct weft_tableau){.problem = problem};
  if (!allocate(tableau)) {
    weft_tableau_finish(tableau);
    return weft_fail_memory(error, letter_count(problem) * sizeof(int64_t));
  }
  describe_all(tableau);
  memset(tableau->pending, 0xff, problem->rank_count * sizeof *tableau->pending);
  return WEFT_OK;
}

static const struct weft_letter_facts *rank_facts(const struct weft_tableau *tableau,
                                                  uint32_t rank) {
  return tableau->facts + (size_t)rank * tableau->problem->stages_per_rank * WEFT_KINDS;
}

/* ---- Pending work ---- */

static void mark(struct weft_tableau *tableau, uint32_t rank, uint32_t from) {
  if (tableau->pending[rank] == NONE) {
    tableau->waiting[tableau->waiting_count++] = rank;
    tableau->pending[rank] = from;
    tableau->last[rank] = from;
  } else if (from < tableau->pending[rank]) {
    tableau->pending[rank] = from;
  } else if (from > tableau->last[rank]) {
    tableau->last[rank] = from;
  }
}

/* The rank whose pending letter is earliest: then hardly anything is computed twice. */
static uint32_t take_earliest(struct weft_tableau *tableau, uint32_t *from) {
  const uint32_t size = tableau->problem->word_size;
  uint32_t best = 0;
  int64_t when = INT64_MAX;
  for (uint32_t k = 0; k < tableau->waiting_count; k++) {
    const uint32_t rank = tableau->waiting[k];
    const int64_t end = tableau->end[(size_t)rank * size + tableau->pending[rank]];
    if (end < when) {
      when = end;
      best = k;
    }
  }
  const uint32_t rank = tableau->waiting[best];
  tableau->waiting[best] = tableau->waiting[--tableau->waiting_count];
  *from = tableau->pending[rank];
  tableau->pending[rank] = NONE;
  return rank;
}

static void drop_pending(struct weft_tableau *tableau) {
  while (tableau->waiting_count > 0) {
    tableau->pending[tableau->waiting[--tableau->waiting_count]] = NONE;
  }
}

/* ---- Times ---- */

/* False when the log is full, which only ranks that wait for each other bring about. */
static bool set(struct weft_tableau *tableau, int64_t *at, int64_t value) {
  if (tableau->log_size == tableau->log_room) {
    return false;
  }
  tableau->log[tableau->log_size++] = (struct weft_tableau_change){.at = at, .before = *at};
  *at = value;
  return true;
}

/* The output of a letter arrives at another time; so may those behind it on the channel. */
static bool deliver(struct weft_tableau *tableau, const struct weft_letter_facts *facts,
                    uint32_t microbatch, int64_t end) {
  const struct weft_problem *problem = tableau->problem;
  const uint32_t m = problem->microbatch_count;
  int64_t *row = tableau->arrival + (size_t)facts->output * m;
  const uint32_t *taken_at = tableau->position + (size_t)facts->taker * m;
  for (;;) {
    int64_t leaves = end;
    if (facts->occupancy > 0 && microbatch > 0 && row[microbatch - 1] - facts->latency > leaves) {
      leaves = row[microbatch - 1] - facts->latency;
    }
    const int64_t arrives = leaves + facts->occupancy + facts->latency;
    if (arrives == row[microbatch]) {
      return true;
    }
    if (!set(tableau, &row[microbatch], arrives)) {
      return false;
    }
    mark(tableau, facts->taker_rank, taken_at[microbatch]);
    if (facts->occupancy == 0 || ++microbatch == m) {
      return true;
    }
    const uint32_t rank = problem->stages[facts->own / WEFT_KINDS].rank;
    end = tableau->end[(size_t)rank * problem->word_size +
                       tableau->position[(size_t)facts->own * m + microbatch]];
  }
}

/* Computes a rank's letters again from one on, until they are as they were. False when
 * the value is certain, or by its tails very likely, to be above the cutoff. */
static bool advance(struct weft_tableau *tableau, uint32_t rank, uint32_t from, int64_t cutoff) {
  const struct weft_problem *problem = tableau->problem;
  const struct weft_letter_facts *all = rank_facts(tableau, rank);
  const size_t row = (size_t)rank * problem->word_size;
  const uint8_t *word = tableau->order.letters + row;
  const uint32_t last = tableau->last[rank];
  int64_t now = from == 0 ? 0 : tableau->end[row + from - 1];
  for (uint32_t n = from; n < problem->word_size; n++) {
    const struct weft_letter_facts *facts = &all[word[n]];
    const uint32_t microbatch = tableau->index[row + n];
    if (facts->input != NONE) {
      const int64_t arrives =
          tableau->arrival[(size_t)facts->input * problem->microbatch_count + microbatch];
      now = arrives > now ? arrives : now;
    }
    now += facts->time;
    tableau->steps++;
    if (now == tableau->end[row + n]) {
      if (n >= last) {
        return true;
      }
      continue;
    }
    if (now + tableau->tail[row + n] > cutoff || !set(tableau, &tableau->end[row + n], now) ||
        (facts->output != NONE && !deliver(tableau, facts, microbatch, now))) {
      return false;
    }
  }
  return true;
}

static bool settle(struct weft_tableau *tableau, int64_t cutoff) {
  while (tableau->waiting_count > 0) {
    uint32_t from;
    const uint32_t rank = take_earliest(tableau, &from);
    if (!advance(tableau, rank, from, cutoff)) {
      drop_pending(tableau);
      return false;
    }
  }
  return true;
}

static void summarise(struct weft_tableau *tableau) {
  const struct weft_problem *problem = tableau->problem;
  int64_t from = INT64_MAX, to = 0, span = 0, sum = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t end = tableau->end[(size_t)(r + 1) * problem->word_size - 1];
    const int64_t own = end - tableau->first[r];
    from = tableau->first[r] < from ? tableau->first[r] : from;
    to = end > to ? end : to;
    span = own > span ? own : span;
    sum += own;
  }
  tableau->makespan = to - from;
  tableau->span = span;
  tableau->span_sum = sum;
  tableau->value = problem->objective == WEFT_OBJECTIVE_SPAN ? span : to - from;
}

/* ---- From scratch ---- */

static void number_letters(struct weft_tableau *tableau, uint32_t rank) {
  const struct weft_problem *problem = tableau->problem;
  const struct weft_letter_facts *all = rank_facts(tableau, rank);
  const size_t row = (size_t)rank * problem->word_size;
  uint32_t counts[WEFT_PLACES_MAX * WEFT_KINDS] = {0};
  int64_t held = 0;
  for (uint32_t n = 0; n < problem->word_size; n++) {
    const uint8_t letter = tableau->order.letters[row + n];
    const uint32_t microbatch = counts[letter]++;
    tableau->index[row + n] = microbatch;
    tableau->position[(size_t)all[letter].own * problem->microbatch_count + microbatch] = n;
    tableau->held[row + n] = held;
    held += all[letter].change;
  }
}

/* Arrivals as an evaluation has found them, and what follows for each rank. */
static void copy_times(struct weft_tableau *tableau, const struct weft_evaluation *evaluation) {
  const struct weft_problem *problem = tableau->problem;
  memcpy(tableau->arrival, evaluation->arrivals, arrival_count(problem) * sizeof *tableau->arrival);
  memcpy(tableau->first, evaluation->first, problem->rank_count * sizeof *tableau->first);
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const struct weft_letter_facts *all = rank_facts(tableau, r);
    const size_t row = (size_t)r * problem->word_size;
    int64_t now = 0;
    for (uint32_t n = 0; n < problem->word_size; n++) {
      const struct weft_letter_facts *facts = &all[tableau->order.letters[row + n]];
      if (facts->input != NONE) {
        const int64_t arrives = tableau->arrival[(size_t)facts->input * problem->microbatch_count +
                                                 tableau->index[row + n]];
        now = arrives > now ? arrives : now;
      }
      now += facts->time;
      tableau->end[row + n] = now;
    }
  }
}

void weft_tableau_set(struct weft_tableau *tableau, const struct weft_order *order,
                      const struct weft_evaluation *evaluation) {
  const struct weft_problem *problem = tableau->problem;
  memcpy(tableau->order.letters, order->letters, letter_count(problem));
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    number_letters(tableau, r);
  }
  copy_times(tableau, evaluation);
  summarise(tableau);
  weft_tableau_refresh(tableau);
}

/* ---- Tails ---- */

/* What is left after a letter, through whoever takes its output. */
static int64_t tail_through(const struct weft_tableau *tableau,
                            const struct weft_letter_facts *facts, uint32_t microbatch) {
  const struct weft_problem *problem = tableau->problem;
  const uint32_t at =
      tableau->position[(size_t)facts->taker * problem->microbatch_count + microbatch];
  return facts->occupancy + facts->latency +
         rank_facts(tableau, facts->taker_rank)[facts->taker_letter].time +
         tableau->tail[(size_t)facts->taker_rank * problem->word_size + at];
}

/* Goes back on a rank as far as tails are known: pending is the letter after the next. */
static void retreat(struct weft_tableau *tableau, uint32_t rank) {
  const struct weft_problem *problem = tableau->problem;
  const struct weft_letter_facts *all = rank_facts(tableau, rank);
  const size_t row = (size_t)rank * problem->word_size;
  const uint8_t *word = tableau->order.letters + row;
  uint32_t n = tableau->pending[rank];
  for (; n > 0; n--) {
    const struct weft_letter_facts *facts = &all[word[n - 1]];
    const uint32_t microbatch = tableau->index[row + n - 1];
    int64_t tail = problem->objective == WEFT_OBJECTIVE_SPAN ? -tableau->first[rank] : 0;
    if (n < problem->word_size) {
      tail = all[word[n]].time + tableau->tail[row + n];
    }
    if (facts->output != NONE) {
      const uint32_t at =
          tableau->position[(size_t)facts->taker * problem->microbatch_count + microbatch];
      if (facts->taker_rank != rank && at < tableau->pending[facts->taker_rank]) {
        break;
      }
      const int64_t through = tail_through(tableau, facts, microbatch);
      tail = through > tail ? through : tail;
    }
    tableau->tail[row + n - 1] = tail;
  }
  tableau->pending[rank] = n;
}

/* Up and down the ranks: what is left of forwards becomes known from the last rank to the
 * first, of backwards the other way. */
void weft_tableau_refresh(struct weft_tableau *tableau) {
  const struct weft_problem *problem = tableau->problem;
  const uint32_t ranks = problem->rank_count;
  for (uint32_t r = 0; r < ranks; r++) {
    tableau->pending[r] = problem->word_size;
  }
  for (uint32_t left = 1; left > 0;) {
    left = 0;
    for (uint32_t k = 0; k < 2 * ranks; k++) {
      const uint32_t rank = k < ranks ? ranks - 1 - k : k - ranks;
      retreat(tableau, rank);
      left += tableau->pending[rank];
    }
  }
  memset(tableau->pending, 0xff, ranks * sizeof *tableau->pending);
  tableau->steps += letter_count(problem);
}

/* ---- Moves ---- */

/* The letters between both ends of a move, as they would be. */
struct window {
  uint32_t rank;
  uint32_t from, size;
  uint8_t letters[WEFT_MOVE_MAX];
  uint32_t index[WEFT_MOVE_MAX];
  int64_t held[WEFT_MOVE_MAX];
};

static void shift(struct weft_tableau *tableau, const struct weft_move *move,
                  struct window *window) {
  const size_t row = (size_t)move->rank * tableau->problem->word_size;
  const uint32_t from = move->from < move->to ? move->from : move->to;
  const uint32_t size = (move->from < move->to ? move->to : move->from) - from + 1;
  const uint8_t *word = tableau->order.letters + row;
  window->rank = move->rank;
  window->from = from;
  window->size = size;
  if (move->from < move->to) {
    memcpy(window->letters, word + from + 1, size - 1);
    memcpy(window->index, tableau->index + row + from + 1, (size - 1) * sizeof(uint32_t));
    window->letters[size - 1] = word[move->from];
  } else {
    memcpy(window->letters + 1, word + from, size - 1);
    memcpy(window->index + 1, tableau->index + row + from, (size - 1) * sizeof(uint32_t));
    window->letters[0] = word[move->from];
  }
}

static unsigned needed_by(unsigned kind) {
  return kind == WEFT_LETTER_W ? WEFT_LETTER_I : WEFT_LETTER_F;
}

/* Numbers the letters of the moved one's stage again; false when one would come before
 * what it needs. Only letters within the window can be passed: the first of each kind says
 * how many came before it. */
static bool renumber(const struct weft_tableau *tableau, struct window *window, uint8_t moved) {
  const size_t row = (size_t)window->rank * tableau->problem->word_size + window->from;
  const unsigned first = moved / WEFT_KINDS * (unsigned)WEFT_KINDS;
  uint32_t counts[WEFT_KINDS] = {NONE, NONE, NONE, NONE};
  for (uint32_t k = window->size; k-- > 0;) {
    const unsigned kind = tableau->order.letters[row + k] - first;
    if (kind < WEFT_KINDS) {
      counts[kind] = tableau->index[row + k];
    }
  }
  for (uint32_t k = 0; k < window->size; k++) {
    const unsigned kind = window->letters[k] - first;
    if (kind >= WEFT_KINDS) {
      continue;
    }
    const uint32_t needed = kind == WEFT_LETTER_F ? NONE : counts[needed_by(kind)];
    if (needed != NONE && counts[kind] >= needed) {
      return false;
    }
    window->index[k] = counts[kind]++;
  }
  return true;
}

static bool fits(const struct weft_tableau *tableau, struct window *window) {
  const struct weft_letter_facts *all = rank_facts(tableau, window->rank);
  const int64_t limit = tableau->problem->limit[window->rank];
  int64_t held = tableau->held[(size_t)window->rank * tableau->problem->word_size + window->from];
  for (uint32_t k = 0; k < window->size; k++) {
    window->held[k] = held;
    held += all[window->letters[k]].change;
    if (held > limit) {
      return false;
    }
  }
  return true;
}

/* Whether the letters of the window can be followed by what follows them now, as tails say. */
static bool is_promising(struct weft_tableau *tableau, const struct window *window,
                         int64_t cutoff) {
  const struct weft_problem *problem = tableau->problem;
  const struct weft_letter_facts *all = rank_facts(tableau, window->rank);
  const size_t row = (size_t)window->rank * problem->word_size;
  const uint32_t after = window->from + window->size;
  int64_t now = tableau->end[row + window->from - 1];
  tableau->steps += window->size;
  for (uint32_t k = 0; k < window->size; k++) {
    const struct weft_letter_facts *facts = &all[window->letters[k]];
    if (facts->input != NONE) {
      const int64_t arrives =
          tableau->arrival[(size_t)facts->input * problem->microbatch_count + window->index[k]];
      now = arrives > now ? arrives : now;
    }
    now += facts->time;
    if (facts->output != NONE && facts->taker_rank != window->rank &&
        now + tail_through(tableau, facts, window->index[k]) > cutoff) {
      return false;
    }
  }
  const int64_t tail = after < problem->word_size ? all[tableau->order.letters[row + after]].time +
                                                        tableau->tail[row + after]
                       : problem->objective == WEFT_OBJECTIVE_SPAN ? -tableau->first[window->rank]
                                                                   : 0;
  return now + tail <= cutoff;
}

static void write_window(struct weft_tableau *tableau, const struct window *window) {
  const struct weft_problem *problem = tableau->problem;
  const struct weft_letter_facts *all = rank_facts(tableau, window->rank);
  const size_t row = (size_t)window->rank * problem->word_size + window->from;
  for (uint32_t k = 0; k < window->size; k++) {
    tableau->order.letters[row + k] = window->letters[k];
    tableau->index[row + k] = window->index[k];
    tableau->held[row + k] = window->held[k];
    tableau->position[(size_t)all[window->letters[k]].own * problem->microbatch_count +
                      window->index[k]] = window->from + k;
  }
}

/* Computes the window in full: its old times are of other letters. */
static bool advance_window(struct weft_tableau *tableau, const struct window *window) {
  const struct weft_problem *problem = tableau->problem;
  const struct weft_letter_facts *all = rank_facts(tableau, window->rank);
  const size_t row = (size_t)window->rank * problem->word_size + window->from;
  int64_t now = tableau->end[row - 1];
  for (uint32_t k = 0; k < window->size; k++) {
    const struct weft_letter_facts *facts = &all[window->letters[k]];
    if (facts->input != NONE) {
      const int64_t arrives =
          tableau->arrival[(size_t)facts->input * problem->microbatch_count + window->index[k]];
      now = arrives > now ? arrives : now;
    }
    now += facts->time;
    if (!set(tableau, &tableau->end[row + k], now) ||
        (facts->output != NONE && !deliver(tableau, facts, window->index[k], now))) {
      return false;
    }
  }
  if (window->from + window->size < problem->word_size) {
    mark(tableau, window->rank, window->from + window->size);
  }
  return true;
}

static void roll_back(struct weft_tableau *tableau) {
  while (tableau->log_size > 0) {
    const struct weft_tableau_change *change = &tableau->log[--tableau->log_size];
    *change->at = change->before;
  }
}

/* Puts letters and memory back as they were. */
static void put_back(struct weft_tableau *tableau, const struct weft_move *move) {
  const struct weft_move back = {.rank = move->rank, .from = move->to, .to = move->from};
  struct window window;
  const uint8_t moved =
      tableau->order.letters[(size_t)move->rank * tableau->problem->word_size + move->to];
  shift(tableau, &back, &window);
  /* Both hold, as they did before the move. (Without a use of its result, gcc 12.2 takes
   * renumber() for a function without effects.) */
  if (renumber(tableau, &window, moved) && fits(tableau, &window)) {
    write_window(tableau, &window);
  }
}

bool weft_tableau_try(struct weft_tableau *tableau, const struct weft_move *move, int64_t cutoff) {
  const uint8_t moved =
      tableau->order.letters[(size_t)move->rank * tableau->problem->word_size + move->from];
  struct window window;
  shift(tableau, move, &window);
  if (!renumber(tableau, &window, moved) || !fits(tableau, &window) ||
      !is_promising(tableau, &window, cutoff)) {
    return false;
  }
  tableau->log_size = 0;
  write_window(tableau, &window);
  if (!advance_window(tableau, &window) || !settle(tableau, cutoff)) {
    drop_pending(tableau);
    roll_back(tableau);
    put_back(tableau, move);
    return false;
  }
  summarise(tableau);
  return true;
}

void weft_tableau_undo(struct weft_tableau *tableau, const struct weft_move *move) {
  roll_back(tableau);
  put_back(tableau, move);
  summarise(tableau);
}

/* ---- What is critical ---- */

static uint32_t worst_rank(const struct weft_tableau *tableau) {
  const struct weft_problem *problem = tableau->problem;
  uint32_t worst = 0;
  int64_t most = INT64_MIN;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t end = tableau->end[(size_t)(r + 1) * problem->word_size - 1] -
                        (problem->objective == WEFT_OBJECTIVE_SPAN ? tableau->first[r] : 0);
    if (end > most) {
      most = end;
      worst = r;
    }
  }
  return worst;
}

uint32_t weft_tableau_critical(const struct weft_tableau *tableau, uint32_t *places,
                               uint32_t room) {
  const struct weft_problem *problem = tableau->problem;
  const uint32_t size = problem->word_size;
  uint32_t rank = worst_rank(tableau), n = size - 1, count = 0;
  for (; count < room; count++) {
    const size_t row = (size_t)rank * size;
    const struct weft_letter_facts *facts =
        &rank_facts(tableau, rank)[tableau->order.letters[row + n]];
    places[count] = (uint32_t)(row + n);
    const int64_t start = tableau->end[row + n] - facts->time;
    if (n > 0 && (facts->input == NONE || tableau->end[row + n - 1] == start)) {
      n--;
    } else if (facts->input != NONE) {
      n = tableau->position[(size_t)facts->giver * problem->microbatch_count +
                            tableau->index[row + n]];
      rank = facts->giver_rank;
    } else {
      return count + 1;
    }
  }
  return count;
}
