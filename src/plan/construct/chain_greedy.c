/* Several stages per rank, any placement and costs: the way of a single microbatch, in
 * real times, is stretched here and there and taken as the target of all; the list
 * scheduler makes orders of it. Few numbers say how it is stretched, and they are
 * changed one at a time as long as that helps. */
#include <stdlib.h>

#include <weft/support.h>

#include "base/memory.h"
#include "plan/construct/list_scheduler.h"
#include "plan/incumbent.h"

/* Letters that may be listed: about 7 ms of a usual core. */
#define WORK 100000
enum { RUNS_MIN = 12 };

/* What is chosen; each from a row of the table below. */
enum dial {
  DOWN,    /* how much slower than alone a forward goes through a first, third, ... place */
  UP,      /* through a second, fourth, ... place */
  BACK,    /* how much slower than forwards backwards go */
  TURN,    /* periods between the last forward and the first backward */
  GROUP,   /* microbatches that go through a place together; 0: as many as ranks */
  LEAD,    /* of the list scheduler, in periods */
  FILL,    /* likewise */
  WEIGHTS, /* periods from a backward to its W; the last one: whenever there is time */
  DIAL_COUNT
};

enum { MARKS = 6 };

static const double dials[DIAL_COUNT][MARKS] = {
    [DOWN] = {1, 1.5, 2, 3, 4, 0.5},     [UP] = {1, 1.5, 2, 3, 4, 0.5},
    [BACK] = {1, 0.7, 1.4, 2, 0.5, 3},   [TURN] = {0, 0.5, 1, -0.5, -1, 2},
    [GROUP] = {1, 0, 1, 0, 1, 0},        [LEAD] = {0.7, 0.2, 1.5, 1e6, 0, 4},
    [FILL] = {0.5, 0, 1, 0.25, 0.75, 1}, [WEIGHTS] = {1e6, 0, 0.5, 1, 2, 1e6},
};

struct setting {
  uint8_t mark[DIAL_COUNT];
};

struct chain {
  struct weft_pool *pool;
  struct weft_target_list list;
  double period; /* the work of a microbatch on the busiest rank */
  uint32_t runs; /* that are left */
};

static double dial(const struct setting *setting, enum dial which) {
  return dials[which][setting->mark[which]];
}

/* ---- Targets ---- */

/* When a microbatch sets out. Of a group, all go through a place before any goes on. */
static double departure(const struct chain *chain, const struct setting *setting,
                        uint32_t microbatch) {
  const struct weft_problem *problem = chain->pool->problem;
  const uint32_t group = dial(setting, GROUP) > 0 ? 1 : problem->rank_count;
  const double within = (double)(microbatch % group) / problem->stages_per_rank;
  return chain->period * ((double)(microbatch - microbatch % group) + within);
}

static void set_row(struct chain *chain, const struct setting *setting, uint32_t stage,
                    enum weft_letter kind, double at) {
  int64_t *row = weft_target_row(&chain->list, stage, kind);
  for (uint32_t k = 0; k < chain->pool->problem->microbatch_count; k++) {
    row[k] = (int64_t)(at + departure(chain, setting, k));
  }
}

static void set_weights(struct chain *chain, const struct setting *setting, uint32_t stage,
                        double at) {
  const double lag = dial(setting, WEIGHTS);
  if (lag < 1e6) {
    set_row(chain, setting, stage, WEFT_LETTER_W, at + lag * chain->period);
    return;
  }
  int64_t *row = weft_target_row(&chain->list, stage, WEFT_LETTER_W);
  for (uint32_t k = 0; k < chain->pool->problem->microbatch_count; k++) {
    row[k] = WEFT_TARGET_LAST - stage;
  }
}

static double pace(const struct chain *chain, const struct setting *setting, uint32_t stage) {
  return dial(setting, chain->pool->problem->stages[stage].place % 2 == 0 ? DOWN : UP);
}

