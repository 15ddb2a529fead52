/* What a step gives a stage that is not between others, and takes from it: the inputs of a source
 * (no edge leads to it), the targets, losses and outputs of a loss (no edge leads from it). In a
 * chain these are the first and the last stage. */
#ifndef RUN_STAGE_FEED_H
#define RUN_STAGE_FEED_H

#include <weft/run.h>

#include "run/batch/batch_merge.h"
#include "run/batch/batch_split.h"
#include "run/batch/batch_upload.h"
#include "run/executor/executor.h"

struct weft_stage_feed {
  struct weft_executor_stage *stage;
  struct weft_batch_split inputs, targets;
  struct weft_batch_upload uploaded_inputs, uploaded_targets; /* on a device with streams */
  struct weft_batch_merge outputs;
  const struct weft_merge *merges; /* of the step that runs; borrowed */
};

/* Of a rank. Zero-initialise. */
struct weft_stage_feeds {
  const struct weft_allocator *allocator;
  struct weft_executor *executor;
  struct weft_stage_feed *items; /* [count], ascending by stage */
  uint32_t count;
  uint32_t loss_count; /* of items */
  double *losses;     /* [loss_count][microbatch], then their sums, if loss_count > 1; a device with
                          streams accesses them */
  uint32_t loss_room; /* microbatches */
  struct weft_head_result *heads; /* [loss_count] */
};

enum weft_status weft_stage_feeds_init(struct weft_stage_feeds *feeds,
                                       const struct weft_allocator *allocator,
                                       struct weft_executor *executor, struct weft_error *error);
void weft_stage_feeds_finish(struct weft_stage_feeds *feeds);

/* Splits the batch, makes room for losses and outputs, and gives both to the stages. `row` is for
 * messages. */
enum weft_status weft_stage_feeds_begin(struct weft_stage_feeds *feeds,
                                        const struct weft_batch *batch, const struct weft_row *row,
                                        struct weft_error *error);
/* After the step. */
enum weft_status weft_stage_feeds_end(struct weft_stage_feeds *feeds, bool want_losses,
                                      bool want_outputs, uint32_t microbatch_count,
                                      struct weft_step_result *result, struct weft_error *error);

#endif
