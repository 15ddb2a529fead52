/* How the layers of a stage are connected, with each other and with other stages, and where in
 * call->saved their activations and gradients are. In a chain a stage reads one output and has
 * another one read; with skips or two heads (trainer/model/layer_graph.h) it may be several. */
#ifndef GPT_STAGE_WIRING_H
#define GPT_STAGE_WIRING_H

#include <weft/run.h>
#include <weft/support.h>

#include "trainer/model/compute.h"
#include "trainer/model/layer_graph.h"

/* An output of a layer that passes between this stage and another one: a tensor of a message, or
 * one of the parts of a tensor, [parts][B, T, C]. */
struct weft_gpt_port {
  uint32_t layer;
  uint32_t edge; /* of the stage: as in call->inputs, or call->outputs */
  uint32_t item; /* tensor of the message */
  uint32_t part, parts;
};

/* Where something is in call->saved, in bytes; WEFT_GPT_NO_SLOT: nowhere. */
#define WEFT_GPT_NO_SLOT UINT64_MAX
struct weft_gpt_slots {
  uint64_t y;     /* output; the last layer's is in call->outputs */
  uint64_t x;     /* input, where it is a sum */
  uint64_t dx;    /* gradient of the input; nowhere: in call->input_grads */
  uint64_t dy;    /* gradient of the output, where it is a sum */
  uint64_t saved; /* what the layer saves */
};

struct weft_gpt_wiring {
  struct weft_gpt_port *imports, *exports; /* ascending by edge, then layer */
  uint32_t import_count, export_count;
  struct weft_gpt_slots *slots; /* [layer_count] */
  uint64_t saved_bytes;
};

/* Of a stage of the split. Everything comes from the arena. */
enum weft_status weft_gpt_wiring_init(struct weft_gpt_wiring *wiring, struct weft_arena *arena,
                                      const struct weft_gpt_compute_ops *ops,
                                      const struct weft_gpt_stage_split *split, uint32_t stage,
                                      uint64_t sequences_max, struct weft_error *error);

/* The port of a layer; NULL: none. An output that several stages read has several: the n-th. */
const struct weft_gpt_port *weft_gpt_wiring_find(const struct weft_gpt_port *ports, uint32_t count,
                                                 uint32_t layer, uint32_t n);

/* Bytes that a range of layers saves for a microbatch, without its inputs and the gradients of its
 * outputs. */
uint64_t weft_gpt_saved_bytes(const struct weft_gpt_compute_ops *ops,
                              const struct weft_gpt_config *config, uint64_t sequences_max,
                              uint32_t first_layer, uint32_t layer_count);
/* Outputs of other layers that the range reads, and how often other layers read its own. */
void weft_gpt_count_ports(const struct weft_gpt_config *config, uint32_t first_layer,
                          uint32_t layer_count, uint32_t *imports, uint32_t *exports);

#endif
