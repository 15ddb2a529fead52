/* The forward-only program for the placement of any table. The order is that of ForwardOnly, for
 * placements without a closed form: time advances in slots of one forward, and in each slot a rank
 * runs its deepest stage that has input, so that ranks are busy and few activations are in
 * flight. */
#include <assert.h>
#include <inttypes.h>

#include <weft/source.h>
#include <weft/support.h>

#include "base/bits.h"
#include "ir/action.h"
#include "ir/program.h"

WEFT_SCOPED_TYPE(weft_program)

/* Stages are numbered by position: rank after rank, the deepest first. So a rank takes the first
 * ready position from its first one on. */
struct forward_order {
  uint32_t rank_count;
  uint32_t stage_count;
  uint32_t microbatch_count;
  const struct weft_graph *graph; /* NULL: a chain */
  uint32_t *rank_of;              /* [stage] */
  uint32_t *position_of;          /* [stage] */
  uint32_t *stage_at;             /* [position] */
  uint32_t *position_begin;       /* [rank + 1] */
  uint32_t *done;                 /* [stage]: microbatches done */
  uint32_t *taken;                /* [taken_count <= rank_count]: stages of this slot */
  uint64_t *row_sizes;            /* [rank]; later the index of its next action */
  struct weft_bits ready;         /* positions of stages that have input */
};

static enum weft_status allocate_order(struct forward_order *order, struct weft_arena *arena,
                                       struct weft_error *error) {
  const uint32_t stages = order->stage_count, ranks = order->rank_count;
  order->rank_of = weft_arena_allocate(arena, stages, sizeof *order->rank_of);
  order->position_of = weft_arena_allocate(arena, stages, sizeof *order->position_of);
  order->stage_at = weft_arena_allocate(arena, stages, sizeof *order->stage_at);
  order->position_begin = weft_arena_allocate(arena, ranks + 1u, sizeof *order->position_begin);
  order->done = weft_arena_allocate(arena, stages, sizeof *order->done);
  order->taken = weft_arena_allocate(arena, ranks, sizeof *order->taken);
  order->row_sizes = weft_arena_allocate(arena, ranks, sizeof *order->row_sizes);
  (void)weft_bits_init(&order->ready, arena, stages);
  return weft_arena_status(arena, error);
}

static enum weft_status check_request(const struct weft_program *like, uint32_t microbatch_count,
                                      struct weft_error *error) {
  if (like->stage_count == 0) {
    return weft_fail(error, WEFT_ERR_INVALID, "", "the program computes nothing: it has no stage");
  }
  if (microbatch_count == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "", "0 microbatches; at least 1 is needed");
  }
  if (microbatch_count > WEFT_MICROBATCHES_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "split the batch into fewer microbatches",
                     "%" PRIu32 " microbatches; the limit is %" PRIu32, microbatch_count,
                     WEFT_MICROBATCHES_MAX);
  }
  return WEFT_OK;
}

static enum weft_status read_placement(struct forward_order *order, const struct weft_program *like,
                                       struct weft_error *error) {
  (void)weft_placement_infer(like, order->rank_of);
  for (uint32_t s = 0; s < order->stage_count; s++) {
    if (order->rank_of[s] == WEFT_RANK_NONE) {
      return weft_fail(error, WEFT_ERR_INVALID, "verify the program to see what else is missing",
                       "no rank computes stage %" PRIu32 " of %" PRIu32, s, order->stage_count);
    }
    order->row_sizes[order->rank_of[s]] += order->microbatch_count;
    order->position_begin[order->rank_of[s] + 1]++;
  }
  for (uint32_t r = 0; r < order->rank_count; r++) {
    order->position_begin[r + 1] += order->position_begin[r];
  }
  for (uint32_t s = order->stage_count, *next = order->taken;
       s-- > 0;) { /* `taken` is still unused */
    const uint32_t rank = order->rank_of[s];
    order->position_of[s] = order->position_begin[rank] + next[rank]++;
    order->stage_at[order->position_of[s]] = s;
  }
  return WEFT_OK;
}

