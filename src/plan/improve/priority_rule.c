/* List scheduling: the rank that can begin soonest begins. What a rank would do next
 * changes only when it has done something, or when something new is certain to arrive;
 * so after every action at most two ranks are asked again. */
#include <weft/support.h>

#include "plan/improve/priority_rule.h"

#include "base/memory.h"

#define NEVER INT64_MAX

struct weft_lister_rank {
  int64_t now;   /* end of its last action */
  int64_t first; /* start of its first; -1 before */
  int64_t idle;  /* so far; before the first action only where the makespan counts */
  int64_t idle_max;
  int64_t held; /* memory */
  int64_t limit;
  int64_t time[WEFT_KINDS];
  int64_t change[WEFT_KINDS]; /* of memory */
  const int64_t *forward;     /* [microbatch] arrivals, as far as they are known */
  const int64_t *gradient;
  uint32_t forwards_known, gradients_known;
  uint32_t count[WEFT_KINDS]; /* done */
  uint32_t left;              /* letters */
  uint8_t next;               /* letter it would do next */
  uint8_t *word;              /* where it goes */
};

static size_t arrival_count(const struct weft_problem *problem) {
  return (size_t)problem->rank_count * problem->microbatch_count;
}

enum weft_status weft_lister_init(struct weft_lister *lister, const struct weft_problem *problem,
                                  struct weft_error *error) {
  const struct weft_allocator *allocator = problem->allocator;
  const size_t ranks = problem->rank_count, arrivals = arrival_count(problem);
  *lister = (struct weft_lister){.problem = problem};
  lister->ranks = weft_array_allocate(allocator, ranks, sizeof *lister->ranks);
  for (lister->leaves = 2; lister->leaves < ranks;) {
    lister->leaves *= 2;
  }
  lister->when = weft_array_allocate(allocator, lister->leaves, sizeof *lister->when);
  lister->winner = weft_array_allocate(allocator, lister->leaves, sizeof *lister->winner);
  /* Zeros: what the first rank's forwards and the last one's backwards wait for. */
  lister->forward = weft_array_allocate_zero(allocator, arrivals, sizeof *lister->forward);
  lister->gradient = weft_array_allocate_zero(allocator, arrivals, sizeof *lister->gradient);
  lister->back = problem->whole_backward ? WEFT_LETTER_B : WEFT_LETTER_I;
  if (lister->ranks == NULL || lister->when == NULL || lister->winner == NULL ||
      lister->forward == NULL || lister->gradient == NULL) {
    weft_lister_finish(lister);
    return weft_fail_memory(error, arrivals * sizeof *lister->forward);
  }
  return WEFT_OK;
}

void weft_lister_finish(struct weft_lister *lister) {
  const struct weft_problem *problem = lister->problem;
  const size_t ranks = problem->rank_count, arrivals = arrival_count(problem);
  weft_array_free(problem->allocator, lister->ranks, ranks, sizeof *lister->ranks);
  weft_array_free(problem->allocator, lister->when, lister->leaves, sizeof *lister->when);
  weft_array_free(problem->allocator, lister->winner, lister->leaves, sizeof *lister->winner);
  weft_array_free(problem->allocator, lister->forward, arrivals, sizeof *lister->forward);
  weft_array_free(problem->allocator, lister->gradient, arrivals, sizeof *lister->gradient);
  *lister = (struct weft_lister){.problem = problem};
}

/* ---- One rank's decision ---- */

/* What a rank sees: when its next forward and backward can be had. */
struct view {
  int64_t forward;   /* NEVER: not known, or not allowed now */
  int64_t gradient;  /* NEVER: not known */
  bool memory_short; /* a forward is there, but no room for it */
};

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static inline struct view look(const struct weft_lister_rank *rank,
                               const struct weft_policy *policy, uint8_t back) {
  const uint32_t f = rank->count[WEFT_LETTER_F], b = rank->count[back];
  struct view view = {.forward = NEVER, .gradient = NEVER};
  if (f < rank->forwards_known) {
    const bool room = rank->held + rank->change[WEFT_LETTER_F] <= rank->limit;
    const int64_t arrives = rank->forward[f];
    view.memory_short = !room && arrives <= rank->now;
    view.forward = room && f - b < (b == 0 ? policy->warmup : policy->cap) ? arrives : NEVER;
  }
  if (b < f && b < rank->gradients_known) {
    view.gradient = rank->gradient[b];
  }
  return view;
}

