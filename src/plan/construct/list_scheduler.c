/* List scheduling by targets. Ranks decide in order of time, from a heap. When an action
 * begins, the arrival of its output is known, and the rank that takes it is woken then;
 * so a decision costs the letters of one rank, and nobody is asked twice. */
#include "plan/construct/list_scheduler.h"

#include <string.h>

#include <weft/support.h>

#include "base/memory.h"

/* ---- Room ---- */

static size_t target_count(const struct weft_problem *problem) {
  return (size_t)problem->stage_count * WEFT_KINDS * problem->microbatch_count;
}

static void set_facts(struct weft_target_list *list) {
  const struct weft_problem *problem = list->problem;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    const int64_t *time = stage->time;
    const int64_t back =
        problem->whole_backward ? time[WEFT_LETTER_B] : time[WEFT_LETTER_I] + time[WEFT_LETTER_W];
    list->work[stage->rank] += (time[WEFT_LETTER_F] + back) * problem->microbatch_count;
    const int64_t growth = problem->whole_backward ? 0 : stage->held_after - stage->held;
    if (growth > list->growth[stage->rank]) {
      list->growth[stage->rank] = growth;
    }
  }
}

static size_t letter_row(const struct weft_problem *problem, uint32_t stage,
                         enum weft_letter kind) {
  const struct weft_problem_stage *at = &problem->stages[stage];
  return ((size_t)at->rank * problem->stages_per_rank + at->place) * WEFT_KINDS + kind;
}

enum weft_status weft_target_list_init(struct weft_target_list *list,
                                       const struct weft_problem *problem,
                                       struct weft_evaluation *times, struct weft_error *error) {
  const struct weft_allocator *allocator = problem->allocator;
  const size_t ranks = problem->rank_count;
  *list = (struct weft_target_list){.problem = problem, .times = times};
#define ROOM(field, count) \
  ((list->field = weft_array_allocate_zero(allocator, count, sizeof *list->field)))
  if (!ROOM(targets, target_count(problem)) || !ROOM(held, ranks) || !ROOM(held_for_w, ranks) ||
      !ROOM(work, ranks) || !ROOM(rest, ranks) || !ROOM(growth, ranks) || !ROOM(when, ranks) ||
      !ROOM(heap, ranks) || !ROOM(heap_at, ranks)) {
    weft_target_list_finish(list);
    return weft_fail_memory(error, target_count(problem) * sizeof *list->targets);
  }
#undef ROOM
  set_facts(list);
  list->turns = times->taken + letter_row(problem, problem->stage_count - 1, WEFT_LETTER_F);
  return WEFT_OK;
}

void weft_target_list_finish(struct weft_target_list *list) {
  const struct weft_allocator *allocator = list->problem->allocator;
  const size_t ranks = list->problem->rank_count;
#define FREE(field, count) weft_array_free(allocator, list->field, count, sizeof *list->field)
  FREE(targets, target_count(list->problem));
  FREE(held, ranks);
  FREE(held_for_w, ranks);
  FREE(work, ranks);
  FREE(rest, ranks);
  FREE(growth, ranks);
  FREE(when, ranks);
  FREE(heap, ranks);
  FREE(heap_at, ranks);
#undef FREE
  *list = (struct weft_target_list){.problem = list->problem};
}

/* ---- Ranks by time ---- */

static bool is_earlier(const struct weft_target_list *list, uint32_t rank, uint32_t other) {
  return list->when[rank] < list->when[other] ||
         (list->when[rank] == list->when[other] && rank < other);
}

static void put_at(struct weft_target_list *list, uint32_t rank, uint32_t at) {
  list->heap[at] = rank;
  list->heap_at[rank] = at;
}

static void sift_up(struct weft_target_list *list, uint32_t rank, uint32_t at) {
  while (at > 0 && is_earlier(list, rank, list->heap[(at - 1) / 2])) {
    put_at(list, list->heap[(at - 1) / 2], at);
    at = (at - 1) / 2;
  }
  put_at(list, rank, at);
}

