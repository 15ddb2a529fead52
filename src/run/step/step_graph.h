/* Steps as graphs: whether a rank's step can be one, and what one was recorded for.
 *
 *   step_together.c   one graph of all ranks of a process, which one thread drives
 *   step_apart.c      a graph per rank, where each is a process and the transport enqueues
 *   transfer_chain.c  what it costs that such a graph has its transfers one after the other */
#ifndef RUN_STEP_GRAPH_H
#define RUN_STEP_GRAPH_H

#include <weft/run.h>

struct weft_pipeline;

/* Why a step is not a graph. Ranks exchange these numbers. */
enum weft_step_graph_refusal {
  WEFT_STEP_GRAPH_POSSIBLE,
  WEFT_STEP_GRAPH_NO_DEVICE,
  WEFT_STEP_GRAPH_NOT_WANTED,
  WEFT_STEP_GRAPH_CHECKED,
  WEFT_STEP_GRAPH_OUTPUTS,
  WEFT_STEP_GRAPH_STAGE,
  WEFT_STEP_GRAPH_CUSTOM,
  WEFT_STEP_GRAPH_NO_GROUP,
  WEFT_STEP_GRAPH_CHAIN_HANGS,
  WEFT_STEP_GRAPH_CHAIN_SLOW,
  WEFT_STEP_GRAPH_NOT_RECORDED, /* it was tried */
  WEFT_STEP_GRAPH_REFUSAL_COUNT
};

/* NULL: possible. Numbers of another process may be none of these. */
const char *weft_step_graph_refusal_text(uint32_t refusal);
/* Of the step that begins; and what does not change between handshakes alone. */
enum weft_step_graph_refusal weft_step_graph_refuse(const struct weft_pipeline *pipeline);
enum weft_step_graph_refusal weft_step_graph_refuse_always(const struct weft_pipeline *pipeline);

/* What a graph was recorded for; with anything else another one is recorded. Compared as bytes. */
struct weft_step_graph_key {
  const struct weft_pipeline *pipeline;
  const struct weft_row *row;
  uint64_t batch; /* a hash of where its tensors are, and of their shapes */
  const double *losses;
  const void *saved;
};
struct weft_step_graph_key weft_step_graph_key_of(const struct weft_pipeline *pipeline);

/* The log has why a step is no graph, when that changes; NULL: it is one, or may become one. */
void weft_step_graph_explain(struct weft_pipeline *pipeline, const char *reason);

#endif
