/* See support_graph_model.h. */
#include "support_graph_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "support_protected_device.h"

/* ---- The arithmetic, of one number ---- */

static float in_weight(uint32_t from, uint32_t to, uint32_t tensor) {
  return 0.3f + 0.05f * (float)((from * 3 + to * 7 + tensor * 5) % 11);
}

/* Edges that share an output have the same. */
static float out_weight(uint32_t from, uint32_t to, uint32_t tensor, bool shared) {
  return 0.4f + 0.03f * (float)((from * 5 + (shared ? 0 : to * 3) + tensor * 7) % 13);
}

static float activate(const struct graph_stage *stage, uint32_t column, float x) {
  const float z = stage->w[column] * x + stage->b[column];
  return z + 0.1f * (z * z);
}

static float slope(const struct graph_stage *stage, uint32_t column, float x) {
  const float z = stage->w[column] * x + stage->b[column];
  return 1 + 0.2f * z;
}

/* What a tensor of an edge is to its consumer; those of i32 say which row they are. */
static float value_of(const struct weft_tensor_shape *shape, const void *data, uint64_t k) {
  return shape->dtype == WEFT_I32 ? 0.01f * (float)((const int32_t *)data)[k]
                                  : ((const float *)data)[k];
}

static int32_t mark_of(uint32_t from, uint32_t to, uint64_t k) {
  return (int32_t)(k % 17 + 2 * from + 3 * to);
}

/* ---- Edges ---- */

static const struct weft_boundary *boundary_of(const struct graph_model *model, uint32_t edge) {
  return &model->boundaries[edge];
}

static bool carries(const struct graph_model *model, uint32_t edge) {
  bool any = false;
  for (uint32_t t = 0; t < boundary_of(model, edge)->tensor_count; t++) {
    any = any || boundary_of(model, edge)->tensors[t].needs_grad;
  }
  return any && model->graph->edges[edge].gradient;
}

uint32_t graph_model_in_count(const struct graph_model *model, uint32_t s) {
  return model->graph->in.begin[s + 1] - model->graph->in.begin[s];
}

uint32_t graph_model_out_count(const struct graph_model *model, uint32_t s) {
  return model->graph->out.begin[s + 1] - model->graph->out.begin[s];
}

static uint32_t in_edge(const struct graph_model *model, uint32_t s, uint32_t k) {
  return model->graph->in.edges[model->graph->in.begin[s] + k];
}

static uint32_t out_edge(const struct graph_model *model, uint32_t s, uint32_t k) {
  return model->graph->out.edges[model->graph->out.begin[s] + k];
}

/* The first out-edge of a stage's `output`-th output; WEFT_EDGE_NONE: there are fewer. */
static uint32_t lead_of(const struct graph_model *model, uint32_t s, uint32_t output) {
  bool has_shared = false;
  for (uint32_t k = 0; k < graph_model_out_count(model, s); k++) {
    const uint32_t e = out_edge(model, s, k);
    const bool shared = !boundary_of(model, e)->own_output;
    if (shared && has_shared) {
      continue;
    }
    has_shared = has_shared || shared;
    if (output-- == 0) {
      return e;
    }
  }
  return WEFT_EDGE_NONE;
}

/* ---- The stage ---- */

static void input_row(const struct graph_stage *of, const struct weft_stage_call *call, uint64_t k,
                      float *x) {
  const struct graph_model *model = of->model;
  if (graph_model_in_count(model, of->number) == 0) {
    *x = ((const float *)test_tensor_view(&call->inputs->items[0]))[k];
    return;
  }
  *x = 0;
  for (uint32_t n = 0; n < call->input_count; n++) {
    const uint32_t e = in_edge(model, of->number, n);
    for (uint32_t t = 0; t < call->inputs[n].count; t++) {
      const struct weft_tensor *tensor = &call->inputs[n].items[t];
      *x += in_weight(model->graph->edges[e].from, of->number, t) *
            value_of(&tensor->shape, test_tensor_view(tensor), k);
    }
  }
}