static void sift_down(struct weft_target_list *list, uint32_t rank, uint32_t at) {
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child + 1 < list->heap_size && is_earlier(list, list->heap[child + 1], list->heap[child])) {
      child++;
    }
    if (child >= list->heap_size || !is_earlier(list, list->heap[child], rank)) {
      break;
    }
    put_at(list, list->heap[child], at);
    at = child;
  }
  put_at(list, rank, at);
}

/* A rank decides at this time, or when it is free, unless it does so earlier. */
static void wake(struct weft_target_list *list, uint32_t rank, int64_t time) {
  const int64_t free_at = list->times->clock[rank];
  time = time > free_at ? time : free_at;
  if (time < list->when[rank]) {
    list->when[rank] = time;
    sift_up(list, rank, list->heap_at[rank] < UINT32_MAX ? list->heap_at[rank] : list->heap_size++);
  }
}

static uint32_t take_first(struct weft_target_list *list) {
  const uint32_t rank = list->heap[0];
  const uint32_t last = list->heap[--list->heap_size];
  if (list->heap_size > 0) {
    sift_down(list, last, 0);
  }
  list->heap_at[rank] = UINT32_MAX;
  list->when[rank] = INT64_MAX;
  return rank;
}

static void start(struct weft_target_list *list) {
  const struct weft_problem *problem = list->problem;
  struct weft_evaluation *times = list->times;
  memset(times->arrived, 0, 2 * (size_t)problem->stage_count * sizeof *times->arrived);
  memset(times->taken, 0, (size_t)problem->stage_count * WEFT_KINDS * sizeof *times->taken);
  list->heap_size = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    times->position[r] = 0;
    times->clock[r] = 0;
    times->first[r] = -1;
    list->rest[r] = list->work[r];
    list->held[r] = 0;
    list->held_for_w[r] = 0;
    list->when[r] = INT64_MAX;
    list->heap_at[r] = UINT32_MAX;
  }
  wake(list, problem->stages[0].rank, 0);
}

/* ---- What a rank could do ---- */

enum { NO_LETTER = UINT32_MAX };

/* A rank that decides, and what it has seen. */
struct decision {
  const struct weft_problem *problem;
  const struct weft_letter_step *steps; /* of its letters */
  const uint32_t *taken;
  const int64_t *targets;
  const uint32_t *stages; /* by place */
  uint32_t turned;        /* microbatches whose forward is complete */
  int64_t now;
  int64_t held, held_for_w, limit;
  int64_t returning; /* of what is held, the part of microbatches that have turned; -1: unknown */
  uint32_t ready;    /* the forward or backward with the smallest target */
  int64_t ready_target;
  bool ready_needs_w; /* memory for it */
  uint32_t w;         /* the W with the smallest target */
  int64_t w_target;
  int64_t first_target; /* the smallest one that is left, whether it has arrived or not */
  int64_t next;         /* when something is known to arrive */
};

static struct decision begin_decision(const struct weft_target_list *list, uint32_t rank,
                                      int64_t now) {
  const struct weft_problem *problem = list->problem;
  const size_t row = (size_t)rank * problem->stages_per_rank * WEFT_KINDS;
  return (struct decision){.problem = problem,
                           .steps = list->times->steps + row,
                           .taken = list->times->taken + row,
                           .targets = list->targets + row * problem->microbatch_count,
                           .stages = problem->stage_of + (size_t)rank * problem->stages_per_rank,
                           .turned = *list->turns,
                           .now = now,
                           .held = list->held[rank],
                           .held_for_w = list->held_for_w[rank],
                           .limit = problem->limit[rank] - list->growth[rank],
                           .returning = -1,
                           .ready = NO_LETTER,
                           .ready_target = INT64_MAX,
                           .w = NO_LETTER,
                           .w_target = INT64_MAX,
                           .first_target = INT64_MAX,
                           .next = INT64_MAX};
}

static enum weft_letter back_of(const struct weft_problem *problem) {
  return problem->whole_backward ? WEFT_LETTER_B : WEFT_LETTER_I;
}

static const struct weft_problem_stage *stage_at(const struct decision *decision, uint32_t place) {
  return &decision->problem->stages[decision->stages[place]];
}

static int64_t target_of(const struct decision *decision, uint32_t letter) {
  return decision
      ->targets[(size_t)letter * decision->problem->microbatch_count + decision->taken[letter]];
}

