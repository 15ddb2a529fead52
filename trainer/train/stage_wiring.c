/* The ports and slots of a stage; see stage_wiring.h. */
#include "trainer/train/stage_wiring.h"

#include <assert.h>

#include <weft/support.h>

/* A range of layers. */
struct range {
  const struct weft_gpt_config *config;
  uint32_t first, count;
};

static bool has(const struct range *range, uint32_t layer) {
  return layer >= range->first && layer - range->first < range->count;
}

static uint32_t count_inside(const struct range *range, struct weft_gpt_links links) {
  uint32_t count = 0;
  for (uint32_t k = 0; k < links.count; k++) {
    count += has(range, links.layers[k]);
  }
  return count;
}

/* ---- Slots ---- */

static uint64_t aligned(uint64_t bytes) {
  return (bytes + WEFT_DEVICE_ALIGN - 1) / WEFT_DEVICE_ALIGN * WEFT_DEVICE_ALIGN;
}

static bool has_y(const struct range *range, uint32_t layer) {
  return !weft_gpt_is_head(range->config, layer) && layer + 1 < range->first + range->count;
}

static bool has_x(const struct range *range, uint32_t layer) {
  return weft_gpt_layer_inputs(range->config, layer).count > 1;
}

/* The first layer's goes straight to the stage that it comes from, unless that is only a part of
 * what goes there, or goes to another stage too. */
static bool has_dx(const struct range *range, uint32_t layer) {
  const struct weft_gpt_links inputs = weft_gpt_layer_inputs(range->config, layer);
  if (layer != range->first) {
    return true;
  }
  return inputs.count > 1 ||
         (inputs.count == 1 &&
          count_inside(range, weft_gpt_layer_readers(range->config, inputs.layers[0])) > 1);
}

static bool has_dy(const struct range *range, uint32_t layer) {
  return weft_gpt_layer_readers(range->config, layer).count > 1;
}

/* Activations, their gradients, then what each layer saves. Returns the bytes of all; `slots` may
 * be NULL. */
static uint64_t lay_out(const struct range *range, const struct weft_gpt_compute_ops *ops,
                        uint64_t sequences_max, struct weft_gpt_slots *slots) {
  static bool (*const needs[])(const struct range *, uint32_t) = {has_y, has_x, has_dx, has_dy};
  const struct weft_gpt_config *config = range->config;
  const uint64_t each =
      aligned(sequences_max * config->context * config->dim * weft_dtype_size(ops->dtype));
  uint64_t bytes = 0;
  for (uint32_t kind = 0; kind < WEFT_ARRAY_LENGTH(needs); kind++) {
    for (uint32_t k = 0; k < range->count; k++) {
      const bool needed = needs[kind](range, range->first + k);
      if (slots != NULL) {
        uint64_t *const at[] = {&slots[k].y, &slots[k].x, &slots[k].dx, &slots[k].dy};
        *at[kind] = needed ? bytes : WEFT_GPT_NO_SLOT;
      }
      bytes += needed ? each : 0;
    }
  }
  for (uint32_t k = 0; k < range->count; k++) {
    if (slots != NULL) {
      slots[k].saved = bytes;
    }
    bytes += aligned(ops->saved_bytes(config, range->first + k, sequences_max, config->context));
  }
  return bytes;
}

uint64_t weft_gpt_saved_bytes(const struct weft_gpt_compute_ops *ops,
                              const struct weft_gpt_config *config, uint64_t sequences_max,
                              uint32_t first_layer, uint32_t layer_count) {
  const struct range range = {config, first_layer, layer_count};
  return lay_out(&range, ops, sequences_max, NULL);
}

/* ---- Ports ---- */

/* Of the edge between two stages; the next one of the stage if there is any. */
static void add_edge(const struct weft_gpt_stage_split *split, uint32_t from, uint32_t to,
                     struct weft_gpt_port *ports, uint32_t *count) {
  const uint32_t edge = *count > 0 ? ports[*count - 1].edge + 1 : 0;
  const uint32_t outputs = weft_gpt_edge_outputs(split, from, to);
  const uint32_t each = weft_gpt_outputs_per_tensor(outputs);
  uint32_t n = 0;
  for (uint32_t layer = split->first[from]; layer < split->first[from + 1]; layer++) {
    if (weft_gpt_stage_reads(split, to, layer)) {
      const uint32_t left = outputs - n / each * each;
      ports[(*count)++] = (struct weft_gpt_port){.layer = layer,
                                                 .edge = edge,
                                                 .item = n / each,
                                                 .part = n % each,
                                                 .parts = left < each ? left : each};
      n++;
    }
  }
}

enum weft_status weft_gpt_wiring_init(struct weft_gpt_wiring *wiring, struct weft_arena *arena,
                                      const struct weft_gpt_compute_ops *ops,
                                      const struct weft_gpt_stage_split *split, uint32_t stage,
                                      uint64_t sequences_max, struct weft_error *error) {
  assert(stage < split->stage_count);
  const struct range range = {split->config, split->first[stage],
                              split->first[stage + 1] - split->first[stage]};
  const uint32_t room = 2 * range.count; /* inputs, and readers, of all layers */
  *wiring = (struct weft_gpt_wiring){
      .imports = weft_arena_allocate(arena, room, sizeof *wiring->imports),
      .exports = weft_arena_allocate(arena, room, sizeof *wiring->exports),
      .slots = weft_arena_allocate(arena, range.count, sizeof *wiring->slots)};
  WEFT_TRY(weft_arena_status(arena, error));
  for (uint32_t from = 0; from < stage; from++) {
    add_edge(split, from, stage, wiring->imports, &wiring->import_count);
  }
  for (uint32_t to = stage + 1; to < split->stage_count; to++) {
    add_edge(split, stage, to, wiring->exports, &wiring->export_count);
  }
  wiring->saved_bytes = lay_out(&range, ops, sequences_max, wiring->slots);
  return WEFT_OK;
}

const struct weft_gpt_port *weft_gpt_wiring_find(const struct weft_gpt_port *ports, uint32_t count,
                                                 uint32_t layer, uint32_t n) {
  for (uint32_t k = 0; k < count; k++) {
    if (ports[k].layer == layer && n-- == 0) {
      return &ports[k];
    }
  }
  return NULL;
}

void weft_gpt_count_ports(const struct weft_gpt_config *config, uint32_t first_layer,
                          uint32_t layer_count, uint32_t *imports, uint32_t *exports) {
  const struct range range = {config, first_layer, layer_count};
  *imports = *exports = 0;
  for (uint32_t layer = 0; layer < weft_gpt_layer_count(config); layer++) {
    const struct weft_gpt_links readers = weft_gpt_layer_readers(config, layer);
    const uint32_t inside = count_inside(&range, readers);
    if (has(&range, layer)) {
      *exports += readers.count - inside;
    } else {
      *imports += inside > 0;
    }
  }
}
