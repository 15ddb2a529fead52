/* Orders for the V placement from building blocks (arXiv 2405.15362): all microbatches take the
 * same path through the ranks, each one period after the previous one, and in a period a rank runs
 * a pattern of ticks without collisions. The slope of the path decides how much memory it takes:
 * V-Min, V-Half and ZB-V are three such blocks, and there are some for every memory in between.
 * Less memory than V-Min's needs a longer period.
 *
 * A block only gives targets. The list scheduler turns them into an order with the real costs, and
 * takes care of the start, the end and the memory limit. */
#include <assert.h>
#include <stdlib.h>

#include <weft/support.h>

#include "plan/construct/constructors.h"
#include "plan/construct/list_scheduler.h"

/* In the order of a microbatch's path, also the order of gaps and slopes. */
enum { F0, F1, I1, I0, PASSES };

enum {
  PERIOD = 6, /* two stages, three ticks each */
  SLOPE_MAX = 8,
  GAP_MAX = 6,
  BLOCKS_MAX = 1024,
  CHOSEN_MAX = 8
};

struct block {
  uint8_t slope[PASSES]; /* ticks from rank to rank */
  uint8_t gap[PASSES];   /* ticks between each pass and the previous one; [F0] is 0 */
  uint32_t period;
  uint32_t number; /* in which they were collected */
  int64_t value;   /* of the best order so far */
};

/* Ops to schedule in all: about 7 ms of a typical core. */
#define WORK 100000

struct blocks {
  struct weft_incumbent *incumbent;
  struct weft_list_scheduler scheduler;
  struct block *all; /* [BLOCKS_MAX] */
  uint32_t count;
  uint32_t runs; /* left */
};

/* ---- Patterns ---- */

/* The tick of each pass of microbatch 0 on the rank. */
static void set_ticks(const struct block *block, uint32_t ranks, uint32_t rank,
                      int64_t ticks[PASSES]) {
  int64_t at = 0;
  for (unsigned pass = 0; pass < PASSES; pass++) {
    const uint32_t hops = pass == F0 || pass == I1 ? rank : ranks - 1 - rank;
    at += block->gap[pass];
    ticks[pass] = at + (int64_t)hops * block->slope[pass];
    at += (int64_t)(ranks - 1) * block->slope[pass];
  }
}

static bool collides(const struct block *block, uint32_t ranks) {
  for (uint32_t r = 0; r < ranks && r < PERIOD; r++) {
    int64_t ticks[PASSES];
    unsigned seen = 0;
    set_ticks(block, ranks, r, ticks);
    for (unsigned pass = 0; pass < PASSES; pass++) {
      const unsigned bit = 1U << ticks[pass] % PERIOD;
      if (seen & bit) {
        return true;
      }
      seen |= bit;
    }
  }
  return false;
}

/* Activations of one stage that are alive at a tick: from F to the end of I. */
static int64_t alive(const struct block *block, int64_t from, int64_t to, int64_t tick) {
  const int64_t period = block->period;
  const int64_t since = ((tick - from) % period + period) % period;
  return to + 1 - from > since ? (to - from - since) / period + 1 : 0;
}

static uint32_t peak_at(const struct block *block, uint32_t ranks, uint32_t rank) {
  int64_t ticks[PASSES], peak = 0;
  set_ticks(block, ranks, rank, ticks);
  for (unsigned pass = F0; pass <= F1; pass++) {
    const int64_t here = alive(block, ticks[F0], ticks[I0], ticks[pass]) +
                         alive(block, ticks[F1], ticks[I1], ticks[pass]);
    peak = here > peak ? here : peak;
  }
  return (uint32_t)peak;
}

/* The most activations on any rank: paths are straight, so the first or the last rank has them. */
static uint32_t peak_of(const struct block *block, uint32_t ranks) {
  const uint32_t first = peak_at(block, ranks, 0), last = peak_at(block, ranks, ranks - 1);
  return first > last ? first : last;
}

/* ---- Choosing blocks ---- */

/* Activations that fit into the memory of every rank. */
static uint32_t units_of(const struct weft_problem *problem) {
  int64_t least = 2 * (int64_t)problem->microbatch_count;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const int64_t both = problem->stages[problem->stage_of[2 * r]].held +
                         problem->stages[problem->stage_of[2 * r + 1]].held;
    const int64_t fit =
        both > 0 ? (int64_t)(2 * (double)weft_problem_limit_at_end(problem, r) / (double)both)
                 : least;
    least = fit < least ? fit : least;
  }
  return least < 0 ? 0 : (uint32_t)least;
}