/* When the next input of a forward or backward is there; INT64_MAX: not known. */
static int64_t input_time(const struct decision *decision, uint32_t letter) {
  const struct weft_letter_step *step = &decision->steps[letter];
  const uint32_t microbatch = decision->taken[letter];
  if (step->waits_for != NULL) {
    return microbatch < *step->arrived ? step->waits_for[microbatch] : INT64_MAX;
  }
  /* The first forward waits for nothing, the last stage's backward for its forward. */
  const uint32_t forward = letter - letter % WEFT_KINDS + WEFT_LETTER_F;
  return letter == forward || microbatch < decision->taken[forward] ? 0 : INT64_MAX;
}

/* ---- Memory ---- */

static int64_t returning(struct decision *decision) {
  if (decision->returning < 0) {
    const enum weft_letter back = back_of(decision->problem);
    decision->returning = 0;
    for (uint32_t k = 0; k < decision->problem->stages_per_rank; k++) {
      decision->returning += (int64_t)(decision->turned - decision->taken[k * WEFT_KINDS + back]) *
                             stage_at(decision, k)->held;
    }
  }
  return decision->returning;
}

/* What takes a microbatch through the stages after this place, where none is that could
 * leave its room to the next. */
static int64_t reserve_after(const struct decision *decision, uint32_t place) {
  int64_t sum = 0;
  for (uint32_t k = place + 1; k < decision->problem->stages_per_rank; k++) {
    if (decision->taken[k * WEFT_KINDS + WEFT_LETTER_F] == decision->turned) {
      sum += stage_at(decision, k)->held;
    }
  }
  return sum;
}

/* Whether a forward has room, if only after all W that wait. */
static bool has_room(struct decision *decision, uint32_t place) {
  const int64_t held = decision->held - decision->held_for_w + stage_at(decision, place)->held;
  return held <= decision->limit &&
         held - returning(decision) + reserve_after(decision, place) <= decision->limit;
}

/* ---- The decision ---- */

static void consider_w(struct decision *decision, uint32_t place) {
  const uint32_t w = place * WEFT_KINDS + WEFT_LETTER_W;
  if (decision->taken[w] < decision->taken[place * WEFT_KINDS + WEFT_LETTER_I] &&
      target_of(decision, w) < decision->w_target) {
    decision->w = w;
    decision->w_target = target_of(decision, w);
  }
}

static void consider(struct decision *decision, uint32_t letter) {
  const uint32_t place = letter / WEFT_KINDS;
  const bool forward = letter % WEFT_KINDS == WEFT_LETTER_F;
  if (decision->taken[letter] == decision->problem->microbatch_count ||
      (forward && !has_room(decision, place))) {
    return;
  }
  const int64_t at = input_time(decision, letter);
  const int64_t target = target_of(decision, letter);
  if (target < decision->first_target) {
    decision->first_target = target;
  }
  if (at > decision->now) {
    decision->next = at < decision->next ? at : decision->next;
  } else if (target < decision->ready_target) {
    decision->ready = letter;
    decision->ready_target = target;
    decision->ready_needs_w =
        forward && decision->held + stage_at(decision, place)->held > decision->limit;
  }
}

static void look(struct decision *decision) {
  const enum weft_letter back = back_of(decision->problem);
  for (uint32_t k = 0; k < decision->problem->stages_per_rank; k++) {
    consider(decision, k * WEFT_KINDS + WEFT_LETTER_F);
    consider(decision, k * WEFT_KINDS + back);
    if (back == WEFT_LETTER_I) {
      consider_w(decision, k);
    }
  }
}

static bool w_fits(const struct decision *decision, const struct weft_target_policy *policy) {
  const double in_the_way = (1 - policy->fill) * (double)decision->steps[decision->w].time;
  return decision->next == INT64_MAX || in_the_way <= (double)(decision->next - decision->now);
}

/* The letter to run now, or NO_LETTER. */
static uint32_t decide(struct decision *decision, const struct weft_target_policy *policy) {
  look(decision);
  /* Above the limit only growth by I can be: the next I may need that room. */
  if (decision->w != NO_LETTER &&
      (decision->w_target < decision->first_target || decision->held > decision->limit)) {
    return decision->w;
  }
  if (decision->ready == NO_LETTER ||
      decision->ready_target - decision->first_target > policy->lead) {
    return decision->w != NO_LETTER && w_fits(decision, policy) ? decision->w : NO_LETTER;
  }
  return decision->ready_needs_w ? decision->w : decision->ready;
}

