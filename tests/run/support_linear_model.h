/* A model of linear stages, its batch, and what a plain evaluation without any
 * pipeline makes of it: losses, outputs and gradients to compare with, bit for
 * bit. */
#ifndef SUPPORT_LINEAR_MODEL_H
#define SUPPORT_LINEAR_MODEL_H

#include <weft/run.h>
#include <weft/weft.h>

#include "support_linear_stage.h"

struct linear_model {
  uint32_t stage_count, width, rows;
  struct test_linear_stage **stages;    /* [stage_count] */
  struct weft_stage **bases;            /* [stage_count] */
  float *inputs, *targets;              /* [rows][width] */
  void *device_inputs, *device_targets; /* the same on the test device */
  struct weft_boundary boundary;
};

void linear_model_init(struct linear_model *model, uint32_t stage_count, uint32_t width,
                       uint32_t rows, uint64_t seed);
void linear_model_finish(struct linear_model *model);

/* The whole batch as tensors, on the test device (support_protected_device.h). */
struct weft_tensor linear_model_inputs(const struct linear_model *model);
struct weft_tensor linear_model_targets(const struct linear_model *model);

/* What a plain evaluation gives; all malloc'ed. */
struct linear_result {
  double *losses;    /* [microbatch_count] */
  float *outputs;    /* [rows][width] */
  float **gradients; /* [stage_count][width * width + width] */
};

/* Gradients are added up in the order in which the program's rows have each
 * stage's B or W; `left_out`: a microbatch whose gradients are not added,
 * UINT32_MAX for none. scale: times 1 / m. */
struct linear_result linear_model_evaluate(const struct linear_model *model,
                                           const struct weft_program *program, bool scale,
                                           uint32_t left_out);
void linear_result_free(const struct linear_model *model, struct linear_result *result);

/* Bitwise. */
bool linear_gradients_equal(const struct linear_model *model, uint32_t stage,
                            const struct linear_result *result);

#endif
