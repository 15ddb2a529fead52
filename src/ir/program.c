/* Programs in memory: creation, comparison, hash, release. */
#include "ir/program.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <weft/support.h>

#include "ir/action.h"

void weft_program_destroy(struct weft_program *program) {
  if (program == NULL) {
    return;
  }
  const struct weft_allocator *allocator = program->allocator;
  weft_array_free(allocator, program->actions, program->action_capacity, sizeof *program->actions);
  weft_array_free(allocator, program->row_begin, program->rank_count + 1u,
                  sizeof *program->row_begin);
  weft_graph_destroy(program->graph);
  weft_array_free(allocator, program, 1, sizeof *program);
}

static enum weft_status count_actions(uint32_t rank_count, const uint64_t *row_sizes,
                                      uint64_t *total, struct weft_error *error) {
  *total = 0;
  if (rank_count > WEFT_RANKS_MAX) {
    return weft_fail(error, WEFT_ERR_LIMIT, "split the job",
                     "%" PRIu32 " ranks; the limit is %" PRIu32, rank_count, WEFT_RANKS_MAX);
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    if (!weft_add(*total, row_sizes[r], total) || *total > WEFT_ACTIONS_MAX) {
      return weft_fail(error, WEFT_ERR_LIMIT, "use fewer microbatches or ranks",
                       "more than %" PRIu64 " actions, which is the limit", WEFT_ACTIONS_MAX);
    }
  }
  return WEFT_OK;
}

enum weft_status weft_program_allocate(const struct weft_allocator *allocator, uint32_t rank_count,
                                       const uint64_t *row_sizes, struct weft_program **out,
                                       struct weft_error *error) {
  uint64_t total;
  WEFT_TRY(count_actions(rank_count, row_sizes, &total, error));
  struct weft_program *program = weft_array_allocate_zero(allocator, 1, sizeof *program);
  if (program == NULL) {
    return weft_fail_memory(error, sizeof *program);
  }
  program->allocator = allocator;
  program->rank_count = rank_count;
  program->row_begin = weft_array_allocate(allocator, rank_count + 1u, sizeof(uint64_t));
  program->actions = weft_array_allocate(allocator, total, sizeof(struct weft_action));
  program->action_count = total;
  program->action_capacity = total;
  if (program->row_begin == NULL || program->actions == NULL) {
    weft_program_destroy(program);
    return weft_fail_memory(error, total * sizeof(struct weft_action));
  }
  program->row_begin[0] = 0;
  for (uint32_t r = 0; r < rank_count; r++) {
    program->row_begin[r + 1] = program->row_begin[r] + row_sizes[r];
  }
  *out = program;
  return WEFT_OK;
}

size_t weft_program_most_in_row(const struct weft_program *program, uint32_t ops) {
  size_t most = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    size_t count = 0;
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      count += weft_op_in(program->actions[i].op, ops);
    }
    most = count > most ? count : most;
  }
  return most;
}

bool weft_program_has(const struct weft_program *program, uint32_t ops) {
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (weft_op_in(program->actions[i].op, ops)) {
      return true;
    }
  }
  return false;
}

void weft_program_seal(struct weft_program *program) {
  assert(program->row_begin[program->rank_count] == program->action_count);
  uint32_t stage_max = 0, microbatch_max = 0, ops = 0;
  /* One pass over flat records: a bubble or an overlap header has stage and
   * microbatch 0 and does not disturb the maxima. */
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    ops |= WEFT_OP_BIT(action.op);
    stage_max = action.stage > stage_max ? action.stage : stage_max;
    microbatch_max = action.microbatch > microbatch_max ? action.microbatch : microbatch_max;
  }
  const uint32_t comms =
      (WEFT_OPS_SEND | WEFT_OPS_RECV | WEFT_OPS_SHARD) & ~WEFT_OP_BIT(WEFT_OP_REDUCE_GRAD);
  const uint32_t with_microbatch = weft_ops_with_microbatch();
  program->level = (ops & comms) != 0 ? WEFT_LEVEL_COMMS : WEFT_LEVEL_COMPUTE;
  program->stage_count = (ops & (with_microbatch | WEFT_OPS_SHARD)) != 0 ? stage_max + 1u : 0;
  program->microbatch_count = (ops & with_microbatch) != 0 ? microbatch_max + 1u : 0;
}

void weft_program_seal_like(struct weft_program *program, const struct weft_program *like,
                            enum weft_level level) {
  assert(weft_program_is_sound(like));
  program->level = level;
  program->stage_count = like->stage_count;
  program->microbatch_count = like->microbatch_count;
  program->graph = weft_graph_hold(like->graph);
}

/* Largest stage that occurs + 1. */
static uint32_t count_stages(const struct weft_program *program) {
  if (program->graph == NULL) {
    return program->stage_count;
  }
  uint32_t count = 0;
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    const bool has_stage = action.op != WEFT_OP_IDLE && action.op != WEFT_OP_OVERLAP_F_B;
    count = has_stage && action.stage >= count ? action.stage + 1u : count;
  }
  return count;
}

enum weft_status weft_program_set_graph(struct weft_program *program,
                                        const struct weft_graph *graph, struct weft_error *error) {
  WEFT_NEED(program, error);
  const uint32_t stages = count_stages(program);
  if (graph != NULL && stages > graph->stage_count) {
    return weft_fail(error, WEFT_ERR_USAGE, "use the graph that the table was made for",
                     "%" PRIu32 " stages, and a graph of %" PRIu32, stages, graph->stage_count);
  }
  struct weft_graph *old = program->graph;
  program->graph = weft_graph_hold(graph);
  program->stage_count = graph != NULL ? graph->stage_count : stages;
  program->known_hash = 0;
  weft_graph_destroy(old);
  return WEFT_OK;
}

