/* Which layers read which, and the graph of stages that follows from it. */
#include "trainer/model/layer_graph.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

/* ---- Layers ---- */

/* The other end of a block's skip, from or to it; 0: there is none. Block k is layer k + 1, so the
 * ends add up to L + 1. Neighbours have none: the output is the other one's input anyway. */
static uint32_t skip_end(const struct weft_gpt_config *config, uint32_t layer) {
  if (!config->skips || layer < 1 || layer > config->blocks) {
    return 0;
  }
  const uint32_t end = config->blocks + 1 - layer;
  const uint32_t apart = end > layer ? end - layer : layer - end;
  return apart > 1 ? end : 0;
}

struct weft_gpt_links weft_gpt_layer_inputs(const struct weft_gpt_config *config, uint32_t layer) {
  assert(layer < weft_gpt_layer_count(config));
  const uint32_t skip = skip_end(config, layer);
  if (layer == 0) {
    return (struct weft_gpt_links){.count = 0};
  }
  if (weft_gpt_is_head(config, layer)) {
    return (struct weft_gpt_links){.count = 1, .layers = {config->blocks}};
  }
  return skip > 0 && skip < layer ? (struct weft_gpt_links){.count = 2, .layers = {skip, layer - 1}}
                                  : (struct weft_gpt_links){.count = 1, .layers = {layer - 1}};
}

struct weft_gpt_links weft_gpt_layer_readers(const struct weft_gpt_config *config, uint32_t layer) {
  assert(layer < weft_gpt_layer_count(config));
  const uint32_t skip = skip_end(config, layer);
  if (weft_gpt_is_head(config, layer)) {
    return (struct weft_gpt_links){.count = 0};
  }
  if (layer == config->blocks) {
    return (struct weft_gpt_links){.count = weft_gpt_head_count(config),
                                   .layers = {layer + 1, layer + 2}};
  }
  return skip > layer ? (struct weft_gpt_links){.count = 2, .layers = {layer + 1, skip}}
                      : (struct weft_gpt_links){.count = 1, .layers = {layer + 1}};
}

uint32_t weft_gpt_skip_count(const struct weft_gpt_config *config) {
  return config->skips ? (config->blocks - 1) / 2 : 0;
}

/* ---- Stages ---- */

static bool has(const struct weft_gpt_stage_split *split, uint32_t stage, uint32_t layer) {
  return layer >= split->first[stage] && layer < split->first[stage + 1];
}

bool weft_gpt_stage_reads(const struct weft_gpt_stage_split *split, uint32_t stage,
                          uint32_t layer) {
  assert(stage < split->stage_count);
  const struct weft_gpt_links readers = weft_gpt_layer_readers(split->config, layer);
  return (readers.count > 0 && has(split, stage, readers.layers[0])) ||
         (readers.count > 1 && has(split, stage, readers.layers[1]));
}

uint32_t weft_gpt_edge_outputs(const struct weft_gpt_stage_split *split, uint32_t from,
                               uint32_t to) {
  uint32_t count = 0;
  for (uint32_t layer = split->first[from]; layer < split->first[from + 1]; layer++) {
    count += weft_gpt_stage_reads(split, to, layer);
  }
  return count;
}

void weft_gpt_add_layers(struct weft_text *text, uint32_t first, uint32_t end,
                         const struct weft_gpt_config *config) {
  const uint32_t blocks = config->blocks;
  const uint32_t begin = first > 1 ? first - 1 : 0; /* of blocks */
  const uint32_t after = end > blocks + 1 ? blocks : (end > 0 ? end - 1 : 0);
  const char *comma = "";
  if (first == 0) {
    weft_text_add(text, "embedding");
    comma = ", ";
  }
  if (after > begin) {
    weft_text_addf(text, after - begin == 1 ? "%sblock %" PRIu32 : "%sblocks %" PRIu32, comma,
                   begin);
    if (after - begin > 1) {
      weft_text_addf(text, "-%" PRIu32, after - 1);
    }
    comma = ", ";
  }
  if (first <= blocks + 1 && end >= blocks + 2) {
    weft_text_addf(text, "%shead", comma);
    comma = ", ";
  }
  if (end == blocks + 3) {
    weft_text_addf(text, "%ssecond head", comma);
  }
}

enum weft_status weft_gpt_stage_graph(const struct weft_allocator *allocator,
                                      const struct weft_gpt_stage_split *split,
                                      struct weft_graph **out, struct weft_error *error) {
  assert(out != NULL && split->stage_count > 0);
  WEFT_SCOPED_ARENA arena = {.allocator = allocator};
  const uint32_t room = 2 * weft_gpt_layer_count(split->config); /* readers of all layers */
  struct weft_edge *edges = weft_arena_allocate(&arena, room, sizeof *edges);
  const char **names = weft_arena_allocate(&arena, split->stage_count, sizeof *names);
  WEFT_TRY(weft_arena_status(&arena, error));
  uint32_t count = 0;
  for (uint32_t s = 0; s < split->stage_count; s++) {
    const uint32_t begin = count;
    struct weft_text name = {.allocator = allocator};
    weft_gpt_add_layers(&name, split->first[s], split->first[s + 1], split->config);
    const enum weft_status named = weft_text_status(&name, error);
    names[s] = named < 0 ? NULL : weft_arena_copy_text(&arena, name.data, name.size);
    weft_text_finish(&name);
    WEFT_TRY(named);
    for (uint32_t layer = split->first[s]; layer < split->first[s + 1]; layer++) {
      const struct weft_gpt_links readers = weft_gpt_layer_readers(split->config, layer);
      for (uint32_t k = 0; k < readers.count; k++) {
        uint32_t to = s, e = begin;
        while (!has(split, to, readers.layers[k])) {
          to++;
        }
        if (to > s + 1 + WEFT_SKIP_MAX) {
          return weft_fail(error, WEFT_ERR_LIMIT, "use fewer stages, or leave out --skips",
                           "stage %" PRIu32 " would skip %" PRIu32
                           " stages to send to stage %" PRIu32 "; the limit is %" PRIu32,
                           s, to - s - 1, to, WEFT_SKIP_MAX);
        }
        while (e < count && edges[e].to != to) {
          e++;
        }
        if (to != s && e == count) {
          edges[count++] = weft_edge_make(s, to);
        }
      }
    }
  }
  WEFT_TRY(weft_arena_status(&arena, error));
  *out = NULL;
  if (split->stage_count == 1) {
    return WEFT_OK;
  }
  struct weft_graph *graph;
  WEFT_TRY(weft_graph_create(allocator, split->stage_count, edges, count, names, &graph, error));
  if (weft_graph_is_chain(graph)) {
    weft_graph_destroy(graph);
    return WEFT_OK;
  }
  *out = graph;
  return WEFT_OK;
}