static void update_ready(struct forward_order *order, uint32_t stage) {
  assert(stage < order->stage_count && order->done[stage] <= order->microbatch_count);
  const struct weft_action forward = weft_action_make(WEFT_OP_F, stage, 0);
  const uint32_t inputs = weft_action_input_count(order->graph, forward, order->stage_count);
  uint32_t given = order->microbatch_count;
  for (uint32_t k = 0; k < inputs; k++) {
    const uint32_t made = order->done[weft_action_input_at(order->graph, forward, k)];
    given = made < given ? made : given;
  }
  if (order->done[stage] < given) {
    weft_bits_insert(&order->ready, order->position_of[stage]);
  } else {
    weft_bits_remove(&order->ready, order->position_of[stage]);
  }
}

/* The outputs of a slot can be used from the next one on: all ranks choose before any of them
 * counts. Only ranks with ready stages are visited. */
static bool fill_slot(struct forward_order *order, struct weft_action *actions) {
  uint32_t count = 0;
  uint32_t position = weft_bits_next(&order->ready, 0);
  while (position != WEFT_BITS_NONE) {
    const uint32_t stage = order->stage_at[position];
    const uint32_t rank = order->rank_of[stage];
    actions[order->row_sizes[rank]++] = weft_action_make(WEFT_OP_F, stage, order->done[stage]);
    order->taken[count++] = stage;
    position = weft_bits_next(&order->ready, order->position_begin[rank + 1]);
  }
  for (uint32_t k = 0; k < count; k++) {
    order->done[order->taken[k]]++;
  }
  for (uint32_t k = 0; k < count; k++) {
    const struct weft_action forward = weft_action_make(WEFT_OP_F, order->taken[k], 0);
    const uint32_t outputs = weft_action_output_count(order->graph, forward, order->stage_count);
    update_ready(order, order->taken[k]);
    for (uint32_t n = 0; n < outputs; n++) {
      update_ready(order, weft_action_output_at(order->graph, forward, n));
    }
  }
  return count > 0;
}

static enum weft_status make_table(const struct weft_allocator *allocator,
                                   struct forward_order *order, struct weft_program **out,
                                   struct weft_error *error) {
  struct weft_program *table;
  WEFT_TRY(weft_program_allocate(allocator, order->rank_count, order->row_sizes, &table, error));
  for (uint32_t r = 0; r < order->rank_count; r++) {
    order->row_sizes[r] = table->row_begin[r];
  }
  for (uint32_t s = 0; s < order->stage_count; s++) {
    update_ready(order, s);
  }
  while (fill_slot(order, table->actions)) {
  }
  assert(order->row_sizes[order->rank_count - 1] == table->action_count);
  weft_program_seal(table);
  *out = table;
  return WEFT_OK;
}

static enum weft_status order_forwards(const struct weft_allocator *allocator,
                                       const struct weft_program *like, uint32_t microbatch_count,
                                       struct weft_program **out, struct weft_error *error) {
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  struct forward_order order = {.rank_count = like->rank_count,
                                .stage_count = like->stage_count,
                                .microbatch_count = microbatch_count,
                                .graph = like->graph};
  WEFT_TRY(allocate_order(&order, &arena, error));
  WEFT_TRY(read_placement(&order, like, error));
  return make_table(allocator, &order, out, error);
}

enum weft_status weft_source_forward_only(const struct weft_allocator *allocator,
                                          const struct weft_program *like,
                                          uint32_t microbatch_count,
                                          const struct weft_lower_options *lower,
                                          struct weft_program **out, struct weft_error *error) {
  WEFT_NEED(like, error);
  WEFT_NEED(out, error);
  assert(weft_program_is_sound(like));
  struct weft_lower_options options = lower != NULL ? *lower : weft_lower_options_default();
  options.communicate = true;
  options.merge_bw = options.reduce_grad = options.tie_grad = false;
  WEFT_SCOPED(weft_program) table = NULL;
  WEFT_TRY(check_request(like, microbatch_count, error));
  WEFT_TRY(order_forwards(allocator, like, microbatch_count, &table, error));
  WEFT_TRY(weft_program_set_graph(table, like->graph, error));
  return weft_lower(allocator, table, &options, out, error);
}