static uint64_t rows_of(const struct weft_stage_call *call) {
  return call->inputs->items[0].shape.dims[0];
}

static enum weft_status check_counts(const struct graph_stage *of,
                                     const struct weft_stage_call *call, struct weft_error *error) {
  const uint32_t inputs = graph_model_in_count(of->model, of->number);
  uint32_t outputs = 0;
  while (lead_of(of->model, of->number, outputs) != WEFT_EDGE_NONE) {
    outputs++;
  }
  if (call->input_count != (inputs > 0 ? inputs : 1) ||
      call->output_count != (outputs > 0 ? outputs : 1)) {
    return weft_fail(error, WEFT_ERR_STAGE, "", "%u inputs and %u outputs", call->input_count,
                     call->output_count);
  }
  return WEFT_OK;
}

static enum weft_status forward(struct weft_stage *stage, struct weft_stage_call *call,
                                struct weft_error *error) {
  const struct graph_stage *of = (const struct graph_stage *)stage;
  WEFT_TRY(check_counts(of, call, error));
  const uint64_t rows = rows_of(call);
  for (uint32_t j = 0; j < call->output_count; j++) {
    const uint32_t e = lead_of(of->model, of->number, j);
    for (uint32_t t = 0; t < call->outputs[j].count; t++) {
      struct weft_tensor *tensor = &call->outputs[j].items[t];
      void *data = test_tensor_view(tensor);
      tensor->shape.dims[0] = rows;
      for (uint64_t k = 0; k < rows * GRAPH_WIDTH; k++) {
        float x, weight = 1;
        input_row(of, call, k, &x);
        const uint32_t to = e != WEFT_EDGE_NONE ? of->model->graph->edges[e].to : 0;
        const bool shared = e != WEFT_EDGE_NONE && !boundary_of(of->model, e)->own_output;
        if (e != WEFT_EDGE_NONE) {
          weight = out_weight(of->number, to, t, shared);
        }
        if (tensor->shape.dtype == WEFT_I32) {
          ((int32_t *)data)[k] = mark_of(of->number, shared ? 0 : to, k);
        } else {
          ((float *)data)[k] = weight * activate(of, (uint32_t)(k % GRAPH_WIDTH), x);
        }
      }
    }
  }
  return WEFT_OK;
}

/* The gradient of y: over the outputs, and the tensors of each that have one. */
static float output_grad(const struct graph_stage *of, const struct weft_stage_call *call,
                         uint64_t k) {
  float sum = 0;
  for (uint32_t j = 0; j < call->output_count; j++) {
    const uint32_t e = lead_of(of->model, of->number, j);
    uint32_t t = 0;
    for (uint32_t g = 0; g < call->output_grads[j].count; g++, t++) {
      while (e != WEFT_EDGE_NONE && !boundary_of(of->model, e)->tensors[t].needs_grad) {
        t++;
      }
      const float weight = e == WEFT_EDGE_NONE
                               ? 1
                               : out_weight(of->number, of->model->graph->edges[e].to, t,
                                            !boundary_of(of->model, e)->own_output);
      sum += weight * ((const float *)test_tensor_view(&call->output_grads[j].items[g]))[k];
    }
  }
  return sum;
}

static enum weft_status backward_input(struct weft_stage *stage, struct weft_stage_call *call,
                                       struct weft_error *error) {
  const struct graph_stage *of = (const struct graph_stage *)stage;
  WEFT_TRY(check_counts(of, call, error));
  for (uint32_t n = 0; n < graph_model_in_count(of->model, of->number); n++) {
    const uint32_t e = in_edge(of->model, of->number, n);
    uint32_t t = 0;
    for (uint32_t g = 0; g < call->input_grads[n].count; g++, t++) {
      while (!boundary_of(of->model, e)->tensors[t].needs_grad) {
        t++;
      }
      float *data = test_tensor_view(&call->input_grads[n].items[g]);
      for (uint64_t k = 0; k < rows_of(call) * GRAPH_WIDTH; k++) {
        const uint32_t c = (uint32_t)(k % GRAPH_WIDTH);
        float x;
        input_row(of, call, k, &x);
        const float dz = output_grad(of, call, k) * slope(of, c, x);
        data[k] = in_weight(of->model->graph->edges[e].from, of->number, t) * (dz * of->w[c]);
      }
    }
  }
  return WEFT_OK;
}

