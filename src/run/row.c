/* What a rank's row needs; see row.h.
 *
 * The number of buffers follows from lifetimes on the row. A received buffer lives from its
 * RECV to the last backward of its microbatch. A sent buffer lives until the neighbour has
 * received it, which the row alone does not tell; but an activation has been received when
 * its gradient returns (I or B of the same microbatch), and a gradient is under way only
 * while the stage below still holds that microbatch's activation. With as many buffers as
 * these lifetimes overlap, a rank never waits for one. With fewer it would wait for a
 * neighbour to receive, as on a network that blocks. */
#include "run/row.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <weft/spec.h>
#include <weft/support.h>

#include "ir/action.h"
#include "ir/pairs.h"

/* ---- Counting ---- */

/* Now, and at most so far. */
struct level {
  uint32_t now, peak;
};

static void rise(struct level *level) {
  level->now++;
  level->peak = level->now > level->peak ? level->now : level->peak;
}

static void fall(struct level *level) { level->now -= level->now > 0; }

struct stage_levels {
  struct level slots, inputs, outputs, grads_in, grads_unsent;
};

struct counting {
  const struct weft_row *row;
  struct stage_levels *levels; /* [own stage] */
};

bool weft_row_find_stage(const struct weft_row *row, uint32_t stage, uint32_t *index) {
  uint32_t low = 0;
  for (uint32_t count = row->own_count; count > 1; count -= count / 2) {
    low += row->own_stages[low + count / 2] <= stage ? count / 2 : 0;
  }
  *index = low;
  return low < row->own_count && row->own_stages[low] == stage;
}

static void count_forward(struct counting *c, uint32_t k) {
  struct stage_levels *levels = &c->levels[k];
  const uint32_t s = c->row->own_stages[k];
  rise(&levels->slots);
  rise(&levels->outputs);
  if (k + 1 < c->row->own_count && c->row->own_stages[k + 1] == s + 1) {
    rise(&c->levels[k + 1].inputs);
  }
  if (s + 1 == c->row->program->stage_count) {
    fall(&levels->outputs);
    rise(&levels->grads_in); /* the loss makes it */
  }
  if (!c->row->stages[k].has_backward) {
    fall(&levels->slots);
    fall(&levels->inputs);
  }
}

/* The gradient of a microbatch: B or I. */
static void count_gradient(struct counting *c, uint32_t k) {
  rise(&c->levels[k].grads_unsent);
  fall(&c->levels[k].outputs);
  if (k > 0 && c->row->own_stages[k - 1] + 1 == c->row->own_stages[k]) {
    rise(&c->levels[k - 1].grads_in);
  }
}

static void count_end(struct stage_levels *levels) {
  fall(&levels->slots);
  fall(&levels->inputs);
  fall(&levels->grads_in);
}

static void count_action(struct counting *c, struct weft_action action) {
  uint32_t k;
  if (!weft_row_find_stage(c->row, action.stage, &k)) {
    return; /* IDLE, or the head of an overlap */
  }
  switch (action.op) {
    case WEFT_OP_RECV_F: rise(&c->levels[k].inputs); break;
    case WEFT_OP_RECV_B: rise(&c->levels[k].grads_in); break;
    case WEFT_OP_SEND_B: fall(&c->levels[k].grads_unsent); break;
    case WEFT_OP_F: count_forward(c, k); break;
    case WEFT_OP_I: count_gradient(c, k); break;
    case WEFT_OP_B:
      count_gradient(c, k);
      count_end(&c->levels[k]);
      break;
    case WEFT_OP_W: count_end(&c->levels[k]); break;
    default: break;
  }
}

/* How many microbatches a stage has between F and its gradient, at most, on
 * whatever rank it is. */
