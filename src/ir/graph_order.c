/* Edges that go back, explained: as a cycle, or with an order of stages in which all go up. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ir/graph_maker.h"

enum { STAGES_SHOWN = 8 }; /* of a cycle */

const char *weft_stage_text(const char *const *names, uint32_t stage, char *buffer, size_t size) {
  char escaped[64];
  if (names == NULL || names[stage] == NULL) {
    (void)snprintf(buffer, size, "stage %" PRIu32, stage);
  } else {
    (void)snprintf(buffer, size, "stage %" PRIu32 " '%s'", stage,
                   weft_escape(escaped, sizeof escaped, names[stage], strlen(names[stage])));
  }
  return buffer;
}

/* Each stage after those that feed it; returns how many have such a place. waits[s] becomes the
 * number of in-edges of s from stages without one. */
static uint32_t sort_stages(const struct weft_graph *graph, uint32_t *waits, uint32_t *order) {
  uint32_t count = 0;
  for (uint32_t s = 0; s < graph->stage_count; s++) {
    waits[s] = graph->in.begin[s + 1] - graph->in.begin[s];
    if (waits[s] == 0) {
      order[count++] = s;
    }
  }
  for (uint32_t k = 0; k < count; k++) {
    for (uint32_t e = graph->out.begin[order[k]]; e < graph->out.begin[order[k] + 1]; e++) {
      const uint32_t to = graph->edges[graph->out.edges[e]].to;
      if (--waits[to] == 0) {
        order[count++] = to;
      }
    }
  }
  return count;
}

/* A stage that waits is fed by one that waits too. */
static uint32_t waiting_before(const struct weft_graph *graph, const uint32_t *waits,
                               uint32_t stage) {
  for (uint32_t e = graph->in.begin[stage]; e < graph->in.begin[stage + 1]; e++) {
    const uint32_t from = graph->edges[graph->in.edges[e]].from;
    if (waits[from] > 0) {
      return from;
    }
  }
  assert(false);
  return stage;
}

/* Its stages in the order of the edges, from the lowest on; returns how many. Whoever goes from
 * feeder to feeder for long enough is on a cycle. */
static uint32_t find_cycle(const struct weft_graph *graph, const uint32_t *waits, uint32_t *cycle) {
  uint32_t stage = 0, count = 0;
  while (waits[stage] == 0) {
    stage++;
  }
  for (uint32_t k = 0; k < graph->stage_count; k++) {
    stage = waiting_before(graph, waits, stage);
  }
  uint32_t lowest = stage;
  for (uint32_t s = waiting_before(graph, waits, stage); s != stage;
       s = waiting_before(graph, waits, s)) {
    lowest = s < lowest ? s : lowest;
  }
  uint32_t end = graph->stage_count; /* from the end of the room to the front */
  stage = lowest;
  do {
    stage = waiting_before(graph, waits, stage);
    cycle[--end] = stage;
    count++;
  } while (stage != lowest);
  memmove(cycle, cycle + end, count * sizeof *cycle);
  return count;
}

static enum weft_status fail_cycle(const char *const *names, const uint32_t *cycle, uint32_t count,
                                   struct weft_edge *back, struct weft_error *error) {
  char text[400], stage[96];
  size_t used = 0;
  const uint32_t shown = count <= STAGES_SHOWN ? count : STAGES_SHOWN - 1;
  for (uint32_t k = 0; k < shown && used < sizeof text; k++) {
    used += (size_t)snprintf(text + used, sizeof text - used, "%s > ",
                             weft_stage_text(names, cycle[k], stage, sizeof stage));
  }
  if (shown < count && used < sizeof text) {
    (void)snprintf(text + used, sizeof text - used, "%" PRIu32 " more > ", count - shown);
  }
  *back = weft_edge_make(cycle[count - 1], cycle[0]);
  return weft_fail(error, WEFT_ERR_INVALID,
                   "none of these stages can be the first to run: take one of the edges out",
                   "the edge %u>%u goes back and closes a cycle: %s%s", back->from, back->to, text,
                   weft_stage_text(names, cycle[0], stage, sizeof stage));
}

/* "list the stages as a, c, b", or with numbers; false where that is too long. */
static bool write_order(const char *const *names, const uint32_t *order, uint32_t count, char *hint,
                        size_t size) {
  size_t used = (size_t)snprintf(
      hint, size, "%s ", names != NULL ? "list the stages as" : "number the stages in the order");
  for (uint32_t k = 0; k < count; k++) {
    const char *name = names != NULL ? names[order[k]] : NULL;
    char word[48], number[16];
    (void)snprintf(number, sizeof number, "%" PRIu32, order[k]);
    (void)weft_escape(word, sizeof word, name != NULL ? name : number,
                      strlen(name != NULL ? name : number));
    used += (size_t)snprintf(hint + used, size - used, "%s%s", k > 0 ? ", " : "", word);
    if (used >= size) {
      return false;
    }
  }
  return true;
}

enum weft_status weft_graph_fail_order(struct weft_arena *arena, const struct weft_graph *graph,
                                       const char *const *names, struct weft_edge *back,
                                       struct weft_error *error) {
  uint32_t *waits = weft_arena_allocate(arena, graph->stage_count, sizeof *waits);
  uint32_t *order = weft_arena_allocate(arena, graph->stage_count, sizeof *order);
  WEFT_TRY(weft_arena_status(arena, error));
  if (sort_stages(graph, waits, order) < graph->stage_count) {
    const uint32_t count = find_cycle(graph, waits, order);
    return fail_cycle(names, order, count, back, error);
  }
  char from[96], to[96], hint[240];
  (void)weft_stage_text(names, back->from, from, sizeof from);
  (void)weft_stage_text(names, back->to, to, sizeof to);
  if (!write_order(names, order, graph->stage_count, hint, sizeof hint)) {
    (void)snprintf(hint, sizeof hint,
                   "list every stage after all that feed it: an edge goes from a lower to a higher "
                   "number");
  }
  return weft_fail(error, WEFT_ERR_INVALID, hint, "the edge %u>%u goes back, from %s to %s",
                   back->from, back->to, from, to);
}
