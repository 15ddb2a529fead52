/* Random graphs of stages, and tables of them (support_random_graph.h). */
#include "support_random_graph.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool chance(struct weft_random *random, uint32_t percent) {
  return weft_random_below(random, 100) < percent;
}

struct random_graph_shape random_graph_shape(struct weft_random *random, uint32_t stages) {
  static const uint32_t skips[] = {5, 15, 30, 60}, frozen[] = {0, 0, 15, 50};
  return (struct random_graph_shape){.stages = stages,
                                     .skip_percent = skips[weft_random_below(random, 4)],
                                     .frozen_percent = frozen[weft_random_below(random, 4)]};
}

/* A stage is fed by an earlier one, mostly the one before it, and by others with the chance of a
 * skip connection. Now and then it begins a branch of its own, which a later one uses. */
static uint32_t add_in_edges(struct weft_random *random, const struct random_graph_shape *shape,
                             uint32_t to, struct weft_edge *edges) {
  const uint32_t lowest = to > WEFT_SKIP_MAX + 1 ? to - WEFT_SKIP_MAX - 1 : 0;
  const uint32_t main =
      chance(random, 75) ? to - 1 : lowest + weft_random_below(random, to - lowest);
  uint32_t count = 0;
  if (to + 1 < shape->stages && chance(random, 12)) {
    return 0;
  }
  for (uint32_t from = lowest; from < to; from++) {
    if (from == main || chance(random, shape->skip_percent)) {
      edges[count++] = weft_edge_make(from, to);
    }
  }
  return count;
}

/* Edges carry a gradient where chance says so and their stage has one to send. */
static void choose_gradients(struct weft_random *random, const struct random_graph_shape *shape,
                             struct weft_edge *edges, uint32_t count) {
  for (uint32_t stage = shape->stages; stage-- > 0;) {
    bool is_loss = true, trains = false;
    for (uint32_t e = 0; e < count; e++) {
      is_loss = is_loss && edges[e].from != stage;
      trains = trains || (edges[e].from == stage && edges[e].gradient);
    }
    for (uint32_t e = 0; e < count; e++) {
      if (edges[e].to == stage) {
        edges[e].gradient = (is_loss || trains) && !chance(random, shape->frozen_percent);
      }
    }
  }
}

static bool is_connected(const struct weft_edge *edges, uint32_t count, uint32_t stage) {
  for (uint32_t e = 0; e < count; e++) {
    if (edges[e].from == stage || edges[e].to == stage) {
      return true;
    }
  }
  return false;
}

struct weft_graph *random_graph(struct weft_random *random,
                                const struct random_graph_shape *shape) {
  const uint32_t n = shape->stages;
  struct weft_edge *edges = calloc((size_t)n * n + 1, sizeof *edges);
  struct weft_graph *graph = NULL;
  struct weft_error error = {0};
  uint32_t count = 0;
  assert(edges != NULL && n > 0);
  for (uint32_t to = 1; to < n; to++) {
    count += add_in_edges(random, shape, to, &edges[count]);
  }
  for (uint32_t stage = 0; n > 1 && stage < n; stage++) {
    if (!is_connected(edges, count, stage)) {
      edges[count++] =
          stage + 1 < n ? weft_edge_make(stage, stage + 1) : weft_edge_make(stage - 1, stage);
    }
  }
  choose_gradients(random, shape, edges, count);
  if (weft_graph_create(NULL, n, edges, count, NULL, &graph, &error) != WEFT_OK) {
    fprintf(stderr, "random_graph: %s\n", error.message);
    abort();
  }
  free(edges);
  return graph;
}

/* --- Tables ------------------------------------------------------------------- */

enum done { DONE_F = 1, DONE_GRADIENT = 2, DONE_ALL = 4 };

struct table {
  const struct weft_graph *graph;
  uint32_t microbatches;
  bool split;
  uint8_t *done; /* [stage][microbatch] */
};

static uint8_t *done_of(const struct table *table, uint32_t stage, uint32_t microbatch) {
  return &table->done[(size_t)stage * table->microbatches + microbatch];
}

static bool trains(const struct table *table, uint32_t stage) {
  bool is_loss = true;
  for (uint32_t e = 0; e < table->graph->edge_count; e++) {
    const struct weft_edge *edge = &table->graph->edges[e];
    if (edge->from == stage && edge->gradient) {
      return true;
    }
    is_loss = is_loss && edge->from != stage;
  }
  return is_loss;
}

/* What a stage can do next for a microbatch; WEFT_OP_IDLE: nothing now. */
static enum weft_op next_op(const struct table *table, uint32_t stage, uint32_t microbatch) {
  const uint8_t done = *done_of(table, stage, microbatch);
  const bool forward = (done & DONE_F) == 0;
  if ((done & DONE_ALL) != 0) {
    return WEFT_OP_IDLE;
  }
  if ((done & DONE_GRADIENT) != 0) {
    return WEFT_OP_W;
  }
  for (uint32_t e = 0; e < table->graph->edge_count; e++) {
    const struct weft_edge *edge = &table->graph->edges[e];
    if (forward ? edge->to == stage && (*done_of(table, edge->from, microbatch) & DONE_F) == 0
                : edge->from == stage && edge->gradient &&
                      (*done_of(table, edge->to, microbatch) & DONE_GRADIENT) == 0) {
      return WEFT_OP_IDLE;
    }
  }
  return forward ? WEFT_OP_F : table->split ? WEFT_OP_I : WEFT_OP_B;
}

static void note(const struct table *table, enum weft_op op, uint32_t stage, uint32_t microbatch) {
  uint8_t *done = done_of(table, stage, microbatch);
  switch (op) {
    case WEFT_OP_F: *done |= trains(table, stage) ? DONE_F : DONE_F | DONE_ALL; break;
    case WEFT_OP_I: *done |= DONE_GRADIENT; break;
    default: *done |= DONE_GRADIENT | DONE_ALL; break;
  }
}

void random_graph_table(struct weft_random *random, const struct weft_graph *graph, uint32_t ranks,
                        uint32_t microbatches, bool split, uint32_t *rank_of, struct draft *draft) {
  const uint32_t pairs = graph->stage_count * microbatches;
  struct table table = {graph, microbatches, split, calloc(pairs + (size_t)1, 1)};
  uint32_t *ready = calloc(pairs + (size_t)1, sizeof *ready);
  const bool in_turn = chance(random, 50);
  assert(table.done != NULL && ready != NULL);
  draft_reset(draft, ranks);
  draft_set_graph(draft, graph);
  for (uint32_t stage = 0; stage < graph->stage_count; stage++) {
    rank_of[stage] = in_turn ? stage % ranks : weft_random_below(random, ranks);
  }
  for (;;) {
    uint32_t count = 0;
    for (uint32_t pair = 0; pair < pairs; pair++) {
      if (next_op(&table, pair / microbatches, pair % microbatches) != WEFT_OP_IDLE) {
        ready[count++] = pair;
      }
    }
    if (count == 0) {
      break;
    }
    const uint32_t pair = ready[weft_random_below(random, count)];
    const uint32_t stage = pair / microbatches, microbatch = pair % microbatches;
    const enum weft_op op = next_op(&table, stage, microbatch);
    note(&table, op, stage, microbatch);
    draft_append(draft, rank_of[stage], draft_action(op, stage, microbatch));
  }
  free(ready);
  free(table.done);
}
