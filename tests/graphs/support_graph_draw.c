/* Drawing a graph, its boundaries, placement and data; see support_graph_model.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>

#include "support_graph_model.h"
#include "support_protected_device.h"

static bool chance(struct weft_random *random, uint32_t percent) {
  return weft_random_below(random, 100) < percent;
}

static void draw_graph(struct graph_model *model, struct weft_random *random) {
  const uint32_t n = model->stage_count;
  struct weft_edge edges[GRAPH_EDGES_MAX];
  uint32_t count = 0, out[GRAPH_STAGES_MAX] = {0}, in[GRAPH_STAGES_MAX] = {0};
  bool is_there[GRAPH_STAGES_MAX][GRAPH_STAGES_MAX] = {{false}};
  const uint32_t density = weft_random_below(random, 40), chained = weft_random_below(random, 100);
  for (uint32_t from = 0; from < n; from++) {
    for (uint32_t to = from + 1; to < n; to++) {
      is_there[from][to] = chance(random, to == from + 1 ? chained : density);
      out[from] += is_there[from][to];
      in[to] += is_there[from][to];
    }
  }
  for (uint32_t s = 0; s < n; s++) { /* nobody is alone */
    if (in[s] + out[s] == 0) {
      const uint32_t from = s > 0 ? weft_random_below(random, s) : 0, to = s > 0 ? s : 1;
      is_there[from][to] = true;
      out[from]++;
      in[to]++;
    }
  }
  for (uint32_t from = 0; from < n; from++) {
    for (uint32_t to = from + 1; to < n; to++) {
      if (is_there[from][to]) {
        edges[count++] = weft_edge_make(from, to);
      }
    }
  }
  /* From the last stage on: who gets no gradient sends none. */
  for (uint32_t s = n; s-- > 0;) {
    bool has_backward = out[s] == 0;
    for (uint32_t e = 0; e < count; e++) {
      has_backward = has_backward || (edges[e].from == s && edges[e].gradient);
    }
    for (uint32_t e = 0; e < count; e++) {
      if (edges[e].to == s && (!has_backward || chance(random, 15))) {
        edges[e].gradient = false;
      }
    }
  }
  struct weft_error error;
  if (weft_graph_create(NULL, n, edges, count, NULL, &model->graph, &error) != WEFT_OK) {
    fail_msg("seed %lu: %s", (unsigned long)model->seed, error.message);
  }
}

static struct weft_boundary_tensor make_tensor(enum weft_dtype dtype, bool needs_grad) {
  return (struct weft_boundary_tensor){
      .largest = {.dtype = (uint8_t)dtype, .dim_count = 2, .dims = {GRAPH_ROWS_MAX, GRAPH_WIDTH}},
      .needs_grad = needs_grad};
}

/* The shared edges of a stage have the tensors of the first; the gradients add up on the host. */
static void draw_boundaries(struct graph_model *model, struct weft_random *random) {
  const struct weft_graph *graph = model->graph;
  for (uint32_t e = 0; e < graph->edge_count; e++) {
    struct weft_boundary *boundary = &model->boundaries[e];
    const bool shared = test_device() == NULL && chance(random, 50);
    uint32_t lead = e;
    for (uint32_t k = 0; shared && k < e; k++) {
      lead = graph->edges[k].from == graph->edges[e].from && !model->boundaries[k].own_output &&
                     lead == e
                 ? k
                 : lead;
    }
    if (lead < e) {
      *boundary = model->boundaries[lead];
      continue;
    }
    boundary->tensors[boundary->tensor_count++] = make_tensor(WEFT_F32, true);
    while (boundary->tensor_count < 3 && chance(random, 40)) {
      const bool marks = chance(random, 50);
      boundary->tensors[boundary->tensor_count++] =
          make_tensor(marks ? WEFT_I32 : WEFT_F32, !marks && chance(random, 60));
    }
    boundary->own_output = !shared;
  }
  model->boundary_count = graph->edge_count;
  for (uint32_t s = 0; s < model->stage_count; s++) {
    if (graph_model_out_count(model, s) == 0) {
      model->boundaries[model->boundary_count++] =
          (struct weft_boundary){.tensor_count = 1, .tensors = {make_tensor(WEFT_F32, true)}};
    }
  }
}

