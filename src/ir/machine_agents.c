/* Ranks and their queues; see machine_agents.h. */
#include "ir/machine_agents.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* One end of a stage boundary: which queue of which rank its transfers are in. */
struct edge_end {
  uint32_t rank;
  uint64_t queue; /* of the rank: ends with the same number share it */
  uint32_t *agent;
};

static int compare_ends(const void *a, const void *b) {
  const struct edge_end *x = a, *y = b;
  if (x->rank != y->rank) {
    return x->rank < y->rank ? -1 : 1;
  }
  return (x->queue > y->queue) - (x->queue < y->queue);
}

/* Of a rank, for transfers with the rank `other`. */
static uint64_t queue_number(enum weft_channel_scope scope, uint32_t edge, uint32_t other,
                             bool sends) {
  switch (scope) {
    case WEFT_SCOPE_EDGE: return edge;
    case WEFT_SCOPE_DIRECTED_PAIR: return 2 * (uint64_t)other + sends;
    case WEFT_SCOPE_PAIR: return other;
    case WEFT_SCOPE_SENDER: return sends ? 0 : 1 + (uint64_t)other;
    case WEFT_SCOPE_RANK: break;
  }
  return 0;
}

/* Numbers the queues that some boundary has, rank by rank. */
static void number_queues(struct weft_agents *agents, const struct weft_placed_program *placed,
                          enum weft_channel_scope scope, struct edge_end *ends) {
  const uint32_t p = placed->program->rank_count;
  uint32_t count = 0;
  for (uint32_t edge = 0; edge < agents->edge_count; edge++) {
    uint32_t from, to;
    weft_placed_edge_ranks(placed, edge, &from, &to);
    if (from != to && from != WEFT_RANK_NONE && to != WEFT_RANK_NONE) {
      ends[count++] =
          (struct edge_end){from, queue_number(scope, edge, to, true), &agents->of_sender[edge]};
      ends[count++] =
          (struct edge_end){to, queue_number(scope, edge, from, false), &agents->of_receiver[edge]};
    }
  }
  qsort(ends, count, sizeof *ends, compare_ends);
  agents->count = p;
  for (uint32_t r = 0; r < p; r++) {
    agents->ranks[r] = r;
  }
  uint32_t k = 0;
  for (uint32_t r = 0; r < p; r++) {
    agents->first_queue[r] = agents->count;
    for (const uint32_t first = k; k < count && ends[k].rank == r; k++) {
      if (k == first || ends[k].queue != ends[k - 1].queue) {
        agents->ranks[agents->count++] = r;
      }
      *ends[k].agent = agents->count - 1;
    }
  }
  agents->first_queue[p] = agents->count;
}

WEFT_GRAPH_INLINE uint32_t agent_of(const struct weft_agents *agents,
                                    const struct weft_placed_program *placed,
                                    const struct weft_graph *graph, uint32_t rank,
                                    struct weft_action action) {
  if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    return rank;
  }
  const bool sends = weft_op_in(action.op, WEFT_OPS_SEND);
  const uint32_t edge = sends ? weft_channel_of_send(graph, action)
                              : weft_channel_of_recv(graph, placed->stage_count, action);
  return edge == WEFT_EDGE_NONE ? WEFT_AGENT_NONE
         : sends                ? agents->of_sender[edge]
                                : agents->of_receiver[edge];
}

/* Cells by agent: a counting sort. begin[] is one place ahead while it counts, and moves to its
 * place while the list is filled. */
WEFT_GRAPH_INLINE void list_cells_of(struct weft_agents *agents,
                                     const struct weft_placed_program *placed,
                                     const struct weft_graph *graph, bool count) {
  const struct weft_program *program = placed->program;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1];
         i += weft_cell_records(&program->actions[i])) {
      const uint32_t agent = agent_of(agents, placed, graph, r, program->actions[i]);
      if (agent == WEFT_AGENT_NONE) {
        continue;
      }
      if (count) {
        agents->begin[agent + 2]++;
        agents->record_count++;
      } else {
        agents->records[agents->begin[agent + 1]++] = (uint32_t)i;
      }
    }
  }
}

static void list_cells(struct weft_agents *agents, const struct weft_placed_program *placed,
                       bool count) {
  WEFT_TWICE(graph, placed->graph, list_cells_of(agents, placed, graph, count));
}

static bool allocate(struct weft_agents *agents, struct weft_arena *arena,
                     struct edge_end **ends) {
  const size_t p = agents->rank_count, edges = agents->edge_count, most = p + 2 * edges;
  agents->of_sender = weft_arena_allocate(arena, edges, sizeof(uint32_t));
  agents->of_receiver = weft_arena_allocate(arena, edges, sizeof(uint32_t));
  agents->ranks = weft_arena_allocate(arena, most, sizeof(uint32_t));
  agents->first_queue = weft_arena_allocate(arena, p + 1, sizeof(uint32_t));
  agents->begin = weft_arena_allocate(arena, most + 2, sizeof(uint64_t));
  *ends = weft_arena_allocate(arena, 2 * edges, sizeof **ends);
  return weft_arena_status(arena, NULL) == WEFT_OK;
}

bool weft_agents_init(struct weft_agents *agents, struct weft_arena *arena,
                      const struct weft_placed_program *placed, enum weft_channel_scope scope,
                      bool has_queues) {
  const uint32_t p = placed->program->rank_count;
  struct edge_end *ends = NULL;
  assert(placed->rank_of != NULL && placed->program->action_count <= UINT32_MAX);
  *agents = (struct weft_agents){.count = p,
                                 .rank_count = p,
                                 .edge_count = weft_placed_edge_count(placed),
                                 .of_rows = placed->program->row_begin};
  if (!has_queues) {
    return true;
  }
  if (!allocate(agents, arena, &ends)) {
    return false;
  }
  memset(agents->of_sender, 0xff, agents->edge_count * sizeof(uint32_t)); /* WEFT_AGENT_NONE */
  memset(agents->of_receiver, 0xff, agents->edge_count * sizeof(uint32_t));
  number_queues(agents, placed, scope, ends);
  list_cells(agents, placed, true);
  for (uint32_t a = 2; a < agents->count + 2u; a++) {
    agents->begin[a] += agents->begin[a - 1];
  }
  agents->records = weft_arena_allocate(arena, agents->record_count, sizeof *agents->records);
  if (agents->records == NULL) {
    return false;
  }
  list_cells(agents, placed, false);
  return true;
}
