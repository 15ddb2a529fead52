/* Least memory of a graph: orders judged by memory alone.
 *
 * Sequences of ranks whose waits form no cycle are one order of all ops, and the
 * memory of a rank depends on the order of its own ops. So the question is whether some order of all
 * ops keeps every rank within its limit. Three facts make its search small:
 *
 * - What is done of every stage, forwards and backwards, determines the memory: W follows its
 *   backward at once, which frees memory and makes nothing wait; and a backward is whole where it
 *   may be, which holds nothing for W. States that were seen need no second look.
 * - An op that fits now and leaves no more memory held than before may be done at once: any order
 *   that goes on from here stays within the limits if the op moves to its front. Only forwards, and
 *   the first backward of a stage with large gradients, are to be decided.
 * - Leaving out microbatches, the last ones, leaves an order that holds no more. So no order for one
 *   microbatch means none for any number; and without gradients, which stay, an order for one
 *   microbatch can be repeated.
 *
 * A search that ends without an order has seen the least excess of what it had to refuse: nothing
 * fits into less than that. */
#include <assert.h>
#include <string.h>

#include "plan/problem/problem.h"

enum { STATES_MAX = 1 << 18, STATE_BYTES_MAX = 1 << 26 };
/* Stages looked at, in all and in one run: about a second for a placement, and a quarter of one. */
#define LOOKS_MAX (UINT64_C(1) << 27)
#define LOOKS_OF_RUN (LOOKS_MAX / 4)

/* A state in which something is to be decided. */
struct frame {
  uint32_t length; /* ops done */
  uint32_t next;   /* candidate: the stages' backwards, then their forwards, the last stage first */
};

struct memory_search {
  const struct weft_problem *problem;
  uint64_t looks; /* that are left */
  /* Of one run: */
  uint64_t looks_until; /* it gives up when so many are left */
  uint32_t m;           /* microbatches */
  bool with_all;        /* all gradients are there from the start */
  int64_t excess;       /* over the limits that is allowed */
  int64_t next;         /* the least that was refused */
  uint32_t *done;       /* [stage * 2] forwards, then backwards */
  int64_t *held;        /* [rank] */
  bool *is_roomy;       /* [rank] all that it can ever hold fits */
  int64_t *sums;        /* [stage] scratch */
  uint32_t *ops;        /* done, without W */
  uint32_t length;
  struct frame *frames;
  uint32_t *states; /* [STATES_MAX] of stage_count * 2: those seen */
  uint32_t *table;  /* of states, by their hash */
  uint32_t states_max, state_count;
};

enum outcome { FOUND, NONE, GIVEN_UP };

/* ---- Ops ---- */

static int64_t gradients_of(const struct memory_search *search, uint32_t s) {
  return search->with_all ? 0 : search->problem->stages[s].gradients;
}

static bool is_ready(const struct memory_search *search, uint32_t s, bool backward) {
  const struct weft_graph *graph = search->problem->graph;
  const uint32_t k = search->done[2 * s + backward];
  const struct weft_edge_list *list = backward ? &graph->gradient_in : &graph->in;
  if (k == search->m ||
      (backward && (!search->problem->stages[s].trains || search->done[2 * s] == k))) {
    return false;
  }
  for (uint32_t n = list->begin[s]; n < list->begin[s + 1]; n++) {
    const struct weft_edge *edge = &graph->edges[list->edges[n]];
    if (search->done[2 * (uint32_t)(backward ? edge->to : edge->from) + backward] <= k) {
      return false;
    }
  }
  return true;
}

/* What the next op of a stage adds to the memory of its rank: at most, while it runs; and for good. */
static int64_t rise_of(const struct memory_search *search, uint32_t s, bool backward,
                       int64_t *change) {
  const struct weft_problem *problem = search->problem;
  const struct weft_problem_stage *stage = &problem->stages[s];
  if (!backward) {
    *change = stage->trains ? stage->held : 0;
    return stage->held;
  }
  const int64_t gradients = search->done[2 * s + 1] == 0 ? gradients_of(search, s) : 0;
  const int64_t more = problem->may_join ? 0 : stage->held_after - stage->held;
  *change = gradients - stage->held;
  return gradients + (more > 0 ? more : 0);
}