static uint32_t alive_at_most(const struct weft_row *row, uint32_t stage) {
  const struct weft_program *program = row->program;
  const uint32_t rank = row->rank_of[stage];
  struct level alive = {0, 0};
  if (rank == WEFT_RANK_NONE) {
    return 0;
  }
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; i++) {
    const struct weft_action action = program->actions[i];
    if (action.stage == stage && action.op == WEFT_OP_F) {
      rise(&alive);
    } else if (action.stage == stage && weft_op_in(action.op, WEFT_OPS_GRADIENT)) {
      fall(&alive);
    }
  }
  return alive.peak;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static void note_needs(struct weft_row *row, uint32_t k, const struct stage_levels *levels,
                       uint32_t forward_ahead) {
  struct weft_row_stage *stage = &row->stages[k];
  const uint32_t s = row->own_stages[k];
  const uint32_t microbatches = row->program->microbatch_count;
  /* All sub-actions of an overlap begin before any of them ends. */
  const uint32_t together = row->sub_actions_max - 1;
  stage->slots = levels->slots.peak + together;
  stage->inputs = larger(levels->inputs.peak, 1) + together;
  stage->outputs = larger(levels->outputs.peak, 1) + together;
  if (!stage->has_backward) {
    const uint32_t ahead = forward_ahead == 0 ? microbatches : forward_ahead;
    stage->outputs = larger(ahead < microbatches ? ahead : microbatches, 1);
  }
  stage->grads_in = larger(levels->grads_in.peak, 1) + together;
  const uint32_t alive = s > 0 ? alive_at_most(row, s - 1) : 0;
  stage->grads_out = larger(larger(alive, levels->grads_unsent.peak), 1) + together;
}

/* ---- Reading the row ---- */

static void note_ops(struct weft_row *row) {
  for (uint64_t i = row->begin; i < row->end; i++) {
    const struct weft_action action = row->program->actions[i];
    uint32_t k;
    row->sub_actions_max = larger(row->sub_actions_max, weft_cell_parts(&action));
    if (!weft_row_find_stage(row, action.stage, &k)) {
      continue; /* IDLE, or the head of an overlap */
    }
    struct weft_row_stage *stage = &row->stages[k];
    if (weft_op_in(action.op, WEFT_OPS_BACKWARD)) {
      stage->has_backward = true;
      stage->splits = stage->splits || action.op != WEFT_OP_B;
      if (stage->first_backward == WEFT_RECORD_NONE) {
        stage->first_backward = (uint32_t)i;
      }
    }
    if (action.op == WEFT_OP_B || action.op == WEFT_OP_W) {
      stage->last_backward = (uint32_t)i;
    }
    stage->shards = stage->shards || action.op == WEFT_OP_UNSHARD;
    row->collectives += weft_op_in(action.op, WEFT_OPS_SHARD);
  }
}

static enum weft_status count_needs(const struct weft_allocator *allocator, struct weft_row *row,
                                    uint32_t forward_ahead, struct weft_error *error) {
  struct counting c = {.row = row};
  c.levels = weft_array_allocate_zero(allocator, row->own_count, sizeof *c.levels);
  if (c.levels == NULL) {
    return weft_fail_memory(error, row->own_count * sizeof *c.levels);
  }
  for (uint64_t i = row->begin; i < row->end; i++) {
    count_action(&c, row->program->actions[i]);
  }
  for (uint32_t k = 0; k < row->own_count; k++) {
    note_needs(row, k, &c.levels[k], forward_ahead);
  }
  weft_array_free(allocator, c.levels, row->own_count, sizeof *c.levels);
  return WEFT_OK;
}

/* Every action of a row must be about the rank's own stages. */
static enum weft_status check_stages(const struct weft_row *row, struct weft_error *error) {
  for (uint64_t i = row->begin; i < row->end; i++) {
    const struct weft_action *action = &row->program->actions[i];
    const enum weft_op_kind kind = weft_op_info((enum weft_op)action->op)->kind;
    if (kind == WEFT_KIND_IDLE || kind == WEFT_KIND_GROUP) {
      continue;
    }
    const uint32_t owner = row->rank_of[action->stage];
    if (owner != row->rank) {
      char text[64], name[24] = "no rank";
      if (owner != WEFT_RANK_NONE) {
        (void)snprintf(name, sizeof name, "rank %" PRIu32, owner);
      }
      return weft_fail(error, WEFT_ERR_INVALID, "'weft verify' lists everything that is wrong",
                       "rank %" PRIu32 " has %s, and stage %u belongs to %s", row->rank,
                       weft_action_format(action, text, sizeof text), action->stage, name);
    }
  }
  return WEFT_OK;
}

