/* DualPipeV (DeepSeek-V3, arXiv 2412.19437, cut in half along the V): a
 * forward of one direction runs together with a backward of the other. Rank r
 * owns s0 = r and s1 = 2p-1-r. The numbered phases are those of the recipe. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include <weft/support.h>

#include "gen/generator.h"

struct dual_row {
  struct weft_program_builder *row;
  uint32_t stage[2];
  uint32_t forward[2];
  uint32_t backward[2]; /* B and I share a count */
  uint64_t next_i;      /* where the oldest I without a W is looked for */
  uint32_t queued;      /* Is without a W */
};

static void put_f(struct dual_row *d, unsigned local) {
  weft_program_builder_put(d->row, WEFT_OP_F, d->stage[local], d->forward[local]++);
}

static void put_backward(struct dual_row *d, enum weft_op op, unsigned local) {
  weft_program_builder_put(d->row, op, d->stage[local], d->backward[local]++);
  d->queued += op == WEFT_OP_I;
}

static void put_w(struct dual_row *d) {
  if (d->queued > 0) {
    weft_row_put_oldest_w(d->row, &d->next_i);
    d->queued--;
  }
}

/* F of `local` together with B of the other stage. */
static void put_overlap(struct dual_row *d, unsigned local) {
  weft_program_builder_add(d->row, weft_action_overlap(2));
  put_f(d, local);
  put_backward(d, WEFT_OP_B, 1 - local);
}

/* Phases 1 to 3: fill the pipeline. */
static void put_warm_up(struct dual_row *d, uint32_t p, uint32_t rank) {
  for (uint32_t k = 0; k < 2 * (p - rank - 1); k++) {
    put_f(d, 0);
  }
  for (uint32_t k = 0; k < rank + 1; k++) {
    put_f(d, 0);
    put_f(d, 1);
  }
  for (uint32_t k = 0; k < p - rank - 1; k++) {
    put_backward(d, WEFT_OP_I, 1);
    put_w(d);
    put_f(d, 1);
  }
}

/* Phases 4 and 5: forwards and backwards overlap. On the last rank the first
 * pair cannot: its backward needs the forward just before it. */
static void put_steady(struct dual_row *d, uint32_t p, uint32_t rank, uint32_t m) {
  const uint32_t pairs = m - 2 * p + rank + 1;
  for (uint32_t k = 0; k < pairs; k++) {
    if (k == 0 && rank == p - 1) {
      put_f(d, 0);
      put_backward(d, WEFT_OP_B, 1);
    } else {
      put_overlap(d, 0);
    }
    put_overlap(d, 1);
  }
  for (uint32_t k = 0; k < p - rank - 1; k++) {
    put_backward(d, WEFT_OP_B, 1);
    put_overlap(d, 1);
  }
}

/* Phases 6 to 8: drain. From the middle of phase 6 on the backward is split,
 * so that gradients travel on while weights wait. */
static void put_cool_down(struct dual_row *d, uint32_t p, uint32_t rank) {
  const uint32_t half = (rank + 1) / 2;
  enum weft_op op = WEFT_OP_B;
  for (uint32_t k = 0; k < rank + 1; k++) {
    if (k == half && rank % 2 == 1) {
      op = WEFT_OP_I;
    }
    put_backward(d, op, 1);
    if (k == half && rank % 2 == 0) {
      op = WEFT_OP_I;
    }
    put_backward(d, op, 0);
  }
  for (uint32_t k = 0; k < p - rank - 1; k++) {
    put_w(d);
    put_backward(d, op, 0);
  }
  for (uint32_t k = 0; k < rank + 1; k++) {
    put_w(d);
  }
}

static void put_row(const struct weft_shape *shape, uint32_t rank,
                    struct weft_program_builder *row) {
  assert(rank < shape->ranks);
  const uint32_t p = shape->ranks;
  struct dual_row d = {.row = row, .stage = {rank, 2 * p - 1 - rank}, .next_i = row->count};
  put_warm_up(&d, p, rank);
  put_steady(&d, p, rank, shape->microbatches);
  put_cool_down(&d, p, rank);
}

static double cells(const struct weft_shape *shape) {
  /* F and B per stage and microbatch, a header per overlap, some Ws. */
  const double p = shape->ranks;
  return p * (6.0 * shape->microbatches + 2.0 * p);
}

static enum weft_status check_microbatches(const struct weft_shape *shape,
                                           struct weft_error *error) {
  char hint[128];
  if (shape->microbatches >= 2 * (uint64_t)shape->ranks) {
    return WEFT_OK;
  }
  const uint32_t fewer = shape->microbatches / 2;
  if (fewer > 0) {
    (void)snprintf(hint, sizeof hint, "use m = %" PRIu32 " with p = %" PRIu32 ", or p = %" PRIu32,
                   2 * shape->ranks, shape->ranks, fewer);
  } else {
    (void)snprintf(hint, sizeof hint, "use m = %" PRIu32, 2 * shape->ranks);
  }
  return weft_fail(error, WEFT_ERR_USAGE, hint,
                   "DualPipeV needs m >= 2p: at least %" PRIu64 " microbatches for p = %" PRIu32
                   "; m = %" PRIu32 " was asked for",
                   2 * (uint64_t)shape->ranks, shape->ranks, shape->microbatches);
}

/* Without any gain from overlapping (F&B = F + B), the paper's (p-1)(F&B + B - 3W)
 * is exact for equal costs. */
static double bubble(const struct weft_shape *shape, const struct weft_unit_costs *costs) {
  const bool equal = costs->f == costs->i && costs->i == costs->w;
  return equal ? (shape->ranks - 1.0) * (costs->f + 2 * (costs->i + costs->w) - 3 * costs->w) : NAN;
}

static double peak(const struct weft_shape *shape) { return shape->ranks + 0.5; }

const struct weft_generator weft_generator_dualpipev = {
    .info = {.name = "DualPipeV",
             .summary = "forwards and backwards of the two halves of a V run together",
             .paper = "2412.19437",
             .placement = WEFT_PLACEMENT_V,
             WEFT_STAGES_PER_RANK(2, 2, 2),
             .splits_backward = true,
             .trains = true,
             .in_pytorch = true,
             .bubble = "(p-1)(F&B + B - 3W) for F = I = W",
             .peak_activation = "p + 1/2",
             .limits = "v = 2, m >= 2p",
             .bubble_of = bubble,
             .peak_of = peak},
    .cells = cells,
    .check = check_microbatches,
    .row = put_row};