static bool fits(struct memory_search *search, uint32_t rank, int64_t rise) {
  const int64_t over = search->held[rank] + rise - search->problem->limit[rank];
  if (over > search->excess && over < search->next) {
    search->next = over;
  }
  return over <= search->excess;
}

static void advance(struct memory_search *search, uint32_t s, bool backward, int64_t change) {
  search->held[search->problem->stages[s].rank] += change;
  search->done[2 * s + backward]++;
  search->ops[search->length++] = s * WEFT_ORDER_KINDS + (backward ? WEFT_KIND_I : WEFT_KIND_F);
}

static void retreat(struct memory_search *search, uint32_t length) {
  while (search->length > length) {
    const uint32_t op = search->ops[--search->length], s = op / WEFT_ORDER_KINDS;
    const bool backward = op % WEFT_ORDER_KINDS == WEFT_KIND_I;
    int64_t change;
    search->done[2 * s + backward]--;
    (void)rise_of(search, s, backward, &change);
    search->held[search->problem->stages[s].rank] -= change;
  }
}

/* Does all that may be done at once; later stages first, so that microbatches end soon. */
static void do_free_ops(struct memory_search *search) {
  const uint32_t n = search->problem->stage_count;
  for (uint32_t at = 0; at < 2 * n && search->looks > search->looks_until;) {
    const bool backward = at < n;
    const uint32_t s = n - 1 - (backward ? at : at - n);
    const uint32_t rank = search->problem->stages[s].rank;
    int64_t change;
    search->looks--;
    if (is_ready(search, s, backward)) {
      const int64_t rise = rise_of(search, s, backward, &change);
      if ((change <= 0 || search->is_roomy[rank]) && fits(search, rank, rise)) {
        advance(search, s, backward, change);
        at = 0;
        continue;
      }
    }
    at++;
  }
}

/* ---- States ---- */

static uint64_t hash_of(const uint32_t *state, uint32_t size) {
  uint64_t hash = 0x9e3779b97f4a7c15U;
  for (uint32_t k = 0; k < size; k++) {
    hash = (hash ^ state[k]) * 0xff51afd7ed558ccdU;
    hash ^= hash >> 32;
  }
  return hash;
}

/* Notes the present state. False: it is an old one. */
static bool record_state(struct memory_search *search) {
  const uint32_t size = 2 * search->problem->stage_count, room = 2 * search->states_max;
  uint32_t slot = (uint32_t)(hash_of(search->done, size) % room);
  for (; search->table[slot] != 0; slot = slot + 1 == room ? 0 : slot + 1) {
    const uint32_t *other = &search->states[(size_t)(search->table[slot] - 1) * size];
    if (memcmp(other, search->done, size * sizeof *other) == 0) {
      return false;
    }
  }
  memcpy(&search->states[(size_t)search->state_count * size], search->done,
         size * sizeof *search->states);
  search->table[slot] = ++search->state_count;
  return true;
}

/* ---- A run ---- */

static uint32_t op_count(const struct memory_search *search) {
  uint32_t count = 0;
  for (uint32_t s = 0; s < search->problem->stage_count; s++) {
    count += search->m * (search->problem->stages[s].trains ? 2 : 1);
  }
  return count;
}

