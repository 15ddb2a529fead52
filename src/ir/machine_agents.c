/* Channels, ranks and their queues; see machine_agents.h. */
#include "ir/machine_agents.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- What shares a channel, or a queue ---- */

/* One end of an edge: which queue of which rank its transfers are in. */
struct edge_end {
  uint32_t rank;
  uint64_t queue;   /* of the rank: ends with the same number share it */
  uint32_t *number; /* where its number goes */
};

static int compare_ends(const void *a, const void *b) {
  const struct edge_end *x = a, *y = b;
  return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                            : (x->queue > y->queue) - (x->queue < y->queue);
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

/* Numbers from `number` on, rank by rank; returns the one behind the last. */
static uint32_t number_ends(struct edge_end *ends, uint32_t count, uint32_t number) {
  if (count == 0) {
    return number;
  }
  qsort(ends, count, sizeof *ends, compare_ends);
  for (uint32_t k = 0; k < count; k++) {
    number += k > 0 && compare_ends(&ends[k - 1], &ends[k]) != 0;
    *ends[k].number = number;
  }
  return number + 1;
}

/* The ranks of the stages at its ends, WEFT_RANK_NONE where a stage is not there. */
static void find_ranks(const struct weft_placed_program *placed, uint32_t edge, uint32_t *from,
                       uint32_t *to) {
  uint32_t sender, receiver;
  weft_channel_ends(placed->program->graph, edge, &sender, &receiver);
  *from = placed->rank_of[sender];
  *to = receiver < placed->stage_count ? placed->rank_of[receiver] : WEFT_RANK_NONE;
}

/* ---- Records by list ---- */

/* The list that a record belongs to; UINT32_MAX: none. */
typedef uint32_t list_function(const void *context, const struct weft_graph *graph, uint32_t rank,
                               struct weft_action action);

/* One pass of a counting sort: counts (records NULL), or puts them in their places. begin[] is one
 * entry ahead while it counts, and comes to its place while the lists are filled. */
WEFT_GRAPH_INLINE void sort_records(const struct weft_program *program,
                                    const struct weft_graph *graph, bool cells,
                                    list_function *list_of, const void *context, uint64_t *begin,
                                    uint32_t *records) {
  for (uint32_t r = 0; r < program->rank_count; r++) {
    for (uint64_t i = program->row_begin[r]; i < program->row_begin[r + 1];
         i += cells ? weft_cell_records(&program->actions[i]) : 1) {
      const uint32_t list = list_of(context, graph, r, program->actions[i]);
      if (list == UINT32_MAX) {
        continue;
      }
      if (records == NULL) {
        begin[list + 2]++;
      } else {
        records[begin[list + 1]++] = (uint32_t)i;
      }
    }
  }
}

/* `cells`: the first records of cells alone. */
WEFT_GRAPH_INLINE bool make_lists(struct weft_arena *arena, const struct weft_program *program,
                                  const struct weft_graph *graph, bool cells,
                                  list_function *list_of, const void *context, uint32_t count,
                                  uint64_t **begin, uint32_t **records) {
  uint64_t *sums = weft_arena_allocate(arena, count + (size_t)2, sizeof *sums);
  if (sums == NULL) {
    return false;
  }
  sort_records(program, graph, cells, list_of, context, sums, NULL);
  for (uint32_t k = 2; k < count + 2u; k++) {
    sums[k] += sums[k - 1];
  }
  *begin = sums;
  *records = weft_arena_allocate(arena, sums[count + 1], sizeof **records);
  if (*records == NULL) {
    return false;
  }
  sort_records(program, graph, cells, list_of, context, sums, *records);
  return true;
}

/* ---- Messages ---- */

WEFT_GRAPH_INLINE uint32_t channel_of(const void *context, const struct weft_graph *graph,
                                      uint32_t rank, struct weft_action action) {
  const struct weft_message_queue *queue = context;
  (void)rank;
  return weft_op_in(action.op, WEFT_OPS_SEND)
             ? queue->channel_of[weft_channel_of_send(graph, action)]
             : UINT32_MAX;
}

bool weft_message_queue_init(struct weft_message_queue *queue, struct weft_arena *arena,
                             const struct weft_placed_program *placed,
                             enum weft_channel_scope scope) {
  const struct weft_program *program = placed->program;
  const uint32_t edges = weft_placed_edge_count(placed);
  uint32_t *channels = weft_arena_allocate(arena, edges, sizeof *channels);
  struct edge_end *ends = weft_arena_allocate(arena, edges, sizeof *ends);
  assert(placed->rank_of != NULL && scope != WEFT_SCOPE_PAIR && scope != WEFT_SCOPE_RANK);
  if (channels == NULL || ends == NULL) {
    return false;
  }
  for (uint32_t edge = 0; edge < edges; edge++) {
    uint32_t from, to;
    find_ranks(placed, edge, &from, &to);
    ends[edge] = (struct edge_end){from, queue_number(scope, edge, to, true), &channels[edge]};
  }
  *queue = (struct weft_message_queue){.channel_of = channels,
                                       .channel_count = number_ends(ends, edges, 0)};
  bool enough;
  WEFT_TWICE(graph, program->graph,
             enough = make_lists(arena, program, graph, false, channel_of, queue,
                                 queue->channel_count, &queue->first, &queue->messages));
  return enough;
}

/* ---- Agents ---- */

/* Numbers the queues that some edge has. */
static bool number_queues(struct weft_agents *agents, struct weft_arena *arena,
                          const struct weft_placed_program *placed, enum weft_channel_scope scope) {
  const uint32_t p = agents->rank_count, edges = weft_placed_edge_count(placed);
  struct edge_end *ends = weft_arena_allocate(arena, 2 * (size_t)edges, sizeof *ends);
  agents->of_sender = weft_arena_allocate(arena, edges, sizeof(uint32_t));
  agents->of_receiver = weft_arena_allocate(arena, edges, sizeof(uint32_t));
  agents->ranks = weft_arena_allocate(arena, p + 2 * (size_t)edges, sizeof(uint32_t));
  agents->first_queue = weft_arena_allocate(arena, p + (size_t)1, sizeof(uint32_t));
  if (weft_arena_status(arena, NULL) != WEFT_OK) {
    return false;
  }
  uint32_t count = 0;
  for (uint32_t edge = 0; edge < edges; edge++) {
    uint32_t from, to;
    find_ranks(placed, edge, &from, &to);
    agents->of_sender[edge] = agents->of_receiver[edge] = WEFT_AGENT_NONE;
    if (from != to && from != WEFT_RANK_NONE && to != WEFT_RANK_NONE) {
      ends[count++] =
          (struct edge_end){from, queue_number(scope, edge, to, true), &agents->of_sender[edge]};
      ends[count++] =
          (struct edge_end){to, queue_number(scope, edge, from, false), &agents->of_receiver[edge]};
    }
  }
  agents->count = number_ends(ends, count, p);
  for (uint32_t r = 0; r < p; r++) {
    agents->ranks[r] = r;
  }
  for (uint32_t k = 0; k < count; k++) {
    agents->ranks[*ends[k].number] = ends[k].rank;
  }
  agents->first_queue[0] = p;
  for (uint32_t r = 0, a = p; r < p; r++) {
    for (; a < agents->count && agents->ranks[a] == r; a++) {
    }
    agents->first_queue[r + 1] = a;
  }
  return true;
}

struct placed_agents {
  const struct weft_agents *agents;
  const struct weft_placed_program *placed;
};

WEFT_GRAPH_INLINE uint32_t agent_of(const void *context, const struct weft_graph *graph,
                                    uint32_t rank, struct weft_action action) {
  const struct placed_agents *of = context;
  if (!weft_op_in(action.op, WEFT_OPS_SEND | WEFT_OPS_RECV)) {
    return rank;
  }
  const uint32_t edge = weft_channel_in(graph, of->placed->stage_count, action);
  return edge == WEFT_EDGE_NONE                 ? WEFT_AGENT_NONE
         : weft_op_in(action.op, WEFT_OPS_SEND) ? of->agents->of_sender[edge]
                                                : of->agents->of_receiver[edge];
}

bool weft_agents_init(struct weft_agents *agents, struct weft_arena *arena,
                      const struct weft_placed_program *placed, enum weft_channel_scope scope,
                      bool has_queues) {
  const struct weft_program *program = placed->program;
  const uint32_t p = program->rank_count;
  assert(placed->rank_of != NULL && program->action_count <= UINT32_MAX);
  *agents = (struct weft_agents){.count = p, .rank_count = p, .begin = program->row_begin};
  if (!has_queues) {
    return true;
  }
  uint64_t *begin;
  if (!number_queues(agents, arena, placed, scope) ||
      !make_lists(arena, program, program->graph, true, agent_of,
                  &(struct placed_agents){agents, placed}, agents->count, &begin,
                  &agents->records)) {
    return false;
  }
  agents->begin = begin;
  return true;
}