/* ---- The run ---- */

static void change_memory(struct weft_target_list *list, uint32_t rank, uint32_t letter) {
  const struct weft_problem *problem = list->problem;
  const struct weft_problem_stage *stage =
      &problem->stages[problem->stage_of[rank * problem->stages_per_rank + letter / WEFT_KINDS]];
  switch (letter % WEFT_KINDS) {
    case WEFT_LETTER_F: list->held[rank] += stage->held; break;
    case WEFT_LETTER_I:
      list->held[rank] += stage->held_after - stage->held;
      list->held_for_w[rank] += stage->held_after;
      break;
    case WEFT_LETTER_W:
      list->held[rank] -= stage->held_after;
      list->held_for_w[rank] -= stage->held_after;
      break;
    default: list->held[rank] -= stage->held;
  }
}

/* When an output that is ready at `end` arrives: its channel takes one after the other. */
static int64_t arrival(const struct weft_letter_step *step, uint32_t microbatch, int64_t end) {
  if (step->occupancy > 0 && microbatch > 0) {
    const int64_t free_at = step->makes[microbatch - 1] - step->latency;
    end = free_at > end ? free_at : end;
  }
  return end + step->occupancy + step->latency;
}

static void run_letter(struct weft_target_list *list, uint32_t rank, uint32_t letter, int64_t now,
                       struct weft_order *order) {
  const struct weft_problem *problem = list->problem;
  struct weft_evaluation *times = list->times;
  const size_t row = (size_t)rank * problem->stages_per_rank * WEFT_KINDS + letter;
  const struct weft_letter_step *step = &times->steps[row];
  const uint32_t microbatch = times->taken[row]++;
  weft_order_word(problem, order, rank)[times->position[rank]++] = (uint8_t)letter;
  change_memory(list, rank, letter);
  times->first[rank] = times->first[rank] < 0 ? now : times->first[rank];
  times->clock[rank] = now + step->time;
  list->rest[rank] -= step->time;
  if (step->makes != NULL) {
    step->makes[microbatch] = arrival(step, microbatch, now + step->time);
    *step->made = microbatch + 1;
    if (step->crosses) {
      wake(list, step->wakes, step->makes[microbatch]);
    }
  }
}

static int64_t objective(const struct weft_target_list *list) {
  const struct weft_problem *problem = list->problem;
  const struct weft_evaluation *times = list->times;
  int64_t from = INT64_MAX, to = 0, span = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    if (times->position[r] < problem->word_size) {
      return WEFT_NEVER;
    }
    const int64_t own = times->clock[r] - times->first[r];
    span = own > span ? own : span;
    from = times->first[r] < from ? times->first[r] : from;
    to = times->clock[r] > to ? times->clock[r] : to;
  }
  return problem->objective == WEFT_OBJECTIVE_SPAN ? span : to - from;
}

/* What the rank makes of the objective if it never waits again. */
static int64_t least_objective(const struct weft_target_list *list, uint32_t rank) {
  const bool spans = list->problem->objective == WEFT_OBJECTIVE_SPAN;
  return list->times->clock[rank] + list->rest[rank] - (spans ? list->times->first[rank] : 0);
}

int64_t weft_target_list_run(struct weft_target_list *list, const struct weft_target_policy *policy,
                             int64_t cutoff, struct weft_order *order) {
  start(list);
  while (list->heap_size > 0) {
    const int64_t now = list->when[list->heap[0]];
    const uint32_t rank = take_first(list);
    struct decision decision = begin_decision(list, rank, now);
    const uint32_t letter = decide(&decision, policy);
    if (letter != NO_LETTER) {
      run_letter(list, rank, letter, now, order);
      if (least_objective(list, rank) > cutoff) {
        return WEFT_NEVER;
      }
    }
    const int64_t next = letter != NO_LETTER ? list->times->clock[rank] : decision.next;
    if (next < INT64_MAX) {
      wake(list, rank, next);
    }
  }
  return objective(list);
}