static enum weft_status backward_weight(struct weft_stage *stage, struct weft_stage_call *call,
                                        struct weft_error *error) {
  struct graph_stage *of = (struct graph_stage *)stage;
  (void)error;
  for (uint64_t k = 0; k < rows_of(call) * GRAPH_WIDTH; k++) {
    const uint32_t c = (uint32_t)(k % GRAPH_WIDTH);
    float x;
    input_row(of, call, k, &x);
    const float dz = output_grad(of, call, k) * slope(of, c, x);
    of->grads[c] += dz * x;
    of->grads[GRAPH_WIDTH + c] += dz;
  }
  return WEFT_OK;
}

static enum weft_status loss(struct weft_stage *stage, struct weft_stage_call *call,
                             struct weft_error *error) {
  const float *y = test_tensor_view(&call->outputs->items[0]);
  const float *target = test_tensor_view(&call->targets->items[0]);
  (void)stage;
  (void)error;
  float *dy =
      call->output_grads->count > 0 ? test_tensor_view(&call->output_grads->items[0]) : NULL;
  for (uint64_t k = 0; k < call->outputs->items[0].shape.dims[0] * GRAPH_WIDTH; k++) {
    const float difference = y[k] - target[k];
    *call->loss += 0.5 * (double)difference * (double)difference;
    if (dy != NULL) {
      dy[k] = difference;
    }
  }
  return WEFT_OK;
}

static enum weft_status zero_grad(struct weft_stage *stage, struct weft_stage_call *call,
                                  struct weft_error *error) {
  (void)call;
  (void)error;
  memset(((struct graph_stage *)stage)->grads, 0, sizeof((struct graph_stage *)stage)->grads);
  return WEFT_OK;
}

static enum weft_status scale_grads(struct weft_stage *stage, struct weft_stage_call *call,
                                    struct weft_error *error) {
  (void)error;
  for (uint32_t k = 0; k < 2 * GRAPH_WIDTH; k++) {
    ((struct graph_stage *)stage)->grads[k] *= (float)call->grad_scale;
  }
  return WEFT_OK;
}

const struct weft_stage_ops graph_stage_ops = {.name = "graph test",
                                               .forward = forward,
                                               .backward_input = backward_input,
                                               .backward_weight = backward_weight,
                                               .loss = loss,
                                               .zero_grad = zero_grad,
                                               .scale_grads = scale_grads};

/* ---- Without a pipeline ---- */

#define NUMBERS (GRAPH_ROWS_MAX * GRAPH_WIDTH)

/* Of one microbatch. */
struct evaluation {
  uint64_t numbers;
  float x[GRAPH_STAGES_MAX][NUMBERS], y[GRAPH_STAGES_MAX][NUMBERS], dz[GRAPH_STAGES_MAX][NUMBERS];
  float grads[GRAPH_EDGES_MAX][WEFT_TENSORS_MAX][NUMBERS]; /* of an edge's tensors */
};

static void evaluate_forward(const struct graph_model *model, struct evaluation *at, uint32_t s,
                             const float *inputs) {
  for (uint64_t k = 0; k < at->numbers; k++) {
    float x = graph_model_in_count(model, s) == 0 ? inputs[k] : 0;
    for (uint32_t n = 0; n < graph_model_in_count(model, s); n++) {
      const uint32_t e = in_edge(model, s, n), from = model->graph->edges[e].from;
      const struct weft_boundary *boundary = boundary_of(model, e);
      for (uint32_t t = 0; t < boundary->tensor_count; t++) {
        const float value = boundary->tensors[t].largest.dtype == WEFT_I32
                                ? 0.01f * (float)mark_of(from, boundary->own_output ? s : 0, k)
                                : out_weight(from, s, t, !boundary->own_output) * at->y[from][k];
        x += in_weight(from, s, t) * value;
      }
    }
    at->x[s][k] = x;
    at->y[s][k] = activate(&model->stages[s], (uint32_t)(k % GRAPH_WIDTH), x);
  }
}