static void reset(struct memory_search *search) {
  const struct weft_problem *problem = search->problem;
  memset(search->done, 0, 2 * (size_t)problem->stage_count * sizeof *search->done);
  memset(search->table, 0, 2 * (size_t)search->states_max * sizeof *search->table);
  search->length = search->state_count = 0;
  search->next = INT64_MAX;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    int64_t gradients = 0, most = 0;
    for (uint32_t k = problem->first_of[r]; k < problem->first_of[r + 1]; k++) {
      const struct weft_problem_stage *stage = &problem->stages[problem->stage_of[k]];
      const int64_t size = stage->held > stage->held_after ? stage->held : stage->held_after;
      gradients += stage->trains ? stage->gradients : 0;
      most += stage->trains ? search->m * size : size;
    }
    search->held[r] = search->with_all ? gradients : 0;
    search->is_roomy[r] = gradients + most <= problem->limit[r] + search->excess;
  }
}

/* The next op to try in a state, from the frame's candidate on. False: there is none. */
static bool take_candidate(struct memory_search *search, struct frame *frame) {
  const uint32_t n = search->problem->stage_count;
  assert(n > 0);
  while (frame->next < 2 * n && search->looks > search->looks_until) {
    const uint32_t s = n - 1 - frame->next % n;
    const bool backward = frame->next++ < n;
    int64_t change;
    search->looks--;
    if (is_ready(search, s, backward)) {
      const int64_t rise = rise_of(search, s, backward, &change);
      if (fits(search, search->problem->stages[s].rank, rise)) {
        advance(search, s, backward, change);
        return true;
      }
    }
  }
  return false;
}

/* Looks for an order of `m` microbatches that exceeds the limits by `excess` at most. */
static enum outcome search_for(struct memory_search *search, uint32_t m, bool with_all,
                               int64_t excess) {
  uint32_t depth = 0;
  search->m = m, search->with_all = with_all, search->excess = excess;
  search->looks_until = search->looks > LOOKS_OF_RUN ? search->looks - LOOKS_OF_RUN : 0;
  reset(search);
  const uint32_t all = op_count(search);
  for (;;) {
    do_free_ops(search);
    if (search->length == all) {
      return FOUND;
    }
    if (record_state(search)) {
      search->frames[depth++] = (struct frame){.length = search->length};
    }
    for (;; depth--) { /* back to the last state with something left to try */
      if (search->state_count == search->states_max || search->looks <= search->looks_until ||
          weft_search_control_poll(search->problem->control)) {
        return GIVEN_UP;
      }
      if (depth == 0) {
        return NONE;
      }
      retreat(search, search->frames[depth - 1].length);
      if (take_candidate(search, &search->frames[depth - 1])) {
        break;
      }
    }
  }
}

/* ---- Orders ---- */

static void put_op(const struct weft_problem *problem, struct weft_order *order, uint32_t *at,
                   uint32_t op) {
  const uint32_t rank = problem->stages[op / WEFT_ORDER_KINDS].rank;
  order->ops[at[rank]++] = op;
  if (op % WEFT_ORDER_KINDS == WEFT_KIND_I) {
    order->ops[at[rank]++] = op + 1; /* its W */
  }
}

/* What was found, for all microbatches: as it is, or one after the other. */
static void write_order(struct memory_search *search, struct weft_order *order) {
  const struct weft_problem *problem = search->problem;
  uint32_t *at = search->table; /* it has done its service */
  memcpy(at, problem->begin, problem->rank_count * sizeof *at);
  for (uint32_t k = 0; k < problem->microbatch_count; k += search->m) {
    for (uint32_t n = 0; n < search->length; n++) {
      put_op(problem, order, at, search->ops[n]);
    }
  }
  memset(order->whole, problem->may_join, (size_t)problem->stage_count * problem->microbatch_count);
}

bool weft_problem_has_gradients(const struct weft_problem *problem) {
  assert(problem != NULL);
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    if (problem->stages[s].trains && problem->stages[s].gradients > 0) {
      return true;
    }
  }
  return false;
}

