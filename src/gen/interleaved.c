/* Interleaved 1F1B (arXiv 2104.04473, section 2.2) and its zero-bubble form
 * ZB1P (arXiv 2401.10241): microbatches go in rounds; in a round each local
 * stage takes g microbatches before the next local stage begins.
 *
 * PyTorch demands that m is a multiple of the number of rounds, max(1, m div p).
 * Here the remainder is spread, one microbatch more in each of the first
 * rounds, and the warm-up is the one of the largest round. That serves every
 * m >= 1 at the closed-form bubble; a short last round as in Megatron costs up
 * to 4.5 times that bubble, and can deadlock (measured over p 2-8, v 2-4, m 1-40). */
#include <assert.h>
#include <math.h>

#include <weft/support.h>

#include "gen/generator.h"
#include "ir/program.h"

/* A position in the (local stage, microbatch) order of one direction. */
struct position {
  uint32_t v;
  uint32_t group;       /* microbatches of a round, without the spread remainder */
  uint32_t longer;      /* rounds still to come that have one more */
  uint32_t round_size;  /* of this round */
  uint32_t round_begin; /* its first microbatch */
  uint32_t local;       /* local stage, counted from the first one */
  uint32_t offset;      /* microbatch within the round */
};

static uint32_t round_count(const struct weft_shape *shape) {
  const uint32_t rounds = shape->microbatches / shape->ranks;
  return rounds > 0 ? rounds : 1;
}

static struct position first_position(const struct weft_shape *shape) {
  const uint32_t rounds = round_count(shape);
  struct position at = {.v = shape->stages_per_rank,
                        .group = shape->microbatches / rounds,
                        .longer = shape->microbatches % rounds};
  at.round_size = at.group + (at.longer > 0);
  return at;
}

static void advance_position(struct position *at) {
  if (++at->offset < at->round_size) {
    return;
  }
  at->offset = 0;
  if (++at->local < at->v) {
    return;
  }
  at->local = 0;
  at->round_begin += at->round_size;
  at->longer -= at->longer > 0;
  at->round_size = at->group + (at->longer > 0);
}

static uint32_t largest_round(const struct weft_shape *shape) {
  const uint32_t rounds = round_count(shape);
  return shape->microbatches / rounds + (shape->microbatches % rounds > 0);
}

static void put_forward(const struct weft_shape *shape, uint32_t rank, struct position *at,
                        struct weft_program_builder *row) {
  weft_program_builder_put(row, WEFT_OP_F, at->local * shape->ranks + rank,
                           at->round_begin + at->offset);
  advance_position(at);
}

/* Backwards visit the local stages from the last to the first. */
static void put_backward(const struct weft_shape *shape, uint32_t rank, enum weft_op op,
                         struct position *at, struct weft_program_builder *row) {
  weft_program_builder_put(row, op, (at->v - 1 - at->local) * shape->ranks + rank,
                           at->round_begin + at->offset);
  advance_position(at);
}

/* Warm-up forwards; `per_rank` is 2 for 1F1B (room for a round trip), 1 for ZB. */
static uint64_t warm_up(const struct weft_shape *shape, uint32_t rank, uint32_t per_rank) {
  const uint64_t all = (uint64_t)shape->microbatches * shape->stages_per_rank;
  const uint64_t warm = (uint64_t)(shape->stages_per_rank - 1) * largest_round(shape) +
                        (uint64_t)per_rank * (shape->ranks - 1 - rank);
  return warm < all ? warm : all;
}

/* ---- Interleaved 1F1B ---- */

static double cells(const struct weft_shape *shape) {
  const double p = shape->ranks, v = shape->stages_per_rank;
  /* forwards, backwards, an idle before each cool-down backward, the start */
  return p * (3.0 * v * shape->microbatches) + p * (p * (v + 3.0));
}