static void keep(struct blocks *blocks, const struct block *block) {
  if (blocks->count < BLOCKS_MAX) {
    blocks->all[blocks->count] = *block;
    blocks->all[blocks->count].number = blocks->count;
    blocks->count++;
  }
}

static void try_gaps(struct blocks *blocks, struct block *block, uint32_t units) {
  const uint32_t ranks = blocks->incumbent->problem->rank_count;
  for (uint32_t n = 0; n < GAP_MAX * GAP_MAX * GAP_MAX; n++) {
    block->gap[F1] = (uint8_t)(1 + n % GAP_MAX);
    block->gap[I1] = (uint8_t)(1 + n / GAP_MAX % GAP_MAX);
    block->gap[I0] = (uint8_t)(1 + n / GAP_MAX / GAP_MAX);
    const uint32_t peak = peak_of(block, ranks);
    if (peak <= units + 1 && peak + 1 >= units && !collides(block, ranks)) {
      keep(blocks, block);
    }
  }
}

/* Whether any gaps can bring the peak to `units`. */
static bool may_fit(const struct blocks *blocks, struct block *block, uint32_t units) {
  const uint32_t ranks = blocks->incumbent->problem->rank_count;
  block->gap[F1] = block->gap[I1] = block->gap[I0] = 1;
  if (peak_of(block, ranks) > units + 1) {
    return false;
  }
  block->gap[F1] = block->gap[I1] = block->gap[I0] = GAP_MAX;
  return peak_of(block, ranks) + 1 >= units;
}

/* Shifting all ticks of a rank makes its path down steeper by as much as its path up gets flatter.
 * One of such equivalent blocks is enough: the one with a slope of 1 in F0 or I1. */
static void collect_dense(struct blocks *blocks, uint32_t units) {
  for (uint32_t n = 0; n < SLOPE_MAX * SLOPE_MAX * (2 * SLOPE_MAX - 1); n++) {
    const uint32_t down = n / SLOPE_MAX / SLOPE_MAX;
    struct block block = {.slope = {[F0] = (uint8_t)(down < SLOPE_MAX ? 1 + down : 1),
                                    [F1] = (uint8_t)(1 + n % SLOPE_MAX),
                                    [I1] = (uint8_t)(down < SLOPE_MAX ? 1 : 2 + down - SLOPE_MAX),
                                    [I0] = (uint8_t)(1 + n / SLOPE_MAX % SLOPE_MAX)},
                          .period = PERIOD};
    if (may_fit(blocks, &block, units)) {
      try_gaps(blocks, &block, units);
    }
  }
}

/* The steepest path, with periods that leave ticks idle. */
static void collect_sparse(struct blocks *blocks, uint32_t units) {
  struct block block = {.slope = {1, 1, 1, 1}, .gap = {0, 1, 1, 1}, .period = PERIOD};
  const uint32_t ranks = blocks->incumbent->problem->rank_count;
  for (uint32_t kept = 0; kept < CHOSEN_MAX && block.period <= 4 * ranks;
       block.period += 1 + block.period / 16) {
    const uint32_t peak = peak_of(&block, ranks);
    if (peak <= units && peak + 1 >= units) {
      keep(blocks, &block);
      kept++;
    }
  }
}

/* ---- Orders from blocks ---- */

static void set_row(struct blocks *blocks, uint32_t stage, enum weft_plan_op_kind kind, int64_t at,
                    uint32_t period) {
  int64_t *row = weft_target_row(&blocks->scheduler, stage, kind);
  for (uint32_t k = 0; k < blocks->incumbent->problem->microbatch_count; k++) {
    row[k] = at + (int64_t)k * period;
  }
}

static void set_targets(struct blocks *blocks, const struct block *block) {
  const struct weft_problem *problem = blocks->incumbent->problem;
  for (uint32_t r = 0; r < problem->rank_count; r++) {
    const uint32_t down = problem->stage_of[2 * r], up = problem->stage_of[2 * r + 1];
    int64_t ticks[PASSES];
    set_ticks(block, problem->rank_count, r, ticks);
    set_row(blocks, down, WEFT_KIND_F, ticks[F0], block->period);
    set_row(blocks, up, WEFT_KIND_F, ticks[F1], block->period);
    set_row(blocks, up, WEFT_KIND_I, ticks[I1], block->period);
    set_row(blocks, down, WEFT_KIND_I, ticks[I0], block->period);
    set_row(blocks, down, WEFT_KIND_W, WEFT_TARGET_LAST, 0);
    set_row(blocks, up, WEFT_KIND_W, WEFT_TARGET_LAST - 1, 0);
  }
}

