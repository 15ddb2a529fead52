/* What a step gives a stage that is not between others, and takes from it: the inputs of a source
 * (no edge leads to it), the targets, losses and outputs of a loss (no edge leads from it). In a
 * chain these are the first and the last stage. */
#ifndef RUN_BATCH_ENDS_H
#define RUN_BATCH_ENDS_H

#include <weft/run.h>

#include "run/batch/batch_in.h"
#include "run/batch/batch_out.h"
#include "run/executor/executor.h"

struct weft_batch_end {
  struct weft_executor_stage *stage;
  struct weft_batch_in inputs, targets;
  struct weft_batch_out outputs;
  const struct weft_merge *merges; /* of the step that runs; borrowed */
};

/* Of a rank. Zero-initialise. */
struct weft_batch_ends {
  const struct weft_allocator *allocator;
  struct weft_executor *executor;
  struct weft_arena memory;     /* of items and heads */
  struct weft_batch_end *items; /* [count], ascending by stage */
  uint32_t count;
  bool want_losses, want_outputs; /* in the step that runs */
  uint32_t loss_count;            /* of items */
  struct weft_batch_memory loss_memory;
  double *losses; /* there: [loss_count][microbatch], then their sums, if loss_count > 1 */
  struct weft_head_result *heads; /* [loss_count] */
};

enum weft_status weft_batch_ends_init(struct weft_batch_ends *ends,
                                      const struct weft_allocator *allocator,
                                      struct weft_executor *executor, struct weft_error *error);
void weft_batch_ends_finish(struct weft_batch_ends *ends);

/* Splits the batch, makes room for losses and outputs, and gives both to the stages. `row` is for
 * messages. */
enum weft_status weft_batch_ends_begin(struct weft_batch_ends *ends, const struct weft_batch *batch,
                                       const struct weft_row *row, struct weft_error *error);
/* After the step. */
enum weft_status weft_batch_ends_end(struct weft_batch_ends *ends, uint32_t microbatch_count,
                                     struct weft_step_result *result, struct weft_error *error);

#endif
