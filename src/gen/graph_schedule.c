/* Named schedules for stages that form a graph.
 *
 * Edges go from lower to higher stages, so what a chain's table puts before an action, forwards of
 * all lower stages and backwards of all higher ones, includes what a graph asks for: every table of
 * a chain serves every graph with as many stages.
 *
 * With one stage per rank there is a better one. The height of a stage is the number of edges on the
 * longest way from it to a loss. Take the table of a chain with as many ranks as there are heights,
 * and give every stage the row of its height: two encoders in parallel then get the same row, with
 * the warm-up that their way to the loss needs. An edge goes from a higher to a lower height, so
 * what the chain's table orders, along the chain, includes what the edge asks for. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include <weft/support.h>

#include "gen/generator.h"

WEFT_SCOPED_TYPE(weft_program)

/* The height of each stage; returns the largest. Edges come in ascending order of `from`. */
static uint32_t find_heights(const struct weft_graph *graph, uint32_t *heights) {
  uint32_t largest = 0;
  for (uint32_t e = graph->edge_count; e-- > 0;) {
    const struct weft_edge *edge = &graph->edges[e];
    const uint32_t height = heights[edge->to] + 1;
    heights[edge->from] = height > heights[edge->from] ? height : heights[edge->from];
    largest = height > largest ? height : largest;
  }
  return largest;
}

/* What a row has of an action for a stage without a backward: nothing but the F. */
static bool is_frozen_action(const struct weft_graph *graph, struct weft_action action) {
  return (weft_op_in(action.op, WEFT_OPS_BACKWARD) || action.op == WEFT_OP_REDUCE_GRAD) &&
         !weft_graph_has_backward(graph, action.stage);
}

/* Appends a row, whose actions are of `stage`; of their own stages if that is WEFT_STAGES_MAX. */
static void put_row(struct weft_program_builder *rows, const struct weft_graph *graph,
                    const struct weft_program *table, uint32_t row, uint32_t stage) {
  assert(row < table->rank_count);
  for (uint64_t i = table->row_begin[row]; i < table->row_begin[row + 1]; i++) {
    const struct weft_action *cell = &table->actions[i];
    struct weft_action kept[3];
    uint32_t count = 0;
    for (uint32_t k = 0; k < weft_cell_records(cell); k++) {
      struct weft_action action = cell[k];
      if (action.op != WEFT_OP_IDLE && action.op != WEFT_OP_OVERLAP_F_B) {
        action.stage = stage < WEFT_STAGES_MAX ? (uint16_t)stage : action.stage;
        if (is_frozen_action(graph, action)) {
          continue;
        }
      }
      kept[count++] = action;
    }
    const bool is_alone = cell->op == WEFT_OP_OVERLAP_F_B && count < weft_cell_records(cell);
    weft_program_builder_copy(rows, kept + is_alone, count - is_alone); /* without its header */
    i += weft_cell_parts(cell);
  }
  weft_program_builder_end_row(rows);
}

/* `heights`: one stage per rank, with the row of its height; NULL: stages in their order. */
static enum weft_status build_table(const struct weft_allocator *allocator,
                                    const struct weft_graph *graph,
                                    const struct weft_program *table, const uint32_t *heights,
                                    struct weft_program **out, struct weft_error *error) {
  struct weft_program_builder rows;
  const uint32_t ranks = heights != NULL ? graph->stage_count : table->rank_count;
  weft_program_builder_init(&rows, allocator, table->action_count, ranks);
  for (uint32_t r = 0; r < ranks && rows.status == WEFT_OK; r++) {
    put_row(&rows, graph, table, heights != NULL ? table->rank_count - 1 - heights[r] : r,
            heights != NULL ? r : WEFT_STAGES_MAX);
  }
  return weft_program_builder_finish(&rows, graph, out, error);
}

static enum weft_status check_stages(const struct weft_schedule_info *info,
                                     const struct weft_shape *shape, const struct weft_graph *graph,
                                     struct weft_error *error) {
  assert(graph->stage_count > 0);
  char hint[160];
  const uint32_t v = shape->stages_per_rank;
  if (info->fixed) {
    return weft_fail(error, WEFT_ERR_USAGE, "take 1F1B, ZBH1 or Interleaved1F1B",
                     "%s is a fixed table, made for a chain of stages", info->name);
  }
  if (v == 0 || graph->stage_count % v != 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "use a number of stages per rank that divides it",
                     "the graph has %" PRIu32 " stages, and %s has %" PRIu32 " on each rank",
                     graph->stage_count, info->name, v);
  }
  if (shape->ranks == graph->stage_count / v) {
    return WEFT_OK;
  }
  const uint32_t other = shape->ranks > 0 && graph->stage_count % shape->ranks == 0
                             ? graph->stage_count / shape->ranks
                             : 0;
  if (other >= info->stages_per_rank_min && other <= info->stages_per_rank_max && other > 0) {
    (void)snprintf(hint, sizeof hint, "use p = %" PRIu32 ", or v = %" PRIu32,
                   graph->stage_count / v, other);
  } else {
    (void)snprintf(hint, sizeof hint, "use p = %" PRIu32, graph->stage_count / v);
  }
  return weft_fail(error, WEFT_ERR_USAGE, hint,
                   "the graph has %" PRIu32 " stages, and %s on %" PRIu32 " rank%s has %" PRIu32
                   " on each",
                   graph->stage_count, info->name, shape->ranks, shape->ranks == 1 ? "" : "s", v);
}

enum weft_status weft_generate_graph(const struct weft_allocator *allocator,
                                     const struct weft_schedule_info *info,
                                     const struct weft_shape *shape, struct weft_program **out,
                                     struct weft_error *error) {
  const struct weft_graph *graph = shape->graph;
  assert(info != NULL && graph != NULL);
  struct weft_shape chain = *shape;
  chain.graph = NULL;
  chain.stages_per_rank =
      chain.stages_per_rank > 0 ? chain.stages_per_rank : info->stages_per_rank_default;
  if (chain.ranks == 0 && chain.stages_per_rank > 0) {
    chain.ranks = graph->stage_count / chain.stages_per_rank;
  }
  WEFT_TRY(check_stages(info, &chain, graph, error));
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  WEFT_SCOPED(weft_program) table = NULL;
  uint32_t *heights = NULL;
  if (chain.stages_per_rank == 1 && info->stages_per_rank_max == 1) {
    heights = weft_arena_allocate(&arena, graph->stage_count, sizeof *heights);
    WEFT_TRY(weft_arena_status(&arena, error));
    chain.ranks = find_heights(graph, heights) + 1;
  }
  WEFT_TRY(weft_generate(allocator, info->name, &chain, &table, error));
  return build_table(allocator, graph, table, heights, out, error);
}