static void try_block(struct blocks *blocks, struct block *block, int64_t lead, double fill,
                      int64_t cutoff) {
  const struct weft_target_rule rule = {.lead = lead, .fill = fill};
  const int64_t value =
      weft_list_scheduler_try(&blocks->scheduler, &rule, cutoff, blocks->incumbent);
  block->value = value < block->value ? value : block->value;
  blocks->runs--;
}

/* Every block is scheduled once, or as many as there is work for; then the best ones with other
 * rules. */
static const int64_t first_lead = 4;
static const double first_fill = 0.5;

/* A block that is much worse at first does not become the best. */
static int64_t cutoff_of(const struct weft_incumbent *incumbent) {
  return incumbent->value == WEFT_NEVER ? WEFT_NEVER : incumbent->value + incumbent->value / 8;
}

static void try_all(struct blocks *blocks) {
  const uint32_t most = blocks->runs / 2;
  const uint32_t stride = blocks->count / (most + 1) + 1;
  for (uint32_t n = 0; n < blocks->count && blocks->runs > 0; n++) {
    blocks->all[n].value = WEFT_NEVER;
    if (n % stride == 0 && !weft_incumbent_is_done(blocks->incumbent)) {
      set_targets(blocks, &blocks->all[n]);
      try_block(blocks, &blocks->all[n], first_lead, first_fill, cutoff_of(blocks->incumbent));
    }
  }
}

static void try_other_rules(struct blocks *blocks, struct block *block) {
  static const int64_t leads[] = {1, 6, 9, 4, 0, 24, INT64_MAX};
  static const double fills[] = {first_fill, 0, 1};
  set_targets(blocks, block);
  for (size_t f = 0; f < WEFT_ARRAY_LENGTH(fills); f++) {
    for (size_t n = 0; n < WEFT_ARRAY_LENGTH(leads); n++) {
      const bool done = leads[n] == first_lead && fills[f] == first_fill;
      if (!done && blocks->runs > 0 && !weft_incumbent_is_done(blocks->incumbent)) {
        try_block(blocks, block, leads[n], fills[f], blocks->incumbent->value);
      }
    }
  }
}

/* A total order, so that the plan does not depend on the C library's qsort(). */
static int by_value(const void *a, const void *b) {
  const struct block *x = a, *y = b;
  return x->value != y->value ? (x->value > y->value) - (x->value < y->value)
                              : (x->number > y->number) - (x->number < y->number);
}

static void try_blocks(struct blocks *blocks) {
  const struct weft_problem *problem = blocks->incumbent->problem;
  const uint32_t most = 4 * problem->rank_count, units = units_of(problem);
  assert(weft_problem_timed_op_count(problem) > 0);
  const uint64_t runs = WORK / weft_problem_timed_op_count(problem);
  blocks->runs = (uint32_t)(runs < CHOSEN_MAX ? CHOSEN_MAX : runs);
  collect_sparse(blocks, units);
  collect_dense(blocks, units < most ? units : most);
  try_all(blocks);
  qsort(blocks->all, blocks->count, sizeof *blocks->all, by_value);
  for (uint32_t n = 0; n < blocks->count && n < CHOSEN_MAX; n++) {
    try_other_rules(blocks, &blocks->all[n]);
  }
}

enum weft_status weft_construct_v_blocks(struct weft_incumbent *incumbent,
                                         struct weft_error *error) {
  assert(incumbent != NULL && incumbent->draft.ops != NULL);
  const struct weft_problem *problem = incumbent->problem;
  if (problem->placement != WEFT_PLACEMENT_V || problem->stages_per_rank != 2) {
    return WEFT_OK;
  }
  WEFT_SCOPED_ARENA arena = {.allocator = problem->allocator};
  struct blocks blocks = {.incumbent = incumbent};
  blocks.all = weft_arena_allocate(&arena, BLOCKS_MAX, sizeof *blocks.all);
  WEFT_TRY(weft_list_scheduler_init(&blocks.scheduler, problem, &incumbent->clock, &arena, error));
  try_blocks(&blocks);
  return WEFT_OK;
}
