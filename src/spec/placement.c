/* Placements: which rank owns which stage, from a shape or read off a table. */
#include <assert.h>

#include <weft/spec.h>

#include "ir/action.h"

const char *weft_placement_name(enum weft_placement_kind kind) {
  switch (kind) {
    case WEFT_PLACEMENT_LOOP: return "loop";
    case WEFT_PLACEMENT_V: return "v";
    case WEFT_PLACEMENT_INFERRED: return "inferred";
  }
  return "unknown";
}

uint32_t weft_shape_rank_of(const struct weft_shape *shape, uint32_t stage) {
  assert(shape->ranks > 0);
  const uint32_t wave = stage / shape->ranks, offset = stage % shape->ranks;
  const bool backwards = shape->placement == WEFT_PLACEMENT_V && wave % 2 == 1;
  return backwards ? shape->ranks - 1 - offset : offset;
}

uint32_t weft_shape_stage_of(const struct weft_shape *shape, uint32_t rank, uint32_t k) {
  assert(rank < shape->ranks);
  const bool backwards = shape->placement == WEFT_PLACEMENT_V && k % 2 == 1;
  return k * shape->ranks + (backwards ? shape->ranks - 1 - rank : rank);
}

static void read_ranks(const struct weft_program *program, uint32_t *rank_of) {
  for (uint32_t s = 0; s < program->stage_count; s++) {
    rank_of[s] = WEFT_RANK_NONE;
  }
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const struct weft_action action = program->actions[i];
      /* In this order the processor foresees the branch: a stage is new once. */
      if (rank_of[action.stage] == WEFT_RANK_NONE && weft_op_in(action.op, WEFT_OPS_COMPUTE)) {
        rank_of[action.stage] = r;
      }
    }
  }
}

static bool follows(const struct weft_program *program, const uint32_t *rank_of,
                    enum weft_placement_kind kind) {
  const struct weft_shape shape = {.ranks = program->rank_count, .placement = kind};
  for (uint32_t s = 0; s < program->stage_count; s++) {
    if (rank_of[s] != weft_shape_rank_of(&shape, s)) {
      return false;
    }
  }
  return true;
}

enum weft_placement_kind weft_placement_infer(const struct weft_program *program,
                                              uint32_t *rank_of) {
  assert(program != NULL);
  read_ranks(program, rank_of);
  if (follows(program, rank_of, WEFT_PLACEMENT_LOOP)) {
    return WEFT_PLACEMENT_LOOP;
  }
  return follows(program, rank_of, WEFT_PLACEMENT_V) ? WEFT_PLACEMENT_V : WEFT_PLACEMENT_INFERRED;
}
