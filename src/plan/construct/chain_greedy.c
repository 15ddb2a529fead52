/* Orders for several stages per rank, any placement and costs. The path of a single microbatch in
 * real time, stretched by a few parameters, gives the target times of all microbatches, and the
 * list scheduler turns them into an order. Coordinate descent: one parameter at a time changes as
 * long as that helps. */
#include <assert.h>
#include <stdlib.h>

#include <weft/support.h>

#include "plan/construct/constructors.h"
#include "plan/construct/list_scheduler.h"

/* Ops to schedule in all: about 7 ms of a typical core. */
#define WORK 100000
enum { RUNS_MIN = 12 };

enum parameter {
  EVEN_PACE,     /* slowdown of a forward at a rank's first, third, ... stage */
  ODD_PACE,      /* at its second, fourth, ... stage */
  BACKWARD_PACE, /* slowdown of backwards relative to forwards */
  TURNAROUND,    /* periods between the last forward and the first backward */
  GROUP,         /* microbatches that pass a stage together: 1, or 0 for as many as ranks */
  LEAD,          /* of the list scheduler, in periods */
  FILL,          /* of the list scheduler */
  WEIGHTS,       /* periods from a backward to its W; 1e6: whenever there is time */
  PARAMETER_COUNT
};

enum { CHOICES = 6 };

static const double choices[PARAMETER_COUNT][CHOICES] = {
    [EVEN_PACE] = {1, 1.5, 2, 3, 4, 0.5},
    [ODD_PACE] = {1, 1.5, 2, 3, 4, 0.5},
    [BACKWARD_PACE] = {1, 0.7, 1.4, 2, 0.5, 3},
    [TURNAROUND] = {0, 0.5, 1, -0.5, -1, 2},
    [GROUP] = {1, 0, 1, 0, 1, 0},
    [LEAD] = {0.7, 0.2, 1.5, 1e6, 0, 4},
    [FILL] = {0.5, 0, 1, 0.25, 0.75, 1},
    [WEIGHTS] = {1e6, 0, 0.5, 1, 2, 1e6},
};

struct setting {
  uint8_t choice[PARAMETER_COUNT];
};

struct chain {
  struct weft_incumbent *incumbent;
  struct weft_list_scheduler scheduler;
  double period; /* the work of a microbatch on the busiest rank */
  uint32_t runs; /* left */
};

static double value_of(const struct setting *setting, enum parameter which) {
  return choices[which][setting->choice[which]];
}

/* ---- Targets ---- */

/* Start of a microbatch. All of a group pass a stage before any of them continues. */
static double departure(const struct chain *chain, const struct setting *setting,
                        uint32_t microbatch) {
  const struct weft_problem *problem = chain->incumbent->problem;
  const uint32_t group = value_of(setting, GROUP) > 0 ? 1 : problem->rank_count;
  const double within = (double)(microbatch % group) / problem->stages_per_rank;
  return chain->period * ((double)(microbatch - microbatch % group) + within);
}

static void set_row(struct chain *chain, const struct setting *setting, uint32_t stage,
                    enum weft_plan_op_kind kind, double at) {
  int64_t *row = weft_target_row(&chain->scheduler, stage, kind);
  for (uint32_t k = 0; k < chain->incumbent->problem->microbatch_count; k++) {
    row[k] = (int64_t)(at + departure(chain, setting, k));
  }
}

static void set_weights(struct chain *chain, const struct setting *setting, uint32_t stage,
                        double at) {
  const double lag = value_of(setting, WEIGHTS);
  if (lag < 1e6) {
    set_row(chain, setting, stage, WEFT_KIND_W, at + lag * chain->period);
    return;
  }
  int64_t *row = weft_target_row(&chain->scheduler, stage, WEFT_KIND_W);
  for (uint32_t k = 0; k < chain->incumbent->problem->microbatch_count; k++) {
    row[k] = WEFT_TARGET_LAST - stage;
  }
}

static double pace(const struct chain *chain, const struct setting *setting, uint32_t stage) {
  return value_of(setting, chain->incumbent->problem->stages[stage].local_stage % 2 == 0
                               ? EVEN_PACE
                               : ODD_PACE);
}