/* Gradients of edges that share an output are added up first, in ascending order. */
static float shared_grad(const struct graph_model *model, const struct evaluation *at, uint32_t s,
                         uint32_t lead, uint32_t t, uint64_t k, bool *any) {
  float sum = 0;
  *any = false;
  for (uint32_t n = 0; n < graph_model_out_count(model, s); n++) {
    const uint32_t e = out_edge(model, s, n);
    const bool same =
        e == lead || (!boundary_of(model, e)->own_output && !boundary_of(model, lead)->own_output);
    if (same && carries(model, e) && boundary_of(model, e)->tensors[t].needs_grad) {
      sum = *any ? sum + at->grads[e][t][k] : at->grads[e][t][k];
      *any = true;
    }
  }
  return sum;
}

static void evaluate_backward(const struct graph_model *model, struct evaluation *at, uint32_t s,
                              const float *targets) {
  for (uint64_t k = 0; k < at->numbers; k++) {
    const uint32_t c = (uint32_t)(k % GRAPH_WIDTH);
    float dy = 0;
    uint32_t lead;
    for (uint32_t j = 0; (lead = lead_of(model, s, j)) != WEFT_EDGE_NONE; j++) {
      for (uint32_t t = 0; t < boundary_of(model, lead)->tensor_count; t++) {
        bool any;
        const float grad = shared_grad(model, at, s, lead, t, k, &any);
        if (any) {
          dy += out_weight(s, model->graph->edges[lead].to, t,
                           !boundary_of(model, lead)->own_output) *
                grad;
        }
      }
    }
    if (graph_model_out_count(model, s) == 0) {
      dy = at->y[s][k] - targets[k];
    }
    at->dz[s][k] = dy * slope(&model->stages[s], c, at->x[s][k]);
    for (uint32_t n = 0; n < graph_model_in_count(model, s); n++) {
      const uint32_t e = in_edge(model, s, n);
      for (uint32_t t = 0; t < boundary_of(model, e)->tensor_count; t++) {
        at->grads[e][t][k] =
            in_weight(model->graph->edges[e].from, s, t) * (at->dz[s][k] * model->stages[s].w[c]);
      }
    }
  }
}

static void evaluate_microbatch(struct graph_model *model, uint32_t mb, struct evaluation *at) {
  const uint32_t m = model->microbatch_count, each = model->rows / m, more = model->rows % m;
  const uint32_t first = mb * each + (mb < more ? mb : more);
  const size_t begin = (size_t)first * GRAPH_WIDTH;
  at->numbers = (uint64_t)(each + (mb < more)) * GRAPH_WIDTH;
  for (uint32_t s = 0; s < model->stage_count; s++) {
    evaluate_forward(model, at, s, &model->data[0][s][begin]);
    memcpy(&model->outputs[s][begin], at->y[s], at->numbers * sizeof(float));
    for (uint64_t k = 0; k < at->numbers; k++) {
      const float difference = at->y[s][k] - model->data[1][s][begin + k];
      model->losses[s][mb] += 0.5 * (double)difference * (double)difference;
    }
  }
  for (uint32_t s = model->stage_count; s-- > 0;) {
    if (weft_graph_has_backward(model->graph, s)) {
      evaluate_backward(model, at, s, &model->data[1][s][begin]);
    }
  }
}

