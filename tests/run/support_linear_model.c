/* See support_linear_model.h. The stages' own functions are called here one by
 * one, without executor, buffers or messages. */
#include "support_linear_model.h"
#include "support_linear_stage.h"
#include "support_protected_device.h"

#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static float noise(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (float)((double)(*state >> 40) / (double)(1 << 24) - 0.5);
}

void linear_model_init(struct linear_model *model, uint32_t stage_count, uint32_t width,
                       uint32_t rows, uint64_t seed) {
  struct weft_error error;
  *model = (struct linear_model){.stage_count = stage_count, .width = width, .rows = rows};
  model->stages = calloc(stage_count, sizeof(struct test_linear_stage *));
  model->bases = calloc(stage_count, sizeof(struct weft_stage *));
  for (uint32_t s = 0; s < stage_count; s++) {
    assert_int_equal(test_linear_stage_create(NULL, s, width, seed, &model->stages[s], &error),
                     WEFT_OK);
    model->bases[s] = test_linear_stage_base(model->stages[s]);
  }
  model->inputs = calloc((size_t)rows * width, sizeof(float));
  model->targets = calloc((size_t)rows * width, sizeof(float));
  uint64_t state = seed;
  for (uint32_t k = 0; k < rows * width; k++) {
    model->inputs[k] = noise(&state);
    model->targets[k] = noise(&state);
  }
  const uint64_t bytes = (uint64_t)rows * width * sizeof(float);
  model->device_inputs = test_device_copy(model->inputs, bytes);
  model->device_targets = test_device_copy(model->targets, bytes);
  model->boundary = (struct weft_boundary){
      .tensor_count = 1,
      .tensors = {{.name = "x",
                   .largest = {.dtype = WEFT_F32, .dim_count = 2, .dims = {rows, width}},
                   .needs_grad = true}}};
}

void linear_model_finish(struct linear_model *model) {
  for (uint32_t s = 0; s < model->stage_count; s++) {
    test_linear_stage_destroy(model->stages[s]);
  }
  free(model->stages);
  free(model->bases);
  const uint64_t bytes = (uint64_t)model->rows * model->width * sizeof(float);
  weft_device_free(test_device(), NULL, model->device_inputs, bytes);
  weft_device_free(test_device(), NULL, model->device_targets, bytes);
  free(model->inputs);
  free(model->targets);
}

static struct weft_tensor whole(const struct linear_model *model, void *data, const char *name) {
  return (struct weft_tensor){
      .name = name,
      .data = data,
      .device = test_device(),
      .shape = {.dtype = WEFT_F32, .dim_count = 2, .dims = {model->rows, model->width}}};
}

struct weft_tensor linear_model_inputs(const struct linear_model *model) {
  return whole(model, model->device_inputs, "x");
}

struct weft_tensor linear_model_targets(const struct linear_model *model) {
  return whole(model, model->device_targets, "y");
}

/* ---- The plain evaluation ---- */

/* Everything of one microbatch: activations[0] is the input, [s + 1] what stage s
 * made; grads likewise. */
struct trace {
  uint32_t first, rows;
  float **activations, **grads; /* [stage_count + 1][rows][width] */
};

static struct weft_tensors view(const struct linear_model *model, float *data, uint32_t rows) {
  return (struct weft_tensors){
      .count = 1,
      .items = {{.data = data,
                 .shape = {.dtype = WEFT_F32, .dim_count = 2, .dims = {rows, model->width}}}}};
}

static void run_function(enum weft_status (*function)(struct weft_stage *, struct weft_stage_call *,
                                                      struct weft_error *),
                         struct weft_stage *stage, struct weft_stage_call *call) {
  struct weft_error error;
  assert_int_equal(function(stage, call, &error), WEFT_OK);
}

static void trace_forward(const struct linear_model *model, struct trace *trace,
                          struct linear_result *result, uint32_t microbatch) {
  const uint32_t n = model->stage_count;
  for (uint32_t s = 0; s < n; s++) {
    struct weft_tensors in = view(model, trace->activations[s], trace->rows);
    struct weft_tensors out = view(model, trace->activations[s + 1], trace->rows);
    struct weft_tensors targets =
        view(model, model->targets + trace->first * model->width, trace->rows);
    struct weft_tensors grads = view(model, trace->grads[n], trace->rows);
    struct weft_stage_call call = {.stage = s,
                                   .training = true,
                                   .inputs = &in,
                                   .outputs = &out,
                                   .targets = &targets,
                                   .output_grads = &grads,
                                   .loss = &result->losses[microbatch]};
    run_function(model->bases[s]->ops->forward, model->bases[s], &call);
    if (s + 1 == n) {
      run_function(model->bases[s]->ops->loss, model->bases[s], &call);
    }
  }
}

