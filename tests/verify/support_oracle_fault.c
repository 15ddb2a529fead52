/* The oracle, part three: does every action find its data on its own rank
 * (support_oracle.h)? Each row is walked once, keeping note of what has been
 * computed, received and gathered so far. */
#include <assert.h>
#include <stdlib.h>

#include "support_oracle.h"

enum fact {
  FACT_F = 1,    /* forward computed on this rank */
  FACT_BACK = 2, /* B or I computed on this rank */
  FACT_I = 4,    /* I computed on this rank */
};

struct walk {
  const struct weft_program *program;
  uint32_t *owner; /* [stages] rank that computes it */
  uint8_t *facts;  /* [stages × microbatches] */
  struct oracle_edges edges;
  uint8_t *received;   /* [2 × edges × microbatches] activations, then gradients */
  uint32_t *gradients; /* [stages] B and W so far */
  uint8_t *unsharded;  /* [stages] */
  uint8_t *finished;   /* [stages] TIE_GRAD or REDUCE_GRAD done */
  bool shards;         /* the program handles shards at all */
  bool ties;           /* a TIE_GRAD precedes this in the row */
};

static uint8_t *facts_of(struct walk *walk, uint32_t stage, uint32_t microbatch) {
  return &walk->facts[(size_t)stage * walk->program->microbatch_count + microbatch];
}

static bool has(struct walk *walk, uint32_t stage, uint32_t microbatch, enum fact fact) {
  return (*facts_of(walk, stage, microbatch) & fact) != 0;
}

static void walk_init(struct walk *walk, const struct weft_program *program) {
  const size_t stages = program->stage_count;
  walk->program = program;
  walk->owner = calloc(stages + 1, sizeof *walk->owner);
  walk->facts = calloc(stages * program->microbatch_count + 1, 1);
  walk->gradients = calloc(stages + 1, sizeof *walk->gradients);
  walk->unsharded = calloc(stages + 1, 1);
  walk->finished = calloc(stages + 1, 1);
  walk->shards = false;
  oracle_edges_init(&walk->edges, program);
  walk->received = calloc(2 * (size_t)walk->edges.count * program->microbatch_count + 1, 1);
  assert(walk->received && walk->owner && walk->facts && walk->gradients && walk->unsharded &&
         walk->finished);
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    for (uint64_t at = program->row_begin[rank]; at < program->row_begin[rank + 1]; at++) {
      const struct weft_action *action = &program->actions[at];
      if (action->op >= WEFT_OP_F && action->op <= WEFT_OP_W) {
        walk->owner[action->stage] = rank;
      }
      walk->shards = walk->shards || action->op == WEFT_OP_UNSHARD || action->op == WEFT_OP_RESHARD;
    }
  }
}

static void walk_finish(struct walk *walk) {
  free(walk->owner);
  free(walk->facts);
  free(walk->gradients);
  free(walk->unsharded);
  free(walk->finished);
  free(walk->received);
  oracle_edges_finish(&walk->edges);
}

static uint8_t *received_over(struct walk *walk, uint32_t edge, bool forward, uint32_t microbatch) {
  const size_t channel = (forward ? 0 : walk->edges.count) + (size_t)edge;
  return &walk->received[channel * walk->program->microbatch_count + microbatch];
}

/* All inputs of an F (or of a B or I) are there: made on this rank, or received.
 * In a table what another rank makes comes by itself. */
static bool inputs_there(struct walk *walk, const struct weft_action *action) {
  const bool forward = action->op == WEFT_OP_F;
  for (uint32_t e = 0; e < walk->edges.count; e++) {
    uint32_t source;
    if (!oracle_consumes(&walk->edges.edges[e], action, &source)) {
      continue;
    }
    const bool own = walk->owner[source] == walk->owner[action->stage];
    if (own ? !has(walk, source, action->microbatch, forward ? FACT_F : FACT_BACK)
            : walk->program->level != WEFT_LEVEL_COMPUTE &&
                  !*received_over(walk, e, forward, action->microbatch)) {
      return false;
    }
  }
  return true;
}

static bool may_compute(struct walk *walk, const struct weft_action *action) {
  const uint32_t stage = action->stage, microbatch = action->microbatch;
  if (walk->shards && !walk->unsharded[stage]) {
    return false;
  }
  switch (action->op) {
    case WEFT_OP_F: return inputs_there(walk, action);
    case WEFT_OP_W: return has(walk, stage, microbatch, FACT_I);
    default: return has(walk, stage, microbatch, FACT_F) && inputs_there(walk, action);
  }
}

