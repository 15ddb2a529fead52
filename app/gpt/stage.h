/* A range of parts as a stage of the pipeline (weft/run.h). */
#ifndef GPT_STAGE_H
#define GPT_STAGE_H

#include <weft/run.h>

#include "gpt/model.h"

/* One part's memory: parameters, gradients and AdamW's two moments, each
 * weft_gpt_part_floats() long. */
struct weft_gpt_part_state {
  uint32_t part;
  uint64_t floats;
  float *parameters, *gradients, *first_moment, *second_moment;
};

struct weft_gpt_stage {
  struct weft_stage stage; /* first */
  const struct weft_allocator *allocator;
  const struct weft_gpt_config *config;
  uint64_t sequences_max; /* of a microbatch */
  uint32_t first_part, part_count;
  struct weft_gpt_part_state *parts; /* [part_count] */
  /* Activations between the stage's own parts and what parts keep, by slot; scratch. */
  struct weft_gpt_slot *slots;
  uint32_t slot_count;
  float *scratch;
  uint64_t scratch_floats;
  uint64_t allocated_bytes; /* all of it */
};

/* Parameters are initialised. config is borrowed. */
enum weft_status weft_gpt_stage_create(const struct weft_allocator *allocator,
                                       const struct weft_gpt_config *config, uint32_t first_part,
                                       uint32_t part_count, uint64_t sequences_max,
                                       struct weft_gpt_stage **out, struct weft_error *error);
void weft_gpt_stage_destroy(struct weft_gpt_stage *stage);

/* What goes between stages: x [B, T, C], f32, with a gradient. The last boundary, the
 * outputs, is logits [B, T, V] when wanted, else nothing. */
struct weft_boundary weft_gpt_boundary(const struct weft_gpt_config *config,
                                       uint64_t sequences_max);
struct weft_boundary weft_gpt_output_boundary(const struct weft_gpt_config *config,
                                              uint64_t sequences_max, bool want_logits);

#endif