static void set_targets(struct chain *chain, const struct setting *setting) {
  const struct weft_problem *problem = chain->incumbent->problem;
  double at = 0;
  for (uint32_t s = 0; s < problem->stage_count; s++) {
    set_row(chain, setting, s, WEFT_KIND_F, at);
    const int64_t hop = s + 1 < problem->stage_count ? weft_problem_hop(problem, 2 * s) : 0;
    at += pace(chain, setting, s) * (double)(problem->stages[s].time[WEFT_KIND_F] + hop);
  }
  at += value_of(setting, TURNAROUND) * chain->period;
  for (uint32_t s = problem->stage_count; s-- > 0;) {
    set_row(chain, setting, s, WEFT_KIND_I, at);
    set_weights(chain, setting, s, at);
    const int64_t hop = s > 0 ? weft_problem_hop(problem, 2 * (s - 1)) : 0;
    at += pace(chain, setting, s) * value_of(setting, BACKWARD_PACE) *
          (double)(weft_problem_backward(problem, s) + hop);
  }
}

/* ---- Search ---- */

static int64_t try_setting(struct chain *chain, const struct setting *setting, int64_t cutoff) {
  const struct weft_target_rule rule =
      weft_target_rule_make(value_of(setting, LEAD), chain->period, value_of(setting, FILL));
  set_targets(chain, setting);
  chain->runs--;
  return weft_list_scheduler_try(&chain->scheduler, &rule, cutoff, chain->incumbent);
}

/* All choices of one parameter; true when one of them is better. */
static bool try_choices(struct chain *chain, struct setting *setting, enum parameter which,
                        int64_t *best) {
  bool better = false;
  struct setting other = *setting;
  for (uint8_t choice = 0; choice < CHOICES && chain->runs > 0; choice++) {
    other.choice[which] = choice;
    const int64_t value =
        choice == setting->choice[which] ? WEFT_NEVER : try_setting(chain, &other, *best - 1);
    if (value < *best) {
      *best = value;
      *setting = other;
      better = true;
    }
  }
  return better;
}

static void descend(struct chain *chain, struct setting setting) {
  int64_t best = try_setting(chain, &setting, WEFT_NEVER);
  uint32_t still = 0;
  for (uint32_t n = 0; still < PARAMETER_COUNT; n++) {
    if (chain->runs == 0 || weft_incumbent_is_done(chain->incumbent)) {
      return;
    }
    still = try_choices(chain, &setting, n % PARAMETER_COUNT, &best) ? 0 : still + 1;
  }
}

static void try_chains(struct chain *chain) {
  static const struct setting starts[] = {
      {.choice = {[EVEN_PACE] = 0}},
      {.choice = {[EVEN_PACE] = 3, [ODD_PACE] = 3, [GROUP] = 1}},
      {.choice = {[EVEN_PACE] = 2, [ODD_PACE] = 2, [BACKWARD_PACE] = 2, [WEIGHTS] = 2}},
  };
  const struct weft_problem *problem = chain->incumbent->problem;
  assert(weft_problem_timed_op_count(problem) > 0);
  const uint64_t runs = WORK / weft_problem_timed_op_count(problem);
  const uint32_t each = (uint32_t)(runs < RUNS_MIN ? RUNS_MIN : runs) / 3;
  for (uint32_t n = 0; n < WEFT_ARRAY_LENGTH(starts); n++) {
    chain->runs = each;
    descend(chain, starts[n]);
  }
}

enum weft_status weft_construct_chain_greedy(struct weft_incumbent *incumbent,
                                             struct weft_error *error) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  if (incumbent->problem->stages_per_rank < 2) {
    return WEFT_OK;
  }
  WEFT_SCOPED_ARENA arena = {.allocator = incumbent->problem->allocator};
  struct chain chain = {.incumbent = incumbent};
  WEFT_TRY(weft_list_scheduler_init(&chain.scheduler, incumbent->problem, &incumbent->clock, &arena,
                                    error));
  chain.period = (double)chain.scheduler.period;
  try_chains(&chain);
  return WEFT_OK;
}