static void trace_backward(const struct linear_model *model, struct trace *trace) {
  for (uint32_t s = model->stage_count; s-- > 0;) {
    struct weft_tensors in = view(model, trace->activations[s], trace->rows);
    struct weft_tensors above = view(model, trace->grads[s + 1], trace->rows);
    struct weft_tensors below = view(model, trace->grads[s], trace->rows);
    struct weft_stage_call call = {
        .stage = s, .training = true, .inputs = &in, .output_grads = &above, .input_grads = &below};
    run_function(model->bases[s]->ops->backward_input, model->bases[s], &call);
  }
}

static void add_weights(const struct linear_model *model, uint32_t s, const struct trace *trace) {
  assert(trace->activations != NULL && trace->grads != NULL);
  struct weft_tensors in = view(model, trace->activations[s], trace->rows);
  struct weft_tensors above = view(model, trace->grads[s + 1], trace->rows);
  struct weft_stage_call call = {
      .stage = s, .training = true, .inputs = &in, .output_grads = &above};
  run_function(model->bases[s]->ops->backward_weight, model->bases[s], &call);
}

static struct trace *make_traces(const struct linear_model *model, uint32_t m,
                                 struct linear_result *result) {
  struct trace *traces = calloc(m, sizeof *traces);
  assert(traces != NULL);
  uint32_t first = 0;
  for (uint32_t k = 0; k < m; k++) {
    struct trace *trace = &traces[k];
    trace->first = first;
    trace->rows = model->rows / m + (k < model->rows % m);
    first += trace->rows;
    trace->activations = calloc(model->stage_count + 1, sizeof(float *));
    trace->grads = calloc(model->stage_count + 1, sizeof(float *));
    for (uint32_t s = 0; s <= model->stage_count; s++) {
      trace->activations[s] = calloc((size_t)trace->rows * model->width + 1, sizeof(float));
      trace->grads[s] = calloc((size_t)trace->rows * model->width + 1, sizeof(float));
    }
    memcpy(trace->activations[0], model->inputs + trace->first * model->width,
           (size_t)trace->rows * model->width * sizeof(float));
    trace_forward(model, trace, result, k);
    trace_backward(model, trace);
    memcpy(result->outputs + trace->first * model->width, trace->activations[model->stage_count],
           (size_t)trace->rows * model->width * sizeof(float));
  }
  return traces;
}

static void free_traces(const struct linear_model *model, struct trace *traces, uint32_t m) {
  for (uint32_t k = 0; k < m; k++) {
    for (uint32_t s = 0; s <= model->stage_count; s++) {
      free(traces[k].activations[s]);
      free(traces[k].grads[s]);
    }
    free(traces[k].activations);
    free(traces[k].grads);
  }
  free(traces);
}

static void take_gradients(const struct linear_model *model, struct linear_result *result,
                           uint32_t m, bool scale) {
  for (uint32_t s = 0; s < model->stage_count; s++) {
    struct weft_stage_call call = {.stage = s, .grad_scale = 1.0 / m};
    uint32_t count;
    if (scale) {
      run_function(model->bases[s]->ops->scale_grads, model->bases[s], &call);
    }
    float *gradients = test_linear_stage_gradients(model->stages[s], &count);
    result->gradients[s] = malloc(count * sizeof(float));
    memcpy(result->gradients[s], gradients, count * sizeof(float));
    run_function(model->bases[s]->ops->zero_grad, model->bases[s], &call);
  }
}

struct linear_result linear_model_evaluate(const struct linear_model *model,
                                           const struct weft_program *program, bool scale,
                                           uint32_t left_out) {
  const uint32_t m = program->microbatch_count;
  struct linear_result result = {
      .losses = calloc(m, sizeof(double)),
      .outputs = calloc((size_t)model->rows * model->width, sizeof(float)),
      .gradients = calloc(model->stage_count, sizeof(float *))};
  for (uint32_t s = 0; s < model->stage_count; s++) {
    struct weft_stage_call call = {.stage = s};
    run_function(model->bases[s]->ops->zero_grad, model->bases[s], &call);
  }
  struct trace *traces = make_traces(model, m, &result);
  for (uint64_t i = 0; i < program->action_count; i++) {
    const struct weft_action action = program->actions[i];
    if ((action.op == WEFT_OP_B || action.op == WEFT_OP_W) && action.microbatch != left_out) {
      add_weights(model, action.stage, &traces[action.microbatch]);
    }
  }
  take_gradients(model, &result, m, scale);
  free_traces(model, traces, m);
  return result;
}

void linear_result_free(const struct linear_model *model, struct linear_result *result) {
  for (uint32_t s = 0; s < model->stage_count; s++) {
    free(result->gradients[s]);
  }
  free(result->gradients);
  free(result->losses);
  free(result->outputs);
}

bool linear_gradients_equal(const struct linear_model *model, uint32_t stage,
                            const struct linear_result *result) {
  uint32_t count;
  const float *gradients = test_linear_stage_gradients(model->stages[stage], &count);
  return memcmp(gradients, result->gradients[stage], count * sizeof(float)) == 0;
}