/* The order found is in `search`; after NONE, `next` is the least excess that an order may have. */
static enum outcome find(struct memory_search *search, int64_t excess) {
  const uint32_t m = search->problem->microbatch_count;
  enum outcome outcome = search_for(search, 1, true, excess);
  if (outcome != NONE || !weft_problem_has_gradients(search->problem)) {
    return outcome;
  }
  outcome = search_for(search, m, false, excess);
  for (uint32_t few = m < 2 ? m : 2; few > 0 && outcome == GIVEN_UP; few--) {
    outcome = search_for(search, few, false, excess) == NONE ? NONE : GIVEN_UP;
  }
  return outcome;
}

static enum weft_status search_init(struct memory_search *search,
                                    const struct weft_problem *problem, struct weft_arena *arena,
                                    struct weft_error *error) {
  const uint32_t n = problem->stage_count, p = problem->rank_count;
  const size_t ops = 2 * (size_t)n * problem->microbatch_count;
  const size_t state = 2 * (size_t)n * sizeof(uint32_t);
  *search = (struct memory_search){.problem = problem, .looks = LOOKS_MAX};
  search->states_max =
      (uint32_t)(STATE_BYTES_MAX / state < STATES_MAX ? STATE_BYTES_MAX / state : STATES_MAX);
  search->states_max += p; /* the table serves write_order() too */
  search->done = weft_arena_allocate(arena, n, 2 * sizeof *search->done);
  search->held = weft_arena_allocate(arena, p, sizeof *search->held);
  search->is_roomy = weft_arena_allocate(arena, p, sizeof *search->is_roomy);
  search->sums = weft_arena_allocate(arena, n, sizeof *search->sums);
  search->ops = weft_arena_allocate(arena, ops, sizeof *search->ops);
  search->frames = weft_arena_allocate(arena, ops + 1, sizeof *search->frames);
  search->states = weft_arena_allocate(arena, search->states_max, state);
  search->table = weft_arena_allocate(arena, search->states_max, 2 * sizeof *search->table);
  return weft_arena_status(arena, error);
}

enum weft_status weft_problem_fit(const struct weft_problem *problem, struct weft_order *order,
                                  bool *found, struct weft_error *error) {
  assert(order != NULL && found != NULL);
  struct memory_search search;
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  WEFT_TRY(search_init(&search, problem, &arena, error));
  *found = find(&search, 0) == FOUND;
  if (*found) {
    write_order(&search, order);
  }
  return WEFT_OK;
}

/* A stage holds its activation until its backward, which comes after those of all stages that send
 * it gradients: so along any way of gradients, all stages of the rank hold theirs at once. */
static int64_t least_of(const struct weft_problem *problem, uint32_t rank, int64_t *scratch) {
  const struct weft_graph *graph = problem->graph;
  int64_t least = 0;
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    const struct weft_problem_stage *stage = &problem->stages[s];
    int64_t behind = 0;
    for (uint32_t n = graph->gradient_in.begin[s]; n < graph->gradient_in.begin[s + 1]; n++) {
      const int64_t other = scratch[graph->edges[graph->gradient_in.edges[n]].to];
      behind = other > behind ? other : behind;
    }
    scratch[s] = behind + (stage->rank == rank && stage->trains ? stage->held : 0);
    least = scratch[s] > least ? scratch[s] : least;
  }
  return least;
}

enum weft_status weft_problem_least(const struct weft_problem *problem,
                                    struct weft_problem_least *least, struct weft_error *error) {
  assert(problem != NULL && least != NULL);
  struct memory_search search;
  int64_t excess = INT64_MIN;
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  WEFT_TRY(search_init(&search, problem, &arena, error));
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t own = least_of(problem, r, search.sums) - problem->limit[r];
    excess = own > excess ? own : excess;
  }
  enum outcome outcome = find(&search, excess);
  while (outcome == NONE) {
    excess = search.next;
    outcome = find(&search, excess);
  }
  *least = (struct weft_problem_least){.excess = excess, .is_exact = outcome == FOUND};
  return WEFT_OK;
}