static void put_row(const struct weft_shape *shape, uint32_t rank,
                    struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  const uint64_t all = (uint64_t)shape->microbatches * shape->stages_per_rank;
  const uint64_t warm = warm_up(shape, rank, 2);
  const uint64_t p = shape->ranks;
  struct position forward = first_position(shape), backward = forward;
  weft_program_builder_idle(row, rank);
  for (uint64_t k = 0; k < warm; k++) {
    put_forward(shape, rank, &forward, row);
  }
  const uint64_t first_backward = shape->stages_per_rank * p + 2 * (p - 1 - rank);
  if (warm > 0 && first_backward > warm + rank) {
    weft_program_builder_idle(row, first_backward - (warm + rank));
  }
  for (uint64_t k = warm; k < all; k++) {
    put_forward(shape, rank, &forward, row);
    put_backward(shape, rank, WEFT_OP_B, &backward, row);
  }
  for (uint64_t k = 0; k < warm; k++) {
    weft_program_builder_idle(row, 1);
    put_backward(shape, rank, WEFT_OP_B, &backward, row);
  }
}

static double peak_of_warm_up(const struct weft_shape *shape, uint32_t per_rank) {
  const uint64_t all = (uint64_t)shape->microbatches * shape->stages_per_rank;
  const uint64_t held = warm_up(shape, 0, per_rank) + 1;
  return (double)(held < all ? held : all) / shape->stages_per_rank;
}

static double peak(const struct weft_shape *shape) { return peak_of_warm_up(shape, 2); }

const struct weft_generator weft_generator_interleaved_1f1b = {
    .info = {.name = "Interleaved1F1B",
             .summary = "1F1B over several stages per rank: a smaller bubble for more messages",
             .paper = "2104.04473",
             .placement = WEFT_PLACEMENT_LOOP,
             WEFT_STAGES_PER_RANK(1, UINT32_MAX, 2),
             .trains = true,
             .in_pytorch = true,
             .bubble = "(p-1 + (v-1)max(0, p-m))(F+B)",
             .peak_activation = "p + (p-1)/v for p | m",
             .limits = "",
             .bubble_of = weft_bubble_full_backward,
             .peak_of = peak},
    .cells = cells,
    .row = put_row};

/* ---- Interleaved zero bubble ---- */

static double zb_cells(const struct weft_shape *shape) {
  const double p = shape->ranks, v = shape->stages_per_rank;
  return p * (3.0 * v * shape->microbatches) + 2.0 * p * p;
}

static void put_zb_row(const struct weft_shape *shape, uint32_t rank,
                       struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  const uint64_t all = (uint64_t)shape->microbatches * shape->stages_per_rank;
  const uint64_t warm = warm_up(shape, rank, 1);
  struct position forward = first_position(shape), backward = forward;
  uint64_t next_i = row->count, weights = 0;
  weft_program_builder_idle(row, rank);
  for (uint64_t k = 0; k < warm; k++) {
    put_forward(shape, rank, &forward, row);
  }
  weft_program_builder_idle(row, warm > 0 ? shape->ranks - 1 - rank : 0);
  for (uint64_t k = 0; k < all; k++) {
    if (warm + k < all) {
      put_forward(shape, rank, &forward, row);
    }
    put_backward(shape, rank, WEFT_OP_I, &backward, row);
    if (k >= rank) {
      weft_row_put_oldest_w(row, &next_i);
      weights++;
    }
  }
  for (; weights < all; weights++) {
    weft_row_put_oldest_w(row, &next_i);
  }
}

/* The step at which each F happens when all ranks move in lock step and a
 * forward waits for its predecessor's; that decides where bubbles go. */
struct steps {
  uint32_t *of_forward; /* [stage][microbatch], UINT32_MAX: not yet */
  uint64_t *at;         /* [rank] next record */
  uint64_t cells;       /* of all rows, with the bubbles that are put in */
};

static bool must_wait(const struct weft_shape *shape, const struct steps *steps,
                      struct weft_action action, uint64_t step) {
  if (action.op != WEFT_OP_F || action.stage == 0) {
    return false;
  }
  const uint64_t before = (uint64_t)(action.stage - 1u) * shape->microbatches + action.microbatch;
  return steps->of_forward[before] >= step;
}

enum { PREFETCH_RECORDS = 32 };

