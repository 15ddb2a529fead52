/* Random pipelines whose stages form a graph, and what a plain evaluation without any pipeline makes
 * of them: losses, outputs and gradients to compare with, bit for bit. All of it is a function of
 * the seed. */
#ifndef SUPPORT_GRAPH_MODEL_H
#define SUPPORT_GRAPH_MODEL_H

#include <weft/run.h>
#include <weft/weft.h>

#define GRAPH_STAGES_MAX 10u
#define GRAPH_EDGES_MAX (GRAPH_STAGES_MAX * GRAPH_STAGES_MAX / 2 + GRAPH_STAGES_MAX)
#define GRAPH_MICROBATCHES_MAX 5u
#define GRAPH_ROWS_MAX 16u /* of a batch */
#define GRAPH_WIDTH 3u

struct graph_model;

/* y = z + z * z / 10 with z = w x + b by column; x is a weighted sum over the tensors of all
 * in-edges, and each tensor of an out-edge is y times a weight. The weights differ by edge and
 * tensor, so that none can be taken for another. */
struct graph_stage {
  struct weft_stage stage;
  const struct graph_model *model;
  uint32_t number;
  float w[GRAPH_WIDTH], b[GRAPH_WIDTH];
  float grads[2 * GRAPH_WIDTH];
};

struct graph_model {
  uint64_t seed;
  uint32_t stage_count, rank_count, microbatch_count, rows;
  struct weft_graph *graph;
  struct weft_boundary boundaries[GRAPH_EDGES_MAX];
  uint32_t boundary_count;
  uint32_t rank_of[GRAPH_STAGES_MAX];
  struct weft_program *table;   /* a random order */
  struct weft_program *program; /* lowered */
  struct graph_stage stages[GRAPH_STAGES_MAX];
  struct weft_stage *bases[GRAPH_STAGES_MAX];
  float data[2][GRAPH_STAGES_MAX][GRAPH_ROWS_MAX * GRAPH_WIDTH]; /* inputs, targets */
  void *device_data[2][GRAPH_STAGES_MAX];                        /* the same on the test device */

  /* What every rank gives: the data of stage 0 is the batch's, others have their own. */
  struct weft_tensor tensors[2][GRAPH_STAGES_MAX];
  struct weft_stage_batch stage_batches[GRAPH_STAGES_MAX];
  struct weft_batch batch;

  /* What must come of it. */
  double losses[GRAPH_STAGES_MAX][GRAPH_MICROBATCHES_MAX];
  float outputs[GRAPH_STAGES_MAX][GRAPH_ROWS_MAX * GRAPH_WIDTH];
  float grads[GRAPH_STAGES_MAX][2 * GRAPH_WIDTH];
};

/* `ranks` 0: drawn, from 1 to 6. */
void graph_model_init(struct graph_model *model, uint64_t seed, uint32_t ranks);
void graph_model_finish(struct graph_model *model);

/* Options for its program, from a struct weft_fixed_source that the caller keeps. */
struct weft_pipeline_options graph_model_options(const struct graph_model *model,
                                                 struct weft_fixed_source *source);
/* The batch as a rank gives it: it wants results where it has losses. */
struct weft_batch graph_model_batch(const struct graph_model *model, uint32_t rank);
/* What is wrong with a rank's result of a step; NULL: nothing. */
const char *graph_model_judge(const struct graph_model *model, uint32_t rank, bool training,
                              const struct weft_step_result *result);

/* ---- Between its files ---- */

extern const struct weft_stage_ops graph_stage_ops;
uint32_t graph_model_in_count(const struct graph_model *model, uint32_t s);
uint32_t graph_model_out_count(const struct graph_model *model, uint32_t s);
/* Without a pipeline: fills in what must come of it. */
void graph_model_evaluate(struct graph_model *model);

/* ---- Random orders ---- */

/* A table with F, and B or I and W, of all stages and microbatches, in an order in which they can
 * run; stages are where rank_of says. Aborts when it cannot be made. */
struct weft_program *graph_random_table(const struct weft_graph *graph, const uint32_t *rank_of,
                                        uint32_t rank_count, uint32_t microbatch_count,
                                        uint64_t seed);

#endif