/* The first or the last stage, once, when its gradient is whole and not reduced. */
static bool may_tie(struct walk *walk, const struct weft_action *action) {
  const uint32_t stage = action->stage;
  return (stage == 0 || stage + 1u == walk->program->stage_count) && !walk->finished[stage] &&
         walk->gradients[stage] == walk->program->microbatch_count;
}

/* Behind a TIE_GRAD, which waits for another rank, nobody may wait for anything. */
static bool may_follow_tie(const struct weft_action *action) {
  return action->op == WEFT_OP_IDLE || action->op == WEFT_OP_RESHARD ||
         action->op == WEFT_OP_REDUCE_GRAD || action->op == WEFT_OP_TIE_GRAD;
}

static bool may(struct walk *walk, const struct weft_action *action) {
  const uint32_t stage = action->stage, microbatch = action->microbatch;
  if (walk->ties && !may_follow_tie(action)) {
    return false;
  }
  switch (action->op) {
    case WEFT_OP_F:
    case WEFT_OP_B:
    case WEFT_OP_I:
    case WEFT_OP_W: return may_compute(walk, action);
    case WEFT_OP_SEND_F: return has(walk, stage, microbatch, FACT_F);
    case WEFT_OP_SEND_B: return has(walk, stage, microbatch, FACT_BACK);
    case WEFT_OP_UNSHARD: return !walk->unsharded[stage];
    case WEFT_OP_RESHARD: return walk->unsharded[stage];
    case WEFT_OP_TIE_GRAD: return may_tie(walk, action);
    case WEFT_OP_REDUCE_GRAD: return walk->gradients[stage] == walk->program->microbatch_count;
    default: return true;
  }
}

static void apply(struct walk *walk, const struct weft_action *action) {
  const uint32_t stage = action->stage;
  uint8_t *facts = action->op == WEFT_OP_IDLE || action->op == WEFT_OP_OVERLAP_F_B
                       ? NULL
                       : facts_of(walk, stage, action->microbatch);
  switch (action->op) {
    case WEFT_OP_F: *facts |= FACT_F; break;
    case WEFT_OP_B:
      *facts |= FACT_BACK;
      walk->gradients[stage]++;
      break;
    case WEFT_OP_I: *facts |= FACT_BACK | FACT_I; break;
    case WEFT_OP_W: walk->gradients[stage]++; break;
    case WEFT_OP_RECV_F:
    case WEFT_OP_RECV_B:
      *received_over(walk, oracle_edge_of(&walk->edges, action), action->op == WEFT_OP_RECV_F,
                     action->microbatch) = 1;
      break;
    case WEFT_OP_UNSHARD: walk->unsharded[stage] = 1; break;
    case WEFT_OP_RESHARD: walk->unsharded[stage] = 0; break;
    case WEFT_OP_REDUCE_GRAD: walk->finished[stage] = 1; break;
    case WEFT_OP_TIE_GRAD:
      walk->finished[stage] = 1;
      walk->ties = true;
      break;
    default: break;
  }
}

/* Parts of an overlap start together: each must find its data beforehand. */
static bool walk_row(struct walk *walk, uint32_t rank, uint32_t *cell) {
  const struct weft_program *program = walk->program;
  *cell = 0;
  walk->ties = false;
  for (uint64_t at = program->row_begin[rank]; at < program->row_begin[rank + 1]; (*cell)++) {
    const uint64_t end = at + oracle_cell_records(&program->actions[at]);
    for (uint64_t part = at; part < end; part++) {
      if (!may(walk, &program->actions[part])) {
        return false;
      }
    }
    for (; at < end; at++) {
      apply(walk, &program->actions[at]);
    }
  }
  for (uint32_t stage = 0; stage < program->stage_count; stage++) {
    if (walk->owner[stage] == rank && walk->unsharded[stage]) {
      return false;
    }
  }
  return true;
}

bool oracle_fault(const struct weft_program *program, struct oracle_place *place) {
  struct walk walk;
  bool fault = false;
  walk_init(&walk, program);
  for (uint32_t rank = 0; rank < program->rank_count && !fault; rank++) {
    fault = !walk_row(&walk, rank, &place->cell);
    place->rank = rank;
  }
  walk_finish(&walk);
  return fault;
}