static void sweep_lock_step(const struct weft_shape *shape, const struct weft_program *table,
                            struct steps *steps) {
  uint32_t live = table->rank_count;
  for (uint64_t step = 0; live > 0; step++) {
    live = 0;
    for (uint32_t r = 0; r < table->rank_count; r++) {
      if (steps->at[r] == table->row_begin[r + 1]) {
        continue;
      }
      live++;
      steps->cells++;
      const struct weft_action action = table->actions[steps->at[r]];
      /* A stream per rank is more than the hardware follows by itself. */
      __builtin_prefetch(&table->actions[steps->at[r]] + PREFETCH_RECORDS);
      if (must_wait(shape, steps, action, step)) {
        continue;
      }
      steps->at[r]++;
      if (action.op == WEFT_OP_F) {
        uint32_t *done =
            &steps->of_forward[(uint64_t)action.stage * shape->microbatches + action.microbatch];
        __builtin_prefetch(done + PREFETCH_RECORDS, 1);
        *done = (uint32_t)step;
      }
    }
  }
}

/* The rank's row, with bubbles up to the step of each forward. */
static void put_spread_row(const struct weft_shape *shape, const struct weft_program *table,
                           uint32_t rank, const struct steps *steps,
                           struct weft_program_builder *row) {
  uint32_t step = 0;
  for (uint64_t i = table->row_begin[rank]; i < table->row_begin[rank + 1]; i++, step++) {
    const struct weft_action action = table->actions[i];
    if (action.op == WEFT_OP_F) {
      const uint32_t at =
          steps->of_forward[(uint64_t)action.stage * shape->microbatches + action.microbatch];
      weft_program_builder_idle(row, at - step);
      step = at;
    }
    weft_program_builder_add(row, action);
  }
}

static enum weft_status insert_bubbles(const struct weft_shape *shape,
                                       const struct weft_program *table, struct weft_program **out,
                                       struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = table->allocator};
  const uint32_t p = shape->ranks;
  const uint64_t forwards = (uint64_t)p * shape->stages_per_rank * shape->microbatches;
  struct steps steps = {.of_forward = weft_arena_allocate(&arena, forwards, sizeof(uint32_t)),
                        .at = weft_arena_allocate(&arena, p, sizeof(uint64_t))};
  WEFT_TRY(weft_arena_status(&arena, error));
  memset(steps.of_forward, 0xff, forwards * sizeof(uint32_t));
  memcpy(steps.at, table->row_begin, p * sizeof(uint64_t));
  sweep_lock_step(shape, table, &steps);
  struct weft_program_builder rows;
  weft_program_builder_init(&rows, table->allocator, steps.cells, p);
  for (uint32_t r = 0; r < p && rows.status == WEFT_OK; r++) {
    put_spread_row(shape, table, r, &steps, &rows);
    weft_program_builder_end_row(&rows);
  }
  return weft_program_builder_finish_like(&rows, table, table->level, out, error);
}

static double zb_bubble(const struct weft_shape *shape, const struct weft_unit_costs *costs) {
  if (shape->microbatches < shape->ranks || costs->w > costs->i || costs->w > costs->f) {
    return NAN;
  }
  return (shape->ranks - 1.0) * (costs->f + costs->i - costs->w);
}

static double zb_peak(const struct weft_shape *shape) { return peak_of_warm_up(shape, 1); }

const struct weft_generator weft_generator_interleaved_zero_bubble = {
    .info = {.name = "InterleavedZeroBubble",
             .summary = "interleaved, with the weight gradient filling the bubble (ZB1P)",
             .paper = "2401.10241",
             .placement = WEFT_PLACEMENT_LOOP,
             WEFT_STAGES_PER_RANK(1, UINT32_MAX, 2),
             .splits_backward = true,
             .trains = true,
             .in_pytorch = true,
             .bubble = "(p-1)(F+I-W) for W <= F, I and m >= p",
             .peak_activation = "p for p | m",
             .limits = "",
             .bubble_of = zb_bubble,
             .peak_of = zb_peak},
    .cells = zb_cells,
    .row = put_zb_row,
    .finish = insert_bubbles};