uint64_t weft_program_row_steps(const struct weft_program *program, uint32_t rank) {
  assert(rank < program->rank_count);
  uint64_t steps = 0;
  for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1];
       i += weft_cell_records(&program->actions[i])) {
    steps++;
  }
  return steps;
}

uint64_t weft_program_step_at(const struct weft_program *program, uint32_t rank, uint64_t record) {
  assert(rank < program->rank_count && record >= program->row_begin[rank] &&
         record < program->row_begin[rank + 1]);
  uint64_t step = 0, cell = program->row_begin[rank];
  while ((cell += weft_cell_records(&program->actions[cell])) <= record) {
    step++;
  }
  return step;
}

uint64_t weft_program_longest_row(const struct weft_program *program) {
  uint64_t longest = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    const uint64_t size = program->row_begin[r + 1] - program->row_begin[r];
    longest = size > longest ? size : longest;
  }
  return longest;
}

bool weft_program_equal(const struct weft_program *a, const struct weft_program *b) {
  assert(a != NULL && b != NULL);
  return a->rank_count == b->rank_count && a->action_count == b->action_count &&
         weft_graph_equal(a->graph, b->graph) &&
         memcmp(a->row_begin, b->row_begin, (a->rank_count + 1u) * sizeof *a->row_begin) == 0 &&
         memcmp(a->actions, b->actions, a->action_count * sizeof *a->actions) == 0;
}

static uint64_t hash_number(uint64_t hash, uint64_t number) {
  for (unsigned byte = 0; byte < 8; byte++) {
    hash = (hash ^ ((number >> (8 * byte)) & 0xff)) * UINT64_C(0x100000001b3);
  }
  return hash;
}

uint64_t weft_program_hash(const struct weft_program *program) {
  assert(program != NULL);
  if (program->known_hash != 0) {
    return program->known_hash;
  }
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    hash = hash_number(hash, (uint64_t)action.op | (uint64_t)action.parts << 8 |
                                 (uint64_t)action.stage << 16 | (uint64_t)action.microbatch << 32);
  }
  for (uint32_t r = 0; r <= program->rank_count; r++) {
    hash = hash_number(hash, program->row_begin[r]);
  }
  const uint32_t edges = weft_graph_told_edges(program->graph);
  for (uint32_t e = 0; e < edges; e++) {
    const struct weft_edge *edge = &program->graph->edges[e];
    hash = hash_number(
        hash, (uint64_t)edge->from | (uint64_t)edge->to << 16 | (uint64_t)edge->gradient << 32);
  }
  return hash;
}

/* What is wrong with a cell's first record, or NULL. `left` counts the records
 * of the row from it on. */
static const char *record_fault(const struct weft_action *action, uint64_t left) {
  if (action->op >= WEFT_OP_COUNT) {
    return "an unknown op";
  }
  const struct weft_op_info *info = weft_op_info((enum weft_op)action->op);
  if (info->kind == WEFT_KIND_GROUP) {
    if (action->parts == 0 || action->parts >= left) {
      return "an overlap whose parts are missing";
    }
    for (uint32_t k = 1; k <= action->parts; k++) {
      if (action[k].op >= WEFT_OP_COUNT || action[k].op == WEFT_OP_OVERLAP_F_B ||
          action[k].op == WEFT_OP_IDLE) {
        return "a bubble, an overlap or an unknown op inside an overlap";
      }
    }
  } else if (action->parts != 0 && info->kind != WEFT_KIND_SEND && info->kind != WEFT_KIND_RECV) {
    return "parts on an action that is no overlap";
  }
  if (info->kind == WEFT_KIND_IDLE || info->kind == WEFT_KIND_GROUP) {
    return action->stage != 0 || action->microbatch != 0
               ? "a stage or microbatch where none belongs"
               : NULL;
  }
  if (!info->has_microbatch && action->microbatch != 0) {
    return "a microbatch on an op that has none";
  }
  if (action->skip > 0 && weft_transfer_other(*action) >= WEFT_STAGES_MAX) {
    return "a SEND or RECV that skips beyond all stages";
  }
  return action->microbatch >= WEFT_MICROBATCHES_MAX ? "a microbatch beyond the limit" : NULL;
}

static enum weft_status check_records(const struct weft_program *program,
                                      struct weft_error *error) {
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1]; i++) {
      const char *fault = record_fault(&program->actions[i], program->row_begin[r + 1] - i);
      if (fault != NULL) {
        return weft_fail(error, WEFT_ERR_USAGE, "see weft/ir.h for the layout of records",
                         "record %" PRIu64 " of rank %" PRIu32 " is not well-formed: %s",
                         i - program->row_begin[r], r, fault);
      }
    }
  }
  return WEFT_OK;
}

enum weft_status weft_program_create(const struct weft_allocator *allocator, uint32_t rank_count,
                                     const uint64_t *row_sizes, const struct weft_action *actions,
                                     struct weft_program **out, struct weft_error *error) {
  WEFT_NEED(out, error);
  if (rank_count > 0) {
    WEFT_NEED(row_sizes, error);
  }
  struct weft_program *program = NULL;
  WEFT_TRY(weft_program_allocate(allocator, rank_count, row_sizes, &program, error));
  assert(program != NULL);
  if (program->action_count > 0) {
    if (actions == NULL) {
      weft_program_destroy(program);
      return weft_fail_null(error, __func__, "actions");
    }
    memcpy(program->actions, actions, program->action_count * sizeof *actions);
  }
  const enum weft_status status = check_records(program, error);
  if (status < 0) {
    weft_program_destroy(program);
    return status;
  }
  weft_program_seal(program);
  *out = program;
  return WEFT_OK;
}