/* Whether a letter that begins now keeps one that arrives at `arrives` waiting for no longer
 * than `delay`. */
static inline bool is_in_time(int64_t end, int64_t arrives, int64_t delay) {
  return arrives == NEVER || end <= arrives + delay;
}

/* Sets what the rank would do next, and returns when; NEVER when it can do nothing yet. */
static inline int64_t decide(struct weft_lister_rank *rank, const struct view *view,
                             const struct weft_policy *policy, uint8_t back) {
  const int64_t now = rank->now;
  const bool forward_now = view->forward <= now;
  if (view->gradient <= now) {
    const bool first =
        forward_now && rank->count[WEFT_LETTER_F] - rank->count[back] < policy->eager;
    rank->next = first ? WEFT_LETTER_F : back;
    return now;
  }
  if (forward_now && is_in_time(now + rank->time[WEFT_LETTER_F], view->gradient, policy->f_delay)) {
    rank->next = WEFT_LETTER_F;
    return now;
  }
  const int64_t forward = view->forward == NEVER ? NEVER : later(view->forward, now);
  const int64_t next = view->gradient < forward ? view->gradient : forward;
  if (back == WEFT_LETTER_I && rank->count[WEFT_LETTER_W] < rank->count[WEFT_LETTER_I]) {
    const int64_t end = now + rank->time[WEFT_LETTER_W];
    if (is_in_time(end, next, policy->w_overrun) ||
        (view->memory_short && is_in_time(end, view->gradient, policy->f_delay))) {
      rank->next = WEFT_LETTER_W;
      return now;
    }
  }
  rank->next = next == view->gradient ? back : WEFT_LETTER_F;
  return next;
}

/* ---- All ranks ---- */

/* Ranks in a tree of pairs, so that who is next costs as many steps as the tree is high. */
static void rank_moves_to(struct weft_lister *lister, uint32_t r, int64_t when) {
  const uint32_t half = lister->leaves / 2;
  lister->when[r] = when;
  uint32_t node = half + r / 2, left = r & ~1U, right = r | 1U;
  for (;;) {
    lister->winner[node] = lister->when[left] <= lister->when[right] ? left : right;
    if (node == 1) {
      return;
    }
    left = lister->winner[node & ~1U];
    right = lister->winner[node | 1U];
    node /= 2;
  }
}

static uint32_t soonest(const struct weft_lister *lister) { return lister->winner[1]; }

static inline void ask(struct weft_lister *lister, uint32_t r, const struct weft_policy *policies) {
  struct weft_lister_rank *rank = &lister->ranks[r];
  const struct view view = look(rank, &policies[r], lister->back);
  const int64_t when = rank->left == 0 ? NEVER : decide(rank, &view, &policies[r], lister->back);
  if (when != lister->when[r]) {
    rank_moves_to(lister, r, when);
  }
}

static void clear_tree(struct weft_lister *lister) {
  for (uint32_t k = 0; k < lister->leaves; k++) {
    lister->when[k] = NEVER;
    /* the leftmost leaf below each node */
    uint32_t leaf = k;
    while (k > 0 && leaf < lister->leaves) {
      leaf *= 2;
    }
    lister->winner[k] = k > 0 ? leaf - lister->leaves : 0;
  }
}

static int64_t work_of(const struct weft_lister *lister, const struct weft_problem_stage *stage) {
  return lister->problem->microbatch_count *
         (stage->time[WEFT_LETTER_F] + stage->time[lister->back] +
          (lister->back == WEFT_LETTER_I ? stage->time[WEFT_LETTER_W] : 0));
}

