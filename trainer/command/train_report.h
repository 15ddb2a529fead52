/* The reports of `weft train` before the first step and after the last one. */
#ifndef GPT_TRAIN_REPORT_H
#define GPT_TRAIN_REPORT_H

#include "trainer/command/train_progress.h"

/* The model, the data and the pipeline. */
void weft_train_add_plan(struct weft_text *text, const struct weft_train_setup *setup,
                         const struct weft_gpt_trainer *trainer);

/* The result, as text and as the last line of JSON. `stopped_by` is a signal,
 * "divergence", or NULL. */
void weft_train_add_summary(struct weft_text *text, const struct weft_train_setup *setup,
                            const struct weft_train_progress *progress,
                            const struct weft_gpt_trainer *trainer);
void weft_train_add_json(struct weft_text *text, const struct weft_train_setup *setup,
                         const struct weft_train_progress *progress,
                         const struct weft_gpt_trainer *trainer, const char *stopped_by);

/* "threads" or "loopback". */
const char *weft_train_transport(const struct weft_train_setup *setup);

#endif
