/* ZB-V (arXiv 2401.10241, section 6): two stages per rank in V placement, so
 * that the last stage sits on rank 0 and backwards can begin at once. Rank r
 * owns s0 = r and s1 = 2p-1-r. */
#include <assert.h>
#include <math.h>

#include "gen/generator.h"

/* A row under construction. Each (stage, op) counts its own microbatches; the
 * recipe needs at least 2p-1 of them, and those beyond m become bubbles. */
struct v_row {
  struct weft_program_builder *row;
  uint32_t microbatches;
  uint32_t stage[2];
  uint32_t count[2][WEFT_OP_COUNT];
};

static void put_op(struct v_row *v, enum weft_op op, unsigned local) {
  const uint32_t mb = v->count[local][op]++;
  if (mb < v->microbatches) {
    weft_program_builder_put(v->row, op, v->stage[local], mb);
  } else {
    weft_program_builder_idle(v->row, 1);
  }
}

static uint32_t recipe_microbatches(const struct weft_shape *shape) {
  const uint32_t least = 2 * shape->ranks - 1;
  return shape->microbatches > least ? shape->microbatches : least;
}

static double cells(const struct weft_shape *shape) {
  const double p = shape->ranks;
  const double m = shape->microbatches > 2 * p - 1 ? shape->microbatches : 2 * p - 1;
  return p * (6.0 * m + p);
}

static void put_warm_up(struct v_row *v, uint32_t p, uint32_t rank) {
  weft_program_builder_idle(v->row, rank);
  for (uint32_t k = 0; k < 2 * (p - rank) - 1; k++) {
    put_op(v, WEFT_OP_F, 0);
  }
  for (uint32_t k = 0; k < rank; k++) {
    put_op(v, WEFT_OP_F, 1);
    put_op(v, WEFT_OP_F, 0);
  }
  for (uint32_t k = 0; k < p - rank; k++) {
    put_op(v, WEFT_OP_F, 1);
    put_op(v, WEFT_OP_I, 1);
    put_op(v, WEFT_OP_W, 1);
  }
}

static void put_steady(struct v_row *v, uint32_t all) {
  while (v->count[1][WEFT_OP_F] < v->count[0][WEFT_OP_F] || v->count[0][WEFT_OP_F] < all) {
    if (v->count[0][WEFT_OP_F] < all) {
      put_op(v, WEFT_OP_F, 0);
    }
    put_op(v, WEFT_OP_I, 0);
    put_op(v, WEFT_OP_W, 0);
    put_op(v, WEFT_OP_F, 1);
    put_op(v, WEFT_OP_I, 1);
    put_op(v, WEFT_OP_W, 1);
  }
}

static void put_cool_down(struct v_row *v, uint32_t p, uint32_t rank, uint32_t all) {
  for (uint32_t k = 0; k < rank; k++) {
    put_op(v, WEFT_OP_I, 0);
    put_op(v, WEFT_OP_I, 1);
  }
  for (uint32_t k = 0; k < p - rank; k++) {
    put_op(v, WEFT_OP_I, 0);
    put_op(v, WEFT_OP_W, 0);
  }
  for (unsigned local = 2; local-- > 0;) {
    while (v->count[local][WEFT_OP_W] < all) {
      put_op(v, WEFT_OP_W, local);
    }
  }
}

static void put_row(const struct weft_shape *shape, uint32_t rank,
                    struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  const uint32_t p = shape->ranks, all = recipe_microbatches(shape);
  struct v_row v = {
      .row = row, .microbatches = shape->microbatches, .stage = {rank, 2 * p - 1 - rank}};
  put_warm_up(&v, p, rank);
  put_steady(&v, all);
  put_cool_down(&v, p, rank, all);
}

/* The recipe is made for equal costs; with others its bubble has no short form. */
static double bubble(const struct weft_shape *shape, const struct weft_unit_costs *costs) {
  const bool equal = costs->f == costs->i && costs->i == costs->w;
  return equal && shape->microbatches >= 2 * shape->ranks - 1 ? (shape->ranks - 1.0) * costs->f
                                                              : NAN;
}

const struct weft_generator weft_generator_zbv = {
    .info = {.name = "ZBVZeroBubble",
             .summary = "zero bubble in V placement, at the memory of 1F1B",
             .paper = "2401.10241",
             .placement = WEFT_PLACEMENT_V,
             WEFT_STAGES_PER_RANK(2, 2, 2),
             .splits_backward = true,
             .trains = true,
             .in_pytorch = true,
             .bubble = "(p-1)F for F = I = W, m >= 2p-1",
             .peak_activation = "min(m, p)",
             .limits = "v = 2",
             .bubble_of = bubble,
             .peak_of = weft_peak_of_1f1b},
    .cells = cells,
    .row = put_row};