/* Gradients are added up in the order of each stage's B or W. */
void graph_model_evaluate(struct graph_model *model) {
  struct evaluation *all = calloc(model->microbatch_count, sizeof *all);
  for (uint32_t mb = 0; mb < model->microbatch_count; mb++) {
    evaluate_microbatch(model, mb, &all[mb]);
  }
  for (uint64_t i = 0; i < model->table->action_count; i++) {
    const struct weft_action action = model->table->actions[i];
    if (action.op == WEFT_OP_B || action.op == WEFT_OP_W) {
      const struct evaluation *at = &all[action.microbatch];
      float *grads = model->grads[action.stage];
      for (uint64_t k = 0; k < at->numbers; k++) {
        grads[k % GRAPH_WIDTH] += at->dz[action.stage][k] * at->x[action.stage][k];
        grads[GRAPH_WIDTH + k % GRAPH_WIDTH] += at->dz[action.stage][k];
      }
    }
  }
  for (uint32_t s = 0; s < model->stage_count; s++) {
    for (uint32_t k = 0; k < 2 * GRAPH_WIDTH; k++) {
      model->grads[s][k] *= (float)(1.0 / (double)model->microbatch_count);
    }
  }
  free(all);
}

void graph_model_finish(struct graph_model *model) {
  for (uint32_t which = 0; which < 2; which++) {
    for (uint32_t s = 0; s < model->stage_count; s++) {
      weft_device_free(test_device(), NULL, model->device_data[which][s],
                       (uint64_t)model->rows * GRAPH_WIDTH * sizeof(float));
    }
  }
  weft_program_destroy(model->program);
  weft_program_destroy(model->table);
  weft_graph_destroy(model->graph);
}

/* ---- Running it ---- */

struct weft_pipeline_options graph_model_options(const struct graph_model *model,
                                                 struct weft_fixed_source *source) {
  struct weft_pipeline_options options = weft_pipeline_options_default();
  *source = (struct weft_fixed_source){.program = model->program};
  options.source = weft_source_fixed;
  options.source_context = source;
  options.microbatch_count = model->microbatch_count;
  options.stages = model->bases;
  options.stage_count = model->stage_count;
  options.boundaries = model->boundaries;
  options.boundary_count = model->boundary_count;
  options.device = test_device();
  return options;
}

struct weft_batch graph_model_batch(const struct graph_model *model, uint32_t rank) {
  struct weft_batch batch = model->batch;
  for (uint32_t s = 0; s < model->stage_count; s++) {
    if (model->rank_of[s] == rank && graph_model_out_count(model, s) == 0) {
      batch.want_losses = batch.want_outputs = true;
    }
  }
  return batch;
}

static const char *judge_head(const struct graph_model *model, const struct weft_head_result *head,
                              uint32_t s) {
  if (head->stage != s) {
    return "heads are not in the order of their stages";
  }
  if (memcmp(head->losses, model->losses[s], model->microbatch_count * sizeof(double)) != 0) {
    return "losses of a head";
  }
  return head->outputs.count == 1 && memcmp(head->outputs.items[0].data, model->outputs[s],
                                            model->rows * GRAPH_WIDTH * sizeof(float)) == 0
             ? NULL
             : "outputs of a head";
}

const char *graph_model_judge(const struct graph_model *model, uint32_t rank, bool training,
                              const struct weft_step_result *result) {
  uint32_t heads = 0;
  double sums[GRAPH_MICROBATCHES_MAX];
  for (uint32_t s = 0; s < model->stage_count; s++) {
    if (model->rank_of[s] != rank) {
      continue;
    }
    if (graph_model_out_count(model, s) == 0) {
      const char *complaint = heads >= result->head_count
                                  ? "too few heads"
                                  : judge_head(model, &result->heads[heads], s);
      if (complaint != NULL) {
        return complaint;
      }
      for (uint32_t mb = 0; mb < model->microbatch_count; mb++) {
        sums[mb] = (heads > 0 ? sums[mb] : 0) + model->losses[s][mb];
      }
      heads++;
    }
    if (training && weft_graph_has_backward(model->graph, s) &&
        memcmp(model->stages[s].grads, model->grads[s], sizeof model->grads[s]) != 0) {
      return "gradients of a stage";
    }
  }
  if (heads != result->head_count ||
      result->loss_count != (heads > 0 ? model->microbatch_count : 0)) {
    return "numbers of heads and losses";
  }
  return heads == 0 || memcmp(result->losses, sums, model->microbatch_count * sizeof(double)) == 0
             ? NULL
             : "sums of losses";
}