static void set_targets(struct chain *chain, const struct setting *setting) {
  const struct weft_problem *problem = chain->pool->problem;
  const enum weft_letter back = problem->whole_backward ? WEFT_LETTER_B : WEFT_LETTER_I;
  double at = 0;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    set_row(chain, setting, s, WEFT_LETTER_F, at);
    const int64_t hop = s + 1 < problem->stage_count ? weft_problem_hop(problem, s, s + 1) : 0;
    at += pace(chain, setting, s) * (double)(problem->stages[s].time[WEFT_LETTER_F] + hop);
  }
  at += dial(setting, TURN) * chain->period;
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    set_row(chain, setting, s, back, at);
    set_weights(chain, setting, s, at);
    const int64_t hop = s > 0 ? weft_problem_hop(problem, s, s - 1) : 0;
    at += pace(chain, setting, s) * dial(setting, BACK) *
          (double)(problem->stages[s].time[back] + hop);
  }
}

/* ---- Search ---- */

static int64_t run(struct chain *chain, const struct setting *setting, int64_t cutoff) {
  struct weft_pool *pool = chain->pool;
  const double lead = dial(setting, LEAD);
  const struct weft_target_policy policy = {
      .lead = lead < 1e6 ? (int64_t)(lead * chain->period) : INT64_MAX,
      .fill = dial(setting, FILL)};
  set_targets(chain, setting);
  const int64_t value = weft_target_list_run(&chain->list, &policy, cutoff, &pool->draft);
  chain->runs--;
  if (value < pool->value) {
    (void)weft_pool_offer(pool, &pool->draft, NULL);
  }
  return value;
}

/* All marks of one dial; true when one of them is better. */
static bool turn_dial(struct chain *chain, struct setting *setting, enum dial which,
                      int64_t *best) {
  bool better = false;
  struct setting other = *setting;
  for (uint8_t mark = 0; mark < MARKS && chain->runs > 0; mark++) {
    other.mark[which] = mark;
    const int64_t value = mark == setting->mark[which] ? WEFT_NEVER : run(chain, &other, *best - 1);
    if (value < *best) {
      *best = value;
      *setting = other;
      better = true;
    }
  }
  return better;
}

static void climb(struct chain *chain, struct setting setting) {
  int64_t best = run(chain, &setting, WEFT_NEVER);
  uint32_t still = 0;
  for (uint32_t n = 0; still < DIAL_COUNT; n++) {
    if (chain->runs == 0 || weft_pool_is_optimal(chain->pool)) {
      return;
    }
    still = turn_dial(chain, &setting, n % DIAL_COUNT, &best) ? 0 : still + 1;
  }
}

static void try_chains(struct chain *chain) {
  static const struct setting starts[] = {
      {.mark = {[DOWN] = 0}},
      {.mark = {[DOWN] = 3, [UP] = 3, [GROUP] = 1}},
      {.mark = {[DOWN] = 2, [UP] = 2, [BACK] = 2, [WEIGHTS] = 2}},
  };
  const struct weft_problem *problem = chain->pool->problem;
  const uint64_t runs = WORK / ((uint64_t)problem->rank_count * problem->word_size);
  const uint32_t each = (uint32_t)(runs < RUNS_MIN ? RUNS_MIN : runs) / 3;
  for (uint32_t n = 0; n < sizeof starts / sizeof starts[0]; n++) {
    chain->runs = each;
    climb(chain, starts[n]);
  }
}

static void set_period(struct chain *chain) {
  const struct weft_problem *problem = chain->pool->problem;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const double work = (double)chain->list.work[r] / problem->microbatch_count;
    chain->period = work > chain->period ? work : chain->period;
  }
}

enum weft_status weft_construct_chain_greedy(struct weft_pool *pool, struct weft_error *error) {
  if (pool->problem->stages_per_rank < 2) {
    return WEFT_OK;
  }
  struct chain chain = {.pool = pool};
  WEFT_TRY(weft_target_list_init(&chain.list, pool->problem, &pool->evaluation, error));
  set_period(&chain);
  try_chains(&chain);
  weft_target_list_finish(&chain.list);
  return WEFT_OK;
}