static void start_rank(struct weft_lister *lister, uint32_t r, int64_t cutoff,
                       struct weft_order *order) {
  const struct weft_problem *problem = lister->problem;
  const struct weft_problem_stage *stage = &problem->stages[problem->stage_of[r]];
  const uint32_t m = problem->microbatch_count;
  /* So that its I has room, should that hold more. */
  const int64_t held = later(stage->held, problem->whole_backward ? 0 : stage->held_after);
  lister->ranks[r] = (struct weft_lister_rank){
      .first = -1,
      .idle_max = cutoff - work_of(lister, stage),
      .limit = problem->limit[r],
      .change = {held, stage->held_after - held, -stage->held_after, -held},
      .forward = lister->forward + (size_t)r * m,
      .gradient = lister->gradient + (size_t)r * m,
      .forwards_known = r == 0 ? m : 0,
      .gradients_known = r + 1 == problem->rank_count ? m : 0,
      .left = problem->word_size,
      .word = weft_order_word(problem, order, r)};
  for (unsigned kind = 0; kind < WEFT_KINDS; kind++) {
    lister->ranks[r].time[kind] = stage->time[kind];
  }
}

static int64_t arrival(const struct weft_problem *problem, const int64_t *row, uint32_t microbatch,
                       int64_t end) {
  if (problem->occupancy > 0 && microbatch > 0 && row[microbatch - 1] - problem->latency > end) {
    end = row[microbatch - 1] - problem->latency;
  }
  return end + problem->occupancy + problem->latency;
}

/* Something is certain to arrive at the rank after (F) or before this one. */
static inline void hand_on(struct weft_lister *lister, uint32_t r, uint8_t kind,
                           uint32_t microbatch, const struct weft_policy *policies) {
  const struct weft_problem *problem = lister->problem;
  const bool forward = kind == WEFT_LETTER_F;
  const uint32_t to = forward ? r + 1 : r - 1;
  if (to >= problem->rank_count) {
    return;
  }
  struct weft_lister_rank *taker = &lister->ranks[to];
  int64_t *row =
      (forward ? lister->forward : lister->gradient) + (size_t)to * problem->microbatch_count;
  row[microbatch] = arrival(problem, row, microbatch, lister->ranks[r].now);
  *(forward ? &taker->forwards_known : &taker->gradients_known) = microbatch + 1;
  if (taker->count[kind] == microbatch) { /* else it waits for something else */
    ask(lister, to, policies);
  }
}

/* Does what the rank would do next, and asks whom it concerns; false when it has idled too
 * long. */
static inline bool act(struct weft_lister *lister, uint32_t r, const struct weft_policy *policies) {
  struct weft_lister_rank *rank = &lister->ranks[r];
  const uint8_t kind = rank->next;
  const uint32_t microbatch = rank->count[kind]++;
  const int64_t when = lister->when[r];
  if (rank->first < 0) {
    rank->first = when;
    rank->idle = lister->problem->objective == WEFT_OBJECTIVE_SPAN ? 0 : when;
  } else {
    rank->idle += when - rank->now;
  }
  if (rank->idle > rank->idle_max) {
    return false;
  }
  rank->now = when + rank->time[kind];
  *rank->word++ = kind;
  rank->left--;
  rank->held += rank->change[kind];
  if (kind != WEFT_LETTER_W) {
    hand_on(lister, r, kind, microbatch, policies);
  }
  ask(lister, r, policies);
  return true;
}

static int64_t value_of(const struct weft_lister *lister) {
  const struct weft_problem *problem = lister->problem;
  int64_t value = 0;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const struct weft_lister_rank *rank = &lister->ranks[r];
    const int64_t own = rank->now - (problem->objective == WEFT_OBJECTIVE_SPAN ? rank->first : 0);
    value = own > value ? own : value;
  }
  return value;
}

uint64_t weft_list_order(struct weft_lister *lister, const struct weft_policy *policies,
                         int64_t cutoff, struct weft_order *order, int64_t *value) {
  const struct weft_problem *problem = lister->problem;
  const uint64_t letters = (uint64_t)problem->rank_count * problem->word_size;
  *value = WEFT_NEVER;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    start_rank(lister, r, cutoff, order);
  }
  clear_tree(lister);
  ask(lister, 0, policies);
  for (uint64_t n = 0; n < letters; n++) {
    const uint32_t r = soonest(lister);
    if (lister->when[r] == NEVER || !act(lister, r, policies)) {
      return n + 1;
    }
  }
  *value = value_of(lister);
  return letters;
}