/* ---- Making ---- */

/* Of all stages, unless the program brings it. */
static enum weft_status find_ranks(struct weft_row *row, struct weft_error *error) {
  const struct weft_program *program = row->program;
  row->rank_of = program->known_ranks;
  if (row->rank_of == NULL) {
    uint32_t *ranks =
        weft_arena_allocate(&row->arena, program->stage_count, sizeof *program->known_ranks);
    if (ranks == NULL) {
      return weft_fail_memory(error, program->stage_count * sizeof *ranks);
    }
    (void)weft_placement_infer(program, ranks);
    row->rank_of = ranks;
  }
  row->placement_hash =
      weft_checksum(row->rank_of, program->stage_count * sizeof *program->known_ranks);
  return check_stages(row, error);
}

static bool allocate(struct weft_row *row, bool with_times) {
  for (uint32_t s = 0; s < row->program->stage_count; s++) {
    row->own_count += row->rank_of[s] == row->rank;
  }
  row->held_count = (uint64_t)row->own_count * row->program->microbatch_count;
  row->stages = weft_arena_allocate(&row->arena, row->own_count, sizeof *row->stages);
  row->own_stages = weft_arena_allocate(&row->arena, row->own_count, sizeof *row->own_stages);
  row->held = weft_arena_allocate(&row->arena, row->held_count, sizeof *row->held);
  if (with_times) {
    row->times = weft_arena_allocate(&row->arena, row->end - row->begin, sizeof *row->times);
  }
  return row->stages != NULL && row->own_stages != NULL && row->held != NULL &&
         (!with_times || row->times != NULL);
}

static enum weft_status fill(const struct weft_allocator *allocator, struct weft_row *row,
                             uint32_t forward_ahead, bool with_times, struct weft_error *error) {
  size_t pairs;
  WEFT_TRY(weft_pairs_count(row->program, &pairs, error));
  WEFT_TRY(find_ranks(row, error));
  if (!allocate(row, with_times)) {
    return weft_fail_memory(error, row->held_count * sizeof *row->held);
  }
  for (uint32_t s = 0, k = 0; s < row->program->stage_count; s++) {
    if (row->rank_of[s] == row->rank) {
      row->stages[k].first_backward = row->stages[k].last_backward = WEFT_RECORD_NONE;
      row->own_stages[k++] = s;
    }
  }
  note_ops(row);
  return count_needs(allocator, row, forward_ahead, error);
}

enum weft_status weft_row_create(const struct weft_allocator *allocator,
                                 struct weft_program *program, uint32_t rank, bool training,
                                 uint32_t forward_ahead, bool with_times, struct weft_row **out,
                                 struct weft_error *error) {
  assert(rank < program->rank_count);
  struct weft_row *row = weft_array_allocate_zero(allocator, 1, sizeof *row);
  if (row == NULL) {
    weft_program_destroy(program);
    return weft_fail_memory(error, sizeof *row);
  }
  row->arena.allocator = allocator;
  row->program = program;
  row->hash = weft_program_hash(program);
  row->training = training;
  row->rank = rank;
  row->begin = program->row_begin[rank];
  row->end = program->row_begin[rank + 1];
  row->sub_actions_max = 1;
  const enum weft_status status = fill(allocator, row, forward_ahead, with_times, error);
  if (status < 0) {
    weft_row_destroy(row);
    return status;
  }
  *out = row;
  return WEFT_OK;
}

void weft_row_destroy(struct weft_row *row) {
  if (row == NULL) {
    return;
  }
  const struct weft_allocator *allocator = row->arena.allocator;
  weft_program_destroy(row->program);
  weft_arena_finish(&row->arena);
  weft_array_free(allocator, row, 1, sizeof *row);
}