static void draw_program(struct graph_model *model, uint32_t ranks, struct weft_random *random) {
  const uint32_t n = model->stage_count;
  struct weft_error error;
  model->rank_count = ranks > 0 ? ranks : 1 + (uint32_t)weft_random_below(random, 6);
  model->rank_count = model->rank_count < n ? model->rank_count : n;
  for (uint32_t s = 0; s < n; s++) { /* every rank has one */
    model->rank_of[s] =
        s < model->rank_count ? s : (uint32_t)weft_random_below(random, model->rank_count);
  }
  for (uint32_t s = n; s-- > 1;) {
    const uint32_t other = (uint32_t)weft_random_below(random, s + 1);
    const uint32_t rank = model->rank_of[s];
    model->rank_of[s] = model->rank_of[other];
    model->rank_of[other] = rank;
  }
  model->table = graph_random_table(model->graph, model->rank_of, model->rank_count,
                                    model->microbatch_count, weft_random_next(random));
  if (weft_lower(NULL, model->table, NULL, &model->program, &error) != WEFT_OK) {
    fail_msg("seed %lu: %s", (unsigned long)model->seed, error.message);
  }
}

static void draw_data(struct graph_model *model, struct weft_random *random) {
  const uint64_t bytes = (uint64_t)model->rows * GRAPH_WIDTH * sizeof(float);
  for (uint32_t which = 0; which < 2; which++) {
    for (uint32_t s = 0; s < model->stage_count; s++) {
      for (uint32_t k = 0; k < model->rows * GRAPH_WIDTH; k++) {
        model->data[which][s][k] = (float)(2 * weft_random_share(random) - 1);
      }
      if (s > 0 && chance(random, 30)) { /* stages that use the batch's */
        memcpy(model->data[which][s], model->data[which][0], sizeof model->data[which][s]);
      }
      model->device_data[which][s] = test_device_copy(model->data[which][s], bytes);
      model->tensors[which][s] = (struct weft_tensor){
          .data = model->device_data[which][s],
          .device = test_device(),
          .shape = {.dtype = WEFT_F32, .dim_count = 2, .dims = {model->rows, GRAPH_WIDTH}}};
    }
  }
}

static void make_batch(struct graph_model *model) {
  model->batch = (struct weft_batch){.microbatch_count = model->microbatch_count,
                                     .inputs = &model->tensors[0][0],
                                     .input_count = 1,
                                     .targets = &model->tensors[1][0],
                                     .target_count = 1,
                                     .stages = model->stage_batches};
  for (uint32_t s = 0; s < model->stage_count; s++) {
    const bool is_end = graph_model_in_count(model, s) == 0 || graph_model_out_count(model, s) == 0;
    const bool same = memcmp(model->data[0][s], model->data[0][0], sizeof model->data[0][s]) == 0 &&
                      memcmp(model->data[1][s], model->data[1][0], sizeof model->data[1][s]) == 0;
    if (is_end && !same) {
      model->stage_batches[model->batch.stage_count++] =
          (struct weft_stage_batch){.stage = s,
                                    .inputs = &model->tensors[0][s],
                                    .input_count = 1,
                                    .targets = &model->tensors[1][s],
                                    .target_count = 1};
    }
  }
}

void graph_model_init(struct graph_model *model, uint64_t seed, uint32_t ranks) {
  struct weft_random random = {.state = seed};
  memset(model, 0, sizeof *model);
  model->seed = seed;
  model->stage_count = 2 + (uint32_t)weft_random_below(&random, GRAPH_STAGES_MAX - 1);
  model->microbatch_count = 1 + (uint32_t)weft_random_below(&random, GRAPH_MICROBATCHES_MAX);
  model->rows = model->microbatch_count +
                (uint32_t)weft_random_below(&random, GRAPH_ROWS_MAX - model->microbatch_count + 1);
  draw_graph(model, &random);
  draw_boundaries(model, &random);
  for (uint32_t s = 0; s < model->stage_count; s++) {
    struct graph_stage *stage = &model->stages[s];
    *stage = (struct graph_stage){.stage = {.ops = &graph_stage_ops}, .model = model, .number = s};
    model->bases[s] = &stage->stage;
    for (uint32_t c = 0; c < GRAPH_WIDTH; c++) {
      stage->w[c] = (float)(0.2 + 0.5 * weft_random_share(&random));
      stage->b[c] = (float)(0.4 * weft_random_share(&random) - 0.2);
    }
  }
  draw_data(model, &random);
  draw_program(model, ranks, &random);
  make_batch(model);
  graph_model_evaluate(model);
}
