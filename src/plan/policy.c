/* List scheduling: the rank that can begin soonest begins. What a rank would do next
 * changes only when it has done something, or when something new is certain to arrive;
 * so after every action at most two ranks are asked again. */
#include "plan/policy.h"

#include "base/fail.h"
#include "base/memory.h"

#define NEVER INT64_MAX

struct weft_lister_rank {
  int64_t now;   /* end of its last action */
  int64_t first; /* start of its first */
  int64_t held;  /* memory */
  int64_t limit;
  int64_t time[WEFT_KINDS];
  int64_t held_f, held_after;
  uint32_t count[WEFT_KINDS]; /* done */
  uint32_t size;              /* letters */
  uint8_t next;               /* letter it would do next */
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
  lister->forward = weft_array_allocate(allocator, arrivals, sizeof *lister->forward);
  lister->gradient = weft_array_allocate(allocator, arrivals, sizeof *lister->gradient);
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
  bool owes;         /* there is a weight gradient to do */
};

static struct view look(const struct weft_lister *lister, uint32_t r,
                        const struct weft_policy *policy) {
  const struct weft_problem *problem = lister->problem;
  const struct weft_lister_rank *rank = &lister->ranks[r];
  const uint32_t back = problem->whole_backward ? WEFT_LETTER_B : WEFT_LETTER_I;
  const uint32_t f = rank->count[WEFT_LETTER_F], b = rank->count[back];
  const size_t row = (size_t)r * problem->microbatch_count;
  struct view view = {.forward = NEVER, .gradient = NEVER};
  if (f < problem->microbatch_count) {
    const int64_t arrives = r == 0 ? 0
                            : lister->ranks[r - 1].count[WEFT_LETTER_F] > f
                                ? lister->forward[row + f]
                                : NEVER;
    const bool room = rank->held + rank->held_f <= rank->limit;
    view.memory_short = !room && arrives <= rank->now;
    view.forward = room && f - b < policy->cap ? arrives : NEVER;
  }
  if (b < f) {
    view.gradient = r + 1 == problem->rank_count           ? 0
                    : lister->ranks[r + 1].count[back] > b ? lister->gradient[row + b]
                                                           : NEVER;
  }
  view.owes = !problem->whole_backward && rank->count[WEFT_LETTER_W] < b;
  return view;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* The time by which a letter of this length must have begun so as to keep one that arrives
 * at `arrives` waiting for no longer than `delay`. */
static bool is_in_time(int64_t now, int64_t time, int64_t arrives, int64_t delay) {
  return arrives == NEVER || now + time <= arrives + delay;
}

/* Sets what the rank would do next, and returns when; NEVER when it can do nothing yet. */
static int64_t decide(struct weft_lister_rank *rank, const struct view *view,
                      const struct weft_policy *policy, uint8_t back) {
  const int64_t now = rank->now;
  const bool forward_now = view->forward <= now;
  if (view->gradient <= now) {
    const bool first =
        forward_now && rank->count[WEFT_LETTER_F] - rank->count[back] < policy->eager;
    rank->next = first ? WEFT_LETTER_F : back;
    return now;
  }
  if (forward_now && is_in_time(now, rank->time[WEFT_LETTER_F], view->gradient, policy->f_delay)) {
    rank->next = WEFT_LETTER_F;
    return now;
  }
  const int64_t next = view->gradient < later(view->forward, now) ? view->gradient
                       : view->forward == NEVER                   ? NEVER
                                                                  : later(view->forward, now);
  if (view->owes && (is_in_time(now, rank->time[WEFT_LETTER_W], next, policy->w_overrun) ||
                     (view->memory_short && is_in_time(now, rank->time[WEFT_LETTER_W],
                                                       view->gradient, policy->f_delay)))) {
    rank->next = WEFT_LETTER_W;
    return now;
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

static void ask(struct weft_lister *lister, uint32_t r, const struct weft_policy *policies) {
  const struct weft_problem *problem = lister->problem;
  const uint8_t back = problem->whole_backward ? WEFT_LETTER_B : WEFT_LETTER_I;
  struct weft_lister_rank *rank = &lister->ranks[r];
  int64_t when = NEVER;
  if (rank->size < problem->word_size) {
    const struct view view = look(lister, r, &policies[r]);
    when = decide(rank, &view, &policies[r], back);
  }
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

static void start(struct weft_lister *lister, const struct weft_policy *policies) {
  const struct weft_problem *problem = lister->problem;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const struct weft_problem_stage *stage = &problem->stages[problem->stage_of[r]];
    struct weft_lister_rank *rank = &lister->ranks[r];
    *rank = (struct weft_lister_rank){
        .first = -1,
        .limit = problem->limit[r],
        /* so that its I has room, should that hold more */
        .held_f = later(stage->held, problem->whole_backward ? 0 : stage->held_after),
        .held_after = stage->held_after};
    for (unsigned kind = 0; kind < WEFT_KINDS; kind++) {
      rank->time[kind] = stage->time[kind];
    }
  }
  clear_tree(lister);
  ask(lister, 0, policies);
}

static int64_t arrival(const struct weft_problem *problem, const int64_t *row, uint32_t microbatch,
                       int64_t end) {
  if (problem->occupancy > 0 && microbatch > 0 && row[microbatch - 1] - problem->latency > end) {
    end = row[microbatch - 1] - problem->latency;
  }
  return end + problem->occupancy + problem->latency;
}

static void change_memory(struct weft_lister_rank *rank, uint8_t kind) {
  const int64_t changes[WEFT_KINDS] = {rank->held_f, rank->held_after - rank->held_f,
                                       -rank->held_after, -rank->held_f};
  rank->held += changes[kind];
}

/* Does what the rank would do next, and asks whom it concerns. */
static void act(struct weft_lister *lister, uint32_t r, const struct weft_policy *policies) {
  const struct weft_problem *problem = lister->problem;
  const uint32_t m = problem->microbatch_count;
  struct weft_lister_rank *rank = &lister->ranks[r];
  const uint8_t kind = rank->next;
  const uint32_t microbatch = rank->count[kind]++;
  rank->first = rank->first < 0 ? lister->when[r] : rank->first;
  rank->now = lister->when[r] + rank->time[kind];
  rank->size++;
  change_memory(rank, kind);
  if (kind == WEFT_LETTER_F && r + 1 < problem->rank_count) {
    int64_t *row = lister->forward + (size_t)(r + 1) * m;
    row[microbatch] = arrival(problem, row, microbatch, rank->now);
    ask(lister, r + 1, policies);
  } else if ((kind == WEFT_LETTER_I || kind == WEFT_LETTER_B) && r > 0) {
    int64_t *row = lister->gradient + (size_t)(r - 1) * m;
    row[microbatch] = arrival(problem, row, microbatch, rank->now);
    ask(lister, r - 1, policies);
  }
  ask(lister, r, policies);
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

bool weft_list_order(struct weft_lister *lister, const struct weft_policy *policies, int64_t cutoff,
                     struct weft_order *order, int64_t *value) {
  const struct weft_problem *problem = lister->problem;
  size_t left = (size_t)problem->rank_count * problem->word_size;
  start(lister, policies);
  for (; left > 0; left--) {
    const uint32_t r = soonest(lister);
    if (lister->when[r] == NEVER) {
      return false;
    }
    uint8_t *word = weft_order_word(problem, order, r);
    word[lister->ranks[r].size] = lister->ranks[r].next;
    act(lister, r, policies);
    const int64_t from = problem->objective == WEFT_OBJECTIVE_SPAN ? lister->ranks[r].first : 0;
    if (lister->ranks[r].now - from > cutoff) {
      return false;
    }
  }
  *value = value_of(lister);
  return true;
}
