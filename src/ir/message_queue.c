/* Channels and their message lists. */
#include "ir/message_queue.h"

#include <assert.h>
#include <stdlib.h>

/* A directed stage boundary, or edge, with its two ranks, for numbering pairs. */
struct edge {
  uint64_t ranks; /* sender × 2^32 + receiver */
  uint32_t number;
};

static int compare_edges(const void *a, const void *b) {
  const struct edge *x = a, *y = b;
  return (x->ranks > y->ranks) - (x->ranks < y->ranks);
}

static uint64_t edge_ranks(const struct weft_placed_program *placed, uint32_t number) {
  uint32_t from, to;
  weft_placed_edge_ranks(placed, number, &from, &to);
  return (uint64_t)from << 32 | to;
}

/* Edges between the same two ranks in the same direction share a number. */
static bool number_pairs(struct weft_message_queue *queue, struct weft_arena *arena,
                         const struct weft_placed_program *placed) {
  struct edge *edges = weft_arena_allocate(arena, queue->edge_count, sizeof *edges);
  if (edges == NULL) {
    return false;
  }
  for (uint32_t e = 0; e < queue->edge_count; e++) {
    edges[e] = (struct edge){.ranks = edge_ranks(placed, e), .number = e};
  }
  qsort(edges, queue->edge_count, sizeof *edges, compare_edges);
  uint32_t channel = 0;
  for (uint32_t e = 0; e < queue->edge_count; e++) {
    channel += e > 0 && edges[e].ranks != edges[e - 1].ranks;
    queue->channel_of[edges[e].number] = channel;
  }
  queue->channel_count = channel + 1;
  assert(queue->channel_count <= queue->edge_count || queue->edge_count == 0);
  return true;
}

static bool number_channels(struct weft_message_queue *queue, struct weft_arena *arena,
                            const struct weft_placed_program *placed,
                            enum weft_channel_scope scope) {
  if (scope == WEFT_SCOPE_DIRECTED_PAIR) {
    return number_pairs(queue, arena, placed);
  }
  assert(scope == WEFT_SCOPE_EDGE || scope == WEFT_SCOPE_SENDER);
  for (uint32_t e = 0; e < queue->edge_count; e++) {
    uint32_t owner, receiver;
    weft_placed_edge_ranks(placed, e, &owner, &receiver);
    queue->channel_of[e] = scope == WEFT_SCOPE_EDGE ? e : owner == WEFT_RANK_NONE ? 0 : owner;
  }
  queue->channel_count = scope == WEFT_SCOPE_EDGE ? queue->edge_count : placed->program->rank_count;
  return true;
}

/* Counting sort of the SENDs by channel. `first` is used one place ahead, and
 * moves to the right place while the list is filled. */
WEFT_GRAPH_INLINE bool list_messages(struct weft_message_queue *queue, struct weft_arena *arena,
                                     const struct weft_graph *graph,
                                     const struct weft_program *program) {
  queue->first = weft_arena_allocate(arena, queue->channel_count + 2u, sizeof *queue->first);
  if (queue->first == NULL) {
    return false;
  }
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (weft_op_in(program->actions[i].op, WEFT_OPS_SEND)) {
      queue->first[queue->channel_of[weft_edge_of_send(graph, program->actions[i])] + 2]++;
      queue->message_count++;
    }
  }
  queue->messages = weft_arena_allocate(arena, queue->message_count, sizeof *queue->messages);
  if (queue->messages == NULL) {
    return false;
  }
  for (uint32_t c = 2; c < queue->channel_count + 2u; c++) {
    queue->first[c] += queue->first[c - 1];
  }
  for (uint64_t i = 0; i < program->action_count; i++) {
    if (weft_op_in(program->actions[i].op, WEFT_OPS_SEND)) {
      const uint32_t channel = queue->channel_of[weft_edge_of_send(graph, program->actions[i])];
      queue->messages[queue->first[channel + 1]++] = (uint32_t)i;
    }
  }
  return true;
}

bool weft_message_queue_init(struct weft_message_queue *queue, struct weft_arena *arena,
                             const struct weft_placed_program *placed,
                             enum weft_channel_scope scope) {
  assert(placed->rank_of != NULL);
  *queue = (struct weft_message_queue){.edge_count = weft_placed_edge_count(placed)};
  queue->channel_of = weft_arena_allocate(arena, queue->edge_count, sizeof *queue->channel_of);
  bool enough = queue->channel_of != NULL && number_channels(queue, arena, placed, scope);
  if (enough) {
    WEFT_TWICE(graph, placed->graph, enough = list_messages(queue, arena, graph, placed->program));
  }
  return enough;
}
